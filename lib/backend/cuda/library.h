/* Internal: the functions of cuBLAS and cuSOLVER that the cuda backend uses. library.cu loads
 * them when an op first needs one, so that programs start where they are not installed
 * (library_find.h says where it looks); under the emulator tests/emu/cuda_emu_library.cc stands
 * in for it.
 *
 * Matrices are in device memory and column-major: the lower triangle of a row-major matrix is
 * the upper one here. If a library cannot be loaded, cuSOLVER functions return VPTQ_E_DEVICE
 * and cuBLAS functions, which only benchmarks use, VPTQ_E_UNSUPPORTED. A failed call returns
 * VPTQ_E_DEVICE or VPTQ_E_NOMEM. */
#ifndef VPTQ_BACKEND_CUDA_LIBRARY_H
#define VPTQ_BACKEND_CUDA_LIBRARY_H

#include "lib/backend/cuda/cuda.h"

/* Whether cuSOLVER can be loaded. */
bool vptq_cuda_library_has_solver(vptq_dev *dev);
/* Factors A [n, n] = U^T U in place; only the upper triangle is read and written. Sets *info to
 * 0 or to the order of the first leading minor that is not positive; NaN may go unnoticed. */
vptq_status vptq_cuda_library_potrf(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    size_t *info, vptq_err *err);
/* Inverts the upper triangle of A [n, n] in place; its diagonal must have no zeros. */
vptq_status vptq_cuda_library_trtri(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    vptq_err *err);

/* C [m, n] = A^T B + beta C with A [k, m] and B [k, n], in float and in the library's order; C
 * is not read if beta is 0. */
vptq_status vptq_cuda_library_sgemm(vptq_dev *dev, size_t m, size_t n, size_t k, const float *a,
                                    size_t lda, const float *b, size_t ldb, float beta,
                                    float *c, size_t ldc, vptq_err *err);
/* y [n] = A^T x + beta y, A [m, n]. */
vptq_status vptq_cuda_library_sgemv(vptq_dev *dev, size_t m, size_t n, const float *a,
                                    size_t lda, const float *x, float beta, float *y,
                                    vptq_err *err);

/* The op `libraries`: "cuBLAS 13.1.0, cuSOLVER 12.0.7", or why one cannot be loaded. */
void vptq_cuda_library_describe(vptq_dev *dev, char *text, size_t size);
void vptq_cuda_library_close(vptq_dev *dev);

/* Fails with `st` because a library cannot be loaded. */
static inline vptq_status vptq_cuda_library_missing(vptq_status st, const char *name,
                                                    const char *files, const char *why,
                                                    vptq_err *err)
{
    return vptq_fail(err, st, "the cuda backend needs %s (%s) for this and cannot load it: %s",
                     name, files, why);
}

#endif
