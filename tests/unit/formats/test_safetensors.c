/* Tests safetensors files and sharded directories: reading, writing, and damaged files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/hf/safetensors.h"
#include "formats/hf/weights.h"
#include "tests/support/vtest.h"

/* Writes DIR/NAME: a safetensors file with this header and `data_bytes` bytes 0, 1, 2, ... */
static void put_file(const char *dir, const char *name, const char *header, size_t data_bytes)
{
    char path[4096];
    size_t len = strlen(header), size = 8 + len + data_bytes;
    uint8_t *bytes = calloc(size, 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(len >> (8 * i));
    memcpy(bytes + 8, header, len);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + len + i] = (uint8_t)i;
    vtest_path(path, sizeof path, dir, name);
    vtest_write_file(path, bytes, size);
    free(bytes);
}

static vptq_status read_file(const char *dir, const char *name, vptq_tensor_set *set,
                             vptq_err *err)
{
    char path[4096];
    vtest_path(path, sizeof path, dir, name);
    vptq_tensor_set_init(set, NULL);
    vptq_status st = vptq_safetensors_read(path, set, NULL, err);
    return st ? st : vptq_tensor_set_finish(set, err);
}

static void refuse_header(const char *dir, const char *header, size_t data_bytes,
                          vptq_status code, const char *part)
{
    vptq_tensor_set set;
    vptq_err err = {0};
    put_file(dir, "bad.safetensors", header, data_bytes);
    assert_fails(read_file(dir, "bad.safetensors", &set, &err), code, &err, part);
    assert_non_null(strstr(err.text, "/bad.safetensors: "));
    vptq_tensor_set_release(&set);
}

/* Data order differs from header order, one tensor is empty, one a scalar, trailing spaces. */
static void test_read(void **state)
{
    vptq_tensor_set set;
    vptq_err err = {0};
    char path[4096];
    vptq_metadata_list meta;
    put_file(*state, "a.safetensors",
             "{\"b\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
             "\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"},"
             "\"none\":{\"dtype\":\"F32\",\"shape\":[0,1152921504606846976],"
             "\"data_offsets\":[4,4]},"
             "\"a\":{\"data_offsets\":[0,4],\"dtype\":\"F32\",\"shape\":[]}}   ",
             16);
    vtest_path(path, sizeof path, *state, "a.safetensors");
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_safetensors_read(path, &set, &meta, &err), &err);
    assert_ok(vptq_tensor_set_finish(&set, &err), &err);
    assert_int_equal(meta.count, 2);
    assert_string_equal(meta.items[0].key, "format");
    assert_string_equal(meta.items[0].value, "pt");
    assert_string_equal(meta.items[1].value, "");
    assert_string_equal(vptq_metadata_find(&meta, "x"), "");
    assert_null(vptq_metadata_find(&meta, "y"));
    assert_int_equal(set.count, 3);
    const vptq_tensor *t = vptq_tensor_find(&set, "b");
    assert_int_equal(t->type, VPTQ_I16);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(t->data[0], 4);
    assert_string_equal(t->file, path);
    t = vptq_tensor_find(&set, "a");
    assert_int_equal(t->dims, 0);
    assert_int_equal(t->data[3], 3);
    assert_int_equal(vptq_tensor_find(&set, "none")->bytes, 0);
    vptq_tensor_set_release(&set);
}

