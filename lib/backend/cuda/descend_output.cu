/* vq_descend_output: a block takes a unit through all columns, vector by vector, its threads
 * the centroids. A unit is the smallest number of rows that neither a vector nor a block of K
 * crosses; units are independent, so the bits do not depend on launches or blocks.
 *
 * With w = G_Rt - H_tt K_RR c_old, a change from c_old to c adds a constant and twice
 *     H_tt c^T K_RR c / 2 + c.w
 * and c^T K_RR c / 2, the form of c, is computed once for every vector of a unit. */
#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 512,
    BLOCK = VPTQ_OUTPUT_ROWS,
    SIDE = THREADS / BLOCK, /* threads that share a row of a block of K */
    MAX_V = VPTQ_VQ_MAX_V,
    FORM_BYTES = 256 << 20 /* of device memory for forms, unless one unit has more */
};

/* One of the codebooks of a job. */
struct output_codebook {
    uint32_t k;
    const float *centroids;  /* [k, v] */
    const float *transposed; /* [v, k] */
    uint32_t *idx;
    size_t forms; /* offset of its forms [vectors of a unit][k] in the memory of a block */
};

struct output_job {
    vptq_descend_output_args d;
    output_codebook of[2]; /* main, residual; k 0 if there is none */
    size_t unit;           /* rows */
    float *forms;          /* [blocks][slice] */
    size_t slice;
};

struct output_area {
    float g[2][BLOCK]; /* gradient of blocks b of K and b + 1, at b % 2 */
    float part[SIDE][BLOCK], sum[BLOCK];
    float w[MAX_V], change[MAX_V]; /* change: H_tt (new q - old q) */
    float of_warp[PORT_LANES], old;
    uint32_t index_of_warp[PORT_LANES];
};

/* The vector in work: rows row .. row + v - 1 of column t, in a unit that ends before row
 * `end`. */
struct output_place {
    size_t t, row, end;
    float h;
};

/* K_ij; 0 outside the blocks. */
static __device__ inline float output_entry(const output_job &a, size_t i, size_t j)
{
    return i / BLOCK == j / BLOCK ? a.d.output[i * BLOCK + j % BLOCK] : 0;
}

/* The gradient of a row that belongs to the vector in work or its blocks. */
static __device__ inline float &output_g(output_area &s, size_t row)
{
    return s.g[row / BLOCK % 2][row % BLOCK];
}

/* ---- forms ---- */

/* budget: transpose_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS)
    transpose_kernel(const float *c, uint32_t k, uint32_t v, float *to)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < (size_t)k * v)
        to[i] = c[i % k * v + i / k];
}

/* Forms of the vector in rows row .. row + v - 1. */
static __device__ void put_forms(const output_job &a, const output_codebook &b, size_t row,
                                 float *form)
{
    for (size_t c = threadIdx.x; c < b.k; c += THREADS) {
        float sum = 0;
        for (uint32_t e = 0; e < a.d.v; e++) {
            const float ce = b.transposed[(size_t)e * b.k + c];
            float product = 0.5F * output_entry(a, row + e, row + e) * ce;
            for (uint32_t f = 0; f < e; f++)
                product = fmaf(output_entry(a, row + e, row + f),
                               b.transposed[(size_t)f * b.k + c], product);
            sum = fmaf(product, ce, sum);
        }
        form[c] = sum;
    }
}

/* ---- gradients ---- */

/* Adds the parts of a row in order. */
static __device__ inline float sum_of_parts(const output_area &s, unsigned row)
{
    float sum = 0;
    for (unsigned n = 0; n < SIDE; n++)
        sum += s.part[n][row];
    return sum;
}

/* Puts the gradient of the block of K at row `first` into the area: g + K (sum over s < t of
 * h[s][t] delta_s). */
static __device__ void load_block(const output_job &a, const output_place &p, size_t first,
                                  output_area &s)
{
    const unsigned own = threadIdx.x % BLOCK, side = threadIdx.x / BLOCK;
    const unsigned count = (unsigned)min((size_t)BLOCK, p.end - first);
    float sum = 0;
    for (size_t u = side; own < count && u < p.t; u += SIDE)
        sum = fmaf(a.d.h[u * a.d.ldh + p.t], a.d.delta[u * a.d.ldd + first + own], sum);
    s.part[side][own] = sum;
    __syncthreads();
    if (side == 0)
        s.sum[own] = sum_of_parts(s, own);
    __syncthreads();
    sum = 0;
    for (unsigned j = side; own < count && j < count; j += SIDE)
        sum = fmaf(a.d.output[(first + j) * BLOCK + own], s.sum[j], sum);
    s.part[side][own] = sum;
    __syncthreads();
    if (side == 0 && own < count)
        output_g(s, first + own) = a.d.g[p.t * a.d.ldg + first + own] + sum_of_parts(s, own);
    __syncthreads();
}

