/* Tests the published layout against upstream's files: indices, dequantized weights, every form
 * that occurs, and files that must be rejected. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "formats/hf/weights.h"
#include "formats/vptq/packed.h"
#include "lib/backend/backend.h"
#include "tests/support/vjson.h"
#include "tests/support/vtest.h"

#define LAYER "model.layers.0.mlp.down_proj"

typedef struct golden {
    vptq_ctx ctx;
    vptq_device ref;
    vptq_tensor_set set;
    json_t *config;
    vptq_packed_matrix m;
    char dir[4096];
} golden;

static bool find_golden(golden *g, const char *name)
{
    char rel[256];
    snprintf(rel, sizeof rel, "golden/vptq_layout/%s", name);
    return vtest_data(g->dir, sizeof g->dir, rel);
}

/* Opens layer.safetensors, decompressed if it is an .xz file. */
static void layer_path(const golden *g, const char *scratch, char path[4096])
{
    char packed[4096 + 32], command[3 * 4096];
    vtest_path(path, 4096, g->dir, "layer.safetensors");
    FILE *f = fopen(path, "rb");
    if (f) {
        fclose(f);
        return;
    }
    snprintf(packed, sizeof packed, "%s.xz", path);
    vtest_path(path, 4096, scratch, "layer.safetensors");
    snprintf(command, sizeof command, "xz -dc '%s' > '%s'", packed, path);
    assert_int_equal(system(command), 0);
}

static void open_golden(golden *g, const char *scratch)
{
    vptq_err err = {0};
    char path[4096];
    g->ctx = (vptq_ctx){.threads = 1};
    assert_ok(vptq_device_open(&g->ctx, "ref", &g->ref, &err), &err);
    layer_path(g, scratch, path);
    vptq_tensor_set_init(&g->set, NULL);
    assert_ok(vptq_safetensors_read(path, &g->set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(&g->set, &err), &err);
    vtest_path(path, sizeof path, g->dir, "config.json");
    assert_ok(vptq_json_load(path, 1 << 20, &g->config, &err), &err);
    const json_t *entry = vptq_packed_entry(g->config, LAYER);
    assert_non_null(entry);
    assert_ok(vptq_packed_read(&(vptq_packed_source){&g->set, entry, LAYER, "layer"},
                               &g->set.arena, &g->m, &err),
              &err);
    assert_string_equal(g->m.name, LAYER);
}

static void close_golden(golden *g)
{
    json_decref(g->config);
    vptq_tensor_set_release(&g->set);
    vptq_device_close(&g->ref);
}

static float *dequantize(vptq_device *ref, const vptq_vq *q)
{
    vptq_err err = {0};
    const vptq_vq_shape *s = &q->shape;
    float *w = malloc((size_t)s->out * s->in * sizeof *w);
    assert_non_null(w);
    assert_ok(vptq_device_decode(ref, q, 0, s->out, w, s->in, &err), &err);
    return w;
}

static void check_weights(golden *g, const char *file, bool rounded)
{
    char path[4096];
    vtest_npy want;
    vtest_path(path, sizeof path, g->dir, file);
    vtest_npy_load(path, &want);
    float *w = dequantize(&g->ref, &g->m.vq);
    assert_int_equal(want.count, (size_t)g->m.vq.shape.out * g->m.vq.shape.in);
    if (rounded)
        vptq_round_to_n(g->m.storage, w, want.count);
    assert_same_f32(w, vtest_npy_as(&want, "f4"), want.count);
    free(w);
    vtest_npy_free(&want);
}

/* Reads the main or residual part of field c from every row of `indices`. */
static void check_indices(const golden *g, const char *file, bool residual)
{
    const vptq_vq_shape *s = &g->m.vq.shape;
    unsigned bits = vptq_vq_index_bits(s), main_bits = vptq_log2u(s->k);
    char path[4096];
    vtest_npy want;
    vtest_path(path, sizeof path, g->dir, file);
    vtest_npy_load(path, &want);
    size_t rows = (size_t)s->groups * vptq_vq_vector_rows(s);
    assert_int_equal(want.count, rows * s->group_size);
    const uint16_t *x = vtest_npy_as(&want, "u2");
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < s->group_size; c++) {
            uint32_t field = vptq_bits_get(g->m.vq.indices + r * vptq_vq_row_words(s), c, bits);
            assert_int_equal(residual ? field >> main_bits : field & (s->k - 1),
                             x[r * s->group_size + c]);
        }
    vtest_npy_free(&want);
}

