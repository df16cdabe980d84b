/* Tests output Hessians: against sums in double, the same bytes for any number of threads and
 * after an interruption, and damaged files. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hessian/outputs.h"
#include "hessian/sampled.h"
#include "lib/base/file.h"
#include "tests/support/devices.h"
#include "tests/support/vcount.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { LENGTH = 40, WINDOWS = 5, IDS = LENGTH * WINDOWS, SEED = 3 };
enum { ROWS = VPTQ_OUTPUT_ROWS, BLOCK = ROWS * ROWS };

typedef struct rig {
    vrig v;
    int32_t *ids;
    char ids_path[4096], path[4096];
} rig;

static void rig_open(rig *r, const char *model, const char *dir, const char *backend,
                     int threads)
{
    vrig_open_on(&r->v, model, NULL, backend, threads);
    r->ids = vrig_ids(dir, IDS, r->ids_path, sizeof r->ids_path);
    vtest_path(r->path, sizeof r->path, dir, VPTQ_OUTPUTS_FILE);
}

static void rig_close(rig *r)
{
    vrig_close(&r->v);
    free(r->ids);
}

static void plan(rig *r, size_t outputs, vptq_calibrator *c)
{
    vptq_err err = {0};
    const char *files[] = {r->ids_path};
    const vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                        .windows = WINDOWS,
                                        .length = LENGTH,
                                        .seed = SEED,
                                        .outputs = outputs};
    assert_ok(vptq_calibrator_plan(&r->v.dev, &r->v.m, &opt, c, &err), &err);
}

static vptq_status collect(rig *r, size_t outputs, vptq_err *err)
{
    vptq_calibrator c;
    plan(r, outputs, &c);
    const vptq_status st = vptq_outputs_collect(&c, r->path, err);
    vptq_calibrator_release(&c);
    return st;
}

/* ---- against sums in double ---- */

typedef struct by_hand {
    const vptq_model_desc *d;
    double *k; /* [layers][vptq_output_layer_entries] */
} by_hand;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* a [LENGTH] = |x_t|^2, and their quantile 0.99 without the first. */
static double squares(const float *x, size_t n, double *a)
{
    double sorted[LENGTH];
    for (size_t t = 0; t < LENGTH; t++) {
        a[t] = 0;
        for (size_t i = 0; i < n; i++)
            a[t] += (double)x[t * n + i] * (double)x[t * n + i];
    }
    memcpy(sorted, a, sizeof sorted);
    qsort(sorted + 1, LENGTH - 1, sizeof *sorted, by_value);
    return sorted[1 + 37]; /* 0.99 * 38, rounded down */
}

static vptq_status add(void *arg, uint32_t layer, vptq_linear l, size_t rows, const float *x,
                       const float *dz, vptq_err *err)
{
    const by_hand *h = arg;
    double a[LENGTH], b[LENGTH], mean = 0;
    uint32_t out, in;
    (void)err;
    assert_int_equal(rows, LENGTH);
    vptq_linear_shape(h->d, l, &out, &in);
    const double most_a = squares(dz, out, a), most_b = squares(x, in, b);
    double *k = h->k + layer * vptq_output_layer_entries(h->d);
    for (int i = 0; i < (int)l; i++)
        k += vptq_output_entries(h->d, (vptq_linear)i);
    for (size_t t = 1; t < LENGTH; t++)
        mean += fmin(b[t], most_b) / (LENGTH - 1);
    for (size_t t = 1; t < LENGTH; t++) {
        const double w = fmin(1, most_a / a[t]) * (0.2 + 0.8 * fmin(b[t], most_b) / mean);
        for (size_t i = 0; i < out; i++)
            for (size_t j = i / ROWS * ROWS; j < out && j < (i / ROWS + 1) * ROWS; j++)
                k[i * ROWS + j % ROWS] += w * (double)dz[t * out + i] * (double)dz[t * out + j];
    }
    return VPTQ_OK;
}

/* K of some windows, in float; the caller frees it. */
static float *sum_by_hand(rig *r, const size_t *windows, size_t count)
{
    vptq_err err = {0};
    vptq_sampled s;
    const vptq_model_desc *d = r->v.m.desc;
    const size_t n = d->layers * vptq_output_layer_entries(d);
    by_hand h = {d, calloc(n, sizeof(double))};
    float *k = vtest_alloc(n, sizeof *k);

    assert_ok(vptq_sampled_open(&r->v.dev, &r->v.m, LENGTH, SEED, &s, &err), &err);
    for (size_t i = 0; i < count; i++)
        assert_ok(vptq_sampled_run(&s, windows[i], r->ids + windows[i] * LENGTH, add, &h, &err),
                  &err);
    vptq_sampled_close(&s);
    for (size_t i = 0; i < n; i++)
        k[i] = (float)(h.k[i] / (double)(count * (LENGTH - 1)));
    free(h.k);
    return k;
}

