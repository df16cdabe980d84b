/* Coordinate descent over indices.  As a function of column j alone the objective is H'_jj |q_j
 * - t_j|^2 + const with t_j = q_j - (E H')_j / H'_jj, separable in vectors; the nearest choice
 * to t_j, the old one kept unless another is strictly nearer, never raises it.  G = H' E stays
 * up to date inside a block on the device and elsewhere by one matrix product per block. */
#include "lib/quant/encoder.h"

typedef struct sweep {
    vptq_encoder *c;
    const vptq_part *part;
    vptq_finder *finder;
    float *delta; /* [VPTQ_PASS_BLOCK][rows] */
} sweep;

static vptq_status do_block(sweep *a, size_t at, size_t cols, vptq_err *err)
{
    vptq_encoder *c = a->c;
    const vptq_backend *ops = c->dev->ops;
    const vptq_part *part = a->part;
    size_t rows = c->rows, in = c->in;
    size_t first = (at - part->first) * part->strips;
    vptq_descend_args d = {.cols = cols,
                           .rows = part->rows,
                           .finder = a->finder,
                           .g = c->g + at * rows,
                           .h = c->h + at * in + at,
                           .idx = part->idx + first,
                           .idx_res = part->k_res ? part->idx_res + first : NULL,
                           .q = c->q + at * rows,
                           .delta = a->delta,
                           .ldg = rows,
                           .ldh = in,
                           .ldi = part->strips,
                           .ldq = rows,
                           .ldd = rows};
    vptq_gemm_args g = {.m = in,
                        .n = part->rows,
                        .k = cols,
                        .a = c->h + at * in,
                        .b = a->delta,
                        .c = c->g,
                        .lda = in,
                        .ldb = rows,
                        .ldc = rows,
                        .trans_a = true,
                        .alpha = 1,
                        .beta = 1};
    vptq_status st = vptq_check_cancel(c->dev->ctx, err);
    if (!st)
        st = ops->vq_descend(c->dev->state, &d, err);
    if (!st)
        st = ops->gemm(c->dev->state, &g, err);
    return st;
}

static vptq_status do_part(sweep *a, vptq_err *err)
{
    for (size_t i = 0; i < a->part->cols; i += VPTQ_PASS_BLOCK) {
        size_t left = a->part->cols - i;
        vptq_status st = do_block(a, a->part->first + i,
                                  left < VPTQ_PASS_BLOCK ? left : VPTQ_PASS_BLOCK, err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

/* One finder per part serves all sweeps. */
static vptq_status open_finders(vptq_encoder *c, vptq_finder **finder, vptq_err *err)
{
    for (uint32_t i = 0; i < c->parts; i++) {
        vptq_books books = vptq_part_books(c, &c->part[i]);
        vptq_status st = c->dev->ops->finder_open(c->dev->state, &books, &finder[i], err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

vptq_status vptq_sweeps(vptq_encoder *c, uint32_t count, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    sweep a = {.c = c};

    a.delta = vptq_arena_alloc(&c->work, VPTQ_PASS_BLOCK * c->rows, sizeof *a.delta, err);
    vptq_finder **finder =
        a.delta ? vptq_arena_zalloc(&c->work, c->parts, sizeof(vptq_finder *), err) : NULL;
    if (!finder)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(open_finders(c, finder, err));
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = 0; i < c->parts; i++) {
            a.part = &c->part[i];
            a.finder = finder[i];
            VPTQ_TRY(do_part(&a, err));
        }
out:
    for (uint32_t i = 0; i < c->parts; i++)
        c->dev->ops->finder_close(c->dev->state, finder[i]);
    vptq_arena_rewind(&c->work, mark);
    return st;
}
