/* Tests the encoder's steps one by one against the same in double: loops over all entries, the
 * inverse Hessian itself, dense normal equations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

enum { MOST_CODEBOOK = 1024 };

/* ---- choices ---- */

/* The device must make the expected choice or one as near up to rounding. A greedy search may
 * also choose another main centroid that is as near. */
static void check_choice(const vptq_column_group *p, const double *x, uint32_t beam, bool pairs,
                         const vencoder_choice *want, const vencoder_choice *got, size_t *ties)
{
    const double rounding = 1e-5;
    if (got->main == want->main && (!pairs || got->res == want->res))
        return;
    if (pairs && beam > 1 && beam < p->k && got->distance <= want->distance)
        return; /* a search may try more main centroids than the beam says */
    ++*ties;
    if (pairs && beam == 1 && got->main != want->main) {
        double a = vencoder_distance(p, x, got->main, 0, false);
        double b = vencoder_distance(p, x, want->main, 0, false);
        assert_true(fabs(a - b) <= rounding * (1 + b));
        return;
    }
    if (!(got->distance <= want->distance + rounding * (1 + want->distance)))
        fail_msg("distance %.9g, expected %.9g", got->distance, want->distance);
}

/* ---- column pass ---- */

/* Optimal brain surgeon: the error at position t moves the later ones by -e / [A^-1]_tt *
 * [A^-1]_t. All of pass_columns positions are chosen for their values before the first of them.
 * Follows the device's choices where they are as good, and returns how often they differ from
 * the expected ones. */
static size_t check_pass(vencoder_state *s, bool main_only)
{
    vptq_encoder *enc = &s->enc;
    size_t n = enc->problem.in, rows = enc->problem.rows, ties = 0;
    double *a = vencoder_inverse(s), *z = vencoder_target(s), x[VPTQ_VQ_MAX_V];
    double *aim = malloc(n * rows * sizeof *aim);

    assert_non_null(aim);
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        const vptq_column_group *p = &enc->columns.groups[i];
        bool pairs = p->k_res && !main_only;
        for (size_t t = p->first; t < p->first + p->cols; t++) {
            if ((t - p->first) % enc->settings->pass_columns == 0)
                memcpy(aim, z, n * rows * sizeof *aim);
            for (size_t g = 0; g < p->vector_rows; g++) {
                size_t at = (t - p->first) * p->vector_rows + g;
                for (uint32_t d = 0; d < p->v; d++) {
                    size_t r = t * rows + g * p->v + d;
                    x[d] = aim[r];
                    assert_true(fabs((double)enc->g[r] - x[d]) <= 2e-5 * (1 + fabs(x[d])));
                }
                vencoder_choice got = {p->idx[at], pairs ? p->idx_res[at] : 0, 0};
                got.distance = vencoder_distance(p, x, got.main, got.res, pairs);
                vencoder_choice want = vencoder_choose(p, x, enc->settings->beam, pairs);
                check_choice(p, x, enc->settings->beam, pairs, &want, &got, &ties);
                for (uint32_t d = 0; d < p->v; d++) {
                    float q = p->main[(size_t)got.main * p->v + d];
                    if (pairs)
                        q += p->res[(size_t)got.res * p->v + d];
                    size_t r = g * p->v + d;
                    assert_true(enc->q[t * rows + r] == q);
                    double e = z[t * rows + r] - (double)q;
                    for (size_t u = t + 1; u < n; u++)
                        z[u * rows + r] -= e / a[t * n + t] * a[t * n + u];
                }
            }
            vencoder_eliminate(n, a, t);
        }
    }
    free(a);
    free(z);
    free(aim);
    return ties;
}

static size_t choices_of(const vptq_encoder *enc)
{
    size_t n = 0;
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        n += enc->columns.groups[i].cols * enc->columns.groups[i].vector_rows;
    return n;
}

static void test_pass(void **state)
{
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++)
        for (int main_only = 0; main_only < 2; main_only++) {
            problem p = problem_make(vencoder_cases[i].out, vencoder_cases[i].in, 100 + i);
            vencoder_state e;
            vptq_err err = {0};
            vencoder_state_train(&e, &p, &vencoder_cases[i], 2);
            assert_ok(vptq_column_pass(&e.enc, main_only, &err), &err);
            size_t ties = check_pass(&e, main_only);
            assert_true(ties <= choices_of(&e.enc) / 200);
            vencoder_state_close(&e);
            problem_free(&p);
        }
}

