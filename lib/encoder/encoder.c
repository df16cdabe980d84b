/* The state of a matrix while it is encoded (encoder.h): its present Q, gradient, objective. */
#include "lib/encoder/encoder.h"

#include <math.h>
#include <string.h>

vptq_part vptq_part_mirror(vptq_mirror *m, const vptq_part *p, bool choices)
{
    const size_t n = p->cols * p->vector_rows, size = p->v * sizeof *p->main;
    const unsigned ways = VPTQ_MIRROR_THERE | (choices ? VPTQ_MIRROR_BACK : 0);
    vptq_part on = *p;

    on.main = vptq_mirror_take(m, p->main, p->k, size, VPTQ_MIRROR_THERE);
    on.res = vptq_mirror_take(m, p->res, p->k_res, size, VPTQ_MIRROR_THERE);
    on.idx = vptq_mirror_take(m, p->idx, n, sizeof *p->idx, ways);
    on.idx_res = vptq_mirror_take(m, p->idx_res, n, sizeof *p->idx_res, ways);
    return on;
}

vptq_status vptq_part_gather(vptq_encoder *c, const vptq_part *p, const float *main,
                             const float *res, float *q, vptq_err *err)
{
    vptq_gather_args g = {.cols = p->cols,
                          .rows = p->rows,
                          .v = p->v,
                          .k = p->k,
                          .k_res = p->k_res,
                          .centroids = main,
                          .res_centroids = res,
                          .idx = p->idx,
                          .idx_res = p->idx_res,
                          .q = q + p->first * c->rows,
                          .ldi = p->vector_rows,
                          .ldq = c->rows};
    return c->dev->ops->vq_gather(c->dev->state, &g, err);
}

vptq_status vptq_encoder_gather(vptq_encoder *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(c->dev);
    float *q = vptq_mirror_take(&m, c->q, (size_t)c->in * c->rows, sizeof *q,
                                VPTQ_MIRROR_THERE | VPTQ_MIRROR_BACK);
    for (uint32_t i = 0; i < c->parts && !st; i++) {
        const vptq_part on = vptq_part_mirror(&m, &c->part[i], false);
        st = vptq_mirror_check(&m, err);
        if (!st)
            st = vptq_part_gather(c, &on, on.main, on.res, q, err);
    }
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_encoder_multiply(vptq_encoder *c, const float *h, const float *e, float *g,
                                  vptq_err *err)
{
    vptq_gemm_args mm = {.m = c->in,
                         .n = c->rows,
                         .k = c->in,
                         .a = h,
                         .b = e,
                         .c = g,
                         .lda = c->in,
                         .ldb = c->rows,
                         .ldc = c->rows,
                         .alpha = 1};
    vptq_status st = vptq_check_cancel(c->dev->ctx, err);
    return st ? st : c->dev->ops->gemm(c->dev->state, &mm, err);
}

vptq_status vptq_encoder_product(vptq_encoder *c, const float *h, const float *e, float *g,
                                 vptq_err *err)
{
    const size_t n = (size_t)c->in * c->rows;
    vptq_mirror m = vptq_mirror_of(c->dev);
    const float *hd = vptq_mirror_in(&m, h, (size_t)c->in * c->in, sizeof *h);
    const float *ed = vptq_mirror_in(&m, e, n, sizeof *e);
    float *gd = vptq_mirror_take(&m, g, n, sizeof *g, VPTQ_MIRROR_BACK);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_encoder_multiply(c, hd, ed, gd, err);
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_encoder_gradient(vptq_encoder *c, vptq_err *err)
{
    size_t n = (size_t)c->in * c->rows;

    for (size_t i = 0; i < n; i++)
        c->e[i] = c->q[i] - c->z[i];
    vptq_status st = vptq_encoder_product(c, c->h, c->e, c->g, err);
    if (st)
        return st;
    c->objective = 0;
    for (size_t p = 0; p < c->in; p++) {
        double column = 0;
        for (size_t r = p * c->rows; r < (p + 1) * c->rows; r++)
            column += (double)c->e[r] * (double)c->g[r];
        c->objective += column;
    }
    return VPTQ_OK;
}

static vptq_status round_codebook(vptq_encoder *c, size_t n, float *codebook, float **before,
                                  vptq_err *err)
{
    *before = vptq_arena_alloc(c->keep, n, sizeof **before, err);
    if (!*before)
        return VPTQ_E_NOMEM;
    memcpy(*before, codebook, n * sizeof *codebook);
    vptq_round_to_n(c->s->storage, codebook, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(codebook[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "a centroid of %g does not fit into %s",
                             (double)(*before)[i], vptq_dtype_get(c->s->storage)->name);
    return VPTQ_OK;
}

vptq_status vptq_encoder_round(vptq_encoder *c, vptq_err *err)
{
    for (uint32_t i = 0; i < c->parts; i++) {
        vptq_part *p = &c->part[i];
        vptq_status st = round_codebook(c, (size_t)p->k * p->v, p->main, &p->main_f32, err);
        if (!st && p->k_res)
            st = round_codebook(c, (size_t)p->k_res * p->v, p->res, &p->res_f32, err);
        if (st)
            return st;
    }
    c->rounded = true;
    return VPTQ_OK;
}

void vptq_encoder_normalize(vptq_encoder *c)
{
    const float *lower = c->input->metric ? c->input->metric : c->input->lower;

    vptq_metric_rescale(&c->metric, c->s->ridge, lower);
    vptq_metric_normalize(&c->metric, c->out, c->rows, c->input->w, c->z);
    vptq_metric_full(&c->metric, false, c->s->ridge, lower, c->h);
    for (size_t p = 0; p < c->in; p++) {
        c->diag[p] = (float)(c->metric.diag[c->metric.order[p]] + c->damped);
        if (c->damped > 0)
            c->h[p * c->in + p] = c->diag[p];
    }
}