/* The file has K of these windows. */
static void check_file(rig *r, const size_t *windows, size_t count)
{
    vptq_err err = {0};
    vptq_outputs o;
    const vptq_model_desc *d = r->v.m.desc;
    float *all = sum_by_hand(r, windows, count), *want = all;

    assert_ok(vptq_outputs_open(r->path, d, &r->v.mem, &o, &err), &err);
    assert_int_equal(o.windows, count);
    assert_int_equal(o.tokens, count * (LENGTH - 1));
    for (uint32_t layer = 0; layer < d->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            const size_t n = vptq_output_entries(d, (vptq_linear)l);
            float most = 0;
            for (size_t i = 0; i < n; i++)
                most = fmaxf(most, want[i]);
            assert_true(most > 0);
            assert_close(vptq_outputs_load(&o, layer, (vptq_linear)l), want, n,
                         1e-6 * (double)most, 1e-6);
            want += n;
        }
    vptq_outputs_close(&o);
    free(all);
}

/* Two of five windows: the first, and the one from the middle on. */
static void check_model(const char *model, const char *dir, const char *backend, bool apart)
{
    static const size_t windows[] = {0, 2};
    vptq_err err = {0};
    rig r, host;
    rig_open(&r, model, dir, backend, 2);
    rig_open(&host, model, dir, backend, 1);
    if (apart)
        vcount_start(&r.v.dev, SIZE_MAX);
    assert_ok(collect(&r, 2, &err), &err);
    check_file(&host, windows, 2);
    assert_int_equal(unlink(r.path), 0);
    rig_close(&r);
    rig_close(&host);
}

static void test_sums(void **state)
{
    check_model(VRIG_TINY_OF("qwen3"), *state, "ref", false);
    check_model(VRIG_TINY_OF("qwen3"), *state, "cpu", false);
    check_model(VRIG_TINY_OF("qwen3"), *state, "ref", true);
}

/* gate and up have 172 rows: two blocks, and a third of 44. */
static void test_several_blocks(void **state)
{
    char path[4096];
    if (!vtest_data(path, sizeof path, "models/stories260K-hf"))
        skip();
    check_model(path, *state, "cpu", false);
}

/* ---- the same bytes ---- */

typedef struct watch {
    volatile sig_atomic_t stop;
    uint64_t last, stop_at;
} watch;

static void on_progress(void *arg, const vptq_progress_info *info)
{
    watch *w = arg;
    assert_string_equal(info->stage, "outputs");
    w->last = info->done;
    w->stop = w->last == w->stop_at;
}

static void rig_watch(rig *r, watch *w)
{
    r->v.ctx.progress = on_progress;
    r->v.ctx.user = w;
    r->v.ctx.cancel = &w->stop;
}

static void test_same_bytes(void **state)
{
    rig r, other;
    vptq_err err = {0};
    watch w = {.stop_at = 3};
    size_t size;
    rig_open(&r, VRIG_TINY_OF("qwen3"), *state, "cpu", 1);
    rig_open(&other, VRIG_TINY_OF("qwen3"), *state, "cpu", 4);
    rig_watch(&other, &w);
    assert_ok(collect(&r, WINDOWS, &err), &err);
    char *want = vtest_read_file(r.path, &size);

    /* interrupted, and by another number of threads; more windows than there are */
    assert_int_equal(unlink(r.path), 0);
    assert_int_equal(collect(&other, WINDOWS, &err), VPTQ_E_CANCELLED);
    assert_false(vptq_path_exists(r.path));
    w = (watch){0};
    assert_ok(collect(&other, WINDOWS + 7, &err), &err);
    assert_int_equal(w.last, WINDOWS);
    vtest_expect_file(r.path, want, size);

    /* a finished file is kept, one of fewer windows replaced, and so is a damaged one */
    w.last = 0;
    assert_ok(collect(&other, WINDOWS, &err), &err);
    assert_int_equal(w.last, 0);
    assert_ok(collect(&other, 2, &err), &err);
    assert_int_equal(w.last, 2);
    assert_int_equal(truncate(r.path, (off_t)size - 1), 0);
    assert_ok(collect(&other, WINDOWS, &err), &err);
    vtest_expect_file(r.path, want, size);
    free(want);
    rig_close(&r);
    rig_close(&other);
}

