/* Tests collecting Hessians into a directory: a run that was interrupted anywhere continues and
 * writes the same bytes as an undisturbed run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hessian/collect.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "tests/support/devices.h"
#include "tests/support/vtest.h"

/* Two layers, 8 windows of 16 ids. */
enum { VOCAB = 48, IDS = 128, WINDOWS = 8, LENGTH = 16, LAYERS = 2, PATH = 4096 };
static const char model_path[] = "tests/golden/tiny_qwen2";
static const char state_name[] = "hidden.state";

typedef struct rig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    char ids[PATH];
    uint64_t first, stop_at; /* first step reported; step to interrupt at */
    sig_atomic_t stop;
    char warning[512];
    char one[PATH], two[PATH]; /* directories to collect into */
    bool spilled;              /* a log line said that hidden states go to a file */
} rig;

static void on_progress(void *user, const char *stage, uint64_t done, uint64_t total,
                        const char *detail)
{
    rig *r = user;
    (void)detail;
    assert_true(done <= total);
    if (strcmp(stage, "merge") == 0)
        return;
    assert_string_equal(stage, "hessian");
    if (!r->first)
        r->first = done;
    if (done == r->stop_at)
        r->stop = 1;
}

static void on_log(void *user, vptq_log_level level, const char *text)
{
    rig *r = user;
    r->spilled = r->spilled || strstr(text, "go to a file");
    if (level == VPTQ_LOG_WARN)
        snprintf(r->warning, sizeof r->warning, "%s", text);
}

static void rig_open(rig *r, const char *dir)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    vptq_rng rng = vptq_rng_make(3, 0, 0, VPTQ_RNG_TEST);
    int32_t ids[IDS];
    memset(r, 0, sizeof *r);
    vtest_path(r->one, sizeof r->one, dir, "one");
    vtest_path(r->two, sizeof r->two, dir, "two");
    for (size_t i = 0; i < IDS; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VOCAB);
    vtest_path(r->ids, sizeof r->ids, dir, "ids");
    vtest_write_file(r->ids, ids, sizeof ids);
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.mem = &r->mem,
                        .threads = 2,
                        .log = on_log,
                        .progress = on_progress,
                        .user = r,
                        .cancel = &r->stop};
    assert_ok(vptq_device_open(&r->ctx, "cpu", &r->dev, &err), &err);
    assert_ok(vptq_model_open(&r->ctx, model_path, &opt, false, &r->m, &err), &err);
}

static void rig_close(rig *r)
{
    vptq_model_release(&r->m);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
}

typedef struct request {
    uint32_t first, last;
    uint64_t seed, stop_at;
    bool force;
    vptq_token_weights weights;
    double factor, holdout;
    size_t windows; /* 0: WINDOWS, or half as many with a seed */
} request;
static const request whole = {0, LAYERS - 1, 0, 0, false, VPTQ_WEIGHTS_PLAIN, 0, 0, 0};
/* Stops in the first window of layer 1, when the checkpoint after layer 0 has been written. */
static const request broken_off = {0, LAYERS - 1, 0, WINDOWS + 1, false, VPTQ_WEIGHTS_PLAIN,
                                   0, 0,          0};

static vptq_status collect(rig *r, const char *dir, request q, vptq_collect_result *result,
                           vptq_err *err)
{
    const char *files[] = {r->ids};
    const size_t usual = q.seed ? (size_t)WINDOWS / 2 : (size_t)WINDOWS;
    const size_t windows = q.windows ? q.windows : usual;
    const vptq_collect_options opt = {
        .calibrate = {.corpus = {.tokens = files, .token_count = 1},
                      .windows = windows,
                      .length = LENGTH,
                      .seed = q.seed,
                      .holdout = q.holdout,
                      .weights = q.weights,
                      .checkpoint_seconds = 0},
        .factor = q.factor,
        .first_layer = q.first,
        .last_layer = q.last,
        .force = q.force,
        .tool_version = "test"};
    r->first = 0;
    r->stop = 0;
    r->stop_at = q.stop_at;
    r->warning[0] = 0;
    return vptq_hessian_collect(&r->dev, &r->m, &opt, dir, result, err);
}

static void must_collect(rig *r, const char *dir, request q, vptq_collect_result *result)
{
    vptq_err err = {0};
    assert_ok(collect(r, dir, q, result, &err), &err);
}

