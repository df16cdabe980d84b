/* The table of measured losses and the prediction from it (rates.h). */
#include "lib/encoder/rates.h"

#include <math.h>

enum { PROBE_CENTROIDS = 256, PROBE_VECTORS = 16 };

/* Fitted by scripts/fit_rates.py to the output of
 *
 *     bench_rates --quick MODEL HDIR 15:o_proj 25:q_proj 15:o_proj:192 8:gate_proj:192 5:k_proj
 *         20:down_proj:192 8:gate_proj
 *
 * for SmolLM2-135M-Instruct with Hessians of 131072 tokens of C4. */
static const vptq_rate table[] = {
    {4, 16, 0, 3.8106},       {8, 256, 0, 3.0850},     {4, 32, 0, 2.6138},
    {8, 1024, 0, 2.0256},     {6, 256, 0, 2.0425},     {12, 256, 256, 1.7952},
    {12, 512, 256, 1.5801},   {4, 64, 0, 1.8731},      {6, 512, 0, 1.5652},
    {8, 256, 16, 1.5939},     {8, 4096, 0, 1.3821},    {12, 512, 512, 1.3866},
    {8, 256, 32, 1.3455},     {6, 256, 4, 1.3590},     {6, 1024, 0, 1.1993},
    {12, 1024, 1024, 1.1080}, {4, 128, 0, 1.3017},     {8, 256, 64, 1.1291},
    {6, 2048, 0, 0.9270},     {8, 256, 128, 0.9453},   {8, 512, 64, 0.9313},
    {2, 16, 0, 1.2632},       {4, 256, 0, 0.9001},     {6, 256, 16, 0.8704},
    {6, 4096, 0, 0.7418},     {8, 256, 256, 0.7883},   {8, 512, 128, 0.7854},
    {12, 4096, 4096, 0.7185}, {8, 512, 256, 0.6457},   {8, 1024, 128, 0.6405},
    {6, 256, 32, 0.6963},     {6, 512, 16, 0.6729},    {4, 256, 2, 0.6615},
    {4, 512, 0, 0.6218},      {8, 512, 512, 0.5397},   {8, 1024, 256, 0.5392},
    {6, 256, 64, 0.5582},     {6, 512, 32, 0.5426},    {8, 1024, 512, 0.4521},
    {4, 256, 4, 0.4978},      {4, 1024, 0, 0.4241},    {6, 256, 128, 0.4455},
    {6, 512, 64, 0.4375},     {8, 1024, 1024, 0.3683}, {6, 256, 256, 0.3488},
    {6, 512, 128, 0.3509},    {4, 256, 8, 0.3639},     {4, 2048, 0, 0.2931},
    {8, 4096, 1024, 0.2510},  {6, 512, 256, 0.2692},   {2, 64, 0, 0.3025},
    {4, 256, 16, 0.2668},     {4, 512, 8, 0.2488},     {4, 4096, 0, 0.1977},
    {6, 512, 512, 0.2114},    {6, 1024, 256, 0.2151},  {8, 4096, 4096, 0.1816},
    {4, 256, 32, 0.1949},     {6, 1024, 1024, 0.1228}, {2, 128, 0, 0.1506},
    {4, 256, 64, 0.1407},     {4, 512, 32, 0.1349},    {4, 256, 128, 0.0992},
    {2, 256, 0, 0.0756},      {4, 256, 256, 0.0688},   {4, 512, 128, 0.0708},
    {4, 512, 512, 0.0322},    {4, 1024, 1024, 0.0146},
};

const vptq_rate *vptq_rate_table(size_t *count)
{
    *count = sizeof table / sizeof table[0];
    return table;
}

static double num_vectors(uint32_t out, uint32_t in, uint32_t v)
{
    const uint32_t vector_rows = (out + v - 1) / v;
    return (double)vector_rows * in;
}

vptq_encoder_settings vptq_rate_probe(uint32_t out, uint32_t in, uint64_t seed,
                                      vptq_dtype storage)
{
    /* Spelled out: a new step of the default encoder must not change the probe. */
    const vptq_encoder_settings best = vptq_encoder_defaults();
    vptq_encoder_settings s = {.method = VPTQ_METHOD_VPTQ,
                               .v = 4,
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
    while (s.k > 2 && num_vectors(out, in, s.v) < PROBE_VECTORS * (double)s.k)
        s.k /= 2;
    return s;
}

/* The share of the loss that remains with x vectors per centroid, compared with infinitely
 * many. The exponent is fitted to the losses of matrices cut from 576 to 192 rows, with 4 to
 * 300 vectors per centroid. */
static double remaining_loss(double x)
{
    return pow(1 - 1 / (x < 2 ? 2 : x), 3.2);
}

/* Loss of the quick encoding of [out, in], divided by what it would be with 256 centroids and
 * many vectors for each. */
static double probe_level(uint32_t out, uint32_t in)
{
    const vptq_encoder_settings probe = vptq_rate_probe(out, in, 0, VPTQ_F16);
    /* Half the centroids save 1 / v bits per weight; a bit is worth a factor of 4. */
    const double fewer = pow(PROBE_CENTROIDS / (double)probe.k, 2.0 / probe.v);
    return fewer * remaining_loss(num_vectors(out, in, probe.v) / probe.k);
}

double vptq_rate_predict(const vptq_rate *r, uint32_t out, uint32_t in)
{
    return r->loss * remaining_loss(num_vectors(out, in, r->v) / (r->k + r->k_res)) /
           probe_level(out, in);
}

double vptq_rate_predict_codes(uint32_t method, uint32_t bits, uint32_t out, uint32_t in)
{
    /* At 4 bits in groups of 64 columns; docs/allocation.md. */
    const double four = method & VPTQ_METHOD_GPTQ  ? 0.1
                        : method & VPTQ_METHOD_AWQ ? 0.12
                                                   : 0.15;
    return four * pow(4, 4 - (double)bits) / probe_level(out, in);
}
