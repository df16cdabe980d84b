/* Internal: the loops over centroids of vq_descend_output (descend_output_simd.c).  Codebooks
 * are laid out as in codebook.h.
 *
 * Half the cost of centroid c is h * form[c] + c.w with form[c] = c^T K c / 2, summed in this
 * order with fused multiplications, lane by lane: it depends neither on the level nor on the
 * vectors that are searched together. */
#ifndef VPTQ_BACKEND_CPU_DESCEND_OUTPUT_H
#define VPTQ_BACKEND_CPU_DESCEND_OUTPUT_H

#include "lib/backend/cpu/codebook.h"

enum { VPTQ_OUTPUT_SETS = 4 }; /* vectors that are searched together */

typedef struct vptq_output_kernels {
    /* Fills form [blocks * 16]; k [v, v] is K for the rows of a vector, symmetric: only the
     * lower triangle is read. */
    void (*forms)(const vptq_codebook *b, const float *k, float *form);
    /* idx[i] = the first centroid with the least cost for vector i of n <= VPTQ_OUTPUT_SETS,
     * unless that is not less than the cost of the old idx[i]; w [n, v]. */
    void (*choose)(const vptq_codebook *b, size_t n, float h, const float *const *form,
                   const float *w, uint32_t *idx);
} vptq_output_kernels;

VPTQ_SIMD_TABLES(vptq_output_kernels, vptq_output_kernels);

#endif
