/* Tests RTN and GPTQ against their definitions in double: ranges and codes of every group, and
 * for GPTQ the elimination on the inverse Hessian itself; threads, devices, memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/uniform/uniform.h"
#include "tests/support/devices.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

/* A matrix as the definition gives it. */
typedef struct naive {
    uint32_t *code; /* [out][in] in the order of columns */
    double *scale;  /* [out][groups] */
    double *zero;
    uint32_t *position; /* [in] of a column in the order of quantizing */
} naive;

static double stored(vptq_dtype type, double x)
{
    float y = (float)x;
    vptq_round_to_n(type, &y, 1);
    return (double)y;
}

/* Range of n numbers: the formulas of RTN with an included zero. */
static void naive_range(const vptq_uniform_settings *s, const double *x, size_t n,
                        double *scale, double *zero)
{
    const double top = (double)((1U << s->bits) - 1);
    double lo = 0, hi = 0;
    for (size_t i = 0; i < n; i++) {
        lo = fmin(lo, x[i]);
        hi = fmax(hi, x[i]);
    }
    if (s->symmetric) {
        hi = fmax(hi, -lo);
        lo = -hi;
    }
    *scale = stored(s->storage, (hi - lo) / top);
    *zero = s->symmetric ? (top + 1) / 2 : fmin(fmax(rint(-lo / *scale), 0), top);
}

static int by_diagonal(const void *a, const void *b)
{
    const double *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] > y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : 1;
}

static void make_order(const vptq_uniform_settings *s, const problem *p, size_t *order)
{
    double *rank = malloc(sizeof *rank * 2 * p->in);
    for (size_t i = 0; i < p->in; i++) {
        rank[2 * i] = s->order ? p->h[i * p->in + i] : 0;
        rank[2 * i + 1] = (double)i;
    }
    qsort(rank, p->in, 2 * sizeof *rank, by_diagonal);
    for (size_t i = 0; i < p->in; i++)
        order[i] = (size_t)rank[2 * i + 1];
    free(rank);
}

/* The inverse of H + ridge; the caller frees it. */
static double *inverse(const vptq_uniform_settings *s, const problem *p)
{
    const size_t n = p->in;
    double *a = malloc(sizeof *a * n * n), mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += p->h[i * n + i] / (double)n;
    for (size_t i = 0; i < n * n; i++)
        a[i] = p->h[i] + (i % (n + 1) ? 0 : s->ridge * mean);
    problem_invert(n, a);
    return a;
}

static void eliminate(double *a, size_t n, size_t c)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (i != c && j != c)
                a[i * n + j] -= a[i * n + c] * a[c * n + j] / a[c * n + c];
}

/* Quantizes column c, at position t of the order, of all rows of z. */
static void naive_column(const vptq_uniform_settings *s, const problem *p, const size_t *order,
                         size_t t, const double *a, double *z, size_t group, size_t groups,
                         naive *q)
{
    const size_t n = p->in, c = order[t];
    const double top = (double)((1U << s->bits) - 1);
    for (size_t r = 0; r < p->out; r++) {
        double *row = z + r * n;
        const double scale = q->scale[r * groups + group], zero = q->zero[r * groups + group];
        const double code = fmin(fmax(rint(row[c] / scale) + zero, 0), top);
        const double e = row[c] - stored(s->storage, (code - zero) * scale);
        q->code[r * n + c] = (uint32_t)code;
        for (size_t u = t + 1; a && u < n; u++)
            row[order[u]] -= e / a[c * n + c] * a[c * n + order[u]];
    }
}

static naive naive_make(const vptq_uniform_settings *s, const problem *p)
{
    const size_t n = p->in, size = s->group_size && s->group_size < n ? s->group_size : n;
    const size_t groups = (n + size - 1) / size;
    naive q = {malloc(sizeof *q.code * p->out * n), malloc(sizeof *q.scale * p->out * groups),
               malloc(sizeof *q.zero * p->out * groups), malloc(sizeof *q.position * n)};
    double *z = malloc(sizeof *z * p->out * n), *x = malloc(sizeof *x * n);
    double *a = s->compensate ? inverse(s, p) : NULL;
    size_t *order = malloc(sizeof *order * n);
    make_order(s, p, order);
    for (size_t i = 0; i < p->out * n; i++)
        z[i] = (double)p->w[i];
    for (size_t t = 0; t < n; t++) {
        const size_t g = t / size, left = n - t < size ? n - t : size;
        q.position[order[t]] = (uint32_t)t;
        for (size_t r = 0; t % size == 0 && r < p->out; r++) {
            for (size_t i = 0; i < left; i++)
                x[i] = z[r * n + order[t + i]];
            naive_range(s, x, left, &q.scale[r * groups + g], &q.zero[r * groups + g]);
        }
        naive_column(s, p, order, t, a, z, g, groups, &q);
        if (a)
            eliminate(a, n, order[t]);
    }
    free(z);
    free(x);
    free(a);
    free(order);
    return q;
}

