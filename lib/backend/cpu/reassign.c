/* The op reassign: nearest centroids of vectors that already have labels.
 *
 * A vector x with label a is |x - a| from a centroid, so that a centroid further than 2 |x - a|
 * from a cannot be nearer: only those around a are tried. Where x is not further from a than
 * before, only a centroid that has moved can have become nearer than a; after a few iterations
 * of k-means most have not moved. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/codebook.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

typedef struct reassign_job {
    const vptq_nearest_kernels *kernels;
    vptq_cluster_codebooks all, moved;
    const vptq_assign_args *a;
    float *reach;     /* [n] */
    uint32_t *group;  /* [n] 2 * label + 1 if only moved centroids can be nearer */
    uint32_t *member; /* [n] sorted by group and reach */
    uint32_t *order;  /* [n] */
    uint32_t *first;  /* [2 k + 1] start of each group in `member` */
    float *work;      /* per thread */
} reassign_job;

static void lay_rows(const vptq_codebook *codebook, uint32_t k, float *rows)
{
    enum { LANES = VPTQ_CODEBOOK_LANES };
    const size_t v = codebook->v;
    for (size_t j = 0; j < k; j++) {
        const float *from = codebook->data + j / LANES * (1 + v) * LANES + j % LANES;
        for (size_t d = 0; d <= v; d++)
            rows[j * (1 + v) + d] = from[d * LANES];
    }
}

/* Lays the listed rows out in `data` as a codebook. */
static vptq_codebook take_rows(const vptq_cluster_codebooks *b, float *data)
{
    enum { LANES = VPTQ_CODEBOOK_LANES };
    const size_t v = b->codebook.v, blocks = vptq_round_up(b->listed, LANES) / LANES;
    for (size_t i = 0; i < blocks * LANES; i++) {
        const float *row = i < b->listed ? b->rows + b->index[i] * (1 + v) : NULL;
        float *to = data + i / LANES * (1 + v) * LANES + i % LANES;
        to[0] = row ? row[0] : -INFINITY;
        for (size_t d = 1; d <= v; d++)
            to[d * LANES] = row ? row[d] : 0;
    }
    return (vptq_codebook){.v = b->codebook.v, .blocks = blocks, .data = data};
}

/* Whether centroid j differs from that of the previous codebook, if there is one. */
static bool has_moved(const vptq_assign_args *a, size_t j)
{
    return !a->previous || memcmp(a->centroids + j * a->v, a->previous + j * a->v,
                                  a->v * sizeof *a->centroids) != 0;
}

/* Lists the centroids that have moved, ascending; returns their number. */
static uint32_t list_moved(const vptq_assign_args *a, uint32_t *list)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < a->k; j++)
        if (has_moved(a, j))
            list[n++] = j;
    return n;
}

/* Distances get a margin far above the rounding of scores: the score of an omitted centroid is
 * lower by more than 5e-5 (|x| + |x - a|)^2. Where a has not moved, scores have the same bits
 * as before. */
static void set_reaches(void *arg, size_t begin, size_t end, int thread)
{
    const reassign_job *job = arg;
    const vptq_assign_args *a = job->a;
    const size_t v = a->v;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const float *x = a->x + i * v, *c = a->centroids + a->idx[i] * v;
        const float square = vptq_distance(x, c, v), distance = sqrtf(square);
        float norm = 0;
        for (size_t d = 0; d < v; d++)
            norm += x[d] * x[d];
        const float size = sqrtf(norm) + distance, reach = 2 * distance + 0.01F * size;
        job->reach[i] = reach < INFINITY ? reach : INFINITY;
        job->group[i] = 2 * a->idx[i];
        if (!a->previous)
            continue;
        const float *old = a->previous + a->idx[i] * v;
        job->group[i] += !memcmp(c, old, v * sizeof *c) ||
                         square + 1e-4F * size * size < vptq_distance(x, old, v);
    }
}

