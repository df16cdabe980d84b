/* Internal: the description of a model, independent of the kind of file, and the table of model
 * families.
 */
#ifndef VPTQ_FORMATS_MODEL_DESC_H
#define VPTQ_FORMATS_MODEL_DESC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/status.h"

/* The linear layers of a block: an index below vptq_linear_count.  A block has a dense
 * feed-forward part (gate, up, down) or one of experts, each with a gate, up and down of its
 * own, and perhaps a shared expert, which all tokens pass; in some families gate is missing.
 * vptq_linear_exists tells which there are.
 * Linear layers that read the same input follow each other. */
typedef int vptq_linear;
enum {
    VPTQ_LINEAR_Q,
    VPTQ_LINEAR_K,
    VPTQ_LINEAR_V,
    VPTQ_LINEAR_O,
    VPTQ_LINEAR_GATE,
    VPTQ_LINEAR_UP,
    VPTQ_LINEAR_DOWN,
    VPTQ_LINEAR_DENSE, /* number of those before; models without experts have no others */
    VPTQ_LINEAR_SHARED = VPTQ_LINEAR_DENSE,     /* gate, up and down of the shared expert */
    VPTQ_LINEAR_EXPERT = VPTQ_LINEAR_DENSE + 3, /* and of the first expert; 3 more of each */
    VPTQ_LINEAR_NONE = -1
};

/* Their inputs, below vptq_input_count: q, k, v share one; gate and up share another, which
 * with experts is that of all tokens and of the shared expert.  Inputs of an expert have only
 * the tokens that the router sends to it. */
typedef int vptq_input;
enum {
    VPTQ_INPUT_QKV,
    VPTQ_INPUT_O,
    VPTQ_INPUT_UP, /* input of gate and up */
    VPTQ_INPUT_DOWN,
    VPTQ_INPUT_DENSE, /* number of those before */
    VPTQ_INPUT_SHARED_DOWN = VPTQ_INPUT_DENSE,
    VPTQ_INPUT_EXPERT /* up, then down of the first expert; 2 more of each */
};

/* The norms of a block. */
typedef enum {
    VPTQ_BLOCK_NORM_INPUT,            /* of the input of q, k and v */
    VPTQ_BLOCK_NORM_FEED_FORWARD,     /* of the input of gate and up */
    VPTQ_BLOCK_NORM_Q,                /* of every head of q, and */
    VPTQ_BLOCK_NORM_K,                /* of k, before RoPE */
    VPTQ_BLOCK_NORM_ATTENTION_OUT,    /* of what the attention, and */
    VPTQ_BLOCK_NORM_FEED_FORWARD_OUT, /* the feed-forward part adds to the hidden states */
    VPTQ_BLOCK_NORM_COUNT
} vptq_block_norm;

/* A model family: what its model_type implies beyond the common keys of config.json. */
typedef struct vptq_family {
    const char *model_type;   /* "llama" */
    const char *architecture; /* "LlamaForCausalLM" */
    const char *gguf_arch;    /* general.architecture; NULL: no GGUF files */
    const char *whole;        /* model_type of models that have this one as text_config; NULL */
    const char *defaults;     /* JSON object: keys that config.json need not have; or NULL */
    bool qkv_bias;            /* q, k, v always have a bias, without a config key */
    bool attention_bias;      /* config key attention_bias: biases on q, k, v, o */
    bool mlp_bias;            /* config key mlp_bias: biases on gate, up, down */
    bool use_bias;            /* config key use_bias: biases on all linear layers */
    bool qk_norm;             /* RMS norm on every head of q and k before RoPE */
    bool gguf_permuted;       /* GGUF stores q and k rows for interleaved pairs */
    bool sliding_by_default;  /* `sliding_window` applies without `use_sliding_window` */
    bool fused;          /* q, k, v are rows of one stored tensor, gate and up of another */
    bool partial_rotary; /* config key partial_rotary_factor */
    bool local_rope;     /* layers with the window have a RoPE theta of their own */
    bool norm_offset;    /* norms multiply by 1 + weight */
    bool layer_norm;     /* norms are layer norms with a bias; config key norm_epsilon */
    bool out_norms; /* VPTQ_BLOCK_NORM_ATTENTION_OUT and VPTQ_BLOCK_NORM_FEED_FORWARD_OUT */
    bool scaled_embedding; /* embeddings are multiplied by sqrt(hidden size) */
    bool plain_mlp;        /* no gate: the activation is that of up alone */
    bool experts;          /* blocks with experts, vptq_experts */
    bool shared_expert;    /* and a shared one with a gate */
    bool mixtral_names;    /* "block_sparse_moe.experts.0.w1" instead of "mlp.experts..." */
    const char *linear[VPTQ_LINEAR_DENSE]; /* paths in a block; NULL: as in Llama */
    uint32_t head_dim;                     /* default of head_dim; 0 = hidden size / heads */
    uint32_t full_every;                   /* default of vptq_model_desc.full_every */
} vptq_family;

