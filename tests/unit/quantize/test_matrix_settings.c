/* Settings of every matrix: encoder, preset, single settings, recipe rules, and errors. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/encoder/presets.h"
#include "lib/quantize/settings.h"
#include "tests/support/vtest.h"

/* 3 blocks of 64 x 64 attention and 192 wide MLP. */
static vptq_model_desc desc(void)
{
    return (vptq_model_desc){.family = vptq_family_by_model_type("llama"),
                             .hidden = 64,
                             .intermediate = 192,
                             .layers = 3,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .vocab = 100};
}

typedef struct resolved {
    vptq_arena arena;
    vptq_matrix_settings *rows;
    json_t *rules;
} resolved;

static void release(resolved *r)
{
    json_decref(r->rules);
    vptq_arena_release(&r->arena);
}

static vptq_status resolve(const char *recipe, vptq_mem *mem, resolved *r, vptq_err *err)
{
    const vptq_text_file text = {
        .name = "recipe.json", .data = recipe, .size = recipe ? strlen(recipe) : 0};
    vptq_model_desc d = desc();
    vptq_encoder_settings s = vptq_encoder_defaults();

    *r = (resolved){0};
    vptq_arena_init(&r->arena, mem);
    return vptq_settings_resolve(&d, &s, recipe ? &text : NULL, &r->arena, &r->rows, &r->rules,
                                 err);
}

static const vptq_matrix_settings *row(const resolved *r, uint32_t layer, vptq_linear l)
{
    const vptq_matrix_settings *m = &r->rows[layer * VPTQ_LINEAR_DENSE + (uint32_t)l];
    assert_int_equal(m->layer, layer);
    assert_int_equal(m->linear, l);
    return m;
}

static void test_defaults_in_order(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_encoder_settings s, best = vptq_encoder_defaults();
    const vptq_setting_text given[] = {
        {"sweeps", "5"}, {"centroids", "512"}, {"outliers", "2.5"}, {"seed", "7"}};

    assert_ok(vptq_settings_defaults(NULL, NULL, NULL, 0, &s, &err), &err);
    assert_memory_equal(&s, &best, sizeof s);
    assert_ok(vptq_settings_defaults("upstream", "llama2-13b-v12", given, 4, &s, &err), &err);
    assert_int_equal(s.norm, VPTQ_NORM_MINMAX); /* the encoder's */
    assert_int_equal(s.sweeps, 5);              /* given, overrides the encoder's 0 */
    assert_int_equal(s.v, 12);                  /* the preset's */
    assert_int_equal(s.k, 512);                 /* given, overrides the preset's 4096 */
    assert_int_equal(s.k_res, 4096);
    assert_int_equal(s.groups, 4);
    assert_int_equal(s.v0, 4);
    assert_int_equal(s.k0, 8192);
    assert_true(s.outliers == 2.5);
    assert_true(s.seed == 7);
}