static void break_off(rig *r, const char *dir)
{
    vptq_err err = {0};
    vptq_collect_result result;
    char path[PATH];
    assert_fails(collect(r, dir, broken_off, &result, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    vtest_path(path, sizeof path, dir, state_name);
    assert_true(vptq_path_exists(path));
}

/* Checks that both directories have the same entries with the same bytes. */
static void expect_same(const char *a, const char *b)
{
    vptq_err err = {0};
    vptq_arena arena;
    char **in_a, **in_b;
    size_t count_a, count_b;
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_dir_list(a, &arena, &in_a, &count_a, &err), &err);
    assert_ok(vptq_dir_list(b, &arena, &in_b, &count_b, &err), &err);
    assert_int_equal(count_a, count_b);
    for (size_t i = 0; i < count_a; i++) {
        assert_string_equal(in_a[i], in_b[i]);
        if (strcmp(in_a[i], "lock"))
            vtest_expect_same_in(a, b, in_a[i]);
    }
    vptq_arena_release(&arena);
}

/* ---- tests ---- */

static void test_continues_from_the_checkpoint(void **state)
{
    rig r;
    vptq_collect_result result;
    rig_open(&r, *state);
    must_collect(&r, r.one, whole, &result);
    assert_int_equal(result.layers_done, LAYERS);
    assert_int_equal(r.first, 1);
    break_off(&r, r.two);
    must_collect(&r, r.two, whole, &result);
    assert_int_equal(result.layers_done, 1);
    assert_int_equal(result.layers_reused, 1);
    assert_int_equal(r.first, WINDOWS + 1); /* layer 0 did not run again */
    assert_string_equal(r.warning, "");
    expect_same(r.one, r.two);
    must_collect(&r, r.two, whole, &result);
    assert_int_equal(result.layers_done, 0);
    assert_int_equal(r.first, 0);
    rig_close(&r);
}

typedef void (*damage_fn)(const char *dir);

static void cut_state(const char *dir)
{
    char path[PATH];
    vtest_path(path, sizeof path, dir, state_name);
    assert_int_equal(truncate(path, 100), 0);
}

static void flip_byte(const char *dir, size_t at)
{
    char path[PATH];
    size_t size;
    vtest_path(path, sizeof path, dir, state_name);
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
    char path[PATH];
    vtest_path(path, sizeof path, dir, "layer_000_o.safetensors");
    assert_int_equal(unlink(path), 0);
}

static void test_unusable_checkpoint_is_ignored(void **state)
{
    static const damage_fn damage[] = {cut_state, flip_value, flip_fingerprint, lose_one_file};
    rig r;
    vptq_collect_result result;
    char two[PATH];
    rig_open(&r, *state);
    must_collect(&r, r.one, whole, &result);
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        char name[16];
        snprintf(name, sizeof name, "two%zu", i);
        vtest_path(two, sizeof two, *state, name);
        break_off(&r, two);
        damage[i](two);
        must_collect(&r, two, whole, &result);
        assert_non_null(strstr(r.warning, "hidden.state belongs to another run or is damaged"));
        assert_int_equal(result.layers_done, damage[i] == lose_one_file ? 2 : 1);
        expect_same(r.one, two);
    }
    rig_close(&r);
}

/* Flips and cuts one file of a finished directory: it is named, collected again, and the same.
 */
static void test_damaged_hessians_are_collected_again(void **state)
{
    static const char name[] = "layer_001_up.safetensors";
    rig r;
    vptq_collect_result result;
    char path[PATH];
    size_t size;
    rig_open(&r, *state);
    must_collect(&r, r.one, whole, &result);
    must_collect(&r, r.two, whole, &result);
    vtest_path(path, sizeof path, r.two, name);
    char *data = vtest_read_file(path, &size);
    const size_t cut[] = {0, 1, 8, size / 2, size - 1, size, size};
    const size_t flip[] = {0, 0, 0, 0, 0, 40, size - 1};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        data[flip[i]] ^= 2;
        vtest_write_file(path, data, cut[i]);
        data[flip[i]] ^= 2;
        must_collect(&r, r.two, whole, &result);
        assert_int_equal(result.layers_done, 1);
        assert_non_null(strstr(r.warning, name));
        assert_non_null(strstr(r.warning, "; layer 1 is collected again"));
        expect_same(r.one, r.two);
    }
    free(data);
    rig_close(&r);
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
    static const request second = {.first = 1, .last = 1},
                         seeded = {.last = LAYERS - 1, .seed = 9};
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    rig_open(&r, *state);
    must_collect(&r, r.one, whole, &result);
    break_off(&r, r.two);
    assert_fails(collect(&r, r.two, second, &result, &err), VPTQ_E_MISMATCH, &err,
                 "layers 0-1, this run is of 1-1");
    assert_fails(collect(&r, r.two, seeded, &result, &err), VPTQ_E_MISMATCH, &err,
                 "key 'fingerprint'");
    must_collect(&r, r.two, whole, &result); /* the refusals destroyed nothing */
    assert_int_equal(result.layers_reused, 1);
    expect_same(r.one, r.two);
    rig_close(&r);
}

