/* Reads a model from a GGUF file: the description from ARCH.* keys, and the tensors under their
 * Hugging Face names.  Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/gguf/model.h"
#include "lib/base/text.h"

enum { KEY_MAX = 128 };

typedef struct reader {
    const vptq_gguf *g;
    const char *arch; /* prefix of the keys, from the family's row */
} reader;

static void full_key(const reader *r, const char *key, char text[KEY_MAX])
{
    snprintf(text, KEY_MAX, "%s.%s", r->arch, key);
}

static vptq_status u32_or(const reader *r, const char *key, uint32_t fallback, uint32_t *out,
                          vptq_err *err)
{
    char name[KEY_MAX];
    uint64_t x = 0;
    full_key(r, key, name);
    VPTQ_CHECK(vptq_gguf_u64_or(r->g, name, fallback, &x, err));
    if (x > UINT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s' is %" PRIu64 ", expected less than 2^32", r->g->path,
                         name, x);
    *out = (uint32_t)x;
    return VPTQ_OK;
}

static vptq_status required_u32(const reader *r, const char *key, uint32_t *out, vptq_err *err)
{
    char name[KEY_MAX];
    full_key(r, key, name);
    if (!vptq_gguf_find(r->g, name))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is missing", r->g->path, name);
    return u32_or(r, key, 0, out, err);
}

static vptq_status f64_or(const reader *r, const char *key, double fallback, double *out,
                          vptq_err *err)
{
    char name[KEY_MAX];
    full_key(r, key, name);
    return vptq_gguf_f64_or(r->g, name, fallback, out, err);
}

static vptq_status find_family(const vptq_gguf *g, const vptq_family **family, vptq_err *err)
{
    vptq_gguf_str arch;
    char name[64], names[256];
    VPTQ_CHECK(vptq_gguf_str_or(g, "general.architecture", &arch, err));
    if (!arch.data)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'general.architecture' is missing",
                         g->path);
    snprintf(name, sizeof name, "%.*s", (int)(arch.len < sizeof name ? arch.len : 63),
             arch.data);
    *family = vptq_family_by_gguf_arch(name);
    if (*family)
        return VPTQ_OK;
    vptq_family_names(names, sizeof names);
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: architecture '%s' is not supported, expected one of: %s", g->path,
                     name, names);
}

/* Rejects keys that require arithmetic our forward pass does not have, and split files. */
static vptq_status refuse_unsupported(const reader *r, vptq_err *err)
{
    static const char *const keys[] = {
        "expert_count",           "attention.scale", "logit_scale",
        "residual_scale",         "embedding_scale", "attn_logit_softcapping",
        "final_logit_softcapping"};
    uint64_t parts = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        double x = 0;
        VPTQ_CHECK(f64_or(r, keys[i], 0, &x, err));
        if (x != 0)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: key '%s.%s' is %g, models of that kind are not supported",
                             r->g->path, r->arch, keys[i], x);
    }
    VPTQ_CHECK(vptq_gguf_u64_or(r->g, "split.count", 0, &parts, err));
    if (parts > 1)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: is one of %" PRIu64 " parts of a split model; join them into one "
                         "file first",
                         r->g->path, parts);
    return VPTQ_OK;
}

/* Takes the vocabulary size from the embedding; in a file without tensors from the key or the
 * token list. */
