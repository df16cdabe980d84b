/* Tests the GGUF container: values, tensors, and every kind of damaged or hostile file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf/gguf.h"
#include "tests/support/vgguf.h"
#include "tests/support/vtest.h"

/* ---- helpers ---- */

static vptq_status open_bytes(void **state, const void *data, size_t n, vptq_err *err)
{
    char path[4096];
    vptq_gguf g;
    vtest_path(path, sizeof path, *state, "x.gguf");
    vtest_write_file(path, data, n);
    vptq_status st = vptq_gguf_open(path, NULL, &g, err);
    if (!st)
        vptq_gguf_release(&g);
    return st;
}

/* Writes w, expects opening it to fail, and frees w. */
#define expect_refusal(state, w, code, part)                                                   \
    do {                                                                                       \
        vptq_gguf refused_;                                                                    \
        vptq_err refused_err_ = {0};                                                           \
        assert_fails(vgguf_open(*state, w, &refused_, &refused_err_), code, &refused_err_,     \
                     part);                                                                    \
        vgguf_free(w);                                                                         \
    } while (0)

static const uint64_t shape_2x4[2] = {2, 4};
static const float numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static void one_tensor(vgguf *w)
{
    vgguf_init(w);
    vgguf_tensor(w, "a", VGGUF_F32, 2, shape_2x4, numbers, sizeof numbers);
}

/* ---- reading ---- */

