/* Tests encoding under an output Hessian against tr(E H E^T K) term by term in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

enum { BLOCK = VPTQ_OUTPUT_ROWS };

static size_t k_size(uint32_t out)
{
    return (size_t)(out + BLOCK - 1) / BLOCK * BLOCK * BLOCK;
}

/* Second moments of `BLOCK` random gradients: rows that depend on each other, of very different
 * size.  The caller frees them. */
static float *make_output(uint32_t out, uint64_t seed)
{
    float *k = calloc(k_size(out), sizeof *k);
    problem p = problem_make(BLOCK, out, seed);
    assert_non_null(k);
    for (size_t i = 0; i < out; i++)
        for (size_t j = i / BLOCK * BLOCK; j < out && j / BLOCK == i / BLOCK; j++) {
            double sum = 0;
            for (size_t t = 0; t < BLOCK; t++)
                sum += (double)p.w[t * out + i] * (double)p.w[t * out + j];
            k[i * BLOCK + j % BLOCK] = (float)(sum * exp(-0.01 * (double)(i + j)));
        }
    problem_free(&p);
    return k;
}

/* K as the encoder uses it; rows past the end have 1. */
static double entry(const float *k, uint32_t out, size_t i, size_t j)
{
    double mean = 0;
    if (i >= out || j >= out)
        return i == j;
    if (i / BLOCK != j / BLOCK)
        return 0;
    for (size_t r = 0; r < out; r++)
        mean += (double)k[r * BLOCK + r % BLOCK] / out;
    return (double)k[i * BLOCK + j % BLOCK] / mean * (i == j ? 1 : 0.75) + (i == j ? 0.05 : 0);
}

/* tr(E H E^T K) for e [out][in]. */
static double trace(const problem *p, const float *k, const double *e)
{
    double sum = 0;
    for (size_t r = 0; r < p->out; r++)
        for (size_t s = r / BLOCK * BLOCK; s < p->out && s / BLOCK == r / BLOCK; s++) {
            double product = 0;
            for (size_t i = 0; i < p->in; i++)
                for (size_t j = 0; j < p->in; j++)
                    product += e[r * p->in + i] * p->h[i * p->in + j] * e[s * p->in + j];
            sum += product * entry(k, p->out, r, s);
        }
    return sum;
}

static double output_loss(const problem *p, const float *k, const vptq_vq *vq)
{
    const size_t n = (size_t)p->out * p->in;
    double *e = malloc(2 * n * sizeof *e);
    float *what = vencoder_decode(vq);
    assert_non_null(e);
    for (size_t i = 0; i < n; i++) {
        e[i] = (double)what[i] - (double)p->w[i];
        e[n + i] = (double)p->w[i];
    }
    const double loss = trace(p, k, e) / trace(p, k, e + n);
    free(what);
    free(e);
    return loss;
}

static double plain_loss(const problem *p, const vptq_vq *vq)
{
    float *what = vencoder_decode(vq);
    const double loss = problem_loss(p, what);
    free(what);
    return loss;
}

static void check_loss(const vencoder_case *q, uint64_t seed)
{
    problem p = problem_make(q->out, q->in, seed);
    vptq_encoder_settings s = vencoder_case_settings(q);
    vptq_encoder_input input = vencoder_input(&p);
    float *k = make_output(p.out, seed + 100);
    vencoder_run plain, with;

    s.ridge = 0; /* the loss has none */
    vencoder_open(&plain, "cpu", 2);
    vencoder_open(&with, "cpu", 2);
    vencoder_quantize(&plain, &s, &input);
    input.output = k;
    vencoder_quantize(&with, &s, &input);
    const vptq_encoder_report *r = &with.r.report;
    const double before = output_loss(&p, k, &plain.r.vq);
    const double after = output_loss(&p, k, &with.r.vq);
    assert_true(after < 0.92 * before);
    assert_true(plain.r.report.output == 0);
    assert_true(fabs(r->output - after) < 1e-4 * after);
    assert_true(fabs(r->loss - plain_loss(&p, &with.r.vq)) < 1e-5 * r->loss);
    /* the last step before storage has the same loss up to rounding */
    assert_string_equal(r->steps[r->num_steps - 2].name, "output");
    assert_true(fabs(r->steps[r->num_steps - 2].loss - r->loss) < 0.05 * r->loss);
    vencoder_close(&plain);
    vencoder_close(&with);
    problem_free(&p);
    free(k);
}

/* The loss under K falls, and it and the plain loss are reported as they are. */
static void test_loss(void **state)
{
    static const vencoder_case blocks = {150,           40,  6, 16, 4, 1, 0, 4, 16, 4,
                                         VPTQ_NORM_STD, true};
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++)
        check_loss(&vencoder_cases[i], 700 + i);
    check_loss(&blocks, 720);
}

