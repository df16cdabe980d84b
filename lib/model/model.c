/* Opens models and reads their weights.  Every tensor that the description requires must be
 * present with its shape before anything runs, so that a wrong file fails at once, by name. */
#include "lib/model/model.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/parallel.h"

/* ---- read ---- */

enum { CHUNK_FLOATS = 1 << 15 }; /* floats that one thread converts at a time */

typedef struct read_job {
    const vptq_tensor *t;
    size_t r0, cols;
    float *dst;
} read_job;

static void read_rows(void *arg, size_t begin, size_t end, int thread)
{
    const read_job *j = arg;
    (void)thread;
    /* Cannot fail: the type, the only possible error, was checked before the loop. */
    vptq_status st =
        vptq_tensor_read(j->t, j->r0 + begin, end - begin, j->dst + begin * j->cols, NULL);
    VPTQ_BUG_IF(st);
}

static vptq_status read_to_host(const vptq_ctx *ctx, const vptq_tensor *t, size_t r0, size_t n,
                                float *dst, vptq_err *err)
{
    VPTQ_CHECK(vptq_tensor_read(t, r0, 0, dst, err)); /* checks the type */
    read_job job = {t, r0, vptq_tensor_cols(t), dst};
    const size_t chunk = job.cols < CHUNK_FLOATS ? CHUNK_FLOATS / (job.cols + 1) + 1 : 1;
    vptq_parallel_for(ctx->threads, n, chunk, read_rows, &job);
    return VPTQ_OK;
}

vptq_status vptq_weight_open(const vptq_weight *w, vptq_device *dev, vptq_matrix **m,
                             vptq_err *err)
{
    *m = NULL;
    return w->packed ? dev->ops->matrix_open(dev->state, &w->packed->vq, m, err) : VPTQ_OK;
}

vptq_status vptq_weight_tile(const vptq_weight *w, const vptq_matrix *m, vptq_device *dev,
                             size_t r0, size_t n, float *dst, vptq_err *err)
{
    const vptq_ctx *ctx = dev->ctx;
    if (w->packed)
        return dev->ops->vq_dequant(dev->state, m, r0, n, dst, w->cols, err);
    if (dev->ops->host_memory)
        return read_to_host(ctx, w->tensor, r0, n, dst, err);
    float *stage = vptq_mem_alloc(ctx->mem, n, w->cols * sizeof *stage, err);
    if (!stage)
        return VPTQ_E_NOMEM;
    vptq_status st = read_to_host(ctx, w->tensor, r0, n, stage, err);
    if (!st)
        st = dev->ops->upload(dev->state, dst, stage, n * w->cols * sizeof *stage, err);
    vptq_mem_free(ctx->mem, stage);
    return st;
}

vptq_status vptq_weight_read(const vptq_weight *w, vptq_device *dev, size_t r0, size_t n,
                             float *dst, vptq_err *err)
{
    if (w->packed)
        return vptq_device_decode(dev, &w->packed->vq, r0, n, dst, w->cols, err);
    return read_to_host(dev->ctx, w->tensor, r0, n, dst, err);
}

size_t vptq_weight_gemv_rows(const vptq_weight *w, const vptq_device *dev, bool kept)
{
    enum { MAX_ROWS_ONCE = 8 }; /* for a weight that is used once */
    const vptq_tensor *t = w->tensor;
    if (w->packed)
        return kept ? dev->ops->gemv_max_tokens : 0;
    const bool has_gemv = dev->ops->host_memory && t->rope_heads == 0 &&
                          (t->round_to == VPTQ_F32 || t->round_to == t->type) &&
                          (t->type == VPTQ_F32 || t->type == VPTQ_F16 || t->type == VPTQ_BF16);
    return !has_gemv ? 0 : kept ? dev->ops->gemv_max_tokens : MAX_ROWS_ONCE;
}

