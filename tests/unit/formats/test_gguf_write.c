/* Tests models and tokenizers written as GGUF files: the reader, which is tested against files
 * of other programs, returns what was written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/checkpoint.h"
#include "formats/gguf/model.h"
#include "formats/gguf/quants.h"
#include "formats/vocab/internal.h"
#include "lib/base/half.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"
#include "tests/support/vtok.h"

/* ---- tokenizers ---- */

/* Writes a GGUF file with only the tokenizer and `extra` unused ids. */
static void write_vocab(const char *path, const vptq_vocab *v, uint32_t extra)
{
    vptq_err err = {0};
    vptq_gguf_keys keys;
    vptq_gguf_writer w;
    const vptq_model_desc d = {.vocab = v->count + extra, .bos = -1, .eos = -1};
    vptq_gguf_keys_init(&keys, NULL);
    vptq_gguf_put_str(&keys, "general.architecture", "llama");
    assert_ok(vptq_gguf_put_vocab(&keys, v, &d, &err), &err);
    assert_ok(vptq_gguf_writer_open(path, true, &keys, NULL, 0, &w, &err), &err);
    assert_ok(vptq_gguf_writer_commit(&w, &err), &err);
    vptq_gguf_keys_release(&keys);
}

static void expect_same_specials(const vptq_vocab *a, const vptq_vocab *b)
{
    assert_int_equal(a->bos, b->bos);
    assert_int_equal(a->eos, b->eos);
    assert_int_equal(a->add_bos, b->add_bos);
    assert_int_equal(a->add_eos, b->add_eos);
    assert_int_equal(a->chat_template != NULL, b->chat_template != NULL);
    if (a->chat_template)
        assert_string_equal(a->chat_template, b->chat_template);
}

/* The tokenizer at `source`, written as GGUF, gives the published ids of `vectors`, or those of
 * the original. */
static void check_tokenizer(const char *scratch, const char *source, const char *vectors)
{
    char path[4096];
    vtok from, to;
    vtok_vectors v;
    assert_true(vtok_vectors_load(&v, vectors ? vectors : "llama-spm"));
    vtest_path(path, sizeof path, scratch, "vocab.gguf");
    vtok_open(&from, source);
    write_vocab(path, &from.vocab, 3);
    vtok_open(&to, path);
    assert_int_equal(to.vocab.count, from.vocab.count + 3);
    expect_same_specials(&from.vocab, &to.vocab);
    for (size_t i = 0; i < v.count; i++) {
        if (vectors)
            vtok_expect(&to, v.of[i].text, v.of[i].len, 0, v.of[i].ids, v.of[i].n, source);
        vtok_expect_same(&from, &to, v.of[i].text, v.of[i].len,
                         VPTQ_ENCODE_BOS | VPTQ_ENCODE_SPECIAL, source);
    }
    vtok_vectors_free(&v);
    vtok_close(&to);
    vtok_close(&from);
}

static void test_sentencepiece(void **state)
{
    char path[4096], dir[4096];
    vptq_err err = {0};
    if (!vtest_data(path, sizeof path, "tokenizers/llama2/tokenizer.model"))
        skip();
    check_tokenizer(*state, path, "llama-spm");
    /* the same as ranked merges, from which scores are reconstructed */
    vtok k;
    vtest_path(dir, sizeof dir, *state, "hf");
    assert_ok(vptq_dir_make(dir, &err), &err);
    vtok_open(&k, path);
    assert_ok(vptq_vocab_write_hf(&k.vocab, dir, &err), &err);
    vtok_close(&k);
    check_tokenizer(*state, dir, "llama-spm");
    if (vtest_data(path, sizeof path, "tokenizers/mistral/tokenizer.model.v3"))
        check_tokenizer(*state, path, NULL);
}

static void test_llama3(void **state)
{
    if (!vtok_unpack(*state, "tokenizers/llama3/tokenizer.json.xz",
                     "tokenizers/llama3/tokenizer_config.json.xz"))
        skip();
    check_tokenizer(*state, *state, "llama-bpe");
}

static void test_qwen(void **state)
{
    if (!vtok_unpack(*state, "tokenizers/qwen3/tokenizer.json.xz",
                     "tokenizers/qwen3/tokenizer_config.json"))
        skip();
    check_tokenizer(*state, *state, "qwen2");
}

