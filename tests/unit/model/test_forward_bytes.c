/* Models with 8-bit activations: logits against an independent forward pass in float64
 * (tests/golden/make_bytes.py), the same bits from steps with little memory, and what is
 * refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "lib/model/backward.h"
#include "lib/model/forward_internal.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

#define MODEL "tests/golden/bytes_qwen2"

enum { TOKENS = 12, HIDDEN = VRIG_HIDDEN, VOCAB = VRIG_VOCAB };

static int32_t *read_ids(void)
{
    size_t size;
    int32_t *ids = (int32_t *)(void *)vtest_read_file(MODEL "/ids.i32", &size);
    assert_int_equal(size, TOKENS * sizeof *ids);
    return ids;
}

static const char *const backends[] = {"ref", "cpu", "emu"};
enum { BACKENDS = sizeof backends / sizeof *backends };

static double largest(const float *x, size_t n)
{
    double max = 0;
    for (size_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)x[i]));
    return max;
}

/* ---- logits ---- */

/* All tokens at once, and in steps. */
static void test_logits(void **state)
{
    (void)state;
    static const size_t steps[] = {1, 1, 4, 6};
    const size_t starts[2] = {0, TOKENS};
    int32_t *ids = read_ids();
    vtest_npy want;
    vtest_npy_load(MODEL "/logits.npy", &want);
    assert_int_equal(want.count, TOKENS * VOCAB);
    const float *w = vtest_npy_as(&want, "f4");
    const double limit = 1e-5 * largest(w, want.count);
    assert_string_equal(vptq_backend_emu()->name, "emu"); /* links the backend */
    for (int b = 0; b < BACKENDS; b++) {
        vrig r;
        vptq_err err = {0};
        float hidden[TOKENS * HIDDEN], logits[TOKENS * VOCAB];
        vrig_open_forward(&r, MODEL, backends[b], 2, TOKENS);
        vrig_run_blocks(&r, ids, starts, 1, hidden);
        assert_ok(vptq_forward_logits(r.f, TOKENS, hidden, logits, &err), &err);
        assert_close(logits, w, TOKENS * VOCAB, limit, 0);
        for (size_t s = 0, first = 0; s < 4; first += steps[s++]) {
            const size_t last = first + steps[s] - 1;
            assert_ok(vrig_step(r.f, ids + first, steps[s], logits, &err), &err);
            assert_close(logits, w + last * VOCAB, VOCAB, limit, 0);
        }
        vrig_close(&r);
    }
    vtest_npy_free(&want);
    free(ids);
}

/* The activations change the result visibly: without them it is another one. */
static void test_the_weights_alone_are_another_model(void **state)
{
    (void)state;
    const size_t starts[2] = {0, TOKENS};
    float hidden[2][TOKENS * HIDDEN];
    char hex[2][17];
    int32_t *ids = read_ids();
    for (int plain = 0; plain < 2; plain++) {
        vrig r;
        vptq_err err = {0};
        vrig_open_forward(&r, MODEL, "cpu", 1, TOKENS);
        for (size_t i = 0; plain && i < r.m.ckpt.set.count; i++)
            r.m.ckpt.set.tensors[i].activation_bits = 0;
        assert_ok(vptq_checkpoint_fingerprint(&r.m.ckpt, &r.ctx, hex[plain], &err), &err);
        vrig_run_blocks(&r, ids, starts, 1, hidden[plain]);
        vrig_close(&r);
    }
    double difference = 0;
    for (size_t i = 0; i < TOKENS * HIDDEN; i++)
        difference = fmax(difference, fabs((double)(hidden[0][i] - hidden[1][i])));
    assert_true(difference > 1e-3 * largest(hidden[0], TOKENS * HIDDEN));
    assert_string_not_equal(hex[0], hex[1]);
    free(ids);
}

/* ---- memory ---- */

/* The same bits where codes and scales are stored on the device, some or all are uploaded in
 * tiles, and on cpu. */
