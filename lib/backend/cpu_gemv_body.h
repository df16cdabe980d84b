/* The loops of cpu_gemv.h on registers of 8 floats, for AVX2 and, with twice as many registers,
 * for AVX-512: a centroid of 8 rows is one register, and two loads per entry are what it costs,
 * so wider ones would gain nothing. */
#include <immintrin.h>
#include <string.h>

#include "lib/backend/cpu_gemv.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8, EIGHT = 8, GROUP = 32 /* a multiple of EIGHT */ };

/* ---- entries ---- */

/* What takes eight entries apart, in registers. */
typedef struct splitter {
    __m256i shuffle, shift, mask, main_mask, v;
    __m128i main_bits;
} splitter;

INLINE splitter splitter_of(const vptq_fields *f)
{
    return (splitter){.shuffle = _mm256_loadu_si256((const __m256i *)(const void *)f->shuffle),
                      .shift = _mm256_loadu_si256((const __m256i *)(const void *)f->shift),
                      .mask = _mm256_set1_epi32((int)((UINT64_C(1) << f->bits) - 1)),
                      .main_mask = _mm256_set1_epi32((int)((UINT64_C(1) << f->main_bits) - 1)),
                      .v = _mm256_set1_epi32((int)f->v),
                      .main_bits = _mm_cvtsi32_si128((int)f->main_bits)};
}

/* Places of the eight entries that begin at byte `at`; reads 16 bytes from there and 16 from
 * at + half. */
INLINE void split_eight(const splitter *p, const uint8_t *at, size_t half, vptq_place *place)
{
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
    x = _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(const void *)(at + half)),
                                1);
    x = _mm256_srlv_epi32(_mm256_shuffle_epi8(x, p->shuffle), p->shift);
    x = _mm256_and_si256(x, p->mask);
    __m256i main = _mm256_mullo_epi32(_mm256_and_si256(x, p->main_mask), p->v);
    __m256i res = _mm256_mullo_epi32(_mm256_srl_epi32(x, p->main_bits), p->v);
    __m256i lo = _mm256_unpacklo_epi32(main, res), hi = _mm256_unpackhi_epi32(main, res);
    _mm256_storeu_si256((__m256i *)(void *)place, _mm256_permute2x128_si256(lo, hi, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(place + EIGHT / 2),
                        _mm256_permute2x128_si256(lo, hi, 0x31));
}

/* How many of `count` entries from `first` on can be taken eight at a time. */
INLINE size_t in_eights(const vptq_fields *f, const uint32_t *row, const void *end,
                        size_t first, size_t count)
{
    const uint8_t *at = (const uint8_t *)row + first / EIGHT * f->bits;
    const size_t reach = f->half + sizeof(__m128i);
    const size_t left = (size_t)((const uint8_t *)end - at);
    if (!f->by_bytes || left < reach)
        return 0;
    const size_t most = ((left - reach) / f->bits + 1) * EIGHT;
    return (count < most ? count : most) / EIGHT * EIGHT;
}

static void fields(const vptq_fields *f, const uint32_t *row, const void *end, size_t first,
                   size_t count, vptq_place *place)
{
    const splitter p = splitter_of(f);
    const uint8_t *at = (const uint8_t *)row + first / EIGHT * f->bits;
    const size_t fast = in_eights(f, row, end, first, count);
    for (size_t i = 0; i < fast; i += EIGHT, at += f->bits)
        split_eight(&p, at, f->half, place + i);
    if (fast < count)
        vptq_fields_plain(f, row, first + fast, count - fast, place + fast);
}

/* ---- sums of centroids ---- */

/* `lanes` elements of a centroid; those behind them are 0. */
INLINE __m256 load(const float *c, size_t lanes, __m256i mask)
{
    if (lanes == LANES)
        return _mm256_loadu_ps(c);
    if (lanes == LANES / 2)
        return _mm256_zextps128_ps256(_mm_loadu_ps(c));
    return _mm256_maskload_ps(c, mask);
}

/* What a call of add_centroids works on: elements e .. e + lanes - 1 of `strips` strips from
 * `strip` on, for n rows of x from `row` on. */
typedef struct part {
    size_t e, lanes, strip, strips, row, n;
    bool residual;
    __m256i mask; /* of the lanes */
} part;

/* Columns [from, to), at most GROUP, whose places are known.  Main and residual centroids are
 * summed apart, so that no sum waits for another.  Loops are unrolled whole: an array of
 * registers must not be in memory. */
