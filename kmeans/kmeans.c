/* Lloyd iterations (kmeans.h). */
#include "kmeans/kmeans.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kmeans/parts.h"
#include "lib/base/mem.h"

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

/* The state of one run.  On devices that work in host memory the device arrays are the host
 * arrays. */
typedef struct lloyd {
    vptq_device *dev;
    const vptq_kmeans_points *points;
    uint32_t k;
    /* device memory */
    float *x, *w, *c, *last; /* last = before */
    uint32_t *labels;
    double *sums, *weights; /* [k, v] and [k], one allocation */
    /* host memory */
    float *host_c;         /* [k, v] the caller's */
    uint32_t *host_labels; /* [n] */
    double *host_sums, *host_weights;
    float *before;        /* [k, v] the codebook before the last move */
    uint32_t *own_labels; /* NULL if the caller passed labels */
    bool labelled;        /* labels are those of `before` */
} lloyd;

static size_t sums_bytes(const lloyd *l)
{
    return (size_t)l->k * (l->points->v + 1) * sizeof(double);
}

static vptq_status upload_new(vptq_device *dev, const void *host, size_t count, size_t size,
                              void **out, vptq_err *err)
{
    VPTQ_CHECK(dev->ops->alloc(dev->state, count, size, out, err));
    return dev->ops->upload(dev->state, *out, host, count * size, err);
}

static vptq_status open_device_side(lloyd *l, vptq_err *err)
{
    const vptq_kmeans_points *p = l->points;
    const vptq_backend *ops = l->dev->ops;
    vptq_status st = VPTQ_OK;
    void *x = NULL, *w = NULL, *c = NULL, *last = NULL, *labels = NULL, *sums = NULL;
    VPTQ_TRY(upload_new(l->dev, p->x, p->n * p->v, sizeof *l->x, &x, err));
    if (p->w)
        VPTQ_TRY(upload_new(l->dev, p->w, p->n, sizeof *l->w, &w, err));
    VPTQ_TRY(ops->alloc(l->dev->state, (size_t)l->k * p->v, sizeof *l->c, &c, err));
    VPTQ_TRY(ops->alloc(l->dev->state, (size_t)l->k * p->v, sizeof *l->last, &last, err));
    VPTQ_TRY(ops->alloc(l->dev->state, p->n, sizeof *l->labels, &labels, err));
    VPTQ_TRY(ops->alloc(l->dev->state, 1, sums_bytes(l), &sums, err));
out:
    l->x = x;
    l->w = w;
    l->c = c;
    l->last = last;
    l->labels = labels;
    l->sums = sums;
    return st;
}

static void lloyd_close(lloyd *l)
{
    vptq_mem *mem = l->points->ctx->mem;
    if (!l->dev->ops->host_memory) {
        l->dev->ops->release(l->dev->state, l->x);
        l->dev->ops->release(l->dev->state, l->w);
        l->dev->ops->release(l->dev->state, l->c);
        l->dev->ops->release(l->dev->state, l->last);
        l->dev->ops->release(l->dev->state, l->labels);
        l->dev->ops->release(l->dev->state, l->sums);
    }
    vptq_mem_free(mem, l->host_sums);
    vptq_mem_free(mem, l->before);
    vptq_mem_free(mem, l->own_labels);
}

static vptq_status lloyd_open(lloyd *l, vptq_device *dev, const vptq_kmeans_points *points,
                              uint32_t k, float *centroids, uint32_t *labels, vptq_err *err)
{
    vptq_mem *mem = points->ctx->mem;
    *l = (lloyd){.dev = dev, .points = points, .k = k, .host_c = centroids};
    if (!labels) {
        l->own_labels = vptq_mem_alloc(mem, points->n, sizeof *labels, err);
        if (!l->own_labels)
            return VPTQ_E_NOMEM;
    }
    l->host_labels = labels ? labels : l->own_labels;
    l->host_sums = vptq_mem_alloc(mem, 1, sums_bytes(l), err);
    if (!l->host_sums)
        return VPTQ_E_NOMEM;
    l->before = vptq_mem_alloc(mem, (size_t)k * points->v, sizeof *l->before, err);
    if (!l->before)
        return VPTQ_E_NOMEM;
    if (dev->ops->host_memory) {
        l->c = centroids;
        l->last = l->before;
        l->labels = l->host_labels;
        l->sums = l->host_sums;
    } else {
        VPTQ_CHECK(open_device_side(l, err));
    }
    l->host_weights = l->host_sums + (size_t)k * points->v;
    l->weights = l->sums + (size_t)k * points->v;
    return VPTQ_OK;
}

