/* The emulator's device memory: a range of addresses that can be closed to the host while no
 * kernel runs. Block headers are kept outside of it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/emu/cuda_emu.h"

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(void const volatile *p, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile *p, size_t size);
}

enum { PAGE = 4096, GAP = 256 }; /* GAP: before and after a block, for AddressSanitizer */
static const size_t stretch = (size_t)1 << 36;

struct block {
    unsigned char *at;
    size_t bytes;
    block *next; /* in ascending order of addresses */
};

struct device_memory {
    pthread_mutex_t lock;
    unsigned char *base;
    size_t open; /* accessible bytes from base on */
    block *first;
    size_t limit, used, peak;
    unsigned inside; /* kernels and copies in progress */
    bool guarded;
};

static device_memory memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t rounded(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static void protect(bool closed)
{
    if (memory.open &&
        mprotect(memory.base, memory.open, closed ? PROT_NONE : PROT_READ | PROT_WRITE))
        abort();
}

void cuda_emu_enter(void)
{
    pthread_mutex_lock(&memory.lock);
    if (!memory.inside++ && memory.guarded)
        protect(false);
    pthread_mutex_unlock(&memory.lock);
}

void cuda_emu_leave(void)
{
    pthread_mutex_lock(&memory.lock);
    if (!--memory.inside && memory.guarded)
        protect(true);
    pthread_mutex_unlock(&memory.lock);
}

void cuda_emu_guard(bool on)
{
    pthread_mutex_lock(&memory.lock);
    if (on != memory.guarded && !memory.inside)
        protect(on);
    memory.guarded = on;
    pthread_mutex_unlock(&memory.lock);
}

bool cuda_emu_allows(const void *p)
{
    const unsigned char *at = static_cast<const unsigned char *>(p);
    return !p || !memory.guarded || (at >= memory.base && at < memory.base + stretch);
}

void cuda_emu_memory(size_t bytes)
{
    memory.limit = bytes;
}

size_t cuda_emu_memory_used(void)
{
    return memory.used;
}

size_t cuda_emu_memory_peak(void)
{
    return memory.peak;
}

/* Finds the first gap that is large enough; NULL if there is none. */
static block **find_gap(size_t needed, unsigned char **at)
{
    block **link = &memory.first;
    *at = memory.base;
    for (; *link; link = &(*link)->next) {
        if ((size_t)((*link)->at - GAP - *at) >= needed)
            return link;
        *at = (*link)->at - GAP + rounded((*link)->bytes + 2 * GAP, GAP);
    }
    return (size_t)(memory.base + stretch - *at) >= needed ? link : NULL;
}

/* Makes addresses up to `end` usable. */
static void open_up_to(const unsigned char *end)
{
    const size_t need = rounded((size_t)(end - memory.base), PAGE);
    if (need <= memory.open)
        return;
    if (mprotect(memory.base + memory.open, need - memory.open, PROT_READ | PROT_WRITE))
        abort();
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(memory.base + memory.open, need - memory.open);
    memory.open = need;
}

static cudaError_t allocate(size_t bytes, void **p)
{
    const size_t needed = rounded(bytes + 2 * GAP, GAP);
    if (!memory.base) {
        void *m =
            mmap(NULL, stretch, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED)
            return cudaErrorMemoryAllocation;
        memory.base = static_cast<unsigned char *>(m);
    }
    const size_t left = memory.used < memory.limit ? memory.limit - memory.used : 0;
    if (bytes > stretch || (memory.limit && bytes > left))
        return cudaErrorMemoryAllocation;
    unsigned char *at = NULL;
    block **link = find_gap(needed, &at);
    block *b = link ? static_cast<block *>(malloc(sizeof *b)) : NULL;
    if (!b)
        return cudaErrorMemoryAllocation;
    open_up_to(at + needed);
    *b = {at + GAP, bytes, *link};
    *link = b;
    memory.used += bytes;
    if (memory.used > memory.peak)
        memory.peak = memory.used;
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(b->at, bytes);
    memset(b->at, 0xff, bytes);
    *p = b->at;
    return cudaSuccess;
}

/* Within enter and leave, so the memory is open. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    bool skip = false;
    *p = NULL;
    const cudaError_t broken = cuda_emu_verdict(CUDA_EMU_ALLOC, false, &skip);
    if (broken)
        return cuda_emu_remember(broken);
    cuda_emu_enter();
    pthread_mutex_lock(&memory.lock);
    const cudaError_t e = allocate(bytes, p);
    pthread_mutex_unlock(&memory.lock);
    cuda_emu_leave();
    return cuda_emu_remember(e);
}

cudaError_t cudaFree(void *p)
{
    cudaError_t e = p ? cudaErrorInvalidValue : cudaSuccess;
    cuda_emu_drain_all(); /* freeing waits for the device */
    pthread_mutex_lock(&memory.lock);
    for (block **link = &memory.first; p && *link; link = &(*link)->next) {
        block *b = *link;
        if (b->at != p)
            continue;
        *link = b->next;
        memory.used -= b->bytes;
        if (__asan_poison_memory_region)
            __asan_poison_memory_region(b->at, b->bytes);
        if (b->bytes >= 4 * PAGE) { /* returns whole pages */
            unsigned char *from = memory.base + rounded((size_t)(b->at - memory.base), PAGE);
            (void)madvise(from, (b->bytes - PAGE) / PAGE * PAGE, MADV_DONTNEED);
        }
        free(b);
        e = cudaSuccess;
        break;
    }
    pthread_mutex_unlock(&memory.lock);
    return cuda_emu_remember(e ? e : cuda_emu_broken());
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    if (cuda_emu_broken())
        return cuda_emu_remember(cuda_emu_broken());
    *total = memory.limit ? memory.limit : stretch;
    *left = memory.used < *total ? *total - memory.used : 0;
    return cudaSuccess;
}

/* Checks that each side of the copy is in the memory that its kind says. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    bool skip = false;
    const cudaError_t broken =
        cuda_emu_verdict(CUDA_EMU_COPY, kind == cudaMemcpyDeviceToHost, &skip);
    if (broken || skip)
        return cuda_emu_remember(broken);
    if ((kind != cudaMemcpyDeviceToHost && !cuda_emu_allows(to)) ||
        (kind != cudaMemcpyHostToDevice && !cuda_emu_allows(from)))
        return cuda_emu_remember(cudaErrorInvalidValue);
    cuda_emu_count_bytes(kind, bytes);
    const cudaError_t e = cuda_emu_queue_copy(to, from, bytes, kind, stream);
    return cuda_emu_remember(e ? e : cuda_emu_broken());
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    bool skip = false;
    const cudaError_t broken = cuda_emu_verdict(CUDA_EMU_OTHER, false, &skip);
    if (broken || skip)
        return cuda_emu_remember(broken);
    if (!cuda_emu_allows(to))
        return cuda_emu_remember(cudaErrorInvalidValue);
    cuda_emu_queue_set(to, value, bytes, stream);
    return cudaSuccess;
}