INLINE void add_columns(const vptq_gemv_block *b, const part *p, const float *book,
                        const float *res_book, size_t from, size_t to,
                        vptq_place place[][GROUP], __m256 *main, __m256 *res)
{
    const float *x = b->x + p->row * b->ldx;
    for (size_t j = from; j < to; j++) {
        __m256 xj[VPTQ_GEMV_ROWS];
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++)
            xj[r] = _mm256_broadcast_ss(x + r * b->ldx + j);
#pragma GCC unroll 4
        for (size_t s = 0; s < p->strips; s++) {
            uint64_t at; /* one load for both */
            memcpy(&at, &place[s][j - from], sizeof at);
            __m256 c = load(book + (uint32_t)at, p->lanes, p->mask);
#pragma GCC unroll 4
            for (size_t r = 0; r < p->n; r++)
                main[s * p->n + r] = _mm256_fmadd_ps(xj[r], c, main[s * p->n + r]);
            if (!p->residual)
                continue;
            c = load(res_book + (at >> 32), p->lanes, p->mask);
#pragma GCC unroll 4
            for (size_t r = 0; r < p->n; r++)
                res[s * p->n + r] = _mm256_fmadd_ps(xj[r], c, res[s * p->n + r]);
        }
    }
}

INLINE void add_to_sums(const vptq_gemv_block *b, const part *p, const __m256 *main,
                        const __m256 *res)
{
#pragma GCC unroll 4
    for (size_t s = 0; s < p->strips; s++)
#pragma GCC unroll 4
        for (size_t r = 0; r < p->n; r++) {
            float *sum =
                b->sum + (p->row + r) * b->ld_sum + (p->strip + s) * b->fields->v + p->e;
            __m256 total = _mm256_add_ps(main[s * p->n + r], res[s * p->n + r]);
            total = _mm256_add_ps(load(sum, p->lanes, p->mask), total);
            if (p->lanes == LANES)
                _mm256_storeu_ps(sum, total);
            else
                _mm256_maskstore_ps(sum, p->mask, total);
        }
}

/* Places are found for GROUP columns just before they are used: few enough that they stay in
 * the first cache beside the books, enough that none is read while it is still being written.
 */
INLINE void add_centroids(const vptq_gemv_block *b, const part *p)
{
    __m256 main[VPTQ_GEMV_STRIPS], res[VPTQ_GEMV_STRIPS]; /* [strips, n] */
    vptq_place place[VPTQ_GEMV_STRIPS][GROUP];
    const vptq_fields *f = b->fields;
    const splitter split = splitter_of(f);
    const float *book = b->book + p->e, *res_book = p->residual ? b->res_book + p->e : NULL;
    const uint8_t *at[VPTQ_GEMV_STRIPS];
    size_t fast = b->columns, j = 0;
    __asm__("" : "+r"(book), "+r"(res_book)); /* or e is added to every place once more */
#pragma GCC unroll 4
    for (size_t l = 0; l < p->strips * p->n; l++)
        main[l] = res[l] = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (size_t s = 0; s < p->strips; s++) {
        const uint32_t *row = b->row[p->strip + s];
        size_t most = in_eights(f, row, b->end, b->first, b->columns);
        most = most / GROUP * GROUP;
        fast = most < fast ? most : fast;
        at[s] = (const uint8_t *)row + b->first / EIGHT * f->bits;
    }
    for (; j < fast; j += GROUP) {
#pragma GCC unroll 4
        for (size_t s = 0; s < p->strips; s++) {
            for (size_t i = 0; i < GROUP; i += EIGHT, at[s] += f->bits)
                split_eight(&split, at[s], f->half, place[s] + i);
        }
        add_columns(b, p, book, res_book, j, j + GROUP, place, main, res);
    }
    for (; j < b->columns; j += GROUP) {
        size_t count = b->columns - j < GROUP ? b->columns - j : GROUP;
        for (size_t s = 0; s < p->strips; s++)
            fields(f, b->row[p->strip + s], b->end, b->first + j, count, place[s]);
        add_columns(b, p, book, res_book, j, j + count, place, main, res);
    }
    add_to_sums(b, p, main, res);
}

/* All strips of the block for n rows of x: as many sums at a time as hide the latency of a
 * multiplication. */
INLINE void add_rows(const vptq_gemv_block *b, part p, size_t row, size_t n)
{
    p.row = row;
    p.n = n;
    p.strips = VPTQ_GEMV_STRIPS / n;
    for (p.strip = 0; p.strip < VPTQ_GEMV_STRIPS; p.strip += p.strips)
        add_centroids(b, &p);
}

