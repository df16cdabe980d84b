/* Tests the ops assign, accumulate and vq_dequant: ref, emu, and cpu at every SIMD level
 * and for several numbers of threads, against formulas written out here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"
#include "tests/support/vmatrix.h"

enum { THREAD_COUNTS = 4 };
static const int thread_counts[THREAD_COUNTS] = {1, 2, 3, 5};

static double distance(const float *x, const float *c, size_t v)
{
    double sum = 0;
    for (size_t d = 0; d < v; d++)
        sum += ((double)x[d] - (double)c[d]) * ((double)x[d] - (double)c[d]);
    return sum;
}

/* ---- assign ---- */

static void run_assign(const vptq_device *dev, vptq_assign_args a)
{
    vptq_err err;
    assert_ok(dev->ops->assign(dev->state, &a, &err), &err);
}

typedef struct assign_case {
    size_t n;
    uint32_t v, k;
    const float *x, *c;
    const double *least; /* smallest distance of every vector */
} assign_case;

static void check_assign(void *arg, const vptq_device *dev, bool is_ref)
{
    const assign_case *a = arg;
    uint32_t *idx = vtest_alloc(a->n, sizeof *idx);
    float *dist = vtest_alloc(a->n, sizeof *dist);
    run_assign(dev, (vptq_assign_args){.n = a->n,
                                       .v = a->v,
                                       .k = a->k,
                                       .x = a->x,
                                       .centroids = a->c,
                                       .idx = idx,
                                       .dist = dist});
    for (size_t i = 0; i < a->n; i++) {
        assert_true(idx[i] < a->k);
        const float *x = a->x + i * a->v, *c = a->c + (size_t)idx[i] * a->v;
        double found = distance(x, c, a->v);
        double norm = distance(x, a->c, 0);
        for (size_t d = 0; d < a->v; d++)
            norm += (double)x[d] * (double)x[d] + (double)c[d] * (double)c[d];
        double slack = is_ref ? 0 : 4e-7 * norm * (1 + 0.1 * a->v);
        assert_true(found <= a->least[i] + slack);
        assert_true(fabs((double)dist[i] - found) <= 1e-5 * found);
    }
    free(idx);
    free(dist);
}

static void assign_one_shape(size_t n, uint32_t v, uint32_t k)
{
    float *x = vtest_normals(n * v, 1000 * v + k),
          *c = vtest_normals((size_t)k * v, 77 * v + k);
    double *least = vtest_alloc(n, sizeof *least);
    for (size_t i = 0; i < n; i++) {
        least[i] = INFINITY;
        for (size_t j = 0; j < k; j++)
            least[i] = fmin(least[i], distance(x + i * v, c + j * v, v));
    }
    assign_case a = {n, v, k, x, c, least};
    devices_each_emu(check_assign, &a);
    free(x);
    free(c);
    free(least);
}

static void assign_finds_the_nearest_centroid(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32, 64};
    static const uint32_t codebooks[] = {1, 2, 15, 16, 17, 33, 100, 260};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (size_t j = 0; j < sizeof codebooks / sizeof *codebooks; j++)
            assign_one_shape(1 + (i * 13 + j * 29) % 67, lengths[i], codebooks[j]);
    }
    assign_one_shape(33, 8, 4096);
    assign_one_shape(0, 8, 16);
}

/* A codebook contains every centroid twice, 37 apart; the first must be chosen. */
static void check_ties(void *arg, const vptq_device *dev, bool is_ref)
{
    (void)arg;
    (void)is_ref;
    enum { N = 201, V = 6, HALF = 37 };
    float *x = vtest_normals(N * V, 5), *c = vtest_normals(2 * HALF * V, 6);
    memcpy(c + HALF * V, c, HALF * V * sizeof *c);
    uint32_t idx[N];
    run_assign(dev, (vptq_assign_args){
                        .n = N, .v = V, .k = 2 * HALF, .x = x, .centroids = c, .idx = idx});
    for (size_t i = 0; i < N; i++)
        assert_true(idx[i] < HALF);
    memset(c, 0, 2 * HALF * V * sizeof *c); /* all equal */
    run_assign(dev, (vptq_assign_args){
                        .n = N, .v = V, .k = 2 * HALF, .x = x, .centroids = c, .idx = idx});
    for (size_t i = 0; i < N; i++)
        assert_int_equal(idx[i], 0);
    free(x);
    free(c);
}

