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

/* Records of a piece. */
SIMD_INLINE size_t piece_records(bool residual)
{
    return VPTQ_GRID_PIECE / vptq_grid_columns(residual);
}

/* ---- x in two words ---- */

enum { WORDS = VPTQ_GRID_WORDS, MAX_SUMS = 8 /* sums that fit into registers */ };

/* eight: a whole number for each row of a look-up.  pair: two rows of the table. */
#if SIMD_X86

typedef __m256i eight, pair;

SIMD_INLINE eight no_sum(void)
{
    return _mm256_setzero_si256();
}

SIMD_INLINE pair two_rows(const int8_t *a, const int8_t *b)
{
    return _mm256_cvtepi8_epi16(
        _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(const void *)a),
                          _mm_loadl_epi64((const __m128i *)(const void *)b)));
}

/* sum + x[0] * first row + x[1] * second row */
SIMD_INLINE eight add_products(eight sum, pair rows, const uint8_t *x)
{
    int32_t two;
    memcpy(&two, x, sizeof two);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(rows, _mm256_set1_epi32(two)));
}

/* The floats nearest to 4096 high + low, which is exact in double. */
SIMD_INLINE void whole_floats(eight high, eight low, float *to)
{
    const __m256d unit = _mm256_set1_pd(1 << VPTQ_GRID_WORD_BITS);
    _mm_storeu_ps(to, _mm256_cvtpd_ps(_mm256_fmadd_pd(
                          _mm256_cvtepi32_pd(_mm256_castsi256_si128(high)), unit,
                          _mm256_cvtepi32_pd(_mm256_castsi256_si128(low)))));
    _mm_storeu_ps(to + 4, _mm256_cvtpd_ps(_mm256_fmadd_pd(
                              _mm256_cvtepi32_pd(_mm256_extracti128_si256(high, 1)), unit,
                              _mm256_cvtepi32_pd(_mm256_extracti128_si256(low, 1)))));
}

#else

typedef struct eight {
    int32_t lane[LOOKUPS];
} eight;

typedef struct pair {
    const int8_t *a, *b;
} pair;

SIMD_INLINE eight no_sum(void)
{
    return (eight){{0}};
}

SIMD_INLINE pair two_rows(const int8_t *a, const int8_t *b)
{
    return (pair){a, b};
}

/* sum + x[0] * first row + x[1] * second row */
SIMD_INLINE eight add_products(eight sum, pair rows, const uint8_t *x)
{
    int16_t two[2];
    memcpy(two, x, sizeof two);
    for (size_t e = 0; e < LOOKUPS; e++)
        sum.lane[e] += two[0] * rows.a[e] + two[1] * rows.b[e];
    return sum;
}

/* The floats nearest to 4096 high + low, which is exact in double. */
SIMD_INLINE void whole_floats(eight high, eight low, float *to)
{
    for (size_t e = 0; e < LOOKUPS; e++)
        to[e] =
            (float)((double)high.lane[e] * (1 << VPTQ_GRID_WORD_BITS) + (double)low.lane[e]);
}

#endif

/* Two look-ups of each vector row, whose codes are loaded at once: a load for each would
 * compete with the tables for the load ports.  sum [vector rows, n, WORDS] */
SIMD_INLINE void add_two(const vptq_grid_block *b, const part *p, const uint16_t *codes,
                         const uint8_t *x, size_t lookup, eight *sum)
{
    const size_t columns = vptq_grid_columns(p->residual);
    const int8_t *table = b->table + p->e;
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++) {
        uint32_t two;
        memcpy(&two, codes + s * LOOKUPS + lookup, sizeof two);
        const size_t unit = LOOKUPS * (p->code_scale ? b->code_scale : 1);
        const pair rows =
            two_rows(table + unit * (two & UINT16_MAX), table + unit * (two >> 16));
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++)
#pragma GCC unroll 2
            for (size_t d = 0; d < WORDS; d++) {
                eight *to = sum + (s * p->n + r) * WORDS + d;
                *to = add_products(*to, rows,
                                   x + r * b->ld_digits +
                                       (d * columns + lookup % columns) * sizeof(int16_t));
            }
    }
}

/* The sums of the first or the last look-ups of the records of a piece, as floats: whole
 * [vector rows, n][LOOKUPS]. */
