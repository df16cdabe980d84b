/* vq_pass and vq_descend: one persistent launch, or a few (vptq_cuda_in_pieces). Vector rows
 * are independent, so a block takes a few of them through all columns and only its own barriers
 * order the work. Shared memory holds a panel of columns of its vector rows; every change is
 * applied to the later columns of the panel at once, and a later panel first receives the
 * changes of all earlier columns in order. Each element thus sees the same operations as with
 * immediate propagation: the bits do not depend on panels, blocks or threads. */
#include "lib/backend/cuda/search_choose.h"

enum { MAX_PANEL = 128 };

/* The job of both ops: a pass computes z -= err u, a sweep g += delta h. */
struct columns_job {
    search_layout layout;
    size_t cols, vector_rows;
    unsigned each;
    const float *from, *factors; /* z or g; u or h */
    uint32_t *idx, *idx_res;
    float *z;      /* pass: values at the moment of quantization */
    float *q;      /* sweep: in and out */
    float *change; /* err or delta */
    size_t ld_from, ld_factors, ldi, ldq, ld_change;
};

template <unsigned V> struct columns_area {
    float old[SEARCH_VECTORS][V];     /* q before the column */
    float change[SEARCH_VECTORS * V]; /* change of the column, without gaps */
    float factor[MAX_PANEL];          /* factors of the columns of the panel */
};

static_assert(sizeof(search_area<SEARCH_LONG>) + sizeof(columns_area<SEARCH_LONG>) <=
              SEARCH_STATIC_BYTES);

/* The work of a block: vector rows first .. first + count - 1, columns t0 .. t1 - 1 in tile
 * [columns][rows]. Thread i < rows handles row i. */
struct columns_place {
    size_t first, t0, t1;
    unsigned count, rows;
    float *tile;
};

/* Values of the next column, loaded early by thread i < rows. */
struct columns_next {
    float q, pivot;
};

template <bool DESCEND>
static __device__ inline float changed(float value, float change, float factor)
{
    const float product = change * factor;
    return DESCEND ? value + product : value - product;
}

/* Loads columns t0 .. t1 - 1 and applies the changes of all columns before them. */
template <bool DESCEND>
static __device__ void load_panel(const columns_job &a, const columns_place &p)
{
    const size_t row0 = p.first * a.layout.v;
    const unsigned count = (unsigned)(p.t1 - p.t0) * p.rows;
    for (unsigned i = threadIdx.x; i < count; i += SEARCH_THREADS) {
        const size_t s = p.t0 + i / p.rows, row = row0 + i % p.rows;
        float value = a.from[s * a.ld_from + row];
        for (size_t t = 0; t < p.t0; t++)
            value = changed<DESCEND>(value, a.change[t * a.ld_change + row],
                                     a.factors[t * a.ld_factors + s]);
        p.tile[i] = value;
    }
    __syncthreads();
}

/* Applies the change of column t to the later columns of the panel. The thread that reads an
 * element of column t + 1 is the one that changes it here, so no barrier is needed in between.
 */
template <unsigned V, bool DESCEND>
static __device__ inline void propagate(const columns_area<V> &c, const columns_place &p,
                                        size_t t)
{
    const unsigned side = SEARCH_THREADS / p.rows, row = threadIdx.x % p.rows;
    const unsigned width = (unsigned)(p.t1 - p.t0);
    if (threadIdx.x >= side * p.rows)
        return;
    const float change = c.change[row];
    for (unsigned s = (unsigned)(t - p.t0) + 1 + threadIdx.x / p.rows; s < width; s += side)
        p.tile[s * p.rows + row] =
            changed<DESCEND>(p.tile[s * p.rows + row], change, c.factor[s]);
}

/* Puts the values of column t into the search area. */
template <unsigned V, bool DESCEND>
static __device__ inline void put_column(const columns_job &a, const columns_place &p,
                                         search_area<V> &s, columns_area<V> &c, size_t t,
                                         columns_next now)
{
    const unsigned row = threadIdx.x, i = row / a.layout.v, d = row % a.layout.v;
    if (row >= p.rows)
        return;
    const float value = p.tile[(unsigned)(t - p.t0) * p.rows + row];
    if (DESCEND) {
        c.old[i][d] = now.q;
        search_put(s, i, d, now.q - value / now.pivot);
    } else {
        a.z[t * a.ld_from + p.first * a.layout.v + row] = value;
        search_put(s, i, d, value);
    }
}

