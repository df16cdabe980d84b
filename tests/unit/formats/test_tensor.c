/* Tests tensors: element types, rotary order, checks for finite values, and tensor sets. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/gguf/quants.h"
#include "formats/tensor.h"
#include "lib/base/half.h"
#include "tests/support/vtest.h"

static vptq_tensor matrix(vptq_dtype type, uint64_t rows, uint64_t cols, const void *data)
{
    return (vptq_tensor){.name = "w",
                         .type = type,
                         .dims = 2,
                         .shape = {rows, cols},
                         .data = data,
                         .round_to = VPTQ_F32,
                         .file = "file.x"};
}

/* Returns the number of file pages in memory of this process. */
static size_t shared_pages(void)
{
    unsigned long long all, resident, shared;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu %llu", &all, &resident, &shared), 3);
    fclose(f);
    return (size_t)shared;
}

static void test_shapes(void **state)
{
    (void)state;
    vptq_tensor t = {.dims = 0};
    assert_int_equal(vptq_tensor_rows(&t), 1);
    assert_int_equal(vptq_tensor_cols(&t), 1);
    t = (vptq_tensor){.dims = 1, .shape = {5}};
    assert_int_equal(vptq_tensor_rows(&t), 1);
    assert_int_equal(vptq_tensor_cols(&t), 5);
    t = (vptq_tensor){.dims = 3, .shape = {2, 3, 4}};
    assert_int_equal(vptq_tensor_rows(&t), 2);
    assert_int_equal(vptq_tensor_cols(&t), 12);
}

/* Every float type, at an odd address. */
static void test_read_types(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 37, N = ROWS * COLS };
    float x[N], got[N], want[N];
    uint8_t bytes[N * 8 + 1];
    vptq_err err = {0};
    vtest_normal(x, N, 1);
    vptq_tensor t = matrix(VPTQ_F32, ROWS, COLS, bytes + 1);

    memcpy(bytes + 1, x, sizeof x);
    assert_ok(vptq_tensor_read(&t, 1, 3, got, &err), &err);
    assert_same_f32(got, x + COLS, 3 * COLS);

    for (size_t i = 0; i < N; i++) {
        double d = (double)x[i];
        memcpy(bytes + 1 + i * 8, &d, 8);
    }
    t.type = VPTQ_F64;
    assert_ok(vptq_tensor_read(&t, 0, ROWS, got, &err), &err);
    assert_same_f32(got, x, N);

    for (size_t i = 0; i < N; i++) {
        uint16_t h = vptq_f32_to_f16(x[i]);
        memcpy(bytes + 1 + i * 2, &h, 2);
        want[i] = vptq_f16_to_f32(h);
    }
    t.type = VPTQ_F16;
    assert_ok(vptq_tensor_read(&t, 0, ROWS, got, &err), &err);
    assert_same_f32(got, want, N);

    for (size_t i = 0; i < N; i++) {
        uint16_t h = vptq_f32_to_bf16(x[i]);
        memcpy(bytes + 1 + i * 2, &h, 2);
        want[i] = vptq_bf16_to_f32(h);
    }
    t.type = VPTQ_BF16;
    assert_ok(vptq_tensor_read(&t, 4, 1, got, &err), &err);
    assert_same_f32(got, want + 4 * COLS, COLS);
    assert_ok(vptq_tensor_read(&t, 5, 0, got, &err), &err);
}

