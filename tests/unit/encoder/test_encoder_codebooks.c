/* Tests how the encoder's codebooks are trained and fitted, against the same in double: dense
 * normal equations, all pairs, the residual training of the published recipe. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

/* ---- refit ---- */

/* Solves a x = b for a symmetric a [n][n]. Where a is singular, adds a ridge far below the
 * required precision. */
static void solve(size_t n, double *a, double *b)
{
    double trace = 0;
    for (size_t i = 0; i < n; i++)
        trace += a[i * n + i];
    for (size_t i = 0; i < n; i++)
        a[i * n + i] += 1e-11 * trace / (double)n;
    for (size_t k = 0; k < n; k++)
        for (size_t i = k + 1; i < n; i++) {
            double f = a[i * n + k] / a[k * n + k];
            for (size_t j = k; j < n; j++)
                a[i * n + j] -= f * a[k * n + j];
            b[i] -= f * b[k];
        }
    for (size_t k = n; k-- > 0;) {
        for (size_t j = k + 1; j < n; j++)
            b[k] -= a[k * n + j] * b[j];
        b[k] /= a[k * n + k];
    }
}

/* Finds the unknowns that add up to q at position t of group p in row r, and returns their
 * number. */
static int uses(const vptq_column_group *p, size_t start, size_t t, size_t r, size_t *unknown)
{
    size_t at = t * p->vector_rows + r / p->v, d = r % p->v;
    unknown[0] = start + (size_t)p->idx[at] * p->v + d;
    if (p->k_res)
        unknown[1] = start + ((size_t)p->k + p->idx_res[at]) * p->v + d;
    return p->k_res ? 2 : 1;
}

/* The least tr(E H' E^T) that codebooks of the groups [first, end) allow for the given indices,
 * from the dense normal equations; `diagonal` reduces H' to its diagonal. */
static double least_objective(const vencoder_state *s, uint32_t first, uint32_t end,
                              bool diagonal)
{
    const vptq_encoder *enc = &s->enc;
    size_t n = 0, in = enc->problem.in, rows = enc->problem.rows, start[8],
           from = enc->columns.groups[first].first;
    size_t to = enc->columns.groups[end - 1].first + enc->columns.groups[end - 1].cols;
    for (uint32_t i = first; i < end; i++) {
        start[i] = n;
        n += ((size_t)enc->columns.groups[i].k + enc->columns.groups[i].k_res) *
             enc->columns.groups[i].v;
    }
    double *a = calloc(n * n, sizeof *a), *b = calloc(n, sizeof *b), sum = 0;
    size_t *unknown = calloc((to - from) * 2, sizeof *unknown);
    int *count = calloc(to - from, sizeof *count);
    double *e = calloc((to - from) * rows, sizeof *e);

    for (int solved = 0; solved < 2; solved++) {
        for (size_t r = 0; r < rows; r++) {
            for (uint32_t i = first; i < end; i++)
                for (size_t t = 0; t < enc->columns.groups[i].cols; t++) {
                    size_t p = enc->columns.groups[i].first + t - from;
                    count[p] =
                        r < enc->columns.groups[i].rows
                            ? uses(&enc->columns.groups[i], start[i], t, r, unknown + 2 * p)
                            : 0;
                }
            for (size_t p = 0; p < to - from; p++) {
                double z = (double)enc->problem.z[(from + p) * rows + r];
                if (solved) {
                    e[p * rows + r] = -z;
                    for (int u = 0; u < count[p]; u++)
                        e[p * rows + r] += b[unknown[2 * p + (size_t)u]];
                    continue;
                }
                for (size_t q = 0; q < to - from; q++) {
                    double h = diagonal && p != q ? 0 : s->h[(from + p) * in + from + q];
                    for (int u = 0; u < count[q]; u++) {
                        size_t at = unknown[2 * q + (size_t)u];
                        b[at] += h * z;
                        for (int w = 0; w < count[p]; w++)
                            a[unknown[2 * p + (size_t)w] * n + at] += h;
                    }
                }
            }
        }
        if (!solved)
            solve(n, a, b);
    }
    for (size_t p = 0; p < to - from; p++)
        for (size_t q = 0; q < to - from; q++)
            for (size_t r = 0; r < rows && !(diagonal && p != q); r++)
                sum += e[p * rows + r] * s->h[(from + p) * in + from + q] * e[q * rows + r];
    free(a);
    free(b);
    free(unknown);
    free(count);
    free(e);
    return sum;
}