static vptq_status read_vocab_size(const reader *r, vptq_model_desc *d, vptq_err *err)
{
    const vptq_tensor *t = vptq_tensor_find(&r->g->set, "token_embd.weight");
    const vptq_gguf_kv *tokens = vptq_gguf_find(r->g, "tokenizer.ggml.tokens");
    uint64_t n = t && t->dims == 2 ? t->shape[0] : tokens ? tokens->count : 0;
    if (n > INT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: a vocabulary of %" PRIu64 " tokens is too large", r->g->path, n);
    if (t)
        d->vocab = (uint32_t)n;
    return t ? VPTQ_OK : u32_or(r, "vocab_size", (uint32_t)n, &d->vocab, err);
}

/* GGUF files of Mistral models have architecture llama.  With a sliding window the family must
 * be mistral, because a config.json of type llama cannot express the window. */
static vptq_status read_window(const reader *r, vptq_model_desc *d, vptq_err *err)
{
    const vptq_family *sliding = vptq_family_by_model_type("mistral");
    VPTQ_CHECK(u32_or(r, "attention.sliding_window", 0, &d->window, err));
    if (d->window && strcmp(sliding->gguf_arch, r->arch) == 0)
        d->family = sliding;
    return VPTQ_OK;
}

static vptq_status read_sizes(const reader *r, vptq_model_desc *d, vptq_err *err)
{
    double eps = 0;
    uint32_t value_dim = 0;
    VPTQ_CHECK(required_u32(r, "block_count", &d->layers, err));
    VPTQ_CHECK(required_u32(r, "embedding_length", &d->hidden, err));
    VPTQ_CHECK(required_u32(r, "feed_forward_length", &d->intermediate, err));
    VPTQ_CHECK(required_u32(r, "attention.head_count", &d->heads, err));
    VPTQ_CHECK(required_u32(r, "context_length", &d->context, err));
    VPTQ_CHECK(u32_or(r, "attention.head_count_kv", d->heads, &d->kv_heads, err));
    uint32_t head_dim = d->heads ? d->hidden / d->heads : 0;
    VPTQ_CHECK(u32_or(r, "attention.key_length", head_dim, &d->head_dim, err));
    VPTQ_CHECK(u32_or(r, "attention.value_length", d->head_dim, &value_dim, err));
    if (value_dim != d->head_dim)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: heads have %" PRIu32 " dimensions for keys and %" PRIu32
                         " for values, only equal sizes are supported",
                         r->g->path, d->head_dim, value_dim);
    VPTQ_CHECK(read_window(r, d, err));
    VPTQ_CHECK(f64_or(r, "attention.layer_norm_rms_epsilon", 0, &eps, err));
    if (!(eps > 0 && eps < 1))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s.attention.layer_norm_rms_epsilon' is missing or not "
                         "between 0 and 1",
                         r->g->path, r->arch);
    d->norm_eps = (float)eps;
    return read_vocab_size(r, d, err);
}

/* ---- rotary positions ---- */

static const double two_pi = 6.283185307179586;

/* transformers' scaling "llama3". */
double vptq_gguf_rope_divisor(const vptq_model_desc *d, uint32_t i)
{
    double freq = pow(d->rope_theta, -2.0 * i / d->head_dim);
    double turns = d->rope_original_context * freq / two_pi; /* over the original context */
    if (turns > d->rope_high)
        return 1;
    if (turns < d->rope_low)
        return d->rope_factor;
    double smooth = (turns - d->rope_low) / (d->rope_high - d->rope_low);
    return 1 / ((1 - smooth) / d->rope_factor + smooth);
}

/* Recovers the parameters of llama3 scaling from the divisors in rope_freqs.weight: the factor
 * is the largest divisor, the other parameters are the same in every such model.  They must
 * reproduce all divisors; otherwise the tensor is rejected. */
static vptq_status match_llama3(const vptq_gguf *g, const vptq_tensor *t, const float *divisor,
                                vptq_model_desc *d, vptq_err *err)
{
    uint32_t half = d->head_dim / 2;
    double factor = 1, max_error = 0;
    for (uint32_t i = 0; i < half; i++)
        factor = (double)divisor[i] > factor ? (double)divisor[i] : factor;
    d->rope_factor = factor;
    d->rope_low = 1;
    d->rope_high = 4;
    if (!d->rope_original_context)
        d->rope_original_context = 8192;
    for (uint32_t i = 0; i < half; i++) {
        double error = fabs((double)divisor[i] / vptq_gguf_rope_divisor(d, i) - 1);
        max_error = error <= max_error ? max_error : error; /* keeps a NaN */
    }
    if (!(max_error < 1e-4))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: the frequency factors of tensor '%s' match no supported scaling "
                         "(llama3 with factor %g has a relative error of %g)",
                         g->path, t->name, factor, max_error);
    d->rope_scaling = factor > 1 ? VPTQ_ROPE_LLAMA3 : VPTQ_ROPE_NONE;
    return VPTQ_OK;
}

