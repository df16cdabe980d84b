/* Tests the op sample: ref against the definition on vocabularies that can be computed by hand,
 * cpu and emu against ref, id by id. */
#include <math.h>
#include <stdlib.h>

#include "tests/support/devices.h"

static void run_sample(const vptq_device *dev, const void *arg, void *out)
{
    vptq_err err;
    vptq_sample_args s = *(const vptq_sample_args *)arg;
    s.ids = out;
    assert_ok(dev->ops->sample(dev->state, &s, &err), &err);
}

/* Compares ids with those of ref, on the slow emulator only for some rows. */
static void check(const vptq_sample_args *s, int32_t *ids)
{
    enum { SOME = 9, FEW = 3 };
    vptq_sample_args some = *s;
    some.n = s->n <= SOME ? s->n : FEW;
    const devices_op op = {run_sample, &some, some.n * sizeof *ids, 1, 0};
    devices_check_emu(&op, ids);
    const devices_op all = {run_sample, s, s->n * sizeof *ids, 1, 0};
    if (s->n > SOME)
        devices_check(&all, ids);
}

/* ---- greedy ---- */

static void test_greedy(void **state)
{
    (void)state;
    enum { N = 9, VOCAB = 6, LD = 8 };
    static const float logits[N][LD] = {
        {1, 3, 3, 0, 3, 2, 9, 9},
        {-5, -4, -3, -4, -3, -6, 9, 9},
        {0, 0, 0, 0, 0, 0, 9, 9},
        {-INFINITY, -INFINITY, -7, -INFINITY, -INFINITY, -INFINITY, 9, 9},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 9, 9},
        {1, 2, INFINITY, 3, INFINITY, 2, 9, 9},
        {1, 2, 3, NAN, 5, 6, 9, 9},
        {-0.0f, 0, 0, -1, 0, 0, 9, 9},
        {-NAN, -INFINITY, 0, 0, 0, 0, 9, 9},
    };
    static const int32_t want[N] = {1, 2, 0, 2, 0, 2, -1, 0, -1};
    /* u is not read, top_p has no effect */
    const vptq_sample_args s = {
        .n = N, .vocab = VOCAB, .logits = &logits[0][0], .ld = LD, .top_p = 0.1};
    int32_t ids[N];
    check(&s, ids);
    assert_memory_equal(ids, want, sizeof want);
    /* Only the likeliest token has a probability: the same result, except for NaN and ties. */
    const double u[N] = {0.99, 0.99, 0.99, 0.99, 0.99, 0.99, 0.99, 0.99, 0.99};
    vptq_sample_args least = s;
    least.temperature = 1;
    least.top_p = 1e-12;
    least.u = u;
    check(&least, ids);
    assert_memory_equal(ids, want, sizeof want);
    least.temperature = 1e-300;
    least.top_p = 1;
    static const int32_t last[N] = {4, 4, 5, 2, 5, 4, -1, 5, -1};
    check(&least, ids);
    assert_memory_equal(ids, last, sizeof last);
}

/* ---- frequencies ---- */

typedef struct distribution {
    double temperature, top_p;
    int shares[5]; /* of the kept tokens, relative to their sum */
} distribution;

