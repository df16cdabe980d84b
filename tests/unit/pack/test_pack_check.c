/* Checking a model: every fault of a table, planted into a small intact model in each of its
 * three forms, is found and named, alone and together with others; intact files have no
 * findings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "formats/vptq/archive.h"
#include "formats/vptq/archive_internal.h"
#include "formats/vptq/layer_file.h"
#include "lib/base/half.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"
#include "tests/support/devices.h"
#include "tests/support/vjson.h"
#include "tests/support/vpacked.h"
#include "tests/support/vtest.h"
#include "tests/support/vwork.h"

enum { PATH = 4096 };

/* ---- findings ---- */

typedef struct findings {
    char text[16384];
    vptq_check_result result;
} findings;

static void take(void *arg, bool is_error, const char *text)
{
    findings *f = arg;
    size_t at = strlen(f->text);
    snprintf(f->text + at, sizeof f->text - at, "%s: %s\n", is_error ? "error" : "warning",
             text);
}

static void check(const char *path, findings *f)
{
    vptq_err err = {0};
    vptq_mem mem;
    vptq_device ref;
    vptq_mem_init(&mem, 0);
    vptq_ctx ctx = {.mem = &mem, .threads = 1};
    memset(f, 0, sizeof *f);
    assert_ok(vptq_device_open(&ctx, "ref", &ref, &err), &err);
    assert_ok(vptq_check_model(&ref, path, NULL, take, f, &f->result, &err), &err);
    vptq_device_close(&ref);
    assert_int_equal(mem.used, 0);
}

/* Expects a finding that begins with one text and contains the other. */
static void expect_line(const findings *f, const char *begin, const char *part)
{
    const char *line = f->text;
    while (*line) {
        size_t len = strcspn(line, "\n");
        const char *at = strstr(line, part);
        if (strncmp(line, begin, strlen(begin)) == 0 && at && at < line + len)
            return;
        line += len + 1;
    }
    fail_msg("no %s with '%s' among:\n%s", begin, part, f->text);
}

/* ---- the faults ---- */

typedef enum {
    SET16,     /* set element `at` to `value` */
    SET64,     /* the same of 64-bit numbers */
    OR32,      /* set bits `value` in word `at` */
    DROP,      /* remove the tensor */
    COPY,      /* add a copy named `text` */
    TRANSPOSE, /* exchange the first two axes */
    TYPE,      /* the same bytes as another type */
    ENTRY,     /* set key `text` of the module's entry to the JSON `json`, or remove it */
    ADD_ENTRY, /* copy the module's entry for module `text` */
    CONFIG,    /* set key `text` of config.json to `json` */
    BYTES      /* replace config.json by `text` */
} fault_kind;

typedef struct fault {
    fault_kind kind;
    const char *where; /* tensor or module */
    int64_t at, value;
    const char *text, *json;
    bool is_warning;
    const char *expect;
} fault;

