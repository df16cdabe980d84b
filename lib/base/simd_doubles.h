/* Internal: registers of doubles, for files named *_simd.c that multiply matrices in double.
 *
 *     vr     SIMD_DOUBLES doubles: 4, or 8 with AVX-512
 *
 * As in simd.h, the level must not change a bit: all functions work lane by lane, and
 * vr_mul_add and vr_mul_sub round once. */
#ifndef VPTQ_BASE_SIMD_DOUBLES_H
#define VPTQ_BASE_SIMD_DOUBLES_H

#include "lib/base/simd.h"

#if VPTQ_SIMD_LEVEL == 2
#define VR_OP(name) _mm512_##name
enum { SIMD_DOUBLES = 8 };
typedef __m512d vr;
#elif VPTQ_SIMD_LEVEL == 1
#define VR_OP(name) _mm256_##name
enum { SIMD_DOUBLES = 4 };
typedef __m256d vr;
#elif VPTQ_SIMD_LEVEL == 3
enum { SIMD_DOUBLES = 4 };
typedef struct vr {
    float64x2_t low, high;
} vr;
#else
enum { SIMD_DOUBLES = 4 };
typedef struct vr {
    double lane[SIMD_DOUBLES];
} vr;
#endif

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

#if SIMD_X86

static inline vr vr_set1(double x)
{
    return VR_OP(set1_pd)(x);
}

static inline vr vr_mul(vr a, vr b)
{
    return VR_OP(mul_pd)(a, b);
}

/* d + a * b */
static inline vr vr_mul_add(vr a, vr b, vr d)
{
    return VR_OP(fmadd_pd)(a, b, d);
}

/* d - a * b */
static inline vr vr_mul_sub(vr a, vr b, vr d)
{
    return VR_OP(fnmadd_pd)(a, b, d);
}

#elif VPTQ_SIMD_LEVEL == 3

static inline vr vr_set1(double x)
{
    return (vr){vdupq_n_f64(x), vdupq_n_f64(x)};
}

static inline vr vr_mul(vr a, vr b)
{
    return (vr){vmulq_f64(a.low, b.low), vmulq_f64(a.high, b.high)};
}

static inline vr vr_mul_add(vr a, vr b, vr d)
{
    return (vr){vfmaq_f64(d.low, a.low, b.low), vfmaq_f64(d.high, a.high, b.high)};
}

static inline vr vr_mul_sub(vr a, vr b, vr d)
{
    return (vr){vfmsq_f64(d.low, a.low, b.low), vfmsq_f64(d.high, a.high, b.high)};
}

#else

static inline vr vr_set1(double x)
{
    return (vr){{x, x, x, x}};
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

#endif

#endif
