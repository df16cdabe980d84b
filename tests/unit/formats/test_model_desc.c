/* Tests model descriptions: families, weight matrices, checks, and rotary tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "formats/model_desc.h"
#include "tests/support/vtest.h"

static void test_families(void **state)
{
    (void)state;
    char names[256], little[8];
    assert_string_equal(vptq_family_by_model_type("qwen2")->architecture, "Qwen2ForCausalLM");
    assert_true(vptq_family_by_model_type("qwen2")->qkv_bias);
    assert_true(vptq_family_by_model_type("qwen3")->qk_norm);
    assert_string_equal(vptq_family_by_architecture("MistralForCausalLM")->model_type,
                        "mistral");
    assert_true(vptq_family_by_model_type("mistral")->sliding_by_default);
    assert_string_equal(vptq_family_by_gguf_arch("llama")->model_type, "llama");
    assert_true(vptq_family_by_gguf_arch("llama")->gguf_permuted);
    assert_false(vptq_family_by_gguf_arch("qwen3")->gguf_permuted);
    assert_null(vptq_family_by_model_type("gpt2"));
    assert_null(vptq_family_by_architecture("LlamaForSequenceClassification"));
    assert_null(vptq_family_by_gguf_arch(""));
    vptq_family_names(names, sizeof names);
    assert_string_equal(names, "llama, mistral, qwen2, qwen3, phi3, gemma2, gemma3_text, "
                               "starcoder2, mixtral, qwen2_moe, qwen3_moe");
    vptq_family_names(little, sizeof little);
    assert_string_equal(little, "llama, ");
}

static void test_norm_paths(void **state)
{
    (void)state;
    const vptq_family *llama = vptq_family_by_model_type("llama");
    const vptq_family *gemma = vptq_family_by_model_type("gemma3_text");
    static const struct {
        vptq_block_norm norm;
        const char *llama, *gemma;
    } want[VPTQ_BLOCK_NORM_COUNT] = {
        {VPTQ_BLOCK_NORM_INPUT, "input_layernorm", "input_layernorm"},
        {VPTQ_BLOCK_NORM_FEED_FORWARD, "post_attention_layernorm", "pre_feedforward_layernorm"},
        {VPTQ_BLOCK_NORM_Q, NULL, "self_attn.q_norm"},
        {VPTQ_BLOCK_NORM_K, NULL, "self_attn.k_norm"},
        {VPTQ_BLOCK_NORM_ATTENTION_OUT, NULL, "post_attention_layernorm"},
        {VPTQ_BLOCK_NORM_FEED_FORWARD_OUT, NULL, "post_feedforward_layernorm"}};
    for (int i = 0; i < VPTQ_BLOCK_NORM_COUNT; i++) {
        const char *own = vptq_block_norm_path(llama, want[i].norm);
        assert_string_equal(own ? own : "", want[i].llama ? want[i].llama : "");
        assert_string_equal(vptq_block_norm_path(gemma, want[i].norm), want[i].gemma);
    }
}

static vptq_model_desc smollm2(void)
{
    return (vptq_model_desc){.family = vptq_family_by_model_type("llama"),
                             .hidden = 576,
                             .intermediate = 1536,
                             .layers = 30,
                             .heads = 9,
                             .kv_heads = 3,
                             .head_dim = 64,
                             .vocab = 49152,
                             .context = 8192,
                             .norm_eps = 1e-5f,
                             .tied = true,
                             .rope_theta = 100000,
                             .rope_factor = 1,
                             .rope_attention_factor = 1,
                             .bos = 1,
                             .eos = 2};
}

static void test_linears(void **state)
{
    (void)state;
    static const struct {
        const char *name, *input;
        uint32_t out, in;
    } want[VPTQ_LINEAR_DENSE] = {
        {"self_attn.q_proj", "qkv", 768, 512}, {"self_attn.k_proj", "qkv", 192, 512},
        {"self_attn.v_proj", "qkv", 192, 512}, {"self_attn.o_proj", "o", 512, 768},
        {"mlp.gate_proj", "up", 1536, 512},    {"mlp.up_proj", "up", 1536, 512},
        {"mlp.down_proj", "down", 512, 1536},
    };
    vptq_model_desc d = smollm2();
    d.hidden = 512;
    d.heads = 12; /* heads * head_dim differs from hidden, as in Qwen3 */
    for (vptq_linear l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        char name[VPTQ_NAME_MAX], full[VPTQ_NAME_MAX];
        uint32_t out, in;
        vptq_linear_shape(&d, l, &out, &in);
        assert_int_equal(out, want[l].out);
        assert_int_equal(in, want[l].in);
        assert_string_equal(vptq_linear_name(&d, l).text, strchr(want[l].name, '.') + 1);
        assert_string_equal(vptq_linear_kind_name(&d, l), strchr(want[l].name, '.') + 1);
        assert_string_equal(vptq_input_name(vptq_linear_input(l)).text, want[l].input);
        assert_int_equal(vptq_input_size(&d, vptq_linear_input(l)), want[l].in);
        snprintf(full, sizeof full, "model.layers.12.%s", want[l].name);
        vptq_linear_full_name(&d, name, 12, l);
        assert_string_equal(name, full);
        vptq_linear found = VPTQ_LINEAR_DENSE;
        assert_true(vptq_linear_of_module(&d, name, strlen(name), &found));
        assert_int_equal(found, l);
    }
}

