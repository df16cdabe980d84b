/* Tests the reader of tokenizer.json and tokenizer_config.json. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/vvocab.h"

/* Appends to a text of n characters in a buffer of `size` bytes; returns the new length. */
static size_t put(char *text, size_t size, size_t n, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int k = vsnprintf(text + n, size - n, fmt, args);
    va_end(args);
    assert_true(k >= 0 && (size_t)k < size - n);
    return n + (size_t)k;
}

/* A small tokenizer.json with the given model fields and top-level fields. */
#define MODEL(vocab, merges, more)                                                             \
    "\"model\": {\"type\": \"BPE\", \"vocab\": {" vocab "}, \"merges\": [" merges "]" more "}"
#define ABC MODEL("\"a\": 0, \"b\": 1, \"ab\": 2", "\"a b\"", "")

/* ---- tokenizer.json ---- */

static void test_json_contents(void **state)
{
    vptq_vocab v;
    vvocab_accept_json(
        state,
        "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 6, \"content\": \"<s>\", "
        "\"special\": true}, {\"id\": 2, \"content\": \"ab\", \"lstrip\": true}], " MODEL(
            "\"a\": 0, \"b\": 1, \"ab\": 2, \"<0x0A>\": 3, \"aa\": 4",
            "[\"a\", \"b\"], \"a a\"",
            ", \"byte_fallback\": true, \"fuse_unk\": true, \"ignore_merges\": true, "
            "\"unk_token\": \"b\"") "}",
        &v);
    assert_int_equal(v.kind, VPTQ_VOCAB_SPM_BPE);
    assert_int_equal(v.count, 7);
    assert_string_equal(v.pieces[4].text, "aa");
    assert_int_equal(v.pieces[0].type, VPTQ_PIECE_NORMAL);
    assert_int_equal(v.pieces[1].type, VPTQ_PIECE_UNKNOWN);
    assert_int_equal(v.pieces[2].type, VPTQ_PIECE_USER);
    assert_int_equal(v.pieces[3].type, VPTQ_PIECE_BYTE);
    assert_int_equal(v.pieces[5].type, VPTQ_PIECE_UNUSED); /* an id without a piece */
    assert_int_equal(v.pieces[5].len, 0);
    assert_int_equal(v.pieces[6].type, VPTQ_PIECE_CONTROL);
    assert_int_equal(v.unk, 1);
    assert_int_equal(v.bos, -1);
    assert_false(v.by_score);
    assert_true(v.byte_fallback && v.fuse_unk && v.ignore_merges);
    assert_int_equal(v.merge_count, 2);
    assert_int_equal(v.merges[0].left, 0);
    assert_int_equal(v.merges[0].right, 1);
    assert_int_equal(v.merges[0].result, 2);
    assert_int_equal(v.merges[1].result, 4);
    assert_int_equal(v.added_count, 2);
    assert_true(v.added[0].special && !v.added[0].normalized && !v.added[0].lstrip);
    assert_true(!v.added[1].special && v.added[1].normalized && v.added[1].lstrip);
    vptq_vocab_release(&v);
}

