/* The kernels of gemv.h for one level of lib/base/simd.h.  AVX2 and AVX-512 both use registers
 * of 8 floats; AVX-512 has twice as many.  A centroid of 8 rows is one register, and the cost
 * of an entry is its two look-ups, so wider registers would gain nothing.  NEON and plain C
 * take two registers of 4. */
#define SIMD_MAX_LANES 8
#include "lib/base/simd.h"

#include "lib/backend/cpu/gemv.h"
#include "lib/base/half.h"

enum { LANES = SIMD_LANES, EIGHT = 8 };

/* ---- entries ---- */

/* Extracts entries of any width, one after the other. */
static void fields_plain(const vptq_fields *f, const uint32_t *row, size_t first, size_t count,
                         vptq_entry *entry)
{
    const uint64_t mask = (UINT64_C(1) << f->bits) - 1;
    const uint32_t main_mask = (uint32_t)((UINT64_C(1) << f->main_bits) - 1);
    size_t bit = first * f->bits;
    const uint32_t *word = row + bit / 32;
    uint64_t have = (uint64_t)*word++ >> (bit & 31);
    unsigned left = 32 - (unsigned)(bit & 31);
    for (size_t i = 0; i < count; i++) {
        if (left < f->bits) {
            have |= (uint64_t)*word++ << left;
            left += 32;
        }
        const uint32_t bits = (uint32_t)(have & mask);
        have >>= f->bits;
        left -= f->bits;
        entry[i].main = (bits & main_mask) * f->v;
        entry[i].res = (uint32_t)((uint64_t)bits >> f->main_bits) * f->v;
    }
}

#if SIMD_X86

/* The constants of split_eight in registers. */
typedef struct splitter {
    __m256i shuffle, shift, mask, main_mask, v;
    __m128i main_bits;
} splitter;

SIMD_INLINE splitter splitter_of(const vptq_fields *f)
{
    return (splitter){.shuffle = _mm256_loadu_si256((const __m256i *)(const void *)f->shuffle),
                      .shift = _mm256_loadu_si256((const __m256i *)(const void *)f->shift),
                      .mask = _mm256_set1_epi32((int)((UINT64_C(1) << f->bits) - 1)),
                      .main_mask = _mm256_set1_epi32((int)((UINT64_C(1) << f->main_bits) - 1)),
                      .v = _mm256_set1_epi32((int)f->v),
                      .main_bits = _mm_cvtsi32_si128((int)f->main_bits)};
}

/* Extracts the eight entries that begin at byte `at`; reads 16 bytes from there and 16 from at
 * + half. */
SIMD_INLINE void split_eight(const splitter *p, const uint8_t *at, size_t half,
                             vptq_entry *entry)
{
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
    x = _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(const void *)(at + half)),
                                1);
    x = _mm256_srlv_epi32(_mm256_shuffle_epi8(x, p->shuffle), p->shift);
    x = _mm256_and_si256(x, p->mask);
    __m256i main = _mm256_mullo_epi32(_mm256_and_si256(x, p->main_mask), p->v);
    __m256i res = _mm256_mullo_epi32(_mm256_srl_epi32(x, p->main_bits), p->v);
    __m256i lo = _mm256_unpacklo_epi32(main, res), hi = _mm256_unpackhi_epi32(main, res);
    _mm256_storeu_si256((__m256i *)(void *)entry, _mm256_permute2x128_si256(lo, hi, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(entry + EIGHT / 2),
                        _mm256_permute2x128_si256(lo, hi, 0x31));
}

/* Number of entries, of `count` from `first` on, that can be extracted eight at a time. */
SIMD_INLINE size_t in_eights(const vptq_fields *f, const uint32_t *row, const void *end,
                             size_t first, size_t count)
{
    const uint8_t *at = (const uint8_t *)row + first / EIGHT * f->bits;
    const size_t reach = f->half + sizeof(__m128i);
    const size_t left = (size_t)((const uint8_t *)end - at);
    if (!f->by_bytes || left < reach)
        return 0;
    const size_t max = ((left - reach) / f->bits + 1) * EIGHT;
    return (count < max ? count : max) / EIGHT * EIGHT;
}

