/* Internal: reads the records of a serving benchmark, JSON lines with one run each, as
 * `vptq-eval serve` writes them (docs/reports.md).  Unknown keys are ignored. */
#ifndef VPTQ_REPORT_RECORDS_H
#define VPTQ_REPORT_RECORDS_H

#include "lib/base/ctx.h"
#include "lib/base/mem.h"

/* Settings of a run that its speed depends on. */
enum { VPTQ_RECORD_SETTINGS = 4 };
extern const char *const vptq_record_settings[VPTQ_RECORD_SETTINGS];

typedef struct vptq_record {
    const char *run_name;
    const char *group; /* if not recorded, run_name without its "_runN" */
    uint32_t batch_size, input_len, output_len;
    double latency; /* seconds for the whole batch */
    /* NaN = not recorded */
    double output_throughput;  /* output tokens per second after the first ones:
                                  B out / (latency - ttft) */
    double overall_throughput; /* B (in + out) / latency */
    double input_throughput;   /* B in / ttft */
    double ttft;               /* seconds until the last request of the batch has its first
                                  token */
    double bits_per_weight, peak_memory_bytes;
    const char *config, *backend;               /* NULL = not recorded */
    const char *settings[VPTQ_RECORD_SETTINGS]; /* as texts; NULL = not recorded */
} vptq_record;

typedef struct vptq_records {
    vptq_record *items; /* in the order of the files and their lines */
    size_t count, cap;
    vptq_arena arena; /* texts */
} vptq_records;

void vptq_records_init(vptq_records *r, vptq_mem *mem);
void vptq_records_release(vptq_records *r);

/* Appends the records of a file.  Required: run_name, batch_size, input_len, output_len (whole
 * numbers above 0), latency (above 0); the others may be missing or null.  Empty lines are
 * ignored.  VPTQ_E_FORMAT for a bad record, naming file, line and key, and for a file without
 * records. */
vptq_status vptq_records_read(const vptq_ctx *ctx, vptq_records *r, const char *path,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* The same from a text; errors call it `name`. */
vptq_status vptq_records_parse(vptq_records *r, const char *text, size_t len, const char *name,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Length of a run's name without "_runN" at its end, N being a decimal number. */
size_t vptq_run_name_stem(const char *run_name);

#endif
