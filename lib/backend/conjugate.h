/* Internal: preconditioned conjugate gradients for A x = b, A symmetric and
 * positive semidefinite, in double, from x = 0 (Hestenes and Stiefel 1952; Jacobi
 * preconditioner). */
#ifndef VPTQ_BACKEND_CONJUGATE_H
#define VPTQ_BACKEND_CONJUGATE_H

#include "lib/backend/mirror.h"

typedef struct vptq_conjugate {
    vptq_device *dev;
    size_t n;          /* unknowns; all arrays below are [n] on the device */
    double *x;         /* out: the solution */
    double *m;         /* in: diagonal of A; unknowns with m = 0 stay 0 */
    double *ad;        /* in: -b, the gradient at x = 0; then A d */
    double *r, *s, *d; /* residual, the same preconditioned, direction */
    float *rounded;    /* d */
    /* ad = A d; d is c->d, rounded or not. */
    vptq_status (*apply)(void *arg, vptq_err *err);
    void *arg;
} vptq_conjugate;

/* Allocates the arrays, all zero, for c->n unknowns. */
vptq_status vptq_conjugate_open(vptq_mirror *arrays, vptq_conjugate *c,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Runs at most `iterations`.  Stops early at 1e-12 of the first residual in the
 * preconditioner's norm, or when A has no curvature in the search direction.  Fails if
 * `apply` or an op does. */
vptq_status vptq_conjugate_run(vptq_conjugate *c, int iterations,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
