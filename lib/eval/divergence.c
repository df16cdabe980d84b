/* Divergence of a model from its original on a text: both run over the same windows. */
#include "lib/eval/divergence.h"

#include <math.h>
#include <stdio.h>

#include "lib/eval/figures.h"
#include "lib/eval/pair.h"
#include "lib/eval/windows.h"

typedef struct run {
    vptq_device *dev;
    const vptq_model *m, *base;
    const vptq_kld_options *opt;
    vptq_windows w;
    vptq_window_fn fn;
    void *arg;
    vptq_forward *f, *f_base;
    float *hidden, *hidden_base; /* [rows of a batch, hidden] */
    vptq_kld_token *scores;      /* [rows of a batch] */

    size_t tokens; /* scored so far */
    double sum;    /* of their divergences */
    vptq_kld_columns columns;
} run;

/* The ids of the text are those of the base's tokenizer, too. */
static vptq_status check_tokenizers(const run *r, const vptq_corpus *corpus, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus other = {.ids = {.data = NULL}};
    const vptq_corpus_options *o = &r->opt->corpus;
    if (o->text_count == 0)
        return VPTQ_OK;
    VPTQ_TRY(vptq_corpus_load(r->dev->ctx, o, r->base->tokenizer, r->base->desc->vocab, &other,
                              err));
    size_t n = corpus->ids.count < other.ids.count ? corpus->ids.count : other.ids.count;
    size_t i = 0;
    while (i < n && corpus->ids.data[i] == other.ids.data[i])
        i++;
    if (i < n || corpus->ids.count != other.ids.count)
        st =
            vptq_fail(err, VPTQ_E_MISMATCH,
                      "%s: the tokenizers of %s and %s give different tokens from token %zu on",
                      corpus->name, r->m->ckpt.path, r->base->ckpt.path, i);
out:
    vptq_corpus_release(&other);
    return st;
}

static vptq_status plan(run *r, vptq_corpus *corpus, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_kld_options *o = r->opt;
    VPTQ_TRY(vptq_eval_check_shapes(r->m, r->base, err));
    VPTQ_TRY(vptq_corpus_load(r->dev->ctx, &o->corpus, r->m->tokenizer, r->m->desc->vocab,
                              corpus, err));
    VPTQ_TRY(check_tokenizers(r, corpus, err));
    r->w.ids = corpus->ids.data;
    VPTQ_TRY(vptq_windows_cut(&r->w, corpus->name, corpus->ids.count, o->context, 0, o->windows,
                              o->protocol, arena, err));
    r->w.bos = vptq_windows_bos(r->m, o->protocol);
out:
    return st;
}

static vptq_status alloc_run(run *r, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t bytes = r->m->desc->hidden * sizeof(float);
    const size_t tokens = r->w.count * vptq_windows_scored(&r->w, 0);
    double **column[] = {&r->columns.kld, &r->columns.delta, &r->columns.nll,
                         &r->columns.nll_base};
    for (size_t i = 0; i < 4; i++) {
        *column[i] = vptq_arena_alloc(arena, tokens, sizeof **column[i], err);
        if (!*column[i])
            return VPTQ_E_NOMEM;
    }
    VPTQ_TRY(vptq_windows_plan(&r->w, 2 * bytes + sizeof *r->scores,
                               vptq_mem_left(r->dev->ctx->mem), arena, err));
    r->hidden = vptq_arena_alloc(arena, r->w.batch_rows, bytes, err);
    r->hidden_base = vptq_arena_alloc(arena, r->w.batch_rows, bytes, err);
    r->scores = vptq_arena_alloc(arena, r->w.batch_rows, sizeof *r->scores, err);
    if (!r->hidden || !r->hidden_base || !r->scores)
        st = VPTQ_E_NOMEM;
out:
    return st;
}

/* Both models' blocks count as done one after the other. */
static void progress(const run *r, size_t first, size_t end, uint32_t blocks)
{
    char text[128], so_far[32] = "";
    const uint64_t per = 2 * (uint64_t)r->m->desc->layers + 1;
    if (r->tokens)
        snprintf(so_far, sizeof so_far, "kld %.6f, ", r->sum / (double)r->tokens);
    snprintf(text, sizeof text, "%swindows %zu-%zu of %zu", so_far, first + 1, end, r->w.count);
    vptq_progress(r->dev->ctx, "divergence", first * per + (end - first) * blocks,
                  r->w.count * per, text);
}

