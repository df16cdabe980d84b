/* Internal to kmeans/: the inner loops of seeding, compiled for every instruction set from
 * seed_simd.c with the same bits as result. */
#ifndef VPTQ_KMEANS_SEED_H
#define VPTQ_KMEANS_SEED_H

#include <stddef.h>

#include "kmeans/kmeans.h"
#include "lib/base/cpu.h"

enum {
    VPTQ_SEED_LANES = 16,
    VPTQ_SEED_TRIALS = VPTQ_KMEANS_TRIALS,
    VPTQ_SEED_CHUNK = 1024, /* maximum points per call of a loop */
};

/* Dimension e of point i is xt[e * m + i]; m, begin and end are multiples of 16. */
typedef struct vptq_seed_points {
    size_t m, v;
    float *xt; /* [v][m] */
    float *w;  /* [m]; 0 for the padding to a multiple of 16 */
    float *d;  /* [m] squared distance to the nearest centroid so far */
} vptq_seed_points;

typedef struct vptq_seed_loops {
    /* d = min(d, |x - c|^2) over points begin .. end - 1; returns the sum of w d. */
    double (*add)(const vptq_seed_points *s, const float *c, size_t begin, size_t end);
    /* Adds centroid `last`; sums[t] = the sum of w d if c[t] of c [TRIALS, v] were added, too.
     */
    void (*probe)(const vptq_seed_points *s, const float *last, const float *c, size_t begin,
                  size_t end, double *sums);
} vptq_seed_loops;

VPTQ_SIMD_TABLES(vptq_seed_loops, vptq_seed_loops);

#endif
