/* Internal: inner loops of vq_gemv.cu and vq_gemm.cu: loading codebooks into shared memory,
 * codes, lookups, and products of a chunk of codes with x in registers. */
#ifndef VPTQ_BACKEND_CUDA_VQ_TILES_H
#define VPTQ_BACKEND_CUDA_VQ_TILES_H

#include "lib/backend/cuda/vq_product.h"

enum { TILES = VPTQ_CUDA_CHUNK_TILES };

static constexpr VPTQ_HD unsigned rows_of_form(x_form form)
{
    return form == X_FEW ? 4 : form == X_SOME ? 8 : 16;
}
/* Groups of 8 columns of B, and of the products. */
static constexpr VPTQ_HD unsigned tiles_in(x_form form)
{
    return form == X_FEW ? 1 : 2;
}
static constexpr VPTQ_HD unsigned tiles_out(x_form form)
{
    return form == X_MANY ? 2 : 1;
}

/* ---- codebooks ---- */

static __device__ unsigned char *shared_at(uint32_t byte)
{
    return static_cast<unsigned char *>(port_shared_dynamic()) + byte;
}

/* Writes a row of one part of a centroid to all its places.  The loops are not unrolled: blocks
 * run this code once, and reading it would take longer than its branches. */
template <class ROW>
static __device__ void put_row(const vptq_cuda_table &t, ROW *to, uint32_t rank, ROW row)
{
#pragma unroll 1
    for (uint32_t i = 0; i < t.replicas; i++) /* neighbouring lanes write to different slots */
        to[vptq_cuda_replica_row(&t, rank, i + threadIdx.x)] = row;
#pragma unroll 1
    for (uint32_t c = 0; c < t.copies; c++)
        if (rank < t.copy[c].ranks)
            to[vptq_cuda_row(&t, c, rank)] = row;
}

/* Loads one part of all centroids, in the order of their ranks, from global memory.  Rows are
 * written while others are on their way.  (The copies of neighbouring ranks are in different
 * slots because copies only rotate them.) */
template <class ROW>
static __device__ void fill_part(const vptq_cuda_table &t, ROW *to, const ROW *from)
{
    constexpr unsigned at_once = 64 / sizeof(ROW); /* loads of a thread on their way */
    for (uint32_t first = threadIdx.x; first < t.k; first += at_once * blockDim.x) {
        ROW row[at_once];
#pragma unroll
        for (unsigned i = 0; i < at_once; i++)
            row[i] = __ldg(from + min(first + i * blockDim.x, t.k - 1));
#pragma unroll
        for (unsigned i = 0; i < at_once; i++)
            if (first + i * blockDim.x < t.k)
                put_row(t, to, first + i * blockDim.x, row[i]);
    }
}

/* Loads a codebook to offset `at`: pieces of [from_rows] centroids, then tails. */
static __device__ void fill_table(const vptq_cuda_table &t, uint32_t at, const void *from,
                                  uint32_t from_rows)
{
    if (!t.k || !t.shared)
        return;
    uint4 *piece = reinterpret_cast<uint4 *>(shared_at(at));
    const uint4 *from_piece = static_cast<const uint4 *>(from);
    for (uint32_t p = 0; p < t.pieces; p++)
        fill_part(t, piece + p * (size_t)t.rows, from_piece + p * (size_t)from_rows);
    if (t.tail)
        fill_part(t, reinterpret_cast<uint2 *>(piece + t.pieces * (size_t)t.rows),
                  reinterpret_cast<const uint2 *>(from_piece + t.pieces * (size_t)from_rows));
}

static __device__ inline void prefetch_codebook(const vptq_cuda_codebook &b)
{
    if (b.table.k && b.table.shared)
        prefetch_bytes(b.codebook, (size_t)b.codebook_rows * (b.table.pieces * VPTQ_CUDA_PIECE +
                                                              b.table.tail * VPTQ_CUDA_TAIL));
}

static __device__ inline void fill_codebooks(const vptq_cuda_stripe &s)
{
    prefetch_codebook(s.main);
    prefetch_codebook(s.residual);
    fill_table(s.main.table, s.main.at, s.main.codebook, s.main.codebook_rows);
    fill_table(s.residual.table, s.residual.at, s.residual.codebook, s.residual.codebook_rows);
    __syncthreads();
}

/* ---- views of a stripe ---- */

