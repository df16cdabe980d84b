/* Tests opening every kind of model, and the errors for paths that are not models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "formats/hf/safetensors.h"
#include "formats/hf/weights.h"
#include "formats/vptq/archive.h"
#include "lib/base/file.h"
#include "tests/support/varchive.h"
#include "tests/support/vgguf.h"
#include "tests/support/vtest.h"
#include "tests/support/vwork.h"

enum { PATH = 4096 };

static const vptq_ctx ctx = {.threads = 2};

#define LLAMA3 "tests/golden/tiny_llama3"

/* ---- helpers ---- */

static void in(char path[PATH], void **state, const char *name)
{
    vtest_path(path, PATH, *state, name);
}

static void write_text(void **state, const char *name, const char *text)
{
    char path[PATH];
    in(path, state, name);
    vtest_write_file(path, text, strlen(text));
}

static void make_dir(void **state, const char *name)
{
    char path[PATH];
    vptq_err err = {0};
    in(path, state, name);
    assert_ok(vptq_dir_make(path, &err), &err);
}

/* Changes one byte of a file. */
static void damage(void **state, const char *name, size_t at)
{
    char path[PATH];
    size_t n;
    in(path, state, name);
    char *data = vtest_read_file(path, &n);
    assert_true(at < n);
    data[at] = (char)(data[at] ^ 1);
    vtest_write_file(path, data, n);
    free(data);
}

/* Replaces every `old` in a text file by `new`, which may be longer. */
static void replace_text(void **state, const char *name, const char *old, const char *new)
{
    char path[PATH], out[16384];
    size_t n, at = 0;
    in(path, state, name);
    char *data = vtest_read_file(path, &n);
    for (const char *p = data; *p;) {
        bool hit = strncmp(p, old, strlen(old)) == 0;
        assert_true(at + strlen(new) + 1 < sizeof out);
        if (hit) {
            memcpy(out + at, new, strlen(new));
            at += strlen(new);
            p += strlen(old);
        } else {
            out[at++] = *p++;
        }
    }
    assert_true(at != n || memcmp(out, data, n) != 0);
    vtest_write_file(path, out, at);
    free(data);
}

static void refuse(void **state, const char *name, vptq_status code, const char *part)
{
    char path[PATH];
    vptq_checkpoint c;
    vptq_err err = {0};
    in(path, state, name);
    assert_fails(vptq_checkpoint_open(&ctx, path, NULL, &c, &err), code, &err, part);
}

static void open_in(void **state, const char *name, vptq_checkpoint *c)
{
    char path[PATH];
    vptq_err err = {0};
    in(path, state, name);
    assert_ok(vptq_checkpoint_open(&ctx, path, NULL, c, &err), &err);
}

static void fingerprint(const char *path, int threads, char hex[17])
{
    vptq_ctx own = {.threads = threads};
    vptq_checkpoint c;
    vptq_err err = {0};
    assert_ok(vptq_checkpoint_open(&own, path, NULL, &c, &err), &err);
    assert_ok(vptq_checkpoint_fingerprint(&c, &own, hex, &err), &err);
    assert_int_equal(strlen(hex), 16);
    vptq_checkpoint_release(&c);
}

static void fingerprint_in(void **state, const char *name, char hex[17])
{
    char path[PATH];
    in(path, state, name);
    fingerprint(path, 1, hex);
}

/* ---- plain models ---- */

