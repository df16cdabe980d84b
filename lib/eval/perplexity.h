/* Perplexity of a model on a text. */
#ifndef VPTQ_EVAL_PERPLEXITY_H
#define VPTQ_EVAL_PERPLEXITY_H

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
    bool dry_run; /* plan only: fills windows, tokens, bytes, skipped and bits_per_weight */
} vptq_ppl_options;

typedef struct vptq_ppl_result {
    double ppl, ppl_stderr; /* stderr of the mean NLL per token times ppl */
    double nll;             /* mean over the scored tokens */
    uint64_t tokens;        /* scored */
    uint64_t bytes; /* of text that the scored tokens stand for; 0 = not known: a text that is
                       not given as one */
    double bits_per_byte; /* sum of the NLL over ln 2 and the bytes; NaN without them */
    uint64_t windows;     /* or documents */
    uint64_t skipped;     /* documents over the context */
    size_t context;
    double seconds, tokens_per_second;
    double bits_per_weight;
} vptq_ppl_result;

/* Called after each window with its mean loss and number of scored tokens; may be NULL. */
typedef void (*vptq_window_fn)(void *arg, uint64_t window, double mean, uint64_t tokens);
/* Runs windows in batches, block by block.  The size of a batch depends on the free memory and
 * does not change the result.  token_nll (may be NULL) becomes the NLL of every scored token in
 * order, in `arena`.  Errors: VPTQ_E_ARG for conflicting options, VPTQ_E_FORMAT for a text
 * shorter than one window, VPTQ_E_NUMERIC with the window whose loss is not finite. */
vptq_status vptq_eval_ppl(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                          vptq_window_fn fn, void *arg, vptq_arena *arena, double **token_nll,
                          vptq_ppl_result *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
