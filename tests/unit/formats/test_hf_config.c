/* Tests config.json: families, defaults, RoPE scaling, bad values, and generated files. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/hf/config.h"
#include "tests/support/vtest.h"

/* Returns a configuration of a family, with the keys of `more` (", \"k\": v") at the end. */
static json_t *config_of(const char *type, const char *architecture, const char *more)
{
    char text[2048];
    vptq_err err = {0};
    json_t *config = NULL;
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"%s\",\"architectures\":[\"%s\"],\"hidden_size\":64,"
                     "\"intermediate_size\":172,\"num_hidden_layers\":4,"
                     "\"num_attention_heads\":8,\"vocab_size\":512%s}",
                     type, architecture, more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    assert_ok(vptq_json_parse(text, (size_t)n, "config.json", &config, &err), &err);
    return config;
}

static vptq_model_desc parse(const char *type, const char *architecture, const char *more)
{
    vptq_model_desc d;
    vptq_err err = {0};
    json_t *config = config_of(type, architecture, more);
    assert_ok(vptq_hf_config_parse(config, "config.json", &d, &err), &err);
    json_decref(config);
    return d;
}

static vptq_model_desc llama(const char *more)
{
    return parse("llama", "LlamaForCausalLM", more);
}

static void refuse(const char *type, const char *architecture, const char *more,
                   vptq_status code, const char *part)
{
    vptq_model_desc d;
    vptq_err err = {0};
    json_t *config = config_of(type, architecture, more);
    assert_fails(vptq_hf_config_parse(config, "x/config.json", &d, &err), code, &err, part);
    assert_memory_equal(err.text, "x/config.json: ", 15);
    json_decref(config);
}

static void refuse_llama(const char *more, vptq_status code, const char *part)
{
    refuse("llama", "LlamaForCausalLM", more, code, part);
}

static void test_defaults(void **state)
{
    (void)state;
    vptq_model_desc d = llama("");
    assert_string_equal(d.family->model_type, "llama");
    assert_int_equal(d.kv_heads, 8);
    assert_int_equal(d.head_dim, 8);
    assert_int_equal(d.context, 2048);
    assert_int_equal(d.window, 0);
    assert_true(d.norm_eps == 1e-6f);
    assert_false(d.tied || d.qkv_bias || d.o_bias || d.mlp_bias);
    assert_true(d.rope_theta == 10000);
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_NONE);
    assert_true(d.rope_factor == 1 && d.rope_attention_factor == 1);
    assert_int_equal(d.bos, -1);
    assert_int_equal(d.eos, -1);
}

static void test_common_keys(void **state)
{
    (void)state;
    vptq_model_desc d =
        llama(",\"num_key_value_heads\":4,\"head_dim\":null,\"rms_norm_eps\":1e-05,"
              "\"max_position_embeddings\":512,\"tie_word_embeddings\":true,"
              "\"attention_bias\":true,\"mlp_bias\":true,\"rope_theta\":5e5,"
              "\"rope_scaling\":null,\"bos_token_id\":1,\"eos_token_id\":[128001,128009],"
              "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\",\"sliding_window\":16");
    assert_int_equal(d.hidden, 64);
    assert_int_equal(d.intermediate, 172);
    assert_int_equal(d.layers, 4);
    assert_int_equal(d.heads, 8);
    assert_int_equal(d.kv_heads, 4);
    assert_int_equal(d.head_dim, 8);
    assert_int_equal(d.vocab, 512);
    assert_int_equal(d.context, 512);
    assert_int_equal(d.window, 0);
    assert_true(d.norm_eps == 1e-5f);
    assert_true(d.tied && d.qkv_bias && d.o_bias && d.mlp_bias);
    assert_true(d.rope_theta == 500000);
    assert_int_equal(d.bos, 1);
    assert_int_equal(d.eos, 128001);
}

