/* Tests long ops of a device: divided into several launches they give the same bits, and they
 * stop between two launches when the caller cancels. plus_plus has a launch for each centroid
 * anyway. */
#include <stdlib.h>
#include <string.h>

#include "lib/backend/backend.h"
#include "tests/emu/emu.h"
#include "tests/support/vtest.h"

enum { FLOATS = 1 << 16, V = 4, K = 16, K_RES = 8, VECTOR_ROWS = 200, COLS = 3 };

/* Ops only read x and write only to y, which starts as a copy of x. */
typedef struct bench {
    volatile sig_atomic_t stop;
    vptq_ctx ctx;
    vptq_device dev;
    float *x, *y;
    vptq_search_index *index;
    float *host; /* x */
} bench;

static void *on_device(bench *b)
{
    void *p = NULL;
    vptq_err err;
    assert_ok(b->dev.ops->alloc(b->dev.state, FLOATS, sizeof(float), &p, &err), &err);
    return p;
}

static void fill(bench *b, float *to)
{
    vptq_err err;
    assert_ok(b->dev.ops->upload(b->dev.state, to, b->host, FLOATS * sizeof *to, &err), &err);
}

static void bench_open(bench *b)
{
    vptq_err err;
    *b = (bench){.ctx = {.threads = 1}};
    b->ctx.cancel = &b->stop;
    assert_ok(vptq_device_open(&b->ctx, "emu", &b->dev, &err), &err);
    assert_ptr_equal(b->dev.ops, vptq_backend_emu()); /* this reference also links it */
    b->host = vtest_normals(FLOATS, 7);
    b->x = on_device(b);
    b->y = on_device(b);
    fill(b, b->x);
    const vptq_codebooks codebooks = {.v = V,
                                      .k = K,
                                      .k_res = K_RES,
                                      .beam = 2,
                                      .centroids = b->x,
                                      .res_centroids = b->x + K * V};
    assert_ok(b->dev.ops->search_index_open(b->dev.state, &codebooks, &b->index, &err), &err);
}

static void bench_close(bench *b)
{
    b->dev.ops->search_index_close(b->dev.state, b->index);
    b->dev.ops->release(b->dev.state, b->x);
    b->dev.ops->release(b->dev.state, b->y);
    vptq_device_close(&b->dev);
    free(b->host);
}

/* ---- ops ---- */

#define GEMM_ARGS(r) .m = 300, .n = 40, .k = 20, .a = r->x, .b = r->x + 5000, .c = r->y

static vptq_status run_gemm(bench *b, vptq_err *err)
{
    const vptq_gemm_args g = {GEMM_ARGS(b), .lda = 21, .ldb = 40,   .ldc = 41,
                              .alpha = 1,   .beta = 1, .bias = b->x};
    return b->dev.ops->gemm(b->dev.state, &g, err);
}

static vptq_status run_gemm_of_columns(bench *b, vptq_err *err)
{
    const vptq_gemm_args g = {GEMM_ARGS(b),    .lda = 300,      .ldb = 20,  .ldc = 40,
                              .trans_a = true, .trans_b = true, .alpha = -1};
    return b->dev.ops->gemm(b->dev.state, &g, err);
}

/* So many tokens that weights and activations are multiplied as matrices. */
static vptq_status run_gemv(bench *b, vptq_err *err)
{
    const vptq_gemv_args g = {.n = 300, .x = b->x + 5000, .y = b->y, .ldx = 20, .ldy = 40};
    return b->dev.ops->gemv(b->dev.state, 40, 20, VPTQ_F32, b->x, &g, err);
}

/* So many tokens that rows are decoded first; codes are any bytes of x. */
static vptq_status run_uniform_gemv(bench *b, vptq_err *err)
{
    const vptq_gemv_args g = {.n = 300, .x = b->x + 5000, .y = b->y, .ldx = 20, .ldy = 40};
    const vptq_uniform w = {.shape = {.out = 40, .in = 20, .bits = 4, .group_size = 10},
                            .codes = (const void *)b->x,
                            .scales = b->x + 1000};
    return b->dev.ops->uniform_gemv(b->dev.state, &w, VPTQ_F16, &g, err);
}

static vptq_status run_solve_upper(bench *b, vptq_err *err)
{
    const vptq_solve_args a = {
        .rows = 600, .cols = 20, .x = b->y, .ldx = 600, .u = b->x + 7000, .ldu = 20};
    return b->dev.ops->solve_upper(b->dev.state, &a, err);
}

static vptq_status run_syrk_add(bench *b, vptq_err *err)
{
    enum { N = 160 };
    void *h = b->y;
    double *sum = (double *)h + N * N;
    return b->dev.ops->syrk_add(
        b->dev.state,
        &(vptq_syrk_args){.tokens = 20, .n = N, .x = b->x, .ldx = N, .h = h, .sum = sum}, err);
}

