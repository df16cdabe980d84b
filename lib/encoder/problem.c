/* The problem of encoding one matrix: normalized weights Z, metric H', the order of columns and
 * the factor of H'. */
#include <math.h>
#include <stdlib.h>

#include "hessian/hessian.h"
#include "lib/encoder/encoder.h"

/* The smallest normal half: a smaller scale could not be stored with full precision, and
 * columns that are flatter than that lose nothing by a larger one. */
static const double SMALLEST_SCALE = 6.103515625e-5;

static vptq_status check_weights(uint32_t out, uint32_t in, const float *w, vptq_err *err)
{
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++)
            if (!isfinite(w[r * in + c]))
                return vptq_fail(
                    err, VPTQ_E_NUMERIC,
                    "weight at row %zu, column %zu is %g, expected a finite number", r, c,
                    (double)w[r * in + c]);
    return VPTQ_OK;
}

/* `name` begins the message. */
static vptq_status check_hessian(const char *name, uint32_t in, const float *lower,
                                 vptq_err *err)
{
    const float *row = lower;

    if (!lower)
        return VPTQ_OK;
    for (size_t i = 0; i < in; i++, row += i) {
        for (size_t j = 0; j <= i; j++)
            if (!vptq_hessian_usable(row[j]))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "%s entry (%zu, %zu) is %g, expected a finite number below "
                                 "1e24",
                                 name, i, j, (double)row[j]);
        if (row[i] < 0)
            return vptq_fail(err, VPTQ_E_NUMERIC,
                             "%s diagonal %zu is %g, expected zero or a positive number", name,
                             i, (double)row[i]);
    }
    return VPTQ_OK;
}

static vptq_status average_diagonal(vptq_problem *p, vptq_err *err)
{
    for (size_t i = 0; i < p->in; i++) {
        double h = (double)p->lower[i * (i + 1) / 2 + i];
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

static void mean_and_deviation(size_t out, size_t in, const float *w, column_stats *k)
{
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++)
            k->bias[c] += (double)w[r * in + c];
    for (size_t c = 0; c < in; c++)
        k->bias[c] /= (double)out;
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++) {
            double d = (double)w[r * in + c] - k->bias[c];
            k->scale[c] += d * d;
        }
    for (size_t c = 0; c < in; c++)
        k->scale[c] = sqrt(k->scale[c] / (double)out);
}

