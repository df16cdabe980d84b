/* GGUF files: written here piece by piece, damaged here, and two real ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf/model.h"
#include "tests/support/vgguf.h"
#include "tests/support/vtest.h"

enum { T_F32 = 0, T_F16 = 1, T_Q4_0 = 2, T_IQ4_NL = 20, T_BF16 = 30 };

/* ---- helpers ---- */

/* Writes g into the scratch directory and opens it. */
static vptq_status open_as(void **state, vgguf *w, vptq_gguf *g, vptq_err *err)
{
    static const char name[] = "x.gguf";
    char path[4096];
    vtest_path(path, sizeof path, *state, name);
    vgguf_write(w, path);
    return vptq_gguf_open(path, NULL, g, err);
}

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

/* Opens what w says, expects failure, frees w. */
#define expect_refusal(state, w, code, part)                                                   \
    do {                                                                                       \
        vptq_gguf refused_;                                                                    \
        vptq_err refused_err_ = {0};                                                           \
        assert_fails(open_as(state, w, &refused_, &refused_err_), code, &refused_err_, part);  \
        vgguf_free(w);                                                                         \
    } while (0)

static const uint64_t shape_2x4[2] = {2, 4};
static const float numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static void one_tensor(vgguf *w)
{
    vgguf_init(w);
    vgguf_tensor(w, "a", T_F32, 2, shape_2x4, numbers, sizeof numbers);
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
    assert_ok(open_as(state, &w, &g, &err), &err);
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

static void test_look_ups_check_types(void **state)
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
    assert_ok(open_as(state, &w, &g, &err), &err);
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
        vgguf_tensor(&w, "mat", T_F32, 2, shape_2x4, numbers, sizeof numbers);
        vgguf_tensor(&w, "half", T_F16, 1, three, halves, sizeof halves);
        vgguf_tensor(&w, "brain", T_BF16, 1, two, brains, sizeof brains);
        vgguf_tensor(&w, "blocks", T_Q4_0, 4, cube, blocks, sizeof blocks);
        assert_ok(open_as(state, &w, &g, &err), &err);
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

static void test_is(void **state)
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

/* ---- refusals ---- */

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
    vgguf w;
    vgguf_init(&w);
    vgguf_u32(&w, "twice", 1);
    vgguf_u32(&w, "twice", 2);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "duplicate key 'twice'");
    vgguf_init(&w);
    vgguf_key(&w, "odd", 13, "\0\0\0\0\0\0\0\0", 8);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "value type 13");
    vgguf_init(&w);
    vgguf_array(&w, "nested", VPTQ_GGUF_ARRAY, 1, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
    expect_refusal(state, &w, VPTQ_E_UNSUPPORTED, "array of arrays");
    vgguf_init(&w);
    vgguf_array(&w, "huge", VPTQ_GGUF_F64, UINT64_C(1) << 61, NULL, 0);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "'huge' has 2305843009213693952 elements");
    vgguf_init(&w);
    vgguf_array(&w, "words", VPTQ_GGUF_STRING, 1000, "\0\0\0\0\0\0\0\0", 8);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "'words' has 1000 elements");
    vgguf_init(&w);
    vgguf_key(&w, "long", VPTQ_GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "18446744073709551615 bytes");
    vgguf_init(&w);
    vgguf_u32(&w, "bell\a", 1);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "control character");
    vgguf_init(&w);
    vgguf_u32(&w, "", 1);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "0 bytes");
    static const uint32_t alignments[] = {0, 4, 48, 0x80000001u};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        one_tensor(&w);
        vgguf_u32(&w, "general.alignment", alignments[i]);
        expect_refusal(state, &w, VPTQ_E_FORMAT, "power of two");
    }
}

