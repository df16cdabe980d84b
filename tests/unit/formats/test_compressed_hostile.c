/* Tests files and matrices of the compressed-tensors layout that must be refused, and odd forms
 * that are accepted. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/vcompressed.h"
#include "tests/support/vtest.h"

#define FILE_NAME "x.safetensors"

/* 6 x 12 in groups of 4, 3 bits with zero points: 2 words per row, 1 row of zero points. */
static const vptq_uniform_shape asym_shape = {6, 12, 3, 4, true, false};
static const vptq_uniform_shape byte_shape = {3, 10, 8, 10, false, false};

typedef struct rig {
    vcompressed x;
    vptq_tensor_set set;
    vptq_compressed_layout layout;
} rig;

static void open_rig(rig *r, bool bytes)
{
    vcompressed_make(&r->x, bytes ? byte_shape : asym_shape, VPTQ_F16, bytes ? 8 : 0);
    vcompressed_set(&r->x.m, &r->set, NULL, NULL);
    r->layout = vcompressed_layout(&r->x.m);
}

static void close_rig(rig *r)
{
    vptq_tensor_set_release(&r->set);
    vcompressed_free(&r->x);
}

static vptq_status read_rig(rig *r, vptq_compressed_matrix *m, vptq_err *err)
{
    return vptq_compressed_read(&r->set, &r->layout, "P", FILE_NAME, &r->set.arena, m, err);
}

/* A tensor of the set, to be spoiled. */
static vptq_tensor *written(rig *r, const char *name)
{
    size_t i = 0;
    while (i < r->set.count && strcmp(r->set.tensors[i].name, name) != 0)
        i++;
    assert_true(i < r->set.count);
    return &r->set.tensors[i];
}

/* Sets type, shape and data of a tensor; the bytes follow from them. */
static void set_tensor(vptq_tensor *t, vptq_dtype type, uint64_t a, uint64_t b,
                       const void *data)
{
    t->type = type;
    t->dims = b ? 2 : 1;
    t->shape[0] = a;
    t->shape[1] = b;
    t->bytes = (size_t)(a * (b ? b : 1)) * vptq_dtype_get(type)->bytes;
    if (data)
        t->data = data;
}

/* Makes the set anew with one tensor more. */
static void add_tensor(rig *r, const char *name, vptq_dtype type, uint64_t a, uint64_t b,
                       const void *data)
{
    vptq_tensor extra = {.name = name, .file = ""};
    set_tensor(&extra, type, a, b, data);
    vptq_tensor_set_release(&r->set);
    vcompressed_set(&r->x.m, &r->set, NULL, &extra);
}

static const uint16_t negative[18] = {0x3c00, 0x3c00, 0x3c00, 0x3c00, 0xbc00};
static const uint16_t zero_scale[18] = {0};
static const uint16_t infinite[18] = {0x3c00, 0x7c00};
static const uint16_t nan_scale[3] = {0x3c00, 0x3c00, 0x7e01};
static const int8_t signed_zeros[18] = {-4, 3, 0, 0, 0, 0, 0, 4};
static const int64_t other_rows[2] = {5, 12}, other_cols[2] = {6, 22}, below[2] = {-6, 12};
static const int64_t nothing[2] = {6, 0}, huge[2] = {INT64_C(1) << 31, INT64_C(1) << 31};
static const int64_t overflow[2] = {INT64_MAX, INT64_MAX};
static const uint8_t zeros_of_any_type[256] = {0};

