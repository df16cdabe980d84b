/* Seeding: weighted k-means++ (Arthur and Vassilvitskii, "k-means++: the advantages of careful
 * seeding", SODA 2007) in its greedy form, on a subsample.  A point is drawn with a probability
 * proportional to its weight times its squared distance to the nearest centroid so far;
 * several are drawn per step and the one that lowers the sum of these products most is kept. */
#include "kmeans/seed.h"

#include <float.h>
#include <string.h>

#include "kmeans/parts.h"
#include "lib/backend/mirror.h"
#include "lib/base/cpu.h"
#include "lib/base/parallel.h"

/* Counters of opt->rng: the lower ones, one per point, are for subsampling; from this one on
 * there are TRIALS per centroid. */
static const uint64_t SEEDING_COUNTER = UINT64_C(1) << 40;

enum { TRIALS = VPTQ_SEED_TRIALS, CHUNK = VPTQ_SEED_CHUNK, TASK = 8 * CHUNK };

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

/* chosen [m] = m of n numbers, ascending, every subset equally likely (Knuth, TAOCP 2, 3.4.2,
 * algorithm S). */
static void draw_subset(const vptq_rng *rng, size_t n, size_t m, uint32_t *chosen)
{
    size_t taken = 0;
    for (size_t i = 0; taken < m; i++) {
        if (n - i == m - taken || vptq_rng_below(rng, i, n - i) < m - taken)
            chosen[taken++] = (uint32_t)i;
    }
}

typedef struct seeding {
    vptq_seed_points s;
    const vptq_seed_loops *loops;
    const vptq_rng *rng;
    int threads;
    size_t chunks;
    double *potential; /* [chunks] sum of w d */
    double *trial;     /* [chunks][TRIALS] the same with a candidate */
    float *last;       /* [v] the newest centroid, not in d yet except where points are drawn */
    float *c;          /* [TRIALS][v] candidates */
} seeding;

static size_t chunk_end(const seeding *g, size_t begin)
{
    return g->s.m - begin < CHUNK ? g->s.m : begin + CHUNK;
}

static void probe_task(void *arg, size_t begin, size_t end, int thread)
{
    const seeding *g = arg;
    (void)thread;
    for (size_t i = begin; i < end; i += CHUNK)
        g->loops->probe(&g->s, g->last, g->c, i, chunk_end(g, i),
                        g->trial + i / CHUNK * TRIALS);
}

static double sum_of(const double *part, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += part[i];
    return sum;
}

/* The point at which the running sum of w d passes u times its total: chunks first, then
 * points. */
static size_t draw_point(const seeding *g, double u)
{
    const vptq_seed_points *s = &g->s;
    double rest = u * sum_of(g->potential, g->chunks);
    size_t chunk = 0;
    while (chunk + 1 < g->chunks && rest >= g->potential[chunk])
        rest -= g->potential[chunk++];
    const size_t begin = chunk * CHUNK, end = chunk_end(g, begin);
    size_t found = begin;
    g->loops->add(s, g->last, begin, end);
    for (size_t i = begin; i < end; i++) {
        double product = (double)(s->w[i] * s->d[i]);
        if (product > 0)
            found = i;
        rest -= product;
        if (rest < 0)
            break;
    }
    return found;
}

static void copy_point(const vptq_seed_points *s, size_t i, float *c)
{
    for (size_t e = 0; e < s->v; e++)
        c[e] = s->xt[e * s->m + i];
}

/* g->last = centroid number j. */
static void choose_next(seeding *g, uint32_t j)
{
    const size_t v = g->s.v;
    double sum[TRIALS] = {0};
    size_t best = 0;
    for (uint32_t t = 0; t < TRIALS; t++) {
        uint64_t counter = SEEDING_COUNTER + (uint64_t)j * TRIALS + t;
        copy_point(&g->s, draw_point(g, vptq_rng_uniform(g->rng, counter)), g->c + t * v);
    }
    vptq_parallel_for(g->threads, g->s.m, TASK, probe_task, g);
    for (size_t b = 0; b < g->chunks; b++) {
        for (size_t t = 0; t < TRIALS; t++)
            sum[t] += g->trial[b * TRIALS + t];
    }
    for (size_t t = 1; t < TRIALS; t++)
        best = sum[t] < sum[best] ? t : best;
    for (size_t b = 0; b < g->chunks; b++)
        g->potential[b] = g->trial[b * TRIALS + best];
    memcpy(g->last, g->c + best * v, v * sizeof *g->last);
}

/* Draws the first point by weight alone. */
static void choose_first(seeding *g)
{
    const vptq_seed_points *s = &g->s;
    double rest = 0;
    size_t found = 0;
    for (size_t i = 0; i < s->m; i++) {
        rest += (double)s->w[i];
        s->d[i] = FLT_MAX;
    }
    rest *= vptq_rng_uniform(g->rng, SEEDING_COUNTER);
    for (size_t i = 0; i < s->m && rest >= 0; i++) {
        found = s->w[i] > 0 ? i : found;
        rest -= (double)s->w[i];
    }
    copy_point(s, found, g->last);
    for (size_t b = 0; b < g->chunks; b++)
        g->potential[b] = g->loops->add(s, g->last, b * CHUNK, chunk_end(g, b * CHUNK));
}

