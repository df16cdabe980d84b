/* Internal: the element types of all file formats. */
#ifndef VPTQ_BASE_DTYPE_H
#define VPTQ_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/status.h"
#include "lib/vptq.h"

typedef struct vptq_dtype_info {
    const char *name;        /* in messages: "F16", "Q4_1" */
    const char *safetensors; /* name in a safetensors header, NULL for block types */
    size_t block;            /* elements per block (1 for plain types) */
    size_t bytes;            /* bytes per block */
    bool is_float;           /* real numbers, block types included */
} vptq_dtype_info;

enum { VPTQ_DTYPE_MAX_BLOCK = 256 };

const vptq_dtype_info *vptq_dtype_get(vptq_dtype t); /* never NULL for a valid enum */

/* Finds a type by its safetensors name; VPTQ_E_UNSUPPORTED if unknown. */
vptq_status vptq_dtype_from_safetensors(const char *name, vptq_dtype *out, vptq_err *err);

/* Parses the storage type of a packed file, "f16" or "bf16", or "f32" for a plain directory. */
vptq_status vptq_dtype_from_option(const char *name, vptq_dtype *out, vptq_err *err);

/* Bytes of `elements` elements (a multiple of the block); false on overflow or a partial block.
 */
bool vptq_dtype_bytes(vptq_dtype t, size_t elements, size_t *out);

/* x as a reader of a file with storage type t sees it: rounded for F16 and BF16. */
float vptq_round_to(vptq_dtype t, float x);
void vptq_round_to_n(vptq_dtype t, float *x, size_t n); /* in place */

#endif
