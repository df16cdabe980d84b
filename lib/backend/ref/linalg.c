/* Linear algebra of the reference backend: textbook loops in double. */
#include <math.h>

#include "lib/backend/ref/ref.h"
#include "lib/base/half.h"

static float nearest_bf16(float x)
{
    return vptq_bf16_to_f32(vptq_f32_to_bf16(x));
}

vptq_status vptq_ref_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    (void)dev;
    (void)err;
    const size_t a_row = g->trans_a ? 1 : g->lda, a_step = g->trans_a ? g->lda : 1;
    const size_t b_col = g->trans_b ? g->ldb : 1, b_step = g->trans_b ? 1 : g->ldb;

    for (size_t i = 0; i < g->m; i++) {
        for (size_t j = 0; j < g->n; j++) {
            const float *a = g->a + i * a_row, *b = g->b + j * b_col;
            float *c = g->c + i * g->ldc + j;
            double s = 0;
            for (size_t l = 0; !g->bf16 && l < g->k; l++)
                s += (double)a[l * a_step] * (double)b[l * b_step];
            s *= (double)g->alpha;
            for (size_t l = 0; g->bf16 && l < g->k; l++)
                s += (double)nearest_bf16(g->alpha * a[l * a_step]) *
                     (double)nearest_bf16(b[l * b_step]);
            if (g->bias)
                s += (double)g->bias[j];
            if (g->beta != 0)
                s += (double)*c;
            *c = (float)s;
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t s = 0; s < a->tokens; s++) {
        const float *row = a->x + s * a->ldx;
        const double weight = a->w ? (double)a->w[s] : 1;
        for (size_t i = 0; i < a->n; i++) {
            const double wx = weight * (double)row[i];
            a->sum[i] += wx;
            for (size_t j = 0; j <= i; j++)
                a->h[i * a->n + j] += wx * (double)row[j];
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_channel_range(vptq_dev *dev, const vptq_channel_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t j = 0; j < a->n; j++) {
        double sum = a->first ? 0 : a->abs_sum[j];
        float lo = a->first ? INFINITY : a->min[j], hi = a->first ? -INFINITY : a->max[j];
        for (size_t t = 0; t < a->tokens; t++) {
            const float x = a->x[t * a->ldx + j];
            sum += (double)fabsf(x);
            lo = x < lo ? x : lo;
            hi = x > hi ? x : hi;
        }
        a->abs_sum[j] = sum;
        a->min[j] = lo;
        a->max[j] = hi;
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                           vptq_err *err)
{
    (void)dev;
    for (size_t j = 0; j < n; j++) {
        double *row_j = a + j * lda;
        double d = row_j[j];
        for (size_t l = 0; l < j; l++)
            d -= row_j[l] * row_j[l];
        /* Infinite and NaN pivots would spread; they count as not positive. */
        if (!(d > 0) || isinf(d)) {
            if (bad_pivot)
                *bad_pivot = j;
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "matrix is not positive definite: pivot %zu of %zu is %g", j, n,
                             d);
        }
        row_j[j] = sqrt(d);
        for (size_t i = j + 1; i < n; i++) {
            double *row_i = a + i * lda;
            double s = row_i[j];
            for (size_t l = 0; l < j; l++)
                s -= row_i[l] * row_j[l];
            row_i[j] = s / row_j[j];
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    (void)dev;
    for (size_t i = 0; i < n; i++)
        if (a[i * lda + i] == 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "triangular matrix is singular: diagonal %zu of %zu is 0", i, n);
    /* From the last column to the first: the rows below j are already inverted. */
    for (size_t j = n; j-- > 0;) {
        const double inv = 1 / a[j * lda + j];
        a[j * lda + j] = inv;
        for (size_t i = n; i-- > j + 1;) {
            double s = 0;
            for (size_t l = j + 1; l <= i; l++)
                s += a[i * lda + l] * a[l * lda + j];
            a[i * lda + j] = -s * inv;
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    double total = 0;
    for (size_t r = 0; r < a->m; r++) {
        const float *row = a->e + r * a->lde;
        for (size_t i = 0; i < a->n; i++) {
            double s = 0;
            for (size_t j = 0; j < i; j++)
                s += a->h[i * a->ldh + j] * (double)row[j];
            total += (double)row[i] * (2 * s + a->h[i * a->ldh + i] * (double)row[i]);
        }
    }
    *a->trace = total;
    return VPTQ_OK;
}
