/* The row gemv: rows of the matrix as they are stored, each read once for up to four rows of x.
 */
#include "lib/backend/cpu_gemv.h"
#include "lib/backend/cpu_blas.h"
#include "lib/backend/cpu_gemm.h"
#include "lib/backend/cpu_vq.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

typedef struct dense_job {
    const vptq_gemv_kernels *kernels;
    const vptq_gemv_args *g;
    const uint8_t *w;
    vptq_dtype type;
    size_t in, row_bytes;
} dense_job;

static void multiply_rows(void *arg, size_t begin, size_t end, int thread)
{
    const dense_job *job = arg;
    const vptq_gemv_args *g = job->g;
    float sum[VPTQ_GEMV_ROWS];
    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t i = 0, n; i < g->n; i += n) {
            n = g->n - i < VPTQ_GEMV_ROWS ? g->n - i : VPTQ_GEMV_ROWS;
            job->kernels->dot(job->type, job->w + r * job->row_bytes, job->in, n,
                              g->x + i * g->ldx, g->ldx, sum);
            for (size_t l = 0; l < n; l++) {
                float *y = g->y + (i + l) * g->ldy + r;
                *y = (g->beta != 0 ? *y : 0) + ((g->bias ? g->bias[r] : 0) + sum[l]);
            }
        }
}

vptq_status vptq_cpu_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                          const vptq_gemv_args *g, vptq_err *err)
{
    enum { CHUNK = 1 << 15 }; /* elements */
    dense_job job = {.kernels = vptq_gemv_kernels_get(dev->simd),
                     .g = g,
                     .w = w,
                     .type = type,
                     .in = in,
                     .row_bytes = in * vptq_dtype_get(type)->bytes};
    (void)err;
    VPTQ_BUG_IF(type != VPTQ_F32 && type != VPTQ_F16 && type != VPTQ_BF16);
    vptq_parallel_for(vptq_cpu_threads(dev, out * in), out, CHUNK / (in + 1) + 1, multiply_rows,
                      &job);
    return VPTQ_OK;
}

/* ---- the library's ---- */

typedef struct library_job {
    const vptq_blas *blas;
    const vptq_gemv_args *g;
    const float *w;
    size_t in;
} library_job;

static void library_rows(void *arg, size_t begin, size_t end, int thread)
{
    const library_job *job = arg;
    const vptq_gemv_args *g = job->g;
    const float *w = job->w + begin * job->in;
    const int rows = (int)(end - begin), in = (int)job->in, n = (int)g->n;
    (void)thread;
    for (size_t i = 0; g->bias && i < g->n; i++)
        for (size_t r = begin; r < end; r++) {
            float *y = g->y + i * g->ldy + r;
            *y = (g->beta != 0 ? *y : 0) + g->bias[r];
        }
    const float beta = g->bias ? 1 : g->beta;
    if (n == 1)
        job->blas->sgemv(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_NO_TRANS, rows, in, 1, w, in, g->x, 1,
                         beta, g->y + begin, 1);
    else
        job->blas->sgemm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_NO_TRANS, VPTQ_BLAS_TRANS, n, rows, in,
                         1, g->x, (int)g->ldx, w, in, beta, g->y + begin, (int)g->ldy);
}

vptq_status vptq_cpu_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                  const vptq_gemv_args *g, vptq_err *err)
{
    library_job job = {.blas = dev->blas, .g = g, .w = w, .in = in};
    const int threads = vptq_cpu_threads(dev, out * in);
    (void)err;
    vptq_blas_parallel_for(threads, out, (out + (size_t)threads - 1) / (size_t)threads,
                           library_rows, &job);
    return VPTQ_OK;
}
