/* Tests that the op reassign gives the labels of assign, however far centroids have moved and
 * whatever the labels were before. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

typedef struct reassign_case {
    size_t n;
    uint32_t v, k;
    const float *x, *c;
    const float *before;    /* the previous codebook, or NULL, */
    const uint32_t *labels; /* with these labels to start from */
} reassign_case;

/* Every device agrees with its own assign, because the bits of scores depend on the SIMD level.
 * In the second round nothing has moved. */
static void check_reassign(void *arg, const vptq_device *dev, bool is_ref)
{
    const reassign_case *r = arg;
    uint32_t *got = vtest_alloc(r->n, sizeof *got), *want = vtest_alloc(r->n, sizeof *want);
    vptq_err err;
    (void)is_ref;
    vptq_assign_args a = {
        .n = r->n, .v = r->v, .k = r->k, .x = r->x, .centroids = r->c, .idx = want};
    assert_ok(dev->ops->assign(dev->state, &a, &err), &err);
    a.idx = got;
    if (r->before) {
        a.centroids = r->before;
        assert_ok(dev->ops->assign(dev->state, &a, &err), &err);
        a.centroids = r->c;
    } else {
        memcpy(got, r->labels, r->n * sizeof *got);
    }
    for (int round = 0; round < 2; round++) {
        a.previous = round && r->before ? r->c : r->before;
        assert_ok(dev->ops->reassign(dev->state, &a, &err), &err);
        assert_memory_equal(got, want, r->n * sizeof *got);
    }
    free(got);
    free(want);
}

static void add_nan_and_infinity(float *x, size_t count, size_t stride, size_t n, uint32_t v)
{
    for (size_t i = 0; i < count; i++)
        x[i * stride % n * v + i % v] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -3e38F;
}

static void add_nan_and_huge(float *c, size_t count, size_t stride, uint32_t k, uint32_t v)
{
    for (size_t i = 0; i < count; i++)
        c[i * stride % k * v + i % v] = i % 2 ? NAN : 1e30F;
}

/* ---- moved centroids ---- */

enum { KINDS = 6 };

/* Moves a few, some or all centroids a little (kinds 0 to 2); some far, so that others lose
 * their vectors (3); some onto each other (4); with NaN in vectors and centroids (5). */
static void check_moved(size_t n, uint32_t v, uint32_t k, int kind)
{
    const size_t count = (size_t)k * v, every[KINDS] = {17, 3, 1, 29, 5, 11};
    float *x = vtest_normals(n * v, n + (size_t)kind), *before = vtest_normals(count, k);
    float *c = vtest_alloc(count, sizeof *c), *step = vtest_normals(count, 7);
    if (kind == 5) {
        add_nan_and_infinity(x, 30, 13, n, v);
        add_nan_and_huge(before, 10, 7, k, v);
    }
    memcpy(c, before, count * sizeof *c);
    for (size_t j = 1; j < k; j += every[kind]) {
        for (size_t d = 0; d < v; d++) {
            const size_t e = j * v + d;
            c[e] += (kind == 3 ? 3 : 0.1F) * step[e];
            if (kind == 4)
                c[e] = before[(k - j) * v + d];
        }
    }
    reassign_case r = {n, v, k, x, c, before, NULL};
    devices_each(check_reassign, &r);
    free(x);
    free(before);
    free(c);
    free(step);
}

static void reassign_with_moved_centroids(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 4, 6, 7, 8, 12};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int kind = 0; kind < KINDS; kind++)
            check_moved(900 + i * 33, lengths[i], 513 + (uint32_t)i * 8, kind);
    }
}

/* Too few centroids for grouping, unless most have not moved. */
static void reassign_with_small_codebooks(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        check_moved(700, 8, 60, kind);
        check_moved(50, 4, 60, kind);
    }
    check_moved(3, 8, 2, 0);
}

/* ---- without the previous codebook ---- */

/* Starts from arbitrary labels and from labels that are all 0. */
static void check_labels(size_t n, uint32_t v, uint32_t k, int kind)
{
    float *x = vtest_normals(n * v, n + v), *c = vtest_normals((size_t)k * v, k);
    uint32_t *labels = vtest_alloc(n, sizeof *labels);
    for (size_t j = 0; j < (size_t)k * v; j++)
        c[j] *= 0.9F;
    if (kind == 1) /* vectors that are centroids, and centroids that occur twice */
        for (size_t j = 0; j < k / 2 && j < n; j++) {
            memcpy(c + j * v, x + j * v, v * sizeof *c);
            memcpy(c + (k - 1 - j) * v, x + j * v, v * sizeof *c);
        }
    if (kind == 2) {
        add_nan_and_infinity(x, 20, 7, n, v);
        add_nan_and_huge(c, 20, 11, k, v);
    }
    if (kind == 3) /* vectors of very different lengths, far from the mean */
        for (size_t i = 0; i < n; i++)
            for (size_t d = 0; d < v; d++)
                x[i * v + d] = 100 + x[i * v + d] * powf(10, (float)(i % 9) - 6);
    for (size_t i = 0; i < n; i++)
        labels[i] = (uint32_t)(i * i) % k;
    reassign_case r = {n, v, k, x, c, NULL, labels};
    const bool small = n * k <= 1 << 18;
    (small ? devices_each_emu : devices_each)(check_reassign, &r);
    memset(labels, 0, n * sizeof *labels);
    (small ? devices_each_emu : devices_each)(check_reassign, &r);
    free(x);
    free(c);
    free(labels);
}

static void reassign_without_previous_codebook(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 4, 6, 7, 8, 12};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int kind = 0; kind < 4; kind++)
            check_labels(700 + i * 33, lengths[i], 513 + (uint32_t)i * 8, kind);
    }
    check_labels(300, 8, 40, 0);
    check_labels(1, 4, 2, 0);
    check_labels(5000, 8, 1024, 1);
}

VTEST_MAIN(cmocka_unit_test(reassign_with_moved_centroids),
           cmocka_unit_test(reassign_with_small_codebooks),
           cmocka_unit_test(reassign_without_previous_codebook))
