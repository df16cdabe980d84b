/* Internal to quip*.c: the state of a matrix. */
#ifndef VPTQ_UNIFORM_QUIP_INTERNAL_H
#define VPTQ_UNIFORM_QUIP_INTERNAL_H

#include "lib/base/lattice.h"
#include "lib/uniform/quip.h"

/* Arrays are in host memory.  Columns are those of the rotated matrix, and a column is one run
 * of floats; weights are divided by `scale`. */
typedef struct vptq_quip {
    vptq_device *dev;
    const vptq_quip_settings *s;
    const vptq_uniform_input *input;
    vptq_additive_shape shape;
    vptq_arena scratch;
    uint8_t *row_signs, *column_signs; /* of the result */
    float scale, residual_scale; /* the second stage rounds the error of the first times this */
    float *w;                    /* [in, out] */
    float *what;                 /* [in, out] what the codes give */
    float *delta;                /* [in, out] w - what */
    float *z;       /* [in, out] weights with the errors of later vectors; in sweeps, delta H */
    float *h;       /* [in, in] H with its ridge */
    float *l;       /* [in, in] its block LDL factor, below the diagonal blocks */
    float *inverse; /* [in / 8][8][8] of the diagonal blocks of h */
    uint16_t *codes[2]; /* of a stage: [in / 8, out] */
} vptq_quip;

/* Rotates and scales the weights, rotates and factors the Hessian. */
vptq_status vptq_quip_prepare(vptq_quip *q, uint32_t matrix_id, double *damping_added,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
