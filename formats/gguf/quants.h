/* Internal: dequantizes GGUF block types and quantizes to Q8_0 and Q6_K, bit for bit like
 * ggml's reference code. The six-bit numbers of a run whose scale rounds to 0 decode to 0
 * whatever they are; unlike ggml, we store 0. */
#ifndef VPTQ_FORMATS_GGUF_QUANTS_H
#define VPTQ_FORMATS_GGUF_QUANTS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* Dequantizes n elements (a multiple of the block) into dst. */
void vptq_ggml_dequantize(vptq_dtype type, const uint8_t *src, size_t n, float *dst);

/* Quantizes n floats (a multiple of the block) to Q8_0 or Q6_K; their magnitude is at most
 * VPTQ_GGML_LIMIT, so that scales are finite. */
#define VPTQ_GGML_LIMIT (65504.0F * 127)
void vptq_ggml_quantize(vptq_dtype type, const float *x, size_t n, uint8_t *dst);

#endif
