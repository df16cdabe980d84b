/* Codebooks on an int8 grid (lib/base/grid.h).  Each codebook gets the scale that changes Q
 * least under the diagonal of H': the change of a centroid counts with the sum of H'_jj over
 * its uses.  A few centroids far out are used by few vectors; to clip them costs less than the
 * coarser steps that would reach them. */
#include "lib/base/grid.h"

#include "lib/encoder/encoder.h"

/* weights [k], in host memory, = sum of H'_jj over the uses of each centroid. */
static vptq_status weigh_uses(vptq_encoder *enc, const vptq_column_group *g, bool residual,
                              double *weights, vptq_err *err)
{
    const vptq_device *dev = enc->dev;
    const size_t rows = enc->columns.rows, k = residual ? g->k_res : g->k, n = k * g->v;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    double *repeated = vptq_arena_alloc(&enc->scratch, n, sizeof *repeated, err);
    if (!repeated)
        return VPTQ_E_NOMEM;
    const vptq_scatter_args s = {
        .cols = g->cols,
        .rows = g->rows,
        .v = g->v,
        .k = (uint32_t)k,
        .y = enc->problem.z + g->first * rows,
        .weight = enc->problem.on.diag + g->first,
        .idx = residual ? g->idx_res : g->idx,
        .sums = vptq_mirror_alloc(&m, n, sizeof *repeated),
        .weights = vptq_mirror_take(&m, repeated, n, sizeof *repeated, VPTQ_MIRROR_DOWNLOAD),
        .ldy = rows,
        .ldi = g->vector_rows};
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->vq_scatter(dev->state, &s, err);
    st = vptq_mirror_end(&m, st, err);
    for (size_t i = 0; !st && i < k; i++)
        weights[i] = repeated[i * g->v];
    return st;
}

/* A codebook out of the storage type's range is left to vptq_columns_round, which reports it.
 */
static vptq_status grid_codebook(vptq_encoder *enc, const vptq_column_group *g, bool residual,
                                 vptq_err *err)
{
    const vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    const size_t k = residual ? g->k_res : g->k;
    const size_t bytes = k * g->v * sizeof(float);
    float *codebook = residual ? g->res_stored : g->stored;
    double *weights = vptq_arena_alloc(&enc->scratch, k, sizeof *weights, err);

    if (!weights)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(weigh_uses(enc, g, residual, weights, err));
    VPTQ_CHECK(vptq_mirror_pull(enc->columns.arrays, codebook, bytes, err));
    const float scale = vptq_grid_choose(enc->settings->storage, k, g->v, codebook, weights);
    if (scale > 0)
        vptq_grid_round(scale, codebook, k * g->v);
    vptq_arena_rewind(&enc->scratch, mark);
    return vptq_mirror_push(enc->columns.arrays, codebook, bytes, err);
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