static void test_read_blocks_and_rounding(void **state)
{
    (void)state;
    enum { ROWS = 4, COLS = 64, N = ROWS * COLS };
    uint8_t bytes[N / 32 * 34];
    float want[N], got[N];
    vptq_err err = {0};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t b = 0; b < N / 32; b++) {
        uint16_t scale = vptq_f32_to_f16(0.001f * (float)(b + 1));
        memcpy(bytes + b * 34, &scale, 2);
    }
    vptq_ggml_dequantize(VPTQ_Q8_0, bytes, N, want);
    vptq_tensor t = matrix(VPTQ_Q8_0, ROWS, COLS, bytes);
    assert_ok(vptq_tensor_read(&t, 1, 2, got, &err), &err);
    assert_same_f32(got, want + COLS, 2 * COLS);
    assert_ok(vptq_tensor_check_finite(&t, &err), &err);
    t.round_to = VPTQ_BF16;
    assert_ok(vptq_tensor_read(&t, 0, ROWS, got, &err), &err);
    for (size_t i = 0; i < N; i++)
        want[i] = vptq_bf16_to_f32(vptq_f32_to_bf16(want[i]));
    assert_same_f32(got, want, N);

    uint16_t nan = 0x7e00;
    memcpy(bytes + 5 * 34, &nan, 2);
    assert_fails(vptq_tensor_check_finite(&t, &err), VPTQ_E_NUMERIC, &err,
                 "file.x: tensor 'w' has a value that is not finite in row 2, column 32");
    t = matrix(VPTQ_Q8_0, 3, 47, bytes);
    assert_fails(vptq_tensor_read(&t, 0, 1, got, &err), VPTQ_E_UNSUPPORTED, &err,
                 "has 141 elements, expected a multiple of the 32 of a Q8_0 block");
    t = matrix(VPTQ_I32, 1, 4, bytes);
    assert_fails(vptq_tensor_read(&t, 0, 1, got, &err), VPTQ_E_UNSUPPORTED, &err,
                 "file.x: tensor 'w' holds I32 values, expected real numbers");
}

/* Rows of 48 in blocks of 256: any range of rows gives the elements of the whole tensor. */
static void test_rows_within_blocks(void **state)
{
    (void)state;
    enum { ROWS = 32, COLS = 48, N = ROWS * COLS };
    uint8_t bytes[N / 256 * 210];
    float want[N], got[N];
    vptq_err err = {0};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t b = 0; b < N / 256; b++) {
        uint16_t scale = vptq_f32_to_f16(0.001f * (float)(b + 1));
        memcpy(bytes + b * 210 + 208, &scale, 2);
    }
    vptq_ggml_dequantize(VPTQ_Q6_K, bytes, N, want);
    const vptq_tensor t = matrix(VPTQ_Q6_K, ROWS, COLS, bytes);
    for (size_t r0 = 0; r0 < ROWS; r0++)
        for (size_t n = 0; n <= ROWS - r0; n++) {
            if (n < ROWS)
                got[n * COLS] = 7; /* nothing is written after them */
            assert_ok(vptq_tensor_read(&t, r0, n, got, &err), &err);
            assert_same_f32(got, want + r0 * COLS, n * COLS);
            assert_true(n == ROWS || got[n * COLS] == 7);
        }
    assert_ok(vptq_tensor_check_finite(&t, &err), &err);
}

/* The stored rows of a head alternate between the halves of its rotary pairs: row (half, i) is
 * stored at 2 i + half. */
static void test_rope_heads(void **state)
{
    (void)state;
    enum { HEADS = 3, DIM = 8, COLS = 2 };
    float stored[HEADS * DIM * COLS], got[HEADS * DIM * COLS];
    vptq_err err = {0};
    for (int h = 0; h < HEADS; h++)
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < DIM / 2; i++)
                for (int c = 0; c < COLS; c++)
                    stored[(h * DIM + 2 * i + half) * COLS + c] =
                        (float)((h * DIM + half * DIM / 2 + i) * COLS + c);
    vptq_tensor t = matrix(VPTQ_F32, HEADS * DIM, COLS, (const uint8_t *)stored);
    t.rope_heads = HEADS;
    assert_ok(vptq_tensor_read(&t, 0, HEADS * DIM, got, &err), &err);
    for (int i = 0; i < HEADS * DIM * COLS; i++)
        assert_true(got[i] == (float)i);
    assert_ok(vptq_tensor_read(&t, 13, 4, got, &err), &err);
    for (int i = 0; i < 4 * COLS; i++)
        assert_true(got[i] == (float)(13 * COLS + i));
}

