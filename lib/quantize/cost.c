/* How long matrices take in relation to each other on a processor: the ops that predict.h
 * counts, at rates of which only the ratios mean anything. */
#include "lib/encoder/predict.h"
#include "lib/quantize/internal.h"
#include "lib/uniform/fold.h"

/* Fitted to the steps of 12 matrices on two cores with AVX-512: codebooks of 256 and 4096
 * centroids, the latter also with 256 residual ones. */
static const vptq_cuda_costs host = {.chip = "processor",
                                     .launch_s = 1.3e-5,
                                     .memory = 4e10,
                                     .link = 4e10,
                                     .products = 5e11,
                                     .doubles = 4.6e10,
                                     .factoring = 1.1e10,
                                     .issued = 1e11,
                                     .columns = 7.4e10,
                                     .column_s = 3.5e-7,
                                     .seeding_s = 1.5e-7};

/* Seconds per weight of the searches for additive codes, in proportion to the rates above:
 * fitted to slices of 128 to 512 rows and 256 to 2048 columns, over which they are constant. */
static double search_seconds(const vptq_encoder_settings *s)
{
    switch (s->method) {
    case VPTQ_METHOD_GPTVQ:
        return 6e-8 * (double)(UINT64_C(1) << s->weight_bits * s->v);
    case VPTQ_METHOD_AQLM:
        return 3.3e-9 * s->codebooks * s->k * s->beam;
    case VPTQ_METHOD_DBLLM:
        return 9e-7;
    case VPTQ_METHOD_QUIP:
        return 1.1e-6 * (s->weight_bits == 2 ? 1 : 2); /* by the number of its codebooks */
    default:
        return 0;
    }
}

/* AWQ: scales are tried, each with a loss, and ranges, each with the errors of a group of
 * columns. */
static double awq_seconds(const vptq_encoder_settings *s, uint32_t out, uint32_t in)
{
    const uint32_t group = s->group_size && s->group_size < in ? s->group_size : in;
    return VPTQ_AWQ_EXPONENTS * vptq_cuda_cost_quad_trace(&host, out, in) +
           6e-10 * out * in * group;
}

void vptq_matrix_cost(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                      vptq_encoder_report *cost)
{
    if (s->method == VPTQ_METHOD_VPTQ) {
        vptq_encoder_predict(&host, s, out, in, cost);
        return;
    }
    /* an error that moves through all columns, the factor for it, and the losses */
    *cost = (vptq_encoder_report){.num_steps = 0,
                                  .seconds = search_seconds(s) * (double)out * in +
                                             vptq_cuda_cost_gemm(&host, in, out, in) +
                                             vptq_cuda_cost_factor(&host, in) +
                                             2 * vptq_cuda_cost_quad_trace(&host, out, in)};
    if (s->method & VPTQ_METHOD_AWQ)
        cost->seconds += awq_seconds(s, out, in);
}
