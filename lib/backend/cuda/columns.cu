/* vq_pass and vq_descend: one persistent launch, or a few (vptq_cuda_in_pieces). Vector rows
 * are independent, so a block takes a few of them through all columns and only its own barriers
 * order the work. Shared memory holds a panel of columns of its vector rows; every change is
 * applied to the later columns of the panel at once, and a later panel first receives the
 * changes of all earlier columns in order. Each element thus sees the same operations as with
 * immediate propagation: the bits do not depend on panels, blocks or threads. */
#include "lib/backend/cuda/search_choose.h"

enum { MAX_PANEL = 128, PROPAGATED = 4 /* columns that a thread changes at once */ };

/* The job of both ops: a pass computes z -= err u, a sweep g += delta h. */
struct columns_job {
    search_layout layout;
    unsigned cols, vector_rows, each;
    const float *from, *factors; /* z or g; u or h */
    uint32_t *idx, *idx_res;
    float *z;      /* pass: values at the moment of quantization */
    float *q;      /* sweep: in and out */
    float *change; /* err or delta */
    size_t ld_from, ld_factors, ldi, ldq, ld_change;
};

/* The input of a column, which no other column changes. A pass uses the pivot only. */
template <unsigned V> struct columns_input {
    float q[search_vectors<V> * V];
    uint32_t main[search_vectors<V>], res[search_vectors<V>];
    float pivot;
};

/* Column t has input[t % 2], which is copied during the search of the column before, and
 * factor[t % 2], copied during its own: copies in flight occupy no registers. */
template <unsigned V> struct columns_area {
    columns_input<V> input[2];
    float factor[2][MAX_PANEL];          /* factors of the later columns of the panel */
    float change[search_vectors<V> * V]; /* change of the column, without gaps */
};

static_assert(sizeof(search_area<SEARCH_LONG>) + sizeof(columns_area<SEARCH_LONG>) <=
              SEARCH_STATIC_BYTES);

/* The work of a block: vector rows first .. first + count - 1, columns t0 .. t1 - 1 in tile
 * [columns][rows]. 2^bits >= rows threads handle a column of the tile, the first of them row 0;
 * different groups of so many threads take columns in turn. */
struct columns_place {
    unsigned first, count, rows, bits, t0, t1;
    float *tile;
};
static __device__ inline unsigned columns_row(const columns_place &p)
{
    return threadIdx.x & ((1U << p.bits) - 1);
}

template <bool DESCEND>
static __device__ inline float changed(float value, float change, float factor)
{
    const float product = change * factor;
    return DESCEND ? value + product : value - product;
}

/* Loads columns t0 .. t1 - 1 and applies the changes of all columns before them. */
template <unsigned V, bool DESCEND>
static __device__ void load_panel(const columns_job &a, const columns_place &p)
{
    const unsigned side = search_threads<V> >> p.bits, own = columns_row(p);
    const unsigned row = p.first * a.layout.v + own;
    for (unsigned s = p.t0 + (threadIdx.x >> p.bits); own < p.rows && s < p.t1; s += side) {
        float value = a.from[s * a.ld_from + row];
        for (unsigned t = 0; t < p.t0; t++)
            value = changed<DESCEND>(value, a.change[t * a.ld_change + row],
                                     a.factors[t * a.ld_factors + s]);
        p.tile[(s - p.t0) * p.rows + own] = value;
    }
    __syncthreads();
}

/* Applies the change of column t to the later columns of the panel. The thread that reads an
 * element of column t + 1 is the one that changes it here, so no barrier is needed in between.
 */
template <unsigned V, bool DESCEND>
static __device__ inline void propagate(const columns_area<V> &c, const columns_place &p,
                                        unsigned t)
{
    const unsigned side = search_threads<V> >> p.bits, row = columns_row(p);
    const unsigned width = p.t1 - p.t0;
    if (row >= p.rows)
        return;
    const float change = c.change[row];
    for (unsigned s = t - p.t0 + 1 + (threadIdx.x >> p.bits); s < width;
         s += PROPAGATED * side) {
        float value[PROPAGATED]; /* their reads overlap */
#pragma unroll
        for (unsigned n = 0; n < PROPAGATED; n++) {
            const unsigned at = s + n * side;
            value[n] = at < width ? changed<DESCEND>(p.tile[at * p.rows + row], change,
                                                     c.factor[t % 2][at])
                                  : 0;
        }
#pragma unroll
        for (unsigned n = 0; n < PROPAGATED; n++)
            if (s + n * side < width)
                p.tile[(s + n * side) * p.rows + row] = value[n];
    }
}

