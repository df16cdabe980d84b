/* CUDA kernels as ordinary host code: the same source that nvcc compiles, compiled by g++ with
 * `-include tests/emu/cuda_emu.h -DVPTQ_CUDA_EMU` and run without a GPU.
 *
 * Every thread of a block is a fiber; a fiber runs until it reaches a barrier, a warp operation
 * or its end.  Blocks run one after another.  The order of blocks, of warps and of lanes
 * follows from a seed (0: ascending), so that a kernel whose result depends on an order shows
 * it.
 *
 * Covered, and refused with file and line (the launch fails, cudaGetErrorString has the
 * sentence):
 *   - __syncthreads that some threads never reach (they left, or wait elsewhere);
 *   - warp operations whose mask lacks the caller, names a lane that left, is not the same in
 *     all its lanes, or that the lanes reach in different places; a value taken from a lane
 *     outside the mask;
 *   - pointers to host memory among a kernel's arguments, where cuda_emu_guard asks for it;
 *   - launches with too many threads or too much shared memory, and more than 48 KiB of dynamic
 *     shared memory without the attribute.
 * Shared memory and what cudaMalloc gives are all ones (NaN, and an index far out of range)
 * before each block; under AddressSanitizer shared memory has its ends.  A copy of cp.async
 * arrives when it is waited for and not before.  Under ThreadSanitizer fibers are threads and a
 * barrier is what orders them (__syncwarp for a warp; shuffles order nothing), so that it names
 * both lines of a missing barrier.
 *
 * Not covered: time, occupancy, bank conflicts, coalescing; blocks that wait for each other;
 * races between blocks (only through their order); the weak memory model; alignment of vector
 * accesses; streams beyond copies of pinned memory, which are done as late as they may be, and
 * fail where that memory was changed meanwhile (everything else is done when a call returns, so
 * that a copy that should wait for a kernel never comes too early); clusters; float atomics,
 * which are left out on purpose; `__shared__` variables (port_shared of cuda_port.h stands for
 * them). Tensor core products are summed in float in ascending order, where the hardware has an
 * order and a rounding of its own. */
#ifndef VPTQ_TESTS_EMU_CUDA_EMU_H
#define VPTQ_TESTS_EMU_CUDA_EMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/emu/emu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* ---- types ---- */

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(8) uint2
{
    unsigned x, y;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* Storage only: arithmetic is done in float. */
struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
__half __float2half_rn(float f);
float __half2float(__half h);
__nv_bfloat16 __float2bfloat16_rn(float f);
float __bfloat162float(__nv_bfloat16 b);
inline unsigned short __half_as_ushort(__half h)
{
    return h.bits;
}
inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b)
{
    return b.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return {bits};
}

/* ---- the emulator ---- */

typedef struct cuda_emu_place {
    uint3 thread, block;
    dim3 block_size, grid_size;
    unsigned rank; /* of the thread in its block */
} cuda_emu_place;
const cuda_emu_place &cuda_emu_here(void); /* of the running thread */

#define threadIdx (cuda_emu_here().thread)
#define blockIdx  (cuda_emu_here().block)
#define blockDim  (cuda_emu_here().block_size)
#define gridDim   (cuda_emu_here().grid_size)
enum { warpSize = 32 };

/* Where a call stands; default arguments take it at the call. */
typedef struct cuda_emu_site {
    const char *file;
    int line;
} cuda_emu_site;
#define CUDA_EMU_SITE cuda_emu_site site = {__builtin_FILE(), __builtin_LINE()}

/* Ends the launch with a sentence; called by running threads. */
[[noreturn]] void cuda_emu_fail(cuda_emu_site site, const char *what);

/* One barrier of the whole block. */
void cuda_emu_barrier(cuda_emu_site site);

/* A warp operation: every lane of `mask` gives 32 bytes and gets those of all.  What comes back
 * is valid until the lane's next operation.  `syncs`: orders memory among the lanes. */
enum { CUDA_EMU_WORDS = 8, CUDA_EMU_LANES = 32 };
typedef struct cuda_emu_words {
    uint32_t word[CUDA_EMU_WORDS];
} cuda_emu_words;
const cuda_emu_words *cuda_emu_exchange(const char *operation, uint32_t mask,
                                        cuda_emu_words given, bool syncs, cuda_emu_site site);

/* Shared memory: an object per key and block; the dynamic part of the launch. */
void *cuda_emu_shared(const void *key, size_t bytes);
void *cuda_emu_shared_dynamic(void);
bool cuda_emu_is_shared(const void *p, size_t bytes);

/* cp.async: copies are kept back until their group is waited for. */
void cuda_emu_copy_async(void *to, const void *from, size_t bytes);
void cuda_emu_copy_commit(void);
void cuda_emu_copy_wait(unsigned groups_left);