vptq_status vptq_weight_gemv(const vptq_weight *w, const vptq_matrix *m, vptq_device *dev,
                             const vptq_gemv_args *g, vptq_err *err)
{
    if (w->packed)
        return dev->ops->vq_gemv(dev->state, m, g, err);
    return dev->ops->gemv(dev->state, w->rows, w->cols, w->tensor->type, w->tensor->data, g,
                          err);
}

void vptq_weight_forget(const vptq_weight *w)
{
    if (w->tensor)
        vptq_tensor_forget(w->tensor);
}

void vptq_weight_ahead(const vptq_weight *w)
{
    if (w->tensor)
        vptq_tensor_ahead(w->tensor);
}

/* ---- find ---- */

static vptq_status need(const vptq_model *m, const char *name, uint64_t rows, uint64_t cols,
                        const vptq_tensor **out, vptq_err *err)
{
    vptq_status st = vptq_tensor_need(&m->ckpt.set, name, rows, cols, out, err);
    if (!st && !vptq_dtype_get((*out)->type)->is_float)
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED,
                       "%s: tensor '%s' holds %s values, expected real numbers", (*out)->file,
                       name, vptq_dtype_get((*out)->type)->name);
    return vptq_checkpoint_report_fault(&m->ckpt, st, err);
}

static vptq_status need_in_block(const vptq_model *m, uint32_t layer, const char *path,
                                 uint64_t cols, const vptq_tensor **out, vptq_err *err)
{
    char name[VPTQ_NAME_MAX];
    snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, path);
    return need(m, name, 0, cols, out, err);
}

static bool bias_expected(const vptq_model_desc *d, vptq_linear l)
{
    if (l == VPTQ_LINEAR_Q || l == VPTQ_LINEAR_K || l == VPTQ_LINEAR_V)
        return d->qkv_bias;
    return l == VPTQ_LINEAR_O ? d->o_bias : d->mlp_bias;
}

static vptq_status check_packed(const vptq_model *m, const vptq_packed_matrix *p, uint32_t rows,
                                uint32_t cols, vptq_err *err)
{
    const vptq_vq_shape *s = &p->vq.shape;
    if (s->out == rows && s->in == cols)
        return VPTQ_OK;
    return vptq_checkpoint_report_fault(
        &m->ckpt,
        vptq_fail(err, VPTQ_E_SHAPE,
                  "%s: quantized matrix '%s' has shape [%u, %u], expected [%u, %u]",
                  m->ckpt.path, p->name, s->out, s->in, rows, cols),
        err);
}

/* Whether the file lacks a matrix that config.json lists as quantized.  Only inspection gets
 * this far, and the fault has been reported already. */
static bool is_missing_quantized(const vptq_model *m, const char *module)
{
    const vptq_checkpoint *c = &m->ckpt;
    bool packed = c->kind == VPTQ_CKPT_PACKED || c->kind == VPTQ_CKPT_ARCHIVE;
    return c->fault && packed && vptq_packed_entry(c->config, module);
}

/* Finds weight and bias.  The bias is required where the family has one, and used wherever the
 * file has one. */
static vptq_status find_linear(const vptq_model *m, uint32_t layer, vptq_linear l,
                               vptq_block *b, vptq_err *err)
{
    char module[VPTQ_NAME_MAX], name[VPTQ_NAME_MAX + 8];
    uint32_t rows, cols;
    vptq_linear_shape(m->desc, l, &rows, &cols);
    vptq_linear_full_name(module, layer, l);
    vptq_weight *w = &b->linear[l];
    *w = (vptq_weight){
        .rows = rows, .cols = cols, .packed = vptq_checkpoint_quantized(&m->ckpt, module)};
    snprintf(name, sizeof name, "%s.weight", module);
    if (w->packed)
        VPTQ_CHECK(check_packed(m, w->packed, rows, cols, err));
    else if (!is_missing_quantized(m, module))
        VPTQ_CHECK(need(m, name, rows, cols, &w->tensor, err));
    snprintf(name, sizeof name, "%s.bias", module);
    if (!bias_expected(m->desc, l) && !vptq_tensor_find(&m->ckpt.set, name))
        return VPTQ_OK;
    return need(m, name, 0, rows, &b->linear_bias[l], err);
}

