/* Matrices of additive codes with random codes and numbers. */
#ifndef VPTQ_TESTS_SUPPORT_VADDITIVE_H
#define VPTQ_TESTS_SUPPORT_VADDITIVE_H

#include "formats/vptq/additive.h"

typedef struct vadditive {
    vptq_additive_matrix m; /* of name "P" */
    uint32_t *codes[VPTQ_ADDITIVE_MAX_STAGES];
    float *codebooks[VPTQ_ADDITIVE_MAX_STAGES];
    float *scales;
    uint8_t *row_signs, *column_signs;
} vadditive;

/* The shape must be valid.  Numbers are exact in the storage type. */
void vadditive_make(vadditive *x, vptq_additive_shape s, vptq_dtype storage);
void vadditive_free(vadditive *x);

/* Returns a hash of all stored bytes. */
uint64_t vadditive_digest(const vptq_additive *a);

/* Opens a set of the matrix's tensors without the one of a name and with another one, unless
 * NULL. The caller releases it. */
void vadditive_set(const vptq_additive_matrix *m, vptq_tensor_set *set, const char *without,
                   const vptq_tensor *extra);

/* Shapes of each kind. */
vptq_additive_shape vadditive_ragged(void);  /* 5 x 20, blocks of 2 x 12, two stages, scales */
vptq_additive_shape vadditive_lattice(void); /* 12 x 40, two stages, rotated */

#endif
