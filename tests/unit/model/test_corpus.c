/* Reading texts and token files as ids; documents; windows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/base/file.h"
#include "lib/model/corpus.h"
#include "tests/support/vtok.h"

static const vptq_ctx ctx = {.threads = 1};

/* Writes a file into the scratch directory; returns its path. */
static const char *scratch(void **state, char path[4096], const char *name, const void *data,
                           size_t size)
{
    vtest_path(path, 4096, *state, name);
    vtest_write_file(path, data, size);
    return path;
}

/* Opens a tokenizer whose ids are bytes, so that ids can be compared with text. */
static void open_bytes(void **state, vtok *k)
{
    char path[4096];
    vptq_err err = {0};
    json_t *root = NULL;
    assert_ok(vptq_json_load("tests/golden/tokenizer_steps.json", 1 << 20, &root, &err), &err);
    json_t *t = json_object_get(json_object_get(root, "bases"), "bytes");
    assert_int_equal(json_object_set_new(json_object_get(t, "model"), "merges", json_array()),
                     0);
    vtest_path(path, sizeof path, *state, "tokenizer.json");
    assert_ok(vptq_json_save(path, t, &err), &err);
    json_decref(root);
    vtok_open(k, path);
}

static void expect_bytes(const vptq_ids *ids, const char *text, size_t len)
{
    assert_int_equal(ids->count, len);
    for (size_t i = 0; i < len; i++)
        assert_int_equal(ids->data[i], (unsigned char)text[i]);
}

/* With rows, the ids of `text` are those of `formed`. */
static void expect_rows(void **state, const vtok *k, const char *text, const char *formed)
{
    char path[4096];
    vptq_err err = {0};
    vptq_corpus c;
    const char *texts[1] = {scratch(state, path, "x.txt", text, strlen(text))};
    vptq_corpus_options opt = {.texts = texts, .text_count = 1, .rows = true};
    assert_ok(vptq_corpus_load(&ctx, &opt, k->t, k->vocab.count, &c, &err), &err);
    expect_bytes(&c.ids, formed, strlen(formed));
    vptq_corpus_release(&c);
}

static void test_rows(void **state)
{
    vtok k;
    open_bytes(state, &k);
    expect_rows(state, &k, "", "");
    expect_rows(state, &k, "a", "a");
    expect_rows(state, &k, "a\n", "a\n");
    expect_rows(state, &k, "a\nb", "a\n\n\nb");
    expect_rows(state, &k, "a\n\nb\n", "a\n\n\n\n\nb\n");
    expect_rows(state, &k, " \n = T = \n \t \nb\n", "\n\n = T = \n\n\n\n\nb\n");
    /* only LF ends a line; other white space makes a line blank but stays in its row */
    expect_rows(state, &k,
                "a\r\nb\xc2\x85"
                "c\n\xe3\x80\x80\r\n",
                "a\r\n\n\nb\xc2\x85"
                "c\n\n\n");
    vtok_close(&k);
}

static void test_texts_and_tokens_are_joined(void **state)
{
    char a[4096], b[4096], t[4096], u[4096];
    vptq_err err = {0};
    vtok k;
    vptq_corpus c, again;
    static const uint8_t ids[12] = {1, 0, 0, 0, 255, 0, 0, 0, 4, 1, 0, 0};
    open_bytes(state, &k);
    const char *texts[2] = {scratch(state, a, "a.txt", "xy", 2),
                            scratch(state, b, "b.txt", "z\n", 2)};
    const char *tokens[2] = {scratch(state, t, "t.i32", ids, 12),
                             scratch(state, u, "u.i32", ids, 0)};
    vptq_corpus_options opt = {
        .texts = texts, .text_count = 2, .tokens = tokens, .token_count = 2};
    assert_ok(vptq_corpus_load(&ctx, &opt, k.t, k.vocab.count, &c, &err), &err);
    static const int32_t want[7] = {'x', 'y', 'z', '\n', 1, 255, 260};
    assert_int_equal(c.ids.count, 7);
    assert_memory_equal(c.ids.data, want, sizeof want);
    assert_int_equal(strlen(c.fingerprint), 16);

    /* The same ids, all from a token file and without a tokenizer, have the same fingerprint.
     */
    uint8_t file[28];
    for (size_t i = 0; i < 28; i++)
        file[i] = (uint8_t)((uint32_t)want[i / 4] >> (8 * (i % 4)));
    tokens[0] = scratch(state, t, "all.i32", file, sizeof file);
    opt = (vptq_corpus_options){.tokens = tokens, .token_count = 1};
    assert_ok(vptq_corpus_load(&ctx, &opt, NULL, 261, &again, &err), &err);
    assert_string_equal(again.fingerprint, c.fingerprint);
    vptq_corpus_release(&again);
    vptq_corpus_release(&c);

    file[0]++;
    (void)scratch(state, t, "all.i32", file, sizeof file);
    assert_ok(vptq_corpus_load(&ctx, &opt, NULL, 261, &again, &err), &err);
    assert_string_not_equal(again.fingerprint, c.fingerprint);
    vptq_corpus_release(&again);
    vtok_close(&k);
}

