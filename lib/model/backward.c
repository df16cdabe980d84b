/* The backward pass: the head, and one block at a time. */
#include "lib/model/backward.h"

#include <string.h>

#include "lib/model/forward_internal.h"

/* Tokens whose logits exist at a time: as many as this many floats hold, in steps. */
enum { CHUNK_FLOATS = 1 << 24, CHUNK_STEP = 64 };

struct vptq_backward {
    vptq_forward *f;
    size_t length, windows, count; /* of a window; at most; at present */
    size_t rows;                   /* count * length */
    size_t *starts;                /* [windows + 1] */
    void *memory;                  /* device memory of the arrays below */
    vptq_activations a;
    /* Activations of the blocks from `first` on that vptq_backward_run leaves for their
     * backward pass, without x and act, which are those of a. */
    struct {
        void *memory;        /* device memory, or NULL */
        uint32_t first, end; /* of blocks [first, end) they have not been used since the run */
        vptq_activations *a; /* [layers - first] */
        const float *states; /* of that run */
    } kept;
    float *h; /* [rows, hidden] the block's hidden states; dx of a half afterwards */
    float *dq, *dk, *dv, *dout; /* gradients of q, k, v and o */
    float *dact;                /* [rows, intermediate] */
    /* Of vptq_backward_head: the model's and the teacher's logits of a chunk. */
    size_t chunk;
    float *logits, *wanted; /* [chunk, vocab] */
    double *loss;           /* [chunk]; before, the draws of targets */
    int32_t *targets;       /* [chunk] */
    /* For 16-bit weights on devices with their own memory. */
    float *tile;
    int32_t *order; /* 0, 1, .. */
};

/* ---- memory ---- */

static float *carve(vptq_carver *c, size_t rows, size_t cols)
{
    return vptq_carve(c, rows * cols, sizeof(float));
}

static size_t chunk_rows(const vptq_model_desc *d, size_t rows)
{
    const size_t fit = CHUNK_FLOATS / d->vocab / CHUNK_STEP * CHUNK_STEP;
    const size_t chunk = fit > CHUNK_STEP ? fit : CHUNK_STEP;
    return rows < chunk ? rows : chunk;
}

/* All but x and act, which others follow from. */
static void carve_activations(vptq_carver *c, const vptq_model_desc *d, size_t n,
                              vptq_activations *a)
{
    const size_t q = (size_t)d->heads * d->head_dim, kv = (size_t)d->kv_heads * d->head_dim;
    a->mid = carve(c, n, d->hidden);
    a->q = carve(c, n, q);
    a->k = carve(c, n, kv);
    a->v = carve(c, n, kv);
    a->o = carve(c, n, q);
    a->lse = carve(c, n, d->heads);
    a->gate = carve(c, n, d->intermediate);
    a->up = carve(c, n, d->intermediate);
    if (d->family->qk_norm) {
        a->raw_q = carve(c, n, q);
        a->raw_k = carve(c, n, kv);
    }
}

/* Sets the arrays; returns the bytes that they take.  tile: floats of the largest, or 0. */
static size_t carve_all(vptq_backward *b, const vptq_model_desc *d, size_t tile, void *base)
{
    vptq_carver c = {base, 0};
    const size_t n = b->rows, q = (size_t)d->heads * d->head_dim,
                 kv = (size_t)d->kv_heads * d->head_dim;
    b->h = carve(&c, n, d->hidden);
    b->a.x = carve(&c, n, d->hidden);
    b->a.act = carve(&c, n, d->intermediate);
    carve_activations(&c, d, n, &b->a);
    b->dact = carve(&c, n, d->intermediate);
    b->dq = carve(&c, n, q);
    b->dk = carve(&c, n, kv);
    b->dv = carve(&c, n, kv);
    b->dout = carve(&c, n, q);
    b->chunk = chunk_rows(d, n);
    b->logits = carve(&c, b->chunk, d->vocab);
    b->wanted = carve(&c, b->chunk, d->vocab);
    b->loss = vptq_carve(&c, b->chunk, sizeof *b->loss);
    b->targets = vptq_carve(&c, b->chunk, sizeof *b->targets);
    b->tile = carve(&c, 1, tile);
    b->order = vptq_carve(&c, tile ? VPTQ_FORWARD_TILE_ROWS : 0, sizeof *b->order);
    return c.used;
}

