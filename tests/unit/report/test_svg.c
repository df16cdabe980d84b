/* Pages and pictures follow the rules of tests/support/vpage.h, also with long names; ticks are
 * round. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/report.h"
#include "lib/report/svg.h"
#include "lib/report/svg_internal.h"
#include "tests/support/vpage.h"
#include "tests/support/vtest.h"

/* ---- pages ---- */

static void test_published_records(void **state)
{
    char path[4096];
    vptq_records records;
    vptq_report r;
    vptq_buf out, again;
    vptq_err err = {0};
    (void)state;
    if (!vtest_data(path, sizeof path, "golden/serving/records.jsonl"))
        skip();
    vptq_records_init(&records, NULL);
    vptq_buf_init(&out, NULL);
    vptq_buf_init(&again, NULL);
    assert_ok(vptq_records_read(&(vptq_ctx){.threads = 1}, &records, path, &err), &err);
    assert_ok(vptq_report_build(&records, NULL, NULL, &r, &err), &err);
    assert_ok(vptq_report_write(&r, VPTQ_FORMAT_HTML, "a", &out, &err), &err);
    assert_ok(vptq_report_write(&r, VPTQ_FORMAT_HTML, "a", &again, &err), &err);
    assert_string_equal(out.data, again.data);
    assert_int_equal(vpage_check(out.data), 2 + 2 + 7 * 2);
    vptq_report_release(&r);
    vptq_records_release(&records);
    vptq_buf_release(&again);
    vptq_buf_release(&out);
}

static const char *const names[] = {
    "meta-llama/"
    "Llama-3.1-405B-Instruct-FP8-dynamic-w8a8-smooth-gptq-sparse-with-a-very-long-name",
    "NoBreaksAnywhereInThisNameWhichIsLongerThanAnyPictureIsWideSoThatItMustBeBrokenHard",
    "a<b>&\"c\"'d'", "\xe6\xa8\xa1\xe5\x9e\x8b\xe6\xa8\xa1\xe5\x9e\x8b", "x"};
enum { NAMES = sizeof names / sizeof *names };

static vptq_status draw_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_html h;
    vptq_buf *out = arg;
    out->mem = mem;
    vptq_html_begin(&h, out, err, "a <title>", "a & b");
    vptq_svg_bar bars[NAMES];
    vptq_svg_line lines[NAMES];
    vptq_svg_point points[40];
    double x[3] = {1, 8, 64}, y[NAMES][3], heat[4 * 7];
    for (size_t i = 0; i < NAMES; i++) {
        double v = 0.2 + 0.3 * (double)i;
        bars[i] = (vptq_svg_bar){names[i], v, v / 2, 1e5 * v, (unsigned)i};
        for (size_t k = 0; k < 3; k++)
            y[i][k] = k == 1 && i == 2 ? (double)NAN : v * (double)(k + 1);
        lines[i] = (vptq_svg_line){names[i], x, y[i], NULL, NULL, 3};
    }
    for (size_t i = 0; i < 40; i++) /* many in one place, long names among them */
        points[i] = (vptq_svg_point){names[i % NAMES], 2 + 0.02 * (double)(i % 13),
                                     10 + 0.1 * (double)(i % 7), (unsigned)i % 3};
    for (size_t i = 0; i < 28; i++)
        heat[i] = i == 5 ? (double)NAN : 0.001 * (double)(i + 1);
    vptq_svg_bars(&h, &(vptq_svg_bars_spec){{"t", "d", NULL}, "s", bars, NAMES, 8, 1});
    vptq_svg_bars(&h, &(vptq_svg_bars_spec){{"t", "d", NULL}, "s", bars, 0, 8, (double)NAN});
    vptq_svg_lines(
        &h,
        &(vptq_svg_lines_spec){
            {"t", "d", NULL}, {"batch", true, true}, {"times", false, false}, lines, NAMES, 1});
    vptq_svg_lines(
        &h, &(vptq_svg_lines_spec){
                {"t", "d", NULL}, {"batch", true, true}, {"times", true, false}, lines, 0, 1});
    vptq_svg_scatter(&h, &(vptq_svg_scatter_spec){{"t", "d", NULL},
                                                  {"bits", false, false},
                                                  {"perplexity", true, false},
                                                  points,
                                                  12,
                                                  names,
                                                  3,
                                                  true});
    vptq_svg_scatter(&h, &(vptq_svg_scatter_spec){{"t", "d", NULL},
                                                  {"bits", false, false},
                                                  {"perplexity", false, false},
                                                  points,
                                                  0,
                                                  NULL,
                                                  0,
                                                  true});
    static const char *const kinds[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                        "gate_proj", "up_proj", "down_proj"};
    static const char *const rows[] = {"0", "1", "2", "127"};
    vptq_svg_heat(
        &h, &(vptq_svg_heat_spec){{"t", "d", NULL}, "layer", rows, kinds, heat, 4, 7, true, 4});
    vptq_svg_heat(
        &h, &(vptq_svg_heat_spec){{"t", "d", NULL}, "layer", rows, kinds, heat, 0, 7, true, 4});
    return vptq_html_end(&h);
}

