/* Least squares over the books.  With fixed indices Q is linear in the centroids C: Q = G(C)
 * (gather), and tr((Q - Z) H' (Q - Z)^T) is smallest where G^T(H' (G(C) - Z)) = 0 (G^T adds up
 * per centroid).  Conjugate gradients on that system from the books as they are, preconditioned
 * by its diagonal (sum of H'_jj over the uses of a centroid).  A centroid without uses stays as
 * it is.  The system is singular where main and residual book can shift against each other,
 * which conjugate gradients do not mind.
 *
 * Each iteration lowers the objective; float products end the descent near 1e-6 of it. */
#include <math.h>
#include <string.h>

#include "lib/quant/encoder.h"

typedef struct solver {
    vptq_encoder *c;
    vptq_part *part; /* the books being fitted ... */
    uint32_t parts;
    bool diagonal;              /* ... under diag H' alone */
    size_t n;                   /* unknowns */
    double *x;                  /* [n] step from the books as they are */
    double *r, *s, *d, *ad, *m; /* [n] residual, preconditioned, direction, A d, diagonal */
    double *weights;            /* [largest k] */
    float *books;               /* [n] a direction as books */
} solver;

static size_t unknowns(const vptq_part *p)
{
    return ((size_t)p->k + p->k_res) * p->v;
}

/* y -> sums over uses, in the order of unknowns; where `diag` is given, the weights of uses. */
static vptq_status scatter(solver *a, const float *y, double *sums, double *diag, vptq_err *err)
{
    vptq_encoder *c = a->c;
    const vptq_backend *ops = c->dev->ops;

    for (uint32_t i = 0; i < a->parts; i++) {
        const vptq_part *p = &a->part[i];
        for (int book = 0; book < (p->k_res ? 2 : 1); book++) {
            uint32_t k = book ? p->k_res : p->k;
            vptq_scatter_args s = {.cols = p->cols,
                                   .rows = p->rows,
                                   .v = p->v,
                                   .k = k,
                                   .y = y + p->first * c->rows,
                                   .weight = a->diagonal || diag ? c->diag + p->first : NULL,
                                   .idx = book ? p->idx_res : p->idx,
                                   .sums = sums,
                                   .weights = diag ? a->weights : NULL,
                                   .ldy = c->rows,
                                   .ldi = p->strips};
            vptq_status st = ops->vq_scatter(c->dev->state, &s, err);
            if (st)
                return st;
            sums += (size_t)k * p->v;
            for (size_t j = 0; diag && j < (size_t)k * p->v; j++)
                *diag++ = a->weights[j / p->v];
        }
    }
    return VPTQ_OK;
}

/* q <- what the direction d stands for. */
static vptq_status gather(solver *a, float *q, vptq_err *err)
{
    vptq_encoder *c = a->c;
    const float *book = a->books;

    for (size_t i = 0; i < a->n; i++)
        a->books[i] = (float)a->d[i];
    for (uint32_t i = 0; i < a->parts; i++) {
        const vptq_part *p = &a->part[i];
        vptq_gather_args g = {.cols = p->cols,
                              .rows = p->rows,
                              .v = p->v,
                              .k = p->k,
                              .k_res = p->k_res,
                              .centroids = book,
                              .res_centroids = p->k_res ? book + (size_t)p->k * p->v : NULL,
                              .idx = p->idx,
                              .idx_res = p->idx_res,
                              .q = q + p->first * c->rows,
                              .ldi = p->strips,
                              .ldq = c->rows};
        vptq_status st = c->dev->ops->vq_gather(c->dev->state, &g, err);
        if (st)
            return st;
        book += unknowns(p);
    }
    return VPTQ_OK;
}

/* ad = A d */
static vptq_status apply(solver *a, vptq_err *err)
{
    vptq_encoder *c = a->c;
    vptq_gemm_args g = {.m = c->in,
                        .n = c->rows,
                        .k = c->in,
                        .a = c->h,
                        .b = c->e,
                        .c = c->g,
                        .lda = c->in,
                        .ldb = c->rows,
                        .ldc = c->rows,
                        .alpha = 1};
    vptq_status st = vptq_check_cancel(c->dev->ctx, err);
    if (!st)
        st = gather(a, c->e, err);
    if (!st && !a->diagonal)
        st = c->dev->ops->gemm(c->dev->state, &g, err);
    return st ? st : scatter(a, a->diagonal ? c->e : c->g, a->ad, NULL, err);
}

static double dot(size_t n, const double *x, const double *y)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += x[i] * y[i];
    return s;
}

