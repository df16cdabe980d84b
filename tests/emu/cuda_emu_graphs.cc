/* The emulator's graphs: a stream that is recorded does nothing of what it is given, and each
 * launch of the graph gives all of it to a stream. Calls that a real device refuses while it
 * records fail here, too. */
#include <stdlib.h>

#include "tests/emu/cuda_emu_streams.h"

struct cuda_emu_graph {
    cuda_emu_ops ops;
    unsigned users; /* the graph itself, and those made ready from it */
};

struct cuda_emu_graph_exec {
    cuda_emu_graph *of;
};

static cudaStream_t recording;
static cuda_emu_ops recorded;
static bool refused;

cuda_emu_ops *cuda_emu_recorded(cudaStream_t stream)
{
    return recording && stream == recording ? &recorded : NULL;
}

bool cuda_emu_refuses(cudaStream_t stream)
{
    if (!cuda_emu_recorded(stream))
        return false;
    refused = true;
    return true;
}

static void leave(cuda_emu_graph *g)
{
    if (--g->users)
        return;
    while (g->ops.first)
        cuda_emu_free_op(cuda_emu_take(&g->ops));
    free(g);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (recording || !stream)
        return cuda_emu_remember(cudaErrorStreamCaptureUnsupported);
    recording = stream;
    recorded = {};
    refused = false;
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    const bool bad = refused || stream != recording;
    const cuda_emu_graph made = {recorded, 1};
    *graph = static_cast<cudaGraph_t>(cuda_emu_copy_of(&made, sizeof made));
    recording = NULL;
    recorded = {};
    if (!bad)
        return cuda_emu_remember(cuda_emu_broken());
    leave(*graph);
    *graph = NULL;
    return cuda_emu_remember(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long)
{
    const cuda_emu_graph_exec made = {graph};
    *ready = static_cast<cudaGraphExec_t>(cuda_emu_copy_of(&made, sizeof made));
    graph->users++;
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream)
{
    for (const cuda_emu_op *op = ready->of->ops.first; op; op = op->next)
        cuda_emu_repeat(op, stream);
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready)
{
    leave(ready->of);
    free(ready);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    leave(graph);
    return cudaSuccess;
}
