/* Tests the matrix files of a work directory: round trips, and rejection of all other files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "lib/base/half.h"
#include "tests/support/vtest.h"

enum { OUT = 10, IN = 12, V = 4, K = 16, KR = 8, VECTOR_ROWS = 3, WORDS = 3 };

typedef struct sample {
    float codebooks[K * V], res[KR * V]; /* before rounding */
    float stored_codebooks[K * V], stored_res[KR * V];
    float scale[IN], bias[IN];
    uint32_t indices[VECTOR_ROWS * WORDS];
    vptq_packed_matrix m;
} sample;

static void rounded(const float *x, float *y, size_t n)
{
    memcpy(y, x, n * sizeof *x);
    vptq_round_to_n(VPTQ_F16, y, n);
}

static void make_sample(sample *s)
{
    vtest_normal(s->codebooks, K * V, 1);
    vtest_normal(s->res, KR * V, 2);
    vtest_normal(s->scale, IN, 3);
    vtest_normal(s->bias, IN, 4);
    rounded(s->codebooks, s->stored_codebooks, K * V);
    rounded(s->res, s->stored_res, KR * V);
    rounded(s->scale, s->scale, IN);
    rounded(s->bias, s->bias, IN);
    memset(s->indices, 0, sizeof s->indices);
    for (size_t i = 0; i < VECTOR_ROWS * IN; i++)
        vptq_bits_put(s->indices + i / IN * WORDS, i % IN, 7, (uint32_t)(i * 29 % 128));
    s->m = (vptq_packed_matrix){.name = "model.layers.3.mlp.gate_proj", .storage = VPTQ_F16};
    s->m.vq = (vptq_vq){.shape = {.out = OUT,
                                  .in = IN,
                                  .v = V,
                                  .k = K,
                                  .k_res = KR,
                                  .groups = 1,
                                  .group_size = IN,
                                  .has_norm = true},
                        .indices = s->indices,
                        .centroids = s->stored_codebooks,
                        .res_centroids = s->stored_res,
                        .scale = s->scale,
                        .bias = s->bias};
}

static void write_sample(const sample *s, const char *path)
{
    vptq_err err = {0};
    assert_ok(vptq_layer_file_write(path,
                                    &(vptq_layer_file){.matrix = s->m,
                                                       .centroids_f32 = s->codebooks,
                                                       .res_centroids_f32 = s->res,
                                                       .fingerprint = "0123456789abcdef",
                                                       .report = "{\"loss\":0.5}"},
                                    NULL, &err),
              &err);
}

static void test_names(void **state)
{
    (void)state;
    char name[VPTQ_LAYER_FILE_NAME_MAX];
    vptq_layer_file_name(name, 3, "gate_proj");
    assert_string_equal(name, "layer_003_gate_proj.safetensors");
    vptq_layer_file_name(name, 1234, "q_proj");
    assert_string_equal(name, "layer_1234_q_proj.safetensors");
}

static void test_round_trip(void **state)
{
    sample s;
    vptq_layer_file f;
    vptq_err err = {0};
    char path[4096], again[4096];
    make_sample(&s);
    vtest_path(path, sizeof path, *state, "a.safetensors");
    vtest_path(again, sizeof again, *state, "b.safetensors");
    write_sample(&s, path);
    assert_ok(vptq_layer_file_read(path, NULL, &f, &err), &err);
    assert_string_equal(f.matrix.name, s.m.name);
    assert_string_equal(f.fingerprint, "0123456789abcdef");
    assert_string_equal(f.report, "{\"loss\":0.5}");
    assert_memory_equal(&f.matrix.vq.shape, &s.m.vq.shape, sizeof s.m.vq.shape);
    assert_memory_equal(f.matrix.vq.indices, s.indices, sizeof s.indices);
    assert_same_f32(f.matrix.vq.centroids, s.stored_codebooks, K * V);
    assert_same_f32(f.matrix.vq.res_centroids, s.stored_res, KR * V);
    assert_same_f32(f.matrix.vq.scale, s.scale, IN);
    assert_same_f32(f.matrix.vq.bias, s.bias, IN);
    assert_same_f32(f.centroids_f32, s.codebooks, K * V);
    assert_same_f32(f.res_centroids_f32, s.res, KR * V);
    /* writing what was read gives the same bytes */
    assert_ok(vptq_layer_file_write(again,
                                    &(vptq_layer_file){.matrix = f.matrix,
                                                       .centroids_f32 = f.centroids_f32,
                                                       .res_centroids_f32 = f.res_centroids_f32,
                                                       .fingerprint = f.fingerprint,
                                                       .report = f.report},
                                    NULL, &err),
              &err);
    vtest_expect_same_file(path, again);
    vptq_layer_file_release(&f);
}

static void write_folded(const sample *s, const char *path, bool folded, const float *norm)
{
    vptq_err err = {0};
    assert_ok(vptq_layer_file_write(path,
                                    &(vptq_layer_file){.matrix = s->m,
                                                       .centroids_f32 = s->codebooks,
                                                       .res_centroids_f32 = s->res,
                                                       .folded = folded,
                                                       .norm = norm,
                                                       .norm_size = norm ? IN : 0,
                                                       .fingerprint = "f",
                                                       .report = "{}"},
                                    NULL, &err),
              &err);
}

