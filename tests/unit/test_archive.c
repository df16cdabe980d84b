/* Archives: round trips, the same bytes for any number of threads, and no trust in the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "formats/archive.h"
#include "formats/archive_layout.h"
#include "tests/vtest.h"

static vptq_tensor tensor(const char *name, vptq_dtype type, const void *data, uint64_t rows,
                          uint64_t cols)
{
    return (vptq_tensor){.name = name,
                         .type = type,
                         .dims = 2,
                         .shape = {rows, cols},
                         .data = data,
                         .bytes = (size_t)(rows * cols) * vptq_dtype_get(type)->bytes,
                         .round_to = VPTQ_F32};
}

/* A text, a tensor of three frames and a bit, a small one of bytes and an empty one. */
enum { BIG_ROWS = 3301, BIG_COLS = 1001 };
static const char text[] = "{\"model_type\": \"llama\"}\n";
static const int8_t few[6] = {1, -2, 3, -4, 5, -6};

static vptq_status write_sample(const char *path, bool force, const float *big, int threads,
                                vptq_mem *mem, vptq_err *err)
{
    vptq_archive_writer *w = NULL;
    vptq_status st = vptq_archive_writer_open(path, force, mem, &w, err);
    if (st)
        return st;
    vptq_tensor a = tensor("model.big", VPTQ_F32, big, BIG_ROWS, BIG_COLS);
    vptq_tensor b = tensor("model.few", VPTQ_I8, few, 2, 3);
    vptq_tensor c = tensor("model.none", VPTQ_F16, NULL, 0, 5);
    VPTQ_TRY(vptq_archive_add_file(w, "config.json", text, sizeof text - 1, err));
    VPTQ_TRY(vptq_archive_add_tensor(w, &a, threads, err));
    VPTQ_TRY(vptq_archive_add_tensor(w, &b, threads, err));
    VPTQ_TRY(vptq_archive_add_tensor(w, &c, threads, err));
    VPTQ_TRY(vptq_archive_writer_commit(w, err));
out:
    vptq_archive_writer_abort(w);
    return st;
}

static float *big_data(void)
{
    float *x = malloc(sizeof *x * BIG_ROWS * BIG_COLS);
    assert_non_null(x);
    vtest_normal(x, (size_t)BIG_ROWS * BIG_COLS, 7);
    return x;
}

static void test_round_trip(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vptq_archive *a = NULL;
    float *big = big_data();
    vtest_path(path, sizeof path, *state, "a.vptq");
    assert_ok(write_sample(path, false, big, 2, NULL, &err), &err);
    assert_true(vptq_archive_is(path));
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    assert_int_equal(vptq_archive_count(a), 4);
    assert_null(vptq_archive_find(a, "config.json", true));
    assert_null(vptq_archive_find(a, "model.big", false));
    const vptq_archive_entry *e = vptq_archive_find(a, "config.json", false);
    char copy[sizeof text] = {0};
    assert_int_equal(e->size, sizeof text - 1);
    assert_ok(vptq_archive_load(a, e, 1, copy, &err), &err);
    assert_string_equal(copy, text);
    e = vptq_archive_find(a, "model.big", true);
    assert_int_equal(e->frame_count, 4);
    assert_int_equal(e->tensor.type, VPTQ_F32);
    assert_int_equal(e->tensor.dims, 2);
    assert_int_equal(e->tensor.shape[0], BIG_ROWS);
    assert_int_equal(e->tensor.shape[1], BIG_COLS);
    assert_string_equal(e->tensor.name, "model.big");
    assert_true(e->packed_size < e->size);
    float *back = malloc((size_t)e->size);
    for (int threads = 1; threads <= 8; threads *= 2) {
        memset(back, 0, (size_t)e->size);
        assert_ok(vptq_archive_load(a, e, threads, back, &err), &err);
        assert_memory_equal(back, big, (size_t)e->size);
    }
    int8_t few_back[6];
    e = vptq_archive_at(a, 2);
    assert_ok(vptq_archive_load(a, e, 2, few_back, &err), &err);
    assert_memory_equal(few_back, few, sizeof few);
    e = vptq_archive_at(a, 3);
    assert_int_equal(e->size, 0);
    assert_int_equal(e->tensor.shape[1], 5);
    assert_ok(vptq_archive_load(a, e, 2, few_back, &err), &err);
    vptq_archive_close(a);
    free(back);
    free(big);
}