static void test_families(void **state)
{
    (void)state;
    vptq_model_desc d = parse("qwen2", "Qwen2ForCausalLM", "");
    assert_true(d.qkv_bias && !d.o_bias && !d.mlp_bias);
    d = parse("qwen3", "Qwen3ForCausalLM", "");
    assert_int_equal(d.head_dim, 128);
    assert_true(!d.qkv_bias && d.family->qk_norm);
    d = parse("qwen3", "Qwen3ForCausalLM", ",\"head_dim\":16,\"attention_bias\":true");
    assert_int_equal(d.head_dim, 16);
    assert_true(d.qkv_bias && d.o_bias);
    d = parse("mistral", "MistralForCausalLM", ",\"sliding_window\":32");
    assert_int_equal(d.window, 32);
    assert_int_equal(d.window_from, 0);
    /* keys that transformers does not read for the family */
    static const char both[] = ",\"attention_bias\":true,\"mlp_bias\":true";
    d = parse("mistral", "MistralForCausalLM", both);
    assert_true(!d.qkv_bias && !d.o_bias && !d.mlp_bias);
    d = parse("qwen2", "Qwen2ForCausalLM", both);
    assert_true(d.qkv_bias && !d.o_bias && !d.mlp_bias);
    d = parse("qwen3", "Qwen3ForCausalLM", both);
    assert_true(d.qkv_bias && d.o_bias && !d.mlp_bias);
}

