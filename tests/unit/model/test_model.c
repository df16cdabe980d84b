/* Opening models: weights found by name and shape, read row by row, counted in bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "lib/model/model.h"
#include "tests/support/vgguf.h"
#include "tests/support/vtest.h"
#include "tests/support/vwork.h"

enum { PATH = 4096, MAX_WEIGHTS = 48 * 32 };

static const vptq_ctx ctx = {.threads = 2};

/* ---- helpers ---- */

static void scratch_path(char path[PATH], void **state, const char *name)
{
    vtest_path(path, PATH, *state, name);
}

static void open_model_in(void **state, const char *name, vptq_model *m)
{
    char path[PATH];
    vptq_err err = {0};
    scratch_path(path, state, name);
    assert_ok(vptq_model_open(&ctx, path, NULL, false, m, &err), &err);
}

/* Copies a golden model to m. */
static void copy_golden(void **state, const char *golden)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    vptq_err err = {0};
    char dir[PATH];
    scratch_path(dir, state, "m");
    assert_ok(vptq_dir_make(dir, &err), &err);
    for (int i = 0; i < 2; i++) {
        char from[PATH];
        snprintf(from, sizeof from, "tests/golden/%s/%s", golden, files[i]);
        vtest_copy_file(from, dir, files[i]);
    }
}

/* Replaces the first `old` in a file with `new` of the same length. */
static void patch(void **state, const char *name, const char *old, const char *new)
{
    char path[PATH];
    size_t n, len = strlen(old), i = 0;
    assert_int_equal(len, strlen(new));
    scratch_path(path, state, name);
    char *data = vtest_read_file(path, &n);
    while (i + len <= n && memcmp(data + i, old, len) != 0)
        i++;
    assert_true(i + len <= n);
    memcpy(data + i, new, len);
    vtest_write_file(path, data, n);
    free(data);
}

static void expect_failure(void **state, const char *name, vptq_status code, const char *part)
{
    char path[PATH];
    vptq_model m;
    vptq_err err = {0};
    scratch_path(path, state, name);
    assert_fails(vptq_model_open(&ctx, path, NULL, false, &m, &err), code, &err, part);
}

/* ---- weights ---- */

static void test_families(void **state)
{
    (void)state;
    static const char *const golden[] = {"tests/golden/tiny_llama3",
                                         "tests/golden/tiny_mistral", "tests/golden/tiny_qwen2",
                                         "tests/golden/tiny_qwen3"};
    for (int i = 0; i < 4; i++) {
        vptq_model m;
        vptq_err err = {0};
        assert_ok(vptq_model_open(&ctx, golden[i], NULL, false, &m, &err), &err);
        assert_ptr_equal(m.desc, &m.ckpt.desc);
        assert_null(m.tokenizer);
        assert_int_equal(m.head == m.embedding, m.desc->tied);
        for (uint32_t l = 0; l < m.desc->layers; l++) {
            const vptq_block *b = &m.blocks[l];
            assert_int_equal(b->norm[VPTQ_BLOCK_NORM_Q] != NULL, i == 3);
            assert_int_equal(b->norm[VPTQ_BLOCK_NORM_K] != NULL, i == 3);
            assert_null(b->norm[VPTQ_BLOCK_NORM_ATTENTION_OUT]);
            assert_int_equal(b->linear_bias[VPTQ_LINEAR_Q] != NULL, i == 2);
            assert_null(b->linear_bias[VPTQ_LINEAR_DOWN]);
            assert_int_equal(b->linear[VPTQ_LINEAR_DOWN].cols, m.desc->intermediate);
            assert_non_null(b->linear[VPTQ_LINEAR_GATE].tensor);
        }
        vptq_model_release(&m);
    }
}

/* A bias in a GGUF file is used even if the first block has none. */
static void test_optional_bias(void **state)
{
    vgguf w;
    char path[PATH];
    vptq_model m;
    const float bias[VGGUF_HIDDEN] = {1};
    const uint64_t shape[1] = {VGGUF_HIDDEN};
    vgguf_init(&w);
    vgguf_model(&w, "llama", 0);
    vgguf_tensor(&w, "blk.1.attn_output.bias", 0, 1, shape, bias, sizeof bias);
    scratch_path(path, state, "x.gguf");
    vgguf_write(&w, path);
    open_model_in(state, "x.gguf", &m);
    assert_null(m.blocks[0].linear_bias[VPTQ_LINEAR_O]);
    assert_non_null(m.blocks[1].linear_bias[VPTQ_LINEAR_O]);
    assert_ptr_equal(m.head, m.embedding);
    vptq_model_release(&m);
    vgguf_free(&w);
}

