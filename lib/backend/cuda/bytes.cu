/* Products of bytes. A block quantizes a row. In products a block takes 16 rows of codes and up
 * to 64 tokens; its warps divide the columns, and tensor cores multiply bytes as they lie in
 * memory. Sums are exact, so neither that division nor their order matters. */
#include <math.h>

#include "lib/backend/cuda/cuda.h"

enum {
    QUANTIZE_THREADS = 256,
    WARPS = 4,
    THREADS = WARPS * PORT_LANES,
    OUT = 16,       /* rows of codes of a block: those of an mma */
    TOKENS = 8,     /* of an mma */
    STEP = 8,       /* words of a row that an mma multiplies: 32 bytes */
    MANY_TILES = 8, /* groups of tokens of a block, if there are many */
};

/* ---- quantizing ---- */

/* Four neighbours from element i on; zeros after the row. */
static __device__ inline uint32_t quantize_word(const float *x, size_t i, size_t n, float steps)
{
    uint32_t word = 0;
    for (unsigned j = 0; j < 4 && i + j < n; j++) {
        const float whole = fmaxf(-127, fminf(127, rintf(x[i + j] * steps)));
        word |= (uint32_t)(uint8_t)(int8_t)(int)whole << 8 * j;
    }
    return word;
}

/* budget: quantize_kernel 40 registers */
__global__ static void __launch_bounds__(QUANTIZE_THREADS)
    quantize_kernel(vptq_quantize_rows_args a)
{
    const size_t r = blockIdx.x, words = VPTQ_BYTES_ROW(a.cols) / 4;
    const float *x = a.x + r * a.ldx;
    uint32_t *q = reinterpret_cast<uint32_t *>(a.q) + r * words;
    unsigned bits = 0; /* of the largest magnitude; those of a NaN are larger still */
    for (size_t i = threadIdx.x; i < a.cols; i += QUANTIZE_THREADS)
        bits = max(bits, __float_as_uint(fabsf(x[i])));
    bits = port_block_max(bits);
    const float m = __uint_as_float(bits);
    const bool zero = m < VPTQ_BYTES_LEAST, finite = m <= 3.402823466e38f;
    const float steps = zero || !finite ? 0 : 127 / m;
    if (threadIdx.x == 0)
        a.scale[r] = zero ? 0 : m / 127;
    for (size_t i = threadIdx.x; i < words; i += QUANTIZE_THREADS)
        q[i] = zero || !finite ? 0 : quantize_word(x, 4 * i, a.cols, steps);
}

vptq_status vptq_cuda_quantize_rows(vptq_dev *dev, const vptq_quantize_rows_args *a,
                                    vptq_err *err)
{
    if (!a->rows)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(quantize_kernel, (unsigned)a->rows, QUANTIZE_THREADS, 0, dev->stream, *a),
        "quantize_rows", err);
}

/* ---- products ---- */

template <unsigned TILES> struct bytes_sums {
    int32_t of_warp[WARPS][TILES * TOKENS][OUT];
};

/* Word `at` of a row; 0 after its end and in rows that do not exist. */
static __device__ inline uint32_t word_at(const uint32_t *rows, size_t row, size_t count,
                                          size_t words, size_t at)
{
    return row < count && at < words ? rows[row * words + at] : 0;
}

/* Adds the products of the words from `at` on. */
template <unsigned TILES>
static __device__ inline void add_step(const vptq_multiply_bytes_args &a, size_t out,
                                       size_t token, size_t at, int32_t d[TILES][4])
{
    const uint32_t *q = reinterpret_cast<const uint32_t *>(a.q);
    const size_t words = VPTQ_BYTES_ROW(a.in) / 4;
    const unsigned g = port_lane() / 4, t = port_lane() % 4;
    uint32_t w[4];
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        w[i] = word_at(a.codes, out + g + i % 2 * 8, a.out, words, at + t + i / 2 * 4) ^
               0x80808080u;
#pragma unroll
    for (unsigned n = 0; n < TILES; n++) {
        uint32_t x[2];
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
            x[i] = word_at(q, token + n * TOKENS + g, a.rows, words, at + t + i * 4);
        port_mma_s8(d[n], w, x);
    }
}

/* Rows of codes from `first` on. */
/* budget: multiply_kernel 96 registers */
template <unsigned TILES>
__global__ static void __launch_bounds__(THREADS)
    multiply_kernel(vptq_multiply_bytes_args a, size_t first)
{
    bytes_sums<TILES> &s = port_shared<bytes_sums<TILES>>();
    const size_t out = first + (size_t)blockIdx.x * OUT;
    const size_t token = (size_t)blockIdx.y * TILES * TOKENS;
    const unsigned g = port_lane() / 4, t = port_lane() % 4;
    int32_t d[TILES][4] = {};
    for (size_t at = port_warp() * STEP; at < VPTQ_BYTES_ROW(a.in) / 4; at += WARPS * STEP)
        add_step<TILES>(a, out, token, at, d);
    for (unsigned n = 0; n < TILES; n++)
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            s.of_warp[port_warp()][n * TOKENS + 2 * t + i % 2][g + i / 2 * 8] = d[n][i];
    __syncthreads();
    for (unsigned e = threadIdx.x; e < TILES * TOKENS * OUT; e += THREADS) {
        const size_t row = token + e / OUT, o = out + e % OUT;
        if (row >= a.rows || o >= a.out)
            continue;
        int32_t sum = 0;
        for (unsigned w = 0; w < WARPS; w++)
            sum += s.of_warp[w][e / OUT][e % OUT];
        float z = (float)sum * (a.q_scale[row] * a.scale[o]);
        if (a.bias)
            z += a.bias[o];
        float *y = a.y + row * a.ldy + o;
        *y = a.beta != 0 ? *y + z : z;
    }
}

template <unsigned TILES>
static vptq_status multiply(vptq_dev *dev, const vptq_multiply_bytes_args *a, vptq_err *err)
{
    const unsigned groups = vptq_cuda_blocks(a->rows, TILES * TOKENS);
    const auto launch = [&](size_t first, size_t count) {
        return port_launch(multiply_kernel<TILES>, dim3(vptq_cuda_blocks(count, OUT), groups),
                           THREADS, 0, dev->stream, *a, first);
    };
    return vptq_cuda_in_pieces(dev, "multiply_bytes", a->out, (double)a->rows * (double)a->in,
                               OUT, launch, err);
}

vptq_status vptq_cuda_multiply_bytes(vptq_dev *dev, const vptq_multiply_bytes_args *a,
                                     vptq_err *err)
{
    if (!a->rows)
        return VPTQ_OK;
    return a->rows <= TOKENS ? multiply<1>(dev, a, err) : multiply<MANY_TILES>(dev, a, err);
}
