/* Computes the fingerprint of a model: XXH3 over everything its results depend on.  Pieces of a
 * fixed size are hashed in parallel and their hashes chained in order, so that the result
 * depends neither on threads nor on the layout of the file. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "lib/base/buf.h"
#include "lib/base/parallel.h"

enum { PIECE = 4 << 20 };

typedef struct piece {
    const uint8_t *data;
    size_t bytes;
    bool mapped; /* in a mapping of a file */
    uint64_t hash;
} piece;

typedef struct piece_list {
    piece *items; /* NULL = count only */
    size_t count;
} piece_list;

static void add_pieces(piece_list *list, const void *data, size_t bytes, bool mapped)
{
    const uint8_t *p = data;
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        if (list->items)
            list->items[list->count] = (piece){p + at, n, mapped, 0};
        list->count++;
    }
}

/* Adds the arrays of a matrix, except those that are NULL. */
static void add_matrix(piece_list *list, const vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    size_t words = (size_t)s->groups * vptq_vq_vector_rows(s) * vptq_vq_row_words(s);
    size_t codebook = (size_t)s->groups * s->v * sizeof(float);
    size_t outlier_rows = s->v0 ? (s->out + s->v0 - 1) / s->v0 : 0;
    add_pieces(list, q->indices, words * sizeof *q->indices, false);
    add_pieces(list, q->centroids, codebook * s->k, false);
    if (q->res_centroids)
        add_pieces(list, q->res_centroids, codebook * s->k_res, false);
    if (q->outlier_indices) {
        add_pieces(list, q->outlier_indices,
                   outlier_rows * s->outliers * sizeof *q->outlier_indices, false);
        add_pieces(list, q->outlier_centroids, (size_t)s->k0 * s->v0 * sizeof(float), false);
    }
    if (q->perm)
        add_pieces(list, q->perm, s->in * sizeof *q->perm, false);
    if (q->scale) {
        add_pieces(list, q->scale, s->in * sizeof *q->scale, false);
        add_pieces(list, q->bias, s->in * sizeof *q->bias, false);
    }
}

static void add_uniform(piece_list *list, const vptq_uniform *u)
{
    const vptq_uniform_shape *s = &u->shape;
    const size_t numbers = (size_t)s->out * vptq_uniform_groups(s);
    add_pieces(list, u->codes, s->out * vptq_uniform_row_words(s) * sizeof *u->codes, false);
    add_pieces(list, u->scales, numbers * sizeof *u->scales, false);
    if (u->zeros)
        add_pieces(list, u->zeros, numbers, false);
    if (u->groups)
        add_pieces(list, u->groups, s->in * sizeof *u->groups, false);
}

/* The matrices of packed files are tensors of the set; those of a work directory are not. */
static void add_all(piece_list *list, const vptq_checkpoint *c)
{
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor *t = &c->set.tensors[i];
        if (t->uniform)
            add_uniform(list, t->uniform);
        else
            add_pieces(list, t->data, t->bytes, t->mapped);
    }
    if (c->kind == VPTQ_CKPT_WORK)
        for (size_t i = 0; i < c->quantized_count; i++)
            add_matrix(list, &c->quantized[i].vq);
}

static void hash_pieces(void *arg, size_t begin, size_t end, int thread)
{
    piece *items = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        items[i].hash = vptq_hash(items[i].data, items[i].bytes, 0);
        if (items[i].mapped)
            vptq_map_forget(items[i].data, items[i].bytes);
    }
}

/* Facts that most families do not have; nothing for those. */
static vptq_status describe_extras(const vptq_model_desc *d, vptq_buf *b, vptq_err *err)
{
    if (d->gelu || d->full_every || d->rotary_dim || d->rope_local_theta != 0 ||
        d->query_scalar != 0 || d->score_cap != 0 || d->logit_cap != 0)
        VPTQ_CHECK(vptq_buf_printf(b, err, "gelu %d every %u rotary %u local %a %a cap %a %a\n",
                                   d->gelu, d->full_every, d->rotary_dim, d->rope_local_theta,
                                   d->query_scalar, d->score_cap, d->logit_cap));
    const vptq_experts *x = &d->experts;
    if (x->count)
        VPTQ_CHECK(vptq_buf_printf(b, err, "experts %u %u %u %u %d\n", x->count, x->used,
                                   x->intermediate, x->shared, x->normalized));
    for (uint32_t i = 0; x->count && i < d->layers; i++)
        if (!vptq_layer_has_experts(x, i))
            VPTQ_CHECK(vptq_buf_printf(b, err, "dense %u\n", i));
    for (uint32_t i = 0; d->rope_scaling == VPTQ_ROPE_LONGROPE && i < vptq_rotary_dim(d) / 2;
         i++)
        VPTQ_CHECK(vptq_buf_printf(b, err, "%a %a\n", (double)d->rope_short[i],
                                   (double)d->rope_long[i]));
    return VPTQ_OK;
}

