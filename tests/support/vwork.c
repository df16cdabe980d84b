/* Writes one small quantized model as base model, work directory, packed model and archive. */
#include "tests/support/vwork.h"
#include "tests/support/varchive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "formats/hf/safetensors.h"
#include "formats/vptq/archive.h"
#include "formats/vptq/layer_file.h"
#include "formats/vptq/packed.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/support/vtest.h"

enum { PATH = 4096, MATRICES = 2 };

static void path_in(char path[PATH], const char *dir, const char *sub, const char *name)
{
    char folder[PATH];
    vtest_path(folder, sizeof folder, dir, sub);
    vtest_path(path, PATH, folder, name);
}

/* ---- matrices ---- */

/* Returns normally distributed numbers that F16 holds exactly. */
static float *halves(vptq_arena *a, size_t n, uint64_t seed)
{
    vptq_err err = {0};
    float *x = vptq_arena_alloc(a, n, sizeof *x, &err);
    assert_non_null(x);
    vtest_normal(x, n, seed);
    vptq_round_to_n(VPTQ_F16, x, n);
    return x;
}

static uint32_t *indices(vptq_arena *a, const vptq_vq_shape *s, uint64_t seed)
{
    vptq_err err = {0};
    size_t words = vptq_vq_row_words(s), vector_rows = vptq_vq_vector_rows(s);
    vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_TEST);
    uint32_t *w = vptq_arena_zalloc(a, vector_rows * words, sizeof *w, &err);
    assert_non_null(w);
    unsigned bits = vptq_vq_index_bits(s);
    for (size_t r = 0; r < vector_rows; r++)
        for (size_t c = 0; c < s->group_size; c++)
            vptq_bits_put(
                w + r * words, c, bits,
                (uint32_t)vptq_rng_below(&rng, r * s->group_size + c, UINT64_C(1) << bits));
    return w;
}

static void make_matrices(vptq_arena *a, vptq_packed_matrix m[MATRICES])
{
    vptq_err err = {0};
    vptq_vq_shape plain = {.out = 32, .in = 32, .v = 4, .k = 16, .groups = 1, .group_size = 32};
    vptq_vq_shape normed = {.out = 32,
                            .in = 48,
                            .v = 8,
                            .k = 16,
                            .k_res = 4,
                            .groups = 1,
                            .group_size = 48,
                            .has_perm = true,
                            .has_norm = true};
    uint16_t *perm = vptq_arena_alloc(a, normed.in, sizeof *perm, &err);
    assert_non_null(perm);
    for (uint32_t i = 0; i < normed.in; i++)
        perm[i] = (uint16_t)(i * 5 % normed.in);
    m[0] = (vptq_packed_matrix){.name = VWORK_PLAIN,
                                .vq = {.shape = plain,
                                       .indices = indices(a, &plain, 1),
                                       .centroids = halves(a, 16 * 4, 2)},
                                .storage = VPTQ_F16};
    m[1] = (vptq_packed_matrix){.name = VWORK_NORMED,
                                .vq = {.shape = normed,
                                       .indices = indices(a, &normed, 3),
                                       .centroids = halves(a, 16 * 8, 4),
                                       .res_centroids = halves(a, 4 * 8, 5),
                                       .perm = perm,
                                       .scale = halves(a, normed.in, 6),
                                       .bias = halves(a, normed.in, 7)},
                                .storage = VPTQ_F16};
}

/* ---- the four forms ---- */

static void make_base(const char *dir)
{
    char path[PATH];
    vptq_err err = {0};
    vtest_path(path, sizeof path, dir, "base");
    assert_ok(vptq_dir_make(path, &err), &err);
    vtest_copy_file("tests/golden/tiny_llama3/config.json", path, "config.json");
    vtest_copy_file("tests/golden/tiny_llama3/model.safetensors", path, "model.safetensors");
}

void vwork_report(const char *work, size_t matrices)
{
    char path[PATH], rows[64];
    assert_in_range(matrices, 0, sizeof rows);
    memset(rows, '\n', matrices);
    vtest_path(path, sizeof path, work, VPTQ_WORK_REPORT);
    vtest_write_file(path, rows, matrices);
}

static void make_work(const char *dir, const vptq_packed_matrix m[MATRICES])
{
    char path[PATH], base[PATH], file[VPTQ_LAYER_FILE_NAME_MAX], hex[17], text[2 * PATH];
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_checkpoint c;
    vtest_path(base, sizeof base, dir, "base");
    assert_ok(vptq_checkpoint_open(&ctx, base, NULL, &c, &err), &err);
    assert_ok(vptq_checkpoint_fingerprint(&c, &ctx, hex, &err), &err);
    vptq_checkpoint_release(&c);
    vtest_path(path, sizeof path, dir, "work");
    assert_ok(vptq_dir_make(path, &err), &err);
    path_in(path, dir, "work", VPTQ_WORK_FILE);
    int n = snprintf(text, sizeof text,
                     "{\"base_model\": \"%s\", \"base_fingerprint\": \"%s\",\n"
                     " \"dtype\": \"f16\", \"tokenizer\": null}\n",
                     base, hex);
    vtest_write_file(path, text, (size_t)n);
    vtest_reseal(path);
    for (uint32_t i = 0; i < MATRICES; i++) {
        const char *dot = strrchr(m[i].name, '.');
        vptq_layer_file_name(file, i, dot + 1);
        path_in(path, dir, "work", file);
        assert_ok(
            vptq_layer_file_write(path,
                                  &(vptq_layer_file){.matrix = m[i],
                                                     .centroids_f32 = m[i].vq.centroids,
                                                     .res_centroids_f32 = m[i].vq.res_centroids,
                                                     .fingerprint = "0123456789abcdef",
                                                     .report = "{}"},
                                  NULL, &err),
            &err);
    }
    vtest_path(path, sizeof path, dir, "work");
    vwork_report(path, MATRICES);
}

