/* The weights that a forward pass has opened: those of all blocks for steps, those of one block
 * for windows, the head and the embedding.  A device with its own memory stores each as long
 * as enough is left for the activations; the others are uploaded in tiles for each product,
 * with the same results. */
#include "lib/model/forward_internal.h"

/* Stores a plain weight if that leaves memory for `rows` rows; without it, tiles do. */
static vptq_status store(vptq_forward *f, const vptq_weight *w, vptq_opened *o, size_t rows,
                         size_t reserved, vptq_err *err)
{
    const size_t bytes = vptq_weight_bytes(w, f->dev);
    if (!bytes || o->stored || reserved > SIZE_MAX - bytes ||
        !vptq_forward_has_room(f, bytes + reserved, rows))
        return VPTQ_OK;
    const vptq_status st = vptq_weight_store(w, f->dev, o, err);
    return st == VPTQ_E_NOMEM ? VPTQ_OK : st; /* what is left was an estimate */
}

/* ---- one block ---- */

vptq_status vptq_forward_weights_open(vptq_forward *f, vptq_err *err)
{
    vptq_arena *a = &f->arena;
    const size_t n = (size_t)f->linear_count;
    for (int other = 0; other < 2; other++) {
        f->block.open[other] = vptq_arena_zalloc(a, n, sizeof *f->block.open[other], err);
        f->block.linear[other] = vptq_arena_zalloc(a, n, sizeof *f->block.linear[other], err);
        if (!f->block.open[other] || !f->block.linear[other])
            return VPTQ_E_NOMEM;
    }
    f->ahead.linear = vptq_arena_zalloc(a, n, sizeof *f->ahead.linear, err);
    f->ahead.of = f->ahead.linear ? vptq_arena_zalloc(a, n, sizeof *f->ahead.of, err) : NULL;
    return f->ahead.of ? VPTQ_OK : VPTQ_E_NOMEM;
}

static void close_ahead(vptq_forward *f)
{
    for (int l = 0; f->ahead.of && l < f->linear_count; l++) {
        if (f->ahead.of[l])
            vptq_weight_close(f->dev, &f->ahead.linear[l]);
        f->ahead.of[l] = NULL;
    }
}

/* Moves a weight that was stored ahead to *o; false if it was not. */
static bool take_stored(vptq_forward *f, uint32_t layer, vptq_linear l, const vptq_weight *w,
                        vptq_opened *o)
{
    if (f->ahead.layer != layer)
        close_ahead(f);
    if (!f->ahead.of[l] || w->packed || w->tensor != f->ahead.of[l])
        return false;
    *o = f->ahead.linear[l];
    f->ahead.of[l] = NULL;
    return true;
}

vptq_status vptq_forward_block_weight(vptq_forward *f, uint32_t layer, vptq_linear l,
                                      const vptq_weight *w, const vptq_opened **opened,
                                      vptq_err *err)
{
    const vptq_weight *own = &f->m->blocks[layer].linear[l];
    const int other = w->tensor != own->tensor || w->packed != own->packed;
    vptq_opened *o = &f->block.linear[other][l];
    *opened = o;
    if (f->block.layer != layer)
        vptq_forward_block_close(f);
    if (f->block.open[other][l])
        return VPTQ_OK;
    f->block.layer = layer;
    if (take_stored(f, layer, l, w, o)) {
        f->block.open[other][l] = true;
        return VPTQ_OK;
    }
    VPTQ_CHECK(vptq_weight_open(w, f->dev, o, err));
    f->block.open[other][l] = true;
    if (!f->kept)
        vptq_weight_close(f->dev, &f->head);
    return store(f, w, o, f->group_rows, 0, err);
}

void vptq_forward_block_close(vptq_forward *f)
{
    for (int other = 0; other < 2; other++)
        for (int l = 0; f->ahead.of && l < f->linear_count; l++) {
            if (f->block.open[other][l])
                vptq_weight_close(f->dev, &f->block.linear[other][l]);
            f->block.open[other][l] = false;
        }
}

