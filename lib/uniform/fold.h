/* Internal: scales s of the columns of all matrices that read one input x, which make these
 * matrices easier to quantize: (W diag(s)) (x / s) = W x.  Whoever calls divides x, by changing
 * what computes it.  Knows matrices only.
 *
 * SmoothQuant (Xiao et al. 2023, Eq. 4) moves the range of 8-bit activations into the weights:
 *     s_j = max |x_j|^a / max |W_:j|^(1 - a)
 * AWQ (Lin et al. 2024, Eq. 5; mit-han-lab/llm-awq) enlarges the columns that matter:
 *     s_j = mean |x_j|^a,  a of 0, 1/20, .. 19/20 with the smallest loss of rounding
 * The loss is the product over the matrices of tr(E H E^T) / tr(W H W^T); llm-awq takes the
 * output of the attention or the MLP that the matrices are part of.  docs/methods.md. */
#ifndef VPTQ_UNIFORM_FOLD_H
#define VPTQ_UNIFORM_FOLD_H

#include "lib/uniform/uniform.h"

enum { VPTQ_AWQ_EXPONENTS = 20 }; /* that AWQ tries, from 0 on in steps of 1 / 20 */

/* In host memory. */
typedef struct vptq_fold_matrix {
    uint32_t out;
    const float *w;                 /* [out, in] */
    vptq_uniform_settings settings; /* AWQ: how it will be rounded */
} vptq_fold_matrix;

typedef struct vptq_fold_input {
    uint32_t in;
    const float *abs_mean; /* [in] mean |x_j|, for AWQ */
    const float *abs_max;  /* [in] max |x_j|, for SmoothQuant */
    const float *lower;    /* AWQ: the Hessian of x, packed lower triangle */
    const vptq_fold_matrix *matrix;
    size_t count; /* of matrices, at least 1 */
} vptq_fold_input;

/* s [in], positive and finite; 1 for columns whose x is always 0. */
void vptq_smooth_scales(const vptq_fold_input *input, double a, float *s);

/* The same; *a is the chosen exponent.  With the exponent 0 all are 1. */
vptq_status vptq_awq_scales(vptq_device *dev, const vptq_fold_input *input, float *s, double *a,
                            vptq_err *err) VPTQ_MUST_CHECK;

#endif