/* Without channel independence; 7 columns do not divide those of a group. */
static void test_pass_of_columns_together(void **state)
{
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++) {
        problem p = problem_make(vencoder_cases[i].out, vencoder_cases[i].in, 300 + i);
        vencoder_state e;
        vptq_err err = {0};
        vencoder_state_train(&e, &p, &vencoder_cases[i], 2);
        e.s.pass_columns = 7;
        assert_ok(vptq_column_pass(&e.enc, false, &err), &err);
        size_t ties = check_pass(&e, false);
        assert_true(ties <= choices_of(&e.enc) / 200);
        vencoder_state_close(&e);
        problem_free(&p);
    }
}

/* ---- sweeps ---- */

/* One sweep that sums up the gradient of every column anew. */
static size_t check_sweep(const vencoder_state *s, double *q, uint32_t *const *idx,
                          uint32_t *const *res)
{
    const vptq_encoder *enc = &s->enc;
    size_t n = enc->problem.in, rows = enc->problem.rows, ties = 0;
    double x[VPTQ_VQ_MAX_V];

    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        const vptq_column_group *p = &enc->columns.groups[i];
        for (size_t t = p->first; t < p->first + p->cols; t++)
            for (size_t g = 0; g < p->vector_rows; g++) {
                size_t at = (t - p->first) * p->vector_rows + g;
                for (uint32_t d = 0; d < p->v; d++) {
                    size_t r = g * p->v + d;
                    double gradient = 0;
                    for (size_t u = 0; u < n; u++)
                        gradient += (q[u * rows + r] - (double)enc->problem.z[u * rows + r]) *
                                    s->h[u * n + t];
                    x[d] = q[t * rows + r] - gradient / s->h[t * n + t];
                }
                vencoder_choice old = {idx[i][at], p->k_res ? res[i][at] : 0, 0};
                vencoder_choice got = {p->idx[at], p->k_res ? p->idx_res[at] : 0, 0};
                old.distance = vencoder_distance(p, x, old.main, old.res, p->k_res);
                got.distance = vencoder_distance(p, x, got.main, got.res, p->k_res);
                vencoder_choice want = vencoder_choose(p, x, enc->settings->beam, p->k_res);
                if (!(want.distance < old.distance))
                    want = old;
                if (got.main != old.main || got.res != old.res)
                    assert_true(got.distance <= old.distance + 1e-5 * (1 + old.distance));
                check_choice(p, x, enc->settings->beam, p->k_res, &want, &got, &ties);
                for (uint32_t d = 0; d < p->v; d++)
                    q[t * rows + g * p->v + d] = vencoder_q(p, t - p->first, g * p->v + d);
            }
    }
    return ties;
}

static uint32_t *copy_indices(const uint32_t *idx, size_t n)
{
    uint32_t *copy = calloc(n, sizeof *copy);
    if (idx)
        memcpy(copy, idx, n * sizeof *copy);
    return copy;
}

static void check_one_sweep(const vencoder_case *q, uint64_t seed)
{
    problem p = problem_make(q->out, q->in, seed);
    vencoder_state e;
    vptq_encoder *enc = &e.enc;
    vptq_err err = {0};
    uint32_t *idx[8], *res[8];

    vencoder_state_train(&e, &p, q, 2);
    assert_ok(vptq_column_pass(enc, false, &err), &err);
    assert_ok(vptq_encoder_update(enc, &err), &err);
    double before = vencoder_objective(&e);
    assert_close_f64(&enc->objective, &before, 1, 0, 1e-5);
    double *now = malloc(enc->problem.in * enc->problem.rows * sizeof *now);
    for (size_t i = 0; i < enc->problem.in * enc->problem.rows; i++)
        now[i] = (double)enc->q[i];
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        idx[i] = copy_indices(enc->columns.groups[i].idx,
                              enc->columns.groups[i].cols * enc->columns.groups[i].vector_rows);
        res[i] = copy_indices(enc->columns.groups[i].idx_res,
                              enc->columns.groups[i].cols * enc->columns.groups[i].vector_rows);
    }
    assert_ok(vptq_sweeps(enc, 1, &err), &err);
    size_t ties = check_sweep(&e, now, idx, res);
    assert_true(ties <= choices_of(enc) / 200);
    for (uint32_t i = 0; i < enc->columns.num_groups; i++)
        for (size_t t = 0; t < enc->columns.groups[i].cols; t++)
            for (size_t r = 0; r < enc->columns.groups[i].rows; r++)
                assert_true(
                    (double)
                        enc->q[(enc->columns.groups[i].first + t) * enc->problem.rows + r] ==
                    vencoder_q(&enc->columns.groups[i], t, r));
    double after = vencoder_objective(&e);
    assert_true(after < before);
    assert_ok(vptq_encoder_gradient(enc, &err), &err);
    assert_close_f64(&enc->objective, &after, 1, 0, 1e-5);
    for (uint32_t i = 0; i < enc->columns.num_groups; i++) {
        free(idx[i]);
        free(res[i]);
    }
    free(now);
    vencoder_state_close(&e);
    problem_free(&p);
}

