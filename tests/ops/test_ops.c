/* Tests devices: opening, memory, missing libraries, cancelling and running out of memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/cpu/blas.h"
#include "lib/backend/dev.h"
#include "tests/emu/emu.h"
#include "tests/support/devices.h"

/* ---- opening and memory ---- */

static void test_open_unknown(void **state)
{
    (void)state;
    devices_skip_if_only();
    vptq_ctx ctx = {.threads = 1};
    vptq_device dev;
    vptq_err err;
#ifdef VPTQ_CUDA
    const char *want =
        "\"abacus\" is not in this build, which has auto, cuda, cpu, ref and emu";
#else
    const char *want = "\"abacus\" is not in this build, which has auto, cpu, ref and emu";
#endif
    assert_fails(vptq_device_open(&ctx, "abacus", &dev, &err), VPTQ_E_UNSUPPORTED, &err, want);
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

static void test_open_auto_logs_its_choice(void **state)
{
    (void)state;
    devices_skip_if_only();
    log_text log = {{0}};
    vptq_ctx ctx = {.threads = 2, .log = keep_log, .user = &log};
    vptq_device dev;
    vptq_err err;
    assert_ok(vptq_device_open(&ctx, "auto", &dev, &err), &err);
    if (devices_have_gpu()) {
        assert_string_equal(dev.ops->name, "cuda");
        assert_non_null(strstr(log.text, "backend cuda (automatic): "));
    } else {
        assert_string_equal(dev.ops->name, "cpu");
        assert_non_null(strstr(log.text, "backend cpu (automatic): "));
        assert_non_null(strstr(log.text, " kernels, 2 threads"));
    }
    vptq_device_close(&dev);
    vptq_device_close(&dev); /* closing twice is harmless */
}

/* Loading the library explicitly prevents AVX2 kernels on an AVX-512 processor. */
static void test_blas_uses_avx512_kernels(void **state)
{
    (void)state;
    devices_skip_if_only();
    devices_one d;
    char text[256];
    if (vptq_cpu_simd() != VPTQ_SIMD_AVX512 || getenv("OPENBLAS_CORETYPE"))
        skip();
    devices_open(&d, "cpu", VPTQ_SIMD_AVX512, 1);
    d.dev.ops->libraries(d.dev.state, text, sizeof text);
    devices_close(&d);
    assert_non_null(strstr(text, "SkylakeX"));
    assert_null(getenv("OPENBLAS_CORETYPE"));
}

/* Only its yardstick loads the library, whose buffers need much address space. */
static void test_blas_is_loaded_on_first_use(void **state)
{
    (void)state;
    devices_skip_if_only();
    const float x[] = {2};
    float y[] = {0};
    double a[] = {4}, trace = 0;
    const vptq_gemv_args g = {.n = 1, .x = x, .y = y, .ldx = 1, .ldy = 1};
    const vptq_quad_trace_args q = {
        .m = 1, .n = 1, .e = x, .lde = 1, .h = a, .ldh = 1, .trace = &trace};
    devices_one d;
    vptq_err err;
    devices_open(&d, "cpu", vptq_cpu_simd(), 1);
    const vptq_backend *ops = d.dev.ops;
    assert_ok(ops->gemv(d.dev.state, 1, 1, VPTQ_F32, x, &g, &err), &err);
    assert_ok(ops->quad_trace(d.dev.state, &q, &err), &err);
    assert_ok(ops->potrf(d.dev.state, 1, a, 1, NULL, &err), &err);
    assert_true(y[0] == 4 && a[0] == 2 && trace == 16);
    assert_null(d.dev.state->blas);
    assert_ok(ops->library_gemv(d.dev.state, 1, 1, x, &g, &err), &err);
    assert_non_null(d.dev.state->blas);
    devices_close(&d);
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

/* Every op of the CUDA table exists. */
static void test_cuda_table_is_complete(void **state)
{
    (void)state;
    const vptq_backend *ops = vptq_backend_emu();
    void (*row)(void);
    for (size_t at = offsetof(vptq_backend, open); at < sizeof *ops; at += sizeof row) {
        memcpy(&row, (const char *)ops + at, sizeof row);
        assert_true(row != NULL);
    }
}

/* The error says why a device cannot be opened, in terms that help the user. */
static void test_devices_that_do_not_open(void **state)
{
    (void)state;
    devices_skip_if_only();
    static const struct {
        cuda_emu_machine machine;
        const char *why;
    } cases[] = {
        {{false, 0, 13000, 0, 0, 0}, "no CUDA device answers: no driver is installed"},
        {{true, 12020, 13000, 9, 0, 0},
         "no CUDA device answers: the driver is for CUDA 12.2, this build needs one for 13.0 "
         "or "
         "newer"},
        {{false, 13000, 13000, 0, 0, 0},
         "no CUDA device answers: no CUDA-capable device is detected"},
        {{true, 13000, 13000, 7, 5, 0},
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
    devices_skip_if_only();
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
    d.dev.ops->libraries(d.dev.state, text, sizeof text);
    assert_memory_equal(text, "OpenBLAS 0.", 11);
    devices_close(&d);
}

static vptq_status run_ops_with_scratch(void *arg, vptq_device *dev, vptq_err *err)
{
    enum { N = 20 };
    (void)arg;
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
    /* One sequence with a single row after page 0, and one that fills page 1. */
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
    VPTQ_CHECK(dev->ops->quad_trace(
        dev->state,
        &(vptq_quad_trace_args){
            .m = N, .n = N, .e = x, .lde = N, .h = h, .ldh = N, .trace = &trace},
        err));
    VPTQ_CHECK(dev->ops->trtri(dev->state, N, h, N, err));
    VPTQ_CHECK(dev->ops->syrk_add(
        dev->state,
        &(vptq_syrk_args){.tokens = N, .n = N, .x = x, .ldx = N, .h = h, .sum = sum}, err));
    VPTQ_CHECK(dev->ops->attention(dev->state, &a, err));
    VPTQ_CHECK(dev->ops->attention_mass(dev->state, &a, sum, err));
    VPTQ_CHECK(dev->ops->attention_paged(dev->state, &paged, err));
    return VPTQ_OK;
}

static void test_device_out_of_memory(void **state)
{
    (void)state;
    devices_skip_if_only();
    devices_one d;
    vptq_err err;
    void *p = NULL, *q = NULL;
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    const vptq_backend *ops = d.dev.ops;
    const size_t before = cuda_emu_memory_used();
    cuda_emu_memory(before + 1000);
    assert_ok(ops->alloc(d.dev.state, 150, 4, &p, &err), &err);
    assert_fails(ops->alloc(d.dev.state, 101, 4, &q, &err), VPTQ_E_NOMEM, &err,
                 "404 bytes of device memory: 400 of ");
    assert_null(q);
    ops->release(d.dev.state, p);
    assert_ok(ops->alloc(d.dev.state, 101, 4, &q, &err), &err);
    ops->release(d.dev.state, q);
    /* Working memory that ops have left is freed for an allocation. */
    cuda_emu_memory(0);
    assert_ok(run_ops_with_scratch(NULL, &d.dev, &err), &err);
    const size_t scratch = cuda_emu_memory_used() - before;
    assert_true(scratch > 0);
    cuda_emu_memory(before + scratch);
    assert_ok(ops->alloc(d.dev.state, scratch, 1, &q, &err), &err);
    ops->release(d.dev.state, q);
    cuda_emu_memory(0);
    assert_ok(run_ops_with_scratch(NULL, &d.dev, &err), &err);
    devices_close(&d);
    assert_int_equal(cuda_emu_memory_used(), before);
}

/* library_gemv fails without its library; all other ops work. */
static void test_cuda_libraries_may_be_missing(void **state)
{
    (void)state;
    devices_skip_if_only();
    double a[] = {4};
    float x[] = {2}, y[] = {0};
    const vptq_gemv_args g = {.n = 1, .x = x, .y = y, .ldx = 1, .ldy = 1};
    devices_one d;
    vptq_err err;
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    const vptq_backend *ops = d.dev.ops;
    cuda_emu_libraries(false);
    assert_ok(ops->potrf(d.dev.state, 1, a, 1, NULL, &err), &err);
    assert_true(a[0] == 2);
    assert_ok(ops->trtri(d.dev.state, 1, a, 1, &err), &err);
    assert_true(a[0] == 0.5);
    a[0] = 4;
    assert_fails(ops->library_gemv(d.dev.state, 1, 1, x, &g, &err), VPTQ_E_UNSUPPORTED, &err,
                 "the cuda backend needs cuBLAS");
    assert_ok(ops->gemv(d.dev.state, 1, 1, VPTQ_F32, x, &g, &err), &err);
    assert_true(y[0] == 4);
    cuda_emu_libraries(true);
    assert_ok(ops->potrf(d.dev.state, 1, a, 1, NULL, &err), &err);
    assert_true(a[0] == 2);
    devices_close(&d);
}

/* Ops that can take seconds stop between blocks. */
static void test_long_ops_are_cancelled(void **state)
{
    (void)state;
    devices_skip_if_only();
    enum { N = 130 };
    volatile sig_atomic_t stop = 1;
    vptq_ctx ctx = {.threads = 1, .cancel = &stop};
    vptq_device dev;
    vptq_err err;
    double *a = calloc((size_t)N * N, sizeof *a);
    assert_non_null(a);
    for (size_t i = 0; i < N; i++)
        a[i * N + i] = 1;
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

/* ---- out of memory ---- */

static void test_out_of_memory(void **state)
{
    (void)state;
    devices_skip_if_only();
    assert_true(devices_oom_walk("ref", 2, run_ops_with_scratch, NULL) >= 2);
    assert_true(devices_oom_walk("cpu", 2, run_ops_with_scratch, NULL) >= 3);
}

VTEST_MAIN(cmocka_unit_test(test_open_unknown),
           cmocka_unit_test(test_open_auto_logs_its_choice),
           cmocka_unit_test(test_blas_uses_avx512_kernels),
           cmocka_unit_test(test_blas_is_loaded_on_first_use), cmocka_unit_test(test_memory),
           cmocka_unit_test(test_cuda_table_is_complete),
           cmocka_unit_test(test_devices_that_do_not_open), cmocka_unit_test(test_description),
           cmocka_unit_test(test_device_out_of_memory),
           cmocka_unit_test(test_cuda_libraries_may_be_missing),
           cmocka_unit_test(test_long_ops_are_cancelled), cmocka_unit_test(test_out_of_memory))
