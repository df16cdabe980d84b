/* Tests GPTVQ against its definition in double: training of a codebook, the pass with
 * elimination on the inverse Hessian itself, and least squares over the codebooks; and its
 * losses against those of the published code. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/uniform/gptvq_internal.h"
#include "tests/support/vencoder.h"
#include "tests/support/vgolden.h"
#include "tests/support/vtest.h"

static const vptq_gptvq_settings usual = {.bits = 2,
                                          .v = 2,
                                          .block_columns = 32,
                                          .block_rows = 8,
                                          .int8 = true,
                                          .storage = VPTQ_F16,
                                          .ridge = 0.01,
                                          .damping = 0.01};

static void quantize(vencoder_run *run, const vptq_gptvq_settings *s, const problem *p,
                     vptq_additive *a)
{
    vptq_err err = {0};
    double added;
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    assert_ok(vptq_gptvq_quantize(&run->dev, s, &input, &run->arena, a, &added, &err), &err);
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
    const double loss = problem_loss(p, what);
    free(what);
    return loss;
}

/* ---- the shape ---- */

static void test_shape(void **state)
{
    (void)state;
    vptq_gptvq_settings s = usual;
    s.block_columns = 0, s.block_rows = 100;
    const vptq_additive_shape a = vptq_gptvq_shape_of(&s, 24, 48);
    assert_int_equal(a.block_columns, 48);
    assert_int_equal(a.block_rows, 24);
    assert_int_equal(a.bits[0], 4);
    assert_true(a.int8 && a.stages == 1 && !a.scale_columns && !a.rotated && !a.lattice);
    s = usual;
    s.block_columns = 256;
    const vptq_additive_shape b = vptq_gptvq_shape_of(&s, 4096, 4096);
    /* 2 bits per weight, and 32 numbers of 8 bits and a scale for 2048 weights */
    assert_true(vptq_additive_count_bits(&b).per_weight == 2 + (32 * 8 + 16) / 2048.0);
}

/* ---- the definition in double ---- */

/* a = (H + ridge)^-1 over the columns from `first` on, with those before them eliminated. */
static double *inverse_from(const vptq_gptvq_settings *s, const problem *p, size_t first)
{
    const size_t n = p->in;
    double *a = vtest_alloc(n * n, sizeof *a), mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += p->h[i * n + i] / (double)n;
    for (size_t i = 0; i < n * n; i++)
        a[i] = p->h[i] + (i % (n + 1) ? 0 : s->ridge * mean);
    problem_invert(n, a);
    for (size_t c = 0; c < first; c++)
        for (size_t i = c + 1; i < n; i++)
            for (size_t j = c + 1; j < n; j++)
                a[i * n + j] -= a[i * n + c] * a[c * n + j] / a[c * n + c];
    return a;
}

/* m [v, v] = the inverse of the block of a at the columns from c on: a vector's error d loses d
 * m d^T when all later columns make up for it. */
static void metric_at(const double *a, size_t n, size_t c, size_t v, double *m)
{
    for (size_t i = 0; i < v; i++)
        for (size_t j = 0; j < v; j++)
            m[i * v + j] = a[(c + i) * n + c + j];
    problem_invert(v, m);
}

static double cost_of(size_t v, const double *m, const double *d)
{
    double cost = 0;
    for (size_t i = 0; i < v; i++)
        for (size_t j = 0; j < v; j++)
            cost += d[i] * m[i * v + j] * d[j];
    return cost;
}

/* Costs of all centroids [k][v] for the vector x, best first. */
static size_t cheapest(size_t k, size_t v, const double *m, const double *x, const float *c,
                       double *best, double *second)
{
    size_t found = 0;
    *best = *second = (double)INFINITY;
    for (size_t i = 0; i < k; i++) {
        double d[VPTQ_GPTVQ_MAX_V];
        for (size_t e = 0; e < v; e++)
            d[e] = x[e] - (double)c[i * v + e];
        const double cost = cost_of(v, m, d);
        if (cost < *best) {
            *second = *best;
            *best = cost;
            found = i;
        } else if (cost < *second) {
            *second = cost;
        }
    }
    return found;
}

/* ---- training ---- */

typedef struct training {
    vencoder_run run;
    problem p;
    vptq_gptvq q;
    vptq_gptvq_block b;
    vptq_gptvq_trainer t;
} training;

/* U in double, from elimination: row c is a[c][j] / sqrt(a[c][c]). */
static void fill_factor(training *x, const vptq_gptvq_settings *s)
{
    const size_t n = x->p.in;
    double *a = inverse_from(s, &x->p, 0);
    for (size_t c = 0; c < n; c++) {
        for (size_t j = 0; j < n; j++)
            x->q.u[c * n + j] = j < c ? 0 : (float)(a[c * n + j] / sqrt(a[c * n + c]));
        for (size_t i = c + 1; i < n; i++)
            for (size_t j = c + 1; j < n; j++)
                a[i * n + j] -= a[i * n + c] * a[c * n + j] / a[c * n + c];
    }
    free(a);
}

