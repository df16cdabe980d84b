/* Tests the ops of array_ops.h on every device against loops over their definitions. Where an
 * op does no sums, all devices give the same bits. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

/* Sums are doubles in another order. */
static const double SUM_ERROR = 1e-13;

static void assert_near(double got, double want, double scale)
{
    if (!(fabs(got - want) <= SUM_ERROR * scale))
        fail_msg("%.17g, expected %.17g", got, want);
}

/* Calls an op of a device in a test. */
#define CALL(dev, op, ...)                                                                     \
    do {                                                                                       \
        vptq_err err_ = {0};                                                                   \
        assert_ok((dev)->ops->op((dev)->state, &__VA_ARGS__, &err_), &err_);                   \
    } while (0)

/* order[i] of n: a permutation without a pattern. */
static uint32_t scrambled(size_t i, size_t n)
{
    return (uint32_t)((i * 7 + 3) % n);
}

/* ---- checks and statistics ---- */

static void check_outside(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { MANY = 9001 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 2.5F, -2.5F};
    static const size_t places[] = {0, 1, 1023, 1024, 4095, 4096, 8192, MANY - 1};
    float *x = vtest_normals(MANY, 1);
    size_t first;
    (void)arg;
    (void)is_ref;
    for (size_t i = 0; i < MANY; i++)
        x[i] = fmaxf(-2, fminf(2, x[i]));
    const vptq_outside_args a = {.n = MANY, .x = x, .min = -2, .max = 2, .first = &first};
    CALL(dev, first_outside, a);
    assert_int_equal(first, MANY);
    x[MANY - 1] = NAN; /* a later one does not count */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const float kept = x[places[i]];
        x[places[i]] = bad[i % 5];
        CALL(dev, first_outside, a);
        assert_int_equal(first, places[i]);
        x[places[i]] = kept;
    }
    const vptq_outside_args none = {.x = x, .first = &first};
    CALL(dev, first_outside, none);
    assert_int_equal(first, 0);
    free(x);
}

static void check_norms(void *arg, const vptq_device *dev, bool is_ref)
{
    static const size_t shapes[][2] = {{1, 1}, {300, 70}, {257, 3}, {5, 300}};
    (void)arg;
    (void)is_ref;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t out = shapes[s][0], in = shapes[s][1];
        float *w = vtest_normals(out * in, s);
        double *bias = calloc(in, sizeof *bias), *scale = calloc(in, sizeof *scale);
        vptq_norms_args a = {.out = out, .in = in, .w = w, .bias = bias, .scale = scale};
        CALL(dev, column_norms, a);
        for (size_t c = 0; c < in; c++) {
            double mean = 0, square = 0;
            for (size_t r = 0; r < out; r++)
                mean += (double)w[r * in + c] / (double)out;
            for (size_t r = 0; r < out; r++)
                square += pow((double)w[r * in + c] - mean, 2) / (double)out;
            assert_near(bias[c], mean, 100);
            assert_near(scale[c], sqrt(square), 100);
        }
        a.range = true;
        CALL(dev, column_norms, a);
        for (size_t c = 0; c < in; c++) {
            float min = w[c], max = w[c];
            for (size_t r = 1; r < out; r++) {
                min = fminf(min, w[r * in + c]);
                max = fmaxf(max, w[r * in + c]);
            }
            assert_true(bias[c] == (double)min && scale[c] == (double)max - (double)min);
        }
        free(w);
        free(bias);
        free(scale);
    }
}

static void check_normalize(void *arg, const vptq_device *dev, bool is_ref)
{
    static const size_t shapes[][3] = {{1, 1, 1}, {33, 40, 36}, {64, 31, 64}, {70, 5, 72}};
    (void)arg;
    (void)is_ref;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t out = shapes[s][0], in = shapes[s][1], rows = shapes[s][2];
        float *w = vtest_normals(out * in, s), *z = vtest_alloc(in * (rows + 1), sizeof *z);
        float *scale = vtest_normals(in, 2), *bias = vtest_normals(in, 3);
        uint32_t *order = calloc(in, sizeof *order);
        for (size_t i = 0; i < in; i++)
            order[i] = scrambled(i, in);
        const vptq_normalize_args a = {.out = out,
                                       .in = in,
                                       .rows = rows,
                                       .w = w,
                                       .order = order,
                                       .scale = scale,
                                       .bias = bias,
                                       .z = z};
        memset(z, 0xff, in * rows * sizeof *z);
        CALL(dev, normalize, a);
        for (size_t i = 0; i < in; i++)
            for (size_t r = 0; r < rows; r++) {
                const size_t c = order[i];
                const float want = r < out ? (w[r * in + c] - bias[c]) / scale[c] : 0;
                assert_true(z[i * rows + r] == want);
            }
        free(w);
        free(z);
        free(scale);
        free(bias);
        free(order);
    }
}