SIMD_INLINE void sum_half(const vptq_grid_block *b, const part *p, size_t piece, size_t half,
                          float (*whole)[LOOKUPS])
{
    const size_t step = vptq_grid_columns(p->residual) * VPTQ_GRID_SPACE;
    const size_t first = piece * piece_records(p->residual);
    const size_t last = first + piece_records(p->residual);
    const uint16_t *codes = b->codes + first * RECORD + p->vector_row * LOOKUPS;
    const uint8_t *x = b->digits + p->row * b->ld_digits + first * step;
    eight sum[MAX_SUMS];
#pragma GCC unroll 8
    for (size_t l = 0; l < MAX_SUMS; l++)
        sum[l] = no_sum();
    for (size_t j = first; j < last && j < b->records; j++, codes += RECORD, x += step) {
        __builtin_prefetch((const uint8_t *)codes + VPTQ_CODES_AHEAD);
        add_two(b, p, codes, x, half * HALF, sum);
        add_two(b, p, codes, x, half * HALF + 2, sum);
    }
#pragma GCC unroll 4
    for (size_t l = 0; l < MAX_SUMS / WORDS; l++)
        whole_floats(sum[l * WORDS + 1], sum[l * WORDS], whole[l]);
}

SIMD_INLINE void add_words(const vptq_grid_block *b, const part *p, size_t piece)
{
    float whole[2][MAX_SUMS / WORDS][LOOKUPS];
    sum_half(b, p, piece, 0, whole[0]);
    sum_half(b, p, piece, 1, whole[1]);
    for (size_t l = 0; l < MAX_SUMS / WORDS; l++) {
        const size_t s = l / p->n, r = l % p->n;
        const float unit = b->unit[(p->row + r) * b->ld_unit + piece];
        const float scale[2] = {b->scale[0] * unit, b->scale[1] * unit};
        float *to = sum_of(b, p, s, r);
        for (size_t e = 0; e < LOOKUPS; e++)
            to[e] += whole[0][l][e] * scale[0] + whole[1][l][e] * scale[1];
    }
}

/* All vector rows of the block for n tokens, as many at a time as registers allow. */
SIMD_INLINE void add_word_rows(const vptq_grid_block *b, part p, size_t piece, size_t n)
{
    p.n = n;
    p.vector_rows = MAX_SUMS / WORDS / n;
    for (p.vector_row = 0; p.vector_row < ROWS; p.vector_row += p.vector_rows)
        add_words(b, &p, piece);
}

