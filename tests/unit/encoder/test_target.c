/* Tests corrected targets against NumPy in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/encoder/target.h"
#include "tests/support/devices.h"
#include "tests/support/vtest.h"

enum { OUT = 7, IN = 24, COUNT = OUT * IN };

/* The moments of o and down are [OUT, IN], the others [IN, IN]. */
typedef struct problem {
    vtest_npy w, lower, shift, held_lower, held_shift, delta, errors;
    bool drift;
} problem;

static void load_part(const char *name, const char *part, vtest_npy *a)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/target/%s_%s.npy", name, part);
    vtest_npy_load(path, a);
}

static void load(const char *name, problem *p)
{
    load_part(name, "w", &p->w);
    load_part(name, "lower", &p->lower);
    load_part(name, "shift", &p->shift);
    load_part(name, "held_lower", &p->held_lower);
    load_part(name, "held_shift", &p->held_shift);
    load_part(name, "delta", &p->delta);
    load_part(name, "errors", &p->errors);
    assert_int_equal(p->w.count, COUNT);
    p->drift = p->shift.count == COUNT;
}

static vptq_target_moments moments_of(const problem *p, bool held_out)
{
    const vtest_npy *shift = held_out ? &p->held_shift : &p->shift;
    const float *data = vtest_npy_as(shift, "f4");
    return (vptq_target_moments){.out = OUT,
                                 .in = IN,
                                 .w = vtest_npy_as(&p->w, "f4"),
                                 .lower =
                                     vtest_npy_as(held_out ? &p->held_lower : &p->lower, "f4"),
                                 .shift = p->drift ? NULL : data,
                                 .drift = p->drift ? data : NULL};
}

static void unload(problem *p)
{
    vtest_npy_free(&p->w);
    vtest_npy_free(&p->lower);
    vtest_npy_free(&p->shift);
    vtest_npy_free(&p->held_lower);
    vtest_npy_free(&p->held_shift);
    vtest_npy_free(&p->delta);
    vtest_npy_free(&p->errors);
}

/* The alpha that held-out moments choose for a delta. */
static vptq_target_choice choose(vptq_device *dev, const float *delta,
                                 const vptq_target_moments *held_out, double max_alpha)
{
    vptq_err err = {0};
    vptq_mirror arrays = vptq_mirror_of(dev);
    vptq_target_judge judge;
    vptq_target_choice choice;
    assert_ok(vptq_target_judge_make(dev, held_out, &arrays, &judge, &err), &err);
    assert_ok(vptq_target_choose(dev, &judge, delta, max_alpha, &choice, &err), &err);
    assert_ok(vptq_mirror_end(&arrays, VPTQ_OK, &err), &err);
    return choice;
}

/* The best of several dampings equals the best of each one alone. */
static void check_find(vptq_device *dev, const problem *p, const vptq_target_choice *small)
{
    static const double dampings[] = {0.01, 0.1, 1};
    vptq_err err = {0};
    vptq_target_choice found, one, best = {.gain = 0};
    float delta[COUNT], target[COUNT], want[COUNT];
    const float *w = vtest_npy_as(&p->w, "f4");
    const vptq_target_moments m = moments_of(p, false), held = moments_of(p, true);
    memcpy(want, w, sizeof want);
    for (int i = 0; i < 3; i++) {
        assert_ok(vptq_target_delta(dev, &m, dampings[i], delta, &err), &err);
        one = choose(dev, delta, &held, 1);
        if (!(one.gain > best.gain))
            continue;
        best = one;
        best.damping = dampings[i];
        vptq_target_apply(COUNT, w, delta, one.alpha, want);
    }
    assert_ok(vptq_target_find(dev, &m, &held, 1, target, &found, &err), &err);
    assert_same_f32(target, want, COUNT);
    assert_true(found.gain == best.gain && found.gain >= small->gain);
    assert_true(found.alpha == best.alpha && found.damping == best.damping);
}

