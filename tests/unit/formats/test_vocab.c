/* Tests the readers of vocabularies: what they accept, and what they refuse. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "tests/support/vgguf.h"
#include "tests/support/vtok.h"

#define META "\xE2\x96\x81"

/* ---- helpers ---- */

static vptq_status read_bytes(void **state, const char *name, const void *data, size_t n,
                              vptq_vocab *v, vptq_err *err)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, name);
    vtest_write_file(path, data, n);
    return vptq_vocab_read(path, 0, NULL, v, err);
}

#define expect_bytes(state, name, data, n, code, part)                                         \
    do {                                                                                       \
        vptq_vocab refused_;                                                                   \
        vptq_err refused_err_ = {0};                                                           \
        assert_fails(read_bytes(state, name, data, n, &refused_, &refused_err_), code,         \
                     &refused_err_, part);                                                     \
    } while (0)

#define expect_json(state, text, code, part)                                                   \
    expect_bytes(state, "tokenizer.json", text, strlen(text), code, part)

static void accept_json(void **state, const char *text, vptq_vocab *v)
{
    vptq_err err = {0};
    assert_ok(read_bytes(state, "tokenizer.json", text, strlen(text), v, &err), &err);
}

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
    accept_json(
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
    accept_json(state, json, &v);
    assert_true(v.add_bos && !v.add_eos);
    assert_int_equal(v.bos, 3);
    assert_int_equal(v.eos, -1);
    vptq_vocab_release(&v);

    vtest_path(path, sizeof path, *state, "tokenizer_config.json");
    vtest_write_file(path, config, sizeof config - 1);
    accept_json(state, json, &v);
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
    accept_json(state, json, &v);
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
        expect_json(state, json, VPTQ_E_FORMAT, bad[i][1]);
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
         "pattern is empty"},
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
        expect_json(state, format[i].text, VPTQ_E_FORMAT, format[i].part);
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
        expect_json(state, unsupported[i].text, VPTQ_E_UNSUPPORTED, unsupported[i].part);

    /* escapes and class names are not mistaken for those */
    vptq_vocab v;
    accept_json(
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
    expect_json(state, text, VPTQ_E_FORMAT, "not valid JSON");

    /* nested Sequences */
    size_t n = put(text, size, 0, "{\"normalizer\": ");
    for (int i = 0; i < 20; i++)
        n = put(text, size, n, "{\"type\": \"Sequence\", \"normalizers\": [");
    n = put(text, size, n, "{\"type\": \"NFC\"}");
    for (int i = 0; i < 20; i++)
        n = put(text, size, n, "]}");
    (void)put(text, size, n, ", " ABC "}");
    expect_json(state, text, VPTQ_E_UNSUPPORTED, "nested deeply");

    /* too many steps */
    n = put(text, size, 0, "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
    for (int i = 0; i < 40; i++)
        n = put(text, size, n, "%s{\"type\": \"NFC\"}", i ? "," : "");
    (void)put(text, size, n, "]}, " ABC "}");
    expect_json(state, text, VPTQ_E_UNSUPPORTED, "more than 32 steps");

    /* an overlong piece */
    n = put(text, size, 0, "{\"model\": {\"merges\": [], \"vocab\": {\"");
    memset(text + n, 'x', LONG);
    (void)put(text, size, n + LONG, "\": 0}}}");
    expect_json(state, text, VPTQ_E_FORMAT, "piece 0 has 3000 bytes");
    free(text);
}

/* ---- SentencePiece ---- */

typedef struct proto {
    uint8_t data[4096];
    size_t n;
} proto;

static void p_varint(proto *p, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        p->data[p->n++] = (uint8_t)(x | 0x80);
    p->data[p->n++] = (uint8_t)x;
}

static void p_number(proto *p, uint32_t field, uint64_t x)
{
    p_varint(p, field << 3);
    p_varint(p, x);
}

static void p_bytes(proto *p, uint32_t field, const void *data, size_t n)
{
    p_varint(p, field << 3 | 2);
    p_varint(p, n);
    if (n > 0)
        memcpy(p->data + p->n, data, n);
    p->n += n;
}

static void p_piece(proto *p, const char *text, float score, int type)
{
    proto m = {.n = 0};
    p_bytes(&m, 1, text, strlen(text));
    p_varint(&m, 2 << 3 | 5);
    memcpy(m.data + m.n, &score, 4);
    m.n += 4;
    if (type)
        p_number(&m, 3, (uint64_t)type);
    p_bytes(p, 1, m.data, m.n);
}

static void small_spm(proto *p, uint64_t model_type)
{
    proto trainer = {.n = 0};
    p->n = 0;
    p_piece(p, "<unk>", 0, VPTQ_PIECE_UNKNOWN);
    p_piece(p, "<s>", 0, VPTQ_PIECE_CONTROL);
    p_piece(p, META, -3, 0);
    p_piece(p, "a", -2, 0);
    p_piece(p, META "a", -1, VPTQ_PIECE_NORMAL);
    p_piece(p, META "<u>", 0, VPTQ_PIECE_USER);
    p_number(&trainer, 3, model_type);
    p_number(&trainer, 42, UINT64_MAX); /* eos_id = -1 */
    p_bytes(p, 2, trainer.data, trainer.n);
}

static void test_spm(void **state)
{
    proto p;
    vptq_vocab v;
    vptq_err err = {0};
    small_spm(&p, 2);
    assert_ok(read_bytes(state, "t.model", p.data, p.n, &v, &err), &err);
    assert_int_equal(v.count, 6);
    assert_int_equal(v.kind, VPTQ_VOCAB_SPM_BPE);
    assert_string_equal(v.pieces[4].text, META "a");
    assert_true(v.pieces[4].score == -1);
    assert_int_equal(v.unk, 0);
    assert_int_equal(v.bos, 1);
    assert_int_equal(v.eos, -1);
    assert_true(v.by_score && v.add_bos && !v.add_eos && !v.byte_fallback && v.strip_start);
    assert_int_equal(v.norm_count, 4); /* two of remove_extra_whitespaces, prefix, escape */
    assert_int_equal(v.added_count, 2);
    assert_string_equal(v.added[1].text, " <u>");

    /* default normalizer: removes spaces at the ends, collapses runs */
    static const int32_t want[4] = {4, 4, 5, 4};
    vtok k = {.vocab = v};
    assert_ok(vptq_tokenizer_open(&k.vocab, NULL, &k.t, &err), &err);
    vtok_expect(&k, "  a   a <u>a ", 13, 0, want, 4, "squeezed");
    vtok_close(&k);
}

static void refuse_spm(void **state, const proto *p, vptq_status code, const char *part)
{
    expect_bytes(state, "t.model", p->data, p->n, code, part);
}

static void test_spm_refusals(void **state)
{
    proto p, normal = {.n = 0};
    small_spm(&p, 1);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "type unigram");
    small_spm(&p, 77);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "type unknown");
    small_spm(&p, 2);
    p_piece(&p, "a", 0, 0);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "pieces 3 and 6 are both 'a'");
    small_spm(&p, 2);
    p_piece(&p, "", 0, 0);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "piece 6 has no text");
    small_spm(&p, 2);
    p_piece(&p, "\xff", 0, 0);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "piece 6 is not valid UTF-8");
    small_spm(&p, 2);
    p_piece(&p, "b", 0, 9);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "piece 6 has the type 9");
    small_spm(&p, 2);
    p_bytes(&normal, 1, "nmt_nfkc", 8);
    p_bytes(&normal, 2, "xyz", 3);
    p_bytes(&p, 3, normal.data, normal.n);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "normalizer 'nmt_nfkc'");
    small_spm(&p, 2);
    normal.n = 0;
    p_number(&normal, 5, 0);
    p_bytes(&p, 3, normal.data, normal.n);
    refuse_spm(state, &p, VPTQ_E_UNSUPPORTED, "escape_whitespaces");
    small_spm(&p, 2);
    normal.n = 0;
    p_number(&normal, 41, 600);
    p_bytes(&p, 2, normal.data, normal.n);
    refuse_spm(state, &p, VPTQ_E_FORMAT, "BOS id is 600");

    expect_bytes(state, "t.model", "", 0, VPTQ_E_FORMAT, "empty");
    expect_bytes(state, "t.model", "\x12\x00", 2, VPTQ_E_FORMAT, "empty"); /* no pieces */
    expect_bytes(state, "t.model", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11,
                 VPTQ_E_FORMAT, "invalid protobuf field");
    expect_bytes(state, "t.model", "\x0b\x01\x01\x01\x01", 5, VPTQ_E_FORMAT,
                 "invalid protobuf field");
    /* a text longer than its piece */
    expect_bytes(state, "t.model", "\x0a\x03\x0a\x09xyzabcdefgh", 14, VPTQ_E_FORMAT,
                 "invalid protobuf field");
}

