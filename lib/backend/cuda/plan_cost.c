/* The time model of the ops that quantize and calibrate. */
#include "lib/backend/cuda/plan_cost.h"

#include <math.h>

#include "lib/backend/backend.h"

static const vptq_cuda_costs h200 = {.chip = "H200",
                                     .launch_s = 2.5e-6,
                                     .memory = 4.23e12,
                                     .link = 9.3e9,
                                     .products = 1.2e14,
                                     .doubles = 1.6e13,
                                     .factoring = 1e13,
                                     .issued = 1.02e13,
                                     .columns = 1.29e13,
                                     .column_s = 4.5e-6,
                                     .seeding_s = 5.9e-6};

/* Counts of the kernels. */
static const double gemm_products = 3, gemv_products = 2, syrk_products = 3;
/* Instructions per vector and centroid, of which some grow with v; counted at v = 8. */
static const double assign_instructions = 3, main_instructions = 10.3, pair_instructions = 4.6;
/* The same of plus_plus, per element: a difference and its square. */
static const double seeding_instructions = 2;
enum { COUNTED_V = 8 };
enum { GEMM_LAUNCHES = 3, SEARCH_LAUNCHES = 2, SCATTER_LAUNCHES = 12, COLUMN_BLOCK = 128 };
/* Vector rows that the device takes through the columns together (search.h). */
enum { COLUMN_ROWS = 132 * 16 };
/* Times that a vector and its label are read or written by sorting and adding. */
static const double scatter_passes = 18;

const vptq_cuda_costs *vptq_cuda_costs_default(void)
{
    return &h200;
}

static double seconds(const vptq_cuda_costs *c, double launches, double computing, double bytes)
{
    return launches * c->launch_s + fmax(computing, bytes / c->memory);
}

double vptq_cuda_cost_gemm(const vptq_cuda_costs *c, double m, double n, double k)
{
    return seconds(c, GEMM_LAUNCHES, gemm_products * m * n * k / c->products,
                   sizeof(float) * (2 * m * k + 2 * k * n + 2 * m * n));
}

double vptq_cuda_cost_gemv(const vptq_cuda_costs *c, double tokens, double out, double in)
{
    return seconds(c, GEMM_LAUNCHES, gemv_products * tokens * out * in / c->products,
                   sizeof(uint16_t) * out * in + sizeof(float) * tokens * (2 * in + out));
}

double vptq_cuda_cost_syrk(const vptq_cuda_costs *c, double tokens, double n)
{
    const double triangle = n * (n + 1) / 2;
    return seconds(c, GEMM_LAUNCHES, syrk_products * tokens * triangle / c->products,
                   2 * sizeof(double) * triangle + 2 * sizeof(float) * tokens * n);
}

double vptq_cuda_cost_attention(const vptq_cuda_costs *c, double tokens, double context,
                                double heads, double head_dim)
{
    /* in float: scores and sums, each one fused multiplication per element and instruction */
    const double seen = tokens * context / 2;
    return seconds(c, 1, 2 * seen * heads * head_dim / c->issued,
                   sizeof(float) * 4 * tokens * heads * head_dim);
}

double vptq_cuda_cost_factor(const vptq_cuda_costs *c, double n)
{
    /* potrf takes n^3 / 6 multiplications, trtri as many */
    return seconds(c, 2 * n / COLUMN_BLOCK, n * n * n / 3 / c->factoring,
                   8 * sizeof(double) * n * n);
}

double vptq_cuda_cost_quad_trace(const vptq_cuda_costs *c, double m, double n)
{
    /* E^T E is symmetric: only its lower triangle is computed */
    return seconds(c, 2, m * n * (n + 1) / 2 / c->doubles, sizeof(float) * m * n);
}

double vptq_cuda_cost_assign(const vptq_cuda_costs *c, double n, uint32_t v, uint32_t k)
{
    return seconds(c, SEARCH_LAUNCHES, assign_instructions * n * k * v / COUNTED_V / c->issued,
                   sizeof(float) * n * (v + 1));
}

/* Instructions per vector: every main centroid, and the residual ones with the best of them. */
static double search_instructions(const vptq_cuda_searched *s)
{
    const double beam = s->beam < s->k ? s->beam : s->k;
    return (main_instructions * s->k + pair_instructions * beam * s->k_res) * s->v / COUNTED_V;
}

double vptq_cuda_cost_search(const vptq_cuda_costs *c, double n, const vptq_cuda_searched *s)
{
    return seconds(c, SEARCH_LAUNCHES, n * search_instructions(s) / c->issued,
                   sizeof(float) * n * (s->v + 2));
}

double vptq_cuda_cost_columns(const vptq_cuda_costs *c, double columns, double vectors,
                              const vptq_cuda_searched *s)
{
    const double waiting = columns * ceil(vectors / COLUMN_ROWS) * c->column_s;
    return seconds(c, ceil(columns / COLUMN_BLOCK),
                   waiting + columns * vectors * search_instructions(s) / c->columns,
                   sizeof(float) * 4 * columns * vectors * s->v);
}

double vptq_cuda_cost_scatter(const vptq_cuda_costs *c, double n, uint32_t v, uint32_t k)
{
    return seconds(c, SCATTER_LAUNCHES, 0,
                   scatter_passes * sizeof(float) * n * (v + 1) + 2.0 * sizeof(double) * k * v);
}

double vptq_cuda_cost_stream(const vptq_cuda_costs *c, double bytes)
{
    return seconds(c, 1, 0, bytes);
}

double vptq_cuda_cost_copy(const vptq_cuda_costs *c, double bytes)
{
    return c->launch_s + bytes / c->link;
}

double vptq_cuda_cost_seeding(const vptq_cuda_costs *c, double n, uint32_t v, uint32_t k)
{
    return k *
           (c->seeding_s + n * VPTQ_PLUS_PLUS_TRIALS * (seeding_instructions * v) / c->issued);
}
