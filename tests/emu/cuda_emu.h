/* Runs CUDA kernels as ordinary host code: the source that nvcc compiles, compiled by g++ with
 * `-include tests/emu/cuda_emu.h` and tests/emu/port.h as VPTQ_CUDA_PORT.
 *
 * Every thread of a block is a fiber, which runs until it reaches a barrier, a warp operation
 * or its end. Up to three blocks of a grid run in turns. The order of blocks, warps and lanes
 * depends on a seed (0: ascending), so that a kernel whose result depends on an order shows it.
 *
 * Launches and copies wait in queues. They are done as late as the streams allow, in an order
 * between streams that depends on the seed; those that are recorded, when the graph is
 * launched. A kernel that port_launch_early starts runs up to port_grid_wait before its
 * predecessor begins, and so sees nothing of it.
 *
 * Detected and reported with file and line (the device is lost, cudaGetErrorString has the
 * message):
 * - __syncthreads that some threads never reach (they returned, or wait elsewhere);
 * - warp operations whose mask lacks the caller, names a lane that returned, differs between
 * lanes, or that lanes reach in different places; values taken from a lane outside the mask;
 * - loads and stores, also ldmatrix and cp.async, at addresses that are not aligned;
 * - pointers to host memory among a kernel's arguments, with cuda_emu_guard;
 * - launches with too many threads or too much shared memory, or more than 48 KiB of it,
 * objects and dynamic part together, without the attribute;
 * - blocks that sleep until another one does something, if that one cannot start; blocks of an
 * early launch that end without port_grid_wait;
 * - pinned memory that the host changes before a copy has read it.
 *
 * Shared memory and new device memory are all ones (NaN, and an index far out of range); under
 * AddressSanitizer shared memory has bounds. cp.async copies arrive when they are waited for
 * and not before. Under ThreadSanitizer fibers are threads and only barriers order them
 * (__syncwarp within a warp; shuffles order nothing), so that a missing barrier is reported
 * with both lines.
 *
 * Tensor cores add like a chosen generation of GPUs (cuda_emu_mma_model).
 *
 * Not covered: time, occupancy, bank conflicts, coalescing; loops that wait for another block
 * without __nanosleep (they hang); kernels of different streams at the same time; the weak
 * memory model; clusters; float atomics, omitted on purpose; `__shared__` variables (use
 * port_shared).
 */
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

/* Storage only; arithmetic is done in float. */
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
    unsigned rank; /* index of the thread in its block */
} cuda_emu_place;
const cuda_emu_place &cuda_emu_here(void); /* of the running thread */

#define threadIdx (cuda_emu_here().thread)
#define blockIdx  (cuda_emu_here().block)
#define blockDim  (cuda_emu_here().block_size)
#define gridDim   (cuda_emu_here().grid_size)
enum { warpSize = 32 };

/* Source position of a call; default arguments record it. */
typedef struct cuda_emu_site {
    const char *file;
    int line;
} cuda_emu_site;
#define CUDA_EMU_SITE cuda_emu_site site = {__builtin_FILE(), __builtin_LINE()}

/* Ends the launch with an error message; called by running threads. */
[[noreturn]] void cuda_emu_fail(cuda_emu_site site, const char *what);

/* Whether a kernel is running. */
bool cuda_emu_is_running(void);

/* A barrier of the whole block. */
void cuda_emu_barrier(cuda_emu_site site);

/* Waits for the kernel before, in a kernel that started early. */
void cuda_emu_grid_wait(void);
/* Lets other threads run; for loops that wait for another block. */
void cuda_emu_sleep(void);

/* A warp operation: every lane of `mask` provides 32 bytes and receives those of all lanes,
 * valid until its next operation. `syncs`: orders memory among the lanes. `together`: called
 * once, with what the lanes provide, before any of them goes on. */
enum { CUDA_EMU_WORDS = 8, CUDA_EMU_LANES = 32 };
typedef struct cuda_emu_words {
    uint32_t word[CUDA_EMU_WORDS];
} cuda_emu_words;
const cuda_emu_words *cuda_emu_exchange(const char *operation, uint32_t mask,
                                        cuda_emu_words given, bool syncs, cuda_emu_site site,
                                        void (*together)(const cuda_emu_words *) = NULL);

