/* Unpacks any model to a plain Hugging Face directory; gguf.c does the same to a GGUF file. */
#include "lib/model/model.h"
#include "lib/pack/package.h"

typedef struct unpacking {
    vptq_device *dev;
    const vptq_package *out;
} unpacking;

static vptq_status fill(void *arg, const vptq_package_tensor *t, vptq_package_sink *s,
                        vptq_err *err)
{
    const unpacking *u = arg;
    for (size_t i = 0; i < t->part_count; i++)
        VPTQ_CHECK(fill(arg, &t->parts[i], s, err));
    if (t->part_count)
        return VPTQ_OK;
    return t->source.plain ? vptq_package_fill_plain(u->out, t, s, err)
                           : vptq_package_fill_rows(u->out, u->dev, t, s, err);
}

static vptq_status add_config(const vptq_checkpoint *c, vptq_dtype type, vptq_package *o,
                              vptq_err *err)
{
    json_t *config;
    VPTQ_CHECK(vptq_package_make_config(c, type, &config, err));
    vptq_status st = vptq_package_add_config(o, config, err);
    json_decref(config);
    return st;
}

static vptq_status write_plain(const vptq_checkpoint *c, const vptq_pack_options *opt,
                               vptq_package *o, vptq_pack_result *r, vptq_err *err)
{
    VPTQ_CHECK(vptq_package_check_output(o->ctx, c, opt, err));
    VPTQ_CHECK(vptq_package_add_dequantized(o, opt->dtype, opt->dtype, NULL, err));
    VPTQ_CHECK(vptq_package_fuse(o, err));
    VPTQ_CHECK(add_config(c, opt->dtype, o, err));
    VPTQ_CHECK(vptq_package_add_companions(o, c, opt->tokenizer,
                                           opt->dry_run ? NULL : opt->output, err));
    r->plain = (uint32_t)o->count;
    r->bytes = o->bytes;
    r->bits_per_weight = 8.0 * (double)vptq_dtype_get(opt->dtype)->bytes;
    VPTQ_CHECK(opt->dry_run ? vptq_package_estimate_dir(o, r, err)
                            : vptq_package_write_dir(o, opt->output, opt->force,
                                                     opt->shard_bytes, &r->bytes, err));
    vptq_package_summarize(o, opt->dry_run, r);
    return VPTQ_OK;
}

static vptq_status unpack_hf(vptq_device *dev, const vptq_pack_options *opt,
                             vptq_pack_result *r, vptq_err *err)
{
    vptq_model m;
    vptq_package out;
    vptq_package_loss loss = {0};
    if (opt->embeddings != VPTQ_DTYPE_COUNT)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--embeddings: a directory has one type for all numbers (--dtype); "
                         "write a GGUF file (OUT.gguf or --to gguf)");
    if (opt->dtype != VPTQ_F16 && opt->dtype != VPTQ_BF16 && opt->dtype != VPTQ_F32)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--dtype: a directory stores f16, bf16 or f32; write a GGUF file "
                         "(OUT.gguf or --to gguf)");
    const vptq_checkpoint_options open = {.tokenizer = opt->tokenizer,
                                          .base = opt->base,
                                          .partial = opt->partial,
                                          .shapes_only = true};
    /* opening it as a model finds what the architecture needs and the files lack */
    vptq_status st = vptq_model_open(dev->ctx, opt->input, &open, false, &m, err);
    if (st)
        return st;
    vptq_package_init(&out, dev->ctx, &m.ckpt, "unpack");
    unpacking u = {dev, &out};
    out.fill = fill;
    out.fill_arg = &u;
    out.loss = &loss;
    st = write_plain(&m.ckpt, opt, &out, r, err);
    vptq_package_release(&out);
    vptq_model_release(&m);
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
