/* Tests a whole matrix in every combination of settings: the metric, the stored form, the
 * differences of the published recipe, and the same bytes for any number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/grid.h"
#include "lib/base/rng.h"
#include "lib/encoder/encoder.h"
#include "tests/support/vencoder.h"
#include "tests/support/vnormal.h"
#include "tests/support/vtest.h"

/* ---- combinations ---- */

enum { COMBINATIONS = 96 };

/* Combination number i, for matrices of 21 x 26. */
static vptq_encoder_settings combination(unsigned i)
{
    static const uint32_t norms[] = {VPTQ_NORM_STD, VPTQ_NORM_NONE, VPTQ_NORM_MINMAX};
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = i & 1 ? 8 : 4;
    s.k = 8;
    s.k_res = i & 2 ? 4 : 0;
    s.groups = i & 4 ? 3 : 1;
    s.outliers = i & 8 ? 12 : 0; /* 4 columns, with 3 groups 5 */
    if (!s.outliers && s.groups == 3)
        s.groups = 2;
    s.v0 = i & 1 ? 3 : 32; /* 32 is more than the number of rows */
    s.k0 = 4;
    s.perm = i & 16;
    s.norm = norms[i / 32];
    s.storage = i % 5 ? VPTQ_F16 : VPTQ_BF16;
    s.codebook_grid = i % 3 == 1 ? VPTQ_GRID_INT8 : VPTQ_GRID_NONE;
    s.kmeans_iterations = 3;
    s.joint = 1;
    s.retrain = 1;
    s.sweeps = 1;
    s.refits = 1;
    s.beam = 1 + i % 4;
    return s;
}

static vptq_encoder_settings published(const vptq_encoder_settings *like)
{
    vptq_encoder_settings s = *like;
    vptq_err err = {0};
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    s.norm = like->norm;
    s.perm = like->perm;
    s.codebook_grid = like->codebook_grid;
    s.kmeans_iterations = 10;
    return s;
}

/* ---- the metric ---- */

static double by_hand(const problem *p, const vptq_encoder_settings *s, const vptq_problem *m,
                      size_t i, size_t j)
{
    double mean = 0, h = p->h[i * p->in + j];
    for (size_t c = 0; c < p->in; c++)
        mean += p->h[c * p->in + c] / p->in;
    if (i == j)
        h += s->ridge * mean;
    return s->metric == VPTQ_METRIC_RAW ? h : (double)m->scale[i] * h * (double)m->scale[j];
}

/* Checks scale and bias of every norm, W in their coordinates, H' and its order. */
static void check_metric(const problem *p, const vptq_encoder_settings *s)
{
    vencoder_state e;
    const vptq_encoder_input input = vencoder_input(p);
    vencoder_state_open(&e, "cpu", 1, s, &input);
    const vptq_encoder *enc = &e.enc;
    const vptq_problem *m = &enc->problem;
    for (size_t j = 0; j < p->in; j++) {
        double sum = 0, square = 0, least = INFINITY, most = -INFINITY;
        for (size_t r = 0; r < p->out; r++) {
            double w = (double)p->w[r * p->in + j];
            sum += w / p->out;
            square += w * w / p->out;
            least = fmin(least, w);
            most = fmax(most, w);
        }
        double want[2] = {1, 0};
        if (s->norm == VPTQ_NORM_STD) {
            want[0] = sqrt(square - sum * sum);
            want[1] = sum;
        } else if (s->norm == VPTQ_NORM_MINMAX) {
            want[0] = most - least;
            want[1] = least;
        }
        double got[2] = {(double)m->scale[j], (double)m->bias[j]};
        bool rounded = s->rounding == VPTQ_ROUND_LOOP;
        assert_close_f64(got, want, 2, 1e-6, rounded ? 0x1p-11 : 1e-6);
        if (rounded) {
            assert_true(m->scale[j] == vptq_round_to(VPTQ_F16, m->scale[j]));
            assert_true(m->bias[j] == vptq_round_to(VPTQ_F16, m->bias[j]));
        }
    }
    bool seen[64] = {0};
    for (size_t i = 0; i < p->in; i++) {
        size_t ci = m->order[i];
        assert_false(seen[ci]);
        seen[ci] = true;
        for (size_t r = 0; r < enc->problem.rows; r++) {
            float z = enc->problem.z[i * enc->problem.rows + r];
            float want = r < p->out ? (p->w[r * p->in + ci] - m->bias[ci]) / m->scale[ci] : 0;
            assert_close(&z, &want, 1, 0, 1e-6);
        }
        for (size_t j = 0; j < p->in; j++) {
            double want = by_hand(p, s, m, ci, m->order[j]);
            double got = (double)enc->problem.h[i * p->in + j];
            assert_close_f64(&got, &want, 1, 0, 1e-6);
        }
        double d = by_hand(p, s, m, ci, ci),
               last = i ? by_hand(p, s, m, m->order[i - 1], m->order[i - 1]) : (double)INFINITY;
        if (s->perm || i < enc->columns.shape.outliers)
            assert_true(d <= last);
        else if (i > enc->columns.shape.outliers)
            assert_true(ci > m->order[i - 1]);
        for (size_t j = enc->columns.shape.outliers;
             i < enc->columns.shape.outliers && j < p->in; j++)
            assert_true(d >= by_hand(p, s, m, m->order[j], m->order[j]));
    }
    vencoder_state_close(&e);
}

