/* Tests token weights: the terms of k and v against PyTorch's in double, and mixing them into
 * Hessians. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hessian/collect.h"
#include "lib/base/file.h"
#include "tests/support/vtest.h"

#define GOLDEN "tests/golden/attention_term/"
enum { PATH = 4096 };

typedef struct rig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
} rig;

static void rig_open(rig *r, const char *model, const char *backend)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    memset(r, 0, sizeof *r);
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.mem = &r->mem, .threads = 2};
    assert_ok(vptq_device_open(&r->ctx, backend, &r->dev, &err), &err);
    assert_ok(vptq_model_open(&r->ctx, model, &opt, false, &r->m, &err), &err);
}

static void rig_close(rig *r)
{
    vptq_model_release(&r->m);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
}

static void collect(rig *r, const char *ids, size_t length, vptq_token_weights weights,
                    const char *dir)
{
    vptq_err err = {0};
    const char *files[] = {ids};
    vptq_collect_result result;
    const vptq_collect_options opt = {
        .calibrate = {.corpus = {.tokens = files, .token_count = 1},
                      .windows = 16,
                      .length = length,
                      .weights = weights},
        .factor = 0.25,
        .last_layer = UINT32_MAX,
        .tool_version = "test"};
    assert_ok(vptq_hessian_collect(&r->dev, &r->m, &opt, dir, &result, &err), &err);
}

/* ---- against the golden terms ---- */

static void check_terms(rig *r, const char *dir, vptq_token_weights kind, const char *golden,
                        uint64_t windows, size_t length)
{
    vptq_err err = {0};
    vtest_npy want;
    const size_t n = r->m.desc->hidden, packed = n * (n + 1) / 2;
    vtest_npy_load(golden, &want);
    assert_int_equal(want.count, r->m.desc->layers * packed);
    const float *at = vtest_npy_as(&want, "f4");
    for (uint32_t layer = 0; layer < r->m.desc->layers; layer++, at += packed) {
        char path[PATH], name[64];
        vptq_hessian_file h;
        float largest = 0; /* gcc 12 for aarch64 cannot compile this loop in double */
        vptq_hessian_file_name(name, layer, "kv");
        vtest_path(path, sizeof path, dir, name);
        assert_ok(vptq_hessian_file_read(path, (uint32_t)n, NULL, &h, &err), &err);
        assert_int_equal(h.kind, kind);
        assert_int_equal(h.windows, windows);
        assert_int_equal(h.tokens, windows * length);
        for (size_t i = 0; i < packed; i++)
            largest = fmaxf(largest, fabsf(at[i]));
        assert_close(h.lower, at, packed, 2e-5 * (double)largest, 0);
        vptq_hessian_file_release(&h);
    }
    vtest_npy_free(&want);
}

static void check_model(const char *scratch, const char *model, const char *name,
                        uint64_t windows, size_t length)
{
    static const char *const backends[] = {"ref", "cpu"};
    for (int b = 0; b < 2; b++)
        for (int kind = VPTQ_WEIGHTS_SINK; kind <= VPTQ_WEIGHTS_ATTENTION; kind++) {
            const char *term = vptq_token_weights_name((vptq_token_weights)kind);
            char dir[PATH], ids[PATH], golden[PATH];
            rig r;
            snprintf(dir, sizeof dir, "%s/%s_%s_%s", scratch, name, term, backends[b]);
            snprintf(ids, sizeof ids, GOLDEN "%s_ids.i32", name);
            snprintf(golden, sizeof golden, GOLDEN "%s_%s.npy", name, term);
            rig_open(&r, model, backends[b]);
            collect(&r, ids, length, (vptq_token_weights)kind, dir);
            check_terms(&r, dir, (vptq_token_weights)kind, golden, windows, length);
            rig_close(&r);
        }
}

/* Grouped heads and a sliding window. */
static void test_terms_of_a_tiny_model(void **state)
{
    check_model(*state, "tests/golden/tiny_mistral", "mistral", 2, 20);
}

static void test_terms_of_a_trained_model(void **state)
{
    char model[PATH];
    if (!vtest_data(model, sizeof model, "models/stories260K-hf"))
        skip();
    check_model(*state, model, "stories", 4, 64);
}

/* ---- mixing ---- */

