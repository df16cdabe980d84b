/* Lloyd iterations (kmeans.h). */
#include "kmeans/kmeans.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kmeans/parts.h"
#include "lib/backend/mirror.h"

vptq_kmeans_options vptq_kmeans_default(uint32_t v, uint32_t k)
{
    return (vptq_kmeans_options){.k = k,
                                 .v = v,
                                 .iterations = 25,
                                 .tolerance = 1e-4,
                                 .seeding = VPTQ_KMEANS_PLUSPLUS,
                                 .seed_sample = 0};
}

static vptq_status check_options(const vptq_kmeans_options *opt, size_t n, vptq_err *err)
{
    if (opt->v < 1 || opt->v > VPTQ_VQ_MAX_V)
        return vptq_fail(err, VPTQ_E_ARG, "vector length %u, expected 1 to %d", opt->v,
                         VPTQ_VQ_MAX_V);
    if (opt->k < 1 || opt->k > VPTQ_VQ_MAX_K)
        return vptq_fail(err, VPTQ_E_ARG, "%u centroids, expected 1 to %d", opt->k,
                         VPTQ_VQ_MAX_K);
    if (opt->iterations < 1 || opt->iterations > VPTQ_KMEANS_MAX_ITERATIONS)
        return vptq_fail(err, VPTQ_E_ARG, "%d iterations of k-means, expected 1 to %d",
                         opt->iterations, VPTQ_KMEANS_MAX_ITERATIONS);
    if (!(opt->tolerance >= 0 && opt->tolerance < 1))
        return vptq_fail(err, VPTQ_E_ARG,
                         "tolerance %g of k-means, expected at least 0 and "
                         "below 1",
                         opt->tolerance);
    if (!(opt->shift >= 0 && opt->shift <= DBL_MAX))
        return vptq_fail(err, VPTQ_E_ARG, "shift %g of k-means, expected at least 0",
                         opt->shift);
    if (!n)
        return vptq_fail(err, VPTQ_E_ARG, "no vectors to cluster");
    return VPTQ_OK;
}

/* *first = the index of the first element of x [n] outside [min, max]. */
static vptq_status first_outside(const vptq_device *dev, size_t n, const float *x, float min,
                                 float max, size_t *first, vptq_err *err)
{
    const vptq_outside_args args = {.n = n, .x = x, .min = min, .max = max, .first = first};
    return dev->ops->first_outside(dev->state, &args, err);
}

/* Checks for NaN and infinity; *weighted = some weight is positive. */
static vptq_status check_points(const vptq_kmeans_points *points, bool *weighted, vptq_err *err)
{
    const vptq_device *dev = points->dev;
    const size_t n = points->n, v = points->v;
    size_t x, w = n, positive = n;

    VPTQ_CHECK(first_outside(dev, n * v, points->x, -FLT_MAX, FLT_MAX, &x, err));
    if (points->w) {
        VPTQ_CHECK(first_outside(dev, n, points->w, 0, FLT_MAX, &w, err));
        VPTQ_CHECK(first_outside(dev, n, points->w, 0, 0, &positive, err));
    }
    *weighted = positive < n;
    if (x < n * v && x / v <= w)
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "vector %zu of %zu has an element that is not a finite number", x / v,
                         n);
    if (w == n)
        return VPTQ_OK;
    float weight = 0;
    VPTQ_CHECK(dev->ops->download(dev->state, &weight, points->w + w, sizeof weight, err));
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "weight of vector %zu of %zu is %g, expected a finite number of at least "
                     "0",
                     w, n, (double)weight);
}

/* ---- Lloyd ---- */

/* The state of one run, in device memory. */
typedef struct lloyd {
    vptq_device *dev;
    const vptq_kmeans_points *points;
    vptq_kmeans_clusters clusters; /* the present ones; labels only if `labelled` */
    bool labelled;
    float *c;     /* [k, v] the caller's centroids */
    double *sums; /* [k, v] */
    vptq_mirror arrays;
} lloyd;

static vptq_status lloyd_open(lloyd *l, const vptq_kmeans_args *a, vptq_err *err)
{
    const vptq_kmeans_points *p = l->points;
    vptq_kmeans_clusters *c = &l->clusters;
    const size_t size = (size_t)c->k * p->v;
    l->c = a->centroids;
    c->labels = a->labels ? a->labels : vptq_mirror_alloc(&l->arrays, p->n, sizeof *c->labels);
    l->sums = vptq_mirror_alloc(&l->arrays, size, sizeof *l->sums);
    c->weights = vptq_mirror_alloc(&l->arrays, c->k, sizeof *c->weights);
    c->before = vptq_mirror_alloc(&l->arrays, size, sizeof *c->before);
    return vptq_mirror_check(&l->arrays, err);
}

