/* vq_gemv on the run-time layout of plan_layout.h: codes select centroids in shared or global
 * memory and tensor cores multiply them by x (docs/gpu.md explains the method). This file has
 * the op and the kernel for up to 16 tokens, which stay in registers; vq_gemm.cu handles more.
 * A block computes some output rows for its share of the columns of every stripe.
 *
 * Sums run in an order that depends on the shape, the plan and the number of tokens only: tiles
 * and chunks of a warp in the tensor cores, warps as a tree, then passes, stripes and blocks in
 * ascending order. */
#include <string.h>

#include "lib/backend/cuda/gemm.h"
#include "lib/backend/cuda/vq_tiles.h"

enum {
    WARPS = VPTQ_CUDA_GEMV_WARPS,
    THREADS = WARPS * (int)PORT_LANES,
    MAX_TOKENS = VPTQ_CUDA_MAX_BATCH, /* tokens */
    MAX_UNITS = 4                     /* see gemv_memory */
};

/* Chunks per warp whose x stays in registers. */
static constexpr VPTQ_HD unsigned held_chunks(x_form form, vptq_cuda_loop loop)
{
    if (form != X_FEW)
        return 1;
    return loop == VPTQ_CUDA_ANYTHING ? 2 : 3;
}

/* Shared memory of a block, after the tables; offsets in bytes. */
struct gemv_memory {
    uint32_t rows;    /* tokens of one launch */
    uint32_t columns; /* tokens whose partial sums are added at once, a power of two */
    uint32_t times;   /* rounds of that */
    uint32_t units;   /* parts of pairs whose sums share a barrier; 1 if there are rounds */
    uint32_t pass_offset, stage_offset, partial_offset, sums_offset, total;
    bool sums; /* sums over stripes or passes are kept in shared memory */
};

struct gemv_job {
    uint32_t first[sizeof(vptq_cuda_stripe) / sizeof(uint32_t)]; /* a copy of stripes[0] */
    const vptq_cuda_stripe *stripes;
    uint32_t count;
    product_out o;
    uint32_t rows; /* output rows of a cluster */
    gemv_memory memory;
};

/* ---- results of a block ---- */

/* A pass over some chunks of a stripe, in shared memory. Teams of `size` warps take pairs of
 * vector rows in turn; the warps of a team take every size-th chunk. */
struct pass_state {
    stripe_view stripe;
    uint32_t row0, rows, range, rank; /* of the block */
    uint32_t first_pair, end;         /* pairs of vector rows */
    uint32_t rounds;                  /* in each round every team takes one pair */
    uint32_t size, log2_size, teams;
    uint32_t chunk0, chunks;
    unsigned arrived; /* used by join_parts */
    vptq_cuda_stripe source;
};

static_assert(sizeof(pass_state) <= VPTQ_CUDA_GEMV_PASS, "a pass fits");

static __device__ pass_state &pass_of(const gemv_job &j)
{
    return *reinterpret_cast<pass_state *>(shared_at(j.memory.pass_offset));
}

static __device__ float *sums_of(const gemv_job &j)
{
    return reinterpret_cast<float *>(shared_at(j.memory.sums_offset));
}

/* Outputs a sum over all columns of the block. */
static __device__ void output_sum(const gemv_job &j, uint32_t row, uint32_t b, float sum)
{
    if (j.o.split == 1)
        finish(j.o, row, b, sum);
    else
        *part_of(j.o, pass_of(j).rank, row, b) = sum;
}

static __device__ void emit(const gemv_job &j, uint32_t row, uint32_t b, float sum)
{
    if (j.memory.sums)
        sums_of(j)[(row - pass_of(j).row0) * j.o.n + b] += sum;
    else
        output_sum(j, row, b, sum);
}

/* ---- sums over warps ---- */

/* Combines both codebooks and both halves of x. v[i][q] is row lane / 4 (+ 8 for q >= 2) of the
 * fragment, column 8 i + 2 (lane % 4) + q % 2. */
