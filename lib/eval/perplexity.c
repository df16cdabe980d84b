/* Perplexity of a model on a text: plans windows or documents and runs them in batches. */
#include "lib/eval/perplexity.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/eval/windows.h"

typedef struct run {
    vptq_device *dev;
    const vptq_model *m;
    const vptq_ppl_options *opt;
    vptq_windows w;
    vptq_eval_watch watch;
    vptq_window_states states;
    vptq_nll_state *state; /* [rows of a batch] */

    double begin; /* vptq_seconds */
    double *nll;  /* [scored tokens] filled for the windows of this rank */

    /* sums over the scored tokens of the first windows */
    size_t added; /* number of these windows */
    double sum, sum_sq;
    uint64_t tokens;
} run;

/* ---- planning ---- */

vptq_status vptq_eval_check_stride(const vptq_ppl_options *o, vptq_err *err)
{
    if (o->stride <= o->context)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG,
                     "stride %zu is longer than the context of %zu: tokens between windows "
                     "would not be scored",
                     o->stride, o->context);
}

static vptq_status check_options(const vptq_model *m, const vptq_ppl_options *o, vptq_err *err)
{
    if (o->context < 2)
        return vptq_fail(err, VPTQ_E_ARG, "context %zu is too short, expected at least 2",
                         o->context);
    if (o->documents && (o->stride || o->windows || o->protocol != VPTQ_PPL_GPTQ))
        return vptq_fail(err, VPTQ_E_ARG,
                         "documents are scored whole, without a stride, a number of windows or "
                         "another protocol");
    if (o->documents && (o->corpus.text_count != 1 || o->corpus.token_count || o->corpus.rows))
        return vptq_fail(err, VPTQ_E_ARG, "documents need exactly one text");
    if (o->documents && !m->tokenizer)
        return vptq_fail(err, VPTQ_E_ARG, "%s: a text needs a tokenizer, none is given",
                         o->corpus.texts[0]);
    VPTQ_CHECK(vptq_eval_check_stride(o, err));
    if (o->stride && o->protocol != VPTQ_PPL_GPTQ)
        return vptq_fail(err, VPTQ_E_ARG, "the llama.cpp protocol has no stride");
    return VPTQ_OK;
}

static vptq_status plan_documents(run *r, const size_t *offsets, size_t count,
                                  uint64_t *skipped, vptq_arena *arena, vptq_err *err)
{
    const vptq_ppl_options *o = r->opt;
    if (o->document_limit && count > o->document_limit)
        count = o->document_limit;
    r->w.seq = vptq_arena_alloc(arena, count, sizeof *r->w.seq, err);
    if (!r->w.seq)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        size_t n = offsets[i + 1] - offsets[i];
        if (n > o->context)
            ++*skipped;
        if (n > o->context || n < 2)
            continue;
        r->w.seq[r->w.count++] = (vptq_sequence){.at = offsets[i], .length = n};
        r->w.longest = n > r->w.longest ? n : r->w.longest;
    }
    if (r->w.count == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: none of %zu document%s has between 2 and %zu tokens",
                         o->corpus.texts[0], count, vptq_plural(count, "", "s"), o->context);
    return VPTQ_OK;
}

/* Plans the windows or documents of the text: r->w.seq, r->w.ids and r->w.bos. */
static vptq_status plan(run *r, vptq_corpus *corpus, vptq_ids *documents, uint64_t *skipped,
                        vptq_arena *arena, vptq_err *err)
{
    const vptq_ppl_options *o = r->opt;
    const vptq_ctx *ctx = r->dev->ctx;
    VPTQ_CHECK(check_options(r->m, o, err));
    if (o->documents) {
        size_t *offsets, count;
        VPTQ_CHECK(vptq_corpus_documents(ctx, &o->corpus, o->documents, r->m->tokenizer,
                                         r->m->desc->vocab, arena, documents, &offsets, &count,
                                         err));
        r->w.ids = documents->data;
        VPTQ_CHECK(plan_documents(r, offsets, count, skipped, arena, err));
    } else {
        VPTQ_CHECK(
            vptq_corpus_load(ctx, &o->corpus, r->m->tokenizer, r->m->desc->vocab, corpus, err));
        r->w.ids = corpus->ids.data;
        const vptq_windows_options cut = {.context = o->context,
                                          .stride = o->stride,
                                          .max_windows = o->windows,
                                          .protocol = o->protocol};
        VPTQ_CHECK(vptq_windows_cut(&r->w, corpus->name, corpus->ids.count, &cut, arena, err));
        r->w.bos = vptq_windows_bos(r->m, o->protocol);
    }
    return VPTQ_OK;
}

