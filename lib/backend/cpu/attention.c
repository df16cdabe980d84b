/* The op attention, tile by tile with a running softmax, so that scores exist for one tile at a
 * time (Dao et al., FlashAttention, 2022, section 3.1).
 *
 * The query heads that share a kv head are stacked, row = query * group + head in group, and a
 * panel of `width` rows passes over the keys tile by tile:
 *
 *     S^T = K Q^T         [keys, width]     masked with -inf
 *     max' = max(max, S), P = exp(S - max'), f = exp(max - max'), sum = f sum + sum of P
 *     O^T = f O^T + V^T P [head_dim, width]
 *
 * and ends with O / sum.  All is transposed so that a column is a query: the softmax runs down
 * the columns, whole vectors at a time, and P is already packed as the right operand of the
 * next product.  Keys and values are packed as left operands once for all queries. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/attention.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/math.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    KEYS = 252,       /* keys of a tile: whole row blocks of 14, 6 and 4 */
    PANELS = 6,       /* panels of a task, which share a tile while it is in the cache */
    PACKED = 1 << 23, /* floats of keys and values packed at a time; at least one kv head's */
    LINE = 16         /* floats of a cache line */
};

typedef struct attention_job {
    const vptq_cpu_math *math;
    const vptq_attention_args *a;
    const vptq_attention_source *source; /* NULL: the arrays of a */
    size_t group;                        /* query heads per kv head */
    size_t rows, panels, tasks; /* stacked rows of one kv head, their panels and tasks */
    size_t dim;                 /* head_dim, rounded up to whole row blocks */
    size_t tile0, tiles;        /* tiles of keys that any row sees: [tile0, tile0 + tiles) */
    size_t kv0;                 /* first kv head of the batch */
    size_t key_tile, tile_size; /* floats of a tile's keys; with its values */
    float *packed;              /* [batch][tiles][tile_size] */
    float *scratch;
    size_t slice; /* floats of scratch per thread */
} attention_job;

void vptq_attention_pack_queries(const vptq_attention_panel *p, size_t kv)
{
    const vptq_attention_args *a = p->a;
    const size_t width = p->math->tile_cols, d = a->head_dim;
    memset(p->q, 0, d * width * sizeof *p->q);
    for (size_t r = 0; r < p->count; r++) {
        const size_t query = (p->row + r) / p->group, head = (p->row + r) % p->group;
        const float *q = a->q + query * a->ldq + (kv * p->group + head) * d;
        for (size_t i = 0; i < d; i++)
            p->q[i * width + r] = a->scale * q[i];
    }
}

/* Sets the scores of keys [k0, k0 + count) that a row must not see to -inf. */
static void mask(const vptq_attention_panel *p, size_t k0, size_t count)
{
    const vptq_attention_args *a = p->a;
    const size_t first = p->row / p->group, last = (p->row + p->count - 1) / p->group;
    if (k0 >= vptq_attention_first_key(a, last) && k0 + count <= a->pos0 + first + 1)
        return;
    for (size_t i = 0; i < p->count; i++) {
        const size_t query = (p->row + i) / p->group;
        const size_t from = vptq_attention_first_key(a, query), to = a->pos0 + query + 1;
        for (size_t k = 0; k < count; k++)
            if (k0 + k < from || k0 + k >= to)
                p->score[k * p->math->tile_cols + i] = -INFINITY;
    }
}

size_t vptq_attention_score(const vptq_attention_panel *p, const float *keys, size_t k0,
                            size_t max)
{
    const vptq_cpu_math *math = p->math;
    const size_t width = math->tile_cols, step = math->tile_rows, d = p->a->head_dim;
    const size_t seen = p->a->pos0 + (p->row + p->count - 1) / p->group + 1;
    if (k0 >= seen || k0 + max <= vptq_attention_first_key(p->a, p->row / p->group))
        return 0;
    const size_t count = seen - k0 < max ? seen - k0 : max;
    for (size_t k = 0; k < count; k += step)
        math->tile(d, keys + k * d, p->q, false, p->score + k * width, width,
                   count - k < step ? count - k : step, width);
    if (p->a->cap > 0)
        math->soft_cap(p->score, count * width, p->a->cap);
    mask(p, k0, count);
    return count;
}