vptq_status vptq_forward_ahead(vptq_forward *f, uint32_t layer, size_t reserved, vptq_err *err)
{
    close_ahead(f);
    f->ahead.layer = layer;
    for (int l = 0; layer < f->d->layers && l < f->linear_count; l++) {
        const vptq_weight *w = &f->m->blocks[layer].linear[l];
        if (!vptq_linear_exists(f->d, layer, l))
            continue;
        f->ahead.linear[l] = (vptq_opened){.matrix = NULL};
        const vptq_status st = store(f, w, &f->ahead.linear[l], f->group_rows, reserved, err);
        if (st) {
            vptq_err_context(err, "layer %u", layer);
            return st;
        }
        f->ahead.of[l] = f->ahead.linear[l].stored ? w->tensor : NULL;
    }
    return VPTQ_OK;
}

void vptq_forward_hold(vptq_forward *f, bool hold)
{
    f->block.held = hold;
    if (!hold)
        vptq_forward_block_close(f);
}

void vptq_forward_use_bf16(vptq_forward *f, bool on)
{
    f->bf16 = on;
}

/* ---- head and embedding ---- */

vptq_weight vptq_forward_head_weight(const vptq_forward *f)
{
    return (vptq_weight){.rows = f->d->vocab, .cols = f->d->hidden, .tensor = f->m->head};
}

vptq_status vptq_forward_head_store(vptq_forward *f, vptq_err *err)
{
    const vptq_weight w = vptq_forward_head_weight(f);
    return store(f, &w, &f->head, 0, 0, err);
}

const vptq_opened *vptq_forward_embedding(const vptq_forward *f)
{
    return f->m->embedding == f->m->head ? &f->head : &f->embedding;
}

/* ---- all blocks ---- */

enum { SAMPLE_WORDS = 4 }; /* of a sampled row, in addition to its logits */

static size_t all_linear_layers(const vptq_forward *f)
{
    return (size_t)f->d->layers * (size_t)f->linear_count;
}

static vptq_status open_kept(vptq_forward *f, size_t rows, size_t samples, vptq_err *err)
{
    const vptq_weight head = vptq_forward_head_weight(f);
    const size_t logits = samples * (f->d->vocab + SAMPLE_WORDS) * sizeof(float);
    vptq_weight embedding = head;
    /* packed weights cannot move in tiles, so they come first */
    for (int store_plain = 0; store_plain < 2; store_plain++)
        for (size_t i = 0; i < all_linear_layers(f); i++) {
            const size_t layer = i / (size_t)f->linear_count, l = i % (size_t)f->linear_count;
            const vptq_weight *w = &f->m->blocks[layer].linear[l];
            if (!vptq_linear_exists(f->d, (uint32_t)layer, (vptq_linear)l))
                continue;
            const vptq_status st = store_plain ? store(f, w, &f->kept[i], rows, logits, err)
                                               : vptq_weight_open(w, f->dev, &f->kept[i], err);
            if (st) {
                vptq_err_context(err, "layer %zu", layer);
                return st;
            }
        }
    VPTQ_CHECK(store(f, &head, &f->head, rows, logits, err));
    embedding.tensor = f->m->embedding;
    return f->m->embedding == f->m->head
               ? VPTQ_OK
               : store(f, &embedding, &f->embedding, rows, logits, err);
}

static void close_kept(vptq_forward *f)
{
    for (size_t i = 0; f->kept && i < all_linear_layers(f); i++)
        vptq_weight_close(f->dev, &f->kept[i]);
    vptq_mem_free(f->dev->ctx->mem, f->kept);
    f->kept = NULL;
    vptq_weight_close(f->dev, &f->head);
    vptq_weight_close(f->dev, &f->embedding);
}

vptq_status vptq_forward_keep(vptq_forward *f, size_t rows, size_t samples, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t count = all_linear_layers(f);
    if (f->kept)
        return VPTQ_OK;
    f->kept = vptq_mem_alloc(f->dev->ctx->mem, count, sizeof *f->kept, err);
    if (!f->kept)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        f->kept[i] = (vptq_opened){.matrix = NULL};
    st = open_kept(f, rows, samples, err);
    if (st)
        close_kept(f);
    return st;
}

void vptq_forward_weights_close(vptq_forward *f)
{
    close_ahead(f);
    vptq_forward_block_close(f);
    close_kept(f);
}
