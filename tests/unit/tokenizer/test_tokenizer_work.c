/* Tests the bounds of one call to the tokenizer: steps, growth of the text, cancelling; and
 * that searching in windows finds what one search of the whole text finds. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/vtok.h"

enum { LONG = 1 << 18 };

/* A change with one Split on PATTERN, its BEHAVIOR, before ByteLevel. */
#define SPLIT(PATTERN, BEHAVIOR)                                                               \
    "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "  \
    "\"pattern\": {\"Regex\": \"" PATTERN "\"}, \"behavior\": \"" BEHAVIOR                     \
    "\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "          \
    "\"use_regex\": false}]}}"

/* Encodes n bytes, the fill repeated, and returns the status; *err of a failure. */
static vptq_status encode_filled(void **state, const char *change, const char *fill, size_t n,
                                 size_t *count, vptq_err *err)
{
    vtok k;
    vptq_ids ids;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0, len = strlen(fill); i < n; i++)
        text[i] = fill[i % len];
    vtok_open_base(*state, &k, "bytes", change);
    vptq_ids_init(&ids, NULL);
    vptq_status st = vptq_tokenizer_encode(k.t, text, n, 0, &ids, err);
    *count = ids.count;
    vptq_ids_release(&ids);
    vtok_close(&k);
    free(text);
    return st;
}

/* ---- growth ---- */

/* A tokenizer with the letter `a` replaced by `times` of it, `steps` times. */
static char *growing(int times, int steps)
{
    char *as = malloc((size_t)times + 1);
    assert_non_null(as);
    memset(as, 'a', (size_t)times);
    as[times] = 0;
    json_t *list = json_array();
    for (int i = 0; i < steps; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace",
                                              "pattern", "String", "a", "content", as));
    json_t *root =
        json_pack("{s:{s:s, s:o}}", "normalizer", "type", "Sequence", "normalizers", list);
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    json_decref(root);
    free(as);
    return text;
}

/* Five steps that would make 320 GB of one letter. */
static void test_growth(void **state)
{
    vptq_err err = {0};
    size_t count = 0;
    char *change = growing(200, 5);
    assert_fails(encode_filled(state, change, "a", 1, &count, &err), VPTQ_E_FORMAT, &err,
                 "make more than 1048640 bytes of a text of 1");
    free(change);
    change = growing(200, 2); /* 40,000 bytes are within the bound */
    assert_ok(encode_filled(state, change, "a", 1, &count, &err), &err);
    assert_int_equal(count, 40000);
    free(change);
}

