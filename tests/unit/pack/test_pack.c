/* Packing and unpacking of whole models: numbers out of range, no memory, biases of quantized
 * linear layers, conventions of other readers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/weights.h"
#include "formats/vptq/layer_file.h"
#include "lib/pack/pack.h"
#include "lib/quantize/quantize.h"
#include "tests/support/vtest.h"
#include "tests/support/vwork.h"

#define TINY "tests/golden/tiny_qwen2" /* has biases on q, k and v */

#define EXTRA "model.extra.weight" /* that no architecture has */

static void read_set(const char *dir, vptq_tensor_set *set)
{
    vptq_err err = {0};
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_hf_read_weights(dir, set, &err), &err);
}

/* A directory of the tiny model with one more tensor, [2, 3]. */
static void extended_model(const char *dir, const float x[6])
{
    vptq_err err = {0};
    char path[4096];
    vptq_tensor_set set;
    read_set(TINY, &set);
    vptq_tensor *list = calloc(set.count + 1, sizeof *list);
    assert_non_null(list);
    memcpy(list, set.tensors, set.count * sizeof *list);
    list[set.count] = (vptq_tensor){.name = EXTRA,
                                    .type = VPTQ_F32,
                                    .dims = 2,
                                    .shape = {2, 3},
                                    .data = (const uint8_t *)(const void *)x,
                                    .bytes = 6 * sizeof *x};
    assert_ok(vptq_dir_make(dir, &err), &err);
    vtest_copy_file(TINY "/config.json", dir, "config.json");
    vtest_path(path, sizeof path, dir, "model.safetensors");
    assert_ok(vptq_safetensors_save(path, list, set.count + 1, NULL, 0, &err), &err);
    free(list);
    vptq_tensor_set_release(&set);
}

static vptq_status unpack_with(const vptq_pack_options *opt, vptq_mem *mem, vptq_err *err)
{
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev;
    vptq_pack_result r;
    vptq_status st = vptq_device_open(&ctx, "ref", &dev, err);
    if (st)
        return st;
    st = vptq_unpack_model(&dev, opt, &r, err);
    vptq_device_close(&dev);
    return st;
}

static vptq_status unpack(const char *in, const char *out, vptq_dtype type, vptq_mem *mem,
                          vptq_err *err)
{
    const vptq_pack_options opt = {.input = in,
                                   .output = out,
                                   .dtype = type,
                                   .embeddings = VPTQ_DTYPE_COUNT,
                                   .force = true};
    return unpack_with(&opt, mem, err);
}

static vptq_status pack(const char *in, const char *out, vptq_pack_form form, vptq_mem *mem,
                        vptq_err *err)
{
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_pack_result r;
    vptq_pack_options opt = {.input = in,
                             .output = out,
                             .form = form,
                             .dtype = VPTQ_DTYPE_COUNT,
                             .embeddings = VPTQ_DTYPE_COUNT,
                             .force = true};
    return vptq_pack_model(&ctx, &opt, &r, err);
}

/* The largest half is 65504, and values up to 65520 round to it; bfloat16 has the same margin.
 */
