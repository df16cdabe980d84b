/* Internal: one matrix to two sets of binary codes: the flexible dual binarization of DB-LLM
 * (Chen et al. 2024, arXiv 2402.11960), for which no code is published.
 *
 * The weights of a group of a row's columns are w = a1 b1 + a2 b2 with b1 and b2 of 0 or 1.
 * They begin as 2-bit rounding to nearest with step s: a1 = 2s, a2 = -s, levels -s, 0, s, 2s,
 * or with the other sign, whichever covers the group's weights.
 *
 * The paper then trains a1 and a2 of the whole model by distillation.  Here rounds over the
 * groups of a row lower tr(E H E^T), until a round gains less than `tolerance`: a1 and a2 of a
 * group by least squares under H with everything else fixed, then each of its weights takes the
 * level that loses least.  docs/methods.md. */
#ifndef VPTQ_UNIFORM_DBLLM_H
#define VPTQ_UNIFORM_DBLLM_H

#include "lib/base/additive.h"
#include "lib/uniform/uniform.h"

typedef struct vptq_dbllm_settings {
    uint32_t group_size; /* columns of a group; 0 = all; 64 in the paper */
    uint32_t rounds;     /* at most; 0 = the paper's start */
    double tolerance;    /* share of the loss that a round must gain; 0.01 */
    vptq_dtype storage;  /* F16 or BF16: of a1 and a2 */
} vptq_dbllm_settings;

/* The shape that the settings give for a matrix. */
vptq_additive_shape vptq_dbllm_shape_of(const vptq_dbllm_settings *s, uint32_t out,
                                        uint32_t in);

/* Quantizes a matrix; *a is in `arena`: two stages of 1 bit.  The same bytes for any number of
 * threads.  VPTQ_E_NUMERIC for a Hessian that is not finite or has no positive mean diagonal.
 */
vptq_status vptq_dbllm_quantize(vptq_device *dev, const vptq_dbllm_settings *s,
                                const vptq_uniform_input *input, vptq_arena *arena,
                                vptq_additive *a, vptq_err *err) VPTQ_MUST_CHECK;

#endif
