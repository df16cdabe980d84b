/* Tests sums, pooling, statistics and the factor of hessian/ against double precision written
 * out here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vcount.h"
#include "tests/support/vtest.h"

#include "hessian/hessian.h"

static vptq_ctx make_ctx(vptq_mem *mem)
{
    vptq_mem_init(mem, 0);
    return (vptq_ctx){.mem = mem, .threads = 2};
}

/* Packed lower triangle and mean of t tokens x [t][n], in double. */
static void naive(size_t t, size_t n, const float *x, double *lower, double *mean)
{
    for (size_t i = 0; i < n; i++) {
        mean[i] = 0;
        for (size_t r = 0; r < t; r++)
            mean[i] += (double)x[r * n + i] / (double)t;
        for (size_t j = 0; j <= i; j++) {
            double s = 0;
            for (size_t r = 0; r < t; r++)
                s += (double)x[r * n + i] * (double)x[r * n + j];
            *lower++ = s / (double)t;
        }
    }
}

enum { N = 37, T = 701, PACKED = N * (N + 1) / 2 };

/* Mean |x|, minimum and maximum: arrays of `range` [3, n]. */
static void naive_range(size_t t, size_t n, const float *x, double *range)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0, lo = (double)x[i], hi = lo;
        for (size_t r = 0; r < t; r++) {
            sum += fabs((double)x[r * n + i]);
            lo = fmin(lo, (double)x[r * n + i]);
            hi = fmax(hi, (double)x[r * n + i]);
        }
        range[i] = sum / (double)t;
        range[n + i] = lo;
        range[2 * n + i] = hi;
    }
}

static void test_sum_is_the_batch(void **state)
{
    (void)state;
    static const char *const backends[] = {"ref", "cpu"};
    float *x = malloc(sizeof(float) * T * N), lower[PACKED], mean[N];
    float range[3 * N];
    double want[PACKED], want_mean[N], want_range[3 * N];
    vptq_mem mem;
    vptq_ctx ctx = make_ctx(&mem);

    vtest_normal(x, T * N, 1);
    for (size_t i = 0; i < T * N; i++)
        x[i] += 3; /* a nonzero mean: H is not centred */
    naive(T, N, x, want, want_mean);
    naive_range(T, N, x, want_range);
    for (size_t b = 0; b < 2; b++) {
        vptq_err err = {0};
        vptq_device dev;
        vptq_hessian_sum s;
        assert_ok(vptq_device_open(&ctx, backends[b], &dev, &err), &err);
        assert_ok(vptq_hessian_sum_init(&dev, N, &s, &err), &err);
        assert_fails(vptq_hessian_sum_finish(&s, lower, mean, &err), VPTQ_E_ARG, &err,
                     "no tokens");
        assert_fails(vptq_hessian_sum_range(&s, range, range + N, range + 2 * N, &err),
                     VPTQ_E_ARG, &err, "no tokens");
        assert_ok(vptq_hessian_sum_add(&s, 300, x, &err), &err);
        assert_ok(vptq_hessian_sum_add(&s, T - 300, x + 300 * N, &err), &err);
        assert_int_equal(s.tokens, T);
        assert_ok(vptq_hessian_sum_share(&s, 1, &err), &err);
        assert_ok(vptq_hessian_sum_finish(&s, lower, mean, &err), &err);
        for (size_t i = 0; i < PACKED; i++)
            assert_true(fabs((double)lower[i] - want[i]) < 2e-6 * 10);
        for (size_t i = 0; i < N; i++)
            assert_true(fabs((double)mean[i] - want_mean[i]) < 1e-5);
        assert_ok(vptq_hessian_sum_range(&s, range, range + N, range + 2 * N, &err), &err);
        for (size_t i = 0; i < 3 * (size_t)N; i++) /* one order of sums: the same bits */
            assert_true(range[i] == (float)want_range[i]);
        vptq_hessian_sum_clear(&s); /* forgets the range, too */
        assert_ok(vptq_hessian_sum_add(&s, 1, x, &err), &err);
        assert_ok(vptq_hessian_sum_share(&s, 1, &err), &err);
        assert_ok(vptq_hessian_sum_range(&s, range, range + N, range + 2 * N, &err), &err);
        for (size_t i = 0; i < N; i++)
            assert_true(range[i] == fabsf(x[i]) && range[N + i] == x[i] &&
                        range[2 * N + i] == x[i]);
        vptq_hessian_sum_release(&s);
        vptq_device_close(&dev);
    }
    assert_int_equal(mem.used, 0);
    free(x);
}

