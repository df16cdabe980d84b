/* The ops potrf and trtri. Both are right-looking: one block of rows and columns after the
 * other is solved into panels (double.h), whose products are then subtracted from everything
 * below. An element is one chain over the columns to its left (docs/numerics.md). */
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/double.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* BLOCK: rows and columns of a block; a panel of that depth fits half of a first-level cache.
 * TILE: rows and columns of a task. */
enum { BLOCK = 5 * VPTQ_DOUBLE_STEP, TILE = 4 * VPTQ_DOUBLE_STEP };

typedef struct factor_job {
    const vptq_cpu_double *kernels;
    double *a;
    size_t n, lda;
    size_t at, width;  /* the current block: rows and columns [at, at + width) */
    size_t below;      /* the first row below it */
    double *inverse;   /* [BLOCK], reciprocals of its diagonal */
    double *triangle;  /* its rows, in panels of depth BLOCK like the next two */
    double *left;      /* the rows below it, in these columns */
    double *right;     /* potrf: the same; trtri: columns [0, below) of its rows */
    size_t first_col;  /* of `right` */
    size_t col_panels; /* trtri: panels of `right` */
    size_t col_tiles;  /* trtri: tiles [TILE, TILE] in a row of them */
} factor_job;

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* Vector i of panels of depth BLOCK. */
static double *vector_at(const factor_job *job, double *panels, size_t i)
{
    const size_t width = job->kernels->width;
    return panels + i / width * BLOCK * width + i % width;
}

/* Takes memory for all panels of a block: n vectors, the last panels rounded up. */
static vptq_status take_panels(factor_job *job, vptq_dev *dev, vptq_err *err)
{
    const size_t vectors = BLOCK + job->n + 2 * job->kernels->width;
    job->triangle = vptq_dev_scratch(dev, (vectors + 1) * BLOCK, sizeof *job->triangle, err);
    if (!job->triangle)
        return VPTQ_E_NOMEM;
    job->left = job->triangle + (size_t)BLOCK * BLOCK;
    job->inverse = job->triangle + vectors * BLOCK;
    return VPTQ_OK;
}

static void start_block(factor_job *job, size_t at)
{
    job->at = at;
    job->width = min_size(BLOCK, job->n - at);
    job->below = at + job->width;
}

/* Gathers rows [row, row + panel width) of the block up to its diagonal, returns their panel.
 */
static double *gather_triangle(const factor_job *job, size_t row)
{
    const size_t width = job->kernels->width, count = min_size(width, job->width - row);
    const double *a = job->a + (job->at + row) * job->lda + job->at;
    double *panel = vector_at(job, job->triangle, row);
    job->kernels->gather(count, row, a, job->lda, panel);
    memset(panel + row * width, 0, width * width * sizeof *panel);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j <= i; j++)
            panel[(row + j) * width + i] = a[i * job->lda + row + j];
    return panel;
}

/* ---- products ---- */

/* Subtracts from a block of the matrix that is partly outside of it: element (i, j) is inside
 * for i < rows, j < cols and j <= i + diagonal. */
static void subtract_part(const factor_job *job, const double *left, const double *right,
                          double *c, size_t rows, size_t cols, size_t diagonal)
{
    enum { MAX_ROWS = 8 };
    const size_t width = job->kernels->width;
    double copy[MAX_ROWS * VPTQ_DOUBLE_STEP] = {0};
    for (size_t i = 0; i < rows; i++)
        memcpy(copy + i * width, c + i * job->lda,
               min_size(cols, i + diagonal + 1) * sizeof *copy);
    job->kernels->subtract(BLOCK, left, right, copy, width, copy);
    for (size_t i = 0; i < rows; i++)
        memcpy(c + i * job->lda, copy + i * width,
               min_size(cols, i + diagonal + 1) * sizeof *copy);
}

/* Subtracts the products of panels from the lower triangle in [row, row + TILE) and [col, col +
 * TILE) of the matrix, at most to column col_end. */
static void subtract_tile(const factor_job *job, size_t row, size_t col, size_t col_end)
{
    const size_t height = job->kernels->rows, width = job->kernels->width;
    const size_t row_end = min_size(row + TILE, job->n);
    col_end = min_size(col + TILE, col_end);
    for (size_t j = col; j < col_end; j += width)
        for (size_t i = row; i < row_end; i += height) {
            const double *left = vector_at(job, job->left, i - job->below);
            const double *right = vector_at(job, job->right, j - job->first_col);
            const size_t rows = min_size(height, row_end - i);
            const size_t cols = min_size(width, col_end - j);
            double *c = job->a + i * job->lda + j;
            const double *next = i + height < row_end ? c + height * job->lda : c;
            if (i < j)
                continue; /* above the diagonal */
            if (rows == height && cols == width && i + 1 >= j + width)
                job->kernels->subtract(BLOCK, left, right, c, job->lda, next);
            else
                subtract_part(job, left, right, c, rows, cols, i - j);
        }
}

/* ---- potrf ---- */

/* Factors the block, panel by panel; returns the number of its good pivots. */
static size_t factor_block(const factor_job *job)
{
    const vptq_cpu_double *kernels = job->kernels;
    const size_t width = kernels->width;
    for (size_t row = 0; row < job->width; row += width) {
        const size_t count = min_size(width, job->width - row);
        double *panel = gather_triangle(job, row), *block = panel + row * width;
        double *a = job->a + (job->at + row) * job->lda + job->at;
        kernels->solve(row, job->triangle, BLOCK, job->inverse, panel);
        for (size_t i = 0; i < width; i += kernels->rows)
            kernels->subtract(row, panel + i, panel, block + i * width, width, block);
        const size_t good = kernels->factor(count, block, job->inverse + row);
        if (good < count)
            return row + good;
        kernels->scatter(count, row, panel, a, job->lda);
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j <= i; j++)
                a[i * job->lda + row + j] = block[j * width + i];
    }
    return job->width;
}

