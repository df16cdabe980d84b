/* Tests 16-bit conversions against an oracle without bit operations: it scales a value so that
 * the type's step is 1 and rounds with rint, which rounds halves to even. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cpu.h"
#include "lib/base/dtype.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/support/vtest.h"

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Rounds x to `digits` significant bits, with exponents from `least` on, and to infinity above
 * `most`. */
static double round_oracle(double x, int digits, int least, double most)
{
    int e;
    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &e);
    e = e - 1 < least ? least : e - 1;
    double step = ldexp(1, e - digits + 1);
    double r = rint(x / step) * step;
    return fabs(r) > most ? copysign(INFINITY, x) : r;
}

static double f16_oracle(double x)
{
    return round_oracle(x, 11, -14, 65504);
}

static double bf16_oracle(double x)
{
    return round_oracle(x, 8, -126, ldexp(255, 120));
}

static double half_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double x = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -x : x;
}

static void test_every_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = vptq_f16_to_f32((uint16_t)h);
        bool special = (h & 0x7c00) == 0x7c00;
        if (special && (h & 0x3ff)) {
            assert_true(isnan(f));
            assert_true(isnan(vptq_f16_to_f32(vptq_f32_to_f16(f))));
            continue;
        }
        if (special)
            assert_true(isinf(f) && !signbit(f) == !(h & 0x8000));
        else
            assert_true((double)f == half_value((uint16_t)h) && !signbit(f) == !(h & 0x8000));
        assert_int_equal(vptq_f32_to_f16(f), h);
    }
}

/* Between every two neighbours the middle rounds to the even one, and the floats next to the
 * middle to the nearer one. */
static void test_half_ties(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        double a = half_value((uint16_t)h), b = half_value((uint16_t)(h + 1));
        float middle = (float)((a + b) / 2);
        assert_int_equal(vptq_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(vptq_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(vptq_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(vptq_f32_to_f16(-middle), 0x8000 | (h + (h & 1)));
    }
    assert_int_equal(vptq_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(vptq_f32_to_f16(65520.0f), 0x7c00);
}

static void test_every_bf16(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        float f = vptq_bf16_to_f32((uint16_t)b);
        assert_int_equal(to_bits(f), b << 16);
        if (isnan(f))
            assert_true(isnan(vptq_bf16_to_f32(vptq_f32_to_bf16(f))));
        else
            assert_int_equal(vptq_f32_to_bf16(f), b);
    }
    assert_true(isnan(vptq_bf16_to_f32(vptq_f32_to_bf16(from_bits(0x7f800001)))));
}

static void test_many_floats(void **state)
{
    (void)state;
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 4099) {
        float f = from_bits((uint32_t)u);
        if (isnan(f))
            continue;
        double x = (double)f;
        assert_true((double)vptq_f16_to_f32(vptq_f32_to_f16(f)) == f16_oracle(x));
        assert_true((double)vptq_bf16_to_f32(vptq_f32_to_bf16(f)) == bf16_oracle(x));
        assert_true((double)vptq_round_to(VPTQ_F16, f) == f16_oracle(x));
    }
}

enum { COUNT = 65536, SAMPLES = 100003 };

typedef struct arrays {
    uint16_t half[COUNT + 1], narrow[SAMPLES];
    float wide[COUNT], values[SAMPLES], back[SAMPLES];
} arrays;

static void check_level(arrays *a)
{
    vptq_f16_to_f32_n(a->half, a->wide, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(to_bits(a->wide[i]), to_bits(vptq_f16_to_f32(a->half[i])));
    vptq_f32_to_f16_n(a->values, a->narrow, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++)
        assert_int_equal(a->narrow[i], vptq_f32_to_f16(a->values[i]));
    vptq_f32_to_bf16_n(a->values, a->narrow, SAMPLES);
    vptq_bf16_to_f32_n(a->narrow, a->back, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++)
        assert_int_equal(to_bits(a->back[i]),
                         to_bits(vptq_bf16_to_f32(vptq_f32_to_bf16(a->values[i]))));
    memcpy(a->back, a->values, sizeof a->back);
    vptq_round_to_n(VPTQ_F16, a->back, SAMPLES);
    for (size_t i = 0; i < SAMPLES; i++)
        assert_int_equal(to_bits(a->back[i]), to_bits(vptq_round_to(VPTQ_F16, a->values[i])));
}

/* All halves, NaN payloads included, and random bit patterns, at every SIMD level. */
static void test_arrays_equal_scalars(void **state)
{
    (void)state;
    static const char *const levels[] = {"none", "avx2", "avx512", "neon"};
    arrays *a = malloc(sizeof *a);
    assert_non_null(a);
    vptq_rng rng = vptq_rng_make(1, 0, 0, VPTQ_RNG_TEST);
    for (size_t i = 0; i < COUNT; i++)
        a->half[i] = (uint16_t)i;
    for (size_t i = 0; i < SAMPLES; i++)
        a->values[i] = from_bits((uint32_t)vptq_rng_u64(&rng, i));
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        assert_int_equal(setenv("VPTQ_SIMD", levels[l], 1), 0);
        check_level(a);
    }
    assert_int_equal(unsetenv("VPTQ_SIMD"), 0);
    free(a);
}

static void test_odd_addresses(void **state)
{
    (void)state;
    unsigned char bytes[2 * 100 + 1];
    uint16_t half[100];
    float wide[100];
    for (size_t i = 0; i < 100; i++)
        half[i] = (uint16_t)(i * 601);
    memcpy(bytes + 1, half, sizeof half);
    /* A tensor of a mapped file may begin at any byte. */
    vptq_f16_to_f32_n((const uint16_t *)(const void *)(bytes + 1), wide, 100);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(to_bits(wide[i]), to_bits(vptq_f16_to_f32(half[i])));
    vptq_bf16_to_f32_n((const uint16_t *)(const void *)(bytes + 1), wide, 100);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(to_bits(wide[i]), (uint32_t)half[i] << 16);
}

static void test_simd_names(void **state)
{
    (void)state;
    assert_string_equal(vptq_simd_name(VPTQ_SIMD_NONE), "none");
    assert_string_equal(vptq_simd_name(VPTQ_SIMD_AVX512), "avx512");
    vptq_simd best = vptq_cpu_simd();
    setenv("VPTQ_SIMD", "none", 1);
    assert_int_equal(vptq_cpu_simd(), VPTQ_SIMD_NONE);
    setenv("VPTQ_SIMD", "nonsense", 1);
    assert_int_equal(vptq_cpu_simd(), best);
    unsetenv("VPTQ_SIMD");
}

VTEST_MAIN(cmocka_unit_test(test_every_half), cmocka_unit_test(test_half_ties),
           cmocka_unit_test(test_every_bf16), cmocka_unit_test(test_many_floats),
           cmocka_unit_test(test_arrays_equal_scalars), cmocka_unit_test(test_odd_addresses),
           cmocka_unit_test(test_simd_names))
