/* Parses and makes Hugging Face config.json files. */
#include "formats/hf/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* transformers' defaults for missing keys. */
enum { DEFAULT_CONTEXT = 2048, DEFAULT_WINDOW = 4096 };
#define DEFAULT_EPS   1e-6
#define DEFAULT_THETA 10000.0

/* The object being parsed. */
typedef struct source {
    const json_t *obj;
    const char *name; /* for messages */
} source;

static vptq_status get_u32(source s, const char *key, uint32_t *out, vptq_err *err)
{
    uint64_t n = 0;
    vptq_status st = vptq_json_u64(s.obj, s.name, key, UINT32_MAX, &n, err);
    *out = (uint32_t)n;
    return st;
}

static vptq_status get_u32_or(source s, const char *key, uint32_t fallback, uint32_t *out,
                              vptq_err *err)
{
    uint64_t n = 0;
    vptq_status st = vptq_json_u64_or(s.obj, s.name, key, UINT32_MAX, fallback, &n, err);
    *out = (uint32_t)n;
    return st;
}

/* The first entry of `architectures`, or "". */
static const char *first_architecture(const json_t *obj)
{
    const json_t *list = json_object_get(obj, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    return name ? name : "";
}

static vptq_status find_family(source s, const vptq_family **out, vptq_err *err)
{
    const char *type, *architecture = first_architecture(s.obj);
    VPTQ_CHECK(vptq_json_str_or(s.obj, s.name, "model_type", "", &type, err));
    const vptq_family *f =
        *type ? vptq_family_by_model_type(type) : vptq_family_by_architecture(architecture);
    if (f && (!*architecture || strcmp(f->architecture, architecture) == 0)) {
        *out = f;
        return VPTQ_OK;
    }
    char names[256];
    vptq_family_names(names, sizeof names);
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: architecture '%.100s' of model type '%.100s' is not supported, "
                     "expected a causal language model of one of: %s",
                     s.name, architecture, type, names);
}

static vptq_status parse_sizes(source s, vptq_model_desc *d, vptq_err *err)
{
    double eps;
    VPTQ_CHECK(get_u32(s, "hidden_size", &d->hidden, err));
    VPTQ_CHECK(get_u32(s, "intermediate_size", &d->intermediate, err));
    VPTQ_CHECK(get_u32(s, "num_hidden_layers", &d->layers, err));
    VPTQ_CHECK(get_u32(s, "num_attention_heads", &d->heads, err));
    VPTQ_CHECK(get_u32(s, "vocab_size", &d->vocab, err));
    VPTQ_CHECK(get_u32_or(s, "num_key_value_heads", d->heads, &d->kv_heads, err));
    VPTQ_CHECK(get_u32_or(s, "max_position_embeddings", DEFAULT_CONTEXT, &d->context, err));
    uint32_t head_dim = d->family->head_dim;
    if (!head_dim && d->heads)
        head_dim = d->hidden / d->heads;
    VPTQ_CHECK(get_u32_or(s, "head_dim", head_dim, &d->head_dim, err));
    VPTQ_CHECK(vptq_json_f64_or(s.obj, s.name,
                                d->family->layer_norm ? "norm_epsilon" : "rms_norm_eps",
                                DEFAULT_EPS, &eps, err));
    d->norm_eps = (float)eps;
    return VPTQ_OK;
}

/* Gemma has its own key, and in some files also an old one that does not count. */
static vptq_status parse_activation(source s, vptq_model_desc *d, vptq_err *err)
{
    const char *activation;
    const char *key = d->family->scaled_embedding ? "hidden_activation" : "hidden_act";
    VPTQ_CHECK(vptq_json_str_or(s.obj, s.name, key, "silu", &activation, err));
    d->gelu = strcmp(activation, "gelu_pytorch_tanh") == 0;
    if (d->gelu || strcmp(activation, "silu") == 0)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: '%s' is '%.100s', only 'silu' and 'gelu_pytorch_tanh' are supported",
                     s.name, key, activation);
}