/* Counts the bytes of the scored tokens; 0 if any of the text was given as token ids.  At the
 * beginning of a text the space that encoding adds does not count. */
static vptq_status count_bytes(const run *r, uint64_t *bytes, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf text;
    *bytes = 0;
    if (!r->m->tokenizer || r->opt->corpus.token_count)
        return VPTQ_OK;
    vptq_buf_init(&text, r->dev->ctx->mem);
    for (size_t s = 0; s < r->w.count; s++) {
        const vptq_sequence *q = &r->w.seq[s];
        const int32_t *ids = r->w.ids + q->at;
        size_t context = q->from + 1; /* ids before the scored ones */
        bool start = r->opt->documents || q->at == 0;
        if (start)
            VPTQ_TRY(vptq_tokenizer_decode(r->m->tokenizer, ids, context, &start, false, &text,
                                           err));
        vptq_buf_clear(&text);
        VPTQ_TRY(vptq_tokenizer_decode(r->m->tokenizer, ids + context, q->length - context,
                                       &start, false, &text, err));
        *bytes += text.len;
        vptq_buf_clear(&text);
    }
out:
    vptq_buf_release(&text);
    return st;
}

/* ---- batches ---- */

static vptq_status alloc_batches(run *r, vptq_arena *arena, vptq_err *err)
{
    vptq_window_states *const states[] = {&r->states};
    r->states.dim = r->m->desc->hidden;
    VPTQ_CHECK(vptq_windows_plan(&r->w, r->dev->ctx, sizeof *r->state, states, 1, arena, err));
    r->state = vptq_arena_alloc(arena, r->w.batch_rows, sizeof *r->state, err);
    return r->state ? VPTQ_OK : VPTQ_E_NOMEM;
}

static const char *unit_name(const run *r)
{
    return r->opt->documents ? vptq_plural(r->w.count, "document", "documents")
                             : vptq_plural(r->w.count, "window", "windows");
}

static void progress(const run *r, size_t first, size_t end, uint32_t blocks)
{
    char text[128], so_far[32] = "";
    const uint64_t per = (uint64_t)r->m->desc->layers + 1, all = r->w.count;
    const size_t before = vptq_units_before(&r->w.units, r->dev->ctx, first);
    if (r->tokens)
        snprintf(so_far, sizeof so_far, "ppl %.4f, ", exp(r->sum / (double)r->tokens));
    snprintf(text, sizeof text, "%s%s %zu-%zu, block %u", so_far,
             r->opt->documents ? "documents" : "windows", first + 1, end, blocks);
    vptq_progress_share(r->dev->ctx, "perplexity", unit_name(r),
                        blocks == per && before == first ? end : before, all,
                        (double)(before * per + (end - first) * blocks) / (double)(all * per),
                        text);
}

/* ---- scores ---- */

/* Adds the losses of sequence `s` to the sums, after those of the ones before. */
static vptq_status add_scores(run *r, size_t s, vptq_err *err)
{
    const size_t n = vptq_windows_scored(&r->w, s);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double nll = r->nll[r->w.scored[s] + i];
        if (!isfinite(nll))
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "%s: the model's output is not finite in %s %zu at token %zu",
                             r->m->ckpt.path, r->opt->documents ? "document" : "window", s,
                             r->w.seq[s].from + i);
        sum += nll;
        r->sum_sq += nll * nll;
    }
    r->sum += sum;
    r->tokens += n;
    r->added++;
    if (r->watch.window)
        r->watch.window(r->watch.arg, s, sum / (double)n, n);
    return VPTQ_OK;
}

/* Scores sequences [g0, g1) of the batch that begins at `first`.  Sums need all windows before
 * them: with several ranks, those of others follow when all are done. */
static vptq_status score_group(run *r, size_t first, size_t g0, size_t g1, vptq_err *err)
{
    float *scored;
    size_t rows;
    VPTQ_CHECK(vptq_windows_gather(&r->w, &r->states, first, g0, g1, &scored, &rows, err));
    VPTQ_CHECK(vptq_forward_loss(r->states.f, rows, scored, r->w.targets, r->state, err));
    for (size_t i = 0; i < rows; i++)
        r->nll[r->w.scored[first + g0] + i] =
            log(r->state[i].sum) + r->state[i].max - (double)r->state[i].target;
    while (r->added >= first + g0 && r->added < first + g1)
        VPTQ_CHECK(add_scores(r, r->added, err));
    return VPTQ_OK;
}

