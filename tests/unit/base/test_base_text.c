/* Tests the small containers of lib/base (buffers, string maps, bit streams) and plurals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/bits.h"
#include "lib/base/buf.h"
#include "lib/base/rng.h"
#include "lib/base/strmap.h"
#include "lib/base/text.h"
#include "tests/support/vtest.h"

static void test_buffer(void **state)
{
    (void)state;
    vptq_mem mem;
    vptq_buf b;
    vptq_err err;
    vptq_mem_init(&mem, 0);
    vptq_buf_init(&b, &mem);
    assert_string_equal(b.data, "");
    vptq_buf_clear(&b);
    assert_ok(vptq_buf_add(&b, NULL, 0, &err), &err);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 100; i++)
        assert_ok(vptq_buf_printf(&b, &err, "%02d,", i), &err);
    assert_int_equal(b.len, 300);
    assert_memory_equal(b.data + 297, "99,", 4);
    vptq_buf_clear(&b);
    assert_string_equal(b.data, "");
    assert_ok(vptq_buf_add(&b, "a\0b", 3, &err), &err);
    assert_memory_equal(b.data, "a\0b", 4);
    assert_fails(vptq_buf_reserve(&b, SIZE_MAX - 2, &err), VPTQ_E_NOMEM, &err, "out of memory");
    assert_memory_equal(b.data, "a\0b", 4);
    vptq_buf_release(&b);
    assert_int_equal(mem.used, 0);
    assert_string_equal(b.data, "");
}

static vptq_status fill_buffer(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_buf b;
    (void)arg;
    vptq_buf_init(&b, mem);
    vptq_status st = VPTQ_OK;
    for (int i = 0; i < 1000 && !st; i++)
        st = vptq_buf_printf(&b, err, "%d", i);
    vptq_buf_release(&b);
    return st;
}

typedef struct keys {
    char text[5000][8];
} keys;

static void test_map(void **state)
{
    (void)state;
    enum { N = 5000 };
    keys *k = malloc(sizeof *k);
    assert_non_null(k);
    vptq_mem mem;
    vptq_strmap m;
    vptq_err err;
    bool fresh;
    uint32_t value;
    vptq_mem_init(&mem, 0);
    assert_ok(vptq_strmap_init(&m, &mem, 0, &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(k->text[i], sizeof k->text[i], "k%u", i);
        assert_ok(vptq_strmap_add(&m, k->text[i], strlen(k->text[i]), i, &fresh, &err), &err);
        assert_true(fresh);
    }
    assert_int_equal(m.count, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(vptq_strmap_get(&m, k->text[i], strlen(k->text[i]), &value));
        assert_int_equal(value, i);
    }
    assert_ok(vptq_strmap_add(&m, "k17", 3, 99, &fresh, &err), &err);
    assert_false(fresh);
    assert_true(vptq_strmap_get(&m, "k17x", 3, &value) && value == 17);
    assert_false(vptq_strmap_get(&m, "k17x", 4, &value));
    assert_ok(vptq_strmap_add(&m, "", 0, 5, &fresh, &err), &err);
    assert_true(fresh && vptq_strmap_get(&m, "", 0, &value) && value == 5);
    assert_ok(vptq_strmap_add(&m, "a\0b", 3, 6, &fresh, &err), &err);
    assert_false(vptq_strmap_get(&m, "a\0c", 3, &value));
    vptq_strmap_release(&m);
    assert_int_equal(mem.used, 0);
    assert_false(vptq_strmap_get(&m, "k1", 2, &value));
    free(k);
}

static void test_map_growth(void **state)
{
    (void)state;
    vptq_strmap m;
    vptq_err err;
    assert_ok(vptq_strmap_init(&m, NULL, 1000, &err), &err);
    size_t cap = m.cap;
    char text[1000][8];
    bool fresh;
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(text[i], sizeof text[i], "%u", i);
        assert_ok(vptq_strmap_add(&m, text[i], strlen(text[i]), i, &fresh, &err), &err);
    }
    assert_int_equal(m.cap, cap);
    vptq_strmap_release(&m);
    assert_fails(vptq_strmap_init(&m, NULL, SIZE_MAX, &err), VPTQ_E_NOMEM, &err, "map of");
}

static vptq_status fill_map(void *arg, vptq_mem *mem, vptq_err *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    vptq_strmap m;
    bool fresh;
    (void)arg;
    vptq_status st = vptq_strmap_init(&m, mem, 0, err);
    for (size_t i = 0; i < 52 && !st; i++)
        st = vptq_strmap_add(&m, letters + i, 1, (uint32_t)i, &fresh, err);
    vptq_strmap_release(&m);
    return st;
}

static void test_memory_walks(void **state)
{
    (void)state;
    assert_true(vtest_oom_walk(fill_buffer, NULL) >= 5);
    assert_true(vtest_oom_walk(fill_map, NULL) >= 3);
}

/* At every width fields read back unchanged, and the stream equals one written bit by bit. */
static void test_bit_streams(void **state)
{
    (void)state;
    enum { N = 77 };
    vptq_rng rng = vptq_rng_make(5, 0, 0, VPTQ_RNG_TEST);
    for (unsigned width = 1; width <= 32; width++) {
        size_t words = vptq_bits_words(N, width);
        assert_int_equal(words, (N * width + 31) / 32);
        /* exactly as many words as needed, so that a sanitizer sees a read beyond them */
        uint32_t *stream = calloc(words, sizeof *stream);
        uint32_t *naive = calloc(words, sizeof *naive);
        assert_true(stream && naive);
        uint32_t mask = width == 32 ? UINT32_MAX : (1u << width) - 1;
        for (size_t i = 0; i < N; i++) {
            uint32_t x = (uint32_t)vptq_rng_u64(&rng, i) & mask;
            vptq_bits_put(stream, i, width, x);
            for (unsigned b = 0; b < width; b++)
                naive[(i * width + b) / 32] |= (x >> b & 1) << (i * width + b) % 32;
        }
        assert_memory_equal(stream, naive, words * sizeof *stream);
        for (size_t i = 0; i < N; i++)
            assert_int_equal(vptq_bits_get(stream, i, width),
                             (uint32_t)vptq_rng_u64(&rng, i) & mask);
        free(stream);
        free(naive);
    }
}

static void test_log2(void **state)
{
    (void)state;
    assert_int_equal(vptq_log2u(1), 0);
    assert_int_equal(vptq_log2u(2), 1);
    assert_int_equal(vptq_log2u(3), 1);
    assert_int_equal(vptq_log2u(65536), 16);
    assert_int_equal(vptq_log2u(UINT32_MAX), 31);
}

static void test_plural(void **state)
{
    (void)state;
    assert_string_equal(vptq_plural(0, "matrix", "matrices"), "matrices");
    assert_string_equal(vptq_plural(1, "matrix", "matrices"), "matrix");
    assert_string_equal(vptq_plural(2, "", "s"), "s");
    assert_string_equal(vptq_plural(UINT64_C(1) << 32 | 1, "", "s"), "s");
}

VTEST_MAIN(cmocka_unit_test(test_plural), cmocka_unit_test(test_buffer),
           cmocka_unit_test(test_map), cmocka_unit_test(test_map_growth),
           cmocka_unit_test(test_memory_walks), cmocka_unit_test(test_bit_streams),
           cmocka_unit_test(test_log2))
