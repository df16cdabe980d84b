/* Search indexes, and the ops search and vq_gather. */
#include "lib/backend/cpu/search.h"

#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* ---- opening ---- */

void vptq_cpu_search_index_close(vptq_dev *dev, vptq_search_index *f)
{
    if (!f)
        return;
    vptq_arena_release(&f->arena);
    vptq_mem_free(dev->ctx->mem, f);
}

static vptq_status open_codebooks(vptq_dev *dev, vptq_search_index *f, vptq_err *err)
{
    const vptq_codebooks *b = &f->codebooks;
    float *data =
        vptq_arena_alloc(&f->arena, vptq_codebook_floats(b->v, b->k), sizeof *data, err);
    if (!data)
        return VPTQ_E_NOMEM;
    f->pair = (vptq_pair_codebooks){
        .k = b->k, .centroids = b->centroids, .res_centroids = b->res_centroids};
    f->pair.main = vptq_codebook_lay(dev, b->v, b->k, b->centroids, data);
    return vptq_pairs_open(dev, f, err);
}

vptq_status vptq_cpu_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                       vptq_search_index **index, vptq_err *err)
{
    vptq_search_index *f = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *f, err);
    if (!f)
        return VPTQ_E_NOMEM;
    *f = (vptq_search_index){.codebooks = *codebooks,
                             .kernels = vptq_nearest_kernels_get(dev->simd),
                             .search = vptq_search_kernels_get(dev->simd)};
    vptq_arena_init(&f->arena, dev->ctx->mem);
    vptq_status st = open_codebooks(dev, f, err);
    if (st) {
        vptq_cpu_search_index_close(dev, f);
        return st;
    }
    *index = f;
    return VPTQ_OK;
}

/* ---- searching ---- */

void vptq_decode(const vptq_codebooks *b, size_t n, const uint32_t *idx,
                 const uint32_t *idx_res, float *q)
{
    const size_t v = b->v;
    for (size_t i = 0; i < n; i++)
        memcpy(q + i * v, b->centroids + idx[i] * v, v * sizeof *q);
    for (size_t i = 0; b->k_res && i < n; i++) {
        const float *r = b->res_centroids + idx_res[i] * v;
        for (size_t d = 0; d < v; d++)
            q[i * v + d] += r[d];
    }
}

/* |x - (c + r)|^2, by the same operations wherever distances are compared. */
static float distance_of(const vptq_codebooks *b, const float *x, uint32_t main, uint32_t res)
{
    const size_t v = b->v;
    const float *c = b->centroids + main * v;
    const float *r = b->k_res ? b->res_centroids + res * v : NULL;
    float sum = 0;
    for (size_t d = 0; d < v; d++) {
        const float diff = x[d] - (r ? c[d] + r[d] : c[d]);
        sum += diff * diff;
    }
    return sum;
}

size_t vptq_search_index_work(const vptq_search_index *f)
{
    return vptq_round_up(vptq_search_work(&f->pair), VPTQ_PANEL);
}

enum { GREEDY_TILE = 32 }; /* vectors searched together */

/* Takes the nearest main centroids, then the residual centroids nearest to the remainders; n <=
 * GREEDY_TILE. */
static void search_greedily(const vptq_search_index *f, size_t n, const float *x, bool keep,
                            uint32_t *idx, uint32_t *idx_res)
{
    const vptq_codebooks *b = &f->codebooks;
    const size_t v = b->v;
    uint32_t main[GREEDY_TILE], res[GREEDY_TILE] = {0};
    float rest[GREEDY_TILE * VPTQ_VQ_MAX_V];
    f->kernels->nearest(&f->pair.main, n, x, main);
    if (b->k_res) {
        for (size_t i = 0; i < n; i++) {
            for (size_t d = 0; d < v; d++)
                rest[i * v + d] = x[i * v + d] - b->centroids[main[i] * v + d];
        }
        f->kernels->nearest(&f->pair.res, n, rest, res);
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t old_res = b->k_res ? idx_res[i] : 0;
        if (keep && !(distance_of(b, x + i * v, main[i], res[i]) <
                      distance_of(b, x + i * v, idx[i], old_res)))
            continue;
        idx[i] = main[i];
        if (b->k_res)
            idx_res[i] = res[i];
    }
}

void vptq_search(const vptq_search_index *f, size_t n, const float *x, bool keep, float *work,
                 uint32_t *idx, uint32_t *idx_res)
{
    if (!vptq_is_greedy(&f->codebooks)) {
        f->search->search(&f->pair, n, x, keep, work, idx, idx_res);
        return;
    }
    if (keep && f->pair.neighbors && !f->codebooks.k_res) {
        f->kernels->nearest_neighbor(&f->pair, n, x, idx);
        return;
    }
    for (size_t i = 0; i < n; i += GREEDY_TILE)
        search_greedily(f, n - i < GREEDY_TILE ? n - i : GREEDY_TILE, x + i * f->codebooks.v,
                        keep, idx + i, idx_res ? idx_res + i : NULL);
}

/* ---- the ops search and vq_gather ---- */

typedef struct search_job {
    const vptq_search_args *args;
    float *work; /* vptq_search_index_work per thread */
} search_job;

static void search_range(void *arg, size_t begin, size_t end, int thread)
{
    const search_job *job = arg;
    const vptq_search_args *f = job->args;
    const vptq_codebooks *b = &f->index->codebooks;
    vptq_search(f->index, end - begin, f->x + begin * b->v, f->keep,
                job->work + (size_t)thread * vptq_search_index_work(f->index), f->idx + begin,
                f->idx_res ? f->idx_res + begin : NULL);
    for (size_t i = begin; f->dist && i < end; i++)
        f->dist[i] = distance_of(b, f->x + i * b->v, f->idx[i], f->idx_res ? f->idx_res[i] : 0);
}

vptq_status vptq_cpu_search(vptq_dev *dev, const vptq_search_args *s, vptq_err *err)
{
    search_job job = {.args = s};
    job.work =
        vptq_dev_scratch(dev, (size_t)dev->ctx->threads * vptq_search_index_work(s->index),
                         sizeof *job.work, err);
    if (!job.work)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->ctx->threads, s->n, 256, search_range, &job);
    return VPTQ_OK;
}

static void gather_columns(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_gather_args *g = arg;
    const vptq_codebooks codebooks = {.v = g->v,
                                      .k = g->k,
                                      .k_res = g->k_res,
                                      .centroids = g->centroids,
                                      .res_centroids = g->res_centroids};
    (void)thread;
    for (size_t t = begin; t < end; t++)
        vptq_decode(&codebooks, g->rows / g->v, g->idx + t * g->ldi,
                    g->k_res ? g->idx_res + t * g->ldi : NULL, g->q + t * g->ldq);
}

vptq_status vptq_cpu_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err)
{
    vptq_gather_args args = *g;
    (void)err;
    vptq_parallel_for(dev->ctx->threads, g->cols, 4, gather_columns, &args);
    return VPTQ_OK;
}
