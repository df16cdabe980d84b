/* The steps of the encoder, one by one, against the same written out in double: loops over all
 * entries, the inverse Hessian itself, dense normal equations. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vencoder.h"
#include "tests/vtest.h"

enum { MOST_K = 64 };

static vptq_quant_settings plain(uint32_t v, uint32_t k, uint32_t k_res)
{
    vptq_quant_settings s = vptq_quant_default();
    s.v = v;
    s.k = k;
    s.k_res = k_res;
    s.kmeans_iterations = 4;
    return s;
}

/* ---- choices ---- */

typedef struct choice {
    uint32_t main, res;
    double distance;
} choice;

static double distance_of(const vptq_part *p, const double *x, uint32_t main, uint32_t res,
                          bool pairs)
{
    double sum = 0;
    for (uint32_t d = 0; d < p->v; d++) {
        float q = p->main[(size_t)main * p->v + d];
        if (pairs)
            q += p->res[(size_t)res * p->v + d];
        sum += (x[d] - (double)q) * (x[d] - (double)q);
    }
    return sum;
}

/* The best pair whose main centroid is among the `beam` nearest. */
static choice naive_choice(const vptq_part *p, const double *x, uint32_t beam, bool pairs)
{
    double main[MOST_K];
    choice best = {0, 0, INFINITY};
    for (uint32_t j = 0; j < p->k; j++)
        main[j] = distance_of(p, x, j, 0, false);
    for (uint32_t j = 0; j < p->k; j++) {
        uint32_t nearer = 0;
        for (uint32_t i = 0; i < p->k; i++)
            nearer += main[i] < main[j] || (main[i] <= main[j] && i < j);
        if (nearer >= (pairs ? beam : 1))
            continue;
        for (uint32_t l = 0; l < (pairs ? p->k_res : 1); l++) {
            double d = distance_of(p, x, j, l, pairs);
            if (d < best.distance)
                best = (choice){j, l, d};
        }
    }
    return best;
}

/* What the device chose is what it should be, or as near up to rounding: the choice of another
 * main centroid by a greedy search counts as that when both mains are as near. */
static void check_choice(const vptq_part *p, const double *x, uint32_t beam, bool pairs,
                         const choice *want, const choice *got, size_t *ties)
{
    const double rounding = 1e-5;
    if (got->main == want->main && (!pairs || got->res == want->res))
        return;
    ++*ties;
    if (pairs && beam == 1 && got->main != want->main) {
        double a = distance_of(p, x, got->main, 0, false);
        double b = distance_of(p, x, want->main, 0, false);
        assert_true(fabs(a - b) <= rounding * (1 + b));
        return;
    }
    if (!(got->distance <= want->distance + rounding * (1 + want->distance)))
        fail_msg("distance %.9g, expected %.9g", got->distance, want->distance);
}

/* ---- column pass ---- */

/* Takes position t out of the inverse a of what is left. */
static void eliminate(size_t n, double *a, size_t t)
{
    for (size_t u = t + 1; u < n; u++)
        for (size_t w = t + 1; w < n; w++)
            a[u * n + w] -= a[u * n + t] * a[t * n + w] / a[t * n + t];
}

static double *inverse_of(const vencoder_state *s)
{
    size_t n = s->c.in;
    double *a = malloc(n * n * sizeof *a);
    memcpy(a, s->h, n * n * sizeof *a);
    problem_invert(n, a);
    return a;
}

static double *target_of(const vencoder_state *s)
{
    size_t n = s->c.in * s->c.rows;
    double *z = malloc(n * sizeof *z);
    for (size_t i = 0; i < n; i++)
        z[i] = (double)s->c.z[i];
    return z;
}

/* Optimal brain surgeon: the error of a position moves the later ones by -e / [A^-1]_tt *
 * [A^-1]_t.  Follows the device's choices where they are as good; gives their number. */
