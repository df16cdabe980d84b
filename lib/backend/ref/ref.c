/* The `ref` table, and how its devices open, close and handle memory. */
#include "lib/backend/ref/ref.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/backend/dev.h"

vptq_status vptq_ref_open(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err)
{
    vptq_dev *d = vptq_mem_alloc(ctx->mem, 1, sizeof *d, err);
    if (!d)
        return VPTQ_E_NOMEM;
    *d = (vptq_dev){.ctx = ctx, .simd = VPTQ_SIMD_NONE};
    *dev = d;
    return VPTQ_OK;
}

void vptq_ref_close(vptq_dev *dev)
{
    if (!dev)
        return;
    vptq_mem *mem = dev->ctx->mem;
    vptq_mem_free(mem, dev->scratch);
    vptq_mem_free(mem, dev);
}

static void ref_libraries(vptq_dev *dev, char *text, size_t size)
{
    (void)dev;
    snprintf(text, size, "%s", "");
}

static void ref_describe(const vptq_dev *dev, char *text, size_t size)
{
    (void)dev;
    snprintf(text, size, "plain C, sums in double, 1 thread");
}

vptq_status vptq_ref_alloc(vptq_dev *dev, size_t count, size_t size, void **ptr, vptq_err *err)
{
    *ptr = vptq_mem_alloc(dev->ctx->mem, count, size, err);
    return *ptr ? VPTQ_OK : VPTQ_E_NOMEM;
}

size_t vptq_ref_left(const vptq_dev *dev)
{
    return vptq_mem_left(dev->ctx->mem);
}

void vptq_ref_release(vptq_dev *dev, void *ptr)
{
    vptq_mem_free(dev->ctx->mem, ptr);
}

vptq_status vptq_ref_copy(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                          vptq_err *err)
{
    (void)dev;
    (void)err;
    if (bytes)
        memcpy(dst, src, bytes);
    return VPTQ_OK;
}

vptq_status vptq_ref_clear(vptq_dev *dev, void *dst, size_t bytes, vptq_err *err)
{
    (void)dev;
    (void)err;
    if (bytes)
        memset(dst, 0, bytes);
    return VPTQ_OK;
}

vptq_status vptq_ref_sync(vptq_dev *dev, vptq_err *err)
{
    (void)dev;
    (void)err;
    return VPTQ_OK;
}

size_t vptq_ref_cache_bytes(const vptq_dev *dev)
{
    long bytes = -1;
    (void)dev;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : 0;
}

vptq_status vptq_ref_measure(vptq_dev *dev, vptq_work_fn *fn, void *arg, double *seconds,
                             vptq_err *err)
{
    (void)dev;
    const double start = vptq_seconds();
    const vptq_status st = fn(arg, err);
    *seconds = vptq_seconds() - start;
    return st;
}

vptq_status vptq_ref_library_half(vptq_dev *dev, const vptq_half_args *a, vptq_err *err)
{
    (void)dev;
    (void)a;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED, "no library multiplies float16 in host memory");
}

#define TABLE_OP(op) .op = vptq_ref_##op,
const vptq_backend vptq_backend_ref = {.name = "ref",
                                       .host_memory = true,
                                       .gemv_max_tokens = 8,
                                       .open = vptq_ref_open,
                                       .close = vptq_ref_close,
                                       .describe = ref_describe,
                                       .libraries = ref_libraries,
                                       .alloc = vptq_ref_alloc,
                                       .release = vptq_ref_release,
                                       .left = vptq_ref_left,
                                       .upload = vptq_ref_copy,
                                       .upload_new = vptq_ref_copy,
                                       .download = vptq_ref_copy,
                                       .copy = vptq_ref_copy,
                                       .clear = vptq_ref_clear,
                                       .sync = vptq_ref_sync,
                                       .cache_bytes = vptq_ref_cache_bytes,
                                       .measure = vptq_ref_measure,
                                       .library_half = vptq_ref_library_half,
                                       .reassign = vptq_ref_assign,
                                       VPTQ_BACKEND_OPS(TABLE_OP)};
