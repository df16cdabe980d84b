/* Internal: potrf and trtri without cuSOLVER, with the arguments of library.h. */
#ifndef VPTQ_BACKEND_CUDA_FACTOR_OWN_H
#define VPTQ_BACKEND_CUDA_FACTOR_OWN_H

#include "lib/backend/cuda/cuda.h"

vptq_status vptq_cuda_own_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *info,
                                vptq_err *err);
vptq_status vptq_cuda_own_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err);

#endif