/* Makes a byte-level tokenizer of 20 pieces that splits text by `pattern`. */
static void put_small(const char *dir, const char *pattern, const char *merges)
{
    char path[4096], text[4096];
    vptq_err err = {0};
    assert_ok(vptq_dir_make(dir, &err), &err);
    int n = snprintf(
        text, sizeof text,
        "{\"added_tokens\": [{\"id\": 1, \"content\": \"<s>\", \"special\": true},"
        "  {\"id\": 2, \"content\": \"<end of it>\", \"special\": true},"
        "  {\"id\": 30, \"content\": \"<late>\", \"special\": false}],"
        " \"normalizer\": null, \"post_processor\": null, \"decoder\": {\"type\": "
        "\"ByteLevel\"},"
        " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
        "  {\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Isolated\","
        "   \"invert\": false},"
        "  {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]},"
        " \"model\": {\"type\": \"BPE\", \"vocab\": {\"!\": 0, \"a\": 3, \"b\": 4, \"c\": 5,"
        "  \"ab\": 6, \"abc\": 7, \"\\u0120\": 8, \"\\u0120a\": 9}, \"merges\": %s}}",
        pattern, merges);
    assert_true(n > 0 && (size_t)n < sizeof text);
    vtest_path(path, sizeof path, dir, "tokenizer.json");
    vtest_write_file(path, text, (size_t)n);
}

static const char small_merges[] = "[[\"a\", \"b\"], [\"ab\", \"c\"], [\"\\u0120\", \"a\"]]";

/* The GPT-2 pattern as a JSON text. */
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| "
                           "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|"
                           "\\\\s+";

static void test_vocabularies_without_gguf_form(void **state)
{
    char dir[4096];
    vptq_err err = {0};
    vptq_gguf_keys keys;
    vptq_vocab v;
    vptq_model_desc d = {.vocab = 48};
    vtest_path(dir, sizeof dir, *state, "tok");
    put_small(dir, "[a-z]+", small_merges);
    assert_ok(vptq_vocab_read(dir, 0, NULL, &v, &err), &err);
    vptq_gguf_keys_init(&keys, NULL);
    assert_fails(vptq_gguf_put_vocab(&keys, &v, &d, &err), VPTQ_E_UNSUPPORTED, &err,
                 "like none of the pre-tokenizers that GGUF files name");
    d.vocab = 20;
    assert_fails(vptq_gguf_put_vocab(&keys, &v, &d, &err), VPTQ_E_MISMATCH, &err,
                 "the tokenizer has 31 tokens, the model's embedding only 20");
    vptq_vocab_release(&v);
    vptq_gguf_keys_release(&keys);
}

/* Ranks that no scores can represent: a merge is missing, or the merges of a piece are not
 * consecutive. */
static void test_merges_without_scores(void **state)
{
    static const char *const merges[] = {
        "[[\"a\", \"b\"], [\"ab\", \"c\"], [\"a\", \"bc\"], [\"b\", \"c\"]]",
        "[[\"a\", \"b\"], [\"ab\", \"c\"], [\"b\", \"c\"]]",
        "[[\"a\", \"b\"], [\"ab\", \"c\"], [\"b\", \"c\"], [\"a\", \"bc\"]]"};
    char path[4096], text[1024];
    vptq_err err = {0};
    const vptq_model_desc d = {.vocab = 16, .bos = -1, .eos = -1};
    for (int i = 0; i < 3; i++) {
        vptq_vocab v;
        vptq_gguf_keys keys;
        vptq_gguf_keys_init(&keys, NULL);
        int n = snprintf(
            text, sizeof text,
            "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"},"
            " \"content\": \"\\u2581\"}, \"pre_tokenizer\": null, \"decoder\": null,"
            " \"post_processor\": null, \"model\": {\"type\": \"BPE\","
            " \"byte_fallback\": true, \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2,"
            " \"ab\": 3, \"bc\": 4, \"abc\": 5}, \"merges\": %s}}",
            merges[i]);
        vtest_path(path, sizeof path, *state, "tokenizer.json");
        vtest_write_file(path, text, (size_t)n);
        assert_ok(vptq_vocab_read(path, 0, NULL, &v, &err), &err);
        assert_int_equal(v.kind, VPTQ_VOCAB_SPM_BPE);
        if (i == 0)
            assert_ok(vptq_gguf_put_vocab(&keys, &v, &d, &err), &err);
        else
            assert_fails(vptq_gguf_put_vocab(&keys, &v, &d, &err), VPTQ_E_UNSUPPORTED, &err,
                         "merges cannot be expressed as SentencePiece");
        const vptq_norm lower = {.kind = VPTQ_NORM_LOWER};
        assert_ok(vptq_vocab_add_norm(&v, lower, &err), &err);
        assert_fails(vptq_gguf_put_vocab(&keys, &v, &d, &err), VPTQ_E_UNSUPPORTED, &err,
                     i ? "merges cannot be expressed" : "normalizes or splits text in ways");
        vptq_gguf_keys_release(&keys);
        vptq_vocab_release(&v);
    }
}