/* A sum that comes down in several pieces is the one of a device in host memory. */
static void test_sum_in_pieces(void **state)
{
    (void)state;
    enum { WIDE = 2100 }; /* 2.2 million entries: a piece of 2^21 and the rest */
    const size_t packed = (size_t)WIDE * (WIDE + 1) / 2;
    float *x = vtest_normals(2 * WIDE, 4), *lower[2], mean[2][WIDE], range[2][3 * WIDE];
    vptq_mem mem;
    vptq_ctx ctx = make_ctx(&mem);

    for (int counted = 0; counted < 2; counted++) {
        vptq_err err = {0};
        vptq_device dev;
        vptq_hessian_sum s;
        assert_ok(vptq_device_open(&ctx, "ref", &dev, &err), &err);
        if (counted)
            vcount_start(&dev, SIZE_MAX);
        assert_ok(vptq_hessian_sum_init(&dev, WIDE, &s, &err), &err);
        assert_ok(vptq_hessian_sum_add(&s, 2, x, &err), &err);
        assert_ok(vptq_hessian_sum_share(&s, 1, &err), &err);
        lower[counted] = vtest_alloc(packed, sizeof **lower);
        assert_ok(vptq_hessian_sum_finish(&s, lower[counted], mean[counted], &err), &err);
        float *r = range[counted];
        assert_ok(vptq_hessian_sum_range(&s, r, r + WIDE, r + 2 * WIDE, &err), &err);
        vptq_hessian_sum_release(&s);
        vptq_device_close(&dev);
    }
    assert_memory_equal(lower[0], lower[1], packed * sizeof **lower);
    assert_memory_equal(mean[0], mean[1], sizeof *mean);
    assert_memory_equal(range[0], range[1], sizeof *range);
    for (int i = 0; i < 2; i++)
        free(lower[i]);
    free(x);
}

static void test_pool_is_the_union(void **state)
{
    (void)state;
    enum { A = 200 };
    float *x = malloc(sizeof(float) * T * N), lower[PACKED], mean[N], lowers[2][PACKED],
          means[2][N];
    float range[3 * N], ranges[2][3 * N];
    double all[PACKED], all_mean[N], part[PACKED], part_mean[N];
    double all_range[3 * N], part_range[3 * N];
    vptq_mem mem;
    vptq_err err = {0};
    uint64_t tokens;

    vptq_mem_init(&mem, 0);
    vtest_normal(x, T * N, 2);
    for (size_t i = 0; i < (size_t)A * N; i++)
        x[i] += 2; /* parts of different means, which pooled covariances would lose */
    naive(T, N, x, all, all_mean);
    vptq_hessian_file files[2] = {{.n = N, .tokens = A}, {.n = N, .tokens = T - A}};
    for (int g = 0; g < 2; g++) {
        naive(g ? T - A : A, N, x + (g ? A * N : 0), part, part_mean);
        for (size_t i = 0; i < PACKED; i++)
            lowers[g][i] = (float)part[i];
        for (size_t i = 0; i < N; i++)
            means[g][i] = (float)part_mean[i];
        files[g].lower = lowers[g];
        files[g].mean = means[g];
        naive_range(g ? T - A : A, N, x + (g ? A * N : 0), part_range);
        for (size_t i = 0; i < 3 * (size_t)N; i++)
            ranges[g][i] = (float)part_range[i];
    }
    naive_range(T, N, x, all_range);
    assert_ok(vptq_hessian_pool(&mem, files, 2, lower, mean, &tokens, &err), &err);
    assert_int_equal(tokens, T);
    for (size_t i = 0; i < PACKED; i++)
        assert_true(fabs((double)lower[i] - all[i]) < 1e-6);
    for (size_t i = 0; i < N; i++)
        assert_true(fabs((double)mean[i] - all_mean[i]) < 1e-6);
    for (int known = 0; known < 3; known++) { /* of the two files */
        for (int g = 0; g < 2; g++) {
            files[g].abs_mean = g < known ? ranges[g] : NULL;
            files[g].min = ranges[g] + N;
            files[g].max = ranges[g] + 2 * N;
        }
        assert_int_equal(vptq_hessian_pool_range(files, 2, range, range + N, range + 2 * N),
                         known == 2);
    }
    for (size_t i = 0; i < N; i++)
        assert_true(fabs((double)range[i] - all_range[i]) < 1e-6);
    for (size_t i = N; i < 3 * (size_t)N; i++)
        assert_true((double)range[i] == all_range[i]);
    files[1].n = N - 1;
    assert_fails(vptq_hessian_pool(&mem, files, 2, lower, mean, &tokens, &err), VPTQ_E_SHAPE,
                 &err, "37 and 36 columns");
    files[1].n = N;
    files[1].tokens = INT64_MAX;
    assert_fails(vptq_hessian_pool(&mem, files, 2, lower, mean, &tokens, &err), VPTQ_E_FORMAT,
                 &err, "the hessians to pool claim more than 2^63 tokens");
    assert_int_equal(mem.used, 0);
    free(x);
}