static vptq_status parse_switches(source s, vptq_model_desc *d, vptq_err *err)
{
    bool attention_bias, mlp_bias, use_bias;
    VPTQ_CHECK(parse_activation(s, d, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "tie_word_embeddings", false, &d->tied, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "attention_bias", false, &attention_bias, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "mlp_bias", false, &mlp_bias, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "use_bias", false, &use_bias, err));
    /* a key that transformers does not read for the family declares nothing */
    use_bias = d->family->use_bias && use_bias;
    d->o_bias = use_bias || (d->family->attention_bias && attention_bias);
    d->qkv_bias = d->family->qkv_bias || d->o_bias;
    d->mlp_bias = use_bias || (d->family->mlp_bias && mlp_bias);
    return VPTQ_OK;
}

/* Whether layer i slides according to `layer_types`. */
static vptq_status layer_type(source s, const json_t *types, uint32_t i, bool *slides,
                              vptq_err *err)
{
    const char *type = json_string_value(json_array_get(types, i));
    *slides = type && strcmp(type, "sliding_attention") == 0;
    if (*slides || (type && strcmp(type, "full_attention") == 0))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: 'layer_types' of layer %u is '%.100s', expected full_attention or "
                     "sliding_attention",
                     s.name, i, type ? type : "(not a string)");
}

/* Sets window_from and full_every from `layer_types`: full attention in the first layers, then
 * sliding attention, except for one layer in every so many. */
static vptq_status parse_layer_types(source s, vptq_model_desc *d, vptq_err *err)
{
    const json_t *types = json_object_get(s.obj, "layer_types");
    bool slides;
    if (!types || json_is_null(types))
        return VPTQ_OK;
    if (json_array_size(types) != d->layers)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: 'layer_types' is not a list of one name per layer, expected %u",
                         s.name, d->layers);
    d->window_from = d->layers;
    d->full_every = 0;
    for (uint32_t i = 0; i < d->layers; i++) {
        VPTQ_CHECK(layer_type(s, types, i, &slides, err));
        if (slides && d->window_from == d->layers)
            d->window_from = i;
        else if (!slides && d->window_from < i && !d->full_every)
            d->full_every = i + 1;
        if (slides != vptq_layer_slides(d, i))
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: 'layer_types' of layer %u does not continue the pattern of "
                             "the layers before it",
                             s.name, i);
    }
    return VPTQ_OK;
}

/* Mistral, Phi-3 and StarCoder2 use a sliding window in all layers unless `sliding_window` is
 * null, Gemma in all but one of every so many; the Qwen families only with use_sliding_window,
 * from layer max_window_layers on. */
static vptq_status parse_window(source s, vptq_model_desc *d, vptq_err *err)
{
    bool slides = d->family->sliding_by_default;
    uint32_t fallback =
        slides && !json_object_get(s.obj, "sliding_window") ? DEFAULT_WINDOW : 0;
    if (!slides)
        VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "use_sliding_window", false, &slides, err));
    if (!slides)
        return VPTQ_OK;
    VPTQ_CHECK(get_u32_or(s, "sliding_window", fallback, &d->window, err));
    if (!d->window && d->family->local_rope)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: 'sliding_window' is null or 0, expected a number of tokens",
                         s.name);
    if (d->window && !d->family->sliding_by_default)
        VPTQ_CHECK(get_u32_or(s, "max_window_layers", 28, &d->window_from, err));
    if (d->window && d->family->full_every)
        VPTQ_CHECK(get_u32_or(s, "sliding_window_pattern", d->family->full_every,
                              &d->full_every, err));
    if (d->window && (d->family->full_every || !d->family->sliding_by_default))
        VPTQ_CHECK(parse_layer_types(s, d, err));
    if (d->window_from >= d->layers || d->full_every == 1)
        d->window = 0;
    if (!d->window)
        d->window_from = d->full_every = 0;
    return VPTQ_OK;
}

