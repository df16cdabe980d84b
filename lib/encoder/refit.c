/* Least squares over the codebooks.  With fixed indices Q is linear in the centroids C: Q =
 * G(C) (gather), and tr((Q - Z) H' (Q - Z)^T) is smallest where G^T(H' (G(C) - Z)) = 0 (G^T
 * adds up per centroid: scatter).  Conjugate gradients on that system from the present
 * codebooks, preconditioned by its diagonal (the sum of H'_jj over the uses of a centroid).  A
 * centroid without uses stays as it is.  Where main and residual codebook can shift against
 * each other the system is singular, which conjugate gradients tolerate.
 *
 * Each iteration lowers the objective, until float products limit it near 1e-6 of its value. */
#include <string.h>

#include "lib/encoder/conjugate.h"
#include "lib/encoder/encoder.h"

typedef struct solver {
    vptq_encoder *enc;
    vptq_column_group *groups; /* whose codebooks are fitted */
    uint32_t num_groups;
    bool diagonal;     /* under diag H' only */
    vptq_conjugate cg; /* x = step from the present codebooks */
    double *sums;      /* [n] over uses, in the order of unknowns */
    double *weights;   /* [largest k] */
    float *codebooks;  /* [n] a direction as codebooks */
    vptq_mirror mirror;
    struct { /* the same and the encoder's arrays in device memory */
        vptq_column_group *groups;
        double *sums, *weights;
        float *codebooks, *e, *g;
        const float *h, *diag;
    } on;
} solver;

static size_t num_unknowns(const vptq_column_group *g)
{
    return ((size_t)g->k + g->k_res) * g->v;
}

/* diag [k * v] = the weight of the uses of each centroid, repeated for its v unknowns. */
static vptq_status pull_weights(solver *a, uint32_t k, uint32_t v, double *diag, vptq_err *err)
{
    VPTQ_CHECK(vptq_mirror_pull(&a->mirror, a->weights, k * sizeof *a->weights, err));
    for (size_t j = 0; j < (size_t)k * v; j++)
        diag[j] = a->weights[j / v];
    return VPTQ_OK;
}

/* sums = G^T(y) for y in device memory, in the order of unknowns; with `diag` also the weights
 * of the uses. */
static vptq_status scatter(solver *a, const float *y, double *sums, double *diag, vptq_err *err)
{
    const vptq_device *dev = a->enc->dev;
    const size_t rows = a->enc->columns.rows;
    size_t done = 0;

    for (uint32_t i = 0; i < a->num_groups; i++) {
        const vptq_column_group *g = &a->on.groups[i];
        for (int residual = 0; residual < (g->k_res ? 2 : 1); residual++) {
            const uint32_t k = residual ? g->k_res : g->k;
            const vptq_scatter_args s = {.cols = g->cols,
                                         .rows = g->rows,
                                         .v = g->v,
                                         .k = k,
                                         .y = y + g->first * rows,
                                         .weight =
                                             a->diagonal || diag ? a->on.diag + g->first : NULL,
                                         .idx = residual ? g->idx_res : g->idx,
                                         .sums = a->on.sums + done,
                                         .weights = diag ? a->on.weights : NULL,
                                         .ldy = rows,
                                         .ldi = g->vector_rows};
            VPTQ_CHECK(dev->ops->vq_scatter(dev->state, &s, err));
            if (diag)
                VPTQ_CHECK(pull_weights(a, k, g->v, diag + done, err));
            done += (size_t)k * g->v;
        }
    }
    VPTQ_CHECK(vptq_mirror_pull(&a->mirror, a->sums, done * sizeof *a->sums, err));
    memcpy(sums, a->sums, done * sizeof *sums);
    return VPTQ_OK;
}

/* e = G(d) in device memory. */
static vptq_status gather(solver *a, const double *d, vptq_err *err)
{
    const float *main = a->on.codebooks;

    for (size_t i = 0; i < a->cg.n; i++)
        a->codebooks[i] = (float)d[i];
    VPTQ_CHECK(vptq_mirror_push(&a->mirror, a->codebooks, a->cg.n * sizeof *a->codebooks, err));
    for (uint32_t i = 0; i < a->num_groups; i++) {
        const vptq_column_group *g = &a->on.groups[i];
        const float *res = g->k_res ? main + (size_t)g->k * g->v : NULL;
        VPTQ_CHECK(
            vptq_group_gather(a->enc->dev, g, main, res, a->on.e, a->enc->columns.rows, err));
        main += num_unknowns(g);
    }
    return VPTQ_OK;
}

/* ad = G^T(H' G(d)). */
static vptq_status apply(void *arg, const double *d, double *ad, vptq_err *err)
{
    solver *a = arg;

    VPTQ_CHECK(vptq_check_cancel(a->enc->dev->ctx, err));
    VPTQ_CHECK(gather(a, d, err));
    if (!a->diagonal)
        VPTQ_CHECK(vptq_encoder_multiply(a->enc, a->on.h, a->on.e, a->on.g, err));
    return scatter(a, a->diagonal ? a->on.e : a->on.g, ad, NULL, err);
}

