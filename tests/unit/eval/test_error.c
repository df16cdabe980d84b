/* Errors of quantized matrices compared with double precision written out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/collect.h"
#include "lib/eval/error.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

typedef struct error_log {
    vptq_error_row rows[64];
    size_t count;
} error_log;

static vptq_status log_error(void *arg, const vptq_error_row *row, vptq_err *err)
{
    error_log *l = arg;
    (void)err;
    assert_true(l->count < 64);
    l->rows[l->count++] = *row;
    return VPTQ_OK;
}

static double *as_double(vrig *r, const vptq_weight *w)
{
    vptq_err err = {0};
    size_t n = w->rows * w->cols;
    float *x = vtest_alloc(n, sizeof *x);
    double *d = vtest_alloc(n, sizeof *d);
    assert_ok(vptq_weight_read(w, &r->dev, 0, w->rows, x, &err), &err);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    free(x);
    return d;
}

/* tr(A H A^T) for A [rows, n] and the lower triangle of H (NULL: the identity). */
static double trace(const double *a, size_t rows, size_t n, const float *lower)
{
    double sum = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = lower ? 0 : i; j <= i; j++) {
                double h = lower ? (double)lower[i * (i + 1) / 2 + j] : 1;
                sum += (i == j ? h : 2 * h) * a[r * n + i] * a[r * n + j];
            }
    return sum;
}

static void check_error_row(vrig *q, vrig *base, const vptq_error_row *row, vptq_linear l,
                            const float *lower)
{
    const vptq_weight *w = &base->m.blocks[row->layer].linear[l];
    double *a = as_double(base, w), *b = as_double(q, &q->m.blocks[row->layer].linear[l]);
    double norm = trace(a, w->rows, w->cols, NULL), worst = 0;
    double *row_norms = vtest_alloc(w->rows, sizeof *row_norms);
    for (size_t i = 0; i < w->rows; i++)
        row_norms[i] = trace(a + i * w->cols, 1, w->cols, NULL);
    double weighted = lower ? trace(a, w->rows, w->cols, lower) : 1;
    for (size_t i = 0; i < w->rows * w->cols; i++)
        a[i] = b[i] - a[i];
    double mse = trace(a, w->rows, w->cols, NULL) / norm;
    assert_string_equal(row->name, vptq_linear_name(base->m.desc, l).text);
    assert_int_equal(row->kind, vptq_linear_kind(l));
    assert_int_equal(row->rows, w->rows);
    assert_int_equal(row->columns, w->cols);
    assert_close_f64(&row->relative_mse, &mse, 1, 0, 1e-6);
    for (size_t i = 0; i < w->rows; i++) {
        double error = trace(a + i * w->cols, 1, w->cols, NULL) / row_norms[i];
        worst = error > worst ? error : worst;
        if (i == row->worst_row)
            assert_close_f64(&row->worst_row_mse, &error, 1, 0, 1e-12);
    }
    assert_close_f64(&row->worst_row_mse, &worst, 1, 0, 1e-12);
    free(row_norms);
    if (lower) {
        double loss = trace(a, w->rows, w->cols, lower) / weighted;
        assert_close_f64(&row->proxy_loss, &loss, 1, 0, 1e-5);
    } else {
        assert_true(isnan(row->proxy_loss));
    }
    free(a);
    free(b);
}

static bool error_rigs(vrig *q, vrig *base)
{
    char packed[4096], original[4096];
    if (!vtest_data(packed, sizeof packed, "golden/vptq_model_stories260K") ||
        !vtest_data(original, sizeof original, "models/stories260K-hf"))
        return false;
    vrig_open(q, packed, NULL, false);
    vrig_open(base, original, NULL, false);
    return true;
}

static void test_error(void **state)
{
    vrig q, base;
    vptq_err err = {0};
    char hdir[4096], file[4096], name[64], ids[4096];
    const char *files[] = {ids};
    vptq_collect_options collect = {.calibrate = {.corpus = {.tokens = files, .token_count = 1},
                                                  .windows = 2,
                                                  .length = 64},
                                    .last_layer = UINT32_MAX,
                                    .tool_version = "test"};
    vptq_collect_result done;
    vptq_hessian_file h;
    error_log plain = {.count = 0}, weighted = {.count = 0};
    if (!error_rigs(&q, &base))
        skip();
    free(vrig_ids(*state, 128, ids, sizeof ids));
    vtest_path(hdir, sizeof hdir, *state, "hessians");
    assert_ok(vptq_hessian_collect(&base.dev, &base.m, &collect, hdir, &done, &err), &err);
    const vptq_error_options all = {.last_layer = UINT32_MAX},
                             third = {.hessians = hdir, .first_layer = 2, .last_layer = 2},
                             first = {.hessians = hdir, .last_layer = 1};
    assert_ok(vptq_eval_error(&q.dev, &q.m, &base.m, &all, log_error, &plain, &err), &err);
    assert_int_equal(plain.count, 35);
    for (size_t i = 0; i < 35; i++) {
        assert_int_equal(plain.rows[i].layer, i / 7);
        check_error_row(&q, &base, &plain.rows[i], (vptq_linear)(i % 7), NULL);
    }
    assert_ok(vptq_eval_error(&q.dev, &q.m, &base.m, &third, log_error, &weighted, &err), &err);
    assert_int_equal(weighted.count, 7);
    for (size_t i = 0; i < 7; i++) {
        vptq_hessian_file_name(name, 2,
                               vptq_input_name(vptq_linear_input((vptq_linear)i)).text);
        vtest_path(file, sizeof file, hdir, name);
        assert_ok(vptq_hessian_file_read(file, 0, &base.mem, &h, &err), &err);
        check_error_row(&q, &base, &weighted.rows[i], (vptq_linear)i, h.lower);
        vptq_hessian_file_release(&h);
    }
    assert_fails(vptq_eval_error(&q.dev, &q.m, &q.m, &first, log_error, &plain, &err),
                 VPTQ_E_MISMATCH, &err, "Hessians are of a model");
    vrig_close(&q);
    vrig_close(&base);
}

static void test_error_refused(void **state)
{
    (void)state;
    vrig q, base, other;
    vptq_err err = {0};
    error_log rows = {.count = 0};
    if (!error_rigs(&q, &base))
        skip();
    vrig_open(&other, VRIG_TINY, NULL, false);
    const vptq_error_options first = {.last_layer = 1},
                             beyond = {.first_layer = 3, .last_layer = 5};
    assert_fails(vptq_eval_error(&q.dev, &q.m, &other.m, &first, log_error, &rows, &err),
                 VPTQ_E_MISMATCH, &err, "is not a version of");
    assert_fails(vptq_eval_error(&q.dev, &base.m, &base.m, &first, log_error, &rows, &err),
                 VPTQ_E_UNSUPPORTED, &err, "no quantized matrix");
    assert_fails(vptq_eval_error(&q.dev, &q.m, &base.m, &beyond, log_error, &rows, &err),
                 VPTQ_E_ARG, &err, "has layers 0 to 4");
    vrig_close(&other);
    vrig_close(&q);
    vrig_close(&base);
}

VTEST_MAIN(scratch_test(test_error), cmocka_unit_test(test_error_refused))
