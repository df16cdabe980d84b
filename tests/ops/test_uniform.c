/* Tests the ops uniform_range and uniform_pass against loops written out here in double, each
 * result rounded to float. The ops have no sums: all devices give the same bits. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

enum { GAP = 3 }; /* elements after a column, never touched */

typedef struct shape {
    size_t cols, rows;
    uint32_t bits;
    bool symmetric;
    vptq_dtype storage;
} shape;

/* The inputs of both ops. */
typedef struct problem {
    shape s;
    size_t ld;
    float *z, *u;  /* [cols, ld], [cols, cols + GAP] */
    float *scale;  /* [rows] for the pass */
    uint8_t *zero; /* [rows] */
} problem;

/* The outputs of uniform_pass, gaps included. */
typedef struct result {
    float *z, *err; /* [cols, ld] */
    uint8_t *codes; /* [cols, ld] */
} result;

/* ---- definitions ---- */

/* x rounded to the storage type. */
static double stored(vptq_dtype storage, double x)
{
    const int digits = storage == VPTQ_F16 ? 11 : 8, least = storage == VPTQ_F16 ? -24 : -133;
    const double limit = storage == VPTQ_F16 ? 65520 : 0x1.ffp127;
    if (!isfinite(x) || x == 0)
        return x;
    if (fabs(x) >= limit)
        return copysign((double)INFINITY, x);
    const int unit = ilogb(x) - digits + 1;
    const double step = ldexp(1, unit > least ? unit : least);
    return nearbyint(x / step) * step;
}

/* A whole number from 0 to most; 0 for NaN. */
static int clamped(double x, int most)
{
    return isnan(x) ? 0 : (int)fmax(0, fmin(most, nearbyint(x)));
}

static void expected_range(const problem *a, float *scale, uint8_t *zero)
{
    const int most = (1 << a->s.bits) - 1;
    const double least = a->s.storage == VPTQ_F16 ? 0x1p-14 : 0x1p-126;
    for (size_t r = 0; r < a->s.rows; r++) {
        double lo = 0, hi = 0;
        for (size_t t = 0; t < a->s.cols; t++) {
            lo = fmin(lo, (double)a->z[t * a->ld + r]);
            hi = fmax(hi, (double)a->z[t * a->ld + r]);
        }
        if (a->s.symmetric) {
            hi = fmax(hi, -lo);
            lo = -hi;
        }
        const double step = (double)((float)(hi - lo) / (float)most);
        const double wanted = stored(a->s.storage, step);
        scale[r] = (float)(wanted == 0 ? least : wanted);
        zero[r] = (uint8_t)(a->s.symmetric ? 1 << (a->s.bits - 1)
                                           : clamped((double)((float)-lo / scale[r]), most));
    }
}

/* Column by column: quantizes it, then changes the columns after it. */
static void expected_pass(const problem *a, bool propagate, result *w)
{
    const size_t cols = a->s.cols, ldu = cols + GAP;
    for (size_t t = 0; t < cols; t++)
        for (size_t r = 0; r < a->s.rows; r++) {
            const size_t at = t * a->ld + r;
            const double zero = a->zero[r], scale = (double)a->scale[r];
            const double steps = (double)(float)((double)w->z[at] / scale);
            w->codes[at] = (uint8_t)clamped(nearbyint(steps) + zero, (1 << a->s.bits) - 1);
            const float exact = (float)((w->codes[at] - zero) * scale);
            const float d = (float)stored(a->s.storage, (double)exact);
            if (!propagate)
                continue;
            w->err[at] = (w->z[at] - d) / a->u[t * ldu + t];
            for (size_t s = t + 1; s < cols; s++) {
                const float product = w->err[at] * a->u[t * ldu + s];
                w->z[s * a->ld + r] -= product;
            }
        }
}

/* ---- problems ---- */

/* Some of the rows, if there are so many, are special: zeros, numbers of one sign, tiny and
 * huge ones, an infinity, a NaN. */
static void spoil_rows(problem *a)
{
    static const float factors[] = {0, 1, -1, 1e-40F, 1e-9F, 1e4F, 1e30F, FLT_MAX / 8};
    enum { COUNT = sizeof factors / sizeof *factors };
    for (size_t r = 0; r < COUNT && 4 * r < a->s.rows; r++)
        for (size_t t = 0; t < a->s.cols; t++) {
            float *z = a->z + t * a->ld + 4 * r;
            *z = (fabsf(*z) <= 1 || factors[r] == 1 ? fabsf(*z) : *z) * factors[r];
        }
    for (size_t t = 0; t < a->s.cols; t++)
        if (a->s.rows > 5)
            a->z[t * a->ld + 5] = -fabsf(a->z[t * a->ld + 5]);
    if (a->s.rows > 50) {
        a->z[a->s.cols / 2 * a->ld + 49] = NAN;
        a->z[a->s.cols / 2 * a->ld + 45] = INFINITY;
        a->z[a->s.cols / 3 * a->ld + 41] = -INFINITY;
    }
}

