/* Tests llama2.c checkpoints: description, tensors, damaged files, and a real model. */
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "formats/hf/weights.h"
#include "formats/llama2c.h"
#include "tests/support/vtest.h"

/* Header of a model with dim 8, hidden 12, 2 layers, 2 heads, 1 kv head, vocabulary 5 and
 * sequence length 3. */
enum { DIM = 8, HIDDEN = 12, LAYERS = 2, KV = 4, VOCAB = 5, SEQ = 3, HALF = 2 };
enum {
    LAYER_FLOATS = DIM + 2 * DIM * DIM + 2 * KV * DIM + DIM + 3 * HIDDEN * DIM,
    TIED_FLOATS = VOCAB * DIM + LAYERS * LAYER_FLOATS + DIM + 2 * SEQ * HALF,
    UNTIED_FLOATS = TIED_FLOATS + VOCAB * DIM
};

/* Float number i of the file is i. */
static void put_model(const char *path, const int32_t header[7], size_t floats)
{
    size_t size = 28 + floats * 4;
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    memcpy(bytes, header, 28);
    for (size_t i = 0; i < floats; i++) {
        float x = (float)i;
        memcpy(bytes + 28 + i * 4, &x, 4);
    }
    vtest_write_file(path, bytes, size);
    free(bytes);
}

static const vptq_tensor *need(const vptq_tensor_set *set, const char *name, uint64_t rows,
                               uint64_t cols)
{
    const vptq_tensor *t = NULL;
    vptq_err err = {0};
    assert_ok(vptq_tensor_need(set, name, rows, cols, &t, &err), &err);
    return t;
}

static void assert_first(const vptq_tensor *t, size_t first)
{
    float x;
    memcpy(&x, t->data, 4);
    assert_true(x == (float)first);
}

static void test_layout(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vptq_tensor_set set;
    vptq_model_desc d;
    const int32_t untied[7] = {DIM, HIDDEN, LAYERS, 2, 1, -VOCAB, SEQ};
    vtest_path(path, sizeof path, *state, "m.bin");
    put_model(path, untied, UNTIED_FLOATS);
    assert_true(vptq_llama2c_is(path));
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_llama2c_read(path, &set, &d, &err), &err);
    assert_false(d.tied);
    assert_int_equal(d.vocab, VOCAB);
    assert_int_equal(d.head_dim, 4);
    assert_int_equal(d.kv_heads, 1);
    assert_int_equal(d.context, SEQ);
    assert_int_equal(set.count, 3 + 9 * LAYERS);
    size_t at = 0;
    assert_first(need(&set, "model.embed_tokens.weight", VOCAB, DIM), at);
    at += VOCAB * DIM;
    assert_first(need(&set, "model.layers.1.input_layernorm.weight", 0, DIM), at + DIM);
    at += LAYERS * DIM;
    const vptq_tensor *q = need(&set, "model.layers.1.self_attn.q_proj.weight", DIM, DIM);
    assert_first(q, at + DIM * DIM);
    assert_int_equal(q->rope_heads, 2);
    at += LAYERS * DIM * DIM;
    const vptq_tensor *k = need(&set, "model.layers.1.self_attn.k_proj.weight", KV, DIM);
    assert_first(k, at + KV * DIM);
    assert_int_equal(k->rope_heads, 1);
    at += LAYERS * KV * DIM;
    const vptq_tensor *v = need(&set, "model.layers.0.self_attn.v_proj.weight", KV, DIM);
    assert_first(v, at);
    assert_int_equal(v->rope_heads, 0);
    at += LAYERS * KV * DIM;
    assert_first(need(&set, "model.layers.0.self_attn.o_proj.weight", DIM, DIM), at);
    at += LAYERS * DIM * DIM;
    assert_first(need(&set, "model.layers.0.post_attention_layernorm.weight", 0, DIM), at);
    at += LAYERS * DIM;
    assert_first(need(&set, "model.layers.0.mlp.gate_proj.weight", HIDDEN, DIM), at);
    at += LAYERS * HIDDEN * DIM;
    assert_first(need(&set, "model.layers.0.mlp.down_proj.weight", DIM, HIDDEN), at);
    at += LAYERS * HIDDEN * DIM;
    assert_first(need(&set, "model.layers.1.mlp.up_proj.weight", HIDDEN, DIM),
                 at + HIDDEN * DIM);
    at += LAYERS * HIDDEN * DIM;
    assert_first(need(&set, "model.norm.weight", 0, DIM), at);
    at += DIM + 2 * SEQ * HALF;
    assert_first(need(&set, "lm_head.weight", VOCAB, DIM), at);
    assert_int_equal(at + VOCAB * DIM, UNTIED_FLOATS);
    vptq_tensor_set_release(&set);

    const int32_t tied[7] = {DIM, HIDDEN, LAYERS, 2, 1, VOCAB, SEQ};
    put_model(path, tied, TIED_FLOATS);
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_llama2c_read(path, &set, &d, &err), &err);
    assert_true(d.tied);
    assert_null(vptq_tensor_find(&set, "lm_head.weight"));
    vptq_tensor_set_release(&set);
}

