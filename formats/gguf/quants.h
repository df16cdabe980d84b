/* GGUF block types: dequantized, and one of them made, bit for bit as ggml's reference code
 * does it in float. */
#ifndef VPTQ_FORMATS_GGUF_QUANTS_H
#define VPTQ_FORMATS_GGUF_QUANTS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* n elements (a multiple of the block) of a block type into dst. */
void vptq_ggml_dequantize(vptq_dtype type, const uint8_t *src, size_t n, float *dst);

/* n finite floats (a multiple of 32) as Q8_0: 34 bytes for each 32. */
void vptq_ggml_quantize_q8_0(const float *x, size_t n, uint8_t *dst);

#endif
