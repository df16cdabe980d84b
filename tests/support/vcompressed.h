/* Matrices of the compressed-tensors layout whose codes, scales and zero points follow from the
 * formula of tests/golden/make_compressed.py. */
#ifndef VPTQ_TESTS_SUPPORT_VCOMPRESSED_H
#define VPTQ_TESTS_SUPPORT_VCOMPRESSED_H

#include "formats/hf/compressed.h"

typedef struct vcompressed {
    vptq_compressed_matrix m; /* of name "P" */
    uint32_t *codes;
    float *scales;
    uint8_t *zeros;
} vcompressed;

void vcompressed_make(vcompressed *x, vptq_uniform_shape s, vptq_dtype storage,
                      uint32_t activation_bits);
void vcompressed_free(vcompressed *x);

/* The layout in which the tensors of a matrix are written. */
vptq_compressed_layout vcompressed_layout(const vptq_compressed_matrix *m);

/* Opens a set of the matrix's tensors without the one of a name and with another one, unless
 * NULL. The caller releases it. */
void vcompressed_set(const vptq_compressed_matrix *m, vptq_tensor_set *set, const char *without,
                     const vptq_tensor *extra);

#endif
