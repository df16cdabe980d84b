/* Tests the emulator: correct kernels give the results that CUDA defines, in every order of
 * threads, and errors in kernels are found. Built a second time with ThreadSanitizer, which
 * names both lines of a missing barrier. */
#include "tests/emu/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" {
#include "lib/base/half.h"
}

static const uint64_t seeds[] = {0, 1, 2, 3, 4, 5, 6, 7};
enum { SEEDS = sizeof seeds / sizeof *seeds };

/* Expects the launch to fail with a message that contains `part` and, unless 0, the line. */
template <class... P, class... A>
static void expect_failure(const char *part, int line, void (*kernel)(P...), unsigned threads,
                           A... args)
{
    char where[64] = "";
    if (line)
        snprintf(where, sizeof where, "tests/emu/test_emu.cc:%d: ", line);
    for (size_t s = 0; s < SEEDS; s++) {
        cuda_emu_seed(seeds[s]);
        assert_int_equal(port_launch(kernel, 2, threads, 0, NULL, args...), cudaSuccess);
        const cudaError_t e = cudaStreamSynchronize(NULL);
        assert_int_equal(e, cudaErrorLaunchFailure);
        assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure); /* until it is reset */
        assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
        cuda_emu_break(NULL);
        if (!strstr(cudaGetErrorString(e), part) || !strstr(cudaGetErrorString(e), where))
            fail_msg("\"%s\", expected \"%s\" and \"%s\"", cudaGetErrorString(e), where, part);
    }
    cuda_emu_seed(0);
}

/* ---- thread positions ---- */

__global__ static void note_places(unsigned *out)
{
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] += block * 1000 + thread;
}

static void every_thread_runs_once(void **)
{
    enum { BLOCKS = 3 * 2 * 2, THREADS = 5 * 4 * 3 };
    for (size_t s = 0; s < SEEDS; s++) {
        unsigned out[BLOCKS * THREADS] = {0};
        cuda_emu_seed(seeds[s]);
        run(note_places, dim3(3, 2, 2), dim3(5, 4, 3), 0, out);
        for (unsigned i = 0; i < BLOCKS * THREADS; i++)
            assert_int_equal(out[i], i / THREADS * 1000 + i % THREADS);
    }
}

/* ---- warp operations ---- */

enum { KINDS = 12 };

__global__ static void warp_operations(unsigned *out)
{
    const unsigned i = threadIdx.x, lane = port_lane(), value = i * i + 3;
    unsigned *o = out + i * KINDS;
    o[0] = __shfl_sync(port_all, value, 5);
    o[1] = __shfl_xor_sync(port_all, value, 9);
    o[2] = __shfl_down_sync(port_all, value, 3);
    o[3] = __shfl_up_sync(port_all, value, 7);
    o[4] = __shfl_sync(port_all, value, 2, 8);
    o[5] = __ballot_sync(port_all, i % 3 == 0);
    o[6] = (unsigned)__any_sync(port_all, i == 40) * 2 + (unsigned)__all_sync(port_all, i < 64);
    o[7] = port_redux_min(port_all, value ^ 0x55);
    o[8] = __reduce_max_sync(port_all, value);
    o[9] = __reduce_add_sync(port_all, value);
    o[10] = __match_any_sync(port_all, i % 5);
    if (lane < 12) /* a part of the warp */
        o[11] = __shfl_xor_sync(0xfffu, value, 1);
    else
        o[11] = __reduce_add_sync(~0xfffu, 1u);
    if ((unsigned)port_warp_sum((double)i) != (i / 32 ? 1520u : 496u))
        o[0] = 0;
}

