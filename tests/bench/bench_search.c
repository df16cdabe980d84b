/* Measures microseconds of processor time per vector of the op `search` on one thread: pairs of
 * main and residual centroids at every beam, from scratch and with choices to keep. Vectors are
 * normal with correlated elements and varying lengths; the main codebook is trained on them,
 * the residual one on the remainder.  "keep" and "local" vectors have moved by a third of their
 * error since their choice was made by the same beam.  `ratio` is the time over that of the
 * greedy search (beam 1, from nothing), `loss` the mean squared error relative to the exact
 * search of the same vectors.  VPTQ_SIMD=avx2 measures narrower kernels;
 * --json prints one object per row. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kmeans/kmeans.h"
#include "lib/base/cpu.h"
#include "lib/base/rng.h"
#include "tests/bench/common.h"
#include "tests/support/vnormal.h"

enum { VECTORS = 2048, ROUNDS = 15, TRAINING = 32768 };

typedef struct problem {
    uint32_t v, k, k_res;
    float *x, *moved, *c, *r, *dist;
    uint32_t *idx, *idx_res, *old, *old_res;
} problem;

static void train(vptq_device *dev, uint32_t v, uint32_t k, const float *x, float *c,
                  uint32_t *labels)
{
    vptq_kmeans_options opt = vptq_kmeans_default(v, k);
    vptq_kmeans_stats stats;
    vptq_err err;
    opt.rng = vptq_rng_make(1, 0, 0, VPTQ_RNG_SEEDING);
    opt.seeding = VPTQ_KMEANS_RANDOM;
    opt.iterations = 10;
    bench_need(vptq_kmeans_run(dev, &opt, &(vptq_kmeans_args){TRAINING, x, NULL, c, labels},
                               &stats, &err),
               &err);
}

static problem problem_make(vptq_device *dev, uint32_t v, uint32_t k, uint32_t k_res)
{
    problem p = {.v = v, .k = k, .k_res = k_res};
    const size_t floats = (size_t)VECTORS * v;
    float *x = bench_alloc((size_t)TRAINING * v, sizeof *x);
    uint32_t *labels = bench_alloc(TRAINING, sizeof *labels);
    p.x = bench_alloc(floats, sizeof(float));
    p.moved = bench_alloc(floats, sizeof(float));
    p.c = bench_alloc((size_t)k * v, sizeof(float));
    p.r = bench_alloc((size_t)k_res * v, sizeof(float));
    p.dist = bench_alloc(VECTORS, sizeof(float));
    p.idx = bench_alloc(4 * VECTORS, sizeof(uint32_t));
    p.idx_res = p.idx + VECTORS;
    p.old = p.idx_res + VECTORS;
    p.old_res = p.old + VECTORS;
    bench_vectors(x, TRAINING, v);
    memcpy(p.x, x, floats * sizeof *x);
    train(dev, v, k, x, p.c, labels);
    for (size_t i = 0; i < (size_t)TRAINING * v; i++)
        x[i] -= p.c[labels[i / v] * v + i % v];
    if (k_res)
        train(dev, v, k_res, x, p.r, labels);
    free(x);
    free(labels);
    return p;
}

static void problem_free(problem *p)
{
    free(p->x);
    free(p->moved);
    free(p->c);
    free(p->r);
    free(p->dist);
    free(p->idx);
}

/* Microseconds per vector; *error = mean |x - c - r|^2. */
static double measure(const vptq_device *dev, const problem *p, uint32_t beam, bool local,
                      bool keep, const float *x, double *error)
{
    const vptq_codebooks codebooks = {
        p->v, p->k, p->k_res, beam, local, p->c, p->k_res ? p->r : NULL};
    vptq_search_index *index = NULL;
    vptq_err err;
    double best = INFINITY;
    bench_need(dev->ops->search_index_open(dev->state, &codebooks, &index, &err), &err);
    for (int round = 0; round < ROUNDS; round++) {
        if (keep) {
            memcpy(p->idx, p->old, VECTORS * sizeof *p->idx);
            memcpy(p->idx_res, p->old_res, VECTORS * sizeof *p->idx_res);
        }
        const vptq_search_args f = {.n = VECTORS,
                                    .index = index,
                                    .x = x,
                                    .keep = keep,
                                    .idx = p->idx,
                                    .idx_res = p->k_res ? p->idx_res : NULL,
                                    .dist = p->dist};
        double t = bench_seconds();
        bench_need(dev->ops->search(dev->state, &f, &err), &err);
        t = bench_seconds() - t;
        best = t < best ? t : best;
    }
    dev->ops->search_index_close(dev->state, index);
    *error = 0;
    for (size_t i = 0; i < VECTORS; i++)
        *error += (double)p->dist[i] / VECTORS;
    return 1e6 * best / VECTORS;
}