static void test_hugging_face_directory(void **state)
{
    (void)state;
    vptq_checkpoint c;
    vptq_vocab v;
    vptq_err err = {0};
    assert_ok(vptq_checkpoint_open(&ctx, LLAMA3, NULL, &c, &err), &err);
    assert_int_equal(c.kind, VPTQ_CKPT_HF);
    assert_string_equal(c.path, LLAMA3);
    assert_int_equal(c.desc.hidden, 32);
    assert_int_equal(c.desc.rope_scaling, VPTQ_ROPE_LLAMA3);
    assert_int_equal(c.storage, VPTQ_F32);
    assert_non_null(c.config);
    assert_non_null(vptq_tensor_find(&c.set, "lm_head.weight"));
    assert_int_equal(c.quantized_count, 0);
    assert_null(vptq_checkpoint_quantized(&c, VWORK_PLAIN));
    assert_null(c.tokenizer);
    assert_fails(vptq_checkpoint_vocab(&c, &ctx, &v, &err), VPTQ_E_FORMAT, &err,
                 "--tokenizer FILE");
    vptq_checkpoint_release(&c);
    assert_ok(vptq_checkpoint_open(&ctx, "tests/golden/tiny_mistral", NULL, &c, &err), &err);
    assert_int_equal(c.storage, VPTQ_BF16);
    vptq_checkpoint_release(&c);
}

static void test_tokenizer_next_to_the_model(void **state)
{
    vptq_checkpoint c;
    vptq_checkpoint_options opt = {.tokenizer = "elsewhere/t.json"};
    char path[PATH];
    vptq_err err = {0};
    vwork_make(*state);
    write_text(state, "base/tokenizer.model", "");
    open_in(state, "base", &c);
    assert_string_equal(vptq_path_base(c.tokenizer), "tokenizer.model");
    vptq_checkpoint_release(&c);
    write_text(state, "base/tokenizer.json", "");
    open_in(state, "base", &c);
    assert_string_equal(vptq_path_base(c.tokenizer), "tokenizer.json");
    vptq_checkpoint_release(&c);
    open_in(state, "work", &c); /* the base model's tokenizer */
    assert_string_equal(vptq_path_base(c.tokenizer), "tokenizer.json");
    vptq_checkpoint_release(&c);
    in(path, state, "base");
    assert_ok(vptq_checkpoint_open(&ctx, path, &opt, &c, &err), &err);
    assert_string_equal(c.tokenizer, "elsewhere/t.json");
    vptq_checkpoint_release(&c);
}

static void test_gguf_file(void **state)
{
    vgguf w;
    char path[PATH];
    vptq_checkpoint c;
    vptq_vocab v;
    vptq_err err = {0};
    in(path, state, "x.gguf");
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_write(&w, path);
    open_in(state, "x.gguf", &c);
    assert_int_equal(c.kind, VPTQ_CKPT_GGUF);
    assert_non_null(c.gguf);
    assert_non_null(vptq_tensor_find(&c.set, "model.layers.1.mlp.up_proj.weight"));
    assert_int_equal(c.storage, VPTQ_F32);
    assert_null(c.tokenizer);
    vptq_checkpoint_release(&c);
    write_text(state, "tokenizer.json", "");
    open_in(state, "x.gguf", &c);
    assert_string_equal(vptq_path_base(c.tokenizer), "tokenizer.json");
    vptq_checkpoint_release(&c);
    /* its own tokenizer takes precedence over one in the same directory */
    vgguf_str(&w, "tokenizer.ggml.model", "nonesuch");
    vgguf_write(&w, path);
    open_in(state, "x.gguf", &c);
    assert_ptr_equal(c.tokenizer, c.path);
    vptq_status st = vptq_checkpoint_vocab(&c, &ctx, &v, &err);
    assert_true(st == VPTQ_E_UNSUPPORTED || st == VPTQ_E_FORMAT);
    vptq_checkpoint_release(&c);
    vgguf_free(&w);
}

