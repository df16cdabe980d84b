/* One transformer block over the rows of a group:
 *
 *     x = norm(h);  q, k, v = x W^T + b;  q, k = rope(norm?(q, k));  h += attention W_o^T
 *     x = norm(h);  h += (silu(x W_gate^T) * (x W_up^T)) W_down^T
 */
#include <math.h>

#include "lib/model/forward_internal.h"

/* ---- linears ---- */

/* A few rows are multiplied with what is stored: to convert a weight that is used for them
 * alone would take longer. */
static vptq_status few_rows(vptq_forward *f, const vptq_weight *w, const vptq_matrix *m,
                            const float *bias, size_t rows, const float *x, float beta,
                            float *out, vptq_err *err)
{
    vptq_status st = vptq_check_cancel(f->dev->ctx, err);
    if (st)
        return st;
    const vptq_gemv_args g = {.n = rows,
                              .x = x,
                              .y = out,
                              .ldx = w->cols,
                              .ldy = w->rows,
                              .beta = beta,
                              .bias = bias};
    return vptq_weight_gemv(w, m, f->dev, &g, err);
}

vptq_status vptq_forward_linear(vptq_forward *f, const vptq_weight *w, const vptq_matrix *m,
                                const float *bias, bool kept, size_t rows, const float *x,
                                float beta, float *out, vptq_err *err)
{
    if (rows <= vptq_weight_gemv_rows(w, f->dev, kept))
        return few_rows(f, w, m, bias, rows, x, beta, out, err);
    size_t step = vptq_forward_tile_rows(f, rows, w->cols);
    for (size_t r = 0; r < w->rows; r += step) {
        size_t n = w->rows - r < step ? w->rows - r : step;
        VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
        VPTQ_CHECK(vptq_weight_tile(w, m, f->dev, r, n, f->tile, err));
        vptq_gemm_args g = {.m = rows,
                            .n = n,
                            .k = w->cols,
                            .a = x,
                            .b = f->tile,
                            .c = out + r,
                            .lda = w->cols,
                            .ldb = w->cols,
                            .ldc = w->rows,
                            .trans_b = true,
                            .alpha = 1,
                            .beta = beta,
                            .bias = bias ? bias + r : NULL};
        VPTQ_CHECK(f->dev->ops->gemm(f->dev->state, &g, err));
    }
    return VPTQ_OK;
}

static vptq_status block_linear(vptq_forward *f, const vptq_forward_pass *p, vptq_linear l,
                                const float *x, float beta, float *out, vptq_err *err)
{
    return vptq_forward_linear(f, &p->linear[l], p->matrix[l], f->params[p->layer].bias[l],
                               p->cache_k || p->pages, p->rows, x, beta, out, err);
}

/* The sequences of the pass, as rows from `begin` on. */
static size_t sequence_rows(const vptq_forward_pass *p, size_t s, size_t *begin)
{
    *begin = p->starts[s] - p->starts[0];
    return p->starts[s + 1] - p->starts[s];
}

static vptq_status hook_rows(vptq_forward *f, const vptq_forward_pass *p, vptq_input input,
                             const float *x, vptq_err *err)
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

static vptq_status norm_rows(vptq_forward *f, size_t rows, const float *h, const float *weight,
                             float *x, vptq_err *err)
{
    size_t dim = f->d->hidden;
    return f->dev->ops->rmsnorm(f->dev->state,
                                &(vptq_rmsnorm_args){.n = rows,
                                                     .dim = dim,
                                                     .x = h,
                                                     .ldx = dim,
                                                     .weight = weight,
                                                     .eps = f->d->norm_eps,
                                                     .y = x,
                                                     .ldy = dim},
                                err);
}

/* ---- attention ---- */

/* Norm of every head, where the family has one, in place. */
static vptq_status norm_heads(vptq_forward *f, const float *norm, size_t rows, size_t heads,
                              float *x, vptq_err *err)
{
    const size_t dim = f->d->head_dim;
    if (!norm)
        return VPTQ_OK;
    return f->dev->ops->rmsnorm(f->dev->state,
                                &(vptq_rmsnorm_args){.n = rows * heads,
                                                     .dim = dim,
                                                     .x = x,
                                                     .ldx = dim,
                                                     .weight = norm,
                                                     .eps = f->d->norm_eps,
                                                     .y = x,
                                                     .ldy = dim},
                                err);
}

/* And rotation. */
static vptq_status rotate_heads(vptq_forward *f, const float *norm, size_t rows, size_t heads,
                                size_t position, float *x, vptq_err *err)
{
    size_t dim = f->d->head_dim;
    VPTQ_CHECK(norm_heads(f, norm, rows, heads, x, err));
    return f->dev->ops->rope(f->dev->state,
                             &(vptq_rope_args){.n = rows,
                                               .heads = heads,
                                               .head_dim = dim,
                                               .x = x,
                                               .ldx = heads * dim,
                                               .cos_table = f->cos_table,
                                               .sin_table = f->sin_table,
                                               .pos0 = position},
                             err);
}