static void assign_breaks_ties_by_index(void **state)
{
    (void)state;
    devices_each_emu(check_ties, NULL);
}

/* NaN and huge values still give an index in range. */
static void check_nan_and_infinity(void *arg, const vptq_device *dev, bool is_ref)
{
    (void)arg;
    (void)is_ref;
    enum { N = 40, V = 8, K = 21 };
    float *x = vtest_normals(N * V, 5), *c = vtest_normals(K * V, 6);
    for (size_t i = 0; i < N; i++)
        x[i * V + i % V] = i % 4 == 0   ? NAN
                           : i % 4 == 1 ? INFINITY
                           : i % 4 == 2 ? 3e38F
                                        : -3e38F;
    uint32_t idx[N];
    for (int bad_codebook = 0; bad_codebook < 2; bad_codebook++) {
        run_assign(dev, (vptq_assign_args){
                            .n = N, .v = V, .k = K, .x = x, .centroids = c, .idx = idx});
        for (size_t i = 0; i < N; i++)
            assert_true(idx[i] < K);
        for (size_t j = 0; j < K * V; j++)
            c[j] = j % 3 ? 1e30F : NAN;
    }
    free(x);
    free(c);
}

/* With a small codebook of NaN, the padding after it must not be chosen. */
static void check_padding(void *arg, const vptq_device *dev, bool is_ref)
{
    (void)arg;
    (void)is_ref;
    enum { N = 37, V = 2, MAX_K = 17 };
    float *x = vtest_normals(N * V, 5), c[MAX_K * V];
    uint32_t idx[N];
    for (size_t i = 0; i < MAX_K * V; i++)
        c[i] = NAN;
    for (uint32_t k = 1; k <= MAX_K; k++) {
        run_assign(dev, (vptq_assign_args){
                            .n = N, .v = V, .k = k, .x = x, .centroids = c, .idx = idx});
        for (size_t i = 0; i < N; i++)
            assert_int_equal(idx[i], 0);
    }
    free(x);
}

static void assign_stays_in_range_with_nan_and_infinity(void **state)
{
    (void)state;
    devices_each_emu(check_nan_and_infinity, NULL);
    devices_each_emu(check_padding, NULL);
}

/* The label of a search in float: the lowest index with the smallest score, 0 if no score is a
 * number. */
static uint32_t label_in_float(const float *x, const float *c, uint32_t v, uint32_t k)
{
    float best = INFINITY;
    uint32_t found = 0;
    for (uint32_t j = 0; j < k; j++, c += v) {
        float score = 0;
        for (uint32_t d = 0; d < v; d++)
            score = fmaf(c[d], c[d], score);
        for (uint32_t d = 0; d < v; d++)
            score = fmaf(-2 * x[d], c[d], score);
        if (score < best) {
            best = score;
            found = j;
        }
    }
    return found;
}

/* Centroids in clusters so narrow that halves cannot tell their members apart, vectors next to
 * them, one far away, and some that are not finite. */
static void check_near_ties(const vptq_device *dev, uint32_t v, float unit)
{
    enum { N = 75, K = 203, CLUSTERS = 7, FAR = 9 };
    float *x = vtest_normals((size_t)N * v, v), *c = vtest_normals((size_t)K * v, v + 1);
    float *by = vtest_normals((size_t)K * v, v + 2);
    uint32_t got[N];
    for (uint32_t j = 0; j < K * v; j++) {
        const float narrow = ldexpf(by[j], -10 - (int)(j / v % 14));
        c[j] = j < CLUSTERS * v ? c[j] : c[j % (CLUSTERS * v)] + narrow;
    }
    for (uint32_t j = 0; j < K * v; j++)
        c[j] *= unit;
    for (uint32_t i = 0; i < N * v; i++) {
        const float near = c[(i / v * 37 % K) * v + i % v];
        x[i] = i / v == FAR ? unit * 1e6F * x[i] : near + 0.25F * unit * x[i];
    }
    c[100 * v] = NAN;
    c[101 * v + v - 1] = INFINITY;
    x[11 * v] = NAN;
    x[12 * v + v / 2] = -INFINITY;
    run_assign(dev,
               (vptq_assign_args){.n = N, .v = v, .k = K, .x = x, .centroids = c, .idx = got});
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(got[i], label_in_float(x + i * v, c, v, K));
    free(x);
    free(c);
    free(by);
}