/* Computes labels, sums and objective for the present codebook. */
static vptq_status evaluate(lloyd *l, double *objective, vptq_err *err)
{
    const vptq_kmeans_points *p = l->points;
    const vptq_backend *ops = l->dev->ops;
    const float *x = ops->host_memory ? p->x : l->x, *w = ops->host_memory ? p->w : l->w;
    if (!ops->host_memory) {
        const size_t bytes = (size_t)l->k * p->v * sizeof *l->c;
        VPTQ_CHECK(ops->upload(l->dev->state, l->c, l->host_c, bytes, err));
        if (l->labelled)
            VPTQ_CHECK(ops->upload(l->dev->state, l->last, l->before, bytes, err));
    }
    if (l->labelled)
        VPTQ_CHECK(ops->reassign(l->dev->state,
                                 &(vptq_assign_args){.n = p->n,
                                                     .v = p->v,
                                                     .k = l->k,
                                                     .x = x,
                                                     .previous = l->last,
                                                     .centroids = l->c,
                                                     .idx = l->labels},
                                 err));
    else
        VPTQ_CHECK(ops->assign(
            l->dev->state,
            &(vptq_assign_args){
                .n = p->n, .v = p->v, .k = l->k, .x = x, .centroids = l->c, .idx = l->labels},
            err));
    l->labelled = true;
    VPTQ_CHECK(ops->accumulate(l->dev->state,
                               &(vptq_accumulate_args){.n = p->n,
                                                       .v = p->v,
                                                       .k = l->k,
                                                       .x = x,
                                                       .w = w,
                                                       .idx = l->labels,
                                                       .centroids = l->c,
                                                       .sums = l->sums,
                                                       .weights = l->weights,
                                                       .objective = objective},
                               err));
    if (!ops->host_memory) {
        VPTQ_CHECK(ops->download(l->dev->state, l->host_sums, l->sums, sums_bytes(l), err));
        VPTQ_CHECK(ops->download(l->dev->state, l->host_labels, l->labels,
                                 p->n * sizeof *l->labels, err));
    }
    return VPTQ_OK;
}

/* Moves every centroid to the weighted mean of its vectors; *moved = the sum of squared moves.
 */
static void move(lloyd *l, double *moved)
{
    const size_t v = l->points->v;
    *moved = 0;
    memcpy(l->before, l->host_c, l->k * v * sizeof *l->before);
    for (size_t j = 0; j < l->k; j++) {
        if (!(l->host_weights[j] > 0))
            continue;
        for (size_t e = 0; e < v; e++) {
            double from = (double)l->host_c[j * v + e];
            double to = l->host_sums[j * v + e] / l->host_weights[j];
            l->host_c[j * v + e] = (float)to;
            *moved += (to - from) * (to - from);
        }
    }
}

static bool has_empty(const lloyd *l)
{
    for (size_t j = 0; j < l->k; j++) {
        if (!(l->host_weights[j] > 0))
            return true;
    }
    return false;
}

/* Ends with an evaluation of the codebook that is returned, so that labels and stats match it.
 */
static vptq_status iterate(lloyd *l, const vptq_kmeans_options *opt, int iterations,
                           vptq_kmeans_stats *stats, vptq_kmeans_iteration *trace,
                           vptq_err *err)
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
        if (trace)
            trace[t] = (vptq_kmeans_iteration){.objective = objective};
        stats->converged = !(objective > 0) || (settled && (opt->keep_empty || !has_empty(l)));
        if (stats->converged || t + 1 == iterations)
            break;
        move(l, &moved);
        if (!opt->keep_empty)
            VPTQ_CHECK(vptq_kmeans_repair(l->points, l->k, l->host_labels, l->before,
                                          l->host_weights, l->host_c, &repaired, err));
        if (settled && !repaired) { /* no better place for the empty clusters */
            memcpy(l->host_c, l->before, (size_t)l->k * l->points->v * sizeof *l->before);
            stats->converged = true;
            break;
        }
        stats->repaired += repaired;
        if (trace)
            trace[t].empty = repaired;
    }
    return VPTQ_OK;
}

vptq_status vptq_kmeans_run(vptq_device *dev, const vptq_kmeans_options *opt, size_t n,
                            const float *x, const float *w, float *centroids, uint32_t *labels,
                            vptq_kmeans_stats *stats, vptq_kmeans_iteration *trace,
                            vptq_err *err)
{
    const size_t v = opt->v, k = opt->k;
    vptq_kmeans_points points = {.ctx = dev->ctx, .n = n, .v = opt->v, .x = x, .w = w};
    bool weighted = false;
    lloyd l;
    vptq_status st = check_options(opt, n, err);
    if (!st)
        st = check_points(&points, &weighted, err);
    if (st)
        return st;
    if (!weighted)
        points.w = NULL;
    *stats = (vptq_kmeans_stats){.iterations = 0};
    VPTQ_TRY(lloyd_open(&l, dev, &points, opt->k, centroids, labels, err));
    if (n <= k) {
        memcpy(centroids, x, n * v * sizeof *x);
        for (size_t j = n; j < k; j++)
            memcpy(centroids + j * v, x + (n - 1) * v, v * sizeof *x);
        VPTQ_TRY(iterate(&l, opt, 1, stats, trace, err));
    } else {
        VPTQ_TRY(vptq_kmeans_seed(&points, opt, centroids, err));
        VPTQ_TRY(iterate(&l, opt, opt->iterations, stats, trace, err));
    }
out:
    lloyd_close(&l);
    return st;
}