static void warp_operations_are_exact(void **)
{
    enum { THREADS = 64 };
    for (size_t s = 0; s < SEEDS; s++) {
        unsigned out[THREADS * KINDS];
        memset(out, 0xff, sizeof out);
        cuda_emu_seed(seeds[s]);
        run(warp_operations, 1, THREADS, 0, out);
        for (unsigned i = 0; i < THREADS; i++) {
            const unsigned base = i / 32 * 32, lane = i % 32, *o = out + i * KINDS;
            unsigned value[32], thirds = 0, least = ~0u, most = 0, sum = 0, alike = 0;
            for (unsigned l = 0; l < 32; l++) {
                value[l] = (base + l) * (base + l) + 3;
                thirds |= (unsigned)((base + l) % 3 == 0) << l;
                least = (value[l] ^ 0x55) < least ? value[l] ^ 0x55 : least;
                most = value[l] > most ? value[l] : most;
                sum += value[l];
                alike |= (unsigned)((base + l) % 5 == i % 5) << l;
            }
            assert_int_equal(o[0], value[5]);
            assert_int_equal(o[1], value[lane ^ 9]);
            assert_int_equal(o[2], value[lane + 3 < 32 ? lane + 3 : lane]);
            assert_int_equal(o[3], value[lane >= 7 ? lane - 7 : lane]);
            assert_int_equal(o[4], value[lane / 8 * 8 + 2]);
            assert_int_equal(o[5], thirds);
            assert_int_equal(o[6], base ? 3 : 1);
            assert_int_equal(o[7], least);
            assert_int_equal(o[8], most);
            assert_int_equal(o[9], sum);
            assert_int_equal(o[10], alike);
            assert_int_equal(o[11], lane < 12 ? value[lane ^ 1] : 20);
        }
    }
}

/* ---- barriers and shared memory ---- */

enum { WIDE = 128 };
struct row {
    float at[WIDE];
};

/* Every thread reads what all others have written, several times over. */
__global__ static void mix_in_shared(const float *x, float *y)
{
    row &r = port_shared<row>();
    float *more = static_cast<float *>(port_shared_dynamic());
    const unsigned i = threadIdx.x;
    r.at[i] = x[blockIdx.x * WIDE + i];
    __syncthreads();
    for (unsigned step = 1; step < WIDE; step *= 2) {
        more[i] = r.at[i] + 0.5f * r.at[(i + step) % WIDE];
        __syncthreads();
        r.at[i] = more[(i * 5 + 1) % WIDE];
        __syncthreads();
    }
    y[blockIdx.x * WIDE + i] = r.at[i];
}

__global__ static void block_sums(const float *x, double *sums)
{
    const double once = port_block_sum((double)x[threadIdx.x]);
    sums[threadIdx.x] = port_block_sum(once); /* two calls in a row */
}

static void correct_kernels_do_not_depend_on_order(void **)
{
    enum { BLOCKS = 3 };
    float *x = vtest_normals(BLOCKS * WIDE, 1), want[BLOCKS * WIDE], next[WIDE];
    memcpy(want, x, sizeof want);
    for (unsigned b = 0; b < BLOCKS; b++)
        for (unsigned step = 1; step < WIDE; step *= 2) {
            float *r = want + b * WIDE;
            for (unsigned i = 0; i < WIDE; i++)
                next[i] = r[i] + 0.5f * r[(i + step) % WIDE];
            for (unsigned i = 0; i < WIDE; i++)
                r[i] = next[(i * 5 + 1) % WIDE];
        }
    double first[WIDE], sum = 0;
    for (unsigned i = 0; i < WIDE; i++)
        sum += (double)x[i];
    for (size_t s = 0; s < SEEDS; s++) {
        float y[BLOCKS * WIDE];
        double sums[WIDE];
        cuda_emu_seed(seeds[s]);
        run(mix_in_shared, BLOCKS, WIDE, WIDE * sizeof(float), x, y);
        assert_same_f32(y, want, BLOCKS * WIDE);
        run(block_sums, 1, WIDE, 0, x, s ? sums : first);
        for (unsigned i = 0; i < WIDE; i++)
            assert_true((s ? sums : first)[i] == first[0]);
    }
    assert_true(fabs(first[0] - sum * WIDE) < 1e-10);
    free(x);
}

__global__ static void read_before_writing(float *out)
{
    row &r = port_shared<row>();
    float *more = static_cast<float *>(port_shared_dynamic());
    out[blockIdx.x * WIDE + threadIdx.x] = r.at[threadIdx.x] + more[threadIdx.x];
    r.at[threadIdx.x] = more[threadIdx.x] = 1; /* the next block must not see it */
}

static void shared_memory_is_poisoned(void **)
{
    float out[3 * WIDE] = {0};
    run(read_before_writing, 3, WIDE, WIDE * sizeof(float), out);
    for (unsigned i = 0; i < 3 * WIDE; i++)
        assert_true(isnan(out[i]));
}

/* ---- cp.async ---- */

