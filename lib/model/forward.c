/* The forward pass around the blocks: opening, device memory, embedding, runs of a block over
 * groups of sequences, and steps with a cache. */
#include <math.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/model/forward_internal.h"

/* Floats of a weight tile.  For many activation rows, large enough for efficient products.  For
 * a few rows, small enough to stay in the threads' caches between conversion and use. */
enum { TILE_FLOATS = 1 << 20, FEW_TILE_FLOATS = 1 << 17, TILE_STEP = 64 };

size_t vptq_forward_tile_rows(const vptq_forward *f, size_t rows, size_t cols)
{
    size_t floats = TILE_FLOATS;
    if (rows <= VPTQ_FORWARD_FEW_ROWS && f->dev->ctx->threads < TILE_FLOATS / FEW_TILE_FLOATS)
        floats = (size_t)FEW_TILE_FLOATS * (size_t)f->dev->ctx->threads;
    size_t fit = floats / cols;
    if (fit < TILE_STEP)
        return TILE_STEP;
    return fit < VPTQ_FORWARD_TILE_ROWS ? fit / TILE_STEP * TILE_STEP : VPTQ_FORWARD_TILE_ROWS;
}

/* ---- device memory ---- */

static vptq_status floats_alloc(vptq_forward *f, size_t rows, size_t cols, float **out,
                                vptq_err *err)
{
    size_t bytes;
    if (!vptq_size_mul(cols, sizeof(float), &bytes))
        return vptq_fail(err, VPTQ_E_NOMEM, "a row of %zu numbers is too long", cols);
    void *p = NULL;
    vptq_status st = f->dev->ops->alloc(f->dev->state, rows, bytes, &p, err);
    *out = p;
    return st;
}

static void floats_free(vptq_forward *f, float **p)
{
    f->dev->ops->release(f->dev->state, *p);
    *p = NULL;
}

static void activations_free(vptq_forward *f)
{
    floats_free(f, &f->x);
    floats_free(f, &f->q);
    floats_free(f, &f->k);
    floats_free(f, &f->v);
    floats_free(f, &f->gate);
    floats_free(f, &f->up);
    floats_free(f, &f->experts);
    f->rows = 0;
    f->dev->ops->release(f->dev->state, f->quantized.q);
    f->quantized.q = NULL;
    floats_free(f, &f->quantized.scale);
    f->quantized.rows = 0;
}

vptq_status vptq_forward_reserve_quantized(vptq_forward *f, size_t rows, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = f->dev->ops;
    void *q = NULL;
    if (rows <= f->quantized.rows)
        return VPTQ_OK;
    f->quantized.rows = 0;
    ops->release(f->dev->state, f->quantized.q);
    f->quantized.q = NULL;
    floats_free(f, &f->quantized.scale);
    VPTQ_TRY(ops->alloc(f->dev->state, rows, vptq_forward_byte_row(f), &q, err));
    f->quantized.q = q;
    VPTQ_TRY(floats_alloc(f, rows, 1, &f->quantized.scale, err));
    f->quantized.rows = rows;
out:
    if (st)
        vptq_err_context(err, "quantized inputs of %zu tokens", rows);
    return st;
}

vptq_status vptq_forward_grow(vptq_forward *f, size_t rows, vptq_err *err)
{
    if (rows <= f->rows)
        return VPTQ_OK;
    vptq_status st = VPTQ_OK;
    const size_t inter = vptq_widest_intermediate(f->d);
    activations_free(f);
    VPTQ_TRY(floats_alloc(f, rows, f->d->hidden, &f->x, err));
    VPTQ_TRY(floats_alloc(f, rows, f->q_dim, &f->q, err));
    VPTQ_TRY(floats_alloc(f, rows, f->kv_dim, &f->k, err));
    VPTQ_TRY(floats_alloc(f, rows, f->kv_dim, &f->v, err));
    VPTQ_TRY(floats_alloc(f, rows, inter > f->q_dim ? inter : f->q_dim, &f->gate, err));
    VPTQ_TRY(floats_alloc(f, rows, inter, &f->up, err));
    if (f->d->experts.count)
        VPTQ_TRY(floats_alloc(f, rows, vptq_forward_experts_floats(f->d), &f->experts, err));
    f->rows = rows;
out:
    if (st) {
        activations_free(f);
        vptq_err_context(err, "activations of %zu tokens (shorter windows need less)", rows);
    }
    return st;
}