/* NULL if the name is unknown.  _names writes a comma-separated list for messages. */
const vptq_family *vptq_family_by_model_type(const char *model_type);
const vptq_family *vptq_family_by_architecture(const char *architecture);
const vptq_family *vptq_family_by_whole(const char *model_type);
const vptq_family *vptq_family_by_gguf_arch(const char *arch);
void vptq_family_names(char *text, size_t size);

typedef enum {
    VPTQ_ROPE_NONE,
    VPTQ_ROPE_LINEAR,
    VPTQ_ROPE_LLAMA3,
    VPTQ_ROPE_YARN,
    VPTQ_ROPE_LONGROPE
} vptq_rope_scaling;

/* Bound of the rotated pairs of a head with longrope scaling, which has a factor for each. */
enum { VPTQ_LONGROPE_MAX = 128 };

/* Mixtures of experts.  Each token passes the `used` experts with the largest router logits
 * (of equal ones, the first), whose outputs are added with the weights of a softmax over all
 * logits. */
enum { VPTQ_EXPERTS_MAX = 512, VPTQ_EXPERT_LAYERS_MAX = 256 };
typedef struct vptq_experts {
    uint32_t count;        /* 0: no experts */
    uint32_t used;         /* per token */
    uint32_t intermediate; /* of each */
    uint32_t shared;       /* intermediate size of the shared expert; 0 = none */
    bool normalized;       /* the weights of the used experts are divided by their sum */
    uint64_t dense[VPTQ_EXPERT_LAYERS_MAX / 64]; /* bits of layers without experts */
} vptq_experts;

typedef struct vptq_model_desc {
    const vptq_family *family;
    uint32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
    uint32_t context;     /* max_position_embeddings */
    uint32_t window;      /* sliding attention window in tokens, 0 = none */
    uint32_t window_from; /* first layer with the window (Qwen2's max_window_layers), else 0 */
    float norm_eps;
    bool tied; /* the output head is the embedding */
    bool qkv_bias, o_bias, mlp_bias;
    double rope_theta;
    vptq_rope_scaling rope_scaling;
    double rope_factor;             /* unused without scaling */
    double rope_low, rope_high;     /* llama3: low/high_freq_factor; yarn: beta_slow/fast */
    double rope_attention_factor;   /* multiplies cos and sin (yarn, longrope); 1 otherwise */
    uint32_t rope_original_context; /* original_max_position_embeddings */
    int32_t bos, eos;               /* -1 = none; eos is the first of a list */
    /* Facts of some families only; 0 where they do not apply. */
    bool gelu;               /* the activation is gelu_pytorch_tanh, not silu */
    uint32_t full_every;     /* layers l with (l + 1) % full_every == 0 have no window */
    uint32_t rotary_dim;     /* rotated elements of a head; 0 = head_dim */
    double rope_local_theta; /* of layers with the window, without scaling */
    double query_scalar;     /* scores are divided by its square root; 0 = head_dim */
    double score_cap;        /* soft caps of the attention's scores, */
    double logit_cap;        /* and of the logits */
    float
        rope_short[VPTQ_LONGROPE_MAX]; /* longrope: divisors of the frequencies for sequences */
    float rope_long[VPTQ_LONGROPE_MAX]; /* up to the original context, and for longer ones */
    vptq_experts experts;
} vptq_model_desc;

/* Whether a layer has sliding attention, and its window in tokens (0: all). */
bool vptq_layer_slides(const vptq_model_desc *d, uint32_t layer);
uint32_t vptq_layer_window(const vptq_model_desc *d, uint32_t layer);
/* Number of rotated elements of a head. */
uint32_t vptq_rotary_dim(const vptq_model_desc *d);
/* "input_layernorm": path inside a block; NULL if the family has no such norm. */
const char *vptq_block_norm_path(const vptq_family *f, vptq_block_norm n);

/* Whether the feed-forward part of a layer has experts. */
bool vptq_layer_has_experts(const vptq_experts *x, uint32_t layer);
/* Marks a layer, below VPTQ_EXPERT_LAYERS_MAX, as one without. */
void vptq_layer_set_dense(vptq_experts *x, uint32_t layer);
/* Upper bounds (exclusive) of the indices of linear layers and inputs, the same for all layers
 * of a model, and whether a layer has them.  Arrays over linear layers have an entry for one
 * that a layer does not have, too. */
