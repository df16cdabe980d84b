/* Tests AQLM: each step of a round against its definition in double, searches that try
 * everything, and losses of the published code. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/uniform/aqlm_state.h"
#include "tests/support/vencoder.h"
#include "tests/support/vgolden.h"
#include "tests/support/vtest.h"

static const vptq_aqlm_settings usual = {.v = 8,
                                         .k = 16,
                                         .codebooks = 2,
                                         .beam = 1,
                                         .rounds = 50,
                                         .tolerance = 0.01,
                                         .kmeans_iterations = 100,
                                         .storage = VPTQ_F16,
                                         .seed = 1,
                                         .matrix = 5};

/* ---- the state of a round ---- */

/* A state with random codebooks and codes, under the Hessian of a problem. */
typedef struct random_state {
    problem p;
    vptq_uniform_input input;
    vptq_aqlm_settings s;
    vptq_aqlm_state a;
    float *h;
} random_state;

static double next(uint64_t *counter)
{
    const vptq_rng rng = vptq_rng_make(17, 0, 0, VPTQ_RNG_TEST);
    return 2 * vptq_rng_uniform(&rng, (*counter)++) - 1;
}

static void state_open(random_state *t, vptq_device *dev, uint32_t out, uint32_t in,
                       const vptq_aqlm_settings *s)
{
    const size_t stages = s->codebooks, entries = stages * s->k, vectors = in / s->v;
    uint64_t counter = 0;
    t->p = problem_make(out, in, 4);
    t->input = (vptq_uniform_input){.out = out, .in = in, .w = t->p.w, .lower = t->p.lower};
    t->s = *s;
    t->h = vtest_alloc((size_t)in * in, sizeof *t->h);
    for (size_t i = 0; i < (size_t)in * in; i++)
        t->h[i] = (float)(t->p.h[i] / t->p.h[0]);
    t->a = (vptq_aqlm_state){.dev = dev,
                             .s = &t->s,
                             .input = &t->input,
                             .vectors = vectors,
                             .h = t->h,
                             .codes = vtest_alloc(stages * out * vectors, sizeof(uint32_t)),
                             .codebooks = vtest_alloc(entries * s->v, sizeof(float)),
                             .scales = vtest_alloc(out, sizeof(float)),
                             .e = vtest_alloc((size_t)out * in, sizeof(float)),
                             .eh = vtest_alloc((size_t)out * in, sizeof(float))};
    for (size_t i = 0; i < stages * out * vectors; i++)
        t->a.codes[i] = (uint32_t)((next(&counter) + 1) * s->k / 2) % s->k;
    for (size_t i = 0; i < entries * s->v; i++)
        t->a.codebooks[i] = (float)next(&counter);
    for (size_t r = 0; r < out; r++)
        t->a.scales[r] = (float)(1.5 + next(&counter));
}

static void state_close(random_state *t)
{
    problem_free(&t->p);
    free(t->h);
    free(t->a.codes);
    free(t->a.codebooks);
    free(t->a.scales);
    free(t->a.e);
    free(t->a.eh);
}

static double z_of(const vptq_aqlm_state *a, size_t row, size_t column)
{
    const size_t v = a->s->v, vector = row * a->vectors + column / v;
    double z = 0;
    for (size_t m = 0; m < a->s->codebooks; m++) {
        const uint32_t code = a->codes[m * a->input->out * a->vectors + vector];
        z += (double)a->codebooks[(m * a->s->k + code) * v + column % v];
    }
    return z;
}

/* e h e^T of one row, e = scale * z - w. */
static double row_loss(const vptq_aqlm_state *a, size_t row)
{
    const size_t in = a->input->in;
    double *e = vtest_alloc(in, sizeof *e), loss = 0;
    for (size_t i = 0; i < in; i++)
        e[i] = (double)a->scales[row] * z_of(a, row, i) - (double)a->input->w[row * in + i];
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j < in; j++)
            loss += e[i] * (double)a->h[i * in + j] * e[j];
    free(e);
    return loss;
}

static double state_loss(const vptq_aqlm_state *a)
{
    double loss = 0;
    for (size_t r = 0; r < a->input->out; r++)
        loss += row_loss(a, r);
    return loss;
}

/* ---- least squares ---- */

/* Replaces the codebooks by a dense least-squares solution: the normal equations with 1e-9 of
 * their diagonal added, because codebooks can shift against each other. */
