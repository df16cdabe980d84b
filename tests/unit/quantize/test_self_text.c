/* Windows of a model's own text: what they are, that they come back, files of something else.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "lib/quantize/self_text.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { LENGTH = 20, WINDOWS = 40, BATCH = 32, MADE = 64, PATH = 4096 };

/* A tiny model, the last warning, and a flag that is raised `stop_at` progress lines from now.
 */
typedef struct rig {
    vrig r;
    char warning[512];
    int stop_at;
    volatile sig_atomic_t stop;
} rig;

static void on_log(void *user, vptq_log_level level, const char *text)
{
    rig *g = user;
    if (level == VPTQ_LOG_WARN)
        snprintf(g->warning, sizeof g->warning, "%s", text);
}

static void on_progress(void *user, const vptq_progress_info *info)
{
    rig *g = user;
    assert_string_equal(info->stage, "self-text");
    assert_true(info->done <= info->total);
    g->stop = g->stop_at > 0 && --g->stop_at == 0;
}

static void rig_open(rig *g, int threads)
{
    memset(g, 0, sizeof *g);
    vrig_open_on(&g->r, VRIG_TINY, NULL, "cpu", threads);
    g->r.ctx.log = on_log;
    g->r.ctx.progress = on_progress;
    g->r.ctx.user = g;
    g->r.ctx.cancel = &g->stop;
}

static vptq_self_text_args args(rig *g, const char *dir)
{
    return (vptq_self_text_args){.dev = &g->r.dev,
                                 .model = &g->r.m,
                                 .model_fingerprint = "0123456789abcdef",
                                 .dir = dir,
                                 .windows = WINDOWS,
                                 .length = LENGTH,
                                 .seed = 3};
}

/* Returns the windows, which the caller frees with free(). */
static int32_t *write_text(const vptq_self_text_args *a)
{
    vptq_err err;
    int32_t *ids = vtest_alloc(a->windows * a->length, sizeof *ids);
    assert_ok(vptq_self_text(a, ids, &err), &err);
    return ids;
}

/* ---- the windows ---- */

static void check_windows(const int32_t *ids, size_t windows, size_t length, int32_t first)
{
    for (size_t i = 0; i < windows * length; i++)
        assert_true(ids[i] >= 0 && ids[i] < VRIG_VOCAB);
    for (size_t w = 0; w < windows; w++)
        assert_int_equal(ids[w * length + length - length / 2], first);
}

/* Sequences begin with BOS in the middle of windows of any length; threads do not matter. */
static void test_lengths(void **state)
{
    static const size_t lengths[] = {2, 3, 5, LENGTH};
    rig one, three;
    rig_open(&one, 1);
    rig_open(&three, 3);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char dir[2][PATH], name[32];
        vptq_err err;
        for (int j = 0; j < 2; j++) {
            snprintf(name, sizeof name, "%zu_%d", lengths[i], j);
            vtest_path(dir[j], PATH, *state, name);
            assert_ok(vptq_dir_make(dir[j], &err), &err);
        }
        vptq_self_text_args a = args(&one, dir[0]), b = args(&three, dir[1]);
        a.length = b.length = lengths[i];
        int32_t *ids = write_text(&a), *same = write_text(&b);
        check_windows(ids, WINDOWS, lengths[i], one.r.m.desc->bos);
        assert_memory_equal(ids, same, WINDOWS * lengths[i] * sizeof *ids);
        free(same);
        free(ids);
    }
    assert_string_equal(one.warning, "");
    vrig_close(&one.r);
    vrig_close(&three.r);
}

static void test_first_token(void **state)
{
    rig g;
    vptq_err err;
    rig_open(&g, 1);
    vptq_model_desc d = *g.r.m.desc;
    vptq_model m = g.r.m;
    vptq_self_text_args a = args(&g, *state);
    m.desc = &d;
    a.model = &m;
    d.bos = -1;
    d.eos = 2;
    assert_ok(vptq_self_text_check(&m, &err), &err);
    int32_t *ids = write_text(&a);
    check_windows(ids, WINDOWS, LENGTH, 2);
    free(ids);
    d.eos = -1;
    assert_fails(vptq_self_text_check(&m, &err), VPTQ_E_UNSUPPORTED, &err,
                 "has neither a BOS nor an EOS token, one of which --self-text begins with");
    vrig_close(&g.r);
}

/* Fewer windows are the first of more, of whose file they are read. */
static void test_fewer(void **state)
{
    rig g;
    rig_open(&g, 1);
    vptq_self_text_args a = args(&g, *state);
    int32_t *more = write_text(&a);
    a.windows = BATCH + 1;
    g.stop_at = 1; /* nothing is to be made */
    int32_t *fewer = write_text(&a);
    assert_memory_equal(more, fewer, a.windows * LENGTH * sizeof *more);
    free(fewer);
    free(more);
    vrig_close(&g.r);
}

/* ---- interruptions and errors ---- */

