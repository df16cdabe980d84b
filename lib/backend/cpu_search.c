/* Finders and the row `find`. */
#include "lib/backend/cpu_search.h"

#include <math.h>
#include <string.h>

#include "lib/backend/cpu_vq.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* Larger tables do not stay in a core's own cache, and computing is faster then. */
enum { MOST_TABLE_FLOATS = 1 << 18 };

/* ---- opening ---- */

void vptq_cpu_finder_close(vptq_dev *dev, vptq_finder *f)
{
    if (!f)
        return;
    vptq_mem_free(dev->ctx->mem, f->table);
    vptq_mem_free(dev->ctx->mem, f->data);
    vptq_mem_free(dev->ctx->mem, f);
}

static void fill_table(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_finder *f = arg;
    const size_t v = f->books.v, room = f->pair.res.blocks * VPTQ_BOOK_LANES;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const float *c = f->books.centroids + i * v;
        for (size_t l = 0; l < room; l++) {
            const float *r = f->books.res_centroids + l * v;
            float dot = 0;
            for (size_t d = 0; l < f->books.k_res && d < v; d++)
                dot += c[d] * r[d];
            f->table[i * room + l] = -dot;
        }
    }
}

static bool is_greedy(const vptq_books *b)
{
    return !b->k_res || b->beam == 1 || b->k == 1;
}

/* A beam of more than an eighth of the book costs about as much as the exact search. */
static void choose_beam(vptq_pair_books *p, uint32_t beam)
{
    const size_t most = 4 * p->main.blocks;
    p->exact = beam > p->k / 8;
    p->beam = !p->exact ? beam : p->k / 8 < 8 ? (p->k + 7) / 8 : 8;
    p->classes = 2 * (size_t)p->beam < 32 ? 32 : 2 * (size_t)p->beam;
    p->classes = p->classes < most ? p->classes : most;
}

/* What search adds to the books where pairs are tried. */
static vptq_status open_pairs(vptq_dev *dev, vptq_finder *f, vptq_err *err)
{
    const vptq_books *b = &f->books;
    const size_t room = f->pair.res.blocks * VPTQ_BOOK_LANES;
    double longest = 0;
    for (size_t l = 0; l < b->k_res; l++) {
        double norm = 0;
        for (size_t d = 0; d < b->v; d++)
            norm +=
                (double)b->res_centroids[l * b->v + d] * (double)b->res_centroids[l * b->v + d];
        longest = norm > longest ? norm : longest;
    }
    choose_beam(&f->pair, b->beam);
    f->pair.reach = (float)(sqrt(longest) * (1 + 1e-6));
    if (b->k * room > MOST_TABLE_FLOATS)
        return VPTQ_OK;
    f->table = vptq_mem_alloc(dev->ctx->mem, b->k * room, sizeof *f->table, err);
    if (!f->table)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->threads, b->k, 16, fill_table, f);
    f->pair.table = f->table;
    return VPTQ_OK;
}

static vptq_status open_books(vptq_dev *dev, vptq_finder *f, vptq_err *err)
{
    const vptq_books *b = &f->books;
    const size_t main_floats = vptq_book_floats(b->v, b->k);
    const size_t res_floats = b->k_res ? vptq_book_floats(b->v, b->k_res) : 0;
    f->data = vptq_mem_alloc(dev->ctx->mem, main_floats + res_floats, sizeof *f->data, err);
    if (!f->data)
        return VPTQ_E_NOMEM;
    f->pair = (vptq_pair_books){
        .k = b->k, .centroids = b->centroids, .res_centroids = b->res_centroids};
    f->pair.main = vptq_book_lay(dev, b->v, b->k, b->centroids, f->data);
    if (b->k_res)
        f->pair.res =
            vptq_book_lay(dev, b->v, b->k_res, b->res_centroids, f->data + main_floats);
    return is_greedy(b) ? VPTQ_OK : open_pairs(dev, f, err);
}

vptq_status vptq_cpu_finder_open(vptq_dev *dev, const vptq_books *books, vptq_finder **finder,
                                 vptq_err *err)
{
    vptq_finder *f = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *f, err);
    if (!f)
        return VPTQ_E_NOMEM;
    *f = (vptq_finder){.books = *books,
                       .kernels = vptq_vq_kernels_of(dev),
                       .search = vptq_search_kernels_of(dev)};
    vptq_status st = open_books(dev, f, err);
    if (st) {
        vptq_cpu_finder_close(dev, f);
        return st;
    }
    *finder = f;
    return VPTQ_OK;
}

/* ---- searching ---- */

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

/* |x - (c + r)|^2, the same operations wherever distances are compared. */
static float distance_of(const vptq_books *b, const float *x, uint32_t main, uint32_t res)
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

size_t vptq_finder_room(const vptq_finder *f)
{
    return vptq_round_up(vptq_search_room(&f->pair), VPTQ_PANEL);
}

enum { GREEDY = 32 };

/* Nearest main centroids, and the nearest residual ones to what is left; n <= GREEDY. */
static void search_greedily(const vptq_finder *f, size_t n, const float *x, bool keep,
                            uint32_t *idx, uint32_t *idx_res)
{
    const vptq_books *b = &f->books;
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

void vptq_search(const vptq_finder *f, size_t n, const float *x, bool keep, float *room,
                 uint32_t *idx, uint32_t *idx_res)
{
    if (!is_greedy(&f->books)) {
        f->search->search(&f->pair, n, x, keep, room, idx, idx_res);
        return;
    }
    for (size_t i = 0; i < n; i += GREEDY)
        search_greedily(f, n - i < GREEDY ? n - i : GREEDY, x + i * f->books.v, keep, idx + i,
                        idx_res ? idx_res + i : NULL);
}

/* ---- find ---- */

typedef struct find_job {
    const vptq_find_args *args;
    float *room; /* vptq_finder_room per thread */
} find_job;

static void find_range(void *arg, size_t begin, size_t end, int thread)
{
    const find_job *job = arg;
    const vptq_find_args *f = job->args;
    const vptq_books *b = &f->finder->books;
    vptq_search(f->finder, end - begin, f->x + begin * b->v, f->keep,
                job->room + (size_t)thread * vptq_finder_room(f->finder), f->idx + begin,
                f->idx_res ? f->idx_res + begin : NULL);
    for (size_t i = begin; f->dist && i < end; i++)
        f->dist[i] = distance_of(b, f->x + i * b->v, f->idx[i], f->idx_res ? f->idx_res[i] : 0);
}

vptq_status vptq_cpu_find(vptq_dev *dev, const vptq_find_args *f, vptq_err *err)
{
    find_job job = {.args = f};
    job.room = vptq_dev_scratch(dev, (size_t)dev->threads * vptq_finder_room(f->finder),
                                sizeof *job.room, err);
    if (!job.room)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->threads, f->n, 256, find_range, &job);
    return VPTQ_OK;
}
