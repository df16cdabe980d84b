/* Tables in every format against texts written out, escaping against hostile names, numbers
 * against what reads back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/report/table.h"
#include "tests/support/vtest.h"

static const vptq_column columns[] = {
    {.name = "model", .title = "Model", .type = VPTQ_COLUMN_TEXT, .head = true},
    {.name = "runs", .type = VPTQ_COLUMN_INTEGER},
    {.name = "ppl", .title = "Perplexity", .type = VPTQ_COLUMN_REAL, .decimals = 2},
    {.name = "loss", .type = VPTQ_COLUMN_REAL, .decimals = -3}};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void fill(vptq_table *t, vptq_mem *mem)
{
    vptq_table_init(t, mem, "Models, all", columns, COLUMNS);
    vptq_table_row(t);
    vptq_table_text(t, "a_b");
    vptq_table_integer(t, 3);
    vptq_table_real(t, 7.125);
    vptq_table_real(t, 0.00012345);
    vptq_table_row(t);
    vptq_table_textf(t, "%s,\"%d\"", "x|<y>&", 4);
    vptq_table_skip(t);
    vptq_table_real(t, 0.1);
    vptq_table_strong(t);
    vptq_table_real(t, (double)INFINITY);
    vptq_table_row(t); /* all missing */
    vptq_table_notef(t, "best of %d", 2);
}

static char *written(const vptq_table *t, vptq_format format, vptq_buf *buf)
{
    vptq_err err = {0};
    vptq_buf_clear(buf);
    assert_ok(vptq_table_write(t, format, buf, &err), &err);
    return buf->data;
}

static void test_formats(void **state)
{
    vptq_table t;
    vptq_buf buf;
    (void)state;
    vptq_buf_init(&buf, NULL);
    fill(&t, NULL);
    assert_string_equal(written(&t, VPTQ_FORMAT_TEXT, &buf),
                        "Models, all\n"
                        "Model       runs  Perplexity      loss\n"
                        "a_b            3        7.12  0.000123\n"
                        "x|<y>&,\"4\"     -        0.10         -\n"
                        "-              -           -         -\n"
                        "best of 2\n");
    assert_string_equal(written(&t, VPTQ_FORMAT_CSV, &buf), "model,runs,ppl,loss\n"
                                                            "a_b,3,7.125,0.00012345\n"
                                                            "\"x|<y>&,\"\"4\"\"\",,0.1,\n"
                                                            ",,,\n");
    assert_string_equal(
        written(&t, VPTQ_FORMAT_JSON, &buf),
        "{\"model\": \"a_b\", \"runs\": 3, \"ppl\": 7.125, \"loss\": 0.00012345}\n"
        "{\"model\": \"x|<y>&,\\\"4\\\"\", \"runs\": null, \"ppl\": 0.1, \"loss\": null}\n"
        "{\"model\": null, \"runs\": null, \"ppl\": null, \"loss\": null}\n");
    assert_string_equal(written(&t, VPTQ_FORMAT_MD, &buf),
                        "Models, all\n\n"
                        "| Model | runs | Perplexity | loss |\n"
                        "| --- | ---: | ---: | ---: |\n"
                        "| a_b | 3 | 7.12 | 0.000123 |\n"
                        "| x\\|&lt;y>&amp;,\"4\" | - | **0.10** | - |\n"
                        "| - | - | - | - |\n"
                        "\nbest of 2\n");
    written(&t, VPTQ_FORMAT_HTML, &buf);
    assert_non_null(strstr(buf.data, "<caption>Models, all</caption>"));
    assert_non_null(strstr(buf.data, "<th scope=\"col\" class=\"n\">Perplexity</th>"));
    assert_non_null(
        strstr(buf.data, "<tr><th scope=\"row\" class=\"s\">x|&lt;y&gt;&amp;,&quot;4&quot;</th>"
                         "<td class=\"n\">\xe2\x80\x93</td>"
                         "<td class=\"n\"><strong>0.10</strong></td>"));
    assert_non_null(strstr(buf.data, "<p class=\"note\">best of 2</p>"));
    vptq_table_release(&t);
    vptq_buf_release(&buf);
}