size_t vptq_backward_bytes(const vptq_forward *f, size_t rows)
{
    vptq_backward b = {.rows = rows};
    const size_t tile = f->dev->ops->host_memory ? 0 : f->tile_floats;
    return carve_all(&b, f->d, tile, NULL);
}

static vptq_status fill_order(vptq_backward *b, vptq_err *err)
{
    int32_t order[VPTQ_FORWARD_TILE_ROWS];
    for (int32_t i = 0; i < VPTQ_FORWARD_TILE_ROWS; i++)
        order[i] = i;
    return b->f->dev->ops->upload(b->f->dev->state, b->order, order, sizeof order, err);
}

void vptq_backward_windows(vptq_backward *b, size_t count)
{
    VPTQ_BUG_IF(count > b->windows);
    b->count = count;
    b->rows = count * b->length;
    b->kept.end = 0;
}

void vptq_backward_keep(vptq_backward *b, size_t bytes)
{
    const vptq_forward *f = b->f;
    const uint32_t layers = f->d->layers;
    const size_t rows = b->windows * b->length;
    vptq_carver c = {NULL, 0};
    vptq_activations one = {0};
    vptq_err none;
    VPTQ_BUG_IF(b->kept.memory);
    carve_activations(&c, f->d, rows, &one);
    const size_t fit = bytes / c.used, count = fit < layers ? fit : layers;
    if (!count || !vptq_forward_has_room(f, count * c.used, rows))
        return;
    b->kept.a = vptq_mem_alloc(f->dev->ctx->mem, count, sizeof *b->kept.a, &none);
    if (!b->kept.a || f->dev->ops->alloc(f->dev->state, count, c.used, &b->kept.memory, &none))
        return;
    b->kept.first = layers - (uint32_t)count;
    c = (vptq_carver){b->kept.memory, 0};
    for (size_t i = 0; i < count; i++) {
        b->kept.a[i] = (vptq_activations){.x = b->a.x, .act = b->a.act};
        carve_activations(&c, f->d, rows, &b->kept.a[i]);
    }
}

vptq_status vptq_backward_check(const vptq_model *m, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    if (vptq_forward_has_bytes(m))
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "%s: has linear layers with 8-bit activations, through which gradients "
            "are not computed",
            m->ckpt.path);
    if (d->gelu || d->score_cap != 0 || d->logit_cap != 0 || d->family->out_norms ||
        d->family->layer_norm || d->family->plain_mlp || d->family->experts)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: gradients are not computed for models of type %s", m->ckpt.path,
                         d->family->model_type);
    return VPTQ_OK;
}

vptq_status vptq_backward_open(vptq_forward *f, size_t length, size_t windows,
                               vptq_backward **out, vptq_err *err)
{
    const size_t rows = length * windows;
    vptq_status st = VPTQ_OK;
    void *memory = NULL;
    const bool host = f->dev->ops->host_memory;
    *out = NULL;
    VPTQ_BUG_IF(length > f->max_length);
    VPTQ_CHECK(vptq_backward_check(f->m, err));
    vptq_backward *b = vptq_mem_alloc(f->dev->ctx->mem, 1, sizeof *b, err);
    if (!b)
        return VPTQ_E_NOMEM;
    *b = (vptq_backward){.f = f, .length = length, .windows = windows};
    vptq_backward_windows(b, windows);
    b->starts = vptq_mem_alloc(f->dev->ctx->mem, windows + 1, sizeof *b->starts, err);
    if (!b->starts)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t i = 0; i <= windows; i++)
        b->starts[i] = i * length;
    VPTQ_TRY(f->dev->ops->alloc(f->dev->state, vptq_backward_bytes(f, rows), 1, &memory, err));
    b->memory = memory;
    carve_all(b, f->d, host ? 0 : f->tile_floats, b->memory);
    if (!host)
        VPTQ_TRY(fill_order(b, err));
