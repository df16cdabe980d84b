/* One matrix from weights to codes: metric, factor, k-means, storage rounding, column pass,
 * stored form, losses. */
#include <math.h>
#include <string.h>

#include "hessian/hessian.h"
#include "kmeans/kmeans.h"
#include "lib/quant/column_pass.h"
#include "lib/quant/metric.h"
#include "lib/quant/quant.h"

typedef struct job {
    vptq_device *dev;
    const vptq_quant_settings *s;
    uint32_t matrix_id, out, in;
    const float *w, *lower;
    vptq_arena *keep; /* the caller's: what the result points to */
    vptq_arena arena; /* work */
    vptq_metric metric;
    size_t rows, strips; /* out rounded up to v, and its vectors */
    float *z;            /* [in][rows] */
    float *u;            /* [in][in] */
    float *q;            /* [in][rows] chosen centroids */
    uint32_t *idx;       /* [in][strips] */
    float *book;         /* [k][v] exact in the storage type */
    vptq_quant_result *result;
} job;

static vptq_status factor(job *j, vptq_err *err)
{
    size_t square;
    vptq_arena_mark mark;

    if (!vptq_size_mul(j->in, j->in, &square))
        return vptq_fail(err, VPTQ_E_SHAPE, "a hessian of %u columns does not fit in memory",
                         j->in);
    j->u = vptq_arena_alloc(&j->arena, square, sizeof *j->u, err);
    if (!j->u)
        return VPTQ_E_NOMEM;
    mark = vptq_arena_get_mark(&j->arena);
    double *a = vptq_arena_alloc(&j->arena, square, sizeof *a, err);
    if (!a)
        return VPTQ_E_NOMEM;
    vptq_metric_matrix(&j->metric, j->s->ridge, j->lower, a);
    vptq_status st = vptq_hessian_factor(j->dev, j->in, a, j->s->damping, j->u,
                                         &j->result->report.damping_added, err);
    vptq_arena_rewind(&j->arena, mark);
    return st;
}

/* k-means over all vectors of the matrix, each weighted by the metric's diagonal at its column.
 */
