/* Tests the op vq_descend_output.  Most data are small integers, with which every backend
 * computes without rounding and must choose alike. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"
#include "tests/support/vcodebooks.h"

enum { BLOCK = VPTQ_OUTPUT_ROWS, GAP = 3 };

/* K, H, W and what the op gets. */
typedef struct output_case {
    size_t cols, rows;
    uint32_t v, k, k_res;
    float *centroids, *res;
    float *output; /* K; NaN past the end */
    double *h;     /* [cols, cols] symmetric */
    float *upper;  /* [cols, cols + GAP] of h, NaN elsewhere */
    float *w;      /* [cols, rows] */
    float *g, *q;  /* [cols, rows + GAP] */
    uint32_t *idx; /* [2][cols, rows / v + GAP] main, residual */
} output_case;

/* Arrays that the op writes, in one piece for devices_check. */
typedef struct output_result {
    float *q, *delta;
    uint32_t *idx, *res;
} output_result;

static size_t result_count(const output_case *a)
{
    return 2 * a->cols * (a->rows + GAP) + 2 * a->cols * (a->rows / a->v + GAP);
}

static output_result result_in(const output_case *a, void *out)
{
    output_result r = {.q = out};
    r.delta = r.q + a->cols * (a->rows + GAP);
    r.idx = (uint32_t *)(void *)(r.delta + a->cols * (a->rows + GAP));
    r.res = r.idx + a->cols * (a->rows / a->v + GAP);
    return r;
}

/* Normals, or integers of about that size. */
static float *numbers(size_t count, uint32_t seed, bool whole)
{
    float *x = vtest_normals(count + 1, seed);
    for (size_t i = 0; whole && i < count; i++)
        x[i] = roundf(1.5F * x[i]) + 0.0F; /* no -0 */
    return x;
}

static double entry(const output_case *a, size_t i, size_t j)
{
    return i / BLOCK == j / BLOCK ? (double)a->output[i * BLOCK + j % BLOCK] : 0;
}

static float decoded(const output_case *a, size_t e, uint32_t main, uint32_t res)
{
    const float c = a->centroids[main * a->v + e];
    return a->k_res ? c + a->res[res * a->v + e] : c;
}

/* K gets a heavy diagonal, and `apart` is its share of the rest.  H too; its third column is
 * that of a channel without inputs. */
static void make_forms(output_case *a, bool whole, float apart)
{
    const size_t blocks = (a->rows + BLOCK - 1) / BLOCK;
    float *m = numbers(blocks * BLOCK * BLOCK, 31, whole);
    float *n = numbers(a->cols * a->cols, 32, whole);
    a->output = vtest_alloc(blocks * BLOCK * BLOCK, sizeof *a->output);
    for (size_t i = 0; i < blocks * BLOCK; i++)
        for (size_t j = 0; j < BLOCK; j++) {
            const size_t r = i % BLOCK, first = r < j ? r : j, last = r < j ? j : r;
            const float other = m[(i / BLOCK * BLOCK + first) * BLOCK + last];
            const bool past = i >= a->rows || i / BLOCK * BLOCK + j >= a->rows;
            a->output[i * BLOCK + j] = past     ? NAN
                                       : r == j ? (apart > 0 ? 4.0F : 1.0F)
                                                : apart * fmaxf(-1, fminf(1, other));
        }
    for (size_t t = 0; t < a->cols; t++)
        for (size_t s = 0; s < a->cols; s++) {
            const double other = (double)n[(s < t ? s : t) * a->cols + (s < t ? t : s)];
            a->h[t * a->cols + s] = t == s ? 1 << t % 3 : fmax(-1, fmin(1, other));
            if (t == 2 || s == 2)
                a->h[t * a->cols + s] = 0;
            a->upper[t * (a->cols + GAP) + s] = s < t ? NAN : (float)a->h[t * a->cols + s];
        }
    if (a->cols > 3) /* even an indefinite H */
        a->upper[3 * (a->cols + GAP) + 3] = (float)(a->h[3 * a->cols + 3] = -1);
    free(m);
    free(n);
}

