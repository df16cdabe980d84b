/* Internal: continues a prompt token by token, greedily or by sampling (lib/vptq.h has the
 * options). */
#ifndef VPTQ_EVAL_GENERATE_H
#define VPTQ_EVAL_GENERATE_H

#include "lib/backend/backend.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

/* Appends prompt and continuation, with the stop token, to `ids`.  `emit` (may be NULL) gets
 * the text of the new tokens in whole characters; text that may begin a stop string is held
 * back. When the caller's flag cancels the run (VPTQ_E_CANCELLED), text held back is still
 * emitted and `result` (may be NULL) filled.  VPTQ_E_ARG for a prompt that fills the model's
 * context; the continuation may exceed it. */
vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_options *opt, vptq_emit_fn emit, void *arg,
                               vptq_ids *ids, vptq_generate_result *result,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
