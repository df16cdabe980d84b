/* Tests the shape, size and decoding of matrices of additive codes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/additive.h"
#include "lib/base/hadamard.h"
#include "lib/base/lattice.h"
#include "tests/support/vadditive.h"
#include "tests/support/vtest.h"

/* ---- sizes ---- */

static void test_bits_by_hand(void **state)
{
    (void)state;
    vptq_additive_shape s = vadditive_ragged();
    vptq_vq_bits b = vptq_additive_count_bits(&s);
    /* 5 codes of 3 and 5 bits in one word each; 3 x 2 blocks; 3 scales a row */
    assert_int_equal(b.indices, 5 * (32 + 32));
    assert_int_equal(b.codebooks, 6 * (8 + 32) * 4 * 16);
    assert_int_equal(b.norm, 5 * 3 * 16);
    assert_int_equal(b.total, 320 + 15360 + 240);
    assert_true(b.per_weight == (double)b.total / 100);
    s.int8 = true;
    b = vptq_additive_count_bits(&s);
    assert_int_equal(b.codebooks, 6 * ((8 + 32) * 4 * 8 + 2 * 16));
    s.int8 = false, s.sparse = true, s.scale_columns = 0;
    b = vptq_additive_count_bits(&s);
    assert_int_equal(b.codebooks, 6 * (7 + 31) * 4 * 16);
    assert_int_equal(b.norm, 0);
    s = vadditive_lattice();
    b = vptq_additive_count_bits(&s);
    /* 80 bits in 3 words and 40 in 2; two scales; 12 and 40 signs */
    assert_int_equal(b.indices, 12 * (3 + 2) * 32);
    assert_int_equal(b.codebooks, 0);
    assert_int_equal(b.norm, 2 * 32 + 32 + 64);
}

static void refuse(vptq_additive_shape s, const char *part)
{
    vptq_err err = {0};
    assert_fails(vptq_additive_shape_check(&s, &err), VPTQ_E_SHAPE, &err, part);
}

static void test_shape_rules(void **state)
{
    (void)state;
    vptq_err err;
    vptq_additive_shape s = vadditive_ragged();
    assert_ok(vptq_additive_shape_check(&s, &err), &err);
    s = vadditive_ragged(), s.out = 0, refuse(s, "0 x 20");
    s = vadditive_ragged(), s.in = UINT32_C(1) << 31, refuse(s, "2147483648");
    s = vadditive_ragged(), s.v = 0, refuse(s, "vector length 0");
    s = vadditive_ragged(), s.v = 17, s.in = 17, refuse(s, "vector length 17");
    s = vadditive_ragged(), s.v = 3, refuse(s, "does not divide 20");
    s = vadditive_ragged(), s.stages = 0, refuse(s, "0 codebooks");
    s = vadditive_ragged(), s.stages = 9, refuse(s, "9 codebooks");
    s = vadditive_ragged(), s.bits[1] = 0, refuse(s, "codes of 0 bits");
    s = vadditive_ragged(), s.bits[0] = 17, refuse(s, "codes of 17 bits");
    s = vadditive_ragged(), s.block_rows = 0, refuse(s, "blocks of 0 rows");
    s = vadditive_ragged(), s.block_rows = 6, refuse(s, "blocks of 6 rows");
    s = vadditive_ragged(), s.block_columns = 0, refuse(s, "blocks of 0 columns");
    s = vadditive_ragged(), s.block_columns = 24, refuse(s, "blocks of 24 columns");
    s = vadditive_ragged(), s.block_columns = 6, refuse(s, "blocks of 6 columns");
    s = vadditive_ragged(), s.scale_columns = 24, refuse(s, "scales of 24 columns");
    s = vadditive_ragged(), s.scale_columns = 6, refuse(s, "scales of 6 columns");
    s = vadditive_ragged(), s.rotated = true, refuse(s, "rotated");
    s = vadditive_lattice();
    assert_ok(vptq_additive_shape_check(&s, &err), &err);
    s = vadditive_lattice(), s.v = 4, refuse(s, "length 4");
    s = vadditive_lattice(), s.bits[1] = 15, refuse(s, "15 bits");
    s = vadditive_lattice(), s.block_rows = 6, refuse(s, "6 x 40");
    s = vadditive_lattice(), s.int8 = true, refuse(s, "8 bits");
    s = vadditive_lattice(), s.sparse = true, refuse(s, "sparse");
    s = vadditive_lattice(), s.rotated = false, s.scale_columns = 8, refuse(s, "scales");
}

/* ---- decoding ---- */

/* Entry of weight (r, c) by the definition; codes are read bit by bit. */
static double entry_of(const vptq_additive *a, uint32_t m, size_t r, size_t c)
{
    const vptq_additive_shape *s = &a->shape;
    const size_t t = c / s->v, e = c % s->v, across = (s->in - 1) / s->block_columns + 1;
    const uint32_t *words = a->codes[m] + r * ((s->in / s->v * s->bits[m] + 31) / 32);
    uint32_t code = 0;
    for (size_t b = 0; b < s->bits[m]; b++) {
        const size_t bit = t * s->bits[m] + b;
        code |= (words[bit / 32] >> bit % 32 & 1) << b;
    }
    if (s->lattice) {
        float point[VPTQ_LATTICE_V];
        vptq_lattice_point(s->bits[m], code, point);
        return (double)point[e] * (double)a->stage_scales[m];
    }
    const size_t block = r / s->block_rows * across + c / s->block_columns;
    return (double)a->codebooks[m][((block * ((size_t)1 << s->bits[m])) + code) * s->v + e];
}

