/* Opening a backend by name, and the scratch area that host backends share. */
#include "lib/backend/backend.h"

#include <string.h>

#include "lib/backend/dev.h"

enum { DESCRIPTION = 256 };

vptq_status vptq_device_open(const vptq_ctx *ctx, const char *name, vptq_device *dev,
                             vptq_err *err)
{
    const vptq_backend *const backends[] = {vptq_backend_cpu(), &vptq_backend_ref};
    const vptq_backend *chosen = NULL;
    const bool automatic = strcmp(name, "auto") == 0;

    memset(dev, 0, sizeof *dev);
    if (automatic)
        chosen = backends[0];
    for (size_t i = 0; !chosen && i < sizeof backends / sizeof *backends; i++)
        if (strcmp(name, backends[i]->name) == 0)
            chosen = backends[i];
    if (!chosen)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "backend \"%s\" is not in this build, which has auto, cpu and ref",
                         name);

    vptq_dev *state = NULL;
    const vptq_status st = chosen->open(ctx, &state, err);
    if (st)
        return st;
    *dev = (vptq_device){.ops = chosen, .state = state, .ctx = ctx};

    char text[DESCRIPTION];
    chosen->describe(state, text, sizeof text);
    vptq_log(ctx, VPTQ_LOG_MORE, "backend %s%s: %s", chosen->name,
             automatic ? " (automatic)" : "", text);
    return VPTQ_OK;
}

void vptq_device_close(vptq_device *dev)
{
    if (dev->ops)
        dev->ops->close(dev->state);
    memset(dev, 0, sizeof *dev);
}

void *vptq_dev_scratch(vptq_dev *dev, size_t count, size_t size, vptq_err *err)
{
    size_t bytes = 0;
    if (!vptq_size_mul(count, size, &bytes)) {
        vptq_fail(err, VPTQ_E_NOMEM, "a working area of %zu x %zu bytes is too large", count,
                  size);
        return NULL;
    }
    if (dev->scratch && bytes <= dev->scratch_bytes)
        return dev->scratch;
    vptq_mem_free(dev->ctx->mem, dev->scratch);
    dev->scratch_bytes = 0;
    dev->scratch = vptq_mem_alloc(dev->ctx->mem, bytes, 1, err);
    if (dev->scratch)
        dev->scratch_bytes = bytes;
    return dev->scratch;
}
