/* Finders and the row find: books laid out in device memory, and a persistent kernel that
 * searches them (cuda_find.h has the search). */
#include "lib/backend/cuda/find.h"

#include <string.h>

/* ---- finders ---- */

enum { PACK_THREADS = 128 };

/* Centroid j of a book [k, v] into its place; wide: see find_wide. */
/* budget: pack_kernel 40 registers */
__global__ static void __launch_bounds__(PACK_THREADS)
    pack_kernel(uint32_t v, uint32_t k, unsigned wide, uint32_t room, const float *c,
                float *data)
{
    const uint32_t j = blockIdx.x * PACK_THREADS + threadIdx.x;
    float norm = 0;
    if (j >= room)
        return;
    for (unsigned d = 0; d < wide; d++) {
        const unsigned panel = d / 4 * 4, width = wide - panel < 4 ? wide - panel : 4;
        const float element = j < k && d < v ? c[(size_t)j * v + d] : 0;
        norm = d < v ? fmaf(element, element, norm) : norm;
        data[panel * room + j * width + d % 4] = element;
    }
    data[wide * room + j] = j < k ? norm : NAN;
}

static size_t book_floats(const vptq_finder *f, const find_book *b)
{
    return (size_t)(find_wide(f->length, f->v) + 1) * b->room;
}

static cudaError_t pack(vptq_dev *dev, const vptq_finder *f, const find_book *b,
                        const float *centroids, float *data)
{
    return port_launch(pack_kernel, vptq_cuda_blocks(b->room, PACK_THREADS), PACK_THREADS, 0,
                       dev->stream, f->v, b->k, find_wide(f->length, f->v), b->room, centroids,
                       data);
}

/* Both books into one piece of device memory. */
static vptq_status pack_books(vptq_dev *dev, const vptq_books *books, vptq_finder *f,
                              vptq_err *err)
{
    const size_t floats = book_floats(f, &f->main);
    const vptq_status st =
        vptq_cuda_alloc((floats + book_floats(f, &f->res)) * sizeof(float), &f->memory, err);
    if (st)
        return st;
    float *data = static_cast<float *>(f->memory);
    f->main.data = data;
    f->res.data = data + floats;
    cudaError_t e = pack(dev, f, &f->main, books->centroids, data);
    if (!e && f->res.room)
        e = pack(dev, f, &f->res, books->res_centroids, data + floats);
    return vptq_cuda_check(e, "finder_open", err);
}

void vptq_cuda_finder_close(vptq_dev *dev, vptq_finder *finder)
{
    if (!finder)
        return;
    (void)cudaFree(finder->memory); /* after what is running */
    vptq_mem_free(dev->ctx->mem, finder);
}

static unsigned class_of(uint32_t v)
{
    static const unsigned classes[] = {4, 6, 8, 12, 16};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (v <= classes[i])
            return classes[i];
    return FIND_LONG;
}

static unsigned beam_of(const vptq_books *b)
{
    if (!b->k_res || b->k == 1 || b->beam == 1)
        return 1;
    return b->beam >= b->k || b->beam > FIND_MOST_BEAM ? 0 : b->beam;
}

static find_book book_of(uint32_t k)
{
    find_book b = {};
    b.k = k;
    b.room = (k + PORT_LANES - 1) / PORT_LANES * PORT_LANES;
    return b;
}

vptq_status vptq_cuda_finder_open(vptq_dev *dev, const vptq_books *books, vptq_finder **finder,
                                  vptq_err *err)
{
    *finder = NULL;
    VPTQ_BUG_IF(!books->v || books->v > VPTQ_VQ_MAX_V);
    vptq_finder *f =
        static_cast<vptq_finder *>(vptq_mem_alloc(dev->ctx->mem, 1, sizeof *f, err));
    if (!f)
        return VPTQ_E_NOMEM;
    memset(f, 0, sizeof *f);
    f->v = books->v;
    f->length = class_of(books->v);
    f->beam = beam_of(books);
    f->main = book_of(books->k);
    f->res = book_of(books->k_res);
    const vptq_status st = pack_books(dev, books, f, err);
    if (st) {
        vptq_cuda_finder_close(dev, f);
        return st;
    }
    *finder = f;
    return VPTQ_OK;
}

/* ---- plans ---- */

enum { LEAST_PANEL = 32 };

static unsigned take(find_layout *l, size_t bytes)
{
    const unsigned at = l->bytes;
    l->bytes += (unsigned)((bytes + 15) / 16 * 16);
    return at;
}

/* Room for choosing the beam and for rests of long vectors. */
static void lay_lists(const vptq_finder *f, find_layout *l)
{
    if (l->beam > 1) {
        l->groups = PORT_LANES;
        while (l->groups < 2 * l->beam)
            l->groups *= 2;
        l->room = 4 * l->beam + 32;
        l->keys = take(l, FIND_VECTORS * FIND_THREADS * sizeof(uint64_t));
        l->group_keys = take(l, FIND_VECTORS * l->groups * sizeof(uint64_t));
        l->candidates = take(l, FIND_VECTORS * l->room * sizeof(uint64_t));
        l->list = take(l, FIND_VECTORS * l->beam * sizeof(uint32_t));
    }
    if (l->beam != 1 && f->length == FIND_LONG)
        l->rests = take(l, FIND_WARPS * FIND_VECTORS * FIND_LONG * sizeof(float));
}

static void lay_book(const vptq_finder *f, size_t most, find_layout *l, find_book *b)
{
    const size_t bytes = book_floats(f, b) * sizeof(float);
    b->shared = b->room && l->bytes + bytes <= most;
    if (b->shared)
        b->at = take(l, bytes) / (unsigned)sizeof(float);
}

