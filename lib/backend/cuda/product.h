/* Internal: products of split operands on tensor cores, C = A B^T. For .cu files only.
 *
 * A block computes a tile of C. Runs of 64 along k pass through shared memory, two buffers in
 * turn. Within a run every step of 16 adds
 *
 *     lo hi^T, hi lo^T, hi hi^T       (lo lo^T, at most 2^-22 of a product, is left out)
 *
 * in the float sums of the tensor cores, which start from zero and whose rounding is coarser
 * than to nearest; the caller's fold() adds the sums of the run to its own in a better way.
 * docs/numerics.md derives the error.
 *
 * Rows in shared memory are 128 bytes, 8 pieces; piece p of row r is at position p ^ r % 8, so
 * that the 8 rows of an ldmatrix are in different banks. */
#ifndef VPTQ_BACKEND_CUDA_PRODUCT_H
#define VPTQ_BACKEND_CUDA_PRODUCT_H

#include "lib/backend/cuda/split.h"

enum {
    PRODUCT_PIECE = 16,                                               /* bytes */
    PRODUCT_PIECES = SPLIT_RUN * (int)sizeof(__half) / PRODUCT_PIECE, /* of a row */
    PRODUCT_ROW = PRODUCT_PIECE * PRODUCT_PIECES,                     /* bytes */
    PRODUCT_WARP_ROWS = 32,
};

/* Warps next to each other in a tile, and groups of 8 columns per warp. B_LO: operand B has lo;
 * A always has. */
template <unsigned WARP_ROWS, unsigned WARP_COLUMNS, unsigned GROUPS, bool B_LO>
struct product_shape {
    static constexpr unsigned rows = PRODUCT_WARP_ROWS * WARP_ROWS;
    static constexpr unsigned groups = GROUPS, warp_columns = 8 * GROUPS;
    static constexpr unsigned columns = warp_columns * WARP_COLUMNS;
    static constexpr unsigned warps_across = WARP_COLUMNS;
    static constexpr unsigned threads = PORT_LANES * WARP_ROWS * WARP_COLUMNS;
    static constexpr bool b_lo = B_LO;
    /* Offsets within a buffer. */
    static constexpr unsigned a_lo = rows * PRODUCT_ROW, b_hi = 2 * a_lo;
    static constexpr unsigned b_low = b_hi + columns * PRODUCT_ROW;
    static constexpr unsigned buffer = b_low + (B_LO ? columns * PRODUCT_ROW : 0);
    static constexpr unsigned shared = 2 * buffer; /* bytes of dynamic shared memory */
};

/* The sums of a thread: float part[2][groups][4], laid out as port_mma_f16 says, for 16 rows
 * and 8 columns each. */
template <class S> using product_sums = float[2][S::groups][4];

/* sum += part, element by element. */
template <class S>
static __device__ inline void product_add(product_sums<S> &sum, const product_sums<S> &part)
{
#pragma unroll
    for (unsigned r = 0; r < 2; r++)
#pragma unroll
        for (unsigned c = 0; c < S::groups; c++)
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                sum[r][c][i] += part[r][c][i];
}

/* First row and column of C of this thread's warp. */
template <class S> static __device__ inline size_t product_row(size_t i0)
{
    return i0 + port_warp() / S::warps_across * PRODUCT_WARP_ROWS;
}
template <class S> static __device__ inline size_t product_column(size_t j0)
{
    return j0 + port_warp() % S::warps_across * S::warp_columns;
}

/* Calls f(i, j, part[..]) for every pair of neighbours (i, j), (i, j + 1) of C that the thread
 * holds, inside the matrix or not. */
template <class S, class F>
static __device__ inline void product_each(size_t i0, size_t j0, F f)
{
    const unsigned g = port_lane() / 4, t = port_lane() % 4;
#pragma unroll
    for (unsigned r = 0; r < 2; r++)
#pragma unroll
        for (unsigned c = 0; c < S::groups; c++)
#pragma unroll
            for (unsigned half = 0; half < 2; half++)
                f(product_row<S>(i0) + 16 * r + 8 * half + g,
                  product_column<S>(j0) + 8 * c + 2 * t, r, c, 2 * half);
}

