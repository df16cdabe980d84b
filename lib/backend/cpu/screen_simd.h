/* Internal to search_simd.c: sums of small integers for screening pairs, a register of bytes at
 * a time.
 *
 * screen_block(s, factor, y, b): stores the 16 scores of residual block b as integers, rounded
 *     and saturated, in the order in which the other two read them.
 * screen_max(t, y, n, m): largest y + t * m / 128, rounded, over n (a multiple of 64) entries.
 * screen_list(t, y, n, m, least, list): lists in ascending order the entries for which that sum
 *     is at least `least`; returns their number. */
#ifndef VPTQ_BACKEND_CPU_SCREEN_SIMD_H
#define VPTQ_BACKEND_CPU_SCREEN_SIMD_H

#include "lib/backend/cpu/codebook_simd.h"

#if SIMD_X86

#if SIMD_512
typedef __m512i vi;
#define VI_OP(name) _mm512_##name
#else
typedef __m256i vi;
#define VI_OP(name) _mm256_##name
#endif

/* A register of bytes becomes two of words, 8 of every 16 bytes in each; y has that order. */
enum { BYTES = sizeof(vi), WORDS = BYTES / 2, RUNS = BYTES / 16 };

SIMD_INLINE vi load_integers(const void *p)
{
#if SIMD_512
    return _mm512_loadu_si512(p);
#else
    return _mm256_loadu_si256((const __m256i *)p);
#endif
}

SIMD_INLINE vi zero_integers(void)
{
    return VI_OP(set1_epi16)(0);
}

SIMD_INLINE void screen_block(const vf s[PARTS], float factor, int16_t *y, size_t b)
{
    int16_t *to = y + b / RUNS * BYTES + b % RUNS * 8;
    for (size_t p = 0; p < PARTS; p++) {
        const vi wide = VI_OP(cvtps_epi32)(vf_mul(s[p], vf_set1(factor)));
#if SIMD_512
        const __m256i words = _mm512_cvtsepi32_epi16(wide);
        _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(words));
        _mm_storeu_si128((__m128i *)(void *)(to + WORDS), _mm256_extracti128_si256(words, 1));
#else
        _mm_storeu_si128(
            (__m128i *)(void *)(to + p * WORDS),
            _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
#endif
    }
}

typedef struct screen_words {
    vi low, high;
} screen_words;

SIMD_INLINE vi screen_sum(vi bytes, const int16_t *y, vi factor)
{
    return VI_OP(adds_epi16)(VI_OP(mulhrs_epi16)(bytes, factor), load_integers(y));
}

SIMD_INLINE screen_words screen_sums(const int8_t *t, const int16_t *y, vi factor)
{
    const vi b = load_integers(t), zero = zero_integers();
    return (screen_words){screen_sum(VI_OP(unpacklo_epi8)(zero, b), y, factor),
                          screen_sum(VI_OP(unpackhi_epi8)(zero, b), y + WORDS, factor)};
}

static inline int32_t screen_max(const int8_t *t, const int16_t *y, size_t n, int32_t m)
{
    const vi factor = VI_OP(set1_epi16)((int16_t)m);
    vi low = VI_OP(set1_epi16)(INT16_MIN), high = low;
    for (size_t e = 0; e < n; e += BYTES) {
        const screen_words sum = screen_sums(t + e, y + e, factor);
        low = VI_OP(max_epi16)(low, sum.low);
        high = VI_OP(max_epi16)(high, sum.high);
    }
    low = VI_OP(max_epi16)(low, high);
#if SIMD_512
    const __m256i half =
        _mm256_max_epi16(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64(low, 1));
#else
    const __m256i half = low;
#endif
    const __m128i part =
        _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(part, _mm_set1_epi16(INT16_MAX)));
    return (int16_t)(_mm_extract_epi16(least, 0) ^ INT16_MAX);
}

static inline size_t screen_list(const int8_t *t, const int16_t *y, size_t n, int32_t m,
                                 int32_t least, uint32_t *list)
{
    const vi factor = VI_OP(set1_epi16)((int16_t)m);
    const vi below = VI_OP(set1_epi16)((int16_t)(least > INT16_MIN ? least - 1 : INT16_MIN));
    size_t found = 0;
    for (size_t e = 0; e < n; e += BYTES) {
        const screen_words sum = screen_sums(t + e, y + e, factor);
#if SIMD_512
        uint64_t hit = _mm512_cmpgt_epi16_mask(sum.low, below) |
                       (uint64_t)_mm512_cmpgt_epi16_mask(sum.high, below) << WORDS;
        for (; hit; hit &= hit - 1) {
            const uint32_t l = (uint32_t)__builtin_ctzll(hit);
            list[found++] = (uint32_t)e + l % 32 / 8 * 16 + l / 32 * 8 + l % 8;
        }
#else
        /* One bit per byte, in the order of the bytes, once words are packed again. */
        uint32_t hit = (uint32_t)_mm256_movemask_epi8(_mm256_packs_epi16(
            _mm256_cmpgt_epi16(sum.low, below), _mm256_cmpgt_epi16(sum.high, below)));
        for (; hit; hit &= hit - 1)
            list[found++] = (uint32_t)e + (uint32_t)__builtin_ctz(hit);
#endif
    }
    return found;
}

