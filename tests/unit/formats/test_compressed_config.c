/* Tests the config of the compressed-tensors layout: the keys that are written, which group a
 * module belongs to, and configs that must be refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vcompressed.h"
#include "tests/support/vtest.h"

#define GATE "model.layers.1.mlp.gate_proj"

static json_t *parse(const char *text)
{
    vptq_err err = {0};
    json_t *value = NULL;
    assert_ok(vptq_json_parse(text, strlen(text), "config.json", &value, &err), &err);
    return value;
}

/* ---- writing ---- */

static const char weights_int8[] =
    "{\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"channel\","
    " \"group_size\": null, \"dynamic\": false, \"actorder\": null, \"block_structure\": null,"
    " \"observer\": \"minmax\", \"observer_kwargs\": {}}";
static const char inputs_int8[] =
    "{\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"token\","
    " \"group_size\": null, \"dynamic\": true, \"actorder\": null, \"block_structure\": null,"
    " \"observer\": null, \"observer_kwargs\": {}}";
static const char weights_group4[] =
    "{\"num_bits\": 4, \"type\": \"int\", \"symmetric\": false, \"strategy\": \"group\","
    " \"group_size\": 32, \"dynamic\": false, \"actorder\": null, \"block_structure\": null,"
    " \"observer\": \"minmax\", \"observer_kwargs\": {}}";

/* Compares the config of some matrices, format and groups. */
static void check_config(const vptq_compressed_matrix *matrices, size_t count,
                         const char *format, const char *groups)
{
    char text[4096];
    vptq_err err = {0};
    json_t *config = NULL;
    snprintf(text, sizeof text,
             "{\"quant_method\": \"compressed-tensors\", \"format\": \"%s\","
             " \"quantization_status\": \"compressed\", \"global_compression_ratio\": null,"
             " \"ignore\": [\"lm_head\"], \"kv_cache_scheme\": null, \"config_groups\": %s}",
             format, groups);
    json_t *want = parse(text);
    assert_ok(vptq_compressed_make_config(matrices, count, NULL, 0, &config, &err), &err);
    char *found = json_dumps(config, JSON_SORT_KEYS),
         *expected = json_dumps(want, JSON_SORT_KEYS);
    assert_string_equal(found, expected);
    json_t *whole = json_pack("{s:O}", "quantization_config", config);
    assert_true(vptq_compressed_is_config(whole));
    for (size_t i = 0; i < count; i++) {
        const vptq_compressed_layout wanted = vcompressed_layout(&matrices[i]);
        vptq_compressed_layout layout;
        bool quantized;
        assert_ok(vptq_compressed_layout_of(whole, matrices[i].name, "config.json", &layout,
                                            &quantized, &err),
                  &err);
        assert_true(quantized);
        assert_memory_equal(&layout, &wanted, sizeof layout);
    }
    json_decref(whole);
    json_decref(config);
    json_decref(want);
    free(found);
    free(expected);
}

static void test_written_configs(void **state)
{
    (void)state;
    char text[3000];
    vcompressed bytes, packed;
    vcompressed_make(&bytes, (vptq_uniform_shape){4, 64, 8, 64, false, false}, VPTQ_BF16, 8);
    vcompressed_make(&packed, (vptq_uniform_shape){4, 64, 4, 32, true, false}, VPTQ_F16, 0);
    vptq_compressed_matrix list[] = {bytes.m, bytes.m, packed.m, bytes.m};
    list[0].name = "model.layers.0.mlp.up_proj";
    list[1].name = "model.layers.0.mlp.down_proj";
    list[2].name = "model.layers.0.self_attn.q_proj";
    list[3].name = "model.layers.1.mlp.up_proj";
    snprintf(text, sizeof text,
             "{\"group_0\": {\"targets\": [\"Linear\"], \"weights\": %s, "
             "\"input_activations\": %s, \"output_activations\": null}}",
             weights_int8, inputs_int8);
    check_config(list, 2, "int-quantized", text);
    snprintf(text, sizeof text,
             "{\"group_0\": {\"targets\": [\"Linear\"], \"weights\": %s, "
             "\"input_activations\": null, \"output_activations\": null}}",
             weights_group4);
    check_config(&list[2], 1, "pack-quantized", text);
    snprintf(text, sizeof text,
             "{\"group_0\": {\"targets\": [\"%s\", \"%s\", \"%s\"], \"weights\": %s,"
             " \"input_activations\": %s, \"output_activations\": null,"
             " \"format\": \"int-quantized\"},"
             " \"group_1\": {\"targets\": [\"%s\"], \"weights\": %s,"
             " \"input_activations\": null, \"output_activations\": null,"
             " \"format\": \"pack-quantized\"}}",
             list[0].name, list[1].name, list[3].name, weights_int8, inputs_int8, list[2].name,
             weights_group4);
    check_config(list, 4, "mixed-precision", text);
    vcompressed_free(&bytes);
    vcompressed_free(&packed);
}

