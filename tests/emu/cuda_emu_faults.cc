/* The emulator's faults: counts launches, copies and allocations and makes the n-th fail.
 * Errors that would destroy a GPU's context persist. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/emu/cuda_emu.h"

struct fault_state {
    bool started;
    unsigned long count[CUDA_EMU_OTHER + 1];
    unsigned long long bytes[cudaMemcpyDeviceToDevice + 1];
    cuda_emu_call what; /* the kind of call that fails, */
    unsigned long at;   /* at this count; 0: never */
    bool dies;          /* a kernel fails, not yet reported */
    cudaError_t dead;   /* error for calls that wait for the device */
    cudaError_t broken; /* error for all calls */
    void (*on_launch)(void *);
    void *on_launch_arg;
    double work;
};

static fault_state faults;

static void write_counts(void)
{
    const char *name = getenv("VPTQ_EMU_COUNTS");
    FILE *f = name ? fopen(name, "w") : NULL;
    const cuda_emu_counts c = cuda_emu_count();
    if (!f)
        return;
    fprintf(f, "launch %lu\ncopy %lu\nalloc %lu\nmemory %zu\nuploaded %llu\ndownloaded %llu\n",
            c.launches, c.copies, c.allocations, cuda_emu_memory_peak(), c.uploaded,
            c.downloaded);
    fclose(f);
}

static void break_at(const char *how)
{
    static const struct {
        const char *name;
        cuda_emu_call what;
        bool dies;
    } known[] = {{"launch:", CUDA_EMU_LAUNCH, false},
                 {"kernel:", CUDA_EMU_LAUNCH, true},
                 {"copy:", CUDA_EMU_COPY, false},
                 {"alloc:", CUDA_EMU_ALLOC, false},
                 {"pinned:", CUDA_EMU_PINNED, false}};
    for (const auto &k : known) {
        const size_t length = strlen(k.name);
        if (strncmp(how, k.name, length) != 0)
            continue;
        faults.what = k.what;
        faults.dies = k.dies;
        faults.at = faults.count[k.what] + strtoul(how + length, NULL, 10);
        return;
    }
    fprintf(stderr, "cuda_emu: cannot fail at '%s'\n", how);
    abort();
}

static void start(void)
{
    const char *how = getenv("VPTQ_EMU_FAIL"), *bytes = getenv("VPTQ_EMU_MEMORY");
    if (faults.started)
        return;
    faults.started = true;
    if (bytes)
        cuda_emu_memory(strtoull(bytes, NULL, 10));
    if (how)
        break_at(how);
    if (getenv("VPTQ_EMU_COUNTS"))
        (void)atexit(write_counts);
}

void cuda_emu_break(const char *how)
{
    start();
    cuda_emu_drain_all();
    faults.at = 0;
    faults.dead = faults.broken = cudaSuccess;
    (void)cudaGetLastError();
    if (how)
        break_at(how);
}

cuda_emu_counts cuda_emu_count(void)
{
    return {faults.count[CUDA_EMU_LAUNCH], faults.count[CUDA_EMU_COPY],
            faults.count[CUDA_EMU_ALLOC], faults.bytes[cudaMemcpyHostToDevice],
            faults.bytes[cudaMemcpyDeviceToHost]};
}

void cuda_emu_count_bytes(cudaMemcpyKind kind, size_t bytes)
{
    (void)__atomic_add_fetch(&faults.bytes[kind], bytes, __ATOMIC_RELAXED);
}

void cuda_emu_on_launch(void (*fn)(void *arg), void *arg)
{
    faults.on_launch = fn;
    faults.on_launch_arg = arg;
}

void cuda_emu_work(double most)
{
    faults.work = most;
}

double cuda_emu_work_limit(void)
{
    return faults.work;
}

cudaError_t cuda_emu_broken(void)
{
    start();
    return faults.broken;
}

void cuda_emu_lose(cudaError_t e)
{
    if (!faults.dead)
        faults.dead = faults.broken = e;
}

bool cuda_emu_lost(void)
{
    return faults.dead != cudaSuccess;
}

cudaError_t cuda_emu_verdict(cuda_emu_call call, bool waits, bool *skip)
{
    start();
    if (call == CUDA_EMU_LAUNCH && faults.on_launch)
        faults.on_launch(faults.on_launch_arg);
    const unsigned long count = __atomic_add_fetch(&faults.count[call], 1, __ATOMIC_RELAXED);
    const bool now = call == faults.what && faults.at &&
                     (count == faults.at || (call == CUDA_EMU_ALLOC && count == faults.at + 1));
    if (faults.dead && waits)
        faults.broken = faults.dead;
    *skip = faults.dead != cudaSuccess;
    if (faults.broken || !now)
        return faults.broken;
    if (faults.dies || call == CUDA_EMU_COPY)
        cuda_emu_drain_all(); /* what was queued before is done */
    switch (call) {
    case CUDA_EMU_LAUNCH:
        if (!faults.dies)
            return cudaErrorLaunchOutOfResources;
        faults.dead = cudaErrorIllegalAddress;
        *skip = true;
        return cudaSuccess;
    case CUDA_EMU_COPY:
        return faults.dead = faults.broken = cudaErrorECCUncorrectable;
    default:
        return cudaErrorMemoryAllocation;
    }
}
