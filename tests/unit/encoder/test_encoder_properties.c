/* Tests properties that hold for any matrix: more bits are not worse, no step raises its
 * objective, reported losses follow their definition, and extreme shapes work. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

static vptq_encoder_settings small(uint32_t v, uint32_t k, uint32_t k_res)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = v;
    s.k = k;
    s.k_res = k_res;
    s.v0 = 4;
    s.k0 = 16;
    s.joint = 3;
    s.retrain = 2;
    s.beam = 8;
    return s;
}

static vptq_encoder_settings upstream(const vptq_encoder_settings *like)
{
    vptq_encoder_settings s = vencoder_upstream(like);
    s.kmeans_iterations = 20;
    return s;
}

/* ---- bits ---- */

static void test_more_bits_are_not_worse(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        problem p = problem_make(64, 48, 20 * seed);
        double last = INFINITY, loss;
        vptq_encoder_settings s = small(4, 4, 0);
        s.seed = seed;
        for (; s.k <= 1024; s.k *= 4, last = loss) {
            loss = vencoder_loss(&p, &s);
            assert_true(loss < last);
        }
        last = INFINITY;
        for (s = small(16, 16, 0); s.v; s.v /= 2, last = loss) {
            loss = vencoder_loss(&p, &s);
            assert_true(loss < last);
        }
        last = INFINITY;
        s = small(8, 16, 0);
        for (uint32_t k_res = 1; k_res <= 64; k_res *= 4, last = loss) {
            s.k_res = k_res > 1 ? k_res : 0;
            loss = vencoder_loss(&p, &s);
            assert_true(loss < last);
        }
        last = INFINITY;
        s = small(8, 16, 4);
        for (s.groups = 1; s.groups <= 16; s.groups *= 4, last = loss) {
            loss = vencoder_loss(&p, &s);
            assert_true(loss < last);
        }
        last = INFINITY;
        s = small(8, 4, 4);
        s.v0 = 2;
        s.k0 = 256;
        for (s.outliers = 0; s.outliers < 50; s.outliers += 20, last = loss) {
            loss = vencoder_loss(&p, &s);
            assert_true(loss < last);
        }
        problem_free(&p);
    }
}

/* On columns of very different spread, scaling in the right metric never costs. */
static void test_norm_pays_on_spread_columns(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        problem p = problem_make(64, 48, 30 * seed);
        for (size_t i = 0; i < (size_t)p.out * p.in; i++)
            p.w[i] *= powf(10, (float)((i % p.in + seed) % 5) - 2);
        for (int residual = 0; residual < 2; residual++) {
            vptq_encoder_settings s = small(4, 16, residual ? 8 : 0);
            double with = vencoder_loss(&p, &s);
            s.norm = VPTQ_NORM_NONE;
            assert_true(with < vencoder_loss(&p, &s));
        }
        problem_free(&p);
    }
}

/* ---- steps ---- */

/* Runs pass, sweeps and refits of a matrix and checks the objective, padded rows included, in
 * double after each. */
static void check_descent(const problem *p, const vptq_encoder_settings *s)
{
    vencoder_state e;
    vptq_encoder *enc = &e.enc;
    vptq_err err = {0};
    const vptq_encoder_input input = vencoder_input(p);

    vencoder_state_open(&e, "cpu", 1, s, &input);
    assert_ok(vptq_train_main(enc, &err), &err);
    if (s->k_res)
        assert_ok(vptq_train_residual(enc, &err), &err);
    assert_ok(vptq_column_pass(enc, false, &err), &err);
    double last = vencoder_objective(&e);
    for (int n = 0; n < 4; n++) {
        assert_ok(vptq_encoder_update(enc, &err), &err);
        if (n % 2)
            assert_ok(vptq_refit(enc, NULL, NULL, 12, &err), &err);
        else
            assert_ok(vptq_sweeps(enc, 2, &err), &err);
        double now = vencoder_objective(&e);
        if (!(now <= last * (1 + 1e-6) + 1e-9))
            fail_msg("%s raised the objective from %.9g to %.9g", n % 2 ? "refit" : "sweeps",
                     last, now);
        last = now;
    }
    vencoder_state_close(&e);
}