static void test_sweep(void **state)
{
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++)
        check_one_sweep(&vencoder_cases[i], 200 + i);
}

/* Several sweeps at once equal as many single sweeps: the gradient is kept up to date between
 * them. */
static void test_sweeps_go_on(void **state)
{
    (void)state;
    problem p = problem_make(40, 300, 31);
    const vencoder_case q = {40, 300, 4, 16, 4, 2, 2, 8, 8, 16, VPTQ_NORM_STD, true};
    vencoder_state a, b;
    vptq_err err = {0};
    vencoder_state_train(&a, &p, &q, 1);
    vencoder_state_train(&b, &p, &q, 2);
    for (int which = 0; which < 2; which++) {
        vptq_encoder *enc = which ? &b.enc : &a.enc;
        assert_ok(vptq_column_pass(enc, false, &err), &err);
        assert_ok(vptq_encoder_update(enc, &err), &err);
        for (int n = 0; which && n < 3; n++) {
            assert_ok(vptq_sweeps(enc, 1, &err), &err);
            assert_ok(vptq_encoder_gradient(enc, &err), &err);
        }
        if (!which)
            assert_ok(vptq_sweeps(enc, 3, &err), &err);
    }
    double x = vencoder_objective(&a), y = vencoder_objective(&b);
    assert_close_f64(&x, &y, 1, 0, 1e-3); /* rounding decides a few choices */
    vencoder_state_close(&a);
    vencoder_state_close(&b);
    problem_free(&p);
}

/* ---- retraining ---- */

/* Retraining with zero rounds is two passes with the same codebooks, which agree. A round fits
 * the codebooks to the targets of the first pass, and the last pass uses them. */
static void test_retrain(void **state)
{
    (void)state;
    for (size_t i = 0; i < VENCODER_CASES; i++) {
        problem p = problem_make(vencoder_cases[i].out, vencoder_cases[i].in, 500 + i);
        vencoder_state e;
        vptq_encoder *enc = &e.enc;
        vptq_err err = {0};
        double before = 0, after = 0;
        vencoder_state_train(&e, &p, &vencoder_cases[i], 2);
        assert_ok(vptq_retrain(enc, 0, &err), &err);
        size_t n = enc->problem.in * enc->problem.rows, ties = check_pass(&e, false);
        float *target = malloc(n * sizeof *target);
        memcpy(target, enc->g, n * sizeof *target);
        for (uint32_t g = 0; g < enc->columns.num_groups; g++)
            before += vencoder_diagonal_objective(&e, &enc->columns.groups[g], target);
        const vptq_column_group *last = &enc->columns.groups[enc->columns.num_groups - 1];
        float codebook[MOST_CODEBOOK];
        size_t size = (size_t)last->k * last->v;
        assert_true(size <= MOST_CODEBOOK);
        memcpy(codebook, last->main, size * sizeof *codebook);
        assert_ok(vptq_retrain(enc, 3, &err), &err);
        ties += check_pass(&e, false);
        assert_true(ties <= choices_of(enc) / 100);
        assert_true(memcmp(codebook, last->main, size * sizeof *codebook) != 0);
        /* The plain choices for the new codebooks fit the targets of the first pass. */
        for (uint32_t g = 0; g < enc->columns.num_groups; g++) {
            const vptq_column_group *part = &enc->columns.groups[g];
            for (size_t at = 0; at < part->cols * part->vector_rows; at++) {
                double x[VPTQ_VQ_MAX_V];
                size_t t = part->first + at / part->vector_rows,
                       r = at % part->vector_rows * part->v;
                for (uint32_t d = 0; d < part->v; d++)
                    x[d] = (double)target[t * enc->problem.rows + r + d];
                vencoder_choice best = vencoder_choose(part, x, e.s.beam, part->k_res);
                part->idx[at] = best.main;
                if (part->k_res)
                    part->idx_res[at] = best.res;
            }
            after += vencoder_diagonal_objective(&e, part, target);
        }
        assert_true(after < before);
        free(target);
        vencoder_state_close(&e);
        problem_free(&p);
    }
}

VTEST_MAIN(cmocka_unit_test(test_pass), cmocka_unit_test(test_pass_of_columns_together),
           cmocka_unit_test(test_sweep), cmocka_unit_test(test_sweeps_go_on),
           cmocka_unit_test(test_retrain))
