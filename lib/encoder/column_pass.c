/* The column pass (paper Algorithm 1).  Columns are quantized one after another; the error of a
 * column, divided by the factor's diagonal, is pushed into the columns not yet done:
 *
 *     z_s -= (z_t - q_t) / U_tt * U_ts    for s > t
 *
 * Inside a block the device does it column by column; what lies behind the block gets one
 * matrix product Z_rest -= U[block, rest]^T Err per block.  A block ends where the next part
 * begins: its columns share their codebooks.
 *
 * With pass_columns > 1 that many columns are quantized as they stand, and their errors go on
 * together: Err = U_bb^-T (Z_b - Q_b), then the same product.  That is the paper's ablation
 * without channel independence. */
#include <string.h>

#include "lib/encoder/encoder.h"

typedef struct pass {
    vptq_encoder *c;
    vptq_mirror mirror;
    vptq_part part; /* as the device has it */
    vptq_search_index *index;
    bool main_only;
    float *host_z, *host_err; /* of z and err, where the device is another one */
    /* device memory */
    float *z;          /* [in][rows] compensated */
    float *q;          /* [in][rows] */
    float *err;        /* [VPTQ_PASS_BLOCK][rows] */
    const float *u;    /* [in][in] */
    const float *unit; /* 1 */
} pass;

/* err [cols][rows] <- U_bb^-T (z - q), by forward substitution, all on the host. */
static void solve_block(const pass *a, size_t at, size_t cols, size_t rows)
{
    const vptq_encoder *c = a->c;
    const float *z = a->host_z + at * c->rows, *q = c->q + at * c->rows;
    const float *u = c->u + at * c->in + at;

    for (size_t t = 0; t < cols; t++) {
        float *e = a->host_err + t * c->rows;
        for (size_t r = 0; r < rows; r++)
            e[r] = z[t * c->rows + r] - q[t * c->rows + r];
        for (size_t s = 0; s < t; s++)
            for (size_t r = 0; r < rows; r++)
                e[r] -= u[s * c->in + t] * a->host_err[s * c->rows + r];
        for (size_t r = 0; r < rows; r++)
            e[r] /= u[t * c->in + t];
    }
}

/* The columns of a block as they stand, then their errors together. */
static vptq_status together(pass *a, size_t at, const vptq_pass_args *p, vptq_err *err)
{
    vptq_encoder *c = a->c;
    const size_t bytes = p->cols * c->rows * sizeof *p->z;

    for (size_t t = 0; t < p->cols; t++) {
        vptq_pass_args one = *p;
        one.cols = 1;
        one.u = a->unit;
        one.z += t * p->ldz;
        one.q += t * p->ldq;
        one.err += t * p->lde;
        one.idx += t * p->ldi;
        one.idx_res = p->idx_res ? p->idx_res + t * p->ldi : NULL;
        VPTQ_CHECK(c->dev->ops->vq_pass(c->dev->state, &one, err));
    }
    VPTQ_CHECK(vptq_mirror_pull(&a->mirror, a->host_z + at * c->rows, bytes, err));
    VPTQ_CHECK(vptq_mirror_pull(&a->mirror, c->q + at * c->rows, bytes, err));
    solve_block(a, at, p->cols, p->rows);
    return vptq_mirror_push(&a->mirror, a->host_err, bytes, err);
}

static vptq_status do_block(pass *a, size_t at, size_t cols, vptq_err *err)
{
    vptq_encoder *c = a->c;
    const vptq_backend *ops = c->dev->ops;
    const vptq_part *part = &a->part;
    size_t rows = c->rows, in = c->in, rest = in - at - cols;
    size_t first = (at - part->first) * part->vector_rows;
    bool pairs = part->k_res && !a->main_only;
    vptq_pass_args p = {.cols = cols,
                        .rows = part->rows,
                        .index = a->index,
                        .z = a->z + at * rows,
                        .u = a->u + at * in + at,
                        .idx = part->idx + first,
                        .idx_res = pairs ? part->idx_res + first : NULL,
                        .q = a->q + at * rows,
                        .err = a->err,
                        .ldz = rows,
                        .ldu = in,
                        .ldi = part->vector_rows,
                        .ldq = rows,
                        .lde = rows};
    vptq_gemm_args g = {.m = rest,
                        .n = part->rows,
                        .k = cols,
                        .a = a->u + at * in + at + cols,
                        .b = a->err,
                        .c = a->z + (at + cols) * rows,
                        .lda = in,
                        .ldb = rows,
                        .ldc = rows,
                        .trans_a = true,
                        .alpha = -1,
                        .beta = 1};
    vptq_status st = vptq_check_cancel(c->dev->ctx, err);
    if (!st)
        st = c->s->pass_columns > 1 ? together(a, at, &p, err)
                                    : ops->vq_pass(c->dev->state, &p, err);
    if (!st && rest)
        st = ops->gemm(c->dev->state, &g, err);
    return st;
}

static vptq_status do_part(pass *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_part *part = &a->part;
    const vptq_backend *ops = a->c->dev->ops;
    vptq_codebooks codebooks = vptq_part_codebooks(a->c, part);
    size_t step = a->c->s->pass_columns > 1 ? a->c->s->pass_columns : VPTQ_PASS_BLOCK;

    if (a->main_only) {
        codebooks.k_res = 0;
        codebooks.res_centroids = NULL;
    }
    VPTQ_TRY(ops->search_index_open(a->c->dev->state, &codebooks, &a->index, err));
    for (size_t i = 0; i < part->cols; i += step) {
        size_t left = part->cols - i;
        VPTQ_TRY(do_block(a, part->first + i, left < step ? left : step, err));
    }
out:
    ops->search_index_close(a->c->dev->state, a->index);
    a->index = NULL;
    return st;
}

/* Everything but the parts; err is larger where that many columns go together. */
static void mirror_pass(pass *a, size_t block)
{
    static const float one = 1;
    vptq_encoder *c = a->c;
    vptq_mirror *m = &a->mirror;
    const size_t n = (size_t)c->in * c->rows;
    const unsigned both = VPTQ_MIRROR_THERE | VPTQ_MIRROR_BACK;

    a->z = vptq_mirror_take(m, a->host_z, n, sizeof *a->z, both);
    a->q = vptq_mirror_take(m, c->q, n, sizeof *a->q, both);
    a->err = vptq_mirror_take(m, a->host_err, block * c->rows, sizeof *a->err, 0);
    a->u = vptq_mirror_in(m, c->u, (size_t)c->in * c->in, sizeof *a->u);
    a->unit = vptq_mirror_in(m, &one, 1, sizeof one);
}

vptq_status vptq_column_pass(vptq_encoder *c, bool main_only, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    pass a = {.c = c, .main_only = main_only, .host_z = c->g, .mirror = vptq_mirror_of(c->dev)};

    a.host_err = vptq_arena_alloc(&c->work, VPTQ_PASS_BLOCK * c->rows, sizeof *a.err, err);
    if (!a.host_err)
        return VPTQ_E_NOMEM;
    memcpy(a.host_z, c->z, (size_t)c->in * c->rows * sizeof *a.z);
    mirror_pass(&a, VPTQ_PASS_BLOCK);
    for (uint32_t i = 0; i < c->parts; i++) {
        a.part = vptq_part_mirror(&a.mirror, &c->part[i], true);
        VPTQ_TRY(vptq_mirror_check(&a.mirror, err));
        VPTQ_TRY(do_part(&a, err));
    }
out:
    st = vptq_mirror_end(&a.mirror, st, err);
    vptq_arena_rewind(&c->work, mark);
    return st;
}