static void naive_free(naive *q)
{
    free(q->code);
    free(q->scale);
    free(q->zero);
    free(q->position);
}

static const vptq_uniform_settings usual = {
    .bits = 4, .group_size = 32, .storage = VPTQ_F16, .ridge = 0.01, .damping = 0.01};

/* Float and double may differ where a number lies between two codes: such codes are few and
 * next to each other. */
static void check_case(const vptq_uniform_settings *s, uint32_t out, uint32_t in)
{
    problem p = problem_make(out, in, 3);
    naive want = naive_make(s, &p);
    vencoder_run run;
    vptq_err err = {0};
    vptq_uniform u;
    double added;
    size_t different = 0;

    vencoder_open(&run, "cpu", 2);
    const vptq_uniform_input input = {.out = out, .in = in, .w = p.w, .lower = p.lower};
    assert_ok(vptq_uniform_quantize(&run.dev, s, &input, &run.arena, &u, &added, &err), &err);
    assert_true(added == 0);
    const vptq_uniform_shape *shape = &u.shape;
    const size_t groups = vptq_uniform_groups(shape), words = vptq_uniform_row_words(shape);
    assert_true((u.zeros != NULL) == !s->symmetric);
    assert_true((u.groups != NULL) == (s->order && s->compensate && groups > 1));
    for (size_t c = 0; u.groups && c < in; c++)
        assert_int_equal(u.groups[c], want.position[c] / shape->group_size);
    for (size_t i = 0; i < out * groups; i++) {
        assert_true(fabs((double)u.scales[i] / want.scale[i] - 1) < 1e-3);
        different += u.zeros && (double)u.zeros[i] != want.zero[i];
    }
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++) {
            const long got = vptq_bits_get(u.codes + r * words, c, s->bits);
            different += got != (long)want.code[r * in + c];
            assert_true(labs(got - (long)want.code[r * in + c]) <= 1);
        }
    assert_true(different * 200 <= (size_t)out * in);
    naive_free(&want);
    vencoder_close(&run);
    problem_free(&p);
}

static void test_rtn(void **state)
{
    (void)state;
    vptq_uniform_settings s = usual;
    for (s.bits = 2; s.bits <= 8; s.bits++)
        check_case(&s, 20, 80); /* the last group has 16 columns */
    s.bits = 3;
    s.symmetric = true;
    s.storage = VPTQ_BF16;
    check_case(&s, 33, 64);
    s.group_size = 0;
    check_case(&s, 7, 50);
    s.group_size = 1000;
    check_case(&s, 1, 5);
}

static void test_gptq(void **state)
{
    (void)state;
    vptq_uniform_settings s = usual;
    s.compensate = true;
    check_case(&s, 24, 80);
    s.order = true;
    check_case(&s, 24, 80);
    s.bits = 2;
    s.group_size = 0;
    check_case(&s, 40, 96);
    s.bits = 8;
    s.symmetric = true;
    check_case(&s, 16, 160); /* two blocks */
    s.group_size = 144;
    check_case(&s, 16, 160);
}

/* ---- the codes of llm-compressor ---- */

static const vptq_tensor *need_tensor(const vptq_tensor_set *set, const char *name)
{
    const vptq_tensor *t = vptq_tensor_find(set, name);
    assert_non_null(t);
    return t;
}

/* tests/golden/make_gptq.py: one group per row.  There the factor is in float and decoded
 * weights are not rounded to the type of the scale: some of 4608 codes are neighbours, more of
 * them where the steps are small. */
static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t bits;
        bool symmetric, order;
        size_t most; /* codes that differ */
    } cases[] = {{"codes_3_asym_plain", 3, false, false, 10},
                 {"codes_3_asym_act", 3, false, true, 10},
                 {"codes_4_sym_act", 4, true, true, 30},
                 {"codes_8_sym_plain", 8, true, false, 400}};
    vencoder_run run;
    vptq_err err = {0};
    vptq_tensor_set set;
    vencoder_open(&run, "cpu", 2);
    vptq_tensor_set_init(&set, &run.mem);
    assert_ok(vptq_safetensors_read("tests/golden/gptq.safetensors", &set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(&set, &err), &err);
    const vptq_tensor *w = need_tensor(&set, "w");
    const uint32_t out = (uint32_t)w->shape[0], in = (uint32_t)w->shape[1];
    const vptq_uniform_input input = {
        .out = out,
        .in = in,
        .w = vptq_tensor_aligned(w, &run.arena, &err),
        .lower = vptq_tensor_aligned(need_tensor(&set, "lower"), &run.arena, &err)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const vptq_uniform_settings s = {.bits = cases[i].bits,
                                         .symmetric = cases[i].symmetric,
                                         .compensate = true,
                                         .order = cases[i].order,
                                         .storage = VPTQ_F16,
                                         .ridge = 0.01,
                                         .damping = 0.01};
        const uint8_t *want = need_tensor(&set, cases[i].name)->data;
        vptq_uniform u;
        double added;
        size_t different = 0;
        assert_ok(vptq_uniform_quantize(&run.dev, &s, &input, &run.arena, &u, &added, &err),
                  &err);
        for (size_t r = 0; r < out; r++)
            for (size_t c = 0; c < in; c++) {
                const uint32_t *row = u.codes + r * vptq_uniform_row_words(&u.shape);
                const int got = (int)vptq_bits_get(row, c, s.bits);
                different += got != want[r * in + c];
                assert_true(abs(got - want[r * in + c]) <= (s.bits < 8 ? 1 : 4));
            }
        assert_true(different <= cases[i].most);
    }
    vptq_tensor_set_release(&set);
    vencoder_close(&run);
}