template <x_form X>
static __device__ void combine(const stripe_view &s, bool tail, const tile_sums<X> &d,
                               float v[tiles_out(X)][4])
{
    const float main_unit = s.main_unit, residual_unit = s.residual_unit;
    const bool two = s.two;
#pragma unroll
    for (unsigned i = 0; i < tiles_out(X); i++)
#pragma unroll
        for (unsigned q = 0; q < 4; q++) {
            const float main = tail && q >= 2 ? 0 : d.main[i][q];
            const float residual =
                tail ? (q < 2 ? d.main[i][(q + 2) % 4] : 0) : d.residual[i][q];
            v[i][q] = main * main_unit;
            if (two)
                v[i][q] += residual * residual_unit;
        }
#pragma unroll
    for (unsigned q = 0; q < 4 && X == X_FEW; q++)
        v[0][q] += __shfl_xor_sync(port_all, v[0][q], 2);
}

/* Writes the fragments of all warps for tokens [first, first + memory.columns). */
template <x_form X>
static __device__ void put_partial(const gemv_job &j, const float v[tiles_out(X)][4],
                                   uint32_t first, float *partial)
{
    const unsigned g = port_lane() / 4, t = port_lane() % 4;
    const uint32_t end = min(first + j.memory.columns, min(j.o.n, rows_of_form(X)));
#pragma unroll
    for (unsigned i = 0; i < tiles_out(X); i++)
#pragma unroll
        for (unsigned q = 0; q < 4; q++) {
            const uint32_t b = i * 8 + 2 * t + q % 2;
            const unsigned row = g + q / 2 * 8;
            if (b >= first && b < end)
                partial[((b - first) * FRAGMENT + row) * (WARPS + 1) + port_warp()] = v[i][q];
        }
}

/* Adds the warps of every team for units [first_unit, first_unit + units) of tokens [first,
 * first
 * + columns); unit u is part u % parts of the pairs of round u / parts. */
static __device__ void add_units(const gemv_job &j, uint32_t first_unit, uint32_t units,
                                 uint32_t first, const float *partial)
{
    const pass_state &p = pass_of(j);
    const uint32_t cells = j.memory.columns * FRAGMENT;
    for (uint32_t e = threadIdx.x; e < units * cells * WARPS; e += THREADS) {
        const uint32_t warp = e % WARPS, cell = e / WARPS, unit = first_unit + cell / cells;
        const uint32_t b = first + cell % cells / FRAGMENT;
        float sum = b < j.o.n ? partial[cell * (WARPS + 1) + warp] : 0;
        for (uint32_t with = p.size / 2; with; with /= 2)
            sum += __shfl_xor_sync(port_all, sum, (int)with);
        const uint32_t pair =
            p.first_pair + unit / p.stripe.parts * p.teams + (warp >> p.log2_size);
        const uint32_t row =
            output_row(p.stripe, j.o.out, unit % p.stripe.parts, pair, cell % FRAGMENT);
        if (!(warp & (p.size - 1)) && b < j.o.n && pair < p.end && row != UINT32_MAX)
            emit(j, row, b, sum);
    }
}

/* Adds the warps of every team for one unit, some tokens at a time, or keeps its sums until
 * there are several units. There are two buffers and one barrier: a buffer is written again
 * only the time after the next. */
template <x_form X>
static __device__ void add_warps(const gemv_job &j, uint32_t unit, bool last,
                                 const tile_sums<X> &d)
{
    const pass_state &p = pass_of(j);
    const gemv_memory &m = j.memory;
    const uint32_t size = m.columns * FRAGMENT * (WARPS + 1), slot = unit % m.units;
    uint32_t times = unit / m.units * m.times;
    float v[tiles_out(X)][4];
    combine<X>(p.stripe, unit % p.stripe.parts >= p.stripe.main.pieces, d, v);
    for (uint32_t first = 0; first < j.o.n; first += m.columns) {
        float *partial = reinterpret_cast<float *>(shared_at(m.partial_offset)) +
                         times++ % 2 * m.units * size;
        put_partial<X>(j, v, first, partial + slot * size);
        if (slot + 1 < m.units && !last)
            return;
        __syncthreads();
        add_units(j, unit - slot, slot + 1, first, partial);
    }
}