static problem problem_make(const shape *s, bool spoiled)
{
    problem a = {.s = *s, .ld = s->rows + GAP};
    const size_t ldu = s->cols + GAP;
    a.z = vtest_normals(s->cols * a.ld, 11);
    a.u = vtest_normals(s->cols * ldu, 12);
    a.scale = vtest_alloc(s->rows, sizeof *a.scale);
    a.zero = vtest_alloc(s->rows, sizeof *a.zero);
    for (size_t t = 0; t < s->cols; t++) {
        for (size_t i = 0; i < ldu; i++)
            a.u[t * ldu + i] *= i < t || i >= s->cols ? NAN : 0.3F; /* the rest is not read */
        a.u[t * ldu + t] = 1 + fabsf(a.u[t * ldu + t]);
    }
    if (spoiled)
        spoil_rows(&a);
    expected_range(&a, a.scale, a.zero);
    for (size_t r = 3; spoiled && r < s->rows; r += 7) /* numbers far outside of the range */
        a.scale[r] = s->storage == VPTQ_F16 ? 0x1p-14F : FLT_MIN;
    return a;
}

static void problem_free(problem *a)
{
    free(a->z);
    free(a->u);
    free(a->scale);
    free(a->zero);
}

static result result_make(const problem *a)
{
    const size_t n = a->s.cols * a->ld;
    result r = {vtest_alloc(n, sizeof(float)), vtest_alloc(n, sizeof(float)),
                vtest_alloc(n, sizeof(uint8_t))};
    memcpy(r.z, a->z, n * sizeof *r.z);
    memset(r.err, 0x55, n * sizeof *r.err);
    memset(r.codes, 0x55, n * sizeof *r.codes);
    return r;
}

static void result_free(result *r)
{
    free(r->z);
    free(r->err);
    free(r->codes);
}

static vptq_uniform_pass_args pass_args(const problem *a, bool propagate, const result *r)
{
    return (vptq_uniform_pass_args){.cols = a->s.cols,
                                    .rows = a->s.rows,
                                    .z = r->z,
                                    .u = propagate ? a->u : NULL,
                                    .bits = a->s.bits,
                                    .storage = a->s.storage,
                                    .scale = a->scale,
                                    .zero = a->zero,
                                    .codes = r->codes,
                                    .err = propagate ? r->err : NULL,
                                    .ldz = a->ld,
                                    .ldu = a->s.cols + GAP,
                                    .ldc = a->ld,
                                    .lde = a->ld};
}

/* The same bits, but one NaN is as good as another. */
static void assert_same(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("element %zu is %a, expected %a", i, (double)got[i], (double)want[i]);
}

/* ---- tests ---- */

static void check_range(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *a = arg;
    float *scale = vtest_alloc(a->s.rows + GAP, sizeof *scale);
    float *want_scale = vtest_alloc(a->s.rows + GAP, sizeof *scale);
    uint8_t *zero = vtest_alloc(a->s.rows + GAP, sizeof *zero);
    uint8_t *want_zero = vtest_alloc(a->s.rows + GAP, sizeof *zero);
    const vptq_uniform_range_args args = {.cols = a->s.cols,
                                          .rows = a->s.rows,
                                          .z = a->z,
                                          .ldz = a->ld,
                                          .bits = a->s.bits,
                                          .symmetric = a->s.symmetric,
                                          .storage = a->s.storage,
                                          .scale = scale,
                                          .zero = zero};
    vptq_err err;
    (void)is_ref;
    assert_ok(dev->ops->uniform_range(dev->state, &args, &err), &err);
    expected_range(a, want_scale, want_zero);
    assert_same_f32(scale, want_scale, a->s.rows + GAP); /* nothing after the last row */
    assert_memory_equal(zero, want_zero, a->s.rows + GAP);
    free(scale);
    free(want_scale);
    free(zero);
    free(want_zero);
}

static void check_pass(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *a = arg;
    const size_t n = a->s.cols * a->ld;
    (void)is_ref;
    for (int propagate = 0; propagate < 2; propagate++) {
        result got = result_make(a), want = result_make(a);
        const vptq_uniform_pass_args args = pass_args(a, propagate, &got);
        vptq_err err;
        assert_ok(dev->ops->uniform_pass(dev->state, &args, &err), &err);
        expected_pass(a, propagate, &want);
        assert_memory_equal(got.codes, want.codes, n);
        assert_same(got.z, want.z, n);
        assert_same(got.err, want.err, n);
        result_free(&got);
        result_free(&want);
    }
}

