/* Sums of second moments: adding tokens, dividing, pooling. */
#include "hessian/hessian.h"

#include <math.h>
#include <string.h>

#include "lib/base/comm.h"

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
    VPTQ_TRY(vptq_total_init(dev, vptq_triangle(n) + 2 * (size_t)n, &s->total, err));
    if (vptq_comm_size(dev->ctx) > 1) {
        s->range = vptq_mem_alloc(dev->ctx->mem, 2 * (size_t)n, sizeof *s->range, err);
        st = s->range ? VPTQ_OK : VPTQ_E_NOMEM;
    }
    vptq_hessian_sum_clear(s);
out:
    if (st) {
        vptq_err_context(err, "a hessian of %u columns", n);
        vptq_hessian_sum_release(s);
    }
    return st;
}

size_t vptq_hessian_sum_bytes(const vptq_device *dev, uint32_t n)
{
    const size_t row = 2 * sizeof(double) + 3 * sizeof(float);
    const size_t own = dev->ops->host_memory ? n * ((size_t)n * sizeof(double) + row) : 0;
    return own + vptq_total_bytes(dev, vptq_triangle(n) + 2 * (size_t)n);
}

void vptq_hessian_sum_clear(vptq_hessian_sum *s)
{
    s->clear = true;
    s->tokens = 0;
    vptq_total_clear(&s->total, vptq_triangle(s->n) + 2 * (size_t)s->n);
}

void vptq_hessian_sum_release(vptq_hessian_sum *s)
{
    if (!s->dev)
        return;
    s->dev->ops->release(s->dev->state, s->h);
    s->dev->ops->release(s->dev->state, s->x);
    vptq_total_release(&s->total);
    vptq_mem_free(s->dev->ctx->mem, s->range);
    *s = (vptq_hessian_sum){0};
}

/* Begins a chunk unless there is one. */
static vptq_status open_chunk(vptq_hessian_sum *s, vptq_err *err)
{
    const size_t row = s->n * sizeof(double);
    if (!s->clear)
        return VPTQ_OK;
    VPTQ_CHECK(s->dev->ops->clear(s->dev->state, s->h, s->n * row, err));
    VPTQ_CHECK(s->dev->ops->clear(s->dev->state, s->x, 2 * row, err)); /* abs_x, too */
    s->clear = false;
    return VPTQ_OK;
}

static vptq_status add(vptq_hessian_sum *s, size_t t, const float *x, const float *w,
                       uint64_t tokens, vptq_err *err)
{
    vptq_device *dev = s->dev;
    VPTQ_CHECK(open_chunk(s, err));
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
                                     .first = s->clear && (s->total.clear || s->range),
                                     .abs_sum = s->abs_x,
                                     .min = s->min,
                                     .max = s->max};
    VPTQ_CHECK(open_chunk(s, err));
    VPTQ_CHECK(s->dev->ops->channel_range(s->dev->state, &range, err));
    return add(s, t, x, NULL, t, err);
}

vptq_status vptq_hessian_sum_add_window(vptq_hessian_sum *s, size_t t, const float *x,
                                        const float *w, vptq_err *err)
{
    return add(s, t, x, w, 1, err);
}

/* ---- chunks ---- */

/* The range after that of one more chunk. */
static void widen(size_t n, const float *chunk, bool first, float *range)
{
    for (size_t j = 0; j < n; j++) {
        const float lo = chunk[j], hi = chunk[n + j];
        range[j] = first || lo < range[j] ? lo : range[j];
        range[n + j] = first || hi > range[n + j] ? hi : range[n + j];
    }
}

/* Gives all ranks the ranges of the chunks of a round, `all` [parts, 2 n]: as the bits of the
 * numbers, since sums with zeros would lose the sign of a zero. */
static vptq_status gather_ranges(vptq_hessian_sum *s, int parts, bool empty, double *own,
                                 double *all, float *range, vptq_err *err)
{
    const size_t n = 2 * (size_t)s->n, rank = (size_t)vptq_comm_rank(s->dev->ctx);
    uint32_t bits;
    const bool mine = rank < (size_t)parts;

    for (size_t j = 0; empty && j < n; j++) /* widens no range */
        range[j] = j < s->n ? INFINITY : -INFINITY;
    if (mine && !empty)
        VPTQ_CHECK(s->dev->ops->download(s->dev->state, range, s->min, n * sizeof *range, err));
    for (size_t j = 0; mine && j < n; j++) {
        memcpy(&bits, range + j, sizeof bits);
        own[rank * n + j] = bits;
    }
    return vptq_comm_sum(s->dev->ctx, parts, mine ? own : NULL, all, (size_t)parts * n, err);
}

