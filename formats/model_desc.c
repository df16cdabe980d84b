/* The family table, names and shapes of linear layers, and rotary tables. */
#include "formats/model_desc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GEMMA_DEFAULTS                                                                         \
    "{\"hidden_activation\": \"gelu_pytorch_tanh\", \"query_pre_attn_scalar\": 256,"           \
    " \"sliding_window\": 4096, \"tie_word_embeddings\": true"

/* A new family of this shape is a row here (docs/formats/models.md).  If several rows share a
 * GGUF architecture, GGUF files are read as the first one. */
static const vptq_family families[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .gguf_arch = "llama",
     .attention_bias = true,
     .mlp_bias = true,
     .gguf_permuted = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .gguf_arch = "llama",
     .gguf_permuted = true,
     .sliding_by_default = true},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .gguf_arch = "qwen2",
     .qkv_bias = true},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .gguf_arch = "qwen3",
     .attention_bias = true,
     .qk_norm = true,
     .head_dim = 128},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .defaults = "{\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5,"
                 " \"original_max_position_embeddings\": 4096, \"sliding_window\": null}",
     .sliding_by_default = true,
     .fused = true,
     .partial_rotary = true},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .defaults = GEMMA_DEFAULTS ", \"max_position_embeddings\": 8192,"
                                " \"attn_logit_softcapping\": 50.0,"
                                " \"final_logit_softcapping\": 30.0}",
     .attention_bias = true,
     .sliding_by_default = true,
     .norm_offset = true,
     .out_norms = true,
     .scaled_embedding = true,
     .head_dim = 256,
     .full_every = 2},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .whole = "gemma3",
     .defaults = GEMMA_DEFAULTS ", \"max_position_embeddings\": 131072,"
                                " \"num_attention_heads\": 8, \"num_key_value_heads\": 4,"
                                " \"rope_theta\": 1000000.0, \"vocab_size\": 262208}",
     .attention_bias = true,
     .qk_norm = true,
     .sliding_by_default = true,
     .local_rope = true,
     .norm_offset = true,
     .out_norms = true,
     .scaled_embedding = true,
     .head_dim = 256,
     .full_every = 6},
    {.model_type = "starcoder2",
     .architecture = "Starcoder2ForCausalLM",
     .defaults =
         "{\"hidden_act\": \"gelu_pytorch_tanh\", \"max_position_embeddings\": 4096,"
         " \"norm_epsilon\": 1e-5, \"num_key_value_heads\": 2, \"sliding_window\": null,"
         " \"tie_word_embeddings\": true, \"use_bias\": true}",
     .use_bias = true,
     .sliding_by_default = true,
     .layer_norm = true,
     .plain_mlp = true,
     .linear = {[VPTQ_LINEAR_UP] = "mlp.c_fc", [VPTQ_LINEAR_DOWN] = "mlp.c_proj"}},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .defaults = "{\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5,"
                 " \"num_key_value_heads\": 8, \"rope_theta\": 1000000.0,"
                 " \"sliding_window\": null, \"num_local_experts\": 8,"
                 " \"num_experts_per_tok\": 2}",
     .sliding_by_default = true,
     .experts = true,
     .mixtral_names = true},
    {.model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .defaults = "{\"max_position_embeddings\": 32768, \"num_key_value_heads\": 16,"
                 " \"num_experts\": 60, \"num_experts_per_tok\": 4,"
                 " \"moe_intermediate_size\": 1408,"
                 " \"shared_expert_intermediate_size\": 5632, \"qkv_bias\": true}",
     .qkv_bias = true,
     .experts = true,
     .shared_expert = true},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .defaults = "{\"max_position_embeddings\": 32768, \"num_key_value_heads\": 4,"
                 " \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 768}",
     .attention_bias = true,
     .qk_norm = true,
     .experts = true},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

const vptq_family *vptq_family_by_model_type(const char *model_type)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

const vptq_family *vptq_family_by_architecture(const char *architecture)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].architecture, architecture) == 0)
            return &families[i];
    return NULL;
}

