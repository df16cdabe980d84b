/* Perplexity against losses summed by hand and against published ones, generation against its
 * golden text, errors of quantized matrices against double precision written out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "hessian/collect.h"
#include "lib/eval/error.h"
#include "lib/eval/generate.h"
#include "lib/eval/kld.h"
#include "lib/eval/perplexity.h"
#include "lib/model/forward.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

/* ---- perplexity on a tiny model ---- */

/* nll[i] = loss of ids[i + 1] after ids[0..i], from whole logits in double. */
static void losses_by_hand(vrig *r, const int32_t *ids, size_t n, double *nll)
{
    vptq_err err = {0};
    vptq_forward *f;
    size_t starts[2] = {0, n};
    float *h = vtest_alloc(n * VRIG_HIDDEN, sizeof *h),
          *z = vtest_alloc(n * VRIG_VOCAB, sizeof *z);
    assert_ok(vptq_forward_open(&r->m, &r->dev, n, &f, &err), &err);
    assert_ok(vptq_forward_embed(f, ids, n, h, &err), &err);
    for (uint32_t l = 0; l < r->m.desc->layers; l++)
        assert_ok(vptq_forward_block(f, l, starts, 1, h, NULL, NULL, &err), &err);
    assert_ok(vptq_forward_logits(f, n, h, z, &err), &err);
    for (size_t i = 0; i + 1 < n; i++) {
        double sum = 0;
        for (size_t v = 0; v < VRIG_VOCAB; v++)
            sum += exp((double)z[i * VRIG_VOCAB + v]);
        nll[i] = log(sum) - (double)z[i * VRIG_VOCAB + (size_t)ids[i + 1]];
    }
    vptq_forward_close(f);
    free(h);
    free(z);
}

typedef struct window_case {
    size_t windows, stride;
    vptq_ppl_protocol protocol;
    size_t count;         /* windows that 100 ids give with a context of 16 */
    size_t first, others; /* first scored row of window 0 and of the others */
    size_t step;          /* between windows */
} window_case;

typedef struct window_log {
    uint64_t count, tokens;
    double sum;
} window_log;

static void log_window(void *arg, uint64_t window, double nll, uint64_t tokens)
{
    window_log *w = arg;
    assert_int_equal(window, w->count++);
    w->tokens += tokens;
    w->sum += nll * (double)tokens;
}

static void check_windows(vrig *r, const char *path, const int32_t *ids, const window_case *c)
{
    vptq_err err = {0};
    const char *files[] = {path};
    vptq_ppl_options opt = {.corpus = {.tokens = files, .token_count = 1},
                            .context = 16,
                            .windows = c->windows,
                            .stride = c->stride,
                            .protocol = c->protocol};
    vptq_ppl_result res;
    window_log log_ = {0};
    double want[100], *got, sum = 0, square = 0;
    size_t n = 0;
    vptq_arena arena;
    vptq_arena_init(&arena, &r->mem);
    for (size_t w = 0; w < c->count; w++) {
        double nll[16];
        losses_by_hand(r, ids + w * c->step, 16, nll);
        for (size_t i = w ? c->others : c->first; i < 15; i++)
            want[n++] = nll[i];
    }
    for (size_t i = 0; i < n; i++)
        sum += want[i];
    for (size_t i = 0; i < n; i++)
        square += (want[i] - sum / (double)n) * (want[i] - sum / (double)n);
    assert_ok(vptq_eval_ppl(&r->dev, &r->m, &opt, log_window, &log_, &arena, &got, &res, &err),
              &err);
    assert_int_equal(res.windows, c->count);
    assert_int_equal(res.tokens, n);
    assert_close_f64(got, want, n, 1e-4, 0);
    double mean = sum / (double)n, ppl = exp(mean);
    double deviation = ppl * sqrt(square / (double)(n - 1) / (double)n);
    assert_close_f64(&res.nll, &mean, 1, 1e-5, 0);
    assert_close_f64(&res.ppl, &ppl, 1, 0, 1e-5);
    assert_close_f64(&res.ppl_stderr, &deviation, 1, 0, 1e-4);
    assert_int_equal(log_.count, c->count);
    assert_int_equal(log_.tokens, n);
    assert_close_f64(&log_.sum, &sum, 1, 1e-3, 0);
    vptq_arena_release(&arena);
}

