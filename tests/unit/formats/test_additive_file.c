/* Tests tensors and entries of additive codes: round trips, and rejection of everything else.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "lib/base/half.h"
#include "tests/support/vadditive.h"
#include "tests/support/vjson.h"
#include "tests/support/vtest.h"

#define FILE_NAME "x.safetensors"

/* The shapes of the four methods, small. */
static vptq_additive_shape shape_of(size_t i)
{
    vptq_additive_shape s = vadditive_ragged();
    switch (i) {
    case 0: /* GPTVQ */
        s.stages = 1, s.bits[1] = 0, s.scale_columns = 0, s.int8 = true;
        break;
    case 1: /* AQLM */
        s.block_rows = s.out, s.block_columns = s.in, s.scale_columns = s.in;
        break;
    case 2: /* QuIP# */
        s = vadditive_lattice();
        break;
    case 3: /* DB-LLM */
        s.v = 1, s.bits[0] = s.bits[1] = 1, s.block_rows = 1, s.scale_columns = 0;
        s.sparse = true;
        break;
    default:
        s.sparse = s.int8 = true;
        break;
    }
    return s;
}
enum { SHAPES = 5 };

static json_t *entry_of(const vptq_additive_matrix *m)
{
    vptq_err err = {0};
    json_t *entry = NULL;
    assert_ok(vptq_additive_make_entry(m, &entry, &err), &err);
    return entry;
}

/* ---- round trips ---- */

static void assert_same_matrix(const vptq_additive_matrix *a, const vptq_additive_matrix *b)
{
    const vptq_additive_shape *s = &a->a.shape;
    assert_string_equal(a->name, b->name);
    assert_true(a->storage == b->storage);
    assert_memory_equal(s, &b->a.shape, sizeof *s);
    for (uint32_t m = 0; m < s->stages; m++) {
        const size_t words = s->out * vptq_additive_row_words(s, m);
        const size_t each = ((size_t)1 << s->bits[m]) * s->v;
        assert_memory_equal(a->a.codes[m], b->a.codes[m], words * sizeof(uint32_t));
        if (s->lattice)
            assert_same_f32(&a->a.stage_scales[m], &b->a.stage_scales[m], 1);
        else
            for (size_t i = 0; i < vptq_additive_blocks(s) * each; i++)
                if (fabsf(a->a.codebooks[m][i] - b->a.codebooks[m][i]) > 0)
                    fail_msg("number %zu of stage %u differs", i, (unsigned)m);
    }
    if (s->scale_columns)
        assert_same_f32(a->a.scales, b->a.scales,
                        s->out * ((s->in - 1) / (size_t)s->scale_columns + 1));
    if (s->rotated) {
        assert_memory_equal(a->a.row_signs, b->a.row_signs, s->out);
        assert_memory_equal(a->a.column_signs, b->a.column_signs, s->in);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        vptq_err err = {0};
        vadditive x;
        vptq_tensor_set set;
        vptq_additive_matrix back;
        vadditive_make(&x, shape_of(i / 2), i % 2 ? VPTQ_BF16 : VPTQ_F16);
        vadditive_set(&x.m, &set, NULL, NULL);
        json_t *entry = entry_of(&x.m);
        assert_ok(vptq_additive_read(&set, entry, "P", FILE_NAME, &set.arena, &back, &err),
                  &err);
        assert_same_matrix(&x.m, &back);
        uint64_t bits = 0;
        for (size_t t = 0; t < set.count; t++) {
            bits += 8 * set.tensors[t].bytes;
            assert_int_equal(vptq_additive_module_length(set.tensors[t].name), 1);
        }
        assert_int_equal(bits, vptq_additive_count_bits(&x.m.a.shape).total);
        json_decref(entry);
        vptq_tensor_set_release(&set);
        vadditive_free(&x);
    }
    assert_int_equal(vptq_additive_module_length("P.codes.8"), 0);
    assert_int_equal(vptq_additive_module_length("P.codes"), 0);
    assert_int_equal(vptq_additive_module_length("P.weight"), 0);
    assert_int_equal(vptq_additive_module_length(".scales"), 0);
}

/* Bits after the last code are cleared; others stay. */
static void test_padding(void **state)
{
    (void)state;
    vadditive x;
    vptq_tensor_set set;
    vadditive_make(&x, shape_of(0), VPTQ_F16); /* 5 codes of 3 bits in a word */
    uint32_t *codes = x.codes[0];
    codes[2] |= UINT32_C(1) << 15 | UINT32_C(1) << 31;
    vadditive_set(&x.m, &set, NULL, NULL);
    const uint32_t *stored =
        (const uint32_t *)(const void *)vptq_tensor_find(&set, "P.codes.0")->data;
    assert_int_equal(stored[2], codes[2] & 0x7fff);
    assert_int_equal(stored[1], codes[1]);
    vptq_tensor_set_release(&set);
    vadditive_free(&x);
}

