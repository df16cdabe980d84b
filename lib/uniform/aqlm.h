/* Internal: one matrix to additive codes by AQLM (Egiazarian et al. 2024; Vahe1994/AQLM).
 *
 * Vectors of v columns of a row, divided by the row's scale, are sums of one entry of each of
 * the codebooks, which all vectors share.  The scale is the row's norm and the codebooks those
 * of residual k-means, plain as published; then rounds of two steps lower tr(E H E^T) until a
 * round gains less than `tolerance`:
 *
 *     codebooks and scales by least squares with fixed codes, rounded to the storage type
 *     codes by beam search over the vectors of a row, in a random order
 *
 * The published code trains codebooks and scales by 100 steps of Adam on the same loss, which
 * least squares takes to its minimum.  docs/methods.md. */
#ifndef VPTQ_UNIFORM_AQLM_H
#define VPTQ_UNIFORM_AQLM_H

#include "lib/base/additive.h"
#include "lib/uniform/uniform.h"

typedef struct vptq_aqlm_settings {
    uint32_t v, k, codebooks; /* vector length, entries of a codebook: a power of two, number */
    uint32_t beam;            /* hypotheses of a row; 1 as published */
    uint32_t rounds;          /* at most; 0 = residual k-means alone */
    double tolerance;         /* share of the loss that a round must gain; 0.01 */
    int kmeans_iterations;    /* at most; 100 as published */
    vptq_dtype storage;       /* F16 or BF16: of codebooks and scales */
    uint64_t seed;
    uint32_t matrix; /* number, for random choices */
} vptq_aqlm_settings;

/* The shape that the settings give for a matrix. */
vptq_additive_shape vptq_aqlm_shape_of(const vptq_aqlm_settings *s, uint32_t out, uint32_t in);

/* Quantizes a matrix; *a is in `arena`.  The same bytes for any number of threads.
 * VPTQ_E_NUMERIC for a Hessian that is not finite or has no positive mean diagonal. */
vptq_status vptq_aqlm_quantize(vptq_device *dev, const vptq_aqlm_settings *s,
                               const vptq_uniform_input *input, vptq_arena *arena,
                               vptq_additive *a, vptq_err *err) VPTQ_MUST_CHECK;

#endif
