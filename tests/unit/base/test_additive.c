/* Tests the shape, size and decoding of matrices of additive codes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/additive.h"
#include "lib/base/hadamard.h"
#include "lib/base/lattice.h"
#include "lib/base/rng.h"
#include "tests/support/vtest.h"

/* 3 vectors of 4 columns in a block of 2 x 12, the last ones of 1 row and 8 columns. */
static vptq_additive_shape ragged(void)
{
    return (vptq_additive_shape){.out = 5,
                                 .in = 20,
                                 .v = 4,
                                 .stages = 2,
                                 .bits = {3, 5},
                                 .block_rows = 2,
                                 .block_columns = 12,
                                 .scale_columns = 8};
}

static vptq_additive_shape lattice(void)
{
    return (vptq_additive_shape){.out = 12,
                                 .in = 40,
                                 .v = 8,
                                 .stages = 2,
                                 .bits = {16, 8},
                                 .block_rows = 12,
                                 .block_columns = 40,
                                 .lattice = true,
                                 .rotated = true};
}

/* ---- sizes ---- */

static void test_bits_by_hand(void **state)
{
    (void)state;
    vptq_additive_shape s = ragged();
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
    s = lattice();
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
    vptq_additive_shape s = ragged();
    assert_ok(vptq_additive_shape_check(&s, &err), &err);
    s = ragged(), s.out = 0, refuse(s, "0 x 20");
    s = ragged(), s.in = UINT32_C(1) << 31, refuse(s, "2147483648");
    s = ragged(), s.v = 0, refuse(s, "vector length 0");
    s = ragged(), s.v = 17, s.in = 17, refuse(s, "vector length 17");
    s = ragged(), s.v = 3, refuse(s, "does not divide 20");
    s = ragged(), s.stages = 0, refuse(s, "0 codebooks");
    s = ragged(), s.stages = 9, refuse(s, "9 codebooks");
    s = ragged(), s.bits[1] = 0, refuse(s, "codes of 0 bits");
    s = ragged(), s.bits[0] = 17, refuse(s, "codes of 17 bits");
    s = ragged(), s.block_rows = 0, refuse(s, "blocks of 0 rows");
    s = ragged(), s.block_rows = 6, refuse(s, "blocks of 6 rows");
    s = ragged(), s.block_columns = 0, refuse(s, "blocks of 0 columns");
    s = ragged(), s.block_columns = 24, refuse(s, "blocks of 24 columns");
    s = ragged(), s.block_columns = 6, refuse(s, "blocks of 6 columns");
    s = ragged(), s.scale_columns = 24, refuse(s, "scales of 24 columns");
    s = ragged(), s.scale_columns = 6, refuse(s, "scales of 6 columns");
    s = ragged(), s.rotated = true, refuse(s, "rotated");
    s = lattice();
    assert_ok(vptq_additive_shape_check(&s, &err), &err);
    s = lattice(), s.v = 4, refuse(s, "length 4");
    s = lattice(), s.bits[1] = 15, refuse(s, "15 bits");
    s = lattice(), s.block_rows = 6, refuse(s, "6 x 40");
    s = lattice(), s.int8 = true, refuse(s, "8 bits");
    s = lattice(), s.sparse = true, refuse(s, "sparse");
    s = lattice(), s.rotated = false, s.scale_columns = 8, refuse(s, "scales");
}

/* ---- decoding ---- */

/* A matrix of random numbers; vtest_alloc'ed parts. */
typedef struct sample {
    vptq_additive a;
    uint32_t *codes[VPTQ_ADDITIVE_MAX_STAGES];
    float *codebooks[VPTQ_ADDITIVE_MAX_STAGES];
    float *scales;
    uint8_t *row_signs, *column_signs;
} sample;

static void make_stage(sample *x, uint32_t m)
{
    const vptq_additive_shape *s = &x->a.shape;
    const vptq_rng rng = vptq_rng_make(3, m, 0, VPTQ_RNG_TEST);
    const size_t words = vptq_additive_row_words(s, m);
    x->codes[m] = vtest_alloc(s->out * words, sizeof(uint32_t));
    for (size_t r = 0; r < s->out; r++)
        for (size_t t = 0; t < s->in / s->v; t++)
            vptq_bits_put(x->codes[m] + r * words, t, s->bits[m],
                          (uint32_t)vptq_rng_below(&rng, r * s->in + t, 1ULL << s->bits[m]));
    x->a.codes[m] = x->codes[m];
    x->a.stage_scales[m] = m ? 0.03F : 0.7F;
    if (s->lattice)
        return;
    const size_t numbers = ((size_t)1 << s->bits[m]) * s->v;
    x->codebooks[m] = vtest_normals(vptq_additive_blocks(s) * numbers, 5 + m);
    for (size_t b = 0; s->sparse && b < vptq_additive_blocks(s); b++)
        memset(x->codebooks[m] + b * numbers, 0, s->v * sizeof(float));
    x->a.codebooks[m] = x->codebooks[m];
}

static sample make(vptq_additive_shape s)
{
    sample x = {.a.shape = s};
    vptq_err err;
    assert_ok(vptq_additive_shape_check(&s, &err), &err);
    for (uint32_t m = 0; m < s.stages; m++)
        make_stage(&x, m);
    if (s.scale_columns)
        x.a.scales = x.scales =
            vtest_normals(s.out * ((s.in + s.scale_columns - 1) / s.scale_columns), 9);
    if (s.rotated) {
        x.a.row_signs = x.row_signs = vtest_alloc(s.out, 1);
        x.a.column_signs = x.column_signs = vtest_alloc(s.in, 1);
        for (size_t r = 0; r < s.out; r++)
            x.row_signs[r] = r * r % 3 == 1;
        for (size_t c = 0; c < s.in; c++)
            x.column_signs[c] = c * c % 7 == 1;
    }
    return x;
}

static void release(sample *x)
{
    for (uint32_t m = 0; m < x->a.shape.stages; m++) {
        free(x->codes[m]);
        free(x->codebooks[m]);
    }
    free(x->scales);
    free(x->row_signs);
    free(x->column_signs);
}

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
    sample x = make(s);
    const size_t n = (size_t)s.out * s.in;
    double *expected = naive(&x.a);
    float *w = vtest_alloc(n, sizeof *w), *again = vtest_alloc(n, sizeof *again);
    const vptq_ctx one = {.threads = 1}, four = {.threads = 4};
    assert_ok(vptq_additive_decode(&one, &x.a, w, &err), &err);
    assert_ok(vptq_additive_decode(&four, &x.a, again, &err), &err);
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
    release(&x);
}

static void test_decode(void **state)
{
    (void)state;
    vptq_additive_shape s = ragged();
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
    vptq_additive_shape s = lattice();
    check_decoded(s);
    s.rotated = false;
    check_decoded(s);
    s = ragged(), s.scale_columns = 0, s.rotated = true; /* stored codebooks */
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
    sample x = make(lattice());
    vtest_oom_walk(decode_with, &x.a);
    release(&x);
}

VTEST_MAIN(cmocka_unit_test(test_bits_by_hand), cmocka_unit_test(test_shape_rules),
           cmocka_unit_test(test_decode), cmocka_unit_test(test_decode_lattice),
           cmocka_unit_test(test_out_of_memory))
