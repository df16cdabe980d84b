/* Seeding: greedy k-means++ (the op plus_plus) on a subsample, or k points drawn uniformly. */
#include "kmeans/parts.h"
#include "lib/backend/mirror.h"
#include "lib/base/parallel.h"

/* Counters of opt->rng: the lower ones, one per point, are for subsampling; from this one on
 * there are VPTQ_PLUS_PLUS_TRIALS per centroid. */
static const uint64_t SEEDING_COUNTER = UINT64_C(1) << 40;

/* A larger sample costs time and gains little.  With 20 vectors per centroid, 8 trials on all
 * of them leave 5 % less error after Lloyd than one trial on a sample of 8 per centroid, and 3
 * % less than 8 trials on that sample; later steps of the encoder recover nearly all of it.
 * Hence 8 per centroid, and fewer for large codebooks, so that seeding stays cheaper than
 * Lloyd. */
size_t vptq_kmeans_seed_sample(size_t k)
{
    const size_t min_sample = 32768;
    size_t bounded = ((size_t)1 << 30) / k > 2 * k ? ((size_t)1 << 30) / k : 2 * k;
    size_t sample = 8 * k < bounded ? 8 * k : bounded;
    return sample > min_sample ? sample : min_sample;
}

/* Random numbers below n - i for each i from `first` on. */
typedef struct subset_draws {
    const vptq_rng *rng;
    size_t n, first;
    uint32_t *below; /* [SUBSET_BLOCK] */
} subset_draws;

enum { SUBSET_BLOCK = 1 << 20, SUBSET_TASK = 1 << 14 };

static void draw_numbers(void *arg, size_t begin, size_t end, int thread)
{
    const subset_draws *d = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        d->below[i] = (uint32_t)vptq_rng_below(d->rng, d->first + i, d->n - (d->first + i));
}

/* chosen [m] = m of n numbers, ascending, every subset equally likely (Knuth, TAOCP 2, 3.4.2,
 * algorithm S).  Numbers that remain are all taken once there are no more than needed. */
static vptq_status draw_subset(const vptq_ctx *ctx, const vptq_rng *rng, size_t n, size_t m,
                               uint32_t *chosen, vptq_err *err)
{
    subset_draws d = {.rng = rng, .n = n};
    size_t taken = 0;
    const size_t block = n < SUBSET_BLOCK ? n : SUBSET_BLOCK;
    d.below = vptq_mem_alloc(ctx->mem, block, sizeof *d.below, err);
    if (!d.below)
        return VPTQ_E_NOMEM;
    for (; taken < m; d.first += block) {
        const size_t count = n - d.first < block ? n - d.first : block;
        vptq_parallel_for(ctx->threads, count, SUBSET_TASK, draw_numbers, &d);
        for (size_t i = 0; i < count && taken < m; i++) {
            if (d.below[i] < m - taken)
                chosen[taken++] = (uint32_t)(d.first + i);
        }
    }
    vptq_mem_free(ctx->mem, d.below);
    return VPTQ_OK;
}

vptq_status vptq_kmeans_pick(const vptq_kmeans_points *points, const uint32_t *numbers,
                             size_t count, float *to, vptq_err *err)
{
    const vptq_device *dev = points->dev;
    const vptq_gather_args gather = {.cols = 1,
                                     .rows = count * points->v,
                                     .v = points->v,
                                     .k = (uint32_t)points->n,
                                     .centroids = points->x,
                                     .idx = numbers,
                                     .q = to};
    return dev->ops->vq_gather(dev->state, &gather, err);
}

vptq_status vptq_kmeans_pick_host(const vptq_kmeans_points *points, const uint32_t *numbers,
                                  size_t count, float *to, vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(points->dev);
    const uint32_t *on = vptq_mirror_in(&m, numbers, count, sizeof *on);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_kmeans_pick(points, on, count, to, err);
    return vptq_mirror_end(&m, st, err);
}

/* Returns the numbers that plus_plus draws with, or NULL with VPTQ_E_NOMEM in err. */
static double *draws_of(const vptq_kmeans_options *opt, vptq_arena *arena, vptq_err *err)
{
    const size_t count = (size_t)opt->k * VPTQ_PLUS_PLUS_TRIALS;
    double *u = vptq_arena_alloc(arena, count, sizeof *u, err);
    for (size_t i = 0; u && i < count; i++)
        u[i] = vptq_rng_uniform(&opt->rng, SEEDING_COUNTER + i);
    return u;
}

/* Chooses centroids from the `count` points with these numbers, which are gathered first. */
static vptq_status seed_from_sample(const vptq_kmeans_points *points, uint32_t k,
                                    const double *u, const uint32_t *chosen, size_t count,
                                    float *centroids, vptq_err *err)
{
    const vptq_device *dev = points->dev;
    const vptq_kmeans_points weights = {points->dev, points->n, 1, points->w, NULL};
    vptq_mirror m = vptq_mirror_of(points->dev);
    const uint32_t *numbers = vptq_mirror_in(&m, chosen, count, sizeof *chosen);
    float *x = vptq_mirror_alloc(&m, count, points->v * sizeof *x);
    float *w = points->w ? vptq_mirror_alloc(&m, count, sizeof *w) : NULL;
    const vptq_plus_plus_args args = {
        .m = count,
        .v = points->v,
        .k = k,
        .x = x,
        .w = w,
        .u = vptq_mirror_in(&m, u, (size_t)k * VPTQ_PLUS_PLUS_TRIALS, sizeof *u),
        .centroids = centroids};
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_kmeans_pick(points, numbers, count, x, err);
    if (!st && w)
        st = vptq_kmeans_pick(&weights, numbers, count, w, err);
    if (!st)
        st = dev->ops->plus_plus(dev->state, &args, err);
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_kmeans_seed(const vptq_kmeans_points *points, const vptq_kmeans_options *opt,
                             float *centroids, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    const bool careful = opt->seeding == VPTQ_KMEANS_PLUSPLUS;
    size_t count = opt->seed_sample ? opt->seed_sample : vptq_kmeans_seed_sample(opt->k);
    if (!careful || count < opt->k)
        count = opt->k;
    if (count > points->n)
        count = points->n;
    vptq_arena_init(&arena, points->dev->ctx->mem);
    uint32_t *chosen = vptq_arena_alloc(&arena, count, sizeof *chosen, err);
    const double *u = chosen && careful ? draws_of(opt, &arena, err) : NULL;
    if (!chosen || (careful && !u))
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(draw_subset(points->dev->ctx, &opt->rng, points->n, count, chosen, err));
    if (careful)
        VPTQ_TRY(seed_from_sample(points, opt->k, u, chosen, count, centroids, err));
    else
        VPTQ_TRY(vptq_kmeans_pick_host(points, chosen, opt->k, centroids, err));
out:
    vptq_arena_release(&arena);
    return st;
}