/* Cut anywhere and with any byte changed, a file gives an error or a vocabulary. */
static void test_spm_damage(void **state)
{
    proto p, q;
    vptq_vocab v;
    vptq_err err = {0};
    small_spm(&p, 2);
    for (size_t n = 0; n < p.n; n++) {
        vptq_status st = read_bytes(state, "t.model", p.data, n, &v, &err);
        assert_true(st == VPTQ_E_FORMAT || st == VPTQ_E_UNSUPPORTED);
    }
    for (size_t i = 0; i < p.n; i++) {
        q = p;
        q.data[i] ^= 0xA5;
        if (!read_bytes(state, "t.model", q.data, q.n, &v, &err))
            vptq_vocab_release(&v);
    }
}

/* ---- tiktoken ---- */

static void test_ranks_refusals(void **state)
{
    enum { LINES = 128000 };
    const size_t size = (size_t)LINES * 24;
    char *text = malloc(size);
    size_t n = 0, second = 0;
    assert_non_null(text);
    expect_bytes(state, "t.model", "IQ== 0\nIg== 1\n", 14, VPTQ_E_UNSUPPORTED,
                 "2 tiktoken ranks");
    for (uint32_t i = 0; i < LINES; i++) { /* four characters: three bytes of a number */
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        if (i == 1)
            second = n;
        n = put(text, size, n, "%c%c%c%c %u\n", digits[i >> 18 & 63], digits[i >> 12 & 63],
                digits[i >> 6 & 63], digits[i & 63], i);
    }
    vptq_vocab v;
    vptq_err err = {0};
    assert_ok(read_bytes(state, "t.model", text, n, &v, &err), &err);
    assert_int_equal(v.count, 128256);
    assert_string_equal(v.pieces[128000].text, "<|begin_of_text|>");
    assert_string_equal(v.pieces[128009].text, "<|eot_id|>");
    assert_string_equal(v.pieces[128255].text, "<|reserved_special_token_250|>");
    assert_int_equal(v.added_count, 256);
    assert_int_equal(v.bos, 128000);
    assert_int_equal(v.eos, 128001);
    assert_true(v.add_bos && v.ignore_merges && v.by_score);
    vptq_vocab_release(&v);

    static const char *const lines[5][2] = {{"AAAB 0\n", "which another line has"},
                                            {"AA=B 1\n", "line 2 is not"},
                                            {"AAAB x\n", "line 2 is not"},
                                            {"AAA  1\n", "line 2 is not"},
                                            {"AAAA 1\n", "are both"}};
    for (int i = 0; i < 5; i++) {
        memcpy(text + second, lines[i][0], 7);
        expect_bytes(state, "t.model", text, n, VPTQ_E_FORMAT, lines[i][1]);
    }
    free(text);
}

