/* Tests packed matrices on the CUDA backend, under the emulator: every kernel of vq_gemv with
 * every way to store codebooks, against sums in double over a matrix decoded here; the same
 * bits in every order of threads; memory; handles. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/cuda/plan_table.h"
#include "tests/emu/emu.h"
#include "tests/support/devices.h"
#include "tests/support/vmatrix.h"

enum { GAP_X = 5, GAP_Y = 3 };

/* VPTQ_CUDA_GEMV; NULL: the planner's choice */
static void choose_kernel(const char *name)
{
    if (name)
        setenv("VPTQ_CUDA_GEMV", name, 1);
    else
        unsetenv("VPTQ_CUDA_GEMV");
}

typedef struct product {
    const vmatrix *m;
    const float *decoded; /* [out, in] */
    const float *x;       /* [rows, in + GAP_X] */
    const float *bias;    /* [out] */
} product;

/* Moves values to codes in -127..127 times `scale`, each code of them about equally often. */
static void put_on_grid(float *c, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        c[i] = (float)((int)(i * 61 % 255) - 127) * scale;
}

static void product_open(product *p, vmatrix *m, const vptq_vq_shape *s, size_t rows, bool grid)
{
    vptq_err err;
    assert_ok(vptq_vq_shape_check(s, &err), &err);
    vmatrix_make(m, s);
    for (size_t g = 0; g < s->groups && grid; g++) { /* every group has its own scale */
        const size_t main = (size_t)s->k * s->v, res = (size_t)s->k_res * s->v;
        put_on_grid(m->centroids + g * main, main, ldexpf((float)(9 + g), -9));
        put_on_grid(m->res_centroids + g * res, res, ldexpf((float)(15 - g), -13));
    }
    float *w = vtest_alloc((size_t)s->out * s->in, sizeof *w);
    vmatrix_decode(m, w);
    *p = (product){.m = m,
                   .decoded = w,
                   .x = vtest_normals(rows * (s->in + GAP_X), 21),
                   .bias = vtest_normals(s->out, 22)};
}

static void product_close(product *p, vmatrix *m)
{
    union {
        const float *from;
        float *p;
    } all[] = {{p->decoded}, {p->x}, {p->bias}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i].p);
    vmatrix_free(m);
}

static float before(size_t i)
{
    return (float)(i % 11);
}

/* y [n, out + GAP_Y]; starts as NaN without beta. */
static vptq_status multiply(const product *p, const vptq_device *dev, const vptq_matrix *m,
                            size_t n, bool more, float *y, vptq_err *err)
{
    const vptq_vq_shape *s = &p->m->q.shape;
    const size_t ldy = s->out + GAP_Y;
    for (size_t i = 0; i < n * ldy; i++)
        y[i] = more ? before(i) : NAN;
    const vptq_gemv_args g = {.n = n,
                              .x = p->x,
                              .y = y,
                              .ldx = s->in + GAP_X,
                              .ldy = ldy,
                              .beta = more ? 1 : 0,
                              .bias = more ? p->bias : NULL};
    return dev->ops->vq_gemv(dev->state, m, &g, err);
}

static bool is_kernel(const char *kernel, const char *name)
{
    return kernel && strncmp(kernel, name, strlen(name)) == 0;
}

/* Up to 8 tokens are split into two halves of 11 bits relative to the largest of the row. More
 * tokens have one half, and every term has a relative error of at most 2^-12. Codebooks are
 * exact; gemm-small adds main and residual centroids in 11 bits, another 2^-12. Decoded rows
 * are multiplied in float. */
static double limit_of(const char *kernel, size_t n)
{
    if (is_kernel(kernel, "gemv-grid")) /* x has 31 bits relative to the largest of the row */
        return 1e-6;
    if (is_kernel(kernel, "gemm-small") || (!kernel && n > 8))
        return 2.6e-4;
    return n > 8 && n <= 16 && !is_kernel(kernel, "gemm-dequant") ? 1.3e-4 : 2e-6;
}