static void test_refit(void **state)
{
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++) {
        problem p;
        vencoder_state e;
        vptq_encoder *enc = &e.enc;
        vptq_err err = {0};
        vencoder_case_open(&e, &p, i, 300 + i);
        double before = vencoder_objective(&e);
        for (int n = 0; n < 3;
             n++) { /* repeated, to get below float rounding of a single descent */
            assert_ok(vptq_encoder_update(enc, &err), &err);
            assert_ok(vptq_refit(enc, NULL, NULL, 300, &err), &err);
        }
        double after = vencoder_objective(&e),
               best = least_objective(&e, 0, enc->columns.num_groups, false);
        assert_true(best < 0.995 * before);
        assert_close_f64(&after, &best, 1, 0, 1e-5);
        vencoder_state_close(&e);
        problem_free(&p);
    }
}

/* Fits the codebooks of one group under the diagonal; those of other groups stay. */
static void test_refit_of_a_group(void **state)
{
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++) {
        problem p;
        vencoder_state e;
        vptq_encoder *enc = &e.enc;
        vptq_err err = {0};
        vencoder_case_open(&e, &p, i, 400 + i);
        for (uint32_t g = 0; g < enc->columns.num_groups; g++) {
            vptq_column_group *part = &enc->columns.groups[g];
            double before = vencoder_diagonal_objective(&e, part, enc->problem.z), others = 0,
                   same = 0;
            for (uint32_t o = 0; o < enc->columns.num_groups; o++)
                others += o == g ? 0
                                 : vencoder_diagonal_objective(&e, &enc->columns.groups[o],
                                                               enc->problem.z);
            assert_ok(vptq_refit(enc, part, enc->problem.z, 300, &err), &err);
            double after = vencoder_diagonal_objective(&e, part, enc->problem.z);
            double best = least_objective(&e, g, g + 1, true);
            assert_true(best < before ||
                        before < 1e-9); /* few vectors: there was no loss to reduce */
            assert_close_f64(&after, &best, 1, 1e-9, 1e-5);
            for (uint32_t o = 0; o < enc->columns.num_groups; o++)
                same += o == g ? 0
                               : vencoder_diagonal_objective(&e, &enc->columns.groups[o],
                                                             enc->problem.z);
            assert_true(same == others);
        }
        vencoder_state_close(&e);
        problem_free(&p);
    }
}

/* A few iterations already lower the objective; a centroid without vectors stays unchanged. */
static void test_refit_descends(void **state)
{
    (void)state;
    problem p = problem_make(32, 40, 51);
    const vencoder_case q = {32, 40, 4, 16, 8, 1, 0, 4, 16, 16, VPTQ_NORM_STD, true};
    vencoder_state e;
    vptq_encoder *enc = &e.enc;
    vptq_err err = {0};
    vencoder_state_train(&e, &p, &q, 1);
    assert_ok(vptq_column_pass(enc, false, &err), &err);
    vptq_column_group *part = &enc->columns.groups[0];
    for (size_t i = 0; i < part->cols * part->vector_rows; i++)
        part->idx[i] = part->idx[i] == 7 ? 6 : part->idx[i];
    float unused[4];
    memcpy(unused, part->main + (size_t)7 * part->v, sizeof unused);
    double last = vencoder_objective(&e);
    for (int n = 0; n < 6; n++) {
        assert_ok(vptq_encoder_update(enc, &err), &err);
        assert_ok(vptq_refit(enc, NULL, NULL, 2, &err), &err);
        double now = vencoder_objective(&e);
        assert_true(now < last);
        last = now;
    }
    assert_same_f32(part->main + (size_t)7 * part->v, unused, 4);
    vencoder_state_close(&e);
    problem_free(&p);
}

/* ---- scale and bias ---- */

/* tr(E H' E^T) without padded rows, for e [in][rows]. */
static double without_padding(const vencoder_state *s, const double *e)
{
    const vptq_encoder *enc = &s->enc;
    double sum = 0;
    for (size_t i = 0; i < enc->problem.in; i++)
        for (size_t j = 0; j < enc->problem.in; j++)
            for (size_t r = 0; r < enc->problem.out; r++)
                sum += e[i * enc->problem.rows + r] * s->h[i * enc->problem.in + j] *
                       e[j * enc->problem.rows + r];
    return sum;
}