static void test_family_from_architecture(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_model_desc d;
    json_t *config = config_of("", "Qwen2ForCausalLM", "");
    assert_int_equal(json_object_del(config, "model_type"), 0);
    assert_ok(vptq_hf_config_parse(config, "c", &d, &err), &err);
    assert_string_equal(d.family->model_type, "qwen2");
    json_decref(config);
    refuse("gpt_neox", "GPTNeoXForCausalLM", "", VPTQ_E_UNSUPPORTED,
           "architecture 'GPTNeoXForCausalLM' of model type 'gpt_neox' is not supported, "
           "expected a causal language model of one of: llama, mistral, qwen2, qwen3, phi3, "
           "gemma2, gemma3_text, starcoder2, mixtral, qwen2_moe, qwen3_moe");
    /* similar shapes with different arithmetic */
    static const char *const others[][2] = {{"phi", "PhiForCausalLM"},
                                            {"gemma", "GemmaForCausalLM"},
                                            {"gpt_bigcode", "GPTBigCodeForCausalLM"},
                                            {"gpt2", "GPT2LMHeadModel"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char said[128];
        (void)snprintf(said, sizeof said,
                       "architecture '%s' of model type '%s' is not supported", others[i][1],
                       others[i][0]);
        refuse(others[i][0], others[i][1], "", VPTQ_E_UNSUPPORTED, said);
    }
    refuse("llama", "LlamaForSequenceClassification", "", VPTQ_E_UNSUPPORTED,
           "'LlamaForSequenceClassification'");
    refuse("qwen3", "LlamaForCausalLM", "", VPTQ_E_UNSUPPORTED, "model type 'qwen3'");
    refuse("", "", "", VPTQ_E_UNSUPPORTED, "is not supported");
}

static void test_windows(void **state)
{
    (void)state;
    const char *mistral = "mistral", *m = "MistralForCausalLM";
    const char *qwen = "qwen2", *q = "Qwen2ForCausalLM";
    assert_int_equal(parse(mistral, m, "").window, 4096);
    assert_int_equal(parse(mistral, m, ",\"sliding_window\":null").window, 0);
    assert_int_equal(parse(qwen, q, ",\"sliding_window\":9,\"max_window_layers\":2").window, 0);
    vptq_model_desc d = parse(qwen, q,
                              ",\"sliding_window\":9,\"max_window_layers\":2,"
                              "\"use_sliding_window\":true");
    assert_int_equal(d.window, 9);
    assert_int_equal(d.window_from, 2);
    /* All layers are full: no sliding window. */
    d = parse(qwen, q,
              ",\"sliding_window\":9,\"max_window_layers\":4,\"use_sliding_window\":true");
    assert_int_equal(d.window, 0);
    assert_int_equal(d.window_from, 0);
#define TYPES(list)                                                                            \
    ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":28,"              \
    "\"layer_types\":[" list "]"
#define FULL  "\"full_attention\""
#define SLIDE "\"sliding_attention\""
    d = parse(qwen, q, TYPES(FULL "," SLIDE "," SLIDE "," SLIDE));
    assert_int_equal(d.window, 9);
    assert_int_equal(d.window_from, 1);
    d = parse(qwen, q, TYPES(FULL "," FULL "," FULL "," FULL));
    assert_int_equal(d.window, 0);
    d = parse(qwen, q, TYPES(SLIDE "," FULL "," SLIDE "," FULL));
    assert_int_equal(d.full_every, 2);
    assert_true(vptq_layer_slides(&d, 0) && !vptq_layer_slides(&d, 1));
    assert_int_equal(vptq_layer_window(&d, 2), 9);
    assert_int_equal(vptq_layer_window(&d, 3), 0);
    d = parse(qwen, q, TYPES(FULL "," SLIDE "," FULL "," SLIDE));
    assert_int_equal(d.window_from, 1);
    assert_int_equal(d.full_every, 3);
    refuse(qwen, q, TYPES(SLIDE "," SLIDE "," FULL "," FULL), VPTQ_E_UNSUPPORTED,
           "'layer_types' of layer 3 does not continue the pattern of the layers before it");
    refuse(qwen, q, TYPES(FULL "," FULL "," FULL ",\"linear_attention\""), VPTQ_E_UNSUPPORTED,
           "'layer_types' of layer 3 is 'linear_attention'");
    refuse(qwen, q, TYPES(FULL), VPTQ_E_FORMAT, "'layer_types' is not a list of one name");
#undef TYPES
#undef FULL
#undef SLIDE
}

#define PHI3(more) "phi3", "Phi3ForCausalLM", ",\"num_key_value_heads\":2" more

static void test_phi3(void **state)
{
    (void)state;
    vptq_model_desc d = parse(PHI3(""));
    assert_true(d.family->fused && !d.tied && !d.gelu && d.norm_eps == 1e-5F);
    assert_int_equal(d.context, 4096);
    assert_int_equal(d.window, 0);
    assert_int_equal(vptq_rotary_dim(&d), 8);
    d = parse(PHI3(",\"sliding_window\":9,\"partial_rotary_factor\":0.75"));
    assert_int_equal(d.window, 9);
    assert_int_equal(d.rotary_dim, 6);
    d = parse(PHI3(",\"rope_parameters\":{\"partial_rotary_factor\":0.5,\"rope_theta\":7.0}"));
    assert_int_equal(d.rotary_dim, 4);
    assert_true(d.rope_theta == 7);
    refuse(PHI3(",\"partial_rotary_factor\":0.4"), VPTQ_E_FORMAT,
           "3 elements of each head are rotated, expected an even number up to the head "
           "dimension of 8");
    refuse(PHI3(",\"partial_rotary_factor\":1.5"), VPTQ_E_FORMAT,
           "'partial_rotary_factor' is 1.5, expected more than 0, up to 1");
}

#define LONGROPE_OF(type, factors, more)                                                       \
    PHI3(",\"max_position_embeddings\":4096,\"original_max_position_embeddings\":1024,"        \
         "\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"" type "\","              \
         "\"short_factor\":[1,1.5],\"long_factor\":[" factors "]" more "}")
#define LONGROPE(type, more) LONGROPE_OF(type, "2,3", more)

static void test_longrope(void **state)
{
    (void)state;
    vptq_model_desc d = parse(LONGROPE("longrope", ""));
    float tables[2][2 * 2];
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_LONGROPE);
    assert_int_equal(d.rope_original_context, 1024);
    assert_true(d.rope_short[1] == 1.5F && d.rope_long[0] == 2);
    /* sqrt(1 + ln 4 / ln 1024) */
    assert_true(fabs(d.rope_attention_factor - 1.0954451150103321) < 1e-15);
    vptq_rope_tables(&d, 2, tables[0], tables[1]);
    assert_true(fabs((double)tables[1][2] - sin(1.0) * d.rope_attention_factor) < 1e-7);
    d.rope_original_context = 1; /* two positions are longer */
    vptq_rope_tables(&d, 2, tables[0], tables[1]);
    assert_true(fabs((double)tables[1][2] - sin(0.5) * d.rope_attention_factor) < 1e-7);
    assert_int_equal(parse(LONGROPE("su", "")).rope_scaling, VPTQ_ROPE_LONGROPE);
    assert_int_equal(parse(LONGROPE("yarn", "")).rope_scaling, VPTQ_ROPE_LONGROPE);
    d = parse(LONGROPE("longrope", ",\"attention_factor\":1.25"));
    assert_true(d.rope_attention_factor == 1.25);
    refuse(LONGROPE_OF("longrope", "1,2,3", ""), VPTQ_E_FORMAT,
           "key 'long_factor' of the RoPE scaling is not a list of 2 numbers, at most 128");
    refuse(LONGROPE_OF("longrope", "1,0", ""), VPTQ_E_FORMAT,
           "the model's long RoPE factor is 0, expected more than 0");
}

