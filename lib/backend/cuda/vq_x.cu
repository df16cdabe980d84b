/* Converts tokens for products with a packed matrix: in the order of its columns, scaled, as
 * float16 fragments (vq_product.h). */
#include <float.h>

#include "lib/backend/cuda/vq_product.h"

enum { TILE = VPTQ_CUDA_TILE, X_THREADS = 512 };

struct x_job {
    const float *x;
    size_t ldx;
    uint32_t in, tiles;
    const int32_t *channel;
    const float *scale, *bias;
    x_form form;
    uint2 *fragments;
    float *start, *factor;
};

static __device__ float scaled(const x_job &j, const float *x, size_t channel)
{
    return j.scale ? x[channel] * j.scale[channel] : x[channel];
}

/* Error of rounding to float16. */
static __device__ float rest(float value)
{
    const float kept = __half2float(__float2half_rn(value));
    return fabsf(kept) <= FLT_MAX ? value - kept : 0;
}

/* Returns the value of a column of the layout, multiplied by `up`. */
static __device__ float value_of(const x_job &j, const float *x, uint32_t column, float up)
{
    const int32_t c = j.channel[column];
    return c < 0 ? 0 : scaled(j, x, (size_t)c) * up;
}

/* A column of B is a token or one of its halves. A thread converts 4 columns of the layout. */
static __device__ void put_halves(const x_job &j, const float *x, unsigned b, float up)
{
    const size_t next = (size_t)j.tiles * PORT_LANES; /* next group of columns of B */
#pragma unroll 2
    for (uint32_t i = blockIdx.x * X_THREADS + threadIdx.x; i < j.tiles * 4;
         i += gridDim.x * X_THREADS) {
        const uint32_t tile = i / 4, t = i % 4;
        float v[4];
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            v[k] = value_of(j, x, tile * TILE + 2 * t + k % 2 + k / 2 * 8, up);
        uint2 *to = j.fragments + (size_t)tile * PORT_LANES + b % COLUMNS * 4 + t;
        to[b / COLUMNS * next] =
            make_uint2(port_half_pair(v[0], v[1]), port_half_pair(v[2], v[3]));
        const uint2 low = make_uint2(port_half_pair(rest(v[0]), rest(v[1])),
                                     port_half_pair(rest(v[2]), rest(v[3])));
        if (j.form == X_FEW)
            to[COLUMNS / 2 * 4] = low;
        else if (j.form == X_SOME)
            to[next] = low;
    }
}

/* Grid: some blocks for each token, which share its columns. Each block finds the token's
 * largest value for itself: that is faster than a second launch. */
/* budget: vq_x_kernel 64 registers */
__global__ static void __launch_bounds__(X_THREADS) vq_x_kernel(x_job j)
{
    const unsigned b = blockIdx.y;
    const float *x = j.x + b * j.ldx;
    unsigned largest = 0;
    port_grid_release();
    if (j.bias && blockIdx.x == 0)
        prefetch_bytes(j.bias, j.in * (uint32_t)sizeof *j.bias);
    if (j.scale)
        prefetch_bytes(j.scale, j.in * (uint32_t)sizeof *j.scale);
    prefetch_bytes(j.channel, j.tiles * TILE * (uint32_t)sizeof *j.channel);
    port_grid_wait(); /* a product may still read the fragments of its x */
    prefetch_bytes(x, j.in * (uint32_t)sizeof *x);
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < j.in; i += X_THREADS)
        largest = max(largest, __float_as_uint(fabsf(scaled(j, x, i))));
    largest = port_block_max(largest);
    const float up = vptq_cuda_to_top(largest, X_TOP);
    if (blockIdx.x == 0) {
        double sum = 0;
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < (j.bias ? j.in : 0); i += X_THREADS)
            sum += (double)x[i] * (double)j.bias[i];
        sum = port_block_sum(sum);
        if (threadIdx.x == 0) {
            j.start[b] = (float)sum;
            j.factor[b] = 1 / up;
        }
    }
    put_halves(j, x, b, up);
}

/* Bytes of the fragments of n tokens. */
static size_t fragment_bytes(x_form form, size_t n, size_t tiles)
{
    const size_t groups = form == X_FEW ? 1 : form == X_SOME ? 2 : (n + COLUMNS - 1) / COLUMNS;
    return groups * tiles * PORT_LANES * sizeof(uint2);
}

vptq_status vptq_cuda_product_open(vptq_dev *dev, const vptq_matrix *m,
                                   const vptq_cuda_runtime *r, const vptq_gemv_args *g,
                                   size_t n, x_form form, uint32_t split, bool sums,
                                   product_out *o, vptq_err *err)
{
    const size_t out = m->q.shape.out, parts = sums ? split * n * out * sizeof(float) : 0;
    const size_t tiles = r->columns / VPTQ_CUDA_TILE;
    const size_t fragments = fragment_bytes(form, n, tiles);
    const unsigned blocks = n <= VPTQ_CUDA_EXACT_BATCH ? VPTQ_CUDA_X_BLOCKS : 1;
    void *all = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(dev, fragments + 2 * n * sizeof(float) + parts, &all, err));
    x_job j = {};
    j.x = g->x;
    j.ldx = g->ldx;
    j.in = m->q.shape.in;
    j.tiles = (uint32_t)tiles;
    j.channel = r->channel;
    j.scale = r->scale;
    j.bias = r->bias;
    j.form = form;
    j.fragments = static_cast<uint2 *>(all);
    j.start = reinterpret_cast<float *>(static_cast<unsigned char *>(all) + fragments);
    j.factor = j.start + n;
    *o = {{j.fragments, j.tiles, j.start, j.factor},
          *g,
          (uint32_t)n,
          (uint32_t)out,
          split,
          j.factor + n,
          r->arrived};
    cudaError_t e = port_prefer_shared(vq_x_kernel);
    if (!e)
        e = port_launch_early(vq_x_kernel, dim3(blocks, (unsigned)n), X_THREADS, 0, dev->stream,
                              j);
    return vptq_cuda_check(e, "vq_gemv", err);
}