/* ---- packing ---- */

/* Packs a tile of keys as [key blocks][head_dim, tile_rows], then its values as
 * [dim blocks][keys, tile_rows]. */
static void pack_tile(void *arg, size_t begin, size_t end, int thread)
{
    const attention_job *job = arg;
    const vptq_attention_args *a = job->a;
    (void)end;
    const size_t step = job->math->tile_rows, d = a->head_dim, all = a->pos0 + a->n;
    const size_t kv = job->kv0 + begin / job->tiles;
    const size_t k0 = (job->tile0 + begin % job->tiles) * KEYS;
    const size_t count = all - k0 < KEYS ? all - k0 : KEYS;
    float *keys = job->packed + begin * job->tile_size, *values = keys + job->key_tile;
    const float *from_keys, *from_values;
    size_t key_step, ldk, ldv;
    if (job->source) { /* fetched keys are already transposed */
        float *own = job->scratch + (size_t)thread * job->slice;
        job->source->fetch(job->source->arg, kv, k0, count, own, KEYS, own + KEYS * d);
        from_keys = own;
        key_step = 1;
        ldk = KEYS;
        from_values = own + KEYS * d;
        ldv = d;
    } else {
        from_keys = a->keys + k0 * a->ldk + kv * d;
        key_step = ldk = a->ldk;
        from_values = a->values + k0 * a->ldv + kv * d;
        ldv = a->ldv;
    }
    for (size_t k = 0; k < count; k += step)
        vptq_cpu_pack_left(job->math, count - k < step ? count - k : step, d,
                           from_keys + k * key_step, ldk, job->source != NULL, 1, keys + k * d);
    for (size_t i = 0; i < d; i += step)
        vptq_cpu_pack_left(job->math, d - i < step ? d - i : step, count, from_values + i, ldv,
                           true, 1, values + i * KEYS);
}

/* ---- one panel of stacked rows ---- */

typedef struct attention_panel {
    vptq_attention_panel in; /* score [KEYS, width] is shared by the panels of a thread */
    float *out;              /* [dim, width] */
    float *max, *sum, *f;    /* [width] */
} attention_panel;

static size_t panel_size(const attention_job *job)
{
    return (job->a->head_dim + job->dim + 3) * job->math->tile_cols;
}

static attention_panel panel_of(const attention_job *job, int thread, size_t slot, size_t panel)
{
    const size_t width = job->math->tile_cols, row = panel * width, left = job->rows - row;
    float *score = job->scratch + (size_t)thread * job->slice;
    float *q = score + (size_t)KEYS * width + slot * panel_size(job);
    attention_panel p = {.in = {.math = job->math,
                                .a = job->a,
                                .row = row,
                                .count = left < width ? left : width,
                                .group = job->group,
                                .q = q,
                                .score = score}};
    p.out = q + job->a->head_dim * width;
    p.max = p.out + job->dim * width;
    p.sum = p.max + width;
    p.f = p.sum + width;
    return p;
}

static void start_panel(const attention_job *job, const attention_panel *p, size_t kv)
{
    const size_t width = job->math->tile_cols;
    vptq_attention_pack_queries(&p->in, kv);
    memset(p->out, 0, job->dim * width * sizeof *p->out);
    for (size_t r = 0; r < width; r++) {
        p->max[r] = -INFINITY;
        p->sum[r] = 0;
    }
}