/* ---- refusals ---- */

typedef struct oom_run {
    rig *r;
    vptq_calibrator c;
} oom_run;

static vptq_status collect_on(void *arg, vptq_device *dev, vptq_err *err)
{
    oom_run *run = arg;
    run->c.dev = dev;
    (void)unlink(run->r->path);
    return vptq_outputs_collect(&run->c, run->r->path, err);
}

static void test_out_of_memory(void **state)
{
    rig r;
    rig_open(&r, VRIG_TINY_OF("qwen3"), *state, "cpu", 1);
    oom_run run = {.r = &r};
    plan(&r, 1, &run.c);
    assert_true(devices_oom_walk("cpu", 1, collect_on, &run) > 5);
    run.c.dev = &r.v.dev;
    vptq_calibrator_release(&run.c);
    rig_close(&r);
}

/* Collects with another norm in place of one of the model's. */
static void check_norm(void **state, float value, const char *want)
{
    rig r;
    vptq_err err = {0};
    vrig_norm norm;
    rig_open(&r, VRIG_TINY_OF("qwen3"), *state, "cpu", 1);
    vrig_set_final_norm(&r.v, &norm, value);
    assert_fails(collect(&r, 1, &err), VPTQ_E_NUMERIC, &err, want);
    assert_false(vptq_path_exists(r.path));
    rig_close(&r);
}

static void test_not_finite(void **state)
{
    check_norm(state, 1e38f, "window 0: layer 1: down_proj: the gradient of token");
    check_norm(state, NAN, "window 0: the logits of token 0 are not finite");
}

/* ---- damaged files ---- */

/* A good file of the tiny model; its K can be changed before writing. */
typedef struct forged {
    rig r;
    vptq_model_desc d;
    float *k;
} forged;

static void forged_open(forged *f, const char *dir)
{
    rig_open(&f->r, VRIG_TINY_OF("qwen3"), dir, "ref", 1);
    f->d = *f->r.v.m.desc;
    f->k = calloc(2 * f->d.layers * vptq_output_layer_entries(&f->d), sizeof *f->k);
    assert_non_null(f->k);
}

static void forged_close(forged *f)
{
    free(f->k);
    rig_close(&f->r);
}

static void forged_write(const forged *f)
{
    vptq_err err = {0};
    const vptq_outputs_data data = {&f->d, "0123456789abcdef", "fedcba9876543210",
                                    1,     LENGTH - 1,         f->k};
    assert_ok(vptq_outputs_write(f->r.path, &data, NULL, &err), &err);
}

static void forged_refused(const forged *f, vptq_status code, const char *want)
{
    vptq_err err = {0};
    vptq_outputs o;
    assert_fails(vptq_outputs_open(f->r.path, f->r.v.m.desc, NULL, &o, &err), code, &err, want);
    assert_non_null(strstr(err.text, VPTQ_OUTPUTS_FILE));
}

static void test_bad_numbers(void **state)
{
    static const struct {
        size_t row, column; /* of k_proj, which has 32 rows */
        float x, mirrored;
        const char *want;
    } bad[] = {
        {3, 2, NAN, NAN, "row 2, column 3 is nan, expected a finite number below 1e24"},
        {3, 2, -INFINITY, -INFINITY, "row 2, column 3 is -inf, expected a finite number"},
        {3, 3, -1, -1, "row 3, column 3 is -1, expected 0 or more on the diagonal"},
        {3, 2, 1, 2, "row 2, column 3 is 2, expected the same below and above the diagonal"},
        {32, 2, 1, 1, "row 2, column 32 is 1, expected 0 after the last row"},
        {63, 63, 1, 1, "tensor 'layer_000_k_proj': block 0, row 63, column 63 is 1, expected"},
    };
    forged f;
    vptq_err err = {0};
    vptq_outputs o;
    forged_open(&f, *state);
    float *k = f.k + vptq_output_entries(&f.d, VPTQ_LINEAR_Q);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        k[bad[i].row * ROWS + bad[i].column] = bad[i].x;
        k[bad[i].column * ROWS + bad[i].row] = bad[i].mirrored;
        forged_write(&f);
        forged_refused(&f, VPTQ_E_NUMERIC, bad[i].want);
        memset(k, 0, BLOCK * sizeof *k);
    }
    k[3 * ROWS + 2] = k[2 * ROWS + 3] = -1;
    forged_write(&f);
    assert_ok(vptq_outputs_open(f.r.path, f.r.v.m.desc, NULL, &o, &err), &err);
    assert_true(vptq_outputs_load(&o, 0, VPTQ_LINEAR_K)[2 * ROWS + 3] == -1);
    assert_string_equal(o.fingerprint, "0123456789abcdef");
    vptq_outputs_close(&o);
    forged_close(&f);
}

