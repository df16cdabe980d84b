/* Perplexity of a model on a text: which tokens are scored with what in front of them, and the
 * walk over batches of windows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/eval/eval.h"
#include "lib/model/forward.h"

/* One window or document: ids [at, at + length); row i predicts id i + 1, rows [from, length -
 * 1) are scored. */
typedef struct sequence {
    size_t at, length, from;
} sequence;

typedef struct run {
    vptq_device *dev;
    const vptq_model *m;
    const vptq_ppl_options *opt;
    const int32_t *ids;
    sequence *seq;
    size_t count, longest;
    int32_t bos; /* put in place of the first token of each window; -1 = none */
    vptq_window_fn fn;
    void *arg;
    vptq_forward *f;

    size_t *offsets; /* [count + 1] rows in front of each sequence */

    /* one batch */
    size_t batch_rows, batch_count; /* of the largest batch */
    size_t *starts;                 /* [batch_count + 1] */
    int32_t *inputs, *targets;      /* [batch_rows] */
    float *hidden;                  /* [batch_rows, hidden] */
    vptq_nll_state *state;          /* [batch_rows] */

    /* sums over the scored tokens */
    double sum, sum_sq;
    uint64_t tokens;
    double *token_nll; /* or NULL */
} run;

/* Hidden states of a batch: enough windows that a model larger than the memory is read a few
 * times only. */
enum { BATCH_BYTES = 256 << 20, BATCH_GROUPS = 16 };

/* ---- what is scored ---- */

static vptq_status check_options(const vptq_model *m, const vptq_ppl_options *o, vptq_err *err)
{
    if (o->context < 2)
        return vptq_fail(err, VPTQ_E_ARG, "context %zu is too short, at least 2 is needed",
                         o->context);
    if (o->documents && (o->stride || o->windows || o->protocol != VPTQ_PPL_GPTQ))
        return vptq_fail(err, VPTQ_E_ARG,
                         "documents are scored whole: no stride, number of windows or other "
                         "protocol goes with them");
    if (o->documents && (o->corpus.text_count != 1 || o->corpus.token_count || o->corpus.rows))
        return vptq_fail(err, VPTQ_E_ARG, "documents are taken from one text");
    if (o->documents && !m->tokenizer)
        return vptq_fail(err, VPTQ_E_ARG, "%s: a text needs a tokenizer, none is given",
                         o->corpus.texts[0]);
    if (o->stride && o->protocol != VPTQ_PPL_GPTQ)
        return vptq_fail(err, VPTQ_E_ARG, "the llama.cpp protocol has no stride");
    return VPTQ_OK;
}

/* Windows of a text of `total` ids; `name` is its file. */
static vptq_status plan_windows(run *r, const char *name, size_t total, vptq_arena *arena,
                                vptq_err *err)
{
    const vptq_ppl_options *o = r->opt;
    size_t stride = o->stride ? o->stride : o->context;
    if (total < o->context)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the text has %zu tokens, one window of the context needs %zu",
                         name, total, o->context);
    r->count = 1 + (total - o->context) / stride;
    if (o->windows && r->count > o->windows)
        r->count = o->windows;
    r->seq = vptq_arena_alloc(arena, r->count, sizeof *r->seq, err);
    if (!r->seq)
        return VPTQ_E_NOMEM;
    for (size_t w = 0; w < r->count; w++) {
        size_t from = 0;
        if (o->protocol == VPTQ_PPL_LLAMA_CPP)
            from = o->context / 2;
        else if (w > 0 && stride < o->context)
            from = o->context - stride - 1;
        r->seq[w] = (sequence){.at = w * stride, .length = o->context, .from = from};
    }
    if (r->seq[0].from + 1 >= o->context)
        return vptq_fail(err, VPTQ_E_ARG, "context %zu leaves no token to score", o->context);
    r->longest = o->context;
    return VPTQ_OK;
}

static vptq_status plan_documents(run *r, const size_t *offsets, size_t count,
                                  uint64_t *skipped, vptq_arena *arena, vptq_err *err)
{
    const vptq_ppl_options *o = r->opt;
    if (o->document_limit && count > o->document_limit)
        count = o->document_limit;
    r->seq = vptq_arena_alloc(arena, count, sizeof *r->seq, err);
    if (!r->seq)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        size_t n = offsets[i + 1] - offsets[i];
        if (n > o->context)
            ++*skipped;
        if (n > o->context || n < 2)
            continue;
        r->seq[r->count++] = (sequence){.at = offsets[i], .length = n};
        r->longest = n > r->longest ? n : r->longest;
    }
    if (r->count == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: none of %zu documents has between 2 and %zu tokens",
                         o->corpus.texts[0], count, o->context);
    return VPTQ_OK;
}

