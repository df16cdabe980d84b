/* Tests the tensors of the compressed-tensors layout against what the library writes and
 * decodes (tests/golden/make_compressed.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "formats/hf/safetensors.h"
#include "lib/base/half.h"
#include "tests/support/vcompressed.h"
#include "tests/support/vtest.h"

#define GOLDEN    "tests/golden/compressed/"
#define FILE_NAME "x.safetensors"

/* ---- comparisons ---- */

/* The weights as a reader sees them, 16 bits each. */
static uint16_t *decode(const vptq_compressed_matrix *m)
{
    const size_t n = (size_t)m->u.shape.out * m->u.shape.in;
    float *w = vtest_alloc(n, sizeof *w);
    uint16_t *stored = vtest_alloc(n, sizeof *stored);
    vptq_uniform_read(&m->u, 0, m->u.shape.out, w);
    if (m->storage == VPTQ_F16)
        vptq_f32_to_f16_n(w, stored, n);
    else
        vptq_f32_to_bf16_n(w, stored, n);
    free(w);
    return stored;
}

static void check_digest(const json_t *want, const void *data, size_t bytes)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits(data, bytes));
    assert_string_equal(hex, json_string_value(json_object_get(want, "xxh3")));
}

static void check_tensor(const vptq_tensor *t, const json_t *want)
{
    const json_t *shape = json_object_get(want, "shape");
    assert_string_equal(vptq_dtype_get(t->type)->name,
                        json_string_value(json_object_get(want, "dtype")));
    assert_int_equal(t->dims, json_array_size(shape));
    for (uint32_t i = 0; i < t->dims; i++)
        assert_int_equal(t->shape[i], json_integer_value(json_array_get(shape, i)));
    check_digest(want, t->data, t->bytes);
}

static void check_same_matrix(const vptq_compressed_matrix *a, const vptq_compressed_matrix *b)
{
    const vptq_uniform_shape *s = &a->u.shape;
    const size_t n = s->out * vptq_uniform_groups(s);
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->storage, b->storage);
    assert_int_equal(a->activation_bits, b->activation_bits);
    assert_int_equal(s->out, b->u.shape.out);
    assert_int_equal(s->in, b->u.shape.in);
    assert_int_equal(s->bits, b->u.shape.bits);
    assert_int_equal(s->group_size, b->u.shape.group_size);
    assert_int_equal(s->has_zeros, b->u.shape.has_zeros);
    assert_false(b->u.shape.has_groups);
    assert_memory_equal(a->u.codes, b->u.codes,
                        s->out * vptq_uniform_row_words(s) * sizeof(uint32_t));
    assert_same_f32(a->u.scales, b->u.scales, n);
    assert_int_equal(!a->u.zeros, !b->u.zeros);
    if (a->u.zeros)
        assert_memory_equal(a->u.zeros, b->u.zeros, n);
}

/* ---- what the library writes ---- */

static uint32_t number(const json_t *c, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(c, key));
}

static bool text_is(const json_t *c, const char *key, const char *text)
{
    return strcmp(json_string_value(json_object_get(c, key)), text) == 0;
}

static void check_case(const json_t *c)
{
    const uint32_t in = number(c, "in"), group = number(c, "group_size");
    const vptq_uniform_shape s = {.out = number(c, "out"),
                                  .in = in,
                                  .bits = number(c, "bits"),
                                  .group_size = group ? group : in,
                                  .has_zeros = json_is_false(json_object_get(c, "symmetric"))};
    vcompressed x;
    vptq_tensor_set set;
    vptq_compressed_matrix back;
    vptq_err err = {0};
    const char *part;
    json_t *want, *parts = json_object_get(c, "tensors");
    vcompressed_make(&x, s, text_is(c, "storage", "F16") ? VPTQ_F16 : VPTQ_BF16,
                     text_is(c, "format", "int-quantized") ? 8 : 0);
    vcompressed_set(&x.m, &set, NULL, NULL);
    assert_int_equal(set.count, json_object_size(parts));
    json_object_foreach(parts, part, want)
    {
        char name[64];
        snprintf(name, sizeof name, "P.%s", part);
        const vptq_tensor *t = vptq_tensor_find(&set, name);
        assert_non_null(t);
        check_tensor(t, want);
    }
    const vptq_compressed_layout layout = vcompressed_layout(&x.m);
    assert_ok(vptq_compressed_read(&set, &layout, "P", FILE_NAME, &set.arena, &back, &err),
              &err);
    check_same_matrix(&x.m, &back);
    uint16_t *w = decode(&back);
    check_digest(json_object_get(c, "decoded"), w, (size_t)s.out * s.in * sizeof *w);
    free(w);
    vptq_tensor_set_release(&set);
    vcompressed_free(&x);
}

