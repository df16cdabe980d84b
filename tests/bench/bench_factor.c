/* Measures the ops potrf, trtri and quad_trace of the cpu backend against OpenBLAS: dpotrf,
 * dtrtri, and dsymm with a dot product, with as many threads.  Both sides alternate on copies
 * of the same matrix; the ratio is the median over the rounds of OpenBLAS's time by ours, so
 * that 2.00 is twice as fast.  VPTQ_SIMD=avx2 OPENBLAS_CORETYPE=Haswell measures the narrower
 * kernels of both. */
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/blas.h"
#include "lib/base/parallel.h"
#include "tests/bench/common.h"

enum { MAX_ROUNDS = 41, ROWS = 576 /* of E */ };

typedef struct openblas {
    /* Column-major, where the lower triangle of a row-major matrix is "U". */
    void (*dpotrf)(const char *uplo, const int *n, double *a, const int *lda, int *info);
    void (*dtrtri)(const char *uplo, const char *diag, const int *n, double *a, const int *lda,
                   int *info);
    void (*dsymm)(const char *side, const char *uplo, const int *m, const int *n,
                  const double *alpha, const double *a, const int *lda, const double *b,
                  const int *ldb, const double *beta, double *c, const int *ldc);
} openblas;

typedef struct bench {
    vptq_ctx ctx;
    vptq_device dev;
    openblas blas;
    vptq_err err;
    size_t n;
    double *start, *a; /* [n, n]: the input of an op, and its result */
    float *e;          /* [ROWS, n] */
    double *wide, *product;
    double trace;
} bench;

typedef void (*bench_fn)(bench *b);

static void our_potrf(bench *b)
{
    bench_need(b->dev.ops->potrf(b->dev.state, b->n, b->a, b->n, NULL, &b->err), &b->err);
}

static void their_potrf(bench *b)
{
    const int n = (int)b->n;
    int info = 0;
    b->blas.dpotrf("U", &n, b->a, &n, &info);
    if (info)
        bench_give_up("dpotrf fails");
}

static void our_trtri(bench *b)
{
    bench_need(b->dev.ops->trtri(b->dev.state, b->n, b->a, b->n, &b->err), &b->err);
}

static void their_trtri(bench *b)
{
    const int n = (int)b->n;
    int info = 0;
    b->blas.dtrtri("U", "N", &n, b->a, &n, &info);
    if (info)
        bench_give_up("dtrtri fails");
}

static void our_trace(bench *b)
{
    const vptq_quad_trace_args q = {.m = ROWS,
                                    .n = b->n,
                                    .e = b->e,
                                    .lde = b->n,
                                    .h = b->a,
                                    .ldh = b->n,
                                    .trace = &b->trace};
    bench_need(b->dev.ops->quad_trace(b->dev.state, &q, &b->err), &b->err);
}

static void their_trace(bench *b)
{
    const int n = (int)b->n, m = ROWS;
    const double one = 1, zero = 0;
    for (size_t i = 0; i < ROWS * b->n; i++)
        b->wide[i] = (double)b->e[i];
    b->blas.dsymm("L", "U", &n, &m, &one, b->a, &n, b->wide, &n, &zero, b->product, &n);
    b->trace = 0;
    for (size_t i = 0; i < ROWS * b->n; i++)
        b->trace += b->product[i] * b->wide[i];
}

/* Processor time of one thread, which other processes disturb less, or wall time of several. */
static double now(const bench *b)
{
    return b->ctx.threads == 1 ? bench_seconds() : vptq_seconds();
}

static double seconds_of(bench *b, bench_fn fn)
{
    memcpy(b->a, b->start, b->n * b->n * sizeof *b->a);
    const double t = now(b);
    fn(b);
    return now(b) - t;
}

static int ascending(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, ascending);
    return x[n / 2];
}

