/* The proxy loss tr(E H E^T) / tr(W H W^T) with the raw Hessian, in double. */
#include "lib/quant/quant.h"

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

vptq_status vptq_quant_measure(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                               const float *what, const float *lower, vptq_quant_loss *loss,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    size_t n;

    *loss = (vptq_quant_loss){0};
    if (!vptq_size_mul(out, in, &n))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory", out,
                         in);
    vptq_arena_init(&arena, dev->ctx->mem);
    float *e = vptq_arena_alloc(&arena, n, sizeof *e, err);
    double *h = e ? vptq_arena_alloc(&arena, (size_t)in * in, sizeof *h, err) : NULL;
    if (!h) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    unpack_lower(in, lower, h);
    for (size_t i = 0; i < n; i++)
        e[i] = what[i] - w[i];
    VPTQ_TRY(vptq_check_cancel(dev->ctx, err));
    VPTQ_TRY(dev->ops->quad_trace(dev->state, out, in, e, in, h, in, &loss->error, err));
    VPTQ_TRY(vptq_check_cancel(dev->ctx, err));
    VPTQ_TRY(dev->ops->quad_trace(dev->state, out, in, w, in, h, in, &loss->norm, err));
    loss->error_sq = squared_norm(n, e);
    loss->norm_sq = squared_norm(n, w);
    loss->relative = loss->norm > 0 ? loss->error / loss->norm : 0;
out:
    vptq_arena_release(&arena);
    return st;
}
