/* The emulator's run time: fibers, their scheduler and shared memory. */
#include "tests/emu/cuda_emu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

extern "C" {
/* Sanitizer interfaces, if the program has them. */
__attribute__((weak)) void *__tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void *fiber);
__attribute__((weak)) void *__tsan_get_current_fiber(void);
__attribute__((weak)) void __tsan_switch_to_fiber(void *fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void *address);
__attribute__((weak)) void __tsan_release(void *address);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void **save, const void *bottom,
                                                          size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void *save, const void **bottom,
                                                           size_t *size);
__attribute__((weak)) void __asan_poison_memory_region(void const volatile *p, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile *p, size_t size);
}

enum {
    STACK = 256 << 10,
    GUARD = 4 << 10,
    MAX_THREADS = 1024,
    LANES = CUDA_EMU_LANES,
    SHARED_BYTES = CUDA_EMU_SHARED_BYTES,
    SHARED_GAP = 64, /* between objects, for AddressSanitizer */
    SHARED_OBJECTS = 32,
    COPIES = 256, /* cp.async copies in flight per thread */
    TSAN_NO_SYNC = 1
};

enum fiber_state { READY, AT_BARRIER, AT_WARP, LEFT };

/* The result of a warp operation; lives until the last lane has read it. */
struct record {
    unsigned readers;
    cuda_emu_words all[LANES];
    char *order[LANES]; /* addresses that lanes have released, for ThreadSanitizer */
};

struct async_copy {
    void *to;
    const void *from;
    size_t bytes;
    unsigned group;
};

struct fiber {
    cuda_emu_place place;
    fiber_state state;
    cuda_emu_site site;
    const char *operation;
    uint32_t mask;
    cuda_emu_words given;
    void (*together)(const cuda_emu_words *);
    record *got;
    char order[2]; /* released alternately, for ThreadSanitizer */
    unsigned operations;
    async_copy copies[COPIES];
    unsigned copy_count, group;
    bool started;
    void *sp; /* of the suspended fiber */
    ucontext_t context;
    unsigned char *memory; /* guard, then stack */
    void *tsan, *asan;
};

struct warp {
    record records[LANES + 1];
};

struct shared_object {
    const void *key;
    size_t at;
};

struct emulator {
    pthread_mutex_t lock;
    uint64_t seed, counter;
    fiber *fibers[MAX_THREADS];
    warp warps[MAX_THREADS / LANES];
    fiber *running;
    unsigned count; /* threads per block */
    void (*body)(void *);
    void *arg;
    unsigned barriers;
    char order[2], done; /* addresses for ThreadSanitizer */
    unsigned char *shared;
    size_t dynamic, shared_used;
    shared_object objects[SHARED_OBJECTS];
    unsigned object_count;
    bool failed;
    char report[512];
    void *scheduler_sp, *scheduler_tsan, *scheduler_asan;
    ucontext_t scheduler_context;
    const void *scheduler_bottom;
    size_t scheduler_size;
};

static emulator emu = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- switching ---- */

#if defined(__x86_64__)
/* Saves the callee-saved registers on the stack and switches stacks. */
extern "C" void cuda_emu_switch(void **save, void *load);
__asm__(".text\n.globl cuda_emu_switch\n.type cuda_emu_switch,@function\ncuda_emu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size cuda_emu_switch,.-cuda_emu_switch\n");
static void prepare(fiber *f, void (*entry)(void))
{
    void **top = reinterpret_cast<void **>(f->memory + GUARD + STACK);
    *--top = NULL; /* aligned as after a call */
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
}
static void switch_to(fiber *f)
{
    cuda_emu_switch(&emu.scheduler_sp, f->sp);
}
static void switch_back(fiber *f)
{
    cuda_emu_switch(&f->sp, emu.scheduler_sp);
}
#else
static void prepare(fiber *f, void (*entry)(void))
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->memory + GUARD;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, entry, 0);
}
static void switch_to(fiber *f)
{
    swapcontext(&emu.scheduler_context, &f->context);
}
static void switch_back(fiber *f)
{
    swapcontext(&f->context, &emu.scheduler_context);
}
#endif

