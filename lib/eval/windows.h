/* Internal to lib/eval: the sequences of ids that a measurement runs over, and their batches.
 *
 * A batch has enough sequences that a model larger than memory is read only a few times.  On a
 * device with its own memory it has as many as keep their hidden states there, so that weights
 * are uploaded once.  It ends between groups of the forward pass, so that its size does not
 * change any result. */
#ifndef VPTQ_EVAL_WINDOWS_H
#define VPTQ_EVAL_WINDOWS_H

#include "lib/eval/perplexity.h"
#include "lib/eval/units.h"
#include "lib/model/forward.h"

/* One window or document: ids [at, at + length).  Row i predicts id i + 1; rows [from, length -
 * 1) are scored. */
typedef struct vptq_sequence {
    size_t at, length, from;
} vptq_sequence;

typedef struct vptq_windows {
    const int32_t *ids; /* the caller's */
    vptq_sequence *seq; /* [count] */
    size_t count, longest;
    int32_t bos; /* replaces the first token of each sequence; -1 = none */

    vptq_units units;
    size_t *offsets; /* [count + 1] rows before each sequence */
    size_t *scored;  /* [count + 1] scored rows before each sequence */
    size_t limit;    /* maximum rows of a batch, unless one group has more */
    size_t groups;   /* maximum groups of a batch */

    /* buffers of one batch */
    size_t batch_rows, batch_count; /* rows and sequences of the largest batch */
    size_t *starts;                 /* [batch_count + 1] */
    int32_t *inputs, *targets;      /* [batch_rows]; inputs are overwritten after embedding */
} vptq_windows;

typedef struct vptq_windows_options {
    size_t context;     /* ids of a window */
    size_t stride;      /* from one window to the next; 0 = context */
    size_t max_windows; /* 0 = all */
    vptq_ppl_protocol protocol;
} vptq_windows_options;

/* Cuts `total` ids into windows.  The first is scored under the protocol's rule; of overlapping
 * ones only the last `stride` tokens are.  `name` is the file in messages.  VPTQ_E_ARG for a
 * context that leaves nothing to score, VPTQ_E_FORMAT for a text shorter than a window. */
vptq_status vptq_windows_cut(vptq_windows *w, const char *name, size_t total,
                             const vptq_windows_options *o, vptq_arena *arena,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* The token that replaces the first one of each window under the protocol; -1 = none. */
int32_t vptq_windows_bos(const vptq_model *m, vptq_ppl_protocol protocol);

/* Scored rows of sequence s. */
size_t vptq_windows_scored(const vptq_windows *w, size_t s);
/* Hash of the ids of all sequences and of what is scored of them. */
uint64_t vptq_windows_hash(const vptq_windows *w);
/* Agrees that all ranks have the same windows, as vptq_units_same. */
vptq_status vptq_windows_same(const vptq_windows *w, const vptq_ctx *ctx,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* The hidden states of a batch under one model. */
typedef struct vptq_window_states {
    vptq_forward *f;
    size_t dim;
    float *hidden; /* [batch_rows, dim] as in forward.h: in device memory or of the arena */
    float *scored; /* [rows of a group, dim] in device memory; NULL: gathered in place */
} vptq_window_states;

/* Plans units, and batches of them that leave most of the memory free, and allocates their
 * buffers and, for `count` models, whose f and dim are set, their hidden states.  `row_bytes`:
 * of other host memory that the caller needs per row of a batch. */
vptq_status vptq_windows_plan(vptq_windows *w, const vptq_ctx *ctx, size_t row_bytes,
                              vptq_window_states *const *states, size_t count,
                              vptq_arena *arena, vptq_err *err) VPTQ_MUST_CHECK;
/* Returns the end of the batch that begins at sequence `first` of a unit that ends at `end`. */
size_t vptq_windows_batch_end(const vptq_windows *w, size_t first, size_t end);
/* Fills w->starts and w->inputs with sequences [first, end). */
void vptq_windows_fill(vptq_windows *w, size_t first, size_t end);

/* *scored = the scored rows of sequences [g0, g1) of the batch that begins at `first`, *rows of
 * them: in s->scored, or moved to the front of the rows of these sequences.  Fills w->targets.
 */
vptq_status vptq_windows_gather(vptq_windows *w, const vptq_window_states *s, size_t first,
                                size_t g0, size_t g1, float **scored, size_t *rows,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
