#include "lib/backend/cpu_vq.h"

#include <math.h>
#include <string.h>

#include "lib/backend/cpu_vq_kernels.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

static const vptq_vq_kernels *kernels_of(const vptq_dev *dev)
{
#if defined(__x86_64__)
    if (dev->simd == VPTQ_SIMD_AVX512)
        return &vptq_vq_kernels_avx512;
    if (dev->simd == VPTQ_SIMD_AVX2)
        return &vptq_vq_kernels_avx2;
#endif
    (void)dev;
    return &vptq_vq_kernels_none;
}

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- books ---- */

static size_t book_blocks(uint32_t k)
{
    return round_up(k, VPTQ_BOOK_LANES) / VPTQ_BOOK_LANES;
}

static size_t book_floats(uint32_t v, uint32_t k)
{
    return book_blocks(k) * (1 + (size_t)v) * VPTQ_BOOK_LANES;
}

typedef struct book_job {
    uint32_t v, k;
    const float *c;
    float *data;
} book_job;

static void lay_blocks(void *arg, size_t begin, size_t end, int thread)
{
    enum { LANES = VPTQ_BOOK_LANES };
    const book_job *job = arg;
    const size_t v = job->v;
    (void)thread;
    for (size_t b = begin; b < end; b++) {
        float *restrict to = job->data + b * (1 + v) * LANES;
        const float *c = job->c + b * LANES * v;
        const size_t count = job->k - b * LANES < LANES ? job->k - b * LANES : LANES;
        double norm[LANES] = {0};
        for (size_t d = 0; d < v; d++) {
            float row[LANES] = {0};
            if (count == LANES) {
                for (size_t l = 0; l < LANES; l++)
                    row[l] = c[l * v + d];
            } else {
                for (size_t l = 0; l < count; l++)
                    row[l] = c[l * v + d];
            }
            for (size_t l = 0; l < LANES; l++)
                norm[l] += (double)row[l] * (double)row[l];
            memcpy(to + (1 + d) * LANES, row, sizeof row);
        }
        for (size_t l = 0; l < LANES; l++)
            to[l] = l < count ? (float)(-0.5 * norm[l]) : -INFINITY;
    }
}

/* Lays centroids c [k, v] into `data` (book_floats of them). */
static vptq_book lay_book(const vptq_dev *dev, uint32_t v, uint32_t k, const float *c,
                          float *data)
{
    book_job job = {.v = v, .k = k, .c = c, .data = data};
    vptq_book book = {.v = v, .blocks = book_blocks(k), .data = data};
    vptq_parallel_for(dev->threads, book.blocks, 32, lay_blocks, &job);
    return book;
}

/* ---- assign ---- */

typedef struct assign_job {
    const vptq_vq_kernels *kernels;
    vptq_book book;
    const float *x, *c;
    uint32_t *idx;
    float *dist;
} assign_job;

