/* Internal to lib/backend/cpu: the inner loops of plus_plus, compiled for every instruction set
 * from plus_plus_simd.c. */
#ifndef VPTQ_BACKEND_CPU_PLUS_PLUS_H
#define VPTQ_BACKEND_CPU_PLUS_PLUS_H

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"

/* Dimension e of point i is xt[e * m + i]; m, begin and end are multiples of 16, and a call
 * gets at most VPTQ_PLUS_PLUS_CHUNK points. */
typedef struct vptq_plus_plus_points {
    size_t m, v;
    float *xt; /* [v][m] */
    float *w;  /* [m]; 0 for the padding to a multiple of 16 */
    float *d;  /* [m] squared distance to the nearest centroid so far */
} vptq_plus_plus_points;

typedef struct vptq_plus_plus_loops {
    /* d = min(d, |x - c|^2) over points begin .. end - 1; returns the sum of w d. */
    double (*add)(const vptq_plus_plus_points *s, const float *c, size_t begin, size_t end);
    /* Adds centroid `last`; sums[t] = the sum of w d if c[t] of c [TRIALS, v] were added, too.
     */
    void (*probe)(const vptq_plus_plus_points *s, const float *last, const float *c,
                  size_t begin, size_t end, double *sums);
} vptq_plus_plus_loops;

VPTQ_SIMD_TABLES(vptq_plus_plus_loops, vptq_plus_plus_loops);

#endif