static const fault faults[] = {
    {SET16, VPACKED_GATE ".indices", 37, 8,
     .expect = "gate_proj.indices': row 2, column 5: index 8"},
    {SET16, VPACKED_GATE ".res_indices", 95, 0xffff,
     .expect = "gate_proj.res_indices': row 5, column 15: index 65535"},
    {SET16, VPACKED_DOWN ".outlier_indices", 6, 8,
     .expect = "down_proj.outlier_indices': row 1, column 2: index 8"},
    {SET16, VPACKED_DOWN ".perm", 3, 0,
     .expect = "down_proj.perm' is not a permutation: element 3"},
    {SET16, VPACKED_DOWN ".perm", 23, VPACKED_FFN,
     .expect = "down_proj.perm': element 23 is not a column"},
    {SET64, VPACKED_GATE ".perm", 7, -1,
     .expect = "gate_proj.perm': element 7 is not a column"},
    {SET64, VPACKED_GATE ".perm", 2, 65536 + 6,
     .expect = "gate_proj.perm': element 2 is not a column"},
    {SET16, VPACKED_DOWN ".centroids.weight", 70, 0x7e00,
     .expect = "down_proj.centroids.weight': element 70 is nan"},
    {SET16, VPACKED_GATE ".res_centroids.weight", 5, 0x7c00,
     .expect = "gate_proj.res_centroids.weight': element 5 is inf"},
    {SET16, VPACKED_DOWN ".outlier_centroids.weight", 15, 0xfc00,
     .expect = "down_proj.outlier_centroids.weight': element 15 is -inf"},
    {SET16, VPACKED_GATE ".weight_scale", 0, 0x7e00,
     .expect = "gate_proj.weight_scale': element 0 is nan"},
    {SET16, VPACKED_DOWN ".weight_bias", 23, 0x7c00,
     .expect = "down_proj.weight_bias': element 23 is inf"},
    {SET16, "model.norm.weight", 4, 0x7e00, .expect = "'model.norm.weight'"},
    {SET16, "model.embed_tokens.weight", 17, 0x7c00,
     .expect = "'model.embed_tokens.weight' has a value that is not finite in row 1, column 1"},
    {DROP, VPACKED_DOWN ".indices", .expect = "tensor '" VPACKED_DOWN ".indices' is missing"},
    {DROP, VPACKED_GATE ".weight_bias",
     .expect = "tensor '" VPACKED_GATE ".weight_bias' is missing"},
    {DROP, VPACKED_DOWN ".res_centroids.weight",
     .expect = "tensor '" VPACKED_DOWN ".res_centroids.weight' is missing"},
    {DROP, "model.layers.0.post_attention_layernorm.weight",
     .expect = "post_attention_layernorm.weight"},
    {DROP, "model.layers.0.self_attn.v_proj.weight", .expect = "v_proj.weight"},
    {COPY, "model.norm.weight", .text = "model.norm2.weight",
     .expect = "has no tensor 'model.norm2.weight'"},
    {COPY, "model.norm.weight", .text = "model.layers.1.input_layernorm.weight",
     .expect = "has no tensor 'model.layers.1.input_layernorm.weight'"},
    {COPY, "model.norm.weight", .text = VPACKED_DOWN ".bias",
     .expect = "config.json does not declare bias '" VPACKED_DOWN ".bias'"},
    {COPY, VPACKED_DOWN ".perm", .text = "model.layers.0.mlp.up_proj.perm",
     .expect = "tensor 'model.layers.0.mlp.up_proj.perm' is part of a quantized matrix"},
    {COPY, "model.layers.0.mlp.up_proj.weight", .text = VPACKED_GATE ".weight",
     .expect = "tensor '" VPACKED_GATE ".weight' is present, but"},
    {COPY, VPACKED_DOWN ".outlier_indices", .text = VPACKED_DOWN ".res_indices",
     .expect = "tensor '" VPACKED_DOWN ".res_indices' is present, but"},
    {TRANSPOSE, VPACKED_DOWN ".indices",
     .expect = "down_proj.indices' is [4, 2, 2], expected [2, 4, 2]"},
    {TRANSPOSE, "model.layers.0.self_attn.k_proj.weight",
     .expect = "k_proj.weight' has shape [16, 8], expected [8, 16]"},
    {TYPE, VPACKED_DOWN ".weight_scale", .value = VPTQ_BF16,
     .expect = "down_proj.weight_scale' is BF16, expected F16"},
    {TYPE, "model.norm.weight", .value = VPTQ_I16, .expect = "'model.norm.weight' holds I16"},
    {ENTRY, VPACKED_DOWN, .text = "group_size", .json = "9",
     .expect = "layer '" VPACKED_DOWN "'"},
    {ENTRY, VPACKED_DOWN, .text = "num_centroids", .json = "[8, 12]",
     .expect = "layer '" VPACKED_DOWN "'"},
    {ENTRY, VPACKED_GATE, .text = "vector_lens", .expect = "key 'vector_lens' is missing"},
    {ENTRY, VPACKED_DOWN, .text = "enable_perm", .json = "false",
     .expect = "tensor '" VPACKED_DOWN ".perm' is present, but"},
    {ENTRY, VPACKED_GATE, .text = "out_features", .json = "22",
     .expect = "quantized matrix '" VPACKED_GATE "' has shape [22, 16], expected [24, 16]"},
    {CONFIG, .text = "num_hidden_layers", .json = "2", .expect = "model.layers.1."},
    {CONFIG, .text = "hidden_size", .json = "\"16\"", .expect = "hidden_size"},
    {BYTES, .text = "{\"quantization_config\": ", .expect = "config.json"},
    {OR32, VPACKED_DOWN ".indices", 1, INT64_C(1) << 31, .is_warning = true,
     .expect = "'" VPACKED_DOWN "' has bits set after the last index of a row"},
    {ENTRY, VPACKED_DOWN, .text = "bias", .json = "true", .is_warning = true,
     .expect = "'" VPACKED_DOWN "' has a 'bias' key"},
    {ENTRY, VPACKED_DOWN, .text = "norm_dim", .json = "0", .is_warning = true,
     .expect = "'" VPACKED_DOWN "' has key 'norm_dim'"},
    {ENTRY, VPACKED_GATE, .text = "indices_as_float", .json = "null", .is_warning = true,
     .expect = "'" VPACKED_GATE "' lacks key 'indices_as_float'"},
    {SET16, VPACKED_DOWN ".weight_bias", 2, 0x7bff, .is_warning = true,
     .expect = "'" VPACKED_DOWN "' has a weight of magnitude 65"},
    {ADD_ENTRY, VPACKED_DOWN, .text = "model.layers.3.mlp.down_proj", .is_warning = true,
     .expect = "config_for_layers lists 'model.layers.3.mlp.down_proj'"}};

