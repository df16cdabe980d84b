/* Included by kmeans_seed_LEVEL.c behind `enum { WIDTH }`, the floats of one register of the
 * level.  16 points at a time in 16 / WIDTH registers; nothing is fused or reordered
 * (-ffp-contract=off), so the bits are the same everywhere. */
#include <stdint.h>
#include <string.h>

#include "kmeans/kmeans_seed.h"

enum { LANES = VPTQ_SEED_LANES, PARTS = LANES / WIDTH, RUN = 16 * LANES };
typedef float floats __attribute__((vector_size(WIDTH * sizeof(float))));
typedef int32_t ints __attribute__((vector_size(WIDTH * sizeof(int32_t))));

/* Sum of w d over at most RUN points, lane by lane in float. */
static inline __attribute__((always_inline)) double
relax_run(const vptq_seed_points *s, const float *c, size_t begin, size_t end, int keep)
{
    floats sum[PARTS] = {{0}};
    for (size_t i = begin; i < end; i += LANES) {
        floats dist[PARTS] = {{0}};
        for (size_t e = 0; e < s->v; e++) {
            for (size_t p = 0; p < PARTS; p++) {
                floats x;
                memcpy(&x, s->xt + e * s->m + i + p * WIDTH, sizeof x);
                dist[p] += (x - c[e]) * (x - c[e]);
            }
        }
        for (size_t p = 0; p < PARTS; p++) {
            floats d, w;
            memcpy(&d, s->d + i + p * WIDTH, sizeof d);
            memcpy(&w, s->w + i + p * WIDTH, sizeof w);
            const ints nearer = dist[p] < d;
            d = (floats)(((ints)dist[p] & nearer) | ((ints)d & ~nearer));
            sum[p] += w * d;
            if (keep)
                memcpy(s->d + i + p * WIDTH, &d, sizeof d);
        }
    }
    double total = 0;
    for (size_t l = 0; l < LANES; l++)
        total += (double)sum[l / WIDTH][l % WIDTH];
    return total;
}

static inline __attribute__((always_inline)) double
relax(const vptq_seed_points *s, const float *c, size_t begin, size_t end, int keep)
{
    double total = 0;
    for (size_t i = begin; i < end; i += RUN)
        total += relax_run(s, c, i, end - i < RUN ? end : i + RUN, keep);
    return total;
}

static double add(const vptq_seed_points *s, const float *c, size_t begin, size_t end)
{
    return relax(s, c, begin, end, 1);
}

static double probe(const vptq_seed_points *s, const float *c, size_t begin, size_t end)
{
    return relax(s, c, begin, end, 0);
}
