/* Training the codebooks of every column group: k-means on the normalized weights, k-means on
 * the residuals, then both codebooks together.  A vector is weighted with the metric's diagonal
 * at its column. */
#include "kmeans/kmeans.h"
#include "lib/encoder/encoder.h"

/* w [count][run] = diag [count], each value `run` times. */
static vptq_status repeat(const vptq_device *dev, const float *diag, size_t count, size_t run,
                          float *w, vptq_err *err)
{
    const vptq_affine_args args = {
        .cols = count, .rows = run, .valid = run, .b = diag, .y = w, .ldy = run};
    return dev->ops->affine(dev->state, &args, err);
}

/* The weight of vector t is that of its column.  `shifted` follows the published recipe, which
 * reads the weight of vector t / v when it trains a residual codebook. */
static vptq_status vector_weights(vptq_encoder *enc, const vptq_column_group *g, bool shifted,
                                  vptq_mirror *m, float **w, vptq_err *err)
{
    const size_t n = g->cols * g->vector_rows, run = g->vector_rows * (shifted ? g->v : 1);
    const float *diag = enc->problem.on.diag + g->first;

    *w = vptq_mirror_alloc(m, n, sizeof **w);
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(repeat(enc->dev, diag, n / run, run, *w, err));
    return n % run ? repeat(enc->dev, diag + n / run, 1, n % run, *w + n / run * run, err)
                   : VPTQ_OK;
}

/* k-means with a random stream of its own for each codebook. */
static vptq_status cluster(vptq_encoder *enc, const vptq_column_group *g, bool residual,
                           const float *x, const float *w, vptq_err *err)
{
    const vptq_encoder_settings *s = enc->settings;
    vptq_kmeans_options opt = vptq_kmeans_default(g->v, residual ? g->k_res : g->k);
    vptq_kmeans_stats stats;
    const uint32_t codebook = 2 * (uint32_t)(g - enc->columns.groups) + residual;

    opt.iterations = (int)s->kmeans_iterations;
    opt.tolerance = s->kmeans_tolerance;
    opt.shift = s->kmeans_shift;
    opt.keep_empty = s->init == VPTQ_INIT_RANDOM;
    opt.seeding = s->init == VPTQ_INIT_RANDOM ? VPTQ_KMEANS_RANDOM : VPTQ_KMEANS_PLUSPLUS;
    opt.rng = vptq_rng_make(s->seed, enc->problem.input->matrix_id, codebook, VPTQ_RNG_SEEDING);
    const vptq_kmeans_args args = {.n = g->cols * g->vector_rows,
                                   .x = x,
                                   .w = w,
                                   .centroids = residual ? g->res : g->main,
                                   .labels = residual ? g->idx_res : g->idx};
    VPTQ_CHECK(vptq_kmeans_run(enc->dev, &opt, &args, &stats, err));
    enc->report->kmeans_iterations += stats.iterations;
    enc->report->kmeans_repaired += stats.repaired;
    return VPTQ_OK;
}

