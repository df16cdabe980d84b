/* Tests the op gemm: ref against products by hand, other backends against ref, products of
 * bfloat16 numbers against the instruction whose sums they follow. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "tests/emu/emu.h"
#include "tests/support/devices.h"

/* ---- products of floats ---- */

typedef struct gemm_case {
    size_t m, n, k;
    bool trans_a, trans_b, has_bias, bf16;
    float alpha, beta;
    const float *a, *b, *bias, *c0;
} gemm_case;

static void run_gemm(const vptq_device *dev, const void *arg, void *out)
{
    const gemm_case *t = arg;
    vptq_err err;
    /* Rows have gaps of three elements, which must not change. */
    const size_t ldc = t->n + 3;
    memcpy(out, t->c0, t->m * ldc * sizeof(float));
    const vptq_gemm_args g = {.m = t->m,
                              .n = t->n,
                              .k = t->k,
                              .a = t->a,
                              .b = t->b,
                              .c = out,
                              .lda = (t->trans_a ? t->m : t->k) + 1,
                              .ldb = (t->trans_b ? t->k : t->n) + 2,
                              .ldc = ldc,
                              .trans_a = t->trans_a,
                              .trans_b = t->trans_b,
                              .alpha = t->alpha,
                              .beta = t->beta,
                              .bias = t->has_bias ? t->bias : NULL,
                              .bf16 = t->bf16};
    assert_ok(dev->ops->gemm(dev->state, &g, &err), &err);
    for (size_t i = 0; i < t->m; i++)
        assert_same_f32((float *)out + i * ldc + t->n, t->c0 + i * ldc + t->n, 3);
}

/* Calls fn with the case of these sizes and of form. */
static void with_operands(void (*fn)(gemm_case *), size_t m, size_t n, size_t k, int form)
{
    float *a = vtest_normals((m + 1) * (k + 1), 1), *b = vtest_normals((n + 2) * (k + 2), 2);
    float *bias = vtest_normals(n, 3), *c0 = vtest_normals(m * (n + 3), 4);
    gemm_case t = {.m = m,
                   .n = n,
                   .k = k,
                   .trans_a = form & 1,
                   .trans_b = (form & 2) != 0,
                   .has_bias = (form & 4) != 0,
                   .beta = form & 8 ? 1.0f : 0.0f,
                   .alpha = form & 16 ? -0.5f : 1,
                   .a = a,
                   .b = b,
                   .bias = bias,
                   .c0 = c0};
    fn(&t);
    free(a);
    free(b);
    free(bias);
    free(c0);
}

static void check_float(gemm_case *t)
{
    const devices_op op = {run_gemm, t, t->m * (t->n + 3), sizeof(float),
                           devices_float_sum_limit(t->k)};
    if (t->m * t->n * t->k <= 1 << 20)
        devices_check_emu(&op, NULL);
    else
        devices_check(&op, NULL);
}

static void check_gemm(size_t m, size_t n, size_t k, int form)
{
    with_operands(check_float, m, n, k, form);
}

static void test_gemm_by_hand(void **state)
{
    (void)state;
    /* A = [1 2 3; 4 5 6], B^T = [1 0 2; -1 1 0], bias (10, 20), C = [1 1; 1 1] */
    const float a[] = {1, 2, 3, 4, 5, 6}, a_t[] = {1, 4, 2, 5, 3, 6};
    const float b_t[] = {1, 0, 2, -1, 1, 0}, b[] = {1, -1, 0, 1, 2, 0}, bias[] = {10, 20};
    const float plain[] = {7, 1, 16, 1}, full[] = {2 * 7 + 11, 2 + 21, 2 * 16 + 11, 2 + 21};
    devices_one d;
    vptq_err err;
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    for (int form = 0; form < 4; form++) {
        float c[] = {1, 1, 1, 1};
        vptq_gemm_args g = {.m = 2,
                            .n = 2,
                            .k = 3,
                            .a = form & 1 ? a_t : a,
                            .b = form & 2 ? b_t : b,
                            .c = c,
                            .lda = form & 1 ? 2 : 3,
                            .ldb = form & 2 ? 3 : 2,
                            .ldc = 2,
                            .trans_a = form & 1,
                            .trans_b = (form & 2) != 0,
                            .alpha = 1};
        assert_ok(d.dev.ops->gemm(d.dev.state, &g, &err), &err);
        assert_same_f32(c, plain, 4);
        for (int i = 0; i < 4; i++)
            c[i] = 1;
        g.alpha = 2;
        g.beta = 1;
        g.bias = bias;
        assert_ok(d.dev.ops->gemm(d.dev.state, &g, &err), &err);
        assert_same_f32(c, full, 4);
    }
    devices_close(&d);
}

