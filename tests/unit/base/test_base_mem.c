/* Tests the counting allocator and arenas. */
#include <string.h>

#include "lib/base/mem.h"
#include "tests/support/vtest.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
static bool is_poisoned(const void *p)
{
    return __asan_address_is_poisoned(p);
}
enum { CAN_TELL = 1 };
#else
static bool is_poisoned(const void *p)
{
    (void)p;
    return false;
}
enum { CAN_TELL = 0 };
#endif

static void test_sizes(void **state)
{
    (void)state;
    size_t x = 7;
    assert_true(vptq_size_mul(SIZE_MAX / 3, 3, &x) && x == SIZE_MAX / 3 * 3);
    assert_true(vptq_size_mul(0, SIZE_MAX, &x) && x == 0);
    x = 7;
    assert_false(vptq_size_mul(SIZE_MAX / 3 + 1, 3, &x));
    assert_false(vptq_size_mul(3, SIZE_MAX / 3 + 1, &x));
    assert_int_equal(x, 7);
    assert_true(vptq_size_add(SIZE_MAX - 1, 1, &x) && x == SIZE_MAX);
    x = 7;
    assert_false(vptq_size_add(SIZE_MAX, 1, &x));
    assert_int_equal(x, 7);
}

static void test_accounting(void **state)
{
    (void)state;
    vptq_mem mem;
    vptq_err err;
    vptq_mem_init(&mem, 0);
    assert_int_equal(vptq_mem_left(&mem), SIZE_MAX);
    char *a = vptq_mem_alloc(&mem, 10, 100, &err);
    char *b = vptq_mem_alloc(&mem, 0, 8, &err);
    char *c = vptq_mem_alloc(&mem, 24, 1, &err);
    assert_true(a && b && c);
    assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0 && (uintptr_t)c % 64 == 0);
    memset(a, 1, 1000);
    assert_int_equal(mem.used, 1024);
    vptq_mem_free(&mem, a);
    vptq_mem_free(&mem, NULL);
    assert_int_equal(mem.used, 24);
    assert_int_equal(mem.peak, 1024);
    vptq_mem_free(&mem, b);
    vptq_mem_free(&mem, c);
    assert_int_equal(mem.used, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    vptq_mem mem;
    vptq_err err = {0};
    vptq_mem_init(&mem, 1000);
    char *a = vptq_mem_alloc(&mem, 600, 1, &err);
    assert_non_null(a);
    assert_int_equal(vptq_mem_left(&mem), 400);
    assert_null(vptq_mem_alloc(&mem, 401, 1, &err));
    assert_int_equal(err.code, VPTQ_E_NOMEM);
    assert_non_null(strstr(err.text, "401 bytes"));
    assert_non_null(strstr(err.text, "1000"));
    assert_null(vptq_mem_alloc(&mem, SIZE_MAX / 2, 3, &err));
    char *b = vptq_mem_alloc(&mem, 400, 1, &err);
    assert_non_null(b);
    vptq_mem_free(&mem, a);
    vptq_mem_free(&mem, b);
    assert_int_equal(mem.used, 0);
    assert_null(vptq_mem_alloc(NULL, SIZE_MAX - 8, 1, NULL));
    a = vptq_mem_alloc(NULL, 5, 1, NULL);
    assert_non_null(a);
    vptq_mem_free(NULL, a);
}

static void test_failing_on_demand(void **state)
{
    (void)state;
    vptq_mem mem;
    vptq_arena arena;
    vptq_err err;
    vptq_mem_init(&mem, 0);
    vptq_arena_init(&arena, &mem);
    mem.fail_after = 2;
    void *a = vptq_mem_alloc(&mem, 1, 1, &err);
    assert_non_null(a);
    assert_non_null(vptq_arena_alloc(&arena, 1, 1, &err)); /* one allocation, chunk included */
    assert_null(vptq_arena_alloc(&arena, 1, 1, &err));
    assert_int_equal(err.code, VPTQ_E_NOMEM);
    assert_null(vptq_mem_alloc(&mem, 1, 1, &err));
    mem.fail_after = -1;
    vptq_mem_free(&mem, a);
    vptq_arena_release(&arena);
    assert_int_equal(mem.used, 0);
}

