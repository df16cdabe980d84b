/* Internal: Kullback-Leibler divergence of a model from its original on a text (lib/vptq.h has
 * the options). */
#ifndef VPTQ_EVAL_KLD_H
#define VPTQ_EVAL_KLD_H

#include "formats/vptq/kld_base.h"
#include "lib/eval/perplexity.h"
#include "lib/model/forward.h"
#include "lib/vptq.h"

/* One token under a model and under its original. */
typedef struct vptq_kld_token {
    double kld;           /* KL(original || model) over the whole vocabulary, nats */
    double nll, nll_base; /* of the target; NaN without one */
    bool same_top1;       /* the likeliest token is the same */
} vptq_kld_token;

typedef struct vptq_kld_args {
    const vptq_model_desc *shape; /* of both models */
    vptq_forward *base, *model;   /* contexts with the heads of base and model */
    size_t rows, variants;        /* variants: versions of the model, 1 to VPTQ_FORWARD_ROWS */
    const float *hidden_base;     /* [rows, hidden] final hidden states, before the last norm */
    const float *hidden;          /* [variants, rows, hidden] */
    const int32_t *targets;       /* [rows] the next ids, or NULL */
    size_t all; /* the variants are some of so many, and get the bits that they get among all;
                   0 = they are all */
} vptq_kld_args;
/* Compares rows of hidden states: out [variants, rows].  Sums are in double, and equal hidden
 * states under equal heads give exactly 0.  Values that are not finite are returned as they
 * are. */
vptq_status vptq_eval_kld_rows(const vptq_ctx *ctx, const vptq_kld_args *a, vptq_kld_token *out,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Quantiles of a distribution over tokens, interpolated linearly. */
typedef struct vptq_kld_level {
    const char *name; /* "p99", "max", "min" */
    double quantile;
} vptq_kld_level;
extern const vptq_kld_level vptq_kld_levels[VPTQ_KLD_LEVELS];
extern const vptq_kld_level vptq_delta_levels[VPTQ_DELTA_LEVELS];

/* Compares a model with its original over the tokens that vptq_eval_ppl scores under the same
 * protocol; `watch` (may be NULL) gets the mean divergence of each window.  Both tokenizers
 * must give the same ids for the text.  m NULL: saves the original and compares nothing; all
 * figures are 0.  base NULL: reads a saved original.  Errors: VPTQ_E_ARG and VPTQ_E_FORMAT as
 * vptq_eval_ppl, errors of reading and writing files, VPTQ_E_MISMATCH for models of different
 * shape, vocabulary or tokenizer and for a saved base of another vocabulary, text, context or
 * protocol, VPTQ_E_NUMERIC with the window whose output is not finite. */
vptq_status vptq_eval_kld(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                          const vptq_kld_options *opt, const vptq_eval_watch *watch,
                          vptq_kld_result *r, vptq_err *err) VPTQ_MUST_CHECK;
/* As vptq_divergence. */
vptq_status vptq_eval_divergence(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                                 const vptq_kld_options *opt, const vptq_output *out,
                                 vptq_kld_result *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