/* The scores of window `s`. */
static vptq_status add_scores(run *r, size_t s, const vptq_kld_token *t, size_t n,
                              vptq_err *err)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(t[i].kld) || !isfinite(t[i].nll) || !isfinite(t[i].nll_base))
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "the output of %s or %s is not finite in window %zu at token %zu",
                             r->m->ckpt.path, r->base->ckpt.path, s, i);
        const size_t at = r->tokens + i;
        sum += t[i].kld;
        r->columns.kld[at] = t[i].kld;
        r->columns.nll[at] = t[i].nll;
        r->columns.nll_base[at] = t[i].nll_base;
        r->columns.delta[at] = exp(-t[i].nll) - exp(-t[i].nll_base);
        r->columns.same += t[i].same_top1;
    }
    r->sum += sum;
    r->tokens += n;
    if (r->fn)
        r->fn(r->arg, s, sum / (double)n, n);
    return VPTQ_OK;
}

static vptq_status run_blocks(run *r, vptq_forward *f, size_t first, size_t end, uint32_t done,
                              float *hidden, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t *starts = r->w.starts, count = end - first;
    VPTQ_TRY(vptq_forward_embed(f, r->w.inputs, starts[count], hidden, err));
    for (uint32_t l = 0; l < r->m->desc->layers; l++) {
        progress(r, first, end, done + l);
        VPTQ_TRY(vptq_forward_block(f, l, starts, count, hidden, NULL, NULL, err));
    }
out:
    return st;
}

static vptq_status run_batch(run *r, size_t first, size_t end, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_model_desc *d = r->m->desc;
    const size_t *starts = r->w.starts, dim = d->hidden;
    vptq_windows_fill(&r->w, first, end);
    VPTQ_TRY(run_blocks(r, r->f_base, first, end, 0, r->hidden_base, err));
    VPTQ_TRY(run_blocks(r, r->f, first, end, d->layers, r->hidden, err));
    for (size_t g = 0, e; g < end - first; g = e) {
        e = vptq_forward_group(starts, end - first, g);
        vptq_windows_gather(&r->w, first, g, e, dim, r->hidden_base);
        size_t rows = vptq_windows_gather(&r->w, first, g, e, dim, r->hidden);
        VPTQ_TRY(vptq_eval_kld_states(
            r->dev->ctx, d, r->f_base, r->f, rows, 1, r->hidden_base + starts[g] * dim,
            r->hidden + starts[g] * dim, r->w.targets, r->scores, err));
        for (size_t i = g, at = 0; i < e; i++) {
            size_t n = vptq_windows_scored(&r->w, first + i);
            VPTQ_TRY(add_scores(r, first + i, r->scores + at, n, err));
            at += n;
        }
    }
    progress(r, first, end, 2 * d->layers + 1);
out:
    return st;
}

static vptq_status run_all(run *r, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_forward_open(r->m, r->dev, r->opt->context, &r->f, err));
    VPTQ_TRY(vptq_forward_open(r->base, r->dev, r->opt->context, &r->f_base, err));
    VPTQ_TRY(alloc_run(r, arena, err));
    for (size_t s = 0, e; s < r->w.count; s = e) {
        e = vptq_windows_batch_end(&r->w, s);
        VPTQ_TRY(run_batch(r, s, e, err));
    }
out:
    vptq_forward_close(r->f);
    vptq_forward_close(r->f_base);
    return st;
}

vptq_status vptq_eval_kld(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                          const vptq_kld_options *opt, vptq_window_fn fn, void *arg,
                          vptq_kld_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus corpus = {.ids = {.data = NULL}};
    vptq_arena arena;
    run r = {
        .dev = dev, .m = m, .base = base, .opt = opt, .w = {.bos = -1}, .fn = fn, .arg = arg};
    vptq_arena_init(&arena, dev->ctx->mem);
    *result = (vptq_kld_result){.context = opt->context};
    VPTQ_TRY(plan(&r, &corpus, &arena, err));
    result->windows = r.w.count;
    result->tokens = (uint64_t)r.w.count * vptq_windows_scored(&r.w, 0);
    if (opt->dry_run)
        goto out;
    double begin = vptq_seconds();
    VPTQ_TRY(run_all(&r, &arena, err));
    vptq_kld_figures(&r.columns, r.tokens, result);
    result->seconds = vptq_seconds() - begin;
out:
    vptq_arena_release(&arena);
    vptq_corpus_release(&corpus);
    return st;
}
