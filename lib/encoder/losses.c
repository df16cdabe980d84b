/* The proxy loss tr(E H E^T) / tr(W H W^T) with raw Hessians: of the present solution, of the
 * stored matrix, and of any pair of matrices. */
#include "hessian/hessian.h"
#include "lib/encoder/encoder.h"

vptq_status vptq_encoder_inner(vptq_device *dev, size_t n, const float *x, const float *y,
                               double *sum, vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(dev);
    const vptq_dots_args args = {
        .cols = 1,
        .rows = n,
        .x = x,
        .y = y,
        .sums = vptq_mirror_take(&m, sum, 1, sizeof *sum, VPTQ_MIRROR_DOWNLOAD)};
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->column_dots(dev->state, &args, err);
    return vptq_mirror_end(&m, st, err);
}

/* z = x - y for matrices [out, in]. */
static vptq_status subtract(const vptq_device *dev, size_t out, size_t in, const float *x,
                            const float *y, float *z, vptq_err *err)
{
    const vptq_subtract_args args = {
        .cols = out, .rows = in, .x = x, .y = y, .z = z, .ldx = in, .ldy = in, .ldz = in};
    return dev->ops->subtract(dev->state, &args, err);
}

vptq_status vptq_encoder_measure(vptq_device *dev, const vptq_encoder_input *input,
                                 const float *what, vptq_encoder_loss *loss, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(dev);
    const uint32_t out = input->out, in = input->in;
    size_t n, square;

    *loss = (vptq_encoder_loss){0};
    if (!vptq_size_mul(out, in, &n))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory", out,
                         in);
    if (!vptq_size_mul(in, in, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         in);
    const float *w = vptq_mirror_in(&m, input->w, n, sizeof *w);
    const float *on = vptq_mirror_in(&m, what, n, sizeof *on);
    const float *lower = vptq_mirror_in(&m, input->lower, vptq_triangle(in), sizeof *lower);
    float *e = vptq_mirror_alloc(&m, n, sizeof *e);
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(subtract(dev, out, in, on, w, e, err));
    VPTQ_TRY(vptq_hessian_trace(dev, out, in, e, lower, &loss->error, err));
    VPTQ_TRY(vptq_hessian_trace(dev, out, in, w, lower, &loss->norm, err));
    VPTQ_TRY(vptq_encoder_inner(dev, n, e, e, &loss->error_sq, err));
    VPTQ_TRY(vptq_encoder_inner(dev, n, w, w, &loss->norm_sq, err));
    loss->relative = loss->norm > 0 ? loss->error / loss->norm : 0;
out:
    return vptq_mirror_end(&m, st, err);
}

/* ---- the present solution ---- */

/* The loss under the Hessian that H' was made of needs no matrix of its own: it follows from
 * the gradient. */
static vptq_status open_probe(vptq_encoder *enc, const float *lower, bool from_gradient,
                              vptq_probe *probe, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;

    *probe = (vptq_probe){.lower = lower};
    if (!lower)
        return VPTQ_OK;
    if (!from_gradient) {
        probe->h = vptq_mirror_alloc(&enc->arrays, p->in, p->in * sizeof *probe->h);
        VPTQ_CHECK(vptq_mirror_check(&enc->arrays, err));
        VPTQ_CHECK(vptq_problem_raw(p, lower, probe->h, err));
    }
    return vptq_hessian_trace(enc->dev, p->out, p->in, p->on.w, lower, &probe->norm, err);
}

vptq_status vptq_losses_open(vptq_encoder *enc, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    const bool scaled = enc->settings->metric == VPTQ_METRIC_SCALED;
    vptq_losses *l = &enc->losses;

    VPTQ_CHECK(open_probe(enc, p->on.lower, scaled && !p->on.metric, &l->plain, err));
    VPTQ_CHECK(open_probe(enc, p->on.metric, scaled, &l->weighted, err));
    return open_probe(enc, p->on.held_out, false, &l->held_out, err);
}

/* tr(E H E^T) of W from G = H' E: ridge and damping added (s^2 ridge mean(diag H) + damping)
 * |E_p|^2 per column.  Padded rows do not count. */
static vptq_status error_from_gradient(vptq_encoder *enc, double *sum, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    const size_t in = p->in;
    const double ridge = p->settings->ridge * p->mean_diag;
    double *product = enc->sums, *square = enc->sums + in;

    VPTQ_CHECK(vptq_encoder_dots(
        enc, p->out, enc->e, enc->output.k ? enc->output.plain : enc->g, enc->on_sums, err));
    VPTQ_CHECK(vptq_encoder_dots(enc, p->out, enc->e, enc->e, enc->on_sums + in, err));
    VPTQ_CHECK(vptq_mirror_pull(&enc->arrays, enc->sums, 2 * in * sizeof *enc->sums, err));
    *sum = 0;
    for (size_t i = 0; i < in; i++) {
        const double s = (double)p->scales[i];
        *sum += product[i] - (ridge * s * s + p->damping) * square[i];
    }
    *sum = *sum > 0 ? *sum : 0;
    return VPTQ_OK;
}