static vptq_status find_block(const vptq_model *m, uint32_t layer, vptq_block *b, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    *b = (vptq_block){0};
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++)
        VPTQ_CHECK(find_linear(m, layer, (vptq_linear)l, b, err));
    VPTQ_CHECK(need_in_block(m, layer, "input_layernorm", d->hidden, &b->input_norm, err));
    VPTQ_CHECK(
        need_in_block(m, layer, "post_attention_layernorm", d->hidden, &b->post_norm, err));
    if (!d->family->qk_norm)
        return VPTQ_OK;
    VPTQ_CHECK(need_in_block(m, layer, "self_attn.q_norm", d->head_dim, &b->q_norm, err));
    return need_in_block(m, layer, "self_attn.k_norm", d->head_dim, &b->k_norm, err);
}

static vptq_status find_weights(vptq_model *m, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    VPTQ_CHECK(need(m, "model.embed_tokens.weight", d->vocab, d->hidden, &m->embedding, err));
    VPTQ_CHECK(need(m, "model.norm.weight", 0, d->hidden, &m->final_norm, err));
    m->head = m->embedding;
    if (!d->tied)
        VPTQ_CHECK(need(m, "lm_head.weight", d->vocab, d->hidden, &m->head, err));
    m->blocks = vptq_arena_alloc(&m->ckpt.arena, d->layers, sizeof *m->blocks, err);
    if (!m->blocks)
        return VPTQ_E_NOMEM;
    for (uint32_t layer = 0; layer < d->layers; layer++)
        VPTQ_CHECK(find_block(m, layer, &m->blocks[layer], err));
    return VPTQ_OK;
}

/* ---- open and release ---- */

vptq_status vptq_model_open(const vptq_ctx *ctx, const char *path,
                            const vptq_checkpoint_options *opt, bool need_tokenizer,
                            vptq_model *m, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *m = (vptq_model){0};
    VPTQ_TRY(vptq_checkpoint_open(ctx, path, opt, &m->ckpt, err));
    m->desc = &m->ckpt.desc;
    VPTQ_TRY(find_weights(m, err));
    if (!need_tokenizer)
        return VPTQ_OK;
    VPTQ_TRY(vptq_checkpoint_vocab(&m->ckpt, ctx, &m->vocab, err));
    st = vptq_tokenizer_open(ctx, &m->vocab, &m->tokenizer, err);
    if (st)
        vptq_vocab_release(&m->vocab);
out:
    if (st)
        vptq_model_release(m);
    return st;
}

void vptq_model_release(vptq_model *m)
{
    if (m->tokenizer) {
        vptq_tokenizer_close(m->tokenizer);
        vptq_vocab_release(&m->vocab);
    }
    vptq_checkpoint_release(&m->ckpt);
    *m = (vptq_model){0};
}

/* Stored bits of a plain matrix; one that is rounded when read counts as 16 bits per weight. */
static double plain_bits(const vptq_tensor *t)
{
    if (t->round_to != VPTQ_F32)
        return 16.0 * (double)vptq_tensor_rows(t) * (double)vptq_tensor_cols(t);
    return 8.0 * (double)t->bytes;
}

double vptq_model_bits_per_weight(const vptq_model *m)
{
    double bits = 0, weights = 0;
    for (uint32_t layer = 0; layer < m->desc->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            const vptq_weight *w = &m->blocks[layer].linear[l];
            bits += w->packed ? (double)vptq_vq_count_bits(&w->packed->vq.shape).total
                              : plain_bits(w->tensor);
            weights += (double)w->rows * (double)w->cols;
        }
    return bits / weights;
}
