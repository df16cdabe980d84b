/* Finders and the row `find`. */
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

void vptq_decode(const vptq_search_index *f, size_t n, const uint32_t *idx,
                 const uint32_t *idx_res, float *q)
{
    const size_t v = f->codebooks.v;
    for (size_t i = 0; i < n; i++)
        memcpy(q + i * v, f->codebooks.centroids + idx[i] * v, v * sizeof *q);
    for (size_t i = 0; f->codebooks.k_res && i < n; i++) {
        const float *r = f->codebooks.res_centroids + idx_res[i] * v;
        for (size_t d = 0; d < v; d++)
            q[i * v + d] += r[d];
    }
}

/* |x - (c + r)|^2, the same operations wherever distances are compared. */
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

enum { GREEDY = 32 };

/* Nearest main centroids, and the nearest residual ones to what is left; n <= GREEDY. */
static void search_greedily(const vptq_search_index *f, size_t n, const float *x, bool keep,
                            uint32_t *idx, uint32_t *idx_res)
{
    const vptq_codebooks *b = &f->codebooks;
    const size_t v = b->v;
    uint32_t main[GREEDY], res[GREEDY] = {0};
    float rest[GREEDY * VPTQ_VQ_MAX_V];
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
    for (size_t i = 0; i < n; i += GREEDY)
        search_greedily(f, n - i < GREEDY ? n - i : GREEDY, x + i * f->codebooks.v, keep,
                        idx + i, idx_res ? idx_res + i : NULL);
}

/* ---- find ---- */

typedef struct find_job {
    const vptq_search_args *args;
    float *work; /* vptq_search_index_room per thread */
} find_job;

static void find_range(void *arg, size_t begin, size_t end, int thread)
{
    const find_job *job = arg;
    const vptq_search_args *f = job->args;
    const vptq_codebooks *b = &f->index->codebooks;
    vptq_search(f->index, end - begin, f->x + begin * b->v, f->keep,
                job->work + (size_t)thread * vptq_search_index_work(f->index), f->idx + begin,
                f->idx_res ? f->idx_res + begin : NULL);
    for (size_t i = begin; f->dist && i < end; i++)
        f->dist[i] = distance_of(b, f->x + i * b->v, f->idx[i], f->idx_res ? f->idx_res[i] : 0);
}

vptq_status vptq_cpu_search(vptq_dev *dev, const vptq_search_args *f, vptq_err *err)
{
    find_job job = {.args = f};
    job.work = vptq_dev_scratch(dev, (size_t)dev->threads * vptq_search_index_work(f->index),
                                sizeof *job.work, err);
    if (!job.work)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->threads, f->n, 256, find_range, &job);
    return VPTQ_OK;
}
