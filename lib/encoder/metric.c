/* Normalization, order and metric (metric.h). */
#include "lib/encoder/metric.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/half.h"

/* A scale below this could not be stored with full precision (the smallest normal half);
 * columns that are flatter than that lose nothing by a larger scale. */
static const double SMALLEST_SCALE = 6.103515625e-5;

static vptq_status check_weights(uint32_t out, uint32_t in, const float *w, vptq_err *err)
{
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++)
            if (!isfinite(w[r * in + c]))
                return vptq_fail(
                    err, VPTQ_E_NUMERIC,
                    "weight at row %zu, column %zu is %g, expected a finite number", r, c,
                    (double)w[r * in + c]);
    return VPTQ_OK;
}

vptq_status vptq_metric_check(const char *name, uint32_t in, const float *lower, vptq_err *err)
{
    const float *row = lower;

    for (size_t i = 0; i < in; i++, row += i) {
        for (size_t j = 0; j <= i; j++)
            if (!isfinite(row[j]))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "%s entry (%zu, %zu) is %g, expected a finite number", name, i,
                                 j, (double)row[j]);
        if (row[i] < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "%s diagonal %zu is %g, expected no negative second moment", name,
                             i, (double)row[i]);
    }
    return VPTQ_OK;
}

static vptq_status mean_of_diagonal(vptq_metric *m, const float *lower, vptq_err *err)
{
    for (size_t i = 0; i < m->in; i++) {
        double h = (double)lower[i * (i + 1) / 2 + i];
        m->mean_diag += h;
        m->dead += h > 0 ? 0 : 1;
    }
    m->mean_diag /= m->in;
    if (!(m->mean_diag > 0))
        return vptq_fail(err, VPTQ_E_NUMERIC, "hessian is zero, expected a positive diagonal");
    return VPTQ_OK;
}

/* Per column: bias and scale before rounding. */
typedef struct column_stats {
    double *bias, *scale;
} column_stats;

static void mean_and_deviation(size_t out, size_t in, const float *w, column_stats *k)
{
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++)
            k->bias[c] += (double)w[r * in + c];
    for (size_t c = 0; c < in; c++)
        k->bias[c] /= (double)out;
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++) {
            double d = (double)w[r * in + c] - k->bias[c];
            k->scale[c] += d * d;
        }
    for (size_t c = 0; c < in; c++)
        k->scale[c] = sqrt(k->scale[c] / (double)out);
}

static void minimum_and_range(size_t out, size_t in, const float *w, column_stats *k)
{
    for (size_t c = 0; c < in; c++) {
        double least = (double)w[c], most = least;
        for (size_t r = 1; r < out; r++) {
            double x = (double)w[r * in + c];
            least = x < least ? x : least;
            most = x > most ? x : most;
        }
        k->bias[c] = least;
        k->scale[c] = most - least;
    }
}

/* Rounded to the storage type, but for the published recipe, which rounds at the end. */
static vptq_status column_norms(vptq_metric *m, const vptq_encoder_settings *s, uint32_t out,
                                const float *w, vptq_arena *arena, vptq_err *err)
{
    size_t in = m->in;
    vptq_arena_mark mark = vptq_arena_get_mark(arena);
    column_stats k = {.bias = vptq_arena_zalloc(arena, in, 2 * sizeof(double), err)};
    if (!k.bias)
        return VPTQ_E_NOMEM;
    k.scale = k.bias + in;
    if (s->norm == VPTQ_NORM_STD)
        mean_and_deviation(out, in, w, &k);
    else
        minimum_and_range(out, in, w, &k);

    vptq_status st = VPTQ_OK;
    for (size_t c = 0; c < in && !st; c++) {
        double scale = k.scale[c];
        if (scale < SMALLEST_SCALE)
            scale = scale > 0 ? SMALLEST_SCALE : 1;
        m->bias[c] = (float)k.bias[c];
        m->scale[c] = (float)scale;
        float bias = vptq_round_to(s->storage, m->bias[c]);
        scale = (double)vptq_round_to(s->storage, m->scale[c]);
        if (!isfinite(bias) || !isfinite(scale))
            st = vptq_fail(err, VPTQ_E_NUMERIC,
                           "column %zu has bias %g and scale %g, which %s cannot hold", c,
                           k.bias[c], k.scale[c], vptq_dtype_get(s->storage)->name);
        if (s->rounding == VPTQ_ROUND_LOOP) {
            m->bias[c] = bias;
            m->scale[c] = (float)scale;
        }
    }
    vptq_arena_rewind(arena, mark);
    return st;
}

/* The scale that the metric sees. */
static double metric_scale(const vptq_metric *m, size_t column)
{
    return m->scaled ? (double)m->scale[column] : 1;
}

