/* Internal: inner loops of the cpu backend, one set per SIMD level (math_simd.c). Arrays have
 * any alignment and length. The order of every sum depends only on the length. */
#ifndef VPTQ_BACKEND_CPU_MATH_H
#define VPTQ_BACKEND_CPU_MATH_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/cpu.h"

typedef struct vptq_cpu_math {
    /* x[i] = exp(x[i] - shift), at most 2 ulp off (subnormal results: 2 units of the smallest);
     * exp(-inf) = 0, overflow gives infinity, NaN stays.  Returns the sum of the results. */
    float (*exp_shift)(float *x, size_t n, float shift);
    /* Sum of exp(x[i] - shift), the terms as above, added in double. */
    double (*exp_sum)(const float *x, size_t n, float shift);
    float (*max)(const float *x, size_t n); /* -inf for n = 0; ignores NaN */
    void (*scale)(float *x, size_t n, float s);
    double (*sum_squares)(const float *x, size_t n);    /* added in double */
    void (*center)(const float *x, float *y, size_t n); /* y = x - mean, of a sum in double */
    /* y = x * s * w, or with `more` plus that; y may be x or more */
    void (*norm)(const float *x, const float *w, float s, const float *more, float *y,
                 size_t n);
    /* (lo, hi) = (lo * c - hi * s, hi * c + lo * s) */
    void (*rotate)(float *lo, float *hi, const float *c, const float *s, size_t n);
    /* up may be NULL: 1 */
    void (*swiglu)(const float *gate, const float *up, bool gelu, float *y, size_t n);
    void (*soft_cap)(float *x, size_t n, float cap);           /* x = cap tanh(x / cap) */
    void (*add_double)(const float *x, double *sum, size_t n); /* sum[i] += x[i] */
    /* dst[i * ld_dst + j] = factor * src[i * ld_src + j] for i < rows, j < cols */
    void (*copy)(size_t rows, size_t cols, const float *src, size_t ld_src, float factor,
                 float *dst, size_t ld_dst);
    /* dst[j * ld_dst + i] = factor * src[i * ld_src + j] for i < rows, j < cols */
    void (*transpose)(size_t rows, size_t cols, const float *src, size_t ld_src, float factor,
                      float *dst, size_t ld_dst);
    /* C [m, n] += alpha * A [m, k] * B^T, B [n, k]; for few rows of A: reads B once per two of
     * them. */
    void (*dots)(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                 const float *b, size_t ldb, float *c, size_t ldc);
    /* C [m, n] += alpha * A [m, k] * B, B [k, n]. */
    void (*axpys)(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                  const float *b, size_t ldb, float *c, size_t ldc);
    /* The block of matrix products: C [rows, cols] = A B, or with `add` C += A B. A is packed
     * as [k, tile_rows], B as [k, tile_cols]; rows <= tile_rows, cols <= tile_cols. C stays in
     * registers; each element is one sum over k, in order.  tile_cols is a multiple of 16. */
    size_t tile_rows, tile_cols;
    void (*tile)(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                 size_t rows, size_t cols);
    /* The same for `bf16` of the op gemm, of numbers that are rounded; k is a multiple of 32.
     */
    void (*tile_bf16)(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                      size_t rows, size_t cols);
    /* One step of a running softmax down the columns of scores s [n, tile_cols]: for each
     * column max' = max(max, s), f = exp(max - max'), s = exp(s - max'), sum = sum * f + the
     * new s. Columns that are all -inf so far keep sum 0. */
    void (*softmax)(float *s, size_t n, float *max, float *sum, float *f);
    void (*scale_columns)(float *x, size_t n, const float *f); /* x [n, tile_cols] *= f */
    /* The part of a page (paged.c) of one kv head, in float or, with `half`, float16, for the
     * query heads that share it: score [heads, ld] = q [heads, d] K with keys K [d,
     * VPTQ_KV_PAGE], and out [heads, d] += p [heads, ld] V over tokens [first, end), values V
     * [VPTQ_KV_PAGE, d]. */
    void (*page_scores)(bool half, size_t heads, size_t d, const float *q, const void *keys,
                        float *score, size_t ld);
    void (*page_mix)(bool half, size_t heads, size_t d, const float *p, size_t ld, size_t first,
                     size_t end, const void *values, float *out);
} vptq_cpu_math;

VPTQ_SIMD_TABLES(vptq_cpu_math, vptq_cpu_math);

static inline const vptq_cpu_math *vptq_cpu_math_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_cpu_math);
}

#endif