static void test_defaults_refused(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_encoder_settings s;
    const struct {
        const char *key, *value, *part;
    } bad[] = {
        {"vector_length", "65", "vector_length is '65', expected a whole number from 1 to 64"},
        {"vector_length", "2.5", "vector_length is '2.5'"},
        {"vector_length", " 8", "vector_length is ' 8'"},
        {"vector_length", "0x8", "vector_length is '0x8'"},
        {"vector_length", "", "vector_length is ''"},
        {"centroids", "300", "centroids is '300', must be a power of two"},
        {"outliers", "nan", "outliers is 'nan', expected a number from 0 to 100"},
        {"outliers", "100.5", "outliers is '100.5'"},
        {"ridge", "-1", "ridge is '-1', expected a number from 0 to 1"},
        {"norm", "max", "norm is 'max', expected none|std|minmax"},
        {"perm", "1", "perm is '1', expected true or false"},
        {"seed", "18446744073709551616", "seed is '18446744073709551616'"},
        {"seed", "+1", "seed is '+1'"},
        {"speed", "1", "no such setting: 'speed'"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        vptq_setting_text given = {bad[i].key, bad[i].value};
        assert_fails(vptq_settings_defaults(NULL, NULL, &given, 1, &s, &err), VPTQ_E_ARG, &err,
                     bad[i].part);
    }
    assert_fails(vptq_settings_defaults("worst", NULL, NULL, 0, &s, &err), VPTQ_E_ARG, &err,
                 "encoder is 'worst', expected best|upstream");
    assert_fails(vptq_settings_defaults(NULL, "llama9", NULL, 0, &s, &err), VPTQ_E_ARG, &err,
                 "preset is 'llama9'");
}

static void test_match(void **state)
{
    (void)state;
    const char *name = "model.layers.12.self_attn.v_proj";

    assert_true(vptq_recipe_match("model.layers.12.self_attn.v_proj", name));
    assert_true(vptq_recipe_match("layers.*.self_attn.v_proj", name));
    assert_true(vptq_recipe_match("*.v_proj", name));
    assert_true(vptq_recipe_match("v_proj", name));
    assert_true(vptq_recipe_match("?_proj", name));
    assert_true(vptq_recipe_match("layers.1?.*", name));
    assert_true(vptq_recipe_match("*", name));
    assert_true(vptq_recipe_match("*a*n*v*j", name));
    assert_false(vptq_recipe_match("v_pro", name));
    assert_false(vptq_recipe_match("_proj", name));
    assert_false(vptq_recipe_match("layers.1.*", name));
    assert_false(vptq_recipe_match("layers.2.self_attn.v_proj", name));
    assert_false(vptq_recipe_match("self_attn", name));
    assert_false(vptq_recipe_match("*.V_proj", name));
    assert_false(vptq_recipe_match("", name));
}

static void test_recipe(void **state)
{
    vptq_err err = {0};
    (void)state;
    resolved r;
    vptq_encoder_settings best = vptq_encoder_defaults();

    assert_ok(
        resolve("{\"rules\": ["
                "{\"match\": \"*.v_proj\", \"settings\": {\"centroids\": 512, \"beam\": 4}},"
                "{\"match\": \"layers.*.self_attn.*\", \"layers\": \"1-2\","
                " \"settings\": {\"vector_length\": 8, \"centroids\": 1024.0,"
                "  \"residual\": 16, \"perm\": false, \"ridge\": 0.5}},"
                "{\"match\": \"down_proj\", \"layers\": \"0\","
                " \"settings\": {\"sweeps\": 9, \"encoder\": \"upstream\"}}]}",
                NULL, &r, &err),
        &err);
    const vptq_matrix_settings *m = row(&r, 0, VPTQ_LINEAR_V);
    assert_int_equal(m->settings.k, 512);
    assert_int_equal(m->settings.v, 4);
    assert_int_equal(m->settings.beam, 4);
    assert_true(m->pinned);
    m = row(&r, 2, VPTQ_LINEAR_V); /* both rules match: the later one's centroids */
    assert_int_equal(m->settings.k, 1024);
    assert_int_equal(m->settings.v, 8);
    assert_int_equal(m->settings.k_res, 16);
    assert_int_equal(m->settings.beam, 4);
    assert_false(m->settings.perm);
    assert_true(m->settings.ridge == 0.5);
    m = row(&r, 0, VPTQ_LINEAR_Q); /* none */
    assert_memory_equal(&m->settings, &best, sizeof best);
    assert_false(m->pinned);
    m = row(&r, 0, VPTQ_LINEAR_DOWN); /* the encoder is applied before the rule's other keys */
    assert_int_equal(m->settings.norm, VPTQ_NORM_MINMAX);
    assert_int_equal(m->settings.sweeps, 9);
    assert_int_equal(m->settings.k, 256);
    assert_false(m->pinned); /* does not affect what is stored */
    assert_memory_equal(&row(&r, 1, VPTQ_LINEAR_DOWN)->settings, &best, sizeof best);
    assert_int_equal(json_array_size(r.rules), 3);
    release(&r);
}

static void test_recipe_skips(void **state)
{
    vptq_err err = {0};
    (void)state;
    resolved r;

    assert_ok(resolve("{\"rules\": ["
                      "{\"match\": \"down_proj\", \"settings\": {\"centroids\": 64}},"
                      "{\"match\": \"down_proj\", \"skip\": true},"
                      "{\"match\": \"*\", \"layers\": \"2\", \"skip\": true},"
                      "{\"match\": \"layers.1.mlp.down_proj\", \"settings\": {\"beam\": 2}}]}",
                      NULL, &r, &err),
              &err);
    assert_true(row(&r, 0, VPTQ_LINEAR_DOWN)->skip);
    assert_false(row(&r, 0, VPTQ_LINEAR_UP)->skip);
    assert_true(row(&r, 2, VPTQ_LINEAR_Q)->skip);
    const vptq_matrix_settings *m =
        row(&r, 1, VPTQ_LINEAR_DOWN); /* again not, by the last rule */
    assert_false(m->skip);
    assert_int_equal(m->settings.k, 64);
    assert_int_equal(m->settings.beam, 2);
    release(&r);
}

static void test_recipe_refused(void **state)
{
    vptq_err err = {0};
    (void)state;
    const struct {
        const char *recipe, *part;
    } bad[] = {
        {"{\"rules\": [", "recipe.json: line 1"},
        {"[]", "key 'rules' is missing or not a list"},
        {"{\"rules\": {}}", "key 'rules' is missing or not a list"},
        {"{\"rules\": [], \"rule\": 1}", "key 'rule' is unknown"},
        {"{\"rules\": [7]}", "recipe.json: rule 1: is not an object"},
        {"{\"rules\": [{\"match\": \"*\", \"setting\": {}}]}",
         "rule 1: key 'setting' is unknown"},
        {"{\"rules\": [{\"settings\": {\"beam\": 1}}]}", "rule 1: key 'match' is missing"},
        {"{\"rules\": [{\"match\": \"*\"}]}", "rule 1: key 'settings' is missing"},
        {"{\"rules\": [{\"match\": \"*\", \"skip\": false}]}",
         "rule 1: key 'skip' is not true"},
        {"{\"rules\": [{\"match\": \"*\", \"skip\": true, \"settings\": {\"beam\": 1}}]}",
         "rule 1: key 'skip' does not go with settings"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {}}]}",
         "rule 1: key 'settings' is missing"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"beam\": 1}},"
         "{\"match\": \"*\", \"settings\": {\"centroid\": 1}}]}",
         "rule 2: key 'centroid' is not a setting"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"vector_length\": 65}}]}",
         "rule 1: vector_length is '65', expected a whole number from 1 to 64"},
        {"{\"rules\": [{\"match\": \"q_proj\", \"settings\": {\"centroids\": 300}}]}",
         "rule 1: centroids is '300', must be a power of two from 2 to 65536 (nearest: 256, "
         "512)"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"centroids\": true}}]}",
         "rule 1: centroids is 'true'"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"centroids\": [1]}}]}",
         "rule 1: key 'centroids' is not a"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"centroids\": null}}]}",
         "rule 1: key 'centroids' is not a"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"dtype\": \"f16\"}}]}",
         "rule 1: key 'dtype' applies to the whole model"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"encoder\": \"worst\"}}]}",
         "rule 1: encoder is 'worst', expected best|upstream"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"encoder\": 1}}]}",
         "rule 1: key 'encoder' is not a string"},
        {"{\"rules\": [{\"match\": \"*.w_proj\", \"settings\": {\"beam\": 1}}]}",
         "rule 1: key 'match' is '*.w_proj', which matches no matrix of layers 0-2"},
        {"{\"rules\": [{\"match\": \"layers.2.*\", \"layers\": \"0-1\","
         " \"settings\": {\"beam\": 1}}]}",
         "matches no matrix of layers 0-1"},
        {"{\"rules\": [{\"match\": \"*\", \"layers\": \"1-3\", \"settings\": {\"beam\": 1}}]}",
         "rule 1: key 'layers' is '1-3', expected layers from 0 to 2"},
        {"{\"rules\": [{\"match\": \"*\", \"layers\": \"2-1\", \"settings\": {\"beam\": 1}}]}",
         "key 'layers' is '2-1'"},
        {"{\"rules\": [{\"match\": \"*\", \"layers\": \"99999999999999999999\","
         " \"settings\": {\"beam\": 1}}]}",
         "expected layers from 0 to 2"},
        {"{\"rules\": [{\"match\": \"*\", \"layers\": \"1-\", \"settings\": {\"beam\": 1}}]}",
         "key 'layers' is not a string like"},
        {"{\"rules\": [{\"match\": \"*\", \"layers\": 1, \"settings\": {\"beam\": 1}}]}",
         "key 'layers' is not a string like"},
        {"{\"rules\": [{\"match\": \"*\", \"settings\": {\"beam\": 1, \"beam\": 2}}]}",
         "duplicate key 'beam'"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        resolved r;
        assert_fails(resolve(bad[i].recipe, NULL, &r, &err), VPTQ_E_FORMAT, &err, bad[i].part);
        assert_null(r.rules);
        release(&r);
    }
}

