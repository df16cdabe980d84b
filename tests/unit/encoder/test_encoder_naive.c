/* Tests a whole matrix, from weights to stored bits, against a naive pass in double on the
 * inverse Hessian itself; also cancelling, bad input and exhausted memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "tests/support/devices.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

static int order_cmp(const void *a, const void *b)
{
    const double *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] > y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : 1;
}

/* Optimal brain surgeon written out: quantizes the column with the largest diagonal of the
 * metric, moves the others by -e / [A^-1]_pp * [A^-1]_p. and eliminates p from A^-1. Indices
 * are in original column order, idx [vector rows][in]. */
static void naive_pass(const problem *p, const vptq_encoder_settings *s, const vptq_vq *vq,
                       uint32_t *idx)
{
    size_t n = p->in, vector_rows = vptq_vq_vector_rows(&vq->shape);
    double *a = malloc(sizeof *a * n * n), *rank = malloc(sizeof *rank * 2 * n), mean = 0;
    double *z = calloc(vector_rows * s->v * n, sizeof *z);

    for (size_t i = 0; i < n; i++)
        mean += p->h[i * n + i] / (double)n;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            a[i * n + j] = (p->h[i * n + j] + (i == j ? s->ridge * mean : 0)) *
                           (double)vq->scale[i] * (double)vq->scale[j];
    for (size_t i = 0; i < n; i++) {
        rank[2 * i] = s->perm ? a[i * n + i] : 0;
        rank[2 * i + 1] = (double)i;
    }
    qsort(rank, n, 2 * sizeof *rank, order_cmp);
    for (size_t r = 0; r < p->out; r++)
        for (size_t c = 0; c < n; c++)
            z[r * n + c] = (double)((p->w[r * n + c] - vq->bias[c]) / vq->scale[c]);
    problem_invert(n, a);
    for (size_t t = 0; t < n; t++) {
        size_t c = (size_t)rank[2 * t + 1];
        for (size_t g = 0; g < vector_rows; g++) {
            double best = INFINITY;
            for (uint32_t k = 0; k < s->k; k++) {
                double d = 0;
                for (uint32_t i = 0; i < s->v; i++) {
                    double x = z[(g * s->v + i) * n + c] - (double)vq->centroids[k * s->v + i];
                    d += x * x;
                }
                if (d < best) {
                    best = d;
                    idx[g * n + c] = k;
                }
            }
            for (uint32_t i = 0; i < s->v; i++) {
                double *row = z + (g * s->v + i) * n;
                double e = row[c] - (double)vq->centroids[idx[g * n + c] * s->v + i];
                for (size_t u = t + 1; u < n; u++) {
                    size_t cu = (size_t)rank[2 * u + 1];
                    row[cu] -= e / a[c * n + c] * a[c * n + cu];
                }
            }
        }
        for (size_t u = t + 1; u < n; u++)
            for (size_t w = t + 1; w < n; w++) {
                size_t cu = (size_t)rank[2 * u + 1], cw = (size_t)rank[2 * w + 1];
                a[cu * n + cw] -= a[cu * n + c] * a[c * n + cw] / a[c * n + c];
            }
    }
    free(a);
    free(rank);
    free(z);
}

static void check_against_naive(uint32_t out, uint32_t in, uint32_t v, uint32_t k, bool norm,
                                bool perm)
{
    problem p = problem_make(out, in, 11);
    vencoder_run b;
    vptq_err err = {0};
    vptq_encoder_result r;
    vptq_encoder_settings s = vptq_encoder_defaults();

    s.v = v;
    s.k = k;
    s.norm = norm;
    s.perm = perm;
    s.retrain = s.sweeps = s.refits = 0; /* the pass is the last decision */
    vencoder_open(&b, "cpu", 2);
    assert_ok(vptq_encode_matrix(
                  &b.dev, &s,
                  &(vptq_encoder_input){
                      .matrix_id = 5, .out = out, .in = in, .w = p.w, .lower = p.lower},
                  &b.arena, &r, &err),
              &err);
    size_t vector_rows = vptq_vq_vector_rows(&r.vq.shape),
           words = vptq_vq_row_words(&r.vq.shape);
    uint32_t *want = malloc(sizeof *want * vector_rows * in);
    naive_pass(&p, &s, &r.vq, want);
    for (size_t g = 0; g < vector_rows; g++)
        for (size_t c = 0; c < in; c++)
            assert_int_equal(
                vptq_bits_get(r.vq.indices + g * words, c, vptq_vq_index_bits(&r.vq.shape)),
                want[g * in + c]);

    /* Every reported loss is that of the matrix a reader decodes. */
    float *what = malloc(sizeof *what * out * in);
    assert_ok(vptq_device_decode(&b.dev, &r.vq, 0, out, what, in, &err), &err);
    double loss = problem_loss(&p, what);
    assert_true(fabs(r.report.loss / loss - 1) < 1e-6);
    assert_true(fabs(r.report.steps[1].loss / loss - 1) < 1e-4);
    assert_true(r.report.loss < r.report.steps[0].loss);
    for (size_t i = 0; i < (size_t)k * v; i++)
        assert_true(r.vq.centroids[i] == vptq_f16_to_f32(vptq_f32_to_f16(r.centroids_f32[i])));
    free(what);
    free(want);
    vencoder_close(&b);
    problem_free(&p);
}