out:
    if (st) {
        vptq_err_context(
            err, "gradients of %zu tokens (shorter windows, or fewer at once, need less)",
            rows);
        vptq_backward_close(b);
    } else {
        *out = b;
    }
    return st;
}

void vptq_backward_close(vptq_backward *b)
{
    if (!b)
        return;
    b->f->dev->ops->release(b->f->dev->state, b->memory);
    b->f->dev->ops->release(b->f->dev->state, b->kept.memory);
    vptq_mem_free(b->f->dev->ctx->mem, b->kept.a);
    vptq_mem_free(b->f->dev->ctx->mem, b->starts);
    vptq_mem_free(b->f->dev->ctx->mem, b);
}

/* ---- products ---- */

/* *tile = rows [r, r + n) of an opened weight as floats, in device memory. */
static vptq_status float_tile(vptq_backward *b, const vptq_weight *w, const vptq_opened *opened,
                              size_t r, size_t n, const float **tile, vptq_err *err)
{
    vptq_forward *f = b->f;
    const void *rows;
    VPTQ_CHECK(vptq_weight_tile(w, opened, f->dev, r, n, f->tile, &rows, err));
    *tile = rows;
    if (f->dev->ops->host_memory || w->packed || vptq_weight_type(w) == VPTQ_F32)
        return VPTQ_OK;
    const vptq_embed_args convert = {.n = n,
                                     .dim = w->cols,
                                     .table = rows,
                                     .type = vptq_weight_type(w),
                                     .ids = b->order,
                                     .out = b->tile};
    *tile = b->tile;
    return f->dev->ops->embed(f->dev->state, &convert, err);
}

/* dx [rows, w->cols] = dz [rows, w->rows] W + beta * dx. */
typedef struct back_product {
    const vptq_weight *w;
    const vptq_opened *opened;
    size_t rows;
    const float *dz;
    float beta;
    float *dx;
} back_product;

/* Adds the products with tiles of W's rows. */
static vptq_status multiply_back(vptq_backward *b, const back_product *p, vptq_err *err)
{
    vptq_forward *f = b->f;
    const vptq_weight *w = p->w;
    const size_t step = vptq_forward_tile_rows(f, VPTQ_FORWARD_ROWS, w->cols);
    for (size_t r = 0; r < w->rows; r += step) {
        const size_t n = w->rows - r < step ? w->rows - r : step;
        const float *tile;
        VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
        VPTQ_CHECK(float_tile(b, w, p->opened, r, n, &tile, err));
        const vptq_gemm_args g = {.m = p->rows,
                                  .n = w->cols,
                                  .k = n,
                                  .a = p->dz + r,
                                  .b = tile,
                                  .c = p->dx,
                                  .lda = w->rows,
                                  .ldb = w->cols,
                                  .ldc = w->cols,
                                  .alpha = 1,
                                  .beta = r ? 1 : p->beta,
                                  .bf16 = f->bf16};
        VPTQ_CHECK(f->dev->ops->gemm(f->dev->state, &g, err));
    }
    return VPTQ_OK;
}

/* A block in progress. */
typedef struct block_pass {
    vptq_backward *b;
    uint32_t layer;
    const vptq_weight *weights;
    const vptq_activations *a;
    const vptq_backward_hooks *hooks;
} block_pass;

/* Reports linear layer l, whose input is x and whose output has the gradient dz, and multiplies
 * by it: dx = dz W + beta * dx. */
static vptq_status linear_back(const block_pass *p, vptq_linear l, const float *x,
                               const float *dz, float beta, float *dx, vptq_err *err)
{
    const vptq_opened *opened;
    vptq_backward *b = p->b;
    if (p->hooks->linear)
        VPTQ_CHECK(p->hooks->linear(p->hooks->arg, p->layer, l, b->rows, x, dz, err));
    VPTQ_CHECK(vptq_forward_block_weight(b->f, p->layer, l, &p->weights[l], &opened, err));
    const back_product product = {&p->weights[l], opened, b->rows, dz, beta, dx};
    return multiply_back(b, &product, err);
}

