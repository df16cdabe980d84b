/* The op quad_trace: walks the tiles of the lower triangle of H, each computed by one thread
 * from beginning to end. */
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/double.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* Rows and columns of a tile; its panels stay in a second-level cache. */
enum { TILE = 10 * VPTQ_DOUBLE_STEP };

typedef struct quad_job {
    const vptq_cpu_double *kernels;
    const vptq_quad_trace_args *a;
    vptq_cpu_tiles tiles;
    double *partial; /* per tile */
    double *scratch;
    size_t slice; /* doubles of scratch per thread */
} quad_job;

/* Gathers the columns of a tile of H, all `height` rows of them, into panels; a diagonal tile
 * is filled in above its diagonal. */
static void gather_tile(const quad_job *job, const double *h, bool diagonal, size_t height,
                        size_t width, double *panels)
{
    const size_t step = job->kernels->width, ldh = job->a->ldh;
    memset(panels, 0, height * vptq_round_up(width, step) * sizeof *panels);
    for (size_t j = 0; j < width; j++) {
        double *to = panels + j / step * height * step + j % step;
        for (size_t i = 0; i < height; i++)
            to[i * step] = diagonal && i < j ? h[j * ldh + i] : h[i * ldh + j];
    }
}

static void quad_tile(void *arg, size_t begin, size_t end, int thread)
{
    const quad_job *job = arg;
    const vptq_quad_trace_args *a = job->a;
    (void)end;
    size_t tile_row = 0, tile_col = 0;
    vptq_cpu_lower_tile(begin, &tile_row, &tile_col);
    const bool diagonal = tile_row == tile_col;
    const size_t size = job->tiles.size, i0 = tile_row * size, j0 = tile_col * size;
    const size_t height = vptq_cpu_tile_length(&job->tiles, tile_row);
    const size_t width = vptq_cpu_tile_length(&job->tiles, tile_col);
    const size_t rows = job->kernels->width;
    double *h = job->scratch + (size_t)thread * job->slice;
    double *left = h + size * size, *right = diagonal ? left : left + size * rows;
    double total = 0;

    memset(left, 0, 2 * size * rows * sizeof *left);
    gather_tile(job, a->h + i0 * a->ldh + j0, diagonal, height, width, h);
    for (size_t r = 0; r < a->m; r += rows) {
        double sum[VPTQ_DOUBLE_STEP] = {0};
        const size_t count = a->m - r < rows ? a->m - r : rows;
        job->kernels->gather_f32(count, height, a->e + r * a->lde + i0, a->lde, left);
        if (!diagonal)
            job->kernels->gather_f32(count, width, a->e + r * a->lde + j0, a->lde, right);
        job->kernels->trace(width, height, h, left, right, sum);
        for (size_t i = 0; i < count; i++)
            total -= sum[i];
    }
    job->partial[begin] = diagonal ? total : 2 * total;
}

vptq_status vptq_cpu_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err)
{
    quad_job job = {.kernels = vptq_cpu_double_get(dev->simd),
                    .a = a,
                    .tiles = vptq_cpu_tiles_of(a->n, TILE, VPTQ_DOUBLE_STEP)};
    const size_t size = job.tiles.size, count = job.tiles.count * (job.tiles.count + 1) / 2;
    job.slice = size * (size + 2 * (size_t)VPTQ_DOUBLE_STEP);
    job.scratch = vptq_dev_scratch(dev, (size_t)dev->ctx->threads * job.slice + count,
                                   sizeof *job.scratch, err);
    if (!job.scratch)
        return VPTQ_E_NOMEM;
    job.partial = job.scratch + (size_t)dev->ctx->threads * job.slice;
    vptq_parallel_for(vptq_cpu_threads(dev, a->m * a->n * a->n), count, 1, quad_tile, &job);

    double total = 0;
    for (size_t i = 0; i < count; i++)
        total += job.partial[i];
    *a->trace = total;
    return VPTQ_OK;
}
