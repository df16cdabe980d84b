/* The ops accumulate and vq_scatter: weighted sums per centroid.
 *
 * The vectors are cut into parts with sums of their own, which are added in order.  The number
 * of parts follows from the shape alone, so that results do not depend on the threads. */
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* Enough parts for many threads, but summing takes longer than clearing and adding the parts,
 * and these fit into 64 MiB. */
static size_t count_parts(size_t vectors, size_t k, size_t v)
{
    enum { MAX_PARTS = 64, MAX_DOUBLES = 1 << 23 };
    const size_t slots = k * (v + 1);
    size_t parts = vectors / (k * 4);
    parts = parts < MAX_DOUBLES / slots ? parts : MAX_DOUBLES / slots;
    parts = parts < MAX_PARTS ? parts : MAX_PARTS;
    return parts > 0 ? parts : 1;
}

/* The sums of all parts, and their total. */
typedef struct parts_job {
    size_t v, k, parts;
    double *part_sums, *part_weights; /* [parts][k][v], [parts][k] */
    double *sums, *weights;           /* [k][v], [k] or NULL */
} parts_job;

static void add_parts(void *arg, size_t begin, size_t end, int thread)
{
    const parts_job *job = arg;
    const size_t v = job->v, k = job->k;
    (void)thread;
    memset(job->sums + begin * v, 0, (end - begin) * v * sizeof *job->sums);
    if (job->weights)
        memset(job->weights + begin, 0, (end - begin) * sizeof *job->weights);
    for (size_t p = 0; p < job->parts; p++) {
        for (size_t e = begin * v; e < end * v; e++)
            job->sums[e] += job->part_sums[p * k * v + e];
        for (size_t j = begin; job->weights && j < end; j++)
            job->weights[j] += job->part_weights[p * k + j];
    }
}

/* ---- accumulate ---- */

typedef struct accumulate_job {
    const vptq_accumulate_args *args;
    parts_job all;
    size_t part_size;
    double *part_objective; /* [parts] */
} accumulate_job;

/* Adds vectors [begin, end) and returns their objective. */
static inline __attribute__((always_inline)) double add_vectors(const vptq_accumulate_args *a,
                                                                size_t v, size_t begin,
                                                                size_t end, double *sums,
                                                                double *weights)
{
    double objective = 0;
    for (size_t i = begin; i < end; i++) {
        const size_t j = a->idx[i];
        const float *x = a->x + i * v, *c = a->centroids + j * v;
        const double w = a->w ? (double)a->w[i] : 1;
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
    const vptq_accumulate_args *a = job->args;
    const size_t v = a->v, k = a->k;
    (void)thread;
    for (size_t p = begin; p < end; p++) {
        const size_t first = p * job->part_size;
        const size_t last = a->n - first < job->part_size ? a->n : first + job->part_size;
        double *sums = job->all.part_sums + p * k * v;
        double *weights = job->all.part_weights + p * k;
        double *objective = job->part_objective + p;
        memset(sums, 0, k * v * sizeof *sums);
        memset(weights, 0, k * sizeof *weights);
        switch (v) { /* the lengths in use get loops of constant length */
        case 4:
            *objective = add_vectors(a, 4, first, last, sums, weights);
            break;
        case 6:
            *objective = add_vectors(a, 6, first, last, sums, weights);
            break;
        case 8:
            *objective = add_vectors(a, 8, first, last, sums, weights);
            break;
        default:
            *objective = add_vectors(a, v, first, last, sums, weights);
            break;
        }
    }
}

vptq_status vptq_cpu_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err)
{
    const size_t k = a->k, v = a->v, parts = count_parts(a->n, k, v);
    accumulate_job job = {.args = a,
                          .all = {.v = v, .k = k, .sums = a->sums, .weights = a->weights},
                          .part_size = (a->n + parts - 1) / parts};
    job.all.parts = a->n ? (a->n + job.part_size - 1) / job.part_size : 0;
    double *work = vptq_dev_scratch(dev, parts * (k * (v + 1) + 1), sizeof *work, err);
    if (!work)
        return VPTQ_E_NOMEM;
    job.all.part_sums = work;
    job.all.part_weights = work + parts * k * v;
    job.part_objective = job.all.part_weights + parts * k;
    vptq_parallel_for(dev->threads, job.all.parts, 1, accumulate_parts, &job);
    vptq_parallel_for(dev->threads, k, 256, add_parts, &job.all);
    *a->objective = 0;
    for (size_t p = 0; p < job.all.parts; p++)
        *a->objective += job.part_objective[p];
    return VPTQ_OK;
}

/* ---- vq_scatter ---- */

typedef struct scatter_job {
    const vptq_scatter_args *args;
    parts_job all;
    size_t part_cols;
} scatter_job;

static void scatter_parts(void *arg, size_t begin, size_t end, int thread)
{
    const scatter_job *job = arg;
    const vptq_scatter_args *s = job->args;
    const size_t v = s->v, k = s->k, vector_rows = s->rows / v;
    (void)thread;
    for (size_t p = begin; p < end; p++) {
        const size_t first = p * job->part_cols;
        const size_t last = s->cols - first < job->part_cols ? s->cols : first + job->part_cols;
        double *sums = job->all.part_sums + p * k * v;
        double *weights = job->all.part_weights + p * k;
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

vptq_status vptq_cpu_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err)
{
    const size_t k = s->k, v = s->v, vectors = s->cols * (s->rows / v);
    size_t parts = count_parts(vectors, k, v);
    if (s->cols && parts > s->cols)
        parts = s->cols;
    scatter_job job = {.args = s,
                       .all = {.v = v, .k = k, .sums = s->sums, .weights = s->weights},
                       .part_cols = (s->cols + parts - 1) / parts};
    job.all.parts = s->cols ? (s->cols + job.part_cols - 1) / job.part_cols : 0;
    double *work = vptq_dev_scratch(dev, parts * k * (v + 1), sizeof *work, err);
    if (!work)
        return VPTQ_E_NOMEM;
    job.all.part_sums = work;
    job.all.part_weights = work + parts * k * v;
    vptq_parallel_for(dev->threads, job.all.parts, 1, scatter_parts, &job);
    vptq_parallel_for(dev->threads, k, 256, add_parts, &job.all);
    return VPTQ_OK;
}