static void check_values(const product *p, const char *kernel, size_t n, bool more,
                         const float *y)
{
    const vptq_vq_shape *s = &p->m->q.shape;
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < s->out + GAP_Y; r++) {
            const size_t at = i * (s->out + GAP_Y) + r;
            if (r >= s->out) { /* the gap after the row is not written */
                assert_true(more ? y[at] == before(at) : isnan(y[at]));
                continue;
            }
            double want = more ? (double)before(at) + (double)p->bias[r] : 0;
            double size = fabs(want);
            for (size_t j = 0; j < s->in; j++) {
                double term =
                    (double)p->decoded[r * s->in + j] * (double)p->x[i * (s->in + GAP_X) + j];
                want += term;
                size += 2 * fabs(term); /* a scaled value and a bias may cancel */
            }
            if (!(fabs((double)y[at] - want) <= limit_of(kernel, n) * size + 1e-12))
                fail_msg("row %zu of %zu, element %zu is %g, expected %g", i, n, r,
                         (double)y[at], want);
        }
}

/* ---- kernels ---- */

typedef struct kernel_case {
    vptq_vq_shape shape;
    bool large; /* codebooks do not fit into shared memory */
} kernel_case;

/* Multiplies n tokens into y. */
static void check_rows(const product *p, const kernel_case *c, const char *kernel, size_t n,
                       uint64_t seed, float *y)
{
    devices_one d;
    vptq_matrix *m = NULL;
    vptq_err err;
    const bool more = n % 2 == 0;
    cuda_emu_seed(seed);
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1 + (int)seed);
    assert_ok(d.dev.ops->matrix_open(d.dev.state, &p->m->q, &m, &err), &err);
    vptq_status st = multiply(p, &d.dev, m, n, more, y, &err);
    if (c->large &&
        (is_kernel(kernel, "gemm-small") || (is_kernel(kernel, "gemv-smem") && n <= 16))) {
        assert_fails(st, VPTQ_E_UNSUPPORTED, &err, "of shared memory");
    } else {
        assert_ok(st, &err);
        check_values(p, kernel, n, more, y);
        if (seed) { /* blocks that share rows find the state that earlier blocks left */
            float *again = vtest_alloc(n * (c->shape.out + GAP_Y), sizeof *again);
            assert_ok(multiply(p, &d.dev, m, n, more, again, &err), &err);
            assert_memory_equal(again, y, n * (c->shape.out + GAP_Y) * sizeof *y);
            free(again);
        }
    }
    d.dev.ops->matrix_close(d.dev.state, m);
    devices_close(&d);
    cuda_emu_seed(0);
}

/* Tests one kernel with numbers of rows that it treats differently: the first with two orders
 * of threads, large ones with three. */
static void check_kernel(const product *p, const kernel_case *c, const char *kernel,
                         const size_t *rows, size_t count)
{
    size_t most = 0;
    for (size_t i = 0; i < count; i++)
        most = rows[i] > most ? rows[i] : most;
    const size_t size = most * (c->shape.out + GAP_Y);
    float *y = vtest_alloc(size, sizeof *y), *first = vtest_alloc(size, sizeof *y);
    choose_kernel(kernel);
    for (size_t i = 0; i < count; i++) {
        check_rows(p, c, kernel, rows[i], 0, first);
        const size_t bytes = rows[i] * (c->shape.out + GAP_Y) * sizeof *y;
        for (uint64_t seed = 1; seed < (count > 3 ? 3 : 2) && i == 0; seed++) {
            check_rows(p, c, kernel, rows[i], seed, y);
            if (!c->large)
                assert_memory_equal(y, first, bytes);
        }
    }
    choose_kernel(NULL);
    free(y);
    free(first);
}

