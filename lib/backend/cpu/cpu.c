/* The `cpu` table, and how its devices open and close. */
#include "lib/backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "lib/backend/cpu/blas.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

static void cpu_close(vptq_dev *dev)
{
    if (!dev)
        return;
    vptq_blas_close(dev->blas);
    vptq_mem_free(dev->ctx->mem, dev->blas);
    vptq_ref_close(dev);
}

static vptq_status cpu_open(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err)
{
    vptq_dev *d = NULL;
    vptq_status st = vptq_ref_open(ctx, &d, err);
    if (st)
        return st;
    d->threads = ctx->threads;
    d->simd = vptq_cpu_simd();
    d->blas = vptq_mem_alloc(ctx->mem, 1, sizeof *d->blas, err);
    st = d->blas ? vptq_blas_open(d->blas, d->simd, err) : VPTQ_E_NOMEM;
    if (st) {
        vptq_mem_free(ctx->mem, d->blas);
        vptq_ref_close(d);
        return st;
    }
    *dev = d;
    return VPTQ_OK;
}

static void cpu_describe(const vptq_dev *dev, char *text, size_t size)
{
    const char *config = dev->blas->config(); /* "OpenBLAS 0.3.21 option option ..." */
    int version = (int)strcspn(config, " ");
    if (config[version] == ' ')
        version += 1 + (int)strcspn(config + version + 1, " ");
    snprintf(text, size, "%s kernels, %.*s (%s), %d thread%s", vptq_simd_name(dev->simd),
             version, config, dev->blas->corename(), dev->threads,
             dev->threads == 1 ? "" : "s");
}

#define TABLE_OP(op) .op = vptq_cpu_##op,
static const vptq_backend cpu_table = {.name = "cpu",
                                       .host_memory = true,
                                       .gemv_max_tokens = 128,
                                       .open = cpu_open,
                                       .close = cpu_close,
                                       .describe = cpu_describe,
                                       .libraries = vptq_ref_libraries,
                                       .alloc = vptq_ref_alloc,
                                       .release = vptq_ref_release,
                                       .left = vptq_ref_left,
                                       .upload = vptq_ref_copy,
                                       .download = vptq_ref_copy,
                                       .sync = vptq_ref_sync,
                                       .reassign = vptq_cpu_reassign,
                                       VPTQ_BACKEND_OPS(TABLE_OP)};

const vptq_backend *vptq_backend_cpu(void)
{
    return &cpu_table;
}
