/* Windows of a text and their batches. */
#include "lib/eval/windows.h"

#include <string.h>

#include "lib/base/file.h"
#include "lib/base/text.h"

/* Limits of a batch: bytes of its hidden states, and groups of the forward pass. */
enum { BATCH_BYTES = 256 << 20, BATCH_GROUPS = 16 };

vptq_status vptq_windows_cut(vptq_windows *w, const char *name, size_t total,
                             const vptq_windows_options *o, vptq_arena *arena, vptq_err *err)
{
    const size_t context = o->context, stride = o->stride ? o->stride : context;
    const size_t from = o->protocol == VPTQ_PPL_LLAMA_CPP ? context / 2 : 0;
    if (context < 2)
        return vptq_fail(err, VPTQ_E_ARG, "context %zu is too short, expected at least 2",
                         context);
    if (from + 1 >= context)
        return vptq_fail(err, VPTQ_E_ARG, "context %zu leaves no token to score", context);
    if (total < context)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the text has %zu token%s, one window needs %zu", name, total,
                         vptq_plural(total, "", "s"), context);
    w->count = 1 + (total - context) / stride;
    if (o->max_windows && w->count > o->max_windows)
        w->count = o->max_windows;
    w->seq = vptq_arena_alloc(arena, w->count, sizeof *w->seq, err);
    if (!w->seq)
        return VPTQ_E_NOMEM;
    for (size_t s = 0; s < w->count; s++)
        w->seq[s] =
            (vptq_sequence){.at = s * stride,
                            .length = context,
                            .from = s > 0 && stride < context ? context - stride - 1 : from};
    w->longest = context;
    return VPTQ_OK;
}

int32_t vptq_windows_bos(const vptq_model *m, vptq_ppl_protocol protocol)
{
    return protocol == VPTQ_PPL_LLAMA_CPP && m->tokenizer && m->vocab.add_bos ? m->vocab.bos
                                                                              : -1;
}

size_t vptq_windows_scored(const vptq_windows *w, size_t s)
{
    return w->seq[s].length - 1 - w->seq[s].from;
}

uint64_t vptq_windows_hash(const vptq_windows *w)
{
    uint64_t hash = vptq_hash(w->seq, w->count * sizeof *w->seq, (uint32_t)w->bos);
    for (size_t s = 0; s < w->count; s++)
        hash = vptq_hash(w->ids + w->seq[s].at, w->seq[s].length * sizeof *w->ids, hash);
    return hash;
}

vptq_status vptq_windows_same(const vptq_windows *w, const vptq_ctx *ctx, vptq_err *err)
{
    return vptq_units_same(ctx, "the text to measure on", vptq_windows_hash(w), err);
}

/* ---- batches ---- */

size_t vptq_windows_batch_end(const vptq_windows *w, size_t first, size_t end)
{
    size_t stop = vptq_forward_group(w->offsets, end, first);
    for (size_t groups = 1; stop < end && groups < w->groups; groups++) {
        size_t e = vptq_forward_group(w->offsets, end, stop);
        if (w->offsets[e] - w->offsets[first] > w->limit)
            break;
        stop = e;
    }
    return stop;
}

/* Rows of the largest group. */
static size_t largest_group(const vptq_windows *w)
{
    size_t largest = 0;
    for (size_t s = 0, e; s < w->count; s = e) {
        e = vptq_forward_group(w->offsets, w->count, s);
        const size_t rows = w->offsets[e] - w->offsets[s];
        largest = rows > largest ? rows : largest;
    }
    return largest;
}

static void plan_batches(vptq_windows *w, size_t limit, size_t groups)
{
    w->limit = limit;
    w->groups = groups;
    w->batch_rows = w->batch_count = 0;
    for (size_t s = 0, e, unit = 0; s < w->count; s = e) {
        unit += s == w->units.first[unit + 1];
        e = vptq_windows_batch_end(w, s, w->units.first[unit + 1]);
        size_t rows = w->offsets[e] - w->offsets[s];
        w->batch_rows = rows > w->batch_rows ? rows : w->batch_rows;
        w->batch_count = e - s > w->batch_count ? e - s : w->batch_count;
    }
}

/* Plans batches whose hidden states lie in device memory, and allocates these; false if it has
 * too little.  `limit`: maximum rows for which there is host memory. */