/* Fills r->seq and r->ids from the text. */
static vptq_status plan(run *r, vptq_corpus *corpus, vptq_ids *documents, uint64_t *skipped,
                        vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ppl_options *o = r->opt;
    const vptq_ctx *ctx = r->dev->ctx;
    VPTQ_TRY(check_options(r->m, o, err));
    if (o->documents) {
        size_t *offsets, count;
        VPTQ_TRY(vptq_corpus_documents(ctx, o->corpus.texts[0], o->documents, r->m->tokenizer,
                                       r->m->desc->vocab, arena, documents, &offsets, &count,
                                       err));
        r->ids = documents->data;
        VPTQ_TRY(plan_documents(r, offsets, count, skipped, arena, err));
    } else {
        VPTQ_TRY(
            vptq_corpus_load(ctx, &o->corpus, r->m->tokenizer, r->m->desc->vocab, corpus, err));
        r->ids = corpus->ids.data;
        VPTQ_TRY(plan_windows(r, corpus->name, corpus->ids.count, arena, err));
        if (o->protocol == VPTQ_PPL_LLAMA_CPP && r->m->tokenizer && r->m->vocab.add_bos)
            r->bos = r->m->vocab.bos;
    }
out:
    return st;
}

/* ---- batches ---- */

/* The batch that begins at sequence `first`: whole groups of the forward pass, so that its cut
 * changes no bits.  Returns the sequence behind its last. */
static size_t batch_end(const run *r, size_t first, size_t max_rows)
{
    size_t end = vptq_forward_group(r->offsets, r->count, first);
    for (size_t groups = 1; end < r->count && groups < BATCH_GROUPS; groups++) {
        size_t e = vptq_forward_group(r->offsets, r->count, end);
        if (r->offsets[e] - r->offsets[first] > max_rows)
            break;
        end = e;
    }
    return end;
}

/* Rows of hidden states that a batch may have. */
static size_t batch_limit(const run *r)
{
    size_t bytes = BATCH_BYTES, left = vptq_mem_left(r->dev->ctx->mem) / 4;
    if (left < bytes)
        bytes = left;
    return bytes / (r->m->desc->hidden * sizeof(float));
}

static vptq_status alloc_batches(run *r, size_t max_rows, vptq_arena *arena, vptq_err *err)
{
    r->offsets = vptq_arena_alloc(arena, r->count + 1, sizeof *r->offsets, err);
    if (!r->offsets)
        return VPTQ_E_NOMEM;
    r->offsets[0] = 0;
    for (size_t s = 0; s < r->count; s++)
        r->offsets[s + 1] = r->offsets[s] + r->seq[s].length;
    for (size_t s = 0, e; s < r->count; s = e) {
        e = batch_end(r, s, max_rows);
        size_t rows = r->offsets[e] - r->offsets[s];
        r->batch_rows = rows > r->batch_rows ? rows : r->batch_rows;
        r->batch_count = e - s > r->batch_count ? e - s : r->batch_count;
    }
    r->starts = vptq_arena_alloc(arena, r->batch_count + 1, sizeof *r->starts, err);
    r->inputs = vptq_arena_alloc(arena, r->batch_rows, sizeof *r->inputs, err);
    r->targets = vptq_arena_alloc(arena, r->batch_rows, sizeof *r->targets, err);
    r->state = vptq_arena_alloc(arena, r->batch_rows, sizeof *r->state, err);
    r->hidden =
        vptq_arena_alloc(arena, r->batch_rows, r->m->desc->hidden * sizeof *r->hidden, err);
    return r->starts && r->inputs && r->targets && r->state && r->hidden ? VPTQ_OK
                                                                         : VPTQ_E_NOMEM;
}

/* Lays sequences [first, end) out in r->starts, r->inputs. */
static void fill_batch(run *r, size_t first, size_t end)
{
    for (size_t s = first; s <= end; s++)
        r->starts[s - first] = r->offsets[s] - r->offsets[first];
    for (size_t s = first; s < end; s++) {
        int32_t *in = r->inputs + r->starts[s - first];
        memcpy(in, r->ids + r->seq[s].at, r->seq[s].length * sizeof *in);
        if (r->bos >= 0)
            in[0] = r->bos;
    }
}

static void progress(const run *r, size_t first, size_t end, uint32_t blocks)
{
    char text[64];
    uint64_t per = (uint64_t)r->m->desc->layers + 1;
    snprintf(text, sizeof text, "%s %zu to %zu of %zu, block %u",
             r->opt->documents ? "documents" : "windows", first + 1, end, r->count, blocks);
    vptq_progress(r->dev->ctx, "perplexity", first * per + (end - first) * blocks,
                  r->count * per, text);
}

/* ---- scores ---- */

