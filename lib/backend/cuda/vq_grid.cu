/* vq_gemv for one token and codebooks on an int8 grid (lib/base/grid.h): a centroid is a row of
 * 8 bytes in shared memory, x is four digits of a signed byte each, relative to the largest
 * value of a block's columns, and tensor cores multiply bytes with exact sums. The codes are
 * those of plan_layout.h; docs/gpu.md explains the method.
 *
 * A block multiplies some pairs of vector rows by its share of the columns of every segment.
 * Its warps divide the (pair, chunk) items, pairs first, into equal contiguous ranges and add
 * their sums in shared memory, where the order does not matter. */
#include "lib/backend/cuda/vq_tiles.h"

enum {
    WARPS = VPTQ_CUDA_GRID_WARPS,
    THREADS = WARPS * (int)PORT_LANES,
    DIGITS = 4,
    CODEBOOKS = 2, /* main and residual */
    GROUPS = 2,    /* of 8 columns of B: digits 0 and 1, digits 2 and 3 */
    PRODUCTS = 4,  /* of a chunk; product j has values j and j + 4 of the centroids */
    AHEAD = 3,     /* chunks of codes that are on their way */
    TOP = 29,      /* the largest value of x is scaled to 2^TOP..2^(TOP + 1) */
    UNIT = 8,      /* columns that a thread converts at once, as many as a lane multiplies */
    UNITS = VPTQ_CUDA_CHUNK / UNIT /* of a chunk */
};

/* Offsets in shared memory. Sums: [codebooks][digits][stride] whole numbers, for row 8 r + i of
 * vector row r, value i. */
struct grid_memory {
    uint32_t x, sums, results, stride;
};

struct grid_job {
    vptq_cuda_stripe first; /* a copy of stripes[0]; its tables are those of all */
    const vptq_cuda_stripe *stripes;
    uint32_t count;
    uint32_t rows; /* output rows of a cluster */
    grid_memory at;
    const int32_t *channel; /* NULL: the columns are input channels */
    const float *scale, *bias;
    uint32_t in;
    product_out o;
};

/* Products of a segment times `factor`, plus `start`, are the block's results. */
struct grid_scale {
    float factor, start;
};

/* The part of a segment that a block multiplies. */
struct grid_share {
    const uint4 *codes, *words;
    const uint2 *bytes;
    const uint8_t *main, *residual; /* codebooks */
    float main_unit, residual_unit;
    uint32_t chunk0, chunks, all_chunks; /* chunks [chunk0, chunk0 + chunks) of all_chunks */
    uint32_t pair0, pairs;
    uint32_t x_chunk; /* chunk0 among those of all segments */
};

/* ---- codes ---- */

/* The codes of the items of a warp, AHEAD of them on their way. */
struct code_queue {
    chunk_codes codes[AHEAD];
    const uint4 *main; /* of the lane for the next item to ask for */
    const void *residual;
    uint32_t chunk; /* of that item */
    uint32_t left;  /* items that were not asked for */
};

template <vptq_cuda_loop LOOP> static __device__ void skip_chunks(code_queue &q, size_t chunks)
{
    q.main += chunks * PORT_LANES;
    if (LOOP == VPTQ_CUDA_WITH_BYTES)
        q.residual = static_cast<const uint2 *>(q.residual) + chunks * PORT_LANES;
    if (LOOP == VPTQ_CUDA_WITH_WORDS)
        q.residual = static_cast<const uint4 *>(q.residual) + chunks * PORT_LANES;
}

template <vptq_cuda_loop LOOP>
static __device__ code_queue open_queue(const grid_share &s, uint32_t first, uint32_t end)
{
    code_queue q = {};
    const uint32_t pair = s.chunks ? first / s.chunks : 0;
    q.left = s.chunks ? end - first : 0;
    q.chunk = first - pair * s.chunks;
    q.main = s.codes + port_lane();
    q.residual = LOOP == VPTQ_CUDA_WITH_BYTES
                     ? static_cast<const void *>(s.bytes + port_lane())
                     : static_cast<const void *>(s.words + port_lane());
    skip_chunks<LOOP>(q, (size_t)(s.pair0 + pair) * s.all_chunks + s.chunk0 + q.chunk);
    return q;
}