/* Scales and caps of Gemma. */
static vptq_status parse_gemma(source s, vptq_model_desc *d, vptq_err *err)
{
    bool both_ways;
    if (!d->family->scaled_embedding)
        return VPTQ_OK;
    VPTQ_CHECK(
        vptq_json_f64_or(s.obj, s.name, "query_pre_attn_scalar", 0, &d->query_scalar, err));
    VPTQ_CHECK(
        vptq_json_f64_or(s.obj, s.name, "attn_logit_softcapping", 0, &d->score_cap, err));
    VPTQ_CHECK(
        vptq_json_f64_or(s.obj, s.name, "final_logit_softcapping", 0, &d->logit_cap, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "use_bidirectional_attention", false,
                                 &both_ways, err));
    if (!both_ways)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: 'use_bidirectional_attention' is true, only causal attention is "
                     "supported",
                     s.name);
}

/* Marks the layers that `mlp_only_layers` or `decoder_sparse_step` leave without experts. */
static vptq_status parse_dense_layers(source s, vptq_model_desc *d, vptq_err *err)
{
    const json_t *list = json_object_get(s.obj, "mlp_only_layers");
    uint32_t step;
    VPTQ_CHECK(get_u32_or(s, "decoder_sparse_step", 1, &step, err));
    if (!step)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: 'decoder_sparse_step' is 0, expected a positive number", s.name);
    if (list && !json_is_null(list) && !json_is_array(list))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: 'mlp_only_layers' is not a list of layers",
                         s.name);
    for (uint32_t i = 0; i < d->layers && i < VPTQ_EXPERT_LAYERS_MAX; i++)
        if ((i + 1) % step != 0)
            vptq_layer_set_dense(&d->experts, i);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        if (layer < 0 || layer >= (json_int_t)d->layers || layer >= VPTQ_EXPERT_LAYERS_MAX)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: entry %zu of 'mlp_only_layers' is not one of the layers 0 to "
                             "%u",
                             s.name, i, d->layers - 1);
        vptq_layer_set_dense(&d->experts, (uint32_t)layer);
    }
    return VPTQ_OK;
}

/* Qwen counts experts in `num_experts`; transformers 5 writes Qwen3-MoE with the key of
 * Mixtral.  128 is the default of Qwen3-MoE. */
static vptq_status parse_experts(source s, vptq_model_desc *d, vptq_err *err)
{
    vptq_experts *x = &d->experts;
    bool slides;
    if (!d->family->experts)
        return VPTQ_OK;
    const bool mixtral = d->family->mixtral_names || !json_object_get(s.obj, "num_experts");
    VPTQ_CHECK(
        get_u32_or(s, mixtral ? "num_local_experts" : "num_experts", 128, &x->count, err));
    VPTQ_CHECK(get_u32(s, "num_experts_per_tok", &x->used, err));
    x->normalized = true;
    x->intermediate = d->intermediate;
    if (d->family->mixtral_names)
        return VPTQ_OK;
    VPTQ_CHECK(get_u32(s, "moe_intermediate_size", &x->intermediate, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "norm_topk_prob", false, &x->normalized, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "use_sliding_window", false, &slides, err));
    if (d->family->shared_expert) {
        VPTQ_CHECK(get_u32(s, "shared_expert_intermediate_size", &x->shared, err));
        VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "qkv_bias", true, &d->qkv_bias, err));
    }
    if (slides)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: 'use_sliding_window' is true, which is not supported for %s",
                         s.name, d->family->model_type);
    return parse_dense_layers(s, d, err);
}

