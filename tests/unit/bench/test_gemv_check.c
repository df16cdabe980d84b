/* Tests the check of products before they are timed: every row counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/bench/gemv_check.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vtest.h"

enum { OUT = 50, IN = 40, TOKENS = 2 };

static void every_row_is_checked(void **state)
{
    (void)state;
    const vptq_vq_shape s = {OUT, IN, 8, 16, 4, 1, IN, 0, 0, 0, true, true, false};
    const vptq_ctx ctx = {.threads = 2};
    static const size_t rows[] = {0, 17, OUT - 1};
    vptq_err err;
    vmatrix m;
    vmatrix_make(&m, &s);
    float *w = vtest_alloc(OUT * IN, sizeof *w), *x = vtest_normals(TOKENS * IN, 1);
    float y[TOKENS * OUT];
    vmatrix_decode(&m, w);
    for (size_t i = 0; i < TOKENS; i++)
        for (size_t r = 0; r < OUT; r++) {
            double sum = 0;
            for (size_t j = 0; j < IN; j++)
                sum += (double)w[r * IN + j] * (double)x[i * IN + j];
            y[i * OUT + r] = (float)sum;
        }
    assert_ok(vptq_gemv_check(&ctx, &m.q, TOKENS, x, y, &err), &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float *at = &y[OUT + rows[i]]; /* of the second token */
        const float right = *at;
        char want[64];
        snprintf(want, sizeof want, "the product of rows %zu to ", rows[i] / 16 * 16);
        *at = right + 1;
        assert_fails(vptq_gemv_check(&ctx, &m.q, TOKENS, x, y, &err), VPTQ_E_NUMERIC, &err,
                     want);
        *at = NAN;
        assert_fails(vptq_gemv_check(&ctx, &m.q, TOKENS, x, y, &err), VPTQ_E_NUMERIC, &err,
                     want);
        *at = right;
    }
    const volatile sig_atomic_t flag = 1;
    const vptq_ctx cancelled = {.threads = 2, .cancel = &flag};
    assert_int_equal(vptq_gemv_check(&cancelled, &m.q, TOKENS, x, y, &err), VPTQ_E_CANCELLED);
    free(w);
    free(x);
    vmatrix_free(&m);
}

VTEST_MAIN(cmocka_unit_test(every_row_is_checked))
