/* Tests .vptq archives: round trips, the same bytes for any number of threads, and every kind
 * of damaged or hostile file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/vptq/archive.h"
#include "formats/vptq/archive_internal.h"
#include "tests/support/varchive.h"
#include "tests/support/vtest.h"

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

/* The sample: a text, a tensor of more than three frames, a small tensor and an empty one. */
enum { BIG_ROWS = 3301, BIG_COLS = 1001 };
static const char text[] = "{\"model_type\": \"llama\"}\n";
static const int8_t small_data[6] = {1, -2, 3, -4, 5, -6};

/* Adds the large tensor in steps of `step` bytes; 0 = as a whole. */
static vptq_status add_big(vptq_archive_writer *w, const float *big, size_t step, vptq_err *err)
{
    const vptq_tensor t = tensor("model.big", VPTQ_F32, step ? NULL : big, BIG_ROWS, BIG_COLS);
    if (!step)
        return varchive_add(w, &t, 3, err);
    VPTQ_CHECK(vptq_archive_begin_tensor(w, &t, 3, err));
    for (size_t at = 0, part; at < t.bytes; at += part) {
        part = t.bytes - at < step ? t.bytes - at : step;
        VPTQ_CHECK(vptq_archive_put(w, (const uint8_t *)big + at, part, err));
    }
    return vptq_archive_end(w, err);
}

static vptq_status write_in_steps(const char *path, bool force, const float *big, size_t step,
                                  int threads, vptq_mem *mem, vptq_err *err)
{
    vptq_archive_writer *w = NULL;
    vptq_status st = vptq_archive_writer_open(path, force, threads, mem, &w, err);
    if (st)
        return st;
    vptq_tensor b = tensor("model.few", VPTQ_I8, small_data, 2, 3);
    vptq_tensor c = tensor("model.none", VPTQ_F16, NULL, 0, 5);
    VPTQ_TRY(vptq_archive_add_file(w, "config.json", text, sizeof text - 1, 3, err));
    VPTQ_TRY(add_big(w, big, step, err));
    VPTQ_TRY(varchive_add(w, &b, 3, err));
    VPTQ_TRY(varchive_add(w, &c, 3, err));
    VPTQ_TRY(vptq_archive_writer_commit(w, err));
out:
    vptq_archive_writer_abort(w);
    return st;
}

static vptq_status write_sample(const char *path, bool force, const float *big, int threads,
                                vptq_mem *mem, vptq_err *err)
{
    return write_in_steps(path, force, big, 0, threads, mem, err);
}

static float *big_data(void)
{
    float *x = malloc(sizeof *x * BIG_ROWS * BIG_COLS);
    assert_non_null(x);
    vtest_normal(x, (size_t)BIG_ROWS * BIG_COLS, 7);
    return x;
}

static vptq_archive *open_ok(const char *path)
{
    vptq_archive *a = NULL;
    vptq_err err = {0};
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    return a;
}

/* Writes the sample to *state/a.vptq and opens it. */
static vptq_archive *open_sample(void **state, const float *big, char path[4096])
{
    vptq_err err = {0};
    vtest_path(path, 4096, *state, "a.vptq");
    assert_ok(write_sample(path, false, big, 2, NULL, &err), &err);
    return open_ok(path);
}

static void test_round_trip(void **state)
{
    char path[4096];
    vptq_err err = {0};
    float *big = big_data();
    vptq_archive *a = open_sample(state, big, path);
    assert_true(vptq_archive_is(path));
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
    int8_t small[6];
    e = vptq_archive_at(a, 2);
    assert_ok(vptq_archive_load(a, e, 2, small, &err), &err);
    assert_memory_equal(small, small_data, sizeof small);
    e = vptq_archive_at(a, 3);
    assert_int_equal(e->size, 0);
    assert_int_equal(e->tensor.shape[1], 5);
    assert_ok(vptq_archive_load(a, e, 2, small, &err), &err);
    vptq_archive_close(a);
    free(back);
    free(big);
}

