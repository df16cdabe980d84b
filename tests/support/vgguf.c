/* Writes GGUF files in memory, and the small model that tests read from one. */
#include "tests/support/vgguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "tests/support/vtest.h"

enum { U32 = 4, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

void vgguf_init(vgguf *g)
{
    *g = (vgguf){.version = 3, .alignment = 32};
}

void vgguf_free(vgguf *g)
{
    free(g->keys.data);
    free(g->tensors.data);
    free(g->data.data);
    free(g->file.data);
    *g = (vgguf){0};
}

void vgguf_add(vgguf_bytes *b, const void *data, size_t n)
{
    if (b->len + n > b->cap) {
        b->cap = (b->len + n) * 2 + 256;
        b->data = realloc(b->data, b->cap);
        assert_non_null(b->data);
    }
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
}

void vgguf_add_u64(vgguf_bytes *b, uint64_t x)
{
    uint8_t p[8];
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(x >> 8 * i);
    vgguf_add(b, p, sizeof p);
}

void vgguf_add_u32(vgguf_bytes *b, uint32_t x)
{
    uint8_t p[4];
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
    vgguf_add(b, p, sizeof p);
}

void vgguf_add_str(vgguf_bytes *b, const char *s)
{
    vgguf_add_u64(b, strlen(s));
    vgguf_add(b, s, strlen(s));
}

void vgguf_key(vgguf *g, const char *key, uint32_t type, const void *value, size_t n)
{
    vgguf_add_str(&g->keys, key);
    vgguf_add_u32(&g->keys, type);
    vgguf_add(&g->keys, value, n);
    g->key_count++;
}

void vgguf_u32(vgguf *g, const char *key, uint32_t x)
{
    vgguf_key(g, key, U32, NULL, 0);
    vgguf_add_u32(&g->keys, x);
}

void vgguf_f32(vgguf *g, const char *key, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    vgguf_key(g, key, F32, NULL, 0);
    vgguf_add_u32(&g->keys, bits);
}

void vgguf_bool(vgguf *g, const char *key, uint8_t x)
{
    vgguf_key(g, key, BOOL, &x, 1);
}

void vgguf_str(vgguf *g, const char *key, const char *s)
{
    vgguf_key(g, key, STRING, NULL, 0);
    vgguf_add_str(&g->keys, s);
}

void vgguf_array(vgguf *g, const char *key, uint32_t type, uint64_t count, const void *elements,
                 size_t n)
{
    vgguf_key(g, key, ARRAY, NULL, 0);
    vgguf_add_u32(&g->keys, type);
    vgguf_add_u64(&g->keys, count);
    vgguf_add(&g->keys, elements, n);
}

void vgguf_strs(vgguf *g, const char *key, const char *const *list, size_t count)
{
    vgguf_array(g, key, STRING, count, NULL, 0);
    for (size_t i = 0; i < count; i++)
        vgguf_add_str(&g->keys, list[i]);
}

static void pad(vgguf_bytes *b, size_t alignment)
{
    while (b->len % alignment)
        vgguf_add(b, "", 1);
}

void vgguf_entry(vgguf *g, const char *name, uint32_t type, uint32_t dims,
                 const uint64_t *shape, uint64_t offset)
{
    vgguf_add_str(&g->tensors, name);
    vgguf_add_u32(&g->tensors, dims);
    for (uint32_t i = dims; i-- > 0;)
        vgguf_add_u64(&g->tensors, shape[i]);
    vgguf_add_u32(&g->tensors, type);
    vgguf_add_u64(&g->tensors, offset);
    g->tensor_count++;
}

void vgguf_tensor(vgguf *g, const char *name, uint32_t type, uint32_t dims,
                  const uint64_t *shape, const void *data, size_t n)
{
    pad(&g->data, g->alignment);
    vgguf_entry(g, name, type, dims, shape, g->data.len);
    vgguf_add(&g->data, data, n);
}

void vgguf_finish(vgguf *g)
{
    g->file.len = 0;
    vgguf_add(&g->file, "GGUF", 4);
    vgguf_add_u32(&g->file, g->version);
    vgguf_add_u64(&g->file, g->tensor_count);
    vgguf_add_u64(&g->file, g->key_count);
    vgguf_add(&g->file, g->keys.data, g->keys.len);
    vgguf_add(&g->file, g->tensors.data, g->tensors.len);
    if (g->tensor_count)
        pad(&g->file, g->alignment);
    vgguf_add(&g->file, g->data.data, g->data.len);
}

void vgguf_write(vgguf *g, const char *path)
{
    vgguf_finish(g);
    vtest_write_file(path, g->file.data, g->file.len);
}

vptq_status vgguf_open(const char *dir, vgguf *w, vptq_gguf *g, vptq_err *err)
{
    char path[4096];
    vtest_path(path, sizeof path, dir, "x.gguf");
    vgguf_write(w, path);
    return vptq_gguf_open(path, NULL, g, err);
}

/* ---- the small model ---- */

float vgguf_value(const char *hf_name, size_t i)
{
    uint64_t h = vptq_hash(hf_name, strlen(hf_name), i);
    return (float)(int)(h % 4001 - 2000) / 4096.0f;
}

/* heads > 0: stored row h*d + 2*i + half is row h*d + half*d/2 + i. */
static void add_values(vgguf *g, const char *name, const char *hf_name, size_t rows,
                       size_t cols, size_t heads)
{
    float x[VGGUF_VOCAB * VGGUF_FFN];
    uint64_t shape[2] = {rows ? rows : cols, cols};
    size_t units = rows ? rows : cols, width = rows ? cols : 1;
    size_t d = heads ? units / heads : 1;
    assert_true(units * width <= sizeof x / sizeof x[0]);
    for (size_t r = 0; r < units; r++) {
        size_t in = r % d, at = heads ? r / d * d + 2 * (in % (d / 2)) + in / (d / 2) : r;
        for (size_t c = 0; c < width; c++)
            x[at * width + c] = vgguf_value(hf_name, r * width + c);
    }
    vgguf_tensor(g, name, 0, rows ? 2 : 1, shape, x, units * width * sizeof *x);
}

static void add_in_block(vgguf *g, int layer, const char *name, const char *hf_name,
                         size_t rows, size_t cols, size_t heads)
{
    char full[128], full_hf[128];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    snprintf(full_hf, sizeof full_hf, "model.layers.%d.%s", layer, hf_name);
    add_values(g, full, full_hf, rows, cols, heads);
}

static void add_block(vgguf *g, int layer, const char *arch)
{
    enum { Q = VGGUF_HEADS * VGGUF_HEAD_DIM, KV = VGGUF_KV_HEADS * VGGUF_HEAD_DIM };
    int permuted = strcmp(arch, "llama") == 0;
    size_t heads = permuted ? VGGUF_HEADS : 0, kv_heads = permuted ? VGGUF_KV_HEADS : 0;
    const size_t d = VGGUF_HIDDEN, f = VGGUF_FFN;
    add_in_block(g, layer, "attn_norm.weight", "input_layernorm.weight", 0, d, 0);
    add_in_block(g, layer, "attn_q.weight", "self_attn.q_proj.weight", Q, d, heads);
    add_in_block(g, layer, "attn_k.weight", "self_attn.k_proj.weight", KV, d, kv_heads);
    add_in_block(g, layer, "attn_v.weight", "self_attn.v_proj.weight", KV, d, 0);
    add_in_block(g, layer, "attn_output.weight", "self_attn.o_proj.weight", d, Q, 0);
    add_in_block(g, layer, "ffn_norm.weight", "post_attention_layernorm.weight", 0, d, 0);
    add_in_block(g, layer, "ffn_gate.weight", "mlp.gate_proj.weight", f, d, 0);
    add_in_block(g, layer, "ffn_up.weight", "mlp.up_proj.weight", f, d, 0);
    add_in_block(g, layer, "ffn_down.weight", "mlp.down_proj.weight", d, f, 0);
    if (strcmp(arch, "qwen2") == 0) {
        add_in_block(g, layer, "attn_q.bias", "self_attn.q_proj.bias", 0, Q, 0);
        add_in_block(g, layer, "attn_k.bias", "self_attn.k_proj.bias", 0, KV, 0);
        add_in_block(g, layer, "attn_v.bias", "self_attn.v_proj.bias", 0, KV, 0);
    }
    if (strcmp(arch, "qwen3") == 0) {
        add_in_block(g, layer, "attn_q_norm.weight", "self_attn.q_norm.weight", 0,
                     VGGUF_HEAD_DIM, 0);
        add_in_block(g, layer, "attn_k_norm.weight", "self_attn.k_norm.weight", 0,
                     VGGUF_HEAD_DIM, 0);
    }
}

static void arch_key(vgguf *g, const char *arch, const char *key, uint32_t x)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    vgguf_u32(g, name, x);
}

void vgguf_model(vgguf *g, const char *arch, int head)
{
    char name[128];
    vgguf_str(g, "general.architecture", arch);
    arch_key(g, arch, "block_count", VGGUF_LAYERS);
    arch_key(g, arch, "embedding_length", VGGUF_HIDDEN);
    arch_key(g, arch, "feed_forward_length", VGGUF_FFN);
    arch_key(g, arch, "attention.head_count", VGGUF_HEADS);
    arch_key(g, arch, "attention.head_count_kv", VGGUF_KV_HEADS);
    arch_key(g, arch, "context_length", 64);
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", arch);
    vgguf_f32(g, name, 1e-5f);
    add_values(g, "token_embd.weight", "model.embed_tokens.weight", VGGUF_VOCAB, VGGUF_HIDDEN,
               0);
    for (int layer = 0; layer < VGGUF_LAYERS; layer++)
        add_block(g, layer, arch);
    add_values(g, "output_norm.weight", "model.norm.weight", 0, VGGUF_HIDDEN, 0);
    if (head)
        add_values(g, "output.weight", "lm_head.weight", VGGUF_VOCAB, VGGUF_HIDDEN, 0);
}