enum { FAULT_COUNT = sizeof faults / sizeof faults[0] };

static char *own_text(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    return copy;
}

static void plant_in_tensor(vpacked_plan *p, const fault *f)
{
    vptq_tensor *t = vpacked_tensor(p, f->where), *twin = &p->list[p->count];
    void *data = (void *)(uintptr_t)t->data;
    uint64_t rows = t->shape[0];
    switch (f->kind) {
    case SET16:
        ((uint16_t *)data)[f->at] = (uint16_t)f->value;
        break;
    case SET64:
        ((int64_t *)data)[f->at] = f->value;
        break;
    case OR32:
        ((uint32_t *)data)[f->at] |= (uint32_t)f->value;
        break;
    case TYPE:
        t->type = (vptq_dtype)f->value;
        break;
    case TRANSPOSE:
        t->shape[0] = t->shape[1];
        t->shape[1] = rows;
        break;
    case COPY:
        assert_true(p->count++ < VPACKED_MAX_TENSORS);
        *twin = *t;
        twin->name = own_text(f->text);
        twin->data = memcpy(vtest_alloc(t->bytes, 1), t->data, t->bytes);
        break;
    default:
        assert_int_equal(f->kind, DROP);
        free((void *)(uintptr_t)t->name);
        free(data);
        *t = p->list[--p->count];
    }
}

static void plant(vpacked_plan *p, const fault *f)
{
    json_t *q = json_object_get(p->config, "quantization_config");
    if (f->kind == BYTES)
        p->config_bytes = f->text;
    else if (f->kind == CONFIG)
        vjson_set(p->config, f->text, f->json);
    else if (f->kind == ADD_ENTRY)
        json_object_set(json_object_get(q, "config_for_layers"), f->text,
                        vpacked_entry(p, f->where));
    else if (f->kind == ENTRY)
        vjson_set(vpacked_entry(p, f->where), f->text, f->json);
    else
        plant_in_tensor(p, f);
}