static void report(const problem *p, const char *how, uint32_t beam, double us, double greedy,
                   double loss, bool json)
{
    if (json)
        printf("{\"v\": %u, \"k\": %u, \"k_res\": %u, \"search\": \"%s\", \"beam\": %u, "
               "\"simd\": \"%s\", \"time_us\": %.3f, \"ratio\": %.2f, \"loss\": %.4f}\n",
               p->v, p->k, p->k_res, how, beam, vptq_simd_name(vptq_cpu_simd()), us,
               us / greedy, loss);
    else
        printf("%4u %6u %6u  %-6s %6u %9.3f %8.2f %9.4f\n", p->v, p->k, p->k_res, how, beam, us,
               us / greedy, loss);
}

/* Vectors a third of their error, in a random direction, away from where a beam saw them. */
static void move(const vptq_device *dev, problem *p, uint32_t beam)
{
    const vptq_rng rng = vptq_rng_make(2, 0, 0, VPTQ_RNG_TEST);
    double error;
    measure(dev, p, beam, false, false, p->x, &error);
    memcpy(p->old, p->idx, VECTORS * sizeof *p->old);
    memcpy(p->old_res, p->idx_res, VECTORS * sizeof *p->old_res);
    for (size_t i = 0; i < (size_t)VECTORS * p->v; i++)
        p->moved[i] = p->x[i] + (float)(sqrt(error / p->v) / 3 * vtest_rng_normal(&rng, i));
}

static void bench_shape(vptq_device *dev, uint32_t v, uint32_t k, uint32_t k_res, bool json)
{
    static const uint32_t beams[] = {1, 2, 4, 8, 16, 32};
    problem p = problem_make(dev, v, k, k_res);
    double exact, error, greedy = 1;
    const double all = measure(dev, &p, k, false, false, p.x, &exact);
    for (size_t i = 0; i < (k_res ? sizeof beams / sizeof *beams : 1); i++) {
        const uint32_t beam = beams[i] < k ? beams[i] : k;
        double us = measure(dev, &p, beam, false, false, p.x, &error);
        greedy = i ? greedy : us;
        report(&p, "full", beam, us, greedy, error / exact, json);
    }
    if (k_res)
        report(&p, "full", k, all, greedy, 1, json);
    for (size_t i = k_res ? 2 : 0; i < (k_res ? 5 : 1); i++) {
        const uint32_t beam = beams[i] < k ? beams[i] : k;
        move(dev, &p, beam);
        measure(dev, &p, k, false, false, p.moved, &exact);
        for (int local = 0; local < 2; local++) {
            double us = measure(dev, &p, beam, local, true, p.moved, &error);
            report(&p, local ? "local" : "keep", beam, us, greedy, error / exact, json);
        }
    }
    problem_free(&p);
}

int main(int argc, char **argv)
{
    static const uint32_t shapes[][3] = {{8, 256, 256}, {8, 4096, 256}, {4, 256, 256},
                                         {6, 4096, 0},  {4, 256, 0},    {12, 4096, 4096}};
    vptq_ctx ctx = {.threads = 1};
    vptq_device dev;
    vptq_err err;
    const bool json = argc > 1 && !strcmp(argv[1], "--json");
    const int first = json ? 2 : 1;
    if (argc != first && argc != first + 3)
        bench_give_up("usage: bench_search [--json] [V K K_RES]");
    bench_need(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    if (!json)
        printf("one core, %s; loss relative to the exact search\n"
               "   v      k  k_res  search   beam us/vector    ratio      loss\n",
               vptq_simd_name(vptq_cpu_simd()));
    if (argc > first)
        bench_shape(&dev, (uint32_t)atoi(argv[first]), (uint32_t)atoi(argv[first + 1]),
                    (uint32_t)atoi(argv[first + 2]), json);
    for (size_t i = 0; argc == first && i < sizeof shapes / sizeof *shapes; i++)
        bench_shape(&dev, shapes[i][0], shapes[i][1], shapes[i][2], json);
    vptq_device_close(&dev);
    return 0;
}
