/* Tests saliencies: against gradients of the same labels by hand, the same bytes after an
 * interruption and for any number of threads, and the weights made of them. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hessian/saliency.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/model/backward.h"
#include "tests/support/devices.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { LENGTH = 12, WINDOWS = 5, IDS = LENGTH * WINDOWS, SEED = 3 };

typedef struct rig {
    vrig v;
    int32_t *ids;
    char path[4096];
    size_t window[WINDOWS];
} rig;

static void rig_open(rig *r, const char *dir, const char *backend, int threads)
{
    vrig_open_on(&r->v, VRIG_TINY_OF("qwen3"), NULL, backend, threads);
    r->ids = vrig_ids(dir, IDS, r->path, sizeof r->path);
    for (size_t w = 0; w < WINDOWS; w++)
        r->window[w] = w * LENGTH;
}

static void rig_close(rig *r)
{
    vrig_close(&r->v);
    free(r->ids);
}

static vptq_saliency_options options(const rig *r, const char *dir)
{
    return (vptq_saliency_options){.model = &r->v.m,
                                   .ids = r->ids,
                                   .window = r->window,
                                   .windows = WINDOWS,
                                   .length = LENGTH,
                                   .seed = SEED,
                                   .fingerprint = "0123456789abcdef",
                                   .dir = dir};
}

static size_t all_rows(const rig *r)
{
    return vptq_saliency_row(r->v.m.desc, WINDOWS, 0, (vptq_linear)0);
}

/* All saliencies [all_rows, LENGTH]; the caller frees them. */
static float *collect(const rig *r, const vptq_saliency_options *o)
{
    vptq_err err = {0};
    vptq_hidden_states s;
    float *row, *out = malloc(all_rows(r) * LENGTH * sizeof *out);
    assert_non_null(out);
    assert_ok(vptq_saliency_collect((vptq_device *)(uintptr_t)&r->v.dev, o, &s, &err), &err);
    for (size_t i = 0; i < all_rows(r); i++) {
        assert_ok(vptq_hidden_states_get(&s, i, 1, false, &row, &err), &err);
        memcpy(out + i * LENGTH, row, LENGTH * sizeof *row);
    }
    vptq_hidden_states_close(&s);
    return out;
}

/* ---- against gradients by hand ---- */

/* The label that a draw u chooses: the first at which the cumulative probability exceeds it. */
static int32_t label_of(const float *logits, size_t vocab, double u)
{
    double max = -INFINITY, sum = 0, part = 0;
    for (size_t j = 0; j < vocab; j++)
        max = fmax(max, (double)logits[j]);
    for (size_t j = 0; j < vocab; j++)
        sum += exp((double)logits[j] - max);
    for (size_t j = 0; j < vocab; j++) {
        part += exp((double)logits[j] - max);
        if (part > u * sum)
            return (int32_t)j;
    }
    return (int32_t)vocab - 1;
}

typedef struct by_hand {
    const rig *r;
    float *want; /* [layers * VPTQ_LINEAR_DENSE, LENGTH] of a window */
} by_hand;

static vptq_status square(void *arg, uint32_t layer, vptq_linear l, size_t rows, const float *x,
                          const float *dz, vptq_err *err)
{
    const by_hand *h = arg;
    uint32_t out, in;
    (void)x, (void)err;
    vptq_linear_shape(h->r->v.m.desc, l, &out, &in);
    for (size_t t = 0; t < rows; t++) {
        double sum = 0;
        for (size_t j = 0; j < out; j++)
            sum += (double)dz[t * out + j] * (double)dz[t * out + j];
        h->want[vptq_saliency_row(h->r->v.m.desc, 0, layer, l) * LENGTH + t] =
            (float)(sum / out);
    }
    return VPTQ_OK;
}

