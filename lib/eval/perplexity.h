/* Internal: perplexity of a model on a text (lib/vptq.h has the options). */
#ifndef VPTQ_EVAL_PERPLEXITY_H
#define VPTQ_EVAL_PERPLEXITY_H

#include "lib/backend/backend.h"
#include "lib/model/corpus.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

/* After each window: the mean over its scored tokens. */
typedef void (*vptq_window_fn)(void *arg, uint64_t window, double mean, uint64_t tokens);

/* Outputs of a run besides its result. */
typedef struct vptq_eval_watch {
    vptq_window_fn window; /* may be NULL */
    void *arg;             /* of window */
    double **losses; /* may be NULL; perplexity only: becomes the NLL of every scored token
                        in order, in `arena` */
    vptq_arena *arena;
    uint64_t *hash; /* may be NULL; perplexity only: becomes that of the windows, also in a dry
                       run */
} vptq_eval_watch;

/* Measures the corpus as one text: runs windows in batches, block by block.  The size of a
 * batch depends on the free memory and does not change the result.  `watch` may be NULL.
 * Errors: VPTQ_E_ARG for conflicting options, VPTQ_E_FORMAT for a text shorter than one window,
 * VPTQ_E_NUMERIC with the window whose loss is not finite. */
vptq_status vptq_eval_ppl(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                          const vptq_eval_watch *watch, vptq_ppl_result *r,
                          vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_E_ARG for a stride longer than the context, which is set. */
vptq_status vptq_eval_check_stride(const vptq_ppl_options *o, vptq_err *err) VPTQ_MUST_CHECK;
/* As vptq_perplexity. */
vptq_status vptq_eval_texts(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                            const vptq_output *out, vptq_ppl_result *results,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
