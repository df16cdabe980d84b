/* Measuring a model: perplexity (perplexity.h), divergence from its original (divergence.h),
 * error of quantized matrices against their originals, generation. */
#ifndef VPTQ_EVAL_EVAL_H
#define VPTQ_EVAL_EVAL_H

#include "lib/backend/backend.h"
#include "lib/eval/divergence.h"
#include "lib/eval/perplexity.h"
#include "lib/model/model.h"

/* One row per quantized matrix, in layer and linear order. */
typedef struct vptq_error_row {
    uint32_t layer;
    const char *name; /* "q_proj" */
    uint32_t rows, columns;
    double proxy_loss;    /* of the outputs: tr(E H E^T) / tr(W H W^T) */
    double relative_mse;  /* of the weights: |E|^2 / |W|^2 */
    uint32_t worst_row;   /* output channel with the largest |E_r|^2 / |W_r|^2 ... */
    double worst_row_mse; /* ... and that quotient */
    double bits_per_weight;
    vptq_vq_shape shape;
} vptq_error_row;
typedef vptq_status (*vptq_error_fn)(void *arg, const vptq_error_row *row, vptq_err *err);
/* The quantized model against the original, both as float, with the Hessians of `hdir` (NULL:
 * proxy_loss is NaN).  VPTQ_E_UNSUPPORTED when nothing is quantized, VPTQ_E_MISMATCH when the
 * two models do not have the same shape or the Hessians are of another model than `base`. */
vptq_status vptq_eval_error(vptq_device *dev, const vptq_model *quantized,
                            const vptq_model *base, const char *hdir, uint32_t first_layer,
                            uint32_t last_layer, vptq_error_fn fn, void *arg,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
