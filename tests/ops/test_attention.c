/* Tests the ops attention and attention_mass: ref against results computed by hand, other
 * backends against ref. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

static const char *const names[] = {"ref", "cpu", "emu"};
enum { NAMES = 3 };

typedef struct attention_case {
    size_t n, pos0, heads, kv_heads, head_dim, window;
    const float *q, *keys, *values;
    float cap;
} attention_case;

static vptq_attention_args args_of(const attention_case *c, float *out)
{
    const size_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    return (vptq_attention_args){.n = c->n,
                                 .pos0 = c->pos0,
                                 .heads = c->heads,
                                 .kv_heads = c->kv_heads,
                                 .head_dim = c->head_dim,
                                 .window = c->window,
                                 .scale = (float)(1 / sqrt((double)c->head_dim)),
                                 .cap = c->cap,
                                 .q = c->q,
                                 .keys = c->keys,
                                 .values = c->values,
                                 .out = out,
                                 .ldq = wide + 1,
                                 .ldk = narrow + 2,
                                 .ldv = narrow,
                                 .ldo = wide};
}

static void run_attention(const vptq_device *dev, const void *arg, void *out)
{
    const vptq_attention_args a = args_of(arg, out);
    vptq_err err;
    assert_ok(dev->ops->attention(dev->state, &a, &err), &err);
}

static void run_mass(const vptq_device *dev, const void *arg, void *out)
{
    const vptq_attention_args a = args_of(arg, NULL);
    vptq_err err;
    double *mass = out;
    for (size_t i = 0; i < a.pos0 + a.n; i++)
        mass[i] = 0.5; /* the op adds to it */
    assert_ok(dev->ops->attention_mass(dev->state, &a, mass, &err), &err);
}

/* Whether the case is small enough for the emulator. */
static bool emulated(const attention_case *c)
{
    return c->n * (c->pos0 + c->n) * c->heads * c->head_dim <= 1 << 23;
}

/* Checks attention or, with `mass`, attention_mass, without and with a cap of the scores.
 *
 * A score has an error of about 2^-24 of the size of its terms, 10 here, which is also the
 * relative error of p: NMSE (10 * 2^-24)^2 = 2^-41. Float sums over keys add less. The limit
 * leaves a factor of 8; for the mass it is 4 times as high, because squaring doubles errors. */
static void check(const size_t shape[6], bool mass)
{
    attention_case c = {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], 0, 0, 0, 0};
    const size_t wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
    const size_t keys = c.pos0 + c.n;
    float *q = vtest_normals(c.n * (wide + 1), 15), *k = vtest_normals(keys * (narrow + 2), 16);
    float *v = vtest_normals(keys * narrow, 17);
    for (size_t i = 0; i < c.n * (wide + 1); i++)
        q[i] *= 3; /* spread of a trained model's scores */
    c.q = q;
    c.keys = k;
    c.values = mass ? NULL : v;
    const devices_op op =
        mass ? (devices_op){run_mass, &c, keys, sizeof(double), 0x1p-36}
             : (devices_op){run_attention, &c, c.n * wide, sizeof(float), 0x1p-38};
    (emulated(&c) ? devices_check_emu : devices_check)(&op, NULL);
    c.cap = 4;
    (emulated(&c) ? devices_check_emu : devices_check)(&op, NULL);
    free(q);
    free(k);
    free(v);
}