static vptq_status norm_back(vptq_backward *b, const vptq_rmsnorm_grad_args *a, vptq_err *err)
{
    vptq_rmsnorm_grad_args with_eps = *a;
    with_eps.eps = b->f->d->norm_eps;
    return b->f->dev->ops->rmsnorm_grad(b->f->dev->state, &with_eps, err);
}

/* ---- a block ---- */

static vptq_status feed_forward_back(const block_pass *p, float *dhidden, vptq_err *err)
{
    vptq_backward *b = p->b;
    const vptq_activations *a = p->a;
    const vptq_swiglu_grad_args s = {.n = b->rows,
                                     .dim = b->f->d->intermediate,
                                     .dy = b->dact,
                                     .gate = a->gate,
                                     .up = a->up};
    VPTQ_CHECK(linear_back(p, VPTQ_LINEAR_DOWN, a->act, dhidden, 0, b->dact, err));
    VPTQ_CHECK(b->f->dev->ops->swiglu_grad(b->f->dev->state, &s, err));
    VPTQ_CHECK(linear_back(p, VPTQ_LINEAR_GATE, a->x, a->gate, 0, b->h, err));
    VPTQ_CHECK(linear_back(p, VPTQ_LINEAR_UP, a->x, a->up, 1, b->h, err));
    return norm_back(
        b,
        &(vptq_rmsnorm_grad_args){
            .n = b->rows,
            .dim = b->f->d->hidden,
            .x = a->mid,
            .dy = b->h,
            .weight = b->f->params[p->layer].norm[VPTQ_BLOCK_NORM_FEED_FORWARD].weight,
            .add = true,
            .dx = dhidden,
            .dweight = p->hooks->post_norm},
        err);
}

/* Undoes rotation and norm of the gradient of q or k; raw: what went into the norm. */
static vptq_status heads_back(const block_pass *p, uint32_t heads, const float *raw,
                              const float *norm, float *dx, double *dweight, vptq_err *err)
{
    vptq_backward *b = p->b;
    vptq_forward *f = b->f;
    const size_t dim = f->d->head_dim;
    vptq_rope_args r = vptq_forward_rope(f, p->layer);
    r.n = b->length;
    r.heads = heads;
    r.ldx = heads * dim;
    r.back = true;
    for (size_t w = 0; w < b->count; w++) {
        r.x = dx + w * b->length * r.ldx;
        VPTQ_CHECK(f->dev->ops->rope(f->dev->state, &r, err));
    }
    if (!norm)
        return VPTQ_OK;
    return norm_back(b,
                     &(vptq_rmsnorm_grad_args){.n = b->rows * heads,
                                               .dim = dim,
                                               .x = raw,
                                               .dy = dx,
                                               .weight = norm,
                                               .dx = dx,
                                               .dweight = dweight},
                     err);
}

/* dq, dk and dv of window w from dout. */
static vptq_status attend_back(const block_pass *p, size_t w, vptq_err *err)
{
    const vptq_backward *b = p->b;
    const vptq_activations *a = p->a;
    const vptq_model_desc *d = b->f->d;
    const size_t first = w * b->length, q = first * b->f->q_dim, kv = first * b->f->kv_dim;
    const vptq_attention_grad_args g = {.n = b->length,
                                        .heads = d->heads,
                                        .kv_heads = d->kv_heads,
                                        .head_dim = d->head_dim,
                                        .window = vptq_layer_window(d, p->layer),
                                        .scale = vptq_forward_score_scale(b->f),
                                        .q = a->q + q,
                                        .out = a->o + q,
                                        .dout = b->dout + q,
                                        .keys = a->k + kv,
                                        .values = a->v + kv,
                                        .lse = a->lse + first * d->heads,
                                        .dq = b->dq + q,
                                        .dkeys = b->dk + kv,
                                        .dvalues = b->dv + kv};
    return b->f->dev->ops->attention_grad(b->f->dev->state, &g, err);
}