static void fields(const vptq_fields *f, const uint32_t *row, const void *end, size_t first,
                   size_t count, vptq_entry *entry)
{
    const splitter p = splitter_of(f);
    const uint8_t *at = (const uint8_t *)row + first / EIGHT * f->bits;
    const size_t fast = in_eights(f, row, end, first, count);
    for (size_t i = 0; i < fast; i += EIGHT, at += f->bits)
        split_eight(&p, at, f->half, entry + i);
    if (fast < count)
        fields_plain(f, row, first + fast, count - fast, entry + fast);
}

#else

static void fields(const vptq_fields *f, const uint32_t *row, const void *end, size_t first,
                   size_t count, vptq_entry *entry)
{
    (void)end;
    fields_plain(f, row, first, count, entry);
}

#endif

/* ---- sums of centroids ---- */

/* The part of a block that add_columns computes: lanes from e on of vector rows [vector_row,
 * vector_row + vector_rows), for rows [row, row + n) of x. All but e, vector_row and row are
 * constants at the call. */
typedef struct part {
    size_t e, vector_row, vector_rows, row, n;
    bool half, residual, code_scale;
} part;

/* Loads two codes at once and separates them by a move and a shift. A load for each would
 * compete with the tables for the load ports; four at once would need more shifts. */
SIMD_INLINE void codes_of(const uint16_t *codes, size_t code_scale, const part *p, size_t *code)
{
    uint32_t two;
    memcpy(&two, codes, sizeof two);
    code[0] = two & UINT16_MAX;
    code[1] = two >> 16;
    if (p->code_scale) {
        code[0] *= code_scale;
        code[1] *= code_scale;
    }
}

/* The tables from lane e on. */
typedef struct tables {
    const uint8_t *main, *res;
} tables;

SIMD_INLINE tables tables_of(const vptq_gemv_block *b, const part *p)
{
    const size_t offset = p->e * (p->half ? sizeof(uint16_t) : sizeof(float));
    tables t = {b->main + offset, p->residual ? b->res + offset : NULL};
    __asm__(""
            : "+r"(t.main), "+r"(t.res)); /* keeps `offset` from being added at every look-up */
    return t;
}

/* Address of the sum of a row of x and a vector row, from lane e on. */
SIMD_INLINE float *sum_of(const vptq_gemv_block *b, const part *p, size_t vector_row,
                          size_t row)
{
    return b->sum + (p->row + row) * b->ld_sum + (p->vector_row + vector_row) * b->lanes + p->e;
}

SIMD_INLINE size_t record_of(const part *p)
{
    return p->residual ? 2 * VPTQ_BLOCK_VECTOR_ROWS : VPTQ_BLOCK_VECTOR_ROWS;
}

enum {
    MAX_SUMS = 8, /* sums that fit into registers with everything else */
    PARTS = EIGHT / LANES
};

/* Part q of the registers of a row. */
SIMD_INLINE vf row_of_8(const uint8_t *table, size_t code, size_t q, const part *p)
{
    const uint8_t *at = table + 8 * code;
    if (p->half)
        return vf_load_f16(at + q * LANES * sizeof(uint16_t));
    return vf_load((const float *)(const void *)at + q * LANES);
}

/* Adds a centroid and its residual centroid first, as in decoding, then multiplies: as many
 * operations as two products, but half as many sums. */