static void test_library(void **state)
{
    (void)state;
    vptq_err err = {0};
    json_t *cases = NULL;
    assert_ok(vptq_json_load(GOLDEN "library.json", 1 << 20, &cases, &err), &err);
    assert_int_equal(json_array_size(cases), 3 * 18);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(json_array_get(cases, i));
    json_decref(cases);
}

static void open_file(const char *path, vptq_tensor_set *set)
{
    vptq_err err = {0};
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_safetensors_read(path, set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(set, &err), &err);
}

static const vptq_tensor *find(const vptq_tensor_set *set, const char *module, const char *part)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", module, part);
    const vptq_tensor *t = vptq_tensor_find(set, name);
    assert_non_null(t);
    return t;
}

static void check_decoded(const vptq_compressed_matrix *m, const vptq_tensor *want)
{
    uint16_t *w = decode(m);
    assert_int_equal(want->type, m->storage);
    assert_int_equal(want->bytes, (size_t)m->u.shape.out * m->u.shape.in * sizeof *w);
    assert_memory_equal(w, want->data, want->bytes);
    free(w);
}

/* Writes a matrix and compares every tensor with the file that it is from. */
static void check_written(const vptq_compressed_matrix *m, const vptq_tensor_set *file)
{
    vptq_tensor_set set;
    size_t in_file = 0;
    for (size_t i = 0; i < file->count; i++) {
        const size_t n = vptq_compressed_module_length(file->tensors[i].name);
        in_file += n == strlen(m->name) && strncmp(file->tensors[i].name, m->name, n) == 0;
    }
    vcompressed_set(m, &set, NULL, NULL);
    assert_int_equal(set.count, in_file + (m->activation_bits > 0)); /* and P.weight */
    for (size_t i = 0; i < set.count; i++) {
        const vptq_tensor *a = &set.tensors[i], *b = vptq_tensor_find(file, a->name);
        assert_non_null(b);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->dims, b->dims);
        assert_memory_equal(a->shape, b->shape, a->dims * sizeof a->shape[0]);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    vptq_tensor_set_release(&set);
}

/* Matrices whose scales, one of zeros among them, the library computed. */
static void test_small(void **state)
{
    (void)state;
    static const struct row {
        const char *module;
        vptq_compressed_layout layout;
        bool same; /* when written again */
    } rows[] = {
        {"model.layers.0.int8", {8, 0, true, true, 8, false}, true},
        {"model.layers.0.int8_asym", {8, 0, false, true, 8, false}, false},
        {"model.layers.0.w8", {8, 0, true, false, 0, false}, true},
        {"model.layers.0.w8_tensor", {8, 0, true, false, 0, false}, false},
        {"model.layers.0.w8_group", {8, 25, true, false, 0, false}, true},
        {"model.layers.0.w4", {4, 10, true, false, 0, false}, true},
        {"model.layers.0.w4_asym", {4, 10, false, false, 0, false}, true},
        {"model.layers.0.w3", {3, 0, true, false, 0, false}, true},
        {"model.layers.0.w3_asym", {3, 5, false, false, 0, false}, true},
        {"model.layers.0.w5", {5, 10, true, false, 0, false}, true},
    };
    vptq_tensor_set set;
    vptq_err err = {0};
    json_t *config = NULL;
    open_file(GOLDEN "small.safetensors", &set);
    assert_ok(vptq_json_load(GOLDEN "small.json", 1 << 20, &config, &err), &err);
    assert_true(vptq_compressed_is_config(config));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        vptq_compressed_layout layout;
        vptq_compressed_matrix m;
        bool quantized;
        assert_ok(vptq_compressed_layout_of(config, rows[i].module, "config.json", &layout,
                                            &quantized, &err),
                  &err);
        assert_true(quantized);
        assert_memory_equal(&layout, &rows[i].layout, sizeof layout);
        assert_ok(vptq_compressed_read(&set, &layout, rows[i].module, FILE_NAME, &set.arena, &m,
                                       &err),
                  &err);
        check_decoded(&m, find(&set, rows[i].module, "decoded"));
        if (rows[i].same)
            check_written(&m, &set);
    }
    json_decref(config);
    vptq_tensor_set_release(&set);
}

