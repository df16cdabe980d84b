/* cpu_math.h for AVX-512 F, BW, DQ, VL: vectors of 16 lanes. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 16, TILE_ROWS = 14, TILE_VECTORS = 2 };
typedef __m512 vf;
typedef struct {
    __m512d lo, hi;
} vd;

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline vf vf_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_ldexp(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

static inline vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __mmask16 tail_mask(size_t n) /* the first n lanes */
{
    return (__mmask16)((1u << n) - 1);
}

static inline vf vf_load_part(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(tail_mask(n), p);
}

static inline void vf_store_part(float *p, vf v, size_t n)
{
    _mm512_mask_storeu_ps(p, tail_mask(n), v);
}

static inline vf vf_mask_tail(vf v, size_t n, float fill)
{
    return _mm512_mask_blend_ps(tail_mask(n), _mm512_set1_ps(fill), v);
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
    const __m256 h = _mm256_add_ps(low_half(a), high_half(a));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float vf_hmax(vf a)
{
    const __m256 h = _mm256_max_ps(low_half(a), high_half(a));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline vd vd_zero(void)
{
    return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

static inline vd vd_from(vf v)
{
    return (vd){_mm512_cvtps_pd(low_half(v)), _mm512_cvtps_pd(high_half(v))};
}

static inline vd vd_load(const double *p)
{
    return (vd){_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)};
}

static inline void vd_store(double *p, vd d)
{
    _mm512_storeu_pd(p, d.lo);
    _mm512_storeu_pd(p + 8, d.hi);
}

static inline vd vd_add(vd d, vf v)
{
    const vd w = vd_from(v);
    return (vd){_mm512_add_pd(d.lo, w.lo), _mm512_add_pd(d.hi, w.hi)};
}

static inline vd vd_mul_add(vd a, vd b, vd d)
{
    return (vd){_mm512_fmadd_pd(a.lo, b.lo, d.lo), _mm512_fmadd_pd(a.hi, b.hi, d.hi)};
}

static inline double vd_sum(vd d)
{
    const __m512d s = _mm512_add_pd(d.lo, d.hi);
    const __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(s), _mm512_extractf64x4_pd(s, 1));
    const __m128d t = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}

static inline vf vf_select_equal(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), y, x);
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

#define VPTQ_CPU_MATH_NAME vptq_cpu_math_avx512
#include "lib/backend/cpu/math_body.h"
