/* GEMM_SMALL of plan_dispatch.h: vq_gemv for more tokens than registers hold (docs/gpu.md). A
 * block computes some output rows for some tokens and its share of the columns of every stripe.
 * The codebooks are in shared memory together with two chunks of x, one of which is being
 * loaded. A warp looks up fragments of two pairs of vector rows, adds main and residual
 * centroid in float16 and multiplies by all tokens of the block; warps that share fragments
 * divide the tiles of every chunk.
 *
 * The codes are those of the GEMV layout, for tables with copies. The rank of a centroid is
 * computed from its code and looked up in a smaller table that leaves memory for x.
 *
 * Sums run in an order that depends on the shape, the plan and the number of tokens only: tiles
 * of a warp in the tensor cores, then warps, stripes and blocks in ascending order. */
#include "lib/backend/cuda/vq_tiles.h"

enum {
    WARPS = VPTQ_CUDA_GEMM_WARPS,
    THREADS = WARPS * (int)PORT_LANES,
    FRAGMENTS = VPTQ_CUDA_GEMM_FRAGMENTS, /* fragments per warp */
    X_CHUNK_BYTES =
        TILES * (int)PORT_LANES * (int)sizeof(uint2), /* bytes of a chunk for 8 tokens */
    COPY_BYTES = 16                                   /* bytes per asynchronous copy */
};

struct gemm_job {
    const vptq_cuda_stripe *stripes;
    uint32_t count;
    uint32_t rows;    /* output rows of a block */
    uint32_t n_tiles; /* groups of 8 tokens, */
    uint32_t ways;    /* divided among `ways` blocks, `each` at limit */
    uint32_t each;
    uint32_t stage_offset, x_offset; /* offsets in shared memory */
    bool sums;                       /* sums over stripes are kept in o.parts */
    product_out o;
};

/* The part of the product that a block computes. */
struct gemm_work {
    uint32_t range, way, rank;
    uint32_t row0, rows;
    uint32_t tile0, tiles; /* groups of 8 tokens */
};

/* ---- x ---- */

/* Starts loading a chunk of the block's tokens into one of the two buffers. */
static __device__ void stage_x(const gemm_job &j, const gemm_work &p, uint32_t tile,
                               uint32_t buffer)
{
    constexpr uint32_t copies = X_CHUNK_BYTES / COPY_BYTES;
    unsigned char *to = shared_at(j.x_offset) + buffer * j.each * X_CHUNK_BYTES;
    for (uint32_t i = threadIdx.x; i < p.tiles * copies; i += THREADS) {
        const size_t n_tile = p.tile0 + i / copies;
        const uint2 *from = j.o.x.fragments + (n_tile * j.o.x.tiles + tile) * PORT_LANES;
        port_copy_async(to + (size_t)i * COPY_BYTES,
                        reinterpret_cast<const unsigned char *>(from) +
                            i % copies * COPY_BYTES);
    }
}

/* ---- lookups ---- */

/* A codebook, and the rule that turns codes into its rows. */
struct gemm_codebook {
    codebook_view view;
    vptq_cuda_rank_rule rule;
};

struct gemm_stripe {
    stripe_view s;
    gemm_codebook main, residual;
};

static __device__ gemm_codebook gemm_codebook_of(const vptq_cuda_codebook &b)
{
    gemm_codebook g = {view_of(b, false), b.rule};
    if (b.table.replicas)
        g.view.stride = g.view.slots = b.table.replicas;
    return g;
}

static __device__ unsigned row_of(const codebook_view &b, uint32_t rank)
{
    return rank * b.stride + (port_lane() & (b.slots - 1));
}

/* Loads the fragment of one piece or tail and adds both codebooks. */
template <bool PLAIN>
static __device__ void fetch(const gemm_stripe &g, uint32_t part, const chunk_codes &c,
                             unsigned tile, unsigned char *stage, uint32_t a[4])
{
    const codebook_view &main = g.main.view, &residual = g.residual.view;
    const unsigned row = row_of(main, vptq_cuda_rank_by(g.main.rule, code16(c.main, tile)));
    uint32_t r[4] = {};
    unsigned residual_row = 0;
    if (g.s.two)
        residual_row = row_of(
            residual, g.s.bytes ? code8(c.residual, tile)
                                : vptq_cuda_rank_by(g.residual.rule, code16(c.residual, tile)));
    if (PLAIN) {
        port_ldmatrix_trans(a, shared_at(main.at + (part * main.rows + row) * VPTQ_CUDA_PIECE));
        if (g.s.two)
            port_ldmatrix_trans(r,
                                shared_at(residual.at + (part * residual.rows + residual_row) *
                                                            VPTQ_CUDA_PIECE));
    } else if (part >= main.pieces) {
        a[1] = a[3] = 0;
        look_up_tail(main, row, &a[0], &a[2]);
        if (g.s.two)
            look_up_tail(residual, residual_row, &r[0], &r[2]);
    } else {
        look_up(main, part, row, stage, a);
        if (g.s.two)
            look_up(residual, part, residual_row, stage, r);
    }
#pragma unroll
    for (unsigned i = 0; i < 4 && g.s.two; i++)
        a[i] = port_add_f16x2(a[i], r[i]);
}