static void test_gemma2(void **state)
{
    (void)state;
    const char *type = "gemma2", *g = "Gemma2ForCausalLM";
    vptq_model_desc d = parse(type, g, "");
    assert_true(d.tied && d.gelu && d.family->norm_offset && d.family->out_norms);
    assert_int_equal(d.head_dim, 256);
    assert_int_equal(d.context, 8192);
    assert_int_equal(d.window, 4096);
    assert_int_equal(d.full_every, 2);
    assert_true(d.query_scalar == 256 && d.score_cap == 50 && d.logit_cap == 30);
    assert_true(d.rope_local_theta == 0);
    d = parse(type, g,
              ",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":2.5,"
              "\"sliding_window\":null,\"tie_word_embeddings\":false,"
              "\"hidden_act\":\"gelu\",\"hidden_activation\":\"silu\",\"attention_bias\":true");
    assert_true(d.score_cap == 0 && d.logit_cap == 2.5 && d.window == 0 && d.full_every == 0);
    assert_true(!d.tied && !d.gelu && d.qkv_bias && d.o_bias);
    refuse(type, g, ",\"hidden_activation\":\"gelu\"", VPTQ_E_UNSUPPORTED,
           "'hidden_activation' is 'gelu', only 'silu' and 'gelu_pytorch_tanh' are supported");
    refuse(type, g, ",\"use_bidirectional_attention\":true", VPTQ_E_UNSUPPORTED,
           "'use_bidirectional_attention' is true, only causal attention is supported");
    refuse(type, g, ",\"attn_logit_softcapping\":-1", VPTQ_E_FORMAT,
           "the model's soft cap of scores is -1, expected more than 0");
    refuse(type, g, ",\"query_pre_attn_scalar\":-2", VPTQ_E_FORMAT,
           "the model's query_pre_attn_scalar is -2, expected more than 0");
}

#define MIXTRAL(more) "mixtral", "MixtralForCausalLM", more

static void test_mixtral(void **state)
{
    (void)state;
    vptq_model_desc d = parse(MIXTRAL(""));
    assert_int_equal(d.experts.count, 8);
    assert_int_equal(d.experts.used, 2);
    assert_int_equal(d.experts.intermediate, d.intermediate);
    assert_int_equal(d.experts.shared, 0);
    assert_true(d.experts.normalized && d.window == 0 && d.norm_eps == 1e-5F);
    assert_true(vptq_layer_has_experts(&d.experts, 0));
    d = parse(
        MIXTRAL(",\"num_local_experts\":3,\"num_experts_per_tok\":3,\"sliding_window\":9"));
    assert_int_equal(d.experts.count, 3);
    assert_int_equal(d.experts.used, 3);
    assert_int_equal(d.window, 9);
    refuse(MIXTRAL(",\"num_local_experts\":0"), VPTQ_E_FORMAT,
           "the model's number of experts is 0, expected 1 to 512");
    refuse(MIXTRAL(",\"num_local_experts\":513"), VPTQ_E_FORMAT,
           "the model's number of experts is 513, expected 1 to 512");
    refuse(MIXTRAL(",\"num_experts_per_tok\":9"), VPTQ_E_FORMAT,
           "the model's number of experts per token is 9, expected 1 to 8");
    refuse(MIXTRAL(",\"num_experts_per_tok\":0"), VPTQ_E_FORMAT,
           "the model's number of experts per token is 0, expected 1 to 8");
}

#define QWEN2_MOE(more) "qwen2_moe", "Qwen2MoeForCausalLM", ",\"num_key_value_heads\":2" more
#define QWEN3_MOE(more) "qwen3_moe", "Qwen3MoeForCausalLM", ",\"num_key_value_heads\":2" more

