/* Rows of the tensors of an output as floats, and from there as what is stored. */
#include "lib/pack/out.h"

enum { TILE_FLOATS = 1 << 20, TILE_ALIGN = 64 };

/* As many rows as fit TILE_FLOATS; of a matrix whole vectors for every usual length. */
static size_t tile_rows(size_t rows, size_t cols, size_t step)
{
    size_t n = TILE_FLOATS / (cols ? cols : 1) / step * step;
    n = n ? n : step;
    return n < rows ? n : rows;
}

/* Bytes of rows that are not in memory. */
static size_t row_room(const vptq_tensor *src, size_t rows)
{
    size_t all = vptq_tensor_rows(src);
    return src->data || all == 0 ? 0 : src->bytes / all * rows;
}

static vptq_status read_plain(const vptq_tensor *src, size_t r, size_t n, void *room, float *x,
                              vptq_err *err)
{
    if (src->data)
        return vptq_tensor_read(src, r, n, x, err);
    vptq_tensor tile = *src;
    size_t row = src->bytes / vptq_tensor_rows(src);
    tile.bytes = n * row;
    if (src->dims >= 2)
        tile.shape[0] = n;
    vptq_status st = vptq_tensor_bytes(src, r * row, tile.bytes, room, &tile.data, err);
    return st ? st : vptq_tensor_read(&tile, 0, n, x, err);
}

static bool is_packed(const vptq_checkpoint *c)
{
    return c->kind == VPTQ_CKPT_PACKED || c->kind == VPTQ_CKPT_ARCHIVE;
}

/* A matrix of a packed model may have been opened for its shape only. */
static vptq_status open_matrix(vptq_out_rows *r, const vptq_packed_matrix *m, vptq_err *err)
{
    const vptq_checkpoint *c = r->from;
    vptq_packed_matrix read = *m;
    if (is_packed(c) && !m->vq.indices)
        VPTQ_CHECK(vptq_packed_read(&(vptq_packed_source){&c->set,
                                                          vptq_packed_entry(c->config, m->name),
                                                          m->name, c->path},
                                    &r->arena, &read, err));
    VPTQ_CHECK(r->dev->ops->matrix_open(r->dev->state, &read.vq, &r->matrix, err));
    VPTQ_CHECK(
        r->dev->ops->alloc(r->dev->state, r->most * r->cols, sizeof(float), &r->device, err));
    if (r->dev->ops->host_memory)
        return VPTQ_OK;
    r->host = vptq_mem_alloc(r->ctx->mem, r->most, r->cols * sizeof(float), err);
    return r->host ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status open_plain(vptq_out_rows *r, const vptq_tensor *t, vptq_err *err)
{
    r->host = vptq_mem_alloc(r->ctx->mem, r->most, r->cols * sizeof(float), err);
    r->room = vptq_mem_alloc(r->ctx->mem, row_room(t, r->most), 1, err);
    return r->host && r->room ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_out_rows_open(const vptq_out *o, vptq_device *dev, const vptq_out_tensor *t,
                               size_t multiple, vptq_out_rows *r, vptq_err *err)
{
    const vptq_packed_matrix *m = t->source.matrix;
    const vptq_tensor *plain = t->source.plain;
    *r = (vptq_out_rows){.ctx = o->ctx, .dev = m ? dev : NULL, .from = o->from, .t = t};
    vptq_arena_init(&r->arena, o->ctx->mem);
    r->rows = m ? m->vq.shape.out : vptq_tensor_rows(plain);
    r->cols = m ? m->vq.shape.in : vptq_tensor_cols(plain);
    r->most = tile_rows(r->rows, r->cols, multiple ? multiple : m ? TILE_ALIGN : 1);
    vptq_status st = m ? open_matrix(r, m, err) : open_plain(r, plain, err);
    if (st)
        vptq_out_rows_close(r);
    return st;
}

vptq_status vptq_out_rows_read(vptq_out_rows *r, size_t first, size_t n, const float **x,
                               vptq_err *err)
{
    vptq_status st;
    *x = r->host;
    if (!r->dev) {
        st = read_plain(r->t->source.plain, first, n, r->room, r->host, err);
        vptq_checkpoint_forget(r->from);
        return st;
    }
    const vptq_backend *ops = r->dev->ops;
    st = ops->vq_dequant(r->dev->state, r->matrix, first, n, r->device, r->cols, err);
    if (ops->host_memory)
        *x = r->device;
    else if (!st)
        st = ops->download(r->dev->state, r->host, r->device, n * r->cols * sizeof(float), err);
    return st;
}

void vptq_out_rows_close(vptq_out_rows *r)
{
    if (!r->ctx)
        return;
    if (r->dev) {
        r->dev->ops->release(r->dev->state, r->device);
        r->dev->ops->matrix_close(r->dev->state, r->matrix);
    }
    vptq_mem_free(r->ctx->mem, r->host);
    vptq_mem_free(r->ctx->mem, r->room);
    vptq_arena_release(&r->arena);
    vptq_checkpoint_forget(r->from);
    *r = (vptq_out_rows){.rows = 0};
}

vptq_status vptq_out_fill_rows(const vptq_out *o, vptq_device *dev, const vptq_out_tensor *t,
                               vptq_out_sink *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_dtype type = t->tensor.type;
    const size_t width = vptq_dtype_get(type)->bytes;
    vptq_out_rows in;
    uint8_t *stored = NULL;
    VPTQ_TRY(vptq_out_rows_open(o, dev, t, 0, &in, err));
    stored = vptq_mem_alloc(o->ctx->mem, in.most, in.cols * width, err);
    if (!stored)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t r = 0; r < in.rows; r += in.most) {
        size_t n = in.rows - r < in.most ? in.rows - r : in.most;
        const float *x = NULL;
        VPTQ_TRY(vptq_check_cancel(o->ctx, err));
        VPTQ_TRY(vptq_out_rows_read(&in, r, n, &x, err));
        VPTQ_TRY(vptq_out_narrow(&t->tensor, type, x, n * in.cols, r * in.cols, in.cols, stored,
                                 err));
        VPTQ_TRY(vptq_out_put(s, stored, n * in.cols * width, err));
    }
out:
    vptq_out_rows_close(&in);
    vptq_mem_free(o->ctx->mem, stored);
    return st;
}
