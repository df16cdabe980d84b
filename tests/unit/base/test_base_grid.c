/* Tests codebooks on an int8 grid: recognition against codebooks built from known codes, and
 * the property that everything written with a chosen scale is recognized after being stored. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/grid.h"
#include "lib/base/rng.h"
#include "tests/support/vtest.h"

/* Philox with seed 0, whatever the order of tests. */
static vptq_rng rng;
static uint64_t counter;

static double uniform(double from, double to)
{
    return from + (to - from) * vptq_rng_uniform(&rng, counter++);
}

static int below(uint64_t n)
{
    return (int)vptq_rng_below(&rng, counter++, n);
}

/* ---- recognition ---- */

static void check_found(const float *c, size_t n, float expected)
{
    float scale = NAN;
    int8_t *codes = malloc(n + 1);

    assert_non_null(codes);
    assert_true(vptq_grid_find(c, n, &scale, NULL));
    assert_float_equal(scale, expected, 0);
    assert_true(vptq_grid_find(c, n, &scale, codes));
    for (size_t i = 0; i < n; i++) {
        assert_float_equal((float)codes[i] * scale, c[i], 0);
        assert_in_range(abs(codes[i]), 0, VPTQ_GRID_MAX);
    }
    free(codes);
}

static float choose(vptq_dtype storage, const float *c, size_t n)
{
    const double one = 1;
    return vptq_grid_choose(storage, 1, n, c, &one);
}

static bool is_found(const float *c, size_t n)
{
    float scale;
    return vptq_grid_find(c, n, &scale, NULL);
}

/* With the codes 1 and 127 among them the common divisor is the scale itself.  The scales have
 * at most 17 significant bits, so that all their products are floats. */
static void test_known_scales(void **state)
{
    (void)state;
    const float scales[] = {1,         0x1.3p-2F, 0x1.f7p-16F, 0x1.ffffp30F,
                            0x1p-149F, 0x3p-140F, 0x1p-126F,   0x1.ffffp120F};
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
        float c[64];
        for (int i = 0; i < 64; i++)
            c[i] = (float)(below(255) - 127) * scales[s];
        c[5] = 127 * scales[s];
        c[9] = -scales[s];
        c[10] = -0.0F;
        check_found(c, 64, scales[s]);
    }
}

static void test_common_divisor(void **state)
{
    (void)state;
    check_found((const float[]){6, -10, 15}, 3, 1);
    check_found((const float[]){12, -18, 0, 24}, 4, 6);
    check_found((const float[]){0.75F}, 1, 0.75F);
    check_found((const float[]){-5, 0}, 2, 5);
    check_found((const float[]){1905, 15, 30}, 3, 15);
    check_found((const float[]){127 * 300, 300}, 2, 300); /* more than 255 units */
}

static void test_zeros(void **state)
{
    (void)state;
    check_found((const float[]){0, -0.0F, 0}, 3, 1);
    check_found(NULL, 0, 1);
}

static void test_not_on_a_grid(void **state)
{
    (void)state;
    const float largest = 3.4028235e38F;

    assert_false(is_found((const float[]){1, 128}, 2));
    assert_false(is_found((const float[]){2, 3, 255}, 3)); /* divisor 1 */
    assert_true(is_found((const float[]){2, 4, 254}, 3));
    assert_false(is_found((const float[]){1, 1.0000001F}, 2));
    assert_false(is_found((const float[]){1e-45F, 1}, 2));
    assert_false(is_found((const float[]){1e-45F, largest}, 2));
    assert_false(is_found((const float[]){1, NAN}, 2));
    assert_false(is_found((const float[]){0, INFINITY}, 2));
    assert_false(is_found((const float[]){-INFINITY}, 1));
    assert_true(is_found((const float[]){largest, -largest}, 2));
}

/* Ordinary centroids of float16 are not taken for a grid. */
static void test_random_values(void **state)
{
    (void)state;
    float c[64];
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 64; i++)
            c[i] = vptq_round_to(VPTQ_F16, (float)uniform(-3, 3));
        assert_false(is_found(c, 64));
    }
}

/* ---- everything that is written is recognized ---- */

static void check_written(vptq_dtype storage, size_t n, double size)
{
    float *c = malloc(n * sizeof *c), *read = malloc(n * sizeof *read), scale;
    int8_t *codes = malloc(n);

    assert_true(c && read && codes);
    for (size_t i = 0; i < n; i++) /* heavier tails than uniform ones */
        c[i] = (float)(size * uniform(-1, 1) * uniform(0, 1) * uniform(0, 1));
    vptq_grid_round(choose(storage, c, n), c, n);
    memcpy(read, c, n * sizeof *c);
    vptq_round_to_n(storage, read, n);
    assert_same_f32(read, c, n); /* exact in the storage type */
    assert_true(vptq_grid_find(read, n, &scale, codes));
    for (size_t i = 0; i < n; i++)
        read[i] = (float)codes[i] * scale;
    assert_same_f32(read, c, n);
    free(c);
    free(read);
    free(codes);
}

