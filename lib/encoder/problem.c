/* The problem of encoding one matrix: normalized weights Z, metric H', the order of columns and
 * the factor of H'. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "hessian/hessian.h"
#include "lib/encoder/encoder.h"

/* The smallest normal half: a smaller scale could not be stored with full precision, and
 * columns that are flatter than that lose nothing by a larger one. */
static const double SMALLEST_SCALE = 6.103515625e-5;

static vptq_status first_outside(const vptq_problem *p, size_t n, const float *x, float limit,
                                 size_t *first, vptq_err *err)
{
    const vptq_outside_args args = {
        .n = n, .x = x, .min = -limit, .max = limit, .first = first};
    return p->dev->ops->first_outside(p->dev->state, &args, err);
}

static vptq_status check_weights(const vptq_problem *p, vptq_err *err)
{
    const size_t n = (size_t)p->out * p->in;
    size_t first;

    VPTQ_CHECK(first_outside(p, n, p->on.w, FLT_MAX, &first, err));
    if (first == n)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "weight at row %zu, column %zu is %g, expected a finite number",
                     first / p->in, first % p->in, (double)p->input->w[first]);
}

/* `name` begins the message; `lower` is the packed Hessian in host memory. */
static vptq_status check_hessian(const vptq_problem *p, const char *name, const float *lower,
                                 const float *on, vptq_err *err)
{
    const size_t n = vptq_triangle(p->in);
    size_t first, row = 0;

    if (!lower)
        return VPTQ_OK;
    VPTQ_CHECK(first_outside(p, n, on, VPTQ_HESSIAN_MAX, &first, err));
    for (; row < p->in && vptq_triangle(row + 1) <= first; row++) {
        const float diagonal = lower[vptq_triangle(row + 1) - 1];
        if (diagonal < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "%s diagonal %zu is %g, expected zero or a positive number", name,
                             row, (double)diagonal);
    }
    if (first == n)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "%s entry (%zu, %zu) is %g, expected a finite number below 1e24", name,
                     row, first - vptq_triangle(row), (double)lower[first]);
}

/* The Hessian to minimize with. */
static const float *minimized(const vptq_encoder_input *input)
{
    return input->metric ? input->metric : input->lower;
}

/* Entry (c, c) of the Hessian to minimize with. */
static double raw_diagonal(const vptq_problem *p, size_t c)
{
    return (double)minimized(p->input)[vptq_triangle(c + 1) - 1];
}

static vptq_status average_diagonal(vptq_problem *p, vptq_err *err)
{
    for (size_t i = 0; i < p->in; i++) {
        double h = raw_diagonal(p, i);
        p->mean_diag += h;
        p->dead += h > 0 ? 0 : 1;
    }
    p->mean_diag /= p->in;
    if (!(p->mean_diag > 0))
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "every calibration input of this matrix is zero (is the layer before "
                         "it zero?)");
    return VPTQ_OK;
}

/* ---- scale and bias ---- */

typedef struct column_stats {
    double *bias, *scale; /* [in] before rounding */
} column_stats;

/* Measures the columns of W on the device. */
static vptq_status measure_columns(const vptq_problem *p, column_stats *k, vptq_err *err)
{
    const size_t in = p->in;
    vptq_mirror m = vptq_mirror_of(p->dev);
    const vptq_norms_args args = {
        .out = p->out,
        .in = in,
        .w = p->on.w,
        .range = p->settings->norm != VPTQ_NORM_STD,
        .bias = vptq_mirror_take(&m, k->bias, in, sizeof *k->bias, VPTQ_MIRROR_DOWNLOAD),
        .scale = vptq_mirror_take(&m, k->scale, in, sizeof *k->scale, VPTQ_MIRROR_DOWNLOAD)};
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = p->dev->ops->column_norms(p->dev->state, &args, err);
    return vptq_mirror_end(&m, st, err);
}

/* Rounded to the storage type, except for the published recipe, which rounds at the end. */
static vptq_status set_norm(vptq_problem *p, size_t c, const column_stats *k, vptq_err *err)
{
    const vptq_dtype storage = p->settings->storage;
    double scale = k->scale[c];

    if (scale < SMALLEST_SCALE)
        scale = scale > 0 ? SMALLEST_SCALE : 1;
    p->bias[c] = (float)k->bias[c];
    p->scale[c] = (float)scale;
    float bias = vptq_round_to(storage, p->bias[c]);
    float rounded = vptq_round_to(storage, p->scale[c]);
    if (!isfinite(bias) || !isfinite(rounded))
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "column %zu has bias %g and scale %g, which %s cannot hold", c,
                         k->bias[c], k->scale[c], vptq_dtype_get(storage)->name);
    if (p->settings->rounding == VPTQ_ROUND_LOOP) {
        p->bias[c] = bias;
        p->scale[c] = rounded;
    }
    return VPTQ_OK;
}

