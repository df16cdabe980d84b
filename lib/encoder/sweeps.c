/* Coordinate descent over indices.  As a function of column j alone the objective is H'_jj |q_j
 * - t_j|^2 + const with t_j = q_j - (E H')_j / H'_jj, separable in vectors; the nearest choice
 * to t_j, the old one kept unless another is strictly nearer, never raises it.  G = H' E stays
 * up to date inside a block on the device and elsewhere by one matrix product per block. */
#include "lib/encoder/encoder.h"

typedef struct sweep {
    vptq_encoder *c;
    const vptq_part *part; /* as the device has it */
    vptq_search_index *index;
    /* device memory */
    float *q, *g;   /* [in][rows] */
    const float *h; /* [in][in] */
    float *delta;   /* [VPTQ_PASS_BLOCK][rows] */
} sweep;

static vptq_status do_block(sweep *a, size_t at, size_t cols, vptq_err *err)
{
    vptq_encoder *c = a->c;
    const vptq_backend *ops = c->dev->ops;
    const vptq_part *part = a->part;
    size_t rows = c->rows, in = c->in;
    size_t first = (at - part->first) * part->vector_rows;
    vptq_descend_args d = {.cols = cols,
                           .rows = part->rows,
                           .index = a->index,
                           .g = a->g + at * rows,
                           .h = a->h + at * in + at,
                           .idx = part->idx + first,
                           .idx_res = part->k_res ? part->idx_res + first : NULL,
                           .q = a->q + at * rows,
                           .delta = a->delta,
                           .ldg = rows,
                           .ldh = in,
                           .ldi = part->vector_rows,
                           .ldq = rows,
                           .ldd = rows};
    vptq_gemm_args g = {.m = in,
                        .n = part->rows,
                        .k = cols,
                        .a = a->h + at * in,
                        .b = a->delta,
                        .c = a->g,
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

/* One search index per part serves all sweeps. */
static vptq_status open_indexes(vptq_encoder *c, const vptq_part *part,
                                vptq_search_index **index, vptq_err *err)
{
    for (uint32_t i = 0; i < c->parts; i++) {
        vptq_codebooks codebooks = vptq_part_codebooks(c, &part[i]);
        vptq_status st =
            c->dev->ops->search_index_open(c->dev->state, &codebooks, &index[i], err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

vptq_status vptq_sweeps(vptq_encoder *c, uint32_t count, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    vptq_mirror m = vptq_mirror_of(c->dev);
    const size_t n = (size_t)c->in * c->rows, block = VPTQ_PASS_BLOCK * c->rows;
    sweep a = {.c = c};

    float *delta = vptq_arena_alloc(&c->work, block, sizeof *delta, err);
    vptq_part *part = delta ? vptq_arena_alloc(&c->work, c->parts, sizeof *part, err) : NULL;
    vptq_search_index **index =
        part ? vptq_arena_zalloc(&c->work, c->parts, sizeof(vptq_search_index *), err) : NULL;
    if (!index)
        return VPTQ_E_NOMEM;
    a.q = vptq_mirror_take(&m, c->q, n, sizeof *a.q, VPTQ_MIRROR_THERE | VPTQ_MIRROR_BACK);
    a.g = vptq_mirror_take(&m, c->g, n, sizeof *a.g, VPTQ_MIRROR_THERE);
    a.h = vptq_mirror_in(&m, c->h, (size_t)c->in * c->in, sizeof *a.h);
    a.delta = vptq_mirror_take(&m, delta, block, sizeof *delta, 0);
    for (uint32_t i = 0; i < c->parts; i++)
        part[i] = vptq_part_mirror(&m, &c->part[i], true);
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(open_indexes(c, part, index, err));
    for (uint32_t sweeps = 0; sweeps < count; sweeps++)
        for (uint32_t i = 0; i < c->parts; i++) {
            a.part = &part[i];
            a.index = index[i];
            VPTQ_TRY(do_part(&a, err));
        }
out:
    for (uint32_t i = 0; i < c->parts; i++)
        c->dev->ops->search_index_close(c->dev->state, index[i]);
    st = vptq_mirror_end(&m, st, err);
    vptq_arena_rewind(&c->work, mark);
    return st;
}