/* Rows [begin, end) below the block, one panel. */
static void potrf_solve(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    (void)thread;
    double *a = job->a + (job->below + begin) * job->lda + job->at;
    double *panel = vector_at(job, job->left, begin);
    job->kernels->gather(end - begin, BLOCK, a, job->lda, panel);
    job->kernels->solve(BLOCK, job->triangle, BLOCK, job->inverse, panel);
    job->kernels->scatter(end - begin, BLOCK, panel, a, job->lda);
}

static void potrf_update(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    size_t row = 0, col = 0;
    (void)end;
    (void)thread;
    vptq_cpu_lower_tile(begin, &row, &col);
    subtract_tile(job, job->below + row * TILE, job->below + col * TILE, job->n);
}

vptq_status vptq_cpu_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                           vptq_err *err)
{
    const int threads = vptq_cpu_threads(dev, n * n);
    factor_job job = {.kernels = vptq_cpu_double_get(dev->simd), .a = a, .n = n, .lda = lda};
    VPTQ_CHECK(take_panels(&job, dev, err));
    job.right = job.left;
    for (size_t at = 0; at < n; at += BLOCK) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        start_block(&job, at);
        job.first_col = job.below;
        const size_t good = factor_block(&job), tiles = ceil_div(n - job.below, TILE);
        if (good < job.width) {
            if (bad_pivot)
                *bad_pivot = at + good;
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "matrix is not positive definite: pivot %zu of %zu is not a "
                             "positive number",
                             at + good, n);
        }
        vptq_parallel_for(threads, n - job.below, job.kernels->width, potrf_solve, &job);
        vptq_parallel_for(threads, tiles * (tiles + 1) / 2, 1, potrf_update, &job);
    }
    return VPTQ_OK;
}

/* ---- trtri: X = L^-1; below the current block are the sums that X is solved from ---- */

/* Columns of a panel of X: the sums of the block's rows, or the identity in its own columns. */
static void trtri_solve(const factor_job *job, size_t col)
{
    const size_t width = job->kernels->width, cols = min_size(width, job->below - col);
    double *a = job->a + job->at * job->lda + col, *panel = vector_at(job, job->right, col);
    memset(panel, 0, BLOCK * width * sizeof *panel);
    for (size_t i = 0; i < job->width; i++) {
        if (col < job->at)
            memcpy(panel + i * width, a + i * job->lda, cols * sizeof *a);
        else if (job->at + i - col < width)
            panel[i * width + job->at + i - col] = 1;
    }
    job->kernels->solve(BLOCK, job->triangle, BLOCK, job->inverse, panel);
    for (size_t i = 0; i < job->width; i++) {
        const size_t known = job->at + i + 1; /* columns up to the diagonal */
        if (known > col)
            memcpy(a + i * job->lda, panel + i * width,
                   min_size(cols, known - col) * sizeof *a);
    }
}

/* Gathers a panel of rows below the block, and starts the sums of their columns at 0. */
static void trtri_gather(const factor_job *job, size_t row)
{
    const size_t count = min_size(job->kernels->width, job->n - job->below - row);
    double *a = job->a + (job->below + row) * job->lda + job->at;
    job->kernels->gather(count, BLOCK, a, job->lda, vector_at(job, job->left, row));
    for (size_t i = 0; i < count; i++)
        memset(a + i * job->lda, 0, BLOCK * sizeof *a);
}

static void trtri_panel(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    const size_t width = job->kernels->width;
    (void)end;
    (void)thread;
    if (begin < job->col_panels)
        trtri_solve(job, begin * width);
    else
        trtri_gather(job, (begin - job->col_panels) * width);
}

static void trtri_update(void *arg, size_t begin, size_t end, int thread)
{
    const factor_job *job = arg;
    (void)end;
    (void)thread;
    subtract_tile(job, job->below + begin / job->col_tiles * TILE,
                  begin % job->col_tiles * TILE, job->below);
}

vptq_status vptq_cpu_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (a[i * lda + i] == 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "triangular matrix is singular: diagonal %zu of %zu is 0", i, n);

    const int threads = vptq_cpu_threads(dev, n * n);
    factor_job job = {.kernels = vptq_cpu_double_get(dev->simd), .a = a, .n = n, .lda = lda};
    const size_t width = job.kernels->width;
    VPTQ_CHECK(take_panels(&job, dev, err));
    for (size_t at = 0; at < n; at += BLOCK) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        start_block(&job, at);
        memset(job.triangle, 0, (size_t)BLOCK * BLOCK * sizeof *job.triangle);
        for (size_t row = 0; row < job.width; row += width)
            gather_triangle(&job, row);
        for (size_t i = 0; i < BLOCK; i++)
            job.inverse[i] = i < job.width ? 1 / a[(at + i) * lda + at + i] : 0;
        job.col_panels = ceil_div(job.below, width);
        job.col_tiles = ceil_div(job.below, TILE);
        job.right = job.left + ceil_div(n - job.below, width) * width * BLOCK;
        vptq_parallel_for(threads, job.col_panels + ceil_div(n - job.below, width), 1,
                          trtri_panel, &job);
        vptq_parallel_for(threads, ceil_div(n - job.below, TILE) * job.col_tiles, 1,
                          trtri_update, &job);
    }
    return VPTQ_OK;
}
