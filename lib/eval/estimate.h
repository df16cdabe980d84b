/* Internal: what evaluating a model on a number of tokens will take, from real work of about a
 * second: as many of them as that allows pass block 0, and some the head, of the model or of a
 * narrow stand-in for a large one (lib/model/narrow.h). */
#ifndef VPTQ_EVAL_ESTIMATE_H
#define VPTQ_EVAL_ESTIMATE_H

#include "lib/model/forward.h"
#include "lib/report/estimate.h"

/* Adds the seconds of `tokens` tokens in sequences of `length` through all blocks, of which
 * `scored` pass the head, and the memory; a NULL model takes nothing. */
vptq_status vptq_eval_estimate(vptq_device *dev, const vptq_model *m, double tokens,
                               double scored, size_t length, vptq_estimate *e,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
