/* Tests the linear algebra ops: ref against results computed by hand, other backends against
 * ref. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "tests/emu/emu.h"
#include "tests/support/devices.h"

/* A float sum of k products of independent terms has an error of about sqrt(k) half ulps
 * (2^-25) of the root of the sum of squares: an NMSE of k 2^-50. The limit leaves a factor
 * of 16. It also holds for the three products of halves on tensor cores (docs/numerics.md). */
static double float_sum_limit(size_t k)
{
    return ((double)k + 4) * 0x1p-46;
}

/* Double sums differ only in their order: far below 2^-48 of float, far above 2^-106 k. */
static const double double_limit = 1e-24;

/* ---- gemm ---- */

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

static gemm_case gemm_case_of(size_t m, size_t n, size_t k, int form)
{
    return (gemm_case){.m = m,
                       .n = n,
                       .k = k,
                       .trans_a = form & 1,
                       .trans_b = (form & 2) != 0,
                       .has_bias = (form & 4) != 0,
                       .beta = form & 8 ? 1.0f : 0.0f,
                       .alpha = form & 16 ? -0.5f : 1};
}

static void check_gemm(size_t m, size_t n, size_t k, int form)
{
    gemm_case t = gemm_case_of(m, n, k, form);
    float *a = vtest_normals((m + 1) * (k + 1), 1), *b = vtest_normals((n + 2) * (k + 2), 2);
    float *bias = vtest_normals(n, 3), *c0 = vtest_normals(m * (n + 3), 4);
    t.a = a;
    t.b = b;
    t.bias = bias;
    t.c0 = c0;
    const devices_op op = {run_gemm, &t, m * (n + 3), sizeof(float), float_sum_limit(k)};
    if (m * n * k <= 1 << 20)
        devices_check_emu(&op, NULL);
    else
        devices_check(&op, NULL);
    free(a);
    free(b);
    free(bias);
    free(c0);
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

/* ---- gemm of bfloat16 numbers ---- */

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

static void check_bf16(gemm_case *t)
{
    const size_t ldc = t->n + 3, count = t->m * ldc;
    float *want = malloc(count * sizeof *want);
    assert_non_null(want);
    t->bf16 = true;
    memcpy(want, t->c0, count * sizeof *want);
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n; j++) {
            const float start = t->beta * t->c0[i * ldc + j];
            want[i * ldc + j] = sum_of_pairs(t, i, j, t->has_bias ? start + t->bias[j] : start);
        }
    for (int level = -1; level <= VPTQ_SIMD_NEON; level++)
        for (int threads = 1; threads <= 3; threads += 2) {
            if (level >= 0 && !devices_have_simd(level))
                continue;
            float *got = run_bf16(t, "cpu", level, threads);
            for (size_t i = 0; i < count; i++)
                if (bits_of(got[i]) != bits_of(want[i]))
                    fail_msg("element %zu of %zu: %a, not %a (level %d)", i, count,
                             (double)got[i], (double)want[i], level);
            free(got);
        }
    float *exact = run_bf16(t, "ref", -1, 1);
    double error = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        error += pow((double)want[i] - (double)exact[i], 2);
        norm += pow((double)exact[i], 2);
    }
    assert_true(error <= float_sum_limit(t->k) * norm);
    free(exact);
    free(want);
}

static void check_bf16_of(size_t m, size_t n, size_t k, int form)
{
    gemm_case t = gemm_case_of(m, n, k, form);
    float *a = vtest_normals((m + 1) * (k + 1), 1), *b = vtest_normals((n + 2) * (k + 2), 2);
    float *bias = vtest_normals(n, 3), *c0 = vtest_normals(m * (n + 3), 4);
    t.a = a;
    t.b = b;
    t.bias = bias;
    t.c0 = c0;
    check_bf16(&t);
    free(a);
    free(b);
    free(bias);
    free(c0);
}

static void test_gemm_bf16(void **state)
{
    (void)state;
    for (int form = 0; form < 32; form++)
        check_bf16_of(35, 37, 45, form);
    check_bf16_of(1, 1, 1, 0);
    check_bf16_of(8, 33, 32, 2);
    check_bf16_of(64, 96, 1500, 2);
    check_bf16_of(230, 800, 33, 3);
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
    const devices_op op = {run_syrk, &c, n * (n + 1), sizeof(double), float_sum_limit(256)};
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
static void test_products_in_little_shared_memory(void **state)
{
    (void)state;
    const cuda_emu_machine small = {true, 13000, 13000, 8, 6, 99 << 10};
    devices_skip_if_only();
    cuda_emu_be(&small);
    check_gemm(70, 70, 70, 0);
    check_gemm(20, 70, 70, 0);
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

VTEST_MAIN(cmocka_unit_test(test_gemm_by_hand), cmocka_unit_test(test_gemm_forms),
           cmocka_unit_test(test_gemm_shapes), cmocka_unit_test(test_gemm_bf16),
           cmocka_unit_test(test_gemm_scales),
           cmocka_unit_test(test_products_in_little_shared_memory),
           cmocka_unit_test(test_gemm_not_finite), cmocka_unit_test(test_syrk),
           cmocka_unit_test(test_syrk_by_hand), cmocka_unit_test(test_factor),
           cmocka_unit_test(test_factor_by_hand), cmocka_unit_test(test_factor_errors),
           cmocka_unit_test(test_own_factor), cmocka_unit_test(test_factor_without_a_library),
           cmocka_unit_test(test_factor_rule), cmocka_unit_test(test_quad_trace),
           cmocka_unit_test(test_quad_trace_rule))
