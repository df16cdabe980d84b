/* Prepares what a search index needs beyond its main codebook: the residual codebook, integers
 * for screening pairs, and lists of neighboring main centroids. */
#include <math.h>

#include "lib/backend/cpu/search.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    MIN_SCREENED = 64, /* smaller residual codebooks are as fast to compute directly */
    MAX_SCREEN_BYTES = 1 << 25,
    MAX_NEIGHBOR_FLOATS = 1 << 23, /* 32 MiB */
    MIN_NEIGHBOR_CODEBOOK = 1024   /* smaller codebooks are as fast to search whole */
};

/* A beam of more than an eighth of the codebook costs about as much as the exact search. */
static void choose_beam(vptq_pair_codebooks *p, uint32_t beam)
{
    const size_t max = 4 * p->main.blocks;
    p->exact = beam > p->k / 8;
    p->beam = !p->exact ? beam : p->k / 8 < 8 ? (p->k + 7) / 8 : 8;
    p->classes = 2 * (size_t)p->beam < 32 ? 32 : 2 * (size_t)p->beam;
    p->classes = p->classes < max ? p->classes : max;
}

/* ---- screening ---- */

typedef struct screen_job {
    const vptq_search_index *f;
    int8_t *rows;
    float *step, *work;
} screen_job;

static void fill_rows(void *arg, size_t begin, size_t end, int thread)
{
    const screen_job *job = arg;
    const vptq_pair_codebooks *p = &job->f->pair;
    float *work = job->work + (size_t)thread * p->res.blocks * VPTQ_CODEBOOK_LANES;
    for (size_t i = begin; i < end; i++)
        job->f->search->screen_row(&p->res, p->centroids + i * p->res.v, work, p->screen_stride,
                                   job->rows + i * p->screen_stride, &job->step[i]);
}

static vptq_status open_screen(vptq_dev *dev, vptq_search_index *f, vptq_err *err)
{
    const size_t k = f->codebooks.k, work = vptq_round_up(f->codebooks.k_res, 64);
    screen_job job = {.f = f};
    if (f->codebooks.k_res < MIN_SCREENED || k * work > MAX_SCREEN_BYTES)
        return VPTQ_OK;
    job.rows = vptq_arena_alloc(&f->arena, k * work, sizeof *job.rows, err);
    job.step = vptq_arena_alloc(&f->arena, k, sizeof *job.step, err);
    job.work = vptq_dev_scratch(
        dev, (size_t)dev->ctx->threads * f->pair.res.blocks * VPTQ_CODEBOOK_LANES,
        sizeof *job.work, err);
    if (!job.rows || !job.step || !job.work)
        return VPTQ_E_NOMEM;
    f->pair.screen_stride = work;
    vptq_parallel_for(dev->ctx->threads, k, 16, fill_rows, &job);
    f->pair.screen = job.rows;
    f->pair.screen_step = job.step;
    return VPTQ_OK;
}

/* ---- residual codebook ---- */

static float longest_residual(const vptq_codebooks *b)
{
    double max = 0;
    for (size_t l = 0; l < b->k_res; l++) {
        double square = 0;
        for (size_t d = 0; d < b->v; d++) {
            const double r = (double)b->res_centroids[l * b->v + d];
            square += r * r;
        }
        max = square > max ? square : max;
    }
    return (float)(sqrt(max) * (1 + 1e-6));
}

static vptq_status open_residual(vptq_dev *dev, vptq_search_index *f, vptq_err *err)
{
    const vptq_codebooks *b = &f->codebooks;
    choose_beam(&f->pair, b->beam);
    f->pair.longest_res = longest_residual(b);
    float *data =
        vptq_arena_alloc(&f->arena, vptq_codebook_floats(b->v, b->k_res), sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    f->pair.res = vptq_codebook_lay(dev, b->v, b->k_res, b->res_centroids, data);
    return vptq_is_greedy(b) ? VPTQ_OK : open_screen(dev, f, err);
}

/* ---- neighbors ---- */

typedef struct neighbor_job {
    const vptq_search_index *f;
    size_t neighbors;
    float *data;
    uint32_t *index;
    float *work;
} neighbor_job;

/* Fills the lists of centroids [begin, end); entries that a list lacks can never be chosen. */
static void fill_neighbors(void *arg, size_t begin, size_t end, int thread)
{
    enum { LANES = VPTQ_CODEBOOK_LANES };
    const neighbor_job *job = arg;
    const vptq_codebook *codebook = &job->f->pair.main;
    const size_t v = codebook->v;
    float *work = job->work + (size_t)thread * vptq_list_nearest_work(codebook);
    for (size_t j = begin; j < end; j++) {
        uint32_t *list = job->index + j * job->neighbors;
        const float *c = job->f->codebooks.centroids + j * v;
        const size_t n = job->f->kernels->list_nearest(codebook, job->neighbors, c, work, list);
        for (size_t i = 0; i < job->neighbors; i++) {
            const size_t from = i < n ? list[i] : j;
            const float *block = codebook->data + from / LANES * (1 + v) * LANES + from % LANES;
            float *to =
                job->data + (j * job->neighbors + i / LANES * LANES) * (1 + v) + i % LANES;
            list[i] = (uint32_t)from;
            for (size_t d = 0; d <= v; d++)
                to[d * LANES] = d || i < n ? block[d * LANES] : -INFINITY;
        }
    }
}

static vptq_status open_neighbors(vptq_dev *dev, vptq_search_index *f, vptq_err *err)
{
    const vptq_codebooks *b = &f->codebooks;
    const size_t beam = vptq_is_greedy(b) ? 1 : b->beam;
    size_t near = vptq_round_up(4 * beam, VPTQ_CODEBOOK_LANES);
    near = near < 64 ? 64 : near < VPTQ_MAX_NEIGHBORS ? near : VPTQ_MAX_NEIGHBORS;
    if (b->k < MIN_NEIGHBOR_CODEBOOK || 2 * beam > near || (b->k_res && vptq_is_greedy(b)) ||
        b->k * near * (1 + b->v) > MAX_NEIGHBOR_FLOATS)
        return VPTQ_OK;
    neighbor_job job = {.f = f, .neighbors = near};
    job.data = vptq_arena_alloc(&f->arena, b->k * near * (1 + b->v), sizeof *job.data, err);
    job.index = vptq_arena_alloc(&f->arena, b->k * near, sizeof *job.index, err);
    job.work =
        vptq_dev_scratch(dev, (size_t)dev->ctx->threads * vptq_list_nearest_work(&f->pair.main),
                         sizeof *job.work, err);
    if (!job.data || !job.index || !job.work)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->ctx->threads, b->k, 16, fill_neighbors, &job);
    f->pair.neighbors = near;
    f->pair.neighbor_data = job.data;
    f->pair.neighbor_index = job.index;
    return VPTQ_OK;
}

vptq_status vptq_pairs_open(vptq_dev *dev, vptq_search_index *f, vptq_err *err)
{
    vptq_status st = f->codebooks.k_res ? open_residual(dev, f, err) : VPTQ_OK;
    return !st && f->codebooks.local ? open_neighbors(dev, f, err) : st;
}
