/* Internal: one vector type for three instruction sets, for files named *_simd.c; others get
 * level 0.
 *
 * The Makefile compiles such a file once per level, with VPTQ_SIMD_LEVEL 0 (plain C), 1 (AVX2,
 * FMA, F16C) or 2 (AVX-512 F, BW, DQ, VL), and each compilation exports one table of functions
 * named by VPTQ_SIMD_SYMBOL.  VPTQ_SIMD_SELECT (cpu.h) picks the table at run time.
 *
 *     vf     SIMD_LANES floats: 4, 8 or 16.  A file may define SIMD_MAX_LANES as 1 (affects
 *            level 0) or 8 (affects level 2) first.
 *     vd     as many doubles
 *     vr     SIMD_DOUBLES doubles, one register: 4, or 8 at level 2
 *
 * Pointers have any alignment.  `part` functions access the first n < SIMD_LANES lanes (at
 * level 1 also n = SIMD_LANES). */
#ifndef VPTQ_BASE_SIMD_H
#define VPTQ_BASE_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef VPTQ_SIMD_LEVEL
#define VPTQ_SIMD_LEVEL 0
#endif
#ifndef SIMD_MAX_LANES
#define SIMD_MAX_LANES 16
#endif

/* SIMD_SYMBOL(name): name_none, name_avx2 or name_avx512. */
#if VPTQ_SIMD_LEVEL == 2
#define VPTQ_SIMD_SYMBOL(name) name##_avx512
#elif VPTQ_SIMD_LEVEL == 1
#define VPTQ_SIMD_SYMBOL(name) name##_avx2
#else
#define VPTQ_SIMD_SYMBOL(name) name##_none
#endif

/* For functions that are called with constants, such as the vector length v, and must be
 * compiled once for each. */
#define SIMD_INLINE static inline __attribute__((always_inline))

/* Hides two pointers from the optimizer, which would otherwise hoist the loads through them out
 * of a loop and spill the registers. */
#define SIMD_KEEP_IN_LOOP(p, q) __asm__("" : "+r"(p), "+r"(q))

#if VPTQ_SIMD_LEVEL > 0

#include <immintrin.h>

#if VPTQ_SIMD_LEVEL == 2 && SIMD_MAX_LANES == 16
#define SIMD_512                1
#define SIMD_OP(name)           _mm512_##name
#define SIMD_HALF(value)        _mm256_loadu_si256((const __m256i *)(const void *)(value))
#define SIMD_COMPARE(a, b, how) _mm512_cmp_ps_mask(a, b, how)
#define SIMD_BITS(mask)         (mask)
#define SIMD_SELECT(mask, x, y) _mm512_mask_blend_ps(mask, y, x)
enum { SIMD_LANES = 16 };
typedef __m512 vf;
typedef struct vd {
    __m512d lo, hi;
} vd;
enum { SIMD_DOUBLES = 8 };
typedef __m512d vr;
#else
#define SIMD_512                0
#define SIMD_OP(name)           _mm256_##name
#define SIMD_HALF(value)        _mm_loadu_si128((const __m128i *)(const void *)(value))
#define SIMD_COMPARE(a, b, how) _mm256_cmp_ps(a, b, how)
#define SIMD_BITS(mask)         (uint32_t) _mm256_movemask_ps(mask)
#define SIMD_SELECT(mask, x, y) _mm256_blendv_ps(y, x, mask)
enum { SIMD_LANES = 8 };
typedef __m256 vf;
typedef struct vd {
    __m256d lo, hi;
} vd;
enum { SIMD_DOUBLES = 4 };
typedef __m256d vr;
#endif

#else

#include "lib/base/half.h"