static void test_llama2c_file(void **state)
{
    (void)state;
    char path[PATH], tokens[PATH];
    vptq_checkpoint c;
    vptq_vocab v;
    vptq_err err = {0};
    if (!vtest_data(path, sizeof path, "models/stories260K/stories260K.bin") ||
        !vtest_data(tokens, sizeof tokens, "models/stories260K/tok512.bin"))
        skip();
    assert_ok(vptq_checkpoint_open(&ctx, path, NULL, &c, &err), &err);
    assert_int_equal(c.kind, VPTQ_CKPT_LLAMA2C);
    assert_int_equal(c.desc.vocab, 512);
    assert_null(c.tokenizer);
    vptq_checkpoint_release(&c);
    vptq_checkpoint_options opt = {.tokenizer = tokens};
    assert_ok(vptq_checkpoint_open(&ctx, path, &opt, &c, &err), &err);
    assert_ok(vptq_checkpoint_vocab(&c, &ctx, &v, &err), &err);
    assert_int_equal(v.count, 512);
    vptq_vocab_release(&v);
    vptq_checkpoint_release(&c);
}

/* ---- quantized models ---- */

static void check_quantized(const vptq_checkpoint *c)
{
    assert_int_equal(c->quantized_count, 2);
    const vptq_packed_matrix *m = vptq_checkpoint_quantized(c, VWORK_PLAIN);
    assert_non_null(m);
    assert_true(m->vq.shape.v == 4 && m->vq.shape.k == 16 && m->vq.shape.k_res == 0);
    m = vptq_checkpoint_quantized(c, VWORK_NORMED);
    assert_non_null(m);
    assert_true(m->vq.shape.v == 8 && m->vq.shape.in == 48 && m->vq.shape.k_res == 4);
    assert_null(vptq_checkpoint_quantized(c, "model.layers.0.mlp.down_proj"));
    assert_int_equal(c->storage, VPTQ_F16);
    assert_int_equal(c->desc.hidden, 32);
}

static void test_quantized_forms(void **state)
{
    vptq_checkpoint c;
    vwork_make(*state);
    open_in(state, "work", &c);
    assert_int_equal(c.kind, VPTQ_CKPT_WORK);
    check_quantized(&c);
    assert_string_equal(vptq_path_base(c.base->path), "base");
    assert_null(c.config);
    assert_non_null(c.base->config);
    for (size_t i = 0; i < c.set.count; i++)
        assert_int_equal(c.set.tensors[i].round_to, VPTQ_F16);
    vptq_checkpoint_release(&c);
    open_in(state, "packed", &c);
    assert_int_equal(c.kind, VPTQ_CKPT_PACKED);
    check_quantized(&c);
    assert_non_null(c.config);
    assert_null(c.base);
    vptq_checkpoint_release(&c);
    open_in(state, "x.vptq", &c);
    assert_int_equal(c.kind, VPTQ_CKPT_ARCHIVE);
    check_quantized(&c);
    assert_non_null(c.config);
    assert_null(c.tokenizer);
    vptq_checkpoint_release(&c);
}

/* Compares the values of all plain tensors, which work/ rounds on reading and the others store
 * rounded. */
static void test_quantized_forms_have_the_same_values(void **state)
{
    vptq_checkpoint c[3];
    vwork_make(*state);
    open_in(state, "work", &c[0]);
    open_in(state, "packed", &c[1]);
    open_in(state, "x.vptq", &c[2]);
    size_t compared = 0;
    for (size_t i = 0; i < c[0].set.count; i++) {
        const vptq_tensor *t = &c[0].set.tensors[i];
        float x[2][48 * 32];
        size_t rows = vptq_tensor_rows(t), n = rows * vptq_tensor_cols(t);
        vptq_err err = {0};
        assert_true(n <= 48 * 32);
        assert_ok(vptq_tensor_read(t, 0, rows, x[0], &err), &err);
        for (int k = 1; k < 3; k++) {
            const vptq_tensor *other = vptq_tensor_find(&c[k].set, t->name);
            if (!other)
                continue;
            assert_ok(vptq_tensor_read(other, 0, rows, x[1], &err), &err);
            assert_same_f32(x[1], x[0], n);
            compared++;
        }
    }
    assert_int_equal(compared, 2 * (c[0].set.count - 2));
    for (int k = 0; k < 3; k++)
        vptq_checkpoint_release(&c[k]);
}