static vptq_status describe_model(const vptq_model_desc *d, vptq_buf *b, vptq_err *err)
{
    vptq_status st = vptq_buf_printf(
        b, err,
        "vptq model 1\n%s %u %u %u %u %u %u %u\ncontext %u window %u from %u eps %a tied %d "
        "bias %d %d %d\n",
        d->family->model_type, d->hidden, d->intermediate, d->layers, d->heads, d->kv_heads,
        d->head_dim, d->vocab, d->context, d->window, d->window_from, (double)d->norm_eps,
        d->tied, d->qkv_bias, d->o_bias, d->mlp_bias);
    VPTQ_CHECK(st);
    VPTQ_CHECK(describe_extras(d, b, err));
    return vptq_buf_printf(b, err, "rope %a %d %a %a %a %a %u\ntokens %d %d\n", d->rope_theta,
                           d->rope_scaling, d->rope_factor, d->rope_low, d->rope_high,
                           d->rope_attention_factor, d->rope_original_context, d->bos, d->eos);
}

static vptq_status describe_tensor(const vptq_tensor *t, vptq_buf *b, vptq_err *err)
{
    vptq_status st =
        vptq_buf_printf(b, err, "%s %s %s %u", t->name, vptq_dtype_get(t->type)->name,
                        vptq_dtype_get(t->round_to)->name, t->rope_heads);
    for (uint32_t i = 0; i < t->dims && !st; i++)
        st = vptq_buf_printf(b, err, " %" PRIu64, t->shape[i]);
    if (t->uniform && !st)
        st = vptq_buf_printf(b, err, " uniform %u %u %d %d", t->uniform->shape.bits,
                             t->uniform->shape.group_size, t->uniform->shape.has_zeros,
                             t->uniform->shape.has_groups);
    if (t->activation_bits && !st)
        st = vptq_buf_printf(b, err, " activations %u", t->activation_bits);
    return st ? st : vptq_buf_add(b, "\n", 1, err);
}

static vptq_status describe_matrix(const vptq_packed_matrix *m, vptq_buf *b, vptq_err *err)
{
    const vptq_vq_shape *s = &m->vq.shape;
    return vptq_buf_printf(b, err, "%s %s %u %u %u %u %u %u %u %u %u %u %d %d\n", m->name,
                           vptq_dtype_get(m->storage)->name, s->out, s->in, s->v, s->k,
                           s->k_res, s->groups, s->group_size, s->outliers, s->v0, s->k0,
                           s->has_perm, s->has_norm);
}

/* Appends a text that describes everything except the bytes. */
static vptq_status describe(const vptq_checkpoint *c, vptq_buf *b, vptq_err *err)
{
    VPTQ_CHECK(describe_model(&c->desc, b, err));
    for (size_t i = 0; i < c->set.count; i++)
        VPTQ_CHECK(describe_tensor(&c->set.tensors[i], b, err));
    for (size_t i = 0; i < c->quantized_count; i++)
        VPTQ_CHECK(describe_matrix(&c->quantized[i], b, err));
    return VPTQ_OK;
}

vptq_status vptq_checkpoint_fingerprint(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                        char hex[17], vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf text;
    piece_list list = {NULL, 0};
    vptq_buf_init(&text, ctx->mem);
    VPTQ_TRY(describe(c, &text, err));
    add_all(&list, c);
    list.items = vptq_mem_alloc(ctx->mem, list.count, sizeof *list.items, err);
    if (!list.items)
        VPTQ_TRY(VPTQ_E_NOMEM);
    list.count = 0;
    add_all(&list, c);
    vptq_parallel_for(ctx->threads, list.count, 1, hash_pieces, list.items);
    uint64_t h = vptq_hash(text.data, text.len, 0);
    for (size_t i = 0; i < list.count; i++)
        h = vptq_hash(&list.items[i].hash, sizeof list.items[i].hash, h);
    snprintf(hex, 17, "%016" PRIx64, h);
out:
    vptq_mem_free(ctx->mem, list.items);
    vptq_buf_release(&text);
    return st;
}
