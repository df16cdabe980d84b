/* Internal: the gradients of what a packed matrix stores: codebooks, scale and bias.  Indices
 * and the order of columns do not change.
 *
 *     vptq_stored *s;
 *     vptq_stored_open(dev, matrices, count, false, &s, err);
 *     vptq_stored_gradient(s, q, rows, x, dz, &gradient, err);
 *     vptq_stored_close(s);
 *
 * With W = q scale + bias as in lib/base/vq.h and dW = dz^T x, over the uses of an entry,
 *     dcentroid[e] = sum of dW[r][c] scale[c]     dscale[c] = sum_r dW[r][c] q[r][c]
 *     dbias[c] = sum_r dW[r][c]
 * dW exists for one matrix at a time. */
#ifndef VPTQ_TUNE_STORED_H
#define VPTQ_TUNE_STORED_H

#include "lib/backend/backend.h"

typedef struct vptq_stored vptq_stored;

/* Work arrays for any of these matrices, whose arrays need not live on.  bf16: of the product
 * dz^T x (see the op gemm). */
vptq_status vptq_stored_open(vptq_device *dev, const vptq_vq *const *matrices, size_t count,
                             bool bf16, vptq_stored **s, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_stored_close(vptq_stored *s); /* accepts NULL */

/* Arrays in host memory, each like the one of vptq_vq with that name; those that the matrix
 * does not have are not touched. */
typedef struct vptq_stored_gradients {
    double *centroids, *res_centroids, *outlier_centroids, *scale, *bias;
} vptq_stored_gradients;

/* Adds the gradients of q for `rows` tokens: x [rows, in] and dz [rows, out] in device memory.
 */
vptq_status vptq_stored_gradient(vptq_stored *s, const vptq_vq *q, size_t rows, const float *x,
                                 const float *dz, const vptq_stored_gradients *to,
                                 vptq_err *err) VPTQ_MUST_CHECK;

#endif
