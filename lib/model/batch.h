/* Internal: generates many sequences at once: prompts run through the model in groups, then
 * every step adds one token to each sequence.  Linear layers process the rows of all
 * sequences together, attention each sequence alone.
 *
 * Keys and values lie in pages of VPTQ_KV_PAGE tokens from one pool.  A sequence takes a page
 * when it grows into it and returns all pages when it ends, so that the pool is sized for the
 * tokens in use, not for the longest sequence times the number of sequences.
 *
 *     vptq_batch *b;
 *     vptq_batch_open(&model, &dev, &options, &b, err);
 *     for (...)
 *         vptq_batch_add(b, prompt, n, &sequence, err);
 *     for (size_t left = 1; left;)
 *         vptq_batch_prefill(b, &left, err);
 *     while (...)
 *         vptq_batch_decode(b, err);
 *     ids = vptq_batch_ids(b, sequence, &count);
 *     vptq_batch_end(b, sequence);
 *     vptq_batch_close(b);
 *
 * Guarantees: the same calls give the same tokens for any number of threads.  The other
 * sequences change the logits of a sequence by rounding only: the rounding of a linear layer
 * may depend on the number of rows in its group, and the groups of a prompt on the prompts
 * before it.  Sampling depends on the seed, on the number of sequences added before, and on the
 * token's position.
 *
 * Memory: the pool; activations of up to VPTQ_FORWARD_ROWS rows; one tile of float weights; the
 * logits of up to VPTQ_BATCH_HEAD_ROWS rows; the packed weights as the device prepares them,
 * which stay open. */
#ifndef VPTQ_MODEL_BATCH_H
#define VPTQ_MODEL_BATCH_H

#include "lib/model/forward.h"

typedef struct vptq_batch vptq_batch;

enum { VPTQ_BATCH_HEAD_ROWS = 64 };

typedef struct vptq_batch_options {
    size_t sequences;          /* maximum at the same time */
    size_t length;             /* maximum tokens of a sequence, prompt and output */
    size_t tokens;             /* capacity of the pool; 0: all sequences at full length */
    vptq_dtype kv;             /* type of keys and values: VPTQ_F16 or VPTQ_F32 */
    double temperature, top_p; /* as in vptq_sample_args */
    uint64_t seed;
} vptq_batch_options;

/* Bytes of a batch that follow from shapes; packed weights on the device are not included. */
typedef struct vptq_batch_memory {
    size_t cache;   /* the pool */
    size_t working; /* activations, logits, tables, a tile */
} vptq_batch_memory;
/* VPTQ_E_ARG for impossible settings, VPTQ_E_NOMEM for sizes that overflow. */
vptq_status vptq_batch_plan(const vptq_model *m, const vptq_batch_options *o,
                            vptq_batch_memory *memory, vptq_err *err) VPTQ_MUST_CHECK;

/* Model and device must outlive the batch. */
vptq_status vptq_batch_open(const vptq_model *m, vptq_device *dev, const vptq_batch_options *o,
                            vptq_batch **b, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_batch_close(vptq_batch *b); /* accepts NULL */

/* Adds a sequence that begins with a copy of n ids; *sequence identifies it until it ends.
 * VPTQ_E_ARG for no ids, more than fit into `length`, an id outside the vocabulary, or too many
 * sequences. */
vptq_status vptq_batch_add(vptq_batch *b, const int32_t *ids, size_t n, size_t *sequence,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* Runs one group of up to VPTQ_FORWARD_ROWS prompt tokens, in the order in which the sequences
 * were added; a long prompt takes several groups.  A sequence gets its first token when its
 * prompt is done.  *left: sequences with unfinished prompts.  VPTQ_E_NOMEM if the pool is full,
 * VPTQ_E_NUMERIC if an output is not a number; the batch cannot be used afterwards. */
vptq_status vptq_batch_prefill(vptq_batch *b, size_t *left, vptq_err *err) VPTQ_MUST_CHECK;
/* Adds one token to each sequence whose prompt is done.  Errors as above, and VPTQ_E_ARG for a
 * sequence that already has `length` tokens. */
vptq_status vptq_batch_decode(vptq_batch *b, vptq_err *err) VPTQ_MUST_CHECK;

/* Prompt and output so far; valid until the sequence ends. */
const int32_t *vptq_batch_ids(const vptq_batch *b, size_t sequence, size_t *count);
void vptq_batch_end(vptq_batch *b, size_t sequence);

/* A group of rows whose time is measured: of `sequences` sequences, with `stored` tokens before
 * the `rows` of each. */
typedef struct vptq_batch_group {
    size_t sequences, rows, stored;
} vptq_batch_group;
/* Seconds of a group in all blocks, and of choosing a token of each sequence.  The tokens are
 * any and the cache is 0, whatever the model makes of them.  In an empty batch, with a group
 * within its limits and VPTQ_FORWARD_ROWS rows, or a row of each sequence. */
vptq_status vptq_batch_time(vptq_batch *b, const vptq_batch_group *g, double *blocks,
                            double *head, vptq_err *err) VPTQ_MUST_CHECK;

/* Free pages of the pool. */
size_t vptq_batch_free_pages(const vptq_batch *b);

#endif
