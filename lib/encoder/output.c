/* The objective under an output Hessian.  K weighs errors of the outputs of a linear layer as H
 * weighs its inputs: the loss of a model changes by about tr(E H E^T K) / 2 if K is the second
 * moment of the loss's gradient with respect to these outputs (docs/encoder.md, "Output
 * Hessians").  H' alone serves until codebooks are trained; rounds of refits and sweeps then
 * lower tr(E H' E^T K).  Padded rows have K = 1. */
#include <math.h>

#include "lib/encoder/encoder.h"

enum { BLOCK = VPTQ_OUTPUT_ROWS };

/* K comes from few tokens compared with its rows: entries off the diagonal shrink, and the
 * diagonal gets a share of its mean. */
static const double OFF_DIAGONAL = 0.75, RIDGE = 0.05;

static size_t num_blocks(size_t rows)
{
    return (rows + BLOCK - 1) / BLOCK;
}

/* *mean = the mean of the diagonal over the first `out` rows. */
static vptq_status check(const float *k, size_t out, double *mean, vptq_err *err)
{
    double sum = 0;

    for (size_t i = 0; i < num_blocks(out) * BLOCK * BLOCK; i++)
        if (!isfinite(k[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "the output hessian of rows %zu and %zu is %g, expected a finite "
                             "number",
                             i / BLOCK, i / BLOCK / BLOCK * BLOCK + i % BLOCK, (double)k[i]);
    for (size_t r = 0; r < out; r++) {
        const float diagonal = k[r * BLOCK + r % BLOCK];
        if (diagonal < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "the output hessian of row %zu is %g, expected zero or a positive "
                             "number",
                             r, (double)diagonal);
        sum += (double)diagonal;
    }
    *mean = sum / (double)out;
    for (size_t i = 0; i < num_blocks(out) * BLOCK * BLOCK; i++)
        if (sum > 0 && fabs((double)k[i]) > 1.001 * sum) /* Cauchy and Schwarz */
            return vptq_fail(
                err, VPTQ_E_NUMERIC,
                "the output hessian of rows %zu and %zu is %g, expected at most the "
                "sum of its diagonal, %g",
                i / BLOCK, i / BLOCK / BLOCK * BLOCK + i % BLOCK, (double)k[i], sum);
    return VPTQ_OK;
}

/* to [blocks of `rows`] = k [blocks of `out`] with a diagonal of about 1. */
static void regularize(const float *k, size_t out, double mean, size_t rows, float *to)
{
    for (size_t r = 0; r < num_blocks(rows) * BLOCK; r++)
        for (size_t j = 0; j < BLOCK; j++) {
            const size_t c = r / BLOCK * BLOCK + j;
            double x = r == c;
            if (r < out && c < out) {
                x = (double)k[r * BLOCK + j] / mean;
                x = r == c ? x + RIDGE : OFF_DIAGONAL * x;
            }
            to[r * BLOCK + j] = (float)x;
        }
}

/* enc->output.norm = tr(W H W^T K) with the ridges of H' and K. */
static vptq_status measure_weights(vptq_encoder *enc, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_problem *p = &enc->problem;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    float *shift = vptq_arena_alloc(&enc->scratch, p->in, sizeof *shift, err);

    if (!shift)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < p->in; i++)
        shift[i] = p->bias[p->order[i]] / p->scales[i];
    const vptq_affine_args weights = {.cols = p->in,
                                      .rows = p->rows,
                                      .valid = p->out,
                                      .x = p->z,
                                      .b = vptq_mirror_in(&m, shift, p->in, sizeof *shift),
                                      .y = enc->e,
                                      .ldx = p->rows,
                                      .ldy = p->rows};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(enc->dev->ops->affine(enc->dev->state, &weights, err));
    VPTQ_TRY(vptq_encoder_apply(enc, err));
    VPTQ_TRY(vptq_encoder_dot(enc, p->out, enc->e, enc->g, &enc->output.norm, err));
out:
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_output_open(vptq_encoder *enc, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    const size_t size = num_blocks(p->rows) * BLOCK * BLOCK;
    vptq_mirror *m = &enc->arrays;
    double mean = 0;

    VPTQ_CHECK(check(p->input->output, p->out, &mean, err));
    if (!(mean > 0)) /* nothing depends on these outputs */
        return VPTQ_OK;
    float *k = vptq_arena_alloc(&enc->scratch, size, sizeof *k, err);
    if (!k)
        return VPTQ_E_NOMEM;
    regularize(p->input->output, p->out, mean, p->rows, k);
    enc->output.plain = vptq_mirror_alloc(m, p->in * p->rows, sizeof *enc->output.plain);
    enc->output.k = vptq_mirror_in(m, k, size, sizeof *k);
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(measure_weights(enc, err));
    return vptq_encoder_gradient(enc, err);
}

vptq_status vptq_output_multiply(const vptq_encoder *enc, size_t cols, size_t rows,
                                 const float *x, float *y, vptq_err *err)
{
    const size_t ld = enc->problem.rows;

    for (size_t first = 0; first < rows; first += BLOCK) {
        const size_t width = rows - first < BLOCK ? rows - first : BLOCK;
        const vptq_gemm_args args = {.m = cols,
                                     .n = width,
                                     .k = width,
                                     .a = x + first,
                                     .b = enc->output.k + first * BLOCK,
                                     .c = y + first,
                                     .lda = ld,
                                     .ldb = BLOCK,
                                     .ldc = ld,
                                     .alpha = 1};
        VPTQ_CHECK(enc->dev->ops->gemm(enc->dev->state, &args, err));
    }
    return VPTQ_OK;
}
