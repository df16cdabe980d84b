/* The ops gemv and library_gemv. A few tokens are multiplied with the rows of the matrix as
 * they are stored, each read once for up to four of them; more tokens use packed panels
 * (batch.c).
 */
#include "lib/backend/cpu/gemv.h"
#include "lib/backend/cpu/blas.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* Largest number of tokens for which the matrix is read as it is: 9 and 12 rows take 0.7 and
 * 0.8 times as long as with panels, 16 as long, 24 and 32 1.2 times (AVX2, float16). */
enum { MAX_STORED_ROWS = 16 };

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
    float sum[VPTQ_GEMV_ROWS * VPTQ_DOT_ROWS];
    (void)thread;
    for (size_t r = begin, rows; r < end; r += rows) {
        rows = end - r < VPTQ_DOT_ROWS ? end - r : VPTQ_DOT_ROWS;
        for (size_t i = 0, n; i < g->n; i += n) {
            n = g->n - i < VPTQ_GEMV_ROWS ? g->n - i : VPTQ_GEMV_ROWS;
            job->kernels->dot(job->type, job->w + r * job->row_bytes, job->row_bytes, rows,
                              job->in, n, g->x + i * g->ldx, g->ldx, sum);
            for (size_t l = 0; l < n; l++)
                for (size_t e = 0; e < rows; e++) {
                    float *y = g->y + (i + l) * g->ldy + r + e;
                    *y = (g->beta != 0 ? *y : 0) +
                         ((g->bias ? g->bias[r + e] : 0) + sum[l * VPTQ_DOT_ROWS + e]);
                }
        }
    }
}

static void pack_rows(const void *arg, const vptq_cpu_math *math, size_t r0, size_t n, size_t l,
                      size_t depth, float *work, float *panels)
{
    const dense_job *job = arg;
    const size_t width = math->tile_cols;
    const uint8_t *w = job->w + r0 * job->row_bytes + l * vptq_dtype_get(job->type)->bytes;
    (void)work;
    for (size_t j = 0; j < n; j += width, panels += depth * width)
        job->kernels->panel(job->type, w + j * job->row_bytes, job->row_bytes,
                            n - j < width ? n - j : width, depth, panels, width);
}

static vptq_status multiply_panels(vptq_dev *dev, const dense_job *job, size_t out,
                                   vptq_err *err)
{
    enum { PANELS = 3 }; /* panels of a piece */
    const vptq_batch_source source = {.pack = pack_rows,
                                      .arg = job,
                                      .out = out,
                                      .in = job->in,
                                      .piece_rows =
                                          PANELS * vptq_cpu_math_get(dev->simd)->tile_cols};
    float *work =
        vptq_dev_scratch(dev, vptq_batch_work(dev, &source, job->g->n), sizeof *work, err);
    if (!work)
        return VPTQ_E_NOMEM;
    vptq_batch_multiply(dev, &source, job->g, NULL, work);
    return VPTQ_OK;
}

vptq_status vptq_cpu_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                          const vptq_gemv_args *g, vptq_err *err)
{
    enum { CHUNK = 1 << 15 /* elements */ };
    dense_job job = {.kernels = vptq_gemv_kernels_get(dev->simd),
                     .g = g,
                     .w = w,
                     .type = type,
                     .in = in,
                     .row_bytes = in * vptq_dtype_get(type)->bytes};
    VPTQ_BUG_IF(type != VPTQ_F32 && type != VPTQ_F16 && type != VPTQ_BF16);
    if (g->n > MAX_STORED_ROWS)
        return multiply_panels(dev, &job, out, err);
    vptq_parallel_for(vptq_cpu_threads(dev, out * in), out, CHUNK / (in + 1) + 1, multiply_rows,
                      &job);
    return VPTQ_OK;
}

/* ---- library_gemv ---- */

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
    const vptq_blas *blas = NULL;
    VPTQ_CHECK(vptq_cpu_blas(dev, &blas, err));
    library_job job = {.blas = blas, .g = g, .w = w, .in = in};
    const int threads = vptq_cpu_threads(dev, out * in);
    vptq_blas_parallel_for(blas, threads, out, (out + (size_t)threads - 1) / (size_t)threads,
                           library_rows, &job);
    return VPTQ_OK;
}