/* An order of columns, and codes with gaps. */
static void test_older_releases(void **state)
{
    (void)state;
    const vptq_compressed_layout order = {.bits = 4, .group_size = 10, .symmetric = true};
    const vptq_compressed_layout gaps = {.bits = 7, .symmetric = true};
    vptq_tensor_set set;
    vptq_compressed_matrix m;
    vptq_err err = {0};
    open_file(GOLDEN "older.safetensors", &set);
    assert_ok(vptq_compressed_read(&set, &order, "order", FILE_NAME, &set.arena, &m, &err),
              &err);
    assert_true(m.u.shape.has_groups);
    assert_int_equal(m.u.groups[0], 0);
    assert_int_equal(m.u.groups[1], 1);
    check_decoded(&m, find(&set, "order", "decoded"));
    check_written(&m, &set);
    assert_fails(
        vptq_compressed_read(&set, &gaps, "gaps", FILE_NAME, &set.arena, &m, &err),
        VPTQ_E_UNSUPPORTED, &err,
        "x.safetensors: tensor 'gaps.weight_packed' has gaps after the codes of 7 bits "
        "in every word, as compressed-tensors before 0.18 wrote them: 13 words per row, "
        "expected 11");
    vptq_tensor_set_release(&set);
}

/* Work directories store a last group with fewer columns, in any order of columns. */
static void test_ragged(void **state)
{
    (void)state;
    int32_t groups[50];
    vcompressed x;
    vptq_mem mem;
    vptq_arena arena;
    vptq_tensor_set set;
    vptq_tensor list[VPTQ_COMPRESSED_MAX_TENSORS];
    vptq_compressed_matrix got;
    vptq_err err = {0};
    size_t count = 0;
    vptq_mem_init(&mem, 0);
    vptq_arena_init(&arena, &mem);
    vcompressed_make(&x, (vptq_uniform_shape){.out = 7, .in = 50, .bits = 3, .group_size = 32},
                     VPTQ_F16, 0);
    for (int32_t c = 0; c < 50; c++) /* group 1 has the first 18 */
        groups[c] = c < 18;
    x.m.u.groups = groups;
    x.m.u.shape.has_groups = true;
    assert_int_equal(vptq_compressed_tensors(&x.m, &arena, list, &count, &err),
                     VPTQ_E_UNSUPPORTED);
    x.m.ragged = true;
    vcompressed_set(&x.m, &set, NULL, NULL);
    vptq_compressed_layout layout = vcompressed_layout(&x.m);
    assert_int_equal(vptq_compressed_read(&set, &layout, "P", "file", &arena, &got, &err),
                     VPTQ_E_SHAPE);
    layout.ragged = true;
    assert_ok(vptq_compressed_read(&set, &layout, "P", "file", &arena, &got, &err), &err);
    x.m.u.shape.has_groups = false; /* which are compared here */
    check_same_matrix(&got, &x.m);
    assert_true(got.u.shape.has_groups);
    assert_memory_equal(got.u.groups, groups, sizeof groups);
    groups[49] = 1; /* one too many: the set has views of it */
    assert_int_equal(vptq_compressed_read(&set, &layout, "P", "file", &arena, &got, &err),
                     VPTQ_E_FORMAT);
    assert_non_null(strstr(err.text, "group 0 has 31 columns, expected 32"));
    vptq_tensor_set_release(&set);
    vcompressed_free(&x);
    vptq_arena_release(&arena);
}

static void test_module_length(void **state)
{
    (void)state;
    assert_int_equal(vptq_compressed_module_length("a.b.weight_packed"), 3);
    assert_int_equal(vptq_compressed_module_length("a.weight_scale"), 1);
    assert_int_equal(vptq_compressed_module_length("a.weight_shape"), 1);
    assert_int_equal(vptq_compressed_module_length("a.weight_zero_point"), 1);
    assert_int_equal(vptq_compressed_module_length("a.weight_g_idx"), 1);
    assert_int_equal(vptq_compressed_module_length("a.weight"), 0);
    assert_int_equal(vptq_compressed_module_length(".weight_packed"), 0);
    assert_int_equal(vptq_compressed_module_length("weight_packed"), 0);
}

VTEST_MAIN(cmocka_unit_test(test_library), cmocka_unit_test(test_small),
           cmocka_unit_test(test_older_releases), cmocka_unit_test(test_ragged),
           cmocka_unit_test(test_module_length))
