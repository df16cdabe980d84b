/* Tests the codebooks of QuIP#: all points against the published tables, nearest points against
 * brute force in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/lattice.h"
#include "tests/support/vtest.h"

enum { V = VPTQ_LATTICE_V };

/* ---- points ---- */

/* FNV-1a of four times every coordinate, a byte each, in the order of codes. */
static uint64_t digest(uint32_t bits)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t code = 0; code < UINT32_C(1) << bits; code++) {
        float p[V];
        vptq_lattice_point(bits, code, p);
        for (size_t i = 0; i < V; i++) {
            const float x = p[i] * 4;
            assert_true(x == rintf(x) && fabsf(x) < 16);
            hash = (hash ^ (uint8_t)(int8_t)x) * UINT64_C(0x100000001b3);
        }
    }
    return hash;
}

/* The digests are those of _E8P_GRID (codebook/latticee8_padded12.py) and _E81B_CACHED
 * (codebook/latticee8_padded12_rvq3bit.py) of Cornell-RelaxML/quip-sharp, commit 1d8f873. */
static void test_published_tables(void **state)
{
    (void)state;
    assert_true(digest(16) == UINT64_C(0x64988a6f70642725));
    assert_true(digest(8) == UINT64_C(0xf5c264c36bf290cd));
}

static void expect_point(uint32_t bits, uint32_t code, const float *expected)
{
    float p[V];
    vptq_lattice_point(bits, code, p);
    assert_memory_equal(p, expected, sizeof p);
}

static void test_points_by_hand(void **state)
{
    (void)state;
    expect_point(16, 0x0, (float[V]){0.75F, 0.75F, 0.75F, 0.75F, 0.75F, 0.75F, 0.75F, 0.75F});
    expect_point(16, 0x1, (float[V]){0.25F, 0.25F, 0.25F, 0.25F, 0.25F, 0.25F, 0.25F, 0.25F});
    expect_point(16, 0x1234,
                 (float[V]){-0.75F, -0.75F, 0.25F, -0.75F, -1.75F, 0.25F, 0.25F, 1.25F});
    expect_point(16, 0xb7ff,
                 (float[V]){-1.25F, -0.25F, -1.25F, -0.25F, -0.25F, -1.25F, -0.25F, 0.75F});
    expect_point(16, 0xe380,
                 (float[V]){-1.75F, 0.25F, 0.25F, 0.25F, 1.25F, 1.25F, 1.25F, 1.25F});
    expect_point(16, 0xffa5,
                 (float[V]){-1.25F, 1.75F, 0.75F, -0.25F, -1.25F, 1.75F, 1.75F, 0.75F});
    expect_point(8, 0x0, (float[V]){-1, -1, 0, 0, 0, 0, 0, 0});
    expect_point(8, 0x38, (float[V]){0, 0, 0, 0, 0, 0, 0, 0});
    expect_point(8, 0xc8, (float[V]){0.5F, -0.5F, 0.5F, -0.5F, 0.5F, 0.5F, 0.5F, 0.5F});
    expect_point(8, 0xff, (float[V]){0, 0, 0, 0, 0, 0, -2, 0});
}

/* ---- nearest points ---- */

static double distance(const float *x, const float *p)
{
    double sum = 0;
    for (size_t i = 0; i < V; i++)
        sum += ((double)x[i] - (double)p[i]) * ((double)x[i] - (double)p[i]);
    return sum;
}

/* All points, [2^bits][V]. */
static float *table_of(uint32_t bits)
{
    float *points = vtest_alloc((size_t)V << bits, sizeof *points);
    for (uint32_t code = 0; code < UINT32_C(1) << bits; code++)
        vptq_lattice_point(bits, code, points + (size_t)code * V);
    return points;
}

static void check_nearest(uint32_t bits, const float *points, const float *x)
{
    float p[V];
    const uint32_t code = vptq_lattice_nearest(bits, x, p);
    const double found = distance(x, p);
    double least = INFINITY;
    assert_true(code < UINT32_C(1) << bits);
    assert_memory_equal(p, points + (size_t)code * V, sizeof p);
    for (uint32_t c = 0; c < UINT32_C(1) << bits; c++)
        least = fmin(least, distance(x, points + (size_t)c * V));
    assert_true(found <= least + 1e-6 * (1 + distance(x, (float[V]){0})));
}

/* Normal vectors of many sizes, and some whose coordinates are whole quarters: ties. */
static void check_many(uint32_t bits, size_t count)
{
    float *points = table_of(bits);
    for (size_t i = 0; i < count; i++) {
        float *x = vtest_normals(V, i);
        const float size = (float)pow(2, (double)(i % 23) / 4 - 3);
        for (size_t e = 0; e < V; e++) {
            x[e] *= size;
            if (i % 5 == 0)
                x[e] = rintf(x[e] * 4) / 4;
        }
        check_nearest(bits, points, x);
        free(x);
    }
    free(points);
}

static void test_nearest_e8p(void **state)
{
    (void)state;
    check_many(16, 1500);
}

static void test_nearest_e81b(void **state)
{
    (void)state;
    check_many(8, 20000);
}

/* A point is nearest to itself, and to what is near it. */
static void test_points_are_nearest(void **state)
{
    (void)state;
    for (uint32_t bits = 8; bits <= 16; bits += 8)
        for (uint32_t code = 0; code < UINT32_C(1) << bits; code++) {
            float x[V], p[V];
            vptq_lattice_point(bits, code, x);
            assert_int_equal(vptq_lattice_nearest(bits, x, p), code);
            for (size_t e = 0; e < V; e++)
                x[e] += (code >> e & 1) ? 0.2F : -0.2F;
            assert_int_equal(vptq_lattice_nearest(bits, x, p), code);
        }
}

static void test_not_finite(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38F, -3e38F};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (size_t e = 0; e < V; e++) {
            float x[V] = {0.1F, -2, 3, 0.4F, 0, 1, -0.6F, 0.7F}, p[V], q[V];
            x[e] = odd[i];
            for (uint32_t bits = 8; bits <= 16; bits += 8) {
                const uint32_t code = vptq_lattice_nearest(bits, x, p);
                assert_true(code < UINT32_C(1) << bits);
                vptq_lattice_point(bits, code, q);
                assert_memory_equal(p, q, sizeof p);
            }
        }
}

VTEST_MAIN(cmocka_unit_test(test_published_tables), cmocka_unit_test(test_points_by_hand),
           cmocka_unit_test(test_nearest_e8p), cmocka_unit_test(test_nearest_e81b),
           cmocka_unit_test(test_points_are_nearest), cmocka_unit_test(test_not_finite))
