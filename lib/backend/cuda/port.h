/* Internal: what kernels use of CUDA beyond plain C++.  For .cu files only.
 *
 * port_gpu.h has launches, shared memory and every instruction that exists only as PTX.  A
 * build that defines VPTQ_CUDA_PORT includes that file in its place (tests/emu runs the kernels
 * on the host).  Both declare:
 *
 *     port_launch_work()              fused multiplications in one launch, at most
 *     port_start(kernel, grid, ...)   starts a kernel; called by port_launch
 *     port_start_early(kernel, ...)   the same for port_launch_early
 *     port_prefer_shared(kernel)
 *     port_grid_wait(), port_grid_release()    for kernels that port_launch_early starts, and
 *                                     for those before them
 *     port_shared<T>()                the block's one object of type T, a plain struct,
 *                                     uninitialized
 *     port_shared_dynamic()           the dynamic shared memory, 16-byte aligned
 *     port_ldmatrix, port_ldmatrix_trans, port_mma_f16, port_mma_f16_first,
 *     port_mma_s8, port_mma_f64, port_permute, port_add_f16x2, port_redux_min,
 *     port_prefetch, port_copy_async, port_copy_async_word, port_copy_commit, port_copy_wait
 *
 * Kernels therefore use no `__shared__`, no `<<< >>>` and no inline PTX.  nvcc must not fuse
 * multiplications and additions (-fmad=false): a kernel calls fmaf where it wants one rounding,
 * so that both compilers produce the same bits. */
#ifndef VPTQ_BACKEND_CUDA_PORT_H
#define VPTQ_BACKEND_CUDA_PORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef VPTQ_CUDA_PORT
#include VPTQ_CUDA_PORT
#else
#include "lib/backend/cuda/port_gpu.h"
#endif

enum { PORT_LANES = 32 };
static const unsigned port_all = 0xffffffffu; /* the mask of a whole warp */

/* Bytes of shared memory that a launch may use without the attribute, objects of port_shared
 * included; scripts/cuda_check.sh holds every kernel to PORT_MAX_STATIC bytes of objects. */
enum { PORT_DEFAULT_SHARED = 48 << 10, PORT_MAX_STATIC = 24 << 10 };

/* Lets launches of the kernel use that much dynamic shared memory.  The limit only rises, so
 * that launches in a recorded graph keep theirs.  Up to PORT_DEFAULT_SHARED it may be one that
 * was never set, which the objects of port_shared count against. */
template <class... P>
static inline cudaError_t port_allow_shared(void (*kernel)(P...), size_t dynamic)
{
    if (dynamic + PORT_MAX_STATIC <= PORT_DEFAULT_SHARED)
        return cudaSuccess;
    cudaFuncAttributes now = {};
    const cudaError_t e = cudaFuncGetAttributes(&now, kernel);
    const int limit = max(now.maxDynamicSharedSizeBytes, (int)dynamic);
    if (e || (limit == now.maxDynamicSharedSizeBytes && limit > PORT_DEFAULT_SHARED))
        return e;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
}

/* Starts kernel(args...) with `dynamic` bytes of shared memory in addition to the objects of
 * port_shared.  Returns errors of the launch itself; a fault inside the kernel is reported when
 * the stream is synchronized. */
template <class... P, class... A>
static inline cudaError_t port_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                      size_t dynamic, cudaStream_t stream, A... args)
{
    const cudaError_t e = port_allow_shared(kernel, dynamic);
    return e ? e : port_start(kernel, grid, block, dynamic, stream, static_cast<P>(args)...);
}

/* Like port_launch, but blocks may start before the previous kernel of the stream has ended: as
 * soon as all of its blocks have called port_grid_release or ended.  Before port_grid_wait such
 * a kernel must read nothing that earlier kernels write and write nothing that they touch.
 * Every kernel that is launched like this calls port_grid_wait in all threads that do, and at
 * least once in each block: the next kernel waits for this one only.  A device without such
 * launches (before compute capability 9.0) makes it an ordinary launch. */
template <class... P, class... A>
static inline cudaError_t port_launch_early(void (*kernel)(P...), dim3 grid, dim3 block,
                                            size_t dynamic, cudaStream_t stream, A... args)
{
    const cudaError_t e = port_allow_shared(kernel, dynamic);
    return e ? e
             : port_start_early(kernel, grid, block, dynamic, stream, static_cast<P>(args)...);
}

static __device__ inline unsigned port_lane(void)
{
    return threadIdx.x % PORT_LANES;
}
static __device__ inline unsigned port_warp(void)
{
    return threadIdx.x / PORT_LANES;
}

/* Two floats rounded to halves, the first in the lower bits: a word of an operand of
 * port_mma_f16. */
static __device__ inline uint32_t port_half_pair(float low, float high)
{
    return (uint32_t)__half_as_ushort(__float2half_rn(low)) |
           (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
}

/* ---- reductions in a fixed order ---- */

/* Sum over the warp, the same bits in every lane. */
template <class T> static __device__ inline T port_warp_sum(T value)
{
    for (int distance = PORT_LANES / 2; distance; distance /= 2)
        value += __shfl_xor_sync(port_all, value, distance);
    return value;
}

/* Maximum over the warp, in every lane. */
static __device__ inline float port_warp_max(float value)
{
    for (int distance = PORT_LANES / 2; distance; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(port_all, value, distance));
    return value;
}

/* Sum over a block of up to 1024 threads (whole warps), the same bits in every thread.  All
 * threads must call it. */
static __device__ inline double port_block_sum(double value)
{
    struct partial {
        double of_warp[PORT_LANES];
    };
    partial &p = port_shared<partial>();
    value = port_warp_sum(value);
    __syncthreads(); /* the sums of an earlier call have been read */
    if (port_lane() == 0)
        p.of_warp[port_warp()] = value;
    __syncthreads();
    const unsigned warps = blockDim.x / PORT_LANES;
    return port_warp_sum(port_lane() < warps ? p.of_warp[port_lane()] : 0.0);
}

/* Maximum over the block, in every thread; used like port_block_sum. */
static __device__ inline unsigned port_block_max(unsigned value)
{
    struct partial {
        unsigned of_warp[PORT_LANES];
    };
    partial &p = port_shared<partial>();
    value = __reduce_max_sync(port_all, value);
    __syncthreads(); /* the values of an earlier call have been read */
    if (port_lane() == 0)
        p.of_warp[port_warp()] = value;
    __syncthreads();
    const unsigned warps = blockDim.x / PORT_LANES;
    return __reduce_max_sync(port_all, port_lane() < warps ? p.of_warp[port_lane()] : 0u);
}

/* ---- products of tiles ---- */

static __device__ inline float port_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static __device__ inline double port_fma(double a, double b, double c)
{
    return fma(a, b, c);
}

/* sum[i][j] += a[l][row + i] * b[l][column + j] for l = 0..STEP-1 in order, with fused
 * multiplications; a thread's share of a product of two tiles in shared memory. */
template <unsigned STEP, unsigned ROWS, unsigned COLUMNS, unsigned LDA, unsigned LDB, class T>
static __device__ inline void port_multiply_tile(T sum[ROWS][COLUMNS], const T a[STEP][LDA],
                                                 const T b[STEP][LDB], unsigned row,
                                                 unsigned column)
{
#pragma unroll
    for (unsigned l = 0; l < STEP; l++)
#pragma unroll
        for (unsigned i = 0; i < ROWS; i++)
#pragma unroll
            for (unsigned j = 0; j < COLUMNS; j++)
                sum[i][j] = port_fma(a[l][row + i], b[l][column + j], sum[i][j]);
}

#endif
