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

/* Checks for NaN and infinity; *weighted = some weight is positive. */
static vptq_status check_points(const vptq_kmeans_points *points, bool *weighted, vptq_err *err)
{
    const size_t v = points->v;
    *weighted = false;
    for (size_t i = 0; i < points->n; i++) {
        float zero = 0;
        for (size_t e = 0; e < v; e++)
            zero += points->x[i * v + e] * 0;
        if (!(zero <= 0)) /* NaN and infinity times 0 are NaN */
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "vector %zu of %zu has an element that is not a finite number", i,
                             points->n);
        if (!points->w)
            continue;
        if (!(points->w[i] >= 0 && points->w[i] < INFINITY))
            return vptq_fail(
                err, VPTQ_E_NUMERIC,
                "weight of vector %zu of %zu is %g, expected a finite number of at "
                "least 0",
                i, points->n, (double)points->w[i]);
        *weighted |= points->w[i] > 0;
    }
    return VPTQ_OK;
}

/* ---- Lloyd ---- */

/* The state of one run. */
typedef struct lloyd {
    vptq_device *dev;
    const vptq_kmeans_points *points;
    vptq_kmeans_clusters clusters; /* the present ones; labels only if `labelled` */
    bool labelled;
    float *c;     /* [k, v] the caller's centroids */
    double *sums; /* [k, v], and then the weights of the clusters [k] */
    vptq_arena arena;
    vptq_mirror mirror;
    struct { /* the same in device memory */
        const float *x, *w;
        float *c, *before;
        uint32_t *labels;
        double *sums;
    } on;
} lloyd;

static size_t sums_bytes(const lloyd *l)
{
    return (size_t)l->clusters.k * (l->points->v + 1) * sizeof(double);
}

static vptq_status lloyd_open(lloyd *l, const vptq_kmeans_args *a, vptq_err *err)
{
    const vptq_kmeans_points *p = l->points;
    vptq_kmeans_clusters *c = &l->clusters;
    const size_t size = (size_t)c->k * p->v;
    l->c = a->centroids;
    c->labels =
        a->labels ? a->labels : vptq_arena_alloc(&l->arena, p->n, sizeof *c->labels, err);
    l->sums = c->labels ? vptq_arena_alloc(&l->arena, 1, sums_bytes(l), err) : NULL;
    c->before = l->sums ? vptq_arena_alloc(&l->arena, size, sizeof *c->before, err) : NULL;
    if (!c->before)
        return VPTQ_E_NOMEM;
    c->weights = l->sums + size;
    l->on.x = vptq_mirror_in(&l->mirror, p->x, p->n * p->v, sizeof *p->x);
    l->on.w = vptq_mirror_in(&l->mirror, p->w, p->n, sizeof *p->w);
    l->on.c = vptq_mirror_take(&l->mirror, l->c, size, sizeof *l->c, 0);
    l->on.before = vptq_mirror_take(&l->mirror, c->before, size, sizeof *c->before, 0);
    l->on.labels = vptq_mirror_take(&l->mirror, c->labels, p->n, sizeof *c->labels, 0);
    l->on.sums = vptq_mirror_take(&l->mirror, l->sums, 1, sums_bytes(l), 0);
    return vptq_mirror_check(&l->mirror, err);
}

/* Computes labels, sums and objective for the present codebook. */
static vptq_status evaluate(lloyd *l, double *objective, vptq_err *err)
{
    const vptq_kmeans_points *p = l->points;
    const vptq_backend *ops = l->dev->ops;
    const size_t size = (size_t)l->clusters.k * p->v, bytes = size * sizeof *l->c;
    vptq_assign_args assign = {.n = p->n,
                               .v = p->v,
                               .k = l->clusters.k,
                               .x = l->on.x,
                               .centroids = l->on.c,
                               .idx = l->on.labels};
    VPTQ_CHECK(vptq_mirror_push(&l->mirror, l->c, bytes, err));
    if (l->labelled) {
        VPTQ_CHECK(vptq_mirror_push(&l->mirror, l->clusters.before, bytes, err));
        assign.previous = l->on.before;
        VPTQ_CHECK(ops->reassign(l->dev->state, &assign, err));
    } else {
        VPTQ_CHECK(ops->assign(l->dev->state, &assign, err));
    }
    l->labelled = true;
    VPTQ_CHECK(ops->accumulate(l->dev->state,
                               &(vptq_accumulate_args){.n = p->n,
                                                       .v = p->v,
                                                       .k = l->clusters.k,
                                                       .x = l->on.x,
                                                       .w = l->on.w,
                                                       .idx = l->on.labels,
                                                       .centroids = l->on.c,
                                                       .sums = l->on.sums,
                                                       .weights = l->on.sums + size,
                                                       .objective = objective},
                               err));
    VPTQ_CHECK(vptq_mirror_pull(&l->mirror, l->sums, sums_bytes(l), err));
    return vptq_mirror_pull(&l->mirror, l->clusters.labels, p->n * sizeof *l->clusters.labels,
                            err);
}