const vptq_family *vptq_family_by_whole(const char *model_type)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (families[i].whole && strcmp(families[i].whole, model_type) == 0)
            return &families[i];
    return NULL;
}

const vptq_family *vptq_family_by_gguf_arch(const char *arch)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (families[i].gguf_arch && strcmp(families[i].gguf_arch, arch) == 0)
            return &families[i];
    return NULL;
}

void vptq_family_names(char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < FAMILIES && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "",
                               families[i].model_type);
}

typedef struct linear_info {
    const char *path;
    vptq_input input;
} linear_info;

static const linear_info linears[VPTQ_LINEAR_DENSE] = {
    [VPTQ_LINEAR_Q] = {"self_attn.q_proj", VPTQ_INPUT_QKV},
    [VPTQ_LINEAR_K] = {"self_attn.k_proj", VPTQ_INPUT_QKV},
    [VPTQ_LINEAR_V] = {"self_attn.v_proj", VPTQ_INPUT_QKV},
    [VPTQ_LINEAR_O] = {"self_attn.o_proj", VPTQ_INPUT_O},
    [VPTQ_LINEAR_GATE] = {"mlp.gate_proj", VPTQ_INPUT_UP},
    [VPTQ_LINEAR_UP] = {"mlp.up_proj", VPTQ_INPUT_UP},
    [VPTQ_LINEAR_DOWN] = {"mlp.down_proj", VPTQ_INPUT_DOWN},
};

const vptq_fused vptq_fused_layers[VPTQ_FUSED_COUNT] = {
    {"self_attn.qkv_proj", VPTQ_LINEAR_Q, 3}, {"mlp.gate_up_proj", VPTQ_LINEAR_GATE, 2}};

const char *vptq_block_norm_path(const vptq_family *f, vptq_block_norm n)
{
    switch (n) {
    case VPTQ_BLOCK_NORM_INPUT:
        return "input_layernorm";
    case VPTQ_BLOCK_NORM_FEED_FORWARD:
        return f->out_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    case VPTQ_BLOCK_NORM_Q:
        return f->qk_norm ? "self_attn.q_norm" : NULL;
    case VPTQ_BLOCK_NORM_K:
        return f->qk_norm ? "self_attn.k_norm" : NULL;
    case VPTQ_BLOCK_NORM_ATTENTION_OUT:
        return f->out_norms ? "post_attention_layernorm" : NULL;
    default:
        return f->out_norms ? "post_feedforward_layernorm" : NULL;
    }
}

bool vptq_layer_slides(const vptq_model_desc *d, uint32_t layer)
{
    return d->window && layer >= d->window_from &&
           !(d->full_every && (layer + 1) % d->full_every == 0);
}

uint32_t vptq_layer_window(const vptq_model_desc *d, uint32_t layer)
{
    return vptq_layer_slides(d, layer) ? d->window : 0;
}

uint32_t vptq_rotary_dim(const vptq_model_desc *d)
{
    return d->rotary_dim ? d->rotary_dim : d->head_dim;
}

/* ---- experts ---- */

bool vptq_layer_has_experts(const vptq_experts *x, uint32_t layer)
{
    return x->count && layer < VPTQ_EXPERT_LAYERS_MAX &&
           !(x->dense[layer / 64] >> layer % 64 & 1);
}

void vptq_layer_set_dense(vptq_experts *x, uint32_t layer)
{
    x->dense[layer / 64] |= UINT64_C(1) << layer % 64;
}

int vptq_linear_count(const vptq_model_desc *d)
{
    const int count = (int)d->experts.count;
    return count ? VPTQ_LINEAR_EXPERT + 3 * count : VPTQ_LINEAR_DENSE;
}

int vptq_input_count(const vptq_experts *x)
{
    return x->count ? VPTQ_INPUT_EXPERT + 2 * (int)x->count : VPTQ_INPUT_DENSE;
}

