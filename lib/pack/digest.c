/* The digest of a packed model: SHA-256 of a text that lists every tensor with its own SHA-256,
 * and how the parts of every matrix are read (docs/formats.md). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/text.h"
#include "lib/model/model.h"
#include "lib/pack/package.h"

#define VERSION "vptq1"

typedef struct digesting {
    const vptq_package *o;
    vptq_sha256 hash;
    vptq_buf text;
    /* The line of the head in `text`; 0, 0 without one. */
    size_t head, head_end;
    uint32_t tensors;     /* lines of tensors in it */
    uint64_t done, total; /* bytes of tensors */
} digesting;

/* ---- the text ---- */

static vptq_status hash_tensor(digesting *g, const vptq_package_tensor *t,
                               char hex[VPTQ_SHA256_HEX + 1], vptq_err *err)
{
    const vptq_package *o = g->o;
    vptq_package_sink sink = {.hash = &g->hash};
    VPTQ_CHECK(vptq_check_cancel(o->ctx, err));
    vptq_progress(o->ctx, o->stage, "bytes", g->done, g->total, t->tensor.name);
    g->done += t->tensor.bytes;
    VPTQ_CHECK(vptq_sha256_begin(&g->hash, err));
    VPTQ_CHECK(o->fill(o->fill_arg, t, &sink, err));
    return vptq_sha256_finish(&g->hash, hex, err);
}

/* Removes the line of a head that is a copy of the embedding, whose line begins at `at`:
 * whether a tied head is stored does not change the model. */
static void drop_copied_head(digesting *g, size_t at)
{
    vptq_buf *b = &g->text;
    const size_t lead = g->head_end - g->head - strlen(VPTQ_HEAD_NAME "\n");
    if (g->head == g->head_end || lead > b->len - at ||
        memcmp(b->data + g->head, b->data + at, lead) != 0)
        return;
    memmove(b->data + g->head, b->data + g->head_end, b->len - g->head_end);
    b->len -= g->head_end - g->head;
    g->tensors--;
}

static vptq_status add_tensor(digesting *g, const vptq_package_tensor *t, vptq_err *err)
{
    const vptq_tensor *x = &t->tensor;
    const size_t at = g->text.len;
    char hex[VPTQ_SHA256_HEX + 1];
    g->tensors++;
    VPTQ_CHECK(hash_tensor(g, t, hex, err));
    VPTQ_CHECK(
        vptq_buf_printf(&g->text, err, "tensor %s %s [", hex, vptq_dtype_get(x->type)->name));
    for (uint32_t i = 0; i < x->dims; i++)
        VPTQ_CHECK(vptq_buf_printf(&g->text, err, "%s%" PRIu64, i ? "," : "", x->shape[i]));
    VPTQ_CHECK(vptq_buf_printf(&g->text, err, "] %s\n", x->name));
    if (strcmp(x->name, VPTQ_HEAD_NAME) == 0) {
        g->head = at;
        g->head_end = g->text.len;
    } else if (strcmp(x->name, VPTQ_EMBEDDING_NAME) == 0) {
        drop_copied_head(g, at);
    }
    return VPTQ_OK;
}

static vptq_status add_matrix(digesting *g, const vptq_packed_matrix *m, vptq_err *err)
{
    const vptq_vq_shape *s = &m->vq.shape;
    const bool outliers = s->outliers > 0;
    return vptq_buf_printf(&g->text, err, "matrix [%u,%u] %u %u %u %u %u %u %u %u %s\n", s->out,
                           s->in, s->v, s->k, s->k_res, s->groups, s->group_size, s->outliers,
                           outliers ? s->v0 : 0, outliers ? s->k0 : 0, m->name);
}

static vptq_status add_additive(digesting *g, const vptq_tensor *t, vptq_err *err)
{
    const vptq_additive_shape *s = &t->additive->shape;
    VPTQ_CHECK(vptq_buf_printf(&g->text, err, "additive [%u,%u] %u [", s->out, s->in, s->v));
    for (uint32_t m = 0; m < s->stages; m++)
        VPTQ_CHECK(vptq_buf_printf(&g->text, err, "%s%u", m ? "," : "", s->bits[m]));
    return vptq_buf_printf(&g->text, err, "] %u %u %u %d %d %d %d %.*s\n", s->block_rows,
                           s->block_columns, s->scale_columns, s->int8, s->sparse, s->lattice,
                           s->rotated, (int)vptq_text_before(t->name, ".weight"), t->name);
}

/* ---- the digest ---- */

static vptq_status make_text(digesting *g, const vptq_packed_matrix *matrices, size_t count,
                             vptq_err *err)
{
    const vptq_package *o = g->o;
    VPTQ_CHECK(vptq_buf_printf(&g->text, err, VERSION "\n"));
    for (size_t i = 0; i < o->count; i++)
        VPTQ_CHECK(add_tensor(g, &o->tensors[i], err));
    for (size_t i = 0; i < count; i++)
        VPTQ_CHECK(add_matrix(g, &matrices[i], err));
    for (size_t i = 0; i < o->from->set.count; i++)
        if (o->from->set.tensors[i].additive)
            VPTQ_CHECK(add_additive(g, &o->from->set.tensors[i], err));
    vptq_progress(o->ctx, o->stage, "bytes", g->total, g->total, NULL);
    return VPTQ_OK;
}

