/* Internal: the product that gemm and gemv share. */
#ifndef VPTQ_BACKEND_CUDA_GEMM_H
#define VPTQ_BACKEND_CUDA_GEMM_H

#include "lib/backend/cuda/split.h"

/* C = alpha A B^T + beta C + bias as in gemm, for `op`. A is F32. Of g only c, ldc, alpha, beta
 * and bias are read. Uses the scratch memory. */
vptq_status vptq_cuda_multiply(vptq_dev *dev, const char *op, const split_source *a,
                               const split_source *b, const vptq_gemm_args *g, vptq_err *err);

/* Allocates what gemm of this shape needs, so that it cannot fail for want of memory unless the
 * scratch memory is used for something else in between. Of g only shapes and forms are read. */
vptq_status vptq_cuda_gemm_reserve(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);

#endif
