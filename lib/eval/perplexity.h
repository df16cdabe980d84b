/* Internal: perplexity of a model on a text (lib/vptq.h has the options). */
#ifndef VPTQ_EVAL_PERPLEXITY_H
#define VPTQ_EVAL_PERPLEXITY_H

#include "lib/backend/backend.h"
#include "lib/model/corpus.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

/* Runs windows in batches, block by block.  The size of a batch depends on the free memory and
 * does not change the result.  token_nll (may be NULL) becomes the NLL of every scored token in
 * order, in `arena`.  Errors: VPTQ_E_ARG for conflicting options, VPTQ_E_FORMAT for a text
 * shorter than one window, VPTQ_E_NUMERIC with the window whose loss is not finite. */
vptq_status vptq_eval_ppl(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                          vptq_window_fn fn, void *arg, vptq_arena *arena, double **token_nll,
                          vptq_ppl_result *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
