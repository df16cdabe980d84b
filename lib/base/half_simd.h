/* Array conversions of half.h, one set per instruction set; internal to half.c.  All give the
 * bits of the scalar forms, NaN payloads included. */
#ifndef VPTQ_BASE_HALF_SIMD_H
#define VPTQ_BASE_HALF_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Element i of arrays of any alignment (tensors of a file lie where they lie). */
static inline uint16_t vptq_load_u16(const uint16_t *p, size_t i)
{
    uint16_t x;
    memcpy(&x, (const char *)p + i * sizeof x, sizeof x);
    return x;
}

static inline float vptq_load_f32(const float *p, size_t i)
{
    float x;
    memcpy(&x, (const char *)p + i * sizeof x, sizeof x);
    return x;
}

static inline void vptq_store_u16(uint16_t *p, size_t i, uint16_t x)
{
    memcpy((char *)p + i * sizeof x, &x, sizeof x);
}

static inline void vptq_store_f32(float *p, size_t i, float x)
{
    memcpy((char *)p + i * sizeof x, &x, sizeof x);
}

void vptq_f16_to_f32_avx2(const uint16_t *src, float *dst, size_t n);
void vptq_f32_to_f16_avx2(const float *src, uint16_t *dst, size_t n);
void vptq_f16_to_f32_avx512(const uint16_t *src, float *dst, size_t n);
void vptq_f32_to_f16_avx512(const float *src, uint16_t *dst, size_t n);

#endif
