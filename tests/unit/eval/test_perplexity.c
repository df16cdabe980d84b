/* Perplexity compared with losses summed by hand and with published ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/eval/perplexity.h"
#include "lib/model/forward.h"
#include "tests/support/devices.h"
#include "tests/support/vcount.h"
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
        assert_ok(vptq_forward_block(f, l, starts, 1, h, &err), &err);
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
    size_t count;         /* windows of 100 ids with a context of 16 */
    size_t first, others; /* first scored row of window 0 and of the others */
    size_t step;          /* between windows */
} window_case;

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
    vrig_windows log_ = {0};
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
    const vptq_eval_watch watch = {
        .window = vrig_log_window, .arg = &log_, .losses = &got, .arena = &arena};
    assert_ok(vptq_eval_ppl(&r->dev, &r->m, &opt, &watch, &res, &err), &err);
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
        {2, 0, VPTQ_PPL_GPTQ, 2, 0, 0, 16},      /* fewer than exist */
        {99, 0, VPTQ_PPL_GPTQ, 6, 0, 0, 16},     /* more than exist */
        {0, 5, VPTQ_PPL_GPTQ, 17, 0, 10, 5},     /* overlap: every id once */
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

/* Less memory means smaller batches and the same figures. */
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
        const vptq_eval_watch watch = {.losses = &nll[i], .arena = &arena};
        assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, &watch, &res[i], &err), &err);
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
    assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, NULL, &res, &err), &err);
    assert_int_equal(res.windows, 6);
    assert_int_equal(res.tokens, 90);
    assert_true(res.bits_per_weight == 16);
    vrig_close(&r);
}

static void check_refused(vrig *r, vptq_ppl_options opt, vptq_status code, const char *part)
{
    vptq_err err = {0};
    vptq_ppl_result res;
    assert_fails(vptq_eval_ppl(&r->dev, &r->m, &opt, NULL, &res, &err), code, &err, part);
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
    check_refused(&r, (vptq_ppl_options){.corpus = ids, .context = 16, .stride = 17},
                  VPTQ_E_ARG, "stride 17 is longer than the context of 16");
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

static vptq_status small_ppl(void *arg, vptq_device *dev, vptq_err *err)
{
    const char *files[] = {arg};
    vptq_model m;
    vptq_checkpoint_options none = {.tokenizer = NULL};
    vptq_ppl_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = 16};
    vptq_ppl_result res;
    double *nll;
    vptq_arena arena;
    VPTQ_CHECK(vptq_model_open(dev->ctx, VRIG_TINY, &none, false, &m, err));
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_eval_watch watch = {.losses = &nll, .arena = &arena};
    const vptq_status st = vptq_eval_ppl(dev, &m, &opt, &watch, &res, err);
    vptq_arena_release(&arena);
    vptq_model_release(&m);
    return st;
}

static void test_no_memory(void **state)
{
    char path[4096];
    free(vrig_ids(*state, 100, path, sizeof path));
    assert_true(devices_oom_walk("cpu", 1, small_ppl, path) > 10);
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
    const vptq_eval_watch watch = {.window = check_story, .arg = &stories};
    assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, &watch, &res, &err), &err);
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
    assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, NULL, &res, &err), &err);
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

/* Three groups on a device with its own memory: weights, hidden states and targets are uploaded
 * once.  With no free memory everything is uploaded for each group, with the same result. */
static void test_uploads(void **state)
{
    enum { CONTEXT = 1050, WINDOWS = 3, TOKENS = CONTEXT * WINDOWS };
    char path[4096];
    const char *files[] = {path};
    vptq_ppl_options opt = {.corpus = {.tokens = files, .token_count = 1}, .context = CONTEXT};
    vptq_ppl_result res[2];
    free(vrig_ids(*state, TOKENS, path, sizeof path));
    for (int fits = 1; fits >= 0; fits--) {
        vrig r;
        vptq_err err = {0};
        vrig_open_on(&r, VRIG_TINY, NULL, "ref", 2);
        vcount_start(&r.dev, fits ? SIZE_MAX : 0);
        assert_ok(vptq_eval_ppl(&r.dev, &r.m, &opt, NULL, &res[fits], &err), &err);
        const vcount c = vcount_of(&r.m);
        const size_t weights = vcount_block_weights(&r.m) + r.m.head->bytes;
        const size_t scored =
            (size_t)res[fits].tokens * 2 * sizeof(int32_t); /* rows, targets */
        const size_t head_dim = r.m.desc->head_dim;         /* tables of angles; norms */
        const size_t tables = (CONTEXT * head_dim + 5 * VRIG_HIDDEN) * sizeof(float);
        if (!fits) {
            assert_true(c.weights >= WINDOWS * weights);
        } else {
            assert_int_equal(c.weights, weights);
            assert_int_equal(c.uploaded - weights,
                             TOKENS * VRIG_HIDDEN * sizeof(float) + scored + tables);
        }
        vrig_close(&r);
    }
    assert_true(res[0].nll == res[1].nll && res[0].tokens == res[1].tokens);
}

VTEST_MAIN(scratch_test(test_windows), scratch_test(test_batches), scratch_test(test_dry_run),
           scratch_test(test_refused), scratch_test(test_not_finite),
           scratch_test(test_no_memory), cmocka_unit_test(test_stories_documents),
           scratch_test(test_stories_hf), scratch_test(test_stories_packed),
           scratch_test(test_uploads))
