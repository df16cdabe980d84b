/* Helpers for tests of vocabulary readers: files written and read in one step. */
#ifndef VPTQ_TESTS_SUPPORT_VVOCAB_H
#define VPTQ_TESTS_SUPPORT_VVOCAB_H

#include <string.h>

#include "tests/support/vtok.h"

/* Writes the bytes to a file of that name and reads it as a vocabulary. */
static inline vptq_status vvocab_read(void **state, const char *name, const void *data,
                                      size_t n, vptq_vocab *v, vptq_err *err)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, name);
    vtest_write_file(path, data, n);
    return vptq_vocab_read(path, 0, NULL, v, err);
}

/* Expects the bytes to be refused with a code and a part of the message. */
#define vvocab_expect(state, name, data, n, code, part)                                        \
    do {                                                                                       \
        vptq_vocab refused_;                                                                   \
        vptq_err refused_err_ = {0};                                                           \
        assert_fails(vvocab_read(state, name, data, n, &refused_, &refused_err_), code,        \
                     &refused_err_, part);                                                     \
    } while (0)

#define vvocab_expect_json(state, text, code, part)                                            \
    vvocab_expect(state, "tokenizer.json", text, strlen(text), code, part)

static inline void vvocab_accept_json(void **state, const char *text, vptq_vocab *v)
{
    vptq_err err = {0};
    assert_ok(vvocab_read(state, "tokenizer.json", text, strlen(text), v, &err), &err);
}

#endif
