/* Tests the ops quantize_rows and multiply_bytes against loops written out here: quantization
 * in double, with each result rounded to float, and sums of 64 bits.  All devices give the same
 * bits. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/cpu/bytes.h"
#include "lib/base/rng.h"
#include "tests/support/devices.h"

enum { GAP = 3 }; /* elements after a row, never touched */

/* ---- quantize_rows ---- */

typedef struct rows {
    size_t n, cols;
    float *x; /* [n, cols + GAP] */
} rows;

/* Special rows: zeros, the range of magnitudes around the least that counts, numbers half-way
 * between two codes, and NaN and infinity first, last and in the middle. */
static rows rows_make(size_t n, size_t cols)
{
    static const float factors[] = {1, 0, 1e-40F, 0x1p-122F, 0x1p-119F, 1e-20F, 1e30F, 1e37F};
    enum { COUNT = sizeof factors / sizeof *factors };
    rows a = {n, cols, vtest_normals(n * (cols + GAP), 5)};
    for (size_t r = 0; r < n; r++) {
        float *x = a.x + r * (cols + GAP);
        for (size_t i = 0; i < cols; i++)
            x[i] *= r < COUNT ? factors[r] : 1;
        if (r == COUNT) { /* 127 / 254 is exact: quotients are ..., -0.5, 0, 0.5, ... */
            for (size_t i = 0; i < cols; i++)
                x[i] = (float)((int)(i % 509) - 254);
            x[cols / 2] = 254;
        }
        if (r > COUNT && r % 3 == 0)
            x[r % 9 == 0 ? 0 : r % 9 == 3 ? cols - 1 : cols / 2] = r % 2 ? NAN : -INFINITY;
        for (size_t i = cols; i < cols + GAP; i++)
            x[i] = NAN;
    }
    return a;
}

/* The definition, with every result rounded to float. */
static void expect_row(const float *x, size_t n, int8_t *q, float *scale)
{
    double m = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        m = fmax(m, fabs((double)x[i]));
        *scale = isnan(x[i]) ? NAN : *scale;
    }
    for (size_t i = 0; i < VPTQ_BYTES_ROW(n); i++)
        q[i] = 0;
    if (!finite) {
        *scale = isnan(*scale) ? NAN : INFINITY;
        return;
    }
    *scale = m < ldexp(1, -119) ? 0 : (float)(m / 127);
    const double steps = (double)(float)(127 / m);
    for (size_t i = 0; *scale > 0 && i < n; i++)
        q[i] = (int8_t)fmax(-127, fmin(127, nearbyint((double)(float)((double)x[i] * steps))));
}

static void check_rows(void *arg, const vptq_device *dev, bool is_ref)
{
    const rows *a = arg;
    const size_t bytes = VPTQ_BYTES_ROW(a->cols);
    int8_t *q = vtest_alloc(a->n * bytes, 1), *want = vtest_alloc(bytes, 1);
    float *scale = vtest_alloc(a->n, sizeof *scale);
    vptq_err err;
    const vptq_quantize_rows_args args = {
        .rows = a->n, .cols = a->cols, .x = a->x, .ldx = a->cols + GAP, .q = q, .scale = scale};
    (void)is_ref;
    memset(q, 0x55, a->n * bytes);
    assert_ok(dev->ops->quantize_rows(dev->state, &args, &err), &err);
    for (size_t r = 0; r < a->n; r++) {
        float s = 0;
        expect_row(a->x + r * (a->cols + GAP), a->cols, want, &s);
        if (memcmp(q + r * bytes, want, bytes))
            fail_msg("row %zu of %zu x %zu has other bytes", r, a->n, a->cols);
        if (isnan(s) ? !isnan(scale[r]) : memcmp(&scale[r], &s, sizeof s) != 0)
            fail_msg("row %zu of %zu x %zu: scale %a, expected %a", r, a->n, a->cols,
                     (double)scale[r], (double)s);
    }
    free(q);
    free(want);
    free(scale);
}

static void rows_are_quantized_by_their_largest(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1},    {40, 3},   {30, 16}, {20, 33},
                                       {37, 100}, {12, 576}, {3, 1537}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        rows a = rows_make(shapes[i][0], shapes[i][1]);
        devices_each_emu(check_rows, &a);
        free(a.x);
    }
}

