/* gemm of the cpu backend, and how the cpu rows cut their work. */
#include <string.h>

#include "lib/backend/backend_cpu.h"
#include "lib/backend/cpu_blas.h"
#include "lib/backend/cpu_math.h"
#include "lib/backend/dev.h"

/* Tiles of C: large enough that OpenBLAS's packing of A and B is a few per cent of the
 * products, small enough that 2048 tokens give every thread of a desktop several of them. */
enum { TILE_M = 256, TILE_N = 768 };

/* Up to so many rows of A the work is reading B once, which OpenBLAS's packing doubles. */
enum { FEW_ROWS = 8, FEW_ROWS_TILE_N = 128 };

enum { TILE_STEP = 16, WORTH_A_THREAD = 1 << 15 };

vptq_cpu_tiles vptq_cpu_tiles_of(size_t n, size_t most)
{
    vptq_cpu_tiles t = {.n = n, .size = TILE_STEP};
    const size_t wanted = (n + most - 1) / most;
    if (wanted) {
        const size_t even = (n + wanted - 1) / wanted;
        t.size = (even + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
    }
    t.count = (n + t.size - 1) / t.size;
    return t;
}

size_t vptq_cpu_tile_length(const vptq_cpu_tiles *t, size_t index)
{
    const size_t left = t->n - index * t->size;
    return left < t->size ? left : t->size;
}

void vptq_cpu_lower_tile(size_t index, size_t *row, size_t *col)
{
    size_t r = 0;
    while (index > r) {
        index -= r + 1;
        r++;
    }
    *row = r;
    *col = index;
}

int vptq_cpu_threads(const vptq_dev *dev, size_t work)
{
    return work < WORTH_A_THREAD ? 1 : dev->threads;
}

/* What the products are added to: C, the bias, their sum or zero. */
static void start_rows(const vptq_gemm_args *g)
{
    for (size_t i = 0; i < g->m; i++) {
        float *c = g->c + i * g->ldc;
        if (g->bias && g->beta != 0)
            for (size_t j = 0; j < g->n; j++)
                c[j] += g->bias[j];
        else if (g->bias)
            memcpy(c, g->bias, g->n * sizeof *c);
        else if (g->beta == 0)
            memset(c, 0, g->n * sizeof *c);
    }
}

void vptq_cpu_gemm_tile(const vptq_dev *dev, const vptq_gemm_args *g)
{
    const bool few = g->m <= FEW_ROWS && !g->trans_a;
    if (g->bias || few)
        start_rows(g);
    if (few) {
        const vptq_cpu_math *math = vptq_cpu_math_get(dev->simd);
        if (g->trans_b)
            math->dots(g->m, g->n, g->k, g->alpha, g->a, g->lda, g->b, g->ldb, g->c, g->ldc);
        else
            math->axpys(g->m, g->n, g->k, g->alpha, g->a, g->lda, g->b, g->ldb, g->c, g->ldc);
        return;
    }
    dev->blas->sgemm(VPTQ_BLAS_ROW_MAJOR, g->trans_a ? VPTQ_BLAS_TRANS : VPTQ_BLAS_NO_TRANS,
                     g->trans_b ? VPTQ_BLAS_TRANS : VPTQ_BLAS_NO_TRANS, (int)g->m, (int)g->n,
                     (int)g->k, g->alpha, g->a, (int)g->lda, g->b, (int)g->ldb,
                     g->bias ? 1 : g->beta, g->c, (int)g->ldc);
}

typedef struct gemm_job {
    const vptq_dev *dev;
    const vptq_gemm_args *g;
    vptq_cpu_tiles rows, cols;
} gemm_job;

static void gemm_tile(void *arg, size_t begin, size_t end, int thread)
{
    const gemm_job *job = arg;
    (void)end; /* chunks of one tile */
    (void)thread;
    /* Neighbours share columns, so that a tile of B stays in the outer cache. */
    const size_t tile_row = begin % job->rows.count, tile_col = begin / job->rows.count;
    const size_t i = tile_row * job->rows.size, j = tile_col * job->cols.size;

    vptq_gemm_args g = *job->g;
    g.m = vptq_cpu_tile_length(&job->rows, tile_row);
    g.n = vptq_cpu_tile_length(&job->cols, tile_col);
    g.a += g.trans_a ? i : i * g.lda;
    g.b += g.trans_b ? j * g.ldb : j;
    g.c += i * g.ldc + j;
    if (g.bias)
        g.bias += j;
    vptq_cpu_gemm_tile(job->dev, &g);
}

vptq_status vptq_cpu_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    (void)err;
    gemm_job job = {.dev = dev, .g = g};
    const bool few = g->m <= FEW_ROWS && !g->trans_a;
    job.rows = vptq_cpu_tiles_of(g->m, TILE_M);
    job.cols = vptq_cpu_tiles_of(g->n, few ? FEW_ROWS_TILE_N : TILE_N);
    vptq_blas_parallel_for(vptq_cpu_threads(dev, g->m * g->n * g->k),
                           job.rows.count * job.cols.count, 1, gemm_tile, &job);
    return VPTQ_OK;
}