/* Fills a with a well-conditioned symmetric positive definite matrix of mixed scales. */
static void make_spd(size_t n, double *a, uint64_t seed)
{
    float *g = malloc(sizeof(float) * n * 2 * n);
    vtest_normal(g, n * 2 * n, seed);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double s = 0;
            for (size_t k = 0; k < 2 * n; k++)
                s += (double)g[i * 2 * n + k] * (double)g[j * 2 * n + k];
            a[i * n + j] = s * (1 + (double)(i % 5)) * (1 + (double)(j % 5));
        }
    free(g);
}

/* Factors the lower triangle of a [n, n], rounded to float. */
static vptq_status factor(vptq_device *dev, size_t n, double *a, float *u, double *added,
                          vptq_err *err)
{
    float *lower = malloc(vptq_triangle(n) * sizeof *lower), *at = lower;
    assert_non_null(lower);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            a[i * n + j] = a[j * n + i] = (double)(*at++ = (float)a[i * n + j]);
    const vptq_metric_args metric = {.n = n, .lower = lower, .divisor = 1};
    const vptq_status st = vptq_hessian_factor(dev, &metric, 0.01, u, added, err);
    free(lower);
    return st;
}

static void test_factor_is_upper_and_inverts(void **state)
{
    (void)state;
    enum { M = 150 }; /* more than one block of the factorization */
    double *a = malloc(sizeof *a * M * M);
    float *u = malloc(sizeof *u * M * M);
    vptq_mem mem;
    vptq_ctx ctx = make_ctx(&mem);
    vptq_err err = {0};
    vptq_device dev;
    double added = -1;

    make_spd(M, a, 3);
    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    assert_ok(factor(&dev, M, a, u, &added, &err), &err);
    assert_true(added == 0);
    double worst = 0;
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < M; j++) {
            if (j < i)
                assert_true(u[i * M + j] == 0.0F);
            double s = 0; /* (U A)[i] . U[j] = (U A U^T)[i][j] = identity */
            for (size_t k = 0; k < M; k++) {
                double ua = 0;
                for (size_t l = i; l < M; l++)
                    ua += (double)u[i * M + l] * a[l * M + k];
                s += ua * (double)u[j * M + k];
            }
            worst = fmax(worst, fabs(s - (i == j)));
            if (i > 20 && i < M - 20)
                break; /* the check is cubic: one column of the middle rows is enough */
        }
    assert_true(worst < 1e-4);
    vptq_device_close(&dev);
    assert_int_equal(mem.used, 0);
    free(a);
    free(u);
}