/* Worked out by hand. */
static void check_by_hand(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { COLS = 5, ROW = 8 };
    static const float x[COLS] = {-254, 3, 1, 0.9F, 5}; /* halves to even: 1.5, 0.5, 2.5 */
    static const int8_t want[ROW] = {-127, 2, 0, 0, 2, 0, 0, 0};
    static const uint8_t codes[2][ROW] = {{0, 255, 128, 128, 130, 7, 7, 7},
                                          {129, 128, 200, 9, 127, 0, 0, 0}};
    static const float scale[2] = {0.5F, 2}, bias[2] = {1, -1};
    uint32_t words[4];
    int8_t q[ROW];
    float s, y[2] = {10, 20};
    vptq_err err;
    (void)arg;
    (void)is_ref;
    memcpy(words, codes, sizeof words);
    assert_ok(dev->ops->quantize_rows(
                  dev->state,
                  &(vptq_quantize_rows_args){
                      .rows = 1, .cols = COLS, .x = x, .ldx = COLS, .q = q, .scale = &s},
                  &err),
              &err);
    assert_memory_equal(q, want, ROW);
    assert_true(s == 2);
    vptq_multiply_bytes_args m = {.rows = 1,
                                  .out = 2,
                                  .in = COLS,
                                  .q = q,
                                  .q_scale = &s,
                                  .codes = words,
                                  .scale = scale,
                                  .bias = bias,
                                  .beta = 1,
                                  .y = y,
                                  .ldy = 2};
    assert_ok(dev->ops->multiply_bytes(dev->state, &m, &err), &err);
    /* 127 * 128 + 2 * 127 + 2 * 2 = 16514, times 1; -127 - 2 = -129, times 4 */
    assert_true(y[0] == 16514 + 1 + 10 && y[1] == -516 - 1 + 20);
}

static void a_product_by_hand(void **state)
{
    (void)state;
    devices_each_emu(check_by_hand, NULL);
}

/* ---- multiply_bytes ---- */

typedef struct problem {
    size_t n, out, in, row; /* row: bytes */
    int8_t *q;              /* [n, row] */
    uint32_t *codes;        /* [out, row / 4]; any bytes at the end of a row */
    float *q_scale, *scale, *bias;
} problem;

/* Bytes are any; or with `extreme` only the largest ones, and -128 as a weight: so that a row
 * has the largest sums that there can be. */
static problem problem_make(size_t n, size_t out, size_t in, bool extreme)
{
    problem a = {n, out, in, VPTQ_BYTES_ROW(in), NULL, NULL, NULL, NULL, NULL};
    const vptq_rng rng = vptq_rng_make(3, 0, 0, VPTQ_RNG_TEST);
    a.q = vtest_alloc(n * a.row, 1);
    a.codes = vtest_alloc(out * a.row / 4, sizeof *a.codes);
    a.q_scale = vtest_normals(n, 6);
    a.scale = vtest_normals(out, 7);
    a.bias = vtest_normals(out, 8);
    uint8_t *codes = (uint8_t *)a.codes;
    for (size_t i = 0; i < out * a.row; i++) {
        const uint32_t u = (uint32_t)(vptq_rng_uniform(&rng, i) * 256);
        const uint32_t row = (uint32_t)(i / a.row);
        codes[i] = (uint8_t)(!extreme ? u : row % 3 == 0 ? 0 : row % 3 == 1 ? 255 : u);
    }
    for (size_t i = 0; i < n * a.row; i++) {
        const int v = (int)(vptq_rng_uniform(&rng, i + ((uint64_t)1 << 40)) * 255) - 127;
        const size_t row = i / a.row;
        a.q[i] = (int8_t)(!extreme       ? v
                          : row % 4 == 0 ? 127
                          : row % 4 == 1 ? -127
                          : row % 4 == 2 ? 0
                                         : v);
        if (i % a.row >= in)
            a.q[i] = 0;
    }
    a.q_scale[0] = 0;
    if (n > 3)
        a.q_scale[3] = INFINITY;
    return a;
}

static void problem_free(problem *a)
{
    free(a->q);
    free(a->codes);
    free(a->q_scale);
    free(a->scale);
    free(a->bias);
}

static void multiply(const problem *a, const vptq_device *dev, bool more, float *y)
{
    vptq_err err;
    const vptq_multiply_bytes_args args = {.rows = a->n,
                                           .out = a->out,
                                           .in = a->in,
                                           .q = a->q,
                                           .q_scale = a->q_scale,
                                           .codes = a->codes,
                                           .scale = a->scale,
                                           .bias = more ? a->bias : NULL,
                                           .beta = more ? 1 : 0,
                                           .y = y,
                                           .ldy = a->out + GAP};
    assert_ok(dev->ops->multiply_bytes(dev->state, &args, &err), &err);
}

static float expected(const problem *a, size_t t, size_t o, bool more, float before)
{
    const uint8_t *codes = (const uint8_t *)a->codes + o * a->row;
    int64_t sum = 0;
    for (size_t i = 0; i < a->in; i++)
        sum += (int64_t)a->q[t * a->row + i] * ((int64_t)codes[i] - 128);
    assert_true(sum >= INT32_MIN && sum <= INT32_MAX);
    const float factor = (float)((double)a->q_scale[t] * (double)a->scale[o]);
    const float y = (float)((double)(float)sum * (double)factor);
    return more ? (float)((double)before + (double)(float)((double)y + (double)a->bias[o])) : y;
}