/* Puts the values of column t into the search area. */
template <unsigned V, bool DESCEND>
static __device__ inline void put_column(const columns_job &a, const columns_place &p,
                                         search_area<V> &s, const columns_input<V> &in,
                                         unsigned t)
{
    const bool full = a.layout.v == V; /* spares the divisions */
    const unsigned row = threadIdx.x;
    if (row >= p.rows)
        return;
    const unsigned i = full ? row / V : row / a.layout.v, d = row - i * a.layout.v;
    const float value = p.tile[(t - p.t0) * p.rows + row];
    if (DESCEND) {
        search_put(s, i, d, in.q[row] - value / in.pivot);
    } else {
        a.z[t * a.ld_from + p.first * a.layout.v + row] = value;
        search_put(s, i, d, value);
    }
}

/* Stores the choice of one vector row and the change it causes; one warp. */
template <unsigned V, bool DESCEND>
static __device__ inline void write_vector_row(const columns_job &a, const columns_place &p,
                                               const search_area<V> &s, columns_area<V> &c,
                                               unsigned t, search_choice found)
{
    const columns_input<V> &in = c.input[t % 2];
    const unsigned i = port_warp(), vector_row = p.first + i, row = vector_row * a.layout.v;
    if (port_lane() == 0) {
        a.idx[t * a.ldi + vector_row] = found.main;
        if (a.idx_res)
            a.idx_res[t * a.ldi + vector_row] = found.res;
    }
    for (unsigned d = port_lane(); d < a.layout.v; d += PORT_LANES) {
        const float q = search_decode<V>(a.layout, found, d);
        const float change =
            DESCEND ? q - in.q[i * a.layout.v + d] : (s.x[i][d] - q) / in.pivot;
        a.q[t * a.ldq + row + d] = q;
        a.change[t * a.ld_change + row + d] = change;
        c.change[i * a.layout.v + d] = change;
    }
}

/* Begins to copy the input of column t. */
template <unsigned V, bool DESCEND>
static __device__ inline void copy_input(const columns_job &a, const columns_place &p,
                                         columns_input<V> &in, unsigned t)
{
    const unsigned i = threadIdx.x;
    if (t >= a.cols)
        return;
    if (i == 0)
        port_copy_async_word(&in.pivot, a.factors + t * a.ld_factors + t);
    if (DESCEND && i < p.rows)
        port_copy_async_word(&in.q[i], a.q + t * a.ldq + p.first * a.layout.v + i);
    if (DESCEND && i < p.count) {
        const size_t at = t * a.ldi + p.first + i;
        port_copy_async_word(&in.main[i], a.idx + at);
        if (a.idx_res)
            port_copy_async_word(&in.res[i], a.idx_res + at);
    }
}

/* Begins to copy the factors of column t for the later columns of the panel. */
template <unsigned V>
static __device__ inline void copy_factors(const columns_job &a, const columns_place &p,
                                           columns_area<V> &c, unsigned t)
{
    const unsigned later = t - p.t0 + 1 + threadIdx.x;
    if (later < p.t1 - p.t0)
        port_copy_async_word(&c.factor[t % 2][later],
                             a.factors + t * a.ld_factors + p.t0 + later);
}

/* Quantizes column t of the panel. */
template <unsigned V, bool DESCEND>
static __device__ inline void quantize_column(const columns_job &a, const columns_place &p,
                                              search_area<V> &s, columns_area<V> &c, unsigned t)
{
    const columns_input<V> &in = c.input[t % 2];
    const unsigned i = port_warp();
    float distance;
    put_column<V, DESCEND>(a, p, s, in, t);
    copy_factors(a, p, c, t);
    port_copy_commit();
    search_choice found = search_run(a.layout, s, p.count);
    port_copy_wait<0>();
    if (i < p.count) {
        if (DESCEND)
            found = search_settle<V>(a.layout, s.x[i], found,
                                     {in.main[i], a.idx_res ? in.res[i] : 0}, &distance);
        write_vector_row<V, DESCEND>(a, p, s, c, t, found);
    }
    __syncthreads();
    propagate<V, DESCEND>(c, p, t);
}

