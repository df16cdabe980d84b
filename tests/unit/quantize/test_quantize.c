/* Whole quantize runs of a small model: each matrix gets its own settings and Hessians, rows
 * and manifest show them, an interrupted run continues, and bad weights are found early. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "hessian/collect.h"
#include "lib/base/file.h"
#include "lib/quantize/internal.h"
#include "lib/quantize/quantize.h"
#include "tests/support/vtest.h"

#define TINY "tests/golden/tiny_llama3" /* two blocks of hidden size 32 */

enum { PATH = 4096, HIDDEN = 32, FFN = 48, LAYERS = 2, TOKENS = 200 };

static const double factor = 0.25; /* of the term of k and v */

/* ---- Hessians ---- */

/* The lower triangle of X^T X / rows for rows of normal numbers; column j is scaled by 1 + j
 * % 5. */
static float *moments(uint32_t n, uint32_t rows, uint64_t seed)
{
    float *x = malloc((size_t)rows * n * sizeof *x);
    float *lower = malloc((size_t)n * (n + 1) / 2 * sizeof *lower);
    assert_non_null(x);
    assert_non_null(lower);
    vtest_normal(x, (size_t)rows * n, seed);
    for (uint32_t i = 0, at = 0; i < n; i++)
        for (uint32_t j = 0; j <= i; j++, at++) {
            double sum = 0;
            for (uint32_t t = 0; t < rows; t++)
                sum += (double)x[t * n + i] * (double)x[t * n + j];
            lower[at] = (float)(sum / rows * (1 + i % 5) * (1 + j % 5));
        }
    free(x);
    return lower;
}

/* Seeds of the Hessians of an input: main part, held-out part, term of k and v. */
static uint64_t seed_of(int part, uint32_t layer, vptq_input input)
{
    return 1000 * (uint64_t)part + 10 * layer + (uint64_t)input;
}

static uint32_t columns_of(vptq_input i)
{
    return i == VPTQ_INPUT_DOWN ? FFN : HIDDEN;
}

static void write_moments(const char *dir, const char *name, uint32_t n, uint64_t seed,
                          bool term)
{
    vptq_err err = {0};
    char path[PATH];
    float mean[FFN] = {0};
    float *lower = moments(n, term ? 3 : TOKENS, seed);
    vtest_path(path, sizeof path, dir, name);
    vptq_hessian_data data = {.n = n, .tokens = TOKENS, .values = lower, .mean = mean};
    if (term) {
        data.kind = VPTQ_WEIGHTS_SINK;
        data.windows = 3;
    }
    assert_ok(vptq_hessian_file_write(path, &data, &err), &err);
    free(lower);
}

static void make_hessians(const char *dir, int part, const char *model, bool with_rest)
{
    vptq_err err = {0};
    char name[64];
    vptq_hessian_dir h = {.layers = LAYERS, .last_layer = LAYERS - 1, .tokens = TOKENS};
    json_t *details = json_object();

    snprintf(h.model_fingerprint, sizeof h.model_fingerprint, "%s", model);
    snprintf(h.fingerprint, sizeof h.fingerprint, "%016x", 0xabc0U + (unsigned)part);
    if (with_rest) {
        h.weights = VPTQ_WEIGHTS_SINK;
        h.factor = factor;
        h.held_out_tokens = TOKENS;
    }
    assert_ok(vptq_dir_make(dir, &err), &err);
    assert_ok(vptq_hessian_dir_save(dir, &h, details, &err), &err);
    json_decref(details);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            vptq_hessian_file_name(name, layer, vptq_input_name((vptq_input)i).text);
            write_moments(dir, name, columns_of((vptq_input)i),
                          seed_of(part, layer, (vptq_input)i), false);
        }
        vptq_hessian_file_name(name, layer, "kv");
        if (with_rest)
            write_moments(dir, name, HIDDEN, seed_of(2, layer, VPTQ_INPUT_QKV), true);
    }
}

