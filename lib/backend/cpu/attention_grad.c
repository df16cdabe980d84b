/* The op attention_grad, tile by tile, with five products per pair of a block of queries and a
 * tile of keys (Dao, FlashAttention-2, 2023, section 3.1):
 *
 *     S^T = K Q^T               dP^T = V dO^T            a panel of queries at a time
 *     P = exp(S - lse)          dS = P (dP - D)
 *     dQ^T += K^T dS^T
 *     dV^T += dO^T P            dK^T += Q^T dS           with P and dS transposed
 *
 * A task takes one query head and a range of the tiles: dK and dV of a tile are complete after
 * its last query, dQ is a sum over the ranges, and those of a kv head over its query heads.
 * Ranges depend on the shape only, and all sums are added in order. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/attention.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/gradients.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    KEYS = 252,     /* keys of a tile: whole row blocks of 14, 6 and 4 */
    COLUMNS = 256,  /* the same in whole panels of 16, 32 and 64 columns */
    QUERIES = 128,  /* of a block: whole panels */
    RANGES = 4,     /* of tiles, with about equal numbers of queries */
    WORK = 1 << 24, /* floats of a batch of kv heads; at least one */
    LINE = 16       /* floats of a cache line */
};

typedef struct grad_job {
    const vptq_cpu_math *math;
    const vptq_cpu_gradients *loops;
    const vptq_attention_grad_args *a;
    vptq_attention_args forward; /* every query head with keys of its own, for scores */
    size_t group;                /* query heads per kv head */
    size_t dim;                  /* head_dim, rounded up to whole row blocks */
    size_t tiles, blocks;        /* of keys and queries */
    size_t first[RANGES + 1];    /* tiles of range r: [first[r], first[r + 1]) */
    size_t kv0, kv_count;        /* the batch of kv heads */

    /* Packed: [kv][tiles][tile_size] keys, values and transposed keys as left operands, and
     * [head][blocks][block_size] queries and dout as right operands in panels, the same as
     * left operands, lse and delta. */
    size_t key_size, tile_size, right_size, left_size, block_size;
    float *tile, *block;
    /* Results: [head][RANGES][blocks][dim, QUERIES] of dQ^T in panels, [head][2][n, head_dim]
     * of dK and dV. */
    size_t dq_size, dkv_size;
    float *dq, *dkv;
    float *scratch;
    size_t slice; /* floats of scratch per thread */
} grad_job;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- packing ---- */

static void pack_rows(const grad_job *job, size_t count, const float *from, size_t ld,
                      float *to)
{
    const size_t step = job->math->tile_rows, d = job->a->head_dim;
    for (size_t i = 0; i < count; i += step)
        vptq_cpu_pack_left(job->math, least(step, count - i), d, from + i * ld, ld, false, 1,
                           to + i * d);
}

/* The transposed rows [count, head_dim], blocks of [`space`, tile_rows]. */
static void pack_columns(const grad_job *job, size_t count, size_t space, const float *from,
                         size_t ld, float scale, float *to)
{
    const size_t step = job->math->tile_rows, d = job->a->head_dim;
    for (size_t e = 0; e < d; e += step)
        vptq_cpu_pack_left(job->math, least(step, d - e), count, from + e, ld, true, scale,
                           to + e * space);
}

static void pack_tile(const grad_job *job, size_t at)
{
    const vptq_attention_grad_args *a = job->a;
    const size_t kv = job->kv0 + at / job->tiles, k0 = at % job->tiles * KEYS;
    const size_t ld = a->kv_heads * a->head_dim, first = k0 * ld + kv * a->head_dim;
    const size_t count = least(KEYS, a->n - k0);
    float *to = job->tile + at * job->tile_size;
    pack_rows(job, count, a->keys + first, ld, to);
    pack_rows(job, count, a->values + first, ld, to + job->key_size);
    pack_columns(job, count, KEYS, a->keys + first, ld, 1, to + 2 * job->key_size);
}