/* Skips a column: nothing changes. */
static __device__ inline void skip_column(const columns_job &a, const columns_place &p,
                                          unsigned t)
{
    if (threadIdx.x < p.rows)
        a.change[t * a.ld_change + p.first * a.layout.v + threadIdx.x] = 0;
    port_copy_wait<0>();
    __syncthreads(); /* the previous column has been propagated */
}

/* Takes vector rows first .. first + count - 1 through all columns. */
template <unsigned V, bool DESCEND>
static __device__ inline void quantize_vector_rows(const columns_job &a, search_area<V> &s,
                                                   columns_area<V> &c, unsigned first,
                                                   unsigned count)
{
    const unsigned rows = count * a.layout.v;
    columns_place p = {first,
                       count,
                       rows,
                       rows > 1 ? 32U - (unsigned)__clz((int)(rows - 1)) : 0,
                       0,
                       0,
                       search_dynamic<float>(a.layout.tile)};
    copy_input<V, DESCEND>(a, p, c.input[0], 0);
    port_copy_commit();
    port_copy_wait<0>();
    for (p.t0 = 0; p.t0 < a.cols; p.t0 = p.t1) {
        p.t1 = min(p.t0 + a.layout.panel, a.cols);
        load_panel<V, DESCEND>(a, p);
        for (unsigned t = p.t0; t < p.t1; t++) {
            copy_input<V, DESCEND>(a, p, c.input[(t + 1) % 2], t + 1);
            port_copy_commit();
            if (DESCEND && !(c.input[t % 2].pivot > 0))
                skip_column(a, p, t);
            else
                quantize_column<V, DESCEND>(a, p, s, c, t);
        }
    }
}

/* budget: columns_kernel 192 registers (long vectors; up to 12 elements 128) */
template <unsigned V, bool DESCEND>
__global__ static void __launch_bounds__(search_threads<V>, 1) columns_kernel(columns_job a)
{
    search_area<V> &s = port_shared<search_area<V>>();
    columns_area<V> &c = port_shared<columns_area<V>>();
    search_load_codebooks<V>(a.layout);
    for (unsigned i = threadIdx.x; i < search_vectors<V> * V; i += search_threads<V>)
        search_put(s, i / V, i % V, 0); /* elements after v remain zero */
    __syncthreads();
    const unsigned stride = gridDim.x * a.each;
    for (unsigned first = blockIdx.x * a.each; first < a.vector_rows; first += stride)
        quantize_vector_rows<V, DESCEND>(a, s, c, first, min(a.each, a.vector_rows - first));
}

/* ---- the ops ---- */

/* By class of v. */
template <bool DESCEND>
static void (*const kernels[])(columns_job) = {
    columns_kernel<4, DESCEND>,  columns_kernel<6, DESCEND>,
    columns_kernel<8, DESCEND>,  columns_kernel<12, DESCEND>,
    columns_kernel<16, DESCEND>, columns_kernel<SEARCH_LONG, DESCEND>};

/* The job for vector rows [first, first + count) of v rows only. */
static columns_job part_of(columns_job a, uint32_t v, size_t first, size_t count)
{
    const size_t rows = first * v;
    a.vector_rows = (unsigned)count;
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
    const unsigned panel = min(a.cols, (unsigned)MAX_PANEL);
    if (!a.cols || !a.vector_rows)
        return VPTQ_OK;
    a.idx_res = f->res.stride ? a.idx_res : NULL;
    const auto launch = [&](size_t first, size_t count) {
        columns_job part = part_of(a, f->v, first, count);
        const unsigned blocks = vptq_cuda_search_blocks(dev, f, count, &part.each);
        part.layout = vptq_cuda_search_layout(dev, f, part.each, panel);
        return port_launch(kernels<DESCEND>[f->size], blocks, search_threads_of(f->length),
                           part.layout.bytes, dev->stream, part);
    };
    return vptq_cuda_in_pieces(dev, op, a.vector_rows, each, SEARCH_UNIT, launch, err);
}

vptq_status vptq_cuda_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err)
{
    columns_job a = {};
    VPTQ_BUG_IF(p->cols > UINT32_MAX || p->rows > UINT32_MAX);
    a.cols = (unsigned)p->cols;
    a.vector_rows = (unsigned)(p->rows / p->index->v);
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
    VPTQ_BUG_IF(d->cols > UINT32_MAX || d->rows > UINT32_MAX);
    a.cols = (unsigned)d->cols;
    a.vector_rows = (unsigned)(d->rows / d->index->v);
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