static void test_refuses_tensors(void **state)
{
    vgguf w;
    static const uint64_t zero[2] = {2, 0}, wide[2] = {UINT64_C(1) << 40, UINT64_C(1) << 40},
                          deep[5] = {1, 1, 1, 1, 1}, odd[2] = {2, 33};
    one_tensor(&w);
    vgguf_tensor(&w, "a", T_F32, 2, shape_2x4, numbers, sizeof numbers);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "duplicate tensor 'a'");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_F32, 2, shape_2x4, 0);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "overlap");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_F32, 2, shape_2x4, 32);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "ends after the data section");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_F32, 2, shape_2x4, UINT64_C(0xffffffffffffffe0));
    expect_refusal(state, &w, VPTQ_E_FORMAT, "ends after the data section");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_F32, 2, shape_2x4, 8);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "expected a multiple of the alignment 32");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_F32, 2, zero, 0);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "dimension of 0");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_F32, 2, wide, 0);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "overflows");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_F32, 5, deep, 0);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "5 dimensions");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_Q4_0, 2, odd, 0);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "expected a multiple of the 32");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_Q4_0, 0, odd, 0);
    expect_refusal(state, &w, VPTQ_E_FORMAT, "1 elements");
    one_tensor(&w);
    vgguf_entry(&w, "b", T_IQ4_NL, 2, shape_2x4, 0);
    expect_refusal(state, &w, VPTQ_E_UNSUPPORTED, "tensor 'b' has type IQ4_NL");
    one_tensor(&w);
    vgguf_entry(&w, "b", 999, 2, shape_2x4, 0);
    expect_refusal(state, &w, VPTQ_E_UNSUPPORTED, "unknown (999)");
}

/* Every shorter file is refused, whatever is cut, with one sentence and nothing left behind. */
static void test_refuses_every_truncation(void **state)
{
    vgguf w;
    vgguf_init(&w);
    vgguf_str(&w, "s", "text");
    vgguf_strs(&w, "words", (const char *const[]){"a", "bc"}, 2);
    vgguf_u32(&w, "n", 3);
    vgguf_tensor(&w, "a", T_F32, 2, shape_2x4, numbers, sizeof numbers);
    vgguf_finish(&w);
    for (size_t n = 0; n < w.file.len; n++) {
        vptq_err err = {0};
        assert_fails(open_bytes(state, w.file.data, n, &err), VPTQ_E_FORMAT, &err, "x.gguf");
    }
    vptq_err err = {0};
    assert_ok(open_bytes(state, w.file.data, w.file.len, &err), &err);
    vgguf_free(&w);
}