static void solve_densely(const vptq_aqlm_state *a)
{
    const size_t v = a->s->v, in = a->input->in, n = a->s->codebooks * a->s->k * v;
    double *m = vtest_alloc(n * n, sizeof *m), *b = vtest_alloc(n, sizeof *b), trace = 0;
    size_t *at = vtest_alloc(in * a->s->codebooks, sizeof *at);
    memset(m, 0, n * n * sizeof *m);
    memset(b, 0, n * sizeof *b);
    for (size_t r = 0; r < a->input->out; r++) {
        const double s = (double)a->scales[r];
        const size_t all = in * a->s->codebooks;
        for (size_t i = 0; i < all; i++) {
            const size_t stage = i / in, c = i % in;
            at[i] =
                (stage * a->s->k + a->codes[(stage * a->input->out + r) * a->vectors + c / v]) *
                    v +
                c % v;
        }
        for (size_t i = 0; i < all; i++)
            for (size_t j = 0; j < all; j++)
                m[at[i] * n + at[j]] += s * s * (double)a->h[i % in * in + j % in];
        for (size_t i = 0; i < all; i++)
            for (size_t j = 0; j < in; j++)
                b[at[i]] += s * (double)a->h[i % in * in + j] * (double)a->input->w[r * in + j];
    }
    for (size_t i = 0; i < n; i++)
        trace += m[i * n + i] / (double)n;
    for (size_t i = 0; i < n; i++)
        m[i * n + i] += 1e-9 * trace;
    problem_invert(n, m);
    for (size_t i = 0; i < n; i++) {
        double x = 0;
        for (size_t j = 0; j < n; j++)
            x += m[i * n + j] * b[j];
        a->codebooks[i] = (float)x;
    }
    free(m);
    free(b);
    free(at);
}

static void best_scales(const vptq_aqlm_state *a)
{
    const size_t in = a->input->in;
    for (size_t r = 0; r < a->input->out; r++) {
        double zhw = 0, zhz = 0;
        for (size_t i = 0; i < in; i++)
            for (size_t j = 0; j < in; j++) {
                const double zh = z_of(a, r, i) * (double)a->h[i * in + j];
                zhz += zh * z_of(a, r, j);
                zhw += zh * (double)a->input->w[r * in + j];
            }
        a->scales[r] = (float)(zhw / zhz);
    }
}

static void check_fit(uint32_t v, uint32_t k, uint32_t codebooks)
{
    random_state t;
    vencoder_run run;
    vptq_err err = {0};
    vptq_aqlm_settings s = usual;
    s.v = v;
    s.k = k;
    s.codebooks = codebooks;
    s.storage = VPTQ_F32; /* no rounding */
    vencoder_open(&run, "cpu", 2);
    state_open(&t, &run.dev, 40, 24, &s);
    const double before = state_loss(&t.a);
    assert_ok(vptq_aqlm_decode(&t.a, true, &err), &err);
    assert_ok(vptq_aqlm_fit(&t.a, 100, &err), &err);
    const double after = state_loss(&t.a);
    state_close(&t);
    state_open(&t, &run.dev, 40, 24, &s);
    solve_densely(&t.a);
    best_scales(&t.a);
    const double want = state_loss(&t.a);
    assert_true(want < 0.9 * before);
    assert_true(fabs(after / want - 1) < 2e-3);
    state_close(&t);
    vencoder_close(&run);
}

static void test_fit(void **state)
{
    (void)state;
    check_fit(8, 4, 1);
    check_fit(4, 8, 2);
    check_fit(8, 4, 3);
    check_fit(1, 2, 4);
}

/* ---- search ---- */

/* Tries every combination of codes of a row; leaves the best. */
static double try_all(const vptq_aqlm_state *a, size_t row)
{
    const size_t digits = a->s->codebooks * a->vectors;
    size_t count = 1, best = 0;
    double least = INFINITY;
    for (size_t i = 0; i < digits; i++)
        count *= a->s->k;
    for (size_t n = 0; n <= count; n++) { /* the last time, the best again */
        size_t rest = n < count ? n : best;
        for (size_t i = 0; i < digits; i++, rest /= a->s->k)
            a->codes[(i / a->vectors * a->input->out + row) * a->vectors + i % a->vectors] =
                (uint32_t)(rest % a->s->k);
        const double loss = row_loss(a, row);
        if (n < count && loss < least) {
            least = loss;
            best = n;
        }
    }
    return least;
}

static void search(random_state *t)
{
    vptq_err err = {0};
    assert_ok(vptq_aqlm_decode(&t->a, true, &err), &err);
    assert_ok(vptq_aqlm_search(&t->a, 3, &err), &err);
}

