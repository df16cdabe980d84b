#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 16, BOTH = 2 };
typedef __m512 vf;

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

static inline uint32_t vf_greater(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

/* No branch on what was found: it could not be predicted. */
static inline size_t vf_append(uint32_t *list, float *score, size_t n, vf s, vf least,
                               uint32_t first)
{
    const __m512i iota =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 hit = _mm512_cmp_ps_mask(s, least, _CMP_GE_OQ);
    const __m512i here = _mm512_add_epi32(iota, _mm512_set1_epi32((int)first));
    _mm512_storeu_si512(list + n, _mm512_maskz_compress_epi32(hit, here));
    if (score)
        _mm512_storeu_ps(score + n, _mm512_maskz_compress_ps(hit, s));
    return n + (size_t)__builtin_popcount(hit);
}

/* 64 bytes become words in two registers, 8 of every 16 in each: y has them in that order. */
static inline void screen_block(const vf *s, float factor, int16_t *y, size_t b)
{
    const __m512i wide = _mm512_cvtps_epi32(_mm512_mul_ps(s[0], _mm512_set1_ps(factor)));
    const __m256i words = _mm512_cvtsepi32_epi16(wide);
    int16_t *to = y + b / 4 * 64 + b % 4 * 8;
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(words));
    _mm_storeu_si128((__m128i *)(void *)(to + 32), _mm256_extracti128_si256(words, 1));
}

static inline __m512i screen_sum(__m512i bytes, const int16_t *y, __m512i factor)
{
    return _mm512_adds_epi16(_mm512_mulhrs_epi16(bytes, factor), _mm512_loadu_si512(y));
}

static inline int32_t screen_max(const int8_t *t, const int16_t *y, size_t n, int32_t m)
{
    const __m512i zero = _mm512_setzero_si512(), factor = _mm512_set1_epi16((int16_t)m);
    __m512i low = _mm512_set1_epi16(INT16_MIN), high = low;
    for (size_t e = 0; e < n; e += 64) {
        const __m512i b = _mm512_loadu_si512(t + e);
        low = _mm512_max_epi16(low, screen_sum(_mm512_unpacklo_epi8(zero, b), y + e, factor));
        high = _mm512_max_epi16(high,
                                screen_sum(_mm512_unpackhi_epi8(zero, b), y + e + 32, factor));
    }
    low = _mm512_max_epi16(low, high);
    const __m256i half =
        _mm256_max_epi16(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64(low, 1));
    const __m128i part =
        _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(part, _mm_set1_epi16(INT16_MAX)));
    return (int16_t)(_mm_extract_epi16(least, 0) ^ INT16_MAX);
}

static inline size_t screen_list(const int8_t *t, const int16_t *y, size_t n, int32_t m,
                                 int32_t least, uint32_t *list)
{
    const __m512i zero = _mm512_setzero_si512(), factor = _mm512_set1_epi16((int16_t)m);
    const __m512i bound =
        _mm512_set1_epi16((int16_t)(least > INT16_MIN ? least : INT16_MIN + 1));
    size_t found = 0;
    for (size_t e = 0; e < n; e += 64) {
        const __m512i b = _mm512_loadu_si512(t + e);
        const __m512i low = screen_sum(_mm512_unpacklo_epi8(zero, b), y + e, factor);
        const __m512i high = screen_sum(_mm512_unpackhi_epi8(zero, b), y + e + 32, factor);
        uint64_t hit = _mm512_cmpge_epi16_mask(low, bound) |
                       (uint64_t)_mm512_cmpge_epi16_mask(high, bound) << 32;
        for (; hit; hit &= hit - 1) {
            const uint32_t l = (uint32_t)__builtin_ctzll(hit);
            list[found++] = (uint32_t)e + l % 32 / 8 * 16 + l / 32 * 8 + l % 8;
        }
    }
    return found;
}

#include "lib/backend/cpu/cluster_body.h"
#include "lib/backend/cpu/search_body.h"

const vptq_search_kernels vptq_search_kernels_avx512 = {search, search_cluster, search_main,
                                                        screen_row, around};
