/* The section of each configuration: ranks, speedups, spread of the runs, pictures. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/internal.h"

/* Decimals of a metric that suit all groups of a configuration. */
static int config_decimals(const vptq_report *r, const vptq_report_config *c, vptq_metric m)
{
    double smallest = (double)INFINITY;
    for (size_t i = 0; i < c->count; i++)
        smallest = fmin(smallest, r->groups[c->first + i].metric[m].stats.median);
    return vptq_report_decimals(isfinite(smallest) ? smallest : 0,
                                vptq_metric_less_is_better(m) ? 3 : 4);
}

static int compare_latency(const void *left, const void *right)
{
    const vptq_report_group *a = *(const vptq_report_group *const *)left,
                            *b = *(const vptq_report_group *const *)right;
    double x = a->metric[VPTQ_METRIC_LATENCY].stats.median,
           y = b->metric[VPTQ_METRIC_LATENCY].stats.median;
    return x != y ? (x > y ? 1 : -1) : (a > b) - (a < b);
}

static void put_rank(vptq_table *t, const vptq_report_metric *m)
{
    if (m->rank)
        vptq_table_integer(t, m->rank);
    else
        vptq_table_skip(t);
    if (m->rank == 1)
        vptq_table_strong(t);
}

static void put_median(vptq_table *t, const vptq_report_metric *m, int decimals, bool derived)
{
    if (m->stats.count)
        vptq_table_textf(t, "%.*f%s", decimals, m->stats.median, derived ? "\xe2\x80\xa0" : "");
    else
        vptq_table_skip(t);
}

static void put_speedup(vptq_table *t, const vptq_report_metric *m)
{
    char text[REPORT_TEXT];
    vptq_report_ratio_text(text, &m->speedup);
    vptq_table_text(t, isnan(m->speedup.value) ? NULL : text);
}

static void rank_table(report_page *p, const vptq_report_config *c,
                       const vptq_report_group **sorted)
{
    static const vptq_column columns[] = {
        {.name = "model", .title = "Model", .head = true},
        {.name = "latency_rank", .title = "Rank by latency", .type = VPTQ_COLUMN_INTEGER},
        {.name = "latency", .title = "Latency (s)", .align = VPTQ_ALIGN_RIGHT},
        {.name = "latency_speedup", .title = "speedup", .align = VPTQ_ALIGN_RIGHT},
        {.name = "decode_rank", .title = "Rank by decode", .type = VPTQ_COLUMN_INTEGER},
        {.name = "decode", .title = "Decode (tok/s)", .align = VPTQ_ALIGN_RIGHT},
        {.name = "decode_speedup", .title = "speedup", .align = VPTQ_ALIGN_RIGHT},
        {.name = "prefill", .title = "Prefill (tok/s)", .align = VPTQ_ALIGN_RIGHT},
        {.name = "ttft", .title = "First token (s)", .align = VPTQ_ALIGN_RIGHT},
        {.name = "overall", .title = "Overall (tok/s)", .align = VPTQ_ALIGN_RIGHT}};
    int decimals[VPTQ_METRIC_COUNT];
    size_t derived = 0;
    vptq_table t;
    for (int m = 0; m < VPTQ_METRIC_COUNT; m++)
        decimals[m] = config_decimals(p->r, c, (vptq_metric)m);
    vptq_table_init(&t, p->r->arena.mem, "Medians", VPTQ_COLUMNS(columns));
    for (size_t i = 0; i < c->count; i++) {
        const vptq_report_group *g = sorted[i];
        const vptq_report_metric *m = g->metric;
        vptq_table_row(&t);
        vptq_table_text(&t, g->model);
        for (int k = VPTQ_METRIC_LATENCY; k <= VPTQ_METRIC_DECODE; k++) {
            put_rank(&t, &m[k]);
            put_median(&t, &m[k], decimals[k], false);
            put_speedup(&t, &m[k]);
        }
        put_median(&t, &m[VPTQ_METRIC_PREFILL], decimals[VPTQ_METRIC_PREFILL], g->derived_ttft);
        put_median(&t, &m[VPTQ_METRIC_TTFT], decimals[VPTQ_METRIC_TTFT], g->derived_ttft);
        put_median(&t, &m[VPTQ_METRIC_OVERALL], decimals[VPTQ_METRIC_OVERALL], false);
        derived += g->derived_ttft;
    }
    if (derived)
        vptq_table_notef(&t,
                         "\xe2\x80\xa0 derived: the time to the first token was not recorded; "
                         "it is the latency less the output tokens over the decode "
                         "throughput, and as uncertain as the rounding of the latency.");
    vptq_page_table(p, &t);
}

static void put_spread(vptq_table *t, const vptq_report_metric *m, int decimals)
{
    char text[REPORT_TEXT];
    if (!m->stats.count) {
        vptq_table_skip(t);
        vptq_table_skip(t);
    } else {
        if (m->stats.count > 1)
            vptq_table_textf(t, "%.*f \xc2\xb1 %.*f", decimals, m->stats.mean, decimals,
                             m->stats.std);
        else
            vptq_table_textf(t, "%.*f", decimals, m->stats.mean);
        vptq_report_range_text(text, decimals, m->stats.min, m->stats.max);
        vptq_table_textf(t, "%s%s", text, m->outliers ? " *" : "");
    }
}

