/* From items to rows: the tokens of every request, the trees in which requests of an item share
 * what they begin with, and what is scored where.  Internal to lib/eval. */
#ifndef VPTQ_EVAL_TASKS_PLAN_H
#define VPTQ_EVAL_TASKS_PLAN_H

#include "lib/eval/task_file.h"
#include "lib/model/model.h"

/* Requests are numbered through all items.  Everything lives in one arena. */
typedef struct vptq_task_plan {
    size_t requests;
    uint64_t unshared; /* rows of all requests, each alone */
    size_t longest;    /* tokens of the longest one */

    /* The trees, in the order of items, as forward.h has them. */
    int32_t *ids; /* [rows] */
    size_t *starts, *parents;
    size_t sequences, rows;

    /* Pairs of a row and a token whose probability behind that row is wanted, by rows. */
    uint32_t *pair_row;
    int32_t *pair_target;
    size_t pairs;

    size_t *scored;        /* [requests + 1] where each request's tokens begin in scored_pair */
    uint32_t *scored_pair; /* the pair of every token of every continuation, in order */
    size_t *item_rows;     /* [items] row behind an item's last one */
} vptq_task_plan;

/* `context`: rows of a request at most.  Errors as vptq_eval_task. */
vptq_status vptq_task_plan_make(const vptq_model *m, const vptq_task_file *file, size_t context,
                                vptq_mem *mem, vptq_arena *arena, vptq_task_plan *plan,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