static void test_descent_never_raises(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 96; seed++) {
        uint32_t v = 1U << seed % 4,
                 out = v * (1 + (uint32_t)(seed / 4 % 5)) + (uint32_t)(seed / 48);
        uint32_t in = 6 * (1 + (uint32_t)seed % 3);
        problem p = problem_make(out, in, 1000 + seed);
        vptq_encoder_settings s = small(v, 2U << seed % 3, seed % 2 ? 4 : 0);
        s.groups = seed % 5 ? 1 : 3;
        s.outliers = seed % 7 ? 0 : 20;
        s.norm = seed % 3 ? VPTQ_NORM_STD : VPTQ_NORM_NONE;
        s.beam = 1 + (uint32_t)seed % 4;
        s.kmeans_iterations = 3;
        s.ridge = seed % 4 ? 0.02 : 0.001;
        check_descent(&p, &s);
        problem_free(&p);
    }
}

/* In the report of a whole run the loss only rises where the step was reverted. */
static void test_reported_losses_fall(void **state)
{
    (void)state;
    static const char *const names[] = {"k-means", "residual", "joint", "pass",  "retrain",
                                        "sweeps",  "scales",   "refit", "refit", "storage"};
    enum { STEPS = sizeof names / sizeof names[0] };
    for (uint64_t seed = 0; seed < 12; seed++) {
        problem p = problem_make(32, 24, 2000 + seed);
        vptq_encoder_settings s = small(4, 8, 4);
        const vptq_encoder_input input = vencoder_input(&p);
        vencoder_run run;
        s.groups = seed % 2 ? 3 : 1;
        s.outliers = seed % 3 ? 0 : 10;
        s.ridge = 0; /* makes the objective equal to the loss */
        s.refits = 2;
        vencoder_open(&run, "cpu", 2);
        vencoder_quantize(&run, &s, &input);
        const vptq_encoder_report *r = &run.r.report;
        assert_int_equal(r->num_steps, STEPS);
        for (uint32_t i = 0; i < STEPS; i++) {
            assert_string_equal(r->steps[i].name, names[i]);
            if (i > 0 && i < STEPS - 1)
                assert_true(r->steps[i].loss <= r->steps[i - 1].loss * (1 + 1e-5));
        }
        assert_true(r->steps[STEPS - 1].loss < r->steps[STEPS - 2].loss * 1.001);
        assert_true(r->damping_added <= 0);
        vencoder_close(&run);
        problem_free(&p);
    }
}

/* ---- losses ---- */

static float *as_weights(const vencoder_state *e)
{
    const vptq_encoder *enc = &e->enc;
    float *what = calloc((size_t)enc->problem.out * enc->problem.in, sizeof *what);
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        for (size_t t = 0; t < enc->columns.groups[i].cols; t++) {
            size_t j = enc->problem.order[enc->columns.groups[i].first + t];
            for (size_t r = 0; r < enc->problem.out; r++)
                what[r * enc->problem.in + j] =
                    (float)(vencoder_q(&enc->columns.groups[i], t, r) *
                                (double)enc->problem.scale[j] +
                            (double)enc->problem.bias[j]);
        }
    return what;
}

static void check_step(const problem *p, const vptq_encoder_input *input,
                       const vencoder_state *e, const vptq_encoder_step *step)
{
    float *what = as_weights(e);
    double want[3] = {problem_loss(p, what), 0, 0};
    want[1] = input->metric ? problem_loss_under(p, input->metric, what) : want[0];
    want[2] = input->held_out ? problem_loss_under(p, input->held_out, what) : 0;
    const double got[3] = {step->loss, step->weighted, step->held_out};
    assert_close_f64(got, want, 3, 0, 1e-4);
    free(what);
}

