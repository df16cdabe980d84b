/* Tests the other linear algebra ops: ref against results computed by hand, other backends
 * against ref. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/devices.h"

/* Double sums differ only in their order: far below 2^-48 of float, far above 2^-106 k. */
static const double double_limit = 1e-24;

/* ---- syrk_add ---- */

typedef struct syrk_case {
    size_t t, n, ldx;
    const float *x, *w;
} syrk_case;

/* out: H [n, n], then sum [n] */
static void run_syrk(const vptq_device *dev, const void *arg, void *out)
{
    const syrk_case *c = arg;
    vptq_err err;
    double *h = out, *sum = h + c->n * c->n;
    for (size_t i = 0; i < c->n * (c->n + 1); i++)
        h[i] = 0.25;
    assert_ok(dev->ops->syrk_add(dev->state,
                                 &(vptq_syrk_args){.tokens = c->t,
                                                   .n = c->n,
                                                   .x = c->x,
                                                   .ldx = c->ldx,
                                                   .w = c->w,
                                                   .h = h,
                                                   .sum = sum},
                                 &err),
              &err);
    for (size_t i = 0; i < c->n; i++)
        for (size_t j = i + 1; j < c->n; j++)
            assert_true(h[i * c->n + j] == 0.25);
}

static void check_syrk(size_t t, size_t n, bool weighted)
{
    float *x = vtest_normals(t * (n + 5), 11), *w = vtest_normals(t, 12);
    for (size_t i = 0; i < t; i++)
        w[i] = fabsf(w[i]);
    const syrk_case c = {t, n, n > 1 ? n + 5 : 1, x, weighted ? w : NULL};
    /* At most 256 products are summed in float before they are added in double. */
    const devices_op op = {run_syrk, &c, n * (n + 1), sizeof(double),
                           devices_float_sum_limit(256)};
    (t * n * n <= 1 << 23 ? devices_check_emu : devices_check)(&op, NULL);
    free(x);
    free(w);
}

static void test_syrk(void **state)
{
    (void)state;
    static const size_t n[] = {1, 3, 17, 255, 256, 257, 300};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        check_syrk(1, n[i], false);
        check_syrk(33, n[i], i % 2 != 0);
    }
    check_syrk(33, 1, true);
    check_syrk(255, 40, true);
    check_syrk(257, 40, false);
    check_syrk(600, 530, false);
    check_syrk(600, 64, true);
    check_syrk(4099, 9, true); /* more tokens than are split at a time */
}

/* Devices whose blocks have 99 KB of shared memory. */
static void test_syrk_in_little_shared_memory(void **state)
{
    (void)state;
    const cuda_emu_machine small = {true, 13000, 13000, 8, 6, 99 << 10};
    devices_skip_if_only();
    cuda_emu_be(&small);
    check_syrk(40, 70, false);
    cuda_emu_be(NULL);
}

static void test_syrk_by_hand(void **state)
{
    (void)state;
    const float x[] = {1, 2, 3, -1}, w[] = {1, 0.5f};
    double h[] = {1, 7, 2, 3}, sum[] = {0, 1};
    devices_one d;
    vptq_err err;
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    assert_ok(d.dev.ops->syrk_add(
                  d.dev.state,
                  &(vptq_syrk_args){
                      .tokens = 2, .n = 2, .x = x, .ldx = 2, .w = w, .h = h, .sum = sum},
                  &err),
              &err);
    const double want_h[] = {1 + 1 + 4.5, 7, 2 + 2 - 1.5, 3 + 4 + 0.5}, want[] = {2.5, 2.5};
    assert_close_f64(h, want_h, 4, 0, 0);
    assert_close_f64(sum, want, 2, 0, 0);
    devices_close(&d);
}

/* ---- potrf, trtri ---- */

/* Makes a well conditioned symmetric matrix; elements above the diagonal must not be read. */
static double *positive(size_t n, size_t lda, uint64_t seed)
{
    float *x = vtest_normals(n * n, seed);
    double *a = malloc(n * lda * sizeof *a);
    assert_non_null(a);
    for (size_t i = 0; i < n * lda; i++)
        a[i] = NAN;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            a[i * lda + j] = (double)x[i * n + j] + (i == j ? 4 * sqrt((double)n) : 0);
    free(x);
    return a;
}