/* ---- fragments ---- */

/* The fragments of a warp. `warps` warps have different fragments; `share` warps have the same
 * ones and take every share-th tile from `first` on. */
struct gemm_team {
    uint32_t warp, warps, first, share;
    uint32_t count; /* 0 .. FRAGMENTS */
    uint32_t pair[FRAGMENTS], part[FRAGMENTS];
};

/* Sums over the tiles of a warp. */
template <unsigned N> struct gemm_sums {
    float d[FRAGMENTS][N][4];
};

template <bool PLAIN>
static __device__ void fetch_all(const gemm_stripe &g, const gemm_team &t,
                                 const chunk_codes c[FRAGMENTS], unsigned tile,
                                 unsigned char *stage, uint32_t a[FRAGMENTS][4])
{
#pragma unroll
    for (unsigned m = 0; m < FRAGMENTS; m++)
        if (m < t.count)
            fetch<PLAIN>(g, t.part[m], c[m], tile, stage, a[m]);
}

template <unsigned N>
static __device__ void multiply_all(gemm_sums<N> &sums, const gemm_team &t, uint32_t n_tiles,
                                    const uint32_t a[FRAGMENTS][4], const unsigned char *x)
{
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        if (i >= n_tiles)
            continue;
        const uint2 f = reinterpret_cast<const uint2 *>(x + i * X_CHUNK_BYTES)[port_lane()];
        const uint32_t b[2] = {f.x, f.y};
#pragma unroll
        for (unsigned m = 0; m < FRAGMENTS; m++)
            if (m < t.count)
                port_mma_f16(sums.d[m][i], a[m], b);
    }
}

static __device__ void load_all(const gemm_stripe &g, const gemm_team &t, uint32_t chunk,
                                chunk_codes c[FRAGMENTS])
{
#pragma unroll
    for (unsigned m = 0; m < FRAGMENTS; m++)
        if (m < t.count)
            c[m] = load_codes<VPTQ_CUDA_ANYTHING>(g.s, t.pair[m], chunk);
}

/* Multiplies chunks [c0, c1). */
template <unsigned N, bool PLAIN>
static __device__ void run_chunks(const gemm_job &j, const gemm_work &p, const gemm_stripe &g,
                                  uint32_t first_tile, const gemm_team &t, uint32_t c0,
                                  uint32_t c1, gemm_sums<N> &sums)
{
    unsigned char *stage =
        shared_at(j.stage_offset) + port_warp() * PORT_LANES * VPTQ_CUDA_PIECE;
    chunk_codes codes[FRAGMENTS] = {}, next[FRAGMENTS] = {};
    uint32_t a[FRAGMENTS][4] = {}, after[FRAGMENTS][4] = {};
    stage_x(j, p, first_tile + c0 * TILES, 0);
    port_copy_commit();
    load_all(g, t, c0, codes);
    for (uint32_t c = c0; c < c1; c++) {
        const uint32_t buffer = (c - c0) % 2;
        if (c + 1 < c1) {
            stage_x(j, p, first_tile + (c + 1) * TILES, !buffer);
            load_all(g, t, c + 1, next);
        }
        port_copy_commit();
        fetch_all<PLAIN>(g, t, codes, t.first, stage, a);
        port_copy_wait<1>();
        __syncthreads();
        const unsigned char *x = shared_at(j.x_offset) + buffer * j.each * X_CHUNK_BYTES;
        for (uint32_t tile = t.first; tile < TILES; tile += t.share) {
            if (tile + t.share < TILES)
                fetch_all<PLAIN>(g, t, codes, tile + t.share, stage, after);
            multiply_all<N>(sums, t, p.tiles, a, x + tile * PORT_LANES * sizeof(uint2));
#pragma unroll
            for (unsigned m = 0; m < FRAGMENTS; m++)
#pragma unroll
                for (unsigned i = 0; i < 4; i++)
                    a[m][i] = after[m][i];
        }
#pragma unroll
        for (unsigned m = 0; m < FRAGMENTS; m++)
            codes[m] = next[m];
        __syncthreads();
    }
}