vptq_status vptq_package_digest(const vptq_package *o, const vptq_packed_matrix *matrices,
                                size_t count, vptq_digest_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char hex[VPTQ_SHA256_HEX + 1];
    digesting g = {.o = o};
    vptq_buf_init(&g.text, o->ctx->mem);
    for (size_t i = 0; i < o->count; i++)
        g.total += o->tensors[i].tensor.bytes;
    VPTQ_TRY(make_text(&g, matrices, count, err));
    VPTQ_TRY(vptq_sha256_begin(&g.hash, err));
    VPTQ_TRY(vptq_sha256_add(&g.hash, g.text.data, g.text.len, err));
    VPTQ_TRY(vptq_sha256_finish(&g.hash, hex, err));
    snprintf(r->digest, sizeof r->digest, VERSION ":%s", hex);
    r->tensors = g.tensors;
out:
    vptq_buf_release(&g.text);
    vptq_sha256_release(&g.hash);
    return st;
}

/* ---- packed models ---- */

/* A vptq_package_fill of the bytes as they are in the file.  Unlike vptq_package_copy it takes
 * any bits, as those of 16-bit indices that are labelled F16. */
static vptq_status fill_unchanged(void *arg, const vptq_package_tensor *t, vptq_package_sink *s,
                                  vptq_err *err)
{
    const vptq_package *o = arg;
    const vptq_tensor *x = t->source.plain;
    vptq_status st = VPTQ_OK;
    void *buffer = vptq_mem_alloc(o->ctx->mem, x->data ? 0 : vptq_tensor_piece(x, 0), 1, err);
    if (!buffer)
        return VPTQ_E_NOMEM;
    for (size_t at = 0, n; at < x->bytes; at += n) {
        const uint8_t *bytes;
        n = vptq_tensor_piece(x, at);
        VPTQ_TRY(vptq_check_cancel(o->ctx, err));
        VPTQ_TRY(vptq_tensor_bytes(x, at, n, buffer, &bytes, err));
        VPTQ_TRY(vptq_package_put(s, bytes, n, err));
        vptq_checkpoint_forget(o->from);
    }
out:
    vptq_mem_free(o->ctx->mem, buffer);
    return st;
}

static vptq_status digest_packed(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                 vptq_digest_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_package o;
    vptq_package_init(&o, ctx, c, "digest");
    o.fill = fill_unchanged;
    o.fill_arg = &o;
    for (size_t i = 0; i < c->set.count; i++)
        VPTQ_TRY(vptq_package_add_plain(&o, &c->set.tensors[i], VPTQ_DTYPE_COUNT, err));
    VPTQ_TRY(vptq_package_finish(&o, err));
    st = vptq_package_digest(&o, c->quantized, c->quantized_count, r, err);
out:
    vptq_package_release(&o);
    return st;
}

/* How codebooks are stored does not change a model: its digest is that of the published layout.
 */
static bool has_int8(const vptq_checkpoint *c)
{
    for (size_t i = 0; i < c->quantized_count; i++)
        if (c->quantized[i].vq.shape.int8)
            return true;
    return false;
}

vptq_status vptq_digest_model(const vptq_ctx *ctx, const char *path,
                              const vptq_checkpoint_options *open,
                              const vptq_pack_options *pack, vptq_digest_result *r,
                              vptq_err *err)
{
    vptq_model model;
    vptq_checkpoint_options shapes = open ? *open : (vptq_checkpoint_options){0};
    *r = (vptq_digest_result){.model = path};
    shapes.shapes_only = true;
    vptq_status st = vptq_model_open(ctx, path, &shapes, false, &model, err);
    if (st)
        return st;
    const vptq_checkpoint *c = &model.ckpt;
    const size_t coded = vptq_checkpoint_uniform_count(c) + vptq_checkpoint_additive_count(c);
    r->matrices = (uint32_t)vptq_checkpoint_matrix_count(c);
    r->all_matrices = (uint32_t)vptq_checkpoint_all_matrices(c);
    if (vptq_package_is_packed(c) && !has_int8(c) && !coded)
        st = digest_packed(ctx, c, r, err);
    else if (!vptq_package_is_packed(c) && !coded && c->kind != VPTQ_CKPT_WORK)
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED,
                       "%s is a %s, expected a packed directory, an archive or a work "
                       "directory",
                       c->path, vptq_checkpoint_kind_name(c->kind));
    else if (c->kind != VPTQ_CKPT_WORK || r->matrices == r->all_matrices)
        st = vptq_digest_packing(ctx, c, c->kind == VPTQ_CKPT_WORK ? pack : NULL, r, err);
    vptq_model_release(&model);
    return st;
}