bool vptq_linear_exists(const vptq_model_desc *d, uint32_t layer, vptq_linear l)
{
    const bool experts = vptq_layer_has_experts(&d->experts, layer);
    if (l < VPTQ_LINEAR_GATE)
        return true;
    if (l == VPTQ_LINEAR_GATE && d->family->plain_mlp)
        return false;
    if (l < VPTQ_LINEAR_DENSE || !experts)
        return l < VPTQ_LINEAR_DENSE && !experts;
    return l >= VPTQ_LINEAR_EXPERT || d->experts.shared;
}

bool vptq_input_exists(const vptq_experts *x, uint32_t layer, vptq_input i)
{
    const bool experts = vptq_layer_has_experts(x, layer);
    if (i < VPTQ_INPUT_DOWN)
        return true;
    if (i == VPTQ_INPUT_DOWN || !experts)
        return i == VPTQ_INPUT_DOWN && !experts;
    return i >= VPTQ_INPUT_EXPERT || x->shared;
}

bool vptq_input_occurs(const vptq_model_desc *d, vptq_input i)
{
    for (uint32_t layer = 0; layer < d->layers; layer++)
        if (vptq_input_exists(&d->experts, layer, i))
            return true;
    return false;
}

size_t vptq_linear_total(const vptq_model_desc *d, uint32_t first, uint32_t last)
{
    size_t total = 0;
    for (uint32_t layer = first; layer <= last; layer++)
        for (int l = 0; l < vptq_linear_count(d); l++)
            total += vptq_linear_exists(d, layer, l);
    return total;
}

vptq_linear vptq_linear_kind(vptq_linear l)
{
    return l < VPTQ_LINEAR_DENSE ? l : VPTQ_LINEAR_GATE + (l - VPTQ_LINEAR_DENSE) % 3;
}

vptq_linear vptq_expert_linear(uint32_t e, vptq_linear kind)
{
    return VPTQ_LINEAR_EXPERT + 3 * (int)e + kind - VPTQ_LINEAR_GATE;
}

vptq_input vptq_expert_input(uint32_t e, vptq_input kind)
{
    return VPTQ_INPUT_EXPERT + 2 * (int)e + kind - VPTQ_INPUT_UP;
}

int vptq_linear_expert(vptq_linear l)
{
    return l < VPTQ_LINEAR_EXPERT ? -1 : (l - VPTQ_LINEAR_EXPERT) / 3;
}

int vptq_input_expert(vptq_input i)
{
    return i < VPTQ_INPUT_EXPERT ? -1 : (i - VPTQ_INPUT_EXPERT) / 2;
}

const char *vptq_router_path(const vptq_family *f)
{
    return f->mixtral_names ? "block_sparse_moe.gate" : "mlp.gate";
}

uint32_t vptq_widest_intermediate(const vptq_model_desc *d)
{
    const vptq_experts *x = &d->experts;
    const uint32_t widest = x->shared > x->intermediate ? x->shared : x->intermediate;
    return widest > d->intermediate ? widest : d->intermediate;
}

/* ---- linear layers and inputs ---- */

/* "mlp.gate_proj": path inside a dense block of the linear layer of that kind. */
static const char *path_of(const vptq_model_desc *d, vptq_linear l)
{
    const char *own = d->family->linear[vptq_linear_kind(l)];
    return own ? own : linears[vptq_linear_kind(l)].path;
}

const char *vptq_linear_kind_name(const vptq_model_desc *d, vptq_linear l)
{
    return strchr(path_of(d, l), '.') + 1;
}

/* "w1", which Mixtral calls the gate of an expert. */
static const char *name_in_expert(const vptq_model_desc *d, vptq_linear l)
{
    static const char *const mixtral[] = {"w1", "w3", "w2"};
    return d->family->mixtral_names ? mixtral[vptq_linear_kind(l) - VPTQ_LINEAR_GATE]
                                    : vptq_linear_kind_name(d, l);
}