/* Switches from a thread to the scheduler; returns when the thread is resumed. */
static void stop(fiber *f)
{
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&f->asan, emu.scheduler_bottom, emu.scheduler_size);
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(emu.scheduler_tsan, TSAN_NO_SYNC);
    switch_back(f);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(f->asan, NULL, NULL);
}

/* Resumes a thread. Its first run is ordered after everything that the scheduler has done;
 * later only barriers order it. */
static void resume(fiber *f)
{
    emu.running = f;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&emu.scheduler_asan, f->memory + GUARD, STACK);
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(f->tsan, f->started ? TSAN_NO_SYNC : 0);
    f->started = true;
    switch_to(f);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(emu.scheduler_asan, NULL, NULL);
    emu.running = NULL;
}

static void fiber_main(void)
{
    fiber *f = emu.running;
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(NULL, &emu.scheduler_bottom, &emu.scheduler_size);
    for (;;) {
        emu.body(emu.arg);
        if (__tsan_release)
            __tsan_release(&emu.done);
        f->state = LEFT;
        stop(f);
    }
}

static fiber *fiber_new(void)
{
    fiber *f = static_cast<fiber *>(calloc(1, sizeof *f));
    void *m = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!f || m == MAP_FAILED || mprotect(m, GUARD, PROT_NONE)) {
        perror("cuda_emu: no memory for a fiber");
        abort();
    }
    f->memory = static_cast<unsigned char *>(m);
    if (__tsan_create_fiber)
        f->tsan = __tsan_create_fiber(0);
    prepare(f, fiber_main);
    return f;
}

/* Frees all fibers, because threads of a failed launch never end. */
static void fibers_free(void)
{
    for (unsigned i = 0; i < MAX_THREADS && emu.fibers[i]; i++) {
        fiber *f = emu.fibers[i];
        if (__tsan_switch_to_fiber) { /* order its work before what follows */
            __tsan_switch_to_fiber(f->tsan, TSAN_NO_SYNC);
            __tsan_release(&emu.done);
            __tsan_switch_to_fiber(emu.scheduler_tsan, TSAN_NO_SYNC);
            __tsan_acquire(&emu.done);
            __tsan_destroy_fiber(f->tsan);
        }
        if (__asan_unpoison_memory_region)
            __asan_unpoison_memory_region(f->memory, GUARD + STACK);
        munmap(f->memory, GUARD + STACK);
        free(f);
        emu.fibers[i] = NULL;
    }
}

/* ---- failing ---- */

static void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void report(const char *format, ...)
{
    va_list args;
    if (emu.failed)
        return; /* report the first error only */
    emu.failed = true;
    va_start(args, format);
    vsnprintf(emu.report, sizeof emu.report, format, args);
    va_end(args);
}

void cuda_emu_fail(cuda_emu_site site, const char *what)
{
    fiber *f = emu.running;
    const uint3 t = f->place.thread, b = f->place.block;
    report("%s:%d: %s (block %u,%u,%u thread %u,%u,%u)", site.file, site.line, what, b.x, b.y,
           b.z, t.x, t.y, t.z);
    f->state = LEFT;
    stop(f);
    abort(); /* never resumed after a failure */
}

/* ---- functions for threads ---- */

const cuda_emu_place &cuda_emu_here(void)
{
    return emu.running->place;
}

bool cuda_emu_is_running(void)
{
    return emu.running != NULL;
}

void cuda_emu_barrier(cuda_emu_site site)
{
    fiber *f = emu.running;
    char *order = &emu.order[emu.barriers % 2];
    if (__tsan_release)
        __tsan_release(order);
    f->state = AT_BARRIER;
    f->site = site;
    stop(f);
    if (__tsan_acquire)
        __tsan_acquire(order);
}

