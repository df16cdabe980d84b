/* search_index_open and search: codebooks laid out in device memory, and a persistent kernel
 * that searches them (search.h has the search). */
#include "lib/backend/cuda/search_choose.h"

#include <string.h>

/* ---- search indexes ---- */

enum { PACK_THREADS = 128 };

/* Copies centroid j of a codebook [k, v] into the layout of search_codebook; wide: see
 * search_wide; threads: see search_row. */
/* budget: pack_kernel 40 registers */
__global__ static void __launch_bounds__(PACK_THREADS)
    pack_kernel(uint32_t v, uint32_t k, unsigned wide, unsigned threads, uint32_t stride,
                const float *c, float *data)
{
    const uint32_t j = blockIdx.x * PACK_THREADS + threadIdx.x, row = search_row(threads, j);
    float norm = 0;
    if (j >= stride)
        return;
    for (unsigned d = 0; d < wide; d++) {
        const unsigned panel = d / 4 * 4, width = wide - panel < 4 ? wide - panel : 4;
        const float element = j < k && d < v ? c[(size_t)j * v + d] : 0;
        norm = d < v ? fmaf(element, element, norm) : norm;
        data[panel * stride + row * width + d % 4] = element;
    }
    data[wide * stride + row] = j < k ? norm : NAN;
}

/* Sets the head of the operand of c [k, v] to 0 and then to its largest element. */
/* budget: size_kernel 40 registers */
__global__ static void __launch_bounds__(PACK_THREADS)
    size_kernel(size_t n, const float *c, search_tiles_head *head)
{
    uint32_t size = 0;
    for (size_t i = threadIdx.x; i < n; i += PACK_THREADS)
        size = max(size, search_size(c[i]));
    size = port_block_max(size);
    if (threadIdx.x == 0)
        head->size = size;
}

/* Writes lane l of step p of a tile of operand B, and a norm. */
/* budget: tiles_kernel 40 registers */
__global__ static void __launch_bounds__(PACK_THREADS)
    tiles_kernel(uint32_t v, unsigned length, uint32_t k, uint32_t stride, const float *c,
                 const float *norms, float *to)
{
    const unsigned steps = search_steps_of(length), pairs = length <= 8 ? 1 : 2;
    const uint32_t i = blockIdx.x * PACK_THREADS + threadIdx.x;
    const float scale =
        search_power(search_fit(reinterpret_cast<const search_tiles_head *>(to)->size, 14));
    float *to_norms = to + sizeof(search_tiles_head) / sizeof(float);
    uint32_t *words = reinterpret_cast<uint32_t *>(to_norms + stride) + (size_t)i * 2 * pairs;
    if (i >= stride / SEARCH_TILE * steps * PORT_LANES)
        return;
    if (i < stride)
        to_norms[i] = norms[search_row(search_threads_of(length), i)] * scale;
    const unsigned lane = i % PORT_LANES, p = i / PORT_LANES % steps;
    const uint32_t j = i / PORT_LANES / steps * SEARCH_TILE + lane / 4;
    for (unsigned h = 0; h < pairs; h++) {
        const unsigned d = 16 * p + 8 * h + lane % 4 * 2;
        float pair[2];
        for (unsigned e = 0; e < 2; e++)
            pair[e] = j < k && d + e < v ? c[(size_t)j * v + d + e] * scale : 0;
        words[h] = search_halves(pair);
        words[pairs + h] = search_halves(pair);
    }
}

static size_t codebook_floats(const vptq_search_index *f, const search_codebook *b)
{
    return (size_t)(search_wide(f->length, f->v) + 1) * b->stride;
}

static cudaError_t pack(vptq_dev *dev, const vptq_search_index *f, const search_codebook *b,
                        const float *centroids, float *data)
{
    return port_launch(pack_kernel, vptq_cuda_blocks(b->stride, PACK_THREADS), PACK_THREADS, 0,
                       dev->stream, f->v, b->k, search_wide(f->length, f->v),
                       search_threads_of(f->length), b->stride, centroids, data);
}

/* Makes the operand of the residual codebook, whose norms pack has written. */
static cudaError_t pack_tiles(vptq_dev *dev, const vptq_search_index *f, const float *centroids,
                              float *data)
{
    const search_codebook *b = &f->res;
    const uint32_t threads = b->stride / SEARCH_TILE * search_steps_of(f->length) * PORT_LANES;
    cudaError_t e =
        port_launch(size_kernel, 1, PACK_THREADS, 0, dev->stream, (size_t)b->k * f->v,
                    centroids, reinterpret_cast<search_tiles_head *>(data));
    if (!e)
        e = port_launch(tiles_kernel, vptq_cuda_blocks(threads, PACK_THREADS), PACK_THREADS, 0,
                        dev->stream, f->v, f->length, b->k, b->stride, centroids,
                        b->data + search_wide(f->length, f->v) * b->stride, data);
    return e;
}

