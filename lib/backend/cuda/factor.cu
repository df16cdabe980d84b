/* potrf and trtri in double, by cuSOLVER or without it (factor_own.h), with a check of the
 * diagonal because the library does not report NaN. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/cuda/factor_own.h"
#include "lib/backend/cuda/library.h"

enum { THREADS = 256 };

enum diagonal_fault { NOT_POSITIVE, ZERO };

/* Lowers *first to the index of a faulty diagonal element. */
/* budget: diagonal_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS)
    diagonal_kernel(size_t n, const double *a, size_t lda, diagonal_fault fault,
                    unsigned *first)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const double d = a[i * lda + i];
    /* Infinite and NaN pivots would only spread. */
    if (fault == ZERO ? d == 0 : !(d > 0) || isinf(d))
        atomicMin(first, (unsigned)i);
}

/* Sets *first to the lowest index below n of a faulty diagonal element, or to n. */
static vptq_status first_fault(vptq_dev *dev, size_t n, const double *a, size_t lda,
                               diagonal_fault fault, size_t *first, vptq_err *err)
{
    void *memory = NULL;
    unsigned found = 0;
    *first = n;
    if (!n)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_scratch(dev, sizeof found, &memory, err));
    unsigned *at = static_cast<unsigned *>(memory);
    cudaError_t e = cudaMemsetAsync(at, 0xff, sizeof *at, dev->stream);
    if (!e)
        e = port_launch(diagonal_kernel, vptq_cuda_blocks(n, THREADS), THREADS, 0, dev->stream,
                        n, a, lda, fault, at);
    if (e)
        return vptq_cuda_check(e, "checking a diagonal", err);
    VPTQ_CHECK(vptq_cuda_download(dev, &found, at, sizeof found, err));
    *first = found < n ? found : n;
    return VPTQ_OK;
}

/* Sets *own if the library is missing or VPTQ_CUDA_FACTOR=own forces the kernels of
 * factor_own.h, for tests and measurements. */
static vptq_status choose(vptq_dev *dev, bool *own, vptq_err *err)
{
    const char *forced = getenv("VPTQ_CUDA_FACTOR");
    if (forced && strcmp(forced, "own") != 0)
        return vptq_fail(err, VPTQ_E_ARG, "VPTQ_CUDA_FACTOR is '%.50s', expected 'own'",
                         forced);
    *own = forced || !vptq_cuda_library_has_solver(dev);
    return VPTQ_OK;
}

vptq_status vptq_cuda_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                            vptq_err *err)
{
    size_t info = 0, first = 0;
    bool own = false;
    if (!n)
        return VPTQ_OK;
    VPTQ_CHECK(choose(dev, &own, err));
    const auto factor = own ? vptq_cuda_own_potrf : vptq_cuda_library_potrf;
    VPTQ_CHECK(factor(dev, n, a, lda, &info, err));
    VPTQ_CHECK(first_fault(dev, info ? info - 1 : n, a, lda, NOT_POSITIVE, &first, err));
    if (first == n)
        return VPTQ_OK;
    if (bad_pivot)
        *bad_pivot = first;
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "matrix is not positive definite: pivot %zu of %zu is not a positive "
                     "number",
                     first, n);
}

vptq_status vptq_cuda_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    size_t first = 0;
    bool own = false;
    if (!n)
        return VPTQ_OK;
    VPTQ_CHECK(choose(dev, &own, err));
    VPTQ_CHECK(first_fault(dev, n, a, lda, ZERO, &first, err));
    if (first < n)
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "triangular matrix is singular: diagonal %zu of %zu is 0", first, n);
    return (own ? vptq_cuda_own_trtri : vptq_cuda_library_trtri)(dev, n, a, lda, err);
}
