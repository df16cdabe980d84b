/* Tests the scales of SmoothQuant and AWQ and the ranges of AWQ against their definitions in
 * double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/hessian.h"
#include "lib/base/half.h"
#include "lib/uniform/fold.h"
#include "tests/support/devices.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

enum { IN = 80, OUT = 24, MORE = 9, GROUP = 32 };

static const vptq_uniform_settings usual = {
    .bits = 3, .group_size = GROUP, .storage = VPTQ_F16, .ridge = 0.01, .damping = 0.01};

/* Two matrices that read inputs of very different sizes. */
typedef struct inputs {
    problem p;
    float *more; /* [MORE, IN] */
    float abs_mean[IN], abs_max[IN];
    vptq_fold_matrix matrix[2];
    vptq_fold_input input;
} inputs;

static void inputs_make(inputs *t)
{
    *t = (inputs){.p = problem_make(OUT, IN, 21), .more = vtest_normals((size_t)MORE * IN, 22)};
    problem *p = &t->p;
    for (size_t i = 0; i < IN; i++)
        for (size_t j = 0; j < IN; j++) {
            const double by = exp(0.06 * ((double)((i * 29) % IN) + (double)((j * 29) % IN)));
            p->h[i * IN + j] *= by;
            if (j <= i)
                p->lower[i * (i + 1) / 2 + j] = (float)p->h[i * IN + j];
        }
    for (size_t j = 0; j < IN; j++) {
        t->abs_mean[j] = (float)(0.8 * sqrt(p->h[j * IN + j]));
        t->abs_max[j] = 5 * t->abs_mean[j];
    }
    t->abs_mean[7] = t->abs_max[7] = 0;
    t->matrix[0] = (vptq_fold_matrix){OUT, p->w, usual};
    t->matrix[1] = (vptq_fold_matrix){MORE, t->more, usual};
    t->matrix[1].settings.symmetric = true;
    t->input = (vptq_fold_input){.in = IN,
                                 .abs_mean = t->abs_mean,
                                 .abs_max = t->abs_max,
                                 .lower = p->lower,
                                 .matrix = t->matrix,
                                 .count = 2};
}

static void inputs_free(inputs *t)
{
    problem_free(&t->p);
    free(t->more);
}

/* ---- SmoothQuant ---- */

static void test_smooth(void **state)
{
    (void)state;
    inputs t;
    float s[IN];
    inputs_make(&t);
    for (size_t r = 0; r < OUT; r++)
        t.p.w[r * IN + 3] = 0;
    for (size_t r = 0; r < MORE; r++)
        t.more[r * IN + 3] = 0; /* its maximum is taken as 1e-5 */
    for (int i = 0; i <= 4; i++) {
        const double a = i / 4.0;
        vptq_smooth_scales(&t.input, a, s);
        for (size_t j = 0; j < IN; j++) {
            double most = 1e-5;
            for (size_t r = 0; r < OUT; r++)
                most = fmax(most, fabs((double)t.p.w[r * IN + j]));
            for (size_t r = 0; r < MORE; r++)
                most = fmax(most, fabs((double)t.more[r * IN + j]));
            const double want =
                j == 7 ? 1 : exp(a * log((double)t.abs_max[j]) - (1 - a) * log(most));
            assert_true(fabs((double)s[j] / want - 1) < 1e-6);
        }
    }
    inputs_free(&t);
}

/* ---- AWQ ---- */

/* e [n] = what rounding numbers to one grid of the range [lo, hi] changes.  The zero point is
 * the integer nearest to -lo / scale, or the next one on the other side of it. */
