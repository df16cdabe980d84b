/* Host arrays on a device: the array itself for cpu, copies for the emulated device, whose
 * memory the host cannot access. */
#include "lib/backend/mirror.h"

#include <math.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/vtest.h"

enum { N = 300 };

typedef struct rig {
    vptq_ctx ctx;
    vptq_mem mem;
    vptq_device dev;
    float x[N], y[N];
} rig;

static void rig_open(rig *r, const char *name)
{
    vptq_err err;
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.threads = 1, .mem = &r->mem};
    r->dev = (vptq_device){.ctx = &r->ctx};
    if (strcmp(name, "emu") == 0) {
        r->dev.ops = vptq_backend_emu();
        assert_ok(r->dev.ops->open(&r->ctx, &r->dev.state, &err), &err);
        cuda_emu_guard(true);
    } else {
        assert_ok(vptq_device_open(&r->ctx, name, &r->dev, &err), &err);
    }
    for (int i = 0; i < N; i++) {
        r->x[i] = (float)i;
        r->y[i] = -1;
    }
}

static void rig_close(rig *r)
{
    assert_int_equal(cuda_emu_memory_used(), 0);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
    cuda_emu_guard(false);
    cuda_emu_memory(0);
}

/* y = silu(x) * x on the device. */
static vptq_status square_gate(rig *r, const float *x, float *y, vptq_err *err)
{
    return r->dev.ops->swiglu(
        r->dev.state, &(vptq_swiglu_args){.n = 1, .dim = N, .gate = x, .up = x, .y = y}, err);
}

static void assert_done(const rig *r)
{
    for (int i = 0; i < N; i++) {
        const double x = (double)r->x[i];
        assert_true(fabs((double)r->y[i] - x * x / (1 + exp(-x))) <= 1e-6 * x * x + 1e-6);
    }
}

static void test_there_and_back(void **state)
{
    static const char *const names[] = {"ref", "cpu", "emu"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rig r;
        vptq_err err;
        rig_open(&r, names[i]);
        vptq_mirror m = vptq_mirror_of(&r.dev);
        const float *x = vptq_mirror_in(&m, r.x, N, sizeof *x);
        float *y = vptq_mirror_take(&m, r.y, N, sizeof *y, VPTQ_MIRROR_DOWNLOAD);
        assert_null(vptq_mirror_in(&m, NULL, N, sizeof *x));
        assert_ok(vptq_mirror_check(&m, &err), &err);
        assert_int_equal(x == r.x, r.dev.ops->host_memory);
        assert_ok(square_gate(&r, x, y, &err), &err);
        assert_ok(vptq_mirror_end(&m, VPTQ_OK, &err), &err);
        assert_done(&r);
        rig_close(&r);
    }
}

static void test_between_the_ends(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    rig_open(&r, "emu");
    vptq_mirror m = vptq_mirror_of(&r.dev);
    float *x = vptq_mirror_take(&m, r.x, N, sizeof *x, VPTQ_MIRROR_UPLOAD);
    float *y = vptq_mirror_take(&m, r.y, N, sizeof *y, 0);
    r.x[7] = 0.5F; /* the device still has 7 */
    assert_ok(vptq_mirror_push(&m, r.x + 7, sizeof *x, &err), &err);
    assert_ok(square_gate(&r, x, y, &err), &err);
    assert_true(r.y[7] == -1);
    assert_ok(vptq_mirror_pull(&m, r.y + 5, 3 * sizeof *y, &err), &err);
    assert_true(r.y[4] == -1 && r.y[8] == -1);
    assert_true(fabs((double)r.y[7] - 0.25 / (1 + exp(-0.5))) <= 1e-6);
    assert_ok(vptq_mirror_end(&m, VPTQ_OK, &err), &err);
    assert_true(r.y[8] == -1); /* arrays of the device alone are not downloaded */
    rig_close(&r);
}

static void test_failures(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    rig_open(&r, "emu");
    vptq_mirror m = vptq_mirror_of(&r.dev);
    float *x =
        vptq_mirror_take(&m, r.x, N, sizeof *x, VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    assert_ok(square_gate(&r, x, x, &err), &err);
    assert_fails(vptq_mirror_end(&m, vptq_fail(&err, VPTQ_E_CANCELLED, "stopped"), &err),
                 VPTQ_E_CANCELLED, &err, "stopped");
    assert_true(r.x[9] == 9); /* a failed step downloads nothing */

    cuda_emu_memory(N * sizeof *x + 100);
    m = vptq_mirror_of(&r.dev);
    assert_non_null(vptq_mirror_in(&m, r.x, N, sizeof *x));
    assert_null(vptq_mirror_in(&m, r.y, N, sizeof *x));
    assert_null(vptq_mirror_in(&m, r.y, 1, sizeof *x)); /* the failure is kept */
    assert_fails(vptq_mirror_check(&m, &err), VPTQ_E_NOMEM, &err,
                 "1200 bytes of device memory: 100 of 1300 are free");
    assert_fails(vptq_mirror_end(&m, VPTQ_OK, &err), VPTQ_E_NOMEM, &err, "device memory");

    r.mem.fail_after = 0;
    m = vptq_mirror_of(&r.dev);
    assert_null(vptq_mirror_in(&m, r.x, 1, sizeof *x));
    r.mem.fail_after = -1;
    assert_fails(vptq_mirror_end(&m, VPTQ_OK, &err), VPTQ_E_NOMEM, &err, "");
    rig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_between_the_ends),
           cmocka_unit_test(test_failures))