static void test_check(void **state)
{
    vptq_err err = {0};
    (void)state;
    vptq_model_desc d = desc();
    resolved r;

    assert_ok(resolve(NULL, NULL, &r, &err), &err);
    assert_null(r.rules);
    assert_ok(vptq_settings_check(&d, r.rows, &err), &err);
    r.rows[2 * VPTQ_LINEAR_DENSE + VPTQ_LINEAR_DOWN].settings.groups = 5;
    assert_fails(vptq_settings_check(&d, r.rows, &err), VPTQ_E_ARG, &err,
                 "model.layers.2.mlp.down_proj: groups is 5, which does not divide 192");
    r.rows[VPTQ_LINEAR_DENSE + VPTQ_LINEAR_K].settings.k = 100;
    assert_fails(vptq_settings_check(&d, r.rows, &err), VPTQ_E_ARG, &err,
                 "model.layers.1.self_attn.k_proj: centroids is '100', must be a power of two");
    r.rows[VPTQ_LINEAR_Q].settings.k_res = 512;
    assert_fails(
        vptq_settings_check(&d, r.rows, &err), VPTQ_E_ARG, &err,
        "model.layers.0.self_attn.q_proj: residual is 512, expected at most centroids");
    release(&r);
}

static void test_json(void **state)
{
    (void)state;
    vptq_encoder_settings s = vptq_encoder_defaults(), other = s;
    const char *expected =
        "{\"vector_length\": 6, \"outliers\": 1.5, \"dtype\": \"bf16\", \"norm\": \"minmax\", "
        "\"perm\": false, \"seed\": \"18446744073709551615\"}";

    s.v = 6;
    s.outliers = 1.5;
    s.storage = VPTQ_BF16;
    s.norm = VPTQ_NORM_MINMAX;
    s.perm = false;
    s.seed = UINT64_MAX;
    json_t *doc = vptq_settings_json(&s, &other);
    char *text = json_dumps(doc, 0);
    assert_string_equal(text, expected);
    free(text);
    json_decref(doc);
    size_t count;
    vptq_setting_table(&count);
    doc = vptq_settings_json(&s, NULL);
    const char *const absent[] = {"method",           "weight_bits",     "symmetric",
                                  "smooth_alpha",     "activation_bits", "sparsity",
                                  "sparsity_pattern", "codebook_grid",   "codebook_rows",
                                  "fit_groups",       "codebooks"};
    const size_t absences = sizeof absent / sizeof absent[0];
    assert_int_equal(json_object_size(doc), count - absences);
    for (size_t i = 0; i < absences; i++)
        assert_null(json_object_get(doc, absent[i]));
    json_decref(doc);
    other.codebook_grid = VPTQ_GRID_INT8;
    doc = vptq_settings_json(&other, NULL);
    assert_int_equal(json_object_size(doc), count - absences + 1);
    json_decref(doc);
    doc = vptq_settings_json(&s, &other); /* a matrix without a grid in a run with one */
    assert_string_equal(json_string_value(json_object_get(doc, "codebook_grid")), "none");
    json_decref(doc);
    vptq_encoder_set_method(&s, VPTQ_METHOD_GPTQ); /* only what the method uses */
    doc = vptq_settings_json(&s, NULL);
    text = json_dumps(doc, JSON_SORT_KEYS);
    assert_string_equal(text, "{\"damping\": 0.01, \"dtype\": \"bf16\", \"group_size\": 128, "
                              "\"method\": \"gptq\", \"perm\": false, \"ridge\": 0.01, "
                              "\"seed\": \"18446744073709551615\", \"symmetric\": false, "
                              "\"weight_bits\": 4}");
    free(text);
    json_decref(doc);
    s.activation_bits = 8;
    doc = vptq_settings_json(&s, NULL);
    assert_int_equal(json_integer_value(json_object_get(doc, "activation_bits")), 8);
    assert_null(json_object_get(doc, "fit_groups"));
    json_decref(doc);
    s.fit_groups = true;
    doc = vptq_settings_json(&s, NULL);
    assert_true(json_is_true(json_object_get(doc, "fit_groups")));
    json_decref(doc);
}

