/* The section of each configuration: ranks, speedups, spread of the runs, pictures. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/internal.h"

static const char scatter_title[] = "How runs scatter";

/* Decimals of a metric that suit all groups of a configuration. */
static int config_decimals(const vptq_report *r, const vptq_report_config *c, vptq_metric m)
{
    double smallest = (double)INFINITY;
    for (size_t i = 0; i < c->count; i++)
        smallest = fmin(smallest, r->groups[c->first + i].metric[m].stats.median);
    return vptq_report_decimals(isfinite(smallest) ? smallest : 0,
                                vptq_metrics[m].less ? 3 : 4);
}

static int compare_latency(const void *left, const void *right)
{
    const vptq_report_group *a = *(const vptq_report_group *const *)left,
                            *b = *(const vptq_report_group *const *)right;
    double x = a->metric[VPTQ_METRIC_LATENCY].stats.median,
           y = b->metric[VPTQ_METRIC_LATENCY].stats.median;
    return x != y ? (x > y ? 1 : -1) : (a > b) - (a < b);
}

enum { RANKED = VPTQ_METRIC_DECODE + 1 }; /* the metrics with ranks: latency and decoding */

/* A group as the two tables of its configuration show it. */
typedef struct config_row {
    vptq_report_group g;
    bool best[RANKED];
    char median[VPTQ_METRIC_COUNT][REPORT_TEXT], speedup[RANKED][REPORT_TEXT];
    char mean[VPTQ_METRIC_COUNT][REPORT_TEXT], range[VPTQ_METRIC_COUNT][REPORT_TEXT];
} config_row;

#define FIGURE(text, member)                                                                   \
    {                                                                                          \
        .title = text, VPTQ_CHARS(config_row, member), .align = VPTQ_ALIGN_RIGHT               \
    }
#define RANK(text, m)                                                                          \
    {                                                                                          \
        .title = text, VPTQ_INTEGER(config_row, g.metric[m].rank), .zero_missing = true,       \
        .strong = offsetof(config_row, best[m])                                                \
    }
static const vptq_column median_columns[] = {
    {.title = "Model", VPTQ_TEXT(config_row, g.model), .head = true},
    RANK("Rank by latency", VPTQ_METRIC_LATENCY),
    FIGURE("Latency (s)", median[VPTQ_METRIC_LATENCY]),
    FIGURE("speedup", speedup[VPTQ_METRIC_LATENCY]),
    RANK("Rank by decode", VPTQ_METRIC_DECODE),
    FIGURE("Decode (tok/s)", median[VPTQ_METRIC_DECODE]),
    FIGURE("speedup", speedup[VPTQ_METRIC_DECODE]),
    FIGURE("Prefill (tok/s)", median[VPTQ_METRIC_PREFILL]),
    FIGURE("First token (s)", median[VPTQ_METRIC_TTFT]),
    FIGURE("Overall (tok/s)", median[VPTQ_METRIC_OVERALL])};
static const vptq_column spread_columns[] = {
    {.title = "Model", VPTQ_TEXT(config_row, g.model), .head = true},
    {.title = "Runs", VPTQ_INTEGER(config_row, g.run_count)},
    FIGURE("Latency (s), mean \xc2\xb1 s", mean[VPTQ_METRIC_LATENCY]),
    FIGURE("range", range[VPTQ_METRIC_LATENCY]),
    FIGURE("Decode (tok/s), mean \xc2\xb1 s", mean[VPTQ_METRIC_DECODE]),
    FIGURE("range", range[VPTQ_METRIC_DECODE]),
    FIGURE("Overall (tok/s), mean \xc2\xb1 s", mean[VPTQ_METRIC_OVERALL]),
    FIGURE("range", range[VPTQ_METRIC_OVERALL])};

/* Figures without a value stay empty. */
static void fill_row(config_row *row, const vptq_report *r, const vptq_report_config *c,
                     const vptq_report_group *g)
{
    *row = (config_row){.g = *g};
    for (int m = 0; m < VPTQ_METRIC_COUNT; m++) {
        const vptq_stats *s = &g->metric[m].stats;
        const int decimals = config_decimals(r, c, (vptq_metric)m);
        const bool derived =
            g->derived_ttft && (m == VPTQ_METRIC_PREFILL || m == VPTQ_METRIC_TTFT);
        if (!s->count)
            continue;
        snprintf(row->median[m], REPORT_TEXT, "%.*f%s", decimals, s->median,
                 derived ? "\xe2\x80\xa0" : "");
        const int n = snprintf(row->mean[m], REPORT_TEXT, "%.*f", decimals, s->mean);
        if (s->count > 1)
            snprintf(row->mean[m] + n, REPORT_TEXT - (size_t)n, " \xc2\xb1 %.*f", decimals,
                     s->std);
        vptq_report_range_text(row->range[m], decimals, s->min, s->max,
                               g->metric[m].outliers ? " *" : "");
    }
    for (int m = 0; m < RANKED; m++) {
        row->best[m] = g->metric[m].rank == 1;
        vptq_report_ratio_text(row->speedup[m], &g->metric[m].speedup);
    }
}

