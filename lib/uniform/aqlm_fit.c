/* Least squares over codebooks and scales of AQLM (aqlm_state.h).
 *
 * With fixed codes Z is linear in the codebooks C: Z = G(C), and with S = diag(scales) the loss
 * tr((S Z - W) H (S Z - W)^T) is smallest where G^T(S (S G(C) - W) H) = 0; G^T adds up per
 * entry.  Conjugate gradients from the present codebooks, preconditioned by the diagonal of
 * that system.  An entry without uses stays as it is.  Codebooks that can shift against each
 * other make the system singular, which conjugate gradients tolerate.  The scale of a row is
 * then (z H w) / (z H z). */
#include <string.h>

#include "lib/backend/conjugate.h"
#include "lib/base/parallel.h"
#include "lib/uniform/aqlm_state.h"
#include "lib/uniform/metric.h"

enum { ROWS = 16 };

typedef struct fitting {
    const vptq_aqlm_state *a;
    int iterations;
    vptq_conjugate cg; /* unknowns: the codebooks */
    /* on the device */
    const uint32_t *codes;
    const float *h, *scales, *squares; /* squares of the scales */
    float *q, *qh;                     /* [out, in] */
} fitting;

/* sums = G^T(y), rows multiplied by `weight`. */
static vptq_status scatter(const fitting *f, const float *y, const float *weight, double *sums,
                           vptq_err *err)
{
    const vptq_aqlm_state *a = f->a;
    const size_t out = a->input->out, in = a->input->in;
    for (size_t m = 0; m < a->s->codebooks; m++) {
        const vptq_scatter_args s = {.cols = out,
                                     .rows = in,
                                     .v = a->s->v,
                                     .k = a->s->k,
                                     .y = y,
                                     .weight = weight,
                                     .idx = f->codes + m * out * a->vectors,
                                     .sums = sums + m * a->s->k * a->s->v,
                                     .ldy = in,
                                     .ldi = a->vectors};
        VPTQ_CHECK(a->dev->ops->vq_scatter(a->dev->state, &s, err));
    }
    return VPTQ_OK;
}

/* qh = G(C) H: codebooks are decoded two at a time, and products add up. */
static vptq_status gather_product(const fitting *f, const float *codebooks, vptq_err *err)
{
    const vptq_aqlm_state *a = f->a;
    const size_t out = a->input->out, in = a->input->in, size = (size_t)a->s->k * a->s->v;
    for (size_t m = 0; m < a->s->codebooks; m += 2) {
        const bool two = m + 1 < a->s->codebooks;
        const uint32_t *codes = f->codes + m * out * a->vectors;
        const vptq_gather_args g = {.cols = out,
                                    .rows = in,
                                    .v = a->s->v,
                                    .k = a->s->k,
                                    .k_res = two ? a->s->k : 0,
                                    .centroids = codebooks + m * size,
                                    .res_centroids = two ? codebooks + (m + 1) * size : NULL,
                                    .idx = codes,
                                    .idx_res = two ? codes + out * a->vectors : NULL,
                                    .q = f->q,
                                    .ldi = a->vectors,
                                    .ldq = in};
        const vptq_gemm_args product = {.m = out,
                                        .n = in,
                                        .k = in,
                                        .a = f->q,
                                        .b = f->h,
                                        .c = f->qh,
                                        .lda = in,
                                        .ldb = in,
                                        .ldc = in,
                                        .alpha = 1,
                                        .beta = m ? 1 : 0};
        VPTQ_CHECK(a->dev->ops->vq_gather(a->dev->state, &g, err));
        VPTQ_CHECK(a->dev->ops->gemm(a->dev->state, &product, err));
    }
    return VPTQ_OK;
}

static vptq_status apply(void *arg, vptq_err *err)
{
    const fitting *f = arg;
    VPTQ_CHECK(vptq_check_cancel(f->a->dev->ctx, err));
    VPTQ_CHECK(gather_product(f, f->cg.rounded, err));
    return scatter(f, f->qh, f->squares, f->cg.ad, err);
}