static vptq_status read_rope_freqs(const reader *r, vptq_model_desc *d, vptq_err *err)
{
    const vptq_tensor *t = NULL;
    vptq_mem *mem = r->g->set.arena.mem;
    if (!vptq_tensor_find(&r->g->set, "rope_freqs.weight"))
        return VPTQ_OK;
    if (d->rope_scaling != VPTQ_ROPE_NONE)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: has both %s.rope.scaling.type and tensor 'rope_freqs.weight'",
                         r->g->path, r->arch);
    VPTQ_CHECK(vptq_tensor_need(&r->g->set, "rope_freqs.weight", 0, d->head_dim / 2, &t, err));
    float *divisor = vptq_mem_alloc(mem, d->head_dim / 2, sizeof *divisor, err);
    if (!divisor)
        return VPTQ_E_NOMEM;
    vptq_status st = vptq_tensor_read(t, 0, 1, divisor, err);
    st = st ? st : match_llama3(r->g, t, divisor, d, err);
    vptq_mem_free(mem, divisor);
    return st;
}

static vptq_status read_scaling(const reader *r, vptq_model_desc *d, vptq_err *err)
{
    char key[KEY_MAX];
    vptq_gguf_str type;
    double factor = 0, legacy = 0, attention = 1;
    full_key(r, "rope.scaling.type", key);
    VPTQ_CHECK(vptq_gguf_str_or(r->g, key, &type, err));
    VPTQ_CHECK(f64_or(r, "rope.scale_linear", 0, &legacy, err));
    VPTQ_CHECK(f64_or(r, "rope.scaling.factor", legacy, &factor, err));
    bool linear = type.data ? vptq_text_is(type.data, type.len, "linear") : factor != 0;
    bool yarn = type.data && vptq_text_is(type.data, type.len, "yarn");
    if (type.data && !linear && !yarn && !vptq_text_is(type.data, type.len, "none"))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: key '%s' is '%.*s', expected none, linear or yarn", r->g->path,
                         key, (int)(type.len < 64 ? type.len : 64), type.data);
    if ((!linear && !yarn) || factor == 1)
        return VPTQ_OK;
    if (!(factor > 0))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s.rope.scaling.factor' is %g, expected more than 0",
                         r->g->path, r->arch, factor);
    d->rope_scaling = yarn ? VPTQ_ROPE_YARN : VPTQ_ROPE_LINEAR;
    d->rope_factor = factor;
    if (!yarn)
        return VPTQ_OK;
    VPTQ_CHECK(f64_or(r, "rope.scaling.yarn_beta_slow", 1, &d->rope_low, err));
    VPTQ_CHECK(f64_or(r, "rope.scaling.yarn_beta_fast", 32, &d->rope_high, err));
    VPTQ_CHECK(f64_or(r, "rope.scaling.yarn_attn_factor", 1, &attention, err));
    d->rope_attention_factor = attention * vptq_rope_yarn_attention(factor, 1);
    if (!d->rope_original_context)
        d->rope_original_context = d->context;
    return VPTQ_OK;
}

