/* How many clocks the shared memory of a GPU takes for the table look-ups of a run-time layout:
 * the layout's streams replayed access by access, without a GPU.  Plain C, no CUDA.
 *
 * The model knows banks and addresses only, nothing of slots, copies or ranks: 32 banks of 4
 * bytes; an access of 4, 8, 16 bytes a lane runs in phases of 32, 16, 8 consecutive lanes; a
 * phase takes as many clocks ("wavefronts") as the bank with the most different words asked of
 * it has such words. */
#ifndef VPTQ_TESTS_SUPPORT_VBANKS_H
#define VPTQ_TESTS_SUPPORT_VBANKS_H

#include "lib/backend/cuda/plan_layout.h"

/* Wavefronts of one access of a warp: byte addresses [32], multiples of `bytes` (4, 8, 16). */
uint32_t vbanks_wavefronts(const uint32_t *addresses, uint32_t bytes);

typedef struct vbanks_count {
    uint64_t tiles;                  /* of 32 indices */
    uint64_t main, residual;         /* wavefronts of all pieces and tails of a codebook */
    double main_mean, residual_mean; /* per tile; 0 without tiles */
} vbanks_count;

/* The look-ups of one segment, or of all; tables in global memory count nothing. */
vbanks_count vbanks_count_segment(const vptq_cuda_segment *s);
vbanks_count vbanks_count_layout(const vptq_cuda_layout *l);

#endif