static void test_values_of_every_type(void **state)
{
    vgguf w;
    vptq_gguf g;
    vptq_err err = {0};
    vgguf_init(&w);
    vgguf_key(&w, "i8", VPTQ_GGUF_I8, "\xfe", 1);
    vgguf_key(&w, "u8", VPTQ_GGUF_U8, "\xfe", 1);
    vgguf_key(&w, "i16", VPTQ_GGUF_I16, "\xfe\xff", 2);
    vgguf_key(&w, "u16", VPTQ_GGUF_U16, "\x01\x02", 2);
    vgguf_key(&w, "i32", VPTQ_GGUF_I32, "\xff\xff\xff\xff", 4);
    vgguf_u32(&w, "u32", 4000000000u);
    vgguf_key(&w, "u64", VPTQ_GGUF_U64, "\0\0\0\0\1\0\0\0", 8);
    vgguf_key(&w, "i64", VPTQ_GGUF_I64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    vgguf_f32(&w, "f32", 0.5f);
    vgguf_key(&w, "f64", VPTQ_GGUF_F64, "\0\0\0\0\0\0\xf8\xbf", 8);
    vgguf_bool(&w, "yes", 1);
    vgguf_str(&w, "name", "h\xc3\xa9llo");
    vgguf_strs(&w, "words", (const char *const[]){"a", "", "bcd"}, 3);
    vgguf_array(&w, "numbers", VPTQ_GGUF_I16, 2, "\x05\x00\xfb\xff", 4);
    vgguf_array(&w, "empty", VPTQ_GGUF_F32, 0, NULL, 0);
    assert_ok(vgguf_open(*state, &w, &g, &err), &err);
    assert_int_equal(g.version, 3);
    assert_int_equal(g.kv_count, 15);
    const struct {
        const char *key;
        double value;
    } expected[] = {{"i8", -2},   {"u8", 254},          {"i16", -2}, {"u16", 513},
                    {"i32", -1},  {"u32", 4000000000.}, {"i64", -1}, {"u64", 4294967296.},
                    {"f32", 0.5}, {"f64", -1.5}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        double x = 0;
        assert_ok(vptq_gguf_f64_or(&g, expected[i].key, 0, &x, &err), &err);
        assert_true(x == expected[i].value);
    }
    uint64_t n = 0;
    bool yes = false;
    vptq_gguf_str s;
    assert_ok(vptq_gguf_u64_or(&g, "u64", 0, &n, &err), &err);
    assert_true(n == UINT64_C(1) << 32);
    assert_ok(vptq_gguf_bool_or(&g, "yes", false, &yes, &err), &err);
    assert_true(yes);
    assert_ok(vptq_gguf_str_or(&g, "name", &s, &err), &err);
    assert_int_equal(s.len, 6);
    assert_memory_equal(s.data, "h\xc3\xa9llo", 6);
    const vptq_gguf_kv *words = vptq_gguf_find(&g, "words");
    assert_true(words->is_array && words->count == 3 && words->str[1].len == 0);
    assert_memory_equal(words->str[2].data, "bcd", 3);
    const vptq_gguf_kv *list = vptq_gguf_find(&g, "numbers");
    assert_true(vptq_gguf_num_at(list, 0) == 5 && vptq_gguf_num_at(list, 1) == -5);
    assert_int_equal(vptq_gguf_find(&g, "empty")->count, 0);
    assert_null(vptq_gguf_find(&g, "nam"));
    vptq_gguf_release(&g);
    vgguf_free(&w);
}

static void test_getters_check_types(void **state)
{
    vgguf w;
    vptq_gguf g;
    vptq_err err = {0};
    uint64_t n = 0;
    double x = 0;
    bool b = false;
    vptq_gguf_str s;
    vgguf_init(&w);
    vgguf_str(&w, "text", "12");
    vgguf_f32(&w, "real", 1.0f);
    vgguf_key(&w, "minus", VPTQ_GGUF_I32, "\xff\xff\xff\xff", 4);
    vgguf_bool(&w, "two", 2);
    vgguf_array(&w, "list", VPTQ_GGUF_U8, 1, "\1", 1);
    assert_ok(vgguf_open(*state, &w, &g, &err), &err);
    assert_fails(vptq_gguf_u64_or(&g, "text", 0, &n, &err), VPTQ_E_FORMAT, &err, "'text'");
    assert_fails(vptq_gguf_u64_or(&g, "real", 0, &n, &err), VPTQ_E_FORMAT, &err, "integer");
    assert_fails(vptq_gguf_u64_or(&g, "minus", 0, &n, &err), VPTQ_E_FORMAT, &err, "zero");
    assert_fails(vptq_gguf_u64_or(&g, "list", 0, &n, &err), VPTQ_E_FORMAT, &err, "'list'");
    assert_fails(vptq_gguf_f64_or(&g, "two", 0, &x, &err), VPTQ_E_FORMAT, &err, "number");
    assert_fails(vptq_gguf_bool_or(&g, "two", false, &b, &err), VPTQ_E_FORMAT, &err,
                 "true or false");
    assert_fails(vptq_gguf_bool_or(&g, "real", false, &b, &err), VPTQ_E_FORMAT, &err,
                 "true or false");
    assert_fails(vptq_gguf_str_or(&g, "list", &s, &err), VPTQ_E_FORMAT, &err, "string");
    assert_ok(vptq_gguf_u64_or(&g, "absent", 9, &n, &err), &err);
    assert_int_equal(n, 9);
    assert_ok(vptq_gguf_str_or(&g, "absent", &s, &err), &err);
    assert_null(s.data);
    vptq_gguf_release(&g);
    vgguf_free(&w);
}

static void test_tensors_and_alignment(void **state)
{
    for (uint32_t version = 2; version <= 3; version++) {
        vgguf w;
        vptq_gguf g;
        vptq_err err = {0};
        float x[8];
        const uint16_t halves[3] = {0x3c00, 0xc000, 0x3555}, brains[2] = {0x3f80, 0xc040};
        uint8_t blocks[2 * 18] = {0x00, 0x3c, 0x21};
        const uint64_t three[1] = {3}, two[1] = {2}, cube[4] = {1, 2, 1, 32};
        vgguf_init(&w);
        w.version = version;
        w.alignment = 64;
        vgguf_u32(&w, "general.alignment", 64);
        vgguf_tensor(&w, "mat", VGGUF_F32, 2, shape_2x4, numbers, sizeof numbers);
        vgguf_tensor(&w, "half", VGGUF_F16, 1, three, halves, sizeof halves);
        vgguf_tensor(&w, "brain", VGGUF_BF16, 1, two, brains, sizeof brains);
        vgguf_tensor(&w, "blocks", VGGUF_Q4_0, 4, cube, blocks, sizeof blocks);
        assert_ok(vgguf_open(*state, &w, &g, &err), &err);
        assert_int_equal(g.set.count, 4);
        const vptq_tensor *t = vptq_tensor_find(&g.set, "mat");
        assert_int_equal(t->shape[0], 2);
        assert_int_equal(t->shape[1], 4);
        assert_ok(vptq_tensor_read(t, 1, 1, x, &err), &err);
        assert_same_f32(x, numbers + 4, 4);
        assert_ok(vptq_tensor_read(vptq_tensor_find(&g.set, "half"), 0, 1, x, &err), &err);
        assert_same_f32(x, ((float[]){1, -2, 0x1.554p-2f}), 3);
        assert_ok(vptq_tensor_read(vptq_tensor_find(&g.set, "brain"), 0, 1, x, &err), &err);
        assert_same_f32(x, ((float[]){1, -3}), 2);
        t = vptq_tensor_find(&g.set, "blocks");
        assert_int_equal(t->bytes, sizeof blocks);
        assert_int_equal(t->shape[3], 32);
        vptq_gguf_release(&g);
        vgguf_free(&w);
    }
}

static void test_magic(void **state)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "x");
    assert_false(vptq_gguf_is(path));
    assert_false(vptq_gguf_is(*state));
    vtest_write_file(path, "GGU", 3);
    assert_false(vptq_gguf_is(path));
    vtest_write_file(path, "GGUFx", 5);
    assert_true(vptq_gguf_is(path));
}

