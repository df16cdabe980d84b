/* Generation: the golden text, prompts, characters, sampling, stop tokens, errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/eval/generate.h"
#include "lib/report/emit.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

typedef struct collected {
    char text[1 << 14];
    size_t len, calls;
} collected;

static vptq_status collect_text(void *arg, const char *text, size_t len, vptq_err *err)
{
    (void)err;
    collected *c = arg;
    assert_true(len > 0 && c->len + len < sizeof c->text);
    memcpy(c->text + c->len, text, len);
    c->len += len;
    c->text[c->len] = 0;
    return VPTQ_OK;
    c->calls++;
}

static bool stories_open(vrig *r)
{
    char model[4096], tokenizer[4096];
    if (!vtest_data(model, sizeof model, "models/stories260K/stories260K.bin") ||
        !vtest_data(tokenizer, sizeof tokenizer, "models/stories260K/tok512.bin"))
        return false;
    vrig_open(r, model, tokenizer, true);
    return true;
}

static const vptq_generate_options greedy = {.prompt = "", .tokens = 200, .top_p = 1};

static void generate(vrig *r, const vptq_generate_options *o, collected *c, vptq_ids *ids)
{
    vptq_err err = {0};
    vptq_generate_result result;
    c->len = c->calls = 0;
    vptq_ids_init(ids, &r->mem);
    const vptq_generate_args args = {.opt = o, .ids = ids, .emit = collect_text, .arg = c};
    assert_ok(vptq_eval_generate(&r->dev, &r->m, &args, &result, &err), &err);
    assert_int_equal(result.prompt_tokens + result.new_tokens, ids->count);
}

static void test_greedy(void **state)
{
    (void)state;
    vrig r;
    char path[4096];
    collected c;
    vptq_ids ids;
    size_t size;
    if (!vtest_data(path, sizeof path, "golden/stories260K_greedy200.txt") || !stories_open(&r))
        skip();
    char *want = vtest_read_file(path, &size);
    generate(&r, &greedy, &c, &ids);
    assert_int_equal(c.len, size);
    assert_memory_equal(c.text, want, size);
    assert_int_equal(ids.count, 201);
    assert_int_equal(ids.data[0], 1);
    vptq_ids_release(&ids);
    free(want);
    vrig_close(&r);
}

/* A prompt that is the beginning of a longer run is continued with that run's text. */
static void test_prompt(void **state)
{
    (void)state;
    vrig r;
    collected c, d;
    vptq_ids ids, more;
    vptq_generate_options o = greedy;
    if (!stories_open(&r))
        skip();
    generate(&r, &greedy, &c, &ids);
    o.prompt = "Once upon a time";
    o.tokens = 30;
    generate(&r, &o, &d, &more);
    assert_memory_equal(more.data, ids.data, more.count * sizeof *ids.data);
    assert_memory_equal(d.text, c.text + strlen(o.prompt), d.len);
    vptq_ids_release(&ids);
    vptq_ids_release(&more);
    vrig_close(&r);
}

/* Every piece ends between characters, and the pieces are the text of the ids. */
static void test_characters(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    collected c;
    vptq_ids ids;
    vptq_buf whole;
    vptq_generate_options o = greedy;
    bool start = true;
    if (!stories_open(&r))
        skip();
    vptq_buf_init(&whole, &r.mem);
    o.temperature = 50; /* nearly uniform: many byte tokens */
    o.seed = 3;
    o.tokens = 400;
    o.ignore_eos = true;
    generate(&r, &o, &c, &ids);
    assert_int_equal(ids.count, 401);
    assert_ok(
        vptq_tokenizer_decode(r.m.tokenizer, ids.data, ids.count, &start, false, &whole, &err),
        &err);
    assert_int_equal(whole.len, c.len);
    assert_memory_equal(whole.data, c.text, c.len);
    vptq_buf_release(&whole);
    vptq_ids_release(&ids);
    vrig_close(&r);
}