static void test_metric(void **state)
{
    (void)state;
    problem p = problem_make(21, 26, 1);
    for (unsigned i = 0; i < 24; i++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        s.norm = i % 3 == 0 ? VPTQ_NORM_NONE : i % 3 == 1 ? VPTQ_NORM_STD : VPTQ_NORM_MINMAX;
        s.metric = i & 1 ? VPTQ_METRIC_RAW : VPTQ_METRIC_SCALED;
        s.perm = i & 2;
        s.outliers = i & 4 ? 12 : 0;
        s.v0 = 8;
        s.k0 = 16;
        s.rounding = i < 12 ? VPTQ_ROUND_LOOP : VPTQ_ROUND_END;
        check_metric(&p, &s);
    }
    problem_free(&p);
}

/* ---- the stored form ---- */

static uint64_t bits_by_hand(const vptq_encoder_settings *s, uint32_t out, uint32_t in)
{
    uint64_t outliers = s->outliers > 0 ? (uint64_t)ceil(s->outliers * in / 100) : 0;
    if (outliers)
        outliers += (in - outliers) % s->groups;
    uint64_t columns = (in - outliers) / s->groups, vector_rows = (out + s->v - 1) / s->v;
    uint64_t width = (uint64_t)log2(s->k) + (s->k_res ? (uint64_t)log2(s->k_res) : 0);
    uint64_t bits = s->groups * vector_rows * ((columns * width + 31) / 32) * 32;
    const bool grid = s->codebook_grid == VPTQ_GRID_INT8;
    const uint64_t number = grid ? 8 : 16, scale = grid ? 16 : 0;
    bits += s->groups * (number * (s->k + s->k_res) * s->v + scale * (s->k_res ? 2 : 1));
    bits += 16 * 2 * (uint64_t)in;
    if (outliers)
        bits += 16 * ((out + s->v0 - 1) / s->v0 * outliers) + number * s->k0 * s->v0 + scale;
    if (outliers || (s->groups > 1 && s->perm))
        bits += 16 * (uint64_t)in;
    return bits;
}

static void random_state(vptq_encoder *enc, uint64_t seed)
{
    vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_TEST);
    uint64_t at = 0;
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        vptq_column_group *p = &enc->columns.groups[i];
        for (size_t j = 0; j < (size_t)p->k * p->v; j++)
            p->main[j] = (float)vtest_rng_normal(&rng, at++);
        for (size_t j = 0; j < (size_t)p->k_res * p->v; j++)
            p->res[j] = 0.1F * (float)vtest_rng_normal(&rng, at++);
        for (size_t j = 0; j < p->cols * p->vector_rows; j++) {
            p->idx[j] = (uint32_t)vptq_rng_below(&rng, at++, p->k);
            if (p->k_res)
                p->idx_res[j] = (uint32_t)vptq_rng_below(&rng, at++, p->k_res);
        }
    }
}