/* Attends to one tile, up to the last key that the last row of the panel sees. */
static void attend(const attention_job *job, const attention_panel *p, const float *packed,
                   size_t tile)
{
    const vptq_cpu_math *math = job->math;
    const size_t width = math->tile_cols, step = math->tile_rows, d = job->a->head_dim;
    const float *keys = packed + (tile - job->tile0) * job->tile_size;
    const float *values = keys + job->key_tile;
    const size_t count = vptq_attention_score(&p->in, keys, tile * KEYS, KEYS);
    if (count == 0)
        return;
    math->softmax(p->in.score, count, p->max, p->sum, p->f);
    math->scale_columns(p->out, d, p->f);
    for (size_t i = 0; i < d; i += step)
        math->tile(count, values + i * KEYS, p->in.score, true, p->out + i * width, width, step,
                   width);
}

static float log_sum(float max, float sum)
{
    return (float)((double)max + log((double)sum));
}

static void finish_panel(const attention_job *job, const attention_panel *p, size_t kv)
{
    const vptq_attention_args *a = job->a;
    const size_t width = job->math->tile_cols, d = a->head_dim;
    for (size_t r = 0; r < p->in.count; r++) {
        const size_t row = p->in.row + r, query = row / job->group, head = row % job->group;
        float *out = a->out + query * a->ldo + (kv * job->group + head) * d;
        const float factor = 1 / p->sum[r];
        if (a->lse)
            a->lse[query * a->heads + kv * job->group + head] = log_sum(p->max[r], p->sum[r]);
        for (size_t i = 0; i < d; i++)
            out[i] = factor * p->out[i * width + r];
    }
}

static void attention_task(void *arg, size_t begin, size_t end, int thread)
{
    const attention_job *job = arg;
    (void)end;
    /* The last rows see the most keys; they go first so that threads finish together. */
    const size_t kv = begin / job->tasks, task = job->tasks - 1 - begin % job->tasks;
    const size_t panel = task * PANELS;
    const size_t panels = job->panels - panel < PANELS ? job->panels - panel : PANELS;
    const float *packed = job->packed + kv * job->tiles * job->tile_size;
    attention_panel p[PANELS];

    for (size_t i = 0; i < panels; i++) {
        p[i] = panel_of(job, thread, i, panel + i);
        start_panel(job, &p[i], job->kv0 + kv);
    }
    const size_t last = (p[panels - 1].in.row + p[panels - 1].in.count - 1) / job->group;
    size_t tile = vptq_attention_first_key(job->a, p[0].in.row / job->group) / KEYS;
    for (; tile * KEYS <= job->a->pos0 + last; tile++)
        for (size_t i = 0; i < panels; i++)
            attend(job, &p[i], packed, tile);
    for (size_t i = 0; i < panels; i++)
        finish_panel(job, &p[i], job->kv0 + kv);
}

static vptq_status attend_packed(vptq_dev *dev, attention_job *job, int threads, vptq_err *err)
{
    const vptq_attention_args *a = job->a;
    const vptq_cpu_math *math = job->math;
    job->panels = (job->rows + math->tile_cols - 1) / math->tile_cols;
    job->tasks = (job->panels + PANELS - 1) / PANELS;
    job->dim = vptq_round_up(a->head_dim, math->tile_rows);
    job->tile0 = vptq_attention_first_key(a, 0) / KEYS;
    job->tiles = (a->pos0 + a->n + KEYS - 1) / KEYS - job->tile0;
    job->key_tile = vptq_round_up(KEYS, math->tile_rows) * a->head_dim;
    job->tile_size = job->key_tile + KEYS * job->dim;
    job->slice = vptq_round_up(KEYS * math->tile_cols + PANELS * panel_size(job), LINE);
    const size_t fetched = job->source ? vptq_round_up(2 * KEYS * a->head_dim, LINE) : 0;
    job->slice = job->slice > fetched ? job->slice : fetched;

    const size_t head_size = job->tiles * job->tile_size;
    size_t batch = head_size < PACKED ? PACKED / head_size : 1;
    batch = batch < a->kv_heads ? batch : a->kv_heads;
    const size_t packed = vptq_round_up(batch * head_size, LINE);
    job->packed = vptq_dev_scratch(dev, packed + (size_t)dev->ctx->threads * job->slice,
                                   sizeof *job->packed, err);
    if (!job->packed)
        return VPTQ_E_NOMEM;
    job->scratch = job->packed + packed;
    for (job->kv0 = 0; job->kv0 < a->kv_heads; job->kv0 += batch) {
        VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
        const size_t heads = a->kv_heads - job->kv0 < batch ? a->kv_heads - job->kv0 : batch;
        vptq_parallel_for(threads, heads * job->tiles, 1, pack_tile, job);
        vptq_parallel_for(threads, heads * job->tasks, 1, attention_task, job);
    }
    return VPTQ_OK;
}

