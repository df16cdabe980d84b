/* The text model of a model with other parts: its configuration and the names of its tensors.
 */
#include <string.h>

#include "formats/hf/config.h"
#include "formats/hf/text_part.h"
#include "tests/support/vtest.h"

static json_t *read(const char *text)
{
    vptq_err err = {0};
    json_t *config = NULL;
    assert_ok(vptq_json_parse(text, strlen(text), "c", &config, &err), &err);
    return config;
}

static void test_config(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_model_desc d;
    bool found;
    json_t *config =
        read("{\"model_type\": \"gemma3\", \"architectures\": "
             "[\"Gemma3ForConditionalGeneration\"], \"eos_token_id\": [1, 106], \"dtype\": "
             "\"bfloat16\", \"vision_config\": {}, \"text_config\": {\"hidden_size\": 8, "
             "\"intermediate_size\": 16, \"num_hidden_layers\": 6, \"eos_token_id\": 3}}");
    assert_ok(vptq_hf_text_config(&config, &found, &err), &err);
    assert_true(found);
    assert_null(json_object_get(config, "vision_config"));
    assert_string_equal(json_string_value(json_object_get(config, "dtype")), "bfloat16");
    assert_ok(vptq_hf_config_parse(config, "c", &d, &err), &err);
    assert_string_equal(d.family->architecture, "Gemma3ForCausalLM");
    assert_int_equal(d.eos, 3); /* its own key */
    json_decref(config);
    static const char *const others[] = {
        "{\"model_type\": \"gemma3_text\", \"text_config\": {}}",
        "{\"model_type\": \"gemma3\"}", "{\"text_config\": {}}"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        json_t *same = config = read(others[i]);
        assert_ok(vptq_hf_text_config(&config, &found, &err), &err);
        assert_true(!found && same == config);
        json_decref(config);
    }
}

static void add(vptq_tensor_set *set, const char *name)
{
    vptq_err err = {0};
    const vptq_tensor t = {.name = name, .type = VPTQ_F32, .dims = 0, .bytes = 4, .file = "f"};
    assert_ok(vptq_tensor_set_add(set, &t, &err), &err);
}

static void test_tensors(void **state)
{
    (void)state;
    static const char *const before[] = {"language_model.model.norm.weight",
                                         "model.language_model.layers.0.x",
                                         "language_model.lm_head.weight",
                                         "vision_tower.a",
                                         "model.vision_tower.b",
                                         "model.multi_modal_projector.c",
                                         "multi_modal_projector.d",
                                         "lm_head.bias"};
    static const char *const after[] = {"model.norm.weight", "model.layers.0.x",
                                        "lm_head.weight", "lm_head.bias"};
    static const char *const same[] = {"model.norm.weight", "model.language_model.norm.weight"};
    vptq_mem mem;
    vptq_tensor_set set;
    vptq_err err = {0};
    size_t dropped;
    vptq_mem_init(&mem, 0);
    vptq_tensor_set_init(&set, &mem);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        add(&set, before[i]);
    assert_ok(vptq_tensor_set_finish(&set, &err), &err);
    assert_ok(vptq_hf_text_tensors(&set, &dropped, &err), &err);
    assert_int_equal(dropped, 4);
    assert_int_equal(set.count, 4);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++)
        assert_non_null(vptq_tensor_find(&set, after[i]));
    vptq_tensor_set_release(&set);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        vptq_tensor_set_init(&set, &mem);
        add(&set, same[i]);
        add(&set, "language_model.model.norm.weight");
        assert_ok(vptq_tensor_set_finish(&set, &err), &err);
        assert_fails(vptq_hf_text_tensors(&set, &dropped, &err), VPTQ_E_FORMAT, &err,
                     "f: duplicate tensor 'model.norm.weight'");
        vptq_tensor_set_release(&set);
    }
    assert_int_equal(mem.used, 0);
}

VTEST_MAIN(cmocka_unit_test(test_config), cmocka_unit_test(test_tensors))