/* dq, dk and dv of the linear layers. */
static vptq_status attention_back(const block_pass *p, vptq_err *err)
{
    vptq_backward *b = p->b;
    const vptq_model_desc *d = b->f->d;
    const vptq_forward_block_params *params = &b->f->params[p->layer];
    for (size_t w = 0; w < b->count; w++)
        VPTQ_CHECK(attend_back(p, w, err));
    VPTQ_CHECK(heads_back(p, d->heads, p->a->raw_q, params->norm[VPTQ_BLOCK_NORM_Q].weight,
                          b->dq, p->hooks->q_norm, err));
    return heads_back(p, d->kv_heads, p->a->raw_k, params->norm[VPTQ_BLOCK_NORM_K].weight,
                      b->dk, p->hooks->k_norm, err);
}

static vptq_status attention_half_back(const block_pass *p, const float *hidden, float *dhidden,
                                       vptq_err *err)
{
    vptq_backward *b = p->b;
    const vptq_forward_norm *norm = &b->f->params[p->layer].norm[VPTQ_BLOCK_NORM_INPUT];
    const size_t dim = b->f->d->hidden;
    VPTQ_CHECK(linear_back(p, VPTQ_LINEAR_O, p->a->o, dhidden, 0, b->dout, err));
    VPTQ_CHECK(attention_back(p, err));
    VPTQ_CHECK(vptq_forward_rmsnorm(b->f, b->rows, dim, hidden, norm, p->a->x, err));
    VPTQ_CHECK(linear_back(p, VPTQ_LINEAR_Q, p->a->x, b->dq, 0, b->h, err));
    VPTQ_CHECK(linear_back(p, VPTQ_LINEAR_K, p->a->x, b->dk, 1, b->h, err));
    VPTQ_CHECK(linear_back(p, VPTQ_LINEAR_V, p->a->x, b->dv, 1, b->h, err));
    return norm_back(b,
                     &(vptq_rmsnorm_grad_args){.n = b->rows,
                                               .dim = dim,
                                               .x = hidden,
                                               .dy = b->h,
                                               .weight = norm->weight,
                                               .add = true,
                                               .dx = dhidden,
                                               .dweight = p->hooks->input_norm},
                     err);
}

/* A forward pass over h that leaves its activations in p->a. */
static vptq_forward_pass pass_over(const block_pass *p, float *h)
{
    return (vptq_forward_pass){.layer = p->layer,
                               .linear = p->weights,
                               .a = p->a,
                               .rows = p->b->rows,
                               .h = h,
                               .starts = p->b->starts,
                               .count = p->b->count};
}

/* Computes the activations, without the last product. */
static vptq_status run_again(const block_pass *p, const float *hidden, vptq_err *err)
{
    vptq_backward *b = p->b;
    const size_t bytes = b->rows * b->f->d->hidden * sizeof *hidden;
    vptq_forward_pass pass = pass_over(p, b->h);
    VPTQ_CHECK(b->f->dev->ops->copy(b->f->dev->state, b->h, hidden, bytes, err));
    pass.hooks.half = VPTQ_BLOCK_ATTENTION;
    VPTQ_CHECK(vptq_forward_run_block(b->f, &pass, err));
    pass.hooks = (vptq_block_hooks){
        .half = VPTQ_BLOCK_FEED_FORWARD, .stop = true, .last = VPTQ_INPUT_DOWN};
    return vptq_forward_run_block(b->f, &pass, err);
}

/* Computes x and act from the activations that the forward pass has kept. */
static vptq_status complete(const block_pass *p, vptq_err *err)
{
    const vptq_forward *f = p->b->f;
    const vptq_swiglu_args s = {.n = p->b->rows,
                                .dim = f->d->intermediate,
                                .gate = p->a->gate,
                                .up = p->a->up,
                                .y = p->a->act};
    VPTQ_CHECK(vptq_forward_rmsnorm(p->b->f, p->b->rows, f->d->hidden, p->a->mid,
                                    &f->params[p->layer].norm[VPTQ_BLOCK_NORM_FEED_FORWARD],
                                    p->a->x, err));
    return f->dev->ops->swiglu(f->dev->state, &s, err);
}

/* Takes the activations that the forward pass has kept; false if there are none.  They serve
 * once: the gradients of gate and up take their place. */
