/* Internal: arrays of a device with one lifetime: those of its own, and copies of host arrays.
 * If the device works in host memory, a mirrored array is the array itself and nothing is
 * copied.
 *
 * The first failure is kept and reported by _check or _end, so that a caller may take several
 * arrays before it checks:
 *
 *     vptq_mirror m = vptq_mirror_of(dev);
 *     const float *w = vptq_mirror_in(&m, input->w, n, sizeof *w);
 *     float *z = vptq_mirror_alloc(&m, n, sizeof *z);
 *     uint32_t *words = vptq_mirror_take(&m, result, n, sizeof *words, VPTQ_MIRROR_DOWNLOAD);
 *     VPTQ_TRY(vptq_mirror_check(&m, err));
 *     ... ops on w, z and words ...
 * out:
 *     return vptq_mirror_end(&m, st, err);     -- downloads words
 */
#ifndef VPTQ_BACKEND_MIRROR_H
#define VPTQ_BACKEND_MIRROR_H

#include "lib/backend/backend.h"

typedef struct vptq_mirrored vptq_mirrored;

typedef struct vptq_mirror {
    vptq_device *dev;
    vptq_mirrored *last; /* newest first */
    vptq_status status;  /* the first failure */
    vptq_err err;
} vptq_mirror;

static inline vptq_mirror vptq_mirror_of(vptq_device *dev)
{
    return (vptq_mirror){.dev = dev};
}

/* How an array is copied: to the device at once, back at the end, or neither if only the device
 * uses it. */
enum { VPTQ_MIRROR_UPLOAD = 1, VPTQ_MIRROR_DOWNLOAD = 2 };

/* Returns the device's copy of `count` elements of `size` bytes; NULL if host is NULL and after
 * a failure. */
void *vptq_mirror_take(vptq_mirror *m, void *host, size_t count, size_t size, unsigned copies);
/* Returns an array of the device alone, uninitialized; NULL after a failure. */
void *vptq_mirror_alloc(vptq_mirror *m, size_t count, size_t size);
/* Mirrors an array that is only read. */
const void *vptq_mirror_in(vptq_mirror *m, const void *host, size_t count, size_t size);

/* Downloads (pull) or uploads (push) `bytes` bytes at `host`, inside a mirrored array, before
 * the end. */
vptq_status vptq_mirror_pull(vptq_mirror *m, void *host, size_t bytes,
                             vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_mirror_push(vptq_mirror *m, const void *host, size_t bytes,
                             vptq_err *err) VPTQ_MUST_CHECK;

vptq_status vptq_mirror_check(const vptq_mirror *m, vptq_err *err) VPTQ_MUST_CHECK;

/* Downloads arrays if `st`, the caller's status, and all copies are OK, and frees the device
 * memory.  Returns the first failure of the caller or the copies. */
vptq_status vptq_mirror_end(vptq_mirror *m, vptq_status st, vptq_err *err) VPTQ_MUST_CHECK;

#endif