static void test_window(void **state)
{
    vptq_model_desc d = {.context = 4096};
    const vptq_model m = {.desc = &d};
    (void)state;
    assert_int_equal(vptq_model_window(&m, 0), 2048);
    assert_int_equal(vptq_model_window(&m, 8192), 8192);
    d.context = 512;
    assert_int_equal(vptq_model_window(&m, 0), 512);
    assert_int_equal(vptq_model_window(&m, 513), 513);
}

/* ---- unused tensors ---- */

/* Collects log lines as "LEVEL text\n". */
static void take_log(void *user, vptq_log_level level, const char *text)
{
    char *log = user;
    const size_t at = strlen(log);
    snprintf(log + at, PATH - at, "%d %s\n", (int)level, text);
}

/* Copies a golden model to m, with vectors of 32 ones added. */
static void add_vectors(void **state, const char *golden, const char *const *names,
                        size_t count)
{
    vptq_err err = {0};
    vptq_tensor_set set;
    char path[PATH];
    float ones[32];
    for (size_t i = 0; i < 32; i++)
        ones[i] = 1;
    copy_golden(state, golden);
    scratch_path(path, state, "m/model.safetensors");
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_safetensors_read(path, &set, NULL, &err), &err);
    for (size_t i = 0; i < count; i++) {
        const vptq_tensor t = {.name = names[i],
                               .dims = 1,
                               .shape = {32},
                               .data = (const uint8_t *)ones,
                               .bytes = sizeof ones,
                               .file = path};
        assert_ok(vptq_tensor_set_add(&set, &t, &err), &err);
    }
    assert_ok(vptq_tensor_set_finish(&set, &err), &err);
    assert_ok(vptq_safetensors_save(path, set.tensors, set.count, NULL, 0, &err), &err);
    vptq_tensor_set_release(&set);
}

/* Opens m and expects its log, where % stands for the path of m. */
static void expect_log(void **state, bool quiet, const char *format, vptq_model *m)
{
    char path[PATH], log[PATH] = "", expected[PATH];
    vptq_err err = {0};
    const vptq_ctx logged = {.threads = 1, .log = take_log, .user = log};
    const vptq_checkpoint_options opt = {.quiet = quiet};
    scratch_path(path, state, "m");
    assert_ok(vptq_model_open(&logged, path, &opt, false, m, &err), &err);
    size_t n = 0;
    for (const char *f = format; *f && n < PATH; f++)
        if (*f == '%')
            n += (size_t)snprintf(expected + n, PATH - n, "%s", path);
        else
            expected[n++] = *f;
    expected[n] = 0;
    assert_string_equal(log, expected);
}

/* transformers makes a bias only where the configuration of the family declares it, and ignores
 * others in the file. */
static void test_undeclared_biases(void **state)
{
    static const char *const names[] = {
        "model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.o_proj.bias",
        "model.layers.1.mlp.down_proj.bias", "model.layers.0.self_attn.rotary_emb.inv_freq"};
    vptq_model m;
    char plain[17], with[17];
    vptq_err err = {0};
    add_vectors(state, "tiny_llama3", names, 0);
    expect_log(state, false, "", &m);
    assert_ok(vptq_checkpoint_fingerprint(&m.ckpt, &ctx, plain, &err), &err);
    vptq_model_release(&m);

    add_vectors(state, "tiny_llama3", names, 3);
    expect_log(state, false,
               "3 unused tensor 'model.layers.0.self_attn.q_proj.bias'\n"
               "3 unused tensor 'model.layers.1.mlp.down_proj.bias'\n"
               "3 unused tensor 'model.layers.1.self_attn.o_proj.bias'\n"
               "1 %: ignored 3 biases that config.json does not declare, as transformers does: "
               "'model.layers.0.self_attn.q_proj.bias', 'model.layers.1.mlp.down_proj.bias', "
               "'model.layers.1.self_attn.o_proj.bias'\n",
               &m);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        assert_true(!m.blocks[0].linear_bias[l] && !m.blocks[1].linear_bias[l]);
    for (int i = 0; i < 3; i++)
        assert_null(vptq_tensor_find(&m.ckpt.set, names[i]));
    assert_non_null(vptq_tensor_find(&m.ckpt.set, "model.layers.1.mlp.down_proj.weight"));
    /* the same results, the same fingerprint */
    assert_ok(vptq_checkpoint_fingerprint(&m.ckpt, &ctx, with, &err), &err);
    assert_string_equal(with, plain);
    vptq_model_release(&m);

    add_vectors(state, "tiny_qwen2", names + 1, 1);
    expect_log(state, true, "", &m);
    assert_null(m.blocks[1].linear_bias[VPTQ_LINEAR_O]);
    assert_non_null(m.blocks[1].linear_bias[VPTQ_LINEAR_Q]);
    vptq_model_release(&m);

    add_vectors(state, "tiny_llama3", names + 3, 1);
    expect_log(state, false, "", &m); /* of old releases, and harmless */
    vptq_model_release(&m);
}