#define SIMD_512 0
#if SIMD_MAX_LANES == 1
enum { SIMD_LANES = 1 };
typedef float vf;
#define SIMD_LANE(v, l) (v)
#else
enum { SIMD_LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
#define SIMD_LANE(v, l) ((v)[l])
#endif
typedef struct vd {
    double lane[SIMD_LANES];
} vd;
enum { SIMD_DOUBLES = 4 };
typedef struct vr {
    double lane[SIMD_DOUBLES];
} vr;

#endif

/* ---- all levels ---- */

static inline vf vf_add(vf a, vf b)
{
    return a + b;
}

static inline vf vf_sub(vf a, vf b)
{
    return a - b;
}

static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}

static inline vf vf_div(vf a, vf b)
{
    return a / b;
}

#if VPTQ_SIMD_LEVEL > 0

/* ---- the same for AVX2 and AVX-512 ---- */

static inline vf vf_set1(float x)
{
    return SIMD_OP(set1_ps)(x);
}

static inline vf vf_load(const float *p)
{
    return SIMD_OP(loadu_ps)(p);
}

static inline void vf_store(float *p, vf v)
{
    SIMD_OP(storeu_ps)(p, v);
}

/* SIMD_LANES float16 values as floats. */
static inline vf vf_load_f16(const void *p)
{
    return SIMD_OP(cvtph_ps)(SIMD_HALF(p));
}

/* SIMD_LANES int8 values as floats. */
static inline vf vf_load_i8(const int8_t *p)
{
#if SIMD_512
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
#else
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
#endif
}