static void both_ops_equal_loops(void **state)
{
    (void)state;
    static const shape shapes[] = {{1, 1, 4, false, VPTQ_F16},    {1, 200, 1, false, VPTQ_F16},
                                   {7, 64, 1, true, VPTQ_BF16},   {20, 65, 2, false, VPTQ_BF16},
                                   {33, 63, 2, true, VPTQ_F16},   {16, 128, 3, false, VPTQ_F16},
                                   {130, 70, 3, true, VPTQ_BF16}, {5, 300, 4, false, VPTQ_BF16},
                                   {64, 31, 4, true, VPTQ_F16},   {3, 129, 5, false, VPTQ_F16},
                                   {2, 17, 6, true, VPTQ_BF16},   {9, 100, 7, false, VPTQ_BF16},
                                   {40, 90, 8, false, VPTQ_F16},  {40, 90, 8, true, VPTQ_BF16}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int spoiled = 0; spoiled < 2; spoiled++) {
            problem a = problem_make(&shapes[i], spoiled);
            devices_each_emu(check_range, &a);
            devices_each_emu(check_pass, &a);
            problem_free(&a);
        }
}

/* Worked out by hand: a row from -1 to 2 in four steps, and a symmetric one. */
static void check_by_hand(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { COLS = 6 };
    static const float row[COLS] = {-1, 2, 0.5F, 1.5F, NAN, 100};
    static const uint8_t codes[COLS] = {0, 3, 1, 3, 0, 3}; /* halves to even: 0.5 to 0 */
    float z[COLS], scale;
    uint8_t zero, got[COLS];
    vptq_err err;
    (void)arg;
    (void)is_ref;
    memcpy(z, row, sizeof z);
    vptq_uniform_range_args range = {
        .cols = 4, .rows = 1, .z = z, .ldz = 1, .bits = 2, .storage = VPTQ_F16};
    range.scale = &scale;
    range.zero = &zero;
    assert_ok(dev->ops->uniform_range(dev->state, &range, &err), &err);
    assert_true(scale == 1 && zero == 1);
    const vptq_uniform_pass_args pass = {.cols = COLS,
                                         .rows = 1,
                                         .z = z,
                                         .bits = 2,
                                         .storage = VPTQ_F16,
                                         .scale = &scale,
                                         .zero = &zero,
                                         .codes = got,
                                         .ldz = 1,
                                         .ldc = 1};
    assert_ok(dev->ops->uniform_pass(dev->state, &pass, &err), &err);
    assert_memory_equal(got, codes, sizeof codes);
    assert_memory_equal(z, row, sizeof z);
    range.symmetric = true;
    assert_ok(dev->ops->uniform_range(dev->state, &range, &err), &err);
    assert_true(scale == 0x1.554p0F && zero == 2); /* 4 / 3 in 11 digits */
    memset(z, 0, sizeof z);
    range.storage = VPTQ_BF16;
    assert_ok(dev->ops->uniform_range(dev->state, &range, &err), &err);
    assert_true(scale == FLT_MIN && zero == 2);
}

static void a_row_by_hand(void **state)
{
    (void)state;
    devices_each_emu(check_by_hand, NULL);
}

/* The codes, then z and the errors. */
static void run_pass(const vptq_device *dev, const void *arg, void *out)
{
    const problem *a = arg;
    const size_t n = a->s.cols * a->ld;
    result r = result_make(a);
    const vptq_uniform_pass_args args = pass_args(a, true, &r);
    uint8_t *to = out;
    vptq_err err;
    assert_ok(dev->ops->uniform_pass(dev->state, &args, &err), &err);
    memcpy(to, r.codes, n);
    memcpy(to + n, r.z, n * sizeof *r.z);
    memcpy(to + n + n * sizeof *r.z, r.err, n * sizeof *r.err);
    result_free(&r);
}

static void any_threads_give_the_same_bits(void **state)
{
    (void)state;
    static const shape s = {40, 450, 4, false, VPTQ_F16};
    problem a = problem_make(&s, false);
    const size_t bytes = s.cols * a.ld * (1 + 2 * sizeof(float));
    devices_check_emu(&(devices_op){.run = run_pass, .arg = &a, .count = bytes, .size = 1},
                      NULL);
    problem_free(&a);
}

static vptq_status pass_once(void *arg, vptq_device *dev, vptq_err *err)
{
    const problem *a = arg;
    result r = result_make(a);
    const vptq_uniform_pass_args args = pass_args(a, true, &r);
    const vptq_status st = dev->ops->uniform_pass(dev->state, &args, err);
    result_free(&r);
    return st;
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    devices_skip_if_only();
    static const shape s = {20, 100, 4, false, VPTQ_F16};
    problem a = problem_make(&s, false);
    assert_true(devices_oom_walk("cpu", 2, pass_once, &a) >= 2); /* the device, the errors */
    problem_free(&a);
}

VTEST_MAIN(cmocka_unit_test(both_ops_equal_loops), cmocka_unit_test(a_row_by_hand),
           cmocka_unit_test(any_threads_give_the_same_bits),
           cmocka_unit_test(survives_every_failed_allocation))
