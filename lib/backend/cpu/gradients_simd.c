/* The kernels of vptq_cpu_gradients (gradients.h). */
#include "lib/base/simd.h"

#include "lib/backend/cpu/exp_simd.h"
#include "lib/backend/cpu/gradients.h"

enum { LANES = SIMD_LANES };

static void softmax(float *s, float *ds, size_t n, size_t width, const float *lse,
                    const float *delta)
{
    for (size_t i = 0; i < n; i++, s += width, ds += width)
        for (size_t j = 0; j < width; j += LANES) {
            const vf p = vf_exp(vf_sub(vf_load(s + j), vf_load(lse + j)));
            vf_store(s + j, p);
            vf_store(ds + j, vf_mul(p, vf_sub(vf_load(ds + j), vf_load(delta + j))));
        }
}

/* The first t lanes; a constant t = LANES is a whole register. */
SIMD_INLINE vf load(const float *p, size_t t)
{
    return t < LANES ? vf_load_part(p, t) : vf_load(p);
}

SIMD_INLINE void store(float *p, vf v, size_t t)
{
    if (t < LANES)
        vf_store_part(p, v, t);
    else
        vf_store(p, v);
}

/* ---- rmsnorm ---- */

SIMD_INLINE vd along_part(const float *dy, const float *w, const float *x, size_t t, vd sum)
{
    const vf a = vf_mul(load(dy, t), load(w, t));
    return vd_mul_add(vd_from(a), vd_from(load(x, t)), sum);
}

static double norm_along(const float *dy, const float *w, const float *x, size_t n)
{
    vd16 sum = vd16_zero();
    size_t i = 0;
    for (; i + SIMD_SUM <= n; i += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++) {
            const size_t at = i + p * LANES;
            sum.part[p] = along_part(dy + at, w + at, x + at, LANES, sum.part[p]);
        }
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++, i += LANES)
        if (i < n)
            sum.part[p] = along_part(dy + i, w + i, x + i, simd_lanes_left(n, i), sum.part[p]);
    return vd16_sum(sum);
}

SIMD_INLINE void norm_part(const float *dy, const float *w, const float *x, vf r, vf c,
                           bool add, float *dx, size_t t)
{
    const vf a = vf_mul(load(dy, t), load(w, t));
    const vf b = vf_fma(c, load(x, t), add ? load(dx, t) : vf_set1(0));
    store(dx, vf_fma(r, a, b), t);
}

static void norm(const float *dy, const float *w, const float *x, const float factor[2],
                 bool add, float *dx, size_t n)
{
    const vf scale = vf_set1(factor[0]), along = vf_set1(-factor[1]);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        norm_part(dy + i, w + i, x + i, scale, along, add, dx + i, LANES);
    if (i < n)
        norm_part(dy + i, w + i, x + i, scale, along, add, dx + i, n - i);
}

static void norm_weight(const float *dy, const float *x, float r, double *sum, size_t n)
{
    const vf scale = vf_set1(r);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vf a = vf_mul(vf_mul(vf_load(dy + i), vf_load(x + i)), scale);
        vd_store(sum + i, vd_add(vd_load(sum + i), a));
    }
    for (; i < n; i++)
        sum[i] += (double)(dy[i] * x[i] * r);
}

/* ---- swiglu ---- */

SIMD_INLINE void swiglu_part(float *gate, float *up, const float *dy, size_t t)
{
    const vf g = load(gate, t), d = load(dy, t), one = vf_set1(1);
    const vf s = vf_div(one, vf_add(one, vf_exp(vf_sub(vf_set1(0), g)))), gs = vf_mul(g, s);
    const vf slope = vf_fma(gs, vf_sub(one, s), s);
    store(gate, vf_mul(vf_mul(d, load(up, t)), slope), t);
    store(up, vf_mul(d, gs), t);
}

static void swiglu(float *gate, float *up, const float *dy, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        swiglu_part(gate + i, up + i, dy + i, LANES);
    if (i < n)
        swiglu_part(gate + i, up + i, dy + i, n - i);
}

/* ---- the loss ---- */

typedef struct kl_factors {
    vf shift, factor, teacher_shift, teacher_factor, scale;
} kl_factors;

SIMD_INLINE vd kl_part(float *logits, const float *teacher, const kl_factors *k, size_t n,
                       vd sum)
{
    const vf own = load(logits, n), wanted = load(teacher, n);
    const vf p = vf_mul(vf_exp(vf_sub(own, k->shift)), k->factor);
    vf t = vf_mul(vf_exp(vf_sub(wanted, k->teacher_shift)), k->teacher_factor);
    store(logits, vf_mul(k->scale, vf_sub(p, t)), n);
    t = n < LANES ? vf_fill_after(t, n, 0) : t;
    return vd_mul_add(vd_from(t), vd_from(vf_sub(wanted, own)), sum);
}

static double kl(float *logits, const float *teacher, size_t n, const float shift[2],
                 const float factor[2], float scale)
{
    const kl_factors k = {vf_set1(shift[0]), vf_set1(factor[0]), vf_set1(shift[1]),
                          vf_set1(factor[1]), vf_set1(scale)};
    vd16 sum = vd16_zero();
    size_t i = 0;
    for (; i + SIMD_SUM <= n; i += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++)
            sum.part[p] = kl_part(logits + i + p * LANES, teacher + i + p * LANES, &k, LANES,
                                  sum.part[p]);
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++, i += LANES)
        if (i < n)
            sum.part[p] =
                kl_part(logits + i, teacher + i, &k, simd_lanes_left(n, i), sum.part[p]);
    return vd16_sum(sum);
}

const vptq_cpu_gradients VPTQ_SIMD_SYMBOL(vptq_cpu_gradients) = {
    .softmax = softmax,
    .norm_along = norm_along,
    .norm = norm,
    .norm_weight = norm_weight,
    .swiglu = swiglu,
    .kl = kl,
};