/* A codebook as the loops read it. */
struct codebook_view {
    const unsigned char *base; /* in shared or global memory */
    uint32_t at;               /* the same as an offset in shared memory */
    uint32_t rows, pieces;     /* rows: of each piece */
    uint32_t stride, slots;    /* row of a code = code * stride + lane % slots */
    bool shared;
};

/* Kept in shared memory because registers hold x: one thread writes it, all read it repeatedly.
 */
struct stripe_view {
    codebook_view main, residual;
    const uint4 *codes, *words; /* 8 codes per lane; words, bytes: of the residual codebook */
    const uint2 *bytes;
    uint32_t chunks, v, parts; /* parts: pieces and tail of a centroid */
    float main_unit, residual_unit;
    bool two; /* has a residual codebook */
};

static __device__ codebook_view view_of(const vptq_cuda_codebook &b, bool bytes)
{
    const vptq_cuda_table &t = b.table;
    codebook_view v;
    v.shared = t.shared;
    v.base = t.shared ? shared_at(b.at) : reinterpret_cast<const unsigned char *>(b.codebook);
    v.at = b.at;
    v.rows = t.shared ? t.rows : b.codebook_rows;
    v.pieces = t.pieces;
    v.stride = v.slots = bytes ? t.replicas : 1;
    return v;
}

static __device__ inline stripe_view view_of(const vptq_cuda_stripe &s)
{
    stripe_view v;
    v.main = view_of(s.main, false);
    v.residual = view_of(s.residual, s.codes8 != NULL);
    v.codes = reinterpret_cast<const uint4 *>(s.codes);
    v.words = reinterpret_cast<const uint4 *>(s.codes16);
    v.bytes = reinterpret_cast<const uint2 *>(s.codes8);
    v.chunks = s.chunks;
    v.v = s.v;
    v.parts = s.main.table.pieces + s.main.table.tail;
    v.main_unit = s.main.unit;
    v.residual_unit = s.residual.unit;
    v.two = s.residual.table.k != 0;
    return v;
}

/* ---- a chunk of codes ---- */

/* A lane's codes for the 8 tiles of a chunk. */
struct chunk_codes {
    uint4 main, residual;
};

template <vptq_cuda_loop LOOP>
static __device__ chunk_codes load_codes(const stripe_view &s, uint32_t pair, uint32_t chunk)
{
    chunk_codes c = {};
    const size_t at = ((size_t)pair * s.chunks + chunk) * PORT_LANES + port_lane();
    c.main = __ldcs(s.codes + at);
    if (LOOP == VPTQ_CUDA_WITH_BYTES || (LOOP == VPTQ_CUDA_ANYTHING && s.bytes)) {
        const uint2 r = __ldcs(s.bytes + at);
        c.residual = make_uint4(r.x, r.y, 0, 0);
    } else if (LOOP == VPTQ_CUDA_WITH_WORDS || (LOOP == VPTQ_CUDA_ANYTHING && s.words)) {
        c.residual = __ldcs(s.words + at);
    }
    return c;
}

static __device__ unsigned word_of(const uint4 &w, unsigned i)
{
    return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}
static __device__ unsigned code16(const uint4 &w, unsigned tile)
{
    return word_of(w, tile / 2) >> tile % 2 * 16 & 0xffff;
}
static __device__ unsigned code8(const uint4 &w, unsigned tile)
{
    return word_of(w, tile / 4) >> tile % 4 * 8 & 0xff;
}

/* Output row of row `row` of a fragment; UINT32_MAX for padding. */
static __device__ inline uint32_t output_row(const stripe_view &s, uint32_t out, uint32_t part,
                                             uint32_t pair, uint32_t row)
{
    const bool tail = part >= s.main.pieces;
    const uint32_t vector_row = tail ? row / 4 : row / 8;
    const uint32_t value = part * 8 + (tail ? row % 4 : row % 8);
    const uint32_t at = (2 * pair + vector_row) * s.v + value;
    return vector_row < 2 && value < s.v && at < out ? at : UINT32_MAX;
}

/* ---- a tile ---- */

/* Sums for two vector rows x 8 columns. For a tail, `main` holds both codebooks. */
template <x_form X> struct tile_sums {
    float main[tiles_out(X)][4], residual[tiles_out(X)][4];
};

template <x_form X>
static __device__ void multiply(float d[tiles_out(X)][4], const uint32_t a[4],
                                const uint32_t x[tiles_in(X)][2])
{
#pragma unroll
    for (unsigned i = 0; i < tiles_in(X); i++)
        port_mma_f16(d[i % tiles_out(X)], a, x[i]);
}