static void add_to_archive(vptq_archive_writer *w, const char *name, const char *path)
{
    vptq_err err = {0};
    size_t n;
    char *data = vtest_read_file(path, &n);
    assert_ok(vptq_archive_add_file(w, name, data, n, 3, &err), &err);
    free(data);
}

static void test_tokenizer_inside_an_archive(void **state)
{
    char path[PATH], tokenizer[PATH], config[PATH];
    vptq_archive_writer *w = NULL;
    vptq_tensor_set set;
    vptq_checkpoint c;
    vptq_vocab v, expected;
    vptq_err err = {0};
    if (!vtest_data(tokenizer, sizeof tokenizer, "models/stories260K-hf/tokenizer.json") ||
        !vtest_data(config, sizeof config, "models/stories260K-hf/tokenizer_config.json"))
        skip();
    vwork_make(*state);
    in(path, state, "t.vptq");
    assert_ok(vptq_archive_writer_open(path, false, 1, NULL, &w, &err), &err);
    in(path, state, "packed/config.json");
    add_to_archive(w, "config.json", path);
    add_to_archive(w, "tokenizer.json", tokenizer);
    add_to_archive(w, "tokenizer_config.json", config);
    vptq_tensor_set_init(&set, NULL);
    in(path, state, "packed");
    assert_ok(vptq_hf_read_weights(path, &set, &err), &err);
    for (size_t i = 0; i < set.count; i++)
        assert_ok(varchive_add(w, &set.tensors[i], 3, &err), &err);
    assert_ok(vptq_archive_writer_commit(w, &err), &err);
    vptq_archive_writer_abort(w);
    vptq_tensor_set_release(&set);
    open_in(state, "t.vptq", &c);
    assert_ptr_equal(c.tokenizer, c.path);
    assert_ok(vptq_checkpoint_vocab(&c, &ctx, &v, &err), &err);
    assert_ok(vptq_vocab_read(tokenizer, 0, NULL, &expected, &err), &err);
    assert_int_equal(v.count, expected.count);
    assert_int_equal(v.merge_count, expected.merge_count);
    assert_int_equal(v.add_bos, expected.add_bos);
    assert_int_equal(v.bos, expected.bos);
    vptq_vocab_release(&expected);
    vptq_vocab_release(&v);
    vptq_checkpoint_release(&c);
}

static void test_golden_packed_model(void **state)
{
    char path[PATH];
    static const char *const configs[] = {"config.json", "config_shared.json",
                                          "config_algorithm_raw.json"};
    char name[PATH];
    make_dir(state, "m");
    for (int i = 0; i < 3; i++) {
        vptq_checkpoint c;
        snprintf(name, sizeof name, "golden/vptq_model_stories260K/%s", configs[i]);
        if (!vtest_data(path, sizeof path, name))
            skip();
        vtest_copy_file(path, *state, "m/config.json");
        if (!vtest_data(path, sizeof path, "golden/vptq_model_stories260K/model.safetensors"))
            skip();
        vtest_copy_file(path, *state, "m/model.safetensors");
        open_in(state, "m", &c);
        assert_int_equal(c.kind, VPTQ_CKPT_PACKED);
        assert_int_equal(c.quantized_count, 35);
        vptq_checkpoint_release(&c);
    }
}

