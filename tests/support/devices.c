/* Opens the devices of a test, runs ops on them and compares the results. */
#include "tests/support/devices.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/shadow.h"

/* The reference makes the linker keep the emulated backend. */
static const vptq_backend *(*const emulated)(void) = vptq_backend_emu;

/* ---- which devices ---- */

static bool mode_is(const char *mode)
{
    const char *set = getenv("VPTQ_TEST_GPU");
    return set && strcmp(set, mode) == 0;
}

bool devices_only(void)
{
    return mode_is("only") || mode_is("only:emu");
}

const char *devices_gpu(void)
{
    return mode_is("only") ? "cuda" : "emu";
}

void devices_skip_if_only(void)
{
    if (devices_only())
        skip();
}

bool devices_have_gpu(void)
{
    return mode_is("1") || mode_is("only");
}

/* An emulated device takes hours on an emulated processor. */
static bool have_emulator(void)
{
    return !mode_is("only") && !vtest_emulated();
}

bool devices_have_simd(int simd)
{
    return !devices_only() &&
           (simd == DEVICES_AMX ? vptq_cpu_amx() : vptq_cpu_has((vptq_simd)simd));
}

static const char *level_name(int simd)
{
    return simd == DEVICES_AMX ? "amx" : vptq_simd_name((vptq_simd)simd);
}

/* Orders in which the emulator runs threads, by seed.  The plain build compares several; with
 * instrumented code, which takes many times as long, each test has one, which is not the
 * natural one. */
#if defined(__SANITIZE_ADDRESS__)
enum { FIRST_ORDER = 1, EACH_ORDERS = 1, CHECK_ORDERS = 1 };
#else
enum { FIRST_ORDER = 0, EACH_ORDERS = 2, CHECK_ORDERS = 3 };
#endif

/* ---- running ---- */

void devices_open(devices_one *d, const char *name, int simd, int threads)
{
    vptq_err err;
    d->ctx = (vptq_ctx){.threads = threads};
    if (simd != DEVICES_AMX) /* which only a process without a choice of its own has */
        setenv("VPTQ_SIMD", level_name(simd), 1);
    name = strcmp(name, "emu") == 0 ? devices_gpu() : name;
    assert_ok(vptq_device_open(&d->ctx, name, &d->dev, &err), &err);
    unsetenv("VPTQ_SIMD");
    if (d->dev.ops->host_memory)
        return;
    cuda_emu_guard(d->dev.ops == emulated());
    d->dev = shadow_of(&d->dev);
}

double devices_float_sum_limit(size_t k)
{
    return ((double)k + 4) * 0x1p-46;
}

void devices_close(devices_one *d)
{
    vptq_device_close(&d->dev);
    cuda_emu_guard(false);
}

void devices_each(devices_fn fn, void *arg)
{
    devices_one d;
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    fn(arg, &d.dev, true);
    devices_close(&d);
    for (int simd = VPTQ_SIMD_NONE; simd <= DEVICES_AMX; simd++) {
        if (!devices_have_simd(simd))
            continue;
        devices_open(&d, "cpu", simd, 2);
        fn(arg, &d.dev, false);
        devices_close(&d);
    }
    if (devices_have_gpu()) {
        devices_open(&d, "cuda", VPTQ_SIMD_NONE, 1);
        fn(arg, &d.dev, false);
        devices_close(&d);
    }
}

void devices_each_emu(devices_fn fn, void *arg)
{
    devices_each(fn, arg);
    for (int i = 0; have_emulator() && i < EACH_ORDERS; i++) {
        devices_one d;
        cuda_emu_seed((uint64_t)(FIRST_ORDER + i));
        devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
        fn(arg, &d.dev, false);
        devices_close(&d);
    }
    cuda_emu_seed(0);
}

static void *run_on(const devices_op *op, const char *name, int simd, int threads)
{
    devices_one d;
    void *out = malloc(op->count * op->size + 1);
    assert_non_null(out);
    memset(out, 0xff, op->count * op->size); /* NaN: every element must be written */
    devices_open(&d, name, simd, threads);
    /* A library call outside the backend's own loops would use this number. */
    omp_set_num_threads(threads);
    op->run(&d.dev, op->arg, out);
    devices_close(&d);
    return out;
}

static void compare(const devices_op *op, const void *got, const void *want)
{
    if (op->size == 1) {
        assert_memory_equal(got, want, op->count);
        return;
    }
    double error = 0, norm = 0;
    for (size_t i = 0; i < op->count; i++) {
        const bool single = op->size == sizeof(float);
        const double a = single ? (double)((const float *)got)[i] : ((const double *)got)[i];
        const double b = single ? (double)((const float *)want)[i] : ((const double *)want)[i];
        error += (a - b) * (a - b);
        norm += b * b;
    }
    if (!(error <= op->limit * norm))
        fail_msg("NMSE %g of %zu elements, limit %g", error / norm, op->count, op->limit);
}

/* Checks that a device other than ref is close to it and gives the same bits every time. */
static void check_device(const devices_op *op, const char *name, const void *want, int times)
{
    void *first = NULL;
    for (int i = 0; i < times; i++) {
        cuda_emu_seed((uint64_t)(FIRST_ORDER + i));
        void *got = run_on(op, name, VPTQ_SIMD_NONE, 1);
        compare(op, got, want);
        if (first)
            assert_memory_equal(got, first, op->count * op->size);
        free(first);
        first = got;
    }
    cuda_emu_seed(0);
    free(first);
}

void devices_check(const devices_op *op, void *out)
{
    static const int threads[] = {2, 3, 5};
    void *want = run_on(op, "ref", VPTQ_SIMD_NONE, 1);

    void *none = NULL;
    for (int simd = VPTQ_SIMD_NONE; simd <= DEVICES_AMX; simd++) {
        if (!devices_have_simd(simd))
            continue;
        void *one = run_on(op, "cpu", simd, 1);
        compare(op, one, want);
        if (none && memcmp(one, none, op->count * op->size))
            fail_msg("%s rounds differently than none", level_name(simd));
        for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
            void *many = run_on(op, "cpu", simd, threads[i]);
            assert_memory_equal(many, one, op->count * op->size);
            free(many);
        }
        if (none)
            free(one);
        else
            none = one;
    }
    free(none);
    if (devices_have_gpu())
        check_device(op, "cuda", want, 2);
    if (out)
        memcpy(out, want, op->count * op->size);
    free(want);
}

void devices_check_emu(const devices_op *op, void *out)
{
    void *want = malloc(op->count * op->size + 1);
    assert_non_null(want);
    devices_check(op, want);
    if (have_emulator())
        check_device(op, "emu", want, CHECK_ORDERS);
    if (out)
        memcpy(out, want, op->count * op->size);
    free(want);
}

typedef struct oom_call {
    const char *name;
    int threads;
    devices_oom_fn fn;
    void *arg;
} oom_call;

static vptq_status call_on_device(void *arg, vptq_mem *mem, vptq_err *err)
{
    const oom_call *c = arg;
    const vptq_ctx ctx = {.mem = mem, .threads = c->threads};
    vptq_device dev;
    VPTQ_CHECK(vptq_device_open(&ctx, c->name, &dev, err));
    const vptq_status st = c->fn(c->arg, &dev, err);
    vptq_device_close(&dev);
    return st;
}

size_t devices_oom_walk(const char *name, int threads, devices_oom_fn fn, void *arg)
{
    oom_call c = {name, threads, fn, arg};
    return vtest_oom_walk(call_on_device, &c);
}