static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct row {
        bool bytes;
        const char *part;
        vptq_dtype type;
        uint64_t rows, cols;
        const void *data; /* NULL: as it is */
        vptq_status code;
        const char *text;
    } rows[] = {
        {false, "P.weight_shape", VPTQ_I32, 2, 0, zeros_of_any_type, VPTQ_E_FORMAT,
         "'P.weight_shape' is I32, expected I64"},
        {false, "P.weight_shape", VPTQ_I64, 3, 0, zeros_of_any_type, VPTQ_E_SHAPE,
         "'P.weight_shape' is [3], expected [2]"},
        {false, "P.weight_shape", VPTQ_I64, 2, 1, other_rows, VPTQ_E_SHAPE,
         "'P.weight_shape' is [2, 1], expected [2]"},
        {false, "P.weight_shape", VPTQ_I64, 2, 0, other_rows, VPTQ_E_SHAPE,
         "'P.weight_packed' is [6, 2], expected [5, 2]"},
        {false, "P.weight_shape", VPTQ_I64, 2, 0, other_cols, VPTQ_E_SHAPE,
         "'P.weight_packed' is [6, 2], expected [6, 3]"},
        {false, "P.weight_shape", VPTQ_I64, 2, 0, below, VPTQ_E_SHAPE,
         "'P.weight_shape' says -6 x 12, expected a matrix's rows and columns"},
        {false, "P.weight_shape", VPTQ_I64, 2, 0, nothing, VPTQ_E_SHAPE,
         "layer 'P' is a matrix of 6 x 0, expected 1 to 2147483647 rows and columns"},
        {false, "P.weight_shape", VPTQ_I64, 2, 0, huge, VPTQ_E_SHAPE,
         "layer 'P' is a matrix of 2147483648 x 2147483648"},
        {false, "P.weight_shape", VPTQ_I64, 2, 0, overflow, VPTQ_E_SHAPE,
         "layer 'P' is a matrix of 9223372036854775807 x 9223372036854775807"},
        {false, "P.weight_packed", VPTQ_F32, 6, 2, NULL, VPTQ_E_FORMAT,
         "'P.weight_packed' is F32, expected I32"},
        {false, "P.weight_packed", VPTQ_I32, 12, 0, NULL, VPTQ_E_SHAPE,
         "'P.weight_packed' is [12], expected [6, 2]"},
        {false, "P.weight_scale", VPTQ_F32, 6, 3, zeros_of_any_type, VPTQ_E_UNSUPPORTED,
         "'P.weight_scale' is F32, expected F16 or BF16"},
        {false, "P.weight_scale", VPTQ_F16, 6, 1, NULL, VPTQ_E_SHAPE,
         "'P.weight_scale' is [6, 1], expected [6, 3]"},
        {false, "P.weight_scale", VPTQ_F16, 1, 0, NULL, VPTQ_E_SHAPE,
         "'P.weight_scale' is [1], expected [6, 3]"},
        {false, "P.weight_scale", VPTQ_F16, 6, 3, negative, VPTQ_E_NUMERIC,
         "'P.weight_scale': row 1, group 1: scale -1, expected a positive number"},
        {false, "P.weight_scale", VPTQ_F16, 6, 3, zero_scale, VPTQ_E_NUMERIC,
         "row 0, group 0: scale 0, expected a positive number"},
        {false, "P.weight_scale", VPTQ_F16, 6, 3, infinite, VPTQ_E_NUMERIC,
         "row 0, group 1: scale inf, expected a positive number"},
        {true, "P.weight_scale", VPTQ_F16, 3, 1, nan_scale, VPTQ_E_NUMERIC,
         "row 2, group 0: scale nan, expected a positive number"},
        {true, "P.weight_scale", VPTQ_F16, 3, 0, NULL, VPTQ_E_SHAPE,
         "'P.weight_scale' is [3], expected [3, 1]"},
        {false, "P.weight_zero_point", VPTQ_I32, 6, 3, zeros_of_any_type, VPTQ_E_SHAPE,
         "'P.weight_zero_point' is [6, 3], expected [1, 3]"},
        {false, "P.weight_zero_point", VPTQ_U8, 6, 3, zeros_of_any_type, VPTQ_E_FORMAT,
         "'P.weight_zero_point' is U8, expected I32"},
        {false, "P.weight_zero_point", VPTQ_I8, 6, 3, signed_zeros, VPTQ_E_FORMAT,
         "'P.weight_zero_point': row 2, group 1: zero point 4, expected -4 to 3"},
        {true, "P.weight", VPTQ_U8, 3, 10, NULL, VPTQ_E_FORMAT,
         "'P.weight' is U8, expected I8"},
        {true, "P.weight", VPTQ_I8, 30, 0, NULL, VPTQ_E_SHAPE,
         "'P.weight' has 1 dimensions, expected 2"},
        {true, "P.weight", VPTQ_I8, 0, 10, NULL, VPTQ_E_SHAPE,
         "layer 'P' is a matrix of 0 x 10"},
        {true, "P.weight", VPTQ_I8, 2, 10, NULL, VPTQ_E_SHAPE,
         "'P.weight_scale' is [3, 1], expected [2, 1]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        rig r;
        vptq_compressed_matrix m;
        vptq_err err = {0};
        open_rig(&r, row->bytes);
        set_tensor(written(&r, row->part), row->type, row->rows, row->cols, row->data);
        assert_fails(read_rig(&r, &m, &err), row->code, &err, row->text);
        close_rig(&r);
    }
}