/* --force leaves nothing of the other run, and a run over some layers gives their files of a
 * run over all. */
static void test_force_starts_again(void **state)
{
    static const request second = {.first = 1, .last = 1, .force = true},
                         seeded = {.last = LAYERS - 1, .seed = 9, .force = true};
    rig r;
    vptq_collect_result result;
    char path[PATH];
    rig_open(&r, *state);
    must_collect(&r, r.one, whole, &result);
    break_off(&r, r.two);
    must_collect(&r, r.two, second, &result);
    assert_int_equal(result.layers_reused, 0);
    vtest_path(path, sizeof path, r.two, "layer_000_qkv.safetensors");
    assert_false(vptq_path_exists(path));
    vtest_expect_same_in(r.one, r.two, "layer_001_qkv.safetensors");
    vtest_expect_same_in(r.one, r.two, "layer_001_down.safetensors");
    must_collect(&r, r.two, seeded, &result);
    assert_int_equal(result.layers_done, LAYERS);
    request again = whole;
    again.force = true;
    must_collect(&r, r.two, again, &result);
    assert_int_equal(result.layers_done, LAYERS);
    expect_same(r.one, r.two);
    rig_close(&r);
}

/* ---- channel ranges ---- */

/* Makes a directory what a version before channel ranges would have written. */
static void age(const char *dir)
{
    vptq_err err = {0};
    vptq_hessian_dir d;
    vptq_hessian_file h;
    char name[64], path[PATH];
    json_t *settings = json_object();
    assert_ok(vptq_hessian_dir_open(dir, &d, &err), &err);
    assert_true(d.channel_ranges);
    d.channel_ranges = false;
    assert_ok(vptq_hessian_dir_save(dir, &d, settings, &err), &err);
    json_decref(settings);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            vptq_hessian_file_name(name, layer, vptq_input_name((vptq_input)i));
            vtest_path(path, sizeof path, dir, name);
            if (!vptq_path_exists(path))
                continue;
            assert_ok(vptq_hessian_file_read(path, 0, NULL, &h, &err), &err);
            assert_non_null(h.abs_mean);
            const vptq_hessian_data data = {
                .n = h.n, .tokens = h.tokens, .values = h.lower, .mean = h.mean};
            assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
            vptq_hessian_file_release(&h);
        }
}

/* An older version's directory continues without channel ranges, so that no directory has them
 * for some inputs only; with --force it starts again. */
static void test_directory_without_ranges(void **state)
{
    rig r;
    vptq_collect_result result, fresh;
    char three[PATH];
    rig_open(&r, *state);
    vtest_path(three, sizeof three, *state, "three");
    must_collect(&r, three, whole, &fresh);
    must_collect(&r, r.one, whole, &result);
    age(r.one);
    break_off(&r, r.two);
    age(r.two);
    must_collect(&r, r.two, whole, &result);
    assert_int_equal(result.layers_reused, 1);
    assert_true(result.bytes < fresh.bytes);
    expect_same(r.one, r.two);
    must_collect(&r, r.two, whole, &result); /* a finished one stays as it is */
    assert_int_equal(result.layers_done, 0);
    expect_same(r.one, r.two);
    request again = whole;
    again.force = true;
    must_collect(&r, r.two, again, &result);
    assert_int_equal(result.layers_done, LAYERS);
    expect_same(three, r.two);
    must_collect(&r, r.two, again, &result);
    assert_int_equal(result.layers_done, 0);
    rig_close(&r);
}