/* ---- llama2.c ---- */

static size_t small_llama2c(uint8_t *out)
{
    static const char *const pieces[6] = {"<unk>", "\n<s>\n", "\n</s>\n", "<0x41>", " a", "b"};
    size_t n = 4;
    memcpy(out, "\6\0\0\0", 4);
    for (uint32_t i = 0; i < 6; i++) {
        float score = -(float)i;
        uint32_t len = (uint32_t)strlen(pieces[i]);
        memcpy(out + n, &score, 4);
        memcpy(out + n + 4, &len, 4);
        memcpy(out + n + 8, pieces[i], len);
        n += 8 + len;
    }
    return n;
}

static void test_llama2c(void **state)
{
    uint8_t file[256];
    size_t n = small_llama2c(file);
    char path[4096];
    vptq_vocab v;
    vptq_err err = {0};
    assert_ok(read_bytes(state, "t.bin", file, n, &v, &err), &err);
    assert_int_equal(v.count, 6);
    assert_string_equal(v.pieces[1].text, "<s>");
    assert_string_equal(v.pieces[4].text, META "a");
    assert_int_equal(v.pieces[3].type, VPTQ_PIECE_BYTE);
    assert_int_equal(v.pieces[5].type, VPTQ_PIECE_NORMAL);
    assert_true(v.add_bos && v.bos == 1 && v.eos == 2 && v.unk == 0);
    vptq_vocab_release(&v);

    vtest_path(path, sizeof path, *state, "t.bin");
    assert_ok(vptq_vocab_read(path, 6, NULL, &v, &err), &err);
    vptq_vocab_release(&v);
    assert_fails(vptq_vocab_read(path, 7, NULL, &v, &err), VPTQ_E_MISMATCH, &err,
                 "6 pieces, the model's vocabulary has 7");
    for (size_t cut = 4; cut < n; cut++) { /* cut after a piece, it is a valid shorter file */
        vtest_write_file(path, file, cut);
        vptq_status st = vptq_vocab_read(path, 6, NULL, &v, &err);
        assert_true(st == VPTQ_E_FORMAT || st == VPTQ_E_MISMATCH);
    }
    file[8] = 0xff; /* the first length */
    file[11] = 0xff;
    expect_bytes(state, "t.bin", file, n, VPTQ_E_FORMAT, "piece 0 of 4278190335 bytes");
    (void)small_llama2c(file);
    memcpy(file + 4, "\0\0\xc0\x7f", 4);
    expect_bytes(state, "t.bin", file, n, VPTQ_E_FORMAT, "score of piece 0 is NaN");
}