/* Makes DIR/h with DIR/h/holdout and terms of k and v. */
static void make_directory(const char *dir, char h[PATH])
{
    vptq_err err = {0};
    char model[17], held_out[PATH];
    vptq_mem mem;
    vptq_mem_init(&mem, 0);
    vptq_ctx ctx = {.mem = &mem, .threads = 1};
    vptq_checkpoint c;
    vptq_checkpoint_options copt = {0};

    assert_ok(vptq_checkpoint_open(&ctx, TINY, &copt, &c, &err), &err);
    assert_ok(vptq_checkpoint_fingerprint(&c, &ctx, model, &err), &err);
    vptq_checkpoint_release(&c);
    vtest_path(h, PATH, dir, "h");
    make_hessians(h, 0, model, true);
    vtest_path(held_out, PATH, h, "holdout");
    make_hessians(held_out, 1, model, false);
}

/* ---- runs ---- */

typedef struct rows {
    vptq_quantize_row row[LAYERS * VPTQ_LINEAR_DENSE];
    char *json[LAYERS * VPTQ_LINEAR_DENSE];
    size_t count;
} rows;

static vptq_status take_row(void *arg, const vptq_quantize_row *row, vptq_err *err)
{
    rows *r = arg;
    (void)err;
    r->row[r->count] = *row;
    r->json[r->count++] = strdup(row->json);
    return VPTQ_OK;
}

static void free_rows(rows *r)
{
    for (size_t i = 0; i < r->count; i++)
        free(r->json[i]);
    *r = (rows){0};
}

static vptq_encoder_settings small_settings(void)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.k = 16;
    s.k_res = 4;
    s.joint = 2;
    s.retrain = 1;
    s.sweeps = 1;
    s.refits = 2;
    return s;
}

static vptq_quantize_options options(const char *h, const char *work)
{
    static vptq_encoder_settings settings;
    settings = small_settings();
    return (vptq_quantize_options){.model = TINY,
                                   .hessians = h,
                                   .work = work,
                                   .kv_factor = NAN,
                                   .settings = &settings,
                                   .last_layer = UINT32_MAX};
}

static vptq_status run(const vptq_ctx *ctx, const vptq_quantize_options *opt, rows *r,
                       vptq_quantize_result *result, vptq_err *err)
{
    vptq_device dev;
    vptq_status st = vptq_device_open(ctx, "cpu", &dev, err);
    if (st)
        return st;
    st = vptq_quantize_model(&dev, opt, r ? take_row : NULL, r, result, err);
    vptq_device_close(&dev);
    return st;
}

static vptq_status run_plain(const vptq_quantize_options *opt, rows *r, vptq_err *err)
{
    vptq_mem mem;
    vptq_quantize_result result;
    vptq_mem_init(&mem, 0);
    vptq_ctx ctx = {.mem = &mem, .threads = 1};
    vptq_status st = run(&ctx, opt, r, &result, err);
    assert_int_equal(mem.used, 0);
    return st;
}

static void expect_same_work(const char *a, const char *b)
{
    const vptq_model_desc d = {.family = vptq_family_by_model_type("llama")};
    char name[VPTQ_LAYER_FILE_NAME_MAX];
    vtest_expect_same_in(a, b, "quantize.json");
    vtest_expect_same_in(a, b, "report.jsonl");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            vptq_layer_file_name(name, layer, vptq_linear_name(&d, (vptq_linear)l).text);
            vtest_expect_same_in(a, b, name);
        }
}

/* ---- every matrix as the encoder alone makes it ---- */

static double number(const json_t *doc, const char *key)
{
    const json_t *x = json_object_get(doc, key);
    if (!json_is_number(x))
        fail_msg("key %s is missing", key);
    return json_number_value(x);
}

static json_t *parse(const char *text)
{
    json_t *doc = NULL;
    vptq_err err = {0};
    assert_ok(vptq_json_parse(text, strlen(text), "row", &doc, &err), &err);
    return doc;
}

