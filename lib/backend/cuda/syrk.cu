/* syrk_add and quad_trace: one block per tile of a lower triangle, tiles numbered by rows. The
 * order of every sum depends only on the shape. syrk_add splits the columns of X into halves
 * (split.h) and multiplies them on tensor cores (product.h); quad_trace computes in double. */
#include "lib/backend/cuda/product.h"

enum { THREADS = 256, WARPS = 8 };

struct lower_tile {
    size_t row, column; /* in units of tiles */
};

static size_t lower_count(size_t rows, size_t per_row)
{
    return per_row * (rows * (rows + 1) / 2);
}

/* Returns tile b if row r of tiles has (r + 1) * per_row of them. */
static __device__ inline lower_tile lower_tile_at(size_t b, size_t per_row)
{
    size_t r = (size_t)((sqrt(8.0 * (double)b / (double)per_row + 1) - 1) / 2);
    while (per_row * (r * (r + 1) / 2) > b) /* correct the rounding of the root */
        r--;
    while (per_row * ((r + 1) * (r + 2) / 2) <= b)
        r++;
    return {r, b - per_row * (r * (r + 1) / 2)};
}

/* ---- syrk_add ---- */

enum {
    EXACT_TOKENS =
        256, /* tokens whose products are summed in float before they are added in double */
    PASS_TOKENS = 4096, /* tokens that are split at a time: 16 KB for each column of X */
};

/* 128 rows of H by 64 columns: half of the registers are sums in double. */
using syrk_shape = product_shape<4, 2, 4, true>;

struct moments {
    size_t t, n, ldx;
    const float *x, *w; /* w NULL: ones */
    double *h, *sum;
};

/* H += A B^T in the tiles from tile0 on; rows of A and B are columns of X, those of A times the
 * tokens' weights. */
/* budget: syrk_kernel 232 registers */
__global__ static void __launch_bounds__(syrk_shape::threads, 1)
    syrk_kernel(split_rows a, split_rows b, size_t k, double *h, size_t n, size_t tile0)
{
    typedef syrk_shape S;
    const lower_tile tile = lower_tile_at(tile0 + blockIdx.x, S::rows / S::columns);
    const size_t i0 = tile.row * S::rows, j0 = tile.column * S::columns;
    double sum[2][S::groups][4] = {};
    float part[2][S::groups][4] = {};
    product<S>(a, b, k, i0, j0, [&](const product_sums<S> &run, size_t l) {
        const bool last = l % EXACT_TOKENS == 0 || l == k;
        product_add<S>(part, run);
        if (!last)
            return;
#pragma unroll
        for (unsigned r = 0; r < 2; r++)
#pragma unroll
            for (unsigned c = 0; c < S::groups; c++)
#pragma unroll
                for (unsigned i = 0; i < 4; i++) {
                    sum[r][c][i] += (double)part[r][c][i];
                    part[r][c][i] = 0;
                }
    });
    product_each<S>(i0, j0, [&](size_t i, size_t j, unsigned r, unsigned c, unsigned at) {
#pragma unroll
        for (unsigned next = 0; next < 2; next++)
            if (i < n && j + next <= i)
                h[i * n + j + next] += ldexp(sum[r][c][at + next], a.e[i] + b.e[j + next]);
    });
}

struct sum_parts {
    double of[WARPS][PORT_LANES];
};

/* sum[j] += w_t x_t[j]: one lane per column; a warp takes every eighth token. */
/* budget: sum_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) sum_kernel(moments m)
{
    sum_parts &p = port_shared<sum_parts>();
    const unsigned lane = port_lane(), warp = port_warp();
    const size_t j = (size_t)blockIdx.x * PORT_LANES + lane;
    double sum = 0;
    for (size_t s = warp; s < m.t && j < m.n; s += WARPS)
        sum += (m.w ? (double)m.w[s] : 1) * (double)m.x[s * m.ldx + j];
    p.of[warp][lane] = sum;
    __syncthreads();
    if (warp || j >= m.n)
        return;
    for (unsigned i = 1; i < WARPS; i++)
        sum += p.of[i][lane];
    m.sum[j] += sum;
}

/* Adds the products of tokens [first, first + count). */
static vptq_status add_tokens(vptq_dev *dev, const moments &m, size_t first, size_t count,
                              char *memory, vptq_err *err)
{
    split_source x = {m.x + first * m.ldx, VPTQ_F32, m.n, count, 1, m.ldx, NULL};
    split_rows a, b;
    VPTQ_CHECK(split(dev, "syrk_add", &x, memory, &b, err));
    a = b;
    if (m.w) {
        x.w = m.w + first;
        VPTQ_CHECK(
            split(dev, "syrk_add", &x, memory + split_bytes(x.type, m.n, count), &a, err));
    }
    constexpr size_t per_row = syrk_shape::rows / syrk_shape::columns;
    const size_t tiles = lower_count(vptq_cuda_blocks(m.n, syrk_shape::rows), per_row);
    const auto launch = [&](size_t tile0, size_t number) {
        return port_launch(syrk_kernel, (unsigned)number, syrk_shape::threads,
                           syrk_shape::shared, dev->stream, a, b, split_stride(count), m.h, m.n,
                           tile0);
    };
    return vptq_cuda_in_pieces(dev, "syrk_add", tiles,
                               (double)(count * syrk_shape::rows * syrk_shape::columns), 1,
                               launch, err);
}

