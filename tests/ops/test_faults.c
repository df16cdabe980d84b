/* Tests a device that fails in the middle of a run: every op reports it, and no later op
 * succeeds. Also a device with little memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vops.h"
#include "tests/support/vtest.h"

static void expect(const char *op, const char *when, vptq_status st, const vptq_err *err,
                   const char *part)
{
    if (!st)
        fail_msg("%s %s: success, expected a failure", op, when);
    if (st != VPTQ_E_DEVICE && st != VPTQ_E_NOMEM)
        fail_msg("%s %s: %s", op, when, vptq_status_name(st));
    if (!strstr(err->text, part))
        fail_msg("%s %s: '%s', expected '%s'", op, when, err->text, part);
}

static void expect_success(const char *op, const char *when, vptq_status st,
                           const vptq_err *err)
{
    if (st)
        fail_msg("%s %s: %s", op, when, err->text);
}

/* After a failed copy no op succeeds. */
static void test_no_op_works_on_a_broken_device(void **state)
{
    (void)state;
    for (const vops_op *op = vops_all; op->name; op++) {
        vops r;
        vptq_err err;
        vops_open(&r);
        cuda_emu_break("copy:1");
        assert_fails(r.dev.ops->upload(r.dev.state, r.x, r.host, 4, &err), VPTQ_E_DEVICE, &err,
                     "an upload failed on the device: uncorrectable ECC error");
        for (int again = 0; again < 2; again++)
            expect(op->name, "on a broken device", vops_run(op, &r, &err), &err,
                   "uncorrectable ECC error");
        cuda_emu_break(NULL);
        expect_success(op->name, "on a repaired device", vops_run(op, &r, &err), &err);
        vops_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
    }
}

/* A kernel that fails after its launch is reported by the first call that waits for the device
 * and by all later ops. */
static void test_failed_kernels_are_reported(void **state)
{
    (void)state;
    static const char *const why = "an illegal memory access was encountered";
    for (const vops_op *op = vops_all; op->name; op++) {
        vops r;
        vptq_err err;
        vops_open(&r);
        const unsigned long before = cuda_emu_count().launches;
        cuda_emu_break("kernel:1");
        const vptq_status st = vops_run(op, &r, &err);
        if (st)
            expect(op->name, "with a failing kernel", st, &err, why);
        if (cuda_emu_count().launches > before) {
            expect("sync", "after a failed kernel", r.dev.ops->sync(r.dev.state, &err), &err,
                   why);
            expect(op->name, "after a failed kernel", vops_run(op, &r, &err), &err, why);
        }
        cuda_emu_break(NULL);
        vops_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
    }
}

/* Fails the n-th launch or allocation, for every n. The op must report it and work when it is
 * called again. */
static void check_failures(const vops_op *op, const char *how, const char *part)
{
    vops r;
    vptq_err err;
    vptq_status st;
    char when[32];
    for (int n = 1; n < 40; n++) {
        vops_open(&r);
        snprintf(when, sizeof when, "%s:%d", how, n);
        cuda_emu_break(when);
        st = vops_run(op, &r, &err);
        if (st)
            expect(op->name, when, st, &err, part);
        cuda_emu_break(NULL);
        if (st)
            expect_success(op->name, "after a failure", vops_run(op, &r, &err), &err);
        vops_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
        if (!st)
            return;
    }
    fail_msg("%s still fails at the 40th %s", op->name, how);
}

static void test_failed_launches_and_allocations(void **state)
{
    (void)state;
    for (const vops_op *op = vops_all; op->name; op++) {
        check_failures(op, "launch", "too many resources requested for launch");
        check_failures(op, "alloc", "device memory");
    }
}

/* ---- ops that adapt to little memory ---- */

enum { VECTORS = 5000, V = 4, CODEBOOK = 8 };

typedef struct sums {
    double sums[CODEBOOK * V], weights[CODEBOOK], objective;
} sums;

/* Calls accumulate with device memory limited to `bytes` more than the arrays take; 0: no
 * limit. */
static vptq_status add_up(const float *x, const uint32_t *idx, size_t bytes, sums *out,
                          vptq_err *err)
{
    vops r;
    void *dx = NULL, *di = NULL, *ds = NULL;
    vops_open(&r);
    const vptq_backend *ops = r.dev.ops;
    vptq_dev *dev = r.dev.state;
    const size_t floats = VECTORS * V * sizeof *x, words = VECTORS * sizeof *idx;
    assert_ok(ops->alloc(dev, 1, floats, &dx, err), err);
    assert_ok(ops->alloc(dev, 1, words, &di, err), err);
    assert_ok(ops->alloc(dev, 1, sizeof *out, &ds, err), err);
    assert_ok(ops->upload(dev, dx, x, floats, err), err);
    assert_ok(ops->upload(dev, di, idx, words, err), err);
    if (bytes)
        cuda_emu_memory(cuda_emu_memory_used() + bytes);
    sums *s = ds;
    double objective = 0;
    vptq_status st = ops->accumulate(dev,
                                     &(vptq_accumulate_args){.n = VECTORS,
                                                             .v = V,
                                                             .k = CODEBOOK,
                                                             .x = dx,
                                                             .idx = di,
                                                             .centroids = dx,
                                                             .sums = s->sums,
                                                             .weights = s->weights,
                                                             .objective = &objective},
                                     err);
    if (!st)
        assert_ok(ops->download(dev, out, ds, sizeof *out, err), err);
    out->objective = objective;
    cuda_emu_memory(0);
    ops->release(dev, dx);
    ops->release(dev, di);
    ops->release(dev, ds);
    vops_close(&r);
    return st;
}