static void test_pass_equals_naive(void **state)
{
    (void)state;
    check_against_naive(64, 64, 4, 16, true, true);
    check_against_naive(64, 64, 8, 32, true, false);
    check_against_naive(30, 150, 4, 16, false,
                        true); /* padding, and more than one block of columns */
    check_against_naive(1, 40, 1, 4, true, true);
    check_against_naive(17, 33, 6, 64, false, false);
}

static void test_bad_numbers_are_refused(void **state)
{
    (void)state;
    problem p = problem_make(16, 8, 81);
    vencoder_run b;
    vptq_err err = {0};
    vptq_encoder_result r;
    vptq_encoder_settings s = vptq_encoder_defaults();
    vencoder_open(&b, "cpu", 1);
#define RUN()                                                                                  \
    vptq_encode_matrix(                                                                        \
        &b.dev, &s,                                                                            \
        &(vptq_encoder_input){                                                                 \
            .matrix_id = 0, .out = p.out, .in = p.in, .w = p.w, .lower = p.lower},             \
        &b.arena, &r, &err)
    p.w[3 * 8 + 5] = NAN;
    assert_fails(RUN(), VPTQ_E_NUMERIC, &err, "row 3, column 5");
    p.w[3 * 8 + 5] = 1e30F;
    assert_fails(RUN(), VPTQ_E_NUMERIC, &err, "column 5");
    p.w[3 * 8 + 5] = 0;
    p.lower[4] = INFINITY;
    assert_fails(RUN(), VPTQ_E_NUMERIC, &err, "(2, 1)");
    p.lower[4] = 0;
    float keep = p.lower[5];
    p.lower[5] = -1;
    assert_fails(RUN(), VPTQ_E_NUMERIC, &err, "diagonal 2");
    p.lower[5] = keep;
    s.k = 100;
    assert_fails(RUN(), VPTQ_E_ARG, &err, "power of two");
    s.k = 131072;
    assert_fails(RUN(), VPTQ_E_ARG, &err, "65536");
    s = vptq_encoder_defaults();
    s.v = 65;
    assert_fails(RUN(), VPTQ_E_ARG, &err, "vector_length is '65'");
    s = vptq_encoder_defaults();
    s.storage = VPTQ_F32;
    assert_fails(RUN(), VPTQ_E_ARG, &err, "F16 or BF16");
    s = vptq_encoder_defaults();
    memset(p.lower, 0, sizeof(float) * 36);
    assert_fails(RUN(), VPTQ_E_NUMERIC, &err, "every calibration input of this matrix is zero");
#undef RUN
    vencoder_close(&b);
    problem_free(&p);
}

static void test_cancelled(void **state)
{
    (void)state;
    problem p = problem_make(16, 8, 91);
    volatile sig_atomic_t stop = 1;
    vencoder_run b;
    vptq_err err = {0};
    vptq_encoder_loss loss;
    const vptq_encoder_input input = vencoder_input(&p);
    vencoder_open(&b, "cpu", 1);
    b.ctx.cancel = &stop;
    assert_fails(vptq_encoder_measure(&b.dev, &input, p.w, &loss, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    vencoder_close(&b);
    problem_free(&p);
}

static vptq_status quantize_with(void *arg, vptq_device *dev, vptq_err *err)
{
    const problem *p = arg;
    vptq_encoder_result r;
    vptq_encoder_settings s = vptq_encoder_defaults();
    vptq_arena arena;

    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = vptq_encode_matrix(
        dev, &s,
        &(vptq_encoder_input){.out = p->out, .in = p->in, .w = p->w, .lower = p->lower}, &arena,
        &r, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    problem p = problem_make(32, 24, 91);
    assert_true(devices_oom_walk("cpu", 1, quantize_with, &p) > 10);
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_pass_equals_naive),
           cmocka_unit_test(test_bad_numbers_are_refused), cmocka_unit_test(test_cancelled),
           cmocka_unit_test(test_out_of_memory))