static void check_outlier_indices(const golden *g)
{
    const vptq_vq_shape *s = &g->m.vq.shape;
    char path[4096];
    vtest_npy want;
    vtest_path(path, sizeof path, g->dir, "idx_outlier.npy");
    vtest_npy_load(path, &want);
    assert_int_equal(want.count, (s->out + s->v0 - 1) / s->v0 * s->outliers);
    assert_memory_equal(g->m.vq.outlier_indices, vtest_npy_as(&want, "u2"),
                        want.count * sizeof(uint16_t));
    vtest_npy_free(&want);
}

/* Returns the tensors written for a matrix as a set, with their data in the set's arena. */
static void write_to_set(const vptq_packed_matrix *m, vptq_tensor_set *set, json_t **entry)
{
    vptq_err err = {0};
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_packed_tensors(m, &set->arena, list, &count, &err), &err);
    for (size_t i = 0; i < count; i++)
        assert_ok(vptq_tensor_set_add(set, &list[i], &err), &err);
    assert_ok(vptq_tensor_set_finish(set, &err), &err);
    assert_ok(vptq_packed_make_entry(m, false, entry, &err), &err);
}

static void check_same_floats(const float *a, const float *b, size_t n)
{
    assert_true((a == NULL) == (b == NULL));
    if (a)
        assert_memory_equal(a, b, n * sizeof *a);
}

/* A matrix that is written and read again has the same parts, except for intended changes. */
static void check_round_trip(golden *g)
{
    vptq_err err = {0};
    vptq_tensor_set set;
    vptq_packed_matrix back;
    json_t *entry = NULL;
    write_to_set(&g->m, &set, &entry);
    assert_ok(vptq_packed_read(&(vptq_packed_source){&set, entry, LAYER, "copy"}, &set.arena,
                               &back, &err),
              &err);
    const vptq_vq *a = &g->m.vq, *b = &back.vq;
    vptq_vq_shape want = vptq_packed_stored_shape(&a->shape);
    assert_memory_equal(&b->shape, &want, sizeof want);
    assert_true(b->shape.has_norm);
    assert_true(!b->shape.has_perm || a->shape.groups > 1 || a->shape.outliers);
    assert_int_equal(back.storage, g->m.storage);
    const vptq_vq_shape *s = &want;
    check_same_floats(a->centroids, b->centroids, (size_t)s->groups * s->k * s->v);
    check_same_floats(a->res_centroids, b->res_centroids, (size_t)s->groups * s->k_res * s->v);
    check_same_floats(a->outlier_centroids, b->outlier_centroids, (size_t)s->k0 * s->v0);
    if (a->shape.has_norm) {
        check_same_floats(a->scale, b->scale, s->in);
        check_same_floats(a->bias, b->bias, s->in);
    }
    if (s->outliers)
        assert_memory_equal(a->outlier_indices, b->outlier_indices,
                            (s->out + s->v0 - 1) / s->v0 * s->outliers * sizeof(uint16_t));
    if (s->has_perm == a->shape.has_perm)
        assert_memory_equal(a->indices, b->indices,
                            (size_t)s->groups * vptq_vq_vector_rows(s) * vptq_vq_row_words(s) *
                                sizeof(uint32_t));
    if (s->has_perm)
        assert_memory_equal(a->perm, b->perm, s->in * sizeof(uint16_t));
    float *w = dequantize(&g->ref, a), *w2 = dequantize(&g->ref, b);
    /* x * 1 + 0 turns -0 into +0, which compares equal */
    assert_close(w2, w, (size_t)s->out * s->in, 0, 0);
    free(w);
    free(w2);
    json_decref(entry);
    vptq_tensor_set_release(&set);
}

