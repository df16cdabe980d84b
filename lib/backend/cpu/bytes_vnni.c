/* The kernels of vptq_vnni_kernels (bytes.h). */
#include <string.h>

#include "lib/backend/array_ops.h"
#include "lib/backend/cpu/bytes.h"

#if defined(__x86_64__)
#include "lib/backend/cpu/words_simd.h"

#define VNNI_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define AMX_TARGET  __attribute__((target("avx512f,avx512bw,amx-tile,amx-int8")))
#define VNNI_INLINE VNNI_TARGET static inline __attribute__((always_inline))

enum {
    OUT = VPTQ_BYTES_OUT,
    TOKENS = VPTQ_BYTES_TOKENS,
    PANEL = VPTQ_BYTES_PANEL,
    BLOCK = VPTQ_BYTES_BLOCK,
    PIECE = 64,       /* bytes of a vector */
    WORDS = PIECE / 4 /* the same in words */
};

/* Sums of a block, and the rows of codes that it has. */
typedef struct sums {
    const uint32_t *codes;
    size_t words, rows; /* of a row of codes; rows that exist, up to BLOCK */
    const uint32_t *panel[2];
    int32_t (*sum)[BLOCK]; /* [BLOCK][BLOCK], aligned to 64 */
} sums;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- few tokens: lanes are bytes of a row ---- */

/* `bytes` of a row from `at` on, then zeros. */
VNNI_INLINE __m512i load_piece(const void *row, size_t at, size_t bytes)
{
    const char *p = (const char *)row + at;
    return bytes < PIECE ? _mm512_maskz_loadu_epi8(((__mmask64)1 << bytes) - 1, p)
                         : _mm512_loadu_si512(p);
}

VNNI_TARGET static int32_t excess(const int8_t *q, size_t bytes)
{
    __m512i sum = _mm512_setzero_si512();
    for (size_t at = 0; at < bytes; at += PIECE)
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)0x80),
                                  load_piece(q, at, bytes - at));
    return _mm512_reduce_add_epi32(sum);
}

/* Four sums in each group of four lanes: one of each row of codes. */
VNNI_INLINE __m512i join_rows(const __m512i s[OUT])
{
    const __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Adds the groups of a and those of b, and puts two sums of each side by side. */
VNNI_INLINE __m512i join_groups(__m512i a, __m512i b, bool last)
{
    return last ? _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88),
                                   _mm512_shuffle_i32x4(a, b, 0xdd))
                : _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44),
                                   _mm512_shuffle_i32x4(a, b, 0xee));
}

/* Adds the products of `bytes` of each row from `at` on. */
VNNI_INLINE void add_piece(const vptq_bytes_tile *t, size_t at, size_t bytes, size_t tokens,
                           __m512i s[TOKENS][OUT])
{
    __m512i codes[OUT];
#pragma GCC unroll 4
    for (size_t o = 0; o < OUT; o++)
        codes[o] = load_piece(t->codes[o], at, bytes);
#pragma GCC unroll 4
    for (size_t i = 0; i < tokens; i++) {
        const __m512i q = load_piece(t->q[i], at, bytes);
#pragma GCC unroll 4
        for (size_t o = 0; o < OUT; o++)
            s[i][o] = _mm512_dpbusd_epi32(s[i][o], codes[o], q);
    }
}

VNNI_INLINE void multiply_rows(vptq_bytes_tile *t, size_t tokens)
{
    __m512i s[TOKENS][OUT], row[TOKENS];
#pragma GCC unroll 4
    for (size_t i = 0; i < tokens; i++)
#pragma GCC unroll 4
        for (size_t o = 0; o < OUT; o++)
            s[i][o] = _mm512_setzero_si512();
    size_t at = 0;
    for (; at + PIECE <= t->bytes; at += PIECE)
        add_piece(t, at, PIECE, tokens, s);
    if (at < t->bytes)
        add_piece(t, at, t->bytes - at, tokens, s);
#pragma GCC unroll 4
    for (size_t i = 0; i < TOKENS; i++)
        row[i] = join_rows(s[i < tokens ? i : 0]);
    const __m512i first = join_groups(row[0], row[1], false);
    const __m512i second = tokens > 2 ? join_groups(row[2], row[3], false) : first;
    const __m512i sum = join_groups(first, second, true);
    const __m512i too_much = _mm512_castsi128_si512(_mm_loadu_si128((void *)t->excess));
    const __m512i token = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    _mm512_storeu_si512(t->sum,
                        _mm512_sub_epi32(sum, _mm512_permutexvar_epi32(token, too_much)));
}

