/* KL(base || model) of rows of hidden states under the output heads of two models.
 *
 * With z, y the logits of base and model and p = exp(z - lse(z)), the divergence of a row is
 * sum_j p_j (z_j - y_j) - lse(z) + lse(y).  The three sums run over tiles of the vocabulary,
 * each relative to its running maximum, so that no whole row of logits is stored. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/parallel.h"
#include "lib/eval/kld.h"

/* Running sums of one row of one model. */
typedef struct fold {
    double max, sum; /* sum of exp(logit - max) */
    double cross;    /* of a model: sum of exp(z - max of base) (z - y) */
    double target;   /* logit of the target */
    float best;
    size_t best_id;
} fold;

/* Columns of one step, whose base probabilities are kept; rows of a parallel chunk. */
enum { FOLD_COLUMNS = 256, FOLD_ROWS = 16 };

typedef struct fold_job {
    size_t rows, variants, width, first;
    const float *base;  /* [rows, width] logits of columns [first, first + width) */
    const float *model; /* [variants * rows, width] */
    const int32_t *targets;
    fold *base_folds;  /* [rows] */
    fold *model_folds; /* [variants * rows] */
} fold_job;

/* Updates maximum, likeliest token and target with n more columns.  Returns the factor that
 * rescales older sums to the new maximum. */
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

/* Adds columns [at, at + n) of the tile, n <= FOLD_COLUMNS, to the sums of row r of all models.
 */
static void fold_step(const fold_job *job, size_t r, size_t at, size_t n, size_t target)
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
        sum = 0; /* in the same order as above: equal logits give equal sums */
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
            fold_step(job, r, at, n, target);
        }
    }
}

static vptq_kld_token finish(const fold *b, const fold *m)
{
    const double lse_base = b->max + log(b->sum), lse = m->max + log(m->sum);
    const double kld = m->cross / b->sum - lse_base + lse;
    return (vptq_kld_token){
        /* rounding may make a tiny divergence negative; NaN stays */
        .kld = kld < 0 ? 0 : kld,
        .nll = lse - m->target,
        .nll_base = lse_base - b->target,
        .same_top1 = b->best_id == m->best_id,
    };
}

/* Buffers for a chunk of rows under both heads. */
typedef struct heads {
    vptq_forward *base, *model;
    size_t vocab, dim, variants;
    fold_job job;
    float *base_tile, *model_tile;
    float *stacked; /* [variants * rows, dim] hidden states of all variants; NULL for one */
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

static vptq_status alloc_heads(heads *h, size_t rows, size_t variants, vptq_arena *arena,
                               vptq_err *err)
{
    const size_t all = rows * variants, step = vptq_forward_head_step(h->model);
    h->base_tile = vptq_arena_alloc(arena, rows, step * sizeof(float), err);
    h->model_tile = vptq_arena_alloc(arena, all, step * sizeof(float), err);
    h->job.base_folds = vptq_arena_alloc(arena, rows, sizeof(fold), err);
    h->job.model_folds = vptq_arena_alloc(arena, all, sizeof(fold), err);
    h->job.base = h->base_tile;
    h->job.model = h->model_tile;
    if (!h->base_tile || !h->model_tile || !h->job.base_folds || !h->job.model_folds)
        return VPTQ_E_NOMEM;
    if (variants > 1) {
        h->stacked = vptq_arena_alloc(arena, all, h->dim * sizeof(float), err);
        if (!h->stacked)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

/* Rows [at, at + rows) of the hidden states of all variants, one variant after the other.  If
 * the rows are few, those of some variants are repeated up to the number of all, because
 * products of few rows may round differently. */
static const float *stack_states(heads *h, const vptq_kld_args *a, size_t all, size_t at,
                                 size_t rows)
{
    h->variants = h->job.variants = rows > VPTQ_FORWARD_FEW ? a->variants : all;
    if (!h->stacked)
        return a->hidden + at * h->dim;
    for (size_t c = 0; c < h->variants; c++)
        memcpy(h->stacked + c * rows * h->dim,
               a->hidden + (c % a->variants * a->rows + at) * h->dim,
               rows * h->dim * sizeof *a->hidden);
    return h->stacked;
}

vptq_status vptq_eval_kld_rows(const vptq_ctx *ctx, const vptq_kld_args *a, vptq_kld_token *out,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t n = a->rows, variants = a->variants, all = a->all ? a->all : variants;
    heads h = {
        .base = a->base, .model = a->model, .vocab = a->shape->vocab, .dim = a->shape->hidden};
    vptq_arena arena;
    vptq_arena_init(&arena, ctx->mem);
    if (variants == 0 || all > VPTQ_FORWARD_ROWS)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG, "%zu models at once, expected 1 to %d", all,
                           VPTQ_FORWARD_ROWS));
    /* half for the rows of the base, half for those of all variants */
    const size_t fit = vptq_forward_head_fit(a->base, VPTQ_FORWARD_ROWS + VPTQ_FORWARD_ROWS);
    size_t chunk = fit / 2 / all ? fit / 2 / all : 1;
    chunk = chunk < n ? chunk : n;
    VPTQ_TRY(alloc_heads(&h, chunk, all, &arena, err));
    for (size_t at = 0, rows; at < n; at += rows) {
        rows = vptq_forward_rows(a->base, n - at, chunk);
        const float *hidden = stack_states(&h, a, all, at, rows);
        VPTQ_TRY(fold_heads(&h, ctx, rows, a->hidden_base + at * h.dim, hidden,
                            a->targets ? a->targets + at : NULL, err));
        for (size_t c = 0; c < variants; c++)
            for (size_t r = 0; r < rows; r++)
                out[c * n + at + r] =
                    finish(&h.job.base_folds[r], &h.job.model_folds[c * rows + r]);
    }
out:
    vptq_arena_release(&arena);
    return st;
}