/* Lays out both codebooks in one allocation. */
static vptq_status pack_codebooks(vptq_dev *dev, const vptq_codebooks *codebooks,
                                  vptq_search_index *f, vptq_err *err)
{
    const size_t floats = (codebook_floats(f, &f->main) + 3) / 4 * 4; /* 16-byte aligned */
    const size_t res = (codebook_floats(f, &f->res) + 3) / 4 * 4;
    const size_t tiles =
        f->res.stride && f->beam != 1 ? search_tiles_floats(f->length, f->res.stride) : 0;
    VPTQ_CHECK(vptq_cuda_alloc(dev, (floats + res + tiles) * sizeof(float), &f->memory, err));
    float *data = static_cast<float *>(f->memory);
    f->main.data = data;
    f->res.data = data + floats;
    f->tiles.data = tiles ? data + floats + res : NULL;
    cudaError_t e = pack(dev, f, &f->main, codebooks->centroids, data);
    if (!e && f->res.stride)
        e = pack(dev, f, &f->res, codebooks->res_centroids, data + floats);
    if (!e && tiles)
        e = pack_tiles(dev, f, codebooks->res_centroids, data + floats + res);
    return vptq_cuda_check(e, "search_index_open", err);
}

void vptq_cuda_search_index_close(vptq_dev *dev, vptq_search_index *index)
{
    if (!index)
        return;
    (void)cudaStreamSynchronize(dev->stream); /* kernels may read it */
    (void)cudaFree(index->memory);
    vptq_mem_free(dev->ctx->mem, index);
}

static unsigned beam_of(const vptq_codebooks *b)
{
    if (!b->k_res || b->k == 1 || b->beam == 1)
        return 1;
    return b->beam >= b->k || b->beam > SEARCH_MAX_BEAM ? 0 : b->beam;
}

static search_codebook codebook_of(uint32_t k)
{
    search_codebook b = {};
    b.k = k;
    b.stride = (k + PORT_LANES - 1) / PORT_LANES * PORT_LANES;
    return b;
}

vptq_status vptq_cuda_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                        vptq_search_index **index, vptq_err *err)
{
    *index = NULL;
    VPTQ_BUG_IF(!codebooks->v || codebooks->v > VPTQ_VQ_MAX_V);
    vptq_search_index *f =
        static_cast<vptq_search_index *>(vptq_mem_alloc(dev->ctx->mem, 1, sizeof *f, err));
    if (!f)
        return VPTQ_E_NOMEM;
    memset(f, 0, sizeof *f);
    f->v = codebooks->v;
    while (search_classes[f->size] < f->v)
        f->size++;
    f->length = search_classes[f->size];
    f->beam = beam_of(codebooks);
    f->main = codebook_of(codebooks->k);
    f->res = codebook_of(codebooks->k_res);
    const vptq_status st = pack_codebooks(dev, codebooks, f, err);
    if (st) {
        vptq_cuda_search_index_close(dev, f);
        return st;
    }
    *index = f;
    return VPTQ_OK;
}

/* ---- shared memory ---- */

enum { MIN_PANEL = 32 };

static unsigned reserve(search_layout *l, size_t bytes)
{
    const unsigned at = l->bytes;
    l->bytes += (unsigned)((bytes + 15) / 16 * 16);
    return at;
}

/* Reserves memory for choosing the beam of `each` vectors (search_list), and for those that are
 * scanned with them. */
static void lay_lists(unsigned length, unsigned each, search_layout *l)
{
    const unsigned half = search_in_registers_of(length) / 2;
    if (l->beam > 1) {
        const size_t threads = search_threads_of(length);
        while (l->share < 3 && threads << l->share < l->main.stride)
            l->share++;
        l->groups = PORT_LANES;
        while (l->groups < 2 * l->beam)
            l->groups *= 2;
        l->max_candidates =
            (4 * l->beam + 32 + SEARCH_RANKED - 1) / SEARCH_RANKED * SEARCH_RANKED;
        const size_t scores = threads * sizeof(uint32_t);
        const size_t lists = threads * sizeof(uint16_t) + l->max_candidates * sizeof(uint64_t);
        l->list_bytes = (unsigned)(max(scores, lists) + l->groups * sizeof(uint32_t));
        l->lists = reserve(l, (size_t)((each + half - 1) / half * half) * l->list_bytes);
    }
}

static void lay_codebook(const vptq_search_index *f, size_t limit, search_layout *l,
                         search_codebook *b)
{
    const size_t bytes = codebook_floats(f, b) * sizeof(float);
    b->shared = b->stride && l->bytes + bytes <= limit;
    if (b->shared)
        b->at = reserve(l, bytes) / (unsigned)sizeof(float);
}

/* Most of the reads of pairs are of the operand, then of the main codebook. */
static void lay_tiles(const vptq_search_index *f, size_t limit, search_layout *l)
{
    if (!l->tiles.data)
        return;
    const size_t bytes = search_tiles_floats(f->length, f->res.stride) * sizeof(float);
    l->tiles.shared = l->bytes + bytes <= limit;
    if (l->tiles.shared)
        l->tiles.at = reserve(l, bytes) / (unsigned)sizeof(float);
}