/* Checks the losses of step `name` under `key` of the row: plain, weighted or held-out. */
static void check_step(const json_t *doc, const char *key, const vptq_encoder_report *p,
                       const char *name, size_t loss)
{
    size_t seen = 0;
    const json_t *value = json_object_get(doc, key);
    bool list = !strcmp(name, "refit") || !strcmp(name, "scales");
    size_t rounds = !strcmp(name, "refit") ? 2 : 1;

    for (uint32_t i = 0; i < p->num_steps; i++) {
        double want;
        if (strcmp(p->steps[i].name, name))
            continue;
        memcpy(&want, (const char *)&p->steps[i] + loss, sizeof want);
        const json_t *got = list ? json_array_get(value, seen) : value;
        assert_true(json_is_real(got));
        assert_true(json_real_value(got) == want);
        seen++;
    }
    assert_int_equal(seen, rounds);
    assert_int_equal(json_array_size(value), list ? rounds : 0);
}

static void check_row(const json_t *doc, const vptq_encoder_result *want, bool weighted)
{
    const vptq_encoder_report *p = &want->report;
    static const char *const names[][2] = {
        {"k-means", "loss_kmeans"}, {"residual", "loss_residual"}, {"joint", "loss_joint"},
        {"pass", "loss_pass"},      {"retrain", "loss_retrain"},   {"sweeps", "loss_sweeps"},
        {"scales", "loss_scales"},  {"refit", "loss_refit"},       {"storage", "loss_storage"}};

    assert_true(number(doc, "proxy_loss") == p->loss);
    assert_true(number(doc, "proxy_loss_held_out") == p->held_out);
    assert_true(number(doc, "relative_mse") == p->relative_mse);
    assert_int_equal(json_object_get(doc, "proxy_loss_weighted") != NULL, weighted);
    if (weighted)
        assert_true(number(doc, "proxy_loss_weighted") == p->weighted);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char key[64];
        check_step(doc, names[i][1], p, names[i][0], offsetof(vptq_encoder_step, loss));
        snprintf(key, sizeof key, "%s_held_out", names[i][1]);
        check_step(doc, key, p, names[i][0], offsetof(vptq_encoder_step, held_out));
        snprintf(key, sizeof key, "%s_weighted", names[i][1]);
        if (weighted)
            check_step(doc, key, p, names[i][0], offsetof(vptq_encoder_step, weighted));
        else
            assert_null(json_object_get(doc, key));
    }
    vptq_vq_bits bits = vptq_vq_count_bits(&want->vq.shape);
    assert_true(number(doc, "total_bits") == (double)bits.total);
    assert_true(number(doc, "index_bits") == (double)bits.indices);
    assert_true(number(doc, "codebook_bits") == (double)bits.codebooks);
    assert_true(number(doc, "norm_bits") == (double)bits.norm);
    assert_true(number(doc, "perm_bits") == (double)bits.perm);
}

static void check_file(const char *work, uint32_t layer, vptq_linear l,
                       const vptq_encoder_result *want)
{
    vptq_err err = {0};
    vptq_mem mem;
    vptq_layer_file f;
    char path[PATH], name[VPTQ_LAYER_FILE_NAME_MAX];
    const vptq_vq_shape *s = &want->vq.shape;
    size_t words = (size_t)s->groups * vptq_vq_vector_rows(s) * vptq_vq_row_words(s);

    vptq_mem_init(&mem, 0);
    const vptq_model_desc d = {.family = vptq_family_by_model_type("llama")};
    vptq_layer_file_name(name, layer, vptq_linear_name(&d, l).text);
    vtest_path(path, sizeof path, work, name);
    assert_ok(vptq_layer_file_read(path, &mem, &f, &err), &err);
    const vptq_vq_shape *got = &f.matrix.vq.shape;
    assert_true(got->v == s->v && got->k == s->k && got->k_res == s->k_res);
    assert_true(got->groups == s->groups && got->group_size == s->group_size);
    assert_true(got->out == s->out && got->in == s->in && got->has_perm == s->has_perm);
    assert_memory_equal(f.matrix.vq.indices, want->vq.indices, words * sizeof(uint32_t));
    assert_same_f32(f.matrix.vq.centroids, want->vq.centroids, (size_t)s->groups * s->k * s->v);
    assert_same_f32(f.matrix.vq.scale, want->vq.scale, s->in);
    assert_same_f32(f.centroids_f32, want->centroids_f32, (size_t)s->groups * s->k * s->v);
    for (size_t i = 0; i < (size_t)s->groups * s->k * s->v; i++)
        assert_true(vptq_round_to(VPTQ_F16, f.centroids_f32[i]) == f.matrix.vq.centroids[i]);
    assert_same_f32(f.res_centroids_f32, want->res_centroids_f32,
                    (size_t)s->groups * s->k_res * s->v);
    vptq_layer_file_release(&f);
}