/* Layouts that differ only in their groups, and an order of columns. */
static void test_written_groups(void **state)
{
    (void)state;
    static const int32_t order[4] = {1, 0, 1, 0};
    vcompressed x;
    vptq_err err = {0};
    json_t *config = NULL;
    vcompressed_make(&x, (vptq_uniform_shape){4, 4, 5, 2, false, false}, VPTQ_F16, 0);
    vptq_compressed_matrix list[] = {x.m, x.m, x.m};
    list[1].name = "Q";
    list[1].u.shape.group_size = 4;
    list[2].name = "R";
    list[2].u.groups = order;
    assert_ok(vptq_compressed_make_config(list, 3, NULL, 0, &config, &err), &err);
    const json_t *groups = json_object_get(config, "config_groups");
    assert_string_equal(json_string_value(json_object_get(config, "format")), "pack-quantized");
    assert_int_equal(json_object_size(groups), 3);
    const json_t *last = json_object_get(json_object_get(groups, "group_2"), "weights");
    assert_string_equal(json_string_value(json_object_get(last, "actorder")), "group");
    assert_int_equal(json_integer_value(json_object_get(last, "group_size")), 2);
    assert_null(json_object_get(json_object_get(groups, "group_2"), "format"));
    json_decref(config);
    list[1].name = "\xff";
    assert_fails(vptq_compressed_make_config(list, 3, NULL, 0, &config, &err), VPTQ_E_FORMAT,
                 &err, "quantization_config: module '\\xff' is not valid UTF-8");
    list[1].name = "lm_head";
    assert_fails(vptq_compressed_make_config(list, 3, NULL, 0, &config, &err),
                 VPTQ_E_UNSUPPORTED, &err,
                 "layer 'lm_head' cannot be written in the compressed-tensors layout: its "
                 "config leaves lm_head plain");
    vcompressed_free(&x);
}

/* ---- reading ---- */

