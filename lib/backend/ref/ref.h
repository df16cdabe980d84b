/* Internal: the ops of the `ref` table, plain C on one thread.  Sums are taken in double and
 * rounded once: the oracle that other backends are compared with.  Contracts are in backend.h.
 * Other host backends may use an op as it is. */
#ifndef VPTQ_BACKEND_REF_REF_H
#define VPTQ_BACKEND_REF_REF_H

#include "lib/backend/backend.h"

/* ref.c */
vptq_status vptq_ref_open(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err);
void vptq_ref_close(vptq_dev *dev);
vptq_status vptq_ref_alloc(vptq_dev *dev, size_t count, size_t size, void **ptr, vptq_err *err);
size_t vptq_ref_left(const vptq_dev *dev);
void vptq_ref_release(vptq_dev *dev, void *ptr);
vptq_status vptq_ref_copy(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                          vptq_err *err);
vptq_status vptq_ref_clear(vptq_dev *dev, void *dst, size_t bytes, vptq_err *err);
vptq_status vptq_ref_sync(vptq_dev *dev, vptq_err *err);
size_t vptq_ref_cache_bytes(const vptq_dev *dev);
vptq_status vptq_ref_library_half(vptq_dev *dev, const vptq_half_args *a, vptq_err *err);
vptq_status vptq_ref_measure(vptq_dev *dev, vptq_work_fn *fn, void *arg, double *seconds,
                             vptq_err *err);

/* Entry (i, j) of the matrix that the op metric writes. */
double vptq_ref_metric_entry(const vptq_metric_args *a, size_t i, size_t j);
/* |z / u| as a number whose order is that of the quotients, every NaN above all others. */
uint32_t vptq_ref_prune_key(float z, float u);
/* Bit i is set for the n smallest of m keys, of equal ones the first. */
unsigned vptq_ref_prune_smallest(const uint32_t *keys, uint32_t n, uint32_t m);
/* |x - c|^2 of vectors of length v. */
double vptq_ref_distance(const float *x, const float *c, uint32_t v);

#define VPTQ_REF_OP(op) vptq_op_##op vptq_ref_##op;
VPTQ_BACKEND_OPS(VPTQ_REF_OP)

#endif