static void open_training(training *x, const vptq_gptvq_settings *s, uint32_t out, uint32_t in,
                          size_t first)
{
    vptq_err err = {0};
    *x = (training){.p = problem_make(out, in, 11)};
    vencoder_open(&x->run, "cpu", 1);
    x->q = (vptq_gptvq){
        .dev = &x->run.dev, .s = s, .shape = vptq_gptvq_shape_of(s, out, in), .w = x->p.w};
    vptq_arena_init(&x->q.scratch, &x->run.mem);
    x->q.u = vtest_alloc((size_t)in * in, sizeof(float));
    x->q.codebooks = vtest_alloc(vptq_gptvq_k(&x->q) * s->v, sizeof(float));
    fill_factor(x, s);
    x->b = (vptq_gptvq_block){.rows = out,
                              .vectors = (in - first) / s->v,
                              .v = s->v,
                              .k = vptq_gptvq_k(&x->q),
                              .w = x->p.w + first,
                              .ld = in,
                              .u = x->q.u + first * (in + 1),
                              .ldu = in,
                              .codebook = x->q.codebooks};
    assert_ok(vptq_gptvq_trainer_make(&x->q, &x->t, &err), &err);
}

static void close_training(training *x)
{
    vptq_arena_release(&x->q.scratch);
    free(x->q.u);
    free(x->q.codebooks);
    vencoder_close(&x->run);
    problem_free(&x->p);
}

/* Cost of all vectors of a block, and sums by centroid: of the metric and the metric times the
 * vectors. */
static double naive_sums(const training *x, const float *codebook, double *a, double *b)
{
    const size_t v = x->b.v, n = x->p.in, first = n - x->b.vectors * v;
    double total = 0;
    memset(a, 0, x->b.k * v * v * sizeof *a);
    memset(b, 0, x->b.k * v * sizeof *b);
    for (size_t t = 0; t < x->b.vectors; t++) {
        const size_t c = first + t * v;
        double *inverse = inverse_from(x->q.s, &x->p, c), m[64], y[8], best, second;
        metric_at(inverse, n, c, v, m);
        free(inverse);
        for (size_t r = 0; r < x->b.rows; r++) {
            for (size_t e = 0; e < v; e++)
                y[e] = (double)x->p.w[r * n + c + e];
            const size_t i = cheapest(x->b.k, v, m, y, codebook, &best, &second);
            total += best;
            for (size_t e = 0; e < v * v; e++) {
                a[i * v * v + e] += m[e];
                b[i * v + e / v] += m[e] * y[e % v];
            }
        }
    }
    return total;
}

/* At the end no centroid can be moved to where its vectors cost less. */
static void check_training(const vptq_gptvq_settings *s, uint32_t out, uint32_t in,
                           size_t first)
{
    training x;
    open_training(&x, s, out, in, first);
    const size_t v = s->v, k = x.b.k;
    double *a = vtest_alloc(k * v * v, sizeof *a), *b = vtest_alloc(k * v, sizeof *b);
    float *moved = vtest_alloc(k * v, sizeof *moved);
    assert_true(vptq_gptvq_train(&x.q, &x.b, &x.t));
    const double cost = naive_sums(&x, x.b.codebook, a, b);
    for (size_t c = 0; c < k; c++) {
        if (!(a[c * v * v] > 0)) {
            memcpy(moved + c * v, x.b.codebook + c * v, v * sizeof *moved);
            continue;
        }
        problem_invert(v, a + c * v * v);
        for (size_t e = 0; e < v; e++) {
            double at = 0;
            for (size_t f = 0; f < v; f++)
                at += a[c * v * v + e * v + f] * b[c * v + f];
            moved[c * v + e] = (float)at;
        }
    }
    const double least = naive_sums(&x, moved, a, b);
    if (!(cost > 0 && cost < 1.002 * least)) /* the rest is rounding to half floats */
        fail_msg("%u x %u from %zu: cost %g, %g with moved centroids", out, in, first, cost,
                 least);
    free(a);
    free(b);
    free(moved);
    close_training(&x);
}

static void test_training(void **state)
{
    (void)state;
    vptq_gptvq_settings s = usual;
    s.int8 = false;
    s.block_rows = s.block_columns = 1000;
    check_training(&s, 12, 40, 0);
    check_training(&s, 12, 40, 24);
    s.bits = 3;
    check_training(&s, 10, 48, 16);
    s.v = 1;
    check_training(&s, 10, 40, 7);
    s.v = 4, s.bits = 2;
    check_training(&s, 80, 32, 8);
    s.v = 3;
    check_training(&s, 20, 33, 3);
}

