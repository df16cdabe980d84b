/* Least squares over scale and bias.  With Q fixed, scale s_p (1 + a_p) and bias b_p + s_p c_p
 * change the error of column p, in present coordinates, by a_p q_p + c_p 1.  The 2 n unknowns
 * (a, c) minimize tr(E H' E^T) with the present H'; conjugate gradients, preconditioned by the
 * diagonal.  The new scale and bias are rounded to the storage type, and z and H' made anew. */
#include <math.h>

#include "lib/base/half.h"
#include "lib/encoder/conjugate.h"
#include "lib/encoder/encoder.h"

/* to[p] = q_p . y_p, to[in + p] = sum of y_p, over the rows that are not padding. */
static void project(const vptq_encoder *c, const float *y, double *to)
{
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

/* ad = A d through one product with H'.  Unknowns: a [in], then c [in]. */
static vptq_status apply(void *arg, const double *d, double *ad, vptq_err *err)
{
    vptq_encoder *c = arg;

    for (size_t p = 0; p < c->in; p++) {
        const float *q = c->q + p * c->rows;
        float *e = c->e + p * c->rows, a = (float)d[p], b = (float)d[c->in + p];
        for (size_t r = 0; r < c->rows; r++)
            e[r] = r < c->out ? a * q[r] + b : 0;
    }
    vptq_status st = vptq_encoder_product(c, c->h, c->e, c->g, err);
    if (!st)
        project(c, c->g, ad);
    return st;
}

static void diagonal(const vptq_encoder *c, double *m)
{
    for (size_t p = 0; p < c->in; p++) {
        double square = 0;
        for (size_t r = p * c->rows; r < p * c->rows + c->out; r++)
            square += (double)c->q[r] * (double)c->q[r];
        m[p] = square * (double)c->diag[p];
        m[c->in + p] = (double)c->out * (double)c->diag[p];
    }
}

/* A scale that would vanish, turn round or not fit into the storage type stays as it is. */
static void take(vptq_encoder *c, const double *x)
{
    const float least = 6.103515625e-5F; /* below, halves lose precision */

    for (size_t p = 0; p < c->in; p++) {
        size_t column = c->metric.order[p];
        double old = (double)c->metric.scale[column];
        float scale = vptq_round_to(c->s->storage, (float)(old * (1 + x[p])));
        float bias = vptq_round_to(
            c->s->storage, (float)((double)c->metric.bias[column] + old * x[c->in + p]));
        if (!(scale >= least) || !isfinite(scale) || !isfinite(bias))
            continue;
        c->metric.scale[column] = scale;
        c->metric.bias[column] = bias;
    }
}

vptq_status vptq_refit_scales(vptq_encoder *c, int iterations, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    vptq_conjugate cg = {.apply = apply, .arg = c};

    VPTQ_TRY(vptq_conjugate_open(&c->work, 2 * (size_t)c->in, &cg, err));
    project(c, c->g, cg.r); /* the gradient */
    for (size_t i = 0; i < cg.n; i++)
        cg.r[i] = -cg.r[i];
    diagonal(c, cg.m);
    VPTQ_TRY(vptq_conjugate_run(&cg, iterations, err));
    take(c, cg.x);
    vptq_encoder_normalize(c);
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}
