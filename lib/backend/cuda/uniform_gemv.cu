/* uniform_gemv. Few tokens: as gemv with 16-bit numbers (gemv.cu), but a lane decodes its eight
 * neighbouring weights from their codes, so that its sums are those of gemv with the decoded
 * matrix. More tokens: tiles of rows are decoded, and gemv multiplies them on tensor cores. */
#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 256,
    WARPS = THREADS / PORT_LANES,
    PER = 8, /* weights that a lane decodes at once */
    CHUNK = 1024,
    STEPS = CHUNK / (PER * PORT_LANES),
    MAX_TOKENS = 4,
    FEW_TOKENS = 16, /* those of gemv */
    TILE = 1 << 23   /* decoded weights at a time */
};

struct coded {
    const uint32_t *codes;
    const float *scales;
    const uint8_t *zeros;
    const int32_t *groups;
    uint32_t out, in, bits, group_size, per_row; /* groups of a row */
    uint32_t words;                              /* of a row */
    bool half;                                   /* F16, otherwise BF16 */
    bool together;                               /* eight weights are of one group */
};

static coded coded_of(const vptq_uniform *w, vptq_dtype storage)
{
    const vptq_uniform_shape *s = &w->shape;
    coded c = {};
    c.codes = w->codes;
    c.scales = w->scales;
    c.zeros = w->zeros;
    c.groups = w->groups;
    c.out = s->out;
    c.in = s->in;
    c.bits = s->bits;
    c.group_size = s->group_size;
    c.per_row = vptq_uniform_groups(s);
    c.words = (uint32_t)vptq_uniform_row_words(s);
    c.half = storage == VPTQ_F16;
    c.together = !w->groups && (s->group_size % PER == 0 || c.per_row == 1);
    return c;
}

/* The codes of eight columns from `column` on, a multiple of eight; they begin at a byte. */
static __device__ inline uint64_t load_codes(const coded &w, uint32_t row, uint32_t column)
{
    const uint32_t *words = w.codes + (size_t)row * w.words;
    const uint32_t byte = column / PER * w.bits, at = byte / 4, shift = byte % 4 * 8;
    if (column >= w.in)
        return 0;
    uint64_t codes = words[at];
    if (at + 1 < w.words)
        codes |= (uint64_t)words[at + 1] << 32;
    codes >>= shift;
    if (shift && at + 2 < w.words)
        codes |= (uint64_t)words[at + 2] << (64 - shift);
    return codes;
}

struct scaling {
    float scale, zero;
};

static __device__ inline scaling scaling_of(const coded &w, uint32_t row, uint32_t column)
{
    scaling s = {0, 0};
    if (column >= w.in)
        return s;
    const uint32_t g = w.groups ? (uint32_t)w.groups[column] : column / w.group_size;
    const size_t at = (size_t)row * w.per_row + g;
    s.scale = w.scales[at];
    s.zero = w.zeros ? (float)w.zeros[at] : (float)(1u << (w.bits - 1));
    return s;
}

static __device__ inline float decode(const coded &w, uint64_t codes, unsigned i, scaling s)
{
    const unsigned code = (unsigned)(codes >> i * w.bits) & ((1u << w.bits) - 1);
    const float exact = ((float)code - s.zero) * s.scale;
    return w.half ? __half2float(__float2half_rn(exact))
                  : __bfloat162float(__float2bfloat16_rn(exact));
}

/* Position of element i of a chunk of x. A lane finds four of its elements side by side,
 * followed by those of its neighbours. */
static __device__ inline unsigned x_position(unsigned i)
{
    const unsigned step = i / (PER * PORT_LANES), lane = i / PER % PORT_LANES;
    return ((step * (PER / 4) + i % PER / 4) * PORT_LANES + lane) * 4 + i % 4;
}

template <unsigned X> struct __align__(16) coded_x
{
    float at[X][CHUNK];
};

/* Multiplies the first min(g.n, X) tokens. */
/* budget: coded_kernel 80 registers */
template <unsigned X>
__global__ static void __launch_bounds__(THREADS) coded_kernel(coded w, vptq_gemv_args g)
{
    coded_x<X> &t = port_shared<coded_x<X>>();
    const uint32_t r = blockIdx.x * WARPS + port_warp(), row = r < w.out ? r : 0;
    const unsigned lane = port_lane();
    float sum[X] = {};

    for (uint32_t c0 = 0; c0 < w.in; c0 += CHUNK) {
        uint64_t codes[STEPS]; /* loading while x is fetched */
#pragma unroll
        for (unsigned s = 0; s < STEPS; s++)
            codes[s] = load_codes(w, row, c0 + (s * PORT_LANES + lane) * PER);
        __syncthreads();
        for (unsigned l = 0; l < X; l++)
            for (unsigned i = threadIdx.x; i < CHUNK; i += THREADS)
                t.at[l][x_position(i)] = l < g.n && c0 + i < w.in ? g.x[l * g.ldx + c0 + i] : 0;
        __syncthreads();
#pragma unroll
        for (unsigned s = 0; s < STEPS; s++) {
            const uint32_t first = c0 + (s * PORT_LANES + lane) * PER;
            scaling how = scaling_of(w, row, first);
#pragma unroll
            for (unsigned i = 0; i < PER; i++) {
                if (!w.together)
                    how = scaling_of(w, row, first + i);
                const float value = first + i < w.in ? decode(w, codes[s], i, how) : 0;
#pragma unroll
                for (unsigned l = 0; l < X; l++)
                    sum[l] = fmaf(value, t.at[l][x_position((s * PORT_LANES + lane) * PER + i)],
                                  sum[l]);
            }
        }
    }
    for (unsigned l = 0; l < X; l++) {
        const float all = port_warp_sum(sum[l]);
        if (lane == 0 && r < w.out && l < g.n) {
            float *to = g.y + l * g.ldy + r;
            *to = (g.beta != 0 ? *to : 0) + ((g.bias ? g.bias[r] : 0) + all);
        }
    }
}

