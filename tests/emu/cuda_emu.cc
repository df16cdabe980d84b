/* The emulator's run time: threads of blocks, their scheduler and shared memory. */
#include "tests/emu/cuda_emu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/emu/cuda_emu_stacks.h"

enum {
    MAX_THREADS = 1024,
    LANES = CUDA_EMU_LANES,
    SHARED_BYTES = CUDA_EMU_SHARED_BYTES,
    SHARED_GAP = 64, /* between objects, for AddressSanitizer */
    SHARED_OBJECTS = 32,
    SHARED_SPAN = SHARED_BYTES + SHARED_GAP * (SHARED_OBJECTS + 2),
    RESIDENT = 3, /* blocks of a grid in flight, fewer if they are large */
    SLOTS = 2 * RESIDENT,
    PATIENCE = 100, /* rounds in which all running threads sleep */
    COPIES = 256    /* cp.async copies in flight per thread */
};

enum fiber_state { READY, AT_BARRIER, AT_WARP, AT_GRID, LEFT };

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

struct resident;

struct fiber {
    resident *home;
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
    cuda_emu_stack stack;
};

struct warp {
    record records[LANES + 1];
};

struct shared_object {
    const void *key;
    size_t at;
};

/* A kernel in progress. */
struct grid {
    const cuda_emu_kernel *kernel;
    unsigned *order; /* of its blocks */
    size_t blocks, started;
    unsigned resident;
    bool open; /* port_grid_wait returns */
};

/* A block in flight. */
struct resident {
    grid *of;       /* NULL: unused */
    unsigned count; /* threads */
    fiber *fibers[MAX_THREADS];
    warp warps[MAX_THREADS / LANES];
    unsigned barriers;
    char order[2]; /* addresses for ThreadSanitizer */
    bool waited;   /* called port_grid_wait */
    unsigned char *shared;
    size_t shared_used, object_bytes;
    shared_object objects[SHARED_OBJECTS];
    unsigned object_count;
};

struct emulator {
    pthread_mutex_t lock;
    uint64_t seed, counter;
    resident slots[SLOTS];
    grid grids[2];
    grid *ahead; /* started before its predecessor */
    fiber *running;
    unsigned long progress; /* grows unless threads only sleep */
    bool slept;
    char done; /* address for ThreadSanitizer */
    bool failed;
    char report[512];
};

static emulator emu = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- switching ---- */

/* Switches from a thread to the scheduler; returns when the thread is resumed. */
static void stop(fiber *f)
{
    cuda_emu_stack_leave(&f->stack);
}

static void resume(fiber *f)
{
    emu.running = f;
    emu.slept = false;
    cuda_emu_stack_run(&f->stack);
    emu.progress += !emu.slept;
    emu.running = NULL;
}

static void fiber_main(void)
{
    fiber *f = emu.running;
    cuda_emu_stack_begin();
    for (;;) {
        f->home->of->kernel->body(f->home->of->kernel->arg);
        if (__tsan_release)
            __tsan_release(&emu.done);
        f->state = LEFT;
        stop(f);
    }
}

static fiber *fiber_new(resident *home)
{
    fiber *f = static_cast<fiber *>(calloc(1, sizeof *f));
    if (!f)
        abort();
    f->home = home;
    cuda_emu_stack_open(&f->stack, fiber_main);
    return f;
}

/* Frees a slot's fibers, because threads of a failed launch never end. */
static void fibers_free(resident *r)
{
    for (unsigned i = 0; i < MAX_THREADS && r->fibers[i]; i++) {
        cuda_emu_stack_close(&r->fibers[i]->stack, &emu.done);
        free(r->fibers[i]);
        r->fibers[i] = NULL;
    }
    r->of = NULL;
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
    char *order = &f->home->order[f->home->barriers % 2];
    if (__tsan_release)
        __tsan_release(order);
    f->state = AT_BARRIER;
    f->site = site;
    stop(f);
    if (__tsan_acquire)
        __tsan_acquire(order);
}

void cuda_emu_grid_wait(void)
{
    fiber *f = emu.running;
    f->home->waited = true;
    if (!f->home->of->open) {
        f->state = AT_GRID;
        stop(f);
    }
    if (__tsan_acquire)
        __tsan_acquire(&emu.done);
}

