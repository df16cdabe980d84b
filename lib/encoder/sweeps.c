/* Coordinate-descent sweeps over the indices.  As a function of column j alone the objective is
 * H'_jj |q_j - t_j|^2 + const with t_j = q_j - (E H')_j / H'_jj, separable in vectors; choosing
 * the nearest pair to t_j, and keeping the old one unless another is strictly nearer, never
 * raises it.  The choices of a block, and G = E H' inside it, are the op vq_descend
 * (lib/backend/cpu/columns.c, ref/search.c); the other columns of G get one matrix product per
 * block.  In memory all of these are transposed: a column is a row.
 *
 * Under an output Hessian K, G is K E H' and the vectors of a column depend on each other
 * within the blocks of K; the op vq_descend_output chooses them one after another. */
#include "lib/encoder/encoder.h"

typedef struct sweep {
    const vptq_encoder *enc;
    const vptq_column_group *group;
    vptq_search_index *index; /* without an output Hessian */
    float *delta;             /* [VPTQ_PASS_BLOCK][rows] */
    float *change;            /* the same, times the output Hessian if there is one */
} sweep;

/* The choices of a block of columns; a->delta = their changes. */
static vptq_status descend(const sweep *a, size_t first, size_t cols, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const vptq_column_group *group = a->group;
    const size_t rows = a->enc->problem.rows, in = a->enc->problem.in;
    const size_t vectors = (first - group->first) * group->vector_rows;
    const vptq_descend_args block = {.cols = cols,
                                     .rows = group->rows,
                                     .index = a->index,
                                     .g = a->enc->g + first * rows,
                                     .h = a->enc->problem.h + first * in + first,
                                     .idx = group->idx + vectors,
                                     .idx_res = group->k_res ? group->idx_res + vectors : NULL,
                                     .q = a->enc->q + first * rows,
                                     .delta = a->delta,
                                     .ldg = rows,
                                     .ldh = in,
                                     .ldi = group->vector_rows,
                                     .ldq = rows,
                                     .ldd = rows};
    return dev->ops->vq_descend(dev->state, &block, err);
}

/* The same under the output Hessian. */
static vptq_status descend_output(const sweep *a, size_t first, size_t cols, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const vptq_column_group *group = a->group;
    const size_t rows = a->enc->problem.rows, in = a->enc->problem.in;
    const size_t vectors = (first - group->first) * group->vector_rows;
    const vptq_descend_output_args block = {.cols = cols,
                                            .rows = group->rows,
                                            .v = group->v,
                                            .k = group->k,
                                            .k_res = group->k_res,
                                            .centroids = group->main,
                                            .res_centroids = group->res,
                                            .output = a->enc->output.k,
                                            .g = a->enc->g + first * rows,
                                            .h = a->enc->problem.h + first * in + first,
                                            .idx = group->idx + vectors,
                                            .idx_res =
                                                group->k_res ? group->idx_res + vectors : NULL,
                                            .q = a->enc->q + first * rows,
                                            .delta = a->delta,
                                            .ldg = rows,
                                            .ldh = in,
                                            .ldi = group->vector_rows,
                                            .ldq = rows,
                                            .ldd = rows};
    VPTQ_CHECK(dev->ops->vq_descend_output(dev->state, &block, err));
    return vptq_output_multiply(a->enc, cols, group->rows, a->delta, a->change, err);
}

static vptq_status sweep_block(const sweep *a, size_t first, size_t cols, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const size_t rows = a->enc->problem.rows, in = a->enc->problem.in;
    const vptq_gemm_args update = {.m = in,
                                   .n = a->group->rows,
                                   .k = cols,
                                   .a = a->enc->problem.h + first * in,
                                   .b = a->change,
                                   .c = a->enc->g,
                                   .lda = in,
                                   .ldb = rows,
                                   .ldc = rows,
                                   .trans_a = true,
                                   .alpha = 1,
                                   .beta = 1};
    VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
    VPTQ_CHECK(a->enc->output.k ? descend_output(a, first, cols, err)
                                : descend(a, first, cols, err));
    return dev->ops->gemm(dev->state, &update, err);
}

static vptq_status sweep_group(const sweep *a, vptq_err *err)
{
    for (size_t i = 0; i < a->group->cols; i += VPTQ_PASS_BLOCK) {
        const size_t left = a->group->cols - i;
        VPTQ_CHECK(sweep_block(a, a->group->first + i,
                               left < VPTQ_PASS_BLOCK ? left : VPTQ_PASS_BLOCK, err));
    }
    return VPTQ_OK;
}

/* One search index per group serves all sweeps; under an output Hessian all are NULL. */
static vptq_status open_indexes(const vptq_encoder *enc, vptq_search_index **index,
                                vptq_err *err)
{
    const vptq_device *dev = enc->dev;
    for (uint32_t i = 0; !enc->output.k && i < enc->columns.num_groups; i++) {
        const vptq_codebooks codebooks =
            vptq_group_codebooks(&enc->columns.groups[i], enc->settings->beam);
        VPTQ_CHECK(dev->ops->search_index_open(dev->state, &codebooks, &index[i], err));
    }
    return VPTQ_OK;
}

vptq_status vptq_sweeps(vptq_encoder *enc, uint32_t count, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    vptq_mirror m = vptq_mirror_of(enc->dev);
    const uint32_t num_groups = enc->columns.num_groups;
    sweep a = {.enc = enc};

    vptq_search_index **index =
        vptq_arena_zalloc(&enc->scratch, num_groups, sizeof(vptq_search_index *), err);
    if (!index)
        return VPTQ_E_NOMEM;
    a.delta = vptq_mirror_alloc(&m, VPTQ_PASS_BLOCK * enc->problem.rows, sizeof *a.delta);
    a.change = a.delta;
    if (enc->output.k)
        a.change = vptq_mirror_alloc(&m, VPTQ_PASS_BLOCK * enc->problem.rows, sizeof *a.change);
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(open_indexes(enc, index, err));
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = 0; i < num_groups; i++) {
            a.group = &enc->columns.groups[i];
            a.index = index[i];
            VPTQ_TRY(sweep_group(&a, err));
        }
out:
    for (uint32_t i = 0; i < num_groups; i++)
        enc->dev->ops->search_index_close(enc->dev->state, index[i]);
    st = vptq_mirror_end(&m, st, err);
    vptq_arena_rewind(&enc->scratch, mark);
    return st;
}
