/* vq_gemv on the run-time layout of plan_layout.h: codes select rows of a codebook in shared
 * (or global) memory, tensor cores multiply them with x; docs/gpu.md has the picture.  Here is
 * the row, and the kernel for up to 16 rows of x, which stay in registers; for more there is
 * cuda_vq_gemm.cu.  A block: some output rows, its share of the columns of every stripe.
 *
 * A product is a chain of sums in an order that follows from shape, plan and number of rows of
 * x: tiles of a chunk and chunks of a warp in float by the tensor cores, warps in a tree, then
 * passes, stripes and blocks in ascending order. */
#include "lib/backend/cuda/vq_tiles.h"

enum {
    WARPS = VPTQ_CUDA_GEMV_WARPS,
    THREADS = WARPS * (int)PORT_LANES,
    MOST = VPTQ_CUDA_MAX_BATCH /* rows of x */
};

/* Chunks of a warp whose x stays in registers, 16 for each chunk and tile. */
static constexpr VPTQ_HD unsigned held_chunks(x_form form, vptq_cuda_loop loop)
{
    if (form != X_FEW)
        return 1;
    return loop == VPTQ_CUDA_ANYTHING ? 2 : 3;
}

/* Where things lie in the shared memory of a block, behind the tables. */
struct gemv_room {
    uint32_t rows;    /* of x in one launch */
    uint32_t columns; /* whose partial sums are added up at a time, a power of two ... */
    uint32_t times;   /* ... and how many times */
    uint32_t place_at, stage_at, partial_at, sums_at, total;
    bool sums; /* blocks add up stripes or passes */
};

struct gemv_job {
    const vptq_cuda_stripe *stripes;
    uint32_t count;
    product_out o;
    uint32_t rows; /* of a range */
    gemv_room room;
};

/* ---- what a block has summed up ---- */

/* A pass over some chunks of a stripe, in shared memory.  Teams of `size` warps take the pairs
 * of vector rows in turn, the warps of a team every size-th chunk. */
struct pass_place {
    stripe_view stripe;
    uint32_t row0, rows, range, rank; /* of the block */
    uint32_t pair0, end;              /* pairs of vector rows */
    uint32_t rounds;                  /* in each of them every team takes one */
    uint32_t size, log2_size, teams;
    uint32_t chunk0, chunks;
    unsigned arrived; /* for join_parts */
};

static_assert(sizeof(pass_place) <= VPTQ_CUDA_GEMV_PASS, "there is room for a pass");

static __device__ pass_place &place_of(const gemv_job &j)
{
    return *reinterpret_cast<pass_place *>(shared_at(j.room.place_at));
}

static __device__ float *sums_of(const gemv_job &j)
{
    return reinterpret_cast<float *>(shared_at(j.room.sums_at));
}

/* All columns of the block are in the sum. */
static __device__ void hand_over(const gemv_job &j, uint32_t row, uint32_t b, float sum)
{
    if (j.o.split == 1)
        finish(j.o, row, b, sum);
    else
        *part_of(j.o, place_of(j).rank, row, b) = sum;
}

static __device__ void emit(const gemv_job &j, uint32_t row, uint32_t b, float sum)
{
    if (j.room.sums)
        sums_of(j)[(row - place_of(j).row0) * j.o.n + b] += sum;
    else
        hand_over(j, row, b, sum);
}

/* ---- sums over warps ---- */

/* v[i][q]: row lane / 4 (+ 8 for q >= 2) of the fragment, column 8 i + 2 (lane % 4) + q % 2 of
 * B; of x, once its halves are put together. */