/* Warps that share fragments leave their sums where x was; the first of them adds them up. */
template <unsigned N>
static __device__ void add_shares(const gemm_job &j, const gemm_team &t, gemm_sums<N> &sums)
{
    float4 *left = reinterpret_cast<float4 *>(shared_at(j.x_offset));
    const uint32_t share_stride = j.each * PORT_LANES;
#pragma unroll
    for (unsigned m = 0; m < FRAGMENTS && t.share > 1; m++) {
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            float *d = sums.d[m][i];
            if (t.first && i < j.each)
                left[port_warp() * share_stride + i * PORT_LANES + port_lane()] =
                    make_float4(d[0], d[1], d[2], d[3]);
        }
        __syncthreads();
        for (uint32_t w = 1; w < t.share && !t.first; w++) {
#pragma unroll
            for (unsigned i = 0; i < N; i++) {
                float *d = sums.d[m][i];
                if (i >= j.each)
                    continue;
                const float4 more =
                    left[(w * t.warps + t.warp) * share_stride + i * PORT_LANES + port_lane()];
                d[0] += more.x;
                d[1] += more.y;
                d[2] += more.z;
                d[3] += more.w;
            }
        }
        __syncthreads();
    }
}

template <unsigned N>
static __device__ void emit(const gemm_job &j, const gemm_work &p, const gemm_stripe &g,
                            const gemm_team &t, const gemm_sums<N> &sums)
{
    if (t.first)
        return;
#pragma unroll
    for (unsigned m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (unsigned i = 0; i < N; i++)
#pragma unroll
            for (unsigned q = 0; q < 4; q++) {
                if (m >= t.count || i >= p.tiles)
                    continue;
                const uint32_t row =
                    output_row(g.s, j.o.out, t.part[m], t.pair[m], port_lane() / 4 + q / 2 * 8);
                const uint32_t b = (p.tile0 + i) * COLUMNS + port_lane() % 4 * 2 + q % 2;
                const float sum = sums.d[m][i][q] * g.s.main_unit;
                if (row == UINT32_MAX || b >= j.o.n)
                    continue;
                if (j.sums)
                    *part_of(j.o, p.rank, row, b) += sum;
                else if (j.o.split == 1)
                    finish(j.o, row, b, sum);
                else
                    *part_of(j.o, p.rank, row, b) = sum;
            }
}

/* ---- a stripe ---- */

template <unsigned N, bool PLAIN>
static __device__ void run_stripe(const gemm_job &j, const gemm_work &p,
                                  const vptq_cuda_stripe &stripe, uint32_t c0, uint32_t c1)
{
    const gemm_stripe g = {view_of(stripe), gemm_codebook_of(stripe.main),
                           gemm_codebook_of(stripe.residual)};
    const uint32_t vector_rows = 2 * g.s.v, pair0 = p.row0 / vector_rows;
    const uint32_t fragments = (p.rows + vector_rows - 1) / vector_rows * g.s.parts;
    gemm_team t = {};
    t.warps = 1;
    while (t.warps < WARPS && t.warps * FRAGMENTS < fragments)
        t.warps *= 2;
    t.warp = port_warp() & (t.warps - 1);
    t.share = WARPS / t.warps;
    t.first = port_warp() / t.warps;
    for (uint32_t f0 = 0; f0 < fragments; f0 += t.warps * FRAGMENTS) {
        gemm_sums<N> sums = {};
        const uint32_t f = f0 + t.warp * FRAGMENTS;
        t.count = f < fragments ? min(fragments - f, (uint32_t)FRAGMENTS) : 0;
#pragma unroll
        for (unsigned m = 0; m < FRAGMENTS; m++) {
            t.pair[m] = pair0 + (f + m) / g.s.parts;
            t.part[m] = (f + m) % g.s.parts;
        }
        run_chunks<N, PLAIN>(j, p, g, stripe.tile, t, c0, c1, sums);
        add_shares<N>(j, t, sums);
        emit<N>(j, p, g, t, sums);
    }
}

template <unsigned N>
static __device__ void run_any(const gemm_job &j, const gemm_work &p, const vptq_cuda_stripe &s)
{
    const uint32_t each = (s.chunks + j.o.split - 1) / j.o.split;
    const uint32_t c0 = p.rank * each, c1 = min(c0 + each, s.chunks);
    if (c0 >= c1)
        return;
    __syncthreads(); /* the stripe before no longer needs its codebooks */
    fill_codebooks(s);
    if (s.loop == VPTQ_CUDA_ANYTHING)
        run_stripe<N, false>(j, p, s, c0, c1);
    else
        run_stripe<N, true>(j, p, s, c0, c1);
}

static __device__ gemm_work work_of(const gemm_job &j)
{
    gemm_work p;
    p.rank = blockIdx.x % j.o.split;
    p.way = blockIdx.x / j.o.split % j.ways;
    p.range = blockIdx.x / j.o.split / j.ways;
    p.row0 = p.range * j.rows;
    p.rows = min(j.rows, j.o.out - p.row0);
    p.tile0 = p.way * j.each;
    p.tiles = min(j.each, j.n_tiles - p.tile0);
    return p;
}

/* The results that the block contributes to. */
static __device__ product_share share_of(const gemm_job &j, const gemm_work &p)
{
    const uint32_t b0 = p.tile0 * COLUMNS;
    return {p.row0, p.rows, b0, min(p.tiles * COLUMNS, j.o.n - b0), p.range * j.ways + p.way};
}

/* N: largest number of groups of 8 tokens of a block. */
/* budget: vq_gemm_kernel 255 registers */
template <unsigned N>
__global__ static void __launch_bounds__(THREADS) vq_gemm_kernel(gemm_job j)
{
    const gemm_work p = work_of(j);
    const product_share s = share_of(j, p);
    port_grid_wait();
    for (uint32_t i = threadIdx.x; j.sums && i < s.rows * s.count; i += THREADS)
        *part_of(j.o, p.rank, s.row0 + i % s.rows, s.b0 + i / s.rows) = 0;
    for (uint32_t i = 0; i < j.count; i++)
        run_any<N>(j, p, j.stripes[i]);
    __syncthreads();
    if (j.o.split > 1) {
        join_parts(j.o, s, reinterpret_cast<unsigned *>(shared_at(j.x_offset)));
        return;
    }
    for (uint32_t i = threadIdx.x; j.sums && i < s.rows * s.count; i += THREADS) {
        const uint32_t row = s.row0 + i % s.rows, b = s.b0 + i / s.rows;
        finish(j.o, row, b, *part_of(j.o, 0, row, b));
    }
}

/* ---- launches ---- */

typedef void (*gemm_entry)(gemm_job);

static gemm_entry kernel_of(uint32_t tiles)
{
    return tiles <= 4 ? vq_gemm_kernel<4> : tiles <= 8 ? vq_gemm_kernel<8> : vq_gemm_kernel<16>;
}

vptq_status vptq_cuda_vq_gemm(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                              const vptq_gemv_args *g, size_t *rows, vptq_err *err)
{
    const vptq_vq_shape *s = &m->q.shape;
    const vptq_cuda_small *small = &r->small;
    const size_t limit = min(g->n, (size_t)VPTQ_CUDA_GEMM_BATCH);
    const auto *plan = &small->plan[(limit - 1) / VPTQ_CUDA_SMALL_STEP];
    const size_t n = min(limit, (size_t)plan->columns * plan->ways);
    const uint32_t split =
        vptq_cuda_blocks(r->max_chunks, vptq_cuda_blocks(r->max_chunks, plan->split));
    const bool sums = r->count > 1;
    gemm_job j = {};
    VPTQ_CHECK(
        vptq_cuda_product_open(dev, m, r, g, n, X_MANY, split, split > 1 || sums, &j.o, err));
    j.stripes = r->small_stripes;
    j.count = r->count;
    j.rows = plan->rows;
    j.n_tiles = vptq_cuda_blocks(n, COLUMNS);
    j.each = vptq_cuda_blocks(j.n_tiles, plan->ways);
    j.ways = vptq_cuda_blocks(j.n_tiles, j.each);
    j.stage_offset = small->smem.partial_offset;
    j.x_offset = j.stage_offset + (small->staged ? VPTQ_CUDA_GEMM_STAGE : 0);
    j.sums = sums;
    *rows = n;
    const unsigned blocks = vptq_cuda_blocks(s->out, plan->rows) * j.ways * split;
    return vptq_cuda_launch_product(dev, kernel_of(j.each), blocks, THREADS,
                                    j.x_offset + 2 * (size_t)j.each * X_CHUNK_BYTES, j, err);
}
