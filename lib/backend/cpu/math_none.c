/* cpu_math.h without SIMD: vectors of one lane. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/half.h"

enum { LANES = 1, TILE_ROWS = 4, TILE_VECTORS = 4 };
typedef float vf;
typedef double vd;

static inline vf vf_set1(float x)
{
    return x;
}

static inline vf vf_load(const float *p)
{
    return *p;
}

static inline vf vf_load_half(const uint16_t *p)
{
    return vptq_f16_to_f32(*p);
}

static inline void vf_store(float *p, vf v)
{
    *p = v;
}

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

static inline vf vf_max(vf a, vf b)
{
    return a > b ? a : b;
}

static inline vf vf_min(vf a, vf b)
{
    return a < b ? a : b;
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf vf_round(vf a)
{
    return rintf(a);
}

static inline vf vf_sum(vf a)
{
    return a;
}

static inline vf vf_hmax(vf a)
{
    return a;
}

static inline vd vd_zero(void)
{
    return 0;
}

static inline vd vd_add(vd d, vf v)
{
    return d + (double)v;
}

static inline vd vd_from(vf v)
{
    return (double)v;
}

static inline vd vd_load(const double *p)
{
    return *p;
}

static inline void vd_store(double *p, vd d)
{
    *p = d;
}

static inline vd vd_mul_add(vd a, vd b, vd d)
{
    return d + a * b;
}

static inline double vd_sum(vd d)
{
    return d;
}

/* A part of one lane is empty. */
static inline vf vf_load_part(const float *p, size_t n)
{
    (void)p;
    (void)n;
    return 0;
}

static inline void vf_store_part(float *p, vf v, size_t n)
{
    (void)p;
    (void)v;
    (void)n;
}

static inline vf vf_mask_tail(vf v, size_t n, float fill)
{
    (void)v;
    (void)n;
    return fill;
}

static inline float exp2_of(int n) /* 2^n for a normal result */
{
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline vf vf_ldexp(vf x, vf n)
{
    if (isnan(x))
        return x;
    const int whole = (int)n, first = whole / 2;
    return x * exp2_of(first) * exp2_of(whole - first);
}

static inline vf vf_select_equal(vf a, vf b, vf x, vf y)
{
    return a == b ? x : y;
}

static inline void transpose_4x4(const float *src, size_t ld_src, float factor, float *dst,
                                 size_t ld_dst)
{
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 4; j++)
            dst[j * ld_dst + i] = factor * src[i * ld_src + j];
}

#define VPTQ_CPU_MATH_NAME vptq_cpu_math_none
#include "lib/backend/cpu/math_body.h"
