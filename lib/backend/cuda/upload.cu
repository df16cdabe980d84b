/* Uploads. Large ones from ordinary memory, usually a mapped file, go through two pinned
 * buffers in turn on a stream of their own: while one is being transferred, the host fills the
 * other (and reads the file). The host continues after filling the last buffer. The device's
 * stream waits for the transfers, and the transfers for earlier work of that stream. */
#include <string.h>

#include "lib/backend/cuda/cuda.h"

enum {
    BUFFERS = 2,
    BUFFER = 4 << 20,
    MIN_STAGED = 64 << 10 /* the driver's own buffers suffice */
};

struct vptq_cuda_stage {
    cudaStream_t stream;
    cudaEvent_t before;        /* earlier work of the device's stream */
    cudaEvent_t done[BUFFERS]; /* the buffer can be filled again */
    void *buffer[BUFFERS];
    unsigned next;
};

/* ---- the pinned buffers ---- */

static cudaError_t open_stage(vptq_cuda_stage *s)
{
    cudaError_t e = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
    if (!e)
        e = cudaEventCreateWithFlags(&s->before, cudaEventDisableTiming);
    for (int i = 0; i < BUFFERS && !e; i++) {
        e = cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming);
        if (!e)
            e = cudaHostAlloc(&s->buffer[i], BUFFER, cudaHostAllocDefault);
    }
    return e;
}

void vptq_cuda_stage_close(vptq_dev *dev)
{
    vptq_cuda_stage *s = dev->stage;
    if (!s)
        return;
    if (s->stream) {
        (void)cudaStreamSynchronize(s->stream);
        (void)cudaStreamDestroy(s->stream);
    }
    if (s->before)
        (void)cudaEventDestroy(s->before);
    for (int i = 0; i < BUFFERS; i++) {
        if (s->done[i])
            (void)cudaEventDestroy(s->done[i]);
        if (s->buffer[i])
            (void)cudaFreeHost(s->buffer[i]);
    }
    vptq_mem_free(dev->ctx->mem, s);
    dev->stage = NULL;
}

/* Opens the buffers on first use; NULL if pinned memory is not available, which only makes
 * uploads slower. */
static vptq_cuda_stage *stage_of(vptq_dev *dev)
{
    if (dev->stage || dev->stage_failed)
        return dev->stage;
    dev->stage_failed = true;
    void *memory = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *dev->stage, NULL);
    if (!memory)
        return NULL;
    memset(memory, 0, sizeof *dev->stage);
    dev->stage = static_cast<vptq_cuda_stage *>(memory);
    const cudaError_t e = open_stage(dev->stage);
    if (e) {
        (void)cudaGetLastError();
        vptq_log(dev->ctx, VPTQ_LOG_MORE, "uploads go without pinned memory: %s",
                 cudaGetErrorString(e));
        vptq_cuda_stage_close(dev);
    }
    return dev->stage;
}

/* ---- copying ---- */

/* Fills the next buffer when it is free and starts its transfer to `to`. */
static cudaError_t send(vptq_cuda_stage *s, unsigned char *to, const unsigned char *from,
                        size_t bytes, cudaEvent_t *done)
{
    void *buffer = s->buffer[s->next];
    *done = s->done[s->next];
    s->next = (s->next + 1) % BUFFERS;
    cudaError_t e = cudaEventSynchronize(*done);
    if (e)
        return e;
    memcpy(buffer, from, bytes);
    e = cudaMemcpyAsync(to, buffer, bytes, cudaMemcpyHostToDevice, s->stream);
    return e ? e : cudaEventRecord(*done, s->stream);
}

static cudaError_t send_all(vptq_dev *dev, vptq_cuda_stage *s, void *dst, const void *src,
                            size_t bytes)
{
    unsigned char *to = static_cast<unsigned char *>(dst);
    const unsigned char *from = static_cast<const unsigned char *>(src);
    cudaEvent_t done = NULL;
    cudaError_t e = cudaEventRecord(s->before, dev->stream);
    if (!e)
        e = cudaStreamWaitEvent(s->stream, s->before, 0);
    for (size_t at = 0, n; at < bytes && !e; at += n) {
        n = bytes - at < BUFFER ? bytes - at : (size_t)BUFFER;
        e = send(s, to + at, from + at, n, &done);
    }
    return e ? e : cudaStreamWaitEvent(dev->stream, done, 0);
}

vptq_status vptq_cuda_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                             vptq_err *err)
{
    vptq_cuda_stage *s = bytes > MIN_STAGED ? stage_of(dev) : NULL;
    return vptq_cuda_check(
        s ? send_all(dev, s, dst, src, bytes)
          : cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, dev->stream),
        "an upload", err);
}
