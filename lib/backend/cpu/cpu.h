/* Rows of the `cpu` table: OpenBLAS (one thread per call) on fixed tiles, OpenMP over the
 * tiles, AVX2 or AVX-512 chosen at run time.  A tile depends on the shapes alone, so results
 * are the same bits for any number of threads.  Contracts are in backend.h. */
#ifndef VPTQ_BACKEND_CPU_CPU_H
#define VPTQ_BACKEND_CPU_CPU_H

#include "lib/backend/backend.h"

/* linear algebra: cpu_gemm.c, cpu_syrk.c, cpu_factor.c */
vptq_status vptq_cpu_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);
vptq_status vptq_cpu_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err);
vptq_status vptq_cpu_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err);
vptq_status vptq_cpu_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                           vptq_err *err);
vptq_status vptq_cpu_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err);

/* transformer: cpu_model.c, cpu_attention.c, cpu_attention_mass.c, cpu_paged.c */
vptq_status vptq_cpu_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err);
vptq_status vptq_cpu_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err);
vptq_status vptq_cpu_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err);
vptq_status vptq_cpu_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_rope_args *a,
                               vptq_err *err);
vptq_status vptq_cpu_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err);
vptq_status vptq_cpu_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err);
vptq_status vptq_cpu_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err);
vptq_status vptq_cpu_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err);
vptq_status vptq_cpu_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err);
vptq_status vptq_cpu_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err);
vptq_status vptq_cpu_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                    vptq_err *err);

#endif