/* Several ranks: widens the range by the chunks of a round, in their order. */
static vptq_status share_range(vptq_hessian_sum *s, int parts, bool empty, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t n = 2 * (size_t)s->n, count = (size_t)parts * n;
    vptq_arena arena;

    vptq_arena_init(&arena, s->dev->ctx->mem);
    double *own = vptq_arena_zalloc(&arena, count, sizeof *own, err);
    double *all = own ? vptq_arena_zalloc(&arena, count, sizeof *all, err) : NULL;
    float *range = all ? vptq_arena_alloc(&arena, n, sizeof *range, err) : NULL;
    if (!range)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(gather_ranges(s, parts, empty, own, all, range, err));
    for (int p = 0; p < parts; p++) {
        for (size_t j = 0; j < n; j++) {
            const uint32_t bits = (uint32_t)all[(size_t)p * n + j];
            memcpy(range + j, &bits, sizeof bits);
        }
        widen(s->n, range, s->total.clear && p == 0, s->range);
    }
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_hessian_sum_share(vptq_hessian_sum *s, int parts, vptq_err *err)
{
    const size_t n = s->n;
    const bool empty = s->clear, mine = vptq_comm_rank(s->dev->ctx) < parts;
    if (empty && !s->total.shared)
        return VPTQ_OK;
    if (mine) {
        VPTQ_CHECK(open_chunk(s, err)); /* zeros, if no token reached an expert */
        VPTQ_CHECK(vptq_total_add(&s->total, 0, n, n, true, s->h, err));
        VPTQ_CHECK(vptq_total_add(&s->total, vptq_triangle(n), 1, 2 * n, false, s->x, err));
    }
    if (s->range && !s->term)
        VPTQ_CHECK(share_range(s, parts, empty, err));
    s->clear = true;
    return vptq_total_share(&s->total, parts, err);
}

vptq_status vptq_hessian_sum_end(vptq_hessian_sum *s, uint64_t tokens, vptq_err *err)
{
    s->tokens = tokens;
    if (s->range && !s->term)
        VPTQ_CHECK(s->dev->ops->upload(s->dev->state, s->min, s->range,
                                       2 * (size_t)s->n * sizeof *s->range, err));
    return vptq_total_finish(&s->total, err);
}

/* ---- results ---- */

/* y [count] = x divided, in host memory; `step` of them at a time through `there`, device
 * memory, or at once on a host device, which has none. */
static vptq_status divide(const vptq_hessian_sum *s, size_t count, const double *x, size_t step,
                          float *there, float *y, vptq_err *err)
{
    vptq_device *dev = s->dev;
    for (size_t i = 0, n; i < count; i += n) {
        n = there && step < count - i ? step : count - i;
        const vptq_narrow_args a = {
            .n = n, .divisor = (double)s->tokens, .x = x + i, .y = there ? there : y + i};
        VPTQ_CHECK(dev->ops->narrow(dev->state, &a, err));
        if (there)
            VPTQ_CHECK(dev->ops->download(dev->state, y + i, there, n * sizeof *y, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_hessian_sum_finish(const vptq_hessian_sum *s, float *lower, float *mean,
                                    vptq_err *err)
{
    enum { DOWNLOAD_FLOATS = 2 << 20 }; /* at a time; each waits for the device */
    vptq_device *dev = s->dev;
    const size_t entries = vptq_triangle(s->n);
    const size_t step = entries < DOWNLOAD_FLOATS ? entries : (size_t)DOWNLOAD_FLOATS;
    const double *sum = s->total.sum;
    void *there = NULL;
    vptq_status st = VPTQ_OK;
    if (!s->tokens)
        return vptq_fail(err, VPTQ_E_ARG, "no tokens went into the hessian");
    if (!dev->ops->host_memory)
        VPTQ_TRY(dev->ops->alloc(dev->state, step, sizeof(float), &there, err));
    VPTQ_TRY(divide(s, entries, sum, step, there, lower, err));
    VPTQ_TRY(divide(s, s->n, sum + entries, step, there, mean, err));
out:
    dev->ops->release(dev->state, there);
    return st;
}

vptq_status vptq_hessian_sum_range(const vptq_hessian_sum *s, float *abs_mean, float *min,
                                   float *max, vptq_err *err)
{
    const vptq_backend *ops = s->dev->ops;
    vptq_dev *dev = s->dev->state;
    const size_t bytes = s->n * sizeof(float);
    const vptq_narrow_args means = {.n = s->n,
                                    .divisor = (double)s->tokens,
                                    .x = s->total.sum + vptq_triangle(s->n) + s->n,
                                    .y = s->abs_mean};
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
