/* Codebooks on an int8 grid: recognizing one, and choosing the scale of a new one. */
#include "lib/base/grid.h"

#include <math.h>

/* ---- recognition ---- */

/* |x| as whole * 2^exponent; x finite and not 0. */
static uint32_t split(float x, int *exponent)
{
    enum { DIGITS = 24 };
    const float mantissa = frexpf(fabsf(x), exponent);

    *exponent -= DIGITS;
    return (uint32_t)ldexpf(mantissa, DIGITS);
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The smallest and largest |c| other than 0; false if there is an infinity or a NaN.  *least is
 * 0 if all values are. */
static bool find_range(const float *c, size_t n, float *least, float *most)
{
    *least = *most = 0;
    for (size_t i = 0; i < n; i++) {
        const float a = fabsf(c[i]);
        if (!(a < INFINITY))
            return false;
        *most = a > *most ? a : *most;
        *least = a > 0 && (*least <= 0 || a < *least) ? a : *least;
    }
    return true;
}

/* The least value is at least one step of the grid, and no other has more than 127: relative to
 * the unit of the least value all of them are whole numbers below 2^24 * 128. */
bool vptq_grid_find(const float *c, size_t n, float *scale, int8_t *codes)
{
    float least, most;
    int unit = 0, exponent;

    if (!find_range(c, n, &least, &most) || (double)most > VPTQ_GRID_MAX * (double)least)
        return false;
    uint32_t divisor = least > 0 ? split(least, &unit) : 1;
    for (size_t i = 0; i < n; i++) {
        if (fabsf(c[i]) <= 0)
            continue;
        uint32_t whole = split(c[i], &exponent);
        whole <<= exponent - unit;
        if (whole % divisor)
            divisor = common_divisor(divisor, whole);
        if ((double)most > VPTQ_GRID_MAX * ldexp(divisor, unit))
            return false;
    }
    *scale = ldexpf((float)divisor, unit);
    for (size_t i = 0; codes && i < n; i++)
        codes[i] = (int8_t)lrint((double)c[i] / (double)*scale);
    return true;
}

/* ---- a scale for a codebook ---- */

/* Scales are numbered in ascending order: number i is (STEPS + i % STEPS) / STEPS * 2^(i /
 * STEPS), with STEPS numbers from one power of two to the next. */
typedef struct scales {
    int steps;
    double unit; /* the smallest number of the storage type */
    double most; /* and the largest finite one */
} scales;

static scales scales_of(vptq_dtype storage)
{
    return storage == VPTQ_BF16 ? (scales){1, 0x1p-133, 0x1.fep127}
                                : (scales){8, 0x1p-24, 65504};
}

static double scale_at(const scales *s, int i)
{
    const int octave = (i < 0 ? i - s->steps + 1 : i) / s->steps;

    return ldexp(1 + (double)(i - octave * s->steps) / s->steps, octave);
}

/* Whether all 255 products are exact, subnormal numbers included. */
static bool is_exact(const scales *s, double scale)
{
    return scale >= s->unit && fmod(scale, s->unit) <= 0 && VPTQ_GRID_MAX * scale <= s->most;
}

static double nearest(double scale, double x)
{
    const double code = rint(x / scale);

    return scale * fmin(fmax(code, -VPTQ_GRID_MAX), VPTQ_GRID_MAX);
}

static double change(double scale, size_t k, size_t v, const float *c, const double *weight)
{
    double sum = 0;

    for (size_t i = 0; i < k; i++) {
        double of_centroid = 0;
        for (size_t j = 0; j < v; j++) {
            const double x = (double)c[i * v + j], d = x - nearest(scale, x);
            of_centroid += d * d;
        }
        sum += weight[i] * of_centroid;
    }
    return sum;
}

float vptq_grid_choose(vptq_dtype storage, size_t k, size_t v, const float *c,
                       const double *weight)
{
    enum { OCTAVES = 2 }; /* of scales that clip */
    const scales s = scales_of(storage);
    float least, most;
    double best = 1, best_change = INFINITY;

    if (!find_range(c, k * v, &least, &most) || (double)most > s.most)
        return 0;
    if (!(most > 0))
        return 1;
    int i = s.steps * ilogb((double)most / VPTQ_GRID_MAX);
    while (VPTQ_GRID_MAX * scale_at(&s, i) < (double)most || scale_at(&s, i) < s.unit)
        i++;
    const int end = i - OCTAVES * s.steps;
    for (i += 2; i >= end; i--) {
        const double scale = scale_at(&s, i);
        if (!is_exact(&s, scale))
            continue;
        const double at = change(scale, k, v, c, weight);
        if (at < best_change) {
            best_change = at;
            best = scale;
        }
    }
    return (float)best;
}

void vptq_grid_round(float scale, float *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] = (float)nearest((double)scale, (double)c[i]) + 0.0F; /* -0 becomes +0 */
}
