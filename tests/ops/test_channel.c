/* Tests the op channel_range against a loop in double. The order of its sums is fixed: all
 * devices give the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

enum { GAP = 3 }; /* elements after a token and after the outputs, never read or written */

typedef struct problem {
    size_t tokens, n, ld;
    float *x; /* [tokens, ld] */
} problem;

/* The outputs; their gaps hold 7. */
typedef struct result {
    double *abs_sum;
    float *min, *max; /* [n + GAP] */
} result;

static problem problem_make(size_t tokens, size_t n)
{
    problem p = {tokens, n, n + GAP, vtest_normals(tokens * (n + GAP), 21)};
    for (size_t t = 0; t < tokens; t++)
        for (size_t j = 0; j < p.ld; j++) {
            float *x = p.x + t * p.ld + j;
            *x = j >= n       ? NAN
                 : j % 5 == 1 ? fabsf(*x)
                 : j % 5 == 2 ? -fabsf(*x) * 1e20F
                 : j % 5 == 3 ? *x * 1e-40F
                              : *x;
        }
    return p;
}

static result result_make(size_t n)
{
    result r = {vtest_alloc(n + GAP, sizeof(double)), vtest_alloc(n + GAP, sizeof(float)),
                vtest_alloc(n + GAP, sizeof(float))};
    for (size_t j = 0; j < n + GAP; j++) {
        r.abs_sum[j] = j < n ? (double)NAN : 7; /* not read by the first call */
        r.min[j] = r.max[j] = j < n ? NAN : 7;
    }
    return r;
}

static void result_free(result *r)
{
    free(r->abs_sum);
    free(r->min);
    free(r->max);
}

/* Adds tokens [begin, end). */
static void add(const vptq_device *dev, const problem *p, size_t begin, size_t end, result *r)
{
    vptq_err err;
    const vptq_channel_args a = {.tokens = end - begin,
                                 .n = p->n,
                                 .x = p->x + begin * p->ld,
                                 .ldx = p->ld,
                                 .first = begin == 0,
                                 .abs_sum = r->abs_sum,
                                 .min = r->min,
                                 .max = r->max};
    assert_ok(dev->ops->channel_range(dev->state, &a, &err), &err);
}

static void check(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *p = arg;
    (void)is_ref;
    for (size_t cut = p->tokens; cut > 0; cut /= 3) {
        result r = result_make(p->n);
        add(dev, p, 0, cut, &r);
        if (cut < p->tokens)
            add(dev, p, cut, p->tokens, &r);
        for (size_t j = 0; j < p->n; j++) {
            double sum = 0, lo = (double)INFINITY, hi = -(double)INFINITY;
            for (size_t t = 0; t < p->tokens; t++) {
                const double x = (double)p->x[t * p->ld + j];
                sum += fabs(x);
                lo = fmin(lo, x);
                hi = fmax(hi, x);
            }
            assert_true(r.abs_sum[j] == sum);
            assert_true((double)r.min[j] == lo && (double)r.max[j] == hi);
        }
        for (size_t j = p->n; j < p->n + GAP; j++)
            assert_true(r.abs_sum[j] == 7 && r.min[j] == 7 && r.max[j] == 7);
        result_free(&r);
    }
}

static void equals_a_loop(void **state)
{
    static const size_t shapes[][2] = {{1, 1},  {1, 16},  {2, 15},   {9, 17},
                                       {3, 33}, {40, 64}, {257, 70}, {20, 200}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        problem p = problem_make(shapes[i][0], shapes[i][1]);
        devices_each_emu(check, &p);
        free(p.x);
    }
}

/* A NaN anywhere makes the sum of its column NaN, also by later tokens, and nothing else.
 * Infinities are in sum and range. */
static void check_odd(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { TOKENS = 6, COLUMNS = 19 };
    float x[TOKENS * COLUMNS];
    problem p = {TOKENS, COLUMNS, COLUMNS, x};
    (void)arg;
    (void)is_ref;
    for (size_t bad = 0; bad < COLUMNS; bad++)
        for (size_t t = 0; t < TOKENS; t++) {
            result r = result_make(COLUMNS);
            for (size_t i = 0; i < (size_t)TOKENS * COLUMNS; i++)
                x[i] = i / COLUMNS % 2 ? 2 : -1;
            x[t * COLUMNS + bad] = bad % 2 ? -NAN : NAN;
            x[t * COLUMNS + (bad + 1) % COLUMNS] = INFINITY;
            x[t * COLUMNS + (bad + 2) % COLUMNS] = -INFINITY;
            add(dev, &p, 0, TOKENS / 2, &r);
            add(dev, &p, TOKENS / 2, TOKENS, &r);
            for (size_t j = 0; j < COLUMNS; j++) {
                const size_t at = (j + COLUMNS - bad) % COLUMNS;
                assert_true(at == 0 ? isnan(r.abs_sum[j])
                                    : r.abs_sum[j] == (at < 3 ? (double)INFINITY : 9));
                assert_true(r.min[j] == (at == 2 ? -INFINITY : -1));
                assert_true(r.max[j] == (at == 1 ? INFINITY : 2));
            }
            result_free(&r);
        }
}

/* Without tokens the range is empty. */
static void check_none(void *arg, const vptq_device *dev, bool is_ref)
{
    problem p = problem_make(1, 20);
    result r = result_make(p.n);
    (void)arg;
    (void)is_ref;
    add(dev, &p, 0, 0, &r);
    for (size_t j = 0; j < p.n; j++)
        assert_true(r.abs_sum[j] == 0 && r.min[j] == INFINITY && r.max[j] == -INFINITY);
    result_free(&r);
    free(p.x);
}

static void odd_values(void **state)
{
    (void)state;
    devices_each_emu(check_odd, NULL);
    devices_each_emu(check_none, NULL);
}

/* The sums, then the minima and maxima; signs of zeros included. */
static void run(const vptq_device *dev, const void *arg, void *out)
{
    const problem *p = arg;
    result r = result_make(p->n);
    char *to = out;
    add(dev, p, 0, p->tokens / 2, &r);
    add(dev, p, p->tokens / 2, p->tokens, &r);
    memcpy(to, r.abs_sum, p->n * sizeof *r.abs_sum);
    to += p->n * sizeof *r.abs_sum;
    memcpy(to, r.min, p->n * sizeof *r.min);
    memcpy(to + p->n * sizeof *r.min, r.max, p->n * sizeof *r.max);
    result_free(&r);
}

static void any_threads_give_the_same_bits(void **state)
{
    (void)state;
    problem p = problem_make(90, 333);
    for (size_t t = 0; t < p.tokens; t++)
        for (size_t j = 0; j < p.n; j += 11)
            p.x[t * p.ld + j] = (t + j) % 3 ? 0.0F : -0.0F;
    devices_check_emu(&(devices_op){.run = run,
                                    .arg = &p,
                                    .count = p.n * (sizeof(double) + 2 * sizeof(float)),
                                    .size = 1},
                      NULL);
    free(p.x);
}

VTEST_MAIN(cmocka_unit_test(equals_a_loop), cmocka_unit_test(odd_values),
           cmocka_unit_test(any_threads_give_the_same_bits))