static void test_qwen_moe(void **state)
{
    (void)state;
    vptq_model_desc d = parse(QWEN2_MOE(""));
    assert_int_equal(d.experts.count, 60);
    assert_int_equal(d.experts.used, 4);
    assert_int_equal(d.experts.intermediate, 1408);
    assert_int_equal(d.experts.shared, 5632);
    assert_true(!d.experts.normalized && d.qkv_bias && !d.o_bias);
    d = parse(QWEN2_MOE(",\"mlp_only_layers\":[2],\"norm_topk_prob\":true,\"qkv_bias\":false"));
    assert_true(d.experts.normalized && !d.qkv_bias);
    for (uint32_t l = 0; l < 4; l++)
        assert_int_equal(vptq_layer_has_experts(&d.experts, l), l != 2);
    d = parse(QWEN3_MOE(",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3,3]"));
    assert_int_equal(d.experts.count, 128);
    assert_int_equal(d.experts.used, 8);
    assert_int_equal(d.experts.intermediate, 768);
    assert_int_equal(d.experts.shared, 0);
    assert_int_equal(d.head_dim, d.hidden / d.heads);
    assert_true(d.family->qk_norm);
    for (uint32_t l = 0; l < 4; l++)
        assert_int_equal(vptq_layer_has_experts(&d.experts, l), l == 1);
    assert_int_equal(parse(QWEN3_MOE(",\"num_local_experts\":16")).experts.count, 16);
    d = parse(QWEN3_MOE(",\"num_local_experts\":16,\"num_experts\":20"));
    assert_int_equal(d.experts.count, 20);
    refuse(QWEN2_MOE(",\"decoder_sparse_step\":0"), VPTQ_E_FORMAT,
           "'decoder_sparse_step' is 0, expected a positive number");
    refuse(QWEN2_MOE(",\"mlp_only_layers\":3"), VPTQ_E_FORMAT,
           "'mlp_only_layers' is not a list of layers");
    refuse(QWEN2_MOE(",\"mlp_only_layers\":[0,4]"), VPTQ_E_FORMAT,
           "entry 1 of 'mlp_only_layers' is not one of the layers 0 to 3");
    refuse(QWEN2_MOE(",\"mlp_only_layers\":[-1]"), VPTQ_E_FORMAT,
           "entry 0 of 'mlp_only_layers' is not one of the layers 0 to 3");
    refuse(QWEN2_MOE(",\"use_sliding_window\":true"), VPTQ_E_UNSUPPORTED,
           "'use_sliding_window' is true, which is not supported for qwen2_moe");
    refuse(QWEN2_MOE(",\"shared_expert_intermediate_size\":0"), VPTQ_E_FORMAT,
           "the model's intermediate size of the shared expert is 0, expected 1 to 1048576");
    refuse(QWEN3_MOE(",\"moe_intermediate_size\":0"), VPTQ_E_FORMAT,
           "the model's intermediate size of experts is 0, expected 1 to 1048576");
}

static void test_gemma3(void **state)
{
    (void)state;
    const char *type = "gemma3_text", *g = "Gemma3ForCausalLM";
    vptq_model_desc d = parse(type, g, ",\"sliding_window_pattern\":3");
    assert_true(d.tied && d.gelu && d.family->qk_norm && d.family->out_norms);
    assert_true(d.rope_theta == 1e6 && d.rope_local_theta == 1e4);
    assert_true(d.score_cap == 0 && d.logit_cap == 0);
    assert_int_equal(d.full_every, 3);
    assert_int_equal(d.window, 4096);
    /* both spellings of RoPE */
    static const char *const same[] = {
        ",\"rope_theta\":5e5,\"rope_local_base_freq\":100,"
        "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}",
        ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,"
        "\"rope_theta\":500000.0},\"sliding_attention\":{\"rope_type\":\"default\","
        "\"rope_theta\":100.0}}"};
    for (int i = 0; i < 2; i++) {
        d = parse(type, g, same[i]);
        assert_int_equal(d.rope_scaling, VPTQ_ROPE_LINEAR);
        assert_true(d.rope_factor == 8 && d.rope_theta == 5e5 && d.rope_local_theta == 100);
    }
    refuse(type, g,
           ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\","
           "\"factor\":2.0}}",
           VPTQ_E_UNSUPPORTED, "RoPE scaling 'linear' of sliding attention is not supported");
    refuse(type, g, ",\"sliding_window\":null", VPTQ_E_FORMAT,
           "'sliding_window' is null or 0, expected a number of tokens");
    /* the sizes that the configuration of google/gemma-3-4b-it leaves out */
    json_t *config = config_of(type, g, "");
    vptq_err err = {0};
    assert_int_equal(json_object_del(config, "num_attention_heads"), 0);
    assert_int_equal(json_object_del(config, "vocab_size"), 0);
    assert_ok(vptq_hf_config_parse(config, "c", &d, &err), &err);
    assert_int_equal(d.heads, 8);
    assert_int_equal(d.kv_heads, 4);
    assert_int_equal(d.vocab, 262208);
    json_decref(config);
    json_t *made;
    assert_fails(vptq_hf_config_make(&d, "float16", &made, &err), VPTQ_E_UNSUPPORTED, &err,
                 "a configuration of model type 'gemma3_text' can only be copied");
}