static vptq_status write_text(void *arg, const char *text, size_t len, vptq_err *err)
{
    return vptq_buf_add(arg, text, len, err);
}

/* Control characters of the prompt and of new text, whose bytes may come one by one. */
static void test_printable(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_buf raw, shown, want;
    vptq_generate_options o = greedy;
    if (!stories_open(&r))
        skip();
    vptq_buf_init(&raw, &r.mem);
    vptq_buf_init(&shown, &r.mem);
    vptq_buf_init(&want, &r.mem);
    o.prompt = "a\x1b[2J\n\xc2\x9b\u202e";
    o.temperature = 50; /* many byte tokens */
    o.tokens = 400;
    o.seed = 3;
    o.ignore_eos = true;
    const vptq_output to_raw = {.format = VPTQ_FORMAT_TEXT, .write = write_text, .arg = &raw};
    const vptq_output to_shown = {
        .format = VPTQ_FORMAT_TEXT, .write = write_text, .arg = &shown};
    assert_ok(vptq_eval_reply(&r.dev, &r.m, &o, &to_raw, NULL, &err), &err);
    assert_memory_equal(raw.data, o.prompt, strlen(o.prompt));
    o.printable = true;
    assert_ok(vptq_eval_reply(&r.dev, &r.m, &o, &to_shown, NULL, &err), &err);
    assert_memory_equal(shown.data, "a\\x1b[2J\n\\u009b\\u202e", 21);
    vptq_emit e = {.buf = &want, .err = &err};
    vptq_emit_printable(&e, raw.data, raw.len, "\n\t");
    assert_string_equal(shown.data, want.data);
    vptq_buf_clear(&shown);
    o.dry_run = true;
    assert_ok(vptq_eval_reply(&r.dev, &r.m, &o, &to_shown, NULL, &err), &err);
    assert_memory_equal(shown.data, "a\\x1b[2J\n\\u009b\\u202e\n", 22);
    vptq_buf_release(&want);
    vptq_buf_release(&shown);
    vptq_buf_release(&raw);
    vrig_close(&r);
}

static void test_sampling(void **state)
{
    (void)state;
    vrig r;
    static const double temperature[] = {0.9, 0.9, 0.9, 0.9, 1e-4};
    static const double top_p[] = {1, 1, 1, 1e-9, 1};
    static const uint64_t seed[] = {7, 7, 8, 9, 10};
    collected *c = vtest_alloc(6, sizeof *c);
    vptq_ids ids;
    if (!stories_open(&r)) {
        free(c);
        skip();
    }
    for (int i = 0; i < 6; i++) {
        vptq_generate_options o = greedy;
        o.tokens = 60;
        if (i < 5) {
            o.temperature = temperature[i];
            o.top_p = top_p[i];
            o.seed = seed[i];
        }
        generate(&r, &o, &c[i], &ids);
        vptq_ids_release(&ids);
    }
    assert_string_equal(c[0].text, c[1].text);     /* the same seed */
    assert_string_not_equal(c[0].text, c[2].text); /* another seed */
    assert_string_equal(c[3].text, c[5].text);     /* only the likeliest token is kept */
    assert_string_equal(c[4].text, c[5].text);     /* low temperature */
    free(c);
    vrig_close(&r);
}

/* Makes the third token of the greedy text a stop token, which ends the text. */
static void test_end(void **state)
{
    (void)state;
    vrig r;
    collected c;
    vptq_ids ids;
    vptq_generate_options o = greedy;
    if (!stories_open(&r))
        skip();
    generate(&r, &greedy, &c, &ids);
    int32_t third = ids.data[3];
    vptq_ids_release(&ids);
    r.m.vocab.eos = third;
    generate(&r, &o, &c, &ids);
    assert_int_equal(ids.count, 4);
    assert_int_equal(ids.data[3], third);
    vptq_ids_release(&ids);
    o.ignore_eos = true;
    o.tokens = 9;
    generate(&r, &o, &c, &ids);
    assert_int_equal(ids.count, 10);
    vptq_ids_release(&ids);
    vrig_close(&r);
}