/* The diagonal of the system: the sum of scale^2 H_jj over the uses of an entry. */
static vptq_status precondition(fitting *f, vptq_err *err)
{
    const vptq_aqlm_state *a = f->a;
    const size_t in = a->input->in, v = a->s->v, all = a->input->out * a->vectors;
    double *sums = vptq_mem_alloc(a->dev->ctx->mem, f->cg.n, sizeof *sums, err);
    if (!sums)
        return VPTQ_E_NOMEM;
    memset(sums, 0, f->cg.n * sizeof *sums);
    for (size_t i = 0; i < a->s->codebooks * all; i++) {
        const size_t vector = i % all, column = vector % a->vectors * v;
        const double scale = (double)a->scales[vector / a->vectors];
        double *entry = sums + (i / all * a->s->k + a->codes[i]) * v;
        for (size_t e = 0; e < v; e++)
            entry[e] += scale * scale * (double)a->h[(column + e) * (in + 1)];
    }
    const vptq_status st =
        a->dev->ops->upload(a->dev->state, f->cg.m, sums, f->cg.n * sizeof *sums, err);
    vptq_mem_free(a->dev->ctx->mem, sums);
    return st;
}

static vptq_status solve(fitting *f, vptq_mirror *m, float *codebooks, const float *eh,
                         vptq_err *err)
{
    const vptq_device *dev = f->a->dev;
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(vptq_conjugate_open(m, &f->cg, err));
    VPTQ_CHECK(precondition(f, err));
    VPTQ_CHECK(scatter(f, eh, f->scales, f->cg.ad, err));
    VPTQ_CHECK(vptq_conjugate_run(&f->cg, f->iterations, err));
    const vptq_add_args add = {.n = f->cg.n, .x = f->cg.x, .y = codebooks};
    return dev->ops->add_rounded(dev->state, &add, err);
}

/* squares: [out] */
static vptq_status fit_codebooks(vptq_aqlm_state *a, int iterations, const float *squares,
                                 vptq_err *err)
{
    const size_t out = a->input->out, in = a->input->in, row = in * sizeof(float);
    const size_t size = (size_t)a->s->codebooks * a->s->k * a->s->v;
    vptq_mirror m = vptq_mirror_of(a->dev);
    fitting f = {.a = a,
                 .iterations = iterations,
                 .cg = {.n = size, .apply = apply, .arg = &f},
                 .codes = vptq_mirror_in(&m, a->codes, a->s->codebooks * out * a->vectors,
                                         sizeof *a->codes),
                 .h = vptq_mirror_in(&m, a->h, in, row),
                 .scales = vptq_mirror_in(&m, a->scales, out, sizeof(float)),
                 .squares = vptq_mirror_in(&m, squares, out, sizeof(float)),
                 .q = vptq_mirror_take(&m, a->e, out, row, 0),
                 .qh = vptq_mirror_alloc(&m, out, row)};
    float *codebooks = vptq_mirror_take(&m, a->codebooks, size, sizeof(float),
                                        VPTQ_MIRROR_UPLOAD | VPTQ_MIRROR_DOWNLOAD);
    const float *eh = vptq_mirror_in(&m, a->eh, out, row);
    VPTQ_CHECK(vptq_mirror_end(&m, solve(&f, &m, codebooks, eh, err), err));
    vptq_uniform_store(a->s->storage, a->codebooks, size);
    return VPTQ_OK;
}

/* ---- scales ---- */

/* e = z, eh = z h */
static void scale_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_aqlm_state *a = arg;
    const size_t in = a->input->in;
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        double zhw = 0, zhz = 0;
        for (size_t i = r * in; i < (r + 1) * in; i++) {
            const double zh = (double)a->eh[i];
            zhz += zh * (double)a->e[i];
            zhw += zh * (double)a->input->w[i];
        }
        if (zhz > 0)
            a->scales[r] = (float)(zhw / zhz);
    }
}

vptq_status vptq_aqlm_fit(vptq_aqlm_state *a, int iterations, vptq_err *err)
{
    const vptq_ctx *ctx = a->dev->ctx;
    const size_t out = a->input->out;
    float *squares = vptq_mem_alloc(ctx->mem, out, sizeof *squares, err);
    if (!squares)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < out; r++)
        squares[r] = a->scales[r] * a->scales[r];
    const vptq_status st = fit_codebooks(a, iterations, squares, err);
    vptq_mem_free(ctx->mem, squares);
    VPTQ_CHECK(st);
    VPTQ_CHECK(vptq_aqlm_decode(a, false, err));
    vptq_parallel_for(ctx->threads, out, ROWS, scale_rows, a);
    vptq_uniform_store(a->s->storage, a->scales, out);
    return VPTQ_OK;
}
