/* Internal: the optimizer of tuning: directions of Adam, steps in proportion to the
 * size of each tensor (You et al., "Large batch optimization for deep learning", ICLR 2020:
 * LAMB), a warm-up and a smooth decay to 5 % of the largest rate.
 *
 * For a tensor p with gradient g, after step t, with decays b1, b2:
 *     m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2
 *     u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon rms(g))
 *     p -= rate |p| / |u| u
 * over the entries that have had a gradient.  Scales and biases move by half of the rate.  A
 * bias has no size of its own, since it may be 0: |p| is that of the matrix's scale.  Gradients
 * whose norm is more than twice the median of the last 64 are scaled down to that. */
#ifndef VPTQ_TUNE_OPTIMIZER_H
#define VPTQ_TUNE_OPTIMIZER_H

#include "lib/tune/student.h"

typedef struct vptq_optimizer {
    uint32_t steps, warm_up; /* planned */
    double rate;             /* largest step, relative to the size of a tensor; the caller's */
    uint32_t step;           /* taken */
    vptq_tensor_range range; /* that are moved */
    float *m, *v;            /* [count of the student] */
    double *norms;           /* [steps] of the gradients */
} vptq_optimizer;

/* Arrays in `arena`; for all tensors, at step 0, with a rate of 0. */
vptq_status vptq_optimizer_open(const vptq_student *s, uint32_t steps, vptq_arena *arena,
                                vptq_optimizer *o, vptq_err *err) VPTQ_MUST_CHECK;

/* Back to step 0, for these tensors. */
void vptq_optimizer_begin(vptq_optimizer *o, const vptq_tensor_range *range);

/* Rate of step t, counted from 0. */
double vptq_optimizer_rate(const vptq_optimizer *o, uint32_t t);

/* Moves s->master along `gradient` [count of the student], which it may scale, and rounds
 * s->stored. *norm: that of the gradient.  VPTQ_E_NUMERIC naming a tensor whose gradient is not
 * finite; nothing has changed then. */
vptq_status vptq_optimizer_step(vptq_optimizer *o, vptq_student *s, double *gradient,
                                double *norm, vptq_err *err) VPTQ_MUST_CHECK;

#endif
