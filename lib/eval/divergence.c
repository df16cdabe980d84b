/* Divergence of a model from its original: KL(base || model) of every scored token.
 *
 * With z, y the logits of base and model, p = exp(z - lse(z)), the divergence of a row is
 * sum_j p_j (z_j - y_j) - lse(z) + lse(y).  The three sums run over tiles of the vocabulary
 * together, each relative to its running maximum, so that no row of logits is ever whole. */
#include "lib/eval/divergence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/parallel.h"
#include "lib/eval/pair.h"
#include "lib/eval/windows.h"

/* ---- rows of logits ---- */

/* Running sums of one row of one model. */
typedef struct fold {
    double max, sum; /* sum of exp(logit - max) */
    double cross;    /* of a model: sum of exp(z - max of base) (z - y) */
    double target;   /* logit of the target */
    float best;
    size_t best_id;
} fold;

/* Columns of which the weights of the base are kept, and rows that are folded at once. */
enum { FOLD_COLUMNS = 256, FOLD_ROWS = 16 };

typedef struct fold_job {
    size_t rows, variants, width, first;
    const float *base;  /* [rows, width] logits of columns [first, first + width) */
    const float *model; /* [variants * rows, width] */
    const int32_t *targets;
    fold *base_folds;  /* [rows] */
    fold *model_folds; /* [variants * rows] */
} fold_job;

/* Maximum, likeliest token and target of n more columns; returns by what the old sums shrink.
 */
static double fold_columns(fold *f, const float *z, size_t n, size_t first, size_t target)
{
    double shrink = 1;
    float max = f->best;
    for (size_t j = 0; j < n; j++)
        max = z[j] > max ? z[j] : max;
    if (max > f->best) {
        size_t j = 0;
        while (z[j] != max)
            j++;
        shrink = exp(f->max - (double)max);
        f->best = max;
        f->best_id = first + j;
        f->max = (double)max;
        f->sum *= shrink;
    }
    if (target >= first && target - first < n)
        f->target = (double)z[target - first];
    return shrink;
}

/* At most FOLD_COLUMNS columns of row r of all models. */
static void fold_part(const fold_job *job, size_t r, size_t at, size_t n, size_t target)
{
    const float *z = job->base + r * job->width + at;
    fold *b = &job->base_folds[r];
    double p[FOLD_COLUMNS], sum = 0;
    const double shrink = fold_columns(b, z, n, job->first + at, target);
    for (size_t j = 0; j < n; j++) {
        p[j] = exp((double)z[j] - b->max);
        sum += p[j];
    }
    b->sum += sum;
    for (size_t c = 0; c < job->variants; c++) {
        const float *y = job->model + (c * job->rows + r) * job->width + at;
        fold *m = &job->model_folds[c * job->rows + r];
        fold_columns(m, y, n, job->first + at, target);
        double cross = 0;
        sum = 0; /* added as above: equal logits give equal sums */
        for (size_t j = 0; j < n; j++) {
            cross += p[j] * ((double)z[j] - (double)y[j]);
            sum += exp((double)y[j] - m->max);
        }
        m->cross = m->cross * shrink + cross;
        m->sum += sum;
    }
}

static void fold_rows(void *arg, size_t begin, size_t end, int thread)
{
    const fold_job *job = arg;
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        size_t target =
            job->targets && job->targets[r] >= 0 ? (size_t)job->targets[r] : SIZE_MAX;
        for (size_t at = 0, n; at < job->width; at += n) {
            n = job->width - at < FOLD_COLUMNS ? job->width - at : FOLD_COLUMNS;
            fold_part(job, r, at, n, target);
        }
    }
}

static vptq_kld_token finish(const fold *b, const fold *m)
{
    const double lse_base = b->max + log(b->sum), lse = m->max + log(m->sum);
    const double kld = m->cross / b->sum - lse_base + lse;
    return (vptq_kld_token){
        /* Rounding may leave a divergence of almost nothing below zero; NaN stays. */
        .kld = kld < 0 ? 0 : kld,
        .nll = lse - m->target,
        .nll_base = lse_base - b->target,
        .same_top1 = b->best_id == m->best_id,
    };
}