/* SentencePiece style tokenizers, all with "a" and "a\u2581" and without merges. A GGUF file
 * can represent only some of their steps and settings, because it has names for only two kinds.
 */
static void test_steps_of_sentencepiece(void **state)
{
#define REPLACE                                                                                \
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}"
#define REGEX(pattern, by)                                                                     \
    "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"" pattern "\"}, \"content\": \"" by    \
    "\"}"
#define PREPEND        "{\"type\": \"Prepend\", \"prepend\": \"\\u2581\"}"
#define SEQUENCE(list) "{\"type\": \"Sequence\", \"normalizers\": [" list "]}"
#define METASPACE(how) "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\"" how "}"
#define ENDS           "\\\\A +| +\\\\z"
    static const struct {
        const char *normalizer, *pre, *decoder, *settings;
        const char *part; /* of the error message; NULL: written */
        bool prefix, squeeze;
    } cases[] = {
        {REPLACE, "null", "null", "", NULL, false, false},
        {SEQUENCE(PREPEND "," REPLACE), "null", "null", "", NULL, true, false},
        {SEQUENCE(REGEX(ENDS, "") "," REGEX(" {2,}", " ") "," PREPEND "," REPLACE), "null",
         "null", "", NULL, true, true},
        {"null", METASPACE(", \"split\": false"), "null", "", NULL, true, false},
        {"null", METASPACE(", \"prepend_scheme\": \"never\", \"split\": false"), "null", "",
         NULL, false, false},
        {"null", "null", "null", "", "in ways that", false, false}, /* spaces stay spaces */
        {PREPEND, "null", "null", "", "in ways that", false, false},
        {SEQUENCE(REGEX(" {2,}", " ") "," REPLACE), "null", "null", "", "in ways that", false,
         false},
        {SEQUENCE(REGEX(ENDS, "") "," REGEX(" {2,}", "_") "," REPLACE), "null", "null", "",
         "in ways that", false, false},
        {SEQUENCE(PREPEND "," PREPEND "," REPLACE), "null", "null", "", "in ways that", false,
         false},
        {"null", METASPACE(""), "null", "", "in ways that", false,
         false}, /* cuts inside a piece */
        {REPLACE, "null", "null", ", \"ignore_merges\": true", "in ways that", false, false},
        {REPLACE, "null", "{\"type\": \"ByteFallback\"}", ", \"byte_fallback\": false",
         "encodes unknown text", false, false},
        {REPLACE, "null", "null", ", \"byte_fallback\": true, \"unk_token\": \"?\"",
         "encodes unknown text", false, false},
        {REPLACE, "null", "null",
         ", \"byte_fallback\": true, \"unk_token\": \"?\", \"fuse_unk\": true", NULL, false,
         false},
    };
    char path[4096], out[4096], text[2048];
    vtest_path(path, sizeof path, *state, "tokenizer.json");
    vtest_path(out, sizeof out, *state, "vocab.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vptq_err err = {0};
        vptq_vocab v;
        vptq_gguf_keys keys;
        const vptq_model_desc d = {.vocab = 8, .bos = -1, .eos = -1};
        int n =
            snprintf(text, sizeof text,
                     "{\"normalizer\": %s, \"pre_tokenizer\": %s, \"decoder\": %s,"
                     " \"post_processor\": null, \"model\": {\"type\": \"BPE\", \"vocab\":"
                     " {\"a\": 0, \"a\\u2581\": 1, \"?\": 2, \"<0x41>\": 3},"
                     " \"merges\": []%s}}",
                     cases[i].normalizer, cases[i].pre, cases[i].decoder, cases[i].settings);
        vtest_write_file(path, text, (size_t)n);
        assert_ok(vptq_vocab_read(path, 0, NULL, &v, &err), &err);
        if (!cases[i].part) {
            vptq_gguf g;
            bool prefix, squeeze;
            write_vocab(out, &v, 0);
            assert_ok(vptq_gguf_open(out, NULL, &g, &err), &err);
            assert_ok(
                vptq_gguf_bool_or(&g, "tokenizer.ggml.add_space_prefix", false, &prefix, &err),
                &err);
            assert_ok(vptq_gguf_bool_or(&g, "tokenizer.ggml.remove_extra_whitespaces", false,
                                        &squeeze, &err),
                      &err);
            assert_int_equal(prefix, cases[i].prefix);
            assert_int_equal(squeeze, cases[i].squeeze);
            vptq_gguf_release(&g);
        } else {
            vptq_gguf_keys_init(&keys, NULL);
            vptq_status st = vptq_gguf_put_vocab(&keys, &v, &d, &err);
            if (st != VPTQ_E_UNSUPPORTED || !strstr(err.text, cases[i].part))
                fail_msg("case %zu: status %d, '%s'", i, (int)st, err.text);
            vptq_gguf_keys_release(&keys);
        }
        vptq_vocab_release(&v);
    }
}