/* A file of the wrong kind is collected again, whether it lacks ranges or has them. */
static void test_files_with_and_without_ranges(void **state)
{
    static const char name[] = "layer_001_o.safetensors";
    rig r;
    vptq_collect_result result;
    char path[2][PATH], *bytes[2];
    size_t size[2];
    rig_open(&r, *state);
    const char *const dirs[2] = {r.one, r.two};
    for (int i = 0; i < 2; i++) {
        must_collect(&r, dirs[i], whole, &result);
        if (i)
            age(dirs[i]);
        vtest_path(path[i], sizeof path[i], dirs[i], name);
        bytes[i] = vtest_read_file(path[i], &size[i]);
    }
    for (int i = 0; i < 2; i++) {
        size_t now;
        vtest_write_file(path[i], bytes[!i], size[!i]);
        must_collect(&r, dirs[i], whole, &result);
        assert_int_equal(result.layers_done, 1);
        assert_non_null(strstr(r.warning, "is a file of another collection; layer 1 is"));
        char *back = vtest_read_file(path[i], &now);
        assert_int_equal(now, size[i]);
        assert_memory_equal(back, bytes[i], now);
        free(back);
    }
    free(bytes[0]);
    free(bytes[1]);
    rig_close(&r);
}

/* Merging two directories gives the ranges of one collection over both texts; with one that has
 * none there are none. */
static void test_merging_ranges(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    vptq_hessian_file all, pooled;
    char out[PATH], part[PATH], name[64], path[PATH];
    size_t size;
    rig_open(&r, *state);
    vtest_path(out, sizeof out, *state, "out");
    vtest_path(part, sizeof part, *state, "part");
    must_collect(&r, part, whole, &result);
    char *ids = vtest_read_file(r.ids, &size);
    const size_t cut = 3 * (size_t)LENGTH * sizeof(int32_t);
    request some = whole;
    some.windows = 3;
    vtest_write_file(r.ids, ids, cut);
    must_collect(&r, r.one, some, &result);
    some.windows = WINDOWS - 3;
    vtest_write_file(r.ids, ids + cut, size - cut);
    must_collect(&r, r.two, some, &result);
    free(ids);
    const char *dirs[] = {r.one, r.two};
    for (int aged = 0; aged < 2; aged++) {
        if (aged)
            age(r.one);
        assert_ok(vptq_hessian_merge(&r.ctx, dirs, 2, out, aged, &err), &err);
        assert_ok(vptq_hessian_dir_open(out, &d, &err), &err);
        assert_int_equal(d.channel_ranges, !aged);
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            vptq_hessian_file_name(name, 1, vptq_input_name((vptq_input)i));
            vtest_path(path, sizeof path, part, name);
            assert_ok(vptq_hessian_file_read(path, 0, NULL, &all, &err), &err);
            vtest_path(path, sizeof path, out, name);
            assert_ok(vptq_hessian_file_read(path, 0, NULL, &pooled, &err), &err);
            assert_int_equal(pooled.abs_mean != NULL, !aged);
            if (!aged) {
                assert_close(pooled.abs_mean, all.abs_mean, all.n, 1e-6, 1e-6);
                assert_same_f32(pooled.min, all.min, all.n);
                assert_same_f32(pooled.max, all.max, all.n);
            }
            vptq_hessian_file_release(&all);
            vptq_hessian_file_release(&pooled);
        }
    }
    rig_close(&r);
}

/* ---- held-out windows, token weights, memory ---- */

static const request divided = {0,   LAYERS - 1, 0, 0, false, VPTQ_WEIGHTS_ATTENTION,
                                0.5, 0.25,       0};

/* Compares hessian.json and the Hessians of both parts. */
static void expect_same_parts(const char *one, const char *two)
{
    char a[PATH], b[PATH];
    vtest_path(a, sizeof a, one, "holdout");
    vtest_path(b, sizeof b, two, "holdout");
    expect_same(a, b);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i <= VPTQ_INPUT_COUNT; i++) {
            char name[64];
            vptq_hessian_file_name(
                name, layer, i < VPTQ_INPUT_COUNT ? vptq_input_name((vptq_input)i) : "kv");
            vtest_expect_same_in(one, two, name);
        }
    vtest_expect_same_in(one, two, "hessian.json");
}

/* Holding out the last quarter of the windows gives what two collections give, one over the
 * first three quarters of the ids and one over the last. */
