/* Tests the op uniform_gemv against sums in double over codes that are decoded here one by one,
 * and, bit for bit, against gemv with the decoded matrix on the same device.  Bits do not
 * depend on the number of threads, on the SIMD level or on the other tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/base/uniform.h"
#include "tests/support/devices.h"

enum { MAX_TOKENS = 41, GAP = 3 };

typedef struct problem {
    vptq_uniform w;
    vptq_dtype storage;
    uint32_t *codes;
    float *scales;
    uint8_t *zeros;
    int32_t *groups;
    float *decoded; /* [out, in] */
    uint16_t *half; /* the same as `storage` */
    float *x;       /* [MAX_TOKENS, in + GAP] */
    float *bias;    /* [out] */
} problem;

static uint32_t draw(uint64_t i, uint32_t n)
{
    const vptq_rng rng = vptq_rng_make(11, 0, 0, VPTQ_RNG_TEST);
    return (uint32_t)(vptq_rng_uniform(&rng, i) * n);
}

/* The definition of lib/base/uniform.h: the product is rounded to float, then to `storage`. */
static void decode(problem *p)
{
    const vptq_uniform_shape *s = &p->w.shape;
    const size_t words = vptq_uniform_row_words(s), groups = vptq_uniform_groups(s);
    for (size_t r = 0; r < s->out; r++)
        for (size_t c = 0; c < s->in; c++) {
            const size_t g = p->groups ? (size_t)p->groups[c] : c / s->group_size;
            unsigned code = 0;
            for (size_t b = 0; b < s->bits; b++) {
                const size_t bit = c * s->bits + b;
                code |= (p->codes[r * words + bit / 32] >> bit % 32 & 1) << b;
            }
            const int zero = p->zeros ? p->zeros[r * groups + g] : 1 << (s->bits - 1);
            const double exact = (double)((int)code - zero) * (double)p->scales[r * groups + g];
            p->decoded[r * s->in + c] = vptq_round_to(p->storage, (float)exact);
        }
    for (size_t i = 0; i < (size_t)s->out * s->in; i++)
        p->half[i] = p->storage == VPTQ_F16 ? vptq_f32_to_f16(p->decoded[i])
                                            : vptq_f32_to_bf16(p->decoded[i]);
}

/* Any codes, also as padding of rows, in arrays that end with them.  Scales of F16 from numbers
 * that make products subnormal up to such that make them infinite (`wild`). */
static problem problem_make(const vptq_uniform_shape *s, vptq_dtype storage, bool wild)
{
    const size_t words = vptq_uniform_row_words(s), groups = vptq_uniform_groups(s);
    const size_t n = (size_t)s->out * groups, size = (size_t)s->out * s->in;
    problem p = {.w = {.shape = *s}, .storage = storage};
    p.codes = vtest_alloc(s->out * words, sizeof *p.codes);
    p.scales = vtest_alloc(n, sizeof *p.scales);
    p.zeros = s->has_zeros ? vtest_alloc(n, 1) : NULL;
    p.groups = s->has_groups ? vtest_alloc(s->in, sizeof *p.groups) : NULL;
    p.decoded = vtest_alloc(size, sizeof *p.decoded);
    p.half = vtest_alloc(size, sizeof *p.half);
    p.x = vtest_normals(MAX_TOKENS * (s->in + GAP), 21);
    p.bias = vtest_normals(s->out, 22);
    for (size_t i = 0; i < s->out * words; i++)
        p.codes[i] = draw(i, 65536) | draw(i + ((uint64_t)1 << 40), 65536) << 16;
    for (size_t i = 0; i < n; i++) {
        const float x = 0.01F + (float)draw(i + ((uint64_t)2 << 40), 1000) / 3000;
        p.scales[i] = vptq_round_to(storage, wild ? ldexpf(x, (int)(i % 35) - 19) : x);
        if (p.zeros)
            p.zeros[i] = (uint8_t)draw(i + ((uint64_t)3 << 40), 1U << s->bits);
    }
    for (size_t c = 0; c < s->in && p.groups; c++)
        p.groups[c] = (int32_t)draw(c + ((uint64_t)4 << 40), (uint32_t)groups);
    p.w.codes = p.codes;
    p.w.scales = p.scales;
    p.w.zeros = p.zeros;
    p.w.groups = p.groups;
    decode(&p);
    return p;
}

