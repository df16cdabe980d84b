/* Internal: the device-specific part of port.h for a GPU.  Include port.h instead. */
#ifndef VPTQ_BACKEND_CUDA_PORT_GPU_H
#define VPTQ_BACKEND_CUDA_PORT_GPU_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* docs/gpu.md derives the number. */
static inline double port_launch_work(void)
{
    return 1e12;
}

/* ---- launches and shared memory ---- */

template <class... P>
static inline cudaError_t port_start(void (*kernel)(P...), dim3 grid, dim3 block,
                                     size_t dynamic, cudaStream_t stream, P... args)
{
    kernel<<<grid, block, dynamic, stream>>>(args...);
    return cudaGetLastError();
}

template <class... P>
static inline cudaError_t port_start_early(void (*kernel)(P...), dim3 grid, dim3 block,
                                           size_t dynamic, cudaStream_t stream, P... args)
{
    int device = 0, major = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (!e)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e)
        return e;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = dynamic;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = major >= 9;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* Gives shared memory as much of an SM as it can get while the kernel runs.  An SM has to be
 * idle to change its division, so a small kernel next to one that needs all of it calls this.
 */
template <class... P> static inline cudaError_t port_prefer_shared(void (*kernel)(P...))
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

/* griddepcontrol.wait: returns once all earlier kernels of the stream have ended and their
 * writes are visible.  Does nothing in an ordinary launch. */
static __device__ inline void port_grid_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* griddepcontrol.launch_dependents: lets the next kernel start, if port_launch_early launched
 * it, once every block of this one has called this or ended.  Orders no memory. */
static __device__ inline void port_grid_release(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class T> static __device__ inline T &port_shared(void)
{
    __shared__ T object;
    return object;
}

static __device__ inline void *port_shared_dynamic(void)
{
    extern __shared__ __align__(16) unsigned char port_dynamic[];
    return port_dynamic;
}

/* ---- tensor cores ---- */

/* ldmatrix.x4.trans: loads four 8 x 8 matrices of 16-bit elements from shared memory,
 * transposed.  Lane l passes the address of row l % 8 of matrix l / 8 (16 bytes, aligned).  On
 * return, r[i] of lane l holds elements (2 (l % 4), l / 4) of matrix i and, in its high half,
 * (2 (l % 4) + 1, l / 4). */
static __device__ inline void port_ldmatrix_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same without .trans: r[i] of lane l holds elements (l / 4, 2 (l % 4)) of matrix i and, in
 * its high half, (l / 4, 2 (l % 4) + 1). */
static __device__ inline void port_ldmatrix(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

/* mma.m16n8k16: d [16, 8] += A [16, 16] B [16, 8] with f16 elements and float sums.  Lane l,
 * with g = l / 4 and t = l % 4, holds pairs of neighbours, the first in the low half:
 *     a[0] = A(g, 2t..)      a[1] = A(g + 8, 2t..)  a[2] = A(g, 2t + 8..)
 *     a[3] = A(g + 8, 2t + 8..)
 *     b[0] = B(2t.., g)      b[1] = B(2t + 8.., g)
 *     d[0], d[1] = d(g, 2t..)        d[2], d[3] = d(g + 8, 2t..) */
static __device__ inline void port_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* d = A B. */
static __device__ inline void port_mma_f16_first(float d[4], const uint32_t a[4],
                                                 const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

/* mma.m16n8k32: d [16, 8] += A [16, 32] B [32, 8] with signed bytes and exact 32-bit sums. Lane
 * l, with g = l / 4 and t = l % 4, holds groups of four neighbours, the first in the low byte:
 *     a[0] = A(g, 4t..)      a[1] = A(g + 8, 4t..)  a[2] = A(g, 4t + 16..)
 *     a[3] = A(g + 8, 4t + 16..)
 *     b[0] = B(4t.., g)      b[1] = B(4t + 16.., g)
 *     d[0], d[1] = d(g, 2t..)        d[2], d[3] = d(g + 8, 2t..) */
static __device__ inline void port_mma_s8(int32_t d[4], const uint32_t a[4],
                                          const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* mma.m8n8k4: d [8, 8] += A [8, 4] B [4, 8] in double, with fused multiplications.  Lane l,
 * with g = l / 4 and t = l % 4, holds a = A(g, t), b = B(t, g) and d[0], d[1] = d(g, 2t..). */
static __device__ inline void port_mma_f64(double d[2], double a, double b)
{
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(d[0]), "+d"(d[1])
        : "d"(a), "d"(b));
}

/* Byte i of the result is byte (select >> 4 i) % 8 of the eight of a (0..3) and b (4..7). */
static __device__ inline uint32_t port_permute(uint32_t a, uint32_t b, uint32_t select)
{
    return __byte_perm(a, b, select);
}

/* add.rn.f16x2: adds both halves of a pair of f16. */
static __device__ inline uint32_t port_add_f16x2(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

/* redux.sync.min.u32: the smallest value among the lanes of the mask. */
static __device__ inline unsigned port_redux_min(unsigned mask, unsigned value)
{
    return __reduce_min_sync(mask, value);
}

/* prefetch.global.L2: asks for the line of 128 bytes with this address, which may be written
 * by an earlier kernel: nothing is read. */
static __device__ inline void port_prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

/* ---- asynchronous copies ---- */

/* cp.async: copies 16 bytes from global to shared memory through L2, both 16-byte aligned.  The
 * calling thread may read them after waiting for the group that port_copy_commit closes; other
 * threads after a barrier that follows the wait. */
static __device__ inline void port_copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
/* cp.async of 4 bytes through L1, both 4-byte aligned; otherwise like port_copy_async. */
static __device__ inline void port_copy_async_word(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
static __device__ inline void port_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most the newest LEFT groups are in flight. */
template <unsigned LEFT> static __device__ inline void port_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