vptq_short_name vptq_linear_name(const vptq_model_desc *d, vptq_linear l)
{
    vptq_short_name name;
    if (l < VPTQ_LINEAR_DENSE)
        snprintf(name.text, sizeof name.text, "%s", vptq_linear_kind_name(d, l));
    else if (l < VPTQ_LINEAR_EXPERT)
        snprintf(name.text, sizeof name.text, "shared_expert.%s", vptq_linear_kind_name(d, l));
    else
        snprintf(name.text, sizeof name.text, "experts.%d.%s", vptq_linear_expert(l),
                 name_in_expert(d, l));
    return name;
}

vptq_short_name vptq_input_name(vptq_input i)
{
    static const char *const names[] = {"qkv", "o", "up", "down", "shared_down"};
    vptq_short_name name;
    if (i < VPTQ_INPUT_EXPERT)
        snprintf(name.text, sizeof name.text, "%s", names[i]);
    else
        snprintf(name.text, sizeof name.text, "expert%d_%s", vptq_input_expert(i),
                 (i - VPTQ_INPUT_EXPERT) % 2 ? "down" : "up");
    return name;
}

vptq_input vptq_linear_input(vptq_linear l)
{
    const vptq_input input = linears[vptq_linear_kind(l)].input;
    if (l < VPTQ_LINEAR_DENSE || (l < VPTQ_LINEAR_EXPERT && input == VPTQ_INPUT_UP))
        return input;
    return l < VPTQ_LINEAR_EXPERT ? VPTQ_INPUT_SHARED_DOWN
                                  : vptq_expert_input((uint32_t)vptq_linear_expert(l), input);
}

uint32_t vptq_input_size(const vptq_model_desc *d, vptq_input i)
{
    if (i >= VPTQ_INPUT_EXPERT)
        return (i - VPTQ_INPUT_EXPERT) % 2 ? d->experts.intermediate : d->hidden;
    switch (i) {
    case VPTQ_INPUT_O:
        return d->heads * d->head_dim;
    case VPTQ_INPUT_DOWN:
        return d->intermediate;
    case VPTQ_INPUT_SHARED_DOWN:
        return d->experts.shared;
    default:
        return d->hidden;
    }
}

void vptq_linear_shape(const vptq_model_desc *d, vptq_linear l, uint32_t *out, uint32_t *in)
{
    const uint32_t inter = l < VPTQ_LINEAR_DENSE    ? d->intermediate
                           : l < VPTQ_LINEAR_EXPERT ? d->experts.shared
                                                    : d->experts.intermediate;
    *in = vptq_input_size(d, vptq_linear_input(l));
    switch (vptq_linear_kind(l)) {
    case VPTQ_LINEAR_Q:
        *out = d->heads * d->head_dim;
        break;
    case VPTQ_LINEAR_K:
    case VPTQ_LINEAR_V:
        *out = d->kv_heads * d->head_dim;
        break;
    case VPTQ_LINEAR_GATE:
    case VPTQ_LINEAR_UP:
        *out = inter;
        break;
    default:
        *out = d->hidden;
        break;
    }
    if (l == VPTQ_LINEAR_GATE && d->family->plain_mlp)
        *out = 0;
}

void vptq_linear_full_name(const vptq_model_desc *d, char name[VPTQ_NAME_MAX], uint32_t layer,
                           vptq_linear l)
{
    if (l < VPTQ_LINEAR_DENSE)
        snprintf(name, VPTQ_NAME_MAX, "model.layers.%u.%s", layer, path_of(d, l));
    else
        snprintf(name, VPTQ_NAME_MAX, "model.layers.%u.%s.%s", layer,
                 d->family->mixtral_names ? "block_sparse_moe" : "mlp",
                 vptq_linear_name(d, l).text);
}

bool vptq_linear_has_bias(const vptq_model_desc *d, vptq_linear l)
{
    if (vptq_linear_input(l) == VPTQ_INPUT_QKV)
        return d->qkv_bias;
    return l == VPTQ_LINEAR_O ? d->o_bias : d->mlp_bias && l < VPTQ_LINEAR_DENSE;
}

