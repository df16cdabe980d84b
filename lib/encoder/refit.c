/* Least squares over the codebooks.  With fixed indices Q is linear in the centroids C: Q =
 * G(C) (gather), and tr((Q - Z) H' (Q - Z)^T) is smallest where G^T(H' (G(C) - Z)) = 0 (G^T
 * adds up per centroid).  Conjugate gradients on that system from the codebooks as they are,
 * preconditioned by its diagonal (sum of H'_jj over the uses of a centroid).  A centroid
 * without uses stays as it is.  The system is singular where main and residual codebook can
 * shift against each other, which conjugate gradients do not mind.
 *
 * Each iteration lowers the objective; float products end the descent near 1e-6 of it. */
#include <string.h>

#include "lib/encoder/conjugate.h"
#include "lib/encoder/encoder.h"

typedef struct solver {
    vptq_encoder *c;
    vptq_part *part; /* the codebooks being fitted ... */
    uint32_t parts;
    bool diagonal;     /* ... under diag H' alone */
    vptq_conjugate cg; /* x = step from the codebooks as they are */
    double *sums;      /* [n] over uses, in the order of unknowns */
    double *weights;   /* [largest k] */
    float *codebooks;  /* [n] a direction as codebooks */
    vptq_mirror mirror;
    struct { /* the same and the encoder's arrays as the device has them */
        vptq_part *part;
        double *sums, *weights;
        float *codebooks, *e, *g;
        const float *h, *diag;
    } on;
} solver;

static size_t unknowns(const vptq_part *p)
{
    return ((size_t)p->k + p->k_res) * p->v;
}

/* The weights of uses of one codebook, each as often as it has unknowns. */
static vptq_status take_weights(solver *a, uint32_t k, uint32_t v, double *diag, vptq_err *err)
{
    vptq_status st = vptq_mirror_pull(&a->mirror, a->weights, k * sizeof *a->weights, err);
    for (size_t j = 0; !st && j < (size_t)k * v; j++)
        diag[j] = a->weights[j / v];
    return st;
}

/* y (device memory) -> sums over uses, in the order of unknowns; where `diag` is given, the
 * weights of uses. */
static vptq_status scatter(solver *a, const float *y, double *sums, double *diag, vptq_err *err)
{
    vptq_encoder *c = a->c;
    const vptq_backend *ops = c->dev->ops;
    size_t at = 0;

    for (uint32_t i = 0; i < a->parts; i++) {
        const vptq_part *p = &a->on.part[i];
        for (int codebook = 0; codebook < (p->k_res ? 2 : 1); codebook++) {
            uint32_t k = codebook ? p->k_res : p->k;
            vptq_scatter_args s = {.cols = p->cols,
                                   .rows = p->rows,
                                   .v = p->v,
                                   .k = k,
                                   .y = y + p->first * c->rows,
                                   .weight = a->diagonal || diag ? a->on.diag + p->first : NULL,
                                   .idx = codebook ? p->idx_res : p->idx,
                                   .sums = a->on.sums + at,
                                   .weights = diag ? a->on.weights : NULL,
                                   .ldy = c->rows,
                                   .ldi = p->vector_rows};
            VPTQ_CHECK(ops->vq_scatter(c->dev->state, &s, err));
            if (diag)
                VPTQ_CHECK(take_weights(a, k, p->v, diag + at, err));
            at += (size_t)k * p->v;
        }
    }
    VPTQ_CHECK(vptq_mirror_pull(&a->mirror, a->sums, at * sizeof *a->sums, err));
    memcpy(sums, a->sums, at * sizeof *sums);
    return VPTQ_OK;
}

/* e <- what the direction d stands for. */
static vptq_status gather(solver *a, const double *d, vptq_err *err)
{
    const float *codebook = a->on.codebooks;

    for (size_t i = 0; i < a->cg.n; i++)
        a->codebooks[i] = (float)d[i];
    vptq_status st =
        vptq_mirror_push(&a->mirror, a->codebooks, a->cg.n * sizeof *a->codebooks, err);
    for (uint32_t i = 0; i < a->parts && !st; i++) {
        const vptq_part *p = &a->on.part[i];
        const float *res = p->k_res ? codebook + (size_t)p->k * p->v : NULL;
        st = vptq_part_gather(a->c, p, codebook, res, a->on.e, err);
        codebook += unknowns(p);
    }
    return st;
}

static vptq_status apply(void *arg, const double *d, double *ad, vptq_err *err)
{
    solver *a = arg;
    vptq_encoder *c = a->c;
    vptq_status st = vptq_check_cancel(c->dev->ctx, err);

    if (!st)
        st = gather(a, d, err);
    if (!st && !a->diagonal)
        st = vptq_encoder_multiply(c, a->on.h, a->on.e, a->on.g, err);
    return st ? st : scatter(a, a->diagonal ? a->on.e : a->on.g, ad, NULL, err);
}

