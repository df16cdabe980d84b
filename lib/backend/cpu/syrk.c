/* The op syrk_add: walks the tiles of the lower triangle, each computed by one thread from
 * beginning to end. */
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/math.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    TILE = 256,
    STEP = 32,   /* whole panels */
    TOKENS = 256 /* largest number of float products that are summed before they are added in
                    double */
};

typedef struct syrk_job {
    const vptq_cpu_math *math;
    const vptq_syrk_args *a;
    vptq_cpu_tiles tiles;
    float *scratch;
    size_t slice; /* floats of scratch per thread */
} syrk_job;

static void add_sums(const syrk_job *job, size_t i0, size_t width)
{
    const vptq_syrk_args *a = job->a;
    for (size_t s = 0; s < a->tokens; s++) {
        const float *x = a->x + s * a->ldx + i0;
        double *sum = a->sum + i0;
        if (!a->w) {
            job->math->add_double(x, sum, width);
            continue;
        }
        const double w = (double)a->w[s];
        for (size_t i = 0; i < width; i++)
            sum[i] += w * (double)x[i];
    }
}

static void syrk_tile(void *arg, size_t begin, size_t end, int thread)
{
    const syrk_job *job = arg;
    const vptq_syrk_args *a = job->a;
    (void)end;
    size_t tile_row = 0, tile_col = 0;
    vptq_cpu_lower_tile(begin, &tile_row, &tile_col);
    const size_t size = job->tiles.size, i0 = tile_row * size, j0 = tile_col * size;
    const size_t height = vptq_cpu_tile_length(&job->tiles, tile_row);
    const size_t width = vptq_cpu_tile_length(&job->tiles, tile_col);
    float *product = job->scratch + (size_t)thread * job->slice;
    float *work = product + size * size;
    float *weighted = work + vptq_cpu_gemm_work(job->math, size, TOKENS);

    if (tile_row == tile_col)
        add_sums(job, i0, height);
    for (size_t s = 0; s < a->tokens; s += TOKENS) {
        const size_t count = a->tokens - s < TOKENS ? a->tokens - s : TOKENS;
        const float *left = a->x + s * a->ldx + i0;
        size_t ld_left = a->ldx;
        if (a->w) {
            for (size_t l = 0; l < count; l++)
                for (size_t i = 0; i < height; i++)
                    weighted[l * size + i] = a->w[s + l] * left[l * a->ldx + i];
            left = weighted;
            ld_left = size;
        }
        const vptq_gemm_args g = {.m = height,
                                  .n = width,
                                  .k = count,
                                  .a = left,
                                  .lda = ld_left,
                                  .trans_a = true,
                                  .b = a->x + s * a->ldx + j0,
                                  .ldb = a->ldx,
                                  .c = product,
                                  .ldc = size,
                                  .alpha = 1};
        vptq_cpu_gemm_serial(job->math, &g, work);
        for (size_t i = 0; i < height; i++)
            job->math->add_double(product + i * size, a->h + (i0 + i) * a->n + j0,
                                  tile_row == tile_col ? i + 1 : width);
    }
}

vptq_status vptq_cpu_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err)
{
    syrk_job job = {.math = vptq_cpu_math_get(dev->simd),
                    .a = a,
                    .tiles = vptq_cpu_tiles_of(a->n, TILE, STEP)};
    const size_t size = job.tiles.size;
    job.slice = size * (size + (a->w ? (size_t)TOKENS : 0)) +
                vptq_cpu_gemm_work(job.math, size, TOKENS);
    job.scratch =
        vptq_dev_scratch(dev, (size_t)dev->ctx->threads * job.slice, sizeof *job.scratch, err);
    if (!job.scratch)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(vptq_cpu_threads(dev, a->tokens * a->n * a->n),
                      job.tiles.count * (job.tiles.count + 1) / 2, 1, syrk_tile, &job);
    return VPTQ_OK;
}