static void test_interrupted(void **state)
{
    char whole[PATH];
    vptq_err err;
    rig g;
    rig_open(&g, 1);
    vtest_path(whole, sizeof whole, *state, "whole");
    assert_ok(vptq_dir_make(whole, &err), &err);
    vptq_self_text_args a = args(&g, whole);
    int32_t *want = write_text(&a), *ids = vtest_alloc(WINDOWS * LENGTH, sizeof *ids);
    a.dir = *state;
    g.stop_at = 4;
    assert_fails(vptq_self_text(&a, ids, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted after 0 of 64 windows of the original's own text");
    g.stop = 0;
    g.stop_at = LENGTH + 3; /* in the second batch */
    assert_fails(vptq_self_text(&a, ids, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted after 32 of 64 windows of the original's own text");
    g.stop = 0;
    g.stop_at = LENGTH; /* the first batch is not made again */
    assert_ok(vptq_self_text(&a, ids, &err), &err);
    assert_memory_equal(ids, want, WINDOWS * LENGTH * sizeof *ids);
    assert_string_equal(g.warning, "");
    free(ids);
    free(want);
    vrig_close(&g.r);
}

static void test_not_finite(void **state)
{
    rig g;
    vrig_norm norm;
    vptq_err err;
    int32_t ids[LENGTH];
    rig_open(&g, 1);
    vrig_set_final_norm(&g.r, &norm, (float)NAN);
    vptq_self_text_args a = args(&g, *state);
    a.windows = 1;
    assert_fails(vptq_self_text(&a, ids, &err), VPTQ_E_NUMERIC, &err,
                 "the model's output is not a number");
    vrig_close(&g.r);
}

/* A file that cannot be written is a warning. */
static void test_not_a_directory(void **state)
{
    char file[PATH];
    rig g;
    rig_open(&g, 1);
    vtest_path(file, sizeof file, *state, "file");
    vtest_write_file(file, "", 0);
    vptq_self_text_args a = args(&g, *state);
    int32_t *want = write_text(&a);
    a.dir = file;
    int32_t *ids = write_text(&a);
    assert_memory_equal(ids, want, WINDOWS * LENGTH * sizeof *ids);
    assert_non_null(strstr(g.warning, "the text is not kept"));
    free(ids);
    free(want);
    vrig_close(&g.r);
}

static vptq_status walk(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev = {.ops = NULL};
    vptq_model m = {.desc = NULL};
    int32_t ids[3];
    VPTQ_TRY(vptq_device_open(&ctx, "cpu", &dev, err));
    VPTQ_TRY(vptq_model_open(&ctx, VRIG_TINY, NULL, false, &m, err));
    const vptq_self_text_args a = {.dev = &dev,
                                   .model = &m,
                                   .model_fingerprint = "",
                                   .dir = arg,
                                   .windows = 1,
                                   .length = 3};
    VPTQ_TRY(vptq_self_text(&a, ids, err));
out:
    vptq_model_release(&m);
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    assert_true(vtest_oom_walk(walk, *state) > 0);
}

/* ---- files ---- */

/* Writes `windows` windows of these ids with the fingerprint of the file in `dir`, and a right
 * checksum. */
static void replace_file(const char *dir, const int32_t *ids, size_t windows)
{
    char path[PATH], fingerprint[17], sum[VPTQ_SAFETENSORS_SUM];
    vptq_err err;
    vptq_mem mem;
    vptq_tensor_set set;
    vptq_metadata_list found;
    vtest_path(path, sizeof path, dir, VPTQ_SELF_TEXT_FILE);
    vptq_mem_init(&mem, 0);
    vptq_tensor_set_init(&set, &mem);
    assert_ok(vptq_safetensors_read(path, &set, &found, &err), &err);
    snprintf(fingerprint, sizeof fingerprint, "%s", vptq_metadata_find(&found, "fingerprint"));
    vptq_tensor_set_release(&set);
    const vptq_metadata meta[] = {{"fingerprint", fingerprint}, {"xxh3", sum}};
    const vptq_tensor t = {.name = "ids",
                           .type = VPTQ_I32,
                           .dims = 2,
                           .shape = {windows, LENGTH},
                           .data = (const uint8_t *)(const void *)ids,
                           .bytes = windows * LENGTH * sizeof *ids};
    vptq_safetensors_sum(&t, 1, meta, 1, sum);
    assert_ok(vptq_safetensors_save(path, &t, 1, meta, 2, &err), &err);
}

static void test_files(void **state)
{
    rig g;
    rig_open(&g, 1);
    vptq_self_text_args a = args(&g, *state);
    a.windows = MADE;
    int32_t *want = write_text(&a), *ids = vtest_alloc(MADE * LENGTH, sizeof *ids);
    memcpy(ids, want, MADE * LENGTH * sizeof *ids);

    ids[LENGTH] ^= 1; /* another text of this model is as good: the file is what is read */
    replace_file(*state, ids, MADE);
    int32_t *got = write_text(&a);
    assert_memory_equal(got, ids, MADE * LENGTH * sizeof *ids);
    free(got);
    assert_string_equal(g.warning, "");

    ids[LENGTH] = VRIG_VOCAB;
    replace_file(*state, ids, MADE);
    got = write_text(&a);
    assert_memory_equal(got, want, MADE * LENGTH * sizeof *ids);
    free(got);
    assert_non_null(strstr(g.warning, "id 48 is not in the vocabulary of 48; the text is made "
                                      "anew"));

    replace_file(*state, want, BATCH - 1);
    got = write_text(&a);
    assert_memory_equal(got, want, MADE * LENGTH * sizeof *ids);
    free(got);
    assert_non_null(strstr(g.warning, "has 31 windows of 20 tokens, expected a multiple of 32 "
                                      "of 20; the text is made anew"));
    free(ids);
    free(want);
    vrig_close(&g.r);
}

VTEST_MAIN(scratch_test(test_lengths), scratch_test(test_first_token), scratch_test(test_fewer),
           scratch_test(test_interrupted), scratch_test(test_not_finite),
           scratch_test(test_not_a_directory), scratch_test(test_out_of_memory),
           scratch_test(test_files))
