/* Kullback-Leibler divergence of a model from its original on a text. */
#ifndef VPTQ_EVAL_DIVERGENCE_H
#define VPTQ_EVAL_DIVERGENCE_H

#include "formats/vptq/kld_base.h"
#include "lib/eval/perplexity.h"
#include "lib/model/forward.h"

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
} vptq_kld_args;
/* Compares rows of hidden states: out [variants, rows].  Sums are in double, and equal hidden
 * states under equal heads give exactly 0.  Values that are not finite are returned as they
 * are. */
vptq_status vptq_eval_kld_rows(const vptq_ctx *ctx, const vptq_kld_args *a, vptq_kld_token *out,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Default number of likeliest ids in a compact record. */
enum { VPTQ_KLD_TOP = 1024 };

typedef struct vptq_kld_options {
    vptq_corpus_options corpus;
    size_t context; /* window length; 2048 */
    size_t windows; /* at most; 0 = all */
    vptq_ppl_protocol protocol;
    /* What the original says comes from this file and not from running it; NULL = none.  Then
     * the corpus may be empty, context 0, and any_protocol true: as it was recorded. */
    const char *base_file;
    bool any_protocol;
    /* The original is recorded into this file, replacing one with `force`; NULL = not. */
    const char *save_base;
    bool force;
    vptq_kld_base_precision precision;
    size_t top;   /* entries of a compact record; VPTQ_KLD_TOP */
    bool dry_run; /* plan only: fills tokens, windows, context and protocol */
} vptq_kld_options;

/* Quantiles that are given of a distribution over the tokens, linear between neighbours. */
typedef struct vptq_kld_level {
    const char *name; /* "p99"; "max", "min" */
    double quantile;
} vptq_kld_level;
enum { VPTQ_KLD_LEVELS = 10, VPTQ_DELTA_LEVELS = 13 };
extern const vptq_kld_level vptq_kld_levels[VPTQ_KLD_LEVELS];
extern const vptq_kld_level vptq_delta_levels[VPTQ_DELTA_LEVELS];

/* _stderr: standard error of what stands in front of it, over tokens; 0 for one token. */
typedef struct vptq_kld_result {
    double mean_kld, kld_stderr; /* nats */
    double kld[VPTQ_KLD_LEVELS];
    double same_top1, same_top1_stderr; /* fraction of the tokens */
    double ppl, ppl_stderr, ppl_base, ppl_base_stderr;
    double ln_ppl_correlation; /* of the losses of every token; NaN where all are equal */
    double ln_ppl_ratio, ln_ppl_ratio_stderr; /* from the paired losses of every token */
    double ppl_ratio, ppl_ratio_stderr;
    double ppl_difference, ppl_difference_stderr; /* model less base */
    /* probability of the right token: that of the model less that of the base */
    double mean_delta_p, delta_p_stderr;
    double delta_p[VPTQ_DELTA_LEVELS];
    double rms_delta_p, rms_delta_p_stderr;
    /* mean probability that a recorded base has in its tails: what the divergence takes for
     * one id, so that it is a lower bound; 0 with an original that was run */
    double base_tail;
    char base_name[VPTQ_KLD_BASE_NAME_MAX +
                   1];         /* of the recorded original; "" of one that was run */
    char base_fingerprint[17]; /* of it: vptq_checkpoint_fingerprint; "" likewise */
    uint64_t tokens, windows;
    size_t context;
    vptq_ppl_protocol protocol;
    double seconds;
} vptq_kld_result;

/* Compares a model with its original over the tokens that vptq_eval_ppl scores under the same
 * protocol; fn gets the mean divergence of each window.  Both tokenizers must give the same ids
 * for the text.  m NULL: saves the original and compares nothing; all figures are 0.  base
 * NULL: reads a saved original. Errors: VPTQ_E_ARG and VPTQ_E_FORMAT as vptq_eval_ppl, errors
 * of reading and writing files, VPTQ_E_MISMATCH for models of different shape, vocabulary or
 * tokenizer and for a saved base of another vocabulary, text, context or protocol,
 * VPTQ_E_NUMERIC with the window whose output is not finite. */
vptq_status vptq_eval_kld(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                          const vptq_kld_options *opt, vptq_window_fn fn, void *arg,
                          vptq_kld_result *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