const char *vptq_name_in_block(const vptq_model_desc *d, const char *name)
{
    static const char prefix[] = "model.layers.";
    const char *number = name + sizeof prefix - 1;
    char *end;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0 || *number < '0' || *number > '9' ||
        (*number == '0' && number[1] != '.'))
        return NULL;
    const unsigned long long layer = strtoull(number, &end, 10);
    return *end == '.' && layer < d->layers ? end + 1 : NULL;
}

bool vptq_linear_of_module(const vptq_model_desc *d, const char *name, size_t length,
                           vptq_linear *l)
{
    char full[VPTQ_NAME_MAX];
    const char *rest = vptq_name_in_block(d, name), *number;
    if (!rest || name + length < rest)
        return false;
    const uint32_t layer = (uint32_t)strtoul(name + sizeof "model.layers." - 1, NULL, 10);
    int begin = 0, end = VPTQ_LINEAR_EXPERT;
    number = strstr(rest, ".experts.");
    if (number && d->experts.count) { /* only those of the expert that it names */
        const unsigned long e = strtoul(number + sizeof ".experts." - 1, NULL, 10);
        begin = e < d->experts.count ? vptq_expert_linear((uint32_t)e, VPTQ_LINEAR_GATE) : 0;
        end = e < d->experts.count ? begin + 3 : 0;
    }
    for (int i = begin; i < end; i++) {
        if (!vptq_linear_exists(d, layer, i))
            continue;
        vptq_linear_full_name(d, full, layer, i);
        if (strlen(full) != length || strncmp(name, full, length) != 0)
            continue;
        *l = i;
        return true;
    }
    return false;
}

static vptq_status check_size(const char *file, const char *what, uint64_t n, uint64_t max,
                              vptq_err *err)
{
    if (n >= 1 && n <= max)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: the model's %s is %llu, expected 1 to %llu", file,
                     what, (unsigned long long)n, (unsigned long long)max);
}

static vptq_status check_sizes(const vptq_model_desc *d, const char *file, vptq_err *err)
{
    const uint64_t dim = UINT64_C(1) << 20;
    const struct {
        const char *what;
        uint64_t n, max;
    } sizes[] = {
        {"hidden size", d->hidden, dim},
        {"intermediate size", d->intermediate, dim},
        {"number of layers", d->layers, 1 << 16},
        {"number of heads", d->heads, dim},
        {"number of key-value heads", d->kv_heads, d->heads},
        {"head dimension", d->head_dim, 1 << 16},
        {"number of heads times head dimension", (uint64_t)d->heads * d->head_dim, dim},
        {"vocabulary size", d->vocab, 1 << 28},
        {"context length", d->context, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        VPTQ_CHECK(check_size(file, sizes[i].what, sizes[i].n, sizes[i].max, err));
    return VPTQ_OK;
}

static vptq_status check_experts(const vptq_model_desc *d, const char *file, vptq_err *err)
{
    const uint64_t dim = UINT64_C(1) << 20;
    const vptq_experts *x = &d->experts;
    if (!d->family->experts)
        return VPTQ_OK;
    VPTQ_CHECK(check_size(file, "number of experts", x->count, VPTQ_EXPERTS_MAX, err));
    VPTQ_CHECK(check_size(file, "number of experts per token", x->used, x->count, err));
    VPTQ_CHECK(check_size(file, "intermediate size of experts", x->intermediate, dim, err));
    if (d->family->shared_expert)
        VPTQ_CHECK(
            check_size(file, "intermediate size of the shared expert", x->shared, dim, err));
    return check_size(file, "number of layers", d->layers, VPTQ_EXPERT_LAYERS_MAX, err);
}

static vptq_status check_positive(const char *file, const char *what, double x, vptq_err *err)
{
    if (x > 0 && isfinite(x))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: the model's %s is %g, expected more than 0", file,
                     what, x);
}

static vptq_status check_longrope(const vptq_model_desc *d, const char *file, vptq_err *err)
{
    const uint32_t pairs = vptq_rotary_dim(d) / 2;
    VPTQ_CHECK(check_positive(file, "RoPE attention factor", d->rope_attention_factor, err));
    VPTQ_CHECK(check_positive(file, "original context of RoPE scaling",
                              d->rope_original_context, err));
    if (pairs > VPTQ_LONGROPE_MAX)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: longrope scaling of %u pairs is not supported, at most %d", file,
                         pairs, (int)VPTQ_LONGROPE_MAX);
    for (uint32_t i = 0; i < pairs; i++) {
        VPTQ_CHECK(check_positive(file, "short RoPE factor", (double)d->rope_short[i], err));
        VPTQ_CHECK(check_positive(file, "long RoPE factor", (double)d->rope_long[i], err));
    }
    return VPTQ_OK;
}