static void test_goldens(void **state)
{
    static const char *const cases[] = {"01_v4_k256",
                                        "02_v4_k256_r16_norm",
                                        "03_v8_k256_r256_perm_bias",
                                        "04_v6_k4096_pad",
                                        "05_v8_k4096_r256_full",
                                        "06_v12_k4096_r4096",
                                        "07_v16_k1024_r32_perm",
                                        "08_g4_v4_k256_r16",
                                        "09_outlier_v8_k256_r16",
                                        "10_outlier_g4_v6_k256",
                                        "11_v2_k65536_r16",
                                        "12_v8_k65536_r256",
                                        "13_v4_k65536_r65536",
                                        "14_v2_k65536_r32768",
                                        "15_v8_k4096_r256_absorbed"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        golden g;
        if (!find_golden(&g, cases[i]))
            skip();
        open_golden(&g, *state);
        check_weights(&g, "W_f32.npy", false);
        check_indices(&g, "idx_main.npy", false);
        if (g.m.vq.shape.k_res)
            check_indices(&g, "idx_res.npy", true);
        if (g.m.vq.shape.outliers)
            check_outlier_indices(&g);
        check_round_trip(&g);
        close_golden(&g);
    }
}

/* A matrix with more residual than main centroids can be read but not written. */
static void test_more_residual_than_main(void **state)
{
    golden g;
    vptq_err err = {0};
    if (!find_golden(&g, "16_quirk_kr_gt_k"))
        skip();
    open_golden(&g, *state);
    check_weights(&g, "W_intended.npy", true);
    check_indices(&g, "idx_main.npy", false);
    check_indices(&g, "idx_res.npy", true);
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    assert_fails(vptq_packed_tensors(&g.m, &g.set.arena, list, &count, &err),
                 VPTQ_E_UNSUPPORTED, &err, "256 residual centroids for 16");
    close_golden(&g);
}

/* Case 15 is case 05 with the permutation absorbed by upstream. */
static void test_absorb_matches_upstream(void **state)
{
    golden a, b;
    if (!find_golden(&a, "05_v8_k4096_r256_full") ||
        !find_golden(&b, "15_v8_k4096_r256_absorbed"))
        skip();
    open_golden(&a, *state);
    open_golden(&b, *state);
    vptq_tensor_set set;
    json_t *entry = NULL;
    write_to_set(&a.m, &set, &entry);
    assert_null(vptq_tensor_find(&set, LAYER ".perm"));
    static const char *const parts[] = {".indices", ".centroids.weight",
                                        ".res_centroids.weight", ".weight_scale",
                                        ".weight_bias"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[128];
        snprintf(name, sizeof name, LAYER "%s", parts[i]);
        const vptq_tensor *x = vptq_tensor_find(&set, name);
        const vptq_tensor *y = vptq_tensor_find(&b.set, name);
        assert_non_null(x);
        assert_non_null(y);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    json_t *theirs = json_deep_copy(vptq_packed_entry(b.config, LAYER));
    json_object_set_new(theirs, "bias", json_false());
    assert_true(json_equal(entry, theirs));
    json_decref(theirs);
    json_decref(entry);
    vptq_tensor_set_release(&set);
    close_golden(&a);
    close_golden(&b);
}

/* All three config files of the model describe the same 35 matrices. */
static void test_model_configs(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", "config_shared.json",
                                        "config_algorithm_raw.json"};
    static const char *const linears[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    char dir[4096], path[4096];
    vptq_err err = {0};
    if (!vtest_data(dir, sizeof dir, "golden/vptq_model_stories260K"))
        skip();
    vptq_tensor_set set;
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_hf_read_weights(dir, &set, &err), &err);
    vptq_packed_layout first[35];
    for (size_t f = 0; f < 3; f++) {
        json_t *config = NULL;
        vtest_path(path, sizeof path, dir, files[f]);
        assert_ok(vptq_json_load(path, 1 << 20, &config, &err), &err);
        assert_true(vptq_packed_is_config(config));
        assert_null(vptq_packed_entry(config, "model.embed_tokens"));
        for (size_t i = 0; i < 35; i++) {
            char name[128];
            snprintf(name, sizeof name, "model.layers.%zu.%s", i / 7, linears[i % 7]);
            const json_t *entry = vptq_packed_entry(config, name);
            vptq_packed_layout layout;
            vptq_packed_matrix m;
            assert_ok(vptq_packed_parse_entry(entry, name, path, &layout, &err), &err);
            if (f == 0)
                first[i] = layout;
            assert_memory_equal(&layout.shape, &first[i].shape, sizeof layout.shape);
            assert_ok(vptq_packed_read(&(vptq_packed_source){&set, entry, name, path},
                                       &set.arena, &m, &err),
                      &err);
            assert_int_equal(m.storage, VPTQ_F16);
        }
        json_decref(config);
    }
    vptq_tensor_set_release(&set);
}

