/* Speedups over the batch size, and where they pass 1. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/report/internal.h"

/* Leaves the text empty if the break-even is unknown. */
static void even_text(char text[REPORT_TEXT], const vptq_break_even *e)
{
    switch (e->kind) {
    case VPTQ_EVEN_UNKNOWN:
        *text = 0;
        break;
    case VPTQ_EVEN_FASTER:
    case VPTQ_EVEN_SLOWER:
        snprintf(text, REPORT_TEXT, "none: %sfaster from %u to %u",
                 e->kind == VPTQ_EVEN_SLOWER ? "not " : "", e->first, e->last);
        break;
    case VPTQ_EVEN_UNTIL:
    case VPTQ_EVEN_FROM:
        snprintf(text, REPORT_TEXT, "%.1f: faster %s%s", e->batch,
                 e->kind == VPTQ_EVEN_UNTIL ? "below" : "above",
                 e->again ? ", and passes 1 again" : "");
        break;
    }
}

typedef struct even_row {
    const char *model;
    uint32_t input_len, output_len;
    char latency[REPORT_TEXT], decode[REPORT_TEXT];
} even_row;

static void even_table(report_page *p)
{
    static const vptq_column columns[] = {
        {.title = "Model", VPTQ_TEXT(even_row, model), .head = true},
        {.title = "Input", VPTQ_INTEGER(even_row, input_len)},
        {.title = "Output", VPTQ_INTEGER(even_row, output_len)},
        {.title = "Break-even batch, latency", VPTQ_CHARS(even_row, latency)},
        {.title = "Break-even batch, decode throughput", VPTQ_CHARS(even_row, decode)}};
    const vptq_report *r = p->r;
    vptq_table t;
    vptq_table_init(&t, r->arena.mem, "Break-even with the original", VPTQ_COLUMNS(columns));
    for (size_t f = 0; f < r->family_count; f++)
        for (size_t i = 0; i < r->model_count; i++) {
            const vptq_report_family *family = &r->families[f];
            const vptq_report_model *m = &r->models[i];
            if (m->original)
                continue;
            const vptq_break_even latency =
                vptq_report_break_even(r, family, m, VPTQ_METRIC_LATENCY);
            const vptq_break_even decode =
                vptq_report_break_even(r, family, m, VPTQ_METRIC_DECODE);
            even_row row = {m->name, family->input_len, family->output_len, "", ""};
            even_text(row.latency, &latency);
            even_text(row.decode, &decode);
            vptq_table_add(&t, &row);
        }
    vptq_page_table(p, &t);
}

/* Lists up to `max_count` batch sizes that occur, from small to large; returns their number. */
static size_t batch_sizes(const vptq_report *r, uint32_t *batches, size_t max_count)
{
    size_t n = 0;
    for (size_t i = 0; i < r->config_count && n < max_count; i++)
        if (!n || batches[n - 1] != r->configs[i].batch_size)
            batches[n++] = r->configs[i].batch_size;
    return n;
}

enum { MAX_BATCHES = 32 };

typedef struct batches_row {
    const char *model;
    double speedup[MAX_BATCHES];
} batches_row;

static void by_batch_table(report_page *p, vptq_metric metric, const char *title)
{
    const vptq_report *r = p->r;
    uint32_t batches[MAX_BATCHES];
    size_t n = batch_sizes(r, batches, MAX_BATCHES);
    vptq_column columns[MAX_BATCHES + 1] = {
        {.title = "Model", VPTQ_TEXT(batches_row, model), .head = true}};
    char titles[MAX_BATCHES][32];
    vptq_table t;
    for (size_t i = 0; i < n; i++) {
        snprintf(titles[i], sizeof titles[i], "batch %u", batches[i]);
        columns[i + 1] = (vptq_column){
            .title = titles[i], VPTQ_REAL(batches_row, speedup[0]), .decimals = 2};
        columns[i + 1].offset += i * sizeof(double);
    }
    vptq_table_init(&t, r->arena.mem, title, columns, n + 1);
    for (size_t k = 0; k < r->model_count; k++) {
        batches_row row = {.model = r->models[k].name};
        for (size_t i = 0; i < n; i++)
            row.speedup[i] = vptq_report_at_batch(r, &r->models[k], batches[i], metric);
        if (!r->models[k].original)
            vptq_table_add(&t, &row);
    }
    vptq_page_table(p, &t);
}

