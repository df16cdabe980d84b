#include "tests/bench/common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/rng.h"
#include "tests/support/vnormal.h"

_Noreturn void bench_give_up(const char *why)
{
    fprintf(stderr, "benchmark: %s\n", why);
    exit(1);
}

void bench_need(vptq_status st, const vptq_err *err)
{
    if (st)
        bench_give_up(err->text);
}

bool bench_open_device(vptq_ctx *ctx, const char *backend, vptq_device *dev)
{
    vptq_err err;
    const vptq_status st = vptq_device_open(ctx, backend ? backend : "cuda", dev, &err);
    if (backend)
        bench_need(st, &err);
    else if (st)
        printf("skipped: %s\n", err.text);
    return !st;
}

double bench_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void *bench_alloc(size_t count, size_t size)
{
    void *p = aligned_alloc(64, (count * size + 63) / 64 * 64);
    if (!p)
        bench_give_up("out of memory");
    return p;
}

void bench_vectors(float *x, size_t n, uint32_t v)
{
    const vptq_rng rng = vptq_rng_make(1, v, 0, VPTQ_RNG_TEST);
    for (size_t i = 0; i < n; i++) {
        const double spread = exp(0.25 * vtest_rng_normal(&rng, (UINT64_C(2) << 32) + i));
        double last = 0;
        for (size_t d = 0; d < v; d++) {
            last = 0.3 * last + vtest_rng_normal(&rng, i * v + d);
            x[i * v + d] = (float)(spread * last);
        }
    }
}