static void test_config_locations(void **state)
{
    (void)state;
    json_t *c = json_pack("{s:{s:{s:s, s:{s:{s:i}}, s:{s:{s:i}}}}}", "text_config",
                          "quantization_config", "quant_method", "vptq", "config_for_layers",
                          "a.q", "x", 1, "shared_layer_config", "q", "x", 2);
    assert_non_null(c);
    assert_true(vptq_packed_is_config(c));
    const json_t *own = vptq_packed_entry(c, "a.q"), *shared = vptq_packed_entry(c, "b.q");
    assert_int_equal(json_integer_value(json_object_get(own, "x")), 1);
    assert_int_equal(json_integer_value(json_object_get(shared, "x")), 2);
    assert_null(vptq_packed_entry(c, "b.k"));
    json_decref(c);
    c = json_pack("{s:{s:s}}", "quantization_config", "quant_method", "gptq");
    assert_false(vptq_packed_is_config(c));
    json_decref(c);
    assert_int_equal(vptq_packed_module_length("a.b.res_centroids.weight"), 3);
    assert_int_equal(vptq_packed_module_length("a.b.centroids.weight"), 3);
    assert_int_equal(vptq_packed_module_length("a.b.weight_bias"), 3);
    assert_int_equal(vptq_packed_module_length("a.b.bias"), 0);
    assert_int_equal(vptq_packed_module_length(".perm"), 0);
}

/* ---- a small matrix with everything: 6 x 9, two groups of 4 columns, one outlier column ----
 */

enum { OUT = 6, IN = 9, V = 4, K = 8, KR = 4, GROUPS = 2, GS = 4, V0 = 2, K0 = 4 };

typedef struct small_matrix {
    uint16_t indices[GROUPS][2][GS], res[GROUPS][2][GS], outlier[3];
    uint16_t codebooks[GROUPS * K * V], res_codebooks[GROUPS * KR * V],
        outlier_codebook[K0 * V0];
    uint16_t perm[IN], scale[IN], bias[IN];
    int64_t perm64[IN];
    uint32_t packed[GROUPS][2][1];
    json_t *entry;
    vptq_tensor list[9];
    size_t count;
} small_matrix;

static void add(small_matrix *s, const char *part, vptq_dtype type, const void *data,
                uint64_t a, uint64_t b, uint64_t c)
{
    vptq_tensor *t = &s->list[s->count++];
    *t = (vptq_tensor){.name = part, .type = type, .data = data, .file = "x.safetensors"};
    uint64_t shape[3] = {a, b, c};
    t->bytes = vptq_dtype_get(type)->bytes;
    for (int i = 0; i < 3; i++)
        if (shape[i]) {
            t->shape[t->dims++] = shape[i];
            t->bytes *= (size_t)shape[i];
        }
}

static void fill_numbers(uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (uint16_t)(0x3000 + 37 * i); /* ordinary half-precision numbers */
}