/* A text that is not UTF-8 is refused, or repaired, with documents too. */
static void test_lossy(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vtok k;
    vptq_corpus c;
    vptq_arena arena;
    vptq_ids ids;
    size_t *at, count;
    static const char repaired[] = "a\xef\xbf\xbd"
                                   "b";
    open_bytes(state, &k);
    vptq_arena_init(&arena, NULL);
    vptq_ids_init(&ids, NULL);
    const char *texts[1] = {scratch(state, path, "x.txt",
                                    "a\xe9"
                                    "b",
                                    3)};
    vptq_corpus_options opt = {.texts = texts, .text_count = 1};
    assert_fails(vptq_corpus_load(&ctx, &opt, k.t, 261, &c, &err), VPTQ_E_FORMAT, &err,
                 "x.txt: byte 1 (0xe9) is not UTF-8");
    assert_fails(
        vptq_corpus_documents(&ctx, &opt, "<", k.t, 261, &arena, &ids, &at, &count, &err),
        VPTQ_E_FORMAT, &err, "x.txt: byte 1 (0xe9) is not UTF-8");
    opt.lossy = true;
    assert_ok(vptq_corpus_load(&ctx, &opt, k.t, 261, &c, &err), &err);
    expect_bytes(&c.ids, repaired, sizeof repaired - 1);
    vptq_corpus_release(&c);
    assert_ok(vptq_corpus_documents(&ctx, &opt, "<", k.t, 261, &arena, &ids, &at, &count, &err),
              &err);
    expect_bytes(&ids, repaired, sizeof repaired - 1);
    vptq_ids_release(&ids);
    vptq_arena_release(&arena);
    vtok_close(&k);
}

static void test_bad_token_files(void **state)
{
    char t[4096];
    vptq_err err = {0};
    vptq_corpus c;
    static const uint8_t ids[12] = {1, 0, 0, 0, 255, 255, 255, 255, 4, 1, 0, 0};
    const char *files[1] = {scratch(state, t, "t.i32", ids, 7)};
    vptq_corpus_options opt = {.tokens = files, .token_count = 1};
    assert_fails(vptq_corpus_load(&ctx, &opt, NULL, 1000, &c, &err), VPTQ_E_FORMAT, &err,
                 "t.i32: 7 bytes");
    (void)scratch(state, t, "t.i32", ids, 12);
    assert_fails(vptq_corpus_load(&ctx, &opt, NULL, 1000, &c, &err), VPTQ_E_FORMAT, &err,
                 "token 1 has the id -1");
    (void)scratch(state, t, "t.i32", ids + 8, 4);
    assert_ok(vptq_corpus_load(&ctx, &opt, NULL, 261, &c, &err), &err);
    vptq_corpus_release(&c);
    assert_fails(vptq_corpus_load(&ctx, &opt, NULL, 260, &c, &err), VPTQ_E_FORMAT, &err,
                 "token 0 has the id 260, the model's vocabulary has 260 entries");
    files[0] = "no/such/file";
    assert_fails(vptq_corpus_load(&ctx, &opt, NULL, 260, &c, &err), VPTQ_E_IO, &err,
                 "no/such/file");
    opt = (vptq_corpus_options){.texts = files, .text_count = 1};
    assert_fails(vptq_corpus_load(&ctx, &opt, NULL, 260, &c, &err), VPTQ_E_ARG, &err,
                 "needs a tokenizer");
}

