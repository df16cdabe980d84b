/* Tests PyTorch files: those of tests/golden/make_torch_files.py, written ones, and damaged
 * ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/torch/file.h"
#include "formats/torch/pickle.h"
#include "formats/torch/zip.h"
#include "tests/support/vtest.h"

#define GOLDEN "tests/golden/torch/"

static const vptq_torch_item *need(const vptq_torch_file *t, const char *name,
                                   vptq_torch_kind kind)
{
    const vptq_torch_item *item = vptq_torch_find(t, name);
    assert_non_null(item);
    assert_int_equal(item->kind, kind);
    return item;
}

static void need_tensor(const vptq_torch_file *t, const char *name, vptq_dtype type,
                        const void *data, size_t bytes, uint64_t rows, uint64_t cols)
{
    const vptq_tensor *x = &need(t, name, VPTQ_TORCH_TENSOR)->tensor;
    assert_string_equal(x->name, name);
    assert_int_equal(x->type, type);
    assert_int_equal(x->bytes, bytes);
    assert_int_equal(x->dims, (rows > 0) + (cols > 0));
    if (x->dims)
        assert_int_equal(x->shape[0], rows);
    if (x->dims > 1)
        assert_int_equal(x->shape[1], cols);
    assert_memory_equal(x->data, data, bytes);
}

static void test_crc(void **state)
{
    (void)state;
    vptq_crc32 c;
    uint8_t bytes[64];
    vptq_crc32_init(&c);
    /* the check value of CRC catalogues */
    assert_int_equal(vptq_crc32_of(&c, (const uint8_t *)"123456789", 9), 0xcbf43926);
    assert_int_equal(vptq_crc32_of(&c, bytes, 0), 0);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(vptq_crc32_of(&c, bytes, 32), 0x190a55ad);
}

static void test_hessian(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_torch_file t;
    float flat[15], mu[5];
    assert_ok(vptq_torch_read(GOLDEN "hessian.pt", NULL, &t, &err), &err);
    assert_int_equal(t.count, 4);
    for (int i = 0; i < 15; i++)
        flat[i] = (float)i / 3 + 1;
    for (int i = 0; i < 5; i++)
        mu[i] = (float)i / 7 - 0.25f;
    need_tensor(&t, "flatH", VPTQ_F32, flat, sizeof flat, 15, 0);
    need_tensor(&t, "mu", VPTQ_F32, mu, sizeof mu, 5, 0);
    assert_int_equal(need(&t, "n", VPTQ_TORCH_INT)->i, 5);
    assert_int_equal(need(&t, "ct", VPTQ_TORCH_INT)->i, INT64_C(5000000000));
    assert_null(vptq_torch_find(&t, "flat"));
    vptq_torch_release(&t);
}