static void test_layer_file(void **state)
{
    for (size_t i = 0; i < SHAPES; i++) {
        vptq_err err = {0};
        vadditive x;
        vptq_layer_file f;
        char path[4096];
        const vptq_ctx ctx = {.threads = 2};
        vptq_additive_shape s = shape_of(i);
        vadditive_make(&x, s, VPTQ_BF16);
        vtest_path(path, sizeof path, *state, "a.safetensors");
        assert_ok(vptq_layer_file_write(path,
                                        &(vptq_layer_file){.is_additive = true,
                                                           .additive = x.m,
                                                           .fingerprint = "f",
                                                           .report = "{}"},
                                        NULL, &err),
                  &err);
        assert_ok(vptq_layer_file_read(path, NULL, &f, &err), &err);
        assert_true(f.is_additive && !f.is_uniform && !f.dense);
        assert_false(vptq_layer_file_is_packed(&f));
        assert_string_equal(vptq_layer_file_matrix(&f), "P");
        assert_true(vptq_layer_file_storage(&f) == VPTQ_BF16);
        assert_same_matrix(&x.m, &f.additive);
        assert_ok(vptq_layer_file_decode(&ctx, &f, &err), &err);
        const size_t n = (size_t)s.out * s.in;
        float *w = vtest_alloc(n, sizeof *w), *read = vtest_alloc(n, sizeof *read);
        assert_ok(vptq_additive_decode(&ctx, &x.m.a, w, &err), &err);
        vptq_round_to_n(VPTQ_BF16, w, n);
        assert_string_equal(f.weight.name, "P.weight");
        assert_true(f.weight.additive == &f.additive.a);
        assert_ok(vptq_tensor_read(&f.weight, 0, s.out, read, &err), &err);
        assert_same_f32(w, read, n);
        free(w);
        free(read);
        vptq_layer_file_release(&f);
        vadditive_free(&x);
    }
}

static void test_config(void **state)
{
    (void)state;
    vptq_err err = {0};
    vadditive x;
    json_t *q = NULL;
    vadditive_make(&x, shape_of(1), VPTQ_F16);
    vptq_additive_matrix two[2] = {x.m, x.m};
    two[1].name = "Q.r";
    assert_ok(vptq_additive_make_config(two, 2, &q, &err), &err);
    json_t *config = json_pack("{s:o}", "quantization_config", q);
    assert_true(vptq_additive_is_config(config));
    assert_true(vptq_additive_is_entry(vptq_additive_entry(config, "Q.r")));
    assert_null(vptq_additive_entry(config, "Q"));
    json_object_set_new(q, "quant_method", json_string("vptq"));
    assert_false(vptq_additive_is_config(config));
    json_decref(config);
    vadditive_free(&x);
}

/* ---- what is refused ---- */

typedef struct rig {
    vadditive x;
    vptq_tensor_set set;
    json_t *entry;
} rig;

static void open_rig(rig *r, size_t shape)
{
    vadditive_make(&r->x, shape_of(shape), VPTQ_F16);
    vadditive_set(&r->x.m, &r->set, NULL, NULL);
    r->entry = entry_of(&r->x.m);
}

static void refuse(rig *r, vptq_status code, const char *part)
{
    vptq_err err = {0};
    vptq_additive_matrix m;
    assert_fails(vptq_additive_read(&r->set, r->entry, "P", FILE_NAME, &r->set.arena, &m, &err),
                 code, &err, part);
    json_decref(r->entry);
    vptq_tensor_set_release(&r->set);
    vadditive_free(&r->x);
}

