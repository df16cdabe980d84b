/* Internal: kernels for products and triangular systems in double, one set per SIMD level
 * (double_simd.c), for the ops potrf, trtri and quad_trace.
 *
 * Every element of a result is one chain of fused multiply-adds, d = d -+ a[l] b[l] for
 * ascending l.  Blocks may cut the chain, because a double that is stored and loaded again is
 * the same.  So neither their sizes nor the level nor the number of threads change a bit
 * (docs/numerics.md).  Level none uses fma() of the C library.
 *
 * Operands are panels: `width` vectors side by side, element l of vector j at [l * width + j].
 * Missing vectors of the last panel are 0. */
#ifndef VPTQ_BACKEND_CPU_DOUBLE_H
#define VPTQ_BACKEND_CPU_DOUBLE_H

#include <stddef.h>

#include "lib/base/cpu.h"

typedef struct vptq_cpu_double {
    /* Shape of a block of results, which stays in registers: width is a multiple of rows, and
     * VPTQ_DOUBLE_STEP one of both. */
    size_t rows, width;
    /* Fills a panel with `count` vectors of k elements, the rows of a matrix, and the other way
     * round. */
    void (*gather)(size_t count, size_t k, const double *x, size_t ld, double *panel);
    void (*gather_f32)(size_t count, size_t k, const float *x, size_t ld, double *panel);
    void (*scatter)(size_t count, size_t k, const double *panel, double *x, size_t ld);
    /* C [rows, width] -= A B: A is `rows` vectors of a panel, starting at its first element, B
     * a panel, both of k elements.  `next` is the block after C, which is prefetched. */
    void (*subtract)(size_t k, const double *a, const double *b, double *c, size_t ldc,
                     const double *next);
    /* Forward substitution: replaces the first k elements of the vectors of panel x by the
     * solutions of L y = x.  L holds the rows of the triangle in panels of `depth` elements,
     * inverse the reciprocals of its diagonal; k is a multiple of rows. */
    void (*solve)(size_t k, const double *l, size_t depth, const double *inverse, double *x);
    /* Cholesky factor of a block [width, width] that lies in a panel, its rows being the
     * vectors; sets the reciprocals of its diagonal.  Returns the number of pivots before the
     * first that is not a positive number, at most `count`. */
    size_t (*factor)(size_t count, double *x, double *inverse);
    /* sum[j] -= sum over i of e[i, j] * (A B)[i, j], for C [m, width] = A B as above; A is
     * several panels of k elements; sum [width]. */
    void (*trace)(size_t m, size_t k, const double *a, const double *b, const double *e,
                  double *sum);
} vptq_cpu_double;

enum { VPTQ_DOUBLE_STEP = 24 };

VPTQ_SIMD_TABLES(vptq_cpu_double, vptq_cpu_double);

static inline const vptq_cpu_double *vptq_cpu_double_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_cpu_double);
}

#endif