/* ---- symmetric matrices ---- */

/* Chunks of a sum: the first is copied, the second added, whole rows or a triangle. */
static void check_packed_of(const vptq_device *dev, size_t rows, size_t n, bool lower)
{
    const size_t count = lower ? rows * (rows + 1) / 2 : rows * n;
    double *x = vtest_alloc(rows * n, sizeof *x), *sum = vtest_alloc(count + 1, sizeof *sum);
    vptq_packed_args a = {.rows = rows, .n = n, .x = x, .lower = lower, .packed = sum};
    for (size_t i = 0; i <= count; i++)
        sum[i] = (double)NAN; /* not read */
    for (int chunk = 0; chunk < 2; chunk++) {
        for (size_t i = 0; i < rows * n; i++)
            x[i] = ((double)i - 7) / (3 + chunk);
        a.first = chunk == 0;
        CALL(dev, add_packed, a);
    }
    const double *at = sum;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < (lower ? i + 1 : n); j++)
            assert_true(*at++ == ((double)(i * n + j) - 7) / 3 + ((double)(i * n + j) - 7) / 4);
    assert_true(isnan(*at));
    free(x);
    free(sum);
}

static void check_packed(void *arg, const vptq_device *dev, bool is_ref)
{
    (void)arg;
    (void)is_ref;
    check_packed_of(dev, 1, 1, true);
    check_packed_of(dev, 67, 67, true);
    check_packed_of(dev, 3, 5, true);
    check_packed_of(dev, 1, 9001, false);
    check_packed_of(dev, 33, 20, false);
}

static void check_metric_of(const vptq_device *dev, const vptq_metric_args *m)
{
    const size_t n = m->n;
    double *a = vtest_alloc(n * n, sizeof *a), *diag = vtest_alloc(n, sizeof *diag);
    float *h = vtest_alloc(n * n, sizeof *h), *u = vtest_alloc(n * n, sizeof *u);
    vptq_metric_args to_a = *m, to_h = *m, to_diag = *m;
    to_a.a = a;
    to_h.h = h;
    to_h.diag = diag;
    a[1 % n] = 77; /* above the diagonal: not written */
    CALL(dev, metric, to_a);
    CALL(dev, metric, to_h);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            const size_t at = m->reversed ? n - 1 - i : i, with = m->reversed ? n - 1 - j : j;
            const size_t o = m->order ? m->order[at] : at, p = m->order ? m->order[with] : with;
            const size_t high = o > p ? o : p, low = o > p ? p : o;
            double want = (double)m->lower[high * (high + 1) / 2 + low] / m->divisor;
            want += i == j ? m->ridge : 0;
            if (m->scale)
                want = (double)m->scale[o] * want * (double)m->scale[p];
            want += i == j ? m->damping : 0;
            assert_true(a[i * n + j] == want);
            assert_true(h[i * n + j] == (float)want && h[j * n + i] == (float)want);
            assert_true(i != j || diag[i] == want);
        }
    assert_true(n == 1 || a[1] == 77);
    memset(diag, 0, n * sizeof *diag);
    to_diag.diag = diag;
    CALL(dev, metric, to_diag);
    assert_true(diag[n - 1] == a[n * n - 1]);

    const vptq_upper_args upper = {.n = n, .a = a, .u = u};
    CALL(dev, reverse_upper, upper);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const float want = j < i ? 0 : (float)a[(n - 1 - i) * n + n - 1 - j];
            assert_true(u[i * n + j] == want);
        }
    free(a);
    free(diag);
    free(h);
    free(u);
}