/* The first token ends the text and is not shown. */
static void test_end_at_once(void **state)
{
    (void)state;
    vrig r;
    collected c;
    vptq_ids ids;
    if (!stories_open(&r))
        skip();
    generate(&r, &greedy, &c, &ids);
    const int32_t first = ids.data[1];
    vptq_ids_release(&ids);
    r.m.vocab.eos = first;
    r.m.vocab.pieces[first].type = VPTQ_PIECE_CONTROL;
    generate(&r, &greedy, &c, &ids);
    assert_int_equal(ids.count, 2);
    assert_int_equal(c.len, 0);
    vptq_ids_release(&ids);
    vrig_close(&r);
}

static void test_generate_refused(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_ids ids;
    vptq_generate_options o = greedy;
    const vptq_generate_args args = {.opt = &o, .ids = &ids};
    vrig_open(&r, VRIG_TINY, NULL, false);
    vptq_ids_init(&ids, &r.mem);
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &args, NULL, &err), VPTQ_E_ARG, &err,
                 "tokenizer");
    vrig_close(&r);
    if (!stories_open(&r))
        skip();
    o.temperature = -1;
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &args, NULL, &err), VPTQ_E_ARG, &err,
                 "temperature -1");
    o.temperature = 1;
    o.top_p = 0;
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &args, NULL, &err), VPTQ_E_ARG, &err,
                 "top-p 0");
    o = greedy;
    o.tokens = SIZE_MAX;
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &args, NULL, &err), VPTQ_E_ARG, &err,
                 "too many");
    vptq_ids_release(&ids);
    vrig_close(&r);
}

/* Greedy continuations of a plain and of a chat prompt by the demo model. */
static void check_demo_text(vrig *r, const json_t *want, const char *prompt, const char *text,
                            const char *ids_key)
{
    vptq_ids ids;
    collected c;
    const json_t *list = json_object_get(want, ids_key);
    const char *p = json_string_value(json_object_get(want, prompt));
    const char *whole = json_string_value(json_object_get(want, text));
    vptq_generate_options o = {.prompt = p, .tokens = 64, .top_p = 1, .special = true};
    generate(r, &o, &c, &ids);
    assert_int_equal(ids.count, json_array_size(list));
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.data[i], json_integer_value(json_array_get(list, i)));
    assert_string_equal(c.text, whole + strlen(p));
    vptq_ids_release(&ids);
}

static void test_demo_text(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    char path[4096];
    json_t *want;
    const char *f16 = getenv("VPTQ_DEMO_F16"), *gguf = getenv("VPTQ_DEMO_GGUF");
    if (!f16 && !gguf)
        print_message("neither VPTQ_DEMO_F16 nor VPTQ_DEMO_GGUF names the demo model\n");
    if ((!f16 && !gguf) || !vtest_data(path, sizeof path, "golden/smollm2/expected.json"))
        skip();
    assert_ok(vptq_json_load(path, 1 << 20, &want, &err), &err);
    vrig_open(&r, f16 ? f16 : gguf, NULL, true);
    for (size_t i = 0; !f16 && i < r.m.ckpt.set.count; i++)
        r.m.ckpt.set.tensors[i].round_to = VPTQ_F16;
    check_demo_text(&r, want, "prompt", "greedy_text", "greedy_ids");
    check_demo_text(&r, want, "chat_text", "chat_greedy_text", "chat_greedy_ids");
    json_decref(want);
    vrig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(test_greedy), cmocka_unit_test(test_prompt),
           cmocka_unit_test(test_characters), cmocka_unit_test(test_printable),
           cmocka_unit_test(test_sampling), cmocka_unit_test(test_end),
           cmocka_unit_test(test_end_at_once), cmocka_unit_test(test_generate_refused),
           cmocka_unit_test(test_demo_text))