/* The intact model: warnings for one matrix in the training form and for the missing tokenizer.
 */
enum { SOUND_WARNINGS = 2 };

static void test_sound(void **state)
{
    vpacked_plan p;
    findings f;
    char path[PATH];
    vpacked_make(&p, true);
    for (int archive = 0; archive < 2; archive++) {
        vtest_path(path, sizeof path, *state, archive ? "sound.vptq" : "sound");
        archive ? vpacked_write_archive(&p, path) : vpacked_write_directory(&p, path);
        check(path, &f);
        assert_string_equal(strstr(f.text, "error") ? f.text : "", "");
        assert_int_equal(f.result.errors, 0);
        assert_int_equal(f.result.warnings, SOUND_WARNINGS);
    }
    vpacked_free(&p);
}

/* Each fault alone, as a directory and as an archive: it is found, and nothing intact is called
 * an error (a tensor under another name is both missing and extra). */
static void test_each_fault(void **state)
{
    for (size_t i = 0; i < FAULT_COUNT; i++)
        for (int archive = 0; archive < 2; archive++) {
            vpacked_plan p;
            findings f;
            char name[64], path[PATH];
            vpacked_make(&p, true);
            plant(&p, &faults[i]);
            snprintf(name, sizeof name, "fault%zu%s", i, archive ? ".vptq" : "");
            vtest_path(path, sizeof path, *state, name);
            if (archive)
                vpacked_write_archive(&p, path);
            else
                vpacked_write_directory(&p, path);
            check(path, &f);
            const char *expect = faults[i].expect;
            if (archive && faults[i].kind == BYTES)
                expect = ".vptq";
            expect_line(&f, faults[i].is_warning ? "warning" : "error", expect);
            if (faults[i].is_warning)
                assert_int_equal(f.result.errors, 0);
            else if (faults[i].kind != CONFIG && f.result.errors != 1)
                fail_msg("'%s': one error expected:\n%s", expect, f.text);
            vpacked_free(&p);
        }
}

/* Number of leading faults of the table that do not hide each other; reading a tensor ends at
 * its first fault. */
enum { TOGETHER = 25 };

static bool is_planted(size_t i)
{
    bool again = faults[i].kind == COPY;
    for (size_t j = 0; j < i; j++)
        again |= strcmp(faults[j].where, faults[i].where) == 0;
    return !again;
}

/* Planted together, each fault has its line. */
static void test_all_are_listed(void **state)
{
    vpacked_plan p;
    findings f;
    char path[PATH];
    uint32_t planted = 0;
    vpacked_make(&p, true);
    for (size_t i = 0; i < TOGETHER; i++)
        if (is_planted(i)) {
            plant(&p, &faults[i]);
            planted++;
        }
    vtest_path(path, sizeof path, *state, "many");
    vpacked_write_directory(&p, path);
    check(path, &f);
    assert_int_equal(f.result.errors, planted);
    assert_true(planted > 12);
    for (size_t i = 0; i < TOGETHER; i++)
        if (is_planted(i))
            expect_line(&f, "error", faults[i].expect);
    vpacked_free(&p);
}

/* ---- damage ---- */

static void flip(const char *path, size_t at)
{
    size_t size;
    char *bytes = vtest_read_file(path, &size);
    assert_true(at < size);
    bytes[at] ^= 8;
    vtest_write_file(path, bytes, size);
    free(bytes);
}

