/* Internal to simd.h: registers of 8 floats (AVX2) or 16 (AVX-512). */
#ifndef VPTQ_BASE_SIMD_X86_H
#define VPTQ_BASE_SIMD_X86_H

#if SIMD_512
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
#else
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
#endif

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

static inline vf vf_load_bf16(const void *p)
{
    return (vf)SIMD_OP(slli_epi32)(SIMD_OP(cvtepu16_epi32)(SIMD_HALF(p)), 16);
}

/* b if a or b is NaN, or if both are zero. */
static inline vf vf_max(vf a, vf b)
{
    return SIMD_OP(max_ps)(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return SIMD_OP(min_ps)(a, b);
}

/* a * b + c, rounded once. */
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

#if SIMD_512

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

static inline v4 low_half(vf v)
{
    return _mm256_castps256_ps128(v);
}

static inline v4 high_half(vf v)
{
    return _mm256_extractf128_ps(v, 1);
}

#endif

static inline vd vd_from(vf v)
{
    return (vd){SIMD_OP(cvtps_pd)(low_half(v)), SIMD_OP(cvtps_pd)(high_half(v))};
}

#if !SIMD_512

/* Transposes eight registers of eight lanes. */
static inline void vf_transpose(vf r[SIMD_LANES])
{
    vf t[8];
#pragma GCC unroll 4
    for (size_t i = 0; i < 8; i += 2) { /* pairs of rows */
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < 8; i += 4) { /* groups of four rows */
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) { /* halves of registers */
        const vf low = r[i], high = r[i + 4];
        r[i] = _mm256_permute2f128_ps(low, high, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

#endif

#endif