/* On int8 grids the loss under K stays nearly as low: no step ignores K after the rounding. */
static void test_grid(void **state)
{
    const vencoder_case q = {150, 60, 4, 32, 16, 1, 0, 4, 16, 4, VPTQ_NORM_STD, true};
    problem p = problem_make(q.out, q.in, 721);
    vptq_encoder_settings s = vencoder_case_settings(&q);
    vptq_encoder_input input = vencoder_input(&p);
    float *k = make_output(p.out, 722);
    double loss[2];

    (void)state;
    input.output = k;
    for (uint32_t grid = 0; grid < 2; grid++) {
        static const char *const names[] = {"storage", "adapt", "grid", "output"};
        vencoder_run run;
        s.codebook_grid = grid;
        vencoder_open(&run, "cpu", 2);
        vencoder_quantize(&run, &s, &input);
        const vptq_encoder_report *r = &run.r.report;
        for (uint32_t i = 0; i < 4 && grid; i++)
            assert_string_equal(r->steps[r->num_steps - 1 - i].name, names[i]);
        loss[grid] = output_loss(&p, k, &run.r.vq);
        vencoder_close(&run);
    }
    assert_true(loss[1] < 1.02 * loss[0]);
    problem_free(&p);
    free(k);
}

/* ---- bytes ---- */

static uint64_t digest(const vptq_encoder_settings *s, const vptq_encoder_input *input,
                       const char *backend, int threads)
{
    vencoder_run run;
    vencoder_open(&run, backend, threads);
    vencoder_quantize(&run, s, input);
    const uint64_t sum = vencoder_digest(&run.r.vq);
    vencoder_close(&run);
    return sum;
}

static void test_bytes(void **state)
{
    const vencoder_case q = {150, 140, 4, 16, 8, 2, 3, 8, 16, 4, VPTQ_NORM_STD, true};
    problem p = problem_make(q.out, q.in, 730);
    vptq_encoder_settings s = vencoder_case_settings(&q);
    vptq_encoder_input input = vencoder_input(&p);
    float *k = make_output(p.out, 731), *zero = calloc(k_size(p.out), sizeof *zero);

    (void)state;
    assert_non_null(zero);
    const uint64_t plain = digest(&s, &input, "cpu", 2);
    input.output = zero; /* nothing depends on the outputs */
    assert_true(digest(&s, &input, "cpu", 2) == plain);
    input.output = k;
    const uint64_t with = digest(&s, &input, "cpu", 1);
    assert_true(with != plain);
    assert_true(digest(&s, &input, "cpu", 4) == with);
    for (size_t i = 0; i < k_size(p.out); i++) /* only the quotients of entries count */
        k[i] *= 0x1p-20F;
    assert_true(digest(&s, &input, "cpu", 2) == with);
    s.refits = 0;
    const uint64_t without_refits = digest(&s, &input, "cpu", 2);
    input.output = NULL;
    assert_true(digest(&s, &input, "cpu", 2) == without_refits);
    problem_free(&p);
    free(zero);
    free(k);
}

/* ---- bad input ---- */

/* `text` begins the message. */
static void expect_failure(const problem *p, const float *k, const char *text)
{
    const vptq_encoder_settings s = vencoder_settings(4, 16, 0);
    vptq_encoder_input input = vencoder_input(p);
    vencoder_run run;
    vptq_err err = {0};

    input.output = k;
    vencoder_open(&run, "cpu", 1);
    assert_int_equal(vptq_encode_matrix(&run.dev, &s, &input, &run.arena, &run.r, &err),
                     VPTQ_E_NUMERIC);
    assert_memory_equal(err.text, text, strlen(text));
    vencoder_close(&run);
}

static void test_bad_input(void **state)
{
    problem p = problem_make(80, 24, 740);
    float *k = make_output(p.out, 741);

    (void)state;
    k[70 * BLOCK + 6] = -1;
    expect_failure(&p, k,
                   "the output hessian of row 70 is -1, expected zero or a positive number");
    k[70 * BLOCK + 6] = 1;
    k[70 * BLOCK + 2] = 1e20F;
    expect_failure(&p, k,
                   "the output hessian of rows 70 and 66 is 1e+20, expected at most the sum");
    k[70 * BLOCK + 2] = (float)INFINITY;
    expect_failure(&p, k,
                   "the output hessian of rows 70 and 66 is inf, expected a finite number");
    problem_free(&p);
    free(k);
}

VTEST_MAIN(cmocka_unit_test(test_loss), cmocka_unit_test(test_grid),
           cmocka_unit_test(test_bytes), cmocka_unit_test(test_bad_input))