static void test_same_bytes_for_any_threads(void **state)
{
    char path[4096];
    vptq_err err = {0};
    float *big = big_data();
    size_t n, n2;
    vtest_path(path, sizeof path, *state, "a.vptq");
    assert_ok(write_sample(path, false, big, 1, NULL, &err), &err);
    char *first = vtest_read_file(path, &n);
    for (int threads = 2; threads <= 5; threads++) {
        assert_ok(write_sample(path, true, big, threads, NULL, &err), &err);
        char *again = vtest_read_file(path, &n2);
        assert_int_equal(n, n2);
        assert_memory_equal(first, again, n);
        free(again);
    }
    assert_fails(write_sample(path, false, big, 1, NULL, &err), VPTQ_E_EXISTS, &err, path);
    free(first);
    free(big);
}

static void test_bad_names(void **state)
{
    static const char *const names[] = {"", ".", "..", ".hidden", "a/b", "/etc", "a b", "a\n"};
    char path[4096];
    vptq_err err = {0};
    vptq_archive_writer *w = NULL;
    vtest_path(path, sizeof path, *state, "a.vptq");
    assert_ok(vptq_archive_writer_open(path, false, NULL, &w, &err), &err);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_fails(vptq_archive_add_file(w, names[i], "x", 1, &err), VPTQ_E_UNSUPPORTED, &err,
                     "no name");
    assert_ok(vptq_archive_add_file(w, "a", "x", 1, &err), &err);
    assert_fails(vptq_archive_add_file(w, "a", "x", 1, &err), VPTQ_E_UNSUPPORTED, &err,
                 "two entries");
    vptq_archive_writer_abort(w);
    assert_false(vptq_archive_is(path));
}

/* ---- archives made by hand, byte by byte as docs/formats.md has it ---- */

typedef struct hand_made {
    uint8_t bytes[4096], index[1024];
    size_t size, index_size;
    uint8_t *entry; /* the only one, in index */
} hand_made;

/* Frame and index of a file "f" with 5 bytes. */
static void begin(hand_made *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->bytes, VPTQ_ARCHIVE_MAGIC, 8);
    h->bytes[8] = 1;
    size_t n = ZSTD_compress(h->bytes + 16, 1024, "hello", 5, 1);
    h->size = 16 + n;
    h->index[0] = 1; /* frames */
    h->index[4] = 1; /* entries */
    h->index[8] = 16;
    vptq_put_le(h->index + 16, n, 4);
    vptq_put_le(h->index + 20, 5, 4);
    vptq_put_le(h->index + 24, vptq_hash("hello", 5, 0), 8);
    h->entry = h->index + 32;
    h->entry[1] = 1;  /* planes */
    h->entry[4] = 1;  /* name length */
    h->entry[12] = 1; /* frames */
    h->entry[16] = 5; /* size */
    h->entry[32] = 'f';
    h->index_size = 32 + 40;
}

static void finish(hand_made *h, const char *path)
{
    uint8_t hashed[48];
    size_t n = ZSTD_compress(h->bytes + h->size, 2048, h->index, h->index_size, 1);
    uint8_t *footer = h->bytes + h->size + n;
    vptq_put_le(footer, h->size, 8);
    vptq_put_le(footer + 8, n, 8);
    vptq_put_le(footer + 16, h->index_size, 8);
    vptq_put_le(footer + 24, vptq_hash(h->index, h->index_size, 0), 8);
    memcpy(hashed, h->bytes, 16);
    memcpy(hashed + 16, footer, 32);
    vptq_put_le(footer + 32, vptq_hash(hashed, 48, 0), 8);
    memcpy(footer + 40, VPTQ_ARCHIVE_END_MAGIC, 8);
    h->size += n + 48;
    vtest_write_file(path, h->bytes, h->size);
}

static void expect_bad(hand_made *h, const char *path, vptq_status code, const char *part)
{
    vptq_archive *a = NULL;
    vptq_err err = {0};
    finish(h, path);
    assert_fails(vptq_archive_open(path, NULL, &a, &err), code, &err, part);
}

