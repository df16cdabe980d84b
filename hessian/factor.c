/* The factors of the column pass and of QuIP#, and tr(X H X^T).
 *
 * U, upper with A^-1 = U^T U (hessian.h), takes one Cholesky factorization and one triangular
 * inverse.  Reversing rows and columns turns the lower factor of the reversed matrix into R
 * with A = R R^T, R upper, hence U = R^-1. */
#include <float.h>
#include <math.h>

#include "hessian/hessian.h"
#include "lib/backend/mirror.h"

vptq_status vptq_hessian_cholesky(vptq_device *dev, size_t n, double *a, size_t *bad_pivot,
                                  vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(dev);
    double *on =
        vptq_mirror_take(&m, a, n * n, sizeof *a, VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->potrf(dev->state, n, on, n, bad_pivot, err);
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_hessian_invert_lower(vptq_device *dev, size_t n, double *a, vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(dev);
    double *on =
        vptq_mirror_take(&m, a, n * n, sizeof *a, VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->trtri(dev->state, n, on, n, err);
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_hessian_check_finite(vptq_device *dev, size_t n, const float *lower,
                                      vptq_err *err)
{
    size_t first = 0, i = 0;
    float value = 0;
    const vptq_outside_args args = {
        .n = n * (n + 1) / 2, .x = lower, .min = -FLT_MAX, .max = FLT_MAX, .first = &first};

    VPTQ_CHECK(dev->ops->first_outside(dev->state, &args, err));
    if (first == args.n)
        return VPTQ_OK;
    VPTQ_CHECK(dev->ops->download(dev->state, &value, lower + first, sizeof value, err));
    while (first > i)
        first -= ++i;
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "hessian entry (%zu, %zu) is %g, expected a finite number", i, first,
                     (double)value);
}

vptq_status vptq_hessian_mean_diagonal(vptq_device *dev, const vptq_metric_args *metric,
                                       double *mean, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t n = metric->n;
    vptq_mirror arrays = vptq_mirror_of(dev);
    vptq_metric_args m = *metric;
    double *diag = vptq_mem_alloc(dev->ctx->mem, n, sizeof *diag, err);

    if (!diag)
        return VPTQ_E_NOMEM;
    m.a = NULL;
    m.h = NULL;
    m.diag = vptq_mirror_take(&arrays, diag, n, sizeof *diag, 0);
    VPTQ_TRY(vptq_mirror_check(&arrays, err));
    VPTQ_TRY(dev->ops->metric(dev->state, &m, err));
    VPTQ_TRY(vptq_mirror_pull(&arrays, diag, n * sizeof *diag, err));
    *mean = 0;
    for (size_t i = 0; i < n; i++)
        *mean += diag[i];
    *mean /= (double)n;
out:
    st = vptq_mirror_end(&arrays, st, err);
    vptq_mem_free(dev->ctx->mem, diag);
    return st;
}

/* Replaces the lower triangle of m->a by the lower Cholesky factor of m with *added of its mean
 * diagonal added, as little as the factorization needs. */
static vptq_status factor_damped(vptq_device *dev, vptq_metric_args *m, double damping,
                                 double *added, vptq_err *err)
{
    enum { MAX_RAISES = 8 };
    double mean;

    *added = 0;
    VPTQ_CHECK(vptq_hessian_mean_diagonal(dev, m, &mean, err));
    if (!(mean > 0))
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "hessian has a mean diagonal of %g, expected a positive one", mean);
    for (int raise = 0;; raise++) {
        size_t pivot = 0;
        vptq_err why = {0};
        VPTQ_CHECK(dev->ops->metric(dev->state, m, err));
        const vptq_status st = dev->ops->potrf(dev->state, m->n, m->a, m->n, &pivot, &why);
        if (st != VPTQ_E_NUMERIC) {
            if (st && err)
                *err = why;
            return st;
        }
        if (raise == MAX_RAISES)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "hessian is not positive definite at column %zu, even with %g of "
                             "the mean diagonal added",
                             m->reversed ? m->n - 1 - pivot : pivot, *added);
        *added = *added > 0 ? *added * 10 : damping;
        m->damping = *added * mean;
    }
}

vptq_status vptq_hessian_factor_lower(vptq_device *dev, vptq_metric_args *metric,
                                      double damping, double *added, vptq_err *err)
{
    metric->damping = 0;
    metric->h = NULL;
    metric->diag = NULL;
    VPTQ_CHECK(vptq_hessian_check_finite(dev, metric->n, metric->lower, err));
    return factor_damped(dev, metric, damping, added, err);
}

vptq_status vptq_hessian_factor(vptq_device *dev, const vptq_metric_args *metric,
                                double damping, float *u, double *added, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t n = metric->n;
    vptq_mirror arrays = vptq_mirror_of(dev);
    vptq_metric_args m = *metric;

    m.reversed = true;
    m.a = vptq_mirror_alloc(&arrays, n, n * sizeof *m.a);
    VPTQ_TRY(vptq_mirror_check(&arrays, err));
    VPTQ_TRY(vptq_hessian_factor_lower(dev, &m, damping, added, err));
    VPTQ_TRY(dev->ops->trtri(dev->state, n, m.a, n, err));
    const vptq_upper_args upper = {.n = n, .a = m.a, .u = u};
    VPTQ_TRY(dev->ops->reverse_upper(dev->state, &upper, err));
out:
    return vptq_mirror_end(&arrays, st, err);
}

uint64_t vptq_hessian_factor_bytes(uint64_t n)
{
    enum { PANEL_COLUMNS = 128, PANEL_BLOCKS = 2 }; /* those of the CPU, rounded up */
    const uint64_t panels = (n + PANEL_BLOCKS * PANEL_COLUMNS) * PANEL_COLUMNS;
    return (n * n + n + panels) * sizeof(double);
}

vptq_status vptq_hessian_trace(vptq_device *dev, size_t rows, uint32_t in, const float *x,
                               const float *lower, double *trace, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(dev);
    const vptq_metric_args unpack = {.n = in,
                                     .lower = lower,
                                     .divisor = 1,
                                     .a = vptq_mirror_alloc(&m, in, in * sizeof(double))};
    const vptq_quad_trace_args args = {
        .m = rows, .n = in, .e = x, .lde = in, .h = unpack.a, .ldh = in, .trace = trace};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(dev->ops->metric(dev->state, &unpack, err));
    VPTQ_TRY(vptq_check_cancel(dev->ctx, err));
    VPTQ_TRY(dev->ops->quad_trace(dev->state, &args, err));
out:
    return vptq_mirror_end(&m, st, err);
}
