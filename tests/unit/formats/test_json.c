/* Tests the JSON reader and writer: real files, bad text, and limits. */
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "tests/support/vtest.h"

static json_t *parse(const char *text)
{
    vptq_err err = {0};
    json_t *value = NULL;
    assert_ok(vptq_json_parse(text, strlen(text), "x.json", &value, &err), &err);
    return value;
}

static void refuse(const char *text, const char *part)
{
    vptq_err err = {0};
    json_t *value = NULL;
    assert_fails(vptq_json_parse(text, strlen(text), "x.json", &value, &err), VPTQ_E_FORMAT,
                 &err, part);
    assert_null(value);
    assert_non_null(strstr(err.text, "x.json: "));
}

/* A key of a megabyte, all backslashes, is found in linear time. */
static void test_long_key(void)
{
    enum { KEY = 1 << 20 };
    char *text = test_malloc(2 * KEY + 16), *at = text;
    for (int i = 0; i < 2; i++) {
        at += sprintf(at, "%s\"", i ? ":1," : "{");
        memset(at, '\\', KEY);
        at += KEY;
        *at++ = '"';
    }
    memcpy(at, ":2}", sizeof ":2}");
    refuse(text, "duplicate key '");
    test_free(text);
}

static void test_bad_text(void **state)
{
    (void)state;
    refuse("", "line 1");
    refuse("{\"a\":1", "not valid JSON");
    refuse("{\"a\":1} x", "end of file expected");
    refuse("{\"a\":1,\"b\":2,\"a\":3}", "line 1, column 16: duplicate key 'a'");
    refuse("{\n\"a\\\"\\\\\": 1,\n \"a\\\"\\\\\": 2}",
           "line 3, column 8: duplicate key 'a\\\"\\\\'");
    refuse("{\"a\":\n  nul}", "line 2");
    test_long_key();
    refuse("[1e999]", "real number overflow");
    refuse("[99999999999999999999]", "too big integer");
    refuse("[\"\xff\"]", "unable to decode byte");
}

/* A zero byte is not the end of a text. */
static void test_zero_bytes(void **state)
{
    (void)state;
    static const char texts[][8] = {"123\0", "{}\0{}", "[1]\0\n", "[1,\0 2]", "\"a\0b\""};
    static const size_t lengths[] = {4, 5, 5, 7, 5};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        vptq_err err = {0};
        json_t *value = NULL;
        assert_fails(vptq_json_parse(texts[i], lengths[i], "x.json", &value, &err),
                     VPTQ_E_FORMAT, &err, "not valid JSON");
        assert_null(value);
    }
}

static void test_depth(void **state)
{
    (void)state;
    enum { DEEP = 10000 };
    char *text = malloc(2 * DEEP + 1);
    assert_non_null(text);
    memset(text, '[', DEEP);
    memset(text + DEEP, ']', DEEP);
    text[2 * DEEP] = 0;
    refuse(text, "maximum parsing depth reached");
    free(text);
}

/* A text whose values would need gigabytes is rejected before it is parsed. */
static void test_memory_estimate(void **state)
{
    (void)state;
    const size_t len = 9000000;
    char *text = malloc(len);
    assert_non_null(text);
    for (size_t i = 0; i < len; i++)
        text[i] = i == 0 ? '[' : i == len - 1 ? ']' : i % 2 ? '0' : ',';
    text[len - 2] = '0';
    vptq_err err = {0};
    json_t *value = NULL;
    for (size_t i = 1; i + 2 < len; i += 3)
        memcpy(text + i, "{},", 3);
    assert_fails(vptq_json_parse(text, len, "big.json", &value, &err), VPTQ_E_FORMAT, &err,
                 "big.json: the JSON of 9000000 bytes has about");
    /* Brackets and commas inside strings do not count. */
    memset(text, ',', len);
    memcpy(text, "[\"\\\"", 4);
    memcpy(text + len - 2, "\"]", 2);
    assert_ok(vptq_json_parse(text, len, "big.json", &value, &err), &err);
    assert_int_equal(json_string_length(json_array_get(value, 0)), len - 5);
    json_decref(value);
    free(text);
}

static size_t in_use, most;

static void *count_alloc(size_t n)
{
    size_t *p = malloc(n + 16);
    assert_non_null(p);
    *p = n;
    in_use += n;
    most = in_use > most ? in_use : most;
    return (char *)p + 16;
}

static void count_free(void *p)
{
    if (!p)
        return;
    size_t *whole = (size_t *)(void *)((char *)p - 16);
    in_use -= *whole;
    free(whole);
}

/* The densest texts that are accepted take at most MOST times their bytes. */
static void test_memory(void **state)
{
    enum { LEN = 4 << 20, MOST = 20 };
    static const char *const items[] = {
        "{},", "[],", "0,", "\"a\",", "{\"a\":0},", "[[0],0],", "{\"abc\":{\"d\":\"e\"}},"};
    json_malloc_t usual_malloc;
    json_free_t usual_free;
    char *text = malloc(LEN);
    (void)state;
    assert_non_null(text);
    json_get_alloc_funcs(&usual_malloc, &usual_free);
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        vptq_err err = {0};
        json_t *value = NULL;
        size_t n = strlen(items[i]), step = n;
        do { /* with more and more spaces, until it is accepted */
            memset(text, ' ', LEN);
            text[0] = '[';
            for (size_t at = 1; at + step + 4 < LEN; at += step)
                memcpy(text + at, items[i], n);
            memcpy(text + LEN - 2, "0]", 2);
            most = in_use = 0;
            json_set_alloc_funcs(count_alloc, count_free);
            value = NULL;
            vptq_status st = vptq_json_parse(text, LEN, "x.json", &value, &err);
            json_decref(value);
            json_set_alloc_funcs(usual_malloc, usual_free);
            assert_true(!st || strstr(err.text, "values, expected at most"));
            assert_true(!st || most == 0);
            step++;
        } while (!value);
        assert_true(most > LEN / 2);
        assert_true(most <= (size_t)MOST * LEN);
    }
    free(text);
}

