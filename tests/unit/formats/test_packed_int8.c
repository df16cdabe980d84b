/* Tests codebooks that are stored in 8 bits: what is written, when it fits, and what is
 * refused. */
#include <stdio.h>
#include <string.h>

#include "formats/vptq/packed.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vtest.h"

/* Two groups of 4 columns and an outlier column. */
static const vptq_vq_shape shape = {6, 9, 4, 8, 4, 2, 4, 1, 2, 4, true, true, true};

enum { MAIN = 8 * 4, RES = 4 * 4, OUTLIER = 4 * 2 }; /* numbers of a codebook */

typedef struct rig {
    vmatrix v;
    vptq_packed_matrix m;
    vptq_tensor_set set; /* what is written */
    json_t *entry;
} rig;

static void fill_grid(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(i * 29 % 255) - 127) * scale;
    x[0] = 127 * scale;
    x[1] = 0;
    x[2] = -126 * scale;
}

static void add(rig *r, vptq_tensor t)
{
    vptq_err err = {0};
    t.file = "x.vptq";
    assert_ok(vptq_tensor_set_add(&r->set, &t, &err), &err);
}

/* Writes the matrix, and with `extra` a tensor more. */
static void write_set(rig *r, const vptq_tensor *extra)
{
    vptq_err err = {0};
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    vptq_tensor_set_init(&r->set, NULL);
    assert_ok(vptq_packed_tensors(&r->m, &r->set.arena, list, &count, &err), &err);
    for (size_t i = 0; i < count; i++)
        add(r, list[i]);
    if (extra)
        add(r, *extra);
    assert_ok(vptq_tensor_set_finish(&r->set, &err), &err);
    assert_ok(vptq_packed_make_entry(&r->m, false, &r->entry, &err), &err);
}

/* The scales of the groups are 1/16 and 3/256, of the residual codebooks 1/64 and 5/1024, and 1
 * for the outliers. */
static void open_rig(rig *r)
{
    vmatrix_make(&r->v, &shape);
    fill_grid(r->v.centroids, MAIN, 1.0F / 16);
    fill_grid(r->v.centroids + MAIN, MAIN, 3.0F / 256);
    fill_grid(r->v.res_centroids, RES, 1.0F / 64);
    fill_grid(r->v.res_centroids + RES, RES, 5.0F / 1024);
    fill_grid(r->v.outlier_centroids, OUTLIER, 1);
    r->m = (vptq_packed_matrix){.name = "P", .vq = r->v.q, .storage = VPTQ_F16};
    assert_true(vptq_packed_fits_int8(&r->m));
    write_set(r, NULL);
}

static void close_rig(rig *r)
{
    vptq_tensor_set_release(&r->set);
    json_decref(r->entry);
    vmatrix_free(&r->v);
}

