/* The style sheet of pages: one for the screen in light and dark, readable in both, and on
 * paper; pictures take their colours from it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/svg.h"
#include "tests/support/vpage.h"
#include "tests/support/vtest.h"

enum { LIGHT, DARK, SCHEMES };

/* A page with one picture and one table; the caller releases `out`. */
static void make_page(vptq_buf *out)
{
    typedef struct row {
        const char *name;
    } row;
    static const vptq_column columns[] = {{.name = "name", VPTQ_TEXT(row, name), .head = true}};
    const double values[] = {1, 2}, x[] = {1, 2};
    const char *names[] = {"a"};
    vptq_html h;
    vptq_table t;
    vptq_err err = {0};
    vptq_buf_init(out, NULL);
    vptq_html_begin(&h, out, &err, "title", NULL);
    vptq_svg_heat(&h, &(vptq_svg_heat_spec){
                          {"h", "d", NULL}, "layer", names, names, values, 1, 1, false, 2});
    vptq_svg_lines(&h, &(vptq_svg_lines_spec){{"l", "d", NULL},
                                              {"x", false, false},
                                              {"y", false, false},
                                              &(vptq_svg_line){"a", x, values, x, values, 2},
                                              1,
                                              1.5});
    vptq_table_init(&t, NULL, "rows", VPTQ_COLUMNS(columns));
    vptq_table_add(&t, &(row){"gate_proj"});
    vptq_table_add(&t, &(row){"w8a8_sparse_smooth_gptq"});
    vptq_html_table(&h, &t);
    vptq_table_release(&t);
    assert_ok(vptq_html_end(&h), &err);
}

/* Relative luminance (WCAG 2.2) of a colour of a scheme. */
static double luminance(const char *page, int scheme, const char *name)
{
    char key[16], hex[7] = "", full[7];
    double sum = 0;
    const char *at = strstr(page, ":root{");
    snprintf(key, sizeof key, "--%s:#", name);
    for (int i = 0; at && i < scheme; i++)
        at = strstr(at + 1, ":root{");
    at = at ? strstr(at, key) : NULL;
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(key), "%6[0-9a-f]", hex), 1);
    for (int i = 0; i < 6; i++)
        full[i] = strlen(hex) == 3 ? hex[i / 2] : hex[i];
    full[6] = 0;
    for (int i = 0; i < 3; i++) {
        static const double weight[3] = {0.2126, 0.7152, 0.0722};
        const char two[3] = {full[2 * i], full[2 * i + 1], 0};
        const double v = (double)strtol(two, NULL, 16) / 255;
        sum += weight[i] * (v <= 0.04045 ? v / 12.92 : pow((v + 0.055) / 1.055, 2.4));
    }
    return sum;
}

static double contrast(const char *page, int scheme, const char *a, const char *b)
{
    const double x = luminance(page, scheme, a), y = luminance(page, scheme, b);
    return (fmax(x, y) + 0.05) / (fmin(x, y) + 0.05);
}

/* WCAG AA: 4.5 for text, 3 for marks and lines of pictures. */
static void test_contrast(void **state)
{
    static const char *const texts[] = {"fg", "soft", "link"}, *const grounds[] = {"bg",
                                                                                   "panel"};
    vptq_buf page;
    (void)state;
    make_page(&page);
    for (int scheme = LIGHT; scheme < SCHEMES; scheme++) {
        for (size_t i = 0; i < 6; i++)
            assert_true(contrast(page.data, scheme, texts[i % 3], grounds[i / 3]) >= 4.5);
        assert_true(contrast(page.data, scheme, "fg", "heat") >= 4.5);
        for (int i = 0; i < VPTQ_SVG_SERIES; i++) {
            char series[16];
            snprintf(series, sizeof series, "s%d", i);
            assert_true(contrast(page.data, scheme, series, "bg") >= 3);
        }
    }
    assert_true(luminance(page.data, LIGHT, "bg") == 1); /* paper, too */
    vptq_buf_release(&page);
}

static void test_media(void **state)
{
    vptq_buf page;
    (void)state;
    make_page(&page);
    assert_non_null(strstr(page.data, "<html lang=\"en\">"));
    assert_non_null(strstr(page.data, "<title>title</title>"));
    assert_non_null(strstr(page.data, "<meta name=\"viewport\" content=\"width=device-width"));
    assert_non_null(strstr(page.data, ":root{color-scheme:light dark;"));
    /* paper stays light, and splits neither pictures nor rows */
    assert_non_null(strstr(page.data, "@media screen and (prefers-color-scheme:dark)"));
    const char *print = strstr(page.data, "@media print{");
    assert_non_null(print);
    assert_non_null(strstr(print, "figure,tr,li,.scroll{break-inside:avoid}"));
    assert_non_null(strstr(print, ".scroll{overflow:visible}"));
    assert_int_equal(vpage_check(page.data), 2);
    vptq_buf_release(&page);
}

/* Fixed colours would be unreadable in the other scheme. */
static void test_picture_colours(void **state)
{
    vptq_buf page;
    (void)state;
    make_page(&page);
    for (const char *at = page.data; (at = strstr(at, "<svg")) != NULL;) {
        const char *end = strstr(at, "</svg>");
        assert_non_null(end);
        for (; at < end; at++) {
            assert_false(!strncmp(at, "#", 1) || !strncmp(at, "rgb", 3));
            assert_false(!strncmp(at, "fill=\"", 6) && strncmp(at, "fill=\"var(", 10) != 0);
            assert_false(!strncmp(at, "stroke=\"", 8) || !strncmp(at, "style=\"", 7));
        }
    }
    vptq_buf_release(&page);
}

/* A short name stays on its line; a long one breaks where it has parts. */
static void test_row_names(void **state)
{
    vptq_buf page;
    (void)state;
    make_page(&page);
    assert_non_null(strstr(page.data, "<th scope=\"row\" class=\"s\">gate_proj</th>"));
    assert_non_null(strstr(page.data, "<th scope=\"row\">w8a8_<wbr>sparse_<wbr>smooth_<wbr>"));
    vptq_buf_release(&page);
}

VTEST_MAIN(cmocka_unit_test(test_contrast), cmocka_unit_test(test_media),
           cmocka_unit_test(test_picture_colours), cmocka_unit_test(test_row_names))