static vptq_status run_channel_range(bench *b, vptq_err *err)
{
    void *sum = b->y;
    const vptq_channel_args a = {.tokens = 20,
                                 .n = 160,
                                 .x = b->x,
                                 .ldx = 160,
                                 .first = true,
                                 .abs_sum = sum,
                                 .min = b->y + 1000,
                                 .max = b->y + 2000};
    return b->dev.ops->channel_range(b->dev.state, &a, err);
}

static vptq_status run_quad_trace(bench *b, vptq_err *err)
{
    enum { N = 150 };
    const void *h = b->x;
    double trace;
    vptq_status st = b->dev.ops->quad_trace(b->dev.state,
                                            &(vptq_quad_trace_args){.m = 40,
                                                                    .n = N,
                                                                    .e = b->x + 2 * N * N,
                                                                    .lde = N,
                                                                    .h = h,
                                                                    .ldh = N,
                                                                    .trace = &trace},
                                            err);
    return st ? st : b->dev.ops->upload(b->dev.state, b->y, &trace, sizeof trace, err);
}

static vptq_status run_assign(bench *b, vptq_err *err)
{
    void *idx = b->y;
    return b->dev.ops->assign(b->dev.state,
                              &(vptq_assign_args){.n = 1500,
                                                  .v = V,
                                                  .k = K,
                                                  .x = b->x,
                                                  .centroids = b->x,
                                                  .idx = idx,
                                                  .dist = b->y + 1500},
                              err);
}

static vptq_status run_plus_plus(bench *b, vptq_err *err)
{
    enum { CENTROIDS = 5 };
    static const double u[CENTROIDS * VPTQ_PLUS_PLUS_TRIALS] = {0.3, 0.7};
    void *on = b->y + CENTROIDS * V;
    const vptq_plus_plus_args a = {
        .m = 1500, .v = V, .k = CENTROIDS, .x = b->x, .u = on, .centroids = b->y};
    vptq_status st = b->dev.ops->upload(b->dev.state, on, u, sizeof u, err);
    return st ? st : b->dev.ops->plus_plus(b->dev.state, &a, err);
}

static vptq_status run_search(bench *b, vptq_err *err)
{
    void *idx = b->y, *idx_res = b->y + 300;
    const vptq_search_args f = {.n = 300,
                                .index = b->index,
                                .x = b->x,
                                .idx = idx,
                                .idx_res = idx_res,
                                .dist = b->y + 600};
    return b->dev.ops->search(b->dev.state, &f, err);
}

enum { ROWS = VECTOR_ROWS * V, MATRIX = COLS * ROWS, INDICES = COLS * VECTOR_ROWS };

/* The arguments that vq_pass and vq_descend share: y holds three matrices, then the indices. */
#define COLUMN_ARGS(b)                                                                         \
    .cols = COLS, .rows = ROWS, .index = b->index, .idx = (void *)(b->y + 3 * MATRIX),         \
    .idx_res = (void *)(b->y + 3 * MATRIX + INDICES), .q = b->y + MATRIX, .ldi = VECTOR_ROWS,  \
    .ldq = ROWS

static vptq_status run_vq_pass(bench *b, vptq_err *err)
{
    const vptq_pass_args p = {
        COLUMN_ARGS(b), .z = b->y,   .u = b->x + 20000, .err = b->y + 2 * MATRIX,
        .ldz = ROWS,    .ldu = COLS, .lde = ROWS};
    return b->dev.ops->vq_pass(b->dev.state, &p, err);
}

static vptq_status run_vq_descend(bench *b, vptq_err *err)
{
    static const uint32_t zeros[2 * INDICES];
    const vptq_descend_args d = {
        COLUMN_ARGS(b), .g = b->x,   .h = b->x + 20001, .delta = b->y + 2 * MATRIX,
        .ldg = ROWS,    .ldh = COLS, .ldd = ROWS};
    vptq_status st = b->dev.ops->upload(b->dev.state, d.idx, zeros, sizeof zeros, err);
    return st ? st : b->dev.ops->vq_descend(b->dev.state, &d, err);
}

static vptq_status run_vq_descend_output(bench *b, vptq_err *err)
{
    static const uint32_t zeros[INDICES];
    const vptq_descend_output_args d = {.cols = COLS,
                                        .rows = ROWS,
                                        .v = V,
                                        .k = K,
                                        .centroids = b->x,
                                        .output = b->x + 2,
                                        .g = b->x,
                                        .h = b->x + 20001,
                                        .idx = (void *)(b->y + 3 * MATRIX),
                                        .q = b->y + MATRIX,
                                        .delta = b->y + 2 * MATRIX,
                                        .ldg = ROWS,
                                        .ldh = COLS,
                                        .ldi = VECTOR_ROWS,
                                        .ldq = ROWS,
                                        .ldd = ROWS};
    vptq_status st = b->dev.ops->upload(b->dev.state, d.idx, zeros, sizeof zeros, err);
    return st ? st : b->dev.ops->vq_descend_output(b->dev.state, &d, err);
}