/* Orthogonal matrix [n, n], columns of which are what unit vectors become. */
static double *matrix_of(size_t n)
{
    double *m = vtest_alloc(n * n, sizeof *m);
    float *unit = vtest_alloc(n, sizeof *unit);
    for (size_t i = 0; i < n; i++) {
        memset(unit, 0, n * sizeof *unit);
        unit[i] = 1;
        vptq_hadamard_rows(1, n, false, unit);
        for (size_t k = 0; k < n; k++)
            m[k * n + i] = (double)unit[k];
    }
    free(unit);
    return m;
}

/* z = A_out^T z A_in with signs. */
static void rotate(const vptq_additive *a, double *z)
{
    const size_t out = a->shape.out, in = a->shape.in;
    double *left = matrix_of(out), *right = matrix_of(in);
    double *half = vtest_alloc(out * in, sizeof *half);
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++)
            for (size_t k = 0; k < in; k++)
                half[r * in + c] += z[r * in + k] * right[k * in + c];
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++) {
            double sum = 0;
            for (size_t k = 0; k < out; k++)
                sum += left[k * out + r] * half[k * in + c];
            z[r * in + c] = sum * (a->row_signs[r] ? -1 : 1) * (a->column_signs[c] ? -1 : 1);
        }
    free(left);
    free(right);
    free(half);
}

static double *naive(const vptq_additive *a)
{
    const vptq_additive_shape *s = &a->shape;
    double *w = vtest_alloc((size_t)s->out * s->in, sizeof *w);
    for (size_t r = 0; r < s->out; r++)
        for (size_t c = 0; c < s->in; c++) {
            double *x = &w[r * s->in + c];
            for (uint32_t m = 0; m < s->stages; m++)
                *x += entry_of(a, m, r, c);
            if (a->scales)
                *x *= (double)a->scales[r * ((s->in - 1) / s->scale_columns + 1) +
                                        c / s->scale_columns];
        }
    if (s->rotated)
        rotate(a, w);
    return w;
}

static void check_decoded(vptq_additive_shape s)
{
    vptq_err err;
    vadditive x;
    assert_ok(vptq_additive_shape_check(&s, &err), &err);
    vadditive_make(&x, s, VPTQ_F16);
    const size_t n = (size_t)s.out * s.in;
    double *expected = naive(&x.m.a);
    float *w = vtest_alloc(n, sizeof *w), *again = vtest_alloc(n, sizeof *again);
    const vptq_ctx one = {.threads = 1}, four = {.threads = 4};
    assert_ok(vptq_additive_decode(&one, &x.m.a, w, &err), &err);
    assert_ok(vptq_additive_decode(&four, &x.m.a, again, &err), &err);
    assert_same_f32(w, again, n);
    double largest = 1;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)w[i] - expected[i]) <= 1e-6 * largest))
            fail_msg("weight %zu is %g, expected %g", i, (double)w[i], expected[i]);
    free(expected);
    free(w);
    free(again);
    vadditive_free(&x);
}

static void test_decode(void **state)
{
    (void)state;
    vptq_additive_shape s = vadditive_ragged();
    check_decoded(s);
    s.sparse = true;
    check_decoded(s);
    s.scale_columns = 0, s.out = 70, s.block_rows = 33;
    check_decoded(s);
    s = (vptq_additive_shape){.out = 40,
                              .in = 9,
                              .v = 1,
                              .stages = 1,
                              .bits = {1},
                              .block_rows = 1,
                              .block_columns = 4};
    check_decoded(s);
    s = (vptq_additive_shape){.out = 18,
                              .in = 32,
                              .v = 16,
                              .stages = 8,
                              .bits = {1, 2, 3, 4, 5, 6, 7, 16},
                              .block_rows = 18,
                              .block_columns = 32,
                              .scale_columns = 32};
    check_decoded(s);
}

static void test_decode_lattice(void **state)
{
    (void)state;
    vptq_additive_shape s = vadditive_lattice();
    check_decoded(s);
    s.rotated = false;
    check_decoded(s);
    s = vadditive_ragged(), s.scale_columns = 0, s.rotated = true; /* stored codebooks */
    check_decoded(s);
    s.out = 64, s.in = 36, s.block_rows = 50;
    check_decoded(s);
}

static vptq_status decode_with(void *arg, vptq_mem *mem, vptq_err *err)
{
    float w[12 * 40];
    const vptq_ctx ctx = {.mem = mem, .threads = 2};
    return vptq_additive_decode(&ctx, arg, w, err);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    vadditive x;
    vadditive_make(&x, vadditive_lattice(), VPTQ_F16);
    vtest_oom_walk(decode_with, &x.m.a);
    vadditive_free(&x);
}

VTEST_MAIN(cmocka_unit_test(test_bits_by_hand), cmocka_unit_test(test_shape_rules),
           cmocka_unit_test(test_decode), cmocka_unit_test(test_decode_lattice),
           cmocka_unit_test(test_out_of_memory))
