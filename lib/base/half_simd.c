/* Conversions of arrays between float and the 16-bit types: the kernels of half.c.  All levels
 * give the bits of the scalar functions, NaN payloads included. */
#include "lib/base/half_simd.h"

#include "lib/base/half.h"
#include "lib/base/simd.h"

static void widen(const uint16_t *src, float *dst, size_t n)
{
    size_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        vf_store(dst + i, vf_load_f16(src + i));
    for (; i < n; i++)
        vptq_store_f32(dst, i, vptq_f16_to_f32(vptq_load_u16(src, i)));
}

static void narrow(const float *src, uint16_t *dst, size_t n)
{
    size_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES)
        vf_store_f16(dst + i, vf_load(src + i));
    for (; i < n; i++)
        vptq_store_u16(dst, i, vptq_f32_to_f16(vptq_load_f32(src, i)));
}

typedef uint32_t vu __attribute__((vector_size(SIMD_LANES * sizeof(uint32_t))));
typedef uint16_t vh __attribute__((vector_size(SIMD_LANES * sizeof(uint16_t))));

static void narrow_bf16(const float *src, uint16_t *dst, size_t n)
{
    size_t i = 0;
    for (; i + SIMD_LANES <= n; i += SIMD_LANES) {
        const vu u = (vu)vf_load(src + i), nan = (vu)((u & 0x7fffffff) > 0x7f800000);
        const vu nearest = u + 0x7fff + (u >> 16 & 1), quiet = u | 0x400000;
        const vh h = __builtin_convertvector(((nan & quiet) | (~nan & nearest)) >> 16, vh);
        memcpy(dst + i, &h, sizeof h);
    }
    for (; i < n; i++)
        vptq_store_u16(dst, i, vptq_f32_to_bf16(vptq_load_f32(src, i)));
}

const vptq_half_kernels VPTQ_SIMD_SYMBOL(vptq_half_kernels) = {widen, narrow, narrow_bf16};