/* The bound holds for all added tokens of a file together. */
static void test_growth_of_added_tokens(void **state)
{
    enum { TOKENS = 100 };
    vptq_err err = {0};
    vptq_vocab v;
    vptq_tokenizer *t = NULL;
    vtok k;
    char *change = growing(200, 2);
    vtok_open_base(*state, &k, "bytes", change);
    free(change);
    v = k.vocab;
    vptq_added_token added[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        added[i] = (vptq_added_token){.id = i, .text = "a", .len = 1, .normalized = true};
    v.added = added;
    v.added_count = TOKENS;
    assert_fails(vptq_tokenizer_open(NULL, &v, &t, &err), VPTQ_E_FORMAT, &err,
                 "make more than 1054976 bytes of a text of 100");
    assert_null(t);
    vtok_close(&k);
}

/* ---- steps ---- */

/* Each match, or each start position, takes much: one budget for all of them. */
static void test_patterns_share_a_budget(void **state)
{
    static const struct {
        const char *pattern, *change;
        size_t len;
    } cases[] = {
        {"(?:a|a){19}c|a", SPLIT("(?:a|a){19}c|a", "Isolated"), 3000},
        {"(?:a|aa)*c|a", SPLIT("(?:a|aa)*c|a", "Removed"), 3000},
        {"(?=(a+))\\1[bc]|a", SPLIT("(?=(a+))\\\\1[bc]|a", "Isolated"), 100000},
        {"a+[bc]|a", SPLIT("a+[bc]|a", "Contiguous"), LONG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vptq_err err = {0};
        size_t count;
        assert_fails(encode_filled(state, cases[i].change, "a", cases[i].len, &count, &err),
                     VPTQ_E_FORMAT, &err, "steps, the last in the pattern");
        assert_non_null(strstr(err.text, cases[i].pattern));
    }
}

/* Long texts that took quadratic time: a long string that almost occurs, tokens that absorb
 * what follows. */
static void test_linear_searches(void **state)
{
    vptq_err err = {0};
    size_t count = 0;
    char almost[30002], change[32000];
    memset(almost, 'a', sizeof almost - 1);
    almost[sizeof almost - 2] = 'b';
    almost[sizeof almost - 1] = 0;
    (void)snprintf(
        change, sizeof change,
        "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"%s\"}, "
        "\"content\": \"c\"}}",
        almost);
    assert_ok(encode_filled(state, change, "a", LONG, &count, &err), &err);
    assert_int_equal(count, LONG);
    /* the added token of one space absorbs all; each of the others lies in what it absorbed */
    static const char token[] =
        "{\"added_tokens\": [{\"id\": 600, \"content\": \" \", \"rstrip\": true, \"special\": "
        "false, \"single_word\": false, \"lstrip\": false, \"normalized\": false}]}";
    assert_ok(encode_filled(state, token, " ", LONG, &count, &err), &err);
    assert_int_equal(count, LONG);
}

/* A long added token that almost occurs everywhere. */
static void test_long_added_tokens(void **state)
{
    enum { BYTES = 2000 };
    vptq_err err = {0};
    size_t count = 0;
    json_t *list = json_array();
    char text[BYTES + 1] = {0};
    memset(text, 'a', BYTES);
    for (int i = 0; i < 2; i++) {
        text[BYTES - 1] = (char)('b' + i);
        json_array_append_new(list,
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", 600 + i,
                                        "content", text, "special", 0, "single_word", 0,
                                        "lstrip", 0, "rstrip", 0, "normalized", 0));
        json_t *root = json_pack("{s:O}", "added_tokens", list);
        char *change = json_dumps(root, 0);
        vptq_status st = encode_filled(state, change, "a", LONG, &count, &err);
        if (i == 0) /* one token is compared at once */
            assert_ok(st, &err);
        else
            assert_fails(st, VPTQ_E_FORMAT, &err, "encoding 262144 bytes takes more than");
        free(change);
        json_decref(root);
    }
    json_decref(list);
}

/* ---- windows ---- */

/* Matches, lookarounds and ends of lines far from the start of the search: the ids of words are
 * their bytes, so that what Removed leaves shows the matches. */
static void test_windows(void **state)
{
    static const struct {
        const char *change, *fill;
        size_t len, want;
    } cases[] = {
        {SPLIT("\\\\p{L}+", "Removed"), "a", 100000, 0},
        {SPLIT("x+?y", "Removed"), "xxxxxxx", 5000, 5000},
        {SPLIT("[^b]+b", "Removed"), "aaaaaaaaaab", 1100, 0},
        {SPLIT("a$", "Removed"), "aaaaaaa\n", 8000, 7000},
        {SPLIT("\\\\s+(?!\\\\S)", "Removed"), "  \n  x", 6000, 2000},
        {SPLIT("(?<=b)a", "Removed"), "aaab", 4000, 3001},
        {SPLIT("\\\\ba", "Removed"), "aaaa ", 5000, 4000},
        {SPLIT("a+\\\\z", "Removed"), "a", 70000, 0},
        {SPLIT("(?s:b.*)b", "Removed"), "baaaaaaaaa", 40000, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vptq_err err = {0};
        size_t count;
        assert_ok(
            encode_filled(state, cases[i].change, cases[i].fill, cases[i].len, &count, &err),
            &err);
        assert_int_equal(count, cases[i].want);
    }
}

/* ---- cancelling ---- */

/* A raised flag ends every kind of step, and is not looked at by a short text. */
static void test_cancel(void **state)
{
    static const char *const changes[] = {
        NULL,
        SPLIT("a", "Isolated"),
        "{\"normalizer\": {\"type\": \"NFC\"}}",
        "{\"normalizer\": {\"type\": \"Lowercase\"}}",
        "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"b\"}, "
        "\"content\": \"c\"}}",
        "{\"added_tokens\": [{\"id\": 600, \"content\": \"aa\", \"rstrip\": false, "
        "\"special\": "
        "false, \"single_word\": false, \"lstrip\": false, \"normalized\": false}]}",
    };
    const volatile sig_atomic_t raised = 1;
    const vptq_ctx ctx = {.threads = 1, .cancel = &raised};
    char *text = malloc(LONG);
    assert_non_null(text);
    memset(text, 'a', LONG);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        vptq_err err = {0};
        vptq_tokenizer *t = NULL;
        vptq_ids ids;
        vtok k;
        vptq_ids_init(&ids, NULL);
        vtok_open_base(*state, &k, "bytes", changes[i]);
        assert_ok(vptq_tokenizer_open(&ctx, &k.vocab, &t, &err), &err);
        assert_fails(vptq_tokenizer_encode(t, text, LONG, 0, &ids, &err), VPTQ_E_CANCELLED,
                     &err, "interrupted");
        assert_ok(vptq_tokenizer_encode(t, text, 10, 0, &ids, &err), &err);
        vptq_tokenizer_close(t);
        vptq_ids_release(&ids);
        vtok_close(&k);
    }
    free(text);
}

VTEST_MAIN(scratch_test(test_growth), scratch_test(test_growth_of_added_tokens),
           scratch_test(test_patterns_share_a_budget), scratch_test(test_linear_searches),
           scratch_test(test_long_added_tokens), scratch_test(test_windows),
           scratch_test(test_cancel))