template <x_form X>
static __device__ void put_together(const stripe_view &s, bool tail, const tile_sums<X> &d,
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

/* Rows of x [first, first + room.columns) from the fragments of all warps. */
template <x_form X>
static __device__ void put_partial(const gemv_job &j, const float v[tiles_out(X)][4],
                                   uint32_t first, float *partial)
{
    const unsigned g = port_lane() / 4, t = port_lane() % 4;
    const uint32_t end = min(first + j.room.columns, min(j.o.n, rows_of_form(X)));
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

/* Every team's sums of one part of a pair, some rows of x at a time.  There are two buffers and
 * one barrier: what is read here is written again the time after the next. */
template <x_form X>
static __device__ void add_up(const gemv_job &j, uint32_t round, uint32_t part,
                              const tile_sums<X> &d)
{
    const pass_place &p = place_of(j);
    const uint32_t columns = j.room.columns;
    uint32_t times = (round * p.stripe.parts + part) * j.room.times;
    float v[tiles_out(X)][4];
    put_together<X>(p.stripe, part >= p.stripe.main.pieces, d, v);
    for (uint32_t first = 0; first < j.o.n; first += columns) {
        float *partial = reinterpret_cast<float *>(shared_at(j.room.partial_at)) +
                         times++ % 2 * columns * FRAGMENT * (WARPS + 1);
        put_partial<X>(j, v, first, partial);
        __syncthreads();
        for (uint32_t e = threadIdx.x; e < columns * FRAGMENT * WARPS; e += THREADS) {
            const uint32_t warp = e % WARPS, cell = e / WARPS, b = first + cell / FRAGMENT;
            float sum = b < j.o.n ? partial[cell * (WARPS + 1) + warp] : 0;
            for (uint32_t with = p.size / 2; with; with /= 2)
                sum += __shfl_xor_sync(port_all, sum, (int)with);
            const uint32_t pair = p.pair0 + round * p.teams + (warp >> p.log2_size);
            const uint32_t row = output_row(p.stripe, j.o.out, part, pair, cell % FRAGMENT);
            if (!(warp & (p.size - 1)) && b < j.o.n && pair < p.end && row != UINT32_MAX)
                emit(j, row, b, sum);
        }
    }
}

/* ---- a pass over columns ---- */

/* Column lane / 4 of tile i of B is one of x. */
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

static __device__ void place_pass(const gemv_job &j, const vptq_cuda_stripe &s, uint32_t c0,
                                  uint32_t c1)
{
    pass_place &p = place_of(j);
    __syncthreads(); /* all are done with the one before */
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
        p.pair0 = p.row0 / (2 * s.v);
        p.end = p.pair0 + (p.rows + 2 * s.v - 1) / (2 * s.v);
        p.rounds = (p.end - p.pair0 + p.teams - 1) / p.teams;
    }
    __syncthreads();
}

static __device__ uint32_t pair_of_warp(const pass_place &p, uint32_t round)
{
    return p.pair0 + round * p.teams + (port_warp() >> p.log2_size);
}

/* The i-th chunk of a warp, if there is one. */
static __device__ uint32_t chunk_of_warp(const pass_place &p, uint32_t i)
{
    return p.chunk0 + (port_warp() & (p.size - 1)) + i * p.size;
}

static __device__ bool has_chunk(const pass_place &p, uint32_t i)
{
    return chunk_of_warp(p, i) < p.chunk0 + p.chunks;
}

static __device__ unsigned char *stage_of_warp(const gemv_job &j)
{
    return shared_at(j.room.stage_at) + port_warp() * PORT_LANES * VPTQ_CUDA_PIECE;
}

/* Chunks [c0, c1), no more than the warps hold, of all pairs of vector rows of the block. */
template <x_form X, vptq_cuda_loop LOOP>
static __device__ void run_pass(const gemv_job &j, const vptq_cuda_stripe &stripe, uint32_t c0,
                                uint32_t c1)
{
    constexpr unsigned held = held_chunks(X, LOOP);
    const pass_place &p = place_of(j);
    uint32_t x[held][TILES][tiles_in(X)][2] = {};
    place_pass(j, stripe, c0, c1);
#pragma unroll
    for (unsigned i = 0; i < held; i++)
        if (has_chunk(p, i))
            load_x<X>(j, stripe.tile + chunk_of_warp(p, i) * TILES, x[i]);
    chunk_codes codes = {};
    if (has_chunk(p, 0) && pair_of_warp(p, 0) < p.end)
        codes = load_codes<LOOP>(p.stripe, pair_of_warp(p, 0), chunk_of_warp(p, 0));
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
            add_up<X>(j, round, part, d);
        }
}

template <x_form X, vptq_cuda_loop LOOP>
static __device__ void run_passes(const gemv_job &j, const vptq_cuda_stripe &s, uint32_t c0,
                                  uint32_t c1)
{
    constexpr uint32_t most = WARPS * held_chunks(X, LOOP);
    const uint32_t passes = (c1 - c0 + most - 1) / most, each = (c1 - c0 + passes - 1) / passes;
    for (uint32_t c = c0; c < c1; c += each)
        run_pass<X, LOOP>(j, s, c, min(c + each, c1));
}