static void spread_table(report_page *p, const vptq_report_config *c,
                         const vptq_report_group **sorted)
{
    static const vptq_column columns[] = {
        {.name = "model", .title = "Model", .head = true},
        {.name = "runs", .title = "Runs", .type = VPTQ_COLUMN_INTEGER},
        {.name = "latency", .title = "Latency (s), mean \xc2\xb1 s", .align = VPTQ_ALIGN_RIGHT},
        {.name = "latency_range", .title = "range", .align = VPTQ_ALIGN_RIGHT},
        {.name = "decode",
         .title = "Decode (tok/s), mean \xc2\xb1 s",
         .align = VPTQ_ALIGN_RIGHT},
        {.name = "decode_range", .title = "range", .align = VPTQ_ALIGN_RIGHT},
        {.name = "overall",
         .title = "Overall (tok/s), mean \xc2\xb1 s",
         .align = VPTQ_ALIGN_RIGHT},
        {.name = "overall_range", .title = "range", .align = VPTQ_ALIGN_RIGHT}};
    static const vptq_metric metrics[] = {VPTQ_METRIC_LATENCY, VPTQ_METRIC_DECODE,
                                          VPTQ_METRIC_OVERALL};
    size_t outliers = 0;
    vptq_table t;
    vptq_table_init(&t, p->r->arena.mem, "How runs scatter", VPTQ_COLUMNS(columns));
    for (size_t i = 0; i < c->count; i++) {
        vptq_table_row(&t);
        vptq_table_text(&t, sorted[i]->model);
        vptq_table_integer(&t, (int64_t)sorted[i]->run_count);
        for (size_t k = 0; k < sizeof metrics / sizeof *metrics; k++) {
            put_spread(&t, &sorted[i]->metric[metrics[k]],
                       config_decimals(p->r, c, metrics[k]));
            outliers += sorted[i]->metric[metrics[k]].outliers;
        }
    }
    vptq_table_notef(&t, "s: sample standard deviation%s",
                     outliers ? "; * has an outlier, see Remarks" : "");
    vptq_page_table(p, &t);
}

static void config_picture(report_page *p, const vptq_report_config *c,
                           const vptq_report_group **sorted, vptq_metric metric)
{
    const vptq_report *r = p->r;
    const int decimals = config_decimals(r, c, metric);
    page_bars bars;
    char caption[64], axis[64];
    vptq_page_bars_begin(p, c->count, &bars);
    for (size_t i = 0; i < c->count; i++) {
        const vptq_stats *s = &sorted[i]->metric[metric].stats;
        const vptq_report_model *model = &r->models[sorted[i]->model_index];
        if (s->count)
            vptq_page_bars_add(&bars,
                               (vptq_svg_bar){.label = sorted[i]->model,
                                              .value = s->median,
                                              .low = s->count > 1 ? s->min : (double)NAN,
                                              .high = s->max,
                                              .series = vptq_report_series(model, r)},
                               decimals);
    }
    snprintf(caption, sizeof caption, "%s (%s is better)", vptq_metric_title(metric),
             vptq_metric_less_is_better(metric) ? "less" : "more");
    snprintf(axis, sizeof axis, "%s, median and range of the runs", vptq_metric_unit(metric));
    vptq_page_bars_end(p, &bars,
                       (vptq_svg_bars_spec){.title = caption,
                                            .description =
                                                "A bar per model: the median of its runs, and "
                                                "from the smallest to the largest of them.",
                                            .axis = axis,
                                            .even = (double)NAN});
}

static void page_config(report_page *p, const vptq_report_config *c,
                        const vptq_report_group **sorted)
{
    char text[CONFIG_TEXT], id[32];
    for (size_t i = 0; i < c->count; i++)
        sorted[i] = &p->r->groups[c->first + i];
    qsort(sorted, c->count, sizeof *sorted, compare_latency);
    vptq_report_config_text(text, c);
    snprintf(id, sizeof id, "config-%zu", (size_t)(c - p->r->configs) + 1);
    vptq_page_heading(p, 2, id, text);
    rank_table(p, c, sorted);
    if (!p->html) {
        spread_table(p, c, sorted);
        return;
    }
    vptq_html_figures_begin(&p->h);
    config_picture(p, c, sorted, VPTQ_METRIC_LATENCY);
    config_picture(p, c, sorted, VPTQ_METRIC_DECODE);
    vptq_html_figures_end(&p->h);
    vptq_html_details_begin(&p->h, "How runs scatter");
    spread_table(p, c, sorted);
    vptq_html_details_end(&p->h);
}

void vptq_report_page_configs(report_page *p)
{
    const vptq_report_group **sorted = vptq_page_alloc(p, p->r->group_count, sizeof *sorted);
    if (!sorted)
        return;
    for (size_t i = 0; i < p->r->config_count; i++)
        page_config(p, &p->r->configs[i], sorted);
    vptq_mem_free(p->r->arena.mem, sorted);
}
