/* The ops kv_store and attention_paged. In a page, each kv head has VPTQ_KV_PAGE * head_dim
 * contiguous numbers: keys as [head_dim, VPTQ_KV_PAGE], so that scores of neighboring tokens
 * are lanes, values as [VPTQ_KV_PAGE, head_dim].
 *
 * Sequences with a row or two (decoding) are cut into ranges of tokens, which are processed in
 * parallel; each range has its own softmax, and the ranges of a head are merged in order.
 * Sequences with more rows (prompts) use the tiles of attention.c, one after the other. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/attention.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/math.h"
#include "lib/backend/dev.h"
#include "lib/base/half.h"
#include "lib/base/parallel.h"

enum {
    RANGE = 16 * VPTQ_KV_PAGE, /* tokens of a task */
    STORE_ROWS = 16,           /* rows of a store task */
    HEAD_STEP = 64,            /* elements of a head that are rounded together */
    LINE = 16                  /* floats of a cache line */
};

static size_t rows_of(const vptq_kv_rows *rows, size_t sequence)
{
    return rows->starts[sequence + 1] - rows->starts[sequence];
}

/* Index of the first element of a kv head in the page of a token. */
static size_t page_at(const vptq_kv_rows *rows, const vptq_kv_pool *pool, size_t sequence,
                      size_t token, size_t kv)
{
    const size_t page = rows->table[sequence * rows->ld_table + token / VPTQ_KV_PAGE];
    return (page * pool->kv_heads + kv) * VPTQ_KV_PAGE * pool->head_dim;
}

static const void *element_at(const vptq_kv_pool *pool, const void *array, size_t at)
{
    return (const char *)array + at * vptq_dtype_get(pool->type)->bytes;
}

/* ---- kv_store ---- */

typedef struct store_job {
    const vptq_kv_store_args *a;
    size_t sequence; /* whose rows are stored */
} store_job;

static void store_half(const vptq_kv_pool *pool, size_t at, size_t slot, const float *key,
                       const float *value)
{
    const size_t d = pool->head_dim;
    uint16_t *keys = (uint16_t *)pool->keys + at + slot, part[HEAD_STEP];
    for (size_t i = 0; i < d; i += HEAD_STEP) {
        const size_t n = d - i < HEAD_STEP ? d - i : HEAD_STEP;
        vptq_f32_to_f16_n(key + i, part, n);
        for (size_t j = 0; j < n; j++)
            keys[(i + j) * VPTQ_KV_PAGE] = part[j];
    }
    vptq_f32_to_f16_n(value, (uint16_t *)pool->values + at + slot * d, d);
}

static void store_float(const vptq_kv_pool *pool, size_t at, size_t slot, const float *key,
                        const float *value)
{
    const size_t d = pool->head_dim;
    float *keys = (float *)pool->keys + at + slot;
    for (size_t i = 0; i < d; i++)
        keys[i * VPTQ_KV_PAGE] = key[i];
    memcpy((float *)pool->values + at + slot * d, value, d * sizeof *value);
}

static void store_rows(void *arg, size_t begin, size_t end, int thread)
{
    const store_job *job = arg;
    const vptq_kv_store_args *a = job->a;
    const vptq_kv_pool *pool = a->pool;
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        const size_t row = a->rows->starts[job->sequence] + r;
        const size_t token = a->rows->positions[job->sequence] + r;
        for (size_t kv = 0; kv < pool->kv_heads; kv++) {
            const size_t at = page_at(a->rows, pool, job->sequence, token, kv);
            (pool->type == VPTQ_F16 ? store_half : store_float)(
                pool, at, token % VPTQ_KV_PAGE, a->keys + row * a->ldk + kv * pool->head_dim,
                a->values + row * a->ldv + kv * pool->head_dim);
        }
    }
}

vptq_status vptq_cpu_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err)
{
    (void)err;
    store_job job = {.a = a};
    for (job.sequence = 0; job.sequence < a->rows->sequences; job.sequence++) {
        const size_t n = rows_of(a->rows, job.sequence);
        vptq_parallel_for(vptq_cpu_threads(dev, n * a->pool->kv_heads * a->pool->head_dim), n,
                          STORE_ROWS, store_rows, &job);
    }
    return VPTQ_OK;
}

/* ---- attention: a row or two of many sequences ---- */

/* A row and its ranges of tokens. */
typedef struct row_item {
    size_t sequence, row, position;
    size_t from;           /* first token that it sees */
    size_t range0, ranges; /* [range0, range0 + ranges) of RANGE tokens */
    size_t unit0;          /* units of the row: [kv_heads][ranges] */
} row_item;

typedef struct rows_job {
    const vptq_cpu_math *math;
    const vptq_paged_args *a;
    size_t group;
    row_item *items;
    uint32_t *item_of; /* [units] */
    size_t item_count, units;
    float *partial; /* [units][group][head_dim + 2]: mixed values, then maximum and sum */
    float *scratch;
    size_t slice; /* floats of scratch per thread */
} rows_job;