/* One bad value at every kind of position, in every type. The largest finite values pass. */
static void check_finite_type(vptq_dtype type, uint64_t largest, uint64_t infinity,
                              uint64_t nan)
{
    enum { ROWS = 3, COLS = 1501 };
    size_t width = vptq_dtype_get(type)->bytes;
    uint8_t *bytes = malloc(ROWS * COLS * width + 1);
    assert_non_null(bytes);
    uint64_t sign = UINT64_C(1) << (8 * width - 1);
    for (size_t i = 0; i < ROWS * COLS; i++) {
        uint64_t x = i % 3 == 0 ? largest : i % 3 == 1 ? largest | sign : 1;
        memcpy(bytes + 1 + i * width, &x, width);
    }
    vptq_tensor t = matrix(type, ROWS, COLS, bytes + 1);
    vptq_err err = {0};
    assert_ok(vptq_tensor_check_finite(&t, &err), &err);
    const size_t places[] = {0, 1, 3, 1023, 1024, 2048, 4499, ROWS * COLS - 1};
    const uint64_t bad[] = {infinity, infinity | sign, nan, nan | sign};
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
        for (size_t b = 0; b < 4; b++) {
            uint8_t kept[8], *at = bytes + 1 + places[p] * width;
            char part[128];
            memcpy(kept, at, width);
            memcpy(at, &bad[b], width);
            snprintf(part, sizeof part,
                     "'w' has a value that is not finite in row %zu, "
                     "column %zu",
                     places[p] / COLS, places[p] % COLS);
            assert_fails(vptq_tensor_check_finite(&t, &err), VPTQ_E_NUMERIC, &err, part);
            memcpy(at, kept, width);
        }
    free(bytes);
}

static void test_check_finite(void **state)
{
    (void)state;
    check_finite_type(VPTQ_F16, 0x7bff, 0x7c00, 0x7c01);
    check_finite_type(VPTQ_BF16, 0x7f7f, 0x7f80, 0x7fc0);
    check_finite_type(VPTQ_F32, 0x7f7fffff, 0x7f800000, 0x7f800001);
    check_finite_type(VPTQ_F64, UINT64_C(0x7fefffffffffffff), UINT64_C(0x7ff0000000000000),
                      UINT64_C(0x7ff0000000000001));
    vptq_tensor t = matrix(VPTQ_I32, 1, 1, "\xff\xff\xff\xff");
    vptq_err err = {0};
    assert_ok(vptq_tensor_check_finite(&t, &err), &err);
}

/* Dropping the pages of a mapped tensor does not change its data; other memory is kept. */
static void test_dropping_pages(void **state)
{
    const char *dir = *state;
    enum { COLS = 1024, ROWS = 4096, N = ROWS * COLS };
    char path[4096];
    float *got = vtest_alloc(N, sizeof *got), *own = vtest_normals(N + 1, 3);
    vptq_map map;
    vptq_err err = {0};
    vtest_path(path, sizeof path, dir, "numbers");
    vtest_write_file(path, own, (N + 1) * sizeof *own);
    assert_ok(vptq_map_open(path, &map, &err), &err);
    vptq_tensor t = matrix(VPTQ_F32, ROWS, COLS, map.data + sizeof *own);
    t.bytes = N * sizeof *own; /* begins and ends within a page */
    t.mapped = true;
    size_t before = shared_pages();
    assert_ok(vptq_tensor_read(&t, 0, ROWS, got, &err), &err);
    size_t read = shared_pages();
    vptq_tensor_forget(&t);
    size_t after = shared_pages(), pages = t.bytes / (size_t)sysconf(_SC_PAGESIZE);
    /* half of them, because the system counts approximately */
    assert_true(read >= before + pages / 2);
    assert_true(after + pages / 2 <= read);
    memset(got, 0, t.bytes);
    assert_ok(vptq_tensor_read(&t, 0, ROWS, got, &err), &err);
    assert_same_f32(got, own + 1, N);
    vptq_tensor in_memory = matrix(VPTQ_F32, ROWS, COLS, own);
    in_memory.bytes = t.bytes;
    vptq_tensor_forget(&in_memory);
    assert_same_f32(own + 1, got, N);
    vptq_map_release(&map);
    free(own);
    free(got);
}

