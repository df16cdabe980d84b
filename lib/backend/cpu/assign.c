/* The op assign: every vector is compared with every centroid. */
#include "lib/backend/cpu/codebook.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

typedef struct assign_job {
    const vptq_nearest_kernels *kernels;
    vptq_codebook codebook;
    const vptq_assign_args *args;
} assign_job;

static void assign_range(void *arg, size_t begin, size_t end, int thread)
{
    const assign_job *job = arg;
    const vptq_assign_args *a = job->args;
    const size_t v = job->codebook.v;
    (void)thread;
    job->kernels->nearest(&job->codebook, end - begin, a->x + begin * v, a->idx + begin);
    if (!a->dist)
        return;
    for (size_t i = begin; i < end; i++)
        a->dist[i] = vptq_distance(a->x + i * v, a->centroids + a->idx[i] * v, v);
}

vptq_status vptq_cpu_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    float *data = vptq_dev_scratch(dev, vptq_codebook_floats(a->v, a->k), sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    assign_job job = {.kernels = vptq_nearest_kernels_get(dev->simd),
                      .codebook = vptq_codebook_lay(dev, a->v, a->k, a->centroids, data),
                      .args = a};
    /* About a million products per task, in whole tiles of the widest kernel. */
    size_t chunk = vptq_round_up(((size_t)1 << 20) / ((size_t)a->k * a->v) + 1, 32);
    vptq_parallel_for(dev->ctx->threads, a->n, chunk, assign_range, &job);
    return VPTQ_OK;
}