/* ---- damaged files ---- */

static void test_refuses_headers(void **state)
{
    vgguf w;
    vptq_err err = {0};
    assert_fails(open_bytes(state, "", 0, &err), VPTQ_E_FORMAT, &err, "magic");
    assert_fails(open_bytes(state, "GGUX\3\0\0\0", 8, &err), VPTQ_E_FORMAT, &err, "\"GGUF\"");
    assert_fails(open_bytes(state, "GGUF\3\0", 6, &err), VPTQ_E_FORMAT, &err, "version");
    assert_fails(open_bytes(state, "GGUF\0\0\0\3", 8, &err), VPTQ_E_UNSUPPORTED, &err,
                 "big-endian");
    one_tensor(&w);
    w.version = 1;
    expect_refusal(state, &w, VPTQ_E_UNSUPPORTED, "version 1");
    one_tensor(&w);
    w.tensor_count = UINT64_C(1) << 60;
    expect_refusal(state, &w, VPTQ_E_FORMAT, "tensors, more than");
    one_tensor(&w);
    w.key_count = UINT64_C(1) << 60;
    expect_refusal(state, &w, VPTQ_E_FORMAT, "keys, more than");
    vptq_gguf g;
    assert_fails(vptq_gguf_open("/nonexistent/x.gguf", NULL, &g, &err), VPTQ_E_IO, &err,
                 "/nonexistent/x.gguf");
}

