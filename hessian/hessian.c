/* Collecting, finishing and pooling second moments. */
#include "hessian/hessian.h"

#include <string.h>

vptq_status vptq_hessian_sum_init(vptq_device *dev, uint32_t n, vptq_hessian_sum *s,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    void *p = NULL;
    size_t square;

    *s = (vptq_hessian_sum){.n = n};
    if (!vptq_size_mul(n, n, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         n);
    VPTQ_TRY(dev->ops->alloc(dev->state, square, sizeof(double), &p, err));
    s->h = p;
    VPTQ_TRY(dev->ops->alloc(dev->state, n, sizeof(double), &p, err));
    s->x = p;
    vptq_hessian_sum_clear(s);
out:
    if (st)
        vptq_hessian_sum_release(dev, s);
    return st;
}

void vptq_hessian_sum_clear(vptq_hessian_sum *s)
{
    memset(s->h, 0, (size_t)s->n * s->n * sizeof *s->h);
    memset(s->x, 0, s->n * sizeof *s->x);
    s->tokens = 0;
}

void vptq_hessian_sum_release(vptq_device *dev, vptq_hessian_sum *s)
{
    dev->ops->release(dev->state, s->h);
    dev->ops->release(dev->state, s->x);
    *s = (vptq_hessian_sum){0};
}

vptq_status vptq_hessian_sum_add(vptq_device *dev, vptq_hessian_sum *s, size_t t,
                                 const float *x, size_t ldx, vptq_err *err)
{
    vptq_status st = dev->ops->syrk_add(dev->state, t, s->n, x, ldx, NULL, s->h, s->x, err);
    if (!st)
        s->tokens += t;
    return st;
}

vptq_status vptq_hessian_sum_add_window(vptq_device *dev, vptq_hessian_sum *s, size_t t,
                                        const float *x, size_t ldx, const float *w,
                                        vptq_err *err)
{
    vptq_status st = dev->ops->syrk_add(dev->state, t, s->n, x, ldx, w, s->h, s->x, err);
    if (!st)
        s->tokens++;
    return st;
}

vptq_status vptq_hessian_sum_finish(const vptq_hessian_sum *s, float *lower, float *mean,
                                    vptq_err *err)
{
    size_t n = s->n;

    if (!s->tokens)
        return vptq_fail(err, VPTQ_E_ARG, "no tokens went into the hessian");
    double t = (double)s->tokens;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j <= i; j++)
            *lower++ = (float)(s->h[i * n + j] / t);
        mean[i] = (float)(s->x[i] / t);
    }
    return VPTQ_OK;
}

void vptq_hessian_mix(size_t n, const float *plain, const float *term, double factor,
                      float *mixed)
{
    for (size_t i = 0; i < n * (n + 1) / 2; i++)
        mixed[i] = (float)((double)plain[i] + factor * (double)term[i]);
}

/* sum_g t_g part_g[i] / sum_g t_g, groups in the order given. */
static void pool(size_t count, size_t n, const float *const *parts, const uint64_t *tokens,
                 double total, float *out)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t g = 0; g < count; g++)
            sum += (double)tokens[g] * (double)parts[g][i];
        out[i] = (float)(sum / total);
    }
}

vptq_status vptq_hessian_pool(vptq_mem *mem, const vptq_hessian_file *parts, size_t count,
                              float *lower, float *mean, uint64_t *tokens, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;

    vptq_arena_init(&arena, mem);
    const float **lowers = vptq_arena_alloc(&arena, count, sizeof *lowers, err);
    const float **means = lowers ? vptq_arena_alloc(&arena, count, sizeof *means, err) : NULL;
    uint64_t *counts = means ? vptq_arena_alloc(&arena, count, sizeof *counts, err) : NULL;
    if (!counts) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    uint64_t total = 0;
    *tokens = 0;
    for (size_t g = 0; g < count; g++) {
        if (parts[g].n != parts[0].n) {
            st = vptq_fail(err, VPTQ_E_SHAPE, "hessians of %u and %u columns cannot be pooled",
                           parts[0].n, parts[g].n);
            goto out;
        }
        lowers[g] = parts[g].lower;
        means[g] = parts[g].mean;
        counts[g] = parts[g].kind ? parts[g].windows : parts[g].tokens;
        total += counts[g];
        *tokens += parts[g].tokens;
        if (total > INT64_MAX || *tokens > INT64_MAX) {
            st = vptq_fail(err, VPTQ_E_FORMAT,
                           "the hessians to pool claim more than 2^63 tokens");
            goto out;
        }
    }
    if (!total) {
        st = vptq_fail(err, VPTQ_E_FORMAT, "no tokens in the hessians to pool");
        goto out;
    }
    size_t n = parts[0].n;
    pool(count, n * (n + 1) / 2, lowers, counts, (double)total, lower);
    pool(count, n, means, counts, (double)total, mean);
out:
    vptq_arena_release(&arena);
    return st;
}
