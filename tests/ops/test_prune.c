/* Tests pruning in uniform_pass, and the op prune_mask, against sorted scores and loops in
 * double whose results are rounded to float. All devices give the same bits. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

enum { GAP = 3 }; /* elements after a column, never touched */

typedef struct problem {
    size_t cols, rows, ld, rank;
    uint32_t n, m; /* pattern; both 0: a mask */
    bool codes;    /* kept weights are rounded */
    float *z, *u;  /* [cols, ld], [cols, cols + GAP] */
    float *scale;  /* [rows] */
    uint8_t *zero; /* [rows] */
    uint8_t *mask; /* [cols, ld] as expected */
} problem;

typedef struct result {
    float *z, *err;
    uint8_t *codes;
} result;

/* ---- definitions ---- */

/* Of a NaN above that of an infinity. */
static double score_of(const problem *a, const float *z, size_t t, size_t r)
{
    const float quotient = z[t * a->ld + r] / a->u[t * (a->cols + GAP) + t];
    return isnan(quotient) ? (double)INFINITY : fmin(fabs((double)quotient), DBL_MAX);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void expected_mask(problem *a)
{
    double *all = vtest_alloc(a->cols * a->rows, sizeof *all);
    for (size_t t = 0; t < a->cols; t++)
        for (size_t r = 0; r < a->rows; r++)
            all[t * a->rows + r] = score_of(a, a->z, t, r);
    qsort(all, a->cols * a->rows, sizeof *all, ascending);
    const double most = all[a->rank];
    memset(a->mask, 0x55, a->cols * a->ld);
    for (size_t t = 0; t < a->cols; t++)
        for (size_t r = 0; r < a->rows; r++)
            a->mask[t * a->ld + r] = score_of(a, a->z, t, r) <= most;
    free(all);
}

/* Marks the n smallest of columns [t, t + m) of row r, one after another. */
static void expected_pattern(const problem *a, const float *z, size_t t, size_t r,
                             uint8_t *pruned)
{
    memset(pruned, 0, a->m);
    for (uint32_t k = 0; k < a->n; k++) {
        size_t least = a->m;
        for (size_t i = 0; i < a->m; i++)
            if (!pruned[i] &&
                (least == a->m || score_of(a, z, t + i, r) < score_of(a, z, t + least, r)))
                least = i;
        pruned[least] = 1;
    }
}

static void expected_row(const problem *a, size_t r, result *w)
{
    const size_t ldu = a->cols + GAP;
    uint8_t pruned[VPTQ_PRUNE_MAX_M];
    for (size_t t = 0; t < a->cols; t++) {
        const size_t at = t * a->ld + r;
        if (a->m && t % a->m == 0)
            expected_pattern(a, w->z, t, r, pruned);
        const bool zero = a->m ? pruned[t % a->m] : a->mask[at];
        float d = zero ? 0 : w->z[at];
        if (a->codes) {
            const double steps = nearbyint((double)(w->z[at] / a->scale[r])) + a->zero[r];
            w->codes[at] = zero ? a->zero[r] : (uint8_t)fmin(15, fmax(0, steps));
            d = vptq_round_to(VPTQ_F16, (float)(w->codes[at] - a->zero[r]) * a->scale[r]);
        }
        w->err[at] = (w->z[at] - d) / a->u[t * ldu + t];
        for (size_t s = t + 1; s < a->cols; s++) {
            const float product = w->err[at] * a->u[t * ldu + s];
            w->z[s * a->ld + r] -= product;
        }
        if (!a->codes)
            w->z[at] = d;
    }
}

/* ---- problems ---- */

/* Many equal scores, zeros, and with `spoiled` numbers that are not finite. */
static problem problem_make(size_t cols, size_t rows, double share, bool spoiled)
{
    problem a = {.cols = cols, .rows = rows, .ld = rows + GAP};
    const size_t ldu = cols + GAP;
    a.rank = (size_t)(share * (double)(cols * rows));
    a.z = vtest_normals(cols * a.ld, 21);
    a.u = vtest_normals(cols * ldu, 22);
    a.scale = vtest_alloc(rows, sizeof *a.scale);
    a.zero = vtest_alloc(rows, 1);
    a.mask = vtest_alloc(cols * a.ld, 1);
    for (size_t t = 0; t < cols; t++) {
        for (size_t i = 0; i < ldu; i++)
            a.u[t * ldu + i] *= i < t || i >= cols ? NAN : 0.3F; /* the rest is not read */
        a.u[t * ldu + t] = t % 3 ? 1 + fabsf(a.u[t * ldu + t]) : 1;
        for (size_t r = 0; r < rows; r += 2)
            a.z[t * a.ld + r] = rintf(a.z[t * a.ld + r] * 4) / 4;
    }
    for (size_t r = 0; r < rows; r++) {
        a.scale[r] = 0.25F + 0.01F * (float)(r % 7);
        a.zero[r] = (uint8_t)(r % 16);
    }
    if (spoiled && rows > 20) {
        a.z[cols / 2 * a.ld + 3] = NAN;
        a.z[cols / 2 * a.ld + 7] = INFINITY;
        a.z[cols / 2 * a.ld + 9] = -INFINITY;
        a.z[cols / 2 * a.ld + 11] = 1e-45F;
        a.z[cols / 2 * a.ld + 13] = 3e38F;
    }
    expected_mask(&a);
    return a;
}

static void problem_free(problem *a)
{
    free(a->z);
    free(a->u);
    free(a->scale);
    free(a->zero);
    free(a->mask);
}

static result result_make(const problem *a)
{
    const size_t n = a->cols * a->ld;
    result r = {vtest_alloc(n, sizeof(float)), vtest_alloc(n, sizeof(float)),
                vtest_alloc(n, 1)};
    memcpy(r.z, a->z, n * sizeof *r.z);
    memset(r.err, 0x55, n * sizeof *r.err);
    memset(r.codes, 0x55, n);
    return r;
}

static void result_free(result *r)
{
    free(r->z);
    free(r->err);
    free(r->codes);
}

static vptq_uniform_pass_args pass_args(const problem *a, const result *r)
{
    vptq_uniform_pass_args p = {.cols = a->cols,
                                .rows = a->rows,
                                .z = r->z,
                                .u = a->u,
                                .bits = 4,
                                .storage = VPTQ_F16,
                                .err = r->err,
                                .prune_n = a->n,
                                .prune_m = a->m,
                                .ldz = a->ld,
                                .ldu = a->cols + GAP,
                                .ldc = a->ld,
                                .lde = a->ld,
                                .ldm = a->ld};
    if (!a->m)
        p.mask = a->mask;
    if (a->codes) {
        p.scale = a->scale;
        p.zero = a->zero;
        p.codes = r->codes;
    }
    return p;
}

static vptq_prune_mask_args mask_args(const problem *a, uint8_t *mask)
{
    return (vptq_prune_mask_args){.cols = a->cols,
                                  .rows = a->rows,
                                  .z = a->z,
                                  .u = a->u,
                                  .rank = a->rank,
                                  .mask = mask,
                                  .ldz = a->ld,
                                  .ldu = a->cols + GAP,
                                  .ldm = a->ld};
}

/* The same bits, but one NaN is as good as another. */
static void assert_same(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("element %zu is %a, expected %a", i, (double)got[i], (double)want[i]);
}

/* ---- tests ---- */

static void check_mask(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *a = arg;
    uint8_t *mask = vtest_alloc(a->cols * a->ld, 1);
    const vptq_prune_mask_args args = mask_args(a, mask);
    vptq_err err;
    (void)is_ref;
    memset(mask, 0x55, a->cols * a->ld);
    assert_ok(dev->ops->prune_mask(dev->state, &args, &err), &err);
    assert_memory_equal(mask, a->mask, a->cols * a->ld);
    free(mask);
}

static void check_pass(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *a = arg;
    const size_t n = a->cols * a->ld;
    result got = result_make(a), want = result_make(a);
    const vptq_uniform_pass_args args = pass_args(a, &got);
    vptq_err err;
    (void)is_ref;
    assert_ok(dev->ops->uniform_pass(dev->state, &args, &err), &err);
    for (size_t r = 0; r < a->rows; r++)
        expected_row(a, r, &want);
    assert_memory_equal(got.codes, want.codes, n);
    assert_same(got.z, want.z, n);
    assert_same(got.err, want.err, n);
    result_free(&got);
    result_free(&want);
}

static void masks_equal_sorted_scores(void **state)
{
    (void)state;
    static const struct {
        size_t cols, rows;
        double share;
    } shapes[] = {{1, 1, 0},       {1, 200, 0.5},  {7, 64, 0.01},    {33, 63, 0.99},
                  {128, 100, 0.5}, {5, 5000, 0.3}, {3, 4096, 0.9999}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int spoiled = 0; spoiled < 2; spoiled++) {
            problem a = problem_make(shapes[i].cols, shapes[i].rows, shapes[i].share, spoiled);
            devices_each_emu(check_mask, &a);
            problem_free(&a);
        }
}

/* All scores are equal: all are pruned. */
static void equal_scores_are_pruned(void **state)
{
    (void)state;
    problem a = problem_make(6, 70, 0.2, false);
    for (size_t t = 0; t < a.cols; t++)
        for (size_t r = 0; r < a.rows; r++)
            a.z[t * a.ld + r] = r % 2 ? -0.0F : 0.0F;
    expected_mask(&a);
    assert_int_equal(a.mask[0] && a.mask[5 * a.ld + 69], 1);
    devices_each_emu(check_mask, &a);
    problem_free(&a);
}

static void passes_equal_loops(void **state)
{
    (void)state;
    static const struct {
        size_t cols, rows;
        uint32_t n, m;
    } shapes[] = {{1, 1, 0, 0},  {20, 65, 0, 0},  {128, 70, 0, 0},
                  {4, 1, 2, 4},  {24, 130, 2, 4}, {40, 64, 4, 8},
                  {8, 33, 7, 8}, {12, 50, 1, 2},  {9, 20, 1, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int codes = 0; codes < 2; codes++)
            for (int spoiled = 0; spoiled < 2; spoiled++) {
                problem a = problem_make(shapes[i].cols, shapes[i].rows, 0.5, spoiled);
                a.n = shapes[i].n;
                a.m = shapes[i].m;
                a.codes = codes;
                devices_each_emu(check_pass, &a);
                problem_free(&a);
            }
}

/* One row, U = 1 with one error to propagate: 2:4 keeps the two largest, the first of equal
 * ones goes. */
static void check_by_hand(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { COLS = 4 };
    static const float row[COLS] = {3, -1, 1, 2}, kept[COLS] = {3, 0, 0, 2.5F};
    static const float errors[COLS] = {0, -1, 1, 0};
    float z[COLS], u[COLS * COLS] = {0}, e[COLS];
    vptq_err err;
    (void)arg;
    (void)is_ref;
    memcpy(z, row, sizeof z);
    for (size_t i = 0; i < COLS; i++)
        u[i * COLS + i] = 1;
    u[1 * COLS + 3] = 0.5F;
    const vptq_uniform_pass_args a = {.cols = COLS,
                                      .rows = 1,
                                      .z = z,
                                      .u = u,
                                      .bits = 4,
                                      .storage = VPTQ_F16,
                                      .err = e,
                                      .prune_n = 2,
                                      .prune_m = 4,
                                      .ldz = 1,
                                      .ldu = COLS,
                                      .lde = 1};
    assert_ok(dev->ops->uniform_pass(dev->state, &a, &err), &err);
    assert_memory_equal(z, kept, sizeof z);
    assert_memory_equal(e, errors, sizeof e);
}

static void a_row_by_hand(void **state)
{
    (void)state;
    devices_each_emu(check_by_hand, NULL);
}

/* ---- threads, memory ---- */

static void run_mask(const vptq_device *dev, const void *arg, void *out)
{
    const problem *a = arg;
    const vptq_prune_mask_args args = mask_args(a, out);
    vptq_err err;
    memset(out, 0, a->cols * a->ld);
    assert_ok(dev->ops->prune_mask(dev->state, &args, &err), &err);
}

static void run_pass(const vptq_device *dev, const void *arg, void *out)
{
    const problem *a = arg;
    const size_t n = a->cols * a->ld;
    result r = result_make(a);
    const vptq_uniform_pass_args args = pass_args(a, &r);
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
    problem a = problem_make(40, 9000, 0.5, false);
    devices_check_emu(
        &(devices_op){.run = run_mask, .arg = &a, .count = a.cols * a.ld, .size = 1}, NULL);
    problem_free(&a);
    a = problem_make(40, 450, 0.5, false);
    const size_t bytes = a.cols * a.ld * (1 + 2 * sizeof(float));
    for (int pattern = 0; pattern < 2; pattern++) {
        a.n = pattern ? 2 : 0;
        a.m = pattern ? 4 : 0;
        a.codes = !pattern;
        devices_check_emu(&(devices_op){.run = run_pass, .arg = &a, .count = bytes, .size = 1},
                          NULL);
    }
    problem_free(&a);
}

static vptq_status mask_once(void *arg, vptq_device *dev, vptq_err *err)
{
    const problem *a = arg;
    uint8_t *mask = vtest_alloc(a->cols * a->ld, 1);
    const vptq_prune_mask_args args = mask_args(a, mask);
    const vptq_status st = dev->ops->prune_mask(dev->state, &args, err);
    free(mask);
    return st;
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    devices_skip_if_only();
    problem a = problem_make(20, 100, 0.5, false);
    assert_true(devices_oom_walk("cpu", 2, mask_once, &a) >= 2); /* the device, the counts */
    problem_free(&a);
}

VTEST_MAIN(cmocka_unit_test(masks_equal_sorted_scores),
           cmocka_unit_test(equal_scores_are_pruned), cmocka_unit_test(passes_equal_loops),
           cmocka_unit_test(a_row_by_hand), cmocka_unit_test(any_threads_give_the_same_bits),
           cmocka_unit_test(survives_every_failed_allocation))
