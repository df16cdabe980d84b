/* Helpers for unit and op tests (vtest.h). */
#define _XOPEN_SOURCE 700 /* nftw */

#include "tests/support/vtest.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/json.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/base/text.h"
#include "tests/support/vnormal.h"

void vtest_args(int argc, char **argv)
{
    for (int c = getopt(argc, argv, "t:"); c != -1; c = getopt(argc, argv, "t:")) {
        if (c != 't') {
            fprintf(stderr, "usage: %s [-t PATTERN]\n", argv[0]);
            exit(2);
        }
        cmocka_set_test_filter(optarg);
    }
}

/* --- comparisons ------------------------------------------------------------------------- */

static bool is_close(double a, double b, double atol, double rtol)
{
    return a == b || fabs(a - b) <= atol + rtol * fabs(b);
}

void vtest_assert_close_f32(const float *a, const float *b, size_t n, double atol, double rtol,
                            const char *file, int line)
{
    size_t bad = 0, first = 0;
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)a[i], y = (double)b[i];
        if (is_close(x, y, atol, rtol))
            continue;
        if (!bad++)
            first = i;
        if (fabs(x - y) > worst)
            worst = fabs(x - y);
    }
    if (!bad)
        return;
    print_error("element %zu: %.9g, expected %.9g (%zu of %zu differ, at most by %.3g)\n",
                first, (double)a[first], (double)b[first], bad, n, worst);
    _fail(file, line);
}

void vtest_assert_close_f64(const double *a, const double *b, size_t n, double atol,
                            double rtol, const char *file, int line)
{
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < n; i++)
        if (!is_close(a[i], b[i], atol, rtol) && !bad++)
            first = i;
    if (!bad)
        return;
    print_error("element %zu: %.17g, expected %.17g (%zu of %zu differ)\n", first, a[first],
                b[first], bad, n);
    _fail(file, line);
}

void vtest_assert_nmse(const float *a, const float *b, size_t n, double limit, const char *file,
                       int line)
{
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        error += d * d;
        power += (double)b[i] * (double)b[i];
    }
    if (error <= limit * power)
        return;
    print_error("squared error %.6g of squared norm %.6g: ratio %.3g over the limit %.3g\n",
                error, power, error / power, limit);
    _fail(file, line);
}

void vtest_assert_same_f32(const float *a, const float *b, size_t n, const char *file, int line)
{
    for (size_t i = 0; i < n; i++) {
        if (!memcmp(a + i, b + i, sizeof *a))
            continue;
        print_error("element %zu of %zu: %a, expected %a\n", i, n, (double)a[i], (double)b[i]);
        _fail(file, line);
    }
}

void vtest_assert_ok(vptq_status st, const vptq_err *err, const char *call, const char *file,
                     int line)
{
    if (st == VPTQ_OK)
        return;
    print_error("%s gave %s: %s\n", call, vptq_status_name(st), err ? err->text : "");
    _fail(file, line);
}

void vtest_assert_fails(vptq_status st, vptq_status code, const vptq_err *err, const char *part,
                        const char *call, const char *file, int line)
{
    const char *text = st ? err->text : "";
    char printable[sizeof err->text];
    vptq_text_printable(printable, sizeof printable, text);
    if (strcmp(printable, text) != 0)
        print_error("%s: the sentence has control characters\n", call);
    else if (st == code && err->code == code && strstr(text, part))
        return;
    print_error("%s gave %s (%s): '%s', expected %s with '%s'\n", call, vptq_status_name(st),
                st ? vptq_status_name(err->code) : "-", text, vptq_status_name(code), part);
    _fail(file, line);
}

/* --- files ------------------------------------------------------------------------------- */

bool vtest_emulated(void)
{
    const char *under = getenv("UNDER");
    return under && strstr(under, "qemu");
}

bool vtest_data(char *path, size_t size, const char *name)
{
    const char *root = getenv("VPTQ_DATA");
    int n = snprintf(path, size, "%s/%s", root && *root ? root : "../shared/data", name);
    assert_true(n > 0 && (size_t)n < size);
    if (access(path, R_OK) == 0)
        return true;
    print_message("needs %s, which is not in the data directory (VPTQ_DATA)\n", name);
    return false;
}