typedef struct factor_case {
    size_t n, lda;
    const double *a;
    bool invert;
} factor_case;

/* out: only the lower triangle, row by row */
static void run_factor(const vptq_device *dev, const void *arg, void *out)
{
    const factor_case *c = arg;
    vptq_err err;
    const size_t bytes = c->n * c->lda * sizeof *c->a;
    double *a = malloc(bytes), *to = out;
    assert_non_null(a);
    memcpy(a, c->a, bytes);
    if (c->invert)
        assert_ok(dev->ops->trtri(dev->state, c->n, a, c->lda, &err), &err);
    else
        assert_ok(dev->ops->potrf(dev->state, c->n, a, c->lda, NULL, &err), &err);
    for (size_t i = 0; i < c->n; i++) {
        memcpy(to, a + i * c->lda, (i + 1) * sizeof *a);
        to += i + 1;
        /* the rest of the row is unchanged */
        assert_memory_equal(a + i * c->lda + i + 1, c->a + i * c->lda + i + 1,
                            (c->lda - i - 1) * sizeof *a);
    }
    free(a);
}

static void check_factor(size_t n, size_t lda)
{
    double *a = positive(n, lda, n);
    factor_case c = {n, lda, a, false};
    devices_op op = {run_factor, &c, n * (n + 1) / 2, sizeof(double), double_limit};
    devices_check_emu(&op, NULL);
    c.invert = true; /* the lower triangle itself is a well conditioned factor */
    devices_check_emu(&op, NULL);
    free(a);
}

static void test_factor(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 17, 119, 120, 121, 240, 385, 530};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_factor(sizes[s], sizes[s] + s % 3);
}

/* ---- the rule of docs/numerics.md, bit for bit ---- */

/* Runs on every level of cpu, with several numbers of threads. */
static void check_rule(const devices_op *op, const void *want)
{
    void *got = malloc(op->count * op->size);
    assert_non_null(got);
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++)
        for (int threads = 1; threads <= 3 && vptq_cpu_has((vptq_simd)simd); threads++) {
            devices_one d;
            devices_open(&d, "cpu", (vptq_simd)simd, threads);
            op->run(&d.dev, op->arg, got);
            devices_close(&d);
            if (memcmp(got, want, op->count * op->size) != 0)
                fail_msg("%s, %d threads: other bits than the rule",
                         vptq_simd_name((vptq_simd)simd), threads);
        }
    free(got);
}

static void potrf_by_rule(size_t n, double *a, size_t lda)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double s = a[i * lda + j];
            for (size_t l = 0; l < j; l++)
                s = fma(-a[i * lda + l], a[j * lda + l], s);
            a[i * lda + j] = i == j ? sqrt(s) : s * (1 / a[j * lda + j]);
        }
}

static void trtri_by_rule(size_t n, const double *a, size_t lda, double *x)
{
    for (size_t j = 0; j < n; j++) {
        x[j * lda + j] = 1 / a[j * lda + j];
        for (size_t i = j + 1; i < n; i++) {
            double s = 0;
            for (size_t l = j; l < i; l++)
                s = fma(-a[i * lda + l], x[l * lda + j], s);
            x[i * lda + j] = s * (1 / a[i * lda + i]);
        }
    }
}

static void check_factor_rule(size_t n, bool invert)
{
    const size_t lda = n + n % 3;
    double *a = positive(n, lda, n), *result = positive(n, lda, n);
    double *want = malloc(n * (n + 1) / 2 * sizeof *want), *to = want;
    const factor_case c = {n, lda, a, invert};
    const devices_op op = {run_factor, &c, n * (n + 1) / 2, sizeof(double), 0};
    assert_non_null(want);
    if (invert)
        trtri_by_rule(n, a, lda, result);
    else
        potrf_by_rule(n, result, lda);
    for (size_t i = 0; i < n; i++, to += i)
        memcpy(to, result + i * lda, (i + 1) * sizeof *to);
    check_rule(&op, want);
    free(a);
    free(result);
    free(want);
}

static void test_factor_rule(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 3, 11, 12, 13, 24, 25, 119, 120, 121, 217, 241, 500};
    devices_skip_if_only();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        check_factor_rule(sizes[s], false);
        check_factor_rule(sizes[s], true);
    }
}