/* Moves every centroid to the weighted mean of its vectors; *moved = the sum of squared moves.
 */
static void move(lloyd *l, double *moved)
{
    const size_t v = l->points->v, k = l->clusters.k;
    *moved = 0;
    memcpy(l->clusters.before, l->c, k * v * sizeof *l->c);
    for (size_t j = 0; j < k; j++) {
        if (!(l->clusters.weights[j] > 0))
            continue;
        for (size_t e = 0; e < v; e++) {
            double from = (double)l->c[j * v + e];
            double to = l->sums[j * v + e] / l->clusters.weights[j];
            l->c[j * v + e] = (float)to;
            *moved += (to - from) * (to - from);
        }
    }
}

static bool has_empty(const vptq_kmeans_clusters *c)
{
    for (size_t j = 0; j < c->k; j++)
        if (!(c->weights[j] > 0))
            return true;
    return false;
}

/* Ends with an evaluation of the codebook that is returned, so that labels and stats match it.
 */
static vptq_status iterate(lloyd *l, const vptq_kmeans_options *opt, int iterations,
                           vptq_kmeans_stats *stats, vptq_err *err)
{
    double moved = INFINITY;
    for (int t = 0; t < iterations; t++) {
        double objective = 0;
        uint32_t repaired = 0;
        VPTQ_CHECK(vptq_check_cancel(l->points->ctx, err));
        VPTQ_CHECK(evaluate(l, &objective, err));
        bool settled = t > 0 && (!(stats->last - objective > opt->tolerance * stats->last) ||
                                 moved < opt->shift);
        stats->iterations = t + 1;
        stats->last = objective;
        if (t == 0)
            stats->first = objective;
        stats->converged =
            !(objective > 0) || (settled && (opt->keep_empty || !has_empty(&l->clusters)));
        if (stats->converged || t + 1 == iterations)
            break;
        move(l, &moved);
        if (!opt->keep_empty)
            VPTQ_CHECK(vptq_kmeans_repair(l->points, &l->clusters, l->c, &repaired, err));
        if (settled && !repaired) { /* no better place for the empty clusters */
            memcpy(l->c, l->clusters.before, (size_t)opt->k * opt->v * sizeof *l->c);
            stats->converged = true;
            break;
        }
        stats->repaired += repaired;
    }
    return VPTQ_OK;
}

vptq_status vptq_kmeans_run(vptq_device *dev, const vptq_kmeans_options *opt,
                            const vptq_kmeans_args *a, vptq_kmeans_stats *stats, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t v = opt->v, k = opt->k, n = a->n;
    vptq_kmeans_points points = {.ctx = dev->ctx, .n = n, .v = opt->v, .x = a->x, .w = a->w};
    bool weighted = false;
    lloyd l = {.dev = dev,
               .points = &points,
               .clusters = {.k = opt->k},
               .mirror = vptq_mirror_of(dev)};
    vptq_arena_init(&l.arena, dev->ctx->mem);
    *stats = (vptq_kmeans_stats){.iterations = 0};
    VPTQ_TRY(check_options(opt, n, err));
    VPTQ_TRY(check_points(&points, &weighted, err));
    if (!weighted)
        points.w = NULL;
    VPTQ_TRY(lloyd_open(&l, a, err));
    if (n <= k) {
        memcpy(a->centroids, a->x, n * v * sizeof *a->x);
        for (size_t j = n; j < k; j++)
            memcpy(a->centroids + j * v, a->x + (n - 1) * v, v * sizeof *a->x);
        VPTQ_TRY(iterate(&l, opt, 1, stats, err));
    } else {
        VPTQ_TRY(vptq_kmeans_seed(&points, opt, a->centroids, err));
        VPTQ_TRY(iterate(&l, opt, opt->iterations, stats, err));
    }
out:
    st = vptq_mirror_end(&l.mirror, st, err);
    vptq_arena_release(&l.arena);
    return st;
}