static void test_check_text(void **state)
{
    vptq_err err = {0};
    (void)state;
    assert_ok(vptq_json_check_text("f", "the path", "a\xc3\xa4", &err), &err);
    assert_fails(vptq_json_check_text("f", "the path", "a\xe4", &err), VPTQ_E_FORMAT, &err,
                 "f: the path 'a\\xe4' is not valid UTF-8, as JSON must be");
}

static void test_getters(void **state)
{
    (void)state;
    json_t *o = parse("{\"n\":7,\"neg\":-1,\"x\":0.5,\"t\":true,\"s\":\"word\",\"null\":null,"
                      "\"l\":[1],\"o\":{}}");
    vptq_err err = {0};
    uint64_t n = 0;
    double x = 0;
    bool b = false;
    const char *s = NULL;
    assert_ok(vptq_json_u64(o, "f", "n", 7, &n, &err), &err);
    assert_int_equal(n, 7);
    assert_fails(vptq_json_u64(o, "f", "n", 6, &n, &err), VPTQ_E_FORMAT, &err,
                 "f: key 'n' is 7, expected 0 to 6");
    assert_fails(vptq_json_u64(o, "f", "neg", 6, &n, &err), VPTQ_E_FORMAT, &err, "is -1");
    assert_fails(vptq_json_u64(o, "f", "x", 6, &n, &err), VPTQ_E_FORMAT, &err,
                 "key 'x' is a fraction, expected a whole number");
    assert_fails(vptq_json_u64(o, "f", "gone", 6, &n, &err), VPTQ_E_FORMAT, &err,
                 "f: key 'gone' is missing");
    assert_fails(vptq_json_u64(o, "f", "null", 6, &n, &err), VPTQ_E_FORMAT, &err,
                 "key 'null' is missing");
    assert_ok(vptq_json_u64_or(o, "f", "null", 6, 5, &n, &err), &err);
    assert_int_equal(n, 5);
    assert_fails(vptq_json_u64_or(o, "f", "s", 6, 5, &n, &err), VPTQ_E_FORMAT, &err,
                 "is a string");
    assert_ok(vptq_json_f64_or(o, "f", "x", 2, &x, &err), &err);
    assert_true(x == 0.5);
    assert_ok(vptq_json_f64_or(o, "f", "n", 2, &x, &err), &err);
    assert_true(x == 7);
    assert_ok(vptq_json_f64_or(o, "f", "gone", 2, &x, &err), &err);
    assert_true(x == 2);
    assert_fails(vptq_json_f64_or(o, "f", "l", 2, &x, &err), VPTQ_E_FORMAT, &err, "an array");
    assert_ok(vptq_json_bool_or(o, "f", "t", false, &b, &err), &err);
    assert_true(b);
    assert_fails(vptq_json_bool_or(o, "f", "n", false, &b, &err), VPTQ_E_FORMAT, &err,
                 "expected true or false");
    assert_ok(vptq_json_str_or(o, "f", "s", NULL, &s, &err), &err);
    assert_string_equal(s, "word");
    assert_ok(vptq_json_str_or(o, "f", "gone", "else", &s, &err), &err);
    assert_string_equal(s, "else");
    assert_fails(vptq_json_str_or(o, "f", "gone", NULL, &s, &err), VPTQ_E_FORMAT, &err,
                 "missing");
    assert_fails(vptq_json_str_or(o, "f", "o", "", &s, &err), VPTQ_E_FORMAT, &err, "an object");
    json_decref(o);
}

/* Keys keep their order; numbers have as few digits as keep their value. */
static void test_save(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "out.json");
    json_t *o = parse("{\"z\":1,\"a\":[0.1,1e-05],\"third\":0.33333333333333331}");
    assert_ok(vptq_json_save(path, o, &err), &err);
    size_t size;
    char *text = vtest_read_file(path, &size);
    assert_string_equal(text, "{\n  \"z\": 1,\n  \"a\": [\n    0.1,\n    1e-5\n  ],\n"
                              "  \"third\": 0.3333333333333333\n}\n");
    free(text);
    json_t *again = NULL;
    assert_ok(vptq_json_load(path, 1000, &again, &err), &err);
    assert_true(json_equal(o, again));
    json_decref(again);
    assert_int_not_equal(vptq_json_load(path, 10, &again, &err), VPTQ_OK);
    assert_non_null(strstr(err.text, "out.json"));
    json_decref(o);
}

VTEST_MAIN(cmocka_unit_test(test_bad_text), cmocka_unit_test(test_zero_bytes),
           cmocka_unit_test(test_depth), cmocka_unit_test(test_memory_estimate),
           cmocka_unit_test(test_memory), cmocka_unit_test(test_check_text),
           cmocka_unit_test(test_getters), scratch_test(test_save))
