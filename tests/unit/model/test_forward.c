/* The forward pass: logits of every family against transformers, the same result from blocks,
 * groups, cached steps, backends and any number of threads, and bad input. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/devices.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { TOKENS = VRIG_TOKENS, VOCAB = VRIG_VOCAB, HIDDEN = VRIG_HIDDEN };

/* kind: tiny or packed; file: "" or "/NAME" */
static void golden_path(char path[128], const char *kind, const char *family, const char *file)
{
    snprintf(path, 128, "tests/golden/%s_%s%s", kind, family, file);
}

static double largest(const float *x, size_t n)
{
    double max = 0;
    for (size_t i = 0; i < n; i++)
        max = fabs((double)x[i]) > max ? fabs((double)x[i]) : max;
    return max;
}

/* Compares the logits of all positions of one sequence with a golden array. */
static void check_logits(const char *model, const char *backend, const int32_t *ids, size_t n,
                         const char *golden, double tolerance)
{
    vrig r;
    vptq_err err = {0};
    vtest_npy want;
    size_t starts[2] = {0, n};
    vrig_open_forward(&r, model, backend, 2, n);
    vtest_npy_load(golden, &want);
    assert_int_equal(want.count, n * r.m.desc->vocab);
    float *hidden = vtest_alloc(n * r.m.desc->hidden, sizeof *hidden);
    float *logits = vtest_alloc(want.count, sizeof *logits);
    vrig_run_blocks(&r, ids, starts, 1, hidden);
    assert_ok(vptq_forward_logits(r.f, n, hidden, logits, &err), &err);
    const float *w = vtest_npy_as(&want, "f4");
    assert_close(logits, w, want.count, tolerance * largest(w, want.count), 0);
    free(hidden);
    free(logits);
    vtest_npy_free(&want);
    vrig_close(&r);
}

/* ---- families ---- */

static void check_families(const char *kind, int count, double tolerance)
{
    for (int i = 0; i < count; i++) {
        char model[128], golden[128];
        int32_t *ids = vrig_tiny_ids(vrig_families[i]);
        golden_path(model, kind, vrig_families[i], "");
        golden_path(golden, kind, vrig_families[i], "/logits.npy");
        check_logits(model, "ref", ids, TOKENS, golden, tolerance);
        check_logits(model, "cpu", ids, TOKENS, golden, tolerance);
        free(ids);
    }
}

static void test_families(void **state)
{
    (void)state;
    check_families("tiny", VRIG_ALL_FAMILIES, 1e-4);
}

/* A window up to the original context of longrope scaling has the short factors. */
static void test_short_window(void **state)
{
    (void)state;
    int32_t *ids = vrig_tiny_ids("phi4");
    check_logits(VRIG_TINY_OF("phi4"), "cpu", ids, 20, "tests/golden/tiny_phi4/logits_20.npy",
                 1e-4);
    free(ids);
}

/* Packed models written by the tools, with the logits that upstream's loaders computed. */
static void test_packed(void **state)
{
    (void)state;
    check_families("packed", VRIG_FAMILIES, 1e-5);
}

/* ---- steps ---- */

/* The logits after every step, with the cache filled in pieces of several sizes: few rows are
 * multiplied with the stored weights, more rows with converted ones. */
static void check_steps(const char *kind, const char *family, const int32_t *ids)
{
    const size_t pieces[][4] = {{1, 1, 1, 37}, {7, 20, 12, 1}, {40, 0, 0, 0}};
    char model[128], golden[128];
    vrig r;
    vptq_err err = {0};
    float logits[VOCAB];
    vtest_npy want;
    golden_path(model, kind, family, "");
    golden_path(golden, kind, family, "/logits.npy");
    vtest_npy_load(golden, &want);
    const float *w = vtest_npy_as(&want, "f4");
    vrig_open_forward(&r, model, "cpu", 2, TOKENS);
    const double limit = 1e-4 * largest(w, want.count);
    for (int p = 0; p < 3; p++) {
        vrig_reset(r.f);
        for (size_t k = 0, first = 0; k < 4 && pieces[p][k]; first += pieces[p][k++]) {
            const size_t last = first + pieces[p][k] - 1;
            assert_ok(vrig_step(r.f, ids + first, pieces[p][k], logits, &err), &err);
            assert_close(logits, w + last * VOCAB, VOCAB, limit, 0);
        }
    }
    assert_fails(vrig_step(r.f, ids, 1, logits, &err), VPTQ_E_ARG, &err,
                 "cache of 40 tokens: 40 used, cannot add 1");
    vtest_npy_free(&want);
    vrig_close(&r);
}