static void test_hand_made(void **state)
{
    hand_made h;
    char path[4096], copy[6] = {0};
    vptq_err err = {0};
    vptq_archive *a = NULL;
    vtest_path(path, sizeof path, *state, "a.vptq");
    begin(&h);
    finish(&h, path);
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    assert_ok(vptq_archive_load(a, vptq_archive_find(a, "f", false), 1, copy, &err), &err);
    assert_string_equal(copy, "hello");
    vptq_archive_close(a);
}

static void test_bad_index(void **state)
{
    hand_made h;
    char path[4096];
    vtest_path(path, sizeof path, *state, "a.vptq");
    begin(&h);
    h.bytes[8] = 2;
    expect_bad(&h, path, VPTQ_E_UNSUPPORTED, "archive version 2, expected 1");
    begin(&h);
    h.index[3] = 0xff; /* four billion frames */
    expect_bad(&h, path, VPTQ_E_FORMAT, "index is cut off");
    begin(&h);
    h.index[7] = 0xff;
    expect_bad(&h, path, VPTQ_E_FORMAT, "index is cut off");
    begin(&h);
    h.index[8] = 17;
    expect_bad(&h, path, VPTQ_E_FORMAT, "not where the one before it ends");
    begin(&h);
    h.index[19] = 0x7f; /* packed size */
    expect_bad(&h, path, VPTQ_E_FORMAT, "not where the one before it ends");
    begin(&h);
    h.index[20] = 6; /* raw size that zstd's own header denies */
    h.entry[16] = 6;
    expect_bad(&h, path, VPTQ_E_FORMAT, "size of a frame is wrong");
    begin(&h);
    h.bytes[h.size++] = 0; /* a byte that belongs to no frame */
    expect_bad(&h, path, VPTQ_E_FORMAT, "do not reach the index");
    begin(&h);
    h.index_size += 8;
    expect_bad(&h, path, VPTQ_E_FORMAT, "does not end where it should");
    begin(&h);
    h.entry[0] = 2;
    expect_bad(&h, path, VPTQ_E_FORMAT, "entry of its index is wrong");
    begin(&h);
    h.entry[1] = 3;
    expect_bad(&h, path, VPTQ_E_FORMAT, "byte planes");
    begin(&h);
    h.entry[1] = 2; /* 5 bytes are not whole pairs */
    expect_bad(&h, path, VPTQ_E_FORMAT, "byte planes");
    begin(&h);
    h.entry[4] = 200;
    expect_bad(&h, path, VPTQ_E_FORMAT, "cut off");
    begin(&h);
    h.entry[8] = 1;
    expect_bad(&h, path, VPTQ_E_FORMAT, "frames of an entry");
    begin(&h);
    h.entry[12] = 2;
    expect_bad(&h, path, VPTQ_E_FORMAT, "frames of an entry");
    begin(&h);
    h.entry[16] = 4;
    expect_bad(&h, path, VPTQ_E_FORMAT, "sizes of an entry's frames");
    begin(&h);
    h.entry[22] = 1; /* 2^48 bytes */
    expect_bad(&h, path, VPTQ_E_FORMAT, "frames of an entry");
    begin(&h);
    h.entry[32] = '/';
    expect_bad(&h, path, VPTQ_E_FORMAT, "name that none can have");
    begin(&h);
    h.entry[0] = 1; /* a tensor of an unknown type */
    memcpy(h.entry + 24, "F99", 3);
    expect_bad(&h, path, VPTQ_E_UNSUPPORTED, "F99");
    begin(&h);
    h.entry[0] = 1; /* a scalar of 5 bytes */
    memcpy(h.entry + 24, "F32", 3);
    expect_bad(&h, path, VPTQ_E_FORMAT, "not that of its type and shape");
    begin(&h);
    h.entry[2] = 9; /* dimensions */
    h.entry[0] = 1;
    expect_bad(&h, path, VPTQ_E_FORMAT, "entry of its index is wrong");
}

/* Frames of zeros are tiny: an archive that is almost nothing else is refused before anybody
 * allocates what it claims. */