static vptq_status read_rope(const reader *r, vptq_model_desc *d, vptq_err *err)
{
    uint32_t rotated = 0;
    d->rope_factor = d->rope_attention_factor = 1;
    VPTQ_CHECK(u32_or(r, "rope.dimension_count", d->head_dim, &rotated, err));
    if (rotated != d->head_dim)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: rotary embedding of %" PRIu32 " of %" PRIu32
                         " head dimensions is not supported, only of all",
                         r->g->path, rotated, d->head_dim);
    VPTQ_CHECK(f64_or(r, "rope.freq_base", 10000, &d->rope_theta, err));
    if (!(d->rope_theta > 0) || isinf(d->rope_theta))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s.rope.freq_base' is %g, expected more than 0", r->g->path,
                         r->arch, d->rope_theta);
    VPTQ_CHECK(
        u32_or(r, "rope.scaling.original_context_length", 0, &d->rope_original_context, err));
    VPTQ_CHECK(read_scaling(r, d, err));
    return read_rope_freqs(r, d, err);
}

/* ---- the description ---- */

static vptq_status read_token(const vptq_gguf *g, const char *key, const vptq_model_desc *d,
                              int32_t *out, vptq_err *err)
{
    uint64_t id = 0;
    vptq_status st = vptq_gguf_u64_or(g, key, UINT32_MAX, &id, err);
    /* all ones also means none */
    *out = st || id >= UINT32_MAX ? -1 : id < d->vocab ? (int32_t)id : -2;
    if (*out == -2)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%s' is %" PRIu64 ", the vocabulary has %" PRIu32 " tokens",
                         g->path, key, id, d->vocab);
    return st;
}

static bool has(const vptq_gguf *g, const char *name)
{
    return vptq_tensor_find(&g->set, name) != NULL;
}

vptq_status vptq_gguf_desc(const vptq_gguf *g, vptq_model_desc *desc, vptq_err *err)
{
    reader r = {g, NULL};
    *desc = (vptq_model_desc){0};
    VPTQ_CHECK(find_family(g, &desc->family, err));
    r.arch = desc->family->gguf_arch;
    VPTQ_CHECK(refuse_unsupported(&r, err));
    VPTQ_CHECK(read_sizes(&r, desc, err));
    VPTQ_CHECK(read_rope(&r, desc, err));
    desc->tied = !has(g, "output.weight");
    desc->qkv_bias = has(g, "blk.0.attn_q.bias");
    desc->o_bias = has(g, "blk.0.attn_output.bias");
    desc->mlp_bias = has(g, "blk.0.ffn_up.bias");
    VPTQ_CHECK(vptq_model_desc_check(desc, g->path, err));
    VPTQ_CHECK(read_token(g, "tokenizer.ggml.bos_token_id", desc, &desc->bos, err));
    return read_token(g, "tokenizer.ggml.eos_token_id", desc, &desc->eos, err);
}

/* ---- names ---- */

typedef struct name_pair {
    const char *gguf, *hf;
} name_pair;