vptq_status vptq_forward_reserve(vptq_forward *f, size_t rows, vptq_err *err)
{
    return f->dev->ops->host_memory ? vptq_forward_grow(f, rows, err) : VPTQ_OK;
}

static void hidden_free(vptq_forward *f)
{
    floats_free(f, &f->hidden);
    vptq_mem_free(f->dev->ctx->mem, f->stage);
    f->stage = NULL;
    f->hidden_rows = 0;
}

vptq_status vptq_forward_reserve_hidden(vptq_forward *f, size_t rows, vptq_err *err)
{
    if (rows <= f->hidden_rows)
        return VPTQ_OK;
    vptq_status st = VPTQ_OK;
    hidden_free(f);
    VPTQ_TRY(floats_alloc(f, rows, f->d->hidden, &f->hidden, err));
    if (!f->dev->ops->host_memory) {
        f->stage = vptq_mem_alloc(f->dev->ctx->mem, rows, f->d->hidden * sizeof(float), err);
        if (!f->stage)
            VPTQ_TRY(VPTQ_E_NOMEM);
    }
    f->hidden_rows = rows;
out:
    if (st)
        hidden_free(f);
    return st;
}

vptq_status vptq_forward_reserve_ids(vptq_forward *f, size_t rows, vptq_err *err)
{
    void *p = NULL;
    if (rows <= f->ids_rows)
        return VPTQ_OK;
    f->dev->ops->release(f->dev->state, f->ids);
    f->ids_rows = 0;
    const vptq_status st = f->dev->ops->alloc(f->dev->state, rows, sizeof *f->ids, &p, err);
    f->ids = p;
    f->ids_rows = st ? 0 : rows;
    return st;
}

/* ---- open ---- */

/* Norms, their biases and those of linear layers of a block, in the order in which f->vectors
 * holds them. */
enum {
    NORM_BIAS = VPTQ_BLOCK_NORM_COUNT,
    LINEAR_BIAS = 2 * (int)VPTQ_BLOCK_NORM_COUNT,
    VECTOR_COUNT = LINEAR_BIAS + (int)VPTQ_LINEAR_DENSE
};

static void block_vectors(const vptq_block *b, const vptq_tensor *v[VECTOR_COUNT])
{
    for (int i = 0; i < VPTQ_BLOCK_NORM_COUNT; i++) {
        v[i] = b->norm[i];
        v[NORM_BIAS + i] = b->norm_bias[i];
    }
    for (int i = 0; i < VPTQ_LINEAR_DENSE; i++)
        v[LINEAR_BIAS + i] = b->linear_bias[i];
}

/* Loads a tensor into f->vectors after *used floats, adding `offset`; *out is NULL for a NULL
 * tensor. */
static vptq_status load_vector(vptq_forward *f, const vptq_tensor *t, float offset,
                               float *stage, size_t *used, const float **out, vptq_err *err)
{
    *out = NULL;
    if (!t)
        return VPTQ_OK;
    const size_t n = vptq_tensor_cols(t);
    float *dst = f->vectors + *used;
    VPTQ_CHECK(vptq_tensor_read(t, 0, 1, stage, err));
    for (size_t i = 0; offset != 0 && i < n; i++)
        stage[i] += offset;
    VPTQ_CHECK(f->dev->ops->upload(f->dev->state, dst, stage, n * sizeof *dst, err));
    *out = dst;
    *used += n;
    return VPTQ_OK;
}

static float norm_offset(const vptq_forward *f)
{
    return f->d->family->norm_offset ? 1 : 0;
}

static vptq_status load_block_vectors(vptq_forward *f, uint32_t layer, float *stage,
                                      size_t *used, vptq_err *err)
{
    vptq_forward_block_params *p = &f->params[layer];
    const vptq_tensor *v[VECTOR_COUNT];
    const float *loaded[VECTOR_COUNT];
    block_vectors(&f->m->blocks[layer], v);
    for (int i = 0; i < VECTOR_COUNT; i++)
        VPTQ_CHECK(load_vector(f, v[i], i < NORM_BIAS ? norm_offset(f) : 0, stage, used,
                               &loaded[i], err));
    for (int i = 0; i < VPTQ_BLOCK_NORM_COUNT; i++)
        p->norm[i] = (vptq_forward_norm){loaded[i], loaded[NORM_BIAS + i]};
    for (int i = 0; i < VPTQ_LINEAR_DENSE; i++)
        p->bias[i] = loaded[LINEAR_BIAS + i];
    return VPTQ_OK;
}