static void test_plain_mlp(void **state)
{
    (void)state;
    vptq_model_desc plain = smollm2();
    const vptq_model_desc gated = smollm2();
    uint32_t out, in;
    vptq_linear l;
    char name[VPTQ_NAME_MAX];
    plain.family = vptq_family_by_model_type("starcoder2");
    for (int i = 0; i < VPTQ_LINEAR_DENSE; i++) {
        assert_true(vptq_linear_exists(&gated, 7, (vptq_linear)i));
        assert_int_equal(vptq_linear_exists(&plain, 7, (vptq_linear)i), i != VPTQ_LINEAR_GATE);
    }
    assert_int_equal(vptq_linear_total(&gated, 0, 29), 210);
    assert_int_equal(vptq_linear_total(&plain, 3, 4), 12);
    vptq_linear_shape(&plain, VPTQ_LINEAR_GATE, &out, &in);
    assert_int_equal(out, 0);
    vptq_linear_shape(&plain, VPTQ_LINEAR_UP, &out, &in);
    assert_int_equal(out, 1536);
    vptq_linear_full_name(&plain, name, 7, VPTQ_LINEAR_UP);
    assert_string_equal(name, "model.layers.7.mlp.c_fc");
    assert_string_equal(vptq_linear_name(&plain, VPTQ_LINEAR_DOWN).text, "c_proj");
    assert_string_equal(vptq_linear_name(&plain, VPTQ_LINEAR_O).text, "o_proj");
    assert_true(vptq_linear_of_module(&plain, name, strlen(name), &l));
    assert_int_equal(l, VPTQ_LINEAR_UP);
    for (int i = VPTQ_LINEAR_GATE; i < VPTQ_LINEAR_DENSE; i++) {
        vptq_linear_full_name(&gated, name, 7, (vptq_linear)i);
        assert_false(vptq_linear_of_module(&plain, name, strlen(name), &l));
    }
}

static void test_modules(void **state)
{
    (void)state;
    static const char *const others[] = {"",
                                         "mlp.up_proj",
                                         "model.layers.1.mlp.up_proj.x",
                                         "model.layers.1.mlp.up",
                                         "model.layers.1.up_proj",
                                         "model.layers.01.mlp.up_proj",
                                         "model.layers.+1.mlp.up_proj",
                                         "model.layers.x.mlp.up_proj",
                                         "model.layers.1mlp.up_proj",
                                         "model.layers.30.mlp.up_proj"};
    const vptq_model_desc d = smollm2();
    vptq_linear l = VPTQ_LINEAR_DENSE;
    assert_int_equal(d.layers, 30);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(vptq_linear_of_module(&d, others[i], strlen(others[i]), &l));
    assert_int_equal(l, VPTQ_LINEAR_DENSE);
    assert_true(vptq_linear_of_module(&d, "model.layers.29.mlp.up_proj.bias", 27, &l));
    assert_int_equal(l, VPTQ_LINEAR_UP);
    assert_false(vptq_linear_of_module(&d, "model.layers.29.mlp.up_proj.bias", 26, &l));
    assert_string_equal(vptq_name_in_block(&d, "model.layers.0.x"), "x");
    assert_null(vptq_name_in_block(&d, "model.layers.30.x"));
}

