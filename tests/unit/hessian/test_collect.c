/* Tests collecting Hessians into a directory: a run that was interrupted anywhere continues and
 * writes the same bytes as an undisturbed run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "tests/support/devices.h"
#include "tests/support/vcollect.h"
#include "tests/support/vtest.h"

static void test_continues_from_the_checkpoint(void **state)
{
    vcollect r;
    vptq_collect_result result;
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, vcollect_whole, &result);
    assert_int_equal(result.layers_done, VCOLLECT_LAYERS);
    assert_int_equal(r.first, 1);
    vcollect_break_off(&r, r.two);
    vcollect_must(&r, r.two, vcollect_whole, &result);
    assert_int_equal(result.layers_done, 1);
    assert_int_equal(result.layers_reused, 1);
    assert_int_equal(r.first, VCOLLECT_WINDOWS + 1); /* layer 0 did not run again */
    assert_string_equal(r.warning, "");
    vcollect_expect_same(r.one, r.two);
    vcollect_must(&r, r.two, vcollect_whole, &result);
    assert_int_equal(result.layers_done, 0);
    assert_int_equal(r.first, 0);
    vcollect_close(&r);
}

/* A dry run counts what a directory does not have, and writes nothing. */
static void test_plans_the_rest(void **state)
{
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result all, rest;
    char path[VCOLLECT_PATH];
    vcollect_request plan = vcollect_whole;
    plan.dry_run = true;
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, plan, &all);
    assert_false(vptq_path_exists(r.one));
    assert_int_equal(all.layers_to_do, VCOLLECT_LAYERS);
    assert_int_equal(all.layers_reused + all.layers_done, 0);
    assert_int_equal(all.bytes_to_do, all.bytes);
    vcollect_break_off(&r, r.one);
    vcollect_break_off(&r, r.two);
    vcollect_must(&r, r.one, plan, &rest);
    vcollect_expect_same(r.one, r.two);
    assert_int_equal(rest.layers_to_do, 1);
    assert_int_equal(rest.layers_reused, 1);
    assert_int_equal(rest.bytes_to_do, all.bytes / 2);
    assert_int_equal(rest.bytes, all.bytes);
    assert_true(rest.estimated_seconds > 0);
    assert_true(rest.memory_bytes > 0);
    /* another run's directory, as it would be refused or replaced */
    plan.seed = 5;
    assert_fails(vcollect_run(&r, r.one, plan, &rest, &err), VPTQ_E_MISMATCH, &err,
                 "key 'fingerprint'");
    plan.force = true;
    vcollect_must(&r, r.one, plan, &rest);
    assert_int_equal(rest.layers_to_do, VCOLLECT_LAYERS);
    vcollect_expect_same(r.one, r.two);
    plan = vcollect_whole;
    vcollect_must(&r, r.one, plan, &rest);
    plan.dry_run = true;
    vcollect_must(&r, r.one, plan, &rest);
    assert_int_equal(rest.layers_to_do, 0);
    assert_int_equal(rest.layers_reused, VCOLLECT_LAYERS);
    assert_int_equal(rest.bytes_to_do, 0);
    assert_float_equal(rest.estimated_seconds, 0, 0);
    /* a directory that is not a collection */
    vtest_path(path, sizeof path, r.two, "hessian.json");
    assert_int_equal(unlink(path), 0);
    assert_fails(vcollect_run(&r, r.two, plan, &rest, &err), VPTQ_E_MISMATCH, &err,
                 "is not a hessian directory");
    vcollect_close(&r);
}

typedef void (*damage_fn)(const char *dir);

static void cut_state(const char *dir)
{
    char path[VCOLLECT_PATH];
    vtest_path(path, sizeof path, dir, vcollect_state);
    assert_int_equal(truncate(path, 100), 0);
}

static void flip_byte(const char *dir, size_t at)
{
    char path[VCOLLECT_PATH];
    size_t size;
    vtest_path(path, sizeof path, dir, vcollect_state);
    char *data = vtest_read_file(path, &size);
    data[at] = (char)(data[at] ^ 0x10);
    vtest_write_file(path, data, size);
    free(data);
}

static void flip_value(const char *dir)
{
    flip_byte(dir, 1000);
}

static void flip_fingerprint(const char *dir)
{
    flip_byte(dir, 10);
}

/* A layer with a missing file is collected again, so the checkpoint after it is useless. */
static void lose_one_file(const char *dir)
{
    char path[VCOLLECT_PATH];
    vtest_path(path, sizeof path, dir, "layer_000_o.safetensors");
    assert_int_equal(unlink(path), 0);
}