static vptq_status plus_plus(const vptq_ctx *ctx, seeding *g, uint32_t k, float *centroids,
                             vptq_err *err)
{
    const size_t v = g->s.v;
    for (uint32_t j = 0; j < k; j++) {
        VPTQ_CHECK(vptq_check_cancel(ctx, err));
        if (j > 0)
            choose_next(g, j);
        else
            choose_first(g);
        memcpy(centroids + j * v, g->last, v * sizeof *g->last);
    }
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

/* The points of a sample and their weights, in host memory. */
typedef struct sample {
    size_t count;
    float *x; /* [count, v] */
    float *w; /* [count], or NULL for ones */
} sample;

static vptq_status fetch_sample(const vptq_kmeans_points *points, const uint32_t *chosen,
                                vptq_arena *arena, sample *s, vptq_err *err)
{
    const vptq_kmeans_points weights = {points->dev, points->n, 1, points->w, NULL};
    const size_t v = points->v;
    s->x = vptq_arena_alloc(arena, s->count, v * sizeof *s->x, err);
    if (s->x && points->w)
        s->w = vptq_arena_alloc(arena, s->count, sizeof *s->w, err);
    if (!s->x || (points->w && !s->w))
        return VPTQ_E_NOMEM;
    vptq_mirror m = vptq_mirror_of(points->dev);
    float *x = vptq_mirror_take(&m, s->x, s->count, v * sizeof *s->x, VPTQ_MIRROR_DOWNLOAD);
    float *w = vptq_mirror_take(&m, s->w, s->count, sizeof *s->w, VPTQ_MIRROR_DOWNLOAD);
    const uint32_t *numbers = vptq_mirror_in(&m, chosen, s->count, sizeof *chosen);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_kmeans_pick(points, numbers, s->count, x, err);
    if (!st && w)
        st = vptq_kmeans_pick(&weights, numbers, s->count, w, err);
    return vptq_mirror_end(&m, st, err);
}

/* The padding repeats the last point with weight 0, so that it is never drawn. */
static void fill_sample(const sample *from, vptq_seed_points *s)
{
    float max = 0;
    for (size_t i = 0; i < s->m; i++) {
        const size_t at = i < from->count ? i : from->count - 1;
        for (size_t e = 0; e < s->v; e++)
            s->xt[e * s->m + i] = from->x[at * s->v + e];
        s->w[i] = i >= from->count ? 0 : from->w ? from->w[at] : 1;
        max = s->w[i] > max ? s->w[i] : max;
    }
    for (size_t i = 0; i < from->count; i++) /* keeps products in range; all 0 means all 1 */
        s->w[i] = max > 0 ? s->w[i] / max : 1;
}

/* centroids [k, v] in host memory. */
static vptq_status seed_plus_plus(const vptq_kmeans_points *points, const vptq_rng *rng,
                                  uint32_t k, const sample *from, vptq_arena *arena,
                                  float *centroids, vptq_err *err)
{
    const vptq_ctx *ctx = points->dev->ctx;
    const size_t m = (from->count + VPTQ_SEED_LANES - 1) / VPTQ_SEED_LANES * VPTQ_SEED_LANES;
    const size_t v = points->v, chunks = (m + CHUNK - 1) / CHUNK;
    float *floats = vptq_arena_alloc(arena, m, (v + 2) * sizeof *floats, err);
    double *doubles =
        floats ? vptq_arena_alloc(arena, chunks * (1 + TRIALS), sizeof *doubles, err) : NULL;
    float *c = doubles ? vptq_arena_alloc(arena, (1 + TRIALS) * v, sizeof *c, err) : NULL;
    if (!c)
        return VPTQ_E_NOMEM;
    seeding g = {.s = {.m = m, .v = v, .xt = floats, .w = floats + m * v},
                 .loops = VPTQ_SIMD_SELECT(vptq_cpu_simd(), vptq_seed_loops),
                 .rng = rng,
                 .threads = ctx->threads,
                 .chunks = chunks,
                 .potential = doubles,
                 .trial = doubles + chunks,
                 .last = c,
                 .c = c + v};
    g.s.d = g.s.w + m;
    fill_sample(from, &g.s);
    return plus_plus(ctx, &g, k, centroids, err);
}

/* Chooses centroids on the host, from a sample of the points. */
static vptq_status seed_from_sample(const vptq_kmeans_points *points,
                                    const vptq_kmeans_options *opt, const uint32_t *chosen,
                                    size_t count, float *centroids, vptq_arena *arena,
                                    vptq_err *err)
{
    const vptq_device *dev = points->dev;
    const size_t size = (size_t)opt->k * points->v;
    sample from = {.count = count};
    float *host = vptq_arena_alloc(arena, size, sizeof *host, err);
    if (!host)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(fetch_sample(points, chosen, arena, &from, err));
    VPTQ_CHECK(seed_plus_plus(points, &opt->rng, opt->k, &from, arena, host, err));
    return dev->ops->upload(dev->state, centroids, host, size * sizeof *host, err);
}

vptq_status vptq_kmeans_seed(const vptq_kmeans_points *points, const vptq_kmeans_options *opt,
                             float *centroids, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    size_t count = opt->seed_sample ? opt->seed_sample : vptq_kmeans_seed_sample(opt->k);
    if (opt->seeding == VPTQ_KMEANS_RANDOM || count < opt->k)
        count = opt->k;
    if (count > points->n)
        count = points->n;
    vptq_arena_init(&arena, points->dev->ctx->mem);
    uint32_t *chosen = vptq_arena_alloc(&arena, count, sizeof *chosen, err);
    if (!chosen)
        VPTQ_TRY(VPTQ_E_NOMEM);
    draw_subset(&opt->rng, points->n, count, chosen);
    if (opt->seeding == VPTQ_KMEANS_PLUSPLUS)
        VPTQ_TRY(seed_from_sample(points, opt, chosen, count, centroids, &arena, err));
    else
        VPTQ_TRY(vptq_kmeans_pick_host(points, chosen, opt->k, centroids, err));
out:
    vptq_arena_release(&arena);
    return st;
}
