/* The op plus_plus of the `ref` table, word by word as backend.h has it. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

enum { TRIALS = VPTQ_PLUS_PLUS_TRIALS, CHUNK = VPTQ_PLUS_PLUS_CHUNK };

typedef struct seeding {
    size_t m, v;
    const float *x; /* [m, v] */
    float *w, *d;   /* [m] */
    double *total;  /* [chunks] sum of w d of every chunk */
    size_t chunks;
} seeding;

static size_t chunk_end(const seeding *g, size_t chunk)
{
    return (chunk + 1) * CHUNK < g->m ? (chunk + 1) * CHUNK : g->m;
}

/* d of point i if point c became a centroid. */
static float distance_with(const seeding *g, size_t i, size_t c)
{
    const float *x = g->x + i * g->v, *y = g->x + c * g->v;
    float sum = 0;
    for (size_t e = 0; e < g->v; e++) {
        const float diff = x[e] - y[e];
        sum = fmaf(diff, diff, sum);
    }
    return sum < g->d[i] ? sum : g->d[i];
}

/* Sum of w d over a chunk if point c became a centroid. */
static double chunk_sum(const seeding *g, size_t chunk, size_t c)
{
    float lane[VPTQ_PLUS_PLUS_LANES] = {0};
    double sum = 0;
    for (size_t i = chunk * CHUNK; i < chunk_end(g, chunk); i++) {
        float *to = &lane[i % VPTQ_PLUS_PLUS_LANES];
        *to = fmaf(g->w[i], distance_with(g, i, c), *to);
    }
    for (size_t l = 0; l < VPTQ_PLUS_PLUS_LANES; l++)
        sum += (double)lane[l];
    return sum;
}

static double sum_with(const seeding *g, size_t c)
{
    double sum = 0;
    for (size_t b = 0; b < g->chunks; b++)
        sum += chunk_sum(g, b, c);
    return sum;
}

static size_t draw(const seeding *g, double u)
{
    double rest = 0;
    size_t chunk = 0;
    for (size_t b = 0; b < g->chunks; b++)
        rest += g->total[b];
    rest *= u;
    while (chunk + 1 < g->chunks && rest >= g->total[chunk])
        rest -= g->total[chunk++];
    size_t found = chunk * CHUNK;
    for (size_t i = chunk * CHUNK; i < chunk_end(g, chunk) && !(rest < 0); i++) {
        const float product = g->w[i] * g->d[i];
        found = product > 0 ? i : found;
        rest -= (double)product;
    }
    return found;
}

static size_t draw_by_weight(const seeding *g, double u)
{
    double rest = 0;
    size_t found = 0;
    for (size_t i = 0; i < g->m; i++)
        rest += (double)g->w[i];
    rest *= u;
    for (size_t i = 0; i < g->m && !(rest < 0); i++) {
        found = g->w[i] > 0 ? i : found;
        rest -= (double)g->w[i];
    }
    return found;
}

/* Returns the best of 8 points. */
static size_t choose(const seeding *g, const double *u)
{
    size_t best = 0;
    double least = 0;
    for (size_t t = 0; t < TRIALS; t++) {
        const size_t c = draw(g, u[t]);
        const double sum = sum_with(g, c);
        if (t == 0 || sum < least) {
            best = c;
            least = sum;
        }
    }
    return best;
}

static void add_centroid(seeding *g, size_t c)
{
    for (size_t b = 0; b < g->chunks; b++)
        g->total[b] = chunk_sum(g, b, c);
    for (size_t i = 0; i < g->m; i++)
        g->d[i] = distance_with(g, i, c);
}

static void fill_points(const vptq_plus_plus_args *a, seeding *g)
{
    float max = 0;
    for (size_t i = 0; i < a->m; i++) {
        g->d[i] = FLT_MAX;
        g->w[i] = a->w ? a->w[i] : 1;
        max = g->w[i] > max ? g->w[i] : max;
    }
    for (size_t i = 0; i < a->m; i++)
        g->w[i] = max > 0 ? g->w[i] / max : 1;
}

vptq_status vptq_ref_plus_plus(vptq_dev *dev, const vptq_plus_plus_args *a, vptq_err *err)
{
    const size_t chunks = (a->m + CHUNK - 1) / CHUNK;
    seeding g = {.m = a->m, .v = a->v, .x = a->x, .chunks = chunks};
    g.total = vptq_dev_scratch(dev, chunks + a->m, sizeof *g.total, err);
    if (!g.total)
        return VPTQ_E_NOMEM;
    g.w = (float *)(void *)(g.total + chunks);
    g.d = g.w + a->m;
    fill_points(a, &g);
    for (size_t j = 0; j < a->k; j++) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        const size_t c = j ? choose(&g, a->u + j * TRIALS) : draw_by_weight(&g, a->u[0]);
        add_centroid(&g, c);
        memcpy(a->centroids + j * a->v, a->x + c * a->v, a->v * sizeof *a->x);
    }
    return VPTQ_OK;
}