static double *error_of(const vptq_encoder *enc)
{
    double *e = calloc((size_t)enc->problem.in * enc->problem.rows, sizeof *e);
    for (size_t p = 0; p < enc->problem.in; p++)
        for (size_t r = 0; r < enc->problem.out; r++)
            e[p * enc->problem.rows + r] = (double)enc->q[p * enc->problem.rows + r] -
                                           (double)enc->problem.z[p * enc->problem.rows + r];
    return e;
}

/* The least objective that factors 1 + a_p on q_p and shifts c_p allow, from the normal
 * equations of the 2 n unknowns. */
static double least_by_scales(const vencoder_state *s)
{
    const vptq_encoder *enc = &s->enc;
    size_t in = enc->problem.in, n = 2 * in, rows = enc->problem.rows;
    double *e = error_of(enc), *a = calloc(n * n, sizeof *a), *b = calloc(n, sizeof *b);

    for (size_t p = 0; p < in; p++)
        for (size_t u = 0; u < in; u++)
            for (size_t r = 0; r < enc->problem.out; r++) {
                double h = s->h[p * in + u], qp = (double)enc->q[p * rows + r];
                double qu = (double)enc->q[u * rows + r];
                a[p * n + u] += h * qp * qu;
                a[p * n + in + u] += h * qp;
                a[(in + p) * n + u] += h * qu;
                a[(in + p) * n + in + u] += h;
                b[p] -= h * qp * e[u * rows + r];
                b[in + p] -= h * e[u * rows + r];
            }
    solve(n, a, b);
    for (size_t p = 0; p < in; p++)
        for (size_t r = 0; r < enc->problem.out; r++)
            e[p * rows + r] += b[p] * (double)enc->q[p * rows + r] + b[in + p];
    double least = without_padding(s, e);
    free(a);
    free(b);
    free(e);
    return least;
}

static void test_refit_of_scales(void **state)
{
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++) {
        problem p = problem_make(vencoder_cases[i].out, vencoder_cases[i].in, 500 + i);
        vencoder_state e;
        vptq_encoder *enc = &e.enc;
        vptq_err err = {0};
        vencoder_state_train(&e, &p, &vencoder_cases[i], 2);
        e.s.storage = VPTQ_F32; /* no loss from rounding */
        assert_ok(vptq_column_pass(enc, false, &err), &err);
        assert_ok(vptq_encoder_gradient(enc, &err), &err);
        double *at_first = error_of(enc);
        double before = without_padding(&e, at_first), best = least_by_scales(&e);
        for (int n = 0; n < 3; n++) {
            assert_ok(vptq_refit_scales(enc, 300, &err), &err);
            assert_ok(vptq_encoder_gradient(enc, &err), &err);
        }
        vencoder_state_metric(&e);
        double *at_last = error_of(enc), after = without_padding(&e, at_last);
        assert_true(best < 0.999 * before);
        assert_close_f64(&after, &best, 1, 0, 1e-4);
        for (size_t j = 0; j < enc->problem.in;
             j++) { /* H' and its diagonal follow the scale */
            float want = (float)e.h[j * enc->problem.in + j];
            assert_close(&enc->problem.diag[j], &want, 1, 0, 1e-6);
            assert_close(&enc->problem.h[j * enc->problem.in + j], &want, 1, 0, 1e-6);
        }
        for (size_t j = 0; j < enc->problem.in; j++) /* z is W in the new coordinates */
            for (size_t r = 0; r < enc->problem.out; r++) {
                size_t col = enc->problem.order[j];
                float w = enc->problem.z[j * enc->problem.rows + r] * enc->problem.scale[col] +
                          enc->problem.bias[col];
                assert_close(&w, &p.w[r * enc->problem.in + col], 1, 1e-6, 1e-6);
            }
        free(at_first);
        free(at_last);
        vencoder_state_close(&e);
        problem_free(&p);
    }
}

/* Scale and bias come out exact in the storage type; a scale that would change its sign or
 * vanish stays unchanged. */
