/* What kernels take from CUDA that is not plain C++: launches, shared memory, tensor core and
 * copy instructions.  Every instruction that exists only as PTX stands here, in a function of
 * its own, beside a body that does the same under the emulator (VPTQ_CUDA_EMU, where
 * tests/emu/cuda_emu.h is included before everything else).  For the .cu files alone.
 *
 * Rules for kernels, so that one source serves both: shared memory through port_shared and
 * port_shared_dynamic, launches through port_launch, no `__shared__`, no `<<< >>>`, no inline
 * PTX elsewhere.  nvcc is told not to fuse multiplications and additions (-fmad=false): where a
 * fused one is meant, fmaf says so, and both compilers give the same bits. */
#ifndef VPTQ_BACKEND_CUDA_PORT_H
#define VPTQ_BACKEND_CUDA_PORT_H

#include <stddef.h>
#include <stdint.h>

#ifndef VPTQ_CUDA_EMU
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

enum { PORT_LANES = 32 };
static const unsigned port_all = 0xffffffffu; /* the mask of a whole warp */

/* ---- launches and shared memory ---- */

enum { PORT_PLAIN_SHARED = 48 << 10 }; /* bytes that a launch gets without asking for more */

/* kernel(args...) on the grid; `dynamic` bytes of shared memory on top of what port_shared
 * takes.  The error of the launch itself; what a kernel does wrong shows when the stream is
 * synchronized. */
template <class... P, class... A>
static inline cudaError_t port_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                      size_t dynamic, cudaStream_t stream, A... args)
{
    if (dynamic > PORT_PLAIN_SHARED) {
        const cudaError_t e = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)dynamic);
        if (e)
            return e;
    }
#ifdef VPTQ_CUDA_EMU
    return cuda_emu_launch(kernel, grid, block, dynamic, stream, args...);
#else
    kernel<<<grid, block, dynamic, stream>>>(static_cast<P>(args)...);
    return cudaGetLastError();
#endif
}

/* The block's one object of type T, a plain struct; what is in it is not defined at first. */
template <class T> static __device__ inline T &port_shared(void)
{
#ifdef VPTQ_CUDA_EMU
    static const char key = 0;
    return *static_cast<T *>(cuda_emu_shared(&key, sizeof(T)));
#else
    __shared__ T object;
    return object;
#endif
}

/* The dynamic part, 16-byte aligned. */
static __device__ inline void *port_shared_dynamic(void)
{
#ifdef VPTQ_CUDA_EMU
    return cuda_emu_shared_dynamic();
#else
    extern __shared__ __align__(16) unsigned char port_dynamic[];
    return port_dynamic;
#endif
}

static __device__ inline unsigned port_lane(void)
{
    return threadIdx.x % PORT_LANES;
}
static __device__ inline unsigned port_warp(void)
{
    return threadIdx.x / PORT_LANES;
}

/* ---- tensor cores ---- */

#ifdef VPTQ_CUDA_EMU
/* The addresses of all lanes, for ldmatrix. */
static inline const cuda_emu_words *port_rows(const char *operation, const void *row,
                                              cuda_emu_site site)
{
    if (!cuda_emu_is_shared(row, 16) || reinterpret_cast<uintptr_t>(row) % 16)
        cuda_emu_fail(site, "ldmatrix of a row that is not 16 aligned bytes of shared memory");
    return cuda_emu_exchange(operation, port_all, cuda_emu_pack(row), false, site);
}
#endif

/* ldmatrix.x4: four 8 x 8 matrices of 16-bit elements from shared memory.  Lane l gives the
 * address of row l % 8 of matrix l / 8 (16 bytes, 16-byte aligned).  Then r[i] of lane l holds
 * of matrix i the elements (l / 4, 2 (l % 4)) and, in its high half, (l / 4, 2 (l % 4) + 1). */
static __device__ inline void port_ldmatrix(uint32_t r[4], const void *row)
{
#ifdef VPTQ_CUDA_EMU
    const cuda_emu_words *rows = port_rows("ldmatrix", row, {__FILE__, __LINE__});
    const unsigned lane = cuda_emu_lane();
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *from = cuda_emu_unpack<const uint16_t *>(rows[8 * i + lane / 4]);
        r[i] = from[lane % 4 * 2] | (uint32_t)from[lane % 4 * 2 + 1] << 16;
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

/* ldmatrix.x4.trans: the same of the transposed matrices: (2 (l % 4), l / 4) and
 * (2 (l % 4) + 1, l / 4). */
static __device__ inline void port_ldmatrix_trans(uint32_t r[4], const void *row)
{
#ifdef VPTQ_CUDA_EMU
    const cuda_emu_words *rows = port_rows("ldmatrix.trans", row, {__FILE__, __LINE__});
    const unsigned lane = cuda_emu_lane();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned first = 8 * i + lane % 4 * 2;
        const uint16_t *lo = cuda_emu_unpack<const uint16_t *>(rows[first]);
        const uint16_t *hi = cuda_emu_unpack<const uint16_t *>(rows[first + 1]);
        r[i] = lo[lane / 4] | (uint32_t)hi[lane / 4] << 16;
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#endif
}

#ifdef VPTQ_CUDA_EMU
static inline float port_f16_at(uint32_t pair, unsigned high)
{
    return __half2float(__ushort_as_half((unsigned short)(pair >> 16 * high)));
}
static inline float port_bf16_at(uint32_t pair, unsigned high)
{
    return __bfloat162float(__ushort_as_bfloat16((unsigned short)(pair >> 16 * high)));
}

/* d += A B from the fragments of all lanes; see port_mma_f16 for who holds what. */
template <class F>
static inline void port_mma(const char *operation, float d[4], const uint32_t a[4],
                            const uint32_t b[2], F at, cuda_emu_site site)
{
    const cuda_emu_words given = {{a[0], a[1], a[2], a[3], b[0], b[1]}};
    const cuda_emu_words *all = cuda_emu_exchange(operation, port_all, given, false, site);
    const unsigned lane = cuda_emu_lane();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const uint32_t pair_a = all[row % 8 * 4 + k % 8 / 2].word[row / 8 + k / 8 * 2];
            const uint32_t pair_b = all[column * 4 + k % 8 / 2].word[4 + k / 8];
            d[i] += at(pair_a, k % 2) * at(pair_b, k % 2);
        }
    }
}
#endif