static void test_starcoder2(void **state)
{
    (void)state;
    const char *type = "starcoder2", *g = "Starcoder2ForCausalLM";
    vptq_model_desc d = parse(type, g, "");
    assert_true(d.family->layer_norm && d.family->plain_mlp && !d.family->gguf_arch);
    assert_true(d.tied && d.gelu && d.norm_eps == 1e-5F);
    assert_true(d.qkv_bias && d.o_bias && d.mlp_bias);
    assert_int_equal(d.context, 4096);
    assert_int_equal(d.window, 0);
    assert_int_equal(d.kv_heads, 2);
    d = parse(type, g,
              ",\"norm_epsilon\":0.5,\"rms_norm_eps\":2,\"use_bias\":false,"
              "\"attention_bias\":true,\"mlp_bias\":true,\"sliding_window\":4096,"
              "\"tie_word_embeddings\":false,\"hidden_act\":\"silu\"");
    assert_true(!d.tied && !d.gelu && d.norm_eps == 0.5F);
    assert_true(!d.qkv_bias && !d.o_bias && !d.mlp_bias);
    assert_int_equal(d.window, 4096);
    assert_false(llama(",\"use_bias\":true").mlp_bias);
    assert_true(llama(",\"norm_epsilon\":0.5").norm_eps == 1e-6F);
    refuse(type, g, ",\"norm_epsilon\":0", VPTQ_E_FORMAT,
           "the model's norm epsilon is 0, expected more than 0");
    refuse(type, g, ",\"use_bias\":1", VPTQ_E_FORMAT,
           "key 'use_bias' is a whole number, expected true or false");
    refuse(type, g, ",\"hidden_act\":\"gelu\"", VPTQ_E_UNSUPPORTED,
           "'hidden_act' is 'gelu', only 'silu' and 'gelu_pytorch_tanh' are supported");
}

static void test_rope_spellings(void **state)
{
    (void)state;
    static const char *const same[] = {
        ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}",
        ",\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":32,"
        "\"low_freq_factor\":1,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":8192}",
        ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\","
        "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}",
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        vptq_model_desc d = llama(same[i]);
        assert_int_equal(d.rope_scaling, VPTQ_ROPE_LLAMA3);
        assert_true(d.rope_theta == 500000 && d.rope_factor == 32);
        assert_true(d.rope_low == 1 && d.rope_high == 4);
        assert_int_equal(d.rope_original_context, 8192);
    }
    vptq_model_desc d = llama(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}");
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_LINEAR);
    assert_true(d.rope_factor == 4);
    d = llama(",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"}");
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_NONE);
    assert_true(d.rope_theta == 1e6);
    d = llama(",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1.0}");
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_NONE);
}

static void test_yarn(void **state)
{
    (void)state;
    vptq_model_desc d = llama(",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
                              "\"original_max_position_embeddings\":32768}");
    assert_int_equal(d.rope_scaling, VPTQ_ROPE_YARN);
    assert_true(d.rope_low == 1 && d.rope_high == 32);
    assert_int_equal(d.rope_original_context, 32768);
    assert_true(fabs(d.rope_attention_factor - 1.138629436111989) < 1e-15);
    d = llama(",\"max_position_embeddings\":77,\"rope_scaling\":{\"rope_type\":\"yarn\","
              "\"factor\":2,\"attention_factor\":0.5,\"beta_fast\":16,\"beta_slow\":2}");
    assert_true(d.rope_low == 2 && d.rope_high == 16 && d.rope_attention_factor == 0.5);
    assert_int_equal(d.rope_original_context, 77);
    /* 0.1 * 2 ln 40 + 1 over 0.1 ln 40 + 1 */
    d = llama(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40,\"mscale\":2,"
              "\"mscale_all_dim\":1}");
    assert_true(fabs(d.rope_attention_factor - 1.7377758908227871 / 1.3688879454113936) <
                1e-15);
}

