/* Internal to lib/model: state and helpers of the forward pass (forward.h). */
#ifndef VPTQ_MODEL_FORWARD_INTERNAL_H
#define VPTQ_MODEL_FORWARD_INTERNAL_H

#include "lib/model/forward.h"

/* A norm in device memory: [hidden], of q and k [head_dim].  NULL if the model has no such
 * norm, or none with a bias. */
typedef struct vptq_forward_norm {
    const float *weight, *bias;
} vptq_forward_norm;

/* Norms and biases of a block in device memory; NULL if the model has none. */
typedef struct vptq_forward_block_params {
    vptq_forward_norm norm[VPTQ_BLOCK_NORM_COUNT];
    const float *bias[VPTQ_LINEAR_DENSE];
} vptq_forward_block_params;

/* Arrays of vptq_forward_hidden_alloc: two streams and a group. */
enum { VPTQ_FORWARD_RESIDENT = 3 };

struct vptq_forward {
    const vptq_model *m;
    const vptq_model_desc *d;
    vptq_device *dev;
    size_t max_length;
    uint32_t read_ahead;  /* block whose weights the system reads ahead */
    size_t q_dim, kv_dim; /* heads * head_dim, kv_heads * head_dim */

    vptq_forward_block_params *params; /* [layers], host memory */
    float *vectors;                    /* device memory of params and final_norm */
    vptq_forward_norm final_norm;
    /* [max_length, rotary_dim / 2] of layers without and with a window, if these have a theta
     * of their own; else NULL. */
    float *cos_table[2], *sin_table[2];
    float embedding_scale; /* 0: embeddings are not scaled */

    int linear_count; /* vptq_linear_count */
    /* [layers][linear_count] opened linear layers that steps keep; NULL before the first
     * step. */
    vptq_opened *kept;
    /* Those of the block that runs over windows: of the model, and of weights in their place.
     * Opened by their first product, or stored ahead. */
    struct {
        bool held;      /* stay open after a run (vptq_forward_hold) */
        uint32_t layer; /* of those that are open */
        bool *open[2];  /* [linear_count] */
        vptq_opened *linear[2];
    } block;
    /* Those of the next block that are stored already (vptq_forward_ahead). */
    struct {
        uint32_t layer;
        const vptq_tensor **of; /* [linear_count]; NULL: not stored */
        vptq_opened *linear;
    } ahead;
    vptq_arena arena;      /* of the arrays of both */
    size_t group_rows;     /* of the largest group of the run */
    vptq_opened head;      /* closed when a block is opened, unless steps keep it */
    vptq_opened embedding; /* only for steps; not stored if it is the head */

    bool bf16; /* of products (vptq_forward_use_bf16) */

    /* One tile of weight rows; matrices that are not stored are converted tile by tile. */
    float *tile;
    size_t tile_floats;

    /* Activations of `rows` rows in device memory; grow with the longest group. */
    size_t rows;
    float *x;    /* [rows, hidden] normalized input */
    float *q;    /* [rows, q_dim] */
    float *k;    /* [rows, kv_dim] */
    float *v;    /* [rows, kv_dim] */
    float *gate; /* [rows, max(widest intermediate, q_dim)]: attention output, then the gate */
    float *up;   /* [rows, intermediate] */
    float *experts; /* [rows, vptq_forward_experts_floats], or NULL */

    /* Inputs of linear layers that take bytes, quantized; NULL before the first. */
    bool takes_bytes; /* the model has such */
    struct {
        int8_t *q;    /* [rows, vptq_forward_byte_row] */
        float *scale; /* [rows] */
        size_t rows;
    } quantized;

    /* Keys and values from a root to the attending sequence, if sequences continue others, and
     * the indices 0, 1, ... for copying rows; device memory. */
    float *tree_k, *tree_v; /* [tree_tokens, kv_dim] */
    int32_t *tree_ids;      /* [tree_rows] */
    size_t tree_tokens, tree_rows;

    float *hidden; /* [hidden_rows, hidden] device copy of the hidden states; on host devices
                      only for single steps */
    float *stage;  /* [hidden_rows, hidden] host memory; NULL for host devices */
    size_t hidden_rows;

    int32_t *ids; /* [ids_rows] device memory; NULL for host devices */
    size_t ids_rows;

    /* Hidden states of vptq_forward_hidden_alloc. */
    struct {
        float *data; /* NULL: none */
        size_t rows;
    } resident[VPTQ_FORWARD_RESIDENT];

    float *logits;       /* [head_rows, VPTQ_FORWARD_TILE_ROWS] */
    vptq_nll_state *nll; /* [head_rows]; this and the next NULL for host devices */
    int32_t *targets;
    size_t head_rows;

    void *samples; /* of vptq_forward_choose: u, ids and logits of sample_rows rows */
    size_t sample_rows;

    float *cache_k, *cache_v; /* [layers, max_length, kv_dim]; NULL until the first step */
    size_t position;          /* tokens in the cache */
};

/* Maximum rows of a weight tile; the logits [rows, tile] of a full group have 6 MiB. */
enum { VPTQ_FORWARD_TILE_ROWS = 768 };

