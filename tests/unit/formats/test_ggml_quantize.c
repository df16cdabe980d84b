/* Quantized blocks against those of ggml (tests/golden/make_ggml_blocks.py), byte by byte, and
 * the numbers at the ends of what the types hold. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf/quants.h"
#include "tests/support/vtest.h"

enum { BLOCKS = 8, N = 256 * BLOCKS, MAX_BYTES = N / 32 * 34 };

static void test_every_type_has_the_same_bytes(void **state)
{
    (void)state;
    static float x[N];
    static uint8_t made[MAX_BYTES];
    size_t size, at = sizeof x;
    char *file = vtest_read_file("tests/golden/ggml_blocks.bin", &size);
    memcpy(x, file, sizeof x);
    for (vptq_dtype t = VPTQ_Q4_0; t <= VPTQ_Q6_K; t++) {
        const vptq_dtype_info *info = vptq_dtype_get(t);
        assert_true(at + N / info->block * info->bytes <= size);
        memset(made, 0x55, sizeof made);
        vptq_ggml_quantize(t, x, N, made);
        for (size_t b = 0; b < N / info->block; b++, at += info->bytes)
            if (memcmp(made + b * info->bytes, file + at, info->bytes) != 0)
                fail_msg("%s: block %zu differs", info->name, b);
    }
    assert_int_equal(at, size);
    free(file);
}

/* The largest numbers have finite scales. */
static void test_largest_numbers(void **state)
{
    (void)state;
    float x[256], back[256];
    uint8_t made[256 / 32 * 34];
    for (vptq_dtype t = VPTQ_Q4_0; t <= VPTQ_Q6_K; t++) {
        const float limit = vptq_ggml_limit(t);
        assert_true(limit >= 65504);
        for (int sign = -1; sign <= 1; sign++) { /* 0: both */
            for (int i = 0; i < 256; i++)
                x[i] = (float)(sign ? sign : i % 3 ? 1 : -1) * limit;
            vptq_ggml_quantize(t, x, 256, made);
            vptq_ggml_dequantize(t, made, 256, back);
            for (int i = 0; i < 256; i++)
                if (!(fabsf(back[i] - x[i]) <= limit / 4))
                    fail_msg("%s: %g became %g", vptq_dtype_get(t)->name, (double)x[i],
                             (double)back[i]);
        }
    }
    assert_true(vptq_ggml_limit(VPTQ_F32) == 0);
}

/* Numbers so small that the inverse of their scale is infinite, alone and next to others. */
static void test_subnormal_numbers(void **state)
{
    (void)state;
    float x[256], back[256];
    uint8_t made[256 / 32 * 34];
    for (vptq_dtype t = VPTQ_Q4_0; t <= VPTQ_Q6_K; t++)
        for (int mixed = 0; mixed < 2; mixed++) {
            for (int i = 0; i < 256; i++)
                x[i] = (float)(i - 128) * (mixed && i >= 32 ? 1e-3F : 1e-41F);
            memset(made, 0x55, sizeof made);
            vptq_ggml_quantize(t, x, 256, made);
            vptq_ggml_dequantize(t, made, 256, back);
            for (int i = 0; i < (mixed ? 32 : 256); i++)
                if (back[i] != 0)
                    fail_msg("%s: number %d became %g", vptq_dtype_get(t)->name, i,
                             (double)back[i]);
        }
}

VTEST_MAIN(cmocka_unit_test(test_every_type_has_the_same_bytes),
           cmocka_unit_test(test_largest_numbers), cmocka_unit_test(test_subnormal_numbers))