static void check_product(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *a = arg;
    const size_t ld = a->out + GAP;
    float *y = vtest_alloc(a->n * ld, sizeof *y);
    (void)is_ref;
    for (int more = 0; more < 2; more++) {
        for (size_t i = 0; i < a->n * ld; i++)
            y[i] = more ? (float)(i % 11) : NAN;
        multiply(a, dev, more, y);
        for (size_t i = 0; i < a->n * ld; i++) {
            const float before = more ? (float)(i % 11) : NAN;
            const float want =
                i % ld < a->out ? expected(a, i / ld, i % ld, more, before) : before;
            if (isnan(want) ? !isnan(y[i]) : memcmp(&y[i], &want, sizeof want) != 0)
                fail_msg("%zu x %zu x %zu: row %zu, output %zu is %a, expected %a", a->n,
                         a->out, a->in, i / ld, i % ld, (double)y[i], (double)want);
        }
    }
    free(y);
}

static void products_are_exact(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1},     {1, 5, 64},   {2, 3, 7},    {3, 4, 31},
                                       {4, 33, 32},   {5, 16, 100}, {8, 17, 129}, {9, 20, 191},
                                       {33, 64, 130}, {65, 35, 66}, {70, 40, 260}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int extreme = 0; extreme < 2; extreme++) {
            problem a = problem_make(shapes[i][0], shapes[i][1], shapes[i][2], extreme);
            devices_each_emu(check_product, &a);
            problem_free(&a);
        }
}

/* The kernels of a level, also those that a processor with VNNI does not use. */
static void kernels_of_all_levels(void **state)
{
    enum { ROWS = 8, MOST = 300 };
    (void)state;
    for (size_t in = 1; in <= MOST; in += in < 70 ? 1 : 37) {
        problem a = problem_make(ROWS, ROWS, in, in % 2);
        for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
            if (!devices_have_simd(simd))
                continue;
            const vptq_bytes_kernels *k = vptq_bytes_kernels_get((vptq_simd)simd);
            vptq_bytes_tile t = {.bytes = a.row};
            for (size_t i = 0; i < VPTQ_BYTES_TOKENS; i++) {
                t.codes[i] = (const uint8_t *)a.codes + i * a.row;
                t.q[i] = a.q + i * a.row;
            }
            for (int all = 0; all < 2; all++) {
                memset(t.sum, 0x55, sizeof t.sum);
                (all ? k->all : k->one)(&t);
                for (size_t i = 0; i < (all ? VPTQ_BYTES_TOKENS : 1); i++)
                    for (size_t o = 0; o < VPTQ_BYTES_OUT; o++) {
                        int32_t want = 0;
                        for (size_t j = 0; j < a.row; j++)
                            want += t.q[i][j] * ((int32_t)t.codes[o][j] - 128);
                        assert_int_equal(t.sum[i][o], want);
                    }
            }
        }
        problem_free(&a);
    }
}

/* The widest rows, whose sums nearly fill 32 bits. */
static void the_widest_rows_do_not_overflow(void **state)
{
    (void)state;
    problem a = problem_make(5, 4, VPTQ_BYTES_MAX_COLUMNS, true);
    devices_each_emu(check_product, &a);
    problem_free(&a);
}

static void run_product(const vptq_device *dev, const void *arg, void *out)
{
    const problem *a = arg;
    memset(out, 0, a->n * (a->out + GAP) * sizeof(float));
    multiply(a, dev, true, out);
}

static void run_rows(const vptq_device *dev, const void *arg, void *out)
{
    const rows *a = arg;
    vptq_err err;
    float *scale = vtest_alloc(a->n, sizeof *scale);
    const vptq_quantize_rows_args args = {.rows = a->n,
                                          .cols = a->cols,
                                          .x = a->x,
                                          .ldx = a->cols + GAP,
                                          .q = out,
                                          .scale = scale};
    assert_ok(dev->ops->quantize_rows(dev->state, &args, &err), &err);
    free(scale);
}

static void any_threads_give_the_same_bits(void **state)
{
    (void)state;
    problem a = problem_make(70, 100, 90, false);
    rows b = rows_make(200, 300);
    const size_t floats = a.n * (a.out + GAP), bytes = b.n * VPTQ_BYTES_ROW(b.cols);
    a.q_scale[3] = 1;
    devices_check_emu(
        &(devices_op){.run = run_product, .arg = &a, .count = floats * 4, .size = 1}, NULL);
    devices_check_emu(&(devices_op){.run = run_rows, .arg = &b, .count = bytes, .size = 1},
                      NULL);
    problem_free(&a);
    free(b.x);
}

VTEST_MAIN(cmocka_unit_test(rows_are_quantized_by_their_largest),
           cmocka_unit_test(a_product_by_hand), cmocka_unit_test(products_are_exact),
           cmocka_unit_test(kernels_of_all_levels),
           cmocka_unit_test(the_widest_rows_do_not_overflow),
           cmocka_unit_test(any_threads_give_the_same_bits))