static void test_mixing(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_hessian_dir d;
    vptq_hessian_file h, term;
    char dir[PATH], path[PATH];
    vtest_path(dir, sizeof dir, *state, "h");
    rig_open(&r, "tests/golden/tiny_mistral", "cpu");
    collect(&r, GOLDEN "mistral_ids.i32", 20, VPTQ_WEIGHTS_SINK, dir);
    const uint32_t n = r.m.desc->hidden;
    const size_t packed = n * (n + 1) / 2;
    float *mixed = malloc(packed * sizeof *mixed), *want = malloc(packed * sizeof *want);

    assert_ok(vptq_hessian_dir_open(dir, &d, &err), &err);
    assert_int_equal(d.weights, VPTQ_WEIGHTS_SINK);
    assert_true(d.factor == 0.25);
    assert_int_equal(d.held_out_tokens, 0);
    assert_ok(vptq_hessian_dir_load(dir, 1, VPTQ_INPUT_QKV, n, NULL, &h, &err), &err);
    assert_int_equal(h.kind, VPTQ_WEIGHTS_PLAIN);
    vtest_path(path, sizeof path, dir, "layer_001_kv.safetensors");
    assert_ok(vptq_hessian_file_read(path, n, NULL, &term, &err), &err);
    vptq_hessian_mix mix = {VPTQ_WEIGHTS_SINK, 0, VPTQ_LINEAR_K};
    for (; mix.factor < 5; mix.factor += 2.5) {
        for (size_t i = 0; i < packed; i++)
            want[i] = (float)((double)h.lower[i] + mix.factor * (double)term.lower[i]);
        assert_ok(vptq_hessian_dir_load_mixed(dir, 1, &mix, &h, NULL, mixed, &err), &err);
        assert_same_f32(mixed, want, packed);
    }
    vptq_hessian_file wider = h;
    wider.n = n + 1;
    assert_fails(vptq_hessian_dir_load_mixed(dir, 1, &mix, &wider, NULL, mixed, &err),
                 VPTQ_E_SHAPE, &err, "layer_001_kv.safetensors");
    /* a term is not a Hessian, a Hessian is not a term, and the two kinds of terms differ */
    assert_ok(vptq_hessian_file_write(path,
                                      &(vptq_hessian_data){.n = n,
                                                           .tokens = 40,
                                                           .values = term.lower,
                                                           .mean = term.mean,
                                                           .kind = VPTQ_WEIGHTS_ATTENTION,
                                                           .windows = 2},
                                      &err),
              &err);
    assert_fails(vptq_hessian_dir_load_mixed(dir, 1, &mix, &h, NULL, mixed, &err),
                 VPTQ_E_MISMATCH, &err, "weights of kind attention, expected sink");
    assert_ok(vptq_hessian_file_write(
                  path,
                  &(vptq_hessian_data){.n = n, .tokens = 40, .values = h.lower, .mean = h.mean},
                  &err),
              &err);
    assert_fails(vptq_hessian_dir_load_mixed(dir, 1, &mix, &h, NULL, mixed, &err),
                 VPTQ_E_MISMATCH, &err, "weights of kind plain, expected sink");
    assert_int_equal(unlink(path), 0);
    assert_fails(vptq_hessian_dir_load_mixed(dir, 1, &mix, &h, NULL, mixed, &err),
                 VPTQ_E_FORMAT, &err, "layer_001_kv.safetensors is missing");
    vtest_path(path, sizeof path, dir, "layer_001_qkv.safetensors");
    assert_ok(vptq_hessian_file_write(path,
                                      &(vptq_hessian_data){.n = n,
                                                           .tokens = 40,
                                                           .values = term.lower,
                                                           .mean = term.mean,
                                                           .kind = VPTQ_WEIGHTS_SINK,
                                                           .windows = 2},
                                      &err),
              &err);
    vptq_hessian_file_release(&h);
    assert_fails(vptq_hessian_dir_load(dir, 1, VPTQ_INPUT_QKV, n, NULL, &h, &err),
                 VPTQ_E_MISMATCH, &err, "weights of kind sink, expected plain");
    vptq_hessian_file_release(&term);
    free(mixed);
    free(want);
    rig_close(&r);
}

static void test_plain_has_no_terms(void **state)
{
    rig r;
    char dir[PATH], path[PATH];
    vtest_path(dir, sizeof dir, *state, "h");
    rig_open(&r, "tests/golden/tiny_mistral", "cpu");
    collect(&r, GOLDEN "mistral_ids.i32", 20, VPTQ_WEIGHTS_PLAIN, dir);
    vtest_path(path, sizeof path, dir, "layer_000_kv.safetensors");
    assert_false(vptq_path_exists(path));
    rig_close(&r);
}

/* ---- parsing the option ---- */

static void test_parsing(void **state)
{
    static const struct {
        const char *text;
        vptq_token_weights weights;
        double factor;
    } good[] = {{"plain", VPTQ_WEIGHTS_PLAIN, 0},
                {"sink", VPTQ_WEIGHTS_SINK, 0.1},
                {"sink:0.5", VPTQ_WEIGHTS_SINK, 0.5},
                {"attention", VPTQ_WEIGHTS_ATTENTION, 1},
                {"attention:0", VPTQ_WEIGHTS_ATTENTION, 0},
                {"attention:1e2", VPTQ_WEIGHTS_ATTENTION, 100},
                {"guided:0", VPTQ_WEIGHTS_GUIDED, 0},
                {"guided:1", VPTQ_WEIGHTS_GUIDED, 1}};
    static const char *const bad[] = {"",          "sin",      "sinks",      "plain:1",
                                      ":1",        "sink:",    "sink:-1",    "sink:nan",
                                      "sink:1x",   "sink:inf", "sink:1e999", "attention:0.1:2",
                                      "guided:1.1"};
    vptq_token_weights weights;
    double factor;
    vptq_err err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(vptq_token_weights_parse(good[i].text, &weights, &factor, &err), &err);
        assert_int_equal(weights, good[i].weights);
        assert_true(factor == good[i].factor);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(vptq_token_weights_parse(bad[i], &weights, &factor, &err), VPTQ_E_ARG,
                     &err, strstr(bad[i], "1.1") ? "guided weights is 1.1" : "token weights");
}

VTEST_MAIN(scratch_test(test_terms_of_a_tiny_model),
           scratch_test(test_terms_of_a_trained_model), scratch_test(test_mixing),
           scratch_test(test_plain_has_no_terms), cmocka_unit_test(test_parsing))
