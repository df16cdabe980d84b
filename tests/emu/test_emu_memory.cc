/* The emulator's memory, faults and streams: limits, protection against the host, failures on
 * demand, and copies that complete as late as CUDA allows. */
#include "tests/emu/launch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void memory_is_counted(void **)
{
    void *a = NULL, *b = NULL;
    cuda_emu_memory(1000);
    assert_int_equal(cudaMalloc(&a, 600), cudaSuccess);
    assert_true(isnan(*static_cast<float *>(a)));
    assert_int_equal(cudaMalloc(&b, 401), cudaErrorMemoryAllocation);
    assert_null(b);
    assert_int_equal(cudaMalloc(&b, 400), cudaSuccess);
    assert_int_equal(cuda_emu_memory_used(), 1000);
    assert_int_equal(cudaFree(a), cudaSuccess);
    assert_int_equal(cudaFree(b), cudaSuccess);
    assert_int_equal(cudaFree(NULL), cudaSuccess);
    assert_int_equal(cuda_emu_memory_used(), 0);
    cuda_emu_memory(0);
    (void)cudaGetLastError();
}

/* Whether a child process can read p. */
static bool host_may_read(const float *p)
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*static_cast<const volatile float *>(p) == 3 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static __global__ void add_one(float *p)
{
    *p += 1;
}

static void memory_is_guarded(void **)
{
    void *p = NULL, *q = NULL;
    float host = 2, back = 0;
    cuda_emu_guard(true);
    assert_int_equal(cudaMalloc(&p, sizeof host), cudaSuccess);
    float *x = static_cast<float *>(p);
    assert_int_equal(cudaMemcpyAsync(x, &host, sizeof host, cudaMemcpyHostToDevice, NULL),
                     cudaSuccess);
    run(add_one, 1, 1, 0, x);
    assert_false(host_may_read(x));
    assert_int_equal(cudaMalloc(&q, sizeof host), cudaSuccess); /* closed again afterwards */
    assert_false(host_may_read(x));
    assert_int_equal(cudaMemcpyAsync(&back, x, sizeof back, cudaMemcpyDeviceToHost, NULL),
                     cudaSuccess);
    assert_true(back == 3);
    assert_int_equal(port_launch(add_one, 1, 1, 0, NULL, &host), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(&host, &back, 4, cudaMemcpyHostToDevice, NULL),
                     cudaErrorInvalidValue);
    assert_true(host == 2);
    cuda_emu_guard(false);
    assert_true(host_may_read(x));
    assert_int_equal(cudaFree(p), cudaSuccess);
    assert_int_equal(cudaFree(q), cudaSuccess);
    assert_int_equal(cudaFree(&host), cudaErrorInvalidValue);
    (void)cudaGetLastError();
}

/* A refused launch or allocation has no later effect. A dead kernel does: the first call that
 * waits for the device reports it, and nothing after it is done. */
static void faults_occur_at_the_requested_call(void **)
{
    void *p = NULL, *q = NULL;
    float host = 2;
    const cuda_emu_counts before = cuda_emu_count();
    assert_int_equal(cudaMalloc(&p, sizeof host), cudaSuccess);
    float *x = static_cast<float *>(p);
    *x = 1;
    cuda_emu_break("launch:2");
    run(add_one, 1, 1, 0, x);
    assert_int_equal(port_launch(add_one, 1, 1, 0, NULL, x), cudaErrorLaunchOutOfResources);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchOutOfResources);
    run(add_one, 1, 1, 0, x);
    assert_true(*x == 3);
    cuda_emu_break("alloc:1");
    for (int i = 0; i < 2; i++)
        assert_int_equal(cudaMalloc(&q, 1), cudaErrorMemoryAllocation);
    (void)cudaGetLastError();
    assert_int_equal(cudaMalloc(&q, 1), cudaSuccess);
    cuda_emu_break("kernel:1");
    assert_int_equal(port_launch(add_one, 1, 1, 0, NULL, x), cudaSuccess);
    assert_int_equal(port_launch(add_one, 1, 1, 0, NULL, x), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(x, &host, 4, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    assert_true(*x == 3);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorIllegalAddress);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
        assert_int_equal(port_launch(add_one, 1, 1, 0, NULL, x), cudaErrorIllegalAddress);
    }
    cuda_emu_break("copy:2");
    assert_int_equal(cudaMemcpyAsync(x, &host, 4, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    assert_true(*x == 2);
    assert_int_equal(cudaMemcpyAsync(&host, x, 4, cudaMemcpyDeviceToHost, NULL),
                     cudaErrorECCUncorrectable);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorECCUncorrectable);
    cuda_emu_break(NULL);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
    assert_int_equal(cudaFree(q), cudaSuccess);
    const cuda_emu_counts after = cuda_emu_count();
    assert_int_equal(after.launches - before.launches, 7);
    assert_int_equal(after.copies - before.copies, 3);
    assert_int_equal(after.allocations - before.allocations, 4);
}

