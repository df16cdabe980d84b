/* Tables and printed rows in every format against expected texts, escaping of hostile names,
 * and numbers that read back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/report/table.h"
#include "tests/support/vtest.h"

typedef struct score {
    const char *model;
    uint32_t runs;
    bool best;
    double ppl, loss;
} score;

static const vptq_column columns[] = {
    {.name = "model", .title = "Model", VPTQ_TEXT(score, model), .head = true},
    {.name = "runs", VPTQ_INTEGER(score, runs), .zero_missing = true},
    {.name = "ppl",
     .title = "Perplexity",
     VPTQ_REAL(score, ppl),
     .decimals = 2,
     .strong = offsetof(score, best)},
    {.name = "loss", VPTQ_REAL(score, loss), .decimals = -3}};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void fill(vptq_table *t, vptq_mem *mem)
{
    char name[] = "x|<y>&,\"4\"";
    vptq_table_init(t, mem, "Models, all", columns, COLUMNS);
    vptq_table_add(t, &(score){"a_b", 3, false, 7.125, 0.00012345});
    vptq_table_add(t, &(score){name, 0, true, 0.1, (double)NAN});
    name[0] = 0; /* texts are copied */
    vptq_table_add(t, &(score){NULL, 0, false, (double)NAN, (double)NAN});
    vptq_table_note(t, "best of 2");
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

/* Invalid bytes become U+FFFD or an escape, control characters what the format has. */
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
    vptq_buf_clear(&buf);
    vptq_emit_markdown(&e, "![i](https://x.y/z) WWW.x.y a@b.c 1:2 <http://x.y>\r\n\n<script>");
    assert_string_equal(buf.data, "!\\[i\\](https&#58;//x.y/z) &#87;WW.x.y a&#64;b.c 1:2 "
                                  "&lt;http&#58;//x.y>   &lt;script>");
    vptq_buf_clear(&buf);
    vptq_emit_line(&e, "a\n\x1b[2Jb\xc2\x9b"
                       "c\xff\u00e9\\");
    assert_string_equal(buf.data, "a\\n\\x1b[2Jb\\u009bc\\xff\u00e9\\");
    vptq_buf_clear(&buf);
    vptq_emit_printable(&e, "a\0\n\t\r", 5, "\n\t");
    assert_string_equal(buf.data, "a\\x00\n\t\\r");
    static const char unseen[] = "\xc2\x9b\u202e\u2028\u2066";
    vptq_buf_clear(&buf);
    vptq_emit_json(&e, unseen);
    assert_string_equal(buf.data, "\"\\u009b\\u202e\\u2028\\u2066\"");
    vptq_buf_clear(&buf);
    vptq_emit_csv(&e, unseen);
    assert_string_equal(buf.data, "\\u009b\\u202e\\u2028\\u2066");
    vptq_buf_clear(&buf);
    vptq_emit_markdown(&e, unseen);
    assert_string_equal(buf.data, "    ");
    vptq_buf_clear(&buf);
    vptq_emit_xml(&e, unseen);
    assert_string_equal(buf.data, "\ufffd\ufffd\ufffd\ufffd");
    assert_int_equal(e.st, VPTQ_OK);
    vptq_buf_release(&buf);
}