static void naive_round(const vptq_uniform_settings *s, const double *w, size_t n, double lo,
                        double hi, bool other, double *e)
{
    const double top = (double)((1U << s->bits) - 1);
    if (s->symmetric) {
        hi = fmax(hi, -lo);
        lo = -hi;
    }
    const float step = (float)((hi - lo) / top);
    const double scale = (double)vptq_round_to(s->storage, step);
    const double exact = -lo / scale, nearest = rint(exact);
    const double side = !other ? nearest : nearest > exact ? floor(exact) : ceil(exact);
    const double zero = s->symmetric ? (top + 1) / 2 : fmin(fmax(side, 0), top);
    for (size_t i = 0; i < n; i++)
        e[i] = (fmin(fmax(rint(w[i] / scale) + zero, 0), top) - zero) * scale - w[i];
}

static void range_of(const double *w, size_t n, double *lo, double *hi)
{
    *lo = *hi = 0;
    for (size_t i = 0; i < n; i++) {
        *lo = fmin(*lo, w[i]);
        *hi = fmax(*hi, w[i]);
    }
}

static double quadratic(const problem *p, size_t first, size_t n, const double *e)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            sum += e[i] * e[j] * p->h[(first + i) * IN + first + j];
    return sum;
}

/* tr(E H E^T) / tr(W H W^T) with scales s. */
static double naive_loss(const problem *p, const vptq_fold_matrix *m, const double *s)
{
    double error = 0, norm = 0;
    for (size_t r = 0; r < m->out; r++) {
        double w[IN], scaled[IN], e[IN], lo, hi;
        for (size_t j = 0; j < IN; j++) {
            w[j] = (double)m->w[r * IN + j];
            scaled[j] = w[j] * s[j];
        }
        for (size_t g = 0; g < IN; g += GROUP) {
            const size_t n = IN - g < GROUP ? IN - g : GROUP;
            range_of(scaled + g, n, &lo, &hi);
            naive_round(&m->settings, scaled + g, n, lo, hi, false, e + g);
        }
        for (size_t j = 0; j < IN; j++)
            e[j] /= s[j];
        error += quadratic(p, 0, IN, e);
        norm += quadratic(p, 0, IN, w);
    }
    return error / norm;
}

static void naive_scales(const inputs *t, double a, double *s)
{
    double low = INFINITY, high = 0;
    for (size_t j = 0; j < IN; j++)
        if (j != 7) {
            s[j] = fmax(pow((double)t->abs_mean[j], a), 1e-4);
            low = fmin(low, s[j]);
            high = fmax(high, s[j]);
        }
    for (size_t j = 0; j < IN; j++)
        s[j] = j == 7 ? 1 : s[j] / sqrt(low * high);
}

static void test_awq(void **state)
{
    (void)state;
    inputs t;
    double want[IN], a, loss[20], best = INFINITY;
    float s[IN], again[IN];
    inputs_make(&t);
    for (int i = 0; i < 20; i++) {
        naive_scales(&t, i / 20.0, want);
        loss[i] = naive_loss(&t.p, &t.matrix[0], want) * naive_loss(&t.p, &t.matrix[1], want);
        best = fmin(best, loss[i]);
    }
    assert_true(best < 0.49 * loss[0]); /* what scales are good for */
    static const char *const devices[] = {"ref", "cpu", "emu"};
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++)
        for (int threads = 1; threads < 4; threads += 2) {
            vencoder_run run;
            vptq_err err = {0};
            vencoder_open(&run, devices[d], threads);
            assert_ok(vptq_awq_scales(&run.dev, &t.input, again, &a, &err), &err);
            assert_true(loss[(int)rint(20 * a)] <= best * (1 + 1e-6));
            naive_scales(&t, a, want);
            for (size_t j = 0; j < IN; j++)
                assert_true(fabs((double)again[j] / want[j] - 1) < 1e-6);
            if (!d && threads == 1)
                memcpy(s, again, sizeof s);
            assert_memory_equal(s, again, sizeof s);
            vencoder_close(&run);
        }
    inputs_free(&t);
}

/* ---- ranges ---- */

