/* The present solution of a matrix while it is encoded: Q, its gradient and the objective. */
#include "lib/encoder/encoder.h"

vptq_status vptq_encoder_open(vptq_encoder *enc, vptq_err *err)
{
    float **array[] = {&enc->q, &enc->e, &enc->g};

    for (size_t i = 0; i < sizeof array / sizeof *array; i++) {
        *array[i] = vptq_arena_zalloc(
            &enc->scratch, (size_t)enc->problem.in * enc->problem.rows, sizeof(float), err);
        if (!*array[i])
            return VPTQ_E_NOMEM;
    }
    return vptq_losses_open(enc, err);
}

vptq_status vptq_encoder_gather(vptq_encoder *enc, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_columns *l = &enc->columns;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    float *q = vptq_mirror_take(&m, enc->q, (size_t)enc->problem.in * l->rows, sizeof *q,
                                VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    for (uint32_t i = 0; i < l->num_groups; i++) {
        const vptq_column_group on = vptq_group_mirror(&m, &l->groups[i], false);
        VPTQ_TRY(vptq_mirror_check(&m, err));
        VPTQ_TRY(vptq_group_gather(enc->dev, &on, on.main, on.res, q, l->rows, err));
    }
out:
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_encoder_multiply(const vptq_encoder *enc, const float *h, const float *e,
                                  float *g, vptq_err *err)
{
    const size_t in = enc->problem.in, rows = enc->problem.rows;
    const vptq_gemm_args args = {.m = in,
                                 .n = rows,
                                 .k = in,
                                 .a = h,
                                 .b = e,
                                 .c = g,
                                 .lda = in,
                                 .ldb = rows,
                                 .ldc = rows,
                                 .alpha = 1};
    VPTQ_CHECK(vptq_check_cancel(enc->dev->ctx, err));
    return enc->dev->ops->gemm(enc->dev->state, &args, err);
}

vptq_status vptq_encoder_product(const vptq_encoder *enc, const float *h, const float *e,
                                 float *g, vptq_err *err)
{
    const size_t in = enc->problem.in, n = in * enc->problem.rows;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    const float *hd = vptq_mirror_in(&m, h, in * in, sizeof *h);
    const float *ed = vptq_mirror_in(&m, e, n, sizeof *e);
    float *gd = vptq_mirror_take(&m, g, n, sizeof *g, VPTQ_MIRROR_DOWNLOAD);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_encoder_multiply(enc, hd, ed, gd, err);
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_encoder_gradient(vptq_encoder *enc, vptq_err *err)
{
    const size_t in = enc->problem.in, rows = enc->problem.rows;

    for (size_t i = 0; i < in * rows; i++)
        enc->e[i] = enc->q[i] - enc->problem.z[i];
    VPTQ_CHECK(vptq_encoder_product(enc, enc->problem.h, enc->e, enc->g, err));
    enc->objective = 0;
    for (size_t p = 0; p < in; p++) {
        double column = 0;
        for (size_t r = p * rows; r < (p + 1) * rows; r++)
            column += (double)enc->e[r] * (double)enc->g[r];
        enc->objective += column;
    }
    return VPTQ_OK;
}

vptq_status vptq_encoder_update(vptq_encoder *enc, vptq_err *err)
{
    VPTQ_CHECK(vptq_encoder_gather(enc, err));
    return vptq_encoder_gradient(enc, err);
}
