/* Internal: sums over windows that are the same for any number of ranks.
 *
 * Windows are cut into chunks.  The sums of a chunk start from zero, and chunks are added in
 * their order, in double: total = ((c0 + c1) + c2) + ..  Rank r of R has the chunks r, r + R,
 * ..; after each round of R chunks all ranks add them up:
 *
 *     vptq_total_clear(&t, n);
 *     for each round:
 *         vptq_total_add(&t, 0, &sums, err);  // if this rank has a chunk in it
 *         vptq_total_share(&t, chunks of the round, err);
 *     vptq_total_finish(&t, err); */
#ifndef VPTQ_HESSIAN_TOTAL_H
#define VPTQ_HESSIAN_TOTAL_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/backend/backend.h"

enum { VPTQ_CHUNK_WINDOWS = 8 };

typedef struct vptq_total {
    vptq_device *dev;
    size_t n;    /* numbers in use; at most the capacity */
    bool clear;  /* no chunk was added: the arrays are uninitialized */
    double *sum; /* [capacity] in device memory: the total; with several ranks only after
                    vptq_total_finish, before it the chunk of this rank */
    /* [capacity] in host memory, NULL with one rank: the total so far, and a copy of the chunk
     * (NULL: `sum` is in host memory) */
    double *shared, *chunk;
} vptq_total;

vptq_status vptq_total_init(vptq_device *dev, size_t capacity, vptq_total *t,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* Bytes of host memory that this allocates. */
size_t vptq_total_bytes(const vptq_device *dev, size_t capacity);
void vptq_total_release(vptq_total *t); /* accepts a zeroed struct */
/* Begins a total of n <= capacity numbers, which has no chunks yet. */
void vptq_total_clear(vptq_total *t, size_t n);
/* Adds the sums x [rows, n] of a chunk (device memory), or their packed lower triangle, to the
 * numbers from `at` on. */
vptq_status vptq_total_add(vptq_total *t, size_t at, size_t rows, size_t n, bool lower,
                           const double *x, vptq_err *err) VPTQ_MUST_CHECK;
/* Ends a round in which the ranks 0 to parts - 1 have a chunk.  All ranks call this together;
 * VPTQ_E_CANCELLED if another one stopped. */
vptq_status vptq_total_share(vptq_total *t, int parts, vptq_err *err) VPTQ_MUST_CHECK;
/* After the last round: leaves the total in t->sum. */
vptq_status vptq_total_finish(vptq_total *t, vptq_err *err) VPTQ_MUST_CHECK;

/* The windows of this rank among `windows`: their number, and the number of the i-th. */
size_t vptq_own_windows(const vptq_ctx *ctx, size_t windows);
size_t vptq_own_window(const vptq_ctx *ctx, size_t i);
/* Number of rounds for `windows`, and of chunks in one of them. */
size_t vptq_rounds(const vptq_ctx *ctx, size_t windows);
int vptq_round_parts(const vptq_ctx *ctx, size_t windows, size_t round);

#endif
