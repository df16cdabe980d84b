/* Builds the small packed model and writes it as a directory or an archive. */
#include "tests/support/vpacked.h"
#include "tests/support/varchive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "formats/hf/weights.h"
#include "formats/vptq/archive.h"
#include "lib/base/bits.h"
#include "lib/base/file.h"
#include "tests/support/vtest.h"

enum { PATH = 4096, KV = 8, VOCAB = 8 };

static const char config_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\","
    " \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 1,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 8,"
    " \"max_position_embeddings\": 32, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true}";

static const char gate_entry[] =
    "{\"in_features\": 16, \"out_features\": 24, \"vector_lens\": [-1, 4],"
    " \"num_centroids\": [-1, 8], \"num_res_centroids\": [-1, 4], \"group_num\": 1,"
    " \"group_size\": 16, \"outlier_size\": 0, \"indices_as_float\": false,"
    " \"enable_norm\": true, \"enable_perm\": true, \"is_indice_packed\": false,"
    " \"bias\": false}";

/* 16 rows in 4 vector rows of 4; 4 outlier columns with vectors of 2; 2 groups of 10 columns at
 * 6 bits each, which use 60 of the 64 bits of a row. */
static const char down_entry[] =
    "{\"in_features\": 24, \"out_features\": 16, \"vector_lens\": [2, 4],"
    " \"num_centroids\": [8, 16], \"num_res_centroids\": [-1, 4], \"group_num\": 2,"
    " \"group_size\": 10, \"outlier_size\": 4, \"indices_as_float\": false,"
    " \"enable_norm\": true, \"enable_perm\": true, \"is_indice_packed\": true,"
    " \"bias\": false}";

static void *add(vpacked_plan *p, const char *module, const char *part, vptq_dtype type,
                 uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t shape[3] = {a, b, c};
    size_t n = 1;
    char *name = vtest_alloc(strlen(module) + strlen(part) + 2, 1);
    vptq_tensor *t = &p->list[p->count++];
    assert_true(p->count <= VPACKED_MAX_TENSORS);
    sprintf(name, "%s.%s", module, part);
    *t = (vptq_tensor){.name = name, .type = type, .file = ""};
    for (int i = 0; i < 3 && shape[i]; i++, n *= (size_t)shape[i - 1])
        t->shape[t->dims++] = shape[i];
    t->bytes = n * vptq_dtype_get(type)->bytes;
    void *data = vtest_alloc(n, vptq_dtype_get(type)->bytes);
    t->data = data;
    uint16_t *half = data;
    for (size_t i = 0; type == VPTQ_F16 && i < n; i++)
        half[i] = (uint16_t)(0x3000 + i * 37 % 0x800);
    return data;
}

static void add_index16(vpacked_plan *p, const char *module, const char *part, uint64_t a,
                        uint64_t b, uint64_t c, unsigned k)
{
    uint16_t *x = add(p, module, part, VPTQ_I16, a, b, c);
    for (size_t i = 0; i < a * b * c; i++)
        x[i] = (uint16_t)(i * 5 % k);
}

static void add_numbers(vpacked_plan *p, const char *module, const char *part, uint64_t a,
                        uint64_t b)
{
    add(p, module, part, VPTQ_F16, a, b, 0);
}

static void add_gate(vpacked_plan *p)
{
    add_index16(p, VPACKED_GATE, "indices", 1, 6, VPACKED_HIDDEN, 8);
    add_index16(p, VPACKED_GATE, "res_indices", 1, 6, VPACKED_HIDDEN, 4);
    add_numbers(p, VPACKED_GATE, "centroids.weight", 1, 32);
    add_numbers(p, VPACKED_GATE, "res_centroids.weight", 1, 16);
    int64_t *perm = add(p, VPACKED_GATE, "perm", VPTQ_I64, VPACKED_HIDDEN, 0, 0);
    for (int i = 0; i < VPACKED_HIDDEN; i++)
        perm[i] = i * 3 % VPACKED_HIDDEN;
    add_numbers(p, VPACKED_GATE, "weight_scale", VPACKED_HIDDEN, 0);
    add_numbers(p, VPACKED_GATE, "weight_bias", VPACKED_HIDDEN, 0);
}

static void add_down(vpacked_plan *p)
{
    uint32_t *words = add(p, VPACKED_DOWN, "indices", VPTQ_I32, 2, 4, 2);
    for (size_t i = 0; i < 80; i++)
        vptq_bits_put(words + i / 10 * 2, i % 10, 6, (uint32_t)(i * 7 % 64));
    add_index16(p, VPACKED_DOWN, "outlier_indices", 1, 8, 4, 8);
    add_numbers(p, VPACKED_DOWN, "outlier_centroids.weight", 1, 16);
    add_numbers(p, VPACKED_DOWN, "centroids.weight", 2, 64);
    add_numbers(p, VPACKED_DOWN, "res_centroids.weight", 2, 16);
    uint16_t *perm = add(p, VPACKED_DOWN, "perm", VPTQ_I16, VPACKED_FFN, 0, 0);
    for (int i = 0; i < VPACKED_FFN; i++)
        perm[i] = (uint16_t)(i * 5 % VPACKED_FFN);
    add_numbers(p, VPACKED_DOWN, "weight_scale", VPACKED_FFN, 0);
    add_numbers(p, VPACKED_DOWN, "weight_bias", VPACKED_FFN, 0);
}

