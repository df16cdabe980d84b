/* accumulate and vq_scatter: sums of the vectors of every centroid in double, in a fixed order
 * and without atomics. A stable counting sort in blocks orders the vectors by label, then a few
 * warps add equal parts of the vectors of each centroid, and the sums of the parts are added in
 * order. The counts take the memory: if it is short, blocks are larger and the order is the
 * same. */
#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 128,
    WARPS = THREADS / PORT_LANES,
    BLOCK_VECTORS = 2048,
    SCAN = 1024,
    OFFSETS = 8,          /* counts that a thread reads at once */
    SUM_WARPS = 16 << 10, /* as many as a large device runs at once, or more */
    MAX_PARTS = 64        /* of a centroid */
};

/* Vector i is vector row i % vector_rows of column i / vector_rows. */
struct labelled {
    size_t n, vector_rows, ldx, ldi;
    uint32_t v, k;
    const float *x, *weight; /* weight NULL: ones */
    const uint32_t *idx;
    size_t per_weight; /* vectors that share a weight */
    bool repeat;       /* stores the weight of a centroid once for each element */
    size_t piece;      /* vectors that one warp sorts */
};

static __device__ inline size_t label_at(const labelled &a, size_t i)
{
    return a.idx[i / a.vector_rows * a.ldi + i % a.vector_rows];
}
static __device__ inline const float *vector_at(const labelled &a, size_t i)
{
    return a.x + i / a.vector_rows * a.ldx + i % a.vector_rows * a.v;
}
static __device__ inline double weight_at(const labelled &a, size_t i)
{
    return a.weight ? (double)a.weight[i / a.per_weight] : 1;
}

/* Counts the uses of every centroid in every block of vectors: at [block][k], cleared before.
 */
/* budget: count_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) count_kernel(labelled a, uint32_t *at)
{
    const size_t first = blockIdx.x * a.piece, last = min(first + a.piece, a.n);
    for (size_t i = first + threadIdx.x; i < last; i += THREADS)
        atomicAdd(&at[blockIdx.x * (size_t)a.k + label_at(a, i)], 1u);
}

/* Turns counts into offsets within the run of a centroid; starts[j] = length of the run. */
/* budget: offsets_kernel 56 registers */
__global__ static void __launch_bounds__(THREADS)
    offsets_kernel(uint32_t k, unsigned pieces, uint32_t *at, uint32_t *starts)
{
    const uint32_t j = blockIdx.x * THREADS + threadIdx.x;
    uint32_t sum = 0;
    if (j >= k)
        return;
    for (unsigned p = 0; p < pieces; p += OFFSETS) {
        uint32_t here[OFFSETS]; /* read together: a thread waits once */
#pragma unroll
        for (unsigned i = 0; i < OFFSETS; i++)
            here[i] = p + i < pieces ? at[(p + i) * (size_t)k + j] : 0;
#pragma unroll
        for (unsigned i = 0; i < OFFSETS; i++) {
            if (p + i < pieces)
                at[(p + i) * (size_t)k + j] = sum;
            sum += here[i];
        }
    }
    starts[j] = sum;
}

struct scan_sums {
    uint32_t of_warp[PORT_LANES];
};

/* Turns lengths into starts; starts[k] = n. One block. */
/* budget: starts_kernel 48 registers */
__global__ static void __launch_bounds__(SCAN) starts_kernel(uint32_t k, uint32_t *starts)
{
    scan_sums &s = port_shared<scan_sums>();
    uint32_t before = 0;
    for (uint32_t j0 = 0; j0 < k; j0 += SCAN) {
        const uint32_t j = j0 + threadIdx.x, own = j < k ? starts[j] : 0;
        uint32_t sum = own; /* inclusive sum within the warp */
        for (unsigned by = 1; by < PORT_LANES; by *= 2) {
            const uint32_t left = __shfl_up_sync(port_all, sum, by);
            sum += port_lane() >= by ? left : 0;
        }
        __syncthreads();
        if (port_lane() == PORT_LANES - 1)
            s.of_warp[port_warp()] = sum;
        __syncthreads();
        uint32_t all = 0;
        for (unsigned w = 0; w < SCAN / PORT_LANES; w++) {
            sum += w < port_warp() ? s.of_warp[w] : 0;
            all += s.of_warp[w];
        }
        if (j < k)
            starts[j] = before + sum - own;
        before += all;
    }
    if (threadIdx.x == 0)
        starts[k] = before;
}

/* Writes the vectors sorted by label, ascending within a label. A warp takes 32 vectors of its
 * block at a time; equal labels find their rank with match_any. */
