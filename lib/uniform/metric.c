/* Hessians in full, and rounding (metric.h). */
#include "lib/uniform/metric.h"

#include <float.h>
#include <math.h>

#include "hessian/hessian.h"
#include "lib/backend/mirror.h"

/* Fails unless every entry is finite. */
static vptq_status check_finite(const vptq_device *dev, const vptq_metric_args *a,
                                vptq_err *err)
{
    size_t first = 0;
    const vptq_outside_args all = {.n = a->n * (a->n + 1) / 2,
                                   .x = a->lower,
                                   .min = -FLT_MAX,
                                   .max = FLT_MAX,
                                   .first = &first};
    VPTQ_CHECK(dev->ops->first_outside(dev->state, &all, err));
    if (first < all.n)
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "hessian has entries that are not finite numbers");
    return VPTQ_OK;
}

static vptq_status unpack(vptq_device *dev, vptq_metric_args *a, vptq_err *err)
{
    VPTQ_CHECK(check_finite(dev, a, err));
    double mean;
    VPTQ_CHECK(vptq_hessian_mean_diagonal(dev, a, &mean, err));
    if (!(mean > 0))
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "hessian has a mean diagonal of %g, expected a positive one", mean);
    a->divisor = mean;
    return dev->ops->metric(dev->state, a, err);
}

vptq_status vptq_uniform_metric(vptq_device *dev, const vptq_uniform_input *input, float *h,
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t in = input->in;
    vptq_mirror m = vptq_mirror_of(dev);
    vptq_metric_args a = {
        .n = in,
        .lower = vptq_mirror_in(&m, input->lower, in * (in + 1) / 2, sizeof(float)),
        .divisor = 1,
        .h = vptq_mirror_take(&m, h, in, in * sizeof *h, VPTQ_MIRROR_DOWNLOAD)};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(unpack(dev, &a, err));
out:
    return vptq_mirror_end(&m, st, err);
}

void vptq_uniform_store(vptq_dtype storage, float *x, size_t n)
{
    const float most = storage == VPTQ_F16 ? 65504.0F : 0x1.fep127F;
    for (size_t i = 0; i < n; i++)
        x[i] = vptq_round_to(storage, fminf(fmaxf(x[i], -most), most));
}