/* In a packed model the entry of a matrix decides. */
static void test_denied_bias(void **state)
{
    static const char denied[] = "model.layers.0.self_attn.k_proj.bias";
    vptq_model m;
    copy_golden(state, "packed_qwen2");
    patch(state, "m/config.json", "\"bias\": true", "\"bias\":false");
    expect_log(state, false,
               "3 unused tensor 'model.layers.0.self_attn.k_proj.bias'\n"
               "1 %: ignored 1 bias that config.json does not declare, as transformers does: "
               "'model.layers.0.self_attn.k_proj.bias'\n",
               &m);
    assert_null(m.blocks[0].linear_bias[VPTQ_LINEAR_K]);
    assert_null(vptq_tensor_find(&m.ckpt.set, denied));
    assert_non_null(m.blocks[0].linear_bias[VPTQ_LINEAR_V]);
    assert_non_null(m.blocks[1].linear_bias[VPTQ_LINEAR_K]);
    vptq_model_release(&m);
}

static void test_unused_tensors(void **state)
{
    static const char *const names[] = {"vision.d", "model.layers.0.self_attn.q_norm.weight",
                                        "model.layers.2.mlp.up_proj.bias", "vision.c"};
    vptq_model m;
    add_vectors(state, "tiny_llama3", names, 1);
    expect_log(
        state, false,
        "3 unused tensor 'vision.d'\n1 %: a model of this architecture does not use 1 of "
        "its tensors: 'vision.d'\n",
        &m);
    vptq_model_release(&m);
    add_vectors(state, "tiny_llama3", names, 4);
    expect_log(state, false,
               "3 unused tensor 'model.layers.0.self_attn.q_norm.weight'\n"
               "3 unused tensor 'model.layers.2.mlp.up_proj.bias'\n"
               "3 unused tensor 'vision.c'\n3 unused tensor 'vision.d'\n"
               "1 %: a model of this architecture does not use 4 of its tensors: "
               "'model.layers.0.self_attn.q_norm.weight', 'model.layers.2.mlp.up_proj.bias', "
               "'vision.c', ..\n",
               &m);
    vptq_model_release(&m);
}

/* ---- bad models ---- */

