/* Internal: counter-based random numbers (Philox4x32-10, Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", SC11).  A number is a pure function of (seed, matrix, group,
 * purpose, counter), so it depends neither on threads nor on earlier draws. */
#ifndef VPTQ_BASE_RNG_H
#define VPTQ_BASE_RNG_H

#include <stdint.h>

typedef enum {
    VPTQ_RNG_SAMPLE = 1,   /* subsampling of vectors or windows */
    VPTQ_RNG_SEEDING = 2,  /* k-means++ */
    VPTQ_RNG_GENERATE = 4, /* sampled text */
    VPTQ_RNG_TEST = 5,
    VPTQ_RNG_PROMPT = 6, /* prompts of a serving benchmark */
    VPTQ_RNG_TUNE = 7,   /* order of the windows of a tuning run */
    VPTQ_RNG_LABELS = 8, /* labels drawn from a model, for saliencies */
    VPTQ_RNG_ORDER = 9,  /* order of the vectors of a search over codes */
    VPTQ_RNG_SIGNS = 10  /* of a rotation */
} vptq_rng_purpose;

typedef struct vptq_rng {
    uint32_t key[2];
    uint32_t stream[2];
} vptq_rng;

/* The raw block function: 10 rounds of Philox4x32. */
void vptq_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

/* `matrix` and `group` identify the object that draws; 0 without one. */
vptq_rng vptq_rng_make(uint64_t seed, uint32_t matrix, uint32_t group,
                       vptq_rng_purpose purpose);
uint64_t vptq_rng_u64(const vptq_rng *rng, uint64_t counter);
double vptq_rng_uniform(const vptq_rng *rng, uint64_t counter); /* [0, 1), 53 bits */
uint64_t vptq_rng_below(const vptq_rng *rng, uint64_t counter, uint64_t n); /* [0, n), n >= 1 */

#endif
