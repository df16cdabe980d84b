/* Tests what the methods with additive codes have in common: bad matrices and Hessians, columns
 * without inputs, memory that runs out, and the same bytes for any number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/uniform/aqlm.h"
#include "lib/uniform/dbllm.h"
#include "lib/uniform/gptvq.h"
#include "lib/uniform/quip.h"
#include "tests/support/devices.h"
#include "tests/support/vadditive.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

/* ---- the methods ---- */

typedef vptq_status (*quantize_fn)(vptq_device *dev, const vptq_uniform_input *input,
                                   vptq_arena *arena, vptq_additive *a, vptq_err *err);

static vptq_status gptvq(vptq_device *dev, const vptq_uniform_input *input, vptq_arena *arena,
                         vptq_additive *a, vptq_err *err)
{
    const vptq_gptvq_settings s = {.bits = 2,
                                   .v = 2,
                                   .block_columns = 32,
                                   .block_rows = 8,
                                   .int8 = true,
                                   .storage = VPTQ_F16,
                                   .ridge = 0.01,
                                   .damping = 0.01};
    double added = 0;
    VPTQ_CHECK(vptq_gptvq_quantize(dev, &s, input, arena, a, &added, err));
    assert_true(added == 0);
    return VPTQ_OK;
}

static vptq_status aqlm(vptq_device *dev, const vptq_uniform_input *input, vptq_arena *arena,
                        vptq_additive *a, vptq_err *err)
{
    const vptq_aqlm_settings s = {.v = 8,
                                  .k = 16,
                                  .codebooks = 2,
                                  .beam = 2,
                                  .rounds = 3,
                                  .tolerance = 0.01,
                                  .kmeans_iterations = 100,
                                  .storage = VPTQ_F16,
                                  .seed = 1,
                                  .matrix = 5};
    return vptq_aqlm_quantize(dev, &s, input, arena, a, err);
}

static vptq_status dbllm(vptq_device *dev, const vptq_uniform_input *input, vptq_arena *arena,
                         vptq_additive *a, vptq_err *err)
{
    const vptq_dbllm_settings s = {
        .group_size = 64, .rounds = 50, .tolerance = 0.01, .storage = VPTQ_F16};
    return vptq_dbllm_quantize(dev, &s, input, arena, a, err);
}

static vptq_status quip(vptq_device *dev, uint32_t bits, const vptq_uniform_input *input,
                        vptq_arena *arena, vptq_additive *a, vptq_err *err)
{
    const vptq_quip_settings s = {.bits = bits, .seed = 7, .ridge = 0.01, .damping = 0.01};
    double added = 0;
    VPTQ_CHECK(vptq_quip_quantize(dev, &s, input, 5, arena, a, &added, err));
    assert_true(added == 0);
    return VPTQ_OK;
}

static vptq_status quip_2(vptq_device *dev, const vptq_uniform_input *input, vptq_arena *arena,
                          vptq_additive *a, vptq_err *err)
{
    return quip(dev, 2, input, arena, a, err);
}

static vptq_status quip_3(vptq_device *dev, const vptq_uniform_input *input, vptq_arena *arena,
                          vptq_additive *a, vptq_err *err)
{
    return quip(dev, 3, input, arena, a, err);
}

typedef struct method {
    const char *name;
    quantize_fn quantize;
    uint32_t in, odd; /* columns of a small matrix, and of one that is rejected; 0: none */
    const char *shape, *nan;  /* the reasons of rejecting: columns, and a Hessian with a NaN */
    size_t allocations;       /* at least */
    double dead_loss, device; /* at most: with dead columns; between devices */
    bool any_simd;            /* the same bytes at every SIMD level */
} method;

static const method methods[] = {
    {"gptvq", gptvq, 70, 33, "does not divide 33 columns", "hessian entry (2, 2) is nan", 10,
     0.1, 0.5, false},
    {"aqlm", aqlm, 32, 60, "vector length 8", "finite", 20, 0.2, 0.1, true},
    {"db-llm", dbllm, 70, 0, NULL, "finite", 10, 0.2, 0.02, true},
    {"quip# 2", quip_2, 24, 36, "does not divide 36 columns", "hessian entry (2, 2) is nan", 10,
     0.1, 0.02, false},
    {"quip# 3", quip_3, 24, 36, "does not divide 36 columns", "hessian entry (2, 2) is nan", 10,
     0.1, 0.02, false},
};
enum { METHODS = sizeof methods / sizeof *methods };

static vptq_status quantize(const method *m, vptq_device *dev, const problem *p,
                            vptq_arena *arena, vptq_additive *a, vptq_err *err)
{
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    return m->quantize(dev, &input, arena, a, err);
}

/* The weights as readers decode them; the caller frees them. */
static float *decode(const method *m, vencoder_run *run, const problem *p)
{
    vptq_additive a;
    vptq_err err = {0};
    float *what = vtest_alloc((size_t)p->out * p->in, sizeof *what);
    assert_ok(quantize(m, &run->dev, p, &run->arena, &a, &err), &err);
    assert_ok(vptq_additive_decode(&run->ctx, &a, what, &err), &err);
    return what;
}

static double loss_of(const method *m, vencoder_run *run, const problem *p)
{
    float *what = decode(m, run, p);
    const double loss = problem_loss(p, what);
    free(what);
    return loss;
}

/* ---- bad input ---- */