static void test_bad_lengths(void **state)
{
    char path[4096];
    vptq_tensor_set set;
    vptq_err err = {0};
    uint8_t bytes[16] = {0};
    vtest_path(path, sizeof path, *state, "x.safetensors");

    vtest_write_file(path, bytes, 0);
    assert_fails(read_file(*state, "x.safetensors", &set, &err), VPTQ_E_FORMAT, &err,
                 "x.safetensors: 0 bytes are too few");
    vtest_write_file(path, bytes, 7);
    assert_fails(read_file(*state, "x.safetensors", &set, &err), VPTQ_E_FORMAT, &err,
                 "7 bytes are too few");
    vtest_write_file(path, bytes, 8);
    assert_fails(read_file(*state, "x.safetensors", &set, &err), VPTQ_E_FORMAT, &err,
                 "does not begin with '{'");
    bytes[7] = 0x10; /* 2^60 */
    vtest_write_file(path, bytes, 16);
    assert_fails(read_file(*state, "x.safetensors", &set, &err), VPTQ_E_FORMAT, &err,
                 "header has 1152921504606846976 bytes, expected at most 100000000");
    bytes[7] = 0;
    bytes[0] = 9;
    bytes[8] = '{';
    vtest_write_file(path, bytes, 16);
    assert_fails(read_file(*state, "x.safetensors", &set, &err), VPTQ_E_FORMAT, &err,
                 "header has 9 bytes, but the file only 16");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:1\n";
    vtest_write_file(path, pointer, sizeof pointer - 1);
    assert_fails(read_file(*state, "x.safetensors", &set, &err), VPTQ_E_FORMAT, &err,
                 "is a Git LFS pointer, not the weights; run 'git lfs pull'");
    assert_fails(read_file(*state, "gone.safetensors", &set, &err), VPTQ_E_IO, &err,
                 "gone.safetensors");
}

static void test_bad_headers(void **state)
{
    const char *dir = *state;
    refuse_header(dir, "[]", 0, VPTQ_E_FORMAT, "does not begin with '{'");
    refuse_header(dir, " {}", 0, VPTQ_E_FORMAT, "does not begin with '{'");
    refuse_header(dir, "{} x", 0, VPTQ_E_FORMAT, "header: line 1");
    refuse_header(dir, "{\"a\":", 0, VPTQ_E_FORMAT, "not valid JSON");
    refuse_header(dir, "{\"a\":1}", 0, VPTQ_E_FORMAT, "tensor 'a': its header entry is not");
    refuse_header(dir, "{\"__metadata__\":[]}", 0, VPTQ_E_FORMAT,
                  "'__metadata__' is not an object");
    refuse_header(dir, "{\"__metadata__\":{\"k\":1}}", 0, VPTQ_E_FORMAT,
                  "'__metadata__' key 'k' is not a string");
    refuse_header(dir,
                  "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                  "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                  2, VPTQ_E_FORMAT, "duplicate key '");
    char deep[20100] = "{\"a\":";
    memset(deep + 5, '[', 10000);
    memset(deep + 10005, ']', 10000);
    deep[20005] = '}';
    refuse_header(dir, deep, 0, VPTQ_E_FORMAT, "maximum parsing depth");
}

/* Writes a file with one tensor 'a', whose entry has this text. */
static void refuse_entry(const char *dir, const char *entry, size_t data_bytes,
                         vptq_status code, const char *part)
{
    char header[1024], sentence[256];
    snprintf(header, sizeof header, "{\"a\":{%s}}", entry);
    snprintf(sentence, sizeof sentence, "tensor 'a'%s", part);
    refuse_header(dir, header, data_bytes, code, sentence);
}