static void test_gemm_forms(void **state)
{
    (void)state;
    for (int form = 0; form < 32; form++) {
        check_gemm(9, 33, 17, form);
        check_gemm(3, 70, 37, form);
    }
}

static void test_gemm_shapes(void **state)
{
    (void)state;
    enum { TRANS_B = 2, BIAS = 4 };
    static const size_t m[] = {1, 2, 7, 8, 9, 255, 256, 257};
    for (size_t i = 0; i < sizeof m / sizeof *m; i++) {
        check_gemm(m[i], 1, 1, TRANS_B);
        check_gemm(m[i], 129, 65, TRANS_B | BIAS);
    }
    check_gemm(5, 127, 576, 0);
    check_gemm(5, 128, 576, TRANS_B);
    check_gemm(33, 767, 9, TRANS_B);
    check_gemm(33, 769, 9, 0);
    check_gemm(300, 1537, 33, TRANS_B);
    check_gemm(64, 576, 1536, TRANS_B); /* the demo model's down projection */
}

/* ---- products of bfloat16 numbers ---- */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float bf16_of(float x)
{
    return vptq_bf16_to_f32(vptq_f32_to_bf16(x));
}

static float flushed(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

/* TDPBF16PS as it is documented, for one element of C. */
static float sum_of_pairs(const gemm_case *t, size_t i, size_t j, float c)
{
    const size_t lda = (t->trans_a ? t->m : t->k) + 1, ldb = (t->trans_b ? t->k : t->n) + 2;
    for (size_t l = 0; l < t->k; l += 32) {
        float chain[2] = {0, 0};
        for (size_t s = l; s < l + 32 && s < t->k; s++) {
            const float a = t->a[t->trans_a ? s * lda + i : i * lda + s];
            const float b = t->b[t->trans_b ? j * ldb + s : s * ldb + j];
            chain[s % 2] = flushed(
                fmaf(flushed(bf16_of(t->alpha * a)), flushed(bf16_of(b)), chain[s % 2]));
        }
        c = flushed(flushed(c) + flushed(chain[0] + chain[1]));
    }
    return c;
}

/* The tiles of AMX are used where no level is named. */
static void *run_bf16(const gemm_case *t, const char *name, int level, int threads)
{
    float *out = malloc(t->m * (t->n + 3) * sizeof *out);
    assert_non_null(out);
    vptq_ctx ctx = {.threads = threads};
    vptq_device dev;
    vptq_err err;
    if (level >= 0)
        setenv("VPTQ_SIMD", vptq_simd_name((vptq_simd)level), 1);
    assert_ok(vptq_device_open(&ctx, name, &dev, &err), &err);
    unsetenv("VPTQ_SIMD");
    run_gemm(&dev, t, out);
    vptq_device_close(&dev);
    return out;
}

/* Returns what TDPBF16PS gives; free(). */
static float *wanted_bf16(const gemm_case *t)
{
    const size_t ldc = t->n + 3;
    float *want = vtest_alloc(t->m * ldc, sizeof *want);
    memcpy(want, t->c0, t->m * ldc * sizeof *want);
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) {
            const float start = t->beta * t->c0[i * ldc + j];
            want[i * ldc + j] = sum_of_pairs(t, i, j, t->has_bias ? start + t->bias[j] : start);
        }
    return want;
}