static vptq_status read_back(rig *r, vptq_packed_matrix *m, vptq_err *err)
{
    return vptq_packed_read(&(vptq_packed_source){&r->set, r->entry, "P", "x.vptq"},
                            &r->set.arena, m, err);
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

/* ---- what is written ---- */

static void test_round_trip(void **state)
{
    (void)state;
    static const uint16_t scales[] = {0x2c00, 0x2200}; /* 2^-4 and 1.5 * 2^-7 in F16 */
    rig r;
    vptq_packed_matrix m;
    vptq_err err = {0};
    open_rig(&r);
    const vptq_tensor *codes = written(&r, "P.centroids.weight");
    const vptq_tensor *scale = written(&r, "P.centroids.scale");
    assert_int_equal(codes->type, VPTQ_I8);
    assert_int_equal(codes->bytes, 2 * MAIN);
    assert_int_equal((int8_t)codes->data[0], 127);
    assert_int_equal((int8_t)codes->data[2], -126);
    assert_int_equal(scale->type, VPTQ_F16);
    assert_int_equal(scale->bytes, sizeof scales);
    assert_memory_equal(scale->data, scales, sizeof scales);
    assert_int_equal(written(&r, "P.outlier_centroids.scale")->bytes, sizeof scales[0]);

    assert_ok(read_back(&r, &m, &err), &err);
    assert_true(m.vq.shape.int8);
    assert_int_equal(m.storage, VPTQ_F16);
    assert_memory_equal(m.vq.centroids, r.v.centroids, 2 * MAIN * sizeof(float));
    assert_memory_equal(m.vq.res_centroids, r.v.res_centroids, 2 * RES * sizeof(float));
    assert_memory_equal(m.vq.outlier_centroids, r.v.outlier_centroids, OUTLIER * sizeof(float));
    close_rig(&r);
}

static void test_what_fits(void **state)
{
    (void)state;
    rig r;
    open_rig(&r);
    float *main = r.v.centroids, *res = r.v.res_centroids, *outlier = r.v.outlier_centroids;
    main[2 * MAIN - 1] = 0.4F; /* no multiple */
    assert_false(vptq_packed_fits_int8(&r.m));
    main[2 * MAIN - 1] = 0;
    assert_true(vptq_packed_fits_int8(&r.m));
    res[1] = -0.0F; /* a whole number loses the sign */
    assert_false(vptq_packed_fits_int8(&r.m));
    res[1] = 0;
    outlier[1] = 0.3F;
    assert_false(vptq_packed_fits_int8(&r.m));
    outlier[1] = 128; /* codes go up to 127 */
    outlier[3] = 1;
    assert_false(vptq_packed_fits_int8(&r.m));
    outlier[1] = 1;
    assert_true(vptq_packed_fits_int8(&r.m));
    fill_grid(main, MAIN, 0x1.01p0F); /* not exact in F16 */
    assert_false(vptq_packed_fits_int8(&r.m));
    close_rig(&r);
}

/* ---- what is refused ---- */

static void test_off_the_grid(void **state)
{
    (void)state;
    rig r;
    vptq_err err = {0};
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    open_rig(&r);
    r.v.res_centroids[RES + 3] = 0.1F;
    assert_fails(vptq_packed_tensors(&r.m, &r.set.arena, list, &count, &err), VPTQ_E_NUMERIC,
                 &err, "layer 'P': codebook 1 of res_centroids.weight is not on an int8 grid");
    close_rig(&r);
}

static void test_bad_tensors(void **state)
{
    (void)state;
    static const uint16_t nan = 0x7e00, large[] = {0x7000, 0x2200}, fine[] = {0x2c01, 0x2200};
    static const uint16_t negative[] = {0x2c00, 0xa200}, zero[] = {0, 0x2200};
    static const float wide[2 * RES] = {0};
    static const int8_t least[2 * MAIN] = {0, 0, 0, 0, 0, -128};
    static const struct row {
        const char *part;
        const void *data; /* NULL: as it is */
        size_t bytes;     /* of an element */
        vptq_dtype type;
        vptq_status code;
        const char *text;
    } rows[] = {
        {"P.outlier_centroids.scale", &nan, 2, VPTQ_F16, VPTQ_E_NUMERIC,
         "'P.outlier_centroids.scale': element 0 is nan"},
        {"P.centroids.scale", large, 2, VPTQ_F16, VPTQ_E_NUMERIC,
         "'P.centroids.weight': element 0 times its scale is 1.04038e+06, which F16 cannot "
         "hold exactly"},
        {"P.centroids.scale", fine, 2, VPTQ_F16, VPTQ_E_NUMERIC, "F16 cannot hold exactly"},
        {"P.centroids.scale", negative, 2, VPTQ_F16, VPTQ_E_NUMERIC,
         "'P.centroids.weight': the scale of element 32 is -0.0117188, expected more than 0"},
        {"P.centroids.scale", zero, 2, VPTQ_F16, VPTQ_E_NUMERIC,
         "the scale of element 0 is 0, expected more than 0"},
        {"P.centroids.weight", least, 1, VPTQ_I8, VPTQ_E_NUMERIC,
         "'P.centroids.weight': element 5 is -128, expected -127 to 127"},
        {"P.centroids.scale", fine, 2, VPTQ_I16, VPTQ_E_UNSUPPORTED,
         "'P.centroids.scale' is I16, expected F16 or BF16"},
        {"P.res_centroids.scale", fine, 2, VPTQ_BF16, VPTQ_E_FORMAT,
         "'P.res_centroids.scale' is BF16, expected F16"},
        {"P.res_centroids.weight", NULL, 1, VPTQ_U8, VPTQ_E_FORMAT,
         "'P.res_centroids.weight' is U8, expected I8"},
        {"P.res_centroids.weight", wide, 2, VPTQ_F16, VPTQ_E_FORMAT,
         "'P.res_centroids.weight' is F16, expected I8"}, /* next to one of 8 bits */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rig r;
        vptq_packed_matrix m;
        vptq_err err = {0};
        open_rig(&r);
        vptq_tensor *t = written(&r, rows[i].part);
        t->bytes = t->bytes / vptq_dtype_get(t->type)->bytes * rows[i].bytes;
        t->type = rows[i].type;
        if (rows[i].data)
            t->data = rows[i].data;
        assert_fails(read_back(&r, &m, &err), rows[i].code, &err, rows[i].text);
        close_rig(&r);
    }
}

typedef struct fault_list {
    size_t count;
    char last[512];
} fault_list;

static void keep_fault(void *arg, const char *text)
{
    fault_list *f = arg;
    f->count++;
    snprintf(f->last, sizeof f->last, "%s", text);
}

/* Reading ignores a scale next to codebooks of 16 bits; checking reports it. */
static void test_unused_scale(void **state)
{
    (void)state;
    static const uint16_t data[] = {0x2c00, 0x2200};
    const vptq_tensor extra = {.name = "P.res_centroids.scale",
                               .type = VPTQ_F16,
                               .dims = 1,
                               .shape = {2},
                               .bytes = sizeof data,
                               .data = (const uint8_t *)data};
    rig r;
    vptq_packed_matrix m;
    vptq_err err = {0};
    fault_list faults = {0};
    bool whole;
    open_rig(&r);
    vptq_tensor_set_release(&r.set);
    json_decref(r.entry);
    r.m.vq.shape.int8 = false;
    write_set(&r, &extra);
    assert_ok(read_back(&r, &m, &err), &err);
    assert_false(m.vq.shape.int8);
    assert_ok(vptq_packed_check(&(vptq_packed_source){&r.set, r.entry, "P", "x.vptq"},
                                &(vptq_packed_mode){.fault = keep_fault, .fault_arg = &faults},
                                &r.set.arena, &m, &whole, &err),
              &err);
    assert_false(whole);
    assert_int_equal(faults.count, 1);
    assert_string_equal(faults.last, "x.vptq: tensor 'P.res_centroids.scale' is present, but "
                                     "the layer has no such codebook of type I8");
    close_rig(&r);
}

static vptq_status write_and_read(void *arg, vptq_mem *mem, vptq_err *err)
{
    const rig *r = arg;
    vptq_arena arena;
    vptq_packed_matrix m;
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    vptq_arena_init(&arena, mem);
    vptq_status st = vptq_packed_tensors(&r->m, &arena, list, &count, err);
    if (!st)
        st = vptq_packed_read(&(vptq_packed_source){&r->set, r->entry, "P", "x.vptq"}, &arena,
                              &m, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    rig r;
    open_rig(&r);
    vtest_oom_walk(write_and_read, &r);
    close_rig(&r);
}

VTEST_MAIN(cmocka_unit_test(test_round_trip), cmocka_unit_test(test_what_fits),
           cmocka_unit_test(test_off_the_grid), cmocka_unit_test(test_bad_tensors),
           cmocka_unit_test(test_unused_scale), cmocka_unit_test(test_out_of_memory))
