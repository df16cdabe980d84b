/* Internal: the ops of the cuda backend and what they share: the state of a device, errors,
 * working memory. Contracts of the ops are in backend.h. */
#ifndef VPTQ_BACKEND_CUDA_CUDA_H
#define VPTQ_BACKEND_CUDA_CUDA_H

#include "lib/backend/cuda/port.h"

extern "C" {
#include "lib/backend/backend.h"
}

typedef struct vptq_cuda_stage vptq_cuda_stage;     /* upload.cu */
typedef struct vptq_cuda_library vptq_cuda_library; /* library.h */

struct vptq_dev {
    const vptq_ctx *ctx;
    cudaStream_t stream;
    cudaDeviceProp properties;
    void *scratch; /* see vptq_cuda_scratch */
    size_t scratch_bytes;
    double queued;              /* see vptq_cuda_pace */
    vptq_cuda_stage *stage;     /* pinned buffers for uploads, or NULL */
    bool stage_failed;          /* opening `stage` has failed */
    vptq_cuda_library *library; /* cuBLAS and cuSOLVER, NULL until first used */
};

/* Returns VPTQ_OK for cudaSuccess, otherwise VPTQ_E_DEVICE or VPTQ_E_NOMEM with a message that
 * names `what` failed and the reason. */
vptq_status vptq_cuda_check(cudaError_t e, const char *what, vptq_err *err);

/* Allocates device memory, which the caller frees with cudaFree. The message of VPTQ_E_NOMEM
 * says how much is free. */
vptq_status vptq_cuda_alloc(size_t bytes, void **ptr, vptq_err *err);

/* Returns at least `bytes` of device memory, 256-byte aligned and not cleared. The device keeps
 * it; it is valid until the next call. */
vptq_status vptq_cuda_scratch(vptq_dev *dev, size_t bytes, void **ptr, vptq_err *err);

/* Ops that can take long divide their work into launches of about port_launch_work() fused
 * multiplications and check the caller's cancel flag before each.  At most twice that much work
 * is queued, so that a cancellation takes effect soon.
 *
 * Returns how many of n items of `work_each` multiplications go into one launch: all of them or
 * a multiple of `unit`. */
size_t vptq_cuda_piece(size_t n, double work_each, size_t unit);
/* Call before each launch.  Returns VPTQ_E_CANCELLED, or the status of earlier work. */
vptq_status vptq_cuda_pace(vptq_dev *dev, double work, vptq_err *err);

/* Copies from host to device memory. The host memory may change as soon as it returns. */
vptq_status vptq_cuda_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                             vptq_err *err);
void vptq_cuda_stage_close(vptq_dev *dev);

/* Copies from device to host memory and waits for the copy. */
vptq_status vptq_cuda_download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                               vptq_err *err);

/* Adds n numbers in a fixed order, all in device memory. */
cudaError_t vptq_cuda_total(vptq_dev *dev, size_t n, const double *of, double *total);

/* Number of blocks of `size` that cover n. */
static inline unsigned vptq_cuda_blocks(size_t n, size_t size)
{
    return (unsigned)((n + size - 1) / size);
}

/* Rotates one row of heads in place by a block of threads ("rotate half", see
 * vptq_rope_args); cosine and sine are those of the row's position. */
static __device__ inline void vptq_cuda_rope_row(unsigned heads, unsigned head_dim, float *x,
                                                 const float *cosine, const float *sine)
{
    const unsigned half = head_dim / 2;
    for (unsigned j = threadIdx.x; j < heads * half; j += blockDim.x) {
        const unsigned i = j % half;
        float *lo = x + j / half * head_dim + i, *hi = lo + half;
        const float a = *lo, b = *hi, c = cosine[i], s = sine[i];
        *lo = a * c - b * s;
        *hi = b * c + a * s;
    }
}

/* Linear algebra: gemm.cu, syrk.cu, factor.cu. */
vptq_status vptq_cuda_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);
vptq_status vptq_cuda_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err);
vptq_status vptq_cuda_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err);

vptq_status vptq_cuda_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                            vptq_err *err);
vptq_status vptq_cuda_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err);

/* Clustering: assign.cu, accumulate.cu. */
vptq_status vptq_cuda_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err);
vptq_status vptq_cuda_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err);
vptq_status vptq_cuda_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err);

/* Packed matrices: matrix.cu, vq.cu, vq_gemv.cu. */
vptq_status vptq_cuda_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                  vptq_err *err);
void vptq_cuda_matrix_close(vptq_dev *dev, vptq_matrix *m);
vptq_status vptq_cuda_vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                                 float *w, size_t ldw, vptq_err *err);
vptq_status vptq_cuda_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                              vptq_err *err);

/* Other stored weights: vq.cu, gemv.cu. */
vptq_status vptq_cuda_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err);

vptq_status vptq_cuda_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                           const vptq_gemv_args *g, vptq_err *err);
vptq_status vptq_cuda_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                   const vptq_gemv_args *g, vptq_err *err);

/* Codebook search: search.cu, columns.cu. */
vptq_status vptq_cuda_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                        vptq_search_index **index, vptq_err *err);
void vptq_cuda_search_index_close(vptq_dev *dev, vptq_search_index *index);
vptq_status vptq_cuda_search(vptq_dev *dev, const vptq_search_args *f, vptq_err *err);
vptq_status vptq_cuda_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err);
vptq_status vptq_cuda_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err);

/* Transformer: model.cu, attention.cu, paged.cu, sample.cu. */
vptq_status vptq_cuda_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err);
vptq_status vptq_cuda_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err);
vptq_status vptq_cuda_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err);
vptq_status vptq_cuda_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err);
vptq_status vptq_cuda_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err);
vptq_status vptq_cuda_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                     vptq_err *err);
vptq_status vptq_cuda_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows,
                                const vptq_rope_args *a, vptq_err *err);
vptq_status vptq_cuda_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err);
vptq_status vptq_cuda_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err);
vptq_status vptq_cuda_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err);
vptq_status vptq_cuda_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err);

#endif
