/* Row-wise transformer rows of the cpu backend. */
#include <math.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/math.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/parallel.h"

enum { CHUNK = 1 << 14 }; /* elements that one thread takes at a time */

static size_t rows_of(size_t elements_per_row)
{
    return elements_per_row < CHUNK ? CHUNK / (elements_per_row ? elements_per_row : 1) : 1;
}

/* ---- embed ---- */

typedef struct embed_job {
    vptq_dev *dev;
    size_t dim;
    const void *table;
    vptq_dtype type;
    const int32_t *ids;
    float *out;
} embed_job;

static void embed_rows(void *arg, size_t begin, size_t end, int thread)
{
    const embed_job *job = arg;
    (void)thread;
    /* The type was checked; nothing else in it can fail. */
    const vptq_status st =
        vptq_ref_embed(job->dev, end - begin, job->dim, job->table, job->type, job->ids + begin,
                       job->out + begin * job->dim, NULL);
    VPTQ_BUG_IF(st);
}

vptq_status vptq_cpu_embed(vptq_dev *dev, size_t n, size_t dim, const void *table,
                           vptq_dtype type, const int32_t *ids, float *out, vptq_err *err)
{
    embed_job job = {
        .dev = dev, .dim = dim, .table = table, .type = type, .ids = ids, .out = out};
    if (type != VPTQ_F32 && type != VPTQ_F16 && type != VPTQ_BF16)
        return vptq_ref_embed(dev, n, dim, table, type, ids, out, err);
    vptq_parallel_for(vptq_cpu_threads(dev, n * dim), n, rows_of(dim), embed_rows, &job);
    return VPTQ_OK;
}

/* ---- rmsnorm ---- */

typedef struct norm_job {
    const vptq_cpu_math *math;
    size_t dim, ldx, ldy;
    const float *x, *weight;
    double eps;
    float *y;
} norm_job;

static void norm_rows(void *arg, size_t begin, size_t end, int thread)
{
    const norm_job *job = arg;
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        const float *x = job->x + r * job->ldx;
        const double mean = job->math->sum_squares(x, job->dim) / (double)job->dim;
        job->math->norm(x, job->weight, (float)(1 / sqrt(mean + job->eps)),
                        job->y + r * job->ldy, job->dim);
    }
}

vptq_status vptq_cpu_rmsnorm(vptq_dev *dev, size_t n, size_t dim, const float *x, size_t ldx,
                             const float *weight, float eps, float *y, size_t ldy,
                             vptq_err *err)
{
    (void)err;
    norm_job job = {.math = vptq_cpu_math_get(dev->simd),
                    .dim = dim,
                    .x = x,
                    .ldx = ldx,
                    .weight = weight,
                    .eps = (double)eps,
                    .y = y,
                    .ldy = ldy};
    vptq_parallel_for(vptq_cpu_threads(dev, n * dim), n, rows_of(dim), norm_rows, &job);
    return VPTQ_OK;
}

/* ---- rope ---- */

typedef struct rope_job {
    const vptq_cpu_math *math;
    size_t heads, half, ldx;
    float *x;
    const float *cosine, *sine; /* of the first row */
} rope_job;

static void rope_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rope_job *job = arg;
    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t h = 0; h < job->heads; h++) {
            float *lo = job->x + r * job->ldx + h * 2 * job->half;
            job->math->rotate(lo, lo + job->half, job->cosine + r * job->half,
                              job->sine + r * job->half, job->half);
        }
}

vptq_status vptq_cpu_rope(vptq_dev *dev, size_t n, size_t heads, size_t head_dim, float *x,
                          size_t ldx, const float *cos_table, const float *sin_table,
                          size_t pos0, vptq_err *err)
{
    (void)err;
    const size_t half = head_dim / 2, dim = heads * head_dim;
    rope_job job = {.math = vptq_cpu_math_get(dev->simd),
                    .heads = heads,
                    .half = half,
                    .x = x,
                    .ldx = ldx,
                    .cosine = cos_table + pos0 * half,
                    .sine = sin_table + pos0 * half};
    vptq_parallel_for(vptq_cpu_threads(dev, n * dim), n, rows_of(dim), rope_rows, &job);
    return VPTQ_OK;
}

/* ---- swiglu ---- */

typedef struct swiglu_job {
    const vptq_cpu_math *math;
    const float *gate, *up;
    float *y;
} swiglu_job;

static void swiglu_range(void *arg, size_t begin, size_t end, int thread)
{
    const swiglu_job *job = arg;
    (void)thread;
    job->math->swiglu(job->gate + begin, job->up + begin, job->y + begin, end - begin);
}

vptq_status vptq_cpu_swiglu(vptq_dev *dev, size_t n, size_t dim, const float *gate,
                            const float *up, float *y, vptq_err *err)
{
    (void)err;
    swiglu_job job = {.math = vptq_cpu_math_get(dev->simd), .gate = gate, .up = up, .y = y};
    vptq_parallel_for(vptq_cpu_threads(dev, n * dim), n * dim, CHUNK, swiglu_range, &job);
    return VPTQ_OK;
}

/* ---- nll ---- */

typedef struct nll_job {
    const vptq_cpu_math *math;
    size_t width, ld;
    const float *logits;
    int32_t first;
    const int32_t *targets;
    bool start;
    vptq_nll_state *state;
} nll_job;

static void nll_row(const nll_job *job, const float *logits, int32_t target, vptq_nll_state *s)
{
    const float max = job->math->max(logits, job->width);
    if (max > s->best) {
        size_t j = 0;
        while (logits[j] != max)
            j++;
        s->best = max;
        s->best_id = job->first + (int32_t)j;
    }
    if ((double)max > s->max) {
        s->sum *= exp(s->max - (double)max);
        s->max = (double)max;
    }
    /* While everything seen is -inf the shift must not be, or the sum would turn NaN. */
    const bool none = isinf(s->max) && s->max < 0;
    s->sum += job->math->exp_sum(logits, job->width, none ? 0 : (float)s->max);
    if (target >= job->first && (size_t)(target - job->first) < job->width)
        s->target = logits[target - job->first];
}

static void nll_rows(void *arg, size_t begin, size_t end, int thread)
{
    const nll_job *job = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        if (job->start)
            job->state[i] = (vptq_nll_state){
                .max = -INFINITY, .target = -INFINITY, .best = -INFINITY, .best_id = -1};
        nll_row(job, job->logits + i * job->ld, job->targets[i], &job->state[i]);
    }
}

vptq_status vptq_cpu_nll(vptq_dev *dev, size_t n, size_t width, const float *logits, size_t ld,
                         int32_t first, const int32_t *targets, bool start,
                         vptq_nll_state *state, vptq_err *err)
{
    (void)err;
    nll_job job = {.math = vptq_cpu_math_get(dev->simd),
                   .width = width,
                   .logits = logits,
                   .ld = ld,
                   .first = first,
                   .targets = targets,
                   .start = start,
                   .state = state};
    vptq_parallel_for(vptq_cpu_threads(dev, n * width), n, rows_of(width), nll_rows, &job);
    return VPTQ_OK;
}
