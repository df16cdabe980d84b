/* Gradients of the cpu backend that work row by row: rmsnorm, swiglu and the loss. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/gradients.h"
#include "lib/backend/cpu/math.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    ROWS = 64,          /* rows of rmsnorm whose dweight is summed on its own */
    ELEMENTS = 1 << 14, /* of a task of swiglu */
};

/* ---- rmsnorm ---- */

typedef struct norm_job {
    const vptq_cpu_math *math;
    const vptq_cpu_gradients *loops;
    const vptq_rmsnorm_grad_args *a;
    double *part; /* [tasks, dim] of dweight, or NULL */
} norm_job;

/* Task `begin`: ROWS rows. */
static void norm_rows(void *arg, size_t begin, size_t end, int thread)
{
    const norm_job *job = arg;
    const vptq_rmsnorm_grad_args *a = job->a;
    const size_t last = (begin + 1) * ROWS < a->n ? (begin + 1) * ROWS : a->n;
    double *part = job->part ? job->part + begin * a->dim : NULL;
    (void)end;
    (void)thread;
    if (part)
        memset(part, 0, a->dim * sizeof *part);
    for (size_t i = begin * ROWS; i < last; i++) {
        const float *x = a->x + i * a->dim, *dy = a->dy + i * a->dim;
        const double mean = job->math->sum_squares(x, a->dim) / (double)a->dim;
        const double r = 1 / sqrt(mean + (double)a->eps);
        const double along = job->loops->norm_along(dy, a->weight, x, a->dim);
        if (part)
            job->loops->norm_weight(dy, x, (float)r, part, a->dim);
        const float factor[] = {(float)r, (float)(r * r * r * along / (double)a->dim)};
        job->loops->norm(dy, a->weight, x, factor, a->add, a->dx + i * a->dim, a->dim);
    }
}

vptq_status vptq_cpu_rmsnorm_grad(vptq_dev *dev, const vptq_rmsnorm_grad_args *a, vptq_err *err)
{
    const size_t tasks = (a->n + ROWS - 1) / ROWS;
    norm_job job = {vptq_cpu_math_get(dev->simd), vptq_cpu_gradients_get(dev->simd), a, NULL};
    if (a->dweight && tasks) {
        job.part = vptq_dev_scratch(dev, tasks * a->dim, sizeof *job.part, err);
        if (!job.part)
            return VPTQ_E_NOMEM;
    }
    vptq_parallel_for(vptq_cpu_threads(dev, a->n * a->dim), tasks, 1, norm_rows, &job);
    for (size_t t = 0; a->dweight && t < tasks; t++)
        for (size_t j = 0; j < a->dim; j++)
            a->dweight[j] += job.part[t * a->dim + j];
    return VPTQ_OK;
}

/* ---- swiglu ---- */

typedef struct swiglu_job {
    const vptq_cpu_gradients *loops;
    const vptq_swiglu_grad_args *a;
} swiglu_job;

static void swiglu_range(void *arg, size_t begin, size_t end, int thread)
{
    const swiglu_job *job = arg;
    (void)thread;
    job->loops->swiglu(job->a->gate + begin, job->a->up + begin, job->a->dy + begin,
                       end - begin);
}

vptq_status vptq_cpu_swiglu_grad(vptq_dev *dev, const vptq_swiglu_grad_args *a, vptq_err *err)
{
    swiglu_job job = {vptq_cpu_gradients_get(dev->simd), a};
    const size_t size = a->n * a->dim;
    (void)err;
    vptq_parallel_for(vptq_cpu_threads(dev, size), size, ELEMENTS, swiglu_range, &job);
    return VPTQ_OK;
}

/* ---- the loss ---- */

typedef struct kl_job {
    const vptq_cpu_math *math;
    const vptq_cpu_gradients *loops;
    const vptq_kl_grad_args *a;
} kl_job;

static double follow_teacher(const kl_job *job, float *logits, const float *teacher)
{
    const size_t n = job->a->vocab;
    const float max[] = {job->math->max(logits, n), job->math->max(teacher, n)};
    const double sum = job->math->exp_sum(logits, n, max[0]);
    const double wanted = job->math->exp_sum(teacher, n, max[1]);
    const float factor[] = {(float)(1 / sum), (float)(1 / wanted)};
    const double apart = job->loops->kl(logits, teacher, n, max, factor, job->a->scale);
    return apart + (log(sum) - log(wanted)) + ((double)max[0] - (double)max[1]);
}

static double follow_target(const kl_job *job, float *logits, size_t target)
{
    const size_t n = job->a->vocab;
    const float max = job->math->max(logits, n), scale = job->a->scale;
    const double sum = job->math->exp_sum(logits, n, max);
    const double loss = log(sum) + ((double)max - (double)logits[target]);
    job->math->exp_shift(logits, n, max);
    job->math->scale(logits, n, (float)((double)scale / sum));
    logits[target] -= scale;
    return loss;
}

static void kl_rows(void *arg, size_t begin, size_t end, int thread)
{
    const kl_job *job = arg;
    const vptq_kl_grad_args *a = job->a;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        float *logits = a->logits + i * a->vocab;
        if (a->teacher)
            a->loss[i] = follow_teacher(job, logits, a->teacher + i * a->vocab);
        else if (a->targets[i] >= 0)
            a->loss[i] = follow_target(job, logits, (size_t)a->targets[i]);
        else {
            a->loss[i] = 0;
            memset(logits, 0, a->vocab * sizeof *logits);
        }
    }
}

vptq_status vptq_cpu_kl_grad(vptq_dev *dev, const vptq_kl_grad_args *a, vptq_err *err)
{
    kl_job job = {vptq_cpu_math_get(dev->simd), vptq_cpu_gradients_get(dev->simd), a};
    (void)err;
    vptq_parallel_for(vptq_cpu_threads(dev, a->n * a->vocab), a->n, 1, kl_rows, &job);
    return VPTQ_OK;
}