static void check(vptq_device *dev, const char *name)
{
    problem p;
    vptq_err err = {0};
    float delta[COUNT], target[COUNT];
    double got[COUNT];
    load(name, &p);
    const float *w = vtest_npy_as(&p.w, "f4");
    const double *want = vtest_npy_as(&p.delta, "f8"), *errors = vtest_npy_as(&p.errors, "f8");
    const vptq_target_moments m = moments_of(&p, false), held = moments_of(&p, true);
    assert_ok(vptq_target_delta(dev, &m, 0.01, delta, &err), &err);
    for (int i = 0; i < COUNT; i++)
        got[i] = (double)delta[i];
    assert_close_f64(got, want, COUNT, 2e-5, 0);
    const vptq_target_choice choice = choose(dev, delta, &held, 1);
    int best = 0;
    for (int i = 1; i < 5; i++)
        best = errors[i] < errors[best] ? i : best;
    assert_true(choice.alpha == best / 4.0);
    const vptq_target_choice bounded = choose(dev, delta, &held, 0.25);
    assert_true(bounded.alpha == (best ? 0.25 : 0));
    assert_true(bounded.gain <= choice.gain);
    const double gain = -errors[best];
    assert_close_f64(&choice.gain, &gain, 1, 1e-6, 1e-4);
    for (int i = 0; i < COUNT; i++)
        got[i] = (double)w[i] + 0.75 * (double)delta[i];
    vptq_target_apply(COUNT, w, delta, 0.75, target);
    for (int i = 0; i < COUNT; i++)
        assert_true(target[i] == (float)got[i]);
    vptq_target_apply(COUNT, w, delta, 0, delta); /* in place */
    assert_same_f32(delta, w, COUNT);
    check_find(dev, &p, &choice);
    unload(&p);
}

static void test_against_numpy(void **state)
{
    static const char *const backends[] = {"ref", "cpu"};
    (void)state;
    for (int b = 0; b < 2; b++) {
        vptq_mem mem;
        vptq_err err = {0};
        vptq_device dev;
        vptq_mem_init(&mem, 0);
        vptq_ctx ctx = {.mem = &mem, .threads = 2};
        assert_ok(vptq_device_open(&ctx, backends[b], &dev, &err), &err);
        check(&dev, "few");
        check(&dev, "many");
        check(&dev, "noise");
        check(&dev, "drift");
        vptq_device_close(&dev);
        assert_int_equal(mem.used, 0);
    }
}

/* Without a shift the target is the matrix itself, whatever the Hessians. */
static void test_no_shift(void **state)
{
    problem p;
    vptq_err err = {0};
    vptq_target_choice choice;
    vptq_device dev;
    const vptq_ctx ctx = {.threads = 1};
    static const float none[IN * IN];
    float delta[COUNT];
    (void)state;
    load("few", &p);
    const float *w = vtest_npy_as(&p.w, "f4");
    const vptq_target_moments m = {
        .out = OUT, .in = IN, .w = w, .lower = vtest_npy_as(&p.lower, "f4"), .shift = none};
    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    assert_ok(vptq_target_delta(&dev, &m, 0.01, delta, &err), &err);
    choice = choose(&dev, delta, &m, 1);
    assert_true(choice.alpha == 0);
    assert_true(choice.gain == 0);
    vptq_target_apply(COUNT, w, delta, choice.alpha, delta);
    assert_same_f32(delta, w, COUNT);
    memset(delta, 0, sizeof delta);
    assert_ok(vptq_target_find(&dev, &m, &m, 1, delta, &choice, &err), &err);
    assert_true(choice.alpha == 0 && choice.gain == 0 && choice.damping == 0);
    assert_same_f32(delta, w, COUNT);
    vptq_device_close(&dev);
    unload(&p);
}

static vptq_status both(void *arg, vptq_device *dev, vptq_err *err)
{
    problem *p = arg;
    vptq_target_choice choice;
    float target[COUNT];
    const vptq_target_moments m = moments_of(p, false);
    return vptq_target_find(dev, &m, &m, 1, target, &choice, err);
}

static void test_out_of_memory(void **state)
{
    problem p;
    (void)state;
    load("many", &p);
    assert_true(devices_oom_walk("cpu", 1, both, &p) >= 5);
    unload(&p);
}

VTEST_MAIN(cmocka_unit_test(test_against_numpy), cmocka_unit_test(test_no_shift),
           cmocka_unit_test(test_out_of_memory))