/* Random codebooks and indices, rounded and stored: a reader decodes exactly q. */
static void test_stored_form(void **state)
{
    (void)state;
    problem p = problem_make(21, 26, 3);
    const vptq_encoder_input input = vencoder_input(&p);
    for (unsigned i = 0; i < COMBINATIONS; i++) {
        vencoder_state e;
        vptq_encoder *enc = &e.enc;
        vptq_err err = {0};
        vptq_encoder_result r = {0};
        const vptq_encoder_settings s = combination(i);
        vencoder_state_open(&e, "cpu", 1, &s, &input);
        random_state(enc, i);
        assert_ok(vptq_columns_round(&enc->columns, s.storage, enc->keep, &err), &err);
        assert_true(enc->columns.rounded);
        assert_ok(vptq_encoder_gather(enc, &err), &err);
        assert_ok(vptq_store(enc, &r, &err), &err);
        const vptq_vq_shape *shape = &r.vq.shape;
        assert_ok(vptq_vq_shape_check(shape, &err), &err);
        assert_true(vptq_vq_count_bits(shape).total == bits_by_hand(&s, p.out, p.in));
        assert_int_equal(r.vq.perm != NULL, shape->has_perm);
        assert_int_equal(r.vq.res_centroids != NULL, s.k_res > 0);
        assert_int_equal(r.vq.outlier_indices != NULL, s.outliers > 0);
        float *what = vencoder_decode(&r.vq);
        for (size_t j = 0; j < p.in; j++) {
            size_t col = enc->problem.order[j];
            for (size_t row = 0; row < p.out; row++) {
                float product = enc->q[j * enc->problem.rows + row] * enc->problem.scale[col];
                float want = product + enc->problem.bias[col];
                assert_true(what[row * p.in + col] == want);
            }
        }
        for (size_t j = 0; j < (size_t)s.k * s.v; j++)
            assert_true(r.vq.centroids[j] == vptq_round_to(s.storage, r.centroids_f32[j]));
        for (size_t j = 0; j < (size_t)s.k_res * s.v; j++)
            assert_true(r.vq.res_centroids[j] ==
                        vptq_round_to(s.storage, r.res_centroids_f32[j]));
        (void)vencoder_digest(&r.vq); /* reads every stored byte */
        free(what);
        vencoder_state_close(&e);
    }
    problem_free(&p);
}

static bool is_stored(vptq_dtype type, const float *x, size_t n)
{
    for (size_t i = 0; x && i < n; i++)
        if (x[i] != vptq_round_to(type, x[i]))
            return false;
    return true;
}

/* Each of `count` codebooks of n values has a scale of its own. */
static void check_grids(uint32_t grid, const float *codebooks, uint32_t count, size_t n)
{
    float scale;
    for (uint32_t i = 0; codebooks && i < count; i++)
        assert_int_equal(vptq_grid_find(codebooks + i * n, n, &scale, NULL),
                         grid == VPTQ_GRID_INT8);
}

/* After a whole run the result can be stored, and its loss is the reported one. */
static void check_result(const problem *p, const vptq_encoder_settings *s,
                         const vptq_encoder_result *r)
{
    const vptq_vq *vq = &r->vq;
    const vptq_vq_shape *shape = &vq->shape;
    size_t codebooks = shape->groups * (size_t)shape->v;
    assert_true(is_stored(s->storage, vq->centroids, codebooks * shape->k));
    assert_true(is_stored(s->storage, vq->res_centroids, codebooks * shape->k_res));
    assert_true(is_stored(s->storage, vq->outlier_centroids, (size_t)shape->k0 * shape->v0));
    if (s->codebook_grid == VPTQ_GRID_INT8) /* exact in another type that holds the scale */
        assert_same_f32(r->centroids_f32, vq->centroids, codebooks * shape->k);
    check_grids(s->codebook_grid, vq->centroids, shape->groups, (size_t)shape->k * shape->v);
    check_grids(s->codebook_grid, vq->res_centroids, shape->groups,
                (size_t)shape->k_res * shape->v);
    check_grids(s->codebook_grid, vq->outlier_centroids, 1, (size_t)shape->k0 * shape->v0);
    assert_true(is_stored(s->storage, vq->scale, p->in));
    assert_true(is_stored(s->storage, vq->bias, p->in));
    assert_true(vptq_vq_count_bits(shape).total == bits_by_hand(s, p->out, p->in));
    float *what = vencoder_decode(vq);
    double loss = problem_loss(p, what);
    assert_close_f64(&r->report.loss, &loss, 1, 0, 1e-5);
    free(what);
}