static void check_metric(void *arg, const vptq_device *dev, bool is_ref)
{
    static const size_t sizes[] = {1, 2, 33, 50};
    (void)arg;
    (void)is_ref;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s];
        float *lower = vtest_normals(n * (n + 1) / 2, s), *scale = vtest_normals(n, 9);
        uint32_t *order = calloc(n, sizeof *order);
        for (size_t i = 0; i < n; i++)
            order[i] = scrambled(i, n);
        check_metric_of(dev, &(vptq_metric_args){.n = n, .lower = lower, .divisor = 1});
        check_metric_of(dev, &(vptq_metric_args){.n = n,
                                                 .lower = lower,
                                                 .order = order,
                                                 .scale = scale,
                                                 .divisor = 1,
                                                 .ridge = 0.25,
                                                 .damping = 0.125,
                                                 .reversed = true});
        check_metric_of(
            dev, &(vptq_metric_args){.n = n, .lower = lower, .divisor = 3, .ridge = 0.01});
        free(lower);
        free(scale);
        free(order);
    }
}

/* ---- matrices by columns ---- */

enum { COLS = 5, LD = 9000 };
static const size_t row_counts[] = {1, 255, 4096, 8999};

static void check_elements(void *arg, const vptq_device *dev, bool is_ref)
{
    float *x = vtest_normals(COLS * LD, 1), *y = vtest_normals(COLS * LD, 2);
    float *z = vtest_alloc(COLS * LD, sizeof *z), *f = vtest_normals(2 * COLS, 3);
    (void)arg;
    (void)is_ref;
    for (size_t k = 0; k < sizeof row_counts / sizeof *row_counts; k++) {
        const size_t rows = row_counts[k], valid = rows / 2;
        memset(z, 0, COLS * LD * sizeof *z);
        z[rows] = 7; /* between two columns */
        const vptq_subtract_args sub = {COLS, rows, x, y, z, LD, LD, LD};
        CALL(dev, subtract, sub);
        for (size_t i = 0; i < COLS * LD; i++)
            if (i % LD < rows)
                assert_true(z[i] == x[i] - y[i]);
        assert_true(z[rows] == 7);
        for (int in_place = 0; in_place < 2; in_place++) { /* z is x, or y */
            float *copy[2] = {vtest_normals(COLS * LD, 1), vtest_normals(COLS * LD, 2)};
            const vptq_subtract_args own = {COLS,           rows, copy[0], copy[1],
                                            copy[in_place], LD,   LD,      LD};
            CALL(dev, subtract, own);
            for (size_t i = 0; i < COLS * LD; i++)
                if (i % LD < rows)
                    assert_true(copy[in_place][i] == x[i] - y[i]);
            free(copy[0]);
            free(copy[1]);
        }
        for (int how = 0; how < 8; how++) {
            const vptq_affine_args a = {.cols = COLS,
                                        .rows = rows,
                                        .valid = valid,
                                        .x = how & 1 ? x : NULL,
                                        .a = how & 2 ? f : NULL,
                                        .b = how & 4 ? f + COLS : NULL,
                                        .y = z,
                                        .ldx = LD,
                                        .ldy = LD};
            memset(z, 0xff, COLS * LD * sizeof *z);
            z[rows] = 7;
            CALL(dev, affine, a);
            for (size_t t = 0; t < COLS; t++)
                for (size_t r = 0; r < rows; r++) {
                    float want = a.x ? x[t * LD + r] * (a.a ? f[t] : 1) : 0;
                    want += a.b ? f[COLS + t] : 0;
                    assert_true(z[t * LD + r] == (r < valid ? want : 0));
                }
            assert_true(z[rows] == 7);
        }
    }
    free(x);
    free(y);
    free(z);
    free(f);
}