static void problem_free(problem *p)
{
    free(p->codes);
    free(p->scales);
    free(p->zeros);
    free(p->groups);
    free(p->decoded);
    free(p->half);
    free(p->x);
    free(p->bias);
}

static void check_value(const problem *p, size_t i, size_t r, float before, bool bias, float y)
{
    const size_t in = p->w.shape.in;
    double want = (double)before + (bias ? (double)p->bias[r] : 0), size = fabs(want);
    for (size_t j = 0; j < in; j++) {
        const double term = (double)p->decoded[r * in + j] * (double)p->x[i * (in + GAP) + j];
        want += term;
        size += fabs(term);
    }
    if (!isfinite(size) ? isfinite(y) : !(fabs((double)y - want) <= 2e-6 * size + 1e-12))
        fail_msg("%u bits: token %zu, row %zu is %g, expected %g", p->w.shape.bits, i, r,
                 (double)y, want);
}

static void check_tokens(const problem *p, const vptq_device *dev, size_t n, bool more)
{
    const size_t out = p->w.shape.out, in = p->w.shape.in, ldy = out + GAP;
    float *y = vtest_alloc(n * ldy, sizeof *y), *same = vtest_alloc(n * ldy, sizeof *same);
    vptq_err err;
    vptq_gemv_args g = {.n = n,
                        .x = p->x,
                        .y = y,
                        .ldx = in + GAP,
                        .ldy = ldy,
                        .beta = more ? 1 : 0,
                        .bias = more ? p->bias : NULL};
    for (size_t i = 0; i < n * ldy; i++) /* not read when beta is 0 */
        same[i] = y[i] = more ? (float)(i % 11) : NAN;
    assert_ok(dev->ops->uniform_gemv(dev->state, &p->w, p->storage, &g, &err), &err);
    g.y = same;
    assert_ok(dev->ops->gemv(dev->state, out, in, p->storage, p->half, &g, &err), &err);
    for (size_t i = 0; i < n * ldy; i++) {
        if (isnan(same[i]) ? !isnan(y[i]) : memcmp(&y[i], &same[i], sizeof *y) != 0)
            fail_msg("%s: %zu tokens, %u bits: element %zu is %a, gemv gives %a",
                     dev->ops->name, n, p->w.shape.bits, i, (double)y[i], (double)same[i]);
        if (i % ldy < out)
            check_value(p, i / ldy, i % ldy, more ? (float)(i % 11) : 0, more, y[i]);
    }
    free(y);
    free(same);
}

static void check_products(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *p = arg;
    const bool emulated = strcmp(dev->ops->name, "emu") == 0;
    static const size_t tokens[] = {1, 2, 5, 17, 0, 3, 4, 9, 16, 20, MAX_TOKENS};
    (void)is_ref;
    for (size_t i = 0; i < (emulated ? 4 : sizeof tokens / sizeof *tokens); i++)
        check_tokens(p, dev, tokens[i], i % 2);
}

/* out, in, bits, group size, zeros, groups of columns */
static const vptq_uniform_shape shapes[] = {
    {1, 1, 1, 1, false, false},     {3, 7, 2, 7, true, false},
    {5, 64, 4, 32, true, false},    {4, 96, 4, 48, false, false},
    {9, 100, 3, 20, true, false},   {6, 345, 4, 128, true, false},
    {7, 33, 5, 33, false, false},   {11, 70, 6, 64, true, false},
    {5, 130, 7, 13, true, false},   {8, 336, 8, 128, true, false},
    {6, 331, 8, 331, false, false}, {7, 90, 4, 16, true, true},
    {5, 65, 8, 9, false, true},     {4, 40, 1, 8, true, false},
    {10, 672, 2, 64, true, false},  {6, 643, 3, 128, true, false},
    {100, 48, 4, 24, true, false},  {4, 1100, 4, 1100, true, false},
};

