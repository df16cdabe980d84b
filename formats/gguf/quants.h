/* Internal: dequantizes GGUF block types and quantizes to them, bit for bit like ggml's
 * reference code.  Scales whose inverse is infinite are left undefined there; we store numbers
 * that stand for 0. */
#ifndef VPTQ_FORMATS_GGUF_QUANTS_H
#define VPTQ_FORMATS_GGUF_QUANTS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* Dequantizes n elements (a multiple of the block) into dst. */
void vptq_ggml_dequantize(vptq_dtype type, const uint8_t *src, size_t n, float *dst);

/* Quantizes n floats (a multiple of the block), whose magnitude is at most the type's limit. */
void vptq_ggml_quantize(vptq_dtype type, const float *x, size_t n, uint8_t *dst);
/* Largest magnitude for which all scales are finite; 0 for a type that is not a block type. */
float vptq_ggml_limit(vptq_dtype type);

#endif