template <vptq_cuda_loop LOOP>
static __device__ void ask(code_queue &q, const grid_share &s, unsigned slot)
{
    if (!q.left)
        return;
    q.codes[slot].main = __ldcs(q.main);
    if (LOOP == VPTQ_CUDA_WITH_BYTES) {
        const uint2 r = __ldcs(static_cast<const uint2 *>(q.residual));
        q.codes[slot].residual = make_uint4(r.x, r.y, 0, 0);
    }
    if (LOOP == VPTQ_CUDA_WITH_WORDS)
        q.codes[slot].residual = __ldcs(static_cast<const uint4 *>(q.residual));
    q.left--;
    skip_chunks<LOOP>(q, 1);
    if (++q.chunk < s.chunks)
        return;
    q.chunk = 0;
    skip_chunks<LOOP>(q, s.all_chunks - s.chunks);
}

/* ---- products ---- */

struct grid_sums {
    int32_t d[PRODUCTS][GROUPS][4];
};

/* Byte j of w[0..3] becomes word j. */
static __device__ void transpose(const uint32_t w[4], uint32_t to[4])
{
    const uint32_t a = port_permute(w[0], w[1], 0x5140), b = port_permute(w[2], w[3], 0x5140);
    const uint32_t c = port_permute(w[0], w[1], 0x7362), d = port_permute(w[2], w[3], 0x7362);
    to[0] = port_permute(a, b, 0x5410);
    to[1] = port_permute(a, b, 0x7632);
    to[2] = port_permute(c, d, 0x5410);
    to[3] = port_permute(c, d, 0x7632);
}

/* Multiplies the centroids in `rows`, one for each tile. Lane 4 g + t has vector row g / 2 % 2
 * of the pair and column 16 i + 4 c + t of the chunk in tile i, where c = g / 4 * 2 + g % 2. As
 * rows of A, g and g + 8 are values j and j + 4 of that vector row and those columns; columns c
 * and c + 4 of B are two digits of the same columns. The products of other columns are ignored.
 */
static __device__ void multiply_rows(grid_sums &sums, const uint2 rows[TILES],
                                     const uint32_t x[GROUPS][2])
{
    uint32_t a[4][PRODUCTS];
#pragma unroll
    for (unsigned quad = 0; quad < 2; quad++) {
        uint32_t low[4], high[4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            low[i] = rows[4 * quad + i].x;
            high[i] = rows[4 * quad + i].y;
        }
        transpose(low, a[2 * quad]);
        transpose(high, a[2 * quad + 1]);
    }
#pragma unroll
    for (unsigned j = 0; j < PRODUCTS; j++) {
        const uint32_t of_product[4] = {a[0][j], a[1][j], a[2][j], a[3][j]};
#pragma unroll
        for (unsigned n = 0; n < GROUPS; n++)
            port_mma_s8(sums.d[j][n], of_product, x[n]);
    }
}

/* The main codebook is at the beginning of shared memory (plan_smem.h): that saves an addition
 * for each of its rows. */
