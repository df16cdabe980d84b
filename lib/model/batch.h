/* Many sequences at once: prompts go through the model in groups, then every step gives each of
 * them one token more.  Linears see the rows of all sequences, attention each sequence alone.
 *
 * Keys and values lie in pages of VPTQ_KV_PAGE tokens from one pool; a sequence takes a page
 * when it grows into it and gives all back when it ends, so that the pool needs room for the
 * tokens that there are, not for the longest sequence times their number.
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
 * What holds: the same calls give the same tokens for any number of threads.  The logits of a
 * sequence are the same up to rounding whichever others are there; what a linear rounds to may
 * depend on the number of rows in its group, and where a prompt is cut into groups on what is
 * in front of it.  A sampled token is drawn by a number that depends on the seed, on how many
 * sequences were added before this one and on the token's place.
 *
 * Memory: the pool; activations of up to VPTQ_FORWARD_ROWS rows; one tile of float weights; the
 * logits of up to VPTQ_BATCH_HEAD_ROWS rows; what a device makes of packed weights, which stay
 * open. */
#ifndef VPTQ_MODEL_BATCH_H
#define VPTQ_MODEL_BATCH_H

#include "lib/model/forward.h"

typedef struct vptq_batch vptq_batch;

enum { VPTQ_BATCH_HEAD_ROWS = 64 };

typedef struct vptq_batch_options {
    size_t sequences; /* at the same time, at most */
    size_t length;    /* tokens of a sequence at most, prompt and output */
    size_t tokens; /* of all sequences together that the pool holds; 0: of all at full length */
    vptq_dtype kv; /* what keys and values are rounded to: VPTQ_F16 or VPTQ_F32 */
    double temperature, top_p; /* as in vptq_sample_args */
    uint64_t seed;
} vptq_batch_options;

/* Bytes that a batch takes, as far as they follow from shapes: what packed weights become on
 * the device is not in it. */
typedef struct vptq_batch_memory {
    size_t cache;   /* the pool */
    size_t working; /* activations, logits, tables, a tile */
} vptq_batch_memory;
/* VPTQ_E_ARG for settings that cannot be, VPTQ_E_NOMEM for sizes beyond all numbers. */
vptq_status vptq_batch_plan(const vptq_model *m, const vptq_batch_options *o,
                            vptq_batch_memory *memory, vptq_err *err) VPTQ_MUST_CHECK;

/* Model and device must outlive it. */
vptq_status vptq_batch_open(const vptq_model *m, vptq_device *dev, const vptq_batch_options *o,
                            vptq_batch **b, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_batch_close(vptq_batch *b); /* accepts NULL */

/* A sequence that begins with n ids, copied; *sequence names it until it ends.  VPTQ_E_ARG: no
 * ids, more than fit into `length`, one outside the vocabulary, as many sequences as may be. */
vptq_status vptq_batch_add(vptq_batch *b, const int32_t *ids, size_t n, size_t *sequence,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* One group of up to VPTQ_FORWARD_ROWS tokens of prompts, in the order in which they were
 * added; a longer prompt goes through in several.  A sequence whose prompt is through gets its
 * first token.  *left: sequences whose prompt is not.  VPTQ_E_NOMEM where the pool is full,
 * VPTQ_E_NUMERIC where an output is not a number; the batch is of no use then. */
vptq_status vptq_batch_prefill(vptq_batch *b, size_t *left, vptq_err *err) VPTQ_MUST_CHECK;
/* One token more for each sequence whose prompt is through.  Errors as above, and VPTQ_E_ARG
 * for a sequence that has `length` tokens. */
vptq_status vptq_batch_decode(vptq_batch *b, vptq_err *err) VPTQ_MUST_CHECK;

/* Prompt and output so far; valid until the sequence ends. */
const int32_t *vptq_batch_ids(const vptq_batch *b, size_t sequence, size_t *count);
void vptq_batch_end(vptq_batch *b, size_t sequence);

/* Pages of the pool that no sequence has. */
size_t vptq_batch_free_pages(const vptq_batch *b);

#endif
