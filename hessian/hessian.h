/* Second moments of a linear's inputs: H = E[x x^T] (raw, not centred), mean and token count;
 * exact pooling, statistics, and the factor that the column pass uses. */
#ifndef VPTQ_HESSIAN_HESSIAN_H
#define VPTQ_HESSIAN_HESSIAN_H

#include "formats/vptq/hessian_file.h"
#include "lib/backend/backend.h"
#include "lib/vptq.h"

/* Collecting sums: sum x x^T (lower triangle of [n, n]) and sum x, in double, in the device's
 * memory. */
typedef struct vptq_hessian_sum {
    vptq_device *dev;
    uint32_t n;
    uint64_t tokens;
    bool clear; /* nothing went in: h and x hold anything */
    double *h, *x;
} vptq_hessian_sum;

vptq_status vptq_hessian_sum_init(vptq_device *dev, uint32_t n, vptq_hessian_sum *s,
                                  vptq_err *err) VPTQ_MUST_CHECK;
void vptq_hessian_sum_clear(vptq_hessian_sum *s); /* to zero tokens */
void vptq_hessian_sum_release(vptq_device *dev, vptq_hessian_sum *s);
/* Adds x [t, n] (device memory).  VPTQ_E_NUMERIC when a sum is no longer finite is left to
 * _finish. */
vptq_status vptq_hessian_sum_add(vptq_device *dev, vptq_hessian_sum *s, size_t t,
                                 const float *x, size_t ldx, vptq_err *err) VPTQ_MUST_CHECK;
/* Adds sum_t w_t x_t x_t^T, w [t] (device memory) or NULL for ones, which counts as one token:
 * a window's part of a term. */
vptq_status vptq_hessian_sum_add_window(vptq_device *dev, vptq_hessian_sum *s, size_t t,
                                        const float *x, size_t ldx, const float *w,
                                        vptq_err *err) VPTQ_MUST_CHECK;
/* lower [n (n + 1) / 2] and mean [n]: the sums over tokens, rounded to float.  No tokens:
 * VPTQ_E_ARG. */
vptq_status vptq_hessian_sum_finish(const vptq_hessian_sum *s, float *lower, float *mean,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* mixed = plain + factor * term, lower triangles of n columns; mixed may be plain. */
void vptq_hessian_mix(size_t n, const float *plain, const float *term, double factor,
                      float *mixed);

/* Exact pooling of `count` Hessians of one size: sum_g t_g H_g / sum_g t_g, the same for the
 * means, in double, groups in the order given.  Terms count by windows in place of tokens. */
vptq_status vptq_hessian_pool(vptq_mem *mem, const vptq_hessian_file *parts, size_t count,
                              float *lower, float *mean, uint64_t *tokens,
                              vptq_err *err) VPTQ_MUST_CHECK;

vptq_status vptq_hessian_describe(vptq_device *dev, const vptq_hessian_file *h,
                                  vptq_hessian_stats *s, vptq_err *err) VPTQ_MUST_CHECK;

/* The rows potrf and trtri of the backend on a [n, n] in host memory. */
vptq_status vptq_hessian_cholesky(vptq_device *dev, size_t n, double *a, size_t *bad_pivot,
                                  vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_hessian_invert_lower(vptq_device *dev, size_t n, double *a,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Factor for the column pass.  Given A = P S (H + ridge) S P^T (symmetric positive definite,
 * [n, n] double, lower triangle), U is the upper triangular matrix with A^-1 = U^T U, without
 * forming the inverse: J A J = L L^T with J the reversal, so U = J L^-1 J.  Damping: when the
 * factorization fails, `damping` times the mean diagonal is added and multiplied by 10 until it
 * holds (at most 8 times); *added tells how much of the mean diagonal was added in the end (0 =
 * none). a is destroyed; u [n, n] float, zeros below the diagonal. */
vptq_status vptq_hessian_factor(vptq_device *dev, size_t n, double *a, double damping, float *u,
                                double *added, vptq_err *err) VPTQ_MUST_CHECK;

#endif