static void test_range_of_types(void **state)
{
    char in[4096], out[4096];
    vptq_err err = {0};
    float x[6] = {1, -65519.9F, 0x1p-24F, 0x1p-25F, -0.0F, 3e5F};
    vtest_path(in, sizeof in, *state, "in");
    vtest_path(out, sizeof out, *state, "out");
    extended_model(in, x);
    assert_fails(unpack(in, out, VPTQ_F16, NULL, &err), VPTQ_E_NUMERIC, &err,
                 "'" EXTRA "': row 1, column 2 is 300000, too large for F16");
    assert_false(vptq_path_exists(out));
    assert_ok(unpack(in, out, VPTQ_BF16, NULL, &err), &err);
    x[5] = 0x1.FEFFFEp127F;
    extended_model(in, x);
    assert_ok(unpack(in, out, VPTQ_BF16, NULL, &err), &err);
    x[5] = -0x1.FFp127F;
    extended_model(in, x);
    assert_fails(unpack(in, out, VPTQ_BF16, NULL, &err), VPTQ_E_NUMERIC, &err,
                 "too large for BF16");
    assert_ok(unpack(in, out, VPTQ_F32, NULL, &err), &err);
    x[3] = NAN;
    extended_model(in, x);
    assert_fails(unpack(in, out, VPTQ_F32, NULL, &err), VPTQ_E_NUMERIC, &err,
                 "row 1, column 0");
    x[3] = 0x1p-25F;
    x[5] = 2;
    extended_model(in, x);
    assert_ok(unpack(in, out, VPTQ_F16, NULL, &err), &err);
    vptq_tensor_set set;
    read_set(out, &set);
    static const uint16_t want[6] = {0x3c00, 0xfbff, 0x0001, 0x0000, 0x8000, 0x4000};
    const vptq_tensor *extra = vptq_tensor_find(&set, EXTRA);
    assert_non_null(extra);
    assert_memory_equal(extra->data, want, sizeof want);
    vptq_tensor_set_release(&set);
}

/* ---- a work directory made by hand over the tiny model ---- */

/* Makes a matrix whose weights are all the centroids of their own indices: v = 2, k = 16, scale
 * 1 + column / 16, bias column / 8. */
static void write_layer(const char *work, uint32_t layer, vptq_linear linear,
                        const vptq_model_desc *d)
{
    vptq_err err = {0};
    uint32_t out, in;
    char file[VPTQ_LAYER_FILE_NAME_MAX], path[4096], name[VPTQ_NAME_MAX];
    float codebooks[32], scale[256], bias[256];
    vptq_linear_shape(d, linear, &out, &in);
    assert_true(in <= 256);
    vptq_packed_matrix m = {.name = name, .storage = VPTQ_F16};
    m.vq.shape = (vptq_vq_shape){
        .out = out, .in = in, .v = 2, .k = 16, .groups = 1, .group_size = in, .has_norm = true};
    size_t vector_rows = vptq_vq_vector_rows(&m.vq.shape),
           words = vptq_vq_row_words(&m.vq.shape);
    uint32_t *indices = calloc(vector_rows * words, sizeof *indices);
    assert_non_null(indices);
    for (size_t i = 0; i < vector_rows * in; i++)
        vptq_bits_put(indices + i / in * words, i % in, 4, (uint32_t)(i * 7 % 16));
    for (size_t i = 0; i < 32; i++)
        codebooks[i] = ((float)i - 16) / 64;
    for (size_t i = 0; i < in; i++) {
        scale[i] = 1 + (float)i / 16;
        bias[i] = (float)i / 8;
    }
    vptq_linear_full_name(d, name, layer, linear);
    m.vq.indices = indices;
    m.vq.centroids = codebooks;
    m.vq.scale = scale;
    m.vq.bias = bias;
    vptq_layer_file_name(file, layer, vptq_linear_name(d, linear).text);
    vtest_path(path, sizeof path, work, file);
    assert_ok(vptq_layer_file_write(path,
                                    &(vptq_layer_file){.matrix = m,
                                                       .centroids_f32 = codebooks,
                                                       .res_centroids_f32 = NULL,
                                                       .fingerprint = "0123456789abcdef",
                                                       .report = "{}"},
                                    NULL, &err),
              &err);
    free(indices);
}

