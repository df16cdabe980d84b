/* Values of the command line, and what is printed from numbers. */
#include <math.h>
#include <string.h>

#include "cmd/cli/cli.h"
#include "cmd/cli/progress.h"
#include "cmd/cli/value.h"
#include "tests/support/vtest.h"

static void test_whole_numbers(void **state)
{
    (void)state;
    static const char *const bad[] = {"",   "x",  "1x",  "-1",  "+1",
                                      " 1", "1 ", "0x1", "1.0", "18446744073709551616"};
    uint64_t x = 77;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(vptq_cli_parse_u64(bad[i], UINT64_MAX, &x));
    assert_int_equal(x, 77);
    assert_true(vptq_cli_parse_u64("18446744073709551615", UINT64_MAX, &x) && x == UINT64_MAX);
    assert_true(vptq_cli_parse_u64("007", UINT64_MAX, &x) && x == 7);
    assert_true(vptq_cli_parse_u64("4294967295", UINT32_MAX, &x));
    assert_false(vptq_cli_parse_u64("4294967296", UINT32_MAX, &x));
    assert_true(vptq_cli_parse_u64("5", 5, &x) && x == 5);
    assert_false(vptq_cli_parse_u64("6", 5, &x));
    assert_false(vptq_cli_parse_u64("10", 5, &x));
}

static void test_sizes(void **state)
{
    (void)state;
    static const char *const bad[] = {"",    "K",   "1X",        "1KK", "1.5",
                                      ".5G", "-1K", "16777216T", "1 K", "1Ki"};
    uint64_t x = 77;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(vptq_cli_parse_size(bad[i], &x));
    assert_int_equal(x, 77);
    assert_true(vptq_cli_parse_size("0", &x) && x == 0);
    assert_true(vptq_cli_parse_size("512", &x) && x == 512);
    assert_true(vptq_cli_parse_size("3k", &x) && x == 3072);
    assert_true(vptq_cli_parse_size("3KiB", &x) && x == 3072);
    assert_true(vptq_cli_parse_size("2MB", &x) && x == 2u << 20);
    assert_true(vptq_cli_parse_size("1.5G", &x) && x == UINT64_C(3) << 29);
    assert_true(vptq_cli_parse_size("2G", &x) && x == UINT64_C(2) << 30);
    assert_true(vptq_cli_parse_size("16777215T", &x) && x == UINT64_C(16777215) << 40);
}

static void test_real_numbers(void **state)
{
    (void)state;
    static const char *const bad[] = {"",      "x",    "1x", "nan", "inf",
                                      "1e999", "0x10", " 1", "e",   "."};
    double x = 77;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(vptq_cli_parse_double(bad[i], &x));
    assert_true(x == 77);
    assert_true(vptq_cli_parse_double("-1.5e-3", &x) && x == -1.5e-3);
    assert_true(vptq_cli_parse_double(".5", &x) && x == 0.5);
}

static void test_ranges(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "-", "1-", "-1", "2-1", "1-2-3", "1,2", "4294967296"};
    vptq_cli_range r = {7, 7};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(vptq_cli_parse_range(bad[i], &r));
    assert_true(r.first == 7 && r.last == 7);
    assert_true(vptq_cli_parse_range("3", &r) && r.first == 3 && r.last == 3);
    assert_true(vptq_cli_parse_range("0-29", &r) && r.first == 0 && r.last == 29);
}

static void test_choices(void **state)
{
    (void)state;
    int n = 7;
    char text[16];
    assert_false(vptq_cli_parse_choice("", "text|json", &n));
    assert_false(vptq_cli_parse_choice("tex", "text|json", &n));
    assert_false(vptq_cli_parse_choice("text|json", "text|json", &n));
    assert_int_equal(n, 7);
    assert_true(vptq_cli_parse_choice("json", "text|json", &n) && n == 1);
    assert_true(vptq_cli_parse_choice("text", "text|json", &n) && n == 0);
    vptq_cli_choice_name(text, sizeof text, "text|json|csv", 2);
    assert_string_equal(text, "csv");
    vptq_cli_choice_name(text, sizeof text, "text|json|csv", 3);
    assert_string_equal(text, "");
}

/* The time left follows from the share of the work, not from the units, and counts all open
 * stages. */
static void test_progress_line(void **state)
{
    (void)state;
    vptq_cli_progress p = {.stages = {{"quantize", "matrices", 3, 6, true, 0, 0.25, 14, 10},
                                      {"hessian", "layers", 1, 2, true, 0.5, 0.75, 8, 8},
                                      {"digest", "bytes", 1, 2, false, 0, 0.5, 100, 100},
                                      {"self-text", "tokens", 7, 0, true, 0, 0, 2, 0}}};
    char text[128];
    /* 10 s for a quarter: 30 s more, of which 4 have passed; and a quarter of 8 s */
    vptq_cli_progress_text(text, sizeof text, &p, &p.stages[0], "layer 1", 0);
    assert_string_equal(text, "quantize  25% 3/6 matrices  6.7 s each  34.0 s left  layer 1");
    vptq_cli_progress_text(text, sizeof text, &p, &p.stages[1], NULL, 24);
    assert_string_equal(text, "hessian  75% 1/2 layers ");
    vptq_cli_progress_text(text, sizeof text, &p, &p.stages[3], NULL, 0);
    assert_string_equal(text, "self-text 7 tokens");
}

VTEST_MAIN(cmocka_unit_test(test_whole_numbers), cmocka_unit_test(test_sizes),
           cmocka_unit_test(test_real_numbers), cmocka_unit_test(test_ranges),
           cmocka_unit_test(test_choices), cmocka_unit_test(test_progress_line))
