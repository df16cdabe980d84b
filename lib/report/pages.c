/* The page of a report: summary and remarks; batches.c and configs.c write the sections between
 * them. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/report/internal.h"

/* ---- writing a page ---- */

enum { MAX_PARAGRAPH = 16384 }; /* bytes: two lists of eight names of 1000 bytes */

void vptq_page_heading(report_page *p, int level, const char *id, const char *text)
{
    if (p->html) {
        vptq_html_heading(&p->h, level, id, text);
        return;
    }
    vptq_emit_format(&p->h.e, "%.*s ", level, "####");
    vptq_emit_markdown(&p->h.e, text);
    vptq_emit_text(&p->h.e, "\n\n");
}

void vptq_page_paragraph(report_page *p, const char *fmt, ...)
{
    char text[MAX_PARAGRAPH];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (p->html) {
        vptq_html_paragraph(&p->h, text);
        return;
    }
    vptq_emit_markdown(&p->h.e, text);
    vptq_emit_text(&p->h.e, "\n\n");
}

void vptq_page_table(report_page *p, vptq_table *t)
{
    vptq_table_emit(t, p->html ? VPTQ_FORMAT_HTML : VPTQ_FORMAT_MD, &p->h.e);
    vptq_emit_text(&p->h.e, p->html ? "" : "\n");
    vptq_table_release(t);
}

void *vptq_page_alloc(report_page *p, size_t count, size_t size)
{
    void *memory = vptq_arena_alloc(&p->arena, count, size, p->h.e.err);
    if (!memory && !p->h.e.st)
        p->h.e.st = VPTQ_E_NOMEM;
    return memory;
}

/* ---- texts of figures ---- */

void vptq_report_ratio_text(char text[REPORT_TEXT], const vptq_ratio *x)
{
    if (isnan(x->value))
        *text = 0;
    else if (isnan(x->low))
        snprintf(text, REPORT_TEXT, "%.2f", x->value);
    else
        snprintf(text, REPORT_TEXT, "%.2f (%.2f\xe2\x80\x93%.2f)", x->value, x->low, x->high);
}

void vptq_report_range_text(char text[REPORT_TEXT], int decimals, double low, double high,
                            const char *mark)
{
    snprintf(text, REPORT_TEXT, "%.*f\xe2\x80\x93%.*f%s", decimals, low, decimals, high, mark);
}

int vptq_report_decimals(double smallest, int digits)
{
    if (!(smallest > 0))
        return 2;
    int decimals = digits - 1 - (int)floor(log10(smallest));
    return decimals < 0 ? 0 : decimals > 6 ? 6 : decimals;
}

unsigned vptq_report_series(const vptq_report_model *m, const vptq_report *r)
{
    size_t i = (size_t)(m - r->models);
    if (m->original)
        return VPTQ_SVG_SERIES - 1;
    return (unsigned)((i - r->models[0].original) % (VPTQ_SVG_SERIES - 1));
}

void vptq_report_config_text(char text[CONFIG_TEXT], const vptq_report_config *c)
{
    snprintf(text, CONFIG_TEXT, "%s%sbatch %u, input %u, output %u", c->label ? c->label : "",
             c->label ? ": " : "", c->batch_size, c->input_len, c->output_len);
}

/* ---- summary ---- */

/* A model as the table shows it; figures without a value are empty. */
typedef struct summary_row {
    vptq_report_model m;
    char range[VPTQ_METRIC_COUNT][REPORT_TEXT];
    bool compared[VPTQ_METRIC_COUNT];
    double peak_mib;
} summary_row;

enum { EXTRA = 1 }; /* condition of columns: some model has such a value */

#define SPEEDUP(text, metric)                                                                  \
    {.title = text, VPTQ_REAL(summary_row, m.summary[metric].mean), .decimals = 2},            \
    {                                                                                          \
        .title = "range", VPTQ_CHARS(summary_row, range[metric]), .align = VPTQ_ALIGN_RIGHT    \
    }
#define SLOWER(metric)                                                                         \
    {                                                                                          \
        .title = "slower in", VPTQ_INTEGER(summary_row, m.summary[metric].slower),             \
        .when = offsetof(summary_row, compared[metric])                                        \
    }

