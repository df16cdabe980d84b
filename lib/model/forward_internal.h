/* What the parts of the forward pass share; see forward.h for the whole. */
#ifndef VPTQ_MODEL_FORWARD_INTERNAL_H
#define VPTQ_MODEL_FORWARD_INTERNAL_H

#include "lib/model/forward.h"

/* Norm weights and biases of a block in device memory; NULL where there is none. */
typedef struct vptq_forward_block_params {
    const float *input_norm, *post_norm; /* [hidden] */
    const float *q_norm, *k_norm;        /* [head_dim] */
    const float *bias[VPTQ_LINEAR_COUNT];
} vptq_forward_block_params;

struct vptq_forward {
    const vptq_model *m;
    const vptq_model_desc *d;
    vptq_device *dev;
    size_t max_length;
    uint32_t asked;       /* the run of block `asked` - 1 has asked for what comes behind it */
    size_t q_dim, kv_dim; /* heads * head_dim, kv_heads * head_dim */

    vptq_forward_block_params *params; /* [layers], host memory */
    float *vectors;                    /* device memory behind params and final_norm */
    const float *final_norm;           /* [hidden] */
    float *cos_table, *sin_table;      /* [max_length, head_dim / 2] */

    /* The packed linears of [layers][VPTQ_LINEAR_COUNT], opened by the first step and kept for
     * the next ones; NULL before.  A run over windows opens its block for itself. */
    vptq_matrix **kept;

    /* One tile of rows of a weight as float: matrices are converted into it piece by piece. */
    float *tile;
    size_t tile_floats;

    /* Activations of `rows` rows in device memory, grown when a longer group comes. */
    size_t rows;
    float *x;    /* [rows, hidden] normalized input */
    float *q;    /* [rows, q_dim] */
    float *k;    /* [rows, kv_dim] */
    float *v;    /* [rows, kv_dim] */
    float *gate; /* [rows, max(intermediate, q_dim)]: attention output, then the gate */
    float *up;   /* [rows, intermediate] */

    /* Keys and values from a root to the sequence that attends, where sequences continue
     * others, and the numbers 0, 1, ... by which rows are copied there; device memory. */
    float *tree_k, *tree_v; /* [tree_tokens, kv_dim] */
    int32_t *tree_ids;      /* [tree_rows] */
    size_t tree_tokens, tree_rows;

    float *hidden; /* [hidden_rows, hidden] device copy of the states; host devices only need it
                      for single steps */
    float *stage;  /* [hidden_rows, hidden] host memory; NULL for host devices */
    size_t hidden_rows;

    float *logits;          /* [head_rows, VPTQ_FORWARD_TILE_ROWS] */
    vptq_nll_state *states; /* [head_rows]; this and the next NULL for host devices */
    int32_t *targets;
    size_t head_rows;

    void *chosen; /* of vptq_forward_choose: u, ids and logits of chosen_rows rows */
    size_t chosen_rows;

    float *cache_k, *cache_v; /* [layers, max_length, kv_dim]; NULL until the first step */
    size_t position;          /* tokens in the cache */
};

/* Rows of a weight tile at most; the logits [rows, tile] of a full group are 6 MiB. */
enum { VPTQ_FORWARD_TILE_ROWS = 768 };

/* Rows of activations for which a weight tile need not make products efficient. */
enum { VPTQ_FORWARD_FEW_ROWS = 8 };

/* Rows of a weight with `cols` columns that are converted at once for a product with `rows`
 * rows of activations.  For a few rows it depends on the threads. */
size_t vptq_forward_tile_rows(const vptq_forward *f, size_t rows, size_t cols);

/* As many of `rows` rows as there is device memory for, with `beside` bytes left over; in host
 * memory all of them.  `head`: with their logits. */
size_t vptq_forward_fit(const vptq_forward *f, size_t rows, size_t beside, bool head);
/* The rows of the head to take next where `first` of n have gone through. */
size_t vptq_forward_chunk(const vptq_forward *f, size_t n, size_t first, bool head);
/* The sequence behind the last one of a group to take next from `first` on, with these linears.
 */
size_t vptq_forward_piece(const vptq_forward *f, const vptq_weight *linear,
                          const size_t *starts, const size_t *parents, size_t first,
                          size_t group_end);

/* Whole trees from the sequence `first` on, as many as have at most `rows` rows, at least one:
 * the sequence behind their last. */
size_t vptq_forward_trees(const size_t *starts, const size_t *parents, size_t count,
                          size_t first, size_t rows);
