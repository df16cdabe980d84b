/* lib/quant against a naive double-precision pass that works on the inverse Hessian itself, and
 * the properties that any encoder must have. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vtest.h"

#include "lib/base/half.h"
#include "lib/quant/quant.h"

typedef struct bench {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_arena arena;
} bench;

static void bench_open(bench *b, const char *backend, int threads)
{
    vptq_err err = {0};
    vptq_mem_init(&b->mem, 0);
    b->ctx = (vptq_ctx){.mem = &b->mem, .threads = threads};
    assert_ok(vptq_device_open(&b->ctx, backend, &b->dev, &err), &err);
    vptq_arena_init(&b->arena, &b->mem);
}

static void bench_close(bench *b)
{
    vptq_arena_release(&b->arena);
    vptq_device_close(&b->dev);
    assert_int_equal(b->mem.used, 0);
}

/* Weights with columns of different spread and mean; inputs that are correlated. */
typedef struct problem {
    uint32_t out, in;
    float *w;     /* [out][in] */
    float *lower; /* packed */
    double *h;    /* [in][in] */
} problem;

static problem make_problem(uint32_t out, uint32_t in, uint64_t seed)
{
    problem p = {out, in, malloc(sizeof(float) * out * in),
                 malloc(sizeof(float) * in * (in + 1) / 2), malloc(sizeof(double) * in * in)};
    size_t t = 4 * (size_t)in;
    float *x = malloc(sizeof(float) * t * in);

    vtest_normal(p.w, (size_t)out * in, seed);
    for (size_t i = 0; i < (size_t)out * in; i++)
        p.w[i] = p.w[i] * (0.2F + 0.1F * (float)(i % in % 7)) + 0.05F * (float)(i % in % 3);
    vtest_normal(x, t * in, seed + 1);
    for (size_t r = 0; r < t; r++)
        for (size_t j = 1; j < in; j++)
            x[r * in + j] = 0.6F * x[r * in + j - 1] + x[r * in + j] + (j % 4 ? 0.0F : 0.5F);
    float *lower = p.lower;
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j <= i; j++) {
            double s = 0;
            for (size_t r = 0; r < t; r++)
                s += (double)x[r * in + i] * (double)x[r * in + j];
            *lower = (float)(s / (double)t);
            p.h[i * in + j] = p.h[j * in + i] = (double)*lower++;
        }
    free(x);
    return p;
}

static void free_problem(problem *p)
{
    free(p->w);
    free(p->lower);
    free(p->h);
}

/* tr(E H E^T) / tr(W H W^T), term by term. */
static double naive_loss(const problem *p, const float *what)
{
    double e = 0, n = 0;
    for (size_t r = 0; r < p->out; r++)
        for (size_t i = 0; i < p->in; i++)
            for (size_t j = 0; j < p->in; j++) {
                const float *w = p->w + r * p->in, *q = what + r * p->in;
                e += ((double)q[i] - (double)w[i]) * p->h[i * p->in + j] *
                     ((double)q[j] - (double)w[j]);
                n += (double)w[i] * p->h[i * p->in + j] * (double)w[j];
            }
    return e / n;
}

static void invert(size_t n, double *a)
{
    for (size_t k = 0; k < n; k++) {
        double d = 1 / a[k * n + k];
        a[k * n + k] = 1;
        for (size_t j = 0; j < n; j++)
            a[k * n + j] *= d;
        for (size_t i = 0; i < n; i++) {
            if (i == k)
                continue;
            double f = a[i * n + k];
            a[i * n + k] = 0;
            for (size_t j = 0; j < n; j++)
                a[i * n + j] -= f * a[k * n + j];
        }
    }
}

static int order_cmp(const void *a, const void *b)
{
    const double *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] > y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : 1;
}

/* Optimal brain surgeon written out: quantize the column of largest metric diagonal, move the
 * others by -e / [A^-1]_pp * [A^-1]_p., take p out of A^-1 by elimination.  Indices come out in
 * original column order, idx [strips][in]. */