/* Lists the original's tensors rounded to F16, except for the quantized weights, followed by
 * the tensors of the matrices. */
static size_t packed_tensors(const char *dir, const vptq_packed_matrix m[MATRICES],
                             vptq_arena *a, vptq_tensor_set *base, vptq_tensor *list)
{
    char path[PATH];
    size_t count = 0;
    vptq_err err = {0};
    path_in(path, dir, "base", "model.safetensors");
    assert_ok(vptq_safetensors_read(path, base, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(base, &err), &err);
    for (size_t i = 0; i < base->count; i++) {
        vptq_tensor t = base->tensors[i];
        size_t rows = vptq_tensor_rows(&t), n = rows * vptq_tensor_cols(&t);
        if (!strcmp(t.name, VWORK_PLAIN ".weight") || !strcmp(t.name, VWORK_NORMED ".weight"))
            continue;
        float *x = vptq_arena_alloc(a, n, sizeof *x, &err);
        uint16_t *h = vptq_arena_alloc(a, n, sizeof *h, &err);
        assert_true(x && h);
        assert_ok(vptq_tensor_read(&t, 0, rows, x, &err), &err);
        vptq_f32_to_f16_n(x, h, n);
        t.type = VPTQ_F16;
        t.data = (const uint8_t *)h;
        t.bytes = n * sizeof *h;
        list[count++] = t;
    }
    for (int i = 0; i < MATRICES; i++)
        assert_ok(vptq_packed_tensors(&m[i], a, list, &count, &err), &err);
    return count;
}

static json_t *packed_config(const char *dir, const vptq_packed_matrix m[MATRICES])
{
    char path[PATH];
    json_t *config = NULL, *layers = json_object(), *entry = NULL;
    vptq_err err = {0};
    path_in(path, dir, "base", "config.json");
    assert_ok(vptq_json_load(path, 1 << 20, &config, &err), &err);
    for (int i = 0; i < MATRICES; i++) {
        assert_ok(vptq_packed_make_entry(&m[i], false, &entry, &err), &err);
        assert_int_equal(json_object_set_new(layers, m[i].name, entry), 0);
    }
    json_t *q = json_pack("{s:s, s:o}", "quant_method", "vptq", "config_for_layers", layers);
    assert_int_equal(json_object_set_new(config, "quantization_config", q), 0);
    return config;
}

static void make_packed(const char *dir, const vptq_tensor *list, size_t count,
                        const json_t *config)
{
    char path[PATH];
    vptq_err err = {0};
    vtest_path(path, sizeof path, dir, "packed");
    assert_ok(vptq_dir_make(path, &err), &err);
    path_in(path, dir, "packed", "config.json");
    assert_ok(vptq_json_save(path, config, &err), &err);
    path_in(path, dir, "packed", "model.safetensors");
    assert_ok(vptq_safetensors_save(path, list, count, NULL, 0, &err), &err);
}

static void make_archive(const char *dir, const vptq_tensor *list, size_t count,
                         const json_t *config)
{
    char path[PATH];
    vptq_archive_writer *w = NULL;
    vptq_err err = {0};
    char *text = json_dumps(config, JSON_INDENT(2));
    assert_non_null(text);
    vtest_path(path, sizeof path, dir, "x.vptq");
    assert_ok(vptq_archive_writer_open(path, false, 1, NULL, &w, &err), &err);
    assert_ok(vptq_archive_add_file(w, "config.json", text, strlen(text), 3, &err), &err);
    for (size_t i = 0; i < count; i++)
        assert_ok(varchive_add(w, &list[i], 3, &err), &err);
    assert_ok(vptq_archive_writer_commit(w, &err), &err);
    vptq_archive_writer_abort(w);
    free(text);
}

void vwork_make(const char *dir)
{
    vptq_arena a;
    vptq_tensor_set base;
    vptq_tensor list[64];
    vptq_packed_matrix m[MATRICES];
    vptq_arena_init(&a, NULL);
    vptq_tensor_set_init(&base, NULL);
    make_matrices(&a, m);
    make_base(dir);
    make_work(dir, m);
    size_t count = packed_tensors(dir, m, &a, &base, list);
    json_t *config = packed_config(dir, m);
    make_packed(dir, list, count, config);
    make_archive(dir, list, count, config);
    json_decref(config);
    vptq_tensor_set_release(&base);
    vptq_arena_release(&a);
}