#elif VPTQ_SIMD_LEVEL == 3

enum { BYTES = 16, WORDS = BYTES / 2 };

SIMD_INLINE void screen_block(const vf s[PARTS], float factor, int16_t *y, size_t b)
{
    for (size_t p = 0; p < PARTS; p++) {
        const vf wide = vf_mul(s[p], vf_set1(factor));
        const int32x4_t whole = vbslq_s32(vceqq_f32(wide, wide), vcvtnq_s32_f32(wide),
                                          vdupq_n_s32(INT32_MIN)); /* for a NaN, as on x86 */
        vst1_s16(y + b * VPTQ_CODEBOOK_LANES + p * LANES, vqmovn_s32(whole));
    }
}

SIMD_INLINE int16x8_t screen_sum(int8x8_t bytes, const int16_t *y, int16x8_t factor)
{
    return vqaddq_s16(vqrdmulhq_s16(vshll_n_s8(bytes, 8), factor), vld1q_s16(y));
}

static inline int32_t screen_max(const int8_t *t, const int16_t *y, size_t n, int32_t m)
{
    const int16x8_t factor = vdupq_n_s16((int16_t)m);
    int16x8_t low = vdupq_n_s16(INT16_MIN), high = low;
    for (size_t e = 0; e < n; e += BYTES) {
        const int8x16_t bytes = vld1q_s8(t + e);
        low = vmaxq_s16(low, screen_sum(vget_low_s8(bytes), y + e, factor));
        high = vmaxq_s16(high, screen_sum(vget_high_s8(bytes), y + e + WORDS, factor));
    }
    return vmaxvq_s16(vmaxq_s16(low, high));
}

static inline size_t screen_list(const int8_t *t, const int16_t *y, size_t n, int32_t m,
                                 int32_t least, uint32_t *list)
{
    const int16x8_t factor = vdupq_n_s16((int16_t)m);
    const int16x8_t below = vdupq_n_s16((int16_t)(least > INT16_MIN ? least - 1 : INT16_MIN));
    size_t found = 0;
    for (size_t e = 0; e < n; e += BYTES) {
        const int8x16_t bytes = vld1q_s8(t + e);
        const int16x8_t low = screen_sum(vget_low_s8(bytes), y + e, factor);
        const int16x8_t high = screen_sum(vget_high_s8(bytes), y + e + WORDS, factor);
        /* Four bits per entry. */
        const uint8x16_t hits =
            vuzp1q_u8((uint8x16_t)vcgtq_s16(low, below), (uint8x16_t)vcgtq_s16(high, below));
        uint64_t hit = vget_lane_u64((uint64x1_t)vshrn_n_u16((uint16x8_t)hits, 4), 0);
        for (hit &= UINT64_C(0x1111111111111111); hit; hit &= hit - 1)
            list[found++] = (uint32_t)e + (uint32_t)__builtin_ctzll(hit) / 4;
    }
    return found;
}

#else

static inline void screen_block(const vf s[PARTS], float factor, int16_t *y, size_t b)
{
    for (size_t l = 0; l < VPTQ_CODEBOOK_LANES; l++) {
        const float value = s[l / LANES][l % LANES] * factor;
        y[b * VPTQ_CODEBOOK_LANES + l] =
            (int16_t)(value >= INT16_MIN ? lrintf(value) : INT16_MIN);
    }
}

static inline int32_t screen_sum(int8_t t, int16_t y, int32_t m)
{
    return y + ((t * m + 64) >> 7);
}

static inline int32_t screen_max(const int8_t *t, const int16_t *y, size_t n, int32_t m)
{
    int32_t max = INT32_MIN;
    for (size_t e = 0; e < n; e++) {
        const int32_t sum = screen_sum(t[e], y[e], m);
        max = sum > max ? sum : max;
    }
    return max;
}

static inline size_t screen_list(const int8_t *t, const int16_t *y, size_t n, int32_t m,
                                 int32_t least, uint32_t *list)
{
    size_t found = 0;
    for (size_t e = 0; e < n; e++) {
        if (y[e] > INT16_MIN && screen_sum(t[e], y[e], m) >= least)
            list[found++] = (uint32_t)e;
    }
    return found;
}

#endif

#endif