static void test_missing_tensors(void **state)
{
    (void)state;
    static const char *const parts[] = {"P.weight_packed", "P.weight_scale", "P.weight_shape",
                                        "P.weight_zero_point", "P.weight"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char text[80];
        rig r;
        vptq_compressed_matrix m;
        vptq_err err = {0};
        open_rig(&r, i == 4);
        vptq_tensor_set_release(&r.set);
        vcompressed_set(&r.x.m, &r.set, parts[i], NULL);
        snprintf(text, sizeof text, "x.safetensors: tensor '%s' is missing", parts[i]);
        assert_fails(read_rig(&r, &m, &err), VPTQ_E_FORMAT, &err, text);
        close_rig(&r);
    }
}

static void test_damaged(void **state)
{
    (void)state;
    rig r;
    vptq_compressed_matrix m;
    vptq_err err = {0};
    open_rig(&r, false);
    written(&r, "P.weight_scale")->data = NULL;
    assert_fails(read_rig(&r, &m, &err), VPTQ_E_CHECKSUM, &err,
                 "x.safetensors: tensor 'P.weight_scale' is damaged");
    close_rig(&r);
}

/* Groups must divide the columns: older releases of the library take other ones. */
static void test_bad_groups(void **state)
{
    (void)state;
    static const uint16_t scales[2 * 5] = {0};
    rig r;
    vptq_compressed_matrix m;
    vptq_err err = {0};
    vcompressed_make(&r.x, (vptq_uniform_shape){2, 576, 8, 64, false, false}, VPTQ_BF16, 0);
    vcompressed_set(&r.x.m, &r.set, NULL, NULL);
    r.layout = vcompressed_layout(&r.x.m);
    r.layout.group_size = 128;
    set_tensor(written(&r, "P.weight_scale"), VPTQ_BF16, 2, 5, scales);
    assert_fails(read_rig(&r, &m, &err), VPTQ_E_SHAPE, &err,
                 "x.safetensors: layer 'P': groups of 128 columns do not divide 576 columns: "
                 "compressed-tensors before 0.19 takes 5 scales per row for groups of 115");
    set_tensor(written(&r, "P.weight_scale"), VPTQ_BF16, 2, 0, scales);
    assert_fails(
        read_rig(&r, &m, &err), VPTQ_E_SHAPE, &err,
        "128 columns do not divide 576 columns: every group must have the same number");
    r.layout.group_size = UINT32_MAX;
    assert_fails(read_rig(&r, &m, &err), VPTQ_E_SHAPE, &err,
                 "groups of 4294967295 columns do not divide 576 columns");
    close_rig(&r);
}