static void test_json_template_and_config(void **state)
{
    static const char json[] =
        "{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}, {\"id\": 4, "
        "\"content\": \"</s>\", \"special\": true}], \"post_processor\": {\"type\": "
        "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"B\"}}, "
        "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"B\": {\"ids\": [3]}}}, " ABC
        "}";
    static const char config[] =
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"add_bos_token\": "
        "false, \"add_eos_token\": true, \"chat_template\": \"{{ x }}\", "
        "\"model_max_length\": 1000000000000000019884624838656}";
    char path[4096];
    vptq_vocab v;
    vptq_err err = {0};
    vvocab_accept_json(state, json, &v);
    assert_true(v.add_bos && !v.add_eos);
    assert_int_equal(v.bos, 3);
    assert_int_equal(v.eos, -1);
    vptq_vocab_release(&v);

    vtest_path(path, sizeof path, *state, "tokenizer_config.json");
    vtest_write_file(path, config, sizeof config - 1);
    vvocab_accept_json(state, json, &v);
    assert_true(!v.add_bos && v.add_eos);
    assert_int_equal(v.bos, 3);
    assert_int_equal(v.eos, 4);
    assert_string_equal(v.chat_template, "{{ x }}");
    vptq_vocab_release(&v);

    /* reads a directory as well */
    assert_ok(vptq_vocab_read(*state, 0, NULL, &v, &err), &err);
    vptq_vocab_release(&v);

    /* the template's own token takes precedence */
    static const char other[] = "{\"bos_token\": \"</s>\"}";
    vtest_write_file(path, other, sizeof other - 1);
    vvocab_accept_json(state, json, &v);
    assert_true(v.add_bos && v.bos == 3);
    vptq_vocab_release(&v);

    static const char *const bad[4][2] = {
        {"{\"bos_token\": \"nobody\"}", "'nobody' is not a token"},
        {"{\"add_eos_token\": true}", "names none"},
        {"{\"add_eos_token\": 1}", "'add_eos_token' is"},
        {"[]", "tokenizer_config.json: not an object"},
    };
    for (int i = 0; i < 4; i++) {
        vtest_write_file(path, bad[i][0], strlen(bad[i][0]));
        vvocab_expect_json(state, json, VPTQ_E_FORMAT, bad[i][1]);
    }
}

static void test_json_refusals(void **state)
{
    static const struct {
        const char *text, *part;
    } format[] = {
        {"", "not valid JSON"},
        {"[]", "not an object"},
        {"{}", "model is not an object"},
        {"{\"model\": {\"vocab\": {}, \"merges\": []}}", "vocabulary is empty"},
        {"{\"model\": {\"vocab\": {\"a\": 0}}}", "model.merges is not an array"},
        {"{\"model\": {\"merges\": []}}", "model.vocab is not an object"},
        {"{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}}", "duplicate"},
        {"{" MODEL("\"a\": 0, \"b\": 0", "", "") "}", "id 0 belongs to 'a' and 'b'"},
        {"{" MODEL("\"a\": \"0\"", "", "") "}", "'a' is not a number"},
        {"{" MODEL("\"a\": -1", "", "") "}", "'a' is not a number"},
        {"{" MODEL("\"a\": 99999999999", "", "") "}", "99999999999 is out of range"},
        {"{" MODEL("\"a\": 70000", "", "") "}", "70000 is out of range"},
        {"{" MODEL("\"a\": 0", "\"a b\"", "") "}", "merge 0 names 'b'"},
        {"{" MODEL("\"a\": 0", "\"a a\"", "") "}", "merge 0 names 'aa'"},
        {"{" MODEL("\"a\": 0", "\"a\"", "") "}", "merge 0 is not two pieces"},
        {"{" MODEL("\"a\": 0", "\"a a a\"", "") "}", "merge 0 is not two pieces"},
        {"{" MODEL("\"a\": 0", "[\"a\"]", "") "}", "merge 0 is not two pieces"},
        {"{" MODEL("\"a\": 0", "7", "") "}", "merge 0 is not two pieces"},
        {"{" MODEL("\"a\": 0", "", ", \"unk_token\": \"u\"") "}",
         "unk_token 'u' is not a token"},
        {"{" MODEL("\"a\": 0", "", ", \"byte_fallback\": 1") "}", "'byte_fallback' is"},
        {"{\"added_tokens\": {}, " ABC "}", "added_tokens is not an array"},
        {"{\"added_tokens\": [7], " ABC "}", "added token 0 has no content"},
        {"{\"added_tokens\": [{\"content\": \"x\"}], " ABC "}", "added token 0 has no"},
        {"{\"added_tokens\": [{\"content\": \"x\", \"id\": 1}], " ABC "}",
         "id 1 belongs to 'b' and 'x'"},
        {"{\"added_tokens\": [{\"content\": \"a\", \"id\": 9}], " ABC "}",
         "pieces 0 and 9 are both 'a'"},
        {"{\"added_tokens\": [{\"content\": \"\", \"id\": 9}], " ABC "}", "has 0 bytes"},
        {"{\"normalizer\": 3, " ABC "}", "normalizer is not an object"},
        {"{\"normalizer\": {}, " ABC "}", "'type' is missing"},
        {"{\"normalizer\": {\"type\": \"Sequence\"}, " ABC "}", "no array 'normalizers'"},
        {"{\"normalizer\": {\"type\": \"Prepend\"}, " ABC "}", "'prepend' is missing"},
        {"{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, "
         "\"content\": \"x\"}, " ABC "}",
         "pattern has 0 bytes, expected between 1 and 65535"},
        {"{\"post_processor\": {\"type\": \"TemplateProcessing\"}, " ABC "}",
         "no array 'single'"},
        {"{\"pre_tokenizer\": {\"type\": \"CharDelimiterSplit\", \"delimiter\": \"ab\"}, " ABC
         "}",
         "delimiter 'ab' is not one character"},
        {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
         "[{\"SpecialToken\": {\"id\": \"B\"}}]}, " ABC "}",
         "'B' is not one id"},
    };
    for (size_t i = 0; i < sizeof format / sizeof format[0]; i++)
        vvocab_expect_json(state, format[i].text, VPTQ_E_FORMAT, format[i].part);
}