__global__ static void copy_async(const float *in, float *early, float *late, float *last)
{
    row &r = port_shared<row>();
    const unsigned i = 4 * threadIdx.x;
    port_copy_async(&r.at[i], in + i);
    port_copy_commit();
    port_copy_async(&r.at[64 + i], in + 64 + i);
    port_copy_commit();
    early[threadIdx.x] = r.at[i];
    port_copy_wait<1>();
    late[threadIdx.x] = r.at[i];
    late[16 + threadIdx.x] = r.at[64 + i];
    port_copy_wait<0>();
    __syncthreads();
    last[threadIdx.x] = r.at[127 - i];
}

static void copies_complete_when_waited_for(void **)
{
    float *in = vtest_normals(WIDE, 1), early[16], late[32], last[16];
    run(copy_async, 1, 16, 0, in, early, late, last);
    for (unsigned i = 0; i < 16; i++) {
        assert_true(isnan(early[i]));
        assert_true(late[i] == in[4 * i] && isnan(late[16 + i]));
        assert_true(last[i] == in[127 - 4 * i]);
    }
    free(in);
}

/* ---- detection of errors ---- */

static int line_of_barrier; /* line of the barrier in the kernel below */

__global__ static void leave_early(unsigned threads)
{
    if (threadIdx.x >= threads)
        return;
    if (!threadIdx.x && !blockIdx.x)
        line_of_barrier = __LINE__ + 1;
    __syncthreads();
}

__global__ static void wait_elsewhere(void)
{
    if (threadIdx.x % 32 < 16)
        __syncthreads();
    else
        __syncthreads();
}

static void divergent_barriers_are_found(void **)
{
    for (size_t s = 0; s < SEEDS; s++)
        run(leave_early, 2, 64, 0, 64u);
    expect_failure("divergent barrier: 40 of 64 threads wait, the others have left",
                   line_of_barrier, leave_early, 64, 40u);
    expect_failure("divergent barrier: thread 0 waits here, thread 16 at tests/emu/test_emu.cc",
                   0, wait_elsewhere, 64);
    run(leave_early, 2, 64, 0, 64u); /* the next launch works */
}

__global__ static void operate(int what)
{
    const unsigned lane = port_lane();
    if (what == 0 && lane < 31) /* one lane is missing */
        __syncwarp();
    if (what == 1)
        (void)__ballot_sync(lane == 3 ? 0x7u : port_all, 1);
    if (what == 2)
        (void)__shfl_sync(lane < 16 ? 0xffffu : 0xffff0000u, lane, 20);
    if (what == 3) {
        if (lane < 16)
            (void)__any_sync(port_all, 1);
        else
            (void)__all_sync(port_all, 1);
    }
    if (what == 4) { /* the warp waits for a lane that waits for the block */
        if (lane == 7)
            __syncthreads();
        __syncwarp();
    }
}

static void bad_masks_are_found(void **)
{
    expect_failure("__syncwarp with mask ffffffff names a lane that has left", 0, operate, 64,
                   0);
    expect_failure("whose mask lacks the calling lane", 0, operate, 64, 1);
    expect_failure("a shuffle reads a lane that is not in its mask", 0, operate, 64, 2);
    expect_failure("waits for lanes that are elsewhere", 0, operate, 64, 3);
    expect_failure("waits for lanes that are elsewhere", 0, operate, 64, 4);
}

__global__ static void misuse(int what, float *global)
{
    row &r = port_shared<row>();
    uint32_t m[4];
    if (what == 0)
        port_ldmatrix_trans(m, &r.at[1]);
    if (what == 1)
        port_ldmatrix_trans(m, global);
    if (what == 2)
        port_copy_async(global, &r.at[0]);
    if (what == 3)
        port_copy_async(&r.at[0], global + 1);
}

static void misused_instructions_are_found(void **)
{
    __align__(16) float global[8] = {0};
    expect_failure("ldmatrix of a row that is not", 0, misuse, 32, 0, global);
    expect_failure("ldmatrix of a row that is not", 0, misuse, 32, 1, global);
    expect_failure("cp.async writes to shared memory only", 0, misuse, 32, 2, global);
    expect_failure("not aligned to its size", 0, misuse, 32, 3, global);
}

static int line_of_access;

