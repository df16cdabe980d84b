/* The emulator's streams and events. Everything that a stream is given waits in a queue, and is
 * done as late as allowed: when the host waits for it, through its stream, an event or a copy
 * to memory that is not pinned, or when another stream does. With a seed, streams that nobody
 * waits for get on as well, now and then. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "tests/emu/cuda_emu_streams.h"

/* Never freed because events may refer to it; destroyed streams are reused. */
struct cuda_emu_stream {
    cuda_emu_ops ops; /* that are left */
    unsigned long queued, done;
    bool free;
    cudaStream_t next;
};

struct cuda_emu_event {
    cudaStream_t on;
    unsigned long upto;
    double at; /* seconds of the host's clock: when it was recorded or, in a graph, reached */
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
    bool waiting; /* in a WAIT */
    bool ahead;   /* the next kernel has started early */
} all = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

static cudaStream_t stream_of(cudaStream_t s)
{
    return s ? s : &all.plain;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    const size_t end = is_pinned(p, bytes) ? bytes : 0;
    for (size_t i = 0; i < end; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

static void drain_to(cudaStream_t s, unsigned long upto);

static void copy_or_set(const cuda_emu_op *op)
{
    if (op->kind == CUDA_EMU_OP_COPY && !op->staged &&
        hash_of(op->from, op->bytes) != op->seen) {
        cuda_emu_lose(cudaErrorAssert);
        return;
    }
    cuda_emu_enter();
    if (op->kind == CUDA_EMU_OP_COPY)
        memcpy(op->to, op->from, op->bytes);
    else
        memset(op->to, op->value, op->bytes);
    cuda_emu_leave();
}

/* Does an operation. `next` may start before it has ended, unless it is NULL. */
static void perform(const cuda_emu_op *op, const cuda_emu_op *next)
{
    if (op->kind == CUDA_EMU_OP_WAIT) {
        const bool before = all.waiting;
        all.waiting = true;
        drain_to(op->on, op->upto);
        all.waiting = before;
    } else if (op->kind == CUDA_EMU_OP_RECORD) {
        op->event->at = seconds();
    } else if (cuda_emu_lost()) {
        return;
    } else if (op->kind == CUDA_EMU_OP_KERNEL) {
        const bool good = cuda_emu_run(&op->kernel, next ? &next->kernel : NULL);
        all.ahead = next && good;
        if (!good)
            cuda_emu_lose(cudaErrorLaunchFailure);
    } else {
        copy_or_set(op);
    }
}

/* Does the first operation of some other stream, if the seed wants it. */
static void favour_another(const cuda_emu_stream *than)
{
    if (all.waiting || all.ahead)
        return;
    for (cudaStream_t s = all.streams; s; s = s->next)
        if (s != than && s->done < s->queued && cuda_emu_chance(3))
            drain_to(s, s->done + 1);
}

static void drain_to(cudaStream_t s, unsigned long upto)
{
    while (s->done < upto) {
        favour_another(s);
        if (s->done >= upto)
            return;
        cuda_emu_op *op = cuda_emu_take(&s->ops);
        const cuda_emu_op *next = s->ops.first;
        s->done++;
        const bool early = s->done < upto && next->kind == CUDA_EMU_OP_KERNEL &&
                           next->kernel.early && !cuda_emu_chance(4);
        perform(op, op->kind == CUDA_EMU_OP_KERNEL && early ? next : NULL);
        cuda_emu_free_op(op);
    }
}

void cuda_emu_append(cuda_emu_ops *ops, const cuda_emu_op &what)
{
    cuda_emu_op *op = static_cast<cuda_emu_op *>(cuda_emu_copy_of(&what, sizeof what));
    op->next = NULL;
    (ops->last ? ops->last->next : ops->first) = op;
    ops->last = op;
}

cuda_emu_op *cuda_emu_take(cuda_emu_ops *ops)
{
    cuda_emu_op *op = ops->first;
    ops->first = op->next;
    ops->last = ops->first ? ops->last : NULL;
    return op;
}

void cuda_emu_free_op(cuda_emu_op *op)
{
    free(op->kernel.arg);
    free(op->staged);
    free(op);
}

static void queue(cudaStream_t stream, const cuda_emu_op &what)
{
    pthread_mutex_lock(&all.lock);
    cudaStream_t s = stream_of(stream);
    cuda_emu_ops *recorded = cuda_emu_recorded(stream);
    cuda_emu_append(recorded ? recorded : &s->ops, what);
    s->queued += !recorded;
    pthread_mutex_unlock(&all.lock);
}

void cuda_emu_repeat(const cuda_emu_op *op, cudaStream_t stream)
{
    cuda_emu_op again = *op;
    if (op->kernel.arg)
        again.kernel.arg = cuda_emu_copy_of(op->kernel.arg, op->kernel.arg_bytes);
    if (op->kind == CUDA_EMU_OP_COPY)
        again.seen = hash_of(op->from, op->bytes);
    queue(stream, again);
    if (op->kind == CUDA_EMU_OP_RECORD)
        (void)cudaEventRecord(op->event, stream);
}

void *cuda_emu_copy_of(const void *p, size_t bytes)
{
    void *copy = malloc(bytes + !bytes);
    if (!copy)
        abort();
    memcpy(copy, p, bytes);
    return copy;
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

cudaError_t cuda_emu_queue_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                cudaStream_t stream)
{
    if (!bytes)
        return cudaSuccess;
    pthread_mutex_lock(&all.lock);
    cuda_emu_op op = {.kind = CUDA_EMU_OP_COPY, .to = to, .from = from, .bytes = bytes};
    const bool pageable = kind != cudaMemcpyDeviceToDevice &&
                          !is_pinned(kind == cudaMemcpyHostToDevice ? from : to, bytes);
    if (pageable && cuda_emu_refuses(stream)) {
        pthread_mutex_unlock(&all.lock);
        return cudaErrorStreamCaptureUnsupported;
    }
    if (pageable && kind == cudaMemcpyHostToDevice)
        op.from = op.staged = cuda_emu_copy_of(from, bytes);
    else
        op.seen = hash_of(from, bytes);
    queue(stream, op);
    if (pageable && kind == cudaMemcpyDeviceToHost)
        cuda_emu_drain(stream);
    pthread_mutex_unlock(&all.lock);
    return cudaSuccess;
}

void cuda_emu_queue_set(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (bytes)
        queue(stream, {.kind = CUDA_EMU_OP_SET, .to = to, .bytes = bytes, .value = value});
}

cudaError_t cuda_emu_start(const cuda_emu_kernel *k, cudaStream_t stream)
{
    bool skip = false;
    cudaError_t e = cuda_emu_verdict(CUDA_EMU_LAUNCH, false, &skip);
    if (!e && !skip && !cuda_emu_launchable(k))
        e = cudaErrorInvalidConfiguration;
    if (e || skip)
        free(k->arg);
    else
        queue(stream, {.kind = CUDA_EMU_OP_KERNEL, .kernel = *k});
    return cuda_emu_remember(e);
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

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (cuda_emu_refuses(stream))
        return cuda_emu_remember(cudaErrorStreamCaptureUnsupported);
    pthread_mutex_lock(&all.lock);
    event->on = stream_of(stream);
    event->upto = event->on->queued;
    event->at = seconds();
    pthread_mutex_unlock(&all.lock);
    return cuda_emu_remember(cuda_emu_broken());
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    if (!cuda_emu_recorded(stream) || flags != cudaEventRecordExternal)
        return cudaEventRecord(event, stream);
    queue(stream, {.kind = CUDA_EMU_OP_RECORD, .event = event});
    return cuda_emu_remember(cuda_emu_broken());
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
    if (cuda_emu_refuses(stream))
        return cuda_emu_remember(cudaErrorStreamCaptureIsolation);
    pthread_mutex_lock(&all.lock);
    if (event->on)
        queue(stream, {.kind = CUDA_EMU_OP_WAIT, .on = event->on, .upto = event->upto});
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