static void test_cancelled(void **state)
{
    char t[4096];
    vptq_err err = {0};
    vptq_corpus c;
    volatile sig_atomic_t stop = 1;
    vptq_ctx stopped = {.threads = 1, .cancel = &stop};
    const char *files[1] = {scratch(state, t, "t.i32", "\1\0\0\0", 4)};
    vptq_corpus_options opt = {.tokens = files, .token_count = 1};
    assert_fails(vptq_corpus_load(&stopped, &opt, NULL, 9, &c, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
}

/* ---- documents ---- */

static void test_documents(void **state)
{
    static const char text[] = "<sep>\n one \n<sep> \t\n<sep>\xe3\x80\x80two<s\n<sep>3<sep>";
    static const char *const want[3] = {"one", "two<s", "3"};
    char path[4096];
    const char *name = path;
    const vptq_corpus_options one = {.texts = &name, .text_count = 1};
    vptq_err err = {0};
    vptq_arena arena;
    vptq_ids ids;
    size_t *at = NULL, count = 0;
    vtok k;
    open_bytes(state, &k);
    vptq_arena_init(&arena, NULL);
    vptq_ids_init(&ids, NULL);
    (void)scratch(state, path, "d.txt", text, sizeof text - 1);
    assert_ok(
        vptq_corpus_documents(&ctx, &one, "<sep>", k.t, 1000, &arena, &ids, &at, &count, &err),
        &err);
    assert_int_equal(count, 3);
    assert_int_equal(at[0], 0);
    assert_int_equal(at[3], ids.count);
    for (size_t d = 0; d < 3; d++) {
        vptq_ids part = {.data = ids.data + at[d], .count = at[d + 1] - at[d]};
        expect_bytes(&part, want[d], strlen(want[d]));
    }
    assert_fails(
        vptq_corpus_documents(&ctx, &one, "", k.t, 1000, &arena, &ids, &at, &count, &err),
        VPTQ_E_ARG, &err, "separator is empty");
    (void)scratch(state, path, "d.txt", " \n", 2);
    assert_ok(
        vptq_corpus_documents(&ctx, &one, "<sep>", k.t, 1000, &arena, &ids, &at, &count, &err),
        &err);
    assert_int_equal(count, 0);
    vptq_ids_release(&ids);
    vptq_arena_release(&arena);
    vtok_close(&k);
}

/* The first stories of TinyStories are as long as in the golden perplexity run. */
static void test_tinystories_documents(void **state)
{
    char path[4096], model[4096], golden[4096];
    const char *name = path;
    const vptq_corpus_options one = {.texts = &name, .text_count = 1};
    vptq_err err = {0};
    vptq_arena arena;
    vptq_ids ids;
    size_t *at = NULL, count = 0, predicted = 0;
    json_t *root = NULL;
    vtok k;
    (void)state;
    if (!vtest_data(path, sizeof path, "text/tinystories/tiny.utf8") ||
        !vtest_data(model, sizeof model, "models/stories260K/tok512.bin") ||
        !vtest_data(golden, sizeof golden, "golden/baseline_f64.json"))
        skip();
    vtok_open(&k, model);
    vptq_arena_init(&arena, NULL);
    vptq_ids_init(&ids, NULL);
    assert_ok(vptq_corpus_documents(&ctx, &one, "<|endoftext|>", k.t, 1000, &arena, &ids, &at,
                                    &count, &err),
              &err);
    assert_int_equal(count, 317);
    assert_ok(vptq_json_load(golden, 1 << 20, &root, &err), &err);
    const json_t *stories = json_object_get(root, "stories260K");
    const json_t *eval = json_object_get(stories, "eval");
    const json_t *rows = json_object_get(eval, "per_story_len_and_nll_sum");
    size_t listed = 0;
    for (size_t d = 0; d < 100; d++) {
        size_t len = at[d + 1] - at[d];
        assert_int_equal(ids.data[at[d]], 1);
        if (len > 512)
            continue;
        predicted += len - 1;
        if (listed < json_array_size(rows))
            assert_int_equal(
                len, json_integer_value(json_array_get(json_array_get(rows, listed++), 0)));
    }
    assert_int_equal(predicted, json_integer_value(json_object_get(eval, "predicted_tokens")));
    const json_t *first = json_object_get(stories, "first_story_ids");
    for (size_t i = 0; i < json_array_size(first); i++)
        assert_int_equal(ids.data[i], json_integer_value(json_array_get(first, i)));
    json_decref(root);
    vptq_ids_release(&ids);
    vptq_arena_release(&arena);
    vtok_close(&k);
}

/* ---- windows ---- */

static void test_windows(void **state)
{
    vptq_corpus c = {.ids = {.count = 1005}, .name = "some.txt"};
    vptq_err err = {0};
    vptq_arena arena;
    size_t *at = NULL, *again = NULL, n = 0, m = 0;
    (void)state;
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_corpus_sample(&c, 10, 1000, 7, &arena, &at, &n, &err), &err);
    assert_int_equal(n, 100);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(at[i], 10 * i);

    /* a sample: ascending, without repeats, the same for the same seed */
    assert_ok(vptq_corpus_sample(&c, 10, 30, 7, &arena, &at, &n, &err), &err);
    assert_ok(vptq_corpus_sample(&c, 10, 30, 7, &arena, &again, &m, &err), &err);
    assert_int_equal(n, 30);
    for (size_t i = 0; i < n; i++) {
        assert_true(at[i] % 10 == 0 && at[i] <= 990 && (i == 0 || at[i] > at[i - 1]));
        assert_int_equal(at[i], again[i]);
    }
    assert_ok(vptq_corpus_sample(&c, 10, 30, 8, &arena, &again, &m, &err), &err);
    assert_memory_not_equal(at, again, n * sizeof *at);

    assert_ok(vptq_corpus_sample(&c, 1005, 1, 0, &arena, &at, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_fails(vptq_corpus_sample(&c, 1006, 1, 0, &arena, &at, &n, &err), VPTQ_E_FORMAT, &err,
                 "some.txt: the text has 1005 tokens, one window needs 1006");
    assert_fails(vptq_corpus_sample(&c, 0, 1, 0, &arena, &at, &n, &err), VPTQ_E_ARG, &err,
                 "window length is 0");
    vptq_arena_release(&arena);
}

/* Every window is equally likely: 5 of 20 are drawn with each of 400 seeds. */
static void test_windows_are_uniform(void **state)
{
    vptq_corpus c = {.ids = {.count = 20}};
    vptq_err err = {0};
    vptq_arena arena;
    size_t hits[20] = {0};
    (void)state;
    vptq_arena_init(&arena, NULL);
    for (uint64_t seed = 0; seed < 400; seed++) {
        size_t *at = NULL, n = 0;
        assert_ok(vptq_corpus_sample(&c, 1, 5, seed, &arena, &at, &n, &err), &err);
        assert_int_equal(n, 5);
        for (size_t i = 0; i < 5; i++)
            hits[at[i]]++;
    }
    double chi = 0; /* 100 expected for each; 19 degrees of freedom: 99.99 % are below 53 */
    for (int i = 0; i < 20; i++)
        chi += pow((double)hits[i] - 100, 2) / 100;
    assert_true(chi < 53);
    vptq_arena_release(&arena);
}

/* ---- golden ids ---- */

static void expect_golden(const vptq_ids *ids, size_t from, const char *name)
{
    char path[4096];
    size_t size = 0;
    if (!vtest_data(path, sizeof path, name))
        skip();
    char *want = vtest_read_file(path, &size);
    assert_true(from + size / 4 <= ids->count);
    assert_memory_equal(ids->data + from, want, size);
    free(want);
}

static void test_golden_wikitext(void **state)
{
    char model[4096], path[4096], llama[4096];
    vptq_err err = {0};
    vptq_corpus c;
    vtok k;
    (void)state;
    if (!vtok_demo(model, sizeof model) ||
        !vtest_data(path, sizeof path, "text/wikitext2/wiki.test.raw") ||
        !vtest_data(llama, sizeof llama, "tokenizers/llama2/tokenizer.model"))
        skip();
    const char *texts[1] = {path};
    vptq_corpus_options opt = {.texts = texts, .text_count = 1, .rows = true};
    vtok_open(&k, model);
    assert_ok(vptq_corpus_load(&ctx, &opt, k.t, k.vocab.count, &c, &err), &err);
    assert_int_equal(c.ids.count, 304978);
    expect_golden(&c.ids, 0, "golden/smollm2/wikitext2_w16.i32");
    vptq_corpus_release(&c);
    vtok_close(&k);

    /* the number of tokens that is generally reported for Llama 2 */
    vtok_open(&k, llama);
    assert_ok(vptq_corpus_load(&ctx, &opt, k.t, k.vocab.count, &c, &err), &err);
    assert_int_equal(c.ids.count, 341469);
    vptq_corpus_release(&c);
    vtok_close(&k);
}

static void test_golden_calibration(void **state)
{
    char model[4096], path[4096], joined_path[4096];
    vptq_err err = {0};
    vptq_corpus c;
    vptq_buf joined;
    size_t size = 0;
    vtok k;
    if (!vtok_demo(model, sizeof model) || !vtest_data(path, sizeof path, "text/calib/c4.utf8"))
        skip();
    /* one document per line, joined by two newlines */
    char *text = vtest_read_file(path, &size);
    vptq_buf_init(&joined, NULL);
    for (char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        if (joined.len > 0)
            assert_ok(vptq_buf_add(&joined, "\n\n", 2, &err), &err);
        assert_ok(vptq_buf_add(&joined, line, n, &err), &err);
        line += n + (line[n] == '\n');
    }
    free(text);
    const char *texts[1] = {scratch(state, joined_path, "c4.txt", joined.data, joined.len)};
    vptq_buf_release(&joined);
    vptq_corpus_options opt = {.texts = texts, .text_count = 1};
    vtok_open(&k, model);
    assert_ok(vptq_corpus_load(&ctx, &opt, k.t, k.vocab.count, &c, &err), &err);
    assert_int_equal(c.ids.count, 303009);
    expect_golden(&c.ids, 0, "golden/smollm2/calib_64x2048.i32");
    expect_golden(&c.ids, 64 * 2048, "golden/smollm2/heldout_24x2048.i32");
    vptq_corpus_release(&c);
    vtok_close(&k);
}

/* ---- memory ---- */

typedef struct walk {
    const vtok *k;
    const char *text, *tokens;
} walk;

static vptq_status load_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    const walk *w = arg;
    vptq_ctx c = {.mem = mem, .threads = 1};
    vptq_corpus corpus;
    vptq_corpus_options opt = {.texts = &w->text,
                               .text_count = 1,
                               .tokens = &w->tokens,
                               .token_count = 1,
                               .rows = true};
    vptq_arena arena;
    vptq_ids ids;
    size_t *at, n;
    vptq_status st = vptq_corpus_load(&c, &opt, w->k->t, 1000, &corpus, err);
    if (st)
        return st;
    vptq_arena_init(&arena, mem);
    vptq_ids_init(&ids, mem);
    VPTQ_TRY(vptq_corpus_documents(&c, &opt, "b", w->k->t, 1000, &arena, &ids, &at, &n, err));
    VPTQ_TRY(vptq_corpus_sample(&corpus, 1, 2, 0, &arena, &at, &n, err));
out:
    vptq_ids_release(&ids);
    vptq_arena_release(&arena);
    vptq_corpus_release(&corpus);
    return st;
}

static void test_out_of_memory(void **state)
{
    char text[4096], tokens[4096];
    vtok k;
    open_bytes(state, &k);
    walk w = {&k, scratch(state, text, "a.txt", "one\nb\ntwo\n", 10),
              scratch(state, tokens, "t.i32", "\1\0\0\0", 4)};
    assert_true(vtest_oom_walk(load_all, &w) >= 4);
    vtok_close(&k);
}

VTEST_MAIN(scratch_test(test_rows), scratch_test(test_texts_and_tokens_are_joined),
           scratch_test(test_lossy), scratch_test(test_bad_token_files),
           scratch_test(test_cancelled), scratch_test(test_documents),
           scratch_test(test_tinystories_documents), scratch_test(test_windows),
           scratch_test(test_windows_are_uniform), scratch_test(test_golden_wikitext),
           scratch_test(test_golden_calibration), scratch_test(test_out_of_memory))