static void assign_equals_a_search_in_float(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 4, 8, 13, 14, 29, 30, 64};
    static const float units[] = {1, 0x1p-20F, 0x1p30F, 0x1p-80F, 0x1p54F, 0};
    devices_one d;
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        check_near_ties(&d.dev, lengths[i], 1);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        check_near_ties(&d.dev, 8, units[i]);
    devices_close(&d);
}

/* The result for a vector depends neither on its position nor on the thread and the level. */
static void assign_does_not_depend_on_position_or_threads(void **state)
{
    (void)state;
    enum { N = 2001, K = 70 };
    static const uint32_t lengths[] = {4, 7, 8};
    for (size_t l = 0; l < 3; l++) {
        const uint32_t v = lengths[l];
        float *x = vtest_normals((size_t)N * v, v), *c = vtest_normals((size_t)K * v, v + 1);
        uint32_t *whole = vtest_alloc(N, sizeof *whole), *part = vtest_alloc(N, sizeof *part);
        for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
            if (!vptq_cpu_has((vptq_simd)simd))
                continue;
            devices_one d;
            for (int t = 0; t < THREAD_COUNTS; t++) {
                devices_open(&d, "cpu", (vptq_simd)simd, thread_counts[t]);
                uint32_t *to = simd || t ? part : whole;
                run_assign(&d.dev,
                           (vptq_assign_args){
                               .n = N, .v = v, .k = K, .x = x, .centroids = c, .idx = to});
                assert_memory_equal(to, whole, N * sizeof *to);
                if (t < 2)
                    for (size_t i = 0, step = 1; i < N; i += step, step = step % 45 + 1) {
                        size_t n = N - i < step ? N - i : step;
                        run_assign(&d.dev, (vptq_assign_args){.n = n,
                                                              .v = v,
                                                              .k = K,
                                                              .x = x + i * v,
                                                              .centroids = c,
                                                              .idx = part});
                        assert_memory_equal(part, whole + i, n * sizeof *part);
                    }
                devices_close(&d);
            }
        }
        free(x);
        free(c);
        free(whole);
        free(part);
    }
}

/* ---- accumulate ---- */

typedef struct sums_case {
    size_t n;
    uint32_t v, k;
    const float *x, *w, *c;
    const uint32_t *idx;
    const double *sums, *weights;
    double objective;
} sums_case;

static void check_sums(void *arg, const vptq_device *dev, bool is_ref)
{
    const sums_case *s = arg;
    (void)is_ref;
    size_t count = (size_t)s->k * s->v;
    double *sums = vtest_alloc(count, sizeof *sums),
           *weights = vtest_alloc(s->k, sizeof *weights);
    memset(sums, 0xff, count * sizeof *sums);
    memset(weights, 0xff, s->k * sizeof *weights);
    double objective = NAN;
    vptq_err err;
    assert_ok(dev->ops->accumulate(dev->state,
                                   &(vptq_accumulate_args){.n = s->n,
                                                           .v = s->v,
                                                           .k = s->k,
                                                           .x = s->x,
                                                           .w = s->w,
                                                           .idx = s->idx,
                                                           .centroids = s->c,
                                                           .sums = sums,
                                                           .weights = weights,
                                                           .objective = &objective},
                                   &err),
              &err);
    assert_close_f64(sums, s->sums, count, 1e-12, 1e-12);
    assert_close_f64(weights, s->weights, s->k, 1e-12, 1e-12);
    assert_close_f64(&objective, &s->objective, 1, 0, 1e-12);
    free(sums);
    free(weights);
}

