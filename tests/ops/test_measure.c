/* Tests the entry `measure` of the table: the work is done, errors of the work come back, and
 * work that a device cannot record fails without harm to what follows. */
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/devices.h"

enum { N = 64 };

typedef struct rig {
    vptq_ctx ctx;
    vptq_device dev;
    float *x, *y; /* [N] on the device */
    vptq_status status;
    bool waits; /* as part of the work */
} rig;

static void rig_open(rig *r, const char *name)
{
    vptq_err err;
    void *x = NULL, *y = NULL;
    float ones[N];
    (void)vptq_backend_emu(); /* this reference links it */
    *r = (rig){.ctx = {.threads = 1}};
    for (size_t i = 0; i < N; i++)
        ones[i] = 1;
    assert_ok(vptq_device_open(&r->ctx, name, &r->dev, &err), &err);
    assert_ok(r->dev.ops->alloc(r->dev.state, N, sizeof(float), &x, &err), &err);
    assert_ok(r->dev.ops->alloc(r->dev.state, N, sizeof(float), &y, &err), &err);
    assert_ok(r->dev.ops->upload(r->dev.state, x, ones, sizeof ones, &err), &err);
    assert_ok(r->dev.ops->upload(r->dev.state, y, ones, sizeof ones, &err), &err);
    r->x = x;
    r->y = y;
}

static void rig_close(rig *r)
{
    r->dev.ops->release(r->dev.state, r->x);
    r->dev.ops->release(r->dev.state, r->y);
    vptq_device_close(&r->dev);
}

/* y *= silu(x), three times. */
static vptq_status work(void *arg, vptq_err *err)
{
    rig *r = arg;
    const vptq_swiglu_args a = {.n = 1, .dim = N, .gate = r->x, .up = r->y, .y = r->y};
    for (int i = 0; i < 3; i++)
        VPTQ_CHECK(r->dev.ops->swiglu(r->dev.state, &a, err));
    if (r->waits)
        VPTQ_CHECK(r->dev.ops->sync(r->dev.state, err));
    if (r->status)
        return vptq_fail(err, r->status, "the work fails");
    return VPTQ_OK;
}

/* y after the work was done this many times. */
static void check_y(rig *r, int times)
{
    vptq_err err;
    float y[N], want = 1;
    for (int i = 0; i < 3 * times; i++)
        want *= 0.73105858f;
    assert_ok(r->dev.ops->download(r->dev.state, y, r->y, sizeof y, &err), &err);
    for (size_t i = 0; i < N; i++)
        if (!(y[i] > want * 0.99999f && y[i] < want * 1.00001f))
            fail_msg("element %zu is %g, expected %g", i, (double)y[i], (double)want);
}

static void measures_work(void **state)
{
    (void)state;
    const char *const names[] = {"ref", "cpu", devices_gpu()};
    for (size_t i = 0; i < 3; i++) {
        rig r;
        vptq_err err;
        double seconds = -1;
        rig_open(&r, names[i]);
        for (int times = 1; times <= 3; times++) {
            assert_ok(r.dev.ops->measure(r.dev.state, work, &r, &seconds, &err), &err);
            assert_true(seconds > 0 && seconds < 10);
            check_y(&r, times);
        }
        rig_close(&r);
    }
}

static void returns_errors_of_the_work(void **state)
{
    (void)state;
    const char *const names[] = {"ref", "cpu", devices_gpu()};
    for (size_t i = 0; i < 3; i++) {
        rig r;
        vptq_err err;
        double seconds = 0;
        rig_open(&r, names[i]);
        r.status = VPTQ_E_CANCELLED;
        assert_fails(r.dev.ops->measure(r.dev.state, work, &r, &seconds, &err),
                     VPTQ_E_CANCELLED, &err, "the work fails");
        r.status = VPTQ_OK;
        assert_ok(r.dev.ops->measure(r.dev.state, work, &r, &seconds, &err), &err);
        rig_close(&r);
    }
}

static void refuses_what_cannot_be_recorded(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    double seconds = 0;
    rig_open(&r, devices_gpu());
    r.waits = true;
    assert_fails(r.dev.ops->measure(r.dev.state, work, &r, &seconds, &err), VPTQ_E_DEVICE, &err,
                 "captur");
    r.waits = false;
    assert_ok(r.dev.ops->measure(r.dev.state, work, &r, &seconds, &err), &err);
    assert_ok(r.dev.ops->sync(r.dev.state, &err), &err);
    rig_close(&r);
}

/* The size of a cache decides how many copies a benchmark cycles through. */
static void knows_its_cache(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, devices_gpu());
    assert_true(r.dev.ops->cache_bytes(r.dev.state) >= 1 << 20);
    rig_close(&r);
}

/* Every routine of the libraries computes the same product; after the last one there are no
 * more. */
static void library_products_in_float16(void **state)
{
    (void)state;
    enum { IN = 16, OUT = 8, ONE = 0x3c00, TWO = 0x4000, SUM = 0x4c00 /* 16 */ };
    rig r;
    vptq_err err;
    uint16_t w[OUT * IN], x[IN], y[OUT];
    rig_open(&r, devices_gpu());
    const vptq_backend *ops = r.dev.ops;
    void *arrays[3];
    const size_t bytes[] = {sizeof w, sizeof x, sizeof y};
    for (size_t i = 0; i < 3; i++)
        assert_ok(ops->alloc(r.dev.state, 1, bytes[i], &arrays[i], &err), &err);
    for (size_t i = 0; i < OUT * IN; i++)
        w[i] = i < IN ? TWO : ONE; /* the first row */
    for (size_t i = 0; i < IN; i++)
        x[i] = ONE;
    assert_ok(ops->upload(r.dev.state, arrays[0], w, sizeof w, &err), &err);
    assert_ok(ops->upload(r.dev.state, arrays[1], x, sizeof x, &err), &err);
    vptq_half_args a = {
        .out = OUT, .in = IN, .n = 1, .w = arrays[0], .x = arrays[1], .y = arrays[2]};
    vptq_status st = VPTQ_OK;
    for (; !(st = ops->library_half(r.dev.state, &a, &err)); a.way++) {
        assert_ok(ops->download(r.dev.state, y, arrays[2], sizeof y, &err), &err);
        for (size_t i = 0; i < OUT; i++)
            assert_int_equal(y[i], i ? SUM : SUM + 0x400);
    }
    assert_fails(st, VPTQ_E_UNSUPPORTED, &err, "");
    assert_true(a.way >= 2);
    for (size_t i = 0; i < 3; i++)
        ops->release(r.dev.state, arrays[i]);
    rig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(library_products_in_float16), cmocka_unit_test(measures_work),
           cmocka_unit_test(returns_errors_of_the_work),
           cmocka_unit_test(refuses_what_cannot_be_recorded), cmocka_unit_test(knows_its_cache))