static void test_bad_shapes(void **state)
{
    forged f;
    forged_open(&f, *state);
    f.d.layers = 1;
    forged_write(&f);
    forged_refused(&f, VPTQ_E_FORMAT, "has 7 tensors, expected 14 for 2 layers");
    f.d.layers = 2;
    f.d.intermediate = ROWS + 1;
    forged_write(&f);
    forged_refused(&f, VPTQ_E_FORMAT,
                   "tensor 'layer_000_gate_proj' is missing or not F32 [1, 64, 64]");
    forged_close(&f);
}

/* Writes the tensors of the good file again, the first one changed, with other metadata. */
static void save_again(const forged *f, const vptq_metadata *meta, vptq_dtype type,
                       const char *name)
{
    vptq_err err = {0};
    vptq_tensor_set set;
    char path[4096];
    vptq_tensor_set_init(&set, NULL);
    forged_write(f);
    snprintf(path, sizeof path, "%.4000s.new", f->r.path);
    assert_ok(vptq_safetensors_read(f->r.path, &set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(&set, &err), &err);
    if (name)
        set.tensors[0].name = name;
    set.tensors[0].type = type;
    assert_ok(vptq_safetensors_save(path, set.tensors, set.count, meta, 6, &err), &err);
    vptq_tensor_set_release(&set);
    assert_int_equal(rename(path, f->r.path), 0);
}

static void test_bad_metadata(void **state)
{
    static const vptq_metadata good[] = {{"kind", "outputs"},
                                         {"fingerprint", "0123456789abcdef"},
                                         {"model_fingerprint", "fedcba9876543210"},
                                         {"windows", "1"},
                                         {"tokens", "11"},
                                         {"xxh3", "0123456789abcdef"}};
    static const struct {
        int at;
        vptq_metadata with;
        const char *want;
    } bad[] = {
        {0, {"kind", "sink"}, "metadata 'kind' is 'sink', expected outputs"},
        {1, {"fingerprint", "0123"}, "metadata 'fingerprint' is '0123', expected 16 hex"},
        {2, {"model_fingerprint", "fedcba987654321 "}, "metadata 'model_fingerprint' is 'fedc"},
        {3, {"windows", "-1"}, "metadata 'windows' is '-1', expected a whole number"},
        {4, {"token", "1"}, "is not a file of output Hessians: 'tokens' is missing"},
        {5, {"xxh", ""}, "is not a file of output Hessians: 'xxh3' is missing"},
    };
    forged f;
    forged_open(&f, *state);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        vptq_metadata meta[6];
        memcpy(meta, good, sizeof meta);
        meta[bad[i].at] = bad[i].with;
        save_again(&f, meta, VPTQ_F32, NULL);
        forged_refused(&f, VPTQ_E_FORMAT, bad[i].want);
    }
    save_again(&f, good, VPTQ_F32, NULL);
    forged_refused(&f, VPTQ_E_CHECKSUM, "the file is damaged: its checksum is");
    save_again(&f, good, VPTQ_F32, "layer_000_other");
    forged_refused(&f, VPTQ_E_FORMAT, "tensor 'layer_000_down_proj' is missing or not F32 [1");
    save_again(&f, good, VPTQ_I32, NULL);
    forged_refused(&f, VPTQ_E_FORMAT, "tensor 'layer_000_down_proj' is missing or not F32 [1");
    forged_close(&f);
}

static void test_cut(void **state)
{
    forged f;
    size_t size;
    forged_open(&f, *state);
    forged_write(&f);
    free(vtest_read_file(f.r.path, &size));
    for (size_t cut = 1; cut < size; cut *= 7) {
        forged_write(&f);
        assert_int_equal(truncate(f.r.path, (off_t)(size - cut)), 0);
        forged_refused(&f, VPTQ_E_FORMAT, "");
    }
    forged_close(&f);
}

VTEST_MAIN(scratch_test(test_sums), scratch_test(test_several_blocks),
           scratch_test(test_same_bytes), scratch_test(test_out_of_memory),
           scratch_test(test_not_finite), scratch_test(test_bad_numbers),
           scratch_test(test_bad_shapes), scratch_test(test_bad_metadata),
           scratch_test(test_cut))