static void products_with_every_kernel(void **state)
{
    (void)state;
    static const size_t all[] = {3, 1, 4, 5, 8, 9, 16}, some[] = {8, 1, 9}, planned[] = {3, 17},
                        more[] = {9};
    /* out, in, v, k, k_res, groups, group_size, outliers, v0, k0, perm, norm */
    static const kernel_case cases[] = {
        {{20, 40, 2, 16, 4, 1, 40, 0, 0, 0, false, true, false}, false},
        {{17, 130, 3, 8, 2, 1, 130, 0, 0, 0, true, true, false}, false},
        {{40, 150, 4, 256, 0, 1, 150, 0, 0, 0, true, false, false}, false},
        {{37, 70, 5, 16, 16, 1, 70, 0, 0, 0, false, true, false}, false},
        {{50, 200, 6, 256, 0, 1, 200, 0, 0, 0, false, false, false}, false},
        {{61, 60, 7, 64, 512, 1, 60, 0, 0, 0, false, true, false}, false},
        {{100, 300, 8, 256, 256, 1, 300, 0, 0, 0, true, true, false}, false},
        {{30, 90, 11, 32, 32, 1, 90, 0, 0, 0, false, true, false}, false},
        {{70, 140, 12, 256, 64, 1, 140, 0, 0, 0, true, true, false}, false},
        {{70, 90, 16, 64, 1024, 1, 90, 0, 0, 0, false, true, false}, false},
        {{45, 33, 21, 16, 8, 1, 33, 0, 0, 0, false, false, false}, false},
        {{36, 600, 8, 64, 16, 4, 150, 0, 0, 0, true, true, false}, false},
        {{44, 164, 8, 64, 16, 4, 33, 32, 4, 16, true, true, false}, false},
        {{41, 45, 6, 64, 0, 4, 10, 5, 12, 256, false, true, false}, false},
        {{40, 60, 4, 16, 2, 1, 50, 10, 8, 65536, true, true, false}, false},
        {{13, 19, 1, 4, 2, 1, 19, 0, 0, 0, false, true, false}, false},
        {{16, 40, 8, 16384, 256, 1, 40, 0, 0, 0, false, true, false}, true},
        {{24, 30, 12, 4096, 8192, 1, 30, 0, 0, 0, true, true, false}, true},
        {{1, 1, 8, 2, 0, 1, 1, 0, 0, 0, false, false, false}, false},
        /* several blocks for the same rows; several passes; one and a half copies of a
         * codebook */
        {{20, 700, 8, 16, 16, 1, 700, 0, 0, 0, true, true, false}, false},
        {{33, 1400, 4, 16, 0, 1, 1200, 200, 8, 16, false, true, false}, false},
        {{64, 6300, 8, 16, 4, 1, 6300, 0, 0, 0, true, true, false}, false},
        {{64, 4200, 12, 16, 512, 1, 4200, 0, 0, 0, false, false, false}, false},
        {{64, 140, 8, 8192, 256, 1, 140, 0, 0, 0, false, true, false}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        product p;
        vmatrix m;
        product_open(&p, &m, &cases[i].shape, 17, false);
        const kernel_case *c = &cases[i];
        const bool is_long = (size_t)c->shape.out * c->shape.in > 20000;
        check_kernel(&p, c, "gemv-smem", is_long ? some : all, is_long ? 3 : 7);
        check_kernel(&p, c, "gemv-smem:1", some, is_long ? 0 : 3);
        check_kernel(&p, c, "gemv-smem:2", some, i % 4 ? 0 : 3);
        check_kernel(&p, c, "gemv-direct", some, 3);
        check_kernel(&p, c, "gemm-dequant", some, i % 8 ? 0 : 1);
        check_kernel(&p, c, "gemm-small", more, i % 4 == 1);
        check_kernel(&p, c, NULL, planned, i % 4 ? 1 : 2);
        product_close(&p, &m);
    }
}

/* Every kernel forced with every number of copies of its codebooks; on a GPU with the published
 * codebooks, whose copies fill the shared memory. */
static void products_with_every_number_of_copies(void **state)
{
    (void)state;
    static const char *const names[] = {"gemv-smem", "gemv-direct", "gemm-small",
                                        "gemm-dequant"};
    static const size_t few[] = {1}, some[] = {1, 5, 8, 9, 16}, many[] = {9, 33, 130};
    static const kernel_case cases[] = {
        {{24, 140, 8, 64, 16, 1, 140, 0, 0, 0, false, true, false}, false},
        {{264, 517, 8, 4096, 256, 1, 517, 0, 0, 0, true, true, false}, false},
        {{264, 517, 8, 8192, 512, 1, 517, 0, 0, 0, false, true, false}, false},
        {{300, 1100, 6, 4096, 0, 1, 1100, 0, 0, 0, true, true, false}, false},
        {{300, 1100, 12, 4096, 512, 1, 1100, 0, 0, 0, true, true, false}, false},
    };
    const bool all = devices_only() && strcmp(devices_gpu(), "emu") != 0;
    for (size_t i = 0; i < (all ? sizeof cases / sizeof *cases : 1); i++) {
        product p;
        vmatrix m;
        product_open(&p, &m, &cases[i].shape, 130, false);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            for (int copies = n < 2 ? VPTQ_CUDA_MAX_COPIES : 0; copies >= 0; copies--) {
                char name[32];
                snprintf(name, sizeof name, copies ? "%s:%d" : "%s", names[n], copies);
                if (!all)
                    check_kernel(&p, &cases[i], name, few, 1);
                else
                    check_kernel(&p, &cases[i], name, n < 2 ? some : many, n < 2 ? 5 : 3);
            }
        product_close(&p, &m);
    }
}

/* Codebooks on int8 grids: every number of copies, and what the other kernels make of the
 * codes.
 */
static void products_on_grids(void **state)
{
    (void)state;
    static const size_t rows[] = {1, 3, 16}, one[] = {1}, planned[] = {1, 17};
    static const vptq_vq_shape shapes[] = {
        {100, 300, 8, 256, 256, 1, 300, 0, 0, 0, true, true, false},
        {37, 70, 5, 16, 16, 1, 70, 0, 0, 0, false, true, false},
        {50, 200, 6, 256, 0, 1, 200, 0, 0, 0, false, false, false},
        {61, 60, 7, 64, 512, 1, 60, 0, 0, 0, false, true, false},
        {1, 1, 8, 2, 0, 1, 1, 0, 0, 0, false, false, false},
        /* groups; several blocks for the same rows; many chunks; parts of copies */
        {36, 600, 8, 64, 16, 4, 150, 0, 0, 0, true, true, false},
        {20, 700, 8, 16, 16, 1, 700, 0, 0, 0, true, true, false},
        {330, 900, 8, 16, 512, 1, 900, 0, 0, 0, false, false, false},
        {64, 140, 8, 8192, 256, 1, 140, 0, 0, 0, false, true, false},
        /* tables that fill the memory of a block */
        {16, 24, 8, 8192, 512, 1, 24, 0, 0, 0, false, true, false},
        /* on a GPU: copies that fill the shared memory */
        {264, 517, 8, 4096, 256, 1, 517, 0, 0, 0, true, true, false},
        {264, 4517, 8, 8192, 512, 1, 4517, 0, 0, 0, false, true, false},
    };
    const bool all = devices_only() && strcmp(devices_gpu(), "emu") != 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes - (all ? 0 : 2); i++) {
        product p;
        vmatrix m;
        const kernel_case c = {shapes[i], false};
        product_open(&p, &m, &c.shape, 17, true);
        check_kernel(&p, &c, "gemv-grid", rows, shapes[i].in > 500 ? 1 : 3);
        for (int copies = 1; copies <= VPTQ_CUDA_MAX_COPIES; copies++) {
            char name[32];
            snprintf(name, sizeof name, "gemv-grid:%d", copies);
            check_kernel(&p, &c, name, one, 1);
        }
        check_kernel(&p, &c, "gemv-smem", one, i % 3 == 0);
        check_kernel(&p, &c, NULL, planned, 2);
        product_close(&p, &m);
    }
}