static void refuse(const char *path, const int32_t header[7], size_t floats, const char *part)
{
    vptq_err err = {0};
    vptq_tensor_set set;
    vptq_model_desc d;
    put_model(path, header, floats);
    assert_false(vptq_llama2c_is(path));
    vptq_tensor_set_init(&set, NULL);
    assert_fails(vptq_llama2c_read(path, &set, &d, &err), VPTQ_E_FORMAT, &err, part);
    assert_non_null(strstr(err.text, "m.bin: "));
    vptq_tensor_set_release(&set);
}

static void test_bad_files(void **state)
{
    char path[4096];
    vptq_err err = {0};
    vptq_tensor_set set;
    vptq_model_desc d;
    vtest_path(path, sizeof path, *state, "m.bin");
    const int32_t good[7] = {DIM, HIDDEN, LAYERS, 2, 1, VOCAB, SEQ};
    refuse(path, good, TIED_FLOATS - 1, "bytes, expected");
    refuse(path, good, TIED_FLOATS + 1, "bytes, expected");
    for (int i = 0; i < 7; i++) {
        int32_t h[7];
        memcpy(h, good, sizeof h);
        h[i] = 0;
        refuse(path, h, TIED_FLOATS, i == 5 ? "vocabulary size is 0" : "expected more than 0");
        h[i] = INT32_MIN;
        refuse(path, h, TIED_FLOATS, "is -2147483648, expected more than 0");
        h[i] = INT32_MAX;
        refuse(path, h, TIED_FLOATS, "m.bin: ");
    }
    const int32_t odd[7] = {9, HIDDEN, LAYERS, 2, 1, VOCAB, SEQ};
    refuse(path, odd, TIED_FLOATS, "dimension 9 of the llama2.c header is not a multiple of 2");
    const int32_t shared[7] = {24, HIDDEN, LAYERS, 3, 2, VOCAB, SEQ};
    refuse(path, shared, TIED_FLOATS, "3 heads cannot share 2 key-value heads");
    vtest_write_file(path, good, 27);
    vptq_tensor_set_init(&set, NULL);
    assert_fails(vptq_llama2c_read(path, &set, &d, &err), VPTQ_E_FORMAT, &err,
                 "27 bytes are too few for a llama2.c checkpoint");
    vptq_tensor_set_release(&set);
    assert_false(vptq_llama2c_is("/nonexistent"));
}

static vptq_status read_counted(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_tensor_set set;
    vptq_model_desc d;
    vptq_tensor_set_init(&set, mem);
    vptq_status st = vptq_llama2c_read(arg, &set, &d, err);
    vptq_tensor_set_release(&set);
    return st;
}

static void test_out_of_memory(void **state)
{
    char path[4096];
    const int32_t tied[7] = {DIM, HIDDEN, LAYERS, 2, 1, VOCAB, SEQ};
    vtest_path(path, sizeof path, *state, "m.bin");
    put_model(path, tied, TIED_FLOATS);
    vtest_oom_walk(read_counted, path);
}

/* The trained model against its Hugging Face form, which another program made: all values are
 * equal after rounding to float16, rotary rows included. */
static void test_real_model(void **state)
{
    (void)state;
    char bin[4096], dir[4096];
    vptq_err err = {0};
    vptq_tensor_set ours, theirs;
    vptq_model_desc d;
    if (!vtest_data(bin, sizeof bin, "models/stories260K/stories260K.bin") ||
        !vtest_data(dir, sizeof dir, "models/stories260K-hf"))
        skip();
    vptq_tensor_set_init(&ours, NULL);
    vptq_tensor_set_init(&theirs, NULL);
    assert_true(vptq_llama2c_is(bin));
    assert_ok(vptq_llama2c_read(bin, &ours, &d, &err), &err);
    assert_ok(vptq_hf_read_weights(dir, &theirs, &err), &err);
    assert_int_equal(ours.count, theirs.count);
    for (size_t i = 0; i < ours.count; i++) {
        vptq_tensor a = ours.tensors[i];
        const vptq_tensor *b = vptq_tensor_find(&theirs, a.name);
        assert_non_null(b);
        assert_int_equal(a.dims, b->dims);
        size_t rows = vptq_tensor_rows(&a), n = rows * vptq_tensor_cols(&a);
        assert_int_equal(n, vptq_tensor_rows(b) * vptq_tensor_cols(b));
        float *x = malloc(2 * n * sizeof *x);
        assert_non_null(x);
        a.round_to = VPTQ_F16;
        assert_ok(vptq_tensor_read(&a, 0, rows, x, &err), &err);
        assert_ok(vptq_tensor_read(b, 0, rows, x + n, &err), &err);
        assert_same_f32(x, x + n, n);
        free(x);
    }
    vptq_tensor_set_release(&ours);
    vptq_tensor_set_release(&theirs);
}

VTEST_MAIN(scratch_test(test_layout), scratch_test(test_bad_files),
           scratch_test(test_out_of_memory), cmocka_unit_test(test_real_model))
