/* One matrix from weights to codes: metric, factor, the ladder of steps, stored form, losses.
 */
#include <math.h>
#include <string.h>

#include "hessian/hessian.h"
#include "lib/encoder/encoder.h"
#include "lib/encoder/store.h"

enum {
    REFIT_SWEEPS = 2,      /* after each refit */
    STORAGE_SWEEPS = 1,    /* after rounding; a second one gains less than a thousandth */
    REFIT_ITERATIONS = 10, /* of conjugate gradients; more gain nothing that sweeps keep */
    SCALE_ITERATIONS = 8,  /* the same, of those over scale and bias */
};

/* ---- preparation ---- */

static vptq_status factor(vptq_encoder *c, size_t square, vptq_err *err)
{
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    const float *lower = c->input->metric ? c->input->metric : c->input->lower;
    double *a = vptq_arena_alloc(&c->work, square, sizeof *a, err);
    if (!a)
        return VPTQ_E_NOMEM;
    vptq_metric_matrix(&c->metric, c->s->ridge, lower, a);
    vptq_status st = vptq_hessian_factor(c->dev, c->in, a, c->s->damping, c->u,
                                         &c->report->damping_added, err);
    vptq_arena_rewind(&c->work, mark);
    return st;
}

/* H' becomes what was factored: the steps behind the pass would else descend without end where
 * H is indefinite. */
static void add_damping(vptq_encoder *c)
{
    double mean = 0;
    for (size_t p = 0; p < c->in; p++)
        mean += c->metric.diag[p] / c->in;
    c->damped = c->report->damping_added * mean;
    if (c->damped > 0)
        vptq_encoder_normalize(c);
}

static void make_part(vptq_part *p, uint32_t first, uint32_t cols, uint32_t out, uint32_t v,
                      uint32_t k, uint32_t k_res)
{
    *p = (vptq_part){.first = first, .cols = cols, .v = v, .k = k, .k_res = k_res};
    p->vector_rows = (out + v - 1) / v;
    p->rows = p->vector_rows * v;
}

