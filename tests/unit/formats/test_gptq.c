/* Tests the layouts of AutoGPTQ and AutoAWQ against matrices of an independent packer
 * (tests/golden/make_gptq_awq.py), and files and configs that must be refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "formats/hf/gptq.h"
#include "formats/hf/safetensors.h"
#include "lib/base/half.h"
#include "tests/support/vtest.h"

#define GOLDEN    "tests/golden/gptq_awq/"
#define FILE_NAME "x.safetensors"

static void open_layers(vptq_tensor_set *set)
{
    vptq_err err = {0};
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_safetensors_read(GOLDEN "layers.safetensors", set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(set, &err), &err);
}

static vptq_status read_layer(vptq_tensor_set *set, const vptq_gptq_layout *layout,
                              const char *name, vptq_compressed_matrix *m, vptq_err *err)
{
    bool quantized = false;
    vptq_status st =
        vptq_gptq_read(set, layout, name, FILE_NAME, &set->arena, m, &quantized, err);
    assert_true(quantized);
    return st;
}

/* ---- matrices ---- */

static void check_decoded(const vptq_compressed_matrix *m, const vptq_tensor *want)
{
    const size_t n = (size_t)m->u.shape.out * m->u.shape.in;
    float *w = vtest_alloc(n, sizeof *w);
    uint16_t *stored = vtest_alloc(n, sizeof *stored);
    assert_int_equal(want->type, m->storage);
    assert_int_equal(want->shape[0], m->u.shape.out);
    assert_int_equal(want->shape[1], m->u.shape.in);
    vptq_uniform_read(&m->u, 0, m->u.shape.out, w);
    if (m->storage == VPTQ_F16)
        vptq_f32_to_f16_n(w, stored, n);
    else
        vptq_f32_to_bf16_n(w, stored, n);
    assert_memory_equal(stored, want->data, want->bytes);
    free(w);
    free(stored);
}

/* Layouts: bits, group size, awq, minus one, ordered. */
static const struct layer {
    const char *name;
    vptq_gptq_layout layout;
    bool has_zeros, has_groups;
} layers[] = {
    {"b2", {2, 32, false, true, false}, true, false},
    {"b3", {3, 32, false, true, true}, true, true},
    {"b4", {4, 32, false, true, false}, false, false},
    {"b4_order", {4, 32, false, true, true}, true, true},
    {"b4_ragged", {4, 64, false, true, false}, true, false},
    {"b4_zero", {4, 32, false, true, true}, true, false},
    {"b8", {8, 0, false, true, false}, true, false},
    {"v2_b3", {3, 32, false, false, false}, true, false},
    {"v2_b4", {4, 32, false, false, false}, true, false},
    {"awq", {4, 32, true, false, false}, true, false},
    {"awq_row", {4, 0, true, false, false}, true, false},
    {"awq_sym", {4, 16, true, false, false}, false, false},
};

static void test_layers(void **state)
{
    (void)state;
    vptq_tensor_set set;
    open_layers(&set);
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        const struct layer *l = &layers[i];
        char name[64];
        vptq_compressed_matrix m;
        vptq_err err = {0};
        snprintf(name, sizeof name, "%s.decoded", l->name);
        assert_ok(read_layer(&set, &l->layout, l->name, &m, &err), &err);
        assert_string_equal(m.name, l->name);
        assert_int_equal(m.u.shape.bits, l->layout.bits);
        assert_int_equal(m.u.shape.group_size,
                         l->layout.group_size ? l->layout.group_size : 96);
        assert_int_equal(m.u.shape.has_zeros, l->has_zeros);
        assert_int_equal(!m.u.zeros, !l->has_zeros);
        assert_int_equal(m.u.shape.has_groups, l->has_groups);
        check_decoded(&m, vptq_tensor_find(&set, name));
    }
    vptq_tensor_set_release(&set);
}

/* The same words mean zero points that are one larger in format gptq. */
static void test_formats_differ(void **state)
{
    (void)state;
    vptq_tensor_set set;
    vptq_compressed_matrix v1, v2;
    vptq_gptq_layout layout = {4, 64, false, true, false};
    vptq_err err = {0};
    open_layers(&set);
    assert_ok(read_layer(&set, &layout, "b4_ragged", &v1, &err), &err);
    layout.minus_one = false;
    assert_ok(read_layer(&set, &layout, "b4_ragged", &v2, &err), &err);
    for (size_t i = 0; i < (size_t)v1.u.shape.out * 2; i++)
        assert_int_equal(v1.u.zeros[i], v2.u.zeros[i] + 1);
    vptq_tensor_set_release(&set);
}

