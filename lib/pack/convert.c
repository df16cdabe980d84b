/* Bytes of the tensors of an output: copied, converted or dequantized, tile by tile. */
#include <math.h>
#include <string.h>

#include "formats/gguf/quants.h"
#include "lib/base/half.h"
#include "lib/base/parallel.h"
#include "lib/pack/package.h"

enum { TILE_FLOATS = 1 << 20, TILE_ALIGN = 64, CHUNK_FLOATS = 1 << 14 };

/* ---- rows as floats ---- */

/* As many rows as fit into TILE_FLOATS.  TILE_ALIGN rows of a matrix are whole vectors for
 * every usual v. */
static size_t tile_rows(size_t rows, size_t cols, size_t step)
{
    size_t n = TILE_FLOATS / (cols ? cols : 1) / step * step;
    n = n ? n : step;
    return n < rows ? n : rows;
}

/* Least number of rows of `cols` numbers that are whole blocks of a type. */
static size_t block_rows(vptq_dtype type, size_t cols)
{
    size_t n = vptq_dtype_get(type)->block; /* a power of two */
    while (n > 1 && n / 2 * cols % vptq_dtype_get(type)->block == 0)
        n /= 2;
    return n;
}

/* Stored bytes of whole blocks. */
static size_t stored_bytes(vptq_dtype type, size_t elements)
{
    size_t bytes = 0;
    VPTQ_BUG_IF(!vptq_dtype_bytes(type, elements, &bytes));
    return bytes;
}

static vptq_status read_plain(const vptq_tensor *src, size_t r, size_t n, void *raw, float *x,
                              vptq_err *err)
{
    if (src->data || src->uniform)
        return vptq_tensor_read(src, r, n, x, err);
    vptq_tensor tile = *src;
    const size_t cols = vptq_tensor_cols(src);
    tile.bytes = stored_bytes(src->type, n * cols);
    if (src->dims >= 2)
        tile.shape[0] = n;
    VPTQ_CHECK(vptq_tensor_bytes(src, stored_bytes(src->type, r * cols), tile.bytes, raw,
                                 &tile.data, err));
    return vptq_tensor_read(&tile, 0, n, x, err);
}