static void test_norms(void **state)
{
    sample s;
    vptq_layer_file f;
    vptq_err err = {0};
    char path[4096];
    float norm[IN];
    make_sample(&s);
    vtest_normal(norm, IN, 5);
    vtest_path(path, sizeof path, *state, "a.safetensors");
    write_folded(&s, path, true, norm);
    assert_ok(vptq_layer_file_read(path, NULL, &f, &err), &err);
    assert_true(f.folded);
    assert_int_equal(f.norm_size, IN);
    assert_same_f32(f.norm, norm, IN);
    vptq_layer_file_release(&f);
    write_folded(&s, path, true, NULL);
    assert_ok(vptq_layer_file_read(path, NULL, &f, &err), &err);
    assert_true(f.folded && !f.norm);
    vptq_layer_file_release(&f);
    write_folded(&s, path, false, NULL);
    assert_ok(vptq_layer_file_read(path, NULL, &f, &err), &err);
    assert_false(f.folded);
    vptq_layer_file_release(&f);
    write_folded(&s, path, false, norm);
    assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_FORMAT, &err,
                 "tensor 'norm' is not F32 [columns] of a folded matrix");
    norm[3] = NAN;
    write_folded(&s, path, true, norm);
    assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_NUMERIC, &err,
                 "tensor 'norm': element 3 is nan");
}

/* After a change of any bit the reader reports an error, or the data is intact (a space in the
 * header of the file). */
static void test_every_flipped_byte(void **state)
{
    sample s;
    vptq_layer_file f;
    vptq_err err = {0};
    char path[4096];
    size_t n, quiet = 0, checksums = 0;
    make_sample(&s);
    vtest_path(path, sizeof path, *state, "a.safetensors");
    write_sample(&s, path);
    char *bytes = vtest_read_file(path, &n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= 1;
        vtest_write_file(path, bytes, n);
        bytes[i] ^= 1;
        vptq_status st = vptq_layer_file_read(path, NULL, &f, &err);
        checksums += st == VPTQ_E_CHECKSUM;
        if (st)
            continue;
        quiet++;
        assert_same_f32(f.matrix.vq.centroids, s.stored_codebooks, K * V);
        assert_same_f32(f.centroids_f32, s.codebooks, K * V);
        assert_memory_equal(f.matrix.vq.indices, s.indices, sizeof s.indices);
        vptq_layer_file_release(&f);
    }
    free(bytes);
    assert_true(quiet < 8);
    assert_true(checksums > sizeof s.codebooks + sizeof s.res + sizeof s.indices);
}

static void test_truncated(void **state)
{
    sample s;
    vptq_layer_file f;
    vptq_err err = {0};
    char path[4096];
    size_t n;
    make_sample(&s);
    vtest_path(path, sizeof path, *state, "a.safetensors");
    write_sample(&s, path);
    char *bytes = vtest_read_file(path, &n);
    for (size_t len = 0; len < n; len += 1 + len / 64) {
        vtest_write_file(path, bytes, len);
        assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_FORMAT, &err, path);
    }
    free(bytes);
}

static void test_other_files(void **state)
{
    vptq_layer_file f;
    vptq_err err = {0};
    char path[4096];
    float x[4] = {0};
    vtest_path(path, sizeof path, *state, "a.safetensors");
    vptq_tensor t = {.name = "x",
                     .type = VPTQ_F32,
                     .dims = 1,
                     .shape = {4},
                     .data = (const uint8_t *)(const void *)x,
                     .bytes = sizeof x};
    assert_ok(vptq_safetensors_save(path, &t, 1, NULL, 0, &err), &err);
    assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_FORMAT, &err,
                 "is not a finished matrix");
    vptq_metadata meta[] = {{"format", "2"},      {"name", "n"},   {"entry", "{}"},
                            {"fingerprint", "f"}, {"report", "r"}, {"xxh3", "0"}};
    assert_ok(vptq_safetensors_save(path, &t, 1, meta, 6, &err), &err);
    assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_UNSUPPORTED, &err,
                 "version '2' of the work format, expected 1");
    meta[0].value = "1";
    assert_ok(vptq_safetensors_save(path, &t, 1, meta, 6, &err), &err);
    assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_CHECKSUM, &err, "damaged");
    vtest_path(path, sizeof path, *state, "none");
    assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_IO, &err, "none");
}

/* ---- dense matrices ---- */

/* Writes a file whose metadata have the right checksum, whatever they say. */
static void write_sealed(const char *path, const char *name, const char *entry,
                         const vptq_tensor *list, size_t count)
{
    char hex[VPTQ_SAFETENSORS_SUM];
    vptq_err err = {0};
    const vptq_metadata meta[] = {{"format", "1"},      {"name", name},   {"entry", entry},
                                  {"fingerprint", "f"}, {"report", "{}"}, {"xxh3", hex}};
    vptq_safetensors_sum(list, count, meta, 5, hex);
    assert_ok(vptq_safetensors_save(path, list, count, meta, 6, &err), &err);
}