/* Makes the training form if `plain`, otherwise the published form. */
static void make_small(small_matrix *s, bool plain)
{
    memset(s, 0, sizeof *s);
    fill_numbers(s->codebooks, GROUPS * K * V);
    fill_numbers(s->res_codebooks, GROUPS * KR * V);
    fill_numbers(s->outlier_codebook, K0 * V0);
    fill_numbers(s->scale, IN);
    fill_numbers(s->bias, IN);
    for (int i = 0; i < IN; i++)
        s->perm64[i] = s->perm[i] = (uint16_t)(i * 2 % IN);
    for (int i = 0; i < GROUPS * 2 * GS; i++) {
        (&s->indices[0][0][0])[i] = (uint16_t)(i * 3 % K);
        (&s->res[0][0][0])[i] = (uint16_t)(i * 5 % KR);
        vptq_bits_put(&s->packed[i / GS / 2][i / GS % 2][0], (size_t)(i % GS), 5,
                      (uint32_t)(i * 3 % K | i * 5 % KR << 3));
    }
    for (int i = 0; i < 3; i++)
        s->outlier[i] = (uint16_t)(3 - i);
    s->entry = json_pack(
        "{s:i,s:i,s:[i,i],s:[i,i],s:[i,i],s:i,s:i,s:i,s:b,s:b,s:b,s:b,s:b}", "in_features", IN,
        "out_features", OUT, "vector_lens", V0, V, "num_centroids", K0, K, "num_res_centroids",
        -1, KR, "group_num", GROUPS, "group_size", GS, "outlier_size", 1, "indices_as_float", 0,
        "enable_norm", 1, "enable_perm", 1, "is_indice_packed", !plain, "bias", 0);
    assert_non_null(s->entry);
    if (plain) {
        add(s, "P.indices", VPTQ_I16, s->indices, GROUPS, 2, GS);
        add(s, "P.res_indices", VPTQ_I16, s->res, GROUPS, 2, GS);
        add(s, "P.perm", VPTQ_I64, s->perm64, IN, 0, 0);
    } else {
        add(s, "P.indices", VPTQ_I32, s->packed, GROUPS, 2, 1);
        add(s, "P.perm", VPTQ_I16, s->perm, IN, 0, 0);
    }
    add(s, "P.centroids.weight", VPTQ_F16, s->codebooks, GROUPS, K * V, 0);
    add(s, "P.res_centroids.weight", VPTQ_F16, s->res_codebooks, GROUPS, KR * V, 0);
    add(s, "P.outlier_centroids.weight", VPTQ_F16, s->outlier_codebook, 1, K0 * V0, 0);
    add(s, "P.outlier_indices", VPTQ_I16, s->outlier, 1, 3, 1);
    add(s, "P.weight_scale", VPTQ_F16, s->scale, IN, 0, 0);
    add(s, "P.weight_bias", VPTQ_F16, s->bias, IN, 0, 0);
}

static vptq_tensor *part(small_matrix *s, const char *name)
{
    size_t i = 0;
    while (i < s->count && strcmp(s->list[i].name, name) != 0)
        i++;
    assert_true(i < s->count);
    return &s->list[i];
}

static vptq_status read_small(const small_matrix *s, vptq_mem *mem, vptq_tensor_set *set,
                              vptq_packed_matrix *m, vptq_err *err)
{
    vptq_tensor_set_init(set, mem);
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].name)
            VPTQ_CHECK(vptq_tensor_set_add(set, &s->list[i], err));
    VPTQ_CHECK(vptq_tensor_set_finish(set, err));
    return vptq_packed_read(&(vptq_packed_source){set, s->entry, "P", "x.safetensors"},
                            &set->arena, m, err);
}

static void expect(small_matrix *s, vptq_status code, const char *text)
{
    vptq_err err = {0};
    vptq_tensor_set set;
    vptq_packed_matrix m;
    vptq_status st = read_small(s, NULL, &set, &m, &err);
    assert_fails(st, code, &err, text);
    vptq_tensor_set_release(&set);
    json_decref(s->entry);
}

static void test_training_form(void **state)
{
    (void)state;
    small_matrix a, b;
    vptq_tensor_set sa, sb;
    vptq_packed_matrix ma, mb;
    vptq_err err = {0};
    make_small(&a, true);
    make_small(&b, false);
    assert_ok(read_small(&a, NULL, &sa, &ma, &err), &err);
    assert_ok(read_small(&b, NULL, &sb, &mb, &err), &err);
    assert_memory_equal(ma.vq.indices, b.packed, sizeof b.packed);
    assert_memory_equal(mb.vq.indices, b.packed, sizeof b.packed);
    assert_memory_equal(ma.vq.perm, mb.vq.perm, sizeof b.perm);
    vptq_tensor_set_release(&sa);
    vptq_tensor_set_release(&sb);
    json_decref(a.entry);
    json_decref(b.entry);
}

