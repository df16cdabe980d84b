/* Tests QuIP# against its definition in double (rotation, block LDLQ by elimination, sweeps),
 * and its losses against those of the published code. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hadamard.h"
#include "lib/base/lattice.h"
#include "lib/uniform/quip.h"
#include "tests/support/vadditive.h"
#include "tests/support/vencoder.h"
#include "tests/support/vgolden.h"
#include "tests/support/vtest.h"

enum { V = VPTQ_LATTICE_V, SWEEPS = 10 };

static const vptq_quip_settings usual = {.bits = 2, .seed = 7, .ridge = 0.01, .damping = 0.01};

static void quantize(vencoder_run *run, const vptq_quip_settings *s, const problem *p,
                     vptq_additive *a)
{
    vptq_err err = {0};
    double added;
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    assert_ok(vptq_quip_quantize(&run->dev, s, &input, 5, &run->arena, a, &added, &err), &err);
    assert_true(added == 0);
}

static float *decode(const vencoder_run *run, const vptq_additive *a)
{
    vptq_err err = {0};
    float *what = vtest_alloc((size_t)a->shape.out * a->shape.in, sizeof *what);
    assert_ok(vptq_additive_decode(&run->ctx, a, what, &err), &err);
    return what;
}

static double loss_of(const vencoder_run *run, const problem *p, const vptq_additive *a)
{
    float *what = decode(run, a);
    const double loss = problem_loss_under(p, p->lower, what);
    free(what);
    return loss;
}

static uint32_t code_of(const vptq_additive *a, uint32_t stage, size_t row, size_t vector)
{
    return vptq_bits_get(a->codes[stage] + row * vptq_additive_row_words(&a->shape, stage),
                         vector, a->shape.bits[stage]);
}

/* ---- the shape ---- */

static void test_shape(void **state)
{
    (void)state;
    vptq_quip_settings s = usual;
    for (s.bits = 2; s.bits <= 4; s.bits++) {
        const vptq_additive_shape a = vptq_quip_shape_of(&s, 4096, 11008);
        assert_true(a.lattice && a.rotated && a.stages == (s.bits == 2 ? 1 : 2));
        /* codes, a scale of 32 bits for each stage, and a sign for every row and column */
        assert_true(vptq_additive_count_bits(&a).total ==
                    (uint64_t)s.bits * 4096 * 11008 + 32 * (uint64_t)a.stages + 4096 + 11008);
    }
}

/* ---- the definition in double ---- */

typedef struct naive {
    size_t out, in;
    uint32_t bits;
    double residual, scale;
    double *w, *what; /* [out][in] rotated, divided by scale */
    double *h;        /* [in][in] rotated, with its ridge */
    uint32_t *codes[2];
} naive;

/* x [rows][n] = x diag(signs) A_n^T, in double. */
static void rotate_rows(size_t rows, size_t n, const uint8_t *signs, double *x)
{
    float *a = vtest_alloc(n * n, sizeof *a); /* row i: what the unit vector i becomes */
    double *old = vtest_alloc(n, sizeof *old);
    for (size_t i = 0; i < n; i++)
        a[i * n + i] = 1;
    vptq_hadamard_rows(n, n, false, a);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n; i++) {
            old[i] = signs[i] ? -x[r * n + i] : x[r * n + i];
            x[r * n + i] = 0;
        }
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                x[r * n + j] += old[i] * (double)a[i * n + j];
    }
    free(a);
    free(old);
}

static double *transposed(size_t rows, size_t n, const double *x)
{
    double *t = vtest_alloc(rows * n, sizeof *t);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < n; j++)
            t[j * rows + i] = x[i * n + j];
    return t;
}

/* diag(left) and diag(right) around x, rotated on both sides. */
static double *rotate_both(size_t out, size_t in, const double *x, const uint8_t *left,
                           const uint8_t *right)
{
    double *rows = vtest_alloc(out * in, sizeof *rows);
    memcpy(rows, x, out * in * sizeof *rows);
    rotate_rows(out, in, right, rows);
    double *columns = transposed(out, in, rows);
    rotate_rows(in, out, left, columns);
    double *result = transposed(in, out, columns);
    free(rows);
    free(columns);
    return result;
}