/* Shared memory: one object per key and block, and the dynamic part. */
void *cuda_emu_shared(const void *key, size_t bytes, cuda_emu_site site);
void *cuda_emu_shared_dynamic(void);
bool cuda_emu_is_shared(const void *p, size_t bytes);

/* cp.async: copies are deferred until their group is waited for. */
void cuda_emu_copy_async(void *to, const void *from, size_t bytes, cuda_emu_site site);
void cuda_emu_copy_commit(void);
void cuda_emu_copy_wait(unsigned groups_left);

/* mma.m16n8k16 with f16 elements and float sums, in the layout of port_mma_f16. */
void cuda_emu_mma(float d[4], const uint32_t a[4], const uint32_t b[2], cuda_emu_site site);

inline void __syncthreads(CUDA_EMU_SITE)
{
    cuda_emu_barrier(site);
}
inline void __threadfence(void) {}
inline void __nanosleep(unsigned)
{
    cuda_emu_sleep();
}
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
/* Lanes of the mask with the same value. */
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

/* Checks the address here, so that an error names the line of the caller. */
template <class T> inline T cuda_emu_load(const T *p, cuda_emu_site site)
{
    if (reinterpret_cast<uintptr_t>(p) % alignof(T))
        cuda_emu_fail(site, "a load whose address is not aligned to its size");
    return *p;
}
template <class T> inline T __ldg(const T *p, CUDA_EMU_SITE)
{
    return cuda_emu_load(p, site);
}
template <class T> inline T __ldcs(const T *p, CUDA_EMU_SITE)
{
    return cuda_emu_load(p, site);
}
/* Integers only: sums of floats must have a fixed order. */
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
inline unsigned long long atomicMin(unsigned long long *p, unsigned long long value)
{
    unsigned long long old = __atomic_load_n(p, __ATOMIC_RELAXED);
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
inline long long __double_as_longlong(double d)
{
    long long bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned u)
{
    return cuda_emu_unpack<float>(cuda_emu_pack(u));
}
/* To nearest, halves to even; saturating, NaN gives 0. */
inline int __float2int_rn(float x)
{
    return x >= 2147483648.0f    ? INT32_MAX
           : x >= -2147483648.0f ? (int)lrintf(x)
           : x < 0               ? INT32_MIN
                                 : 0;
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

/* ---- host functions ---- */

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
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureIsolation = 905
} cudaError_t;
typedef struct cuda_emu_stream *cudaStream_t;
typedef struct cuda_emu_event *cudaEvent_t;
typedef struct cuda_emu_graph *cudaGraph_t;
typedef struct cuda_emu_graph_exec *cudaGraphExec_t;
enum {
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventDisableTiming = 2,
    cudaEventRecordExternal = 1,
    cudaHostAllocDefault = 0
};
typedef enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 } cudaStreamCaptureMode;
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
    int major, minor, multiProcessorCount, l2CacheSize;
} cudaDeviceProp;

const char *cudaGetErrorString(cudaError_t e); /* for a failed launch, its message */
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
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t ready, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
typedef struct cudaFuncAttributes {
    int maxDynamicSharedSizeBytes;
} cudaFuncAttributes;
/* The value of the attribute, or `otherwise` if it was never set. */
int cuda_emu_attribute_set(const void *kernel, int otherwise);
cudaError_t cuda_emu_attribute(const void *kernel, cudaFuncAttribute a, int value);
template <class K>
inline cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute a, int value)
{
    return cuda_emu_attribute(reinterpret_cast<const void *>(kernel), a, value);
}
/* Before an attribute is set a GPU answers 48 KiB less the static part, which is not known
 * here: at most half. */
template <class K> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, K *kernel)
{
    a->maxDynamicSharedSizeBytes =
        cuda_emu_attribute_set(reinterpret_cast<const void *>(kernel), 24 << 10);
    return cudaSuccess;
}

enum { CUDA_EMU_SHARED_BYTES = 227 << 10 }; /* of a block, static and dynamic */

