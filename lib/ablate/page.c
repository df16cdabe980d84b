/* The HTML page of an ablation: the table, and perplexity over bits for every text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/ablate/ablate.h"
#include "lib/base/file.h"
#include "lib/report/svg.h"

enum { QUANTIZED, ORIGINAL, SERIES };

/* Ratio of largest to smallest bits from which on their axis is logarithmic. */
static const double wide_range = 10;

static bool has_score(const vptq_ablate_result *r)
{
    return r->scores != NULL;
}

static size_t count_scores(const vptq_ablate_report *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->count; i++)
        n += has_score(&r->rows[i]);
    return n;
}

/* The measured rows as points over their bits, and as bars in the order of the table. */
typedef struct points {
    vptq_svg_point *point;
    vptq_svg_bar *bar;
    size_t count;
    double min_bits, max_bits;
    double original; /* perplexity of the original; NAN without such a row */
} points;

static vptq_status collect_points(vptq_ablate_report *r, size_t text, points *p, vptq_err *err)
{
    const size_t n = count_scores(r);
    *p = (points){.min_bits = (double)INFINITY, .max_bits = 0, .original = (double)NAN};
    p->point = vptq_arena_alloc(&r->arena, n, sizeof *p->point, err);
    p->bar = vptq_arena_alloc(&r->arena, n, sizeof *p->bar, err);
    if (!p->point || !p->bar)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < r->count; i++) {
        const vptq_ablate_result *row = &r->rows[i];
        if (!has_score(row))
            continue;
        const vptq_ablate_score *s = &row->scores[text];
        const unsigned series = row->row->original ? ORIGINAL : QUANTIZED;
        p->point[p->count] = (vptq_svg_point){
            .label = row->row->name, .x = row->bits_per_weight, .y = s->ppl, .series = series};
        p->bar[p->count] = (vptq_svg_bar){.label = row->row->name,
                                          .value = s->ppl,
                                          .low = s->ppl - s->ppl_stderr,
                                          .high = s->ppl + s->ppl_stderr,
                                          .series = series};
        p->min_bits = fmin(p->min_bits, row->bits_per_weight);
        p->max_bits = fmax(p->max_bits, row->bits_per_weight);
        if (row->row->original)
            p->original = s->ppl;
        p->count++;
    }
    return VPTQ_OK;
}

static void draw_text(vptq_html *h, const points *p, const char *name)
{
    static const char *const series[SERIES] = {"quantized", "original"};
    const vptq_svg_scatter_spec scatter = {
        .about = {"Perplexity over bits",
                  "Every row by the bits per weight that are stored of its quantized "
                  "matrices and its perplexity; the line joins the rows that no other "
                  "one beats in both.",
                  "Perplexity over bits per weight"},
        .x = {.title = "bits per weight, all that is stored",
              .log = p->max_bits > wide_range * p->min_bits},
        .y = {.title = "perplexity", .log = true},
        .points = p->point,
        .count = p->count,
        .series = series,
        .series_count = SERIES,
        .frontier = true};
    const vptq_svg_bars_spec bars = {.about = {"Perplexity by row",
                                               "Whiskers are standard errors.",
                                               "Perplexity by row, ± its standard error"},
                                     .axis = "perplexity",
                                     .bars = p->bar,
                                     .count = p->count,
                                     .decimals = -5,
                                     .even = p->original};
    vptq_html_heading(h, 2, NULL, name);
    vptq_html_figures_begin(h);
    vptq_svg_scatter(h, &scatter);
    vptq_svg_bars(h, &bars);
    vptq_html_figures_end(h);
}

vptq_status vptq_ablate_page(vptq_ablate_report *r, vptq_mem *mem, vptq_buf *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_table t = {.title = NULL};
    vptq_html h;
    points p;
    char lead[256];
    snprintf(lead, sizeof lead, "%.200s, %zu rows", vptq_path_base(r->opt->model), r->count);
    VPTQ_TRY(vptq_ablate_table(r, mem, &t, err));
    vptq_html_begin(&h, out, err, "Ablation", lead);
    vptq_html_table(&h, &t);
    for (size_t i = 0; i < vptq_ablate_text_count(r->opt) && count_scores(r) > 0; i++) {
        VPTQ_TRY(collect_points(r, i, &p, err));
        draw_text(&h, &p, vptq_path_base(vptq_ablate_text(r->opt, i)));
    }
    st = vptq_html_end(&h);
out:
    vptq_table_release(&t);
    return st;
}