/* Spreadsheets evaluate texts that begin like a formula; numbers stay numbers. */
static void test_csv_formulas(void **state)
{
    static const char *const texts[][2] = {
        {"=1+2", "'=1+2"}, {"+a", "'+a"},      {"-a,b", "\"'-a,b\""}, {"@x", "'@x"},
        {"\t=1", "'\t=1"}, {"\r=1", "'\\r=1"}, {"-1.5e3", "-1.5e3"},  {"+7", "+7"},
        {"-1+2", "'-1+2"}, {"-", "'-"},        {"a=b", "a=b"},        {"", ""}};
    vptq_buf buf;
    (void)state;
    vptq_buf_init(&buf, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        vptq_emit e = {.buf = &buf};
        vptq_buf_clear(&buf);
        vptq_emit_csv(&e, texts[i][0]);
        assert_string_equal(buf.data, texts[i][1]);
    }
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

/* ---- rows of structs ---- */

typedef struct record {
    char name[16];
    const char *text;
    uint32_t small;
    uint64_t big;
    double real, error;
    bool flag, has_real;
    vptq_id_list ids;
    vptq_object object;
    const char *members;
} record;

enum { EXTRA = 1 };
#define PEOPLE (VPTQ_IN_TEXT | VPTQ_IN_MD)

static const vptq_column record_columns[] = {
    {.name = "name", VPTQ_CHARS(record, name), .width = 6},
    {.name = "text", .title = "Text", VPTQ_TEXT(record, text), .missing = "none"},
    {.name = "small", VPTQ_INTEGER(record, small), .zero_missing = true},
    {.name = "big", VPTQ_INTEGER(record, big), .formats = VPTQ_IN_JSON},
    {.name = "kilo",
     VPTQ_INTEGER(record, small),
     .scale = 1e-3,
     .decimals = 1,
     .formats = PEOPLE},
    {.name = "real",
     VPTQ_REAL(record, real),
     .decimals = 2,
     .deviation = offsetof(record, error),
     .when = offsetof(record, has_real),
     .scale = 100,
     .unit = " %"},
    {.name = "fixed",
     VPTQ_REAL(record, real),
     .decimals = 3,
     .fixed = VPTQ_IN_CSV | VPTQ_IN_JSON},
    {.name = "flag", VPTQ_BOOL(record, flag), .needs = EXTRA}};

static record make_record(void)
{
    return (record){.name = "a,b",
                    .text = "x|y",
                    .small = 1500,
                    .big = UINT64_MAX,
                    .real = 0.125,
                    .error = 0.5,
                    .has_real = true};
}

static vptq_status write_file(void *arg, const char *text, size_t length, vptq_err *err)
{
    (void)err;
    assert_int_equal(fwrite(text, 1, length, arg), length);
    return VPTQ_OK;
}

/* Prints a full row and one of missing values. */
static char *print_records(vptq_format format, unsigned has)
{
    const record rows[] = {make_record(), {.real = (double)NAN}};
    char *text = NULL;
    size_t size;
    vptq_err err = {0};
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    const vptq_output to = {.format = format, .write = write_file, .arg = out};
    vptq_printer p = vptq_printer_make(&to, VPTQ_COLUMNS(record_columns));
    p.has = has;
    for (size_t i = 0; i < 2; i++)
        assert_ok(vptq_print_row(&p, &rows[i], &err), &err);
    assert_int_equal(p.rows, 2);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void assert_printed(vptq_format format, unsigned has, const char *expected)
{
    char *text = print_records(format, has);
    assert_string_equal(text, expected);
    free(text);
}

static void test_printed_rows(void **state)
{
    (void)state;
    assert_printed(VPTQ_FORMAT_TEXT, 0,
                   "name    Text  small  kilo  real  fixed\n"
                   "a,b     x|y    1500   1.5  12.50 ± 50.00 %  0.125\n"
                   "-       none      -   0.0     -      -\n");
    assert_printed(VPTQ_FORMAT_CSV, EXTRA,
                   "name,text,small,real,fixed,flag\n"
                   "\"a,b\",x|y,1500,0.125,0.125,false\n"
                   ",,,,,false\n");
    assert_printed(VPTQ_FORMAT_MD, EXTRA,
                   "| name | Text | small | kilo | real | fixed | flag |\n"
                   "| --- | --- | ---: | ---: | ---: | ---: | --- |\n"
                   "| a,b | x\\|y | 1500 | 1.5 | 12.50 ± 50.00 % | 0.125 | no |\n"
                   "| - | none | - | 0.0 | - | - | no |\n");
    assert_printed(VPTQ_FORMAT_JSON, EXTRA,
                   "{\"name\": \"a,b\", \"text\": \"x|y\", \"small\": 1500, "
                   "\"big\": 18446744073709551615, \"real\": 0.125, \"fixed\": 0.125, "
                   "\"flag\": false}\n"
                   "{\"name\": null, \"text\": null, \"small\": null, \"big\": 0, "
                   "\"fixed\": null, \"flag\": false}\n");
}

/* On a narrow terminal the last columns go first, major ones stay, and the head names those
 * that are not shown; other formats are for programs and have all. */
static void test_narrow(void **state)
{
    static const vptq_column wide[] = {
        {.name = "name", VPTQ_TEXT(record, text), .width = 10},
        {.name = "small", .title = "a count", VPTQ_INTEGER(record, small)},
        {.name = "real", VPTQ_REAL(record, real), .decimals = 2, .width = 8, .major = true},
        {.name = "big", VPTQ_INTEGER(record, big), .width = 5}};
    static const struct {
        vptq_format format;
        uint32_t width;
        const char *expected;
    } cases[] = {
        {VPTQ_FORMAT_TEXT, 0,
         "name        a count      real    big\nx                 7      0.50     12\n"},
        {VPTQ_FORMAT_TEXT, 36,
         "name        a count      real    big\nx                 7      0.50     12\n"},
        {VPTQ_FORMAT_TEXT, 35,
         "not shown for lack of width: big\nname        a count      real\n"
         "x                 7      0.50\n"},
        {VPTQ_FORMAT_TEXT, 28,
         "not shown for lack of width: a count, big\nname            real\n"
         "x               0.50\n"},
        {VPTQ_FORMAT_TEXT, 3,
         "not shown for lack of width: a count, big\nname            real\n"
         "x               0.50\n"},
        {VPTQ_FORMAT_CSV, 3, "name,small,real,big\nx,7,0.5,12\n"}};
    const record row = {.text = "x", .small = 7, .real = 0.5, .big = 12};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = NULL;
        size_t size;
        vptq_err err = {0};
        vptq_table t;
        vptq_buf buf;
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        const vptq_output to = {.format = cases[i].format,
                                .write = write_file,
                                .arg = out,
                                .width = cases[i].width};
        vptq_printer p = vptq_printer_make(&to, VPTQ_COLUMNS(wide));
        assert_ok(vptq_print_row(&p, &row, &err), &err);
        assert_int_equal(fclose(out), 0);
        assert_string_equal(text, cases[i].expected);
        free(text);
        vptq_buf_init(&buf, NULL);
        vptq_table_init(&t, NULL, NULL, VPTQ_COLUMNS(wide));
        t.width = cases[i].width;
        vptq_table_add(&t, &row);
        assert_ok(vptq_table_write(&t, cases[i].format, &buf, &err), &err);
        assert_int_equal(!strncmp(buf.data, "not shown", 9),
                         !strncmp(cases[i].expected, "not shown", 9));
        vptq_table_release(&t);
        vptq_buf_release(&buf);
    }
}

/* Columns are as wide as the content of all rows, also if there is only one. */
static void test_printed_together(void **state)
{
    const record rows[] = {{.name = "a", .text = "short"},
                           {.name = "b", .text = "a longer one"}};
    static const char *const expected[] = {"name    Text   small\n"
                                           "a       short      -\n",
                                           "name    Text          small\n"
                                           "a       short             -\n"
                                           "b       a longer one      -\n"};
    (void)state;
    for (size_t count = 1; count <= 2; count++) {
        char *text = NULL;
        size_t size;
        vptq_err err = {0};
        FILE *out = open_memstream(&text, &size);
        assert_non_null(out);
        const vptq_output to = {.format = VPTQ_FORMAT_TEXT, .write = write_file, .arg = out};
        vptq_printer p = vptq_printer_make(&to, record_columns, 3);
        assert_ok(vptq_print_rows(&p, rows, count, sizeof *rows, &err), &err);
        assert_int_equal(fclose(out), 0);
        assert_string_equal(text, expected[count - 1]);
        free(text);
    }
}

static void test_printed_object(void **state)
{
    static const vptq_column inner[] = {{.name = "real", VPTQ_REAL(record, real)},
                                        {.name = "nan", VPTQ_REAL(record, error)}};
    static const vptq_column columns_of[] = {{VPTQ_MEMBERS(record, members)},
                                             {.name = "text", VPTQ_TEXT(record, text)},
                                             {.name = "ids", VPTQ_IDS(record, ids)},
                                             {.name = "inner", VPTQ_OBJECT(record, object)},
                                             {.name = "yes", VPTQ_BOOL(record, flag)}};
    static const int32_t ids[] = {7, -1};
    char *text = NULL;
    size_t size;
    vptq_err err = {0};
    FILE *out = open_memstream(&text, &size);
    record r = {.text = "a\"b\\c\n\t\xc3\xa9\xff|",
                .members = "{\"x\": 1, \"y\": []}",
                .ids = {ids, 2},
                .real = 1.0 / 3,
                .error = (double)NAN,
                .flag = true};
    r.object = (vptq_object){VPTQ_COLUMNS(inner), &r};
    (void)state;
    assert_non_null(out);
    const vptq_output to = {.format = VPTQ_FORMAT_JSON, .write = write_file, .arg = out};
    assert_ok(vptq_print_object(&to, VPTQ_COLUMNS(columns_of), &r, &err), &err);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "{\"x\": 1, \"y\": [], "
                              "\"text\": \"a\\\"b\\\\c\\n\\u0009\xc3\xa9\xef\xbf\xbd|\", "
                              "\"ids\": [7, -1], \"inner\": {\"real\": 0.3333333333333333, "
                              "\"nan\": null}, \"yes\": true}\n");
    free(text);
}