/* A beam that holds every combination finds the best one. */
static void check_optimum(uint32_t v, uint32_t k, uint32_t codebooks, uint32_t vectors)
{
    random_state t;
    vencoder_run run;
    vptq_aqlm_settings s = usual;
    s.v = v;
    s.k = k;
    s.codebooks = codebooks;
    s.beam = 32;
    vencoder_open(&run, "cpu", 1);
    state_open(&t, &run.dev, 20, v * vectors, &s);
    search(&t);
    for (size_t r = 0; r < 20; r++) {
        const double loss = row_loss(&t.a, r);
        assert_true(loss <= try_all(&t.a, r) * (1 + 1e-5));
    }
    state_close(&t);
    vencoder_close(&run);
}

static void test_optimum(void **state)
{
    (void)state;
    check_optimum(8, 32, 1, 1);
    check_optimum(4, 4, 2, 1); /* 16 */
    check_optimum(3, 2, 2, 2); /* 16 */
    check_optimum(8, 2, 1, 5); /* 32 */
    check_optimum(2, 2, 5, 1);
}

/* A hypothesis of a row in double. */
typedef struct guess {
    double loss, *eh; /* [in] of scale * z - w */
    uint32_t *codes;  /* [codebooks][vectors] */
} guess;

/* The loss after a replacement, as a change; with `to`, also what it makes of the guess. */
static double replace(const vptq_aqlm_state *a, size_t row, const guess *g, size_t stage,
                      size_t vector, uint32_t code, guess *to)
{
    const size_t v = a->s->v, in = a->input->in;
    const float *book = a->codebooks + stage * a->s->k * v;
    const uint32_t old = g->codes[stage * a->vectors + vector];
    double change = 0, d[16];
    for (size_t e = 0; e < v; e++)
        d[e] =
            (double)a->scales[row] * ((double)book[code * v + e] - (double)book[old * v + e]);
    for (size_t e = 0; e < v; e++) {
        const float *h = a->h + (vector * v + e) * in;
        double dh = 0;
        for (size_t j = 0; j < v; j++)
            dh += (double)h[vector * v + j] * d[j];
        change += d[e] * (2 * g->eh[vector * v + e] + dh);
        for (size_t j = 0; to && j < in; j++)
            to->eh[j] += d[e] * (double)h[j];
    }
    if (to) {
        to->codes[stage * a->vectors + vector] = code;
        to->loss = g->loss + change;
    }
    return g->loss + change;
}

static void copy_guess(const vptq_aqlm_state *a, const guess *from, guess *to)
{
    to->loss = from->loss;
    memcpy(to->eh, from->eh, a->input->in * sizeof *to->eh);
    memcpy(to->codes, from->codes, a->s->codebooks * a->vectors * sizeof *to->codes);
}

typedef struct candidate {
    double loss;
    size_t from;
    uint32_t code;
} candidate;

static int by_loss(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return (x->loss > y->loss) - (x->loss < y->loss);
}

/* One step of the definition: all replacements of all guesses, the best `beam` of them. */
static size_t naive_step(const vptq_aqlm_state *a, size_t row, size_t stage, size_t vector,
                         size_t n, guess *g, guess *next_g)
{
    const size_t k = a->s->k, most = a->s->beam < n * k ? a->s->beam : n * k;
    candidate *all = vtest_alloc(n * k, sizeof *all);
    for (size_t i = 0; i < n * k; i++)
        all[i] = (candidate){replace(a, row, &g[i / k], stage, vector, (uint32_t)(i % k), NULL),
                             i / k, (uint32_t)(i % k)};
    qsort(all, n * k, sizeof *all, by_loss);
    for (size_t i = 0; i < most; i++) {
        copy_guess(a, &g[all[i].from], &next_g[i]);
        replace(a, row, &g[all[i].from], stage, vector, all[i].code, &next_g[i]);
    }
    for (size_t i = 0; i < most; i++)
        copy_guess(a, &next_g[i], &g[i]);
    free(all);
    return most;
}

/* The order of the search of round 3, as it is drawn: vectors, then codebooks of each. */
static void naive_order(const vptq_aqlm_state *a, size_t *order, size_t *stages)
{
    const vptq_rng rng = vptq_rng_make(a->s->seed, a->s->matrix, 3, VPTQ_RNG_ORDER);
    uint64_t drawn = 0;
    for (size_t list = 0; list <= a->vectors; list++) {
        const size_t n = list ? a->s->codebooks : a->vectors;
        size_t *p = list ? stages + (list - 1) * n : order;
        for (size_t i = 0; i < n; i++) {
            const size_t j = vptq_rng_below(&rng, drawn++, i + 1);
            p[i] = p[j];
            p[j] = i;
        }
    }
}