static void test_attention(void **state)
{
    (void)state;
    /* n, pos0, heads, kv_heads, head_dim, window */
    static const size_t shapes[][6] = {
        {1, 0, 1, 1, 1, 0},      {2, 0, 4, 2, 6, 0},       {7, 3, 6, 6, 16, 0},
        {63, 0, 3, 1, 64, 0},    {64, 0, 3, 1, 64, 0},     {65, 0, 9, 3, 64, 0},
        {1, 300, 9, 3, 64, 0},   {2, 255, 4, 4, 32, 0},    {1, 256, 8, 1, 128, 0},
        {300, 0, 9, 3, 64, 0},   {130, 517, 4, 2, 24, 0},  {300, 0, 4, 2, 16, 1},
        {300, 0, 4, 2, 16, 7},   {70, 700, 2, 1, 16, 256}, {300, 20, 3, 1, 16, 257},
        {1, 400, 2, 2, 16, 100}, {3, 5, 400, 1, 8, 0},     {9, 0, 2, 1, 8, 1000},
        {70, 3, 2, 1, 100, 0},   {20, 9, 3, 1, 136, 5},    {2, 600, 4, 1, 200, 520}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        check(shapes[s], false);
}

static void test_attention_mass(void **state)
{
    (void)state;
    /* n, pos0, heads, kv_heads, head_dim, window */
    static const size_t shapes[][6] = {
        {1, 0, 1, 1, 1, 0},    {2, 0, 4, 2, 6, 0},       {7, 3, 6, 6, 16, 0},
        {84, 0, 9, 3, 64, 0},  {85, 0, 3, 1, 64, 0},     {1, 300, 9, 3, 64, 0},
        {300, 0, 9, 3, 64, 0}, {130, 517, 4, 2, 24, 0},  {300, 0, 4, 2, 16, 1},
        {300, 0, 4, 2, 16, 7}, {70, 700, 2, 1, 16, 256}, {9, 0, 2, 1, 8, 1000}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        check(shapes[s], true);
}

/* With equal scores query i adds 1 / (i + 1)^2 to each of its i + 1 positions. A key with a
 * much higher score gets 1 from every query that sees it. */
static void test_attention_mass_by_hand(void **state)
{
    (void)state;
    enum { N = 5, HEADS = 2, PEAK = 3 };
    const float zero[N * HEADS] = {0};
    float keys[N] = {0}, ones[N * HEADS];
    for (int i = 0; i < N * HEADS; i++)
        ones[i] = 1;
    keys[PEAK] = 1000;
    for (size_t dev = 0; dev < NAMES; dev++) {
        devices_one d;
        vptq_err err;
        double mass[N] = {0}, want[N] = {0};
        vptq_attention_args a = {.n = N,
                                 .heads = HEADS,
                                 .kv_heads = 1,
                                 .head_dim = 1,
                                 .scale = 1,
                                 .q = zero,
                                 .keys = keys,
                                 .ldq = HEADS,
                                 .ldk = 1};
        devices_open(&d, names[dev], vptq_cpu_simd(), 1);
        for (int j = 0; j < N; j++)
            for (int i = j; i < N; i++)
                want[j] += (double)HEADS / ((i + 1) * (i + 1));
        assert_ok(d.dev.ops->attention_mass(d.dev.state, &a, mass, &err), &err);
        assert_close_f64(mass, want, N, 0, 1e-6);
        a.q = ones;
        memset(mass, 0, sizeof mass);
        assert_ok(d.dev.ops->attention_mass(d.dev.state, &a, mass, &err), &err);
        want[PEAK] = HEADS * (N - PEAK);
        want[PEAK + 1] = 0;
        for (int j = 0; j < PEAK; j++) {
            want[j] = 0;
            for (int i = j; i < PEAK; i++)
                want[j] += (double)HEADS / ((i + 1) * (i + 1));
        }
        assert_close_f64(mass, want, N, 1e-12, 1e-6);
        devices_close(&d);
    }
}

/* With equal scores the result is the mean of the visible values; with one huge score it is
 * the value of that key. */
static void test_attention_by_hand(void **state)
{
    (void)state;
    enum { N = 5, D = 2, PEAK = 3 };
    const float zero[N * D] = {0}, values[N * D] = {2, -2, 4, -4, 6, -6, 8, -8, 10, -10};
    float keys[N * D] = {0}, ones[N * D];
    for (int i = 0; i < N * D; i++)
        ones[i] = 1;
    keys[PEAK * D] = 1000;
    for (size_t dev = 0; dev < NAMES; dev++) {
        devices_one d;
        vptq_err err;
        float out[N * D];
        vptq_attention_args a = {.n = N,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_dim = D,
                                 .scale = 1,
                                 .q = zero,
                                 .keys = keys,
                                 .values = values,
                                 .out = out,
                                 .ldq = D,
                                 .ldk = D,
                                 .ldv = D,
                                 .ldo = D};
        devices_open(&d, names[dev], vptq_cpu_simd(), 1);
        for (size_t window = 0; window < 4; window++) {
            a.window = window;
            assert_ok(d.dev.ops->attention(d.dev.state, &a, &err), &err);
            for (size_t i = 0; i < N; i++) {
                const size_t seen = window && i + 1 > window ? window : i + 1;
                const float mean = (float)(2 * i + 2) - (float)(seen - 1);
                assert_close(&out[i * D], &mean, 1, 1e-6, 0);
            }
        }
        a.window = 0;
        a.q = ones;
        assert_ok(d.dev.ops->attention(d.dev.state, &a, &err), &err);
        assert_same_f32(out + PEAK * D, values + PEAK * D, D);
        assert_same_f32(out + (PEAK + 1) * D, values + PEAK * D, D);
        a.cap = 1; /* the weight of the peak is e, that of the others 1 */
        assert_ok(d.dev.ops->attention(d.dev.state, &a, &err), &err);
        const double e = exp(1);
        const float capped[] = {(float)((12 + 8 * e) / (3 + e)),
                                (float)((22 + 8 * e) / (4 + e))};
        for (int i = 0; i < 2; i++)
            assert_close(&out[(PEAK + i) * D], &capped[i], 1, 0, 1e-6);
        devices_close(&d);
    }
}

/* One call with n queries equals n calls with one query. */
static void test_attention_step_by_step(void **state)
{
    (void)state;
    enum { N = 70, HEADS = 4, KV = 2, D = 16 };
    float *q = vtest_normals(N * HEADS * D, 18), *k = vtest_normals(N * KV * D, 19);
    float *v = vtest_normals(N * KV * D, 20), *whole = vtest_normals(N * HEADS * D, 21);
    devices_one d;
    vptq_err err;
    devices_open(&d, "cpu", vptq_cpu_simd(), 2);
    vptq_attention_args a = {.n = N,
                             .heads = HEADS,
                             .kv_heads = KV,
                             .head_dim = D,
                             .scale = 0.25f,
                             .q = q,
                             .keys = k,
                             .values = v,
                             .out = whole,
                             .ldq = HEADS * D,
                             .ldk = KV * D,
                             .ldv = KV * D,
                             .ldo = HEADS * D};
    assert_ok(d.dev.ops->attention(d.dev.state, &a, &err), &err);
    a.n = 1;
    for (a.pos0 = 0; a.pos0 < N; a.pos0++) {
        float step[HEADS * D];
        a.q = q + a.pos0 * HEADS * D;
        a.out = step;
        assert_ok(d.dev.ops->attention(d.dev.state, &a, &err), &err);
        assert_close(step, whole + a.pos0 * HEADS * D, HEADS * D, 2e-6, 0);
    }
    devices_close(&d);
    free(q);
    free(k);
    free(v);
    free(whole);
}

VTEST_MAIN(cmocka_unit_test(test_attention), cmocka_unit_test(test_attention_mass),
           cmocka_unit_test(test_attention_mass_by_hand),
           cmocka_unit_test(test_attention_by_hand),
           cmocka_unit_test(test_attention_step_by_step))