static void assign_range(void *arg, size_t begin, size_t end, int thread)
{
    const assign_job *job = arg;
    const size_t v = job->book.v;
    (void)thread;
    job->kernels->nearest(&job->book, end - begin, job->x + begin * v, job->idx + begin);
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

vptq_status vptq_cpu_assign(vptq_dev *dev, size_t n, uint32_t v, uint32_t k, const float *x,
                            const float *c, uint32_t *idx, float *dist, vptq_err *err)
{
    float *data = vptq_dev_scratch(dev, book_floats(v, k), sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    assign_job job = {.kernels = kernels_of(dev),
                      .book = lay_book(dev, v, k, c, data),
                      .x = x,
                      .c = c,
                      .idx = idx,
                      .dist = dist};
    /* About a million products per chunk, whole tiles of the widest kernel. */
    size_t chunk = round_up(((size_t)1 << 20) / ((size_t)k * v) + 1, 32);
    vptq_parallel_for(dev->threads, n, chunk, assign_range, &job);
    return VPTQ_OK;
}

/* ---- accumulate ---- */

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

vptq_status vptq_cpu_accumulate(vptq_dev *dev, size_t n, uint32_t v, uint32_t k, const float *x,
                                const float *w, const uint32_t *idx, const float *c,
                                double *sums, double *weights, double *objective, vptq_err *err)
{
    /* Enough parts for many threads, but no more zeroing and adding of sums than summing, and
     * at most 64 MiB of them. */
    const size_t slots = (size_t)k * (v + 1);
    size_t parts = n / ((size_t)k * 4);
    if (parts > ((size_t)1 << 23) / slots)
        parts = ((size_t)1 << 23) / slots;
    if (parts > 64)
        parts = 64;
    if (parts < 1)
        parts = 1;
    accumulate_job job = {.n = n, .v = v, .k = k, .x = x, .w = w, .c = c, .idx = idx};
    job.part_size = (n + parts - 1) / parts;
    job.parts = n ? (n + job.part_size - 1) / job.part_size : 0;
    job.part_sums = vptq_dev_scratch(dev, parts * (slots + 1), sizeof *job.part_sums, err);
    if (!job.part_sums)
        return VPTQ_E_NOMEM;
    job.part_weights = job.part_sums + parts * k * v;
    job.part_objective = job.part_weights + parts * k;
    job.sums = sums;
    job.weights = weights;
    vptq_parallel_for(dev->threads, job.parts, 1, accumulate_parts, &job);
    vptq_parallel_for(dev->threads, k, 256, add_parts, &job);
    *objective = 0;
    for (size_t p = 0; p < job.parts; p++)
        *objective += job.part_objective[p];
    return VPTQ_OK;
}

/* ---- column pass ---- */

/* A thread takes a few strips through all columns before it takes the next ones, so that their
 * errors stay in its cache.  A column first receives the errors of all earlier ones (the same
 * subtractions in the same order as if each had been propagated at once), then is quantized. */
typedef struct pass_job {
    const vptq_pass_args *p;
    const vptq_vq_kernels *kernels;
    vptq_book book, res_book;
    size_t room;    /* floats of a chunk, whole panels */
    float *scratch; /* one slice per thread: z, q, rest [room], err [room / 64][cols][64] */
    size_t slice;
} pass_job;

static void quantize_chunk(const pass_job *job, size_t t, size_t first, size_t strips,
                           const float *z, float *q, float *rest)
{
    const vptq_pass_args *p = job->p;
    const size_t v = p->v;
    uint32_t *idx = p->idx + t * p->ldi + first;
    job->kernels->nearest(&job->book, strips, z, idx);
    for (size_t i = 0; i < strips; i++)
        memcpy(q + i * v, p->centroids + idx[i] * v, v * sizeof *q);
    if (!p->k_res)
        return;
    for (size_t r = 0; r < strips * v; r++)
        rest[r] = z[r] - q[r];
    uint32_t *idx_res = p->idx_res + t * p->ldi + first;
    job->kernels->nearest(&job->res_book, strips, rest, idx_res);
    for (size_t i = 0; i < strips; i++) {
        const float *c = p->res_centroids + idx_res[i] * v;
        for (size_t d = 0; d < v; d++)
            q[i * v + d] += c[d];
    }
}

static void pass_chunk(void *arg, size_t begin, size_t end, int thread)
{
    const pass_job *job = arg;
    const vptq_pass_args *p = job->p;
    const size_t count = (end - begin) * p->v, row = begin * p->v;
    const size_t panels = round_up(count, VPTQ_PANEL) / VPTQ_PANEL;
    float *z = job->scratch + (size_t)thread * job->slice;
    float *q = z + job->room, *rest = q + job->room, *err = rest + job->room;
    memset(z, 0, 2 * job->room * sizeof *z); /* what fills the last panel counts as 0 */
    for (size_t t = 0; t < p->cols; t++) {
        float *z_out = p->z + t * p->ldz + row;
        memcpy(z, z_out, count * sizeof *z);
        for (size_t b = 0; b < panels; b++)
            job->kernels->eliminate(t, err + b * p->cols * VPTQ_PANEL, p->u + t, p->ldu,
                                    z + b * VPTQ_PANEL);
        memcpy(z_out, z, count * sizeof *z);
        quantize_chunk(job, t, begin, end - begin, z, q, rest);
        memcpy(p->q + t * p->ldq + row, q, count * sizeof *q);
        const float pivot = p->u[t * p->ldu + t];
        for (size_t b = 0; b < panels; b++) {
            float *e = err + (b * p->cols + t) * VPTQ_PANEL;
            for (size_t r = 0; r < VPTQ_PANEL; r++)
                e[r] = (z[b * VPTQ_PANEL + r] - q[b * VPTQ_PANEL + r]) / pivot;
        }
        for (size_t r = 0; r < count; r += VPTQ_PANEL)
            memcpy(p->err + t * p->lde + row + r,
                   err + (r / VPTQ_PANEL * p->cols + t) * VPTQ_PANEL,
                   (count - r < VPTQ_PANEL ? count - r : VPTQ_PANEL) * sizeof *err);
    }
}

/* Strips per chunk: about 256 floats, so that the errors of a block of 128 columns fit into a
 * part of L2, in whole tiles; smaller where there would not be one for every thread. */
static size_t pass_chunk_strips(const vptq_dev *dev, const vptq_pass_args *p)
{
    size_t strips = p->rows / p->v, threads = (size_t)dev->threads;
    size_t most = p->v < 8 ? 256 / p->v / 32 * 32 : 32;
    size_t share = round_up((strips + threads - 1) / threads, 16);
    return share < most ? share : most;
}

vptq_status vptq_cpu_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err)
{
    size_t strips = p->rows / p->v;
    if (!strips || !p->cols)
        return VPTQ_OK;
    size_t chunk = pass_chunk_strips(dev, p);
    pass_job job = {.p = p, .kernels = kernels_of(dev)};
    job.room = round_up(chunk * p->v, VPTQ_PANEL);
    job.slice = job.room * (3 + p->cols);
    size_t main_floats = book_floats(p->v, p->k);
    size_t res_floats = p->k_res ? book_floats(p->v, p->k_res) : 0;
    size_t floats = main_floats + res_floats + (size_t)dev->threads * job.slice;
    float *data = vptq_dev_scratch(dev, floats, sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    job.book = lay_book(dev, p->v, p->k, p->centroids, data);
    if (p->k_res)
        job.res_book = lay_book(dev, p->v, p->k_res, p->res_centroids, data + main_floats);
    job.scratch = data + main_floats + res_floats;
    vptq_parallel_for(dev->threads, strips, chunk, pass_chunk, &job);
    return VPTQ_OK;
}
