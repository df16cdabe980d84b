/* Measures the ops of the cpu backend on the shapes of a 135 M-parameter model (hidden 576, 9
 * heads over 3 kv heads of 64, inner 1536, vocabulary 49152, 2048 tokens).  Matrix products
 * alternate with the same product by one call of OpenBLAS with as many threads, best of
 * several, so that other load affects both; their ratio is the result. */
#include <dlfcn.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/blas.h"
#include "lib/base/parallel.h"
#include "tests/bench/common.h"

enum { ROUNDS = 9, TOKENS = 2048 };

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

typedef struct bench {
    vptq_ctx ctx;
    vptq_device dev;
    vptq_blas blas;
    sgemm_fn sgemm; /* OpenBLAS's own, with all threads */
    vptq_err err;
    float *a, *b, *c;
    double *h, *sum;
} bench;

static void *filled(size_t floats)
{
    float *x = bench_alloc(floats, sizeof *x);
    for (size_t i = 0; i < floats; i++)
        x[i] = (float)(i * 7 % 23) / 23 - 0.5f;
    return x;
}

static double faster(double a, double b)
{
    return b < a ? b : a;
}

/* c [m, n] = a [m, k] b [n, k]^T */
static vptq_gemm_args product_args(const bench *b, size_t m, size_t n, size_t k)
{
    return (vptq_gemm_args){.m = m,
                            .n = n,
                            .k = k,
                            .a = b->a,
                            .b = b->b,
                            .c = b->c,
                            .lda = k,
                            .ldb = k,
                            .ldc = n,
                            .trans_b = true,
                            .alpha = 1};
}

static void bench_gemm(bench *b, size_t m, size_t n, size_t k)
{
    const vptq_gemm_args g = product_args(b, m, n, k);
    double ours = 1e9, theirs = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        double t = vptq_seconds();
        bench_need(b->dev.ops->gemm(b->dev.state, &g, &b->err), &b->err);
        ours = faster(ours, vptq_seconds() - t);
        t = vptq_seconds();
        b->sgemm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_NO_TRANS, VPTQ_BLAS_TRANS, (int)m, (int)n,
                 (int)k, 1, b->a, (int)k, b->b, (int)k, 0, b->c, (int)n);
        theirs = faster(theirs, vptq_seconds() - t);
    }
    const double flops = 2 * (double)m * (double)n * (double)k;
    printf("gemm %4zu x %5zu x %4zu  %8.3f ms %7.1f GFLOP/s  %5.2f x OpenBLAS\n", m, n, k,
           ours * 1e3, flops / ours / 1e9, theirs / ours);
}

/* Products of bytes, quantizing the m inputs included, against gemm in the same rounds, in
 * processor time of one thread. */
static void bench_bytes(bench *b, size_t m, size_t n, size_t k)
{
    const vptq_gemm_args g = product_args(b, m, n, k);
    int8_t *q = bench_alloc(m, VPTQ_BYTES_ROW(k));
    float *scale = bench_alloc(m, sizeof *scale);
    const vptq_quantize_rows_args x = {
        .rows = m, .cols = k, .x = b->a, .ldx = k, .q = q, .scale = scale};
    const vptq_multiply_bytes_args p = {.rows = m,
                                        .out = n,
                                        .in = k,
                                        .q = q,
                                        .q_scale = scale,
                                        .codes = (const uint32_t *)(const void *)b->b,
                                        .scale = b->a,
                                        .y = b->c,
                                        .ldy = n};
    double bytes = 1e9, quantizing = 1e9, floats = 1e9;
    for (int r = 0; r < ROUNDS * 3; r++) {
        double t = bench_seconds();
        bench_need(b->dev.ops->gemm(b->dev.state, &g, &b->err), &b->err);
        floats = faster(floats, bench_seconds() - t);
        t = bench_seconds();
        bench_need(b->dev.ops->quantize_rows(b->dev.state, &x, &b->err), &b->err);
        const double first = bench_seconds() - t;
        bench_need(b->dev.ops->multiply_bytes(b->dev.state, &p, &b->err), &b->err);
        quantizing = faster(quantizing, first);
        bytes = faster(bytes, bench_seconds() - t);
    }
    printf("bytes %4zu x %5zu x %4zu  %8.3f ms %7.1f GOP/s  quantizing %.3f ms  %5.2f x gemm\n",
           m, n, k, bytes * 1e3, 2 * (double)m * (double)n * (double)k / bytes / 1e9,
           quantizing * 1e3, floats / bytes);
    free(q);
    free(scale);
}