INLINE void add_elements(const vptq_gemv_block *b, size_t e, size_t lanes, __m256i mask,
                         bool residual)
{
    const part p = {.e = e, .lanes = lanes, .mask = mask, .residual = residual};
    size_t row = 0;
    if (b->n - row >= 4) {
        add_rows(b, p, row, 4);
        row += 4;
    }
    if (b->n - row >= 2) {
        add_rows(b, p, row, 2);
        row += 2;
    }
    if (b->n - row >= 1)
        add_rows(b, p, row, 1);
}

static void block(const vptq_gemv_block *b)
{
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const size_t v = b->fields->v;
    for (size_t e = 0; e < v; e += LANES) {
        size_t lanes = v - e < LANES ? v - e : LANES;
        __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)lanes), iota);
        if (lanes == LANES && b->res_book)
            add_elements(b, e, LANES, mask, true);
        else if (lanes == LANES)
            add_elements(b, e, LANES, mask, false);
        else if (lanes == LANES / 2 && b->res_book)
            add_elements(b, e, LANES / 2, mask, true);
        else if (lanes == LANES / 2)
            add_elements(b, e, LANES / 2, mask, false);
        else if (b->res_book)
            add_elements(b, e, 1, mask, true);
        else
            add_elements(b, e, 1, mask, false);
    }
}

/* ---- plain rows ---- */

INLINE __m256 widen(vptq_dtype type, const uint8_t *w, size_t j)
{
    if (type == VPTQ_F32)
        return _mm256_loadu_ps((const float *)(const void *)(w + 4 * j));
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(w + 2 * j));
    if (type == VPTQ_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The last `count` < LANES elements, zeros behind them. */
INLINE __m256 widen_tail(vptq_dtype type, const uint8_t *w, size_t j, size_t count)
{
    uint8_t tail[LANES * sizeof(float)] = {0};
    const size_t bytes = type == VPTQ_F32 ? 4 : 2;
    __builtin_memcpy(tail, w + j * bytes, count * bytes);
    return widen(type, tail, 0);
}

INLINE float total(__m256 a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* n rows of x, in CHAINS sums each. */
INLINE void dot_rows(vptq_dtype type, const uint8_t *w, size_t length, size_t n, const float *x,
                     size_t ldx, float *y)
{
    enum { CHAINS = 4, MOST = 2 };
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 sum[MOST][CHAINS];
    size_t j = 0;
#pragma GCC unroll 16
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 16
        for (size_t c = 0; c < CHAINS; c++)
            sum[i][c] = _mm256_setzero_ps();
    for (; length - j >= CHAINS * LANES; j += CHAINS * LANES)
#pragma GCC unroll 16
        for (size_t c = 0; c < CHAINS; c++) {
            __m256 value = widen(type, w, j + c * LANES);
#pragma GCC unroll 16
            for (size_t i = 0; i < n; i++)
                sum[i][c] = _mm256_fmadd_ps(value, _mm256_loadu_ps(x + i * ldx + j + c * LANES),
                                            sum[i][c]);
        }
    for (; j < length; j += LANES) {
        size_t count = length - j < LANES ? length - j : LANES;
        __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), iota);
        __m256 value = count == LANES ? widen(type, w, j) : widen_tail(type, w, j, count);
#pragma GCC unroll 16
        for (size_t i = 0; i < n; i++)
            sum[i][0] =
                _mm256_fmadd_ps(value, _mm256_maskload_ps(x + i * ldx + j, mask), sum[i][0]);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < n; i++)
        y[i] = total(_mm256_add_ps(_mm256_add_ps(sum[i][0], sum[i][1]),
                                   _mm256_add_ps(sum[i][2], sum[i][3])));
}

INLINE void dot_type(vptq_dtype type, const uint8_t *w, size_t length, size_t n, const float *x,
                     size_t ldx, float *y)
{
    size_t i = 0;
    for (; n - i >= 2; i += 2)
        dot_rows(type, w, length, 2, x + i * ldx, ldx, y + i);
    if (i < n)
        dot_rows(type, w, length, 1, x + i * ldx, ldx, y + i);
}

static void dot(vptq_dtype type, const void *w, size_t length, size_t n, const float *x,
                size_t ldx, float *y)
{
    switch (type) {
    case VPTQ_F32:
        dot_type(VPTQ_F32, w, length, n, x, ldx, y);
        break;
    case VPTQ_F16:
        dot_type(VPTQ_F16, w, length, n, x, ldx, y);
        break;
    default:
        dot_type(VPTQ_BF16, w, length, n, x, ldx, y);
        break;
    }
}
