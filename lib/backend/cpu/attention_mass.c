/* The op attention_mass: squared attention that each position receives.  As in attention.c, the
 * query heads of a kv head are stacked, row = query * group + head in group, in panels of
 * tile_cols rows, and scores exist for one tile of keys and one panel at a time.  Each kv head
 * takes two passes:
 *
 *     by panels   max and sum of each row's softmax, tile after tile
 *     by tiles    S^T again, P = exp(S - max) / sum, mass[key] += sum over the panel of P^2
 *
 * One thread owns the keys of a tile and adds the panels in order, so that results do not
 * depend on the number of threads.  Memory is that of the queries and keys of one kv head. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/attention.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/math.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    KEYS = 84, /* keys of a tile: whole row blocks of 14, 6 and 4; small, so that all threads
                  have work for a short window */
    ROWS = 16, /* whose squares are added at a time: tile_cols is a multiple at every level */
    LINE = 16  /* floats of a cache line */
};

typedef struct mass_job {
    const vptq_cpu_math *math;
    const vptq_attention_args *a;
    size_t group, rows, panels, tiles, kv;
    float *queries;   /* [panels][head_dim, width], scaled */
    float *keys;      /* [tiles][key blocks][head_dim, tile_rows] */
    float *max, *sum; /* [panels][width]; sum becomes 1 / sum, or 0 after the last row */
    float *scratch;   /* [threads][slice] */
    size_t key_tile, slice;
    double *mass;
} mass_job;

static vptq_attention_panel panel_of(const mass_job *job, size_t panel, float *score)
{
    const size_t width = job->math->tile_cols, row = panel * width, left = job->rows - row;
    return (vptq_attention_panel){.math = job->math,
                                  .a = job->a,
                                  .row = row,
                                  .count = left < width ? left : width,
                                  .group = job->group,
                                  .q = job->queries + row * job->a->head_dim,
                                  .score = score};
}

static void pack_tile(const mass_job *job, size_t tile)
{
    const vptq_attention_args *a = job->a;
    const size_t step = job->math->tile_rows, d = a->head_dim, all = a->pos0 + a->n;
    const size_t k0 = tile * KEYS, count = all - k0 < KEYS ? all - k0 : KEYS;
    for (size_t k = 0; k < count; k += step)
        vptq_cpu_pack_left(job->math, count - k < step ? count - k : step, d,
                           a->keys + (k0 + k) * a->ldk + job->kv * d, a->ldk, false, 1,
                           job->keys + tile * job->key_tile + k * d);
}

static void pack_one(void *arg, size_t begin, size_t end, int thread)
{
    const mass_job *job = arg;
    (void)end;
    (void)thread;
    if (begin >= job->panels) {
        pack_tile(job, begin - job->panels);
        return;
    }
    const vptq_attention_panel p = panel_of(job, begin, NULL);
    vptq_attention_pack_queries(&p, job->kv);
}

static size_t score_tile(const mass_job *job, const vptq_attention_panel *p, size_t tile)
{
    return vptq_attention_score(p, job->keys + tile * job->key_tile, tile * KEYS, KEYS);
}

static void sum_panel(void *arg, size_t begin, size_t end, int thread)
{
    const mass_job *job = arg;
    const size_t width = job->math->tile_cols;
    float *score = job->scratch + (size_t)thread * job->slice, *factor = score + KEYS * width;
    const vptq_attention_panel p = panel_of(job, begin, score);
    float *max = job->max + begin * width, *sum = job->sum + begin * width;
    (void)end;
    for (size_t r = 0; r < width; r++) {
        max[r] = -INFINITY;
        sum[r] = 0;
    }
    for (size_t tile = 0; tile < job->tiles; tile++) {
        const size_t count = score_tile(job, &p, tile);
        if (count > 0)
            job->math->softmax(score, count, max, sum, factor);
    }
    for (size_t r = 0; r < width; r++)
        sum[r] = r < p.count ? 1 / sum[r] : 0;
}

static void add_tile(void *arg, size_t begin, size_t end, int thread)
{
    const mass_job *job = arg;
    const vptq_cpu_math *math = job->math;
    const size_t width = math->tile_cols;
    float *score = job->scratch + (size_t)thread * job->slice;
    float *max = score + KEYS * width, *sum = max + width, *factor = sum + width;
    (void)end;
    for (size_t panel = 0; panel < job->panels; panel++) {
        const vptq_attention_panel p = panel_of(job, panel, score);
        const size_t count = score_tile(job, &p, begin);
        if (count == 0)
            continue;
        /* With the maximum known, the running softmax is exp(S - max). */
        memcpy(max, job->max + panel * width, width * sizeof *max);
        memset(sum, 0, width * sizeof *sum);
        math->softmax(score, count, max, sum, factor);
        math->scale_columns(score, count, job->sum + panel * width);
        for (size_t k = 0; k < count; k++)
            for (size_t i = 0; i < width; i += ROWS)
                job->mass[begin * KEYS + k] += math->sum_squares(score + k * width + i, ROWS);
    }
}

vptq_status vptq_cpu_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                    vptq_err *err)
{
    mass_job job = {.math = vptq_cpu_math_get(dev->simd), .a = a, .mass = mass};
    if (a->n == 0)
        return VPTQ_OK;
    const size_t width = job.math->tile_cols, d = a->head_dim;
    const int threads = vptq_cpu_threads(dev, a->n * a->heads * (a->pos0 + a->n) * d);
    job.group = a->heads / a->kv_heads;
    job.rows = a->n * job.group;
    job.panels = (job.rows + width - 1) / width;
    job.tiles = (a->pos0 + a->n + KEYS - 1) / KEYS;
    job.key_tile = vptq_round_up(KEYS, job.math->tile_rows) * d;
    job.slice = vptq_round_up((KEYS + 3) * width, LINE);

    const size_t queries = vptq_round_up(job.panels * d * width, LINE);
    const size_t keys = vptq_round_up(job.tiles * job.key_tile, LINE);
    const size_t row = vptq_round_up(job.panels * width, LINE);
    job.queries =
        vptq_dev_scratch(dev, queries + keys + 2 * row + (size_t)dev->ctx->threads * job.slice,
                         sizeof *job.queries, err);
    if (!job.queries)
        return VPTQ_E_NOMEM;
    job.keys = job.queries + queries;
    job.max = job.keys + keys;
    job.sum = job.max + row;
    job.scratch = job.sum + row;
    for (job.kv = 0; job.kv < a->kv_heads; job.kv++) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        vptq_parallel_for(threads, job.panels + job.tiles, 1, pack_one, &job);
        vptq_parallel_for(threads, job.panels, 1, sum_panel, &job);
        vptq_parallel_for(threads, job.tiles, 1, add_tile, &job);
    }
    return VPTQ_OK;
}
