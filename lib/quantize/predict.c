/* Predicts the time of calibrating on a GPU (docs/gpu.md, "Predicted times"). */
#include <math.h>

#include "lib/backend/cuda/plan_cost.h"
#include "lib/quantize/internal.h"

enum { GROUP_TOKENS = 2048 }; /* that pass a block together */

/* Forward products, attention and second moments of one block for a group of tokens. */
static double block_seconds(const vptq_quantizer *q, const vptq_cuda_costs *c, double tokens,
                            double context)
{
    const vptq_model_desc *d = q->model.desc;
    double time = vptq_cuda_cost_attention(c, tokens, context, d->heads, d->head_dim);

    for (int l = 0; l < vptq_linear_count(d); l++) {
        const vptq_weight *w = &q->model.blocks[0].linear[l];
        if (vptq_linear_exists(d, 0, l))
            time += vptq_cuda_cost_gemv(c, tokens, (double)w->rows, (double)w->cols);
    }
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
        time += vptq_cuda_cost_syrk(c, tokens, vptq_input_size(d, (vptq_input)i));
    /* two norms, rotations of q and k, swiglu, two sums */
    return time + 8 * vptq_cuda_cost_stream(c, 3 * sizeof(float) * tokens * d->hidden);
}

double vptq_predict_calibration(const vptq_quantizer *q, const vptq_cuda_costs *c)
{
    const vptq_calibrate_options *o = q->opt->calibrate;
    const vptq_model_desc *d = q->model.desc;
    const double length = (double)vptq_model_window(&q->model, o->length);
    const double tokens = (double)o->windows * length;
    const double groups = tokens / GROUP_TOKENS;
    const double layers = q->last + 1.0;
    double weights = 0, sums = 0;

    for (int l = 0; l < vptq_linear_count(d); l++) {
        const vptq_weight *w = &q->model.blocks[0].linear[l];
        if (!vptq_linear_exists(d, 0, l))
            continue;
        weights += vptq_cuda_cost_copy(c, sizeof(uint16_t) * (double)w->rows * (double)w->cols);
    }
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        const double n = vptq_input_size(d, (vptq_input)i);
        const double triangle = n * (n + 1) / 2;
        sums += vptq_cuda_cost_stream(c, (sizeof(double) + sizeof(float)) * triangle) +
                vptq_cuda_cost_copy(c, sizeof(float) * triangle);
    }
    /* the weights of the next block are uploaded meanwhile */
    const double block = groups * block_seconds(q, c, GROUP_TOKENS, length);
    return weights + layers * (sums + fmax(block, weights));
}