/* The settings of the recipe below. */
static vptq_encoder_settings settings_of(uint32_t layer, vptq_linear l)
{
    vptq_encoder_settings s = small_settings();
    if (l == VPTQ_LINEAR_V)
        s.k = 32;
    if (l == VPTQ_LINEAR_DOWN && layer == 1)
        s.groups = 3;
    return s;
}

static void check_matrix(vptq_device *dev, const vptq_model *m, const char *work,
                         uint32_t layer, vptq_linear l, const json_t *doc)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_encoder_result want;
    vptq_input input = vptq_linear_input(l);
    vptq_encoder_settings s = settings_of(layer, l);
    bool weighted = l == VPTQ_LINEAR_K || l == VPTQ_LINEAR_V;
    uint32_t out, in;

    vptq_arena_init(&arena, dev->ctx->mem);
    vptq_linear_shape(m->desc, l, &out, &in);
    float *w = vptq_arena_alloc(&arena, (size_t)out * in, sizeof *w, &err);
    float *lower = moments(in, TOKENS, seed_of(0, layer, input));
    float *held_out = moments(in, TOKENS, seed_of(1, layer, input));
    float *term = moments(in, 3, seed_of(2, layer, input));
    assert_ok(vptq_weight_read(&m->blocks[layer].linear[l], dev, 0, out, w, &err), &err);
    for (uint32_t i = 0; i < in * (in + 1) / 2; i++)
        term[i] = (float)((double)lower[i] + factor * (double)term[i]);
    vptq_encoder_input q = {.matrix_id = layer * VPTQ_LINEAR_DENSE + (uint32_t)l,
                            .out = out,
                            .in = in,
                            .w = w,
                            .lower = lower,
                            .metric = weighted ? term : NULL,
                            .held_out = held_out};
    assert_ok(vptq_encode_matrix(dev, &s, &q, &arena, &want, &err), &err);
    check_row(doc, &want, weighted);
    check_file(work, layer, l, &want);
    free(lower);
    free(held_out);
    free(term);
    vptq_arena_release(&arena);
}

static const char recipe_text[] =
    "{\"rules\": [{\"match\": \"v_proj\", \"settings\": {\"centroids\": 32}},"
    "{\"match\": \"layers.1.mlp.down_proj\", \"settings\": {\"groups\": 3}}]}";

static void test_every_matrix(void **state)
{
    vptq_err err = {0};
    char h[PATH], work[PATH], recipe[PATH];
    rows r = {0};
    vptq_mem mem;
    vptq_mem_init(&mem, 0);
    vptq_ctx ctx = {.mem = &mem, .threads = 1};
    vptq_device dev;
    vptq_model m;
    vptq_checkpoint_options copt = {0};

    make_directory(*state, h);
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(recipe, sizeof recipe, *state, "recipe.json");
    vtest_write_file(recipe, recipe_text, strlen(recipe_text));
    vptq_quantize_options opt = options(h, work);
    opt.recipe = recipe;
    assert_ok(run_plain(&opt, &r, &err), &err);
    assert_int_equal(r.count, LAYERS * VPTQ_LINEAR_DENSE);

    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    assert_ok(vptq_model_open(&ctx, TINY, &copt, false, &m, &err), &err);
    for (uint32_t i = 0; i < r.count; i++) {
        json_t *doc = parse(r.json[i]);
        vptq_linear l = (vptq_linear)(i % VPTQ_LINEAR_DENSE);
        assert_string_equal(json_string_value(json_object_get(doc, "name")),
                            vptq_linear_name(m.desc, l).text);
        check_matrix(&dev, &m, work, i / VPTQ_LINEAR_DENSE, l, doc);
        json_decref(doc);
    }
    vptq_model_release(&m);
    vptq_device_close(&dev);
    free_rows(&r);
}