static void minimum_and_range(size_t out, size_t in, const float *w, column_stats *k)
{
    for (size_t c = 0; c < in; c++) {
        double min = (double)w[c], max = min;
        for (size_t r = 1; r < out; r++) {
            double x = (double)w[r * in + c];
            min = x < min ? x : min;
            max = x > max ? x : max;
        }
        k->bias[c] = min;
        k->scale[c] = max - min;
    }
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
    const float *w = p->input->w;
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
    if (p->settings->norm == VPTQ_NORM_STD)
        mean_and_deviation(p->out, in, w, &k);
    else
        minimum_and_range(p->out, in, w, &k);
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

/* Entry (i, j) of a packed Hessian, positions. */
static double raw_entry(const vptq_problem *p, const float *lower, size_t i, size_t j)
{
    const size_t a = p->order[i], b = p->order[j], hi = a > b ? a : b, lo = a > b ? b : a;
    return (double)lower[hi * (hi + 1) / 2 + lo];
}

static double metric_entry(const vptq_problem *p, size_t i, size_t j)
{
    double h = raw_entry(p, p->lower, i, j);
    if (i == j)
        h += p->settings->ridge * p->mean_diag;
    return metric_scale(p, p->order[i]) * h * metric_scale(p, p->order[j]);
}

void vptq_problem_metric(const vptq_problem *p, double *a)
{
    for (size_t i = 0; i < p->in; i++)
        for (size_t j = 0; j <= i; j++)
            a[i * p->in + j] = metric_entry(p, i, j);
}

void vptq_problem_raw(const vptq_problem *p, const float *lower, float *h)
{
    for (size_t i = 0; i < p->in; i++)
        for (size_t j = 0; j <= i; j++)
            h[i * p->in + j] = h[j * p->in + i] = (float)raw_entry(p, lower, i, j);
}

static void weigh_columns(vptq_problem *p)
{
    for (size_t c = 0; c < p->in; c++) {
        double h = (double)p->lower[c * (c + 1) / 2 + c] + p->settings->ridge * p->mean_diag;
        p->column_diag[c] = metric_scale(p, c) * h * metric_scale(p, c);
    }
}

void vptq_problem_normalize(vptq_problem *p)
{
    const float *w = p->input->w;

    weigh_columns(p);
    for (size_t i = 0; i < p->in; i++) {
        const size_t c = p->order[i];
        float *z = p->z + i * p->rows;
        for (size_t r = 0; r < p->out; r++)
            z[r] = (w[r * p->in + c] - p->bias[c]) / p->scale[c];
        for (size_t r = p->out; r < p->rows; r++)
            z[r] = 0;
        for (size_t j = 0; j <= i; j++)
            p->h[i * p->in + j] = p->h[j * p->in + i] = (float)metric_entry(p, i, j);
        p->diag[i] = (float)(p->column_diag[c] + p->damping);
        if (p->damping > 0)
            p->h[i * p->in + i] = p->diag[i];
    }
}

/* Factors H'.  The damping that this needed is added to H' itself: without it the steps after
 * the column pass would minimize an indefinite form and diverge. */
static vptq_status factor(vptq_problem *p, vptq_device *dev, vptq_arena *scratch, vptq_err *err)
{
    vptq_arena_mark mark = vptq_arena_get_mark(scratch);
    double mean = 0, *a = vptq_arena_alloc(scratch, (size_t)p->in * p->in, sizeof *a, err);

    if (!a)
        return VPTQ_E_NOMEM;
    vptq_problem_metric(p, a);
    VPTQ_CHECK(
        vptq_hessian_factor(dev, p->in, a, p->settings->damping, p->u, &p->damping_added, err));
    vptq_arena_rewind(scratch, mark);
    for (size_t c = 0; c < p->in; c++)
        mean += p->column_diag[c] / p->in;
    p->damping = p->damping_added * mean;
    if (p->damping > 0)
        vptq_problem_normalize(p);
    return VPTQ_OK;
}

static vptq_status make_arrays(vptq_problem *p, vptq_arena *scratch, vptq_err *err)
{
    size_t size, square;

    if (!vptq_size_mul(p->in, p->in, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         p->in);
    if (!vptq_size_mul(p->rows, p->in, &size))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory",
                         p->out, p->in);
    p->scale = vptq_arena_alloc(scratch, p->in, sizeof *p->scale, err);
    p->bias = p->scale ? vptq_arena_alloc(scratch, p->in, sizeof *p->bias, err) : NULL;
    p->column_diag =
        p->bias ? vptq_arena_alloc(scratch, p->in, sizeof *p->column_diag, err) : NULL;
    p->order = p->column_diag ? vptq_arena_alloc(scratch, p->in, sizeof *p->order, err) : NULL;
    p->z = p->order ? vptq_arena_alloc(scratch, size, sizeof *p->z, err) : NULL;
    p->h = p->z ? vptq_arena_alloc(scratch, square, sizeof *p->h, err) : NULL;
    p->diag = p->h ? vptq_arena_alloc(scratch, p->in, sizeof *p->diag, err) : NULL;
    p->u = p->diag ? vptq_arena_alloc(scratch, square, sizeof *p->u, err) : NULL;
    return p->u ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_problem_make(vptq_problem *p, vptq_device *dev, const vptq_encoder_settings *s,
                              const vptq_encoder_input *input, const vptq_columns *columns,
                              vptq_arena *scratch, vptq_err *err)
{
    *p = (vptq_problem){.settings = s,
                        .input = input,
                        .lower = input->metric ? input->metric : input->lower,
                        .in = input->in,
                        .out = input->out,
                        .rows = columns->rows};
    VPTQ_CHECK(make_arrays(p, scratch, err));
    VPTQ_CHECK(check_hessian("hessian", p->in, input->lower, err));
    VPTQ_CHECK(check_hessian("weighted hessian", p->in, input->metric, err));
    VPTQ_CHECK(check_hessian("held-out hessian", p->in, input->held_out, err));
    VPTQ_CHECK(check_weights(p->out, p->in, input->w, err));
    VPTQ_CHECK(average_diagonal(p, err));

    vptq_arena_mark mark = vptq_arena_get_mark(scratch);
    VPTQ_CHECK(column_norms(p, scratch, err));
    weigh_columns(p);
    VPTQ_CHECK(order_columns(p, columns->shape.outliers, scratch, err));
    vptq_arena_rewind(scratch, mark);
    vptq_problem_normalize(p);
    return factor(p, dev, scratch, err);
}
