/* Collects Hessians of a small model into directories. */
#include "tests/support/vcollect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "tests/support/vtest.h"

static const char model_path[] = "tests/golden/tiny_qwen2";
const char vcollect_state[] = "hidden.state";
const vcollect_request vcollect_whole = {
    0, VCOLLECT_LAYERS - 1, 0, 0, false, VPTQ_WEIGHTS_PLAIN, 0, 0, 0, false};

static void on_progress(void *user, const vptq_progress_info *info)
{
    vcollect *r = user;
    assert_true(info->done <= info->total);
    if (strcmp(info->stage, "merge") == 0)
        return;
    assert_string_equal(info->stage, "hessian");
    assert_string_equal(info->unit, "layers");
    assert_true((info->share >= 1) == (info->done == info->total));
    const uint64_t step = (uint64_t)lround(info->share * (double)r->steps);
    if (!r->first)
        r->first = step;
    if (step == r->stop_at)
        r->stop = 1;
}

static void on_log(void *user, vptq_log_level level, const char *text)
{
    vcollect *r = user;
    r->spilled = r->spilled || strstr(text, "go to a file");
    if (level == VPTQ_LOG_WARN)
        snprintf(r->warning, sizeof r->warning, "%s", text);
}

void vcollect_open(vcollect *r, const char *dir)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    vptq_rng rng = vptq_rng_make(3, 0, 0, VPTQ_RNG_TEST);
    int32_t ids[VCOLLECT_IDS];
    memset(r, 0, sizeof *r);
    vtest_path(r->one, sizeof r->one, dir, "one");
    vtest_path(r->two, sizeof r->two, dir, "two");
    for (size_t i = 0; i < VCOLLECT_IDS; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VCOLLECT_VOCAB);
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

void vcollect_close(vcollect *r)
{
    vptq_model_release(&r->m);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
}

/* Stops in the first window of layer 1, when the checkpoint after layer 0 has been written. */
static const vcollect_request broken_off = {
    0, VCOLLECT_LAYERS - 1, 0, VCOLLECT_WINDOWS + 1, false, VPTQ_WEIGHTS_PLAIN, 0, 0, 0, false};

vptq_status vcollect_run(vcollect *r, const char *dir, vcollect_request q,
                         vptq_collect_result *result, vptq_err *err)
{
    const char *files[] = {r->ids};
    const size_t usual = q.seed ? (size_t)VCOLLECT_WINDOWS / 2 : (size_t)VCOLLECT_WINDOWS;
    const size_t windows = q.windows ? q.windows : usual;
    const vptq_collect_options opt = {
        .calibrate = {.corpus = {.tokens = files, .token_count = 1},
                      .windows = windows,
                      .length = VCOLLECT_LENGTH,
                      .seed = q.seed,
                      .holdout = q.holdout,
                      .weights = q.weights,
                      .checkpoint_seconds = 0},
        .factor = q.factor,
        .first_layer = q.first,
        .last_layer = q.last,
        .force = q.force,
        .dry_run = q.dry_run,
        .tool_version = "test"};
    r->first = 0;
    r->stop = 0;
    r->stop_at = q.stop_at;
    r->steps = windows * (q.last + 1);
    r->warning[0] = 0;
    return vptq_hessian_collect(&r->dev, &r->m, &opt, dir, result, err);
}

void vcollect_must(vcollect *r, const char *dir, vcollect_request q,
                   vptq_collect_result *result)
{
    vptq_err err = {0};
    assert_ok(vcollect_run(r, dir, q, result, &err), &err);
}

void vcollect_break_off(vcollect *r, const char *dir)
{
    vptq_err err = {0};
    vptq_collect_result result;
    char path[VCOLLECT_PATH];
    assert_fails(vcollect_run(r, dir, broken_off, &result, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    vtest_path(path, sizeof path, dir, vcollect_state);
    assert_true(vptq_path_exists(path));
}

void vcollect_expect_same(const char *a, const char *b)
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