const cuda_emu_words *cuda_emu_exchange(const char *operation, uint32_t mask,
                                        cuda_emu_words given, bool syncs, cuda_emu_site site,
                                        void (*together)(const cuda_emu_words *))
{
    fiber *f = emu.running;
    if (!(mask >> f->place.rank % LANES & 1))
        cuda_emu_fail(site, "a warp operation whose mask lacks the calling lane");
    if (syncs && __tsan_release)
        __tsan_release(&f->order[++f->operations % 2]);
    if (f->got)
        f->got->readers--;
    f->got = NULL;
    f->state = AT_WARP;
    f->site = site;
    f->operation = operation;
    f->mask = mask;
    f->given = given;
    f->together = together;
    stop(f);
    for (unsigned l = 0; syncs && __tsan_acquire && l < LANES; l++)
        if (mask >> l & 1)
            __tsan_acquire(f->got->order[l]);
    return f->got->all;
}

/* A volatile loop, which ThreadSanitizer does not treat as a race. */
static void poison(unsigned char *p, size_t bytes)
{
    for (volatile unsigned char *q = p; q < p + bytes; q++)
        *q = 0xff;
}

void *cuda_emu_shared(const void *key, size_t bytes)
{
    for (unsigned i = 0; i < emu.object_count; i++)
        if (emu.objects[i].key == key)
            return emu.shared + emu.objects[i].at;
    const cuda_emu_site here = {__FILE__, __LINE__};
    const size_t rounded = (bytes + SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
    if (emu.object_count == SHARED_OBJECTS || emu.shared_used + rounded > SHARED_BYTES)
        cuda_emu_fail(here, "more shared memory than a block has");
    const size_t at = emu.shared_used + SHARED_GAP * (emu.object_count + 2);
    emu.objects[emu.object_count++] = {key, at};
    emu.shared_used += rounded;
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(emu.shared + at, bytes);
    poison(emu.shared + at, bytes);
    return emu.shared + at;
}

void *cuda_emu_shared_dynamic(void)
{
    return emu.shared;
}

bool cuda_emu_is_shared(const void *p, size_t bytes)
{
    const uintptr_t a = reinterpret_cast<uintptr_t>(p),
                    base = reinterpret_cast<uintptr_t>(emu.shared);
    return a >= base && a + bytes <= base + SHARED_BYTES + SHARED_GAP * (SHARED_OBJECTS + 2);
}

void cuda_emu_copy_async(void *to, const void *from, size_t bytes, cuda_emu_site site)
{
    fiber *f = emu.running;
    if (!cuda_emu_is_shared(to, bytes))
        cuda_emu_fail(site, "cp.async writes to shared memory only");
    if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
        cuda_emu_fail(site, "cp.async with an address that is not aligned to its size");
    if (f->copy_count == COPIES)
        cuda_emu_fail(site, "too many copies of cp.async in flight for the emulator");
    f->copies[f->copy_count++] = {to, from, bytes, f->group};
}

void cuda_emu_copy_commit(void)
{
    emu.running->group++;
}

void cuda_emu_copy_wait(unsigned groups_left)
{
    fiber *f = emu.running;
    unsigned kept = 0;
    for (unsigned i = 0; i < f->copy_count; i++) {
        const async_copy c = f->copies[i];
        if (c.group + groups_left < f->group)
            memcpy(c.to, c.from, c.bytes);
        else
            f->copies[kept++] = c;
    }
    f->copy_count = kept;
}

/* ---- scheduling ---- */

static uint64_t mixed(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void put_in_order(unsigned *order, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        order[i] = i;
    if (!emu.seed)
        return;
    for (unsigned i = n; i > 1; i--) {
        const unsigned j = (unsigned)(mixed(emu.seed ^ ++emu.counter << 20) % i);
        const unsigned t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

static bool same_site(cuda_emu_site a, cuda_emu_site b)
{
    return a.line == b.line && strcmp(a.file, b.file) == 0;
}

/* Returns the lanes of the mask that have reached the operation of `f`; *possible is false if
 * one of them never can. */
static uint32_t companions(const fiber *f, unsigned first, bool *possible)
{
    uint32_t arrived = 0;
    *possible = true;
    for (unsigned l = 0; l < LANES; l++) {
        if (!(f->mask >> l & 1))
            continue;
        const fiber *o = first + l < emu.count ? emu.fibers[first + l] : NULL;
        if (!o || o->state == LEFT)
            *possible = false;
        else if (o->state == AT_WARP && o->operation == f->operation && o->mask == f->mask &&
                 same_site(o->site, f->site))
            arrived |= 1u << l;
    }
    return arrived;
}

static void complete(warp *w, unsigned first, uint32_t mask)
{
    record *r = w->records;
    void (*together)(const cuda_emu_words *) = NULL;
    while (r->readers)
        r++;
    for (unsigned l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        fiber *f = emu.fibers[first + l];
        r->all[l] = f->given;
        r->order[l] = &f->order[f->operations % 2];
        r->readers++;
        f->got = r;
        f->state = READY;
        together = f->together;
    }
    if (together)
        together(r->all);
}

static void complete_operations(unsigned index)
{
    const unsigned first = index * LANES;
    for (unsigned i = first; i < first + LANES && i < emu.count; i++) {
        fiber *f = emu.fibers[i];
        bool possible;
        if (f->state != AT_WARP)
            continue;
        const uint32_t arrived = companions(f, first, &possible);
        if (!possible)
            report("%s:%d: %s with mask %08x names a lane that has left (thread %u)",
                   f->site.file, f->site.line, f->operation, f->mask, i);
        else if (arrived == f->mask)
            complete(&emu.warps[index], first, arrived);
    }
}

/* No thread can run. Releases the barrier if all threads wait at one; otherwise reports the
 * error or returns false at the end of the block. */
static bool all_may_go_on(void)
{
    unsigned counts[LEFT + 1] = {0};
    const fiber *at[LEFT + 1] = {NULL};
    for (unsigned i = 0; i < emu.count; i++) {
        const fiber *f = emu.fibers[i];
        if (!counts[f->state]++)
            at[f->state] = f;
    }
    if (counts[LEFT] == emu.count)
        return false;
    if (counts[AT_WARP]) {
        const fiber *f = at[AT_WARP];
        report("%s:%d: %s with mask %08x waits for lanes that are elsewhere (thread %u)",
               f->site.file, f->site.line, f->operation, f->mask, f->place.rank);
        return false;
    }
    const fiber *f = at[AT_BARRIER];
    if (counts[LEFT]) {
        report("%s:%d: divergent barrier: %u of %u threads wait, the others have left "
               "(thread %u)",
               f->site.file, f->site.line, counts[AT_BARRIER], emu.count, f->place.rank);
        return false;
    }
    for (unsigned i = 0; i < emu.count; i++) {
        const fiber *o = emu.fibers[i];
        if (!same_site(o->site, f->site)) {
            report("%s:%d: divergent barrier: thread %u waits here, thread %u at %s:%d",
                   f->site.file, f->site.line, f->place.rank, o->place.rank, o->site.file,
                   o->site.line);
            return false;
        }
    }
    emu.barriers++;
    for (unsigned i = 0; i < emu.count; i++)
        emu.fibers[i]->state = READY;
    return true;
}

/* Runs every warp that can run, its lanes in order. */
static bool run_round(void)
{
    unsigned warps[MAX_THREADS / LANES], lanes[LANES];
    const unsigned n = (emu.count + LANES - 1) / LANES;
    bool moved = false;
    put_in_order(warps, n);
    for (unsigned w = 0; w < n && !emu.failed; w++) {
        put_in_order(lanes, LANES);
        for (unsigned l = 0; l < LANES && !emu.failed; l++) {
            const unsigned i = warps[w] * LANES + lanes[l];
            if (i < emu.count && emu.fibers[i]->state == READY) {
                resume(emu.fibers[i]);
                moved = true;
            }
        }
        if (!emu.failed)
            complete_operations(warps[w]);
    }
    return moved;
}

static void start_block(uint3 at, dim3 grid, dim3 block)
{
    const size_t bytes = SHARED_BYTES + SHARED_GAP * (SHARED_OBJECTS + 2);
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(emu.shared, bytes);
    poison(emu.shared, emu.dynamic);
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(emu.shared + emu.dynamic, bytes - emu.dynamic);
    emu.object_count = 0;
    emu.shared_used = (emu.dynamic + SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
    for (unsigned w = 0; w * LANES < emu.count; w++)
        for (unsigned r = 0; r <= LANES; r++)
            emu.warps[w].records[r].readers = 0;
    for (unsigned i = 0; i < emu.count; i++) {
        fiber *f = emu.fibers[i];
        const uint3 t = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
        f->place = {t, at, block, grid, i};
        f->state = READY;
        f->started = false;
        f->got = NULL;
        f->copy_count = f->group = 0;
    }
}

static void run_grid(dim3 grid, dim3 block)
{
    const size_t blocks = (size_t)grid.x * grid.y * grid.z;
    unsigned *order = static_cast<unsigned *>(malloc(blocks * sizeof *order));
    if (!order)
        abort();
    put_in_order(order, (unsigned)blocks);
    for (size_t b = 0; b < blocks && !emu.failed; b++) {
        const unsigned i = order[b];
        start_block({i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y}, grid, block);
        do
            while (run_round() && !emu.failed)
                ;
        while (!emu.failed && all_may_go_on());
        if (__tsan_acquire)
            __tsan_acquire(&emu.done);
    }
    free(order);
}

/* ---- launches ---- */

cudaError_t cuda_emu_run(void (*body)(void *), void *arg, const void *kernel, dim3 grid,
                         dim3 block, size_t dynamic)
{
    const size_t threads = (size_t)block.x * block.y * block.z;
    bool skip = false;
    const cudaError_t broken = cuda_emu_verdict(CUDA_EMU_LAUNCH, false, &skip);
    if (broken || skip)
        return cuda_emu_remember(broken);
    pthread_mutex_lock(&emu.lock);
    emu.failed = false;
    if (!threads || threads > MAX_THREADS || block.z > 64 || !grid.x || !grid.y || !grid.z ||
        grid.y > 65535 || grid.z > 65535 || dynamic > cuda_emu_dynamic_limit(kernel)) {
        pthread_mutex_unlock(&emu.lock);
        return cuda_emu_remember(cudaErrorInvalidConfiguration);
    }
    if (!emu.shared)
        emu.shared = static_cast<unsigned char *>(aligned_alloc(
            256, (SHARED_BYTES + SHARED_GAP * (SHARED_OBJECTS + 2) + 255) / 256 * 256));
    if (!emu.shared)
        abort();
    emu.count = (unsigned)threads;
    emu.body = body;
    emu.arg = arg;
    emu.dynamic = dynamic;
    for (unsigned i = 0; i < emu.count; i++)
        if (!emu.fibers[i])
            emu.fibers[i] = fiber_new();
    if (__tsan_get_current_fiber)
        emu.scheduler_tsan = __tsan_get_current_fiber();
    cuda_emu_enter();
    run_grid(grid, block);
    cuda_emu_leave();
    if (emu.failed)
        fibers_free();
    const cudaError_t e = emu.failed ? cudaErrorLaunchFailure : cudaSuccess;
    pthread_mutex_unlock(&emu.lock);
    return cuda_emu_remember(e);
}

void cuda_emu_seed(uint64_t seed)
{
    emu.seed = seed;
    emu.counter = 0;
}

const char *cuda_emu_report(void)
{
    return emu.report;
}
