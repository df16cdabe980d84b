/* Tests encoding and decoding: one small tokenizer per feature and per family against the ids
 * of the Python package `tokenizers` (tests/golden/make_tokenizer_steps.py), and bad input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vtok.h"

/* ---- features one by one ---- */

/* Copies an array of ids into want [1024]. */
static size_t take_ids(const json_t *ids, int32_t *want)
{
    size_t n = json_array_size(ids);
    assert_true(json_is_array(ids) && n <= 1024);
    for (size_t j = 0; j < n; j++)
        want[j] = (int32_t)json_integer_value(json_array_get(ids, j));
    return n;
}

static void check_case(const char *dir, const json_t *bases, const json_t *texts,
                       const json_t *c)
{
    char path[4096];
    vptq_err err = {0};
    vtok a, b;
    const char *name = json_string_value(json_object_get(c, "name"));
    json_t *tokenizer =
        json_deep_copy(json_object_get(bases, json_string_value(json_object_get(c, "base"))));
    vtok_apply(tokenizer, json_object_get(c, "change"));
    vtest_path(path, sizeof path, dir, "tokenizer.json");
    assert_ok(vptq_json_save(path, tokenizer, &err), &err);
    json_decref(tokenizer);
    vtok_open(&a, path);
    assert_ok(vptq_vocab_write_hf(&a.vocab, dir, &err), &err);
    vtok_open(&b, path);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *ids = json_array_get(json_object_get(c, "ids"), i);
        const char *text = json_string_value(json_array_get(texts, i));
        int32_t want[1024];
        char what[128];
        size_t n = take_ids(ids, want);
        (void)snprintf(what, sizeof what, "%s, text %zu", name, i);
        vtok_expect(&a, text, strlen(text), VPTQ_ENCODE_SPECIAL, want, n, what);
        const json_t *back = json_array_get(json_object_get(c, "decoded"), i);
        if (back)
            vtok_expect_text(&a, want, n, false, json_string_value(back),
                             json_string_length(back), what);
        (void)snprintf(what, sizeof what, "%s rewritten, text %zu", name, i);
        vtok_expect(&b, text, strlen(text), VPTQ_ENCODE_SPECIAL, want, n, what);
        if (back)
            vtok_expect_text(&b, want, n, false, json_string_value(back),
                             json_string_length(back), what);
    }
    vtok_close(&a);
    vtok_close(&b);
}

static void test_features(void **state)
{
    vptq_err err = {0};
    json_t *root = NULL;
    assert_ok(vptq_json_load("tests/golden/tokenizer_steps.json", 1 << 20, &root, &err), &err);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 30);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        char path[4096]; /* of the previous case */
        vtest_path(path, sizeof path, *state, "tokenizer_config.json");
        (void)remove(path);
        check_case(*state, json_object_get(root, "bases"), json_object_get(root, "texts"),
                   json_array_get(cases, i));
    }
    json_decref(root);
}

/* ---- families ---- */

/* Decoding id by id gives the same as decoding all at once. */
static void expect_stream(const vtok *k, const int32_t *ids, size_t n, bool special,
                          const char *what)
{
    vptq_err err = {0};
    vptq_buf whole, parts;
    bool start = true;
    vptq_buf_init(&whole, NULL);
    vptq_buf_init(&parts, NULL);
    assert_ok(vptq_tokenizer_decode(k->t, ids, n, &start, special, &whole, &err), &err);
    start = true;
    for (size_t i = 0; i < n; i++)
        assert_ok(vptq_tokenizer_decode(k->t, ids + i, 1, &start, special, &parts, &err), &err);
    if (parts.len != whole.len || memcmp(parts.data, whole.data, whole.len) != 0)
        fail_msg("%s: id by id '%s', at once '%s'", what, parts.data, whole.data);
    vptq_buf_release(&whole);
    vptq_buf_release(&parts);
}

static void check_family_row(const vtok *k, const json_t *row, const char *text, size_t len,
                             const char *what)
{
    static const char *const keys[2] = {"text", "shown"};
    int32_t want[1024];
    size_t n = take_ids(json_object_get(row, "plain"), want);
    vtok_expect(k, text, len, 0, want, n, what);
    n = take_ids(json_object_get(row, "ids"), want);
    vtok_expect(k, text, len, VPTQ_ENCODE_SPECIAL | VPTQ_ENCODE_BOS, want, n, what);
    for (int shown = 0; shown < 2; shown++) {
        const json_t *back = json_object_get(row, keys[shown]);
        vtok_expect_text(k, want, n, shown, json_string_value(back), json_string_length(back),
                         what);
        expect_stream(k, want, n, shown, what);
    }
}

