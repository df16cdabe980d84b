/* Reports of the errors of quantized matrices: tables, and an HTML page with charts. */
#include "lib/eval/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/report/estimate.h"
#include "lib/report/svg.h"

enum { KINDS = VPTQ_LINEAR_DENSE };

/* Unweighted means over some matrices. */
typedef struct means {
    const char *name;
    size_t count;
    double output, weight, bits; /* sums until divide() */
    double low, high;            /* smallest and largest compared() */
} means;

typedef struct writer {
    const vptq_error_report *r;
    vptq_mem *mem;
    bool outputs; /* output errors are known, else only weight errors */
    means all, kind[KINDS];
} writer;

/* The error that rows are sorted by and charts show. */
static double compared(const writer *w, const vptq_error_row *row)
{
    return w->outputs ? row->proxy_loss : row->relative_mse;
}

static const char *compared_title(const writer *w)
{
    return w->outputs ? "output error" : "weight error";
}

static void add_row(const writer *w, means *m, const vptq_error_row *row)
{
    double x = compared(w, row);
    m->output += row->proxy_loss;
    m->weight += row->relative_mse;
    m->bits += row->bits_per_weight;
    m->low = m->count && m->low < x ? m->low : x;
    m->high = m->count && m->high > x ? m->high : x;
    m->count++;
}

static void divide(means *m)
{
    double n = (double)m->count;
    m->output /= n;
    m->weight /= n;
    m->bits /= n;
}

static void average(writer *w)
{
    const vptq_error_report *r = w->r;
    w->outputs = r->count && !isnan(r->rows[0].proxy_loss);
    for (size_t i = 0; i < r->count; i++) {
        add_row(w, &w->all, &r->rows[i]);
        add_row(w, &w->kind[r->rows[i].kind], &r->rows[i]);
    }
    w->all.name = "all";
    divide(&w->all);
    for (int k = 0; k < KINDS; k++) {
        w->kind[k].name = vptq_linear_kind_name(r->desc, k);
        divide(&w->kind[k]);
    }
}

/* --- tables ------------------------------------------------------------------------------ */

#define COUNT(key, text, member)                                                               \
    {                                                                                          \
        .name = key, .title = text, VPTQ_INTEGER(vptq_error_row, member)                       \
    }
#define FIGURE(key, text, member, digits)                                                      \
    {                                                                                          \
        .name = key, .title = text, VPTQ_REAL(vptq_error_row, member), .decimals = digits,     \
        .major = true                                                                          \
    }
static const vptq_column row_columns[] = {
    COUNT("layer", NULL, layer),
    {.name = "name", VPTQ_TEXT(vptq_error_row, name), .head = true, .major = true},
    COUNT("rows", NULL, rows),
    COUNT("columns", NULL, columns),
    FIGURE("proxy_loss", "output error", proxy_loss, 6),
    FIGURE("relative_mse", "weight error", relative_mse, 6),
    FIGURE("bits_per_weight", "bits", bits_per_weight, 4),
    COUNT("v", NULL, shape.v),
    COUNT("k", NULL, shape.k),
    COUNT("k_res", NULL, shape.k_res),
    COUNT("groups", NULL, shape.groups),
    COUNT("outliers", NULL, shape.outliers),
    COUNT("worst_row", "worst row", worst_row),
    {.name = "worst_row_mse",
     .title = "its error",
     VPTQ_REAL(vptq_error_row, worst_row_mse),
     .decimals = 4}};

typedef struct ranked_row {
    const vptq_error_row *row;
    double error;
} ranked_row;

/* The largest error first, unknown ones last; equal rows keep their order. */
static int compare_errors(const void *left, const void *right)
{
    const ranked_row *a = left, *b = right;
    if (isnan(a->error) != isnan(b->error))
        return isnan(a->error) - isnan(b->error);
    if (a->error < b->error || a->error > b->error)
        return a->error < b->error ? 1 : -1;
    return (a->row > b->row) - (a->row < b->row);
}

/* At most `top` rows; 0 = all. */
static void fill_rows(const writer *w, vptq_table *t, const char *title, bool worst, size_t top)
{
    const size_t count = w->r->count;
    vptq_table_init(t, w->mem, title, VPTQ_COLUMNS(row_columns));
    ranked_row *rows = vptq_arena_alloc(&t->arena, count, sizeof *rows, &t->err);
    if (!rows)
        return;
    for (size_t i = 0; i < count; i++)
        rows[i] = (ranked_row){&w->r->rows[i], compared(w, &w->r->rows[i])};
    if (worst)
        qsort(rows, count, sizeof *rows, compare_errors);
    for (size_t i = 0; i < count && (!top || i < top); i++)
        vptq_table_add(t, rows[i].row);
}