void vtest_path(char *path, size_t size, const char *dir, const char *name)
{
    int n = snprintf(path, size, "%s/%s", dir, name);
    assert_true(n > 0 && (size_t)n < size);
}

int vtest_scratch_setup(void **state)
{
    const char *root = getenv("TMPDIR");
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/vtest-XXXXXX", root && *root ? root : "/tmp");
    if (n < 0 || (size_t)n >= sizeof path || !mkdtemp(path))
        return -1;
    *state = strdup(path);
    return *state ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

int vtest_scratch_teardown(void **state)
{
    int rc = nftw(*state, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    *state = NULL;
    return rc;
}

void vtest_write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

char *vtest_read_file(const char *path, size_t *size)
{
    struct stat sb;
    FILE *f = fopen(path, "rb");
    if (!f)
        print_error("cannot open %s: %s\n", path, strerror(errno));
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &sb), 0);
    char *data = malloc((size_t)sb.st_size + 1);
    assert_non_null(data);
    *size = fread(data, 1, (size_t)sb.st_size, f);
    assert_int_equal(*size, sb.st_size);
    fclose(f);
    data[*size] = 0;
    return data;
}

void vtest_reseal(const char *path)
{
    vptq_err err = {0};
    json_t *doc = NULL;
    assert_ok(vptq_json_load(path, 1 << 20, &doc, &err), &err);
    assert_ok(vptq_json_save_sealed(path, doc, &err), &err);
    json_decref(doc);
}

void vtest_expect_file(const char *path, const void *data, size_t size)
{
    size_t n;
    char *bytes = vtest_read_file(path, &n);
    assert_int_equal(n, size);
    assert_memory_equal(bytes, data, size);
    free(bytes);
}

void vtest_expect_text(const char *path, const char *text)
{
    vtest_expect_file(path, text, strlen(text));
}

size_t vtest_entries(const char *dir)
{
    vptq_arena arena;
    char **names;
    size_t count;
    vptq_err err;
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_dir_list(dir, &arena, &names, &count, &err), &err);
    vptq_arena_release(&arena);
    return count;
}

void vtest_expect_same_file(const char *a, const char *b)
{
    size_t size;
    char *bytes = vtest_read_file(a, &size);
    vtest_expect_file(b, bytes, size);
    free(bytes);
}

void vtest_expect_same_in(const char *dir_a, const char *dir_b, const char *name)
{
    char a[4096], b[4096];
    vtest_path(a, sizeof a, dir_a, name);
    vtest_path(b, sizeof b, dir_b, name);
    vtest_expect_same_file(a, b);
}

void vtest_copy_file(const char *from, const char *dir, const char *name)
{
    char to[4096];
    size_t n;
    vtest_path(to, sizeof to, dir, name);
    char *data = vtest_read_file(from, &n);
    vtest_write_file(to, data, n);
    free(data);
}

/* --- .npy -------------------------------------------------------------------------------- */

static void npy_shape(vtest_npy *a, const char *header)
{
    const char *p = strstr(header, "'shape': (");
    assert_non_null(p);
    p += strlen("'shape': (");
    a->count = 1;
    while (*p != ')') {
        char *end;
        unsigned long long n = strtoull(p, &end, 10);
        assert_true(end != p && a->dims < 8);
        a->shape[a->dims++] = (size_t)n;
        a->count *= (size_t)n;
        p = end + strspn(end, ", ");
    }
}

/* Reorders elements from Fortran order (first index fastest) to C order (last index fastest).
 */
static void npy_to_c_order(vtest_npy *a)
{
    size_t width = (size_t)(a->type[1] - '0'), stride[8];
    unsigned char *src = a->data, *dst = malloc(a->count * width + 1);
    assert_non_null(dst);
    for (int d = 0; d < a->dims; d++)
        stride[d] = d ? stride[d - 1] * a->shape[d - 1] : 1;
    for (size_t i = 0; i < a->count; i++) {
        size_t rest = i, from = 0;
        for (int d = a->dims - 1; d >= 0; d--) {
            from += rest % a->shape[d] * stride[d];
            rest /= a->shape[d];
        }
        memcpy(dst + i * width, src + from * width, width);
    }
    memcpy(src, dst, a->count * width);
    free(dst);
}