/* ---- models ---- */

static vptq_status export(const char *in, const char *out, const char *tokenizer,
                          vptq_dtype type, vptq_dtype embeddings, vptq_mem *mem, vptq_err *err)
{
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev;
    vptq_pack_result r;
    const vptq_pack_options opt = {.input = in,
                                   .output = out,
                                   .tokenizer = tokenizer,
                                   .form = VPTQ_PACK_GGUF,
                                   .dtype = type,
                                   .embeddings = embeddings,
                                   .force = true};
    vptq_status st = vptq_device_open(&ctx, "ref", &dev, err);
    if (st)
        return st;
    st = vptq_unpack_model(&dev, &opt, &r, err);
    vptq_device_close(&dev);
    return st;
}

static void expect_same_desc(const vptq_model_desc *a, const vptq_model_desc *b)
{
    assert_string_equal(a->family->model_type, b->family->model_type);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->intermediate, b->intermediate);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->context, b->context);
    assert_int_equal(a->window, b->window);
    assert_true(a->norm_eps == b->norm_eps);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_true((float)a->rope_theta == (float)b->rope_theta);
    assert_int_equal(a->rope_scaling, b->rope_scaling);
    if (a->rope_scaling) {
        assert_true(fabs(a->rope_factor / b->rope_factor - 1) < 1e-6);
        assert_true(fabs(a->rope_attention_factor / b->rope_attention_factor - 1) < 1e-6);
        assert_int_equal(a->rope_original_context, b->rope_original_context);
    }
    assert_int_equal(a->bos, b->bos);
    assert_int_equal(a->eos, b->eos);
}

/* The numbers of a, rounded to `type` unless a is a vector, equal those of b. */
static void expect_same_tensor(const vptq_tensor *a, const vptq_tensor *b, vptq_dtype type)
{
    vptq_err err = {0};
    const size_t rows = vptq_tensor_rows(a), cols = vptq_tensor_cols(a), n = rows * cols;
    float *x = vtest_alloc(n, sizeof *x), *y = vtest_alloc(n, sizeof *y);
    assert_int_equal(vptq_tensor_rows(b), rows);
    assert_int_equal(vptq_tensor_cols(b), cols);
    assert_int_equal(b->type, a->dims < 2 ? VPTQ_F32 : type);
    assert_ok(vptq_tensor_read(a, 0, rows, x, &err), &err);
    assert_ok(vptq_tensor_read(b, 0, rows, y, &err), &err);
    const vptq_dtype_info *info = vptq_dtype_get(type);
    if (a->dims >= 2 && info->block == 1)
        vptq_round_to_n(type, x, n);
    if (a->dims >= 2 && info->block > 1) {
        uint8_t *blocks = vtest_alloc(n / info->block, info->bytes);
        vptq_ggml_quantize(type, x, n, blocks);
        vptq_ggml_dequantize(type, blocks, n, x);
        free(blocks);
    }
    assert_same_f32(y, x, n);
    free(x);
    free(y);
}

/* Of linear layers with 32 or 48 columns, as all these models have. */
static vptq_dtype layer_type(vptq_dtype wanted, const vptq_tensor *t)
{
    if (vptq_dtype_get(wanted)->block == 1)
        return wanted;
    return vptq_tensor_cols(t) % 32 ? VPTQ_F16
           : wanted == VPTQ_Q2_K    ? VPTQ_Q4_0
           : wanted == VPTQ_Q3_K    ? VPTQ_Q4_0
           : wanted == VPTQ_Q4_K    ? VPTQ_Q5_0
           : wanted == VPTQ_Q5_K    ? VPTQ_Q5_1
           : wanted == VPTQ_Q6_K    ? VPTQ_Q8_0
                                    : wanted;
}

