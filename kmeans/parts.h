/* Internal to kmeans/: seeding and repair; arrays are in device memory. */
#ifndef VPTQ_KMEANS_PARTS_H
#define VPTQ_KMEANS_PARTS_H

#include "kmeans/kmeans.h"

typedef struct vptq_kmeans_points {
    vptq_device *dev;
    size_t n; /* below 2^32 */
    uint32_t v;
    const float *x; /* [n, v] */
    const float *w; /* [n], or NULL for ones */
} vptq_kmeans_points;

/* to [count, v] = the points of these numbers [count]; _pick_host: numbers in host memory. */
vptq_status vptq_kmeans_pick(const vptq_kmeans_points *points, const uint32_t *numbers,
                             size_t count, float *to, vptq_err *err);
vptq_status vptq_kmeans_pick_host(const vptq_kmeans_points *points, const uint32_t *numbers,
                                  size_t count, float *to, vptq_err *err);

/* Chooses the first centroids [k, v] by opt->seeding.  Needs points->n >= opt->k. */
vptq_status vptq_kmeans_seed(const vptq_kmeans_points *points, const vptq_kmeans_options *opt,
                             float *centroids, vptq_err *err);

/* The points assigned to k clusters. */
typedef struct vptq_kmeans_clusters {
    uint32_t k;
    float *before;    /* [k, v] the centroids that they were assigned to */
    uint32_t *labels; /* [n] */
    double *weights;  /* [k] sum of the weights; 0 = empty */
} vptq_kmeans_clusters;

/* Moves the empty clusters of `centroids` [k, v] to the points with the largest loss w * |x -
 * c_label|^2: lowest index on ties, equal points once.  *repaired = the clusters moved, fewer
 * than were empty if too few points differ from their centroid. */
vptq_status vptq_kmeans_repair(const vptq_kmeans_points *points,
                               const vptq_kmeans_clusters *clusters, float *centroids,
                               uint32_t *repaired, vptq_err *err);

#endif