template <vptq_cuda_loop LOOP>
static __device__ void multiply_chunk(const grid_job &j, const chunk_codes &c, uint32_t chunk,
                                      grid_sums sums[CODEBOOKS])
{
    const uint2 *fragments =
        reinterpret_cast<const uint2 *>(shared_at(j.at.x)) + chunk * GROUPS * PORT_LANES;
    const uint2 x0 = fragments[port_lane()], x1 = fragments[PORT_LANES + port_lane()];
    const uint32_t x[GROUPS][2] = {{x0.x, x0.y}, {x1.x, x1.y}};
    const vptq_cuda_table &residual = j.first.residual.table;
    uint2 rows[TILES];
#pragma unroll
    for (unsigned i = 0; i < TILES; i++)
        rows[i] =
            *reinterpret_cast<const uint2 *>(shared_at(code16(c.main, i) * VPTQ_CUDA_TAIL));
    multiply_rows(sums[0], rows, x);
    if (LOOP == VPTQ_CUDA_MAIN_ALONE)
        return;
    const uint32_t stride = residual.replicas * VPTQ_CUDA_TAIL;
    uint32_t more = j.first.residual.at;
    if (LOOP == VPTQ_CUDA_WITH_BYTES)
        more += (port_lane() & (residual.replicas - 1)) * VPTQ_CUDA_TAIL;
#pragma unroll
    for (unsigned i = 0; i < TILES; i++) {
        const uint32_t at =
            LOOP == VPTQ_CUDA_WITH_BYTES
                ? port_permute(word_of(c.residual, i / 4), 0, 0x4440 + i % 4) * stride
                : code16(c.residual, i) * VPTQ_CUDA_TAIL;
        rows[i] = *reinterpret_cast<const uint2 *>(shared_at(more + at));
    }
    multiply_rows(sums[1], rows, x);
}

/* Adds the sums of a warp to those of the block and clears them. A lane has useful sums of its
 * own c if t % 2 = g / 4; they are added over c by lanes 17 and 4 apart, which keep half of the
 * values each time. */
static __device__ void flush(const grid_job &j, uint32_t pair, unsigned codebook,
                             grid_sums &sums)
{
    const unsigned lane = port_lane(), g = lane / 4, t = lane % 4;
    int32_t half[PRODUCTS * GROUPS], quarter[PRODUCTS * GROUPS / 2];
    const bool upper = g / 4, odd = g % 2;
#pragma unroll
    for (unsigned e = 0; e < PRODUCTS * GROUPS; e++) {
        const int32_t *d = sums.d[e / GROUPS][e % GROUPS];
        const int32_t low = odd ? d[1] : d[0], high = odd ? d[3] : d[2];
        half[e] = upper ? high : low;
        half[e] += __shfl_xor_sync(port_all, upper ? low : high, 17);
    }
#pragma unroll
    for (unsigned e = 0; e < PRODUCTS * GROUPS / 2; e++) {
        quarter[e] = odd ? half[e + 4] : half[e];
        quarter[e] += __shfl_xor_sync(port_all, odd ? half[e] : half[e + 4], 4);
    }
    sums = {};
    if (t % 2 != g / 4)
        return;
    int *to = reinterpret_cast<int *>(shared_at(j.at.sums)) +
              (codebook * DIGITS + t / 2) * j.at.stride + (2 * pair + g / 2 % 2) * 8 +
              (upper ? 4 : 0) + (odd ? 2 : 0);
#pragma unroll
    for (unsigned e = 0; e < PRODUCTS * GROUPS / 2; e++)
        atomicAdd(to + e % GROUPS * 2 * j.at.stride + e / GROUPS, quarter[e]);
}

template <vptq_cuda_loop LOOP>
static __device__ void flush_all(const grid_job &j, uint32_t pair, grid_sums sums[CODEBOOKS])
{
    flush(j, pair, 0, sums[0]);
    if (LOOP != VPTQ_CUDA_MAIN_ALONE)
        flush(j, pair, 1, sums[1]);
}

static __device__ grid_share share_of(const grid_job &j, const vptq_cuda_stripe &s,
                                      uint32_t row0, uint32_t rows)
{
    const uint32_t each = (s.chunks + j.o.split - 1) / j.o.split, rank = blockIdx.x % j.o.split;
    grid_share g;
    g.codes = reinterpret_cast<const uint4 *>(s.codes);
    g.words = reinterpret_cast<const uint4 *>(s.codes16);
    g.bytes = reinterpret_cast<const uint2 *>(s.codes8);
    g.main = s.main.bytes;
    g.residual = s.residual.bytes;
    g.main_unit = s.main.bytes_unit;
    g.residual_unit = s.residual.bytes_unit;
    g.all_chunks = s.chunks;
    g.chunk0 = min(rank * each, s.chunks);
    g.chunks = min(each, s.chunks - g.chunk0);
    g.pair0 = row0 / (2 * s.v);
    g.pairs = (rows + 2 * s.v - 1) / (2 * s.v);
    g.x_chunk = s.tile / TILES + g.chunk0;
    return g;
}

