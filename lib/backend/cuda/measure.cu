/* For benchmarks: time of queued work by the device's clock (what the work launches becomes one
 * graph, which runs between two events of its own, so that the host's part of launches does not
 * count), and the libraries' products in float16. */
#include "lib/backend/cuda/library.h"

struct graph_run {
    cudaEvent_t begin, end;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
};

static void close_run(graph_run *r)
{
    if (r->ready)
        (void)cudaGraphExecDestroy(r->ready);
    if (r->graph)
        (void)cudaGraphDestroy(r->graph);
    if (r->begin)
        (void)cudaEventDestroy(r->begin);
    if (r->end)
        (void)cudaEventDestroy(r->end);
}

/* Records fn's launches instead of running them; always ends the recording. */
static vptq_status record(vptq_dev *dev, vptq_work_fn *fn, void *arg, graph_run *r,
                          vptq_err *err)
{
    cudaError_t e = cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeRelaxed);
    if (e)
        return vptq_cuda_check(e, "recording a graph", err);
    dev->recording = true;
    e = cudaEventRecordWithFlags(r->begin, dev->stream, cudaEventRecordExternal);
    const vptq_status st = e ? VPTQ_OK : fn(arg, err);
    if (!e && !st)
        e = cudaEventRecordWithFlags(r->end, dev->stream, cudaEventRecordExternal);
    dev->recording = false;
    const cudaError_t ended = cudaStreamEndCapture(dev->stream, &r->graph);
    if (st)
        (void)cudaGetLastError();
    return st ? st : vptq_cuda_check(e ? e : ended, "recording a graph", err);
}

static cudaError_t run(vptq_dev *dev, graph_run *r, float *milliseconds)
{
    cudaError_t e = cudaGraphInstantiate(&r->ready, r->graph, 0);
    if (!e)
        e = cudaGraphUpload(r->ready, dev->stream);
    if (!e)
        e = cudaStreamSynchronize(dev->stream);
    if (!e)
        e = cudaGraphLaunch(r->ready, dev->stream);
    if (!e)
        e = cudaStreamSynchronize(dev->stream);
    return e ? e : cudaEventElapsedTime(milliseconds, r->begin, r->end);
}

vptq_status vptq_cuda_measure(vptq_dev *dev, vptq_work_fn *fn, void *arg, double *seconds,
                              vptq_err *err)
{
    graph_run r = {};
    float milliseconds = 0;
    cudaError_t e = cudaStreamSynchronize(dev->stream);
    if (!e)
        e = cudaEventCreateWithFlags(&r.begin, cudaEventDefault);
    if (!e)
        e = cudaEventCreateWithFlags(&r.end, cudaEventDefault);
    vptq_status st = vptq_cuda_check(e, "measuring", err);
    if (!st)
        st = record(dev, fn, arg, &r, err);
    if (!st)
        st = vptq_cuda_check(run(dev, &r, &milliseconds), "a graph", err);
    *seconds = 1e-3 * (double)milliseconds;
    close_run(&r);
    return st;
}
