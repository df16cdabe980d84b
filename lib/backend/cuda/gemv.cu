/* gemv and library_gemv. In gemv of a few tokens a warp takes a row of W as it is stored, 16
 * neighbouring bytes per lane; x passes through shared memory in chunks, up to four tokens per
 * reading of W. A lane adds its products in ascending order and the lanes are added as a tree,
 * so the result does not depend on alignment or on other tokens. More tokens are multiplied on
 * tensor cores (gemm.h): F16 as it is stored, BF16 as F16 with a factor per row. */
#include "lib/backend/cuda/gemm.h"
#include "lib/backend/cuda/library.h"

enum {
    THREADS = 256,
    WARPS = THREADS / PORT_LANES,
    CHUNK = 1024,
    MAX_TOKENS = 4,
    FEW_TOKENS = 16 /* four readings of W cost less than a tile of tensor cores */
};

struct matrix {
    size_t out, in;
    const unsigned char *w;
    bool wide; /* every row is aligned to 16 bytes */
};

/* Elements of a row that a lane reads at once. */
struct __align__(16) piece
{
    uint32_t word[4];
};

/* Loads the piece that begins at byte `at` of a row, zeros beyond the row's end. Rows that are
 * not aligned are read byte by byte. */
static __device__ inline piece load_piece(const unsigned char *row, size_t at, size_t end,
                                          bool wide)
{
    piece p = {};
    if (wide)
        return at < end ? *reinterpret_cast<const piece *>(row + at) : p;
#pragma unroll
    for (unsigned i = 0; i < sizeof p; i++)
        if (at + i < end)
            p.word[i / 4] |= (uint32_t)row[at + i] << i % 4 * 8;
    return p;
}

template <class E> static __device__ float element(const piece &p, unsigned i);
template <> __device__ inline float element<float>(const piece &p, unsigned i)
{
    return __uint_as_float(p.word[i]);
}
template <> __device__ inline float element<__half>(const piece &p, unsigned i)
{
    return __half2float(__ushort_as_half((unsigned short)(p.word[i / 2] >> i % 2 * 16)));
}
template <> __device__ inline float element<__nv_bfloat16>(const piece &p, unsigned i)
{
    return __uint_as_float(i % 2 ? p.word[i / 2] & 0xffff0000u : p.word[i / 2] << 16);
}

/* Position of element i of a chunk of x. A lane finds four of its elements side by side,
 * followed by those of its neighbours. */
template <unsigned PER> static __device__ inline unsigned x_position(unsigned i)
{
    const unsigned step = i / (PER * PORT_LANES), lane = i / PER % PORT_LANES;
    return ((step * (PER / 4) + i % PER / 4) * PORT_LANES + lane) * 4 + i % 4;
}

template <unsigned X> struct __align__(16) gemv_x
{
    float at[X][CHUNK];
};

/* Multiplies the first min(g.n, X) tokens. */
/* budget: gemv_kernel 80 registers */
template <class E, unsigned X>
__global__ static void __launch_bounds__(THREADS) gemv_kernel(matrix m, vptq_gemv_args g)
{
    constexpr unsigned PER = 16 / sizeof(E), STEPS = CHUNK / (PER * PORT_LANES);
    gemv_x<X> &t = port_shared<gemv_x<X>>();
    const size_t r = (size_t)blockIdx.x * WARPS + port_warp();
    const unsigned lane = port_lane();
    const unsigned char *row = m.w + (r < m.out ? r : 0) * m.in * sizeof(E);
    float sum[X] = {};

    for (size_t c0 = 0; c0 < m.in; c0 += CHUNK) {
        piece p[STEPS]; /* loading while x is fetched */
#pragma unroll
        for (unsigned s = 0; s < STEPS; s++)
            p[s] = load_piece(row, (c0 + (s * PORT_LANES + lane) * PER) * sizeof(E),
                              m.in * sizeof(E), m.wide);
        __syncthreads();
        for (unsigned l = 0; l < X; l++)
            for (unsigned i = threadIdx.x; i < CHUNK; i += THREADS)
                t.at[l][x_position<PER>(i)] =
                    l < g.n && c0 + i < m.in ? g.x[l * g.ldx + c0 + i] : 0;
        __syncthreads();
#pragma unroll
        for (unsigned s = 0; s < STEPS; s++)
#pragma unroll
            for (unsigned i = 0; i < PER; i++)
#pragma unroll
                for (unsigned l = 0; l < X; l++)
                    sum[l] = fmaf(element<E>(p[s], i),
                                  t.at[l][x_position<PER>((s * PORT_LANES + lane) * PER + i)],
                                  sum[l]);
    }
    for (unsigned l = 0; l < X; l++) {
        const float all = port_warp_sum(sum[l]);
        if (lane == 0 && r < m.out && l < g.n) {
            float *to = g.y + l * g.ldy + r;
            *to = (g.beta != 0 ? *to : 0) + ((g.bias ? g.bias[r] : 0) + all);
        }
    }
}