static size_t window_of(const vptq_forward *f, uint32_t layer)
{
    return layer >= f->d->window_from ? f->d->window : 0;
}

static float score_scale(const vptq_forward *f)
{
    return (float)(1 / sqrt((double)f->d->head_dim));
}

/* All rows of the pass, by pages: their keys and values go there, and out [rows, q_dim] comes
 * of everything that is there. */
static vptq_status attend_pages(vptq_forward *f, const vptq_forward_pass *p, float *out,
                                vptq_err *err)
{
    const vptq_model_desc *d = f->d;
    const vptq_backend *ops = f->dev->ops;
    const vptq_forward_block_params *b = &f->params[p->layer];
    const vptq_kv_rows *rows = p->pages->rows;
    const vptq_paged_args a = {.rows = rows,
                               .pool = &p->pages->pool,
                               .heads = d->heads,
                               .window = window_of(f, p->layer),
                               .scale = score_scale(f),
                               .q = f->q,
                               .out = out,
                               .ldq = f->q_dim,
                               .ldo = f->q_dim};
    VPTQ_CHECK(norm_heads(f, b->q_norm, p->rows, d->heads, f->q, err));
    VPTQ_CHECK(norm_heads(f, b->k_norm, p->rows, d->kv_heads, f->k, err));
    VPTQ_CHECK(ops->rope_rows(f->dev->state, rows,
                              &(vptq_rope_args){.heads = d->heads,
                                                .head_dim = d->head_dim,
                                                .x = f->q,
                                                .ldx = f->q_dim,
                                                .cos_table = f->cos_table,
                                                .sin_table = f->sin_table},
                              err));
    VPTQ_CHECK(ops->rope_rows(f->dev->state, rows,
                              &(vptq_rope_args){.heads = d->kv_heads,
                                                .head_dim = d->head_dim,
                                                .x = f->k,
                                                .ldx = f->kv_dim,
                                                .cos_table = f->cos_table,
                                                .sin_table = f->sin_table},
                              err));
    VPTQ_CHECK(ops->kv_store(f->dev->state,
                             &(vptq_kv_store_args){.rows = rows,
                                                   .pool = a.pool,
                                                   .keys = f->k,
                                                   .ldk = f->kv_dim,
                                                   .values = f->v,
                                                   .ldv = f->kv_dim},
                             err));
    return ops->attention_paged(f->dev->state, &a, err);
}

/* n rows that stand at `position`, with their keys and values behind those of the cache; *done:
 * what was computed from. */
static vptq_status attend(vptq_forward *f, const vptq_forward_pass *p, size_t n,
                          size_t position, float *q, float *keys, float *values, float *out,
                          vptq_attention_args *done, vptq_err *err)
{
    const vptq_model_desc *d = f->d;
    const vptq_forward_block_params *b = &f->params[p->layer];
    VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
    VPTQ_CHECK(rotate_heads(f, b->q_norm, n, d->heads, position, q, err));
    VPTQ_CHECK(
        rotate_heads(f, b->k_norm, n, d->kv_heads, position, keys + position * f->kv_dim, err));
    *done = (vptq_attention_args){.n = n,
                                  .pos0 = position,
                                  .heads = d->heads,
                                  .kv_heads = d->kv_heads,
                                  .head_dim = d->head_dim,
                                  .window = window_of(f, p->layer),
                                  .scale = score_scale(f),
                                  .q = q,
                                  .keys = keys,
                                  .values = values,
                                  .out = out,
                                  .ldq = f->q_dim,
                                  .ldk = f->kv_dim,
                                  .ldv = f->kv_dim,
                                  .ldo = f->q_dim};
    return f->dev->ops->attention(f->dev->state, done, err);
}

/* A sequence that continues others.  In preorder their keys and values are still where the
 * sequence before it has attended, but for those of a root, which attends in place. */
static vptq_status attend_child(vptq_forward *f, const vptq_forward_pass *p, size_t s,
                                size_t parent, vptq_attention_args *a, vptq_err *err)
{
    size_t begin, at, n = sequence_rows(p, s, &begin);
    const size_t *starts = p->starts - p->first_sequence, *parents = p->hooks.parents;
    const size_t position = vptq_forward_tree_position(starts, parents, p->first_sequence + s);
    if (parents[parent] == VPTQ_FORWARD_ROOT && parent + 1 == p->first_sequence + s) {
        const size_t rows = sequence_rows(p, s - 1, &at);
        VPTQ_CHECK(vptq_forward_tree_keep(f, at, rows, 0, err));
    }
    VPTQ_CHECK(vptq_forward_tree_keep(f, begin, n, position, err));
    return attend(f, p, n, position, f->q + begin * f->q_dim, f->tree_k, f->tree_v,
                  f->gate + begin * f->q_dim, a, err);
}

