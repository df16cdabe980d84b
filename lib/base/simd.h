/* Internal: one vector type for four instruction sets, for files named *_simd.c; others get
 * level 0.
 *
 * The Makefile compiles such a file once per level, with VPTQ_SIMD_LEVEL 0 (plain C), 1 (AVX2,
 * FMA, F16C), 2 (AVX-512 F, BW, DQ, VL) or 3 (NEON of aarch64), and each compilation exports
 * one table of functions named by VPTQ_SIMD_SYMBOL.  VPTQ_SIMD_SELECT (cpu.h) picks the table
 * at run time.
 *
 *     vf      SIMD_LANES floats: 4, 8 or 16.  A file may define SIMD_MAX_LANES as 8 first.
 *     vd      as many doubles
 *     v4      4 floats
 *     v16     16 floats in SIMD_PARTS registers, for sums; vd16 the same in double
 *
 * The level must not change a bit of any result.  Functions of vf work lane by lane and round
 * alike everywhere: vf_fma once.  A sum across lanes is always one of 16 lanes, v16_sum or
 * vd16_sum, of which element i of a row belongs to lane i % 16.
 *
 * Pointers have any alignment.  `part` functions access the first n < SIMD_LANES lanes (n <= 16
 * of a v16). */
#ifndef VPTQ_BASE_SIMD_H
#define VPTQ_BASE_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/half.h"

#ifndef VPTQ_SIMD_LEVEL
#define VPTQ_SIMD_LEVEL 0
#endif
#ifndef SIMD_MAX_LANES
#define SIMD_MAX_LANES 16
#endif

/* SIMD_SYMBOL(name): name_none, name_avx2, name_avx512 or name_neon. */
#if VPTQ_SIMD_LEVEL == 3
#define VPTQ_SIMD_SYMBOL(name) name##_neon
#elif VPTQ_SIMD_LEVEL == 2
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

#define SIMD_X86 (VPTQ_SIMD_LEVEL == 1 || VPTQ_SIMD_LEVEL == 2)
#define SIMD_512 (VPTQ_SIMD_LEVEL == 2 && SIMD_MAX_LANES == 16)

#if SIMD_X86
#include <immintrin.h>
#elif VPTQ_SIMD_LEVEL == 3
#include <arm_neon.h>
#endif

/* ---- 4 floats ---- */

#if SIMD_X86
typedef __m128 v4;
#elif VPTQ_SIMD_LEVEL == 3
typedef float32x4_t v4;
#else
typedef float v4 __attribute__((vector_size(16)));
#endif
typedef float v2f __attribute__((vector_size(8)));
typedef double v2d __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef int64_t v2i __attribute__((vector_size(16)));

static inline v4 v4_set1(float x)
{
    return (v4){x, x, x, x};
}

static inline v4 v4_load(const void *p)
{
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void v4_store(void *p, v4 v)
{
    memcpy(p, &v, sizeof v);
}

#if SIMD_X86

static inline v4 v4_fma(v4 a, v4 b, v4 c)
{
    return _mm_fmadd_ps(a, b, c);
}

static inline v4 v4_load_f16(const void *p)
{
    return _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p));
}

#elif VPTQ_SIMD_LEVEL == 3

static inline v4 v4_fma(v4 a, v4 b, v4 c)
{
    return vfmaq_f32(c, a, b);
}

static inline v4 v4_load_f16(const void *p)
{
    float16x4_t h;
    memcpy(&h, p, sizeof h);
    return vcvt_f32_f16(h);
}

#else

/* p + c rounded to odd: away from an even number if inexact.  Rounding that to float is
 * rounding the exact sum once (Boldo and Melquiond, Emulation of FMA and correctly rounded
 * sums, 2008). */
static inline v2d add_to_odd(v2d p, v2d c)
{
    const v2d s = p + c, t = s - p, error = (p - (s - t)) + (c - t);
    const v2i bits = (v2i)s, away = (((v2i)error ^ bits) >> 63) | 1;
    const v2i inexact = (v2i)(error < 0) | (v2i)(error > 0);
    return (v2d)(bits + (away & inexact & ~-(bits & 1)));
}

/* Products of floats are exact in double.  The conversions are of whole vectors: lane by
 * lane, gcc 12 with -O2 gave wrong results for the upper lanes.  A call costs less than the
 * body, which unrolled kernels would repeat. */
static __attribute__((noinline, unused)) v4 v4_fma(v4 a, v4 b, v4 c)
{
    const v2d a0 = __builtin_convertvector(__builtin_shufflevector(a, a, 0, 1), v2d);
    const v2d a1 = __builtin_convertvector(__builtin_shufflevector(a, a, 2, 3), v2d);
    const v2d b0 = __builtin_convertvector(__builtin_shufflevector(b, b, 0, 1), v2d);
    const v2d b1 = __builtin_convertvector(__builtin_shufflevector(b, b, 2, 3), v2d);
    const v2d c0 = __builtin_convertvector(__builtin_shufflevector(c, c, 0, 1), v2d);
    const v2d c1 = __builtin_convertvector(__builtin_shufflevector(c, c, 2, 3), v2d);
    const v2f low = __builtin_convertvector(add_to_odd(a0 * b0, c0), v2f);
    const v2f high = __builtin_convertvector(add_to_odd(a1 * b1, c1), v2f);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}