find_layout vptq_cuda_find_layout(const vptq_dev *dev, const vptq_finder *finder,
                                  unsigned columns)
{
    const size_t all = dev->properties.sharedMemPerBlockOptin - FIND_PLAIN_BYTES;
    const size_t column = FIND_VECTORS * finder->v * sizeof(float);
    const size_t least = (columns < LEAST_PANEL ? columns : (unsigned)LEAST_PANEL) * column;
    find_layout l = {};
    l.main = finder->main;
    l.res = finder->res;
    l.v = finder->v;
    l.beam = finder->beam;
    lay_lists(finder, &l);
    lay_book(finder, all - least, &l, &l.res);
    lay_book(finder, all - least, &l, &l.main);
    if (columns) {
        const size_t room = (all - l.bytes) / column;
        l.panel = room < columns ? (unsigned)room : columns;
        l.tile = take(&l, l.panel * column);
    }
    return l;
}

unsigned vptq_cuda_find_blocks(const vptq_dev *dev, const find_layout *l, size_t n,
                               unsigned *each)
{
    const cudaDeviceProp *p = &dev->properties;
    const size_t half = (p->sharedMemPerBlockOptin - 1024) / 2;
    const size_t at_once =
        (size_t)p->multiProcessorCount * (l->bytes + FIND_PLAIN_BYTES <= half ? 2 : 1);
    const size_t share = (n + at_once - 1) / at_once;
    *each = share < FIND_VECTORS ? (unsigned)share : (unsigned)FIND_VECTORS;
    const size_t tasks = (n + *each - 1) / *each;
    return (unsigned)(tasks < at_once ? tasks : at_once);
}

double vptq_cuda_find_work(const vptq_finder *f)
{
    const double k = f->main.k, k_res = f->res.k, mains = f->beam ? f->beam : k;
    return (k + mains * k_res) * (f->length + 1);
}

/* ---- find ---- */

struct find_job {
    find_layout layout;
    size_t n;
    unsigned each;
    const float *x;
    bool keep;
    uint32_t *idx, *idx_res;
    float *dist;
};

/* The choice for vector i of all, which is x; by one warp. */
template <unsigned V>
static __device__ void answer(const find_job &a, size_t i, const float *x, find_choice found)
{
    find_choice old = found;
    float apart;
    if (a.keep)
        old = {a.idx[i], a.idx_res ? a.idx_res[i] : 0};
    __syncwarp(); /* the old choice has been read */
    found = find_settle<V>(a.layout, x, found, old, &apart);
    if (port_lane() != 0)
        return;
    a.idx[i] = found.main;
    if (a.idx_res)
        a.idx_res[i] = found.res;
    if (a.dist)
        a.dist[i] = apart;
}

/* Persistent: a block loads its books once and takes `each` vectors at a time. */
/* budget: find_kernel 208 registers (class 16; the others 128) */
template <unsigned V>
__global__ static void __launch_bounds__(FIND_THREADS, find_per_sm<V>) find_kernel(find_job a)
{
    find_area<V> &s = port_shared<find_area<V>>();
    const size_t stride = (size_t)gridDim.x * a.each;
    find_load_books<V>(a.layout);
    for (size_t first = (size_t)blockIdx.x * a.each; first < a.n; first += stride) {
        const unsigned count = (unsigned)min((size_t)a.each, a.n - first);
        const uint32_t v = a.layout.v;
        for (unsigned i = threadIdx.x; i < count * V; i += FIND_THREADS)
            find_put(s, i / V, i % V, i % V < v ? a.x[(first + i / V) * v + i % V] : 0);
        const find_choice found = find_search(a.layout, s, count);
        if (port_warp() < count)
            answer<V>(a, first + port_warp(), s.x[port_warp()], found);
        __syncthreads();
    }
}

static vptq_status launch_class(vptq_dev *dev, unsigned length, unsigned blocks,
                                const find_job &a, vptq_err *err)
{
    switch (length) {
    case 4:
        return find_launch(dev, find_kernel<4>, a.layout, blocks, a, "find", err);
    case 6:
        return find_launch(dev, find_kernel<6>, a.layout, blocks, a, "find", err);
    case 8:
        return find_launch(dev, find_kernel<8>, a.layout, blocks, a, "find", err);
    case 12:
        return find_launch(dev, find_kernel<12>, a.layout, blocks, a, "find", err);
    case 16:
        return find_launch(dev, find_kernel<16>, a.layout, blocks, a, "find", err);
    default:
        return find_launch(dev, find_kernel<FIND_LONG>, a.layout, blocks, a, "find", err);
    }
}

vptq_status vptq_cuda_find(vptq_dev *dev, const vptq_find_args *f, vptq_err *err)
{
    const double each = vptq_cuda_find_work(f->finder);
    const size_t piece = vptq_cuda_piece(f->n, each, FIND_UNIT);
    vptq_status st = VPTQ_OK;
    find_job a = {};
    a.layout = vptq_cuda_find_layout(dev, f->finder, 0);
    a.keep = f->keep;
    for (size_t i = 0; i < f->n && !st; i += piece) {
        a.n = min(piece, f->n - i);
        a.x = f->x + i * f->finder->v;
        a.idx = f->idx + i;
        a.idx_res = f->finder->res.room ? f->idx_res + i : NULL;
        a.dist = f->dist ? f->dist + i : NULL;
        const unsigned blocks = vptq_cuda_find_blocks(dev, &a.layout, a.n, &a.each);
        st = vptq_cuda_pace(dev, each * (double)a.n, err);
        if (!st)
            st = launch_class(dev, f->finder->length, blocks, a, err);
    }
    return st;
}