static void test_bad_entries(void **state)
{
    const char *dir = *state;
    const vptq_status bad = VPTQ_E_FORMAT;
#define D "\"dtype\":\"F32\","
#define O ",\"data_offsets\":[0,4]"
    refuse_entry(dir, "\"shape\":[1]" O, 4, bad, ": 'dtype' is not a string");
    refuse_entry(dir, "\"dtype\":\"F77\",\"shape\":[1]" O, 4, VPTQ_E_UNSUPPORTED, ": ");
    refuse_entry(dir, D "\"shape\":1" O, 4, bad, ": 'shape' is not a list");
    refuse_entry(dir, D "\"shape\":[-1]" O, 4, bad, ": 'shape' holds");
    refuse_entry(dir, D "\"shape\":[1.0]" O, 4, bad, ": 'shape' holds");
    refuse_entry(dir, D "\"shape\":[\"1\"]" O, 4, bad, ": 'shape' holds");
    refuse_entry(dir, D "\"shape\":[1,1,1,1,1,1,1,1,1]" O, 4, VPTQ_E_UNSUPPORTED,
                 " has 9 dimensions, expected at most 8");
    refuse_entry(dir, D "\"shape\":[1152921504606846976,1152921504606846976]" O, 4, bad,
                 ": the product of 'shape' overflows");
    refuse_entry(dir, D "\"shape\":[4611686018427387904]" O, 4, bad, ": the size in bytes");
    refuse_entry(dir, D "\"shape\":[1152921504606846976]" O, 4, bad,
                 " has 4 bytes, expected 4611686018427387904 for its type and shape");
    refuse_entry(dir, D "\"shape\":[1]", 4, bad, ": 'data_offsets' is not");
    refuse_entry(dir, D "\"shape\":[1],\"data_offsets\":[0]", 4, bad, ": 'data_offsets'");
    refuse_entry(dir, D "\"shape\":[1],\"data_offsets\":[-4,0]", 4, bad, ": 'data_offsets'");
    refuse_entry(dir, D "\"shape\":[1],\"data_offsets\":[0,4.0]", 4, bad, ": 'data_offsets'");
    refuse_entry(dir, D "\"shape\":[1],\"data_offsets\":[4,0]", 4, bad, " has bytes 4 to 0");
    refuse_entry(dir, D "\"shape\":[2],\"data_offsets\":[0,8]", 4, bad,
                 " has bytes 0 to 8, but 4 follow the header");
    refuse_entry(dir, D "\"shape\":[2],\"data_offsets\":[0,9223372036854775807]", 4, bad,
                 " has bytes 0 to 9223372036854775807, but 4 follow");
    refuse_entry(dir, D "\"shape\":[2]" O, 4, bad,
                 " has 4 bytes, expected 8 for its type and shape");
#undef D
#undef O
}

/* Writes a file with tensor 'a', of data bytes 0 to 4, and 'b', of the given bytes. */
static void refuse_offsets(const char *dir, int begin, int end, size_t data_bytes,
                           const char *part)
{
    char header[512];
    snprintf(header, sizeof header,
             "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
             "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]}}",
             begin, end);
    refuse_header(dir, header, data_bytes, VPTQ_E_FORMAT, part);
}

static void test_bad_offsets(void **state)
{
    refuse_offsets(*state, 3, 7, 7,
                   "tensor 'b' begins at data byte 3, inside tensor 'a', which ends at 4");
    refuse_offsets(*state, 0, 4, 4, "inside tensor");
    refuse_offsets(*state, 5, 9, 9,
                   "data bytes 4 to 5, before tensor 'b', belong to no tensor");
    refuse_offsets(*state, 4, 8, 9,
                   "the tensors end at data byte 8, but the file has 9 data bytes");
    refuse_offsets(*state, 4, 8, 7, "tensor 'b' has bytes 4 to 8, but 7 follow the header");
}

static const char *one(char header[256], const char *name)
{
    snprintf(header, 256, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
             name);
    return header;
}

static void put_index(const char *dir, const char *text)
{
    char path[4096];
    vtest_path(path, sizeof path, dir, "model.safetensors.index.json");
    vtest_write_file(path, text, strlen(text));
}

static void refuse_dir(const char *dir, const char *index, vptq_status code, const char *part)
{
    vptq_tensor_set set;
    vptq_err err = {0};
    if (index)
        put_index(dir, index);
    vptq_tensor_set_init(&set, NULL);
    assert_fails(vptq_hf_read_weights(dir, &set, &err), code, &err, part);
    vptq_tensor_set_release(&set);
}

static void accept_dir(const char *dir, size_t count)
{
    vptq_tensor_set set;
    vptq_err err = {0};
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_hf_read_weights(dir, &set, &err), &err);
    assert_int_equal(set.count, count);
    vptq_tensor_set_release(&set);
}