static __device__ inline void put_w(const output_job &a, const output_place &p, const float *c,
                                    output_area &s)
{
    const unsigned e = threadIdx.x;
    if (e < a.d.v) {
        float sum = 0;
        for (uint32_t f = 0; f < a.d.v; f++)
            sum = fmaf(output_entry(a, p.row + e, p.row + f), p.h * c[f], sum);
        s.w[e] = output_g(s, p.row + e) - sum;
    }
    __syncthreads();
}

/* Applies s.change to the gradient of the blocks of K that the vector is in. */
static __device__ inline void change_gradient(const output_job &a, const output_place &p,
                                              output_area &s)
{
    const size_t j = p.row / BLOCK * BLOCK + threadIdx.x;
    if (threadIdx.x < 2 * BLOCK && j / BLOCK <= (p.row + a.d.v - 1) / BLOCK && j < p.end) {
        float sum = 0;
        for (uint32_t e = 0; e < a.d.v; e++)
            sum = fmaf(output_entry(a, p.row + e, j), s.change[e], sum);
        output_g(s, j) += sum;
    }
    __syncthreads();
}

/* ---- choices ---- */

/* A centroid with its cost; index ~0 and INFINITY if there is none. */
struct output_choice {
    float cost;
    uint32_t index;
};

/* The cheaper one over the lanes, the lowest index on ties, in every lane. */
static __device__ inline output_choice least_of_warp(output_choice best)
{
    for (int distance = PORT_LANES / 2; distance; distance /= 2) {
        const float cost = __shfl_xor_sync(port_all, best.cost, distance);
        const uint32_t index = __shfl_xor_sync(port_all, best.index, distance);
        if (cost < best.cost || (cost <= best.cost && index < best.index))
            best = {cost, index};
    }
    return best;
}

/* Returns the centroid that adds least, in every thread; `old` unless another adds less. */
static __device__ inline uint32_t cheapest(const output_job &a, const output_place &p,
                                           const output_codebook &b, const float *form,
                                           uint32_t old, output_area &s)
{
    output_choice best = {INFINITY, ~0U};
    float of_old = 0;
    for (uint32_t c = threadIdx.x; c < b.k; c += THREADS) {
        float cost = p.h * form[c];
        for (uint32_t e = 0; e < a.d.v; e++)
            cost = fmaf(b.transposed[(size_t)e * b.k + c], s.w[e], cost);
        if (cost < best.cost)
            best = {cost, c};
        of_old = c == old ? cost : of_old;
    }
    if (threadIdx.x == old % THREADS)
        s.old = of_old;
    best = least_of_warp(best);
    if (port_lane() == 0) {
        s.of_warp[port_warp()] = best.cost;
        s.index_of_warp[port_warp()] = best.index;
    }
    __syncthreads();
    best = {INFINITY, ~0U};
    if (port_lane() < THREADS / PORT_LANES)
        best = {s.of_warp[port_lane()], s.index_of_warp[port_lane()]};
    best = least_of_warp(best);
    return best.cost < s.old ? best.index : old;
}

/* Chooses a centroid of codebook n for the vector in work. */
static __device__ inline void choose(const output_job &a, const output_place &p, unsigned n,
                                     const float *form, output_area &s)
{
    const output_codebook &b = a.of[n];
    const size_t v = a.d.v, at = p.t * a.d.ldi + p.row / v;
    const uint32_t old = b.idx[at];
    put_w(a, p, b.centroids + old * v, s);
    const uint32_t now = cheapest(a, p, b, form, old, s);
    if (threadIdx.x == 0)
        b.idx[at] = now;
    __syncthreads(); /* the index is read below, and all threads have read s.old */
    if (threadIdx.x < v) {
        const unsigned e = threadIdx.x;
        float *q = a.d.q + p.t * a.d.ldq + p.row + e;
        float value = a.of[0].centroids[a.of[0].idx[at] * v + e];
        if (a.of[1].k)
            value += a.of[1].centroids[a.of[1].idx[at] * v + e];
        s.change[e] = p.h * (value - *q);
        *q = value;
    }
    __syncthreads();
    change_gradient(a, p, s);
}

/* ---- units ---- */