/* Any single byte may be wrong: the file opens or is refused, nothing else. */
static void test_survives_every_byte(void **state)
{
    vgguf w;
    vgguf_init(&w);
    vgguf_strs(&w, "words", (const char *const[]){"a", "bc"}, 2);
    vgguf_tensor(&w, "a", T_F32, 2, shape_2x4, numbers, sizeof numbers);
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

static vptq_status open_and_describe(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_gguf g;
    vptq_model_desc d;
    vptq_tensor_set set;
    vptq_status st = vptq_gguf_open(arg, mem, &g, err);
    if (st)
        return st;
    vptq_tensor_set_init(&set, mem);
    VPTQ_TRY(vptq_gguf_desc(&g, &d, err));
    VPTQ_TRY(vptq_gguf_hf_tensors(&g, &d, &set, err));
out:
    vptq_tensor_set_release(&set);
    vptq_gguf_release(&g);
    return st;
}

static void test_out_of_memory(void **state)
{
    vgguf w;
    char path[4096];
    const float divisors[2] = {1, 1};
    const uint64_t two[1] = {2};
    vgguf_init(&w);
    vgguf_model(&w, "llama", 1);
    vgguf_tensor(&w, "rope_freqs.weight", T_F32, 1, two, divisors, sizeof divisors);
    vtest_path(path, sizeof path, *state, "x.gguf");
    vgguf_write(&w, path);
    assert_true(vtest_oom_walk(open_and_describe, path) > 3);
    vgguf_free(&w);
}

/* ---- models ---- */

typedef struct opened {
    vptq_gguf g;
    vptq_model_desc d;
    vptq_tensor_set set;
} opened;

static vptq_status open_model(void **state, vgguf *w, opened *o, vptq_err *err)
{
    vptq_status st = open_as(state, w, &o->g, err);
    if (st)
        return st;
    vptq_tensor_set_init(&o->set, NULL);
    VPTQ_TRY(vptq_gguf_desc(&o->g, &o->d, err));
    VPTQ_TRY(vptq_gguf_hf_tensors(&o->g, &o->d, &o->set, err));
out:
    if (st) {
        vptq_tensor_set_release(&o->set);
        vptq_gguf_release(&o->g);
    }
    return st;
}

static void close_model(opened *o)
{
    vptq_tensor_set_release(&o->set);
    vptq_gguf_release(&o->g);
}

#define expect_no_model(state, w, code, part)                                                  \
    do {                                                                                       \
        opened none_;                                                                          \
        vptq_err none_err_ = {0};                                                              \
        assert_fails(open_model(state, w, &none_, &none_err_), code, &none_err_, part);        \
        vgguf_free(w);                                                                         \
    } while (0)

/* All values of a tensor against the rule that made them. */
static void check_values(const vptq_tensor_set *set, const char *name)
{
    vptq_err err = {0};
    float found[256], expected[256];
    const vptq_tensor *t = vptq_tensor_find(set, name);
    assert_non_null(t);
    size_t n = vptq_tensor_rows(t) * vptq_tensor_cols(t);
    assert_true(n <= 256);
    assert_ok(vptq_tensor_read(t, 0, vptq_tensor_rows(t), found, &err), &err);
    for (size_t i = 0; i < n; i++)
        expected[i] = vgguf_value(name, i);
    assert_same_f32(found, expected, n);
}

static void test_models_of_every_family(void **state)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (int i = 0; i < 3; i++) {
        vgguf w;
        opened o;
        vptq_err err = {0};
        vgguf_init(&w);
        vgguf_model(&w, archs[i], i == 1);
        assert_ok(open_model(state, &w, &o, &err), &err);
        assert_string_equal(o.d.family->model_type, archs[i]);
        assert_int_equal(o.d.hidden, VGGUF_HIDDEN);
        assert_int_equal(o.d.intermediate, VGGUF_FFN);
        assert_int_equal(o.d.layers, VGGUF_LAYERS);
        assert_int_equal(o.d.heads, VGGUF_HEADS);
        assert_int_equal(o.d.kv_heads, VGGUF_KV_HEADS);
        assert_int_equal(o.d.head_dim, VGGUF_HEAD_DIM);
        assert_int_equal(o.d.vocab, VGGUF_VOCAB);
        assert_int_equal(o.d.context, 64);
        assert_true(o.d.norm_eps == 1e-5f && o.d.rope_theta == 10000);
        assert_int_equal(o.d.tied, i != 1);
        assert_int_equal(o.d.qkv_bias, i == 1);
        assert_int_equal(o.d.bos, -1);
        for (size_t t = 0; t < o.set.count; t++)
            check_values(&o.set, o.set.tensors[t].name);
        check_values(&o.set, "model.layers.1.self_attn.q_proj.weight");
        check_values(&o.set, "model.layers.1.mlp.down_proj.weight");
        if (i == 1)
            check_values(&o.set, "model.layers.0.self_attn.q_proj.bias");
        if (i == 2)
            check_values(&o.set, "model.layers.0.self_attn.k_norm.weight");
        close_model(&o);
        vgguf_free(&w);
    }
}

/* Rows of one head and the elements of a bias are put back in order. */
static void test_permuted_bias(void **state)
{
    vgguf w;
    opened o;
    vptq_err err = {0};
    const uint64_t eight[1] = {8};
    const float stored[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    float x[8];
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_tensor(&w, "blk.0.attn_q.bias", T_F32, 1, eight, stored, sizeof stored);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_true(o.d.qkv_bias);
    const vptq_tensor *t = vptq_tensor_find(&o.set, "model.layers.0.self_attn.q_proj.bias");
    assert_ok(vptq_tensor_read(t, 0, 1, x, &err), &err);
    assert_same_f32(x, numbers, 8);
    close_model(&o);
    vgguf_free(&w);
}

/* As the converters of real models compute the factors (double, then float32). */
static void llama3_factors(double theta, uint32_t head_dim, double factor, float *out)
{
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        double wave = 2 * 3.14159265358979323846 * pow(theta, 2.0 * i / head_dim);
        double smooth = (8192 / wave - 1) / (4 - 1);
        out[i] = wave < 8192.0 / 4   ? 1.0f
                 : wave > 8192.0 / 1 ? (float)factor
                                     : (float)(1 / ((1 - smooth) / factor + smooth));
    }
}

