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
void vptq_ref_libraries(vptq_dev *dev, char *text, size_t size);
size_t vptq_ref_left(const vptq_dev *dev);
void vptq_ref_release(vptq_dev *dev, void *ptr);
vptq_status vptq_ref_copy(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                          vptq_err *err);
vptq_status vptq_ref_sync(vptq_dev *dev, vptq_err *err);

/* linalg.c */
vptq_status vptq_ref_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);
vptq_status vptq_ref_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err);
vptq_status vptq_ref_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                           vptq_err *err);
vptq_status vptq_ref_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err);
vptq_status vptq_ref_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err);

/* vq.c */
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

/* search.c */
vptq_status vptq_ref_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                       vptq_search_index **index, vptq_err *err);
void vptq_ref_search_index_close(vptq_dev *dev, vptq_search_index *index);
vptq_status vptq_ref_search(vptq_dev *dev, const vptq_search_args *s, vptq_err *err);
vptq_status vptq_ref_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err);
vptq_status vptq_ref_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err);
vptq_status vptq_ref_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err);
vptq_status vptq_ref_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err);

/* model.c, attention.c, sample.c */
vptq_status vptq_ref_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err);
vptq_status vptq_ref_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err);
vptq_status vptq_ref_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err);
vptq_status vptq_ref_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err);
vptq_status vptq_ref_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                    vptq_err *err);
vptq_status vptq_ref_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err);
vptq_status vptq_ref_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err);
vptq_status vptq_ref_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err);
vptq_status vptq_ref_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_rope_args *a,
                               vptq_err *err);
vptq_status vptq_ref_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err);
vptq_status vptq_ref_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err);

#endif