/* A number of a rope_scaling object; with `required` an error if missing. */
static vptq_status rope_number(source s, const char *key, bool required, double fallback,
                               double *out, vptq_err *err)
{
    const json_t *value = json_object_get(s.obj, key);
    if (required && (!value || json_is_null(value)))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' of the RoPE scaling is missing",
                         s.name, key);
    return vptq_json_f64_or(s.obj, s.name, key, fallback, out, err);
}

static vptq_status parse_llama3(source s, vptq_model_desc *d, vptq_err *err)
{
    d->rope_scaling = VPTQ_ROPE_LLAMA3;
    VPTQ_CHECK(rope_number(s, "low_freq_factor", true, 0, &d->rope_low, err));
    VPTQ_CHECK(rope_number(s, "high_freq_factor", true, 0, &d->rope_high, err));
    return get_u32(s, "original_max_position_embeddings", &d->rope_original_context, err);
}

static vptq_status parse_yarn(source s, vptq_model_desc *d, vptq_err *err)
{
    double mscale, all;
    bool truncate;
    d->rope_scaling = VPTQ_ROPE_YARN;
    VPTQ_CHECK(rope_number(s, "beta_slow", false, 1, &d->rope_low, err));
    VPTQ_CHECK(rope_number(s, "beta_fast", false, 32, &d->rope_high, err));
    VPTQ_CHECK(get_u32_or(s, "original_max_position_embeddings", d->context,
                          &d->rope_original_context, err));
    VPTQ_CHECK(vptq_json_bool_or(s.obj, s.name, "truncate", true, &truncate, err));
    if (!truncate)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: YaRN scaling with 'truncate' false is not supported", s.name);
    VPTQ_CHECK(rope_number(s, "mscale", false, 0, &mscale, err));
    VPTQ_CHECK(rope_number(s, "mscale_all_dim", false, 0, &all, err));
    double attention = vptq_rope_yarn_attention(d->rope_factor, 1);
    if (mscale != 0 && all != 0)
        attention = vptq_rope_yarn_attention(d->rope_factor, mscale) /
                    vptq_rope_yarn_attention(d->rope_factor, all);
    return rope_number(s, "attention_factor", false, attention, &d->rope_attention_factor, err);
}

/* The factors of all pairs, in a list. */
static vptq_status parse_factors(source s, const char *key, const vptq_model_desc *d, float *to,
                                 vptq_err *err)
{
    const json_t *list = json_object_get(s.obj, key);
    const size_t pairs = vptq_rotary_dim(d) / 2;
    bool fits = json_array_size(list) == pairs && pairs <= VPTQ_LONGROPE_MAX;
    for (size_t i = 0; fits && i < pairs; i++) {
        fits = json_is_number(json_array_get(list, i));
        to[i] = (float)json_number_value(json_array_get(list, i));
    }
    return fits ? VPTQ_OK
                : vptq_fail(err, VPTQ_E_FORMAT,
                            "%s: key '%s' of the RoPE scaling is not a list of %zu numbers, at "
                            "most %d",
                            s.name, key, pairs, (int)VPTQ_LONGROPE_MAX);
}

/* `top` is the object that holds the scaling; its key has precedence. */
static vptq_status parse_longrope(source top, source s, vptq_model_desc *d, vptq_err *err)
{
    uint32_t original;
    double factor;
    d->rope_scaling = VPTQ_ROPE_LONGROPE;
    VPTQ_CHECK(get_u32_or(s, "original_max_position_embeddings", d->context, &original, err));
    VPTQ_CHECK(get_u32_or(top, "original_max_position_embeddings", original,
                          &d->rope_original_context, err));
    VPTQ_CHECK(parse_factors(s, "short_factor", d, d->rope_short, err));
    VPTQ_CHECK(parse_factors(s, "long_factor", d, d->rope_long, err));
    const double length = d->rope_original_context;
    VPTQ_CHECK(
        rope_number(s, "factor", false, d->context / (length > 0 ? length : 1), &factor, err));
    const double attention = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(length));
    return rope_number(s, "attention_factor", false, attention, &d->rope_attention_factor, err);
}

