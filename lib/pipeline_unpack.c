/* Any model -> a plain Hugging Face directory, or a GGUF file (pipeline_gguf.c). */
#include <string.h>

#include "lib/pipeline_out.h"

typedef struct unpacking {
    vptq_device *dev;
    const vptq_out *out;
    vptq_dtype type;
} unpacking;

static vptq_status fill_matrix(const unpacking *u, const vptq_out_tensor *t, vptq_out_sink *s,
                               vptq_err *err)
{
    const vptq_ctx *ctx = u->dev->ctx;
    const size_t width = vptq_dtype_get(u->type)->bytes;
    vptq_status st = VPTQ_OK;
    vptq_out_rows in;
    uint8_t *stored = NULL;
    VPTQ_TRY(vptq_out_rows_open(u->dev, u->out->from, t, 0, &in, err));
    stored = vptq_mem_alloc(ctx->mem, in.most, in.cols * width, err);
    if (!stored)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t r = 0; r < in.rows; r += in.most) {
        size_t n = in.rows - r < in.most ? in.rows - r : in.most;
        const float *x = NULL;
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        VPTQ_TRY(vptq_out_rows_read(&in, r, n, &x, err));
        VPTQ_TRY(vptq_out_narrow(&t->tensor, u->type, x, n * in.cols, r * in.cols, in.cols,
                                 stored, err));
        VPTQ_TRY(vptq_out_put(s, stored, n * in.cols * width, err));
    }
out:
    vptq_out_rows_close(&in);
    vptq_mem_free(ctx->mem, stored);
    return st;
}

static vptq_status fill(void *arg, const vptq_out_tensor *t, vptq_out_sink *s, vptq_err *err)
{
    const unpacking *u = arg;
    if (t->source.plain)
        return vptq_out_fill_plain(u->out, t, s, err);
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
    unpacking u = {dev, o, opt->dtype};
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
    vptq_checkpoint_options open = {
        .tokenizer = opt->tokenizer, .base = opt->base, .shapes_only = true};
    *r = (vptq_pack_result){0};
    vptq_status st = vptq_checkpoint_open(ctx, opt->input, &open, &c, err);
    if (st)
        return st;
    vptq_out_init(&out, ctx, &c, "unpack");
    if (!opt->dry_run)
        st = vptq_out_check_place(&c, opt->output, err);
    if (!st)
        st = opt->form == VPTQ_PACK_GGUF ? vptq_unpack_gguf(dev, &c, opt, r, err)
                                         : unpack(dev, &c, opt, &out, r, err);
    vptq_out_release(&out);
    vptq_checkpoint_release(&c);
    r->seconds = vptq_seconds() - start;
    return st;
}
