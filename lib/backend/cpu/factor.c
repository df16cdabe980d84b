/* The ops potrf and trtri. Both are blocked: LAPACK on the diagonal blocks, matrix products on
 * tiles for the rest. Blocks and tiles depend on n only. */
#include <math.h>

#include "lib/backend/cpu/blas.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

/* BLOCK: rows and columns of a diagonal block, factored by one thread while the others wait;
 * TILE: rows (potrf) or columns (trtri) of a task. */
enum { BLOCK = 128, TILE = 256 };

typedef struct factor_job {
    const vptq_blas *blas;
    double *a;
    size_t n, lda;
    size_t at, width; /* the current block: rows and columns [at, at + width) */
    size_t good;      /* potrf: leading pivots of the block that are positive numbers */
    double *panel;    /* trtri: [width, at], rows of `ld_panel` */
    size_t ld_panel;
} factor_job;

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- potrf: left-looking, one block column after the other ---- */

/* Subtracts the products of the columns to the left from rows [i, i + rows) of the block
 * column. */
static void subtract_products(const factor_job *job, size_t i, size_t rows)
{
    const double *left = job->a + i * job->lda, *block = job->a + job->at * job->lda;
    double *c = job->a + i * job->lda + job->at;
    if (i == job->at)
        job->blas->dsyrk(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_LOWER, VPTQ_BLAS_NO_TRANS, (int)rows,
                         (int)job->at, -1, block, (int)job->lda, 1, c, (int)job->lda);
    else
        job->blas->dgemm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_NO_TRANS, VPTQ_BLAS_TRANS, (int)rows,
                         (int)job->width, (int)job->at, -1, left, (int)job->lda, block,
                         (int)job->lda, 1, c, (int)job->lda);
}

/* Task 0 is the diagonal block, task t the t-th tile of rows below it. */
static void potrf_update(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    (void)end;
    (void)thread;
    if (begin == 0) {
        subtract_products(job, job->at, job->width);
        return;
    }
    const size_t i = job->at + job->width + (begin - 1) * TILE;
    subtract_products(job, i, min_size(TILE, job->n - i));
}

static void potrf_solve(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    (void)thread;
    const double *diagonal = job->a + job->at * job->lda + job->at;
    double *rows = job->a + (job->at + job->width + begin) * job->lda + job->at;
    job->blas->dtrsm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_RIGHT, VPTQ_BLAS_LOWER, VPTQ_BLAS_TRANS,
                     VPTQ_BLAS_NON_UNIT, (int)(end - begin), (int)job->width, 1, diagonal,
                     (int)job->lda, rows, (int)job->lda);
}

/* Factors the diagonal block. Checks the pivots because LAPACK accepts NaN. */
static void potrf_diagonal(void *arg, size_t begin, size_t end, int thread)
{
    factor_job *job = arg;
    (void)begin;
    (void)end;
    (void)thread;
    double *diagonal = job->a + job->at * job->lda + job->at;
    const int n = (int)job->width, ld = (int)job->lda;
    int info = 0;
    job->blas->dpotrf("U", &n, diagonal, &ld, &info); /* "U": column-major */
    const size_t factored = info > 0 ? (size_t)info - 1 : job->width;
    for (job->good = 0; job->good < factored; job->good++) {
        const double pivot = diagonal[job->good * job->lda + job->good];
        if (!(pivot > 0) || isinf(pivot))
            return;
    }
}

vptq_status vptq_cpu_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                           vptq_err *err)
{
    const vptq_blas *blas = NULL;
    VPTQ_CHECK(vptq_cpu_blas(dev, &blas, err));
    if (!blas)
        return vptq_ref_potrf(dev, n, a, lda, bad_pivot, err);

    factor_job job = {.blas = blas, .a = a, .n = n, .lda = lda};
    const int threads = vptq_cpu_threads(dev, n * n);

    for (; job.at < n; job.at += BLOCK) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        job.width = min_size(BLOCK, n - job.at);
        const size_t below = n - job.at - job.width;
        if (job.at)
            vptq_blas_parallel_for(blas, threads, 1 + (below + TILE - 1) / TILE, 1,
                                   potrf_update, &job);
        vptq_blas_parallel_for(blas, 1, 1, 1, potrf_diagonal, &job);
        if (job.good < job.width) {
            if (bad_pivot)
                *bad_pivot = job.at + job.good;
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "matrix is not positive definite: pivot %zu of %zu is not a "
                             "positive number",
                             job.at + job.good, n);
        }
        vptq_blas_parallel_for(blas, threads, below, TILE, potrf_solve, &job);
    }
    return VPTQ_OK;
}