vptq_status vptq_cuda_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err)
{
    const moments m = {a->tokens, a->n, a->ldx, a->x, a->w, a->h, a->sum};
    void *memory = NULL;
    if (!a->tokens || !a->n)
        return VPTQ_OK;
    const size_t most = min(a->tokens, (size_t)PASS_TOKENS);
    VPTQ_CHECK(vptq_cuda_scratch(dev, (a->w ? 2 : 1) * split_bytes(VPTQ_F32, a->n, most),
                                 &memory, err));
    for (size_t t = 0; t < a->tokens; t += PASS_TOKENS)
        VPTQ_CHECK(add_tokens(dev, m, t, min(a->tokens - t, (size_t)PASS_TOKENS),
                              static_cast<char *>(memory), err));
    return vptq_cuda_check(
        port_launch(sum_kernel, vptq_cuda_blocks(a->n, PORT_LANES), THREADS, 0, dev->stream, m),
        "syrk_add", err);
}

/* ---- quad_trace ---- */

/* tr(E H E^T) = sum over i, j of H_ij (E^T E)_ij. Computes tiles of E^T E in double, on tensor
 * cores, and keeps only their sum with H. A warp has QUAD x QUAD products of 8 x 8. */
enum {
    QUAD = 4,
    QUAD_SIDE = 8,  /* of one product */
    QUAD_DEPTH = 4, /* rows of E in one product */
    QUAD_ROWS = 128,
    QUAD_COLUMNS = 64, /* of a tile: 4 x 2 warps */
    QUAD_STEP = 8,     /* rows of E through shared memory at a time */
    QUAD_PAD = 4,      /* keeps the lanes of a load in separate banks */
    QUAD_LOADS = QUAD_STEP * (QUAD_ROWS + QUAD_COLUMNS) / THREADS,
    CHUNK = 1024 /* rows of E per block */
};

struct quad {
    unsigned m, n;
    size_t lde, ldh;
    const float *e;
    const double *h;
    double *partial;     /* [chunks][tiles] */
    size_t tile0, tiles; /* first tile of the launch; number of all */
};

/* Columns of E: those of the tile's rows, then those of its columns. */
struct quad_tiles {
    double e[QUAD_STEP][QUAD_ROWS + QUAD_COLUMNS + QUAD_PAD];
};

/* Loads rows from r of E for a thread's part of the tiles; 0 from row `last` on. */
static __device__ inline void quad_load(const quad &q, unsigned r, unsigned last, unsigned i0,
                                        unsigned j0, float e[QUAD_LOADS])
{
#pragma unroll
    for (unsigned l = 0; l < QUAD_LOADS; l++) {
        const unsigned at = threadIdx.x + l * THREADS, column = at % (QUAD_ROWS + QUAD_COLUMNS);
        const unsigned row = r + at / (QUAD_ROWS + QUAD_COLUMNS);
        const unsigned j = column < QUAD_ROWS ? i0 + column : j0 + column - QUAD_ROWS;
        e[l] = row < last && j < q.n ? q.e[row * q.lde + j] : 0;
    }
}

static __device__ inline void quad_store(quad_tiles &t, const float e[QUAD_LOADS])
{
#pragma unroll
    for (unsigned l = 0; l < QUAD_LOADS; l++) {
        const unsigned at = threadIdx.x + l * THREADS;
        t.e[at / (QUAD_ROWS + QUAD_COLUMNS)][at % (QUAD_ROWS + QUAD_COLUMNS)] = (double)e[l];
    }
}