static void test_windows(void **state)
{
    const window_case cases[] = {
        {0, 0, VPTQ_PPL_GPTQ, 6, 0, 0, 16},      /* 4 ids are left over */
        {2, 0, VPTQ_PPL_GPTQ, 2, 0, 0, 16},      /* fewer than there are */
        {99, 0, VPTQ_PPL_GPTQ, 6, 0, 0, 16},     /* more than there are */
        {0, 5, VPTQ_PPL_GPTQ, 17, 0, 10, 5},     /* overlap: every id once */
        {0, 21, VPTQ_PPL_GPTQ, 5, 0, 0, 21},     /* gaps */
        {0, 0, VPTQ_PPL_LLAMA_CPP, 6, 8, 8, 16}, /* second halves */
    };
    vrig r;
    char path[4096];
    int32_t *ids = vrig_ids(*state, 100, path, sizeof path);
    vrig_open(&r, VRIG_TINY, NULL, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_windows(&r, path, ids, &cases[i]);
    free(ids);
    vrig_close(&r);
}

/* Less memory means smaller batches, never another number. */
static void test_batches(void **state)
{
    enum { IDS = 20 * VPTQ_FORWARD_ROWS };
    vrig r;
    vptq_err err = {0};
    char path[4096];
    const char *files[] = {path};
    vptq_ppl_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = 64};
    vptq_ppl_result res[2];
    double *nll[2];
    vptq_arena arena;
    free(vrig_ids(*state, IDS, path, sizeof path));
    vrig_open(&r, VRIG_TINY, NULL, false);
    vptq_arena_init(&arena, NULL);
    for (int i = 0; i < 2; i++) {
        r.mem.cap = i ? r.mem.used + (12 << 20) : 0;
        r.mem.peak = r.mem.used;
        assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, NULL, NULL, &arena, &nll[i], &res[i], &err),
                  &err);
    }
    assert_true(r.mem.peak <= r.mem.cap);
    assert_int_equal(res[0].tokens, IDS / 64 * 63);
    assert_memory_equal(nll[0], nll[1], res[0].tokens * sizeof *nll[0]);
    assert_true(res[0].ppl == res[1].ppl);
    vptq_arena_release(&arena);
    vrig_close(&r);
}

static void test_dry_run(void **state)
{
    vrig r;
    vptq_err err = {0};
    char path[4096];
    const char *files[] = {path};
    vptq_ppl_options opt = {
        .corpus = {.tokens = files, .token_count = 1}, .context = 16, .dry_run = true};
    vptq_ppl_result res;
    free(vrig_ids(*state, 100, path, sizeof path));
    vrig_open(&r, VRIG_TINY, NULL, false);
    assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, NULL, NULL, NULL, NULL, &res, &err), &err);
    assert_int_equal(res.windows, 6);
    assert_int_equal(res.tokens, 90);
    assert_true(res.bits_per_weight == 16);
    vrig_close(&r);
}

static void check_refused(vrig *r, vptq_ppl_options opt, vptq_status code, const char *part)
{
    vptq_err err = {0};
    vptq_ppl_result res;
    assert_fails(vptq_eval_ppl(&r->dev, &r->m, &opt, NULL, NULL, NULL, NULL, &res, &err), code,
                 &err, part);
}

