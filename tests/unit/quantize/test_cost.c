/* Tests the relative costs of matrices. */
#include "lib/quantize/quantize.h"
#include "tests/support/vtest.h"

enum { OUT = 512, IN = 1024 };

static vptq_encoder_settings settings_of(uint32_t method)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    vptq_encoder_set_method(&s, method);
    return s;
}

static double cost_of(const vptq_encoder_settings *s)
{
    vptq_encoder_report cost;
    vptq_matrix_cost(s, OUT, IN, &cost);
    return cost.seconds;
}

/* Seconds of a search, without what every method computes. */
static double search_of(const vptq_encoder_settings *s)
{
    const vptq_encoder_settings plain = settings_of(VPTQ_METHOD_RTN);
    return cost_of(s) - cost_of(&plain);
}

static void expect_times(const vptq_encoder_settings *more, const vptq_encoder_settings *less,
                         double times)
{
    const double a = search_of(more), b = times * search_of(less);
    assert_true(b > 0);
    assert_close_f64(&a, &b, 1, 0, 1e-9);
}

/* Searches take as long as they have entries to try. */
static void test_additive(void **state)
{
    (void)state;
    vptq_encoder_settings less = settings_of(VPTQ_METHOD_GPTVQ), more = less;
    more.weight_bits = 4, less.weight_bits = 3; /* vectors of two: 256 entries and 64 */
    expect_times(&more, &less, 4);
    less = more = settings_of(VPTQ_METHOD_AQLM);
    more.codebooks = 2 * less.codebooks;
    more.k = 4 * less.k;
    more.beam = 3 * less.beam;
    expect_times(&more, &less, 24);
    less = more = settings_of(VPTQ_METHOD_QUIP);
    more.weight_bits = 4, less.weight_bits = 2;
    expect_times(&more, &less, 2);
    less = settings_of(VPTQ_METHOD_DBLLM);
    assert_true(search_of(&less) > 0);
}

/* Ranges take as long as their groups are large; scales come on top. */
static void test_awq(void **state)
{
    (void)state;
    vptq_encoder_settings s = settings_of(VPTQ_METHOD_AWQ);
    double seconds[3];
    for (uint32_t i = 0; i < 3; i++) {
        s.group_size = 64U << i;
        seconds[i] = search_of(&s);
    }
    const double a = seconds[2] - seconds[1], b = 2 * (seconds[1] - seconds[0]);
    assert_true(b > 0 && seconds[0] > b / 2);
    assert_close_f64(&a, &b, 1, 0, 1e-9);
    s.group_size = 0; /* whole rows */
    seconds[0] = search_of(&s);
    s.group_size = IN;
    assert_true(search_of(&s) == seconds[0]);
}

VTEST_MAIN(cmocka_unit_test(test_additive), cmocka_unit_test(test_awq))
