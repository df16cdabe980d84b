/* cpu_math.h for AVX2 with FMA: vectors of 8 lanes. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 8, TILE_ROWS = 6, TILE_VECTORS = 2 };
typedef __m256 vf;
typedef struct {
    __m256d lo, hi;
} vd;

static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline vf vf_load_half(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __m256i tail_mask(size_t n) /* all ones in the first n lanes */
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static inline vf vf_load_part(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, tail_mask(n));
}

static inline void vf_store_part(float *p, vf v, size_t n)
{
    _mm256_maskstore_ps(p, tail_mask(n), v);
}

static inline vf vf_mask_tail(vf v, size_t n, float fill)
{
    return _mm256_blendv_ps(_mm256_set1_ps(fill), v, _mm256_castsi256_ps(tail_mask(n)));
}

static inline vf exp2_of(__m256i n) /* 2^n for normal results */
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

static inline vf vf_ldexp(vf x, vf n)
{
    /* Two steps, because 2^n itself may be out of range; only the second one rounds. */
    const __m256i whole = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(whole, 1);
    x = _mm256_mul_ps(x, exp2_of(first));
    return _mm256_mul_ps(x, exp2_of(_mm256_sub_epi32(whole, first)));
}

static inline float vf_sum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float vf_hmax(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256d low_double(vf v)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}

static inline __m256d high_double(vf v)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}

static inline vd vd_zero(void)
{
    return (vd){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

static inline vd vd_add(vd d, vf v)
{
    return (vd){_mm256_add_pd(d.lo, low_double(v)), _mm256_add_pd(d.hi, high_double(v))};
}

static inline vd vd_from(vf v)
{
    return (vd){low_double(v), high_double(v)};
}

static inline vd vd_load(const double *p)
{
    return (vd){_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)};
}

static inline void vd_store(double *p, vd d)
{
    _mm256_storeu_pd(p, d.lo);
    _mm256_storeu_pd(p + 4, d.hi);
}

static inline vd vd_mul_add(vd a, vd b, vd d)
{
    return (vd){_mm256_fmadd_pd(a.lo, b.lo, d.lo), _mm256_fmadd_pd(a.hi, b.hi, d.hi)};
}

static inline double vd_sum(vd d)
{
    const __m256d s = _mm256_add_pd(d.lo, d.hi);
    const __m128d t = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
    return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}

static inline vf vf_select_equal(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

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

#define VPTQ_CPU_MATH_NAME vptq_cpu_math_avx2
#include "lib/backend/cpu/math_body.h"