/* Up to so many activation rows, products need no large weight tile. */
enum { VPTQ_FORWARD_FEW_ROWS = 8 };

/* Rows of a weight with `cols` columns to convert at once for a product with `rows` activation
 * rows.  For few rows it depends on the number of threads. */
size_t vptq_forward_tile_rows(const vptq_forward *f, size_t rows, size_t cols);

/* Number of rows, at most `rows`, that fit into device memory with `reserved` bytes to spare;
 * on host devices all.  `head`: with their logits. */
size_t vptq_forward_fit(const vptq_forward *f, size_t rows, size_t reserved, bool head);
/* Whether these hidden states lie in memory of vptq_forward_hidden_alloc. */
bool vptq_forward_is_resident(const vptq_forward *f, const float *hidden);
/* Whether `bytes` fit into device memory that `rows` rows, with their logits, do not need. */
bool vptq_forward_has_room(const vptq_forward *f, size_t bytes, size_t rows);
/* Number of rows to run through the head next, after the first `first` of n. */
size_t vptq_forward_chunk(const vptq_forward *f, size_t n, size_t first);
/* The end (exclusive) of the sequences to run next from `first` on, with these linear layers.
 */
size_t vptq_forward_piece(const vptq_forward *f, const vptq_weight *linear,
                          const size_t *starts, const size_t *parents, size_t first,
                          size_t group_end);

/* The end (exclusive) of the whole trees from `first` on that have at most `rows` rows
 * together; at least one tree. */
size_t vptq_forward_trees(const size_t *starts, const size_t *parents, size_t count,
                          size_t first, size_t rows);
/* Tokens before sequence s: those of the sequences that it continues. */
size_t vptq_forward_tree_position(const size_t *starts, const size_t *parents, size_t s);
/* Checks sequences and parents (may be NULL) against the rules of forward.h.  *rows: those of
 * the largest group; *tokens: those of the longest sequence, from its root on. */
vptq_status vptq_forward_check_trees(const vptq_forward *f, const size_t *starts,
                                     const size_t *parents, size_t count, size_t *rows,
                                     size_t *tokens, vptq_err *err) VPTQ_MUST_CHECK;
/* Allocates memory for the trees of a group of `rows` rows, with `tokens` from a root on. */
vptq_status vptq_forward_tree_reserve(vptq_forward *f, size_t rows, size_t tokens,
                                      vptq_err *err) VPTQ_MUST_CHECK;
void vptq_forward_tree_free(vptq_forward *f);
/* Copies rows [begin, begin + n) of f->k and f->v to tokens [position, position + n) of the
 * tree. */