/* One chunk of rows through both heads. */
typedef struct heads {
    vptq_forward *base, *model;
    size_t vocab, dim, variants;
    fold_job job;
    float *base_tile, *model_tile;
    float *stacked; /* [variants * rows, dim] states of all models; NULL for one model */
} heads;

static vptq_status fold_heads(heads *h, const vptq_ctx *ctx, size_t rows,
                              const float *hidden_base, const float *hidden,
                              const int32_t *targets, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t all = rows * h->variants;
    h->job.rows = rows;
    h->job.targets = targets;
    for (size_t i = 0; i < rows + all; i++) {
        fold *f = i < rows ? &h->job.base_folds[i] : &h->job.model_folds[i - rows];
        *f = (fold){
            .max = -INFINITY, .best = -INFINITY, .best_id = h->vocab, .target = (double)NAN};
    }
    VPTQ_TRY(vptq_forward_head_begin(h->base, rows, hidden_base, err));
    VPTQ_TRY(vptq_forward_head_begin(h->model, all, hidden, err));
    for (size_t first = 0; first < h->vocab; first += h->job.width) {
        size_t width;
        VPTQ_TRY(vptq_forward_head_tile(h->base, rows, first, h->base_tile, &width, err));
        VPTQ_TRY(vptq_forward_head_tile(h->model, all, first, h->model_tile, &width, err));
        h->job.first = first;
        h->job.width = width;
        vptq_parallel_for(ctx->threads, rows, FOLD_ROWS, fold_rows, &h->job);
    }
out:
    return st;
}