/* b if a or b is NaN. */
static inline vf vf_max(vf a, vf b)
{
    return SIMD_OP(max_ps)(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return SIMD_OP(min_ps)(a, b);
}

/* a * b + c: rounded once at levels 1 and 2, twice at level 0. */
static inline vf vf_fma(vf a, vf b, vf c)
{
    return SIMD_OP(fmadd_ps)(a, b, c);
}

static inline vf vf_select_equal(vf a, vf b, vf x, vf y)
{
    return SIMD_SELECT(SIMD_COMPARE(a, b, _CMP_EQ_OQ), x, y);
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
    return SIMD_SELECT(SIMD_COMPARE(a, b, _CMP_GT_OQ), x, y);
}

static inline uint32_t vf_equal(vf a, vf b)
{
    return SIMD_BITS(SIMD_COMPARE(a, b, _CMP_EQ_OQ));
}

static inline uint32_t vf_greater(vf a, vf b)
{
    return SIMD_BITS(SIMD_COMPARE(a, b, _CMP_GT_OQ));
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    return SIMD_BITS(SIMD_COMPARE(a, b, _CMP_GE_OQ));
}

static inline vd vd_zero(void)
{
    return (vd){SIMD_OP(setzero_pd)(), SIMD_OP(setzero_pd)()};
}

static inline vd vd_load(const double *p)
{
    return (vd){SIMD_OP(loadu_pd)(p), SIMD_OP(loadu_pd)(p + SIMD_LANES / 2)};
}

static inline void vd_store(double *p, vd d)
{
    SIMD_OP(storeu_pd)(p, d.lo);
    SIMD_OP(storeu_pd)(p + SIMD_LANES / 2, d.hi);
}

/* d + a * b, rounded once. */
static inline vd vd_mul_add(vd a, vd b, vd d)
{
    return (vd){SIMD_OP(fmadd_pd)(a.lo, b.lo, d.lo), SIMD_OP(fmadd_pd)(a.hi, b.hi, d.hi)};
}

static inline vr vr_set1(double x)
{
    return SIMD_OP(set1_pd)(x);
}

static inline vr vr_load(const double *p)
{
    return SIMD_OP(loadu_pd)(p);
}

static inline void vr_store(double *p, vr d)
{
    SIMD_OP(storeu_pd)(p, d);
}

static inline vr vr_mul(vr a, vr b)
{
    return SIMD_OP(mul_pd)(a, b);
}

/* d + a * b, rounded once at every level. */
static inline vr vr_mul_add(vr a, vr b, vr d)
{
    return SIMD_OP(fmadd_pd)(a, b, d);
}

/* d - a * b, rounded once at every level. */
static inline vr vr_mul_sub(vr a, vr b, vr d)
{
    return SIMD_OP(fnmadd_pd)(a, b, d);
}

/* ---- reductions of 8 and 4 lanes, always in the same order ---- */

static inline float sum_8(__m256 a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float max_8(__m256 a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline double sum_4(__m256d a)
{
    const __m128d t = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}

#if SIMD_512

/* ---- AVX-512 ---- */

static inline __mmask16 first_lanes(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

static inline vf vf_load_part(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

static inline void vf_store_part(float *p, vf v, size_t n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

static inline vf vf_fill_after(vf v, size_t n, float fill)
{
    return _mm512_mask_blend_ps(first_lanes(n), _mm512_set1_ps(fill), v);
}

static inline void vf_store_f16(void *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_ldexp(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

static inline __m256 low_half(vf v)
{
    return _mm512_castps512_ps256(v);
}

static inline __m256 high_half(vf v)
{
    return _mm512_extractf32x8_ps(v, 1);
}

static inline float vf_sum(vf a)
{
    return sum_8(_mm256_add_ps(low_half(a), high_half(a)));
}

static inline float vf_hmax(vf a)
{
    return max_8(_mm256_max_ps(low_half(a), high_half(a)));
}

static inline double vd_sum(vd d)
{
    const __m512d s = _mm512_add_pd(d.lo, d.hi);
    return sum_4(_mm256_add_pd(_mm512_castpd512_pd256(s), _mm512_extractf64x4_pd(s, 1)));
}

/* Without a branch per lane, which could not be predicted. */
static inline size_t vf_append(uint32_t *list, float *score, size_t n, vf s, vf least,
                               uint32_t first)
{
    const __m512i iota =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 hit = _mm512_cmp_ps_mask(s, least, _CMP_GE_OQ);
    const __m512i index = _mm512_add_epi32(iota, _mm512_set1_epi32((int)first));
    _mm512_storeu_si512(list + n, _mm512_maskz_compress_epi32(hit, index));
    if (score)
        _mm512_storeu_ps(score + n, _mm512_maskz_compress_ps(hit, s));
    return n + (size_t)__builtin_popcount(hit);
}

#else

/* ---- AVX2 ---- */

static inline __m256i first_lanes(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static inline vf vf_load_part(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, first_lanes(n));
}

static inline void vf_store_part(float *p, vf v, size_t n)
{
    _mm256_maskstore_ps(p, first_lanes(n), v);
}

static inline vf vf_fill_after(vf v, size_t n, float fill)
{
    return _mm256_blendv_ps(_mm256_set1_ps(fill), v, _mm256_castsi256_ps(first_lanes(n)));
}

static inline void vf_store_f16(void *p, vf v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf vf_load_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(SIMD_HALF(p)), 16));
}

static inline vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf exp2_of(__m256i n) /* 2^n for normal results */
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* In two steps because 2^n itself may be out of range; only the second one rounds. */
static inline vf vf_ldexp(vf x, vf n)
{
    const __m256i whole = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(whole, 1);
    x = _mm256_mul_ps(x, exp2_of(first));
    return _mm256_mul_ps(x, exp2_of(_mm256_sub_epi32(whole, first)));
}

static inline __m128 low_half(vf v)
{
    return _mm256_castps256_ps128(v);
}

static inline __m128 high_half(vf v)
{
    return _mm256_extractf128_ps(v, 1);
}

static inline float vf_sum(vf a)
{
    return sum_8(a);
}

static inline float vf_hmax(vf a)
{
    return max_8(a);
}

static inline double vd_sum(vd d)
{
    return sum_4(_mm256_add_pd(d.lo, d.hi));
}

#endif

static inline vd vd_from(vf v)
{
    return (vd){SIMD_OP(cvtps_pd)(low_half(v)), SIMD_OP(cvtps_pd)(high_half(v))};
}

/* d + v */
static inline vd vd_add(vd d, vf v)
{
    const vd w = vd_from(v);
    return (vd){SIMD_OP(add_pd)(d.lo, w.lo), SIMD_OP(add_pd)(d.hi, w.hi)};
}

/* dst [4, 4] = factor * src [4, 4]^T */
static inline void transpose_4x4(const float *src, size_t ld_src, float factor, float *dst,
                                 size_t ld_dst)
{
    const __m128 f = _mm_set1_ps(factor);
    __m128 a = _mm_mul_ps(_mm_loadu_ps(src), f), b = _mm_mul_ps(_mm_loadu_ps(src + ld_src), f);
    __m128 c = _mm_mul_ps(_mm_loadu_ps(src + 2 * ld_src), f);
    __m128 d = _mm_mul_ps(_mm_loadu_ps(src + 3 * ld_src), f);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(dst, a);
    _mm_storeu_ps(dst + ld_dst, b);
    _mm_storeu_ps(dst + 2 * ld_dst, c);
    _mm_storeu_ps(dst + 3 * ld_dst, d);
}

#else

/* ---- plain C ---- */

static inline vf vf_set1(float x)
{
    vf v;
    for (int l = 0; l < SIMD_LANES; l++)
        SIMD_LANE(v, l) = x;
    return v;
}

static inline vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

static inline vf vf_load_f16(const void *p)
{
    vf v;
    for (int l = 0; l < SIMD_LANES; l++)
        SIMD_LANE(v, l) = vptq_f16_to_f32(((const uint16_t *)p)[l]);
    return v;
}

static inline vf vf_load_i8(const int8_t *p)
{
    vf v;
    for (int l = 0; l < SIMD_LANES; l++)
        SIMD_LANE(v, l) = (float)p[l];
    return v;
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
#if SIMD_MAX_LANES == 1
    return a > b ? x : y;
#else
    typedef int32_t mask __attribute__((vector_size(sizeof(vf))));
    const mask greater = a > b;
    return (vf)(((mask)x & greater) | ((mask)y & ~greater));
#endif
}

static inline vf vf_select_equal(vf a, vf b, vf x, vf y)
{
    for (int l = 0; l < SIMD_LANES; l++)
        SIMD_LANE(y, l) =
            SIMD_LANE(a, l) == SIMD_LANE(b, l) ? SIMD_LANE(x, l) : SIMD_LANE(y, l);
    return y;
}

static inline vf vf_max(vf a, vf b)
{
    return vf_select_greater(a, b, a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return vf_select_greater(b, a, a, b);
}

static inline uint32_t vf_equal(vf a, vf b)
{
    uint32_t bits = 0;
    for (int l = 0; l < SIMD_LANES; l++)
        bits |= (uint32_t)(SIMD_LANE(a, l) == SIMD_LANE(b, l)) << l;
    return bits;
}

static inline uint32_t vf_greater(vf a, vf b)
{
    uint32_t bits = 0;
    for (int l = 0; l < SIMD_LANES; l++)
        bits |= (uint32_t)(SIMD_LANE(a, l) > SIMD_LANE(b, l)) << l;
    return bits;
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    uint32_t bits = 0;
    for (int l = 0; l < SIMD_LANES; l++)
        bits |= (uint32_t)(SIMD_LANE(a, l) >= SIMD_LANE(b, l)) << l;
    return bits;
}

static inline vf vf_load_part(const float *p, size_t n)
{
    vf v = vf_set1(0);
    memcpy(&v, p, n * sizeof *p);
    return v;
}

static inline void vf_store_part(float *p, vf v, size_t n)
{
    memcpy(p, &v, n * sizeof *p);
}

static inline vf vf_fill_after(vf v, size_t n, float fill)
{
    for (size_t l = n; l < SIMD_LANES; l++)
        SIMD_LANE(v, l) = fill;
    return v;
}

static inline vf vf_round(vf a)
{
    for (int l = 0; l < SIMD_LANES; l++)
        SIMD_LANE(a, l) = rintf(SIMD_LANE(a, l));
    return a;
}

static inline float exp2_of(int n) /* 2^n for normal results */
{
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* In two steps because 2^n itself may be out of range; only the second one rounds. */
static inline vf vf_ldexp(vf x, vf n)
{
    for (int l = 0; l < SIMD_LANES; l++) {
        if (isnan(SIMD_LANE(x, l)))
            continue;
        const int whole = (int)SIMD_LANE(n, l), first = whole / 2;
        SIMD_LANE(x, l) = SIMD_LANE(x, l) * exp2_of(first) * exp2_of(whole - first);
    }
    return x;
}

static inline float vf_sum(vf a)
{
    float sum = SIMD_LANE(a, 0);
    for (int l = 1; l < SIMD_LANES; l++)
        sum += SIMD_LANE(a, l);
    return sum;
}

static inline float vf_hmax(vf a)
{
    float max = SIMD_LANE(a, 0);
    for (int l = 1; l < SIMD_LANES; l++)
        max = SIMD_LANE(a, l) > max ? SIMD_LANE(a, l) : max;
    return max;
}

static inline vd vd_zero(void)
{
    return (vd){{0}};
}

static inline vd vd_from(vf v)
{
    vd d;
    for (int l = 0; l < SIMD_LANES; l++)
        d.lane[l] = (double)SIMD_LANE(v, l);
    return d;
}

static inline vd vd_load(const double *p)
{
    vd d;
    memcpy(&d, p, sizeof d);
    return d;
}

static inline void vd_store(double *p, vd d)
{
    memcpy(p, &d, sizeof d);
}

static inline vd vd_add(vd d, vf v)
{
    for (int l = 0; l < SIMD_LANES; l++)
        d.lane[l] += (double)SIMD_LANE(v, l);
    return d;
}

static inline vd vd_mul_add(vd a, vd b, vd d)
{
    for (int l = 0; l < SIMD_LANES; l++)
        d.lane[l] += a.lane[l] * b.lane[l];
    return d;
}

static inline vr vr_set1(double x)
{
    return (vr){{x, x, x, x}};
}

static inline vr vr_load(const double *p)
{
    vr d;
    memcpy(&d, p, sizeof d);
    return d;
}

static inline void vr_store(double *p, vr d)
{
    memcpy(p, &d, sizeof d);
}

static inline vr vr_mul(vr a, vr b)
{
    for (int l = 0; l < SIMD_DOUBLES; l++)
        a.lane[l] *= b.lane[l];
    return a;
}

static inline vr vr_mul_add(vr a, vr b, vr d)
{
    for (int l = 0; l < SIMD_DOUBLES; l++)
        d.lane[l] = fma(a.lane[l], b.lane[l], d.lane[l]);
    return d;
}

static inline vr vr_mul_sub(vr a, vr b, vr d)
{
    for (int l = 0; l < SIMD_DOUBLES; l++)
        d.lane[l] = fma(-a.lane[l], b.lane[l], d.lane[l]);
    return d;
}

static inline double vd_sum(vd d)
{
    double sum = d.lane[0];
    for (int l = 1; l < SIMD_LANES; l++)
        sum += d.lane[l];
    return sum;
}

static inline void transpose_4x4(const float *src, size_t ld_src, float factor, float *dst,
                                 size_t ld_dst)
{
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 4; j++)
            dst[j * ld_dst + i] = factor * src[i * ld_src + j];
}

#endif

#if !SIMD_512

/* Appends first + l to the list, and s[l] to `score` (may be NULL), for every lane l in
 * ascending order with s >= least; returns the new length.  May write SIMD_LANES entries. */
static inline size_t vf_append(uint32_t *list, float *score, size_t n, vf s, vf least,
                               uint32_t first)
{
    float lane[SIMD_LANES];
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

#endif

#endif