/* Adds the products of the rows in shared memory; ti, tj: the first row and column of the warp
 * there. */
static __device__ inline void quad_multiply(const quad_tiles &t, unsigned ti, unsigned tj,
                                            double sum[QUAD][QUAD][2])
{
    const unsigned g = port_lane() / 4;
#pragma unroll
    for (unsigned l = 0; l < QUAD_STEP; l += QUAD_DEPTH) {
        const double *e = t.e[l + port_lane() % 4];
        double a[QUAD], b[QUAD];
#pragma unroll
        for (unsigned i = 0; i < QUAD; i++) {
            a[i] = e[ti + i * QUAD_SIDE + g];
            b[i] = e[tj + i * QUAD_SIDE + g];
        }
#pragma unroll
        for (unsigned i = 0; i < QUAD; i++)
#pragma unroll
            for (unsigned j = 0; j < QUAD; j++)
                port_mma_f64(sum[i][j], a[i], b[j]);
    }
}

/* budget: quad_kernel 128 registers */
__global__ static void __launch_bounds__(THREADS, 2) quad_kernel(quad q)
{
    quad_tiles &t = port_shared<quad_tiles>();
    const lower_tile tile = lower_tile_at(q.tile0 + blockIdx.x, QUAD_ROWS / QUAD_COLUMNS);
    const unsigned i0 = (unsigned)tile.row * QUAD_ROWS,
                   j0 = (unsigned)tile.column * QUAD_COLUMNS;
    const unsigned first = blockIdx.y * CHUNK, last = min(first + CHUNK, q.m);
    const unsigned ti = port_warp() / 2 * QUAD * QUAD_SIDE,
                   tj = port_warp() % 2 * QUAD * QUAD_SIDE;
    double product[QUAD][QUAD][2] = {};
    float next[QUAD_LOADS];

    quad_load(q, first, last, i0, j0, next);
    for (unsigned r = first; r < last; r += QUAD_STEP) {
        quad_store(t, next);
        __syncthreads();
        quad_load(q, r + QUAD_STEP, last, i0, j0, next);
        quad_multiply(t, ti, QUAD_ROWS + tj, product);
        __syncthreads();
    }
    double sum = 0;
#pragma unroll
    for (unsigned i = 0; i < QUAD; i++)
#pragma unroll
        for (unsigned j = 0; j < 2 * QUAD; j++) {
            const unsigned row = i0 + ti + i * QUAD_SIDE + port_lane() / 4;
            const unsigned column = j0 + tj + j / 2 * QUAD_SIDE + port_lane() % 4 * 2 + j % 2;
            if (row < q.n && column <= row)
                sum += (column < row ? 2 : 1) * product[i][j / 2][j % 2] *
                       q.h[row * q.ldh + column];
        }
    sum = port_block_sum(sum);
    if (threadIdx.x == 0)
        q.partial[blockIdx.y * q.tiles + q.tile0 + blockIdx.x] = sum;
}

vptq_status vptq_cuda_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err)
{
    const size_t tiles =
        lower_count(vptq_cuda_blocks(a->n, QUAD_ROWS), QUAD_ROWS / QUAD_COLUMNS);
    const size_t chunks = vptq_cuda_blocks(a->m, CHUNK);
    void *memory = NULL;
    VPTQ_BUG_IF(a->m > UINT32_MAX - CHUNK || a->n > UINT32_MAX - CHUNK);
    *a->trace = 0;
    if (!a->m || !a->n)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_scratch(dev, (chunks * tiles + 1) * sizeof(double), &memory, err));
    double *total = static_cast<double *>(memory);
    quad q = {(unsigned)a->m, (unsigned)a->n, a->lde, a->ldh, a->e, a->h, total + 1, 0, tiles};
    const double tile = (double)(a->m * QUAD_ROWS * QUAD_COLUMNS);
    const auto launch = [&](size_t first, size_t count) {
        q.tile0 = first;
        return port_launch(quad_kernel, dim3((unsigned)count, (unsigned)chunks), THREADS, 0,
                           dev->stream, q);
    };
    VPTQ_CHECK(vptq_cuda_in_pieces(dev, "quad_trace", tiles, tile, 1, launch, err));
    VPTQ_CHECK(vptq_cuda_check(vptq_cuda_total(dev, chunks * tiles, q.partial, total),
                               "quad_trace", err));
    return vptq_cuda_download(dev, a->trace, total, sizeof *total, err);
}