static void check_family(const char *dir, const char *name, const json_t *family,
                         const json_t *texts)
{
    char path[4096], config[4096], what[128];
    vptq_err err = {0};
    vtok k[2];
    const json_t *rows = json_object_get(family, "rows");
    vtest_path(path, sizeof path, dir, "tokenizer.json");
    vtest_path(config, sizeof config, dir, "tokenizer_config.json");
    (void)remove(config); /* of the previous family */
    assert_ok(vptq_json_save(path, json_object_get(family, "tokenizer"), &err), &err);
    vtok_open(&k[0], path);
    assert_ok(vptq_vocab_write_hf(&k[0].vocab, dir, &err), &err);
    vtok_open(&k[1], path);
    assert_true(json_array_size(texts) > 20);
    assert_int_equal(json_array_size(rows), json_array_size(texts));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        for (int again = 0; again < 2; again++) {
            (void)snprintf(what, sizeof what, "%s%s, text %zu", name, again ? " rewritten" : "",
                           i);
            check_family_row(&k[again], json_array_get(rows, i), json_string_value(text),
                             json_string_length(text), what);
        }
    }
    vtok_close(&k[0]);
    vtok_close(&k[1]);
}

static void test_families(void **state)
{
    json_t *family;
    const char *name;
    size_t len = 0;
    char *text = vtest_read_file("tests/golden/tokenizer_families.json", &len);
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    free(text);
    assert_int_equal(json_object_size(json_object_get(root, "families")), 11);
    json_object_foreach(json_object_get(root, "families"), name, family)
        check_family(*state, name, family, json_object_get(root, "texts"));
    json_decref(root);
}

/* ---- any bytes ---- */

static void test_bytes_that_are_not_text(void **state)
{
    static const char *const bases[2] = {"bytes", "pieces"};
    static const char bad[] =
        "the \xff\xfe then\xc3\xa9 \xe2\x82 a\xed\xa0\x80 \xf4\x90\x80\x80"
        " \xc0\xaf\x00 in\xc3";
    for (int i = 0; i < 2; i++) {
        vtok k;
        vptq_ids ids;
        vtok_open_base(*state, &k, bases[i],
                       i == 0 ? "{\"normalizer\": {\"type\": \"NFC\"}}" : NULL);
        vptq_ids_init(&ids, NULL);
        vtok_encode(&k, bad, sizeof bad - 1, 0, &ids);
        vtok_expect_text(&k, ids.data, ids.count, false, bad, sizeof bad - 1, bases[i]);
        /* every byte alone, and pairs of bytes */
        for (int b = 0; b < 256; b++) {
            char two[2] = {(char)b, (char)(255 - b)};
            vtok_encode(&k, two, 1, 0, &ids);
            vtok_expect_text(&k, ids.data, ids.count, false, two, 1, bases[i]);
            vtok_encode(&k, two, 2, 0, &ids);
            vtok_expect_text(&k, ids.data, ids.count, false, two, 2, bases[i]);
        }
        vptq_ids_release(&ids);
        vtok_close(&k);
    }
    /* 0xff is symbol 255 of the byte alphabet, before and after other words */
    static const int32_t want[4] = {255, 256 + 1, 254, 'a'};
    vtok k;
    vtok_open_base(*state, &k, "bytes", NULL);
    vtok_expect(&k,
                "\xffthe\xfe"
                "a",
                6, 0, want, 4, "invalid bytes");
    vtok_close(&k);
}

/* ---- special tokens ---- */