typedef struct ranked {
    double diag;
    uint32_t column;
} ranked;

static int by_diag_descending(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->diag != y->diag)
        return x->diag > y->diag ? -1 : 1;
    return x->column < y->column ? -1 : 1;
}

static int by_column(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->column < y->column ? -1 : x->column > y->column;
}

/* The outlier columns, which come first, are the most important ones in any case. */
static vptq_status make_order(vptq_metric *m, bool perm, uint32_t outliers, vptq_arena *arena,
                              vptq_err *err)
{
    vptq_arena_mark mark = vptq_arena_get_mark(arena);
    ranked *rank = vptq_arena_alloc(arena, m->in, sizeof *rank, err);
    if (!rank)
        return VPTQ_E_NOMEM;
    for (uint32_t c = 0; c < m->in; c++)
        rank[c] = (ranked){m->diag[c], c};
    if (perm || outliers)
        qsort(rank, m->in, sizeof *rank, by_diag_descending);
    if (!perm)
        qsort(rank + outliers, m->in - outliers, sizeof *rank, by_column);
    for (uint32_t p = 0; p < m->in; p++)
        m->order[p] = rank[p].column;
    vptq_arena_rewind(arena, mark);
    return VPTQ_OK;
}

void vptq_metric_rescale(vptq_metric *m, double ridge, const float *lower)
{
    for (size_t c = 0; c < m->in; c++) {
        double h = (double)lower[c * (c + 1) / 2 + c] + ridge * m->mean_diag;
        m->diag[c] = metric_scale(m, c) * h * metric_scale(m, c);
    }
}

vptq_status vptq_metric_make(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                             uint32_t outliers, const float *w, const float *lower,
                             vptq_arena *arena, vptq_metric *m, vptq_err *err)
{
    *m = (vptq_metric){.in = in, .scaled = s->metric == VPTQ_METRIC_SCALED};
    m->scale = vptq_arena_alloc(arena, in, sizeof *m->scale, err);
    m->bias = m->scale ? vptq_arena_alloc(arena, in, sizeof *m->bias, err) : NULL;
    m->diag = m->bias ? vptq_arena_alloc(arena, in, sizeof *m->diag, err) : NULL;
    m->order = m->diag ? vptq_arena_alloc(arena, in, sizeof *m->order, err) : NULL;
    if (!m->order)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(check_weights(out, in, w, err));
    VPTQ_CHECK(mean_of_diagonal(m, lower, err));
    for (uint32_t c = 0; c < in; c++) {
        m->scale[c] = 1;
        m->bias[c] = 0;
    }
    if (s->norm != VPTQ_NORM_NONE)
        VPTQ_CHECK(column_norms(m, s, out, w, arena, err));
    vptq_metric_rescale(m, s->ridge, lower);
    return make_order(m, s->perm, outliers, arena, err);
}

void vptq_metric_normalize(const vptq_metric *m, uint32_t out, size_t rows, const float *w,
                           float *z)
{
    for (size_t p = 0; p < m->in; p++) {
        size_t c = m->order[p];
        float *column = z + p * rows;
        for (size_t r = 0; r < out; r++)
            column[r] = (w[r * m->in + c] - m->bias[c]) / m->scale[c];
        for (size_t r = out; r < rows; r++)
            column[r] = 0;
    }
}

void vptq_metric_matrix(const vptq_metric *m, double ridge, const float *lower, double *a)
{
    size_t n = m->in;

    for (size_t p = 0; p < n; p++) {
        size_t cp = m->order[p];
        for (size_t q = 0; q <= p; q++) {
            size_t cq = m->order[q];
            size_t hi = cp > cq ? cp : cq;
            size_t lo = cp > cq ? cq : cp;
            double h = (double)lower[hi * (hi + 1) / 2 + lo];
            if (p == q)
                h += ridge * m->mean_diag;
            a[p * n + q] = metric_scale(m, cp) * h * metric_scale(m, cq);
        }
    }
}

void vptq_metric_full(const vptq_metric *m, bool raw, double ridge, const float *lower,
                      float *h)
{
    size_t n = m->in;

    for (size_t p = 0; p < n; p++) {
        size_t cp = m->order[p];
        for (size_t q = 0; q <= p; q++) {
            size_t cq = m->order[q];
            size_t hi = cp > cq ? cp : cq;
            size_t lo = cp > cq ? cq : cp;
            double x = (double)lower[hi * (hi + 1) / 2 + lo];
            if (!raw) {
                if (p == q)
                    x += ridge * m->mean_diag;
                x = metric_scale(m, cp) * x * metric_scale(m, cq);
            }
            h[p * n + q] = h[q * n + p] = (float)x;
        }
    }
}
