/* Tests the ops vq_gather and vq_scatter against loops written out here, at every SIMD level
 * and for several numbers of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"
#include "tests/support/vcodebooks.h"

typedef struct scatter_case {
    size_t cols, vector_rows;
    vcodebooks codebooks;
    float *y, *weight;
    uint32_t *idx, *idx_res; /* [cols, vector rows + 1] */
} scatter_case;

static void check_gather(void *arg, const vptq_device *dev, bool is_ref)
{
    const scatter_case *a = arg;
    const vptq_codebooks *b = &a->codebooks.codebooks;
    const size_t v = b->v, rows = a->vector_rows * v, ld = rows + 2;
    float *q = vtest_alloc(a->cols * ld, sizeof *q);
    vptq_err err;
    (void)is_ref;
    const vptq_gather_args g = {.cols = a->cols,
                                .rows = rows,
                                .v = b->v,
                                .k = b->k,
                                .k_res = b->k_res,
                                .centroids = a->codebooks.c,
                                .res_centroids = a->codebooks.r,
                                .idx = a->idx,
                                .idx_res = b->k_res ? a->idx_res : NULL,
                                .q = q,
                                .ldi = a->vector_rows + 1,
                                .ldq = ld};
    assert_ok(dev->ops->vq_gather(dev->state, &g, &err), &err);
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t i = 0; i < ld; i++) {
            const size_t at = t * (a->vector_rows + 1) + i / v;
            float want = 0;
            if (i < rows)
                want = a->codebooks.c[a->idx[at] * v + i % v];
            if (i < rows && b->k_res)
                want += a->codebooks.r[a->idx_res[at] * v + i % v];
            assert_true(q[t * ld + i] == want);
        }
    }
    free(q);
}

static void scatter_on(const scatter_case *a, const vptq_device *dev, double *sums,
                       double *weights)
{
    const vptq_codebooks *b = &a->codebooks.codebooks;
    const size_t rows = a->vector_rows * b->v;
    vptq_err err;
    const vptq_scatter_args s = {.cols = a->cols,
                                 .rows = rows,
                                 .v = b->v,
                                 .k = b->k,
                                 .y = a->y,
                                 .weight = a->weight,
                                 .idx = a->idx,
                                 .sums = sums,
                                 .weights = weights,
                                 .ldy = rows,
                                 .ldi = a->vector_rows + 1};
    assert_ok(dev->ops->vq_scatter(dev->state, &s, &err), &err);
}

static void check_scatter(void *arg, const vptq_device *dev, bool is_ref)
{
    const scatter_case *a = arg;
    const size_t v = a->codebooks.codebooks.v, k = a->codebooks.codebooks.k,
                 rows = a->vector_rows * v;
    double *sums = vtest_alloc(k * v, sizeof *sums),
           *weights = vtest_alloc(k * v, sizeof *weights);
    double *want = vtest_alloc(k * v, sizeof *want),
           *want_weights = vtest_alloc(k * v, sizeof *want_weights);
    (void)is_ref;
    for (size_t t = 0; t < a->cols; t++) {
        const double w = a->weight ? (double)a->weight[t] : 1;
        for (size_t i = 0; i < rows; i++) {
            const size_t j = a->idx[t * (a->vector_rows + 1) + i / v];
            want[j * v + i % v] += w * (double)a->y[t * rows + i];
            want_weights[j * v + i % v] += w;
        }
    }
    memset(sums, 0xff, k * v * sizeof *sums);
    memset(weights, 0xff, k * v * sizeof *weights);
    scatter_on(a, dev, sums, weights);
    assert_close_f64(sums, want, k * v, 1e-12, 1e-12);
    assert_close_f64(weights, want_weights, k * v, 1e-12, 1e-12);
    memset(sums, 0xff, k * v * sizeof *sums);
    scatter_on(a, dev, sums, NULL);
    assert_close_f64(sums, want, k * v, 1e-12, 1e-12);
    free(sums);
    free(weights);
    free(want);
    free(want_weights);
}

static scatter_case scatter_make(size_t cols, size_t vector_rows, uint32_t v, uint32_t k,
                                 uint32_t k_res, bool weighted)
{
    scatter_case a = {cols, vector_rows, vcodebooks_make(0, v, k, k_res, 1), NULL, NULL,
                      NULL, NULL};
    const size_t n = cols * (vector_rows + 1);
    a.y = vtest_normals(cols * vector_rows * v, 8);
    a.weight = weighted ? vtest_normals(cols, 9) : NULL;
    a.idx = vtest_alloc(n, sizeof *a.idx);
    a.idx_res = vtest_alloc(n, sizeof *a.idx_res);
    for (size_t i = 0; i < n; i++) {
        a.idx[i] = (uint32_t)(i * i % k);
        a.idx_res[i] = k_res ? (uint32_t)(i * 11 % k_res) : 0;
    }
    return a;
}

static void scatter_free(scatter_case *a)
{
    vcodebooks_free(&a->codebooks);
    free(a->y);
    free(a->weight);
    free(a->idx);
    free(a->idx_res);
}

static void gather_and_scatter_match_loops(void **state)
{
    (void)state;
    static const uint32_t shapes[][6] = {/* cols, vector rows, v, k, k_res, weighted */
                                         {0, 5, 4, 4, 0, 0},     {1, 1, 8, 2, 2, 1},
                                         {30, 40, 8, 16, 0, 1},  {77, 33, 4, 5, 3, 0},
                                         {9, 100, 12, 64, 9, 1}, {5, 7, 6, 4096, 16, 1},
                                         {64, 50, 64, 2, 2, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *s = shapes[i];
        scatter_case a = scatter_make(s[0], s[1], s[2], s[3], s[4], s[5]);
        devices_each_emu(check_gather, &a);
        devices_each_emu(check_scatter, &a);
        scatter_free(&a);
    }
}

static void scatter_gives_the_same_bits_for_any_threads(void **state)
{
    (void)state;
    devices_skip_if_only();
    enum { V = 8, K = 40, SUMS = K * V };
    scatter_case a = scatter_make(101, 77, V, K, 0, true);
    double first[2 * SUMS], other[2 * SUMS];
    for (int threads = 1; threads <= 5; threads++) {
        devices_one d;
        double *to = threads > 1 ? other : first;
        devices_open(&d, "cpu", VPTQ_SIMD_AVX512, threads);
        scatter_on(&a, &d.dev, to, to + SUMS);
        assert_memory_equal(to, first, sizeof first);
        devices_close(&d);
    }
    scatter_free(&a);
}

VTEST_MAIN(cmocka_unit_test(gather_and_scatter_match_loops),
           cmocka_unit_test(scatter_gives_the_same_bits_for_any_threads))
