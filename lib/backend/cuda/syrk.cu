/* syrk_add and quad_trace: one block per tile of a lower triangle, tiles numbered by rows. The
 * order of every sum depends only on the shape. */
#include "lib/backend/cuda/cuda.h"

enum {
    SIDE = 16,
    THREADS = SIDE * SIDE,
    WARPS = 8,
    STEP = 16, /* tokens, or rows of E, per step through shared memory */
};

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
    EACH_ROWS = 8,
    EACH_COLUMNS = 4,
    ROWS = SIDE * EACH_ROWS, /* rows of H per tile */
    COLUMNS = SIDE * EACH_COLUMNS,
    TOKENS = 256 /* products summed in float before they are added in double */
};

struct moments {
    size_t t, n, ldx;
    const float *x, *w; /* w NULL: ones */
    double *h, *sum;
    size_t tile0; /* first tile of the launch */
};

struct syrk_tiles {
    float a[STEP][ROWS], b[STEP][COLUMNS];
};

/* Loads `count` columns of tokens [s0, s0 + STEP), times their weights; zeros beyond the ends.
 */
static __device__ inline void load_tokens(float *to, const moments &m, const float *w,
                                          unsigned count, size_t s0, size_t first)
{
    for (unsigned i = threadIdx.x; i < STEP * count; i += THREADS) {
        const size_t s = s0 + i / count, j = first + i % count;
        float value = s < m.t && j < m.n ? m.x[s * m.ldx + j] : 0;
        if (w && s < m.t)
            value *= w[s];
        to[i] = value;
    }
}

/* budget: syrk_kernel 128 registers */
__global__ static void __launch_bounds__(THREADS, 2) syrk_kernel(moments m)
{
    syrk_tiles &t = port_shared<syrk_tiles>();
    const lower_tile tile = lower_tile_at(m.tile0 + blockIdx.x, ROWS / COLUMNS);
    const size_t i0 = tile.row * ROWS, j0 = tile.column * COLUMNS;
    const unsigned thread = threadIdx.x;
    const unsigned ti = thread / SIDE * EACH_ROWS, tj = thread % SIDE * EACH_COLUMNS;
    double sum[EACH_ROWS][EACH_COLUMNS] = {};

    for (size_t s0 = 0; s0 < m.t; s0 += TOKENS) {
        float part[EACH_ROWS][EACH_COLUMNS] = {};
        for (size_t s = s0; s < m.t && s < s0 + TOKENS; s += STEP) {
            load_tokens(&t.a[0][0], m, m.w, ROWS, s, i0);
            load_tokens(&t.b[0][0], m, NULL, COLUMNS, s, j0);
            __syncthreads();
            port_multiply_tile<STEP, EACH_ROWS, EACH_COLUMNS>(part, t.a, t.b, ti, tj);
            __syncthreads();
        }
#pragma unroll
        for (unsigned i = 0; i < EACH_ROWS; i++)
#pragma unroll
            for (unsigned j = 0; j < EACH_COLUMNS; j++)
                sum[i][j] += (double)part[i][j];
    }
#pragma unroll
    for (unsigned i = 0; i < EACH_ROWS; i++)
#pragma unroll
        for (unsigned j = 0; j < EACH_COLUMNS; j++)
            if (i0 + ti + i < m.n && j0 + tj + j <= i0 + ti + i)
                m.h[(i0 + ti + i) * m.n + j0 + tj + j] += sum[i][j];
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

vptq_status vptq_cuda_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err)
{
    moments m = {a->tokens, a->n, a->ldx, a->x, a->w, a->h, a->sum, 0};
    const size_t tiles = lower_count(vptq_cuda_blocks(a->n, ROWS), ROWS / COLUMNS);
    const double tile = (double)(a->tokens * ROWS * COLUMNS);
    if (!a->tokens || !a->n)
        return VPTQ_OK;
    const auto launch = [&](size_t first, size_t count) {
        m.tile0 = first;
        return port_launch(syrk_kernel, (unsigned)count, THREADS, 0, dev->stream, m);
    };
    VPTQ_CHECK(vptq_cuda_in_pieces(dev, "syrk_add", tiles, tile, 1, launch, err));
    return vptq_cuda_check(
        port_launch(sum_kernel, vptq_cuda_blocks(a->n, PORT_LANES), THREADS, 0, dev->stream, m),
        "syrk_add", err);
}

/* ---- quad_trace ---- */

/* tr(E H E^T) = sum over i, j of H_ij (E^T E)_ij. Computes tiles of E^T E in double and keeps
 * only their sum with H. */
enum { EACH = 4, TILE = SIDE * EACH, CHUNK = 1024 /* rows of E per block */ };

struct quad {
    size_t m, n, lde, ldh;
    const float *e;
    const double *h;
    double *partial;     /* [chunks][tiles] */
    size_t tile0, tiles; /* first tile of the launch; number of all */
};

struct quad_tiles {
    double a[STEP][TILE + 2], b[STEP][TILE + 2];
};

static __device__ inline void load_errors(double to[STEP][TILE + 2], const quad &q, size_t r0,
                                          size_t last, size_t first)
{
    for (unsigned i = threadIdx.x; i < STEP * TILE; i += THREADS) {
        const size_t r = r0 + i / TILE, j = first + i % TILE;
        to[i / TILE][i % TILE] = r < last && j < q.n ? (double)q.e[r * q.lde + j] : 0;
    }
}

/* budget: quad_kernel 128 registers */
__global__ static void __launch_bounds__(THREADS, 2) quad_kernel(quad q)
{
    quad_tiles &t = port_shared<quad_tiles>();
    const lower_tile tile = lower_tile_at(q.tile0 + blockIdx.x, 1);
    const size_t i0 = tile.row * TILE, j0 = tile.column * TILE;
    const size_t first = (size_t)blockIdx.y * CHUNK, last = min(first + CHUNK, q.m);
    const unsigned thread = threadIdx.x, ti = thread / SIDE * EACH, tj = thread % SIDE * EACH;
    double product[EACH][EACH] = {};

    for (size_t r = first; r < last; r += STEP) {
        load_errors(t.a, q, r, last, i0);
        load_errors(t.b, q, r, last, j0);
        __syncthreads();
        port_multiply_tile<STEP, EACH, EACH>(product, t.a, t.b, ti, tj);
        __syncthreads();
    }
    double sum = 0;
#pragma unroll
    for (unsigned i = 0; i < EACH; i++)
#pragma unroll
        for (unsigned j = 0; j < EACH; j++) {
            const size_t row = i0 + ti + i, column = j0 + tj + j;
            if (row < q.n && column <= row)
                sum += (column < row ? 2 : 1) * product[i][j] * q.h[row * q.ldh + column];
        }
    sum = port_block_sum(sum);
    if (thread == 0)
        q.partial[blockIdx.y * q.tiles + q.tile0 + blockIdx.x] = sum;
}

vptq_status vptq_cuda_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err)
{
    const size_t tiles = lower_count(vptq_cuda_blocks(a->n, TILE), 1);
    const size_t chunks = vptq_cuda_blocks(a->m, CHUNK);
    void *memory = NULL;
    *a->trace = 0;
    if (!a->m || !a->n)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_scratch(dev, (chunks * tiles + 1) * sizeof(double), &memory, err));
    double *total = static_cast<double *>(memory);
    quad q = {a->m, a->n, a->lde, a->ldh, a->e, a->h, total + 1, 0, tiles};
    const double tile = (double)(a->m * TILE * TILE);
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
