/* Corrects the target of a matrix for the quantized layers before it, and chooses how much of
 * the correction to use. */
#include "lib/encoder/target.h"

#include <string.h>

#include "hessian/hessian.h"
#include "lib/encoder/encoder.h"

enum { ALPHA_STEPS = 4 }; /* alpha is a multiple of 1 / ALPHA_STEPS */

/* c [out, in] = a [out, in] * op(b) [in, in]. */
static vptq_status product(vptq_device *dev, const vptq_target_moments *m, const float *a,
                           const float *b, bool trans_b, float *c, vptq_err *err)
{
    const vptq_gemm_args g = {.m = m->out,
                              .n = m->in,
                              .k = m->in,
                              .a = a,
                              .b = b,
                              .c = c,
                              .lda = m->in,
                              .ldb = m->in,
                              .ldc = m->in,
                              .trans_b = trans_b,
                              .alpha = 1};
    return dev->ops->gemm(dev->state, &g, err);
}

/* r [out, in] = R. */
static vptq_status numerator(vptq_device *dev, const vptq_target_moments *m, float *r,
                             vptq_err *err)
{
    if (m->shift)
        return product(dev, m, m->w, m->shift, false, r, err);
    return dev->ops->copy(dev->state, r, m->drift, (size_t)m->out * m->in * sizeof *r, err);
}

/* With (H + ridge)^-1 = U^T U: delta = (R U^T) U. */
vptq_status vptq_target_delta(vptq_device *dev, const vptq_target_moments *m, double damping,
                              float *delta, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror arrays = vptq_mirror_of(dev);
    const uint32_t out = m->out, in = m->in;
    vptq_metric_args metric = {.n = in, .lower = m->lower, .divisor = 1};
    float *u = vptq_mirror_alloc(&arrays, in, in * sizeof *u);
    float *work = vptq_mirror_alloc(&arrays, out, in * sizeof *work);
    double added, mean;

    VPTQ_TRY(vptq_mirror_check(&arrays, err));
    VPTQ_TRY(vptq_hessian_mean_diagonal(dev, &metric, &mean, err));
    metric.ridge = damping * mean;
    VPTQ_TRY(vptq_hessian_factor(dev, &metric, damping, u, &added, err));
    VPTQ_TRY(numerator(dev, m, delta, err));
    VPTQ_TRY(product(dev, m, delta, u, true, work, err));
    VPTQ_TRY(product(dev, m, work, u, false, delta, err));
out:
    return vptq_mirror_end(&arrays, st, err);
}

vptq_status vptq_target_judge_make(vptq_device *dev, const vptq_target_moments *held_out,
                                   vptq_mirror *arrays, vptq_target_judge *j, vptq_err *err)
{
    const uint32_t out = held_out->out, in = held_out->in;

    *j = (vptq_target_judge){.out = out, .in = in, .lower = held_out->lower};
    j->r = vptq_mirror_alloc(arrays, out, in * sizeof *j->r);
    VPTQ_CHECK(vptq_mirror_check(arrays, err));
    VPTQ_CHECK(vptq_hessian_trace(dev, out, in, held_out->w, j->lower, &j->norm, err));
    return numerator(dev, held_out, j->r, err);
}

/* The error of W + alpha delta is, up to a constant,
 * alpha^2 tr(delta H~ delta^T) - 2 alpha tr(R delta^T). */
vptq_status vptq_target_choose(vptq_device *dev, const vptq_target_judge *j, const float *delta,
                               double max_alpha, vptq_target_choice *choice, vptq_err *err)
{
    double square, mixed, best = 0;

    *choice = (vptq_target_choice){.alpha = 0};
    VPTQ_CHECK(vptq_hessian_trace(dev, j->out, j->in, delta, j->lower, &square, err));
    VPTQ_CHECK(vptq_encoder_inner(dev, (size_t)j->out * j->in, j->r, delta, &mixed, err));
    for (int i = 1; i <= ALPHA_STEPS; i++) {
        const double alpha = (double)i / ALPHA_STEPS;
        const double error = alpha * (alpha * square - 2 * mixed);
        if (alpha <= max_alpha && error < best) {
            best = error;
            choice->alpha = alpha;
        }
    }
    choice->gain = j->norm > 0 ? (0 - best) / j->norm : 0; /* not -best: that would give -0 */
    return VPTQ_OK;
}

void vptq_target_apply(size_t count, const float *w, const float *delta, double alpha,
                       float *target)
{
    for (size_t i = 0; i < count; i++)
        target[i] = alpha == 0 ? w[i] : (float)((double)w[i] + alpha * (double)delta[i]);
}

/* The moments with their arrays on the device. */
static vptq_target_moments mirrored(vptq_mirror *arrays, const vptq_target_moments *m)
{
    const size_t in = m->in, n = m->out * in;
    vptq_target_moments on = *m;
    on.w = vptq_mirror_in(arrays, m->w, n, sizeof *m->w);
    on.lower = vptq_mirror_in(arrays, m->lower, vptq_triangle(in), sizeof *m->lower);
    on.shift = vptq_mirror_in(arrays, m->shift, in * in, sizeof *m->shift);
    on.drift = vptq_mirror_in(arrays, m->drift, n, sizeof *m->drift);
    return on;
}

vptq_status vptq_target_find(vptq_device *dev, const vptq_target_moments *m,
                             const vptq_target_moments *held_out, double max_alpha,
                             float *target, vptq_target_choice *choice, vptq_err *err)
{
    static const double dampings[] = {0.01, 0.1, 1}; /* GPTQ's successors use 0.01 */
    vptq_status st = VPTQ_OK;
    vptq_mirror arrays = vptq_mirror_of(dev);
    vptq_target_judge judge;
    const size_t count = (size_t)m->out * m->in, bytes = count * sizeof *target;

    *choice = (vptq_target_choice){.alpha = 0};
    memcpy(target, m->w, bytes);
    float *delta = vptq_mirror_alloc(&arrays, count, sizeof *delta);
    const vptq_target_moments on = mirrored(&arrays, m), held = mirrored(&arrays, held_out);
    VPTQ_TRY(vptq_mirror_check(&arrays, err));
    VPTQ_TRY(vptq_target_judge_make(dev, &held, &arrays, &judge, err));
    for (size_t i = 0; i < sizeof dampings / sizeof *dampings; i++) {
        vptq_target_choice c;
        VPTQ_TRY(vptq_target_delta(dev, &on, dampings[i], delta, err));
        VPTQ_TRY(vptq_target_choose(dev, &judge, delta, max_alpha, &c, err));
        if (!(c.gain > choice->gain))
            continue;
        *choice = c;
        choice->damping = dampings[i];
        VPTQ_TRY(dev->ops->download(dev->state, target, delta, bytes, err));
        vptq_target_apply(count, m->w, target, c.alpha, target);
    }
out:
    return vptq_mirror_end(&arrays, st, err);
}