static void check_dots(void *arg, const vptq_device *dev, bool is_ref)
{
    float *x = vtest_normals(COLS * LD, 4), *y = vtest_normals(COLS * LD, 5);
    double sums[COLS];
    (void)arg;
    (void)is_ref;
    for (size_t k = 0; k < sizeof row_counts / sizeof *row_counts; k++)
        for (int ones = 0; ones < 2; ones++) {
            const size_t rows = row_counts[k];
            const vptq_dots_args a = {COLS, rows, x, ones ? NULL : y, LD, LD, sums};
            CALL(dev, column_dots, a);
            for (size_t t = 0; t < COLS; t++) {
                double want = 0;
                for (size_t r = t * LD; r < t * LD + rows; r++)
                    want += (double)x[r] * (ones ? 1 : (double)y[r]);
                assert_near(sums[t], want, (double)rows);
            }
        }
    const vptq_dots_args empty = {COLS, 0, x, y, LD, LD, sums};
    CALL(dev, column_dots, empty);
    assert_true(sums[0] == 0 && sums[COLS - 1] == 0);
    free(x);
    free(y);
}

static void check_solve(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { T = 7, ROWS = 300, LDX = 310, LDU = 9 };
    float *x = vtest_normals(T * LDX, 6), *u = vtest_normals(T * LDU, 7);
    float *want = malloc(T * LDX * sizeof *want);
    (void)arg;
    (void)is_ref;
    assert_non_null(want);
    memcpy(want, x, T * LDX * sizeof *want);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t t = 0; t < T; t++) {
            for (size_t s = 0; s < t; s++)
                want[t * LDX + r] -= u[s * LDU + t] * want[s * LDX + r];
            want[t * LDX + r] /= u[t * LDU + t];
        }
    const vptq_solve_args a = {.cols = T, .rows = ROWS, .u = u, .x = x, .ldu = LDU, .ldx = LDX};
    CALL(dev, solve_upper, a);
    assert_same_f32(x, want, T * LDX);
    free(x);
    free(u);
    free(want);
}

/* ---- conjugate gradients ---- */

enum { UNKNOWNS = 5000 };

static double *doubles(uint64_t seed)
{
    float *x = vtest_normals(UNKNOWNS, seed);
    double *d = malloc(UNKNOWNS * sizeof *d);
    assert_non_null(d);
    for (size_t i = 0; i < UNKNOWNS; i++)
        d[i] = (double)x[i];
    free(x);
    return d;
}