static void test_steps(void **state)
{
    (void)state;
    for (int i = 0; i < VRIG_ALL_FAMILIES; i++) {
        int32_t *ids = vrig_tiny_ids(vrig_families[i]);
        check_steps("tiny", vrig_families[i], ids);
        if (i < VRIG_FAMILIES)
            check_steps("packed", vrig_families[i], ids);
        free(ids);
    }
}

/* vptq_forward_next samples the token that the op `sample` gives for the logits of the step. */
static void check_next(const char *backend, const int32_t *ids)
{
    static const double u[] = {0, 0.1, 0.9, 0.5};
    static const vptq_forward_sampling choices[] = {
        {0, 1, &u[0]}, {1, 1, &u[1]}, {1, 0.5, &u[2]}, {3, 0.9, &u[3]}};
    vrig r;
    vptq_device ref;
    vptq_err err = {0};
    float logits[VOCAB];
    vrig_open_forward(&r, VRIG_TINY_OF("qwen3"), backend, 2, TOKENS);
    assert_ok(vptq_device_open(&r.ctx, "ref", &ref, &err), &err);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const vptq_forward_sampling *c = &choices[i];
        int32_t next, want;
        const vptq_sample_args s = {.n = 1,
                                    .vocab = VOCAB,
                                    .logits = logits,
                                    .ld = VOCAB,
                                    .temperature = c->temperature,
                                    .top_p = c->top_p,
                                    .u = c->u,
                                    .ids = &want};
        vrig_reset(r.f);
        assert_ok(vrig_step(r.f, ids, 7 + i, logits, &err), &err);
        vrig_reset(r.f);
        assert_ok(vptq_forward_next(r.f, ids, 7 + i, c, &next, &err), &err);
        assert_ok(ref.ops->sample(ref.state, &s, &err), &err);
        assert_int_equal(next, want);
    }
    assert_fails(vptq_forward_next(r.f, ids, TOKENS, choices, &(int32_t){0}, &err), VPTQ_E_ARG,
                 &err, "cache of 40");
    vptq_device_close(&ref);
    vrig_close(&r);
}

static void test_next(void **state)
{
    (void)state;
    int32_t *ids = vrig_tiny_ids("qwen3");
    assert_string_equal(vptq_backend_emu()->name, "emu"); /* links the backend */
    check_next("ref", ids);
    check_next("cpu", ids);
    check_next("emu", ids);
    free(ids);
}

/* ---- groups and threads ---- */

/* Sequences of 1, 5, 12 and 22 tokens give the same together as alone. */
static void test_groups(void **state)
{
    (void)state;
    const size_t starts[5] = {0, 1, 6, 18, TOKENS};
    for (int i = 0; i < VRIG_ALL_FAMILIES; i++) {
        vrig r;
        char path[128];
        float together[TOKENS * VRIG_MAX_HIDDEN], alone[TOKENS * VRIG_MAX_HIDDEN];
        int32_t *ids = vrig_tiny_ids(vrig_families[i]);
        golden_path(path, "tiny", vrig_families[i], "");
        vrig_open_forward(&r, path, "cpu", 2, 22);
        const size_t dim = r.m.desc->hidden;
        vrig_run_blocks(&r, ids, starts, 4, together);
        for (int s = 0; s < 4; s++) {
            const size_t one[2] = {0, starts[s + 1] - starts[s]};
            vrig_run_blocks(&r, ids + starts[s], one, 1, alone + starts[s] * dim);
        }
        assert_close(together, alone, TOKENS * dim, 1e-5, 1e-5);
        free(ids);
        vrig_close(&r);
    }
}

