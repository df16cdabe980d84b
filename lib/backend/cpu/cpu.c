/* The `cpu` table, and how its devices open and close. */
#include "lib/backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "lib/backend/cpu/blas.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/text.h"

static void cpu_close(vptq_dev *dev)
{
    if (!dev)
        return;
    if (dev->blas)
        vptq_blas_close(dev->blas);
    vptq_mem_free(dev->ctx->mem, dev->blas);
    vptq_ref_close(dev);
}

static vptq_status cpu_open(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err)
{
    VPTQ_CHECK(vptq_ref_open(ctx, dev, err));
    (*dev)->simd = vptq_cpu_simd();
    (*dev)->amx = vptq_cpu_amx();
    return VPTQ_OK;
}

static void cpu_describe(const vptq_dev *dev, char *text, size_t size)
{
    snprintf(text, size, "%s kernels, %d thread%s%s", vptq_simd_name(dev->simd),
             dev->ctx->threads, vptq_plural((uint64_t)dev->ctx->threads, "", "s"),
             dev->amx ? ", AMX" : "");
}

static void cpu_libraries(vptq_dev *dev, char *text, size_t size)
{
    const vptq_blas *blas = NULL;
    vptq_err err = {VPTQ_OK, ""};
    if (vptq_cpu_blas(dev, &blas, &err)) {
        snprintf(text, size, "%s", err.text);
        return;
    }
    const char *config = blas->config(); /* "OpenBLAS 0.3.21 option option ..." */
    int version = (int)strcspn(config, " ");
    if (config[version] == ' ')
        version += 1 + (int)strcspn(config + version + 1, " ");
    snprintf(text, size, "%.*s (%s)", version, config, blas->corename());
}

#define TABLE_OP(op) .op = vptq_cpu_##op,
static const vptq_backend cpu_table = {.name = "cpu",
                                       .host_memory = true,
                                       .gemv_max_tokens = 128,
                                       .open = cpu_open,
                                       .close = cpu_close,
                                       .describe = cpu_describe,
                                       .libraries = cpu_libraries,
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
                                       .reassign = vptq_cpu_reassign,
                                       VPTQ_BACKEND_OPS(TABLE_OP)};

const vptq_backend *vptq_backend_cpu(void)
{
    return &cpu_table;
}
