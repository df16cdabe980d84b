/* Hidden states of all calibration tokens between two blocks: in memory, or in a file without a
 * name when they would not leave enough of it under the cap.  Either way the numbers are the
 * same.  A checkpoint holds the states of one or more such streams. */
#ifndef VPTQ_HESSIAN_HIDDEN_STATES_H
#define VPTQ_HESSIAN_HIDDEN_STATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/ctx.h"

typedef struct vptq_hidden_states {
    const vptq_ctx *ctx;
    size_t rows, dim;
    size_t most; /* rows that are asked for at a time */
    int fd;      /* -1: all in memory */
    float *data; /* [rows, dim], or [most, dim] of the file */
    char dir[4096];
} vptq_hidden_states;

/* [rows, dim] floats with nothing in them yet.  They go to a file in `dir` when they take more
 * than half of what is left under the memory cap, less `reserve` bytes. */
vptq_status vptq_hidden_states_open(const vptq_ctx *ctx, const char *dir, size_t rows,
                                    size_t dim, size_t most, size_t reserve,
                                    vptq_hidden_states *s, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_hidden_states_close(vptq_hidden_states *s); /* also of a zeroed one */

/* Rows [first, first + n), n <= most, to read and change; with `fresh` they will be written
 * only and need not be read.  Valid until the next call; changes count once they are kept. */
vptq_status vptq_hidden_states_get(vptq_hidden_states *s, size_t first, size_t n, bool fresh,
                                   float **rows, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_hidden_states_keep(vptq_hidden_states *s, size_t first, size_t n,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* A checkpoint of `count` streams of one shape; `position` is the caller's.  Atomic. */
vptq_status vptq_hidden_states_save(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16],
                                    uint64_t position, vptq_err *err) VPTQ_MUST_CHECK;
/* Reads one back when the file is there, is whole, bears the fingerprint and its position is at
 * most `last`: then *found.  Otherwise the streams hold nothing that is of use. */
vptq_status vptq_hidden_states_load(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16], uint64_t last,
                                    bool *found, uint64_t *position,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
