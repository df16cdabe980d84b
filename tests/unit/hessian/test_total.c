/* Tests sums over chunks of windows: their order, and the windows of each rank. */
#include "hessian/total.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/calibrate.h"
#include "lib/base/comm.h"
#include "tests/support/vcount.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

/* ---- totals ---- */

/* 1 is lost in 2^60: only one order gives 0. */
static void test_chunks_in_order(void **state)
{
    enum { ROWS = 3, N = 4, PACKED = ROWS * (ROWS + 1) / 2 };
    static const double chunks[] = {1, 0x1p60, -0x1p60};
    static const char *const backends[] = {"ref", "cpu"};
    (void)state;
    for (int b = 0; b < 4; b++) {
        vptq_err err = {0};
        vptq_device dev;
        vptq_total t;
        vptq_ctx ctx = {.threads = 2};
        double x[ROWS * N], got[PACKED + N];
        void *p;
        assert_ok(vptq_device_open(&ctx, backends[b % 2], &dev, &err), &err);
        if (b > 1)
            vcount_start(&dev, SIZE_MAX);
        assert_ok(dev.ops->alloc(dev.state, 1, sizeof x, &p, &err), &err);
        assert_ok(vptq_total_init(&dev, PACKED + N + 1, &t, &err), &err);
        for (int again = 0; again < 2; again++) {
            vptq_total_clear(&t, PACKED + N);
            for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
                for (size_t i = 0; i < ROWS * N; i++)
                    x[i] = chunks[k];
                assert_ok(dev.ops->upload(dev.state, p, x, sizeof x, &err), &err);
                assert_ok(vptq_total_add(&t, 0, ROWS, N, true, p, &err), &err);
                assert_ok(vptq_total_add(&t, PACKED, 1, N, false, p, &err), &err);
                assert_ok(vptq_total_share(&t, 1, &err), &err);
            }
            assert_ok(vptq_total_finish(&t, &err), &err);
            assert_ok(dev.ops->download(dev.state, got, t.sum, sizeof got, &err), &err);
            for (size_t i = 0; i < PACKED + N; i++)
                assert_true(got[i] == 0);
        }
        vptq_total_release(&t);
        dev.ops->release(dev.state, p);
        vptq_device_close(&dev);
    }
}

/* ---- windows of ranks ---- */

/* Every window has one rank; chunks of a round are in the order of ranks. */
static void test_windows_of_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 7; ranks++)
        for (size_t windows = 0; windows <= 70; windows++) {
            size_t seen[70] = {0}, rounds = 0, chunks = 0;
            for (int rank = 0; rank < ranks; rank++) {
                vptq_comm comm = {.rank = rank, .size = ranks};
                const vptq_ctx ctx = {.comm = &comm};
                const size_t own = vptq_own_windows(&ctx, windows);
                for (size_t i = 0; i < own; i++) {
                    const size_t w = vptq_own_window(&ctx, i);
                    assert_true(w < windows);
                    assert_int_equal(w / VPTQ_CHUNK_WINDOWS % (size_t)ranks, rank);
                    seen[w]++;
                }
                rounds = vptq_rounds(&ctx, windows);
                chunks = 0;
                for (size_t k = 0; k < rounds; k++)
                    chunks += (size_t)vptq_round_parts(&ctx, windows, k);
            }
            for (size_t w = 0; w < windows; w++)
                assert_int_equal(seen[w], 1);
            assert_int_equal(chunks, (windows + 7) / 8);
            assert_int_equal(rounds, (chunks + (size_t)ranks - 1) / (size_t)ranks);
        }
}

/* ---- calibrations ---- */

enum { WINDOWS = 20, LENGTH = 16 };

/* Sums of all inputs of block 0. */
typedef struct sums {
    double *sum[VPTQ_INPUT_DENSE];
    size_t n[VPTQ_INPUT_DENSE];
} sums;

static vptq_status keep(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    sums *s = arg;
    (void)part;
    (void)err;
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        const vptq_total *t = &c->sum[i].total;
        s->n[i] = t->n;
        s->sum[i] = vtest_alloc(t->n, sizeof *s->sum[i]);
        memcpy(s->sum[i], t->sum, t->n * sizeof *t->sum);
    }
    return VPTQ_OK;
}

static void free_sums(sums *s)
{
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
        free(s->sum[i]);
}

/* Sums `count` windows from `first` on. */
static void calibrate(vrig *r, const char *ids, size_t first, size_t count, sums *s)
{
    vptq_err err = {0};
    vptq_calibrator c;
    const char *files[] = {ids};
    const vptq_calibrate_options opt = {
        .corpus = {.tokens = files, .token_count = 1}, .windows = WINDOWS, .length = LENGTH};
    assert_ok(vptq_calibrator_plan(&r->dev, &r->m, &opt, &c, &err), &err);
    assert_int_equal(c.windows[VPTQ_PART_MAIN], WINDOWS);
    c.window += first;
    c.windows[VPTQ_PART_MAIN] = count;
    assert_ok(vptq_calibrator_start(&c, NULL, 0, 0, &err), &err);
    assert_ok(vptq_calibrator_run(&c, keep, s, &err), &err);
    vptq_calibrator_release(&c);
}

static void test_calibration_adds_chunks(void **state)
{
    vrig r;
    char path[4096];
    sums all, chunk[3];
    vrig_open_on(&r, VRIG_TINY_OF("qwen3"), NULL, "cpu", 2);
    int32_t *ids = vrig_ids(*state, WINDOWS * LENGTH, path, sizeof path);
    calibrate(&r, path, 0, WINDOWS, &all);
    for (size_t k = 0; k < 3; k++)
        calibrate(&r, path, k * 8, k < 2 ? 8 : 4, &chunk[k]);
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
        for (size_t j = 0; j < all.n[i]; j++) {
            const double sum = chunk[0].sum[i][j] + chunk[1].sum[i][j];
            assert_true(all.sum[i][j] == sum + chunk[2].sum[i][j]);
        }
    for (size_t k = 0; k < 3; k++)
        free_sums(&chunk[k]);
    free_sums(&all);
    free(ids);
    vrig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(test_chunks_in_order), cmocka_unit_test(test_windows_of_ranks),
           scratch_test(test_calibration_adds_chunks))
