/* Internal to lib/encoder: preconditioned conjugate gradients for A x = r, A symmetric and
 * positive semidefinite, in double, from x = 0 (Hestenes and Stiefel 1952; Jacobi
 * preconditioner). */
#ifndef VPTQ_ENCODER_CONJUGATE_H
#define VPTQ_ENCODER_CONJUGATE_H

#include "lib/base/mem.h"
#include "lib/base/status.h"

typedef struct vptq_conjugate {
    size_t n;           /* unknowns; all arrays below are [n] in the arena */
    double *x;          /* out: the solution */
    double *r;          /* in: right-hand side; destroyed */
    double *m;          /* in: diagonal of A; unknowns with m = 0 stay 0 */
    double *s, *d, *ad; /* preconditioned residual, direction, A d */
    vptq_status (*apply)(void *arg, const double *d, double *ad, vptq_err *err); /* ad = A d */
    void *arg;
} vptq_conjugate;

/* Allocates the arrays, all zero. */
vptq_status vptq_conjugate_open(vptq_arena *arena, size_t n, vptq_conjugate *c,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Runs at most `iterations`.  Stops early at 1e-12 of the first residual in the
 * preconditioner's norm, or when A has no curvature in the search direction.  Fails only if
 * `apply` does. */
vptq_status vptq_conjugate_run(vptq_conjugate *c, int iterations,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
