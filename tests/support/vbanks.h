/* Counts the clocks that a GPU's shared memory takes for the table lookups of a run-time
 * layout, by replaying its streams access by access without a GPU.
 *
 * The model knows only banks and addresses, not slots, copies or ranks: 32 banks of 4 bytes; an
 * access of 4, 8 or 16 bytes per lane runs in phases of 32, 16 or 8 consecutive lanes; a phase
 * takes as many clocks ("wavefronts") as the largest number of different words in one bank. */
#ifndef VPTQ_TESTS_SUPPORT_VBANKS_H
#define VPTQ_TESTS_SUPPORT_VBANKS_H

#include "lib/backend/cuda/plan_layout.h"

/* Wavefronts of one access of a warp; addresses [32] in bytes, multiples of `bytes` (4, 8 or
 * 16). */
uint32_t vbanks_wavefronts(const uint32_t *addresses, uint32_t bytes);

typedef struct vbanks_count {
    uint64_t tiles;                  /* tiles of 32 indices */
    uint64_t main, residual;         /* wavefronts for all pieces and tails of a codebook */
    double main_mean, residual_mean; /* per tile, 0 without tiles */
} vbanks_count;

/* Counts the lookups of a whole layout, without those of tables in global memory. */
vbanks_count vbanks_count_layout(const vptq_cuda_layout *l);

/* Table row of the residual code at `at` for a lane. */
static inline uint32_t vbanks_residual_row(const vptq_cuda_segment *s, size_t at, uint32_t lane)
{
    return s->codes8 ? vptq_cuda_replica_row(&s->residual, s->codes8[at], lane)
                     : s->codes16[at];
}

#endif
