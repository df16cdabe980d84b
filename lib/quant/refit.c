/* Least squares over the books.  With fixed indices Q is linear in the centroids C: Q = G(C)
 * (gather), and tr((Q - Z) H' (Q - Z)^T) is smallest where G^T(H' (G(C) - Z)) = 0 (G^T adds up
 * per centroid).  Conjugate gradients on that system from the books as they are, preconditioned
 * by its diagonal (sum of H'_jj over the uses of a centroid).  A centroid without uses stays as
 * it is.  The system is singular where main and residual book can shift against each other,
 * which conjugate gradients do not mind.
 *
 * Each iteration lowers the objective; float products end the descent near 1e-6 of it. */
#include <string.h>

#include "lib/quant/conjugate.h"
#include "lib/quant/encoder.h"

typedef struct solver {
    vptq_encoder *c;
    vptq_part *part; /* the books being fitted ... */
    uint32_t parts;
    bool diagonal;     /* ... under diag H' alone */
    vptq_conjugate cg; /* x = step from the books as they are */
    double *weights;   /* [largest k] */
    float *books;      /* a direction as books, in the order of unknowns */
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

/* e <- what the direction d stands for. */
static vptq_status gather(solver *a, const double *d, vptq_err *err)
{
    const float *book = a->books;

    for (size_t i = 0; i < a->cg.n; i++)
        a->books[i] = (float)d[i];
    for (uint32_t i = 0; i < a->parts; i++) {
        const vptq_part *p = &a->part[i];
        const float *res = p->k_res ? book + (size_t)p->k * p->v : NULL;
        vptq_status st = vptq_part_gather(a->c, p, book, res, a->c->e, err);
        if (st)
            return st;
        book += unknowns(p);
    }
    return VPTQ_OK;
}

static vptq_status apply(void *arg, const double *d, double *ad, vptq_err *err)
{
    solver *a = arg;
    vptq_encoder *c = a->c;
    vptq_status st = vptq_check_cancel(c->dev->ctx, err);

    if (!st)
        st = gather(a, d, err);
    if (!st && !a->diagonal)
        st = vptq_encoder_product(c, c->h, c->e, c->g, err);
    return st ? st : scatter(a, a->diagonal ? c->e : c->g, ad, NULL, err);
}

/* The first residual is minus the gradient; the diagonal comes with it. */
static vptq_status start(solver *a, vptq_err *err)
{
    vptq_encoder *c = a->c;
    vptq_conjugate *cg = &a->cg;
    vptq_status st = VPTQ_OK;

    VPTQ_TRY(scatter(a, c->e, cg->ad, cg->m, err)); /* sums unused: the weights are wanted */
    if (a->diagonal)
        memcpy(cg->r, cg->ad, cg->n * sizeof *cg->r);
    else
        VPTQ_TRY(scatter(a, c->g, cg->r, NULL, err));
    for (size_t i = 0; i < cg->n; i++)
        cg->r[i] = -cg->r[i];
out:
    return st;
}

static void step_books(const solver *a)
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

/* e = q - target of one part, from its books and indices. */
static vptq_status part_error(vptq_encoder *c, const vptq_part *p, const float *target,
                              vptq_err *err)
{
    vptq_status st = vptq_part_gather(c, p, p->main, p->res, c->e, err);
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
    size_t n = 0;

    for (uint32_t i = 0; i < a.parts; i++) {
        const vptq_part *p = &a.part[i];
        n += unknowns(p);
        largest = p->k > largest ? p->k : largest;
        largest = p->k_res > largest ? p->k_res : largest;
    }
    VPTQ_TRY(vptq_conjugate_open(&c->work, n, &a.cg, err));
    a.cg.apply = apply;
    a.cg.arg = &a;
    a.weights = vptq_arena_alloc(&c->work, largest, sizeof *a.weights, err);
    a.books = a.weights ? vptq_arena_alloc(&c->work, n, sizeof *a.books, err) : NULL;
    if (!a.books) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    if (only)
        VPTQ_TRY(part_error(c, only, target, err));
    VPTQ_TRY(start(&a, err));
    VPTQ_TRY(vptq_conjugate_run(&a.cg, iterations, err));
    step_books(&a);
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}
