/* Measures nearest centroids per second on one core, against an OpenBLAS product followed by a
 * scan, and as a fraction of the peak of fused multiply-adds in registers. The three alternate,
 * best of many short runs in processor time, so that other load affects all alike.
 * VPTQ_SIMD=avx2 measures the narrower kernel; --json prints one object per row. */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/blas.h"
#include "lib/base/cpu.h"
#include "lib/base/rng.h"
#include "tests/bench/common.h"
#include "tests/support/vnormal.h"

enum { ROUNDS = 60, VECTORS = 4096, PEER_VECTORS = 512, BLOCK = 64, PEAK_STEPS = 100000 };

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

typedef struct bench {
    vptq_ctx ctx;
    vptq_device dev;
    vptq_blas blas;
    sgemm_fn sgemm;
    vptq_simd simd;
    bool json;
} bench;

typedef struct problem {
    uint32_t v, k;
    float *x, *c, *half_norm, *scores; /* scores [BLOCK, k] */
    uint32_t *ours, *theirs;
} problem;

/* ---- peak of the processor ---- */

/* Twelve independent chains of x = x * a + b: enough to cover latency times two units.  The
 * empty statement keeps the compiler from moving anything out of the loop. */
#define PEAK_BODY(type, set1, fma)                                                             \
    type x[12];                                                                                \
    const type a = set1(0.999F), b = set1(0.001F);                                             \
    for (int i = 0; i < 12; i++)                                                               \
        x[i] = set1((float)i);                                                                 \
    for (int step = 0; step < PEAK_STEPS; step++) {                                            \
        for (int i = 0; i < 12; i++)                                                           \
            x[i] = fma(x[i], a, b);                                                            \
        __asm__ volatile("");                                                                  \
    }                                                                                          \
    float sum = 0, one[sizeof(type) / sizeof(float)];                                          \
    for (int i = 0; i < 12; i++) {                                                             \
        memcpy(one, &x[i], sizeof one);                                                        \
        sum += one[0];                                                                         \
    }                                                                                          \
    return sum

typedef float quad __attribute__((vector_size(16)));

