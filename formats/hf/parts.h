/* Internal: reads the tensors that store one linear layer, P.weight_packed, P.scales and so on,
 * and checks their types and shapes.  What the readers of quantized layers share. */
#ifndef VPTQ_FORMATS_HF_PARTS_H
#define VPTQ_FORMATS_HF_PARTS_H

#include "formats/tensor.h"

typedef struct vptq_parts {
    const vptq_tensor_set *set;
    const char *name, *file; /* module path P; file for messages */
    vptq_arena *arena;
    vptq_err *err;
} vptq_parts;

/* Tensor P.`part`, or NULL. */
const vptq_tensor *vptq_parts_find(const vptq_parts *p, const char *part);
/* The same, but fails if it is missing or damaged. */
vptq_status vptq_parts_need(const vptq_parts *p, const char *part,
                            vptq_tensor *out) VPTQ_MUST_CHECK;

/* VPTQ_E_SHAPE naming the matrix unless it has 1 to INT32_MAX rows and columns. */
vptq_status vptq_parts_check_size(const vptq_parts *p, uint64_t out,
                                  uint64_t in) VPTQ_MUST_CHECK;
vptq_status vptq_parts_check_type(const vptq_parts *p, const vptq_tensor *t,
                                  vptq_dtype type) VPTQ_MUST_CHECK;
/* [rows, cols], or [rows] if cols is 0. */
vptq_status vptq_parts_check_shape(const vptq_parts *p, const vptq_tensor *t, uint64_t rows,
                                   uint64_t cols) VPTQ_MUST_CHECK;

/* A tensor's bytes in memory, aligned to its elements. */
vptq_status vptq_parts_load(const vptq_parts *p, const vptq_tensor *t,
                            const void **out) VPTQ_MUST_CHECK;
/* A matrix of scales, [out, groups] or [groups, out], as floats [out][groups].
 * VPTQ_E_UNSUPPORTED unless F16 or BF16; VPTQ_E_NUMERIC unless finite and positive. */
vptq_status vptq_parts_load_scales(const vptq_parts *p, const vptq_tensor *t, bool groups_first,
                                   float **out) VPTQ_MUST_CHECK;
/* VPTQ_E_FORMAT naming the first column that is in none of n groups. */
vptq_status vptq_parts_check_groups(const vptq_parts *p, const vptq_tensor *t,
                                    const int32_t *groups, size_t columns,
                                    uint32_t n) VPTQ_MUST_CHECK;

#endif
