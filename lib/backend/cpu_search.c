#include "lib/backend/cpu_search.h"

#include <string.h>

#include "lib/backend/cpu_vq.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref_vq.h"
#include "lib/base/parallel.h"

void vptq_cpu_finder_close(vptq_dev *dev, vptq_finder *f)
{
    if (!f)
        return;
    for (int t = 0; f->slow && t < f->threads; t++)
        vptq_ref_finder_close(dev, f->slow[t]);
    vptq_mem_free(dev->ctx->mem, f->slow);
    vptq_mem_free(dev->ctx->mem, f->data);
    vptq_mem_free(dev->ctx->mem, f);
}

static vptq_status fill(vptq_dev *dev, vptq_finder *f, vptq_err *err)
{
    const vptq_books *b = &f->books;
    vptq_mem *mem = dev->ctx->mem;
    const size_t main_floats = vptq_book_floats(b->v, b->k);
    const size_t res_floats = b->k_res ? vptq_book_floats(b->v, b->k_res) : 0;
    f->data = vptq_mem_alloc(mem, main_floats + res_floats, sizeof *f->data, err);
    if (!f->data)
        return VPTQ_E_NOMEM;
    f->main = vptq_book_lay(dev, b->v, b->k, b->centroids, f->data);
    if (b->k_res)
        f->res = vptq_book_lay(dev, b->v, b->k_res, b->res_centroids, f->data + main_floats);
    f->slow = vptq_mem_alloc(mem, (size_t)dev->threads, sizeof(vptq_finder *), err);
    if (!f->slow)
        return VPTQ_E_NOMEM;
    memset(f->slow, 0, (size_t)dev->threads * sizeof(vptq_finder *));
    for (int t = 0; t < dev->threads; t++) {
        vptq_status st = vptq_ref_finder_open(dev, b, &f->slow[t], err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

vptq_status vptq_cpu_finder_open(vptq_dev *dev, const vptq_books *books, vptq_finder **finder,
                                 vptq_err *err)
{
    vptq_finder *f = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *f, err);
    if (!f)
        return VPTQ_E_NOMEM;
    *f = (vptq_finder){
        .books = *books, .kernels = vptq_vq_kernels_of(dev), .threads = dev->threads};
    vptq_status st = fill(dev, f, err);
    if (st) {
        vptq_cpu_finder_close(dev, f);
        return st;
    }
    *finder = f;
    return VPTQ_OK;
}

void vptq_decode(const vptq_finder *f, size_t n, const uint32_t *idx, const uint32_t *idx_res,
                 float *q)
{
    const size_t v = f->books.v;
    for (size_t i = 0; i < n; i++)
        memcpy(q + i * v, f->books.centroids + idx[i] * v, v * sizeof *q);
    for (size_t i = 0; f->books.k_res && i < n; i++) {
        const float *r = f->books.res_centroids + idx_res[i] * v;
        for (size_t d = 0; d < v; d++)
            q[i * v + d] += r[d];
    }
}

void vptq_search(const vptq_finder *f, int thread, size_t n, const float *x, bool keep,
                 uint32_t *idx, uint32_t *idx_res)
{
    vptq_err err;
    if (!f->books.k_res && !keep) {
        f->kernels->nearest(&f->main, n, x, idx);
        return;
    }
    const vptq_find_args args = {.n = n,
                                 .finder = f->slow[thread],
                                 .x = x,
                                 .keep = keep,
                                 .idx = idx,
                                 .idx_res = idx_res};
    (void)vptq_ref_find(NULL, &args, &err);
}

/* ---- find ---- */

static void set_distances(const vptq_find_args *f, size_t begin, size_t end)
{
    const size_t v = f->finder->books.v;
    float q[VPTQ_VQ_MAX_V];
    for (size_t i = begin; i < end; i++) {
        const float *x = f->x + i * v;
        float sum = 0;
        vptq_decode(f->finder, 1, f->idx + i, f->idx_res ? f->idx_res + i : NULL, q);
        for (size_t d = 0; d < v; d++)
            sum += (x[d] - q[d]) * (x[d] - q[d]);
        f->dist[i] = sum;
    }
}

static void find_range(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_find_args *f = arg;
    const size_t v = f->finder->books.v;
    vptq_search(f->finder, thread, end - begin, f->x + begin * v, f->keep, f->idx + begin,
                f->idx_res ? f->idx_res + begin : NULL);
    if (f->dist)
        set_distances(f, begin, end);
}

vptq_status vptq_cpu_find(vptq_dev *dev, const vptq_find_args *f, vptq_err *err)
{
    vptq_find_args args = *f;
    (void)err;
    vptq_parallel_for(dev->threads, f->n, 256, find_range, &args);
    return VPTQ_OK;
}
