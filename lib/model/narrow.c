/* Narrow stand-ins for large models: descriptions, and weights that are views. */
#include "lib/model/narrow.h"

/* ---- shapes ---- */

static uint32_t divide(uint32_t n, uint32_t by)
{
    enum { MULTIPLE = 32 }; /* few kernels have a rest to do */
    const uint32_t part = n / by / MULTIPLE * MULTIPLE;
    return part ? part : n < MULTIPLE ? n : (uint32_t)MULTIPLE;
}

/* *to = one block of d, `by` times as narrow. */
static void divide_desc(const vptq_model_desc *d, uint32_t by, vptq_model_desc *to)
{
    const uint32_t heads_per_key = d->heads / d->kv_heads;
    *to = *d;
    to->layers = 1;
    to->hidden = divide(d->hidden, by);
    to->intermediate = divide(d->intermediate, by);
    to->experts.intermediate = divide(d->experts.intermediate, by);
    to->experts.shared = divide(d->experts.shared, by);
    to->kv_heads = d->kv_heads / by ? d->kv_heads / by : 1;
    to->heads = to->kv_heads * heads_per_key;
}

static double block_weights(const vptq_model_desc *d)
{
    double sum = 0;
    for (int l = 0; l < vptq_linear_count(d); l++) {
        uint32_t out, in;
        vptq_linear_shape(d, l, &out, &in);
        sum += vptq_linear_exists(d, 0, l) ? (double)out * in : 0;
    }
    return sum;
}

double vptq_block_products(const vptq_model_desc *d, size_t length, bool moments)
{
    const vptq_experts *x = &d->experts;
    const double routed = x->count ? (double)x->used / x->count : 0;
    /* scores and their products with values, each with half of the tokens on average */
    double sum = (double)d->heads * d->head_dim * (double)length;
    for (int l = 0; l < vptq_linear_count(d); l++) {
        uint32_t out, in;
        vptq_linear_shape(d, l, &out, &in);
        if (vptq_linear_exists(d, 0, l))
            sum += (double)out * in * (vptq_linear_expert(l) < 0 ? 1 : routed);
    }
    for (int i = 0; moments && i < vptq_input_count(x); i++) {
        const double n = vptq_input_size(d, i);
        if (vptq_input_exists(x, 0, i))
            sum += n * n / 2 * (vptq_input_expert(i) < 0 ? 1 : routed);
    }
    return sum;
}

/* ---- weights ---- */

/* One group of columns, without outliers and permutation: they take little time. */
static const vptq_packed_matrix *narrow_packed(const vptq_packed_matrix *p, uint32_t out,
                                               uint32_t in, vptq_arena *arena, vptq_err *err)
{
    vptq_packed_matrix *to = vptq_arena_alloc(arena, 1, sizeof *to, err);
    if (!to)
        return NULL;
    *to = *p;
    vptq_vq_shape *s = &to->vq.shape;
    s->out = out;
    s->in = s->group_size = in;
    s->groups = 1;
    s->outliers = s->v0 = s->k0 = 0;
    s->has_perm = false;
    to->vq.perm = NULL;
    to->vq.outlier_indices = NULL;
    to->vq.outlier_centroids = NULL;
    return to;
}

static const vptq_uniform *narrow_uniform(const vptq_uniform *u, uint32_t out, uint32_t in,
                                          vptq_arena *arena, vptq_err *err)
{
    vptq_uniform *to = vptq_arena_alloc(arena, 1, sizeof *to, err);
    if (!to)
        return NULL;
    *to = *u;
    to->shape.out = out;
    to->shape.in = in;
    to->shape.group_size = u->shape.group_size < in ? u->shape.group_size : in;
    to->shape.has_groups = false;
    to->groups = NULL;
    return to;
}

/* *to = t as [rows, cols], or a vector of cols with 0 rows; NULL stays NULL. */
static vptq_status narrow_tensor(const vptq_tensor *t, uint32_t rows, uint32_t cols,
                                 uint32_t rope_heads, vptq_arena *arena, const vptq_tensor **to,
                                 vptq_err *err)
{
    *to = NULL;
    if (!t)
        return VPTQ_OK;
    vptq_tensor *n = vptq_arena_alloc(arena, 1, sizeof *n, err);
    if (!n)
        return VPTQ_E_NOMEM;
    *n = *t;
    n->dims = rows ? 2 : 1;
    n->shape[0] = rows ? rows : cols;
    n->shape[1] = cols;
    n->bytes = (size_t)((double)t->bytes / (double)vptq_tensor_rows(t) /
                        (double)vptq_tensor_cols(t) * cols * (rows ? rows : 1));
    n->rope_heads = t->rope_heads ? rope_heads : 0;
    n->additive = NULL;
    *to = n;
    if (t->uniform)
        n->uniform = narrow_uniform(t->uniform, rows, cols, arena, err);
    return t->uniform && !n->uniform ? VPTQ_E_NOMEM : VPTQ_OK;
}

