/* Uploads, through pinned memory, because a copy from ordinary memory may read it after the
 * call returns. Large ones, usually from a mapped file, go through two buffers in turn on a
 * stream of their own: while one is being transferred, the host fills the other (and reads the
 * file). The host continues after filling the last buffer. The device's stream waits for the
 * transfers, and the transfers for earlier work of that stream unless the memory is new. Small
 * ones are put side by side into the halves of a third buffer, in turn, and transferred on the
 * device's stream. */
#include <string.h>

#include "lib/backend/cuda/cuda.h"

enum {
    BUFFERS = 2,
    BUFFER = 4 << 20,
    MAX_SMALL = 64 << 10, /* bytes of a small upload */
    HALF = 1 << 20,
    ALIGNMENT = 256
};

struct vptq_cuda_stage {
    cudaStream_t stream;
    cudaEvent_t before;        /* earlier work of the device's stream */
    cudaEvent_t done[BUFFERS]; /* the buffer can be filled again */
    void *buffer[BUFFERS];
    unsigned next;
    void *small;               /* two halves */
    cudaEvent_t small_done[2]; /* the half can be filled again */
    unsigned half;
    size_t used; /* bytes of that half */
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
    for (int i = 0; i < 2 && !e; i++)
        e = cudaEventCreateWithFlags(&s->small_done[i], cudaEventDisableTiming);
    return e ? e : cudaHostAlloc(&s->small, 2 * HALF, cudaHostAllocDefault);
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
    for (int i = 0; i < 2; i++)
        if (s->small_done[i])
            (void)cudaEventDestroy(s->small_done[i]);
    if (s->small)
        (void)cudaFreeHost(s->small);
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

static cudaError_t wait_for_work(vptq_dev *dev, vptq_cuda_stage *s)
{
    const cudaError_t e = cudaEventRecord(s->before, dev->stream);
    return e ? e : cudaStreamWaitEvent(s->stream, s->before, 0);
}

static cudaError_t send_all(vptq_dev *dev, vptq_cuda_stage *s, void *dst, const void *src,
                            size_t bytes)
{
    unsigned char *to = static_cast<unsigned char *>(dst);
    const unsigned char *from = static_cast<const unsigned char *>(src);
    cudaEvent_t done = NULL;
    cudaError_t e = cudaSuccess;
    for (size_t at = 0, n; at < bytes && !e; at += n) {
        n = bytes - at < BUFFER ? bytes - at : (size_t)BUFFER;
        e = send(s, to + at, from + at, n, &done);
    }
    return e ? e : cudaStreamWaitEvent(dev->stream, done, 0);
}

/* The other half is free when the copies that were queued from it are done. */
static cudaError_t send_small(vptq_dev *dev, vptq_cuda_stage *s, void *dst, const void *src,
                              size_t bytes)
{
    cudaError_t e = cudaSuccess;
    if (bytes > HALF - s->used) {
        e = cudaEventRecord(s->small_done[s->half], dev->stream);
        s->half = !s->half;
        s->used = 0;
        if (!e)
            e = cudaEventSynchronize(s->small_done[s->half]);
    }
    if (e)
        return e;
    unsigned char *at = static_cast<unsigned char *>(s->small) + s->half * HALF + s->used;
    s->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    memcpy(at, src, bytes);
    return cudaMemcpyAsync(dst, at, bytes, cudaMemcpyHostToDevice, dev->stream);
}

static cudaError_t send_unpinned(vptq_dev *dev, void *dst, const void *src, size_t bytes)
{
    const cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, dev->stream);
    return e ? e : cudaStreamSynchronize(dev->stream); /* src may change afterwards */
}

static vptq_status upload(vptq_dev *dev, void *dst, const void *src, size_t bytes, bool used,
                          vptq_err *err)
{
    cudaError_t e = cudaSuccess;
    if (!bytes)
        return VPTQ_OK;
    vptq_cuda_stage *s = stage_of(dev);
    if (s && bytes > MAX_SMALL) {
        e = used ? wait_for_work(dev, s) : cudaSuccess;
        e = e ? e : send_all(dev, s, dst, src, bytes);
    } else {
        e = s ? send_small(dev, s, dst, src, bytes) : send_unpinned(dev, dst, src, bytes);
    }
    return vptq_cuda_check(e, "an upload", err);
}

vptq_status vptq_cuda_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                             vptq_err *err)
{
    return upload(dev, dst, src, bytes, true, err);
}

vptq_status vptq_cuda_upload_new(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                 vptq_err *err)
{
    return upload(dev, dst, src, bytes, false, err);
}