static vptq_status column_norms(vptq_problem *p, vptq_arena *scratch, vptq_err *err)
{
    const size_t in = p->in;
    column_stats k = {.bias = vptq_arena_zalloc(scratch, in, 2 * sizeof(double), err)};

    if (!k.bias)
        return VPTQ_E_NOMEM;
    k.scale = k.bias + in;
    for (size_t c = 0; c < in; c++) {
        p->scale[c] = 1;
        p->bias[c] = 0;
    }
    if (p->settings->norm == VPTQ_NORM_NONE)
        return VPTQ_OK;
    VPTQ_CHECK(measure_columns(p, &k, err));
    for (size_t c = 0; c < in; c++)
        VPTQ_CHECK(set_norm(p, c, &k, err));
    return VPTQ_OK;
}

/* ---- order ---- */

typedef struct ranked {
    double diag;
    uint32_t column;
} ranked;

static int by_diag_descending(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->diag != y->diag)
        return x->diag > y->diag ? -1 : 1;
    return x->column < y->column ? -1 : 1;
}

static int by_column(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->column < y->column ? -1 : x->column > y->column;
}

/* The outlier columns, which come first, are the most important ones with or without `perm`. */
static vptq_status order_columns(vptq_problem *p, uint32_t outliers, vptq_arena *scratch,
                                 vptq_err *err)
{
    const bool perm = p->settings->perm;
    ranked *rank = vptq_arena_alloc(scratch, p->in, sizeof *rank, err);

    if (!rank)
        return VPTQ_E_NOMEM;
    for (uint32_t c = 0; c < p->in; c++)
        rank[c] = (ranked){p->column_diag[c], c};
    if (perm || outliers)
        qsort(rank, p->in, sizeof *rank, by_diag_descending);
    if (!perm)
        qsort(rank + outliers, p->in - outliers, sizeof *rank, by_column);
    for (uint32_t i = 0; i < p->in; i++)
        p->order[i] = rank[i].column;
    return VPTQ_OK;
}

/* ---- the metric ---- */

static double metric_scale(const vptq_problem *p, size_t column)
{
    return p->settings->metric == VPTQ_METRIC_SCALED ? (double)p->scale[column] : 1;
}

vptq_metric_args vptq_problem_metric(const vptq_problem *p)
{
    return (vptq_metric_args){.n = p->in,
                              .lower = p->on.metric ? p->on.metric : p->on.lower,
                              .order = p->on.order,
                              .scale = p->settings->metric == VPTQ_METRIC_SCALED ? p->on.scale
                                                                                 : NULL,
                              .divisor = 1,
                              .ridge = p->settings->ridge * p->mean_diag};
}

vptq_status vptq_problem_raw(const vptq_problem *p, const float *lower, float *h, vptq_err *err)
{
    const vptq_metric_args raw = {
        .n = p->in, .lower = lower, .order = p->on.order, .divisor = 1, .h = h};
    return p->dev->ops->metric(p->dev->state, &raw, err);
}

static void weigh_columns(vptq_problem *p)
{
    for (size_t c = 0; c < p->in; c++) {
        double h = raw_diagonal(p, c) + p->settings->ridge * p->mean_diag;
        p->column_diag[c] = metric_scale(p, c) * h * metric_scale(p, c);
    }
}

/* Uploads what normalizing changes. */
static vptq_status push_columns(vptq_problem *p, vptq_err *err)
{
    const float *const arrays[] = {p->scale, p->bias, p->scales, p->diag};

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        VPTQ_CHECK(vptq_mirror_push(p->arrays, arrays[i], p->in * sizeof(float), err));
    return VPTQ_OK;
}

vptq_status vptq_problem_normalize(vptq_problem *p, vptq_err *err)
{
    const vptq_normalize_args normalize = {.out = p->out,
                                           .in = p->in,
                                           .rows = p->rows,
                                           .w = p->on.w,
                                           .order = p->on.order,
                                           .scale = p->on.scale,
                                           .bias = p->on.bias,
                                           .z = p->z};
    vptq_metric_args metric = vptq_problem_metric(p);

    weigh_columns(p);
    for (size_t i = 0; i < p->in; i++) {
        const size_t c = p->order[i];
        p->scales[i] = p->scale[c];
        p->diag[i] = (float)(p->column_diag[c] + p->damping);
    }
    metric.damping = p->damping;
    metric.h = p->h;
    VPTQ_CHECK(push_columns(p, err));
    VPTQ_CHECK(p->dev->ops->normalize(p->dev->state, &normalize, err));
    return p->dev->ops->metric(p->dev->state, &metric, err);
}

