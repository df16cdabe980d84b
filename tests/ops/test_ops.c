/* Devices and their linear algebra: ref against results worked out by hand, cpu and emu against
 * ref. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/devices.h"

/* A float sum of k products of independent terms is off by about sqrt(k) half ulps, 2^-25, of
 * the root of the sum of squares: an NMSE of k 2^-50; the limit leaves a factor of 16. */
static double float_sum_limit(size_t k)
{
    return ((double)k + 4) * 0x1p-46;
}

/* Double sums differ by their order alone; far below float's 2^-48, far above 2^-106 k. */
static const double double_limit = 1e-24;

/* ---- life ---- */

static void test_open_unknown(void **state)
{
    (void)state;
    vptq_ctx ctx = {.threads = 1};
    vptq_device dev;
    vptq_err err;
    assert_fails(vptq_device_open(&ctx, "abacus", &dev, &err), VPTQ_E_UNSUPPORTED, &err,
                 "\"abacus\" is not in this build, which has auto, cpu, ref and emu");
    assert_null(dev.ops);
    vptq_device_close(&dev);
}

typedef struct log_text {
    char text[512];
} log_text;

static void keep_log(void *user, vptq_log_level level, const char *text)
{
    log_text *log = user;
    (void)level;
    assert_true(strlen(text) < sizeof log->text);
    memcpy(log->text, text, strlen(text) + 1);
}

static void test_open_auto_says_what_it_took(void **state)
{
    (void)state;
    log_text log = {{0}};
    vptq_ctx ctx = {.threads = 2, .log = keep_log, .user = &log};
    vptq_device dev;
    vptq_err err;
    assert_ok(vptq_device_open(&ctx, "auto", &dev, &err), &err);
    assert_string_equal(dev.ops->name, "cpu");
    assert_non_null(strstr(log.text, "backend cpu (automatic): "));
    assert_non_null(strstr(log.text, "OpenBLAS"));
    assert_non_null(strstr(log.text, "2 threads"));
    vptq_device_close(&dev);
    vptq_device_close(&dev); /* closing twice is harmless */
}

/* AVX2 kernels on an AVX-512 processor are what loading the library by hand prevents. */
static void test_blas_uses_the_wide_kernels(void **state)
{
    (void)state;
    devices_one d;
    char text[256];
    if (vptq_cpu_simd() != VPTQ_SIMD_AVX512 || getenv("OPENBLAS_CORETYPE"))
        skip();
    devices_open(&d, "cpu", VPTQ_SIMD_AVX512, 1);
    d.dev.ops->describe(d.dev.state, text, sizeof text);
    devices_close(&d);
    assert_non_null(strstr(text, "SkylakeX"));
    assert_null(getenv("OPENBLAS_CORETYPE"));
}

static void test_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"ref", "cpu", "emu"};
    for (size_t i = 0; i < 3; i++) {
        devices_one d;
        vptq_err err;
        void *p = NULL;
        const float src[3] = {1, 2, 3};
        float dst[3] = {0};
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        const vptq_backend *ops = d.dev.ops;
        assert_true(ops->host_memory == (i < 2));
        assert_ok(ops->alloc(d.dev.state, 3, sizeof(float), &p, &err), &err);
        assert_ok(ops->upload(d.dev.state, p, src, sizeof src, &err), &err);
        assert_ok(ops->sync(d.dev.state, &err), &err);
        assert_ok(ops->download(d.dev.state, dst, p, sizeof dst, &err), &err);
        assert_memory_equal(src, dst, sizeof src);
        ops->release(d.dev.state, p);
        ops->release(d.dev.state, NULL);
        assert_fails(ops->alloc(d.dev.state, SIZE_MAX / 2, 4, &p, &err), VPTQ_E_NOMEM, &err,
                     "");
        devices_close(&d);
    }
}

/* Every row of the CUDA table answers. */
static void test_cuda_table_has_no_holes(void **state)
{
    (void)state;
    const vptq_backend *ops = vptq_backend_emu();
    void (*row)(void);
    for (size_t at = offsetof(vptq_backend, open); at < sizeof *ops; at += sizeof row) {
        memcpy(&row, (const char *)ops + at, sizeof row);
        assert_true(row != NULL);
    }
}