static bool plan_on_device(vptq_windows *w, size_t limit, vptq_window_states *const *states,
                           size_t count)
{
    const size_t group = largest_group(w);
    bool done = true;
    for (size_t i = 0; i < count; i++) {
        const size_t fit = vptq_forward_hidden_fit(states[i]->f, group, count, 0) / count;
        if (fit < 2 * group)
            return false;
        limit = fit - group < limit ? fit - group : limit;
        limit = limit < INT32_MAX ? limit : INT32_MAX; /* indices of rows */
    }
    plan_batches(w, limit, SIZE_MAX);
    for (size_t i = 0; i < count; i++) {
        states[i]->hidden = vptq_forward_hidden_alloc(states[i]->f, w->batch_rows);
        states[i]->scored = vptq_forward_hidden_alloc(states[i]->f, group);
        done = done && states[i]->hidden && states[i]->scored;
    }
    for (size_t i = 0; i < count && !done; i++) {
        vptq_forward_hidden_free(states[i]->f, states[i]->hidden);
        vptq_forward_hidden_free(states[i]->f, states[i]->scored);
        states[i]->hidden = states[i]->scored = NULL;
    }
    return done;
}

static vptq_status plan_on_host(vptq_windows *w, size_t limit,
                                vptq_window_states *const *states, size_t count,
                                vptq_arena *arena, vptq_err *err)
{
    plan_batches(w, limit, BATCH_GROUPS);
    for (size_t i = 0; i < count; i++) {
        states[i]->hidden =
            vptq_arena_alloc(arena, w->batch_rows, states[i]->dim * sizeof(float), err);
        if (!states[i]->hidden)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

vptq_status vptq_windows_plan(vptq_windows *w, const vptq_ctx *ctx, size_t row_bytes,
                              vptq_window_states *const *states, size_t count,
                              vptq_arena *arena, vptq_err *err)
{
    const size_t share = vptq_mem_left(ctx->mem) / 4;
    const size_t bytes = share < BATCH_BYTES ? share : BATCH_BYTES;
    size_t host_row = row_bytes;
    for (size_t i = 0; i < count; i++)
        host_row += states[i]->dim * sizeof(float);
    w->offsets = vptq_arena_alloc(arena, w->count + 1, sizeof *w->offsets, err);
    w->scored = vptq_arena_alloc(arena, w->count + 1, sizeof *w->scored, err);
    if (!w->offsets || !w->scored)
        return VPTQ_E_NOMEM;
    w->offsets[0] = w->scored[0] = 0;
    for (size_t s = 0; s < w->count; s++) {
        w->offsets[s + 1] = w->offsets[s] + w->seq[s].length;
        w->scored[s + 1] = w->scored[s] + vptq_windows_scored(w, s);
    }
    VPTQ_CHECK(vptq_units_plan(&w->units, ctx, w->offsets, NULL, w->count, arena, err));
    const size_t lean = share / (row_bytes + 2 * sizeof *w->inputs);
    if (!plan_on_device(w, lean, states, count))
        VPTQ_CHECK(plan_on_host(w, bytes / host_row, states, count, arena, err));
    w->starts = vptq_arena_alloc(arena, w->batch_count + 1, sizeof *w->starts, err);
    w->inputs = vptq_arena_alloc(arena, w->batch_rows, sizeof *w->inputs, err);
    w->targets = vptq_arena_alloc(arena, w->batch_rows, sizeof *w->targets, err);
    return w->starts && w->inputs && w->targets ? VPTQ_OK : VPTQ_E_NOMEM;
}

void vptq_windows_fill(vptq_windows *w, size_t first, size_t end)
{
    for (size_t s = first; s <= end; s++)
        w->starts[s - first] = w->offsets[s] - w->offsets[first];
    for (size_t s = first; s < end; s++) {
        int32_t *in = w->inputs + w->starts[s - first];
        memcpy(in, w->ids + w->seq[s].at, w->seq[s].length * sizeof *in);
        if (w->bos >= 0)
            in[0] = w->bos;
    }
}

vptq_status vptq_windows_gather(vptq_windows *w, const vptq_window_states *s, size_t first,
                                size_t g0, size_t g1, float **scored, size_t *rows,
                                vptq_err *err)
{
    int32_t *at = w->inputs; /* the batch has been embedded */
    size_t done = 0;
    float *to = s->scored ? s->scored : s->hidden + w->starts[g0] * s->dim;
    for (size_t i = g0; i < g1; i++) {
        const vptq_sequence *q = &w->seq[first + i];
        const size_t from = w->starts[i] + q->from, n = q->length - 1 - q->from;
        memcpy(w->targets + done, w->ids + q->at + q->from + 1, n * sizeof *w->targets);
        for (size_t r = 0; s->scored && r < n; r++)
            at[done + r] = (int32_t)(from + r);
        if (!s->scored)
            memmove(to + done * s->dim, s->hidden + from * s->dim, n * s->dim * sizeof *to);
        done += n;
    }
    *scored = to;
    *rows = done;
    return s->scored ? vptq_forward_hidden_gather(s->f, s->hidden, at, done, to, err) : VPTQ_OK;
}