/* Scales and zero points are any floats and bytes of x. */
static vptq_status run_uniform_pass(bench *b, vptq_err *err)
{
    const void *zero = b->x;
    void *codes = b->y + 2 * MATRIX;
    const vptq_uniform_pass_args a = {.cols = COLS,
                                      .rows = ROWS,
                                      .z = b->y,
                                      .u = b->x + 20000,
                                      .bits = 8,
                                      .storage = VPTQ_F16,
                                      .scale = b->x + 30000,
                                      .zero = zero,
                                      .codes = codes,
                                      .err = b->y + MATRIX,
                                      .ldz = ROWS,
                                      .ldu = COLS,
                                      .ldc = ROWS,
                                      .lde = ROWS};
    return b->dev.ops->uniform_pass(b->dev.state, &a, err);
}

/* q and codes are any bytes of x. */
static vptq_status run_multiply_bytes(bench *b, vptq_err *err)
{
    const void *q = b->x, *codes = b->x + 5000;
    const vptq_multiply_bytes_args a = {.rows = 100,
                                        .out = 90,
                                        .in = 170,
                                        .q = q,
                                        .q_scale = b->x,
                                        .codes = codes,
                                        .scale = b->x + 200,
                                        .y = b->y,
                                        .ldy = 90};
    return b->dev.ops->multiply_bytes(b->dev.state, &a, err);
}

/* More rows than a panel has, with a window and earlier keys. */
static vptq_attention_args attention_of(const bench *b)
{
    return (vptq_attention_args){.n = 100,
                                 .pos0 = 30,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .window = 90,
                                 .scale = 0.5F,
                                 .q = b->x,
                                 .keys = b->x + 5000,
                                 .values = b->x + 9000,
                                 .out = b->y,
                                 .ldq = 32,
                                 .ldk = 16,
                                 .ldv = 16,
                                 .ldo = 32};
}

static vptq_status run_attention(bench *b, vptq_err *err)
{
    const vptq_attention_args a = attention_of(b);
    return b->dev.ops->attention(b->dev.state, &a, err);
}

static vptq_status run_attention_mass(bench *b, vptq_err *err)
{
    const vptq_attention_args a = attention_of(b);
    void *mass = b->y;
    return b->dev.ops->attention_mass(b->dev.state, &a, mass, err);
}

/* Two sequences, one with more rows than a panel; x serves as the pages. */
static vptq_status run_attention_paged(bench *b, vptq_err *err)
{
    static const uint32_t numbers[] = {0, 100, 101, 0, 90, 0, 1, 2, 3, 4, 5, 6, 7};
    uint32_t *at = (uint32_t *)(void *)(b->y + 8192);
    const vptq_kv_rows kv = {.rows = 101,
                             .sequences = 2,
                             .max_rows = 100,
                             .max_tokens = 100,
                             .starts = at,
                             .positions = at + 3,
                             .table = at + 5,
                             .ld_table = 4};
    const vptq_kv_pool pool = {VPTQ_F32, 2, 8, b->x, b->x + 4096};
    const vptq_paged_args a = {.rows = &kv,
                               .pool = &pool,
                               .heads = 4,
                               .window = 90,
                               .scale = 0.5F,
                               .q = b->x + 8192,
                               .out = b->y,
                               .ldq = 32,
                               .ldo = 32};
    vptq_status st = b->dev.ops->upload(b->dev.state, at, numbers, sizeof numbers, err);
    return st ? st : b->dev.ops->attention_paged(b->dev.state, &a, err);
}

/* The shape of attention_of, without earlier keys. */
static vptq_status run_attention_grad(bench *b, vptq_err *err)
{
    const vptq_attention_grad_args a = {.n = 100,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 8,
                                        .window = 90,
                                        .scale = 0.5F,
                                        .q = b->x,
                                        .out = b->x + 4000,
                                        .dout = b->x + 8000,
                                        .keys = b->x + 12000,
                                        .values = b->x + 14000,
                                        .lse = b->x + 16000,
                                        .dq = b->y,
                                        .dkeys = b->y + 4000,
                                        .dvalues = b->y + 6000};
    return b->dev.ops->attention_grad(b->dev.state, &a, err);
}