template <x_form X, vptq_cuda_loop LOOP>
static __device__ void run_stripe(const gemv_job &j, const vptq_cuda_stripe &s)
{
    const uint32_t each = (s.chunks + j.o.split - 1) / j.o.split;
    const uint32_t c0 = place_of(j).rank * each, c1 = min(c0 + each, s.chunks);
    if (c0 >= c1)
        return;
    fill_codebooks(s);
    if (LOOP != VPTQ_CUDA_ANYTHING && s.loop == LOOP)
        run_passes<X, LOOP>(j, s, c0, c1);
    else
        run_passes<X, VPTQ_CUDA_ANYTHING>(j, s, c0, c1);
}

/* LOOP: of the groups.  Blocks: `split` of each range of output
 * rows. */
/* budget: gemv_kernel 128 registers */
template <x_form X, vptq_cuda_loop LOOP>
__global__ static void __launch_bounds__(THREADS) gemv_kernel(gemv_job j)
{
    pass_place &p = place_of(j);
    if (threadIdx.x == 0) {
        p.range = blockIdx.x / j.o.split;
        p.rank = blockIdx.x % j.o.split;
        p.row0 = p.range * j.rows;
        p.rows = min(j.rows, j.o.out - p.row0);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; j.room.sums && i < p.rows * j.o.n; i += THREADS)
        sums_of(j)[i] = 0;
    for (uint32_t i = 0; i < j.count; i++)
        run_stripe<X, LOOP>(j, j.stripes[i]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; j.room.sums && i < p.rows * j.o.n; i += THREADS)
        hand_over(j, p.row0 + i / j.o.n, i % j.o.n, sums_of(j)[i]);
    if (j.o.split > 1)
        join_parts(j.o, {p.row0, p.rows, 0, j.o.n, p.range}, &p.arrived);
}

/* ---- the row ---- */

static uint32_t at_least_power(uint32_t n)
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

/* Chunks that a block takes through its registers at once, of every stripe. */
static uint32_t pass_chunks(const vptq_cuda_runtime *r, uint32_t n)
{
    const x_form form = form_of(n);
    const uint32_t any = held_chunks(form, VPTQ_CUDA_ANYTHING);
    return WARPS * (r->any_loop ? any : held_chunks(form, r->loop));
}

/* Where things lie for n rows of x; false: not all of them fit. */
static bool fit(const vptq_cuda_runtime *r, size_t limit, uint32_t n, gemv_room *room)
{
    const vptq_cuda_choice *c = &r->choice;
    const uint32_t chunks = (r->most_chunks + r->split - 1) / r->split;
    uint32_t at = c->smem.partial_at;
    *room = {};
    room->rows = n;
    room->sums = r->count > 1 || chunks > pass_chunks(r, n);
    room->place_at = at;
    room->stage_at = at += VPTQ_CUDA_GEMV_PASS;
    at += r->staged ? VPTQ_CUDA_GEMV_STAGE : 0;
    room->partial_at = at;
    const size_t sums = room->sums ? (size_t)c->rows * n * sizeof(float) : 0;
    for (uint32_t columns = at_least_power(n); columns; columns /= 2) {
        const size_t partial = 2 * (size_t)columns * FRAGMENT * (WARPS + 1) * sizeof(float);
        if (at + partial + sums > limit)
            continue;
        room->columns = columns;
        room->times = (n + columns - 1) / columns;
        room->sums_at = at + (uint32_t)partial;
        room->total = room->sums_at + (uint32_t)sums;
        return true;
    }
    return false;
}

/* The most rows of x that a launch can have, n at most; 0: there is no kernel for them. */
static uint32_t rows_of_launch(const vptq_dev *dev, const vptq_cuda_runtime *r, size_t n,
                               gemv_room *room)
{
    uint32_t rows = (uint32_t)min(n, (size_t)MOST);
    if (r->choice.kernel == VPTQ_CUDA_GEMM_DEQUANT)
        return 0;
    while (rows && !fit(r, dev->properties.sharedMemPerBlockOptin, rows, room))
        rows /= 2;
    return rows;
}

typedef void (*gemv_entry)(gemv_job);

template <x_form X> static gemv_entry kernel_of(vptq_cuda_loop loop)
{
    switch (loop) {
    case VPTQ_CUDA_MAIN_ALONE:
        return gemv_kernel<X, VPTQ_CUDA_MAIN_ALONE>;
    case VPTQ_CUDA_WITH_BYTES:
        return gemv_kernel<X, VPTQ_CUDA_WITH_BYTES>;
    case VPTQ_CUDA_WITH_WORDS:
        return gemv_kernel<X, VPTQ_CUDA_WITH_WORDS>;
    case VPTQ_CUDA_ANYTHING:
        break;
    }
    return gemv_kernel<X, VPTQ_CUDA_ANYTHING>;
}

