/* Converts rows of float16 and bfloat16, with the kernels of the running processor. */
#include "lib/base/half.h"

#include <string.h>

#include "lib/base/cpu.h"
#include "lib/base/half_simd.h"

/* Below this length, choosing the kernel costs more than it saves. */
enum { SIMD_MIN = 64 };

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float vptq_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 0x1f;
    uint32_t mantissa = h & 0x3ff;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact in binary32 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return float_of(bits_of(magnitude) | sign);
    }
    if (exponent == 31) /* infinity, or a NaN made quiet */
        return float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t vptq_f32_to_f16(float f)
{
    uint32_t u = bits_of(f);
    uint32_t sign = u >> 16 & 0x8000;
    uint32_t a = u & 0x7fffffff;
    if (a > 0x7f800000) /* NaN: its top payload bits, made quiet */
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: a multiple of 2^-24 */
        /* Adding 0.5 leaves steps of 2^-24 in the sum, so the addition does the rounding. */
        float sum = float_of(a) + 0.5f;
        return (uint16_t)(sign | (bits_of(sum) - bits_of(0.5f)));
    }
    uint32_t odd = a >> 13 & 1;
    return (uint16_t)(sign | (a - (112u << 23) + 0xfff + odd) >> 13);
}

float vptq_bf16_to_f32(uint16_t b)
{
    return float_of((uint32_t)b << 16);
}

uint16_t vptq_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Short arrays are not worth the call that asks for the level. */
static const vptq_half_kernels *kernels_for(size_t n)
{
    const vptq_simd simd = n < SIMD_MIN ? VPTQ_SIMD_NONE : vptq_cpu_simd();
    return VPTQ_SIMD_SELECT(simd, vptq_half_kernels);
}

void vptq_f16_to_f32_n(const uint16_t *src, float *dst, size_t n)
{
    kernels_for(n)->widen(src, dst, n);
}

void vptq_f32_to_f16_n(const float *src, uint16_t *dst, size_t n)
{
    kernels_for(n)->narrow(src, dst, n);
}

/* A shift, which every compiler vectorizes. */
void vptq_bf16_to_f32_n(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        vptq_store_f32(dst, i, vptq_bf16_to_f32(vptq_load_u16(src, i)));
}

void vptq_f32_to_bf16_n(const float *src, uint16_t *dst, size_t n)
{
    kernels_for(n)->narrow_bf16(src, dst, n);
}