static void test_special_tokens_in_text(void **state)
{
    static const int32_t as_special[] = {1, 260, 0};
    vtok k;
    vptq_ids ids;
    vtok_open_base(*state, &k, "pieces", NULL);
    vptq_ids_init(&ids, NULL);
    int32_t a = 0;
    vtok_encode(&k, "a", 1, 0, &ids);
    assert_int_equal(ids.count, 1);
    a = ids.data[0];
    vtok_encode(&k, "<s>a<unk>", 9, VPTQ_ENCODE_SPECIAL, &ids);
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.data[0], as_special[0]);
    assert_int_equal(ids.data[1], a);
    assert_int_equal(ids.data[2], as_special[2]);
    /* without the flag the same text is plain text and decodes unchanged */
    vtok_encode(&k, "<s>a<unk>", 9, 0, &ids);
    assert_true(ids.count > 5);
    for (size_t i = 0; i < ids.count; i++)
        assert_true(ids.data[i] > 2);
    vtok_expect_text(&k, ids.data, ids.count, false, "<s>a<unk>", 9, "plain");

    const int32_t three[3] = {1, a, 2};
    vtok_expect_text(&k, three, 3, true, "<s> a</s>", 9, "shown");
    vtok_expect_text(&k, three, 3, false, "a", 1, "hidden");
    vptq_ids_release(&ids);
    vtok_close(&k);
}

static void test_mistral_control_pieces(void **state)
{
    char path[4096];
    vtok k;
    vptq_ids ids;
    (void)state;
    if (!vtest_data(path, sizeof path, "tokenizers/mistral/tokenizer.model.v3"))
        skip();
    vtok_open(&k, path);
    assert_int_equal(k.vocab.count, 32768);
    vptq_ids_init(&ids, NULL);
    vtok_encode(&k, "[INST] Hi", 9, VPTQ_ENCODE_SPECIAL | VPTQ_ENCODE_BOS, &ids);
    assert_int_equal(ids.data[0], 1);
    assert_int_equal(ids.data[1], 3);
    vtok_encode(&k, "[INST] Hi", 9, 0, &ids);
    for (size_t i = 0; i < ids.count; i++)
        assert_true(ids.data[i] > 770);
    vtok_expect_text(&k, ids.data, ids.count, false, "[INST] Hi", 9, "as text");
    vptq_ids_release(&ids);
    vtok_close(&k);
}

static void test_demo_prompts(void **state)
{
    char path[4096], gguf[4096];
    vptq_err err = {0};
    json_t *root = NULL;
    vtok k;
    (void)state;
    if (!vtest_data(path, sizeof path, "golden/smollm2/expected.json") ||
        !vtok_demo(gguf, sizeof gguf))
        skip();
    static const char *const pairs[4][2] = {{"prompt", "prompt_ids"},
                                            {"chat_text", "chat_ids"},
                                            {"greedy_text", "greedy_ids"},
                                            {"chat_greedy_text", "chat_greedy_ids"}};
    assert_ok(vptq_json_load(path, 1 << 20, &root, &err), &err);
    vtok_open(&k, gguf);
    for (int p = 0; p < 4; p++) {
        const char *text = json_string_value(json_object_get(root, pairs[p][0]));
        const json_t *list = json_object_get(root, pairs[p][1]);
        int32_t want[256];
        size_t n = json_array_size(list);
        assert_true(n > 0 && n <= 256);
        for (size_t i = 0; i < n; i++)
            want[i] = (int32_t)json_integer_value(json_array_get(list, i));
        vtok_expect(&k, text, strlen(text), VPTQ_ENCODE_SPECIAL | VPTQ_ENCODE_BOS, want, n,
                    pairs[p][0]);
        vtok_expect_text(&k, want, n, true, text, strlen(text), pairs[p][0]);
    }
    json_decref(root);
    vtok_close(&k);
}

/* ---- sizes ---- */

/* One word of a quarter of a million bytes: quadratic work would not finish. */
static void test_long_words(void **state)
{
    enum { LONG = 1 << 18 };
    static const char *const bases[2] = {"bytes", "pieces"};
    static const char fill[4] = {'a', ' ', '\n', (char)0xff};
    char *text = malloc(LONG);
    assert_non_null(text);
    for (int i = 0; i < 2; i++) {
        vtok k;
        vptq_ids ids;
        vtok_open_base(*state, &k, bases[i], NULL);
        vptq_ids_init(&ids, NULL);
        for (int f = 0; f < 4; f++) {
            memset(text, fill[f], LONG);
            vtok_encode(&k, text, LONG, 0, &ids);
            vtok_expect_text(&k, ids.data, ids.count, false, text, LONG, "long");
        }
        vptq_ids_release(&ids);
        vtok_close(&k);
    }
    free(text);
}