/* Repeats the first steps of a run and compares each entry of its report. */
static void check_losses(const problem *p, const vptq_encoder_settings *s,
                         const vptq_encoder_input *input)
{
    vencoder_run run;
    vencoder_state e;
    vptq_encoder *enc = &e.enc;
    vptq_err err = {0};
    const vptq_encoder_step *step = run.r.report.steps;

    vencoder_open(&run, "cpu", 2);
    vencoder_quantize(&run, s, input);
    vencoder_state_open(&e, "cpu", 2, s, input);
    assert_ok(vptq_train_main(enc, &err), &err);
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        if (enc->columns.groups[i].k_res)
            memset(enc->columns.groups[i].idx_res, 0,
                   enc->columns.groups[i].cols * enc->columns.groups[i].vector_rows *
                       sizeof(uint32_t));
    check_step(p, input, &e, step++);
    if (s->k_res) {
        assert_ok(vptq_train_residual(enc, &err), &err);
        check_step(p, input, &e, step++);
    }
    if (s->k_res && s->joint) {
        assert_ok(vptq_train_joint(enc, &err), &err);
        check_step(p, input, &e, step++);
    }
    assert_ok(vptq_column_pass(enc, false, &err), &err);
    check_step(p, input, &e, step++);
    if (s->retrain) {
        assert_ok(vptq_retrain(enc, s->retrain, &err), &err);
        check_step(p, input, &e, step++);
    }
    if (s->sweeps) {
        assert_ok(vptq_encoder_update(enc, &err), &err);
        assert_ok(vptq_sweeps(enc, s->sweeps, &err), &err);
        check_step(p, input, &e, step++);
    }
    for (uint32_t i = 0; i < run.r.report.num_steps; i++)
        assert_false(run.r.report.steps[i].reverted);
    vencoder_state_close(&e);

    float *what = vencoder_decode(&run.r.vq);
    double error = 0, norm = 0;
    for (size_t i = 0; i < (size_t)p->out * p->in; i++) {
        error += ((double)what[i] - (double)p->w[i]) * ((double)what[i] - (double)p->w[i]);
        norm += (double)p->w[i] * (double)p->w[i];
    }
    const vptq_encoder_report *r = &run.r.report;
    double want[4] = {problem_loss(p, what), 0, 0, error / norm};
    want[1] = input->metric ? problem_loss_under(p, input->metric, what) : want[0];
    want[2] = input->held_out ? problem_loss_under(p, input->held_out, what) : 0;
    double got[4] = {r->loss, r->weighted, r->held_out, r->relative_mse};
    assert_close_f64(got, want, 4, 0, 1e-5);
    if (s->rounding == VPTQ_ROUND_LOOP) {
        const vptq_encoder_step *last = &r->steps[r->num_steps - 1];
        double told[3] = {last->loss, last->weighted, last->held_out};
        assert_close_f64(told, want, 3, 0, 1e-4);
    }
    free(what);
    vencoder_close(&run);
}

static void test_reported_losses(void **state)
{
    (void)state;
    problem p = problem_make(42, 40, 41);
    float *metric = problem_hessian(40, 141), *held_out = problem_hessian(40, 241);
    for (int i = 0; i < 16; i++) {
        vptq_encoder_settings s = small(4, 16, i & 1 ? 8 : 0);
        vptq_encoder_input input = vencoder_input(&p);
        input.metric = i & 2 ? metric : NULL;
        input.held_out = i & 4 ? held_out : NULL;
        s.groups = i & 1 ? 3 : 1;
        s.outliers = i & 1 ? 10 : 0;
        s.v0 = 5;
        if (i & 8)
            s = upstream(&s);
        check_losses(&p, &s, &input);
    }
    free(metric);
    free(held_out);
    problem_free(&p);
}

