/* Opens models.  Every tensor that the description requires must be present with its shape
 * before anything runs, so that a wrong file fails at once, by name. */
#include "lib/model/model.h"

#include <stdio.h>
#include <string.h>

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

/* Finds a norm, and its bias if the family has one. */
static vptq_status need_norm(const vptq_model *m, const char *module, uint64_t cols,
                             const vptq_tensor **weight, const vptq_tensor **bias,
                             vptq_err *err)
{
    char name[VPTQ_NAME_MAX + 8];
    snprintf(name, sizeof name, "%s.weight", module);
    VPTQ_CHECK(need(m, name, 0, cols, weight, err));
    snprintf(name, sizeof name, "%s.bias", module);
    return m->desc->family->layer_norm ? need(m, name, 0, cols, bias, err) : VPTQ_OK;
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
    return c->fault && ((packed && vptq_packed_entry(c->config, module)) ||
                        vptq_checkpoint_is_faulty(c, module));
}

/* A sum of products of bytes must fit in 32 bits; a tile of codes and scales, in one of floats.
 */
static vptq_status check_activations(const vptq_model *m, const vptq_weight *w, vptq_err *err)
{
    if (!vptq_weight_takes_bytes(w) || (w->cols >= 2 && w->cols <= VPTQ_BYTES_MAX_COLUMNS))
        return VPTQ_OK;
    return vptq_checkpoint_report_fault(
        &m->ckpt,
        vptq_fail(err, VPTQ_E_UNSUPPORTED,
                  "%s: tensor '%s' has 8-bit activations and %zu columns, expected 2 to %d",
                  w->tensor->file, w->tensor->name, w->cols, VPTQ_BYTES_MAX_COLUMNS),
        err);
}

/* Finds weight and bias.  A bias that the description requires must be there, unless the entry
 * of a packed matrix denies it. */
static vptq_status find_linear(const vptq_model *m, uint32_t layer, vptq_linear l,
                               vptq_block *b, vptq_err *err)
{
    char module[VPTQ_NAME_MAX], name[VPTQ_NAME_MAX + 8];
    uint32_t rows, cols;
    vptq_linear_shape(m->desc, l, &rows, &cols);
    vptq_linear_full_name(m->desc, module, layer, l);
    vptq_weight *w = &b->linear[l];
    *w = (vptq_weight){
        .rows = rows, .cols = cols, .packed = vptq_checkpoint_quantized(&m->ckpt, module)};
    snprintf(name, sizeof name, "%s.weight", module);
    if (w->packed)
        VPTQ_CHECK(check_packed(m, w->packed, rows, cols, err));
    else if (!is_missing_quantized(m, module))
        VPTQ_CHECK(need(m, name, rows, cols, &w->tensor, err));
    VPTQ_CHECK(check_activations(m, w, err));
    if (l >= VPTQ_LINEAR_DENSE) /* no family has biases there */
        return VPTQ_OK;
    snprintf(name, sizeof name, "%s.bias", module);
    const bool required =
        vptq_linear_has_bias(m->desc, l) && vptq_checkpoint_declares_bias(&m->ckpt, module, l);
    if (!required && !vptq_tensor_find(&m->ckpt.set, name))
        return VPTQ_OK;
    return need(m, name, 0, rows, &b->linear_bias[l], err);
}

static vptq_status find_router(const vptq_model *m, uint32_t layer, vptq_block *b,
                               vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    char name[VPTQ_NAME_MAX];
    if (!vptq_layer_has_experts(&d->experts, layer))
        return VPTQ_OK;
    snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer,
             vptq_router_path(d->family));
    VPTQ_CHECK(need(m, name, d->experts.count, d->hidden, &b->router, err));
    if (!d->experts.shared)
        return VPTQ_OK;
    snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, VPTQ_SHARED_GATE_PATH);
    return need(m, name, 1, d->hidden, &b->shared_gate, err);
}

static vptq_status find_block(vptq_model *m, uint32_t layer, vptq_block *b, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    const int count = vptq_linear_count(d);
    *b = (vptq_block){0};
    b->linear = vptq_arena_zalloc(&m->ckpt.arena, (size_t)count, sizeof *b->linear, err);
    if (!b->linear)
        return VPTQ_E_NOMEM;
    for (int l = 0; l < count; l++)
        if (vptq_linear_exists(d, layer, l))
            VPTQ_CHECK(find_linear(m, layer, l, b, err));
    VPTQ_CHECK(find_router(m, layer, b, err));
    for (int n = 0; n < VPTQ_BLOCK_NORM_COUNT; n++) {
        const char *path = vptq_block_norm_path(d->family, (vptq_block_norm)n);
        const bool of_heads = n == VPTQ_BLOCK_NORM_Q || n == VPTQ_BLOCK_NORM_K;
        char module[VPTQ_NAME_MAX];
        if (!path)
            continue;
        snprintf(module, sizeof module, "model.layers.%u.%s", layer, path);
        VPTQ_CHECK(need_norm(m, module, of_heads ? d->head_dim : d->hidden, &b->norm[n],
                             &b->norm_bias[n], err));
    }
    return VPTQ_OK;
}

