/* Tests the channel ranges in directories of Hessians: directories and files without them, as
 * older versions wrote, and merging. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "tests/support/vcollect.h"
#include "tests/support/vtest.h"

/* Makes a directory what a version before channel ranges would have written. */
static void age(const char *dir)
{
    vptq_err err = {0};
    vptq_hessian_dir d;
    vptq_hessian_file h;
    char name[64], path[VCOLLECT_PATH];
    json_t *settings = json_object();
    assert_ok(vptq_hessian_dir_open(dir, &d, &err), &err);
    assert_true(d.channel_ranges);
    d.channel_ranges = false;
    assert_ok(vptq_hessian_dir_save(dir, &d, settings, &err), &err);
    json_decref(settings);
    for (uint32_t layer = 0; layer < VCOLLECT_LAYERS; layer++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            vptq_hessian_file_name(name, layer, vptq_input_name((vptq_input)i).text);
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
    vcollect r;
    vptq_collect_result result, fresh;
    char three[VCOLLECT_PATH];
    vcollect_open(&r, *state);
    vtest_path(three, sizeof three, *state, "three");
    vcollect_must(&r, three, vcollect_whole, &fresh);
    vcollect_must(&r, r.one, vcollect_whole, &result);
    age(r.one);
    vcollect_break_off(&r, r.two);
    age(r.two);
    vcollect_must(&r, r.two, vcollect_whole, &result);
    assert_int_equal(result.layers_reused, 1);
    assert_true(result.bytes < fresh.bytes);
    vcollect_expect_same(r.one, r.two);
    vcollect_must(&r, r.two, vcollect_whole, &result); /* a finished one stays as it is */
    assert_int_equal(result.layers_done, 0);
    vcollect_expect_same(r.one, r.two);
    vcollect_request again = vcollect_whole;
    again.force = true;
    vcollect_must(&r, r.two, again, &result);
    assert_int_equal(result.layers_done, VCOLLECT_LAYERS);
    vcollect_expect_same(three, r.two);
    vcollect_must(&r, r.two, again, &result);
    assert_int_equal(result.layers_done, 0);
    vcollect_close(&r);
}

/* A file of the wrong kind is collected again, whether it lacks ranges or has them. */
static void test_files_with_and_without_ranges(void **state)
{
    static const char name[] = "layer_001_o.safetensors";
    vcollect r;
    vptq_collect_result result;
    char path[2][VCOLLECT_PATH], *bytes[2];
    size_t size[2];
    vcollect_open(&r, *state);
    const char *const dirs[2] = {r.one, r.two};
    for (int i = 0; i < 2; i++) {
        vcollect_must(&r, dirs[i], vcollect_whole, &result);
        if (i)
            age(dirs[i]);
        vtest_path(path[i], sizeof path[i], dirs[i], name);
        bytes[i] = vtest_read_file(path[i], &size[i]);
    }
    for (int i = 0; i < 2; i++) {
        size_t now;
        vtest_write_file(path[i], bytes[!i], size[!i]);
        vcollect_must(&r, dirs[i], vcollect_whole, &result);
        assert_int_equal(result.layers_done, 1);
        assert_non_null(strstr(r.warning, "is a file of another collection; layer 1 is"));
        char *back = vtest_read_file(path[i], &now);
        assert_int_equal(now, size[i]);
        assert_memory_equal(back, bytes[i], now);
        free(back);
    }
    free(bytes[0]);
    free(bytes[1]);
    vcollect_close(&r);
}

/* Merging two directories gives the ranges of one collection over both texts; with one that has
 * none there are none. */
static void test_merging_ranges(void **state)
{
    vcollect r;
    vptq_err err = {0};
    vptq_collect_result result;
    vptq_hessian_dir d;
    vptq_hessian_file all, pooled;
    char out[VCOLLECT_PATH], part[VCOLLECT_PATH], name[64], path[VCOLLECT_PATH];
    size_t size;
    vcollect_open(&r, *state);
    vtest_path(out, sizeof out, *state, "out");
    vtest_path(part, sizeof part, *state, "part");
    vcollect_must(&r, part, vcollect_whole, &result);
    char *ids = vtest_read_file(r.ids, &size);
    const size_t cut = 3 * (size_t)VCOLLECT_LENGTH * sizeof(int32_t);
    vcollect_request some = vcollect_whole;
    some.windows = 3;
    vtest_write_file(r.ids, ids, cut);
    vcollect_must(&r, r.one, some, &result);
    some.windows = VCOLLECT_WINDOWS - 3;
    vtest_write_file(r.ids, ids + cut, size - cut);
    vcollect_must(&r, r.two, some, &result);
    free(ids);
    const char *dirs[] = {r.one, r.two};
    for (int aged = 0; aged < 2; aged++) {
        if (aged)
            age(r.one);
        assert_ok(vptq_hessian_merge(&r.ctx, dirs, 2, out, aged, &err), &err);
        assert_ok(vptq_hessian_dir_open(out, &d, &err), &err);
        assert_int_equal(d.channel_ranges, !aged);
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            vptq_hessian_file_name(name, 1, vptq_input_name((vptq_input)i).text);
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
    vcollect_close(&r);
}

VTEST_MAIN(scratch_test(test_directory_without_ranges),
           scratch_test(test_files_with_and_without_ranges), scratch_test(test_merging_ranges))