static void test_directories(void **state)
{
    const char *dir = *state;
    char header[256];
    char weights[4096];
    refuse_dir(dir, NULL, VPTQ_E_FORMAT,
               "has neither a *.safetensors file nor pytorch_model.bin");
    vtest_path(weights, sizeof weights, dir, "weights.bin");
    vtest_write_file(weights, "", 0);
    refuse_dir(dir, NULL, VPTQ_E_FORMAT, "only weights.bin; convert it");
    put_file(dir, "s1.safetensors", one(header, "a"), 4);
    put_file(dir, "s2.safetensors", one(header, "b"), 4);
    accept_dir(dir, 2);
    put_file(dir, "s3.safetensors", one(header, "b"), 4);
    refuse_dir(dir, NULL, VPTQ_E_FORMAT, "s3.safetensors: duplicate tensor 'b'");
    put_file(dir, "model.safetensors", one(header, "c"), 4);
    accept_dir(dir, 1);
    put_index(dir, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    accept_dir(dir, 2);
}

static void test_bad_index(void **state)
{
    const char *dir = *state;
    char header[256];
    put_file(dir, "s1.safetensors", one(header, "a"), 4);
    put_file(dir, "s2.safetensors", one(header, "b"), 4);
    refuse_dir(dir, "{\"weight_map\":{\"a\":\"gone.safetensors\"}}", VPTQ_E_IO,
               "gone.safetensors");
    refuse_dir(dir, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"x\":\"s1.safetensors\"}}",
               VPTQ_E_FORMAT, "index.json: tensor 'x' is not in s1.safetensors");
    refuse_dir(dir, "{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}",
               VPTQ_E_FORMAT, "tensor 'a' is not in s2.safetensors");
    const char *names[] = {"../s1.safetensors", "/etc/passwd", "..", ".", "", "x/y"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char index[256], part[128];
        snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        snprintf(part, sizeof part, "index.json: '%s' is not the name of a file", names[i]);
        refuse_dir(dir, index, VPTQ_E_FORMAT, part);
    }
    refuse_dir(dir, "{\"weight_map\":{\"a\":1}}", VPTQ_E_FORMAT,
               "the file of tensor 'a' is not a string");
    refuse_dir(dir, "{\"weight_map\":[]}", VPTQ_E_FORMAT, "'weight_map' is not an object");
    refuse_dir(dir, "[]", VPTQ_E_FORMAT, "'weight_map' is not an object");
    refuse_dir(dir, "{", VPTQ_E_FORMAT, "index.json: line 1");
}

static vptq_status read_dir_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_tensor_set set;
    vptq_tensor_set_init(&set, mem);
    vptq_status st = vptq_hf_read_weights(arg, &set, err);
    vptq_tensor_set_release(&set);
    return st;
}