inline void __syncthreads(CUDA_EMU_SITE)
{
    cuda_emu_barrier(site);
}
inline void __threadfence(void) {}
inline void __syncwarp(uint32_t mask = 0xffffffffu, CUDA_EMU_SITE)
{
    (void)cuda_emu_exchange("__syncwarp", mask, cuda_emu_words{}, true, site);
}

/* ---- warp operations ---- */

template <class T> inline cuda_emu_words cuda_emu_pack(T value)
{
    static_assert(sizeof(T) <= sizeof(cuda_emu_words), "values of at most 32 bytes");
    cuda_emu_words w = {};
    memcpy(&w, &value, sizeof value);
    return w;
}
template <class T> inline T cuda_emu_unpack(const cuda_emu_words &w)
{
    T value;
    memcpy(&value, &w, sizeof value);
    return value;
}

template <class T>
inline T cuda_emu_shuffle(const char *operation, uint32_t mask, T value, unsigned from,
                          cuda_emu_site site)
{
    const cuda_emu_words *all =
        cuda_emu_exchange(operation, mask, cuda_emu_pack(value), false, site);
    if (!(mask >> from & 1))
        cuda_emu_fail(site, "a shuffle reads a lane that is not in its mask");
    return cuda_emu_unpack<T>(all[from]);
}
inline unsigned cuda_emu_lane(void)
{
    return cuda_emu_here().rank % CUDA_EMU_LANES;
}

template <class T>
inline T __shfl_sync(uint32_t mask, T value, int from, int width = 32, CUDA_EMU_SITE)
{
    const unsigned w = (unsigned)width, base = cuda_emu_lane() & ~(w - 1);
    return cuda_emu_shuffle("__shfl_sync", mask, value, base + ((unsigned)from & (w - 1)),
                            site);
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, int with, int width = 32, CUDA_EMU_SITE)
{
    const unsigned w = (unsigned)width, lane = cuda_emu_lane();
    const unsigned from = lane ^ (unsigned)with;
    return cuda_emu_shuffle("__shfl_xor_sync", mask, value, from / w > lane / w ? lane : from,
                            site);
}
template <class T>
inline T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32, CUDA_EMU_SITE)
{
    const unsigned w = (unsigned)width, lane = cuda_emu_lane();
    return cuda_emu_shuffle("__shfl_down_sync", mask, value,
                            lane % w + by < w ? lane + by : lane, site);
}
template <class T>
inline T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32, CUDA_EMU_SITE)
{
    const unsigned w = (unsigned)width, lane = cuda_emu_lane();
    return cuda_emu_shuffle("__shfl_up_sync", mask, value, lane % w >= by ? lane - by : lane,
                            site);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, CUDA_EMU_SITE)
{
    const cuda_emu_words *all = cuda_emu_exchange(
        "__ballot_sync", mask, cuda_emu_pack<uint32_t>(predicate != 0), false, site);
    uint32_t bits = 0;
    for (unsigned l = 0; l < CUDA_EMU_LANES; l++)
        bits |= (mask >> l & all[l].word[0] & 1) << l;
    return bits;
}
inline int __any_sync(uint32_t mask, int predicate, CUDA_EMU_SITE)
{
    return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(uint32_t mask, int predicate, CUDA_EMU_SITE)
{
    return __ballot_sync(mask, predicate, site) == mask;
}
/* The lanes of the mask that gave the same value. */
template <class T> inline uint32_t __match_any_sync(uint32_t mask, T value, CUDA_EMU_SITE)
{
    const cuda_emu_words *all =
        cuda_emu_exchange("__match_any_sync", mask, cuda_emu_pack(value), false, site);
    uint32_t bits = 0;
    for (unsigned l = 0; l < CUDA_EMU_LANES; l++)
        if (mask >> l & 1)
            bits |= (uint32_t)(cuda_emu_unpack<T>(all[l]) == value) << l;
    return bits;
}

template <class T, class F>
inline T cuda_emu_reduce(const char *operation, uint32_t mask, T value, F fold,
                         cuda_emu_site site)
{
    const cuda_emu_words *all =
        cuda_emu_exchange(operation, mask, cuda_emu_pack(value), false, site);
    T result = value;
    bool first = true;
    for (unsigned l = 0; l < CUDA_EMU_LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        const T other = cuda_emu_unpack<T>(all[l]);
        result = first ? other : fold(result, other);
        first = false;
    }
    return result;
}
template <class T> inline T __reduce_min_sync(uint32_t mask, T value, CUDA_EMU_SITE)
{
    return cuda_emu_reduce(
        "__reduce_min_sync", mask, value, [](T a, T b) { return a < b ? a : b; }, site);
}
template <class T> inline T __reduce_max_sync(uint32_t mask, T value, CUDA_EMU_SITE)
{
    return cuda_emu_reduce(
        "__reduce_max_sync", mask, value, [](T a, T b) { return a > b ? a : b; }, site);
}
template <class T> inline T __reduce_add_sync(uint32_t mask, T value, CUDA_EMU_SITE)
{
    return cuda_emu_reduce(
        "__reduce_add_sync", mask, value, [](T a, T b) { return (T)(a + b); }, site);
}

/* ---- single instructions ---- */

template <class T> inline T __ldg(const T *p)
{
    return *p;
}
template <class T> inline T __ldcs(const T *p)
{
    return *p;
}
/* Of integers only: sums of floats must have an order. */
inline unsigned atomicAdd(unsigned *p, unsigned value)
{
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
inline int atomicAdd(int *p, int value)
{
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long value)
{
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
inline unsigned atomicOr(unsigned *p, unsigned value)
{
    return __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}
inline unsigned atomicCAS(unsigned *p, unsigned expected, unsigned value)
{
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
inline unsigned atomicMin(unsigned *p, unsigned value)
{
    unsigned old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED))
        ;
    return old;
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline unsigned __float_as_uint(float f)
{
    return cuda_emu_pack(f).word[0];
}
inline float __uint_as_float(unsigned u)
{
    return cuda_emu_unpack<float>(cuda_emu_pack(u));
}
inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
template <class T> inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> inline T max(T a, T b)
{
    return a < b ? b : a;
}

/* ---- the host's side ---- */

typedef enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorECCUncorrectable = 214,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorAssert = 710,
    cudaErrorLaunchFailure = 719
} cudaError_t;
typedef struct cuda_emu_stream *cudaStream_t;
typedef struct cuda_emu_event *cudaEvent_t;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
} cudaMemcpyKind;
typedef enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8
} cudaFuncAttribute;
typedef struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount;
} cudaDeviceProp;