static void check_types(const char *path)
{
    static const float plain[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                       turned[12] = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11},
                       part[4] = {5, 6, 9, 10}, scalar[1] = {2.5f};
    static const uint16_t half[3] = {0x3e00, 0xc000, 0x7bff}, bf[3] = {0x3fc0, 0xc000, 0x4040};
    static const int64_t integers[4] = {1, -2, 3, INT64_C(1) << 40};
    vptq_err err = {0};
    vptq_torch_file t;
    assert_ok(vptq_torch_read(path, NULL, &t, &err), &err);
    assert_int_equal(t.count, 17);
    need_tensor(&t, "plain", VPTQ_F32, plain, 48, 3, 4);
    need_tensor(&t, "turned", VPTQ_F32, turned, 48, 4, 3);
    need_tensor(&t, "part", VPTQ_F32, part, 16, 2, 2);
    need_tensor(&t, "scalar", VPTQ_F32, scalar, 4, 0, 0);
    const vptq_tensor *empty = &need(&t, "empty", VPTQ_TORCH_TENSOR)->tensor;
    assert_int_equal(empty->bytes, 0);
    assert_int_equal(empty->shape[1], 3);
    need_tensor(&t, "half", VPTQ_F16, half, 6, 3, 0);
    need_tensor(&t, "bfloat16", VPTQ_BF16, bf, 6, 3, 0);
    need_tensor(&t, "long", VPTQ_I64, integers, 32, 2, 2);
    need_tensor(&t, "bool", VPTQ_BOOL, "\1\0\1", 3, 3, 0);
    assert_int_equal(need(&t, "small", VPTQ_TORCH_INT)->i, -7);
    assert_int_equal(need(&t, "big", VPTQ_TORCH_INT)->i, -(INT64_C(1) << 40));
    assert_true(need(&t, "real", VPTQ_TORCH_FLOAT)->f == 0.1);
    static const char *const others[] = {"text", "none", "yes", "list", "dict"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        need(&t, others[i], VPTQ_TORCH_OTHER);
    vptq_torch_release(&t);
}

static void test_types(void **state)
{
    (void)state;
    check_types(GOLDEN "types.pt");
    check_types(GOLDEN "types_protocol4.pt");
}

/* Files from the tests of another project. */
static void test_foreign_files(void **state)
{
    (void)state;
    static const int64_t numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    char path[4096];
    vptq_err err = {0};
    vptq_torch_file t;
    if (!vtest_data(path, sizeof path, "golden/torch_npz/test.pt"))
        skip();
    assert_ok(vptq_torch_read(path, NULL, &t, &err), &err);
    need_tensor(&t, "test", VPTQ_I64, numbers, 64, 2, 4);
    vptq_torch_release(&t);
    assert_true(vtest_data(path, sizeof path, "golden/torch_npz/fortran_tensor_3d.pth"));
    assert_ok(vptq_torch_read(path, NULL, &t, &err), &err);
    const vptq_tensor *x = &need(&t, "tensor_fortran", VPTQ_TORCH_TENSOR)->tensor;
    assert_int_equal(x->dims, 3);
    assert_int_equal(x->bytes, 24 * 8);
    int64_t sum = 0, value;
    for (size_t i = 0; i < 24; i++) {
        memcpy(&value, x->data + i * 8, 8);
        sum += value;
    }
    assert_int_equal(sum, 300); /* 1 to 24 */
    vptq_torch_release(&t);
}

static void test_rejected(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        vptq_status code;
        const char *part;
    } bad[] = {
        {"double.pt", VPTQ_E_UNSUPPORTED, "the pickle needs 'torch.DoubleStorage', expected"},
        {"object.pt", VPTQ_E_UNSUPPORTED, "the pickle needs 'fractions.Fraction', expected"},
        {"list.pt", VPTQ_E_FORMAT, "list.pt: the top-level object is not a dictionary"},
        {"deflated.pt", VPTQ_E_UNSUPPORTED, "data.pkl' is compressed or encrypted"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char path[256];
        vptq_err err = {0};
        vptq_torch_file t;
        snprintf(path, sizeof path, GOLDEN "%s", bad[i].name);
        assert_fails(vptq_torch_read(path, NULL, &t, &err), bad[i].code, &err, bad[i].part);
    }
}

/* ---- writing ---- */

static vptq_torch_item tensor_item(const char *name, vptq_dtype type, const void *data,
                                   uint64_t rows, uint64_t cols)
{
    vptq_torch_item item = {.name = name, .kind = VPTQ_TORCH_TENSOR};
    item.tensor =
        (vptq_tensor){.name = name, .type = type, .data = data, .dims = 1 + (cols > 0)};
    item.tensor.shape[0] = rows;
    item.tensor.shape[1] = cols;
    return item;
}

enum { ITEMS = 7 };

static void make_items(vptq_torch_item items[ITEMS])
{
    static const float x[6] = {1, -0.0f, 3e-45f, 4, 5, 0.1f};
    static const int64_t perm[3] = {2, 0, 1};
    items[0] = tensor_item("invH", VPTQ_F32, x, 2, 3);
    items[1] = tensor_item("perm", VPTQ_I64, perm, 3, 0);
    items[2] = tensor_item("zero_idx", VPTQ_BOOL, "\0\1\0", 3, 0);
    items[3] = (vptq_torch_item){.name = "n", .kind = VPTQ_TORCH_INT, .i = -3};
    items[4] =
        (vptq_torch_item){.name = "ct", .kind = VPTQ_TORCH_INT, .i = -(INT64_C(1) << 50)};
    items[5] = (vptq_torch_item){.name = "f", .kind = VPTQ_TORCH_FLOAT, .f = -0.1};
    items[6] = tensor_item("none", VPTQ_F16, "", 0, 0);
}

static void test_written_files(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vptq_torch_file t;
    vptq_torch_item items[ITEMS];
    make_items(items);
    vtest_path(path, sizeof path, *state, "w.pt");
    assert_ok(vptq_torch_write(path, false, items, ITEMS, NULL, &err), &err);
    assert_fails(vptq_torch_write(path, false, items, ITEMS, NULL, &err), VPTQ_E_EXISTS, &err,
                 "w.pt' already exists");
    assert_ok(vptq_torch_write(path, true, items, ITEMS, NULL, &err), &err);
    assert_ok(vptq_torch_read(path, NULL, &t, &err), &err);
    assert_int_equal(t.count, ITEMS);
    need_tensor(&t, "invH", VPTQ_F32, items[0].tensor.data, 24, 2, 3);
    need_tensor(&t, "perm", VPTQ_I64, items[1].tensor.data, 24, 3, 0);
    need_tensor(&t, "zero_idx", VPTQ_BOOL, "\0\1\0", 3, 3, 0);
    assert_int_equal(need(&t, "n", VPTQ_TORCH_INT)->i, -3);
    assert_int_equal(need(&t, "ct", VPTQ_TORCH_INT)->i, -(INT64_C(1) << 50));
    assert_true(need(&t, "f", VPTQ_TORCH_FLOAT)->f == -0.1);
    const vptq_tensor *x = &need(&t, "invH", VPTQ_TORCH_TENSOR)->tensor;
    assert_int_equal((size_t)(x->data - t.map.data) % 64, 0);
    vptq_torch_release(&t);
    items[0].tensor.type = VPTQ_I8;
    assert_fails(vptq_torch_write(path, true, items, ITEMS, NULL, &err), VPTQ_E_UNSUPPORTED,
                 &err, "tensor 'invH' is I8");
}

/* ---- damaged files ---- */

static void read_any(const char *path, const char *data, size_t size, bool must_fail)
{
    vptq_err err = {0};
    vptq_torch_file t;
    vtest_write_file(path, data, size);
    vptq_status st = vptq_torch_read(path, NULL, &t, &err);
    assert_true(!must_fail || st != VPTQ_OK);
    assert_true(!st || err.text[0]);
    if (!st)
        vptq_torch_release(&t);
}

/* Every truncated file is rejected, and so is a flipped bit of the data. */
static void test_damaged(void **state)
{
    char path[4096];
    size_t size;
    vptq_err err = {0};
    vptq_torch_file t;
    char *data = vtest_read_file(GOLDEN "hessian.pt", &size);
    vtest_path(path, sizeof path, *state, "d.pt");
    for (size_t n = 0; n < size; n++)
        read_any(path, data, n, true);
    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            data[i] = (char)(data[i] ^ 1 << bit);
            read_any(path, data, size, false);
            data[i] = (char)(data[i] ^ 1 << bit);
        }
    /* one bit of the numbers */
    assert_ok(vptq_torch_read(GOLDEN "hessian.pt", NULL, &t, &err), &err);
    size_t at = (size_t)(vptq_torch_find(&t, "mu")->tensor.data - t.map.data);
    vptq_torch_release(&t);
    data[at + 3] ^= 1;
    vtest_write_file(path, data, size);
    assert_fails(vptq_torch_read(path, NULL, &t, &err), VPTQ_E_CHECKSUM, &err,
                 "d.pt: entry 'hessian/data/1' is damaged: its CRC-32 is");
    free(data);
}