static void expect_same_model(const char *from, const char *to, vptq_dtype type,
                              vptq_dtype embeddings)
{
    vptq_err err = {0};
    const vptq_ctx ctx = {.threads = 1};
    vptq_checkpoint a, b;
    assert_ok(vptq_checkpoint_open(&ctx, from, NULL, &a, &err), &err);
    assert_ok(vptq_checkpoint_open(&ctx, to, NULL, &b, &err), &err);
    assert_int_equal(b.kind, VPTQ_CKPT_GGUF);
    expect_same_desc(&a.desc, &b.desc);
    assert_int_equal(a.set.count, b.set.count);
    for (size_t i = 0; i < a.set.count; i++) {
        const vptq_tensor *t = vptq_tensor_find(&b.set, a.set.tensors[i].name);
        const bool outer =
            strstr(a.set.tensors[i].name, "embed") || strstr(a.set.tensors[i].name, "lm_head");
        assert_non_null(t);
        expect_same_tensor(&a.set.tensors[i], t,
                           outer ? embeddings : layer_type(type, &a.set.tensors[i]));
    }
    vptq_checkpoint_release(&a);
    vptq_checkpoint_release(&b);
}

#define QWEN2                                                                                  \
    "tests/golden/tiny_qwen2" /* its second layer has a sliding window, which GGUF cannot      \
                                 store */

/* The same model without a window. */
static void put_qwen2(const char *dir)
{
    char path[4096];
    vptq_err err = {0};
    size_t n;
    assert_ok(vptq_dir_make(dir, &err), &err);
    vtest_copy_file(QWEN2 "/model.safetensors", dir, "model.safetensors");
    char *config = vtest_read_file(QWEN2 "/config.json", &n);
    char *slides = strstr(config, "\"use_sliding_window\": true");
    assert_non_null(slides);
    memcpy(slides, "\"use_sliding_window\":false", 26);
    vtest_path(path, sizeof path, dir, "config.json");
    vtest_write_file(path, config, n);
    free(config);
}

static void test_models(void **state)
{
    static const vptq_dtype types[][2] = {{VPTQ_F16, VPTQ_F16},  {VPTQ_BF16, VPTQ_Q8_0},
                                          {VPTQ_F32, VPTQ_F32},  {VPTQ_Q2_K, VPTQ_F16},
                                          {VPTQ_Q3_K, VPTQ_F16}, {VPTQ_Q4_K, VPTQ_Q8_0},
                                          {VPTQ_Q6_K, VPTQ_F16}, {VPTQ_Q8_0, VPTQ_F16},
                                          {VPTQ_Q5_0, VPTQ_F16}, {VPTQ_Q4_0, VPTQ_F16}};
    char tok[4096], one[4096], two[4096], qwen2[4096];
    vptq_err err = {0};
    const char *const models[] = {"tests/golden/tiny_llama3", "tests/golden/tiny_mistral",
                                  "tests/golden/tiny_qwen3", qwen2};
    vtest_path(qwen2, sizeof qwen2, *state, "qwen2");
    put_qwen2(qwen2);
    vtest_path(tok, sizeof tok, *state, "tok");
    vtest_path(one, sizeof one, *state, "one.gguf");
    vtest_path(two, sizeof two, *state, "two.gguf");
    put_small(tok, gpt2, small_merges);
    for (int m = 0; m < 4; m++)
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
            assert_ok(export(models[m], one, tok, types[i][0], types[i][1], NULL, &err), &err);
            expect_same_model(models[m], one, types[i][0], types[i][1]);
            /* writing what was read gives the same bytes */
            assert_ok(export(one, two, NULL, types[i][0], types[i][1], NULL, &err), &err);
            vtest_expect_same_file(one, two);
        }
}

