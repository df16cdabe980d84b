/* Included by kmeans_seed_LEVEL.c behind `enum { WIDTH }`, the floats of one register of the
 * level, their type `floats`, and mul_add(a, b, c) = a * b + c.  16 points at a time in 16 /
 * WIDTH registers, so that sums have the same order everywhere. */
#include <stdint.h>
#include <string.h>

#include "kmeans/seed.h"

enum { LANES = VPTQ_SEED_LANES, PARTS = LANES / WIDTH, TRIALS = VPTQ_SEED_TRIALS, MOST_V = 64 };
typedef int32_t ints __attribute__((vector_size(WIDTH * sizeof(int32_t))));

/* The functions below are compiled once per vector length: v is a constant where it matters. */
#define INLINE static inline __attribute__((always_inline))

INLINE floats nearer_of(floats a, floats b)
{
    const ints nearer = a < b;
    return (floats)(((ints)a & nearer) | ((ints)b & ~nearer));
}

INLINE floats distance_to(const float *c, size_t v, const floats *x)
{
    floats sum = {0};
#pragma GCC unroll 16
    for (size_t e = 0; e < v; e++) {
        const floats diff = x[e] - c[e];
        sum = mul_add(diff, diff, sum);
    }
    return sum;
}

/* Lane by lane in float over at most VPTQ_SEED_CHUNK points, then the lanes in double. */
INLINE double sum_of_lanes(const floats sum[PARTS])
{
    double total = 0;
    for (size_t l = 0; l < LANES; l++)
        total += (double)sum[l / WIDTH][l % WIDTH];
    return total;
}

INLINE void probe_points(const vptq_seed_points *s, size_t v, const float *last, const float *c,
                         size_t begin, size_t end, double *sums)
{
    floats sum[TRIALS][PARTS] = {{{0}}};
    for (size_t i = begin; i < end; i += LANES) {
        for (size_t p = 0; p < PARTS; p++) {
            floats x[MOST_V], d, w;
            for (size_t e = 0; e < v; e++)
                memcpy(&x[e], s->xt + e * s->m + i + p * WIDTH, sizeof d);
            memcpy(&d, s->d + i + p * WIDTH, sizeof d);
            memcpy(&w, s->w + i + p * WIDTH, sizeof w);
            d = nearer_of(distance_to(last, v, x), d);
            memcpy(s->d + i + p * WIDTH, &d, sizeof d);
            for (size_t t = 0; t < TRIALS; t++)
                sum[t][p] = mul_add(w, nearer_of(distance_to(c + t * v, v, x), d), sum[t][p]);
        }
    }
    for (size_t t = 0; t < TRIALS; t++)
        sums[t] = sum_of_lanes(sum[t]);
}

static double add(const vptq_seed_points *s, const float *c, size_t begin, size_t end)
{
    floats sum[PARTS] = {{0}};
    for (size_t i = begin; i < end; i += LANES) {
        for (size_t p = 0; p < PARTS; p++) {
            floats x[MOST_V], d, w;
            for (size_t e = 0; e < s->v; e++)
                memcpy(&x[e], s->xt + e * s->m + i + p * WIDTH, sizeof d);
            memcpy(&d, s->d + i + p * WIDTH, sizeof d);
            memcpy(&w, s->w + i + p * WIDTH, sizeof w);
            d = nearer_of(distance_to(c, s->v, x), d);
            memcpy(s->d + i + p * WIDTH, &d, sizeof d);
            sum[p] = mul_add(w, d, sum[p]);
        }
    }
    return sum_of_lanes(sum);
}

static void probe(const vptq_seed_points *s, const float *last, const float *c, size_t begin,
                  size_t end, double *sums)
{
    switch (s->v) {
    case 4:
        probe_points(s, 4, last, c, begin, end, sums);
        break;
    case 6:
        probe_points(s, 6, last, c, begin, end, sums);
        break;
    case 8:
        probe_points(s, 8, last, c, begin, end, sums);
        break;
    case 12:
        probe_points(s, 12, last, c, begin, end, sums);
        break;
    default:
        probe_points(s, s->v, last, c, begin, end, sums);
        break;
    }
}
