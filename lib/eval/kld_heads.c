/* Divergence of rows: KL(base || model) of every row of hidden states through two heads.
 *
 * With z, y the logits of base and model, p = exp(z - lse(z)), the divergence of a row is
 * sum_j p_j (z_j - y_j) - lse(z) + lse(y).  The three sums run over tiles of the vocabulary
 * together, each relative to its running maximum, so that no row of logits is ever whole. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/parallel.h"
#include "lib/eval/divergence.h"

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
    const size_t all = rows * h->variants;
    h->job.rows = rows;
    h->job.targets = targets;
    for (size_t i = 0; i < rows + all; i++) {
        fold *f = i < rows ? &h->job.base_folds[i] : &h->job.model_folds[i - rows];
        *f = (fold){
            .max = -INFINITY, .best = -INFINITY, .best_id = h->vocab, .target = (double)NAN};
    }
    VPTQ_CHECK(vptq_forward_head_begin(h->base, rows, hidden_base, err));
    VPTQ_CHECK(vptq_forward_head_begin(h->model, all, hidden, err));
    for (size_t first = 0; first < h->vocab; first += h->job.width) {
        size_t width;
        VPTQ_CHECK(vptq_forward_head_tile(h->base, rows, first, h->base_tile, &width, err));
        VPTQ_CHECK(vptq_forward_head_tile(h->model, all, first, h->model_tile, &width, err));
        h->job.first = first;
        h->job.width = width;
        vptq_parallel_for(ctx->threads, rows, FOLD_ROWS, fold_rows, &h->job);
    }
    return VPTQ_OK;
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