static void test_backtracking_is_bounded(void **state)
{
    vtok k;
    vptq_ids ids;
    vptq_err err = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    vtok_open_base(*state, &k, "bytes",
                   "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
                   "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a|a)+(a|aa)+[^a]\"}, "
                   "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "
                   "\"add_prefix_space\": false, \"use_regex\": false}]}}");
    vptq_ids_init(&ids, NULL);
    assert_fails(vptq_tokenizer_encode(k.t, text, sizeof text, 0, &ids, &err), VPTQ_E_FORMAT,
                 &err, "steps, the last in the pattern '(a|a)+(a|aa)+[^a]'");
    vptq_ids_release(&ids);
    vtok_close(&k);
}

/* A script matches its own characters, not shared ones (U+3001), under each of its names. */
static void test_scripts(void **state)
{
    static const char *const names[] = {"Yi", "Yiii", "Han", "Hani", "^Latin"};
    static const char text[] = "\xE3\x80\x81!"; /* U+3001 */
    char change[512];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        vtok k;
        vptq_ids ids;
        snprintf(change, sizeof change,
                 "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
                 "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\p{%s}\"}, "
                 "\"behavior\": \"Removed\", \"invert\": false}, {\"type\": \"ByteLevel\", "
                 "\"add_prefix_space\": false, \"use_regex\": false}]}}",
                 names[i]);
        vtok_open_base(*state, &k, "bytes", change);
        vptq_ids_init(&ids, NULL);
        vtok_encode(&k, text, sizeof text - 1, 0, &ids);
        assert_int_equal(ids.count, names[i][0] == '^' ? 0 : 4);
        vptq_ids_release(&ids);
        vtok_close(&k);
    }
}

/* A match that remembers every character needs more than the machine's stack. */
static void test_deep_match(void **state)
{
    enum { DEEP = 1 << 14 };
    vtok k;
    vptq_ids ids;
    char *text = malloc(DEEP);
    assert_non_null(text);
    memset(text, 'a', DEEP);
    text[DEEP - 1] = '!';
    vtok_open_base(*state, &k, "bytes",
                   "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
                   "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?:a|b|(c))+\"}, "
                   "\"behavior\": \"Removed\", \"invert\": false}, {\"type\": \"ByteLevel\", "
                   "\"add_prefix_space\": false, \"use_regex\": false}]}}");
    vptq_ids_init(&ids, NULL);
    vtok_encode(&k, text, DEEP, 0, &ids);
    assert_int_equal(ids.count, 1);
    assert_int_equal(ids.data[0], '!');
    vptq_ids_release(&ids);
    vtok_close(&k);
    free(text);
}

/* ---- failures ---- */

static void test_refusals(void **state)
{
    vtok k;
    vptq_ids ids;
    vptq_err err = {0};
    vptq_buf b;
    char path[4096];
    vptq_vocab v;
    vptq_tokenizer *t = NULL;
    bool start = true;
    vptq_ids_init(&ids, NULL);
    vptq_buf_init(&b, NULL);
    vtok_open_base(*state, &k, "pieces",
                   "{\"model\": {\"byte_fallback\": false, \"unk_token\": null}}");
    assert_fails(vptq_tokenizer_encode(k.t, "a\xc3\xbc", 3, 0, &ids, &err), VPTQ_E_FORMAT, &err,
                 "neither a piece for byte 0xc3");
    const int32_t beyond[1] = {(int32_t)k.vocab.count}, below[1] = {-1};
    assert_fails(vptq_tokenizer_decode(k.t, beyond, 1, &start, true, &b, &err), VPTQ_E_ARG,
                 &err, "outside the vocabulary");
    assert_fails(vptq_tokenizer_decode(k.t, below, 1, &start, true, &b, &err), VPTQ_E_ARG, &err,
                 "-1");
    vtok_close(&k);

    /* an invalid pattern */
    vtok_open_base(*state, &k, "bytes", NULL);
    vtok_close(&k);
    vtest_path(path, sizeof path, *state, "tokenizer.json");
    assert_ok(vptq_vocab_read(path, 0, NULL, &v, &err), &err);
    v.splits[0].pattern = "(a";
    assert_fails(vptq_tokenizer_open(NULL, &v, &t, &err), VPTQ_E_FORMAT, &err, "'(a'");
    assert_null(t);
    vptq_vocab_release(&v);
    vptq_ids_release(&ids);
    vptq_buf_release(&b);
}

