/* A row per group with all statistics, for programs. */
#include "lib/report/internal.h"

#define METRIC_COLUMNS(key)                                                                    \
    {.name = key "_runs", .type = VPTQ_COLUMN_INTEGER},                                        \
        {.name = key "_median", .type = VPTQ_COLUMN_REAL},                                     \
        {.name = key "_mean", .type = VPTQ_COLUMN_REAL},                                       \
        {.name = key "_std", .type = VPTQ_COLUMN_REAL},                                        \
        {.name = key "_min", .type = VPTQ_COLUMN_REAL},                                        \
        {.name = key "_max", .type = VPTQ_COLUMN_REAL},                                        \
        {.name = key "_outliers", .type = VPTQ_COLUMN_INTEGER},                                \
        {.name = key "_rank", .type = VPTQ_COLUMN_INTEGER},                                    \
        {.name = key "_speedup", .type = VPTQ_COLUMN_REAL},                                    \
        {.name = key "_speedup_low", .type = VPTQ_COLUMN_REAL},                                \
    {                                                                                          \
        .name = key "_speedup_high", .type = VPTQ_COLUMN_REAL                                  \
    }

/* The metrics in the order of vptq_metric. */
static const vptq_column columns[] = {
    {.name = "group", .type = VPTQ_COLUMN_TEXT},
    {.name = "model", .type = VPTQ_COLUMN_TEXT},
    {.name = "configuration", .type = VPTQ_COLUMN_TEXT},
    {.name = "batch_size", .type = VPTQ_COLUMN_INTEGER},
    {.name = "input_len", .type = VPTQ_COLUMN_INTEGER},
    {.name = "output_len", .type = VPTQ_COLUMN_INTEGER},
    {.name = "runs", .type = VPTQ_COLUMN_INTEGER},
    METRIC_COLUMNS("latency"),
    METRIC_COLUMNS("output_throughput"),
    METRIC_COLUMNS("input_throughput"),
    METRIC_COLUMNS("overall_throughput"),
    METRIC_COLUMNS("ttft"),
    {.name = "ttft_derived_runs", .type = VPTQ_COLUMN_INTEGER},
    {.name = "backend", .type = VPTQ_COLUMN_TEXT},
    {.name = "bits_per_weight", .type = VPTQ_COLUMN_REAL},
    {.name = "peak_memory_bytes", .type = VPTQ_COLUMN_REAL},
    {.name = "runs_repeated", .type = VPTQ_COLUMN_TEXT},
    {.name = "runs_missing", .type = VPTQ_COLUMN_TEXT},
    {.name = "runs_of_other_names", .type = VPTQ_COLUMN_TEXT}};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void put_metric(vptq_table *t, const vptq_report_metric *m)
{
    vptq_table_integer(t, (int64_t)m->stats.count);
    vptq_table_real(t, m->stats.median);
    vptq_table_real(t, m->stats.mean);
    vptq_table_real(t, m->stats.std);
    vptq_table_real(t, m->stats.min);
    vptq_table_real(t, m->stats.max);
    vptq_table_integer(t, (int64_t)m->outliers);
    if (m->rank)
        vptq_table_integer(t, m->rank);
    else
        vptq_table_skip(t);
    vptq_table_real(t, m->speedup.value);
    vptq_table_real(t, m->speedup.low);
    vptq_table_real(t, m->speedup.high);
}

vptq_status vptq_report_write_rows(const vptq_report *r, vptq_format format, vptq_buf *out,
                                   vptq_err *err)
{
    vptq_table t;
    vptq_table_init(&t, r->arena.mem, NULL, columns, COLUMNS);
    for (size_t i = 0; i < r->group_count; i++) {
        const vptq_report_group *g = &r->groups[i];
        const vptq_report_config *c = &r->configs[g->config];
        vptq_table_row(&t);
        vptq_table_text(&t, g->name);
        vptq_table_text(&t, g->model);
        vptq_table_text(&t, c->label);
        vptq_table_integer(&t, c->batch_size);
        vptq_table_integer(&t, c->input_len);
        vptq_table_integer(&t, c->output_len);
        vptq_table_integer(&t, (int64_t)g->run_count);
        for (int m = 0; m < VPTQ_METRIC_COUNT; m++)
            put_metric(&t, &g->metric[m]);
        vptq_table_integer(&t, (int64_t)g->derived_ttft);
        vptq_table_text(&t, g->backend);
        vptq_table_real(&t, g->bits_per_weight);
        vptq_table_real(&t, g->peak_memory_bytes);
        vptq_table_text(&t, g->repeated);
        vptq_table_text(&t, g->missing);
        vptq_table_text(&t, g->elsewhere);
    }
    vptq_status st = vptq_table_write(&t, format, out, err);
    vptq_table_release(&t);
    return st;
}
