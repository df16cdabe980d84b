/* Collecting Hessians into a directory: what an interrupted run leaves, whatever happens to it,
 * leads to the bytes of an undisturbed one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hessian/hessian_collect.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "tests/vtest.h"

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
    uint64_t first, stop_at; /* progress: the first report; the one that interrupts */
    sig_atomic_t stop;
    char warning[512];
} rig;

static void on_progress(void *user, const char *stage, uint64_t done, uint64_t total,
                        const char *detail)
{
    rig *r = user;
    (void)detail;
    assert_string_equal(stage, "hessian");
    assert_true(done <= total);
    if (!r->first)
        r->first = done;
    if (done == r->stop_at)
        r->stop = 1;
}

static void on_log(void *user, vptq_log_level level, const char *text)
{
    rig *r = user;
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
} request;
static const request whole = {0, LAYERS - 1, 0, 0, false, VPTQ_WEIGHTS_PLAIN, 0, 0};
/* In the first window of layer 1, with the checkpoint behind layer 0 written. */
static const request broken_off = {0,     LAYERS - 1,         0, WINDOWS + 1,
                                   false, VPTQ_WEIGHTS_PLAIN, 0, 0};

static vptq_status collect(rig *r, const char *dir, request q, vptq_collect_result *result,
                           vptq_err *err)
{
    const char *files[] = {r->ids};
    const vptq_collect_options opt = {
        .calibrate = {.corpus = {.tokens = files, .token_count = 1},
                      .windows = q.seed ? (size_t)WINDOWS / 2 : (size_t)WINDOWS,
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

static void expect_same_file(const char *a_dir, const char *b_dir, const char *name)
{
    char a_path[PATH], b_path[PATH];
    size_t a_size, b_size;
    vtest_path(a_path, sizeof a_path, a_dir, name);
    vtest_path(b_path, sizeof b_path, b_dir, name);
    char *a = vtest_read_file(a_path, &a_size), *b = vtest_read_file(b_path, &b_size);
    assert_int_equal(a_size, b_size);
    assert_memory_equal(a, b, a_size);
    free(a);
    free(b);
}

/* The same entries with the same bytes. */
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
            expect_same_file(a, b, in_a[i]);
    }
    vptq_arena_release(&arena);
}

/* ---- tests ---- */

static void test_goes_on_from_the_checkpoint(void **state)
{
    rig r;
    vptq_collect_result result;
    char one[PATH], two[PATH];
    rig_open(&r, *state);
    vtest_path(one, sizeof one, *state, "one");
    vtest_path(two, sizeof two, *state, "two");
    must_collect(&r, one, whole, &result);
    assert_int_equal(result.layers_done, LAYERS);
    assert_int_equal(r.first, 1);
    break_off(&r, two);
    must_collect(&r, two, whole, &result);
    assert_int_equal(result.layers_done, 1);
    assert_int_equal(result.layers_reused, 1);
    assert_int_equal(r.first, WINDOWS + 1); /* layer 0 was not run again */
    assert_string_equal(r.warning, "");
    expect_same(one, two);
    must_collect(&r, two, whole, &result);
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

/* A layer whose files are not all there is done again, and the checkpoint behind it is of no
 * use for that. */
static void lose_one_file(const char *dir)
{
    char path[PATH];
    vtest_path(path, sizeof path, dir, "layer_000_o.safetensors");
    assert_int_equal(unlink(path), 0);
}

static void test_a_useless_checkpoint_is_passed_over(void **state)
{
    static const damage_fn damage[] = {cut_state, flip_value, flip_fingerprint, lose_one_file};
    rig r;
    vptq_collect_result result;
    char one[PATH], two[PATH];
    rig_open(&r, *state);
    vtest_path(one, sizeof one, *state, "one");
    must_collect(&r, one, whole, &result);
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        char name[16];
        snprintf(name, sizeof name, "two%zu", i);
        vtest_path(two, sizeof two, *state, name);
        break_off(&r, two);
        damage[i](two);
        must_collect(&r, two, whole, &result);
        assert_non_null(strstr(r.warning, "hidden.state cannot be used"));
        assert_int_equal(result.layers_done, damage[i] == lose_one_file ? 2 : 1);
        expect_same(one, two);
    }
    rig_close(&r);
}

static void test_another_run_is_refused(void **state)
{
    static const request second = {.first = 1, .last = 1},
                         seeded = {.last = LAYERS - 1, .seed = 9};
    rig r;
    vptq_err err = {0};
    vptq_collect_result result;
    char one[PATH], two[PATH];
    rig_open(&r, *state);
    vtest_path(one, sizeof one, *state, "one");
    vtest_path(two, sizeof two, *state, "two");
    must_collect(&r, one, whole, &result);
    break_off(&r, two);
    assert_fails(collect(&r, two, second, &result, &err), VPTQ_E_MISMATCH, &err,
                 "layers 0-1, this run is of 1-1");
    assert_fails(collect(&r, two, seeded, &result, &err), VPTQ_E_MISMATCH, &err,
                 "key 'fingerprint'");
    must_collect(&r, two, whole, &result); /* nothing was lost by asking */
    assert_int_equal(result.layers_reused, 1);
    expect_same(one, two);
    rig_close(&r);
}

/* Starting again leaves nothing of the other run, and a part is a part of the whole. */
static void test_force_starts_again(void **state)
{
    static const request second = {.first = 1, .last = 1, .force = true},
                         seeded = {.last = LAYERS - 1, .seed = 9, .force = true};
    rig r;
    vptq_collect_result result;
    char one[PATH], two[PATH], path[PATH];
    rig_open(&r, *state);
    vtest_path(one, sizeof one, *state, "one");
    vtest_path(two, sizeof two, *state, "two");
    must_collect(&r, one, whole, &result);
    break_off(&r, two);
    must_collect(&r, two, second, &result);
    assert_int_equal(result.layers_reused, 0);
    vtest_path(path, sizeof path, two, "layer_000_qkv.safetensors");
    assert_false(vptq_path_exists(path));
    expect_same_file(one, two, "layer_001_qkv.safetensors");
    expect_same_file(one, two, "layer_001_down.safetensors");
    must_collect(&r, two, seeded, &result);
    assert_int_equal(result.layers_done, LAYERS);
    request again = whole;
    again.force = true;
    must_collect(&r, two, again, &result);
    assert_int_equal(result.layers_done, LAYERS);
    expect_same(one, two);
    rig_close(&r);
}

#define SCRATCH(test)                                                                          \
    cmocka_unit_test_setup_teardown(test, vtest_scratch_setup, vtest_scratch_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SCRATCH(test_goes_on_from_the_checkpoint),
        SCRATCH(test_a_useless_checkpoint_is_passed_over),
        SCRATCH(test_another_run_is_refused),
        SCRATCH(test_force_starts_again),
    };
    return vtest_main(argc, argv, tests);
}
