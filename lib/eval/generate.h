/* Internal: continues a prompt token by token, greedily or by sampling (lib/vptq.h has the
 * options). */
#ifndef VPTQ_EVAL_GENERATE_H
#define VPTQ_EVAL_GENERATE_H

#include "lib/backend/backend.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

typedef struct vptq_generate_args {
    const vptq_generate_options *opt;
    const int32_t *stop_tokens; /* [stop_token_count] besides the model's own */
    size_t stop_token_count;
    vptq_ids *ids;           /* the prompt, unless opt has one; all tokens are appended */
    vptq_write_fn emit;      /* may be NULL */
    void *arg;               /* of emit */
    vptq_estimate *estimate; /* if not NULL, only sets it: of all new tokens, however soon the
                                text ends */
} vptq_generate_args;

/* Continues a plain prompt.  `emit` gets the text of the new tokens in whole characters; text
 * that may begin a stop string is held back.  When the caller's flag cancels the run
 * (VPTQ_E_CANCELLED), text held back is still emitted and `result` (may be NULL) filled.
 * VPTQ_E_ARG for a prompt that fills the model's context; the continuation may exceed it. */
vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_args *args, vptq_generate_result *result,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* As vptq_generate. */
vptq_status vptq_eval_reply(vptq_device *dev, const vptq_model *m,
                            const vptq_generate_options *opt, const vptq_output *out,
                            vptq_generate_result *result, vptq_err *err) VPTQ_MUST_CHECK;

/* "length", "end_of_text", "stop", "interrupted". */
const char *vptq_stop_reason_name(vptq_stop_reason r);

#endif