static bool take_kept(block_pass *p, const float *hidden)
{
    vptq_backward *b = p->b;
    const size_t size = b->rows * b->f->d->hidden;
    if (p->layer < b->kept.first || p->layer >= b->kept.end ||
        hidden != b->kept.states + p->layer * size)
        return false;
    b->kept.end = p->layer;
    p->a = &b->kept.a[p->layer - b->kept.first];
    return true;
}

static vptq_status run_block(block_pass *p, const float *hidden, float *dhidden, vptq_err *err)
{
    if (take_kept(p, hidden))
        VPTQ_CHECK(complete(p, err));
    else
        VPTQ_CHECK(run_again(p, hidden, err));
    VPTQ_CHECK(feed_forward_back(p, dhidden, err));
    return attention_half_back(p, hidden, dhidden, err);
}

/* Closes the weights of the block and names it in an error. */
static vptq_status end_block(const block_pass *p, vptq_status st, vptq_err *err)
{
    vptq_forward_block_close(p->b->f);
    if (st)
        vptq_err_context(err, "layer %u", p->layer);
    return st;
}

static const vptq_weight *weights_or_own(const vptq_backward *b, uint32_t layer,
                                         const vptq_weight *weights)
{
    VPTQ_BUG_IF(layer >= b->f->d->layers);
    return weights ? weights : b->f->m->blocks[layer].linear;
}

vptq_status vptq_backward_block(vptq_backward *b, uint32_t layer, const float *hidden,
                                float *dhidden, const vptq_backward_hooks *hooks, vptq_err *err)
{
    block_pass p = {b, layer, weights_or_own(b, layer, hooks->weights), &b->a, hooks};
    return end_block(&p, run_block(&p, hidden, dhidden, err), err);
}

static vptq_status run_forward(vptq_backward *b, uint32_t layer, const vptq_weight *weights,
                               const vptq_activations *a, float *hidden, vptq_err *err)
{
    const block_pass p = {b, layer, weights_or_own(b, layer, weights), a, NULL};
    const vptq_forward_pass pass = pass_over(&p, hidden);
    return end_block(&p, vptq_forward_run_block(b->f, &pass, err), err);
}

vptq_status vptq_backward_forward(vptq_backward *b, uint32_t layer, const vptq_weight *weights,
                                  float *hidden, vptq_err *err)
{
    return run_forward(b, layer, weights, &b->a, hidden, err);
}

/* Returns the arrays that the forward pass of a block writes. */
static const vptq_activations *activations_for(const vptq_backward *b, uint32_t layer)
{
    const bool keep = b->kept.memory && layer >= b->kept.first;
    return keep ? &b->kept.a[layer - b->kept.first] : &b->a;
}

vptq_status vptq_backward_run(vptq_backward *b, const int32_t *ids, const vptq_weight *weights,
                              float *embedded, float *states, vptq_err *err)
{
    const vptq_backend *ops = b->f->dev->ops;
    vptq_dev *dev = b->f->dev->state;
    const size_t size = b->rows * b->f->d->hidden, bytes = size * sizeof(float);
    b->kept.end = 0;
    VPTQ_CHECK(vptq_forward_embed(b->f, ids, b->rows, embedded, err));
    VPTQ_CHECK(ops->upload(dev, states, embedded, bytes, err));
    for (uint32_t l = 0; l < b->f->d->layers; l++) {
        float *next = states + (l + 1) * size;
        VPTQ_CHECK(ops->copy(dev, next, states + l * size, bytes, err));
        VPTQ_CHECK(run_forward(b, l, weights ? weights + (size_t)l * VPTQ_LINEAR_DENSE : NULL,
                               activations_for(b, l), next, err));
    }
    b->kept.states = states;
    b->kept.end = b->kept.memory ? b->f->d->layers : 0;
    return VPTQ_OK;
}

/* ---- the head ---- */

/* logits [n, vocab] = n rows of normalized hidden states times the head. */
static vptq_status head_logits(vptq_backward *b, size_t n, const float *x, float *logits,
                               vptq_err *err)
{
    vptq_forward *f = b->f;
    const vptq_weight w = vptq_forward_head_weight(f);
    const vptq_forward_linear_args a = {
        .w = &w, .opened = &f->head, .rows = n, .x = x, .out = logits};
    return vptq_forward_linear(f, &a, err);
}