static void test_same_bytes_for_any_threads(void **state)
{
    char path[4096];
    vptq_err err = {0};
    float *big = big_data();
    size_t n;
    vtest_path(path, sizeof path, *state, "a.vptq");
    assert_ok(write_sample(path, false, big, 1, NULL, &err), &err);
    char *first = vtest_read_file(path, &n);
    for (int threads = 2; threads <= 5; threads++) {
        assert_ok(write_sample(path, true, big, threads, NULL, &err), &err);
        vtest_expect_file(path, first, n);
    }
    assert_fails(write_sample(path, false, big, 1, NULL, &err), VPTQ_E_EXISTS, &err, path);
    free(first);
    free(big);
}

static void test_bad_names(void **state)
{
    static const char *const names[] = {"",
                                        ".",
                                        "..",
                                        ".hidden",
                                        "a/b.txt",
                                        "/etc/a.txt",
                                        "a b.txt",
                                        "a\n.txt",
                                        "lock",
                                        "quantize.json",
                                        "a.py",
                                        "a.pt",
                                        ".txt",
                                        "pytorch_model.bin",
                                        "model.safetensors",
                                        "LICENSE.py",
                                        "a.jsonl",
                                        "SHA256SUMS",
                                        "adapter_config.json",
                                        "model.safetensors.index.json"};
    char path[4096];
    vptq_err err = {0};
    vptq_archive_writer *w = NULL;
    vtest_path(path, sizeof path, *state, "a.vptq");
    assert_ok(vptq_archive_writer_open(path, false, 1, NULL, &w, &err), &err);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_fails(vptq_archive_add_file(w, names[i], "x", 1, 3, &err), VPTQ_E_UNSUPPORTED,
                     &err, "not a valid entry name");
    assert_ok(vptq_archive_add_file(w, "a.b.txt", "x", 1, 3, &err), &err);
    assert_ok(vptq_archive_add_file(w, "LICENSE-MIT", "x", 1, 3, &err), &err);
    assert_fails(vptq_archive_add_file(w, "a.b.txt", "x", 1, 3, &err), VPTQ_E_UNSUPPORTED, &err,
                 "duplicate entry 'a.b.txt'");
    vptq_archive_writer_abort(w);
    assert_false(vptq_archive_is(path));
}

/* Every range of an entry gives its bytes, and only the frames that hold it are read. */
static void test_ranges(void **state)
{
    enum { FRAME = VPTQ_ARCHIVE_FRAME_RAW, ALL = BIG_ROWS * BIG_COLS * 4 };
    static const size_t edges[] = {
        0, 1, 2, 4095, FRAME - 1, FRAME, 5 << 20, 8 << 20, (8 << 20) + 3, ALL - 1, ALL};
    enum { EDGES = sizeof edges / sizeof edges[0] };
    char path[4096];
    vptq_err err = {0};
    float *big = big_data();
    uint8_t *back = malloc(edges[EDGES - 1]);
    vptq_archive *a = open_sample(state, big, path);
    const vptq_archive_entry *e = vptq_archive_find(a, "model.big", true);
    for (size_t i = 0; i < EDGES; i++)
        for (size_t j = i; j < EDGES; j++) {
            size_t n = edges[j] - edges[i];
            memset(back, 0x55, n);
            assert_ok(vptq_archive_load_part(a, e, edges[i], n, 1 + (int)(j % 3), back, &err),
                      &err);
            assert_memory_equal(back, (const uint8_t *)big + edges[i], n);
        }
    assert_ok(vptq_archive_load(a, e, 2, NULL, &err), &err);
    vptq_archive_close(a);
    /* damage in the second frame does not affect reading the first and the third */
    size_t n;
    char *bytes = vtest_read_file(path, &n);
    bytes[n / 3] ^= 1;
    vtest_write_file(path, bytes, n);
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    e = vptq_archive_find(a, "model.big", true);
    assert_ok(vptq_archive_load_part(a, e, 0, 4 << 20, 2, back, &err), &err);
    assert_ok(vptq_archive_load_part(a, e, 8 << 20, 100, 2, back, &err), &err);
    assert_fails(vptq_archive_load_part(a, e, (8 << 20) - 1, 2, 2, back, &err), VPTQ_E_CHECKSUM,
                 &err, "tensor 'model.big' is damaged: frame 2 of 4");
    assert_fails(vptq_archive_load(a, e, 2, NULL, &err), VPTQ_E_CHECKSUM, &err, "frame 2 of 4");
    vptq_archive_close(a);
    free(bytes);
    free(back);
    free(big);
}