static void test_bad_values(void **state)
{
    (void)state;
    const vptq_status bad = VPTQ_E_FORMAT, no = VPTQ_E_UNSUPPORTED;
    refuse_llama(",\"hidden_act\":\"gelu\"", no, "'hidden_act' is 'gelu', only 'silu'");
    refuse_llama(",\"head_dim\":7", bad, "head dimension 7 is odd");
    refuse_llama(",\"head_dim\":\"8\"", bad, "key 'head_dim' is a string");
    refuse_llama(",\"num_key_value_heads\":0", bad, "key-value heads is 0");
    refuse_llama(",\"num_key_value_heads\":3", bad, "8 heads cannot share 3");
    refuse_llama(",\"max_position_embeddings\":4294967296", bad, "is 4294967296, expected");
    refuse_llama(",\"rms_norm_eps\":0", bad, "norm epsilon is 0");
    refuse_llama(",\"eos_token_id\":\"</s>\"", bad, "key 'eos_token_id' is not a token id");
    refuse_llama(",\"bos_token_id\":-1", bad, "key 'bos_token_id' is not a token id");
    refuse_llama(",\"partial_rotary_factor\":0.5", no, "'partial_rotary_factor' is 0.5");
    refuse_llama(",\"rope_scaling\":7", bad, "key 'rope_scaling' is not an object");
    refuse_llama(",\"rope_scaling\":{\"type\":\"linear\"}", bad,
                 "key 'factor' of the RoPE scaling is missing");
    refuse_llama(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", bad, "factor is 0");
    refuse_llama(",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}", bad,
                 "key 'low_freq_factor' of the RoPE scaling");
    refuse_llama(",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", no,
                 "RoPE scaling 'dynamic' with factor 2 is not supported");
    refuse_llama(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}", bad,
                 "key 'short_factor' of the RoPE scaling is not a list of 4 numbers");
    refuse_llama(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"truncate\":false}",
                 no, "'truncate' false");
}

static void test_missing_and_nested(void **state)
{
    (void)state;
    static const char *const needed[] = {"hidden_size", "intermediate_size",
                                         "num_hidden_layers", "num_attention_heads",
                                         "vocab_size"};
    vptq_err err = {0};
    vptq_model_desc d;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        json_t *config = config_of("llama", "LlamaForCausalLM", "");
        char part[64];
        snprintf(part, sizeof part, "c: key '%s' is missing", needed[i]);
        assert_int_equal(json_object_del(config, needed[i]), 0);
        assert_fails(vptq_hf_config_parse(config, "c", &d, &err), VPTQ_E_FORMAT, &err, part);
        json_decref(config);
    }
    json_t *outer = json_pack("{s:s, s:[s], s:o}", "model_type", "wrapper", "architectures",
                              "WrapperForConditionalGeneration", "text_config",
                              config_of("mistral", "MistralForCausalLM", ""));
    assert_ok(vptq_hf_config_parse(outer, "c", &d, &err), &err);
    assert_string_equal(d.family->model_type, "mistral");
    json_decref(outer);
    json_t *list = json_array();
    assert_fails(vptq_hf_config_parse(list, "c", &d, &err), VPTQ_E_FORMAT, &err,
                 "c: the configuration is not a JSON object");
    json_decref(list);
}