static inline v4 v4_load_f16(const void *p)
{
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    const v4i u = {h[0], h[1], h[2], h[3]}, magnitude = (u & 0x7fff) << 13;
    const v4i huge = (v4i)(magnitude >= 31 << 23), nan = (v4i)(magnitude > 31 << 23);
    const v4i bits = (v4i)((v4)magnitude * 0x1p112F);
    return (v4)(bits | (huge & 0x7f800000) | (nan & 0x400000) | (u & 0x8000) << 16);
}

#endif

/* dst [4, 4] = factor * src [4, 4]^T */
static inline void transpose_4x4(const float *src, size_t ld_src, float factor, float *dst,
                                 size_t ld_dst)
{
    const v4 f = v4_set1(factor);
    const v4 a = v4_load(src) * f, b = v4_load(src + ld_src) * f;
    const v4 c = v4_load(src + 2 * ld_src) * f, d = v4_load(src + 3 * ld_src) * f;
    const v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const v4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const v4 ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const v4 cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    v4_store(dst, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
    v4_store(dst + ld_dst, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
    v4_store(dst + 2 * ld_dst, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
    v4_store(dst + 3 * ld_dst, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
}

#if SIMD_X86
#include "lib/base/simd_x86.h"
#else
#include "lib/base/simd_four.h"
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

/* The nearest whole number, the even one of two, for |a| < 2^22: adding 1.5 * 2^23 leaves no
 * digits after the point. */
static inline vf vf_round(vf a)
{
    return a + vf_set1(0x1.8p23F) - vf_set1(0x1.8p23F);
}

/* d + v */
static inline vd vd_add(vd d, vf v)
{
    const vd w = vd_from(v);
    return (vd){d.lo + w.lo, d.hi + w.hi};
}

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

/* ---- sums of 16 lanes ---- */

enum { SIMD_SUM = 16, SIMD_PARTS = SIMD_SUM / SIMD_LANES };

typedef struct v16 {
    vf part[SIMD_PARTS];
} v16;

typedef struct vd16 {
    vd part[SIMD_PARTS];
} vd16;

/* Number of lanes that a row of n elements fills from element i on. */
static inline size_t simd_lanes_left(size_t n, size_t i)
{
    return n - i < SIMD_LANES ? n - i : SIMD_LANES;
}

SIMD_INLINE v16 v16_set1(float x)
{
    v16 v;
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++)
        v.part[p] = vf_set1(x);
    return v;
}

SIMD_INLINE vd16 vd16_zero(void)
{
    return (vd16){{{{0}, {0}}}};
}

/* Adds (or, with `max`, compares) lanes l and l + 8, and of those l and l + 4. */
SIMD_INLINE v4 fold_to_4(v16 v, bool max)
{
#if SIMD_X86
#if SIMD_512
    const __m256 a = low_half(v.part[0]), b = high_half(v.part[0]);
#else
    const __m256 a = v.part[0], b = v.part[1];
#endif
    if (max) {
        const __m256 c = _mm256_max_ps(a, b);
        return _mm_max_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
    }
    const __m256 c = _mm256_add_ps(a, b);
    return _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
#else
    if (max)
        return vf_max(vf_max(v.part[0], v.part[2]), vf_max(v.part[1], v.part[3]));
    return (v.part[0] + v.part[2]) + (v.part[1] + v.part[3]);
#endif
}

/* Sum of the lanes: l + 8 to l, then l + 4, l + 2 and l + 1. */
static inline float v16_sum(v16 v)
{
    const v4 a = fold_to_4(v, false), b = a + __builtin_shufflevector(a, a, 2, 3, 2, 3);
    return b[0] + b[1];
}

/* The largest lane, compared in that order, as vf_max does. */
static inline float v16_max(v16 v)
{
    const v4 a = fold_to_4(v, true);
    const float b = a[0] > a[2] ? a[0] : a[2], c = a[1] > a[3] ? a[1] : a[3];
    return b > c ? b : c;
}

static inline double vd16_sum(vd16 v)
{
#if SIMD_X86
#if SIMD_512
    const __m512d a = v.part[0].lo + v.part[0].hi;
    const __m256d b = _mm512_castpd512_pd256(a) + _mm512_extractf64x4_pd(a, 1);
#else
    const __m256d b = (v.part[0].lo + v.part[1].lo) + (v.part[0].hi + v.part[1].hi);
#endif
    const v2d c = _mm256_castpd256_pd128(b) + _mm256_extractf128_pd(b, 1);
#else
    const vd *p = v.part;
    const v2d low = (p[0].lo + p[2].lo) + (p[1].lo + p[3].lo);
    const v2d high = (p[0].hi + p[2].hi) + (p[1].hi + p[3].hi);
    const v2d c = low + high;
#endif
    return c[0] + c[1];
}

#endif