static void test_missing_tensors(void **state)
{
    static const struct {
        const char *golden, *old, *new;
    } cases[] = {
        {"tiny_llama3", "model.layers.1.mlp.up_proj.weight",
         "model.layers.1.mlp.xp_proj.weight"},
        {"tiny_llama3", "model.embed_tokens.weight", "model.embed_tokenz.weight"},
        {"tiny_llama3", "model.norm.weight", "model.norm.height"},
        {"tiny_llama3", "lm_head.weight", "lm_hood.weight"},
        {"tiny_llama3", "model.layers.0.input_layernorm.weight",
         "model.layers.0.input_layernorm.height"},
        {"tiny_qwen2", "model.layers.1.self_attn.v_proj.bias",
         "model.layers.1.self_attn.v_proj.byas"},
        {"tiny_qwen3", "model.layers.0.self_attn.k_norm.weight",
         "model.layers.0.self_attn.k_norm.height"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        copy_golden(state, cases[i].golden);
        patch(state, "m/model.safetensors", cases[i].old, cases[i].new);
        expect_failure(state, "m", VPTQ_E_FORMAT, cases[i].old);
    }
}

static void test_wrong_shapes_and_types(void **state)
{
    copy_golden(state, "tiny_llama3");
    patch(state, "m/config.json", "\"intermediate_size\": 48", "\"intermediate_size\": 40");
    expect_failure(state, "m", VPTQ_E_SHAPE, "[48, 32], expected [40, 32]");
    copy_golden(state, "tiny_llama3");
    patch(state, "m/model.safetensors", "\"F32\"", "\"I32\"");
    expect_failure(state, "m", VPTQ_E_UNSUPPORTED, "holds I32 values");
    vwork_make(*state);
    patch(state, "packed/config.json", "\"num_attention_heads\": 4",
          "\"num_attention_heads\": 2");
    expect_failure(state, "packed", VPTQ_E_SHAPE, "has shape [32, 32], expected [16, 32]");
}

static void test_missing_tokenizer(void **state)
{
    (void)state;
    vptq_model m;
    vptq_err err = {0};
    assert_fails(vptq_model_open(&ctx, "tests/golden/tiny_llama3", NULL, true, &m, &err),
                 VPTQ_E_FORMAT, &err, "--tokenizer FILE");
}

static void test_model_with_tokenizer(void **state)
{
    (void)state;
    char path[PATH];
    vptq_model m;
    vptq_err err = {0};
    if (!vtest_data(path, sizeof path, "models/stories260K-hf/config.json"))
        skip();
    *strrchr(path, '/') = '\0';
    assert_ok(vptq_model_open(&ctx, path, NULL, true, &m, &err), &err);
    assert_non_null(m.tokenizer);
    assert_int_equal(m.vocab.count, 512);
    vptq_model_release(&m);
}

/* Copies stories260K, whose tokenizer has 512 tokens, to m, with another number of entries in
 * its vocabulary, and opens it. */
static vptq_status open_resized(void **state, const char *stories, uint32_t entries, bool quiet,
                                char log[PATH], vptq_err *err)
{
    static const char *const files[] = {"config.json", "tokenizer.json"};
    const vptq_ctx logged = {.threads = 1, .log = take_log, .user = log};
    const vptq_checkpoint_options opt = {.quiet = quiet};
    char path[PATH], dir[PATH], key[32];
    vptq_tensor_set set;
    vptq_model m;
    scratch_path(dir, state, "m");
    assert_ok(vptq_dir_make(dir, err), err);
    for (int i = 0; i < 2; i++) {
        vtest_path(path, PATH, stories, files[i]);
        vtest_copy_file(path, dir, files[i]);
    }
    snprintf(key, sizeof key, "\"vocab_size\":%4u", entries);
    patch(state, "m/config.json", "\"vocab_size\": 512", key);
    vptq_tensor_set_init(&set, NULL);
    vtest_path(path, PATH, stories, "model.safetensors");
    assert_ok(vptq_safetensors_read(path, &set, NULL, err), err);
    uint16_t *embedding = vtest_alloc((size_t)entries * 64, sizeof *embedding);
    for (size_t i = 0; i < set.count; i++)
        if (!strcmp(set.tensors[i].name, VPTQ_EMBEDDING_NAME)) {
            memset(embedding, 0, (size_t)entries * 64 * sizeof *embedding);
            set.tensors[i].shape[0] = entries;
            set.tensors[i].data = (const uint8_t *)embedding;
            set.tensors[i].bytes = (size_t)entries * 64 * sizeof *embedding;
        }
    scratch_path(path, state, "m/model.safetensors");
    assert_ok(vptq_safetensors_save(path, set.tensors, set.count, NULL, 0, err), err);
    free(embedding);
    vptq_tensor_set_release(&set);
    log[0] = 0;
    const vptq_status st = vptq_model_open(&logged, dir, &opt, true, &m, err);
    if (!st)
        vptq_model_release(&m);
    return st;
}

/* A tokenizer of another size belongs to another model, unless the embedding is padded. */
static void test_size_of_tokenizer(void **state)
{
    static const uint32_t padded[] = {512, 576, 960}, others[] = {513, 600, 1024};
    char stories[PATH], log[PATH], size[32];
    vptq_err err = {0};
    if (!vtest_data(stories, sizeof stories, "models/stories260K-hf/config.json"))
        skip();
    *strrchr(stories, '/') = '\0';
    for (int i = 0; i < 3; i++) {
        assert_ok(open_resized(state, stories, padded[i], false, log, &err), &err);
        snprintf(size, sizeof size, "vocabulary %u entries", padded[i]);
        if (padded[i] == 512) {
            assert_string_equal(log, "");
        } else {
            assert_int_equal(strncmp(log, "2 ", 2), 0);
            assert_non_null(strstr(log, size));
            assert_non_null(strstr(log, "; the others are taken for padding\n"));
        }
        assert_ok(open_resized(state, stories, others[i], true, log, &err), &err);
        assert_string_equal(log, "");
        assert_ok(open_resized(state, stories, others[i], false, log, &err), &err);
        snprintf(size, sizeof size, "vocabulary %u entries", others[i]);
        assert_int_equal(strncmp(log, "1 ", 2), 0);
        assert_non_null(
            strstr(log, "tokenizer.json: the tokenizer has 512 tokens, the model's"));
        assert_non_null(strstr(log, size));
        assert_non_null(strstr(log, "; it may belong to another model\n"));
    }
    assert_fails(open_resized(state, stories, 511, false, log, &err), VPTQ_E_MISMATCH, &err,
                 "tokenizer.json: the tokenizer has 512 tokens, the model's vocabulary 511 "
                 "entries; it belongs to another model");
}

/* ---- reading ---- */

static void read_all(const vptq_weight *w, vptq_device *dev, size_t step, float x[MAX_WEIGHTS])
{
    vptq_err err = {0};
    assert_true(w->rows * w->cols <= MAX_WEIGHTS);
    for (size_t r = 0; r < w->rows; r += step) {
        size_t n = w->rows - r < step ? w->rows - r : step;
        assert_ok(vptq_weight_read(w, dev, r, n, x + r * w->cols, &err), &err);
    }
}

/* Rows have the same bits on any device, with any number of threads and rows per call. */
static void test_reading_in_steps(void **state)
{
    static const char *const names[] = {"ref", "cpu"};
    vptq_model m;
    vwork_make(*state);
    open_model_in(state, "work", &m);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const vptq_weight *w = &m.blocks[l == VPTQ_LINEAR_DOWN].linear[l];
        float expected[MAX_WEIGHTS], found[MAX_WEIGHTS];
        for (int i = 0; i < 6; i++) {
            vptq_ctx own = {.threads = 1 + i / 2};
            vptq_device dev;
            vptq_err err = {0};
            assert_ok(vptq_device_open(&own, names[i % 2], &dev, &err), &err);
            read_all(w, &dev, i == 0 ? w->rows : (size_t)i, i == 0 ? expected : found);
            if (i > 0)
                assert_same_f32(found, expected, w->rows * w->cols);
            vptq_device_close(&dev);
        }
    }
    vptq_model_release(&m);
}

