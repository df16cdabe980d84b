/* Internal: zero-shot choice tasks, scored as lm-evaluation-harness scores them: the model
 * chooses the request with the largest log-likelihood (acc), or with the largest one per
 * character of the choice (acc_norm).
 *
 * Requests of an item share the rows of a common beginning (forward.h, sequences that continue
 * others), and many items go through a block together. */
#ifndef VPTQ_EVAL_TASKS_H
#define VPTQ_EVAL_TASKS_H

#include "lib/backend/backend.h"
#include "lib/base/buf.h"
#include "lib/eval/task_file.h"
#include "lib/model/model.h"
#include "lib/vptq.h"

/* A model's answers to one item. */
typedef struct vptq_task_answer {
    double *loglikelihoods; /* [item->count] nats */
    uint32_t *tokens;       /* [item->count] of the continuations */
    bool *greedy;           /* [item->count] every token is the likeliest one */
    uint32_t choice;      /* the request with the largest log-likelihood, the first of equals */
    uint32_t choice_norm; /* the same by log-likelihood per character */
    bool correct;         /* for a single request: greedy[0] */
    bool correct_norm;
} vptq_task_answer;

typedef struct vptq_task_run {
    const char *name;  /* of the task, for progress */
    size_t context;    /* tokens per request at most; 0 = the model's context */
    bool dry_run;      /* only count */
    vptq_arena *arena; /* of the answers */
    uint64_t *hash;    /* may be NULL; becomes that of the tokens of all requests */
} vptq_task_run;

/* Measures one file of items.  answers (may be NULL) becomes [file->count].  The size of a
 * batch depends on the free memory and does not change the result.  Errors: VPTQ_E_ARG without
 * a tokenizer, VPTQ_E_FORMAT with file and line for a continuation without a token or longer
 * than the context, VPTQ_E_NUMERIC if the model's output is not finite. */
vptq_status vptq_eval_task(vptq_device *dev, const vptq_model *m, const vptq_task_file *file,
                           const vptq_task_run *run, vptq_task_answer **answers,
                           vptq_task_figures *f, vptq_err *err) VPTQ_MUST_CHECK;
/* As vptq_score_tasks. */
vptq_status vptq_eval_tasks(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                            const vptq_task_options *opt, const vptq_output *out,
                            vptq_task_result *results, vptq_err *err) VPTQ_MUST_CHECK;

/* Compares the answers of a model with those of its original. */
void vptq_eval_task_compare(const vptq_task_file *file, const vptq_task_answer *answers,
                            const vptq_task_answer *base, vptq_task_agreement *a);

/* Appends one line of JSON per item to `out`.  base (may be NULL) adds the original's answers.
 */
vptq_status vptq_eval_task_samples(const char *name, const vptq_task_file *file,
                                   const vptq_task_answer *answers,
                                   const vptq_task_answer *base, vptq_buf *out,
                                   vptq_err *err) VPTQ_MUST_CHECK;

#endif
