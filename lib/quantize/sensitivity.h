/* Internal to lib/quantize: the sensitivity of the model to errors of each matrix.
 *
 * A quick encoding of every matrix gives its loss.  With a text it also gives the divergence of
 * the original model from itself with only that matrix replaced.  Bit allocation predicts from
 * both.  For each matrix only the blocks from its own on are run, on the original's hidden
 * states before that block.  Measurements are saved layer by layer in one file and reused if
 * model, Hessians, text and settings are the same. */
#ifndef VPTQ_QUANTIZE_SENSITIVITY_H
#define VPTQ_QUANTIZE_SENSITIVITY_H

#include "lib/model/corpus.h"
#include "lib/model/model.h"
#include "lib/quantize/hessians.h"

typedef struct vptq_sensitivity_options {
    const vptq_hessian_source *hessians; /* of all layers */
    const char *base_fingerprint;        /* of the model */
    const vptq_corpus_options *text;     /* NULL = losses only */
    size_t windows, length;              /* of the text, sampled with `seed` */
    uint64_t seed;
    vptq_dtype storage; /* of the codebooks */
    const char *file;   /* saves measurements; NULL = not saved */
} vptq_sensitivity_options;

typedef struct vptq_sensitivity {
    double loss; /* of the quick encoding (vptq_rate_probe): tr(E H E^T) / tr(W H W^T), with the
                    H that the matrix is quantized with */
    double norm; /* tr(W H W^T) */
    double kld, kld_stderr; /* nats per token; 0 without a text */
} vptq_sensitivity;

/* Measures rows [layers * VPTQ_LINEAR_DENSE] in `arena`, layer by layer.  Several ranks share
 * the matrices of a layer, and rank 0 has the file.  The result is the same for any thread
 * count and number of ranks, and after any interruption.  VPTQ_E_NUMERIC with the matrix whose
 * replacement makes the output not finite. */
vptq_status vptq_sensitivity_measure(vptq_device *dev, const vptq_model *m,
                                     const vptq_sensitivity_options *opt, vptq_arena *arena,
                                     vptq_sensitivity **rows, vptq_err *err) VPTQ_MUST_CHECK;

#endif