static void fill_tables(const vptq_report *r, const vptq_report_config *c,
                        const vptq_report_group **sorted, vptq_table *medians,
                        vptq_table *spread)
{
    size_t derived = 0, outliers = 0;
    vptq_table_init(medians, r->arena.mem, "Medians", VPTQ_COLUMNS(median_columns));
    vptq_table_init(spread, r->arena.mem, scatter_title, VPTQ_COLUMNS(spread_columns));
    for (size_t i = 0; i < c->count; i++) {
        const vptq_report_metric *m = sorted[i]->metric;
        config_row row;
        fill_row(&row, r, c, sorted[i]);
        vptq_table_add(medians, &row);
        vptq_table_add(spread, &row);
        derived += sorted[i]->derived_ttft;
        outliers += m[VPTQ_METRIC_LATENCY].outliers + m[VPTQ_METRIC_DECODE].outliers +
                    m[VPTQ_METRIC_OVERALL].outliers;
    }
    if (derived)
        vptq_table_note(medians,
                        "\xe2\x80\xa0 derived: the time to the first token was not recorded; "
                        "it is the latency less the output tokens over the decode "
                        "throughput, and as uncertain as the rounding of the latency.");
    vptq_table_note(spread, outliers
                                ? "s: sample standard deviation; * has an outlier, see Remarks"
                                : "s: sample standard deviation");
}

static void config_picture(report_page *p, const vptq_report_config *c,
                           const vptq_report_group **sorted, vptq_metric metric)
{
    const vptq_report *r = p->r;
    char caption[64], axis[64];
    vptq_svg_bars_spec bars = {
        .about = {caption,
                  "A bar per model: the median of its runs, and from the "
                  "smallest to the largest of them.",
                  NULL},
        .axis = axis,
        .decimals = config_decimals(r, c, metric),
        .even = (double)NAN};
    vptq_svg_bar *bar = vptq_page_alloc(p, c->count, sizeof *bar);
    for (size_t i = 0; bar && i < c->count; i++) {
        const vptq_stats *s = &sorted[i]->metric[metric].stats;
        const vptq_report_model *model = &r->models[sorted[i]->model_index];
        if (s->count)
            bar[bars.count++] = (vptq_svg_bar){.label = sorted[i]->model,
                                               .value = s->median,
                                               .low = s->count > 1 ? s->min : (double)NAN,
                                               .high = s->max,
                                               .series = vptq_report_series(model, r)};
    }
    snprintf(caption, sizeof caption, "%s (%s is better)", vptq_metrics[metric].title,
             vptq_metrics[metric].less ? "less" : "more");
    snprintf(axis, sizeof axis, "%s, median and range of the runs", vptq_metrics[metric].unit);
    bars.bars = bar;
    if (bars.count)
        vptq_svg_bars(&p->h, &bars);
}

static void page_config(report_page *p, const vptq_report_config *c,
                        const vptq_report_group **sorted)
{
    char text[CONFIG_TEXT], id[32];
    vptq_table medians, spread;
    for (size_t i = 0; i < c->count; i++)
        sorted[i] = &p->r->groups[c->first + i];
    qsort(sorted, c->count, sizeof *sorted, compare_latency);
    vptq_report_config_text(text, c);
    snprintf(id, sizeof id, "config-%zu", (size_t)(c - p->r->configs) + 1);
    vptq_page_heading(p, 2, id, text);
    fill_tables(p->r, c, sorted, &medians, &spread);
    vptq_page_table(p, &medians);
    if (p->html) {
        vptq_html_figures_begin(&p->h);
        config_picture(p, c, sorted, VPTQ_METRIC_LATENCY);
        config_picture(p, c, sorted, VPTQ_METRIC_DECODE);
        vptq_html_figures_end(&p->h);
        vptq_html_details_begin(&p->h, scatter_title);
    }
    vptq_page_table(p, &spread);
    if (p->html)
        vptq_html_details_end(&p->h);
}

void vptq_report_page_configs(report_page *p)
{
    const vptq_report_group **sorted = vptq_page_alloc(p, p->r->group_count, sizeof *sorted);
    if (!sorted)
        return;
    for (size_t i = 0; i < p->r->config_count; i++)
        page_config(p, &p->r->configs[i], sorted);
}