static const name_pair outer_names[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
static const name_pair block_names[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

static const char *look_up(const name_pair *pairs, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (vptq_text_is(name, len, pairs[i].gguf))
            return pairs[i].hf;
    return NULL;
}

/* Parses "blk.N." (N without leading zeros).  Returns the rest after the dot, or NULL for other
 * names. */
static const char *block_rest(const char *name, uint32_t *layer)
{
    if (strncmp(name, "blk.", 4) != 0)
        return NULL;
    const char *p = name + 4;
    uint64_t n = 0;
    size_t digits = strspn(p, "0123456789");
    if (digits == 0 || digits > 7 || (digits > 1 && *p == '0') || p[digits] != '.')
        return NULL;
    for (size_t i = 0; i < digits; i++)
        n = n * 10 + (uint64_t)(p[i] - '0');
    *layer = (uint32_t)n;
    return p + digits + 1;
}

/* "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; false for unknown names.
 */
static bool hf_name(const char *name, uint32_t layers, char out[VPTQ_NAME_MAX])
{
    uint32_t layer = 0;
    const char *rest = block_rest(name, &layer);
    const char *part = rest ? rest : name, *dot = strrchr(part, '.');
    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return false;
    size_t len = (size_t)(dot - part);
    const char *hf =
        rest ? look_up(block_names, sizeof block_names / sizeof block_names[0], part, len)
             : look_up(outer_names, sizeof outer_names / sizeof outer_names[0], part, len);
    if (!hf || (rest && layer >= layers))
        return false;
    if (rest)
        snprintf(out, VPTQ_NAME_MAX, "model.layers.%" PRIu32 ".%s%s", layer, hf, dot);
    else
        snprintf(out, VPTQ_NAME_MAX, "%s%s", hf, dot);
    return true;
}

bool vptq_gguf_name_pair(uint32_t layers, size_t i, char gguf[VPTQ_NAME_MAX],
                         char hf[VPTQ_NAME_MAX])
{
    enum {
        OUTER = sizeof outer_names / sizeof outer_names[0],
        BLOCK = sizeof block_names / sizeof block_names[0],
        PARTS = 2
    };
    static const char *const parts[PARTS] = {"weight", "bias"};
    const char *part = parts[i % PARTS];
    size_t n = i / PARTS; /* the first outer name, all blocks, the other outer names */
    if (n == 0 || n > (size_t)layers * BLOCK) {
        size_t outer = n ? n - (size_t)layers * BLOCK : 0;
        if (outer >= OUTER)
            return false;
        snprintf(gguf, VPTQ_NAME_MAX, "%s.%s", outer_names[outer].gguf, part);
        snprintf(hf, VPTQ_NAME_MAX, "%s.%s", outer_names[outer].hf, part);
        return true;
    }
    size_t layer = (n - 1) / BLOCK;
    const name_pair *name = &block_names[(n - 1) % BLOCK];
    snprintf(gguf, VPTQ_NAME_MAX, "blk.%zu.%s.%s", layer, name->gguf, part);
    snprintf(hf, VPTQ_NAME_MAX, "model.layers.%zu.%s.%s", layer, name->hf, part);
    return true;
}

/* Number of heads whose rows are interleaved in the tensor; 0 = rows are in plain order. */
static uint32_t permuted_heads(const vptq_model_desc *d, const char *name)
{
    uint32_t layer = 0;
    const char *rest = d->family->gguf_permuted ? block_rest(name, &layer) : NULL;
    if (rest && strncmp(rest, "attn_q.", 7) == 0)
        return d->heads;
    if (rest && strncmp(rest, "attn_k.", 7) == 0)
        return d->kv_heads;
    return 0;
}

vptq_status vptq_gguf_hf_tensors(const vptq_gguf *g, const vptq_model_desc *desc,
                                 vptq_tensor_set *set, vptq_err *err)
{
    for (size_t i = 0; i < g->set.count; i++) {
        vptq_tensor t = g->set.tensors[i];
        char name[VPTQ_NAME_MAX];
        if (strcmp(t.name, "rope_freqs.weight") == 0)
            continue; /* part of the description */
        if (!hf_name(t.name, desc->layers, name))
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: tensor '%s' is not part of a %s model of %" PRIu32 " blocks",
                             g->path, t.name, desc->family->model_type, desc->layers);
        t.rope_heads = permuted_heads(desc, t.name);
        uint64_t permuted = t.dims ? t.shape[0] : 0;
        bool blocks = vptq_dtype_get(t.type)->block > 1;
        if (t.rope_heads &&
            (permuted != (uint64_t)t.rope_heads * desc->head_dim || (t.dims == 1 && blocks)))
            return vptq_fail(err, VPTQ_E_SHAPE,
                             "%s: tensor '%s' of %" PRIu64 " rows does not fit %" PRIu32
                             " heads of %" PRIu32,
                             g->path, t.name, permuted, t.rope_heads, desc->head_dim);
        t.name = name;
        VPTQ_CHECK(vptq_tensor_set_add(set, &t, err));
    }
    return vptq_tensor_set_finish(set, err);
}