/* 16-bit indices stored as F16: the same bits, accepted only if the entry says so. */
static void test_indices_as_float(void **state)
{
    (void)state;
    static const char *const parts[] = {"P.indices", "P.res_indices", "P.outlier_indices"};
    small_matrix a, b;
    vptq_tensor_set sa, sb;
    vptq_packed_matrix ma, mb;
    vptq_err err = {0};
    make_small(&a, true);
    make_small(&b, true);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        part(&a, parts[i])->type = VPTQ_F16;
    part(&a, "P.perm")->type = VPTQ_F16;
    part(&a, "P.perm")->bytes = IN * sizeof(uint16_t);
    part(&a, "P.perm")->data = (const uint8_t *)a.perm;
    json_object_set_new(a.entry, "indices_as_float", json_true());
    assert_ok(read_small(&a, NULL, &sa, &ma, &err), &err);
    assert_ok(read_small(&b, NULL, &sb, &mb, &err), &err);
    assert_memory_equal(ma.vq.indices, mb.vq.indices, sizeof b.packed);
    assert_memory_equal(ma.vq.outlier_indices, b.outlier, sizeof b.outlier);
    assert_memory_equal(ma.vq.perm, mb.vq.perm, sizeof b.perm);
    vptq_tensor_set_release(&sa);
    vptq_tensor_set_release(&sb);
    json_object_set_new(a.entry, "indices_as_float", json_false());
    expect(&a, VPTQ_E_FORMAT, "'P.indices' is F16, expected I16");
    json_decref(b.entry);
}

static void test_bad_indices(void **state)
{
    (void)state;
    small_matrix s;
    make_small(&s, true);
    s.indices[1][0][2] = K;
    expect(&s, VPTQ_E_FORMAT, "'P.indices': row 2, column 2: index 8, expected less than 8");
    make_small(&s, true);
    s.res[0][1][3] = 0xffff;
    expect(&s, VPTQ_E_FORMAT, "'P.res_indices': row 1, column 3: index 65535");
    make_small(&s, false);
    s.outlier[2] = K0;
    expect(&s, VPTQ_E_FORMAT, "'P.outlier_indices': row 2, column 0: index 4");
    make_small(&s, false);
    s.perm[4] = s.perm[0];
    expect(&s, VPTQ_E_FORMAT, "not a permutation: element 4 repeats column 0");
    make_small(&s, false);
    s.perm[8] = IN;
    expect(&s, VPTQ_E_FORMAT, "element 8 is not a column below 9");
    make_small(&s, true);
    s.perm64[3] = -1;
    expect(&s, VPTQ_E_FORMAT, "element 3 is not a column below 9");
}

static void test_bad_tensors(void **state)
{
    (void)state;
    small_matrix s;
    make_small(&s, false);
    s.codebooks[5] = 0x7e00;
    expect(&s, VPTQ_E_NUMERIC, "'P.centroids.weight': element 5 is nan");
    make_small(&s, false);
    s.bias[8] = 0xfc00;
    expect(&s, VPTQ_E_NUMERIC, "'P.weight_bias': element 8 is -inf");
    make_small(&s, false);
    part(&s, "P.indices")->shape[1] = 4;
    part(&s, "P.indices")->shape[0] = 1;
    expect(&s, VPTQ_E_SHAPE, "'P.indices' is [1, 4, 1], expected [2, 2, 1]");
    make_small(&s, false);
    part(&s, "P.weight_scale")->type = VPTQ_BF16;
    expect(&s, VPTQ_E_FORMAT, "'P.weight_scale' is BF16, expected F16");
    make_small(&s, false);
    part(&s, "P.centroids.weight")->type = VPTQ_I16;
    expect(&s, VPTQ_E_UNSUPPORTED, "'P.centroids.weight' is I16, expected F16 or BF16");
    make_small(&s, false);
    part(&s, "P.res_centroids.weight")->name = NULL;
    expect(&s, VPTQ_E_FORMAT, "'P.res_centroids.weight' is missing");
    make_small(&s, false);
    part(&s, "P.weight_bias")->name = NULL;
    expect(&s, VPTQ_E_FORMAT, "'P.weight_bias' is missing");
    make_small(&s, false);
    json_object_set_new(s.entry, "enable_norm", json_false());
    expect(&s, VPTQ_E_FORMAT, "'P.weight_scale' is present, but the layer's entry");
}