static gemv_entry kernel_of(x_form form, vptq_cuda_loop loop)
{
    return form == X_FEW    ? kernel_of<X_FEW>(loop)
           : form == X_SOME ? kernel_of<X_SOME>(loop)
                            : kernel_of<X_MANY>(loop);
}

static vptq_status launch(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                          const gemv_room *room, const vptq_gemv_args *g, vptq_err *err)
{
    const vptq_vq_shape *s = &m->q.shape;
    const vptq_cuda_choice *c = &r->choice;
    const x_form form = form_of(room->rows);
    const size_t n = room->rows;
    gemv_job j = {};
    const vptq_status st =
        vptq_cuda_product_open(dev, m, r, g, n, form, r->split, r->split > 1, &j.o, err);
    if (st)
        return st;
    j.stripes = r->stripes;
    j.count = r->count;
    j.rows = c->rows;
    j.room = *room;
    const unsigned blocks = vptq_cuda_blocks(s->out, c->rows) * r->split;
    const cudaError_t e =
        port_launch(kernel_of(form, r->loop), blocks, THREADS, room->total, dev->stream, j);
    return vptq_cuda_check(e, "vq_gemv", err);
}

/* A tile of *rows decoded rows, of fewer where memory is short, which changes no result. */
static vptq_status open_tile(size_t in, size_t *rows, void **tile, vptq_err *err)
{
    enum { LEAST_ROWS = 64 };
    vptq_status st = vptq_cuda_alloc(*rows * in * sizeof(float), tile, err);
    while (st == VPTQ_E_NOMEM && *rows > LEAST_ROWS) {
        *rows /= 2;
        st = vptq_cuda_alloc(*rows * in * sizeof(float), tile, err);
    }
    return st;
}

/* The matrix goes through a tile of decoded rows. */
static vptq_status multiply_decoded(vptq_dev *dev, const vptq_matrix *m,
                                    const vptq_gemv_args *g, vptq_err *err)
{
    const size_t most = (size_t)1 << 22; /* floats of the tile */
    const size_t out = m->q.shape.out, in = m->q.shape.in;
    size_t step = out < most / in ? out : most / in;
    void *tile = NULL;
    vptq_status st = open_tile(in, &step, &tile, err);
    for (size_t r = 0; r < out && !st; r += step) {
        const size_t rows = out - r < step ? out - r : step;
        vptq_gemm_args a = {};
        st = vptq_cuda_vq_dequant(dev, m, r, rows, static_cast<float *>(tile), in, err);
        a.m = g->n;
        a.n = rows;
        a.k = a.lda = a.ldb = in;
        a.lda = g->ldx;
        a.a = g->x;
        a.b = static_cast<const float *>(tile);
        a.c = g->y + r;
        a.ldc = g->ldy;
        a.trans_b = true;
        a.alpha = 1;
        a.beta = g->beta;
        a.bias = g->bias ? g->bias + r : NULL;
        if (!st)
            st = vptq_cuda_gemm(dev, &a, err);
    }
    (void)cudaStreamSynchronize(dev->stream);
    (void)cudaFree(tile);
    return st;
}

static vptq_status launch_few(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                              const vptq_gemv_args *g, size_t *rows, vptq_err *err)
{
    gemv_room room;
    *rows = rows_of_launch(dev, r, g->n, &room);
    return *rows ? launch(dev, m, r, &room, g, err) : VPTQ_OK;
}

vptq_status vptq_cuda_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                              vptq_err *err)
{
    const vptq_cuda_runtime *r = NULL;
    if (!g->n)
        return VPTQ_OK;
    if (g->n > VPTQ_CUDA_GEMM_BATCH)
        return multiply_decoded(dev, m, g, err);
    vptq_status st = vptq_cuda_matrix_runtime(dev, m, &r, err);
    if (st)
        return st;
    const bool more = g->n >= r->small.from && g->n <= r->small.to;
    vptq_gemv_args left = *g;
    if (!more && g->n > MOST)
        return multiply_decoded(dev, m, g, err);
    while (!st && left.n) {
        size_t rows = 0;
        st = more ? vptq_cuda_vq_gemm(dev, m, r, &left, &rows, err)
                  : launch_few(dev, m, r, &left, &rows, err);
        if (!st && !rows)
            return multiply_decoded(dev, m, &left, err);
        left.x += rows * left.ldx;
        left.y += rows * left.ldy;
        left.n -= rows;
    }
    return st;
}
