/* Sums of second moments: adding tokens, dividing, pooling. */
#include "hessian/hessian.h"

#include <math.h>

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
    VPTQ_TRY(dev->ops->alloc(dev->state, n, 2 * sizeof(double) + 3 * sizeof(float), &p, err));
    s->x = p;
    s->abs_x = s->x + n;
    p = s->abs_x + n;
    s->min = p;
    s->max = s->min + n;
    s->abs_mean = s->max + n;
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
    const vptq_channel_args range = {.tokens = t,
                                     .n = s->n,
                                     .x = x,
                                     .ldx = s->n,
                                     .first = s->clear,
                                     .abs_sum = s->abs_x,
                                     .min = s->min,
                                     .max = s->max};
    VPTQ_CHECK(s->dev->ops->channel_range(s->dev->state, &range, err));
    return add(s, t, x, NULL, t, err);
}

vptq_status vptq_hessian_sum_add_window(vptq_hessian_sum *s, size_t t, const float *x,
                                        const float *w, vptq_err *err)
{
    return add(s, t, x, w, 1, err);
}

/* The divided lower triangle, `step` rows at a time through packed, device memory that holds
 * the last of them; at once on a host device, which has none. */
static vptq_status finish_lower(const vptq_hessian_sum *s, size_t step, float *packed,
                                float *lower, vptq_err *err)
{
    vptq_device *dev = s->dev;
    vptq_lower_args a = {.n = s->n, .a = s->h, .divisor = (double)s->tokens};
    for (; a.first < a.n; a.first += a.rows) {
        const size_t left = a.n - a.first;
        a.rows = packed && step < left ? step : left;
        a.packed = packed ? packed : lower;
        const size_t entries = a.rows * (2 * a.first + a.rows + 1) / 2;
        VPTQ_CHECK(dev->ops->pack_lower(dev->state, &a, err));
        if (packed)
            VPTQ_CHECK(
                dev->ops->download(dev->state, lower, packed, entries * sizeof *packed, err));
        lower += entries;
    }
    return VPTQ_OK;
}

vptq_status vptq_hessian_sum_finish(const vptq_hessian_sum *s, float *lower, float *mean,
                                    vptq_err *err)
{
    enum { DOWNLOAD_FLOATS = 4 << 20 }; /* at a time, about; each waits for the device */
    vptq_device *dev = s->dev;
    const size_t fit = DOWNLOAD_FLOATS / s->n + 1, step = fit < s->n ? fit : s->n;
    vptq_narrow_args means = {.n = s->n, .divisor = (double)s->tokens, .x = s->x};
    void *packed = NULL;
    vptq_status st = VPTQ_OK;
    if (!s->tokens)
        return vptq_fail(err, VPTQ_E_ARG, "no tokens went into the hessian");
    if (!dev->ops->host_memory)
        VPTQ_TRY(dev->ops->alloc(dev->state, step * s->n, sizeof(float), &packed, err));
    VPTQ_TRY(finish_lower(s, step, packed, lower, err));
    means.y = packed ? packed : mean;
    VPTQ_TRY(dev->ops->narrow(dev->state, &means, err));
    if (packed)
        VPTQ_TRY(dev->ops->download(dev->state, mean, packed, s->n * sizeof *mean, err));
out:
    dev->ops->release(dev->state, packed);
    return st;
}

vptq_status vptq_hessian_sum_range(const vptq_hessian_sum *s, float *abs_mean, float *min,
                                   float *max, vptq_err *err)
{
    const vptq_backend *ops = s->dev->ops;
    vptq_dev *dev = s->dev->state;
    const size_t bytes = s->n * sizeof(float);
    const vptq_narrow_args means = {
        .n = s->n, .divisor = (double)s->tokens, .x = s->abs_x, .y = s->abs_mean};
    if (!s->tokens)
        return vptq_fail(err, VPTQ_E_ARG, "no tokens went into the hessian");
    VPTQ_CHECK(ops->narrow(dev, &means, err));
    VPTQ_CHECK(ops->download(dev, abs_mean, s->abs_mean, bytes, err));
    VPTQ_CHECK(ops->download(dev, min, s->min, bytes, err));
    return ops->download(dev, max, s->max, bytes, err);
}

vptq_linear vptq_term_of(vptq_token_weights kind, vptq_linear l)
{
    const bool kv = l == VPTQ_LINEAR_K || l == VPTQ_LINEAR_V;
    switch (kind) {
    case VPTQ_WEIGHTS_SINK:
    case VPTQ_WEIGHTS_ATTENTION:
        return kv ? VPTQ_LINEAR_K : VPTQ_LINEAR_NONE;
    case VPTQ_WEIGHTS_GUIDED:
        return l;
    default:
        return VPTQ_LINEAR_NONE;
    }
}

const char *vptq_term_name(vptq_token_weights kind, vptq_linear term)
{
    static const char *const guided[VPTQ_LINEAR_DENSE] = {
        "guided_q",    "guided_k",  "guided_v",   "guided_o",
        "guided_gate", "guided_up", "guided_down"};
    return kind == VPTQ_WEIGHTS_GUIDED ? guided[term] : "kv";
}

void vptq_term_mix(vptq_token_weights kind, double factor, size_t n, const float *plain,
                   const float *term, float *mixed)
{
    const double keep = kind == VPTQ_WEIGHTS_GUIDED ? 1 - factor : 1;
    for (size_t i = 0; i < n; i++)
        mixed[i] = (float)(keep * (double)plain[i] + factor * (double)term[i]);
}

vptq_status vptq_term_check(vptq_token_weights kind, double factor, vptq_err *err)
{
    if (!(factor >= 0 && isfinite(factor)))
        return vptq_fail(
            err, VPTQ_E_ARG,
            "the factor of token weights is %g, expected zero or a positive number", factor);
    if (kind == VPTQ_WEIGHTS_GUIDED && factor > 1)
        return vptq_fail(err, VPTQ_E_ARG, "the factor of guided weights is %g, expected 0 to 1",
                         factor);
    return VPTQ_OK;
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

bool vptq_hessian_pool_range(const vptq_hessian_file *parts, size_t count, float *abs_mean,
                             float *min, float *max)
{
    uint64_t total = 0;
    for (size_t g = 0; g < count; g++) {
        if (!parts[g].abs_mean)
            return false;
        total += parts[g].tokens;
    }
    for (size_t i = 0; i < parts[0].n; i++) {
        double sum = 0;
        min[i] = parts[0].min[i];
        max[i] = parts[0].max[i];
        for (size_t g = 0; g < count; g++) {
            sum += (double)parts[g].tokens * (double)parts[g].abs_mean[i];
            min[i] = parts[g].min[i] < min[i] ? parts[g].min[i] : min[i];
            max[i] = parts[g].max[i] > max[i] ? parts[g].max[i] : max[i];
        }
        abs_mean[i] = (float)(sum / (double)total);
    }
    return true;
}