static vptq_status load_vectors(vptq_forward *f, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = f->dev->ctx->mem;
    size_t longest = vptq_tensor_cols(f->m->final_norm), used = 0;
    size_t total = f->m->final_norm_bias ? 2 * longest : longest;
    for (uint32_t l = 0; l < f->d->layers; l++) {
        const vptq_tensor *v[VECTOR_COUNT];
        block_vectors(&f->m->blocks[l], v);
        for (int i = 0; i < VECTOR_COUNT; i++) {
            size_t n = v[i] ? vptq_tensor_cols(v[i]) : 0;
            total += n;
            longest = n > longest ? n : longest;
        }
    }
    float *stage = vptq_mem_alloc(mem, longest, sizeof *stage, err);
    if (!stage)
        return VPTQ_E_NOMEM;
    f->params = vptq_mem_alloc(mem, f->d->layers, sizeof *f->params, err);
    if (!f->params)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(floats_alloc(f, 1, total, &f->vectors, err));
    for (uint32_t l = 0; l < f->d->layers; l++) {
        VPTQ_TRY(load_block_vectors(f, l, stage, &used, err));
        /* The system may have read megabytes around the few bytes of a norm. */
        vptq_checkpoint_forget(&f->m->ckpt);
    }
    VPTQ_TRY(load_vector(f, f->m->final_norm, norm_offset(f), stage, &used,
                         &f->final_norm.weight, err));
    VPTQ_TRY(load_vector(f, f->m->final_norm_bias, 0, stage, &used, &f->final_norm.bias, err));
out:
    vptq_mem_free(mem, stage);
    return st;
}

/* Loads the tables of a description as tables `at`. */
static vptq_status load_tables(vptq_forward *f, const vptq_model_desc *d, int at, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = f->dev->ops;
    vptq_mem *mem = f->dev->ctx->mem;
    size_t half = vptq_rotary_dim(d) / 2, bytes;
    float *c = vptq_mem_alloc(mem, f->max_length, half * sizeof *c, err);
    float *s = c ? vptq_mem_alloc(mem, f->max_length, half * sizeof *s, err) : NULL;
    if (!s)
        VPTQ_TRY(VPTQ_E_NOMEM);
    bytes = f->max_length * half * sizeof *c;
    vptq_rope_tables(d, f->max_length, c, s);
    VPTQ_TRY(floats_alloc(f, f->max_length, half, &f->cos_table[at], err));
    VPTQ_TRY(floats_alloc(f, f->max_length, half, &f->sin_table[at], err));
    VPTQ_TRY(ops->upload(f->dev->state, f->cos_table[at], c, bytes, err));
    VPTQ_TRY(ops->upload(f->dev->state, f->sin_table[at], s, bytes, err));
out:
    vptq_mem_free(mem, s);
    vptq_mem_free(mem, c);
    return st;
}

static vptq_status load_rope(vptq_forward *f, vptq_err *err)
{
    VPTQ_CHECK(load_tables(f, f->d, 0, err));
    if (f->d->rope_local_theta == 0)
        return VPTQ_OK;
    vptq_model_desc local = *f->d;
    local.rope_theta = local.rope_local_theta;
    local.rope_scaling = VPTQ_ROPE_NONE;
    return load_tables(f, &local, 1, err);
}

/* transformers rounds the root of the hidden size to the type of the weights. */
static float embedding_scale(const vptq_model *m)
{
    const vptq_tensor *t = m->embedding;
    const float scale = (float)sqrt((double)m->desc->hidden);
    const bool in_blocks = vptq_dtype_get(t->type)->block > 1;
    vptq_dtype type = in_blocks ? m->ckpt.storage : t->type;
    if (t->round_to != VPTQ_F32)
        type = t->round_to;
    if (!m->desc->family->scaled_embedding)
        return 0;
    return type == VPTQ_F16    ? vptq_f16_to_f32(vptq_f32_to_f16(scale))
           : type == VPTQ_BF16 ? vptq_bf16_to_f32(vptq_f32_to_bf16(scale))
                               : scale;
}

