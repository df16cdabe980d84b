/* Comparing served models: runs of several models under several configurations (batch size,
 * input length, output length), from the records of a benchmark to tables and pages.
 *
 * A group is the runs of one model under one configuration.  A model's name is the group's
 * without the configuration's, where records have that and groups end with it, or without what
 * all groups of a configuration end with ("awq" of "awq_interactive" beside
 * "original_interactive"); where group names come back in several configurations they carry no
 * configuration, and are the models' names as they are. */
#ifndef VPTQ_REPORT_REPORT_H
#define VPTQ_REPORT_REPORT_H

#include "lib/report/records.h"
#include "lib/report/stats.h"
#include "lib/report/table.h"

typedef enum {
    VPTQ_METRIC_LATENCY, /* seconds for the batch */
    VPTQ_METRIC_DECODE,  /* tokens per second behind the first ones */
    VPTQ_METRIC_PREFILL, /* input tokens per second until the first token */
    VPTQ_METRIC_OVERALL, /* input and output tokens per second */
    VPTQ_METRIC_TTFT,    /* seconds until the first token of the last request */
    VPTQ_METRIC_COUNT
} vptq_metric;

/* "latency", "output_throughput", "input_throughput", "overall_throughput", "ttft". */
const char *vptq_metric_key(vptq_metric m);
const char *vptq_metric_title(vptq_metric m); /* "Latency", "Decode throughput", ... */
const char *vptq_metric_unit(vptq_metric m);  /* "s" or "tok/s" */
bool vptq_metric_less_is_better(vptq_metric m);

typedef struct vptq_report_metric {
    double *values; /* [runs] in the order of the records; NaN = none */
    bool *outlier;  /* [runs] */
    vptq_stats stats;
    size_t outliers;
    vptq_ratio speedup; /* over the original, above 1 = better; NaN where there is none */
    uint32_t rank;      /* by median within the configuration, 1 = best; equal medians share the
                           better rank; 0 = no value */
} vptq_report_metric;

typedef struct vptq_report_group {
    const char *name, *model;
    size_t config, model_index; /* places in the report's lists */
    const vptq_record **runs;   /* [run_count] in the order of the records */
    size_t run_count;
    vptq_report_metric metric[VPTQ_METRIC_COUNT];
    size_t derived_ttft;  /* runs whose ttft was not recorded and comes from latency and decode
                             throughput */
    const char *repeated; /* run names that come more than once, "run3 (2 times)"; or NULL */
    const char *missing;  /* run numbers that others have, "run2"; or NULL */
    const char *backend;  /* that all its runs had; or NULL */
    double bits_per_weight, peak_memory_bytes; /* the largest recorded; NaN = none */
    const char *elsewhere;                     /* runs whose name says another group; or NULL */
} vptq_report_group;

typedef struct vptq_report_config {
    uint32_t batch_size, input_len, output_len;
    const char *label;   /* "interactive"; NULL where the groups' names have none */
    size_t first, count; /* its groups, sorted by name */
    const vptq_report_group *original; /* or NULL */
    const char *absent; /* models that others have and this one has not, or NULL */
} vptq_report_config;

/* Over the configurations that a model shares with the original. */
typedef struct vptq_report_summary {
    double mean, min, max; /* of the speedups; the mean is the geometric one */
    size_t count, slower;  /* configurations; of these with a speedup below 1 */
} vptq_report_summary;

typedef struct vptq_report_model {
    const char *name;
    bool original;
    const vptq_report_group **by_config; /* [config_count], NULL = not measured */
    size_t groups;
    vptq_report_summary summary[VPTQ_METRIC_COUNT];
    double bits_per_weight, peak_memory_bytes; /* the largest recorded; NaN = none */
} vptq_report_model;

/* Configurations that differ only in their batch size; two at least. */
typedef struct vptq_report_family {
    uint32_t input_len, output_len;
    size_t *configs; /* [count] by rising batch size */
    size_t count;
} vptq_report_family;

typedef enum {
    VPTQ_EVEN_UNKNOWN, /* fewer than two batch sizes have a speedup */
    VPTQ_EVEN_FASTER,  /* none: faster at every batch size */
    VPTQ_EVEN_SLOWER,  /* none: at no batch size faster */
    VPTQ_EVEN_UNTIL,   /* faster below `batch`, not above */
    VPTQ_EVEN_FROM     /* faster above `batch`, not below */
} vptq_even_kind;
/* Where the speedup of a model passes 1 within a family: between the first two neighbouring
 * batch sizes on whose two sides it is above 1 and not above 1, by a line through the logarithm
 * of the speedup over the logarithm of the batch size. */
typedef struct vptq_break_even {
    vptq_even_kind kind;
    double batch;
    uint32_t first, last; /* batch sizes that have a speedup */
    bool again;           /* it passes 1 more than once; `batch` is the first time */
} vptq_break_even;

typedef struct vptq_report {
    vptq_arena arena;
    const char *original;        /* name of the model that others are compared with */
    bool has_original;           /* some configuration has it */
    size_t records;              /* all runs */
    vptq_report_config *configs; /* by batch size, input and output length */
    size_t config_count;
    vptq_report_group *groups; /* by configuration and name */
    size_t group_count;
    vptq_report_model *models; /* the original, then by falling latency speedup */
    size_t model_count;
    vptq_report_family *families;
    size_t family_count;
    bool derived_ttft; /* of any run */
} vptq_report;

/* `original`: model (or group) that the others are compared with; NULL = "original", which need
 * not be there.  The records must outlive the report.  VPTQ_E_ARG for a name that is not there,
 * VPTQ_E_FORMAT for more than 2000 groups or 1000 runs of one group. */
vptq_status vptq_report_build(const vptq_records *records, const char *original, vptq_mem *mem,
                              vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_report_release(vptq_report *r);

/* Of a model that is not the original. */
vptq_break_even vptq_report_break_even(const vptq_report *r, const vptq_report_family *f,
                                       const vptq_report_model *m, vptq_metric metric);
/* Geometric mean of a model's speedups over the configurations of one batch size; NaN = none.
 */
double vptq_report_at_batch(const vptq_report *r, const vptq_report_model *m, uint32_t batch,
                            vptq_metric metric);

/* The layout of the report that the records of the field come with, in Markdown, no newline at
 * its end: figures with two decimals, groups by mean decode throughput, "+- s" left out for a
 * single run, what was not recorded "N/A" for a run and 0.00 for a group.  `source` is what it
 * is "Generated from". */
vptq_status vptq_report_write_classic(const vptq_report *r, const char *source, vptq_buf *out,
                                      vptq_err *err) VPTQ_MUST_CHECK;
/* The default layout: Markdown or a page for people; CSV or JSON lines with one row per group
 * and all statistics.  Text is as Markdown. */
vptq_status vptq_report_write(const vptq_report *r, vptq_format format, const char *source,
                              vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

#endif