static void sums_one_shape(size_t n, uint32_t v, uint32_t k, bool weighted)
{
    float *x = vtest_normals(n * v, n + v), *c = vtest_normals((size_t)k * v, k),
          *w = vtest_normals(n, 3);
    uint32_t *idx = vtest_alloc(n, sizeof *idx);
    double *sums = vtest_alloc((size_t)k * v, sizeof *sums),
           *weights = vtest_alloc(k, sizeof *weights);
    double objective = 0;
    for (size_t i = 0; i < n; i++) {
        w[i] = weighted ? fabsf(w[i]) : 1;
        size_t j = idx[i] = (uint32_t)(i * i * 7 + i / 3) % k;
        for (size_t d = 0; d < v; d++)
            sums[j * v + d] += (double)w[i] * (double)x[i * v + d];
        weights[j] += (double)w[i];
        objective += (double)w[i] * distance(x + i * v, c + j * v, v);
    }
    sums_case s = {n, v, k, x, weighted ? w : NULL, c, idx, sums, weights, objective};
    devices_each_emu(check_sums, &s);
    free(x);
    free(c);
    free(w);
    free(idx);
    free(sums);
    free(weights);
}

static void accumulate_matches_sums_in_double(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 4, 6, 7, 8, 12};
    for (size_t i = 0; i < 6; i++) {
        sums_one_shape(0, lengths[i], 5, true);
        sums_one_shape(3, lengths[i], 16, true);
        sums_one_shape(5000, lengths[i], 16, true);
        sums_one_shape(4321, lengths[i], 300, false);
    }
}

static void accumulate_gives_the_same_bits_for_any_threads(void **state)
{
    (void)state;
    devices_skip_if_only();
    enum { N = 7777, V = 8, K = 40, SUMS = K * V };
    float *x = vtest_normals(N * V, 1), *c = vtest_normals(K * V, 2);
    uint32_t *idx = vtest_alloc(N, sizeof *idx);
    for (size_t i = 0; i < N; i++)
        idx[i] = (uint32_t)(i * i) % K;
    double first[SUMS + K + 1], other[SUMS + K + 1];
    for (int t = 0; t < THREAD_COUNTS; t++) {
        devices_one d;
        vptq_err err;
        double *to = t ? other : first;
        devices_open(&d, "cpu", VPTQ_SIMD_AVX512, thread_counts[t]);
        assert_ok(d.dev.ops->accumulate(d.dev.state,
                                        &(vptq_accumulate_args){.n = N,
                                                                .v = V,
                                                                .k = K,
                                                                .x = x,
                                                                .idx = idx,
                                                                .centroids = c,
                                                                .sums = to,
                                                                .weights = to + SUMS,
                                                                .objective = to + SUMS + K},
                                        &err),
                  &err);
        assert_memory_equal(to, first, sizeof first);
        devices_close(&d);
    }
    free(x);
    free(c);
    free(idx);
}

/* ---- dequantization ---- */

typedef struct dequant_case {
    const vmatrix *m;
    const float *want;
} dequant_case;

static void check_dequant(void *arg, const vptq_device *dev, bool is_ref)
{
    const dequant_case *a = arg;
    const vptq_vq_shape *s = &a->m->q.shape;
    const size_t ldw = s->in + 3;
    float *w = vtest_alloc(s->out * ldw, sizeof *w);
    vptq_matrix *matrix = NULL;
    vptq_err err;
    (void)is_ref;
    assert_ok(dev->ops->matrix_open(dev->state, &a->m->q, &matrix, &err), &err);
    for (size_t n = s->out; n;
         n = n / 2) { /* all rows at once, then in shorter and shorter runs */
        memset(w, 0xff, s->out * ldw * sizeof *w);
        for (size_t r0 = 0; r0 < s->out; r0 += n) {
            size_t rows = s->out - r0 < n ? s->out - r0 : n;
            assert_ok(
                dev->ops->vq_dequant(dev->state, matrix, r0, rows, w + r0 * ldw, ldw, &err),
                &err);
        }
        for (size_t r = 0; r < s->out; r++) {
            assert_same_f32(w + r * ldw, a->want + r * s->in, s->in);
            assert_true(isnan(w[r * ldw + s->in])); /* the gap after the row is not written */
        }
    }
    dev->ops->matrix_close(dev->state, matrix);
    free(w);
}