static void test_bad_entries(void **state)
{
    (void)state;
    const struct {
        const char *key, *value; /* as JSON; NULL: without the key */
        vptq_status code;
        const char *part;
    } rows[] = {
        {"format", "\"other\"", VPTQ_E_FORMAT, "format additive"},
        {"dtype", "\"f32\"", VPTQ_E_FORMAT, "'dtype' is 'f32'"},
        {"dtype", NULL, VPTQ_E_FORMAT, "'dtype' is missing"},
        {"rows", "0", VPTQ_E_SHAPE, "0 x 20"},
        {"rows", "4294967296", VPTQ_E_FORMAT, "'rows'"},
        {"rows", "-1", VPTQ_E_FORMAT, "'rows'"},
        {"columns", "2147483644", VPTQ_E_SHAPE, "P.codes.0"},
        {"columns", NULL, VPTQ_E_FORMAT, "'columns' is missing"},
        {"vector_length", "3", VPTQ_E_SHAPE, "does not divide"},
        {"vector_length", "\"4\"", VPTQ_E_FORMAT, "'vector_length'"},
        {"bits", "[]", VPTQ_E_FORMAT, "list of 1 to 8"},
        {"bits", "3", VPTQ_E_FORMAT, "list of 1 to 8"},
        {"bits", "[3, 17]", VPTQ_E_FORMAT, "from 1 to 16"},
        {"bits", "[3, \"5\"]", VPTQ_E_FORMAT, "from 1 to 16"},
        {"bits", "[1,1,1,1,1,1,1,1,1]", VPTQ_E_FORMAT, "list of 1 to 8"},
        {"bits", "[3]", VPTQ_E_FORMAT, "'P.codebook_scales.1' is present"},
        {"bits", "[4, 5]", VPTQ_E_SHAPE, "P.codebooks.0"},
        {"block_rows", "6", VPTQ_E_SHAPE, "blocks of 6 rows"},
        {"block_rows", "5", VPTQ_E_SHAPE, "P.codebook"},
        {"block_columns", "0", VPTQ_E_SHAPE, "blocks of 0"},
        {"scale_columns", "20", VPTQ_E_SHAPE, "P.scales"},
        {"scale_columns", "0", VPTQ_E_FORMAT, "'P.scales' is present"},
        {"int8", "false", VPTQ_E_FORMAT, "codebook_scales"},
        {"int8", "1", VPTQ_E_FORMAT, "'int8'"},
        {"sparse", "false", VPTQ_E_SHAPE, "P.codebooks.0"},
        {"lattice", "true", VPTQ_E_SHAPE, "lattice"},
        {"rotated", "true", VPTQ_E_SHAPE, "rotated"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rig r;
        open_rig(&r, 4);
        vjson_set(r.entry, rows[i].key, rows[i].value);
        refuse(&r, rows[i].code, rows[i].part);
    }
}

static vptq_tensor *find(rig *r, const char *name)
{
    size_t i = 0;
    while (i < r->set.count && strcmp(r->set.tensors[i].name, name) != 0)
        i++;
    assert_true(i < r->set.count);
    return &r->set.tensors[i];
}

static void test_missing_and_extra_parts(void **state)
{
    (void)state;
    for (size_t shape = 0; shape < SHAPES; shape++) {
        rig r;
        open_rig(&r, shape);
        const size_t count = r.set.count;
        json_decref(r.entry);
        vptq_tensor_set_release(&r.set);
        vadditive_free(&r.x);
        for (size_t i = 0; i < count; i++) {
            char name[32];
            open_rig(&r, shape);
            snprintf(name, sizeof name, "%s", r.set.tensors[i].name);
            vptq_tensor_set_release(&r.set);
            vadditive_set(&r.x.m, &r.set, name, NULL);
            refuse(&r, VPTQ_E_FORMAT, "is missing");
        }
    }
    static const char *const extra[] = {"P.codes.7", "P.row_signs", "P.weight",
                                        "P.stage_scales", "P.codebooks.2"};
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        static const float zero[4];
        const vptq_tensor t = {.name = extra[i],
                               .type = VPTQ_F32,
                               .dims = 1,
                               .shape = {4},
                               .data = (const uint8_t *)zero,
                               .bytes = sizeof zero,
                               .file = ""};
        rig r;
        open_rig(&r, 1);
        vptq_tensor_set_release(&r.set);
        vadditive_set(&r.x.m, &r.set, NULL, &t);
        refuse(&r, VPTQ_E_FORMAT, "is present");
    }
}

