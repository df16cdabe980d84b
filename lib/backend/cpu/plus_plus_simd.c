/* The inner loops of plus_plus: 16 points at a time in 16 / SIMD_LANES registers, so that sums
 * have the same order at every level. */
#include "lib/backend/cpu/plus_plus.h"
#include "lib/base/simd.h"

enum {
    LANES = VPTQ_PLUS_PLUS_LANES,
    WIDTH = SIMD_LANES,
    PARTS = LANES / WIDTH,
    TRIALS = VPTQ_PLUS_PLUS_TRIALS,
    MAX_V = VPTQ_VQ_MAX_V
};

SIMD_INLINE vf distance_to(const float *c, size_t v, const vf *x)
{
    vf sum = vf_set1(0);
#pragma GCC unroll 16
    for (size_t e = 0; e < v; e++) {
        const vf diff = vf_sub(x[e], vf_set1(c[e]));
        sum = vf_fma(diff, diff, sum);
    }
    return sum;
}

/* Lane by lane in float over at most VPTQ_PLUS_PLUS_CHUNK points, then the lanes in double. */
SIMD_INLINE double sum_of_lanes(const vf sum[PARTS])
{
    double total = 0;
    for (size_t l = 0; l < LANES; l++)
        total += (double)sum[l / WIDTH][l % WIDTH];
    return total;
}

SIMD_INLINE void probe_points(const vptq_plus_plus_points *s, size_t v, const float *last,
                              const float *c, size_t begin, size_t end, double *sums)
{
    vf sum[TRIALS][PARTS] = {{{0}}};
    for (size_t i = begin; i < end; i += LANES) {
        for (size_t p = 0; p < PARTS; p++) {
            vf x[MAX_V], d, w;
            for (size_t e = 0; e < v; e++)
                x[e] = vf_load(s->xt + e * s->m + i + p * WIDTH);
            d = vf_load(s->d + i + p * WIDTH);
            w = vf_load(s->w + i + p * WIDTH);
            d = vf_min(distance_to(last, v, x), d);
            vf_store(s->d + i + p * WIDTH, d);
            for (size_t t = 0; t < TRIALS; t++)
                sum[t][p] = vf_fma(w, vf_min(distance_to(c + t * v, v, x), d), sum[t][p]);
        }
    }
    for (size_t t = 0; t < TRIALS; t++)
        sums[t] = sum_of_lanes(sum[t]);
}

static double add(const vptq_plus_plus_points *s, const float *c, size_t begin, size_t end)
{
    vf sum[PARTS] = {{0}};
    for (size_t i = begin; i < end; i += LANES) {
        for (size_t p = 0; p < PARTS; p++) {
            vf x[MAX_V], d, w;
            for (size_t e = 0; e < s->v; e++)
                x[e] = vf_load(s->xt + e * s->m + i + p * WIDTH);
            d = vf_load(s->d + i + p * WIDTH);
            w = vf_load(s->w + i + p * WIDTH);
            d = vf_min(distance_to(c, s->v, x), d);
            vf_store(s->d + i + p * WIDTH, d);
            sum[p] = vf_fma(w, d, sum[p]);
        }
    }
    return sum_of_lanes(sum);
}

static void probe(const vptq_plus_plus_points *s, const float *last, const float *c,
                  size_t begin, size_t end, double *sums)
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

const vptq_plus_plus_loops VPTQ_SIMD_SYMBOL(vptq_plus_plus_loops) = {add, probe};
