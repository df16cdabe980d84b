/* The tokens of requests as lm-evaluation-harness makes them of context and continuation.
 * Internal to lib/eval. */
#ifndef VPTQ_EVAL_TASKS_ENCODE_H
#define VPTQ_EVAL_TASKS_ENCODE_H

#include "lib/base/buf.h"
#include "lib/eval/task_file.h"
#include "lib/model/model.h"

typedef struct vptq_task_encoder {
    const vptq_model *m;
    int32_t prefix;       /* stands in front of a continuation without a context; -1 = none */
    vptq_buf prefix_text; /* a text that begins with it gets no special tokens more */
    vptq_buf text;
    vptq_ids whole, context;
    vptq_task_text context_of; /* what `context` was made of */
} vptq_task_encoder;

/* VPTQ_E_ARG where the model has no tokenizer. */
vptq_status vptq_task_encoder_open(const vptq_model *m, vptq_mem *mem, vptq_task_encoder *e,
                                   vptq_err *err) VPTQ_MUST_CHECK;
void vptq_task_encoder_close(vptq_task_encoder *e);

/* Appends the tokens of context and continuation, of which the last *scored are the
 * continuation's.  VPTQ_E_FORMAT, the place left to the caller, where that has none, or nothing
 * stands in front of it. */
vptq_status vptq_task_encode(vptq_task_encoder *e, const vptq_task_request *q, vptq_ids *out,
                             size_t *scored, vptq_err *err) VPTQ_MUST_CHECK;

#endif