SIMD_INLINE void add_lanes(const vptq_grid_block *b, bool residual, bool code_scale)
{
    part p = {.residual = residual, .code_scale = code_scale};
    for (size_t piece = 0; piece * piece_records(residual) < b->records; piece++)
        for (p.e = 0; p.e < b->lanes; p.e += LOOKUPS)
            for (p.row = 0; p.row < b->n; p.row += p.n) {
                const size_t left = b->n - p.row;
                p.n = left >= 4 ? 4 : left >= 2 ? 2 : 1;
                if (p.n == 4)
                    add_word_rows(b, p, piece, 4);
                else if (p.n == 2)
                    add_word_rows(b, p, piece, 2);
                else
                    add_word_rows(b, p, piece, 1);
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

/* ---- x in three bytes ---- */

#define WITH_BYTES __attribute__((target("avx512vnni,avx512vbmi")))

enum {
    DIGITS = VPTQ_GRID_BYTES,
    MAX_DIGIT_SUMS = 24 /* registers */
};

/* Byte positions that bring eight rows of eight codes, one after the other, into the order of
 * the sums: for each of 8 lanes of a centroid the codes of the first four rows, then those of
 * the last four. */
SIMD_INLINE WITH_BYTES __m512i transposition(void)
{
    const __m512i rows = _mm512_set1_epi64(0x3830282018100800);
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i ones = _mm512_set1_epi64(0x0101010101010101);
    return _mm512_add_epi8(rows, _mm512_mullo_epi64(lanes, ones));
}

/* Records [first, end) of one piece.  sum [vector_rows, n, DIGITS] */
SIMD_INLINE WITH_BYTES void add_bytes(const vptq_grid_block *b, const part *p, size_t first,
                                      size_t end, __m512i *sum)
{
    const size_t columns = p->residual ? HALF : LOOKUPS;
    const uint16_t *codes = b->codes + first * RECORD + p->vector_row * LOOKUPS;
    const uint8_t *digits =
        b->digits + p->row * b->ld_digits + first * VPTQ_GRID_SPACE * columns;
    const int8_t *table = b->table + p->e;
    const __m512i order = transposition();
    for (size_t j = first; j < end; j++, codes += RECORD, digits += VPTQ_GRID_SPACE * columns) {
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
                int64_t some = 0;
                memcpy(&some, from, columns);
                const __m512i x =
                    p->residual ? _mm512_set1_epi32((int)some) : _mm512_set1_epi64(some);
#pragma GCC unroll 4
                for (size_t s = 0; s < p->vector_rows; s++) {
                    __m512i *to = sum + (s * p->n + r) * DIGITS + d;
                    *to = _mm512_dpbusd_epi32(*to, x, value[s]);
                }
            }
    }
}

/* Half of the sums of three digits as floats; whole, they are exact in double. */
SIMD_INLINE WITH_BYTES __m256 whole_half(const __m512i *sum, bool high)
{
    __m512d whole = _mm512_setzero_pd();
#pragma GCC unroll 3
    for (size_t d = DIGITS; d-- > 0;) {
        const __m256i half =
            high ? _mm512_extracti64x4_epi64(sum[d], 1) : _mm512_castsi512_si256(sum[d]);
        whole = _mm512_fmadd_pd(whole, _mm512_set1_pd(256), _mm512_cvtepi32_pd(half));
    }
    return _mm512_cvtpd_ps(whole);
}

/* The eight sums of two adjacent lanes, each times its scale and the digit's value. */
SIMD_INLINE WITH_BYTES vf fold(const __m512i *sum, const float *scale, float unit)
{
    const __m512i even = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512 f = _mm512_insertf32x8(_mm512_castps256_ps512(whole_half(sum, false)),
                                  whole_half(sum, true), 1);
    f = _mm512_mul_ps(f, _mm512_mask_blend_ps(0xaaaa, _mm512_set1_ps(scale[0] * unit),
                                              _mm512_set1_ps(scale[1] * unit)));
    f = _mm512_add_ps(f, _mm512_permute_ps(f, 0xb1));
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(even, f));
}

SIMD_INLINE WITH_BYTES void add_piece(const vptq_grid_block *b, const part *p, size_t piece)
{
    const size_t records = piece_records(p->residual);
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
    add_bytes(b, p, first, last < b->records ? last : b->records, sum);
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++)
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++) {
            float *to = sum_of(b, p, s, r);
            vf_store(to, vf_add(vf_load(to), fold(sum + (s * p->n + r) * DIGITS, b->scale,
                                                  b->unit[(p->row + r) * b->ld_unit + piece])));
        }
}

SIMD_INLINE WITH_BYTES void add_piece_rows(const vptq_grid_block *b, part p, size_t piece,
                                           size_t n)
{
    p.n = n;
    p.vector_rows = n <= 2 ? ROWS : ROWS / 2;
    for (p.vector_row = 0; p.vector_row < ROWS; p.vector_row += p.vector_rows)
        add_piece(b, &p, piece);
}

SIMD_INLINE WITH_BYTES void add_pieces(const vptq_grid_block *b, bool residual, bool code_scale)
{
    part p = {.residual = residual, .code_scale = code_scale};
    for (size_t piece = 0; piece * piece_records(residual) < b->records; piece++)
        for (p.e = 0; p.e < b->lanes; p.e += LOOKUPS)
            for (p.row = 0; p.row < b->n; p.row += p.n) {
                const size_t left = b->n - p.row;
                p.n = left >= 4 ? 4 : left >= 2 ? 2 : 1;
                if (p.n == 4)
                    add_piece_rows(b, p, piece, 4);
                else if (p.n == 2)
                    add_piece_rows(b, p, piece, 2);
                else
                    add_piece_rows(b, p, piece, 1);
            }
}

static WITH_BYTES void block_bytes(const vptq_grid_block *b)
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
    .block_bytes = block_bytes,
#endif
};