static void test_pictures(void **state)
{
    vptq_buf out;
    vptq_err err = {0};
    (void)state;
    vptq_buf_init(&out, NULL);
    assert_ok(draw_all(&out, NULL, &err), &err);
    assert_int_equal(vpage_check(out.data), 8);
    assert_non_null(strstr(out.data, "<h1>a &lt;title&gt;</h1>"));
    assert_non_null(strstr(out.data, "a&lt;b&gt;&amp;&quot;c&quot;&#39;d&#39;"));
    assert_null(strstr(out.data, "nan"));
    assert_null(strstr(out.data, "inf"));
    assert_null(strstr(out.data, "\"-0.0\""));
    vptq_buf_release(&out);
}

/* Values that an axis cannot show are left out; the others are drawn. */
static void test_extreme_values(void **state)
{
    static const double wild[] = {
        1.7e308, 5e-324, (double)INFINITY, -(double)INFINITY, (double)NAN, 0, -1, 1, -1.7e308};
    enum { N = sizeof wild / sizeof *wild };
    vptq_html h;
    vptq_buf out;
    vptq_err err = {0};
    vptq_svg_bar bars[N];
    vptq_svg_point points[N];
    (void)state;
    vptq_buf_init(&out, NULL);
    for (size_t i = 0; i < N; i++) {
        bars[i] = (vptq_svg_bar){"x", wild[i], wild[N - 1 - i], wild[i], 0};
        points[i] = (vptq_svg_point){"x", wild[i], wild[N - 1 - i], 0};
    }
    vptq_svg_line line = {"x", wild, wild, wild, wild, N};
    vptq_html_begin(&h, &out, &err, "t", NULL);
    vptq_svg_bars(&h, &(vptq_svg_bars_spec){{"t", "d", NULL}, "s", bars, N, 8, 1});
    for (int logs = 0; logs < 2; logs++) {
        vptq_svg_lines(
            &h, &(vptq_svg_lines_spec){
                    {"t", "d", NULL}, {"x", logs, !logs}, {"y", logs, false}, &line, 1, 1});
        vptq_svg_scatter(&h, &(vptq_svg_scatter_spec){{"t", "d", NULL},
                                                      {"x", logs, false},
                                                      {"y", logs, false},
                                                      points,
                                                      N,
                                                      NULL,
                                                      0,
                                                      true});
        static const char *const rows[] = {"a", "b", "c"};
        vptq_svg_heat(
            &h, &(vptq_svg_heat_spec){{"t", "d", NULL}, "r", rows, rows, wild, 3, 3, logs, 2});
    }
    assert_ok(vptq_html_end(&h), &err);
    assert_int_equal(vpage_check(out.data), 7);
    assert_null(strstr(out.data, "nan"));
    assert_null(strstr(out.data, "inf"));
    vptq_buf_release(&out);
}

static vptq_status draw_with(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_buf out;
    (void)arg;
    vptq_buf_init(&out, mem);
    vptq_status st = draw_all(&out, mem, err);
    vptq_buf_release(&out);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    assert_true(vtest_oom_walk(draw_with, NULL) > 3);
}

/* Draws a scatter plot of these points with its frontier; the caller releases `out`. */
static void draw_points(vptq_buf *out, const vptq_svg_point *points, size_t n)
{
    vptq_html h;
    vptq_err err = {0};
    vptq_buf_init(out, NULL);
    vptq_html_begin(&h, out, &err, "t", NULL);
    vptq_svg_scatter(&h, &(vptq_svg_scatter_spec){{"t", "d", NULL},
                                                  {"x", false, false},
                                                  {"y", false, false},
                                                  points,
                                                  n,
                                                  NULL,
                                                  0,
                                                  true});
    assert_ok(vptq_html_end(&h), &err);
}

/* The frontier goes through (1, 9) and (2, 4), which beat the others; (2, 5) and (3, 4) are
 * worse in one value and equal in the other. */
static void test_frontier(void **state)
{
    static const vptq_svg_point points[] = {
        {"a", 2, 5, 0}, {"b", 1, 9, 0}, {"c", 3, 4, 0}, {"d", 2, 4, 0}, {"e", 2.5, 8, 0}};
    vptq_buf out;
    (void)state;
    draw_points(&out, points, 5);
    const char *path = strstr(out.data, "<path class=\"even\"");
    double x[2], y[2];
    assert_non_null(path);
    assert_int_equal(sscanf(path, "<path class=\"even\" d=\"M%lf %lfL%lf %lf\"/>", &x[0], &y[0],
                            &x[1], &y[1]),
                     4);
    assert_true(x[0] < x[1] && y[0] < y[1]); /* to the right and down */
    assert_null(strstr(path + 20, "class=\"even\""));
    vptq_buf_release(&out);
}

