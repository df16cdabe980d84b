/* Tests that a directory and a calibration during the run give the same Hessians and channel
 * ranges of an input. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/quantize/internal.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { WINDOWS = 4, LENGTH = 16, IDS = WINDOWS * LENGTH };

typedef struct sources {
    vrig v;
    char ids[4096], dir[4096], work[4096];
    const char *files[1];
    vptq_calibrate_options calibrate;
    vptq_quantize_options opt;
    vptq_quantizer q; /* with the calibration */
    vptq_hessian_source from_dir;
} sources;

static void collect(sources *s)
{
    vptq_err err = {0};
    vptq_collect_result result;
    const vptq_collect_options opt = {
        .calibrate = s->calibrate, .last_layer = UINT32_MAX, .tool_version = "test"};
    assert_ok(vptq_hessian_collect(&s->v.dev, &s->v.m, &opt, s->dir, &result, &err), &err);
    char fingerprint[17];
    assert_ok(vptq_checkpoint_fingerprint(&s->v.m.ckpt, &s->v.ctx, fingerprint, &err), &err);
    const vptq_hessian_source_options o = {
        .dir = s->dir, .desc = s->v.m.desc, .model_fingerprint = fingerprint};
    assert_ok(vptq_hessian_source_open(&o, &s->v.mem, &s->from_dir, &err), &err);
}

static void sources_open(sources *s, const char *dir)
{
    vptq_err err = {0};
    memset(s, 0, sizeof *s);
    vrig_open_on(&s->v, VRIG_TINY_OF("qwen2"), NULL, "cpu", 2);
    free(vrig_ids(dir, IDS, s->ids, sizeof s->ids));
    vtest_path(s->dir, sizeof s->dir, dir, "h");
    vtest_path(s->work, sizeof s->work, dir, "work");
    assert_ok(vptq_dir_make(s->work, &err), &err);
    s->files[0] = s->ids;
    s->calibrate = (vptq_calibrate_options){.corpus = {.tokens = s->files, .token_count = 1},
                                            .windows = WINDOWS,
                                            .length = LENGTH,
                                            .holdout = 0.25};
    s->opt = (vptq_quantize_options){.work = s->work, .calibrate = &s->calibrate};
    s->q = (vptq_quantizer){
        .dev = &s->v.dev, .opt = &s->opt, .model = s->v.m, .last = s->v.m.desc->layers - 1};
    vptq_arena_init(&s->q.arena, &s->v.mem);
    const vptq_encoder_settings settings = vptq_encoder_defaults();
    assert_ok(vptq_settings_resolve(s->v.m.desc, &settings, NULL, &s->q.arena, &s->q.matrix,
                                    &s->q.rules, &err),
              &err);
    collect(s);
    assert_ok(vptq_calibration_open(&s->q, &err), &err);
}

static void sources_close(sources *s)
{
    s->q.hessians.close(&s->q.hessians);
    s->from_dir.close(&s->from_dir);
    json_decref(s->q.rules);
    vptq_arena_release(&s->q.arena);
    vrig_close(&s->v);
}

static void expect_same(sources *s, uint32_t layer, vptq_input input)
{
    vptq_err err = {0};
    vptq_input_hessians a, b;
    const uint32_t n = vptq_input_size(s->v.m.desc, input);
    const vptq_hessian_source *run = &s->q.hessians;
    assert_ok(s->from_dir.load(&s->from_dir, layer, input, n, &a, &err), &err);
    assert_ok(run->load(run, layer, input, n, &b, &err), &err);
    assert_memory_equal(a.plain, b.plain, vptq_triangle(n) * sizeof *a.plain);
    assert_memory_equal(a.held_out, b.held_out, vptq_triangle(n) * sizeof *a.held_out);
    assert_memory_equal(a.abs_mean, b.abs_mean, n * sizeof *a.abs_mean);
    assert_memory_equal(a.min, b.min, n * sizeof *a.min);
    assert_memory_equal(a.max, b.max, n * sizeof *a.max);
    s->from_dir.release(&s->from_dir, &a);
    run->release(run, &b);
}

/* Hessians that replace those of the run are not mixed with them. */
static void test_replaced(void **state)
{
    sources s;
    vptq_err err = {0};
    vptq_input_hessians h;
    vptq_collect_result result;
    sources_open(&s, *state);
    vptq_collect_options opt = {
        .calibrate = s.calibrate, .last_layer = UINT32_MAX, .tool_version = "test"};
    opt.calibrate.windows = 2;
    opt.force = true;
    assert_ok(vptq_hessian_collect(&s.v.dev, &s.v.m, &opt, s.dir, &result, &err), &err);
    const uint32_t n = vptq_input_size(s.v.m.desc, 0);
    assert_fails(s.from_dir.load(&s.from_dir, 0, 0, n, &h, &err), VPTQ_E_MISMATCH, &err,
                 "has other Hessians now than when this run began");
    sources_close(&s);
}

static void test_sources_agree(void **state)
{
    sources s;
    sources_open(&s, *state);
    for (uint32_t layer = 0; layer <= s.q.last; layer++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
            expect_same(&s, layer, (vptq_input)i);
    sources_close(&s);
}

/* Before the first quantized matrix both streams are the same. */
static void test_first_input_of_a_sequential_run(void **state)
{
    sources s;
    sources_open(&s, *state);
    s.calibrate.sequential = true;
    s.q.manifest = json_object();
    expect_same(&s, 0, VPTQ_INPUT_QKV);
    json_decref(s.q.manifest);
    sources_close(&s);
}

/* Imported Hessians have no ranges. */
static void test_unknown_ranges(void **state)
{
    enum { N = 32 };
    static float lower[N * (N + 1) / 2], mean[N];
    vptq_err err = {0};
    vptq_input_hessians h;
    sources s;
    char path[4096];
    sources_open(&s, *state);
    const uint32_t n = vptq_input_size(s.v.m.desc, VPTQ_INPUT_O);
    assert_true(n <= N);
    for (size_t i = 0; i < n; i++)
        lower[i * (i + 1) / 2 + i] = 1;
    const vptq_hessian_data data = {.n = n, .tokens = 9, .values = lower, .mean = mean};
    vtest_path(path, sizeof path, s.dir, "layer_000_o.safetensors");
    assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
    assert_ok(s.from_dir.load(&s.from_dir, 0, VPTQ_INPUT_O, n, &h, &err), &err);
    assert_true(h.plain && !h.abs_mean && !h.min && !h.max);
    s.from_dir.release(&s.from_dir, &h);
    sources_close(&s);
}

VTEST_MAIN(scratch_test(test_sources_agree), scratch_test(test_first_input_of_a_sequential_run),
           scratch_test(test_unknown_ranges), scratch_test(test_replaced))