static void test_refused(void **state)
{
    vrig r;
    char path[4096];
    const char *files[] = {path};
    vptq_corpus_options ids = {.tokens = files, .token_count = 1};
    vptq_corpus_options text = {.texts = files, .text_count = 1};
    free(vrig_ids(*state, 100, path, sizeof path));
    vrig_open(&r, VRIG_TINY, NULL, false);
    check_refused(&r, (vptq_ppl_options){.corpus = ids, .context = 101}, VPTQ_E_FORMAT,
                  "100 tokens, one window needs 101");
    check_refused(&r, (vptq_ppl_options){.corpus = ids, .context = 1}, VPTQ_E_ARG, "context 1");
    check_refused(
        &r, (vptq_ppl_options){.corpus = ids, .context = 2, .protocol = VPTQ_PPL_LLAMA_CPP},
        VPTQ_E_ARG, "no token to score");
    check_refused(
        &r,
        (vptq_ppl_options){
            .corpus = ids, .context = 16, .stride = 4, .protocol = VPTQ_PPL_LLAMA_CPP},
        VPTQ_E_ARG, "no stride");
    check_refused(&r, (vptq_ppl_options){.corpus = text, .context = 16}, VPTQ_E_ARG,
                  "tokenizer");
    check_refused(&r, (vptq_ppl_options){.corpus = ids, .documents = "|", .context = 16},
                  VPTQ_E_ARG, "one text");
    check_refused(&r, (vptq_ppl_options){.corpus = text, .documents = "|", .context = 16},
                  VPTQ_E_ARG, "tokenizer");
    check_refused(
        &r, (vptq_ppl_options){.corpus = text, .documents = "|", .context = 16, .windows = 2},
        VPTQ_E_ARG, "documents are scored whole");
    vrig_close(&r);
}

static void test_not_finite(void **state)
{
    vrig r;
    char path[4096];
    const char *files[] = {path};
    vptq_corpus_options ids = {.tokens = files, .token_count = 1};
    uint16_t bad[VRIG_HIDDEN];
    free(vrig_ids(*state, 100, path, sizeof path));
    vrig_open(&r, VRIG_TINY, NULL, false);
    for (size_t i = 0; i < VRIG_HIDDEN; i++)
        bad[i] = 0x7fc0; /* NaN in bfloat16 */
    for (size_t i = 0; i < r.m.ckpt.set.count; i++)
        if (&r.m.ckpt.set.tensors[i] == r.m.final_norm)
            r.m.ckpt.set.tensors[i].data = (const uint8_t *)bad;
    check_refused(&r, (vptq_ppl_options){.corpus = ids, .context = 16}, VPTQ_E_NUMERIC,
                  "not finite in window 0");
    vrig_close(&r);
}

static vptq_status small_ppl(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const char *files[] = {arg};
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev;
    vptq_model m;
    bool has_model = false;
    vptq_checkpoint_options none = {.tokenizer = NULL};
    vptq_ppl_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = 16};
    vptq_ppl_result res;
    double *nll;
    vptq_arena arena;
    st = vptq_device_open(&ctx, "cpu", &dev, err);
    if (st)
        return st;
    vptq_arena_init(&arena, mem);
    VPTQ_TRY(vptq_model_open(&ctx, VRIG_TINY, &none, false, &m, err));
    has_model = true;
    VPTQ_TRY(vptq_eval_ppl(&dev, &m, &opt, NULL, NULL, &arena, &nll, &res, err));
out:
    vptq_arena_release(&arena);
    if (has_model)
        vptq_model_release(&m);
    vptq_device_close(&dev);
    return st;
}

static void test_no_memory(void **state)
{
    char path[4096];
    free(vrig_ids(*state, 100, path, sizeof path));
    assert_true(vtest_oom_walk(small_ppl, path) > 10);
}

/* ---- perplexity of trained models ---- */

typedef struct story_log {
    json_t *want; /* [[length, sum of losses], ..] */
    size_t seen;
} story_log;

static void check_story(void *arg, uint64_t window, double nll, uint64_t tokens)
{
    story_log *s = arg;
    const json_t *row = json_array_get(s->want, (size_t)window);
    s->seen++;
    if (!row)
        return;
    double sum = json_number_value(json_array_get(row, 1)), got = nll * (double)tokens;
    assert_int_equal(tokens + 1, json_integer_value(json_array_get(row, 0)));
    assert_close_f64(&got, &sum, 1, 0, 1e-5);
}