/* Compensation lowers the loss, a finer grid does, and the loss is that of what is decoded. */
static void test_losses(void **state)
{
    (void)state;
    problem p = problem_make(64, 96, 5);
    vencoder_run run;
    vptq_err err = {0};
    vptq_uniform u;
    double added, loss[2][3];
    float *what = malloc(sizeof *what * p.out * p.in);
    const vptq_uniform_input input = {.out = p.out, .in = p.in, .w = p.w, .lower = p.lower};
    vencoder_open(&run, "cpu", 1);
    for (int gptq = 0; gptq < 2; gptq++)
        for (uint32_t b = 0; b < 3; b++) {
            vptq_uniform_settings s = usual;
            s.compensate = gptq;
            s.bits = 2 + b;
            assert_ok(vptq_uniform_quantize(&run.dev, &s, &input, &run.arena, &u, &added, &err),
                      &err);
            vptq_uniform_read(&u, 0, p.out, what);
            loss[gptq][b] = problem_loss(&p, what);
        }
    for (int b = 0; b < 3; b++)
        assert_true(loss[1][b] < 0.8 * loss[0][b]);
    for (int gptq = 0; gptq < 2; gptq++)
        for (int b = 1; b < 3; b++)
            assert_true(loss[gptq][b] < 0.5 * loss[gptq][b - 1]);
    free(what);
    vencoder_close(&run);
    problem_free(&p);
}

/* ---- the same bytes everywhere ---- */

static uint64_t digest(const vptq_uniform *u)
{
    const vptq_uniform_shape *s = &u->shape;
    const size_t numbers = (size_t)s->out * vptq_uniform_groups(s);
    uint64_t h = vptq_hash(u->codes, s->out * vptq_uniform_row_words(s) * sizeof *u->codes, 0);
    h = vptq_hash(u->scales, numbers * sizeof *u->scales, h);
    h = vptq_hash(u->zeros, numbers, h);
    return vptq_hash(u->groups, s->in * sizeof *u->groups, h);
}

static uint64_t quantize_on(const problem *p, const char *backend, int threads)
{
    vptq_uniform_settings s = usual;
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    vencoder_run run;
    vptq_err err = {0};
    vptq_uniform u;
    double added;
    s.compensate = s.order = true;
    vencoder_open(&run, backend, threads);
    assert_ok(vptq_uniform_quantize(&run.dev, &s, &input, &run.arena, &u, &added, &err), &err);
    const uint64_t h = digest(&u);
    vencoder_close(&run);
    return h;
}

static void test_threads(void **state)
{
    (void)state;
    problem p = problem_make(150, 200, 9);
    const uint64_t want = quantize_on(&p, "cpu", 1);
    for (int threads = 2; threads <= 5; threads++)
        assert_true(quantize_on(&p, "cpu", threads) == want);
    problem_free(&p);
}

/* ---- bad input ---- */

static vptq_status quantize_small(void *arg, vptq_device *dev, vptq_err *err)
{
    const problem *p = arg;
    vptq_uniform_settings s = usual;
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    vptq_arena arena;
    vptq_uniform u;
    double added;
    s.compensate = s.order = true;
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = vptq_uniform_quantize(dev, &s, &input, &arena, &u, &added, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_memory(void **state)
{
    (void)state;
    problem p = problem_make(9, 70, 2);
    assert_true(devices_oom_walk("cpu", 2, quantize_small, &p) > 10);
    problem_free(&p);
}

static void test_bad_hessians(void **state)
{
    (void)state;
    problem p = problem_make(8, 64, 2);
    vencoder_run run;
    vptq_err err = {0};
    const float good = p.lower[0];
    vencoder_open(&run, "cpu", 1);
    p.lower[0] = NAN;
    assert_int_equal(quantize_small(&p, &run.dev, &err), VPTQ_E_NUMERIC);
    p.lower[0] = good;
    memset(p.lower, 0, sizeof *p.lower * 64 * 65 / 2);
    assert_int_equal(quantize_small(&p, &run.dev, &err), VPTQ_E_NUMERIC);
    assert_non_null(strstr(err.text, "mean diagonal of 0"));
    vencoder_close(&run);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rtn),          cmocka_unit_test(test_gptq),
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_losses),
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_bad_hessians),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
