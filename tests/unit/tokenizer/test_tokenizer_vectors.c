/* Tests encoding and decoding against published vectors, and tokenizer files that must agree
 * with each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "tests/support/vtok.h"

/* ---- published vectors ---- */

static void check_vectors(const vtok *k, const vtok_vectors *v, const char *path)
{
    for (size_t i = 0; i < v->count; i++) {
        char what[4200];
        (void)snprintf(what, sizeof what, "%s, text %zu", path, i);
        vtok_expect(k, v->of[i].text, v->of[i].len, 0, v->of[i].ids, v->of[i].n, what);
        vtok_expect_text(k, v->of[i].ids, v->of[i].n, false, v->of[i].text, v->of[i].len, what);
    }
}

static void vectors_of(const char *name, const char *path)
{
    vtok k;
    vtok_vectors v;
    if (!vtok_vectors_load(&v, name))
        skip();
    assert_int_equal(v.count, 47);
    vtok_open(&k, path);
    check_vectors(&k, &v, path);
    vtok_close(&k);
    vtok_vectors_free(&v);
}

static void test_vectors_llama2(void **state)
{
    static const char *const files[3] = {"tokenizers/llama2/tokenizer.model",
                                         "tokenizers/llama2/tokenizer.bin",
                                         "golden/gguf/ggml-vocab-llama-spm.gguf"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char path[4096];
        if (!vtest_data(path, sizeof path, files[i]))
            skip();
        vectors_of("llama-spm", path);
    }
}

static void test_vectors_llama3_json(void **state)
{
    if (!vtok_unpack(*state, "tokenizers/llama3/tokenizer.json.xz",
                     "tokenizers/llama3/tokenizer_config.json.xz"))
        skip();
    vectors_of("llama-bpe", *state);
}

static void test_vectors_llama3_ranks(void **state)
{
    char path[4096];
    (void)state;
    if (!vtest_data(path, sizeof path, "tokenizers/llama3/tokenizer.model"))
        skip();
    vectors_of("llama-bpe", path);
}

static void test_vectors_qwen(void **state)
{
    if (!vtok_unpack(*state, "tokenizers/qwen3/tokenizer.json.xz",
                     "tokenizers/qwen3/tokenizer_config.json"))
        skip();
    vectors_of("qwen2", *state);
}

static void test_llama2_prompts(void **state)
{
    char path[4096], model[4096];
    vptq_err err = {0};
    json_t *root = NULL;
    vtok k;
    (void)state;
    if (!vtest_data(path, sizeof path, "golden/llama2_prompt_tokens.json") ||
        !vtest_data(model, sizeof model, "tokenizers/llama2/tokenizer.model"))
        skip();
    assert_ok(vptq_json_load(path, 1 << 20, &root, &err), &err);
    const json_t *list = json_object_get(root, "cases");
    vtok_open(&k, model);
    assert_int_equal(json_array_size(list), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *ids = json_object_get(json_array_get(list, i), "ids");
        const char *text = json_string_value(json_object_get(json_array_get(list, i), "text"));
        int32_t want[256];
        size_t n = json_array_size(ids);
        for (size_t j = 0; j < n && j < 256; j++)
            want[j] = (int32_t)json_integer_value(json_array_get(ids, j));
        vtok_expect(&k, text, strlen(text), VPTQ_ENCODE_BOS, want, n, text);
        vtok_expect_text(&k, want, n, false, text, strlen(text), text);
    }
    vtok_close(&k);
    json_decref(root);
}

/* ---- files with the same tokenizer ---- */

static void compare_on_text(const vtok *a, const vtok *b, const char *name, size_t limit)
{
    char path[4096];
    size_t size = 0;
    if (!vtest_data(path, sizeof path, name))
        skip();
    char *text = vtest_read_file(path, &size);
    if (size > limit)
        size = limit;
    vtok_expect_same(a, b, text, size, VPTQ_ENCODE_BOS, name);
    free(text);
}