/* ---- a pass over columns ---- */

/* Whether column lane / 4 of group i of B belongs to a token. */
template <x_form X> static __device__ bool is_used(uint32_t n, unsigned i)
{
    const uint32_t column = port_lane() / 4;
    return (X == X_FEW ? column % 4 : X == X_SOME ? column : i * COLUMNS + column) < n;
}

template <x_form X>
static __device__ void load_x(const gemv_job &j, uint32_t first_tile,
                              uint32_t x[TILES][tiles_in(X)][2])
{
#pragma unroll
    for (unsigned tile = 0; tile < TILES; tile++)
#pragma unroll
        for (unsigned i = 0; i < tiles_in(X); i++) {
            const size_t at = i * (size_t)j.o.x.tiles + first_tile + tile;
            const uint2 f = is_used<X>(j.o.n, i)
                                ? j.o.x.fragments[at * PORT_LANES + port_lane()]
                                : make_uint2(0, 0);
            x[tile][i][0] = f.x;
            x[tile][i][1] = f.y;
        }
}

/* Copies a stripe to shared memory; the first comes with the launch. */
static __device__ const vptq_cuda_stripe &load_stripe(const gemv_job &j, uint32_t i)
{
    constexpr uint32_t words = sizeof(vptq_cuda_stripe) / sizeof(uint32_t);
    uint32_t *to = reinterpret_cast<uint32_t *>(&pass_of(j).source);
    __syncthreads(); /* the stripe before is finished */
    for (uint32_t w = threadIdx.x; w < words; w += THREADS)
        to[w] = i ? reinterpret_cast<const uint32_t *>(j.stripes + i)[w] : j.first[w];
    __syncthreads();
    return pass_of(j).source;
}

static __device__ void start_pass(const gemv_job &j, const vptq_cuda_stripe &s, uint32_t c0,
                                  uint32_t c1)
{
    pass_state &p = pass_of(j);
    __syncthreads(); /* all threads have finished the pass before */
    if (threadIdx.x == 0) {
        p.stripe = view_of(s);
        p.chunk0 = c0;
        p.chunks = c1 - c0;
        p.size = 1;
        p.log2_size = 0;
        while (p.size < p.chunks && p.size < WARPS) {
            p.size *= 2;
            p.log2_size++;
        }
        p.teams = WARPS >> p.log2_size;
        p.first_pair = p.row0 / (2 * s.v);
        p.end = p.first_pair + (p.rows + 2 * s.v - 1) / (2 * s.v);
        p.rounds = (p.end - p.first_pair + p.teams - 1) / p.teams;
    }
    __syncthreads();
}

static __device__ uint32_t pair_of_warp(const pass_state &p, uint32_t round)
{
    return p.first_pair + round * p.teams + (port_warp() >> p.log2_size);
}

/* The i-th chunk of a warp, if it exists. */
static __device__ uint32_t chunk_of_warp(const pass_state &p, uint32_t i)
{
    return p.chunk0 + (port_warp() & (p.size - 1)) + i * p.size;
}

static __device__ bool has_chunk(const pass_state &p, uint32_t i)
{
    return chunk_of_warp(p, i) < p.chunk0 + p.chunks;
}

static __device__ unsigned char *stage_of_warp(const gemv_job &j)
{
    return shared_at(j.memory.stage_offset) + port_warp() * PORT_LANES * VPTQ_CUDA_PIECE;
}

/* Multiplies chunks [c0, c1), at limit as many as the warps hold, for all pairs of vector rows
 * of the block. `first`: loads the codebooks when the first codes are on their way.
 */