/* Codebooks of a kind are one piece, as they are stored. */
static vptq_status make_parts(vptq_encoder *c, vptq_err *err)
{
    const vptq_vq_shape *s = &c->shape;
    size_t main_size = (size_t)s->k * s->v, res_size = (size_t)s->k_res * s->v;

    c->parts = s->groups + (s->outliers ? 1 : 0);
    c->part = vptq_arena_zalloc(&c->work, c->parts, sizeof *c->part, err);
    float *main =
        c->part ? vptq_arena_zalloc(c->keep, s->groups * main_size, sizeof *main, err) : NULL;
    float *res = main && s->k_res
                     ? vptq_arena_zalloc(c->keep, s->groups * res_size, sizeof *res, err)
                     : NULL;
    if (!main || (s->k_res && !res))
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < c->parts; i++) {
        vptq_part *p = &c->part[i];
        uint32_t g = i - (s->outliers ? 1 : 0);
        if (s->outliers && !i) {
            make_part(p, 0, s->outliers, c->out, s->v0, s->k0, 0);
            p->main = vptq_arena_zalloc(c->keep, (size_t)s->k0 * s->v0, sizeof *main, err);
            if (!p->main)
                return VPTQ_E_NOMEM;
        } else {
            make_part(p, s->outliers + g * s->group_size, s->group_size, c->out, s->v, s->k,
                      s->k_res);
            p->main = main + g * main_size;
            p->res = res ? res + g * res_size : NULL;
        }
        c->rows = p->rows > c->rows ? p->rows : c->rows;
        p->idx = vptq_arena_zalloc(&c->work, p->cols * p->vector_rows, sizeof *p->idx, err);
        p->idx_res = p->idx && p->k_res ? vptq_arena_zalloc(&c->work, p->cols * p->vector_rows,
                                                            sizeof *p->idx_res, err)
                                        : NULL;
        if (!p->idx || (p->k_res && !p->idx_res))
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

static vptq_status make_arrays(vptq_encoder *c, size_t square, vptq_err *err)
{
    size_t n;
    float **array[] = {&c->z, &c->q, &c->e, &c->g};

    if (!vptq_size_mul(c->rows, c->in, &n))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory",
                         c->out, c->in);
    for (size_t i = 0; i < sizeof array / sizeof array[0]; i++) {
        *array[i] = vptq_arena_zalloc(&c->work, n, sizeof(float), err);
        if (!*array[i])
            return VPTQ_E_NOMEM;
    }
    c->diag = vptq_arena_alloc(&c->work, c->in, sizeof *c->diag, err);
    c->h = c->diag ? vptq_arena_alloc(&c->work, square, sizeof *c->h, err) : NULL;
    c->u = c->h ? vptq_arena_alloc(&c->work, square, sizeof *c->u, err) : NULL;
    return c->u ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* The plain Hessian needs a matrix of its own only where it is not what H' was made of. */
static vptq_status make_probe(vptq_encoder *c, const float *lower, bool own, vptq_probe *probe,
                              vptq_err *err)
{
    if (!lower)
        return VPTQ_OK;
    probe->lower = lower;
    if (own) {
        probe->h = vptq_arena_alloc(&c->work, (size_t)c->in * c->in, sizeof *probe->h, err);
        if (!probe->h)
            return VPTQ_E_NOMEM;
        vptq_metric_full(&c->metric, true, 0, lower, probe->h);
    }
    return vptq_encoder_trace(c->dev, c->out, c->in, c->input->w, lower, &probe->norm, err);
}

static vptq_status check_hessians(const vptq_encoder_input *in, vptq_err *err)
{
    vptq_status st = vptq_metric_check("hessian", in->in, in->lower, err);
    if (!st && in->metric)
        st = vptq_metric_check("weighted hessian", in->in, in->metric, err);
    if (!st && in->held_out)
        st = vptq_metric_check("held-out hessian", in->in, in->held_out, err);
    return st;
}

static vptq_status prepare(vptq_encoder *c, vptq_err *err)
{
    const vptq_encoder_input *in = c->input;
    const float *lower = in->metric ? in->metric : in->lower;
    bool scaled = c->s->metric == VPTQ_METRIC_SCALED;
    size_t square;

    if (!vptq_size_mul(c->in, c->in, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         c->in);
    VPTQ_CHECK(check_hessians(in, err));
    VPTQ_CHECK(vptq_metric_make(c->s, c->out, c->in, c->shape.outliers, in->w, lower, &c->work,
                                &c->metric, err));
    c->report->dead_columns = c->metric.dead;
    VPTQ_CHECK(make_parts(c, err));
    VPTQ_CHECK(make_arrays(c, square, err));
    vptq_encoder_normalize(c);
    VPTQ_CHECK(factor(c, square, err));
    add_damping(c);
    VPTQ_CHECK(make_probe(c, in->lower, in->metric || !scaled, &c->plain, err));
    VPTQ_CHECK(make_probe(c, in->metric, !scaled, &c->weighted, err));
    return make_probe(c, in->held_out, true, &c->held_out, err);
}

/* ---- losses ---- */

/* tr(E H E^T) of H' without ridge and damping, from the gradient: they added (s^2 ridge
 * mean(diag H) + damped) |E_p|^2.  Padded rows do not count. */
static double from_gradient(const vptq_encoder *c)
{
    double sum = 0, ridge = c->s->ridge * c->metric.mean_diag;
    for (size_t p = 0; p < c->in; p++) {
        const float *e = c->e + p * c->rows, *g = c->g + p * c->rows;
        double s = (double)c->metric.scale[c->metric.order[p]], product = 0, square = 0;
        for (size_t r = 0; r < c->out; r++) {
            product += (double)e[r] * (double)g[r];
            square += (double)e[r] * (double)e[r];
        }
        sum += product - (ridge * s * s + c->damped) * square;
    }
    return sum > 0 ? sum : 0;
}

static vptq_status with_matrix(vptq_encoder *c, const float *h, double *sum, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t n = (size_t)c->in * c->rows;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    float *e = vptq_arena_alloc(&c->work, n, 2 * sizeof *e, err);
    if (!e)
        return VPTQ_E_NOMEM;
    float *g = e + n;
    *sum = 0;
    for (size_t p = 0; p < c->in; p++)
        for (size_t r = 0; r < c->rows; r++)
            e[p * c->rows + r] =
                r < c->out ? c->e[p * c->rows + r] * c->metric.scale[c->metric.order[p]] : 0;
    VPTQ_TRY(vptq_encoder_product(c, h, e, g, err));
    for (size_t p = 0; p < c->in; p++) {
        double column = 0;
        for (size_t r = p * c->rows; r < p * c->rows + c->out; r++)
            column += (double)e[r] * (double)g[r];
        *sum += column;
    }
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}

static vptq_status probe_loss(vptq_encoder *c, const vptq_probe *probe, double *loss,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    double sum = 0;

    *loss = 0;
    if (!probe->lower)
        return VPTQ_OK;
    if (probe->h)
        st = with_matrix(c, probe->h, &sum, err);
    else
        sum = from_gradient(c);
    *loss = probe->norm > 0 ? sum / probe->norm : 0;
    return st;
}

/* ---- steps ---- */

static double last_loss(const vptq_encoder *c)
{
    return c->report->steps ? c->report->step[c->report->steps - 1].loss : (double)NAN;
}

static void begin(vptq_encoder *c, const char *step)
{
    c->step_begin = vptq_seconds();
    if (c->on_step)
        c->on_step(c->arg, step, last_loss(c));
}

/* Leaves q and a fresh gradient of the present codebooks and indices. */
static vptq_status finish(vptq_encoder *c, const char *name, bool undone, vptq_err *err)
{
    vptq_encoder_step *step = &c->report->step[c->report->steps];

    VPTQ_CHECK(vptq_encoder_gather(c, err));
    VPTQ_CHECK(vptq_encoder_gradient(c, err));
    *step = (vptq_encoder_step){.name = name, .undone = undone};
    VPTQ_CHECK(probe_loss(c, &c->plain, &step->loss, err));
    VPTQ_CHECK(probe_loss(c, &c->weighted, &step->weighted, err));
    VPTQ_CHECK(probe_loss(c, &c->held_out, &step->held_out, err));
    if (!c->weighted.lower)
        step->weighted = step->loss;
    step->seconds = vptq_seconds() - c->step_begin;
    c->report->steps++;
    return VPTQ_OK;
}

/* What a step may change: scale and bias, codebooks and indices of all parts, in one piece. */
static size_t state_bytes(const vptq_encoder *c)
{
    size_t n = 2 * c->in * sizeof(float);
    for (uint32_t i = 0; i < c->parts; i++) {
        const vptq_part *p = &c->part[i];
        n += ((size_t)p->k + p->k_res) * p->v * sizeof(float);
        n += p->cols * p->vector_rows * (p->k_res ? 2 : 1) * sizeof(uint32_t);
    }
    return n;
}

static void copy_piece(char **at, void *piece, size_t bytes, bool save)
{
    if (!piece)
        return;
    memcpy(save ? (void *)*at : piece, save ? piece : (void *)*at, bytes);
    *at += bytes;
}

static void copy_state(vptq_encoder *c, char *saved, bool save)
{
    copy_piece(&saved, c->metric.scale, c->in * sizeof(float), save);
    copy_piece(&saved, c->metric.bias, c->in * sizeof(float), save);
    for (uint32_t i = 0; i < c->parts; i++) {
        vptq_part *p = &c->part[i];
        copy_piece(&saved, p->main, (size_t)p->k * p->v * sizeof *p->main, save);
        copy_piece(&saved, p->res, (size_t)p->k_res * p->v * sizeof *p->res, save);
        copy_piece(&saved, p->idx, p->cols * p->vector_rows * sizeof *p->idx, save);
        copy_piece(&saved, p->idx_res, p->cols * p->vector_rows * sizeof *p->idx_res, save);
    }
}

typedef vptq_status (*step_fn)(vptq_encoder *c, vptq_err *err);

/* Runs a step that should lower the objective; one that raised it is taken back.  Under the raw
 * metric of the published recipe the objective is not the loss, and nothing is taken back. */
static vptq_status descend(vptq_encoder *c, const char *name, step_fn run, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    double before = c->objective;
    char *saved = vptq_arena_alloc(&c->work, state_bytes(c), 1, err);

    if (!saved)
        return VPTQ_E_NOMEM;
    begin(c, name);
    copy_state(c, saved, true);
    VPTQ_TRY(run(c, err));
    VPTQ_TRY(finish(c, name, false, err));
    if (c->objective > before && c->s->metric == VPTQ_METRIC_SCALED) {
        copy_state(c, saved, false);
        vptq_encoder_normalize(c);
        c->report->steps--;
        VPTQ_TRY(finish(c, name, true, err));
    }
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}

static vptq_status step_pass(vptq_encoder *c, vptq_err *err)
{
    return vptq_column_pass(c, false, err);
}

static vptq_status step_sweeps(vptq_encoder *c, vptq_err *err)
{
    return vptq_sweeps(c, c->s->sweeps, err);
}

static vptq_status step_retrain(vptq_encoder *c, vptq_err *err)
{
    return vptq_retrain(c, c->s->retrain, err);
}

static vptq_status step_scales(vptq_encoder *c, vptq_err *err)
{
    return vptq_refit_scales(c, SCALE_ITERATIONS, err);
}

static vptq_status step_refit(vptq_encoder *c, vptq_err *err)
{
    VPTQ_CHECK(vptq_refit(c, NULL, NULL, REFIT_ITERATIONS, err));
    VPTQ_CHECK(vptq_encoder_gather(c, err));
    VPTQ_CHECK(vptq_encoder_gradient(c, err));
    return vptq_sweeps(c, REFIT_SWEEPS, err);
}

/* The codebooks change here whatever the loss says; the sweeps behind that only lower it. */
static vptq_status step_storage(vptq_encoder *c, vptq_err *err)
{
    begin(c, "storage");
    VPTQ_CHECK(vptq_encoder_round(c, err));
    if (c->s->rounding == VPTQ_ROUND_LOOP) {
        VPTQ_CHECK(vptq_encoder_gather(c, err));
        VPTQ_CHECK(vptq_encoder_gradient(c, err));
        VPTQ_CHECK(vptq_sweeps(c, STORAGE_SWEEPS, err));
    }
    return finish(c, "storage", false, err);
}

static vptq_status train(vptq_encoder *c, vptq_err *err)
{
    begin(c, "k-means");
    VPTQ_CHECK(vptq_train_main(c, err));
    for (uint32_t i = 0; i < c->parts; i++) /* the residual codebooks are still all zero */
        if (c->part[i].k_res)
            memset(c->part[i].idx_res, 0,
                   c->part[i].cols * c->part[i].vector_rows * sizeof(uint32_t));
    VPTQ_CHECK(finish(c, "k-means", false, err));
    if (!c->s->k_res)
        return VPTQ_OK;
    begin(c, "residual");
    VPTQ_CHECK(vptq_train_residual(c, err));
    VPTQ_CHECK(finish(c, "residual", false, err));
    if (!c->s->joint)
        return VPTQ_OK;
    begin(c, "joint");
    VPTQ_CHECK(vptq_train_joint(c, err));
    return finish(c, "joint", false, err);
}

/* Where nothing follows the pass, it is the last decision, and looks at rounded codebooks. */
static vptq_status refine(vptq_encoder *c, vptq_err *err)
{
    bool more = c->s->retrain || c->s->sweeps || c->s->refits;
    /* another scale would make the damping another one, and objectives not comparable */
    bool scales = c->s->scales && c->s->metric == VPTQ_METRIC_SCALED && !(c->damped > 0);

    if (!more && c->s->rounding == VPTQ_ROUND_LOOP) {
        VPTQ_CHECK(vptq_encoder_round(c, err));
        VPTQ_CHECK(vptq_encoder_gather(c, err));
        VPTQ_CHECK(vptq_encoder_gradient(c, err));
    }
    VPTQ_CHECK(descend(c, "pass", step_pass, err));
    if (c->s->retrain)
        VPTQ_CHECK(descend(c, "retrain", step_retrain, err));
    if (c->s->sweeps)
        VPTQ_CHECK(descend(c, "sweeps", step_sweeps, err));
    for (uint32_t i = 0; i < c->s->refits; i++) {
        if (scales && !i) /* later ones gain a thousandth */
            VPTQ_CHECK(descend(c, "scales", step_scales, err));
        VPTQ_CHECK(descend(c, "refit", step_refit, err));
    }
    if (!c->rounded)
        VPTQ_CHECK(step_storage(c, err));
    return VPTQ_OK;
}

/* ---- the stored matrix ---- */

static vptq_status stored_loss(vptq_encoder *c, const vptq_probe *probe, const float *e,
                               double *loss, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *loss = 0;
    if (probe->lower)
        st = vptq_encoder_trace(c->dev, c->out, c->in, e, probe->lower, loss, err);
    *loss = probe->norm > 0 ? *loss / probe->norm : 0;
    return st;
}

/* Decoded as a reader of the file does it, in double. */
static vptq_status measure_stored(vptq_encoder *c, const vptq_vq *vq, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t n = (size_t)c->out * c->in;
    double error = 0, norm = 0;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->work);
    float *e = vptq_arena_alloc(&c->work, n, sizeof *e, err);

    if (!e)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(vptq_device_decode(c->dev, vq, 0, c->out, e, c->in, err));
    for (size_t i = 0; i < n; i++) {
        double w = (double)c->input->w[i];
        e[i] -= c->input->w[i];
        error += (double)e[i] * (double)e[i];
        norm += w * w;
    }
    c->report->relative_mse = norm > 0 ? error / norm : 0;
    VPTQ_TRY(stored_loss(c, &c->plain, e, &c->report->loss, err));
    VPTQ_TRY(stored_loss(c, &c->weighted, e, &c->report->weighted, err));
    VPTQ_TRY(stored_loss(c, &c->held_out, e, &c->report->held_out, err));
    if (!c->weighted.lower)
        c->report->weighted = c->report->loss;
out:
    vptq_arena_rewind(&c->work, mark);
    return st;
}

vptq_status vptq_encode_matrix(vptq_device *dev, const vptq_encoder_settings *s,
                               const vptq_encoder_input *input, vptq_step_fn on_step, void *arg,
                               vptq_arena *arena, vptq_encoder_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    double start = vptq_seconds();
    vptq_encoder c = {.dev = dev,
                      .s = s,
                      .input = input,
                      .keep = arena,
                      .in = input->in,
                      .out = input->out,
                      .on_step = on_step,
                      .arg = arg,
                      .report = &result->report};

    *result = (vptq_encoder_result){0};
    vptq_arena_init(&c.work, dev->ctx->mem);
    VPTQ_TRY(vptq_encoder_check(s, c.out, c.in, err));
    c.shape = vptq_encoder_shape(s, c.out, c.in);
    begin(&c, "factor");
    VPTQ_TRY(prepare(&c, err));
    VPTQ_TRY(train(&c, err));
    VPTQ_TRY(refine(&c, err));
    VPTQ_TRY(vptq_store(&c, result, err));
    VPTQ_TRY(measure_stored(&c, &result->vq, err));
    result->report.seconds = vptq_seconds() - start;
out:
    vptq_arena_release(&c.work);
    return st;
}