/* Four experts and a shared one in all layers but layer 1. */
static vptq_model_desc with_experts(const char *family)
{
    vptq_model_desc d = smollm2();
    d.family = vptq_family_by_model_type(family);
    d.experts = (vptq_experts){.count = 4, .used = 2, .intermediate = 24, .shared = 48};
    vptq_layer_set_dense(&d.experts, 1);
    return d;
}

static void check_linear(const vptq_model_desc *d, vptq_linear l, const char *full,
                         const char *name, const char *input)
{
    char got[VPTQ_NAME_MAX];
    vptq_linear found = VPTQ_LINEAR_NONE;
    vptq_linear_full_name(d, got, 0, l);
    assert_string_equal(got, full);
    assert_string_equal(vptq_linear_name(d, l).text, name);
    assert_string_equal(vptq_input_name(vptq_linear_input(l)).text, input);
    assert_int_equal(vptq_linear_of_module(d, full, strlen(full), &found),
                     vptq_linear_exists(d, 0, l));
    assert_int_equal(found, vptq_linear_exists(d, 0, l) ? l : VPTQ_LINEAR_NONE);
}

static void test_experts(void **state)
{
    (void)state;
    vptq_model_desc d = with_experts("qwen2_moe");
    uint32_t out, in;
    int layer0 = 0, inputs0 = 0;
    assert_int_equal(vptq_linear_count(&d), 22);
    assert_int_equal(vptq_input_count(&d.experts), 13);
    for (int l = 0; l < vptq_linear_count(&d); l++) {
        layer0 += vptq_linear_exists(&d, 0, l);
        assert_int_equal(vptq_linear_exists(&d, 1, l), l < VPTQ_LINEAR_DENSE);
    }
    for (int i = 0; i < vptq_input_count(&d.experts); i++) {
        inputs0 += vptq_input_exists(&d.experts, 0, i);
        assert_int_equal(vptq_input_exists(&d.experts, 1, i), i < VPTQ_INPUT_DENSE);
    }
    assert_int_equal(layer0, 4 + 3 + 4 * 3);
    assert_int_equal(inputs0, 3 + 1 + 4 * 2);
    assert_int_equal(vptq_linear_total(&d, 0, 1), layer0 + 7);
    check_linear(&d, VPTQ_LINEAR_SHARED, "model.layers.0.mlp.shared_expert.gate_proj",
                 "shared_expert.gate_proj", "up");
    check_linear(&d, VPTQ_LINEAR_SHARED + 2, "model.layers.0.mlp.shared_expert.down_proj",
                 "shared_expert.down_proj", "shared_down");
    check_linear(&d, vptq_expert_linear(3, VPTQ_LINEAR_UP),
                 "model.layers.0.mlp.experts.3.up_proj", "experts.3.up_proj", "expert3_up");
    check_linear(&d, vptq_expert_linear(0, VPTQ_LINEAR_DOWN),
                 "model.layers.0.mlp.experts.0.down_proj", "experts.0.down_proj",
                 "expert0_down");
    check_linear(&d, VPTQ_LINEAR_GATE, "model.layers.0.mlp.gate_proj", "gate_proj", "up");
    vptq_linear_shape(&d, vptq_expert_linear(1, VPTQ_LINEAR_GATE), &out, &in);
    assert_true(out == 24 && in == d.hidden);
    vptq_linear_shape(&d, vptq_expert_linear(1, VPTQ_LINEAR_DOWN), &out, &in);
    assert_true(out == d.hidden && in == 24);
    vptq_linear_shape(&d, VPTQ_LINEAR_SHARED + 2, &out, &in);
    assert_true(out == d.hidden && in == 48);
    assert_int_equal(vptq_linear_expert(vptq_expert_linear(2, VPTQ_LINEAR_UP)), 2);
    assert_int_equal(vptq_linear_expert(VPTQ_LINEAR_SHARED), -1);
    assert_int_equal(vptq_input_expert(vptq_expert_input(2, VPTQ_INPUT_DOWN)), 2);
    assert_int_equal(vptq_widest_intermediate(&d), d.intermediate);
    d = with_experts("mixtral");
    d.experts.shared = 0;
    check_linear(&d, vptq_expert_linear(2, VPTQ_LINEAR_DOWN),
                 "model.layers.0.block_sparse_moe.experts.2.w2", "experts.2.w2",
                 "expert2_down");
    check_linear(&d, vptq_expert_linear(2, VPTQ_LINEAR_UP),
                 "model.layers.0.block_sparse_moe.experts.2.w3", "experts.2.w3", "expert2_up");
    assert_false(vptq_linear_exists(&d, 0, VPTQ_LINEAR_SHARED));
    assert_string_equal(vptq_router_path(d.family), "block_sparse_moe.gate");
}