/* ---- pictures ---- */

/* Fills the line of a model; `values` [4, f->count] receives x, y, low and high.  Returns the
 * number of points. */
static size_t fill_line(const report_page *p, const vptq_report_family *f,
                        const vptq_report_model *m, vptq_metric metric, double *values,
                        vptq_svg_line *line)
{
    size_t n = 0, count = f->count;
    for (size_t i = 0; i < count; i++) {
        const vptq_report_group *g = m->by_config[f->configs[i]];
        if (!g || isnan(g->metric[metric].speedup.value))
            continue;
        values[n] = p->r->configs[f->configs[i]].batch_size;
        values[count + n] = g->metric[metric].speedup.value;
        values[2 * count + n] = g->metric[metric].speedup.low;
        values[3 * count + n] = g->metric[metric].speedup.high;
        n++;
    }
    *line = (vptq_svg_line){.label = m->name,
                            .x = values,
                            .y = values + count,
                            .low = values + 2 * count,
                            .high = values + 3 * count,
                            .count = n};
    return n;
}

static void family_picture(report_page *p, const vptq_report_family *f, vptq_metric metric)
{
    const vptq_report *r = p->r;
    size_t n = 0;
    char caption[128];
    vptq_svg_line *lines = vptq_page_alloc(p, r->model_count, sizeof *lines);
    double *values =
        lines ? vptq_page_alloc(p, r->model_count * 4 * f->count, sizeof *values) : NULL;
    for (size_t i = 0; values && i < r->model_count; i++)
        if (!r->models[i].original &&
            fill_line(p, f, &r->models[i], metric, values + i * 4 * f->count, &lines[n]))
            n++;
    if (n) {
        snprintf(caption, sizeof caption, "%s speedup over the batch size, input %u, output %u",
                 vptq_metrics[metric].title, f->input_len, f->output_len);
        vptq_svg_lines(&p->h,
                       &(vptq_svg_lines_spec){
                           .about = {caption,
                                     "A line per model; where it passes the dashed line at "
                                     "1 the model is as fast as the original.",
                                     NULL},
                           .x = {.title = "batch size", .log = true, .at_values = true},
                           .y = {.title = "times the original", .log = true},
                           .lines = lines,
                           .count = n,
                           .even = 1});
    }
}

void vptq_report_page_batches(report_page *p)
{
    const vptq_report *r = p->r;
    vptq_page_heading(p, 2, "batch", "Batch size");
    if (!r->has_original || r->model_count < 2) {
        vptq_page_paragraph(p, "There is nothing to compare.");
        return;
    }
    if (r->family_count) {
        vptq_page_paragraph(
            p,
            "The break-even batch is where a model stops (or begins) to be faster than "
            "'%s': among configurations that differ only in their batch size, between the "
            "two neighbouring sizes where the speedup passes 1, on a straight line through "
            "the logarithms of both.",
            r->original);
        even_table(p);
    } else {
        vptq_page_paragraph(p,
                            "No two configurations differ only in their batch size, so there "
                            "is not a break-even batch.");
    }
    if (p->html && r->family_count) {
        vptq_html_figures_begin(&p->h);
        for (size_t f = 0; f < r->family_count; f++)
            for (int m = VPTQ_METRIC_LATENCY; m <= VPTQ_METRIC_DECODE; m++)
                family_picture(p, &r->families[f], (vptq_metric)m);
        vptq_html_figures_end(&p->h);
    }
    vptq_page_paragraph(p, "By batch size, over configurations of whatever lengths (geometric "
                           "means):");
    by_batch_table(p, VPTQ_METRIC_LATENCY, "Latency speedup by batch size");
    by_batch_table(p, VPTQ_METRIC_DECODE, "Decode speedup by batch size");
}