/* A layer without P.qweight is plain. */
static void test_plain(void **state)
{
    (void)state;
    vptq_tensor_set set;
    vptq_compressed_matrix m;
    bool quantized = true;
    vptq_err err = {0};
    open_layers(&set);
    assert_ok(vptq_gptq_read(&set, &layers[0].layout, "nothing", FILE_NAME, &set.arena, &m,
                             &quantized, &err),
              &err);
    assert_false(quantized);
    vptq_tensor_set_release(&set);
}

static void test_module_length(void **state)
{
    (void)state;
    assert_int_equal(vptq_gptq_module_length("a.b.qweight"), 3);
    assert_int_equal(vptq_gptq_module_length("a.qzeros"), 1);
    assert_int_equal(vptq_gptq_module_length("a.scales"), 1);
    assert_int_equal(vptq_gptq_module_length("a.g_idx"), 1);
    assert_int_equal(vptq_gptq_module_length("a.weight"), 0);
    assert_int_equal(vptq_gptq_module_length("qweight"), 0);
}

/* ---- tensors that are refused ---- */

static vptq_tensor *find(vptq_tensor_set *set, const char *name)
{
    size_t i = 0;
    while (i < set->count && strcmp(set->tensors[i].name, name) != 0)
        i++;
    assert_true(i < set->count);
    return &set->tensors[i];
}

static const uint16_t one_negative[96] = {0x3c00, 0x3c00, 0xbc00};
static const uint16_t nan_first[96] = {0x7e00};
static const int32_t groups_of_3[96] = {0, 1, 2, 3}, negative_group[96] = {0, -1};

