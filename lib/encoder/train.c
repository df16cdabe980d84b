/* Training the codebooks of every part: k-means on the plain (normalized) weights, k-means on
 * what that leaves, then both codebooks together.  Vectors are weighted with the metric's
 * diagonal at their column. */
#include <math.h>
#include <string.h>

#include "kmeans/kmeans.h"
#include "lib/encoder/encoder.h"

enum {
    JOINT_ITERATIONS = 8
}; /* of conjugate gradients per round; rounds go on from each other */

vptq_status vptq_part_vectors(vptq_encoder *c, const vptq_part *p, const float *from,
                              const float **x, vptq_err *err)
{
    const float *first = from + (size_t)p->first * c->rows;

    *x = first;
    if (p->rows == c->rows)
        return VPTQ_OK;
    float *copy = vptq_arena_alloc(&c->work, p->cols * p->rows, sizeof *copy, err);
    if (!copy)
        return VPTQ_E_NOMEM;
    for (size_t t = 0; t < p->cols; t++)
        memcpy(copy + t * p->rows, first + t * c->rows, p->rows * sizeof *copy);
    *x = copy;
    return VPTQ_OK;
}

/* The weight of vector t is that of its column, or of vector t / v where the published recipe
 * is followed in how it reads the weights of a residual codebook. */
static vptq_status vector_weights(vptq_encoder *c, const vptq_part *p, bool shifted, float **w,
                                  vptq_err *err)
{
    size_t n = p->cols * p->vector_rows;

    *w = vptq_arena_alloc(&c->work, n, sizeof **w, err);
    if (!*w)
        return VPTQ_E_NOMEM;
    for (size_t t = 0; t < n; t++)
        (*w)[t] = c->diag[p->first + (shifted ? t / p->v : t) / p->vector_rows];
    return VPTQ_OK;
}

/* Random numbers: a stream for each codebook. */
static vptq_status cluster(vptq_encoder *c, const vptq_part *p, bool residual, const float *x,
                           const float *w, vptq_err *err)
{
    const vptq_encoder_settings *s = c->s;
    vptq_kmeans_options opt = vptq_kmeans_default(p->v, residual ? p->k_res : p->k);
    vptq_kmeans_stats stats;
    uint32_t codebook = 2 * (uint32_t)(p - c->part) + residual;

    opt.iterations = (int)s->kmeans_iterations;
    opt.tolerance = s->kmeans_tolerance;
    opt.shift = s->kmeans_shift;
    opt.keep_empty = s->init == VPTQ_INIT_RANDOM;
    opt.seeding = s->init == VPTQ_INIT_RANDOM ? VPTQ_KMEANS_RANDOM : VPTQ_KMEANS_PLUSPLUS;
    opt.rng = vptq_rng_make(s->seed, c->input->matrix_id, codebook, VPTQ_RNG_SEEDING);
    vptq_status st = vptq_kmeans_run(c->dev, &opt, p->cols * p->vector_rows, x, w,
                                     residual ? p->res : p->main,
                                     residual ? p->idx_res : p->idx, &stats, NULL, err);
    if (st)
        return st;
    c->report->kmeans_iterations += stats.iterations;
    c->report->kmeans_repaired += stats.repaired;
    return VPTQ_OK;
}

vptq_status vptq_train_main(vptq_encoder *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);

    for (uint32_t i = 0; i < c->parts; i++) {
        const vptq_part *p = &c->part[i];
        const float *x;
        float *w;
        VPTQ_TRY(vptq_part_vectors(c, p, c->z, &x, err));
        VPTQ_TRY(vector_weights(c, p, false, &w, err));
        VPTQ_TRY(cluster(c, p, false, x, w, err));
        vptq_arena_rewind(&c->work, mark);
    }
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}

/* What the residual codebook has to stand for: target - main centroid, where the target is the
 * plain weight or, after a pass with the main codebook, the compensated one (left in g). */
static vptq_status left_over(vptq_encoder *c, const vptq_part *p, const float *target,
                             float **x, vptq_err *err)
{
    *x = vptq_arena_alloc(&c->work, p->cols * p->rows, sizeof **x, err);
    if (!*x)
        return VPTQ_E_NOMEM;
    for (size_t t = 0; t < p->cols; t++)
        for (size_t i = 0; i < p->vector_rows; i++) {
            const float *from = target + (p->first + t) * c->rows + i * p->v;
            const float *centroid = p->main + (size_t)p->idx[t * p->vector_rows + i] * p->v;
            float *to = *x + (t * p->vector_rows + i) * p->v;
            for (uint32_t d = 0; d < p->v; d++)
                to[d] = from[d] - centroid[d];
        }
    return VPTQ_OK;
}

