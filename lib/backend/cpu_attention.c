/* Causal attention of the cpu backend, tile by tile with a running softmax, so that scores are
 * never kept beyond one tile (Dao et al., FlashAttention, 2022, section 3.1).
 *
 * A task is one kv head and one tile of queries.  The query heads of the group are stacked
 * below each other, row = query * group + head, because they share keys and values: one product
 * per tile of keys for all of them.  For row r with scores s over the tile:
 *
 *     max' = max(max, s),  p = exp(s - max'),  f = exp(max - max')
 *     sum' = f sum + sum of p,  out' = f out + p V,  and out / sum at the end. */
#include <math.h>
#include <string.h>

#include "lib/backend/backend_cpu.h"
#include "lib/backend/cpu_blas.h"
#include "lib/backend/cpu_math.h"
#include "lib/backend/dev.h"

/* Rows of a stack and keys of a tile: their scores and the tile's keys and values stay in a
 * second-level cache of half a megabyte. */
enum { STACK = 192, KEYS = 256, LINE = 16 /* floats of a cache line */ };

typedef struct attention_job {
    const vptq_dev *dev;
    const vptq_cpu_math *math;
    const vptq_attention_args *a;
    size_t group;   /* query heads per kv head */
    size_t queries; /* of a task */
    size_t tiles;   /* of queries */
    size_t rows;    /* queries * group */
    float *scratch;
    size_t slice; /* floats of scratch per thread */
} attention_job;

/* What a thread works on. */
typedef struct attention_stack {
    double *sum;  /* [rows] */
    float *max;   /* [rows] */
    float *q;     /* [rows, head_dim], scaled */
    float *out;   /* [rows, head_dim] */
    float *score; /* [rows, KEYS] */
} attention_stack;

static size_t padded(size_t floats)
{
    return (floats + LINE - 1) / LINE * LINE;
}

static attention_stack stack_of(const attention_job *job, int thread)
{
    const size_t rows = padded(job->rows), wide = padded(job->rows * job->a->head_dim);
    float *at = job->scratch + (size_t)thread * job->slice;
    attention_stack s;
    s.sum = (double *)(void *)at; /* slices begin at a cache line */
    s.max = at + 2 * rows;
    s.q = s.max + rows;
    s.out = s.q + wide;
    s.score = s.out + wide;
    return s;
}

static size_t slice_of(size_t rows, size_t head_dim)
{
    return 3 * padded(rows) + 2 * padded(rows * head_dim) + rows * KEYS;
}

static void load_queries(const attention_job *job, const attention_stack *s, size_t kv,
                         size_t first, size_t count)
{
    const vptq_attention_args *a = job->a;
    const size_t width = job->group * a->head_dim; /* the group's heads are neighbours */
    for (size_t i = 0; i < count; i++)
        memcpy(s->q + i * width, a->q + (first + i) * a->ldq + kv * width,
               width * sizeof *s->q);
    job->math->scale(s->q, count * width, a->scale);
    memset(s->out, 0, count * width * sizeof *s->out);
    for (size_t r = 0; r < count * job->group; r++) {
        s->max[r] = -INFINITY;
        s->sum[r] = 0;
    }
}

/* Scores of one row become p; the row sees keys [lo, hi) of the tile's `width`. */
static void softmax_row(const attention_job *job, const attention_stack *s, size_t r, size_t lo,
                        size_t hi, size_t width)
{
    float *score = s->score + r * KEYS;
    if (lo >= hi) {
        memset(score, 0, width * sizeof *score);
        return;
    }
    const float max = job->math->max(score + lo, hi - lo);
    if (max > s->max[r]) {
        if (s->sum[r] > 0) {
            const double f = exp((double)s->max[r] - (double)max);
            s->sum[r] *= f;
            job->math->scale(s->out + r * job->a->head_dim, job->a->head_dim, (float)f);
        }
        s->max[r] = max;
    }
    s->sum[r] += (double)job->math->exp_shift(score + lo, hi - lo, s->max[r]);
    memset(score, 0, lo * sizeof *score);
    memset(score + hi, 0, (width - hi) * sizeof *score);
}