/* Vectors of one kind, or only zeros, and fewer than centroids. */
static void test_poor_blocks(void **state)
{
    (void)state;
    vptq_gptvq_settings s = usual;
    training x;
    open_training(&x, &s, 2, 8, 0);
    assert_true(vptq_gptvq_train(&x.q, &x.b, &x.t));
    for (size_t i = 0; i < 16; i++)
        x.p.w[i] = 0;
    assert_true(vptq_gptvq_train(&x.q, &x.b, &x.t));
    for (size_t i = 0; i < 2 * x.b.k; i++)
        assert_true(fabsf(x.b.codebook[i]) <= 0);
    for (size_t i = 0; i < 16; i++)
        x.p.w[i] = i % 2 ? 0.5F : -2;
    assert_true(vptq_gptvq_train(&x.q, &x.b, &x.t));
    for (size_t i = 0; i < 2 * x.b.k; i++)
        assert_true(fabsf(x.b.codebook[i] - (i % 2 ? 0.5F : -2)) < 0.02F);
    for (size_t i = 0; i < 16; i++)
        x.p.w[i] = 1e6F; /* no half float, even as a scale of 127 steps */
    x.p.w[3] = -3e7F;
    assert_false(vptq_gptvq_train(&x.q, &x.b, &x.t));
    close_training(&x);
}

/* ---- the pass ---- */

/* Follows the stored codes with compensation by elimination in double, and counts those that
 * are not the cheapest.  The codebooks of the pass were fitted afterwards, so this needs those
 * before the fit: the settings have a single, whole-matrix codebook that is trained on the
 * original weights. */
static void check_pass(const vptq_gptvq_settings *s, uint32_t out, uint32_t in)
{
    training x;
    vptq_additive a;
    size_t different = 0;
    open_training(&x, s, out, in, 0);
    assert_true(vptq_gptvq_train(&x.q, &x.b, &x.t));
    quantize(&x.run, s, &x.p, &a);
    const size_t v = s->v, n = in, words = vptq_additive_row_words(&a.shape, 0);
    double *z = vtest_alloc((size_t)out * in, sizeof *z);
    for (size_t i = 0; i < (size_t)out * in; i++)
        z[i] = (double)x.p.w[i];
    for (size_t c = 0; c < n; c += v) {
        double *inverse = inverse_from(s, &x.p, c), m[64], best, second;
        metric_at(inverse, n, c, v, m);
        for (size_t r = 0; r < out; r++) {
            double *row = z + r * n, d[8], pull[8] = {0};
            const uint32_t code = vptq_bits_get(a.codes[0] + r * words, c / v, s->bits * s->v);
            different += code != cheapest(x.b.k, v, m, row + c, x.b.codebook, &best, &second);
            for (size_t e = 0; e < v; e++)
                d[e] = row[c + e] - (double)x.b.codebook[code * v + e];
            for (size_t e = 0; e < v * v; e++)
                pull[e / v] += m[e] * d[e % v];
            for (size_t l = c + v; l < n; l++) /* what the later columns make up for */
                for (size_t e = 0; e < v; e++)
                    row[l] -= pull[e] * inverse[(c + e) * n + l];
        }
        free(inverse);
    }
    assert_true(different * 200 <= out * n / v);
    free(z);
    close_training(&x);
}

static void test_pass(void **state)
{
    (void)state;
    vptq_gptvq_settings s = usual;
    s.block_rows = s.block_columns = 1000;
    check_pass(&s, 16, 48);
    s.int8 = false, s.bits = 3;
    check_pass(&s, 24, 40);
    s.v = 4, s.bits = 2, s.storage = VPTQ_BF16;
    check_pass(&s, 40, 64);
    s.v = 1, s.bits = 4;
    check_pass(&s, 9, 33);
}

/* ---- least squares ---- */

/* Loss of the best codebooks for the codes of one row block [0, out): the normal equations,
 * inverted. */