/* A tied embedding under the name of the head alone is the same model. */
static void test_tied_embedding_as_head(void **state)
{
    static const char old[] = "\"model.embed_tokens.weight\":",
                      new[] = "\"lm_head.weight\":           ";
    char path[PATH], a[17], b[17];
    vptq_err err = {0};
    size_t n, at = 0;
    in(path, state, "tied");
    assert_ok(vptq_dir_make(path, &err), &err);
    vtest_copy_file("tests/golden/tiny_qwen2/config.json", *state, "tied/config.json");
    in(path, state, "tied/model.safetensors");
    char *data = vtest_read_file("tests/golden/tiny_qwen2/model.safetensors", &n);
    while (memcmp(data + at, old, sizeof old - 1) != 0)
        assert_true(++at + sizeof old < n);
    memcpy(data + at, new, sizeof new - 1);
    vtest_write_file(path, data, n);
    free(data);
    fingerprint("tests/golden/tiny_qwen2", 1, a);
    fingerprint_in(state, "tied", b);
    assert_string_equal(a, b);
    replace_text(state, "tied/config.json", "\"tie_word_embeddings\": true",
                 "\"tie_word_embeddings\": false");
    fingerprint_in(state, "tied", b);
    assert_string_not_equal(a, b);
}

/* ---- fingerprints ---- */

static void test_fingerprint_contents(void **state)
{
    char a[17], b[17], path[PATH];
    vwork_make(*state);
    fingerprint(LLAMA3, 1, a);
    fingerprint(LLAMA3, 3, b);
    assert_string_equal(a, b);
    fingerprint_in(state, "base", b); /* another directory */
    assert_string_equal(a, b);
    replace_text(state, "base/config.json", "\"use_cache\": true", "\"use_cache\": false");
    fingerprint_in(state, "base", b); /* a change that affects no result */
    assert_string_equal(a, b);
    replace_text(state, "base/config.json", "\"rms_norm_eps\": 1e-06",
                 "\"rms_norm_eps\": 1e-05");
    fingerprint_in(state, "base", b);
    assert_string_not_equal(a, b);
    vtest_copy_file(LLAMA3 "/config.json", *state, "base/config.json");
    in(path, state, "base/model.safetensors");
    size_t n;
    free(vtest_read_file(path, &n));
    damage(state, "base/model.safetensors", n - 4);
    fingerprint_in(state, "base", b);
    assert_string_not_equal(a, b);
}

static void test_fingerprint_of_quantized_forms(void **state)
{
    char work[17], packed[17], archive[17], other[17];
    vwork_make(*state);
    fingerprint_in(state, "work", work);
    fingerprint_in(state, "packed", packed);
    fingerprint_in(state, "x.vptq", archive);
    assert_string_equal(packed, archive); /* the same tensors */
    assert_string_not_equal(work, packed);
    char path[PATH];
    in(path, state, "work/layer_001_down_proj.safetensors");
    assert_int_equal(remove(path), 0);
    in(path, state, "work");
    vwork_report(path, 1);
    fingerprint_in(state, "work", other);
    assert_string_not_equal(work, other);
}

/* ---- errors ---- */

static void test_refuses_files_that_are_not_models(void **state)
{
    refuse(state, "absent", VPTQ_E_IO, "absent");
    make_dir(state, "empty");
    refuse(state, "empty", VPTQ_E_FORMAT, "neither config.json");
    make_dir(state, "hub/snapshots");
    refuse(state, "hub", VPTQ_E_FORMAT, "keeps its models in snapshots/REVISION");
    write_text(state, "text", "no model at all");
    refuse(state, "text", VPTQ_E_FORMAT, "is not a model: expected");
    write_text(state, "nothing", "");
    refuse(state, "nothing", VPTQ_E_FORMAT, "is not a model: expected");
    write_text(state, "short.gguf", "GGUF\3");
    refuse(state, "short.gguf", VPTQ_E_FORMAT, "short.gguf");
    vtest_copy_file(LLAMA3 "/model.safetensors", *state, "model.safetensors");
    refuse(state, "model.safetensors", VPTQ_E_FORMAT, "directory (not a file in it)");
}