/* A source whose byte i is i * 7 and which fails from byte `limit` on. */
static vptq_status counted(const void *arg, size_t at, size_t n, void *dst, vptq_err *err)
{
    const size_t *limit = arg;
    if (at + n > *limit)
        return vptq_fail(err, VPTQ_E_CHECKSUM, "no byte %zu", at + n);
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)dst)[i] = (uint8_t)((at + i) * 7);
    return VPTQ_OK;
}

/* Bytes in memory are returned as views; others are read on request, in whole elements. */
static void test_bytes(void **state)
{
    (void)state;
    uint8_t data[64] = {1, 2, 3}, buffer[64];
    size_t limit = 60;
    const uint8_t *bytes = NULL;
    vptq_err err = {0};
    const vptq_tensor_source source = {counted, &limit};
    vptq_tensor t = matrix(VPTQ_F16, 4, 8, data);
    t.bytes = sizeof data;
    assert_ok(vptq_tensor_bytes(&t, 1, 5, NULL, &bytes, &err), &err);
    assert_ptr_equal(bytes, data + 1);
    t.data = NULL;
    assert_fails(vptq_tensor_bytes(&t, 0, 1, buffer, &bytes, &err), VPTQ_E_CHECKSUM, &err,
                 "file.x: tensor 'w' is damaged");
    t.source = &source;
    assert_ok(vptq_tensor_bytes(&t, 10, 50, buffer, &bytes, &err), &err);
    assert_ptr_equal(bytes, buffer);
    for (size_t i = 0; i < 50; i++)
        assert_int_equal(bytes[i], (uint8_t)((10 + i) * 7));
    assert_fails(vptq_tensor_bytes(&t, 0, 64, buffer, &bytes, &err), VPTQ_E_CHECKSUM, &err,
                 "no byte 64");
    assert_ok(vptq_tensor_bytes(&t, 64, 0, buffer, &bytes, &err), &err);

    assert_int_equal(vptq_tensor_piece(&t, 0), 64);
    assert_int_equal(vptq_tensor_piece(&t, 60), 4);
    t.bytes = (size_t)3 * VPTQ_TENSOR_PIECE + 2;
    assert_int_equal(vptq_tensor_piece(&t, VPTQ_TENSOR_PIECE), VPTQ_TENSOR_PIECE);
    assert_int_equal(vptq_tensor_piece(&t, (size_t)3 * VPTQ_TENSOR_PIECE), 2);
    t.type = VPTQ_Q4_1; /* blocks of 20 bytes are not divided */
    assert_int_equal(vptq_tensor_piece(&t, 0) % 20, 0);
}

/* The error gives the position of a bad value in the tensor, not in the piece. */
static void test_check_piece(void **state)
{
    (void)state;
    uint16_t x[32] = {0};
    vptq_err err = {0};
    vptq_tensor t = matrix(VPTQ_F16, 4, 8, x);
    const uint8_t *bytes = (const uint8_t *)x;
    x[21] = 0x7c00;
    assert_ok(vptq_tensor_check_piece(&t, bytes, 0, 42, &err), &err);
    assert_fails(vptq_tensor_check_piece(&t, bytes + 32, 32, 32, &err), VPTQ_E_NUMERIC, &err,
                 "row 2, column 5");
    assert_ok(vptq_tensor_check_piece(&t, bytes + 44, 44, 20, &err), &err);
}