static void check_conjugate(void *arg, const vptq_device *dev, bool is_ref)
{
    double *x = doubles(1), *r = doubles(2), *s = doubles(3), *d = doubles(4), *ad = doubles(5),
           *m = doubles(6), *x0 = doubles(1), *r0 = doubles(2), *d0 = doubles(4);
    float *f = vtest_normals(UNKNOWNS, 7), *f0 = vtest_normals(UNKNOWNS, 7);
    double sum, rho, dots = 0, norm = 0;
    (void)arg;
    (void)is_ref;
    const vptq_dot_args dot = {.n = UNKNOWNS, .x = d, .y = ad, .sum = &sum};
    const vptq_cg_step_args step = {.n = UNKNOWNS,
                                    .alpha = 0.7,
                                    .d = d,
                                    .ad = ad,
                                    .m = m,
                                    .x = x,
                                    .r = r,
                                    .s = s,
                                    .rho = &rho};
    m[17] = 0;
    CALL(dev, dot, dot);
    CALL(dev, cg_step, step);
    for (size_t i = 0; i < UNKNOWNS; i++) {
        dots += d[i] * ad[i];
        x0[i] += 0.7 * d[i];
        r0[i] -= 0.7 * ad[i];
        const double z = m[i] > 0 ? r0[i] / m[i] : 0;
        norm += r0[i] * z;
        assert_true(x[i] == x0[i] && r[i] == r0[i] && s[i] == z);
    }
    assert_near(sum, dots, UNKNOWNS);
    assert_near(rho, norm, 100 * fabs(norm));
    const vptq_cg_turn_args turn = {.n = UNKNOWNS, .beta = 0.3, .s = s, .d = d, .rounded = f};
    CALL(dev, cg_turn, turn);
    for (size_t i = 0; i < UNKNOWNS; i++) {
        d0[i] = s[i] + 0.3 * d0[i];
        assert_true(d[i] == d0[i] && f[i] == (float)d0[i]);
    }
    const vptq_add_args add = {.n = UNKNOWNS, .x = x, .y = f0};
    float *before = vtest_normals(UNKNOWNS, 7);
    CALL(dev, add_rounded, add);
    for (size_t i = 0; i < UNKNOWNS; i++)
        assert_true(f0[i] == (float)((double)before[i] + x[i]));
    const vptq_widen_args widen = {.n = UNKNOWNS, .x = f0, .sum = d0};
    const vptq_narrow_args narrow = {.n = UNKNOWNS, .divisor = 3, .x = d0, .y = before};
    CALL(dev, add_widened, widen);
    CALL(dev, narrow, narrow);
    for (size_t i = 0; i < UNKNOWNS; i++) {
        assert_true(d0[i] == d[i] + (double)f0[i]);
        assert_true(before[i] == (float)(d0[i] / 3));
    }
    void *const all[] = {x, r, s, d, ad, m, x0, r0, d0, f, f0, before};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- clustering ---- */

static void check_move(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { K = 300, V = 6 };
    double *sums = doubles(1), *weights = doubles(2);
    float *c = vtest_normals(K * V, 3), *c0 = vtest_normals(K * V, 3), before[K * V];
    double moved, want = 0;
    uint32_t empty, want_empty = 0;
    (void)arg;
    (void)is_ref;
    weights[5] = 0;
    const vptq_move_args a = {.k = K,
                              .v = V,
                              .sums = sums,
                              .weights = weights,
                              .centroids = c,
                              .before = before,
                              .moved = &moved,
                              .empty = &empty};
    CALL(dev, move_centroids, a);
    for (size_t j = 0; j < K; j++) {
        want_empty += !(weights[j] > 0);
        for (size_t e = j * V; e < (j + 1) * V; e++) {
            const double to = weights[j] > 0 ? sums[e] / weights[j] : (double)c0[e];
            assert_true(c[e] == (float)to && before[e] == c0[e]);
            want += pow(to - (double)c0[e], 2);
        }
    }
    assert_int_equal(empty, want_empty);
    assert_near(moved, want, 100 * want);
    free(sums);
    free(weights);
    free(c);
    free(c0);
}

typedef struct ranked {
    double loss;
    uint32_t at;
} ranked;

static int by_rank(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;
    if (a->loss < b->loss || a->loss > b->loss)
        return a->loss > b->loss ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Half of the vectors are copies, so that many losses are equal; a third lie on their centroid.
 */
static void check_worst(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { MANY = 700, K = 5, V = 3 };
    static const size_t counts[] = {1, 2, 10, 77, 300, MANY};
    float *x = vtest_normals(MANY * V, 1), *w = vtest_normals(MANY, 2);
    float *c = vtest_normals(K * V, 3);
    uint32_t idx[MANY], at[MANY];
    double loss[MANY];
    ranked want[MANY];
    (void)arg;
    (void)is_ref;
    for (uint32_t i = 0; i < MANY; i++) {
        idx[i] = i % K;
        w[i] = fabsf(w[i]);
        if (i % 10 >= 5) { /* a copy of the vector five before it, or of the first */
            memcpy(x + i * V, x + (i % 20 < 10 ? i - 5 : i % K) * V, V * sizeof *x);
            w[i] = w[i % 20 < 10 ? i - 5 : i % K];
        }
        if (i % 3 == 0)
            memcpy(x + i * V, c + idx[i] * V, V * sizeof *x);
    }
    for (int weighted = 0; weighted < 2; weighted++) {
        for (uint32_t i = 0; i < MANY; i++) {
            double sum = 0;
            for (size_t d = 0; d < V; d++) {
                const double diff = (double)x[i * V + d] - (double)c[idx[i] * V + d];
                sum += diff * diff;
            }
            want[i] = (ranked){weighted ? (double)w[i] * sum : sum, i};
        }
        qsort(want, MANY, sizeof *want, by_rank);
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            const vptq_worst_args a = {.n = MANY,
                                       .count = counts[k],
                                       .v = V,
                                       .k = K,
                                       .x = x,
                                       .w = weighted ? w : NULL,
                                       .idx = idx,
                                       .centroids = c,
                                       .loss = loss,
                                       .at = at};
            CALL(dev, worst_vectors, a);
            for (size_t i = 0; i < counts[k]; i++) {
                assert_true(loss[i] == want[i].loss);
                assert_true(!(loss[i] > 0) || at[i] == want[i].at);
            }
        }
    }
    free(x);
    free(w);
    free(c);
}

/* ---- packing ---- */

static void check_pack(void *arg, const vptq_device *dev, bool is_ref)
{
    static const unsigned shapes[][4] = {/* columns, vector rows, main bits, residual bits */
                                         {1, 1, 1, 0},    {33, 5, 12, 8}, {40, 300, 8, 0},
                                         {17, 3, 16, 16}, {9, 2, 5, 3},   {65, 7, 1, 1}};
    (void)arg;
    (void)is_ref;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const unsigned cols = shapes[s][0], rows = shapes[s][1], main = shapes[s][2],
                       bits = main + shapes[s][3];
        const size_t ldw = vptq_bits_words(cols, bits) + 1, n = (size_t)cols * rows;
        uint32_t *idx = calloc(n, sizeof *idx), *res = calloc(n, sizeof *res);
        uint32_t *column = calloc(cols, sizeof *column), *words = calloc(rows * ldw, 4);
        for (size_t i = 0; i < n; i++) {
            idx[i] = (uint32_t)(i * 2654435761u) >> (32 - main);
            res[i] = bits > main ? (uint32_t)(i * 40503u * 65537u) >> (32 - bits + main) : 0;
        }
        for (uint32_t e = 0; e < cols; e++)
            column[e] = scrambled(e, cols);
        for (int mapped = 0; mapped < 2; mapped++) {
            const vptq_pack_args a = {.cols = cols,
                                      .vector_rows = rows,
                                      .bits = bits,
                                      .main_bits = main,
                                      .idx = idx,
                                      .idx_res = bits > main ? res : NULL,
                                      .column = mapped ? column : NULL,
                                      .words = words,
                                      .ldw = ldw};
            memset(words, 0xff, rows * ldw * sizeof *words);
            CALL(dev, vq_pack, a);
            for (size_t i = 0; i < rows; i++)
                for (size_t e = 0; e < cols; e++) {
                    const size_t from = (mapped ? column[e] : e) * rows + i;
                    const uint32_t got = vptq_bits_get(words + i * ldw, e, bits);
                    assert_int_equal(got, idx[from] | (bits > main ? res[from] << main : 0));
                }
            const size_t used = (size_t)cols * bits; /* the rest of the last word is 0 */
            if (used % 32)
                assert_int_equal(words[ldw - 2] >> used % 32, 0);
            assert_true(rows == 1 || words[ldw - 1] == 0xffffffffu);
        }
        free(idx);
        free(res);
        free(column);
        free(words);
    }
}