/* Starts copies of a run of ROWS rows from l0 on. Rows after the last one repeat it. */
template <unsigned ROWS, unsigned THREADS, bool LO>
static __device__ inline void product_load(unsigned char *hi, unsigned char *lo,
                                           const split_rows &o, size_t first, size_t l0)
{
    const unsigned piece = threadIdx.x % PRODUCT_PIECES, r0 = threadIdx.x / PRODUCT_PIECES;
    const unsigned to = r0 * PRODUCT_ROW + (piece ^ r0 % 8) * PRODUCT_PIECE;
    const size_t column = l0 + piece * (PRODUCT_PIECE / sizeof(__half));
    constexpr unsigned STEP = THREADS / PRODUCT_PIECES; /* a multiple of 8 */
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "a thread keeps its position in a row");
#pragma unroll
    for (unsigned r = 0; r < ROWS; r += STEP) {
        const size_t at = min(first + r0 + r, o.rows - 1) * o.stride + column;
        port_copy_async(hi + to + r * PRODUCT_ROW, o.hi + at);
        if (LO)
            port_copy_async(lo + to + r * PRODUCT_ROW, o.lo + at);
    }
}

/* part += the products of the run in `buffer`. */
template <class S>
static __device__ inline void product_run(product_sums<S> part, const unsigned char *buffer)
{
    const unsigned lane = port_lane();
    const unsigned row_a = port_warp() / S::warps_across * PRODUCT_WARP_ROWS + lane % 16;
    const unsigned row_b =
        port_warp() % S::warps_across * S::warp_columns + lane / 16 * 8 + lane % 8;
    const unsigned char *a = buffer + row_a * PRODUCT_ROW;
    const unsigned char *b = buffer + S::b_hi + row_b * PRODUCT_ROW;
#pragma unroll
    for (unsigned step = 0; step < SPLIT_RUN / 16; step++) {
        const unsigned at_a = ((2 * step + lane / 16) ^ lane % 8) * PRODUCT_PIECE;
        const unsigned at_b = ((2 * step + lane / 8 % 2) ^ lane % 8) * PRODUCT_PIECE;
        uint32_t a_hi[2][4], a_lo[2][4];
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
            port_ldmatrix(a_hi[r], a + r * 16 * PRODUCT_ROW + at_a);
            port_ldmatrix(a_lo[r], a + S::a_lo + r * 16 * PRODUCT_ROW + at_a);
        }
#pragma unroll
        for (unsigned c = 0; c < S::groups; c += 2) {
            uint32_t b_hi[4], b_lo[4];
            port_ldmatrix(b_hi, b + c * 8 * PRODUCT_ROW + at_b);
            if (S::b_lo)
                port_ldmatrix(b_lo, b + S::b_low - S::b_hi + c * 8 * PRODUCT_ROW + at_b);
#pragma unroll
            for (unsigned r = 0; r < 2; r++)
#pragma unroll
                for (unsigned i = 0; i < 2; i++) {
                    port_mma_f16(part[r][c + i], a_lo[r], b_hi + 2 * i);
                    if (S::b_lo)
                        port_mma_f16(part[r][c + i], a_hi[r], b_lo + 2 * i);
                    port_mma_f16(part[r][c + i], a_hi[r], b_hi + 2 * i);
                }
        }
    }
}

/* Multiplies rows [i0, i0 + S::rows) of A and [j0, ..) of B; calls fold(part, l), where l is
 * the number of elements multiplied so far, after every run. */
template <class S, class F>
static __device__ inline void product(const split_rows &a, const split_rows &b, size_t k,
                                      size_t i0, size_t j0, F fold)
{
    unsigned char *shared = static_cast<unsigned char *>(port_shared_dynamic());
    const bool used = product_row<S>(i0) < a.rows && product_column<S>(j0) < b.rows;
    const auto load = [&](size_t l, unsigned at) {
        unsigned char *to = shared + at;
        product_load<S::rows, S::threads, true>(to, to + S::a_lo, a, i0, l);
        product_load<S::columns, S::threads, S::b_lo>(to + S::b_hi, to + S::b_low, b, j0, l);
        port_copy_commit();
    };
    unsigned at = 0;
    if (k)
        load(0, at);
    for (size_t l = 0; l < k; l += SPLIT_RUN) {
        port_copy_wait<0>();
        __syncthreads(); /* the run is there, and the other buffer has been read */
        if (l + SPLIT_RUN < k)
            load(l + SPLIT_RUN, S::buffer - at);
        if (used) {
            float part[2][S::groups][4] = {};
            product_run<S>(part, shared + at);
            fold(part, l + SPLIT_RUN);
        }
        at = S::buffer - at;
    }
}

#endif