static void test_copy_stored(void **state)
{
    (void)state;
    vptq_encoder_settings a = vptq_encoder_defaults(), b = a;

    b.v = 8;
    b.k_res = 16;
    b.outliers = 1;
    b.sweeps = 77;
    b.seed = 5;
    vptq_encoder_copy_stored(&a, &b);
    assert_int_equal(a.v, 8);
    assert_int_equal(a.k_res, 16);
    assert_true(a.outliers == 1);
    assert_int_equal(a.sweeps, vptq_encoder_defaults().sweeps);
    assert_true(a.seed == 0);
}

/* Bits by hand: 32-bit index words for every vector row, codebooks, scale and bias, outliers.
 */
static double bits_by_hand(uint32_t out, uint32_t in, const vptq_preset *p)
{
    double outliers = ceil(p->outliers / 100 * in);
    if (outliers > 0)
        outliers += fmod(in - outliers, p->groups);
    double t = log2(p->k) + (p->k_res ? log2(p->k_res) : 0);
    double vector_rows = ceil((double)out / p->v), size = (in - outliers) / p->groups;
    double bits = vector_rows * p->groups * ceil(size * t / 32) * 32;
    bits += 16.0 * p->groups * p->v * (p->k + p->k_res) + 16.0 * 2 * in;
    if (p->groups > 1 || outliers > 0)
        bits += 16.0 * in; /* the order */
    if (outliers > 0)
        bits += 16 * ceil((double)out / p->v0) * outliers + 16.0 * p->v0 * p->k0;
    return bits;
}