static double best_loss(const problem *p, const vptq_additive *a)
{
    const vptq_additive_shape *s = &a->shape;
    const size_t n = p->in, k = (size_t)1 << s->bits[0];
    const size_t unknowns = vptq_additive_blocks(s) * k * s->v;
    const size_t words = vptq_additive_row_words(s, 0);
    double *m = vtest_alloc(unknowns * unknowns, sizeof *m);
    double *b = vtest_alloc(unknowns, sizeof *b);
    float *what = vtest_alloc((size_t)p->out * n, sizeof *what);
    size_t *of = vtest_alloc((size_t)p->out * n, sizeof *of);
    for (size_t r = 0; r < p->out; r++)
        for (size_t c = 0; c < n; c++) {
            const uint32_t code = vptq_bits_get(a->codes[0] + r * words, c / s->v, s->bits[0]);
            of[r * n + c] = ((c / s->block_columns) * k + code) * s->v + c % s->v;
        }
    for (size_t r = 0; r < p->out; r++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                m[of[r * n + i] * unknowns + of[r * n + j]] += p->h[i * n + j];
                b[of[r * n + i]] += p->h[i * n + j] * (double)p->w[r * n + j];
            }
    for (size_t i = 0; i < unknowns; i++)
        m[i * unknowns + i] += 1e-9; /* of centroids without uses */
    problem_invert(unknowns, m);
    for (size_t i = 0; i < (size_t)p->out * n; i++) {
        double x = 0;
        for (size_t j = 0; j < unknowns; j++)
            x += m[of[i] * unknowns + j] * b[j];
        what[i] = (float)x;
    }
    const double loss = problem_loss(p, what);
    free(m);
    free(b);
    free(what);
    free(of);
    return loss;
}

static void test_refit(void **state)
{
    (void)state;
    vptq_gptvq_settings s = usual;
    problem p = problem_make(24, 64, 4);
    vencoder_run run;
    vptq_additive a;
    s.int8 = false;
    s.block_rows = 24;
    vencoder_open(&run, "cpu", 2);
    for (s.bits = 2; s.bits <= 3; s.bits++) {
        quantize(&run, &s, &p, &a);
        const double loss = loss_of(&run, &p, &a), best = best_loss(&p, &a);
        assert_true(loss > 0.999 * best && loss < 1.01 * best);
    }
    vencoder_close(&run);
    problem_free(&p);
}

/* ---- losses ---- */

static void test_losses(void **state)
{
    (void)state;
    problem p = problem_make(64, 96, 5);
    vencoder_run run;
    vptq_err err = {0};
    vptq_additive a;
    vptq_uniform u;
    double added, loss[3];
    float *what = vtest_alloc((size_t)p.out * p.in, sizeof *what);
    const vptq_uniform_input input = {.out = p.out, .in = p.in, .w = p.w, .lower = p.lower};
    const vptq_uniform_settings gptq = {.bits = 2,
                                        .group_size = 32,
                                        .compensate = true,
                                        .storage = VPTQ_F16,
                                        .ridge = 0.01,
                                        .damping = 0.01};
    vencoder_open(&run, "cpu", 1);
    for (uint32_t bits = 2; bits <= 4; bits++) {
        vptq_gptvq_settings s = usual;
        s.bits = bits;
        s.block_rows = 64;
        quantize(&run, &s, &p, &a);
        loss[bits - 2] = loss_of(&run, &p, &a);
    }
    assert_true(loss[1] < 0.5 * loss[0] && loss[2] < 0.5 * loss[1]);
    assert_ok(vptq_uniform_quantize(&run.dev, &gptq, &input, &run.arena, &u, &added, &err),
              &err);
    vptq_uniform_read(&u, 0, p.out, what);
    assert_true(loss[0] < 0.8 * problem_loss(&p, what));
    free(what);
    vencoder_close(&run);
    problem_free(&p);
}

/* Losses of the published code (tests/golden/make_gptvq.py), whose last step is one of few
 * gradients. */
static void test_golden(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits, v, rows, columns;
    } cases[] = {{2, 2, 8, 48}, {3, 2, 16, 128}, {2, 4, 32, 64}};
    vencoder_run run;
    vptq_tensor_set set;
    vencoder_open(&run, "cpu", 2);
    vgolden_open(&set, "tests/golden/gptvq.safetensors");
    for (int i = 0; i < 3; i++) {
        vptq_gptvq_settings s = usual;
        vptq_additive a;
        problem p = vgolden_problem(&set, i);
        double published;
        vgolden_losses(&set, i, 1, &published);
        s.bits = cases[i].bits, s.v = cases[i].v;
        s.block_rows = cases[i].rows, s.block_columns = cases[i].columns;
        quantize(&run, &s, &p, &a);
        const double loss = loss_of(&run, &p, &a);
        if (!(loss < 1.05 * published) || !(loss > 0.3 * published))
            fail_msg("matrix %d: loss %g, published %g", i, loss, published);
        problem_free(&p);
    }
    vptq_tensor_set_release(&set);
    vencoder_close(&run);
}

VTEST_MAIN(cmocka_unit_test(test_shape), cmocka_unit_test(test_training),
           cmocka_unit_test(test_poor_blocks), cmocka_unit_test(test_pass),
           cmocka_unit_test(test_refit), cmocka_unit_test(test_losses),
           cmocka_unit_test(test_golden))
