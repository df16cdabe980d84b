/* Internal to simd.h: registers of 4 floats (NEON), and the same in plain C. */
#ifndef VPTQ_BASE_SIMD_FOUR_H
#define VPTQ_BASE_SIMD_FOUR_H

enum { SIMD_LANES = 4 };
typedef v4 vf;
typedef struct vd {
    v2d lo, hi;
} vd;

static inline vf vf_set1(float x)
{
    return v4_set1(x);
}

static inline vf vf_load(const float *p)
{
    return v4_load(p);
}

static inline void vf_store(float *p, vf v)
{
    v4_store(p, v);
}

static inline vf vf_load_f16(const void *p)
{
    return v4_load_f16(p);
}

static inline vf vf_load_bf16(const void *p)
{
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    return (vf)((v4i){h[0], h[1], h[2], h[3]} << 16);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return v4_fma(a, b, c);
}

static inline vf select_lanes(v4i mask, vf x, vf y)
{
    return (vf)(((v4i)x & mask) | ((v4i)y & ~mask));
}

static inline vf vf_select_equal(vf a, vf b, vf x, vf y)
{
    return select_lanes((v4i)(a == b), x, y);
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
    return select_lanes((v4i)(a > b), x, y);
}

static inline vf vf_max(vf a, vf b)
{
    return vf_select_greater(a, b, a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return vf_select_greater(b, a, a, b);
}

static inline uint32_t lane_bits(v4i mask)
{
    mask &= (v4i){1, 2, 4, 8};
    return (uint32_t)(mask[0] | mask[1] | mask[2] | mask[3]);
}

static inline uint32_t vf_equal(vf a, vf b)
{
    return lane_bits((v4i)(a == b));
}

static inline uint32_t vf_greater(vf a, vf b)
{
    return lane_bits((v4i)(a > b));
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    return lane_bits((v4i)(a >= b));
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
    const int32_t count = (int32_t)n;
    const v4i lane = {0, 1, 2, 3}, all = {count, count, count, count};
    return select_lanes((v4i)(lane < all), v, vf_set1(fill));
}

/* In two steps because 2^n itself may be out of range; only the second one rounds. */
static inline vf vf_ldexp(vf x, vf n)
{
    const v4i whole = __builtin_convertvector(n, v4i), first = whole >> 1;
    return x * (vf)((first + 127) << 23) * (vf)((whole - first + 127) << 23);
}

static inline vd vd_load(const double *p)
{
    vd d;
    memcpy(&d.lo, p, sizeof d.lo);
    memcpy(&d.hi, p + 2, sizeof d.hi);
    return d;
}

static inline void vd_store(double *p, vd d)
{
    memcpy(p, &d.lo, sizeof d.lo);
    memcpy(p + 2, &d.hi, sizeof d.hi);
}

#if VPTQ_SIMD_LEVEL == 3

static inline void vf_store_f16(void *p, vf v)
{
    const float16x4_t h = vcvt_f16_f32(v);
    memcpy(p, &h, sizeof h);
}

static inline vd vd_from(vf v)
{
    return (vd){(v2d)vcvt_f64_f32(vget_low_f32(v)), (v2d)vcvt_high_f64_f32(v)};
}

/* d + a * b, rounded once. */
static inline vd vd_mul_add(vd a, vd b, vd d)
{
    return (vd){(v2d)vfmaq_f64((float64x2_t)d.lo, (float64x2_t)a.lo, (float64x2_t)b.lo),
                (v2d)vfmaq_f64((float64x2_t)d.hi, (float64x2_t)a.hi, (float64x2_t)b.hi)};
}

#else

static inline void vf_store_f16(void *p, vf v)
{
    uint16_t h[4];
    for (size_t l = 0; l < 4; l++)
        h[l] = vptq_f32_to_f16(v[l]);
    memcpy(p, h, sizeof h);
}

static inline vd vd_from(vf v)
{
    return (vd){__builtin_convertvector(__builtin_shufflevector(v, v, 0, 1), v2d),
                __builtin_convertvector(__builtin_shufflevector(v, v, 2, 3), v2d)};
}

/* d + a * b, rounded once. */
static inline vd vd_mul_add(vd a, vd b, vd d)
{
    for (int l = 0; l < 2; l++) {
        d.lo[l] = fma(a.lo[l], b.lo[l], d.lo[l]);
        d.hi[l] = fma(a.hi[l], b.hi[l], d.hi[l]);
    }
    return d;
}

#endif

/* Transposes four registers of four lanes. */
static inline void vf_transpose(vf r[SIMD_LANES])
{
    transpose_4x4((const float *)r, 4, 1, (float *)r, 4);
}

#endif
