/* Internal: the forward pass: block by block over many windows, so that only one block's
 * weights are read at a time, with hooks at the four inputs of a block; or single steps with
 * a KV cache.
 *
 *     vptq_forward *f;
 *     vptq_forward_open(&model, &dev, 2048, &f, err);
 *     vptq_forward_embed(f, ids, n, hidden, err);
 *     for (l = 0; l < layers; l++)
 *         vptq_forward_block(f, l, starts, count, hidden, err);
 *     vptq_forward_loss(f, n, hidden, targets, nll, err);
 *     vptq_forward_close(f);
 *
 * `hidden` (float [tokens, hidden]) holds the hidden states of all windows: host memory of the
 * caller, or memory of vptq_forward_hidden_alloc.  Sequences run in groups of up to
 * VPTQ_FORWARD_ROWS rows: linear layers process the rows of a group at once, attention each
 * sequence alone.  Memory: the activations of one group and one tile of weights, for any size
 * of model.
 *
 * vptq_forward_block opens the weights of its block and closes them at its end: packed ones
 * (vptq_backend.matrix_open) and, on a device with its own memory, plain ones, which are stored
 * there if they fit with the activations and are else uploaded in tiles for each group.  The
 * first vptq_forward_next opens those of all blocks until vptq_forward_close: decoding holds
 * the whole model in device memory as far as it fits. */
#ifndef VPTQ_MODEL_FORWARD_H
#define VPTQ_MODEL_FORWARD_H

#include "lib/model/model.h"

typedef struct vptq_forward vptq_forward;

/* Rows of a group: enough to make converting the weights cheap compared with the products. */
enum { VPTQ_FORWARD_ROWS = 2048 };
/* Products of at most so many rows may round differently: cuda multiplies them without tensor
 * cores. */
enum { VPTQ_FORWARD_FEW = 16 };

/* The group that begins at sequence `first`: as many whole sequences as fit in
 * VPTQ_FORWARD_ROWS, at least one.  Returns its end (exclusive).  Callers that cut their work
 * into batches of whole groups get the same bits for any size of batch. */
size_t vptq_forward_group(const size_t *starts, size_t count, size_t first);

/* Sequences can share a beginning: a sequence may continue another one, its parent, after the
 * parent's last token.  parents[s] is the index of the parent of s, or VPTQ_FORWARD_ROOT.  The
 * order is preorder: the parent of s is s - 1, or one that s - 1 continues.  A root and the
 * sequences up to the next root form a tree; all rows of a tree are in one group. */
#define VPTQ_FORWARD_ROOT SIZE_MAX
/* As vptq_forward_group, in whole trees; parents NULL: every sequence is a root. */
size_t vptq_forward_group_trees(const size_t *starts, const size_t *parents, size_t count,
                                size_t first);

/* `max_length`: tokens of the longest sequence, from its root on (RoPE tables, KV cache).  More
 * than the model's context is allowed and logged once as a warning.  Model and device must
 * outlive the forward pass. */