/* Many tokens: every way to divide fragments, columns and tokens among warps and blocks. */
static void products_with_more_rows(void **state)
{
    (void)state;
    static const struct {
        vptq_vq_shape shape;
        size_t rows[3];
        const char *kernel;
    } cases[] = {
        /* several chunks; x in one block, in two, in all */
        {{24, 300, 8, 16, 4, 1, 300, 0, 0, 0, true, true, false}, {17, 64, 256}, "gemm-small"},
        /* groups and outliers with their own tables, which the layout copies */
        {{40, 164, 8, 64, 16, 4, 33, 32, 4, 16, true, true, false}, {9, 130, 0}, NULL},
        {{40, 300, 8, 4096, 256, 2, 150, 0, 0, 0, true, true, false}, {17, 64, 0}, NULL},
        {{30, 140, 8, 8192, 256, 1, 140, 0, 0, 0, false, true, false}, {100, 0, 0}, NULL},
        {{40, 60, 4, 16, 2, 1, 50, 10, 8, 65536, true, true, false}, {17, 64, 0}, NULL},
        {{40, 70, 12, 4096, 512, 1, 70, 0, 0, 0, true, false, false}, {33, 0, 0}, NULL},
        {{13, 19, 1, 4, 2, 1, 19, 0, 0, 0, false, true, false}, {17, 130, 256}, NULL},
        /* blocks that share columns; more fragments than the warps of a block have at once */
        {{20, 700, 5, 16, 16, 1, 700, 0, 0, 0, true, true, false}, {9, 64, 0}, "gemm-small"},
        {{1100, 20, 8, 64, 0, 1, 20, 0, 0, 0, false, false, false}, {20, 0, 0}, "gemm-small"},
        {{330, 50, 21, 16, 8, 1, 50, 0, 0, 0, true, true, false}, {17, 0, 0}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        product p;
        vmatrix m;
        const kernel_case c = {cases[i].shape, false};
        product_open(&p, &m, &c.shape, 256, false);
        size_t count = 1;
        while (count < 3 && cases[i].rows[count])
            count++;
        check_kernel(&p, &c, cases[i].kernel, cases[i].rows, count);
        product_close(&p, &m);
    }
}

/* ---- tokens ---- */

/* Computes y [n, out] for rows `first` and following of x [*, in]. */
static void multiply_rows(const vptq_device *dev, const vptq_matrix *m, const vptq_vq_shape *s,
                          const float *x, size_t n, float *y)
{
    vptq_err err;
    const vptq_gemv_args g = {.n = n, .x = x, .y = y, .ldx = s->in, .ldy = s->out};
    assert_ok(dev->ops->vq_gemv(dev->state, m, &g, &err), &err);
}

/* The result for a row depends on the number of rows, not on their values or its position. */
static void rows_do_not_depend_on_others(void **state)
{
    (void)state;
    enum { IN = 260, OUT = 40, MAX_ROWS = 40 };
    const vptq_vq_shape s = {OUT, IN, 8, 64, 16, 1, IN, 0, 0, 0, true, true, false};
    static const size_t counts[] = {4, 8, 16, 40};
    devices_one d;
    vptq_err err;
    vmatrix m;
    vptq_matrix *matrix = NULL;
    float *x = vtest_normals(MAX_ROWS * IN, 31),
          *turned = vtest_alloc(MAX_ROWS * IN, sizeof *x);
    float y[MAX_ROWS * OUT], other[MAX_ROWS * OUT];
    vmatrix_make(&m, &s);
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    assert_ok(d.dev.ops->matrix_open(d.dev.state, &m.q, &matrix, &err), &err);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const size_t n = counts[i];
        for (size_t r = 0; r < n; r++)
            memcpy(turned + (n - 1 - r) * IN, x + r * IN, IN * sizeof *x);
        turned[0] = NAN; /* the last row of x */
        if (n > 4)
            turned[2 * IN + 7] = INFINITY;
        multiply_rows(&d.dev, matrix, &s, x, n, y);
        multiply_rows(&d.dev, matrix, &s, turned, n, other);
        for (size_t r = 0; r < n; r++)
            for (size_t c = 0; c < OUT; c++) {
                const float got = other[(n - 1 - r) * OUT + c];
                if (r == n - 1)
                    assert_true(isnan(got));
                else if (r == n - 3 && n > 4)
                    assert_true(!isfinite(got));
                else
                    assert_memory_equal(&got, &y[r * OUT + c], sizeof got);
            }
        /* fewer rows of the same class */
        multiply_rows(&d.dev, matrix, &s, x, n - 1, other);
        assert_memory_equal(other, y, (n - 1) * OUT * sizeof *y);
    }
    d.dev.ops->matrix_close(d.dev.state, matrix);
    devices_close(&d);
    vmatrix_free(&m);
    free(x);
    free(turned);
}