/* Damages a byte of each entry's frames in turn: that entry is named, and no other. */
static void test_damaged_archive(void **state)
{
    vpacked_plan p;
    findings f;
    char path[PATH], expect[256];
    vptq_err err = {0};
    vptq_archive *a = NULL;
    vpacked_make(&p, true);
    vtest_path(path, sizeof path, *state, "one.vptq");
    vpacked_write_archive(&p, path);
    assert_ok(vptq_archive_open(path, NULL, &a, &err), &err);
    size_t at = VPTQ_ARCHIVE_HEADER_BYTES;
    for (size_t i = 0; i < vptq_archive_count(a); i++) {
        const vptq_archive_entry *e = vptq_archive_at(a, i);
        size_t middle = at + (size_t)e->packed_size / 2;
        at += (size_t)e->packed_size;
        flip(path, middle);
        check(path, &f);
        snprintf(expect, sizeof expect, "'%s' is damaged", e->name);
        if (f.result.errors != 1)
            fail_msg("%s: one error expected:\n%s", expect, f.text);
        expect_line(&f, "error", expect);
        flip(path, middle);
    }
    vptq_archive_close(a);
    check(path, &f);
    assert_int_equal(f.result.errors, 0);
    flip(path, at + 3); /* the index */
    check(path, &f);
    expect_line(&f, "error", "damaged archive");
    vpacked_free(&p);
}

static void test_cut_directory(void **state)
{
    vpacked_plan p;
    findings f;
    char dir[PATH], path[PATH];
    size_t size;
    vpacked_make(&p, true);
    vtest_path(dir, sizeof dir, *state, "cut");
    vpacked_write_directory(&p, dir);
    vtest_path(path, sizeof path, dir, "model.safetensors");
    char *bytes = vtest_read_file(path, &size);
    vtest_write_file(path, bytes, size - 1);
    check(dir, &f);
    expect_line(&f, "error", "model.safetensors");
    vtest_write_file(path, bytes, size);
    check(dir, &f);
    assert_int_equal(f.result.errors, 0);
    free(bytes);
    vpacked_free(&p);
}

/* ---- work directories ---- */

typedef struct work {
    char base[PATH], dir[PATH], layer[PATH];
    char fingerprint[17];
    double bits;
} work;

static void write_header(const work *w, const char *fingerprint, const char *dtype)
{
    char path[PATH], text[2 * PATH];
    vtest_path(path, sizeof path, w->dir, "quantize.json");
    int n = snprintf(text, sizeof text,
                     "{\"base_model\": \"%s\", \"base_fingerprint\": \"%s\", \"dtype\": "
                     "\"%s\"}\n",
                     w->base, fingerprint, dtype);
    vtest_write_file(path, text, (size_t)n);
    vtest_reseal(path);
}

static void write_layer(work *w, const char *name, double factor)
{
    vpacked_plan p;
    vptq_err err = {0};
    vptq_tensor_set set;
    vptq_packed_matrix m;
    char report[100];
    vpacked_make(&p, true);
    vptq_tensor_set_init(&set, NULL);
    for (size_t i = 0; i < p.count; i++)
        assert_ok(vptq_tensor_set_add(&set, &p.list[i], &err), &err);
    assert_ok(vptq_tensor_set_finish(&set, &err), &err);
    assert_ok(vptq_packed_read(&(vptq_packed_source){&set, vpacked_entry(&p, VPACKED_DOWN),
                                                     VPACKED_DOWN, "plan"},
                               &set.arena, &m, &err),
              &err);
    w->bits = vptq_vq_count_bits(&m.vq.shape).per_weight;
    snprintf(report, sizeof report, "{\"bits_per_weight\": %.17g}", w->bits * factor);
    vtest_path(w->layer, sizeof w->layer, w->dir, name);
    assert_ok(vptq_layer_file_write(w->layer,
                                    &(vptq_layer_file){.matrix = m,
                                                       .centroids_f32 = m.vq.centroids,
                                                       .res_centroids_f32 = m.vq.res_centroids,
                                                       .fingerprint = "none",
                                                       .report = report},
                                    NULL, &err),
              &err);
    vptq_tensor_set_release(&set);
    vpacked_free(&p);
}

#define LAYER_FILE "layer_000_down_proj.safetensors"