VNNI_TARGET static void one(vptq_bytes_tile *t)
{
    multiply_rows(t, 1);
}

VNNI_TARGET static void all(vptq_bytes_tile *t)
{
    multiply_rows(t, TOKENS);
}

/* ---- many tokens: lanes are tokens ---- */

VNNI_TARGET static void pack(const int8_t *q, size_t bytes, size_t rows,
                             const vptq_bytes_panels *p, size_t panel)
{
    __m512i *to = (__m512i *)(void *)(p->word + panel * p->words * PANEL);
    __m512i r[PANEL], sum = _mm512_setzero_si512();
    for (size_t at = 0; at < p->words * 4; at += PIECE, to += PANEL) {
        for (size_t i = 0; i < PANEL; i++)
            r[i] = i < rows ? load_piece(q + i * bytes, at, bytes > at ? bytes - at : 0)
                            : _mm512_setzero_si512();
        vptq_transpose_words(r);
        for (size_t i = 0; i < PANEL; i++) {
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)0x80), r[i]);
            _mm512_store_si512(to + i, r[i]);
        }
    }
    _mm512_storeu_si512(p->excess + panel * PANEL, sum);
}

/* Sums of `out` rows of codes from row `first` on with `panels` panels; the last row again in
 * place of those that do not exist.  All but t and `first` are constants at the call. */
VNNI_INLINE void multiply_lanes(sums *t, size_t first, size_t out, size_t panels)
{
    const uint32_t *codes[8];
    __m512i s[8][2];
#pragma GCC unroll 8
    for (size_t o = 0; o < out; o++) {
        codes[o] = t->codes + least(first + o, t->rows - 1) * t->words;
#pragma GCC unroll 2
        for (size_t p = 0; p < panels; p++)
            s[o][p] = _mm512_setzero_si512();
    }
    for (size_t w = 0; w < t->words; w++) {
        __m512i q[2];
#pragma GCC unroll 2
        for (size_t p = 0; p < panels; p++)
            q[p] = _mm512_load_si512(t->panel[p] + w * PANEL);
#pragma GCC unroll 8
        for (size_t o = 0; o < out; o++) {
            const __m512i code = _mm512_set1_epi32((int32_t)codes[o][w]);
#pragma GCC unroll 2
            for (size_t p = 0; p < panels; p++)
                s[o][p] = _mm512_dpbusd_epi32(s[o][p], code, q[p]);
        }
    }
#pragma GCC unroll 8
    for (size_t o = 0; o < out; o++)
#pragma GCC unroll 2
        for (size_t p = 0; p < panels; p++)
            _mm512_store_si512(t->sum[first + o] + p * PANEL, s[o][p]);
}

VNNI_TARGET static void multiply_vnni(sums *t, size_t panels)
{
    for (size_t first = 0; first < t->rows; first += 8)
        if (panels == 1)
            multiply_lanes(t, first, 8, 1);
        else
            multiply_lanes(t, first, 8, 2);
}

/* All rows of a block, which exist: two by two tiles.  Words of codes at the end of rows that
 * fill no tile are copied first.  The intrinsics do not say what they read and write: the empty
 * asm statements do. */
AMX_TARGET static void multiply_amx(sums *t)
{
    uint32_t last[BLOCK][WORDS] = {{0}};
    const size_t whole = t->words / WORDS * WORDS, row = t->words * 4;
    for (size_t o = 0; t->words > whole && o < BLOCK; o++)
        memcpy(last[o], t->codes + o * t->words + whole, (t->words - whole) * 4);
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t w = 0; w < t->words; w += WORDS) {
        const uint32_t *codes = w < whole ? t->codes + w : last[0];
        const size_t stride = w < whole ? row : PIECE;
        _tile_loadd(4, codes, stride);
        _tile_loadd(6, t->panel[0] + w * PANEL, PIECE);
        _tile_loadd(7, t->panel[1] + w * PANEL, PIECE);
        _tile_loadd(5, (const char *)codes + PANEL * stride, stride);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, t->sum[0], sizeof *t->sum);
    _tile_stored(1, t->sum[0] + PANEL, sizeof *t->sum);
    _tile_stored(2, t->sum[PANEL], sizeof *t->sum);
    _tile_stored(3, t->sum[PANEL] + PANEL, sizeof *t->sum);
    __asm__ volatile("" ::: "memory");
}

