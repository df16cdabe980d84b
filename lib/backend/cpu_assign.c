/* The rows assign and reassign. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu_book.h"
#include "lib/backend/cpu_vq.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

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
    float *data = vptq_dev_scratch(dev, vptq_book_floats(v, k), sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    assign_job job = {.kernels = vptq_vq_kernels_of(dev),
                      .book = vptq_book_lay(dev, v, k, c, data),
                      .x = x,
                      .c = c,
                      .idx = idx,
                      .dist = dist};
    /* About a million products per chunk, whole tiles of the widest kernel. */
    size_t chunk = vptq_round_up(((size_t)1 << 20) / ((size_t)k * v) + 1, 32);
    vptq_parallel_for(dev->threads, n, chunk, assign_range, &job);
    return VPTQ_OK;
}

/* ---- vectors with labels ---- */

/* A vector x with label a is |x - a| from a centroid, so that one further than 2 |x - a| from
 * a cannot be nearer.  What is added is far more than the rounding of scores can confuse: the
 * score of what is left out is lower by more than 5e-5 (|x| + |x - a|)^2. */
typedef struct reassign_job {
    const vptq_search_kernels *kernels;
    vptq_cluster_books b;
    const float *c;
    uint32_t *idx;
    float *rows;
    float *reach;                     /* [n] */
    uint32_t *member, *order, *first; /* [n] sorted by label and reach, [n], [k + 1] */
    float *room;                      /* per thread */
} reassign_job;

static void lay_rows(reassign_job *job)
{
    enum { LANES = VPTQ_BOOK_LANES };
    const size_t v = job->b.book.v;
    for (size_t j = 0; j < job->b.k; j++) {
        const float *from = job->b.book.data + j / LANES * (1 + v) * LANES + j % LANES;
        for (size_t d = 0; d <= v; d++)
            job->rows[j * (1 + v) + d] = from[d * LANES];
    }
}

static void set_reaches(void *arg, size_t begin, size_t end, int thread)
{
    const reassign_job *job = arg;
    const size_t v = job->b.book.v;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const float *x = job->b.x + i * v, *a = job->c + job->idx[i] * v;
        float norm = 0, distance = 0;
        for (size_t d = 0; d < v; d++) {
            norm += x[d] * x[d];
            distance += (x[d] - a[d]) * (x[d] - a[d]);
        }
        distance = sqrtf(distance);
        const float reach = 2 * distance + 0.01F * (sqrtf(norm) + distance);
        job->reach[i] = reach < INFINITY ? reach : INFINITY;
    }
}

/* Groups the vectors by label and, inside a group, roughly by reach: two counting sorts. */
static void sort_members(reassign_job *job, size_t n)
{
    enum { BUCKETS = 256 };
    uint32_t start[BUCKETS + 1] = {0};
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = job->reach[i] > most && job->reach[i] < INFINITY ? job->reach[i] : most;
    const float scale = most > 0 ? (BUCKETS - 2) / most : 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            const float reach = job->reach[i];
            const size_t bucket = reach < INFINITY ? (size_t)(reach * scale) : BUCKETS - 1;
            if (pass)
                job->order[start[bucket]++] = (uint32_t)i;
            else
                start[bucket + 1]++;
        }
        for (size_t b = 0; !pass && b < BUCKETS; b++)
            start[b + 1] += start[b];
    }
    memset(job->first, 0, (job->b.k + 1) * sizeof *job->first);
    for (size_t i = 0; i < n; i++)
        job->first[job->idx[i] + 1]++;
    for (size_t j = 0; j < job->b.k; j++)
        job->first[j + 1] += job->first[j];
    for (size_t i = 0; i < n; i++) /* first[j] moves on to where j ends ... */
        job->member[job->first[job->idx[job->order[i]]]++] = job->order[i];
    memmove(job->first + 1, job->first, job->b.k * sizeof *job->first); /* ... and back */
    job->first[0] = 0;
}

static void search_clusters(void *arg, size_t begin, size_t end, int thread)
{
    const reassign_job *job = arg;
    float *room = job->room + (size_t)thread * vptq_cluster_room(&job->b);
    for (size_t j = begin; j < end; j++) {
        const uint32_t first = job->first[j], n = job->first[j + 1] - first;
        if (n)
            job->kernels->search_cluster(&job->b, (uint32_t)j, n, job->member + first,
                                         job->reach, room, job->idx);
    }
}

/* Below, the centroids around one are most of all, and a cluster is cheaper to search whole. */
static bool worth_grouping(size_t n, uint32_t k)
{
    return k >= 512 && n >= k && n < UINT32_MAX;
}

vptq_status vptq_cpu_reassign(vptq_dev *dev, size_t n, uint32_t v, uint32_t k, const float *x,
                              const float *c, uint32_t *idx, vptq_err *err)
{
    if (!worth_grouping(n, k))
        return vptq_cpu_assign(dev, n, v, k, x, c, idx, NULL, err);
    const size_t book = vptq_book_floats(v, k);
    const size_t rows = vptq_round_up((size_t)k * (1 + v), VPTQ_BOOK_LANES);
    reassign_job job = {.kernels = vptq_search_kernels_of(dev), .c = c, .idx = idx};
    job.b = (vptq_cluster_books){.k = k, .x = x};
    job.b.book = (vptq_book){.v = v, .blocks = book / ((1 + v) * VPTQ_BOOK_LANES)};
    const size_t room = (size_t)dev->threads * vptq_cluster_room(&job.b);
    float *data = vptq_dev_scratch(dev, book + rows + room + 3 * n + k + 1, sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    job.b.book = vptq_book_lay(dev, v, k, c, data);
    job.rows = data + book;
    job.b.rows = job.rows;
    job.room = job.rows + rows;
    job.reach = job.room + room;
    job.member = (uint32_t *)(void *)(job.reach + n);
    job.order = job.member + n;
    job.first = job.order + n;
    lay_rows(&job);
    vptq_parallel_for(dev->threads, n, 4096, set_reaches, &job);
    sort_members(&job, n);
    vptq_parallel_for(dev->threads, k, 8, search_clusters, &job);
    return VPTQ_OK;
}