static void make_work(work *w, const char *scratch)
{
    vpacked_plan p;
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_checkpoint c;
    vpacked_make(&p, false);
    vtest_path(w->base, sizeof w->base, scratch, "base");
    vpacked_write_directory(&p, w->base);
    vpacked_free(&p);
    assert_ok(vptq_checkpoint_open(&ctx, w->base, NULL, &c, &err), &err);
    assert_ok(vptq_checkpoint_fingerprint(&c, &ctx, w->fingerprint, &err), &err);
    vptq_checkpoint_release(&c);
    vtest_path(w->dir, sizeof w->dir, scratch, "work");
    assert_ok(vptq_dir_make(w->dir, &err), &err);
    write_header(w, w->fingerprint, "f16");
    write_layer(w, LAYER_FILE, 1);
    vwork_report(w->dir, 1);
}

static void test_work(void **state)
{
    work w;
    findings f;
    make_work(&w, *state);
    check(w.dir, &f);
    assert_string_equal(strstr(f.text, "error") ? f.text : "", "");
    expect_line(&f, "warning", "1 of 7 matrices are quantized");
    flip(w.layer, 2500);
    check(w.dir, &f);
    expect_line(&f, "error", LAYER_FILE);
    assert_int_equal(f.result.errors, 1);
    write_layer(&w, LAYER_FILE, 0.5);
    check(w.dir, &f);
    expect_line(&f, "error", LAYER_FILE ": its report has");
    remove(w.layer);
    write_layer(&w, "layer_000_up_proj.safetensors", 1);
    check(w.dir, &f);
    expect_line(&f, "error", "holds matrix '" VPACKED_DOWN "' and must be named '" LAYER_FILE);
    remove(w.layer);
    write_layer(&w, LAYER_FILE, 1);
    /* several faults: another base model, another type, and a damaged file */
    write_header(&w, "0123456789abcdef", "bf16");
    check(w.dir, &f);
    expect_line(&f, "error", "has fingerprint");
    expect_line(&f, "error", "is stored as F16, quantize.json says BF16");
    assert_int_equal(f.result.errors, 2);
    write_header(&w, w.fingerprint, "f16");
    check(w.dir, &f);
    assert_int_equal(f.result.errors, 0);
}

/* ---- repair ---- */

static void rename_tensor(vpacked_plan *p, const char *from, const char *to)
{
    vptq_tensor *t = vpacked_tensor(p, from);
    free((void *)(uintptr_t)t->name);
    t->name = own_text(to);
}

/* Plants every repairable quirk: exchanged codebooks of gate (more residual than main
 * centroids), no scale and bias, keys of the algorithm branch, set padding; all of it inside
 * text_config. */
static void spoil(vpacked_plan *p)
{
    static const fault spoilt[] = {
        {ENTRY, VPACKED_GATE, .text = "num_centroids", .json = "[-1, 4]"},
        {ENTRY, VPACKED_GATE, .text = "num_res_centroids", .json = "[-1, 8]"},
        {DROP, VPACKED_GATE ".weight_scale", .expect = NULL},
        {DROP, VPACKED_GATE ".weight_bias", .expect = NULL},
        {ENTRY, VPACKED_GATE, .text = "norm_dim", .json = "0"},
        {ENTRY, VPACKED_GATE, .text = "enable_proxy_error", .json = "false"},
        {ENTRY, VPACKED_GATE, .text = "indices_as_float", .json = "null"},
        {ENTRY, VPACKED_DOWN, .text = "bias", .json = "true"},
        {ENTRY, VPACKED_DOWN, .text = "indices_as_float", .json = "true"},
        {TYPE, VPACKED_DOWN ".perm", .value = VPTQ_F16, .expect = NULL},
        {TYPE, VPACKED_DOWN ".outlier_indices", .value = VPTQ_F16, .expect = NULL},
        {OR32, VPACKED_DOWN ".indices", 1, INT64_C(1) << 31, .expect = NULL},
        {OR32, VPACKED_DOWN ".indices", 15, INT64_C(1) << 28, .expect = NULL}};
    for (size_t i = 0; i < sizeof spoilt / sizeof spoilt[0]; i++)
        plant(p, &spoilt[i]);
    rename_tensor(p, VPACKED_GATE ".indices", "x");
    rename_tensor(p, VPACKED_GATE ".res_indices", VPACKED_GATE ".indices");
    rename_tensor(p, "x", VPACKED_GATE ".res_indices");
    rename_tensor(p, VPACKED_GATE ".centroids.weight", "x");
    rename_tensor(p, VPACKED_GATE ".res_centroids.weight", VPACKED_GATE ".centroids.weight");
    rename_tensor(p, "x", VPACKED_GATE ".res_centroids.weight");
    json_t *outer = json_pack("{s:[s], s:s, s:O}", "architectures", "LlamaForCausalLM",
                              "model_type", "llama", "text_config", p->config);
    assert_non_null(outer);
    json_decref(p->config);
    p->config = outer;
}