/* Why a device cannot be had, in words for the one who has to do something about it. */
static void test_devices_that_cannot_be_had(void **state)
{
    (void)state;
    static const struct {
        cuda_emu_machine machine;
        const char *why;
    } cases[] = {
        {{false, 0, 13000, 0, 0}, "no CUDA device answers: no driver is installed"},
        {{true, 12020, 13000, 9, 0},
         "no CUDA device answers: the driver is for CUDA 12.2, this build needs one for 13.0 "
         "or "
         "newer"},
        {{false, 13000, 13000, 0, 0},
         "no CUDA device answers: no CUDA-capable device is detected"},
        {{true, 13000, 13000, 7, 5},
         "emulated device has compute capability 7.5, this build needs 8.0 or newer"},
    };
    vptq_mem mem;
    vptq_device dev;
    vptq_err err;
    vptq_mem_init(&mem, 0);
    const vptq_ctx ctx = {.mem = &mem, .threads = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_emu_be(&cases[i].machine);
        assert_fails(vptq_device_open(&ctx, "emu", &dev, &err), VPTQ_E_DEVICE, &err,
                     cases[i].why);
        assert_null(dev.ops);
        assert_int_equal(mem.used, 0);
    }
    cuda_emu_be(NULL);
}

static void test_description(void **state)
{
    (void)state;
    devices_one d;
    char text[256];
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    d.dev.ops->describe(d.dev.state, text, sizeof text);
    assert_string_equal(text, "emulated device (compute capability 9.0, 4 multiprocessors, "
                              "65536 MiB), driver 13.0, run time 13.0");
    d.dev.ops->libraries(d.dev.state, text, sizeof text);
    assert_string_equal(text, "emulated cuBLAS, emulated cuSOLVER");
    cuda_emu_libraries(false);
    d.dev.ops->libraries(d.dev.state, text, sizeof text);
    assert_non_null(strstr(text, "needs cuSOLVER (emulated) for this and cannot load it"));
    cuda_emu_libraries(true);
    devices_close(&d);
    devices_open(&d, "cpu", VPTQ_SIMD_NONE, 1);
    d.dev.ops->libraries(d.dev.state, text, sizeof text); /* are in the description */
    assert_string_equal(text, "");
    devices_close(&d);
}

static void test_device_out_of_memory(void **state)
{
    (void)state;
    devices_one d;
    vptq_err err;
    void *p = NULL, *q = NULL;
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    const vptq_backend *ops = d.dev.ops;
    const size_t before = cuda_emu_memory_used();
    cuda_emu_memory(before + 1000);
    assert_ok(ops->alloc(d.dev.state, 150, 4, &p, &err), &err);
    assert_fails(ops->alloc(d.dev.state, 101, 4, &q, &err), VPTQ_E_NOMEM, &err,
                 "404 bytes of device memory cannot be had: 400 of ");
    assert_null(q);
    ops->release(d.dev.state, p);
    assert_ok(ops->alloc(d.dev.state, 101, 4, &q, &err), &err);
    ops->release(d.dev.state, q);
    cuda_emu_memory(0);
    devices_close(&d);
    assert_int_equal(cuda_emu_memory_used(), before);
}

/* ---- gemm ---- */

typedef struct gemm_case {
    size_t m, n, k;
    bool trans_a, trans_b, has_bias;
    float alpha, beta;
    const float *a, *b, *bias, *c0;
} gemm_case;

static void run_gemm(const vptq_device *dev, const void *arg, void *out)
{
    const gemm_case *t = arg;
    vptq_err err;
    /* Rows three elements longer than needed: what lies between them must stay as it is. */
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
                              .bias = t->has_bias ? t->bias : NULL};
    assert_ok(dev->ops->gemm(dev->state, &g, &err), &err);
    for (size_t i = 0; i < t->m; i++)
        assert_same_f32((float *)out + i * ldc + t->n, t->c0 + i * ldc + t->n, 3);
}

