/* Rows of the tensors of an output as floats. */
#include "lib/pipeline_out.h"

enum { TILE_FLOATS = 1 << 20, TILE_ALIGN = 64 };

/* Tiles of rows that are whole vectors for every usual length, as many as fit TILE_FLOATS. */
static size_t tile_rows(size_t rows, size_t cols, size_t multiple)
{
    const size_t step = multiple ? multiple : TILE_ALIGN;
    size_t n = TILE_FLOATS / (cols ? cols : 1) / step * step;
    n = n ? n : step;
    return n < rows ? n : rows;
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
    if (is_packed(c) && !m->vq.indices) {
        vptq_status st = vptq_packed_read(&c->set, vptq_packed_entry(c->config, m->name),
                                          m->name, c->path, &r->arena, &read, err);
        if (st)
            return st;
    }
    r->vq = read.vq;
    return r->dev->ops->alloc(r->dev->state, r->most * r->cols, sizeof(float), &r->device, err);
}

vptq_status vptq_out_rows_open(vptq_device *dev, const vptq_checkpoint *from,
                               const vptq_out_tensor *t, size_t multiple, vptq_out_rows *r,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = dev->ctx->mem;
    const vptq_packed_matrix *m = t->source.matrix;
    const vptq_tensor *plain = t->source.plain;
    *r = (vptq_out_rows){.dev = dev, .from = from, .t = t};
    vptq_arena_init(&r->arena, mem);
    r->rows = m ? m->vq.shape.out : vptq_tensor_rows(plain);
    r->cols = m ? m->vq.shape.in : vptq_tensor_cols(plain);
    r->most = tile_rows(r->rows, r->cols, multiple);
    if (m)
        VPTQ_TRY(open_matrix(r, m, err));
    if (!m || !dev->ops->host_memory) {
        r->host = vptq_mem_alloc(mem, r->most, r->cols * sizeof(float), err);
        r->room = vptq_mem_alloc(mem, m ? 0 : vptq_out_row_room(plain, r->most), 1, err);
        if (!r->host || !r->room)
            VPTQ_TRY(VPTQ_E_NOMEM);
    }
out:
    if (st)
        vptq_out_rows_close(r);
    return st;
}

vptq_status vptq_out_rows_read(vptq_out_rows *r, size_t first, size_t n, const float **x,
                               vptq_err *err)
{
    const vptq_backend *ops = r->dev->ops;
    *x = r->host;
    if (r->t->source.plain)
        return vptq_out_read_rows(r->t->source.plain, first, n, r->room, r->host, err);
    vptq_status st = ops->vq_dequant(r->dev->state, &r->vq, first, n, r->device, r->cols, err);
    if (ops->host_memory)
        *x = r->device;
    else if (!st)
        st = ops->download(r->dev->state, r->host, r->device, n * r->cols * sizeof(float), err);
    return st;
}

void vptq_out_rows_close(vptq_out_rows *r)
{
    if (!r->dev)
        return;
    r->dev->ops->release(r->dev->state, r->device);
    vptq_mem_free(r->dev->ctx->mem, r->host);
    vptq_mem_free(r->dev->ctx->mem, r->room);
    vptq_arena_release(&r->arena);
    vptq_checkpoint_forget(r->from);
    *r = (vptq_out_rows){.rows = 0};
}