/* Quantizes q, k and down of layer 0, or all matrices. */
static void make_work(const char *work, bool all)
{
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_checkpoint c;
    char hex[17], path[4096];
    assert_ok(vptq_dir_make(work, &err), &err);
    assert_ok(vptq_checkpoint_open(&ctx, TINY, NULL, &c, &err), &err);
    assert_ok(vptq_checkpoint_fingerprint(&c, &ctx, hex, &err), &err);
    for (uint32_t layer = 0; layer < (all ? c.desc.layers : 1); layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            if (all || l == VPTQ_LINEAR_Q || l == VPTQ_LINEAR_K || l == VPTQ_LINEAR_DOWN)
                write_layer(work, layer, (vptq_linear)l, &c.desc);
    vwork_report(work, all ? (size_t)c.desc.layers * VPTQ_LINEAR_DENSE : 3);
    vptq_checkpoint_release(&c);
    json_t *manifest = json_pack("{s:s, s:s, s:s, s:n}", "base_model", TINY, "base_fingerprint",
                                 hex, "dtype", "f16", "tokenizer");
    vtest_path(path, sizeof path, work, VPTQ_WORK_FILE);
    assert_ok(vptq_json_save_sealed(path, manifest, &err), &err);
    json_decref(manifest);
}

static bool entry_bias(const char *dir, const char *module)
{
    vptq_err err = {0};
    char path[4096];
    json_t *config = NULL;
    vtest_path(path, sizeof path, dir, "config.json");
    assert_ok(vptq_json_load(path, 1 << 20, &config, &err), &err);
    const json_t *entry = vptq_packed_entry(config, module);
    assert_non_null(entry);
    bool bias = json_is_true(json_object_get(entry, "bias"));
    assert_string_equal(json_string_value(json_object_get(config, "torch_dtype")), "float16");
    json_decref(config);
    return bias;
}

static void test_work_with_biases(void **state)
{
    char work[4096], packed[4096], plain[4096], archive[4096];
    vptq_err err = {0};
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(packed, sizeof packed, *state, "packed");
    vtest_path(plain, sizeof plain, *state, "plain");
    vtest_path(archive, sizeof archive, *state, "a.vptq");
    make_work(work, false);
    assert_ok(pack(work, packed, VPTQ_PACK_HF, NULL, &err), &err);
    assert_true(entry_bias(packed, "model.layers.0.self_attn.q_proj"));
    assert_false(entry_bias(packed, "model.layers.0.mlp.down_proj"));
    vptq_tensor_set set, base;
    read_set(packed, &set);
    read_set(TINY, &base);
    assert_null(vptq_tensor_find(&set, "model.layers.0.self_attn.q_proj.weight"));
    assert_non_null(vptq_tensor_find(&set, "model.layers.0.self_attn.v_proj.weight"));
    const vptq_tensor *bias = vptq_tensor_find(&set, "model.layers.0.self_attn.q_proj.bias");
    const vptq_tensor *old = vptq_tensor_find(&base, "model.layers.0.self_attn.q_proj.bias");
    assert_non_null(bias);
    assert_int_equal(bias->type, VPTQ_F16);
    float x[256], y[256];
    size_t n = vptq_tensor_cols(bias);
    assert_true(n <= 256);
    assert_ok(vptq_tensor_read(bias, 0, 1, x, &err), &err);
    assert_ok(vptq_tensor_read(old, 0, 1, y, &err), &err);
    vptq_round_to_n(VPTQ_F16, y, n);
    assert_same_f32(x, y, n);
    vptq_tensor_set_release(&set);

    /* the weights follow the layout's formula */
    assert_ok(pack(packed, archive, VPTQ_PACK_ARCHIVE, NULL, &err), &err);
    assert_ok(unpack(archive, plain, VPTQ_F32, NULL, &err), &err);
    read_set(plain, &set);
    const vptq_tensor *w = vptq_tensor_find(&set, "model.layers.0.self_attn.k_proj.weight");
    size_t rows = vptq_tensor_rows(w), cols = vptq_tensor_cols(w);
    for (size_t r = 0; r < rows; r++) {
        assert_ok(vptq_tensor_read(w, r, 1, x, &err), &err);
        for (size_t c = 0; c < cols; c++) {
            size_t index = (r / 2 * cols + c) * 7 % 16;
            float centroid = ((float)(2 * index + r % 2) - 16) / 64;
            y[c] = centroid * (1 + (float)c / 16) + (float)c / 8;
        }
        assert_same_f32(x, y, cols);
    }
    vptq_tensor_set_release(&set);
    vptq_tensor_set_release(&base);
}

/* Files of matrices that the base model has, but not as linear layers of blocks of that shape.
 */
static void test_work_of_other_shapes(void **state)
{
    char work[4096], out[4096], path[4096];
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_checkpoint c;
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(out, sizeof out, *state, "out");
    make_work(work, false);
    assert_ok(vptq_checkpoint_open(&ctx, TINY, NULL, &c, &err), &err);
    vptq_model_desc wrong = c.desc;
    wrong.intermediate *= 2;
    write_layer(work, 0, VPTQ_LINEAR_DOWN, &wrong);
    vptq_checkpoint_release(&c);
    assert_fails(pack(work, out, VPTQ_PACK_HF, NULL, &err), VPTQ_E_SHAPE, &err, "down_proj");
    vtest_path(path, sizeof path, work, "layer_000_down_proj.safetensors");
    assert_int_equal(remove(path), 0);
    vwork_report(work, 2);
    assert_ok(pack(work, out, VPTQ_PACK_HF, NULL, &err), &err);
}

/* ---- as a GGUF file ---- */

/* Writes the tiny model with one tensor added or replaced. */
static void misshapen_model(const char *dir, const char *name, uint32_t dims,
                            const uint64_t *shape)
{
    static const float ones[64] = {1};
    vptq_err err = {0};
    char path[4096];
    vptq_tensor_set set;
    vptq_tensor list[128];
    size_t n = 0;
    assert_ok(vptq_dir_make(dir, &err), &err);
    vtest_copy_file(TINY "/config.json", dir, "config.json");
    read_set(TINY, &set);
    for (size_t i = 0; i < set.count; i++)
        if (strcmp(set.tensors[i].name, name) != 0)
            list[n++] = set.tensors[i];
    vptq_tensor *t = &list[n++];
    *t = (vptq_tensor){.name = name,
                       .type = VPTQ_F32,
                       .dims = dims,
                       .data = (const uint8_t *)(const void *)ones,
                       .bytes = sizeof *ones};
    for (uint32_t d = 0; d < dims; d++) {
        t->shape[d] = shape[d];
        t->bytes *= (size_t)shape[d];
    }
    assert_in_range(t->bytes, 1, sizeof ones);
    vtest_path(path, sizeof path, dir, "model.safetensors");
    assert_ok(vptq_safetensors_save(path, list, n, NULL, 0, &err), &err);
    vptq_tensor_set_release(&set);
}

static const char letters[] =
    "{\"added_tokens\": [], \"normalizer\": null, \"post_processor\": null,"
    " \"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\","
    " \"add_prefix_space\": false, \"use_regex\": true}, \"model\": {\"type\": \"BPE\","
    " \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [[\"a\", \"b\"]]}}";

typedef struct gguf_walk {
    const char *in, *out, *tokenizer;
} gguf_walk;

static vptq_status write_gguf(void *arg, vptq_mem *mem, vptq_err *err)
{
    const gguf_walk *w = arg;
    const vptq_pack_options opt = {.input = w->in,
                                   .output = w->out,
                                   .tokenizer = w->tokenizer,
                                   .form = VPTQ_PACK_GGUF,
                                   .dtype = VPTQ_F16,
                                   .embeddings = VPTQ_F16,
                                   .force = true};
    return unpack_with(&opt, mem, err);
}

static void test_gguf_out_of_memory(void **state)
{
    char out[4096], tokenizer[4096];
    vtest_path(out, sizeof out, *state, "out.gguf");
    vtest_path(tokenizer, sizeof tokenizer, *state, "tokenizer.json");
    vtest_write_file(tokenizer, letters, sizeof letters - 1);
    vtest_oom_walk(write_gguf, &(gguf_walk){"tests/golden/packed_llama3", out, tokenizer});
}

/* A dry run rejects what writing would: no tensor of another shape is written under GGUF's
 * names. */
static void test_gguf_shapes(void **state)
{
    static const struct {
        const char *name;
        uint32_t dims;
        uint64_t shape[3];
        const char *part;
    } cases[] = {
        {"model.norm.weight", 0, {0}, "tensor 'model.norm.weight'"},
        {"model.layers.1.mlp.down_proj.weight", 2, {4, 4}, "tensor 'model.layers.1.mlp.down"},
        {"model.layers.0.self_attn.q_proj.bias", 1, {7}, "tensor 'model.layers.0.self_attn.q_"},
        /* which this family's blocks do not have */
        {"model.layers.0.self_attn.q_norm.weight",
         0,
         {0},
         "tensor 'blk.0.attn_q_norm.weight' has 0 dimensions, expected 1 or 2"},
        {"model.layers.0.self_attn.q_norm.weight",
         3,
         {2, 2, 2},
         "tensor 'blk.0.attn_q_norm.weight' has 3 dimensions, expected 1 or 2"},
    };
    char in[4096], out[4096];
    vptq_err err = {0};
    vtest_path(in, sizeof in, *state, "in");
    vtest_path(out, sizeof out, *state, "out.gguf");
    const vptq_pack_options opt = {.input = in,
                                   .output = out,
                                   .form = VPTQ_PACK_GGUF,
                                   .dtype = VPTQ_F16,
                                   .embeddings = VPTQ_F16,
                                   .dry_run = true};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        misshapen_model(in, cases[i].name, cases[i].dims, cases[i].shape);
        assert_fails(unpack_with(&opt, NULL, &err), VPTQ_E_SHAPE, &err, cases[i].part);
    }
}