static void test_little_memory(void **state)
{
    (void)state;
    static const size_t limits[] = {0, 100000, 50000};
    const size_t starts[3] = {0, 5, TOKENS};
    float hidden[3][TOKENS * HIDDEN];
    size_t uploaded[3];
    int32_t *ids = read_ids();
    for (size_t i = 0; i < 3; i++) {
        vrig r;
        float logits[2][VOCAB];
        vptq_err err = {0};
        vrig_open_forward(&r, MODEL, "emu", 1, TOKENS);
        if (limits[i])
            cuda_emu_memory(cuda_emu_memory_used() + limits[i]);
        const size_t before = (size_t)cuda_emu_count().uploaded;
        vrig_run_blocks(&r, ids, starts, 2, hidden[i]);
        assert_ok(vrig_step(r.f, ids, 4, logits[0], &err), &err);
        assert_ok(vrig_step(r.f, ids + 4, 1, logits[1], &err), &err);
        uploaded[i] = (size_t)cuda_emu_count().uploaded - before;
        assert_memory_equal(hidden[i], hidden[0], sizeof *hidden);
        vrig_close(&r);
        cuda_emu_memory(0);
    }
    assert_true(uploaded[2] > uploaded[0]);
    free(ids);
}

/* Any number of threads, and sequences alone or together. */
static void test_threads_and_groups(void **state)
{
    (void)state;
    const size_t together[4] = {0, 1, 6, TOKENS};
    float hidden[2][TOKENS * HIDDEN], alone[TOKENS * HIDDEN];
    int32_t *ids = read_ids();
    for (int t = 0; t < 2; t++) {
        vrig r;
        vrig_open_forward(&r, MODEL, "cpu", t ? 3 : 1, TOKENS);
        vrig_run_blocks(&r, ids, together, 3, hidden[t]);
        for (int s = 0; s < 3; s++) {
            const size_t one[2] = {0, together[s + 1] - together[s]};
            vrig_run_blocks(&r, ids + together[s], one, 1, alone + together[s] * HIDDEN);
        }
        assert_memory_equal(alone, hidden[t], sizeof alone);
        vrig_close(&r);
    }
    assert_memory_equal(hidden[0], hidden[1], sizeof *hidden);
    free(ids);
}

static vptq_status run_once(void *arg, vptq_mem *mem, vptq_err *err)
{
    const int32_t *ids = arg;
    const size_t starts[2] = {0, TOKENS};
    vptq_ctx ctx = {.mem = mem, .threads = 2};
    vptq_model m;
    vptq_device dev;
    vptq_forward *f = NULL;
    float hidden[TOKENS * HIDDEN];
    vptq_status st = vptq_model_open(&ctx, MODEL, NULL, false, &m, err);
    if (st)
        return st;
    st = vptq_device_open(&ctx, "cpu", &dev, err);
    if (!st) {
        st = vptq_forward_open(&m, &dev, TOKENS, &f, err);
        if (!st)
            st = vptq_forward_embed(f, ids, TOKENS, hidden, err);
        for (uint32_t l = 0; l < 2 && !st; l++)
            st = vptq_forward_block(f, l, starts, 1, hidden, err);
        vptq_forward_close(f);
        vptq_device_close(&dev);
    }
    vptq_model_release(&m);
    return st;
}

static void test_survives_every_failed_allocation(void **state)
{
    (void)state;
    int32_t *ids = read_ids();
    assert_true(vtest_oom_walk(run_once, ids) > 10);
    free(ids);
}

/* ---- refused ---- */

static void test_gradients_are_refused(void **state)
{
    (void)state;
    vrig r;
    vptq_backward *b;
    vptq_err err = {0};
    vrig_open_forward(&r, MODEL, "cpu", 1, TOKENS);
    assert_fails(vptq_backward_open(r.f, TOKENS, 1, &b, &err), VPTQ_E_UNSUPPORTED, &err,
                 MODEL ": has linear layers with 8-bit activations, through which gradients "
                       "are not computed");
    assert_null(b);
    vrig_close(&r);
}

enum { MAX_TENSORS = 32 };

typedef struct wide {
    vptq_tensor list[MAX_TENSORS];
    char names[MAX_TENSORS][80];
    size_t count;
    void *data; /* enough for the largest tensor */
} wide;

static void add(wide *w, const char *name, vptq_dtype type, uint64_t rows, uint64_t cols)
{
    vptq_tensor *t = &w->list[w->count];
    snprintf(w->names[w->count], sizeof w->names[0], "%s", name);
    *t = (vptq_tensor){.name = w->names[w->count++],
                       .type = type,
                       .dims = rows ? 2 : 1,
                       .shape = {rows ? rows : cols, cols},
                       .data = w->data};
    t->bytes = (size_t)((rows ? rows : 1) * cols) * vptq_dtype_get(type)->bytes;
}

