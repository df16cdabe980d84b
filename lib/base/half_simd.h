/* Internal to half.c: array conversions, one set per SIMD level. */
#ifndef VPTQ_BASE_HALF_SIMD_H
#define VPTQ_BASE_HALF_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/cpu.h"

/* Element i of an array of any alignment, such as a mapped tensor. */
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

typedef struct vptq_half_kernels {
    void (*widen)(const uint16_t *src, float *dst, size_t n);  /* float16 to float */
    void (*narrow)(const float *src, uint16_t *dst, size_t n); /* float to float16 */
    void (*narrow_bf16)(const float *src, uint16_t *dst, size_t n);
} vptq_half_kernels;

VPTQ_SIMD_TABLES(vptq_half_kernels, vptq_half_kernels);

#endif