/* Layout: "\x93NUMPY", version, header length (2 bytes, or 4 from version 2 on), a Python
 * dictionary, the elements. */
void vtest_npy_load(const char *path, vtest_npy *a)
{
    size_t size;
    *a = (vtest_npy){0};
    unsigned char *file = (unsigned char *)vtest_read_file(path, &size);
    assert_true(size > 12 && !memcmp(file, "\x93NUMPY", 6));
    size_t at = file[6] == 1 ? 10 : 12;
    size_t len = file[8] | (size_t)file[9] << 8;
    if (file[6] > 1)
        len |= (size_t)file[10] << 16 | (size_t)file[11] << 24;
    assert_true(at + len < size + 1);
    char *header = strndup((char *)file + at, len);
    assert_non_null(header);
    const char *descr = strstr(header, "'descr': '");
    assert_non_null(descr);
    descr += strlen("'descr': '");
    assert_true(*descr == '<' || *descr == '|');
    memcpy(a->type, descr + 1, 2);
    const char *order = strstr(header, "'fortran_order': ");
    assert_non_null(order);
    bool fortran = order[strlen("'fortran_order': ")] == 'T';
    npy_shape(a, header);
    free(header);
    assert_int_equal(at + len + a->count * (size_t)(a->type[1] - '0'), size);
    a->file = file;
    a->data = file + at + len; /* a multiple of 64 by the format, so aligned */
    if (fortran)
        npy_to_c_order(a);
}

void vtest_npy_free(vtest_npy *a)
{
    free(a->file);
    *a = (vtest_npy){0};
}

const void *vtest_npy_as(const vtest_npy *a, const char *type)
{
    assert_string_equal(a->type, type);
    return a->data;
}

double vtest_npy_at(const vtest_npy *a, size_t i)
{
    assert_true(i < a->count);
    size_t width = (size_t)(a->type[1] - '0');
    const unsigned char *p = (const unsigned char *)a->data + i * width;
    uint64_t raw = 0;
    for (size_t b = 0; b < width; b++)
        raw |= (uint64_t)p[b] << 8 * b;
    if (a->type[0] == 'f') {
        float f;
        double d;
        if (width == 2)
            return (double)vptq_f16_to_f32((uint16_t)raw);
        if (width == 4)
            return memcpy(&f, p, sizeof f), (double)f;
        return memcpy(&d, p, sizeof d), d;
    }
    if (a->type[0] == 'i' && width < 8 && raw >> (8 * width - 1))
        return (double)raw - ldexp(1, (int)(8 * width));
    return a->type[0] == 'i' ? (double)(int64_t)raw : (double)raw;
}

/* --- numbers and memory ------------------------------------------------------------------ */

void *vtest_alloc(size_t count, size_t size)
{
    void *p = calloc(count + 1, size);
    assert_non_null(p);
    return p;
}

void vtest_normal(float *x, size_t n, uint64_t seed)
{
    vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_TEST);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)vtest_rng_normal(&rng, i);
}

float *vtest_normals(size_t n, uint64_t seed)
{
    float *x = vtest_alloc(n, sizeof *x);
    vtest_normal(x, n, seed);
    return x;
}

size_t vtest_oom_walk(vtest_oom_fn fn, void *arg)
{
    size_t failures = 0;
    for (int64_t n = 0;; n += n < 256 ? 1 : n / 64) {
        vptq_mem mem;
        vptq_err err = {0};
        vptq_mem_init(&mem, 0);
        mem.fail_after = n;
        vptq_status st = fn(arg, &mem, &err);
        if (mem.used)
            print_error("%zu bytes leaked when allocation %lld failed\n", mem.used,
                        (long long)n);
        assert_int_equal(mem.used, 0);
        if (st == VPTQ_OK)
            break;
        if (st != VPTQ_E_NOMEM)
            print_error("allocation %lld failed: %s: %s\n", (long long)n, vptq_status_name(st),
                        err.text);
        assert_int_equal(st, VPTQ_E_NOMEM);
        assert_int_equal(err.code, VPTQ_E_NOMEM);
        assert_true(err.text[0] != 0);
        failures++;
    }
    assert_true(failures > 0);
    return failures;
}