/* Phi-3 called longrope by other names before. */
static bool is_longrope(const vptq_model_desc *d, const char *type)
{
    return strcmp(type, "longrope") == 0 ||
           (d->family->partial_rotary &&
            (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0));
}

static vptq_status parse_scaling(source top, source s, vptq_model_desc *d, vptq_err *err)
{
    const char *type;
    VPTQ_CHECK(vptq_json_str_or(s.obj, s.name, "type", "default", &type, err));
    VPTQ_CHECK(vptq_json_str_or(s.obj, s.name, "rope_type", type, &type, err));
    if (strcmp(type, "default") == 0)
        return VPTQ_OK;
    if (is_longrope(d, type))
        return parse_longrope(top, s, d, err);
    VPTQ_CHECK(rope_number(s, "factor", true, 1, &d->rope_factor, err));
    if (strcmp(type, "llama3") == 0)
        return parse_llama3(s, d, err);
    if (strcmp(type, "yarn") == 0)
        return parse_yarn(s, d, err);
    if (strcmp(type, "linear") == 0)
        d->rope_scaling = VPTQ_ROPE_LINEAR;
    else if (strcmp(type, "dynamic") != 0 || d->rope_factor != 1)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: RoPE scaling '%.100s' with factor %g is not supported, expected "
                         "default, linear, llama3, yarn or longrope",
                         s.name, type, d->rope_factor);
    return VPTQ_OK;
}

/* The object of a key; NULL if missing or null. */
static vptq_status get_object(source s, const char *key, const json_t **out, vptq_err *err)
{
    const json_t *value = json_object_get(s.obj, key);
    *out = json_is_object(value) ? value : NULL;
    if (!value || json_is_null(value) || *out)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is not an object", s.name, key);
}

/* Part of each head that is rotated, in either object. */
static vptq_status parse_partial_rotation(source s, source inner, vptq_model_desc *d,
                                          vptq_err *err)
{
    double factor;
    VPTQ_CHECK(vptq_json_f64_or(s.obj, s.name, "partial_rotary_factor", 1, &factor, err));
    if (inner.obj)
        VPTQ_CHECK(
            vptq_json_f64_or(inner.obj, s.name, "partial_rotary_factor", factor, &factor, err));
    if (factor == 1)
        return VPTQ_OK;
    if (!d->family->partial_rotary)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: 'partial_rotary_factor' is %g, only 1 is supported for %s",
                         s.name, factor, d->family->model_type);
    const double dim = d->head_dim * factor;
    if (!(dim >= 2 && dim <= d->head_dim))
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s: 'partial_rotary_factor' is %g, expected more than 0, up to 1, and "
            "at least 2 rotated elements",
            s.name, factor);
    d->rotary_dim = (uint32_t)dim;
    return VPTQ_OK;
}

/* RoPE of Gemma 3: an object for each kind of layer in rope_parameters, or older keys.  *full:
 * the object of layers without window; NULL: the older keys. */
static vptq_status parse_local_rope(source s, const json_t *parameters, vptq_model_desc *d,
                                    const json_t **full, vptq_err *err)
{
    const json_t *local;
    const char *type;
    *full = parameters;
    if (!d->family->local_rope)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_json_f64_or(s.obj, s.name, "rope_local_base_freq", DEFAULT_THETA,
                                &d->rope_local_theta, err));
    VPTQ_CHECK(get_object((source){parameters, s.name}, "full_attention", full, err));
    VPTQ_CHECK(get_object((source){parameters, s.name}, "sliding_attention", &local, err));
    if (!local)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_json_f64_or(local, s.name, "rope_theta", d->rope_local_theta,
                                &d->rope_local_theta, err));
    VPTQ_CHECK(vptq_json_str_or(local, s.name, "rope_type", "default", &type, err));
    if (strcmp(type, "default") == 0)
        return VPTQ_OK;
    return vptq_fail(
        err, VPTQ_E_UNSUPPORTED,
        "%s: RoPE scaling '%.100s' of sliding attention is not supported, expected "
        "default",
        s.name, type);
}

