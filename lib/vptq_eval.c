/* The public functions that measure models: each opens the device of its context for an
 * operation of a module. */
#include "lib/ablate/ablate.h"
#include "lib/bench/gemv.h"
#include "lib/bench/serve.h"
#include "lib/eval/error.h"
#include "lib/eval/generate.h"
#include "lib/eval/kld.h"
#include "lib/eval/tasks.h"
#include "lib/vptq_internal.h"

vptq_status vptq_perplexity(vptq_ctx *ctx, const vptq_model *m, const vptq_ppl_options *opt,
                            const vptq_output *out, vptq_ppl_result *results, vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_texts(dev, m, opt, out, results, err);
}

vptq_status vptq_divergence(vptq_ctx *ctx, const vptq_model *m, const vptq_model *base,
                            const vptq_kld_options *opt, const vptq_output *out,
                            vptq_kld_result *result, vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_divergence(dev, m, base, opt, out, result, err);
}

vptq_status vptq_score_tasks(vptq_ctx *ctx, const vptq_model *m, const vptq_model *base,
                             const vptq_task_options *opt, const vptq_output *out,
                             vptq_task_result *results, vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_tasks(dev, m, base, opt, out, results, err);
}

vptq_status vptq_measure_error(vptq_ctx *ctx, const vptq_model *m, const vptq_model *base,
                               const vptq_error_options *opt, const vptq_output *out,
                               vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_error_report(dev, m, base, opt, out, err);
}

vptq_status vptq_generate(vptq_ctx *ctx, const vptq_model *m, const vptq_generate_options *opt,
                          const vptq_output *out, vptq_generate_result *result, vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_reply(dev, m, opt, out, result, err);
}

vptq_status vptq_gemv(vptq_ctx *ctx, const vptq_gemv_options *opt, const vptq_output *out,
                      vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_gemv_table(dev, opt, out, err);
}

vptq_status vptq_serve(vptq_ctx *ctx, const vptq_serve_options *opt, const vptq_output *out,
                       vptq_err *err)
{
    return vptq_eval_serve_table(ctx, vptq_ctx_backend_name(ctx), opt, out, err);
}

vptq_status vptq_ablate(vptq_ctx *ctx, const vptq_ablate_options *opt, const vptq_output *out,
                        vptq_err *err)
{
    vptq_device *dev;
    VPTQ_CHECK(vptq_ctx_device(ctx, &dev, err));
    return vptq_eval_ablate(dev, opt, out, err);
}