/* The first residual is minus the gradient; the preconditioner comes with it. */
static vptq_status start(solver *a, vptq_err *err)
{
    vptq_conjugate *cg = &a->cg;

    VPTQ_CHECK(scatter(a, a->on.e, cg->ad, cg->m, err));
    if (a->diagonal)
        memcpy(cg->r, cg->ad, cg->n * sizeof *cg->r);
    else
        VPTQ_CHECK(scatter(a, a->on.g, cg->r, NULL, err));
    for (size_t i = 0; i < cg->n; i++)
        cg->r[i] = -cg->r[i];
    return VPTQ_OK;
}

static void step_codebooks(const solver *a)
{
    const double *x = a->cg.x;
    for (uint32_t i = 0; i < a->num_groups; i++) {
        const vptq_column_group *g = &a->groups[i];
        for (size_t j = 0; j < (size_t)g->k * g->v; j++)
            g->main[j] = (float)((double)g->main[j] + *x++);
        for (size_t j = 0; j < (size_t)g->k_res * g->v; j++)
            g->res[j] = (float)((double)g->res[j] + *x++);
    }
}

/* e = q - target for one group, from its codebooks and indices. */
static vptq_status group_error(vptq_encoder *enc, const vptq_column_group *g,
                               const float *target, vptq_err *err)
{
    const size_t ld = enc->columns.rows;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    const vptq_column_group on = vptq_group_mirror(&m, g, false);
    float *e = vptq_mirror_take(&m, enc->e, enc->problem.in * ld, sizeof *e,
                                VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_group_gather(enc->dev, &on, on.main, on.res, e, ld, err);
    st = vptq_mirror_end(&m, st, err);
    for (size_t t = g->first; !st && t < g->first + g->cols; t++)
        for (size_t r = 0; r < g->rows; r++)
            enc->e[t * ld + r] -= target[t * ld + r];
    return st;
}

/* Allocates the arrays for n unknowns and copies to the device everything that the iterations
 * need. */
static vptq_status open_solver(solver *a, size_t n, uint32_t largest_k, vptq_err *err)
{
    vptq_encoder *enc = a->enc;
    vptq_arena *arena = &enc->scratch;
    vptq_mirror *m = &a->mirror;
    const size_t in = enc->problem.in, size = in * enc->problem.rows;

    VPTQ_CHECK(vptq_conjugate_open(arena, n, &a->cg, err));
    a->weights = vptq_arena_alloc(arena, largest_k, sizeof *a->weights, err);
    a->codebooks = a->weights ? vptq_arena_alloc(arena, n, sizeof *a->codebooks, err) : NULL;
    a->sums = a->codebooks ? vptq_arena_alloc(arena, n, sizeof *a->sums, err) : NULL;
    a->on.groups =
        a->sums ? vptq_arena_alloc(arena, a->num_groups, sizeof *a->on.groups, err) : NULL;
    if (!a->on.groups)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < a->num_groups; i++)
        a->on.groups[i] = vptq_group_mirror(m, &a->groups[i], false);
    a->on.sums = vptq_mirror_take(m, a->sums, n, sizeof *a->sums, 0);
    a->on.weights = vptq_mirror_take(m, a->weights, largest_k, sizeof *a->weights, 0);
    a->on.codebooks = vptq_mirror_take(m, a->codebooks, n, sizeof *a->codebooks, 0);
    a->on.diag = vptq_mirror_in(m, enc->problem.diag, in, sizeof *a->on.diag);
    a->on.e = vptq_mirror_take(m, enc->e, size, sizeof *a->on.e, VPTQ_MIRROR_UPLOAD);
    if (!a->diagonal) {
        a->on.g = vptq_mirror_take(m, enc->g, size, sizeof *a->on.g, VPTQ_MIRROR_UPLOAD);
        a->on.h = vptq_mirror_in(m, enc->problem.h, in * in, sizeof *a->on.h);
    }
    return vptq_mirror_check(m, err);
}

vptq_status vptq_refit(vptq_encoder *enc, vptq_column_group *only, const float *target,
                       int iterations, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    solver a = {.enc = enc,
                .groups = only ? only : enc->columns.groups,
                .num_groups = only ? 1 : enc->columns.num_groups,
                .diagonal = only,
                .cg = {.apply = apply, .arg = &a},
                .mirror = vptq_mirror_of(enc->dev)};
    uint32_t largest_k = 0;
    size_t n = 0;

    for (uint32_t i = 0; i < a.num_groups; i++) {
        const vptq_column_group *g = &a.groups[i];
        n += num_unknowns(g);
        largest_k = g->k > largest_k ? g->k : largest_k;
        largest_k = g->k_res > largest_k ? g->k_res : largest_k;
    }
    if (only)
        VPTQ_TRY(group_error(enc, only, target, err));
    VPTQ_TRY(open_solver(&a, n, largest_k, err));
    VPTQ_TRY(start(&a, err));
    VPTQ_TRY(vptq_conjugate_run(&a.cg, iterations, err));
    step_codebooks(&a);
out:
    st = vptq_mirror_end(&a.mirror, st, err);
    vptq_arena_rewind(&enc->scratch, mark);
    return st;
}
