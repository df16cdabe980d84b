/* Internal: the hidden states of all calibration tokens between two blocks: in the memory of
 * the device, in host memory or, if they would leave too little under the memory cap, in an
 * unnamed file.  The numbers are the
 * same either way.  A checkpoint holds the hidden states of one or more such streams. */
#ifndef VPTQ_HESSIAN_HIDDEN_STATES_H
#define VPTQ_HESSIAN_HIDDEN_STATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/backend/backend.h"

#define VPTQ_HIDDEN_FILE "hidden.state" /* the checkpoint of a calibration */
#define VPTQ_SPILL_FILE  "hidden.spill" /* the unnamed file's name for a moment */

typedef struct vptq_hidden_states {
    const vptq_ctx *ctx;
    size_t rows, dim;
    size_t max_rows; /* that are read at a time */
    /* Device memory of the caller, or NULL (vptq_forward_hidden_alloc). */
    float *resident; /* [rows, dim] */
    const vptq_device *dev;
    int fd;         /* -1: all in memory */
    float *data;    /* [rows, dim], [max_rows, dim] of the file, or a chunk of resident */
    uint64_t *sums; /* [rows] checksums of the rows in the file; NULL without one */
    char dir[4096];
} vptq_hidden_states;

/* Allocates [rows, dim] floats, uninitialized; the caller has set rows, dim and max_rows, and
 * resident and dev if they are to lie in device memory.  Otherwise they go to a file in `dir`
 * if they take more than half of the memory left under the cap after `reserve` bytes; not if
 * `dir` is NULL. */
vptq_status vptq_hidden_states_open(const vptq_ctx *ctx, const char *dir, size_t reserve,
                                    vptq_hidden_states *s, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_hidden_states_close(vptq_hidden_states *s); /* accepts a zeroed struct */

/* Rows [first, first + n), n <= max_rows, to read and change by a forward pass; with `fresh`
 * their content is undefined, because the caller overwrites it.  Valid until the next call;
 * changes take effect with _keep.  VPTQ_E_CHECKSUM if the file no longer holds what was
 * written. */
vptq_status vptq_hidden_states_get(vptq_hidden_states *s, size_t first, size_t n, bool fresh,
                                   float **rows, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_hidden_states_keep(vptq_hidden_states *s, size_t first, size_t n,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* Gives rows [first, first + n), n <= max_rows, of rank `root` to all ranks.  Not for device
 * memory. */
vptq_status vptq_hidden_states_spread(vptq_hidden_states *s, int root, size_t first, size_t n,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Writes a checkpoint of `count` streams of one shape atomically; `position` is the caller's.
 */
vptq_status vptq_hidden_states_save(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16],
                                    uint64_t position, vptq_err *err) VPTQ_MUST_CHECK;
/* Reads a checkpoint that is complete and has this fingerprint and a position of at most
 * `last`.  If there is none, *position is UINT64_MAX and the streams are undefined. */
vptq_status vptq_hidden_states_load(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16], uint64_t last,
                                    uint64_t *position, vptq_err *err) VPTQ_MUST_CHECK;
/* *position of the checkpoint that this would read, if its rows are whole: only its header is
 * read.  Of the streams only rows and dim need to be set. */
vptq_status vptq_hidden_states_find(vptq_hidden_states *const *s, size_t count,
                                    const char *path, const char fingerprint[16], uint64_t last,
                                    uint64_t *position, vptq_err *err) VPTQ_MUST_CHECK;

#endif
