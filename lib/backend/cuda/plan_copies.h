/* Which copy of a codebook each lane reads, so that a warp waits least.  Plain C, no CUDA.
 *
 * An access of a warp to rows of 16 bytes runs in 4 phases of 8 lanes (of 8 bytes: 2 of 16); a
 * phase takes as many clocks as the fullest slot of a 128-byte line has different rows, as
 * equal rows are sent to all lanes at once.  Every lane may read its centroid from any copy
 * that holds it.  This picks the copies of a phase so that the fullest slot is as empty as
 * can be: the least capacity for which a bipartite matching of rows to slots exists, found
 * exactly by augmenting paths.  What is decoded never depends on the choice. */
#ifndef VPTQ_BACKEND_CUDA_PLAN_COPIES_H
#define VPTQ_BACKEND_CUDA_PLAN_COPIES_H

#include "lib/backend/cuda/plan_table.h"

/* Rows of one phase: ranks [slots], UINT32_MAX for a lane that pads (it reads along with
 * another lane; row 0 when all pad); `lane` is the first lane of the phase.  Returns the rows
 * in the fullest slot, 1 when all pad.  With replicas, each lane has its own row. */
uint32_t vptq_cuda_choose_rows(const vptq_cuda_table *t, const uint32_t *ranks, uint32_t lane,
                               uint16_t *rows);

#endif
