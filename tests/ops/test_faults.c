/* A device that fails in the middle of a run: every op reports it, and no later op succeeds.
 * Also a device with little memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vrows.h"
#include "tests/support/vtest.h"

static void expect(const char *row, const char *when, vptq_status st, const vptq_err *err,
                   const char *part)
{
    if (!st)
        fail_msg("%s %s: success, expected a failure", row, when);
    if (st != VPTQ_E_DEVICE && st != VPTQ_E_NOMEM)
        fail_msg("%s %s: %s", row, when, vptq_status_name(st));
    if (!strstr(err->text, part))
        fail_msg("%s %s: '%s' has no '%s'", row, when, err->text, part);
}

static void expect_success(const char *row, const char *when, vptq_status st,
                           const vptq_err *err)
{
    if (st)
        fail_msg("%s %s: %s", row, when, err->text);
}

/* After a failed copy no op succeeds. */
static void test_no_row_works_on_a_broken_device(void **state)
{
    (void)state;
    for (const vrows_row *row = vrows_all; row->name; row++) {
        vrows r;
        vptq_err err;
        vrows_open(&r);
        cuda_emu_break("copy:1");
        assert_fails(r.dev.ops->upload(r.dev.state, r.x, r.host, 4, &err), VPTQ_E_DEVICE, &err,
                     "an upload failed on the device: uncorrectable ECC error");
        for (int again = 0; again < 2; again++)
            expect(row->name, "on a broken device", row->run(&r, &err), &err,
                   "uncorrectable ECC error");
        cuda_emu_break(NULL);
        expect_success(row->name, "on a device as new", row->run(&r, &err), &err);
        vrows_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
    }
}

/* A kernel that dies after its launch is reported by whatever waits for the device, and by all
 * later ops. */
static void test_dead_kernels_are_noticed(void **state)
{
    (void)state;
    static const char *const why = "an illegal memory access was encountered";
    for (const vrows_row *row = vrows_all; row->name; row++) {
        vrows r;
        vptq_err err;
        vrows_open(&r);
        const unsigned long before = cuda_emu_count().launches;
        cuda_emu_break("kernel:1");
        const vptq_status st = row->run(&r, &err);
        if (st)
            expect(row->name, "whose kernel dies", st, &err, why);
        if (cuda_emu_count().launches > before) {
            expect("sync", "after a dead kernel", r.dev.ops->sync(r.dev.state, &err), &err,
                   why);
            expect(row->name, "after a dead kernel", row->run(&r, &err), &err, why);
        }
        cuda_emu_break(NULL);
        vrows_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
    }
}

/* The n-th launch or allocation fails, for every n: the op reports it and works when it is
 * called again. */
static void check_refusals(const vrows_row *row, const char *how, const char *part)
{
    vrows r;
    vptq_err err;
    vptq_status st;
    char when[32];
    for (int n = 1; n < 40; n++) {
        vrows_open(&r);
        snprintf(when, sizeof when, "%s:%d", how, n);
        cuda_emu_break(when);
        st = row->run(&r, &err);
        if (st)
            expect(row->name, when, st, &err, part);
        cuda_emu_break(NULL);
        if (st)
            expect_success(row->name, "after a refusal", row->run(&r, &err), &err);
        vrows_close(&r);
        assert_int_equal(cuda_emu_memory_used(), 0);
        if (!st)
            return;
    }
    fail_msg("%s has no end", row->name);
}

static void test_refused_launches_and_allocations(void **state)
{
    (void)state;
    for (const vrows_row *row = vrows_all; row->name; row++) {
        check_refusals(row, "launch", "too many resources requested for launch");
        check_refusals(row, "alloc", "device memory");
    }
}

/* ---- ops that need less memory if there is less ---- */

enum { VECTORS = 5000, V = 4, CODEBOOK = 8 };

typedef struct sums {
    double sums[CODEBOOK * V], weights[CODEBOOK], objective;
} sums;

/* Limits device memory to `bytes` more than the arrays take; 0: no limit. */
static vptq_status add_up(const float *x, const uint32_t *idx, size_t bytes, sums *out,
                          vptq_err *err)
{
    vrows r;
    void *dx = NULL, *di = NULL, *ds = NULL;
    vrows_open(&r);
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
    vrows_close(&r);
    return st;
}

/* Counts per piece of the sort for three pieces, two pieces or a single one. */
static void test_accumulate_in_larger_pieces(void **state)
{
    (void)state;
    enum { ORDER = (VECTORS + CODEBOOK + 1) * 4 + (CODEBOOK + 1) * 8, COUNTS = CODEBOOK * 4 };
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
                 "20140 bytes of device memory: ");
    free(x);
}

enum { OUT = 512, IN = 32, MANY = 20 };

static vptq_status multiply(const vptq_vq *q, const float *x, size_t bytes, float *y,
                            vptq_err *err)
{
    vrows r;
    vptq_matrix *m = NULL;
    void *dx = NULL, *dy = NULL;
    vrows_open(&r);
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
    vrows_close(&r);
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
    /* the tile of all rows has 64 KiB; what is stored, less than 4 */
    assert_ok(multiply(&m.q, x, 20 << 10, got, &err), &err);
    assert_same_f32(got, want, MANY * OUT);
    assert_fails(multiply(&m.q, x, 8000, got, &err), VPTQ_E_NOMEM, &err,
                 "8192 bytes of device memory: 8000 of ");
    unsetenv("VPTQ_CUDA_GEMV");
    vmatrix_free(&m);
    free(x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_row_works_on_a_broken_device),
        cmocka_unit_test(test_dead_kernels_are_noticed),
        cmocka_unit_test(test_refused_launches_and_allocations),
        cmocka_unit_test(test_accumulate_in_larger_pieces),
        cmocka_unit_test(test_products_through_smaller_tiles),
    };
    return vtest_main(argc, argv, tests);
}