search_layout vptq_cuda_search_layout(const vptq_dev *dev, const vptq_search_index *index,
                                      unsigned each, unsigned columns)
{
    const size_t all = dev->properties.sharedMemPerBlockOptin - SEARCH_STATIC_BYTES;
    const size_t column = each * index->v * sizeof(float);
    const size_t least = (columns < MIN_PANEL ? columns : (unsigned)MIN_PANEL) * column;
    search_layout l = {};
    l.main = index->main;
    l.res = index->res;
    l.tiles = index->tiles;
    l.v = index->v;
    l.beam = index->beam;
    lay_lists(index->length, each, &l);
    lay_tiles(index, all - least, &l);
    if (!l.tiles.data)
        lay_codebook(index, all - least, &l, &l.res);
    lay_codebook(index, all - least, &l, &l.main);
    if (l.tiles.data)
        lay_codebook(index, all - least, &l, &l.res);
    if (columns) {
        const size_t fitting = (all - l.bytes) / column;
        l.panel = fitting < columns ? (unsigned)fitting : columns;
        l.tile = reserve(&l, l.panel * column);
    }
    return l;
}

unsigned vptq_cuda_search_blocks(const vptq_dev *dev, const vptq_search_index *index, size_t n,
                                 unsigned *each)
{
    const size_t concurrent = (size_t)dev->properties.multiProcessorCount;
    const size_t share = (n + concurrent - 1) / concurrent;
    const unsigned vectors = search_vectors_of(index->length);
    *each = share < vectors ? (unsigned)share : vectors;
    const size_t tasks = (n + *each - 1) / *each;
    return (unsigned)(tasks < concurrent ? tasks : concurrent);
}

double vptq_cuda_search_work(const vptq_search_index *f)
{
    const double k = f->main.k, k_res = f->res.k, mains = f->beam ? f->beam : k;
    return (k + mains * k_res) * (f->length + 1);
}

/* ---- search ---- */

struct search_job {
    search_layout layout;
    size_t n;
    unsigned each;
    const float *x;
    bool keep;
    uint32_t *idx, *idx_res;
    float *dist;
};

/* Stores the choice for vector i, which is x; one warp. */
template <unsigned V>
static __device__ void store_choice(const search_job &a, size_t i, const float *x,
                                    search_choice found)
{
    search_choice old = found;
    float distance;
    if (a.keep)
        old = {a.idx[i], a.idx_res ? a.idx_res[i] : 0};
    __syncwarp(); /* all lanes have read the old choice */
    found = search_settle<V>(a.layout, x, found, old, &distance);
    if (port_lane() != 0)
        return;
    a.idx[i] = found.main;
    if (a.idx_res)
        a.idx_res[i] = found.res;
    if (a.dist)
        a.dist[i] = distance;
}

/* A block loads the codebooks once and takes `each` vectors at a time. */
/* budget: search_kernel 168 registers (long vectors; the others 128) */
template <unsigned V>
__global__ static void __launch_bounds__(search_threads<V>, 1) search_kernel(search_job a)
{
    search_area<V> &s = port_shared<search_area<V>>();
    const size_t stride = (size_t)gridDim.x * a.each;
    search_load_codebooks<V>(a.layout);
    for (size_t first = (size_t)blockIdx.x * a.each; first < a.n; first += stride) {
        const unsigned count = (unsigned)min((size_t)a.each, a.n - first);
        const uint32_t v = a.layout.v;
        for (unsigned i = threadIdx.x; i < count * V; i += search_threads<V>)
            search_put(s, i / V, i % V, i % V < v ? a.x[(first + i / V) * v + i % V] : 0);
        const search_choice found = search_run(a.layout, s, count);
        if (port_warp() < count)
            store_choice<V>(a, first + port_warp(), s.x[port_warp()], found);
        __syncthreads();
    }
}

/* By class of v. */
static void (*const kernels[])(search_job) = {search_kernel<4>,  search_kernel<6>,
                                              search_kernel<8>,  search_kernel<12>,
                                              search_kernel<16>, search_kernel<SEARCH_LONG>};

vptq_status vptq_cuda_search(vptq_dev *dev, const vptq_search_args *f, vptq_err *err)
{
    search_job a = {};
    a.keep = f->keep;
    const auto launch = [&](size_t first, size_t count) {
        a.n = count;
        a.x = f->x + first * f->index->v;
        a.idx = f->idx + first;
        a.idx_res = f->index->res.stride ? f->idx_res + first : NULL;
        a.dist = f->dist ? f->dist + first : NULL;
        const unsigned blocks = vptq_cuda_search_blocks(dev, f->index, count, &a.each);
        a.layout = vptq_cuda_search_layout(dev, f->index, a.each, 0);
        return port_launch(kernels[f->index->size], blocks, search_threads_of(f->index->length),
                           a.layout.bytes, dev->stream, a);
    };
    return vptq_cuda_in_pieces(dev, "search", f->n, vptq_cuda_search_work(f->index),
                               SEARCH_UNIT, launch, err);
}