static void add_linear(wide *w, const char *path, uint64_t rows, uint64_t cols)
{
    char name[80];
    snprintf(name, sizeof name, "model.layers.0.%s.weight", path);
    add(w, name, VPTQ_I8, rows, cols);
    snprintf(name, sizeof name, "model.layers.0.%s.weight_scale", path);
    add(w, name, VPTQ_F16, rows, 1);
}

/* A model whose down_proj has so many columns. */
static void write_wide(const char *dir, uint64_t inner)
{
    static const char layout[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 2, \"intermediate_size\": %llu,"
        " \"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"num_key_value_heads\": 1,"
        " \"vocab_size\": 4, \"max_position_embeddings\": 8, \"rms_norm_eps\": 1e-5,"
        " \"tie_word_embeddings\": true, \"quantization_config\": {\"quant_method\":"
        " \"compressed-tensors\", \"format\": \"int-quantized\", \"config_groups\": {\"g\":"
        " {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8}, \"input_activations\":"
        " {\"num_bits\": 8, \"strategy\": \"token\", \"dynamic\": true}}}}}";
    static const char *const square[] = {"self_attn.q_proj", "self_attn.k_proj",
                                         "self_attn.v_proj", "self_attn.o_proj"};
    char config[1024], path[4096];
    const size_t bytes = (size_t)inner * 2 + 64;
    wide w = {.count = 0};
    vptq_err err = {0};
    w.data = vtest_alloc(bytes, 1);
    memset(w.data, 0x3c, bytes); /* scales of 1.06 */
    snprintf(config, sizeof config, layout, (unsigned long long)inner);
    add(&w, "model.embed_tokens.weight", VPTQ_F16, 4, 2);
    add(&w, "model.norm.weight", VPTQ_F16, 0, 2);
    add(&w, "model.layers.0.input_layernorm.weight", VPTQ_F16, 0, 2);
    add(&w, "model.layers.0.post_attention_layernorm.weight", VPTQ_F16, 0, 2);
    for (int i = 0; i < 4; i++)
        add_linear(&w, square[i], 2, 2);
    add_linear(&w, "mlp.gate_proj", inner, 2);
    add_linear(&w, "mlp.up_proj", inner, 2);
    add_linear(&w, "mlp.down_proj", 2, inner);
    vtest_path(path, sizeof path, dir, "config.json");
    vtest_write_file(path, config, strlen(config));
    vtest_path(path, sizeof path, dir, "model.safetensors");
    assert_ok(vptq_safetensors_save(path, w.list, w.count, NULL, 0, &err), &err);
    free(w.data);
}

/* Sums of more columns do not fit in 32 bits, and a tile of one has no space for scales. */
static void test_columns(void **state)
{
    static const struct {
        uint64_t inner;
        bool fits;
    } rows[] = {{1, false},
                {2, true},
                {VPTQ_BYTES_MAX_COLUMNS, true},
                {VPTQ_BYTES_MAX_COLUMNS + 1, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        vptq_model m;
        vptq_err err = {0};
        char text[128];
        vptq_ctx ctx = {.threads = 1};
        write_wide(*state, rows[i].inner);
        const vptq_status st = vptq_model_open(&ctx, *state, NULL, false, &m, &err);
        if (rows[i].fits) {
            assert_ok(st, &err);
            vptq_model_release(&m);
            continue;
        }
        snprintf(text, sizeof text,
                 "mlp.down_proj.weight' has 8-bit activations and %llu columns, expected 2 to "
                 "132000",
                 (unsigned long long)rows[i].inner);
        assert_fails(st, VPTQ_E_UNSUPPORTED, &err, text);
    }
}

VTEST_MAIN(cmocka_unit_test(test_logits),
           cmocka_unit_test(test_the_weights_alone_are_another_model),
           cmocka_unit_test(test_little_memory), cmocka_unit_test(test_threads_and_groups),
           cmocka_unit_test(test_survives_every_failed_allocation),
           cmocka_unit_test(test_gradients_are_refused), scratch_test(test_columns))