/* Every combination, with both encoders, on 1, 2 and 3 threads. */
static void test_same_bytes_for_any_threads(void **state)
{
    (void)state;
    problem p = problem_make(21, 26, 5);
    const vptq_encoder_input input = vencoder_input(&p);
    for (unsigned i = 0; i < 2 * COMBINATIONS; i++) {
        vptq_encoder_settings s = combination(i % COMBINATIONS);
        uint64_t first = 0;
        double loss = 0;
        if (i >= COMBINATIONS)
            s = published(&s);
        for (int threads = 1; threads <= 3; threads++) {
            vencoder_run run;
            vencoder_open(&run, "cpu", threads);
            vencoder_quantize(&run, &s, &input);
            uint64_t digest = vencoder_digest(&run.r.vq);
            if (threads == 1) {
                check_result(&p, &s, &run.r);
                first = digest;
                loss = run.r.report.loss;
            }
            assert_true(digest == first);
            assert_true(run.r.report.loss == loss);
            vencoder_close(&run);
        }
    }
    problem_free(&p);
}

/* Large enough to give work to every thread, and more than one block of columns. */
static void test_same_bytes_of_a_larger_matrix(void **state)
{
    (void)state;
    problem p = problem_make(200, 300, 71);
    const vptq_encoder_input input = vencoder_input(&p);
    for (int residual = 0; residual < 2; residual++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        uint64_t digest[3];
        s.k = residual ? 16 : 256;
        s.k_res = residual ? 8 : 0;
        s.outliers = residual ? 2 : 0;
        s.k0 = 64;
        s.kmeans_iterations = 5;
        s.joint = 2;
        for (int t = 0; t < 3; t++) {
            vencoder_run run;
            vencoder_open(&run, "cpu", t + 1);
            vencoder_quantize(&run, &s, &input);
            digest[t] = vencoder_digest(&run.r.vq);
            vencoder_close(&run);
        }
        assert_true(digest[1] == digest[0] && digest[2] == digest[0]);
    }
    problem_free(&p);
}

/* On a grid the stored codebooks are multiples of few scales, at a small price: the last sweep
 * adapts the indices to them. */
static void test_grid_costs_little(void **state)
{
    (void)state;
    problem p = problem_make(64, 96, 17);
    const vptq_encoder_input input = vencoder_input(&p);
    for (int residual = 0; residual < 2; residual++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        double loss[2];
        s.k = 64;
        s.k_res = residual ? 16 : 0;
        s.groups = 2;
        for (uint32_t grid = 0; grid < 2; grid++) {
            vencoder_run run;
            s.codebook_grid = grid;
            vencoder_open(&run, "cpu", 1);
            vencoder_quantize(&run, &s, &input);
            check_result(&p, &s, &run.r);
            const vptq_encoder_report *r = &run.r.report;
            static const char *const names[] = {"storage", "adapt", "repass", "grid"};
            for (uint32_t i = 0, n = r->num_steps; i < 4 && grid; i++)
                if (residual || i != 1)
                    assert_string_equal(r->steps[--n].name, names[i]);
            loss[grid] = run.r.report.loss;
            vencoder_close(&run);
        }
        assert_true(loss[1] < 1.02 * loss[0]);
    }
    problem_free(&p);
}