int vptq_linear_count(const vptq_model_desc *d);
bool vptq_linear_exists(const vptq_model_desc *d, uint32_t layer, vptq_linear l);
int vptq_input_count(const vptq_experts *x);
static inline size_t vptq_linear_index(const vptq_model_desc *d, uint32_t layer, vptq_linear l)
{
    return (size_t)layer * (size_t)vptq_linear_count(d) + (size_t)l; /* in tables of all */
}
bool vptq_input_exists(const vptq_experts *x, uint32_t layer, vptq_input i);
/* Whether one of the layers has the input. */
bool vptq_input_occurs(const vptq_model_desc *d, vptq_input i);

/* Number of linear layers of the layers first..last. */
size_t vptq_linear_total(const vptq_model_desc *d, uint32_t first, uint32_t last);

/* The linear layer of the same kind of a dense block. */
vptq_linear vptq_linear_kind(vptq_linear l);
/* The linear layers of expert e, of which e < count; and the expert of a linear layer or input,
 * -1 = none. */
vptq_linear vptq_expert_linear(uint32_t e, vptq_linear kind);
vptq_input vptq_expert_input(uint32_t e, vptq_input kind);
int vptq_linear_expert(vptq_linear l);
int vptq_input_expert(vptq_input i);

typedef struct vptq_short_name {
    char text[48];
} vptq_short_name;
/* The name of a linear layer in files and reports: "q_proj", "c_fc", "experts.3.w1"; and that
 * of the linear layer of the same kind of a dense block. */
vptq_short_name vptq_linear_name(const vptq_model_desc *d, vptq_linear l);
const char *vptq_linear_kind_name(const vptq_model_desc *d, vptq_linear l);
/* "qkv", "o", "up", "down", "shared_down", "expert3_up" */
vptq_short_name vptq_input_name(vptq_input i);
vptq_input vptq_linear_input(vptq_linear l);
/* Rows and columns of a linear layer's weight matrix; no rows for a gate that the family does
 * not have. */
void vptq_linear_shape(const vptq_model_desc *d, vptq_linear l, uint32_t *out, uint32_t *in);
uint32_t vptq_input_size(const vptq_model_desc *d, vptq_input i);
/* Paths inside a block of the weights of the router [count, hidden], and of the gate [1,
 * hidden] of the shared expert. */
const char *vptq_router_path(const vptq_family *f);
/* Size of the largest gate. */
uint32_t vptq_widest_intermediate(const vptq_model_desc *d);
#define VPTQ_SHARED_GATE_PATH "mlp.shared_expert_gate"
/* Linear layers whose weights a fused family stores as rows of one tensor. */
typedef struct vptq_fused {
    const char *path;  /* "self_attn.qkv_proj" */
    vptq_linear first; /* followed by */
    int count;         /* count - 1 more */
} vptq_fused;
enum { VPTQ_FUSED_COUNT = 2 };
extern const vptq_fused vptq_fused_layers[VPTQ_FUSED_COUNT];
/* Whether the description gives the linear layer a bias. */
bool vptq_linear_has_bias(const vptq_model_desc *d, vptq_linear l);
/* Writes "model.layers.3.mlp.gate_proj" into name. */
enum { VPTQ_NAME_MAX = 96 };
void vptq_linear_full_name(const vptq_model_desc *d, char name[VPTQ_NAME_MAX], uint32_t layer,
                           vptq_linear l);
/* The rest of a tensor's name after "model.layers.N."; NULL if N is not a layer of the model.
 */
const char *vptq_name_in_block(const vptq_model_desc *d, const char *name);
/* Whether the first `length` bytes of a name are the module path of a linear layer of a block,
 * *l. */
bool vptq_linear_of_module(const vptq_model_desc *d, const char *name, size_t length,
                           vptq_linear *l);

/* Rejects impossible descriptions: zero sizes, heads that do not divide evenly, odd head_dim,
 * overflowing products, dimensions over 2^20 (except the vocabulary). */
vptq_status vptq_model_desc_check(const vptq_model_desc *d, const char *file,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Names of the tensors of embedding and output head, and whether a name is one of them. */
#define VPTQ_EMBEDDING_NAME "model.embed_tokens.weight"
#define VPTQ_HEAD_NAME      "lm_head.weight"
bool vptq_is_embedding(const char *tensor);
/* Whether they can be stored as that type: F16, BF16, F32, Q8_0 or Q6_K. */
bool vptq_is_embedding_type(vptq_dtype type);

/* YaRN's default factor of cos and sin: 0.1 weight ln(factor) + 1, and 1 for factors up to 1.
 */
double vptq_rope_yarn_attention(double factor, double weight);

/* Fills cos and sin tables [positions, rotary_dim / 2].  Computed like transformers: inverse
 * frequencies in float, scaled per rope_scaling.  `positions` is the length of the longest
 * sequence, by which longrope chooses its factors. */
void vptq_rope_tables(const vptq_model_desc *d, size_t positions, float *cos_table,
                      float *sin_table);

#endif