/* ---- GGUF ---- */

typedef struct gguf_parts {
    const char *model, *pre;
    const char *const *tokens, *const *merges;
    size_t token_count, merge_count, type_count;
    const int32_t *types;
    int has_scores;
} gguf_parts;

static void small_gguf(vgguf *w, const gguf_parts *p)
{
    float scores[16] = {0};
    vgguf_init(w);
    vgguf_str(w, "general.architecture", "llama");
    if (p->model)
        vgguf_str(w, "tokenizer.ggml.model", p->model);
    if (p->pre)
        vgguf_str(w, "tokenizer.ggml.pre", p->pre);
    if (p->tokens)
        vgguf_strs(w, "tokenizer.ggml.tokens", p->tokens, p->token_count);
    if (p->merges)
        vgguf_strs(w, "tokenizer.ggml.merges", p->merges, p->merge_count);
    if (p->types)
        vgguf_array(w, "tokenizer.ggml.token_type", VPTQ_GGUF_I32, p->type_count, p->types,
                    p->type_count * 4);
    for (int i = 0; i < 16; i++)
        scores[i] = -(float)i;
    if (p->has_scores)
        vgguf_array(w, "tokenizer.ggml.scores", VPTQ_GGUF_F32, p->token_count, scores,
                    p->token_count * 4);
}

static vptq_status read_gguf(void **state, vgguf *w, vptq_vocab *v, vptq_err *err)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "t.gguf");
    vgguf_write(w, path);
    vgguf_free(w);
    return vptq_vocab_read(path, 0, NULL, v, err);
}

static const char *const gpt2_tokens[4] = {"<e>", "a", "b", "ab"};
static const char *const gpt2_merges[1] = {"a b"};
static const int32_t gpt2_types[4] = {3, 1, 1, 1};

