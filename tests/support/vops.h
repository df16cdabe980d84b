/* One call of every op of the CUDA backend, on small arrays in the memory of the emulated
 * device, for tests of failures. */
#ifndef VPTQ_TESTS_SUPPORT_VOPS_H
#define VPTQ_TESTS_SUPPORT_VOPS_H

#include "lib/backend/backend.h"

/* The emulated device and arrays in its memory: x and y all ones, d 4 times the unit matrix,
 * idx all zeros. */
typedef struct vops {
    vptq_ctx ctx;
    vptq_device dev;
    float *x, *y;
    double *d;
    uint32_t *idx;
    float *host; /* as many floats as x */
} vops;

void vops_open(vops *r);
void vops_close(vops *r);

/* Runs an op, with the close that belongs to it. Everything is released whether it returns
 * VPTQ_OK or the error of the op. */
typedef vptq_status (*vops_fn)(vops *r, vptq_err *err);
typedef struct vops_op {
    const char *name;
    vops_fn run;
} vops_op;
extern const vops_op vops_all[]; /* ends with a NULL name */

#endif