template <x_form X, vptq_cuda_loop LOOP>
static __device__ void run_pass(const gemv_job &j, const vptq_cuda_stripe &stripe, uint32_t c0,
                                uint32_t c1, bool first)
{
    constexpr unsigned held = held_chunks(X, LOOP);
    const pass_state &p = pass_of(j);
    uint32_t x[held][TILES][tiles_in(X)][2] = {};
    start_pass(j, stripe, c0, c1);
    chunk_codes codes = {};
    if (has_chunk(p, 0) && pair_of_warp(p, 0) < p.end)
        codes = load_codes<LOOP>(p.stripe, pair_of_warp(p, 0), chunk_of_warp(p, 0));
    if (first) {
        fill_codebooks(stripe);
        port_grid_wait();
    }
#pragma unroll
    for (unsigned i = 0; i < held; i++)
        if (has_chunk(p, i))
            load_x<X>(j, stripe.tile + chunk_of_warp(p, i) * TILES, x[i]);
    for (uint32_t round = 0; round < p.rounds; round++)
        for (uint32_t part = 0; part < p.stripe.parts; part++) {
            tile_sums<X> d = {};
#pragma unroll
            for (unsigned i = 0; i < held; i++) {
                if (!has_chunk(p, i) || pair_of_warp(p, round) >= p.end)
                    continue;
                const chunk_codes now = codes;
                const bool last = i + 1 == held || !has_chunk(p, i + 1);
                const uint32_t chunk = chunk_of_warp(p, last ? 0 : i + 1);
                const uint32_t pair =
                    pair_of_warp(p, round + (last && part + 1 == p.stripe.parts));
                if (pair < p.end)
                    codes = load_codes<LOOP>(p.stripe, pair, chunk);
                if (LOOP == VPTQ_CUDA_ANYTHING)
                    multiply_any<X>(d, p.stripe, part, now, stage_of_warp(j), x[i]);
                else
                    multiply_chunk<X, LOOP>(d, p.stripe, part, now, x[i]);
            }
            const uint32_t unit = round * p.stripe.parts + part;
            add_warps<X>(j, unit, unit + 1 == p.rounds * p.stripe.parts, d);
        }
}

template <x_form X, vptq_cuda_loop LOOP>
static __device__ void run_passes(const gemv_job &j, const vptq_cuda_stripe &s, uint32_t c0,
                                  uint32_t c1)
{
    constexpr uint32_t limit = WARPS * held_chunks(X, LOOP);
    const uint32_t passes = (c1 - c0 + limit - 1) / limit,
                   each = (c1 - c0 + passes - 1) / passes;
    for (uint32_t c = c0; c < c1; c += each)
        run_pass<X, LOOP>(j, s, c, min(c + each, c1), c == c0);
}

template <x_form X, vptq_cuda_loop LOOP>
static __device__ void run_stripe(const gemv_job &j, const vptq_cuda_stripe &s)
{
    const uint32_t each = (s.chunks + j.o.split - 1) / j.o.split;
    const uint32_t c0 = pass_of(j).rank * each, c1 = min(c0 + each, s.chunks);
    if (c0 >= c1)
        return;
    if (LOOP != VPTQ_CUDA_ANYTHING && s.loop == LOOP)
        run_passes<X, LOOP>(j, s, c0, c1);
    else
        run_passes<X, VPTQ_CUDA_ANYTHING>(j, s, c0, c1);
}

/* LOOP: of the groups. `split` consecutive blocks share a range of output rows. */
/* budget: vq_gemv_kernel 128 registers */
template <x_form X, vptq_cuda_loop LOOP>
__global__ static void __launch_bounds__(THREADS) vq_gemv_kernel(gemv_job j)
{
    pass_state &p = pass_of(j);
    port_grid_release();
    if (threadIdx.x == 0) {
        p.range = blockIdx.x / j.o.split;
        p.rank = blockIdx.x % j.o.split;
        p.row0 = p.range * j.rows;
        p.rows = min(j.rows, j.o.out - p.row0);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; j.memory.sums && i < p.rows * j.o.n; i += THREADS)
        sums_of(j)[i] = 0;
    for (uint32_t i = 0; i < j.count; i++)
        run_stripe<X, LOOP>(j, load_stripe(j, i));
    port_grid_wait(); /* blocks without columns have not waited */
    __syncthreads();
    for (uint32_t i = threadIdx.x; j.memory.sums && i < p.rows * j.o.n; i += THREADS)
        output_sum(j, p.row0 + i / j.o.n, i % j.o.n, sums_of(j)[i]);
    if (j.o.split > 1)
        join_parts(j.o, {p.row0, p.rows, 0, j.o.n, p.range}, &p.arrived);
}

