/* The present solution of a matrix while it is encoded: Q, its gradient and the objective. */
#include "lib/encoder/encoder.h"

vptq_status vptq_encoder_open(vptq_encoder *enc, vptq_err *err)
{
    const vptq_device *dev = enc->dev;
    vptq_mirror *m = &enc->arrays;
    const size_t in = enc->problem.in, n = in * enc->problem.rows;

    enc->sums = vptq_arena_alloc(&enc->scratch, 2 * in, sizeof *enc->sums, err);
    if (!enc->sums)
        return VPTQ_E_NOMEM;
    enc->q = vptq_mirror_alloc(m, n, sizeof *enc->q);
    enc->e = vptq_mirror_alloc(m, n, sizeof *enc->e);
    enc->g = vptq_mirror_alloc(m, n, sizeof *enc->g);
    enc->on_sums = vptq_mirror_take(m, enc->sums, 2 * in, sizeof *enc->sums, 0);
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(dev->ops->clear(dev->state, enc->q, n * sizeof *enc->q, err));
    VPTQ_CHECK(dev->ops->clear(dev->state, enc->e, n * sizeof *enc->e, err));
    return vptq_losses_open(enc, err);
}

vptq_status vptq_encoder_gather(vptq_encoder *enc, vptq_err *err)
{
    const vptq_columns *l = &enc->columns;

    for (uint32_t i = 0; i < l->num_groups; i++) {
        const vptq_column_group *g = &l->groups[i];
        VPTQ_CHECK(vptq_group_gather(enc->dev, g, g->main, g->res, enc->q, l->rows, err));
    }
    return VPTQ_OK;
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

vptq_status vptq_encoder_apply(vptq_encoder *enc, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;

    if (!enc->output.k)
        return vptq_encoder_multiply(enc, p->h, enc->e, enc->g, err);
    VPTQ_CHECK(vptq_encoder_multiply(enc, p->h, enc->e, enc->output.plain, err));
    return vptq_output_multiply(enc, p->in, p->rows, enc->output.plain, enc->g, err);
}

vptq_status vptq_encoder_dots(const vptq_encoder *enc, size_t rows, const float *x,
                              const float *y, double *sums, vptq_err *err)
{
    const vptq_dots_args args = {.cols = enc->problem.in,
                                 .rows = rows,
                                 .x = x,
                                 .y = y,
                                 .ldx = enc->problem.rows,
                                 .ldy = enc->problem.rows,
                                 .sums = sums};
    return enc->dev->ops->column_dots(enc->dev->state, &args, err);
}

vptq_status vptq_encoder_dot(vptq_encoder *enc, size_t rows, const float *x, const float *y,
                             double *sum, vptq_err *err)
{
    const size_t in = enc->problem.in;

    VPTQ_CHECK(vptq_encoder_dots(enc, rows, x, y, enc->on_sums, err));
    VPTQ_CHECK(vptq_mirror_pull(&enc->arrays, enc->sums, in * sizeof *enc->sums, err));
    *sum = 0;
    for (size_t p = 0; p < in; p++)
        *sum += enc->sums[p];
    return VPTQ_OK;
}

vptq_status vptq_encoder_gradient(vptq_encoder *enc, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    const vptq_subtract_args error = {.cols = p->in,
                                      .rows = p->rows,
                                      .x = enc->q,
                                      .y = p->z,
                                      .z = enc->e,
                                      .ldx = p->rows,
                                      .ldy = p->rows,
                                      .ldz = p->rows};

    VPTQ_CHECK(enc->dev->ops->subtract(enc->dev->state, &error, err));
    VPTQ_CHECK(vptq_encoder_apply(enc, err));
    return vptq_encoder_dot(enc, p->rows, enc->e, enc->g, &enc->objective, err);
}

vptq_status vptq_encoder_update(vptq_encoder *enc, vptq_err *err)
{
    VPTQ_CHECK(vptq_encoder_gather(enc, err));
    return vptq_encoder_gradient(enc, err);
}
