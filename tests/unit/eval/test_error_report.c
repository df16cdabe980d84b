/* Reports of the errors of matrices: order, means computed by hand, every format. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/eval/error.h"
#include "tests/support/vpage.h"
#include "tests/support/vtest.h"

/* Two layers of q_proj and down_proj; the second layer's down_proj is not quantized. */
static const vptq_error_row rows[] = {
    {.layer = 3,
     .name = "q_proj",
     .rows = 8,
     .columns = 4,
     .proxy_loss = 0.01,
     .relative_mse = 0.25,
     .worst_row = 5,
     .worst_row_mse = 0.5,
     .bits_per_weight = 2,
     .shape = {.v = 8, .k = 16, .groups = 1}},
    {.layer = 3,
     .name = "down_proj",
     .kind = VPTQ_LINEAR_DOWN,
     .rows = 8,
     .columns = 4,
     .proxy_loss = 0.04,
     .relative_mse = 0.05,
     .worst_row = 1,
     .worst_row_mse = 0.125,
     .bits_per_weight = 3,
     .shape = {.v = 8, .k = 16, .k_res = 4, .groups = 1, .outliers = 2}},
    {.layer = 4,
     .name = "q_proj",
     .rows = 8,
     .columns = 4,
     .proxy_loss = 0.02,
     .relative_mse = 0.5,
     .worst_row = 0,
     .worst_row_mse = 1.5,
     .bits_per_weight = 4,
     .shape = {.v = 8, .k = 16, .groups = 1}}};

static vptq_status write_report(const vptq_error_report *r, vptq_format format, vptq_mem *mem,
                                vptq_buf *out, vptq_err *err)
{
    const vptq_model_desc llama = {.family = vptq_family_by_model_type("llama")};
    vptq_error_report of_llama = *r;
    of_llama.desc = &llama;
    return vptq_error_report_write(&of_llama, format, mem, out, err);
}

static const char *written(const vptq_error_report *r, vptq_format format, vptq_buf *out)
{
    vptq_err err = {0};
    vptq_buf_clear(out);
    assert_ok(write_report(r, format, NULL, out, &err), &err);
    return out->data;
}