static void test_bomb(void **state)
{
    enum { FRAMES = 100 };
    uint8_t *zeros = calloc(VPTQ_ARCHIVE_FRAME_RAW, 1), *index, packed[1024];
    char path[4096];
    vptq_err err = {0};
    vptq_archive *a = NULL;
    size_t n = ZSTD_compress(packed, sizeof packed, zeros, VPTQ_ARCHIVE_FRAME_RAW, 1);
    size_t index_size = 8 + FRAMES * 24 + 40;
    index = calloc(index_size, 1);
    uint8_t *file = calloc(16 + FRAMES * n + 65536, 1);
    assert_true(!ZSTD_isError(n) && zeros && index && file);
    memcpy(file, VPTQ_ARCHIVE_MAGIC, 8);
    file[8] = 1;
    vptq_put_le(index, FRAMES, 4);
    index[4] = 1;
    for (size_t i = 0; i < FRAMES; i++) {
        uint8_t *r = index + 8 + i * 24;
        memcpy(file + 16 + i * n, packed, n);
        vptq_put_le(r, 16 + i * n, 8);
        vptq_put_le(r + 8, n, 4);
        vptq_put_le(r + 12, VPTQ_ARCHIVE_FRAME_RAW, 4);
        vptq_put_le(r + 16, vptq_hash(zeros, VPTQ_ARCHIVE_FRAME_RAW, 0), 8);
    }
    uint8_t *e = index + 8 + FRAMES * 24;
    e[1] = 1;
    e[4] = 1;
    vptq_put_le(e + 12, FRAMES, 4);
    vptq_put_le(e + 16, (uint64_t)FRAMES * VPTQ_ARCHIVE_FRAME_RAW, 8);
    e[32] = 'f';
    size_t at = 16 + FRAMES * n;
    size_t m = ZSTD_compress(file + at, 60000, index, index_size, 1);
    uint8_t *footer = file + at + m, hashed[48];
    vptq_put_le(footer, at, 8);
    vptq_put_le(footer + 8, m, 8);
    vptq_put_le(footer + 16, index_size, 8);
    vptq_put_le(footer + 24, vptq_hash(index, index_size, 0), 8);
    memcpy(hashed, file, 16);
    memcpy(hashed + 16, footer, 32);
    vptq_put_le(footer + 32, vptq_hash(hashed, 48, 0), 8);
    memcpy(footer + 40, VPTQ_ARCHIVE_END_MAGIC, 8);
    vtest_path(path, sizeof path, *state, "a.vptq");
    vtest_write_file(path, file, at + m + 48);
    assert_fails(vptq_archive_open(path, NULL, &a, &err), VPTQ_E_FORMAT, &err,
                 "would unpack to 419430400");
    free(file);
    free(index);
    free(zeros);
}

/* An archive that was written by another implementation (tests/golden/make_pack_corpus.py). */
static void test_other_writer(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_archive *a = NULL;
    char copy[32] = {0};
    uint16_t norm[20];
    uint32_t words[6];
    float one = 0;
    assert_ok(vptq_archive_open("tests/fuzz/corpus/archive/tensors", NULL, &a, &err), &err);
    assert_int_equal(vptq_archive_count(a), 5);
    const vptq_archive_entry *e = vptq_archive_find(a, "config.json", false);
    assert_ok(vptq_archive_load(a, e, 1, copy, &err), &err);
    assert_string_equal(copy, "{\"model_type\": \"llama\"}\n");
    e = vptq_archive_find(a, "model.norm.weight", true);
    assert_int_equal(e->tensor.type, VPTQ_F16);
    assert_ok(vptq_archive_load(a, e, 1, norm, &err), &err);
    for (size_t i = 0; i < 20; i++)
        assert_int_equal(norm[i], 0x3000 + 37 * i);
    e = vptq_archive_find(a, "P.indices", true);
    assert_int_equal(e->tensor.dims, 3);
    assert_ok(vptq_archive_load(a, e, 1, words, &err), &err);
    assert_int_equal(words[1], 0x07060504);
    assert_int_equal(vptq_archive_find(a, "none", true)->size, 0);
    e = vptq_archive_find(a, "scalar", true);
    assert_int_equal(e->tensor.dims, 0);
    assert_ok(vptq_archive_load(a, e, 1, &one, &err), &err);
    assert_true(one == 1.0F);
    vptq_archive_close(a);
}