static void test_group_end(void **state)
{
    (void)state;
    const size_t starts[] = {0, 1000, 2000, 2048, 2049, 6000, 6001};
    assert_int_equal(vptq_forward_group(starts, 6, 0), 3); /* exactly full */
    assert_int_equal(vptq_forward_group(starts, 6, 1), 4);
    assert_int_equal(vptq_forward_group(starts, 6, 3), 4);
    assert_int_equal(vptq_forward_group(starts, 6, 4), 5); /* a sequence longer than a group */
    assert_int_equal(vptq_forward_group(starts, 6, 5), 6);
}

static void test_threads(void **state)
{
    (void)state;
    const size_t starts[3] = {0, 17, TOKENS};
    float hidden[2][TOKENS * HIDDEN];
    int32_t *ids = vrig_tiny_ids("qwen3");
    for (int t = 0; t < 2; t++) {
        vrig r;
        vrig_open_forward(&r, VRIG_TINY_OF("qwen3"), "cpu", t ? 3 : 1, TOKENS);
        vrig_run_blocks(&r, ids, starts, 2, hidden[t]);
        vrig_close(&r);
    }
    assert_same_f32(hidden[0], hidden[1], TOKENS * HIDDEN);
    free(ids);
}

/* ---- head ---- */

static void test_loss(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vtest_npy want;
    size_t starts[2] = {0, TOKENS};
    float hidden[TOKENS * HIDDEN];
    int32_t targets[TOKENS];
    vptq_nll_state nll[TOKENS];
    int32_t *ids = vrig_tiny_ids("llama3");
    vtest_npy_load(VRIG_TINY_OF("llama3") "/logits.npy", &want);
    const float *logits = vtest_npy_as(&want, "f4");
    vrig_open_forward(&r, VRIG_TINY_OF("llama3"), "cpu", 2, TOKENS);
    vrig_run_blocks(&r, ids, starts, 1, hidden);
    for (int i = 0; i < TOKENS; i++)
        targets[i] = i % 5 ? ids[i] : -1;
    assert_ok(vptq_forward_loss(r.f, TOKENS, hidden, targets, nll, &err), &err);
    for (int i = 0; i < TOKENS; i++) {
        const float *row = logits + i * VOCAB;
        double sum = 0; /* of the golden exp(logit) */
        int32_t best = 0;
        for (int v = 0; v < VOCAB; v++) {
            sum += exp((double)row[v]);
            best = row[v] > row[best] ? v : best;
        }
        assert_int_equal(nll[i].best_id, best);
        const double found = log(nll[i].sum) + nll[i].max, expected = log(sum);
        assert_close_f64(&found, &expected, 1, 1e-4, 0);
        if (targets[i] >= 0)
            assert_close(&nll[i].target, &row[targets[i]], 1, 1e-4, 0);
    }
    vtest_npy_free(&want);
    free(ids);
    vrig_close(&r);
}

/* ---- bad input ---- */

static vptq_status failing_hook(void *arg, vptq_input input, size_t sequence, size_t tokens,
                                size_t dim, const float *x, vptq_err *err)
{
    (void)arg, (void)sequence, (void)tokens, (void)dim, (void)x;
    return input == VPTQ_INPUT_DOWN ? vptq_fail(err, VPTQ_E_IO, "hook") : VPTQ_OK;
}