/* Every kind of rotary scaling, written and read. */
static void test_descriptions(void **state)
{
    static const vptq_model_desc scalings[] = {
        {.rope_scaling = VPTQ_ROPE_LINEAR, .rope_factor = 4, .rope_attention_factor = 1},
        {.rope_scaling = VPTQ_ROPE_YARN,
         .rope_factor = 4,
         .rope_low = 1,
         .rope_high = 32,
         .rope_attention_factor = 1.5,
         .rope_original_context = 100},
        {.rope_factor = 1, .rope_attention_factor = 1},
    };
    char path[4096];
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "desc.gguf");
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++) {
        vptq_model_desc d = scalings[i], back;
        vptq_gguf_keys keys;
        vptq_gguf_writer w;
        vptq_gguf g;
        float head[4] = {0};
        const vptq_tensor t = {
            .name = "output.weight", .dims = 2, .shape = {1, 4}, .bytes = sizeof head};
        d.family = vptq_family_by_model_type("qwen3");
        d.hidden = 8;
        d.intermediate = 12;
        d.layers = 1;
        d.heads = 2;
        d.kv_heads = 1;
        d.head_dim = 6;
        d.vocab = 5;
        d.context = 400;
        d.norm_eps = 1e-5F;
        d.rope_theta = 50000;
        d.window = 64;
        d.bos = d.eos = -1;
        vptq_gguf_keys_init(&keys, NULL);
        assert_ok(vptq_gguf_put_desc(&keys, &d, "model", &err), &err);
        assert_ok(vptq_gguf_writer_open(path, true, &keys, &t, 1, &w, &err), &err);
        assert_ok(vptq_gguf_write(&w, head, 5, &err), &err);
        assert_ok(vptq_gguf_write(&w, (char *)head + 5, sizeof head - 5, &err), &err);
        assert_ok(vptq_gguf_writer_commit(&w, &err), &err);
        assert_ok(vptq_gguf_open(path, NULL, &g, &err), &err);
        assert_ok(vptq_gguf_desc(&g, &back, &err), &err);
        expect_same_desc(&d, &back);
        vptq_gguf_release(&g);
        d.window_from = 1;
        assert_fails(vptq_gguf_put_desc(&keys, &d, "model", &err), VPTQ_E_UNSUPPORTED, &err,
                     "model: sliding attention begins at layer 1");
        vptq_gguf_keys_release(&keys);
    }
}

static void test_models_without_gguf_form(void **state)
{
    const char *const llama = "tests/golden/tiny_llama3";
    char tok[4096], out[4096];
    vptq_err err = {0};
    vtest_path(tok, sizeof tok, *state, "tok");
    vtest_path(out, sizeof out, *state, "out.gguf");
    put_small(tok, gpt2, small_merges);
    assert_fails(export(llama, out, NULL, VPTQ_F16, VPTQ_F16, NULL, &err), VPTQ_E_FORMAT, &err,
                 "pass --tokenizer FILE");
    assert_fails(export(llama, out, tok, VPTQ_F16, VPTQ_Q6_K, NULL, &err), VPTQ_E_UNSUPPORTED,
                 &err, "rows of 32 numbers, Q6_K needs a multiple of 256");
    static const vptq_dtype bad[] = {VPTQ_U8, VPTQ_F64, VPTQ_DTYPE_COUNT};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(export(llama, out, tok, bad[i], VPTQ_F16, NULL, &err), VPTQ_E_ARG, &err,
                     "expected F16, BF16, F32, Q4_0 to Q8_0 or Q2_K to Q6_K");
    assert_fails(export(QWEN2, out, tok, VPTQ_F16, VPTQ_F16, NULL, &err), VPTQ_E_UNSUPPORTED,
                 &err, "sliding attention begins at layer 1");
    assert_false(vptq_path_exists(out));
}

typedef struct walk {
    char tok[4096], out[4096];
} walk;

static vptq_status export_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    const walk *w = arg;
    return export("tests/golden/tiny_llama3", w->out, w->tok, VPTQ_F16, VPTQ_Q8_0, mem, err);
}

static void test_out_of_memory(void **state)
{
    walk w;
    vtest_path(w.tok, sizeof w.tok, *state, "tok");
    vtest_path(w.out, sizeof w.out, *state, "out.gguf");
    put_small(w.tok, gpt2, small_merges);
    vtest_oom_walk(export_counted, &w);
}

VTEST_MAIN(scratch_test(test_sentencepiece), scratch_test(test_llama3), scratch_test(test_qwen),
           scratch_test(test_vocabularies_without_gguf_form),
           scratch_test(test_merges_without_scores), scratch_test(test_steps_of_sentencepiece),
           scratch_test(test_models), scratch_test(test_descriptions),
           scratch_test(test_models_without_gguf_form), scratch_test(test_out_of_memory))