static void test_held_out_windows(void **state)
{
    enum { MAIN = IDS * 3 / 4 };
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    char part[PATH], holdout[PATH];
    size_t size;
    rig_open(&r, *state);
    char *ids = vtest_read_file(r.ids, &size);
    vtest_path(holdout, sizeof holdout, r.one, "holdout");
    must_collect(&r, r.one, divided, &result);
    assert_int_equal(result.windows, WINDOWS * 3 / 4);
    assert_int_equal(result.held_out, WINDOWS / 4);
    assert_ok(vptq_hessian_dir_open(r.one, &d, &err), &err);
    assert_int_equal(d.tokens, MAIN);
    assert_int_equal(d.held_out_tokens, IDS - MAIN);
    request whole_part = divided;
    whole_part.holdout = 0;
    for (int p = 0; p < 2; p++) {
        const size_t begin = p ? MAIN * sizeof(int32_t) : 0;
        vtest_path(part, sizeof part, *state, p ? "second" : "first");
        vtest_write_file(r.ids, ids + begin, p ? size - begin : MAIN * sizeof(int32_t));
        must_collect(&r, part, whole_part, &result);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            char name[64];
            vptq_hessian_file_name(name, layer, "kv");
            vtest_expect_same_in(part, p ? holdout : r.one, name);
            vptq_hessian_file_name(name, layer, "down");
            vtest_expect_same_in(part, p ? holdout : r.one, name);
        }
    }
    free(ids);
    rig_close(&r);
}

static void test_continues_in_either_part(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    char two[PATH], path[PATH];
    request stopped = divided;
    rig_open(&r, *state);
    must_collect(&r, r.one, divided, &result);
    /* interrupted in either part of layer 1 */
    for (uint64_t at = WINDOWS + 1; at <= 2 * WINDOWS; at += WINDOWS - 1) {
        char name[16];
        snprintf(name, sizeof name, "two%d", (int)at);
        vtest_path(two, sizeof two, *state, name);
        stopped.stop_at = at;
        vptq_status st = collect(&r, two, stopped, &result, &err);
        if (at < 2 * WINDOWS) /* the last report comes when everything is done */
            assert_fails(st, VPTQ_E_CANCELLED, &err, "interrupted");
        must_collect(&r, two, divided, &result);
        expect_same_parts(r.one, two);
    }
    /* a missing file of the held-out part is collected again too */
    vtest_path(path, sizeof path, two, "holdout/layer_001_kv.safetensors");
    assert_int_equal(unlink(path), 0);
    must_collect(&r, two, divided, &result);
    assert_int_equal(result.layers_done, 1);
    expect_same_parts(r.one, two);
    rig_close(&r);
}

/* Any memory cap gives the same bytes, whether the hidden states of three groups of windows are
 * in memory or in a file, and the file is removed at the end. */
static void test_any_memory_cap(void **state)
{
    enum { MANY = 3 * VPTQ_FORWARD_ROWS };
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    char two[PATH];
    int32_t *ids = malloc(MANY * sizeof *ids);
    vptq_rng rng = vptq_rng_make(4, 0, 0, VPTQ_RNG_TEST);
    rig_open(&r, *state);
    for (size_t i = 0; i < MANY; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VOCAB);
    vtest_write_file(r.ids, ids, MANY * sizeof *ids);
    free(ids);
    request many = divided;
    many.windows = MANY / LENGTH;
    must_collect(&r, r.one, many, &result);
    assert_int_equal(result.windows + result.held_out, MANY / LENGTH);
    assert_false(r.spilled);
    size_t fits = 0;
    /* down to a cap that is refused; every run is interrupted and continued */
    for (r.mem.cap = r.mem.peak; r.mem.cap > r.mem.used; r.mem.cap -= r.mem.peak / 16) {
        char name[32];
        snprintf(name, sizeof name, "two%zu", r.mem.cap);
        vtest_path(two, sizeof two, *state, name);
        r.spilled = false;
        many.stop_at = MANY / LENGTH + 1;
        vptq_status st = collect(&r, two, many, &result, &err);
        if (st == VPTQ_E_NOMEM) {
            assert_fails(st, VPTQ_E_NOMEM, &err, "is too small");
            break;
        }
        assert_fails(st, VPTQ_E_CANCELLED, &err, "interrupted");
        many.stop_at = 0;
        must_collect(&r, two, many, &result);
        assert_int_equal(result.layers_reused, 1);
        expect_same_parts(r.one, two);
        fits += r.spilled;
    }
    assert_true(fits > 0);
    r.mem.cap = 0;
    rig_close(&r);
}