static void test_stories_documents(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    char model[4096], tokenizer[4096], text[4096], golden[4096];
    const char *files[] = {text};
    vptq_ppl_result res;
    json_t *base;
    if (!vtest_data(model, sizeof model, "models/stories260K/stories260K.bin") ||
        !vtest_data(tokenizer, sizeof tokenizer, "models/stories260K/tok512.bin") ||
        !vtest_data(text, sizeof text, "text/tinystories/tiny.utf8") ||
        !vtest_data(golden, sizeof golden, "golden/baseline_f64.json"))
        skip();
    assert_ok(vptq_json_load(golden, 1 << 20, &base, &err), &err);
    const json_t *eval = json_object_get(json_object_get(base, "stories260K"), "eval");
    story_log stories = {.want = json_object_get(eval, "per_story_len_and_nll_sum")};
    vptq_ppl_options opt = {.corpus = {.texts = files, .text_count = 1},
                            .documents = "<|endoftext|>",
                            .document_limit = 100,
                            .context = 512};
    vrig_open(&r, model, tokenizer, true);
    assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, check_story, &stories, NULL, NULL, &res, &err),
              &err);
    double ppl = json_number_value(json_object_get(eval, "ppl"));
    assert_close_f64(&res.ppl, &ppl, 1, 0, 1e-6);
    assert_int_equal(res.tokens, json_integer_value(json_object_get(eval, "predicted_tokens")));
    assert_int_equal(res.windows + res.skipped, 100);
    assert_int_equal(stories.seen, res.windows);
    json_decref(base);
    vrig_close(&r);
}

/* The 40 windows of 256 ids of the model's expected.json. */
static void check_published(const char *dir, const char *model)
{
    vrig r;
    vptq_err err = {0};
    char path[4096], expected[4096], npy[4096], ids[4096], name[128];
    const char *files[] = {ids};
    vtest_npy tokens;
    vptq_ppl_result res;
    json_t *want;
    snprintf(name, sizeof name, "%s/expected.json", model);
    if (!vtest_data(path, sizeof path, model) || !vtest_data(expected, sizeof expected, name) ||
        !vtest_data(npy, sizeof npy, "models/stories260K-hf/ppl_tokens.npy"))
        skip();
    vtest_npy_load(npy, &tokens);
    int32_t *wide = vtest_alloc(tokens.count, sizeof *wide);
    for (size_t i = 0; i < tokens.count; i++)
        wide[i] = (int32_t)vtest_npy_at(&tokens, i);
    vtest_path(ids, sizeof ids, dir, "ids");
    vtest_write_file(ids, wide, tokens.count * sizeof *wide);
    assert_ok(vptq_json_load(expected, 1 << 20, &want, &err), &err);
    const json_t *row = json_array_get(json_object_get(want, "ppl"), 0);
    vrig_open(&r, path, NULL, false);
    vptq_ppl_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = 256};
    assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, NULL, NULL, NULL, NULL, &res, &err), &err);
    double ppl = json_number_value(json_object_get(row, "ppl"));
    assert_int_equal(res.windows, json_integer_value(json_object_get(row, "windows")));
    assert_close_f64(&res.ppl, &ppl, 1, 0, 1e-5);
    json_decref(want);
    vtest_npy_free(&tokens);
    free(wide);
    vrig_close(&r);
}

static void test_stories_hf(void **state)
{
    check_published(*state, "models/stories260K-hf");
}

static void test_stories_packed(void **state)
{
    check_published(*state, "golden/vptq_model_stories260K");
}

/* ---- generation ---- */

typedef struct collected {
    char text[1 << 14];
    size_t len, calls;
} collected;

static void collect_text(void *arg, const char *text, size_t len)
{
    collected *c = arg;
    assert_true(len > 0 && c->len + len < sizeof c->text);
    memcpy(c->text + c->len, text, len);
    c->len += len;
    c->text[c->len] = 0;
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
    assert_ok(vptq_eval_generate(&r->dev, &r->m, o, collect_text, c, ids, &result, &err), &err);
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

/* The text of an uncut run continues a prompt that is its beginning. */
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

/* Every piece of text ends between characters, and the pieces are the text of the ids. */
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
    assert_string_not_equal(c[0].text, c[2].text); /* another one */
    assert_string_equal(c[3].text, c[5].text);     /* only the likeliest is kept */
    assert_string_equal(c[4].text, c[5].text);     /* cold */
    free(c);
    vrig_close(&r);
}

/* An end token ends it: the token that greedy text takes third is made one. */
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

