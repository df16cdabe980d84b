/* The sequences of ids that a measurement runs over, and their batches: enough of them that a
 * model larger than the memory is read a few times only, cut between groups of the forward pass
 * so that the size of a batch changes no bits.  Internal to lib/eval. */
#ifndef VPTQ_EVAL_WINDOWS_H
#define VPTQ_EVAL_WINDOWS_H

#include "lib/eval/perplexity.h"

/* One window or document: ids [at, at + length); row i predicts id i + 1, rows [from, length -
 * 1) are scored. */
typedef struct vptq_sequence {
    size_t at, length, from;
} vptq_sequence;

typedef struct vptq_windows {
    const int32_t *ids; /* the caller's */
    vptq_sequence *seq; /* [count] */
    size_t count, longest;
    int32_t bos; /* put in place of the first token of each sequence; -1 = none */

    size_t *offsets; /* [count + 1] rows in front of each sequence */
    size_t limit;    /* rows of a batch, unless one group has more */

    /* one batch */
    size_t batch_rows, batch_count; /* of the largest batch */
    size_t *starts;                 /* [batch_count + 1] */
    int32_t *inputs, *targets;      /* [batch_rows] */
} vptq_windows;

/* Windows of `context` ids of `total` ids, `stride` apart (0 = context), at most `want` (0 =
 * all): the first is scored as the protocol says; of the others, when they overlap, the last
 * `stride` tokens.  `name` is the file for messages.  VPTQ_E_ARG for a context that leaves
 * nothing to score, VPTQ_E_FORMAT for a text shorter than a window. */
vptq_status vptq_windows_cut(vptq_windows *w, const char *name, size_t total, size_t context,
                             size_t stride, size_t want, vptq_ppl_protocol protocol,
                             vptq_arena *arena, vptq_err *err) VPTQ_MUST_CHECK;
/* What the protocol puts in place of the first token of each window; -1 = nothing. */
int32_t vptq_windows_bos(const vptq_model *m, vptq_ppl_protocol protocol);

/* Scored rows of sequence s. */
size_t vptq_windows_scored(const vptq_windows *w, size_t s);

/* Plans batches whose hidden states of `row_bytes` per row leave most of the memory to the
 * rest, and allocates what a batch needs. */
vptq_status vptq_windows_plan(vptq_windows *w, size_t row_bytes, size_t mem_left,
                              vptq_arena *arena, vptq_err *err) VPTQ_MUST_CHECK;
/* The batch that begins at sequence `first`: returns the sequence behind its last. */
size_t vptq_windows_batch_end(const vptq_windows *w, size_t first);
/* Lays sequences [first, end) out in w->starts, w->inputs. */
void vptq_windows_fill(vptq_windows *w, size_t first, size_t end);

/* Moves the scored rows of the sequences [g0, g1) of the batch that begins at `first` together
 * to the front of their states in hidden [batch rows, dim], and puts their targets into
 * w->targets.  Returns their number. */
size_t vptq_windows_gather(vptq_windows *w, size_t first, size_t g0, size_t g1, size_t dim,
                           float *hidden);

#endif
