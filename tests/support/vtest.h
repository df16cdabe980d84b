/* Helpers for unit and op tests on top of cmocka: array comparisons, expected failures, the
 * data directory, scratch directories, .npy files, the walk through every out-of-memory path.
 * Include this instead of <cmocka.h>.
 *
 *     static void test_something(void **state)
 *     {
 *         char path[4096];
 *         if (!vtest_data(path, sizeof path, "golden/x.npy"))
 *             skip();
 *         ...
 *     }
 *     VTEST_MAIN(cmocka_unit_test(test_something))
 *
 * A test program takes `-t PATTERN` (shell wildcards over test names). */
#ifndef VPTQ_TESTS_SUPPORT_VTEST_H
#define VPTQ_TESTS_SUPPORT_VTEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/base/mem.h"
#include "lib/base/status.h"

/* Defines main: parses the command line and runs these tests. */
#define VTEST_MAIN(...)                                                                        \
    int main(int argc, char **argv)                                                            \
    {                                                                                          \
        const struct CMUnitTest tests[] = {__VA_ARGS__};                                       \
        vtest_args(argc, argv);                                                                \
        return cmocka_run_group_tests(tests, NULL, NULL);                                      \
    }
void vtest_args(int argc, char **argv);

/* Every |a - b| <= atol + rtol * |b|, where b is the expected side and NaN is close to nothing.
 * Prints the first pair that differs more and how many do. */
#define assert_close(a, b, n, atol, rtol)                                                      \
    vtest_assert_close_f32(a, b, n, atol, rtol, __FILE__, __LINE__)
#define assert_close_f64(a, b, n, atol, rtol)                                                  \
    vtest_assert_close_f64(a, b, n, atol, rtol, __FILE__, __LINE__)
/* sum (a - b)^2 <= limit * sum b^2 */
#define assert_nmse(a, b, n, limit) vtest_assert_nmse(a, b, n, limit, __FILE__, __LINE__)
/* All n floats have the same bits. */
#define assert_same_f32(a, b, n) vtest_assert_same_f32(a, b, n, __FILE__, __LINE__)
/* A call that must succeed; prints its error otherwise. */
#define assert_ok(call, err) vtest_assert_ok(call, err, #call, __FILE__, __LINE__)
/* A call that must fail with `code`, also in `err`, and an error text that contains `part`. */
#define assert_fails(call, code, err, part)                                                    \
    vtest_assert_fails(call, code, err, part, #call, __FILE__, __LINE__)

void vtest_assert_close_f32(const float *a, const float *b, size_t n, double atol, double rtol,
                            const char *file, int line);
void vtest_assert_close_f64(const double *a, const double *b, size_t n, double atol,
                            double rtol, const char *file, int line);
void vtest_assert_nmse(const float *a, const float *b, size_t n, double limit, const char *file,
                       int line);
void vtest_assert_same_f32(const float *a, const float *b, size_t n, const char *file,
                           int line);
void vtest_assert_ok(vptq_status st, const vptq_err *err, const char *call, const char *file,
                     int line);
void vtest_assert_fails(vptq_status st, vptq_status code, const vptq_err *err, const char *part,
                        const char *call, const char *file, int line);

/* Stores the path of NAME in the data directory ($VPTQ_DATA, default ../shared/data). If it is
 * missing, says so and returns false; the test then calls skip(). */
bool vtest_data(char *path, size_t size, const char *name);
/* Whether qemu runs this program, as UNDER in the environment says. */
bool vtest_emulated(void);

/* A test with a fresh directory under $TMPDIR (default /tmp), removed with its contents after
 * the test. *state is its path (const char *). */
#define scratch_test(test)                                                                     \
    cmocka_unit_test_setup_teardown(test, vtest_scratch_setup, vtest_scratch_teardown)
int vtest_scratch_setup(void **state);
int vtest_scratch_teardown(void **state);
/* Stores DIR/NAME in path; fails the test if it does not fit. */
void vtest_path(char *path, size_t size, const char *dir, const char *name);
void vtest_write_file(const char *path, const void *data, size_t size);
void vtest_copy_file(const char *from, const char *dir, const char *name); /* to DIR/NAME */
/* Gives a JSON file that was changed the checksum that its reader expects. */
void vtest_reseal(const char *path);
/* Returns the whole file with a terminating 0; the caller frees it with free(). */
char *vtest_read_file(const char *path, size_t *size);
/* Fail the test unless the file has exactly these bytes, or those of another file, or those of
 * the file of the same name in another directory. */
void vtest_expect_file(const char *path, const void *data, size_t size);
void vtest_expect_text(const char *path, const char *text);
void vtest_expect_same_file(const char *a, const char *b);
void vtest_expect_same_in(const char *dir_a, const char *dir_b, const char *name);

/* Returns the number of names in a directory. */
size_t vtest_entries(const char *dir);

/* A .npy file, with its elements in C order. */
typedef struct vtest_npy {
    char type[4]; /* "f2" "f4" "f8" "u1" "i1" "u2" "i2" "i4" "u4" "i8" "u8" "b1" */
    int dims;
    size_t shape[8];
    size_t count; /* product of shape */
    void *data;
    void *file; /* the bytes that `data` points into */
} vtest_npy;
void vtest_npy_load(const char *path, vtest_npy *a);
void vtest_npy_free(vtest_npy *a);
/* Returns the elements; fails the test if they have another type. */
const void *vtest_npy_as(const vtest_npy *a, const char *type);
double vtest_npy_at(const vtest_npy *a, size_t i); /* of any type */

/* Returns zeroed memory of at least one element, or fails the test; the caller frees it with
 * free(). */
void *vtest_alloc(size_t count, size_t size);

/* n normally distributed numbers that depend only on the seed. vtest_normals returns them in
 * memory that the caller frees with free(). */
void vtest_normal(float *x, size_t n, uint64_t seed);
float *vtest_normals(size_t n, uint64_t seed);

/* Calls fn with an allocator that fails from the n-th allocation on, n = 0, 1, 2, ... (every
 * one up to 256, then in steps of n/64) until it succeeds. Each failure must be VPTQ_E_NOMEM
 * with a text, and each call must free everything. Returns the number of failures, and fails
 * the test if there was none. */
typedef vptq_status (*vtest_oom_fn)(void *arg, vptq_mem *mem, vptq_err *err);
size_t vtest_oom_walk(vtest_oom_fn fn, void *arg);

#endif