/* The size of the pieces does not change the file. */
static void test_pieces(void **state)
{
    static const size_t steps[] = {1 << 20, 999983, 5000011, SIZE_MAX};
    char path[4096], other[4096];
    vptq_err err = {0};
    float *big = big_data();
    size_t n;
    vtest_path(path, sizeof path, *state, "a.vptq");
    vtest_path(other, sizeof other, *state, "b.vptq");
    assert_ok(write_sample(path, false, big, 2, NULL, &err), &err);
    char *whole = vtest_read_file(path, &n);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_ok(write_in_steps(other, true, big, steps[i], 1 + (int)i, NULL, &err), &err);
        vtest_expect_file(other, whole, n);
    }
    free(whole);
    free(big);
}

/* A file truncated while it is open causes an error, not a crash. */
static void test_truncated_while_open(void **state)
{
    char path[4096];
    vptq_err err = {0};
    float *big = big_data(), *back = malloc(sizeof *back * BIG_ROWS * BIG_COLS);
    vptq_archive *a = open_sample(state, big, path);
    assert_int_equal(truncate(path, 5 << 20), 0);
    assert_fails(vptq_archive_load(a, vptq_archive_find(a, "model.big", true), 2, back, &err),
                 VPTQ_E_IO, &err, "a.vptq': it ends before byte");
    vptq_archive_close(a);
    free(back);
    free(big);
}

/* An archive written by another implementation (tests/golden/make_pack_corpus.py). */
static void test_other_writer(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_archive *a = NULL;
    char copy[32] = {0};
    uint16_t norm[20];
    uint32_t words[6];
    uint8_t blocks[68];
    float one = 0;
    assert_ok(vptq_archive_open("tests/fuzz/corpus/archive/tensors", NULL, &a, &err), &err);
    assert_int_equal(vptq_archive_count(a), 7);
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
    e = vptq_archive_find(a, "lm_head.weight", true);
    assert_int_equal(e->tensor.type, VPTQ_Q8_0);
    assert_int_equal(e->planes, 1);
    assert_ok(vptq_archive_load(a, e, 1, blocks, &err), &err);
    assert_int_equal(vptq_get_le(blocks, 2), 0x3c00);
    assert_int_equal(blocks[67], 31);
    e = vptq_archive_find(a, "model.embed_tokens.weight", true);
    assert_int_equal(e->tensor.type, VPTQ_Q6_K);
    assert_int_equal(e->size, 2 * 210);
    vptq_archive_close(a);
}

/* Begins an archive with the text. */
static vptq_archive_writer *begin_archive(const char *path, int level)
{
    vptq_archive_writer *w = NULL;
    vptq_err err = {0};
    assert_ok(vptq_archive_writer_open(path, true, 1, NULL, &w, &err), &err);
    assert_ok(vptq_archive_add_file(w, "config.json", text, sizeof text - 1, level, &err),
              &err);
    return w;
}

static void end_archive(vptq_archive_writer *w)
{
    vptq_err err = {0};
    assert_ok(vptq_archive_writer_commit(w, &err), &err);
    vptq_archive_writer_abort(w);
}

static void write_small(const char *path)
{
    vptq_archive_writer *w = begin_archive(path, 3);
    vptq_err err = {0};
    float x[96];
    vtest_normal(x, 96, 3);
    vptq_tensor t = tensor("t", VPTQ_F32, x, 8, 12);
    assert_ok(varchive_add(w, &t, 3, &err), &err);
    end_archive(w);
}

/* Reads everything; data read without an error must be what was written. */
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

/* Overwrites one byte of a file. */
static void change_byte(const char *path, size_t offset, char byte)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
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
        change_byte(path, i, (char)(bytes[i] ^ 1 << i % 8));
        found += read_small(path, NULL, &err) != VPTQ_OK;
        change_byte(path, i, bytes[i]);
    }
    assert_int_equal(found, n);
    assert_ok(read_small(path, NULL, &err), &err);
    for (size_t len = n; len-- > 0;) {
        assert_int_equal(truncate(path, (off_t)len), 0);
        assert_true(read_small(path, NULL, &err) == VPTQ_E_FORMAT);
    }
    free(bytes);
}

/* ---- one flipped byte anywhere in a larger archive ---- */