vptq_status vptq_forward_tree_keep(vptq_forward *f, size_t begin, size_t n, size_t position,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Allocates activations of `rows` rows. */
vptq_status vptq_forward_grow(vptq_forward *f, size_t rows, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_forward_reserve_hidden(vptq_forward *f, size_t rows,
                                        vptq_err *err) VPTQ_MUST_CHECK;

vptq_status vptq_forward_reserve_ids(vptq_forward *f, size_t rows,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* out [rows, w->rows] = x [rows, w->cols] W^T + beta * out (+ bias on every row). */
typedef struct vptq_forward_linear_args {
    const vptq_weight *w;
    const vptq_opened *opened; /* w */
    bool kept;                 /* the weight stays open after this pass */
    const float *bias;         /* [w->rows] or NULL */
    size_t rows;
    const float *x;
    float *out;
    float beta;
} vptq_forward_linear_args;
/* For more rows than vptq_weight_gemv_rows the weight is converted tile by tile.  The result
 * does not depend on whether the device stores the weight. */
vptq_status vptq_forward_linear(vptq_forward *f, const vptq_forward_linear_args *a,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Only columns [first, first + n) of the product, converted as one tile, into out [rows, ld].
 */
vptq_status vptq_forward_linear_tile(vptq_forward *f, const vptq_forward_linear_args *a,
                                     size_t first, size_t n, float *out, size_t ld,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Rotation of a layer, without rows and heads. */
vptq_rope_args vptq_forward_rope(const vptq_forward *f, uint32_t layer);
/* The factor of scores. */
float vptq_forward_score_scale(const vptq_forward *f);

/* y = the norm of the n tokens in x [n, dim], as the op rmsnorm; y may be x. */
vptq_status vptq_forward_rmsnorm(vptq_forward *f, size_t n, size_t dim, const float *x,
                                 const vptq_forward_norm *norm, float *y,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Samples next [n] (host memory) from the logits of n rows of hidden states [n, hidden] in
 * device memory.  Call vptq_forward_grow before. */
vptq_status vptq_forward_choose(vptq_forward *f, size_t n, const float *hidden,
                                const vptq_forward_sampling *s, int32_t *next,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* ---- forward_weights.c ---- */

/* Allocates the arrays of the weights of a block, in f->arena. */
vptq_status vptq_forward_weights_open(vptq_forward *f, vptq_err *err) VPTQ_MUST_CHECK;

/* Opens the linear layers of all blocks, once, and keeps them for steps of at most `rows` rows
 * that sample `samples` tokens.  A device with its own memory also stores those that fit, head
 * and embedding included. */
vptq_status vptq_forward_keep(vptq_forward *f, size_t rows, size_t samples,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* Linear layer l of a block that runs over windows, opened, and stored if it fits. */
vptq_status vptq_forward_block_weight(vptq_forward *f, uint32_t layer, vptq_linear l,
                                      const vptq_weight *w, const vptq_opened **opened,
                                      vptq_err *err) VPTQ_MUST_CHECK;
/* Closes what a run over windows has opened. */
void vptq_forward_block_close(vptq_forward *f);
vptq_weight vptq_forward_head_weight(const vptq_forward *f);
/* Stores the head if it fits. */
vptq_status vptq_forward_head_store(vptq_forward *f, vptq_err *err) VPTQ_MUST_CHECK;
/* The embedding; steps may have stored it. */
const vptq_opened *vptq_forward_embedding(const vptq_forward *f);
void vptq_forward_weights_close(vptq_forward *f);

/* f->hidden = the embeddings of n <= VPTQ_FORWARD_ROWS ids (or as many as are reserved); also
 * allocates the activations for the blocks. */
vptq_status vptq_forward_start(vptq_forward *f, const int32_t *ids, size_t n,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* The paged cache of a layer, and the positions of the rows of a pass in it. */
typedef struct vptq_forward_pages {
    const vptq_kv_rows *rows;
    vptq_kv_pool pool;
} vptq_forward_pages;
/* Runs f->hidden [rows, hidden] through block `layer`, whose linear layers are kept open. */
vptq_status vptq_forward_pages_block(vptq_forward *f, uint32_t layer, size_t rows,
                                     const vptq_forward_pages *pages,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Floats of a row of activations, without its hidden state. */
size_t vptq_forward_row_floats(const vptq_forward *f);
/* Device memory of rotation tables, a tile, activations and hidden states of `rows` rows. */
size_t vptq_forward_bytes(const vptq_model *m, size_t max_length, size_t rows);
/* Whether a linear layer of the model takes bytes. */
bool vptq_forward_has_bytes(const vptq_model *m);
/* Bytes of the longest quantized row. */
size_t vptq_forward_byte_row(const vptq_forward *f);
/* Allocates f->quantized for as many rows; its content is lost if it grows. */
vptq_status vptq_forward_reserve_quantized(vptq_forward *f, size_t rows,
                                           vptq_err *err) VPTQ_MUST_CHECK;

/* The intermediate results of a block, in device memory.  Arrays may be the same where one is
 * read before the other is written: x in both halves; o, gate and act. */
typedef struct vptq_activations {
    float *x;         /* [rows, hidden] normalized input of a half */
    float *q;         /* [rows, q_dim], rotated */
    float *k, *v;     /* [rows, kv_dim], rotated; not with a cache */
    float *o;         /* [rows, q_dim] output of the attention */
    float *gate, *up; /* [rows, intermediate] */
    float *act;       /* [rows, intermediate] activation of gate, times up */
    /* NULL with a cache or pages, and where nobody needs them. */
    float *raw_q, *raw_k; /* q and k before their norms, if the model has such */
    float *lse;           /* [rows, heads] of the op attention */
    float *mid;           /* [rows, hidden] hidden states between the halves */
} vptq_activations;

/* One block over h [rows, hidden] in device memory.  Without a cache (NULL), sequence s has
 * rows [starts[s] - starts[0], starts[s + 1] - starts[0]).  With one, all rows continue its
 * sequence of `position` tokens.  With pages, these give the position of every row. */
typedef struct vptq_forward_pass {
    uint32_t layer;
    const vptq_weight *linear; /* [linear_count], of the model or in its place */
    const vptq_opened *kept;   /* [linear_count] of them; NULL: opened by the first use */
    const vptq_activations *a; /* NULL: those of f */
    size_t rows;
    float *h;
    const size_t *starts;
    size_t count;
    float *cache_k, *cache_v; /* of this layer */
    size_t position;
    const vptq_forward_pages *pages;
    vptq_block_hooks hooks;
    size_t first_sequence; /* index that the hooks get for sequence 0 */
} vptq_forward_pass;
vptq_status vptq_forward_run_block(vptq_forward *f, const vptq_forward_pass *p,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* out [p->rows, ..] = x times linear layer l of the block + beta * out. */
vptq_status vptq_forward_block_linear(vptq_forward *f, const vptq_forward_pass *p,
                                      vptq_linear l, const float *x, float beta, float *out,
                                      vptq_err *err) VPTQ_MUST_CHECK;
/* Calls the hook for x, the input of all rows, sequence by sequence. */
vptq_status vptq_forward_hook_rows(vptq_forward *f, const vptq_forward_pass *p,
                                   vptq_input input, const float *x,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* Adds the outputs of a block's experts for p->a->x [rows, hidden] to the hidden states; runs
 * only as far as the hooks need.  Call vptq_forward_grow before. */
vptq_status vptq_forward_experts(vptq_forward *f, const vptq_forward_pass *p,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Memory that this needs per row, in floats; 0 for a model without experts. */
size_t vptq_forward_experts_floats(const vptq_model_desc *d);

#endif
