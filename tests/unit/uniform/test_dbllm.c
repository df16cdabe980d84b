/* Tests DB-LLM against its definition in double and a transcription of the paper's equations.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "lib/uniform/dbllm.h"
#include "tests/support/devices.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

enum { GROUP = 64 };

static const vptq_dbllm_settings usual = {
    .group_size = GROUP, .rounds = 50, .tolerance = 0.01, .storage = VPTQ_F16};

static void quantize(const problem *p, const vptq_dbllm_settings *s, vencoder_run *run,
                     vptq_additive *a)
{
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    vptq_err err = {0};
    assert_ok(vptq_dbllm_quantize(&run->dev, s, &input, &run->arena, a, &err), &err);
}

static unsigned code_of(const vptq_additive *a, size_t row, size_t column)
{
    unsigned code = 0;
    for (uint32_t k = 0; k < 2; k++)
        code |=
            vptq_bits_get(a->codes[k] + row * vptq_additive_row_words(&a->shape, k), column, 1)
            << k;
    return code;
}

static double alpha_of(const vptq_additive *a, uint32_t plane, size_t row, size_t column)
{
    const size_t size = a->shape.block_columns, groups = (a->shape.in + size - 1) / size;
    return (double)a->codebooks[plane][(row * groups + column / size) * 2 + 1];
}

/* The matrix as readers decode it; the caller frees it. */
static float *decode(const problem *p, const vptq_dbllm_settings *s, const char *backend)
{
    vencoder_run run;
    vptq_additive a;
    vptq_err err = {0};
    float *what = vtest_alloc((size_t)p->out * p->in, sizeof *what);
    vencoder_open(&run, backend, 2);
    quantize(p, s, &run, &a);
    assert_true(a.shape.sparse && a.shape.stages == 2 && a.shape.v == 1);
    assert_ok(vptq_additive_decode(&run.ctx, &a, what, &err), &err);
    for (size_t i = 0; i < (size_t)p->out * p->in; i++) {
        const size_t r = i / p->in, c = i % p->in;
        const unsigned code = code_of(&a, r, c);
        const double a1 = alpha_of(&a, 0, r, c), a2 = alpha_of(&a, 1, r, c);
        assert_true(what[i] == (float)((code & 1 ? a1 : 0) + (code & 2 ? a2 : 0)));
        assert_true((double)vptq_round_to(s->storage, (float)a1) == a1);
        assert_true((double)vptq_round_to(s->storage, (float)a2) == a2);
    }
    vencoder_close(&run);
    return what;
}

static double loss_of(const problem *p, const vptq_dbllm_settings *s, const char *backend)
{
    float *what = decode(p, s, backend);
    const double loss = problem_loss(p, what);
    free(what);
    return loss;
}

/* ---- the golden matrix ---- */

static void *copy_tensor(const vptq_tensor_set *set, const char *name, size_t bytes)
{
    const vptq_tensor *t = vptq_tensor_find(set, name);
    void *x = vtest_alloc(bytes, 1);
    assert_non_null(t);
    memcpy(x, t->data, bytes);
    return x;
}

/* tests/golden/make_dbllm.py: the paper's start exactly, and a loss after the rounds no more
 * than 1.02 times that without rounding. */