static void test_unusable_checkpoint_is_ignored(void **state)
{
    static const damage_fn damage[] = {cut_state, flip_value, flip_fingerprint, lose_one_file};
    vcollect r;
    vptq_collect_result result;
    char two[VCOLLECT_PATH];
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, vcollect_whole, &result);
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        char name[16];
        snprintf(name, sizeof name, "two%zu", i);
        vtest_path(two, sizeof two, *state, name);
        vcollect_break_off(&r, two);
        damage[i](two);
        vcollect_must(&r, two, vcollect_whole, &result);
        assert_non_null(strstr(r.warning, "hidden.state belongs to another run or is damaged"));
        assert_int_equal(result.layers_done, damage[i] == lose_one_file ? 2 : 1);
        vcollect_expect_same(r.one, two);
    }
    vcollect_close(&r);
}

/* Flips and cuts one file of a finished directory: it is named, collected again, and the same.
 */
static void test_damaged_hessians_are_collected_again(void **state)
{
    static const char name[] = "layer_001_up.safetensors";
    vcollect r;
    vptq_collect_result result;
    char path[VCOLLECT_PATH];
    size_t size;
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, vcollect_whole, &result);
    vcollect_must(&r, r.two, vcollect_whole, &result);
    vtest_path(path, sizeof path, r.two, name);
    char *data = vtest_read_file(path, &size);
    const size_t cut[] = {0, 1, 8, size / 2, size - 1, size, size};
    const size_t flip[] = {0, 0, 0, 0, 0, 40, size - 1};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        data[flip[i]] ^= 2;
        vtest_write_file(path, data, cut[i]);
        data[flip[i]] ^= 2;
        vcollect_must(&r, r.two, vcollect_whole, &result);
        assert_int_equal(result.layers_done, 1);
        assert_non_null(strstr(r.warning, name));
        assert_non_null(strstr(r.warning, "; layer 1 is collected again"));
        vcollect_expect_same(r.one, r.two);
    }
    free(data);
    vcollect_close(&r);
}

static void test_damaged_spill(void **state)
{
    enum { ROWS = 6, DIM = 4 };
    vptq_err err = {0};
    vptq_mem mem;
    float *rows;
    vptq_mem_init(&mem, 1000);
    const vptq_ctx ctx = {.mem = &mem, .threads = 1};
    vptq_hidden_states s = {.rows = ROWS, .dim = DIM, .max_rows = 2};
    assert_ok(vptq_hidden_states_open(&ctx, *state, 900, &s, &err), &err);
    assert_true(s.fd >= 0);
    for (size_t i = 0; i < ROWS; i += 2) {
        assert_ok(vptq_hidden_states_get(&s, i, 2, true, &rows, &err), &err);
        for (size_t k = 0; k < (size_t)2 * DIM; k++)
            rows[k] = (float)(i * DIM + k);
        assert_ok(vptq_hidden_states_keep(&s, i, 2, &err), &err);
    }
    assert_ok(vptq_hidden_states_get(&s, 3, 2, false, &rows, &err), &err);
    assert_true(rows[0] == 3 * DIM);
    assert_true(vptq_write_at(s.fd, "x", 1, (4 * DIM + 1) * sizeof(float)));
    assert_ok(vptq_hidden_states_get(&s, 2, 2, false, &rows, &err), &err);
    assert_fails(vptq_hidden_states_get(&s, 3, 2, false, &rows, &err), VPTQ_E_CHECKSUM, &err,
                 "is damaged: token 4 is not what was written");
    vptq_hidden_states_close(&s);
    assert_int_equal(mem.used, 0);
}

static void test_another_run_is_refused(void **state)
{
    static const vcollect_request second = {.first = 1, .last = 1},
                                  seeded = {.last = VCOLLECT_LAYERS - 1, .seed = 9};
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result result;
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, vcollect_whole, &result);
    vcollect_break_off(&r, r.two);
    assert_fails(vcollect_run(&r, r.two, second, &result, &err), VPTQ_E_MISMATCH, &err,
                 "layers 0-1, this run is of 1-1");
    assert_fails(vcollect_run(&r, r.two, seeded, &result, &err), VPTQ_E_MISMATCH, &err,
                 "key 'fingerprint'");
    vcollect_must(&r, r.two, vcollect_whole, &result); /* the refusals destroyed nothing */
    assert_int_equal(result.layers_reused, 1);
    vcollect_expect_same(r.one, r.two);
    vcollect_close(&r);
}

/* --force leaves nothing of the other run, and a run over some layers gives their files of a
 * run over all. */
