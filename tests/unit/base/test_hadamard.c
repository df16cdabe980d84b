/* Tests the transforms of lib/base: orders, orthogonality against sums in double, transposes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/hadamard.h"
#include "tests/support/vtest.h"

/* A_n [n, n], row i being what the unit vector i becomes if transposed. */
static float *matrix_of(size_t n, bool transposed)
{
    float *m = vtest_alloc(n * n, sizeof *m);
    for (size_t i = 0; i < n; i++)
        m[i * n + i] = 1;
    vptq_hadamard_rows(n, n, transposed, m);
    return m;
}

/* Of large matrices every seventh row against all others. */
static void check_orthogonal(size_t n, const float *m)
{
    double worst = 0;
    for (size_t i = 0; i<n; i += n> 256 ? 7 : 1)
        for (size_t j = 0; j < n; j++) {
            double dot = 0;
            for (size_t c = 0; c < n; c++)
                dot += (double)m[i * n + c] * (double)m[j * n + c];
            worst = fmax(worst, fabs(dot - (i == j ? 1 : 0)));
        }
    assert_true(worst < 2e-7);
}

/* Inside of a block every entry has the same size, outside it is 0. */
static void check_entries(size_t n, size_t order, const float *m)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const double expected = i / order == j / order ? 1 / sqrt((double)order) : 0;
            worst = fmax(worst, fabs(fabs((double)m[i * n + j]) - expected));
        }
    assert_true(worst < 1e-7);
}

static void check_order(size_t n, size_t order)
{
    float *rows = matrix_of(n, false), *columns = matrix_of(n, true);
    assert_int_equal(vptq_hadamard_order(n), order);
    check_orthogonal(n, rows);
    check_entries(n, order, rows);
    size_t different = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            different += rows[i * n + j] != columns[j * n + i];
    assert_int_equal(different, 0);
    free(rows);
    free(columns);
}

/* Of 344, 52, 100 and 244, the fields have 7^3, 5^2, 7^2 and 11^2 elements. */
static void test_one_matrix(void **state)
{
    (void)state;
    static const size_t orders[] = {1,   2,   4,   8,   12,  20,  24,  28,  36,  44,
                                    52,  60,  64,  76,  80,  84,  96,  100, 108, 140,
                                    148, 192, 244, 252, 256, 288, 344, 512, 576};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        check_order(orders[i], orders[i]);
}

static void test_blocks(void **state)
{
    (void)state;
    static const size_t cases[][2] = {{3, 1},   {6, 2},    {15, 1},  {90, 2},
                                      {92, 4},  {116, 4},  {172, 4}, {184, 8},
                                      {343, 1}, {476, 68}, {516, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_order(cases[i][0], cases[i][1]);
}

static double norm_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Widths of models: the transform spreads a unit vector evenly, keeps lengths and returns. */
static void test_wide(void **state)
{
    (void)state;
    static const size_t widths[] = {1536, 2560, 4864, 8960, 11008, 13824, 14336, 18944, 29568};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const size_t n = widths[i], order = n == 29568 ? 9856 : n;
        float *x = vtest_normals(2 * n, i), *y = vtest_alloc(2 * n, sizeof *y);
        memset(x + n, 0, n * sizeof *x);
        x[n + 7] = 1;
        memcpy(y, x, 2 * n * sizeof *y);
        vptq_hadamard_rows(2, n, false, y);
        assert_int_equal(vptq_hadamard_order(n), order);
        assert_true(fabs(norm_of(y, n) / norm_of(x, n) - 1) < 1e-6);
        double worst = 0;
        for (size_t c = 0; c < order; c++)
            worst = fmax(worst, fabs(fabs((double)y[n + c]) - 1 / sqrt((double)order)));
        assert_true(worst < 1e-8);
        vptq_hadamard_rows(2, n, true, y);
        vtest_assert_close_f32(y, x, 2 * n, 1e-5, 0, __FILE__, __LINE__);
        free(x);
        free(y);
    }
}

/* Rows are transformed one by one. */
static void test_rows_are_independent(void **state)
{
    (void)state;
    enum { ROWS = 5, N = 72 };
    float *x = vtest_normals((size_t)ROWS * N, 3);
    float *y = vtest_alloc((size_t)ROWS * N, sizeof *y);
    memcpy(y, x, (size_t)ROWS * N * sizeof *y);
    vptq_hadamard_rows(ROWS, N, true, y);
    for (size_t r = 0; r < ROWS; r++)
        vptq_hadamard_rows(1, N, true, x + r * N);
    assert_memory_equal(x, y, (size_t)ROWS * N * sizeof *y);
    free(x);
    free(y);
}

VTEST_MAIN(cmocka_unit_test(test_one_matrix), cmocka_unit_test(test_blocks),
           cmocka_unit_test(test_wide), cmocka_unit_test(test_rows_are_independent))