/* G = K E H */
static void make_gradient(output_case *a)
{
    const size_t ld = a->rows + GAP;
    double *eh = vtest_alloc(a->cols * a->rows, sizeof *eh);
    for (size_t t = 0; t < a->cols; t++)
        for (size_t i = 0; i < a->rows; i++)
            for (size_t s = 0; s < a->cols; s++)
                eh[t * a->rows + i] +=
                    a->h[s * a->cols + t] * (double)(a->q[s * ld + i] - a->w[s * a->rows + i]);
    for (size_t t = 0; t < a->cols; t++)
        for (size_t i = 0; i < a->rows; i++) {
            double sum = 0;
            for (size_t j = i / BLOCK * BLOCK; j < a->rows && j / BLOCK == i / BLOCK; j++)
                sum += entry(a, i, j) * eh[t * a->rows + j];
            a->g[t * ld + i] = (float)sum;
        }
    free(eh);
}

static output_case make(size_t cols, size_t vector_rows, uint32_t v, uint32_t k, uint32_t k_res,
                        bool whole, float apart)
{
    output_case a = {.cols = cols, .rows = vector_rows * v, .v = v, .k = k, .k_res = k_res};
    const size_t ld = a.rows + GAP, ldi = vector_rows + GAP;
    a.centroids = numbers((size_t)k * v, 33, whole);
    a.res = numbers((size_t)k_res * v, 34, whole);
    a.w = numbers(cols * a.rows, 35, whole);
    a.h = vtest_alloc(cols * cols, sizeof *a.h);
    a.upper = vtest_alloc(cols * (cols + GAP), sizeof *a.upper);
    a.g = vtest_alloc(cols * ld, sizeof *a.g);
    a.q = vtest_alloc(cols * ld, sizeof *a.q);
    a.idx = vtest_alloc(2 * cols * ldi, sizeof *a.idx);
    make_forms(&a, whole, apart);
    for (size_t t = 0; t < cols; t++)
        for (size_t i = 0; i < vector_rows; i++) {
            const size_t at = t * ldi + i;
            a.idx[at] = (uint32_t)((at * at + 7) % k);
            a.idx[cols * ldi + at] = k_res ? (uint32_t)(at * 5 % k_res) : 0;
            for (size_t e = 0; e < v; e++)
                a.q[t * ld + i * v + e] = decoded(&a, e, a.idx[at], a.idx[cols * ldi + at]);
        }
    make_gradient(&a);
    return a;
}

static void release(output_case *a)
{
    free(a->centroids);
    free(a->res);
    free(a->output);
    free(a->h);
    free(a->upper);
    free(a->w);
    free(a->g);
    free(a->q);
    free(a->idx);
}

static vptq_status descend(const output_case *a, const vptq_device *dev, void *out,
                           vptq_err *err)
{
    const output_result r = result_in(a, out);
    const size_t ldi = a->rows / a->v + GAP;
    const vptq_descend_output_args d = {.cols = a->cols,
                                        .rows = a->rows,
                                        .v = a->v,
                                        .k = a->k,
                                        .k_res = a->k_res,
                                        .centroids = a->centroids,
                                        .res_centroids = a->k_res ? a->res : NULL,
                                        .output = a->output,
                                        .g = a->g,
                                        .h = a->upper,
                                        .idx = r.idx,
                                        .idx_res = a->k_res ? r.res : NULL,
                                        .q = r.q,
                                        .delta = r.delta,
                                        .ldg = a->rows + GAP,
                                        .ldh = a->cols + GAP,
                                        .ldi = ldi,
                                        .ldq = a->rows + GAP,
                                        .ldd = a->rows + GAP};
    memset(out, 0, result_count(a) * sizeof *r.q);
    memcpy(r.q, a->q, a->cols * (a->rows + GAP) * sizeof *r.q);
    memcpy(r.idx, a->idx, 2 * a->cols * ldi * sizeof *r.idx);
    return dev->ops->vq_descend_output(dev->state, &d, err);
}

