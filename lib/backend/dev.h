/* Internal to the host backends (ref and cpu): the state of a vptq_dev.  Created by the
 * backend's open and freed by its close; `ctx` belongs to the caller. */
#ifndef VPTQ_BACKEND_DEV_H
#define VPTQ_BACKEND_DEV_H

#include <stddef.h>

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"

struct vptq_blas; /* lib/backend/cpu/blas.h */

struct vptq_dev {
    const vptq_ctx *ctx;
    vptq_simd simd; /* widest kernels that the cpu backend may use; NONE in ref */
    bool amx;       /* the cpu backend may multiply bfloat16 numbers and bytes in tiles */
    struct vptq_blas *blas; /* cpu: NULL until library_gemv needs it */
    void *scratch;          /* see vptq_dev_scratch */
    size_t scratch_bytes;
};

/* Host backends read the arrays of q themselves; products of the cpu backend use the layout. */
struct vptq_matrix {
    vptq_vq q;
    struct vptq_layout *layout; /* lib/backend/cpu/gemv.h; NULL in ref */
};

static inline size_t vptq_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Returns a work area of at least count * size bytes, 64-byte aligned and not cleared, or NULL
 * with VPTQ_E_NOMEM in err.  The device owns it; it is valid until the next call on the same
 * device.  An op takes it once, before its parallel loop, and gives each thread a slice. */
void *vptq_dev_scratch(vptq_dev *dev, size_t count, size_t size, vptq_err *err) VPTQ_MUST_CHECK;

/* Runs a call in which V stands for v.  For the usual lengths of vectors V is a constant, so
 * that an inlined function is compiled once for each. */
#define VPTQ_CASE_V(length, ...)                                                               \
    case length: {                                                                             \
        enum { V = length };                                                                   \
        __VA_ARGS__;                                                                           \
        break;                                                                                 \
    }
#define VPTQ_WITH_V(v, ...)                                                                    \
    switch (v) {                                                                               \
        VPTQ_CASE_V(2, __VA_ARGS__)                                                            \
        VPTQ_CASE_V(4, __VA_ARGS__)                                                            \
        VPTQ_CASE_V(6, __VA_ARGS__)                                                            \
        VPTQ_CASE_V(8, __VA_ARGS__)                                                            \
        VPTQ_CASE_V(12, __VA_ARGS__)                                                           \
        VPTQ_CASE_V(16, __VA_ARGS__)                                                           \
    default: {                                                                                 \
        const size_t V = (v);                                                                  \
        __VA_ARGS__;                                                                           \
    }                                                                                          \
    }

#endif
