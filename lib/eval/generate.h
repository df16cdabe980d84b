/* Continuing a prompt token by token, greedy or sampled, with its text as it comes. */
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

/* `ids` gets prompt and continuation (the end token included); `emit` (may be NULL) gets the
 * text of the new tokens as it comes, cut between characters, and held back as long as it may
 * be the beginning of a stop string.  `result` may be NULL; it is filled, and what was held
 * back is given out, when the caller's flag cancels (VPTQ_E_CANCELLED), too.  A prompt that
 * does not fit into the model's context is VPTQ_E_ARG; a continuation may go on behind it. */
typedef void (*vptq_emit_fn)(void *arg, const char *text, size_t len);
vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_options *opt, vptq_emit_fn emit, void *arg,
                               vptq_ids *ids, vptq_generate_result *result,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
