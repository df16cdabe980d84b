/* The public functions on packed models: each opens the device of its context for an operation
 * of lib/pack. */
#include <string.h>

#include "lib/pack/pack.h"
#include "lib/vptq_internal.h"

/* Lists the input of a dry run, once it is known to succeed. */
static vptq_status list_input(const vptq_ctx *ctx, const vptq_pack_options *opt,
                              const vptq_output *out, vptq_err *err)
{
    const vptq_model_options open = {.tokenizer = opt->tokenizer, .base = opt->base};
    return opt->dry_run ? vptq_list(ctx, opt->input, &open, out, err) : VPTQ_OK;
}

vptq_status vptq_pack(const vptq_ctx *ctx, const vptq_pack_options *opt, const vptq_output *out,
                      vptq_err *err)
{
    vptq_pack_result r;
    VPTQ_CHECK(vptq_pack_check_work(opt->input, opt->base, opt->partial, err));
    VPTQ_CHECK(vptq_pack_model(ctx, opt, &r, err));
    VPTQ_CHECK(list_input(ctx, opt, out, err));
    return vptq_pack_report(opt, false, &r, out, err);
}

vptq_status vptq_unpack(vptq_ctx *ctx, const vptq_pack_options *opt, const vptq_output *out,
                        vptq_err *err)
{
    vptq_device *dev;
    vptq_pack_result r;
    VPTQ_CHECK(vptq_pack_check_work(opt->input, opt->base, opt->partial, err));
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    VPTQ_CHECK(vptq_unpack_model(dev, opt, &r, err));
    VPTQ_CHECK(list_input(ctx, opt, out, err));
    return vptq_pack_report(opt, true, &r, out, err);
}

vptq_status vptq_check(vptq_ctx *ctx, const char *path, const vptq_model_options *open,
                       const vptq_output *out, uint32_t *errors, vptq_err *err)
{
    vptq_device *dev;
    const vptq_checkpoint_options opt = vptq_model_checkpoint_options(open);
    VPTQ_CHECK(vptq_pack_check_work(path, opt.base, opt.partial, err));
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_check_report(dev, path, &opt, out, errors, err);
}

vptq_status vptq_digest(const vptq_ctx *ctx, const char *path, const vptq_model_options *open,
                        const vptq_output *out, char digest[VPTQ_DIGEST_SIZE], vptq_err *err)
{
    vptq_digest_result r;
    const vptq_checkpoint_options opt = vptq_model_checkpoint_options(open);
    VPTQ_CHECK(vptq_pack_check_work(path, opt.base, opt.partial, err));
    VPTQ_CHECK(vptq_digest_model(ctx, path, &opt, NULL, &r, err));
    if (!*r.digest)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %u of %u matrices are quantized; a digest needs all of them",
                         path, r.matrices, r.all_matrices);
    if (digest)
        memcpy(digest, r.digest, VPTQ_DIGEST_SIZE);
    return vptq_digest_report(&r, out, err);
}