/* Writes a file with one pickle and a storage "0" of 4 floats, with valid checksums. */
static void refuse_pickle(const char *path, const char *pickle, size_t size, vptq_status code,
                          const char *part)
{
    static const float zeros[4];
    vptq_err err = {0};
    vptq_zip_writer w;
    vptq_torch_file t;
    assert_ok(vptq_zip_writer_open(path, true, NULL, &w, &err), &err);
    assert_ok(vptq_zip_write(&w, "a/data.pkl", pickle, size, &err), &err);
    assert_ok(vptq_zip_write(&w, "a/data/0", zeros, sizeof zeros, &err), &err);
    assert_ok(vptq_zip_writer_commit(&w, &err), &err);
    vptq_zip_writer_abort(&w);
    assert_fails(vptq_torch_read(path, NULL, &t, &err), code, &err, part);
}

/* A pickled dictionary with a tensor "x", in parts that hostile files change. */
static void refuse_tensor(const char *path, const char *key, int count, const char *rest,
                          vptq_status code, const char *part)
{
    char pickle[512];
    int n = snprintf(pickle, sizeof pickle,
                     "\x80\x02}X\1%c%c%cxctorch._utils\n_rebuild_tensor_v2\n((X\7%c%c%cstorage"
                     "ctorch\nFloatStorage\nX%c%c%c%c%sX\3%c%c%ccpuK%ctQ%s\x89}tRs.",
                     0, 0, 0, 0, 0, 0, (int)strlen(key), 0, 0, 0, key, 0, 0, 0, count, rest);
    assert_true(n > 0 && n < (int)sizeof pickle);
    refuse_pickle(path, pickle, (size_t)n, code, part);
}