static void test_printed_list(void **state)
{
    static const vptq_column lines[] = {
        {.title = "a heading"},
        {.title = "value",
         VPTQ_REAL(record, real),
         .decimals = 1,
         .deviation = offsetof(record, error),
         .width = 6,
         .unit = " s"},
        {.name = "key", VPTQ_REAL(record, real), .formats = VPTQ_IN_JSON}};
    const record r = {.real = 2, .error = 0.5};
    char *text = NULL;
    size_t size;
    vptq_err err = {0};
    FILE *out = open_memstream(&text, &size);
    (void)state;
    assert_non_null(out);
    const vptq_output to = {.format = VPTQ_FORMAT_TEXT, .write = write_file, .arg = out};
    assert_ok(vptq_print_list(&to, VPTQ_COLUMNS(lines), 8, &r, &err), &err);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "a heading\nvalue       2.0 ± 0.5 s\n");
    free(text);
}

/* Names stay on their line, and columns fit what is shown. */
static void test_printed_names(void **state)
{
    static const vptq_column names[] = {{.name = "name", VPTQ_TEXT(record, text), .width = 10},
                                        {.name = "x", VPTQ_REAL(record, real)}};
    const record rows[] = {{.text = "a\n\x1b[2J\u202e", .real = 2}, {.text = "b", .real = 3}};
    char *text = NULL;
    size_t size;
    vptq_err err = {0};
    FILE *out = open_memstream(&text, &size);
    (void)state;
    assert_non_null(out);
    const vptq_output to = {.format = VPTQ_FORMAT_TEXT, .write = write_file, .arg = out};
    vptq_printer p = vptq_printer_make(&to, VPTQ_COLUMNS(names));
    assert_ok(vptq_print_rows(&p, rows, 2, sizeof *rows, &err), &err);
    assert_ok(vptq_print_list(&to, names, 1, 6, &rows[0], &err), &err);
    assert_ok(vptq_print_line(&to, &err, "%s: %d", rows[0].text, 7), &err);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "name              x\n"
                              "a\\n\\x1b[2J\\u202e  2\n"
                              "b                 3\n"
                              "name   a\\n\\x1b[2J\\u202e\n"
                              "a\\n\\x1b[2J\\u202e: 7\n");
    free(text);
}