/* Loss of a row after the search by definition. */
static double naive_row(const vptq_aqlm_state *a, size_t row, const size_t *order,
                        const size_t *stages, uint32_t *codes)
{
    enum { MOST = 4 };
    const size_t in = a->input->in, all = a->s->codebooks * a->vectors;
    guess g[2][MOST];
    size_t n = 1;
    for (size_t i = 0; i < 2 * MOST; i++) {
        guess *x = &g[i / MOST][i % MOST];
        *x = (guess){0, vtest_alloc(in, sizeof *x->eh), vtest_alloc(all, sizeof *x->codes)};
    }
    guess *first = &g[0][0];
    memset(first->eh, 0, in * sizeof *first->eh);
    first->loss = row_loss(a, row);
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j < in; j++)
            first->eh[j] +=
                ((double)a->scales[row] * z_of(a, row, i) - (double)a->input->w[row * in + i]) *
                (double)a->h[i * in + j];
    for (size_t i = 0; i < all; i++)
        first->codes[i] =
            a->codes[(i / a->vectors * a->input->out + row) * a->vectors + i % a->vectors];
    for (size_t i = 0; i < all; i++) /* place by place, all codebooks of each */
        n = naive_step(a, row, stages[i], order[i / a->s->codebooks], n, g[0], g[1]);
    memcpy(codes, first->codes, all * sizeof *codes);
    const double loss = first->loss;
    for (size_t i = 0; i < 2 * MOST; i++) {
        free(g[i / MOST][i % MOST].eh);
        free(g[i / MOST][i % MOST].codes);
    }
    return loss;
}

/* Float and double may take different ways where two losses are close: few rows do. */
static void check_search(uint32_t in, uint32_t v, uint32_t k, uint32_t codebooks, uint32_t beam)
{
    enum { OUT = 18 };
    random_state t;
    vencoder_run run;
    vptq_aqlm_settings s = usual;
    double want[OUT];
    size_t different = 0;
    s.v = v;
    s.k = k;
    s.codebooks = codebooks;
    s.beam = beam;
    vencoder_open(&run, "cpu", 2);
    state_open(&t, &run.dev, OUT, in, &s);
    const size_t vectors = t.a.vectors, all = codebooks * vectors;
    size_t *order = vtest_alloc(vectors, sizeof *order);
    size_t *stages = vtest_alloc(all, sizeof *stages);
    uint32_t *codes = vtest_alloc(OUT * all, sizeof *codes);
    naive_order(&t.a, order, stages);
    for (size_t r = 0; r < OUT; r++)
        want[r] = naive_row(&t.a, r, order, stages, codes + r * all);
    search(&t);
    for (size_t r = 0; r < OUT; r++) {
        bool same = true;
        for (size_t i = 0; i < all; i++)
            same &= codes[r * all + i] ==
                    t.a.codes[(i / vectors * OUT + r) * vectors + i % vectors];
        different += !same;
        if (same)
            assert_true(fabs(row_loss(&t.a, r) / want[r] - 1) < 1e-6);
    }
    assert_true(different <= 1);
    free(order);
    free(stages);
    free(codes);
    state_close(&t);
    vencoder_close(&run);
}

static void test_search(void **state)
{
    (void)state;
    check_search(64, 8, 16, 2, 1);
    check_search(64, 8, 16, 2, 4);
    check_search(296, 8, 16, 1, 1); /* three blocks of columns */
    check_search(288, 4, 8, 3, 3);
    check_search(60, 5, 64, 2, 2);
    check_search(32, 16, 2, 1, 4); /* fewer entries than hypotheses */
    check_search(17, 1, 4, 2, 2);
    check_search(16, 8, 4096, 1, 2); /* two tiles of entries */
}

/* ---- whole matrices ---- */