static void test_out_of_memory(void **state)
{
    char header[256];
    put_file(*state, "s1.safetensors", one(header, "a"), 4);
    put_file(*state, "s2.safetensors",
             "{\"__metadata__\":{\"format\":\"pt\"},"
             "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
             4);
    put_index(*state, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    vtest_oom_walk(read_dir_counted, *state);
}

/* The bytes of a small file, written out by hand. */
static void test_save_bytes(void **state)
{
    static const char want[] =
        "\xc0\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"k\":\"v\\\"w\"},"
        "\"x\":{\"dtype\":\"I16\",\"shape\":[3],\"data_offsets\":[0,6]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,2],\"data_offsets\":[6,6]},"
        "\"y\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[6,7]}} "
        "\1\0\2\0\3\0\7";
    char path[4096];
    vptq_err err = {0};
    static const uint16_t x[] = {1, 2, 3};
    static const uint8_t y[] = {7};
    const vptq_tensor tensors[] = {
        {.name = "x", .type = VPTQ_I16, .dims = 1, .shape = {3}, .data = (const uint8_t *)x},
        {.name = "none", .type = VPTQ_F32, .dims = 2, .shape = {0, 2}},
        {.name = "y", .type = VPTQ_U8, .data = y},
    };
    const vptq_metadata meta = {"k", "v\"w"};
    vtest_path(path, sizeof path, *state, "x.safetensors");
    assert_ok(vptq_safetensors_save(path, tensors, 3, &meta, 1, &err), &err);
    size_t size;
    char *got = vtest_read_file(path, &size);
    assert_int_equal(size, sizeof want - 1);
    assert_memory_equal(got, want, size);
    free(got);
    assert_ok(vptq_safetensors_save(path, tensors, 2, NULL, 0, &err), &err);
    vptq_tensor_set set;
    assert_ok(read_file(*state, "x.safetensors", &set, &err), &err);
    assert_int_equal(set.count, 2);
    vptq_tensor_set_release(&set);
}

static void test_save_refuses(void **state)
{
    char path[4096];
    vptq_err err = {0};
    const vptq_tensor twice[] = {{.name = "x", .type = VPTQ_U8, .dims = 1, .shape = {0}},
                                 {.name = "x", .type = VPTQ_U8, .dims = 1, .shape = {0}}};
    const vptq_tensor block = {.name = "q", .type = VPTQ_Q4_0, .dims = 1, .shape = {32}};
    vtest_path(path, sizeof path, *state, "x.safetensors");
    assert_fails(vptq_safetensors_save(path, twice, 2, NULL, 0, &err), VPTQ_E_ARG, &err,
                 "x.safetensors: duplicate tensor 'x'");
    assert_fails(vptq_safetensors_save(path, &block, 1, NULL, 0, &err), VPTQ_E_ARG, &err,
                 "tensor 'q' of type Q4_0 cannot be written");
    const vptq_tensor latin = {.name = "\xe4", .type = VPTQ_U8, .dims = 1, .shape = {0}};
    assert_fails(vptq_safetensors_save(path, &latin, 1, NULL, 0, &err), VPTQ_E_FORMAT, &err,
                 "x.safetensors: tensor name '\\xe4' is not valid UTF-8");
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Provides bytes c, c + 1, ... in pieces of three, where c is the first letter of the name. */
static vptq_status fill_letters(void *arg, const vptq_tensor *t, vptq_safetensors_writer *w,
                                vptq_err *err)
{
    (void)arg;
    for (size_t at = 0; at < t->bytes; at += 3) {
        uint8_t piece[3];
        size_t n = t->bytes - at < 3 ? t->bytes - at : 3;
        for (size_t i = 0; i < n; i++)
            piece[i] = (uint8_t)((size_t)t->name[0] + at + i);
        VPTQ_CHECK(vptq_safetensors_write(w, piece, n, err));
    }
    return VPTQ_OK;
}

static const vptq_tensor letters[] = {
    {.name = "a", .type = VPTQ_U8, .dims = 1, .shape = {5}},
    {.name = "b", .type = VPTQ_F32, .dims = 2, .shape = {2, 3}},
    {.name = "c", .type = VPTQ_F16, .dims = 1, .shape = {3}},
    {.name = "d", .type = VPTQ_F32, .dims = 1, .shape = {1}},
    {.name = "e", .type = VPTQ_I64, .dims = 1, .shape = {0}},
    {.name = "f", .type = VPTQ_F64, .dims = 1, .shape = {2}},
    {.name = "g", .type = VPTQ_U8, .dims = 1, .shape = {40}},
};
enum { LETTERS = sizeof letters / sizeof letters[0] };

static void check_letters(const char *dir)
{
    vptq_tensor_set set;
    vptq_err err = {0};
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_hf_read_weights(dir, &set, &err), &err);
    assert_int_equal(set.count, LETTERS);
    for (size_t i = 0; i < LETTERS; i++) {
        const vptq_tensor *t = &set.tensors[i];
        assert_string_equal(t->name, letters[i].name);
        assert_int_equal(t->type, letters[i].type);
        assert_int_equal(t->shape[0], letters[i].shape[0]);
        assert_int_equal((uintptr_t)t->data % vptq_dtype_get(t->type)->bytes, 0);
        for (size_t b = 0; b < t->bytes; b++)
            assert_int_equal(t->data[b], (uint8_t)((size_t)t->name[0] + b));
    }
    vptq_tensor_set_release(&set);
}

static void test_write_single(void **state)
{
    vptq_err err = {0};
    char path[4096];
    size_t size;
    assert_ok(
        vptq_safetensors_write_dir(*state, letters, LETTERS, 1000, fill_letters, NULL, &err),
        &err);
    check_letters(*state);
    vtest_path(path, sizeof path, *state, "model.safetensors");
    char *text = vtest_read_file(path, &size);
    assert_non_null(strstr(text + 8, "{\"format\":\"pt\"}"));
    free(text);
    vtest_path(path, sizeof path, *state, "model.safetensors.index.json");
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Shards of at most 35 bytes: a + b + c = 35, then d + e + f, then g, which is larger. */
static void test_write_shards(void **state)
{
    vptq_err err = {0};
    char path[4096];
    size_t size;
    assert_ok(
        vptq_safetensors_write_dir(*state, letters, LETTERS, 35, fill_letters, NULL, &err),
        &err);
    check_letters(*state);
    vtest_path(path, sizeof path, *state, "model.safetensors.index.json");
    char *text = vtest_read_file(path, &size);
    assert_non_null(strstr(text, "\"total_size\": 95"));
    assert_non_null(strstr(text, "\"c\": \"model-00001-of-00003.safetensors\""));
    assert_non_null(strstr(text, "\"d\": \"model-00002-of-00003.safetensors\""));
    assert_non_null(strstr(text, "\"g\": \"model-00003-of-00003.safetensors\""));
    free(text);
    assert_fails(
        vptq_safetensors_write_dir(*state, letters, LETTERS, 35, fill_letters, NULL, &err),
        VPTQ_E_EXISTS, &err, "model-00001-of-00003.safetensors");
}

static vptq_status fill_fails(void *arg, const vptq_tensor *t, vptq_safetensors_writer *w,
                              vptq_err *err)
{
    if (t->name[0] == 'g')
        return vptq_fail(err, VPTQ_E_NUMERIC, "no bytes for '%s'", t->name);
    return fill_letters(arg, t, w, err);
}

static void test_write_fails(void **state)
{
    vptq_err err = {0};
    char path[4096];
    assert_fails(
        vptq_safetensors_write_dir(*state, letters, LETTERS, 1000, fill_fails, NULL, &err),
        VPTQ_E_NUMERIC, &err, "no bytes for 'g'");
    vtest_path(path, sizeof path, *state, "model.safetensors");
    assert_int_not_equal(access(path, F_OK), 0);
}

/* A file written by another program. */
static void test_real_file(void **state)
{
    (void)state;
    char dir[4096];
    vptq_tensor_set set;
    vptq_err err = {0};
    const vptq_tensor *t = NULL;
    if (!vtest_data(dir, sizeof dir, "models/stories260K-hf"))
        skip();
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_hf_read_weights(dir, &set, &err), &err);
    assert_int_equal(set.count, 2 + 5 * 9);
    assert_ok(vptq_tensor_need(&set, "model.embed_tokens.weight", 512, 64, &t, &err), &err);
    assert_int_equal(t->type, VPTQ_F16);
    for (size_t i = 0; i < set.count; i++)
        assert_ok(vptq_tensor_check_finite(&set.tensors[i], &err), &err);
    vptq_tensor_set_release(&set);
}

VTEST_MAIN(scratch_test(test_read), scratch_test(test_bad_lengths),
           scratch_test(test_bad_headers), scratch_test(test_bad_entries),
           scratch_test(test_bad_offsets), scratch_test(test_directories),
           scratch_test(test_bad_index), scratch_test(test_out_of_memory),
           scratch_test(test_save_bytes), scratch_test(test_save_refuses),
           scratch_test(test_write_single), scratch_test(test_write_shards),
           scratch_test(test_write_fails), cmocka_unit_test(test_real_file))