/* Floats of the largest tile of any matrix of the model, head included. */
static size_t tile_floats(const vptq_forward *f)
{
    const vptq_model_desc *d = f->d;
    size_t rows = vptq_forward_tile_rows(f, VPTQ_FORWARD_ROWS, d->hidden);
    size_t largest = (rows < d->vocab ? rows : d->vocab) * d->hidden;
    if (d->experts.count > d->vocab) /* of the router */
        largest = (rows < d->experts.count ? rows : d->experts.count) * d->hidden;
    for (int i = 0; i < vptq_linear_count(d); i++) {
        uint32_t out, in;
        vptq_linear_shape(d, (vptq_linear)i, &out, &in);
        if (!in) /* no shared expert */
            continue;
        rows = vptq_forward_tile_rows(f, VPTQ_FORWARD_ROWS, in);
        const size_t n = (rows < out ? rows : out) * (size_t)in;
        largest = n > largest ? n : largest;
    }
    return largest;
}

size_t vptq_forward_bytes(const vptq_model *m, size_t max_length, size_t rows)
{
    const vptq_model_desc *d = m->desc;
    const vptq_forward f = {.d = d,
                            .takes_bytes = vptq_forward_has_bytes(m),
                            .q_dim = (size_t)d->heads * d->head_dim,
                            .kv_dim = (size_t)d->kv_heads * d->head_dim};
    const size_t row = d->hidden + vptq_forward_row_floats(&f);
    const size_t tables = d->rope_local_theta != 0 ? 2 : 1;
    return (rows * row + max_length * vptq_rotary_dim(d) * tables + tile_floats(&f)) *
           sizeof(float);
}

static size_t vector_bytes(const vptq_model_desc *d)
{
    return d->hidden * (size_t)d->layers * VPTQ_BLOCK_NORM_COUNT * sizeof(float);
}

size_t vptq_forward_host_bytes(const vptq_model *m, const vptq_device *dev, size_t max_length,
                               size_t rows)
{
    const vptq_model_desc *d = m->desc;
    const size_t hidden = rows * d->hidden * sizeof(float); /* the caller's on host devices */
    return dev->ops->host_memory
               ? vptq_forward_bytes(m, max_length, rows) - hidden + vector_bytes(d)
               : hidden;
}

vptq_status vptq_forward_next_bytes(const vptq_model *m, size_t max_length, size_t n,
                                    size_t *bytes, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    const size_t rows = n < VPTQ_FORWARD_ROWS ? n : VPTQ_FORWARD_ROWS;
    const size_t token = 2 * sizeof(float) * d->layers * d->kv_heads * d->head_dim;
    size_t cache;
    if (!vptq_size_mul(max_length, token, &cache) ||
        !vptq_size_add(cache,
                       vptq_forward_bytes(m, max_length, rows) + vector_bytes(d) +
                           d->vocab * sizeof(float),
                       bytes))
        return vptq_fail(err, VPTQ_E_NOMEM, "a cache of %zu tokens is too large", max_length);
    return VPTQ_OK;
}

vptq_status vptq_forward_open(const vptq_model *m, vptq_device *dev, size_t max_length,
                              vptq_forward **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *out = NULL;
    if (max_length == 0)
        return vptq_fail(err, VPTQ_E_ARG, "the sequence length is 0, expected at least 1");
    if (m->desc->experts.count && !dev->ops->host_memory)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: models with experts do not run on backend %s, pass --backend cpu",
                         m->ckpt.path, dev->ops->name);
    vptq_forward *f = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *f, err);
    if (!f)
        return VPTQ_E_NOMEM;
    *f = (vptq_forward){.m = m,
                        .d = m->desc,
                        .dev = dev,
                        .max_length = max_length,
                        .embedding_scale = embedding_scale(m),
                        .takes_bytes = vptq_forward_has_bytes(m),
                        .linear_count = vptq_linear_count(m->desc)};
    vptq_arena_init(&f->arena, dev->ctx->mem);
    f->q_dim = (size_t)f->d->heads * f->d->head_dim;
    f->kv_dim = (size_t)f->d->kv_heads * f->d->head_dim;
    f->tile_floats = tile_floats(f);
    VPTQ_TRY(vptq_forward_weights_open(f, err));
    VPTQ_TRY(load_vectors(f, err));
    VPTQ_TRY(load_rope(f, err));
    VPTQ_TRY(floats_alloc(f, 1, f->tile_floats, &f->tile, err));
    if (max_length > f->d->context)
        vptq_log(dev->ctx, VPTQ_LOG_WARN,
                 "%s: sequences of %zu tokens are longer than the model's context of %u",
                 m->ckpt.path, max_length, f->d->context);