/* Adds the losses of sequence `s`, which are state[0 .. n). */
static vptq_status add_scores(run *r, size_t s, const vptq_nll_state *state, size_t n,
                              vptq_err *err)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double nll = log(state[i].sum) + state[i].max - (double)state[i].target;
        if (!isfinite(nll))
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "%s: the model's output is not finite in %s %zu at token %zu",
                             r->m->ckpt.path, r->opt->documents ? "document" : "window", s,
                             r->seq[s].from + i);
        sum += nll;
        r->sum_sq += nll * nll;
        if (r->token_nll)
            r->token_nll[r->tokens + i] = nll;
    }
    r->sum += sum;
    r->tokens += n;
    if (r->fn)
        r->fn(r->arg, s, sum / (double)n, n);
    return VPTQ_OK;
}

/* Scores one group of the batch: its scored rows move together to the front of its states. */
static vptq_status score_group(run *r, size_t first, size_t g0, size_t g1, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t dim = r->m->desc->hidden, rows = 0;
    float *hidden = r->hidden + r->starts[g0] * dim;
    for (size_t i = g0; i < g1; i++) {
        const sequence *q = &r->seq[first + i];
        size_t n = q->length - 1 - q->from;
        memmove(hidden + rows * dim, r->hidden + (r->starts[i] + q->from) * dim,
                n * dim * sizeof *hidden);
        memcpy(r->targets + rows, r->ids + q->at + q->from + 1, n * sizeof *r->targets);
        rows += n;
    }
    VPTQ_TRY(vptq_forward_loss(r->f, rows, hidden, r->targets, r->state, err));
    for (size_t i = g0, at = 0; i < g1; i++) {
        size_t n = r->seq[first + i].length - 1 - r->seq[first + i].from;
        VPTQ_TRY(add_scores(r, first + i, r->state + at, n, err));
        at += n;
    }
out:
    return st;
}

static vptq_status run_batch(run *r, size_t first, size_t end, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t count = end - first;
    fill_batch(r, first, end);
    VPTQ_TRY(vptq_forward_embed(r->f, r->inputs, r->starts[count], r->hidden, err));
    for (uint32_t l = 0; l < r->m->desc->layers; l++) {
        progress(r, first, end, l);
        VPTQ_TRY(vptq_forward_block(r->f, l, r->starts, count, r->hidden, NULL, NULL, err));
    }
    for (size_t g = 0, e; g < count; g = e) {
        e = vptq_forward_group(r->starts, count, g);
        VPTQ_TRY(score_group(r, first, g, e, err));
    }
    progress(r, first, end, r->m->desc->layers + 1);
out:
    return st;
}

static vptq_status run_all(run *r, vptq_arena *work, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_forward_open(r->m, r->dev, r->longest, &r->f, err));
    size_t limit = batch_limit(r);
    VPTQ_TRY(alloc_batches(r, limit, work, err));
    for (size_t s = 0, e; s < r->count; s = e) {
        e = batch_end(r, s, limit);
        VPTQ_TRY(run_batch(r, s, e, err));
    }
out:
    vptq_forward_close(r->f);
    return st;
}

static void summarize(const run *r, double seconds, vptq_ppl_result *out)
{
    double n = (double)r->tokens, rows = (double)r->offsets[r->count];
    double mean = r->sum / n;
    double variance = r->tokens > 1 ? (r->sum_sq - n * mean * mean) / (n - 1) : 0;
    out->nll = mean;
    out->ppl = exp(mean);
    out->ppl_stderr = out->ppl * sqrt(variance > 0 ? variance / n : 0);
    out->seconds = seconds;
    out->tokens_per_second = seconds > 0 ? rows / seconds : 0;
}

vptq_status vptq_eval_ppl(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                          vptq_window_fn fn, void *arg, vptq_arena *arena, double **token_nll,
                          vptq_ppl_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus corpus = {.ids = {.data = NULL}};
    vptq_ids documents;
    vptq_arena work;
    run r = {.dev = dev, .m = m, .opt = opt, .bos = -1, .fn = fn, .arg = arg};
    vptq_ids_init(&documents, dev->ctx->mem);
    vptq_arena_init(&work, dev->ctx->mem);
    *result = (vptq_ppl_result){.context = opt->context};
    VPTQ_TRY(plan(&r, &corpus, &documents, &result->skipped, &work, err));
    for (size_t s = 0; s < r.count; s++)
        result->tokens += r.seq[s].length - 1 - r.seq[s].from;
    result->windows = r.count;
    result->bits_per_weight = vptq_model_bits_per_weight(m);
    if (opt->dry_run)
        goto out;
    if (token_nll) {
        r.token_nll = vptq_arena_alloc(arena, result->tokens, sizeof *r.token_nll, err);
        if (!r.token_nll)
            VPTQ_TRY(VPTQ_E_NOMEM);
        *token_nll = r.token_nll;
    }
    double begin = vptq_seconds();
    VPTQ_TRY(run_all(&r, &work, err));
    summarize(&r, vptq_seconds() - begin, result);
out:
    vptq_arena_release(&work);
    vptq_ids_release(&documents);
    vptq_corpus_release(&corpus);
    return st;
}
