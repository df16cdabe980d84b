/* Internal: one matrix to vectors of neighboring columns and many small codebooks by GPTVQ (van
 * Baalen et al. 2024; Qualcomm-AI-research/gptvq).  Knows matrices only, never models or files.
 *
 * Columns are quantized in groups of block_columns, each vector of v columns at once, and the
 * error of a vector is propagated into the columns after it through U, H^-1 = U^T U, as GPTQ
 * does.  When the first column of a group is reached, every block of rows trains a codebook on
 * its weights as they are then.  At the end, all codebooks are fitted by least squares under H
 * with the indices fixed.  docs/methods.md. */
#ifndef VPTQ_UNIFORM_GPTVQ_H
#define VPTQ_UNIFORM_GPTVQ_H

#include "lib/base/additive.h"
#include "lib/uniform/uniform.h"

enum { VPTQ_GPTVQ_MAX_V = 8, VPTQ_GPTVQ_MIN_BITS = 2, VPTQ_GPTVQ_MAX_BITS = 4 };

typedef struct vptq_gptvq_settings {
    uint32_t bits; /* of a weight, 2 to 4: a codebook has 2^(bits v) centroids, 2^16 at most */
    uint32_t v;    /* columns of a vector, 1 to 8 */
    uint32_t block_columns, block_rows; /* that share a codebook; larger than the matrix, or of
                                           columns 0, counts as all */
    bool int8;                          /* codebooks are on int8 grids (lib/base/grid.h) */
    vptq_dtype storage;                 /* F16 or BF16: of the codebooks or their scales */
    double ridge;                       /* times mean diag H, added to H in the pass */
    double damping;                     /* first share added when the factorization fails */
} vptq_gptvq_settings;

/* The shape that the settings give for a matrix; vptq_additive_shape_check says whether it is
 * possible. */
vptq_additive_shape vptq_gptvq_shape_of(const vptq_gptvq_settings *s, uint32_t out,
                                        uint32_t in);

/* Quantizes a matrix; *a is in `arena`.  Otherwise as vptq_uniform_quantize. */
vptq_status vptq_gptvq_quantize(vptq_device *dev, const vptq_gptvq_settings *s,
                                const vptq_uniform_input *input, vptq_arena *arena,
                                vptq_additive *a, double *damping_added,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