static vptq_status attend_sequence(vptq_forward *f, const vptq_forward_pass *p, size_t s,
                                   vptq_err *err)
{
    vptq_attention_args a;
    size_t begin, n = sequence_rows(p, s, &begin), dim = f->d->hidden;
    const size_t *parents = p->hooks.parents;
    if (parents && parents[p->first_sequence + s] != VPTQ_FORWARD_ROOT)
        return attend_child(f, p, s, parents[p->first_sequence + s], &a, err);
    VPTQ_CHECK(attend(f, p, n, 0, f->q + begin * f->q_dim, f->k + begin * f->kv_dim,
                      f->v + begin * f->kv_dim, f->gate + begin * f->q_dim, &a, err));
    if (p->hooks.attention)
        VPTQ_CHECK(p->hooks.attention(p->hooks.arg, p->first_sequence + s, n, dim,
                                      f->x + begin * dim, &a, err));
    return VPTQ_OK;
}

static vptq_status attention_part(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    float *k = p->cache_k ? p->cache_k : f->k, *v = p->cache_v ? p->cache_v : f->v;
    vptq_attention_args a;
    size_t behind = p->position * f->kv_dim; /* 0 without a cache */
    VPTQ_CHECK(norm_rows(f, p->rows, p->h, f->params[p->layer].input_norm, f->x, err));
    VPTQ_CHECK(hook_rows(f, p, VPTQ_INPUT_QKV, f->x, err));
    if (stops_at(p, VPTQ_INPUT_QKV))
        return VPTQ_OK;
    VPTQ_CHECK(block_linear(f, p, VPTQ_LINEAR_Q, f->x, 0, f->q, err));
    VPTQ_CHECK(block_linear(f, p, VPTQ_LINEAR_K, f->x, 0, k + behind, err));
    VPTQ_CHECK(block_linear(f, p, VPTQ_LINEAR_V, f->x, 0, v + behind, err));
    if (p->pages)
        VPTQ_CHECK(attend_pages(f, p, f->gate, err));
    if (p->cache_k)
        VPTQ_CHECK(attend(f, p, p->rows, p->position, f->q, k, v, f->gate, &a, err));
    for (size_t s = 0; s < p->count; s++)
        VPTQ_CHECK(attend_sequence(f, p, s, err));
    VPTQ_CHECK(hook_rows(f, p, VPTQ_INPUT_O, f->gate, err));
    if (stops_at(p, VPTQ_INPUT_O))
        return VPTQ_OK;
    return block_linear(f, p, VPTQ_LINEAR_O, f->gate, 1, p->h, err);
}

/* ---- feed forward ---- */

static vptq_status mlp_part(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    VPTQ_CHECK(norm_rows(f, p->rows, p->h, f->params[p->layer].post_norm, f->x, err));
    VPTQ_CHECK(hook_rows(f, p, VPTQ_INPUT_UP, f->x, err));
    if (stops_at(p, VPTQ_INPUT_UP))
        return VPTQ_OK;
    VPTQ_CHECK(block_linear(f, p, VPTQ_LINEAR_GATE, f->x, 0, f->gate, err));
    VPTQ_CHECK(block_linear(f, p, VPTQ_LINEAR_UP, f->x, 0, f->up, err));
    VPTQ_CHECK(f->dev->ops->swiglu(f->dev->state,
                                   &(vptq_swiglu_args){.n = p->rows,
                                                       .dim = f->d->intermediate,
                                                       .gate = f->gate,
                                                       .up = f->up,
                                                       .y = f->gate},
                                   err));
    VPTQ_CHECK(hook_rows(f, p, VPTQ_INPUT_DOWN, f->gate, err));
    if (stops_at(p, VPTQ_INPUT_DOWN))
        return VPTQ_OK;
    return block_linear(f, p, VPTQ_LINEAR_DOWN, f->gate, 1, p->h, err);
}

vptq_status vptq_forward_run_block(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_block_half half = p->hooks.half;
    VPTQ_BUG_IF(p->hooks.stop &&
                half != (p->hooks.last <= VPTQ_INPUT_O ? VPTQ_BLOCK_ATTENTION
                                                       : VPTQ_BLOCK_FEED_FORWARD));
    if (half != VPTQ_BLOCK_FEED_FORWARD)
        st = attention_part(f, p, err);
    if (!st && half != VPTQ_BLOCK_ATTENTION)
        st = mlp_part(f, p, err);
    return st;
}