/* budget: sort_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS)
    sort_kernel(labelled a, unsigned pieces, uint32_t *at, const uint32_t *starts,
                uint32_t *order)
{
    const unsigned piece = blockIdx.x * WARPS + port_warp(), lane = port_lane();
    const size_t first = piece * a.piece, last = min(first + a.piece, a.n);
    if (piece >= pieces)
        return;
    at += piece * (size_t)a.k;
    for (size_t i0 = first; i0 < last; i0 += PORT_LANES) {
        const bool valid = i0 + lane < last;
        const uint32_t label = valid ? (uint32_t)label_at(a, i0 + lane) : a.k;
        const unsigned same = __match_any_sync(port_all, label);
        const unsigned rank = (unsigned)__popc(same & ((1u << lane) - 1));
        uint32_t offset = 0;
        if (valid)
            offset = at[label];
        __syncwarp();
        if (valid && rank == 0)
            at[label] = offset + (unsigned)__popc(same);
        __syncwarp();
        if (valid)
            order[starts[label] + offset + rank] = (uint32_t)(i0 + lane);
    }
}

/* Sums over the vectors of a centroid: of w x [v], of w, and with centroids of w |x - c|^2. */
struct label_sums {
    double *sums, *weights, *objective;
};

/* One warp per part of a centroid, `parts` of each: neighbouring lanes are elements of one
 * vector, `slots` vectors at a time; the slots are added as a tree. */
/* budget: sums_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS)
    sums_kernel(labelled a, unsigned wide, unsigned parts, const uint32_t *starts,
                const uint32_t *order, const float *c, label_sums to)
{
    const uint32_t part = blockIdx.x * WARPS + port_warp(), j = part / parts;
    if (j >= a.k)
        return;
    const unsigned slots = PORT_LANES / wide, slot = port_lane() / wide;
    const uint32_t end = starts[j + 1], each = (end - starts[j] + parts - 1) / parts;
    const uint32_t first = min(starts[j] + part % parts * each, end);
    const uint32_t last = min(first + each, end);
    double distance = 0;
    for (unsigned d0 = 0; d0 < a.v; d0 += wide) {
        const unsigned d = d0 + port_lane() % wide;
        const bool valid = d < a.v;
        const double centre = c && valid ? (double)c[(size_t)j * a.v + d] : 0;
        double sum = 0, weight = 0;
        for (uint32_t i = first + slot; i < last; i += slots) {
            const double w = weight_at(a, order[i]);
            const double x = valid ? (double)vector_at(a, order[i])[d] : 0;
            sum += w * x;
            weight += w;
            distance += w * ((x - centre) * (x - centre));
        }
        for (unsigned with = PORT_LANES / 2; with >= wide; with /= 2) {
            sum += __shfl_xor_sync(port_all, sum, (int)with);
            weight += __shfl_xor_sync(port_all, weight, (int)with);
        }
        if (valid && slot == 0)
            to.sums[(size_t)part * a.v + d] = sum;
        if (d0 == 0 && port_lane() == 0)
            to.weights[part] = weight;
    }
    distance = port_warp_sum(distance);
    if (c && port_lane() == 0)
        to.objective[part] = distance;
}

static __device__ inline double sum_of_parts(const double *of, uint32_t j, unsigned parts,
                                             uint32_t v, uint32_t d)
{
    double sum = 0;
    for (unsigned p = 0; p < parts; p++)
        sum += of[((size_t)j * parts + p) * v + d];
    return sum;
}

/* Adds the parts of every centroid; to.weights and to.objective may be NULL. */
/* budget: join_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    join_kernel(labelled a, unsigned parts, label_sums of, label_sums to)
{
    const size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    const uint32_t j = (uint32_t)(i / a.v), d = (uint32_t)(i % a.v);
    if (j >= a.k)
        return;
    to.sums[i] = sum_of_parts(of.sums, j, parts, a.v, d);
    if (to.weights && (a.repeat || d == 0))
        to.weights[a.repeat ? i : j] = sum_of_parts(of.weights, j, parts, 1, 0);
    if (to.objective && d == 0)
        to.objective[j] = sum_of_parts(of.objective, j, parts, 1, 0);
}

/* Adds n numbers. One block. */
/* budget: total_kernel 56 registers */
__global__ static void __launch_bounds__(SCAN)
    total_kernel(size_t n, const double *of, double *total)
{
    double sum = 0;
    for (size_t i = threadIdx.x; i < n; i += SCAN)
        sum += of[i];
    sum = port_block_sum(sum);
    if (threadIdx.x == 0)
        *total = sum;
}

cudaError_t vptq_cuda_total(vptq_dev *dev, size_t n, const double *of, double *total)
{
    return port_launch(total_kernel, 1, SCAN, 0, dev->stream, n, of, total);
}