static vptq_status train(job *j, vptq_err *err)
{
    const vptq_quant_settings *s = j->s;
    vptq_quant_report *report = &j->result->report;
    vptq_kmeans_options opt = vptq_kmeans_default(s->v, s->k);
    vptq_kmeans_stats stats;
    size_t n = j->strips * j->in;
    size_t values = (size_t)s->k * s->v;
    vptq_arena_mark mark;

    float *book_f32 = vptq_arena_alloc(j->keep, values, sizeof *book_f32, err);
    j->book = book_f32 ? vptq_arena_alloc(j->keep, values, sizeof *j->book, err) : NULL;
    if (!j->book)
        return VPTQ_E_NOMEM;
    mark = vptq_arena_get_mark(&j->arena);
    float *weight = vptq_arena_alloc(&j->arena, n, sizeof *weight, err);
    if (!weight)
        return VPTQ_E_NOMEM;
    for (size_t p = 0; p < j->in; p++)
        for (size_t i = 0; i < j->strips; i++)
            weight[p * j->strips + i] = (float)j->metric.diag[j->metric.order[p]];
    opt.iterations = (int)s->kmeans_iterations;
    opt.rng = vptq_rng_make(s->seed, j->matrix_id, 0, VPTQ_RNG_SEEDING);
    vptq_status st =
        vptq_kmeans_run(j->dev, &opt, n, j->z, weight, book_f32, j->idx, &stats, NULL, err);
    vptq_arena_rewind(&j->arena, mark);
    if (st)
        return st;
    memcpy(j->book, book_f32, values * sizeof *book_f32);
    vptq_round_to_n(s->storage, j->book, values);
    for (size_t i = 0; i < values; i++)
        if (!isfinite(j->book[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "a centroid of %g does not fit into %s",
                             (double)book_f32[i], vptq_dtype_get(s->storage)->name);
    j->result->centroids_f32 = book_f32;
    report->kmeans_iterations = stats.iterations;
    report->kmeans_repaired = stats.repaired;
    return VPTQ_OK;
}

/* The weights that a choice of q [in][rows] (processing order, normalized) stands for. */
static void denormalize(const job *j, const float *q, float *what)
{
    for (size_t p = 0; p < j->in; p++) {
        size_t c = j->metric.order[p];
        for (size_t r = 0; r < j->out; r++)
            what[r * j->in + c] = q[p * j->rows + r] * j->metric.scale[c] + j->metric.bias[c];
    }
}

static vptq_status measure(job *j, const char *name, const float *q, vptq_err *err)
{
    vptq_quant_loss l;
    vptq_arena_mark mark = vptq_arena_get_mark(&j->arena);
    float *what = vptq_arena_alloc(&j->arena, (size_t)j->out * j->in, sizeof *what, err);
    if (!what)
        return VPTQ_E_NOMEM;
    denormalize(j, q, what);
    vptq_status st = vptq_quant_measure(j->dev, j->out, j->in, j->w, what, j->lower, &l, err);
    vptq_arena_rewind(&j->arena, mark);
    if (!st)
        j->result->report.step[j->result->report.steps++] =
            (vptq_quant_step){.name = name, .loss = l.relative, .weighted = l.relative};
    return st;
}

/* The loss of the k-means labels as they are, before any feedback. */
static vptq_status measure_labels(job *j, vptq_err *err)
{
    size_t n = j->strips * j->in;
    uint32_t v = j->s->v;

    for (size_t i = 0; i < n; i++)
        memcpy(j->q + i * v, j->result->centroids_f32 + (size_t)j->idx[i] * v,
               v * sizeof *j->q);
    return measure(j, "k-means", j->q, err);
}

/* The stored form: packed indices in original column order, so that no permutation is needed.
 */
static vptq_status store(job *j, vptq_err *err)
{
    vptq_vq *vq = &j->result->vq;
    vptq_vq_shape shape = vptq_quant_shape(j->s, j->out, j->in);
    size_t words = vptq_vq_row_words(&shape);
    unsigned bits = vptq_vq_index_bits(&shape);

    uint32_t *indices = vptq_arena_zalloc(j->keep, j->strips * words, sizeof *indices, err);
    float *scale = indices ? vptq_arena_alloc(j->keep, j->in, sizeof *scale, err) : NULL;
    float *bias = scale ? vptq_arena_alloc(j->keep, j->in, sizeof *bias, err) : NULL;
    if (!bias)
        return VPTQ_E_NOMEM;
    for (size_t p = 0; p < j->in; p++)
        for (size_t r = 0; r < j->strips; r++)
            vptq_bits_put(indices + r * words, j->metric.order[p], bits,
                          j->idx[p * j->strips + r]);
    memcpy(scale, j->metric.scale, j->in * sizeof *scale);
    memcpy(bias, j->metric.bias, j->in * sizeof *bias);
    *vq = (vptq_vq){
        .shape = shape, .indices = indices, .centroids = j->book, .scale = scale, .bias = bias};
    return VPTQ_OK;
}

/* The final loss, of the matrix decoded from its stored form. */
static vptq_status measure_stored(job *j, vptq_err *err)
{
    vptq_quant_loss l;
    vptq_quant_report *report = &j->result->report;
    vptq_arena_mark mark = vptq_arena_get_mark(&j->arena);
    float *what = vptq_arena_alloc(&j->arena, (size_t)j->out * j->in, sizeof *what, err);
    if (!what)
        return VPTQ_E_NOMEM;
    vptq_status st =
        j->dev->ops->vq_dequant(j->dev->state, &j->result->vq, 0, j->out, what, j->in, err);
    if (!st)
        st = vptq_quant_measure(j->dev, j->out, j->in, j->w, what, j->lower, &l, err);
    vptq_arena_rewind(&j->arena, mark);
    if (st)
        return st;
    report->loss = l.relative;
    report->relative_mse = l.norm_sq > 0 ? l.error_sq / l.norm_sq : 0;
    return VPTQ_OK;
}

static vptq_status prepare(job *j, vptq_err *err)
{
    size_t n;

    j->strips = (j->out + j->s->v - 1) / j->s->v;
    j->rows = j->strips * j->s->v;
    if (!vptq_size_mul(j->rows, j->in, &n))
        return vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %u x %u does not fit in memory",
                         j->out, j->in);
    j->z = vptq_arena_alloc(&j->arena, n, sizeof *j->z, err);
    j->q = j->z ? vptq_arena_alloc(&j->arena, n, sizeof *j->q, err) : NULL;
    j->idx = j->q ? vptq_arena_alloc(&j->arena, j->strips * j->in, sizeof *j->idx, err) : NULL;
    if (!j->idx)
        return VPTQ_E_NOMEM;
    vptq_status st =
        vptq_metric_make(j->s, j->out, j->in, j->w, j->lower, &j->arena, &j->metric, err);
    if (st)
        return st;
    j->result->report.dead_columns = j->metric.dead;
    vptq_metric_normalize(&j->metric, j->out, j->rows, j->w, j->z);
    return VPTQ_OK;
}

static vptq_status run(job *j, vptq_step_fn on_step, void *arg, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_quant_report *report = &j->result->report;
    double begin = vptq_seconds();

    if (on_step)
        on_step(arg, "factor", NAN);
    VPTQ_TRY(prepare(j, err));
    VPTQ_TRY(factor(j, err));

    if (on_step)
        on_step(arg, "k-means", NAN);
    VPTQ_TRY(train(j, err));
    VPTQ_TRY(measure_labels(j, err));

    if (on_step)
        on_step(arg, "pass", report->step[0].loss);
    VPTQ_TRY(vptq_column_pass(j->dev, j->in, j->rows, j->s->v, j->s->k, j->z, j->u, j->book,
                              j->idx, j->q, err));
    VPTQ_TRY(measure(j, "pass", j->q, err));
    VPTQ_TRY(store(j, err));
    VPTQ_TRY(measure_stored(j, err));
    report->seconds = vptq_seconds() - begin;
out:
    return st;
}

vptq_status vptq_quant_matrix(vptq_device *dev, const vptq_quant_settings *s,
                              const vptq_quant_input *input, vptq_step_fn on_step, void *arg,
                              vptq_arena *arena, vptq_quant_result *result, vptq_err *err)
{
    job j = {.dev = dev,
             .s = s,
             .matrix_id = input->matrix_id,
             .out = input->out,
             .in = input->in,
             .w = input->w,
             .lower = input->lower,
             .keep = arena,
             .result = result};

    *result = (vptq_quant_result){0};
    vptq_status st = vptq_quant_check(s, j.out, j.in, err);
    if (st)
        return st;
    vptq_arena_init(&j.arena, dev->ctx->mem);
    st = run(&j, on_step, arg, err);
    vptq_arena_release(&j.arena);
    return st;
}
