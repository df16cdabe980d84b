/* The emulator's graphs: what a stream records is queued while it is recorded, and launching
 * the graph does nothing. Calls that a real device refuses while it records fail here, too. */
#include <stdlib.h>

#include "tests/emu/cuda_emu.h"

static cudaStream_t recording;
static bool refused;

bool cuda_emu_refuses(cudaStream_t stream)
{
    if (!recording || stream != recording)
        return false;
    refused = true;
    return true;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (recording)
        return cuda_emu_remember(cudaErrorStreamCaptureUnsupported);
    cuda_emu_drain(stream);
    recording = stream;
    refused = false;
    return cuda_emu_remember(cuda_emu_broken());
}

struct cuda_emu_graph {
    bool ready;
};

static cuda_emu_graph *make(bool ready)
{
    cuda_emu_graph *g = static_cast<cuda_emu_graph *>(malloc(sizeof *g));
    if (!g)
        abort();
    g->ready = ready;
    return g;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = NULL;
    const bool bad = refused || stream != recording;
    recording = NULL;
    if (bad)
        return cuda_emu_remember(cudaErrorStreamCaptureInvalidated);
    *graph = make(false);
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t, unsigned long long)
{
    *ready = make(true);
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t)
{
    return cuda_emu_remember(ready->ready ? cuda_emu_broken() : cudaErrorInvalidValue);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready)
{
    free(ready);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    free(graph);
    return cudaSuccess;
}
