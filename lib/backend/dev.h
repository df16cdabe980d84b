/* The state behind a vptq_dev of the host backends (ref and cpu), for their rows only.
 * Ownership: made by the backend's open, freed by its close; `ctx` stays the caller's. */
#ifndef VPTQ_BACKEND_DEV_H
#define VPTQ_BACKEND_DEV_H

#include <stddef.h>

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"

struct vptq_blas; /* lib/backend/cpu/blas.h */

struct vptq_dev {
    const vptq_ctx *ctx;
    int threads;            /* >= 1; decides who computes a tile, never what is computed */
    vptq_simd simd;         /* widest kernels that the cpu backend may use; NONE in ref */
    struct vptq_blas *blas; /* NULL in ref */
    void *scratch;          /* see vptq_dev_scratch */
    size_t scratch_bytes;
};

/* The host backends' rows read the arrays themselves, but for products of the cpu backend. */
struct vptq_matrix {
    vptq_vq q;
    struct vptq_layout *layout; /* lib/backend/cpu/layout.h; NULL in ref */
};

/* A working area of at least count * size bytes, 64-byte aligned, not cleared, kept by the
 * device and valid until the next call on the same device.  Rows ask once, before their
 * parallel loop, and give every thread its slice.  NULL with VPTQ_E_NOMEM in err. */
void *vptq_dev_scratch(vptq_dev *dev, size_t count, size_t size, vptq_err *err) VPTQ_MUST_CHECK;

#endif
