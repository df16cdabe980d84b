/* potrf and trtri in double for devices without cuSOLVER: blocks of 32 rows and columns, three
 * launches for each. Matrices are lower triangles, row-major. */
#include "lib/backend/cuda/factor_own.h"

enum {
    NB = 32,
    TILE = 64,
    SIDE = 16,
    EACH = TILE / SIDE,
    THREADS = SIDE * SIDE,
    STEP = 16,
};

struct triangle {
    double *a;
    size_t n, lda;
};

struct own_block {
    double at[NB][NB + 1];
};

/* Loads the diagonal block at j0; 1 on the diagonal after the end. One warp. */
static __device__ inline void load_block(own_block &b, const triangle &t, size_t j0)
{
    const unsigned lane = port_lane();
    for (unsigned r = 0; r < NB; r++) {
        const bool exists = j0 + r < t.n && lane <= r;
        b.at[r][lane] = exists ? t.a[(j0 + r) * t.lda + j0 + lane] : r == lane;
    }
    __syncwarp();
}
static __device__ inline void store_block(const own_block &b, const triangle &t, size_t j0)
{
    const unsigned lane = port_lane();
    for (unsigned r = lane; r < NB; r++)
        if (j0 + r < t.n)
            t.a[(j0 + r) * t.lda + j0 + lane] = b.at[r][lane];
}

/* Factors a diagonal block, one row per lane. *info is the order of the first minor that is not
 * positive, kept if it is set. */
/* budget: block_potrf_kernel 96 registers */
__global__ static void __launch_bounds__(NB)
    block_potrf_kernel(triangle t, size_t j0, unsigned *info)
{
    own_block &b = port_shared<own_block>();
    const unsigned lane = port_lane();
    load_block(b, t, j0);
    for (unsigned j = 0; j < NB; j++) {
        const double pivot = b.at[j][j];
        if (lane == 0 && !(pivot > 0) && *info == 0)
            *info = (unsigned)(j0 + j + 1);
        __syncwarp();
        if (lane >= j)
            b.at[lane][j] = lane == j ? sqrt(pivot) : b.at[lane][j] / sqrt(pivot);
        __syncwarp();
        for (unsigned c = j + 1; c <= lane; c++)
            b.at[lane][c] = fma(-b.at[lane][j], b.at[c][j], b.at[lane][c]);
        __syncwarp();
    }
    store_block(b, t, j0);
}

/* Rows after the block: A = A L^-T with the factored diagonal block L. One warp, a row per
 * lane.
 */
/* budget: panel_kernel 176 registers */
__global__ static void __launch_bounds__(NB) panel_kernel(triangle t, size_t j0)
{
    own_block &b = port_shared<own_block>();
    struct rows {
        double at[NB][NB + 1];
    };
    rows &x = port_shared<rows>();
    const unsigned lane = port_lane();
    const size_t i0 = j0 + NB + (size_t)blockIdx.x * NB;
    load_block(b, t, j0);
    for (unsigned r = 0; r < NB; r++)
        x.at[r][lane] = i0 + r < t.n ? t.a[(i0 + r) * t.lda + j0 + lane] : 0;
    __syncwarp();
    for (unsigned c = 0; c < NB; c++) {
        double sum = x.at[lane][c];
        for (unsigned l = 0; l < c; l++)
            sum = fma(-x.at[lane][l], b.at[c][l], sum);
        x.at[lane][c] = sum / b.at[c][c];
    }
    __syncwarp();
    for (unsigned r = 0; r < NB; r++)
        if (i0 + r < t.n)
            t.a[(i0 + r) * t.lda + j0 + lane] = x.at[r][lane];
}

struct own_tiles {
    double a[STEP][TILE + 2], b[STEP][TILE + 2];
};

/* Loads STEP columns from l0 on of 64 rows from `first` on. */
static __device__ inline void load_rows(double to[STEP][TILE + 2], const triangle &t,
                                        size_t first, size_t l0)
{
    for (unsigned i = threadIdx.x; i < STEP * TILE; i += THREADS) {
        const size_t row = first + i / STEP;
        to[i % STEP][i / STEP] = row < t.n ? t.a[row * t.lda + l0 + i % STEP] : 0;
    }
}

/* The rest of the matrix, from row and column j0 + NB on: A -= P P^T with the panel P. */
/* budget: trailing_kernel 128 registers */
__global__ static void __launch_bounds__(THREADS, 2) trailing_kernel(triangle t, size_t j0)
{
    own_tiles &s = port_shared<own_tiles>();
    const size_t i0 = j0 + NB + (size_t)blockIdx.x * TILE,
                 c0 = j0 + NB + (size_t)blockIdx.y * TILE;
    const unsigned ti = threadIdx.x / SIDE * EACH, tj = threadIdx.x % SIDE * EACH;
    double sum[EACH][EACH] = {};
    if (c0 > i0)
        return;
    for (unsigned l = 0; l < NB; l += STEP) {
        load_rows(s.a, t, i0, j0 + l);
        load_rows(s.b, t, c0, j0 + l);
        __syncthreads();
        port_multiply_tile<STEP, EACH, EACH>(sum, s.a, s.b, ti, tj);
        __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < EACH; i++)
#pragma unroll
        for (unsigned j = 0; j < EACH; j++)
            if (i0 + ti + i < t.n && c0 + tj + j <= i0 + ti + i)
                t.a[(i0 + ti + i) * t.lda + c0 + tj + j] -= sum[i][j];
}

