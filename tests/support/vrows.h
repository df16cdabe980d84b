/* Calls every op of the CUDA backend once, on small arrays in the memory of the emulated
 * device, for tests of failures. */
#ifndef VPTQ_TESTS_SUPPORT_VROWS_H
#define VPTQ_TESTS_SUPPORT_VROWS_H

#include "lib/backend/backend.h"

/* A device and arrays on it: ones, zeros as indices, unit matrices. */
typedef struct vrows {
    vptq_ctx ctx;
    vptq_device dev;
    float *x, *y;
    double *d;
    uint32_t *idx;
    float *host; /* as many floats as x */
} vrows;

void vrows_open(vrows *r); /* on emu */
void vrows_close(vrows *r);

/* An op and the close that belongs to it; returns VPTQ_OK with everything released, or the
 * error of the op. */
typedef vptq_status (*vrows_fn)(vrows *r, vptq_err *err);
typedef struct vrows_row {
    const char *name;
    vrows_fn run;
} vrows_row;
extern const vrows_row vrows_all[]; /* ends with a NULL */

#endif