static void test_refuses_broken_directories(void **state)
{
    make_dir(state, "m");
    write_text(state, "m/config.json", "{]");
    refuse(state, "m", VPTQ_E_FORMAT, "m/config.json");
    vtest_copy_file(LLAMA3 "/config.json", *state, "m/config.json");
    refuse(state, "m", VPTQ_E_FORMAT, "safetensors");
    write_text(state, "m/model.safetensors", "12345");
    refuse(state, "m", VPTQ_E_FORMAT, "m/model.safetensors");
    replace_text(state, "m/config.json", "LlamaForCausalLM", "MambaForCausalLM");
    refuse(state, "m", VPTQ_E_UNSUPPORTED, "MambaForCausalLM");
    vtest_copy_file(LLAMA3 "/config.json", *state, "m/config.json");
    replace_text(state, "m/config.json", "\"use_cache\": true",
                 "\"quantization_config\": {\"quant_method\": \"bitsandbytes\"}");
    refuse(state, "m", VPTQ_E_UNSUPPORTED, "'bitsandbytes'");
}

static void test_refuses_unknown_matrices(void **state)
{
    vwork_make(*state);
    replace_text(state, "packed/config.json", "layers.0.self_attn.q_proj",
                 "layers.0.self_attn.x_proj");
    refuse(state, "packed", VPTQ_E_FORMAT, "lists no linear");
    replace_text(state, "packed/config.json", "layers.1.mlp.down_proj", "layers.1.x");
    refuse(state, "packed", VPTQ_E_FORMAT, "lists no linear layer of the model");
}

static void test_refuses_work_of_another_model(void **state)
{
    char path[PATH], base[PATH];
    vptq_checkpoint c;
    vptq_err err = {0};
    vwork_make(*state);
    make_dir(state, "moved");
    vtest_copy_file(LLAMA3 "/config.json", *state, "moved/config.json");
    vtest_copy_file(LLAMA3 "/model.safetensors", *state, "moved/model.safetensors");
    replace_text(state, "base/config.json", "\"rms_norm_eps\": 1e-06",
                 "\"rms_norm_eps\": 1e-05");
    refuse(state, "work", VPTQ_E_MISMATCH, "fingerprint");
    in(path, state, "base/config.json");
    assert_int_equal(remove(path), 0);
    refuse(state, "work", VPTQ_E_FORMAT, "work: its base model");
    in(path, state, "work");
    in(base, state, "moved");
    vptq_checkpoint_options opt = {.base = base};
    assert_ok(vptq_checkpoint_open(&ctx, path, &opt, &c, &err), &err);
    check_quantized(&c);
    vptq_checkpoint_release(&c);
    opt.base = path; /* a work directory as its own base */
    assert_fails(vptq_checkpoint_open(&ctx, path, &opt, &c, &err), VPTQ_E_FORMAT, &err,
                 "expected a plain model");
}

static void test_refuses_broken_work(void **state)
{
    vwork_make(*state);
    vtest_copy_file("tests/golden/ggml_quants.bin", *state, "work/layer_009_x.safetensors");
    refuse(state, "work", VPTQ_E_FORMAT, "layer_009_x.safetensors");
    char path[PATH];
    in(path, state, "work/layer_009_x.safetensors");
    assert_int_equal(remove(path), 0);
    in(path, state, "work/layer_000_q_proj.safetensors");
    vtest_copy_file(path, *state, "work/layer_000_again.safetensors");
    in(path, state, "work");
    vwork_report(path, 3);
    refuse(state, "work", VPTQ_E_FORMAT, "duplicate matrix 'model.layers.0.self_attn.q_proj'");
    in(path, state, "work/layer_000_again.safetensors");
    assert_int_equal(remove(path), 0);
    size_t n;
    in(path, state, "work/layer_000_q_proj.safetensors");
    free(vtest_read_file(path, &n));
    damage(state, "work/layer_000_q_proj.safetensors", n - 1);
    refuse(state, "work", VPTQ_E_CHECKSUM, "layer_000_q_proj.safetensors");
    damage(state, "work/layer_000_q_proj.safetensors", n - 1);
    replace_text(state, "work/quantize.json", "\"f16\"", "\"bf16\"");
    refuse(state, "work", VPTQ_E_CHECKSUM, "quantize.json: the file is damaged: its checksum");
    in(path, state, "work/quantize.json");
    vtest_reseal(path);
    refuse(state, "work", VPTQ_E_MISMATCH, "quantize.json says BF16");
    replace_text(state, "work/quantize.json", "\"bf16\"", "\"f32\"");
    refuse(state, "work", VPTQ_E_FORMAT, "expected f16 or bf16");
    replace_text(state, "work/quantize.json", "base_model", "basemodel");
    refuse(state, "work", VPTQ_E_FORMAT, "'base_model' is missing");
}

