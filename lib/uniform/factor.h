/* Internal: the factor that passes over the columns of a matrix propagate errors with. */
#ifndef VPTQ_UNIFORM_FACTOR_H
#define VPTQ_UNIFORM_FACTOR_H

#include "lib/backend/mirror.h"

typedef struct vptq_uniform_factor_args {
    size_t in;
    const float *lower;    /* host: the Hessian, packed lower triangle [in (in + 1) / 2] */
    const uint32_t *order; /* host: [in] column at each position; NULL: its own */
    double ridge;          /* times mean diag H, added to H */
    double damping;        /* first share added when the factorization fails */
} vptq_uniform_factor_args;

/* u [in, in], in the device's memory, = U of the Hessian with its ridge (vptq_hessian_factor).
 * *damping_added: times the mean diagonal; 0 = none was needed. */
vptq_status vptq_uniform_factor(vptq_mirror *m, const vptq_uniform_factor_args *a, float *u,
                                double *damping_added, vptq_err *err) VPTQ_MUST_CHECK;

#endif
