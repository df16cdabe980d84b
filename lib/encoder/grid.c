/* Codebooks on an int8 grid (lib/base/grid.h).  Each codebook gets the scale that changes Q
 * least under the diagonal of H': the change of a centroid counts with the sum of H'_jj over
 * its uses.  A few centroids far out are used by few vectors; to clip them costs less than the
 * coarser steps that would reach them. */
#include "lib/base/grid.h"

#include "lib/encoder/encoder.h"

/* weights [k] = sum of H'_jj over the uses of each centroid. */
static vptq_status weigh_uses(vptq_encoder *enc, const vptq_column_group *g, bool residual,
                              double *weights, vptq_err *err)
{
    const vptq_device *dev = enc->dev;
    const size_t rows = enc->columns.rows, n = g->cols * g->vector_rows;
    const size_t k = residual ? g->k_res : g->k;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    double *sums = vptq_arena_alloc(&enc->scratch, k * g->v, sizeof *sums, err);
    if (!sums)
        return VPTQ_E_NOMEM;
    const vptq_scatter_args s = {
        .cols = g->cols,
        .rows = g->rows,
        .v = g->v,
        .k = (uint32_t)k,
        .y =
            vptq_mirror_in(&m, enc->problem.z + g->first * rows, g->cols * rows, sizeof(float)),
        .weight = vptq_mirror_in(&m, enc->problem.diag + g->first, g->cols, sizeof(float)),
        .idx = vptq_mirror_in(&m, residual ? g->idx_res : g->idx, n, sizeof *g->idx),
        .sums = vptq_mirror_take(&m, sums, k * g->v, sizeof *sums, 0),
        .weights = vptq_mirror_take(&m, weights, k, sizeof *weights, VPTQ_MIRROR_DOWNLOAD),
        .ldy = rows,
        .ldi = g->vector_rows};
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->vq_scatter(dev->state, &s, err);
    return vptq_mirror_end(&m, st, err);
}

/* A codebook out of the storage type's range is left to vptq_columns_round, which reports it.
 */
static vptq_status grid_codebook(vptq_encoder *enc, const vptq_column_group *g, bool residual,
                                 vptq_err *err)
{
    const vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    const size_t k = residual ? g->k_res : g->k;
    float *codebook = residual ? g->res : g->main;
    double *weights = vptq_arena_alloc(&enc->scratch, k, sizeof *weights, err);

    if (!weights)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(weigh_uses(enc, g, residual, weights, err));
    const float scale = vptq_grid_choose(enc->settings->storage, k, g->v, codebook, weights);
    if (scale > 0)
        vptq_grid_round(scale, codebook, k * g->v);
    vptq_arena_rewind(&enc->scratch, mark);
    return VPTQ_OK;
}

vptq_status vptq_grid_codebooks(vptq_encoder *enc, bool residual, vptq_err *err)
{
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        const vptq_column_group *g = &enc->columns.groups[i];
        VPTQ_CHECK(grid_codebook(enc, g, false, err));
        if (g->k_res && residual)
            VPTQ_CHECK(grid_codebook(enc, g, true, err));
    }
    return VPTQ_OK;
}

/* Least squares over groups in which the residual codebook and its indices stand for the main
 * ones: a direction of the refit then has no part in the main codebooks. */
vptq_status vptq_grid_refit_residual(vptq_encoder *enc, int iterations, vptq_err *err)
{
    const vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    vptq_column_group *all = enc->columns.groups;
    vptq_column_group *groups =
        vptq_arena_alloc(&enc->scratch, enc->columns.num_groups, sizeof *groups, err);

    if (!groups)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        groups[i] = all[i];
        if (!all[i].k_res)
            continue;
        groups[i].main = all[i].res;
        groups[i].idx = all[i].idx_res;
        groups[i].k = all[i].k_res;
        groups[i].k_res = 0;
    }
    enc->columns.groups = groups;
    const vptq_status st = vptq_refit(enc, NULL, NULL, iterations, err);
    enc->columns.groups = all;
    vptq_arena_rewind(&enc->scratch, mark);
    return st;
}