/* Rotates with the signs that were stored. */
static naive naive_make(const vptq_quip_settings *s, const problem *p, const vptq_additive *a)
{
    static const double scale[] = {1.03, 0.98, 1.03}, residual[] = {1, 2.04, 3.45};
    naive q = {.out = p->out, .in = p->in, .bits = s->bits, .residual = residual[s->bits - 2]};
    double *w = vtest_alloc(q.out * q.in, sizeof *w), mean = 0, square = 0;
    for (size_t i = 0; i < q.out * q.in; i++) {
        w[i] = (double)p->w[i];
        square += w[i] * w[i] / (double)(q.out * q.in);
    }
    q.scale = sqrt(square) / scale[s->bits - 2];
    q.w = rotate_both(q.out, q.in, w, a->row_signs, a->column_signs);
    for (size_t i = 0; i < q.out * q.in; i++)
        q.w[i] /= q.scale;
    q.h = rotate_both(q.in, q.in, p->h, a->column_signs, a->column_signs);
    for (size_t i = 0; i < q.in; i++)
        mean += p->h[i * q.in + i] / (double)q.in;
    for (size_t i = 0; i < q.in; i++)
        q.h[i * q.in + i] += s->ridge * mean;
    q.what = vtest_alloc(q.out * q.in, sizeof *q.what);
    for (size_t m = 0; m < 2; m++)
        q.codes[m] = vtest_alloc(q.out * q.in / V, sizeof *q.codes[m]);
    free(w);
    return q;
}

static void naive_free(naive *q)
{
    free(q->w);
    free(q->what);
    free(q->h);
    free(q->codes[0]);
    free(q->codes[1]);
}

/* Rounds vector t of a row to the points nearest to x. */
static void naive_round(const naive *q, size_t row, size_t t, const double *x)
{
    float y[V], point[V];
    double rest[V], *what = q->what + row * q->in + t * V;
    const size_t at = row * (q->in / V) + t;
    for (size_t e = 0; e < V; e++)
        y[e] = (float)x[e];
    q->codes[0][at] = vptq_lattice_nearest(16, y, point);
    for (size_t e = 0; e < V; e++) {
        what[e] = (double)point[e];
        rest[e] = (x[e] - what[e]) * q->residual;
        y[e] = (float)rest[e];
    }
    if (q->bits == 2)
        return;
    q->codes[1][at] = vptq_lattice_nearest(q->bits == 3 ? 8 : 16, y, point);
    for (size_t e = 0; e < V; e++)
        what[e] += (double)point[e] / q->residual;
}

/* a [n, n] = the inverse of H over the first n columns. */
static double *inverse_of_first(const naive *q, size_t n)
{
    double *a = vtest_alloc(n * n, sizeof *a);
    for (size_t i = 0; i < n * n; i++)
        a[i] = q->h[i / n * q->in + i % n];
    problem_invert(n, a);
    return a;
}

/* Every vector, the last first, is rounded from where it would make up best for the errors of
 * those after it, together with all those before it. */
static void naive_pass(const naive *q)
{
    for (size_t n = q->in; n > 0; n -= V) {
        double *inverse = inverse_of_first(q, n), x[V];
        for (size_t r = 0; r < q->out; r++) {
            const double *w = q->w + r * q->in, *what = q->what + r * q->in;
            double *pull = vtest_alloc(n, sizeof *pull);
            for (size_t i = 0; i < n; i++)
                for (size_t j = n; j < q->in; j++)
                    pull[i] += (w[j] - what[j]) * q->h[j * q->in + i];
            for (size_t e = 0; e < V; e++) {
                x[e] = w[n - V + e];
                for (size_t i = 0; i < n; i++)
                    x[e] += pull[i] * inverse[i * n + n - V + e];
            }
            naive_round(q, r, n / V - 1, x);
            free(pull);
        }
        free(inverse);
    }
}

/* Every vector, the last first, is rounded from where the loss is least while all others stay.
 */
static void naive_sweep(const naive *q)
{
    for (size_t n = q->in; n > 0; n -= V) {
        double block[V * V], pull[V], x[V];
        for (size_t i = 0; i < V * V; i++)
            block[i] = q->h[(n - V + i / V) * q->in + n - V + i % V];
        problem_invert(V, block);
        for (size_t r = 0; r < q->out; r++) {
            const double *w = q->w + r * q->in, *what = q->what + r * q->in;
            for (size_t e = 0; e < V; e++) {
                pull[e] = 0;
                for (size_t j = 0; j < q->in; j++)
                    pull[e] += (w[j] - what[j]) * q->h[j * q->in + n - V + e];
            }
            for (size_t e = 0; e < V; e++) {
                x[e] = what[n - V + e];
                for (size_t f = 0; f < V; f++)
                    x[e] += pull[f] * block[f * V + e];
            }
            naive_round(q, r, n / V - 1, x);
        }
    }
}

