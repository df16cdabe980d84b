/* assign: compares every vector with every centroid in float. The score of centroid c for x is
 * |c|^2 - 2 x c, one chain of fused multiplications, the same for every position of the vector.
 * A thread keeps some vectors in registers and takes centroids in groups. It keeps the smallest
 * score of each group without its index and at the end searches the winning group again, with
 * the same arithmetic, for the lowest index with that score. */
#include "lib/backend/cuda/cuda.h"

enum { THREADS = 128, GROUP = 32, MAX_V = 64 };

/* A group of centroids with their squared lengths. */
template <unsigned V> struct __align__(16) assign_group
{
    float c[GROUP][V], norm[GROUP];
};

/* The score: starts with |c|^2 and adds the elements in order; y is -2 x. */
template <unsigned V>
static __device__ inline float score(const float *y, const float *c, float norm)
{
#pragma unroll
    for (unsigned d = 0; d < V; d++)
        norm = fmaf(y[d], c[d], norm);
    return norm;
}

/* Loads centroids [j0, j0 + GROUP), zeros after element v. Entries after the codebook get the
 * norm NaN, which never wins. */
template <unsigned V>
static __device__ void load_group(assign_group<V> &s, const float *c, uint32_t v, uint32_t k,
                                  uint32_t j0)
{
    __syncthreads(); /* the previous group has been read */
    for (unsigned i = threadIdx.x; i < GROUP * V; i += THREADS) {
        const unsigned j = i / V, d = i % V;
        s.c[j][d] = j0 + j < k && d < v ? c[(size_t)(j0 + j) * v + d] : 0;
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        float norm = 0;
        for (unsigned d = 0; d < v; d++)
            norm = fmaf(s.c[threadIdx.x][d], s.c[threadIdx.x][d], norm);
        s.norm[threadIdx.x] = j0 + threadIdx.x < k ? norm : NAN;
    }
    __syncthreads();
}

/* The same score, read directly from the codebook. */
template <unsigned V>
static __device__ inline float score_of(const float *y, const float *c, uint32_t v, uint32_t j)
{
    float norm = 0;
    c += (size_t)j * v;
    for (unsigned d = 0; d < v; d++)
        norm = fmaf(c[d], c[d], norm);
#pragma unroll
    for (unsigned d = 0; d < V; d++)
        norm = d < v ? fmaf(y[d], c[d], norm) : norm;
    return norm;
}

/* V: v rounded up. A thread of a block handles vectors n0 + thread + e * THREADS, e < EACH. */
/* budget: assign_kernel 128 registers */
template <unsigned V, unsigned EACH>
__global__ static void __launch_bounds__(THREADS)
    assign_kernel(size_t n, uint32_t v, uint32_t k, const float *x, const float *c,
                  uint32_t *idx, float *dist)
{
    assign_group<V> &s = port_shared<assign_group<V>>();
    const size_t first = (size_t)blockIdx.x * THREADS * EACH + threadIdx.x;
    float y[EACH][V], best[EACH];
    uint32_t group[EACH], found[EACH];
#pragma unroll
    for (unsigned e = 0; e < EACH; e++) {
        const size_t i = first + e * THREADS;
        best[e] = INFINITY;
        group[e] = found[e] = 0;
#pragma unroll
        for (unsigned d = 0; d < V; d++)
            y[e][d] = i < n && d < v ? -2 * x[i * v + d] : 0;
    }
    for (uint32_t j0 = 0; j0 < k; j0 += GROUP) {
        float smallest[EACH];
        load_group(s, c, v, k, j0);
#pragma unroll
        for (unsigned e = 0; e < EACH; e++)
            smallest[e] = INFINITY;
        for (unsigned j = 0; j < GROUP; j++)
#pragma unroll
            for (unsigned e = 0; e < EACH; e++)
                smallest[e] = fminf(smallest[e], score<V>(y[e], s.c[j], s.norm[j]));
#pragma unroll
        for (unsigned e = 0; e < EACH; e++)
            if (smallest[e] < best[e]) {
                best[e] = smallest[e];
                group[e] = j0;
            }
    }
    /* The lowest index with the smallest score; 0 if no score was a number. */
#pragma unroll
    for (unsigned e = 0; e < EACH; e++)
        for (uint32_t j = GROUP; best[e] < INFINITY && j-- > 0;)
            if (group[e] + j < k && score_of<V>(y[e], c, v, group[e] + j) == best[e])
                found[e] = group[e] + j;
#pragma unroll
    for (unsigned e = 0; e < EACH; e++) {
        const size_t i = first + e * THREADS;
        if (i >= n)
            continue;
        idx[i] = found[e];
        if (!dist)
            continue;
        float sum = 0;
        for (unsigned d = 0; d < v; d++) {
            const float difference = x[i * v + d] - c[(size_t)found[e] * v + d];
            sum = fmaf(difference, difference, sum);
        }
        dist[i] = sum;
    }
}

template <unsigned V, unsigned EACH>
static cudaError_t launch(vptq_dev *dev, const vptq_assign_args *a, size_t first, size_t count)
{
    return port_launch(assign_kernel<V, EACH>, vptq_cuda_blocks(count, THREADS * EACH), THREADS,
                       0, dev->stream, count, a->v, a->k, a->x + first * a->v, a->centroids,
                       a->idx + first, a->dist ? a->dist + first : NULL);
}

vptq_status vptq_cuda_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    VPTQ_BUG_IF(a->v > MAX_V);
    const auto by_class = a->v <= 4    ? launch<4, 4>
                          : a->v <= 6  ? launch<6, 4>
                          : a->v <= 8  ? launch<8, 4>
                          : a->v <= 16 ? launch<16, 2>
                                       : launch<MAX_V, 1>;
    return vptq_cuda_in_pieces(
        dev, "assign", a->n, (double)a->k * (a->v + 1), THREADS * 4,
        [&](size_t first, size_t count) { return by_class(dev, a, first, count); }, err);
}