static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct row {
        const char *layer, *part;
        vptq_dtype type;
        uint64_t rows, cols;
        const void *data; /* NULL: as it is */
        vptq_status code;
        const char *text;
    } rows[] = {
        {"b4", "qweight", VPTQ_F32, 12, 32, NULL, VPTQ_E_FORMAT,
         "x.safetensors: tensor 'b4.qweight' is F32, expected I32"},
        {"b4", "qweight", VPTQ_I32, 384, 0, NULL, VPTQ_E_SHAPE,
         "'b4.qweight' is [384], expected a matrix whose rows are whole groups of 32 codes"},
        {"b3", "qweight", VPTQ_I32, 8, 32, NULL, VPTQ_E_SHAPE,
         "'b3.qweight' is [8, 32], expected a matrix whose rows are whole groups"},
        {"b4", "qweight", VPTQ_I32, 0, 32, NULL, VPTQ_E_SHAPE,
         "layer 'b4' is a matrix of 32 x 0"},
        {"b4", "qweight", VPTQ_I32, UINT64_C(1) << 60, 32, NULL, VPTQ_E_SHAPE,
         "tensor 'b4.qweight' is too large"},
        {"b4", "qweight", VPTQ_I32, 4, UINT64_C(1) << 31, NULL, VPTQ_E_SHAPE,
         "layer 'b4' is a matrix of 2147483648 x 32"},
        {"b4", "qweight", VPTQ_I32, 12, 31, NULL, VPTQ_E_SHAPE,
         "'b4.scales' is [3, 32], expected [3, 31]"},
        {"b4", "qweight", VPTQ_I32, 8, 32, NULL, VPTQ_E_SHAPE,
         "'b4.scales' is [3, 32], expected [2, 32]"},
        {"b4", "scales", VPTQ_F32, 3, 32, NULL, VPTQ_E_UNSUPPORTED,
         "'b4.scales' is F32, expected F16 or BF16"},
        {"b4", "scales", VPTQ_F16, 32, 3, NULL, VPTQ_E_SHAPE,
         "'b4.scales' is [32, 3], expected [3, 32]"},
        {"b4", "scales", VPTQ_F16, 3, 32, one_negative, VPTQ_E_NUMERIC,
         "'b4.scales': row 2, group 0: scale -1, expected a positive number"},
        {"b4", "scales", VPTQ_F16, 3, 32, nan_first, VPTQ_E_NUMERIC,
         "row 0, group 0: scale nan, expected a positive number"},
        {"b4", "qzeros", VPTQ_I32, 4, 3, NULL, VPTQ_E_SHAPE,
         "'b4.qzeros' is [4, 3], expected [3, 4]"},
        {"b4", "qzeros", VPTQ_I64, 3, 4, NULL, VPTQ_E_FORMAT,
         "'b4.qzeros' is I64, expected I32"},
        {"b4", "g_idx", VPTQ_I64, 96, 0, NULL, VPTQ_E_FORMAT,
         "'b4.g_idx' is I64, expected I32"},
        {"b4", "g_idx", VPTQ_I32, 95, 0, NULL, VPTQ_E_SHAPE,
         "'b4.g_idx' is [95], expected [96]"},
        {"b4", "g_idx", VPTQ_I32, 96, 0, groups_of_3, VPTQ_E_FORMAT,
         "'b4.g_idx': column 3 is in group 3, expected 0 to 2"},
        {"b8", "g_idx", VPTQ_I32, 96, 0, negative_group, VPTQ_E_FORMAT,
         "'b8.g_idx': column 1 is in group -1, expected 0 to 0"},
        {"awq", "qweight", VPTQ_I32, 384, 0, NULL, VPTQ_E_SHAPE,
         "'awq.qweight' is [384], expected a matrix"},
        {"awq", "qweight", VPTQ_I32, 96, UINT64_C(1) << 61, NULL, VPTQ_E_SHAPE,
         "tensor 'awq.qweight' is too large"},
        {"awq", "qweight", VPTQ_I32, 96, 3, NULL, VPTQ_E_SHAPE,
         "'awq.scales' is [3, 32], expected [3, 24]"},
        {"awq", "qzeros", VPTQ_I32, 3, 3, NULL, VPTQ_E_SHAPE,
         "'awq.qzeros' is [3, 3], expected [3, 4]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        size_t k = 0;
        char name[64];
        vptq_tensor_set set;
        vptq_compressed_matrix m;
        vptq_err err = {0};
        while (strcmp(layers[k].name, row->layer) != 0)
            k++;
        open_layers(&set);
        snprintf(name, sizeof name, "%s.%s", row->layer, row->part);
        vptq_tensor *t = find(&set, name);
        t->type = row->type;
        t->dims = row->cols ? 2 : 1;
        t->shape[0] = row->rows;
        t->shape[1] = row->cols;
        t->data = row->data ? row->data : t->data;
        assert_fails(read_layer(&set, &layers[k].layout, row->layer, &m, &err), row->code, &err,
                     row->text);
        vptq_tensor_set_release(&set);
    }
}

