/* Arrays of the host as a device sees them, for as long as a step takes.  Where the device
 * works in host memory a mirrored array is the array itself, and nothing here costs anything.
 *
 * A failure is kept and told once, by _check or _end, so that arrays can be asked for one after
 * another:
 *
 *     vptq_mirror m = vptq_mirror_of(dev);
 *     const float *h = vptq_mirror_in(&m, c->h, n * n, sizeof *h);
 *     float *q = vptq_mirror_take(&m, c->q, n * rows, sizeof *q, VPTQ_MIRROR_BACK);
 *     VPTQ_TRY(vptq_mirror_check(&m, err));
 *     ... rows of the backend on h and q ...
 * out:
 *     return vptq_mirror_end(&m, st, err);     -- q comes back
 */
#ifndef VPTQ_BACKEND_MIRROR_H
#define VPTQ_BACKEND_MIRROR_H

#include "lib/backend/backend.h"

typedef struct vptq_mirrored vptq_mirrored;

typedef struct vptq_mirror {
    vptq_device *dev;
    vptq_mirrored *last; /* newest first */
    vptq_status status;  /* the first failure, and what it said */
    vptq_err why;
} vptq_mirror;

static inline vptq_mirror vptq_mirror_of(vptq_device *dev)
{
    return (vptq_mirror){.dev = dev};
}

/* Which way an array goes: to the device when it is asked for, back at the end; none of them:
 * the device alone uses it. */
enum { VPTQ_MIRROR_THERE = 1, VPTQ_MIRROR_BACK = 2 };

/* `count` elements of `size` bytes as the device has them; NULL for NULL, and after a failure.
 */
void *vptq_mirror_take(vptq_mirror *m, void *host, size_t count, size_t size, unsigned ways);
/* One that is only read. */
const void *vptq_mirror_in(vptq_mirror *m, const void *host, size_t count, size_t size);

/* Between the two ends: `bytes` from `host` on, which is inside of a mirrored array, come back
 * now, or go to the device again. */
vptq_status vptq_mirror_pull(vptq_mirror *m, void *host, size_t bytes,
                             vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_mirror_push(vptq_mirror *m, const void *host, size_t bytes,
                             vptq_err *err) VPTQ_MUST_CHECK;

vptq_status vptq_mirror_check(const vptq_mirror *m, vptq_err *err) VPTQ_MUST_CHECK;

/* `st` is how the step went: arrays come back where all went well, and the device's memory is
 * given back.  The first failure of the step or of the copies. */
vptq_status vptq_mirror_end(vptq_mirror *m, vptq_status st, vptq_err *err) VPTQ_MUST_CHECK;

#endif
