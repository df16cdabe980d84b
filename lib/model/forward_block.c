/* One transformer block over the rows of a group:
 *
 *     x = norm(h);  q, k, v = x W^T + b;  q, k = rope(norm?(q, k))
 *     h += norm?(attention W_o^T)
 *     x = norm(h);  h += norm?((act(x W_gate^T) * (x W_up^T)) W_down^T)
 *                   h += norm?(act(x W_up^T) W_down^T), without a gate
 */
#include <math.h>

#include "lib/model/forward_internal.h"

/* ---- linear layers and norms ---- */

/* Multiplies by the stored weight, without converting it. */
static vptq_status multiply_stored(vptq_forward *f, const vptq_forward_linear_args *a,
                                   vptq_err *err)
{
    const vptq_gemv_args g = {.n = a->rows,
                              .x = a->x,
                              .y = a->out,
                              .ldx = a->w->cols,
                              .ldy = a->w->rows,
                              .beta = a->beta,
                              .bias = a->bias};
    VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
    return vptq_weight_gemv(a->w, a->opened, f->dev, &g, err);
}

vptq_status vptq_forward_linear_tile(vptq_forward *f, const vptq_forward_linear_args *a,
                                     size_t first, size_t n, float *out, size_t ld,
                                     vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const size_t cols = a->w->cols;
    const float *bias = a->bias ? a->bias + first : NULL;
    const void *tile;
    VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
    VPTQ_CHECK(vptq_weight_tile(a->w, a->opened, f->dev, first, n, f->tile, &tile, err));
    if (!ops->host_memory && !a->w->packed &&
        a->rows <= vptq_weight_gemv_rows(a->w, f->dev, a->kept)) {
        const vptq_gemv_args v = {.n = a->rows,
                                  .x = a->x,
                                  .y = out,
                                  .ldx = cols,
                                  .ldy = ld,
                                  .beta = a->beta,
                                  .bias = bias};
        return ops->gemv(f->dev->state, n, cols, vptq_weight_type(a->w), tile, &v, err);
    }
    const vptq_gemm_args g = {.m = a->rows,
                              .n = n,
                              .k = cols,
                              .a = a->x,
                              .b = tile,
                              .c = out,
                              .lda = cols,
                              .ldb = cols,
                              .ldc = ld,
                              .trans_b = true,
                              .alpha = 1,
                              .beta = a->beta,
                              .bias = bias,
                              .bf16 = f->bf16};
    return ops->gemm(f->dev->state, &g, err);
}