static vptq_status find_weights(vptq_model *m, vptq_err *err)
{
    const vptq_model_desc *d = m->desc;
    VPTQ_CHECK(need(m, VPTQ_EMBEDDING_NAME, d->vocab, d->hidden, &m->embedding, err));
    VPTQ_CHECK(need_norm(m, "model.norm", d->hidden, &m->final_norm, &m->final_norm_bias, err));
    m->head = m->embedding;
    if (!d->tied)
        VPTQ_CHECK(need(m, VPTQ_HEAD_NAME, d->vocab, d->hidden, &m->head, err));
    m->blocks = vptq_arena_alloc(&m->ckpt.arena, d->layers, sizeof *m->blocks, err);
    const size_t count = (size_t)vptq_linear_count(d);
    m->names = vptq_arena_alloc(&m->ckpt.arena, count, sizeof *m->names, err);
    if (!m->blocks || !m->names)
        return VPTQ_E_NOMEM;
    for (size_t l = 0; l < count; l++)
        m->names[l] = vptq_linear_name(d, (vptq_linear)l);
    for (uint32_t layer = 0; layer < d->layers; layer++)
        VPTQ_CHECK(find_block(m, layer, &m->blocks[layer], err));
    return VPTQ_OK;
}

/* ---- tokenizer ---- */

/* Models pad their embedding to a multiple of 64 or 128 entries.  Qwen2.5 leaves room for
 * tokens, too, and so adds the most of the supported families: 399. */
enum { PADDING_MULTIPLE = 64, MAX_PADDING = 512 };

/* Whether the entries that a model has beyond its tokenizer's tokens may be padding. */
static bool is_padded(uint32_t tokens, uint32_t entries)
{
    return entries >= tokens && entries - tokens < MAX_PADDING &&
           entries % PADDING_MULTIPLE == 0;
}

/* Refuses a tokenizer whose ordinary tokens the model does not have; added ones may never occur
 * in a text.  Warns of another size; says that of an embedding padded by more than it takes to
 * reach the next multiple. */
static vptq_status check_vocab(const vptq_ctx *ctx, const vptq_model *m, bool quiet,
                               vptq_err *err)
{
    const vptq_vocab *v = &m->vocab;
    const uint32_t entries = m->desc->vocab;
    for (uint32_t id = entries; id < v->count; id++)
        if (v->pieces[id].type == VPTQ_PIECE_NORMAL || v->pieces[id].type == VPTQ_PIECE_BYTE)
            return vptq_fail(err, VPTQ_E_MISMATCH,
                             "%s: the tokenizer has %u tokens, the model's vocabulary %u "
                             "entries; it belongs to another model",
                             v->source, v->count, entries);
    const bool padded = is_padded(v->count, entries);
    if (quiet || v->count == entries || (padded && entries - v->count < PADDING_MULTIPLE))
        return VPTQ_OK;
    vptq_log(ctx, padded ? VPTQ_LOG_INFO : VPTQ_LOG_WARN,
             "%s: the tokenizer has %u tokens, the model's vocabulary %u entries; %s",
             v->source, v->count, entries,
             padded ? "the others are taken for padding" : "it may belong to another model");
    return VPTQ_OK;
}

static vptq_status open_tokenizer(const vptq_ctx *ctx, vptq_model *m, bool quiet, vptq_err *err)
{
    VPTQ_CHECK(vptq_checkpoint_vocab(&m->ckpt, ctx, &m->vocab, err));
    vptq_status st = check_vocab(ctx, m, quiet, err);
    if (!st)
        st = vptq_tokenizer_open(ctx, &m->vocab, &m->tokenizer, err);
    if (st)
        vptq_vocab_release(&m->vocab);
    return st;
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
    const bool quiet = opt && (opt->quiet || opt->fault);
    if (!quiet)
        vptq_model_warn_of_unused(ctx, &m->ckpt);
    if (need_tokenizer)
        st = open_tokenizer(ctx, m, quiet, err);
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

size_t vptq_model_window(const vptq_model *m, size_t given)
{
    enum { DEFAULT_WINDOW = 2048 };
    if (given)
        return given;
    return m->desc->context < DEFAULT_WINDOW ? m->desc->context : DEFAULT_WINDOW;
}

/* Stored bits of a plain matrix; one that is rounded when read counts as 16 bits per weight. */
static double plain_bits(const vptq_tensor *t)
{
    if (t->uniform)
        return (double)vptq_uniform_count_bits(&t->uniform->shape).total;
    if (t->additive)
        return (double)vptq_additive_count_bits(&t->additive->shape).total;
    if (t->round_to != VPTQ_F32)
        return 16.0 * (double)vptq_tensor_rows(t) * (double)vptq_tensor_cols(t);
    return 8.0 * (double)t->bytes;
}

double vptq_model_bits_per_weight(const vptq_model *m)
{
    double bits = 0, weights = 0;
    for (uint32_t layer = 0; layer < m->desc->layers; layer++)
        for (int l = 0; l < vptq_linear_count(m->desc); l++) {
            const vptq_weight *w = &m->blocks[layer].linear[l];
            if (!vptq_linear_exists(m->desc, layer, l))
                continue;
            bits += w->packed ? (double)vptq_vq_count_bits(&w->packed->vq.shape).total
                              : plain_bits(w->tensor);
            weights += (double)w->rows * (double)w->cols;
        }
    return bits / weights;
}