out:
    if (st)
        vptq_forward_close(f);
    else
        *out = f;
    return st;
}

void vptq_forward_close(vptq_forward *f)
{
    if (!f)
        return;
    vptq_mem *mem = f->dev->ctx->mem;
    vptq_forward_weights_close(f);
    activations_free(f);
    hidden_free(f);
    for (int i = 0; i < VPTQ_FORWARD_RESIDENT; i++)
        vptq_forward_hidden_free(f, f->resident[i].data);
    f->dev->ops->release(f->dev->state, f->ids);
    vptq_forward_tree_free(f);
    floats_free(f, &f->logits);
    f->dev->ops->release(f->dev->state, f->nll);
    f->dev->ops->release(f->dev->state, f->targets);
    f->dev->ops->release(f->dev->state, f->samples);
    floats_free(f, &f->cache_k);
    floats_free(f, &f->cache_v);
    floats_free(f, &f->tile);
    for (int i = 0; i < 2; i++) {
        floats_free(f, &f->cos_table[i]);
        floats_free(f, &f->sin_table[i]);
    }
    floats_free(f, &f->vectors);
    vptq_mem_free(mem, f->params);
    vptq_arena_release(&f->arena);
    vptq_mem_free(mem, f);
}

/* ---- embedding ---- */

static vptq_status check_ids(const vptq_forward *f, const int32_t *ids, size_t n, vptq_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= f->d->vocab)
            return vptq_fail(err, VPTQ_E_ARG,
                             "token %zu is %d, outside the model's vocabulary of %u", i, ids[i],
                             f->d->vocab);
    return VPTQ_OK;
}

static vptq_status read_embeddings(const vptq_forward *f, const int32_t *ids, size_t n,
                                   float *hidden, vptq_err *err)
{
    const float scale = f->embedding_scale;
    for (size_t i = 0; i < n; i++)
        VPTQ_CHECK(vptq_tensor_read(f->m->embedding, (size_t)ids[i], 1,
                                    hidden + i * f->d->hidden, err));
    for (size_t i = 0; scale != 0 && i < n * f->d->hidden; i++)
        hidden[i] *= scale;
    return VPTQ_OK;
}

static vptq_status embed_resident(const vptq_forward *f, const int32_t *ids, size_t n,
                                  float *hidden, vptq_err *err)
{
    enum { STEP = 256 }; /* rows converted and uploaded at a time */
    vptq_status st = VPTQ_OK;
    const size_t dim = f->d->hidden, step = n < STEP ? n : STEP;
    float *stage = vptq_mem_alloc(f->dev->ctx->mem, step, dim * sizeof *stage, err);
    if (!stage)
        return VPTQ_E_NOMEM;
    for (size_t i = 0, rows; i < n && !st; i += rows) {
        rows = n - i < step ? n - i : step;
        st = read_embeddings(f, ids + i, rows, stage, err);
        if (!st)
            st = f->dev->ops->upload(f->dev->state, hidden + i * dim, stage,
                                     rows * dim * sizeof *stage, err);
    }
    vptq_mem_free(f->dev->ctx->mem, stage);
    return st;
}

vptq_status vptq_forward_embed(vptq_forward *f, const int32_t *ids, size_t n, float *hidden,
                               vptq_err *err)
{
    VPTQ_CHECK(check_ids(f, ids, n, err));
    if (vptq_forward_is_resident(f, hidden))
        return embed_resident(f, ids, n, hidden, err);
    return read_embeddings(f, ids, n, hidden, err);
}

/* ---- sequences ---- */

/* Adds the layer's number to the error of a failed status. */
static vptq_status name_layer(uint32_t layer, vptq_status st, vptq_err *err)
{
    if (st)
        vptq_err_context(err, "layer %u", layer);
    return st;
}

