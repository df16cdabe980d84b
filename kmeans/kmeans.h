/* Internal: deterministic weighted k-means.  Greedy k-means++ on a fixed subsample, Lloyd
 * iterations with sums of fixed order, empty clusters moved to the vectors with the largest
 * loss, stop on relative gain.  Same bytes for any thread count. */
#ifndef VPTQ_KMEANS_KMEANS_H
#define VPTQ_KMEANS_KMEANS_H

#include "lib/backend/backend.h"
#include "lib/base/rng.h"

typedef enum {
    VPTQ_KMEANS_PLUSPLUS, /* greedy weighted k-means++ on a subsample */
    VPTQ_KMEANS_RANDOM    /* k distinct vectors drawn uniformly (the published recipe) */
} vptq_kmeans_seeding;

typedef struct vptq_kmeans_options {
    uint32_t k;
    uint32_t v;
    int iterations;   /* maximum; 25 */
    double tolerance; /* stop when the objective falls by less than this fraction; 1e-4 */
    double shift;     /* stop when the squared moves of all centroids sum to less; 0 = off */
    bool keep_empty;  /* empty clusters keep their centroids instead of being repaired */
    vptq_kmeans_seeding seeding;
    size_t seed_sample; /* vectors for k-means++, drawn by rng; 0 = 8 * k, at least 32768, fewer
                         * per centroid for k > 4096 */
    vptq_rng rng;       /* draws the sample and the seeds; nothing else is random */
} vptq_kmeans_options;

vptq_kmeans_options vptq_kmeans_default(uint32_t v,
                                        uint32_t k); /* the values above; rng is zero */

enum { VPTQ_KMEANS_MAX_ITERATIONS = 1000 };
typedef struct vptq_kmeans_stats {
    int iterations;
    double first, last; /* sum w |x - c|^2 after the first assignment, and at the end */
    uint32_t repaired;  /* empty clusters, in all iterations */
    bool converged;     /* stopped by the tolerance, not by the limit */
} vptq_kmeans_stats;

/* Arrays in device memory. */
typedef struct vptq_kmeans_args {
    size_t n;         /* below 2^32 */
    const float *x;   /* [n, v] */
    const float *w;   /* [n] weights >= 0; NULL or all 0 = ones */
    float *centroids; /* [k, v] the result */
    uint32_t *labels; /* [n] the nearest of them, or NULL */
} vptq_kmeans_args;

/* Clusters a->x.  For n <= k the centroids are the vectors and copies of the last one.
 * VPTQ_E_NUMERIC naming the first vector with a NaN, an infinity or a bad weight; VPTQ_E_ARG
 * for options out of range or n = 0. */
vptq_status vptq_kmeans_run(vptq_device *dev, const vptq_kmeans_options *opt,
                            const vptq_kmeans_args *a, vptq_kmeans_stats *stats,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* Vectors that k-means++ draws k centroids from by default. */
size_t vptq_kmeans_seed_sample(size_t k);

#endif