static void test_llama3_rope(void **state)
{
    vgguf w;
    opened o;
    vptq_err err = {0};
    float factors[2];
    const uint64_t two[1] = {2};
    llama3_factors(5e8, VGGUF_HEAD_DIM, 32, factors);
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_f32(&w, "llama.rope.freq_base", 5e8f);
    vgguf_tensor(&w, "rope_freqs.weight", T_F32, 1, two, factors, sizeof factors);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_int_equal(o.d.rope_scaling, VPTQ_ROPE_LLAMA3);
    assert_true(o.d.rope_factor == 32 && o.d.rope_low == 1 && o.d.rope_high == 4);
    assert_int_equal(o.d.rope_original_context, 8192);
    close_model(&o);
    vgguf_free(&w);

    factors[0] = 1.5f; /* the fastest frequency is never scaled */
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_tensor(&w, "rope_freqs.weight", T_F32, 1, two, factors, sizeof factors);
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "match no supported scaling");
    factors[0] = NAN;
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_tensor(&w, "rope_freqs.weight", T_F32, 1, two, factors, sizeof factors);
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "match no supported scaling");
}

/* With a head as wide as real ones, where some frequencies lie in the smooth part. */
static void test_llama3_rope_of_real_width(void **state)
{
    vgguf w;
    vptq_gguf g;
    vptq_model_desc d;
    vptq_err err = {0};
    float factors[64];
    const uint64_t n[1] = {64};
    llama3_factors(500000, 128, 8, factors);
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_u32(&w, "llama.attention.key_length", 128);
    vgguf_u32(&w, "llama.attention.value_length", 128);
    vgguf_f32(&w, "llama.rope.freq_base", 500000);
    vgguf_tensor(&w, "rope_freqs.weight", T_F32, 1, n, factors, sizeof factors);
    assert_ok(open_as(state, &w, &g, &err), &err);
    assert_ok(vptq_gguf_desc(&g, &d, &err), &err);
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_LLAMA3);
    assert_true(d.rope_factor == 8 && d.head_dim == 128);
    vptq_gguf_release(&g);
    vgguf_free(&w);
}

static void test_rope_scaling_keys(void **state)
{
    vgguf w;
    opened o;
    vptq_err err = {0};
    vgguf_init(&w);
    vgguf_model(&w, "qwen2", 0);
    vgguf_str(&w, "qwen2.rope.scaling.type", "yarn");
    vgguf_f32(&w, "qwen2.rope.scaling.factor", 4);
    vgguf_u32(&w, "qwen2.rope.scaling.original_context_length", 32768);
    vgguf_f32(&w, "qwen2.rope.freq_base", 1000000);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_int_equal(o.d.rope_scaling, VPTQ_ROPE_YARN);
    assert_true(o.d.rope_factor == 4 && o.d.rope_low == 1 && o.d.rope_high == 32);
    assert_true(fabs(o.d.rope_attention_factor - 1.1386294361119891) < 1e-15);
    assert_int_equal(o.d.rope_original_context, 32768);
    close_model(&o);
    vgguf_free(&w);
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_str(&w, "llama.rope.scaling.type", "linear");
    vgguf_f32(&w, "llama.rope.scaling.factor", 2);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_int_equal(o.d.rope_scaling, VPTQ_ROPE_LINEAR);
    assert_true(o.d.rope_factor == 2);
    close_model(&o);
    vgguf_free(&w);
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_str(&w, "llama.rope.scaling.type", "longrope");
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "'longrope'");
}

static void test_sliding_llama_is_mistral(void **state)
{
    vgguf w;
    opened o;
    vptq_err err = {0};
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_u32(&w, "llama.attention.sliding_window", 16);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_string_equal(o.d.family->model_type, "mistral");
    assert_int_equal(o.d.window, 16);
    check_values(&o.set, "model.layers.0.self_attn.k_proj.weight");
    close_model(&o);
    vgguf_free(&w);
}

static void refuse_with_u32(void **state, const char *key, uint32_t x, vptq_status code,
                            const char *part)
{
    vgguf w;
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_u32(&w, key, x);
    expect_no_model(state, &w, code, part);
}

