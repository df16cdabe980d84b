/* Tests files of options: what is read, what is written, and that both agree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/vptq.h"
#include "tests/support/vtest.h"

/* Of the items, only number `off` is false. */
static void expect_items(const vptq_config *c, const vptq_setting_text *want, size_t count,
                         size_t off)
{
    assert_int_equal(c->count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(c->is_false[i], i == off);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(c->items[i].key, want[i].key);
        if (want[i].value)
            assert_string_equal(c->items[i].value, want[i].value);
        else
            assert_null(c->items[i].value);
    }
}

static void test_read(void **state)
{
    static const char text[] = "{\"model\": \"a b.gguf\", \"bits\": 2.20, \"seed\": 12,"
                               " \"norm\": false, \"tokenizer\": null, \"sequential\": true,"
                               " \"calibration\": [\"x\", 7, \"\"], \"none\": []}";
    static const vptq_setting_text want[] = {
        {"model", "a b.gguf"}, {"bits", "2.2"},      {"seed", "12"},       {"norm", NULL},
        {"sequential", NULL},  {"calibration", "x"}, {"calibration", "7"}, {"calibration", ""}};
    char path[4096];
    vptq_config c;
    vptq_err err;
    vtest_path(path, sizeof path, *state, "run.json");
    vtest_write_file(path, text, sizeof text - 1);
    assert_ok(vptq_config_read(path, &c, &err), &err);
    expect_items(&c, want, sizeof want / sizeof *want, 3);
    vptq_config_free(&c);
    assert_int_equal(c.count, 0);
    vptq_config_free(&c);
}

/* Texts that look like numbers come back as they were. */
static void test_round_trip(void **state)
{
    static const vptq_setting_text items[] = {
        {"model", "12"},    {"output", "007"},     {"tokens", "1e400"},  {"tokens", "0x10"},
        {"tokens", NULL},   {"recipe", "true"},    {"bits", "2.5"},      {"rate", "1e-3"},
        {"text", "[1, 2]"}, {"held_out", "\"q\""}, {"name", "\xc3\xa9"}, {"empty", ""}};
    enum { COUNT = sizeof items / sizeof *items };
    char path[4096];
    size_t size;
    vptq_config c;
    vptq_err err;
    vtest_path(path, sizeof path, *state, "run.json");
    assert_ok(vptq_config_write(path, items, COUNT, false, &err), &err);
    assert_ok(vptq_config_read(path, &c, &err), &err);
    expect_items(&c, items, COUNT, COUNT);
    vptq_config_free(&c);
    char *text = vtest_read_file(path, &size);
    assert_non_null(strstr(text, "\"model\": 12,"));
    assert_non_null(strstr(text, "\"output\": \"007\","));
    assert_non_null(strstr(text, "\"bits\": 2.5,"));

    /* the same again changes nothing; other options need force */
    assert_ok(vptq_config_write(path, items, COUNT, false, &err), &err);
    assert_fails(vptq_config_write(path, items, COUNT - 1, false, &err), VPTQ_E_EXISTS, &err,
                 "already exists with other options");
    vtest_expect_text(path, text);
    assert_ok(vptq_config_write(path, items, COUNT - 1, true, &err), &err);
    assert_ok(vptq_config_read(path, &c, &err), &err);
    expect_items(&c, items, COUNT - 1, COUNT);
    vptq_config_free(&c);
    free(text);
}

static void test_refusals(void **state)
{
    static const vptq_setting_text latin = {"model", "caf\xe9"};
    static const struct {
        const char *text, *sentence;
    } cases[] = {{"[1]", "expected a JSON object of options"},
                 {"{\"a\": {}}", "the value of 'a' is not a text"},
                 {"{\"a\": [[1]]}", "the value of 'a' is not a text"},
                 {"{\"a\": 1, \"a\": 2}", "duplicate"},
                 {"{\"a\": 1} x", "run.json"}};
    char path[4096];
    vptq_config c;
    vptq_err err;
    vtest_path(path, sizeof path, *state, "run.json");
    assert_fails(vptq_config_read(path, &c, &err), VPTQ_E_IO, &err, "No such file");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vtest_write_file(path, cases[i].text, strlen(cases[i].text));
        assert_fails(vptq_config_read(path, &c, &err), VPTQ_E_FORMAT, &err, cases[i].sentence);
        assert_int_equal(c.count, 0);
    }
    assert_fails(vptq_config_write(path, &latin, 1, true, &err), VPTQ_E_FORMAT, &err,
                 "not valid UTF-8");
}

/* More options than any command has. */
static void test_too_many(void **state)
{
    enum { COUNT = 4097 };
    vptq_setting_text *items = calloc(COUNT, sizeof *items);
    char path[4096];
    vptq_config c;
    vptq_err err;
    assert_non_null(items);
    for (size_t i = 0; i < COUNT; i++)
        items[i] = (vptq_setting_text){"text", "x"};
    vtest_path(path, sizeof path, *state, "run.json");
    assert_ok(vptq_config_write(path, items, COUNT, false, &err), &err);
    assert_fails(vptq_config_read(path, &c, &err), VPTQ_E_FORMAT, &err, "more than 4096");
    free(items);
}

VTEST_MAIN(scratch_test(test_read), scratch_test(test_round_trip), scratch_test(test_refusals),
           scratch_test(test_too_many))