static vptq_pack_result repair(const char *in, const char *out, uint64_t shard_bytes)
{
    vptq_err err = {0};
    vptq_mem mem;
    vptq_pack_result r;
    vptq_mem_init(&mem, 0);
    vptq_ctx ctx = {.mem = &mem, .threads = 1};
    vptq_pack_options opt = {.input = in,
                             .output = out,
                             .form = VPTQ_PACK_HF,
                             .dtype = VPTQ_DTYPE_COUNT,
                             .embeddings = VPTQ_DTYPE_COUNT,
                             .shard_bytes = shard_bytes,
                             .repair = true};
    assert_ok(vptq_pack_model(&ctx, &opt, &r, &err), &err);
    assert_int_equal(mem.used, 0);
    return r;
}

/* x + 0 makes +0 of -0, which compares equal. */
static void expect_same_weights(const char *a, const char *b)
{
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_device ref;
    vptq_checkpoint x, y;
    float w[2][VPACKED_FFN * VPACKED_HIDDEN];
    assert_ok(vptq_device_open(&ctx, "ref", &ref, &err), &err);
    assert_ok(vptq_checkpoint_open(&ctx, a, NULL, &x, &err), &err);
    assert_ok(vptq_checkpoint_open(&ctx, b, NULL, &y, &err), &err);
    assert_int_equal(x.quantized_count, 2);
    assert_int_equal(y.quantized_count, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(x.quantized[i].name, y.quantized[i].name);
        for (size_t k = 0; k < 2; k++) {
            const vptq_vq *q = k ? &y.quantized[i].vq : &x.quantized[i].vq;
            assert_ok(vptq_device_decode(&ref, q, 0, q->shape.out, w[k], q->shape.in, &err),
                      &err);
        }
        assert_close(w[1], w[0], VPACKED_FFN * VPACKED_HIDDEN, 0, 0);
    }
    vptq_checkpoint_release(&x);
    vptq_checkpoint_release(&y);
    vptq_device_close(&ref);
}

static void test_repair(void **state)
{
    static const uint32_t repaired[VPTQ_QUIRK_COUNT] = {1, 1, 1, 1, 1, 0, 1, 1, 1, 1};
    vpacked_plan p;
    findings f;
    char bad[PATH], good[PATH], again[PATH], path[PATH];
    vpacked_make(&p, true);
    spoil(&p);
    vtest_path(bad, sizeof bad, *state, "bad");
    vtest_path(good, sizeof good, *state, "good");
    vtest_path(again, sizeof again, *state, "again");
    vpacked_write_directory(&p, bad);
    check(bad, &f);
    assert_int_equal(f.result.errors, 0);
    /* warnings for all quirks but the absorbed permutation, and for the missing tokenizer */
    assert_int_equal(f.result.warnings, 9);
    vptq_pack_result r = repair(bad, good, 1024);
    assert_memory_equal(r.repaired, repaired, sizeof repaired);
    check(good, &f);
    assert_int_equal(f.result.errors, 0);
    assert_int_equal(f.result.warnings, 1);
    expect_line(&f, "warning", "the model has no tokenizer");
    vtest_path(path, sizeof path, good, "model.safetensors.index.json");
    assert_true(vptq_path_exists(path));
    expect_same_weights(bad, good);
    /* nothing is left to repair */
    r = repair(good, again, 0);
    for (size_t i = 0; i < VPTQ_QUIRK_COUNT; i++)
        assert_int_equal(r.repaired[i], 0);
    expect_same_weights(bad, again);
    vpacked_free(&p);
}