static void bench_attention(bench *b, size_t n, size_t pos0)
{
    enum { HEADS = 9, KV = 3, DIM = 64 };
    const vptq_attention_args a = {.n = n,
                                   .pos0 = pos0,
                                   .heads = HEADS,
                                   .kv_heads = KV,
                                   .head_dim = DIM,
                                   .scale = 0.125f,
                                   .q = b->a,
                                   .keys = b->b,
                                   .values = b->b + (n + pos0) * KV * DIM,
                                   .out = b->c,
                                   .ldq = HEADS * DIM,
                                   .ldk = KV * DIM,
                                   .ldv = KV * DIM,
                                   .ldo = HEADS * DIM};
    double best = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        const double t = vptq_seconds();
        bench_need(b->dev.ops->attention(b->dev.state, &a, &b->err), &b->err);
        best = faster(best, vptq_seconds() - t);
    }
    const double seen = (double)n * ((double)pos0 + ((double)n + 1) / 2);
    printf("attention %4zu after %4zu  %8.3f ms %7.1f GFLOP/s\n", n, pos0, best * 1e3,
           seen * HEADS * DIM * 4 / best / 1e9);
}

/* Ops whose cost is elements, not products. */
static void bench_rows(bench *b)
{
    enum { HIDDEN = 576, INNER = 1536, TILE = 512, HALF = 32 };
    static vptq_nll_state state[TOKENS];
    static int32_t targets[TOKENS];
    const vptq_backend *ops = b->dev.ops;
    double norm = 1e9, swiglu = 1e9, rope = 1e9, nll = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        double t = vptq_seconds();
        bench_need(ops->rmsnorm(b->dev.state,
                                &(vptq_rmsnorm_args){.n = TOKENS,
                                                     .dim = HIDDEN,
                                                     .x = b->a,
                                                     .ldx = HIDDEN,
                                                     .weight = b->b,
                                                     .eps = 1e-5f,
                                                     .y = b->c,
                                                     .ldy = HIDDEN},
                                &b->err),
                   &b->err);
        norm = faster(norm, vptq_seconds() - t);
        t = vptq_seconds();
        bench_need(
            ops->swiglu(b->dev.state,
                        &(vptq_swiglu_args){
                            .n = TOKENS, .dim = INNER, .gate = b->a, .up = b->b, .y = b->c},
                        &b->err),
            &b->err);
        swiglu = faster(swiglu, vptq_seconds() - t);
        t = vptq_seconds();
        bench_need(ops->rope(b->dev.state,
                             &(vptq_rope_args){.n = TOKENS,
                                               .heads = HIDDEN / 2 / HALF,
                                               .head_dim = (size_t)2 * HALF,
                                               .x = b->c,
                                               .ldx = HIDDEN,
                                               .cos_table = b->a,
                                               .sin_table = b->b},
                             &b->err),
                   &b->err);
        rope = faster(rope, vptq_seconds() - t);
        t = vptq_seconds();
        bench_need(ops->nll(b->dev.state,
                            &(vptq_nll_args){.n = TOKENS,
                                             .width = TILE,
                                             .logits = b->a,
                                             .ld = TILE,
                                             .targets = targets,
                                             .start = true,
                                             .state = state},
                            &b->err),
                   &b->err);
        nll = faster(nll, vptq_seconds() - t);
    }
    printf("rmsnorm %d x %d   %8.3f ms %7.2f G elements/s\n", TOKENS, HIDDEN, norm * 1e3,
           (double)TOKENS * HIDDEN / norm / 1e9);
    printf("swiglu  %d x %d  %8.3f ms %7.2f G elements/s\n", TOKENS, INNER, swiglu * 1e3,
           (double)TOKENS * INNER / swiglu / 1e9);
    printf("rope    %d x %d   %8.3f ms %7.2f G elements/s\n", TOKENS, HIDDEN, rope * 1e3,
           (double)TOKENS * HIDDEN / rope / 1e9);
    printf("nll     %d x %d   %8.3f ms %7.2f G elements/s\n", TOKENS, TILE, nll * 1e3,
           (double)TOKENS * TILE / nll / 1e9);
}

