/* Conjugate gradients on the ops cg_step, cg_turn and dot. */
#include "lib/backend/conjugate.h"

vptq_status vptq_conjugate_open(vptq_mirror *arrays, vptq_conjugate *c, vptq_err *err)
{
    double **array[] = {&c->x, &c->r, &c->m, &c->s, &c->d, &c->ad};

    c->dev = arrays->dev;
    for (size_t i = 0; i < sizeof array / sizeof array[0]; i++) {
        *array[i] = vptq_mirror_alloc(arrays, c->n, sizeof(double));
        VPTQ_CHECK(vptq_mirror_check(arrays, err));
        VPTQ_CHECK(c->dev->ops->clear(c->dev->state, *array[i], c->n * sizeof(double), err));
    }
    c->rounded = vptq_mirror_alloc(arrays, c->n, sizeof *c->rounded);
    return vptq_mirror_check(arrays, err);
}

/* Moves by alpha along d; *rho = the squared residual in the preconditioner's norm. */
static vptq_status step(vptq_conjugate *c, double alpha, double *rho, vptq_err *err)
{
    const vptq_cg_step_args args = {.n = c->n,
                                    .alpha = alpha,
                                    .d = c->d,
                                    .ad = c->ad,
                                    .m = c->m,
                                    .x = c->x,
                                    .r = c->r,
                                    .s = c->s,
                                    .rho = rho};
    return c->dev->ops->cg_step(c->dev->state, &args, err);
}

static vptq_status turn(vptq_conjugate *c, double beta, vptq_err *err)
{
    const vptq_cg_turn_args args = {
        .n = c->n, .beta = beta, .s = c->s, .d = c->d, .rounded = c->rounded};
    return c->dev->ops->cg_turn(c->dev->state, &args, err);
}

vptq_status vptq_conjugate_run(vptq_conjugate *c, int iterations, vptq_err *err)
{
    const double tolerance = 1e-12;
    double rho, first, curvature;
    const vptq_dot_args dot = {.n = c->n, .x = c->d, .y = c->ad, .sum = &curvature};

    VPTQ_CHECK(step(c, 1, &rho, err)); /* x = 0, r = -ad, since d and r are 0 */
    VPTQ_CHECK(turn(c, 0, err));
    first = rho;
    for (int t = 0; t < iterations && rho > tolerance * first; t++) {
        VPTQ_CHECK(c->apply(c->arg, err));
        VPTQ_CHECK(c->dev->ops->dot(c->dev->state, &dot, err));
        if (!(curvature > 0))
            break;
        const double before = rho;
        VPTQ_CHECK(step(c, before / curvature, &rho, err));
        VPTQ_CHECK(turn(c, rho / before, err));
    }
    return VPTQ_OK;
}
