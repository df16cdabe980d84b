/* Packing for tiles, and the product of a block (amx.h). */
#include "lib/backend/cpu/amx.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include "lib/backend/cpu/words_simd.h"

#define AMX_TARGET __attribute__((target("avx512bw,amx-tile,amx-bf16")))

enum { TILE = VPTQ_AMX_TILE, STEP = VPTQ_AMX_STEP, HALF = TILE / 2 };
_Static_assert(TILE == STEP, "blocks of A and B have the same shape");

/* ---- packing ----
 *
 * A tile has 16 rows of 32 numbers.  Of A: 16 rows, 32 steps of k.  Of B: 16 pairs of steps,
 * and for each the two numbers of 16 columns.  With pairs as units of 32 bits, one is the
 * transpose of the other. */

/* bfloat16 of factor * x as vptq_f32_to_bf16 rounds, in the upper half of every number. */
AMX_TARGET static inline __m512i rounded(__m512 x, float factor)
{
    const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(factor));
    const __m512i u = _mm512_castps_si512(y);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i nearest =
        _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_mask_or_epi32(nearest, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), u,
                                _mm512_set1_epi32(0x400000));
}

/* The first n of 16 numbers, then zeros. */
AMX_TARGET static inline __m512 load_first(const float *x, size_t n)
{
    const unsigned mask = n < HALF ? (1u << n) - 1 : 0xffffu;
    return _mm512_maskz_loadu_ps((__mmask16)mask, x);
}

/* to[i] = 32 steps of row i, which are contiguous in memory; `rows` rows of `steps` exist. */
AMX_TARGET static inline void load_rows(const float *from, size_t ld, size_t rows, size_t steps,
                                        float factor, __m512i to[HALF])
{
    const __m512i upper =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                         27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    for (size_t i = 0; i < HALF; i++, from += ld) {
        if (i >= rows) {
            to[i] = _mm512_setzero_si512();
            continue;
        }
        const __m512i low = rounded(load_first(from, steps), factor);
        const __m512i high = steps > HALF
                                 ? rounded(load_first(from + HALF, steps - HALF), factor)
                                 : _mm512_setzero_si512();
        to[i] = _mm512_permutex2var_epi16(low, upper, high);
    }
}

/* to[p] = steps 2p and 2p + 1 of 16 rows, which are contiguous in memory for one step. */
AMX_TARGET static inline void load_pairs(const float *from, size_t ld, size_t rows,
                                         size_t steps, float factor, __m512i to[HALF])
{
    for (size_t p = 0; p < HALF; p++, from += 2 * ld) {
        __m512i even = _mm512_setzero_si512(), odd = even;
        if (2 * p < steps)
            even = _mm512_srli_epi32(rounded(load_first(from, rows), factor), 16);
        if (2 * p + 1 < steps)
            odd = _mm512_and_si512(rounded(load_first(from + ld, rows), factor),
                                   _mm512_set1_epi32((int)0xffff0000));
        to[p] = _mm512_or_si512(even, odd);
    }
}

/* Packs n rows of A or columns of B.  by_step: number l of row i is at l * ld + i, else at
 * i * ld + l. */
AMX_TARGET static void pack(size_t n, size_t k, const float *from, size_t ld, bool by_step,
                            bool left, float factor, float *out)
{
    __m512i r[HALF], *to = (__m512i *)(void *)out;
    for (size_t l = 0; l < k; l += STEP)
        for (size_t i = 0; i < TILE; i += HALF, to += HALF) {
            const size_t rows = n > i ? n - i : 0;
            if (by_step)
                load_pairs(from + l * ld + i, ld, rows, k - l, factor, r);
            else
                load_rows(from + i * ld + l, ld, rows, k - l, factor, r);
            if (by_step == left)
                vptq_transpose_words(r);
            for (size_t j = 0; j < HALF; j++)
                _mm512_storeu_si512(to + j, r[j]);
        }
}

void vptq_amx_pack_left(size_t rows, size_t k, const float *a, size_t ld, bool transposed,
                        float alpha, float *out)
{
    pack(rows, k, a, ld, transposed, true, alpha, out);
}

void vptq_amx_pack_right(size_t cols, size_t k, const float *b, size_t ld, bool transposed,
                         float *out)
{
    pack(cols, k, b, ld, !transposed, false, 1, out);
}

/* ---- products ---- */

/* Operand of ldtilecfg: 8 tiles of 16 rows of 64 bytes. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Two by two tiles of C, rows ldc floats apart.  The intrinsics do not say what they read and
 * write: the empty asm statements do. */
AMX_TARGET static void multiply(size_t k, const char *a, const char *b, bool add, float *c,
                                size_t ldc)
{
    const size_t stride = ldc * sizeof *c, bytes = HALF * 64;
    __asm__ volatile("" ::: "memory");
    if (add) {
        _tile_loadd(0, c, stride);
        _tile_loadd(1, c + HALF, stride);
        _tile_loadd(2, c + HALF * ldc, stride);
        _tile_loadd(3, c + HALF * ldc + HALF, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t l = 0; l < k; l += STEP, a += 2 * bytes, b += 2 * bytes) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + bytes, 64);
        _tile_loadd(5, a + bytes, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + HALF, stride);
    _tile_stored(2, c + HALF * ldc, stride);
    _tile_stored(3, c + HALF * ldc + HALF, stride);
    __asm__ volatile("" ::: "memory");
}

/* The same at the edge of C, through a whole block. */
AMX_TARGET static void multiply_part(size_t k, const char *a, const char *b, bool add, float *c,
                                     size_t ldc, size_t rows, size_t cols)
{
    float block[TILE * TILE] = {0};
    for (size_t i = 0; add && i < rows; i++)
        memcpy(block + i * TILE, c + i * ldc, cols * sizeof *c);
    multiply(k, a, b, add, block, TILE);
    for (size_t i = 0; i < rows; i++)
        memcpy(c + i * ldc, block + i * TILE, cols * sizeof *c);
}

AMX_TARGET void vptq_amx_begin(void)
{
    static const tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {HALF, HALF, HALF, HALF, HALF, HALF, HALF, HALF}};
    _tile_loadconfig(&config);
}

AMX_TARGET void vptq_amx_end(void)
{
    _tile_release();
}

void vptq_amx_tile(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                   size_t rows, size_t cols)
{
    if (rows == TILE && cols == TILE)
        multiply(k, (const char *)a, (const char *)b, add, c, ldc);
    else
        multiply_part(k, (const char *)a, (const char *)b, add, c, ldc, rows, cols);
}

#else

/* Never called: other processors have no AMX. */
void vptq_amx_pack_left(size_t rows, size_t k, const float *a, size_t ld, bool transposed,
                        float alpha, float *out)
{
    (void)rows, (void)k, (void)a, (void)ld, (void)transposed, (void)alpha, (void)out;
}

void vptq_amx_pack_right(size_t cols, size_t k, const float *b, size_t ld, bool transposed,
                         float *out)
{
    (void)cols, (void)k, (void)b, (void)ld, (void)transposed, (void)out;
}

void vptq_amx_begin(void) {}

void vptq_amx_end(void) {}

void vptq_amx_tile(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                   size_t rows, size_t cols)
{
    (void)k, (void)a, (void)b, (void)add, (void)c, (void)ldc, (void)rows, (void)cols;
}

#endif
