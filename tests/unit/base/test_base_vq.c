/* Tests element types, and the shape and size of a vector-quantized matrix. */
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/vq.h"
#include "tests/support/vtest.h"

static void test_dtypes(void **state)
{
    (void)state;
    vptq_err err;
    vptq_dtype t;
    size_t bytes = 1;
    for (int i = 0; i < VPTQ_DTYPE_COUNT; i++) {
        const vptq_dtype_info *info = vptq_dtype_get((vptq_dtype)i);
        assert_true(info->name && info->block && info->bytes);
        if (info->safetensors) {
            assert_ok(vptq_dtype_from_safetensors(info->safetensors, &t, &err), &err);
            assert_int_equal(t, i);
        }
    }
    assert_fails(vptq_dtype_from_safetensors("Q4_0", &t, &err), VPTQ_E_UNSUPPORTED, &err,
                 "'Q4_0'");
    assert_ok(vptq_dtype_from_option("bf16", &t, &err), &err);
    assert_int_equal(t, VPTQ_BF16);
    assert_fails(vptq_dtype_from_option("BF16", &t, &err), VPTQ_E_ARG, &err, "f16, bf16");
    assert_true(vptq_dtype_bytes(VPTQ_Q4_1, 64, &bytes) && bytes == 40);
    assert_true(vptq_dtype_bytes(VPTQ_Q6_K, 512, &bytes) && bytes == 420);
    assert_true(vptq_dtype_bytes(VPTQ_F64, 0, &bytes) && bytes == 0);
    assert_false(vptq_dtype_bytes(VPTQ_Q4_1, 65, &bytes));
    assert_false(vptq_dtype_bytes(VPTQ_F32, SIZE_MAX / 4 + 1, &bytes));
}

/* 4096 x 4096, v = 8, k = 65536, 256 residual centroids: 3 bits of indices per weight. */
static vptq_vq_shape plain(void)
{
    return (vptq_vq_shape){.out = 4096,
                           .in = 4096,
                           .v = 8,
                           .k = 65536,
                           .k_res = 256,
                           .groups = 1,
                           .group_size = 4096};
}

static void test_bits_by_hand(void **state)
{
    (void)state;
    vptq_err err;
    vptq_vq_shape s = plain();
    assert_ok(vptq_vq_shape_check(&s, &err), &err);
    vptq_vq_bits b = vptq_vq_count_bits(&s);
    assert_int_equal(b.indices, 3u * 4096 * 4096);
    assert_int_equal(b.codebooks, (65536u + 256) * 8 * 16);
    assert_int_equal(b.norm + b.perm + b.outlier_indices + b.outlier_codebook, 0);
    assert_int_equal(b.total, b.indices + b.codebooks);
    assert_true(b.per_weight == (double)b.total / (4096.0 * 4096));
    /* Ragged: 10 rows in vectors of 4 (3 vector rows), 7 outlier columns in vectors of 3 (4
     * vector rows), 3 groups of 31 columns with 5 bits each: 155 bits in 5 words per row. */
    s = (vptq_vq_shape){.out = 10,
                        .in = 100,
                        .v = 4,
                        .k = 32,
                        .groups = 3,
                        .group_size = 31,
                        .outliers = 7,
                        .v0 = 3,
                        .k0 = 64,
                        .has_perm = true,
                        .has_norm = true};
    assert_ok(vptq_vq_shape_check(&s, &err), &err);
    b = vptq_vq_count_bits(&s);
    assert_int_equal(b.indices, 3 * 3 * 5 * 32);
    assert_int_equal(b.codebooks, 3 * 32 * 4 * 16);
    assert_int_equal(b.norm, 2 * 100 * 16);
    assert_int_equal(b.perm, 100 * 16);
    assert_int_equal(b.outlier_indices, 4 * 7 * 16);
    assert_int_equal(b.outlier_codebook, 64 * 3 * 16);
    assert_int_equal(b.total, 1440 + 6144 + 3200 + 1600 + 448 + 3072);
    /* Of 8 bits, with a scale for each codebook of each group. */
    s.int8 = true;
    s.k_res = 2;
    b = vptq_vq_count_bits(&s);
    assert_int_equal(b.codebooks, 3 * (32 * 4 * 8 + 16 + 2 * 4 * 8 + 16));
    assert_int_equal(b.outlier_codebook, 64 * 3 * 8 + 16);
}

static void refuse(vptq_vq_shape s, const char *part)
{
    vptq_err err = {0};
    assert_fails(vptq_vq_shape_check(&s, &err), VPTQ_E_SHAPE, &err, part);
}

static void test_shape_rules(void **state)
{
    (void)state;
    vptq_vq_shape s;
    s = plain(), s.out = 0, refuse(s, "0 x 4096");
    s = plain(), s.in = 65537, refuse(s, "4096 x 65537");
    s = plain(), s.v = 0, refuse(s, "vector length 0");
    s = plain(), s.v = 65, refuse(s, "vector length 65");
    s = plain(), s.k = 0, refuse(s, "0 centroids");
    s = plain(), s.k = 3000, refuse(s, "3000 centroids");
    s = plain(), s.k = 131072, refuse(s, "131072 centroids");
    s = plain(), s.k_res = 3, refuse(s, "3 residual");
    s = plain(), s.k = 1, s.k_res = 0, refuse(s, "0 index bits");
    s = plain(), s.groups = 0, refuse(s, "0 groups");
    s = plain(), s.group_size = 2048, refuse(s, "4096 columns");
    s = plain(), s.groups = 65536, s.group_size = 65537, refuse(s, "4096 columns");
    s = plain(), s.outliers = 1, s.group_size = 4095,
    refuse(s, "vector length 0 of the outlier");
    s = plain(), s.k0 = 4, refuse(s, "without outlier columns");
    s = plain(), s.outliers = 1, s.group_size = 4095, s.v0 = 4, refuse(s, "0 centroids of the");
}

VTEST_MAIN(cmocka_unit_test(test_dtypes), cmocka_unit_test(test_bits_by_hand),
           cmocka_unit_test(test_shape_rules))
