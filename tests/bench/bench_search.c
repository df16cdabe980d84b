/* Microseconds of processor time per vector of the row `find` on one thread: pairs of main and
 * residual centroids at every beam, from nothing and with choices to keep.  Vectors are normal;
 * the main book is drawn from them, the residual one from what it leaves, and "keep" vectors
 * have moved by a third of their error since their choice was made.  `loss` is the mean squared
 * error relative to the exact search of the row above. VPTQ_SIMD=avx2 measures narrower
 * kernels; --json prints one object per row. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"
#include "lib/base/rng.h"

enum { VECTORS = 2048, ROUNDS = 15 };

static _Noreturn void give_up(const char *why)
{
    fprintf(stderr, "bench_search: %s\n", why);
    exit(1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *need(size_t count, size_t size)
{
    void *p = aligned_alloc(64, (count * size + 63) / 64 * 64);
    if (!p)
        give_up("out of memory");
    return p;
}

typedef struct problem {
    uint32_t v, k, k_res;
    float *x, *c, *r, *dist;
    uint32_t *idx, *idx_res, *old, *old_res;
} problem;

static void fill(float *x, size_t n, float scale, uint64_t seed)
{
    const vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_TEST);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * (float)vptq_rng_normal(&rng, i);
}

static problem problem_make(uint32_t v, uint32_t k, uint32_t k_res)
{
    problem p = {.v = v, .k = k, .k_res = k_res};
    /* a book of k centroids in v dimensions leaves about this much of a normal vector */
    const float left = powf((float)k, -1 / (float)v);
    p.x = need((size_t)VECTORS * v, sizeof(float));
    p.c = need((size_t)k * v, sizeof(float));
    p.r = need((size_t)k_res * v, sizeof(float));
    p.dist = need(VECTORS, sizeof(float));
    p.idx = need(4 * VECTORS, sizeof(uint32_t));
    p.idx_res = p.idx + VECTORS;
    p.old = p.idx_res + VECTORS;
    p.old_res = p.old + VECTORS;
    fill(p.x, (size_t)VECTORS * v, 1, 1);
    fill(p.c, (size_t)k * v, sqrtf(1 - left * left), 2);
    fill(p.r, (size_t)k_res * v, left, 3);
    return p;
}

static void problem_free(problem *p)
{
    free(p->x);
    free(p->c);
    free(p->r);
    free(p->dist);
    free(p->idx);
}

/* Microseconds per vector; *error = mean |x - c - r|^2. */
static double measure(const vptq_device *dev, const problem *p, uint32_t beam, bool local,
                      bool keep, const float *x, double *error)
{
    const vptq_books books = {p->v, p->k, p->k_res, beam, local, p->c, p->k_res ? p->r : NULL};
    vptq_finder *finder = NULL;
    vptq_err err;
    double best = INFINITY;
    if (dev->ops->finder_open(dev->state, &books, &finder, &err))
        give_up(err.text);
    for (int round = 0; round < ROUNDS; round++) {
        if (keep) {
            memcpy(p->idx, p->old, VECTORS * sizeof *p->idx);
            memcpy(p->idx_res, p->old_res, VECTORS * sizeof *p->idx_res);
        }
        const vptq_find_args f = {.n = VECTORS,
                                  .finder = finder,
                                  .x = x,
                                  .keep = keep,
                                  .idx = p->idx,
                                  .idx_res = p->k_res ? p->idx_res : NULL,
                                  .dist = p->dist};
        double t = seconds();
        if (dev->ops->find(dev->state, &f, &err))
            give_up(err.text);
        t = seconds() - t;
        best = t < best ? t : best;
    }
    dev->ops->finder_close(dev->state, finder);
    *error = 0;
    for (size_t i = 0; i < VECTORS; i++)
        *error += (double)p->dist[i] / VECTORS;
    return 1e6 * best / VECTORS;
}

static void report(const problem *p, const char *how, uint32_t beam, double us, double loss,
                   bool json)
{
    if (json)
        printf("{\"v\": %u, \"k\": %u, \"k_res\": %u, \"search\": \"%s\", \"beam\": %u, "
               "\"simd\": \"%s\", \"time_us\": %.3f, \"loss\": %.4f}\n",
               p->v, p->k, p->k_res, how, beam, vptq_simd_name(vptq_cpu_simd()), us, loss);
    else
        printf("%4u %6u %6u  %-6s %6u %9.3f %9.4f\n", p->v, p->k, p->k_res, how, beam, us,
               loss);
}

static void bench_shape(const vptq_device *dev, uint32_t v, uint32_t k, uint32_t k_res,
                        bool json)
{
    static const uint32_t beams[] = {UINT32_MAX, 1, 2, 4, 8, 16, 32};
    problem p = problem_make(v, k, k_res);
    const size_t count = k_res ? sizeof beams / sizeof *beams : 1;
    float *moved = need((size_t)VECTORS * v, sizeof *moved);
    double exact = 1, error;
    for (size_t i = 0; i < count; i++) {
        double us = measure(dev, &p, beams[i], false, false, p.x, &error);
        exact = i ? exact : error;
        report(&p, "full", beams[i] < k ? beams[i] : k, us, error / exact, json);
    }
    measure(dev, &p, 16, false, false, p.x, &error);
    memcpy(p.old, p.idx, VECTORS * sizeof *p.old);
    memcpy(p.old_res, p.idx_res, VECTORS * sizeof *p.old_res);
    fill(moved, (size_t)VECTORS * v, sqrtf((float)error / (float)v) / 3, 4);
    for (size_t i = 0; i < (size_t)VECTORS * v; i++)
        moved[i] += p.x[i];
    for (int local = 0; local < 2; local++) {
        for (size_t i = k_res ? 4 : 0; i < (k_res ? 6 : 1); i++) {
            double us = measure(dev, &p, beams[i], local, true, moved, &error);
            report(&p, local ? "local" : "keep", beams[i] < k ? beams[i] : k, us, error / exact,
                   json);
        }
    }
    free(moved);
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
        give_up("usage: bench_search [--json] [V K K_RES]");
    if (vptq_device_open(&ctx, "cpu", &dev, &err))
        give_up(err.text);
    if (!json)
        printf("one core, %s; loss relative to the exact search from nothing\n"
               "   v      k  k_res  search   beam us/vector      loss\n",
               vptq_simd_name(vptq_cpu_simd()));
    if (argc > first)
        bench_shape(&dev, (uint32_t)atoi(argv[first]), (uint32_t)atoi(argv[first + 1]),
                    (uint32_t)atoi(argv[first + 2]), json);
    for (size_t i = 0; argc == first && i < sizeof shapes / sizeof *shapes; i++)
        bench_shape(&dev, shapes[i][0], shapes[i][1], shapes[i][2], json);
    vptq_device_close(&dev);
    return 0;
}