/* ---- few rows: one softmax over all keys, nothing packed ---- */

static void attention_few(void *arg, size_t begin, size_t end, int thread)
{
    const attention_job *job = arg;
    const vptq_attention_args *a = job->a;
    (void)thread;
    for (size_t unit = begin; unit < end; unit++) {
        const size_t kv = unit / a->n, query = unit % a->n, d = a->head_dim;
        const size_t from = vptq_attention_first_key(a, query),
                     count = a->pos0 + query + 1 - from;
        float *score = job->scratch + unit * job->slice;
        float *out = a->out + query * a->ldo + kv * job->group * d;
        memset(score, 0, job->group * count * sizeof *score);
        job->math->dots(job->group, count, d, a->scale,
                        a->q + query * a->ldq + kv * job->group * d, d,
                        a->keys + from * a->ldk + kv * d, a->ldk, score, count);
        if (a->cap > 0)
            job->math->soft_cap(score, job->group * count, a->cap);
        memset(out, 0, job->group * d * sizeof *out);
        for (size_t h = 0; h < job->group; h++) {
            float *p = score + h * count;
            const float max = job->math->max(p, count);
            const float sum = job->math->exp_shift(p, count, max);
            job->math->scale(p, count, 1 / sum);
            if (a->lse)
                a->lse[query * a->heads + kv * job->group + h] = log_sum(max, sum);
        }
        job->math->axpys(job->group, d, count, 1, score, count,
                         a->values + from * a->ldv + kv * d, a->ldv, out, d);
    }
}

static vptq_status attend_few(vptq_dev *dev, attention_job *job, int threads, vptq_err *err)
{
    const vptq_attention_args *a = job->a;
    job->slice = vptq_round_up(job->group * (a->pos0 + a->n), LINE);
    job->scratch =
        vptq_dev_scratch(dev, a->kv_heads * a->n * job->slice, sizeof *job->scratch, err);
    if (!job->scratch)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(threads, a->kv_heads * a->n, 1, attention_few, job);
    return VPTQ_OK;
}

static attention_job job_of(const vptq_dev *dev, const vptq_attention_args *a,
                            const vptq_attention_source *source, int *threads)
{
    const size_t group = a->heads / a->kv_heads;
    *threads = vptq_cpu_threads(dev, a->n * a->heads * (a->pos0 + a->n) * a->head_dim);
    return (attention_job){.math = vptq_cpu_math_get(dev->simd),
                           .a = a,
                           .source = source,
                           .group = group,
                           .rows = a->n * group};
}

vptq_status vptq_cpu_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err)
{
    int threads;
    attention_job job = job_of(dev, a, NULL, &threads);
    if (a->n == 0)
        return VPTQ_OK;
    return job.rows <= VPTQ_ATTENTION_FEW ? attend_few(dev, &job, threads, err)
                                          : attend_packed(dev, &job, threads, err);
}

vptq_status vptq_cpu_attention_from(vptq_dev *dev, const vptq_attention_args *a,
                                    const vptq_attention_source *source, vptq_err *err)
{
    int threads;
    attention_job job = job_of(dev, a, source, &threads);
    return attend_packed(dev, &job, threads, err);
}
