/* Internal: inner loops of the gradients of the cpu backend, one set per SIMD level
 * (gradients_simd.c).  Arrays have any alignment and length. */
#ifndef VPTQ_BACKEND_CPU_GRADIENTS_H
#define VPTQ_BACKEND_CPU_GRADIENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/cpu.h"

typedef struct vptq_cpu_gradients {
    /* For n rows of `width` columns (a multiple of 16): s = exp(s - lse), ds = s (ds - delta),
     * with lse and delta of each column. */
    void (*softmax)(float *s, float *ds, size_t n, size_t width, const float *lse,
                    const float *delta);
    /* Sum of (dy w) x, the products in brackets in float, added in double. */
    double (*norm_along)(const float *dy, const float *w, const float *x, size_t n);
    /* dx (+)= factor[0] (dy w) - factor[1] x; dx may be dy. */
    void (*norm)(const float *dy, const float *w, const float *x, const float factor[2],
                 bool add, float *dx, size_t n);
    /* sum += (dy x) r */
    void (*norm_weight)(const float *dy, const float *x, float r, double *sum, size_t n);
    void (*swiglu)(float *gate, float *up, const float *dy, size_t n);
    /* With p = factor[0] exp(logits - shift[0]) and t = factor[1] exp(teacher - shift[1]):
     * replaces logits by scale (p - t), and returns the sum of t (teacher - logits), added in
     * double. */
    double (*kl)(float *logits, const float *teacher, size_t n, const float shift[2],
                 const float factor[2], float scale);
} vptq_cpu_gradients;

VPTQ_SIMD_TABLES(vptq_cpu_gradients, vptq_cpu_gradients);

static inline const vptq_cpu_gradients *vptq_cpu_gradients_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_cpu_gradients);
}

#endif