static vptq_status train_main(vptq_encoder *enc, const vptq_column_group *g, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    const float *x;
    float *w;

    VPTQ_TRY(vptq_group_vectors(g, enc->problem.z, enc->columns.rows, &m, &x, err));
    VPTQ_TRY(vector_weights(enc, g, false, &m, &w, err));
    VPTQ_TRY(cluster(enc, g, false, x, w, err));
out:
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_train_main(vptq_encoder *enc, vptq_err *err)
{
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        VPTQ_CHECK(train_main(enc, &enc->columns.groups[i], err));
    return VPTQ_OK;
}

/* *x = target - main centroid, vector by vector. */
static vptq_status residuals(vptq_encoder *enc, const vptq_column_group *g, const float *target,
                             vptq_mirror *m, float **x, vptq_err *err)
{
    const vptq_device *dev = enc->dev;
    const vptq_gather_args gather = {.cols = g->cols,
                                     .rows = g->rows,
                                     .v = g->v,
                                     .k = g->k,
                                     .centroids = g->main,
                                     .idx = g->idx,
                                     .q = *x =
                                         vptq_mirror_alloc(m, g->cols * g->rows, sizeof **x),
                                     .ldi = g->vector_rows,
                                     .ldq = g->rows};
    const vptq_subtract_args subtract = {.cols = g->cols,
                                         .rows = g->rows,
                                         .x = target + g->first * enc->columns.rows,
                                         .y = *x,
                                         .z = *x,
                                         .ldx = enc->columns.rows,
                                         .ldy = g->rows,
                                         .ldz = g->rows};
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(dev->ops->vq_gather(dev->state, &gather, err));
    return dev->ops->subtract(dev->state, &subtract, err);
}

static vptq_status train_residual(vptq_encoder *enc, const vptq_column_group *g,
                                  bool after_pass, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    float *x, *w;

    VPTQ_TRY(residuals(enc, g, after_pass ? enc->g : enc->problem.z, &m, &x, err));
    VPTQ_TRY(vector_weights(enc, g, after_pass, &m, &w, err));
    VPTQ_TRY(cluster(enc, g, true, x, w, err));
out:
    return vptq_mirror_end(&m, st, err);
}

/* The targets are the normalized weights or, in the published recipe, the compensated ones of a
 * pass with the main codebooks alone. */
vptq_status vptq_train_residual(vptq_encoder *enc, vptq_err *err)
{
    const bool after_pass = enc->settings->residual_from == VPTQ_RESIDUAL_PASS;

    if (after_pass)
        VPTQ_CHECK(vptq_column_pass(enc, true, err));
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        if (enc->columns.groups[i].k_res)
            VPTQ_CHECK(train_residual(enc, &enc->columns.groups[i], after_pass, err));
    return VPTQ_OK;
}

/* Indices = the best pair for each vector of x, the old one if none is better. */
static vptq_status choose_pairs(vptq_encoder *enc, const vptq_column_group *g, const float *x,
                                bool narrow, vptq_err *err)
{
    const vptq_backend *ops = enc->dev->ops;
    vptq_status st = VPTQ_OK;
    vptq_search_index *index = NULL;
    vptq_codebooks codebooks = vptq_group_codebooks(g, enc->settings->beam);

    if (narrow)
        codebooks.beam = (codebooks.beam + VPTQ_NARROWING - 1) / VPTQ_NARROWING;
    VPTQ_TRY(vptq_check_cancel(enc->dev->ctx, err));
    VPTQ_TRY(ops->search_index_open(enc->dev->state, &codebooks, &index, err));
    const vptq_search_args args = {.n = g->cols * g->vector_rows,
                                   .index = index,
                                   .x = x,
                                   .keep = true,
                                   .idx = g->idx,
                                   .idx_res = g->idx_res};
    VPTQ_TRY(ops->search(enc->dev->state, &args, err));
out:
    ops->search_index_close(enc->dev->state, index);
    return st;
}

/* Alternates the best indices for the codebooks and the best codebooks for the indices; both
 * only lower the sum of H'_jj |target - c - r|^2. */
static vptq_status train_group(vptq_encoder *enc, const vptq_column_group *g,
                               const float *target, uint32_t rounds, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    const float *x;

    VPTQ_TRY(vptq_group_vectors(g, target, enc->columns.rows, &m, &x, err));
    for (uint32_t round = 0; round < rounds; round++) {
        VPTQ_TRY(choose_pairs(enc, g, x, round + VPTQ_WIDE_ROUNDS < rounds, err));
        VPTQ_TRY(vptq_refit(enc, g, target, VPTQ_JOINT_ITERATIONS, err));
    }
out:
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_train_joint(vptq_encoder *enc, vptq_err *err)
{
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        if (enc->columns.groups[i].k_res)
            VPTQ_CHECK(train_group(enc, &enc->columns.groups[i], enc->problem.z,
                                   enc->settings->joint, err));
    return VPTQ_OK;
}

/* The pass quantizes the compensated weights, into which earlier errors were pushed.  Codebooks
 * that fit those serve a second pass better, because its targets move only a little again. */
vptq_status vptq_retrain(vptq_encoder *enc, uint32_t rounds, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_device *dev = enc->dev;
    const size_t n = (size_t)enc->problem.in * enc->problem.rows;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    float *target = vptq_mirror_alloc(&m, n, sizeof *target);

    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(vptq_column_pass(enc, false, err));
    VPTQ_TRY(dev->ops->copy(dev->state, target, enc->g, n * sizeof *target, err));
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        VPTQ_TRY(train_group(enc, &enc->columns.groups[i], target, rounds, err));
    VPTQ_TRY(vptq_column_pass(enc, false, err));
out:
    return vptq_mirror_end(&m, st, err);
}