template <class E>
static cudaError_t multiply(vptq_dev *dev, const matrix &m, const vptq_gemv_args *g)
{
    const unsigned blocks = vptq_cuda_blocks(m.out, WARPS);
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < g->n && !e; i += MAX_TOKENS) {
        vptq_gemv_args left = *g;
        left.n -= i;
        left.x += i * g->ldx;
        left.y += i * g->ldy;
        e = port_launch(left.n > 1 ? gemv_kernel<E, MAX_TOKENS> : gemv_kernel<E, 1>, blocks,
                        THREADS, 0, dev->stream, m, left);
    }
    return e;
}

vptq_status vptq_cuda_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                           const vptq_gemv_args *g, vptq_err *err)
{
    const size_t bytes = vptq_dtype_get(type)->bytes, row_bytes = in * bytes;
    const bool wide = !((reinterpret_cast<uintptr_t>(w) | row_bytes) % sizeof(piece));
    const matrix m = {out, in, static_cast<const unsigned char *>(w), wide};
    VPTQ_BUG_IF(type != VPTQ_F32 && type != VPTQ_F16 && type != VPTQ_BF16);
    if (!g->n || !out)
        return VPTQ_OK;
    if (g->n > FEW_TOKENS && reinterpret_cast<uintptr_t>(w) % bytes == 0) {
        const split_source x = {g->x, VPTQ_F32, g->n, in, g->ldx, 1, NULL};
        const split_source rows = {w, type, out, in, in, 1, NULL};
        vptq_gemm_args c = {};
        c.c = g->y;
        c.ldc = g->ldy;
        c.alpha = 1;
        c.beta = g->beta;
        c.bias = g->bias;
        return vptq_cuda_multiply(dev, "gemv", &x, &rows, &c, err);
    }
    const cudaError_t e = type == VPTQ_F32   ? multiply<float>(dev, m, g)
                          : type == VPTQ_F16 ? multiply<__half>(dev, m, g)
                                             : multiply<__nv_bfloat16>(dev, m, g);
    return vptq_cuda_check(e, "gemv", err);
}

/* ---- library_gemv ---- */

/* y = bias (+ y); one row of blocks per token. */
/* budget: bias_kernel 32 registers */
__global__ static void __launch_bounds__(THREADS)
    bias_kernel(size_t out, float *y, size_t ldy, float beta, const float *bias)
{
    const size_t r = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float *to = y + blockIdx.y * ldy + r;
    if (r < out)
        *to = (beta != 0 ? *to : 0) + bias[r];
}

vptq_status vptq_cuda_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                   const vptq_gemv_args *g, vptq_err *err)
{
    if (!g->n || !out)
        return VPTQ_OK;
    if (g->bias) {
        const dim3 grid(vptq_cuda_blocks(out, THREADS), (unsigned)g->n);
        const cudaError_t e = port_launch(bias_kernel, grid, THREADS, 0, dev->stream, out, g->y,
                                          g->ldy, g->beta, g->bias);
        if (e)
            return vptq_cuda_check(e, "library_gemv", err);
    }
    const float beta = g->bias ? 1 : g->beta;
    /* row-major here is transposed there */
    return g->n == 1 ? vptq_cuda_library_sgemv(dev, in, out, w, in, g->x, beta, g->y, err)
                     : vptq_cuda_library_sgemm(dev, out, g->n, in, w, in, g->x, g->ldx, beta,
                                               g->y, g->ldy, err);
}
