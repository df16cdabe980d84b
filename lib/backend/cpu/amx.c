/* Packing for tiles, and the product of a block (amx.h). */
#include "lib/backend/cpu/amx.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define AMX_TARGET                                                                             \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")))

enum { TILE = VPTQ_AMX_TILE, STEP = VPTQ_AMX_STEP, HALF = TILE / 2, PAIRS = STEP / 2 };

/* ---- packing ----
 *
 * A tile has 16 rows of 32 numbers.  Of A: 16 rows, 32 steps.  Of B: 16 pairs of steps, and for
 * each the two numbers of 16 columns. */

/* The 16 floats at x, rounded to nearest even, in the upper halves of their lanes. */
AMX_TARGET static inline __m512i round_upper(const float *x)
{
    const __m512i u = _mm512_loadu_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i nearest =
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i size = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
    return _mm512_mask_or_epi32(nearest, nan, u, _mm512_set1_epi32(0x400000));
}

/* 16 pairs of steps of 16 columns, from floats [STEP, TILE]. */
AMX_TARGET static void pack_pairs(const float *from, char *to)
{
    for (size_t p = 0; p < PAIRS; p++, from += 2 * TILE, to += 64) {
        const __m512i even = _mm512_srli_epi32(round_upper(from), 16);
        const __m512i odd =
            _mm512_and_si512(round_upper(from + TILE), _mm512_set1_epi32((int)0xffff0000));
        _mm512_storeu_si512(to, _mm512_or_si512(even, odd));
    }
}

/* 16 rows of 32 numbers. */
AMX_TARGET static void pack_rows(const float *from, char *to)
{
    for (size_t i = 0; i < TILE; i++, from += STEP, to += 64) {
        const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_upper(from), 16));
        const __m256i high =
            _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_upper(from + PAIRS), 16));
        _mm256_storeu_si256((__m256i *)(void *)to, low);
        _mm256_storeu_si256((__m256i *)(void *)(to + 32), high);
    }
}

void vptq_amx_pack_left(const vptq_cpu_math *math, size_t rows, size_t k, const float *a,
                        size_t ld, bool transposed, float alpha, float *out)
{
    float tile[TILE * STEP];
    char *to = (char *)out;
    for (size_t l = 0; l < k; l += STEP, to += TILE * STEP * 2) {
        const size_t n = k - l < STEP ? k - l : STEP;
        if (rows < TILE || n < STEP)
            memset(tile, 0, sizeof tile);
        if (transposed)
            math->transpose(n, rows, a + l * ld, ld, alpha, tile, STEP);
        else
            math->copy(rows, n, a + l, ld, alpha, tile, STEP);
        pack_rows(tile, to);
    }
}

void vptq_amx_pack_right(const vptq_cpu_math *math, size_t cols, size_t k, const float *b,
                         size_t ld, bool transposed, float *out)
{
    float tile[STEP * TILE];
    char *to = (char *)out;
    for (size_t l = 0; l < k; l += STEP, to += TILE * STEP * 2) {
        const size_t n = k - l < STEP ? k - l : STEP;
        if (cols < TILE || n < STEP)
            memset(tile, 0, sizeof tile);
        if (transposed)
            math->transpose(cols, n, b + l, ld, 1, tile, TILE);
        else
            math->copy(n, cols, b + l * ld, ld, 1, tile, TILE);
        pack_pairs(tile, to);
        pack_pairs(tile + HALF, to + TILE * STEP);
    }
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
void vptq_amx_pack_left(const vptq_cpu_math *math, size_t rows, size_t k, const float *a,
                        size_t ld, bool transposed, float alpha, float *out)
{
    (void)math, (void)rows, (void)k, (void)a, (void)ld, (void)transposed, (void)alpha,
        (void)out;
}

void vptq_amx_pack_right(const vptq_cpu_math *math, size_t cols, size_t k, const float *b,
                         size_t ld, bool transposed, float *out)
{
    (void)math, (void)cols, (void)k, (void)b, (void)ld, (void)transposed, (void)out;
}

void vptq_amx_begin(void) {}

void vptq_amx_end(void) {}

void vptq_amx_tile(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                   size_t rows, size_t cols)
{
    (void)k, (void)a, (void)b, (void)add, (void)c, (void)ldc, (void)rows, (void)cols;
}

#endif
