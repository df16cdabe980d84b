/* The HTML page of an ablation: the table, and perplexity and divergence over bits for every
 * text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/ablate/ablate.h"
#include "lib/base/file.h"
#include "lib/report/svg.h"

/* Ratio of largest to smallest bits from which on their axis is logarithmic. */
static const double wide_range = 10;

enum { MAX_SERIES = 32 };

/* Rows by method, and the original. */
typedef struct series {
    const char *name[MAX_SERIES];
    size_t count;
} series;

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

/* Index of the row's series, which is added unless there are too many. */
static vptq_status find_series(vptq_ablate_report *r, const vptq_ablate_row *row, series *s,
                               unsigned *index, vptq_err *err)
{
    char name[VPTQ_SETTING_TEXT] = "original";
    if (!row->original)
        vptq_setting_print(vptq_setting_find("method"), &row->settings, name, sizeof name);
    *index = 0;
    while (*index < s->count && strcmp(s->name[*index], name) != 0)
        (*index)++;
    if (*index < s->count)
        return VPTQ_OK;
    if (*index == MAX_SERIES) {
        (*index)--;
        return VPTQ_OK;
    }
    s->name[s->count] = vptq_arena_strdup(&r->arena, name, err);
    return s->name[s->count++] ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* The measured rows as points over their bits, and as bars in the order of the table. */
typedef struct points {
    vptq_svg_point *point;
    vptq_svg_bar *bar;
    size_t count;
    double min_bits, max_bits;
    double original; /* perplexity of the original; NAN without such a row */
    series series;
} points;

/* Of perplexities, or of divergences, which the original has none of. */
static vptq_status collect_points(vptq_ablate_report *r, size_t text, bool kld, points *p,
                                  vptq_err *err)
{
    const size_t n = count_scores(r);
    *p = (points){.min_bits = (double)INFINITY, .max_bits = 0, .original = (double)NAN};
    p->point = vptq_arena_alloc(&r->arena, n, sizeof *p->point, err);
    p->bar = vptq_arena_alloc(&r->arena, n, sizeof *p->bar, err);
    if (!p->point || !p->bar)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < r->count; i++) {
        const vptq_ablate_result *row = &r->rows[i];
        unsigned index;
        if (!has_score(row))
            continue;
        /* even of a row without divergence, so that a method has one colour in all pictures */
        VPTQ_CHECK(find_series(r, row->row, &p->series, &index, err));
        if (kld && !isfinite(row->scores[text].kld))
            continue;
        const vptq_ablate_score *s = &row->scores[text];
        const double value = kld ? s->kld : s->ppl,
                     spread = kld ? s->kld_stderr : s->ppl_stderr;
        p->point[p->count] = (vptq_svg_point){
            .label = row->row->name, .x = row->bits_per_weight, .y = value, .series = index};
        p->bar[p->count] = (vptq_svg_bar){.label = row->row->name,
                                          .value = value,
                                          .low = value - spread,
                                          .high = value + spread,
                                          .series = index};
        p->min_bits = fmin(p->min_bits, row->bits_per_weight);
        p->max_bits = fmax(p->max_bits, row->bits_per_weight);
        if (row->row->original)
            p->original = value;
        p->count++;
    }
    return VPTQ_OK;
}

static const vptq_svg_about about[2][2] = {
    {{"Perplexity over bits",
      "Every row by the bits per weight that are stored of its quantized matrices and its "
      "perplexity; the line joins the rows that no other one beats in both.",
      "Perplexity over bits per weight"},
     {"Perplexity by row", "Whiskers are standard errors.",
      "Perplexity by row, ± its standard error"}},
    {{"Divergence over bits",
      "Every row by the bits per weight that are stored of its quantized matrices and its "
      "divergence from the original; the line joins the rows that no other one beats in both.",
      "KL divergence over bits per weight"},
     {"Divergence by row", "Whiskers are standard errors.",
      "KL divergence by row, ± its standard error"}}};

static void draw_points(vptq_html *h, const points *p, bool kld)
{
    const char *axis = kld ? "KL divergence, nats" : "perplexity";
    const vptq_svg_scatter_spec scatter = {.about = about[kld][0],
                                           .x = {.title = "bits per weight, all that is stored",
                                                 .log = p->max_bits > wide_range * p->min_bits},
                                           .y = {.title = axis, .log = true},
                                           .points = p->point,
                                           .count = p->count,
                                           .series = p->series.name,
                                           .series_count = p->series.count,
                                           .frontier = true};
    const vptq_svg_bars_spec bars = {.about = about[kld][1],
                                     .axis = axis,
                                     .bars = p->bar,
                                     .count = p->count,
                                     .decimals = -5,
                                     .even = p->original};
    vptq_html_figures_begin(h);
    vptq_svg_scatter(h, &scatter);
    vptq_svg_bars(h, &bars);
    vptq_html_figures_end(h);
}

static vptq_status draw_text(vptq_html *h, vptq_ablate_report *r, size_t text, vptq_err *err)
{
    points p;
    vptq_html_heading(h, 2, NULL, vptq_path_base(vptq_ablate_text(r->opt, text)));
    for (int kld = 0; kld <= r->opt->kld; kld++) {
        VPTQ_CHECK(collect_points(r, text, kld, &p, err));
        if (p.count > 0)
            draw_points(h, &p, kld);
    }
    return VPTQ_OK;
}

vptq_status vptq_ablate_page(vptq_ablate_report *r, vptq_mem *mem, vptq_buf *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_table t = {.title = NULL};
    vptq_html h;
    char lead[256];
    snprintf(lead, sizeof lead, "%.200s, %zu rows", vptq_path_base(r->opt->model), r->count);
    VPTQ_TRY(vptq_ablate_table(r, mem, &t, err));
    vptq_html_begin(&h, out, err, "Ablation", lead);
    vptq_html_table(&h, &t);
    for (size_t i = 0; i < vptq_ablate_text_count(r->opt) && count_scores(r) > 0; i++)
        VPTQ_TRY(draw_text(&h, r, i, err));
    st = vptq_html_end(&h);
out:
    vptq_table_release(&t);
    return st;
}