static void check_gemm(size_t m, size_t n, size_t k, int form)
{
    gemm_case t = {.m = m,
                   .n = n,
                   .k = k,
                   .trans_a = form & 1,
                   .trans_b = (form & 2) != 0,
                   .has_bias = (form & 4) != 0,
                   .beta = form & 8 ? 1.0f : 0.0f,
                   .alpha = form & 16 ? -0.5f : 1};
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
    const syrk_case c = {t, n, n + 5, x, weighted ? w : NULL};
    /* At most 256 float products before a double takes over. */
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
    check_syrk(255, 40, true);
    check_syrk(257, 40, false);
    check_syrk(600, 530, false);
    check_syrk(600, 64, true);
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

/* A well conditioned symmetric matrix; above the diagonal there is what nobody may read. */
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

/* out: the lower triangle alone, row by row */
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
        /* the rest of the row is as it was */
        assert_memory_equal(a + i * c->lda + i + 1, c->a + i * c->lda + i + 1,
                            (c->lda - i - 1) * sizeof *a);
    }
    free(a);
}

static void test_factor(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 17, 127, 128, 129, 383, 385, 530};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s], lda = n + s % 3;
        double *a = positive(n, lda, n);
        factor_case c = {n, lda, a, false};
        devices_op op = {run_factor, &c, n * (n + 1) / 2, sizeof(double), double_limit};
        devices_check_emu(&op, NULL);
        c.invert = true; /* the lower triangle as it is is a well conditioned factor */
        devices_check_emu(&op, NULL);
        free(a);
    }
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