static void summary_table(report_page *p)
{
    static const vptq_column columns[] = {
        {.title = "Model", VPTQ_TEXT(summary_row, m.name), .head = true},
        {.title = "Configurations", VPTQ_INTEGER(summary_row, m.groups)},
        SPEEDUP("Latency speedup", VPTQ_METRIC_LATENCY),
        SLOWER(VPTQ_METRIC_LATENCY),
        SPEEDUP("Decode speedup", VPTQ_METRIC_DECODE),
        SLOWER(VPTQ_METRIC_DECODE),
        SPEEDUP("Prefill speedup", VPTQ_METRIC_PREFILL),
        {.title = "Bits per weight",
         VPTQ_REAL(summary_row, m.bits_per_weight),
         .decimals = 3,
         .needs = EXTRA},
        {.title = "Peak memory (MiB)",
         VPTQ_REAL(summary_row, peak_mib),
         .decimals = -4,
         .needs = EXTRA}};
    vptq_table t;
    vptq_table_init(&t, p->r->arena.mem, "Speedups over all configurations",
                    VPTQ_COLUMNS(columns));
    for (size_t i = 0; i < p->r->model_count; i++) {
        const vptq_report_model *m = &p->r->models[i];
        summary_row row = {.m = *m, .peak_mib = m->peak_memory_bytes / (1 << 20)};
        for (int k = 0; k < VPTQ_METRIC_COUNT; k++) {
            const vptq_report_summary *s = &m->summary[k];
            row.compared[k] = s->count > 0;
            if (s->count)
                vptq_report_range_text(row.range[k], 2, s->min, s->max, "");
        }
        if (!isnan(m->bits_per_weight) || !isnan(m->peak_memory_bytes))
            t.has = EXTRA;
        vptq_table_add(&t, &row);
    }
    vptq_page_table(p, &t);
}

static void summary_picture(report_page *p, vptq_metric metric, const char *caption)
{
    const vptq_report *r = p->r;
    vptq_svg_bars_spec bars = {
        .about =
            {caption,
             "A bar per model: the geometric mean of its speedups, and from the smallest to "
             "the largest of them.",
             NULL},
        .axis = "times the original (dashed: 1)",
        .decimals = 2,
        .even = 1};
    vptq_svg_bar *bar = vptq_page_alloc(p, r->model_count, sizeof *bar);
    for (size_t i = 0; bar && i < r->model_count; i++) {
        const vptq_report_summary *s = &r->models[i].summary[metric];
        if (s->count)
            bar[bars.count++] = (vptq_svg_bar){.label = r->models[i].name,
                                               .value = s->mean,
                                               .low = s->min,
                                               .high = s->max,
                                               .series = vptq_report_series(&r->models[i], r)};
    }
    bars.bars = bar;
    if (bars.count)
        vptq_svg_bars(&p->h, &bars);
}

static void page_summary(report_page *p)
{
    vptq_page_heading(p, 2, "summary", "Summary");
    if (!p->r->has_original) {
        vptq_page_paragraph(p,
                            "There is no model '%s' to compare with: no speedups "
                            "(--original names another one).",
                            p->r->original);
        return;
    }
    vptq_page_paragraph(p,
                        "Speedups are over '%s', above 1 is better. A figure is the geometric "
                        "mean over the configurations that both models have; its range is from "
                        "the smallest to the largest of them.",
                        p->r->original);
    summary_table(p);
    if (!p->html)
        return;
    vptq_html_figures_begin(&p->h);
    summary_picture(p, VPTQ_METRIC_LATENCY, "Latency speedup");
    summary_picture(p, VPTQ_METRIC_DECODE, "Decode throughput speedup");
    vptq_html_figures_end(&p->h);
}

/* ---- remarks ---- */

typedef struct outlier_row {
    const char *model, *configuration, *run;
    char figure[REPORT_TEXT], off[REPORT_TEXT];
    double value, median;
} outlier_row;

static void add_outliers(vptq_table *t, const vptq_report *r, const vptq_report_group *g)
{
    char text[CONFIG_TEXT];
    const vptq_report_config *c = &r->configs[g->config];
    vptq_report_config_text(text, c);
    for (int m = 0; m < VPTQ_METRIC_COUNT; m++)
        for (size_t i = 0; i < g->run_count; i++) {
            const vptq_report_metric *x = &g->metric[m];
            if (!x->outlier[i])
                continue;
            outlier_row row = {.model = g->model,
                               .configuration = c->label ? c->label : text,
                               .run = g->runs[i]->run_name,
                               .value = x->values[i],
                               .median = x->stats.median};
            snprintf(row.figure, REPORT_TEXT, "%s (%s)", vptq_metrics[m].title,
                     vptq_metrics[m].unit);
            snprintf(row.off, REPORT_TEXT, "%+.1f %%", 100 * (row.value / row.median - 1));
            vptq_table_add(t, &row);
        }
}

static void outlier_table(report_page *p)
{
    static const vptq_column columns[] = {
        {.title = "Model", VPTQ_TEXT(outlier_row, model), .head = true},
        {.title = "Configuration", VPTQ_TEXT(outlier_row, configuration)},
        {.title = "Run", VPTQ_TEXT(outlier_row, run)},
        {.title = "Figure", VPTQ_CHARS(outlier_row, figure)},
        {.title = "Value", VPTQ_REAL(outlier_row, value), .decimals = -6},
        {.title = "Median", VPTQ_REAL(outlier_row, median), .decimals = -6},
        {.title = "Off", VPTQ_CHARS(outlier_row, off), .align = VPTQ_ALIGN_RIGHT}};
    vptq_table t;
    vptq_table_init(&t, p->r->arena.mem, "Outliers", VPTQ_COLUMNS(columns));
    for (size_t i = 0; i < p->r->group_count; i++)
        add_outliers(&t, p->r, &p->r->groups[i]);
    vptq_page_paragraph(
        p,
        "A figure of a run is an outlier when it is more than %g %% off the "
        "median of its group and its modified z-score, 0.6745 times its distance "
        "from the median over the median of such distances, is above %g. Groups "
        "of fewer than three runs have none. Nothing is left out: medians hardly "
        "feel a single outlier, means and deviations do.",
        100 * VPTQ_OUTLIER_RELATIVE, VPTQ_OUTLIER_Z);
    if (t.row_count) {
        vptq_page_table(p, &t);
        return;
    }
    vptq_page_paragraph(p, "There are none.");
    vptq_table_release(&t);
}