SIMD_INLINE void add_columns(const vptq_gemv_block *b, const part *p)
{
    const size_t record = record_of(p), columns = b->columns, ldx = b->ldx,
                 code_scale = b->code_scale;
    const tables t = tables_of(b, p);
    const uint16_t *codes = b->codes + p->vector_row;
    const float *x = b->x + p->row * b->ldx;
    vf sum[MAX_SUMS][PARTS]; /* [vector rows, n] */
#pragma GCC unroll 8
    for (size_t l = 0; l < p->vector_rows * p->n; l++)
#pragma GCC unroll 2
        for (size_t q = 0; q < PARTS; q++)
            sum[l][q] = vf_set1(0);
    for (size_t j = 0; j < columns; j++, codes += record) {
        vf xj[VPTQ_GEMV_ROWS];
        __builtin_prefetch((const uint8_t *)codes + VPTQ_CODES_AHEAD);
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++)
            xj[r] = vf_set1(*(x + r * ldx + j));
#pragma GCC unroll 4
        for (size_t s = 0; s < p->vector_rows; s += 2) {
            size_t code[2], res_code[2] = {0, 0};
            codes_of(codes + s, code_scale, p, code);
            if (p->residual)
                codes_of(codes + VPTQ_BLOCK_VECTOR_ROWS + s, code_scale, p, res_code);
#pragma GCC unroll 4
            for (size_t i = 0; i < 2 * PARTS; i++) {
                const size_t q = i % PARTS;
                vf value = row_of_8(t.main, code[i / PARTS], q, p);
                if (p->residual)
                    value = vf_add(value, row_of_8(t.res, res_code[i / PARTS], q, p));
#pragma GCC unroll 4
                for (size_t r = 0; r < p->n; r++) {
                    const size_t l = (s + i / PARTS) * p->n + r;
                    sum[l][q] = vf_fma(xj[r], value, sum[l][q]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++)
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++)
#pragma GCC unroll 2
            for (size_t q = 0; q < PARTS; q++) {
                float *to = sum_of(b, p, s, r) + q * LANES;
                vf_store(to, vf_add(vf_load(to), sum[s * p->n + r][q]));
            }
}

SIMD_INLINE v4 row_of_4(const uint8_t *table, size_t code, const part *p)
{
    return p->half ? v4_load_f16(table + 8 * code) : v4_load(table + 8 * code);
}

/* Loads the codes of all vector rows at once: narrow rows leave time for the shifts. */
SIMD_INLINE uint64_t all_codes_of(const uint16_t *codes, const part *p)
{
    uint64_t all = 0;
    memcpy(&all, codes, p->vector_rows * sizeof *codes);
    return all;
}

SIMD_INLINE size_t code_of(uint64_t all, size_t s, size_t code_scale, const part *p)
{
    const size_t code = (uint16_t)(all >> 16 * s);
    return p->code_scale ? code * code_scale : code;
}

/* add_columns with registers of 4 lanes, for narrow layouts. Two vector rows in one register of
 * 8 would save a product but cost an insertion per table. */
SIMD_INLINE void add_narrow_columns(const vptq_gemv_block *b, const part *p)
{
    const size_t record = record_of(p), columns = b->columns, ldx = b->ldx,
                 code_scale = b->code_scale;
    const tables t = tables_of(b, p);
    const uint16_t *codes = b->codes + p->vector_row;
    const float *x = b->x + p->row * b->ldx;
    v4 sum[MAX_SUMS]; /* [vector rows, n] */
#pragma GCC unroll 8
    for (size_t l = 0; l < p->vector_rows * p->n; l++)
        sum[l] = v4_set1(0);
    for (size_t j = 0; j < columns; j++, codes += record) {
        v4 xj[VPTQ_GEMV_ROWS];
        __builtin_prefetch((const uint8_t *)codes + VPTQ_CODES_AHEAD);
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++)
            xj[r] = v4_set1(x[r * ldx + j]);
        const uint64_t main = all_codes_of(codes, p);
        const uint64_t res = p->residual ? all_codes_of(codes + VPTQ_BLOCK_VECTOR_ROWS, p) : 0;
#pragma GCC unroll 4
        for (size_t s = 0; s < p->vector_rows; s++) {
            v4 value = row_of_4(t.main, code_of(main, s, code_scale, p), p);
            if (p->residual)
                value += row_of_4(t.res, code_of(res, s, code_scale, p), p);
#pragma GCC unroll 4
            for (size_t r = 0; r < p->n; r++)
                sum[s * p->n + r] = v4_fma(xj[r], value, sum[s * p->n + r]);
        }
    }
#pragma GCC unroll 4
    for (size_t s = 0; s < p->vector_rows; s++)
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++) {
            float *to = sum_of(b, p, s, r);
            v4_store(to, v4_load(to) + sum[s * p->n + r]);
        }
}

/* All vector rows of the block for n tokens, as many at a time as registers allow. */
SIMD_INLINE void add_rows(const vptq_gemv_block *b, part p, bool narrow, size_t row, size_t n)
{
    p.row = row;
    p.n = n;
    p.vector_rows = n <= 2 ? VPTQ_BLOCK_VECTOR_ROWS : VPTQ_BLOCK_VECTOR_ROWS / 2;
    for (p.vector_row = 0; p.vector_row < VPTQ_BLOCK_VECTOR_ROWS;
         p.vector_row += p.vector_rows) {
        if (narrow)
            add_narrow_columns(b, &p);
        else
            add_columns(b, &p);
    }
}