/* ---- for other readers ---- */

/* A head that is tied to the embedding is stored only on request. */
static void test_tied_head(void **state)
{
    char work[4096], out[4096];
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_pack_result without, with;
    vptq_tensor_set set;
    vptq_checkpoint c;
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(out, sizeof out, *state, "out");
    make_work(work, false);
    vptq_pack_options opt = {.input = work,
                             .output = out,
                             .dtype = VPTQ_DTYPE_COUNT,
                             .embeddings = VPTQ_DTYPE_COUNT,
                             .force = true};
    assert_ok(vptq_pack_model(&ctx, &opt, &without, &err), &err);
    read_set(out, &set);
    assert_null(vptq_tensor_find(&set, "lm_head.weight"));
    vptq_tensor_set_release(&set);

    opt.lm_head = true;
    assert_ok(vptq_pack_model(&ctx, &opt, &with, &err), &err);
    assert_int_equal(with.plain, without.plain + 1);
    read_set(out, &set);
    const vptq_tensor *head = vptq_tensor_find(&set, "lm_head.weight");
    const vptq_tensor *embedding = vptq_tensor_find(&set, "model.embed_tokens.weight");
    assert_non_null(head);
    assert_int_equal(head->type, embedding->type);
    assert_memory_equal(head->shape, embedding->shape, sizeof head->shape);
    assert_int_equal(head->bytes, embedding->bytes);
    assert_memory_equal(head->data, embedding->data, head->bytes);
    vptq_tensor_set_release(&set);
    assert_ok(vptq_checkpoint_open(&ctx, out, NULL, &c, &err), &err);
    assert_true(c.desc.tied);
    vptq_checkpoint_release(&c);
}