static vptq_tensor dense_tensor(const char *name, vptq_dtype type, uint32_t dims,
                                const uint16_t *data)
{
    return (vptq_tensor){.name = name,
                         .type = type,
                         .dims = dims,
                         .shape = {dims == 1 ? 6 : 2, dims == 3 ? 1 : 3, 3},
                         .data = (const uint8_t *)(const void *)data,
                         .bytes = 12,
                         .round_to = type,
                         .file = ""};
}

static void test_dense(void **state)
{
    static const uint16_t data[6] = {0, 0x3c00, 0x8000, 0x7bff, 1, 0xbc00};
    char path[4096], again[4096];
    vptq_err err = {0};
    vptq_layer_file f;
    vtest_path(path, sizeof path, *state, "a.safetensors");
    vtest_path(again, sizeof again, *state, "b.safetensors");
    for (uint32_t dims = 1; dims <= 2; dims++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const vptq_dtype type = bf16 ? VPTQ_BF16 : VPTQ_F16;
            const vptq_layer_file want = {
                .dense = "model.norm",
                .weight = dense_tensor("model.norm.weight", type, dims, data),
                .fingerprint = "f",
                .report = "{}"};
            assert_ok(vptq_layer_file_write(path, &want, NULL, &err), &err);
            write_sealed(again, "model.norm", "{\"format\":\"dense\"}", &want.weight, 1);
            vtest_expect_same_file(path, again);
            assert_ok(vptq_layer_file_read(path, NULL, &f, &err), &err);
            assert_string_equal(vptq_layer_file_matrix(&f), "model.norm");
            assert_true(vptq_layer_file_storage(&f) == type && !f.is_uniform);
            assert_true(f.weight.dims == dims && f.weight.round_to == type);
            assert_memory_equal(f.weight.shape, want.weight.shape, dims * sizeof(uint64_t));
            assert_memory_equal(f.weight.data, data, sizeof data);
            vptq_layer_file_release(&f);
        }
}

static void test_bad_dense(void **state)
{
    static const uint16_t data[6] = {0}, odd[6] = {0, 0, 0x7f80, 0, 0, 0x7c00};
    const char *const dense = "{\"format\":\"dense\"}";
    char path[4096];
    vptq_err err = {0};
    vptq_layer_file f;
    vtest_path(path, sizeof path, *state, "a.safetensors");
    const vptq_tensor good = dense_tensor("m.weight", VPTQ_F16, 2, data);
    const vptq_tensor bad[] = {dense_tensor("n.weight", VPTQ_F16, 2, data),
                               dense_tensor("m", VPTQ_F16, 2, data),
                               dense_tensor("m.weight", VPTQ_I16, 2, data),
                               dense_tensor("m.weight", VPTQ_F16, 3, data)};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_sealed(path, "m", dense, &bad[i], 1);
        assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_FORMAT, &err,
                     "expected one tensor 'm.weight'");
    }
    const vptq_tensor two[] = {good, dense_tensor("n.weight", VPTQ_F16, 2, data)};
    write_sealed(path, "m", dense, two, 2);
    assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_FORMAT, &err,
                 "expected one tensor 'm.weight'");
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const vptq_tensor t = dense_tensor("m.weight", bf16 ? VPTQ_BF16 : VPTQ_F16, 2, odd);
        write_sealed(path, "m", dense, &t, 1);
        assert_fails(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_E_NUMERIC, &err,
                     bf16 ? "element 2 is not finite" : "is not finite");
    }
    write_sealed(path, "m", "{\"format\":\"sparse\"}", &good, 1);
    assert_int_not_equal(vptq_layer_file_read(path, NULL, &f, &err), VPTQ_OK);
}

typedef struct walk {
    const sample *s;
    const char *path;
} walk;

static vptq_status write_and_read(void *arg, vptq_mem *mem, vptq_err *err)
{
    const walk *w = arg;
    vptq_layer_file f;
    vptq_status st = vptq_layer_file_write(w->path,
                                           &(vptq_layer_file){.matrix = w->s->m,
                                                              .centroids_f32 = w->s->codebooks,
                                                              .res_centroids_f32 = w->s->res,
                                                              .fingerprint = "f",
                                                              .report = "{}"},
                                           mem, err);
    if (st)
        return st;
    st = vptq_layer_file_read(w->path, mem, &f, err);
    if (!st)
        vptq_layer_file_release(&f);
    return st;
}

static void test_out_of_memory(void **state)
{
    sample s;
    char path[4096];
    make_sample(&s);
    vtest_path(path, sizeof path, *state, "a.safetensors");
    walk w = {&s, path};
    vtest_oom_walk(write_and_read, &w);
}

VTEST_MAIN(cmocka_unit_test(test_names), scratch_test(test_round_trip),
           scratch_test(test_norms), scratch_test(test_every_flipped_byte),
           scratch_test(test_truncated), scratch_test(test_other_files),
           scratch_test(test_dense), scratch_test(test_bad_dense),
           scratch_test(test_out_of_memory))