const char *cudaGetErrorString(cudaError_t e); /* of a failed launch: what it failed of */
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *left, size_t *total);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cuda_emu_attribute(const void *kernel, cudaFuncAttribute a, int value);
template <class K>
inline cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute a, int value)
{
    return cuda_emu_attribute(reinterpret_cast<const void *>(kernel), a, value);
}

/* What the last cudaGetLastError will say. */
cudaError_t cuda_emu_remember(cudaError_t e);
/* What a call answers before it does anything: that the device is broken, or that it is the one
 * that is to fail (cuda_emu_break).  A call that waits for the device is the first to learn
 * that a kernel has died; *skip: the call says that all is well and does nothing. */
typedef enum cuda_emu_call {
    CUDA_EMU_LAUNCH,
    CUDA_EMU_COPY,
    CUDA_EMU_ALLOC,
    CUDA_EMU_PINNED,
    CUDA_EMU_WAIT,
    CUDA_EMU_OTHER
} cuda_emu_call;
cudaError_t cuda_emu_verdict(cuda_emu_call call, bool waits, bool *skip);
/* Loses the device for good, with this error; whether it is lost, known or not. */
void cuda_emu_lose(cudaError_t e);
bool cuda_emu_lost(void);
/* What the stream, or every stream, still holds is done. */
void cuda_emu_drain(cudaStream_t stream);
void cuda_emu_drain_all(void);
/* A copy that may be done later was taken into the stream; else the stream is drained. */
bool cuda_emu_later(void *to, const void *from, size_t bytes, cudaStream_t stream);
/* What cuda_emu_work says, or 0. */
double cuda_emu_work_limit(void);
/* cudaErrorIllegalAddress and others that no call gets by; cudaSuccess. */
cudaError_t cuda_emu_broken(void);
/* Device memory is open from the first one on until the last has left (cuda_emu_guard). */
void cuda_emu_enter(void);
void cuda_emu_leave(void);
/* Whether the device may have the pointer. */
bool cuda_emu_allows(const void *p);
template <class T> inline bool cuda_emu_allows_argument(const T &)
{
    return true;
}
template <class T> inline bool cuda_emu_allows_argument(T *const &p)
{
    return cuda_emu_allows(p);
}

bool cuda_emu_has_libraries(void);

/* Runs body(arg) once for every thread of the grid. */
cudaError_t cuda_emu_run(void (*body)(void *), void *arg, const void *kernel, dim3 grid,
                         dim3 block, size_t dynamic);
template <class... P, class... A>
inline cudaError_t cuda_emu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic,
                                   cudaStream_t stream, A... args)
{
    if (!(cuda_emu_allows_argument(args) && ...))
        return cuda_emu_remember(cudaErrorInvalidValue);
    cuda_emu_drain(stream);
    auto call = [=]() { kernel(static_cast<P>(args)...); };
    return cuda_emu_run([](void *f) { (*static_cast<decltype(call) *>(f))(); }, &call,
                        reinterpret_cast<const void *>(kernel), grid, block, dynamic);
}

#endif