static void test_json_unsupported(void **state)
{
#define PRE(step) "{\"pre_tokenizer\": " step ", " ABC "}"
#define SPLIT(pattern, behavior)                                                               \
    PRE("{\"type\": \"Split\", \"pattern\": " pattern ", \"behavior\": \"" behavior "\"}")
    static const struct {
        const char *text, *part;
    } unsupported[] = {
        {"{\"model\": {\"type\": \"Unigram\"}}", "model type 'Unigram'"},
        {"{\"model\": {\"type\": \"WordPiece\"}}", "model type 'WordPiece'"},
        {"{" MODEL("\"a\": 0", "", ", \"dropout\": 0.1") "}", "dropout 0.1"},
        {"{" MODEL("\"a\": 0", "", ", \"end_of_word_suffix\": \"</w>\"") "}",
         "end_of_word_suffix '</w>'"},
        {"{" MODEL("\"a\": 0", "", ", \"continuing_subword_prefix\": \"##\"") "}",
         "continuing_subword_prefix '##'"},
        {"{\"normalizer\": {\"type\": \"BertNormalizer\"}, " ABC "}",
         "normalizer 'BertNormalizer'"},
        {"{\"normalizer\": {\"type\": \"ByteLevel\"}, " ABC "}", "normalizer 'ByteLevel'"},
        {"{\"normalizer\": {\"type\": \"Precompiled\"}, " ABC "}", "'Precompiled'"},
        {PRE("{\"type\": \"UnicodeScripts\"}"), "pre-tokenizer 'UnicodeScripts'"},
        {PRE("{\"type\": \"Punctuation\", \"behavior\": \"Gone\"}"), "behavior 'Gone'"},
        {PRE("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, "
             "{\"type\": \"Digits\"}]}"),
         "after ByteLevel, 'Digits'"},
        {PRE("{\"type\": \"Metaspace\", \"replacement\": \"_\"}"), "replacement '_'"},
        {PRE("{\"type\": \"Metaspace\", \"prepend_scheme\": \"last\"}"), "'last'"},
        {SPLIT("{\"String\": \"a\"}", "MergedWithBoth"), "'MergedWithBoth'"},
        {SPLIT("{\"Regex\": \"[[:print:]]\"}", "Isolated"), "pattern '[[:print:]]'"},
        {SPLIT("{\"Regex\": \"[^[:^digit:]]\"}", "Isolated"), "pattern '[^[:^digit:]]'"},
        {SPLIT("{\"Regex\": \"[a\\\\W]\"}", "Isolated"), "pattern '[a\\W]'"},
        {SPLIT("{\"Regex\": \"\\\\p{N}{1,3}+\"}", "Isolated"), "pattern '\\p{N}{1,3}+'"},
        {SPLIT("{\"Regex\": \"a{2}?\"}", "Isolated"), "pattern 'a{2}?'"},
        {SPLIT("{\"Regex\": \"[a-z&&[^b]]\"}", "Isolated"), "pattern '[a-z&&[^b]]'"},
        {SPLIT("{\"Regex\": \"[a[bc]]\"}", "Isolated"), "pattern '[a[bc]]'"},
        {SPLIT("{\"Regex\": \"\\\\h+\"}", "Isolated"), "pattern '\\h+'"},
        {SPLIT("{\"Regex\": \"(?im:a.b)\"}", "Isolated"), "pattern '(?im:a.b)'"},
        {"{\"decoder\": {\"type\": \"WordPiece\"}, " ABC "}", "decoder 'WordPiece'"},
        {"{\"decoder\": {\"type\": \"ByteLevel\"}, " ABC "}", "decoder 'ByteLevel"},
        {"{\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 2}, " ABC "}",
         "Strip of ' '"},
        {"{\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 1}, " ABC "}",
         "Strip before Fuse"},
        {"{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, "
         "{\"type\": \"Metaspace\"}]}, " ABC "}",
         "Metaspace after Fuse"},
        {"{\"decoder\": {\"type\": \"CTC\"}, " ABC "}", "decoder 'CTC'"},
        {"{\"decoder\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}, "
         "\"content\": \" \"}, " ABC "}",
         "Replace of 'x'"},
        {"{\"post_processor\": {\"type\": \"BertProcessing\"}, " ABC "}", "'BertProcessing'"},
        {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}, " ABC "}",
         "template without 'a text'"},
    };
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        vvocab_expect_json(state, unsupported[i].text, VPTQ_E_UNSUPPORTED, unsupported[i].part);

    /* escapes and class names are not mistaken for those */
    vptq_vocab v;
    vvocab_accept_json(
        state,
        SPLIT("{\"Regex\": \"[[:alpha:]\\\\[&]|\\\\\\\\h|(?i:m)|[]a]|\\\\p{L}+?|a{2,}?\"}",
              "Isolated"),
        &v);
    vptq_vocab_release(&v);