SIMD_INLINE void add_lanes(const vptq_gemv_block *b, bool narrow, bool half, bool residual,
                           bool code_scale)
{
    part p = {.half = half, .residual = residual, .code_scale = code_scale};
    for (p.e = 0; p.e < b->lanes; p.e += EIGHT) {
        size_t row = 0;
        if (b->n - row >= 4) {
            add_rows(b, p, narrow, row, 4);
            row += 4;
        }
        if (b->n - row >= 2) {
            add_rows(b, p, narrow, row, 2);
            row += 2;
        }
        if (b->n - row >= 1)
            add_rows(b, p, narrow, row, 1);
    }
}

/* Compiles loops for each kind of layout. */
SIMD_INLINE void add_kind(const vptq_gemv_block *b, bool half, bool residual)
{
    const bool narrow = b->lanes < EIGHT;
    if (narrow && b->code_scale != 1)
        add_lanes(b, true, half, residual, true);
    else if (narrow)
        add_lanes(b, true, half, residual, false);
    else if (b->code_scale != 1)
        add_lanes(b, false, half, residual, true);
    else
        add_lanes(b, false, half, residual, false);
}

static void block(const vptq_gemv_block *b)
{
    if (b->half && b->res)
        add_kind(b, true, true);
    else if (b->half)
        add_kind(b, true, false);
    else if (b->res)
        add_kind(b, false, true);
    else
        add_kind(b, false, false);
}

/* ---- plain rows ---- */

SIMD_INLINE vf widen(vptq_dtype type, const uint8_t *w, size_t j)
{
    if (type == VPTQ_F32)
        return vf_load((const float *)(const void *)(w + 4 * j));
    return type == VPTQ_F16 ? vf_load_f16(w + 2 * j) : vf_load_bf16(w + 2 * j);
}

SIMD_INLINE size_t bytes_of(vptq_dtype type)
{
    return type == VPTQ_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* The last count < LANES elements, followed by zeros. */
SIMD_INLINE vf widen_tail(vptq_dtype type, const uint8_t *w, size_t j, size_t count)
{
    uint8_t tail[LANES * sizeof(float)] = {0};
    memcpy(tail, w + j * bytes_of(type), count * bytes_of(type));
    return widen(type, tail, 0);
}

enum {
    MAX_DOT_TOKENS = 2,
    MAX_DOT_ROWS = VPTQ_DOT_ROWS,
    DOT_AHEAD = 6144 /* bytes: short rows end before the processor notices four streams */
};

/* Columns [j, j + 16) of rows and tokens, whose numbers are constants at the call. */
SIMD_INLINE void dot_step(vptq_dtype type, const uint8_t *w, size_t row_bytes, size_t rows,
                          size_t j, size_t n, const float *x, size_t ldx,
                          v16 sum[MAX_DOT_ROWS][MAX_DOT_TOKENS])
{
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++) {
        const size_t at = j + p * LANES;
        vf value[MAX_DOT_ROWS];
#pragma GCC unroll 4
        for (size_t r = 0; r < rows; r++)
            value[r] = widen(type, w + r * row_bytes, at);
#pragma GCC unroll 2
        for (size_t i = 0; i < n; i++) {
            const vf xi = vf_load(x + i * ldx + at);
#pragma GCC unroll 4
            for (size_t r = 0; r < rows; r++)
                sum[r][i].part[p] = vf_fma(value[r], xi, sum[r][i].part[p]);
        }
    }
}

SIMD_INLINE void dot_rows(vptq_dtype type, const uint8_t *w, size_t row_bytes, size_t rows,
                          size_t length, size_t n, const float *x, size_t ldx, float *y)
{
    v16 sum[MAX_DOT_ROWS][MAX_DOT_TOKENS];
    size_t j = 0;
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t i = 0; i < n; i++)
            sum[r][i] = v16_set1(0);
    for (; length - j >= SIMD_SUM; j += SIMD_SUM) {
#pragma GCC unroll 4
        for (size_t r = 0; r < rows; r++)
            __builtin_prefetch(w + r * row_bytes + j * bytes_of(type) + DOT_AHEAD);
        dot_step(type, w, row_bytes, rows, j, n, x, ldx, sum);
    }
    if (j < length) {
        uint8_t w_end[MAX_DOT_ROWS * SIMD_SUM * sizeof(float)] = {0};
        float x_end[MAX_DOT_TOKENS * SIMD_SUM] = {0};
        for (size_t r = 0; r < rows; r++)
            memcpy(w_end + r * SIMD_SUM * sizeof(float), w + r * row_bytes + j * bytes_of(type),
                   (length - j) * bytes_of(type));
        for (size_t i = 0; i < n; i++)
            memcpy(x_end + i * SIMD_SUM, x + i * ldx + j, (length - j) * sizeof *x);
        dot_step(type, w_end, SIMD_SUM * sizeof(float), rows, 0, n, x_end, SIMD_SUM, sum);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t i = 0; i < n; i++)
            y[i * VPTQ_DOT_ROWS + r] = v16_sum(sum[r][i]);
}