static void test_refuses_keys(void **state)
{
    static const char zeros[12] = {0};
    static const struct {
        const char *key;
        uint32_t type;
        bool is_array;
        uint64_t count; /* number of elements of an array */
        const char *data;
        size_t bytes;
        vptq_status code;
        const char *expect;
    } cases[] = {
        {"odd", 13, false, 0, zeros, 8, VPTQ_E_FORMAT, "value type 13"},
        {"nested", VPTQ_GGUF_ARRAY, true, 1, zeros, 12, VPTQ_E_UNSUPPORTED, "array of arrays"},
        {"huge", VPTQ_GGUF_F64, true, UINT64_C(1) << 61, NULL, 0, VPTQ_E_FORMAT,
         "'huge' has 2305843009213693952 elements"},
        {"words", VPTQ_GGUF_STRING, true, 1000, zeros, 8, VPTQ_E_FORMAT,
         "'words' has 1000 elements"},
        {"long", VPTQ_GGUF_STRING, false, 0, "\xff\xff\xff\xff\xff\xff\xff\xff", 8,
         VPTQ_E_FORMAT, "18446744073709551615 bytes"},
        {"bell\a", VPTQ_GGUF_U32, false, 0, zeros, 4, VPTQ_E_FORMAT, "control character"},
        {"", VPTQ_GGUF_U32, false, 0, zeros, 4, VPTQ_E_FORMAT, "0 bytes"},
    };
    static const uint32_t alignments[] = {0, 4, 48, 0x80000001u};
    vgguf w;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vgguf_init(&w);
        if (cases[i].is_array)
            vgguf_array(&w, cases[i].key, cases[i].type, cases[i].count, cases[i].data,
                        cases[i].bytes);
        else
            vgguf_key(&w, cases[i].key, cases[i].type, cases[i].data, cases[i].bytes);
        expect_refusal(state, &w, cases[i].code, cases[i].expect);
    }
    vgguf_init(&w);
    vgguf_u32(&w, "twice", 1);
    vgguf_u32(&w, "twice", 2);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "duplicate key 'twice'");
    vgguf_init(&w);
    vgguf_u32(&w, "zero?byte", 1);
    *(char *)memchr(w.keys.data, '?', w.keys.len) = 0;
    expect_refusal(state, &w, VPTQ_E_FORMAT, "contains a control character");
    one_tensor(&w);
    *(char *)memchr(w.tensors.data, 'a', w.tensors.len) = 0;
    expect_refusal(state, &w, VPTQ_E_FORMAT, "contains a control character");
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        one_tensor(&w);
        vgguf_u32(&w, "general.alignment", alignments[i]);
        expect_refusal(state, &w, VPTQ_E_FORMAT, "power of two");
    }
}

/* Adds a second entry to the tensor list, which must be rejected. */
static void test_refuses_tensors(void **state)
{
    static const struct {
        uint32_t type, dims;
        uint64_t shape[5], offset;
        vptq_status code;
        const char *expect;
    } cases[] = {
        {VGGUF_F32, 2, {2, 4}, 0, VPTQ_E_FORMAT, "overlap"},
        {VGGUF_F32, 2, {2, 4}, 32, VPTQ_E_FORMAT, "ends after the data section"},
        {VGGUF_F32,
         2,
         {2, 4},
         UINT64_C(0xffffffffffffffe0),
         VPTQ_E_FORMAT,
         "ends after the data section"},
        {VGGUF_F32, 2, {2, 4}, 8, VPTQ_E_FORMAT, "expected a multiple of the alignment 32"},
        {VGGUF_F32, 2, {2, 0}, 0, VPTQ_E_FORMAT, "dimension of 0"},
        {VGGUF_F32, 2, {UINT64_C(1) << 40, UINT64_C(1) << 40}, 0, VPTQ_E_FORMAT, "overflows"},
        {VGGUF_F32, 5, {1, 1, 1, 1, 1}, 0, VPTQ_E_FORMAT, "5 dimensions"},
        {VGGUF_Q4_0, 2, {2, 33}, 0, VPTQ_E_FORMAT, "expected a multiple of the 32"},
        {VGGUF_F32, 0, {0}, 0, VPTQ_E_FORMAT, "0 dimensions, expected 1 to 4"},
        {VGGUF_IQ4_NL, 2, {2, 4}, 0, VPTQ_E_UNSUPPORTED, "tensor 'b' has type IQ4_NL"},
        {999, 2, {2, 4}, 0, VPTQ_E_UNSUPPORTED, "unknown (999)"},
    };
    vgguf w;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        one_tensor(&w);
        vgguf_entry(&w, "b", cases[i].type, cases[i].dims, cases[i].shape, cases[i].offset);
        expect_refusal(state, &w, cases[i].code, cases[i].expect);
    }
    one_tensor(&w);
    vgguf_tensor(&w, "a", VGGUF_F32, 2, shape_2x4, numbers, sizeof numbers);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "duplicate tensor 'a'");
}