static void test_truncated_archive(void **state)
{
    char path[PATH];
    size_t n;
    vwork_make(*state);
    in(path, state, "x.vptq");
    char *data = vtest_read_file(path, &n);
    vtest_write_file(path, data, n / 2);
    vptq_checkpoint c;
    vptq_err err = {0};
    vptq_status st = vptq_checkpoint_open(&ctx, path, NULL, &c, &err);
    assert_true(st == VPTQ_E_FORMAT || st == VPTQ_E_CHECKSUM);
    assert_non_null(strstr(err.text, "x.vptq"));
    free(data);
}

/* ---- memory ---- */

static vptq_status open_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_ctx own = {.mem = mem, .threads = 1};
    vptq_checkpoint c;
    char hex[17];
    vptq_status st = vptq_checkpoint_open(&own, arg, NULL, &c, err);
    if (st)
        return st;
    st = vptq_checkpoint_fingerprint(&c, &own, hex, err);
    vptq_checkpoint_release(&c);
    return st;
}

/* A text that is tiny in the archive is checked against the limit for a text in a directory
 * before it is unpacked. */
static void test_large_config_in_an_archive(void **state)
{
    enum { BYTES = (64 << 20) + 1 };
    char path[PATH];
    vptq_archive_writer *w = NULL;
    vptq_err err = {0};
    char *spaces = vtest_alloc(BYTES, 1);
    memset(spaces, ' ', BYTES);
    in(path, state, "large.vptq");
    assert_ok(vptq_archive_writer_open(path, false, 1, NULL, &w, &err), &err);
    assert_ok(vptq_archive_add_file(w, "config.json", spaces, BYTES, 1, &err), &err);
    assert_ok(vptq_archive_writer_commit(w, &err), &err);
    vptq_archive_writer_abort(w);
    refuse(state, "large.vptq", VPTQ_E_FORMAT,
           "file 'config.json' has 67108865 bytes, expected at most 67108864");
    free(spaces);
}

static void test_out_of_memory(void **state)
{
    static const char *const names[] = {"base", "work", "packed", "x.vptq"};
    vwork_make(*state);
    for (int i = 0; i < 4; i++) {
        char path[PATH];
        in(path, state, names[i]);
        assert_true(vtest_oom_walk(open_all, path) > 3);
    }
}

VTEST_MAIN(cmocka_unit_test(test_hugging_face_directory),
           scratch_test(test_tokenizer_next_to_the_model), scratch_test(test_gguf_file),
           cmocka_unit_test(test_llama2c_file), scratch_test(test_quantized_forms),
           scratch_test(test_quantized_forms_have_the_same_values),
           scratch_test(test_tokenizer_inside_an_archive),
           scratch_test(test_golden_packed_model), scratch_test(test_tied_embedding_as_head),
           scratch_test(test_fingerprint_contents),
           scratch_test(test_fingerprint_of_quantized_forms),
           scratch_test(test_refuses_files_that_are_not_models),
           scratch_test(test_refuses_broken_directories),
           scratch_test(test_refuses_unknown_matrices),
           scratch_test(test_refuses_work_of_another_model),
           scratch_test(test_refuses_broken_work), scratch_test(test_truncated_archive),
           scratch_test(test_large_config_in_an_archive), scratch_test(test_out_of_memory))
