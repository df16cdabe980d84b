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

/* The seven linear layers of a block and their four inputs: q, k, v share one, gate and up
 * another. */
typedef enum {
    VPTQ_LINEAR_Q,
    VPTQ_LINEAR_K,
    VPTQ_LINEAR_V,
    VPTQ_LINEAR_O,
    VPTQ_LINEAR_GATE,
    VPTQ_LINEAR_UP,
    VPTQ_LINEAR_DOWN,
    VPTQ_LINEAR_COUNT
} vptq_linear;

typedef enum {
    VPTQ_INPUT_QKV,
    VPTQ_INPUT_O,
    VPTQ_INPUT_UP, /* input of gate and up */
    VPTQ_INPUT_DOWN,
    VPTQ_INPUT_COUNT
} vptq_input;

/* A model family: what its model_type implies beyond the common keys of config.json. */
typedef struct vptq_family {
    const char *model_type;   /* "llama" */
    const char *architecture; /* "LlamaForCausalLM" */
    const char *gguf_arch;    /* general.architecture */
    bool qkv_bias;            /* q, k, v always have a bias, without a config key */
    bool attention_bias;      /* config key attention_bias: biases on q, k, v, o */
    bool mlp_bias;            /* config key mlp_bias: biases on gate, up, down */
    bool qk_norm;             /* RMS norm on every head of q and k before RoPE */
    bool gguf_permuted;       /* GGUF stores q and k rows for interleaved pairs */
    bool sliding_by_default;  /* `sliding_window` applies without `use_sliding_window` */
    uint32_t head_dim;        /* default of head_dim; 0 = hidden size / heads */
} vptq_family;

/* NULL if the name is unknown.  _names writes a comma-separated list for messages. */
const vptq_family *vptq_family_by_model_type(const char *model_type);
const vptq_family *vptq_family_by_architecture(const char *architecture);
const vptq_family *vptq_family_by_gguf_arch(const char *arch);
void vptq_family_names(char *text, size_t size);

typedef enum {
    VPTQ_ROPE_NONE,
    VPTQ_ROPE_LINEAR,
    VPTQ_ROPE_LLAMA3,
    VPTQ_ROPE_YARN
} vptq_rope_scaling;

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
    double rope_attention_factor;   /* multiplies cos and sin (yarn); 1 otherwise */
    uint32_t rope_original_context; /* original_max_position_embeddings */
    int32_t bos, eos;               /* -1 = none; eos is the first of a list */
} vptq_model_desc;

/* "q_proj", "mlp.gate_proj": last name component, and path inside a block. */
const char *vptq_linear_name(vptq_linear l);
const char *vptq_linear_path(vptq_linear l);
const char *vptq_input_name(vptq_input i); /* "qkv", "o", "up", "down" */
vptq_input vptq_linear_input(vptq_linear l);
/* Rows and columns of a linear layer's weight matrix. */
void vptq_linear_shape(const vptq_model_desc *d, vptq_linear l, uint32_t *out, uint32_t *in);
uint32_t vptq_input_size(const vptq_model_desc *d, vptq_input i);
/* Whether the description gives the linear layer a bias. */
bool vptq_linear_has_bias(const vptq_model_desc *d, vptq_linear l);
/* Writes "model.layers.3.mlp.gate_proj" into name. */
enum { VPTQ_NAME_MAX = 96 };
void vptq_linear_full_name(char name[VPTQ_NAME_MAX], uint32_t layer, vptq_linear l);
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

/* Fills cos and sin tables [positions, head_dim / 2].  Computed like transformers: inverse
 * frequencies in float, scaled per rope_scaling. */
void vptq_rope_tables(const vptq_model_desc *d, size_t positions, float *cos_table,
                      float *sin_table);

#endif
