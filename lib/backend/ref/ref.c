/* The `ref` table, and how its devices open, close and handle memory. */
#include "lib/backend/ref/ref.h"

#include <stdio.h>
#include <string.h>

#include "lib/backend/dev.h"

vptq_status vptq_ref_open(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err)
{
    vptq_dev *d = vptq_mem_alloc(ctx->mem, 1, sizeof *d, err);
    if (!d)
        return VPTQ_E_NOMEM;
    *d = (vptq_dev){.ctx = ctx, .threads = 1, .simd = VPTQ_SIMD_NONE};
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

void vptq_ref_libraries(vptq_dev *dev, char *text, size_t size)
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

vptq_status vptq_ref_sync(vptq_dev *dev, vptq_err *err)
{
    (void)dev;
    (void)err;
    return VPTQ_OK;
}

const vptq_backend vptq_backend_ref = {
    .name = "ref",
    .host_memory = true,
    .gemv_max_tokens = 8,
    .open = vptq_ref_open,
    .close = vptq_ref_close,
    .describe = ref_describe,
    .libraries = vptq_ref_libraries,
    .alloc = vptq_ref_alloc,
    .release = vptq_ref_release,
    .left = vptq_ref_left,
    .upload = vptq_ref_copy,
    .download = vptq_ref_copy,
    .sync = vptq_ref_sync,
    .gemm = vptq_ref_gemm,
    .syrk_add = vptq_ref_syrk_add,
    .potrf = vptq_ref_potrf,
    .trtri = vptq_ref_trtri,
    .quad_trace = vptq_ref_quad_trace,
    .assign = vptq_ref_assign,
    .reassign = vptq_ref_assign,
    .accumulate = vptq_ref_accumulate,
    .matrix_open = vptq_ref_matrix_open,
    .matrix_close = vptq_ref_matrix_close,
    .vq_dequant = vptq_ref_vq_dequant,
    .vq_gemv = vptq_ref_vq_gemv,
    .gemv = vptq_ref_gemv,
    .library_gemv = vptq_ref_library_gemv,
    .search_index_open = vptq_ref_search_index_open,
    .search_index_close = vptq_ref_search_index_close,
    .search = vptq_ref_search,
    .vq_pass = vptq_ref_vq_pass,
    .vq_descend = vptq_ref_vq_descend,
    .vq_gather = vptq_ref_vq_gather,
    .vq_scatter = vptq_ref_vq_scatter,
    .embed = vptq_ref_embed,
    .rmsnorm = vptq_ref_rmsnorm,
    .rope = vptq_ref_rope,
    .attention = vptq_ref_attention,
    .attention_mass = vptq_ref_attention_mass,
    .swiglu = vptq_ref_swiglu,
    .nll = vptq_ref_nll,
    .sample = vptq_ref_sample,
    .rope_rows = vptq_ref_rope_rows,
    .kv_store = vptq_ref_kv_store,
    .attention_paged = vptq_ref_attention_paged,
};