/* ---- the manifest ---- */

static json_t *manifest(const char *work)
{
    vptq_err err = {0};
    char path[PATH];
    json_t *doc = NULL;
    vtest_path(path, sizeof path, work, "quantize.json");
    assert_ok(vptq_json_load(path, 1 << 20, &doc, &err), &err);
    return doc;
}

static void expect_json(const json_t *doc, const char *key, const char *expected)
{
    char *text = json_dumps(json_object_get(doc, key), JSON_COMPACT | JSON_ENCODE_ANY);
    assert_string_equal(text ? text : "missing", expected);
    free(text);
}

static void test_manifest(void **state)
{
    vptq_err err = {0};
    char h[PATH], work[PATH], recipe[PATH];

    make_directory(*state, h);
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(recipe, sizeof recipe, *state, "recipe.json");
    vtest_write_file(recipe, recipe_text, strlen(recipe_text));
    vptq_quantize_options opt = options(h, work);
    opt.recipe = recipe;
    opt.last_layer = 0;
    assert_ok(run_plain(&opt, NULL, &err), &err);
    json_t *doc = manifest(work);
    expect_json(doc, "format", "1");
    expect_json(doc, "tool", "\"vptq-quantize " VPTQ_VERSION "\"");
    expect_json(doc, "hessian_fingerprint", "\"000000000000abc0\"");
    expect_json(doc, "held_out_fingerprint", "\"000000000000abc1\"");
    expect_json(doc, "kv_factor", "0.25");
    expect_json(doc, "tokenizer", "null");
    expect_json(doc, "dtype", "\"f16\"");
    expect_json(doc, "recipe",
                "[{\"match\":\"v_proj\",\"settings\":{\"centroids\":32}},"
                "{\"match\":\"layers.1.mlp.down_proj\",\"settings\":{\"groups\":3}}]");
    expect_json(doc, "matrices",
                "{\"model.layers.0.self_attn.v_proj\":{\"centroids\":32},"
                "\"model.layers.1.self_attn.v_proj\":{\"centroids\":32},"
                "\"model.layers.1.mlp.down_proj\":{\"groups\":3}}");
    const json_t *settings = json_object_get(doc, "settings");
    size_t count;
    vptq_setting_table(&count);
    assert_int_equal(json_object_size(settings),
                     count - 11); /* without a grid and other methods */
    expect_json(settings, "residual", "4");
    expect_json(settings, "joint", "2");
    json_decref(doc);
}

/* A manifest with one changed value is an error of the next run, with the path of the key. */
static void test_differences(void **state)
{
    vptq_err err = {0};
    char h[PATH], work[PATH], path[PATH];
    const struct {
        const char *path, *value, *part;
    } change[] = {
        {"format", "2", "key 'format' is 2, here it is 1"},
        {"tool", "\"vptq-quantize 0.0.1\"", "key 'tool' is \"vptq-quantize 0.0.1\""},
        {"base_fingerprint", "\"0\"", "key 'base_fingerprint' is \"0\""},
        {"hessian_fingerprint", "\"0\"", "key 'hessian_fingerprint'"},
        {"held_out_fingerprint", "null",
         "key 'held_out_fingerprint' is missing, here it is \"000000000000abc1\""},
        {"kv_factor", "0.5", "key 'kv_factor' is 0.5, here it is 0.25"},
        {"dtype", "\"bf16\"", "key 'dtype' is \"bf16\", here it is \"f16\""},
        {"settings", "{\"centroids\": 8}", "key 'settings.centroids' is 8, here it is 16"},
        {"recipe", "[]", "key 'recipe' is [], here it is missing"},
        {"matrices", "{\"model.layers.0.mlp.up_proj\": {\"sweeps\": 9}}",
         "key 'matrices.model.layers.0.mlp.up_proj' is {\"sweeps\":9}, here it is missing"},
    };

    make_directory(*state, h);
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(path, sizeof path, work, "quantize.json");
    vptq_quantize_options opt = options(h, work);
    opt.last_layer = 0;
    vptq_encoder_settings settings = *opt.settings;
    settings.refits = settings.retrain = settings.joint = 0;
    opt.settings = &settings;
    assert_ok(run_plain(&opt, NULL, &err), &err);
    size_t n;
    char *original = vtest_read_file(path, &n);
    for (size_t i = 0; i < sizeof change / sizeof change[0]; i++) {
        json_t *doc = manifest(work);
        json_object_set_new(doc, change[i].path, parse(change[i].value));
        assert_ok(vptq_json_save(path, doc, &err), &err);
        assert_fails(run_plain(&opt, NULL, &err), VPTQ_E_CHECKSUM, &err,
                     "quantize.json: the file is damaged: its checksum is");
        assert_ok(vptq_json_save_sealed(path, doc, &err), &err);
        json_decref(doc);
        assert_fails(run_plain(&opt, NULL, &err), VPTQ_E_MISMATCH, &err, change[i].part);
        vtest_write_file(path, original, n);
    }
    free(original);
    assert_ok(run_plain(&opt, NULL, &err), &err);
}