static void test_refuses_models(void **state)
{
    vgguf w;
    static const char *const others[3][2] = {{"mamba", "'mamba' is not supported"},
                                             {"phi3", "'phi3' is not supported"},
                                             {"gemma2", "'gemma2' is not supported"}};
    for (int i = 0; i < 3; i++) {
        vgguf_init(&w);
        vgguf_model(&w, others[i][0], 0);
        expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, others[i][1]);
    }
    one_tensor(&w);
    expect_no_model(state, &w, VPTQ_E_FORMAT, "general.architecture");
    vgguf_init(&w);
    vgguf_str(&w, "general.architecture", "llama");
    expect_no_model(state, &w, VPTQ_E_FORMAT, "'llama.block_count' is missing");
    refuse_with_u32(state, "llama.expert_count", 8, VPTQ_E_UNSUPPORTED, "expert_count");
    refuse_with_u32(state, "split.count", 2, VPTQ_E_UNSUPPORTED, "2 parts");
    refuse_with_u32(state, "llama.rope.dimension_count", 2, VPTQ_E_UNSUPPORTED,
                    "2 of 4 head dimensions");
    refuse_with_u32(state, "llama.attention.value_length", 8, VPTQ_E_UNSUPPORTED, "equal");
    refuse_with_u32(state, "tokenizer.ggml.bos_token_id", 16, VPTQ_E_FORMAT, "16 tokens");
    refuse_with_u32(state, "llama.attention.key_length", 6, VPTQ_E_SHAPE, "does not fit");
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_tensor(&w, "blk.2.attn_norm.weight", T_F32, 2, shape_2x4, numbers, sizeof numbers);
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "'blk.2.attn_norm.weight' is not part of");
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_tensor(&w, "blk.00.ffn_up.bias", T_F32, 2, shape_2x4, numbers, sizeof numbers);
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "'blk.00.ffn_up.bias' is not part of");
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_tensor(&w, "blk.0.attn_q.bias", T_F32, 2, shape_2x4, numbers, sizeof numbers);
    expect_no_model(state, &w, VPTQ_E_SHAPE, "2 rows");
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

static void test_demo_model(void **state)
{
    (void)state;
    const char *path = getenv("VPTQ_DEMO_GGUF");
    vptq_gguf g;
    vptq_model_desc d;
    vptq_tensor_set set;
    vptq_err err = {0};
    if (!path) {
        print_message("VPTQ_DEMO_GGUF is not set\n");
        skip();
    }
    assert_ok(vptq_gguf_open(path, NULL, &g, &err), &err);
    assert_ok(vptq_gguf_desc(&g, &d, &err), &err);
    assert_int_equal(d.hidden, 576);
    assert_int_equal(d.intermediate, 1536);
    assert_int_equal(d.layers, 30);
    assert_int_equal(d.heads, 9);
    assert_int_equal(d.kv_heads, 3);
    assert_int_equal(d.head_dim, 64);
    assert_int_equal(d.vocab, 49152);
    assert_true(d.tied && !d.qkv_bias && d.rope_theta == 100000 && d.norm_eps == 1e-5f);
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_NONE);
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_gguf_hf_tensors(&g, &d, &set, &err), &err);
    assert_int_equal(set.count, 30 * 9 + 2);
    const vptq_tensor *q = vptq_tensor_find(&set, "model.layers.29.self_attn.q_proj.weight");
    assert_int_equal(q->type, VPTQ_Q4_1);
    assert_int_equal(q->rope_heads, 9);
    vptq_tensor_set_release(&set);
    vptq_gguf_release(&g);
}

#define scratch_test(f)                                                                        \
    cmocka_unit_test_setup_teardown(f, vtest_scratch_setup, vtest_scratch_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        scratch_test(test_values_of_every_type),
        scratch_test(test_look_ups_check_types),
        scratch_test(test_tensors_and_alignment),
        scratch_test(test_is),
        scratch_test(test_refuses_headers),
        scratch_test(test_refuses_keys),
        scratch_test(test_refuses_tensors),
        scratch_test(test_refuses_every_truncation),
        scratch_test(test_survives_every_byte),
        scratch_test(test_out_of_memory),
        scratch_test(test_models_of_every_family),
        scratch_test(test_permuted_bias),
        scratch_test(test_llama3_rope),
        scratch_test(test_llama3_rope_of_real_width),
        scratch_test(test_rope_scaling_keys),
        scratch_test(test_sliding_llama_is_mistral),
        scratch_test(test_refuses_models),
        cmocka_unit_test(test_real_vocabulary_file),
        cmocka_unit_test(test_demo_model),
    };
    return vtest_main(argc, argv, tests);
}
