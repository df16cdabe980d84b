/* Continues a prompt token by token, greedily or by sampling. */
#ifndef VPTQ_EVAL_GENERATE_H
#define VPTQ_EVAL_GENERATE_H

#include "lib/backend/backend.h"
#include "lib/model/model.h"

typedef struct vptq_generate_options {
    const char *prompt; /* NULL: the prompt is what the ids hold already */
    size_t tokens;      /* at most, behind the prompt; 0 = until the model's context is full */
    double temperature; /* 0 = greedy */
    double top_p;       /* 1 = off */
    uint64_t seed;
    bool special; /* special tokens in the prompt become ids; and are shown in the output */
    bool ignore_eos;
    const int32_t *ends; /* [end_count] that end the text besides those of vptq_model_ends */
    size_t end_count;
    const char *const *stops; /* [stop_count] not empty: the text ends in front of the first */
    size_t stop_count;
} vptq_generate_options;

typedef enum {
    VPTQ_STOPPED_BY_LENGTH, /* `tokens`, or the context */
    VPTQ_STOPPED_BY_END,    /* a token that ends a text */
    VPTQ_STOPPED_BY_STRING,
    VPTQ_STOPPED_BY_CANCEL
} vptq_stop_reason;
const char *vptq_stop_reason_name(vptq_stop_reason r); /* "length", "end_of_text" ... */

typedef struct vptq_generate_result {
    vptq_stop_reason reason;
    size_t prompt_tokens, new_tokens; /* the end token is one of them */
    double tokens_per_second;         /* of the single steps; 0 where there was none */
    double prompt_tokens_per_second;  /* up to the first new token; 0 as well */
} vptq_generate_result;

/* Appends prompt and continuation, with the stop token, to `ids`.  `emit` (may be NULL) gets
 * the text of the new tokens in whole characters; text that may begin a stop string is held
 * back. When the caller's flag cancels the run (VPTQ_E_CANCELLED), text held back is still
 * emitted and `result` (may be NULL) filled.  VPTQ_E_ARG for a prompt longer than the model's
 * context; the continuation may exceed it. */
typedef void (*vptq_emit_fn)(void *arg, const char *text, size_t len);
vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_options *opt, vptq_emit_fn emit, void *arg,
                               vptq_ids *ids, vptq_generate_result *result,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