enum { TENSORS = 24, FLIPS = 1000, MAX_NUMBERS = 6000 };

static void write_many(const char *path)
{
    static float x[MAX_NUMBERS];
    vptq_archive_writer *w = begin_archive(path, 9);
    vptq_err err = {0};
    vtest_normal(x, MAX_NUMBERS, 11);
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "model.layers.%d.weight", i);
        vptq_dtype type = i % 3 == 0 ? VPTQ_F32 : i % 3 == 1 ? VPTQ_F16 : VPTQ_I32;
        vptq_tensor t = tensor(name, type, x, 3 + (uint64_t)i, 200);
        assert_ok(varchive_add(w, &t, 1 + i % 19, &err), &err);
    }
    end_archive(w);
}

/* Names the part of the file that holds byte `offset`.  The entries' frames begin at byte 16.
 */
static const char *part_at(const vptq_archive *a, size_t size, size_t offset)
{
    uint64_t end = VPTQ_ARCHIVE_HEADER_BYTES;
    if (offset < end)
        return "header";
    for (size_t i = 0; i < vptq_archive_count(a); i++) {
        end += vptq_archive_at(a, i)->packed_size;
        if (offset < end)
            return vptq_archive_at(a, i)->name;
    }
    return offset < size - VPTQ_ARCHIVE_FOOTER_BYTES ? "index" : "footer";
}

/* Opens and verifies everything; at most one thing may be wrong. */
static vptq_status verify_all(const char *path, vptq_err *err)
{
    vptq_archive *a = NULL;
    vptq_status first = vptq_archive_open(path, NULL, &a, err);
    if (first)
        return first;
    for (size_t i = 0; i < vptq_archive_count(a); i++) {
        vptq_err own = {0};
        vptq_status st = vptq_archive_load(a, vptq_archive_at(a, i), 1, NULL, &own);
        assert_true(!st || !first);
        if (st)
            *err = own;
        first = st ? st : first;
    }
    vptq_archive_close(a);
    return first;
}

static void test_flipped_bytes_name_the_entry(void **state)
{
    char path[4096];
    size_t size, hit[4] = {0};
    vptq_err err = {0};
    vptq_archive *a = NULL;
    vtest_path(path, sizeof path, *state, "a.vptq");
    write_many(path);
    assert_ok(verify_all(path, &err), &err);
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    char *bytes = vtest_read_file(path, &size);
    for (size_t i = 0; i < FLIPS; i++) {
        /* evenly spaced over the whole file, with a different change each time */
        size_t at = i * (size - 1) / (FLIPS - 1);
        const char *what = part_at(a, size, at);
        change_byte(path, at, (char)(bytes[at] ^ (int)(1 + i % 255)));
        vptq_status st = verify_all(path, &err);
        change_byte(path, at, bytes[at]);
        if ((st != VPTQ_E_CHECKSUM && st != VPTQ_E_FORMAT) || !strstr(err.text, what))
            fail_msg("byte %zu, in '%s': %s", at, what, st ? err.text : "no error");
        hit[strcmp(what, "header") == 0   ? 0
            : strcmp(what, "index") == 0  ? 1
            : strcmp(what, "footer") == 0 ? 2
                                          : 3]++;
    }
    assert_true(hit[0] && hit[1] && hit[2] && hit[3] > FLIPS / 2);
    vptq_archive_close(a);
    free(bytes);
}

static vptq_status write_walk(void *arg, vptq_mem *mem, vptq_err *err)
{
    const char *path = arg;
    vptq_archive_writer *w = NULL;
    vptq_status st = vptq_archive_writer_open(path, true, 1, mem, &w, err);
    if (st)
        return st;
    VPTQ_TRY(vptq_archive_add_file(w, "config.json", text, sizeof text - 1, 3, err));
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

VTEST_MAIN(scratch_test(test_round_trip), scratch_test(test_same_bytes_for_any_threads),
           scratch_test(test_bad_names), scratch_test(test_ranges), scratch_test(test_pieces),
           scratch_test(test_truncated_while_open), cmocka_unit_test(test_other_writer),
           scratch_test(test_every_flipped_byte),
           scratch_test(test_flipped_bytes_name_the_entry), scratch_test(test_out_of_memory))