/* Activations of 8 bits are for rows of bytes with one scale each and no zero points. */
static void test_bad_activations(void **state)
{
    (void)state;
    static const struct row {
        vptq_uniform_shape shape;
        const char *text;
    } rows[] = {
        {{6, 12, 8, 12, false, false}, NULL}, /* packed bytes are as good */
        {{6, 12, 4, 12, false, false},
         "x.safetensors: layer 'P' has activations of 8 bits with codes of 4 bits in groups of "
         "12 columns, expected 8 bits, no zero points and one group per row"},
        {{6, 12, 8, 6, false, false}, "with codes of 8 bits in groups of 6 columns"},
        {{6, 12, 8, 12, true, false},
         "with asymmetric codes of 8 bits in groups of 12 columns"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rig r;
        vptq_compressed_matrix m;
        vptq_err err = {0};
        vcompressed_make(&r.x, rows[i].shape, VPTQ_BF16, 0);
        vcompressed_set(&r.x.m, &r.set, NULL, NULL);
        r.layout = vcompressed_layout(&r.x.m);
        r.layout.activation_bits = 8;
        assert_ok(read_rig(&r, &m, &err), &err);
        if (rows[i].text)
            assert_fails(vptq_compressed_check_activations(&m, FILE_NAME, &err),
                         VPTQ_E_UNSUPPORTED, &err, rows[i].text);
        else
            assert_ok(vptq_compressed_check_activations(&m, FILE_NAME, &err), &err);
        close_rig(&r);
    }
}

/* Tensors that the config group rules out, and orders of columns. */
static void test_extra_tensors(void **state)
{
    (void)state;
    static const int32_t uneven[12] = {0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2};
    static const int32_t outside[12] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3};
    static const int32_t partly[12] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, -1};
    static const struct row {
        bool bytes, symmetric;
        const char *name;
        vptq_dtype type;
        uint64_t rows, cols;
        const void *data;
        vptq_status code;
        const char *text;
    } rows[] = {
        {false, false, "P.weight", VPTQ_F16, 6, 12, zeros_of_any_type, VPTQ_E_FORMAT,
         "x.safetensors: tensor 'P.weight' is present, but the layer's config group has a "
         "packed format"},
        {true, true, "P.weight_packed", VPTQ_I32, 3, 3, zeros_of_any_type, VPTQ_E_FORMAT,
         "'P.weight_packed' is present, but the layer's config group has a format of bytes"},
        {true, true, "P.weight_zero_point", VPTQ_I8, 3, 1, zeros_of_any_type, VPTQ_E_FORMAT,
         "'P.weight_zero_point' is present, but the layer's config group has symmetric "
         "weights"},
        {true, false, "P.weight_zero_point", VPTQ_I32, 3, 1, zeros_of_any_type, VPTQ_E_FORMAT,
         "'P.weight_zero_point' is I32, expected I8"},
        {true, true, "P.weight_g_idx", VPTQ_I32, 10, 0, zeros_of_any_type, VPTQ_E_FORMAT,
         "'P.weight_g_idx' is present, but the layer's config group has one scale per row"},
        {false, false, "P.weight_g_idx", VPTQ_I64, 12, 0, zeros_of_any_type, VPTQ_E_FORMAT,
         "'P.weight_g_idx' is I64, expected I32"},
        {false, false, "P.weight_g_idx", VPTQ_I32, 11, 0, zeros_of_any_type, VPTQ_E_SHAPE,
         "'P.weight_g_idx' is [11], expected [12]"},
        {false, false, "P.weight_g_idx", VPTQ_I32, 12, 0, uneven, VPTQ_E_FORMAT,
         "'P.weight_g_idx': group 1 has 3 columns, expected 4"},
        {false, false, "P.weight_g_idx", VPTQ_I32, 12, 0, outside, VPTQ_E_FORMAT,
         "'P.weight_g_idx': column 11 is in group 3, expected 0 to 2"},
        {false, false, "P.weight_g_idx", VPTQ_I32, 12, 0, partly, VPTQ_E_FORMAT,
         "'P.weight_g_idx': column 11 is in group -1, expected 0 to 2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        rig r;
        vptq_compressed_matrix m;
        vptq_err err = {0};
        open_rig(&r, row->bytes);
        add_tensor(&r, row->name, row->type, row->rows, row->cols, row->data);
        r.layout.symmetric = row->symmetric;
        assert_fails(read_rig(&r, &m, &err), row->code, &err, row->text);
        close_rig(&r);
    }
}