/* Tokens in front of sequence s: those of the sequences that it continues. */
size_t vptq_forward_tree_position(const size_t *starts, const size_t *parents, size_t s);
/* Whether sequences and parents (or NULL) are what forward.h says; *most: rows of the largest
 * group, *longest: tokens of the longest sequence from its root on. */
vptq_status vptq_forward_check_trees(const vptq_forward *f, const size_t *starts,
                                     const size_t *parents, size_t count, size_t *most,
                                     size_t *longest, vptq_err *err) VPTQ_MUST_CHECK;
/* Room for trees of a group of `rows` rows, with `tokens` from a root on. */
vptq_status vptq_forward_tree_reserve(vptq_forward *f, size_t rows, size_t tokens,
                                      vptq_err *err) VPTQ_MUST_CHECK;
void vptq_forward_tree_free(vptq_forward *f);
/* Copies rows [begin, begin + n) of f->k and f->v to the place of tokens [at, at + n). */
vptq_status vptq_forward_tree_keep(vptq_forward *f, size_t begin, size_t n, size_t at,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Activations of `rows` rows. */
vptq_status vptq_forward_grow(vptq_forward *f, size_t rows, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_forward_reserve_hidden(vptq_forward *f, size_t rows,
                                        vptq_err *err) VPTQ_MUST_CHECK;

/* out [rows, w->rows] = x [rows, w->cols] W^T + beta * out (+ bias on every row); for more
 * rows than vptq_weight_gemv_rows says the weight goes through the tile.  m: the weight as it
 * was opened; kept: for more than this pass. */
vptq_status vptq_forward_linear(vptq_forward *f, const vptq_weight *w, const vptq_matrix *m,
                                const float *bias, bool kept, size_t rows, const float *x,
                                float beta, float *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Logits [vocab] in host memory of one row of states in device memory. */
vptq_status vptq_forward_device_logits(vptq_forward *f, const float *hidden, float *logits,
                                       vptq_err *err) VPTQ_MUST_CHECK;
/* next [n] (host memory) chosen by the logits of n rows of states [n, hidden] in device memory,
 * as the row sample says, u [n] in host memory; vptq_forward_grow has made room for n rows. */
vptq_status vptq_forward_choose(vptq_forward *f, size_t n, const float *hidden,
                                double temperature, double top_p, const double *u,
                                int32_t *next, vptq_err *err) VPTQ_MUST_CHECK;

/* Opens the packed linears of all layers, for the steps that follow; once. */
vptq_status vptq_forward_keep(vptq_forward *f, vptq_err *err) VPTQ_MUST_CHECK;
/* f->hidden = the embeddings of n <= VPTQ_FORWARD_ROWS ids, or as many as are reserved, with
 * room for them to go through the blocks. */
vptq_status vptq_forward_start(vptq_forward *f, const int32_t *ids, size_t n,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* The cache of a layer in pages, and what the rows of a pass are in it. */
typedef struct vptq_forward_pages {
    const vptq_kv_rows *rows;
    vptq_kv_pool pool;
} vptq_forward_pages;
/* f->hidden [rows, hidden] through block `layer`, the linears of which are kept. */
vptq_status vptq_forward_pages_block(vptq_forward *f, uint32_t layer, size_t rows,
                                     const vptq_forward_pages *pages,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Bytes of rotation tables, a tile, activations and states of `rows` rows, in device memory. */
size_t vptq_forward_bytes(const vptq_model_desc *d, size_t max_length, size_t rows);

/* One block over `rows` rows h [rows, hidden] in device memory.  Without a cache (NULL)
 * sequence s is rows [starts[s] - starts[0], starts[s + 1] - starts[0]); with one, all rows
 * continue the sequence that holds `position` tokens; with pages they say what the rows are. */
typedef struct vptq_forward_pass {
    uint32_t layer;
    const vptq_weight *linear;  /* [VPTQ_LINEAR_COUNT], the model's or others */
    vptq_matrix *const *matrix; /* [VPTQ_LINEAR_COUNT], what was opened of them */
    size_t rows;
    float *h;
    const size_t *starts;
    size_t count;
    float *cache_k, *cache_v; /* of this layer */
    size_t position;
    const vptq_forward_pages *pages;
    vptq_block_hooks hooks;
    size_t first_sequence; /* number of sequence 0 for the hooks */
} vptq_forward_pass;
vptq_status vptq_forward_run_block(vptq_forward *f, const vptq_forward_pass *p,
                                   vptq_err *err) VPTQ_MUST_CHECK;

#endif
