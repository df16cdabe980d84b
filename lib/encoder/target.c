/* Corrects the target of a matrix for the quantized layers before it, and chooses how much of
 * the correction to use. */
#include "lib/encoder/target.h"

#include <string.h>

#include "hessian/hessian.h"
#include "lib/encoder/encoder.h"

enum { ALPHA_STEPS = 4 }; /* alpha is a multiple of 1 / ALPHA_STEPS */

/* a [in, in] = H + ridge I, lower triangle. */
static void add_ridge(uint32_t in, const float *lower, double ridge, double *a)
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

/* c [out, in] = a [out, in] * op(b) [in, in]. */
static vptq_status product(vptq_device *dev, uint32_t out, uint32_t in, const float *a,
                           const float *b, bool trans_b, float *c, vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(dev);
    const vptq_gemm_args g = {
        .m = out,
        .n = in,
        .k = in,
        .a = vptq_mirror_in(&m, a, (size_t)out * in, sizeof *a),
        .b = vptq_mirror_in(&m, b, (size_t)in * in, sizeof *b),
        .c = vptq_mirror_take(&m, c, (size_t)out * in, sizeof *c, VPTQ_MIRROR_DOWNLOAD),
        .lda = in,
        .ldb = in,
        .ldc = in,
        .trans_b = trans_b,
        .alpha = 1};
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->gemm(dev->state, &g, err);
    return vptq_mirror_end(&m, st, err);
}

/* r [out, in] = R. */
static vptq_status numerator(vptq_device *dev, const vptq_target_moments *m, float *r,
                             vptq_err *err)
{
    if (m->shift)
        return product(dev, m->out, m->in, m->w, m->shift, false, r, err);
    memcpy(r, m->drift, (size_t)m->out * m->in * sizeof *r);
    return VPTQ_OK;
}

/* With (H + ridge)^-1 = U^T U: delta = (R U^T) U. */
vptq_status vptq_target_delta(vptq_device *dev, const vptq_target_moments *m, double damping,
                              float *delta, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    const uint32_t out = m->out, in = m->in;
    double added;

    vptq_arena_init(&arena, dev->ctx->mem);
    double *a = vptq_arena_alloc(&arena, in, in * sizeof *a, err);
    float *u = a ? vptq_arena_alloc(&arena, in, in * sizeof *u, err) : NULL;
    float *work = u ? vptq_arena_alloc(&arena, out, in * sizeof *work, err) : NULL;
    if (!work)
        VPTQ_TRY(VPTQ_E_NOMEM);
    add_ridge(in, m->lower, damping * mean_diagonal(in, m->lower), a);
    VPTQ_TRY(vptq_hessian_factor(dev, in, a, damping, u, &added, err));
    VPTQ_TRY(numerator(dev, m, delta, err));
    VPTQ_TRY(product(dev, out, in, delta, u, true, work, err));
    VPTQ_TRY(product(dev, out, in, work, u, false, delta, err));
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_target_judge_make(vptq_device *dev, const vptq_target_moments *held_out,
                                   vptq_arena *arena, vptq_target_judge *j, vptq_err *err)
{
    const uint32_t out = held_out->out, in = held_out->in;

    *j = (vptq_target_judge){.out = out, .in = in};
    j->h = vptq_arena_alloc(arena, in, in * sizeof *j->h, err);
    j->r = j->h ? vptq_arena_alloc(arena, out, in * sizeof *j->r, err) : NULL;
    if (!j->r)
        return VPTQ_E_NOMEM;
    add_ridge(in, held_out->lower, 0, j->h);
    VPTQ_CHECK(vptq_encoder_trace(dev, out, in, held_out->w, j->h, &j->norm, err));
    return numerator(dev, held_out, j->r, err);
}

/* The error of W + alpha delta is, up to a constant,
 * alpha^2 tr(delta H~ delta^T) - 2 alpha tr(R delta^T). */
vptq_status vptq_target_choose(vptq_device *dev, const vptq_target_judge *j, const float *delta,
                               double max_alpha, vptq_target_choice *choice, vptq_err *err)
{
    double square, mixed = 0, best = 0;

    *choice = (vptq_target_choice){.alpha = 0};
    VPTQ_CHECK(vptq_encoder_trace(dev, j->out, j->in, delta, j->h, &square, err));
    for (size_t i = 0; i < (size_t)j->out * j->in; i++)
        mixed += (double)j->r[i] * (double)delta[i];
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

vptq_status vptq_target_find(vptq_device *dev, const vptq_target_moments *m,
                             const vptq_target_moments *held_out, double max_alpha,
                             float *target, vptq_target_choice *choice, vptq_err *err)
{
    static const double dampings[] = {0.01, 0.1, 1}; /* GPTQ's successors use 0.01 */
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    vptq_target_judge judge;
    const size_t count = (size_t)m->out * m->in;

    vptq_arena_init(&arena, dev->ctx->mem);
    *choice = (vptq_target_choice){.alpha = 0};
    memcpy(target, m->w, count * sizeof *target);
    float *delta = vptq_arena_alloc(&arena, count, sizeof *delta, err);
    if (!delta)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_target_judge_make(dev, held_out, &arena, &judge, err));
    for (size_t i = 0; i < sizeof dampings / sizeof *dampings; i++) {
        vptq_target_choice c;
        VPTQ_TRY(vptq_target_delta(dev, m, dampings[i], delta, err));
        VPTQ_TRY(vptq_target_choose(dev, &judge, delta, max_alpha, &c, err));
        if (!(c.gain > choice->gain))
            continue;
        *choice = c;
        choice->damping = dampings[i];
        vptq_target_apply(count, m->w, delta, c.alpha, target);
    }
out:
    vptq_arena_release(&arena);
    return st;
}