/* Parses `rope_parameters` (theta and scaling in one object) or `rope_theta` and
 * `rope_scaling`. */
static vptq_status parse_rope(source s, vptq_model_desc *d, vptq_err *err)
{
    const json_t *parameters, *scaling;
    d->rope_factor = d->rope_attention_factor = 1;
    VPTQ_CHECK(
        vptq_json_f64_or(s.obj, s.name, "rope_theta", DEFAULT_THETA, &d->rope_theta, err));
    VPTQ_CHECK(get_object(s, "rope_parameters", &parameters, err));
    VPTQ_CHECK(get_object(s, "rope_scaling", &scaling, err));
    VPTQ_CHECK(parse_local_rope(s, parameters, d, &parameters, err));
    VPTQ_CHECK(parse_partial_rotation(s, (source){parameters, s.name}, d, err));
    if (parameters) {
        VPTQ_CHECK(vptq_json_f64_or(parameters, s.name, "rope_theta", d->rope_theta,
                                    &d->rope_theta, err));
        scaling = parameters;
    }
    if (scaling)
        VPTQ_CHECK(parse_scaling(s, (source){scaling, s.name}, d, err));
    return VPTQ_OK;
}

/* Parses a token id or the first of a list of ids; -1 if there is none. */
static vptq_status parse_token(source s, const char *key, int32_t *out, vptq_err *err)
{
    const json_t *value = json_object_get(s.obj, key);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    *out = -1;
    if (!value || json_is_null(value))
        return VPTQ_OK;
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id > INT32_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is not a token id", s.name, key);
    *out = (int32_t)id;
    return VPTQ_OK;
}

static vptq_status parse_desc(source s, vptq_model_desc *d, vptq_err *err)
{
    VPTQ_CHECK(parse_sizes(s, d, err));
    VPTQ_CHECK(parse_switches(s, d, err));
    VPTQ_CHECK(parse_window(s, d, err));
    VPTQ_CHECK(parse_gemma(s, d, err));
    VPTQ_CHECK(parse_experts(s, d, err));
    VPTQ_CHECK(parse_rope(s, d, err));
    VPTQ_CHECK(parse_token(s, "bos_token_id", &d->bos, err));
    VPTQ_CHECK(parse_token(s, "eos_token_id", &d->eos, err));
    return vptq_model_desc_check(d, s.name, err);
}

/* Parses a configuration completed with the defaults of its family. */
static vptq_status parse_completed(source s, vptq_model_desc *d, vptq_err *err)
{
    json_t *all = json_copy((json_t *)(uintptr_t)s.obj), *defaults;
    defaults = d->family->defaults ? json_loads(d->family->defaults, 0, NULL) : json_object();
    vptq_status st = VPTQ_OK;
    if (!all || !defaults || json_object_update_missing(all, defaults))
        st = vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory for the configuration", s.name);
    else
        st = parse_desc((source){all, s.name}, d, err);
    json_decref(all);
    json_decref(defaults);
    return st;
}

vptq_status vptq_hf_config_parse(const json_t *config, const char *name, vptq_model_desc *desc,
                                 vptq_err *err)
{
    source s = {config, name};
    const json_t *nested;
    vptq_model_desc d = {0};
    if (!json_is_object(config))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the configuration is not a JSON object",
                         name);
    VPTQ_CHECK(get_object(s, "text_config", &nested, err));
    if (nested)
        s.obj = nested;
    VPTQ_CHECK(find_family(s, &d.family, err));
    VPTQ_CHECK(parse_completed(s, &d, err));
    *desc = d;
    return VPTQ_OK;
}