static void test_scales_can_be_stored(void **state)
{
    (void)state;
    const float factor[] = {1, -1, 1e8F, 0};
    problem p = problem_make(24, 16, 91);
    const vencoder_case q = {24, 16, 4, 8, 0, 1, 0, 4, 16, 1, VPTQ_NORM_STD, true};
    for (int i = 0; i < 4; i++) {
        vencoder_state e;
        vptq_encoder *enc = &e.enc;
        vptq_err err = {0};
        vencoder_state_train(&e, &p, &q, 1);
        assert_ok(vptq_encoder_gather(enc, &err), &err);
        for (size_t r = 0; r < enc->problem.rows; r++)
            enc->q[r] *= factor[i];
        float kept = enc->problem.scale[enc->problem.order[0]];
        assert_ok(vptq_encoder_gradient(enc, &err), &err);
        assert_ok(vptq_refit_scales(enc, 60, &err), &err);
        for (size_t j = 0; j < 16; j++) {
            float scale = enc->problem.scale[j], bias = enc->problem.bias[j];
            assert_true(scale >= 6e-5F && isfinite(bias));
            assert_true(scale == vptq_round_to(VPTQ_F16, scale));
            assert_true(bias == vptq_round_to(VPTQ_F16, bias));
        }
        assert_true((enc->problem.scale[enc->problem.order[0]] == kept) == (i > 0));
        vencoder_state_close(&e);
    }
    problem_free(&p);
}

/* ---- training ---- */

/* The joint choice tries all pairs where the beam is as wide as the codebook, and each round
 * lowers the objective of choice and codebooks. */
static void test_joint(void **state)
{
    (void)state;
    problem p = problem_make(64, 48, 61);
    vencoder_case q = {64, 48, 4, 16, 8, 2, 5, 8, 16, 16, VPTQ_NORM_STD, true};
    vencoder_state e;
    vptq_encoder *enc = &e.enc;
    vptq_err err = {0};
    float main[2][64], res[2][32];
    double x[4], last[2] = {INFINITY, INFINITY};

    vencoder_state_train(&e, &p, &q, 2);
    e.s.joint = 1;
    for (int round = 0; round < 3; round++) {
        vptq_column_group old[2];
        for (uint32_t g = 0; g < 2; g++) {
            old[g] = enc->columns.groups[1 + g];
            memcpy(main[g], old[g].main, sizeof main[g]);
            memcpy(res[g], old[g].res, sizeof res[g]);
            old[g].main = main[g];
            old[g].res = res[g];
        }
        assert_ok(vptq_train_joint(enc, &err), &err);
        for (uint32_t g = 0; g < 2; g++) {
            const vptq_column_group *part = &enc->columns.groups[1 + g];
            for (size_t i = 0; i < part->cols * part->vector_rows; i++) {
                double best = INFINITY;
                size_t t = part->first + i / part->vector_rows,
                       r = i % part->vector_rows * part->v;
                for (uint32_t d = 0; d < 4; d++)
                    x[d] = (double)enc->problem.z[t * enc->problem.rows + r + d];
                for (uint32_t j = 0; j < 16; j++)
                    for (uint32_t l = 0; l < 8; l++)
                        best = fmin(best, vencoder_distance(&old[g], x, j, l, true));
                double got =
                    vencoder_distance(&old[g], x, part->idx[i], part->idx_res[i], true);
                assert_true(got <= best + 1e-6 * (1 + best));
            }
            double now = vencoder_diagonal_objective(&e, part, enc->problem.z);
            assert_true(now < last[g]);
            last[g] = now;
        }
    }
    vencoder_state_close(&e);
    problem_free(&p);
}

static void settings_upstream(vptq_encoder_settings *s)
{
    vptq_err err = {0};
    assert_ok(vptq_encoder_set_encoder(s, "upstream", &err), &err);
}

/* Whether `x` [v] is one of the n vectors; stores its number. */
static bool find_vector(const float *x, const double *vectors, size_t n, uint32_t v, size_t *at)
{
    for (*at = 0; *at < n; ++*at) {
        double worst = 0;
        for (uint32_t d = 0; d < v; d++)
            worst = fmax(worst, fabs((double)x[d] - vectors[*at * v + d]));
        if (worst < 1e-4)
            return true;
    }
    return false;
}

static void all_different(const size_t *drawn, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(drawn[i] != drawn[j]);
}

/* After one iteration k-means returns its start: vectors of the matrix, all different. */
static void test_upstream_starts_from_vectors(void **state)
{
    (void)state;
    problem p = problem_make(32, 24, 71);
    vptq_encoder_settings s = vencoder_settings(4, 32, 0);
    vptq_encoder_input input = vencoder_input(&p);
    vencoder_state e;
    vptq_err err = {0};
    size_t drawn[32];
    settings_upstream(&s);
    s.kmeans_iterations = 1;
    vencoder_state_open(&e, "cpu", 1, &s, &input);
    assert_ok(vptq_train_main(&e.enc, &err), &err);
    double *vectors = vencoder_target(&e);
    for (size_t j = 0; j < 32; j++)
        assert_true(find_vector(e.enc.columns.groups[0].main + j * 4, vectors, 32 * 24 / 4, 4,
                                &drawn[j]));
    all_different(drawn, 32);
    free(vectors);
    vencoder_state_close(&e);
    problem_free(&p);
}