/* The gradients of labels that are drawn here, from logits in double. */
static void check_window(const rig *r, size_t w, const float *got)
{
    vptq_err err = {0};
    vptq_forward *f;
    vptq_backward *b;
    const vptq_model_desc *d = r->v.m.desc;
    const size_t size = (size_t)LENGTH * d->hidden;
    const size_t rows = (size_t)d->layers * VPTQ_LINEAR_DENSE;
    float *states = malloc((d->layers + 1) * size * sizeof *states);
    float *embedded = malloc(size * sizeof *embedded), *dh = malloc(size * sizeof *dh);
    float *logits = malloc((size_t)LENGTH * d->vocab * sizeof *logits);
    by_hand h = {r, malloc(rows * LENGTH * sizeof(float))};
    double loss[LENGTH];
    int32_t labels[LENGTH];
    const vptq_rng rng = vptq_rng_make(SEED, 0, 0, VPTQ_RNG_LABELS);
    const vptq_backward_hooks hooks = {.linear = square, .arg = &h};
    vptq_backward_loss a = {.hidden = states + d->layers * size, .targets = labels, .scale = 1};

    assert_ok(vptq_forward_open(&r->v.m, (vptq_device *)(uintptr_t)&r->v.dev, LENGTH, &f, &err),
              &err);
    assert_ok(vptq_backward_open(f, LENGTH, 1, &b, &err), &err);
    assert_ok(vptq_backward_run(b, r->ids + w * LENGTH, NULL, embedded, states, &err), &err);
    assert_ok(vptq_forward_logits(f, LENGTH, a.hidden, logits, &err), &err);
    for (size_t t = 0; t < LENGTH; t++)
        labels[t] = label_of(logits + t * d->vocab, d->vocab,
                             vptq_rng_uniform(&rng, (uint64_t)w * LENGTH + t));
    assert_ok(vptq_backward_head(b, &a, loss, dh, &err), &err);
    for (uint32_t l = d->layers; l-- > 0;)
        assert_ok(vptq_backward_block(b, l, states + l * size, dh, &hooks, &err), &err);
    assert_close(got, h.want, rows * LENGTH, 0, 1e-5);
    vptq_backward_close(b);
    vptq_forward_close(f);
    free(states);
    free(embedded);
    free(dh);
    free(logits);
    free(h.want);
}

static void test_gradients_of_drawn_labels(void **state)
{
    static const char *const backends[] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_open(&r, *state, backends[i], 2);
        const vptq_saliency_options o = options(&r, *state);
        const size_t rows = vptq_saliency_row(r.v.m.desc, 1, 0, (vptq_linear)0);
        float *s = collect(&r, &o);
        for (size_t w = 0; w < WINDOWS; w++)
            check_window(&r, w, s + w * rows * LENGTH);
        free(s);
        rig_close(&r);
        vtest_path(r.path, sizeof r.path, *state, VPTQ_SALIENCY_FILE);
        assert_int_equal(unlink(r.path), 0); /* the other backend would read it */
    }
}

/* ---- the same bytes ---- */

/* Raises the flag after three windows. */
static void stop_after_three(void *arg, const vptq_progress_info *info)
{
    volatile sig_atomic_t *stop = arg;
    *stop = info->done >= 3;
}

static void test_same_bytes(void **state)
{
    rig r, other;
    vptq_err err = {0};
    vptq_hidden_states s;
    char path[4096];
    rig_open(&r, *state, "cpu", 1);
    rig_open(&other, *state, "cpu", 4);
    vptq_saliency_options o = options(&r, *state);
    float *whole = collect(&r, &o);
    vtest_path(path, sizeof path, *state, VPTQ_SALIENCY_FILE);
    assert_int_equal(unlink(path), 0);

    /* cut off after some windows, then continued by another number of threads; in a file, and
     * then in memory */
    o.reserve = SIZE_MAX;
    volatile sig_atomic_t stop = 0;
    r.v.ctx.cancel = &stop;
    r.v.ctx.progress = stop_after_three;
    r.v.ctx.user = (void *)(uintptr_t)&stop;
    assert_int_equal(vptq_saliency_collect(&r.v.dev, &o, &s, &err), VPTQ_E_CANCELLED);
    assert_true(vptq_path_exists(path));
    vptq_saliency_options rest = options(&other, *state);
    float *again = collect(&other, &rest);
    assert_same_f32(again, whole, all_rows(&r) * LENGTH);
    free(again);

    /* a finished one is read: other ids do not matter */
    memset(other.ids, 0, IDS * sizeof *other.ids);
    again = collect(&other, &rest);
    assert_same_f32(again, whole, all_rows(&r) * LENGTH);
    free(again);
    /* that of another run is not */
    rest.fingerprint = "0123456789abcdee";
    again = collect(&other, &rest);
    assert_true(memcmp(again, whole, all_rows(&r) * LENGTH * sizeof *again) != 0);
    free(again);

    /* in a file from start to end */
    stop = 0;
    r.v.ctx.progress = NULL;
    o.fingerprint = "0123456789abcded";
    assert_ok(vptq_saliency_collect(&r.v.dev, &o, &s, &err), &err);
    assert_true(s.fd >= 0);
    vptq_hidden_states_close(&s);
    again = collect(&r, &o);
    assert_same_f32(again, whole, all_rows(&r) * LENGTH);
    free(again);
    free(whole);
    rig_close(&r);
    rig_close(&other);
}