static void naive_pass(const problem *p, const vptq_quant_settings *s, const vptq_vq *vq,
                       uint32_t *idx)
{
    size_t n = p->in, strips = vptq_vq_strips(&vq->shape);
    double *a = malloc(sizeof *a * n * n), *rank = malloc(sizeof *rank * 2 * n), mean = 0;
    double *z = calloc(strips * s->v * n, sizeof *z);

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
    invert(n, a);
    for (size_t t = 0; t < n; t++) {
        size_t c = (size_t)rank[2 * t + 1];
        for (size_t g = 0; g < strips; g++) {
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
    problem p = make_problem(out, in, 11);
    bench b;
    vptq_err err = {0};
    vptq_quant_result r;
    vptq_quant_settings s = vptq_quant_default();

    s.v = v;
    s.k = k;
    s.norm = norm;
    s.perm = perm;
    s.retrain = s.sweeps = s.refits = 0; /* the pass is the last decision */
    bench_open(&b, "cpu", 2);
    assert_ok(
        vptq_quant_matrix(&b.dev, &s,
                          &(vptq_quant_input){
                              .matrix_id = 5, .out = out, .in = in, .w = p.w, .lower = p.lower},
                          NULL, NULL, &b.arena, &r, &err),
        &err);
    size_t strips = vptq_vq_strips(&r.vq.shape), words = vptq_vq_row_words(&r.vq.shape);
    uint32_t *want = malloc(sizeof *want * strips * in);
    naive_pass(&p, &s, &r.vq, want);
    for (size_t g = 0; g < strips; g++)
        for (size_t c = 0; c < in; c++)
            assert_int_equal(
                vptq_bits_get(r.vq.indices + g * words, c, vptq_vq_index_bits(&r.vq.shape)),
                want[g * in + c]);

    /* Every loss is what it says, of what a reader decodes. */
    float *what = malloc(sizeof *what * out * in);
    assert_ok(b.dev.ops->vq_dequant(b.dev.state, &r.vq, 0, out, what, in, &err), &err);
    double loss = naive_loss(&p, what);
    assert_true(fabs(r.report.loss / loss - 1) < 1e-6);
    assert_true(fabs(r.report.step[1].loss / loss - 1) < 1e-4);
    assert_true(r.report.loss < r.report.step[0].loss);
    for (size_t i = 0; i < (size_t)k * v; i++)
        assert_true(r.vq.centroids[i] == vptq_f16_to_f32(vptq_f32_to_f16(r.centroids_f32[i])));
    free(what);
    free(want);
    bench_close(&b);
    free_problem(&p);
}

static void test_pass_equals_naive(void **state)
{
    (void)state;
    check_against_naive(64, 64, 4, 16, true, true);
    check_against_naive(64, 64, 8, 32, true, false);
    check_against_naive(30, 150, 4, 16, false,
                        true); /* padding, more than one block of columns */
    check_against_naive(1, 40, 1, 4, true, true);
    check_against_naive(17, 33, 6, 64, false, false);
}

static double loss_of(const problem *p, const vptq_quant_settings *s)
{
    bench b;
    vptq_err err = {0};
    vptq_quant_result r;
    bench_open(&b, "cpu", 2);
    assert_ok(vptq_quant_matrix(
                  &b.dev, s,
                  &(vptq_quant_input){
                      .matrix_id = 0, .out = p->out, .in = p->in, .w = p->w, .lower = p->lower},
                  NULL, NULL, &b.arena, &r, &err),
              &err);
    double loss = r.report.loss;
    bench_close(&b);
    return loss;
}

static void test_more_bits_are_not_worse(void **state)
{
    (void)state;
    problem p = make_problem(96, 64, 21);
    vptq_quant_settings s = vptq_quant_default();
    double last = INFINITY;
    for (uint32_t k = 4; k <= 1024; k *= 4) {
        s.k = k;
        double loss = loss_of(&p, &s);
        assert_true(loss < last);
        last = loss;
    }
    free_problem(&p);
}

/* Columns of very different spread: scaling them, in the right metric, must pay. */
static void test_norm_pays_on_spread_columns(void **state)
{
    (void)state;
    problem p = make_problem(128, 48, 31);
    vptq_quant_settings s = vptq_quant_default();
    for (size_t i = 0; i < (size_t)p.out * p.in; i++)
        p.w[i] *= powf(10, (float)(i % p.in % 5) - 2);
    double with = loss_of(&p, &s);
    s.norm = false;
    double without = loss_of(&p, &s);
    assert_true(with < without);
    free_problem(&p);
}

/* Renaming the input channels must not change the result (the order is by value). */
static void test_permutation_invariance(void **state)
{
    (void)state;
    problem p = make_problem(48, 40, 41), q = make_problem(48, 40, 41);
    vptq_quant_settings s = vptq_quant_default();
    for (uint32_t i = 0; i < p.in; i++) {
        uint32_t pi = (i * 7 + 3) % p.in; /* 7 and 40 have no common factor */
        for (uint32_t r = 0; r < p.out; r++)
            q.w[r * p.in + pi] = p.w[r * p.in + i];
        for (uint32_t j = 0; j < p.in; j++) {
            uint32_t pj = (j * 7 + 3) % p.in;
            if (pj <= pi)
                q.lower[pi * (pi + 1) / 2 + pj] = (float)p.h[i * p.in + j];
        }
    }
    assert_true(fabs(loss_of(&p, &s) / loss_of(&q, &s) - 1) < 0.02);
    free_problem(&p);
    free_problem(&q);
}

static void test_degenerate_columns(void **state)
{
    (void)state;
    problem p = make_problem(40, 32, 51);
    bench b;
    vptq_err err = {0};
    vptq_quant_result r;
    vptq_quant_settings s = vptq_quant_default();

    s.scales = false; /* a refit would use even these columns */
    for (uint32_t row = 0; row < p.out; row++) {
        p.w[row * p.in + 3] = 0;    /* zero column */
        p.w[row * p.in + 9] = 0.5F; /* constant column */
    }
    for (uint32_t j = 0; j < p.in; j++) { /* column 20 never sees an input */
        uint32_t hi = j > 20 ? j : 20, lo = j > 20 ? 20 : j;
        p.lower[hi * (hi + 1) / 2 + lo] = 0;
    }
    bench_open(&b, "cpu", 1);
    assert_ok(vptq_quant_matrix(
                  &b.dev, &s,
                  &(vptq_quant_input){
                      .matrix_id = 0, .out = p.out, .in = p.in, .w = p.w, .lower = p.lower},
                  NULL, NULL, &b.arena, &r, &err),
              &err);
    assert_int_equal(r.report.dead_columns, 1);
    assert_true(isfinite(r.report.loss) && r.report.loss > 0 && r.report.loss < 0.2);
    assert_true(r.vq.scale[3] == 1.0F && r.vq.bias[3] == 0.0F);
    assert_true(r.vq.scale[9] == 1.0F && r.vq.bias[9] == 0.5F);
    bench_close(&b);
    free_problem(&p);
}

/* More centroids than vectors: every vector is a centroid, only rounding is lost. */
static void test_more_centroids_than_vectors(void **state)
{
    (void)state;
    problem p = make_problem(8, 12, 61);
    vptq_quant_settings s = vptq_quant_default();
    s.k = 64; /* 24 vectors */
    assert_true(loss_of(&p, &s) < 1e-5);
    free_problem(&p);
}

static void test_same_bytes_for_any_thread_count(void **state)
{
    (void)state;
    problem p = make_problem(200, 300, 71);
    vptq_quant_settings s = vptq_quant_default();
    bench b[3];
    vptq_quant_result r[3];
    for (int t = 0; t < 3; t++) {
        vptq_err err = {0};
        bench_open(&b[t], "cpu", t + 1);
        assert_ok(vptq_quant_matrix(
                      &b[t].dev, &s,
                      &(vptq_quant_input){
                          .matrix_id = 9, .out = p.out, .in = p.in, .w = p.w, .lower = p.lower},
                      NULL, NULL, &b[t].arena, &r[t], &err),
                  &err);
    }
    size_t words = vptq_vq_strips(&r[0].vq.shape) * vptq_vq_row_words(&r[0].vq.shape);
    for (int t = 1; t < 3; t++) {
        assert_memory_equal(r[0].vq.indices, r[t].vq.indices, words * sizeof(uint32_t));
        assert_memory_equal(r[0].centroids_f32, r[t].centroids_f32,
                            (size_t)s.k * s.v * sizeof(float));
        assert_true(r[0].report.loss == r[t].report.loss);
    }
    for (int t = 0; t < 3; t++)
        bench_close(&b[t]);
    free_problem(&p);
}

static void test_bad_numbers_are_refused(void **state)
{
    (void)state;
    problem p = make_problem(16, 8, 81);
    bench b;
    vptq_err err = {0};
    vptq_quant_result r;
    vptq_quant_settings s = vptq_quant_default();
    bench_open(&b, "cpu", 1);
#define RUN()                                                                                  \
    vptq_quant_matrix(                                                                         \
        &b.dev, &s,                                                                            \
        &(vptq_quant_input){                                                                   \
            .matrix_id = 0, .out = p.out, .in = p.in, .w = p.w, .lower = p.lower},             \
        NULL, NULL, &b.arena, &r, &err)
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
    s = vptq_quant_default();
    s.v = 65;
    assert_fails(RUN(), VPTQ_E_ARG, &err, "vector_length is '65'");
    s = vptq_quant_default();
    s.storage = VPTQ_F32;
    assert_fails(RUN(), VPTQ_E_ARG, &err, "F16 or BF16");
    s = vptq_quant_default();
    memset(p.lower, 0, sizeof(float) * 36);
    assert_fails(RUN(), VPTQ_E_NUMERIC, &err, "hessian is zero");
#undef RUN
    bench_close(&b);
    free_problem(&p);
}

static void test_cancelled(void **state)
{
    (void)state;
    problem p = make_problem(16, 8, 91);
    volatile sig_atomic_t stop = 1;
    bench b;
    vptq_err err = {0};
    vptq_quant_loss loss;
    bench_open(&b, "cpu", 1);
    b.ctx.cancel = &stop;
    assert_fails(vptq_quant_measure(&b.dev, p.out, p.in, p.w, p.w, p.lower, &loss, &err),
                 VPTQ_E_CANCELLED, &err, "interrupted");
    bench_close(&b);
    free_problem(&p);
}

static vptq_status quantize_with(void *arg, vptq_mem *mem, vptq_err *err)
{
    const problem *p = arg;
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev = {0};
    vptq_quant_result r;
    vptq_quant_settings s = vptq_quant_default();
    vptq_arena arena;

    vptq_status st = vptq_device_open(&ctx, "cpu", &dev, err);
    if (st)
        return st;
    vptq_arena_init(&arena, mem);
    st = vptq_quant_matrix(
        &dev, &s, &(vptq_quant_input){.out = p->out, .in = p->in, .w = p->w, .lower = p->lower},
        NULL, NULL, &arena, &r, err);
    vptq_arena_release(&arena);
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    problem p = make_problem(32, 24, 91);
    assert_true(vtest_oom_walk(quantize_with, &p) > 10);
    free_problem(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pass_equals_naive),
        cmocka_unit_test(test_more_bits_are_not_worse),
        cmocka_unit_test(test_norm_pays_on_spread_columns),
        cmocka_unit_test(test_permutation_invariance),
        cmocka_unit_test(test_degenerate_columns),
        cmocka_unit_test(test_more_centroids_than_vectors),
        cmocka_unit_test(test_same_bytes_for_any_thread_count),
        cmocka_unit_test(test_bad_numbers_are_refused),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_out_of_memory),
    };
    return vtest_main(argc, argv, tests);
}
