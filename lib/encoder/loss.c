/* The proxy loss tr(E H E^T) / tr(W H W^T) with the raw Hessian, in double. */
#include "lib/encoder/encoder.h"

static void unpack_lower(uint32_t n, const float *lower, double *h)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            h[i * n + j] = (double)*lower++;
}

static double squared_norm(size_t n, const float *x)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return s;
}

vptq_status vptq_encoder_trace(vptq_device *dev, size_t rows, uint32_t in, const float *x,
                               const float *lower, double *trace, vptq_err *err)
{
    size_t square;
    if (!vptq_size_mul(in, in, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         in);
    vptq_status st = vptq_check_cancel(dev->ctx, err);
    if (st)
        return st;
    double *h = vptq_mem_alloc(dev->ctx->mem, square, sizeof *h, err);
    if (!h)
        return VPTQ_E_NOMEM;
    unpack_lower(in, lower, h);
    vptq_mirror m = vptq_mirror_of(dev);
    const float *xd = vptq_mirror_in(&m, x, rows * in, sizeof *x);
    const double *hd = vptq_mirror_in(&m, h, square, sizeof *h);
    st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->quad_trace(
            dev->state,
            &(vptq_quad_trace_args){
                .m = rows, .n = in, .e = xd, .lde = in, .h = hd, .ldh = in, .trace = trace},
            err);
    st = vptq_mirror_end(&m, st, err);
    vptq_mem_free(dev->ctx->mem, h);
    return st;
}

vptq_status vptq_encoder_measure(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                                 const float *what, const float *lower, vptq_encoder_loss *loss,
                                 vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t n;

    *loss = (vptq_encoder_loss){0};
    if (!vptq_size_mul(out, in, &n))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory", out,
                         in);
    float *e = vptq_mem_alloc(dev->ctx->mem, n, sizeof *e, err);
    if (!e)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        e[i] = what[i] - w[i];
    VPTQ_TRY(vptq_encoder_trace(dev, out, in, e, lower, &loss->error, err));
    VPTQ_TRY(vptq_encoder_trace(dev, out, in, w, lower, &loss->norm, err));
    loss->error_sq = squared_norm(n, e);
    loss->norm_sq = squared_norm(n, w);
    loss->relative = loss->norm > 0 ? loss->error / loss->norm : 0;
out:
    vptq_mem_free(dev->ctx->mem, e);
    return st;
}
