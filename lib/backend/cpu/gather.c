/* The rows vq_gather and vq_scatter. */
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* ---- gather ---- */

static void gather_columns(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_gather_args *g = arg;
    const size_t v = g->v, vector_rows = g->rows / v;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        float *q = g->q + t * g->ldq;
        const uint32_t *idx = g->idx + t * g->ldi;
        for (size_t i = 0; i < vector_rows; i++)
            memcpy(q + i * v, g->centroids + idx[i] * v, v * sizeof *q);
        for (size_t i = 0; g->k_res && i < vector_rows; i++) {
            const float *r = g->res_centroids + g->idx_res[t * g->ldi + i] * v;
            for (size_t d = 0; d < v; d++)
                q[i * v + d] += r[d];
        }
    }
}

vptq_status vptq_cpu_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err)
{
    vptq_gather_args args = *g;
    (void)err;
    vptq_parallel_for(dev->threads, g->cols, 4, gather_columns, &args);
    return VPTQ_OK;
}

/* ---- scatter ---- */

/* Every part of the columns has sums of its own; parts are added in order.  How many there are
 * follows from the shape alone, so the sums do not depend on the threads. */
typedef struct scatter_job {
    const vptq_scatter_args *s;
    size_t part_cols, parts;
    double *part_sums, *part_weights; /* [parts][k][v], [parts][k] */
} scatter_job;

static void scatter_parts(void *arg, size_t begin, size_t end, int thread)
{
    const scatter_job *job = arg;
    const vptq_scatter_args *s = job->s;
    const size_t v = s->v, k = s->k, vector_rows = s->rows / v;
    (void)thread;
    for (size_t p = begin; p < end; p++) {
        const size_t first = p * job->part_cols;
        const size_t last = s->cols - first < job->part_cols ? s->cols : first + job->part_cols;
        double *sums = job->part_sums + p * k * v, *weights = job->part_weights + p * k;
        memset(sums, 0, k * v * sizeof *sums);
        memset(weights, 0, k * sizeof *weights);
        for (size_t t = first; t < last; t++) {
            const double w = s->weight ? (double)s->weight[t] : 1;
            const float *y = s->y + t * s->ldy;
            const uint32_t *idx = s->idx + t * s->ldi;
            for (size_t i = 0; i < vector_rows; i++, y += v) {
                double *sum = sums + idx[i] * v;
                for (size_t d = 0; d < v; d++)
                    sum[d] += w * (double)y[d];
                weights[idx[i]] += w;
            }
        }
    }
}

static void add_parts(void *arg, size_t begin, size_t end, int thread)
{
    const scatter_job *job = arg;
    const vptq_scatter_args *s = job->s;
    const size_t v = s->v, k = s->k;
    (void)thread;
    memset(s->sums + begin * v, 0, (end - begin) * v * sizeof *s->sums);
    if (s->weights)
        memset(s->weights + begin, 0, (end - begin) * sizeof *s->weights);
    for (size_t p = 0; p < job->parts; p++) {
        for (size_t e = begin * v; e < end * v; e++)
            s->sums[e] += job->part_sums[p * k * v + e];
        for (size_t j = begin; s->weights && j < end; j++)
            s->weights[j] += job->part_weights[p * k + j];
    }
}

vptq_status vptq_cpu_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err)
{
    /* Enough parts for many threads, but no more zeroing and adding of sums than summing, and
     * at most 64 MiB of them. */
    const size_t slots = (size_t)s->k * (s->v + 1), vectors = s->cols * (s->rows / s->v);
    size_t parts = vectors / ((size_t)s->k * 4);
    if (parts > ((size_t)1 << 23) / slots)
        parts = ((size_t)1 << 23) / slots;
    if (parts > 64)
        parts = 64;
    if (parts > s->cols)
        parts = s->cols;
    if (parts < 1)
        parts = 1;
    scatter_job job = {.s = s};
    job.part_cols = (s->cols + parts - 1) / parts;
    job.parts = s->cols ? (s->cols + job.part_cols - 1) / job.part_cols : 0;
    job.part_sums = vptq_dev_scratch(dev, parts * slots, sizeof *job.part_sums, err);
    if (!job.part_sums)
        return VPTQ_E_NOMEM;
    job.part_weights = job.part_sums + parts * s->k * s->v;
    vptq_parallel_for(dev->threads, job.parts, 1, scatter_parts, &job);
    vptq_parallel_for(dev->threads, s->k, 256, add_parts, &job);
    return VPTQ_OK;
}