static size_t check_pass(vencoder_state *s, bool main_only)
{
    vptq_encoder *c = &s->c;
    size_t n = c->in, rows = c->rows, ties = 0;
    double *a = inverse_of(s), *z = target_of(s), x[VPTQ_VQ_MAX_V];

    for (uint32_t i = 0; i < c->parts; i++) {
        const vptq_part *p = &c->part[i];
        bool pairs = p->k_res && !main_only;
        for (size_t t = p->first; t < p->first + p->cols; t++) {
            for (size_t g = 0; g < p->strips; g++) {
                size_t at = (t - p->first) * p->strips + g;
                for (uint32_t d = 0; d < p->v; d++) {
                    size_t r = t * rows + g * p->v + d;
                    x[d] = z[r];
                    assert_true(fabs((double)c->g[r] - z[r]) <= 2e-5 * (1 + fabs(z[r])));
                }
                choice got = {p->idx[at], pairs ? p->idx_res[at] : 0, 0};
                got.distance = distance_of(p, x, got.main, got.res, pairs);
                choice want = naive_choice(p, x, c->s->beam, pairs);
                check_choice(p, x, c->s->beam, pairs, &want, &got, &ties);
                for (uint32_t d = 0; d < p->v; d++) {
                    float q = p->main[(size_t)got.main * p->v + d];
                    if (pairs)
                        q += p->res[(size_t)got.res * p->v + d];
                    size_t r = g * p->v + d;
                    assert_true(c->q[t * rows + r] == q);
                    double e = x[d] - (double)q;
                    for (size_t u = t + 1; u < n; u++)
                        z[u * rows + r] -= e / a[t * n + t] * a[t * n + u];
                }
            }
            eliminate(n, a, t);
        }
    }
    free(a);
    free(z);
    return ties;
}

typedef struct step_case {
    uint32_t out, in, v, k, k_res, groups;
    double outliers;
    uint32_t v0, k0, beam, norm;
    bool perm;
} step_case;

static const step_case cases[] = {
    {64, 64, 4, 16, 0, 1, 0, 4, 16, 1, VPTQ_NORM_STD, true},
    {64, 64, 4, 16, 8, 1, 0, 4, 16, 1, VPTQ_NORM_STD, true},
    {64, 64, 4, 16, 8, 1, 0, 4, 16, 16, VPTQ_NORM_STD, true},
    {64, 64, 4, 16, 8, 1, 0, 4, 16, 5, VPTQ_NORM_NONE, false},
    {64, 64, 8, 8, 4, 4, 0, 4, 16, 8, VPTQ_NORM_STD, false},
    {64, 64, 4, 16, 8, 1, 10, 8, 32, 16, VPTQ_NORM_STD, true},
    {64, 64, 4, 8, 16, 3, 10, 2, 16, 1, VPTQ_NORM_MINMAX, true},
    {50, 36, 8, 16, 8, 2, 0, 8, 16, 16, VPTQ_NORM_STD, true},
    {50, 36, 8, 16, 8, 4, 11, 6, 16, 1, VPTQ_NORM_STD, false},
    {20, 300, 4, 16, 4, 2, 1, 64, 4, 16, VPTQ_NORM_STD, true}, /* blocks of columns */
};
enum { CASES = sizeof cases / sizeof cases[0] };

static vptq_quant_settings settings_of(const step_case *q)
{
    vptq_quant_settings s = plain(q->v, q->k, q->k_res);
    s.groups = q->groups;
    s.outliers = q->outliers;
    s.v0 = q->v0;
    s.k0 = q->k0;
    s.beam = q->beam;
    s.norm = q->norm;
    s.perm = q->perm;
    return s;
}

/* Trained books; indices of the plain assignment. */
static void open_trained(vencoder_state *e, const problem *p, const step_case *q, int threads)
{
    vptq_err err = {0};
    vptq_quant_settings s = settings_of(q);
    const vptq_quant_input input = vencoder_input(p);
    vencoder_state_open(e, "cpu", threads, &s, &input);
    assert_ok(vptq_train_main(&e->c, &err), &err);
    if (s.k_res)
        assert_ok(vptq_train_residual(&e->c, &err), &err);
}

static size_t choices_of(const vptq_encoder *c)
{
    size_t n = 0;
    for (uint32_t i = 0; i < c->parts; i++)
        n += c->part[i].cols * c->part[i].strips;
    return n;
}

static void test_pass(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        for (int main_only = 0; main_only < 2; main_only++) {
            problem p = problem_make(cases[i].out, cases[i].in, 100 + i);
            vencoder_state e;
            vptq_err err = {0};
            open_trained(&e, &p, &cases[i], 2);
            assert_ok(vptq_column_pass(&e.c, main_only, &err), &err);
            size_t ties = check_pass(&e, main_only);
            assert_true(ties <= choices_of(&e.c) / 200);
            vencoder_state_close(&e);
            problem_free(&p);
        }
}

/* ---- sweeps ---- */