/* ---- results ---- */

/* Four rows of y, [4, 16] with tokens in lanes, as [16, 4]: token 4 g + i is group g of to[i].
 */
VNNI_INLINE void transpose_four(const __m512 y[4], __m512 to[4])
{
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(y[0], y[1])),
                  b = _mm512_castps_pd(_mm512_unpackhi_ps(y[0], y[1])),
                  c = _mm512_castps_pd(_mm512_unpacklo_ps(y[2], y[3])),
                  d = _mm512_castps_pd(_mm512_unpackhi_ps(y[2], y[3]));
    to[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    to[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    to[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    to[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}

/* y of up to four outputs and the tokens of a panel. */
VNNI_TARGET static void store_four(const vptq_multiply_bytes_args *a, const sums *t,
                                   const int32_t *too_much, size_t token, size_t out,
                                   size_t row, size_t column)
{
    const size_t tokens = least(a->rows - token, PANEL), outs = least(a->out - out, 4);
    const __mmask8 mask = (__mmask8)((1u << outs) - 1);
    const __m512 scale =
        _mm512_maskz_loadu_ps((__mmask16)((1u << tokens) - 1), a->q_scale + token);
    float part[4][PANEL / 4][4];
    __m512 y[4], to[4];
    for (size_t o = 0; o < 4; o++) {
        const size_t real = out + least(o, outs - 1);
        const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(t->sum[row + o] + column),
                                             _mm512_loadu_si512(too_much));
        y[o] = _mm512_mul_ps(_mm512_cvtepi32_ps(sum),
                             _mm512_mul_ps(scale, _mm512_set1_ps(a->scale[real])));
        if (a->bias)
            y[o] = _mm512_add_ps(y[o], _mm512_set1_ps(a->bias[real]));
    }
    transpose_four(y, to);
    for (size_t i = 0; i < 4; i++)
        _mm512_storeu_ps(part[i], to[i]);
    for (size_t i = 0; i < tokens; i++) {
        float *dst = a->y + (token + i) * a->ldy + out;
        __m128 z = _mm_loadu_ps(part[i % 4][i / 4]);
        if (a->beta != 0)
            z = _mm_add_ps(_mm_maskz_loadu_ps(mask, dst), z);
        _mm_mask_storeu_ps(dst, mask, z);
    }
}

VNNI_TARGET static void block(const vptq_multiply_bytes_args *a, const vptq_bytes_panels *p,
                              size_t panel, size_t out, bool amx)
{
    const size_t token = panel * PANEL, size = p->words * PANEL;
    const size_t panels = a->rows - token > PANEL ? 2 : 1;
    _Alignas(64) int32_t sum[BLOCK][BLOCK];
    sums t = {.sum = sum,
              .codes = a->codes + out * (VPTQ_BYTES_ROW(a->in) / 4),
              .words = VPTQ_BYTES_ROW(a->in) / 4,
              .rows = least(a->out - out, BLOCK),
              .panel = {p->word + panel * size, p->word + (panel + 1) * size}};
    if (amx && t.rows == BLOCK)
        multiply_amx(&t);
    else
        multiply_vnni(&t, panels);
    for (size_t i = 0; i < panels; i++)
        for (size_t o = 0; o < t.rows; o += 4)
            store_four(a, &t, p->excess + (panel + i) * PANEL, token + i * PANEL, out + o, o,
                       i * PANEL);
}

static const vptq_vnni_kernels kernels = {excess, one, all, pack, block};

const vptq_vnni_kernels *vptq_vnni_kernels_get(vptq_simd simd)
{
    return simd == VPTQ_SIMD_AVX512 && __builtin_cpu_supports("avx512vnni") ? &kernels : NULL;
}

#else

const vptq_vnni_kernels *vptq_vnni_kernels_get(vptq_simd simd)
{
    (void)simd;
    return NULL;
}

#endif
