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

vptq_status vptq_out_rows_open(vptq_device *dev, const vptq_out_tensor *t, size_t multiple,
                               vptq_out_rows *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = dev->ops;
    const vptq_packed_matrix *m = t->source.matrix;
    *r = (vptq_out_rows){.dev = dev, .t = t};
    r->rows = m ? m->vq.shape.out : vptq_tensor_rows(t->source.plain);
    r->cols = m ? m->vq.shape.in : vptq_tensor_cols(t->source.plain);
    r->most = tile_rows(r->rows, r->cols, multiple);
    if (m)
        VPTQ_TRY(ops->alloc(dev->state, r->most * r->cols, sizeof(float), &r->device, err));
    if (!m || !ops->host_memory) {
        r->host = vptq_mem_alloc(dev->ctx->mem, r->most, r->cols * sizeof(float), err);
        if (!r->host)
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
    const vptq_packed_matrix *m = r->t->source.matrix;
    *x = r->host;
    if (!m)
        return vptq_tensor_read(r->t->source.plain, first, n, r->host, err);
    vptq_status st = ops->vq_dequant(r->dev->state, &m->vq, first, n, r->device, r->cols, err);
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
    *r = (vptq_out_rows){.rows = 0};
}
