/* Writes a model of a given shape with random weights and random tokens to calibrate it with,
 * for timing the stages of quantizing where the real model cannot be brought:
 *     synthetic DIR [LAYERS [HIDDEN INTERMEDIATE HEADS VOCAB [TOKENS]]]
 * Without numbers: two layers with the shape of Llama-2-7B and 128 x 2048 tokens.  DIR, which
 * must not exist, receives a Hugging Face directory of 16-bit weights without a tokenizer, and
 * tokens.i32. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/hf/safetensors.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/bench/common.h"
#include "tests/support/vnormal.h"

enum { MAX_LAYERS = 32, PER_LAYER = 9, NAME = 64, PERIOD = 1 << 22 };

typedef struct shape {
    uint64_t layers, hidden, intermediate, heads, vocab, tokens;
} shape;

typedef struct model {
    shape s;
    vptq_tensor tensors[3 + MAX_LAYERS * PER_LAYER];
    char names[3 + MAX_LAYERS * PER_LAYER][NAME];
    size_t count;
    uint16_t *random; /* [PERIOD] normal, deviation 0.02; tensors start at different places */
} model;

/* Adds a matrix, or a vector of cols if rows is 0. */
static void add(model *m, uint64_t rows, uint64_t cols, const char *name)
{
    vptq_tensor *t = &m->tensors[m->count];
    snprintf(m->names[m->count], NAME, "%s.weight", name);
    *t = (vptq_tensor){
        .name = m->names[m->count], .type = VPTQ_F16, .dims = rows ? 2 : 1, .shape = {cols}};
    if (rows) {
        t->shape[0] = rows;
        t->shape[1] = cols;
    }
    m->count++;
}

static void list_tensors(model *m)
{
    static const struct {
        const char *name;
        int rows, cols; /* 0: none, 1: hidden, 2: intermediate */
    } layer[PER_LAYER] = {{"input_layernorm", 0, 1},  {"post_attention_layernorm", 0, 1},
                          {"self_attn.q_proj", 1, 1}, {"self_attn.k_proj", 1, 1},
                          {"self_attn.v_proj", 1, 1}, {"self_attn.o_proj", 1, 1},
                          {"mlp.gate_proj", 2, 1},    {"mlp.up_proj", 2, 1},
                          {"mlp.down_proj", 1, 2}};
    const shape *s = &m->s;
    const uint64_t size[] = {0, s->hidden, s->intermediate};
    add(m, s->vocab, s->hidden, "model.embed_tokens");
    for (uint64_t l = 0; l < s->layers; l++)
        for (size_t i = 0; i < PER_LAYER; i++) {
            char name[NAME - 8];
            snprintf(name, sizeof name, "model.layers.%" PRIu64 ".%s", l, layer[i].name);
            add(m, size[layer[i].rows], size[layer[i].cols], name);
        }
    add(m, 0, s->hidden, "model.norm");
    add(m, s->vocab, s->hidden, "lm_head");
}

static vptq_status fill(void *arg, const vptq_tensor *t, vptq_safetensors_writer *w,
                        vptq_err *err)
{
    const model *m = arg;
    const size_t n = t->bytes / sizeof(uint16_t);
    if (t->dims == 1) {
        uint16_t *ones = bench_alloc(n, sizeof *ones);
        for (size_t i = 0; i < n; i++)
            ones[i] = 0x3c00;
        const vptq_status st = vptq_safetensors_write(w, ones, t->bytes, err);
        free(ones);
        return st;
    }
    size_t from = 0;
    for (const char *c = t->name; *c; c++)
        from = (from * 31 + (unsigned char)*c) % PERIOD;
    for (size_t at = 0; at < n;) {
        const size_t left = n - at, piece = left < PERIOD - from ? left : PERIOD - from;
        VPTQ_CHECK(vptq_safetensors_write(w, m->random + from, piece * sizeof *m->random, err));
        at += piece;
        from = 0;
    }
    return VPTQ_OK;
}

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f)
        bench_give_up("cannot write to the directory");
    return f;
}

static void finish(FILE *f)
{
    if (ferror(f) || fclose(f))
        bench_give_up("writing failed");
}

static void write_config(const char *dir, const shape *s)
{
    FILE *f = create(dir, "config.json");
    fprintf(f,
            "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
            "\"hidden_size\": %" PRIu64 ", \"intermediate_size\": %" PRIu64
            ", \"num_hidden_layers\": %" PRIu64 ", \"num_attention_heads\": %" PRIu64
            ", \"num_key_value_heads\": %" PRIu64 ", \"vocab_size\": %" PRIu64
            ", \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-05, "
            "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": "
            "false, \"torch_dtype\": \"float16\", \"bos_token_id\": 1, \"eos_token_id\": 2}\n",
            s->hidden, s->intermediate, s->layers, s->heads, s->heads, s->vocab);
    finish(f);
}

static void write_tokens(const char *dir, const shape *s)
{
    const vptq_rng rng = vptq_rng_make(2, 0, 0, VPTQ_RNG_TEST);
    FILE *f = create(dir, "tokens.i32");
    for (uint64_t i = 0; i < s->tokens; i++) {
        const int32_t id = (int32_t)vptq_rng_below(&rng, i, s->vocab);
        if (fwrite(&id, sizeof id, 1, f) != 1)
            break;
    }
    finish(f);
}

int main(int argc, char **argv)
{
    static model m = {.s = {2, 4096, 11008, 32, 32000, 128 * 2048}};
    uint64_t *const numbers[] = {&m.s.layers, &m.s.hidden, &m.s.intermediate,
                                 &m.s.heads,  &m.s.vocab,  &m.s.tokens};
    const vptq_rng rng = vptq_rng_make(1, 0, 0, VPTQ_RNG_TEST);
    vptq_err err = {0};
    if (argc < 2 || argc > 8)
        bench_give_up(
            "usage: synthetic DIR [LAYERS [HIDDEN INTERMEDIATE HEADS VOCAB [TOKENS]]]");
    for (int i = 2; i < argc; i++)
        *numbers[i - 2] = strtoull(argv[i], NULL, 10);
    if (!m.s.layers || m.s.layers > MAX_LAYERS || !m.s.heads || m.s.hidden % m.s.heads)
        bench_give_up("expected 1 to 32 layers, and heads that divide the hidden size");
    if (mkdir(argv[1], 0777))
        bench_give_up("the directory exists, or cannot be made");
    m.random = bench_alloc(PERIOD, sizeof *m.random);
    for (size_t i = 0; i < PERIOD; i++)
        m.random[i] = vptq_f32_to_f16((float)(0.02 * vtest_rng_normal(&rng, i)));
    list_tensors(&m);
    bench_need(vptq_safetensors_write_dir(argv[1], m.tensors, m.count, UINT64_C(4) << 30, fill,
                                          &m, &err),
               &err);
    write_config(argv[1], &m.s);
    write_tokens(argv[1], &m.s);
    free(m.random);
    return 0;
}