/* Remainder of the compensated columns after a pass with the main codebook, in double. */
static double *naive_left_over(vencoder_state *s)
{
    vptq_encoder *enc = &s->enc;
    const vptq_column_group *p = &enc->columns.groups[0];
    size_t n = enc->problem.in, rows = enc->problem.rows;
    double *a = vencoder_inverse(s), *z = vencoder_target(s);
    for (size_t t = 0; t < n; t++) {
        for (size_t g = 0; g < p->vector_rows; g++) {
            vencoder_choice q = vencoder_choose(p, z + t * rows + g * p->v, 1, false);
            for (uint32_t d = 0; d < p->v; d++) {
                size_t r = g * p->v + d;
                double e = z[t * rows + r] - (double)p->main[(size_t)q.main * p->v + d];
                for (size_t u = t + 1; u < n; u++)
                    z[u * rows + r] -= e / a[t * n + t] * a[t * n + u];
                z[t * rows + r] = e;
            }
        }
        vencoder_eliminate(n, a, t);
    }
    free(a);
    return z;
}

/* One Lloyd step on vectors x, with vector i weighted like vector i / v. */
static void naive_means(const vencoder_state *s, const double *x, const size_t *start,
                        uint32_t k, double *means)
{
    const vptq_column_group *p = &s->enc.columns.groups[0];
    size_t n = p->cols * p->vector_rows, v = p->v;
    double *weight = calloc(k, sizeof *weight);
    memset(means, 0, k * v * sizeof *means);
    for (size_t i = 0; i < n; i++) {
        size_t best = 0, column = i / v / p->vector_rows;
        double least = INFINITY, w = s->h[column * s->enc.problem.in + column];
        for (size_t j = 0; j < k; j++) {
            double sum = 0;
            for (size_t d = 0; d < v; d++) {
                double diff = x[i * v + d] - x[start[j] * v + d];
                sum += diff * diff;
            }
            if (sum < least) {
                least = sum;
                best = j;
            }
        }
        weight[best] += w;
        for (size_t d = 0; d < v; d++)
            means[best * v + d] += w * x[i * v + d];
    }
    for (size_t j = 0; j < k * v; j++)
        means[j] /= weight[j / v];
    free(weight);
}

/* The published recipe draws the start of the residual codebook from the errors of a first
 * pass, and its first means weigh vector i like vector i / v. */
static void test_upstream_residual(void **state)
{
    (void)state;
    enum { K_RES = 8, V = 4 };
    problem p = problem_make(32, 24, 81);
    vptq_encoder_settings s = vencoder_settings(V, 16, K_RES);
    vptq_encoder_input input = vencoder_input(&p);
    vptq_err err = {0};
    size_t start[K_RES];
    double means[K_RES * V], got[K_RES * V];
    settings_upstream(&s);
    for (uint32_t iterations = 1; iterations <= 2; iterations++) {
        vencoder_state e;
        s.kmeans_iterations = 5;
        vencoder_state_open(&e, "cpu", 2, &s, &input);
        assert_ok(vptq_train_main(&e.enc, &err), &err);
        e.s.kmeans_iterations = iterations;
        assert_ok(vptq_train_residual(&e.enc, &err), &err);
        double *x = naive_left_over(&e);
        const float *res = e.enc.columns.groups[0].res;
        if (iterations == 1) {
            for (size_t j = 0; j < K_RES; j++)
                assert_true(find_vector(res + j * V, x, 32 * 24 / V, V, &start[j]));
            all_different(start, K_RES);
        } else {
            naive_means(&e, x, start, K_RES, means);
            for (size_t j = 0; j < K_RES * V; j++)
                got[j] = (double)res[j];
            assert_close_f64(got, means, K_RES * V, 1e-4, 1e-4);
        }
        free(x);
        vencoder_state_close(&e);
    }
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_refit), cmocka_unit_test(test_refit_of_a_group),
           cmocka_unit_test(test_refit_descends), cmocka_unit_test(test_refit_of_scales),
           cmocka_unit_test(test_scales_can_be_stored), cmocka_unit_test(test_joint),
           cmocka_unit_test(test_upstream_starts_from_vectors),
           cmocka_unit_test(test_upstream_residual))
