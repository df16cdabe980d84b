/* The op reassign with the previous codebook: the same labels as assign, whichever centroids
 * have moved and how far. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"

enum { KINDS = 6 };

typedef struct moves {
    size_t n;
    uint32_t v, k;
    float *x, *before, *c;
} moves;

/* How centroids move: few a little, some, all; some far, so that others lose their vectors;
 * onto each other; and vectors and centroids with NaN. */
static moves moves_make(size_t n, uint32_t v, uint32_t k, int kind)
{
    const size_t count = (size_t)k * v, every[KINDS] = {17, 3, 1, 29, 5, 11};
    moves m = {.n = n, .v = v, .k = k};
    float *step = vtest_alloc(count, sizeof *step);
    m.x = vtest_alloc(n * v, sizeof *m.x);
    m.before = vtest_alloc(count, sizeof *m.before);
    m.c = vtest_alloc(count, sizeof *m.c);
    vtest_normal(m.x, n * v, n + (size_t)kind);
    vtest_normal(m.before, count, k);
    vtest_normal(step, count, 7);
    if (kind == 5) {
        for (size_t i = 0; i < 30; i++)
            m.x[i * 13 % n * v + i % v] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -3e38F;
        for (size_t i = 0; i < 10; i++)
            m.before[i * 7 % k * v + i % v] = i % 2 ? NAN : 1e30F;
    }
    memcpy(m.c, m.before, count * sizeof *m.c);
    for (size_t j = 1; j < k; j += every[kind]) {
        for (size_t d = 0; d < v; d++) {
            const size_t e = j * v + d;
            m.c[e] += (kind == 3 ? 3 : 0.1F) * step[e];
            if (kind == 4)
                m.c[e] = m.before[(k - j) * v + d];
        }
    }
    free(step);
    return m;
}

static void moves_free(moves *m)
{
    free(m->x);
    free(m->before);
    free(m->c);
}

/* Every device agrees with its own assign; the bits of scores depend on the level. */
static void follow(void *arg, const vptq_device *dev, bool is_ref)
{
    const moves *m = arg;
    uint32_t *got = vtest_alloc(m->n, sizeof *got), *want = vtest_alloc(m->n, sizeof *want);
    vptq_err err;
    (void)is_ref;
    assert_ok(
        dev->ops->assign(
            dev->state,
            &(vptq_assign_args){
                .n = m->n, .v = m->v, .k = m->k, .x = m->x, .centroids = m->c, .idx = want},
            &err),
        &err);
    assert_ok(
        dev->ops->assign(
            dev->state,
            &(vptq_assign_args){
                .n = m->n, .v = m->v, .k = m->k, .x = m->x, .centroids = m->before, .idx = got},
            &err),
        &err);
    for (int round = 0; round < 2; round++) { /* in the second round nothing has moved */
        const float *before = round ? m->c : m->before;
        assert_ok(dev->ops->reassign(dev->state,
                                     &(vptq_assign_args){.n = m->n,
                                                         .v = m->v,
                                                         .k = m->k,
                                                         .x = m->x,
                                                         .previous = before,
                                                         .centroids = m->c,
                                                         .idx = got},
                                     &err),
                  &err);
        assert_memory_equal(got, want, m->n * sizeof *got);
    }
    free(got);
    free(want);
}

static void check(size_t n, uint32_t v, uint32_t k, int kind)
{
    moves m = moves_make(n, v, k, kind);
    devices_each(follow, &m);
    moves_free(&m);
}

static void follows_codebooks_that_move(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 4, 6, 7, 8, 12};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int kind = 0; kind < KINDS; kind++)
            check(900 + i * 33, lengths[i], 513 + (uint32_t)i * 8, kind);
    }
}

/* Too few centroids for grouping, unless most have not moved. */
static void follows_small_codebooks(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        check(700, 8, 60, kind);
        check(50, 4, 60, kind);
    }
    check(3, 8, 2, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_codebooks_that_move),
        cmocka_unit_test(follows_small_codebooks),
    };
    return vtest_main(argc, argv, tests);
}