static vptq_status open_matrix(vptq_package_rows *r, const vptq_packed_matrix *m, vptq_err *err)
{
    const vptq_checkpoint *c = r->from;
    vptq_packed_matrix read = *m;
    if (vptq_package_is_packed(c) && !m->vq.indices) /* opened for its shape only */
        VPTQ_CHECK(vptq_packed_read(&(vptq_packed_source){&c->set,
                                                          vptq_packed_entry(c->config, m->name),
                                                          m->name, c->path},
                                    &r->arena, &read, err));
    VPTQ_CHECK(r->dev->ops->matrix_open(r->dev->state, &read.vq, &r->matrix, err));
    VPTQ_CHECK(r->dev->ops->alloc(r->dev->state, r->tile_rows * r->cols, sizeof(float),
                                  &r->device, err));
    if (r->dev->ops->host_memory)
        return VPTQ_OK;
    r->host = vptq_mem_alloc(r->ctx->mem, r->tile_rows, r->cols * sizeof(float), err);
    return r->host ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status open_plain(vptq_package_rows *r, const vptq_tensor *t, vptq_err *err)
{
    r->host = vptq_mem_alloc(r->ctx->mem, r->tile_rows, r->cols * sizeof(float), err);
    r->raw = vptq_mem_alloc(
        r->ctx->mem, t->data || t->uniform ? 0 : stored_bytes(t->type, r->tile_rows * r->cols),
        1, err);
    return r->host && r->raw ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_package_rows_open(const vptq_package *o, vptq_device *dev,
                                   const vptq_package_tensor *t, size_t multiple,
                                   vptq_package_rows *r, vptq_err *err)
{
    const vptq_packed_matrix *m = t->source.matrix;
    const vptq_tensor *plain = t->source.plain;
    *r = (vptq_package_rows){.ctx = o->ctx, .dev = m ? dev : NULL, .from = o->from, .t = t};
    r->loss = vptq_is_embedding(t->tensor.name) ? o->loss
              : t->tensor.dims >= 2             ? o->layer_loss
                                                : NULL;
    vptq_arena_init(&r->arena, o->ctx->mem);
    r->rows = m ? m->vq.shape.out : vptq_tensor_rows(plain);
    r->cols = m ? m->vq.shape.in : vptq_tensor_cols(plain);
    /* whole blocks on both sides, whose sizes are powers of two */
    const size_t in = m ? 1 : block_rows(plain->type, r->cols),
                 out = block_rows(t->tensor.type, r->cols);
    multiple = multiple ? multiple : m ? TILE_ALIGN : 1;
    r->tile_rows = tile_rows(r->rows, r->cols, multiple * (in > out ? in : out));
    vptq_status st = m ? open_matrix(r, m, err) : open_plain(r, plain, err);
    if (st)
        vptq_package_rows_close(r);
    return st;
}

vptq_status vptq_package_rows_read(vptq_package_rows *r, size_t first, size_t n,
                                   const float **x, vptq_err *err)
{
    vptq_status st;
    *x = r->host;
    if (!r->dev) {
        st = read_plain(r->t->source.plain, first, n, r->raw, r->host, err);
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

void vptq_package_rows_close(vptq_package_rows *r)
{
    if (!r->ctx)
        return;
    if (r->dev) {
        r->dev->ops->release(r->dev->state, r->device);
        r->dev->ops->matrix_close(r->dev->state, r->matrix);
    }
    vptq_mem_free(r->ctx->mem, r->host);
    vptq_mem_free(r->ctx->mem, r->raw);
    vptq_arena_release(&r->arena);
    vptq_checkpoint_forget(r->from);
    *r = (vptq_package_rows){.rows = 0};
}

/* ---- floats as stored ---- */

/* The smallest magnitude that rounds to infinity, or more than blocks hold. */
static float limit_of(vptq_dtype type)
{
    if (type == VPTQ_F16)
        return 65520.0F;
    if (vptq_ggml_limit(type) > 0)
        return nextafterf(vptq_ggml_limit(type), INFINITY);
    return type == VPTQ_BF16 ? 0x1.FFp127F : INFINITY;
}

/* Adds what storing x changed. */
static vptq_status add_loss(vptq_package_loss *loss, vptq_dtype type, const float *x, size_t n,
                            const void *stored, vptq_err *err)
{
    enum { PIECE = 1024 }; /* a multiple of every block */
    float back[PIECE];
    const vptq_tensor t = {.type = type, .dims = 2, .shape = {n, 1}, .data = stored};
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i < PIECE ? n - i : PIECE;
        VPTQ_CHECK(vptq_tensor_read(&t, i, count, back, err));
        for (size_t j = 0; j < count; j++) {
            const double value = (double)x[i + j], error = (double)back[j] - value;
            loss->error += error * error;
            loss->energy += value * value;
        }
    }
    return VPTQ_OK;
}

/* VPTQ_E_NUMERIC for the first number that the type of t cannot hold; `at` is the index in the
 * tensor of x[0]. */
static vptq_status check_range(const vptq_package_rows *r, const vptq_tensor *t, const float *x,
                               size_t n, size_t at, vptq_err *err)
{
    const vptq_dtype type = t->type;
    const size_t cols = r->cols;
    const float limit = limit_of(type);
    for (size_t i = 0; i < n; i++, at++) {
        if (fabsf(x[i]) < limit)
            continue;
        if (!isfinite(x[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: tensor '%s': row %zu, column %zu is %g",
                             t->file, t->name, at / cols, at % cols, (double)x[i]);
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "%s: tensor '%s': row %zu, column %zu is %g, too large for %s "
                         "(choose another %s)",
                         t->file, t->name, at / cols, at % cols, (double)x[i],
                         vptq_dtype_get(type)->name,
                         vptq_dtype_get(type)->block > 1 && vptq_is_embedding(r->t->tensor.name)
                             ? "--embeddings"
                             : "--dtype");
    }
    return VPTQ_OK;
}

typedef struct quantizing {
    vptq_dtype type;
    const float *x;
    uint8_t *stored;
} quantizing;

static void quantize_blocks(void *arg, size_t begin, size_t end, int thread)
{
    const quantizing *q = arg;
    const vptq_dtype_info *info = vptq_dtype_get(q->type);
    (void)thread;
    vptq_ggml_quantize(q->type, q->x + begin * info->block, (end - begin) * info->block,
                       q->stored + begin * info->bytes);
}

vptq_status vptq_package_convert(const vptq_package_rows *r, const vptq_tensor *t,
                                 const float *x, size_t first, size_t rows, void *stored,
                                 vptq_err *err)
{
    const vptq_dtype type = t->type;
    const size_t n = rows * r->cols;
    const size_t block = vptq_dtype_get(type)->block;
    VPTQ_CHECK(check_range(r, t, x, n, first * r->cols, err));
    if (type == VPTQ_F16)
        vptq_f32_to_f16_n(x, stored, n);
    else if (type == VPTQ_BF16)
        vptq_f32_to_bf16_n(x, stored, n);
    else if (block > 1)
        vptq_parallel_for(r->ctx->threads, n / block, CHUNK_FLOATS / block, quantize_blocks,
                          &(quantizing){type, x, stored});
    else
        memcpy(stored, x, n * sizeof *x);
    return r->loss ? add_loss(r->loss, type, x, n, stored, err) : VPTQ_OK;
}

/* ---- whole tensors ---- */

vptq_status vptq_package_put(vptq_package_sink *s, const void *data, size_t n, vptq_err *err)
{
    if (n == 0)
        return VPTQ_OK;
    if (s->probe)
        s->probe->bytes += n;
    if (s->hash)
        return vptq_sha256_add(s->hash, data, n, err);
    return s->file ? vptq_safetensors_write(s->file, data, n, err)
                   : vptq_archive_put(s->archive, data, n, err);
}

vptq_status vptq_package_copy(const vptq_ctx *ctx, const vptq_checkpoint *from,
                              const vptq_tensor *t, vptq_package_sink *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    uint8_t *buffer = vptq_mem_alloc(ctx->mem, t->data ? 0 : vptq_tensor_piece(t, 0), 1, err);
    if (!buffer)
        return VPTQ_E_NOMEM;
    for (size_t at = 0, n; at < t->bytes; at += n) {
        const uint8_t *bytes;
        if (at > 0 && vptq_package_is_late(s ? s->probe : NULL))
            break;
        n = vptq_tensor_piece(t, at);
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        VPTQ_TRY(vptq_tensor_bytes(t, at, n, buffer, &bytes, err));
        VPTQ_TRY(vptq_tensor_check_piece(t, bytes, at, n, err));
        if (s)
            VPTQ_TRY(vptq_package_put(s, bytes, n, err));
        vptq_checkpoint_forget(from);
    }
out:
    vptq_mem_free(ctx->mem, buffer);
    return st;
}

vptq_status vptq_package_fill_rows(const vptq_package *o, vptq_device *dev,
                                   const vptq_package_tensor *t, vptq_package_sink *s,
                                   vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_dtype type = t->tensor.type;
    vptq_package_rows in;
    uint8_t *stored = NULL;
    VPTQ_TRY(vptq_package_rows_open(o, dev, t, 0, &in, err));
    stored = vptq_mem_alloc(o->ctx->mem, stored_bytes(type, in.tile_rows * in.cols), 1, err);
    if (!stored)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t r = 0; r < in.rows; r += in.tile_rows) {
        if (r > 0 && vptq_package_is_late(s->probe))
            break;
        size_t n = in.rows - r < in.tile_rows ? in.rows - r : in.tile_rows;
        const float *x = NULL;
        VPTQ_TRY(vptq_check_cancel(o->ctx, err));
        VPTQ_TRY(vptq_package_rows_read(&in, r, n, &x, err));
        VPTQ_TRY(vptq_package_convert(&in, &t->tensor, x, r, n, stored, err));
        VPTQ_TRY(vptq_package_put(s, stored, stored_bytes(type, n * in.cols), err));
    }
out:
    vptq_package_rows_close(&in);
    vptq_mem_free(o->ctx->mem, stored);
    return st;
}

vptq_status vptq_package_fill_plain(const vptq_package *o, const vptq_package_tensor *t,
                                    vptq_package_sink *s, vptq_err *err)
{
    const vptq_tensor *src = t->source.plain;
    bool number = vptq_dtype_get(src->type)->is_float;
    bool unchanged =
        !number || (t->tensor.type == src->type && !src->rope_heads && !src->uniform &&
                    (src->round_to == VPTQ_F32 || src->round_to == src->type));
    return unchanged ? vptq_package_copy(o->ctx, o->from, src, s, err)
                     : vptq_package_fill_rows(o, NULL, t, s, err);
}