/* The first token ends the text, and is not shown. */
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
    vrig_open(&r, VRIG_TINY, NULL, false);
    vptq_ids_init(&ids, &r.mem);
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &o, NULL, NULL, &ids, NULL, &err), VPTQ_E_ARG,
                 &err, "tokenizer");
    vrig_close(&r);
    if (!stories_open(&r))
        skip();
    o.temperature = -1;
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &o, NULL, NULL, &ids, NULL, &err), VPTQ_E_ARG,
                 &err, "temperature -1");
    o.temperature = 1;
    o.top_p = 0;
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &o, NULL, NULL, &ids, NULL, &err), VPTQ_E_ARG,
                 &err, "top-p 0");
    o = greedy;
    o.tokens = SIZE_MAX;
    assert_fails(vptq_eval_generate(&r.dev, &r.m, &o, NULL, NULL, &ids, NULL, &err), VPTQ_E_ARG,
                 &err, "too many");
    vptq_ids_release(&ids);
    vrig_close(&r);
}

/* Greedy continuations of the demo model, of a plain and of a chat prompt. */
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

/* ---- error ---- */

typedef struct error_log {
    vptq_error_row rows[64];
    size_t count;
} error_log;

static vptq_status log_error(void *arg, const vptq_error_row *row, vptq_err *err)
{
    error_log *l = arg;
    (void)err;
    assert_true(l->count < 64);
    l->rows[l->count++] = *row;
    return VPTQ_OK;
}

static double *as_double(vrig *r, const vptq_weight *w)
{
    vptq_err err = {0};
    size_t n = w->rows * w->cols;
    float *x = vtest_alloc(n, sizeof *x);
    double *d = vtest_alloc(n, sizeof *d);
    assert_ok(vptq_weight_read(w, &r->dev, 0, w->rows, x, &err), &err);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    free(x);
    return d;
}

/* tr(A H A^T) for A [rows, n] and the lower triangle of H (NULL: the identity). */
static double trace(const double *a, size_t rows, size_t n, const float *lower)
{
    double sum = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = lower ? 0 : i; j <= i; j++) {
                double h = lower ? (double)lower[i * (i + 1) / 2 + j] : 1;
                sum += (i == j ? h : 2 * h) * a[r * n + i] * a[r * n + j];
            }
    return sum;
}

static void check_error_row(vrig *q, vrig *base, const vptq_error_row *row, vptq_linear l,
                            const float *lower)
{
    const vptq_weight *w = &base->m.blocks[row->layer].linear[l];
    double *a = as_double(base, w), *b = as_double(q, &q->m.blocks[row->layer].linear[l]);
    double norm = trace(a, w->rows, w->cols, NULL), worst = 0;
    double *row_norms = vtest_alloc(w->rows, sizeof *row_norms);
    for (size_t i = 0; i < w->rows; i++)
        row_norms[i] = trace(a + i * w->cols, 1, w->cols, NULL);
    double weighted = lower ? trace(a, w->rows, w->cols, lower) : 1;
    for (size_t i = 0; i < w->rows * w->cols; i++)
        a[i] = b[i] - a[i];
    double mse = trace(a, w->rows, w->cols, NULL) / norm;
    assert_string_equal(row->name, vptq_linear_name(l));
    assert_int_equal(row->rows, w->rows);
    assert_int_equal(row->columns, w->cols);
    assert_close_f64(&row->relative_mse, &mse, 1, 0, 1e-6);
    for (size_t i = 0; i < w->rows; i++) {
        double error = trace(a + i * w->cols, 1, w->cols, NULL) / row_norms[i];
        worst = error > worst ? error : worst;
        if (i == row->worst_row)
            assert_close_f64(&row->worst_row_mse, &error, 1, 0, 1e-12);
    }
    assert_close_f64(&row->worst_row_mse, &worst, 1, 0, 1e-12);
    free(row_norms);
    if (lower) {
        double loss = trace(a, w->rows, w->cols, lower) / weighted;
        assert_close_f64(&row->proxy_loss, &loss, 1, 0, 1e-5);
    } else {
        assert_true(isnan(row->proxy_loss));
    }
    free(a);
    free(b);
}

static bool error_rigs(vrig *q, vrig *base)
{
    char packed[4096], original[4096];
    if (!vtest_data(packed, sizeof packed, "golden/vptq_model_stories260K") ||
        !vtest_data(original, sizeof original, "models/stories260K-hf"))
        return false;
    vrig_open(q, packed, NULL, false);
    vrig_open(base, original, NULL, false);
    return true;
}