static vptq_status alloc_heads(heads *h, size_t rows, vptq_arena *arena, vptq_err *err)
{
    const size_t all = rows * h->variants, step = vptq_forward_head_step(h->model);
    h->base_tile = vptq_arena_alloc(arena, rows, step * sizeof(float), err);
    h->model_tile = vptq_arena_alloc(arena, all, step * sizeof(float), err);
    h->job.base_folds = vptq_arena_alloc(arena, rows, sizeof(fold), err);
    h->job.model_folds = vptq_arena_alloc(arena, all, sizeof(fold), err);
    h->job.base = h->base_tile;
    h->job.model = h->model_tile;
    h->job.variants = h->variants;
    if (!h->base_tile || !h->model_tile || !h->job.base_folds || !h->job.model_folds)
        return VPTQ_E_NOMEM;
    if (h->variants > 1) {
        h->stacked = vptq_arena_alloc(arena, all, h->dim * sizeof(float), err);
        if (!h->stacked)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

/* Rows [at, at + rows) of the states of all models, one model after the other. */
static const float *stack_states(heads *h, size_t n, size_t at, size_t rows,
                                 const float *hidden)
{
    if (!h->stacked)
        return hidden + at * h->dim;
    for (size_t c = 0; c < h->variants; c++)
        memcpy(h->stacked + c * rows * h->dim, hidden + (c * n + at) * h->dim,
               rows * h->dim * sizeof *hidden);
    return h->stacked;
}

vptq_status vptq_eval_kld_states(const vptq_ctx *ctx, const vptq_model_desc *d,
                                 vptq_forward *base, vptq_forward *model, size_t n,
                                 size_t variants, const float *hidden_base, const float *hidden,
                                 const int32_t *targets, vptq_kld_token *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    heads h = {.base = base,
               .model = model,
               .vocab = d->vocab,
               .dim = d->hidden,
               .variants = variants};
    vptq_arena arena;
    vptq_arena_init(&arena, ctx->mem);
    if (variants == 0 || variants > VPTQ_FORWARD_ROWS) {
        st = vptq_fail(err, VPTQ_E_ARG, "%zu models at once, at most %d go", variants,
                       VPTQ_FORWARD_ROWS);
        goto out;
    }
    /* the base's rows and those of all variants, each with a pass of its own */
    const size_t fit = vptq_forward_head_fit(base, VPTQ_FORWARD_ROWS + VPTQ_FORWARD_ROWS);
    size_t most = fit / 2 / variants ? fit / 2 / variants : 1;
    most = most < n ? most : n;
    VPTQ_TRY(alloc_heads(&h, most, &arena, err));
    for (size_t at = 0, rows; at < n; at += rows) {
        rows = n - at < most ? n - at : most;
        VPTQ_TRY(fold_heads(&h, ctx, rows, hidden_base + at * h.dim,
                            stack_states(&h, n, at, rows, hidden),
                            targets ? targets + at : NULL, err));
        for (size_t c = 0; c < variants; c++)
            for (size_t r = 0; r < rows; r++)
                out[c * n + at + r] =
                    finish(&h.job.base_folds[r], &h.job.model_folds[c * rows + r]);
    }
out:
    vptq_arena_release(&arena);
    return st;
}

/* ---- a text ---- */

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

    size_t tokens;      /* scored so far */
    double *kld, *diff; /* [all tokens] divergence, loss over that of the base */
    double nll, nll_base;
    uint64_t same;
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
    if (o->context < 2)
        return vptq_fail(err, VPTQ_E_ARG, "context %zu is too short, at least 2 is needed",
                         o->context);
    VPTQ_TRY(vptq_eval_check_shapes(r->m, r->base, err));
    VPTQ_TRY(vptq_corpus_load(r->dev->ctx, &o->corpus, r->m->tokenizer, r->m->desc->vocab,
                              corpus, err));
    VPTQ_TRY(check_tokenizers(r, corpus, err));
    r->w.ids = corpus->ids.data;
    VPTQ_TRY(vptq_windows_cut(&r->w, corpus->name, corpus->ids.count, o->context, 0, o->windows,
                              0, arena, err));
out:
    return st;
}

static vptq_status alloc_run(run *r, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t bytes = r->m->desc->hidden * sizeof(float);
    const size_t tokens = r->w.count * (r->opt->context - 1);
    r->kld = vptq_arena_alloc(arena, tokens, sizeof *r->kld, err);
    r->diff = vptq_arena_alloc(arena, tokens, sizeof *r->diff, err);
    if (!r->kld || !r->diff)
        return VPTQ_E_NOMEM;
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
    char text[64];
    const uint64_t per = 2 * (uint64_t)r->m->desc->layers + 1;
    snprintf(text, sizeof text, "windows %zu to %zu of %zu", first + 1, end, r->w.count);
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
        sum += t[i].kld;
        r->kld[r->tokens + i] = t[i].kld;
        r->diff[r->tokens + i] = t[i].nll - t[i].nll_base;
        r->nll += t[i].nll;
        r->nll_base += t[i].nll_base;
        r->same += t[i].same_top1;
    }
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
            VPTQ_TRY(add_scores(r, first + i, r->scores + at, r->opt->context - 1, err));
            at += r->opt->context - 1;
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

/* ---- summary ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The q-th quantile of n sorted numbers, linear between neighbours. */
static double quantile(const double *x, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    return i + 1 < n ? x[i] + (at - (double)i) * (x[i + 1] - x[i]) : x[n - 1];
}

static double mean_of(const double *x, size_t n, double *standard_error)
{
    double sum = 0, sq = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        sq += (x[i] - mean) * (x[i] - mean);
    *standard_error = n > 1 ? sqrt(sq / (double)(n - 1) / (double)n) : 0;
    return mean;
}

static void summarize(run *r, vptq_kld_result *out)
{
    const size_t n = r->tokens;
    double error;
    out->mean_kld = mean_of(r->kld, n, &out->kld_stderr);
    out->ppl = exp(r->nll / (double)n);
    out->ppl_base = exp(r->nll_base / (double)n);
    out->ppl_ratio = exp(mean_of(r->diff, n, &error));
    out->ppl_ratio_stderr = out->ppl_ratio * error;
    out->same_top1 = (double)r->same / (double)n;
    qsort(r->kld, n, sizeof *r->kld, compare_doubles);
    out->max_kld = r->kld[n - 1];
    out->p99_kld = quantile(r->kld, n, 0.99);
    out->p50_kld = quantile(r->kld, n, 0.5);
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
    result->tokens = (uint64_t)r.w.count * (opt->context - 1);
    if (opt->dry_run)
        goto out;
    double begin = vptq_seconds();
    VPTQ_TRY(run_all(&r, &arena, err));
    summarize(&r, result);
    result->seconds = vptq_seconds() - begin;
out:
    vptq_arena_release(&arena);
    vptq_corpus_release(&corpus);
    return st;
}