/* Every truncated file is rejected with a message and leaves nothing allocated. */
static void test_refuses_every_truncation(void **state)
{
    vgguf w;
    vgguf_init(&w);
    vgguf_str(&w, "s", "text");
    vgguf_strs(&w, "words", (const char *const[]){"a", "bc"}, 2);
    vgguf_u32(&w, "n", 3);
    vgguf_tensor(&w, "a", VGGUF_F32, 2, shape_2x4, numbers, sizeof numbers);
    vgguf_finish(&w);
    for (size_t n = 0; n < w.file.len; n++) {
        vptq_err err = {0};
        assert_fails(open_bytes(state, w.file.data, n, &err), VPTQ_E_FORMAT, &err, "x.gguf");
    }
    vptq_err err = {0};
    assert_ok(open_bytes(state, w.file.data, w.file.len, &err), &err);
    vgguf_free(&w);
}

/* With any single byte changed, the file opens or is rejected. */
static void test_every_changed_byte(void **state)
{
    vgguf w;
    vgguf_init(&w);
    vgguf_strs(&w, "words", (const char *const[]){"a", "bc"}, 2);
    vgguf_tensor(&w, "a", VGGUF_F32, 2, shape_2x4, numbers, sizeof numbers);
    vgguf_finish(&w);
    static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    for (size_t i = 0; i < w.file.len; i++)
        for (size_t v = 0; v < sizeof values; v++) {
            vptq_err err = {0};
            uint8_t old = w.file.data[i];
            w.file.data[i] = values[v];
            vptq_status st = open_bytes(state, w.file.data, w.file.len, &err);
            assert_true(st == VPTQ_OK || st == VPTQ_E_FORMAT || st == VPTQ_E_UNSUPPORTED);
            assert_true(st == VPTQ_OK || err.text[0] != '\0');
            w.file.data[i] = old;
        }
    vgguf_free(&w);
}

/* ---- real files ---- */

static void test_real_vocabulary_file(void **state)
{
    (void)state;
    char path[4096];
    vptq_gguf g;
    vptq_err err = {0};
    vptq_gguf_str s;
    if (!vtest_data(path, sizeof path, "golden/gguf/ggml-vocab-llama-spm.gguf"))
        skip();
    assert_ok(vptq_gguf_open(path, NULL, &g, &err), &err);
    assert_int_equal(g.set.count, 0);
    assert_ok(vptq_gguf_str_or(&g, "tokenizer.ggml.model", &s, &err), &err);
    assert_int_equal(s.len, 5);
    const vptq_gguf_kv *tokens = vptq_gguf_find(&g, "tokenizer.ggml.tokens");
    const vptq_gguf_kv *scores = vptq_gguf_find(&g, "tokenizer.ggml.scores");
    assert_int_equal(tokens->count, 32000);
    assert_memory_equal(tokens->str[1].data, "<s>", 3);
    assert_int_equal(scores->count, 32000);
    assert_true(vptq_gguf_num_at(scores, 31999) == -31740);
    vptq_gguf_release(&g);
}

VTEST_MAIN(scratch_test(test_values_of_every_type), scratch_test(test_getters_check_types),
           scratch_test(test_tensors_and_alignment), scratch_test(test_magic),
           scratch_test(test_refuses_headers), scratch_test(test_refuses_keys),
           scratch_test(test_refuses_tensors), scratch_test(test_refuses_every_truncation),
           scratch_test(test_every_changed_byte), cmocka_unit_test(test_real_vocabulary_file))