static vptq_status run_batch(run *r, size_t first, size_t end, vptq_err *err)
{
    size_t count = end - first;
    const size_t *starts = r->w.starts;
    vptq_windows_fill(&r->w, first, end);
    VPTQ_CHECK(
        vptq_forward_embed(r->states.f, r->w.inputs, starts[count], r->states.hidden, err));
    for (uint32_t l = 0; l < r->m->desc->layers; l++) {
        progress(r, first, end, l);
        VPTQ_CHECK(vptq_forward_block(r->states.f, l, starts, count, r->states.hidden, err));
    }
    for (size_t g = 0, e; g < count; g = e) {
        e = vptq_forward_group(starts, count, g);
        VPTQ_CHECK(score_group(r, first, g, e, err));
    }
    progress(r, first, end, r->m->desc->layers + 1);
    return VPTQ_OK;
}

/* Runs the windows of this rank. */
static vptq_status run_all(run *r, vptq_arena *work, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ctx *ctx = r->dev->ctx;
    size_t first, end;
    VPTQ_TRY(vptq_windows_same(&r->w, ctx, err));
    VPTQ_TRY(vptq_forward_open(r->m, r->dev, r->w.longest, &r->states.f, err));
    VPTQ_TRY(alloc_batches(r, work, err));
    while (!(st = vptq_units_next(&r->w.units, ctx, &first, &end, err)) && first < end)
        for (size_t s = first, e; s < end; s = e) {
            e = vptq_windows_batch_end(&r->w, s, end);
            VPTQ_TRY(run_batch(r, s, e, err));
        }
out:
    vptq_forward_close(r->states.f);
    return st;
}

static void summarize(const run *r, double seconds, vptq_ppl_result *out)
{
    double n = (double)r->tokens, rows = (double)r->w.offsets[r->w.count];
    double mean = r->sum / n;
    double variance = r->tokens > 1 ? (r->sum_sq - n * mean * mean) / (n - 1) : 0;
    out->nll = mean;
    out->ppl = exp(mean);
    out->ppl_stderr = out->ppl * sqrt(variance > 0 ? variance / n : 0);
    if (out->bytes)
        out->bits_per_byte = r->sum / log(2) / (double)out->bytes;
    out->seconds = seconds;
    out->tokens_per_second = seconds > 0 ? rows / seconds : 0;
}

/* Plans, and measures unless this is a dry run. */
static vptq_status measure(run *r, vptq_corpus *corpus, vptq_ids *documents, vptq_arena *work,
                           vptq_ppl_result *result, vptq_err *err)
{
    vptq_arena *const arena = r->watch.losses ? r->watch.arena : work;
    VPTQ_CHECK(plan(r, corpus, documents, &result->skipped, work, err));
    if (r->watch.hash)
        *r->watch.hash = vptq_windows_hash(&r->w);
    for (size_t s = 0; s < r->w.count; s++)
        result->tokens += vptq_windows_scored(&r->w, s);
    VPTQ_CHECK(count_bytes(r, &result->bytes, err));
    result->windows = r->w.count;
    result->bits_per_weight = vptq_model_bits_per_weight(r->m);
    if (r->opt->dry_run)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_units_alloc(r->dev->ctx, result->tokens, arena, &r->nll, err));
    r->begin = vptq_seconds();
    return run_all(r, work, err);
}

/* Brings the losses of all ranks together. */
static vptq_status finish(run *r, vptq_status st, vptq_ppl_result *result, vptq_err *err)
{
    VPTQ_CHECK(vptq_units_gather(r->dev->ctx, st, r->nll, result->tokens, err));
    while (r->added < r->w.count)
        VPTQ_CHECK(add_scores(r, r->added, err));
    if (!r->w.units.whole) /* the last windows may be those of other ranks */
        vptq_progress(r->dev->ctx, "perplexity", unit_name(r), r->w.count, r->w.count, NULL);
    if (r->watch.losses)
        *r->watch.losses = r->nll;
    summarize(r, vptq_seconds() - r->begin, result);
    return VPTQ_OK;
}

vptq_status vptq_eval_ppl(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                          const vptq_eval_watch *watch, vptq_ppl_result *result, vptq_err *err)
{
    vptq_status st;
    vptq_corpus corpus = {.ids = {.data = NULL}};
    vptq_ids documents;
    vptq_arena work;
    vptq_ppl_options own = *opt;
    own.context = vptq_model_window(m, opt->context);
    run r = {.dev = dev, .m = m, .opt = &own, .w = {.bos = -1}};
    if (watch)
        r.watch = *watch;
    vptq_ids_init(&documents, dev->ctx->mem);
    vptq_arena_init(&work, dev->ctx->mem);
    *result = (vptq_ppl_result){.context = own.context, .bits_per_byte = (double)NAN};
    st = measure(&r, &corpus, &documents, &work, result, err);
    if (!opt->dry_run)
        st = finish(&r, st, result, err);
    vptq_arena_release(&work);
    vptq_ids_release(&documents);
    vptq_corpus_release(&corpus);
    return st;
}
