/* What errors of each matrix cost, measured on the model: a quick encoding of every matrix
 * gives its loss, and, with a text, the divergence of the model from itself when that one
 * matrix is replaced and all others stay.  Bit allocation predicts from both.
 *
 * Matrix by matrix only the blocks from its own on are run: the states of the original in front
 * of a block go along.  Measurements are kept in one file, layer by layer, and taken up again
 * when model, Hessians, text and settings are the same. */
#ifndef VPTQ_QUANTIZE_SENSITIVITY_H
#define VPTQ_QUANTIZE_SENSITIVITY_H

#include "lib/model/corpus.h"
#include "lib/model/model.h"
#include "lib/quantize/hessians.h"

typedef struct vptq_sensitivity_options {
    const vptq_hessian_source *hessians; /* of all layers */
    const char *base_fingerprint;        /* of the model */
    const vptq_corpus_options *text;     /* NULL = losses only */
    size_t windows, length;              /* of the text, drawn by seed */
    uint64_t seed;
    vptq_dtype storage; /* of the codebooks */
    const char *file;   /* where measurements are kept; NULL = nowhere */
} vptq_sensitivity_options;

typedef struct vptq_sensitivity {
    double loss; /* of the quick encoding (vptq_rate_probe): tr(E H E^T) / tr(W H W^T), H the
                    one that the matrix is quantized with */
    double norm; /* tr(W H W^T) */
    double kld, kld_stderr; /* nats per token; 0 without a text */
} vptq_sensitivity;

/* rows [layers * VPTQ_LINEAR_COUNT] in `arena`, layer by layer.  The same for any thread count,
 * and after any interruption.  VPTQ_E_NUMERIC naming a matrix that makes the output not finite.
 */
vptq_status vptq_sensitivity_measure(vptq_device *dev, const vptq_model *m,
                                     const vptq_sensitivity_options *opt, vptq_arena *arena,
                                     vptq_sensitivity **rows, vptq_err *err) VPTQ_MUST_CHECK;

#endif