/* Quantizes the input of each token and multiplies it by the codes of a weight. */
static vptq_status multiply_bytes(vptq_forward *f, const vptq_forward_linear_args *a,
                                  vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const size_t cols = a->w->cols, step = vptq_forward_tile_rows(f, a->rows, cols);
    VPTQ_CHECK(vptq_forward_reserve_quantized(f, a->rows, err));
    const vptq_quantize_rows_args x = {.rows = a->rows,
                                       .cols = cols,
                                       .x = a->x,
                                       .ldx = cols,
                                       .q = f->quantized.q,
                                       .scale = f->quantized.scale};
    VPTQ_CHECK(ops->quantize_rows(f->dev->state, &x, err));
    for (size_t r = 0; r < a->w->rows; r += step) {
        vptq_multiply_bytes_args m = {.rows = a->rows,
                                      .out = a->w->rows - r < step ? a->w->rows - r : step,
                                      .in = cols,
                                      .q = f->quantized.q,
                                      .q_scale = f->quantized.scale,
                                      .bias = a->bias ? a->bias + r : NULL,
                                      .beta = a->beta,
                                      .y = a->out + r,
                                      .ldy = a->w->rows};
        VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
        VPTQ_CHECK(vptq_weight_codes(a->w, a->opened, f->dev, r, m.out, f->tile, &m.codes,
                                     &m.scale, err));
        VPTQ_CHECK(ops->multiply_bytes(f->dev->state, &m, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_forward_linear(vptq_forward *f, const vptq_forward_linear_args *a,
                                vptq_err *err)
{
    const vptq_weight *w = a->w;
    if (vptq_weight_takes_bytes(w))
        return multiply_bytes(f, a, err);
    if (a->rows <= vptq_weight_gemv_rows(w, f->dev, a->kept) &&
        vptq_weight_is_whole(w, a->opened, f->dev))
        return multiply_stored(f, a, err);
    const size_t step = vptq_forward_tile_rows(f, a->rows, w->cols);
    for (size_t r = 0; r < w->rows; r += step) {
        const size_t n = w->rows - r < step ? w->rows - r : step;
        VPTQ_CHECK(vptq_forward_linear_tile(f, a, r, n, a->out + r, w->rows, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_forward_block_linear(vptq_forward *f, const vptq_forward_pass *p,
                                      vptq_linear l, const float *x, float beta, float *out,
                                      vptq_err *err)
{
    vptq_forward_linear_args a = {.w = &p->linear[l],
                                  .opened = p->kept ? &p->kept[l] : NULL,
                                  .kept = p->kept != NULL,
                                  .bias = l < VPTQ_LINEAR_DENSE ? f->params[p->layer].bias[l]
                                                                : NULL,
                                  .rows = p->rows,
                                  .x = x,
                                  .out = out,
                                  .beta = beta};
    if (!a.opened)
        VPTQ_CHECK(vptq_forward_block_weight(f, p->layer, l, a.w, &a.opened, err));
    return vptq_forward_linear(f, &a, err);
}

static vptq_rmsnorm_args norm_args(const vptq_forward *f, size_t n, size_t dim, const float *x,
                                   const vptq_forward_norm *norm, float *y)
{
    return (vptq_rmsnorm_args){.n = n,
                               .dim = dim,
                               .x = x,
                               .ldx = dim,
                               .weight = norm->weight,
                               .eps = f->d->norm_eps,
                               .y = y,
                               .ldy = dim,
                               .bias = norm->bias};
}

vptq_status vptq_forward_rmsnorm(vptq_forward *f, size_t n, size_t dim, const float *x,
                                 const vptq_forward_norm *norm, float *y, vptq_err *err)
{
    const vptq_rmsnorm_args a = norm_args(f, n, dim, x, norm, y);
    return f->dev->ops->rmsnorm(f->dev->state, &a, err);
}

/* Adds the outputs of linear layer l to the hidden states: normalized, if the family has such a
 * norm, by way of p->a->x, which is not needed anymore. */
static vptq_status add_outputs(vptq_forward *f, const vptq_forward_pass *p, vptq_linear l,
                               const float *x, vptq_block_norm n, vptq_err *err)
{
    const vptq_forward_norm *norm = &f->params[p->layer].norm[n];
    if (!norm->weight)
        return vptq_forward_block_linear(f, p, l, x, 1, p->h, err);
    vptq_rmsnorm_args a = norm_args(f, p->rows, f->d->hidden, p->a->x, norm, p->h);
    a.add = true;
    VPTQ_CHECK(vptq_forward_block_linear(f, p, l, x, 0, p->a->x, err));
    return f->dev->ops->rmsnorm(f->dev->state, &a, err);
}

/* ---- hooks ---- */

/* Returns the number of rows of sequence s of the pass; *begin: the first one. */
static size_t sequence_rows(const vptq_forward_pass *p, size_t s, size_t *begin)
{
    *begin = p->starts[s] - p->starts[0];
    return p->starts[s + 1] - p->starts[s];
}

vptq_status vptq_forward_hook_rows(vptq_forward *f, const vptq_forward_pass *p,
                                   vptq_input input, const float *x, vptq_err *err)
{
    if (!p->hooks.hook)
        return VPTQ_OK;
    size_t dim = vptq_input_size(f->d, input), begin;
    for (size_t s = 0; s < p->count; s++) {
        size_t n = sequence_rows(p, s, &begin);
        VPTQ_CHECK(p->hooks.hook(p->hooks.arg, input, p->first_sequence + s, n, dim,
                                 x + begin * dim, err));
    }
    return VPTQ_OK;
}

static bool stops_at(const vptq_forward_pass *p, vptq_input input)
{
    return p->hooks.stop && p->hooks.last == input;
}

/* ---- attention ---- */

/* Normalizes every head of r->x if there is a norm, then rotates it: as the tokens from r->pos0
 * on or, with pages, each row at its own position. */
static vptq_status rotate_heads(vptq_forward *f, const vptq_forward_pass *p,
                                const vptq_forward_norm *norm, const vptq_rope_args *r,
                                float *raw, vptq_err *err)
{
    const size_t bytes = r->n * r->heads * r->head_dim * sizeof *r->x;
    if (norm->weight && raw)
        VPTQ_CHECK(f->dev->ops->copy(f->dev->state, raw, r->x, bytes, err));
    if (norm->weight)
        VPTQ_CHECK(
            vptq_forward_rmsnorm(f, r->n * r->heads, r->head_dim, r->x, norm, r->x, err));
    if (p->pages)
        return f->dev->ops->rope_rows(f->dev->state, p->pages->rows, r, err);
    return f->dev->ops->rope(f->dev->state, r, err);
}

/* Rows [begin, begin + n) of the pass: one sequence, or its end from `position` on. */
typedef struct query_rows {
    size_t begin, n, position;
} query_rows;

/* Rotates rows of queries and keys in place. */
static vptq_status rotate(vptq_forward *f, const vptq_forward_pass *p, const query_rows *rows,
                          float *q, float *k, vptq_err *err)
{
    const vptq_forward_block_params *b = &f->params[p->layer];
    float *raw_q = p->a->raw_q, *raw_k = p->a->raw_k;
    vptq_rope_args r = vptq_forward_rope(f, p->layer);
    r.n = rows->n;
    r.heads = f->d->heads;
    r.x = q;
    r.ldx = f->q_dim;
    r.pos0 = rows->position;
    raw_q = raw_q ? raw_q + rows->begin * f->q_dim : NULL;
    raw_k = raw_k ? raw_k + rows->begin * f->kv_dim : NULL;
    VPTQ_CHECK(rotate_heads(f, p, &b->norm[VPTQ_BLOCK_NORM_Q], &r, raw_q, err));
    r.heads = f->d->kv_heads;
    r.x = k;
    r.ldx = f->kv_dim;
    return rotate_heads(f, p, &b->norm[VPTQ_BLOCK_NORM_K], &r, raw_k, err);
}

vptq_rope_args vptq_forward_rope(const vptq_forward *f, uint32_t layer)
{
    const int local = f->cos_table[1] && vptq_layer_slides(f->d, layer);
    return (vptq_rope_args){.head_dim = f->d->head_dim,
                            .rotated = vptq_rotary_dim(f->d),
                            .cos_table = f->cos_table[local],
                            .sin_table = f->sin_table[local]};
}

float vptq_forward_score_scale(const vptq_forward *f)
{
    const double scalar = f->d->query_scalar;
    return (float)(1 / sqrt(scalar != 0 ? scalar : (double)f->d->head_dim));
}

/* Stores keys and values of all rows of the pass in the pages and attends to the content of the
 * pages: p->a->o. */
static vptq_status attend_pages(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const query_rows rows = {.begin = 0, .n = p->rows, .position = 0};
    const vptq_kv_store_args store = {.rows = p->pages->rows,
                                      .pool = &p->pages->pool,
                                      .keys = p->a->k,
                                      .ldk = f->kv_dim,
                                      .values = p->a->v,
                                      .ldv = f->kv_dim};
    const vptq_paged_args a = {.rows = p->pages->rows,
                               .pool = &p->pages->pool,
                               .heads = f->d->heads,
                               .window = vptq_layer_window(f->d, p->layer),
                               .scale = vptq_forward_score_scale(f),
                               .cap = (float)f->d->score_cap,
                               .q = p->a->q,
                               .out = p->a->o,
                               .ldq = f->q_dim,
                               .ldo = f->q_dim};
    VPTQ_CHECK(rotate(f, p, &rows, p->a->q, p->a->k, err));
    VPTQ_CHECK(ops->kv_store(f->dev->state, &store, err));
    return ops->attention_paged(f->dev->state, &a, err);
}

/* Rotates the queries, and their keys at `position` of `keys`, and attends to keys and values
 * up to them: the same rows of p->a->o.  *a: the arguments of the op. */
static vptq_status attend(vptq_forward *f, const vptq_forward_pass *p, const query_rows *rows,
                          float *keys, float *values, vptq_attention_args *a, vptq_err *err)
{
    float *q = p->a->q + rows->begin * f->q_dim;
    VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
    VPTQ_CHECK(rotate(f, p, rows, q, keys + rows->position * f->kv_dim, err));
    *a = (vptq_attention_args){.n = rows->n,
                               .pos0 = rows->position,
                               .heads = f->d->heads,
                               .kv_heads = f->d->kv_heads,
                               .head_dim = f->d->head_dim,
                               .window = vptq_layer_window(f->d, p->layer),
                               .scale = vptq_forward_score_scale(f),
                               .cap = (float)f->d->score_cap,
                               .q = q,
                               .keys = keys,
                               .values = values,
                               .out = p->a->o + rows->begin * f->q_dim,
                               .lse = p->a->lse ? p->a->lse + rows->begin * f->d->heads : NULL,
                               .ldq = f->q_dim,
                               .ldk = f->kv_dim,
                               .ldv = f->kv_dim,
                               .ldo = f->q_dim};
    return f->dev->ops->attention(f->dev->state, a, err);
}

/* Attends with a sequence that continues others.  Because of the preorder, the tree memory
 * still holds their keys and values from the sequence before; only those of a root, which
 * attends in place, are copied first. */
static vptq_status attend_child(vptq_forward *f, const vptq_forward_pass *p, size_t s,
                                size_t parent, vptq_err *err)
{
    vptq_attention_args a;
    query_rows rows;
    const size_t *starts = p->starts - p->first_sequence, *parents = p->hooks.parents;
    rows.n = sequence_rows(p, s, &rows.begin);
    rows.position = vptq_forward_tree_position(starts, parents, p->first_sequence + s);
    if (parents[parent] == VPTQ_FORWARD_ROOT && parent + 1 == p->first_sequence + s) {
        size_t begin;
        const size_t n = sequence_rows(p, s - 1, &begin);
        VPTQ_CHECK(vptq_forward_tree_keep(f, begin, n, 0, err));
    }
    VPTQ_CHECK(vptq_forward_tree_keep(f, rows.begin, rows.n, rows.position, err));
    return attend(f, p, &rows, f->tree_k, f->tree_v, &a, err);
}

static vptq_status attend_sequence(vptq_forward *f, const vptq_forward_pass *p, size_t s,
                                   vptq_err *err)
{
    vptq_attention_args a;
    query_rows rows = {.position = 0};
    const size_t *parents = p->hooks.parents, dim = f->d->hidden;
    if (parents && parents[p->first_sequence + s] != VPTQ_FORWARD_ROOT)
        return attend_child(f, p, s, parents[p->first_sequence + s], err);
    rows.n = sequence_rows(p, s, &rows.begin);
    VPTQ_CHECK(attend(f, p, &rows, p->a->k + rows.begin * f->kv_dim,
                      p->a->v + rows.begin * f->kv_dim, &a, err));
    if (!p->hooks.attention)
        return VPTQ_OK;
    return p->hooks.attention(p->hooks.arg, p->first_sequence + s, rows.n, dim,
                              p->a->x + rows.begin * dim, &a, err);
}

static vptq_status attend_cache(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    vptq_attention_args a;
    const query_rows rows = {.begin = 0, .n = p->rows, .position = p->position};
    return attend(f, p, &rows, p->cache_k, p->cache_v, &a, err);
}

static vptq_status attention_half(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    const size_t stored = p->position * f->kv_dim;
    float *k = p->cache_k ? p->cache_k + stored : p->a->k;
    float *v = p->cache_v ? p->cache_v + stored : p->a->v;
    VPTQ_CHECK(vptq_forward_rmsnorm(f, p->rows, f->d->hidden, p->h,
                                    &f->params[p->layer].norm[VPTQ_BLOCK_NORM_INPUT], p->a->x,
                                    err));
    VPTQ_CHECK(vptq_forward_hook_rows(f, p, VPTQ_INPUT_QKV, p->a->x, err));
    if (stops_at(p, VPTQ_INPUT_QKV))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_forward_block_linear(f, p, VPTQ_LINEAR_Q, p->a->x, 0, p->a->q, err));
    VPTQ_CHECK(vptq_forward_block_linear(f, p, VPTQ_LINEAR_K, p->a->x, 0, k, err));
    VPTQ_CHECK(vptq_forward_block_linear(f, p, VPTQ_LINEAR_V, p->a->x, 0, v, err));
    if (p->pages)
        VPTQ_CHECK(attend_pages(f, p, err));
    if (p->cache_k)
        VPTQ_CHECK(attend_cache(f, p, err));
    for (size_t s = 0; s < p->count; s++)
        VPTQ_CHECK(attend_sequence(f, p, s, err));
    VPTQ_CHECK(vptq_forward_hook_rows(f, p, VPTQ_INPUT_O, p->a->o, err));
    if (stops_at(p, VPTQ_INPUT_O))
        return VPTQ_OK;
    return add_outputs(f, p, VPTQ_LINEAR_O, p->a->o, VPTQ_BLOCK_NORM_ATTENTION_OUT, err);
}

/* ---- feed forward ---- */

static vptq_status feed_forward_half(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    const bool gated = vptq_linear_exists(f->d, p->layer, VPTQ_LINEAR_GATE);
    VPTQ_CHECK(vptq_forward_rmsnorm(f, p->rows, f->d->hidden, p->h,
                                    &f->params[p->layer].norm[VPTQ_BLOCK_NORM_FEED_FORWARD],
                                    p->a->x, err));
    VPTQ_CHECK(vptq_forward_hook_rows(f, p, VPTQ_INPUT_UP, p->a->x, err));
    if (stops_at(p, VPTQ_INPUT_UP))
        return VPTQ_OK;
    if (vptq_layer_has_experts(&f->d->experts, p->layer))
        return vptq_forward_experts(f, p, err);
    if (gated)
        VPTQ_CHECK(
            vptq_forward_block_linear(f, p, VPTQ_LINEAR_GATE, p->a->x, 0, p->a->gate, err));
    VPTQ_CHECK(vptq_forward_block_linear(f, p, VPTQ_LINEAR_UP, p->a->x, 0, p->a->up, err));
    VPTQ_CHECK(f->dev->ops->swiglu(f->dev->state,
                                   &(vptq_swiglu_args){.n = p->rows,
                                                       .dim = f->d->intermediate,
                                                       .gelu = f->d->gelu,
                                                       .gate = gated ? p->a->gate : p->a->up,
                                                       .up = gated ? p->a->up : NULL,
                                                       .y = p->a->act},
                                   err));
    VPTQ_CHECK(vptq_forward_hook_rows(f, p, VPTQ_INPUT_DOWN, p->a->act, err));
    if (stops_at(p, VPTQ_INPUT_DOWN))
        return VPTQ_OK;
    return add_outputs(f, p, VPTQ_LINEAR_DOWN, p->a->act, VPTQ_BLOCK_NORM_FEED_FORWARD_OUT,
                       err);
}

vptq_status vptq_forward_run_block(vptq_forward *f, const vptq_forward_pass *pass,
                                   vptq_err *err)
{
    const vptq_activations own = {
        f->x, f->q, f->k, f->v, .o = f->gate, .gate = f->gate, .up = f->up, .act = f->gate};
    const size_t bytes = pass->rows * f->d->hidden * sizeof *pass->h;
    const vptq_block_half half = pass->hooks.half;
    vptq_forward_pass p = *pass;
    p.a = p.a ? p.a : &own;
    VPTQ_BUG_IF(p.hooks.stop &&
                half != (p.hooks.last <= VPTQ_INPUT_O ? VPTQ_BLOCK_ATTENTION
                                                      : VPTQ_BLOCK_FEED_FORWARD));
    if (half != VPTQ_BLOCK_FEED_FORWARD)
        VPTQ_CHECK(attention_half(f, &p, err));
    if (half != VPTQ_BLOCK_FEED_FORWARD && p.a->mid)
        VPTQ_CHECK(f->dev->ops->copy(f->dev->state, p.a->mid, p.h, bytes, err));
    return half == VPTQ_BLOCK_ATTENTION ? VPTQ_OK : feed_forward_half(f, &p, err);
}