/* The loss of one group of a row with the range number i. */
static double clipped_loss(const problem *p, const vptq_uniform_settings *s, const double *w,
                           size_t first, size_t n, int i, bool other)
{
    double lo, hi, e[IN];
    range_of(w, n, &lo, &hi);
    const double bound = fmax(hi, -lo) * (1 - i / 20.0);
    naive_round(s, w, n, fmax(lo, -bound), fmin(hi, bound), other, e);
    return quadratic(p, first, n, e);
}

static void check_group(const problem *p, const vptq_uniform *u, const float *what, size_t r,
                        size_t g, size_t *clipped, size_t *moved)
{
    const vptq_uniform_settings s = {
        .bits = u->shape.bits, .symmetric = !u->zeros, .storage = VPTQ_F16};
    const size_t size = u->shape.group_size, first = g * size;
    const size_t n = IN - first < size ? IN - first : size;
    double w[IN], e[IN], best = INFINITY, nearest = INFINITY;
    for (size_t i = 0; i < n; i++) {
        w[i] = (double)p->w[r * IN + first + i];
        e[i] = (double)what[r * IN + first + i] - w[i];
    }
    for (int i = 0; i < 20; i++) {
        const double loss = clipped_loss(p, &s, w, first, n, i % 10, i >= 10);
        best = fmin(best, loss);
        nearest = i < 10 ? best : nearest;
    }
    assert_true(quadratic(p, first, n, e) <= best * (1 + 1e-4));
    *clipped += best < 0.999 * clipped_loss(p, &s, w, first, n, 0, false);
    *moved += best < 0.999 * nearest;
}

static void check_clip(const vptq_uniform_settings *s)
{
    inputs t;
    vencoder_run run;
    vptq_err err = {0};
    vptq_uniform u;
    double added;
    float what[OUT * IN];
    size_t clipped = 0, moved = 0;
    inputs_make(&t);
    const vptq_uniform_input input = {.out = OUT, .in = IN, .w = t.p.w, .lower = t.p.lower};
    for (int threads = 1; threads < 4; threads += 2) {
        vencoder_open(&run, "cpu", threads);
        assert_ok(vptq_uniform_quantize(&run.dev, s, &input, &run.arena, &u, &added, &err),
                  &err);
        vptq_uniform_read(&u, 0, OUT, what);
        for (size_t r = 0; r < OUT; r++)
            for (size_t g = 0; g < vptq_uniform_groups(&u.shape); g++)
                check_group(&t.p, &u, what, r, g, &clipped, &moved);
        vencoder_close(&run);
    }
    assert_true(clipped > OUT);
    assert_true(s->symmetric ? moved == 0 : moved > OUT / 8);
    inputs_free(&t);
}

static void test_clip(void **state)
{
    (void)state;
    vptq_uniform_settings s = usual;
    s.clip = true;
    check_clip(&s);
    s.symmetric = true;
    s.bits = 2;
    check_clip(&s);
    s.group_size = 0;
    check_clip(&s);
}

static vptq_status find_scales(void *arg, vptq_device *dev, vptq_err *err)
{
    const inputs *t = arg;
    float s[IN];
    double a;
    return vptq_awq_scales(dev, &t->input, s, &a, err);
}

static vptq_status clip(void *arg, vptq_device *dev, vptq_err *err)
{
    const inputs *t = arg;
    const vptq_uniform_input input = {.out = OUT, .in = IN, .w = t->p.w, .lower = t->p.lower};
    vptq_uniform_settings s = usual;
    vptq_arena arena;
    vptq_uniform u;
    double added;
    s.clip = true;
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = vptq_uniform_quantize(dev, &s, &input, &arena, &u, &added, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_memory(void **state)
{
    (void)state;
    inputs t;
    inputs_make(&t);
    assert_true(devices_oom_walk("cpu", 2, find_scales, &t) > 10);
    assert_true(devices_oom_walk("cpu", 2, clip, &t) > 8);
    inputs_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smooth),
        cmocka_unit_test(test_awq),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
