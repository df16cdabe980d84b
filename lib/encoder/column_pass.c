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
#include <string.h>

#include "lib/encoder/encoder.h"

typedef struct pass {
    vptq_encoder *enc;
    size_t in, rows;
    vptq_mirror mirror;
    vptq_column_group group; /* in device memory */
    vptq_search_index *index;
    bool main_only;
    float *host_z, *host_err; /* z and err in host memory */
    /* device memory */
    float *z;         /* [in][rows] compensated */
    float *q;         /* [in][rows] */
    float *err;       /* [VPTQ_PASS_BLOCK][rows] */
    const float *u;   /* [in][in] */
    const float *one; /* 1: the factor of a single column that propagates nothing */
} pass;

/* err [cols][rows] <- U_bb^-T (z - q) by forward substitution, in host memory. */
static void solve_block(const pass *a, size_t first, size_t cols, size_t rows)
{
    const float *z = a->host_z + first * a->rows, *q = a->enc->q + first * a->rows;
    const float *u = a->enc->problem.u + first * a->in + first;

    for (size_t t = 0; t < cols; t++) {
        float *e = a->host_err + t * a->rows;
        for (size_t r = 0; r < rows; r++)
            e[r] = z[t * a->rows + r] - q[t * a->rows + r];
        for (size_t s = 0; s < t; s++)
            for (size_t r = 0; r < rows; r++)
                e[r] -= u[s * a->in + t] * a->host_err[s * a->rows + r];
        for (size_t r = 0; r < rows; r++)
            e[r] /= u[t * a->in + t];
    }
}

/* Quantizes the columns of a block as they are, then computes their errors together. */
static vptq_status quantize_together(pass *a, size_t first, const vptq_pass_args *block,
                                     vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const size_t bytes = block->cols * a->rows * sizeof *block->z;

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
    VPTQ_CHECK(vptq_mirror_pull(&a->mirror, a->host_z + first * a->rows, bytes, err));
    VPTQ_CHECK(vptq_mirror_pull(&a->mirror, a->enc->q + first * a->rows, bytes, err));
    solve_block(a, first, block->cols, block->rows);
    return vptq_mirror_push(&a->mirror, a->host_err, bytes, err);
}

static vptq_status pass_block(pass *a, size_t first, size_t cols, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const vptq_column_group *g = &a->group;
    const size_t rows = a->rows, in = a->in, rest = in - first - cols;
    const size_t vectors = (first - g->first) * g->vector_rows;
    const bool pairs = g->k_res && !a->main_only;
    const vptq_pass_args block = {.cols = cols,
                                  .rows = g->rows,
                                  .index = a->index,
                                  .z = a->z + first * rows,
                                  .u = a->u + first * in + first,
                                  .idx = g->idx + vectors,
                                  .idx_res = pairs ? g->idx_res + vectors : NULL,
                                  .q = a->q + first * rows,
                                  .err = a->err,
                                  .ldz = rows,
                                  .ldu = in,
                                  .ldi = g->vector_rows,
                                  .ldq = rows,
                                  .lde = rows};
    const vptq_gemm_args update = {.m = rest,
                                   .n = g->rows,
                                   .k = cols,
                                   .a = a->u + first * in + first + cols,
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
        VPTQ_CHECK(quantize_together(a, first, &block, err));
    else
        VPTQ_CHECK(dev->ops->vq_pass(dev->state, &block, err));
    return rest ? dev->ops->gemm(dev->state, &update, err) : VPTQ_OK;
}

static vptq_status pass_group(pass *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_device *dev = a->enc->dev;
    const vptq_encoder_settings *s = a->enc->settings;
    const vptq_column_group *g = &a->group;
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

static void mirror_pass(pass *a)
{
    static const float one = 1;
    vptq_encoder *enc = a->enc;
    vptq_mirror *m = &a->mirror;
    const size_t n = a->in * a->rows;
    const unsigned both = VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD;

    a->z = vptq_mirror_take(m, a->host_z, n, sizeof *a->z, both);
    a->q = vptq_mirror_take(m, enc->q, n, sizeof *a->q, both);
    a->err = vptq_mirror_take(m, a->host_err, VPTQ_PASS_BLOCK * a->rows, sizeof *a->err, 0);
    a->u = vptq_mirror_in(m, enc->problem.u, a->in * a->in, sizeof *a->u);
    a->one = vptq_mirror_in(m, &one, 1, sizeof one);
}

vptq_status vptq_column_pass(vptq_encoder *enc, bool main_only, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    pass a = {.enc = enc,
              .in = enc->problem.in,
              .rows = enc->problem.rows,
              .main_only = main_only,
              .host_z = enc->g,
              .mirror = vptq_mirror_of(enc->dev)};

    a.host_err = vptq_arena_alloc(&enc->scratch, VPTQ_PASS_BLOCK * a.rows, sizeof *a.err, err);
    if (!a.host_err)
        return VPTQ_E_NOMEM;
    memcpy(a.host_z, enc->problem.z, a.in * a.rows * sizeof *a.z);
    mirror_pass(&a);
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        a.group = vptq_group_mirror(&a.mirror, &enc->columns.groups[i], true);
        VPTQ_TRY(vptq_mirror_check(&a.mirror, err));
        VPTQ_TRY(pass_group(&a, err));
    }
out:
    st = vptq_mirror_end(&a.mirror, st, err);
    vptq_arena_rewind(&enc->scratch, mark);
    return st;
}