static void test_inconsistent_tensors(void **state)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "p.pt");
    refuse_tensor(path, "1", 4, "K\1K\1\x85K\1\x85", VPTQ_E_FORMAT, "has no entry with");
    refuse_tensor(path, "0", 5, "K\1K\1\x85K\1\x85", VPTQ_E_FORMAT, "does not match the size");
    refuse_tensor(path, "0", 4, "K\1K\4\x85K\1\x85", VPTQ_E_FORMAT, "extends past");
    refuse_tensor(path, "0", 4, "K\5)K\1\x85", VPTQ_E_FORMAT, "an invalid shape");
    refuse_tensor(path, "0", 4, "K\5))", VPTQ_E_FORMAT, "extends past");
    refuse_tensor(path, "0", 4, "K\1K\2\x85K\3\x85", VPTQ_E_FORMAT, "extends past");
    refuse_tensor(path, "0", 4, "J\xff\xff\xff\xffK\2\x85K\1\x85", VPTQ_E_FORMAT,
                  "an invalid shape");
    refuse_tensor(path, "0", 4, "K\1J\xff\xff\xff\xff\x85K\1\x85", VPTQ_E_FORMAT,
                  "an invalid shape");
    refuse_tensor(path, "0", 4, "K\1N\x85K\1\x85", VPTQ_E_FORMAT, "an invalid shape");
    refuse_tensor(path, "0", 4, "K\1(K\1K\1K\1K\1K\1K\1K\1K\1K\1t)", VPTQ_E_FORMAT,
                  "an invalid shape");
    refuse_tensor(path, "0", 4, "K\1)", VPTQ_E_FORMAT, "in a form that PyTorch does not write");
    /* 2^62 times the same number, and a shape whose product exceeds 64 bits */
    refuse_tensor(path, "0", 4,
                  "K\1\x8a\10\xff\xff\xff\xff\xff\xff\xff\x3f\x85J\xff\xff\xff\x7f\x85",
                  VPTQ_E_FORMAT, "an invalid shape");
    refuse_tensor(path, "0", 4, "K\1J\xff\xff\xff\x7f\x85\x8a\1\x01\x85", VPTQ_E_FORMAT,
                  "extends past");
}

