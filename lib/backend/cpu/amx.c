/* Packing for tiles, and the product of a block (amx.h). */
#include "lib/backend/cpu/amx.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#include "lib/base/half.h"

#define AMX_TARGET __attribute__((target("avx512bw,amx-tile,amx-bf16")))

enum { TILE = VPTQ_AMX_TILE, STEP = VPTQ_AMX_STEP, HALF = TILE / 2 };
_Static_assert(TILE == STEP, "blocks of A and B have the same shape");

/* ---- packing ----
 *
 * A tile has 16 rows of 32 numbers.  Of A: 16 rows, 32 steps.  Of B: 16 pairs of steps, and for
 * each the two numbers of 16 columns. */

/* to [TILE, TILE] = bfloat16 of factor * src [rows, cols], or of its transpose; zeros around.
 */
static void round_block(const vptq_cpu_math *math, size_t rows, size_t cols, const float *src,
                        size_t ld, bool transposed, float factor, uint16_t *to)
{
    float block[TILE * TILE];
    if (rows < TILE || cols < TILE)
        memset(block, 0, sizeof block);
    if (transposed)
        math->transpose(cols, rows, src, ld, factor, block, TILE);
    else
        math->copy(rows, cols, src, ld, factor, block, TILE);
    vptq_f32_to_bf16_n(block, to, TILE * TILE);
}

void vptq_amx_pack_left(const vptq_cpu_math *math, size_t rows, size_t k, const float *a,
                        size_t ld, bool transposed, float alpha, float *out)
{
    uint16_t *to = (uint16_t *)(void *)out;
    for (size_t l = 0; l < k; l += STEP, to += TILE * STEP)
        round_block(math, rows, k - l < STEP ? k - l : STEP, a + (transposed ? l * ld : l), ld,
                    transposed, alpha, to);
}

/* Two tiles of pairs of steps from a block [STEP, TILE]. */
AMX_TARGET static void interleave(const uint16_t *block, uint16_t *to)
{
    for (size_t half = 0; half < TILE; half += HALF)
        for (size_t l = 0; l < STEP; l += 2, to += 2 * HALF)
            for (size_t j = 0; j < HALF; j++) {
                to[2 * j] = block[l * TILE + half + j];
                to[2 * j + 1] = block[(l + 1) * TILE + half + j];
            }
}

void vptq_amx_pack_right(const vptq_cpu_math *math, size_t cols, size_t k, const float *b,
                         size_t ld, bool transposed, float *out)
{
    uint16_t block[STEP * TILE], *to = (uint16_t *)(void *)out;
    for (size_t l = 0; l < k; l += STEP, to += TILE * STEP) {
        round_block(math, k - l < STEP ? k - l : STEP, cols, b + (transposed ? l : l * ld), ld,
                    transposed, 1, block);
        interleave(block, to);
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