/* ---- trtri: block rows from the top, X[i, :] = -X[i, i] L[i, :] X[0 .. i) ---- */

static void trtri_diagonal(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    (void)thread;
    const int n = (int)(end - begin), ld = (int)job->lda;
    int info = 0; /* the caller has excluded zeros on the diagonal */
    job->blas->dtrtri("U", "N", &n, job->a + begin * job->lda + begin, &ld, &info);
}

/* panel = -X[i, i] L[i, begin .. end) */
static void trtri_panel(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    (void)thread;
    const double *row = job->a + job->at * job->lda;
    for (size_t r = 0; r < job->width; r++)
        for (size_t j = begin; j < end; j++)
            job->panel[r * job->ld_panel + j] = row[r * job->lda + j];
    job->blas->dtrmm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_LEFT, VPTQ_BLAS_LOWER, VPTQ_BLAS_NO_TRANS,
                     VPTQ_BLAS_NON_UNIT, (int)job->width, (int)(end - begin), -1, row + job->at,
                     (int)job->lda, job->panel + begin, (int)job->ld_panel);
}

/* Columns [begin, end) of the block row: the panel times the triangle above, of which these
 * columns are triangular at the top and full below. */
static void trtri_columns(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    (void)thread;
    const double *above = job->a + begin * job->lda + begin;
    double *row = job->a + job->at * job->lda + begin;
    const size_t width = end - begin;
    for (size_t r = 0; r < job->width; r++)
        for (size_t j = 0; j < width; j++)
            row[r * job->lda + j] = job->panel[r * job->ld_panel + begin + j];
    job->blas->dtrmm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_RIGHT, VPTQ_BLAS_LOWER, VPTQ_BLAS_NO_TRANS,
                     VPTQ_BLAS_NON_UNIT, (int)job->width, (int)width, 1, above, (int)job->lda,
                     row, (int)job->lda);
    if (end < job->at)
        job->blas->dgemm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_NO_TRANS, VPTQ_BLAS_NO_TRANS,
                         (int)job->width, (int)width, (int)(job->at - end), 1, job->panel + end,
                         (int)job->ld_panel, above + width * job->lda, (int)job->lda, 1, row,
                         (int)job->lda);
}

vptq_status vptq_cpu_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    const vptq_blas *blas = NULL;
    VPTQ_CHECK(vptq_cpu_blas(dev, &blas, err));
    if (!blas)
        return vptq_ref_trtri(dev, n, a, lda, err);
    for (size_t i = 0; i < n; i++)
        if (a[i * lda + i] == 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "triangular matrix is singular: diagonal %zu of %zu is 0", i, n);

    factor_job job = {.blas = blas, .a = a, .n = n, .lda = lda, .ld_panel = n};
    const int threads = vptq_cpu_threads(dev, n * n);
    job.panel = vptq_dev_scratch(dev, BLOCK * n, sizeof *job.panel, err);
    if (!job.panel)
        return VPTQ_E_NOMEM;
    vptq_blas_parallel_for(blas, threads, n, BLOCK, trtri_diagonal, &job);
    for (job.at = BLOCK; job.at < n; job.at += BLOCK) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        job.width = min_size(BLOCK, n - job.at);
        vptq_blas_parallel_for(blas, threads, job.at, TILE, trtri_panel, &job);
        vptq_blas_parallel_for(blas, threads, job.at, TILE, trtri_columns, &job);
    }
    return VPTQ_OK;
}
