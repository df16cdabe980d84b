/* The emulator's streams and events. Work is as late as allowed: a copy between pinned memory
 * and the device is done when something waits for it through its stream, an event or later work
 * of the stream. Everything else is done at once, after what its stream still holds. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "tests/emu/cuda_emu.h"

struct cuda_emu_op {
    cuda_emu_op *next;
    void *to;
    const void *from; /* NULL: wait for the first `upto` operations of stream `on` */
    size_t bytes;
    uint64_t seen; /* hash of the source when the copy was queued */
    cudaStream_t on;
    unsigned long upto;
};

/* Never freed because events may refer to it; destroyed streams are reused. */
struct cuda_emu_stream {
    cuda_emu_op *first, *last;
    unsigned long queued, done;
    bool free;
    cudaStream_t next;
};

struct cuda_emu_event {
    cudaStream_t on;
    unsigned long upto;
    double at; /* seconds of the host's clock at which it was recorded */
};

struct pinned_block {
    unsigned char *at;
    size_t bytes;
    pinned_block *next;
};

static struct {
    pthread_mutex_t lock;
    cuda_emu_stream plain; /* the NULL stream */
    cudaStream_t streams;
    pinned_block *pinned;
} all = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

static cudaStream_t stream_of(cudaStream_t s)
{
    return s ? s : &all.plain;
}

static bool is_pinned(const void *p, size_t bytes)
{
    const unsigned char *at = static_cast<const unsigned char *>(p);
    for (const pinned_block *b = all.pinned; b; b = b->next)
        if (at >= b->at && at + bytes <= b->at + b->bytes)
            return true;
    return false;
}

/* Hash of pinned memory; device memory is not read. */
static uint64_t hash_of(const void *p, size_t bytes)
{
    const unsigned char *at = static_cast<const unsigned char *>(p);
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; is_pinned(p, bytes) && i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

static void drain_to(cudaStream_t s, unsigned long upto)
{
    while (s->done < upto) {
        cuda_emu_op *op = s->first;
        s->first = op->next;
        s->last = s->first ? s->last : NULL;
        s->done++;
        if (!op->from) {
            drain_to(op->on, op->upto);
        } else if (hash_of(op->from, op->bytes) != op->seen) {
            cuda_emu_lose(cudaErrorAssert);
        } else if (!cuda_emu_lost()) {
            cuda_emu_enter();
            memcpy(op->to, op->from, op->bytes);
            cuda_emu_leave();
        }
        free(op);
    }
}

static void queue(cudaStream_t s, cuda_emu_op what)
{
    cuda_emu_op *op = static_cast<cuda_emu_op *>(malloc(sizeof *op));
    if (!op)
        abort();
    *op = what;
    (s->last ? s->last->next : s->first) = op;
    s->last = op;
    s->queued++;
}

void cuda_emu_drain(cudaStream_t stream)
{
    pthread_mutex_lock(&all.lock);
    cudaStream_t s = stream_of(stream);
    drain_to(s, s->queued);
    pthread_mutex_unlock(&all.lock);
}

void cuda_emu_drain_all(void)
{
    pthread_mutex_lock(&all.lock);
    drain_to(&all.plain, all.plain.queued);
    for (cudaStream_t s = all.streams; s; s = s->next)
        drain_to(s, s->queued);
    pthread_mutex_unlock(&all.lock);
}

bool cuda_emu_later(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    pthread_mutex_lock(&all.lock);
    const bool later = bytes && (is_pinned(to, bytes) || is_pinned(from, bytes));
    if (later)
        queue(stream_of(stream),
              {.to = to, .from = from, .bytes = bytes, .seen = hash_of(from, bytes)});
    else
        cuda_emu_drain(stream);
    pthread_mutex_unlock(&all.lock);
    return later;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    pthread_mutex_lock(&all.lock);
    cudaStream_t s = all.streams;
    while (s && !s->free)
        s = s->next;
    if (!s) {
        s = static_cast<cudaStream_t>(calloc(1, sizeof *s));
        if (!s)
            abort();
        s->next = all.streams;
        all.streams = s;
    }
    s->free = false;
    *stream = s;
    pthread_mutex_unlock(&all.lock);
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cuda_emu_drain(stream);
    if (stream)
        stream->free = true;
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    bool skip = false;
    if (cuda_emu_refuses(stream))
        return cuda_emu_remember(cudaErrorStreamCaptureUnsupported);
    cuda_emu_drain(stream);
    return cuda_emu_remember(cuda_emu_verdict(CUDA_EMU_WAIT, true, &skip));
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = static_cast<cudaEvent_t>(calloc(1, sizeof **event));
    if (!*event)
        abort();
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cuda_emu_remember(cuda_emu_broken());
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    pthread_mutex_lock(&all.lock);
    event->on = stream_of(stream);
    event->upto = event->on->queued;
    event->at = seconds();
    pthread_mutex_unlock(&all.lock);
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    *milliseconds = (float)(1e3 * (end->at - begin->at));
    return cuda_emu_remember(begin->on && end->on ? cuda_emu_broken() : cudaErrorInvalidValue);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    bool skip = false;
    pthread_mutex_lock(&all.lock);
    if (event->on)
        drain_to(event->on, event->upto);
    pthread_mutex_unlock(&all.lock);
    return cuda_emu_remember(cuda_emu_verdict(CUDA_EMU_WAIT, true, &skip));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    pthread_mutex_lock(&all.lock);
    if (event->on)
        queue(stream_of(stream), {.on = event->on, .upto = event->upto});
    pthread_mutex_unlock(&all.lock);
    return cuda_emu_remember(cuda_emu_broken());
}

/* ---- pinned memory ---- */

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    bool skip = false;
    *p = NULL;
    const cudaError_t broken = cuda_emu_verdict(CUDA_EMU_PINNED, false, &skip);
    pinned_block *b = static_cast<pinned_block *>(broken ? NULL : malloc(sizeof *b));
    if (!b)
        return cuda_emu_remember(broken ? broken : cudaErrorMemoryAllocation);
    *b = {static_cast<unsigned char *>(malloc(bytes)), bytes, NULL};
    if (!b->at)
        abort();
    pthread_mutex_lock(&all.lock);
    b->next = all.pinned;
    all.pinned = b;
    pthread_mutex_unlock(&all.lock);
    *p = b->at;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    cuda_emu_drain_all();
    pthread_mutex_lock(&all.lock);
    for (pinned_block **link = &all.pinned; *link; link = &(*link)->next)
        if ((*link)->at == p) {
            pinned_block *b = *link;
            *link = b->next;
            free(b->at);
            free(b);
            break;
        }
    pthread_mutex_unlock(&all.lock);
    return cuda_emu_remember(cuda_emu_broken());
}