static void run(const vptq_device *dev, const void *arg, void *out)
{
    vptq_err err;
    assert_ok(descend(arg, dev, out, &err), &err);
}

/* ---- against the loss ---- */

/* tr(E H E^T K) of the blocks of K that a vector is in. */
static double loss_of(const output_case *a, const float *q, size_t row)
{
    const size_t first = row / BLOCK * BLOCK, last = (row + a->v - 1) / BLOCK * BLOCK + BLOCK;
    const size_t end = last < a->rows ? last : a->rows, ld = a->rows + GAP;
    double loss = 0;
    for (size_t t = 0; t < a->cols; t++) {
        double eh[2 * BLOCK] = {0};
        for (size_t s = 0; s < a->cols; s++)
            for (size_t i = first; i < end; i++)
                eh[i - first] +=
                    a->h[s * a->cols + t] * (double)(q[s * ld + i] - a->w[s * a->rows + i]);
        for (size_t i = first; i < end; i++) {
            const double e = (double)(q[t * ld + i] - a->w[t * a->rows + i]);
            for (size_t j = i / BLOCK * BLOCK; j < end && j / BLOCK == i / BLOCK; j++)
                loss += e * eh[j - first] * entry(a, i, j);
        }
    }
    return loss;
}

/* Sets the centroid `found` of one vector, after checking it against all others: the first of
 * the best, where the old one counts as first, if slack is 0; nearly the best otherwise. */
static void check_choice(const output_case *a, float *q, size_t t, size_t row, bool residual,
                         uint32_t *pair, uint32_t found, double slack)
{
    float *own = q + t * (a->rows + GAP) + row;
    const uint32_t old = pair[residual];
    uint32_t best = old;
    double least = loss_of(a, q, row), of_found = least;
    for (uint32_t c = 0; c < (residual ? a->k_res : a->k); c++) {
        pair[residual] = c;
        for (size_t e = 0; e < a->v; e++)
            own[e] = decoded(a, e, pair[0], pair[1]);
        const double loss = loss_of(a, q, row);
        best = loss < least ? c : best;
        least = loss < least ? loss : least;
        of_found = c == found ? loss : of_found;
    }
    if (slack > 0)
        assert_true(of_found <= least + slack);
    else
        assert_int_equal(found, best);
    pair[residual] = found;
    for (size_t e = 0; e < a->v; e++)
        own[e] = decoded(a, e, pair[0], pair[1]);
}

/* Repeats the choices one by one. */
static void check_result(const output_case *a, const output_result *r, double slack)
{
    const size_t ld = a->rows + GAP, ldi = a->rows / a->v + GAP;
    float *q = vtest_alloc(a->cols * ld, sizeof *q);
    memcpy(q, a->q, a->cols * ld * sizeof *q);
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t row = 0; row < a->rows; row += a->v) {
            const size_t at = t * ldi + row / a->v;
            uint32_t pair[2] = {a->idx[at], a->idx[a->cols * ldi + at]};
            if (!(a->h[t * a->cols + t] > 0)) {
                assert_int_equal(r->idx[at], pair[0]);
                assert_int_equal(r->res[at], pair[1]);
                continue;
            }
            check_choice(a, q, t, row, false, pair, r->idx[at], slack);
            if (a->k_res)
                check_choice(a, q, t, row, true, pair, r->res[at], slack);
        }
        assert_memory_equal(r->q + t * ld, q + t * ld, ld * sizeof *q); /* and the gap */
        for (size_t i = 0; i < ld; i++)
            assert_float_equal(r->delta[t * ld + i], q[t * ld + i] - a->q[t * ld + i], slack);
    }
    free(q);
}