/* Shared memory that a launch of the kernel may use: of the dynamic part, and in all. */
size_t cuda_emu_dynamic_limit(const void *kernel);
size_t cuda_emu_shared_limit(const void *kernel);
/* Why the last launch failed. */
const char *cuda_emu_report(void);
/* Records the error for cudaGetLastError. */
cudaError_t cuda_emu_remember(cudaError_t e);
/* Returns the error of a call before it does anything: the device is broken, or the call is
 * chosen to fail (cuda_emu_break). A call that waits for the device is the first to report a
 * dead kernel. *skip: the call succeeds without doing anything. */
typedef enum cuda_emu_call {
    CUDA_EMU_LAUNCH,
    CUDA_EMU_COPY,
    CUDA_EMU_ALLOC,
    CUDA_EMU_PINNED,
    CUDA_EMU_WAIT,
    CUDA_EMU_OTHER
} cuda_emu_call;
cudaError_t cuda_emu_verdict(cuda_emu_call call, bool waits, bool *skip);
/* Counts the bytes of a copy between host and device. */
void cuda_emu_count_bytes(cudaMemcpyKind kind, size_t bytes);
/* Breaks the device for good with this error; whether it is broken, reported or not. */
void cuda_emu_lose(cudaError_t e);
bool cuda_emu_lost(void);
/* Completes the pending work of one stream or of all. */
void cuda_emu_drain(cudaStream_t stream);
void cuda_emu_drain_all(void);
/* Queues work. The host may change the source of a copy at once unless it is pinned. A copy to
 * memory of the host that is not pinned is completed. */
typedef struct cuda_emu_kernel {
    void (*body)(void *);
    void *arg; /* from malloc; the queue frees it */
    size_t arg_bytes;
    const void *kernel;
    dim3 grid, block;
    size_t dynamic;
    bool early; /* may start before the kernel before it has ended */
} cuda_emu_kernel;
cudaError_t cuda_emu_queue_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                cudaStream_t stream);
void cuda_emu_queue_set(void *to, int value, size_t bytes, cudaStream_t stream);
/* Whether a graph is being recorded from the stream; then waiting for it or for another one,
 * recording an event that is not external (which a GPU allows), or copying to or from pageable
 * memory, spoils the recording. */
bool cuda_emu_refuses(cudaStream_t stream);
/* The limit set by cuda_emu_work, or 0. */
double cuda_emu_work_limit(void);
/* The error of a broken device, or cudaSuccess. */
cudaError_t cuda_emu_broken(void);
/* Opens device memory to the host; calls nest (cuda_emu_guard). */
void cuda_emu_enter(void);
void cuda_emu_leave(void);
/* Whether p may be passed to the device. */
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

/* A copy from malloc; never NULL. */
void *cuda_emu_copy_of(const void *p, size_t bytes);

/* Whether CUDA would accept the launch. */
bool cuda_emu_launchable(const cuda_emu_kernel *k);
/* Runs a kernel, after the part of the next one that does not wait for it if that is not NULL;
 * the next call must be for that one. Returns false if a kernel failed. */
bool cuda_emu_run(const cuda_emu_kernel *k, const cuda_emu_kernel *next);
/* True once in so many calls, by the seed; with seed 0 never. */
bool cuda_emu_chance(unsigned one_in);
/* Checks a launch and queues it; takes over k->arg. */
cudaError_t cuda_emu_start(const cuda_emu_kernel *k, cudaStream_t stream);

template <class... P, class... A>
inline cudaError_t cuda_emu_launch(bool early, void (*kernel)(P...), dim3 grid, dim3 block,
                                   size_t dynamic, cudaStream_t stream, A... args)
{
    if (!(cuda_emu_allows_argument(args) && ...))
        return cuda_emu_remember(cudaErrorInvalidValue);
    auto call = [=]() { kernel(static_cast<P>(args)...); };
    static_assert(__is_trivially_copyable(decltype(call)), "arguments are plain values");
    void *kept = cuda_emu_copy_of(&call, sizeof call);
    const cuda_emu_kernel k = {[](void *f) { (*static_cast<decltype(call) *>(f))(); },
                               kept,
                               sizeof call,
                               reinterpret_cast<const void *>(kernel),
                               grid,
                               block,
                               dynamic,
                               early};
    return cuda_emu_start(&k, stream);
}

#endif