/* A work directory, the packed directory and the archive give the same rows of every matrix. */
static void test_quantized_kinds_read_the_same(void **state)
{
    static const char *const names[] = {"work", "packed", "x.vptq"};
    vptq_model m[3];
    vptq_device dev;
    vptq_err err = {0};
    vwork_make(*state);
    assert_ok(vptq_device_open(&ctx, "ref", &dev, &err), &err);
    for (int k = 0; k < 3; k++)
        open_model_in(state, names[k], &m[k]);
    for (uint32_t layer = 0; layer < m[0].desc->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            float expected[MAX_WEIGHTS], found[MAX_WEIGHTS];
            const vptq_weight *w = &m[0].blocks[layer].linear[l];
            read_all(w, &dev, w->rows, expected);
            for (int k = 1; k < 3; k++) {
                read_all(&m[k].blocks[layer].linear[l], &dev, w->rows, found);
                assert_same_f32(found, expected, w->rows * w->cols);
            }
        }
    assert_non_null(m[0].blocks[0].linear[VPTQ_LINEAR_Q].packed);
    assert_null(m[0].blocks[0].linear[VPTQ_LINEAR_Q].tensor);
    assert_non_null(m[1].blocks[1].linear[VPTQ_LINEAR_DOWN].packed);
    for (int k = 0; k < 3; k++)
        vptq_model_release(&m[k]);
    vptq_device_close(&dev);
}

/* ---- bits ---- */

