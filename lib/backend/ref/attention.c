/* Attention ops of the reference backend, over contiguous keys and values and over a paged
 * cache: one query and head at a time, in double.  In a page, a token's keys are a row of
 * [kv_heads * head_dim], and so are its values. */
#include <math.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/half.h"

/* First position that a query at position `last` sees. */
static size_t first_position(size_t window, size_t last)
{
    return window && last + 1 > window ? last + 1 - window : 0;
}

/* The score of a product of query and key. */
static double score_of(double product, float scale, float cap)
{
    const double s = product * (double)scale;
    return cap > 0 ? (double)cap * tanh(s / (double)cap) : s;
}

/* Replaces scores p[first..last] by exp(p - max) and returns their sum. */
static double exponentiate(double *p, size_t first, size_t last, double *max)
{
    double sum = 0;
    *max = -INFINITY;
    for (size_t j = first; j <= last; j++)
        *max = p[j] > *max ? p[j] : *max;
    for (size_t j = first; j <= last; j++) {
        p[j] = exp(p[j] - *max);
        sum += p[j];
    }
    return sum;
}

/* ---- contiguous keys and values ---- */

/* Fills p[first..last] with the unnormalized probabilities of one query and head, exp(score -
 * *max); returns their sum. */
static double weigh_keys(const vptq_attention_args *a, size_t query, size_t head, double *p,
                         double *max)
{
    const size_t d = a->head_dim, kv = head / (a->heads / a->kv_heads);
    const size_t last = a->pos0 + query, first = first_position(a->window, last);
    const float *q = a->q + query * a->ldq + head * d;
    for (size_t j = first; j <= last; j++) {
        const float *key = a->keys + j * a->ldk + kv * d;
        double s = 0;
        for (size_t i = 0; i < d; i++)
            s += (double)q[i] * (double)key[i];
        p[j] = score_of(s, a->scale, a->cap);
    }
    return exponentiate(p, first, last, max);
}

static void attend(const vptq_attention_args *a, size_t query, size_t head, double *p)
{
    const size_t d = a->head_dim, kv = head / (a->heads / a->kv_heads);
    const size_t last = a->pos0 + query, first = first_position(a->window, last);
    float *out = a->out + query * a->ldo + head * d;
    double max;
    const double sum = weigh_keys(a, query, head, p, &max);
    if (a->lse)
        a->lse[query * a->heads + head] = (float)(max + log(sum));
    for (size_t i = 0; i < d; i++) {
        double s = 0;
        for (size_t j = first; j <= last; j++)
            s += p[j] * (double)a->values[j * a->ldv + kv * d + i];
        out[i] = (float)(s / sum);
    }
}

vptq_status vptq_ref_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err)
{
    double *p = vptq_dev_scratch(dev, a->pos0 + a->n, sizeof *p, err);
    if (!p)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < a->n; i++)
        for (size_t h = 0; h < a->heads; h++)
            attend(a, i, h, p);
    return VPTQ_OK;
}

static void add_mass(const vptq_attention_args *a, size_t query, size_t head, double *p,
                     double *mass)
{
    const size_t last = a->pos0 + query, first = first_position(a->window, last);
    double max;
    const double sum = weigh_keys(a, query, head, p, &max);
    for (size_t j = first; j <= last; j++)
        mass[j] += p[j] / sum * (p[j] / sum);
}

vptq_status vptq_ref_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                    vptq_err *err)
{
    double *p = vptq_dev_scratch(dev, a->pos0 + a->n, sizeof *p, err);
    if (!p)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < a->n; i++)
        for (size_t h = 0; h < a->heads; h++)
            add_mass(a, i, h, p, mass);
    return VPTQ_OK;
}

/* ---- paged cache ---- */

/* Index of the first element of a token in the keys or values of the pool. */
static size_t token_at(const vptq_kv_rows *rows, const vptq_kv_pool *pool, size_t sequence,
                       size_t token)
{
    const size_t page = rows->table[sequence * rows->ld_table + token / VPTQ_KV_PAGE];
    return (page * VPTQ_KV_PAGE + token % VPTQ_KV_PAGE) * pool->kv_heads * pool->head_dim;
}

static void put(const vptq_kv_pool *pool, void *array, size_t at, const float *x)
{
    for (size_t i = 0; i < pool->kv_heads * pool->head_dim; i++)
        if (pool->type == VPTQ_F16)
            ((uint16_t *)array)[at + i] = vptq_f32_to_f16(x[i]);
        else
            ((float *)array)[at + i] = x[i];
}

static double get(const vptq_kv_pool *pool, const void *array, size_t at)
{
    return pool->type == VPTQ_F16 ? (double)vptq_f16_to_f32(((const uint16_t *)array)[at])
                                  : (double)((const float *)array)[at];
}

vptq_status vptq_ref_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t s = 0; s < a->rows->sequences; s++)
        for (size_t r = a->rows->starts[s]; r < a->rows->starts[s + 1]; r++) {
            const size_t at =
                token_at(a->rows, a->pool, s, a->rows->positions[s] + r - a->rows->starts[s]);
            put(a->pool, a->pool->keys, at, a->keys + r * a->ldk);
            put(a->pool, a->pool->values, at, a->values + r * a->ldv);
        }
    return VPTQ_OK;
}

/* One row and head of a sequence; p: scratch for its scores. */
static void attend_paged(const vptq_paged_args *a, size_t sequence, size_t row, size_t head,
                         double *p)
{
    const vptq_kv_pool *pool = a->pool;
    const size_t d = pool->head_dim, kv = head / (a->heads / pool->kv_heads);
    const size_t last = a->rows->positions[sequence] + row - a->rows->starts[sequence];
    const size_t first = first_position(a->window, last);
    const float *q = a->q + row * a->ldq + head * d;
    float *out = a->out + row * a->ldo + head * d;
    for (size_t j = first; j <= last; j++) {
        const size_t key = token_at(a->rows, pool, sequence, j) + kv * d;
        double s = 0;
        for (size_t i = 0; i < d; i++)
            s += (double)q[i] * get(pool, pool->keys, key + i);
        p[j] = score_of(s, a->scale, a->cap);
    }
    double max;
    const double sum = exponentiate(p, first, last, &max);
    for (size_t i = 0; i < d; i++) {
        double s = 0;
        for (size_t j = first; j <= last; j++)
            s += p[j] *
                 get(pool, pool->values, token_at(a->rows, pool, sequence, j) + kv * d + i);
        out[i] = (float)(s / sum);
    }
}

vptq_status vptq_ref_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err)
{
    double *p = vptq_dev_scratch(dev, a->rows->max_tokens, sizeof *p, err);
    if (!p)
        return VPTQ_E_NOMEM;
    for (size_t s = 0; s < a->rows->sequences; s++)
        for (size_t r = a->rows->starts[s]; r < a->rows->starts[s + 1]; r++)
            for (size_t h = 0; h < a->heads; h++)
                attend_paged(a, s, r, h, p);
    return VPTQ_OK;
}