static vptq_status multiply_few(vptq_dev *dev, const coded &w, const vptq_gemv_args *g,
                                vptq_err *err)
{
    const unsigned blocks = vptq_cuda_blocks(w.out, WARPS);
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < g->n && !e; i += MAX_TOKENS) {
        vptq_gemv_args left = *g;
        left.n -= i;
        left.x += i * g->ldx;
        left.y += i * g->ldy;
        e = port_launch(left.n > 1 ? coded_kernel<MAX_TOKENS> : coded_kernel<1>, blocks,
                        THREADS, 0, dev->stream, w, left);
    }
    return vptq_cuda_check(e, "uniform_gemv", err);
}

/* ---- many tokens ---- */

/* A thread decodes eight columns of a row of the tile that begins at row `first`. */
/* budget: decode_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    decode_kernel(coded w, uint32_t first, uint32_t rows, uint16_t *tile)
{
    const uint32_t eights = (w.in + PER - 1) / PER;
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const uint32_t row = (uint32_t)(at / eights), column = (uint32_t)(at % eights) * PER;
    if (row >= rows)
        return;
    const uint64_t codes = load_codes(w, first + row, column);
    scaling how = scaling_of(w, first + row, column);
    uint16_t *to = tile + (size_t)row * w.in;
    for (unsigned i = 0; i < PER && column + i < w.in; i++) {
        if (!w.together)
            how = scaling_of(w, first + row, column + i);
        const float value = decode(w, codes, i, how);
        to[column + i] = w.half ? __half_as_ushort(__float2half_rn(value))
                                : (uint16_t)(__float_as_uint(value) >> 16);
    }
}

/* Takes a tile for *rows decoded rows, or fewer if memory is short, which changes no result. */
static vptq_status open_tile(vptq_dev *dev, const coded &w, uint32_t *rows, void **tile,
                             vptq_err *err)
{
    enum { LEAST_ROWS = 64 };
    for (;; *rows /= 2) {
        const vptq_status st =
            vptq_cuda_tile(dev, (size_t)*rows * w.in * sizeof(uint16_t), tile, err);
        if (st != VPTQ_E_NOMEM || *rows <= LEAST_ROWS)
            return st;
        vptq_cuda_tile_close(dev);
    }
}

static vptq_status multiply_many(vptq_dev *dev, const coded &w, vptq_dtype storage,
                                 const vptq_gemv_args *g, vptq_err *err)
{
    uint32_t step = w.out < TILE / w.in + 1 ? w.out : TILE / w.in + 1;
    void *tile = NULL;
    VPTQ_CHECK(open_tile(dev, w, &step, &tile, err));
    for (uint32_t r = 0; r < w.out; r += step) {
        const uint32_t rows = w.out - r < step ? w.out - r : step;
        const size_t threads = (size_t)rows * ((w.in + PER - 1) / PER);
        vptq_gemv_args part = *g;
        part.y += r;
        part.bias = g->bias ? g->bias + r : NULL;
        VPTQ_CHECK(vptq_cuda_check(
            port_launch(decode_kernel, vptq_cuda_blocks(threads, THREADS), THREADS, 0,
                        dev->stream, w, r, rows, static_cast<uint16_t *>(tile)),
            "uniform_gemv", err));
        VPTQ_CHECK(vptq_cuda_gemv(dev, rows, w.in, storage, tile, &part, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_cuda_uniform_gemv(vptq_dev *dev, const vptq_uniform *m, vptq_dtype storage,
                                   const vptq_gemv_args *g, vptq_err *err)
{
    const coded w = coded_of(m, storage);
    VPTQ_BUG_IF(storage != VPTQ_F16 && storage != VPTQ_BF16);
    if (!g->n || !w.out)
        return VPTQ_OK;
    return g->n > FEW_TOKENS ? multiply_many(dev, w, storage, g, err)
                             : multiply_few(dev, w, g, err);
}