static void products_are_those_of_decoded_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int wild = 0; wild < 2; wild++) {
            problem p =
                problem_make(&shapes[i], (i + (size_t)wild) % 2 ? VPTQ_BF16 : VPTQ_F16, wild);
            devices_each_emu(check_products, &p);
            problem_free(&p);
        }
}

/* Every width with both types and few groups, rows that end anywhere. */
static void codes_of_every_width(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits <= 8; bits++)
        for (uint32_t in = 31; in <= 34; in++) {
            const vptq_uniform_shape s = {3, in, bits, 17, bits % 2 == 0, false};
            problem p = problem_make(&s, in % 2 ? VPTQ_BF16 : VPTQ_F16, false);
            float *read = vtest_alloc((size_t)s.out * in, sizeof *read);
            vptq_uniform_read(&p.w, 0, s.out, read);
            vptq_round_to_n(p.storage, read, (size_t)s.out * in);
            assert_same_f32(read, p.decoded, (size_t)s.out * in);
            devices_each_emu(check_products, &p);
            free(read);
            problem_free(&p);
        }
}

static void run_product(const vptq_device *dev, const void *arg, void *out)
{
    const problem *p = arg;
    vptq_err err;
    const vptq_gemv_args g = {.n = p->x[0] > 1e30F ? 20 : 3,
                              .x = p->x + 1,
                              .y = out,
                              .ldx = p->w.shape.in,
                              .ldy = p->w.shape.out};
    assert_ok(dev->ops->uniform_gemv(dev->state, &p->w, p->storage, &g, &err), &err);
}

static void any_threads_give_the_same_bits(void **state)
{
    (void)state;
    const vptq_uniform_shape s = {90, 500, 4, 100, true, false};
    problem p = problem_make(&s, VPTQ_F16, false);
    for (int many = 0; many < 2; many++) {
        const size_t n = many ? 20 : 3;
        p.x[0] = many ? 2e30F : 0;
        devices_check_emu(&(devices_op){.run = run_product,
                                        .arg = &p,
                                        .count = n * s.out,
                                        .size = sizeof(float),
                                        .limit = devices_float_sum_limit(s.in)},
                          NULL);
    }
    problem_free(&p);
}

/* A token has the same bits alone and next to one of NaN. */
static void check_company(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { N = 3 };
    problem *p = arg;
    const size_t out = p->w.shape.out, in = p->w.shape.in;
    float *y = vtest_alloc(N * out, sizeof *y), *alone = vtest_alloc(out, sizeof *alone);
    vptq_err err;
    vptq_gemv_args g = {.n = N, .x = p->x, .y = y, .ldx = in + GAP, .ldy = out};
    (void)is_ref;
    assert_ok(dev->ops->uniform_gemv(dev->state, &p->w, p->storage, &g, &err), &err);
    g.n = 1;
    g.y = alone;
    for (size_t i = 0; i < N; i += 2) {
        g.x = p->x + i * g.ldx;
        assert_ok(dev->ops->uniform_gemv(dev->state, &p->w, p->storage, &g, &err), &err);
        assert_same_f32(y + i * out, alone, out);
    }
    for (size_t r = 0; r < out; r++)
        assert_true(isnan(y[out + r]));
    free(y);
    free(alone);
}

static void tokens_do_not_meet(void **state)
{
    (void)state;
    const vptq_uniform_shape s = {6, 100, 3, 50, true, false};
    problem p = problem_make(&s, VPTQ_BF16, false);
    p.x[s.in + GAP + 7] = NAN;
    devices_each_emu(check_company, &p);
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(products_are_those_of_decoded_weights),
           cmocka_unit_test(codes_of_every_width),
           cmocka_unit_test(any_threads_give_the_same_bits),
           cmocka_unit_test(tokens_do_not_meet))
