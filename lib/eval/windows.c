/* Windows of a text and their batches. */
#include "lib/eval/windows.h"

#include <string.h>

#include "lib/model/forward.h"

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
                         "%s: the text has %zu tokens, one window needs %zu", name, total,
                         context);
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

/* ---- batches ---- */

size_t vptq_windows_batch_end(const vptq_windows *w, size_t first)
{
    size_t end = vptq_forward_group(w->offsets, w->count, first);
    for (size_t groups = 1; end < w->count && groups < BATCH_GROUPS; groups++) {
        size_t e = vptq_forward_group(w->offsets, w->count, end);
        if (w->offsets[e] - w->offsets[first] > w->limit)
            break;
        end = e;
    }
    return end;
}

vptq_status vptq_windows_plan(vptq_windows *w, size_t row_bytes, size_t mem_left,
                              vptq_arena *arena, vptq_err *err)
{
    size_t bytes = mem_left / 4 < BATCH_BYTES ? mem_left / 4 : BATCH_BYTES;
    w->limit = bytes / row_bytes;
    w->offsets = vptq_arena_alloc(arena, w->count + 1, sizeof *w->offsets, err);
    if (!w->offsets)
        return VPTQ_E_NOMEM;
    w->offsets[0] = 0;
    for (size_t s = 0; s < w->count; s++)
        w->offsets[s + 1] = w->offsets[s] + w->seq[s].length;
    for (size_t s = 0, e; s < w->count; s = e) {
        e = vptq_windows_batch_end(w, s);
        size_t rows = w->offsets[e] - w->offsets[s];
        w->batch_rows = rows > w->batch_rows ? rows : w->batch_rows;
        w->batch_count = e - s > w->batch_count ? e - s : w->batch_count;
    }
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

size_t vptq_windows_gather(vptq_windows *w, size_t first, size_t g0, size_t g1, size_t dim,
                           float *hidden)
{
    size_t rows = 0;
    float *to = hidden + w->starts[g0] * dim;
    for (size_t i = g0; i < g1; i++) {
        const vptq_sequence *q = &w->seq[first + i];
        size_t n = q->length - 1 - q->from;
        memmove(to + rows * dim, hidden + (w->starts[i] + q->from) * dim,
                n * dim * sizeof *hidden);
        memcpy(w->targets + rows, w->ids + q->at + q->from + 1, n * sizeof *w->targets);
        rows += n;
    }
    return rows;
}
