/* Seeding: weighted k-means++ (Arthur and Vassilvitskii, "k-means++: the advantages of careful
 * seeding", SODA 2007) in its greedy form, on a subsample.  A point is drawn with a probability
 * proportional to its weight times its squared distance from the nearest centroid so far;
 * several are drawn per step and the one that lowers the sum of these products most is kept. */
#include "kmeans/kmeans_seed.h"

#include <float.h>
#include <string.h>

#include "kmeans/kmeans_parts.h"
#include "lib/base/cpu.h"
#include "lib/base/mem.h"
#include "lib/base/parallel.h"

/* Counters of opt->rng: below this one per point for subsampling, from here on TRIALS per
 * centroid. */
static const uint64_t SEEDING_COUNTER = UINT64_C(1) << 40;

enum { TRIALS = 8, CHUNK = 8192 };

/* More of a sample costs time but serves few vectors per centroid visibly: with 20 of them, 8
 * trials on all leave 5 % less error after Lloyd than one trial on 8 per centroid.  Hence 32
 * per centroid; large books take fewer, so that seeding stays cheaper than Lloyd. */
static size_t default_sample(size_t k)
{
    const size_t least = 32768;
    size_t bounded = ((size_t)1 << 30) / k > 2 * k ? ((size_t)1 << 30) / k : 2 * k;
    size_t sample = 32 * k < bounded ? 32 * k : bounded;
    return sample > least ? sample : least;
}

/* m of n numbers, each subset equally likely, ascending (Knuth, TAOCP 2, 3.4.2, algorithm S).
 */
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
    double *trial;     /* [TRIALS][chunks] the same with a candidate */
    float *c;          /* [TRIALS][v] candidates */
} seeding;

static void add_chunk(void *arg, size_t begin, size_t end, int thread)
{
    const seeding *g = arg;
    (void)thread;
    g->potential[begin / CHUNK] = g->loops->add(&g->s, g->c, begin, end);
}

static void probe_chunk(void *arg, size_t begin, size_t end, int thread)
{
    const seeding *g = arg;
    (void)thread;
    for (size_t t = 0; t < TRIALS; t++)
        g->trial[t * g->chunks + begin / CHUNK] =
            g->loops->probe(&g->s, g->c + t * g->s.v, begin, end);
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
    size_t chunk = 0, found = 0;
    while (chunk + 1 < g->chunks && rest >= g->potential[chunk])
        rest -= g->potential[chunk++];
    size_t end = (chunk + 1) * CHUNK < s->m ? (chunk + 1) * CHUNK : s->m;
    for (size_t i = chunk * CHUNK; i < end; i++) {
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

/* Leaves centroid number j in g->c[0 .. v - 1]. */
static void choose_next(seeding *g, uint32_t j)
{
    const size_t v = g->s.v;
    for (uint32_t t = 0; t < TRIALS; t++) {
        uint64_t counter = SEEDING_COUNTER + (uint64_t)j * TRIALS + t;
        copy_point(&g->s, draw_point(g, vptq_rng_uniform(g->rng, counter)), g->c + t * v);
    }
    vptq_parallel_for(g->threads, g->s.m, CHUNK, probe_chunk, g);
    size_t best = 0;
    double least = sum_of(g->trial, g->chunks);
    for (size_t t = 1; t < TRIALS; t++) {
        double potential = sum_of(g->trial + t * g->chunks, g->chunks);
        if (potential < least) {
            least = potential;
            best = t;
        }
    }
    memmove(g->c, g->c + best * v, v * sizeof *g->c);
}

static vptq_status plus_plus(const vptq_ctx *ctx, seeding *g, uint32_t k, float *centroids,
                             vptq_err *err)
{
    const size_t v = g->s.v;
    for (size_t i = 0; i < g->s.m; i++)
        g->s.d[i] = 1; /* the first point is drawn by weight alone */
    for (size_t b = 0; b < g->chunks; b++) {
        size_t end = (b + 1) * CHUNK < g->s.m ? (b + 1) * CHUNK : g->s.m;
        g->potential[b] = 0;
        for (size_t i = b * CHUNK; i < end; i++)
            g->potential[b] += (double)g->s.w[i];
    }
    copy_point(&g->s, draw_point(g, vptq_rng_uniform(g->rng, SEEDING_COUNTER)), g->c);
    for (size_t i = 0; i < g->s.m; i++)
        g->s.d[i] = FLT_MAX;
    for (uint32_t j = 0; j < k; j++) {
        vptq_status st = vptq_check_cancel(ctx, err);
        if (st)
            return st;
        if (j > 0)
            choose_next(g, j);
        memcpy(centroids + j * v, g->c, v * sizeof *g->c);
        vptq_parallel_for(g->threads, g->s.m, CHUNK, add_chunk, g);
    }
    return VPTQ_OK;
}

static const vptq_seed_loops *loops_of_this_cpu(void)
{
#if defined(__x86_64__)
    switch (vptq_cpu_simd()) {
    case VPTQ_SIMD_AVX512:
        return &vptq_seed_loops_avx512;
    case VPTQ_SIMD_AVX2:
        return &vptq_seed_loops_avx2;
    case VPTQ_SIMD_NONE:
        break;
    }
#endif
    return &vptq_seed_loops_none;
}

/* Lanes past the sample repeat its last point with weight 0: they are never drawn. */
static void fill_sample(const vptq_kmeans_points *points, const size_t *chosen, size_t count,
                        vptq_seed_points *s)
{
    float most = 0;
    for (size_t i = 0; i < s->m; i++) {
        size_t from = chosen[i < count ? i : count - 1];
        for (size_t e = 0; e < s->v; e++)
            s->xt[e * s->m + i] = points->x[from * s->v + e];
        s->w[i] = i >= count ? 0 : points->w ? points->w[from] : 1;
        most = s->w[i] > most ? s->w[i] : most;
    }
    for (size_t i = 0; i < count; i++) /* products stay in range; all 0 counts as all 1 */
        s->w[i] = most > 0 ? s->w[i] / most : 1;
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
    float *c = vptq_mem_alloc(mem, TRIALS * v, sizeof *c, err);
    vptq_status st = floats && doubles && c ? VPTQ_OK : VPTQ_E_NOMEM;
    if (!st) {
        seeding g = {.s = {.m = m, .v = v, .xt = floats, .w = floats + m * v},
                     .loops = loops_of_this_cpu(),
                     .rng = rng,
                     .threads = points->ctx->threads,
                     .chunks = chunks,
                     .potential = doubles,
                     .trial = doubles + chunks,
                     .c = c};
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