static void test_factor_errors(void **state);

/* The kernels that replace cuSOLVER, with the same errors: forced, so that a GPU runs them. */
static void test_own_factor(void **state)
{
    static const size_t sizes[] = {1, 17, 32, 33, 130};
    setenv("VPTQ_CUDA_FACTOR", "own", 1);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_factor(sizes[s], sizes[s] + s % 3);
    test_factor_errors(state);
    unsetenv("VPTQ_CUDA_FACTOR");
}

/* They run by themselves where the library is missing. */
static void test_factor_without_a_library(void **state)
{
    devices_one d;
    vptq_err err;
    double a[] = {4};
    (void)state;
    devices_skip_if_only();
    cuda_emu_libraries(false);
    check_factor(33, 34);
    cuda_emu_libraries(true);
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    setenv("VPTQ_CUDA_FACTOR", "theirs", 1);
    assert_fails(d.dev.ops->potrf(d.dev.state, 1, a, 1, NULL, &err), VPTQ_E_ARG, &err,
                 "VPTQ_CUDA_FACTOR is 'theirs', expected 'own'");
    assert_fails(d.dev.ops->trtri(d.dev.state, 1, a, 1, &err), VPTQ_E_ARG, &err, "'theirs'");
    unsetenv("VPTQ_CUDA_FACTOR");
    devices_close(&d);
}

static void test_factor_by_hand(void **state)
{
    (void)state;
    /* [4 2 -2; 2 10 5; -2 5 9] = L L^T with L = [2; 1 3; -1 2 2] */
    const double whole[] = {4, 0, 0, 2, 10, 0, -2, 5, 9};
    const double factor[] = {2, 0, 0, 1, 3, 0, -1, 2, 2};
    const double inverse[] = {1. / 2, 0, 0, -1. / 6, 1. / 3, 0, 5. / 12, -1. / 3, 1. / 2};
    static const char *const names[] = {"ref", "cpu", "emu"};
    for (size_t i = 0; i < 3; i++) {
        devices_one d;
        vptq_err err;
        double a[9];
        memcpy(a, whole, sizeof a);
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        assert_ok(d.dev.ops->potrf(d.dev.state, 3, a, 3, NULL, &err), &err);
        assert_close_f64(a, factor, 9, 1e-15, 0);
        assert_ok(d.dev.ops->trtri(d.dev.state, 3, a, 3, &err), &err);
        assert_close_f64(a, inverse, 9, 1e-15, 0);
        devices_close(&d);
    }
}

/* The error names the failing pivot, in any block and for any bad value. */
static void test_factor_errors(void **state)
{
    (void)state;
    enum { N = 300 };
    static const size_t at[] = {0, 1, 119, 120, 257, 299};
    static const double bad[] = {0, -1, -INFINITY, NAN, INFINITY};
    static const char *const names[] = {"ref", "cpu", "emu"};
    double *a = malloc(N * N * sizeof *a);
    assert_non_null(a);
    for (size_t i = 0; i < 3; i++) {
        devices_one d;
        vptq_err err;
        devices_open(&d, names[i], vptq_cpu_simd(), 2);
        for (size_t c = 0; c < sizeof at / sizeof *at * (sizeof bad / sizeof *bad); c++) {
            const size_t want = at[c % (sizeof at / sizeof *at)];
            size_t pivot = N;
            memset(a, 0, N * N * sizeof *a);
            for (size_t j = 0; j < N; j++)
                a[j * N + j] = 2;
            a[want * N + want] = bad[c / (sizeof at / sizeof *at)];
            assert_fails(d.dev.ops->potrf(d.dev.state, N, a, N, &pivot, &err), VPTQ_E_NUMERIC,
                         &err, "not positive definite");
            assert_int_equal(pivot, want);
            if (want > 1) { /* the first of two */
                a[N + 1] = NAN;
                assert_fails(d.dev.ops->potrf(d.dev.state, N, a, N, &pivot, &err),
                             VPTQ_E_NUMERIC, &err, "pivot 1 of 300");
                assert_int_equal(pivot, 1);
            }
        }
        memset(a, 0, N * N * sizeof *a);
        assert_fails(d.dev.ops->trtri(d.dev.state, N, a, N, &err), VPTQ_E_NUMERIC, &err,
                     "diagonal 0 of 300 is 0");
        devices_close(&d);
    }
    free(a);
}

