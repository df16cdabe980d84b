/* Scales of columns for SmoothQuant and AWQ. */
#include "lib/uniform/fold.h"

#include <float.h>
#include <math.h>

#include "hessian/hessian.h"
#include "lib/backend/mirror.h"
#include "lib/base/parallel.h"

/* ---- SmoothQuant ---- */

/* max [in] = the largest |w| of every column of all matrices. */
static void column_max(const vptq_fold_input *input, float *max)
{
    for (size_t j = 0; j < input->in; j++)
        max[j] = 0;
    for (size_t i = 0; i < input->count; i++)
        for (size_t r = 0; r < input->matrix[i].out; r++)
            for (size_t j = 0; j < input->in; j++)
                max[j] = fmaxf(max[j], fabsf(input->matrix[i].w[r * input->in + j]));
}

void vptq_smooth_scales(const vptq_fold_input *input, double a, float *s)
{
    const double least = 1e-5; /* of a column's weights and of a scale, as published */
    column_max(input, s);
    for (size_t j = 0; j < input->in; j++) {
        const double x = (double)input->abs_max[j], w = (double)s[j];
        s[j] = x > 0 ? (float)fmax(pow(x, a) / pow(fmax(w, least), 1 - a), least) : 1;
    }
}

/* ---- AWQ ---- */

/* s_j = mean |x_j|^a, divided by the geometric mean of the smallest and the largest. */
static void awq_scales(const vptq_fold_input *input, double a, float *s)
{
    double low = INFINITY, high = 0;
    for (size_t j = 0; j < input->in; j++) {
        if (!(input->abs_mean[j] > 0))
            continue;
        const double x = fmax(pow((double)input->abs_mean[j], a), 1e-4);
        low = fmin(low, x);
        high = fmax(high, x);
        s[j] = (float)x;
    }
    for (size_t j = 0; j < input->in; j++)
        s[j] = input->abs_mean[j] > 0 ? (float)((double)s[j] / sqrt(low * high)) : 1;
}

/* Arrays for the largest matrix. */
typedef struct trial {
    vptq_device *dev;
    const vptq_fold_input *input;
    const float *lower; /* on the device */
    const float *s;
    const float *w; /* of the present matrix */
    float *scaled;  /* [out, in] W diag(s), then its rounding error divided by s */
    const vptq_uniform *u;
} trial;

static void scale_rows(void *arg, size_t begin, size_t end, int thread)
{
    const trial *t = arg;
    const size_t in = t->input->in;
    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t j = 0; j < in; j++)
            t->scaled[r * in + j] = t->w[r * in + j] * t->s[j];
}

static void subtract_rows(void *arg, size_t begin, size_t end, int thread)
{
    const trial *t = arg;
    const size_t in = t->input->in;
    (void)thread;
    vptq_uniform_read(t->u, begin, end - begin, t->scaled + begin * in);
    for (size_t r = begin; r < end; r++)
        for (size_t j = 0; j < in; j++)
            t->scaled[r * in + j] = t->scaled[r * in + j] / t->s[j] - t->w[r * in + j];
}

/* *trace = tr(X H X^T) for x [rows, in] in host memory. */
static vptq_status trace_of(const trial *t, size_t rows, const float *x, double *trace,
                            vptq_err *err)
{
    const uint32_t in = t->input->in;
    vptq_mirror m = vptq_mirror_of(t->dev);
    const float *on = vptq_mirror_in(&m, x, rows * in, sizeof *x);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_hessian_trace(t->dev, rows, in, on, t->lower, trace, err);
    return vptq_mirror_end(&m, st, err);
}

/* *error = tr(E H E^T) of a matrix that is scaled, rounded and scaled back. */
static vptq_status try_matrix(trial *t, const vptq_fold_matrix *m, double *error, vptq_err *err)
{
    enum { ROWS = 64 };
    vptq_status st = VPTQ_OK;
    vptq_uniform u;
    vptq_arena arena;
    double damping;
    const vptq_uniform_input scaled = {.out = m->out, .in = t->input->in, .w = t->scaled};
    const int threads = t->dev->ctx->threads;

    vptq_arena_init(&arena, t->dev->ctx->mem);
    t->w = m->w;
    t->u = &u;
    vptq_parallel_for(threads, m->out, ROWS, scale_rows, t);
    VPTQ_TRY(vptq_uniform_quantize(t->dev, &m->settings, &scaled, &arena, &u, &damping, err));
    vptq_parallel_for(threads, m->out, ROWS, subtract_rows, t);
    VPTQ_TRY(trace_of(t, m->out, t->scaled, error, err));
out:
    vptq_arena_release(&arena);
    return st;
}

/* *loss with the scales t->s: the sum of the logarithms of the relative losses of all matrices,
 * so that the matrix with the largest loss does not decide alone.  norm [count]: tr(W H W^T).
 */
static vptq_status try_scales(trial *t, const double *norm, double *loss, vptq_err *err)
{
    *loss = 0;
    for (size_t i = 0; i < t->input->count; i++) {
        double error;
        VPTQ_CHECK(vptq_check_cancel(t->dev->ctx, err));
        VPTQ_CHECK(try_matrix(t, &t->input->matrix[i], &error, err));
        if (norm[i] > 0)
            *loss += error == 0 ? log(DBL_MIN) : log(error / norm[i]);
    }
    return VPTQ_OK;
}

static vptq_status search(trial *t, double *norm, float *s, double *a, vptq_err *err)
{
    double best = INFINITY;
    int exponent = 0;
    for (size_t i = 0; i < t->input->count; i++)
        VPTQ_CHECK(trace_of(t, t->input->matrix[i].out, t->input->matrix[i].w, &norm[i], err));
    for (int i = 0; i < VPTQ_AWQ_EXPONENTS; i++) {
        double loss;
        awq_scales(t->input, (double)i / VPTQ_AWQ_EXPONENTS, s);
        VPTQ_CHECK(try_scales(t, norm, &loss, err));
        if (loss < best) {
            best = loss;
            exponent = i;
        }
    }
    *a = (double)exponent / VPTQ_AWQ_EXPONENTS;
    awq_scales(t->input, *a, s);
    return VPTQ_OK;
}

vptq_status vptq_awq_scales(vptq_device *dev, const vptq_fold_input *input, float *s, double *a,
                            vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    size_t rows = 0, largest;
    trial t = {.dev = dev, .input = input, .s = s};
    vptq_mirror hessian = vptq_mirror_of(dev);

    vptq_arena_init(&arena, dev->ctx->mem);
    for (size_t i = 0; i < input->count; i++)
        rows = input->matrix[i].out > rows ? input->matrix[i].out : rows;
    if (!vptq_size_mul(rows, input->in, &largest))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_SHAPE, "a matrix of %zu x %u does not fit in memory",
                           rows, input->in));
    double *norm = vptq_arena_alloc(&arena, input->count, sizeof *norm, err);
    t.scaled = norm ? vptq_arena_alloc(&arena, largest, sizeof *t.scaled, err) : NULL;
    if (!t.scaled)
        VPTQ_TRY(VPTQ_E_NOMEM);
    t.lower = vptq_mirror_in(&hessian, input->lower, vptq_triangle(input->in), sizeof *t.lower);
    VPTQ_TRY(vptq_mirror_check(&hessian, err));
    st = search(&t, norm, s, a, err);
out:
    vptq_arena_release(&arena);
    return vptq_mirror_end(&hessian, st, err);
}