static vptq_status check_rope(const vptq_model_desc *d, const char *file, vptq_err *err)
{
    VPTQ_CHECK(check_positive(file, "RoPE theta", d->rope_theta, err));
    if (vptq_rotary_dim(d) % 2 != 0 || d->rotary_dim > d->head_dim)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %u elements of each head are rotated, expected an even number up "
                         "to the head dimension of %u",
                         file, d->rotary_dim, d->head_dim);
    if (d->rope_local_theta != 0)
        VPTQ_CHECK(check_positive(file, "local RoPE theta", d->rope_local_theta, err));
    if (d->rope_scaling == VPTQ_ROPE_NONE)
        return VPTQ_OK;
    if (d->rope_scaling == VPTQ_ROPE_LONGROPE)
        return check_longrope(d, file, err);
    VPTQ_CHECK(check_positive(file, "RoPE factor", d->rope_factor, err));
    if (d->rope_scaling == VPTQ_ROPE_LINEAR)
        return VPTQ_OK;
    VPTQ_CHECK(check_positive(file, "lower RoPE frequency bound", d->rope_low, err));
    VPTQ_CHECK(check_positive(file, "upper RoPE frequency bound", d->rope_high, err));
    VPTQ_CHECK(check_positive(file, "RoPE attention factor", d->rope_attention_factor, err));
    VPTQ_CHECK(check_positive(file, "original context of RoPE scaling",
                              d->rope_original_context, err));
    if (!(d->rope_low < d->rope_high))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the RoPE frequency bounds are %g and %g, expected the first to "
                         "be the smaller one",
                         file, d->rope_low, d->rope_high);
    if (d->rope_scaling == VPTQ_ROPE_YARN && d->rope_theta <= 1)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: RoPE theta is %g, YaRN scaling expects more than 1", file,
                         d->rope_theta);
    return VPTQ_OK;
}

vptq_status vptq_model_desc_check(const vptq_model_desc *d, const char *file, vptq_err *err)
{
    VPTQ_CHECK(check_sizes(d, file, err));
    VPTQ_CHECK(check_experts(d, file, err));
    if (d->heads % d->kv_heads != 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %u heads cannot share %u key-value heads evenly", file, d->heads,
                         d->kv_heads);
    if (d->head_dim % 2 != 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the head dimension %u is odd, RoPE needs pairs", file,
                         d->head_dim);
    VPTQ_CHECK(check_positive(file, "norm epsilon", (double)d->norm_eps, err));
    if (d->query_scalar != 0)
        VPTQ_CHECK(check_positive(file, "query_pre_attn_scalar", d->query_scalar, err));
    if (d->score_cap != 0)
        VPTQ_CHECK(check_positive(file, "soft cap of scores", d->score_cap, err));
    if (d->logit_cap != 0)
        VPTQ_CHECK(check_positive(file, "soft cap of logits", d->logit_cap, err));
    return check_rope(d, file, err);
}

double vptq_rope_yarn_attention(double factor, double weight)
{
    return factor <= 1 ? 1.0 : 0.1 * weight * log(factor) + 1.0;
}

/* theta^(2 i / rotary_dim), rounded from the double pow, which is the same on every machine,
 * unlike powf. */