static void write_small(const char *path)
{
    vptq_archive_writer *w = NULL;
    vptq_err err = {0};
    float x[96];
    vtest_normal(x, 96, 3);
    vptq_tensor t = tensor("t", VPTQ_F32, x, 8, 12);
    assert_ok(vptq_archive_writer_open(path, true, NULL, &w, &err), &err);
    assert_ok(vptq_archive_add_file(w, "config.json", text, sizeof text - 1, &err), &err);
    assert_ok(vptq_archive_add_tensor(w, &t, 1, &err), &err);
    assert_ok(vptq_archive_writer_commit(w, &err), &err);
    vptq_archive_writer_abort(w);
}

/* Reads everything; what comes without an error must be what was written. */
static vptq_status read_small(const char *path, vptq_mem *mem, vptq_err *err)
{
    vptq_archive *a = NULL;
    char copy[sizeof text] = {0};
    float x[96], want[96];
    vptq_status st = vptq_archive_open(path, mem, &a, err);
    if (st)
        return st;
    assert_int_equal(vptq_archive_count(a), 2);
    VPTQ_TRY(vptq_archive_load(a, vptq_archive_at(a, 0), 1, copy, err));
    assert_string_equal(copy, text);
    VPTQ_TRY(vptq_archive_load(a, vptq_archive_at(a, 1), 1, x, err));
    vtest_normal(want, 96, 3);
    assert_memory_equal(x, want, sizeof x);
out:
    vptq_archive_close(a);
    return st;
}

static void test_every_flipped_byte(void **state)
{
    char path[4096];
    size_t n, found = 0;
    vptq_err err = {0};
    vtest_path(path, sizeof path, *state, "a.vptq");
    write_small(path);
    assert_ok(read_small(path, NULL, &err), &err);
    char *bytes = vtest_read_file(path, &n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= (char)(1 << i % 8);
        vtest_write_file(path, bytes, n);
        bytes[i] ^= (char)(1 << i % 8);
        found += read_small(path, NULL, &err) != VPTQ_OK;
    }
    assert_true(found + 4 >= n); /* zstd has a few bits that mean nothing */
    for (size_t len = 0; len < n; len++) {
        vtest_write_file(path, bytes, len);
        assert_true(read_small(path, NULL, &err) == VPTQ_E_FORMAT);
    }
    free(bytes);
}

static vptq_status write_walk(void *arg, vptq_mem *mem, vptq_err *err)
{
    const char *path = arg;
    vptq_archive_writer *w = NULL;
    vptq_status st = vptq_archive_writer_open(path, true, mem, &w, err);
    if (st)
        return st;
    VPTQ_TRY(vptq_archive_add_file(w, "config.json", text, sizeof text - 1, err));
    VPTQ_TRY(vptq_archive_writer_commit(w, err));
out:
    vptq_archive_writer_abort(w);
    return st;
}

static vptq_status read_walk(void *arg, vptq_mem *mem, vptq_err *err)
{
    return read_small(arg, mem, err);
}

static void test_out_of_memory(void **state)
{
    char path[4096], other[4096];
    vtest_path(path, sizeof path, *state, "a.vptq");
    vtest_path(other, sizeof other, *state, "b.vptq");
    write_small(path);
    vtest_oom_walk(read_walk, path);
    vtest_oom_walk(write_walk, other);
}

#define IN_SCRATCH(test)                                                                       \
    cmocka_unit_test_setup_teardown(test, vtest_scratch_setup, vtest_scratch_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(test_round_trip),         IN_SCRATCH(test_same_bytes_for_any_threads),
        IN_SCRATCH(test_bad_names),          IN_SCRATCH(test_hand_made),
        IN_SCRATCH(test_bad_index),          IN_SCRATCH(test_bomb),
        cmocka_unit_test(test_other_writer), IN_SCRATCH(test_every_flipped_byte),
        IN_SCRATCH(test_out_of_memory),
    };
    return vtest_main(argc, argv, tests);
}