static double precondition(solver *a)
{
    for (size_t i = 0; i < a->n; i++)
        a->s[i] = a->m[i] > 0 ? a->r[i] / a->m[i] : 0;
    return dot(a->n, a->r, a->s);
}

/* The first residual is minus the gradient; the diagonal comes with it. */
static vptq_status start(solver *a, vptq_err *err)
{
    vptq_encoder *c = a->c;
    vptq_status st = VPTQ_OK;

    VPTQ_TRY(scatter(a, c->e, a->ad, a->m, err)); /* sums unused: the weights are wanted */
    if (a->diagonal)
        memcpy(a->r, a->ad, a->n * sizeof *a->r);
    else
        VPTQ_TRY(scatter(a, c->g, a->r, NULL, err));
    for (size_t i = 0; i < a->n; i++)
        a->r[i] = -a->r[i];
out:
    return st;
}

static vptq_status iterate(solver *a, int iterations, vptq_err *err)
{
    const double enough = 1e-12; /* of the first residual, in the preconditioner's norm */
    double rho = precondition(a), first = rho;

    memcpy(a->d, a->s, a->n * sizeof *a->d);
    for (int t = 0; t < iterations && rho > enough * first; t++) {
        vptq_status st = apply(a, err);
        if (st)
            return st;
        double curvature = dot(a->n, a->d, a->ad);
        if (!(curvature > 0))
            break;
        double alpha = rho / curvature;
        for (size_t i = 0; i < a->n; i++) {
            a->x[i] += alpha * a->d[i];
            a->r[i] -= alpha * a->ad[i];
        }
        double next = precondition(a);
        for (size_t i = 0; i < a->n; i++)
            a->d[i] = a->s[i] + next / rho * a->d[i];
        rho = next;
    }
    return VPTQ_OK;
}

static void step_books(const solver *a)
{
    const double *x = a->x;
    for (uint32_t i = 0; i < a->parts; i++) {
        const vptq_part *p = &a->part[i];
        for (size_t j = 0; j < (size_t)p->k * p->v; j++)
            p->main[j] = (float)((double)p->main[j] + *x++);
        for (size_t j = 0; j < (size_t)p->k_res * p->v; j++)
            p->res[j] = (float)((double)p->res[j] + *x++);
    }
}

/* e = q - target of one part, from its books and indices. */
static vptq_status part_error(vptq_encoder *c, const vptq_part *p, const float *target,
                              vptq_err *err)
{
    vptq_gather_args g = {.cols = p->cols,
                          .rows = p->rows,
                          .v = p->v,
                          .k = p->k,
                          .k_res = p->k_res,
                          .centroids = p->main,
                          .res_centroids = p->res,
                          .idx = p->idx,
                          .idx_res = p->idx_res,
                          .q = c->e + p->first * c->rows,
                          .ldi = p->strips,
                          .ldq = c->rows};
    vptq_status st = c->dev->ops->vq_gather(c->dev->state, &g, err);
    for (size_t t = p->first; !st && t < p->first + p->cols; t++)
        for (size_t r = 0; r < p->rows; r++)
            c->e[t * c->rows + r] -= target[t * c->rows + r];
    return st;
}

vptq_status vptq_refit(vptq_encoder *c, vptq_part *only, const float *target, int iterations,
                       vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    solver a = {
        .c = c, .part = only ? only : c->part, .parts = only ? 1 : c->parts, .diagonal = only};
    uint32_t largest = 0;

    for (uint32_t i = 0; i < a.parts; i++) {
        const vptq_part *p = &a.part[i];
        a.n += unknowns(p);
        largest = p->k > largest ? p->k : largest;
        largest = p->k_res > largest ? p->k_res : largest;
    }
    a.x = vptq_arena_zalloc(&c->work, a.n, 6 * sizeof *a.x, err);
    a.weights = a.x ? vptq_arena_alloc(&c->work, largest, sizeof *a.weights, err) : NULL;
    a.books = a.weights ? vptq_arena_alloc(&c->work, a.n, sizeof *a.books, err) : NULL;
    if (!a.books) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    a.r = a.x + a.n;
    a.s = a.r + a.n;
    a.d = a.s + a.n;
    a.ad = a.d + a.n;
    a.m = a.ad + a.n;
    if (only)
        VPTQ_TRY(part_error(c, only, target, err));
    VPTQ_TRY(start(&a, err));
    VPTQ_TRY(iterate(&a, iterations, err));
    step_books(&a);
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}
