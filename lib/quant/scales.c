/* Least squares over scale and bias.  With Q fixed, scale s_p (1 + a_p) and bias b_p + s_p c_p
 * change the error of column p, in present coordinates, by a_p q_p + c_p 1.  The 2 n unknowns
 * (a, c) minimize tr(E H' E^T) with the present H'; conjugate gradients, preconditioned by the
 * diagonal.  The new scale and bias are rounded to the storage type, and z and H' made anew. */
#include <math.h>

#include "lib/base/half.h"
#include "lib/quant/encoder.h"

typedef struct solver {
    vptq_encoder *c;
    size_t n;                            /* unknowns: a [in], c [in] */
    double *x, *r, *s, *d, *ad, *weight; /* [n]; weight = diagonal of the system */
} solver;

/* to[p] = q_p . y_p, to[in + p] = sum of y_p, over the rows that are not padding. */
static void project(const solver *v, const float *y, double *to)
{
    const vptq_encoder *c = v->c;
    for (size_t p = 0; p < c->in; p++) {
        const float *q = c->q + p * c->rows, *yp = y + p * c->rows;
        double product = 0, sum = 0;
        for (size_t r = 0; r < c->out; r++) {
            product += (double)q[r] * (double)yp[r];
            sum += (double)yp[r];
        }
        to[p] = product;
        to[c->in + p] = sum;
    }
}

/* ad = A d through one product with H'. */
static vptq_status apply(solver *v, vptq_err *err)
{
    vptq_encoder *c = v->c;
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
    if (st)
        return st;
    for (size_t p = 0; p < c->in; p++) {
        const float *q = c->q + p * c->rows;
        float *e = c->e + p * c->rows, a = (float)v->d[p], b = (float)v->d[c->in + p];
        for (size_t r = 0; r < c->rows; r++)
            e[r] = r < c->out ? a * q[r] + b : 0;
    }
    st = c->dev->ops->gemm(c->dev->state, &g, err);
    if (!st)
        project(v, c->g, v->ad);
    return st;
}

static void diagonal(solver *v)
{
    const vptq_encoder *c = v->c;
    for (size_t p = 0; p < c->in; p++) {
        double square = 0;
        for (size_t r = p * c->rows; r < p * c->rows + c->out; r++)
            square += (double)c->q[r] * (double)c->q[r];
        v->weight[p] = square * (double)c->diag[p];
        v->weight[c->in + p] = (double)c->out * (double)c->diag[p];
    }
}

static double precondition(solver *v)
{
    double rho = 0;
    for (size_t i = 0; i < v->n; i++) {
        v->s[i] = v->weight[i] > 0 ? v->r[i] / v->weight[i] : 0;
        rho += v->r[i] * v->s[i];
    }
    return rho;
}

static vptq_status solve(solver *v, int iterations, vptq_err *err)
{
    project(v, v->c->g, v->r);
    for (size_t i = 0; i < v->n; i++)
        v->r[i] = -v->r[i];
    diagonal(v);
    double rho = precondition(v), first = rho;
    for (size_t i = 0; i < v->n; i++)
        v->d[i] = v->s[i];
    for (int t = 0; t < iterations && rho > 1e-12 * first; t++) {
        vptq_status st = apply(v, err);
        if (st)
            return st;
        double curvature = 0;
        for (size_t i = 0; i < v->n; i++)
            curvature += v->d[i] * v->ad[i];
        if (!(curvature > 0))
            break;
        double alpha = rho / curvature;
        for (size_t i = 0; i < v->n; i++) {
            v->x[i] += alpha * v->d[i];
            v->r[i] -= alpha * v->ad[i];
        }
        double next = precondition(v);
        for (size_t i = 0; i < v->n; i++)
            v->d[i] = v->s[i] + next / rho * v->d[i];
        rho = next;
    }
    return VPTQ_OK;
}

/* A scale that would vanish, turn round or not fit into the storage type stays as it is. */
static void take(const solver *v)
{
    vptq_encoder *c = v->c;
    const float least = 6.103515625e-5F; /* below, halves lose precision */

    for (size_t p = 0; p < c->in; p++) {
        size_t column = c->metric.order[p];
        double old = (double)c->metric.scale[column];
        float scale = vptq_round_to(c->s->storage, (float)(old * (1 + v->x[p])));
        float bias = vptq_round_to(
            c->s->storage, (float)((double)c->metric.bias[column] + old * v->x[c->in + p]));
        if (!(scale >= least) || !isfinite(scale) || !isfinite(bias))
            continue;
        c->metric.scale[column] = scale;
        c->metric.bias[column] = bias;
    }
}

vptq_status vptq_refit_scales(vptq_encoder *c, int iterations, vptq_err *err)
{
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    solver v = {.c = c, .n = 2 * (size_t)c->in};

    v.x = vptq_arena_zalloc(&c->work, v.n, 6 * sizeof *v.x, err);
    if (!v.x)
        return VPTQ_E_NOMEM;
    v.r = v.x + v.n;
    v.s = v.r + v.n;
    v.d = v.s + v.n;
    v.ad = v.d + v.n;
    v.weight = v.ad + v.n;
    vptq_status st = solve(&v, iterations, err);
    if (!st) {
        take(&v);
        vptq_encoder_normalize(c);
    }
    vptq_arena_rewind(&c->work, mark);
    return st;
}