/* ---- out of memory ---- */

typedef struct oom_case {
    char in[PATH], out[PATH];
} oom_case;

/* Lack of memory ends the run and is never taken for a fault of the file. */
static vptq_status check_short_of_memory(void *arg, vptq_device *dev, vptq_err *err)
{
    const oom_case *o = arg;
    findings f = {0};
    const vptq_status st = vptq_check_model(dev, o->in, NULL, take, &f, &f.result, err);
    assert_null(strstr(f.text, "memory"));
    return st;
}

static vptq_status repair_short_of_memory(void *arg, vptq_mem *mem, vptq_err *err)
{
    const oom_case *o = arg;
    vptq_pack_result r;
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_pack_options opt = {.input = o->in,
                             .output = o->out,
                             .dtype = VPTQ_DTYPE_COUNT,
                             .embeddings = VPTQ_DTYPE_COUNT,
                             .repair = true,
                             .force = true};
    return vptq_pack_model(&ctx, &opt, &r, err);
}

static void test_out_of_memory(void **state)
{
    vpacked_plan p;
    oom_case o;
    for (int archive = 0; archive < 2; archive++) {
        vpacked_make(&p, true);
        spoil(&p);
        vtest_path(o.in, PATH, *state, archive ? "bad.vptq" : "bad");
        vtest_path(o.out, PATH, *state, archive ? "good2" : "good");
        archive ? vpacked_write_archive(&p, o.in) : vpacked_write_directory(&p, o.in);
        devices_oom_walk("ref", 1, check_short_of_memory, &o);
        vtest_oom_walk(repair_short_of_memory, &o);
        vpacked_free(&p);
    }
}

/* ---- golden files ---- */

static void test_golden_model(void **state)
{
    static const char *const configs[] = {"config.json", "config_shared.json",
                                          "config_algorithm_raw.json"};
    char golden[PATH], dir[PATH], from[PATH], to[PATH];
    vptq_err err = {0};
    findings f;
    if (!vtest_data(golden, sizeof golden, "golden/vptq_model_stories260K"))
        skip();
    vtest_path(dir, sizeof dir, *state, "golden");
    assert_ok(vptq_dir_make(dir, &err), &err);
    static const char *const files[] = {"model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < 6; i++) {
        size_t size;
        vtest_path(from, sizeof from, golden, i < 3 ? files[i] : configs[i - 3]);
        vtest_path(to, sizeof to, dir, i < 3 ? files[i] : "config.json");
        char *bytes = vtest_read_file(from, &size);
        vtest_write_file(to, bytes, size);
        free(bytes);
        if (i < 3)
            continue;
        check(dir, &f);
        assert_string_equal(strstr(f.text, "error:") ? f.text : "", "");
        assert_int_equal(f.result.errors, 0);
    }
}

VTEST_MAIN(scratch_test(test_sound), scratch_test(test_each_fault),
           scratch_test(test_all_are_listed), scratch_test(test_damaged_archive),
           scratch_test(test_cut_directory), scratch_test(test_work), scratch_test(test_repair),
           scratch_test(test_out_of_memory), scratch_test(test_golden_model))
