/* Least squares over scale and bias.  With Q fixed, scale s_p (1 + a_p) and bias b_p + s_p c_p
 * change the error of column p, in present coordinates, by a_p q_p + c_p 1.  The 2 in unknowns
 * (a, c) minimize tr(E H' E^T) with the present H' by conjugate gradients, preconditioned by
 * the diagonal.  The new scale and bias are rounded to the storage type; Z and H' follow. */
#include <math.h>

#include "lib/base/half.h"
#include "lib/encoder/conjugate.h"
#include "lib/encoder/encoder.h"

/* to[p] = q_p . y_p, to[in + p] = sum of y_p, without padded rows. */
static void project(const vptq_encoder *enc, const float *y, double *to)
{
    const size_t in = enc->problem.in, rows = enc->problem.rows;

    for (size_t p = 0; p < in; p++) {
        const float *q = enc->q + p * rows, *yp = y + p * rows;
        double product = 0, sum = 0;
        for (size_t r = 0; r < enc->problem.out; r++) {
            product += (double)q[r] * (double)yp[r];
            sum += (double)yp[r];
        }
        to[p] = product;
        to[in + p] = sum;
    }
}

/* ad = A d through one product with H'.  Unknowns: a [in], then c [in]. */
static vptq_status apply(void *arg, const double *d, double *ad, vptq_err *err)
{
    vptq_encoder *enc = arg;
    const size_t in = enc->problem.in, rows = enc->problem.rows;

    for (size_t p = 0; p < in; p++) {
        const float *q = enc->q + p * rows;
        float *e = enc->e + p * rows, a = (float)d[p], b = (float)d[in + p];
        for (size_t r = 0; r < rows; r++)
            e[r] = r < enc->problem.out ? a * q[r] + b : 0;
    }
    VPTQ_CHECK(vptq_encoder_product(enc, enc->problem.h, enc->e, enc->g, err));
    project(enc, enc->g, ad);
    return VPTQ_OK;
}

static void diagonal(const vptq_encoder *enc, double *m)
{
    const size_t in = enc->problem.in, rows = enc->problem.rows;

    for (size_t p = 0; p < in; p++) {
        double square = 0;
        for (size_t r = p * rows; r < p * rows + enc->problem.out; r++)
            square += (double)enc->q[r] * (double)enc->q[r];
        m[p] = square * (double)enc->problem.diag[p];
        m[in + p] = (double)enc->problem.out * (double)enc->problem.diag[p];
    }
}

/* Leaves a column as it is if its scale would vanish, change sign or not fit into the storage
 * type. */
static void apply_step(vptq_problem *p, const double *x)
{
    const float min_scale = 6.103515625e-5F; /* the smallest normal half */

    for (size_t i = 0; i < p->in; i++) {
        const size_t column = p->order[i];
        double old = (double)p->scale[column];
        float scale = vptq_round_to(p->settings->storage, (float)(old * (1 + x[i])));
        float bias = vptq_round_to(p->settings->storage,
                                   (float)((double)p->bias[column] + old * x[p->in + i]));
        if (!(scale >= min_scale) || !isfinite(scale) || !isfinite(bias))
            continue;
        p->scale[column] = scale;
        p->bias[column] = bias;
    }
}

vptq_status vptq_refit_scales(vptq_encoder *enc, int iterations, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    vptq_conjugate cg = {.apply = apply, .arg = enc};

    VPTQ_TRY(vptq_conjugate_open(&enc->scratch, 2 * (size_t)enc->problem.in, &cg, err));
    project(enc, enc->g, cg.r); /* the gradient */
    for (size_t i = 0; i < cg.n; i++)
        cg.r[i] = -cg.r[i];
    diagonal(enc, cg.m);
    VPTQ_TRY(vptq_conjugate_run(&cg, iterations, err));
    apply_step(&enc->problem, cg.x);
    vptq_problem_normalize(&enc->problem);
out:
    vptq_arena_rewind(&enc->scratch, mark);
    return st;
}