static void test_takes_the_best_of_all_centroids(void **state)
{
    (void)state;
    static const struct {
        size_t cols, vector_rows;
        uint32_t v, k, k_res;
    } cases[] = {{1, 1, 8, 16, 0}, {4, 35, 2, 9, 0},   {5, 23, 3, 12, 5},  {4, 26, 6, 20, 0},
                 {5, 33, 6, 7, 9}, {5, 17, 8, 20, 0},  {4, 16, 8, 10, 11}, {3, 3, 64, 9, 4},
                 {4, 5, 40, 9, 0}, {2, 3, 8, 1025, 0}, {2, 2, 4, 5, 600}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        output_case a = make(cases[i].cols, cases[i].vector_rows, cases[i].v, cases[i].k,
                             cases[i].k_res, true, 1);
        void *out = vtest_alloc(result_count(&a), sizeof(float));
        devices_check_emu(
            &(devices_op){.run = run, .arg = &a, .count = 4 * result_count(&a), .size = 1},
            out);
        const output_result r = result_in(&a, out);
        check_result(&a, &r, 0);
        free(out);
        release(&a);
    }
}

static void check_normals(void *arg, const vptq_device *dev, bool is_ref)
{
    const output_case *a = arg;
    void *out = vtest_alloc(result_count(a), sizeof(float));
    (void)is_ref;
    run(dev, a, out);
    const output_result r = result_in(a, out);
    check_result(a, &r, 1e-4); /* of a loss of hundreds */
    free(out);
}

static void test_takes_nearly_the_best_of_normals(void **state)
{
    (void)state;
    for (uint32_t k_res = 0; k_res < 8; k_res += 7) {
        output_case a = make(4, 14, 6, 40, k_res, false, 0.3F);
        devices_each_emu(check_normals, &a);
        release(&a);
    }
}

/* ---- against vq_descend ---- */

static void check_identity(void *arg, const vptq_device *dev, bool is_ref)
{
    const output_case *a = arg;
    const vptq_codebooks codebooks = {
        .v = a->v, .k = a->k, .beam = 1, .centroids = a->centroids};
    void *out = vtest_alloc(result_count(a), sizeof(float));
    void *plain = vtest_alloc(result_count(a), sizeof(float));
    const output_result r = result_in(a, plain);
    vptq_search_index *index = vcodebooks_index(dev, &codebooks);
    vptq_err err;
    (void)is_ref;
    run(dev, a, out);
    memcpy(r.q, a->q, a->cols * (a->rows + GAP) * sizeof *r.q);
    memcpy(r.idx, a->idx, 2 * a->cols * (a->rows / a->v + GAP) * sizeof *r.idx);
    const vptq_descend_args d = {.cols = a->cols,
                                 .rows = a->rows,
                                 .index = index,
                                 .g = a->g,
                                 .h = a->upper,
                                 .idx = r.idx,
                                 .q = r.q,
                                 .delta = r.delta,
                                 .ldg = a->rows + GAP,
                                 .ldh = a->cols + GAP,
                                 .ldi = a->rows / a->v + GAP,
                                 .ldq = a->rows + GAP,
                                 .ldd = a->rows + GAP};
    assert_ok(dev->ops->vq_descend(dev->state, &d, &err), &err);
    dev->ops->search_index_close(dev->state, index);
    const output_result got = result_in(a, out);
    assert_memory_equal(got.q, r.q, a->cols * (a->rows + GAP) * sizeof *r.q);
    assert_memory_equal(got.idx, r.idx, a->cols * (a->rows / a->v + GAP) * sizeof *r.idx);
    for (size_t i = 0; i < a->cols * (a->rows + GAP); i++)
        assert_true(got.delta[i] == r.delta[i]);
    free(out);
    free(plain);
}

static void test_equals_vq_descend_if_k_is_the_identity(void **state)
{
    (void)state;
    for (uint32_t v = 2; v <= 8; v += 2) {
        output_case a = make(6, 37, v, 30, 0, true, 0);
        devices_each_emu(check_identity, &a);
        release(&a);
    }
}