static void quantize(const problem *p, const vptq_aqlm_settings *s, vencoder_run *run,
                     vptq_additive *a)
{
    const vptq_uniform_input input = {.out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
    vptq_err err = {0};
    assert_ok(vptq_aqlm_quantize(&run->dev, s, &input, &run->arena, a, &err), &err);
}

static double loss_of(const problem *p, const vptq_aqlm_settings *s)
{
    vencoder_run run;
    vptq_additive a;
    vptq_err err = {0};
    float *what = vtest_alloc((size_t)p->out * p->in, sizeof *what);
    vencoder_open(&run, "cpu", 2);
    quantize(p, s, &run, &a);
    assert_ok(vptq_additive_decode(&run.ctx, &a, what, &err), &err);
    for (size_t m = 0; m < s->codebooks; m++)
        for (size_t i = 0; i < (size_t)s->k * s->v; i++)
            assert_true(vptq_round_to(s->storage, a.codebooks[m][i]) == a.codebooks[m][i]);
    for (size_t r = 0; r < p->out; r++)
        assert_true(vptq_round_to(s->storage, a.scales[r]) == a.scales[r]);
    const double loss = problem_loss(p, what);
    free(what);
    vencoder_close(&run);
    return loss;
}

/* Every round loses less than the one before. */
static void test_rounds(void **state)
{
    (void)state;
    problem p = problem_make(48, 96, 6);
    vptq_aqlm_settings s = usual;
    s.tolerance = 0;
    double before = INFINITY;
    for (s.rounds = 0; s.rounds < 6; s.rounds++) {
        const double loss = loss_of(&p, &s);
        assert_true(loss < before);
        before = loss;
    }
    s.rounds = 50;
    s.tolerance = 0.01;
    const double plain = loss_of(&p, &s);
    s.beam = 8;
    assert_true(loss_of(&p, &s) < plain);
    s.storage = VPTQ_BF16;
    assert_true(loss_of(&p, &s) < 1.02 * plain);
    problem_free(&p);
}

/* tests/golden/make_aqlm.py: on average no more than 1.05 times the loss of the published code,
 * with three codebooks, which few vectors train, 1.1 times. */
static void test_golden(void **state)
{
    (void)state;
    static const struct {
        uint32_t k, codebooks;
        double most;
    } cases[] = {{16, 2, 1.05}, {32, 2, 1.05}, {32, 3, 1.1}};
    enum { CASES = sizeof cases / sizeof *cases, SEEDS = 4 };
    vptq_tensor_set matrices, losses;
    vgolden_open(&matrices, "tests/golden/quip.safetensors");
    vgolden_open(&losses, "tests/golden/aqlm.safetensors");
    for (int i = 0; i < 3; i++) {
        problem p = vgolden_problem(&matrices, i);
        double published[CASES];
        vgolden_losses(&losses, i, CASES, published);
        for (size_t c = 0; c < CASES; c++) {
            vptq_aqlm_settings s = usual;
            s.k = cases[c].k;
            s.codebooks = cases[c].codebooks;
            double loss = 0;
            for (s.seed = 0; s.seed < SEEDS; s.seed++)
                loss += loss_of(&p, &s) / SEEDS;
            if (!(loss < cases[c].most * published[c]) || !(loss > 0.8 * published[c]))
                fail_msg("matrix %d, %u codebooks of %u: loss %g, published %g", i, s.codebooks,
                         s.k, loss, published[c]);
        }
        problem_free(&p);
    }
    vptq_tensor_set_release(&matrices);
    vptq_tensor_set_release(&losses);
}

/* Rows of zeros and rows too small for F16 become zeros, and inputs that are always zero do no
 * harm; nor do rows beyond F16, which others then hardly share codebooks with. */
static void test_extremes(void **state)
{
    (void)state;
    problem p = problem_make(16, 64, 2);
    vencoder_run run;
    vptq_additive a;
    vptq_err err = {0};
    float what[16 * 64];
    for (size_t i = 0; i < 64; i++) {
        p.w[i] = 0;
        p.w[128 + i] *= 1e-30F;
        p.lower[i < 20 ? 20 * 21 / 2 + i : i * (i + 1) / 2 + 20] = 0;
    }
    problem_unpack(&p);
    vencoder_open(&run, "cpu", 1);
    for (int huge = 0; huge < 2; huge++) {
        quantize(&p, &usual, &run, &a);
        assert_ok(vptq_additive_decode(&run.ctx, &a, what, &err), &err);
        assert_true(huge || problem_loss(&p, what) < 0.2);
        for (size_t i = 0; i < 16 * 64; i++)
            assert_true(isfinite(what[i]));
        for (size_t i = 0; i < 64; i++) {
            assert_true(what[i] == 0 && what[128 + i] == 0);
            p.w[64 + i] *= 1e30F;
        }
    }
    vencoder_close(&run);
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_fit), cmocka_unit_test(test_optimum),
           cmocka_unit_test(test_search), cmocka_unit_test(test_rounds),
           cmocka_unit_test(test_golden), cmocka_unit_test(test_extremes))