/* Types that an embedding is never stored as are refused, whatever is written. */
static void test_types_of_embeddings(void **state)
{
    static const vptq_dtype bad[] = {VPTQ_U8, VPTQ_I8, VPTQ_F64, VPTQ_Q4_0};
    vptq_err err = {0};
    char work[4096], out[4096];
    vptq_ctx ctx = {.threads = 1};
    vptq_pack_result r;
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(out, sizeof out, *state, "out.vptq");
    make_work(work, false);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        vptq_pack_options opt = {.input = work,
                                 .output = out,
                                 .form = VPTQ_PACK_ARCHIVE,
                                 .dtype = VPTQ_DTYPE_COUNT,
                                 .embeddings = bad[i]};
        assert_fails(vptq_pack_model(&ctx, &opt, &r, &err), VPTQ_E_ARG, &err,
                     "expected F16, BF16, F32, Q8_0 or Q6_K");
        opt.form = VPTQ_PACK_GGUF;
        opt.dtype = VPTQ_F16;
        assert_fails(unpack_with(&opt, NULL, &err), VPTQ_E_ARG, &err,
                     "expected F16, BF16, F32, Q8_0 or Q6_K");
        assert_false(vptq_path_exists(out));
    }
}

static json_t *load_config(const char *dir)
{
    vptq_err err = {0};
    char path[4096];
    json_t *config = NULL;
    vtest_path(path, sizeof path, dir, "config.json");
    assert_ok(vptq_json_load(path, 1 << 20, &config, &err), &err);
    return config;
}