static gguf_parts gpt2_parts(void)
{
    return (gguf_parts){.model = "gpt2",
                        .pre = "smollm",
                        .tokens = gpt2_tokens,
                        .token_count = 4,
                        .merges = gpt2_merges,
                        .merge_count = 1,
                        .types = gpt2_types,
                        .type_count = 4};
}

static void test_gguf(void **state)
{
    gguf_parts p = gpt2_parts();
    vgguf w;
    vptq_vocab v;
    vptq_err err = {0};
    small_gguf(&w, &p);
    vgguf_u32(&w, "tokenizer.ggml.eos_token_id", 0);
    vgguf_bool(&w, "tokenizer.ggml.add_eos_token", 1);
    vgguf_str(&w, "tokenizer.chat_template", "{{ t }}");
    assert_ok(read_gguf(state, &w, &v, &err), &err);
    assert_int_equal(v.kind, VPTQ_VOCAB_BYTE_BPE);
    assert_int_equal(v.count, 4);
    assert_int_equal(v.merges[0].result, 3);
    assert_true(!v.add_bos && v.add_eos && v.bos == -1 && v.eos == 0);
    assert_int_equal(v.added_count, 1);
    assert_true(v.added[0].special);
    assert_int_equal(v.split_count, 2);
    assert_int_equal(v.splits[0].kind, VPTQ_SPLIT_DIGITS);
    assert_string_equal(v.chat_template, "{{ t }}");
    vptq_vocab_release(&v);

    /* Llama 3 adds BOS unless the file says otherwise */
    p.pre = "llama-bpe";
    small_gguf(&w, &p);
    vgguf_u32(&w, "tokenizer.ggml.bos_token_id", 0);
    assert_ok(read_gguf(state, &w, &v, &err), &err);
    assert_true(v.add_bos && v.ignore_merges && v.bos == 0);
    vptq_vocab_release(&v);

    /* without types, byte pieces are recognized by their text */
    static const char *const spm[5] = {"<unk>", "<s>", "</s>", "<0x41>", "a"};
    p = (gguf_parts){.model = "llama", .tokens = spm, .token_count = 5, .has_scores = 1};
    small_gguf(&w, &p);
    assert_ok(read_gguf(state, &w, &v, &err), &err);
    assert_int_equal(v.pieces[0].type, VPTQ_PIECE_UNKNOWN);
    assert_int_equal(v.pieces[2].type, VPTQ_PIECE_CONTROL);
    assert_int_equal(v.pieces[3].type, VPTQ_PIECE_BYTE);
    assert_true(v.add_bos && v.by_score && v.strip_start);
    vptq_vocab_release(&v);
}

static void refuse_gguf(void **state, const gguf_parts *p, vptq_status code, const char *part)
{
    vgguf w;
    vptq_vocab v;
    vptq_err err = {0};
    small_gguf(&w, p);
    assert_fails(read_gguf(state, &w, &v, &err), code, &err, part);
}

