/* Vector quantization rows of the `ref` table: plain C, one thread, distances in double.  They
 * are the oracle that other backends are compared with; contracts are in backend.h. */
#ifndef VPTQ_BACKEND_REF_VQ_H
#define VPTQ_BACKEND_REF_VQ_H

#include "lib/backend/backend.h"

vptq_status vptq_ref_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err);
vptq_status vptq_ref_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err);
vptq_status vptq_ref_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                 vptq_err *err);
void vptq_ref_matrix_close(vptq_dev *dev, vptq_matrix *m);
vptq_status vptq_ref_vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                                float *w, size_t ldw, vptq_err *err);
vptq_status vptq_ref_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                             vptq_err *err);
vptq_status vptq_ref_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                          const vptq_gemv_args *g, vptq_err *err);
vptq_status vptq_ref_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                  const vptq_gemv_args *g, vptq_err *err);

/* ref_search.c */
vptq_status vptq_ref_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                       vptq_search_index **index, vptq_err *err);
void vptq_ref_search_index_close(vptq_dev *dev, vptq_search_index *index);
vptq_status vptq_ref_search(vptq_dev *dev, const vptq_search_args *f, vptq_err *err);
vptq_status vptq_ref_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err);
vptq_status vptq_ref_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err);
vptq_status vptq_ref_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err);
vptq_status vptq_ref_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err);

#endif