/* Digits cannot express infinity and NaN: every result of the token becomes NaN. */
static void grids_pass_on_what_is_not_a_number(void **state)
{
    (void)state;
    const vptq_vq_shape s = {40, 260, 8, 64, 16, 1, 260, 0, 0, 0, false, false, false};
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    product p;
    vmatrix m;
    devices_one d;
    vptq_err err;
    vptq_matrix *matrix = NULL;
    float y[3 * 40], *x = vtest_normals((size_t)3 * s.in, 31);
    product_open(&p, &m, &s, 1, true);
    choose_kernel("gemv-grid");
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    assert_ok(d.dev.ops->matrix_open(d.dev.state, &m.q, &matrix, &err), &err);
    for (size_t w = 0; w < 3; w++) {
        x[s.in + 7] = wrong[w]; /* the second of three tokens */
        multiply_rows(&d.dev, matrix, &s, x, 3, y);
        for (size_t i = 0; i < 3 * (size_t)s.out; i++)
            assert_true(i / s.out == 1 ? isnan(y[i]) : isfinite(y[i]));
    }
    d.dev.ops->matrix_close(d.dev.state, matrix);
    devices_close(&d);
    choose_kernel(NULL);
    product_close(&p, &m);
    free(x);
}

/* Codebooks and tokens are scaled to float16 only by powers of two. */
static void scaling_by_powers_of_two(void **state)
{
    (void)state;
    enum { IN = 200, OUT = 33, ROWS = 3 };
    const vptq_vq_shape s = {OUT, IN, 8, 64, 16, 1, IN, 0, 0, 0, false, false, false};
    devices_one d;
    vptq_err err;
    vmatrix m;
    float *x = vtest_normals(ROWS * IN, 33), y[ROWS * OUT], scaled[ROWS * OUT];
    static const int up[] = {70, -70, 0};
    vmatrix_make(&m, &s);
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    for (int times = 0; times < 2; times++) {
        vptq_matrix *matrix = NULL;
        assert_ok(d.dev.ops->matrix_open(d.dev.state, &m.q, &matrix, &err), &err);
        multiply_rows(&d.dev, matrix, &s, x, ROWS, times ? scaled : y);
        d.dev.ops->matrix_close(d.dev.state, matrix);
        for (size_t i = 0; i < (size_t)s.k * s.v; i++)
            m.centroids[i] = ldexpf(m.centroids[i], 30);
        for (size_t i = 0; i < (size_t)s.k_res * s.v; i++)
            m.res_centroids[i] = ldexpf(m.res_centroids[i], 30);
        for (size_t i = 0; i < ROWS * IN; i++)
            x[i] = ldexpf(x[i], up[i / IN]);
    }
    for (size_t i = 0; i < ROWS * OUT; i++)
        assert_true(scaled[i] == ldexpf(y[i], 30 + up[i / OUT]));
    assert_true(isfinite(scaled[0]) && scaled[0] != 0);
    devices_close(&d);
    vmatrix_free(&m);
    free(x);
}