/* The last steps' losses before rounding, from their codebooks at that time. */
static void test_losses_of_refits(void **state)
{
    (void)state;
    problem p = problem_make(40, 32, 43);
    for (uint32_t refits = 0; refits < 3; refits++) {
        vencoder_run run;
        vencoder_state e;
        const vptq_encoder_input input = vencoder_input(&p);
        vptq_encoder_settings s = small(4, 16, 8);
        s.refits = refits;
        s.scales = false;
        s.rounding = VPTQ_ROUND_END; /* no decision after the last step */
        vencoder_open(&run, "cpu", 2);
        vencoder_quantize(&run, &s, &input);
        const vptq_encoder_report *r = &run.r.report;
        assert_string_equal(r->steps[r->num_steps - 1].name, "storage");
        vptq_vq vq = run.r.vq;
        vencoder_state_open(&e, "cpu", 1, &s, &input); /* scale and bias before rounding */
        vq.centroids = run.r.centroids_f32;
        vq.res_centroids = run.r.res_centroids_f32;
        vq.scale = e.enc.problem.scale;
        vq.bias = e.enc.problem.bias;
        float *what = vencoder_decode(&vq);
        double want = problem_loss(&p, what);
        assert_close_f64(&r->steps[r->num_steps - 2].loss, &want, 1, 0, 1e-4);
        free(what);
        vencoder_state_close(&e);
        vencoder_close(&run);
    }
    problem_free(&p);
}

/* Held-out tokens change nothing, and neither does the plain Hessian given again as the
 * metric. */
static void test_held_out_tokens_change_nothing(void **state)
{
    (void)state;
    problem p = problem_make(32, 40, 45);
    float *other = problem_hessian(40, 345);
    vptq_encoder_settings s = small(4, 16, 8);
    uint64_t digest[4];
    double loss[4];
    for (int i = 0; i < 4; i++) {
        vencoder_run run;
        vptq_encoder_input input = vencoder_input(&p);
        input.held_out = i == 1 ? other : NULL;
        input.metric = i == 2 ? p.lower : i == 3 ? other : NULL;
        vencoder_open(&run, "cpu", 2);
        vencoder_quantize(&run, &s, &input);
        digest[i] = vencoder_digest(&run.r.vq);
        loss[i] = run.r.report.loss;
        if (i < 3)
            assert_true(run.r.report.weighted == run.r.report.loss);
        else
            assert_true(run.r.report.weighted < run.r.report.loss);
        assert_true((run.r.report.held_out > 0) == (i == 1));
        vencoder_close(&run);
    }
    assert_true(digest[1] == digest[0] && digest[2] == digest[0]);
    assert_true(digest[3] != digest[0] && loss[3] > loss[0]);
    free(other);
    problem_free(&p);
}

/* ---- order ---- */

/* Permuting the input channels of W and H together permutes those of the result. */
static void test_permutation_invariance(void **state)
{
    (void)state;
    problem p = problem_make(48, 40, 51), q = problem_make(48, 40, 51);
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
    problem_unpack(&q);
    for (int i = 0; i < 8; i++) {
        vencoder_run a, b;
        vptq_encoder_settings s = small(4, 16, i & 1 ? 8 : 0);
        const vptq_encoder_input in_p = vencoder_input(&p), in_q = vencoder_input(&q);
        s.groups = i & 2 ? 4 : 1;
        s.outliers = i & 2 ? 10 : 0;
        if (i & 4)
            s = upstream(&s);
        vencoder_open(&a, "cpu", 2);
        vencoder_open(&b, "cpu", 2);
        vencoder_quantize(&a, &s, &in_p);
        vencoder_quantize(&b, &s, &in_q);
        assert_close_f64(&a.r.report.loss, &b.r.report.loss, 1, 0, 1e-6);
        float *x = vencoder_decode(&a.r.vq), *y = vencoder_decode(&b.r.vq);
        for (uint32_t c = 0; c < p.in; c++)
            for (uint32_t r = 0; r < p.out; r++)
                assert_true(x[r * p.in + c] == y[r * p.in + (c * 7 + 3) % p.in]);
        free(x);
        free(y);
        vencoder_close(&a);
        vencoder_close(&b);
    }
    problem_free(&p);
    problem_free(&q);
}