/* ---- x ---- */

/* Place of digit d of a unit of columns: fragments [chunks][GROUPS][lanes] of B. */
static __device__ uint2 *digits_at(const grid_job &j, uint32_t unit, unsigned d)
{
    uint2 *x = reinterpret_cast<uint2 *>(shared_at(j.at.x));
    return x + unit / UNITS * (GROUPS * PORT_LANES) + d / 2 * PORT_LANES + d % 2 * UNITS +
           unit % UNITS;
}

/* Loads the values of a unit into the place of its digits. Returns the bits of the largest
 * absolute value and adds the products with the bias to *sum. */
static __device__ unsigned load_unit(const grid_job &j, uint32_t first_chunk, uint32_t unit,
                                     double *sum)
{
    unsigned bits[UNIT], largest = 0;
#pragma unroll
    for (unsigned k = 0; k < UNIT; k++) {
        const uint32_t column =
            (first_chunk + unit / UNITS) * VPTQ_CUDA_CHUNK + k * VPTQ_CUDA_TILE + unit % UNITS;
        const int32_t c = j.channel ? j.channel[column] : (int32_t)column;
        const bool used = c >= 0 && (uint32_t)c < j.in;
        float x = used ? j.o.g.x[c] : 0;
        if (used && j.bias)
            *sum += (double)x * (double)j.bias[c];
        if (used && j.scale)
            x *= j.scale[c];
        bits[k] = __float_as_uint(x);
        largest = max(largest, __float_as_uint(fabsf(x)));
    }
#pragma unroll
    for (unsigned d = 0; d < DIGITS; d++)
        *digits_at(j, unit, d) = make_uint2(bits[2 * d], bits[2 * d + 1]);
    return largest;
}

/* The bytes d of four values. */
static __device__ uint32_t bytes_of(const uint32_t value[4], unsigned d)
{
    const uint32_t pick = d | (d + 4) << 4;
    return port_permute(port_permute(value[0], value[1], pick),
                        port_permute(value[2], value[3], pick), 0x5410);
}

static __device__ void convert_unit(const grid_job &j, uint32_t unit, float up)
{
    uint32_t value[UNIT];
#pragma unroll
    for (unsigned d = 0; d < DIGITS; d++) {
        const uint2 two = *digits_at(j, unit, d);
        value[2 * d] = (uint32_t)__float2int_rn(__uint_as_float(two.x) * up);
        value[2 * d + 1] = (uint32_t)__float2int_rn(__uint_as_float(two.y) * up);
    }
#pragma unroll
    for (unsigned k = 0; k < UNIT; k++) /* signed digits: carries of 128 and more go up */
        value[k] = (value[k] + 0x00808080u) ^ 0x00808080u;
#pragma unroll
    for (unsigned d = 0; d < DIGITS; d++)
        *digits_at(j, unit, d) = make_uint2(bytes_of(value, d), bytes_of(value + 4, d));
}

/* Converts the block's share of x. A thread converts what it has loaded itself. */
static __device__ grid_scale convert_x(const grid_job &j, uint32_t chunk, uint32_t chunks)
{
    unsigned largest = 0;
    double sum = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < chunks * UNITS; i += THREADS)
        largest = max(largest, load_unit(j, chunk, i, &sum));
    largest = port_block_max(largest);
    if (j.bias)
        sum = port_block_sum(sum);
    const float up = vptq_cuda_to_top(largest, TOP);
    for (uint32_t i = threadIdx.x; i < chunks * UNITS; i += THREADS)
        convert_unit(j, i, up);
    /* digits cannot express infinity and NaN */
    const float factor = largest < 0x7f800000u ? 1 / up : __uint_as_float(0x7fc00000u);
    return {factor, (float)sum};
}

