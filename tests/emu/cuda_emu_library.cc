/* Stands in for lib/backend/cuda/library.cu: textbook loops, run as kernels of one thread so
 * that device memory stays closed to the host. */
#include "lib/backend/cuda/library.h"

#include <stdio.h>

static vptq_status has(vptq_status absent, const char *name, vptq_err *err)
{
    if (cuda_emu_has_libraries())
        return VPTQ_OK;
    return vptq_cuda_library_missing(absent, name, "emulated", "it is switched off", err);
}
static vptq_status has_solver(vptq_err *err)
{
    return has(VPTQ_E_DEVICE, "cuSOLVER", err);
}
static vptq_status has_blas(vptq_err *err)
{
    return has(VPTQ_E_UNSUPPORTED, "cuBLAS", err);
}

bool vptq_cuda_library_has_solver(vptq_dev *)
{
    return cuda_emu_has_libraries();
}

/* Like LAPACK, accepts NaN and infinite pivots. */
static void potrf_kernel(size_t n, double *a, size_t lda, int *info)
{
    *info = 0;
    for (size_t j = 0; j < n; j++) {
        double *column = a + j * lda;
        for (size_t i = 0; i <= j; i++) {
            const double *left = a + i * lda;
            double s = column[i];
            for (size_t l = 0; l < i; l++)
                s -= left[l] * column[l];
            column[i] = i < j ? s / left[i] : s;
        }
        if (column[j] <= 0) {
            *info = (int)j + 1;
            return;
        }
        column[j] = sqrt(column[j]);
    }
}

/* Left to right: earlier columns already hold the inverse. */
static void trtri_kernel(size_t n, double *a, size_t lda)
{
    for (size_t j = 0; j < n; j++) {
        double *column = a + j * lda;
        column[j] = 1 / column[j];
        for (size_t l = 0; l < j; l++) {
            const double value = column[l], *done = a + l * lda;
            for (size_t i = 0; i < l; i++)
                column[i] += value * done[i];
            column[l] = value * done[l];
        }
        for (size_t i = 0; i < j; i++)
            column[i] *= -column[j];
    }
}

static void sgemm_kernel(size_t m, size_t n, size_t k, const float *a, size_t lda,
                         const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < m; i++) {
            float sum = 0;
            for (size_t l = 0; l < k; l++)
                sum += a[i * lda + l] * b[j * ldb + l];
            c[j * ldc + i] = sum + (beta != 0 ? beta * c[j * ldc + i] : 0);
        }
}

vptq_status vptq_cuda_library_potrf(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    size_t *info, vptq_err *err)
{
    void *memory = NULL;
    int order = 0;
    vptq_status st = has_solver(err);
    if (!st)
        st = vptq_cuda_scratch(dev, sizeof order, &memory, err);
    if (st)
        return st;
    int *device_order = static_cast<int *>(memory);
    st = vptq_cuda_check(
        port_launch(potrf_kernel, 1, 1, 0, dev->stream, n, a, lda, device_order), "potrf", err);
    if (!st)
        st = vptq_cuda_download(dev, &order, device_order, sizeof order, err);
    *info = (size_t)order;
    return st;
}

vptq_status vptq_cuda_library_trtri(vptq_dev *dev, size_t n, double *a, size_t lda,
                                    vptq_err *err)
{
    const vptq_status st = has_solver(err);
    return st ? st
              : vptq_cuda_check(port_launch(trtri_kernel, 1, 1, 0, dev->stream, n, a, lda),
                                "trtri", err);
}

vptq_status vptq_cuda_library_sgemm(vptq_dev *dev, size_t m, size_t n, size_t k, const float *a,
                                    size_t lda, const float *b, size_t ldb, float beta,
                                    float *c, size_t ldc, vptq_err *err)
{
    const vptq_status st = has_blas(err);
    return st ? st
              : vptq_cuda_check(port_launch(sgemm_kernel, 1, 1, 0, dev->stream, m, n, k, a, lda,
                                            b, ldb, beta, c, ldc),
                                "sgemm", err);
}

vptq_status vptq_cuda_library_sgemv(vptq_dev *dev, size_t m, size_t n, const float *a,
                                    size_t lda, const float *x, float beta, float *y,
                                    vptq_err *err)
{
    return vptq_cuda_library_sgemm(dev, n, 1, m, a, lda, x, m, beta, y, n, err);
}

static void half_kernel(vptq_half_args a)
{
    const auto value = [](uint16_t bits) { return __half2float(__ushort_as_half(bits)); };
    for (size_t i = 0; i < a.n; i++)
        for (size_t j = 0; j < a.out; j++) {
            float sum = 0;
            for (size_t l = 0; l < a.in; l++)
                sum += value(a.w[j * a.in + l]) * value(a.x[i * a.in + l]);
            a.y[i * a.out + j] = __half_as_ushort(__float2half_rn(sum));
        }
}

/* Offers two ways of cuBLASLt, which are the same. */
vptq_status vptq_cuda_library_half(vptq_dev *dev, const vptq_half_args *a, vptq_err *err)
{
    const vptq_status st = has_blas(err);
    if (!st && a->way > 2)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "cuBLASLt offers 2 ways for this product");
    return st ? st
              : vptq_cuda_check(port_launch(half_kernel, 1, 1, 0, dev->stream, *a),
                                "library_half", err);
}

void vptq_cuda_library_describe(vptq_dev *, char *text, size_t size)
{
    vptq_err err;
    snprintf(text, size, "%s",
             has_solver(&err) ? err.text : "emulated cuBLAS, emulated cuSOLVER");
}

void vptq_cuda_library_close(vptq_dev *) {}