static void expect_failure(const method *m, vptq_device *dev, const problem *p,
                           vptq_status want, const char *part)
{
    vptq_arena arena;
    vptq_additive a;
    vptq_err err = {0};
    vptq_arena_init(&arena, dev->ctx->mem);
    assert_fails(quantize(m, dev, p, &arena, &a, &err), want, &err, part);
    vptq_arena_release(&arena);
}

static void test_bad_input(void **state)
{
    (void)state;
    vencoder_run run;
    vencoder_open(&run, "cpu", 1);
    for (const method *m = methods; m < methods + METHODS; m++) {
        problem p = problem_make(8, 72, 2);
        p.in = m->odd;
        if (m->odd)
            expect_failure(m, &run.dev, &p, VPTQ_E_SHAPE, m->shape);
        p.in = 72;
        p.out = 0;
        expect_failure(m, &run.dev, &p, VPTQ_E_SHAPE, "0 x 72");
        p.out = 8;
        const float good = p.lower[5];
        p.lower[5] = (float)NAN;
        expect_failure(m, &run.dev, &p, VPTQ_E_NUMERIC, m->nan);
        p.lower[5] = INFINITY;
        expect_failure(m, &run.dev, &p, VPTQ_E_NUMERIC, "finite");
        p.lower[5] = good;
        memset(p.lower, 0, sizeof *p.lower * 72 * 73 / 2);
        expect_failure(m, &run.dev, &p, VPTQ_E_NUMERIC, "mean diagonal of 0");
        problem_free(&p);
    }
    vencoder_close(&run);
}

/* ---- dead columns ---- */

/* Columns without inputs, and a matrix of zeros. */
static void test_dead_columns(void **state)
{
    (void)state;
    for (const method *m = methods; m < methods + METHODS; m++) {
        vencoder_run run;
        problem p = problem_make(16, 64, 6);
        for (size_t c = 0; c < p.in; c += 3)
            for (size_t i = 0; i < p.in; i++)
                p.lower[c > i ? c * (c + 1) / 2 + i : i * (i + 1) / 2 + c] = 0;
        problem_unpack(&p);
        vencoder_open(&run, "cpu", 1);
        const double loss = loss_of(m, &run, &p);
        if (!(loss < m->dead_loss))
            fail_msg("%s: loss %g", m->name, loss);
        memset(p.w, 0, (size_t)p.out * p.in * sizeof *p.w);
        float *what = decode(m, &run, &p);
        for (size_t i = 0; i < (size_t)p.out * p.in; i++)
            assert_true(fabsf(what[i]) <= 0);
        free(what);
        vencoder_close(&run);
        problem_free(&p);
    }
}

/* ---- memory ---- */

typedef struct small {
    const method *m;
    problem p;
} small;

static vptq_status quantize_small(void *arg, vptq_device *dev, vptq_err *err)
{
    const small *x = arg;
    vptq_arena arena;
    vptq_additive a;
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = quantize(x->m, dev, &x->p, &arena, &a, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_memory(void **state)
{
    (void)state;
    for (const method *m = methods; m < methods + METHODS; m++) {
        small x = {m, problem_make(9, m->in, 2)};
        assert_true(devices_oom_walk("cpu", 2, quantize_small, &x) > m->allocations);
        problem_free(&x.p);
    }
}

/* ---- the same everywhere ---- */

static uint64_t digest_on(const method *m, const problem *p, int simd, int threads)
{
    devices_one d;
    vptq_arena arena;
    vptq_additive a;
    vptq_err err = {0};
    devices_open(&d, "cpu", simd, threads);
    vptq_arena_init(&arena, NULL);
    assert_ok(quantize(m, &d.dev, p, &arena, &a, &err), &err);
    const uint64_t h = vadditive_digest(&a);
    vptq_arena_release(&arena);
    devices_close(&d);
    return h;
}

static int widest_simd(void)
{
    int simd = VPTQ_SIMD_NEON;
    while (simd > VPTQ_SIMD_NONE && !devices_have_simd(simd))
        simd--;
    return simd;
}

/* For any number of threads, and of some methods at every SIMD level. */
static void test_same_bytes(void **state)
{
    (void)state;
    problem p = problem_make(150, 72, 9);
    const int widest = widest_simd();
    for (const method *m = methods; m < methods + METHODS; m++) {
        const uint64_t want = digest_on(m, &p, widest, 1);
        for (int threads = 2; threads <= 5; threads++)
            assert_true(digest_on(m, &p, widest, threads) == want);
        for (int simd = VPTQ_SIMD_NONE; simd < widest && m->any_simd; simd++)
            for (int threads = 1; threads <= 5 && devices_have_simd(simd); threads += 2)
                assert_true(digest_on(m, &p, simd, threads) == want);
    }
    problem_free(&p);
}

/* Other sums, and so a few other codes. */
static void test_devices(void **state)
{
    (void)state;
    const char *const names[] = {"cpu", "ref", devices_gpu()};
    problem p = problem_make(24, 136, 3);
    for (const method *m = methods; m < methods + METHODS; m++) {
        double loss[3];
        for (size_t i = 0; i < 3; i++) {
            vencoder_run run;
            vencoder_open(&run, names[i], 1);
            loss[i] = loss_of(m, &run, &p);
            vencoder_close(&run);
            if (!(fabs(loss[i] / loss[0] - 1) < m->device))
                fail_msg("%s on %s: loss %g, on cpu %g", m->name, names[i], loss[i], loss[0]);
        }
    }
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_bad_input), cmocka_unit_test(test_dead_columns),
           cmocka_unit_test(test_memory), cmocka_unit_test(test_same_bytes),
           cmocka_unit_test(test_devices))