/* 15,360 weights; q of block 0: 8 x 4 index words, a codebook of 16 x 4, norm of 32; down of
 * block 1: 4 x 9 index words, codebooks of (16 + 4) x 8, norm of 48; all others 16 bits. */
static void test_bits_per_weight(void **state)
{
    static const char *const names[] = {"work", "packed", "x.vptq"};
    const double q = 8 * 4 * 32 + 16 * 4 * 16 + 2 * 32 * 16;
    const double down = 4 * 9 * 32 + (16 + 4) * 8 * 16 + 2 * 48 * 16;
    const double expected = (q + down + 16.0 * (15360 - 32 * 32 - 32 * 48)) / 15360;
    vptq_model m;
    vwork_make(*state);
    open_model_in(state, "base", &m);
    assert_true(vptq_model_bits_per_weight(&m) == 32);
    vptq_model_release(&m);
    for (int k = 0; k < 3; k++) {
        open_model_in(state, names[k], &m);
        assert_true(vptq_model_bits_per_weight(&m) == expected);
        vptq_model_release(&m);
    }
}

static void test_demo_model(void **state)
{
    (void)state;
    const char *path = getenv("VPTQ_DEMO_GGUF");
    vptq_model m;
    vptq_err err = {0};
    if (!path) {
        print_message("VPTQ_DEMO_GGUF is not set\n");
        skip();
    }
    assert_ok(vptq_model_open(&ctx, path, NULL, true, &m, &err), &err);
    assert_non_null(m.tokenizer);
    assert_true(vptq_model_bits_per_weight(&m) == 5); /* Q4_1: 20 bytes for 32 weights */
    vptq_model_release(&m);
}

/* ---- memory ---- */

static vptq_status open_model(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_ctx own = {.mem = mem, .threads = 1};
    vptq_model m;
    vptq_status st = vptq_model_open(&own, arg, NULL, false, &m, err);
    if (!st)
        vptq_model_release(&m);
    return st;
}

/* Maximum rows for products with stored weights, kept open or used once. */
static void test_gemv_rows(void **state)
{
    static const struct {
        const char *backend;
        vptq_dtype type, round_to;
        uint32_t rope_heads;
        size_t kept, once;
    } cases[] = {
        {"cpu", VPTQ_F16, VPTQ_F32, 0, 128, 8}, {"cpu", VPTQ_BF16, VPTQ_BF16, 0, 128, 8},
        {"ref", VPTQ_F32, VPTQ_F32, 0, 8, 8},   {"cpu", VPTQ_F32, VPTQ_F16, 0, 0, 0},
        {"cpu", VPTQ_F16, VPTQ_F32, 2, 0, 0},   {"cpu", VPTQ_Q8_0, VPTQ_F32, 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vptq_device dev;
        vptq_err err;
        const vptq_tensor t = {.type = cases[i].type,
                               .round_to = cases[i].round_to,
                               .rope_heads = cases[i].rope_heads};
        const vptq_weight w = {.rows = 4, .cols = 4, .tensor = &t};
        assert_ok(vptq_device_open(&ctx, cases[i].backend, &dev, &err), &err);
        assert_int_equal(vptq_weight_gemv_rows(&w, &dev, true), cases[i].kept);
        assert_int_equal(vptq_weight_gemv_rows(&w, &dev, false), cases[i].once);
        vptq_device_close(&dev);
    }
}

static void test_out_of_memory(void **state)
{
    char path[PATH];
    vwork_make(*state);
    scratch_path(path, state, "work");
    assert_true(vtest_oom_walk(open_model, path) > 3);
}

VTEST_MAIN(cmocka_unit_test(test_families), scratch_test(test_optional_bias),
           cmocka_unit_test(test_window), scratch_test(test_undeclared_biases),
           scratch_test(test_denied_bias), scratch_test(test_unused_tensors),
           scratch_test(test_missing_tensors), scratch_test(test_wrong_shapes_and_types),
           cmocka_unit_test(test_missing_tokenizer),
           cmocka_unit_test(test_model_with_tokenizer), scratch_test(test_size_of_tokenizer),
           scratch_test(test_reading_in_steps),
           scratch_test(test_quantized_kinds_read_the_same), scratch_test(test_bits_per_weight),
           cmocka_unit_test(test_demo_model), cmocka_unit_test(test_gemv_rows),
           scratch_test(test_out_of_memory))