/* Memory for the counts of one, two or three pieces of the sort gives the same sums. */
static void test_accumulate_in_larger_pieces(void **state)
{
    (void)state;
    enum {
        PARTS = 64 * CODEBOOK * (V + 2) * 8, /* sums of the parts of every centroid */
        ORDER = PARTS + (VECTORS + CODEBOOK + 1) * 4 + (CODEBOOK + 1) * 8,
        COUNTS = CODEBOOK * 4
    };
    float *x = vtest_normals(VECTORS * V, 1);
    uint32_t idx[VECTORS];
    sums want, got;
    vptq_err err;
    for (size_t i = 0; i < VECTORS; i++)
        idx[i] = (uint32_t)(i * i % CODEBOOK);
    assert_ok(add_up(x, idx, 0, &want, &err), &err);
    for (size_t pieces = 1; pieces <= 3; pieces++) {
        assert_ok(add_up(x, idx, ORDER + pieces * COUNTS, &got, &err), &err);
        assert_memory_equal(&got, &want, sizeof got);
    }
    assert_fails(add_up(x, idx, ORDER, &got, &err), VPTQ_E_NOMEM, &err,
                 "44716 bytes of device memory: ");
    free(x);
}

enum { OUT = 512, IN = 32, MANY = 20 };

static vptq_status multiply(const vptq_vq *q, const float *x, size_t bytes, float *y,
                            vptq_err *err)
{
    vops r;
    vptq_matrix *m = NULL;
    void *dx = NULL, *dy = NULL;
    vops_open(&r);
    const vptq_backend *ops = r.dev.ops;
    vptq_dev *dev = r.dev.state;
    assert_ok(ops->alloc(dev, MANY * IN, sizeof *x, &dx, err), err);
    assert_ok(ops->alloc(dev, MANY * OUT, sizeof *y, &dy, err), err);
    assert_ok(ops->upload(dev, dx, x, MANY * IN * sizeof *x, err), err);
    assert_ok(ops->matrix_open(dev, q, &m, err), err);
    if (bytes)
        cuda_emu_memory(cuda_emu_memory_used() + bytes);
    const vptq_gemv_args g = {.n = MANY, .x = dx, .y = dy, .ldx = IN, .ldy = OUT};
    const vptq_status st = ops->vq_gemv(dev, m, &g, err);
    if (!st)
        assert_ok(ops->download(dev, y, dy, MANY * OUT * sizeof *y, err), err);
    cuda_emu_memory(0);
    ops->matrix_close(dev, m);
    ops->release(dev, dx);
    ops->release(dev, dy);
    vops_close(&r);
    return st;
}

static void test_products_through_smaller_tiles(void **state)
{
    (void)state;
    const vptq_vq_shape shape = {
        .out = OUT, .in = IN, .v = 8, .k = 16, .groups = 1, .group_size = IN};
    static float want[MANY * OUT], got[MANY * OUT];
    float *x = vtest_normals(MANY * IN, 2);
    vmatrix m;
    vptq_err err;
    vmatrix_make(&m, &shape);
    setenv("VPTQ_CUDA_GEMV", "gemm-dequant", 1);
    assert_ok(multiply(&m.q, x, 0, want, &err), &err);
    /* a tile of all rows takes 64 KiB, one of 64 rows and its product 30 KiB */
    assert_ok(multiply(&m.q, x, 40 << 10, got, &err), &err);
    assert_same_f32(got, want, MANY * OUT);
    assert_fails(multiply(&m.q, x, 8000, got, &err), VPTQ_E_NOMEM, &err,
                 "8192 bytes of device memory: 8000 of ");
    unsetenv("VPTQ_CUDA_GEMV");
    vmatrix_free(&m);
    free(x);
}

VTEST_MAIN(cmocka_unit_test(test_no_op_works_on_a_broken_device),
           cmocka_unit_test(test_failed_kernels_are_reported),
           cmocka_unit_test(test_failed_launches_and_allocations),
           cmocka_unit_test(test_accumulate_in_larger_pieces),
           cmocka_unit_test(test_products_through_smaller_tiles))
