/* The column pass (paper, Algorithm 1).  Columns are quantized one after another; the error of
 * a column, divided by the factor's diagonal, is pushed into the columns after it:
 *
 *     z_s -= (z_t - q_t) / U_tt * U_ts    for s > t
 *
 * Inside a block the op vq_pass does that column by column (lib/backend/cpu/columns.c,
 * ref/search.c); the columns after the block get one
 * matrix product Z_rest -= U[block, rest]^T Err.  A block ends where the next column group
 * begins, because its columns share codebooks.
 *
 * With settings.pass_columns > 1 that many columns are quantized as they are, and then their
 * errors are propagated together: Err = U_bb^-T (Z_b - Q_b), then the same product.  That is
 * the paper's ablation without channel independence. */
#include "lib/encoder/encoder.h"

typedef struct pass {
    vptq_encoder *enc;
    size_t in, rows;
    const vptq_column_group *group;
    vptq_search_index *index;
    bool main_only;
    float *z;         /* [in][rows] compensated */
    float *err;       /* [VPTQ_PASS_BLOCK][rows] */
    const float *one; /* 1: the factor of a single column that propagates nothing */
} pass;

/* err <- U_bb^-T (z - q) of a block. */
static vptq_status solve_block(const pass *a, const vptq_pass_args *block, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const vptq_subtract_args difference = {.cols = block->cols,
                                           .rows = block->rows,
                                           .x = block->z,
                                           .y = block->q,
                                           .z = block->err,
                                           .ldx = block->ldz,
                                           .ldy = block->ldq,
                                           .ldz = block->lde};
    const vptq_solve_args solve = {.cols = block->cols,
                                   .rows = block->rows,
                                   .u = block->u,
                                   .x = block->err,
                                   .ldu = block->ldu,
                                   .ldx = block->lde};
    VPTQ_CHECK(dev->ops->subtract(dev->state, &difference, err));
    return dev->ops->solve_upper(dev->state, &solve, err);
}

/* Quantizes the columns of a block as they are, then computes their errors together. */
static vptq_status quantize_together(const pass *a, const vptq_pass_args *block, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;

    for (size_t t = 0; t < block->cols; t++) {
        vptq_pass_args column = *block;
        column.cols = 1;
        column.u = a->one;
        column.z += t * block->ldz;
        column.q += t * block->ldq;
        column.err += t * block->lde;
        column.idx += t * block->ldi;
        column.idx_res = block->idx_res ? block->idx_res + t * block->ldi : NULL;
        VPTQ_CHECK(dev->ops->vq_pass(dev->state, &column, err));
    }
    return solve_block(a, block, err);
}

static vptq_status pass_block(const pass *a, size_t first, size_t cols, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const vptq_column_group *g = a->group;
    const size_t rows = a->rows, in = a->in, rest = in - first - cols;
    const size_t vectors = (first - g->first) * g->vector_rows;
    const bool pairs = g->k_res && !a->main_only;
    const vptq_pass_args block = {.cols = cols,
                                  .rows = g->rows,
                                  .index = a->index,
                                  .z = a->z + first * rows,
                                  .u = a->enc->problem.u + first * in + first,
                                  .idx = g->idx + vectors,
                                  .idx_res = pairs ? g->idx_res + vectors : NULL,
                                  .q = a->enc->q + first * rows,
                                  .err = a->err,
                                  .ldz = rows,
                                  .ldu = in,
                                  .ldi = g->vector_rows,
                                  .ldq = rows,
                                  .lde = rows};
    const vptq_gemm_args update = {.m = rest,
                                   .n = g->rows,
                                   .k = cols,
                                   .a = a->enc->problem.u + first * in + first + cols,
                                   .b = a->err,
                                   .c = a->z + (first + cols) * rows,
                                   .lda = in,
                                   .ldb = rows,
                                   .ldc = rows,
                                   .trans_a = true,
                                   .alpha = -1,
                                   .beta = 1};
    VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
    if (a->enc->settings->pass_columns > 1)
        VPTQ_CHECK(quantize_together(a, &block, err));
    else
        VPTQ_CHECK(dev->ops->vq_pass(dev->state, &block, err));
    return rest ? dev->ops->gemm(dev->state, &update, err) : VPTQ_OK;
}

static vptq_status pass_group(pass *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_device *dev = a->enc->dev;
    const vptq_encoder_settings *s = a->enc->settings;
    const vptq_column_group *g = a->group;
    vptq_codebooks codebooks = vptq_group_codebooks(g, s->beam);
    const size_t step = s->pass_columns > 1 ? s->pass_columns : VPTQ_PASS_BLOCK;

    if (a->main_only) {
        codebooks.k_res = 0;
        codebooks.res_centroids = NULL;
    }
    VPTQ_TRY(dev->ops->search_index_open(dev->state, &codebooks, &a->index, err));
    for (size_t i = 0; i < g->cols; i += step) {
        const size_t left = g->cols - i;
        VPTQ_TRY(pass_block(a, g->first + i, left < step ? left : step, err));
    }
out:
    dev->ops->search_index_close(dev->state, a->index);
    a->index = NULL;
    return st;
}

vptq_status vptq_column_pass(vptq_encoder *enc, bool main_only, vptq_err *err)
{
    static const float one = 1;
    vptq_status st = VPTQ_OK;
    const vptq_device *dev = enc->dev;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    pass a = {.enc = enc,
              .in = enc->problem.in,
              .rows = enc->problem.rows,
              .main_only = main_only,
              .z = enc->g};
    const size_t bytes = a.in * a.rows * sizeof *a.z;

    a.err = vptq_mirror_alloc(&m, VPTQ_PASS_BLOCK * a.rows, sizeof *a.err);
    a.one = vptq_mirror_in(&m, &one, 1, sizeof one);
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(dev->ops->copy(dev->state, a.z, enc->problem.z, bytes, err));
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        a.group = &enc->columns.groups[i];
        VPTQ_TRY(pass_group(&a, err));
    }
out:
    return vptq_mirror_end(&m, st, err);
}
