/* Sums of second moments: adding tokens, dividing, pooling. */
#include "hessian/hessian.h"

vptq_status vptq_hessian_sum_init(vptq_device *dev, uint32_t n, vptq_hessian_sum *s,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    void *p = NULL;
    size_t square;

    *s = (vptq_hessian_sum){.dev = dev, .n = n, .clear = true};
    if (!vptq_size_mul(n, n, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         n);
    VPTQ_TRY(dev->ops->alloc(dev->state, square, sizeof(double), &p, err));
    s->h = p;
    VPTQ_TRY(dev->ops->alloc(dev->state, n, sizeof(double), &p, err));
    s->x = p;
out:
    if (st) {
        vptq_err_context(err, "a hessian of %u columns", n);
        vptq_hessian_sum_release(s);
    }
    return st;
}

void vptq_hessian_sum_clear(vptq_hessian_sum *s)
{
    s->clear = true;
    s->tokens = 0;
}

void vptq_hessian_sum_release(vptq_hessian_sum *s)
{
    if (!s->dev)
        return;
    s->dev->ops->release(s->dev->state, s->h);
    s->dev->ops->release(s->dev->state, s->x);
    *s = (vptq_hessian_sum){0};
}

static vptq_status add(vptq_hessian_sum *s, size_t t, const float *x, const float *w,
                       uint64_t tokens, vptq_err *err)
{
    vptq_device *dev = s->dev;
    if (s->clear) {
        const size_t row = s->n * sizeof(double);
        VPTQ_CHECK(dev->ops->clear(dev->state, s->h, s->n * row, err));
        VPTQ_CHECK(dev->ops->clear(dev->state, s->x, row, err));
        s->clear = false;
    }
    VPTQ_CHECK(dev->ops->syrk_add(
        dev->state,
        &(vptq_syrk_args){
            .tokens = t, .n = s->n, .x = x, .ldx = s->n, .w = w, .h = s->h, .sum = s->x},
        err));
    s->tokens += tokens;
    return VPTQ_OK;
}

vptq_status vptq_hessian_sum_add(vptq_hessian_sum *s, size_t t, const float *x, vptq_err *err)
{
    return add(s, t, x, NULL, t, err);
}

vptq_status vptq_hessian_sum_add_window(vptq_hessian_sum *s, size_t t, const float *x,
                                        const float *w, vptq_err *err)
{
    return add(s, t, x, w, 1, err);
}

/* Rows [first, first + n) of the sum, in host memory: in `buffer` unless they are there. */
static vptq_status sum_rows(const vptq_hessian_sum *s, size_t first, size_t n, double *buffer,
                            const double **rows, vptq_err *err)
{
    const double *from = s->h + first * s->n;
    *rows = buffer ? buffer : from;
    return buffer ? s->dev->ops->download(s->dev->state, buffer, from,
                                          n * s->n * sizeof *buffer, err)
                  : VPTQ_OK;
}

/* As vptq_hessian_sum_finish; downloads `step` rows at a time into buffer [step, n], which is
 * NULL on a host device. */
static vptq_status finish(const vptq_hessian_sum *s, size_t step, double *buffer, float *lower,
                          float *mean, vptq_err *err)
{
    const double t = (double)s->tokens;
    const size_t n = s->n;
    const double *rows, *x = buffer ? buffer : s->x;
    for (size_t first = 0, count; first < n; first += count) {
        count = n - first < step ? n - first : step;
        VPTQ_CHECK(sum_rows(s, first, count, buffer, &rows, err));
        for (size_t i = first; i < first + count; i++, rows += n)
            for (size_t j = 0; j <= i; j++)
                *lower++ = (float)(rows[j] / t);
    }
    if (buffer)
        VPTQ_CHECK(s->dev->ops->download(s->dev->state, buffer, s->x, n * sizeof *buffer, err));
    for (size_t i = 0; i < n; i++)
        mean[i] = (float)(x[i] / t);
    return VPTQ_OK;
}

vptq_status vptq_hessian_sum_finish(const vptq_hessian_sum *s, float *lower, float *mean,
                                    vptq_err *err)
{
    enum { DOWNLOAD_DOUBLES = 4 << 20 }; /* at a time; each download waits for the device */
    const size_t fit = DOWNLOAD_DOUBLES / s->n + 1, step = fit < s->n ? fit : s->n;
    double *buffer = NULL;
    if (!s->tokens)
        return vptq_fail(err, VPTQ_E_ARG, "no tokens went into the hessian");
    if (!s->dev->ops->host_memory) {
        buffer = vptq_mem_alloc(s->dev->ctx->mem, step, s->n * sizeof *buffer, err);
        if (!buffer)
            return VPTQ_E_NOMEM;
    }
    const vptq_status st = finish(s, step, buffer, lower, mean, err);
    vptq_mem_free(s->dev->ctx->mem, buffer);
    return st;
}

void vptq_hessian_mix(size_t n, const float *plain, const float *term, double factor,
                      float *mixed)
{
    for (size_t i = 0; i < n * (n + 1) / 2; i++)
        mixed[i] = (float)((double)plain[i] + factor * (double)term[i]);
}

/* out[i] = sum_g t_g part_g[i] / total, in the order given. */
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
    if (!counts)
        VPTQ_TRY(VPTQ_E_NOMEM);
    uint64_t total = 0;
    *tokens = 0;
    for (size_t g = 0; g < count; g++) {
        if (parts[g].n != parts[0].n)
            VPTQ_TRY(vptq_fail(err, VPTQ_E_SHAPE,
                               "hessians of %u and %u columns cannot be pooled", parts[0].n,
                               parts[g].n));
        lowers[g] = parts[g].lower;
        means[g] = parts[g].mean;
        counts[g] = parts[g].kind ? parts[g].windows : parts[g].tokens;
        total += counts[g];
        *tokens += parts[g].tokens;
        if (total > INT64_MAX || *tokens > INT64_MAX)
            VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                               "the hessians to pool claim more than 2^63 tokens"));
    }
    if (!total)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT, "no tokens in the hessians to pool"));
    size_t n = parts[0].n;
    pool(count, n * (n + 1) / 2, lowers, counts, (double)total, lower);
    pool(count, n, means, counts, (double)total, mean);
out:
    vptq_arena_release(&arena);
    return st;
}