static void dequant_matches_the_formula(void **state)
{
    (void)state;
    /* out, in, v, k, k_res, groups, group_size, outliers, v0, k0, perm, norm */
    static const vptq_vq_shape shapes[] = {
        {32, 24, 4, 256, 0, 1, 24, 0, 0, 0, false, false, false},
        {30, 20, 4, 256, 16, 1, 20, 0, 0, 0, false, true, false},
        {40, 36, 8, 256, 256, 1, 36, 0, 0, 0, true, false, false},
        {64, 41, 6, 4096, 0, 1, 41, 0, 0, 0, false, true, false},
        {30, 33, 12, 4096, 4096, 1, 33, 0, 0, 0, false, true, false},
        {36, 52, 4, 256, 16, 4, 13, 0, 0, 0, true, true, false},
        {48, 40, 8, 256, 16, 1, 36, 4, 4, 64, true, true, false},
        {31, 45, 6, 256, 0, 4, 10, 5, 4, 256, true, true, false},
        {31, 345, 6, 64, 2, 1, 45, 300, 9, 7, false, false, false},
        {10, 19, 1, 65536, 65536, 1, 19, 0, 0, 0, false, true, false},
        {7, 21, 1, 65536, 32768, 1, 21, 0, 0, 0, true, true, false},
        {24, 20, 4, 16, 256, 1, 20, 0, 0, 0, false, false, false},
        {5, 700, 1, 2, 0, 1, 700, 0, 0, 0, true, true, false},
        {7, 600, 64, 1, 2, 2, 300, 0, 0, 0, false, true, false},
        {1, 1, 3, 2, 0, 1, 1, 0, 0, 0, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        vmatrix m;
        vptq_err err;
        assert_ok(vptq_vq_shape_check(&shapes[i], &err), &err);
        vmatrix_make(&m, &shapes[i]);
        float *want = vtest_alloc((size_t)shapes[i].out * shapes[i].in, sizeof *want);
        vmatrix_decode(&m, want);
        dequant_case a = {&m, want};
        devices_each_emu(check_dequant, &a);
        free(want);
        vmatrix_free(&m);
    }
}

/* ---- memory ---- */

static vptq_status run_all(void *arg, vptq_device *dev, vptq_err *err)
{
    const assign_case *a = arg;
    vptq_status st = VPTQ_OK;
    uint32_t *idx = vtest_alloc(a->n, sizeof *idx);
    double *sums = vtest_alloc((size_t)a->k * (a->v + 1), sizeof *sums), objective;
    VPTQ_TRY(dev->ops->assign(
        dev->state,
        &(vptq_assign_args){
            .n = a->n, .v = a->v, .k = a->k, .x = a->x, .centroids = a->c, .idx = idx},
        err));
    VPTQ_TRY(dev->ops->reassign(dev->state,
                                &(vptq_assign_args){.n = a->n,
                                                    .v = a->v,
                                                    .k = a->k,
                                                    .x = a->x,
                                                    .previous = a->c,
                                                    .centroids = a->c,
                                                    .idx = idx},
                                err));
    VPTQ_TRY(dev->ops->accumulate(dev->state,
                                  &(vptq_accumulate_args){.n = a->n,
                                                          .v = a->v,
                                                          .k = a->k,
                                                          .x = a->x,
                                                          .idx = idx,
                                                          .centroids = a->c,
                                                          .sums = sums,
                                                          .weights = sums + a->k * a->v,
                                                          .objective = &objective},
                                  err));
out:
    free(idx);
    free(sums);
    return st;
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    devices_skip_if_only();
    enum { N = 3600, V = 4, K = 520 };
    float *x = vtest_normals(N * V, 1), *c = vtest_normals(K * V, 2);
    assign_case a = {N, V, K, x, c, NULL};
    assert_true(devices_oom_walk("cpu", 2, run_all, &a) >= 3);
    free(x);
    free(c);
}

VTEST_MAIN(cmocka_unit_test(assign_finds_the_nearest_centroid),
           cmocka_unit_test(assign_breaks_ties_by_index),
           cmocka_unit_test(assign_stays_in_range_with_nan_and_infinity),
           cmocka_unit_test(assign_equals_a_search_in_float),
           cmocka_unit_test(assign_does_not_depend_on_position_or_threads),
           cmocka_unit_test(accumulate_matches_sums_in_double),
           cmocka_unit_test(accumulate_gives_the_same_bits_for_any_threads),
           cmocka_unit_test(dequant_matches_the_formula),
           cmocka_unit_test(survives_every_failed_allocation))