/* The address of `in` is not a multiple of 16. */
__global__ static void load_odd(int what, const float *in, float *out)
{
    line_of_access = __LINE__ + 1;
    const float4 v = *reinterpret_cast<const float4 *>(in + (what == 0));
    out[0] = v.x;
    if (what == 1) {
        line_of_access = __LINE__ + 1;
        reinterpret_cast<uint2 *>(out)[0] = reinterpret_cast<const uint2 *>(in + 3)[0];
    }
    if (what == 2) {
        line_of_access = __LINE__ + 1;
        const uint4 u = __ldg(reinterpret_cast<const uint4 *>(in + 2));
        out[0] = (float)u.x;
    }
    if (what == 3) {
        line_of_access = __LINE__ + 1;
        out[1] = *reinterpret_cast<const float *>(reinterpret_cast<const char *>(in) + 2);
    }
}

static void misaligned_accesses_are_found(void **)
{
    __align__(16) float in[12] = {0}, out[4];
    for (int what = 0; what < 4; what++) {
        line_of_access = 0;
        assert_int_equal(port_launch(load_odd, 1, 1, 0, NULL, what, in, out), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorLaunchFailure);
        cuda_emu_break(NULL);
        expect_failure("not aligned to its", line_of_access, load_odd, 1, what, in, out);
    }
    run(load_odd, 1, 1, 0, 4, in, out);
}

/* ---- a missing barrier ---- */

static int line_of_write, line_of_read;

__global__ static void race(const float *x, float *y, bool barrier)
{
    row &r = port_shared<row>();
    if (!threadIdx.x && !blockIdx.x)
        line_of_write = __LINE__ + 1;
    r.at[threadIdx.x] = x[threadIdx.x];
    if (barrier)
        __syncthreads();
    if (!threadIdx.x && !blockIdx.x)
        line_of_read = __LINE__ + 1;
    const float other = r.at[(threadIdx.x + 33) % WIDE];
    y[blockIdx.x * WIDE + threadIdx.x] = other;
}

__global__ static void race_in_a_warp(const float *x, float *y, bool barrier)
{
    row &r = port_shared<row>();
    if (!threadIdx.x && !blockIdx.x)
        line_of_write = __LINE__ + 1;
    r.at[threadIdx.x] = x[threadIdx.x];
    if (barrier)
        __syncwarp();
    else
        (void)__any_sync(port_all, 1); /* synchronizes the lanes but does not order memory */
    if (!threadIdx.x && !blockIdx.x)
        line_of_read = __LINE__ + 1;
    const float other = r.at[threadIdx.x ^ 5];
    y[blockIdx.x * WIDE + threadIdx.x] = other;
}

#ifdef __SANITIZE_THREAD__
extern "C" const char *__tsan_default_options(void);
extern "C" const char *__tsan_default_options(void)
{
    /* these reports are intended; also report repeated addresses */
    return "exitcode=0:suppress_equal_addresses=0:suppress_equal_stacks=0";
}