static void test_gguf_refusals(void **state)
{
    static const char *const merges[3] = {"a c", "ab", " ab"};
    static const char *const names[3] = {"names 'c'", "not two pieces", "not two pieces"};
    static const char *const twice[4] = {"<e>", "a", "b", "a"};
    static const int32_t types[4] = {3, 1, 1, 7};
    gguf_parts p = gpt2_parts();
    p.model = "t5";
    refuse_gguf(state, &p, VPTQ_E_UNSUPPORTED, "tokenizer model 't5'");
    p.model = NULL;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "no tokenizer");
    p = gpt2_parts();
    p.pre = "viking";
    refuse_gguf(state, &p, VPTQ_E_UNSUPPORTED, "pre-tokenizer 'viking'");
    p = gpt2_parts();
    p.tokens = NULL;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "'tokenizer.ggml.tokens' is missing");
    p = gpt2_parts();
    p.token_count = 0;
    p.type_count = 0;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "empty");
    p = gpt2_parts();
    p.merges = NULL;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "'tokenizer.ggml.merges' is missing");
    p = gpt2_parts();
    p.tokens = twice;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "pieces 1 and 3 are both 'a'");
    p = gpt2_parts();
    p.types = types;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "token 3 has the type 7");
    p = gpt2_parts();
    p.type_count = 3;
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "not one number for each of the 4");
    p = gpt2_parts();
    p.model = "llama";
    refuse_gguf(state, &p, VPTQ_E_FORMAT, "'tokenizer.ggml.scores' is missing");
    for (int i = 0; i < 3; i++) {
        p = gpt2_parts();
        p.merges = merges + i;
        refuse_gguf(state, &p, VPTQ_E_FORMAT, names[i]);
    }
    vgguf w;
    vptq_vocab v;
    vptq_err err = {0};
    p = gpt2_parts();
    small_gguf(&w, &p);
    vgguf_u32(&w, "tokenizer.ggml.bos_token_id", 4);
    assert_fails(read_gguf(state, &w, &v, &err), VPTQ_E_FORMAT, &err, "BOS id is 4");
    small_gguf(&w, &p);
    vgguf_bool(&w, "tokenizer.ggml.add_bos_token", 1);
    assert_fails(read_gguf(state, &w, &v, &err), VPTQ_E_FORMAT, &err, "names none");
}

/* ---- other ways to fail ---- */

static void test_places(void **state)
{
    vptq_vocab v;
    vptq_err err = {0};
    assert_fails(vptq_vocab_read(*state, 0, NULL, &v, &err), VPTQ_E_IO, &err,
                 "neither tokenizer.json nor tokenizer.model");
    assert_fails(vptq_vocab_read("no/such/file", 0, NULL, &v, &err), VPTQ_E_IO, &err,
                 "no/such/file");
    accept_json(state, "{" ABC "}", &v);
    assert_fails(vptq_vocab_write_hf(&v, "no/such/dir", &err), VPTQ_E_IO, &err, "no/such/dir");
    vptq_vocab_release(&v);
}

static vptq_status read_and_write(void *arg, vptq_mem *mem, vptq_err *err)
{
    char dir[4096];
    vptq_vocab v;
    const char *path = arg;
    vptq_status st = vptq_vocab_read(path, 0, mem, &v, err);
    if (st)
        return st;
    (void)snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    st = vptq_vocab_write_hf(&v, dir, err);
    vptq_vocab_release(&v);
    return st;
}

static void test_out_of_memory(void **state)
{
    char path[4096];
    uint8_t file[256];
    proto p;
    size_t n = small_llama2c(file);
    vtest_path(path, sizeof path, *state, "t.bin");
    vtest_write_file(path, file, n);
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
    small_spm(&p, 2);
    vtest_path(path, sizeof path, *state, "t.model");
    vtest_write_file(path, p.data, p.n);
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
    gguf_parts parts = gpt2_parts();
    vgguf w;
    small_gguf(&w, &parts);
    vtest_path(path, sizeof path, *state, "t.gguf");
    vgguf_write(&w, path);
    vgguf_free(&w);
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
    vtest_path(path, sizeof path, *state, "other.json");
    vtest_write_file(path, "{" ABC "}", strlen("{" ABC "}"));
    assert_true(vtest_oom_walk(read_and_write, path) >= 6);
}

#define SCRATCH(test)                                                                          \
    cmocka_unit_test_setup_teardown(test, vtest_scratch_setup, vtest_scratch_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SCRATCH(test_json_contents),
        SCRATCH(test_json_template_and_config),
        SCRATCH(test_json_refusals),
        SCRATCH(test_json_unsupported),
        SCRATCH(test_json_depth_and_size),
        SCRATCH(test_spm),
        SCRATCH(test_spm_refusals),
        SCRATCH(test_spm_damage),
        SCRATCH(test_ranks_refusals),
        SCRATCH(test_llama2c),
        SCRATCH(test_gguf),
        SCRATCH(test_gguf_refusals),
        SCRATCH(test_places),
        SCRATCH(test_out_of_memory),
    };
    return vtest_main(argc, argv, tests);
}