/* Factors H'.  The damping that this needed is added to H' itself: without it the steps after
 * the column pass would minimize an indefinite form and diverge. */
static vptq_status factor(vptq_problem *p, vptq_err *err)
{
    const vptq_metric_args metric = vptq_problem_metric(p);
    double mean = 0;

    VPTQ_CHECK(vptq_hessian_factor(p->dev, &metric, p->settings->damping, p->u,
                                   &p->damping_added, err));
    for (size_t c = 0; c < p->in; c++)
        mean += p->column_diag[c] / p->in;
    p->damping = p->damping_added * mean;
    return p->damping > 0 ? vptq_problem_normalize(p, err) : VPTQ_OK;
}

static vptq_status make_host_arrays(vptq_problem *p, vptq_arena *scratch, vptq_err *err)
{
    float **floats[] = {&p->scale, &p->bias, &p->scales, &p->diag};

    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        *floats[i] = vptq_arena_alloc(scratch, p->in, sizeof(float), err);
        if (!*floats[i])
            return VPTQ_E_NOMEM;
    }
    p->column_diag = vptq_arena_alloc(scratch, p->in, sizeof *p->column_diag, err);
    p->order = p->column_diag ? vptq_arena_alloc(scratch, p->in, sizeof *p->order, err) : NULL;
    return p->order ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Allocates the arrays on the device and uploads the input. */
static vptq_status make_device_arrays(vptq_problem *p, vptq_err *err)
{
    const vptq_encoder_input *input = p->input;
    const size_t in = p->in;
    size_t square, triangle, size, weights;
    vptq_mirror *m = p->arrays;

    if (!vptq_size_mul(in, in, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         p->in);
    if (!vptq_size_mul(p->rows, in, &size) || !vptq_size_mul(p->out, in, &weights))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory",
                         p->out, p->in);
    triangle = vptq_triangle(in);
    p->on.w = vptq_mirror_in(m, input->w, weights, sizeof(float));
    p->on.lower = vptq_mirror_in(m, input->lower, triangle, sizeof(float));
    p->on.metric = vptq_mirror_in(m, input->metric, triangle, sizeof(float));
    p->on.held_out = vptq_mirror_in(m, input->held_out, triangle, sizeof(float));
    p->on.scale = vptq_mirror_take(m, p->scale, in, sizeof *p->scale, 0);
    p->on.bias = vptq_mirror_take(m, p->bias, in, sizeof *p->bias, 0);
    p->on.scales = vptq_mirror_take(m, p->scales, in, sizeof *p->scales, 0);
    p->on.diag = vptq_mirror_take(m, p->diag, in, sizeof *p->diag, 0);
    p->on.order = vptq_mirror_take(m, p->order, in, sizeof *p->order, 0);
    p->z = vptq_mirror_alloc(m, size, sizeof *p->z);
    p->h = vptq_mirror_alloc(m, square, sizeof *p->h);
    p->u = vptq_mirror_alloc(m, square, sizeof *p->u);
    return vptq_mirror_check(m, err);
}

vptq_status vptq_problem_make(vptq_problem *p, vptq_device *dev, const vptq_encoder_settings *s,
                              const vptq_encoder_input *input, const vptq_columns *columns,
                              vptq_arena *scratch, vptq_err *err)
{
    *p = (vptq_problem){.settings = s,
                        .input = input,
                        .in = input->in,
                        .out = input->out,
                        .rows = columns->rows,
                        .dev = dev,
                        .arrays = columns->arrays};
    VPTQ_CHECK(make_host_arrays(p, scratch, err));
    VPTQ_CHECK(make_device_arrays(p, err));
    VPTQ_CHECK(check_hessian(p, "hessian", input->lower, p->on.lower, err));
    VPTQ_CHECK(check_hessian(p, "weighted hessian", input->metric, p->on.metric, err));
    VPTQ_CHECK(check_hessian(p, "held-out hessian", input->held_out, p->on.held_out, err));
    VPTQ_CHECK(check_weights(p, err));
    VPTQ_CHECK(average_diagonal(p, err));

    vptq_arena_mark mark = vptq_arena_get_mark(scratch);
    VPTQ_CHECK(column_norms(p, scratch, err));
    weigh_columns(p);
    VPTQ_CHECK(order_columns(p, columns->shape.outliers, scratch, err));
    vptq_arena_rewind(scratch, mark);
    VPTQ_CHECK(vptq_mirror_push(p->arrays, p->order, p->in * sizeof *p->order, err));
    VPTQ_CHECK(vptq_problem_normalize(p, err));
    return factor(p, err);
}