static void test_tensor_zero_point(void **state)
{
    (void)state;
    rig r;
    vptq_compressed_matrix m;
    vptq_err err = {0};
    open_rig(&r, true);
    add_tensor(&r, "P.weight_zero_point", VPTQ_I8, 1, 0, zeros_of_any_type);
    r.layout.symmetric = false;
    set_tensor(written(&r, "P.weight_scale"), VPTQ_F16, 1, 0, NULL);
    assert_fails(read_rig(&r, &m, &err), VPTQ_E_UNSUPPORTED, &err,
                 "layer 'P': a zero point of the whole matrix is not supported");
    close_rig(&r);
}

/* ---- forms that are accepted ---- */

/* Signed zero points, and an order that is unset. */
static void test_old_forms(void **state)
{
    (void)state;
    static const int8_t zeros[18] = {-4, 3, 0, -1};
    int32_t unset[12];
    rig r;
    vptq_compressed_matrix m;
    vptq_err err = {0};
    memset(unset, 0xFF, sizeof unset);
    open_rig(&r, false);
    add_tensor(&r, "P.weight_g_idx", VPTQ_I32, 12, 0, unset);
    set_tensor(written(&r, "P.weight_zero_point"), VPTQ_I8, 6, 3, zeros);
    assert_ok(read_rig(&r, &m, &err), &err);
    assert_null(m.u.groups);
    assert_false(m.u.shape.has_groups);
    assert_memory_equal(m.u.zeros, ((const uint8_t[]){0, 7, 4, 3, 4}), 5);
    close_rig(&r);
}

/* Codes are views if they are aligned; bits after the last code of a row are not written. */
static void test_views_and_padding(void **state)
{
    (void)state;
    rig r;
    vptq_compressed_matrix m;
    vptq_err err = {0};
    uint8_t moved[6 * 2 * 4 + 1];
    open_rig(&r, false);
    vptq_tensor *t = written(&r, "P.weight_packed");
    const uint8_t *clean = t->data;
    assert_ptr_equal(clean, r.x.codes);
    assert_ok(read_rig(&r, &m, &err), &err);
    assert_ptr_equal(m.u.codes, clean);
    memcpy(moved + 1, clean, t->bytes);
    t->data = moved + 1;
    moved[1 + 7] |= 0xF0; /* 36 of 64 bits are used */
    assert_ok(read_rig(&r, &m, &err), &err);
    assert_ptr_not_equal((const uint8_t *)m.u.codes, moved + 1);
    vptq_tensor list[VPTQ_COMPRESSED_MAX_TENSORS];
    size_t count = 0;
    assert_ok(vptq_compressed_tensors(&m, &r.set.arena, list, &count, &err), &err);
    assert_string_equal(list[0].name, "P.weight_packed");
    assert_memory_equal(list[0].data, clean, list[0].bytes);
    close_rig(&r);
}

/* ---- matrices that are not written ---- */

static void refuse(const vptq_compressed_matrix *m, vptq_status code, const char *text)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_tensor list[VPTQ_COMPRESSED_MAX_TENSORS];
    size_t count = 0;
    vptq_arena_init(&arena, NULL);
    assert_fails(vptq_compressed_tensors(m, &arena, list, &count, &err), code, &err, text);
    vptq_arena_release(&arena);
}

