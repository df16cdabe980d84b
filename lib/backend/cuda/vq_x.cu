/* Converts tokens for products with a packed matrix: in the order of its columns, scaled, as
 * fragments of float16 values or of bytes (vq_product.h). */
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

/* Returns the power of two that brings a value with these bits to 2^top..2^(top + 1); 1 for NaN
 * and infinity. */
static __device__ float to_top(unsigned bits, int top)
{
    enum { BIAS = 127, MANTISSA = 23, LIMIT = 100 };
    const int power = (int)(bits >> MANTISSA) - BIAS;
    if (!bits || power > BIAS)
        return 1;
    return __uint_as_float((unsigned)(BIAS + min(top - power, (int)LIMIT)) << MANTISSA);
}

static __device__ bool is_finite(unsigned bits)
{
    return bits < 0x7f800000u;
}

static __device__ unsigned pack(float low, float high)
{
    return __half_as_ushort(__float2half_rn(low)) |
           (unsigned)__half_as_ushort(__float2half_rn(high)) << 16;
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
    for (uint32_t i = blockIdx.x * X_THREADS + threadIdx.x; i < j.tiles * 4;
         i += gridDim.x * X_THREADS) {
        const uint32_t tile = i / 4, t = i % 4;
        float v[4];
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            v[k] = value_of(j, x, tile * TILE + 2 * t + k % 2 + k / 2 * 8, up);
        uint2 *to = j.fragments + (size_t)tile * PORT_LANES + b % COLUMNS * 4 + t;
        to[b / COLUMNS * next] = make_uint2(pack(v[0], v[1]), pack(v[2], v[3]));
        const uint2 low =
            make_uint2(pack(rest(v[0]), rest(v[1])), pack(rest(v[2]), rest(v[3])));
        if (j.form == X_FEW)
            to[COLUMNS / 2 * 4] = low;
        else if (j.form == X_SOME)
            to[next] = low;
    }
}

/* Column n of B, in group d / 2, has digit d = n / 4 (+ 2) of the columns with number n % 4 in
 * the arrangement of multiply_grid (vq_grid.cu). A thread converts the 8 columns of one lane.
 */
static __device__ void put_digits(const x_job &j, const float *x, float up)
{
    const uint32_t lanes = j.tiles / VPTQ_CUDA_CHUNK_TILES * (PORT_LANES / 2);
    for (uint32_t i = blockIdx.x * X_THREADS + threadIdx.x; i < lanes;
         i += gridDim.x * X_THREADS) {
        const uint32_t chunk = i / 16, part = i / 4 % 4, t = i % 4;
        uint32_t digits[8];
#pragma unroll
        for (unsigned k = 0; k < 8; k++) {
            const uint32_t column = chunk * VPTQ_CUDA_CHUNK + k * TILE + part * 4 + t;
            const int value = __float2int_rn(value_of(j, x, column, up));
            /* bytes with a sign: carries of 128 and more go up */
            digits[k] = ((uint32_t)value + 0x00808080u) ^ 0x00808080u;
        }
        uint2 *to = j.fragments + (size_t)chunk * 2 * PORT_LANES + part * 4 + t;
#pragma unroll
        for (unsigned d = 0; d < 4; d++) {
            uint32_t four[2];
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                const uint32_t *c = digits + 4 * half, pick = d | (d + 4) << 4;
                four[half] = port_permute(port_permute(c[0], c[1], pick),
                                          port_permute(c[2], c[3], pick), 0x5410);
            }
            to[d / 2 * PORT_LANES + d % 2 * 16] = make_uint2(four[0], four[1]);
        }
    }
}

/* Grid: some blocks for each token, which share its columns. Each block finds the token's
 * largest value for itself: that is faster than a second launch. */
/* budget: gemv_x_kernel 64 registers */
__global__ static void __launch_bounds__(X_THREADS) gemv_x_kernel(x_job j)
{
    const unsigned b = blockIdx.y;
    const float *x = j.x + b * j.ldx;
    unsigned largest = 0;
    port_grid_release();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < j.in; i += X_THREADS)
        largest = max(largest, __float_as_uint(fabsf(scaled(j, x, i))));
    largest = port_block_max(largest);
    const bool digits = j.form == X_DIGITS;
    const float up = to_top(largest, digits ? X_DIGITS_TOP : X_HALF_TOP);
    if (blockIdx.x == 0) {
        double sum = 0;
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < (j.bias ? j.in : 0); i += X_THREADS)
            sum += (double)x[i] * (double)j.bias[i];
        sum = port_block_sum(sum);
        if (threadIdx.x == 0) {
            j.start[b] = (float)sum;
            /* digits cannot express infinity and NaN */
            j.factor[b] = digits && !is_finite(largest) ? __uint_as_float(0x7fc00000u) : 1 / up;
        }
    }
    if (digits)
        put_digits(j, x, up);
    else
        put_halves(j, x, b, up);
}

/* Bytes of the fragments of n tokens. */
static size_t fragment_bytes(x_form form, size_t n, size_t tiles)
{
    const size_t groups = form == X_FEW ? 1 : form == X_SOME ? 2 : (n + COLUMNS - 1) / COLUMNS;
    return form == X_DIGITS ? tiles * TILE * X_DIGITS_BYTES
                            : groups * tiles * PORT_LANES * sizeof(uint2);
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
    return vptq_cuda_check(
        port_launch(gemv_x_kernel, dim3(blocks, (unsigned)n), X_THREADS, 0, dev->stream, j),
        "vq_gemv", err);
}
