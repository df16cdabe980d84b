/* cuBLAS and cuSOLVER as the cuda backend uses them: loaded when a row first asks for one, as
 * OpenBLAS is (cpu_blas.h), so that a program starts where they are not installed.  By
 * cuda_library.cu on a GPU, by tests/emu/cuda_emu_library.cc under the emulator.
 *
 * Matrices are on the device and column-major, as the libraries want them: the lower triangle
 * of a row-major matrix is the upper one here.  VPTQ_E_DEVICE says that cuSOLVER is not there,
 * VPTQ_E_UNSUPPORTED that cuBLAS is not (only measurements ask for it); what a library answers
 * is VPTQ_E_DEVICE, or VPTQ_E_NOMEM. */
#ifndef VPTQ_BACKEND_CUDA_LIBRARY_H
#define VPTQ_BACKEND_CUDA_LIBRARY_H

#include "lib/backend/cuda/cuda.h"

/* A = U^T U, A [n, n] of which only the upper triangle is read and becomes U.  *info = 0, or
 * the order of the first leading minor that is not positive; NaN may go unnoticed. */
vptq_status vptq_cuda_library_potrf(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    size_t *info, vptq_err *err);
/* Inverse of the upper triangle of A [n, n] in place; its diagonal has no zeros. */
vptq_status vptq_cuda_library_trtri(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    vptq_err *err);

/* C [m, n] = A^T B + beta C, A [k, m], B [k, n]; C is not read where beta is 0.  In float, in
 * the library's own order. */
vptq_status vptq_cuda_library_sgemm(vptq_dev *dev, size_t m, size_t n, size_t k, const float *a,
                                    size_t lda, const float *b, size_t ldb, float beta,
                                    float *c, size_t ldc, vptq_err *err);
/* y [n] = A^T x + beta y, A [m, n]. */
vptq_status vptq_cuda_library_sgemv(vptq_dev *dev, size_t m, size_t n, const float *a,
                                    size_t lda, const float *x, float beta, float *y,
                                    vptq_err *err);

/* The row `libraries`: "cuBLAS 13.1.0, cuSOLVER 12.0.7", or why one cannot be loaded. */
void vptq_cuda_library_describe(vptq_dev *dev, char *text, size_t size);
void vptq_cuda_library_close(vptq_dev *dev);

/* What the functions above answer where a library cannot be loaded; `st` as above. */
static inline vptq_status vptq_cuda_library_missing(vptq_status st, const char *name,
                                                    const char *files, const char *why,
                                                    vptq_err *err)
{
    return vptq_fail(err, st, "the cuda backend needs %s (%s) for this and cannot load it: %s",
                     name, files, why);
}

#endif
