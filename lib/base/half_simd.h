/* Array conversions of half.h, one set per instruction set; internal to half.c.  All give the
 * bits of the scalar forms, NaN payloads included. */
#ifndef VPTQ_BASE_HALF_SIMD_H
#define VPTQ_BASE_HALF_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Element i of an array that files may place at an odd address. */
static inline uint16_t vptq_half_load(const uint16_t *src, size_t i)
{
    uint16_t h;
    memcpy(&h, (const char *)src + i * sizeof h, sizeof h);
    return h;
}

void vptq_f16_to_f32_avx2(const uint16_t *src, float *dst, size_t n);
void vptq_f32_to_f16_avx2(const float *src, uint16_t *dst, size_t n);
void vptq_f16_to_f32_avx512(const uint16_t *src, float *dst, size_t n);
void vptq_f32_to_f16_avx512(const float *src, uint16_t *dst, size_t n);

#endif