void cuda_emu_sleep(void)
{
    emu.slept = true;
    stop(emu.running);
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

void *cuda_emu_shared(const void *key, size_t bytes, cuda_emu_site site)
{
    resident *r = emu.running->home;
    for (unsigned i = 0; i < r->object_count; i++)
        if (r->objects[i].key == key)
            return r->shared + r->objects[i].at;
    const cuda_emu_kernel *k = r->of->kernel;
    const size_t rounded = (bytes + SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
    r->object_bytes += bytes;
    if (k->dynamic + r->object_bytes > cuda_emu_shared_limit(k->kernel))
        cuda_emu_fail(site, "objects and dynamic part are more shared memory than allowed");
    if (r->object_count == SHARED_OBJECTS || r->shared_used + rounded > SHARED_BYTES)
        cuda_emu_fail(site, "more shared memory than a block has");
    const size_t at = r->shared_used + SHARED_GAP * (r->object_count + 2);
    r->objects[r->object_count++] = {key, at};
    r->shared_used += rounded;
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(r->shared + at, bytes);
    poison(r->shared + at, bytes);
    return r->shared + at;
}

void *cuda_emu_shared_dynamic(void)
{
    return emu.running->home->shared;
}

bool cuda_emu_is_shared(const void *p, size_t bytes)
{
    const uintptr_t a = reinterpret_cast<uintptr_t>(p),
                    base = reinterpret_cast<uintptr_t>(emu.running->home->shared);
    return a >= base && a + bytes <= base + SHARED_SPAN;
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
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

/* Returns the lanes of the mask that have reached the operation of `f`; *possible is false if
 * one of them never can. */
static uint32_t companions(const resident *r, const fiber *f, unsigned first, bool *possible)
{
    uint32_t arrived = 0;
    *possible = true;
    for (unsigned l = 0; l < LANES; l++) {
        if (!(f->mask >> l & 1))
            continue;
        const fiber *o = first + l < r->count ? r->fibers[first + l] : NULL;
        if (!o || o->state == LEFT)
            *possible = false;
        else if (o->state == AT_WARP && o->operation == f->operation && o->mask == f->mask &&
                 same_site(o->site, f->site))
            arrived |= 1u << l;
    }
    return arrived;
}

static void complete(resident *home, unsigned index, uint32_t mask)
{
    record *r = home->warps[index].records;
    void (*together)(const cuda_emu_words *) = NULL;
    while (r->readers)
        r++;
    for (unsigned l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
        fiber *f = home->fibers[index * LANES + l];
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

static void complete_operations(resident *r, unsigned index)
{
    const unsigned first = index * LANES;
    for (unsigned i = first; i < first + LANES && i < r->count; i++) {
        fiber *f = r->fibers[i];
        bool possible;
        if (f->state != AT_WARP)
            continue;
        const uint32_t arrived = companions(r, f, first, &possible);
        if (!possible)
            report("%s:%d: %s with mask %08x names a lane that has left (thread %u)",
                   f->site.file, f->site.line, f->operation, f->mask, i);
        else if (arrived == f->mask)
            complete(r, index, arrived);
    }
}

static void end_block(resident *r)
{
    if (__tsan_acquire)
        __tsan_acquire(&emu.done);
    if (r->of->kernel->early && !r->waited)
        report("a block of a kernel that was launched early ends without port_grid_wait");
    r->of->resident--;
    r->of = NULL;
    emu.progress++;
}

/* No thread can run. Releases the barrier if all threads wait at one, ends the block if all
 * have left, and otherwise reports the error. */
static void go_on(resident *r)
{
    unsigned counts[LEFT + 1] = {0};
    const fiber *at[LEFT + 1] = {NULL};
    for (unsigned i = 0; i < r->count; i++) {
        const fiber *f = r->fibers[i];
        if (!counts[f->state]++)
            at[f->state] = f;
    }
    if (counts[LEFT] == r->count) {
        end_block(r);
        return;
    }
    if (counts[AT_GRID])
        return;
    if (counts[AT_WARP]) {
        const fiber *f = at[AT_WARP];
        report("%s:%d: %s with mask %08x waits for lanes that are elsewhere (thread %u)",
               f->site.file, f->site.line, f->operation, f->mask, f->place.rank);
        return;
    }
    const fiber *f = at[AT_BARRIER];
    if (counts[LEFT]) {
        report("%s:%d: divergent barrier: %u of %u threads wait, the others have left "
               "(thread %u)",
               f->site.file, f->site.line, counts[AT_BARRIER], r->count, f->place.rank);
        return;
    }
    for (unsigned i = 0; i < r->count; i++) {
        const fiber *o = r->fibers[i];
        if (!same_site(o->site, f->site)) {
            report("%s:%d: divergent barrier: thread %u waits here, thread %u at %s:%d",
                   f->site.file, f->site.line, f->place.rank, o->place.rank, o->site.file,
                   o->site.line);
            return;
        }
    }
    r->barriers++;
    emu.progress++;
    for (unsigned i = 0; i < r->count; i++)
        r->fibers[i]->state = READY;
}

/* Runs every warp of the block that can run, its lanes in order. */
static bool run_round(resident *r)
{
    unsigned warps[MAX_THREADS / LANES], lanes[LANES];
    const unsigned n = (r->count + LANES - 1) / LANES;
    bool moved = false;
    put_in_order(warps, n);
    for (unsigned w = 0; w < n && !emu.failed; w++) {
        put_in_order(lanes, LANES);
        for (unsigned l = 0; l < LANES && !emu.failed; l++) {
            const unsigned i = warps[w] * LANES + lanes[l];
            if (i < r->count && r->fibers[i]->state == READY) {
                resume(r->fibers[i]);
                moved = true;
            }
        }
        if (!emu.failed)
            complete_operations(r, warps[w]);
    }
    return moved;
}

static void start_block(resident *r, grid *g)
{
    const cuda_emu_kernel *k = g->kernel;
    const unsigned at = g->order[g->started++];
    const uint3 index = {at % k->grid.x, at / k->grid.x % k->grid.y,
                         at / k->grid.x / k->grid.y};
    if (!r->shared)
        r->shared =
            static_cast<unsigned char *>(aligned_alloc(256, (SHARED_SPAN + 255) / 256 * 256));
    if (!r->shared)
        abort();
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(r->shared, SHARED_SPAN);
    poison(r->shared, k->dynamic);
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(r->shared + k->dynamic, SHARED_SPAN - k->dynamic);
    r->of = g;
    g->resident++;
    r->count = k->block.x * k->block.y * k->block.z;
    r->waited = false;
    r->object_count = 0;
    r->object_bytes = 0;
    r->shared_used = (k->dynamic + SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
    for (unsigned w = 0; w * LANES < r->count; w++)
        for (unsigned i = 0; i <= LANES; i++)
            r->warps[w].records[i].readers = 0;
    for (unsigned i = 0; i < r->count; i++) {
        if (!r->fibers[i])
            r->fibers[i] = fiber_new(r);
        fiber *f = r->fibers[i];
        const uint3 t = {i % k->block.x, i / k->block.x % k->block.y,
                         i / (k->block.x * k->block.y)};
        f->place = {t, index, k->block, k->grid, i};
        f->state = READY;
        f->stack.started = false;
        f->got = NULL;
        f->copy_count = f->group = 0;
    }
}

/* Fills the slots that the grid may have. */
static void start_blocks(grid *g)
{
    const dim3 b = g->kernel->block;
    const unsigned most = b.x * b.y * b.z > MAX_THREADS / 8 ? 2 : RESIDENT;
    for (unsigned s = 0; s < SLOTS; s++)
        if (!emu.slots[s].of && g->resident < most && g->started < g->blocks)
            start_block(&emu.slots[s], g);
}

/* Runs the grid to its end or, if it is not open, until all of its resident blocks wait. */
static void advance(grid *g)
{
    unsigned order[SLOTS], idle = 0;
    for (unsigned s = 0; s < SLOTS; s++)
        order[s] = s;
    for (start_blocks(g); g->resident && idle < PATIENCE && !emu.failed;) {
        const unsigned long before = emu.progress;
        if (g->resident > 1)
            put_in_order(order, SLOTS);
        for (unsigned s = 0; s < SLOTS && !emu.failed; s++) {
            resident *r = &emu.slots[order[s]];
            if (r->of == g && !run_round(r) && !emu.failed)
                go_on(r);
        }
        if (g->open)
            start_blocks(g);
        idle = emu.progress == before ? idle + 1 : 0;
        if (idle && !g->open)
            return;
    }
    if (idle == PATIENCE)
        report("all resident blocks sleep; what they wait for may need a block that cannot "
               "start before one of them ends");
}

static grid *begin(const cuda_emu_kernel *k)
{
    grid *g = &emu.grids[emu.ahead == &emu.grids[0]];
    *g = {.kernel = k, .blocks = (size_t)k->grid.x * k->grid.y * k->grid.z};
    g->order = static_cast<unsigned *>(malloc(g->blocks * sizeof *g->order));
    if (!g->order)
        abort();
    put_in_order(g->order, (unsigned)g->blocks);
    return g;
}

static void open_grid(grid *g)
{
    g->open = true;
    for (resident &r : emu.slots)
        for (unsigned i = 0; r.of == g && i < r.count; i++)
            if (r.fibers[i]->state == AT_GRID)
                r.fibers[i]->state = READY;
}

/* ---- launches ---- */

bool cuda_emu_launchable(const cuda_emu_kernel *k)
{
    const dim3 b = k->block, g = k->grid;
    const size_t threads = (size_t)b.x * b.y * b.z;
    return threads && threads <= MAX_THREADS && b.z <= 64 && g.x && g.y && g.z &&
           g.y <= 65535 && g.z <= 65535 && k->dynamic <= cuda_emu_dynamic_limit(k->kernel);
}

bool cuda_emu_run(const cuda_emu_kernel *k, const cuda_emu_kernel *next)
{
    pthread_mutex_lock(&emu.lock);
    emu.failed = false;
    cuda_emu_stack_schedule();
    cuda_emu_enter();
    grid *g = emu.ahead ? emu.ahead : begin(k);
    emu.ahead = g;
    grid *early = next ? begin(next) : NULL;
    if (early)
        advance(early);
    open_grid(g);
    if (!emu.failed)
        advance(g);
    emu.ahead = early;
    free(g->order);
    cuda_emu_leave();
    if (emu.failed) {
        for (resident &r : emu.slots)
            fibers_free(&r);
        if (early)
            free(early->order);
        emu.ahead = NULL;
    }
    const bool good = !emu.failed;
    pthread_mutex_unlock(&emu.lock);
    return good;
}

bool cuda_emu_chance(unsigned one_in)
{
    return emu.seed && mixed(emu.seed ^ ++emu.counter << 20) % one_in == 0;
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