/* The result is passed to json_pack with "o", which takes it over even on failure. */
static json_t *make_scaling(const vptq_model_desc *d)
{
    switch (d->rope_scaling) {
    case VPTQ_ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", d->rope_factor);
    case VPTQ_ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
                         d->rope_factor, "low_freq_factor", d->rope_low, "high_freq_factor",
                         d->rope_high, "original_max_position_embeddings",
                         (json_int_t)d->rope_original_context);
    case VPTQ_ROPE_YARN:
        return json_pack("{s:s, s:f, s:f, s:f, s:f, s:I}", "rope_type", "yarn", "factor",
                         d->rope_factor, "beta_slow", d->rope_low, "beta_fast", d->rope_high,
                         "attention_factor", d->rope_attention_factor,
                         "original_max_position_embeddings",
                         (json_int_t)d->rope_original_context);
    default:
        return json_null();
    }
}

static json_t *token_or_null(int32_t id)
{
    return id < 0 ? json_null() : json_integer(id);
}

/* The shortest decimal number that reads back as the float x: 1e-05 instead of
 * 9.9999997473787516e-06 for 1e-5f. */
static double shortest_decimal(float x)
{
    for (int digits = 1; digits < 9; digits++) {
        char text[32];
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        double y = strtod(text, NULL);
        if ((float)y == x)
            return y;
    }
    return (double)x;
}

/* Sets the keys that only some families have; nonzero on failure. */
static int set_family_keys(json_t *config, const vptq_model_desc *d)
{
    const vptq_family *f = d->family;
    int bad = 0;
    if (f->attention_bias)
        bad |= json_object_set_new(config, "attention_bias", json_boolean(d->qkv_bias));
    if (d->mlp_bias)
        bad |= json_object_set_new(config, "mlp_bias", json_true());
    if (f->sliding_by_default)
        return bad | json_object_set_new(config, "sliding_window",
                                         d->window ? json_integer(d->window) : json_null());
    if (!d->window)
        return bad;
    bad |= json_object_set_new(config, "use_sliding_window", json_true());
    bad |= json_object_set_new(config, "sliding_window", json_integer(d->window));
    return bad | json_object_set_new(config, "max_window_layers", json_integer(d->window_from));
}

vptq_status vptq_hf_config_make(const vptq_model_desc *d, const char *dtype, json_t **out,
                                vptq_err *err)
{
    if (!d->family->gguf_arch || d->gelu || d->full_every ||
        d->rope_scaling == VPTQ_ROPE_LONGROPE)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "a configuration of model type '%s' can only be copied from the model",
                         d->family->model_type);
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, "
        "s:o, s:b, s:b}",
        "architectures", d->family->architecture, "model_type", d->family->model_type,
        "torch_dtype", dtype, "bos_token_id", token_or_null(d->bos), "eos_token_id",
        token_or_null(d->eos), "hidden_act", "silu", "vocab_size", (json_int_t)d->vocab,
        "hidden_size", (json_int_t)d->hidden, "intermediate_size", (json_int_t)d->intermediate,
        "num_hidden_layers", (json_int_t)d->layers, "num_attention_heads", (json_int_t)d->heads,
        "num_key_value_heads", (json_int_t)d->kv_heads, "head_dim", (json_int_t)d->head_dim,
        "max_position_embeddings", (json_int_t)d->context, "rms_norm_eps",
        shortest_decimal(d->norm_eps), "rope_theta", d->rope_theta, "rope_scaling",
        make_scaling(d), "tie_word_embeddings", (int)d->tied, "use_cache", 1);
    if (!config || set_family_keys(config, d)) {
        json_decref(config);
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory while making a configuration");
    }
    *out = config;
    return VPTQ_OK;
}

const json_t *vptq_hf_quantization(const json_t *config)
{
    const json_t *q = json_object_get(config, "quantization_config");
    return q ? q
             : json_object_get(json_object_get(config, "text_config"), "quantization_config");
}