vptq_status vptq_train_residual(vptq_encoder *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    bool after_pass = c->s->residual_from == VPTQ_RESIDUAL_PASS;

    if (after_pass)
        VPTQ_TRY(vptq_column_pass(c, true, err));
    for (uint32_t i = 0; i < c->parts; i++) {
        const vptq_part *p = &c->part[i];
        float *x, *w;
        if (!p->k_res)
            continue;
        VPTQ_TRY(left_over(c, p, after_pass ? c->g : c->z, &x, err));
        VPTQ_TRY(vector_weights(c, p, after_pass, &w, err));
        VPTQ_TRY(cluster(c, p, true, x, w, err));
        vptq_arena_rewind(&c->work, mark);
    }
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}

/* While codebooks still change a lot, choices need not be the best: all but the last rounds try
 * a fraction of the main centroids. */
enum { WIDE_ROUNDS = 2, NARROW = 4 };

/* The best choices for the codebooks as they are; x in device memory. */
static vptq_status choose_pairs(vptq_encoder *c, vptq_part *p, const float *x, bool narrow,
                                vptq_err *err)
{
    const vptq_backend *ops = c->dev->ops;
    vptq_status st = VPTQ_OK;
    vptq_search_index *index = NULL;
    vptq_mirror m = vptq_mirror_of(c->dev);
    const vptq_part on = vptq_part_mirror(&m, p, true);
    vptq_codebooks codebooks = vptq_part_codebooks(c, &on);

    if (narrow)
        codebooks.beam = (codebooks.beam + NARROW - 1) / NARROW;
    VPTQ_TRY(vptq_check_cancel(c->dev->ctx, err));
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(ops->search_index_open(c->dev->state, &codebooks, &index, err));
    const vptq_search_args f = {.n = p->cols * p->vector_rows,
                                .index = index,
                                .x = x,
                                .keep = true,
                                .idx = on.idx,
                                .idx_res = on.idx_res};
    VPTQ_TRY(ops->search(c->dev->state, &f, err));
out:
    ops->search_index_close(c->dev->state, index);
    return vptq_mirror_end(&m, st, err);
}

/* Alternates the best choices for the codebooks and the best codebooks for the choices; either
 * only lowers the sum of H'_jj |target - c - r|^2. */
static vptq_status train_part(vptq_encoder *c, vptq_part *p, const float *target,
                              uint32_t rounds, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    vptq_mirror m = vptq_mirror_of(c->dev);
    const float *x;

    VPTQ_TRY(vptq_part_vectors(c, p, target, &x, err));
    const float *xd = vptq_mirror_in(&m, x, p->cols * p->rows, sizeof *x);
    VPTQ_TRY(vptq_mirror_check(&m, err));
    for (uint32_t round = 0; round < rounds; round++) {
        VPTQ_TRY(choose_pairs(c, p, xd, round + WIDE_ROUNDS < rounds, err));
        VPTQ_TRY(vptq_refit(c, p, target, JOINT_ITERATIONS, err));
    }
out:
    st = vptq_mirror_end(&m, st, err);
    vptq_arena_rewind(&c->work, mark);
    return st;
}

vptq_status vptq_train_joint(vptq_encoder *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;

    for (uint32_t i = 0; i < c->parts && !st; i++)
        if (c->part[i].k_res)
            st = train_part(c, &c->part[i], c->z, c->s->joint, err);
    return st;
}

/* The pass quantizes other vectors than the plain weights: what earlier errors were pushed
 * into. Codebooks that fit those serve a second pass better (its targets move only a little
 * again).
 */
vptq_status vptq_retrain(vptq_encoder *c, uint32_t rounds, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t n = (size_t)c->in * c->rows;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    float *target = vptq_arena_alloc(&c->work, n, sizeof *target, err);

    if (!target)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(vptq_column_pass(c, false, err));
    memcpy(target, c->g, n * sizeof *target);
    for (uint32_t i = 0; i < c->parts; i++)
        VPTQ_TRY(train_part(c, &c->part[i], target, rounds, err));
    memset(c->e, 0, n * sizeof *c->e); /* training left it unlike q - z */
    VPTQ_TRY(vptq_column_pass(c, false, err));
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}
