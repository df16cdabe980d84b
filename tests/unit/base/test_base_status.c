/* Tests error sentences, their context and the names of status codes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/ctx.h"
#include "lib/base/text.h"

#include "tests/support/vtest.h"

static void test_fail_writes_sentence(void **state)
{
    (void)state;
    vptq_err err = {0};
    assert_int_equal(vptq_fail(&err, VPTQ_E_FORMAT, "'%s' has %d parts", "a.bin", 3),
                     VPTQ_E_FORMAT);
    assert_int_equal(err.code, VPTQ_E_FORMAT);
    assert_string_equal(err.text, "'a.bin' has 3 parts");
    assert_int_equal(vptq_fail(NULL, VPTQ_E_IO, "x"), VPTQ_E_IO);
}

static void test_errno_keeps_reason(void **state)
{
    (void)state;
    vptq_err err;
    char path[2000];
    vptq_fail_errno(&err, VPTQ_E_IO, ENOSPC, "cannot write '%s'", "x");
    assert_string_equal(err.text, "cannot write 'x': No space left on device");
    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = 0;
    vptq_fail_errno(&err, VPTQ_E_IO, ENOSPC, "cannot write '%s'", path);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_non_null(strstr(err.text, "ppp: No space left on device"));
}

static void test_context_goes_in_front(void **state)
{
    (void)state;
    vptq_err err;
    char word[1100];
    vptq_fail(&err, VPTQ_E_NUMERIC, "not finite");
    assert_int_equal(vptq_err_context(&err, "layer %d", 3), VPTQ_E_NUMERIC);
    assert_string_equal(err.text, "layer 3: not finite");
    memset(word, 'w', sizeof word);
    word[sizeof word - 1] = 0;
    vptq_fail(&err, VPTQ_E_NUMERIC, "%s", word);
    assert_int_equal(vptq_err_context(&err, "layer %d", 4), VPTQ_E_NUMERIC);
    assert_memory_equal(err.text, "layer 4: www", 12);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    /* an interruption is not about any of the files and layers that it passes */
    vptq_fail(&err, VPTQ_E_CANCELLED, "interrupted");
    assert_int_equal(vptq_err_context(&err, "layer %d", 5), VPTQ_E_CANCELLED);
    assert_string_equal(err.text, "interrupted");
}

/* Control characters and invalid bytes become escapes, once however often a text is passed on.
 */
static void test_sentences_are_printable(void **state)
{
    static const char name[] =
        "a\n\t\r\x1b[2J\x7f\xc2\x9b|\u202e\u2028\u2069\\\u00e9\u200d\xff\xed\xa0\x80";
    static const char shown[] =
        "a\\n\\t\\r\\x1b[2J\\x7f\\u009b|\\u202e\\u2028\\u2069\\\u00e9\u200d"
        "\\xff\\xed\\xa0\\x80";
    (void)state;
    vptq_err err;
    char want[256], again[sizeof want];
    vptq_fail(&err, VPTQ_E_IO, "%s", name);
    assert_string_equal(err.text, shown);
    vptq_err_context(&err, "%s", name);
    snprintf(want, sizeof want, "%s: %s", shown, shown);
    assert_string_equal(err.text, want);
    assert_int_equal(vptq_text_printable(again, sizeof again, want), strlen(want));
    assert_string_equal(again, want);
    vptq_fail_errno(&err, VPTQ_E_IO, ENOSPC, "%s", name);
    snprintf(want, sizeof want, "%s: No space left on device", shown);
    assert_string_equal(err.text, want);
    vptq_fail(&err, VPTQ_E_IO, "%s", err.text);
    assert_string_equal(err.text, want);
}

/* A cut leaves whole characters and whole escapes. */
static void test_cut_sentences(void **state)
{
    (void)state;
    vptq_err err;
    char path[4096], text[8];
    for (size_t shift = 0; shift < 4; shift++) {
        for (size_t i = 0; i + 1 < sizeof path; i++)
            path[i] = i < shift ? '.' : "\u20ac"[(i - shift) % 3];
        path[sizeof path - 1] = 0;
        vptq_fail(&err, VPTQ_E_IO, "%s", path);
        assert_int_equal(strlen(err.text), 1023 - (1023 - shift) % 3);
        vptq_fail_errno(&err, VPTQ_E_IO, ENOSPC, "%s", path);
        assert_non_null(strstr(err.text, "\u20ac: No space left on device"));
        assert_null(strstr(err.text, "\\x"));
        vptq_fail(&err, VPTQ_E_IO, "%s", path);
        vptq_err_context(&err, "ab");
        assert_int_equal((strlen(err.text) - 4 - shift) % 3, 0);
    }
    assert_int_equal(vptq_text_printable(text, sizeof text, "abc\x1b\x1b"), 7);
    assert_string_equal(text, "abc\\x1b");
    assert_int_equal(vptq_text_printable(text, sizeof text, "abcd\x1b"), 4);
    assert_string_equal(text, "abcd");
}

static void on_log(void *user, vptq_log_level level, const char *text)
{
    assert_int_equal(level, VPTQ_LOG_WARN);
    assert_string_equal(text, "a\\nb");
    ++*(int *)user;
}

static void on_progress(void *user, const vptq_progress_info *info)
{
    assert_string_equal(info->stage, "unpack");
    assert_int_equal(info->done + info->total, 3);
    assert_string_equal(info->detail, "a\\x1bb");
    ++*(int *)user;
}

static void test_callbacks_get_printable_texts(void **state)
{
    (void)state;
    int calls = 0;
    const vptq_ctx ctx = {.log = on_log, .progress = on_progress, .user = &calls};
    vptq_log(&ctx, VPTQ_LOG_WARN, "%s", "a\nb");
    vptq_progress(&ctx, "unpack", "bytes", 1, 2,
                  "a\x1b"
                  "b");
    assert_int_equal(calls, 2);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(vptq_status_name(VPTQ_OK), "VPTQ_OK");
    assert_string_equal(vptq_status_name(VPTQ_E_CANCELLED), "VPTQ_E_CANCELLED");
    assert_string_equal(vptq_status_name((vptq_status)1), "VPTQ_E_UNKNOWN");
}

VTEST_MAIN(cmocka_unit_test(test_fail_writes_sentence),
           cmocka_unit_test(test_errno_keeps_reason),
           cmocka_unit_test(test_context_goes_in_front), cmocka_unit_test(test_names),
           cmocka_unit_test(test_sentences_are_printable), cmocka_unit_test(test_cut_sentences),
           cmocka_unit_test(test_callbacks_get_printable_texts))
