#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 8, BOTH = 1 };
typedef __m256 vf;

static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

static inline uint32_t vf_greater(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline size_t vf_append(uint32_t *list, float *score, size_t n, vf s, vf least,
                               uint32_t first)
{
    float lane[LANES];
    vf_store(lane, s);
    for (uint32_t hit = vf_at_least(s, least); hit; hit &= hit - 1) {
        const uint32_t l = (uint32_t)__builtin_ctz(hit);
        list[n] = first + l;
        if (score)
            score[n] = lane[l];
        n++;
    }
    return n;
}

/* 32 bytes become words in two registers, 8 of every 16 in each: y has them in that order. */
static inline void screen_block(const vf *s, float factor, int16_t *y, size_t b)
{
    int16_t *to = y + b / 2 * 32 + b % 2 * 8;
    for (size_t p = 0; p < 2; p++) {
        const __m256i wide = _mm256_cvtps_epi32(_mm256_mul_ps(s[p], _mm256_set1_ps(factor)));
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
        _mm_storeu_si128((__m128i *)(void *)(to + p * 16), words);
    }
}

static inline __m256i load_integers(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline __m256i screen_sum(__m256i bytes, const int16_t *y, __m256i factor)
{
    return _mm256_adds_epi16(_mm256_mulhrs_epi16(bytes, factor), load_integers(y));
}

static inline int32_t screen_max(const int8_t *t, const int16_t *y, size_t n, int32_t m)
{
    const __m256i zero = _mm256_setzero_si256(), factor = _mm256_set1_epi16((int16_t)m);
    __m256i low = _mm256_set1_epi16(INT16_MIN), high = low;
    for (size_t e = 0; e < n; e += 32) {
        const __m256i b = load_integers(t + e);
        low = _mm256_max_epi16(low, screen_sum(_mm256_unpacklo_epi8(zero, b), y + e, factor));
        high = _mm256_max_epi16(high,
                                screen_sum(_mm256_unpackhi_epi8(zero, b), y + e + 16, factor));
    }
    low = _mm256_max_epi16(low, high);
    const __m128i part =
        _mm_max_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(part, _mm_set1_epi16(INT16_MAX)));
    return (int16_t)(_mm_extract_epi16(least, 0) ^ INT16_MAX);
}

static inline size_t screen_list(const int8_t *t, const int16_t *y, size_t n, int32_t m,
                                 int32_t least, uint32_t *list)
{
    const __m256i zero = _mm256_setzero_si256(), factor = _mm256_set1_epi16((int16_t)m);
    const __m256i below =
        _mm256_set1_epi16((int16_t)(least > INT16_MIN ? least - 1 : INT16_MIN));
    size_t found = 0;
    for (size_t e = 0; e < n; e += 32) {
        const __m256i b = load_integers(t + e);
        const __m256i low = screen_sum(_mm256_unpacklo_epi8(zero, b), y + e, factor);
        const __m256i high = screen_sum(_mm256_unpackhi_epi8(zero, b), y + e + 16, factor);
        /* one bit per byte, of which both of a word agree, once words are packed to bytes */
        uint32_t hit = (uint32_t)_mm256_movemask_epi8(_mm256_packs_epi16(
            _mm256_cmpgt_epi16(low, below), _mm256_cmpgt_epi16(high, below)));
        for (; hit; hit &= hit - 1)
            list[found++] = (uint32_t)e + (uint32_t)__builtin_ctz(hit);
    }
    return found;
}

#include "lib/backend/cpu/cluster_body.h"
#include "lib/backend/cpu/search_body.h"

const vptq_search_kernels vptq_search_kernels_avx2 = {search, search_cluster, search_main,
                                                      screen_row, around};