static void test_bad_entries(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value; /* NULL: the key is removed */
        vptq_status code;
        const char *text;
    } cases[] = {
        {"in_features", NULL, VPTQ_E_FORMAT, "layer 'P': key 'in_features' is missing"},
        {"in_features", "\"9\"", VPTQ_E_FORMAT, "in_features"},
        {"out_features", "-6", VPTQ_E_FORMAT, "out_features"},
        {"out_features", "1e3", VPTQ_E_FORMAT, "out_features"},
        {"in_features", "1099511627776", VPTQ_E_FORMAT, "in_features"},
        {"in_features", "10", VPTQ_E_SHAPE, "layer 'P'"},
        {"group_size", "5", VPTQ_E_SHAPE, "layer 'P'"},
        {"vector_lens", "[2]", VPTQ_E_FORMAT, "'vector_lens' is not a list of two"},
        {"vector_lens", "[2, 65]", VPTQ_E_SHAPE, "layer 'P'"},
        {"num_centroids", "[4, 9]", VPTQ_E_SHAPE, "layer 'P'"},
        {"num_centroids", "[4, 131072]", VPTQ_E_FORMAT, "'num_centroids'"},
        {"num_centroids", "[4, \"8\"]", VPTQ_E_FORMAT, "'num_centroids'"},
        {"num_res_centroids", "[2, 4]", VPTQ_E_UNSUPPORTED, "outlier columns"},
        {"num_res_centroids", "null", VPTQ_E_FORMAT, "'num_res_centroids' is missing"},
        {"enable_norm", "1", VPTQ_E_FORMAT, "enable_norm"},
        {"indices_as_float", "1", VPTQ_E_FORMAT, "indices_as_float"},
        {"is_indice_packed", "false", VPTQ_E_FORMAT, "'P.indices' is I32, expected I16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        small_matrix s;
        make_small(&s, false);
        vjson_set(s.entry, cases[i].key, cases[i].value);
        expect(&s, cases[i].code, cases[i].text);
    }
    small_matrix s;
    make_small(&s, false);
    json_decref(s.entry);
    s.entry = json_integer(3);
    expect(&s, VPTQ_E_FORMAT, "layer 'P': its entry");
}

/* Accepted variants: leading unit axes are missing, two keys exist that upstream's loader
 * rejects, or enable_perm remains although the permutation is absorbed. */
static void test_accepted_variants(void **state)
{
    (void)state;
    small_matrix s;
    vptq_tensor_set set;
    vptq_packed_matrix m;
    vptq_err err = {0};
    make_small(&s, false);
    vptq_tensor *t = part(&s, "P.outlier_indices");
    t->dims = 2;
    t->shape[0] = 3;
    t->shape[1] = 1;
    part(&s, "P.perm")->name = NULL;
    json_object_set_new(s.entry, "norm_dim", json_integer(0));
    json_object_set_new(s.entry, "enable_proxy_error", json_false());
    json_object_set_new(s.entry, "indices_as_float", json_null());
    assert_ok(read_small(&s, NULL, &set, &m, &err), &err);
    assert_false(m.vq.shape.has_perm);
    assert_true(m.vq.shape.has_norm);
    vptq_tensor_set_release(&set);
    json_decref(s.entry);
}

static void test_too_large_to_store(void **state)
{
    (void)state;
    small_matrix s;
    vptq_tensor_set set;
    vptq_packed_matrix m;
    vptq_err err = {0};
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    float scale[IN] = {1, 2, 65519.9F, 65520};
    make_small(&s, false);
    assert_ok(read_small(&s, NULL, &set, &m, &err), &err);
    m.vq.scale = scale;
    assert_fails(vptq_packed_tensors(&m, &set.arena, list, &count, &err), VPTQ_E_NUMERIC, &err,
                 "element 3 of weight_scale is 65520, which F16 cannot hold");
    vptq_tensor_set_release(&set);
    json_decref(s.entry);
}

static vptq_status read_and_write(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_tensor_set set;
    vptq_packed_matrix m;
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    vptq_status st = read_small(arg, mem, &set, &m, err);
    if (!st)
        st = vptq_packed_tensors(&m, &set.arena, list, &count, err);
    vptq_tensor_set_release(&set);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        small_matrix s;
        make_small(&s, plain);
        vtest_oom_walk(read_and_write, &s);
        json_decref(s.entry);
    }
}

VTEST_MAIN(scratch_test(test_goldens), scratch_test(test_more_residual_than_main),
           scratch_test(test_absorb_matches_upstream), cmocka_unit_test(test_model_configs),
           cmocka_unit_test(test_config_locations), cmocka_unit_test(test_training_form),
           cmocka_unit_test(test_indices_as_float), cmocka_unit_test(test_bad_indices),
           cmocka_unit_test(test_bad_tensors), cmocka_unit_test(test_bad_entries),
           cmocka_unit_test(test_accepted_variants), cmocka_unit_test(test_too_large_to_store),
           cmocka_unit_test(test_out_of_memory))
