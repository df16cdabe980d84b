/* The kernels of grid.h for one level of lib/base/simd.h. */
#define SIMD_MAX_LANES 8
#include "lib/base/simd.h"

#include "lib/backend/cpu/grid.h"

enum {
    ROWS = VPTQ_BLOCK_VECTOR_ROWS,
    LOOKUPS = VPTQ_GRID_LOOKUPS,
    HALF = VPTQ_GRID_HALF,
    RECORD = ROWS * LOOKUPS /* codes */
};

/* The part of a block that one loop computes: lanes from e on of vector rows [vector_row,
 * vector_row + vector_rows), for tokens [row, row + n).  All but e, vector_row and row are
 * constants at the call. */
typedef struct part {
    size_t e, vector_row, vector_rows, row, n;
    bool residual, code_scale;
} part;

/* Address of the sum of a token and a vector row, from lane e on. */
SIMD_INLINE float *sum_of(const vptq_grid_block *b, const part *p, size_t vector_row,
                          size_t row)
{
    return b->sum + (p->row + row) * b->ld_sum + (p->vector_row + vector_row) * b->lanes + p->e;
}

/* ---- float ---- */

enum { MAX_SUMS = 8 /* sums that fit into registers with everything else */ };

/* The element of x for a look-up of a record. */
SIMD_INLINE size_t column_of(size_t lookup, const part *p)
{
    return p->residual ? lookup % HALF : lookup;
}

/* Two look-ups of each vector row, whose codes are loaded at once: a load for each would
 * compete with the tables for the load ports. */
SIMD_INLINE void add_two(const vptq_grid_block *b, const part *p, const uint16_t *codes,
                         const int8_t *table, const float *x, size_t lookup, vf *sum)
{
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++) {
        uint32_t two;
        memcpy(&two, codes + s * LOOKUPS + lookup, sizeof two);
        size_t code[2] = {two & UINT16_MAX, two >> 16};
#pragma GCC unroll 2
        for (size_t i = 0; i < 2; i++) {
            if (p->code_scale)
                code[i] *= b->code_scale;
            const vf value = vf_load_i8(table + LOOKUPS * code[i]);
#pragma GCC unroll 4
            for (size_t r = 0; r < p->n; r++) {
                vf *to = sum + (s * p->n + r) * 2 + lookup / HALF;
                *to = vf_fma(vf_set1(x[r * b->ldx + column_of(lookup + i, p)]), value, *to);
            }
        }
    }
}

SIMD_INLINE void add_records(const vptq_grid_block *b, const part *p)
{
    const size_t columns = p->residual ? HALF : LOOKUPS;
    const uint16_t *codes = b->codes + p->vector_row * LOOKUPS;
    const int8_t *table = b->table + p->e;
    const float *x = b->x + p->row * b->ldx;
    vf sum[MAX_SUMS]; /* [vector rows, n, 2] */
#pragma GCC unroll 8
    for (size_t l = 0; l < p->vector_rows * p->n * 2; l++)
        sum[l] = vf_set1(0);
    for (size_t j = 0; j < b->records; j++, codes += RECORD, x += columns) {
        __builtin_prefetch((const uint8_t *)codes + VPTQ_CODES_AHEAD);
#pragma GCC unroll 4
        for (size_t l = 0; l < LOOKUPS; l += 2)
            add_two(b, p, codes, table, x, l, sum);
    }
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++)
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++) {
            float *to = sum_of(b, p, s, r);
            const vf *two = sum + (s * p->n + r) * 2;
            const vf both =
                vf_fma(vf_set1(b->scale[0]), two[0], vf_mul(vf_set1(b->scale[1]), two[1]));
            vf_store(to, vf_add(vf_load(to), both));
        }
}