static void test_repeating(void **state)
{
    char path[4096];
    vtest_path(path, sizeof path, *state, "p.pt");
    static const char pickle[] =
        "\x80\x02}X\1\0\0\0xctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storage"
        "ctorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQK\0J\xff\xff\xff\x7f\x85"
        "K\0\x85\x89}tRs.";
    refuse_pickle(path, pickle, sizeof pickle - 1, VPTQ_E_FORMAT,
                  "repeats its numbers and is larger than the file");
}

static void test_bad_pickles(void **state)
{
    static const struct {
        const char *pickle;
        const char *part;
    } bad[] = {
        {"}", "byte 1: it has no STOP opcode"},
        {".", "more than one value"},
        {"}}.", "more than one value"},
        {"(.", "more than one value"},
        {"(t.", "is not a dictionary"},
        {"\x86.", "a tuple of more values"},
        {"(\x85.", "a tuple of more values"},
        {"Nt.", "a tuple without a mark"},
        {"]Na.", "is not a dictionary"},
        {"NNa.", "items for a value that is not a list"},
        {"a.", "items for a value that is not a list"},
        {"}Ns.", "items for a value that is not a list"},
        {"}(Nu.", "items for a value that is not a list"},
        {"](NNu.", "items for a value that is not a list"},
        {"}NNs.", "a key that is not a string"},
        {"}b.", "byte 1: attributes of a value that is not"},
        {"N}b.", "attributes of a value that is not an ordered dictionary"},
        {"}Nb.", "attributes of a value that is not an ordered dictionary"},
        {"}(b.", "attributes of a value that is not an ordered dictionary"},
        {"(}b.", "attributes of a value that is not an ordered dictionary"},
        {"h\7.", "it recalls a value that was not remembered"},
        {"h\1}.", "it recalls a value that was not remembered"},
        {"q\1.", "nothing to remember"},
        {"}q\xff.", "nothing to remember, or an index"},
        {"}jzzzz.", "it recalls a value that was not remembered"},
        {"X\xff\xff\xff\xff.", "ends within a text"},
        {"J\1\1.", "ends within a number"},
        {"\x8a\11xxxxxxxxx.", "more than 64 bits"},
        {"G12.", "ends within a number"},
        {"cos\nsystem", "a name without a line feed"},
        {"NQ.", "a storage in a form that PyTorch"},
        {")Q.", "a storage in a form that PyTorch"},
        {"NR.", "a call of a value that cannot"},
        {"N)R.", "a call of a value that cannot"},
        {"ctorch\nFloatStorage\n)R.", "a call of a value that cannot"},
        {"ccollections\nOrderedDict\n(NtR.", "does not begin empty"},
        {"ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor in a form that PyTorch"},
        {"N\x93.", "a global without a name"},
    };
    char path[4096];
    vtest_path(path, sizeof path, *state, "p.pt");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse_pickle(path, bad[i].pickle, strlen(bad[i].pickle), VPTQ_E_FORMAT, bad[i].part);
    refuse_pickle(path, "cos\nsystem\n.", 12, VPTQ_E_UNSUPPORTED, "needs 'os.system'");
    refuse_pickle(path, "X\2\0\0\0osX\6\0\0\0system\x93.", 20, VPTQ_E_UNSUPPORTED,
                  "needs 'os.system'");
    refuse_pickle(path, "}i.", 3, VPTQ_E_UNSUPPORTED, "opcode 0x69 at byte 1");
    refuse_pickle(path, "}X\1\0\0\0aNsX\1\0\0\0aNs.", 19, VPTQ_E_FORMAT, "duplicate key 'a'");
    refuse_pickle(path, "}X\1\0\0\0\0Ns.", 10, VPTQ_E_FORMAT, "a key that is not a string");
}