static void compare(bench *b, const char *name, double flops, bench_fn ours, bench_fn theirs)
{
    double us[MAX_ROUNDS], them[MAX_ROUNDS], ratio[MAX_ROUNDS];
    const size_t rounds = b->n > 2000 ? 5 : b->n > 1000 ? 15 : MAX_ROUNDS;
    seconds_of(b, theirs); /* maps its buffers */
    for (size_t r = 0; r < rounds; r++) {
        us[r] = seconds_of(b, ours);
        them[r] = seconds_of(b, theirs);
        ratio[r] = them[r] / us[r];
    }
    const double middle = median(ratio, rounds); /* sorts, as the next two do */
    const double time = (median(us, rounds), us[0]), other = (median(them, rounds), them[0]);
    printf("%-10s %5zu, %d thread%s %9.2f ms %7.1f GFLOP/s %7.2f x OpenBLAS (best %.2f)\n",
           name, b->n, b->ctx.threads, b->ctx.threads == 1 ? " " : "s", time * 1e3,
           flops / time / 1e9, middle, other / time);
    fflush(stdout);
}

static void bench_side(bench *b, size_t n)
{
    const double cube = (double)n * (double)n * (double)n;
    b->n = n;
    b->start = bench_alloc(n * n, sizeof *b->start);
    b->a = bench_alloc(n * n, sizeof *b->a);
    b->e = bench_alloc(ROWS * n, sizeof *b->e);
    b->wide = bench_alloc(ROWS * n, sizeof *b->wide);
    b->product = bench_alloc(ROWS * n, sizeof *b->product);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            b->start[i * n + j] = i == j ? 40 : (double)((i + j) * 7 % 23) / 23 - 0.5;
    for (size_t i = 0; i < n; i++) /* as much as the rest of its row, and well conditioned */
        b->start[i * n + i] += (double)n / 2;
    for (size_t i = 0; i < ROWS * n; i++)
        b->e[i] = (float)(i * 5 % 19) / 19 - 0.5f;
    compare(b, "potrf", cube / 3, our_potrf, their_potrf);
    compare(b, "trtri", cube / 3, our_trtri, their_trtri);
    compare(b, "quad_trace", 2.0 * ROWS * (double)n * (double)n, our_trace, their_trace);
    free(b->start);
    free(b->a);
    free(b->e);
    free(b->wide);
    free(b->product);
}

static void find(const vptq_blas *blas, const char *name, void *function, size_t size)
{
    void *symbol = dlsym(blas->library, name);
    if (!symbol)
        bench_give_up("OpenBLAS has no LAPACK");
    memcpy(function, &symbol, size);
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"576", "1536", "4096"};
    const char *const *sides = argc > 1 ? (const char *const *)argv + 1 : usual;
    const int count = argc > 1 ? argc - 1 : 3;
    bench b = {.ctx = {.threads = 1}};
    vptq_blas blas;
    char text[256];
    bench_need(vptq_blas_open(&blas, vptq_cpu_simd(), vptq_cpu_count(), &b.err), &b.err);
    find(&blas, "dpotrf_", &b.blas.dpotrf, sizeof b.blas.dpotrf);
    find(&blas, "dtrtri_", &b.blas.dtrtri, sizeof b.blas.dtrtri);
    find(&blas, "dsymm_", &b.blas.dsymm, sizeof b.blas.dsymm);
    for (; b.ctx.threads <= vptq_cpu_count(); b.ctx.threads++) {
        bench_need(vptq_device_open(&b.ctx, "cpu", &b.dev, &b.err), &b.err);
        omp_set_num_threads(b.ctx.threads); /* which OpenBLAS's OpenMP variant follows */
        b.dev.ops->describe(b.dev.state, text, sizeof text);
        printf("%s; OpenBLAS %s\n", text, blas.corename());
        for (int i = 0; i < count; i++)
            bench_side(&b, strtoul(sides[i], NULL, 10));
        vptq_device_close(&b.dev);
    }
    vptq_blas_close(&blas);
    return 0;
}
