/* Corrected targets and how much of the correction to use. */
#include "lib/quant/target.h"

#include "hessian/hessian.h"

enum { ALPHA_STEPS = 4 }; /* alpha is a multiple of 1 / ALPHA_STEPS */

/* a [in, in] lower triangle = H + ridge I */
static void widen(uint32_t in, const float *lower, double ridge, double *a)
{
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j <= i; j++)
            a[i * in + j] = (double)*lower++ + (i == j ? ridge : 0);
}

static double mean_diagonal(uint32_t in, const float *lower)
{
    double sum = 0;
    for (size_t i = 0; i < in; i++)
        sum += (double)lower[i * (i + 1) / 2 + i];
    return sum / in;
}

/* c [out, in] = a [out, in] * op(b) [in, in] */
static vptq_status product(vptq_device *dev, uint32_t out, uint32_t in, const float *a,
                           const float *b, bool trans_b, float *c, vptq_err *err)
{
    const vptq_gemm_args g = {.m = out,
                              .n = in,
                              .k = in,
                              .a = a,
                              .b = b,
                              .c = c,
                              .lda = in,
                              .ldb = in,
                              .ldc = in,
                              .trans_b = trans_b,
                              .alpha = 1};
    return dev->ops->gemm(dev->state, &g, err);
}

/* With (H + ridge)^-1 = U^T U: delta = ((W M) U^T) U. */
vptq_status vptq_target_delta(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                              const vptq_target_moments *m, double damping, float *delta,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    double added;

    vptq_arena_init(&arena, dev->ctx->mem);
    double *a = vptq_arena_alloc(&arena, in, in * sizeof *a, err);
    float *u = a ? vptq_arena_alloc(&arena, in, in * sizeof *u, err) : NULL;
    float *work = u ? vptq_arena_alloc(&arena, out, in * sizeof *work, err) : NULL;
    if (!work) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    widen(in, m->lower, damping * mean_diagonal(in, m->lower), a);
    VPTQ_TRY(vptq_hessian_factor(dev, in, a, damping, u, &added, err));
    VPTQ_TRY(product(dev, out, in, w, m->shift, false, delta, err));
    VPTQ_TRY(product(dev, out, in, delta, u, true, work, err));
    VPTQ_TRY(product(dev, out, in, work, u, false, delta, err));
out:
    vptq_arena_release(&arena);
    return st;
}

/* W_alpha x~ - W x = alpha delta x~ - W (x - x~), so the error is, but for a constant,
 * alpha^2 tr(delta H~ delta^T) - 2 alpha tr(W M delta^T). */
vptq_status vptq_target_choose(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                               const float *delta, const vptq_target_moments *held_out,
                               double most, vptq_target_choice *choice, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    double square, norm, mixed = 0, best = 0;

    *choice = (vptq_target_choice){.alpha = 0};
    vptq_arena_init(&arena, dev->ctx->mem);
    double *h = vptq_arena_alloc(&arena, in, in * sizeof *h, err);
    float *work = h ? vptq_arena_alloc(&arena, out, in * sizeof *work, err) : NULL;
    if (!work) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    widen(in, held_out->lower, 0, h);
    VPTQ_TRY(dev->ops->quad_trace(dev->state, out, in, delta, in, h, in, &square, err));
    VPTQ_TRY(dev->ops->quad_trace(dev->state, out, in, w, in, h, in, &norm, err));
    VPTQ_TRY(product(dev, out, in, w, held_out->shift, false, work, err));
    for (size_t i = 0; i < (size_t)out * in; i++)
        mixed += (double)work[i] * (double)delta[i];
    for (int i = 1; i <= ALPHA_STEPS; i++) {
        const double alpha = (double)i / ALPHA_STEPS;
        const double error = alpha * (alpha * square - 2 * mixed);
        if (alpha <= most && error < best) {
            best = error;
            choice->alpha = alpha;
        }
    }
    choice->gain = norm > 0 ? (0 - best) / norm : 0; /* no -0 */
out:
    vptq_arena_release(&arena);
    return st;
}

void vptq_target_apply(size_t count, const float *w, const float *delta, double alpha,
                       float *target)
{
    for (size_t i = 0; i < count; i++)
        target[i] = alpha == 0 ? w[i] : (float)((double)w[i] + alpha * (double)delta[i]);
}