static void test_factor_raises_damping(void **state)
{
    (void)state;
    enum { M = 20 };
    double a[M * M];
    float u[M * M];
    vptq_mem mem;
    vptq_ctx ctx = make_ctx(&mem);
    vptq_err err = {0};
    vptq_device dev;
    double added = -1;

    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    /* Rank one minus 0.05 I: not positive definite until damped. */
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < M; j++)
            a[i * M + j] = i == j ? 1 - 0.05 : 1;
    assert_ok(factor(&dev, M, a, u, &added, &err), &err);
    assert_true(fabs(added - 0.1) < 1e-12); /* damping 0.01 is not enough against -0.05 */
    /* Indefinite, and no allowed damping repairs it. */
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < M; j++)
            a[i * M + j] = i == j ? 1 : 1e9;
    assert_fails(factor(&dev, M, a, u, &added, &err), VPTQ_E_NUMERIC, &err,
                 "not positive definite");
    a[5 * M + 3] = (double)NAN;
    assert_fails(factor(&dev, M, a, u, &added, &err), VPTQ_E_NUMERIC, &err, "(5, 3)");
    memset(a, 0, sizeof a);
    assert_fails(factor(&dev, M, a, u, &added, &err), VPTQ_E_NUMERIC, &err,
                 "mean diagonal of 0");
    vptq_device_close(&dev);
    assert_int_equal(mem.used, 0);
}

static void test_describe(void **state)
{
    (void)state;
    enum { M = 12 };
    float lower[M * (M + 1) / 2] = {0}, mean[M] = {0};
    vptq_mem mem;
    vptq_ctx ctx = make_ctx(&mem);
    vptq_err err = {0};
    vptq_device dev;
    vptq_hessian_stats s;
    vptq_hessian_file h = {.n = M, .tokens = 1200, .lower = lower, .mean = mean};

    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    for (size_t i = 0; i < M; i++)
        lower[i * (i + 1) / 2 + i] = i == 3 ? 100.0F : 1.0F;
    mean[5] = 1; /* second moment 1 and mean 1: constant */
    assert_ok(vptq_hessian_describe(&dev, &h, &s, &err), &err);
    assert_true(fabs(s.trace - 111) < 1e-9 && s.max_diag == 100 && s.constant == 1 && !s.dead);
    assert_true(fabs(s.condition - 100) < 0.5);
    assert_true(fabs(s.samples_per_dim - 100) < 1e-12);
    assert_true(fabs(s.mean_share - 1.0 / 111) < 1e-12);
    assert_string_equal(s.verdict, "good");
    assert_true(isnan(s.abs_max));
    float abs_mean[M] = {0}, min[M] = {0}, max[M] = {0};
    h.abs_mean = abs_mean;
    h.min = min;
    h.max = max;
    min[2] = -3;
    max[4] = 2;
    assert_ok(vptq_hessian_describe(&dev, &h, &s, &err), &err);
    assert_true(s.abs_max == 3);
    float *const each[] = {abs_mean, min, max};
    for (int i = 0; i < 3; i++) {
        each[i][7] = i % 2 ? NAN : INFINITY;
        assert_ok(vptq_hessian_describe(&dev, &h, &s, &err), &err);
        assert_true(s.nan == 1 && isnan(s.abs_max));
        assert_string_equal(s.verdict, "broken");
        each[i][7] = 0;
    }
    h.tokens = 60;
    assert_ok(vptq_hessian_describe(&dev, &h, &s, &err), &err);
    assert_string_equal(s.verdict, "few samples");
    lower[0] = 0;
    assert_ok(vptq_hessian_describe(&dev, &h, &s, &err), &err);
    assert_int_equal(s.dead, 1);
    assert_string_equal(s.verdict, "dead columns");
    h.tokens = 11;
    assert_ok(vptq_hessian_describe(&dev, &h, &s, &err), &err);
    assert_string_equal(s.verdict, "rank deficient");
    lower[4] = NAN;
    assert_ok(vptq_hessian_describe(&dev, &h, &s, &err), &err);
    assert_int_equal(s.nan, 1);
    assert_string_equal(s.verdict, "broken");
    vptq_device_close(&dev);
    assert_int_equal(mem.used, 0);
}

VTEST_MAIN(cmocka_unit_test(test_sum_is_the_batch), cmocka_unit_test(test_sum_in_pieces),
           cmocka_unit_test(test_pool_is_the_union),
           cmocka_unit_test(test_factor_is_upper_and_inverts),
           cmocka_unit_test(test_factor_raises_damping), cmocka_unit_test(test_describe))