/* ---- weights ---- */

static void test_weights(void **state)
{
    enum { N = 2001 };
    float s[N], w[3];
    (void)state;
    for (int i = 0; i < N; i++)
        s[i] = (float)((i * 7) % N); /* 0 .. 2000, in some order */
    s[0] = 1e6f;                     /* in place of 0 */
    /* the quantile is at place 0.95 * 2000 of 1 .. 2000, 1e6 */
    vptq_saliency_scale k = vptq_saliency_scale_of(s, N);
    assert_true(k.clip == 1901);
    const double mean = (1901.0 * 1902 / 2 + 100 * 1901) / N;
    assert_true(fabs(k.mean - mean) < 1e-9);
    const float some[] = {0, 1000, 1e6f};
    vptq_saliency_weights(&k, some, 3, w);
    assert_true(w[0] == 0);
    assert_true(w[1] == (float)(1000 / k.mean / 3));
    assert_true(w[2] == (float)(1901 / k.mean / 3));
    memset(s, 0, sizeof s);
    k = vptq_saliency_scale_of(s, N);
    vptq_saliency_weights(&k, s, 3, w); /* nothing is known: all alike */
    assert_true(w[0] == (float)(1.0 / 3) && w[2] == (float)(1.0 / 3));
}

/* ---- refusals ---- */

typedef struct oom_run {
    const rig *r;
    vptq_saliency_options o;
} oom_run;

static vptq_status collect_on(void *arg, vptq_device *dev, vptq_err *err)
{
    const oom_run *run = arg;
    vptq_hidden_states s;
    VPTQ_CHECK(vptq_saliency_collect(dev, &run->o, &s, err));
    vptq_hidden_states_close(&s);
    return VPTQ_OK;
}

static void test_out_of_memory(void **state)
{
    rig r;
    rig_open(&r, *state, "cpu", 1);
    oom_run run = {&r, options(&r, *state)};
    run.o.windows = 1;
    run.o.checkpoint_seconds = 0;
    assert_true(devices_oom_walk("cpu", 1, collect_on, &run) > 5);
    rig_close(&r);
}

/* Collects with another final norm. */
static void check_norm(void **state, float value, const char *want)
{
    rig r;
    vptq_err err = {0};
    vptq_hidden_states s;
    vrig_norm norm;
    rig_open(&r, *state, "cpu", 1);
    const vptq_saliency_options o = options(&r, *state);
    vrig_set_final_norm(&r.v, &norm, value);
    assert_fails(vptq_saliency_collect(&r.v.dev, &o, &s, &err), VPTQ_E_NUMERIC, &err, want);
    assert_non_null(strstr(err.text, "window 0"));
    rig_close(&r);
}

static void test_not_finite(void **state)
{
    check_norm(state, 1e38f, "not finite"); /* logits overflow */
    check_norm(state, NAN, "the logits of token 0 are not finite");
}

VTEST_MAIN(scratch_test(test_gradients_of_drawn_labels), scratch_test(test_same_bytes),
           cmocka_unit_test(test_weights), scratch_test(test_out_of_memory),
           scratch_test(test_not_finite))