static bool has_few_rows(const vptq_paged_args *a, size_t sequence)
{
    return rows_of(a->rows, sequence) * (a->heads / a->pool->kv_heads) <= VPTQ_ATTENTION_FEW;
}

static row_item item_of(const vptq_paged_args *a, size_t sequence, size_t row)
{
    row_item t = {.sequence = sequence,
                  .row = row,
                  .position = a->rows->positions[sequence] + row - a->rows->starts[sequence]};
    t.from = a->window && t.position + 1 > a->window ? t.position + 1 - a->window : 0;
    t.range0 = t.from / RANGE;
    t.ranges = t.position / RANGE + 1 - t.range0;
    return t;
}

/* Counts items and units; also writes them if job->items is set. */
static void count_units(rows_job *job)
{
    const vptq_paged_args *a = job->a;
    job->item_count = job->units = 0;
    for (size_t s = 0; s < a->rows->sequences; s++) {
        if (!has_few_rows(a, s))
            continue;
        for (size_t r = a->rows->starts[s]; r < a->rows->starts[s + 1]; r++) {
            row_item t = item_of(a, s, r);
            const size_t units = a->pool->kv_heads * t.ranges;
            t.unit0 = job->units;
            for (size_t u = 0; job->items && u < units; u++)
                job->item_of[job->units + u] = (uint32_t)job->item_count;
            if (job->items)
                job->items[job->item_count] = t;
            job->item_count++;
            job->units += units;
        }
    }
}

static size_t partial_size(const rows_job *job)
{
    return job->group * (job->a->pool->head_dim + 2);
}

/* Attends from one kv head of a row to one range: its own softmax, not yet divided by the sum.
 */
static void attend_range(const rows_job *job, size_t unit, float *scratch)
{
    const vptq_paged_args *a = job->a;
    const vptq_kv_pool *pool = a->pool;
    const row_item *t = &job->items[job->item_of[unit]];
    const bool half = pool->type == VPTQ_F16;
    const size_t d = pool->head_dim, group = job->group;
    const size_t kv = (unit - t->unit0) / t->ranges;
    const size_t begin = (t->range0 + (unit - t->unit0) % t->ranges) * RANGE;
    const size_t from = (t->from > begin ? t->from : begin) - begin;
    const size_t to =
        (t->position + 1 < begin + RANGE ? t->position + 1 : begin + RANGE) - begin;
    float *q = scratch, *score = scratch + group * d;
    float *out = job->partial + unit * partial_size(job), *stat = out + group * d;

    memcpy(q, a->q + t->row * a->ldq + kv * group * d, group * d * sizeof *q);
    job->math->scale(q, group * d, a->scale);
    memset(out, 0, group * d * sizeof *out);
    for (size_t p = from / VPTQ_KV_PAGE * VPTQ_KV_PAGE; p < to; p += VPTQ_KV_PAGE) {
        const size_t at = page_at(a->rows, pool, t->sequence, begin + p, kv);
        job->math->page_scores(half, group, d, q, element_at(pool, pool->keys, at), score + p,
                               RANGE);
    }
    for (size_t h = 0; h < group; h++) {
        float *s = score + h * RANGE + from;
        if (a->cap > 0)
            job->math->soft_cap(s, to - from, a->cap);
        const float max = job->math->max(s, to - from);
        /* A range of -inf only has no weight; -inf - -inf would be NaN. */
        stat[2 * h] = max;
        stat[2 * h + 1] = job->math->exp_shift(s, to - from, isinf(max) && max < 0 ? 0 : max);
    }
    for (size_t p = from / VPTQ_KV_PAGE * VPTQ_KV_PAGE; p < to; p += VPTQ_KV_PAGE) {
        const size_t at = page_at(a->rows, pool, t->sequence, begin + p, kv);
        const size_t last = to - p < VPTQ_KV_PAGE ? to - p : VPTQ_KV_PAGE;
        job->math->page_mix(half, group, d, score + p, RANGE, from > p ? from - p : 0, last,
                            element_at(pool, pool->values, at), out);
    }
}

static void attend_ranges(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    for (size_t unit = begin; unit < end; unit++)
        attend_range(job, unit, job->scratch + (size_t)thread * job->slice);
}

