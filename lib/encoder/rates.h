/* What a setting costs in loss: a table of settings worth choosing from, each with its loss
 * under the default encoder as measured on real matrices, so that the loss of a matrix under
 * any of them can be predicted from one quick encoding of it.  docs/allocation.md says how
 * good the predictions are. */
#ifndef VPTQ_ENCODER_RATES_H
#define VPTQ_ENCODER_RATES_H

#include "lib/encoder/encode.h"

typedef struct vptq_rate {
    uint32_t v, k, k_res;
    double loss; /* over that of vptq_rate_probe, with vectors enough for every centroid */
} vptq_rate;

const vptq_rate *vptq_rate_table(size_t *count); /* by index bits per weight, ascending */

/* The quick encoding of a matrix [out, in] that losses are relative to: greedy, few iterations,
 * v 4, k 256, or fewer centroids where there are not 16 vectors for each. */
vptq_encoder_settings vptq_rate_probe(uint32_t out, uint32_t in, uint64_t seed,
                                      vptq_dtype storage);

/* Predicted loss of a matrix [out, in] under a rate, over the loss that the quick encoding
 * measured on it.  Few vectors per centroid are learned by heart: the loss is lower for it, and
 * the codebook's bits are what that costs. */
double vptq_rate_predict(const vptq_rate *r, uint32_t out, uint32_t in);

#endif