static void test_human_texts(void **state)
{
    (void)state;
    char t[32];
    vptq_human_bytes(t, 1023);
    assert_string_equal(t, "1023 B");
    vptq_human_bytes(t, 1536);
    assert_string_equal(t, "1.5 KiB");
    vptq_human_bytes(t, UINT64_C(5) << 40);
    assert_string_equal(t, "5.0 TiB");
    vptq_human_seconds(t, 0.44);
    assert_string_equal(t, "0.4 s");
    vptq_human_seconds(t, 59.96);
    assert_string_equal(t, "1 min 0 s");
    vptq_human_seconds(t, 200);
    assert_string_equal(t, "3 min 20 s");
    vptq_human_seconds(t, 3600 * 26 + 300);
    assert_string_equal(t, "26 h 5 min");
    vptq_human_seconds(t, -1);
    assert_string_equal(t, "?");
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
        vptq_table_add(&t, &(score){.model = "more"});
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

VTEST_MAIN(cmocka_unit_test(test_formats), cmocka_unit_test(test_hostile_names),
           cmocka_unit_test(test_csv_formulas), cmocka_unit_test(test_numbers_read_back),
           cmocka_unit_test(test_printed_rows), cmocka_unit_test(test_printed_together),
           cmocka_unit_test(test_narrow), cmocka_unit_test(test_printed_object),
           cmocka_unit_test(test_printed_list), cmocka_unit_test(test_printed_names),
           cmocka_unit_test(test_human_texts), cmocka_unit_test(test_out_of_memory))
