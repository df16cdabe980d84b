/* Internal: conversions between binary32 and the two 16-bit storage types, rounding to nearest
 * even, with subnormals, infinities and NaN kept (a NaN stays a NaN).  Array forms use the
 * processor's instructions (F16C, AVX-512, NEON) and give the same bits as the scalar forms. */
#ifndef VPTQ_BASE_HALF_H
#define VPTQ_BASE_HALF_H

#include <stddef.h>
#include <stdint.h>

float vptq_f16_to_f32(uint16_t h);
uint16_t vptq_f32_to_f16(float f); /* overflow gives infinity */
float vptq_bf16_to_f32(uint16_t b);
uint16_t vptq_f32_to_bf16(float f);

void vptq_f16_to_f32_n(const uint16_t *src, float *dst, size_t n); /* any alignment */
void vptq_f32_to_f16_n(const float *src, uint16_t *dst, size_t n);
void vptq_bf16_to_f32_n(const uint16_t *src, float *dst, size_t n);
void vptq_f32_to_bf16_n(const float *src, uint16_t *dst, size_t n);

#endif