static void test_bad_tensors(void **state)
{
    (void)state;
    static const uint16_t infinite[512] = {0, 0x7c00}, negative[512] = {0xbc00};
    static const uint16_t long_scale[512] = {0x3c01, 0x3c01, 0x3c01}; /* of 11 bits */
    static const int8_t low[2048] = {-128};
    static const float nan_scale[2] = {1, (float)NAN};
    const struct {
        size_t shape;
        const char *name;
        const void *data; /* NULL: another type */
        vptq_status code;
        const char *part;
    } rows[] = {
        {0, "P.codes.0", NULL, VPTQ_E_FORMAT, "is F64, expected I32"},
        {0, "P.codebooks.0", NULL, VPTQ_E_FORMAT, "is F64, expected I8"},
        {0, "P.codebook_scales.0", NULL, VPTQ_E_FORMAT, "is F64, expected F16"},
        {1, "P.codebooks.1", NULL, VPTQ_E_FORMAT, "is F64, expected F16"},
        {1, "P.scales", NULL, VPTQ_E_FORMAT, "is F64, expected F16"},
        {2, "P.row_signs", NULL, VPTQ_E_FORMAT, "is F64, expected I32"},
        {2, "P.stage_scales", NULL, VPTQ_E_FORMAT, "is F64, expected F32"},
        {1, "P.codebooks.0", infinite, VPTQ_E_NUMERIC, "element 1 is inf"},
        {1, "P.scales", infinite, VPTQ_E_NUMERIC, "element 1 is inf"},
        {0, "P.codebook_scales.0", infinite, VPTQ_E_NUMERIC, "is inf"},
        {0, "P.codebook_scales.0", negative, VPTQ_E_NUMERIC, "a positive scale"},
        {0, "P.codebook_scales.0", long_scale, VPTQ_E_NUMERIC, "times 1.00098, expected"},
        {0, "P.codebooks.0", low, VPTQ_E_NUMERIC, "is -128 times"},
        {2, "P.stage_scales", nan_scale, VPTQ_E_NUMERIC, "element 1 is"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rig r;
        open_rig(&r, rows[i].shape);
        vptq_tensor *t = find(&r, rows[i].name);
        if (rows[i].data)
            t->data = rows[i].data;
        else
            t->type = VPTQ_F64;
        refuse(&r, rows[i].code, rows[i].part);
    }
    rig r;
    open_rig(&r, 3);
    find(&r, "P.codes.1")->data = NULL; /* damaged */
    refuse(&r, VPTQ_E_CHECKSUM, "is damaged");
}

static void refuse_writing(vadditive *x, const char *part)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_tensor list[VPTQ_ADDITIVE_MAX_TENSORS];
    size_t count = 0;
    vptq_arena_init(&arena, NULL);
    assert_fails(vptq_additive_tensors(&x->m, &arena, list, &count, &err), VPTQ_E_NUMERIC, &err,
                 part);
    vptq_arena_release(&arena);
    vadditive_free(x);
}

static void test_unwritable(void **state)
{
    (void)state;
    vadditive x;
    vadditive_make(&x, shape_of(1), VPTQ_F16), x.codebooks[1][3] = 1.0001F;
    refuse_writing(&x, "element 3 of codebooks.1 is 1.0001, which is not exact in F16");
    vadditive_make(&x, shape_of(1), VPTQ_F16), x.scales[2] = INFINITY;
    refuse_writing(&x, "element 2 of scales");
    vadditive_make(&x, shape_of(0), VPTQ_F16), x.codebooks[0][0] = 1.0e-3F;
    refuse_writing(&x, "codebook 0 of stage 0 is not on an int8 grid");
    vadditive_make(&x, shape_of(2), VPTQ_F16), x.m.a.stage_scales[1] = (float)NAN;
    refuse_writing(&x, "the scale of stage 1 is");
}

/* A weight that the storage type cannot hold. */
static void test_overflow(void **state)
{
    (void)state;
    vptq_err err = {0};
    vadditive x;
    vptq_arena arena;
    vptq_tensor t;
    const vptq_ctx ctx = {.threads = 1};
    vptq_arena_init(&arena, NULL);
    vadditive_make(&x, shape_of(1), VPTQ_F16);
    x.scales[3] = 65504; /* of row 3 */
    for (size_t i = 0; i < ((size_t)1 << x.m.a.shape.bits[0]) * x.m.a.shape.v; i++)
        x.codebooks[0][i] = 40;
    assert_fails(vptq_additive_weight(&ctx, &x.m, FILE_NAME, &arena, &t, &err), VPTQ_E_NUMERIC,
                 &err, "layer 'P': row 3, column 0");
    vptq_arena_release(&arena);
    vadditive_free(&x);
}

static vptq_status with_memory(void *arg, vptq_mem *mem, vptq_err *err)
{
    const rig *r = arg;
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    vptq_additive_matrix m;
    vptq_tensor t, list[VPTQ_ADDITIVE_MAX_TENSORS];
    size_t count = 0;
    const vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_arena_init(&arena, mem);
    VPTQ_TRY(vptq_additive_read(&r->set, r->entry, "P", FILE_NAME, &arena, &m, err));
    VPTQ_TRY(vptq_additive_weight(&ctx, &m, FILE_NAME, &arena, &t, err));
    st = vptq_additive_tensors(&m, &arena, list, &count, err);
out:
    vptq_arena_release(&arena);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        rig r;
        open_rig(&r, i);
        vtest_oom_walk(with_memory, &r);
        json_decref(r.entry);
        vptq_tensor_set_release(&r.set);
        vadditive_free(&r.x);
    }
}

VTEST_MAIN(cmocka_unit_test(test_round_trip), cmocka_unit_test(test_padding),
           scratch_test(test_layer_file), cmocka_unit_test(test_config),
           cmocka_unit_test(test_bad_entries), cmocka_unit_test(test_missing_and_extra_parts),
           cmocka_unit_test(test_bad_tensors), cmocka_unit_test(test_unwritable),
           cmocka_unit_test(test_overflow), cmocka_unit_test(test_out_of_memory))
