/* Continues a prompt token by token, greedily or by sampling. */
#ifndef VPTQ_EVAL_GENERATE_H
#define VPTQ_EVAL_GENERATE_H

#include "lib/backend/backend.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

vptq_status vptq_eval_generate(vptq_device *dev, const vptq_model *m,
                               const vptq_generate_options *opt, vptq_emit_fn emit, void *arg,
                               vptq_ids *ids, vptq_generate_result *result,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
