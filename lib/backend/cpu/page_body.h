/* Scores and mixes of a page of the cache, part of the body of vptq_cpu_math: what is loaded of
 * a page, and converted, serves up to PAGE_HEADS query heads. */
#ifndef VPTQ_BACKEND_CPU_PAGE_BODY_H
#define VPTQ_BACKEND_CPU_PAGE_BODY_H

#include "lib/backend/backend.h"
#include "lib/base/half.h"

/* Accumulators are heads * vectors; those, one factor per head and a loaded vector fill the 16
 * registers of AVX2. */
enum {
    PAGE_HEADS = 3,
    PAGE_VECTORS = VPTQ_KV_PAGE / LANES < 4 ? VPTQ_KV_PAGE / LANES : 4,
    PAGE_STEP = PAGE_VECTORS * LANES
};

#define PAGE_INLINE static inline __attribute__((always_inline))

PAGE_INLINE vf page_load(bool half, const void *page, size_t at)
{
    return half ? vf_load_half((const uint16_t *)page + at) : vf_load((const float *)page + at);
}

/* Tokens [t0, t0 + PAGE_STEP) for `heads` <= PAGE_HEADS heads; constants where it is called. */
PAGE_INLINE void scores_block(bool half, size_t heads, size_t d, const float *q,
                              const void *keys, size_t t0, float *score, size_t ld)
{
    vf s[PAGE_HEADS][PAGE_VECTORS];
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECTORS; v++)
            s[h][v] = vf_set1(0);
    for (size_t i = 0; i < d; i++) {
        vf x[PAGE_HEADS];
#pragma GCC unroll 3
        for (size_t h = 0; h < heads; h++)
            x[h] = vf_set1(q[h * d + i]);
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECTORS; v++) {
            const vf k = page_load(half, keys, i * VPTQ_KV_PAGE + t0 + v * LANES);
#pragma GCC unroll 3
            for (size_t h = 0; h < heads; h++)
                s[h][v] = vf_fma(x[h], k, s[h][v]);
        }
    }
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECTORS; v++)
            vf_store(score + h * ld + t0 + v * LANES, s[h][v]);
}

PAGE_INLINE void scores_heads(bool half, size_t heads, size_t d, const float *q,
                              const void *keys, float *score, size_t ld)
{
    for (size_t t = 0; t < VPTQ_KV_PAGE; t += PAGE_STEP)
        scores_block(half, heads, d, q, keys, t, score, ld);
}

PAGE_INLINE void scores_all(bool half, size_t heads, size_t d, const float *q, const void *keys,
                            float *score, size_t ld)
{
    size_t h = 0;
    for (; h + PAGE_HEADS <= heads; h += PAGE_HEADS)
        scores_heads(half, PAGE_HEADS, d, q + h * d, keys, score + h * ld, ld);
    if (heads - h == 2)
        scores_heads(half, 2, d, q + h * d, keys, score + h * ld, ld);
    else if (heads - h == 1)
        scores_heads(half, 1, d, q + h * d, keys, score + h * ld, ld);
}

static void body_page_scores(bool half, size_t heads, size_t d, const float *q,
                             const void *keys, float *score, size_t ld)
{
    if (half)
        scores_all(true, heads, d, q, keys, score, ld);
    else
        scores_all(false, heads, d, q, keys, score, ld);
}

/* Dimensions [i0, i0 + vectors * LANES). */
PAGE_INLINE void mix_block(bool half, size_t heads, size_t vectors, size_t d, const float *p,
                           size_t ld, size_t first, size_t end, const void *values, size_t i0,
                           float *out)
{
    vf s[PAGE_HEADS][PAGE_VECTORS];
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++)
            s[h][v] = vf_load(out + h * d + i0 + v * LANES);
    for (size_t t = first; t < end; t++) {
        vf x[PAGE_HEADS];
#pragma GCC unroll 3
        for (size_t h = 0; h < heads; h++)
            x[h] = vf_set1(p[h * ld + t]);
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++) {
            const vf y = page_load(half, values, t * d + i0 + v * LANES);
#pragma GCC unroll 3
            for (size_t h = 0; h < heads; h++)
                s[h][v] = vf_fma(x[h], y, s[h][v]);
        }
    }
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++)
            vf_store(out + h * d + i0 + v * LANES, s[h][v]);
}

PAGE_INLINE void mix_heads(bool half, size_t heads, size_t d, const float *p, size_t ld,
                           size_t first, size_t end, const void *values, float *out)
{
    size_t i = 0;
    for (; i + PAGE_STEP <= d; i += PAGE_STEP)
        mix_block(half, heads, PAGE_VECTORS, d, p, ld, first, end, values, i, out);
    for (; i + LANES <= d; i += LANES)
        mix_block(half, heads, 1, d, p, ld, first, end, values, i, out);
    for (; i < d; i++)
        for (size_t h = 0; h < heads; h++)
            for (size_t t = first; t < end; t++) {
                const float y = half ? vptq_f16_to_f32(((const uint16_t *)values)[t * d + i])
                                     : ((const float *)values)[t * d + i];
                out[h * d + i] += p[h * ld + t] * y;
            }
}

PAGE_INLINE void mix_all(bool half, size_t heads, size_t d, const float *p, size_t ld,
                         size_t first, size_t end, const void *values, float *out)
{
    size_t h = 0;
    for (; h + PAGE_HEADS <= heads; h += PAGE_HEADS)
        mix_heads(half, PAGE_HEADS, d, p + h * ld, ld, first, end, values, out + h * d);
    if (heads - h == 2)
        mix_heads(half, 2, d, p + h * ld, ld, first, end, values, out + h * d);
    else if (heads - h == 1)
        mix_heads(half, 1, d, p + h * ld, ld, first, end, values, out + h * d);
}

static void body_page_mix(bool half, size_t heads, size_t d, const float *p, size_t ld,
                          size_t first, size_t end, const void *values, float *out)
{
    if (half)
        mix_all(true, heads, d, p, ld, first, end, values, out);
    else
        mix_all(false, heads, d, p, ld, first, end, values, out);
}

#endif