/* ---- bits ---- */

static void test_gives_the_same_bits_at_any_level_and_for_any_threads(void **state)
{
    (void)state;
    devices_skip_if_only();
    output_case a = make(12, 330, 6, 300, 20, false, 0.3F); /* 11 units */
    const size_t bytes = result_count(&a) * sizeof(float);
    void *first = vtest_alloc(1, bytes), *out = vtest_alloc(1, bytes);
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++)
        for (int threads = 1; threads <= 4 && vptq_cpu_has((vptq_simd)simd); threads++) {
            devices_one d;
            devices_open(&d, "cpu", (vptq_simd)simd, threads);
            run(&d.dev, &a, simd || threads > 1 ? out : first);
            if (simd || threads > 1)
                assert_memory_equal(out, first, bytes);
            devices_close(&d);
        }
    free(first);
    free(out);
    release(&a);
}

/* ---- numbers that are not ---- */

static void check_nan(void *arg, const vptq_device *dev, bool is_ref)
{
    output_case *a = arg;
    const size_t ld = a->rows + GAP, ldi = a->rows / a->v + GAP;
    void *good = vtest_alloc(result_count(a), sizeof(float));
    void *bad = vtest_alloc(result_count(a), sizeof(float));
    float *const places[] = {a->g + ld + BLOCK + 9, a->output + (BLOCK + 9) * BLOCK + 9,
                             a->upper + a->cols + GAP + 1};
    (void)is_ref;
    run(dev, a, good);
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        const float before = *places[n];
        *places[n] = NAN;
        run(dev, a, bad);
        *places[n] = before;
        const output_result r = result_in(a, bad), want = result_in(a, good);
        for (size_t t = 0; t < a->cols; t++)
            for (size_t i = 0; i < a->rows; i++) {
                const size_t at = t * ldi + i / a->v;
                assert_true(r.idx[at] < a->k && r.res[at] < a->k_res);
                assert_true(r.q[t * ld + i] == decoded(a, i % a->v, r.idx[at], r.res[at]));
                assert_true(r.delta[t * ld + i] == r.q[t * ld + i] - a->q[t * ld + i]);
                if (n < 2 && i / BLOCK != 1) /* other blocks of K do not see it */
                    assert_true(r.idx[at] == want.idx[at] && r.res[at] == want.res[at]);
            }
        for (size_t i = 0; n == 2 && i < a->rows; i++) /* a diagonal that is not > 0 */
            assert_true(r.delta[ld + i] == 0);
    }
    free(good);
    free(bad);
}

static void test_nan_stays_in_its_block(void **state)
{
    (void)state;
    output_case a = make(4, 24, 8, 20, 6, true, 1);
    devices_each_emu(check_nan, &a);
    release(&a);
}

/* ---- out of memory ---- */

static vptq_status run_once(void *arg, vptq_device *dev, vptq_err *err)
{
    void *out = vtest_alloc(result_count(arg), sizeof(float));
    const vptq_status st = descend(arg, dev, out, err);
    free(out);
    return st;
}

static void test_survives_every_failed_allocation(void **state)
{
    (void)state;
    devices_skip_if_only();
    output_case a = make(2, 20, 4, 40, 3, true, 1);
    assert_true(devices_oom_walk("cpu", 2, run_once, &a) >= 1);
    release(&a);
}

VTEST_MAIN(cmocka_unit_test(test_takes_the_best_of_all_centroids),
           cmocka_unit_test(test_takes_nearly_the_best_of_normals),
           cmocka_unit_test(test_equals_vq_descend_if_k_is_the_identity),
           cmocka_unit_test(test_gives_the_same_bits_at_any_level_and_for_any_threads),
           cmocka_unit_test(test_nan_stays_in_its_block),
           cmocka_unit_test(test_survives_every_failed_allocation))
