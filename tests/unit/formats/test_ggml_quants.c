/* Dequantized blocks against those of the gguf Python package
 * (tests/golden/make_ggml_quants.py). The bits are equal, because both follow ggml's order of
 * float operations. */
#include <stdlib.h>
#include <string.h>

#include "formats/gguf/quants.h"
#include "tests/support/vtest.h"

enum { BLOCKS = 5 };

static void test_every_type_has_the_same_bits(void **state)
{
    (void)state;
    size_t size, at = 0;
    char *file = vtest_read_file("tests/golden/ggml_quants.bin", &size);
    for (vptq_dtype t = VPTQ_Q4_0; t <= VPTQ_Q6_K; t++) {
        const vptq_dtype_info *info = vptq_dtype_get(t);
        size_t n = BLOCKS * info->block, bytes = BLOCKS * info->bytes;
        float expected[BLOCKS * 256], found[BLOCKS * 256];
        assert_true(at + bytes + n * sizeof *expected <= size);
        memcpy(expected, file + at + bytes, n * sizeof *expected);
        vptq_ggml_dequantize(t, (const uint8_t *)file + at, n, found);
        assert_same_f32(found, expected, n);
        at += bytes + n * sizeof *expected;
    }
    assert_int_equal(at, size);
    free(file);
}

/* Blocks are independent: dequantized one at a time, they give the same as all at once. */
static void test_blocks_are_independent(void **state)
{
    (void)state;
    uint8_t src[4 * 210];
    float all[4 * 256], one[256];
    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (uint8_t)(i * 37 + 11);
    for (size_t b = 0; b < 4; b++) /* a finite scale */
        src[b * 210 + 209] = 0x2c;
    vptq_ggml_dequantize(VPTQ_Q6_K, src, 4 * 256, all);
    for (size_t b = 0; b < 4; b++) {
        vptq_ggml_dequantize(VPTQ_Q6_K, src + b * 210, 256, one);
        assert_same_f32(one, all + b * 256, 256);
    }
}

static void test_zero_elements(void **state)
{
    (void)state;
    float x = 7;
    vptq_ggml_dequantize(VPTQ_Q4_0, (const uint8_t *)"", 0, &x);
    assert_true(x == 7);
}

VTEST_MAIN(cmocka_unit_test(test_every_type_has_the_same_bits),
           cmocka_unit_test(test_blocks_are_independent), cmocka_unit_test(test_zero_elements))