/* ---- handles and memory ---- */

static const vptq_vq_shape small = {20, 30, 4, 16, 4, 1, 26, 4, 4, 16, true, true, false};

/* A handle needs only the arrays; the structs that describe them may be freed. Two handles are
 * independent. */
static void handles_are_independent(void **state)
{
    (void)state;
    devices_one d;
    vptq_err err;
    vmatrix m;
    vptq_matrix *one = NULL, *two = NULL;
    float *x = vtest_normals(small.in, 34), *w = vtest_alloc(small.out * small.in, sizeof *w);
    float want[64], got[64];
    vmatrix_make(&m, &small);
    float *decoded = vtest_alloc(small.out * small.in, sizeof *w);
    vmatrix_decode(&m, decoded);
    const size_t before_open = cuda_emu_memory_used();
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    vptq_vq q = m.q;
    assert_ok(d.dev.ops->matrix_open(d.dev.state, &q, &one, &err), &err);
    assert_ok(d.dev.ops->matrix_open(d.dev.state, &q, &two, &err), &err);
    memset(&q, 0xff, sizeof q);
    assert_int_equal(cuda_emu_memory_used(),
                     before_open); /* nothing is allocated before the first use */
    multiply_rows(&d.dev, one, &small, x, 1, want);
    assert_ok(d.dev.ops->vq_dequant(d.dev.state, one, 0, small.out, w, small.in, &err), &err);
    assert_memory_equal(w, decoded, small.out * small.in * sizeof *w);
    d.dev.ops->matrix_close(d.dev.state, one);
    multiply_rows(&d.dev, two, &small, x, 1, got);
    assert_memory_equal(got, want, small.out * sizeof *want);
    d.dev.ops->matrix_close(d.dev.state, two);
    d.dev.ops->matrix_close(d.dev.state, NULL);
    devices_close(&d);
    assert_int_equal(cuda_emu_memory_used(), before_open);
    vmatrix_free(&m);
    free(x);
    free(w);
    free(decoded);
}