static void fill_means(const writer *w, vptq_table *t, const char *title)
{
    static const vptq_column columns[] = {
        {.name = "kind", VPTQ_TEXT(means, name), .head = true},
        {.name = "matrices", VPTQ_INTEGER(means, count)},
        {.name = "output",
         .title = "output error",
         VPTQ_REAL(means, output),
         .decimals = 6,
         .major = true},
        {.name = "weight",
         .title = "weight error",
         VPTQ_REAL(means, weight),
         .decimals = 6,
         .major = true},
        {.name = "least", VPTQ_REAL(means, low), .decimals = 6},
        {.name = "largest", VPTQ_REAL(means, high), .decimals = 6},
        {.name = "bits", VPTQ_REAL(means, bits), .decimals = 4, .major = true}};
    vptq_table_init(t, w->mem, title, VPTQ_COLUMNS(columns));
    for (int k = 0; k < KINDS; k++)
        if (w->kind[k].count)
            vptq_table_add(t, &w->kind[k]);
    vptq_table_add(t, &w->all);
    vptq_table_note(t, w->outputs ? "Means over matrices; least and largest output error."
                                  : "Means over matrices; least and largest weight error.");
}

/* Explanations of the two errors, below the tables. */
static const char output_note[] =
    "Output error: tr(E H E^T) / tr(W H W^T), the squared error of a matrix's outputs on the "
    "calibration inputs over the square of the outputs (E = quantized minus original, H the "
    "Hessian).";
static const char weight_note[] =
    "Weight error: |E|^2 / |W|^2; of the worst row: the largest such quotient of any row "
    "(output channel).";

static vptq_status write_text(const writer *w, vptq_format format, bool worst, vptq_buf *out,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_table rows, summary;
    fill_rows(w, &rows, worst ? "Matrices, worst first" : "Matrices", worst, w->r->top);
    if (w->outputs)
        vptq_table_note(&rows, output_note);
    vptq_table_note(&rows, weight_note);
    fill_means(w, &summary, "Means");
    rows.width = summary.width = w->r->width;
    VPTQ_TRY(vptq_table_write(&rows, format, out, err));
    VPTQ_TRY(vptq_buf_add(out, "\n", 1, err));
    VPTQ_TRY(vptq_table_write(&summary, format, out, err));
out:
    vptq_table_release(&rows);
    vptq_table_release(&summary);
    return st;
}

static vptq_status write_rows(const writer *w, vptq_format format, bool worst, vptq_buf *out,
                              vptq_err *err)
{
    vptq_table rows;
    fill_rows(w, &rows, NULL, worst, w->r->top);
    vptq_status st = vptq_table_write(&rows, format, out, err);
    vptq_table_release(&rows);
    return st;
}

/* --- the page ---------------------------------------------------------------------------- */

/* Errors by layer (rows) and kind (columns).  Kinds without a matrix have no column. */
typedef struct grid {
    uint32_t first; /* layer of row 0 */
    size_t layers, kinds;
    double *values; /* [layers, kinds] means of the matrices; NaN = not quantized */
    double *x;      /* [layers] layer numbers */
    const char **names;
    const char *kind_names[KINDS];
    char kind_short[KINDS][16]; /* without "_proj", if all end so */
    const char *kind_shown[KINDS];
    char (*texts)[12];
} grid;

static vptq_status make_grid(const writer *w, vptq_arena *arena, grid *g, vptq_err *err)
{
    const vptq_error_report *r = w->r;
    size_t column[KINDS] = {0}, cells, suffix = strlen("_proj");
    uint32_t last = 0;
    *g = (grid){.first = UINT32_MAX};
    for (size_t i = 0; i < r->count; i++) {
        g->first = r->rows[i].layer < g->first ? r->rows[i].layer : g->first;
        last = r->rows[i].layer > last ? r->rows[i].layer : last;
    }
    for (int k = 0; k < KINDS; k++)
        if (w->kind[k].count && !vptq_text_before(w->kind[k].name, "_proj"))
            suffix = 0;
    for (int k = 0; k < KINDS; k++)
        if (w->kind[k].count) {
            const char *name = w->kind[k].name;
            column[k] = g->kinds;
            snprintf(g->kind_short[g->kinds], sizeof g->kind_short[0], "%.*s",
                     (int)(strlen(name) - suffix), name);
            g->kind_shown[g->kinds] = g->kind_short[g->kinds];
            g->kind_names[g->kinds++] = name;
        }
    g->layers = (size_t)(last - g->first) + 1;
    if (!vptq_size_mul(g->layers, g->kinds, &cells))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory: %zu layers", g->layers);
    g->values = vptq_arena_alloc(arena, cells, sizeof *g->values, err);
    g->x = g->values ? vptq_arena_alloc(arena, g->layers, sizeof *g->x, err) : NULL;
    g->names = g->x ? vptq_arena_alloc(arena, g->layers, sizeof *g->names, err) : NULL;
    g->texts = g->names ? vptq_arena_alloc(arena, g->layers, sizeof *g->texts, err) : NULL;
    uint32_t *counts = g->texts ? vptq_arena_alloc(arena, cells, sizeof *counts, err) : NULL;
    if (!counts)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < cells; i++) {
        g->values[i] = (double)NAN;
        counts[i] = 0;
    }
    for (size_t i = 0; i < g->layers; i++) {
        g->x[i] = g->first + (double)i;
        snprintf(g->texts[i], sizeof g->texts[i], "%zu", g->first + i);
        g->names[i] = g->texts[i];
    }
    for (size_t i = 0; i < r->count; i++) {
        const size_t cell = (r->rows[i].layer - g->first) * g->kinds + column[r->rows[i].kind];
        const double x = compared(w, &r->rows[i]), mean = counts[cell] ? g->values[cell] : 0;
        g->values[cell] = mean + (x - mean) / ++counts[cell];
    }
    return VPTQ_OK;
}

