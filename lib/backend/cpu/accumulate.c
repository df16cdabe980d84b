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

typedef struct sums_job {
    /* Adds items [first, last) to cleared sums [k][v] and weights [k]; returns their objective.
     */
    double (*add)(const void *args, size_t first, size_t last, double *sums, double *weights);
    const void *args;
    size_t v, k, items;
    size_t parts, part_size;                           /* of the items */
    double *part_sums, *part_weights, *part_objective; /* [parts][k][v], [parts][k], [parts] */
    double *sums, *weights;                            /* [k][v], [k][repeat] or NULL */
    size_t repeat;                                     /* of each weight */
} sums_job;

static void sum_parts(void *arg, size_t begin, size_t end, int thread)
{
    const sums_job *job = arg;
    const size_t v = job->v, k = job->k;
    (void)thread;
    for (size_t p = begin; p < end; p++) {
        const size_t first = p * job->part_size, left = job->items - first;
        double *sums = job->part_sums + p * k * v, *weights = job->part_weights + p * k;
        memset(sums, 0, k * v * sizeof *sums);
        memset(weights, 0, k * sizeof *weights);
        job->part_objective[p] =
            job->add(job->args, first, first + (left < job->part_size ? left : job->part_size),
                     sums, weights);
    }
}

static void add_parts(void *arg, size_t begin, size_t end, int thread)
{
    const sums_job *job = arg;
    const size_t v = job->v, k = job->k;
    (void)thread;
    memset(job->sums + begin * v, 0, (end - begin) * v * sizeof *job->sums);
    for (size_t p = 0; p < job->parts; p++)
        for (size_t e = begin * v; e < end * v; e++)
            job->sums[e] += job->part_sums[p * k * v + e];
    for (size_t j = begin; job->weights && j < end; j++) {
        double weight = 0;
        for (size_t p = 0; p < job->parts; p++)
            weight += job->part_weights[p * k + j];
        for (size_t d = 0; d < job->repeat; d++)
            job->weights[j * job->repeat + d] = weight;
    }
}

/* Sums all items in about `parts` parts; *objective is the sum of theirs. */
static vptq_status sum(vptq_dev *dev, sums_job *job, size_t parts, double *objective,
                       vptq_err *err)
{
    const size_t k = job->k, v = job->v;
    job->part_size = (job->items + parts - 1) / parts;
    job->parts = job->items ? (job->items + job->part_size - 1) / job->part_size : 0;
    double *work = vptq_dev_scratch(dev, parts * (k * (v + 1) + 1), sizeof *work, err);
    if (!work)
        return VPTQ_E_NOMEM;
    job->part_sums = work;
    job->part_weights = work + parts * k * v;
    job->part_objective = job->part_weights + parts * k;
    vptq_parallel_for(dev->ctx->threads, job->parts, 1, sum_parts, job);
    vptq_parallel_for(dev->ctx->threads, k, 256, add_parts, job);
    *objective = 0;
    for (size_t p = 0; p < job->parts; p++)
        *objective += job->part_objective[p];
    return VPTQ_OK;
}

/* ---- accumulate ---- */

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

static double accumulate_vectors(const void *args, size_t first, size_t last, double *sums,
                                 double *weights)
{
    const vptq_accumulate_args *a = args;
    VPTQ_WITH_V(a->v, return add_vectors(a, V, first, last, sums, weights));
}

vptq_status vptq_cpu_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err)
{
    sums_job job = {.add = accumulate_vectors,
                    .args = a,
                    .v = a->v,
                    .k = a->k,
                    .items = a->n,
                    .sums = a->sums,
                    .weights = a->weights,
                    .repeat = 1};
    return sum(dev, &job, count_parts(a->n, a->k, a->v), a->objective, err);
}

/* ---- vq_scatter ---- */

static double scatter_columns(const void *args, size_t first, size_t last, double *sums,
                              double *weights)
{
    const vptq_scatter_args *s = args;
    const size_t v = s->v, vector_rows = s->rows / v;
    for (size_t t = first; t < last; t++) {
        const double w = s->weight ? (double)s->weight[t] : 1;
        const float *y = s->y + t * s->ldy;
        const uint32_t *idx = s->idx + t * s->ldi;
        for (size_t i = 0; i < vector_rows; i++, y += v) {
            double *total = sums + idx[i] * v;
            for (size_t d = 0; d < v; d++)
                total[d] += w * (double)y[d];
            weights[idx[i]] += w;
        }
    }
    return 0;
}

vptq_status vptq_cpu_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err)
{
    sums_job job = {.add = scatter_columns,
                    .args = s,
                    .v = s->v,
                    .k = s->k,
                    .items = s->cols,
                    .sums = s->sums,
                    .weights = s->weights,
                    .repeat = s->v};
    size_t parts = count_parts(s->cols * (s->rows / s->v), s->k, s->v);
    double objective;
    if (s->cols && parts > s->cols)
        parts = s->cols;
    return sum(dev, &job, parts, &objective, err);
}