/* One sweep, with the gradient of every column summed up anew. */
static size_t check_sweep(const vencoder_state *s, double *q, uint32_t *const *idx,
                          uint32_t *const *res)
{
    const vptq_encoder *c = &s->c;
    size_t n = c->in, rows = c->rows, ties = 0;
    double x[VPTQ_VQ_MAX_V];

    for (uint32_t i = 0; i < c->parts; i++) {
        const vptq_part *p = &c->part[i];
        for (size_t t = p->first; t < p->first + p->cols; t++)
            for (size_t g = 0; g < p->strips; g++) {
                size_t at = (t - p->first) * p->strips + g;
                for (uint32_t d = 0; d < p->v; d++) {
                    size_t r = g * p->v + d;
                    double gradient = 0;
                    for (size_t u = 0; u < n; u++)
                        gradient +=
                            (q[u * rows + r] - (double)c->z[u * rows + r]) * s->h[u * n + t];
                    x[d] = q[t * rows + r] - gradient / s->h[t * n + t];
                }
                choice old = {idx[i][at], p->k_res ? res[i][at] : 0, 0};
                choice got = {p->idx[at], p->k_res ? p->idx_res[at] : 0, 0};
                old.distance = distance_of(p, x, old.main, old.res, p->k_res);
                got.distance = distance_of(p, x, got.main, got.res, p->k_res);
                choice want = naive_choice(p, x, c->s->beam, p->k_res);
                if (!(want.distance < old.distance))
                    want = old;
                if (got.main != old.main || got.res != old.res)
                    assert_true(got.distance <= old.distance + 1e-5 * (1 + old.distance));
                check_choice(p, x, c->s->beam, p->k_res, &want, &got, &ties);
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

static void check_one_sweep(const step_case *q, uint64_t seed)
{
    problem p = problem_make(q->out, q->in, seed);
    vencoder_state e;
    vptq_encoder *c = &e.c;
    vptq_err err = {0};
    uint32_t *idx[8], *res[8];

    open_trained(&e, &p, q, 2);
    assert_ok(vptq_column_pass(c, false, &err), &err);
    assert_ok(vptq_encoder_gather(c, &err), &err);
    assert_ok(vptq_encoder_gradient(c, &err), &err);
    double before = vencoder_objective(&e);
    assert_close_f64(&c->objective, &before, 1, 0, 1e-5);
    double *now = malloc(c->in * c->rows * sizeof *now);
    for (size_t i = 0; i < c->in * c->rows; i++)
        now[i] = (double)c->q[i];
    for (uint32_t i = 0; i < c->parts; i++) {
        idx[i] = copy_indices(c->part[i].idx, c->part[i].cols * c->part[i].strips);
        res[i] = copy_indices(c->part[i].idx_res, c->part[i].cols * c->part[i].strips);
    }
    assert_ok(vptq_sweeps(c, 1, &err), &err);
    size_t ties = check_sweep(&e, now, idx, res);
    assert_true(ties <= choices_of(c) / 200);
    for (uint32_t i = 0; i < c->parts; i++)
        for (size_t t = 0; t < c->part[i].cols; t++)
            for (size_t r = 0; r < c->part[i].rows; r++)
                assert_true((double)c->q[(c->part[i].first + t) * c->rows + r] ==
                            vencoder_q(&c->part[i], t, r));
    double after = vencoder_objective(&e);
    assert_true(after < before);
    assert_ok(vptq_encoder_gradient(c, &err), &err);
    assert_close_f64(&c->objective, &after, 1, 0, 1e-5);
    for (uint32_t i = 0; i < c->parts; i++) {
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
    for (size_t i = 0; i < CASES; i++)
        check_one_sweep(&cases[i], 200 + i);
}

/* Several sweeps are several times one sweep, the gradient being kept up to date between. */
static void test_sweeps_go_on(void **state)
{
    (void)state;
    problem p = problem_make(40, 300, 31);
    const step_case q = {40, 300, 4, 16, 4, 2, 2, 8, 8, 16, VPTQ_NORM_STD, true};
    vencoder_state a, b;
    vptq_err err = {0};
    open_trained(&a, &p, &q, 1);
    open_trained(&b, &p, &q, 2);
    for (int which = 0; which < 2; which++) {
        vptq_encoder *c = which ? &b.c : &a.c;
        assert_ok(vptq_column_pass(c, false, &err), &err);
        assert_ok(vptq_encoder_gather(c, &err), &err);
        assert_ok(vptq_encoder_gradient(c, &err), &err);
        for (int n = 0; which && n < 3; n++) {
            assert_ok(vptq_sweeps(c, 1, &err), &err);
            assert_ok(vptq_encoder_gradient(c, &err), &err);
        }
        if (!which)
            assert_ok(vptq_sweeps(c, 3, &err), &err);
    }
    double x = vencoder_objective(&a), y = vencoder_objective(&b);
    assert_close_f64(&x, &y, 1, 0, 1e-3); /* rounding decides a few choices */
    vencoder_state_close(&a);
    vencoder_state_close(&b);
    problem_free(&p);
}

/* ---- refit ---- */

/* Solves a x = b for a symmetric a [n][n] with a ridge far below what is asked for, where it is
 * singular. */
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

/* Unknowns that entry (position t of part p, row r) is the sum of; their number. */
static int uses(const vptq_part *p, size_t start, size_t t, size_t r, size_t *unknown)
{
    size_t at = t * p->strips + r / p->v, d = r % p->v;
    unknown[0] = start + (size_t)p->idx[at] * p->v + d;
    if (p->k_res)
        unknown[1] = start + ((size_t)p->k + p->idx_res[at]) * p->v + d;
    return p->k_res ? 2 : 1;
}

/* The least tr(E H' E^T) that books of the parts [first, end) can give under the indices as
 * they are, from the dense normal equations; with `diagonal` H' is its diagonal. */
static double least_objective(const vencoder_state *s, uint32_t first, uint32_t end,
                              bool diagonal)
{
    const vptq_encoder *c = &s->c;
    size_t n = 0, in = c->in, rows = c->rows, start[8], from = c->part[first].first;
    size_t to = c->part[end - 1].first + c->part[end - 1].cols;
    for (uint32_t i = first; i < end; i++) {
        start[i] = n;
        n += ((size_t)c->part[i].k + c->part[i].k_res) * c->part[i].v;
    }
    double *a = calloc(n * n, sizeof *a), *b = calloc(n, sizeof *b), sum = 0;
    size_t *unknown = calloc((to - from) * 2, sizeof *unknown);
    int *count = calloc(to - from, sizeof *count);
    double *e = calloc((to - from) * rows, sizeof *e);

    for (int solved = 0; solved < 2; solved++) {
        for (size_t r = 0; r < rows; r++) {
            for (uint32_t i = first; i < end; i++)
                for (size_t t = 0; t < c->part[i].cols; t++) {
                    size_t p = c->part[i].first + t - from;
                    count[p] = r < c->part[i].rows
                                   ? uses(&c->part[i], start[i], t, r, unknown + 2 * p)
                                   : 0;
                }
            for (size_t p = 0; p < to - from; p++) {
                double z = (double)c->z[(from + p) * rows + r];
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

/* sum of H'_tt |q_t - z_t|^2 over a part. */
static double diagonal_objective(const vencoder_state *s, const vptq_part *p)
{
    const vptq_encoder *c = &s->c;
    double sum = 0;
    for (size_t t = 0; t < p->cols; t++)
        for (size_t r = 0; r < p->rows; r++) {
            size_t at = p->first + t;
            double e = vencoder_q(p, t, r) - (double)c->z[at * c->rows + r];
            sum += s->h[at * c->in + at] * e * e;
        }
    return sum;
}

static void test_refit(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        problem p = problem_make(cases[i].out, cases[i].in, 300 + i);
        vencoder_state e;
        vptq_encoder *c = &e.c;
        vptq_err err = {0};
        open_trained(&e, &p, &cases[i], 2);
        assert_ok(vptq_column_pass(c, false, &err), &err);
        double before = vencoder_objective(&e);
        for (int n = 0; n < 3; n++) { /* again: past what float keeps of one descent */
            assert_ok(vptq_encoder_gather(c, &err), &err);
            assert_ok(vptq_encoder_gradient(c, &err), &err);
            assert_ok(vptq_refit(c, NULL, NULL, 300, &err), &err);
        }
        double after = vencoder_objective(&e), best = least_objective(&e, 0, c->parts, false);
        assert_true(best < 0.995 * before);
        assert_close_f64(&after, &best, 1, 0, 1e-5);
        vencoder_state_close(&e);
        problem_free(&p);
    }
}

/* The books of one part under the diagonal; those of others stay. */
static void test_refit_of_a_part(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        problem p = problem_make(cases[i].out, cases[i].in, 400 + i);
        vencoder_state e;
        vptq_encoder *c = &e.c;
        vptq_err err = {0};
        open_trained(&e, &p, &cases[i], 2);
        assert_ok(vptq_column_pass(c, false, &err), &err); /* far from the means */
        for (uint32_t g = 0; g < c->parts; g++) {
            vptq_part *part = &c->part[g];
            double before = diagonal_objective(&e, part), others = 0, same = 0;
            for (uint32_t o = 0; o < c->parts; o++)
                others += o == g ? 0 : diagonal_objective(&e, &c->part[o]);
            assert_ok(vptq_refit(c, part, c->z, 300, &err), &err);
            double after = diagonal_objective(&e, part);
            double best = least_objective(&e, g, g + 1, true);
            assert_true(best < before || before < 1e-9); /* few vectors: nothing is lost */
            assert_close_f64(&after, &best, 1, 1e-9, 1e-5);
            for (uint32_t o = 0; o < c->parts; o++)
                same += o == g ? 0 : diagonal_objective(&e, &c->part[o]);
            assert_true(same == others);
        }
        vencoder_state_close(&e);
        problem_free(&p);
    }
}

/* Few iterations already lower the objective; a centroid without uses stays as it is. */
static void test_refit_descends(void **state)
{
    (void)state;
    problem p = problem_make(32, 40, 51);
    const step_case q = {32, 40, 4, 16, 8, 1, 0, 4, 16, 16, VPTQ_NORM_STD, true};
    vencoder_state e;
    vptq_encoder *c = &e.c;
    vptq_err err = {0};
    open_trained(&e, &p, &q, 1);
    assert_ok(vptq_column_pass(c, false, &err), &err);
    vptq_part *part = &c->part[0];
    for (size_t i = 0; i < part->cols * part->strips; i++)
        part->idx[i] = part->idx[i] == 7 ? 6 : part->idx[i];
    float unused[4];
    memcpy(unused, part->main + (size_t)7 * part->v, sizeof unused);
    double last = vencoder_objective(&e);
    for (int n = 0; n < 6; n++) {
        assert_ok(vptq_encoder_gather(c, &err), &err);
        assert_ok(vptq_encoder_gradient(c, &err), &err);
        assert_ok(vptq_refit(c, NULL, NULL, 2, &err), &err);
        double now = vencoder_objective(&e);
        assert_true(now < last);
        last = now;
    }
    assert_same_f32(part->main + (size_t)7 * part->v, unused, 4);
    vencoder_state_close(&e);
    problem_free(&p);
}

/* ---- training ---- */

/* The joint choice tries all pairs where the beam is as wide as the book; each round lowers
 * what the choice and the books are fitted to. */
static void test_joint(void **state)
{
    (void)state;
    problem p = problem_make(64, 48, 61);
    step_case q = {64, 48, 4, 16, 8, 2, 5, 8, 16, 16, VPTQ_NORM_STD, true};
    vencoder_state e;
    vptq_encoder *c = &e.c;
    vptq_err err = {0};
    float main[2][64], res[2][32];
    double x[4], last[2] = {INFINITY, INFINITY};

    open_trained(&e, &p, &q, 2);
    e.s.joint = 1;
    for (int round = 0; round < 3; round++) {
        vptq_part old[2];
        for (uint32_t g = 0; g < 2; g++) {
            old[g] = c->part[1 + g];
            memcpy(main[g], old[g].main, sizeof main[g]);
            memcpy(res[g], old[g].res, sizeof res[g]);
            old[g].main = main[g];
            old[g].res = res[g];
        }
        assert_ok(vptq_train_joint(c, &err), &err);
        for (uint32_t g = 0; g < 2; g++) {
            const vptq_part *part = &c->part[1 + g];
            for (size_t i = 0; i < part->cols * part->strips; i++) {
                double best = INFINITY;
                size_t t = part->first + i / part->strips, r = i % part->strips * part->v;
                for (uint32_t d = 0; d < 4; d++)
                    x[d] = (double)c->z[t * c->rows + r + d];
                for (uint32_t j = 0; j < 16; j++)
                    for (uint32_t l = 0; l < 8; l++)
                        best = fmin(best, distance_of(&old[g], x, j, l, true));
                double got = distance_of(&old[g], x, part->idx[i], part->idx_res[i], true);
                assert_true(got <= best + 1e-6 * (1 + best));
            }
            double now = diagonal_objective(&e, part);
            assert_true(now < last[g]);
            last[g] = now;
        }
    }
    vencoder_state_close(&e);
    problem_free(&p);
}

static void settings_upstream(vptq_quant_settings *s)
{
    vptq_err err = {0};
    assert_ok(vptq_quant_set_encoder(s, "upstream", &err), &err);
}

/* Whether `x` [v] is one of the n vectors; its number. */
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

/* With one iteration k-means gives back its start: vectors of the matrix, all different. */
static void test_upstream_starts_from_vectors(void **state)
{
    (void)state;
    problem p = problem_make(32, 24, 71);
    vptq_quant_settings s = plain(4, 32, 0);
    vptq_quant_input input = vencoder_input(&p);
    vencoder_state e;
    vptq_err err = {0};
    size_t drawn[32];
    settings_upstream(&s);
    s.kmeans_iterations = 1;
    vencoder_state_open(&e, "cpu", 1, &s, &input);
    assert_ok(vptq_train_main(&e.c, &err), &err);
    double *vectors = target_of(&e);
    for (size_t j = 0; j < 32; j++)
        assert_true(find_vector(e.c.part[0].main + j * 4, vectors, 32 * 24 / 4, 4, &drawn[j]));
    all_different(drawn, 32);
    free(vectors);
    vencoder_state_close(&e);
    problem_free(&p);
}

/* What is left of the compensated columns after a pass with the main book, in double. */
static double *naive_left_over(vencoder_state *s)
{
    vptq_encoder *c = &s->c;
    const vptq_part *p = &c->part[0];
    size_t n = c->in, rows = c->rows;
    double *a = inverse_of(s), *z = target_of(s);
    for (size_t t = 0; t < n; t++) {
        for (size_t g = 0; g < p->strips; g++) {
            choice q = naive_choice(p, z + t * rows + g * p->v, 1, false);
            for (uint32_t d = 0; d < p->v; d++) {
                size_t r = g * p->v + d;
                double e = z[t * rows + r] - (double)p->main[(size_t)q.main * p->v + d];
                for (size_t u = t + 1; u < n; u++)
                    z[u * rows + r] -= e / a[t * n + t] * a[t * n + u];
                z[t * rows + r] = e;
            }
        }
        eliminate(n, a, t);
    }
    free(a);
    return z;
}

/* One step of Lloyd on vectors x with the weight of vector i being that of vector i / v. */
static void naive_means(const vencoder_state *s, const double *x, const size_t *start,
                        uint32_t k, double *means)
{
    const vptq_part *p = &s->c.part[0];
    size_t n = p->cols * p->strips, v = p->v;
    double *weight = calloc(k, sizeof *weight);
    memset(means, 0, k * v * sizeof *means);
    for (size_t i = 0; i < n; i++) {
        size_t best = 0, column = i / v / p->strips;
        double least = INFINITY, w = s->h[column * s->c.in + column];
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

/* The residual book of the published recipe: its start is drawn from the errors of a first
 * pass, and its first means weigh vector i as vector i / v. */
static void test_upstream_residual(void **state)
{
    (void)state;
    enum { K_RES = 8, V = 4 };
    problem p = problem_make(32, 24, 81);
    vptq_quant_settings s = plain(V, 16, K_RES);
    vptq_quant_input input = vencoder_input(&p);
    vptq_err err = {0};
    size_t start[K_RES];
    double means[K_RES * V], got[K_RES * V];
    settings_upstream(&s);
    for (uint32_t iterations = 1; iterations <= 2; iterations++) {
        vencoder_state e;
        s.kmeans_iterations = 5;
        vencoder_state_open(&e, "cpu", 2, &s, &input);
        assert_ok(vptq_train_main(&e.c, &err), &err);
        e.s.kmeans_iterations = iterations;
        assert_ok(vptq_train_residual(&e.c, &err), &err);
        double *x = naive_left_over(&e);
        const float *res = e.c.part[0].res;
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pass),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_sweeps_go_on),
        cmocka_unit_test(test_refit),
        cmocka_unit_test(test_refit_of_a_part),
        cmocka_unit_test(test_refit_descends),
        cmocka_unit_test(test_joint),
        cmocka_unit_test(test_upstream_starts_from_vectors),
        cmocka_unit_test(test_upstream_residual),
    };
    return vtest_main(argc, argv, tests);
}