/* The plain and the fast device round differently, and neither has an advantage. */
static void test_ref_and_cpu(void **state)
{
    (void)state;
    problem p = problem_make(48, 40, 7);
    const vptq_encoder_input input = vencoder_input(&p);
    double sum = 0;
    enum { COUNT = 8 };
    for (unsigned i = 0; i < COUNT; i++) {
        vencoder_run run[2];
        vptq_encoder_settings s = combination(i * 6 + i % 2);
        s.groups = s.outliers > 0 ? s.groups : 1;
        if (i > 4)
            s = published(&s);
        for (int n = 0; n < 2; n++) {
            vencoder_open(&run[n], n ? "cpu" : "ref", 2);
            vencoder_quantize(&run[n], &s, &input);
        }
        double difference = log(run[1].r.report.loss / run[0].r.report.loss);
        assert_true(fabs(difference) < 0.05);
        sum += difference / COUNT;
        vencoder_close(&run[0]);
        vencoder_close(&run[1]);
    }
    assert_true(fabs(sum) < 0.02);
    problem_free(&p);
}

/* ---- the published recipe ---- */

static void put_codebooks(vptq_encoder *enc, const float *main, const float *res)
{
    vptq_column_group *p = &enc->columns.groups[0];
    memcpy(p->main, main, (size_t)p->k * p->v * sizeof *main);
    memcpy(p->res, res, (size_t)p->k_res * p->v * sizeof *res);
}

/* Number of stored indices that differ from those of the state. */
static size_t differing(const vptq_encoder *enc, const vptq_vq *vq)
{
    const vptq_column_group *p = &enc->columns.groups[0];
    size_t words = vptq_vq_row_words(&vq->shape), differ = 0;
    unsigned width = vptq_vq_index_bits(&vq->shape), main = vptq_log2u(p->k);
    for (size_t t = 0; t < p->cols; t++)
        for (size_t g = 0; g < p->vector_rows; g++) {
            uint32_t got = vptq_bits_get(vq->indices + g * words, enc->problem.order[t], width);
            uint32_t want = p->idx[t * p->vector_rows + g] | p->idx_res[t * p->vector_rows + g]
                                                                 << main;
            differ += got != want;
        }
    return differ;
}

/* The published recipe rounds last: its indices come from a pass with codebooks, scale and bias
 * in float, not with the stored ones. */
static void test_upstream_rounds_at_the_end(void **state)
{
    (void)state;
    problem p = problem_make(64, 64, 9);
    const vptq_encoder_input input = vencoder_input(&p);
    vptq_encoder_settings s = vptq_encoder_defaults();
    vptq_err err = {0};
    vencoder_run run;
    vencoder_state e;
    s.k = 16;
    s.k_res = 8;
    s.storage = VPTQ_BF16; /* the coarser type */
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    vencoder_open(&run, "cpu", 1);
    vencoder_quantize(&run, &s, &input);
    const vptq_encoder_result *r = &run.r;
    vencoder_state_open(&e, "cpu", 1, &s, &input);
    put_codebooks(&e.enc, r->centroids_f32, r->res_centroids_f32);
    assert_ok(vptq_column_pass(&e.enc, false, &err), &err);
    assert_int_equal(differing(&e.enc, &r->vq), 0);
    put_codebooks(&e.enc, r->vq.centroids, r->vq.res_centroids);
    assert_ok(vptq_column_pass(&e.enc, false, &err), &err);
    assert_true(differing(&e.enc, &r->vq) > 0);
    for (size_t j = 0; j < p.in; j++) {
        assert_true(r->vq.scale[j] == vptq_round_to(VPTQ_BF16, e.enc.problem.scale[j]));
        assert_true(r->vq.bias[j] == vptq_round_to(VPTQ_BF16, e.enc.problem.bias[j]));
    }
    assert_false(is_stored(VPTQ_BF16, e.enc.problem.scale, p.in));
    vencoder_state_close(&e);
    static const char *const names[] = {"k-means", "residual", "pass", "storage"};
    assert_int_equal(r->report.num_steps, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_string_equal(r->report.steps[i].name, names[i]);
        assert_false(r->report.steps[i].reverted);
    }
    vencoder_close(&run);
    problem_free(&p);
}

/* With rounding in the loop the last choices are made for the stored values: another sweep with
 * the stored codebooks, scale and bias gains next to nothing. */
