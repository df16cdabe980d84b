/* AVX-512: 32 vectors in the lanes of two registers per dimension, 4 centroids in flight. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/vq_kernels.h"
#include "lib/base/vq.h"

enum { LANES = 16, MAX_SETS = 2, STEP = 4 };

/* The functions below are compiled once per vector length: v is a constant where it matters. */
#define INLINE static inline __attribute__((always_inline))

/* Largest score per lane over the 16 centroids of block c. */
INLINE void best_of_block(const float *c, size_t v, size_t sets, const float *xt, __m512 *top)
{
    for (size_t s = 0; s < sets; s++)
        top[s] = _mm512_set1_ps(-INFINITY);
    for (size_t j = 0; j < VPTQ_CODEBOOK_LANES; j += STEP, c += STEP) {
        /* The compiler would hoist the loads of xt and c out of the loops and spill them. */
        __asm__("" : "+r"(xt), "+r"(c));
        __m512 score[STEP][MAX_SETS];
        for (size_t l = 0; l < STEP; l++)
            for (size_t s = 0; s < sets; s++)
                score[l][s] = _mm512_set1_ps(c[l]);
#pragma GCC unroll 16
        for (size_t d = 0; d < v; d++) {
            __m512 x[MAX_SETS];
            for (size_t s = 0; s < sets; s++)
                x[s] = _mm512_load_ps(xt + (d * sets + s) * LANES);
            for (size_t l = 0; l < STEP; l++) {
                __m512 cl = _mm512_set1_ps(c[(1 + d) * VPTQ_CODEBOOK_LANES + l]);
                for (size_t s = 0; s < sets; s++)
                    score[l][s] = _mm512_fmadd_ps(x[s], cl, score[l][s]);
            }
        }
        for (size_t l = 0; l < STEP; l++)
            for (size_t s = 0; s < sets; s++)
                top[s] = _mm512_max_ps(score[l][s], top[s]);
    }
}

/* First centroid of the block with exactly this score; 0 when no score was a number above
 * -infinity, which is also the score of the lanes past the last centroid. */
INLINE uint32_t find_in_block(const float *c, size_t v, const float *x, float wanted)
{
    __m512 score = _mm512_load_ps(c);
#pragma GCC unroll 16
    for (size_t d = 0; d < v; d++)
        score = _mm512_fmadd_ps(_mm512_set1_ps(x[d]),
                                _mm512_load_ps(c + (1 + d) * VPTQ_CODEBOOK_LANES), score);
    unsigned hit = _mm512_cmp_ps_mask(score, _mm512_set1_ps(wanted), _CMP_EQ_OQ);
    return hit && wanted > -INFINITY ? (uint32_t)__builtin_ctz(hit) : 0;
}

/* xt[d] = dimension d of the tile's vectors; lanes past `count` repeat the last one. */
INLINE void transpose(size_t v, size_t sets, size_t count, const float *x, float *xt)
{
    const __m512i iota =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i last = _mm512_set1_epi32((int)count - 1);
    for (size_t s = 0; s < sets; s++) {
        __m512i r = _mm512_add_epi32(iota, _mm512_set1_epi32((int)(s * LANES)));
        r = _mm512_mullo_epi32(_mm512_min_epi32(r, last), _mm512_set1_epi32((int)v));
        for (size_t d = 0; d < v; d++)
            _mm512_store_ps(xt + (d * sets + s) * LANES, _mm512_i32gather_ps(r, x + d, 4));
    }
}

/* `count` vectors, at most sets * LANES. */
INLINE void nearest_tile(const vptq_codebook *codebook, size_t v, size_t sets, size_t count,
                         const float *x, uint32_t *idx)
{
    const size_t stride = (1 + v) * VPTQ_CODEBOOK_LANES;
    _Alignas(64) float xt[VPTQ_VQ_MAX_V * MAX_SETS * LANES];
    transpose(v, sets, count, x, xt);

    __m512 best[MAX_SETS];
    __m512i where[MAX_SETS];
    for (size_t s = 0; s < sets; s++) {
        best[s] = _mm512_set1_ps(-INFINITY);
        where[s] = _mm512_setzero_si512();
    }
    for (size_t b = 0; b < codebook->blocks; b++) {
        __m512 top[MAX_SETS];
        best_of_block(codebook->data + b * stride, v, sets, xt, top);
        for (size_t s = 0; s < sets; s++) {
            __mmask16 better = _mm512_cmp_ps_mask(top[s], best[s], _CMP_GT_OQ);
            best[s] = _mm512_max_ps(top[s], best[s]);
            where[s] = _mm512_mask_mov_epi32(where[s], better, _mm512_set1_epi32((int)b));
        }
    }
    _Alignas(64) float score[MAX_SETS * LANES];
    _Alignas(64) uint32_t block[MAX_SETS * LANES];
    for (size_t s = 0; s < sets; s++) {
        _mm512_store_ps(score + s * LANES, best[s]);
        _mm512_store_si512(block + s * LANES, where[s]);
    }
    for (size_t r = 0; r < count; r++)
        idx[r] = block[r] * VPTQ_CODEBOOK_LANES +
                 find_in_block(codebook->data + block[r] * stride, v, x + r * v, score[r]);
}

INLINE void nearest(const vptq_codebook *codebook, size_t v, size_t n, const float *x,
                    uint32_t *idx)
{
    while (n > LANES) {
        size_t count = n < 2 * LANES ? n : 2 * LANES;
        nearest_tile(codebook, v, 2, count, x, idx);
        n -= count;
        x += count * v;
        idx += count;
    }
    if (n)
        nearest_tile(codebook, v, 1, n, x, idx);
}

static void nearest_avx512(const vptq_codebook *codebook, size_t n, const float *x,
                           uint32_t *idx)
{
    switch (codebook->v) {
    case 2:
        nearest(codebook, 2, n, x, idx);
        break;
    case 4:
        nearest(codebook, 4, n, x, idx);
        break;
    case 6:
        nearest(codebook, 6, n, x, idx);
        break;
    case 8:
        nearest(codebook, 8, n, x, idx);
        break;
    case 12:
        nearest(codebook, 12, n, x, idx);
        break;
    case 16:
        nearest(codebook, 16, n, x, idx);
        break;
    default:
        nearest(codebook, codebook->v, n, x, idx);
        break;
    }
}

static void eliminate_avx512(size_t count, const float *err, const float *u, size_t ldu,
                             float *z)
{
    __m512 a[VPTQ_PANEL / LANES];
    for (size_t l = 0; l < VPTQ_PANEL / LANES; l++)
        a[l] = _mm512_load_ps(z + l * LANES);
    for (size_t s = 0; s < count; s++, err += VPTQ_PANEL) {
        __m512 us = _mm512_set1_ps(u[s * ldu]);
        for (size_t l = 0; l < VPTQ_PANEL / LANES; l++)
            a[l] = _mm512_sub_ps(a[l], _mm512_mul_ps(_mm512_load_ps(err + l * LANES), us));
    }
    for (size_t l = 0; l < VPTQ_PANEL / LANES; l++)
        _mm512_store_ps(z + l * LANES, a[l]);
}

const vptq_vq_kernels vptq_vq_kernels_avx512 = {nearest_avx512, eliminate_avx512};
