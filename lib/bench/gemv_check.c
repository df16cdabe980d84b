/* Compares all rows of a packed product with the decoded matrix, several groups at a time. */
#include "lib/bench/gemv_check.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/parallel.h"

enum { GROUP = 16 }; /* rows: few enough that one wrong element stands out */
static const double limit = 1e-3;

typedef struct check_job {
    const vptq_ctx *ctx;
    const vptq_device *ref;
    const vptq_matrix *matrix;
    size_t out, in, n;
    const float *x, *y;
    float *rows;   /* [threads, GROUP, in] */
    double *error; /* [groups] relative to the norm */
} check_job;

static double compare_group(const check_job *job, size_t first, size_t count, const float *w)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < job->n; i++)
        for (size_t r = 0; r < count; r++) {
            double want = 0;
            for (size_t j = 0; j < job->in; j++)
                want += (double)w[r * job->in + j] * (double)job->x[i * job->in + j];
            const double d = want - (double)job->y[i * job->out + first + r];
            error += d * d;
            norm += want * want;
        }
    return norm > 0 ? sqrt(error / norm) : (double)INFINITY;
}

static void check_groups(void *arg, size_t begin, size_t end, int thread)
{
    const check_job *job = arg;
    float *w = job->rows + (size_t)thread * GROUP * job->in;
    for (size_t g = begin; g < end && !vptq_check_cancel(job->ctx, NULL); g++) {
        const size_t first = g * GROUP, left = job->out - first;
        const size_t count = left < GROUP ? left : GROUP;
        /* ref decodes without state: any number of threads may */
        const vptq_status st = job->ref->ops->vq_dequant(job->ref->state, job->matrix, first,
                                                         count, w, job->in, NULL);
        job->error[g] = st ? (double)INFINITY : compare_group(job, first, count, w);
    }
}

vptq_status vptq_gemv_check(const vptq_ctx *ctx, const vptq_vq *q, size_t n, const float *x,
                            const float *y, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t out = q->shape.out, in = q->shape.in, groups = (out + GROUP - 1) / GROUP;
    const int threads = ctx->threads > 0 ? ctx->threads : vptq_cpu_count();
    vptq_device ref = {0};
    vptq_matrix *matrix = NULL;
    vptq_arena arena;
    vptq_arena_init(&arena, ctx->mem);
    check_job job = {.ctx = ctx, .ref = &ref, .out = out, .in = in, .n = n, .x = x, .y = y};
    job.rows = vptq_arena_alloc(&arena, (size_t)threads * GROUP * in, sizeof *job.rows, err);
    job.error = vptq_arena_alloc(&arena, groups, sizeof *job.error, err);
    if (!job.rows || !job.error)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_device_open(ctx, "ref", &ref, err));
    VPTQ_TRY(ref.ops->matrix_open(ref.state, q, &matrix, err));
    job.matrix = matrix;
    vptq_parallel_for(threads, groups, 1, check_groups, &job);
    VPTQ_TRY(vptq_check_cancel(ctx, err));
    for (size_t g = 0; g < groups && !st; g++)
        if (!(job.error[g] <= limit))
            st = vptq_fail(
                err, VPTQ_E_NUMERIC,
                "in %zu, out %zu, k %u, k_res %u, batch %zu: the product of rows %zu "
                "to %zu is off by %g of its norm, expected at most %g",
                in, out, q->shape.k, q->shape.k_res, n, g * GROUP,
                (g + 1) * GROUP < out ? (g + 1) * GROUP - 1 : out - 1, job.error[g], limit);
out:
    if (ref.ops) {
        ref.ops->matrix_close(ref.state, matrix);
        vptq_device_close(&ref);
    }
    vptq_arena_release(&arena);
    return st;
}