static void test_best_decides_for_what_is_stored(void **state)
{
    (void)state;
    problem p = problem_make(64, 64, 11);
    const vptq_encoder_input input = vencoder_input(&p);
    vptq_err err = {0};
    for (int steps = 0; steps < 2; steps++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        vencoder_run run;
        vencoder_state e;
        s.k = 16;
        s.k_res = 8;
        s.storage = VPTQ_BF16;
        if (!steps) /* the pass is then the last decision */
            s.retrain = s.sweeps = s.refits = 0;
        vencoder_open(&run, "cpu", 1);
        vencoder_quantize(&run, &s, &input);
        vencoder_state_open(&e, "cpu", 1, &s, &input);
        put_codebooks(&e.enc, run.r.vq.centroids, run.r.vq.res_centroids);
        if (!steps) {
            assert_ok(vptq_column_pass(&e.enc, false, &err), &err);
            assert_int_equal(differing(&e.enc, &run.r.vq), 0);
        } else {
            const vptq_encoder_report *r = &run.r.report;
            assert_string_equal(r->steps[r->num_steps - 1].name, "storage");
            double lost = r->steps[r->num_steps - 1].loss / r->steps[r->num_steps - 2].loss;
            assert_true(lost < 1.005);
        }
        vencoder_state_close(&e);
        vencoder_close(&run);
    }
    problem_free(&p);
}

/* Few different vectors: a codebook drawn at random holds duplicates, whose clusters stay
 * empty; the other start repairs them. */
static void test_upstream_keeps_empty_clusters(void **state)
{
    (void)state;
    enum { K = 32 };
    problem p = problem_make(32, 48, 13);
    const vptq_encoder_input input = vencoder_input(&p);
    for (size_t r = 0; r < p.out; r++)
        for (size_t j = 0; j < p.in; j++) /* 40 different vectors, most of them repeated */
            p.w[r * p.in + j] = (float)((r / 4 * 31 + j * j * 7) % 40) * (float)(r % 4 + 1);
    for (int encoder = 0; encoder < 2; encoder++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        vencoder_run run;
        s.k = K;
        if (encoder)
            s = published(&s);
        s.norm = VPTQ_NORM_NONE;
        vencoder_open(&run, "cpu", 1);
        vencoder_quantize(&run, &s, &input);
        size_t copies = 0;
        for (size_t i = 0; i < K; i++)
            for (size_t j = 0; j < i; j++)
                copies += !memcmp(run.r.centroids_f32 + i * 4, run.r.centroids_f32 + j * 4,
                                  4 * sizeof(float));
        assert_true((copies > 0) == (encoder == 1));
        if (encoder)
            assert_int_equal(run.r.report.kmeans_repaired, 0);
        vencoder_close(&run);
    }
    problem_free(&p);
}

/* The seed changes the result, and so does the matrix number; nothing else is random. */
static void test_seeds(void **state)
{
    (void)state;
    problem p = problem_make(32, 24, 15);
    for (int encoder = 0; encoder < 2; encoder++) {
        uint64_t digest[4];
        for (int i = 0; i < 4; i++) {
            vptq_encoder_input input = vencoder_input(&p);
            vptq_encoder_settings s = vptq_encoder_defaults();
            vencoder_run run;
            s.k = 16;
            s.k_res = 4;
            if (encoder)
                s = published(&s);
            s.seed = i == 1;
            input.matrix_id = i == 2 ? 6 : 5;
            vencoder_open(&run, "cpu", 1);
            vencoder_quantize(&run, &s, &input);
            digest[i] = vencoder_digest(&run.r.vq);
            vencoder_close(&run);
        }
        assert_true(digest[3] == digest[0]);
        assert_true(digest[1] != digest[0] && digest[2] != digest[0] && digest[1] != digest[2]);
    }
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_metric), cmocka_unit_test(test_stored_form),
           cmocka_unit_test(test_same_bytes_for_any_threads),
           cmocka_unit_test(test_same_bytes_of_a_larger_matrix),
           cmocka_unit_test(test_grid_costs_little), cmocka_unit_test(test_ref_and_cpu),
           cmocka_unit_test(test_upstream_rounds_at_the_end),
           cmocka_unit_test(test_best_decides_for_what_is_stored),
           cmocka_unit_test(test_upstream_keeps_empty_clusters), cmocka_unit_test(test_seeds))
