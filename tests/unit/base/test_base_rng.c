/* Tests the counter-based random numbers of lib/base: known answers, streams and moments. */
#include <math.h>
#include <string.h>

#include "lib/base/rng.h"
#include "tests/support/vnormal.h"
#include "tests/support/vtest.h"

/* The known-answer vectors that Random123 publishes for philox4x32-10 (kat_vectors). */
static void test_known_answers(void **state)
{
    (void)state;
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        vptq_philox4x32(cases[i], cases[i] + 4, out);
        assert_memory_equal(out, cases[i] + 6, sizeof out);
    }
}

/* Every part of a stream's name matters, and a number does not depend on earlier ones. */
static void test_streams_differ(void **state)
{
    (void)state;
    vptq_rng r[] = {vptq_rng_make(1, 2, 3, VPTQ_RNG_SAMPLE),
                    vptq_rng_make(2, 2, 3, VPTQ_RNG_SAMPLE),
                    vptq_rng_make(UINT64_C(1) << 32 | 1, 2, 3, VPTQ_RNG_SAMPLE),
                    vptq_rng_make(1, 3, 3, VPTQ_RNG_SAMPLE),
                    vptq_rng_make(1, 2, 4, VPTQ_RNG_SAMPLE),
                    vptq_rng_make(1, 2, 3, VPTQ_RNG_SEEDING)};
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(vptq_rng_u64(&r[i], 7) != vptq_rng_u64(&r[j], 7));
    assert_true(vptq_rng_u64(&r[0], 0) != vptq_rng_u64(&r[0], UINT64_C(1) << 32));
    assert_true(vptq_rng_u64(&r[0], 5) == vptq_rng_u64(&r[0], 5));
}

/* floor(x n / 2^64) the long way: adds x bit by bit for the upper half of the product. */
static uint64_t high_product(uint64_t x, uint64_t n)
{
    uint64_t high = 0, low = 0;
    for (int bit = 63; bit >= 0; bit--) {
        high = high << 1 | low >> 63;
        low <<= 1;
        if (n >> bit & 1) {
            low += x;
            high += low < x;
        }
    }
    return high;
}

static void test_below(void **state)
{
    (void)state;
    static const uint64_t limits[] = {1,          2,           3,           10,
                                      0xffffffff, 0x100000000, 0x100000001, UINT64_MAX};
    vptq_rng rng = vptq_rng_make(3, 0, 0, VPTQ_RNG_TEST);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        for (uint64_t c = 0; c < 200; c++) {
            uint64_t x = vptq_rng_below(&rng, c, limits[i]);
            assert_true(x < limits[i]);
            assert_true(x == high_product(vptq_rng_u64(&rng, c), limits[i]));
        }
    }
}

/* 100,000 draws; the limits are five standard deviations of each statistic. */
static void test_moments(void **state)
{
    (void)state;
    enum { N = 100000 };
    vptq_rng rng = vptq_rng_make(4, 0, 0, VPTQ_RNG_TEST);
    double u1 = 0, u2 = 0, g1 = 0, g2 = 0, g4 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = vptq_rng_uniform(&rng, i), g = vtest_rng_normal(&rng, i);
        assert_true(u >= 0 && u < 1);
        u1 += u / N;
        u2 += u * u / N;
        g1 += g / N;
        g2 += g * g / N;
        g4 += g * g * g * g / N;
    }
    assert_true(fabs(u1 - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(u2 - 1.0 / 3) < 5 * sqrt(4.0 / 45 / N));
    assert_true(fabs(g1) < 5 / sqrt(N));
    assert_true(fabs(g2 - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(g4 - 3) < 5 * sqrt(96.0 / N));
}

VTEST_MAIN(cmocka_unit_test(test_known_answers), cmocka_unit_test(test_streams_differ),
           cmocka_unit_test(test_below), cmocka_unit_test(test_moments))