static void test_expert_modules(void **state)
{
    (void)state;
    static const char *const others[] = {
        "model.layers.0.mlp.experts.4.up_proj",
        "model.layers.0.mlp.experts.03.up_proj",
        "model.layers.0.mlp.experts.-1.up_proj",
        "model.layers.0.mlp.experts..up_proj",
        "model.layers.0.mlp.experts.3.w1",
        "model.layers.1.mlp.experts.3.up_proj",
        "model.layers.0.mlp.experts.99999999999999999999.up_proj",
        "model.layers.0.mlp.gate",
        "model.layers.0.mlp.shared_expert_gate",
        "model.layers.0.mlp.experts.3",
        "model.layers.0.block_sparse_moe.experts.3.up_proj"};
    const vptq_model_desc d = with_experts("qwen2_moe");
    vptq_linear l;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(vptq_linear_of_module(&d, others[i], strlen(others[i]), &l));
}

static void refuse(vptq_model_desc d, const char *part)
{
    vptq_err err = {0};
    assert_fails(vptq_model_desc_check(&d, "c.json", &err), VPTQ_E_FORMAT, &err, part);
    assert_memory_equal(err.text, "c.json: ", 8);
}

static void test_check(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_model_desc d = smollm2();
    assert_ok(vptq_model_desc_check(&d, "c.json", &err), &err);
#define REFUSE(change, part)                                                                   \
    do {                                                                                       \
        d = smollm2();                                                                         \
        change;                                                                                \
        refuse(d, part);                                                                       \
    } while (0)
    REFUSE(d.hidden = 0, "hidden size is 0");
    REFUSE((d = with_experts("qwen2_moe"), d.layers = 257),
           "number of layers is 257, expected 1 to 256");
    REFUSE((d = with_experts("mixtral"), d.experts.used = 5),
           "number of experts per token is 5, expected 1 to 4");
    REFUSE(d.hidden = 1 << 21, "hidden size is 2097152, expected 1 to 1048576");
    REFUSE(d.intermediate = UINT32_MAX, "intermediate size is 4294967295");
    REFUSE(d.layers = 0, "number of layers is 0");
    REFUSE(d.layers = 1 << 20, "number of layers is 1048576");
    REFUSE(d.kv_heads = 18, "key-value heads is 18, expected 1 to 9");
    REFUSE(d.kv_heads = 2, "9 heads cannot share 2 key-value heads");
    REFUSE(d.head_dim = 0, "head dimension is 0");
    REFUSE(d.head_dim = 63, "head dimension 63 is odd");
    REFUSE((d.heads = 1 << 20, d.kv_heads = 1), "heads times head dimension is 67108864");
    REFUSE(d.vocab = 0, "vocabulary size is 0");
    REFUSE(d.context = 0, "context length is 0");
    REFUSE(d.norm_eps = NAN, "norm epsilon is nan");
    REFUSE(d.rope_theta = 0, "RoPE theta is 0");
    REFUSE(d.rope_theta = INFINITY, "RoPE theta is inf");
    REFUSE((d.rope_scaling = VPTQ_ROPE_LINEAR, d.rope_factor = -1), "RoPE factor is -1");
    REFUSE((d.rope_scaling = VPTQ_ROPE_LLAMA3, d.rope_low = 4, d.rope_high = 4,
            d.rope_original_context = 8192),
           "frequency bounds are 4 and 4");
    REFUSE((d.rope_scaling = VPTQ_ROPE_YARN, d.rope_low = 1, d.rope_high = 32),
           "original context of RoPE scaling is 0");
    REFUSE((d.rope_scaling = VPTQ_ROPE_YARN, d.rope_low = 1, d.rope_high = 32,
            d.rope_original_context = 8, d.rope_theta = 1),
           "YaRN scaling expects more than 1");
#undef REFUSE
}