/* ---- edges ---- */

typedef struct edge {
    uint32_t out, in, v, k, k_res, groups;
    double outliers;
    uint32_t v0, k0;
} edge;

static const edge edges[] = {
    {1, 40, 1, 4, 0, 1, 0, 4, 16},     /* one row */
    {1, 40, 8, 4, 4, 2, 5, 4, 16},     /* one row in vectors of 8 */
    {40, 1, 4, 4, 2, 1, 0, 4, 16},     /* one column */
    {1, 1, 4, 4, 2, 1, 0, 4, 16},      /* one weight */
    {3, 24, 8, 8, 0, 1, 0, 4, 16},     /* out < v */
    {3, 24, 64, 4, 4, 1, 0, 4, 16},    /* the longest vectors */
    {8, 12, 4, 64, 0, 1, 0, 4, 16},    /* more centroids than vectors */
    {8, 12, 4, 64, 128, 1, 0, 4, 16},  /* the same in both codebooks */
    {16, 12, 4, 4, 32, 1, 0, 4, 16},   /* k_res > k */
    {16, 12, 4, 2, 2, 1, 0, 4, 16},    /* the smallest codebooks */
    {16, 12, 4, 2, 0, 12, 0, 4, 16},   /* a group for every column */
    {16, 12, 4, 2, 4, 11, 8, 4, 16},   /* the same with one outlier column */
    {10, 24, 4, 8, 4, 2, 8, 64, 4},    /* v0 > out */
    {10, 24, 8, 8, 4, 3, 12, 3, 256},  /* odd v0; more outlier centroids than vectors */
    {13, 24, 4, 8, 4, 1, 95, 5, 16},   /* all but one column are outliers */
    {16, 12, 1, 65536, 0, 1, 0, 4, 2}, /* scalars, the largest codebook */
};

static bool is_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* The stored matrix is complete and finite, and its loss is the reported one. */
static void check_result(const problem *p, const vptq_encoder_result *r)
{
    vptq_err err = {0};
    const vptq_vq_shape *s = &r->vq.shape;
    assert_ok(vptq_vq_shape_check(s, &err), &err);
    assert_true(is_finite(r->vq.centroids, (size_t)s->groups * s->k * s->v));
    assert_true(is_finite(r->centroids_f32, (size_t)s->groups * s->k * s->v));
    assert_true(is_finite(r->vq.res_centroids, (size_t)s->groups * s->k_res * s->v));
    assert_true(is_finite(r->vq.outlier_centroids, (size_t)s->k0 * s->v0));
    float *what = vencoder_decode(&r->vq);
    assert_true(is_finite(what, (size_t)p->out * p->in));
    double loss = problem_loss(p, what);
    assert_close_f64(&r->report.loss, &loss, 1, 1e-9, 1e-5);
    assert_true(loss < 1);
    free(what);
}

static vptq_encoder_settings settings_of(const edge *e)
{
    vptq_encoder_settings s = small(e->v, e->k, e->k_res);
    s.groups = e->groups;
    s.outliers = e->outliers;
    s.v0 = e->v0;
    s.k0 = e->k0;
    return s;
}

static void test_edge_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        problem p = problem_make(edges[i].out, edges[i].in, 600 + i);
        const vptq_encoder_input input = vencoder_input(&p);
        for (int encoder = 0; encoder < 2; encoder++) {
            vencoder_run run;
            vptq_encoder_settings s = settings_of(&edges[i]);
            if (encoder)
                s = upstream(&s);
            vencoder_open(&run, encoder ? "ref" : "cpu", 2);
            vencoder_quantize(&run, &s, &input);
            check_result(&p, &run.r);
            vencoder_close(&run);
        }
        problem_free(&p);
    }
}

