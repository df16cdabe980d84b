/* Internal: predicted losses.  A table of useful settings with their measured losses under the
 * default encoder predicts the loss of a matrix under any of them from one quick encoding.
 * docs/allocation.md has the errors of the predictions. */
#ifndef VPTQ_ENCODER_RATES_H
#define VPTQ_ENCODER_RATES_H

#include "lib/encoder/encode.h"

typedef struct vptq_rate {
    uint32_t v, k, k_res;
    double loss; /* divided by that of vptq_rate_probe, with many vectors per centroid */
} vptq_rate;

const vptq_rate *vptq_rate_table(size_t *count); /* by index bits per weight, ascending */

/* Settings of the quick encoding of a matrix [out, in] to which losses are relative: greedy,
 * few iterations, v 4, k 256, or fewer centroids if there are not 16 vectors for each. */
vptq_encoder_settings vptq_rate_probe(uint32_t out, uint32_t in, uint64_t seed,
                                      vptq_dtype storage);

/* Predicted loss of a matrix [out, in] under a rate, divided by that of the quick encoding.
 * With few vectors per centroid the codebook overfits them, which lowers the loss. */
double vptq_rate_predict(const vptq_rate *r, uint32_t out, uint32_t in);

/* The same for codes of `bits` bits by a method of lib/uniform: every bit divides the loss by
 * 4. */
double vptq_rate_predict_codes(uint32_t method, uint32_t bits, uint32_t out, uint32_t in);

#endif
