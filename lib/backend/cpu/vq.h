/* Vector quantization rows of the `cpu` table; contracts are in backend.h.  Results depend on
 * the instruction set in use (it decides whether scores are summed with fused operations),
 * never on threads or on how a range is cut. */
#ifndef VPTQ_BACKEND_CPU_VQ_H
#define VPTQ_BACKEND_CPU_VQ_H

#include "lib/backend/backend.h"

vptq_status vptq_cpu_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err);
vptq_status vptq_cpu_reassign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err);
vptq_status vptq_cpu_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err);
vptq_status vptq_cpu_vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                                float *w, size_t ldw, vptq_err *err);
/* cpu_gemv.c, cpu_vq_gemv.c, cpu_vq_many.c */
vptq_status vptq_cpu_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                          const vptq_gemv_args *g, vptq_err *err);
vptq_status vptq_cpu_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                  const vptq_gemv_args *g, vptq_err *err);
vptq_status vptq_cpu_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                 vptq_err *err);
void vptq_cpu_matrix_close(vptq_dev *dev, vptq_matrix *m);
vptq_status vptq_cpu_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                             vptq_err *err);
/* x [in]: a row `from` [in] of activations in the order that the matrix processes its columns
 * in, scaled; returns the sum of the row times the matrix's bias. */
float vptq_cpu_vq_prepare(const vptq_vq *q, const float *from, float *x);
/* vq_gemv of more rows of x than it looks up four by four; false: the matrix has vectors that
 * pieces would cut. */
bool vptq_cpu_vq_is_many(const vptq_vq *q, size_t n);
vptq_status vptq_cpu_vq_many(vptq_dev *dev, const vptq_vq *q, const vptq_gemv_args *g,
                             vptq_err *err);

/* cpu_search.c */
vptq_status vptq_cpu_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                       vptq_search_index **index, vptq_err *err);
void vptq_cpu_search_index_close(vptq_dev *dev, vptq_search_index *index);
vptq_status vptq_cpu_search(vptq_dev *dev, const vptq_search_args *f, vptq_err *err);

/* cpu_columns.c */
vptq_status vptq_cpu_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err);
vptq_status vptq_cpu_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err);

/* cpu_gather.c */
vptq_status vptq_cpu_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err);
vptq_status vptq_cpu_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err);

#endif