vptq_status vptq_forward_open(const vptq_model *m, vptq_device *dev, size_t max_length,
                              vptq_forward **f, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_forward_close(vptq_forward *f); /* accepts NULL */

/* Hidden states [rows, hidden] in the device's own memory.  Rows of them can be passed to the
 * functions below in place of host memory, and then stay on the device.  NULL if they do not
 * fit and on host devices; freed by _free or with f. */
float *vptq_forward_hidden_alloc(vptq_forward *f, size_t rows);
void vptq_forward_hidden_free(vptq_forward *f, float *hidden); /* accepts NULL */
/* Number of rows for which the device has memory, next to the weights of a block, the head and
 * the activations of a group of `group_rows` rows, all of them for `models` forward passes, and
 * `reserved` bytes; 0 on host devices. */
size_t vptq_forward_hidden_fit(const vptq_forward *f, size_t group_rows, size_t models,
                               size_t reserved);
/* out [n, hidden] = rows at[i] of hidden; both are of vptq_forward_hidden_alloc. */
vptq_status vptq_forward_hidden_gather(vptq_forward *f, const float *hidden, const int32_t *at,
                                       size_t n, float *out, vptq_err *err) VPTQ_MUST_CHECK;

/* hidden [n, hidden] = the embeddings of ids; an id outside the vocabulary is VPTQ_E_ARG. */
vptq_status vptq_forward_embed(vptq_forward *f, const int32_t *ids, size_t n, float *hidden,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Called for each sequence in order (`sequence` counts from 0) with the input of linear layers,
 * x [tokens, dim] in device memory. */
typedef vptq_status (*vptq_hook_fn)(void *arg, vptq_input input, size_t sequence, size_t tokens,
                                    size_t dim, const float *x, vptq_err *err);

/* Called once per sequence with the same x as the hook of VPTQ_INPUT_QKV and the arguments of
 * its attention: a->q and a->keys are rotated (device memory), a->n == tokens. */
typedef vptq_status (*vptq_attention_hook_fn)(void *arg, size_t sequence, size_t tokens,
                                              size_t dim, const float *x,
                                              const vptq_attention_args *a, vptq_err *err);

/* A block is two halves, each of which adds to the hidden states. */
typedef enum {
    VPTQ_BLOCK_WHOLE,
    VPTQ_BLOCK_ATTENTION,
    VPTQ_BLOCK_FEED_FORWARD
} vptq_block_half;

/* Hooks and variations of the run of a block; all may be NULL or 0. */
typedef struct vptq_block_hooks {
    vptq_hook_fn hook;
    vptq_attention_hook_fn attention;
    void *arg;                 /* of both */
    const vptq_weight *linear; /* [vptq_linear_count], replace those of the model */
    vptq_block_half half;
    bool stop; /* after the hook of `last`, which the half must have; the hidden states do not
                  change */
    vptq_input last;
    const size_t *parents; /* [count], if sequences continue others; not together with an
                              attention hook */
} vptq_block_hooks;

/* Runs block `layer` in place over `count` sequences; sequence s is rows [starts[s],
 * starts[s+1]) of hidden and attends to itself and the sequences that it continues.
 * Cancellation is checked per sequence.  VPTQ_E_ARG for a sequence that exceeds max_length. */
vptq_status vptq_forward_block(vptq_forward *f, uint32_t layer, const size_t *starts,
                               size_t count, float *hidden, vptq_err *err) VPTQ_MUST_CHECK;
/* The same with hooks.  VPTQ_E_ARG also for parents that are not in preorder; max_length
 * includes the parents' tokens. */
vptq_status vptq_forward_block_with(vptq_forward *f, uint32_t layer, const size_t *starts,
                                    size_t count, float *hidden, const vptq_block_hooks *hooks,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* With `hold`, the weights of a block stay open from their first use on, through several runs
 * of the block over parts of its sequences; hooks.linear of these runs must not change
 * meanwhile. They are closed by a run of another block and by a call without `hold`. */
void vptq_forward_hold(vptq_forward *f, bool hold);
/* Multiplies numbers rounded to bfloat16 (`bf16` of the op gemm) from now on, forwards and
 * backwards; products by stored weights, of few rows, stay in float. */
void vptq_forward_use_bf16(vptq_forward *f, bool on);
/* Stores weights of block `layer`, the next to run, on a device with its own memory, while it
 * still works on the block before: those that leave room for the activations and `reserved`
 * bytes. Runs of blocks that are not held do so themselves. Nothing happens after the last
 * block. */
vptq_status vptq_forward_ahead(vptq_forward *f, uint32_t layer, size_t reserved,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Allocates memory for groups of at most `rows` rows, which blocks otherwise do on demand. Does
 * nothing on a device with its own memory: there, groups are cut into pieces that fit into the
 * memory that is free when they begin, down to single sequences. */
vptq_status vptq_forward_reserve(vptq_forward *f, size_t rows, vptq_err *err) VPTQ_MUST_CHECK;

/* Bytes of host memory of a forward pass over windows of at most `max_length` tokens in groups
 * of `rows` rows, without packed weights and scratch memory of ops. */
size_t vptq_forward_host_bytes(const vptq_model *m, const vptq_device *dev, size_t max_length,
                               size_t rows);

/* *bytes of a forward pass that vptq_forward_next takes through up to `max_length` tokens, at
 * most `n` of them in a call, without packed weights and scratch memory of ops.  VPTQ_E_NOMEM
 * if they overflow. */
vptq_status vptq_forward_next_bytes(const vptq_model *m, size_t max_length, size_t n,
                                    size_t *bytes, vptq_err *err) VPTQ_MUST_CHECK;

/* Final norm and output head over n rows; targets[i] < 0: no target; nll [n] in host memory. */
vptq_status vptq_forward_loss(vptq_forward *f, size_t n, const float *hidden,
                              const int32_t *targets, vptq_nll_state *nll,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* out [n, hidden] = n rows after the final norm; both in host memory, and may be the same. */
vptq_status vptq_forward_normalized(vptq_forward *f, size_t n, const float *hidden, float *out,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* Logits [n, vocab] of n rows into host memory. */
vptq_status vptq_forward_logits(vptq_forward *f, size_t n, const float *hidden, float *logits,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* The head tile by tile, for callers that reduce the logits without keeping them.  `begin`
 * takes n <= VPTQ_FORWARD_ROWS rows; then, for first = 0, *width, ... up to the vocabulary,
 * `tile` gives the logits [n, *width] of the ids from `first` on in host memory, *width at most
 * `step`.  Nothing else of `f` may run in between.  The tiles depend on the model's shape only.
 */
size_t vptq_forward_head_step(const vptq_forward *f);
/* Number of rows to run through the head next, at most `most` of `left`. On a device where few
 * rows round differently, no step has so few that others could have been added, if `most` is at
 * least 33: results do not depend on it. */
size_t vptq_forward_rows(const vptq_forward *f, size_t left, size_t most);
/* Number of rows, at most `rows`, for which `begin` currently has device memory. */
size_t vptq_forward_head_fit(const vptq_forward *f, size_t rows);
vptq_status vptq_forward_head_begin(vptq_forward *f, size_t n, const float *hidden,
                                    vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_forward_head_tile(vptq_forward *f, size_t n, size_t first, float *logits,
                                   size_t *width, vptq_err *err) VPTQ_MUST_CHECK;

/* How the op `sample` (backend.h) draws one token for each of n rows. */
typedef struct vptq_forward_sampling {
    double temperature, top_p;
    const double *u; /* [n], host memory */
} vptq_forward_sampling;
/* Continues one sequence: runs n ids from the cache's position on through all blocks and
 * samples *next from the logits of the last one; -1 if a logit is NaN.  The first call
 * allocates the cache for `max_length` tokens; more than that is VPTQ_E_ARG. */
vptq_status vptq_forward_next(vptq_forward *f, const int32_t *ids, size_t n,
                              const vptq_forward_sampling *s, int32_t *next,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
