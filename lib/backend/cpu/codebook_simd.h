/* Internal: scores of vectors against laid-out codebooks (codebook.h), shared by the kernels
 * that search them.  A score is summed in the same order everywhere, so that it has the same
 * bits in every function. */
#ifndef VPTQ_BACKEND_CPU_CODEBOOK_SIMD_H
#define VPTQ_BACKEND_CPU_CODEBOOK_SIMD_H

#include <float.h>
#include <math.h>

#include "lib/backend/cpu/codebook.h"
#include "lib/backend/dev.h"
#include "lib/base/simd.h"
#include "lib/base/vq.h"

enum {
    LANES = SIMD_LANES,
    PARTS = VPTQ_CODEBOOK_LANES / LANES, /* registers for one score per centroid of a block */
    SETS = 2,                            /* registers for one score per vector of a tile */
    TILE = SETS * LANES,
    STEP = 4, /* centroids whose scores are summed at the same time */
    MAX_CLASSES = 2 * VPTQ_MAX_NEIGHBORS
};

/* Transposes a tile: xt [v][sets * LANES] from x [count, v]; lanes after `count` repeat the
 * last vector. */
SIMD_INLINE void transpose_tile(size_t v, size_t sets, size_t count, const float *x, float *xt)
{
    for (size_t l = 0; l < sets * LANES; l++) {
        const float *from = x + (l < count ? l : count - 1) * v;
        for (size_t d = 0; d < v; d++)
            xt[d * sets * LANES + l] = from[d];
    }
}

/* top = max(top, scores of STEP centroids), lane by lane; c: the first of them in its block. */
SIMD_INLINE void best_of_step(const float *c, size_t v, size_t sets, const float *xt,
                              vf top[SETS])
{
    vf score[STEP][SETS];
    for (size_t l = 0; l < STEP; l++) {
        for (size_t s = 0; s < sets; s++)
            score[l][s] = vf_set1(c[l]);
    }
#pragma GCC unroll 16
    for (size_t d = 0; d < v; d++) {
        vf x[SETS];
        for (size_t s = 0; s < sets; s++)
            x[s] = vf_load(xt + (d * sets + s) * LANES);
        for (size_t l = 0; l < STEP; l++) {
            const vf cl = vf_set1(c[(1 + d) * VPTQ_CODEBOOK_LANES + l]);
            for (size_t s = 0; s < sets; s++)
                score[l][s] = vf_fma(x[s], cl, score[l][s]);
        }
    }
    for (size_t l = 0; l < STEP; l++)
        for (size_t s = 0; s < sets; s++)
            top[s] = vf_max(score[l][s], top[s]);
}

/* Scores x against the 16 centroids of block c. */
SIMD_INLINE void score_block(const float *c, size_t v, const float *x, vf s[PARTS])
{
    for (size_t p = 0; p < PARTS; p++)
        s[p] = vf_load(c + p * LANES);
#pragma GCC unroll 16
    for (size_t d = 0; d < v; d++) {
        for (size_t p = 0; p < PARTS; p++)
            s[p] = vf_fma(vf_load(c + (1 + d) * VPTQ_CODEBOOK_LANES + p * LANES), vf_set1(x[d]),
                          s[p]);
    }
}

/* Scores x against all centroids: score [blocks * 16]. */
SIMD_INLINE void score_codebook(const vptq_codebook *codebook, size_t v, const float *x,
                                float *score)
{
    for (size_t b = 0; b < codebook->blocks; b++) {
        vf s[PARTS];
        score_block(codebook->data + b * (1 + v) * VPTQ_CODEBOOK_LANES, v, x, s);
        for (size_t p = 0; p < PARTS; p++)
            vf_store(score + b * VPTQ_CODEBOOK_LANES + p * LANES, s[p]);
    }
}

/* Returns the `rank`-th largest of n scores; n is a multiple of LANES. */
static float ranked(const float *score, size_t n, size_t rank)
{
    float bound = INFINITY;
    for (size_t i = 0; i < n; i++) {
        size_t larger = 0;
        for (size_t e = 0; e < n; e += LANES)
            larger +=
                (size_t)__builtin_popcount(vf_greater(vf_load(score + e), vf_set1(score[i])));
        if (larger < rank && score[i] < bound)
            bound = score[i];
    }
    return bound;
}

/* Returns a bound that `beam` of n scores reach, and few others: from the maxima of `classes`
 * classes, a multiple of 16 and at least the beam unless there are fewer scores. */
SIMD_INLINE float bound_of(const float *score, size_t n, size_t classes, size_t beam)
{
    float top[MAX_CLASSES];
    classes = classes < n ? classes : n;
    for (size_t e = 0; e < classes; e += LANES) {
        vf max = vf_max(vf_load(score + e), vf_set1(-INFINITY));
        for (size_t i = e + classes; i < n; i += classes)
            max = vf_max(vf_load(score + i), max);
        vf_store(top + e, max);
    }
    const float bound = ranked(top, classes, beam < classes ? beam : classes);
    return bound > -FLT_MAX ? bound : -FLT_MAX;
}

/* Scores x against the neighbors of centroid c. */
SIMD_INLINE void score_neighbors(const vptq_pair_codebooks *b, size_t v, uint32_t c,
                                 const float *x, float *score)
{
    const float *data = b->neighbor_data + c * (b->neighbors * (1 + v));
    for (size_t e = 0; e < b->neighbors;
         e += VPTQ_CODEBOOK_LANES, data += (1 + v) * VPTQ_CODEBOOK_LANES) {
        vf s[PARTS];
        score_block(data, v, x, s);
        for (size_t p = 0; p < PARTS; p++)
            vf_store(score + e + p * LANES, s[p]);
    }
}

#endif
