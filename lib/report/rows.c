/* A row per group with all statistics, for programs. */
#include "lib/report/internal.h"

typedef struct group_row {
    vptq_report_group g;
    uint32_t batch_size, input_len, output_len;
    const char *label;
} group_row;

#define METRIC(key, m)                                                                         \
    {.name = key "_runs", VPTQ_INTEGER(group_row, g.metric[m].stats.count)},                   \
        {.name = key "_median", VPTQ_REAL(group_row, g.metric[m].stats.median)},               \
        {.name = key "_mean", VPTQ_REAL(group_row, g.metric[m].stats.mean)},                   \
        {.name = key "_std", VPTQ_REAL(group_row, g.metric[m].stats.std)},                     \
        {.name = key "_min", VPTQ_REAL(group_row, g.metric[m].stats.min)},                     \
        {.name = key "_max", VPTQ_REAL(group_row, g.metric[m].stats.max)},                     \
        {.name = key "_outliers", VPTQ_INTEGER(group_row, g.metric[m].outliers)},              \
        {.name = key "_rank",                                                                  \
         VPTQ_INTEGER(group_row, g.metric[m].rank),                                            \
         .zero_missing = true},                                                                \
        {.name = key "_speedup", VPTQ_REAL(group_row, g.metric[m].speedup.value)},             \
        {.name = key "_speedup_low", VPTQ_REAL(group_row, g.metric[m].speedup.low)},           \
    {                                                                                          \
        .name = key "_speedup_high", VPTQ_REAL(group_row, g.metric[m].speedup.high)            \
    }

static const vptq_column columns[] = {
    {.name = "group", VPTQ_TEXT(group_row, g.name)},
    {.name = "model", VPTQ_TEXT(group_row, g.model)},
    {.name = "configuration", VPTQ_TEXT(group_row, label)},
    {.name = "batch_size", VPTQ_INTEGER(group_row, batch_size)},
    {.name = "input_len", VPTQ_INTEGER(group_row, input_len)},
    {.name = "output_len", VPTQ_INTEGER(group_row, output_len)},
    {.name = "runs", VPTQ_INTEGER(group_row, g.run_count)},
    METRIC("latency", VPTQ_METRIC_LATENCY),
    METRIC("output_throughput", VPTQ_METRIC_DECODE),
    METRIC("input_throughput", VPTQ_METRIC_PREFILL),
    METRIC("overall_throughput", VPTQ_METRIC_OVERALL),
    METRIC("ttft", VPTQ_METRIC_TTFT),
    {.name = "ttft_derived_runs", VPTQ_INTEGER(group_row, g.derived_ttft)},
    {.name = "backend", VPTQ_TEXT(group_row, g.backend)},
    {.name = "bits_per_weight", VPTQ_REAL(group_row, g.bits_per_weight)},
    {.name = "peak_memory_bytes", VPTQ_REAL(group_row, g.peak_memory_bytes)},
    {.name = "runs_repeated", VPTQ_TEXT(group_row, g.repeated)},
    {.name = "runs_missing", VPTQ_TEXT(group_row, g.missing)},
    {.name = "runs_of_other_names", VPTQ_TEXT(group_row, g.elsewhere)},
    {.name = "runs_differ_in", VPTQ_TEXT(group_row, g.mixed)}};

vptq_status vptq_report_write_rows(const vptq_report *r, vptq_format format, vptq_buf *out,
                                   vptq_err *err)
{
    vptq_table t;
    vptq_table_init(&t, r->arena.mem, NULL, VPTQ_COLUMNS(columns));
    for (size_t i = 0; i < r->group_count; i++) {
        const vptq_report_config *c = &r->configs[r->groups[i].config];
        const group_row row = {.g = r->groups[i],
                               .batch_size = c->batch_size,
                               .input_len = c->input_len,
                               .output_len = c->output_len,
                               .label = c->label};
        vptq_table_add(&t, &row);
    }
    vptq_status st = vptq_table_write(&t, format, out, err);
    vptq_table_release(&t);
    return st;
}