static double dot(const float *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Columns for queries after the last are 0, with an infinite lse, so that p and ds are 0. */
static void pack_block(const grad_job *job, size_t at)
{
    const vptq_attention_grad_args *a = job->a;
    const size_t head = job->kv0 * job->group + at / job->blocks, d = a->head_dim;
    const size_t i0 = at % job->blocks * QUERIES, count = least(QUERIES, a->n - i0);
    const size_t ld = a->heads * d, first = i0 * ld + head * d, width = job->math->tile_cols;
    float *right = job->block + at * job->block_size, *left = right + 2 * job->right_size;
    float *lse = left + 2 * job->left_size, *delta = lse + QUERIES;
    memset(right, 0, 2 * job->right_size * sizeof *right);
    for (size_t i = 0; i < count; i += width) {
        const size_t cols = least(width, count - i);
        job->math->transpose(cols, d, a->q + first + i * ld, ld, a->scale, right + i * d,
                             width);
        job->math->transpose(cols, d, a->dout + first + i * ld, ld, 1,
                             right + job->right_size + i * d, width);
    }
    pack_columns(job, count, QUERIES, a->q + first, ld, a->scale, left);
    pack_columns(job, count, QUERIES, a->dout + first, ld, 1, left + job->left_size);
    for (size_t i = 0; i < QUERIES; i++) {
        const size_t row = first + i * ld;
        lse[i] = i < count ? a->lse[(i0 + i) * a->heads + head] : INFINITY;
        delta[i] = i < count ? (float)dot(a->dout + row, a->out + row, d) : 0;
    }
}

static void pack(void *arg, size_t begin, size_t end, int thread)
{
    const grad_job *job = arg;
    const size_t tiles = job->kv_count * job->tiles;
    (void)end;
    (void)thread;
    if (begin < tiles)
        pack_tile(job, begin);
    else
        pack_block(job, begin - tiles);
}

/* ---- one query head and range of tiles ---- */

/* The arrays of a task, in the scratch of its thread. */
typedef struct grad_task {
    const grad_job *job;
    size_t head; /* of the model */
    const float *tile;
    float *block;
    size_t k0, keys;                     /* of the tile */
    float *p, *ds;                       /* [KEYS, tile_cols], of a panel */
    float *p_transposed, *ds_transposed; /* [COLUMNS / tile_cols][QUERIES, tile_cols] */
    float *dk, *dv;                      /* [dim, COLUMNS] */
} grad_task;

/* Appends columns [0, count) of the panel that begins at query i, as rows from i on. */
static void transpose_panel(const grad_task *t, size_t i, size_t count, const float *from,
                            float *to)
{
    const size_t width = t->job->math->tile_cols;
    for (size_t k = 0; k < COLUMNS; k += width) {
        float *rows = to + k * QUERIES + i * width;
        if (k + width > count)
            memset(rows, 0, width * width * sizeof *rows);
        if (k < count)
            t->job->math->transpose(least(width, count - k), width, from + k * width, width, 1,
                                    rows, width);
    }
}

/* Probabilities and ds of the panel of queries [i0 + i, ..), what it adds to dQ, and both
 * transposed. */
static void panel_gradients(const grad_task *t, size_t i0, size_t i, float *dq)
{
    const grad_job *job = t->job;
    const vptq_cpu_math *math = job->math;
    const size_t width = math->tile_cols, step = math->tile_rows, d = job->a->head_dim;
    const float *lse = t->block + 2 * (job->right_size + job->left_size) + i;
    vptq_attention_panel panel = {.math = math,
                                  .a = &job->forward,
                                  .row = i0 + i,
                                  .count = least(width, job->a->n - i0 - i),
                                  .group = 1,
                                  .q = t->block + i * d,
                                  .score = t->p};
    const size_t count = vptq_attention_score(&panel, t->tile, t->k0, t->keys);
    for (size_t k = 0; k < count; k += step)
        math->tile(d, t->tile + job->key_size + k * d, t->block + job->right_size + i * d,
                   false, t->ds + k * width, width, least(step, count - k), width);
    job->loops->softmax(t->p, t->ds, count, width, lse, lse + QUERIES);
    for (size_t e = 0; e < d && count; e += step)
        math->tile(count, t->tile + 2 * job->key_size + e * KEYS, t->ds, true,
                   dq + i * job->dim + e * width, width, step, width);
    transpose_panel(t, i, count, t->p, t->p_transposed);
    transpose_panel(t, i, count, t->ds, t->ds_transposed);
}

/* to [dim, COLUMNS] += left [dim, count] right [count, COLUMNS] */
static void add_product(const grad_task *t, size_t count, const float *left, const float *right,
                        float *to)
{
    const vptq_cpu_math *math = t->job->math;
    for (size_t k = 0; k < t->keys; k += math->tile_cols)
        for (size_t e = 0; e < t->job->a->head_dim; e += math->tile_rows)
            math->tile(count, left + e * QUERIES, right + k * QUERIES, true,
                       to + e * COLUMNS + k, COLUMNS, math->tile_rows, math->tile_cols);
}

static void tile_gradients(grad_task *t, size_t tile, float *dq, float *dk, float *dv)
{
    const grad_job *job = t->job;
    const vptq_attention_grad_args *a = job->a;
    const size_t at = t->head - job->kv0 * job->group, d = a->head_dim;
    t->k0 = tile * KEYS;
    t->keys = least(KEYS, a->n - t->k0);
    t->tile = job->tile + (at / job->group * job->tiles + tile) * job->tile_size;
    const size_t after = a->window ? least(a->n, t->k0 + t->keys - 1 + a->window) : a->n;
    memset(t->dk, 0, job->dim * COLUMNS * sizeof *t->dk);
    memset(t->dv, 0, job->dim * COLUMNS * sizeof *t->dv);
    for (size_t b = t->k0 / QUERIES; b * QUERIES < after; b++) {
        const size_t count = least(QUERIES, a->n - b * QUERIES);
        t->block = job->block + (at * job->blocks + b) * job->block_size;
        for (size_t i = 0; i < count; i += job->math->tile_cols)
            panel_gradients(t, b * QUERIES, i, dq + b * job->dim * QUERIES);
        const float *left = t->block + 2 * job->right_size;
        add_product(t, count, left, t->ds_transposed, t->dk);
        add_product(t, count, left + job->left_size, t->p_transposed, t->dv);
    }
    job->math->transpose(d, t->keys, t->dk, COLUMNS, 1, dk + t->k0 * d, d);
    job->math->transpose(d, t->keys, t->dv, COLUMNS, 1, dv + t->k0 * d, d);
}

static void range_gradients(void *arg, size_t begin, size_t end, int thread)
{
    const grad_job *job = arg;
    const size_t head = begin / RANGES, range = begin % RANGES, width = job->math->tile_cols;
    float *dq = job->dq + begin * job->dq_size, *dkv = job->dkv + head * job->dkv_size;
    float *at = job->scratch + (size_t)thread * job->slice;
    (void)end;
    grad_task t = {.job = job, .head = job->kv0 * job->group + head};
    t.p = at;
    t.ds = t.p + KEYS * width;
    t.p_transposed = t.ds + KEYS * width;
    t.ds_transposed = t.p_transposed + QUERIES * COLUMNS;
    t.dk = t.ds_transposed + QUERIES * COLUMNS;
    t.dv = t.dk + job->dim * COLUMNS;
    memset(dq, 0, job->dq_size * sizeof *dq);
    for (size_t tile = job->first[range]; tile < job->first[range + 1]; tile++)
        tile_gradients(&t, tile, dq, dkv, dkv + job->dkv_size / 2);
}

/* ---- sums ---- */

/* Adds the ranges of dQ^T and stores a block of it. */
static void store_block(const grad_job *job, size_t at)
{
    const vptq_attention_grad_args *a = job->a;
    const size_t local = at / job->blocks, block = at % job->blocks, d = a->head_dim;
    const size_t head = job->kv0 * job->group + local, width = job->math->tile_cols;
    const size_t size = job->dim * QUERIES, ld = a->heads * d;
    float *sum = job->dq + local * RANGES * job->dq_size + block * size;
    for (size_t r = 1; r < RANGES; r++)
        for (size_t e = 0; e < size; e++)
            sum[e] += sum[r * job->dq_size + e];
    const size_t i0 = block * QUERIES, count = least(QUERIES, a->n - i0);
    for (size_t i = 0; i < count; i += width)
        job->math->transpose(d, least(width, count - i), sum + i * job->dim, width, a->scale,
                             a->dq + (i0 + i) * ld + head * d, ld);
}

/* Adds the query heads of a kv head, for a tile of keys. */
static void store_tile(const grad_job *job, size_t at)
{
    const vptq_attention_grad_args *a = job->a;
    const size_t local = at / job->tiles, k0 = at % job->tiles * KEYS, d = a->head_dim;
    const float *head = job->dkv + local * job->group * job->dkv_size;
    for (size_t k = k0; k < least(k0 + KEYS, a->n); k++)
        for (size_t e = 0; e < d; e++) {
            const size_t to = (k * a->kv_heads + job->kv0 + local) * d + e;
            float dk = 0, dv = 0;
            for (size_t g = 0; g < job->group; g++) {
                dk += head[g * job->dkv_size + k * d + e];
                dv += head[g * job->dkv_size + job->dkv_size / 2 + k * d + e];
            }
            a->dkeys[to] = dk;
            a->dvalues[to] = dv;
        }
}

static void store(void *arg, size_t begin, size_t end, int thread)
{
    const grad_job *job = arg;
    const size_t tiles = job->kv_count * job->tiles;
    (void)end;
    (void)thread;
    if (begin < tiles)
        store_tile(job, begin);
    else
        store_block(job, begin - tiles);
}

/* ---- the op ---- */

/* Cuts the tiles where r / RANGES of all pairs of a query and a tile are reached. */
static void cut_ranges(grad_job *job)
{
    const vptq_attention_grad_args *a = job->a;
    size_t all = 0, seen = 0, range = 1;
    for (int pass = 0; pass < 2; pass++)
        for (size_t tile = 0; tile < job->tiles; tile++) {
            const size_t queries = a->n - tile * KEYS;
            const size_t pairs = a->window ? least(queries, KEYS + a->window) : queries;
            if (pass == 0) {
                all += pairs;
                continue;
            }
            for (; range < RANGES && seen * RANGES >= range * all; range++)
                job->first[range] = tile;
            seen += pairs;
        }
    for (; range <= RANGES; range++)
        job->first[range] = job->tiles;
}

static void measure(grad_job *job)
{
    const vptq_attention_grad_args *a = job->a;
    const vptq_cpu_math *math = job->math;
    const size_t d = a->head_dim;
    job->dim = vptq_round_up(d, math->tile_rows);
    job->tiles = (a->n + KEYS - 1) / KEYS;
    job->blocks = (a->n + QUERIES - 1) / QUERIES;
    job->key_size = vptq_round_up(KEYS, math->tile_rows) * d;
    job->tile_size = vptq_round_up(2 * job->key_size + KEYS * job->dim, LINE);
    job->right_size = d * QUERIES;
    job->left_size = job->dim * QUERIES;
    job->block_size = 2 * (job->right_size + job->left_size) + 2 * QUERIES;
    job->dq_size = job->blocks * job->dim * QUERIES;
    job->dkv_size = vptq_round_up(2 * a->n * d, LINE);
    job->slice = vptq_round_up(
        2 * (KEYS * math->tile_cols + QUERIES * COLUMNS + job->dim * COLUMNS), LINE);
    cut_ranges(job);
}

vptq_status vptq_cpu_attention_grad(vptq_dev *dev, const vptq_attention_grad_args *a,
                                    vptq_err *err)
{
    grad_job job = {.math = vptq_cpu_math_get(dev->simd),
                    .loops = vptq_cpu_gradients_get(dev->simd),
                    .a = a,
                    .group = a->heads / a->kv_heads,
                    .forward = {.n = a->n, .head_dim = a->head_dim, .window = a->window}};
    const int threads = vptq_cpu_threads(dev, a->n * a->n * a->heads * a->head_dim);
    if (a->n == 0)
        return VPTQ_OK;
    measure(&job);
    const size_t kv_tile = job.tiles * job.tile_size;
    const size_t kv_block = job.group * job.blocks * job.block_size;
    const size_t kv_dq = job.group * RANGES * job.dq_size, kv_dkv = job.group * job.dkv_size;
    const size_t each = kv_tile + kv_block + kv_dq + kv_dkv;
    const size_t batch = least(a->kv_heads, each < WORK ? WORK / each : 1);
    job.tile = vptq_dev_scratch(dev, batch * each + (size_t)dev->ctx->threads * job.slice,
                                sizeof *job.tile, err);
    if (!job.tile)
        return VPTQ_E_NOMEM;
    job.block = job.tile + batch * kv_tile;
    job.dq = job.block + batch * kv_block;
    job.dkv = job.dq + batch * kv_dq;
    job.scratch = job.dkv + batch * kv_dkv;
    for (; job.kv0 < a->kv_heads; job.kv0 += batch) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        job.kv_count = least(batch, a->kv_heads - job.kv0);
        const size_t heads = job.kv_count * job.group;
        const size_t pieces = job.kv_count * job.tiles + heads * job.blocks;
        vptq_parallel_for(threads, pieces, 1, pack, &job);
        vptq_parallel_for(threads, heads * RANGES, 1, range_gradients, &job);
        vptq_parallel_for(threads, pieces, 1, store, &job);
    }
    return VPTQ_OK;
}
