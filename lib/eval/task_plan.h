/* Internal to lib/eval: turns the items of a task into rows for the forward pass.
 *
 * Requests of an item that begin with the same tokens share these rows; together they form a
 * tree.  A pair is a row and a token whose probability after that row is measured. */
#ifndef VPTQ_EVAL_TASK_PLAN_H
#define VPTQ_EVAL_TASK_PLAN_H

#include "lib/base/buf.h"
#include "lib/eval/task_file.h"
#include "lib/model/model.h"

/* Requests are numbered through all items.  Everything lives in one arena. */
typedef struct vptq_task_plan {
    size_t requests;
    uint64_t unshared; /* rows that all requests would have without sharing */
    size_t longest;    /* rows of the longest request */
    uint64_t hash;     /* of the tokens of all requests and of which are scored */

    /* the trees, in the order of items, in the form of forward.h */
    int32_t *ids; /* [rows] */
    size_t *starts, *parents;
    size_t sequences, rows;

    /* pairs, ordered by row */
    uint32_t *pair_row;
    int32_t *pair_target;
    size_t pairs;

    size_t *scored;        /* [requests + 1] offset of each request in scored_pair */
    uint32_t *scored_pair; /* the pair of every token of every continuation, in order */
    size_t *item_rows;     /* [items] end of each item's rows */
} vptq_task_plan;

/* `context`: maximum rows of a request.  Errors as vptq_eval_task. */
vptq_status vptq_task_plan_make(const vptq_model *m, const vptq_task_file *file, size_t context,
                                vptq_mem *mem, vptq_arena *arena, vptq_task_plan *plan,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* ---- the tokens of a request ---- */

typedef struct vptq_task_encoder {
    const vptq_model *m;
    int32_t prefix;       /* precedes a continuation without a context; -1 = none */
    vptq_buf prefix_text; /* a text that begins with it gets no further special tokens */
    vptq_buf text;
    vptq_ids whole, context;
    vptq_task_text context_of; /* the text of `context` */
} vptq_task_encoder;

/* VPTQ_E_ARG where the model has no tokenizer. */
vptq_status vptq_task_encoder_open(const vptq_model *m, vptq_mem *mem, vptq_task_encoder *e,
                                   vptq_err *err) VPTQ_MUST_CHECK;
void vptq_task_encoder_close(vptq_task_encoder *e);

/* Appends the tokens of context and continuation as lm-evaluation-harness does; the last
 * *scored ones belong to the continuation.  VPTQ_E_FORMAT, without file and line, if the
 * continuation has no token or nothing precedes it. */
vptq_status vptq_task_encode(vptq_task_encoder *e, const vptq_task_request *q, vptq_ids *out,
                             size_t *scored, vptq_err *err) VPTQ_MUST_CHECK;

#endif