/* Renames tensors, so that parts are missing or `weight` is present. */
static void test_bad_parts(void **state)
{
    (void)state;
    static const struct row {
        const char *layer, *from, *to, *text;
    } rows[] = {
        {"b3", "b3.scales", "b3.x", "tensor 'b3.scales' is missing"},
        {"b3", "b3.qzeros", "b3.x", "tensor 'b3.qzeros' is missing"},
        {"b3", "b3.g_idx", "b3.x", "tensor 'b3.g_idx' is missing"}, /* desc_act */
        {"b3", "b3.decoded", "b3.weight",
         "x.safetensors: layer 'b3' has the tensors 'weight' and 'qweight', expected one"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        vptq_tensor_set old, set;
        vptq_compressed_matrix m;
        vptq_err err = {0};
        open_layers(&old);
        vptq_tensor_set_init(&set, NULL);
        find(&old, rows[i].from)->name = rows[i].to;
        for (size_t k = 0; k < old.count; k++)
            assert_ok(vptq_tensor_set_add(&set, &old.tensors[k], &err), &err);
        assert_ok(vptq_tensor_set_finish(&set, &err), &err);
        assert_fails(read_layer(&set, &layers[1].layout, rows[i].layer, &m, &err),
                     VPTQ_E_FORMAT, &err, rows[i].text);
        vptq_tensor_set_release(&set);
        vptq_tensor_set_release(&old);
    }
}

static vptq_status read_with(void *arg, vptq_mem *mem, vptq_err *err)
{
    const struct layer *l = arg;
    vptq_arena arena;
    vptq_tensor_set set;
    vptq_compressed_matrix m;
    bool quantized;
    open_layers(&set);
    vptq_arena_init(&arena, mem);
    vptq_status st =
        vptq_gptq_read(&set, &l->layout, l->name, FILE_NAME, &arena, &m, &quantized, err);
    vptq_arena_release(&arena);
    vptq_tensor_set_release(&set);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        vtest_oom_walk(read_with, (void *)(uintptr_t)&layers[i]);
}

/* ---- config.json ---- */

static json_t *parse(const char *text)
{
    vptq_err err = {0};
    json_t *value = NULL;
    assert_ok(vptq_json_parse(text, strlen(text), "config.json", &value, &err), &err);
    return value;
}

static void test_configs(void **state)
{
    (void)state;
    static const struct row {
        const char *text;
        vptq_gptq_layout want;
    } rows[] = {
        {"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": "
         "128,"
         " \"desc_act\": true}}",
         {3, 128, false, true, true}},
        {"{\"text_config\": {\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 8,"
         " \"group_size\": -1, \"checkpoint_format\": \"gptq_v2\", \"format\": \"gptq_v2\","
         " \"lm_head\": false, \"pack_dtype\": \"int32\", \"dynamic\": {\"-:.*o_proj\": {}},"
         " \"is_marlin_format\": null}}}",
         {8, 0, false, false, false}},
        {"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": "
         "64,"
         " \"format\": \"gptq_v2\", \"dynamic\": null}}",
         {4, 64, false, false, false}},
        {"{\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": "
         "64,"
         " \"version\": \"GEMM\", \"backend\": \"autoawq\", \"zero_point\": true}}",
         {4, 64, true, false, false}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *config = parse(rows[i].text);
        vptq_gptq_layout layout;
        vptq_err err = {0};
        memset(&layout, 0, sizeof layout);
        assert_true(vptq_gptq_is_config(config));
        assert_ok(vptq_gptq_layout_of(config, "config.json", &layout, &err), &err);
        assert_int_equal(layout.bits, rows[i].want.bits);
        assert_int_equal(layout.group_size, rows[i].want.group_size);
        assert_int_equal(layout.awq, rows[i].want.awq);
        assert_int_equal(layout.minus_one, rows[i].want.minus_one);
        assert_int_equal(layout.ordered, rows[i].want.ordered);
        json_decref(config);
    }
    json_t *other =
        parse("{\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}");
    assert_false(vptq_gptq_is_config(other));
    json_decref(other);
    assert_false(vptq_gptq_is_config(NULL));
}

static void test_bad_configs(void **state)
{
    (void)state;
    static const struct row {
        const char *method, *keys; /* besides bits 4 and group_size 128, unless given */
        vptq_status code;
        const char *text;
    } rows[] = {
        {"gptq", "\"bits\": 5", VPTQ_E_UNSUPPORTED,
         "config.json: quantization_config: key 'bits' is 5, expected 2, 3, 4 or 8"},
        {"awq", "\"bits\": 8", VPTQ_E_UNSUPPORTED, "key 'bits' is 8, expected 4"},
        {"gptq", "\"bits\": -4", VPTQ_E_FORMAT, "'bits'"},
        {"gptq", "\"bits\": null", VPTQ_E_FORMAT, "key 'bits' is missing"},
        {"gptq", "\"bits\": \"4\"", VPTQ_E_FORMAT, "'bits'"},
        {"gptq", "\"group_size\": 0", VPTQ_E_UNSUPPORTED,
         "key 'group_size' is 0, expected -1 or a number of columns"},
        {"gptq", "\"group_size\": -2", VPTQ_E_FORMAT, "'group_size'"},
        {"gptq", "\"group_size\": 1099511627776", VPTQ_E_FORMAT, "'group_size'"},
        {"gptq", "\"group_size\": null", VPTQ_E_FORMAT, "key 'group_size' is missing"},
        {"gptq", "\"checkpoint_format\": \"marlin\"", VPTQ_E_UNSUPPORTED,
         "key 'checkpoint_format' is marlin, expected gptq or gptq_v2"},
        {"gptq", "\"format\": \"gptq_p\"", VPTQ_E_UNSUPPORTED,
         "key 'format' is gptq_p, expected gptq or gptq_v2"},
        {"gptq", "\"format\": \"gptq\", \"checkpoint_format\": \"gptq_v2\"", VPTQ_E_FORMAT,
         "keys 'format' and 'checkpoint_format' differ"},
        {"gptq", "\"is_marlin_format\": true", VPTQ_E_UNSUPPORTED,
         "key 'is_marlin_format' is true, expected false"},
        {"gptq", "\"lm_head\": true", VPTQ_E_UNSUPPORTED, "key 'lm_head' is true"},
        {"gptq", "\"pack_dtype\": \"int64\"", VPTQ_E_UNSUPPORTED,
         "key 'pack_dtype' is int64, expected int32"},
        {"gptq", "\"desc_act\": 1", VPTQ_E_FORMAT, "'desc_act'"},
        {"gptq", "\"dynamic\": {\"+:.*down.*\": {\"bits\": 8}}", VPTQ_E_UNSUPPORTED,
         "key 'dynamic' is set, expected the same layout for all layers"},
        {"gptq", "\"dynamic\": [1]", VPTQ_E_FORMAT, "key 'dynamic' is not an object"},
        {"awq", "\"version\": \"gemv\"", VPTQ_E_UNSUPPORTED,
         "key 'version' is gemv, expected gemm"},
        {"awq", "\"backend\": \"llm-awq\"", VPTQ_E_UNSUPPORTED,
         "key 'backend' is llm-awq, expected autoawq"},
        {"awq", "\"checkpoint_format\": \"gemv_fast\"", VPTQ_E_UNSUPPORTED,
         "key 'checkpoint_format' is gemv_fast, expected gemm"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *q = json_pack("{s:s, s:i, s:i}", "quant_method", rows[i].method, "bits", 4,
                              "group_size", 128);
        char text[256];
        vptq_gptq_layout layout;
        vptq_err err = {0};
        snprintf(text, sizeof text, "{%s}", rows[i].keys);
        json_t *keys = parse(text);
        json_object_update(q, keys);
        json_t *config = json_pack("{s:o}", "quantization_config", q);
        assert_fails(vptq_gptq_layout_of(config, "config.json", &layout, &err), rows[i].code,
                     &err, rows[i].text);
        json_decref(keys);
        json_decref(config);
    }
}

/* ---- models ---- */

/* Both have the weights of a plain model, and o_proj is plain in one of them. */
static void test_models(void **state)
{
    (void)state;
    static const struct row {
        const char *path, *plain;
        size_t uniform, dense;
    } rows[] = {{GOLDEN "gptq", GOLDEN "gptq_plain", 6, 1},
                {GOLDEN "awq", GOLDEN "awq_plain", 7, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const vptq_ctx ctx = {.threads = 1};
        vptq_checkpoint c, plain;
        vptq_err err = {0};
        assert_ok(vptq_checkpoint_open(&ctx, rows[i].path, NULL, &c, &err), &err);
        assert_ok(vptq_checkpoint_open(&ctx, rows[i].plain, NULL, &plain, &err), &err);
        assert_int_equal(vptq_checkpoint_uniform_count(&c), rows[i].uniform);
        assert_int_equal(vptq_checkpoint_dense_count(&c), rows[i].dense);
        assert_int_equal(vptq_checkpoint_dense_count(&plain), 0);
        assert_int_equal(c.set.count, plain.set.count);
        for (size_t k = 0; k < plain.set.count; k++) {
            const vptq_tensor *a = &plain.set.tensors[k],
                              *b = vptq_tensor_find(&c.set, a->name);
            const size_t n = vptq_tensor_rows(a) * vptq_tensor_cols(a);
            float *want = vtest_alloc(n, sizeof *want), *found = vtest_alloc(n, sizeof *found);
            assert_non_null(b);
            assert_ok(vptq_tensor_read(a, 0, vptq_tensor_rows(a), want, &err), &err);
            assert_ok(vptq_tensor_read(b, 0, vptq_tensor_rows(b), found, &err), &err);
            assert_same_f32(found, want, n);
            free(want);
            free(found);
        }
        vptq_checkpoint_release(&c);
        vptq_checkpoint_release(&plain);
    }
}

VTEST_MAIN(cmocka_unit_test(test_layers), cmocka_unit_test(test_formats_differ),
           cmocka_unit_test(test_plain), cmocka_unit_test(test_module_length),
           cmocka_unit_test(test_bad_tensors), cmocka_unit_test(test_bad_parts),
           cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_configs),
           cmocka_unit_test(test_bad_configs), cmocka_unit_test(test_models))