/* Stores the choice of one vector row and the change it causes; one warp. */
template <unsigned V, bool DESCEND>
static __device__ inline void write_vector_row(const columns_job &a, const columns_place &p,
                                               const search_area<V> &s, columns_area<V> &c,
                                               size_t t, float pivot, search_choice found)
{
    const unsigned i = port_warp();
    const size_t vector_row = p.first + i, row = vector_row * a.layout.v;
    if (port_lane() == 0) {
        a.idx[t * a.ldi + vector_row] = found.main;
        if (a.idx_res)
            a.idx_res[t * a.ldi + vector_row] = found.res;
    }
    for (unsigned d = port_lane(); d < a.layout.v; d += PORT_LANES) {
        const float q = search_decode<V>(a.layout, found, d);
        const float change = DESCEND ? q - c.old[i][d] : (s.x[i][d] - q) / pivot;
        a.q[t * a.ldq + row + d] = q;
        a.change[t * a.ld_change + row + d] = change;
        c.change[i * a.layout.v + d] = change;
    }
}

template <unsigned V, bool DESCEND>
static __device__ inline columns_next load_next(const columns_job &a, const columns_place &p,
                                                size_t t)
{
    columns_next next = {0, 0};
    if (t >= a.cols)
        return next;
    next.pivot = a.factors[t * a.ld_factors + t];
    if (DESCEND && threadIdx.x < p.rows)
        next.q = a.q[t * a.ldq + p.first * a.layout.v + threadIdx.x];
    return next;
}

/* Quantizes column t of the panel. */
template <unsigned V, bool DESCEND>
static __device__ inline void quantize_column(const columns_job &a, const columns_place &p,
                                              search_area<V> &s, columns_area<V> &c, size_t t,
                                              columns_next now)
{
    const unsigned i = port_warp(), later = (unsigned)(t - p.t0) + 1 + threadIdx.x;
    const size_t at = t * a.ldi + p.first + i;
    search_choice old = {0, 0};
    float factor = 0, distance;
    put_column<V, DESCEND>(a, p, s, c, t, now);
    if (later < p.t1 - p.t0)
        factor = a.factors[t * a.ld_factors + p.t0 + later];
    if (DESCEND && i < p.count)
        old = {a.idx[at], a.idx_res ? a.idx_res[at] : 0};
    search_choice found = search_run(a.layout, s, p.count);
    if (later < p.t1 - p.t0)
        c.factor[later] = factor;
    if (i < p.count) {
        if (DESCEND)
            found = search_settle<V>(a.layout, s.x[i], found, old, &distance);
        write_vector_row<V, DESCEND>(a, p, s, c, t, now.pivot, found);
    }
    __syncthreads();
    propagate<V, DESCEND>(c, p, t);
}

/* Skips a column: nothing changes. */
static __device__ inline void skip_column(const columns_job &a, const columns_place &p,
                                          size_t t)
{
    if (threadIdx.x < p.rows)
        a.change[t * a.ld_change + p.first * a.layout.v + threadIdx.x] = 0;
    __syncthreads(); /* the previous column has been propagated */
}

/* Takes vector rows first .. first + count - 1 through all columns. */
template <unsigned V, bool DESCEND>
static __device__ inline void quantize_vector_rows(const columns_job &a, search_area<V> &s,
                                                   columns_area<V> &c, size_t first,
                                                   unsigned count)
{
    columns_place p = {
        first, 0, 0, count, count * a.layout.v, search_dynamic<float>(a.layout.tile)};
    columns_next now = load_next<V, DESCEND>(a, p, 0);
    for (p.t0 = 0; p.t0 < a.cols; p.t0 = p.t1) {
        p.t1 = min(p.t0 + a.layout.panel, a.cols);
        load_panel<DESCEND>(a, p);
        for (size_t t = p.t0; t < p.t1; t++) {
            const columns_next next = load_next<V, DESCEND>(a, p, t + 1);
            if (DESCEND && !(now.pivot > 0))
                skip_column(a, p, t);
            else
                quantize_column<V, DESCEND>(a, p, s, c, t, now);
            now = next;
        }
    }
}