static void bench_syrk(bench *b, size_t n)
{
    double best = 1e9;
    memset(b->h, 0, n * n * sizeof *b->h);
    for (int r = 0; r < 3; r++) {
        const double t = vptq_seconds();
        bench_need(
            b->dev.ops->syrk_add(
                b->dev.state,
                &(vptq_syrk_args){
                    .tokens = TOKENS, .n = n, .x = b->a, .ldx = n, .h = b->h, .sum = b->sum},
                &b->err),
            &b->err);
        best = faster(best, vptq_seconds() - t);
    }
    printf("syrk_add %d x %zu   %8.2f ms %7.1f GFLOP/s (of the lower half)\n", TOKENS, n,
           best * 1e3, (double)TOKENS * (double)n * (double)n / best / 1e9);
}

int main(void)
{
    static const size_t shapes[][3] = {{2048, 1536, 576}, {2048, 576, 1536}, {2048, 576, 576},
                                       {2048, 192, 576},  {2048, 512, 576},  {1, 1536, 576},
                                       {1, 49152, 576},   {4, 1536, 576}};
    enum { LARGEST = 49152 * 576, SIDE = 1536 };
    bench b = {.ctx = {.threads = vptq_cpu_count()}};
    char text[256];
    bench_need(vptq_device_open(&b.ctx, "cpu", &b.dev, &b.err), &b.err);
    bench_need(vptq_blas_open(&b.blas, vptq_cpu_simd(), 1, &b.err), &b.err);
    void *symbol = dlsym(b.blas.library, "cblas_sgemm");
    if (!symbol)
        bench_give_up("OpenBLAS has no cblas_sgemm");
    memcpy(&b.sgemm, &symbol, sizeof symbol);
    omp_set_num_threads(b.ctx.threads); /* which its OpenMP variant follows */
    b.dev.ops->describe(b.dev.state, text, sizeof text);
    printf("%s\n", text);
    b.a = filled(LARGEST);
    b.b = filled(LARGEST);
    b.c = filled(LARGEST);
    b.h = bench_alloc((size_t)SIDE * SIDE, sizeof *b.h);
    b.sum = bench_alloc(SIDE, sizeof *b.sum);
    memset(b.sum, 0, SIDE * sizeof *b.sum);

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_gemm(&b, shapes[i][0], shapes[i][1], shapes[i][2]);
    for (size_t m = 1; m <= TOKENS; m *= m == 1 ? 4 : 8) {
        bench_bytes(&b, m, 1536, 576);
        bench_bytes(&b, m, 576, 1536);
    }
    bench_attention(&b, TOKENS, 0);
    bench_attention(&b, 1, TOKENS - 1);
    bench_rows(&b);
    bench_syrk(&b, 576);
    bench_syrk(&b, SIDE);

    free(b.a);
    free(b.b);
    free(b.c);
    free(b.h);
    free(b.sum);
    vptq_blas_close(&b.blas);
    vptq_device_close(&b.dev);
    return 0;
}