static void test_golden(void **state)
{
    (void)state;
    enum { OUT = 32, IN = 144, ALL = OUT * IN, GROUPS = 3 };
    vptq_tensor_set set;
    vptq_err err = {0};
    vencoder_run run;
    vptq_additive a;
    vptq_dbllm_settings s = usual;
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_safetensors_read("tests/golden/gptq.safetensors", &set, NULL, &err), &err);
    assert_ok(vptq_safetensors_read("tests/golden/dbllm.safetensors", &set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(&set, &err), &err);
    problem p = {.out = OUT,
                 .in = IN,
                 .w = copy_tensor(&set, "w", ALL * sizeof(float)),
                 .lower = copy_tensor(&set, "lower", (size_t)IN * (IN + 1) / 2 * sizeof(float)),
                 .h = vtest_alloc((size_t)IN * IN, sizeof *p.h)};
    uint8_t *codes = copy_tensor(&set, "codes", ALL);
    float *alpha = copy_tensor(&set, "alpha", 2 * OUT * GROUPS * sizeof *alpha);
    float *fitted = copy_tensor(&set, "fitted", ALL * sizeof *fitted);
    problem_unpack(&p);
    vencoder_open(&run, "cpu", 1);
    s.rounds = 0;
    quantize(&p, &s, &run, &a);
    for (size_t r = 0; r < OUT; r++)
        for (size_t c = 0; c < IN; c++) {
            assert_int_equal(code_of(&a, r, c), codes[r * IN + c]);
            for (uint32_t k = 0; k < 2; k++)
                assert_true(alpha_of(&a, k, r, c) ==
                            (double)alpha[(k * OUT + r) * GROUPS + c / GROUP]);
        }
    vencoder_close(&run);
    const double start = loss_of(&p, &s, "cpu"), loss = loss_of(&p, &usual, "cpu");
    assert_true(loss < 1.02 * problem_loss(&p, fitted));
    assert_true(loss < 0.3 * start);
    free(codes);
    free(alpha);
    free(fitted);
    problem_free(&p);
    vptq_tensor_set_release(&set);
}

/* ---- a round ---- */

/* A row in double. */
typedef struct naive {
    double *e, *a[2];
    unsigned *code;
} naive;

static double level(const naive *n, size_t g, unsigned code)
{
    return (code & 1 ? n->a[0][g] : 0) + (code & 2 ? n->a[1][g] : 0);
}

static double dot_h(const problem *p, const naive *n, size_t c)
{
    double sum = 0;
    for (size_t j = 0; j < p->in; j++)
        sum += p->h[c * p->in + j] * n->e[j];
    return sum;
}

/* One round over a row, a1 and a2 not rounded. */
static void naive_round(const problem *p, size_t row, size_t size, naive *n)
{
    for (size_t first = 0, g = 0; first < p->in; first += size, g++) {
        const size_t end = first + size < p->in ? first + size : p->in;
        double m[2][2] = {{0}}, r[2] = {0};
        for (size_t i = first; i < end; i++)
            for (unsigned k = 0; k < 2; k++) {
                if (!(n->code[i] >> k & 1))
                    continue;
                r[k] += dot_h(p, n, i);
                for (size_t j = first; j < end; j++)
                    for (unsigned l = 0; l < 2; l++)
                        m[k][l] += p->h[i * p->in + j] * (n->code[j] >> l & 1);
            }
        const double det = m[0][0] * m[1][1] - m[0][1] * m[1][0];
        assert_true(det > 1e-6 * m[0][0] * m[1][1]);
        n->a[0][g] += (r[1] * m[0][1] - r[0] * m[1][1]) / det;
        n->a[1][g] += (r[0] * m[0][1] - r[1] * m[0][0]) / det;
        for (size_t c = first; c < end; c++)
            n->e[c] = level(n, g, n->code[c]) - (double)p->w[row * p->in + c];
        for (size_t c = first; c < end; c++) {
            const double gradient = dot_h(p, n, c), now = level(n, g, n->code[c]);
            double least = 0;
            for (unsigned k = 0; k < 4; k++) {
                const double d = level(n, g, k) - now;
                const double change = d * (2 * gradient + d * p->h[c * (p->in + 1)]);
                if (change < least) {
                    least = change;
                    n->code[c] = k;
                }
            }
            n->e[c] = level(n, g, n->code[c]) - (double)p->w[row * p->in + c];
        }
    }
}