/* Checks that the parts come in this order. */
static void assert_order(const char *text, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(text, parts[i]);
        if (!at)
            fail_msg("no '%s' in '%s'", parts[i], text);
        text = at + strlen(parts[i]);
    }
}
#define ASSERT_ORDER(text, ...)                                                                \
    assert_order(text, (const char *const[]){__VA_ARGS__},                                     \
                 sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void test_rows(void **state)
{
    vptq_error_report r = {.rows = rows, .count = 3, .model = "m", .base = "b"};
    vptq_buf out;
    (void)state;
    vptq_buf_init(&out, NULL);
    assert_string_equal(
        written(&r, VPTQ_FORMAT_CSV, &out),
        "layer,name,rows,columns,proxy_loss,relative_mse,bits_per_weight,v,k,k_res,groups,"
        "outliers,worst_row,worst_row_mse\n"
        "3,q_proj,8,4,0.01,0.25,2,8,16,0,1,0,5,0.5\n"
        "3,down_proj,8,4,0.04,0.05,3,8,16,4,1,2,1,0.125\n"
        "4,q_proj,8,4,0.02,0.5,4,8,16,0,1,0,0,1.5\n");
    r.order = VPTQ_ERROR_ORDER_WORST;
    r.top = 2;
    ASSERT_ORDER(written(&r, VPTQ_FORMAT_JSON, &out), "{\"layer\": 3, \"name\": \"down_proj\"",
                 "}\n{\"layer\": 4, \"name\": \"q_proj\"", "\"worst_row_mse\": 1.5}\n");
    assert_null(strstr(out.data, "0.01"));
    vptq_buf_release(&out);
}

static void test_for_people(void **state)
{
    vptq_error_report r = {.rows = rows, .count = 3, .model = "m", .base = "b"};
    vptq_buf out;
    (void)state;
    vptq_buf_init(&out, NULL);
    ASSERT_ORDER(written(&r, VPTQ_FORMAT_TEXT, &out), "Matrices, worst first\n", "0.040000",
                 "0.020000", "0.010000", "Means\n", "q_proj", "2", "0.015000", "0.375000",
                 "0.010000", "0.020000", "3.0000", "down_proj", "1", "0.040000", "all", "3",
                 "0.023333", "0.266667", "0.010000", "0.040000", "3.0000",
                 "least and largest output error");
    r.order = VPTQ_ERROR_ORDER_LAYER;
    ASSERT_ORDER(written(&r, VPTQ_FORMAT_MD, &out), "| 3 | q_proj", "| 3 | down", "| 4 | q");
    vptq_buf_release(&out);
}

/* Without Hessians the order is by weight errors. */
static void test_without_hessians(void **state)
{
    vptq_error_row plain[3];
    vptq_error_report r = {.rows = plain, .count = 3, .model = "m", .base = "b"};
    vptq_buf out;
    (void)state;
    vptq_buf_init(&out, NULL);
    memcpy(plain, rows, sizeof plain);
    for (int i = 0; i < 3; i++)
        plain[i].proxy_loss = (double)NAN;
    ASSERT_ORDER(written(&r, VPTQ_FORMAT_TEXT, &out), "0.500000", "0.250000", "0.050000",
                 "least and largest weight error");
    assert_null(strstr(out.data, "Output error"));
    assert_int_equal(vpage_check(written(&r, VPTQ_FORMAT_HTML, &out)), 3);
    assert_non_null(strstr(out.data, "Weight error by layer and kind"));
    vptq_buf_release(&out);
}

static void test_page(void **state)
{
    vptq_error_row many[7 * 90];
    static const char *const names[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                        "gate_proj", "up_proj", "down_proj"};
    vptq_error_report r = {.rows = rows, .count = 3, .model = "<m>", .base = "b"};
    vptq_buf out;
    (void)state;
    vptq_buf_init(&out, NULL);
    assert_int_equal(vpage_check(written(&r, VPTQ_FORMAT_HTML, &out)), 3);
    assert_non_null(strstr(out.data, "&lt;m&gt; against b"));
    assert_non_null(strstr(out.data, "The 3 worst matrices"));
    assert_null(strstr(out.data, "nan"));
    /* a model of 90 layers */
    for (uint32_t i = 0; i < 7 * 90; i++) {
        many[i] = rows[0];
        many[i].layer = i / 7;
        many[i].name = names[i % 7];
        many[i].kind = (vptq_linear)(i % 7);
        many[i].proxy_loss = 1e-5 * (1 + i * 37 % 1000);
    }
    r = (vptq_error_report){.rows = many, .count = 7 * 90, .model = "m", .base = "b"};
    assert_int_equal(vpage_check(written(&r, VPTQ_FORMAT_HTML, &out)), 3);
    assert_non_null(strstr(out.data, "The 20 worst matrices"));
    assert_non_null(strstr(out.data, "All matrices by layer"));
    vptq_buf_release(&out);
}

static vptq_status write_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_error_report r = {.rows = rows, .count = 3, .model = "m", .base = "b"};
    vptq_buf out;
    vptq_status st = VPTQ_OK;
    (void)arg;
    vptq_buf_init(&out, mem);
    for (int f = VPTQ_FORMAT_TEXT; !st && f <= VPTQ_FORMAT_HTML; f++)
        st = write_report(&r, (vptq_format)f, mem, &out, err);
    vptq_buf_release(&out);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    assert_true(vtest_oom_walk(write_all, NULL) > 3);
}

VTEST_MAIN(cmocka_unit_test(test_rows), cmocka_unit_test(test_for_people),
           cmocka_unit_test(test_without_hessians), cmocka_unit_test(test_page),
           cmocka_unit_test(test_out_of_memory))
