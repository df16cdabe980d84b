/* How long matrices take in relation to each other on a processor: the ops that predict.h
 * counts, at rates of which only the ratios mean anything. */
#include "lib/encoder/predict.h"
#include "lib/quantize/internal.h"

/* Ratios of one core with AVX2. */
static const vptq_cuda_costs host = {.chip = "processor",
                                     .launch_s = 2e-6,
                                     .memory = 1e10,
                                     .link = 1e10,
                                     .products = 6e10,
                                     .doubles = 1e10,
                                     .factoring = 1e10,
                                     .issued = 1e10,
                                     .columns = 1e10,
                                     .column_s = 1e-6,
                                     .seeding_s = 1e-6};

void vptq_matrix_cost(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                      vptq_encoder_report *cost)
{
    if (s->method == VPTQ_METHOD_VPTQ) {
        vptq_encoder_predict(&host, s, out, in, cost);
        return;
    }
    /* an error that moves through all columns, the factor for it, and the losses */
    *cost = (vptq_encoder_report){.num_steps = 0,
                                  .seconds = vptq_cuda_cost_gemm(&host, in, out, in) +
                                             vptq_cuda_cost_factor(&host, in) +
                                             2 * vptq_cuda_cost_quad_trace(&host, out, in)};
}