/* Allocations keep their content while the arena grows over many chunks, small and large. */
static void test_arena_allocations(void **state)
{
    (void)state;
    enum { N = 300 };
    unsigned char *piece[N];
    size_t size[N];
    vptq_mem mem;
    vptq_arena arena;
    vptq_err err;
    vptq_mem_init(&mem, 0);
    vptq_arena_init(&arena, &mem);
    for (size_t i = 0; i < N; i++) {
        size[i] = i % 50 == 49 ? 100000 + i : i * 7 % 400;
        piece[i] = vptq_arena_alloc(&arena, size[i], 1, &err);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % 64, 0);
        memset(piece[i], (int)(i & 255), size[i]);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t b = 0; b < size[i]; b++)
            assert_int_equal(piece[i][b], i & 255);
    const unsigned char *zero = vptq_arena_zalloc(&arena, 100, 3, &err);
    assert_non_null(zero);
    for (size_t b = 0; b < 300; b++)
        assert_int_equal(zero[b], 0);
    assert_null(vptq_arena_alloc(&arena, SIZE_MAX, 2, &err));
    assert_null(vptq_arena_alloc(&arena, SIZE_MAX - 3, 1, &err));
    vptq_arena_release(&arena);
    assert_int_equal(mem.used, 0);
    vptq_arena_release(&arena);
}

static void test_arena_text(void **state)
{
    (void)state;
    vptq_arena arena;
    vptq_err err;
    vptq_arena_init(&arena, NULL);
    char *a = vptq_arena_strndup(&arena, "abcdef", 3, &err);
    char *b = vptq_arena_strdup(&arena, "xyz", &err);
    char *c = vptq_arena_printf(&arena, &err, "%s-%05d", b, 42);
    char *d = vptq_arena_strndup(&arena, NULL, 0, &err);
    assert_string_equal(a, "abc");
    assert_string_equal(b, "xyz");
    assert_string_equal(c, "xyz-00042");
    assert_string_equal(d, "");
    assert_null(vptq_arena_strndup(&arena, "a", SIZE_MAX, &err));
    vptq_arena_release(&arena);
}

static void test_arena_marks(void **state)
{
    (void)state;
    vptq_mem mem;
    vptq_arena arena;
    vptq_err err;
    vptq_mem_init(&mem, 0);
    vptq_arena_init(&arena, &mem);
    vptq_arena_mark empty = vptq_arena_get_mark(&arena);
    char *kept = vptq_arena_strdup(&arena, "kept", &err);
    size_t used = mem.used;
    vptq_arena_mark mark = vptq_arena_get_mark(&arena);
    for (int round = 0; round < 3; round++) {
        char *first = vptq_arena_alloc(&arena, 10, 1, &err);
        char *large = vptq_arena_alloc(&arena, 1 << 20, 1, &err);
        assert_true(first && large);
        memset(first, 1, 10);
        memset(large, 2, 1 << 20);
        vptq_arena_rewind(&arena, mark);
        assert_int_equal(mem.used, used);
        if (CAN_TELL)
            assert_true(is_poisoned(first));
    }
    assert_string_equal(kept, "kept");
    vptq_arena_rewind(&arena, empty);
    assert_int_equal(mem.used, 0);
}

static void test_red_zones(void **state)
{
    (void)state;
    if (!CAN_TELL)
        skip();
    vptq_arena arena;
    vptq_err err;
    vptq_arena_init(&arena, NULL);
    char *a = vptq_arena_alloc(&arena, 13, 1, &err);
    char *b = vptq_arena_strdup(&arena, "text", &err);
    assert_false(is_poisoned(a + 12));
    assert_true(is_poisoned(a + 13) && is_poisoned(a - 1));
    assert_false(is_poisoned(b + 4));
    assert_true(is_poisoned(b + 5) && is_poisoned(b - 1));
    vptq_arena_release(&arena);
    char *c = vptq_mem_alloc(NULL, 100, 1, &err);
    assert_true(is_poisoned(c - 1) && is_poisoned(c + 100));
    vptq_mem_free(NULL, c);
}

static vptq_status fill_arena(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_arena arena;
    (void)arg;
    vptq_arena_init(&arena, mem);
    vptq_status st = VPTQ_OK;
    for (int i = 0; i < 20 && !st; i++)
        if (!vptq_arena_alloc(&arena, 1000, 1, err) || !vptq_arena_printf(&arena, err, "%d", i))
            st = VPTQ_E_NOMEM;
    vptq_arena_release(&arena);
    return st;
}

static void test_walk(void **state)
{
    (void)state;
    assert_int_equal(vtest_oom_walk(fill_arena, NULL), 40);
}

VTEST_MAIN(cmocka_unit_test(test_sizes), cmocka_unit_test(test_accounting),
           cmocka_unit_test(test_refusals), cmocka_unit_test(test_failing_on_demand),
           cmocka_unit_test(test_arena_allocations), cmocka_unit_test(test_arena_text),
           cmocka_unit_test(test_arena_marks), cmocka_unit_test(test_red_zones),
           cmocka_unit_test(test_walk))