/* ---- interrupted runs ---- */

/* Raises the cancel flag when the progress line shows a step of a matrix. */
typedef struct stop {
    const char *detail;
    volatile sig_atomic_t flag;
    bool seen;
} stop;

static void on_progress(void *user, const vptq_progress_info *info)
{
    stop *s = user;
    if (info->detail && !strncmp(info->detail, s->detail, strlen(s->detail)))
        s->flag = s->seen = true;
}

static void test_stopped_in_every_step(void **state)
{
    vptq_err err = {0};
    char h[PATH], whole[PATH], work[PATH], name[32];
    static const char *const steps[] = {
        "layer 0 k_proj: factor",   "layer 0 gate_proj: k-means", "layer 0 v_proj: residual",
        "layer 1 q_proj: joint",    "layer 1 o_proj: pass",       "layer 1 up_proj: sweeps",
        "layer 1 down_proj: refit", "layer 1 down_proj: storage"};

    make_directory(*state, h);
    vtest_path(whole, sizeof whole, *state, "whole");
    vptq_quantize_options opt = options(h, whole);
    assert_ok(run_plain(&opt, NULL, &err), &err);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        vptq_mem mem;
        vptq_quantize_result result;
        stop s = {.detail = steps[i]};
        vptq_mem_init(&mem, 0);
        vptq_ctx ctx = {
            .mem = &mem, .threads = 1, .progress = on_progress, .user = &s, .cancel = &s.flag};
        snprintf(name, sizeof name, "work%zu", i);
        vtest_path(work, sizeof work, *state, name);
        opt.work = work;
        vptq_status st = run(&ctx, &opt, NULL, &result, &err);
        assert_true(s.seen);
        if (st != VPTQ_OK || !strstr(steps[i], "1 down")) {
            char want[64];
            snprintf(want, sizeof want, "interrupted; %u of 14 matrices finished",
                     result.matrices);
            assert_fails(st, VPTQ_E_CANCELLED, &err, want);
        }
        assert_int_equal(mem.used, 0);
        rows r = {0};
        assert_ok(run_plain(&opt, &r, &err), &err);
        assert_true(r.row[0].reused);
        expect_same_work(whole, work);
        free_rows(&r);
    }
}

/* A reused row is passed on like a new one. */
static void test_rows_of_a_finished_run(void **state)
{
    vptq_err err = {0};
    char h[PATH], work[PATH];
    rows first = {0}, again = {0};

    make_directory(*state, h);
    vtest_path(work, sizeof work, *state, "work");
    vptq_quantize_options opt = options(h, work);
    assert_ok(run_plain(&opt, &first, &err), &err);
    assert_ok(run_plain(&opt, &again, &err), &err);
    assert_int_equal(again.count, first.count);
    for (size_t i = 0; i < first.count; i++) {
        const vptq_quantize_row *a = &first.row[i], *b = &again.row[i];
        assert_string_equal(first.json[i], again.json[i]);
        assert_false(a->reused);
        assert_true(b->reused);
        assert_int_equal(a->weighted, b->weighted);
        assert_true(a->held_out && b->held_out);
        assert_true(a->report.loss == b->report.loss);
        assert_true(a->report.weighted == b->report.weighted || !a->weighted);
        assert_true(a->report.held_out == b->report.held_out);
        assert_true(a->report.steps[0].loss == b->report.steps[0].loss);
    }
    free_rows(&first);
    free_rows(&again);
}

