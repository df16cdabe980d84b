/* Opens a backend by name; decoding into host memory; the scratch area of host backends. */
#include "lib/backend/backend.h"

#include <stdio.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/backend/mirror.h"

enum { MAX_DESCRIPTION = 256, MAX_BACKENDS = 4 };

static const vptq_backend *registered;

void vptq_backend_register(const vptq_backend *backend)
{
    VPTQ_BUG_IF(registered != NULL); /* a program registers one at most */
    registered = backend;
}

/* Lists the backends of this program, the fastest first; "auto" considers the first *automatic
 * of them. */
static size_t backends(const vptq_backend *list[MAX_BACKENDS], size_t *automatic)
{
    size_t n = 0;
#ifdef VPTQ_CUDA
    list[n++] = vptq_backend_cuda();
#endif
    list[n++] = vptq_backend_cpu();
    *automatic = n;
    list[n++] = &vptq_backend_ref;
    if (registered)
        list[n++] = registered;
    return n;
}

static vptq_status no_such_backend(const char *name, vptq_err *err)
{
    const vptq_backend *list[MAX_BACKENDS];
    char names[64] = "auto";
    size_t automatic, n = backends(list, &automatic), used = strlen(names);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 i + 1 < n ? ", " : " and ", list[i]->name);
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "backend \"%s\" is not in this build, which has %s", name, names);
}

static vptq_status open_one(const vptq_ctx *ctx, const vptq_backend *backend, bool automatic,
                            vptq_device *dev, vptq_err *err)
{
    vptq_dev *state = NULL;
    const vptq_status st = backend->open(ctx, &state, err);
    if (st)
        return st;
    *dev = (vptq_device){.ops = backend, .state = state, .ctx = ctx};

    char text[MAX_DESCRIPTION];
    backend->describe(state, text, sizeof text);
    vptq_log(ctx, VPTQ_LOG_MORE, "backend %s%s: %s", backend->name,
             automatic ? " (automatic)" : "", text);
    return VPTQ_OK;
}

/* Opens the first backend whose device works. */
static vptq_status open_automatically(const vptq_ctx *ctx, vptq_device *dev, vptq_err *err)
{
    const vptq_backend *list[MAX_BACKENDS];
    size_t automatic;
    vptq_status st = VPTQ_E_UNSUPPORTED;
    (void)backends(list, &automatic);
    for (size_t i = 0; i < automatic; i++) {
        st = open_one(ctx, list[i], true, dev, err);
        if (st != VPTQ_E_DEVICE || i + 1 == automatic)
            break;
        vptq_log(ctx, VPTQ_LOG_MORE, "backend %s is skipped: %s", list[i]->name, err->text);
    }
    return st;
}

vptq_status vptq_device_open(const vptq_ctx *ctx, const char *name, vptq_device *dev,
                             vptq_err *err)
{
    const vptq_backend *list[MAX_BACKENDS];
    size_t automatic;
    const size_t n = backends(list, &automatic);

    memset(dev, 0, sizeof *dev);
    if (strcmp(name, "auto") == 0)
        return open_automatically(ctx, dev, err);
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]->name) == 0)
            return open_one(ctx, list[i], false, dev, err);
    return no_such_backend(name, err);
}

void vptq_device_close(vptq_device *dev)
{
    if (dev->ops)
        dev->ops->close(dev->state);
    memset(dev, 0, sizeof *dev);
}

vptq_status vptq_device_decode(vptq_device *dev, const vptq_vq *q, size_t r0, size_t n,
                               float *w, size_t ldw, vptq_err *err)
{
    vptq_matrix *matrix = NULL;
    vptq_mirror m = vptq_mirror_of(dev);
    const size_t count = n ? (n - 1) * ldw + q->shape.in : 0;
    float *device =
        vptq_mirror_take(&m, w, count, sizeof *w,
                         VPTQ_MIRROR_DOWNLOAD | (ldw > q->shape.in ? VPTQ_MIRROR_UPLOAD : 0));
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->matrix_open(dev->state, q, &matrix, err);
    if (!st)
        st = dev->ops->vq_dequant(dev->state, matrix, r0, n, device, ldw, err);
    dev->ops->matrix_close(dev->state, matrix);
    return vptq_mirror_end(&m, st, err);
}

void *vptq_dev_scratch(vptq_dev *dev, size_t count, size_t size, vptq_err *err)
{
    size_t bytes = 0;
    if (!vptq_size_mul(count, size, &bytes)) {
        vptq_fail(err, VPTQ_E_NOMEM, "a work area of %zu x %zu bytes is too large", count,
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
