/* Rows of the `ref` table over a cache in pages: a token's keys, [kv_heads * head_dim], are a
 * row of its page, and so are its values. */
#include <math.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/half.h"

/* Index of the first number of a token's row. */
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

/* Row `row` of a sequence, one head; p: room for its scores. */
static void attend(const vptq_paged_args *a, size_t sequence, size_t row, size_t head,
                   double *p)
{
    const vptq_kv_pool *pool = a->pool;
    const size_t d = pool->head_dim, kv = head / (a->heads / pool->kv_heads);
    const size_t last = a->rows->positions[sequence] + row - a->rows->starts[sequence];
    const size_t first = a->window && last + 1 > a->window ? last + 1 - a->window : 0;
    const float *q = a->q + row * a->ldq + head * d;
    float *out = a->out + row * a->ldo + head * d;
    double max = -INFINITY, sum = 0;
    for (size_t j = first; j <= last; j++) {
        const size_t key = token_at(a->rows, pool, sequence, j) + kv * d;
        double s = 0;
        for (size_t i = 0; i < d; i++)
            s += (double)q[i] * get(pool, pool->keys, key + i);
        p[j] = s * (double)a->scale;
        max = p[j] > max ? p[j] : max;
    }
    for (size_t j = first; j <= last; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
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
                attend(a, s, r, h, p);
    return VPTQ_OK;
}