static float theta_power(const vptq_model_desc *d, uint32_t i)
{
    float exponent = (float)(2 * i) / (float)vptq_rotary_dim(d);
    return (float)pow((double)(float)d->rope_theta, (double)exponent);
}

/* PyTorch divides a number by a tensor as reciprocal times number.  The same two roundings give
 * the same frequencies as transformers. */
static float torch_quotient(float number, float x)
{
    return 1.0f / x * number;
}

static float llama3_frequency(const vptq_model_desc *d, float inv)
{
    double context = d->rope_original_context;
    float wavelength = torch_quotient(6.283185307179586f, inv);
    if (wavelength > (float)(context / d->rope_low))
        return inv / (float)d->rope_factor;
    if (wavelength < (float)(context / d->rope_high))
        return inv;
    float smooth = (torch_quotient((float)context, wavelength) - (float)d->rope_low) /
                   (float)(d->rope_high - d->rope_low);
    return (1.0f - smooth) * inv / (float)d->rope_factor + smooth * inv;
}

/* The dimension whose frequency makes `rotations` turns over the original context. */
static double yarn_dimension(const vptq_model_desc *d, double rotations)
{
    const double pi2 = 6.283185307179586;
    return (vptq_rotary_dim(d) * log(d->rope_original_context / (rotations * pi2))) /
           (2 * log(d->rope_theta));
}

static float yarn_frequency(const vptq_model_desc *d, uint32_t i, float power)
{
    double low = fmax(floor(yarn_dimension(d, d->rope_high)), 0);
    double high = fmin(ceil(yarn_dimension(d, d->rope_low)), vptq_rotary_dim(d) - 1.0);
    if (low == high)
        high += 0.001; /* a step instead of a ramp */
    float ramp = ((float)i - (float)low) / (float)(high - low);
    float kept = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
    float stretched = 1.0f / ((float)d->rope_factor * power);
    return stretched * (1.0f - kept) + 1.0f / power * kept;
}

/* Frequency i for sequences of at most `length` tokens. */
static float inverse_frequency(const vptq_model_desc *d, size_t length, uint32_t i)
{
    float power = theta_power(d, i);
    const bool extended = length > d->rope_original_context;
    switch (d->rope_scaling) {
    case VPTQ_ROPE_LINEAR:
        return 1.0f / power / (float)d->rope_factor;
    case VPTQ_ROPE_LLAMA3:
        return llama3_frequency(d, 1.0f / power);
    case VPTQ_ROPE_YARN:
        return yarn_frequency(d, i, power);
    case VPTQ_ROPE_LONGROPE:
        return 1.0f / ((extended ? d->rope_long : d->rope_short)[i] * power);
    default:
        return 1.0f / power;
    }
}

void vptq_rope_tables(const vptq_model_desc *d, size_t positions, float *cos_table,
                      float *sin_table)
{
    size_t half = vptq_rotary_dim(d) / 2;
    const bool scaled =
        d->rope_scaling == VPTQ_ROPE_YARN || d->rope_scaling == VPTQ_ROPE_LONGROPE;
    float scale = scaled ? (float)d->rope_attention_factor : 1.0f;
    for (uint32_t i = 0; i < half; i++) {
        float inv = inverse_frequency(d, positions, i);
        for (size_t p = 0; p < positions; p++) {
            float angle = (float)p * inv;
            cos_table[p * half + i] = (float)cos((double)angle) * scale;
            sin_table[p * half + i] = (float)sin((double)angle) * scale;
        }
    }
}

bool vptq_is_embedding(const char *tensor)
{
    return strcmp(tensor, VPTQ_EMBEDDING_NAME) == 0 || strcmp(tensor, VPTQ_HEAD_NAME) == 0;
}

bool vptq_is_embedding_type(vptq_dtype type)
{
    return type == VPTQ_F16 || type == VPTQ_BF16 || type == VPTQ_F32 || type == VPTQ_Q8_0 ||
           type == VPTQ_Q6_K;
}
