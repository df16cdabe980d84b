/* Tests models in GGUF files: descriptions, names, rotary scaling, and unsupported models. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf/model.h"
#include "tests/support/vgguf.h"
#include "tests/support/vtest.h"

/* ---- helpers ---- */

static const uint64_t shape_2x4[2] = {2, 4};
static const float numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static void begin_model(vgguf *w, const char *arch)
{
    vgguf_init(w);
    vgguf_model(w, arch, 0);
}

static void one_tensor(vgguf *w)
{
    vgguf_init(w);
    vgguf_tensor(w, "a", VGGUF_F32, 2, shape_2x4, numbers, sizeof numbers);
}

typedef struct opened {
    vptq_gguf g;
    vptq_model_desc d;
    vptq_tensor_set set;
} opened;

static vptq_status open_model(void **state, vgguf *w, opened *o, vptq_err *err)
{
    vptq_status st = vgguf_open(*state, w, &o->g, err);
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

/* Compares all values of a tensor with vgguf_value. */
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

/* Rows of a head and elements of a bias are restored to their order. */
static void test_permuted_bias(void **state)
{
    vgguf w;
    opened o;
    vptq_err err = {0};
    const uint64_t eight[1] = {8};
    const float stored[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    float x[8];
    begin_model(&w, "llama");
    vgguf_tensor(&w, "blk.0.attn_q.bias", VGGUF_F32, 1, eight, stored, sizeof stored);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_true(o.d.qkv_bias);
    const vptq_tensor *t = vptq_tensor_find(&o.set, "model.layers.0.self_attn.q_proj.bias");
    assert_ok(vptq_tensor_read(t, 0, 1, x, &err), &err);
    assert_same_f32(x, numbers, 8);
    close_model(&o);
    vgguf_free(&w);
}

/* Computes the factors as the converters of real models do (double, then float32). */
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
    begin_model(&w, "llama");
    vgguf_f32(&w, "llama.rope.freq_base", 5e8f);
    vgguf_tensor(&w, "rope_freqs.weight", VGGUF_F32, 1, two, factors, sizeof factors);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_int_equal(o.d.rope_scaling, VPTQ_ROPE_LLAMA3);
    assert_true(o.d.rope_factor == 32 && o.d.rope_low == 1 && o.d.rope_high == 4);
    assert_int_equal(o.d.rope_original_context, 8192);
    close_model(&o);
    vgguf_free(&w);

    factors[0] = 1.5f; /* the fastest frequency is never scaled */
    begin_model(&w, "llama");
    vgguf_tensor(&w, "rope_freqs.weight", VGGUF_F32, 1, two, factors, sizeof factors);
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "match no supported scaling");
    factors[0] = NAN;
    begin_model(&w, "llama");
    vgguf_tensor(&w, "rope_freqs.weight", VGGUF_F32, 1, two, factors, sizeof factors);
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "match no supported scaling");
}

/* With a realistic head dimension, where some frequencies lie in the smooth part. */
static void test_llama3_rope_of_real_width(void **state)
{
    vgguf w;
    vptq_gguf g;
    vptq_model_desc d;
    vptq_err err = {0};
    float factors[64];
    const uint64_t n[1] = {64};
    llama3_factors(500000, 128, 8, factors);
    begin_model(&w, "llama");
    vgguf_u32(&w, "llama.attention.key_length", 128);
    vgguf_u32(&w, "llama.attention.value_length", 128);
    vgguf_f32(&w, "llama.rope.freq_base", 500000);
    vgguf_tensor(&w, "rope_freqs.weight", VGGUF_F32, 1, n, factors, sizeof factors);
    assert_ok(vgguf_open(*state, &w, &g, &err), &err);
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
    begin_model(&w, "qwen2");
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
    begin_model(&w, "llama");
    vgguf_str(&w, "llama.rope.scaling.type", "linear");
    vgguf_f32(&w, "llama.rope.scaling.factor", 2);
    assert_ok(open_model(state, &w, &o, &err), &err);
    assert_int_equal(o.d.rope_scaling, VPTQ_ROPE_LINEAR);
    assert_true(o.d.rope_factor == 2);
    close_model(&o);
    vgguf_free(&w);
    begin_model(&w, "llama");
    vgguf_str(&w, "llama.rope.scaling.type", "longrope");
    expect_no_model(state, &w, VPTQ_E_UNSUPPORTED, "'longrope'");
}

static void test_sliding_llama_is_mistral(void **state)
{
    vgguf w;
    opened o;
    vptq_err err = {0};
    begin_model(&w, "llama");
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
    begin_model(&w, "llama");
    vgguf_u32(&w, key, x);
    expect_no_model(state, &w, code, part);
}

static void refuse_with_tensor(void **state, const char *name, vptq_status code,
                               const char *part)
{
    vgguf w;
    begin_model(&w, "llama");
    vgguf_tensor(&w, name, VGGUF_F32, 2, shape_2x4, numbers, sizeof numbers);
    expect_no_model(state, &w, code, part);
}

static void test_refuses_models(void **state)
{
    static const char *const others[][2] = {{"mamba", "'mamba' is not supported"},
                                            {"phi3", "'phi3' is not supported"},
                                            {"gemma2", "'gemma2' is not supported"}};
    vgguf w;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        begin_model(&w, others[i][0]);
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
    refuse_with_tensor(state, "blk.2.attn_norm.weight", VPTQ_E_UNSUPPORTED,
                       "'blk.2.attn_norm.weight' is not part of");
    refuse_with_tensor(state, "blk.00.ffn_up.bias", VPTQ_E_UNSUPPORTED,
                       "'blk.00.ffn_up.bias' is not part of");
    refuse_with_tensor(state, "blk.0.attn_q.bias", VPTQ_E_SHAPE, "2 rows");
}

/* ---- a real file ---- */

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

/* ---- out of memory ---- */

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
    vgguf_tensor(&w, "rope_freqs.weight", VGGUF_F32, 1, two, divisors, sizeof divisors);
    vtest_path(path, sizeof path, *state, "x.gguf");
    vgguf_write(&w, path);
    assert_true(vtest_oom_walk(open_and_describe, path) > 3);
    vgguf_free(&w);
}

VTEST_MAIN(scratch_test(test_models_of_every_family), scratch_test(test_permuted_bias),
           scratch_test(test_llama3_rope), scratch_test(test_llama3_rope_of_real_width),
           scratch_test(test_rope_scaling_keys), scratch_test(test_sliding_llama_is_mistral),
           scratch_test(test_refuses_models), cmocka_unit_test(test_demo_model),
           scratch_test(test_out_of_memory))