/* More centroids than vectors: every vector is a centroid, and the only loss is rounding. */
static void test_more_centroids_than_vectors(void **state)
{
    (void)state;
    problem p = problem_make(8, 12, 61);
    vptq_encoder_settings s = small(4, 64, 0); /* 24 vectors */
    assert_true(vencoder_loss(&p, &s) < 1e-5);
    s.k = 32;
    s.k_res = 128;
    assert_true(vencoder_loss(&p, &s) < 1e-5);
    s = small(4, 2, 0); /* 2 vectors in each group */
    s.groups = 12;
    assert_true(vencoder_loss(&p, &s) < 1e-5);
    problem_free(&p);
}

/* Zero, constant and dead columns, among groups or among the outliers. */
static void test_degenerate_columns(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        problem p = problem_make(40, 32, 71);
        vptq_encoder_settings s = small(4, 16, i & 1 ? 8 : 0);
        const vptq_encoder_input input = vencoder_input(&p);
        vencoder_run run;
        s.groups = i & 2 ? 4 : 1;
        s.outliers = i & 2 ? 10 : 0;
        s.ridge = i & 4 ? s.ridge : 0;
        s.scales = false; /* they would profit even from the flat columns */
        if (i & 8)
            s = upstream(&s);
        for (uint32_t row = 0; row < p.out; row++) {
            p.w[row * p.in + 3] = 0;    /* zero column */
            p.w[row * p.in + 9] = 0.5F; /* constant column */
        }
        for (uint32_t j = 0; j < p.in; j++) { /* column 20 never sees an input */
            uint32_t hi = j > 20 ? j : 20, lo = j > 20 ? 20 : j;
            p.lower[hi * (hi + 1) / 2 + lo] = 0;
        }
        problem_unpack(&p);
        vencoder_open(&run, "cpu", 2);
        vencoder_quantize(&run, &s, &input);
        assert_int_equal(run.r.report.dead_columns, 1);
        assert_true((run.r.report.damping_added > 0) == (s.ridge <= 0));
        check_result(&p, &run.r);
        assert_true(run.r.report.loss < 0.3);
        assert_true(run.r.vq.scale[3] == 1.0F && run.r.vq.bias[3] == 0.0F);
        assert_true(run.r.vq.scale[9] == 1.0F && run.r.vq.bias[9] == 0.5F);
        vencoder_close(&run);
        problem_free(&p);
    }
}

/* All zeros, and all of one value. */
static void test_flat_matrices(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        problem p = problem_make(12, 16, 73);
        vptq_encoder_settings s = small(4, 8, i & 1 ? 4 : 0);
        const vptq_encoder_input input = vencoder_input(&p);
        vencoder_run run;
        if (i & 4)
            s = upstream(&s);
        for (size_t j = 0; j < (size_t)p.out * p.in; j++)
            p.w[j] = i & 2 ? 0.25F : 0;
        vencoder_open(&run, "cpu", 1);
        vencoder_quantize(&run, &s, &input);
        float *what = vencoder_decode(&run.r.vq);
        assert_same_f32(what, p.w, (size_t)p.out * p.in);
        assert_true(run.r.report.loss <= 0 && run.r.report.relative_mse <= 0);
        free(what);
        vencoder_close(&run);
        problem_free(&p);
    }
}

VTEST_MAIN(cmocka_unit_test(test_more_bits_are_not_worse),
           cmocka_unit_test(test_norm_pays_on_spread_columns),
           cmocka_unit_test(test_descent_never_raises),
           cmocka_unit_test(test_reported_losses_fall), cmocka_unit_test(test_reported_losses),
           cmocka_unit_test(test_losses_of_refits),
           cmocka_unit_test(test_held_out_tokens_change_nothing),
           cmocka_unit_test(test_permutation_invariance), cmocka_unit_test(test_edge_shapes),
           cmocka_unit_test(test_more_centroids_than_vectors),
           cmocka_unit_test(test_degenerate_columns), cmocka_unit_test(test_flat_matrices))