/* Two tokens with two rows, or one with four: eight registers of sums with AVX2, enough to hide
 * the latency of a multiplication. */
SIMD_INLINE void dot_type(vptq_dtype type, const uint8_t *w, size_t row_bytes, size_t rows,
                          size_t length, size_t n, const float *x, size_t ldx, float *y)
{
    const size_t pairs = n / 2 * 2;
    for (size_t r = 0; r < rows; r += 2) {
        const uint8_t *from = w + r * row_bytes;
        for (size_t i = 0; i < pairs; i += 2)
            if (rows - r >= 2)
                dot_rows(type, from, row_bytes, 2, length, 2, x + i * ldx, ldx,
                         y + i * VPTQ_DOT_ROWS + r);
            else
                dot_rows(type, from, row_bytes, 1, length, 2, x + i * ldx, ldx,
                         y + i * VPTQ_DOT_ROWS + r);
    }
    x += pairs * ldx;
    y += pairs * VPTQ_DOT_ROWS;
    if (pairs < n && rows == VPTQ_DOT_ROWS)
        dot_rows(type, w, row_bytes, VPTQ_DOT_ROWS, length, 1, x, ldx, y);
    else
        for (size_t r = 0; pairs < n && r < rows; r++)
            dot_rows(type, w + r * row_bytes, row_bytes, 1, length, 1, x, ldx, y + r);
}

static void dot(vptq_dtype type, const void *w, size_t row_bytes, size_t rows, size_t length,
                size_t n, const float *x, size_t ldx, float *y)
{
    if (type == VPTQ_F32)
        dot_type(VPTQ_F32, w, row_bytes, rows, length, n, x, ldx, y);
    else if (type == VPTQ_F16)
        dot_type(VPTQ_F16, w, row_bytes, rows, length, n, x, ldx, y);
    else
        dot_type(VPTQ_BF16, w, row_bytes, rows, length, n, x, ldx, y);
}

/* Writes `count` columns of LANES rows to a panel, of which n rows exist; both are constants in
 * the first loop that calls this. */
SIMD_INLINE void panel_block(vptq_dtype type, const uint8_t *w, size_t row_bytes, size_t n,
                             size_t j, size_t count, float *panel, size_t width)
{
    vf r[LANES];
#pragma GCC unroll 8
    for (size_t i = 0; i < LANES; i++)
        r[i] = i >= n           ? vf_set1(0)
               : count == LANES ? widen(type, w + i * row_bytes, j)
                                : widen_tail(type, w + i * row_bytes, j, count);
    vf_transpose(r);
#pragma GCC unroll 8
    for (size_t i = 0; i < LANES; i++)
        if (i < count)
            vf_store(panel + (j + i) * width, r[i]);
}

SIMD_INLINE void panel_type(vptq_dtype type, const uint8_t *w, size_t row_bytes, size_t n,
                            size_t length, float *panel, size_t width)
{
    for (size_t i = 0; i < width; i += LANES) {
        const size_t rows = n > i ? n - i : 0;
        const uint8_t *from = rows ? w + i * row_bytes : w;
        size_t j = 0;
        for (; rows >= LANES && length - j >= LANES; j += LANES)
            panel_block(type, from, row_bytes, LANES, j, LANES, panel + i, width);
        for (; j < length; j += LANES)
            panel_block(type, from, row_bytes, rows, j, length - j < LANES ? length - j : LANES,
                        panel + i, width);
    }
}

static void panel_rows(vptq_dtype type, const void *w, size_t row_bytes, size_t n,
                       size_t length, float *panel, size_t width)
{
    if (type == VPTQ_F32)
        panel_type(VPTQ_F32, w, row_bytes, n, length, panel, width);
    else if (type == VPTQ_F16)
        panel_type(VPTQ_F16, w, row_bytes, n, length, panel, width);
    else
        panel_type(VPTQ_BF16, w, row_bytes, n, length, panel, width);
}

const vptq_gemv_kernels VPTQ_SIMD_SYMBOL(vptq_gemv_kernels) = {fields, block, dot, panel_rows};