/* NaN logits have no target; their gradient would be 0. */
static vptq_status check_drawn(const vptq_backward *b, size_t first, size_t n, vptq_err *err)
{
    enum { AT_ONCE = 256 };
    int32_t ids[AT_ONCE];
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i < AT_ONCE ? n - i : AT_ONCE;
        VPTQ_CHECK(b->f->dev->ops->download(b->f->dev->state, ids, b->targets + i,
                                            count * sizeof *ids, err));
        for (size_t j = 0; j < count; j++)
            if (ids[j] < 0)
                return vptq_fail(err, VPTQ_E_NUMERIC, "the logits of token %zu are not finite",
                                 first + i + j);
    }
    return VPTQ_OK;
}

/* b->targets [n]: the given ones, or drawn from the distributions of b->logits. */
static vptq_status chunk_targets(vptq_backward *b, const vptq_backward_loss *a, size_t first,
                                 size_t n, vptq_err *err)
{
    const vptq_backend *ops = b->f->dev->ops;
    vptq_dev *dev = b->f->dev->state;
    const size_t vocab = b->f->d->vocab;
    const vptq_sample_args draw = {.n = n,
                                   .vocab = vocab,
                                   .logits = b->logits,
                                   .ld = vocab,
                                   .temperature = 1,
                                   .top_p = 1,
                                   .u = b->loss,
                                   .ids = b->targets};
    if (!a->draws)
        return ops->upload(dev, b->targets, a->targets + first, n * sizeof *b->targets, err);
    VPTQ_CHECK(ops->upload(dev, b->loss, a->draws + first, n * sizeof *b->loss, err));
    VPTQ_CHECK(ops->sample(dev, &draw, err));
    return check_drawn(b, first, n, err);
}

/* b->logits = their gradient, loss [n] = the losses. */
static vptq_status chunk_loss(vptq_backward *b, const vptq_backward_loss *a, size_t first,
                              size_t n, double *loss, vptq_err *err)
{
    const vptq_backend *ops = b->f->dev->ops;
    vptq_dev *dev = b->f->dev->state;
    const vptq_kl_grad_args g = {.n = n,
                                 .vocab = b->f->d->vocab,
                                 .logits = b->logits,
                                 .teacher = a->teacher ? b->wanted : NULL,
                                 .targets = b->targets,
                                 .scale = a->scale,
                                 .loss = b->loss};
    if (!a->teacher)
        VPTQ_CHECK(chunk_targets(b, a, first, n, err));
    VPTQ_CHECK(ops->kl_grad(dev, &g, err));
    return ops->download(dev, loss, b->loss, n * sizeof *loss, err);
}

vptq_status vptq_backward_head(vptq_backward *b, const vptq_backward_loss *a, double *loss,
                               float *dhidden, vptq_err *err)
{
    vptq_forward *f = b->f;
    const vptq_weight head = vptq_forward_head_weight(f);
    const size_t dim = f->d->hidden;
    for (size_t first = 0, n; first < b->rows; first += n) {
        n = b->rows - first < b->chunk ? b->rows - first : b->chunk;
        const float *hidden = a->hidden + first * dim;
        VPTQ_CHECK(vptq_forward_rmsnorm(f, n, dim, hidden, &f->final_norm, b->a.x, err));
        VPTQ_CHECK(head_logits(b, n, b->a.x, b->logits, err));
        if (a->teacher)
            VPTQ_CHECK(head_logits(b, n, a->teacher + first * dim, b->wanted, err));
        VPTQ_CHECK(chunk_loss(b, a, first, n, loss + first, err));
        if (!dhidden)
            continue;
        const back_product product = {&head, &f->head, n, b->logits, 0, b->h};
        VPTQ_CHECK(multiply_back(b, &product, err));
        VPTQ_CHECK(norm_back(b,
                             &(vptq_rmsnorm_grad_args){.n = n,
                                                       .dim = dim,
                                                       .x = hidden,
                                                       .dy = b->h,
                                                       .weight = f->final_norm.weight,
                                                       .dx = dhidden + first * dim,
                                                       .dweight = a->final_norm},
                             err));
    }
    return VPTQ_OK;
}