/* ---- memory ---- */

static void check_memory(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { BYTES = 1000 };
    unsigned char host[BYTES], back[BYTES];
    void *p = NULL, *q = NULL;
    vptq_err err = {0};
    (void)arg;
    (void)is_ref;
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 7);
    assert_ok(dev->ops->alloc(dev->state, BYTES, 1, &p, &err), &err);
    assert_ok(dev->ops->alloc(dev->state, BYTES, 1, &q, &err), &err);
    assert_ok(dev->ops->upload(dev->state, p, host, BYTES, &err), &err);
    assert_ok(dev->ops->copy(dev->state, q, p, BYTES, &err), &err);
    assert_ok(dev->ops->clear(dev->state, q, BYTES / 2, &err), &err);
    assert_ok(dev->ops->download(dev->state, back, q, BYTES, &err), &err);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(back[i], i < BYTES / 2 ? 0 : host[i]);
    dev->ops->release(dev->state, p);
    dev->ops->release(dev->state, q);
}

static void test_array_ops(void **state)
{
    static const devices_fn checks[] = {
        check_outside,  check_norms, check_normalize, check_packed,    check_metric,
        check_elements, check_dots,  check_solve,     check_conjugate, check_move,
        check_worst,    check_pack,  check_memory};
    (void)state;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        devices_each_emu(checks[i], NULL);
}

VTEST_MAIN(cmocka_unit_test(test_array_ops))
