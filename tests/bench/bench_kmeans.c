/* Measures processor seconds of k-means on one thread: seeding, then 25 iterations, on as many
 * vectors as a matrix of 1536 x 576 has. Vectors are normal with correlated elements and
 * varying lengths, weights are log-normal by column, as in a real matrix. VPTQ_SIMD=avx2
 * measures narrower kernels; --json prints one object per row. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kmeans/kmeans.h"
#include "kmeans/parts.h"
#include "lib/base/cpu.h"
#include "tests/bench/common.h"
#include "tests/support/vnormal.h"

enum { ROWS = 1536, COLUMNS = 576 };

/* One weight per column. */
static void weigh(float *w, size_t n, uint32_t v)
{
    const vptq_rng rng = vptq_rng_make(1, v, 0, VPTQ_RNG_TEST);
    for (size_t i = 0; i < n; i++)
        w[i] = (float)exp(vtest_rng_normal(&rng, (UINT64_C(3) << 32) + i / (ROWS / v)));
}

static void bench_row(vptq_device *dev, uint32_t v, uint32_t k, bool json)
{
    const size_t n = (size_t)ROWS * COLUMNS / v;
    float *x = bench_alloc(n * v, sizeof *x), *w = bench_alloc(n, sizeof *w);
    float *c = bench_alloc((size_t)k * v, sizeof *c);
    uint32_t *labels = bench_alloc(n, sizeof *labels);
    vptq_kmeans_options opt = vptq_kmeans_default(v, k);
    const vptq_kmeans_points points = {.dev = dev, .n = n, .v = v, .x = x, .w = w};
    vptq_kmeans_stats stats;
    vptq_err err;
    opt.rng = vptq_rng_make(1, 0, 0, VPTQ_RNG_SEEDING);
    opt.tolerance = 0;
    bench_vectors(x, n, v);
    weigh(w, n, v);
    double t0 = bench_seconds();
    bench_need(vptq_kmeans_seed(&points, &opt, c, &err), &err);
    double t1 = bench_seconds();
    bench_need(
        vptq_kmeans_run(dev, &opt, &(vptq_kmeans_args){n, x, w, c, labels}, &stats, &err),
        &err);
    double t2 = bench_seconds();
    const double seeding = t1 - t0, lloyd = t2 - t1 - seeding;
    if (json)
        printf("{\"v\": %u, \"k\": %u, \"n\": %zu, \"simd\": \"%s\", \"seeding_s\": %.3f, "
               "\"lloyd_s\": %.3f, \"iterations\": %d, \"first\": %.6g, \"last\": %.6g}\n",
               v, k, n, vptq_simd_name(vptq_cpu_simd()), seeding, lloyd, stats.iterations,
               stats.first, stats.last);
    else
        printf("%4u %6u %8zu %9.3f %9.3f %11d %12.6g %12.6g\n", v, k, n, seeding, lloyd,
               stats.iterations, stats.first, stats.last);
    free(x);
    free(w);
    free(c);
    free(labels);
}

int main(int argc, char **argv)
{
    static const uint32_t shapes[][2] = {{8, 4096}, {8, 256}, {4, 256}, {6, 4096}};
    vptq_ctx ctx = {.threads = 1};
    vptq_device dev;
    vptq_err err;
    const bool json = argc > 1 && !strcmp(argv[1], "--json");
    const int first = json ? 2 : 1;
    if (argc != first && argc != first + 2)
        bench_give_up("usage: bench_kmeans [--json] [V K]");
    bench_need(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    if (!json)
        printf("one core, %s\n   v      k  vectors   seeding     Lloyd  iterations        first"
               "         last\n",
               vptq_simd_name(vptq_cpu_simd()));
    if (argc > first)
        bench_row(&dev, (uint32_t)atoi(argv[first]), (uint32_t)atoi(argv[first + 1]), json);
    for (size_t i = 0; argc == first && i < sizeof shapes / sizeof *shapes; i++)
        bench_row(&dev, shapes[i][0], shapes[i][1], json);
    vptq_device_close(&dev);
    return 0;
}
