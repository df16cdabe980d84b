/* Tests that the op plus_plus chooses the points that its rule names, the same on every device.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "tests/support/devices.h"

enum { TRIALS = VPTQ_PLUS_PLUS_TRIALS };

static void run_plus_plus(const vptq_device *dev, const void *arg, void *out)
{
    vptq_plus_plus_args a = *(const vptq_plus_plus_args *)arg;
    vptq_err err;
    a.centroids = out;
    assert_ok(dev->ops->plus_plus(dev->state, &a, &err), &err);
}

/* ---- worked out by hand ---- */

/* Draws 10 (the rest 2 becomes negative with the third weight), then of 11, 1 and 0 the first
 * of the two that leave a sum of 2, then of 0 and 11, equally good, the first drawn, and then
 * the only point without a centroid. */
static void check_by_hand(void *arg, const vptq_device *dev, bool is_ref)
{
    static const float x[] = {0, 1, 10, 11}, want[] = {10, 1, 11, 0};
    const double u[4][TRIALS] = {{0.5}, {0.999, 0.99}, {0.5}, {0.3, 0.9}};
    float got[4];
    (void)arg;
    (void)is_ref;
    const vptq_plus_plus_args a = {.m = 4, .v = 1, .k = 4, .x = x, .u = u[0]};
    run_plus_plus(dev, &a, got);
    assert_same_f32(got, want, 4);
}

static void test_by_hand(void **state)
{
    (void)state;
    devices_each_emu(check_by_hand, NULL);
}

/* Chunks are passed whose sums do not exceed the rest.  Nine sites of 512 points, the first of
 * them the first centroid; all other points have the distance 1 to it, so that the rest often
 * becomes 0 exactly and only the order of subtractions decides. */
static void check_sites(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { SITES = 9, SIZE = 512, M = SITES * SIZE };
    static float x[M * SITES];
    float got[2 * SITES];
    double u[2][TRIALS] = {{0}};
    (void)arg;
    (void)is_ref;
    for (size_t i = 0; i < M; i++)
        for (size_t e = 1; e < SITES; e++)
            x[i * SITES + e] = i / SIZE == e;
    const vptq_plus_plus_args a = {.m = M, .v = SITES, .k = 2, .x = x, .u = u[0]};
    for (size_t site = 1; site < SITES; site++) {
        for (size_t t = 0; t < TRIALS; t++)
            u[1][t] = (double)(site - 1) / (SITES - 1);
        run_plus_plus(dev, &a, got);
        assert_same_f32(got, x, SITES);
        assert_same_f32(got + SITES, x + site * SIZE * SITES, SITES);
    }
}

static void test_sites(void **state)
{
    (void)state;
    devices_each_emu(check_sites, NULL);
}

/* The rest is 1 + 75 * 2^-52 and does not change when 599 products of 2^-54 are subtracted one
 * by one, so that the first product of 1 leaves it positive. Less their sum it would be smaller
 * than 1. */
static void check_rounding(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { SMALL = 599, M = SMALL + 3 };
    static const double u[2][TRIALS] = {{0}, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}};
    float x[M] = {0}, got[2];
    (void)arg;
    (void)is_ref;
    for (size_t i = 1; i <= SMALL; i++)
        x[i] = 0x1p-27F;
    x[SMALL + 1] = 1;
    x[SMALL + 2] = -1;
    const vptq_plus_plus_args a = {.m = M, .v = 1, .k = 2, .x = x, .u = u[0]};
    run_plus_plus(dev, &a, got);
    assert_same_f32(got, x, 1);
    assert_same_f32(got + 1, x + SMALL + 2, 1);
}

static void test_rounding(void **state)
{
    (void)state;
    devices_each_emu(check_rounding, NULL);
}

/* ---- the same points on every device ---- */

enum kind { NORMAL, UNWEIGHTED, SOME_WEIGHTS, NO_WEIGHT, EQUAL, FEW, HUGE_RANGE, KINDS };

static void make_points(enum kind kind, size_t m, uint32_t v, float *x, float *w)
{
    vtest_normal(x, m * v, 1);
    vtest_normal(w, m, 2);
    for (size_t i = 0; i < m; i++) {
        w[i] = w[i] * w[i];
        if (kind == NO_WEIGHT || (kind == SOME_WEIGHTS && i % 5))
            w[i] = i % 2 ? 0.0F : -0.0F;
        for (size_t e = 0; e < v; e++) {
            float *at = x + i * v + e;
            if (kind == EQUAL || kind == FEW)
                *at = (float)(kind == FEW ? i % 7 * (e + 1) : e);
            else if (kind == HUGE_RANGE)
                *at *= i % 3 ? 1e19F : 3e37F; /* squares overflow */
        }
    }
}

static void check_kind(enum kind kind, size_t m, uint32_t v, uint32_t k)
{
    const vptq_rng rng = vptq_rng_make(3, (uint32_t)m, v, VPTQ_RNG_TEST);
    float *x = vtest_alloc(m * v, sizeof *x), *w = vtest_alloc(m, sizeof *w);
    double *u = vtest_alloc((size_t)k * TRIALS, sizeof *u);
    make_points(kind, m, v, x, w);
    for (size_t i = 0; i < (size_t)k * TRIALS; i++) /* now and then the ends of the range */
        u[i] = i % 13 == 5 ? 0 : i % 13 == 11 ? 1 - 0x1p-53 : vptq_rng_uniform(&rng, i);
    const vptq_plus_plus_args a = {
        .m = m, .v = v, .k = k, .x = x, .w = kind == UNWEIGHTED ? NULL : w, .u = u};
    devices_check_emu(
        &(devices_op){
            .run = run_plus_plus, .arg = &a, .count = (size_t)k * v * sizeof(float), .size = 1},
        NULL);
    free(x);
    free(w);
    free(u);
}

static void test_devices_agree(void **state)
{
    static const struct {
        size_t m;
        uint32_t v, k;
    } shapes[] = {{1, 1, 1},    {17, 1, 17},   {45, 7, 45},  {1000, 4, 9}, {1024, 64, 3},
                  {1025, 6, 5}, {1039, 12, 4}, {4099, 8, 6}, {2064, 2, 7}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int kind = 0; kind < KINDS; kind++)
            if (shapes[s].m < 1000 || kind == NORMAL || (size_t)kind == 1 + s % (KINDS - 1))
                check_kind((enum kind)kind, shapes[s].m, shapes[s].v, shapes[s].k);
}

/* More chunks than the lanes of a warp, which take their sums 32 at a time, and, by their
 * weights, draws in all of them. */
static void test_many_chunks(void **state)
{
    (void)state;
    check_kind(NORMAL, 40 * VPTQ_PLUS_PLUS_CHUNK + 5, 2, 4);
}

VTEST_MAIN(cmocka_unit_test(test_by_hand), cmocka_unit_test(test_sites),
           cmocka_unit_test(test_rounding), cmocka_unit_test(test_devices_agree),
           cmocka_unit_test(test_many_chunks))