/* ---- a segment ---- */

/* Asks for all that is read once before the products, so that only the first of these reads
 * waits for memory. */
template <vptq_cuda_loop LOOP>
static __device__ void prefetch_share(const grid_job &j, const grid_share &s)
{
    const uint32_t column = s.x_chunk * VPTQ_CUDA_CHUNK, columns = s.chunks * VPTQ_CUDA_CHUNK;
    prefetch_bytes(s.main, j.first.main.table.k * VPTQ_CUDA_TAIL);
    if (LOOP != VPTQ_CUDA_MAIN_ALONE)
        prefetch_bytes(s.residual, j.first.residual.table.k * VPTQ_CUDA_TAIL);
    if (j.channel) {
        prefetch_bytes(j.channel + column, columns * (uint32_t)sizeof *j.channel);
        return; /* its columns are anywhere */
    }
    const uint32_t end = min(column + columns, j.in); /* a block may have no columns */
    const uint32_t bytes = (end > column ? end - column : 0) * (uint32_t)sizeof(float);
    prefetch_bytes(j.o.g.x + column, bytes);
    if (j.scale)
        prefetch_bytes(j.scale + column, bytes);
    if (j.bias)
        prefetch_bytes(j.bias + column, bytes);
}

/* Multiplies the items of a warp, whose first AHEAD are on their way. */
template <vptq_cuda_loop LOOP>
static __device__ void run_items(const grid_job &j, const grid_share &s, code_queue &q,
                                 uint32_t first, uint32_t end)
{
    grid_sums sums[CODEBOOKS] = {};
    uint32_t pair = first / s.chunks, chunk = first % s.chunks;
    for (uint32_t item = first; item < end;) {
#pragma unroll
        for (unsigned slot = 0; slot < AHEAD; slot++) {
            if (item >= end)
                break;
            const chunk_codes now = q.codes[slot];
            ask<LOOP>(q, s, slot);
            multiply_chunk<LOOP>(j, now, chunk, sums);
            item++;
            if (++chunk < s.chunks && item < end)
                continue;
            flush_all<LOOP>(j, pair, sums);
            chunk = 0;
            pair++;
        }
    }
}

template <vptq_cuda_loop LOOP>
static __device__ grid_scale run_segment(const grid_job &j, const grid_share &s)
{
    constexpr uint32_t codebooks = LOOP == VPTQ_CUDA_MAIN_ALONE ? 1 : CODEBOOKS;
    const uint32_t items = s.pairs * s.chunks;
    const uint32_t first = items * port_warp() / WARPS, end = items * (port_warp() + 1) / WARPS;
    prefetch_share<LOOP>(j, s);
    code_queue q = open_queue<LOOP>(s, first, end);
#pragma unroll
    for (unsigned slot = 0; slot < AHEAD; slot++)
        ask<LOOP>(q, s, slot);
    fill_table(j.first.main.table, j.first.main.at, s.main, 0);
    if (LOOP != VPTQ_CUDA_MAIN_ALONE)
        fill_table(j.first.residual.table, j.first.residual.at, s.residual, 0);
    int *sums = reinterpret_cast<int *>(shared_at(j.at.sums));
    for (uint32_t i = threadIdx.x; i < codebooks * DIGITS * j.at.stride; i += THREADS)
        sums[i] = 0;
    port_grid_wait();
    const grid_scale scale = convert_x(j, s.x_chunk, s.chunks);
    __syncthreads();
    if (s.chunks)
        run_items<LOOP>(j, s, q, first, end);
    __syncthreads();
    return scale;
}

/* The whole number in a row of the sums, rounded once. */
static __device__ float whole(const grid_job &j, uint32_t codebook, uint32_t at)
{
    const int *sums = reinterpret_cast<const int *>(shared_at(j.at.sums));
    long long sum = 0;
#pragma unroll
    for (unsigned d = 0; d < DIGITS; d++)
        sum += (long long)sums[(codebook * DIGITS + d) * j.at.stride + at] * (1LL << 8 * d);
    return (float)sum;
}