static void bytes_of_copies_are_counted(void **)
{
    void *p = NULL, *q = NULL, *pinned = NULL;
    char host[64] = {};
    assert_int_equal(cudaMalloc(&p, sizeof host), cudaSuccess);
    assert_int_equal(cudaMalloc(&q, sizeof host), cudaSuccess);
    assert_int_equal(cudaHostAlloc(&pinned, sizeof host, cudaHostAllocDefault), cudaSuccess);
    const cuda_emu_counts before = cuda_emu_count();
    assert_int_equal(cudaMemcpyAsync(p, host, 64, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    memset(pinned, 1, 64);
    assert_int_equal(cudaMemcpyAsync(q, pinned, 32, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(p, 0, 7, NULL), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(p, q, 16, cudaMemcpyDeviceToDevice, NULL), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(host, p, 8, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
    cuda_emu_break("copy:1"); /* a copy that fails moves nothing */
    assert_int_equal(cudaMemcpyAsync(p, host, 64, cudaMemcpyHostToDevice, NULL),
                     cudaErrorECCUncorrectable);
    cuda_emu_break(NULL);
    const cuda_emu_counts after = cuda_emu_count();
    assert_int_equal(after.uploaded - before.uploaded, 64 + 32);
    assert_int_equal(after.downloaded - before.downloaded, 8);
    assert_int_equal(cudaFree(p), cudaSuccess);
    assert_int_equal(cudaFree(q), cudaSuccess);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
}

/* A copy from pinned memory is done when something waits for it. Until then a kernel on another
 * stream sees the old contents, and the host must not change the buffer. */
static void copies_of_pinned_memory_complete_late(void **)
{
    void *p = NULL, *q = NULL;
    cudaStream_t copies, work;
    cudaEvent_t event;
    assert_int_equal(cudaMalloc(&p, sizeof(float)), cudaSuccess);
    assert_int_equal(cudaHostAlloc(&q, 2 * sizeof(float), cudaHostAllocDefault), cudaSuccess);
    float *x = static_cast<float *>(p), *pinned = static_cast<float *>(q);
    assert_int_equal(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&work), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventSynchronize(event), cudaSuccess); /* nothing recorded yet */
    const auto copy = [=](float value) {
        *pinned = value;
        assert_int_equal(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyHostToDevice, copies),
                         cudaSuccess);
    };
    copy(2); /* nothing waits */
    assert_int_equal(port_launch(add_one, 1, 1, 0, work, x), cudaSuccess);
    assert_true(isnan(*x));
    assert_int_equal(cudaStreamSynchronize(work), cudaSuccess);
    assert_true(isnan(*x));
    assert_int_equal(cudaStreamSynchronize(copies), cudaSuccess);
    assert_true(*x == 2);

    copy(5); /* the other stream waits */
    assert_int_equal(cudaEventRecord(event, copies), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(work, event, 0), cudaSuccess);
    assert_true(*x == 2);
    assert_int_equal(port_launch(add_one, 1, 1, 0, work, x), cudaSuccess);
    assert_true(*x == 2);
    assert_int_equal(cudaStreamSynchronize(work), cudaSuccess);
    assert_true(*x == 6);

    copy(7); /* the host waits, for the work at the time of the record */
    assert_int_equal(cudaEventRecord(event, copies), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(pinned + 1, x, 4, cudaMemcpyDeviceToHost, copies),
                     cudaSuccess);
    pinned[1] = 0;
    assert_int_equal(cudaEventSynchronize(event), cudaSuccess);
    assert_true(*x == 7 && pinned[1] == 0);
    assert_int_equal(cudaStreamSynchronize(copies), cudaSuccess);
    assert_true(pinned[1] == 7);

    copy(8);
    *pinned = 9; /* too early */
    assert_int_equal(cudaStreamSynchronize(copies), cudaErrorAssert);
    assert_int_equal(cudaStreamSynchronize(work), cudaErrorAssert);
    cuda_emu_break(NULL);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(copies), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(work), cudaSuccess);
    assert_int_equal(cudaFreeHost(q), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
}

static __global__ void append(unsigned *log, unsigned what)
{
    log[++log[0]] = what;
}

/* Kernels run when something waits for them. What the host passes is copied at the launch, what
 * it copies from ordinary memory as well. */
static void kernels_run_late(void **)
{
    void *p = NULL;
    unsigned start = 0, back[4];
    assert_int_equal(cudaMalloc(&p, sizeof back), cudaSuccess);
    unsigned *log = static_cast<unsigned *>(p);
    assert_int_equal(cudaMemsetAsync(log, 0x11, sizeof back, NULL), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(log, &start, 4, cudaMemcpyHostToDevice, NULL),
                     cudaSuccess);
    start = 77;
    assert_int_equal(port_launch(append, 1, 1, 0, NULL, log, 5u), cudaSuccess);
    assert_int_equal(log[0], ~0u);
    assert_int_equal(cudaMemcpyAsync(back, log, sizeof back, cudaMemcpyDeviceToHost, NULL),
                     cudaSuccess);
    assert_true(back[0] == 1 && back[1] == 5 && back[2] == 0x11111111);
    assert_int_equal(cudaFree(p), cudaSuccess);
}

/* Two streams: their order depends on the seed unless an event orders them. */
static void streams_overlap(void **)
{
    void *p = NULL;
    cudaStream_t one, two;
    cudaEvent_t event;
    bool seen[2] = {false, false};
    assert_int_equal(cudaMalloc(&p, 16 * sizeof(unsigned)), cudaSuccess);
    unsigned *log = static_cast<unsigned *>(p);
    assert_int_equal(cudaStreamCreate(&one), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&two), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    for (unsigned seed = 0; seed < 20; seed++) {
        cuda_emu_seed(seed);
        for (unsigned ordered = 0; ordered < 2; ordered++) {
            log[0] = 0;
            assert_int_equal(port_launch(append, 1, 1, 0, one, log, 1u), cudaSuccess);
            assert_int_equal(port_launch(append, 1, 1, 0, one, log, 2u), cudaSuccess);
            assert_int_equal(cudaEventRecord(event, one), cudaSuccess);
            if (ordered)
                assert_int_equal(cudaStreamWaitEvent(two, event, 0), cudaSuccess);
            assert_int_equal(port_launch(append, 1, 1, 0, two, log, 3u), cudaSuccess);
            assert_int_equal(port_launch(append, 1, 1, 0, two, log, 4u), cudaSuccess);
            assert_int_equal(cudaStreamSynchronize(two), cudaSuccess);
            assert_int_equal(cudaStreamSynchronize(one), cudaSuccess);
            assert_int_equal(log[0], 4);
            const bool in_order = log[1] == 1 && log[2] == 2 && log[3] == 3 && log[4] == 4;
            assert_true(in_order || !ordered);
            seen[in_order] = true;
        }
    }
    assert_true(seen[false] && seen[true]);
    cuda_emu_seed(0);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(one), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(two), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
}

/* A stream that is recorded does nothing; the graph does it at every launch, with the arguments
 * of the recording, and records its events then. */
static void graphs_run_when_launched(void **)
{
    void *p = NULL;
    cudaStream_t stream;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    float seconds = 0;
    assert_int_equal(cudaMalloc(&p, 16 * sizeof(unsigned)), cudaSuccess);
    unsigned *log = static_cast<unsigned *>(p);
    log[0] = 0;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    assert_int_equal(port_launch(append, 1, 1, 0, stream, log, 5u), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(log + 8, log, 4, cudaMemcpyDeviceToDevice, stream),
                     cudaSuccess);
    assert_int_equal(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal),
                     cudaSuccess);
    assert_int_equal(port_launch(append, 1, 1, 0, stream, log, 6u), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(log[0], 0);
    assert_int_equal(cudaEventElapsedTime(&seconds, event, event), cudaErrorInvalidValue);
    for (unsigned times = 1; times <= 2; times++) {
        assert_int_equal(cudaGraphLaunch(ready, stream), cudaSuccess);
        assert_int_equal(log[0], 2 * times - 2);
        assert_int_equal(cudaEventSynchronize(event), cudaSuccess);
        assert_true(log[0] == 2 * times - 1 && log[8] == log[0]);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        assert_int_equal(log[0], 2 * times);
    }
    assert_true(log[1] == 5 && log[2] == 6 && log[3] == 5 && log[4] == 6);
    assert_int_equal(cudaGraphExecDestroy(ready), cudaSuccess);
    (void)cudaGetLastError();
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);
}

/* Waiting spoils a recording, and so do events of other streams. */
static void recordings_refuse_to_wait(void **)
{
    cudaStream_t stream;
    cudaEvent_t event;
    cudaGraph_t graph;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
    assert_int_equal(cudaEventRecord(event, NULL), cudaSuccess);
    for (int what = 0; what < 3; what++) {
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
                         cudaSuccess);
        if (what == 0)
            assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
        else if (what == 1)
            assert_int_equal(cudaStreamWaitEvent(stream, event, 0),
                             cudaErrorStreamCaptureIsolation);
        else
            assert_int_equal(cudaEventRecord(event, stream), cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaStreamEndCapture(stream, &graph),
                         cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
    }
    (void)cudaGetLastError();
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

VTEST_MAIN(cmocka_unit_test(memory_is_counted), cmocka_unit_test(memory_is_guarded),
           cmocka_unit_test(faults_occur_at_the_requested_call),
           cmocka_unit_test(bytes_of_copies_are_counted), cmocka_unit_test(kernels_run_late),
           cmocka_unit_test(streams_overlap), cmocka_unit_test(graphs_run_when_launched),
           cmocka_unit_test(recordings_refuse_to_wait),
           cmocka_unit_test(copies_of_pinned_memory_complete_late))
