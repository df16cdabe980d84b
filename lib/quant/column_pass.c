/* Columns are quantized one after another; the error of a column, divided by the factor's
 * diagonal, is pushed into the columns not yet done: z_s -= (z_t - q_t) / U_tt * U_ts for s >
 * t.  Inside a block the device does it column by column; what lies behind the block gets one
 * matrix product Z_rest -= U[block, rest]^T Err per block.  In the transposed layout a column
 * is one run of floats and its vectors are consecutive. */
#include "lib/quant/column_pass.h"

vptq_status vptq_column_pass(vptq_device *dev, size_t in, size_t rows, uint32_t v, uint32_t k,
                             float *z, const float *u, const float *centroids, uint32_t *idx,
                             float *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    float *e = vptq_mem_alloc(dev->ctx->mem, VPTQ_PASS_BLOCK * rows, sizeof *e, err);
    if (!e)
        return VPTQ_E_NOMEM;

    const vptq_books books = {.v = v, .k = k, .beam = 1, .centroids = centroids};
    vptq_finder *finder = NULL;
    VPTQ_TRY(dev->ops->finder_open(dev->state, &books, &finder, err));
    for (size_t i = 0; i < in; i += VPTQ_PASS_BLOCK) {
        size_t cols = in - i < VPTQ_PASS_BLOCK ? in - i : VPTQ_PASS_BLOCK;
        size_t rest = in - i - cols;
        vptq_pass_args p = {.cols = cols,
                            .rows = rows,
                            .finder = finder,
                            .z = z + i * rows,
                            .u = u + i * in + i,
                            .idx = idx + i * (rows / v),
                            .q = q + i * rows,
                            .err = e,
                            .ldz = rows,
                            .ldu = in,
                            .ldi = rows / v,
                            .ldq = rows,
                            .lde = rows};
        vptq_gemm_args g = {.m = rest,
                            .n = rows,
                            .k = cols,
                            .a = u + i * in + i + cols,
                            .b = e,
                            .c = z + (i + cols) * rows,
                            .lda = in,
                            .ldb = rows,
                            .ldc = rows,
                            .trans_a = true,
                            .alpha = -1,
                            .beta = 1};
        VPTQ_TRY(vptq_check_cancel(dev->ctx, err));
        VPTQ_TRY(dev->ops->vq_pass(dev->state, &p, err));
        if (rest)
            VPTQ_TRY(dev->ops->gemm(dev->state, &g, err));
    }
out:
    dev->ops->finder_close(dev->state, finder);
    vptq_mem_free(dev->ctx->mem, e);
    return st;
}