static vptq_status run_group(vptq_forward *f, vptq_forward_pass *p, float *hidden,
                             vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    size_t bytes = p->rows * f->d->hidden * sizeof *hidden;
    if (!ops->host_memory)
        VPTQ_CHECK(vptq_forward_grow(f, p->rows, err));
    if (ops->host_memory || vptq_forward_is_resident(f, hidden)) {
        p->h = hidden;
        return vptq_forward_run_block(f, p, err);
    }
    VPTQ_CHECK(vptq_forward_reserve_hidden(f, p->rows, err));
    p->h = f->hidden;
    VPTQ_CHECK(ops->upload(f->dev->state, p->h, hidden, bytes, err));
    VPTQ_CHECK(vptq_forward_run_block(f, p, err));
    return ops->download(f->dev->state, hidden, p->h, bytes, err);
}

/* Releases the memory of a block's weights: all other blocks run before they are read again. */
static void forget_weights(const vptq_forward *f, uint32_t layer)
{
    for (int l = 0; l < f->linear_count; l++)
        if (vptq_linear_exists(f->d, layer, l))
            vptq_weight_forget(&f->m->blocks[layer].linear[l]);
}

/* Lets the system read the weights of the next block while block `layer` computes.  Only once,
 * since a block may run many times in a row. */
static void read_ahead(vptq_forward *f, uint32_t layer)
{
    if (f->read_ahead == layer + 1)
        return;
    f->read_ahead = layer + 1;
    if (layer + 1 == f->d->layers)
        vptq_tensor_ahead(f->m->head);
    for (int l = 0; layer + 1 < f->d->layers && l < f->linear_count; l++)
        if (vptq_linear_exists(f->d, layer + 1, l))
            vptq_weight_ahead(&f->m->blocks[layer + 1].linear[l]);
}

vptq_status vptq_forward_block_with(vptq_forward *f, uint32_t layer, const size_t *starts,
                                    size_t count, float *hidden, const vptq_block_hooks *hooks,
                                    vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t *parents = hooks->parents;
    size_t rows, tokens;
    VPTQ_BUG_IF(layer >= f->d->layers || (parents && hooks->attention));
    const vptq_weight *linear = hooks->linear ? hooks->linear : f->m->blocks[layer].linear;
    VPTQ_TRY(vptq_forward_check_trees(f, starts, parents, count, &rows, &tokens, err));
    VPTQ_TRY(vptq_forward_reserve(f, rows, err));
    if (parents)
        VPTQ_TRY(vptq_forward_tree_reserve(f, rows, tokens, err));
    f->group_rows = rows;
    read_ahead(f, layer);
    for (size_t s = 0, end, group = 0; s < count; s = end) {
        if (s == group)
            group = vptq_forward_group_trees(starts, parents, count, s);
        end = vptq_forward_piece(f, linear, starts, parents, s, group);
        vptq_forward_pass p = {.layer = layer,
                               .linear = linear,
                               .rows = starts[end] - starts[s],
                               .starts = starts + s,
                               .count = end - s,
                               .hooks = *hooks,
                               .first_sequence = s};
        float *group_hidden = hidden + starts[s] * f->d->hidden;
        VPTQ_TRY(name_layer(layer, run_group(f, &p, group_hidden, err), err));
    }
    forget_weights(f, layer);
    if (!f->block.held)
        VPTQ_TRY(vptq_forward_ahead(f, layer + 1, 0, err));
out:
    if (!f->block.held)
        vptq_forward_block_close(f);
    return st;
}

vptq_status vptq_forward_block(vptq_forward *f, uint32_t layer, const size_t *starts,
                               size_t count, float *hidden, vptq_err *err)
{
    const vptq_block_hooks none = {.hook = NULL};
    return vptq_forward_block_with(f, layer, starts, count, hidden, &none, err);
}

/* ---- single steps ---- */

static vptq_status open_cache(vptq_forward *f, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    if (f->cache_v)
        return VPTQ_OK;
    size_t rows;
    if (!vptq_size_mul(f->max_length, f->d->layers, &rows))
        return vptq_fail(err, VPTQ_E_NOMEM, "a cache of %zu tokens is too large",
                         f->max_length);
    VPTQ_TRY(floats_alloc(f, rows, f->kv_dim, &f->cache_k, err));
    VPTQ_TRY(floats_alloc(f, rows, f->kv_dim, &f->cache_v, err));
out:
    if (st) {
        floats_free(f, &f->cache_k);
        vptq_err_context(err, "cache of %zu tokens (a shorter context needs less)",
                         f->max_length);
    }
    return st;
}