/* Decoded weights of one round, from the start that the library makes. */
static void check_round(uint32_t out, uint32_t in, uint32_t size)
{
    problem p = problem_make(out, in, 3);
    vencoder_run run;
    vptq_additive a;
    vptq_dbllm_settings s = usual;
    s.group_size = size;
    s.rounds = 0;
    const size_t columns = size ? size : in, groups = (in + columns - 1) / columns;
    naive n = {vtest_alloc(in, sizeof *n.e),
               {vtest_alloc(groups, sizeof(double)), vtest_alloc(groups, sizeof(double))},
               vtest_alloc(in, sizeof *n.code)};
    size_t different = 0;
    vencoder_open(&run, "cpu", 2);
    quantize(&p, &s, &run, &a);
    s.rounds = 1;
    float *what = decode(&p, &s, "cpu");
    for (size_t r = 0; r < out; r++) {
        for (size_t c = 0; c < in; c++) {
            n.code[c] = code_of(&a, r, c);
            for (uint32_t k = 0; k < 2; k++)
                n.a[k][c / columns] = alpha_of(&a, k, r, c);
            n.e[c] = level(&n, c / columns, n.code[c]) - (double)p.w[r * in + c];
        }
        naive_round(&p, r, columns, &n);
        for (size_t c = 0; c < in; c++) {
            const double want = level(&n, c / columns, n.code[c]);
            const double scale = fabs(n.a[0][c / columns]) + fabs(n.a[1][c / columns]);
            different += fabs((double)what[r * in + c] - want) > 0.01 * scale;
        }
    }
    assert_true(different * 25 <= (size_t)out * in); /* a changed level changes later ones */
    free(what);
    free(n.e);
    free(n.a[0]);
    free(n.a[1]);
    free(n.code);
    vencoder_close(&run);
    problem_free(&p);
}

static void test_round(void **state)
{
    (void)state;
    check_round(40, 128, 64);
    check_round(17, 150, 64); /* the last group has 22 columns */
    check_round(5, 40, 0);
    check_round(33, 96, 32);
}

static void test_rounds(void **state)
{
    (void)state;
    problem p = problem_make(48, 160, 6);
    vptq_dbllm_settings s = usual;
    s.tolerance = 0;
    double before = INFINITY;
    for (s.rounds = 0; s.rounds < 6; s.rounds++) {
        const double loss = loss_of(&p, &s, "cpu");
        assert_true(loss < before);
        before = loss;
    }
    s.storage = VPTQ_BF16;
    assert_true(loss_of(&p, &s, "cpu") < 1.05 * before);
    const double plain = loss_of(&p, &usual, "cpu");
    assert_true(fabs(loss_of(&p, &usual, "ref") / plain - 1) < 0.02);
    assert_true(fabs(loss_of(&p, &usual, devices_gpu()) / plain - 1) < 0.02);
    problem_free(&p);
}

/* ---- extremes ---- */

/* Groups of one number, of zeros or without inputs, and numbers beyond F16. */
static void test_extremes(void **state)
{
    (void)state;
    problem p = problem_make(16, 150, 2);
    for (size_t i = 0; i < 150; i++) {
        p.w[i] = 0;
        p.w[150 + i] = 0.25F;
        p.w[450 + i] *= 1e-30F;
    }
    for (size_t i = 0; i < 150; i++)
        for (size_t j = 0; j <= i; j++)
            if (j < 64)
                p.lower[i * (i + 1) / 2 + j] = 0;
    problem_unpack(&p);
    for (int huge = 0; huge < 2; huge++) {
        float *what = decode(&p, &usual, "cpu");
        for (size_t i = 0; i < (size_t)16 * 150; i++)
            assert_true(isfinite(what[i]));
        for (size_t i = 0; i < 150; i++)
            assert_true(what[i] == 0);
        for (size_t i = 64; i < 150 && !huge; i++)
            assert_true(fabsf(what[150 + i] - 0.25F) < 1e-2F);
        free(what);
        for (size_t i = 0; i < 150; i++)
            p.w[300 + i] *= 1e30F;
    }
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_golden), cmocka_unit_test(test_round),
           cmocka_unit_test(test_rounds), cmocka_unit_test(test_extremes))