static __device__ inline void descend_column(const output_job &a, output_place p,
                                             const float *forms, output_area &s)
{
    const size_t v = a.d.v, first = p.row;
    for (size_t loaded = first; p.row < p.end; p.row += v) {
        const size_t i = (p.row - first) / v, at = p.t * a.d.ldq + p.row + threadIdx.x;
        const float before = threadIdx.x < v ? a.d.q[at] : 0;
        for (; loaded < p.row + v; loaded += BLOCK)
            load_block(a, p, loaded, s);
        for (unsigned n = 0; n < 2 && a.of[n].k; n++)
            choose(a, p, n, forms + a.of[n].forms + i * a.of[n].k, s);
        if (threadIdx.x < v)
            a.d.delta[p.t * a.d.ldd + p.row + threadIdx.x] = a.d.q[at] - before;
    }
}

/* budget: descend_output_kernel 128 registers */
__global__ static void __launch_bounds__(THREADS, 1)
    descend_output_kernel(output_job a, size_t first, size_t count)
{
    output_area &s = port_shared<output_area>();
    float *forms = a.forms + blockIdx.x * a.slice;
    for (size_t unit = first + blockIdx.x; unit < first + count; unit += gridDim.x) {
        const size_t row = unit * a.unit, end = min(row + a.unit, a.d.rows);
        for (unsigned n = 0; n < 2 && a.of[n].k; n++)
            for (size_t i = 0; row + i * a.d.v < end; i++)
                put_forms(a, a.of[n], row + i * a.d.v, forms + a.of[n].forms + i * a.of[n].k);
        __syncthreads();
        for (size_t t = 0; t < a.d.cols; t++) {
            const float h = a.d.h[t * a.d.ldh + t];
            if (h > 0)
                descend_column(a, {t, row, end, h}, forms, s);
            else
                for (size_t j = row + threadIdx.x; j < end; j += THREADS)
                    a.d.delta[t * a.d.ldd + j] = 0;
            __syncthreads();
        }
    }
}

/* ---- the op ---- */

/* The least common multiple of v and 64. */
static size_t unit_rows(size_t v)
{
    size_t unit = v;
    while (unit % BLOCK)
        unit *= 2;
    return unit;
}

/* Adds codebook n with its transposed centroids at *to, and its forms to the slice of a block.
 */
static cudaError_t add_codebook(vptq_dev *dev, output_job *a, unsigned n, float **to)
{
    output_codebook *b = &a->of[n];
    const size_t v = a->d.v, floats = b->k * v;
    b->transposed = *to;
    b->forms = a->slice;
    a->slice += a->unit / v * b->k;
    *to += floats;
    return b->k ? port_launch(transpose_kernel, vptq_cuda_blocks(floats, THREADS), THREADS, 0,
                              dev->stream, b->centroids, b->k, a->d.v, *to - floats)
                : cudaSuccess;
}

vptq_status vptq_cuda_vq_descend_output(vptq_dev *dev, const vptq_descend_output_args *d,
                                        vptq_err *err)
{
    output_job a = {};
    void *memory = NULL;
    a.d = *d;
    a.unit = unit_rows(d->v);
    a.of[0] = {d->k, d->centroids, NULL, d->idx, 0};
    a.of[1] = {d->k_res, d->res_centroids, NULL, d->idx_res, 0};
    const size_t all = (size_t)d->k + d->k_res, vectors = a.unit / d->v;
    const size_t units = (d->rows + a.unit - 1) / a.unit, bytes = vectors * all * sizeof(float);
    const size_t blocks = min(min(units, (size_t)dev->properties.multiProcessorCount),
                              (size_t)FORM_BYTES / bytes + 1);
    if (!d->cols || !d->rows)
        return VPTQ_OK;
    VPTQ_CHECK(
        vptq_cuda_scratch(dev, all * d->v * sizeof(float) + blocks * bytes, &memory, err));
    a.forms = static_cast<float *>(memory);
    cudaError_t e = add_codebook(dev, &a, 0, &a.forms);
    if (!e)
        e = add_codebook(dev, &a, 1, &a.forms);
    VPTQ_CHECK(vptq_cuda_check(e, "vq_descend_output", err));
    const double each = (double)(vectors * all) * (1 + d->v) * ((double)d->cols + d->v);
    const auto launch = [&](size_t first, size_t count) {
        return port_launch(descend_output_kernel, (unsigned)min(blocks, count), THREADS, 0,
                           dev->stream, a, first, count);
    };
    return vptq_cuda_in_pieces(dev, "vq_descend_output", units, each, 1, launch, err);
}