/* Labels never overlap, however many points are close together; those that do not fit are in
 * the legend. */
static void test_crowd(void **state)
{
    enum { N = 60 };
    static char labels[N][16];
    vptq_svg_point points[N];
    double x[N], y[N];
    size_t n = 0;
    vptq_buf out;
    (void)state;
    for (size_t i = 0; i < N; i++) {
        snprintf(labels[i], sizeof labels[i], "outliers-%zu", i);
        points[i] = (vptq_svg_point){labels[i], i < N / 2 ? 1 : 2, i < N / 2 ? 1 : 2, 0};
    }
    draw_points(&out, points, N);
    for (const char *at = out.data; (at = strstr(at, "<text x=\"")) != NULL; at++) {
        const char *halo = strstr(at, "\"halo\"");
        if (!halo || halo > strchr(at, '>'))
            continue;
        assert_true(n < N);
        assert_int_equal(sscanf(at, "<text x=\"%lf\" y=\"%lf\"", &x[n], &y[n]), 2);
        for (size_t k = 0; k < n; k++) /* the narrowest text has one digit */
            assert_true(fabs(y[n] - y[k]) > 12 || fabs(x[n] - x[k]) > 6);
        n++;
    }
    assert_true(n > 12 && n < N); /* some find a place, not all */
    for (size_t i = 0; i < N; i++)
        assert_non_null(strstr(out.data, labels[i]));
    vptq_buf_release(&out);
}

/* ---- ticks and texts ---- */

static void test_ticks(void **state)
{
    static const struct {
        double low, high;
        bool log;
        size_t most, count;
        double ticks[8];
    } cases[] = {{0, 1, false, 6, 6, {0, 0.2, 0.4, 0.6, 0.8, 1}},
                 {0, 1.44, false, 6, 3, {0, 0.5, 1}},
                 {0.07, 0.31, false, 6, 5, {0.1, 0.15, 0.2, 0.25, 0.3}},
                 {-3, 7, false, 6, 5, {-2, 0, 2, 4, 6}},
                 {0.75, 1.5, true, 6, 4, {0.8, 1, 1.2, 1.4}},
                 {1, 100, true, 9, 7, {1, 2, 5, 10, 20, 50, 100}},
                 {1, 1e6, true, 7, 7, {1, 10, 100, 1e3, 1e4, 1e5, 1e6}},
                 {1, 1e6, true, 6, 4, {1, 100, 1e4, 1e6}},
                 {7e-4, 0.06, true, 6, 6, {0.001, 0.002, 0.005, 0.01, 0.02, 0.05}},
                 {7e-4, 0.06, true, 5, 4, {0.001, 0.003, 0.01, 0.03}},
                 {5, 5, false, 6, 1, {5}}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double ticks[VPTQ_SVG_TICKS];
        size_t n =
            vptq_svg_ticks(cases[i].low, cases[i].high, cases[i].log, cases[i].most, ticks);
        assert_int_equal(n, cases[i].count);
        assert_close_f64(ticks, cases[i].ticks, n, 1e-9, 1e-9);
    }
    for (double span = 1e-12; span < 1e12; span *= 1.7) {
        double ticks[VPTQ_SVG_TICKS];
        size_t n = vptq_svg_ticks(span / 3, span / 3 + span, false, 6, ticks);
        assert_in_range(n, 2, 6);
        for (size_t i = 0; i < n; i++)
            assert_true(ticks[i] >= span / 3 * (1 - 1e-9) && ticks[i] <= span / 3 * 4.000001);
    }
}

static void test_numbers(void **state)
{
    static const struct {
        double x;
        const char *text;
    } cases[] = {{0, "0"},        {1, "1"},         {0.25, "0.25"},
                 {-0.5, "-0.5"},  {16000, "16000"}, {250000, "2.5e+05"},
                 {1e-5, "1e-05"}, {0.3, "0.3"},     {0.1 + 0.2, "0.3"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        vptq_svg_number(text, cases[i].x);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_wrapping(void **state)
{
    (void)state;
    assert_int_equal(vptq_svg_fit("abc", 10, 1000), 3);
    assert_int_equal(vptq_svg_fit("abcdef_ghi", 10, 50), 7); /* after the underscore */
    assert_int_equal(vptq_svg_fit("abcdefghi", 10, 26), 4);  /* anywhere */
    assert_int_equal(vptq_svg_fit("abc", 10, 1), 1);         /* at least one */
    assert_int_equal(vptq_svg_fit("\xe6\xa8\xa1\xe5\x9e\x8b", 10, 1), 3); /* not within one */
    assert_int_equal(vptq_svg_fit("", 10, 50), 0);
}

VTEST_MAIN(cmocka_unit_test(test_published_records), cmocka_unit_test(test_pictures),
           cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_frontier),
           cmocka_unit_test(test_crowd), cmocka_unit_test(test_extreme_values),
           cmocka_unit_test(test_ticks), cmocka_unit_test(test_numbers),
           cmocka_unit_test(test_wrapping))