/* A config that upstream's loaders accept is still written byte for byte. */
static void test_upstream_took_it(void **state)
{
    static const char *const families[] = {"llama3", "mistral", "qwen2", "qwen3"};
    char out[4096], golden[128];
    vptq_err err = {0};
    vtest_path(out, sizeof out, *state, "out");
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        vptq_tensor_set now, then;
        snprintf(golden, sizeof golden, "tests/golden/packed_%s", families[i]);
        assert_ok(pack(golden, out, VPTQ_PACK_HF, NULL, &err), &err);
        read_set(out, &now);
        read_set(golden, &then);
        assert_int_equal(now.count, then.count);
        for (size_t k = 0; k < then.count; k++) {
            const vptq_tensor *a = &then.tensors[k], *b = vptq_tensor_find(&now, a->name);
            assert_non_null(b);
            assert_int_equal(a->type, b->type);
            assert_int_equal(a->dims, b->dims);
            assert_memory_equal(a->shape, b->shape, a->dims * sizeof *a->shape);
            assert_int_equal(a->bytes, b->bytes);
            assert_memory_equal(a->data, b->data, a->bytes);
        }
        json_t *config = load_config(out), *want = load_config(golden);
        assert_true(json_equal(config, want));
        json_decref(config);
        json_decref(want);
        vptq_tensor_set_release(&now);
        vptq_tensor_set_release(&then);
    }
}

static json_t *unpacked_config(const char *model, const char *out)
{
    vptq_err err = {0};
    assert_ok(unpack(model, out, VPTQ_F32, NULL, &err), &err);
    return load_config(out);
}

/* RoPE under the newer key only is also written under the older ones, which transformers 4
 * reads. */
static void test_rope_by_both_names(void **state)
{
    char out[4096];
    vtest_path(out, sizeof out, *state, "out");
    json_t *config = unpacked_config("tests/golden/tiny_llama3", out);
    json_t *want = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", 8.0,
                             "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                             "original_max_position_embeddings", 16);
    assert_true(json_real_value(json_object_get(config, "rope_theta")) == 10000);
    assert_true(json_equal(json_object_get(config, "rope_scaling"), want));
    assert_true(json_is_object(json_object_get(config, "rope_parameters")));
    json_decref(config);
    json_decref(want);
    config = unpacked_config(TINY, out);
    assert_true(json_real_value(json_object_get(config, "rope_theta")) == 10000);
    assert_true(json_is_null(json_object_get(config, "rope_scaling")));
    json_decref(config);
}

/* ---- memory ---- */

