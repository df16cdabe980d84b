/* Internal: dequantizes GGUF block types and quantizes to Q8_0, bit for bit like ggml's
 * reference code.
 */
#ifndef VPTQ_FORMATS_GGUF_QUANTS_H
#define VPTQ_FORMATS_GGUF_QUANTS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* Dequantizes n elements (a multiple of the block) into dst. */
void vptq_ggml_dequantize(vptq_dtype type, const uint8_t *src, size_t n, float *dst);

/* Quantizes n finite floats (a multiple of 32) to Q8_0, 34 bytes per 32. */
void vptq_ggml_quantize_q8_0(const float *x, size_t n, uint8_t *dst);

#endif
