/* Normalization, order and metric (metric.h). */
#include "lib/quant/metric.h"

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

static vptq_status check_hessian(vptq_metric *m, const float *lower, vptq_err *err)
{
    const float *row = lower;

    for (size_t i = 0; i < m->in; i++, row += i) {
        for (size_t j = 0; j <= i; j++)
            if (!isfinite(row[j]))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "hessian entry (%zu, %zu) is %g, expected a finite number", i,
                                 j, (double)row[j]);
        if (row[i] < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "hessian diagonal %zu is %g, expected no negative second moment",
                             i, (double)row[i]);
        m->mean_diag += (double)row[i];
        m->dead += row[i] > 0 ? 0 : 1;
    }
    m->mean_diag /= m->in;
    if (!(m->mean_diag > 0))
        return vptq_fail(err, VPTQ_E_NUMERIC, "hessian is zero, expected a positive diagonal");
    return VPTQ_OK;
}

/* Mean and standard deviation of every column over the rows, rounded to the storage type. */
static vptq_status column_norms(vptq_metric *m, vptq_dtype storage, uint32_t out,
                                const float *w, vptq_arena *arena, vptq_err *err)
{
    size_t in = m->in;
    vptq_arena_mark mark = vptq_arena_get_mark(arena);
    double *sum = vptq_arena_zalloc(arena, in, 2 * sizeof *sum, err);
    double *sq = sum ? sum + in : NULL;
    if (!sum)
        return VPTQ_E_NOMEM;

    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++)
            sum[c] += (double)w[r * in + c];
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++) {
            double d = (double)w[r * in + c] - sum[c] / out;
            sq[c] += d * d;
        }
    vptq_status st = VPTQ_OK;
    for (size_t c = 0; c < in && !st; c++) {
        double deviation = sqrt(sq[c] / out);
        if (deviation < SMALLEST_SCALE)
            deviation = deviation > 0 ? SMALLEST_SCALE : 1;
        m->bias[c] = vptq_round_to(storage, (float)(sum[c] / out));
        m->scale[c] = vptq_round_to(storage, (float)deviation);
        if (!isfinite(m->bias[c]) || !isfinite(m->scale[c]))
            st = vptq_fail(err, VPTQ_E_NUMERIC,
                           "column %zu has mean %g and deviation %g, which %s cannot hold", c,
                           sum[c] / out, deviation, vptq_dtype_get(storage)->name);
    }
    vptq_arena_rewind(arena, mark);
    return st;
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

static vptq_status make_order(vptq_metric *m, bool perm, vptq_arena *arena, vptq_err *err)
{
    vptq_arena_mark mark = vptq_arena_get_mark(arena);
    ranked *rank = vptq_arena_alloc(arena, m->in, sizeof *rank, err);
    if (!rank)
        return VPTQ_E_NOMEM;
    for (uint32_t c = 0; c < m->in; c++)
        rank[c] = (ranked){m->diag[c], c};
    if (perm)
        qsort(rank, m->in, sizeof *rank, by_diag_descending);
    for (uint32_t p = 0; p < m->in; p++)
        m->order[p] = rank[p].column;
    vptq_arena_rewind(arena, mark);
    return VPTQ_OK;
}

vptq_status vptq_metric_make(const vptq_quant_settings *s, uint32_t out, uint32_t in,
                             const float *w, const float *lower, vptq_arena *arena,
                             vptq_metric *m, vptq_err *err)
{
    vptq_status st = VPTQ_OK;

    *m = (vptq_metric){.in = in};
    m->scale = vptq_arena_alloc(arena, in, sizeof *m->scale, err);
    m->bias = m->scale ? vptq_arena_alloc(arena, in, sizeof *m->bias, err) : NULL;
    m->diag = m->bias ? vptq_arena_alloc(arena, in, sizeof *m->diag, err) : NULL;
    m->order = m->diag ? vptq_arena_alloc(arena, in, sizeof *m->order, err) : NULL;
    if (!m->order)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(check_weights(out, in, w, err));
    VPTQ_TRY(check_hessian(m, lower, err));
    for (uint32_t c = 0; c < in; c++) {
        m->scale[c] = 1;
        m->bias[c] = 0;
    }
    if (s->norm != VPTQ_NORM_NONE)
        VPTQ_TRY(column_norms(m, s->storage, out, w, arena, err));
    for (size_t c = 0; c < in; c++) {
        double h = (double)lower[c * (c + 1) / 2 + c] + s->ridge * m->mean_diag;
        m->diag[c] = (double)m->scale[c] * h * (double)m->scale[c];
    }
    VPTQ_TRY(make_order(m, s->perm, arena, err));
out:
    return st;
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
            a[p * n + q] = (double)m->scale[cp] * h * (double)m->scale[cq];
        }
    }
}
