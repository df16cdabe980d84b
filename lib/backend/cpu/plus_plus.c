/* The op plus_plus.  The newest centroid enters d only when the next candidates are probed, in
 * the same pass over the points. */
#include "lib/backend/cpu/plus_plus.h"

#include <float.h>
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/mem.h"
#include "lib/base/parallel.h"

enum { TRIALS = VPTQ_PLUS_PLUS_TRIALS, CHUNK = VPTQ_PLUS_PLUS_CHUNK, TASK = 8 * CHUNK };

typedef struct seeding {
    vptq_plus_plus_points s;
    const vptq_plus_plus_loops *loops;
    const double *u;
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

static size_t draw_point(const seeding *g, double u)
{
    const vptq_plus_plus_points *s = &g->s;
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

static void copy_point(const vptq_plus_plus_points *s, size_t i, float *c)
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
    for (size_t t = 0; t < TRIALS; t++)
        copy_point(&g->s, draw_point(g, g->u[j * TRIALS + t]), g->c + t * v);
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
    const vptq_plus_plus_points *s = &g->s;
    double rest = 0;
    size_t found = 0;
    for (size_t i = 0; i < s->m; i++) {
        rest += (double)s->w[i];
        s->d[i] = FLT_MAX;
    }
    rest *= g->u[0];
    for (size_t i = 0; i < s->m && rest >= 0; i++) {
        found = s->w[i] > 0 ? i : found;
        rest -= (double)s->w[i];
    }
    copy_point(s, found, g->last);
    for (size_t b = 0; b < g->chunks; b++)
        g->potential[b] = g->loops->add(s, g->last, b * CHUNK, chunk_end(g, b * CHUNK));
}

/* The padding repeats the last point with weight 0, so that it is never drawn. */
static void fill_points(const vptq_plus_plus_args *a, vptq_plus_plus_points *s)
{
    float max = 0;
    for (size_t i = 0; i < s->m; i++) {
        const size_t at = i < a->m ? i : a->m - 1;
        for (size_t e = 0; e < s->v; e++)
            s->xt[e * s->m + i] = a->x[at * s->v + e];
        s->w[i] = i >= a->m ? 0 : a->w ? a->w[at] : 1;
        max = s->w[i] > max ? s->w[i] : max;
    }
    for (size_t i = 0; i < a->m; i++) /* keeps products in range; all 0 means all 1 */
        s->w[i] = max > 0 ? s->w[i] / max : 1;
}

static vptq_status seeding_open(seeding *g, const vptq_plus_plus_args *a, vptq_arena *arena,
                                vptq_err *err)
{
    const size_t m = vptq_round_up(a->m, VPTQ_PLUS_PLUS_LANES), v = a->v;
    g->chunks = (m + CHUNK - 1) / CHUNK;
    g->s = (vptq_plus_plus_points){.m = m, .v = v};
    g->s.xt = vptq_arena_alloc(arena, m, (v + 2) * sizeof *g->s.xt, err);
    g->potential =
        g->s.xt ? vptq_arena_alloc(arena, g->chunks * (1 + TRIALS), sizeof *g->potential, err)
                : NULL;
    g->last =
        g->potential ? vptq_arena_alloc(arena, (1 + TRIALS) * v, sizeof *g->last, err) : NULL;
    if (!g->last)
        return VPTQ_E_NOMEM;
    g->s.w = g->s.xt + m * v;
    g->s.d = g->s.w + m;
    g->trial = g->potential + g->chunks;
    g->c = g->last + v;
    return VPTQ_OK;
}

vptq_status vptq_cpu_plus_plus(vptq_dev *dev, const vptq_plus_plus_args *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    seeding g = {.loops = VPTQ_SIMD_SELECT(dev->simd, vptq_plus_plus_loops),
                 .u = a->u,
                 .threads = dev->ctx->threads};
    VPTQ_BUG_IF(!a->m || a->m >> 31 || !a->v || a->v > VPTQ_VQ_MAX_V);
    vptq_arena_init(&arena, dev->ctx->mem);
    VPTQ_TRY(seeding_open(&g, a, &arena, err));
    fill_points(a, &g.s);
    for (uint32_t j = 0; j < a->k; j++) {
        VPTQ_TRY(vptq_check_cancel(dev->ctx, err));
        if (j > 0)
            choose_next(&g, j);
        else
            choose_first(&g);
        memcpy(a->centroids + (size_t)j * a->v, g.last, a->v * sizeof *g.last);
    }
out:
    vptq_arena_release(&arena);
    return st;
}
