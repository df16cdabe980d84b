/* Adds up the sums of chunks of windows. */
#include "hessian/total.h"

#include <string.h>

#include "lib/base/comm.h"

vptq_status vptq_total_init(vptq_device *dev, size_t capacity, vptq_total *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = dev->ctx->mem;
    void *p = NULL;

    *t = (vptq_total){.dev = dev, .clear = true};
    VPTQ_TRY(dev->ops->alloc(dev->state, capacity, sizeof *t->sum, &p, err));
    t->sum = p;
    if (vptq_comm_size(dev->ctx) == 1)
        goto out;
    t->shared = vptq_mem_alloc(mem, capacity, sizeof *t->shared, err);
    if (t->shared && !dev->ops->host_memory)
        t->chunk = vptq_mem_alloc(mem, capacity, sizeof *t->chunk, err);
    if (!t->shared || (!dev->ops->host_memory && !t->chunk))
        st = VPTQ_E_NOMEM;
out:
    if (st)
        vptq_total_release(t);
    return st;
}

size_t vptq_total_bytes(const vptq_device *dev, size_t capacity)
{
    const size_t shared = vptq_comm_size(dev->ctx) > 1;
    const size_t arrays = dev->ops->host_memory ? 1 + shared : 2 * shared;
    return arrays * capacity * sizeof(double);
}

void vptq_total_release(vptq_total *t)
{
    if (!t->dev)
        return;
    t->dev->ops->release(t->dev->state, t->sum);
    vptq_mem_free(t->dev->ctx->mem, t->shared);
    vptq_mem_free(t->dev->ctx->mem, t->chunk);
    *t = (vptq_total){0};
}

void vptq_total_clear(vptq_total *t, size_t n)
{
    t->n = n;
    t->clear = true;
}

vptq_status vptq_total_add(vptq_total *t, size_t at, size_t rows, size_t n, bool lower,
                           const double *x, vptq_err *err)
{
    /* no sum that starts from zero is -0, so that the first needs no addition to zero */
    const vptq_packed_args a = {.rows = rows,
                                .n = n,
                                .x = x,
                                .lower = lower,
                                .first = t->clear || t->shared,
                                .packed = t->sum + at};
    return t->dev->ops->add_packed(t->dev->state, &a, err);
}

vptq_status vptq_total_share(vptq_total *t, int parts, vptq_err *err)
{
    const vptq_ctx *ctx = t->dev->ctx;
    const bool mine = vptq_comm_rank(ctx) < parts;

    if (t->shared && t->clear)
        memset(t->shared, 0, t->n * sizeof *t->shared);
    t->clear = false;
    if (!t->shared)
        return VPTQ_OK;
    if (mine && t->chunk)
        VPTQ_CHECK(t->dev->ops->download(t->dev->state, t->chunk, t->sum,
                                         t->n * sizeof *t->chunk, err));
    const double *chunk = t->chunk ? t->chunk : t->sum;
    return vptq_comm_sum(ctx, parts, mine ? chunk : NULL, t->shared, t->n, err);
}

vptq_status vptq_total_finish(vptq_total *t, vptq_err *err)
{
    return t->shared ? t->dev->ops->upload(t->dev->state, t->sum, t->shared,
                                           t->n * sizeof *t->shared, err)
                     : VPTQ_OK;
}

/* ---- windows of a rank ---- */

static size_t chunks_of(size_t windows)
{
    return (windows + VPTQ_CHUNK_WINDOWS - 1) / VPTQ_CHUNK_WINDOWS;
}

size_t vptq_own_windows(const vptq_ctx *ctx, size_t windows)
{
    size_t count = 0;
    while (vptq_own_window(ctx, count) < windows) {
        const size_t left = windows - vptq_own_window(ctx, count);
        count += left < VPTQ_CHUNK_WINDOWS ? left : (size_t)VPTQ_CHUNK_WINDOWS;
    }
    return count;
}

size_t vptq_own_window(const vptq_ctx *ctx, size_t i)
{
    const size_t rank = (size_t)vptq_comm_rank(ctx), ranks = (size_t)vptq_comm_size(ctx);
    const size_t chunk = i / VPTQ_CHUNK_WINDOWS * ranks + rank;
    return chunk * VPTQ_CHUNK_WINDOWS + i % VPTQ_CHUNK_WINDOWS;
}

size_t vptq_rounds(const vptq_ctx *ctx, size_t windows)
{
    const size_t ranks = (size_t)vptq_comm_size(ctx);
    return (chunks_of(windows) + ranks - 1) / ranks;
}

int vptq_round_parts(const vptq_ctx *ctx, size_t windows, size_t round)
{
    const size_t ranks = (size_t)vptq_comm_size(ctx);
    const size_t left = chunks_of(windows) - round * ranks;
    return (int)(left < ranks ? left : ranks);
}