/* As u goes from 0 to 1, each id is drawn for an interval as long as its share. */
static void test_distribution(void **state)
{
    (void)state;
    enum { N = 1200, VOCAB = 5 };
    /* exp(logit) = 4, 16, 2, 16, 2 (and 1/4 of the logits' differences at temperature 4) */
    static const double of[VOCAB] = {4, 16, 2, 16, 2};
    static const distribution list[] = {
        {1, 1, {4, 16, 2, 16, 2}},      {1, 0.99, {4, 16, 2, 16, 2}},
        {1, 0.94, {4, 16, 2, 16, 0}}, /* 38 of 40 is 0.95: of equal tokens the lower id is kept
                                       */
        {1, 0.89, {4, 16, 0, 16, 0}},   {1, 0.75, {0, 16, 0, 16, 0}},
        {1, 0.39, {0, 16, 0, 0, 0}},    {1, 1e-30, {0, 16, 0, 0, 0}},
        {0.5, 1, {16, 256, 4, 256, 4}}, {0.5, 0.97, {16, 256, 0, 256, 0}},
        {1e-9, 0.7, {0, 1, 0, 1, 0}},   {1e30, 1, {1, 1, 1, 1, 1}},
    };
    float *logits = malloc(N * VOCAB * sizeof *logits);
    double *u = malloc(N * sizeof *u);
    int32_t ids[N];
    assert_true(logits && u);
    for (int i = 0; i < N * VOCAB; i++)
        logits[i] = (float)log(of[i % VOCAB]);
    for (int i = 0; i < N; i++)
        u[i] = fmod((i + 0.5) * 7 / N, 1);
    for (size_t d = 0; d < sizeof list / sizeof *list; d++) {
        const vptq_sample_args s = {.n = N,
                                    .vocab = VOCAB,
                                    .logits = logits,
                                    .ld = VOCAB,
                                    .temperature = list[d].temperature,
                                    .top_p = list[d].top_p,
                                    .u = u};
        double sum = 0, before = 0;
        check(&s, ids);
        for (int v = 0; v < VOCAB; v++)
            sum += list[d].shares[v];
        for (int v = 0; v < VOCAB; v++) {
            const double from = before / sum, to = (before += list[d].shares[v]) / sum;
            for (int i = 0; i < N; i++) /* logits are floats: avoid the boundaries */
                if (u[i] > from + 1e-6 && u[i] < to - 1e-6)
                    assert_int_equal(ids[i], v);
        }
    }
    free(logits);
    free(u);
}

/* Both ends of [0, 1), a vocabulary of one token, impossible tokens. */
static void test_edge_cases(void **state)
{
    (void)state;
    static const float one[] = {-3}, some[] = {-INFINITY, 1, -INFINITY, 1, -INFINITY};
    static const double u[] = {0, 0x1.fffffffffffffp-1};
    int32_t ids[2];
    vptq_sample_args s = {.n = 2, .vocab = 1, .logits = one, .temperature = 2, .top_p = 1};
    s.u = u;
    check(&s, ids);
    assert_true(ids[0] == 0 && ids[1] == 0);
    s.top_p = 0.5;
    check(&s, ids);
    assert_true(ids[0] == 0 && ids[1] == 0);
    s.vocab = 5;
    s.logits = some;
    for (int i = 0; i < 2; i++) {
        s.top_p = i ? 0.9 : 1;
        check(&s, ids);
        assert_true(ids[0] == 1 && ids[1] == 3);
    }
}

/* ---- against ref ---- */

static void test_against_ref(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{3, 2}, {40, 17}, {3, 1025}, {2, 50000}};
    static const double temperatures[] = {0.1, 1, 7}, top_p[] = {1e-6, 0.3, 0.9, 0.9999, 1};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const size_t n = shapes[k][0], vocab = shapes[k][1], ld = vocab + 3;
        float *logits = vtest_normals(n * ld, 61 + k);
        double *u = malloc(n * sizeof *u);
        int32_t *ids = malloc(n * sizeof *ids);
        assert_true(u && ids);
        for (size_t i = 0; i < n * ld; i++) { /* ties in every other row */
            logits[i] *= 4;
            if (i / ld % 2)
                logits[i] = rintf(logits[i] * 2) / 2;
        }
        for (int t = 0; t < 15; t++) {
            if (vocab > 1000 && t % 4 != 3)
                continue; /* the emulator is slow */
            for (size_t i = 0; i < n; i++)
                u[i] = fmod(0.618033988749895 * (double)(i + 1) + 0.377 * t, 1);
            const vptq_sample_args s = {.n = n,
                                        .vocab = vocab,
                                        .logits = logits,
                                        .ld = ld,
                                        .temperature = temperatures[t / 5],
                                        .top_p = top_p[t % 5],
                                        .u = u};
            check(&s, ids);
            for (size_t i = 0; i < n; i++)
                assert_true(ids[i] >= 0 && (size_t)ids[i] < vocab);
        }
        free(logits);
        free(u);
        free(ids);
    }
}

VTEST_MAIN(cmocka_unit_test(test_greedy), cmocka_unit_test(test_distribution),
           cmocka_unit_test(test_edge_cases), cmocka_unit_test(test_against_ref))