/* Loads the fragment of one piece of every lane's row. */
static __device__ void look_up(const codebook_view &b, uint32_t piece, unsigned row,
                               unsigned char *stage, uint32_t a[4])
{
    const unsigned char *at = b.base + (piece * (size_t)b.rows + row) * VPTQ_CUDA_PIECE;
    if (!b.shared) {
        unsigned char *own = stage + port_lane() * VPTQ_CUDA_PIECE;
        *reinterpret_cast<uint4 *>(own) = __ldg(reinterpret_cast<const uint4 *>(at));
        at = own;
        __syncwarp();
    }
    port_ldmatrix_trans(a, at);
    if (!b.shared)
        __syncwarp(); /* the staging area may be overwritten */
}

/* Loads the fragment of a tail. 4 values of 2 vector rows are half a fragment: row g = lane / 4
 * holds value g % 4 of vector row g / 4. Each lane fetches the values of its 4 columns; low:
 * columns 0..7, high: 8..15. */
static __device__ void look_up_tail(const codebook_view &b, unsigned row, uint32_t *low,
                                    uint32_t *high)
{
    const uint16_t *tails = reinterpret_cast<const uint16_t *>(
        b.base + b.pieces * (size_t)b.rows * VPTQ_CUDA_PIECE);
    const unsigned g = port_lane() / 4, column = port_lane() % 4 * 2;
    uint32_t value[4];
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const unsigned from = i / 2 * 16 + g / 4 * 8 + column + i % 2;
        value[i] = tails[__shfl_sync(port_all, row, (int)from) * 4 + g % 4];
    }
    *low = value[0] | value[1] << 16;
    *high = value[2] | value[3] << 16;
}

/* Multiplies a chunk whose pieces are in shared memory. */
template <x_form X, vptq_cuda_loop LOOP>
static __device__ void multiply_chunk(tile_sums<X> &d, const stripe_view &s, uint32_t part,
                                      const chunk_codes &c,
                                      const uint32_t x[TILES][tiles_in(X)][2])
{
    const uint32_t stride = s.residual.stride, slot = port_lane() & (s.residual.slots - 1);
    const uint32_t main_offset = s.main.at + part * s.main.rows * VPTQ_CUDA_PIECE;
    const uint32_t residual_offset = s.residual.at + part * s.residual.rows * VPTQ_CUDA_PIECE;
#pragma unroll
    for (unsigned tile = 0; tile < TILES; tile++) {
        uint32_t a[4];
        port_ldmatrix_trans(a, shared_at(main_offset + code16(c.main, tile) * VPTQ_CUDA_PIECE));
        multiply<X>(d.main, a, x[tile]);
        if (LOOP == VPTQ_CUDA_WITH_BYTES)
            port_ldmatrix_trans(
                a, shared_at((residual_offset + slot * VPTQ_CUDA_PIECE) +
                             code8(c.residual, tile) * (stride * VPTQ_CUDA_PIECE)));
        if (LOOP == VPTQ_CUDA_WITH_WORDS)
            port_ldmatrix_trans(
                a, shared_at(residual_offset + code16(c.residual, tile) * VPTQ_CUDA_PIECE));
        if (LOOP != VPTQ_CUDA_MAIN_ALONE)
            multiply<X>(d.residual, a, x[tile]);
    }
}

/* The same for any stripe. */
template <x_form X>
static __device__ void multiply_any(tile_sums<X> &d, const stripe_view &s, uint32_t part,
                                    const chunk_codes &c, unsigned char *stage,
                                    const uint32_t x[TILES][tiles_in(X)][2])
{
    const codebook_view main = s.main, residual = s.residual;
    const uint32_t slot = port_lane() & (residual.slots - 1);
    const bool bytes = s.bytes != NULL, two = s.two;
#pragma unroll
    for (unsigned tile = 0; tile < TILES; tile++) {
        const unsigned row = code16(c.main, tile);
        const unsigned residual_row =
            bytes ? code8(c.residual, tile) * residual.stride + slot : code16(c.residual, tile);
        uint32_t a[4] = {};
        if (part >= main.pieces) {
            look_up_tail(main, row, &a[0], &a[2]);
            if (two)
                look_up_tail(residual, residual_row, &a[1], &a[3]);
            multiply<X>(d.main, a, x[tile]);
            continue;
        }
        look_up(main, part, row, stage, a);
        multiply<X>(d.main, a, x[tile]);
        if (!two)
            continue;
        look_up(residual, part, residual_row, stage, a);
        multiply<X>(d.residual, a, x[tile]);
    }
}

#endif
