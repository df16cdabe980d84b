/* Internal: checks a product with a packed matrix before it is timed. */
#ifndef VPTQ_BENCH_GEMV_CHECK_H
#define VPTQ_BENCH_GEMV_CHECK_H

#include "lib/backend/backend.h"

/* Compares every row of y [n, out] with x [n, in] times the matrix as `ref` decodes it, in
 * double.  Arrays are in host memory, without gaps.  VPTQ_E_NUMERIC names the first group of
 * rows that is off by more than 1e-3 of its norm. */
vptq_status vptq_gemv_check(const vptq_ctx *ctx, const vptq_vq *q, size_t n, const float *x,
                            const float *y, vptq_err *err) VPTQ_MUST_CHECK;

#endif