/* budget: columns_kernel 240 registers (long vectors; up to 12 elements 128) */
template <unsigned V, bool DESCEND>
__global__ static void __launch_bounds__(SEARCH_THREADS, search_per_sm<V>)
    columns_kernel(columns_job a)
{
    search_area<V> &s = port_shared<search_area<V>>();
    columns_area<V> &c = port_shared<columns_area<V>>();
    search_load_codebooks<V>(a.layout);
    for (unsigned i = threadIdx.x; i < SEARCH_VECTORS * V; i += SEARCH_THREADS)
        search_put(s, i / V, i % V, 0); /* elements after v remain zero */
    __syncthreads();
    const size_t stride = (size_t)gridDim.x * a.each;
    for (size_t first = (size_t)blockIdx.x * a.each; first < a.vector_rows; first += stride)
        quantize_vector_rows<V, DESCEND>(a, s, c, first,
                                         (unsigned)min((size_t)a.each, a.vector_rows - first));
}

/* ---- the ops ---- */

/* By class of v. */
template <bool DESCEND>
static void (*const kernels[])(columns_job) = {
    columns_kernel<4, DESCEND>,  columns_kernel<6, DESCEND>,
    columns_kernel<8, DESCEND>,  columns_kernel<12, DESCEND>,
    columns_kernel<16, DESCEND>, columns_kernel<SEARCH_LONG, DESCEND>};

/* The job for vector rows [first, first + count) only. */
static columns_job part_of(columns_job a, size_t first, size_t count)
{
    const size_t rows = first * a.layout.v;
    a.vector_rows = count;
    a.from += rows;
    a.z = a.z ? a.z + rows : NULL;
    a.q += rows;
    a.change += rows;
    a.idx += first;
    a.idx_res = a.idx_res ? a.idx_res + first : NULL;
    return a;
}

/* Runs the job in pieces of vector rows, which are independent. */
template <bool DESCEND>
static vptq_status run(vptq_dev *dev, const vptq_search_index *f, columns_job a, const char *op,
                       vptq_err *err)
{
    const double cols = (double)a.cols;
    const double each = cols * (vptq_cuda_search_work(f) + cols / 2 * f->v);
    const unsigned panel = a.cols < MAX_PANEL ? (unsigned)a.cols : (unsigned)MAX_PANEL;
    if (!a.cols || !a.vector_rows)
        return VPTQ_OK;
    a.layout = vptq_cuda_search_layout(dev, f, panel);
    a.idx_res = f->res.stride ? a.idx_res : NULL;
    const auto launch = [&](size_t first, size_t count) {
        columns_job part = part_of(a, first, count);
        const unsigned blocks = vptq_cuda_search_blocks(dev, &a.layout, count, &part.each);
        return search_launch(dev, kernels<DESCEND>[f->size], a.layout, blocks, part);
    };
    return vptq_cuda_in_pieces(dev, op, a.vector_rows, each, SEARCH_UNIT, launch, err);
}

vptq_status vptq_cuda_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err)
{
    columns_job a = {};
    a.cols = p->cols;
    a.vector_rows = p->rows / p->index->v;
    a.from = a.z = p->z;
    a.factors = p->u;
    a.idx = p->idx;
    a.idx_res = p->idx_res;
    a.q = p->q;
    a.change = p->err;
    a.ld_from = p->ldz;
    a.ld_factors = p->ldu;
    a.ldi = p->ldi;
    a.ldq = p->ldq;
    a.ld_change = p->lde;
    return run<false>(dev, p->index, a, "vq_pass", err);
}

vptq_status vptq_cuda_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err)
{
    columns_job a = {};
    a.cols = d->cols;
    a.vector_rows = d->rows / d->index->v;
    a.from = d->g;
    a.factors = d->h;
    a.idx = d->idx;
    a.idx_res = d->idx_res;
    a.q = d->q;
    a.change = d->delta;
    a.ld_from = d->ldg;
    a.ld_factors = d->ldh;
    a.ldi = d->ldi;
    a.ldq = d->ldq;
    a.ld_change = d->ldd;
    return run<true>(dev, d->index, a, "vq_descend", err);
}