/* tr(E H E^T) of W with h in processing order. */
static vptq_status error_under(vptq_encoder *enc, const float *h, double *sum, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_problem *p = &enc->problem;
    const size_t n = p->in * p->rows;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    float *e = vptq_mirror_alloc(&m, n, sizeof *e), *g = vptq_mirror_alloc(&m, n, sizeof *g);
    const vptq_affine_args scaled = {.cols = p->in,
                                     .rows = p->rows,
                                     .valid = p->out,
                                     .x = enc->e,
                                     .a = p->on.scales,
                                     .y = e,
                                     .ldx = p->rows,
                                     .ldy = p->rows};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(enc->dev->ops->affine(enc->dev->state, &scaled, err));
    VPTQ_TRY(vptq_encoder_multiply(enc, h, e, g, err));
    VPTQ_TRY(vptq_encoder_dot(enc, p->out, e, g, sum, err));
out:
    return vptq_mirror_end(&m, st, err);
}

static vptq_status measure_probe(vptq_encoder *enc, const vptq_probe *probe, double *loss,
                                 vptq_err *err)
{
    double sum = 0;

    *loss = 0;
    if (!probe->lower)
        return VPTQ_OK;
    if (probe->h)
        VPTQ_CHECK(error_under(enc, probe->h, &sum, err));
    else
        VPTQ_CHECK(error_from_gradient(enc, &sum, err));
    *loss = probe->norm > 0 ? sum / probe->norm : 0;
    return VPTQ_OK;
}

vptq_status vptq_losses_measure(vptq_encoder *enc, vptq_encoder_step *step, vptq_err *err)
{
    const vptq_losses *l = &enc->losses;

    VPTQ_CHECK(measure_probe(enc, &l->plain, &step->loss, err));
    VPTQ_CHECK(measure_probe(enc, &l->weighted, &step->weighted, err));
    VPTQ_CHECK(measure_probe(enc, &l->held_out, &step->held_out, err));
    if (!l->weighted.lower)
        step->weighted = step->loss;
    return VPTQ_OK;
}

/* ---- the stored matrix ---- */

static vptq_status stored_loss(const vptq_encoder *enc, const vptq_probe *probe, const float *e,
                               double *loss, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;

    *loss = 0;
    if (probe->lower)
        VPTQ_CHECK(vptq_hessian_trace(enc->dev, p->out, p->in, e, probe->lower, loss, err));
    *loss = probe->norm > 0 ? *loss / probe->norm : 0;
    return VPTQ_OK;
}

/* e [out][in] = the stored matrix - W. */
static vptq_status stored_error(vptq_encoder *enc, const vptq_vq *vq, float *e, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_device *dev = enc->dev;
    const vptq_problem *p = &enc->problem;
    vptq_matrix *matrix = NULL;

    VPTQ_TRY(dev->ops->matrix_open(dev->state, vq, &matrix, err));
    VPTQ_TRY(dev->ops->vq_dequant(dev->state, matrix, 0, p->out, e, p->in, err));
    VPTQ_TRY(subtract(dev, p->out, p->in, e, p->on.w, e, err));
out:
    dev->ops->matrix_close(dev->state, matrix);
    return st;
}

vptq_status vptq_losses_stored(vptq_encoder *enc, const vptq_vq *vq, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    const vptq_losses *l = &enc->losses;
    vptq_encoder_report *report = enc->report;
    const size_t n = (size_t)p->out * p->in;
    float *e = enc->e;
    double norm, error;

    VPTQ_CHECK(stored_error(enc, vq, e, err));
    VPTQ_CHECK(vptq_encoder_inner(enc->dev, n, p->on.w, p->on.w, &norm, err));
    VPTQ_CHECK(vptq_encoder_inner(enc->dev, n, e, e, &error, err));
    report->relative_mse = norm > 0 ? error / norm : 0;
    VPTQ_CHECK(stored_loss(enc, &l->plain, e, &report->loss, err));
    VPTQ_CHECK(stored_loss(enc, &l->weighted, e, &report->weighted, err));
    VPTQ_CHECK(stored_loss(enc, &l->held_out, e, &report->held_out, err));
    if (!l->weighted.lower)
        report->weighted = report->loss;
    return VPTQ_OK;
}
