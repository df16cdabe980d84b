/* Internal: the ops that the `cpu` table overrides; contracts are in backend.h.
 *
 * Matrix products use kernels of our own (math.h) or OpenBLAS, one thread per call, on fixed
 * tiles; OpenMP runs over the tiles; AVX2 or AVX-512 is chosen at run time.  Tiles depend on
 * the shapes only, so that results have the same bits for any number of threads.  They depend
 * on the SIMD level, which decides about fused multiply-add. */
#ifndef VPTQ_BACKEND_CPU_CPU_H
#define VPTQ_BACKEND_CPU_CPU_H

#include "lib/backend/backend.h"

/* gemm.c, syrk.c, factor.c */
vptq_status vptq_cpu_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);
vptq_status vptq_cpu_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err);
vptq_status vptq_cpu_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err);
vptq_status vptq_cpu_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                           vptq_err *err);
vptq_status vptq_cpu_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err);

/* assign.c, reassign.c, accumulate.c */
vptq_status vptq_cpu_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err);
vptq_status vptq_cpu_reassign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err);
vptq_status vptq_cpu_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err);

/* gemv.c, vq_gemv.c, vq_dequant.c */
vptq_status vptq_cpu_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                          const vptq_gemv_args *g, vptq_err *err);
vptq_status vptq_cpu_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                  const vptq_gemv_args *g, vptq_err *err);
vptq_status vptq_cpu_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                 vptq_err *err);
void vptq_cpu_matrix_close(vptq_dev *dev, vptq_matrix *m);
vptq_status vptq_cpu_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                             vptq_err *err);
vptq_status vptq_cpu_vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                                float *w, size_t ldw, vptq_err *err);

/* search.c, columns.c, accumulate.c */
vptq_status vptq_cpu_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                       vptq_search_index **index, vptq_err *err);
void vptq_cpu_search_index_close(vptq_dev *dev, vptq_search_index *index);
vptq_status vptq_cpu_search(vptq_dev *dev, const vptq_search_args *s, vptq_err *err);
vptq_status vptq_cpu_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err);
vptq_status vptq_cpu_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err);
vptq_status vptq_cpu_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err);
vptq_status vptq_cpu_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err);

/* model.c, attention.c, attention_mass.c, paged.c, sample.c */
vptq_status vptq_cpu_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err);
vptq_status vptq_cpu_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err);
vptq_status vptq_cpu_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err);
vptq_status vptq_cpu_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err);
vptq_status vptq_cpu_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                    vptq_err *err);
vptq_status vptq_cpu_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err);
vptq_status vptq_cpu_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err);
vptq_status vptq_cpu_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err);
vptq_status vptq_cpu_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_rope_args *a,
                               vptq_err *err);
vptq_status vptq_cpu_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err);
vptq_status vptq_cpu_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err);

#endif