/* Every SIMD level and AMX give these bits; any NaN is as good as another. */
static void expect_bits(const gemm_case *t, const float *want)
{
    const size_t count = t->m * (t->n + 3);
    for (int level = -1; level <= VPTQ_SIMD_NEON; level++)
        for (int threads = 1; threads <= 3; threads += 2) {
            if (level >= 0 && !devices_have_simd(level))
                continue;
            float *got = run_bf16(t, "cpu", level, threads);
            for (size_t i = 0; i < count; i++)
                if (bits_of(got[i]) != bits_of(want[i]) && !(isnan(got[i]) && isnan(want[i])))
                    fail_msg("element %zu of %zu: %a, not %a (level %d)", i, count,
                             (double)got[i], (double)want[i], level);
            free(got);
        }
}

static void check_bf16(gemm_case *t)
{
    double error = 0, norm = 0;
    t->bf16 = true;
    float *want = wanted_bf16(t), *exact = run_bf16(t, "ref", -1, 1);
    expect_bits(t, want);
    for (size_t i = 0; i < t->m * (t->n + 3); i++) {
        error += pow((double)want[i] - (double)exact[i], 2);
        norm += pow((double)exact[i], 2);
    }
    assert_true(error <= devices_float_sum_limit(t->k) * norm);
    free(exact);
    free(want);
}

/* Products and sums around the smallest normal number, of which many count as zero, and rows
 * with numbers that are not finite. */
static void check_bf16_extremes(gemm_case *t)
{
    float *a = vtest_alloc(t->m * (t->k + 1), sizeof *a),
          *b = vtest_normals(t->n * (t->k + 2), 2);
    float *c0 = vtest_alloc(t->m * (t->n + 3), sizeof *c0);
    size_t zeros = 0, odd = 0;
    for (size_t i = 0; i < t->m * (t->k + 1); i++)
        a[i] = t->a[i] * 0x1p-64f;
    for (size_t i = 0; i < t->n * (t->k + 2); i++)
        b[i] *= 0x1p-63f;
    memset(c0, 0, t->m * (t->n + 3) * sizeof *c0);
    a[2 * (t->k + 1) + 5] = NAN;
    a[4 * (t->k + 1) + 7] = INFINITY;
    a[6 * (t->k + 1)] = 0x1p-130f; /* subnormal */
    t->bf16 = true;
    t->a = a;
    t->b = b;
    t->c0 = c0;
    float *want = wanted_bf16(t);
    expect_bits(t, want);
    for (size_t i = 0; i < t->m * (t->n + 3); i++) {
        zeros += want[i] == 0 && i % (t->n + 3) < t->n;
        odd += isfinite(want[i]) ? 0 : 1;
    }
    assert_int_equal(odd, 2 * t->n);
    assert_true(zeros > 0 && zeros < t->m * t->n / 2);
    free(want);
    free(a);
    free(b);
    free(c0);
}

static void test_bf16(void **state)
{
    (void)state;
    devices_skip_if_only();
    for (int form = 0; form < 32; form++)
        with_operands(check_bf16, 35, 37, 45, form);
    with_operands(check_bf16, 1, 1, 1, 0);
    with_operands(check_bf16, 8, 33, 32, 2);
    with_operands(check_bf16, 64, 96, 1500, 2);
    with_operands(check_bf16, 230, 800, 33, 3);
}

static void test_bf16_extremes(void **state)
{
    (void)state;
    devices_skip_if_only();
    with_operands(check_bf16_extremes, 40, 37, 45, 2);
}

/* Numbers of very different size, in a row and from row to row: `spread` is the exponent of
 * their range. Row 3 is zero, and row 5 has subnormal numbers. */
static float *scaled_rows(size_t rows, size_t k, double spread, uint64_t seed)
{
    float *x = vtest_normals(rows * k, seed), *size = vtest_normals(rows * k, seed + 100);
    for (size_t i = 0; i < rows; i++)
        for (size_t l = 0; l < k; l++) {
            const double row = ((double)i / (double)rows - 0.5) * spread;
            double factor = exp2(row + 4 * (double)size[i * k + l]);
            if (i == 3 || i == 5)
                factor = i == 3 ? 0 : 0x1p-140;
            x[i * k + l] = (float)((double)x[i * k + l] * factor);
        }
    free(size);
    return x;
}