/* Allocates memory for `doubles` and the sort; doubles the block size until it fits. */
static vptq_status alloc_sort(vptq_dev *dev, labelled *a, size_t doubles, void **memory,
                              vptq_err *err)
{
    vptq_status st;
    a->piece = BLOCK_VECTORS;
    for (;;) {
        const size_t words = (vptq_cuda_blocks(a->n, a->piece) + 1) * (size_t)a->k + 1 + a->n;
        st = vptq_cuda_scratch(dev, doubles * sizeof(double) + words * sizeof(uint32_t), memory,
                               err);
        if (st != VPTQ_E_NOMEM || a->piece >= a->n)
            return st;
        a->piece *= 2;
    }
}

/* Launches the sums of parts and then those of centroids. */
static cudaError_t add_labelled(vptq_dev *dev, const labelled *a, unsigned parts,
                                const uint32_t *starts, const uint32_t *order, const float *c,
                                label_sums of_parts, label_sums to)
{
    unsigned wide = 1;
    while (wide < a->v && wide < PORT_LANES)
        wide *= 2;
    cudaError_t e =
        port_launch(sums_kernel, vptq_cuda_blocks((size_t)a->k * parts, WARPS), THREADS, 0,
                    dev->stream, *a, wide, parts, starts, order, c, of_parts);
    if (!e)
        e = port_launch(join_kernel, vptq_cuda_blocks((size_t)a->k * a->v, THREADS), THREADS, 0,
                        dev->stream, *a, parts, of_parts, to);
    return e;
}

/* Adds up the vectors of every centroid; without c no objective is computed. */
static vptq_status sum_by_label(vptq_dev *dev, labelled *a, const float *c, double *sums,
                                double *weights, double *objective, const char *row,
                                vptq_err *err)
{
    const unsigned parts = max(1u, min((unsigned)MAX_PARTS, SUM_WARPS / a->k));
    const size_t all = (size_t)a->k * parts, doubles = all * (a->v + 2) + a->k + 1;
    void *memory = NULL;
    VPTQ_CHECK(alloc_sort(dev, a, doubles, &memory, err));
    const unsigned pieces = vptq_cuda_blocks(a->n, a->piece);
    double *at_doubles = static_cast<double *>(memory);
    const label_sums of_parts = {at_doubles, at_doubles + all * a->v,
                                 at_doubles + all * (a->v + 1)};
    double *of_centroids = at_doubles + all * (a->v + 2), *total = of_centroids + a->k;
    uint32_t *at = reinterpret_cast<uint32_t *>(at_doubles + doubles);
    uint32_t *starts = at + (size_t)pieces * a->k, *order = starts + a->k + 1;

    cudaError_t e = cudaMemsetAsync(at, 0, (size_t)pieces * a->k * sizeof *at, dev->stream);
    if (!e && pieces)
        e = port_launch(count_kernel, pieces, THREADS, 0, dev->stream, *a, at);
    if (!e)
        e = port_launch(offsets_kernel, vptq_cuda_blocks(a->k, THREADS), THREADS, 0,
                        dev->stream, a->k, pieces, at, starts);
    if (!e)
        e = port_launch(starts_kernel, 1, SCAN, 0, dev->stream, a->k, starts);
    if (!e && pieces)
        e = port_launch(sort_kernel, vptq_cuda_blocks(pieces, WARPS), THREADS, 0, dev->stream,
                        *a, pieces, at, starts, order);
    if (!e)
        e = add_labelled(dev, a, parts, starts, order, c, of_parts,
                         {sums, weights, c ? of_centroids : NULL});
    if (!e && c)
        e = vptq_cuda_total(dev, a->k, of_centroids, total);
    if (e)
        return vptq_cuda_check(e, row, err);
    return c ? vptq_cuda_download(dev, objective, total, sizeof *total, err) : VPTQ_OK;
}

vptq_status vptq_cuda_accumulate(vptq_dev *dev, const vptq_accumulate_args *p, vptq_err *err)
{
    labelled a = {};
    a.n = p->n;
    a.vector_rows = p->n ? p->n : 1;
    a.v = p->v;
    a.k = p->k;
    a.x = p->x;
    a.weight = p->w;
    a.idx = p->idx;
    a.per_weight = 1;
    return sum_by_label(dev, &a, p->centroids, p->sums, p->weights, p->objective, "accumulate",
                        err);
}

vptq_status vptq_cuda_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err)
{
    labelled a = {};
    a.vector_rows = s->rows / s->v;
    a.n = s->cols * a.vector_rows;
    a.ldx = s->ldy;
    a.ldi = s->ldi;
    a.v = s->v;
    a.k = s->k;
    a.x = s->y;
    a.weight = s->weight;
    a.idx = s->idx;
    a.per_weight = a.vector_rows;
    a.repeat = true;
    return sum_by_label(dev, &a, NULL, s->sums, s->weights, NULL, "vq_scatter", err);
}
