/* Tests error sentences, their context and the names of status codes. */
#include <errno.h>
#include <string.h>

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
           cmocka_unit_test(test_context_goes_in_front), cmocka_unit_test(test_names))
