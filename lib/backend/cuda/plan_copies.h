/* Internal: chooses which copy of a codebook each lane reads, to minimize bank conflicts. Plain
 * C, no CUDA.
 *
 * An access of a warp to rows of 16 bytes runs in 4 phases of 8 lanes (of 8 bytes: 2 of 16). A
 * phase takes as many clocks as the fullest slot of a 128-byte line has different rows; equal
 * rows are broadcast. Every lane may read its centroid from any copy that holds it. The choice
 * minimizes the fullest slot: it finds the smallest capacity for which a bipartite matching of
 * rows to slots exists, exactly, by augmenting paths. The choice never changes what is decoded.
 */
#ifndef VPTQ_BACKEND_CUDA_PLAN_COPIES_H
#define VPTQ_BACKEND_CUDA_PLAN_COPIES_H

#include "lib/backend/cuda/plan_table.h"

/* Chooses the rows of one phase. ranks [slots]; UINT32_MAX for padding, which reads along with
 * another lane (row 0 if all are padding). `lane` is the first lane of the phase. Returns the
 * number of rows in the fullest slot, 1 for padding only. With replicas each lane has a row of
 * its own. */
uint32_t vptq_cuda_choose_rows(const vptq_cuda_table *t, const uint32_t *ranks, uint32_t lane,
                               uint16_t *rows);

#endif
