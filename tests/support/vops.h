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

/* An op with one of three functions that call it: alone, or with an open matrix or search
 * index. */
typedef vptq_status (*vops_fn)(vops *r, vptq_err *err);
typedef vptq_status (*vops_matrix_fn)(vops *r, const vptq_matrix *m, vptq_err *err);
typedef vptq_status (*vops_index_fn)(vops *r, const vptq_search_index *f, vptq_err *err);
typedef struct vops_op {
    const char *name;
    vops_fn run;
    vops_matrix_fn with_matrix;
    vops_index_fn with_index;
} vops_op;
extern const vops_op vops_all[]; /* ends with a NULL name */

/* Runs an op. Everything is released whether it returns VPTQ_OK or the error of the op. */
vptq_status vops_run(const vops_op *op, vops *r, vptq_err *err);

#endif