static void test_written_is_recognized(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 2, 6, 32, 512, 6144};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int round = 0; round < 80; round++) {
            /* float16 from below its smallest number to its largest */
            check_written(VPTQ_F16, sizes[s], exp2(uniform(-30, 15.99)));
            check_written(VPTQ_BF16, sizes[s], exp2(uniform(-149, 127)));
        }
}

/* ---- the choice of a scale ---- */

static double change(const float *c, const double *weight, size_t k, size_t v, float scale)
{
    double sum = 0;
    for (size_t i = 0; i < k * v; i++) {
        float x = c[i];
        vptq_grid_round(scale, &x, 1);
        sum += weight[i / v] * pow((double)c[i] - (double)x, 2);
    }
    return sum;
}

/* Against all scales that are exact for the type, tried one by one. */
static void test_best_scale(void **state)
{
    (void)state;
    enum { K = 512, V = 4 };
    float *c = malloc(K * V * sizeof *c);
    double weight[K];
    int clipped = 0;

    assert_non_null(c);
    for (int round = 0; round < 12; round++) {
        const vptq_dtype storage = round % 2 ? VPTQ_BF16 : VPTQ_F16;
        const double tail = uniform(1, 3);
        for (int i = 0; i < K * V; i++)
            c[i] = (float)uniform(-1, 1);
        for (int i = 0; i < K; i++)
            weight[i] = uniform(0, 1);
        c[0] = (float)tail; /* clipping it pays if its weight is small */
        weight[0] = round % 4 < 2 ? 1e-5 : 1;
        const float chosen = vptq_grid_choose(storage, K, V, c, weight);
        const double at = change(c, weight, K, V, chosen);
        clipped += VPTQ_GRID_MAX * (double)chosen < tail;
        for (int e = -13; e < -4; e++)
            for (int m = 8; m < 16; m += storage == VPTQ_BF16 ? 8 : 1)
                if (ldexp(m - 1, e) <= tail / VPTQ_GRID_MAX) /* not much larger scales */
                    assert_true(at <= change(c, weight, K, V, (float)ldexp(m, e)));
    }
    assert_in_range(clipped, 1, 11);
    free(c);
}

static void test_rounding(void **state)
{
    (void)state;
    float c[] = {0.2F, -0.2F, 0.25F, 0.75F, -63.4F, 64, -1000};
    const float expected[] = {0, 0, 0, 1, -63.5F, 63.5F, -63.5F};

    vptq_grid_round(0.5F, c, 7);
    assert_same_f32(c, expected, 7);
}

/* The scale 9 reaches 1143, so 1144 takes the scale 10, with which it becomes 1140.  Then 9
 * would do, but the codebook stays as it is. */
static void test_rounding_twice(void **state)
{
    (void)state;
    float c[] = {1144, 10, 20, 30, -50};
    const float expected[] = {1140, 10, 20, 30, -50};

    for (int round = 0; round < 2; round++) {
        assert_float_equal(choose(VPTQ_F16, c, 5), 10, 0);
        vptq_grid_round(10, c, 5);
        assert_same_f32(c, expected, 5);
    }
}

/* 1397.4 needs the scale 12, 13 fits the others; 107 * 13 then needs only 11, two scales less.
 */
static void test_rounding_twice_by_two_scales(void **state)
{
    (void)state;
    float c[] = {1397.4F, 13, 26, 39, 52, 65, 78, 91};
    const float expected[] = {1391, 13, 26, 39, 52, 65, 78, 91};

    for (int round = 0; round < 2; round++) {
        assert_float_equal(choose(VPTQ_F16, c, 8), 13, 0);
        vptq_grid_round(13, c, 8);
        assert_same_f32(c, expected, 8);
    }
}

static void test_nothing_to_choose(void **state)
{
    (void)state;
    float c[] = {0, -0.0F, 0, 1e-12F};
    const float zeros[4] = {0};

    assert_float_equal(choose(VPTQ_F16, c, 3), 1, 0);
    assert_float_equal(choose(VPTQ_F16, c, 4), 0x1p-24F, 0);
    vptq_grid_round(0x1p-24F, c, 4);
    assert_same_f32(c, zeros, 4);
    c[0] = 65536;
    assert_float_equal(choose(VPTQ_F16, c, 2), 0, 0);
    c[0] = NAN;
    assert_float_equal(choose(VPTQ_F16, c, 2), 0, 0);
    c[0] = 0;
    c[1] = 65504; /* the largest float16; 576 * 127 would be infinite */
    assert_float_equal(choose(VPTQ_F16, c, 2), 512, 0);
}

VTEST_MAIN(cmocka_unit_test(test_known_scales), cmocka_unit_test(test_common_divisor),
           cmocka_unit_test(test_zeros), cmocka_unit_test(test_not_on_a_grid),
           cmocka_unit_test(test_random_values), cmocka_unit_test(test_written_is_recognized),
           cmocka_unit_test(test_best_scale), cmocka_unit_test(test_rounding),
           cmocka_unit_test(test_rounding_twice),
           cmocka_unit_test(test_rounding_twice_by_two_scales),
           cmocka_unit_test(test_nothing_to_choose))
