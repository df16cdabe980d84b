/* Internal: reads numpy's .npy files (versions 1 to 3) of one array of float32 or float64, by
 * mapping: magic, version, a Python dictionary of type, order and shape, then the numbers.
 * Checks lengths against the file, the dictionary's three keys, and sizes for overflow.
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef VPTQ_FORMATS_TORCH_NPY_H
#define VPTQ_FORMATS_TORCH_NPY_H

#include "formats/tensor.h"

typedef struct vptq_npy {
    vptq_map map;
    vptq_tensor tensor; /* type F32 or F64, dims, shape, data, bytes, file (borrowed path) */
    bool fortran;       /* column-major: the first index varies fastest */
} vptq_npy;

vptq_status vptq_npy_open(const char *path, vptq_npy *a, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_npy_release(vptq_npy *a);

/* Element (i, j) of a matrix. */
double vptq_npy_at(const vptq_npy *a, size_t i, size_t j);

#endif