static void runs_table(report_page *p)
{
    static const vptq_column columns[] = {
        {.title = "Group", VPTQ_TEXT(vptq_report_group, name), .head = true},
        {.title = "Repeated names", VPTQ_TEXT(vptq_report_group, repeated)},
        {.title = "Missing", VPTQ_TEXT(vptq_report_group, missing)},
        {.title = "Named otherwise", VPTQ_TEXT(vptq_report_group, elsewhere)}};
    vptq_table t;
    vptq_table_init(&t, p->r->arena.mem, "Runs", VPTQ_COLUMNS(columns));
    for (size_t i = 0; i < p->r->group_count; i++) {
        const vptq_report_group *g = &p->r->groups[i];
        if (g->repeated || g->missing || g->elsewhere)
            vptq_table_add(&t, g);
    }
    if (t.row_count) {
        vptq_page_paragraph(p,
                            "Runs that come twice under one name count as two; a number that "
                            "other groups have and this one has not is missing.");
        vptq_page_table(p, &t);
    } else {
        vptq_table_release(&t);
    }
}

static void page_remarks(report_page *p)
{
    char text[CONFIG_TEXT];
    vptq_page_heading(p, 2, "remarks", "Remarks");
    outlier_table(p);
    runs_table(p);
    for (size_t i = 0; i < p->r->group_count; i++)
        if (p->r->groups[i].mixed)
            vptq_page_paragraph(p, "%s: its runs differ in %s and are not comparable.",
                                p->r->groups[i].name, p->r->groups[i].mixed);
    for (size_t i = 0; i < p->r->config_count; i++) {
        const vptq_report_config *c = &p->r->configs[i];
        vptq_report_config_text(text, c);
        if (c->absent)
            vptq_page_paragraph(p, "%s: not measured for %s.", text, c->absent);
    }
    vptq_page_paragraph(p,
                        "Ranks and speedups are those of medians. The interval after a speedup "
                        "has a confidence of at least 90 %% and assumes nothing about how runs "
                        "scatter: it consists of order statistics of all quotients of two runs "
                        "(Mann-Whitney). Three runs on both sides give the smallest and the "
                        "largest quotient, and so do fewer, with less confidence.");
}

/* ---- the page ---- */

static void page_links(report_page *p)
{
    const vptq_report *r = p->r;
    vptq_html_links_begin(&p->h, "Sections");
    vptq_html_link(&p->h, "summary", "Summary");
    vptq_html_link(&p->h, "batch", "Batch size");
    for (size_t i = 0; i < r->config_count; i++) {
        char id[32], text[CONFIG_TEXT];
        snprintf(id, sizeof id, "config-%zu", i + 1);
        vptq_report_config_text(text, &r->configs[i]);
        vptq_html_link(&p->h, id, r->configs[i].label ? r->configs[i].label : text);
    }
    vptq_html_link(&p->h, "remarks", "Remarks");
    vptq_html_links_end(&p->h);
}

static void page_begin(report_page *p, const char *source, vptq_buf *out, vptq_err *err)
{
    const vptq_report *r = p->r;
    char lead[2048];
    snprintf(lead, sizeof lead, "From %s: %zu run%s of %zu model%s under %zu configuration%s.",
             source, r->records, vptq_plural(r->records, "", "s"), r->model_count,
             vptq_plural(r->model_count, "", "s"), r->config_count,
             vptq_plural(r->config_count, "", "s"));
    if (p->html) {
        vptq_html_begin(&p->h, out, err, "Serving comparison", lead);
        page_links(p);
        return;
    }
    p->h.e = (vptq_emit){.buf = out, .err = err};
    vptq_page_heading(p, 1, NULL, "Serving comparison");
    vptq_page_paragraph(p, "%s", lead);
}

vptq_status vptq_report_write_page(const vptq_report *r, vptq_format format, const char *source,
                                   vptq_buf *out, vptq_err *err)
{
    report_page p = {.r = r, .html = format == VPTQ_FORMAT_HTML};
    vptq_arena_init(&p.arena, r->arena.mem);
    page_begin(&p, source, out, err);
    page_summary(&p);
    vptq_report_page_batches(&p);
    vptq_report_page_configs(&p);
    page_remarks(&p);
    vptq_arena_release(&p.arena);
    if (p.html)
        return vptq_html_end(&p.h);
    if (!p.h.e.st && out->len > 1 && out->data[out->len - 2] == '\n')
        out->data[--out->len] = 0; /* one newline at the end */
    return p.h.e.st;
}