/* ---- the op ---- */

static uint32_t next_power(uint32_t n)
{
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

static x_form form_of(size_t n)
{
    return n <= rows_of_form(X_FEW) ? X_FEW : n <= rows_of_form(X_SOME) ? X_SOME : X_MANY;
}

/* Chunks of any stripe that a block holds in registers at once. */
static uint32_t pass_chunks(const vptq_cuda_runtime *r, uint32_t n)
{
    const x_form form = form_of(n);
    const uint32_t any = held_chunks(form, VPTQ_CUDA_ANYTHING);
    return WARPS * (r->any_loop ? any : held_chunks(form, r->loop));
}

/* Divides shared memory for n tokens; false if they do not fit. */
static bool fit(const vptq_cuda_runtime *r, size_t limit, uint32_t n, gemv_memory *memory)
{
    const vptq_cuda_choice *c = &r->choice;
    const uint32_t chunks = (r->max_chunks + r->split - 1) / r->split;
    uint32_t at = c->smem.partial_offset;
    *memory = {};
    memory->rows = n;
    memory->sums = r->count > 1 || chunks > pass_chunks(r, n);
    memory->pass_offset = at;
    memory->stage_offset = at += VPTQ_CUDA_GEMV_PASS;
    at += r->staged ? VPTQ_CUDA_GEMV_STAGE : 0;
    memory->partial_offset = at;
    const size_t sums = memory->sums ? (size_t)c->rows * n * sizeof(float) : 0;
    for (uint32_t columns = next_power(n), units = MAX_UNITS; columns;) {
        const size_t partial =
            2 * (size_t)units * columns * FRAGMENT * (WARPS + 1) * sizeof(float);
        if (at + partial + sums <= limit) {
            memory->columns = columns;
            memory->units = units;
            memory->times = (n + columns - 1) / columns;
            memory->sums_offset = at + (uint32_t)partial;
            memory->total = memory->sums_offset + (uint32_t)sums;
            return true;
        }
        if (units > 1)
            units /= 2;
        else
            columns /= 2;
    }
    return false;
}

/* Tokens of one launch, at limit n; 0 if no kernel can run. */
static uint32_t rows_of_launch(const vptq_dev *dev, const vptq_cuda_runtime *r, size_t n,
                               gemv_memory *memory)
{
    uint32_t rows = (uint32_t)min(n, (size_t)MAX_TOKENS);
    if (r->choice.kernel == VPTQ_CUDA_GEMM_DEQUANT)
        return 0;
    while (rows && !fit(r, dev->properties.sharedMemPerBlockOptin, rows, memory))
        rows /= 2;
    return rows;
}

typedef void (*gemv_entry)(gemv_job);

template <x_form X> static gemv_entry kernel_of(vptq_cuda_loop loop)
{
    switch (loop) {
    case VPTQ_CUDA_MAIN_ALONE:
        return vq_gemv_kernel<X, VPTQ_CUDA_MAIN_ALONE>;
    case VPTQ_CUDA_WITH_BYTES:
        return vq_gemv_kernel<X, VPTQ_CUDA_WITH_BYTES>;
    case VPTQ_CUDA_WITH_WORDS:
        return vq_gemv_kernel<X, VPTQ_CUDA_WITH_WORDS>;
    case VPTQ_CUDA_ANYTHING:
        break;
    }
    return vq_gemv_kernel<X, VPTQ_CUDA_ANYTHING>;
}

static gemv_entry kernel_of(x_form form, vptq_cuda_loop loop)
{
    return form == X_FEW    ? kernel_of<X_FEW>(loop)
           : form == X_SOME ? kernel_of<X_SOME>(loop)
                            : kernel_of<X_MANY>(loop);
}

static vptq_status launch(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                          const gemv_memory *memory, const vptq_gemv_args *g, vptq_err *err)
{
    const vptq_vq_shape *s = &m->q.shape;
    const vptq_cuda_choice *c = &r->choice;
    const x_form form = form_of(memory->rows);
    const size_t n = memory->rows;
    gemv_job j = {};
    VPTQ_CHECK(
        vptq_cuda_product_open(dev, m, r, g, n, form, r->split, r->split > 1, &j.o, err));
    memcpy(j.first, &r->first, sizeof j.first);
    j.stripes = r->stripes;
    j.count = r->count;
    j.rows = c->rows;
    j.memory = *memory;
    const unsigned blocks = vptq_cuda_blocks(s->out, c->rows) * r->split;
    return vptq_cuda_launch_product(dev, kernel_of(form, r->loop), blocks, THREADS,
                                    memory->total, j, err);
}

/* Takes a tile for g->n decoded rows and allocates what their product needs, for fewer rows if
 * memory is short; that changes no result. */
static vptq_status open_tile(vptq_dev *dev, vptq_gemm_args *g, void **tile, vptq_err *err)
{
    enum { LEAST_ROWS = 64 };
    for (;; g->n /= 2) {
        vptq_status st = vptq_cuda_tile(dev, g->n * g->k * sizeof(float), tile, err);
        if (!st)
            st = vptq_cuda_gemm_reserve(dev, g, err);
        if (st != VPTQ_E_NOMEM || g->n <= LEAST_ROWS)
            return st;
        vptq_cuda_tile_close(dev);
    }
}

/* Decodes the matrix in tiles and multiplies each. */
static vptq_status multiply_decoded(vptq_dev *dev, const vptq_matrix *m,
                                    const vptq_gemv_args *g, vptq_err *err)
{
    const size_t limit = (size_t)1 << 22; /* floats in a tile */
    const size_t out = m->q.shape.out, in = m->q.shape.in;
    void *tile = NULL;
    vptq_gemm_args a = {};
    a.m = g->n;
    a.n = out < limit / in ? out : limit / in;
    a.k = a.ldb = in;
    a.lda = g->ldx;
    a.a = g->x;
    a.ldc = g->ldy;
    a.trans_b = true;
    a.alpha = 1;
    a.beta = g->beta;
    vptq_status st = open_tile(dev, &a, &tile, err);
    const size_t step = a.n;
    a.b = static_cast<const float *>(tile);
    for (size_t r = 0; r < out && !st; r += step) {
        a.n = min(step, out - r);
        a.c = g->y + r;
        a.bias = g->bias ? g->bias + r : NULL;
        st = vptq_cuda_vq_dequant(dev, m, r, a.n, static_cast<float *>(tile), in, err);
        if (!st)
            st = vptq_cuda_gemm(dev, &a, err);
    }
    return st;
}

static vptq_status launch_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                               const vptq_gemv_args *g, size_t *rows, vptq_err *err)
{
    gemv_memory memory;
    if (r->choice.kernel == VPTQ_CUDA_GEMV_GRID) {
        *rows = 1;
        return vptq_cuda_vq_grid(dev, m, r, g, err);
    }
    *rows = rows_of_launch(dev, r, g->n, &memory);
    return *rows ? launch(dev, m, r, &memory, g, err) : VPTQ_OK;
}

vptq_status vptq_cuda_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                              vptq_err *err)
{
    const vptq_cuda_runtime *r = NULL;
    if (!g->n)
        return VPTQ_OK;
    if (g->n > VPTQ_CUDA_GEMM_BATCH)
        return multiply_decoded(dev, m, g, err);
    VPTQ_CHECK(vptq_cuda_matrix_runtime(dev, m, &r, err));
    const bool more = g->n >= r->small.from && g->n <= r->small.to;
    vptq_gemv_args left = *g;
    if (!more && g->n > MAX_TOKENS)
        return multiply_decoded(dev, m, g, err);
    while (left.n) {
        size_t rows = 0;
        VPTQ_CHECK(more ? vptq_cuda_vq_gemm(dev, m, r, &left, &rows, err)
                        : launch_gemv(dev, m, r, &left, &rows, err));
        if (!rows)
            return multiply_decoded(dev, m, &left, err);
        left.x += rows * left.ldx;
        left.y += rows * left.ldy;
        left.n -= rows;
    }
    return VPTQ_OK;
}
