/* The report in the layout of the published one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/report/report.h"

static const char plus_minus[] = " \xc2\xb1 ";

/* Mean of the recorded input throughputs, without derived ones; 0 if there are none. */
static double recorded_input(const vptq_report_group *g)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < g->run_count; i++) {
        double x = g->runs[i]->input_throughput;
        if (!isnan(x)) {
            sum += x;
            n++;
        }
    }
    return n ? sum / (double)n : 0;
}

/* A name in backticks, or escaped if it has characters that could end or leave them. */
static void emit_name(vptq_emit *e, const char *name)
{
    const size_t n = strlen(name);
    bool plain = n > 0;
    for (size_t i = 0, len; plain && i < n; i += len) {
        char escape[VPTQ_TEXT_ESCAPE];
        len = vptq_text_escape(name + i, n - i, escape);
        plain = !*escape && !strchr("`|<&", name[i]);
    }
    if (plain)
        vptq_emit_format(e, "`%s`", name);
    else
        vptq_emit_markdown(e, name);
}

static void emit_stats(vptq_emit *e, const vptq_stats *s)
{
    vptq_emit_format(e, "%.2f", s->count ? s->mean : 0);
    if (s->count > 1)
        vptq_emit_format(e, "%s%.2f", plus_minus, s->std);
}

static double mean_decode(const vptq_report_group *g)
{
    const vptq_stats *s = &g->metric[VPTQ_METRIC_DECODE].stats;
    return s->count ? s->mean : 0;
}

/* By decreasing mean decode throughput, then by name (the order in the report). */
static int compare_decode(const void *left, const void *right)
{
    const vptq_report_group *a = *(const vptq_report_group *const *)left,
                            *b = *(const vptq_report_group *const *)right;
    double x = mean_decode(a), y = mean_decode(b);
    return x != y ? (x < y ? 1 : -1) : (a > b) - (a < b);
}

static void emit_summary(vptq_emit *e, const vptq_report_group **ranked, size_t n)
{
    vptq_emit_text(e, "### Summary Table\n\n"
                      "| Model | Runs | Latency (s) | Output Throughput (tok/s) | Overall "
                      "Throughput (tok/s) | Input Throughput (tok/s) |\n"
                      "|-------|------|-------------|---------------------------|-----------"
                      "-----------------|--------------------------|\n");
    for (size_t i = 0; i < n; i++) {
        const vptq_report_group *g = ranked[i];
        vptq_emit_text(e, "| ");
        emit_name(e, g->name);
        vptq_emit_format(e, " | %zu | ", g->run_count);
        emit_stats(e, &g->metric[VPTQ_METRIC_LATENCY].stats);
        vptq_emit_text(e, " | ");
        emit_stats(e, &g->metric[VPTQ_METRIC_DECODE].stats);
        vptq_emit_text(e, " | ");
        emit_stats(e, &g->metric[VPTQ_METRIC_OVERALL].stats);
        vptq_emit_format(e, " | %.2f |\n", recorded_input(g));
    }
}

static void emit_run_value(vptq_emit *e, const char *title, double x)
{
    if (isnan(x))
        vptq_emit_format(e, "    - %s: N/A\n", title);
    else
        vptq_emit_format(e, "    - %s: %.2f tok/s\n", title, x);
}

static void emit_group(vptq_emit *e, const vptq_report_group *g)
{
    static const char *const titles[] = {"Latency", "Output Throughput", "Overall Throughput"};
    static const vptq_metric metrics[] = {VPTQ_METRIC_LATENCY, VPTQ_METRIC_DECODE,
                                          VPTQ_METRIC_OVERALL};
    vptq_emit_text(e, "\n#### ");
    vptq_emit_markdown(e, g->name);
    vptq_emit_format(e, "\n\n- **Total runs:** %zu\n\n- **Individual runs:**\n\n",
                     g->run_count);
    for (size_t i = 0; i < g->run_count; i++) {
        const vptq_record *run = g->runs[i];
        vptq_emit_text(e, "  - ");
        emit_name(e, run->run_name);
        vptq_emit_format(e, ":\n    - Latency: %.2fs\n", run->latency);
        emit_run_value(e, "Output Throughput", run->output_throughput);
        emit_run_value(e, "Overall Throughput", run->overall_throughput);
        emit_run_value(e, "Input Throughput", run->input_throughput);
    }
    vptq_emit_text(e, "- **Statistics:**\n\n");
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) {
        vptq_emit_format(e, "  - %s: ", titles[i]);
        emit_stats(e, &g->metric[metrics[i]].stats);
        vptq_emit_text(e, "\n");
    }
}

static void emit_config_title(vptq_emit *e, const char *level, const vptq_report_config *c)
{
    vptq_emit_format(e, "%s Configuration: batch_size=%u, input_len=%u, output_len=%u\n\n",
                     level, c->batch_size, c->input_len, c->output_len);
}

static void emit_ranking(vptq_emit *e, const vptq_report_group **ranked, size_t n)
{
    static const char *const medals[] = {"\xf0\x9f\xa5\x87", "\xf0\x9f\xa5\x88",
                                         "\xf0\x9f\xa5\x89"};
    for (size_t i = 0; i < n; i++) {
        if (i < 3)
            vptq_emit_text(e, medals[i]);
        else
            vptq_emit_format(e, "%zu.", i + 1);
        vptq_emit_text(e, " **");
        vptq_emit_markdown(e, ranked[i]->name);
        vptq_emit_format(e, "**: %.2f tok/s\n", mean_decode(ranked[i]));
    }
}

static void emit_report(vptq_emit *e, const vptq_report *r, const char *source,
                        const vptq_report_group **ranked)
{
    vptq_emit_text(e, "# Performance Benchmark Results\n\n**Generated from:** ");
    emit_name(e, source);
    vptq_emit_text(e, "\n\n---\n\n");
    for (size_t i = 0; i < r->config_count; i++) {
        const vptq_report_config *c = &r->configs[i];
        vptq_emit_text(e, "\n");
        emit_config_title(e, "##", c);
        vptq_emit_format(e, "**Total models tested:** %zu\n\n\n", c->count);
        emit_summary(e, ranked + c->first, c->count);
        vptq_emit_text(e, "\n### Detailed Results\n\n");
        for (size_t k = 0; k < c->count; k++)
            emit_group(e, &r->groups[c->first + k]);
    }
    vptq_emit_text(e, "\n---\n\n\n## Performance Ranking (by Output Throughput)\n\n");
    for (size_t i = 0; i < r->config_count; i++) {
        vptq_emit_text(e, "\n");
        emit_config_title(e, "###", &r->configs[i]);
        emit_ranking(e, ranked + r->configs[i].first, r->configs[i].count);
    }
}

vptq_status vptq_report_write_classic(const vptq_report *r, const char *source, vptq_buf *out,
                                      vptq_err *err)
{
    vptq_emit e = {.buf = out, .err = err};
    const vptq_report_group **ranked =
        vptq_mem_alloc(r->arena.mem, r->group_count, sizeof *ranked, err);
    if (!ranked)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < r->group_count; i++)
        ranked[i] = &r->groups[i];
    for (size_t i = 0; i < r->config_count; i++)
        qsort(ranked + r->configs[i].first, r->configs[i].count, sizeof *ranked,
              compare_decode);
    emit_report(&e, r, source, ranked);
    if (!e.st && out->len && out->data[out->len - 1] == '\n')
        out->data[--out->len] = 0;
    vptq_mem_free(r->arena.mem, ranked);
    return e.st;
}
