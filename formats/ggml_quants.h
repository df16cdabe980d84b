/* Dequantization of GGUF block types, bit for bit as ggml's reference code gives it in float.
 */
#ifndef VPTQ_FORMATS_GGML_QUANTS_H
#define VPTQ_FORMATS_GGML_QUANTS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* n elements (a multiple of the block) of a block type into dst. */
void vptq_ggml_dequantize(vptq_dtype type, const uint8_t *src, size_t n, float *dst);

#endif