static void test_force_starts_again(void **state)
{
    static const vcollect_request second = {.first = 1, .last = 1, .force = true},
                                  seeded = {
                                      .last = VCOLLECT_LAYERS - 1, .seed = 9, .force = true};
    vcollect r;
    vptq_collect_result result;
    char path[VCOLLECT_PATH];
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, vcollect_whole, &result);
    vcollect_break_off(&r, r.two);
    vcollect_must(&r, r.two, second, &result);
    assert_int_equal(result.layers_reused, 0);
    vtest_path(path, sizeof path, r.two, "layer_000_qkv.safetensors");
    assert_false(vptq_path_exists(path));
    vtest_expect_same_in(r.one, r.two, "layer_001_qkv.safetensors");
    vtest_expect_same_in(r.one, r.two, "layer_001_down.safetensors");
    vcollect_must(&r, r.two, seeded, &result);
    assert_int_equal(result.layers_done, VCOLLECT_LAYERS);
    vcollect_request again = vcollect_whole;
    again.force = true;
    vcollect_must(&r, r.two, again, &result);
    assert_int_equal(result.layers_done, VCOLLECT_LAYERS);
    vcollect_expect_same(r.one, r.two);
    vcollect_close(&r);
}

/* ---- held-out windows, token weights, memory ---- */

static const vcollect_request divided = {
    0, VCOLLECT_LAYERS - 1, 0, 0, false, VPTQ_WEIGHTS_ATTENTION, 0.5, 0.25, 0, false};

/* Compares hessian.json and the Hessians of both parts. */
static void expect_same_parts(const char *one, const char *two)
{
    char a[VCOLLECT_PATH], b[VCOLLECT_PATH];
    vtest_path(a, sizeof a, one, "holdout");
    vtest_path(b, sizeof b, two, "holdout");
    vcollect_expect_same(a, b);
    for (uint32_t layer = 0; layer < VCOLLECT_LAYERS; layer++)
        for (int i = 0; i <= VPTQ_INPUT_DENSE; i++) {
            char name[64];
            vptq_hessian_file_name(
                name, layer, i < VPTQ_INPUT_DENSE ? vptq_input_name((vptq_input)i).text : "kv");
            vtest_expect_same_in(one, two, name);
        }
    vtest_expect_same_in(one, two, "hessian.json");
}

/* Holding out the last quarter of the windows gives what two collections give, one over the
 * first three quarters of the ids and one over the last. */
static void test_held_out_windows(void **state)
{
    enum { MAIN = VCOLLECT_IDS * 3 / 4 };
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    char part[VCOLLECT_PATH], holdout[VCOLLECT_PATH];
    size_t size;
    vcollect_open(&r, *state);
    char *ids = vtest_read_file(r.ids, &size);
    vtest_path(holdout, sizeof holdout, r.one, "holdout");
    vcollect_must(&r, r.one, divided, &result);
    assert_int_equal(result.windows, VCOLLECT_WINDOWS * 3 / 4);
    assert_int_equal(result.held_out, VCOLLECT_WINDOWS / 4);
    assert_ok(vptq_hessian_dir_open(r.one, &d, &err), &err);
    assert_int_equal(d.tokens, MAIN);
    assert_int_equal(d.held_out_tokens, VCOLLECT_IDS - MAIN);
    vcollect_request whole_part = divided;
    whole_part.holdout = 0;
    for (int p = 0; p < 2; p++) {
        const size_t begin = p ? MAIN * sizeof(int32_t) : 0;
        vtest_path(part, sizeof part, *state, p ? "second" : "first");
        vtest_write_file(r.ids, ids + begin, p ? size - begin : MAIN * sizeof(int32_t));
        vcollect_must(&r, part, whole_part, &result);
        for (uint32_t layer = 0; layer < VCOLLECT_LAYERS; layer++) {
            char name[64];
            vptq_hessian_file_name(name, layer, "kv");
            vtest_expect_same_in(part, p ? holdout : r.one, name);
            vptq_hessian_file_name(name, layer, "down");
            vtest_expect_same_in(part, p ? holdout : r.one, name);
        }
    }
    free(ids);
    vcollect_close(&r);
}

