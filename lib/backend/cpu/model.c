/* Transformer ops of the cpu backend that work row by row: embed, rmsnorm, rope, swiglu,
 * soft_cap, nll. */
#include <math.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/math.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/parallel.h"

enum { CHUNK = 1 << 14 }; /* elements per task of a thread */

typedef struct rows_job {
    vptq_dev *dev;
    const vptq_cpu_math *math;
    const void *args;
} rows_job;

/* Runs fn for all rows. */
static vptq_status run(vptq_dev *dev, size_t rows, size_t elements_per_row, vptq_range_fn fn,
                       const void *args)
{
    rows_job job = {dev, vptq_cpu_math_get(dev->simd), args};
    const size_t chunk =
        elements_per_row < CHUNK ? CHUNK / (elements_per_row ? elements_per_row : 1) : 1;
    vptq_parallel_for(vptq_cpu_threads(dev, rows * elements_per_row), rows, chunk, fn, &job);
    return VPTQ_OK;
}

/* ---- embed ---- */

static void embed_range(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    vptq_embed_args part = *(const vptq_embed_args *)job->args;
    (void)thread;
    part.n = end - begin;
    part.ids += begin;
    part.out += begin * part.dim;
    /* Fails only for an unsupported type, which the caller has excluded. */
    const vptq_status st = vptq_ref_embed(job->dev, &part, NULL);
    VPTQ_BUG_IF(st);
}

vptq_status vptq_cpu_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err)
{
    if (a->type != VPTQ_F32 && a->type != VPTQ_F16 && a->type != VPTQ_BF16)
        return vptq_ref_embed(dev, a, err);
    return run(dev, a->n, a->dim, embed_range, a);
}

/* ---- rmsnorm ---- */

static void norm_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    const vptq_rmsnorm_args *a = job->args;
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        if (a->bias) {
            job->math->center(x, y, a->dim);
            x = y;
        }
        const double mean = job->math->sum_squares(x, a->dim) / (double)a->dim;
        job->math->norm(x, a->weight, (float)(1 / sqrt(mean + (double)a->eps)),
                        a->bias  ? a->bias
                        : a->add ? y
                                 : NULL,
                        y, a->dim);
    }
}

vptq_status vptq_cpu_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err)
{
    (void)err;
    return run(dev, a->n, a->dim, norm_rows, a);
}

/* ---- rope ---- */

static void rotate_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    const vptq_rope_args *a = job->args;
    const size_t half = vptq_rope_pairs(a);
    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t h = 0; h < a->heads; h++) {
            /* Exchanging the halves turns the other way. */
            float *x = a->x + r * a->ldx + h * a->head_dim;
            job->math->rotate(a->back ? x + half : x, a->back ? x : x + half,
                              a->cos_table + (a->pos0 + r) * half,
                              a->sin_table + (a->pos0 + r) * half, half);
        }
}

vptq_status vptq_cpu_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err)
{
    (void)err;
    return run(dev, a->n, a->heads * a->head_dim, rotate_rows, a);
}

vptq_status vptq_cpu_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_rope_args *a,
                               vptq_err *err)
{
    for (size_t s = 0; s < rows->sequences; s++) {
        vptq_rope_args part = *a;
        part.n = rows->starts[s + 1] - rows->starts[s];
        part.x += rows->starts[s] * a->ldx;
        part.pos0 = rows->positions[s];
        VPTQ_CHECK(vptq_cpu_rope(dev, &part, err));
    }
    return VPTQ_OK;
}

/* ---- swiglu ---- */

static void swiglu_range(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    const vptq_swiglu_args *a = job->args;
    (void)thread;
    job->math->swiglu(a->gate + begin, a->up ? a->up + begin : NULL, a->gelu, a->y + begin,
                      end - begin);
}

vptq_status vptq_cpu_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err)
{
    (void)err;
    return run(dev, a->n * a->dim, 1, swiglu_range, a);
}

/* ---- soft_cap ---- */

static void cap_range(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    const vptq_soft_cap_args *a = job->args;
    (void)thread;
    job->math->soft_cap(a->x + begin, end - begin, a->cap);
}

vptq_status vptq_cpu_soft_cap(vptq_dev *dev, const vptq_soft_cap_args *a, vptq_err *err)
{
    (void)err;
    return run(dev, a->n, 1, cap_range, a);
}

/* ---- nll ---- */

static void add_logits(const vptq_cpu_math *math, const vptq_nll_args *a, size_t row)
{
    const float *logits = a->logits + row * a->ld;
    const int32_t target = a->targets[row];
    vptq_nll_state *s = &a->state[row];
    const float max = math->max(logits, a->width);
    if (max > s->best) {
        size_t j = 0;
        while (logits[j] != max)
            j++;
        s->best = max;
        s->best_id = a->first + (int32_t)j;
    }
    if ((double)max > s->max) {
        s->sum *= exp(s->max - (double)max);
        s->max = (double)max;
    }
    /* While all logits so far are -inf, subtracting the maximum would give NaN. */
    const bool none = isinf(s->max) && s->max < 0;
    s->sum += math->exp_sum(logits, a->width, none ? 0 : (float)s->max);
    if (target >= a->first && (size_t)(target - a->first) < a->width)
        s->target = logits[target - a->first];
}

static void nll_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    const vptq_nll_args *a = job->args;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        if (a->start)
            a->state[i] = (vptq_nll_state){
                .max = -INFINITY, .target = -INFINITY, .best = -INFINITY, .best_id = -1};
        add_logits(job->math, a, i);
    }
}

vptq_status vptq_cpu_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err)
{
    (void)err;
    return run(dev, a->n, a->width, nll_rows, a);
}
