/* Measuring a model: perplexity, divergence from its original, error of quantized matrices
 * against their originals, generation. */
#ifndef VPTQ_EVAL_EVAL_H
#define VPTQ_EVAL_EVAL_H

#include "lib/backend/backend.h"
#include "lib/model/corpus.h"
#include "lib/model/forward.h"
#include "lib/model/model.h"

typedef enum {
    VPTQ_PPL_GPTQ,     /* every token of a window behind its first is scored */
    VPTQ_PPL_LLAMA_CPP /* BOS in place of each window's first token if the tokenizer adds one,
                          and only the second half of each window is scored */
} vptq_ppl_protocol;

typedef struct vptq_ppl_options {
    vptq_corpus_options corpus;
    const char *documents; /* --documents SEP: each document alone, from BOS; NULL = windows */
    size_t document_limit; /* at most that many documents (of all, before skipping); 0 = all */
    size_t context;        /* window length; 2048 */
    size_t windows;        /* at most; 0 = all */
    size_t stride; /* tokens between window starts; 0 = context (no overlap).  With overlap
                      every token is scored once, with as much in front of it as there is: the
                      first window whole, of the others only the last `stride` tokens */
    vptq_ppl_protocol protocol;
    bool dry_run; /* plan only: fills windows, tokens, skipped and bits_per_weight */
} vptq_ppl_options;

typedef struct vptq_ppl_result {
    double ppl, ppl_stderr; /* stderr of the mean NLL per token times ppl */
    double nll;             /* mean over the scored tokens */
    uint64_t tokens;        /* scored */
    uint64_t windows;       /* or documents */
    uint64_t skipped;       /* documents over the context */
    size_t context;
    double seconds, tokens_per_second;
    double bits_per_weight;
} vptq_ppl_result;

/* Called after each window with its mean loss and its scored tokens; may be NULL. */
typedef void (*vptq_window_fn)(void *arg, uint64_t window, double mean, uint64_t tokens);
/* Windows run in batches through one block after the other; the result does not depend on the
 * size of a batch, which follows from the memory that is left.  token_nll (may be NULL): NLL of
 * every scored token in order, in `arena`.  Errors: VPTQ_E_ARG for settings that exclude each
 * other, VPTQ_E_FORMAT for a text shorter than one window, VPTQ_E_NUMERIC naming the window
 * whose loss is not finite. */
vptq_status vptq_eval_ppl(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                          vptq_window_fn fn, void *arg, vptq_arena *arena, double **token_nll,
                          vptq_ppl_result *r, vptq_err *err) VPTQ_MUST_CHECK;

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

/* One row per quantized matrix, in layer and linear order. */
typedef struct vptq_error_row {
    uint32_t layer;
    const char *name; /* "q_proj" */
    uint32_t rows, columns;
    double proxy_loss, relative_mse, bits_per_weight;
    vptq_vq_shape shape;
} vptq_error_row;
typedef vptq_status (*vptq_error_fn)(void *arg, const vptq_error_row *row, vptq_err *err);
/* The quantized model against the original, both as float, with the Hessians of `hdir` (NULL:
 * proxy_loss is NaN).  VPTQ_E_UNSUPPORTED when nothing is quantized, VPTQ_E_MISMATCH when the
 * two models do not have the same shape or the Hessians are of another model than `base`. */
vptq_status vptq_eval_error(vptq_device *dev, const vptq_model *quantized,
                            const vptq_model *base, const char *hdir, uint32_t first_layer,
                            uint32_t last_layer, vptq_error_fn fn, void *arg,
                            vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_generate_options {
    const char *prompt;
    size_t tokens;      /* at most, behind the prompt */
    double temperature; /* 0 = greedy */
    double top_p;       /* 1 = off */
    uint64_t seed;
    bool special; /* special tokens in the prompt become ids; and are shown in the output */
    bool ignore_eos;
} vptq_generate_options;

/* `ids` gets prompt and continuation (the end token included); `emit` (may be NULL) gets the
 * text of the new tokens as it comes, cut between characters.  tokens_per_second: of the
 * single steps, 0 where there was none; may be NULL. */
typedef void (*vptq_emit_fn)(void *arg, const char *text, size_t len);
vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_options *opt, vptq_emit_fn emit, void *arg,
                               vptq_ids *ids, double *tokens_per_second,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
