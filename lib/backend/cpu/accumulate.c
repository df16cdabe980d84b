/* The row accumulate. */
#include "lib/backend/cpu/cpu.h"

#include <string.h>

#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* Every part of the vectors has sums of its own; parts are added in order.  How many there are
 * follows from the shape alone, so the sums do not depend on the threads. */
typedef struct accumulate_job {
    size_t n, v, k, part_size, parts;
    const float *x, *w, *c;
    const uint32_t *idx;
    double *part_sums;                     /* [parts][k][v], then */
    double *part_weights, *part_objective; /* [parts][k], [parts] */
    double *sums, *weights;
} accumulate_job;

static inline __attribute__((always_inline)) double add_vectors(const accumulate_job *job,
                                                                size_t v, size_t begin,
                                                                size_t end, double *sums,
                                                                double *weights)
{
    double objective = 0;
    for (size_t i = begin; i < end; i++) {
        const size_t j = job->idx[i];
        const float *x = job->x + i * v, *c = job->c + j * v;
        const double w = job->w ? (double)job->w[i] : 1;
        double distance = 0;
        for (size_t d = 0; d < v; d++) {
            double diff = (double)x[d] - (double)c[d];
            distance += diff * diff;
            sums[j * v + d] += w * (double)x[d];
        }
        weights[j] += w;
        objective += w * distance;
    }
    return objective;
}

static void accumulate_parts(void *arg, size_t begin, size_t end, int thread)
{
    const accumulate_job *job = arg;
    (void)thread;
    for (size_t p = begin; p < end; p++) {
        size_t first = p * job->part_size;
        size_t last = job->n - first < job->part_size ? job->n : first + job->part_size;
        double *sums = job->part_sums + p * job->k * job->v;
        double *weights = job->part_weights + p * job->k;
        double *objective = job->part_objective + p;
        memset(sums, 0, job->k * job->v * sizeof *sums);
        memset(weights, 0, job->k * sizeof *weights);
        switch (job->v) { /* the lengths in use get loops of constant length */
        case 4:
            *objective = add_vectors(job, 4, first, last, sums, weights);
            break;
        case 6:
            *objective = add_vectors(job, 6, first, last, sums, weights);
            break;
        case 8:
            *objective = add_vectors(job, 8, first, last, sums, weights);
            break;
        default:
            *objective = add_vectors(job, job->v, first, last, sums, weights);
            break;
        }
    }
}

static void add_parts(void *arg, size_t begin, size_t end, int thread)
{
    const accumulate_job *job = arg;
    const size_t v = job->v, k = job->k;
    (void)thread;
    memset(job->sums + begin * v, 0, (end - begin) * v * sizeof *job->sums);
    memset(job->weights + begin, 0, (end - begin) * sizeof *job->weights);
    for (size_t p = 0; p < job->parts; p++) {
        for (size_t e = begin * v; e < end * v; e++)
            job->sums[e] += job->part_sums[p * k * v + e];
        for (size_t j = begin; j < end; j++)
            job->weights[j] += job->part_weights[p * k + j];
    }
}

vptq_status vptq_cpu_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err)
{
    /* Enough parts for many threads, but no more zeroing and adding of sums than summing,
     * and at most 64 MiB of them. */
    const size_t slots = (size_t)a->k * (a->v + 1);
    size_t parts = a->n / ((size_t)a->k * 4);
    if (parts > ((size_t)1 << 23) / slots)
        parts = ((size_t)1 << 23) / slots;
    if (parts > 64)
        parts = 64;
    if (parts < 1)
        parts = 1;
    accumulate_job job = {.n = a->n,
                          .v = a->v,
                          .k = a->k,
                          .x = a->x,
                          .w = a->w,
                          .c = a->centroids,
                          .idx = a->idx};
    job.part_size = (a->n + parts - 1) / parts;
    job.parts = a->n ? (a->n + job.part_size - 1) / job.part_size : 0;
    job.part_sums = vptq_dev_scratch(dev, parts * (slots + 1), sizeof *job.part_sums, err);
    if (!job.part_sums)
        return VPTQ_E_NOMEM;
    job.part_weights = job.part_sums + parts * a->k * a->v;
    job.part_objective = job.part_weights + parts * a->k;
    job.sums = a->sums;
    job.weights = a->weights;
    vptq_parallel_for(dev->threads, job.parts, 1, accumulate_parts, &job);
    vptq_parallel_for(dev->threads, a->k, 256, add_parts, &job);
    *a->objective = 0;
    for (size_t p = 0; p < job.parts; p++)
        *a->objective += job.part_objective[p];
    return VPTQ_OK;
}