static void test_set(void **state)
{
    (void)state;
    enum { N = 300 };
    vptq_tensor_set s;
    vptq_err err = {0};
    const vptq_tensor *t = NULL;
    vptq_tensor_set_init(&s, NULL);
    assert_null(vptq_tensor_find(&s, "t0"));
    assert_fails(vptq_tensor_need(&s, "t0", 0, 1, &t, &err), VPTQ_E_FORMAT, &err,
                 "tensor 't0' is missing");
    for (uint64_t i = 0; i < N; i++) {
        char name[16], file[16];
        snprintf(name, sizeof name, "t%d", (int)(i * 7 % N));
        snprintf(file, sizeof file, "f%d", (int)(i / 200));
        vptq_tensor x = matrix(VPTQ_F32, i * 7 % N + 1, 2, NULL);
        x.name = name;
        x.file = file;
        assert_ok(vptq_tensor_set_add(&s, &x, &err), &err);
    }
    vptq_tensor twice = matrix(VPTQ_F32, 1, 1, NULL);
    twice.name = "t5";
    assert_fails(vptq_tensor_set_add(&s, &twice, &err), VPTQ_E_FORMAT, &err,
                 "file.x: duplicate tensor 't5'");
    twice.name = "a\033[1m";
    assert_fails(vptq_tensor_set_add(&s, &twice, &err), VPTQ_E_FORMAT, &err,
                 "control character");
    assert_ok(vptq_tensor_set_finish(&s, &err), &err);
    assert_int_equal(s.count, N);
    for (size_t i = 1; i < s.count; i++)
        assert_true(strcmp(s.tensors[i - 1].name, s.tensors[i].name) < 0);
    for (uint64_t i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", (int)i);
        assert_ok(vptq_tensor_need(&s, name, i + 1, 2, &t, &err), &err);
        assert_string_equal(t->name, name);
    }
    assert_fails(vptq_tensor_need(&s, "t7", 8, 3, &t, &err), VPTQ_E_SHAPE, &err,
                 "f0: tensor 't7' has shape [8, 2], expected [8, 3]");
    assert_fails(vptq_tensor_need(&s, "t7", 0, 16, &t, &err), VPTQ_E_SHAPE, &err,
                 "expected [16]");
    assert_fails(vptq_tensor_need(&s, "none", 8, 3, &t, &err), VPTQ_E_FORMAT, &err,
                 "tensor 'none' is missing (the file has 300 tensors)");
    vptq_tensor_set_release(&s);
}

static vptq_status fill_set(void *arg, vptq_mem *mem, vptq_err *err)
{
    (void)arg;
    vptq_status st = VPTQ_OK;
    vptq_tensor_set s;
    vptq_tensor_set_init(&s, mem);
    for (int i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        vptq_tensor x = matrix(VPTQ_F32, 1, 1, NULL);
        x.name = name;
        VPTQ_TRY(vptq_tensor_set_add(&s, &x, err));
    }
    VPTQ_TRY(vptq_tensor_set_finish(&s, err));
out:
    vptq_tensor_set_release(&s);
    return st;
}

static void test_set_out_of_memory(void **state)
{
    (void)state;
    vtest_oom_walk(fill_set, NULL);
}

VTEST_MAIN(cmocka_unit_test(test_shapes), cmocka_unit_test(test_read_types),
           cmocka_unit_test(test_read_blocks_and_rounding),
           cmocka_unit_test(test_rows_within_blocks), cmocka_unit_test(test_rope_heads),
           cmocka_unit_test(test_check_finite), scratch_test(test_dropping_pages),
           cmocka_unit_test(test_bytes), cmocka_unit_test(test_check_piece),
           cmocka_unit_test(test_set), cmocka_unit_test(test_set_out_of_memory))