static void test_presets(void **state)
{
    (void)state;
    vptq_err err = {0};
    size_t count;
    const vptq_preset *table = vptq_preset_table(&count);

    assert_int_equal(count, 25);
    for (size_t i = 0; i < count; i++) {
        const vptq_preset *p = &table[i];
        uint32_t h = p->model->hidden, kv = p->model->key_value, f = p->model->intermediate;
        vptq_encoder_settings s = vptq_encoder_defaults();
        s.storage = VPTQ_BF16;
        s.sweeps = 7;
        assert_ok(vptq_preset_apply(p->name, &s, &err), &err);
        assert_int_equal(s.storage, VPTQ_BF16);
        assert_int_equal(s.sweeps, 7);
        assert_int_equal(s.v, p->v);
        assert_ok(vptq_encoder_check(&s, h, h, &err), &err);
        assert_ok(vptq_encoder_check(&s, kv, h, &err), &err);
        assert_ok(vptq_encoder_check(&s, f, h, &err), &err);
        assert_ok(vptq_encoder_check(&s, h, f, &err), &err);
        double bits = 2 * bits_by_hand(h, h, p) + 2 * bits_by_hand(kv, h, p) +
                      2 * bits_by_hand(f, h, p) + bits_by_hand(h, f, p);
        double weights = (double)h * (2.0 * h + 2.0 * kv + 3.0 * f);
        double expected = bits / weights, got = vptq_preset_bits(p);
        assert_close_f64(&got, &expected, 1, 0, 1e-12);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(p->name, table[j].name);
    }
}