/* ---- bad weights ---- */

static void test_weights_that_are_not_finite(void **state)
{
    vptq_err err = {0};
    char h[PATH], work[PATH], model[PATH], from[PATH], to[PATH];
    vptq_mem mem;
    vptq_mem_init(&mem, 0);
    vptq_ctx ctx = {.mem = &mem, .threads = 1};
    vptq_checkpoint c;
    vptq_checkpoint_options copt = {0};
    const float nan_value = NAN;
    size_t n;

    make_directory(*state, h);
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(model, sizeof model, *state, "model");
    assert_ok(vptq_dir_make(model, &err), &err);
    vtest_path(from, sizeof from, TINY, "config.json");
    vtest_path(to, sizeof to, model, "config.json");
    char *bytes = vtest_read_file(from, &n);
    vtest_write_file(to, bytes, n);
    free(bytes);

    /* one weight of the last block: row 5, column 17 */
    vtest_path(from, sizeof from, TINY, "model.safetensors");
    vtest_path(to, sizeof to, model, "model.safetensors");
    bytes = vtest_read_file(from, &n);
    assert_ok(vptq_checkpoint_open(&ctx, TINY, &copt, &c, &err), &err);
    const vptq_tensor *t = NULL;
    assert_ok(
        vptq_tensor_need(&c.set, "model.layers.1.mlp.down_proj.weight", HIDDEN, FFN, &t, &err),
        &err);
    size_t at = 0;
    while (at + t->bytes <= n && memcmp(bytes + at, t->data, t->bytes))
        at++;
    assert_true(at + t->bytes <= n);
    memcpy(bytes + at + (5 * FFN + 17) * sizeof(float), &nan_value, sizeof nan_value);
    vtest_write_file(to, bytes, n);
    free(bytes);
    vptq_checkpoint_release(&c);

    vptq_quantize_options opt = options(NULL, work);
    opt.model = model;
    opt.hessians = NULL;
    assert_fails(run_plain(&opt, NULL, &err), VPTQ_E_NUMERIC, &err,
                 "tensor 'model.layers.1.mlp.down_proj.weight' holds a number that is not "
                 "finite at row 5, column 17");
    assert_false(vptq_path_exists(work));
    opt.dry_run = true; /* shapes need no weights */
    assert_ok(run_plain(&opt, NULL, &err), &err);
}

/* ---- memory ---- */

typedef struct oom {
    const char *dir, *h;
    int count;
} oom;

static vptq_status run_once(void *arg, vptq_mem *mem, vptq_err *err)
{
    oom *o = arg;
    char work[PATH], name[32];
    vptq_quantize_result result;
    vptq_ctx ctx = {.mem = mem, .threads = 1};

    snprintf(name, sizeof name, "oom%d", o->count++);
    vtest_path(work, sizeof work, o->dir, name);
    vptq_quantize_options opt = options(o->h, work);
    opt.last_layer = 0;
    vptq_encoder_settings settings = *opt.settings;
    settings.k_res = settings.retrain = settings.sweeps = settings.refits = 0;
    settings.kmeans_iterations = 1;
    opt.settings = &settings;
    return run(&ctx, &opt, NULL, &result, err);
}

static void test_out_of_memory(void **state)
{
    char h[PATH];
    make_directory(*state, h);
    oom o = {.dir = *state, .h = h};
    assert_true(vtest_oom_walk(run_once, &o) > 100);
}

VTEST_MAIN(scratch_test(test_every_matrix), scratch_test(test_manifest),
           scratch_test(test_differences), scratch_test(test_stopped_in_every_step),
           scratch_test(test_rows_of_a_finished_run),
           scratch_test(test_weights_that_are_not_finite), scratch_test(test_out_of_memory))