void vpacked_make(vpacked_plan *p, bool quantized)
{
    memset(p, 0, sizeof *p);
    p->config = json_loads(config_text, 0, NULL);
    assert_non_null(p->config);
    add_numbers(p, "model.embed_tokens", "weight", VOCAB, VPACKED_HIDDEN);
    add_numbers(p, "model.norm", "weight", VPACKED_HIDDEN, 0);
    add_numbers(p, "model.layers.0.input_layernorm", "weight", VPACKED_HIDDEN, 0);
    add_numbers(p, "model.layers.0.post_attention_layernorm", "weight", VPACKED_HIDDEN, 0);
    add_numbers(p, "model.layers.0.self_attn.q_proj", "weight", VPACKED_HIDDEN, VPACKED_HIDDEN);
    add_numbers(p, "model.layers.0.self_attn.k_proj", "weight", KV, VPACKED_HIDDEN);
    add_numbers(p, "model.layers.0.self_attn.v_proj", "weight", KV, VPACKED_HIDDEN);
    add_numbers(p, "model.layers.0.self_attn.o_proj", "weight", VPACKED_HIDDEN, VPACKED_HIDDEN);
    add_numbers(p, "model.layers.0.mlp.up_proj", "weight", VPACKED_FFN, VPACKED_HIDDEN);
    if (!quantized) {
        add_numbers(p, VPACKED_GATE, "weight", VPACKED_FFN, VPACKED_HIDDEN);
        add_numbers(p, VPACKED_DOWN, "weight", VPACKED_HIDDEN, VPACKED_FFN);
        return;
    }
    add_gate(p);
    add_down(p);
    json_t *layers = json_object(), *q = json_object();
    json_object_set_new(layers, VPACKED_GATE, json_loads(gate_entry, 0, NULL));
    json_object_set_new(layers, VPACKED_DOWN, json_loads(down_entry, 0, NULL));
    json_object_set_new(q, "quant_method", json_string("vptq"));
    json_object_set_new(q, "config_for_layers", layers);
    json_object_set_new(p->config, "quantization_config", q);
}

void vpacked_free(vpacked_plan *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free((void *)(uintptr_t)p->list[i].name);
        free((void *)(uintptr_t)p->list[i].data);
    }
    json_decref(p->config);
}

vptq_tensor *vpacked_tensor(vpacked_plan *p, const char *name)
{
    size_t i = 0;
    while (i < p->count && strcmp(p->list[i].name, name) != 0)
        i++;
    assert_true(i < p->count);
    return &p->list[i];
}

json_t *vpacked_entry(vpacked_plan *p, const char *module)
{
    json_t *q = json_object_get(p->config, "quantization_config");
    return json_object_get(json_object_get(q, "config_for_layers"), module);
}

static char *config_of(const vpacked_plan *p)
{
    return p->config_bytes ? strdup(p->config_bytes) : json_dumps(p->config, 0);
}

void vpacked_write_directory(const vpacked_plan *p, const char *dir)
{
    vptq_err err = {0};
    char path[PATH], *text = config_of(p);
    assert_ok(vptq_dir_make(dir, &err), &err);
    vtest_path(path, sizeof path, dir, "config.json");
    vtest_write_file(path, text, strlen(text));
    vtest_path(path, sizeof path, dir, "model.safetensors");
    assert_ok(vptq_safetensors_save(path, p->list, p->count, NULL, 0, &err), &err);
    free(text);
}

void vpacked_write_archive(const vpacked_plan *p, const char *path)
{
    vptq_err err = {0};
    vptq_archive_writer *w = NULL;
    char *text = config_of(p);
    assert_ok(vptq_archive_writer_open(path, true, 1, NULL, &w, &err), &err);
    assert_ok(vptq_archive_add_file(w, "config.json", text, strlen(text), 3, &err), &err);
    for (size_t i = 0; i < p->count; i++)
        assert_ok(varchive_add(w, &p->list[i], 3, &err), &err);
    assert_ok(vptq_archive_writer_commit(w, &err), &err);
    vptq_archive_writer_abort(w);
    free(text);
}

bool vpacked_stories(vptq_tensor_set *set, json_t **config, char *path, size_t size)
{
    char dir[4096];
    vptq_err err = {0};
    if (!vtest_data(dir, sizeof dir, "golden/vptq_model_stories260K"))
        return false;
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_hf_read_weights(dir, set, &err), &err);
    vtest_path(path, size, dir, "config.json");
    assert_ok(vptq_json_load(path, 1 << 20, config, &err), &err);
    return true;
}