/* All vector rows of the block for n tokens, as many at a time as registers allow. */
SIMD_INLINE void add_rows(const vptq_grid_block *b, part p, size_t n)
{
    p.n = n;
    p.vector_rows = ROWS / n;
    for (p.vector_row = 0; p.vector_row < ROWS; p.vector_row += p.vector_rows)
        add_records(b, &p);
}

SIMD_INLINE void add_lanes(const vptq_grid_block *b, bool residual, bool code_scale)
{
    part p = {.residual = residual, .code_scale = code_scale};
    for (p.e = 0; p.e < b->lanes; p.e += SIMD_LANES)
        for (p.row = 0; p.row < b->n; p.row += p.n) {
            const size_t left = b->n - p.row;
            p.n = left >= 4 ? 4 : left >= 2 ? 2 : 1;
            if (left >= 4)
                add_rows(b, p, 4);
            else if (left >= 2)
                add_rows(b, p, 2);
            else
                add_rows(b, p, 1);
        }
}

static void block(const vptq_grid_block *b)
{
    if (b->residual && b->code_scale != 1)
        add_lanes(b, true, true);
    else if (b->residual)
        add_lanes(b, true, false);
    else if (b->code_scale != 1)
        add_lanes(b, false, true);
    else
        add_lanes(b, false, false);
}

#if VPTQ_SIMD_LEVEL == 2

/* ---- digits ---- */

#define WITH_DIGITS __attribute__((target("avx512vnni,avx512vbmi")))

enum {
    DIGITS = VPTQ_GRID_DIGITS,
    MAX_DIGIT_SUMS = 24 /* registers */
};

/* Byte positions that bring eight rows of eight codes, one after the other, into the order of
 * the sums: for each of 8 lanes of a centroid the codes of the first four rows, then those of
 * the last four. */
SIMD_INLINE WITH_DIGITS __m512i transposition(void)
{
    const __m512i rows = _mm512_set1_epi64(0x3830282018100800);
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i ones = _mm512_set1_epi64(0x0101010101010101);
    return _mm512_add_epi8(rows, _mm512_mullo_epi64(lanes, ones));
}

/* Records [first, end) of one piece.  sum [vector_rows, n, DIGITS] */
SIMD_INLINE WITH_DIGITS void add_digits(const vptq_grid_block *b, const part *p, size_t first,
                                        size_t end, __m512i *sum)
{
    const size_t columns = p->residual ? HALF : LOOKUPS;
    const uint16_t *codes = b->codes + first * RECORD + p->vector_row * LOOKUPS;
    const uint8_t *digits = b->digits + p->row * b->ld_digits + first * DIGITS * columns;
    const int8_t *table = b->table + p->e;
    const __m512i order = transposition();
    for (size_t j = first; j < end; j++, codes += RECORD, digits += DIGITS * columns) {
        __m512i value[ROWS];
        __builtin_prefetch((const uint8_t *)codes + VPTQ_CODES_AHEAD);
#pragma GCC unroll 4
        for (size_t s = 0; s < p->vector_rows; s++) {
            __m256i at = _mm256_cvtepu16_epi32(
                _mm_loadu_si128((const __m128i *)(const void *)(codes + s * LOOKUPS)));
            if (p->code_scale)
                at = _mm256_mullo_epi32(at, _mm256_set1_epi32((int)b->code_scale));
            value[s] =
                _mm512_permutexvar_epi8(order, _mm512_i32gather_epi64(at, table, LOOKUPS));
        }
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++)
#pragma GCC unroll 3
            for (size_t d = 0; d < DIGITS; d++) {
                const uint8_t *from = digits + r * b->ld_digits + d * columns;
                int64_t eight = 0;
                memcpy(&eight, from, columns);
                const __m512i x =
                    p->residual ? _mm512_set1_epi32((int)eight) : _mm512_set1_epi64(eight);
#pragma GCC unroll 4
                for (size_t s = 0; s < p->vector_rows; s++) {
                    __m512i *to = sum + (s * p->n + r) * DIGITS + d;
                    *to = _mm512_dpbusd_epi32(*to, x, value[s]);
                }
            }
    }
}