static void test_stories_tokenizers_agree(void **state)
{
    char bin[4096], hf[4096], path[4096];
    vtok a, b;
    vptq_err err = {0};
    json_t *root = NULL;
    (void)state;
    if (!vtest_data(bin, sizeof bin, "models/stories260K/tok512.bin") ||
        !vtest_data(hf, sizeof hf, "models/stories260K-hf") ||
        !vtest_data(path, sizeof path, "text/tinystories/tiny.utf8"))
        skip();
    vtok_open(&a, bin);
    vtok_open(&b, hf);
    assert_int_equal(a.vocab.count, 512);
    compare_on_text(&a, &b, "text/tinystories/tiny.utf8", SIZE_MAX);

    /* the whole file has 134,727 ids and begins as expected.json's first window */
    size_t size = 0;
    char *text = vtest_read_file(path, &size);
    vptq_ids ids;
    vptq_ids_init(&ids, NULL);
    vtok_encode(&a, text, size, VPTQ_ENCODE_BOS, &ids);
    assert_int_equal(ids.count, 134727);
    free(text);

    if (vtest_data(path, sizeof path, "golden/baseline_f64.json")) {
        assert_ok(vptq_json_load(path, 1 << 20, &root, &err), &err);
        const json_t *first =
            json_object_get(json_object_get(root, "stories260K"), "first_story_ids");
        assert_true(json_array_size(first) > 50);
        for (size_t i = 0; i < json_array_size(first); i++)
            assert_int_equal(ids.data[i], json_integer_value(json_array_get(first, i)));
        json_decref(root);
    }
    vptq_ids_release(&ids);
    vtok_close(&a);
    vtok_close(&b);
}

/* A tokenizer written by vptq_vocab_write_hf encodes like its source. */
static void check_rewritten(const char *source, const char *dir, const char *vectors)
{
    vtok a, b;
    vtok_vectors v;
    vptq_err err = {0};
    vtok_open(&a, source);
    assert_ok(vptq_vocab_write_hf(&a.vocab, dir, &err), &err);
    vtok_open(&b, dir);
    assert_int_equal(a.vocab.bos, b.vocab.bos);
    assert_int_equal(a.vocab.eos, b.vocab.eos);
    assert_int_equal(a.vocab.add_bos, b.vocab.add_bos);
    assert_int_equal(a.vocab.add_eos, b.vocab.add_eos);
    if (!vtok_vectors_load(&v, vectors))
        skip();
    for (size_t i = 0; i < v.count; i++)
        vtok_expect_same(&b, &a, v.of[i].text, v.of[i].len,
                         VPTQ_ENCODE_BOS | VPTQ_ENCODE_SPECIAL, source);
    compare_on_text(&b, &a, "text/wikitext2/wiki.test.raw", 40000);
    compare_on_text(&b, &a, "text/calib/c4.utf8", 40000);
    char run[130];
    for (size_t n = 1; n < sizeof run; n++) { /* overlapping merges */
        memset(run, ' ', n);
        vtok_expect_same(&b, &a, run, n, 0, "spaces");
        memset(run, '=', n);
        vtok_expect_same(&b, &a, run, n, 0, "rules");
    }
    vtok_vectors_free(&v);
    vtok_close(&a);
    vtok_close(&b);
}

static void test_rewritten_spm(void **state)
{
    static const char *const files[5] = {
        "tokenizers/llama2/tokenizer.model", "tokenizers/mistral/tokenizer.model.v1",
        "tokenizers/mistral/tokenizer.model.v3", "golden/gguf/ggml-vocab-llama-spm.gguf",
        "models/stories260K/tok512.bin"};
    for (int i = 0; i < 5; i++) {
        char path[4096];
        if (!vtest_data(path, sizeof path, files[i]))
            skip();
        check_rewritten(path, *state, "llama-spm");
    }
}

static void test_rewritten_ranks(void **state)
{
    char path[4096];
    if (!vtest_data(path, sizeof path, "tokenizers/llama3/tokenizer.model"))
        skip();
    check_rewritten(path, *state, "llama-bpe");
}

static void test_rewritten_json(void **state)
{
    if (!vtok_unpack(*state, "tokenizers/qwen3/tokenizer.json.xz",
                     "tokenizers/qwen3/tokenizer_config.json"))
        skip();
    check_rewritten(*state, *state, "qwen2"); /* read completely before it is replaced */
}

static void test_rewritten_demo(void **state)
{
    char path[4096];
    if (!vtok_demo(path, sizeof path))
        skip();
    check_rewritten(path, *state, "qwen2");
}

VTEST_MAIN(scratch_test(test_vectors_llama2), scratch_test(test_vectors_llama3_json),
           scratch_test(test_vectors_llama3_ranks), scratch_test(test_vectors_qwen),
           scratch_test(test_llama2_prompts), scratch_test(test_stories_tokenizers_agree),
           scratch_test(test_rewritten_spm), scratch_test(test_rewritten_ranks),
           scratch_test(test_rewritten_json), scratch_test(test_rewritten_demo))