/* Scales the ranges of a head to one maximum and adds them in order. */
static void merge_row(const rows_job *job, const row_item *t, size_t kv, size_t head)
{
    const vptq_paged_args *a = job->a;
    const size_t d = a->pool->head_dim, size = partial_size(job);
    const float *first = job->partial + (t->unit0 + kv * t->ranges) * size + head * d;
    const float *stat =
        job->partial + (t->unit0 + kv * t->ranges) * size + job->group * d + 2 * head;
    float *out = a->out + t->row * a->ldo + (kv * job->group + head) * d;
    float max = -INFINITY, sum = 0;
    for (size_t r = 0; r < t->ranges; r++)
        max = stat[r * size] > max ? stat[r * size] : max;
    memset(out, 0, d * sizeof *out);
    for (size_t r = 0; r < t->ranges; r++) {
        float factor = stat[r * size];
        job->math->exp_shift(&factor, 1, max);
        sum += factor * stat[r * size + 1];
        for (size_t i = 0; i < d; i++)
            out[i] += factor * first[r * size + i];
    }
    job->math->scale(out, d, 1 / sum);
}

static void merge_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        for (size_t h = 0; h < job->a->heads; h++)
            merge_row(job, &job->items[i], h / job->group, h % job->group);
}

static size_t in_lines(size_t bytes)
{
    return (bytes + LINE * sizeof(float) - 1) / (LINE * sizeof(float)) * LINE;
}

static vptq_status attend_rows(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err)
{
    rows_job job = {
        .math = vptq_cpu_math_get(dev->simd), .a = a, .group = a->heads / a->pool->kv_heads};
    count_units(&job);
    if (!job.units)
        return VPTQ_OK;
    const size_t items = in_lines(job.item_count * sizeof *job.items);
    const size_t of = in_lines(job.units * sizeof *job.item_of);
    const size_t partial = in_lines(job.units * partial_size(&job) * sizeof(float));
    job.slice = in_lines(job.group * (a->pool->head_dim + RANGE) * sizeof(float));
    float *memory = vptq_dev_scratch(
        dev, items + of + partial + (size_t)dev->ctx->threads * job.slice, sizeof *memory, err);
    if (!memory)
        return VPTQ_E_NOMEM;
    job.items = (row_item *)(void *)memory;
    job.item_of = (uint32_t *)(void *)(memory + items);
    job.partial = memory + items + of;
    job.scratch = job.partial + partial;
    count_units(&job);
    const size_t work = job.units * job.group * a->pool->head_dim * VPTQ_KV_PAGE;
    vptq_parallel_for(vptq_cpu_threads(dev, work), job.units, 1, attend_ranges, &job);
    vptq_parallel_for(vptq_cpu_threads(dev, work), job.item_count, 4, merge_rows, &job);
    return VPTQ_OK;
}

/* ---- attention: a prompt ---- */

typedef struct page_source {
    const vptq_paged_args *a;
    size_t sequence;
} page_source;

static void widen(bool half, const void *from, size_t at, float *to, size_t n)
{
    if (half)
        vptq_f16_to_f32_n((const uint16_t *)from + at, to, n);
    else
        memcpy(to, (const float *)from + at, n * sizeof *to);
}

static void fetch_pages(const void *arg, size_t kv, size_t token, size_t count, float *keys,
                        size_t ld, float *values)
{
    const page_source *s = arg;
    const vptq_kv_pool *pool = s->a->pool;
    const bool half = pool->type == VPTQ_F16;
    const size_t d = pool->head_dim;
    for (size_t i = 0, n; i < count; i += n) {
        const size_t slot = (token + i) % VPTQ_KV_PAGE;
        const size_t at = page_at(s->a->rows, pool, s->sequence, token + i, kv);
        n = count - i < VPTQ_KV_PAGE - slot ? count - i : VPTQ_KV_PAGE - slot;
        for (size_t j = 0; j < d; j++)
            widen(half, pool->keys, at + j * VPTQ_KV_PAGE + slot, keys + j * ld + i, n);
        widen(half, pool->values, at + slot * d, values + i * d, n * d);
    }
}

static vptq_status attend_prompt(vptq_dev *dev, const vptq_paged_args *a, size_t sequence,
                                 vptq_err *err)
{
    const size_t row = a->rows->starts[sequence];
    const page_source pages = {a, sequence};
    const vptq_attention_source source = {fetch_pages, &pages};
    const vptq_attention_args args = {.n = rows_of(a->rows, sequence),
                                      .pos0 = a->rows->positions[sequence],
                                      .heads = a->heads,
                                      .kv_heads = a->pool->kv_heads,
                                      .head_dim = a->pool->head_dim,
                                      .window = a->window,
                                      .scale = a->scale,
                                      .cap = a->cap,
                                      .q = a->q + row * a->ldq,
                                      .out = a->out + row * a->ldo,
                                      .ldq = a->ldq,
                                      .ldo = a->ldo};
    return vptq_cpu_attention_from(dev, &args, &source, err);
}

vptq_status vptq_cpu_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err)
{
    VPTQ_CHECK(attend_rows(dev, a, err));
    for (size_t s = 0; s < a->rows->sequences; s++)
        if (!has_few_rows(a, s))
            VPTQ_CHECK(attend_prompt(dev, a, s, err));
    return VPTQ_OK;
}