/* Adds the sums of segment i to the results of the block; those of the last one are final. */
template <vptq_cuda_loop LOOP>
static __device__ void add_results(const grid_job &j, uint32_t i, const grid_share &s,
                                   grid_scale scale, uint32_t row0, uint32_t rows)
{
    float *results = reinterpret_cast<float *>(shared_at(j.at.results));
    for (uint32_t r = threadIdx.x; r < rows; r += THREADS) {
        const uint32_t at = r / j.first.v * 8 + r % j.first.v;
        float sum = whole(j, 0, at) * s.main_unit;
        if (LOOP != VPTQ_CUDA_MAIN_ALONE)
            sum += whole(j, 1, at) * s.residual_unit;
        sum = sum * scale.factor + scale.start;
        if (i)
            sum += results[r];
        if (i + 1 < j.count)
            results[r] = sum;
        else if (j.o.split == 1)
            finish(j.o, row0 + r, 0, sum);
        else
            *part_of(j.o, blockIdx.x % j.o.split, row0 + r, 0) = sum;
    }
    __syncthreads(); /* the next segment clears the sums */
}

/* `split` consecutive blocks share a range of output rows. */
/* budget: vq_grid_kernel 168 registers, 512 bytes of static shared memory */
template <vptq_cuda_loop LOOP>
__global__ static void __launch_bounds__(THREADS) vq_grid_kernel(const grid_job j)
{
    const uint32_t range = blockIdx.x / j.o.split, row0 = range * j.rows;
    port_grid_release();
    const uint32_t rows = min(j.rows, j.o.out - row0);
    grid_share s = share_of(j, j.first, row0, rows);
    for (uint32_t i = 0; i < j.count; i++) {
        if (i)
            s = share_of(j, j.stripes[i], row0, rows);
        const grid_scale scale = run_segment<LOOP>(j, s);
        add_results<LOOP>(j, i, s, scale, row0, rows);
    }
    if (j.o.split > 1)
        join_parts(j.o, {row0, rows, 0, 1, range},
                   reinterpret_cast<unsigned *>(shared_at(j.at.sums)));
}

/* ---- launches ---- */

typedef void (*grid_entry)(grid_job);

static grid_entry kernel_of(const vptq_cuda_stripe *s)
{
    return s->codes8    ? vq_grid_kernel<VPTQ_CUDA_WITH_BYTES>
           : s->codes16 ? vq_grid_kernel<VPTQ_CUDA_WITH_WORDS>
                        : vq_grid_kernel<VPTQ_CUDA_MAIN_ALONE>;
}

vptq_status vptq_cuda_vq_grid(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                              const vptq_gemv_args *g, vptq_err *err)
{
    const vptq_cuda_choice *c = &r->choice;
    const uint32_t out = m->q.shape.out;
    grid_job j = {};
    void *parts = NULL;
    if (r->split > 1)
        VPTQ_CHECK(vptq_cuda_scratch(dev, r->split * (size_t)out * sizeof(float), &parts, err));
    j.o = {{}, *g, 1, out, r->split, static_cast<float *>(parts), r->arrived};
    j.channel = r->count == 1 && !m->q.perm ? NULL : r->channel;
    j.scale = r->scale;
    j.bias = r->bias;
    j.in = m->q.shape.in;
    const vptq_cuda_grid_memory at = vptq_cuda_grid_memory_of(
        &m->q.shape, vptq_cuda_blocks(r->max_chunks, r->split), c->pairs);
    j.first = r->first;
    j.stripes = r->stripes;
    j.count = r->count;
    j.rows = c->rows;
    j.at = {c->smem.partial_offset + at.x, c->smem.partial_offset + at.sums,
            c->smem.partial_offset + at.results, at.stride};
    const unsigned blocks = vptq_cuda_blocks(out, c->rows) * r->split;
    return vptq_cuda_launch_product(dev, kernel_of(&r->first), blocks, THREADS,
                                    c->smem.total - VPTQ_CUDA_GRID_OBJECTS, j, err);
}