/* mma.m16n8k16: d [16, 8] += A [16, 16] B [16, 8], elements f16, sums float.  Lane l, with
 * g = l / 4 and t = l % 4, holds pairs of neighbours, the first one in the low half:
 *     a[0] = A(g, 2t..)      a[1] = A(g + 8, 2t..)  a[2] = A(g, 2t + 8..)
 *     a[3] = A(g + 8, 2t + 8..)
 *     b[0] = B(2t.., g)      b[1] = B(2t + 8.., g)
 *     d[0], d[1] = d(g, 2t..)        d[2], d[3] = d(g + 8, 2t..) */
static __device__ inline void port_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef VPTQ_CUDA_EMU
    port_mma("mma.f16", d, a, b, port_f16_at, {__FILE__, __LINE__});
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* The same of bf16 elements. */
static __device__ inline void port_mma_bf16(float d[4], const uint32_t a[4],
                                            const uint32_t b[2])
{
#ifdef VPTQ_CUDA_EMU
    port_mma("mma.bf16", d, a, b, port_bf16_at, {__FILE__, __LINE__});
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* add.rn.f16x2: both halves of a pair of f16. */
static __device__ inline uint32_t port_add_f16x2(uint32_t a, uint32_t b)
{
#ifdef VPTQ_CUDA_EMU
    uint32_t sum = 0;
    for (unsigned i = 0; i < 2; i++) /* float has bits enough for both roundings to be one */
        sum |=
            (uint32_t)__half_as_ushort(__float2half_rn(port_f16_at(a, i) + port_f16_at(b, i)))
            << 16 * i;
    return sum;
#else
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
#endif
}

/* redux.sync.min.u32: the least value among the lanes of the mask. */
static __device__ inline unsigned port_redux_min(unsigned mask, unsigned value)
{
    return __reduce_min_sync(mask, value);
}

/* ---- copies that go on beside the threads ---- */

/* cp.async: 16 bytes from global to shared memory, both 16-byte aligned, by way of the second
 * cache only.  They are there once the group that port_copy_commit closes has been waited for,
 * and for other threads after a barrier behind that. */
static __device__ inline void port_copy_async(void *to, const void *from)
{
#ifdef VPTQ_CUDA_EMU
    cuda_emu_copy_async(to, from, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
#endif
}
static __device__ inline void port_copy_commit(void)
{
#ifdef VPTQ_CUDA_EMU
    cuda_emu_copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Until no more than the newest LEFT groups are on their way. */
template <unsigned LEFT> static __device__ inline void port_copy_wait(void)
{
#ifdef VPTQ_CUDA_EMU
    cuda_emu_copy_wait(LEFT);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

/* ---- one kernel behind another ---- */

/* griddepcontrol (Hopper and later; nothing before): lets the next kernel of the stream start
 * when all blocks have come here; waits until the one before has finished and its writes are
 * seen. */
static __device__ inline void port_grid_launch_next(void)
{
#if !defined(VPTQ_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ inline void port_grid_wait(void)
{
#if !defined(VPTQ_CUDA_EMU) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- sums in a fixed order ---- */

/* The sum over the whole warp, the same bits in every lane. */
template <class T> static __device__ inline T port_warp_sum(T value)
{
    for (int with = PORT_LANES / 2; with; with /= 2)
        value += __shfl_xor_sync(port_all, value, with);
    return value;
}

/* The sum over a block of up to 1024 threads (whole warps), the same bits in every thread;
 * every thread calls it. */
static __device__ inline double port_block_sum(double value)
{
    struct partial {
        double of_warp[PORT_LANES];
    };
    partial &p = port_shared<partial>();
    value = port_warp_sum(value);
    __syncthreads(); /* the sums of a call before have been read */
    if (port_lane() == 0)
        p.of_warp[port_warp()] = value;
    __syncthreads();
    const unsigned warps = blockDim.x / PORT_LANES;
    return port_warp_sum(port_lane() < warps ? p.of_warp[port_lane()] : 0.0);
}

#endif