/* A full device gives an error and works again when memory is free. */
static void survives_a_full_device(void **state)
{
    (void)state;
    devices_skip_if_only();
    devices_one d;
    vptq_err err;
    vmatrix m;
    vptq_matrix *matrix = NULL;
    float y[64], x[64] = {1}, *w = vtest_alloc(small.out * small.in, sizeof *w);
    vmatrix_make(&m, &small);
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    assert_ok(d.dev.ops->matrix_open(d.dev.state, &m.q, &matrix, &err), &err);
    const vptq_gemv_args g = {.n = 1, .x = x, .y = y, .ldx = small.in, .ldy = small.out};
    cuda_emu_memory(4000); /* only the caller's arrays */
    assert_fails(d.dev.ops->vq_gemv(d.dev.state, matrix, &g, &err), VPTQ_E_NOMEM, &err,
                 "device memory");
    cuda_emu_memory(1500);
    assert_fails(d.dev.ops->vq_dequant(d.dev.state, matrix, 0, 5, w, small.in, &err),
                 VPTQ_E_NOMEM, &err, "device memory");
    cuda_emu_memory(0);
    assert_ok(d.dev.ops->vq_gemv(d.dev.state, matrix, &g, &err), &err);
    assert_ok(d.dev.ops->vq_dequant(d.dev.state, matrix, 0, 5, w, small.in, &err), &err);
    d.dev.ops->matrix_close(d.dev.state, matrix);
    devices_close(&d);
    vmatrix_free(&m);
    free(w);
}

static vptq_status run_all(void *arg, vptq_device *dev, vptq_err *err)
{
    const vmatrix *m = arg;
    vptq_matrix *matrix = NULL;
    vptq_status st = VPTQ_OK;
    void *x = NULL, *y = NULL;
    if (st)
        return st;
    VPTQ_TRY(dev->ops->alloc(dev->state, small.in, sizeof(float), &x, err));
    VPTQ_TRY(dev->ops->alloc(dev->state, small.out, sizeof(float), &y, err));
    VPTQ_TRY(dev->ops->matrix_open(dev->state, &m->q, &matrix, err));
    const vptq_gemv_args g = {.n = 1, .x = x, .y = y, .ldx = small.in, .ldy = small.out};
    VPTQ_TRY(dev->ops->vq_gemv(dev->state, matrix, &g, err));
out:
    dev->ops->release(dev->state, x);
    dev->ops->release(dev->state, y);
    dev->ops->matrix_close(dev->state, matrix);
    return st;
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    devices_skip_if_only();
    vmatrix m;
    vmatrix_make(&m, &small);
    assert_true(devices_oom_walk("emu", 2, run_all, &m) >= 5);
    assert_int_equal(cuda_emu_memory_used(), 0);
    vmatrix_free(&m);
}

static void kernels_are_named(void **state)
{
    (void)state;
    static const char *const wrong[] = {"smem", "gemv", "gemm", "gemv-smem-", ""};
    vmatrix m;
    vmatrix_make(&m, &small);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        devices_one d;
        vptq_err err;
        vptq_matrix *matrix = NULL;
        float y[64], x[64] = {1};
        const vptq_gemv_args g = {.n = 1, .x = x, .y = y, .ldx = small.in, .ldy = small.out};
        choose_kernel(wrong[i]);
        devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
        assert_ok(d.dev.ops->matrix_open(d.dev.state, &m.q, &matrix, &err), &err);
        assert_fails(d.dev.ops->vq_gemv(d.dev.state, matrix, &g, &err), VPTQ_E_ARG, &err,
                     "VPTQ_CUDA_GEMV is '");
        d.dev.ops->matrix_close(d.dev.state, matrix);
        devices_close(&d);
    }
    choose_kernel(NULL);
    vmatrix_free(&m);
}

VTEST_MAIN(cmocka_unit_test(products_with_every_kernel),
           cmocka_unit_test(products_with_every_number_of_copies),
           cmocka_unit_test(products_on_grids), cmocka_unit_test(products_with_more_rows),
           cmocka_unit_test(rows_do_not_depend_on_others),
           cmocka_unit_test(grids_pass_on_what_is_not_a_number),
           cmocka_unit_test(scaling_by_powers_of_two),
           cmocka_unit_test(handles_are_independent), cmocka_unit_test(survives_a_full_device),
           cmocka_unit_test(survives_every_failed_allocation),
           cmocka_unit_test(kernels_are_named))