#undef SPLIT
#undef PRE
}

static void test_json_depth_and_size(void **state)
{
    enum { DEEP = 10000, LONG = 3000 };
    const size_t size = 2 * DEEP + 64;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, '[', DEEP);
    text[DEEP] = 0;
    vvocab_expect_json(state, text, VPTQ_E_FORMAT, "not valid JSON");

    /* nested Sequences */
    size_t n = put(text, size, 0, "{\"normalizer\": ");
    for (int i = 0; i < 20; i++)
        n = put(text, size, n, "{\"type\": \"Sequence\", \"normalizers\": [");
    n = put(text, size, n, "{\"type\": \"NFC\"}");
    for (int i = 0; i < 20; i++)
        n = put(text, size, n, "]}");
    (void)put(text, size, n, ", " ABC "}");
    vvocab_expect_json(state, text, VPTQ_E_UNSUPPORTED, "nested deeply");

    /* too many steps */
    n = put(text, size, 0, "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
    for (int i = 0; i < 40; i++)
        n = put(text, size, n, "%s{\"type\": \"NFC\"}", i ? "," : "");
    (void)put(text, size, n, "]}, " ABC "}");
    vvocab_expect_json(state, text, VPTQ_E_UNSUPPORTED, "more than 32 steps");

    /* an overlong piece */
    n = put(text, size, 0, "{\"model\": {\"merges\": [], \"vocab\": {\"");
    memset(text + n, 'x', LONG);
    (void)put(text, size, n + LONG, "\": 0}}}");
    vvocab_expect_json(state, text, VPTQ_E_FORMAT, "piece 0 has 3000 bytes");
    free(text);
}

VTEST_MAIN(scratch_test(test_json_contents), scratch_test(test_json_template_and_config),
           scratch_test(test_json_refusals), scratch_test(test_json_unsupported),
           scratch_test(test_json_depth_and_size))
