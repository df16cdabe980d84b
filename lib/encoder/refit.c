/* Least squares over the codebooks.  With fixed indices Q is linear in the centroids C: Q =
 * G(C) (gather), and tr((Q - Z) H' (Q - Z)^T) is smallest where G^T(H' (G(C) - Z)) = 0 (G^T
 * adds up per centroid: scatter).  Conjugate gradients on that system from the present
 * codebooks, preconditioned by its diagonal (the sum of H'_jj over the uses of a centroid).  A
 * centroid without uses stays as it is.  Where main and residual codebook can shift against
 * each other the system is singular, which conjugate gradients tolerate.
 *
 * Each iteration lowers the objective, until float products limit it near 1e-6 of its value. */
#include "lib/backend/conjugate.h"
#include "lib/encoder/encoder.h"

typedef struct solver {
    vptq_encoder *enc;
    const vptq_column_group *groups; /* whose codebooks are fitted */
    uint32_t num_groups;
    bool diagonal;     /* under diag H' only */
    vptq_conjugate cg; /* x = step from the present codebooks, group by group */
} solver;

static size_t num_unknowns(const vptq_column_group *g)
{
    return ((size_t)g->k + g->k_res) * g->v;
}

/* sums = G^T(y) of one codebook of a group; with `uses` also the weights of its uses. */
static vptq_status scatter_group(const solver *a, const vptq_column_group *g, bool residual,
                                 const float *y, double *sums, double *uses, vptq_err *err)
{
    const vptq_encoder *enc = a->enc;
    const size_t rows = enc->columns.rows;
    const vptq_scatter_args s = {.cols = g->cols,
                                 .rows = g->rows,
                                 .v = g->v,
                                 .k = residual ? g->k_res : g->k,
                                 .y = y + g->first * rows,
                                 .weight = a->diagonal || uses ? enc->problem.on.diag + g->first
                                                               : NULL,
                                 .idx = residual ? g->idx_res : g->idx,
                                 .sums = sums,
                                 .weights = uses,
                                 .ldy = rows,
                                 .ldi = g->vector_rows};
    return enc->dev->ops->vq_scatter(enc->dev->state, &s, err);
}

/* sums = G^T(y) in the order of unknowns; with `uses` also the weights of the uses. */
static vptq_status scatter(const solver *a, const float *y, double *sums, double *uses,
                           vptq_err *err)
{
    size_t done = 0;

    for (uint32_t i = 0; i < a->num_groups; i++) {
        const vptq_column_group *g = &a->groups[i];
        const size_t size = (size_t)g->k * g->v, res = done + size;
        VPTQ_CHECK(scatter_group(a, g, false, y, sums + done, uses ? uses + done : NULL, err));
        if (g->k_res)
            VPTQ_CHECK(scatter_group(a, g, true, y, sums + res, uses ? uses + res : NULL, err));
        done += num_unknowns(g);
    }
    return VPTQ_OK;
}

/* e = G(codebooks) with the unknowns as codebooks. */
static vptq_status gather(const solver *a, const float *codebooks, vptq_err *err)
{
    vptq_encoder *enc = a->enc;

    for (uint32_t i = 0; i < a->num_groups; i++) {
        const vptq_column_group *g = &a->groups[i];
        const float *res = g->k_res ? codebooks + (size_t)g->k * g->v : NULL;
        VPTQ_CHECK(
            vptq_group_gather(enc->dev, g, codebooks, res, enc->e, enc->columns.rows, err));
        codebooks += num_unknowns(g);
    }
    return VPTQ_OK;
}

/* ad = G^T(H' G(d)). */
static vptq_status apply(void *arg, vptq_err *err)
{
    const solver *a = arg;
    vptq_encoder *enc = a->enc;

    VPTQ_CHECK(vptq_check_cancel(enc->dev->ctx, err));
    VPTQ_CHECK(gather(a, a->cg.rounded, err));
    if (!a->diagonal)
        VPTQ_CHECK(vptq_encoder_apply(enc, err));
    return scatter(a, a->diagonal ? enc->e : enc->g, a->cg.ad, NULL, err);
}

/* The gradient, and the preconditioner. */
static vptq_status start(solver *a, vptq_err *err)
{
    VPTQ_CHECK(scatter(a, a->enc->e, a->cg.ad, a->cg.m, err));
    return a->diagonal ? VPTQ_OK : scatter(a, a->enc->g, a->cg.ad, NULL, err);
}

static vptq_status add(const solver *a, size_t n, const double *x, float *codebook,
                       vptq_err *err)
{
    const vptq_add_args args = {.n = n, .x = x, .y = codebook};
    return a->enc->dev->ops->add_rounded(a->enc->dev->state, &args, err);
}

static vptq_status step_codebooks(const solver *a, vptq_err *err)
{
    const double *x = a->cg.x;

    for (uint32_t i = 0; i < a->num_groups; i++) {
        const vptq_column_group *g = &a->groups[i];
        const size_t size = (size_t)g->k * g->v;
        VPTQ_CHECK(add(a, size, x, g->main, err));
        if (g->k_res)
            VPTQ_CHECK(add(a, (size_t)g->k_res * g->v, x + size, g->res, err));
        x += num_unknowns(g);
    }
    return VPTQ_OK;
}

/* e = q - target for one group, from its codebooks and indices. */
static vptq_status group_error(vptq_encoder *enc, const vptq_column_group *g,
                               const float *target, vptq_err *err)
{
    const size_t ld = enc->columns.rows;
    float *e = enc->e + g->first * ld;
    const vptq_subtract_args args = {.cols = g->cols,
                                     .rows = g->rows,
                                     .x = e,
                                     .y = target + g->first * ld,
                                     .z = e,
                                     .ldx = ld,
                                     .ldy = ld,
                                     .ldz = ld};
    VPTQ_CHECK(vptq_group_gather(enc->dev, g, g->main, g->res, enc->e, ld, err));
    return enc->dev->ops->subtract(enc->dev->state, &args, err);
}

vptq_status vptq_refit(vptq_encoder *enc, const vptq_column_group *only, const float *target,
                       int iterations, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    solver a = {.enc = enc,
                .groups = only ? only : enc->columns.groups,
                .num_groups = only ? 1 : enc->columns.num_groups,
                .diagonal = only,
                .cg = {.apply = apply, .arg = &a}};

    for (uint32_t i = 0; i < a.num_groups; i++)
        a.cg.n += num_unknowns(&a.groups[i]);
    if (only)
        VPTQ_TRY(group_error(enc, only, target, err));
    VPTQ_TRY(vptq_conjugate_open(&m, &a.cg, err));
    VPTQ_TRY(start(&a, err));
    VPTQ_TRY(vptq_conjugate_run(&a.cg, iterations, err));
    VPTQ_TRY(step_codebooks(&a, err));
out:
    return vptq_mirror_end(&m, st, err);
}