/* The first residual is minus the gradient; the diagonal comes with it. */
static vptq_status start(solver *a, vptq_err *err)
{
    vptq_conjugate *cg = &a->cg;

    VPTQ_CHECK(
        scatter(a, a->on.e, cg->ad, cg->m, err)); /* sums unused: the weights are wanted */
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
    for (uint32_t i = 0; i < a->parts; i++) {
        const vptq_part *p = &a->part[i];
        for (size_t j = 0; j < (size_t)p->k * p->v; j++)
            p->main[j] = (float)((double)p->main[j] + *x++);
        for (size_t j = 0; j < (size_t)p->k_res * p->v; j++)
            p->res[j] = (float)((double)p->res[j] + *x++);
    }
}

/* e = q - target of one part, from its codebooks and indices. */
static vptq_status part_error(vptq_encoder *c, const vptq_part *p, const float *target,
                              vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(c->dev);
    const vptq_part on = vptq_part_mirror(&m, p, false);
    float *e = vptq_mirror_take(&m, c->e, (size_t)c->in * c->rows, sizeof *e,
                                VPTQ_MIRROR_THERE | VPTQ_MIRROR_BACK);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_part_gather(c, &on, on.main, on.res, e, err);
    st = vptq_mirror_end(&m, st, err);
    for (size_t t = p->first; !st && t < p->first + p->cols; t++)
        for (size_t r = 0; r < p->rows; r++)
            c->e[t * c->rows + r] -= target[t * c->rows + r];
    return st;
}

/* Room for n unknowns, and all that the iterations need on the device. */
static vptq_status open_solver(solver *a, size_t n, uint32_t largest, vptq_err *err)
{
    vptq_encoder *c = a->c;
    vptq_mirror *m = &a->mirror;
    const size_t all = (size_t)c->in * c->rows;

    VPTQ_CHECK(vptq_conjugate_open(&c->work, n, &a->cg, err));
    a->weights = vptq_arena_alloc(&c->work, largest, sizeof *a->weights, err);
    a->codebooks = a->weights ? vptq_arena_alloc(&c->work, n, sizeof *a->codebooks, err) : NULL;
    a->sums = a->codebooks ? vptq_arena_alloc(&c->work, n, sizeof *a->sums, err) : NULL;
    a->on.part = a->sums ? vptq_arena_alloc(&c->work, a->parts, sizeof *a->on.part, err) : NULL;
    if (!a->on.part)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < a->parts; i++)
        a->on.part[i] = vptq_part_mirror(m, &a->part[i], false);
    a->on.sums = vptq_mirror_take(m, a->sums, n, sizeof *a->sums, 0);
    a->on.weights = vptq_mirror_take(m, a->weights, largest, sizeof *a->weights, 0);
    a->on.codebooks = vptq_mirror_take(m, a->codebooks, n, sizeof *a->codebooks, 0);
    a->on.diag = vptq_mirror_in(m, c->diag, c->in, sizeof *c->diag);
    a->on.e = vptq_mirror_take(m, c->e, all, sizeof *c->e, VPTQ_MIRROR_THERE);
    if (!a->diagonal) {
        a->on.g = vptq_mirror_take(m, c->g, all, sizeof *c->g, VPTQ_MIRROR_THERE);
        a->on.h = vptq_mirror_in(m, c->h, (size_t)c->in * c->in, sizeof *c->h);
    }
    return vptq_mirror_check(m, err);
}

vptq_status vptq_refit(vptq_encoder *c, vptq_part *only, const float *target, int iterations,
                       vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    solver a = {.c = c,
                .part = only ? only : c->part,
                .parts = only ? 1 : c->parts,
                .diagonal = only,
                .cg = {.apply = apply, .arg = &a},
                .mirror = vptq_mirror_of(c->dev)};
    uint32_t largest = 0;
    size_t n = 0;

    for (uint32_t i = 0; i < a.parts; i++) {
        const vptq_part *p = &a.part[i];
        n += unknowns(p);
        largest = p->k > largest ? p->k : largest;
        largest = p->k_res > largest ? p->k_res : largest;
    }
    if (only)
        VPTQ_TRY(part_error(c, only, target, err));
    VPTQ_TRY(open_solver(&a, n, largest, err));
    VPTQ_TRY(start(&a, err));
    VPTQ_TRY(vptq_conjugate_run(&a.cg, iterations, err));
    step_codebooks(&a);
out:
    st = vptq_mirror_end(&a.mirror, st, err);
    vptq_arena_rewind(&c->work, mark);
    return st;
}