/* The recipes of the benchmark's quantization/quantize_model.py. */
static void test_served_presets(void **state)
{
    (void)state;
    const struct {
        const char *name, *method;
        uint32_t group_size, activation_bits;
        double alpha, ridge;
    } want[] = {{"w8a16_awq", "awq", 128, 0, 0.8, 0.01},
                {"w8a16_smooth_awq", "smooth+awq", 128, 0, 0.5, 0.01},
                {"w8a16_sparse_awq", "sparse+awq", 128, 0, 0.8, 0.01},
                {"w8a8_smooth_ptq", "smooth+gptq", 0, 8, 0.8, 0},
                {"w8a8_smooth_gptq", "smooth+gptq", 0, 8, 0.8, 0.01},
                {"w8a8_sparse_smooth_gptq", "sparse+smooth+gptq", 0, 8, 0.8, 0.01}};
    vptq_err err = {0};
    vptq_encoder_settings s, of;
    size_t count;
    const vptq_served_preset *table = vptq_served_preset_table(&count);

    assert_int_equal(count, sizeof want / sizeof want[0]);
    for (size_t i = 0; i < count; i++) {
        const vptq_setting_text given[] = {
            {"dtype", "bf16"}, {"seed", "5"}, {"group_size", "64"}};
        assert_string_equal(table[i].name, want[i].name);
        assert_ok(vptq_settings_defaults(NULL, want[i].name, given, 2, &s, &err), &err);
        assert_ok(vptq_setting_parse(vptq_setting_find("method"), want[i].method, &of, &err),
                  &err);
        assert_int_equal(s.method, of.method);
        assert_int_equal(s.weight_bits, 8);
        assert_true(s.symmetric && !s.perm);
        assert_int_equal(s.group_size, want[i].group_size);
        assert_true(s.fit_groups == (want[i].group_size > 0));
        assert_int_equal(s.activation_bits, want[i].activation_bits);
        assert_true(fabs(s.smooth_alpha - want[i].alpha) <= 0);
        assert_true(fabs(s.ridge - want[i].ridge) <= 0);
        assert_true(fabs(s.sparsity - 0.5) <= 0);
        assert_int_equal(s.sparsity_pattern, VPTQ_PATTERN_NONE);
        assert_int_equal(s.storage, VPTQ_BF16);
        assert_true(s.seed == 5);
        assert_ok(vptq_encoder_check(&s, 4096, 2560, &err), &err);
        assert_ok(vptq_settings_defaults(NULL, want[i].name, given, 3, &s, &err), &err);
        assert_int_equal(s.group_size, 64); /* given, overrides the preset's */
        assert_fails(vptq_settings_defaults("best", want[i].name, NULL, 0, &s, &err),
                     VPTQ_E_ARG, &err, "an encoder is for method vptq only");
    }
    const vptq_setting_text rtn = {"method", "rtn"}, vptq = {"method", "vptq"};
    assert_ok(vptq_settings_defaults(NULL, "w8a16_awq", &rtn, 1, &s, &err), &err);
    assert_int_equal(s.method, VPTQ_METHOD_RTN);
    assert_int_equal(s.weight_bits, 8); /* still the preset's */
    assert_fails(vptq_settings_defaults(NULL, "w8a16_awq", &vptq, 1, &s, &err), VPTQ_E_ARG,
                 &err, "preset 'w8a16_awq' is not for method vptq");
    assert_fails(vptq_settings_defaults(NULL, "ablation-v6", &rtn, 1, &s, &err), VPTQ_E_ARG,
                 &err, "preset 'ablation-v6' is only for method vptq");
}

static void test_fit_groups(void **state)
{
    (void)state;
    const struct {
        uint32_t size, columns, want;
    } rows[] = {{128, 4096, 128}, {128, 576, 64},   {128, 1536, 128}, {128, 64, 128},
                {128, 96, 128},   {128, 160, 32},   {128, 172, 0},    {128, 11008, 128},
                {128, 144, 0},    {256, 2944, 128}, {96, 576, 96},    {100, 576, 64},
                {64, 96, 32},     {32, 48, 0},      {0, 576, 0},      {65535, 65536, 32768},
                {48, 4096, 32},   {16, 172, 0},     {4, 172, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        s.group_size = rows[i].size;
        assert_int_equal(vptq_encoder_fit_groups(&s, rows[i].columns), rows[i].want);
    }
}

static vptq_status resolve_with(void *arg, vptq_mem *mem, vptq_err *err)
{
    resolved r;
    (void)arg;
    vptq_status st =
        resolve("{\"rules\": [{\"match\": \"*.v_proj\", \"settings\": {\"centroids\": 512}}]}",
                mem, &r, err);
    release(&r);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    assert_int_equal(vtest_oom_walk(resolve_with, NULL), 1);
}

VTEST_MAIN(cmocka_unit_test(test_defaults_in_order), cmocka_unit_test(test_defaults_refused),
           cmocka_unit_test(test_match), cmocka_unit_test(test_recipe),
           cmocka_unit_test(test_recipe_skips), cmocka_unit_test(test_recipe_refused),
           cmocka_unit_test(test_check), cmocka_unit_test(test_json),
           cmocka_unit_test(test_copy_stored), cmocka_unit_test(test_presets),
           cmocka_unit_test(test_served_presets), cmocka_unit_test(test_fit_groups),
           cmocka_unit_test(test_out_of_memory))
