/* Seeding: weighted k-means++ (Arthur and Vassilvitskii, "k-means++: the advantages of careful
 * seeding", SODA 2007) in its greedy form, on a subsample.  A point is drawn with a probability
 * proportional to its weight times its squared distance to the nearest centroid so far;
 * several are drawn per step and the one that lowers the sum of these products most is kept. */
#include "kmeans/seed.h"

#include <float.h>
#include <string.h>

#include "kmeans/parts.h"
#include "lib/base/cpu.h"
#include "lib/base/mem.h"
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
static size_t default_sample(size_t k)
{
    const size_t min_sample = 32768;
    size_t bounded = ((size_t)1 << 30) / k > 2 * k ? ((size_t)1 << 30) / k : 2 * k;
    size_t sample = 8 * k < bounded ? 8 * k : bounded;
    return sample > min_sample ? sample : min_sample;
}

/* chosen [m] = m of n numbers, ascending, every subset equally likely (Knuth, TAOCP 2, 3.4.2,
 * algorithm S). */
static void draw_subset(const vptq_rng *rng, size_t n, size_t m, size_t *chosen)
{
    size_t taken = 0;
    for (size_t i = 0; taken < m; i++) {
        if (n - i == m - taken || vptq_rng_below(rng, i, n - i) < m - taken)
            chosen[taken++] = i;
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

/* The padding repeats the last point with weight 0, so that it is never drawn. */
static void fill_sample(const vptq_kmeans_points *points, const size_t *chosen, size_t count,
                        vptq_seed_points *s)
{
    float max = 0;
    for (size_t i = 0; i < s->m; i++) {
        size_t from = chosen[i < count ? i : count - 1];
        for (size_t e = 0; e < s->v; e++)
            s->xt[e * s->m + i] = points->x[from * s->v + e];
        s->w[i] = i >= count ? 0 : points->w ? points->w[from] : 1;
        max = s->w[i] > max ? s->w[i] : max;
    }
    for (size_t i = 0; i < count; i++) /* keeps products in range; all 0 means all 1 */
        s->w[i] = max > 0 ? s->w[i] / max : 1;
}

static vptq_status seed_plus_plus(const vptq_kmeans_points *points, const vptq_rng *rng,
                                  uint32_t k, const size_t *chosen, size_t count,
                                  float *centroids, vptq_err *err)
{
    const size_t m = (count + VPTQ_SEED_LANES - 1) / VPTQ_SEED_LANES * VPTQ_SEED_LANES;
    const size_t v = points->v, chunks = (m + CHUNK - 1) / CHUNK;
    vptq_mem *mem = points->ctx->mem;
    float *floats = vptq_mem_alloc(mem, m, (v + 2) * sizeof *floats, err);
    double *doubles = vptq_mem_alloc(mem, chunks * (1 + TRIALS), sizeof *doubles, err);
    float *c = vptq_mem_alloc(mem, (1 + TRIALS) * v, sizeof *c, err);
    vptq_status st = floats && doubles && c ? VPTQ_OK : VPTQ_E_NOMEM;
    if (!st) {
        seeding g = {.s = {.m = m, .v = v, .xt = floats, .w = floats + m * v},
                     .loops = VPTQ_SIMD_SELECT(vptq_cpu_simd(), vptq_seed_loops),
                     .rng = rng,
                     .threads = points->ctx->threads,
                     .chunks = chunks,
                     .potential = doubles,
                     .trial = doubles + chunks,
                     .last = c,
                     .c = c + v};
        g.s.d = g.s.w + m;
        fill_sample(points, chosen, count, &g.s);
        st = plus_plus(points->ctx, &g, k, centroids, err);
    }
    vptq_mem_free(mem, floats);
    vptq_mem_free(mem, doubles);
    vptq_mem_free(mem, c);
    return st;
}

vptq_status vptq_kmeans_seed(const vptq_kmeans_points *points, const vptq_kmeans_options *opt,
                             float *centroids, vptq_err *err)
{
    const size_t v = points->v;
    size_t count = opt->seed_sample ? opt->seed_sample : default_sample(opt->k);
    if (opt->seeding == VPTQ_KMEANS_RANDOM || count < opt->k)
        count = opt->k;
    if (count > points->n)
        count = points->n;
    size_t *chosen = vptq_mem_alloc(points->ctx->mem, count, sizeof *chosen, err);
    if (!chosen)
        return VPTQ_E_NOMEM;
    vptq_status st = VPTQ_OK;
    draw_subset(&opt->rng, points->n, count, chosen);
    if (opt->seeding == VPTQ_KMEANS_PLUSPLUS) {
        st = seed_plus_plus(points, &opt->rng, opt->k, chosen, count, centroids, err);
    } else {
        for (size_t j = 0; j < opt->k; j++)
            memcpy(centroids + j * v, points->x + chosen[j] * v, v * sizeof *centroids);
    }
    vptq_mem_free(points->ctx->mem, chosen);
    return st;
}