/* Decimals that show two significant digits of the smallest value, within 2 to 5. */
static int heat_decimals(const grid *g)
{
    double smallest = (double)INFINITY;
    for (size_t i = 0; i < g->layers * g->kinds; i++)
        if (g->values[i] > 0)
            smallest = fmin(smallest, g->values[i]);
    int decimals = isfinite(smallest) ? 1 - (int)floor(log10(smallest)) : 2;
    return decimals < 2 ? 2 : decimals > 5 ? 5 : decimals;
}

static void draw_heat(vptq_html *h, const writer *w, const grid *g)
{
    char title[64];
    snprintf(title, sizeof title, "%s by layer and kind",
             w->outputs ? "Output error" : "Weight error");
    vptq_svg_heat(
        h, &(vptq_svg_heat_spec){.about = {title,
                                           "A row per layer, a column per kind of matrix; the "
                                           "stronger the colour, the larger the error.",
                                           NULL},
                                 .row_title = "layer",
                                 .rows = g->names,
                                 .columns = g->kind_shown,
                                 .values = g->values,
                                 .row_count = g->layers,
                                 .column_count = g->kinds,
                                 .log = true,
                                 .decimals = heat_decimals(g)});
}

static void draw_kinds(vptq_html *h, const writer *w, const grid *g)
{
    vptq_svg_bar bars[KINDS];
    size_t n = 0;
    for (int k = 0; k < KINDS; k++) {
        const means *m = &w->kind[k];
        double mean = w->outputs ? m->output : m->weight;
        if (!m->count)
            continue;
        bars[n] = (vptq_svg_bar){.label = m->name,
                                 .value = mean,
                                 .low = m->low,
                                 .high = m->high,
                                 .series = (unsigned)n};
        n++;
    }
    vptq_svg_bars(h, &(vptq_svg_bars_spec){
                         .about = {"Error by kind of matrix",
                                   "A bar per kind: the mean over its layers, and from the "
                                   "smallest to the largest.",
                                   "By kind of matrix"},
                         .axis = w->outputs ? "output error: mean, least and largest"
                                            : "weight error: mean, least and largest",
                         .bars = bars,
                         .count = n,
                         .decimals = heat_decimals(g),
                         .even = (double)NAN});
}

static vptq_status draw_layers(vptq_html *h, const writer *w, const grid *g, vptq_arena *arena)
{
    vptq_svg_line lines[KINDS];
    double *y = vptq_arena_alloc(arena, g->layers * g->kinds, sizeof *y, h->e.err);
    if (!y)
        return VPTQ_E_NOMEM;
    for (size_t k = 0; k < g->kinds; k++) {
        for (size_t i = 0; i < g->layers; i++)
            y[k * g->layers + i] = g->values[i * g->kinds + k];
        lines[k] = (vptq_svg_line){
            .label = g->kind_names[k], .x = g->x, .y = y + k * g->layers, .count = g->layers};
    }
    vptq_svg_lines(
        h, &(vptq_svg_lines_spec){.about = {"Error over the layers",
                                            "A line per kind of matrix.", "Over the layers"},
                                  .x = {.title = "layer"},
                                  .y = {.title = compared_title(w), .log = true},
                                  .lines = lines,
                                  .count = g->kinds,
                                  .even = (double)NAN});
    return VPTQ_OK;
}

static void page_facts(vptq_html *h, const writer *w)
{
    char text[4][32];
    snprintf(text[0], sizeof text[0], "%zu", w->all.count);
    snprintf(text[1], sizeof text[1], "%.3f", w->all.bits);
    snprintf(text[2], sizeof text[2], "%.4g", w->all.weight);
    snprintf(text[3], sizeof text[3], "%.4g", w->all.output);
    const vptq_html_fact facts[] = {{text[0], "quantized matrices"},
                                    {text[1], "bits per weight, mean"},
                                    {text[2], "weight error, mean"},
                                    {text[3], "output error, mean"}};
    vptq_html_facts(h, facts, w->outputs ? 4 : 3);
}

