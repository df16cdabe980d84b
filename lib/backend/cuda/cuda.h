/* Internal: the ops of the cuda backend and what they share: the state of a device, errors,
 * working memory. Contracts of the ops are in backend.h. */
#ifndef VPTQ_BACKEND_CUDA_CUDA_H
#define VPTQ_BACKEND_CUDA_CUDA_H

#include "lib/backend/cuda/port.h"

extern "C" {
#include "lib/backend/backend.h"
#include "lib/base/comm.h"
}

typedef struct vptq_cuda_stage vptq_cuda_stage;     /* upload.cu */
typedef struct vptq_cuda_library vptq_cuda_library; /* library.h */

/* Device memory that is kept and grows on demand. */
typedef struct vptq_cuda_buffer {
    void *at;
    size_t bytes;
} vptq_cuda_buffer;

struct vptq_dev {
    const vptq_ctx *ctx;
    cudaStream_t stream;
    cudaDeviceProp properties;
    vptq_cuda_buffer scratch, tile; /* see vptq_cuda_scratch and vptq_cuda_tile */
    double queued;                  /* see vptq_cuda_pace */
    bool recording;                 /* vptq_cuda_measure records launches: nothing may wait */
    vptq_cuda_stage *stage;         /* pinned buffers for uploads, or NULL */
    bool stage_failed;              /* opening `stage` has failed */
    vptq_cuda_library *library;     /* cuBLAS and cuSOLVER, NULL until first used */
};

/* Returns VPTQ_OK for cudaSuccess, otherwise VPTQ_E_DEVICE or VPTQ_E_NOMEM with a message that
 * names `what` failed and the reason. */
vptq_status vptq_cuda_check(cudaError_t e, const char *what, vptq_err *err);

/* Allocates device memory, which the caller frees with cudaFree. If there is too little, frees
 * the memory of vptq_cuda_scratch and tries again. The message of VPTQ_E_NOMEM says how much is
 * free. */
vptq_status vptq_cuda_alloc(vptq_dev *dev, size_t bytes, void **ptr, vptq_err *err);

/* Returns at least `bytes` of device memory, 256-byte aligned and not cleared. The device keeps
 * it; it is valid until the next call or allocation. */
vptq_status vptq_cuda_scratch(vptq_dev *dev, size_t bytes, void **ptr, vptq_err *err);

/* Returns at least `bytes` for decoded rows of a matrix, valid until the next call or
 * vptq_cuda_tile_close, also across allocations. The device keeps it, so that products that are
 * recorded allocate nothing. */
vptq_status vptq_cuda_tile(vptq_dev *dev, size_t bytes, void **ptr, vptq_err *err);
void vptq_cuda_tile_close(vptq_dev *dev);

/* Ops that can take long divide their work into launches of about port_launch_work() fused
 * multiplications and check the caller's cancel flag before each.  At most twice that much work
 * is queued, so that a cancellation takes effect soon.
 *
 * vptq_cuda_piece returns how many of n items of `each` multiplications go into one launch: all
 * of them or a multiple of `unit`.  vptq_cuda_pace is called before each launch; it returns
 * VPTQ_E_CANCELLED, or the status of earlier work. */
size_t vptq_cuda_piece(size_t n, double each, size_t unit);
vptq_status vptq_cuda_pace(vptq_dev *dev, double work, vptq_err *err);

/* Calls launch(first, count), which starts the kernel of `op` and returns its cudaError_t, for
 * n items in such pieces. */
template <class F>
static inline vptq_status vptq_cuda_in_pieces(vptq_dev *dev, const char *op, size_t n,
                                              double each, size_t unit, F launch, vptq_err *err)
{
    const size_t piece = vptq_cuda_piece(n, each, unit);
    for (size_t first = 0; first < n; first += piece) {
        const size_t count = min(piece, n - first);
        VPTQ_CHECK(vptq_cuda_pace(dev, each * (double)count, err));
        VPTQ_CHECK(vptq_cuda_check(launch(first, count), op, err));
    }
    return VPTQ_OK;
}

/* Copies from host to device memory. The host memory may change as soon as it returns. */
vptq_status vptq_cuda_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                             vptq_err *err);
vptq_status vptq_cuda_upload_new(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                 vptq_err *err);
void vptq_cuda_stage_close(vptq_dev *dev);

/* Copies from device to host memory and waits for the copy. */
vptq_status vptq_cuda_download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                               vptq_err *err);

/* The entries `measure` and `library_half` of the table. */
vptq_status vptq_cuda_library_half(vptq_dev *dev, const vptq_half_args *a, vptq_err *err);
vptq_status vptq_cuda_measure(vptq_dev *dev, vptq_work_fn *fn, void *arg, double *seconds,
                              vptq_err *err);

/* Adds n numbers in a fixed order, all in device memory. */
cudaError_t vptq_cuda_total(vptq_dev *dev, size_t n, const double *of, double *total);

/* Number of blocks of `size` that cover n. */
static inline unsigned vptq_cuda_blocks(size_t n, size_t size)
{
    return (unsigned)((n + size - 1) / size);
}

static __device__ inline float vptq_cuda_soft_cap_of(float x, float cap)
{
    return cap * tanhf(x / cap);
}

/* Rotates row `row` of args.x at `position` by a block of threads; args.n and pos0 are not
 * read. */
static __device__ inline void vptq_cuda_rope_row(const vptq_rope_args &args, size_t row,
                                                 size_t position)
{
    const unsigned head_dim = (unsigned)args.head_dim;
    const unsigned half = (unsigned)(args.rotated ? args.rotated : head_dim) / 2;
    const float *cosine = args.cos_table + position * half;
    const float *sine = args.sin_table + position * half;
    for (unsigned j = threadIdx.x; j < (unsigned)args.heads * half; j += blockDim.x) {
        const unsigned i = j % half;
        float *lo = args.x + row * args.ldx + j / half * head_dim + i, *hi = lo + half;
        const float a = *lo, b = *hi, c = cosine[i], s = args.back ? -sine[i] : sine[i];
        *lo = a * c - b * s;
        *hi = b * c + a * s;
    }
}

#define VPTQ_CUDA_OP(op) vptq_op_##op vptq_cuda_##op;
VPTQ_BACKEND_OPS(VPTQ_CUDA_OP)

#endif