static float peak_none(void)
{
#define QUAD_SET1(x)      (quad){x, x, x, x}
#define QUAD_FMA(x, a, b) (x) * (a) + (b)
    PEAK_BODY(quad, QUAD_SET1, QUAD_FMA);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2,fma"))) static float peak_avx2(void)
{
    PEAK_BODY(__m256, _mm256_set1_ps, _mm256_fmadd_ps);
}

__attribute__((target("avx512f"))) static float peak_avx512(void)
{
    PEAK_BODY(__m512, _mm512_set1_ps, _mm512_fmadd_ps);
}
#else
#define peak_avx2   peak_none
#define peak_avx512 peak_none
#endif

/* Seconds per multiply-add of one lane. */
static double peak_seconds(vptq_simd simd)
{
    float (*const run[])(void) = {peak_none, peak_avx2, peak_avx512};
    const double lanes[] = {4, 8, 16};
    volatile float keep;
    double t = bench_seconds();
    keep = run[simd]();
    t = bench_seconds() - t;
    (void)keep;
    return t / (12.0 * PEAK_STEPS * lanes[simd]);
}

/* ---- OpenBLAS and a scan ---- */

/* Best score per lane with its index first, then over the lanes. */
#define SCAN_BODY(width)                                                                       \
    typedef float floats __attribute__((vector_size((width)*4)));                              \
    typedef int32_t ints __attribute__((vector_size((width)*4)));                              \
    floats best = {0}, dots, half_norm;                                                        \
    ints where = {0}, here = {0};                                                              \
    best -= INFINITY;                                                                          \
    for (int32_t l = 0; l < (width); l++)                                                      \
        here[l] = l;                                                                           \
    for (size_t j = 0; j < k; j += (width)) {                                                  \
        memcpy(&dots, row + j, sizeof dots);                                                   \
        memcpy(&half_norm, norms + j, sizeof half_norm);                                       \
        const floats score = dots - half_norm;                                                 \
        const ints better = score > best;                                                      \
        best = (floats)(((ints)score & better) | ((ints)best & ~better));                      \
        where = (here & better) | (where & ~better);                                           \
        here += (width);                                                                       \
    }                                                                                          \
    int top = 0;                                                                               \
    for (int l = 1; l < (width); l++) {                                                        \
        if (best[l] > best[top] || (best[l] >= best[top] && where[l] < where[top]))            \
            top = l;                                                                           \
    }                                                                                          \
    return (uint32_t)where[top]

static uint32_t scan_none(const float *row, const float *norms, size_t k)
{
    SCAN_BODY(4);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static uint32_t scan_avx2(const float *row,
                                                              const float *norms, size_t k)
{
    SCAN_BODY(8);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) static uint32_t
scan_avx512(const float *row, const float *norms, size_t k)
{
    SCAN_BODY(16);
}
#else
#define scan_avx2   scan_none
#define scan_avx512 scan_none
#endif

/* In blocks of 64 vectors, whose scores stay in L2.  Fewer vectors than ours, so that a run
 * takes about as long: a long one is never free of disturbance. */
static void product_and_scan(const bench *b, const problem *p, bool scan)
{
    uint32_t (*const run[])(const float *, const float *, size_t) = {scan_none, scan_avx2,
                                                                     scan_avx512};
    const int v = (int)p->v, k = (int)p->k;
    for (size_t i = 0; i < PEER_VECTORS; i += BLOCK) {
        b->sgemm(VPTQ_BLAS_ROW_MAJOR, VPTQ_BLAS_NO_TRANS, VPTQ_BLAS_TRANS, BLOCK, k, v, 1,
                 p->x + i * p->v, v, p->c, v, 0, p->scores, k);
        for (size_t r = 0; scan && r < BLOCK; r++)
            p->theirs[i + r] = run[b->simd](p->scores + r * p->k, p->half_norm, p->k);
    }
}

/* ---- rows ---- */

static problem problem_make(uint32_t v, uint32_t k)
{
    problem p = {.v = v, .k = k};
    vptq_rng rng = vptq_rng_make(1, v, k, VPTQ_RNG_TEST);
    p.x = bench_alloc((size_t)VECTORS * v, sizeof *p.x);
    p.c = bench_alloc((size_t)k * v, sizeof *p.c);
    p.half_norm = bench_alloc(k, sizeof *p.half_norm);
    p.scores = bench_alloc((size_t)BLOCK * k, sizeof *p.scores);
    p.ours = bench_alloc(VECTORS, sizeof *p.ours);
    p.theirs = bench_alloc(PEER_VECTORS, sizeof *p.theirs);
    for (size_t i = 0; i < (size_t)VECTORS * v; i++)
        p.x[i] = (float)vtest_rng_normal(&rng, i);
    for (size_t j = 0; j < k; j++) {
        p.half_norm[j] = 0;
        for (size_t e = 0; e < v; e++) {
            float value = (float)vtest_rng_normal(&rng, (UINT64_C(1) << 32) + j * v + e);
            p.c[j * v + e] = value;
            p.half_norm[j] += value * value / 2;
        }
    }
    return p;
}

static void problem_free(problem *p)
{
    free(p->x);
    free(p->c);
    free(p->half_norm);
    free(p->scores);
    free(p->ours);
    free(p->theirs);
}

static double least(double a, double b)
{
    return b < a ? b : a;
}

static void bench_row(const bench *b, uint32_t v, uint32_t k)
{
    problem p = problem_make(v, k);
    double ours = INFINITY, theirs = INFINITY, product = INFINITY, peak = INFINITY;
    vptq_err err;
    for (int r = 0; r < ROUNDS; r++) {
        double t = bench_seconds();
        bench_need(
            b->dev.ops->assign(
                b->dev.state,
                &(vptq_assign_args){
                    .n = VECTORS, .v = v, .k = k, .x = p.x, .centroids = p.c, .idx = p.ours},
                &err),
            &err);
        ours = least(ours, bench_seconds() - t);
        t = bench_seconds();
        product_and_scan(b, &p, true);
        theirs = least(theirs, bench_seconds() - t);
        t = bench_seconds();
        product_and_scan(b, &p, false);
        product = least(product, bench_seconds() - t);
        peak = least(peak, peak_seconds(b->simd));
    }
    size_t differ = 0;
    for (size_t i = 0; i < PEER_VECTORS; i++)
        differ += p.ours[i] != p.theirs[i];
    const double pairs = (double)VECTORS * k, peer_pairs = (double)PEER_VECTORS * k;
    const double ratio = theirs / peer_pairs / (ours / pairs);
    const double fraction = pairs * v * peak / ours;
    if (b->json)
        printf("{\"v\": %u, \"k\": %u, \"simd\": \"%s\", \"gpairs_per_second\": %.3f, "
               "\"blas_scan_gpairs_per_second\": %.3f, \"blas_only_gpairs_per_second\": %.3f, "
               "\"ratio\": %.2f, \"fma_peak_gflops\": %.1f, \"peak_fraction\": %.3f, "
               "\"labels_that_differ\": %zu}\n",
               v, k, vptq_simd_name(b->simd), pairs / ours / 1e9, peer_pairs / theirs / 1e9,
               peer_pairs / product / 1e9, ratio, 2e-9 / peak, fraction, differ);
    else
        printf("%4u %6u %10.2f %12.2f %12.2f %7.2f %12.1f %9.1f %%  %zu\n", v, k,
               pairs / ours / 1e9, peer_pairs / theirs / 1e9, peer_pairs / product / 1e9, ratio,
               2e-9 / peak, 100 * fraction, differ);
    problem_free(&p);
}

int main(int argc, char **argv)
{
    static const uint32_t shapes[][2] = {{8, 4096}, {4, 256}, {6, 4096}, {12, 4096}};
    bench b = {.ctx = {.threads = 1}, .simd = vptq_cpu_simd()};
    vptq_err err;
    b.json = argc == 2 && !strcmp(argv[1], "--json");
    if (argc > 1 && !b.json)
        bench_give_up("usage: bench_assign [--json]");
    if (vptq_device_open(&b.ctx, "cpu", &b.dev, &err) ||
        vptq_blas_open(&b.blas, b.simd, 1, &err))
        bench_give_up(err.text);
    void *symbol = dlsym(b.blas.library, "cblas_sgemm");
    if (!symbol)
        bench_give_up("OpenBLAS has no cblas_sgemm");
    memcpy(&b.sgemm, &symbol, sizeof symbol);
    if (!b.json)
        printf("one core, %s, OpenBLAS %s; billions of (vector, centroid) pairs per second\n"
               "   v      k     assign  product+scan     product   ratio  peak GFLOP/s   of "
               "peak  labels that differ\n",
               vptq_simd_name(b.simd), b.blas.corename());
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_row(&b, shapes[i][0], shapes[i][1]);
    vptq_blas_close(&b.blas);
    vptq_device_close(&b.dev);
    return 0;
}