static void test_unwritable_shapes(void **state)
{
    (void)state;
    static const struct row {
        vptq_uniform_shape shape;
        vptq_dtype storage;
        uint32_t activation_bits;
        const char *text;
    } rows[] = {
        {{4, 12, 1, 4, false, false}, VPTQ_F16, 0, "its codes have 1 bit"},
        {{4, 12, 4, 5, false, false},
         VPTQ_F16,
         0,
         "layer 'P' cannot be written in the compressed-tensors layout: groups of 5 columns do "
         "not divide 12 columns"},
        {{4, 12, 4, 4, false, false}, VPTQ_F32, 0, "its scales are neither F16 nor BF16"},
        {{4, 12, 8, 12, false, false}, VPTQ_F16, 4, "activations of 4 bits are not supported"},
        {{4, 12, 4, 12, false, false},
         VPTQ_F16,
         8,
         "8-bit activations need codes of 8 bits without zero points and one group per row"},
        {{4, 12, 8, 6, false, false}, VPTQ_F16, 8, "8-bit activations need"},
        {{4, 12, 8, 12, true, false}, VPTQ_F16, 8, "8-bit activations need"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        vcompressed x;
        vptq_err err = {0};
        json_t *config = NULL;
        vcompressed_make(&x, rows[i].shape, rows[i].storage, rows[i].activation_bits);
        refuse(&x.m, VPTQ_E_UNSUPPORTED, rows[i].text);
        assert_fails(vptq_compressed_make_config(&x.m, 1, NULL, 0, &config, &err),
                     VPTQ_E_UNSUPPORTED, &err, rows[i].text);
        vcompressed_free(&x);
    }
}

static void test_unwritable_numbers(void **state)
{
    (void)state;
    static const float bad[] = {0, -1, 0x1.002p0F, 65520, INFINITY, NAN};
    static const int32_t uneven[12] = {0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2};
    vcompressed x;
    vcompressed_make(&x, asym_shape, VPTQ_F16, 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        x.scales[4] = bad[i];
        refuse(&x.m, VPTQ_E_NUMERIC, "layer 'P': row 1, group 1: scale ");
    }
    refuse(&x.m, VPTQ_E_NUMERIC, "expected a positive number that is exact in F16");
    x.scales[4] = 1;
    x.zeros[17] = 8;
    refuse(&x.m, VPTQ_E_NUMERIC, "row 5, group 2: zero point 8, expected less than 8");
    x.zeros[17] = 7;
    x.m.u.groups = uneven;
    refuse(&x.m, VPTQ_E_UNSUPPORTED, "its groups have different numbers of columns");
    vcompressed_free(&x);
}

/* ---- out of memory ---- */

static vptq_status write_and_read(void *arg, vptq_mem *mem, vptq_err *err)
{
    const rig *r = arg;
    vptq_arena arena;
    vptq_compressed_matrix m;
    vptq_tensor list[VPTQ_COMPRESSED_MAX_TENSORS];
    size_t count = 0;
    vptq_arena_init(&arena, mem);
    vptq_status st = vptq_compressed_tensors(&r->x.m, &arena, list, &count, err);
    if (!st)
        st = vptq_compressed_read(&r->set, &r->layout, "P", FILE_NAME, &arena, &m, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        rig r;
        open_rig(&r, bytes);
        vtest_oom_walk(write_and_read, &r);
        close_rig(&r);
    }
}

VTEST_MAIN(cmocka_unit_test(test_bad_tensors), cmocka_unit_test(test_missing_tensors),
           cmocka_unit_test(test_damaged), cmocka_unit_test(test_bad_groups),
           cmocka_unit_test(test_bad_activations), cmocka_unit_test(test_extra_tensors),
           cmocka_unit_test(test_tensor_zero_point), cmocka_unit_test(test_old_forms),
           cmocka_unit_test(test_views_and_padding), cmocka_unit_test(test_unwritable_shapes),
           cmocka_unit_test(test_unwritable_numbers), cmocka_unit_test(test_out_of_memory))