static const struct {
    const char *name;
    vptq_status (*run)(bench *b, vptq_err *err);
    unsigned long prepares; /* launches before the first that may be cancelled, if the op has
                             * many launches whatever its size; 0: it is divided by its work */
} all[] = {
    {.name = "gemm", .run = run_gemm},
    {.name = "gemm of columns", .run = run_gemm_of_columns},
    {.name = "gemv", .run = run_gemv},
    {.name = "uniform_gemv", .run = run_uniform_gemv},
    {.name = "solve_upper", .run = run_solve_upper},
    {.name = "syrk_add", .run = run_syrk_add},
    {.name = "channel_range", .run = run_channel_range},
    {.name = "quad_trace", .run = run_quad_trace},
    {.name = "assign", .run = run_assign},
    {.name = "plus_plus", .run = run_plus_plus, .prepares = 3},
    {.name = "search", .run = run_search},
    {.name = "vq_pass", .run = run_vq_pass},
    {.name = "vq_descend", .run = run_vq_descend},
    {.name = "vq_descend_output", .run = run_vq_descend_output},
    {.name = "uniform_pass", .run = run_uniform_pass},
    {.name = "multiply_bytes", .run = run_multiply_bytes},
    {.name = "attention", .run = run_attention},
    {.name = "attention_mass", .run = run_attention_mass},
    {.name = "attention_paged", .run = run_attention_paged},
    {.name = "attention_grad", .run = run_attention_grad},
};
enum { COUNT = sizeof all / sizeof *all };

/* ---- tests ---- */

/* Returns the number of launches of the op. */
static unsigned long run(bench *b, size_t op, vptq_status *st, vptq_err *err)
{
    const unsigned long before = cuda_emu_count().launches;
    *st = all[op].run(b, err);
    return cuda_emu_count().launches - before;
}

/* Runs the op, copies y to `got` and returns the number of launches. */
static unsigned long run_whole(bench *b, size_t op, float *got)
{
    vptq_err err;
    vptq_status st;
    fill(b, b->y);
    const unsigned long launches = run(b, op, &st, &err);
    assert_ok(st, &err);
    assert_ok(b->dev.ops->download(b->dev.state, got, b->y, FLOATS * sizeof *got, &err), &err);
    return launches;
}

static void test_divided_ops_give_the_same_bits(void **state)
{
    (void)state;
    static float whole[FLOATS], divided[FLOATS];
    bench b;
    bench_open(&b);
    for (size_t i = 0; i < COUNT; i++) {
        if (all[i].prepares)
            continue;
        const unsigned long few = run_whole(&b, i, whole);
        cuda_emu_work(1);
        const unsigned long many = run_whole(&b, i, divided);
        cuda_emu_work(0);
        if (many < few + 2)
            fail_msg("%s: %lu launches undivided, %lu divided", all[i].name, few, many);
        assert_memory_not_equal(whole, b.host, sizeof whole);
        if (memcmp(whole, divided, sizeof whole) != 0)
            fail_msg("%s: different bits with %lu launches", all[i].name, many);
    }
    bench_close(&b);
}

static void cancel(void *arg)
{
    bench *b = arg;
    b->stop = 1;
}

/* Every divided op must fail after its first launch, or those that prepare it. A divided op
 * waits for earlier launches, so that the queue stays short and a failed kernel is found. */
static void check_stop(bool cancelled, vptq_status want, const char *text)
{
    bench b;
    vptq_err err;
    vptq_status st;
    bench_open(&b);
    cuda_emu_work(1);
    for (size_t i = 0; i < COUNT; i++) {
        fill(&b, b.y);
        if (cancelled)
            cuda_emu_on_launch(cancel, &b);
        else
            cuda_emu_break("kernel:1");
        const unsigned long launches = run(&b, i, &st, &err);
        cuda_emu_on_launch(NULL, NULL);
        cuda_emu_break(NULL);
        if (st != want || launches != (all[i].prepares ? all[i].prepares : 1))
            fail_msg("%s: %s after %lu launches", all[i].name, vptq_status_name(st), launches);
        assert_non_null(strstr(err.text, text));
        assert_true(!cancelled || !strcmp(err.text, text));
        b.stop = 0;
    }
    cuda_emu_work(0);
    bench_close(&b);
}

static void test_cancelling_between_launches(void **state)
{
    (void)state;
    check_stop(true, VPTQ_E_CANCELLED, "interrupted");
}

static void test_failed_kernels_between_launches(void **state)
{
    (void)state;
    check_stop(false, VPTQ_E_DEVICE, "work failed on the device: an illegal memory access");
}

VTEST_MAIN(cmocka_unit_test(test_divided_ops_give_the_same_bits),
           cmocka_unit_test(test_cancelling_between_launches),
           cmocka_unit_test(test_failed_kernels_between_launches))
