/* Any model -> a plain Hugging Face directory, or a GGUF file (pipeline_gguf.c). */
#include <stdio.h>

#include "lib/pack/out.h"

typedef struct unpacking {
    vptq_device *dev;
    const vptq_out *out;
} unpacking;

static vptq_status fill(void *arg, const vptq_out_tensor *t, vptq_out_sink *s, vptq_err *err)
{
    const unpacking *u = arg;
    return t->source.plain ? vptq_out_fill_plain(u->out, t, s, err)
                           : vptq_out_fill_rows(u->out, u->dev, t, s, err);
}

static vptq_status add_tensors(const vptq_checkpoint *c, vptq_dtype type, vptq_out *o,
                               vptq_err *err)
{
    for (size_t i = 0; i < c->set.count; i++)
        if (!vptq_out_is_quantized(c, c->set.tensors[i].name))
            VPTQ_CHECK(vptq_out_add_plain(o, &c->set.tensors[i], type, err));
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
            VPTQ_CHECK(vptq_fail(err, VPTQ_E_FORMAT, "%s: '%s' is too large", c->path, name));
        VPTQ_CHECK(vptq_out_add(o, &t, (vptq_out_source){.matrix = m}, err));
    }
    return vptq_out_finish(o, err);
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

static vptq_status write_plain(vptq_device *dev, const vptq_checkpoint *c,
                               const vptq_pack_options *opt, vptq_out *o, vptq_pack_result *r,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    unpacking u = {dev, o};
    if (!opt->dry_run)
        VPTQ_TRY(vptq_out_check_place(c, opt->output, err));
    VPTQ_TRY(add_tensors(c, opt->dtype, o, err));
    VPTQ_TRY(add_config(c, opt->dtype, o, err));
    VPTQ_TRY(
        vptq_out_add_tokenizer(o, c, opt->tokenizer, opt->dry_run ? NULL : opt->output, err));
    r->plain = (uint32_t)o->count;
    r->bytes = o->bytes;
    r->bits_per_weight = 8.0 * (double)vptq_dtype_get(opt->dtype)->bytes;
    if (!opt->dry_run)
        st = vptq_out_write_dir(o, opt->output, opt->force, opt->shard_bytes, fill, &u,
                                &r->bytes, err);
out:
    return st;
}

static vptq_status unpack_hf(vptq_device *dev, const vptq_pack_options *opt,
                             vptq_pack_result *r, vptq_err *err)
{
    vptq_checkpoint c;
    vptq_out out;
    const vptq_checkpoint_options open = {
        .tokenizer = opt->tokenizer, .base = opt->base, .shapes_only = true};
    vptq_status st = vptq_checkpoint_open(dev->ctx, opt->input, &open, &c, err);
    if (st)
        return st;
    vptq_out_init(&out, dev->ctx, &c, "unpack");
    st = write_plain(dev, &c, opt, &out, r, err);
    vptq_out_release(&out);
    vptq_checkpoint_release(&c);
    return st;
}

vptq_status vptq_unpack_model(vptq_device *dev, const vptq_pack_options *opt,
                              vptq_pack_result *r, vptq_err *err)
{
    double start = vptq_seconds();
    *r = (vptq_pack_result){0};
    vptq_status st = opt->form == VPTQ_PACK_GGUF ? vptq_unpack_gguf(dev, opt, r, err)
                                                 : unpack_hf(dev, opt, r, err);
    r->seconds = vptq_seconds() - start;
    return st;
}