static void test_bad_input(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    vptq_forward *none;
    float hidden[TOKENS * HIDDEN];
    size_t starts[2] = {0, 9}, empty[2] = {0, 0};
    int32_t *ids = vrig_tiny_ids("mistral"), bad[2] = {3, VOCAB}, negative = -1;
    vrig_open_forward(&r, VRIG_TINY_OF("mistral"), "cpu", 2, 8);
    assert_fails(vptq_forward_open(&r.m, &r.dev, 0, &none, &err), VPTQ_E_ARG, &err, "length");
    assert_fails(vptq_forward_open(&r.m, &r.dev, SIZE_MAX / 8, &none, &err), VPTQ_E_NOMEM, &err,
                 "");
    assert_fails(vptq_forward_embed(r.f, bad, 2, hidden, &err), VPTQ_E_ARG, &err,
                 "token 1 is 48");
    assert_fails(vptq_forward_embed(r.f, &negative, 1, hidden, &err), VPTQ_E_ARG, &err, "-1");
    assert_ok(vptq_forward_embed(r.f, ids, 9, hidden, &err), &err);
    assert_fails(vptq_forward_block(r.f, 0, starts, 1, hidden, &err), VPTQ_E_ARG, &err,
                 "9 tokens");
    assert_fails(vptq_forward_block(r.f, 0, empty, 1, hidden, &err), VPTQ_E_ARG, &err,
                 "0 tokens");
    starts[1] = 8;
    const vptq_block_hooks hooks = {.hook = failing_hook};
    assert_fails(vptq_forward_block_with(r.f, 1, starts, 1, hidden, &hooks, &err), VPTQ_E_IO,
                 &err, "layer 1: hook");
    sig_atomic_t stop = 1;
    r.ctx.cancel = &stop;
    assert_fails(vptq_forward_block(r.f, 0, starts, 1, hidden, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    free(ids);
    vrig_close(&r);
}

/* Opens a model, runs every part of the forward pass and closes it. */
static vptq_status run_all(void *arg, vptq_device *dev, vptq_err *err)
{
    const int32_t *ids = arg;
    vptq_model m;
    vptq_forward *f = NULL;
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    size_t starts[3] = {0, 13, TOKENS};
    float hidden[TOKENS * HIDDEN], logits[VOCAB];
    vptq_nll_state nll[TOKENS];
    vptq_status st = vptq_model_open(dev->ctx, VRIG_TINY_OF("qwen2"), &opt, false, &m, err);
    if (st)
        return st;
    VPTQ_TRY(vptq_forward_open(&m, dev, TOKENS, &f, err));
    VPTQ_TRY(vptq_forward_embed(f, ids, TOKENS, hidden, err));
    VPTQ_TRY(vptq_forward_block(f, 0, starts, 2, hidden, err));
    VPTQ_TRY(vptq_forward_loss(f, TOKENS, hidden, ids, nll, err));
    VPTQ_TRY(vrig_step(f, ids, 5, logits, err));
out:
    vptq_forward_close(f);
    vptq_model_release(&m);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    int32_t *ids = vrig_tiny_ids("qwen2");
    assert_true(devices_oom_walk("cpu", 1, run_all, ids) > 10);
    free(ids);
}

/* ---- real models ---- */

/* Reads the first array of integers in a JSON file; free(). */
static int32_t *read_prompt(const char *path, size_t *n)
{
    size_t size;
    char *text = vtest_read_file(path, &size);
    int32_t *ids = vtest_alloc(size, sizeof *ids);
    char *p = strchr(text, '[');
    assert_non_null(p);
    *n = 0;
    for (p++; *p && *p != ']'; p++) {
        char *end;
        long id = strtol(p, &end, 10);
        if (end == p)
            continue;
        ids[(*n)++] = (int32_t)id;
        p = end;
        if (*p == ']')
            break;
    }
    free(text);
    return ids;
}

static void check_stories(const char *model)
{
    char path[4096], golden[4096], prompt[4096], name[128];
    size_t n;
    if (!vtest_data(path, sizeof path, model))
        skip();
    snprintf(name, sizeof name, "%s/logits_f32.npy", model);
    if (!vtest_data(golden, sizeof golden, name))
        skip();
    snprintf(name, sizeof name, "%s/prompt_ids.json", model);
    if (!vtest_data(prompt, sizeof prompt, name))
        skip();
    int32_t *ids = read_prompt(prompt, &n);
    assert_int_equal(n, 64);
    check_logits(path, "cpu", ids, n, golden, 1e-4);
    check_logits(path, "ref", ids, n, golden, 1e-4);
    free(ids);
}

static void test_stories_hf(void **state)
{
    (void)state;
    check_stories("models/stories260K-hf");
}

static void test_stories_packed(void **state)
{
    (void)state;
    check_stories("golden/vptq_model_stories260K");
}

/* The demo model, and the ids of its golden outputs; free(). */
static bool open_demo(vrig *r, size_t length, int32_t **ids)
{
    char path[4096];
    size_t size;
    *ids = NULL;
    if (!vtest_data(path, sizeof path, "golden/smollm2/wikitext2_w16.i32") ||
        !vrig_open_demo(r, length))
        return false;
    *ids = (int32_t *)(void *)vtest_read_file(path, &size);
    return true;
}

static void load_golden(const char *name, vtest_npy *a)
{
    char path[4096];
    assert_true(vtest_data(path, sizeof path, name));
    vtest_npy_load(path, a);
}

static void test_demo_logits(void **state)
{
    (void)state;
    enum { LENGTH = 64, LAST = LENGTH - 1 };
    vrig r;
    vptq_err err = {0};
    vtest_npy want, want_hidden;
    const size_t starts[2] = {0, LENGTH};
    int32_t *ids;
    if (!open_demo(&r, LENGTH, &ids))
        skip();
    const size_t dim = r.m.desc->hidden, vocab = r.m.desc->vocab;
    float *hidden = vtest_alloc(LENGTH * dim, sizeof *hidden);
    float *logits = vtest_alloc(vocab, sizeof *logits), *last = vtest_alloc(dim, sizeof *last);
    load_golden("golden/smollm2/logits_pos63.npy", &want);
    load_golden("golden/smollm2/hidden_last_pos63.npy", &want_hidden);
    vrig_run_blocks(&r, ids, starts, 1, hidden);
    assert_ok(vptq_forward_logits(r.f, 1, hidden + LAST * dim, logits, &err), &err);
    assert_ok(vptq_forward_normalized(r.f, 1, hidden + LAST * dim, last, &err), &err);
    const float *w = vtest_npy_as(&want, "f4"), *h = vtest_npy_as(&want_hidden, "f4");
    assert_close(logits, w, vocab, 1e-4 * largest(w, vocab), 0);
    assert_close(last, h, dim, 1e-4 * largest(h, dim), 0);
    assert_ok(vrig_step(r.f, ids, LENGTH, logits, &err), &err);
    assert_close(logits, w, vocab, 1e-4 * largest(w, vocab), 0);
    vtest_npy_free(&want);
    vtest_npy_free(&want_hidden);
    free(ids);
    free(hidden);
    free(logits);
    free(last);
    vrig_close(&r);
}

static void test_demo_loss(void **state)
{
    (void)state;
    enum { LENGTH = 2048 };
    vrig r;
    vptq_err err = {0};
    vtest_npy want;
    const size_t starts[2] = {0, LENGTH};
    int32_t *ids;
    if (!open_demo(&r, LENGTH, &ids))
        skip();
    float *hidden = vtest_alloc(LENGTH * r.m.desc->hidden, sizeof *hidden);
    float *losses = vtest_alloc(LENGTH, sizeof *losses);
    vptq_nll_state *nll = vtest_alloc(LENGTH, sizeof *nll);
    vrig_run_blocks(&r, ids, starts, 1, hidden);
    assert_ok(vptq_forward_loss(r.f, LENGTH - 1, hidden, ids + 1, nll, &err), &err);
    for (size_t i = 0; i < LENGTH - 1; i++)
        losses[i] = (float)(log(nll[i].sum) + nll[i].max - (double)nll[i].target);
    load_golden("golden/smollm2/nll_window0.npy", &want);
    assert_int_equal(want.count, LENGTH - 1);
    assert_close(losses, vtest_npy_as(&want, "f4"), LENGTH - 1, 2e-3, 0);
    vtest_npy_free(&want);
    free(nll);
    free(losses);
    free(hidden);
    free(ids);
    vrig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(test_families), cmocka_unit_test(test_short_window),
           cmocka_unit_test(test_packed), cmocka_unit_test(test_steps),
           cmocka_unit_test(test_next), cmocka_unit_test(test_groups),
           cmocka_unit_test(test_group_end), cmocka_unit_test(test_threads),
           cmocka_unit_test(test_loss), cmocka_unit_test(test_bad_input),
           cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_stories_hf),
           cmocka_unit_test(test_stories_packed), cmocka_unit_test(test_demo_logits),
           cmocka_unit_test(test_demo_loss))