/* Keys [k0, k0 + width) for the stack of `count` queries from `first` on. */
static void attend_tile(const attention_job *job, const attention_stack *s, size_t kv,
                        size_t first, size_t count, size_t k0, size_t width)
{
    const vptq_attention_args *a = job->a;
    const size_t d = a->head_dim, rows = count * job->group;
    const vptq_gemm_args scores = {.m = rows,
                                   .n = width,
                                   .k = d,
                                   .a = s->q,
                                   .lda = d,
                                   .b = a->keys + k0 * a->ldk + kv * d,
                                   .ldb = a->ldk,
                                   .trans_b = true,
                                   .c = s->score,
                                   .ldc = KEYS,
                                   .alpha = 1};
    vptq_cpu_gemm_tile(job->dev, &scores);

    for (size_t r = 0; r < rows; r++) {
        const size_t end = a->pos0 + first + r / job->group + 1; /* keys seen: [begin, end) */
        const size_t begin = a->window && end > a->window ? end - a->window : 0;
        const size_t lo = begin > k0 ? begin - k0 : 0;
        const size_t hi = end > k0 ? end - k0 : 0;
        softmax_row(job, s, r, lo < width ? lo : width, hi < width ? hi : width, width);
    }

    const vptq_gemm_args mix = {.m = rows,
                                .n = d,
                                .k = width,
                                .a = s->score,
                                .lda = KEYS,
                                .b = a->values + k0 * a->ldv + kv * d,
                                .ldb = a->ldv,
                                .c = s->out,
                                .ldc = d,
                                .alpha = 1,
                                .beta = 1};
    vptq_cpu_gemm_tile(job->dev, &mix);
}

static void attention_task(void *arg, size_t begin, size_t end, int thread)
{
    const attention_job *job = arg;
    const vptq_attention_args *a = job->a;
    (void)end;
    /* The last queries see most keys: they go first, so that threads finish together. */
    const size_t kv = begin % a->kv_heads, tile = job->tiles - 1 - begin / a->kv_heads;
    const size_t first = tile * job->queries;
    const size_t count = a->n - first < job->queries ? a->n - first : job->queries;
    const size_t last_key = a->pos0 + first + count; /* one behind */
    const size_t oldest = a->pos0 + first + 1;       /* keys that the first query has */
    const attention_stack s = stack_of(job, thread);

    load_queries(job, &s, kv, first, count);
    for (size_t k = a->window && oldest > a->window ? oldest - a->window : 0; k < last_key;
         k += KEYS)
        attend_tile(job, &s, kv, first, count, k, last_key - k < KEYS ? last_key - k : KEYS);

    const size_t d = a->head_dim;
    for (size_t r = 0; r < count * job->group; r++) {
        const size_t query = first + r / job->group, head = kv * job->group + r % job->group;
        float *row = s.out + r * d;
        job->math->scale(row, d, (float)(1 / s.sum[r]));
        memcpy(a->out + query * a->ldo + head * d, row, d * sizeof *row);
    }
}

vptq_status vptq_cpu_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err)
{
    attention_job job = {.dev = dev, .math = vptq_cpu_math_get(dev->simd), .a = a};
    job.group = a->heads / a->kv_heads;
    job.queries = job.group < STACK ? STACK / job.group : 1;
    if (job.queries > a->n)
        job.queries = a->n;
    if (a->n == 0)
        return VPTQ_OK;
    job.tiles = (a->n + job.queries - 1) / job.queries;
    job.rows = job.queries * job.group;
    job.slice = padded(slice_of(job.rows, a->head_dim));
    job.scratch =
        vptq_dev_scratch(dev, (size_t)dev->threads * job.slice, sizeof *job.scratch, err);
    if (!job.scratch)
        return VPTQ_E_NOMEM;
    vptq_blas_parallel_for(vptq_cpu_threads(dev, a->n * (a->pos0 + a->n) * a->head_dim),
                           job.tiles * a->kv_heads, 1, attention_task, &job);
    return VPTQ_OK;
}
