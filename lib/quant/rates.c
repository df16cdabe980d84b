#include "lib/quant/rates.h"

#include <math.h>

enum { PROBE_CENTROIDS = 256, PROBE_VECTORS = 16 };

static const vptq_rate table[] = {
    {8, 256, 0, 4.0},     {4, 16, 0, 4.0},       {12, 256, 256, 2.3},   {6, 256, 0, 2.6},
    {8, 1024, 0, 2.9},    {8, 256, 16, 1.9},     {4, 64, 0, 2.0},       {8, 4096, 0, 2.0},
    {6, 512, 0, 2.0},     {12, 512, 512, 2.0},   {8, 256, 32, 1.6},     {6, 256, 4, 1.6},
    {6, 1024, 0, 1.6},    {8, 256, 64, 1.3},     {4, 128, 0, 1.3},      {12, 1024, 1024, 1.3},
    {6, 2048, 0, 1.2},    {8, 256, 128, 1.0},    {6, 256, 16, 0.9},     {6, 4096, 0, 0.8},
    {4, 256, 0, 0.9},     {8, 256, 256, 0.8},    {12, 4096, 4096, 0.7}, {6, 256, 32, 0.7},
    {8, 512, 256, 0.67},  {6, 256, 64, 0.56},    {4, 512, 0, 0.62},     {8, 512, 512, 0.55},
    {6, 256, 128, 0.45},  {4, 256, 4, 0.5},      {4, 1024, 0, 0.43},    {8, 1024, 1024, 0.41},
    {6, 256, 256, 0.36},  {8, 4096, 1024, 0.3},  {6, 512, 256, 0.29},   {4, 256, 8, 0.36},
    {4, 256, 16, 0.28},   {6, 512, 512, 0.22},   {4, 4096, 0, 0.2},     {8, 4096, 4096, 0.2},
    {4, 256, 32, 0.2},    {6, 1024, 1024, 0.14}, {4, 256, 64, 0.14},    {4, 256, 128, 0.1},
    {4, 256, 256, 0.075}, {4, 512, 512, 0.04},   {4, 1024, 1024, 0.02},
};

const vptq_rate *vptq_rate_table(size_t *count)
{
    *count = sizeof table / sizeof table[0];
    return table;
}

static double vectors(uint32_t out, uint32_t in, uint32_t v)
{
    return (double)((out + v - 1) / v) * in;
}

vptq_quant_settings vptq_rate_probe(uint32_t out, uint32_t in, uint64_t seed,
                                    vptq_dtype storage)
{
    /* Spelled out, so that a step that the default encoder gains does not get in here. */
    const vptq_quant_settings best = vptq_quant_default();
    vptq_quant_settings s = {.v = 4,
                             .k = PROBE_CENTROIDS,
                             .groups = 1,
                             .v0 = best.v0,
                             .k0 = best.k0,
                             .storage = storage,
                             .norm = VPTQ_NORM_STD,
                             .perm = true,
                             .kmeans_iterations = 4,
                             .kmeans_tolerance = best.kmeans_tolerance,
                             .beam = 1,
                             .pass_columns = 1,
                             .ridge = best.ridge,
                             .damping = best.damping,
                             .seed = seed};
    while (s.k > 2 && vectors(out, in, s.v) < PROBE_VECTORS * (double)s.k)
        s.k /= 2;
    return s;
}

/* What is left of the loss when x vectors share a centroid, against vectors without end.  The
 * exponent is that of 192 rows of 576 columns at v 8, k 256 to 4096 (54 to 3.4 vectors). */
static double learned(double x)
{
    return pow(1 - 1 / (x < 2 ? 2 : x), 2.5);
}

double vptq_rate_predict(const vptq_rate *r, uint32_t out, uint32_t in)
{
    const vptq_quant_settings probe = vptq_rate_probe(out, in, 0, VPTQ_F16);
    /* A bit less per index of v weights is 2 / v bits' worth of squared error. */
    const double fewer = pow(PROBE_CENTROIDS / (double)probe.k, 2.0 / probe.v);
    return r->loss * learned(vectors(out, in, r->v) / (r->k + r->k_res)) /
           (fewer * learned(vectors(out, in, probe.v) / probe.k));
}