/* ---- quad_trace ---- */

typedef struct quad_case {
    size_t m, n;
    const float *e;
    const double *h;
} quad_case;

static void run_quad(const vptq_device *dev, const void *arg, void *out)
{
    const quad_case *c = arg;
    vptq_err err;
    assert_ok(dev->ops->quad_trace(dev->state,
                                   &(vptq_quad_trace_args){.m = c->m,
                                                           .n = c->n,
                                                           .e = c->e,
                                                           .lde = c->n + 1,
                                                           .h = c->h,
                                                           .ldh = c->n + 2,
                                                           .trace = out},
                                   &err),
              &err);
}

static void test_quad_trace(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1},     {3, 17},    {127, 255}, {128, 256},
                                       {129, 257}, {300, 300}, {40, 530},  {2050, 20}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t m = shapes[s][0], n = shapes[s][1];
        float *e = vtest_normals(m * (n + 1), 31);
        double *h = positive(n, n + 2, 32);
        const quad_case c = {m, n, e, h};
        const devices_op op = {run_quad, &c, 1, sizeof(double), double_limit};
        double got = 0, want = 0;
        (m * n * n <= 1 << 23 ? devices_check_emu : devices_check)(&op, &got);
        for (size_t r = 0; r < m; r++)
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n; j++)
                    want += (double)e[r * (n + 1) + i] * (double)e[r * (n + 1) + j] *
                            h[(i > j ? i : j) * (n + 2) + (i > j ? j : i)];
        assert_close_f64(&got, &want, 1, 0, 1e-12);
        free(e);
        free(h);
    }
}

/* One row of a tile of H [height, width], which begins at h: every element of e H is a chain,
 * and so is its product with e. */
static double row_by_rule(const quad_case *c, const float *e, size_t i0, size_t height,
                          size_t j0, size_t width)
{
    double total = 0;
    for (size_t j = j0; j < j0 + width; j++) {
        double s = 0;
        for (size_t i = i0; i < i0 + height; i++)
            s = fma((double)e[i], c->h[(i > j ? i : j) * (c->n + 2) + (i > j ? j : i)], s);
        total = fma(s, (double)e[j], total);
    }
    return total;
}

static double trace_by_rule(const quad_case *c)
{
    const size_t tiles = (c->n + 239) / 240;
    const size_t size = ((c->n + tiles - 1) / tiles + 23) / 24 * 24;
    double trace = 0;
    for (size_t i = 0; i < c->n; i += size)
        for (size_t j = 0; j <= i; j += size) {
            const size_t height = c->n - i < size ? c->n - i : size;
            const size_t width = c->n - j < size ? c->n - j : size;
            double total = 0;
            for (size_t r = 0; r < c->m; r++)
                total += row_by_rule(c, c->e + r * (c->n + 1), i, height, j, width);
            trace += i == j ? total : 2 * total;
        }
    return trace;
}

static void test_quad_trace_rule(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1},    {3, 17},    {23, 239}, {24, 240},
                                       {25, 241}, {100, 300}, {7, 730}};
    devices_skip_if_only();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t m = shapes[s][0], n = shapes[s][1];
        float *e = vtest_normals(m * (n + 1), 33);
        double *h = positive(n, n + 2, 34);
        const quad_case c = {m, n, e, h};
        const devices_op op = {run_quad, &c, 1, sizeof(double), 0};
        const double want = trace_by_rule(&c);
        check_rule(&op, &want);
        free(e);
        free(h);
    }
}

VTEST_MAIN(cmocka_unit_test(test_syrk_in_little_shared_memory), cmocka_unit_test(test_syrk),
           cmocka_unit_test(test_syrk_by_hand), cmocka_unit_test(test_factor),
           cmocka_unit_test(test_factor_by_hand), cmocka_unit_test(test_factor_errors),
           cmocka_unit_test(test_own_factor), cmocka_unit_test(test_factor_without_a_library),
           cmocka_unit_test(test_factor_rule), cmocka_unit_test(test_quad_trace),
           cmocka_unit_test(test_quad_trace_rule))
