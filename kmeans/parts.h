/* The parts of k-means that kmeans.c puts together; arrays are in host memory. */
#ifndef VPTQ_KMEANS_PARTS_H
#define VPTQ_KMEANS_PARTS_H

#include "kmeans/kmeans.h"

typedef struct vptq_kmeans_points {
    const vptq_ctx *ctx;
    size_t n;
    uint32_t v;
    const float *x; /* [n, v] */
    const float *w; /* [n], or NULL for ones */
} vptq_kmeans_points;

/* First centroids [k, v] by opt->seeding.  Needs points->n >= opt->k. */
vptq_status vptq_kmeans_seed(const vptq_kmeans_points *points, const vptq_kmeans_options *opt,
                             float *centroids, vptq_err *err);

/* Moves the empty clusters of `centroids` [k, v] (those with weights[j] == 0) onto the points
 * that are served worst: largest w * |x - c_label|^2 before, lowest index on ties, equal points
 * once.  `before` [k, v] is the codebook that `labels` refer to.  *repaired = how many were
 * moved: fewer than were empty when too few points differ from their centroid. */
vptq_status vptq_kmeans_repair(const vptq_kmeans_points *points, uint32_t k,
                               const uint32_t *labels, const float *before,
                               const double *weights, float *centroids, uint32_t *repaired,
                               vptq_err *err);

#endif