static vptq_status narrow_linear(const vptq_block *from, const vptq_model_desc *d,
                                 vptq_linear l, vptq_arena *arena, vptq_block *to,
                                 vptq_err *err)
{
    const vptq_weight *w = &from->linear[l];
    const uint32_t rope_heads = l == VPTQ_LINEAR_Q ? d->heads : d->kv_heads;
    uint32_t out, in;
    vptq_linear_shape(d, l, &out, &in);
    vptq_weight *narrow = &to->linear[l];
    *narrow = (vptq_weight){.rows = out, .cols = in};
    VPTQ_CHECK(narrow_tensor(w->tensor, out, in, rope_heads, arena, &narrow->tensor, err));
    if (w->packed)
        narrow->packed = narrow_packed(w->packed, out, in, arena, err);
    if (w->packed && !narrow->packed)
        return VPTQ_E_NOMEM;
    return l < VPTQ_LINEAR_DENSE ? narrow_tensor(from->linear_bias[l], 0, out, rope_heads,
                                                 arena, &to->linear_bias[l], err)
                                 : VPTQ_OK;
}

static vptq_status narrow_block(const vptq_block *from, const vptq_model_desc *d,
                                vptq_arena *arena, vptq_block *to, vptq_err *err)
{
    *to = (vptq_block){0};
    const int count = vptq_linear_count(d);
    to->linear = vptq_arena_zalloc(arena, (size_t)count, sizeof *to->linear, err);
    if (!to->linear)
        return VPTQ_E_NOMEM;
    for (int l = 0; l < count; l++)
        if (vptq_linear_exists(d, 0, l))
            VPTQ_CHECK(narrow_linear(from, d, l, arena, to, err));
    for (int n = 0; n < VPTQ_BLOCK_NORM_COUNT; n++) {
        const bool of_heads = n == VPTQ_BLOCK_NORM_Q || n == VPTQ_BLOCK_NORM_K;
        const uint32_t size = of_heads ? d->head_dim : d->hidden;
        VPTQ_CHECK(narrow_tensor(from->norm[n], 0, size, 0, arena, &to->norm[n], err));
        VPTQ_CHECK(
            narrow_tensor(from->norm_bias[n], 0, size, 0, arena, &to->norm_bias[n], err));
    }
    VPTQ_CHECK(
        narrow_tensor(from->router, d->experts.count, d->hidden, 0, arena, &to->router, err));
    return narrow_tensor(from->shared_gate, 1, d->hidden, 0, arena, &to->shared_gate, err);
}

/* ---- models ---- */

static vptq_status narrow_model(const vptq_model *m, vptq_narrow *n, vptq_err *err)
{
    const vptq_model_desc *d = &n->desc;
    vptq_arena *a = &n->arena;
    n->own = *m;
    n->model = &n->own;
    n->own.desc = d;
    n->own.blocks = vptq_arena_alloc(a, 1, sizeof *n->own.blocks, err);
    if (!n->own.blocks)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(narrow_block(&m->blocks[0], d, a, n->own.blocks, err));
    VPTQ_CHECK(narrow_tensor(m->embedding, d->vocab, d->hidden, 0, a, &n->own.embedding, err));
    VPTQ_CHECK(narrow_tensor(m->final_norm, 0, d->hidden, 0, a, &n->own.final_norm, err));
    VPTQ_CHECK(
        narrow_tensor(m->final_norm_bias, 0, d->hidden, 0, a, &n->own.final_norm_bias, err));
    n->own.head = n->own.embedding;
    return m->head == m->embedding
               ? VPTQ_OK
               : narrow_tensor(m->head, d->vocab, d->hidden, 0, a, &n->own.head, err);
}

vptq_status vptq_model_narrow_to(const vptq_model *m, double most_weights, vptq_mem *mem,
                                 vptq_narrow *n, vptq_err *err)
{
    enum { NARROWEST = 1 << 12 };
    *n = (vptq_narrow){.model = m, .desc = *m->desc};
    vptq_arena_init(&n->arena, mem);
    for (uint32_t by = 2; block_weights(&n->desc) > most_weights && by <= NARROWEST; by *= 2)
        divide_desc(m->desc, by, &n->desc);
    const vptq_status st =
        block_weights(m->desc) > most_weights ? narrow_model(m, n, err) : VPTQ_OK;
    if (st)
        vptq_narrow_release(n);
    return st;
}

vptq_status vptq_model_narrow(const vptq_model *m, const vptq_device *dev, vptq_narrow *n,
                              vptq_err *err)
{
    const int most = dev->ops->host_memory ? VPTQ_NARROW_WEIGHTS : VPTQ_NARROW_DEVICE_WEIGHTS;
    return vptq_model_narrow_to(m, most, dev->ctx->mem, n, err);
}

void vptq_narrow_release(vptq_narrow *n)
{
    vptq_arena_release(&n->arena);
    n->model = NULL;
}
