/* Internal: compares served models.  Turns the records of a benchmark, runs of several models
 * under several configurations (batch size, input length, output length), into tables and
 * pages.
 *
 * A group is the runs of one model under one configuration.  Its name is MODEL_LABEL, where the
 * ending _LABEL is shared by all groups of the configuration: the recorded name of the
 * configuration, else an ending that leaves a known model ("awq" of "awq_interactive" next to
 * "original_interactive"; docs/reports.md has the whole rule).  Group names that appear in
 * several configurations contain no label and name the models as they are.
 */
#ifndef VPTQ_REPORT_REPORT_H
#define VPTQ_REPORT_REPORT_H

#include "lib/report/records.h"
#include "lib/report/stats.h"
#include "lib/report/table.h"

typedef enum {
    VPTQ_METRIC_LATENCY, /* seconds for the batch */
    VPTQ_METRIC_DECODE,  /* output tokens per second after the first ones */
    VPTQ_METRIC_PREFILL, /* input tokens per second until the first token */
    VPTQ_METRIC_OVERALL, /* input and output tokens per second */
    VPTQ_METRIC_TTFT,    /* seconds until the first token of the last request */
    VPTQ_METRIC_COUNT
} vptq_metric;

typedef struct vptq_metric_info {
    const char *title, *unit;
    bool less; /* is better */
} vptq_metric_info;
extern const vptq_metric_info vptq_metrics[VPTQ_METRIC_COUNT];

typedef struct vptq_report_metric {
    double *values; /* [runs] in the order of the records; NaN = not known */
    bool *outlier;  /* [runs] */
    vptq_stats stats;
    size_t outliers;
    vptq_ratio speedup; /* over the original, above 1 = better; NaN without an original */
    uint32_t rank;      /* of the median within the configuration, 1 = best, equal medians share
                           the better rank; 0 = no value */
} vptq_report_metric;

typedef struct vptq_report_group {
    const char *name, *model;
    size_t config, model_index; /* indices into configs and models */
    const vptq_record **runs;   /* [run_count] in the order of the records */
    size_t run_count;
    vptq_report_metric metric[VPTQ_METRIC_COUNT];
    size_t derived_ttft;  /* runs whose ttft is computed from latency and decode throughput */
    const char *repeated; /* run names that appear more than once, "run3 (2 times)"; or NULL */
    const char *missing;  /* run numbers that other groups have, "run2"; or NULL */
    const char *backend;  /* of all runs; NULL if they differ or it is not recorded */
    double bits_per_weight, peak_memory_bytes; /* the largest recorded; NaN = none */
    const char *elsewhere;                     /* runs named after another group; or NULL */
    const char *mixed; /* settings in which runs differ, "kv, threads"; or NULL */
} vptq_report_group;

typedef struct vptq_report_config {
    uint32_t batch_size, input_len, output_len;
    const char *label;   /* "interactive"; NULL if the names of the groups have none */
    size_t first, count; /* its groups, sorted by name */
    const vptq_report_group *original; /* or NULL */
    const char *absent;                /* models that only other configurations have, or NULL */
} vptq_report_config;

/* Speedups over the configurations that a model shares with the original. */
typedef struct vptq_report_summary {
    double mean, min, max; /* geometric mean */
    size_t count, slower;  /* configurations, and those with a speedup below 1 */
} vptq_report_summary;

typedef struct vptq_report_model {
    const char *name;
    bool original;
    const vptq_report_group **by_config; /* [config_count], NULL = not measured */
    size_t groups;
    vptq_report_summary summary[VPTQ_METRIC_COUNT];
    double bits_per_weight, peak_memory_bytes; /* the largest recorded; NaN = none */
} vptq_report_model;

/* Two or more configurations that differ only in their batch size. */
typedef struct vptq_report_family {
    uint32_t input_len, output_len;
    size_t *configs; /* [count] by increasing batch size */
    size_t count;
} vptq_report_family;

typedef enum {
    VPTQ_EVEN_UNKNOWN, /* fewer than two batch sizes have a speedup */
    VPTQ_EVEN_FASTER,  /* faster at every batch size */
    VPTQ_EVEN_SLOWER,  /* faster at no batch size */
    VPTQ_EVEN_UNTIL,   /* faster only below `batch` */
    VPTQ_EVEN_FROM     /* faster only above `batch` */
} vptq_even_kind;
/* The batch size at which the speedup of a model crosses 1 within a family.  It lies between
 * the first two neighbouring batch sizes with speedups on different sides of 1, and is
 * interpolated linearly in the logarithms of speedup and batch size. */
typedef struct vptq_break_even {
    vptq_even_kind kind;
    double batch;
    uint32_t first, last; /* smallest and largest batch size with a speedup */
    bool again;           /* crosses 1 more than once; `batch` is the first crossing */
} vptq_break_even;

typedef struct vptq_report {
    vptq_arena arena;
    const char *original;        /* name of the model that the others are compared with */
    bool has_original;           /* some configuration has it */
    size_t records;              /* all runs */
    vptq_report_config *configs; /* by batch size, input and output length */
    size_t config_count;
    vptq_report_group *groups; /* by configuration and name */
    size_t group_count;
    vptq_report_model *models; /* the original first, then by decreasing latency speedup */
    size_t model_count;
    vptq_report_family *families;
    size_t family_count;
} vptq_report;

/* Groups the records and computes all statistics.  `original` is the model (or group) that the
 * others are compared with; NULL = "original", which may be absent.  The records must outlive
 * the report.  VPTQ_E_ARG for an unknown name, VPTQ_E_FORMAT for more than 2000 groups or 1000
 * runs of one group. */
vptq_status vptq_report_build(const vptq_records *records, const char *original, vptq_mem *mem,
                              vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_report_release(vptq_report *r);

/* Break-even of a model other than the original. */
vptq_break_even vptq_report_break_even(const vptq_report *r, const vptq_report_family *f,
                                       const vptq_report_model *m, vptq_metric metric);
/* Geometric mean of a model's speedups at one batch size; NaN = none. */
double vptq_report_at_batch(const vptq_report *r, const vptq_report_model *m, uint32_t batch,
                            vptq_metric metric);

/* Appends the report in the layout of the published one: Markdown without a newline at the end,
 * figures with two decimals, groups by mean decode throughput, no deviation for a single run;
 * figures that were not recorded are "N/A" for a run and 0.00 for a group.  `source` follows
 * "Generated from". */
vptq_status vptq_report_write_classic(const vptq_report *r, const char *source, vptq_buf *out,
                                      vptq_err *err) VPTQ_MUST_CHECK;
/* Appends the report in the default layout: a Markdown or HTML page for people (text =
 * Markdown); CSV or JSON lines with a row per group and all statistics. */
vptq_status vptq_report_write(const vptq_report *r, vptq_format format, const char *source,
                              vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

#endif
