/* Least squares over scale and bias.  With Q fixed, scale s_p (1 + a_p) and bias b_p + s_p c_p
 * change the error of column p, in present coordinates, by a_p q_p + c_p 1.  The 2 in unknowns
 * (a, c) minimize tr(E H' E^T) with the present H' by conjugate gradients, preconditioned by
 * the diagonal.  The new scale and bias are rounded to the storage type; Z and H' follow. */
#include <math.h>

#include "lib/backend/conjugate.h"
#include "lib/base/half.h"
#include "lib/encoder/encoder.h"

/* to[p] = q_p . y_p, to[in + p] = sum of y_p, without padded rows. */
static vptq_status project(const vptq_encoder *enc, const float *y, double *to, vptq_err *err)
{
    const size_t out = enc->problem.out;

    VPTQ_CHECK(vptq_encoder_dots(enc, out, enc->q, y, to, err));
    return vptq_encoder_dots(enc, out, y, NULL, to + enc->problem.in, err);
}

typedef struct solver {
    vptq_encoder *enc;
    vptq_conjugate cg; /* unknowns: a [in], then c [in] */
} solver;

/* One product with H'. */
static vptq_status apply(void *arg, vptq_err *err)
{
    const solver *a = arg;
    vptq_encoder *enc = a->enc;
    const size_t in = enc->problem.in, rows = enc->problem.rows;
    const vptq_affine_args error = {.cols = in,
                                    .rows = rows,
                                    .valid = enc->problem.out,
                                    .x = enc->q,
                                    .a = a->cg.rounded,
                                    .b = a->cg.rounded + in,
                                    .y = enc->e,
                                    .ldx = rows,
                                    .ldy = rows};
    VPTQ_CHECK(enc->dev->ops->affine(enc->dev->state, &error, err));
    VPTQ_CHECK(vptq_encoder_apply(enc, err));
    return project(enc, enc->g, a->cg.ad, err);
}

/* m = |q_p|^2 H'_pp, then out H'_pp. */
static vptq_status diagonal(vptq_encoder *enc, double *m, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    const size_t in = p->in;
    double all;

    VPTQ_CHECK(vptq_encoder_dot(enc, p->out, enc->q, enc->q, &all, err));
    for (size_t i = 0; i < in; i++) {
        enc->sums[i] *= (double)p->diag[i];
        enc->sums[in + i] = (double)p->out * (double)p->diag[i];
    }
    return enc->dev->ops->upload(enc->dev->state, m, enc->sums, 2 * in * sizeof *m, err);
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
    const size_t n = 2 * (size_t)enc->problem.in;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    solver a = {.enc = enc, .cg = {.n = n, .apply = apply, .arg = &a}};

    VPTQ_TRY(vptq_conjugate_open(&m, &a.cg, err));
    VPTQ_TRY(project(enc, enc->g, a.cg.ad, err)); /* the gradient */
    VPTQ_TRY(diagonal(enc, a.cg.m, err));
    VPTQ_TRY(vptq_conjugate_run(&a.cg, iterations, err));
    VPTQ_TRY(enc->dev->ops->download(enc->dev->state, enc->sums, a.cg.x, n * sizeof *enc->sums,
                                     err));
    apply_step(&enc->problem, enc->sums);
    VPTQ_TRY(vptq_problem_normalize(&enc->problem, err));
out:
    return vptq_mirror_end(&m, st, err);
}