enum { PAGE_ROWS = 20 };

static void page_tables(vptq_html *h, const writer *w, bool worst)
{
    vptq_table t;
    char title[64];
    size_t top = w->r->top ? w->r->top : PAGE_ROWS;
    vptq_html_heading(h, 2, "kinds", "Kinds");
    fill_means(w, &t, "Means by kind of matrix");
    vptq_html_table(h, &t);
    vptq_table_release(&t);
    vptq_html_heading(h, 2, "matrices", "Matrices");
    top = top < w->r->count ? top : w->r->count;
    snprintf(title, sizeof title, worst ? "The %zu worst matrices" : "The first %zu matrices",
             top);
    fill_rows(w, &t, title, worst, top);
    vptq_html_table(h, &t);
    vptq_table_release(&t);
    if (!w->r->top && top < w->r->count) {
        vptq_html_details_begin(h, "All matrices by layer");
        fill_rows(w, &t, "All matrices", false, 0);
        vptq_html_table(h, &t);
        vptq_table_release(&t);
        vptq_html_details_end(h);
    }
}

static vptq_status write_page(const writer *w, bool worst, vptq_buf *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_html h;
    vptq_arena arena;
    grid g;
    char lead[1200];
    vptq_arena_init(&arena, w->mem);
    snprintf(lead, sizeof lead, "%.500s against %.500s", w->r->model, w->r->base);
    VPTQ_TRY(make_grid(w, &arena, &g, err));
    vptq_html_begin(&h, out, err, "Errors of quantized matrices", lead);
    page_facts(&h, w);
    if (w->outputs)
        vptq_html_paragraph(&h, output_note);
    vptq_html_paragraph(&h, weight_note);
    vptq_html_figures_begin(&h);
    draw_heat(&h, w, &g);
    draw_kinds(&h, w, &g);
    VPTQ_TRY(draw_layers(&h, w, &g, &arena));
    vptq_html_figures_end(&h);
    page_tables(&h, w, worst);
    VPTQ_TRY(vptq_html_end(&h));
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_error_report_write(const vptq_error_report *r, vptq_format format,
                                    vptq_mem *mem, vptq_buf *out, vptq_err *err)
{
    writer w = {.r = r, .mem = mem};
    bool people = format != VPTQ_FORMAT_CSV && format != VPTQ_FORMAT_JSON;
    bool worst =
        r->order == VPTQ_ERROR_ORDER_FORMAT ? people : r->order == VPTQ_ERROR_ORDER_WORST;
    average(&w);
    if (format == VPTQ_FORMAT_HTML)
        return write_page(&w, worst, out, err);
    return people ? write_text(&w, format, worst, out, err)
                  : write_rows(&w, format, worst, out, err);
}

static vptq_status keep_row(void *arg, const vptq_error_row *row, vptq_err *err)
{
    return vptq_buf_add(arg, row, sizeof *row, err);
}

static vptq_status report_plan(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                               const vptq_error_options *opt, const vptq_output *out,
                               vptq_err *err)
{
    vptq_estimate e;
    VPTQ_CHECK(vptq_eval_error_estimate(dev, m, base, opt, &e, err));
    return vptq_estimate_end(out, &e, err);
}

vptq_status vptq_eval_error_report(vptq_device *dev, const vptq_model *m,
                                   const vptq_model *base, const vptq_error_options *opt,
                                   const vptq_output *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf rows, text;
    vptq_mem *mem = dev->ctx->mem;
    vptq_buf_init(&rows, mem); /* of vptq_error_row */
    vptq_buf_init(&text, mem);
    if (opt->dry_run) {
        VPTQ_TRY(report_plan(dev, m, base, opt, out, err));
        goto out;
    }
    VPTQ_TRY(vptq_eval_error(dev, m, base, opt, keep_row, &rows, err));
    const vptq_error_report report = {.rows = (const vptq_error_row *)(void *)rows.data,
                                      .count = rows.len / sizeof(vptq_error_row),
                                      .order = opt->order,
                                      .top = opt->top,
                                      .width = out ? out->width : 0,
                                      .desc = base->desc,
                                      .model = vptq_path_base(m->ckpt.path),
                                      .base = vptq_path_base(base->ckpt.path)};
    VPTQ_TRY(
        vptq_error_report_write(&report, out ? out->format : VPTQ_FORMAT_CSV, mem, &text, err));
    if (out)
        st = out->write(out->arg, text.data, text.len, err);
out:
    vptq_buf_release(&text);
    vptq_buf_release(&rows);
    return st;
}
