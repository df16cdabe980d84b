/* Normally distributed random numbers for tests and benchmarks. */
#ifndef VPTQ_TESTS_SUPPORT_VNORMAL_H
#define VPTQ_TESTS_SUPPORT_VNORMAL_H

#include <math.h>

#include "lib/base/rng.h"

/* Mean 0, deviation 1: Box-Muller on the 128 bits of a counter.  The first uniform number is in
 * (0, 1], so that its logarithm is finite. */
static inline double vtest_rng_normal(const vptq_rng *rng, uint64_t counter)
{
    const uint32_t ctr[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), rng->stream[0],
                             rng->stream[1]};
    uint32_t x[4];
    vptq_philox4x32(ctr, rng->key, x);
    const uint64_t first = (uint64_t)x[1] << 32 | x[0], second = (uint64_t)x[3] << 32 | x[2];
    const double u = ((double)(first >> 11) + 1) * 0x1p-53;
    return sqrt(-2 * log(u)) *
           cos(6.283185307179586476925 * ((double)(second >> 11) * 0x1p-53));
}

#endif