static void test_continues_in_either_part(void **state)
{
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result result;
    char two[VCOLLECT_PATH], path[VCOLLECT_PATH];
    vcollect_request stopped = divided;
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, divided, &result);
    /* interrupted in either part of layer 1 */
    for (uint64_t at = VCOLLECT_WINDOWS + 1; at <= 2 * VCOLLECT_WINDOWS;
         at += VCOLLECT_WINDOWS - 1) {
        char name[16];
        snprintf(name, sizeof name, "two%d", (int)at);
        vtest_path(two, sizeof two, *state, name);
        stopped.stop_at = at;
        vptq_status st = vcollect_run(&r, two, stopped, &result, &err);
        if (at < 2 * VCOLLECT_WINDOWS) /* the last report comes when everything is done */
            assert_fails(st, VPTQ_E_CANCELLED, &err,
                         "interrupted; 1 of 2 layers finished, run the same command to "
                         "continue");
        vcollect_must(&r, two, divided, &result);
        expect_same_parts(r.one, two);
    }
    /* a missing file of the held-out part is collected again too */
    vtest_path(path, sizeof path, two, "holdout/layer_001_kv.safetensors");
    assert_int_equal(unlink(path), 0);
    vcollect_must(&r, two, divided, &result);
    assert_int_equal(result.layers_done, 1);
    expect_same_parts(r.one, two);
    vcollect_close(&r);
}

/* Any memory cap gives the same bytes, whether the hidden states of three groups of windows are
 * in memory or in a file, and the file is removed at the end. */
static void test_any_memory_cap(void **state)
{
    enum { MANY = 3 * VPTQ_FORWARD_ROWS };
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result result;
    char two[VCOLLECT_PATH];
    int32_t *ids = malloc(MANY * sizeof *ids);
    vptq_rng rng = vptq_rng_make(4, 0, 0, VPTQ_RNG_TEST);
    vcollect_open(&r, *state);
    for (size_t i = 0; i < MANY; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VCOLLECT_VOCAB);
    vtest_write_file(r.ids, ids, MANY * sizeof *ids);
    free(ids);
    vcollect_request many = divided;
    many.windows = MANY / VCOLLECT_LENGTH;
    vcollect_must(&r, r.one, many, &result);
    assert_int_equal(result.windows + result.held_out, MANY / VCOLLECT_LENGTH);
    assert_false(r.spilled);
    size_t fits = 0;
    /* down to a cap that is refused; every run is interrupted and continued */
    for (r.mem.cap = r.mem.peak; r.mem.cap > r.mem.used; r.mem.cap -= r.mem.peak / 16) {
        char name[32];
        snprintf(name, sizeof name, "two%zu", r.mem.cap);
        vtest_path(two, sizeof two, *state, name);
        r.spilled = false;
        many.stop_at = MANY / VCOLLECT_LENGTH + 1;
        vptq_status st = vcollect_run(&r, two, many, &result, &err);
        if (st == VPTQ_E_NOMEM) {
            assert_fails(st, VPTQ_E_NOMEM, &err, "is too small");
            break;
        }
        assert_fails(st, VPTQ_E_CANCELLED, &err, "interrupted");
        many.stop_at = 0;
        vcollect_must(&r, two, many, &result);
        assert_int_equal(result.layers_reused, 1);
        expect_same_parts(r.one, two);
        fits += r.spilled;
    }
    assert_true(fits > 0);
    r.mem.cap = 0;
    vcollect_close(&r);
}

static void test_settings_of_a_directory(void **state)
{
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    char path[VCOLLECT_PATH];
    vcollect_request other = divided;
    vcollect_open(&r, *state);
    vcollect_must(&r, r.one, divided, &result);
    other.weights = VPTQ_WEIGHTS_SINK;
    assert_fails(vcollect_run(&r, r.one, other, &result, &err), VPTQ_E_MISMATCH, &err,
                 "key 'weights' is attention, this run's is sink");
    other = divided;
    other.holdout = 0.5;
    assert_fails(vcollect_run(&r, r.one, other, &result, &err), VPTQ_E_MISMATCH, &err,
                 "32 tokens held out, this run holds out 64");
    other.holdout = 1;
    assert_fails(vcollect_run(&r, r.one, other, &result, &err), VPTQ_E_ARG, &err, "share of 1");
    /* another factor does not make it another collection */
    other = divided;
    other.factor = 2;
    vcollect_must(&r, r.one, other, &result);
    assert_int_equal(result.layers_reused, VCOLLECT_LAYERS);
    assert_ok(vptq_hessian_dir_open(r.one, &d, &err), &err);
    assert_true(d.factor == 2);
    /* a plain run with --force leaves no terms and no held-out part */
    vcollect_must(&r, r.two, vcollect_whole, &result);
    other = vcollect_whole;
    other.force = true;
    vcollect_must(&r, r.one, other, &result);
    vtest_path(path, sizeof path, r.one, "holdout");
    assert_false(vptq_path_exists(path));
    vcollect_expect_same(r.one, r.two);
    vcollect_close(&r);
}