/* The pivot that fails is named, whichever block it is in and whatever it is. */
static void test_factor_refusals(void **state)
{
    (void)state;
    enum { N = 300 };
    static const size_t at[] = {0, 1, 127, 128, 257, 299};
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

/* What the libraries are for says that they are not there; everything else goes on. */
static void test_cuda_libraries_may_be_missing(void **state)
{
    (void)state;
    double a[] = {4};
    float x[] = {2}, y[] = {0};
    const vptq_gemv_args g = {.n = 1, .x = x, .y = y, .ldx = 1, .ldy = 1};
    devices_one d;
    vptq_err err;
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    const vptq_backend *ops = d.dev.ops;
    cuda_emu_libraries(false);
    assert_fails(ops->potrf(d.dev.state, 1, a, 1, NULL, &err), VPTQ_E_DEVICE, &err,
                 "the cuda backend needs cuSOLVER");
    assert_fails(ops->trtri(d.dev.state, 1, a, 1, &err), VPTQ_E_DEVICE, &err,
                 "the cuda backend needs cuSOLVER");
    assert_fails(ops->library_gemv(d.dev.state, 1, 1, x, &g, &err), VPTQ_E_UNSUPPORTED, &err,
                 "the cuda backend needs cuBLAS");
    assert_ok(ops->gemv(d.dev.state, 1, 1, VPTQ_F32, x, &g, &err), &err);
    assert_true(y[0] == 4);
    cuda_emu_libraries(true);
    assert_ok(ops->potrf(d.dev.state, 1, a, 1, NULL, &err), &err);
    assert_true(a[0] == 2);
    devices_close(&d);
}

/* What takes seconds for a large matrix or a long sequence stops between blocks. */
static void test_long_rows_are_cancelled(void **state)
{
    (void)state;
    enum { N = 130 };
    volatile sig_atomic_t stop = 1;
    vptq_ctx ctx = {.threads = 1, .cancel = &stop};
    vptq_device dev;
    vptq_err err;
    double *a = positive(N, N, 5);
    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    assert_fails(dev.ops->potrf(dev.state, N, a, N, NULL, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    assert_fails(dev.ops->trtri(dev.state, N, a, N, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    float x[N] = {0};
    const vptq_attention_args args = {.n = N,
                                      .heads = 1,
                                      .kv_heads = 1,
                                      .head_dim = 1,
                                      .q = x,
                                      .keys = x,
                                      .values = x,
                                      .out = x,
                                      .ldq = 1,
                                      .ldk = 1,
                                      .ldv = 1,
                                      .ldo = 1};
    assert_fails(dev.ops->attention(dev.state, &args, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    assert_fails(dev.ops->attention_mass(dev.state, &args, a, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    vptq_device_close(&dev);
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

/* ---- out of memory ---- */

static vptq_status all_scratch_rows(void *arg, vptq_mem *mem, vptq_err *err)
{
    enum { N = 20 };
    vptq_ctx ctx = {.mem = mem, .threads = 2};
    vptq_device dev;
    vptq_status st = vptq_device_open(&ctx, arg, &dev, err);
    if (st)
        return st;
    float x[N * N] = {0};
    double h[N * N], sum[N], trace = 0;
    const vptq_attention_args a = {.n = N,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .head_dim = N / 2,
                                   .scale = 1,
                                   .q = x,
                                   .keys = x,
                                   .values = x,
                                   .out = x,
                                   .ldq = N,
                                   .ldk = N,
                                   .ldv = N,
                                   .ldo = N};
    /* One sequence of a row behind page 0, one that is all of page 1. */
    const uint32_t starts[] = {0, 1, 10}, positions[] = {19, 0}, table[] = {0, 1};
    const vptq_kv_rows rows = {.rows = 10,
                               .sequences = 2,
                               .max_rows = 9,
                               .max_tokens = 20,
                               .starts = starts,
                               .positions = positions,
                               .table = table,
                               .ld_table = 1};
    float pool[2][2 * VPTQ_KV_PAGE * N / 2] = {{0}};
    const vptq_kv_pool kv = {VPTQ_F32, 1, N / 2, pool[0], pool[1]};
    const vptq_paged_args paged = {
        .rows = &rows, .pool = &kv, .heads = 2, .q = x, .out = x, .ldq = N, .ldo = N};
    for (size_t i = 0; i < N * N; i++)
        h[i] = i % (N + 1) == 0;
    memset(sum, 0, sizeof sum);
    VPTQ_TRY(dev.ops->quad_trace(
        dev.state,
        &(vptq_quad_trace_args){
            .m = N, .n = N, .e = x, .lde = N, .h = h, .ldh = N, .trace = &trace},
        err));
    VPTQ_TRY(dev.ops->trtri(dev.state, N, h, N, err));
    VPTQ_TRY(dev.ops->syrk_add(
        dev.state, &(vptq_syrk_args){.tokens = N, .n = N, .x = x, .ldx = N, .h = h, .sum = sum},
        err));
    VPTQ_TRY(dev.ops->attention(dev.state, &a, err));
    VPTQ_TRY(dev.ops->attention_mass(dev.state, &a, sum, err));
    VPTQ_TRY(dev.ops->attention_paged(dev.state, &paged, err));
out:
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    char ref[] = "ref", cpu[] = "cpu";
    assert_true(vtest_oom_walk(all_scratch_rows, ref) >= 2);
    assert_true(vtest_oom_walk(all_scratch_rows, cpu) >= 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_unknown),
        cmocka_unit_test(test_open_auto_says_what_it_took),
        cmocka_unit_test(test_blas_uses_the_wide_kernels),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_cuda_table_has_no_holes),
        cmocka_unit_test(test_devices_that_cannot_be_had),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_device_out_of_memory),
        cmocka_unit_test(test_gemm_by_hand),
        cmocka_unit_test(test_gemm_forms),
        cmocka_unit_test(test_gemm_shapes),
        cmocka_unit_test(test_syrk_by_hand),
        cmocka_unit_test(test_syrk),
        cmocka_unit_test(test_factor_by_hand),
        cmocka_unit_test(test_factor),
        cmocka_unit_test(test_factor_refusals),
        cmocka_unit_test(test_cuda_libraries_may_be_missing),
        cmocka_unit_test(test_long_rows_are_cancelled),
        cmocka_unit_test(test_quad_trace),
        cmocka_unit_test(test_out_of_memory),
    };
    return vtest_main(argc, argv, tests);
}
