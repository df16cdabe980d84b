/* The op assign: every vector is compared with every centroid. */
#include "lib/backend/cpu/codebook.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

typedef struct assign_job {
    const vptq_nearest_kernels *kernels;
    vptq_codebook codebook;
    const float *x, *c;
    uint32_t *idx;
    float *dist;
} assign_job;

static void assign_range(void *arg, size_t begin, size_t end, int thread)
{
    const assign_job *job = arg;
    const size_t v = job->codebook.v;
    (void)thread;
    job->kernels->nearest(&job->codebook, end - begin, job->x + begin * v, job->idx + begin);
    if (!job->dist)
        return;
    for (size_t i = begin; i < end; i++) {
        const float *x = job->x + i * v, *c = job->c + job->idx[i] * v;
        float sum = 0;
        for (size_t d = 0; d < v; d++)
            sum += (x[d] - c[d]) * (x[d] - c[d]);
        job->dist[i] = sum;
    }
}

vptq_status vptq_cpu_assign(vptq_dev *dev, const vptq_assign_args *p, vptq_err *err)
{
    float *data = vptq_dev_scratch(dev, vptq_codebook_floats(p->v, p->k), sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    assign_job job = {.kernels = vptq_nearest_kernels_get(dev->simd),
                      .codebook = vptq_codebook_lay(dev, p->v, p->k, p->centroids, data),
                      .x = p->x,
                      .c = p->centroids,
                      .idx = p->idx,
                      .dist = p->dist};
    /* About a million products per task, in whole tiles of the widest kernel. */
    size_t chunk = vptq_round_up(((size_t)1 << 20) / ((size_t)p->k * p->v) + 1, 32);
    vptq_parallel_for(dev->threads, p->n, chunk, assign_range, &job);
    return VPTQ_OK;
}