/* Sorts the vectors by group and, within a group, roughly by reach: two counting sorts. */
static void sort_members(reassign_job *job)
{
    enum { BUCKETS = 256 };
    const size_t n = job->a->n, groups = 2 * (size_t)job->all.k;
    uint32_t start[BUCKETS + 1] = {0};
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = job->reach[i] > max && job->reach[i] < INFINITY ? job->reach[i] : max;
    const float scale = max > 0 ? (BUCKETS - 2) / max : 0;
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
    memset(job->first, 0, (groups + 1) * sizeof *job->first);
    for (size_t i = 0; i < n; i++)
        job->first[job->group[i] + 1]++;
    for (size_t g = 0; g < groups; g++)
        job->first[g + 1] += job->first[g];
    for (size_t i = 0; i < n; i++) /* first[g] advances to the end of g ... */
        job->member[job->first[job->group[job->order[i]]]++] = job->order[i];
    memmove(job->first + 1, job->first,
            groups * sizeof *job->first); /* ... and is moved back */
    job->first[0] = 0;
}

static void search_clusters(void *arg, size_t begin, size_t end, int thread)
{
    const reassign_job *job = arg;
    float *work = job->work + (size_t)thread * vptq_cluster_work(&job->all);
    for (size_t g = 2 * begin; g < 2 * end; g++) {
        const vptq_cluster_codebooks *b = g % 2 ? &job->moved : &job->all;
        const uint32_t first = job->first[g], n = job->first[g + 1] - first;
        if (n && b->listed)
            job->kernels->nearest_in_cluster(b, (uint32_t)(g / 2), n, job->member + first,
                                             job->reach, work, job->a->idx);
    }
}

/* Lays out the codebooks of all centroids and of those that moved, and allocates the arrays of
 * the job in one piece. */
static vptq_status open_job(vptq_dev *dev, reassign_job *job, vptq_err *err)
{
    const uint32_t v = job->a->v, k = job->a->k;
    const size_t n = job->a->n, codebook = vptq_codebook_floats(v, k);
    const size_t rows = vptq_round_up((size_t)k * (1 + v), VPTQ_CODEBOOK_LANES);
    job->all = (vptq_cluster_codebooks){.k = k, .listed = k, .x = job->a->x};
    job->all.codebook =
        (vptq_codebook){.v = v, .blocks = codebook / ((1 + v) * VPTQ_CODEBOOK_LANES)};
    const size_t work = (size_t)dev->ctx->threads * vptq_cluster_work(&job->all);
    float *data = vptq_dev_scratch(dev, 2 * codebook + rows + work + 4 * n + 3 * (size_t)k + 1,
                                   sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    float *moved = data + codebook, *all_rows = moved + codebook;
    job->work = all_rows + rows;
    job->reach = job->work + work;
    job->group = (uint32_t *)(void *)(job->reach + n);
    job->member = job->group + n;
    job->order = job->member + n;
    job->first = job->order + n;
    uint32_t *index = job->first + 2 * (size_t)k + 1;
    job->all.codebook = vptq_codebook_lay(dev, v, k, job->a->centroids, data);
    lay_rows(&job->all.codebook, k, all_rows);
    job->all.rows = all_rows;
    job->moved = job->all;
    job->moved.listed = list_moved(job->a, index);
    job->moved.index = index;
    job->moved.codebook = take_rows(&job->moved, moved);
    return VPTQ_OK;
}

/* Below 512 centroids, most are around each one, and searching a cluster whole is cheaper
 * unless few centroids have moved. */
static bool worth_grouping(const vptq_assign_args *a)
{
    uint32_t moved = 0;
    for (uint32_t j = 0; j < a->k; j++)
        moved += has_moved(a, j);
    return (a->k >= 512 || 4 * moved < a->k) && a->n >= a->k && a->n < UINT32_MAX;
}

vptq_status vptq_cpu_reassign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    reassign_job job = {.kernels = vptq_nearest_kernels_get(dev->simd), .a = a};
    if (!worth_grouping(a))
        return vptq_cpu_assign(dev, a, err);
    VPTQ_CHECK(open_job(dev, &job, err));
    vptq_parallel_for(dev->ctx->threads, a->n, 4096, set_reaches, &job);
    sort_members(&job);
    vptq_parallel_for(dev->ctx->threads, a->k, 8, search_clusters, &job);
    return VPTQ_OK;
}