/* Computes labels, sums and objective for the present codebook. */
static vptq_status evaluate(lloyd *l, double *objective, vptq_err *err)
{
    const vptq_kmeans_points *p = l->points;
    const vptq_kmeans_clusters *c = &l->clusters;
    const vptq_backend *ops = l->dev->ops;
    vptq_assign_args assign = {
        .n = p->n, .v = p->v, .k = c->k, .x = p->x, .centroids = l->c, .idx = c->labels};
    if (l->labelled) {
        assign.previous = c->before;
        VPTQ_CHECK(ops->reassign(l->dev->state, &assign, err));
    } else {
        VPTQ_CHECK(ops->assign(l->dev->state, &assign, err));
    }
    l->labelled = true;
    const vptq_accumulate_args accumulate = {.n = p->n,
                                             .v = p->v,
                                             .k = c->k,
                                             .x = p->x,
                                             .w = p->w,
                                             .idx = c->labels,
                                             .centroids = l->c,
                                             .sums = l->sums,
                                             .weights = c->weights,
                                             .objective = objective};
    return ops->accumulate(l->dev->state, &accumulate, err);
}

/* Moves every centroid to the weighted mean of its vectors; *moved = the sum of squared moves.
 */
static vptq_status move(lloyd *l, double *moved, uint32_t *empty, vptq_err *err)
{
    const vptq_move_args args = {.k = l->clusters.k,
                                 .v = l->points->v,
                                 .sums = l->sums,
                                 .weights = l->clusters.weights,
                                 .centroids = l->c,
                                 .before = l->clusters.before,
                                 .moved = moved,
                                 .empty = empty};
    return l->dev->ops->move_centroids(l->dev->state, &args, err);
}

static vptq_status restore(lloyd *l, vptq_err *err)
{
    const size_t size = (size_t)l->clusters.k * l->points->v;
    return l->dev->ops->copy(l->dev->state, l->c, l->clusters.before, size * sizeof *l->c, err);
}

/* Ends with an evaluation of the codebook that is returned, so that labels and stats match it.
 */
static vptq_status iterate(lloyd *l, const vptq_kmeans_options *opt, int iterations,
                           vptq_kmeans_stats *stats, vptq_err *err)
{
    double moved = INFINITY;
    for (int t = 0; t < iterations; t++) {
        double objective = 0;
        const bool last = t + 1 == iterations;
        uint32_t empty = 0, repaired = 0;
        VPTQ_CHECK(vptq_check_cancel(l->dev->ctx, err));
        VPTQ_CHECK(evaluate(l, &objective, err));
        const bool settled =
            t > 0 &&
            (!(stats->last - objective > opt->tolerance * stats->last) || moved < opt->shift);
        stats->iterations = t + 1;
        stats->last = objective;
        if (t == 0)
            stats->first = objective;
        stats->converged = !(objective > 0) || (settled && opt->keep_empty);
        if (stats->converged || (last && !settled))
            break;
        VPTQ_CHECK(move(l, &moved, &empty, err));
        if (empty && !opt->keep_empty && !last)
            VPTQ_CHECK(vptq_kmeans_repair(l->points, &l->clusters, l->c, &repaired, err));
        if (settled && !repaired) { /* no better place for empty clusters, if there are any */
            VPTQ_CHECK(restore(l, err));
            stats->converged = !last || !empty;
            break;
        }
        stats->repaired += repaired;
    }
    return VPTQ_OK;
}

/* centroids = the points, and copies of the last one. */
static vptq_status copy_points(const vptq_kmeans_points *points, size_t k, float *centroids,
                               vptq_err *err)
{
    vptq_mem *mem = points->dev->ctx->mem;
    uint32_t *numbers = vptq_mem_alloc(mem, k, sizeof *numbers, err);
    if (!numbers)
        return VPTQ_E_NOMEM;
    for (size_t j = 0; j < k; j++)
        numbers[j] = (uint32_t)(j < points->n ? j : points->n - 1);
    const vptq_status st = vptq_kmeans_pick_host(points, numbers, k, centroids, err);
    vptq_mem_free(mem, numbers);
    return st;
}

vptq_status vptq_kmeans_run(vptq_device *dev, const vptq_kmeans_options *opt,
                            const vptq_kmeans_args *a, vptq_kmeans_stats *stats, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_kmeans_points points = {.dev = dev, .n = a->n, .v = opt->v, .x = a->x, .w = a->w};
    const bool few = a->n <= opt->k;
    bool weighted = false;
    lloyd l = {.dev = dev,
               .points = &points,
               .clusters = {.k = opt->k},
               .arrays = vptq_mirror_of(dev)};
    *stats = (vptq_kmeans_stats){.iterations = 0};
    VPTQ_TRY(check_options(opt, a->n, err));
    VPTQ_TRY(check_points(&points, &weighted, err));
    if (!weighted)
        points.w = NULL;
    VPTQ_TRY(lloyd_open(&l, a, err));
    if (few)
        VPTQ_TRY(copy_points(&points, opt->k, a->centroids, err));
    else
        VPTQ_TRY(vptq_kmeans_seed(&points, opt, a->centroids, err));
    VPTQ_TRY(iterate(&l, opt, few ? 1 : opt->iterations, stats, err));
out:
    return vptq_mirror_end(&l.arrays, st, err);
}
