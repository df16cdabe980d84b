/* Estimates serving (lib/eval/decode_estimate.h). */
#include <math.h>

#include "lib/base/ctx.h"
#include "lib/bench/serve.h"
#include "lib/eval/decode_estimate.h"

static const double target_seconds = 1; /* of a model and kind of group, all configurations */

static vptq_decode_load load_of(const vptq_serve_config *c)
{
    return (vptq_decode_load){c->batch, c->input, c->output};
}

/* Adds the time of one model under one configuration, and the memory. */
static vptq_status add_model(vptq_device *dev, const vptq_serve_plan *o, const vptq_model *m,
                             const vptq_serve_config *c, double *seconds, double *memory,
                             vptq_err *err)
{
    const vptq_batch_options batch = vptq_serve_batch_options(c, o->kv, 0);
    const vptq_serve_config first = vptq_serve_warm_up(c);
    const vptq_decode_load run = load_of(c), warm_up = load_of(&first);
    vptq_serve_need need;
    vptq_decode_times t;
    VPTQ_CHECK(vptq_serve_need_of(m, c, o->kv, &need, err));
    VPTQ_CHECK(vptq_decode_measure(dev, m, &run, &batch,
                                   target_seconds / (double)o->config_count, &t, err));
    *seconds +=
        o->runs * vptq_decode_seconds(&t, &run) + o->warmup * vptq_decode_seconds(&t, &warm_up);
    *memory += (double)need.cache + (double)need.working + t.packed_bytes;
    return VPTQ_OK;
}

static vptq_status add_all(vptq_device *dev, const vptq_serve_plan *o, vptq_estimate *e,
                           vptq_err *err)
{
    double most = 0;
    for (size_t c = 0; c < o->config_count; c++) {
        double memory = 0; /* of all models at the same time */
        for (size_t i = 0; i < o->model_count; i++)
            VPTQ_CHECK(add_model(dev, o, o->models[i].model, &o->configs[c], &e->seconds,
                                 &memory, err));
        most = fmax(most, memory);
    }
    e->memory_bytes += (uint64_t)most;
    return VPTQ_OK;
}

vptq_status vptq_serve_estimate(const vptq_ctx *ctx, const vptq_serve_plan *o, vptq_estimate *e,
                                vptq_err *err)
{
    vptq_device dev;
    *e = vptq_estimate_make(NULL);
    e->seconds = 0;
    e->memory_bytes = ctx->mem ? ctx->mem->used : 0;
    vptq_estimate_leave_out(e, "loading");
    VPTQ_CHECK(vptq_device_open(ctx, o->backend, &dev, err));
    const vptq_status st = add_all(&dev, o, e, err);
    vptq_device_close(&dev);
    return st;
}
