/* Products with uniform codes against those with the same matrix in float16, in turns, one
 * thread of the cpu backend.  Best of the rounds, of processor time: one matrix that stays in
 * the second-level cache and one that is larger than all caches.
 *
 * bench_uniform [BITS [GROUP_SIZE]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "tests/bench/common.h"

enum { ROUNDS = 12, IN = 2048, SMALL = 128, LARGE = 1 << 15, MOST_TOKENS = 64 };

typedef struct bench {
    vptq_device dev;
    uint32_t *codes;
    float *scales;
    uint8_t *zeros;
    uint16_t *half;
    float *x, *y;
} bench;

static double faster(double a, double b)
{
    return a < b ? a : b;
}

static void compare(bench *b, const vptq_uniform_shape *s, size_t tokens)
{
    const vptq_uniform w = {
        .shape = *s, .codes = b->codes, .scales = b->scales, b->zeros, NULL};
    const vptq_gemv_args g = {.n = tokens, .x = b->x, .y = b->y, .ldx = s->in, .ldy = s->out};
    const int repeats = s->out == SMALL ? 40 : 1;
    double coded = 1e9, half = 1e9;
    vptq_err err;
    for (int r = 0; r < ROUNDS; r++) {
        double t = bench_seconds();
        for (int i = 0; i < repeats; i++)
            bench_need(
                b->dev.ops->gemv(b->dev.state, s->out, s->in, VPTQ_F16, b->half, &g, &err),
                &err);
        half = faster(half, (bench_seconds() - t) / repeats);
        t = bench_seconds();
        for (int i = 0; i < repeats; i++)
            bench_need(b->dev.ops->uniform_gemv(b->dev.state, &w, VPTQ_F16, &g, &err), &err);
        coded = faster(coded, (bench_seconds() - t) / repeats);
    }
    const double weights = (double)s->out * (double)s->in;
    printf("%u bits, groups of %4u, %5u rows, %2zu tokens  %8.3f ns for 16 weights, float16 "
           "%8.3f  %5.2f x\n",
           s->bits, s->group_size, s->out, tokens, coded / weights * 16e9,
           half / weights * 16e9, half / coded);
}

static void compare_all(bench *b, uint32_t bits, uint32_t group_size)
{
    static const size_t tokens[] = {1, 4, 16, 64};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (int large = 0; large < (tokens[i] > 4 ? 1 : 2); large++) {
            const vptq_uniform_shape s = {.out = large ? LARGE : SMALL,
                                          .in = IN,
                                          .bits = bits,
                                          .group_size = group_size ? group_size : IN,
                                          .has_zeros = true};
            compare(b, &s, tokens[i]);
        }
}

int main(int argc, char **argv)
{
    static const uint32_t all[] = {2, 3, 4, 5, 6, 8};
    const vptq_ctx ctx = {.threads = 1};
    const size_t weights = (size_t)LARGE * IN;
    vptq_err err;
    bench b;
    bench_need(vptq_device_open(&ctx, "cpu", &b.dev, &err), &err);
    b.codes = bench_alloc(weights / 4, sizeof *b.codes);
    b.scales = bench_alloc(weights / 16, sizeof *b.scales);
    b.zeros = bench_alloc(weights / 16, 1);
    b.half = bench_alloc(weights, sizeof *b.half);
    b.x = bench_alloc((size_t)MOST_TOKENS * IN, sizeof *b.x);
    b.y = bench_alloc((size_t)MOST_TOKENS * LARGE, sizeof *b.y);
    bench_vectors(b.x, MOST_TOKENS, IN);
    for (size_t i = 0; i < weights / 4; i++)
        b.codes[i] = (uint32_t)i * 2654435761U;
    for (size_t i = 0; i < weights / 16; i++) {
        b.scales[i] = vptq_f16_to_f32((uint16_t)(0x1800 + i % 1024));
        b.zeros[i] = (uint8_t)(i % 4);
    }
    for (size_t i = 0; i < weights; i++)
        b.half[i] = (uint16_t)(0x2000 + i % 8192);
    if (argc > 1)
        compare_all(&b, (uint32_t)atoi(argv[1]), argc > 2 ? (uint32_t)atoi(argv[2]) : 128);
    for (size_t i = 0; argc == 1 && i < sizeof all / sizeof *all; i++)
        compare_all(&b, all[i], 128);
    free(b.codes);
    free(b.scales);
    free(b.zeros);
    free(b.half);
    free(b.x);
    free(b.y);
    vptq_device_close(&b.dev);
    return 0;
}