static double number(const json_t *c, const char *key, double fallback)
{
    const json_t *value = json_object_get(c, key);
    return value ? json_number_value(value) : fallback;
}

static vptq_model_desc desc_of(const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    vptq_model_desc d = {.head_dim = (uint32_t)number(c, "head_dim", 0),
                         .rope_theta = number(c, "theta", 0),
                         .rope_factor = number(c, "factor", 1),
                         .rope_low = number(c, "low", 0),
                         .rope_high = number(c, "high", 0),
                         .rope_original_context = (uint32_t)number(c, "original", 0)};
    d.rope_scaling = strcmp(name, "none") == 0     ? VPTQ_ROPE_NONE
                     : strcmp(name, "linear") == 0 ? VPTQ_ROPE_LINEAR
                     : strcmp(name, "llama3") == 0 ? VPTQ_ROPE_LLAMA3
                                                   : VPTQ_ROPE_YARN;
    d.rope_attention_factor =
        number(c, "attention", vptq_rope_yarn_attention(d.rope_factor, 1));
    return d;
}

/* Compares with tests/golden/rope.json, computed with NumPy by make_rope.py. */
static void test_rope_tables(void **state)
{
    (void)state;
    vptq_err err = {0};
    json_t *cases = NULL, *c;
    size_t index;
    assert_ok(vptq_json_load("tests/golden/rope.json", 1 << 20, &cases, &err), &err);
    assert_int_equal(json_array_size(cases), 5);
    json_array_foreach(cases, index, c)
    {
        vptq_model_desc d = desc_of(c);
        const json_t *positions = json_object_get(c, "positions");
        size_t half = d.head_dim / 2, all = 8192 * half;
        float *tables = malloc(2 * all * sizeof *tables);
        assert_non_null(tables);
        vptq_rope_tables(&d, 8192, tables, tables + all);
        for (size_t p = 0; p < json_array_size(positions); p++) {
            size_t at = (size_t)json_integer_value(json_array_get(positions, p)) * half;
            for (size_t i = 0; i < half; i++) {
                const json_t *cosine = json_array_get(json_object_get(c, "cos"), p * half + i);
                const json_t *sine = json_array_get(json_object_get(c, "sin"), p * half + i);
                assert_true(tables[at + i] == (float)json_real_value(cosine));
                assert_true(tables[all + at + i] == (float)json_real_value(sine));
            }
        }
        free(tables);
    }
    json_decref(cases);
}

VTEST_MAIN(cmocka_unit_test(test_families), cmocka_unit_test(test_norm_paths),
           cmocka_unit_test(test_linears), cmocka_unit_test(test_plain_mlp),
           cmocka_unit_test(test_modules), cmocka_unit_test(test_experts),
           cmocka_unit_test(test_expert_modules), cmocka_unit_test(test_check),
           cmocka_unit_test(test_rope_tables))
