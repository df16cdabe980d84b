/* Options of tuning that are refused before anything is opened. */
#include <string.h>

#include "lib/quantize/tune.h"
#include "tests/support/vtest.h"

/* The options of a run whose directory to tune is missing. */
static vptq_tune_options good(int method)
{
    vptq_tune_options o = vptq_tune_defaults();
    o.method = (vptq_tune_method)method;
    o.from = "tests/golden/missing";
    o.work = "tests/golden/missing too";
    return o;
}

static void expect(const vptq_tune_options *o, vptq_status status, const char *sentence)
{
    vptq_mem mem;
    vptq_tune_result r;
    vptq_err err;
    vptq_mem_init(&mem, 0);
    const vptq_ctx ctx = {.mem = &mem, .threads = 1};
    vptq_device dev = {.ctx = &ctx};
    assert_fails(vptq_tune_report(&dev, o, NULL, &r, &err), status, &err, sentence);
}

static void test_options(void **state)
{
    (void)state;
    vptq_tune_options o = good(0);
    expect(&o, VPTQ_E_ARG, "tuning method 0: expected 1 to 3");
    o = good(4);
    expect(&o, VPTQ_E_ARG, "tuning method 4: expected 1 to 3");
    o = good(VPTQ_TUNE_LAYER);
    o.passes = 0;
    expect(&o, VPTQ_E_ARG, "0 passes over the windows, expected at least 1");
    o = good(VPTQ_TUNE_LAYER_E2E);
    o.steps = 0;
    expect(&o, VPTQ_E_ARG, "0 steps, expected at least 1");
    o = good(VPTQ_TUNE_LAYER);
    o.batch = 0;
    expect(&o, VPTQ_E_ARG, "steps of 0 windows, expected at least 1");
    o.batch = 129;
    o.windows = 128;
    expect(&o, VPTQ_E_ARG, "steps of 129 windows, expected at least 1 and at most all windows");
    o.self_windows = 1; /* the batch fits, and the directory is missing */
    expect(&o, VPTQ_E_IO, "tests/golden/missing");
    o.self_windows = (size_t)UINT32_MAX + 1;
    expect(&o, VPTQ_E_ARG, "4294967296 windows of own text, expected at most 4294967295");
    o = good(VPTQ_TUNE_LAYER);
    o.length = 1;
    expect(&o, VPTQ_E_ARG, "windows of 1 token, expected at least 2");
    o = good(VPTQ_TUNE_E2E);
    o.holdout = 1;
    expect(&o, VPTQ_E_ARG, "a held-out share of 1, expected more than 0 and less than 1");
    o = good(VPTQ_TUNE_E2E);
    o.rate = -1;
    expect(&o, VPTQ_E_ARG, "a rate of -1, expected 0 to 1");
}

/* Steps do not count for layers, passes not end to end. */
static void test_other_methods(void **state)
{
    (void)state;
    vptq_tune_options o = good(VPTQ_TUNE_LAYER);
    o.steps = 0;
    expect(&o, VPTQ_E_IO, "tests/golden/missing");
    o = good(VPTQ_TUNE_E2E);
    o.passes = 0;
    expect(&o, VPTQ_E_IO, "tests/golden/missing");
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(vptq_tune_method_name(VPTQ_TUNE_LAYER), "layer");
    assert_string_equal(vptq_tune_method_name(VPTQ_TUNE_E2E), "e2e");
    assert_string_equal(vptq_tune_method_name(VPTQ_TUNE_LAYER_E2E), "layer,e2e");
}

VTEST_MAIN(cmocka_unit_test(test_options), cmocka_unit_test(test_other_methods),
           cmocka_unit_test(test_names))