/* A configuration generated from a description gives the same description when read. */
static void round_trip(const char *type, const char *architecture, const char *more)
{
    vptq_model_desc d = parse(type, architecture, more), again;
    vptq_err err = {0};
    json_t *made = NULL;
    assert_ok(vptq_hf_config_make(&d, "float16", &made, &err), &err);
    assert_ok(vptq_hf_config_parse(made, "made", &again, &err), &err);
    assert_ptr_equal(again.family, d.family);
    assert_int_equal(again.hidden, d.hidden);
    assert_int_equal(again.intermediate, d.intermediate);
    assert_int_equal(again.layers, d.layers);
    assert_int_equal(again.heads, d.heads);
    assert_int_equal(again.kv_heads, d.kv_heads);
    assert_int_equal(again.head_dim, d.head_dim);
    assert_int_equal(again.vocab, d.vocab);
    assert_int_equal(again.context, d.context);
    assert_int_equal(again.window, d.window);
    assert_int_equal(again.window_from, d.window_from);
    assert_true(again.norm_eps == d.norm_eps);
    assert_true(again.tied == d.tied && again.qkv_bias == d.qkv_bias &&
                again.o_bias == d.o_bias && again.mlp_bias == d.mlp_bias);
    assert_true(again.rope_theta == d.rope_theta && again.rope_factor == d.rope_factor);
    assert_int_equal(again.rope_scaling, d.rope_scaling);
    assert_true(again.rope_low == d.rope_low && again.rope_high == d.rope_high);
    assert_true(again.rope_attention_factor == d.rope_attention_factor);
    assert_int_equal(again.rope_original_context, d.rope_original_context);
    assert_int_equal(again.bos, d.bos);
    assert_int_equal(again.eos, d.eos);
    json_decref(made);
}

static void test_make(void **state)
{
    (void)state;
    round_trip("llama", "LlamaForCausalLM",
               ",\"num_key_value_heads\":2,\"rms_norm_eps\":1e-5,\"bos_token_id\":1,"
               "\"tie_word_embeddings\":true,\"attention_bias\":true,\"mlp_bias\":true,"
               "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
               "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
               "\"original_max_position_embeddings\":8192}");
    round_trip("llama", "LlamaForCausalLM",
               ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}");
    round_trip("mistral", "MistralForCausalLM", "");
    round_trip("mistral", "MistralForCausalLM", ",\"sliding_window\":null");
    round_trip("qwen2", "Qwen2ForCausalLM",
               ",\"sliding_window\":9,\"max_window_layers\":2,\"use_sliding_window\":true,"
               "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
               "\"original_max_position_embeddings\":32768}");
    round_trip("qwen3", "Qwen3ForCausalLM", ",\"head_dim\":16,\"eos_token_id\":[7,8]");
}

static void test_made_text(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_model_desc d = llama(",\"rms_norm_eps\":1e-05,\"bos_token_id\":1");
    json_t *made = NULL;
    assert_ok(vptq_hf_config_make(&d, "bfloat16", &made, &err), &err);
    assert_true(json_real_value(json_object_get(made, "rms_norm_eps")) == 1e-5);
    assert_string_equal(json_string_value(json_object_get(made, "torch_dtype")), "bfloat16");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(made, "architectures"), 0)),
        "LlamaForCausalLM");
    assert_true(json_is_null(json_object_get(made, "rope_scaling")));
    assert_true(json_is_null(json_object_get(made, "eos_token_id")));
    json_decref(made);
}

static void test_real_files(void **state)
{
    (void)state;
    char path[4096];
    vptq_err err = {0};
    json_t *config = NULL;
    vptq_model_desc d;
    if (!vtest_data(path, sizeof path, "models/stories260K-hf/config.json"))
        skip();
    assert_ok(vptq_json_load(path, 1 << 20, &config, &err), &err);
    assert_ok(vptq_hf_config_parse(config, path, &d, &err), &err);
    assert_int_equal(d.hidden, 64);
    assert_int_equal(d.layers, 5);
    assert_int_equal(d.kv_heads, 4);
    assert_int_equal(d.context, 512);
    assert_true(d.tied);
    assert_true(d.norm_eps == 1e-5f);
    assert_int_equal(d.bos, 1);
    assert_int_equal(d.eos, 2);
    json_decref(config);
}

VTEST_MAIN(cmocka_unit_test(test_defaults), cmocka_unit_test(test_common_keys),
           cmocka_unit_test(test_families), cmocka_unit_test(test_family_from_architecture),
           cmocka_unit_test(test_windows), cmocka_unit_test(test_phi3),
           cmocka_unit_test(test_longrope), cmocka_unit_test(test_gemma2),
           cmocka_unit_test(test_gemma3), cmocka_unit_test(test_starcoder2),
           cmocka_unit_test(test_mixtral), cmocka_unit_test(test_qwen_moe),
           cmocka_unit_test(test_rope_spellings), cmocka_unit_test(test_yarn),
           cmocka_unit_test(test_bad_values), cmocka_unit_test(test_missing_and_nested),
           cmocka_unit_test(test_make), cmocka_unit_test(test_made_text),
           cmocka_unit_test(test_real_files))
