/* Rows of the `ref` table: plain C, one thread, the oracle.  Sums are taken in double and
 * rounded once.  Other host backends may use a row as it is; contracts are in backend.h. */
#ifndef VPTQ_BACKEND_REF_REF_H
#define VPTQ_BACKEND_REF_REF_H

#include "lib/backend/backend.h"

/* life and memory: backend_ref.c */
vptq_status vptq_ref_open(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err);
void vptq_ref_close(vptq_dev *dev);
vptq_status vptq_ref_alloc(vptq_dev *dev, size_t count, size_t size, void **ptr, vptq_err *err);
void vptq_ref_libraries(vptq_dev *dev, char *text, size_t size);
size_t vptq_ref_left(const vptq_dev *dev);
void vptq_ref_release(vptq_dev *dev, void *ptr);
vptq_status vptq_ref_copy(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                          vptq_err *err);
vptq_status vptq_ref_sync(vptq_dev *dev, vptq_err *err);

/* linear algebra: backend_ref_linalg.c */
vptq_status vptq_ref_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);
vptq_status vptq_ref_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err);
vptq_status vptq_ref_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                           vptq_err *err);
vptq_status vptq_ref_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err);
vptq_status vptq_ref_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err);

/* transformer: backend_ref_model.c, ref_attention_mass.c, ref_paged.c, ref_sample.c */
vptq_status vptq_ref_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err);
vptq_status vptq_ref_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err);
vptq_status vptq_ref_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err);
vptq_status vptq_ref_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err);
vptq_status vptq_ref_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                    vptq_err *err);
vptq_status vptq_ref_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_rope_args *a,
                               vptq_err *err);
vptq_status vptq_ref_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err);
vptq_status vptq_ref_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err);
vptq_status vptq_ref_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err);
vptq_status vptq_ref_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err);
vptq_status vptq_ref_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err);

#endif
