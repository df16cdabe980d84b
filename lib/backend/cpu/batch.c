/* Products of many tokens with a stored matrix: pieces of the matrix become packed panels in
 * the memory of a thread, where they are multiplied with all tokens. */
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/gemv.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum { DEPTH_STEP = 8, LINE = 16 /* floats of a cache line */ };

typedef struct batch_job {
    const vptq_cpu_math *math;
    const vptq_batch_source *source;
    const vptq_gemv_args *g;
    const float *start;
    vptq_cpu_tiles depths;
    size_t blocks; /* blocks of tile_rows tokens */
    float *x;      /* packed: for every depth, block after block [depth, tile_rows] */
    float *scratch;
    size_t slice;
} batch_job;

static size_t block_at(const batch_job *job, size_t column, size_t depth, size_t block)
{
    return (column * job->blocks + block * depth) * job->math->tile_rows;
}

static void pack_x(void *arg, size_t begin, size_t end, int thread)
{
    const batch_job *job = arg;
    const vptq_gemv_args *g = job->g;
    const size_t height = job->math->tile_rows;
    (void)thread;
    for (size_t t = 0; t < job->depths.count; t++) {
        const size_t l = t * job->depths.size, depth = vptq_cpu_tile_length(&job->depths, t);
        for (size_t b = begin; b < end; b++) {
            const size_t i = b * height, rows = g->n - i < height ? g->n - i : height;
            vptq_cpu_pack_left(job->math, rows, depth, g->x + i * g->ldx + l, g->ldx, false, 1,
                               job->x + block_at(job, l, depth, b));
        }
    }
}

static void multiply_piece(void *arg, size_t begin, size_t end, int thread)
{
    const batch_job *job = arg;
    const vptq_gemv_args *g = job->g;
    const vptq_batch_source *s = job->source;
    const size_t width = job->math->tile_cols, height = job->math->tile_rows;
    float *work = job->scratch + (size_t)thread * job->slice;
    float *panels = work + s->work_rows * VPTQ_BATCH_DEPTH;
    (void)end;
    const size_t r0 = begin * s->piece_rows;
    const size_t n = s->out - r0 < s->piece_rows ? s->out - r0 : s->piece_rows;
    const bool begun = g->bias || job->start || g->beta != 0;
    for (size_t i = 0; (g->bias || job->start) && i < g->n; i++)
        vptq_gemv_start(g, i, job->start ? job->start[i] : 0, r0, n);
    for (size_t t = 0; t < job->depths.count; t++) {
        const size_t l = t * job->depths.size, depth = vptq_cpu_tile_length(&job->depths, t);
        s->pack(s->arg, job->math, r0, n, l, depth, work, panels);
        for (size_t b = 0; b < job->blocks; b++) {
            const size_t i = b * height, rows = g->n - i < height ? g->n - i : height;
            const float *x = job->x + block_at(job, l, depth, b);
            for (size_t j = 0; j < n; j += width)
                job->math->tile(depth, x, panels + j * depth, begun || t > 0,
                                g->y + i * g->ldy + r0 + j, g->ldy, rows,
                                n - j < width ? n - j : width);
        }
    }
}

static batch_job batch_job_of(const vptq_dev *dev, const vptq_batch_source *source, size_t n)
{
    const vptq_cpu_math *math = vptq_cpu_math_get(dev->simd);
    const size_t width = math->tile_cols;
    const size_t columns = (source->piece_rows + width - 1) / width * width;
    return (batch_job){
        .math = math,
        .source = source,
        .depths = vptq_cpu_tiles_of(source->in, VPTQ_BATCH_DEPTH, DEPTH_STEP),
        .blocks = (n + math->tile_rows - 1) / math->tile_rows,
        .slice = vptq_round_up((source->work_rows + columns) * VPTQ_BATCH_DEPTH, LINE)};
}

static size_t packed_x(const batch_job *job)
{
    return vptq_round_up(job->blocks * job->math->tile_rows * job->source->in, LINE);
}

size_t vptq_batch_work(const vptq_dev *dev, const vptq_batch_source *source, size_t n)
{
    const batch_job job = batch_job_of(dev, source, n);
    return packed_x(&job) + (size_t)dev->ctx->threads * job.slice;
}

void vptq_batch_multiply(vptq_dev *dev, const vptq_batch_source *source,
                         const vptq_gemv_args *g, const float *start, float *work)
{
    batch_job job = batch_job_of(dev, source, g->n);
    job.g = g;
    job.start = start;
    job.x = work;
    job.scratch = work + packed_x(&job);
    const int threads = vptq_cpu_threads(dev, g->n * source->out * source->in);
    vptq_parallel_for(threads, job.blocks, 1, pack_x, &job);
    vptq_parallel_for(threads, (source->out + source->piece_rows - 1) / source->piece_rows, 1,
                      multiply_piece, &job);
}