static void test_is_config(void **state)
{
    (void)state;
    static const struct row {
        const char *text;
        bool is;
    } rows[] = {
        {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}", true},
        {"{\"text_config\": {\"quantization_config\": {\"quant_method\":"
         " \"compressed-tensors\"}}}",
         true},
        {"{\"quantization_config\": {\"quant_method\": \"vptq\"}}", false},
        {"{\"quantization_config\": {\"quant_method\": 1}}", false},
        {"{\"quantization_config\": 1}", false},
        {"{\"quant_method\": \"compressed-tensors\"}", false},
        {"[]", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *config = parse(rows[i].text);
        assert_int_equal(vptq_compressed_is_config(config), rows[i].is);
        json_decref(config);
    }
}

/* Bits tell which group was found: 2 to 7; 0 if the module stays plain. */
static void test_targets(void **state)
{
    (void)state;
    static const struct row {
        const char *ignore, *targets[3], *module;
        uint32_t bits;
    } rows[] = {
        {"[\"lm_head\"]", {"Linear"}, GATE, 2},
        {"[\"lm_head\"]", {"Linear"}, "lm_head", 0},
        {"[]", {"Linear"}, "lm_head", 0},
        {"null", {"Linear", "lm_head"}, "lm_head", 3},
        {"[]", {"re:.*head"}, "lm_head", 2},
        {"[\"" GATE "\"]", {"Linear"}, GATE, 0},
        {"[\"model.layers.1.mlp\"]", {"Linear"}, GATE, 2}, /* not a module's prefix */
        {"[\"gate_proj\"]", {"Linear"}, GATE, 2},
        {"[\"re:.*gate_proj\"]", {"Linear"}, GATE, 0},
        {"[\"Linear\"]", {"Linear"}, GATE, 0},
        {"[\"re:gate_proj\"]", {"Linear"}, GATE, 2},        /* from the beginning */
        {"[\"re:model\\\\.layers\"]", {"Linear"}, GATE, 0}, /* not to the end */
        {"[]", {"Embedding"}, GATE, 0},
        {"[]", {GATE}, GATE, 2},
        {"[]", {GATE}, "model.layers.11.mlp.gate_proj", 0},
        {"[]", {"gate_proj"}, GATE, 2},
        {"[]", {"proj"}, GATE, 0},
        {"[]", {"Linear", GATE}, GATE, 3},
        {"[]", {GATE, "re:.*"}, GATE, 2},
        {"[]", {"Linear", "re:.*(gate|up)_proj$", "gate_proj"}, GATE, 3},
        {"[]", {"re:.*\\\\.gate_proj", "re:.*", "Linear"}, GATE, 3}, /* .* sorts first */
        {"[]", {"Linear", "Linear"}, GATE, 3},                       /* the later one */
        {"[]", {"gate_proj", "Linear"}, GATE, 2},
        {"[]", {"re:model\\\\.layers\\\\.(?:0|2)\\\\."}, GATE, 0},
        {"[]", {"re:(?P<a>model)\\\\.layers\\\\.\\\\d+\\\\.mlp"}, GATE, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[2048];
        size_t n = (size_t)snprintf(text, sizeof text,
                                    "{\"quantization_config\": {\"format\": \"pack-quantized\","
                                    " \"ignore\": %s, \"config_groups\": {",
                                    rows[i].ignore);
        for (size_t g = 0; g < 3 && rows[i].targets[g]; g++)
            n += (size_t)snprintf(text + n, sizeof text - n,
                                  "%s\"g%zu\": {\"targets\": [\"%s\"], \"weights\":"
                                  " {\"num_bits\": %zu}}",
                                  g ? ", " : "", g, rows[i].targets[g], g + 2);
        snprintf(text + n, sizeof text - n, "}}}");
        json_t *config = parse(text);
        vptq_compressed_layout layout = {0};
        vptq_err err = {0};
        bool quantized;
        assert_ok(vptq_compressed_layout_of(config, rows[i].module, "config.json", &layout,
                                            &quantized, &err),
                  &err);
        if (quantized != (rows[i].bits > 0) || layout.bits != rows[i].bits)
            print_message("row %zu: %u bits\n", i, (unsigned)layout.bits);
        assert_int_equal(quantized, rows[i].bits > 0);
        assert_int_equal(layout.bits, rows[i].bits);
        json_decref(config);
    }
}

/* A config with the keys of `whole`, and one group of `group`, which begin with commas. */
static json_t *make(const char *whole, const char *group)
{
    char text[4096];
    snprintf(
        text, sizeof text,
        "{\"quantization_config\": {\"config_groups\": {\"g\": {\"targets\": [\"Linear\"]%s}}"
        "%s}}",
        group, whole);
    return parse(text);
}

#define PACKED  ", \"format\": \"pack-quantized\""
#define BYTES   ", \"format\": \"int-quantized\""
#define WEIGHTS ", \"weights\": {"
#define INPUTS  ", \"weights\": {\"num_bits\": 8}, \"input_activations\": {"

static void test_layouts(void **state)
{
    (void)state;
    static const struct row {
        const char *whole, *group;
        vptq_compressed_layout layout;
    } rows[] = {
        {PACKED, WEIGHTS "}", {8, 0, true, false, 0, false}},
        {PACKED,
         WEIGHTS "\"strategy\": \"TENSOR\", \"type\": \"INT\"}",
         {8, 0, true, false, 0, false}},
        {PACKED, WEIGHTS "\"group_size\": 64}", {8, 64, true, false, 0, false}},
        {PACKED, WEIGHTS "\"group_size\": -1, \"num_bits\": 3}", {3, 0, true, false, 0, false}},
        {PACKED,
         WEIGHTS "\"group_size\": 32, \"strategy\": \"group\", \"symmetric\": false}",
         {8, 32, false, false, 0, false}},
        {BYTES,
         INPUTS "\"strategy\": \"token\", \"dynamic\": true}",
         {8, 0, true, true, 8, false}},
        {", \"format\": \"naive-quantized\"", WEIGHTS "}", {8, 0, true, true, 0, false}},
        {", \"format\": \"mixed-precision\"",
         ", \"format\": \"int-quantized\"" WEIGHTS "}",
         {8, 0, true, true, 0, false}},
        {PACKED ", \"sparsity_config\": {}, \"transform_config\": {}, \"version\": \"0.9\"",
         WEIGHTS "\"scale_dtype\": null}, \"format\": null, \"input_activations\": null",
         {8, 0, true, false, 0, false}},
        {PACKED ", \"sparsity_config\": {\"format\": \"dense\"},"
                " \"transform_config\": {\"config_groups\": {}}",
         WEIGHTS "}",
         {8, 0, true, false, 0, false}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *config = make(rows[i].whole, rows[i].group);
        vptq_compressed_layout layout;
        vptq_err err = {0};
        bool quantized;
        assert_ok(
            vptq_compressed_layout_of(config, GATE, "config.json", &layout, &quantized, &err),
            &err);
        assert_true(quantized);
        assert_memory_equal(&layout, &rows[i].layout, sizeof layout);
        json_decref(config);
    }
}

/* A group of neither weights nor activations leaves its modules plain. */
static void test_empty_group(void **state)
{
    (void)state;
    vptq_compressed_layout layout;
    vptq_err err = {0};
    bool quantized = true;
    json_t *config = make(PACKED, ", \"weights\": null");
    assert_ok(vptq_compressed_layout_of(config, GATE, "config.json", &layout, &quantized, &err),
              &err);
    assert_false(quantized);
    json_decref(config);
}

static void refuse(json_t *config, vptq_status code, const char *text)
{
    vptq_compressed_layout layout;
    vptq_err err = {0};
    bool quantized;
    assert_fails(
        vptq_compressed_layout_of(config, GATE, "config.json", &layout, &quantized, &err), code,
        &err, text);
    json_decref(config);
}

static void test_bad_groups(void **state)
{
    (void)state;
    static const struct row {
        const char *whole, *group;
        vptq_status code;
        const char *text;
    } rows[] = {
        {"", WEIGHTS "}", VPTQ_E_FORMAT,
         "config.json: quantization_config: key 'format' is missing"},
        {", \"format\": 3", WEIGHTS "}", VPTQ_E_FORMAT, "key 'format' is a whole number"},
        {", \"format\": \"float-quantized\"", WEIGHTS "}", VPTQ_E_UNSUPPORTED,
         "config.json: quantization_config: key 'format' is float-quantized, expected "
         "pack-quantized, int-quantized or naive-quantized"},
        {", \"format\": \"marlin-24\"", WEIGHTS "}", VPTQ_E_UNSUPPORTED, "is marlin-24"},
        {", \"format\": \"mixed-precision\"", WEIGHTS "}", VPTQ_E_FORMAT,
         "config.json: group 'g': key 'format' is missing, which mixed-precision requires"},
        {PACKED, ", \"format\": \"nvfp4-pack-quantized\"" WEIGHTS "}", VPTQ_E_UNSUPPORTED,
         "config.json: group 'g': key 'format' is nvfp4-pack-quantized"},
        {PACKED, WEIGHTS "\"num_bits\": 9}", VPTQ_E_UNSUPPORTED,
         "config.json: group 'g': weights: key 'num_bits' is 9, expected 2 to 8"},
        {PACKED, WEIGHTS "\"num_bits\": 1}", VPTQ_E_UNSUPPORTED, "is 1, expected 2 to 8"},
        {PACKED, WEIGHTS "\"num_bits\": -4}", VPTQ_E_FORMAT, "key 'num_bits' is -4"},
        {PACKED, WEIGHTS "\"num_bits\": 4.0}", VPTQ_E_FORMAT, "key 'num_bits' is a fraction"},
        {BYTES, WEIGHTS "\"num_bits\": 4}", VPTQ_E_UNSUPPORTED, "is 4, expected 8"},
        {PACKED, WEIGHTS "\"type\": \"float\"}", VPTQ_E_UNSUPPORTED,
         "weights: key 'type' is float, expected int"},
        {PACKED, WEIGHTS "\"symmetric\": 1}", VPTQ_E_FORMAT, "key 'symmetric'"},
        {PACKED, WEIGHTS "\"dynamic\": true}", VPTQ_E_UNSUPPORTED,
         "weights: key 'dynamic' is true, expected false"},
        {PACKED, WEIGHTS "\"dynamic\": \"local\"}", VPTQ_E_UNSUPPORTED, "is local"},
        {PACKED, WEIGHTS "\"strategy\": \"block\"}", VPTQ_E_UNSUPPORTED,
         "key 'strategy' is block, expected group, channel or tensor"},
        {PACKED, WEIGHTS "\"strategy\": \"group\"}", VPTQ_E_FORMAT,
         "key 'group_size' is 0, which contradicts strategy group"},
        {PACKED, WEIGHTS "\"strategy\": \"channel\", \"group_size\": 8}", VPTQ_E_FORMAT,
         "key 'group_size' is 8, which contradicts strategy channel"},
        {PACKED, WEIGHTS "\"group_size\": -2}", VPTQ_E_FORMAT, "key 'group_size' is -2"},
        {PACKED, WEIGHTS "\"group_size\": 16777217}", VPTQ_E_FORMAT,
         "key 'group_size' is 16777217, expected 0 to 16777216"},
        {PACKED, ", \"weights\": 3", VPTQ_E_FORMAT,
         "config.json: group 'g': weights is not an object"},
        {BYTES, ", \"input_activations\": {}", VPTQ_E_UNSUPPORTED,
         "group 'g': key 'weights' is null, expected an object, as inputs are quantized"},
        {BYTES, INPUTS "}", VPTQ_E_UNSUPPORTED,
         "group 'g': input_activations: key 'dynamic' is false, expected true"},
        {BYTES, INPUTS "\"dynamic\": true}", VPTQ_E_UNSUPPORTED,
         "input_activations: key 'strategy' is tensor, expected token"},
        {BYTES, INPUTS "\"dynamic\": true, \"num_bits\": 4}", VPTQ_E_UNSUPPORTED,
         "input_activations: key 'num_bits' is 4, expected 8"},
        {BYTES, INPUTS "\"dynamic\": true, \"type\": \"float\"}", VPTQ_E_UNSUPPORTED,
         "key 'type' is float"},
        {BYTES, INPUTS "\"dynamic\": true, \"strategy\": \"token\", \"symmetric\": false}",
         VPTQ_E_UNSUPPORTED, "key 'symmetric' is false, expected true"},
        {PACKED, WEIGHTS "}, \"output_activations\": {}", VPTQ_E_UNSUPPORTED,
         "group 'g': key 'output_activations' is set, expected null"},
        {PACKED ", \"kv_cache_scheme\": {}", WEIGHTS "}", VPTQ_E_UNSUPPORTED,
         "quantization_config: key 'kv_cache_scheme' is set, expected null"},
        {PACKED ", \"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}", WEIGHTS "}",
         VPTQ_E_UNSUPPORTED,
         "quantization_config: sparsity_config: key 'format' is sparse-24-bitmask, expected "
         "dense"},
        {PACKED ", \"sparsity_config\": []", WEIGHTS "}", VPTQ_E_FORMAT,
         "sparsity_config is not an object"},
        {PACKED ", \"transform_config\": {\"config_groups\": {\"u\": {}}}", WEIGHTS "}",
         VPTQ_E_UNSUPPORTED, "key 'transform_config' is set, expected none"},
        {PACKED ", \"ignore\": \"lm_head\"", WEIGHTS "}", VPTQ_E_FORMAT,
         "config.json: quantization_config: key 'ignore' is not a list of names"},
        {PACKED ", \"ignore\": [1]", WEIGHTS "}", VPTQ_E_FORMAT, "'ignore' is not a list"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        refuse(make(rows[i].whole, rows[i].group), rows[i].code, rows[i].text);
}

static void test_bad_lists(void **state)
{
    (void)state;
    static const struct row {
        const char *config;
        vptq_status code;
        const char *text;
    } rows[] = {
        {"{}", VPTQ_E_FORMAT,
         "config.json: quantization_config: key 'config_groups' is not an object"},
        {"{\"config_groups\": []}", VPTQ_E_FORMAT, "key 'config_groups' is not an object"},
        {"{\"config_groups\": {\"W4A16\": [\"Linear\"]}}", VPTQ_E_UNSUPPORTED,
         "config.json: group 'W4A16' is not an object with targets and weights"},
        {"{\"config_groups\": {\"g\": {}}}", VPTQ_E_FORMAT,
         "config.json: group 'g': key 'targets' is not a list of names"},
        {"{\"config_groups\": {\"g\": {\"targets\": [null]}}}", VPTQ_E_FORMAT,
         "group 'g': key 'targets' is not a list of names"},
        {"{\"config_groups\": {\"g\": {\"targets\": [\"re:(\"]}}}", VPTQ_E_FORMAT,
         "config.json: the expression 're:(' is not valid: missing closing parenthesis"},
        {"{\"config_groups\": {\"g\": {\"targets\": [\"re:(?R)?a\"]}}}", VPTQ_E_UNSUPPORTED,
         "the expression 're:(?R)?a' is not supported"},
        {"{\"config_groups\": {\"g\": {\"targets\": [\"re:(a)\\\\g<1>\"]}}}",
         VPTQ_E_UNSUPPORTED, "is not supported"},
        {"{\"config_groups\": {\"g\": {\"targets\": [\"re:(.*)*(.*)*(.*)*(.*)*(.*)*[!?]\"]}}}",
         VPTQ_E_UNSUPPORTED, "takes too many steps for module '" GATE "'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        refuse(json_pack("{s:o}", "quantization_config", parse(rows[i].config)), rows[i].code,
               rows[i].text);
}

static void test_many_expressions(void **state)
{
    (void)state;
    char text[1200] = "re:";
    json_t *list = json_array(), *config = make(PACKED, WEIGHTS "}");
    json_t *q = json_object_get(config, "quantization_config");
    for (size_t i = 0; i < 64; i++)
        json_array_append_new(list, json_string("re:x"));
    json_object_set(q, "ignore", list);
    vptq_compressed_layout layout;
    vptq_err err = {0};
    bool quantized;
    assert_ok(vptq_compressed_layout_of(config, GATE, "config.json", &layout, &quantized, &err),
              &err);
    json_array_append_new(list, json_string("re:x"));
    refuse(json_incref(config), VPTQ_E_UNSUPPORTED,
           "config.json: quantization_config has more than 64 regular expressions");
    memset(text + 3, 'x', sizeof text - 4);
    json_array_clear(list);
    json_array_append_new(list, json_string(text));
    json_decref(list);
    refuse(config, VPTQ_E_UNSUPPORTED, "is not supported (more than 1000 bytes, or calls");
}

VTEST_MAIN(cmocka_unit_test(test_written_configs), cmocka_unit_test(test_written_groups),
           cmocka_unit_test(test_is_config), cmocka_unit_test(test_targets),
           cmocka_unit_test(test_layouts), cmocka_unit_test(test_empty_group),
           cmocka_unit_test(test_bad_groups), cmocka_unit_test(test_bad_lists),
           cmocka_unit_test(test_many_expressions))