static void test_merging_parts(void **state)
{
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    vptq_hessian_file h, term;
    char out[VCOLLECT_PATH], path[VCOLLECT_PATH];
    vcollect_request q = divided;
    vcollect_open(&r, *state);
    vtest_path(out, sizeof out, *state, "out");
    vcollect_must(&r, r.one, divided, &result);
    q.seed = 5; /* 4 windows, 1 of them held out */
    vcollect_must(&r, r.two, q, &result);
    const char *dirs[] = {r.one, r.two};
    assert_ok(vptq_hessian_merge(&r.ctx, dirs, 2, out, false, &err), &err);
    assert_ok(vptq_hessian_dir_open(out, &d, &err), &err);
    assert_int_equal(d.weights, VPTQ_WEIGHTS_ATTENTION);
    assert_int_equal(d.held_out_tokens, 3 * VCOLLECT_LENGTH);
    vtest_path(path, sizeof path, out, "holdout");
    assert_ok(vptq_hessian_dir_open(path, &d, &err), &err);
    assert_int_equal(d.tokens, 3 * VCOLLECT_LENGTH);
    /* terms are means over windows, 6 and 3 of them */
    float *sum = NULL;
    for (int i = 0; i < 3; i++) {
        const char *const all[] = {r.one, r.two, out};
        vtest_path(path, sizeof path, all[i], "layer_001_kv.safetensors");
        assert_ok(vptq_hessian_file_read(path, 0, NULL, &term, &err), &err);
        const size_t packed = (size_t)term.n * (term.n + 1) / 2;
        if (!sum)
            sum = calloc(packed, sizeof *sum);
        for (size_t j = 0; j < packed && i < 2; j++)
            sum[j] += term.lower[j] * (i ? 3 : 6) / 9;
        if (i == 2) {
            assert_int_equal(term.windows, 9);
            assert_close(term.lower, sum, packed, 1e-6, 1e-6);
        }
        vptq_hessian_file_release(&term);
    }
    free(sum);
    /* only equal weights can be merged; a held-out part remains only if every directory has
     * r.one */
    q = vcollect_whole;
    q.force = true;
    vcollect_must(&r, r.two, q, &result);
    vtest_path(out, sizeof out, *state, "out2");
    assert_fails(vptq_hessian_merge(&r.ctx, dirs, 2, out, false, &err), VPTQ_E_MISMATCH, &err,
                 "different token weights (attention and plain)");
    q.weights = VPTQ_WEIGHTS_ATTENTION;
    vcollect_must(&r, r.two, q, &result);
    assert_ok(vptq_hessian_merge(&r.ctx, dirs, 2, out, false, &err), &err);
    assert_ok(vptq_hessian_dir_open(out, &d, &err), &err);
    assert_int_equal(d.held_out_tokens, 0);
    assert_ok(vptq_hessian_dir_load(out, 0, VPTQ_INPUT_O, 0, NULL, &h, &err), &err);
    assert_int_equal(h.tokens, 14 * VCOLLECT_LENGTH);
    vptq_hessian_file_release(&h);
    vcollect_close(&r);
}

typedef struct oom_run {
    vcollect *r;
    const char *dir;
} oom_run;

static vptq_status collect_in(void *arg, vptq_device *dev, vptq_err *err)
{
    oom_run *run = arg;
    vptq_collect_result result;
    const char *files[] = {run->r->ids};
    const vptq_collect_options opt = {
        .calibrate = {.corpus = {.tokens = files, .token_count = 1},
                      .windows = VCOLLECT_WINDOWS,
                      .length = VCOLLECT_LENGTH,
                      .holdout = 0.25,
                      .weights = VPTQ_WEIGHTS_ATTENTION,
                      .checkpoint_seconds = 60},
        .last_layer = 0,
        .force = true,
        .tool_version = "test"};
    return vptq_hessian_collect(dev, &run->r->m, &opt, run->dir, &result, err);
}

static void test_out_of_memory(void **state)
{
    vcollect r;
    vcollect_open(&r, *state);
    oom_run run = {&r, r.one};
    assert_true(devices_oom_walk("cpu", 2, collect_in, &run) > 20);
    vcollect_close(&r);
}

VTEST_MAIN(scratch_test(test_continues_from_the_checkpoint), scratch_test(test_plans_the_rest),
           scratch_test(test_unusable_checkpoint_is_ignored),
           scratch_test(test_damaged_hessians_are_collected_again),
           scratch_test(test_damaged_spill), scratch_test(test_another_run_is_refused),
           scratch_test(test_force_starts_again), scratch_test(test_held_out_windows),
           scratch_test(test_continues_in_either_part), scratch_test(test_any_memory_cap),
           scratch_test(test_settings_of_a_directory), scratch_test(test_merging_parts),
           scratch_test(test_out_of_memory))