static void test_error(void **state)
{
    vrig q, base;
    vptq_err err = {0};
    char hdir[4096], file[4096], name[64], ids[4096];
    const char *files[] = {ids};
    vptq_collect_options collect = {.calibrate = {.corpus = {.tokens = files, .token_count = 1},
                                                  .windows = 2,
                                                  .length = 64},
                                    .last_layer = UINT32_MAX,
                                    .tool_version = "test"};
    vptq_collect_result done;
    vptq_hessian_file h;
    error_log plain = {.count = 0}, weighted = {.count = 0};
    if (!error_rigs(&q, &base))
        skip();
    free(vrig_ids(*state, 128, ids, sizeof ids));
    vtest_path(hdir, sizeof hdir, *state, "hessians");
    assert_ok(vptq_hessian_collect(&base.dev, &base.m, &collect, hdir, &done, &err), &err);
    assert_ok(
        vptq_eval_error(&q.dev, &q.m, &base.m, NULL, 0, UINT32_MAX, log_error, &plain, &err),
        &err);
    assert_int_equal(plain.count, 35);
    for (size_t i = 0; i < 35; i++) {
        assert_int_equal(plain.rows[i].layer, i / 7);
        check_error_row(&q, &base, &plain.rows[i], (vptq_linear)(i % 7), NULL);
    }
    assert_ok(vptq_eval_error(&q.dev, &q.m, &base.m, hdir, 2, 2, log_error, &weighted, &err),
              &err);
    assert_int_equal(weighted.count, 7);
    for (size_t i = 0; i < 7; i++) {
        vptq_hessian_file_name(name, 2, vptq_input_name(vptq_linear_input((vptq_linear)i)));
        vtest_path(file, sizeof file, hdir, name);
        assert_ok(vptq_hessian_file_read(file, 0, &base.mem, &h, &err), &err);
        check_error_row(&q, &base, &weighted.rows[i], (vptq_linear)i, h.lower);
        vptq_hessian_file_release(&h);
    }
    assert_fails(vptq_eval_error(&q.dev, &q.m, &q.m, hdir, 0, 1, log_error, &plain, &err),
                 VPTQ_E_MISMATCH, &err, "Hessians are of a model");
    vrig_close(&q);
    vrig_close(&base);
}

static void test_error_refused(void **state)
{
    (void)state;
    vrig q, base, other;
    vptq_err err = {0};
    error_log rows = {.count = 0};
    if (!error_rigs(&q, &base))
        skip();
    vrig_open(&other, VRIG_TINY, NULL, false);
    assert_fails(vptq_eval_error(&q.dev, &q.m, &other.m, NULL, 0, 1, log_error, &rows, &err),
                 VPTQ_E_MISMATCH, &err, "is not a version of");
    assert_fails(vptq_eval_error(&q.dev, &base.m, &base.m, NULL, 0, 1, log_error, &rows, &err),
                 VPTQ_E_UNSUPPORTED, &err, "no quantized matrix");
    assert_fails(vptq_eval_error(&q.dev, &q.m, &base.m, NULL, 3, 5, log_error, &rows, &err),
                 VPTQ_E_ARG, &err, "has layers 0 to 4");
    vrig_close(&other);
    vrig_close(&q);
    vrig_close(&base);
}

#define scratch_test(f)                                                                        \
    cmocka_unit_test_setup_teardown(f, vtest_scratch_setup, vtest_scratch_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        scratch_test(test_windows),
        scratch_test(test_batches),
        scratch_test(test_dry_run),
        scratch_test(test_refused),
        scratch_test(test_not_finite),
        scratch_test(test_no_memory),
        cmocka_unit_test(test_stories_documents),
        scratch_test(test_stories_hf),
        scratch_test(test_stories_packed),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_end_at_once),
        cmocka_unit_test(test_generate_refused),
        cmocka_unit_test(test_demo_text),
        scratch_test(test_error),
        cmocka_unit_test(test_error_refused),
    };
    return vtest_main(argc, argv, tests);
}
