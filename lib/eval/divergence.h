/* Divergence of a model from its original on a text. */
#ifndef VPTQ_EVAL_DIVERGENCE_H
#define VPTQ_EVAL_DIVERGENCE_H

#include "lib/eval/perplexity.h"
#include "lib/model/forward.h"

/* What a model makes of one token against what its original makes of it. */
typedef struct vptq_kld_token {
    double kld;           /* KL(original || model) over the whole vocabulary, nats */
    double nll, nll_base; /* of the target; NaN without one */
    bool same_top1;       /* the likeliest token is the same */
} vptq_kld_token;

/* From final hidden states (in front of the last norm) of n rows: hidden_base [n, hidden] goes
 * through the norm and head of `base`, hidden [variants, n, hidden] of `variants` models
 * through those of `model`; out [variants, n].  targets [n]: the next ids, or NULL.  The heads
 * go tile by tile over the vocabulary, all sums are in double, and equal states under equal
 * heads give exactly 0.  `base` and `model` are two contexts over models of shape `d` (or over
 * the same one).  Values that are not finite are handed out as they are. */
vptq_status vptq_eval_kld_states(const vptq_ctx *ctx, const vptq_model_desc *d,
                                 vptq_forward *base, vptq_forward *model, size_t n,
                                 size_t variants, const float *hidden_base, const float *hidden,
                                 const int32_t *targets, vptq_kld_token *out,
                                 vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_kld_options {
    vptq_corpus_options corpus;
    size_t context; /* window length; 2048 */
    size_t windows; /* at most; 0 = all */
    bool dry_run;   /* plan only: fills windows and tokens */
} vptq_kld_options;

typedef struct vptq_kld_result {
    double mean_kld, kld_stderr; /* nats; standard error of the mean over tokens */
    double max_kld, p99_kld, p50_kld;
    double same_top1; /* fraction of the tokens */
    double ppl, ppl_base;
    double ppl_ratio, ppl_ratio_stderr; /* from the paired losses of every token */
    uint64_t tokens, windows;
    size_t context;
    double seconds;
} vptq_kld_result;

/* Both models over the tokens that the gptq protocol of vptq_eval_ppl scores; fn gets the mean
 * divergence of each window.  A text must give
 * the same ids by the tokenizers of both.  Errors: VPTQ_E_ARG, VPTQ_E_FORMAT as vptq_eval_ppl,
 * VPTQ_E_MISMATCH for models of other shapes, vocabularies or tokenizers, VPTQ_E_NUMERIC naming
 * the window whose output is not finite. */
vptq_status vptq_eval_kld(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                          const vptq_kld_options *opt, vptq_window_fn fn, void *arg,
                          vptq_kld_result *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