/* A megabyte of one opcode is rejected quickly, and objects that contain themselves do not
 * loop. */
static void test_long_pickles(void **state)
{
    char path[4096];
    static const char ops[] = "(N}])e";
    enum { LONG = VPTQ_PICKLE_MAX };
    char *pickle = vtest_alloc(LONG + 1, 1);
    vtest_path(path, sizeof path, *state, "p.pt");
    for (size_t i = 0; i < sizeof ops - 1; i++) {
        memset(pickle, ops[i], LONG);
        refuse_pickle(path, pickle, LONG, VPTQ_E_FORMAT, "broken pickle");
    }
    memset(pickle, 'N', LONG);
    memset(pickle + LONG / 2, '\x85', LONG / 2);
    refuse_pickle(path, pickle, LONG, VPTQ_E_FORMAT, "it has no STOP opcode");
    refuse_pickle(path, pickle, LONG + 1, VPTQ_E_UNSUPPORTED, "the pickle has 1048577 bytes");
    free(pickle);
    refuse_pickle(path, "]q\1h\1a.", 7, VPTQ_E_FORMAT, "is not a dictionary");
    refuse_pickle(path, "}q\1h\1h\1s.", 9, VPTQ_E_FORMAT, "a key that is not a string");
}

static void test_no_pickle(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vptq_torch_file t;
    vptq_zip_writer w;
    vtest_path(path, sizeof path, *state, "z.pt");
    assert_ok(vptq_zip_writer_open(path, true, NULL, &w, &err), &err);
    assert_ok(vptq_zip_write(&w, "x.npy", "1", 1, &err), &err);
    assert_ok(vptq_zip_writer_commit(&w, &err), &err);
    vptq_zip_writer_abort(&w);
    assert_fails(vptq_torch_read(path, NULL, &t, &err), VPTQ_E_FORMAT, &err,
                 "is not a PyTorch file: the zip has no entry 'NAME/data.pkl'");
    assert_ok(vptq_zip_writer_open(path, true, NULL, &w, &err), &err);
    assert_ok(vptq_zip_write(&w, "x/data.pkl", "}.", 2, &err), &err);
    assert_ok(vptq_zip_write(&w, "x/byteorder", "big", 3, &err), &err);
    assert_ok(vptq_zip_writer_commit(&w, &err), &err);
    vptq_zip_writer_abort(&w);
    assert_fails(vptq_torch_read(path, NULL, &t, &err), VPTQ_E_UNSUPPORTED, &err,
                 "its byte order is 'big'");
    assert_fails(vptq_torch_read("no-such.pt", NULL, &t, &err), VPTQ_E_IO, &err, "no-such.pt");
}

/* ---- memory ---- */

static vptq_status read_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_torch_file t;
    vptq_status st = vptq_torch_read(arg, mem, &t, err);
    if (!st)
        vptq_torch_release(&t);
    return st;
}

static vptq_status write_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_torch_item items[ITEMS];
    make_items(items);
    return vptq_torch_write(arg, true, items, ITEMS, mem, err);
}

static void test_out_of_memory(void **state)
{
    char path[4096], golden[] = GOLDEN "types.pt";
    vtest_oom_walk(read_counted, golden);
    vtest_path(path, sizeof path, *state, "w.pt");
    vtest_oom_walk(write_counted, path);
}

VTEST_MAIN(cmocka_unit_test(test_crc), cmocka_unit_test(test_hessian),
           cmocka_unit_test(test_types), cmocka_unit_test(test_foreign_files),
           cmocka_unit_test(test_rejected), scratch_test(test_written_files),
           scratch_test(test_damaged), scratch_test(test_inconsistent_tensors),
           scratch_test(test_repeating), scratch_test(test_bad_pickles),
           scratch_test(test_long_pickles), scratch_test(test_no_pickle),
           scratch_test(test_out_of_memory))