static void test_sort_and_cut(void **state)
{
    static const vptq_column two[] = {{.name = "id", .type = VPTQ_COLUMN_INTEGER},
                                      {.name = "x", .type = VPTQ_COLUMN_REAL}};
    enum { N = 100 };
    vptq_table t;
    (void)state;
    vptq_table_init(&t, NULL, NULL, two, 2);
    for (int i = 0; i < N; i++) {
        vptq_table_row(&t);
        vptq_table_integer(&t, i);
        vptq_table_real(&t, i % 10 == 3 ? (double)NAN : (double)(i * 37 % 11));
    }
    vptq_table_sort(&t, 1, true);
    for (size_t i = 1; i < N; i++) {
        const vptq_cell *a = &t.cells[2 * (i - 1)], *b = &t.cells[2 * i];
        assert_true(a[1].kind != VPTQ_CELL_MISSING || b[1].kind == VPTQ_CELL_MISSING);
        if (b[1].kind == VPTQ_CELL_MISSING && a[1].kind != VPTQ_CELL_MISSING)
            assert_int_equal(i, N - N / 10);
        else if (a[1].kind == VPTQ_CELL_MISSING || a[1].as.real == b[1].as.real)
            assert_true(a[0].as.integer < b[0].as.integer); /* equal ones keep their order */
        else
            assert_true(a[1].as.real > b[1].as.real);
    }
    vptq_table_cut(&t, 7);
    assert_int_equal(t.row_count, 7);
    vptq_table_cut(&t, 70);
    assert_int_equal(t.row_count, 7);
    vptq_table_release(&t);
}

/* Every byte that is no text becomes U+FFFD or what the format has for it. */
static void test_hostile_names(void **state)
{
    static const char name[] = "\x01<script>\xff\xc0\x80'\"`\\\n\x7f\xed\xa0\x80";
    vptq_buf buf;
    vptq_err err = {0};
    vptq_emit e = {.buf = &buf, .err = &err};
    json_t *value = NULL;
    (void)state;
    vptq_buf_init(&buf, NULL);
    vptq_emit_xml(&e, name);
    assert_string_equal(buf.data, "\xef\xbf\xbd&lt;script&gt;\xef\xbf\xbd\xef\xbf\xbd\xef\xbf"
                                  "\xbd&#39;&quot;`\\\n\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                  "\xef\xbf\xbd");
    vptq_buf_clear(&buf);
    vptq_emit_json(&e, name);
    assert_ok(vptq_json_parse(buf.data, buf.len, "name", &value, &err), &err);
    assert_string_equal(json_string_value(value),
                        "\x01<script>\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd'\"`\\\n\x7f\xef\xbf"
                        "\xbd\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(value);
    vptq_buf_clear(&buf);
    vptq_emit_markdown(&e, "a_b*c*[x](y)`|\\<b>&\n# h");
    assert_string_equal(buf.data, "a_b\\*c\\*\\[x\\](y)\\`\\|\\\\&lt;b>&amp; \\# h");
    assert_int_equal(e.st, VPTQ_OK);
    vptq_buf_release(&buf);
}

static void test_numbers_read_back(void **state)
{
    static const double numbers[] = {0,       1,     -1,     0.1,
                                     1.0 / 3, 1e300, 5e-324, 123456789,
                                     0x1p60,  1e21,  -0.25,  0.30000000000000004};
    vptq_buf buf;
    (void)state;
    vptq_buf_init(&buf, NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        vptq_emit e = {.buf = &buf};
        vptq_buf_clear(&buf);
        vptq_emit_real(&e, numbers[i]);
        assert_true(strtod(buf.data, NULL) == numbers[i]);
    }
    vptq_emit e = {.buf = &buf};
    vptq_buf_clear(&buf);
    vptq_emit_real(&e, 0.1);
    vptq_emit_real(&e, (double)NAN);
    assert_string_equal(buf.data, "0.1null");
    vptq_buf_release(&buf);
}

static vptq_status fill_and_write(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_table t;
    vptq_buf buf;
    vptq_status st = VPTQ_OK;
    (void)arg;
    vptq_buf_init(&buf, mem);
    fill(&t, mem);
    for (int i = 0; i < 40; i++)
        vptq_table_row(&t);
    vptq_table_sort(&t, 2, false);
    for (int f = VPTQ_FORMAT_TEXT; !st && f <= VPTQ_FORMAT_HTML; f++)
        st = vptq_table_write(&t, (vptq_format)f, &buf, err);
    vptq_table_release(&t);
    vptq_buf_release(&buf);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    assert_true(vtest_oom_walk(fill_and_write, NULL) > 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_sort_and_cut),
        cmocka_unit_test(test_hostile_names), cmocka_unit_test(test_numbers_read_back),
        cmocka_unit_test(test_out_of_memory)};
    return vtest_main(argc, argv, tests);
}