static void test_settings_of_a_directory(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    char path[PATH];
    request other = divided;
    rig_open(&r, *state);
    must_collect(&r, r.one, divided, &result);
    other.weights = VPTQ_WEIGHTS_SINK;
    assert_fails(collect(&r, r.one, other, &result, &err), VPTQ_E_MISMATCH, &err,
                 "key 'weights' is attention, this run's is sink");
    other = divided;
    other.holdout = 0.5;
    assert_fails(collect(&r, r.one, other, &result, &err), VPTQ_E_MISMATCH, &err,
                 "32 tokens held out, this run holds out 64");
    other.holdout = 1;
    assert_fails(collect(&r, r.one, other, &result, &err), VPTQ_E_ARG, &err, "share of 1");
    /* another factor does not make it another collection */
    other = divided;
    other.factor = 2;
    must_collect(&r, r.one, other, &result);
    assert_int_equal(result.layers_reused, LAYERS);
    assert_ok(vptq_hessian_dir_open(r.one, &d, &err), &err);
    assert_true(d.factor == 2);
    /* a plain run with --force leaves no terms and no held-out part */
    must_collect(&r, r.two, whole, &result);
    other = whole;
    other.force = true;
    must_collect(&r, r.one, other, &result);
    vtest_path(path, sizeof path, r.one, "holdout");
    assert_false(vptq_path_exists(path));
    expect_same(r.one, r.two);
    rig_close(&r);
}

static void test_merging_parts(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    vptq_hessian_file h, term;
    char out[PATH], path[PATH];
    request q = divided;
    rig_open(&r, *state);
    vtest_path(out, sizeof out, *state, "out");
    must_collect(&r, r.one, divided, &result);
    q.seed = 5; /* 4 windows, 1 of them held out */
    must_collect(&r, r.two, q, &result);
    const char *dirs[] = {r.one, r.two};
    assert_ok(vptq_hessian_merge(&r.ctx, dirs, 2, out, false, &err), &err);
    assert_ok(vptq_hessian_dir_open(out, &d, &err), &err);
    assert_int_equal(d.weights, VPTQ_WEIGHTS_ATTENTION);
    assert_int_equal(d.held_out_tokens, 3 * LENGTH);
    vtest_path(path, sizeof path, out, "holdout");
    assert_ok(vptq_hessian_dir_open(path, &d, &err), &err);
    assert_int_equal(d.tokens, 3 * LENGTH);
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
    q = whole;
    q.force = true;
    must_collect(&r, r.two, q, &result);
    vtest_path(out, sizeof out, *state, "out2");
    assert_fails(vptq_hessian_merge(&r.ctx, dirs, 2, out, false, &err), VPTQ_E_MISMATCH, &err,
                 "different token weights (attention and plain)");
    q.weights = VPTQ_WEIGHTS_ATTENTION;
    must_collect(&r, r.two, q, &result);
    assert_ok(vptq_hessian_merge(&r.ctx, dirs, 2, out, false, &err), &err);
    assert_ok(vptq_hessian_dir_open(out, &d, &err), &err);
    assert_int_equal(d.held_out_tokens, 0);
    assert_ok(vptq_hessian_dir_load(out, 0, VPTQ_INPUT_O, 0, NULL, &h, &err), &err);
    assert_int_equal(h.tokens, 14 * LENGTH);
    vptq_hessian_file_release(&h);
    rig_close(&r);
}

typedef struct oom_run {
    rig *r;
    const char *dir;
} oom_run;

static vptq_status collect_in(void *arg, vptq_device *dev, vptq_err *err)
{
    oom_run *run = arg;
    vptq_collect_result result;
    const char *files[] = {run->r->ids};
    const vptq_collect_options opt = {
        .calibrate = {.corpus = {.tokens = files, .token_count = 1},
                      .windows = WINDOWS,
                      .length = LENGTH,
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
    rig r;
    rig_open(&r, *state);
    oom_run run = {&r, r.one};
    assert_true(devices_oom_walk("cpu", 2, collect_in, &run) > 20);
    rig_close(&r);
}

VTEST_MAIN(scratch_test(test_continues_from_the_checkpoint),
           scratch_test(test_unusable_checkpoint_is_ignored),
           scratch_test(test_damaged_hessians_are_collected_again),
           scratch_test(test_damaged_spill), scratch_test(test_another_run_is_refused),
           scratch_test(test_force_starts_again), scratch_test(test_directory_without_ranges),
           scratch_test(test_files_with_and_without_ranges), scratch_test(test_merging_ranges),
           scratch_test(test_held_out_windows), scratch_test(test_continues_in_either_part),
           scratch_test(test_any_memory_cap), scratch_test(test_settings_of_a_directory),
           scratch_test(test_merging_parts), scratch_test(test_out_of_memory))
