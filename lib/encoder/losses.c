/* The proxy loss tr(E H E^T) / tr(W H W^T) with raw Hessians: of the present solution, of the
 * stored matrix, and of any pair of matrices. */
#include "lib/encoder/encoder.h"

static void unpack_lower(uint32_t n, const float *lower, double *h)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            h[i * n + j] = (double)*lower++;
}

static double squared_norm(size_t n, const float *x)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return s;
}

vptq_status vptq_encoder_trace(vptq_device *dev, size_t rows, uint32_t in, const float *x,
                               const double *h, double *trace, vptq_err *err)
{
    vptq_mirror m = vptq_mirror_of(dev);
    const vptq_quad_trace_args args = {.m = rows,
                                       .n = in,
                                       .e = vptq_mirror_in(&m, x, rows * in, sizeof *x),
                                       .lde = in,
                                       .h = vptq_mirror_in(&m, h, (size_t)in * in, sizeof *h),
                                       .ldh = in,
                                       .trace = trace};
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = dev->ops->quad_trace(dev->state, &args, err);
    return vptq_mirror_end(&m, st, err);
}

/* The same with a packed Hessian. */
static vptq_status trace_of(vptq_device *dev, size_t rows, uint32_t in, const float *x,
                            const float *lower, double *trace, vptq_err *err)
{
    size_t square;
    if (!vptq_size_mul(in, in, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         in);
    VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
    double *h = vptq_mem_alloc(dev->ctx->mem, square, sizeof *h, err);
    if (!h)
        return VPTQ_E_NOMEM;
    unpack_lower(in, lower, h);
    vptq_status st = vptq_encoder_trace(dev, rows, in, x, h, trace, err);
    vptq_mem_free(dev->ctx->mem, h);
    return st;
}

vptq_status vptq_encoder_measure(vptq_device *dev, const vptq_encoder_input *input,
                                 const float *what, vptq_encoder_loss *loss, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const float *w = input->w;
    const uint32_t out = input->out, in = input->in;
    size_t n;

    *loss = (vptq_encoder_loss){0};
    if (!vptq_size_mul(out, in, &n))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory", out,
                         in);
    float *e = vptq_mem_alloc(dev->ctx->mem, n, sizeof *e, err);
    if (!e)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        e[i] = what[i] - w[i];
    VPTQ_TRY(trace_of(dev, out, in, e, input->lower, &loss->error, err));
    VPTQ_TRY(trace_of(dev, out, in, w, input->lower, &loss->norm, err));
    loss->error_sq = squared_norm(n, e);
    loss->norm_sq = squared_norm(n, w);
    loss->relative = loss->norm > 0 ? loss->error / loss->norm : 0;
out:
    vptq_mem_free(dev->ctx->mem, e);
    return st;
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
        probe->h =
            vptq_arena_alloc(&enc->scratch, (size_t)p->in * p->in, sizeof *probe->h, err);
        if (!probe->h)
            return VPTQ_E_NOMEM;
        vptq_problem_raw(p, lower, probe->h);
    }
    return trace_of(enc->dev, p->out, p->in, p->input->w, lower, &probe->norm, err);
}

vptq_status vptq_losses_open(vptq_encoder *enc, vptq_err *err)
{
    const vptq_encoder_input *in = enc->problem.input;
    const bool scaled = enc->settings->metric == VPTQ_METRIC_SCALED;
    vptq_losses *l = &enc->losses;

    VPTQ_CHECK(open_probe(enc, in->lower, scaled && !in->metric, &l->plain, err));
    VPTQ_CHECK(open_probe(enc, in->metric, scaled, &l->weighted, err));
    return open_probe(enc, in->held_out, false, &l->held_out, err);
}

/* tr(E H E^T) of W from G = H' E: ridge and damping added (s^2 ridge mean(diag H) + damping)
 * |E_p|^2 per column.  Padded rows do not count. */
static double error_from_gradient(const vptq_encoder *enc)
{
    const vptq_problem *p = &enc->problem;
    double sum = 0, ridge = p->settings->ridge * p->mean_diag;

    for (size_t i = 0; i < p->in; i++) {
        const float *e = enc->e + i * p->rows, *g = enc->g + i * p->rows;
        double s = (double)p->scale[p->order[i]], product = 0, square = 0;
        for (size_t r = 0; r < p->out; r++) {
            product += (double)e[r] * (double)g[r];
            square += (double)e[r] * (double)e[r];
        }
        sum += product - (ridge * s * s + p->damping) * square;
    }
    return sum > 0 ? sum : 0;
}

/* tr(E H E^T) of W with h in processing order. */
static vptq_status error_under(vptq_encoder *enc, const float *h, double *sum, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_problem *p = &enc->problem;
    const size_t rows = p->rows, n = p->in * rows;
    vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    float *e = vptq_arena_alloc(&enc->scratch, n, 2 * sizeof *e, err);

    if (!e)
        return VPTQ_E_NOMEM;
    float *g = e + n;
    *sum = 0;
    for (size_t i = 0; i < p->in; i++)
        for (size_t r = 0; r < rows; r++)
            e[i * rows + r] = r < p->out ? enc->e[i * rows + r] * p->scale[p->order[i]] : 0;
    VPTQ_TRY(vptq_encoder_product(enc, h, e, g, err));
    for (size_t i = 0; i < p->in; i++) {
        double column = 0;
        for (size_t r = i * rows; r < i * rows + p->out; r++)
            column += (double)e[r] * (double)g[r];
        *sum += column;
    }
out:
    vptq_arena_rewind(&enc->scratch, mark);
    return st;
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
        sum = error_from_gradient(enc);
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
        VPTQ_CHECK(trace_of(enc->dev, p->out, p->in, e, probe->lower, loss, err));
    *loss = probe->norm > 0 ? *loss / probe->norm : 0;
    return VPTQ_OK;
}

vptq_status vptq_losses_stored(vptq_encoder *enc, const vptq_vq *vq, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_problem *p = &enc->problem;
    const vptq_losses *l = &enc->losses;
    vptq_encoder_report *report = enc->report;
    const size_t n = (size_t)p->out * p->in;
    vptq_arena_mark mark = vptq_arena_get_mark(&enc->scratch);
    float *e = vptq_arena_alloc(&enc->scratch, n, sizeof *e, err);

    if (!e)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(vptq_device_decode(enc->dev, vq, 0, p->out, e, p->in, err));
    for (size_t i = 0; i < n; i++)
        e[i] -= p->input->w[i];
    const double norm = squared_norm(n, p->input->w);
    report->relative_mse = norm > 0 ? squared_norm(n, e) / norm : 0;
    VPTQ_TRY(stored_loss(enc, &l->plain, e, &report->loss, err));
    VPTQ_TRY(stored_loss(enc, &l->weighted, e, &report->weighted, err));
    VPTQ_TRY(stored_loss(enc, &l->held_out, e, &report->held_out, err));
    if (!l->weighted.lower)
        report->weighted = report->loss;
out:
    vptq_arena_rewind(&enc->scratch, mark);
    return st;
}
