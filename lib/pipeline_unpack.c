/* Any model -> a plain Hugging Face directory. */
#include <string.h>

#include "lib/pipeline_out.h"

enum { TILE_FLOATS = 1 << 20, TILE_ALIGN = 64 };

typedef struct unpacking {
    vptq_device *dev;
    vptq_dtype type;
} unpacking;

/* Tiles of rows that are whole vectors for every usual length, as many as fit TILE_FLOATS. */
static size_t tile_rows(size_t rows, size_t cols)
{
    size_t n = TILE_FLOATS / cols / TILE_ALIGN * TILE_ALIGN;
    n = n ? n : TILE_ALIGN;
    return n < rows ? n : rows;
}

/* What a tile goes through: device memory, host memory, the bytes to store. */
typedef struct tile_buffers {
    void *device;
    float *host;
    uint8_t *stored;
} tile_buffers;

static vptq_status read_tile(vptq_device *dev, const vptq_vq *q, size_t r, size_t n,
                             tile_buffers *b, const float **x, vptq_err *err)
{
    const vptq_backend *ops = dev->ops;
    vptq_status st = ops->vq_dequant(dev->state, q, r, n, b->device, q->shape.in, err);
    *x = ops->host_memory ? b->device : b->host;
    if (!st && !ops->host_memory)
        st =
            ops->download(dev->state, b->host, b->device, n * q->shape.in * sizeof(float), err);
    return st;
}

static vptq_status fill_matrix(const unpacking *u, const vptq_out_tensor *t, vptq_out_sink *s,
                               vptq_err *err)
{
    const vptq_ctx *ctx = u->dev->ctx;
    const vptq_backend *ops = u->dev->ops;
    const vptq_vq *q = &t->source.matrix->vq;
    size_t rows = q->shape.out, cols = q->shape.in, tile = tile_rows(rows, cols);
    size_t width = vptq_dtype_get(u->type)->bytes;
    vptq_status st = VPTQ_OK;
    tile_buffers b = {NULL, NULL, vptq_mem_alloc(ctx->mem, tile, cols * width, err)};
    if (!ops->host_memory)
        b.host = vptq_mem_alloc(ctx->mem, tile, cols * sizeof(float), err);
    if (!b.stored || (!ops->host_memory && !b.host))
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(ops->alloc(u->dev->state, tile * cols, sizeof(float), &b.device, err));
    for (size_t r = 0; r < rows; r += tile) {
        size_t n = rows - r < tile ? rows - r : tile;
        const float *x = NULL;
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        VPTQ_TRY(read_tile(u->dev, q, r, n, &b, &x, err));
        VPTQ_TRY(
            vptq_out_narrow(&t->tensor, u->type, x, n * cols, r * cols, cols, b.stored, err));
        VPTQ_TRY(vptq_out_put(s, b.stored, n * cols * width, err));
    }
out:
    ops->release(u->dev->state, b.device);
    vptq_mem_free(ctx->mem, b.host);
    vptq_mem_free(ctx->mem, b.stored);
    return st;
}

static vptq_status fill(void *arg, const vptq_out_tensor *t, vptq_out_sink *s, vptq_err *err)
{
    const unpacking *u = arg;
    if (t->source.plain)
        return vptq_out_fill_plain(u->dev->ctx, t, s, err);
    return fill_matrix(u, t, s, err);
}

static vptq_status add_tensors(const vptq_checkpoint *c, vptq_dtype type, vptq_out *o,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    for (size_t i = 0; i < c->set.count; i++)
        if (!vptq_out_is_quantized(c, c->set.tensors[i].name))
            VPTQ_TRY(vptq_out_add_plain(o, &c->set.tensors[i], type, err));
    for (size_t i = 0; i < c->quantized_count; i++) {
        const vptq_packed_matrix *m = &c->quantized[i];
        char name[VPTQ_NAME_MAX + 8];
        snprintf(name, sizeof name, "%.*s.weight", VPTQ_NAME_MAX, m->name);
        vptq_tensor t = {.name = name,
                         .type = type,
                         .dims = 2,
                         .shape = {m->vq.shape.out, m->vq.shape.in},
                         .file = c->path};
        if (!vptq_dtype_bytes(type, (size_t)m->vq.shape.out * m->vq.shape.in, &t.bytes))
            VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT, "%s: '%s' is too large", c->path, name));
        VPTQ_TRY(vptq_out_add(o, &t, (vptq_out_source){.matrix = m}, err));
    }
    VPTQ_TRY(vptq_out_finish(o, err));
out:
    return st;
}

static vptq_status add_config(const vptq_checkpoint *c, vptq_dtype type, vptq_out *o,
                              vptq_err *err)
{
    json_t *config = NULL;
    vptq_status st = vptq_out_config(c, type, &config, err);
    if (!st)
        st = vptq_out_add_config(o, config, err);
    json_decref(config);
    return st;
}

static vptq_status unpack(vptq_device *dev, const vptq_checkpoint *c,
                          const vptq_pack_options *opt, vptq_out *o, vptq_pack_result *r,
                          vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    unpacking u = {dev, opt->dtype};
    VPTQ_TRY(add_tensors(c, opt->dtype, o, err));
    VPTQ_TRY(add_config(c, opt->dtype, o, err));
    VPTQ_TRY(
        vptq_out_add_tokenizer(o, c, opt->tokenizer, opt->dry_run ? NULL : opt->output, err));
    r->plain = (uint32_t)o->count;
    r->bytes = o->bytes;
    r->bits_per_weight = 8.0 * (double)vptq_dtype_get(opt->dtype)->bytes;
    if (!opt->dry_run)
        st = vptq_out_write_dir(o, opt->output, opt->force,
                                opt->shard_bytes ? opt->shard_bytes : VPTQ_OUT_SHARD_BYTES,
                                fill, &u, &r->bytes, err);
out:
    return st;
}

vptq_status vptq_unpack_model(vptq_device *dev, const vptq_pack_options *opt,
                              vptq_pack_result *r, vptq_err *err)
{
    double start = vptq_seconds();
    const vptq_ctx *ctx = dev->ctx;
    vptq_checkpoint c;
    vptq_out out;
    vptq_checkpoint_options open = {.tokenizer = opt->tokenizer, .base = opt->base};
    *r = (vptq_pack_result){0};
    vptq_status st = vptq_checkpoint_open(ctx, opt->input, &open, &c, err);
    if (st)
        return st;
    vptq_out_init(&out, ctx, "unpack");
    if (!opt->dry_run)
        st = vptq_out_check_place(&c, opt->output, err);
    if (!st)
        st = unpack(dev, &c, opt, &out, r, err);
    vptq_out_release(&out);
    vptq_checkpoint_release(&c);
    r->seconds = vptq_seconds() - start;
    return st;
}