/* f->hidden = the embeddings of n ids, with an embedding in device memory. */
static vptq_status embed_stored(vptq_forward *f, const int32_t *ids, size_t n, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const vptq_weight w = {.tensor = f->m->embedding};
    VPTQ_CHECK(check_ids(f, ids, n, err));
    VPTQ_CHECK(vptq_forward_reserve_ids(f, n, err));
    const vptq_embed_args a = {.n = n,
                               .dim = f->d->hidden,
                               .table = vptq_forward_embedding(f)->stored,
                               .type = vptq_weight_type(&w),
                               .ids = f->ids,
                               .scale = f->embedding_scale,
                               .out = f->hidden};
    VPTQ_CHECK(ops->upload(f->dev->state, f->ids, ids, n * sizeof *ids, err));
    return ops->embed(f->dev->state, &a, err);
}

vptq_status vptq_forward_start(vptq_forward *f, const int32_t *ids, size_t n, vptq_err *err)
{
    VPTQ_CHECK(vptq_forward_grow(f, n, err));
    VPTQ_CHECK(vptq_forward_reserve_hidden(f, n, err));
    if (vptq_forward_embedding(f)->stored)
        return embed_stored(f, ids, n, err);
    VPTQ_CHECK(vptq_forward_embed(f, ids, n, f->stage ? f->stage : f->hidden, err));
    if (f->stage)
        VPTQ_CHECK(f->dev->ops->upload(f->dev->state, f->hidden, f->stage,
                                       n * f->d->hidden * sizeof(float), err));
    return VPTQ_OK;
}

/* A pass of f->hidden over a block whose linear layers are kept open. */
static vptq_forward_pass kept_pass(const vptq_forward *f, uint32_t layer, size_t rows)
{
    return (vptq_forward_pass){.layer = layer,
                               .linear = f->m->blocks[layer].linear,
                               .kept = f->kept + (size_t)layer * (size_t)f->linear_count,
                               .rows = rows,
                               .h = f->hidden};
}

vptq_status vptq_forward_pages_block(vptq_forward *f, uint32_t layer, size_t rows,
                                     const vptq_forward_pages *pages, vptq_err *err)
{
    vptq_forward_pass p = kept_pass(f, layer, rows);
    p.pages = pages;
    return name_layer(layer, vptq_forward_run_block(f, &p, err), err);
}

/* Runs n <= VPTQ_FORWARD_ROWS ids through all blocks, which leave the hidden states in
 * f->hidden. */
static vptq_status step_rows(vptq_forward *f, const int32_t *ids, size_t n, vptq_err *err)
{
    VPTQ_CHECK(vptq_forward_start(f, ids, n, err));
    for (uint32_t l = 0; l < f->d->layers; l++) {
        const size_t offset = (size_t)l * f->max_length * f->kv_dim;
        vptq_forward_pass p = kept_pass(f, l, n);
        p.cache_k = f->cache_k + offset;
        p.cache_v = f->cache_v + offset;
        p.position = f->position;
        VPTQ_CHECK(name_layer(l, vptq_forward_run_block(f, &p, err), err));
    }
    f->position += n;
    return VPTQ_OK;
}

vptq_status vptq_forward_next(vptq_forward *f, const int32_t *ids, size_t n,
                              const vptq_forward_sampling *s, int32_t *next, vptq_err *err)
{
    size_t last = 0;
    if (n == 0 || n > f->max_length - f->position)
        return vptq_fail(err, VPTQ_E_ARG, "cache of %zu tokens: %zu used, cannot add %zu",
                         f->max_length, f->position, n);
    VPTQ_CHECK(open_cache(f, err));
    VPTQ_CHECK(vptq_forward_keep(
        f, f->max_length < VPTQ_FORWARD_ROWS ? f->max_length : VPTQ_FORWARD_ROWS, 1, err));
    for (size_t i = 0; i < n; i += last) {
        last = n - i < VPTQ_FORWARD_ROWS ? n - i : VPTQ_FORWARD_ROWS;
        VPTQ_CHECK(step_rows(f, ids + i, last, err));
    }
    return vptq_forward_choose(f, 1, f->hidden + (last - 1) * f->d->hidden, s, next, err);
}