/* Launches the kernel and captures the sanitizer's report in `text`. */
static void run_aside(void (*kernel)(const float *, float *, bool), unsigned blocks,
                      const float *x, bool barrier, char *text, size_t size)
{
    float y[4 * WIDE];
    FILE *log = tmpfile();
    assert_non_null(log);
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    assert_true(kept >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    cudaError_t e = port_launch(kernel, blocks, WIDE, 0, NULL, x, y, barrier);
    if (!e)
        e = cudaStreamSynchronize(NULL);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    assert_int_equal(e, cudaSuccess);
    rewind(log);
    text[fread(text, 1, size - 1, log)] = 0;
    fclose(log);
}

static void assert_named(const char *text, int line)
{
    char want[64];
    snprintf(want, sizeof want, "tests/emu/test_emu.cc:%d ", line);
    if (!strstr(text, want))
        fail_msg("no %s in the report: %s", want, text);
}

static void check_race(void (*kernel)(const float *, float *, bool), const float *x)
{
    static char text[1 << 18];
    cuda_emu_seed(5);
    run_aside(kernel, 4, x, true, text, sizeof text);
    assert_string_equal(text, "");
    run_aside(kernel, 1, x, false, text, sizeof text);
    assert_non_null(strstr(text, "ThreadSanitizer: data race"));
    assert_named(text, line_of_write);
    assert_named(text, line_of_read);
}
#else
/* Without the sanitizer, some order of threads shows a wrong result. */
static void check_race(void (*kernel)(const float *, float *, bool), const float *x)
{
    float want[WIDE], y[WIDE];
    int wrong = 0;
    cuda_emu_seed(0);
    run(kernel, 1, WIDE, 0, x, want, true);
    for (size_t s = 0; s < SEEDS; s++) {
        cuda_emu_seed(seeds[s]);
        run(kernel, 1, WIDE, 0, x, y, true);
        assert_same_f32(y, want, WIDE);
        run(kernel, 1, WIDE, 0, x, y, false);
        wrong += memcmp(y, want, sizeof y) != 0;
    }
    assert_true(kernel == race_in_a_warp || wrong == SEEDS);
}
#endif

static void missing_barriers_are_found(void **)
{
    float *x = vtest_normals(WIDE, 2);
    check_race(race, x);
    check_race(race_in_a_warp, x);
    free(x);
}

/* ---- launches ---- */

__global__ static void sum_after(const float *in, float *out, bool waits)
{
    if (waits)
        port_grid_wait();
    const float sum = in[threadIdx.x] + in[threadIdx.x ^ 1];
    port_grid_wait();
    out[threadIdx.x] = sum;
    port_grid_release();
}

/* Runs sum_after twice; the second launch is early and reads what the first one writes. */
static void sum_early(float *z, const float *x, bool waits)
{
    float y[32];
    for (unsigned i = 0; i < 32; i++)
        y[i] = 0;
    assert_int_equal(port_launch(sum_after, 1, 32, 0, NULL, x, y, true), cudaSuccess);
    assert_int_equal(port_launch_early(sum_after, 1, 32, 0, NULL, y, z, waits), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
}

__global__ static void never_waits(float *out)
{
    out[threadIdx.x] = 1;
}

static void early_launches_see_nothing_before_they_wait(void **)
{
    float x[32], z[32] = {0};
    for (unsigned i = 0; i < 32; i++)
        x[i] = (float)i + 1;
    bool stale = false;
    for (size_t s = 0; s < SEEDS; s++) {
        cuda_emu_seed(seeds[s]);
        sum_early(z, x, true);
        for (unsigned i = 0; i < 32; i++)
            assert_true(z[i] == 2 * (float)(i + (i ^ 1) + 2));
        sum_early(z, x, false);
        for (unsigned i = 0; i < 32; i++)
            stale = stale || z[i] == 0;
        assert_true(s || stale); /* always without a seed */
    }
    cuda_emu_seed(0);
    assert_int_equal(port_launch_early(never_waits, 1, 32, 0, NULL, z), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorLaunchFailure);
    assert_non_null(strstr(cudaGetErrorString(cudaErrorLaunchFailure), "ends without"));
    cuda_emu_break(NULL);
}

/* ---- blocks ---- */

/* The last block to arrive adds what all have written; `wrong`: the last one of the grid. */
__global__ static void last_block_sums(unsigned *parts, unsigned *arrived, unsigned *sum,
                                       bool wrong)
{
    struct flag {
        bool last;
    };
    flag &f = port_shared<flag>();
    if (!threadIdx.x) {
        parts[blockIdx.x] = blockIdx.x + 1;
        __threadfence();
        f.last = atomicAdd(arrived, 1u) + 1 == gridDim.x;
        f.last = wrong ? blockIdx.x + 1 == gridDim.x : f.last;
    }
    __syncthreads();
    if (!threadIdx.x && f.last)
        for (unsigned i = 0; i < gridDim.x; i++)
            *sum += parts[i];
}

/* Counts the blocks that are under way when one begins, itself included. */
__global__ static void meet(unsigned *now, unsigned *counts)
{
    if (!threadIdx.x)
        counts[blockIdx.x] = atomicAdd(now, 1u) + 1;
    __syncthreads();
    __syncthreads();
    if (!threadIdx.x)
        (void)atomicAdd(now, ~0u);
}

/* Waits until `blocks` blocks have come here. */
__global__ static void wait_for_blocks(unsigned *arrived, unsigned blocks)
{
    (void)atomicAdd(arrived, 1u);
    while (atomicAdd(arrived, 0u) < blocks)
        __nanosleep(20);
}

static void blocks_run_side_by_side(void **)
{
    int found = 0;
    for (size_t s = 0; s < SEEDS; s++) {
        unsigned parts[9] = {0}, counts[9] = {0}, arrived = 0, sum = 0, now = 0, most = 0;
        cuda_emu_seed(seeds[s]);
        run(last_block_sums, 9, 64, 0, parts, &arrived, &sum, false);
        assert_int_equal(sum, 45);
        memset(parts, arrived = sum = 0, sizeof parts);
        run(last_block_sums, 9, 64, 0, parts, &arrived, &sum, true);
        found += sum != 45;
        run(meet, 9, 64, 0, &now, counts);
        for (unsigned count : counts)
            most = max(most, count);
        assert_true(now == 0 && most > 1 && most < 9);
        arrived = 0;
        run(wait_for_blocks, 2, 1, 0, &arrived, 2u);
        arrived = 0;
        assert_int_equal(port_launch(wait_for_blocks, 9, 1, 0, NULL, &arrived, 9u),
                         cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorLaunchFailure);
        assert_non_null(strstr(cuda_emu_report(), "all resident blocks sleep"));
        cuda_emu_break(NULL);
    }
    assert_true(found > 0);
    cuda_emu_seed(0);
}

__global__ static void wide(float *) {}

__global__ static void read_twice(float *out)
{
    row &r = port_shared<row>();
    r.at[threadIdx.x] = 1;
    out[threadIdx.x] = port_shared<row>().at[threadIdx.x];
}

static void launches_have_limits(void **)
{
    const cudaError_t bad = cudaErrorInvalidConfiguration;
    float out[WIDE] = {};
    assert_int_equal(port_launch(read_before_writing, 1, 1025, 0, NULL, out), bad);
    assert_int_equal(port_launch(read_before_writing, 0, 32, 0, NULL, out), bad);
    assert_int_equal(port_launch(read_before_writing, dim3(1, 65536), 32, 0, NULL, out), bad);
    /* like a GPU, the emulator requires the attribute for more; port_launch sets it */
    assert_int_equal(
        cuda_emu_launch(false, read_before_writing, 1, 32, (48 << 10) + 1, NULL, out), bad);
    run(read_before_writing, 1, 32, (48 << 10) + 1, out);
    run(read_before_writing, 1, 32, 200 << 10, out);
    /* port_launch does not know the objects of port_shared, which count as well */
    assert_int_equal(cuda_emu_dynamic_limit(reinterpret_cast<const void *>(wide)), 48 << 10);
    run(wide, 1, 32, (24 << 10) + 1, out);
    assert_int_equal(cuda_emu_dynamic_limit(reinterpret_cast<const void *>(wide)),
                     (24 << 10) + 1);
    run(wide, 1, 32, 24 << 10, out); /* the limit stays, also for fewer */
    run(wide, 1, 32, 100 << 10, out);
    run(wide, 1, 32, 50 << 10, out);
    assert_int_equal(cuda_emu_dynamic_limit(reinterpret_cast<const void *>(wide)), 100 << 10);
    assert_int_equal(cudaFuncSetAttribute(read_before_writing,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (227 << 10) + 1),
                     cudaErrorInvalidValue);
    (void)cudaGetLastError();
    /* objects of port_shared count as well */
    const size_t rest = (48 << 10) - sizeof(row);
    assert_int_equal(cuda_emu_launch(false, read_twice, 1, 32, rest, NULL, out), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    assert_int_equal(cuda_emu_launch(false, read_twice, 1, 32, rest + 16, NULL, out),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorLaunchFailure);
    assert_non_null(
        strstr(cudaGetErrorString(cudaErrorLaunchFailure), "more shared memory than allowed"));
    cuda_emu_break(NULL);
    assert_int_equal(cudaFuncSetAttribute(read_before_writing,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          227 << 10),
                     cudaSuccess);
    assert_int_equal(port_launch(read_before_writing, 1, 32, 227 << 10, NULL, out),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorLaunchFailure);
    cuda_emu_break(NULL);
}

VTEST_MAIN(cmocka_unit_test(every_thread_runs_once),
           cmocka_unit_test(warp_operations_are_exact),
           cmocka_unit_test(correct_kernels_do_not_depend_on_order),
           cmocka_unit_test(shared_memory_is_poisoned),
           cmocka_unit_test(copies_complete_when_waited_for),
           cmocka_unit_test(divergent_barriers_are_found),
           cmocka_unit_test(bad_masks_are_found),
           cmocka_unit_test(misused_instructions_are_found),
           cmocka_unit_test(misaligned_accesses_are_found),
           cmocka_unit_test(missing_barriers_are_found),
           cmocka_unit_test(early_launches_see_nothing_before_they_wait),
           cmocka_unit_test(blocks_run_side_by_side), cmocka_unit_test(launches_have_limits))