/* The eight sums of two adjacent lanes, each times its scale and the digit's value. */
SIMD_INLINE WITH_DIGITS vf fold(const __m512i *sum, const float *scale, float unit)
{
    const __m512i even = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512 f = _mm512_setzero_ps();
#pragma GCC unroll 3
    for (size_t d = DIGITS; d-- > 0;)
        f = _mm512_fmadd_ps(f, _mm512_set1_ps(256), _mm512_cvtepi32_ps(sum[d]));
    f = _mm512_mul_ps(f, _mm512_mask_blend_ps(0xaaaa, _mm512_set1_ps(scale[0] * unit),
                                              _mm512_set1_ps(scale[1] * unit)));
    f = _mm512_add_ps(f, _mm512_permute_ps(f, 0xb1));
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(even, f));
}

SIMD_INLINE WITH_DIGITS void add_piece(const vptq_grid_block *b, const part *p, size_t piece)
{
    const size_t records = VPTQ_GRID_PIECE / vptq_grid_columns(p->residual);
    const size_t first = piece * records, last = first + records, lanes = b->lanes / LOOKUPS;
    const int32_t *start =
        b->start + ((piece * ROWS + p->vector_row) * lanes + p->e / LOOKUPS) * 2 * LOOKUPS;
    __m512i sum[MAX_DIGIT_SUMS];
#pragma GCC unroll 24
    for (size_t l = 0; l < p->vector_rows * p->n * DIGITS; l++)
        sum[l] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++)
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++)
            sum[(s * p->n + r) * DIGITS + DIGITS - 1] =
                _mm512_loadu_si512(start + s * lanes * 2 * LOOKUPS);
    add_digits(b, p, first, last < b->records ? last : b->records, sum);
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++)
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++) {
            float *to = sum_of(b, p, s, r);
            vf_store(to, vf_add(vf_load(to), fold(sum + (s * p->n + r) * DIGITS, b->scale,
                                                  b->unit[(p->row + r) * b->ld_unit + piece])));
        }
}

SIMD_INLINE WITH_DIGITS void add_piece_rows(const vptq_grid_block *b, part p, size_t piece,
                                            size_t n)
{
    p.n = n;
    p.vector_rows = n <= 2 ? ROWS : ROWS / 2;
    for (p.vector_row = 0; p.vector_row < ROWS; p.vector_row += p.vector_rows)
        add_piece(b, &p, piece);
}

SIMD_INLINE WITH_DIGITS void add_pieces(const vptq_grid_block *b, bool residual,
                                        bool code_scale)
{
    const size_t records = VPTQ_GRID_PIECE / vptq_grid_columns(residual);
    part p = {.residual = residual, .code_scale = code_scale};
    for (size_t piece = 0; piece * records < b->records; piece++)
        for (p.e = 0; p.e < b->lanes; p.e += LOOKUPS)
            for (p.row = 0; p.row < b->n; p.row += p.n) {
                const size_t left = b->n - p.row;
                p.n = left >= 4 ? 4 : left >= 2 ? 2 : 1;
                if (left >= 4)
                    add_piece_rows(b, p, piece, 4);
                else if (left >= 2)
                    add_piece_rows(b, p, piece, 2);
                else
                    add_piece_rows(b, p, piece, 1);
            }
}

static WITH_DIGITS void block_digits(const vptq_grid_block *b)
{
    if (b->residual && b->code_scale != 1)
        add_pieces(b, true, true);
    else if (b->residual)
        add_pieces(b, true, false);
    else if (b->code_scale != 1)
        add_pieces(b, false, true);
    else
        add_pieces(b, false, false);
}

#endif

const vptq_grid_kernels VPTQ_SIMD_SYMBOL(vptq_grid_kernels) = {
    .block = block,
#if VPTQ_SIMD_LEVEL == 2
    .block_digits = block_digits,
#endif
};