/* Groups that call themselves took minutes within the limit on backtracks. */
static void test_group_calls_are_refused(void **state)
{
    static const struct {
        const char *pattern;
        bool calls;
    } cases[] = {{"(a||((?1)))+\\R", true}, {"(a)(?-1)", true},       {"(?+1)(a)", true},
                 {"a(?R)?b", true},         {"a(?0)?", true},         {"(?<n>a)(?&n)", true},
                 {"(?P<n>a)(?P>n)", true},  {"(a)\\g<1>", true},      {"(a)\\g'1'", true},
                 {"(a|\\Q[\\E(?1))", true}, {"(a)\\\\(?1)", true},    {"(?#\\)(a(?1)?)", true},
                 {"(a)\\g{1}", false},      {"(?-i)a", false},        {"(a)(?(1)b)", false},
                 {"\\(?1", false},          {"(?P<n>a)(?P=n)", false}};
    vtok k;
    vtok_open_base(*state, &k, "bytes", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vptq_err err = {0};
        vptq_tokenizer *t = NULL;
        vptq_split split = {.kind = VPTQ_SPLIT_ISOLATED, .pattern = cases[i].pattern};
        vptq_vocab v = k.vocab;
        v.splits = &split;
        v.split_count = 1;
        if (cases[i].calls)
            assert_fails(vptq_tokenizer_open(NULL, &v, &t, &err), VPTQ_E_UNSUPPORTED, &err,
                         "calls a group, which is not supported");
        else
            assert_ok(vptq_tokenizer_open(NULL, &v, &t, &err), &err);
        vptq_tokenizer_close(t);
    }
    vtok_close(&k);
}

static vptq_status whole_run(void *arg, vptq_mem *mem, vptq_err *err)
{
    static const char text[] = "the  then <u> 123 e\xcc\x81\xff <s>in\n\n the the the the the";
    vptq_vocab v;
    vptq_tokenizer *t = NULL;
    vptq_ids ids;
    vptq_buf b;
    bool start = true;
    vptq_ids_init(&ids, mem);
    vptq_buf_init(&b, mem);
    vptq_status st = vptq_vocab_read(arg, 0, mem, &v, err);
    if (st)
        return st;
    VPTQ_TRY(vptq_tokenizer_open(&(vptq_ctx){.mem = mem}, &v, &t, err));
    VPTQ_TRY(vptq_tokenizer_encode(t, text, sizeof text - 1,
                                   VPTQ_ENCODE_SPECIAL | VPTQ_ENCODE_BOS, &ids, err));
    VPTQ_TRY(vptq_tokenizer_decode(t, ids.data, ids.count, &start, true, &b, err));
out:
    vptq_buf_release(&b);
    vptq_ids_release(&ids);
    vptq_tokenizer_close(t);
    vptq_vocab_release(&v);
    return st;
}

static void test_out_of_memory(void **state)
{
    static const char bytes[] =
        "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
        "\"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}, {\"type\": "
        "\"Split\", \"pattern\": {\"Regex\": \"\\\\p{Han}+|\\\\b\"}, \"behavior\": "
        "\"MergedWithNext\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
        "\"use_regex\": true}]}}";
    static const char pieces[] =
        "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, "
        "\"content\": \" \"}, \"pre_tokenizer\": {\"type\": \"Metaspace\"}}";
    char path[4096];
    vtest_path(path, sizeof path, *state, "tokenizer.json");
    for (int i = 0; i < 2; i++) {
        vtok k;
        vtok_open_base(*state, &k, i == 0 ? "bytes" : "pieces", i == 0 ? bytes : pieces);
        vtok_close(&k);
        assert_true(vtest_oom_walk(whole_run, path) > 20);
    }
}

VTEST_MAIN(scratch_test(test_features), scratch_test(test_families),
           scratch_test(test_bytes_that_are_not_text),
           scratch_test(test_special_tokens_in_text), scratch_test(test_mistral_control_pieces),
           scratch_test(test_demo_prompts), scratch_test(test_long_words),
           scratch_test(test_backtracking_is_bounded), scratch_test(test_scripts),
           scratch_test(test_deep_match), scratch_test(test_refusals),
           scratch_test(test_group_calls_are_refused), scratch_test(test_out_of_memory))