/* c [m, n] = a [m, k] b [n, k]^T without gaps. */
static void multiply(const vptq_device *dev, size_t m, size_t n, size_t k, const float *a,
                     const float *b, float *c)
{
    vptq_err err;
    const vptq_gemm_args g = {.m = m,
                              .n = n,
                              .k = k,
                              .a = a,
                              .b = b,
                              .c = c,
                              .lda = k,
                              .ldb = k,
                              .ldc = n,
                              .trans_b = true,
                              .alpha = 1};
    assert_ok(dev->ops->gemm(dev->state, &g, &err), &err);
}

/* No result is further from the sum in double than 2^-17 of its own terms: twice the worst
 * case of 24 truncations in a run on tensor cores (docs/numerics.md), which also truncate the
 * products. A number below 2^-18 of the largest of its row counts as that large. */
static void check_scales(const char *name, double spread)
{
    enum { M = 70, N = 11, K = 100 };
    float *a = scaled_rows(M, K, spread, 31), *b = scaled_rows(N, K, spread, 32), c[M * N];
    devices_one d;
    devices_open(&d, name, vptq_cpu_simd(), 1);
    multiply(&d.dev, M, N, K, a, b, c);
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            double sum = 0, size = 0;
            /* in float because gcc 12 for aarch64 fails on this loop in double */
            float max_a = 0, max_b = 0;
            for (size_t l = 0; l < K; l++) {
                max_a = fmaxf(max_a, fabsf(a[i * K + l]));
                max_b = fmaxf(max_b, fabsf(b[j * K + l]));
            }
            for (size_t l = 0; l < K; l++) {
                const double x = (double)a[i * K + l], y = (double)b[j * K + l];
                sum += x * y;
                size += fmax(fabs(x), (double)max_a * 0x1p-18) *
                        fmax(fabs(y), (double)max_b * 0x1p-18);
            }
            if (!(fabs((double)c[i * N + j] - sum) <= size * 0x1p-17 + 0x1p-120))
                fail_msg("%s, (%zu, %zu): %g, expected %g", name, i, j, (double)c[i * N + j],
                         sum);
        }
    devices_close(&d);
    free(a);
    free(b);
}

static void test_gemm_scales(void **state)
{
    (void)state;
    check_scales("cpu", 60);
    check_scales("emu", 60);
    check_scales("emu", 110); /* products up to about 2^127 */
}

/* Numbers that are not finite spoil their own row or column, no other. */
static void test_gemm_not_finite(void **state)
{
    (void)state;
    enum { M = 67, N = 70, K = 66 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float *a = vtest_normals(M * K, 41), *b = vtest_normals(N * K, 42), c[M * N];
    devices_one d;
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    for (size_t i = 0; i < 3; i++) {
        a[(20 * i + 1) * K + i] = bad[i];
        b[(20 * i + 2) * K + 2 * i] = bad[i];
    }
    multiply(&d.dev, M, N, K, a, b, c);
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            const bool spoiled = (i < 60 && i % 20 == 1) || (j < 60 && j % 20 == 2);
            assert_int_equal(isfinite(c[i * N + j]) != 0, !spoiled);
        }
    devices_close(&d);
    free(a);
    free(b);
}

static void test_gemm_in_little_shared_memory(void **state)
{
    (void)state;
    const cuda_emu_machine small = {true, 13000, 13000, 8, 6, 99 << 10};
    devices_skip_if_only();
    cuda_emu_be(&small);
    check_gemm(70, 70, 70, 0);
    check_gemm(20, 70, 70, 0);
    cuda_emu_be(NULL);
}

VTEST_MAIN(cmocka_unit_test(test_gemm_by_hand), cmocka_unit_test(test_gemm_forms),
           cmocka_unit_test(test_gemm_shapes), cmocka_unit_test(test_gemm_scales),
           cmocka_unit_test(test_gemm_not_finite), cmocka_unit_test(test_bf16),
           cmocka_unit_test(test_bf16_extremes),
           cmocka_unit_test(test_gemm_in_little_shared_memory))
