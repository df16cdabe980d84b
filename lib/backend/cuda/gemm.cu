/* gemm: tiles of 64 x 64 in float, 16 columns of A at a time through shared memory, 4 x 4
 * results per thread. Every result is one sum in ascending order, for any shape. */
#include "lib/backend/cuda/cuda.h"

enum { TILE = 64, STEP = 16, SIDE = 16, EACH = TILE / SIDE, THREADS = SIDE * SIDE };

/* Element (i, l) of A is at[i * row + l * step], (l, j) of B is at[j * row + l * step]. */
struct operand {
    const float *at;
    size_t row, step, rows;
};

struct gemm_tiles {
    float a[STEP][TILE + 4],
        b[STEP][TILE + 4]; /* padded so that columns are in different banks */
};

/* Loads 64 rows of an operand, STEP elements each, zeros beyond its ends. Neighbouring threads
 * load neighbours in memory. */
static __device__ void load_tile(float to[STEP][TILE + 4], operand o, size_t first, size_t l0,
                                 size_t k)
{
    for (unsigned i = threadIdx.x; i < TILE * STEP; i += THREADS) {
        const unsigned r = o.step == 1 ? i / STEP : i % TILE;
        const unsigned l = o.step == 1 ? i % STEP : i / TILE;
        const bool in = first + r < o.rows && l0 + l < k;
        to[l][r] = in ? o.at[(first + r) * o.row + (l0 + l) * o.step] : 0;
    }
}

/* budget: gemm_kernel 96 registers */
__global__ static void __launch_bounds__(THREADS)
    gemm_kernel(operand a, operand b, vptq_gemm_args g)
{
    gemm_tiles &t = port_shared<gemm_tiles>();
    const size_t i0 = (size_t)blockIdx.x * TILE, j0 = (size_t)blockIdx.y * TILE;
    const unsigned ti = threadIdx.x / SIDE * EACH, tj = threadIdx.x % SIDE * EACH;
    float sum[EACH][EACH] = {};

    for (size_t l0 = 0; l0 < g.k; l0 += STEP) {
        load_tile(t.a, a, i0, l0, g.k);
        load_tile(t.b, b, j0, l0, g.k);
        __syncthreads();
        port_multiply_tile<STEP, EACH, EACH>(sum, t.a, t.b, ti, tj);
        __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < EACH; i++)
#pragma unroll
        for (unsigned j = 0; j < EACH; j++) {
            if (i0 + ti + i >= a.rows || j0 + tj + j >= b.rows)
                continue;
            float *to = g.c + (i0 + ti + i) * g.ldc + j0 + tj + j;
            float value = g.alpha * sum[i][j];
            if (g.bias)
                value += g.bias[j0 + tj + j];
            if (g.beta != 0)
                value += *to;
            *to = value;
        }
}

vptq_status vptq_cuda_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    const operand a = {g->a, g->trans_a ? 1 : g->lda, g->trans_a ? g->lda : 1, g->m};
    const operand b = {g->b, g->trans_b ? g->ldb : 1, g->trans_b ? 1 : g->ldb, g->n};
    if (!g->m || !g->n)
        return VPTQ_OK;
    const double row = (double)g->n * (double)(g->k + 1);
    const auto launch = [&](size_t first, size_t count) {
        const operand part = {a.at + first * a.row, a.row, a.step, count};
        const dim3 grid(vptq_cuda_blocks(count, TILE), vptq_cuda_blocks(g->n, TILE));
        vptq_gemm_args args = *g;
        args.c += first * g->ldc;
        return port_launch(gemm_kernel, grid, THREADS, 0, dev->stream, part, b, args);
    };
    return vptq_cuda_in_pieces(dev, "gemm", g->m, row, TILE, launch, err);
}