vptq_status vptq_cuda_own_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *info,
                                vptq_err *err)
{
    const triangle t = {a, n, lda};
    void *memory = NULL;
    unsigned order = 0;
    VPTQ_CHECK(vptq_cuda_scratch(dev, sizeof order, &memory, err));
    unsigned *at = static_cast<unsigned *>(memory);
    cudaError_t e = cudaMemsetAsync(at, 0, sizeof *at, dev->stream);
    for (size_t j = 0; j < n && !e; j += NB) {
        const size_t left = n > j + NB ? n - j - NB : 0;
        VPTQ_CHECK(
            vptq_cuda_pace(dev, (double)(left + NB) * (double)(left + NB) * (double)NB, err));
        e = port_launch(block_potrf_kernel, 1, NB, 0, dev->stream, t, j, at);
        if (!e && left)
            e = port_launch(panel_kernel, vptq_cuda_blocks(left, NB), NB, 0, dev->stream, t, j);
        const unsigned tiles = vptq_cuda_blocks(left, TILE);
        if (!e && left)
            e = port_launch(trailing_kernel, dim3(tiles, tiles), THREADS, 0, dev->stream, t, j);
    }
    VPTQ_CHECK(vptq_cuda_check(e, "potrf", err));
    VPTQ_CHECK(vptq_cuda_download(dev, &order, at, sizeof order, err));
    *info = order;
    return VPTQ_OK;
}

/* ---- trtri ---- */

/* product [NB, i0] = rows [i0, i0 + NB) of L, columns before i0, times the inverse of the rows
 * above. One thread per column, 32 columns per block. */
/* budget: above_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS)
    above_kernel(triangle t, size_t i0, double *product)
{
    const unsigned lane = port_lane();
    const size_t j = (size_t)blockIdx.x * PORT_LANES + lane;
    for (unsigned r = port_warp(); r < NB && i0 + r < t.n; r += THREADS / PORT_LANES) {
        double sum = 0;
        for (size_t l = (size_t)blockIdx.x * PORT_LANES; l < i0; l++) {
            const double left = t.a[(i0 + r) * t.lda + l];
            if (l >= j)
                sum = fma(left, t.a[l * t.lda + j], sum);
        }
        product[r * i0 + j] = sum;
    }
}

/* Inverts the diagonal block in place, one column per lane. */
/* budget: block_trtri_kernel 96 registers */
__global__ static void __launch_bounds__(NB) block_trtri_kernel(triangle t, size_t i0)
{
    own_block &b = port_shared<own_block>();
    struct inverse {
        double at[NB][NB + 1];
    };
    inverse &x = port_shared<inverse>();
    const unsigned lane = port_lane();
    load_block(b, t, i0);
    for (unsigned r = 0; r < NB; r++) {
        double sum = r == lane;
        for (unsigned l = lane; l < r; l++)
            sum = fma(-b.at[r][l], x.at[l][lane], sum);
        x.at[r][lane] = r >= lane ? sum / b.at[r][r] : 0;
    }
    __syncwarp();
    for (unsigned r = lane; r < NB; r++)
        if (i0 + r < t.n)
            t.a[(i0 + r) * t.lda + i0 + lane] = x.at[r][lane];
}

/* Rows [i0, i0 + NB), columns before i0: minus the inverse of the diagonal block times product.
 */
/* budget: below_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS)
    below_kernel(triangle t, size_t i0, const double *product)
{
    const size_t j = (size_t)blockIdx.x * PORT_LANES + port_lane();
    for (unsigned r = port_warp(); r < NB && i0 + r < t.n; r += THREADS / PORT_LANES) {
        double sum = 0;
        for (unsigned l = 0; l <= r; l++)
            sum = fma(t.a[(i0 + r) * t.lda + i0 + l], product[l * i0 + j], sum);
        t.a[(i0 + r) * t.lda + j] = -sum;
    }
}

vptq_status vptq_cuda_own_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    const triangle t = {a, n, lda};
    void *memory = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(dev, NB * n * sizeof(double), &memory, err));
    double *product = static_cast<double *>(memory);
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < n && !e; i += NB) {
        const unsigned blocks = vptq_cuda_blocks(i, PORT_LANES);
        VPTQ_CHECK(vptq_cuda_pace(dev, (double)(i + NB) * (double)(i + NB) * (double)NB, err));
        if (i)
            e = port_launch(above_kernel, blocks, THREADS, 0, dev->stream, t, i, product);
        if (!e)
            e = port_launch(block_trtri_kernel, 1, NB, 0, dev->stream, t, i);
        if (!e && i)
            e = port_launch(below_kernel, blocks, THREADS, 0, dev->stream, t, i,
                            static_cast<const double *>(product));
    }
    return vptq_cuda_check(e, "trtri", err);
}
