/* The inner loops of seeding, built for every instruction set from seed_simd.c; those
 * with fused operations give the same bits. */
#ifndef VPTQ_KMEANS_SEED_H
#define VPTQ_KMEANS_SEED_H

#include <stddef.h>

enum {
    VPTQ_SEED_LANES = 16,
    VPTQ_SEED_TRIALS = 8,   /* candidates per centroid */
    VPTQ_SEED_CHUNK = 1024, /* points that loops take at a time, at most */
};

/* Dimension e of point i is xt[e * m + i]; m, begin and end are multiples of 16. */
typedef struct vptq_seed_points {
    size_t m, v;
    float *xt; /* [v][m] */
    float *w;  /* [m]; 0 for what fills the last 16 */
    float *d;  /* [m] squared distance from the nearest centroid so far */
} vptq_seed_points;

typedef struct vptq_seed_loops {
    /* d = min(d, |x - c|^2) over points begin .. end - 1; gives the sum of w d. */
    double (*add)(const vptq_seed_points *s, const float *c, size_t begin, size_t end);
    /* Adds centroid `last`; sums[t] = the sum of w d as it would be with c[t] [TRIALS, v], too.
     */
    void (*probe)(const vptq_seed_points *s, const float *last, const float *c, size_t begin,
                  size_t end, double *sums);
} vptq_seed_loops;

extern const vptq_seed_loops vptq_seed_loops_none, vptq_seed_loops_avx2, vptq_seed_loops_avx512;

#endif
