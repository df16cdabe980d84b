/* Factors the Hessian of a matrix. */
#include "lib/uniform/factor.h"

#include "hessian/hessian.h"

vptq_status vptq_uniform_factor(vptq_mirror *m, const vptq_uniform_factor_args *a, float *u,
                                double *damping_added, vptq_err *err)
{
    vptq_metric_args metric = {
        .n = a->in,
        .lower = vptq_mirror_in(m, a->lower, a->in * (a->in + 1) / 2, sizeof(float)),
        .order = vptq_mirror_in(m, a->order, a->in, sizeof *a->order),
        .divisor = 1};
    double mean;
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(vptq_hessian_mean_diagonal(m->dev, &metric, &mean, err));
    metric.ridge = a->ridge * mean;
    return vptq_hessian_factor(m->dev, &metric, a->damping, u, damping_added, err);
}