/* In float, a target between two points may fall to the other, and takes its row along. */
static void expect_codes(const naive *q, const vptq_additive *a)
{
    size_t rows = 0;
    for (size_t r = 0; r < q->out; r++) {
        bool same = true;
        for (size_t t = 0; t < q->in / V; t++)
            for (uint32_t m = 0; m < a->shape.stages; m++)
                same = same && code_of(a, m, r, t) == q->codes[m][r * (q->in / V) + t];
        rows += !same;
    }
    assert_true(rows * 20 <= q->out);
    assert_true(fabs((double)a->stage_scales[0] / q->scale - 1) < 1e-6);
    if (q->bits > 2)
        assert_true(fabs((double)a->stage_scales[1] / q->scale * q->residual - 1) < 1e-6);
}

static void check_definition(uint32_t bits, uint32_t out, uint32_t in)
{
    vptq_quip_settings s = usual;
    problem p = problem_make(out, in, in);
    vencoder_run run;
    vptq_additive a;
    s.bits = bits;
    vencoder_open(&run, "cpu", 2);
    quantize(&run, &s, &p, &a);
    naive q = naive_make(&s, &p, &a);
    naive_pass(&q);
    for (int i = 0; i < SWEEPS; i++)
        naive_sweep(&q);
    expect_codes(&q, &a);
    naive_free(&q);
    vencoder_close(&run);
    problem_free(&p);
}

/* Two blocks of columns, the second smaller; tiles of rows that are not full. */
static void test_definition(void **state)
{
    (void)state;
    check_definition(2, 24, 144);
    check_definition(3, 20, 48);
    check_definition(4, 33, 136);
    check_definition(2, 5, 8);
}

/* ---- losses ---- */

static void test_losses(void **state)
{
    (void)state;
    problem p = problem_make(64, 96, 5);
    vencoder_run run;
    vptq_additive a;
    double loss[3];
    vencoder_open(&run, "cpu", 1);
    for (uint32_t bits = 2; bits <= 4; bits++) {
        vptq_quip_settings s = usual;
        s.bits = bits;
        quantize(&run, &s, &p, &a);
        loss[bits - 2] = loss_of(&run, &p, &a);
    }
    assert_true(loss[1] < 0.4 * loss[0] && loss[2] < 0.4 * loss[1]);
    vencoder_close(&run);
    problem_free(&p);
}

/* The mean over some draws of signs, as in the golden file. */
static double mean_loss(vencoder_run *run, const problem *p, uint32_t bits)
{
    enum { SEEDS = 4 };
    double sum = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        vptq_quip_settings s = usual;
        vptq_additive a;
        s.bits = bits;
        s.seed = seed;
        quantize(run, &s, p, &a);
        sum += loss_of(run, p, &a);
    }
    return sum / SEEDS;
}

/* Losses of the published code (tests/golden/make_quip.py). */
static void test_golden(void **state)
{
    (void)state;
    vencoder_run run;
    vptq_tensor_set set;
    vencoder_open(&run, "cpu", 2);
    vgolden_open(&set, "tests/golden/quip.safetensors");
    for (int i = 0; i < 3; i++) {
        problem p = vgolden_problem(&set, i);
        double published[3];
        vgolden_losses(&set, i, 3, published);
        for (uint32_t bits = 2; bits <= 4; bits++) {
            const double loss = mean_loss(&run, &p, bits);
            if (!(loss < 1.05 * published[bits - 2]) || !(loss > 0.9 * published[bits - 2]))
                fail_msg("matrix %d, %u bits: loss %g, published %g", i, bits, loss,
                         published[bits - 2]);
        }
        problem_free(&p);
    }
    vptq_tensor_set_release(&set);
    vencoder_close(&run);
}

/* ---- the signs ---- */

static uint64_t quantize_as(const problem *p, uint64_t seed, uint32_t matrix)
{
    vencoder_run run;
    vptq_additive a;
    vptq_err err = {0};
    vptq_quip_settings s = usual;
    double added;
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    s.seed = seed;
    vencoder_open(&run, "cpu", 1);
    assert_ok(vptq_quip_quantize(&run.dev, &s, &input, matrix, &run.arena, &a, &added, &err),
              &err);
    const uint64_t h = vadditive_digest(&a);
    vencoder_close(&run);
    return h;
}

/* Every matrix and seed draws its own. */
static void test_signs(void **state)
{
    (void)state;
    problem p = problem_make(150, 144, 9);
    const uint64_t want = quantize_as(&p, 7, 5);
    assert_true(quantize_as(&p, 7, 5) == want);
    assert_true(quantize_as(&p, 7, 6) != want);
    assert_true(quantize_as(&p, 8, 5) != want);
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_shape), cmocka_unit_test(test_definition),
           cmocka_unit_test(test_losses), cmocka_unit_test(test_golden),
           cmocka_unit_test(test_signs))
