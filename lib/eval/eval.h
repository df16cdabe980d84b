/* Measuring a model: perplexity, error of quantized matrices against their originals,
 * generation. */
#ifndef VPTQ_EVAL_EVAL_H
#define VPTQ_EVAL_EVAL_H

#include "lib/backend/backend.h"
#include "lib/model/corpus.h"
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

/* Called after each window with its mean NLL and its scored tokens; may be NULL. */
typedef void (*vptq_window_fn)(void *arg, uint64_t window, double nll, uint64_t tokens);
/* Windows run in batches through one block after the other; the result does not depend on the
 * size of a batch, which follows from the memory that is left.  token_nll (may be NULL): NLL of
 * every scored token in order, in `arena`.  Errors: VPTQ_E_ARG for settings that exclude each
 * other, VPTQ_E_FORMAT for a text shorter than one window, VPTQ_E_NUMERIC naming the window
 * whose loss is not finite. */
vptq_status vptq_eval_ppl(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                          vptq_window_fn fn, void *arg, vptq_arena *arena, double **token_nll,
                          vptq_ppl_result *r, vptq_err *err) VPTQ_MUST_CHECK;

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
