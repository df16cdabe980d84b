/* The kernels of vptq_uniform_kernels (uniform.h).  Lanes are rows, so every level rounds as
 * `ref` does. */
#include "lib/base/simd.h"

#include "lib/backend/cpu/uniform.h"

enum { LANES = SIMD_LANES };

/* vf_min and vf_max return their second argument where the first is NaN. */
static void widen(const float *z, float *lo, float *hi)
{
    for (size_t l = 0; l < VPTQ_PANEL; l += LANES) {
        const vf x = vf_load(z + l);
        vf_store(lo + l, vf_min(x, vf_load(lo + l)));
        vf_store(hi + l, vf_max(x, vf_load(hi + l)));
    }
}

typedef uint32_t vu __attribute__((vector_size(SIMD_LANES * sizeof(uint32_t))));

SIMD_INLINE vf round_bf16(vf x)
{
    const vu u = (vu)x, nearest = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
    return vf_select_equal(x, x, (vf)nearest, x); /* NaN stays */
}

SIMD_INLINE vf round_f16(vf x)
{
    uint16_t half[LANES];
    vf_store_f16(half, x);
    return vf_load_f16(half);
}

/* Clamps the distance to the zero point before it is rounded: vf_round takes small numbers
 * only, and both orders give the same, because the limits are whole numbers. */
static void quantize(const vptq_uniform_panel *p, const float *z, float *code, float *d)
{
    const vf max = vf_set1(p->max), none = vf_set1(0);
    for (size_t l = 0; l < VPTQ_PANEL; l += LANES) {
        const vf scale = vf_load(p->scale + l), zero = vf_load(p->zero + l);
        const vf steps = vf_div(vf_load(z + l), scale);
        const vf above = vf_max(steps, vf_sub(none, zero)); /* NaN: code 0 */
        const vf whole = vf_round(vf_min(above, vf_sub(max, zero)));
        const vf exact = vf_mul(whole, scale);
        vf_store(code + l, vf_add(whole, zero));
        vf_store(d + l, p->storage == VPTQ_F16 ? round_f16(exact) : round_bf16(exact));
    }
}

const vptq_uniform_kernels VPTQ_SIMD_SYMBOL(vptq_uniform_kernels) = {widen, quantize};