/* scripts/vptq_digest.py computed the digest from the packed directory. */
static void test_digest_of_work(void **state)
{
    static const char *const expected =
        "vptq1:83cc32fc9a7ce7c374d875df64a2b2bc295799e7c3d1dec9243b7b1e5a24b74d";
    char paths[3][4096];
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_digest_result r;
    vtest_path(paths[0], sizeof paths[0], *state, "work");
    vtest_path(paths[1], sizeof paths[1], *state, "packed");
    vtest_path(paths[2], sizeof paths[2], *state, "a.vptq");
    make_work(paths[0], false);
    assert_ok(vptq_digest_model(&ctx, paths[0], NULL, NULL, &r, &err), &err);
    assert_string_equal(r.digest, "");
    assert_int_equal(r.matrices, 3);
    assert_int_equal(r.all_matrices, 14);
    make_work(paths[0], true);
    assert_ok(pack(paths[0], paths[1], VPTQ_PACK_HF, NULL, &err), &err);
    assert_ok(pack(paths[0], paths[2], VPTQ_PACK_ARCHIVE, NULL, &err), &err);
    for (size_t i = 0; i < 3; i++) {
        assert_ok(vptq_digest_model(&ctx, paths[i], NULL, NULL, &r, &err), &err);
        assert_string_equal(r.digest, expected);
        assert_int_equal(r.matrices, 14);
        assert_int_equal(r.tensors, 68);
    }
}

typedef struct walk {
    const char *in, *out;
    int what;
} walk;

static vptq_status ignore_row(void *arg, const vptq_list_row *row, vptq_err *err)
{
    (void)arg;
    (void)row;
    (void)err;
    return VPTQ_OK;
}

static void ignore_finding(void *arg, bool is_error, const char *text)
{
    (void)arg;
    (void)text;
    assert_false(is_error);
}

static vptq_status step(void *arg, vptq_mem *mem, vptq_err *err)
{
    const walk *w = arg;
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev;
    uint64_t bytes = 0;
    double bits = 0;
    vptq_check_result result;
    switch (w->what) {
    case 0:
    case 1: {
        vptq_pack_result r;
        vptq_pack_options opt = {.input = w->in,
                                 .output = w->out,
                                 .form = w->what ? VPTQ_PACK_ARCHIVE : VPTQ_PACK_HF,
                                 .dtype = VPTQ_DTYPE_COUNT,
                                 .embeddings = w->what ? VPTQ_Q6_K : VPTQ_DTYPE_COUNT,
                                 .lm_head = true,
                                 .force = true};
        return vptq_pack_model(&ctx, &opt, &r, err);
    }
    case 2:
        return unpack(w->in, w->out, VPTQ_F16, mem, err);
    case 3:
        return vptq_list_model(&ctx, w->in, NULL, ignore_row, NULL, &bytes, &bits, err);
    case 5: {
        vptq_digest_result r;
        return vptq_digest_model(&ctx, w->in, NULL, NULL, &r, err);
    }
    default:
        break;
    }
    vptq_status st = vptq_device_open(&ctx, "ref", &dev, err);
    if (st)
        return st;
    st = vptq_check_model(&dev, w->in, NULL, ignore_finding, NULL, &result, err);
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    char work[4096], dir[4096], archive[4096], plain[4096];
    vptq_err err = {0};
    vtest_path(work, sizeof work, *state, "work");
    vtest_path(dir, sizeof dir, *state, "dir");
    vtest_path(archive, sizeof archive, *state, "a.vptq");
    vtest_path(plain, sizeof plain, *state, "plain");
    make_work(work, true);
    assert_ok(pack(work, archive, VPTQ_PACK_ARCHIVE, NULL, &err), &err);
    walk walks[] = {{work, dir, 0},     {work, archive, 1}, {archive, plain, 2},
                    {archive, NULL, 3}, {archive, NULL, 4}, {work, NULL, 5},
                    {archive, NULL, 5}};
    for (size_t i = 0; i < sizeof walks / sizeof walks[0]; i++)
        vtest_oom_walk(step, &walks[i]);
}

VTEST_MAIN(scratch_test(test_types_of_embeddings), scratch_test(test_range_of_types),
           scratch_test(test_work_with_biases), scratch_test(test_work_of_other_shapes),
           scratch_test(test_gguf_shapes), scratch_test(test_gguf_out_of_memory),
           scratch_test(test_tied_head), scratch_test(test_digest_of_work),
           scratch_test(test_upstream_took_it), scratch_test(test_rope_by_both_names),
           scratch_test(test_out_of_memory))
