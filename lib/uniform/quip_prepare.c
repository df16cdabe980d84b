/* QuIP#: rotation, scale and factors. */
#include <math.h>

#include "hessian/hessian.h"
#include "lib/backend/mirror.h"
#include "lib/base/hadamard.h"
#include "lib/base/parallel.h"
#include "lib/base/rng.h"
#include "lib/uniform/quip_internal.h"

enum { V = VPTQ_LATTICE_V, ROWS = 16 };

/* Fills a square matrix from the packed triangle `lower`, with signs. */
static void unpack_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_quip *q = arg;
    const size_t in = q->shape.in;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < in; j++) {
            const size_t high = i > j ? i : j, low = i > j ? j : i;
            const float x = q->input->lower[high * (high + 1) / 2 + low];
            q->h[i * in + j] = q->column_signs[i] != q->column_signs[j] ? -x : x;
        }
    vptq_hadamard_rows(end - begin, in, false, q->h + begin * in);
}

/* Swaps elements (i, j) and (j, i), j < i, of rows [begin, end). */
static void swap_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_quip *q = arg;
    const size_t in = q->shape.in;
    (void)thread;
    for (size_t first = 0; first < end; first += ROWS)
        for (size_t i = begin; i < end; i++)
            for (size_t j = first; j < first + ROWS && j < i; j++) {
                const float x = q->h[i * in + j];
                q->h[i * in + j] = q->h[j * in + i];
                q->h[j * in + i] = x;
            }
}

static void rotate_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_quip *q = arg;
    const size_t in = q->shape.in;
    (void)thread;
    vptq_hadamard_rows(end - begin, in, false, q->h + begin * in);
}

/* lower = the packed triangle of A S H S A^T, with q->h as scratch. */
static void rotate_hessian(vptq_quip *q, float *lower)
{
    const size_t in = q->shape.in;
    const int threads = q->dev->ctx->threads;
    vptq_parallel_for(threads, in, ROWS, unpack_rows, q);
    vptq_parallel_for(threads, in, ROWS, swap_rows, q);
    vptq_parallel_for(threads, in, ROWS, rotate_rows, q);
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j <= i; j++)
            lower[i * (i + 1) / 2 + j] = q->h[i * in + j];
}

/* ---- factors ---- */

typedef struct factoring {
    const vptq_quip *q;
    const double *a; /* [in, in] below: the Cholesky factor C of h */
} factoring;

/* Rows [begin, end) of L: the blocks of C, each times the inverse of its diagonal block. */
static void divide_rows(void *arg, size_t begin, size_t end, int thread)
{
    const factoring *f = arg;
    const size_t in = f->q->shape.in;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        for (size_t first = 0; first + V <= i; first += V) {
            double x[V];
            for (size_t e = V; e-- > 0;) {
                x[e] = f->a[i * in + first + e];
                for (size_t g = e + 1; g < V; g++)
                    x[e] -= x[g] * f->a[(first + g) * in + first + e];
                x[e] /= f->a[(first + e) * in + first + e];
                f->q->l[i * in + first + e] = (float)x[e];
            }
        }
}

/* inverse [V][V] of the symmetric positive definite block of h at column `first`, by
 * elimination without pivots. */
static void invert_block(const vptq_quip *q, size_t first, float *inverse)
{
    double a[V][V];
    for (size_t i = 0; i < V; i++)
        for (size_t j = 0; j < V; j++)
            a[i][j] = (double)q->h[(first + i) * q->shape.in + first + j];
    for (size_t p = 0; p < V; p++) {
        const double pivot = 1 / a[p][p];
        a[p][p] = 1;
        for (size_t j = 0; j < V; j++)
            a[p][j] *= pivot;
        for (size_t i = 0; i < V; i++) {
            const double factor = a[i][p];
            if (i == p)
                continue;
            a[i][p] = 0;
            for (size_t j = 0; j < V; j++)
                a[i][j] -= factor * a[p][j];
        }
    }
    for (size_t i = 0; i < V; i++)
        for (size_t j = 0; j < V; j++)
            inverse[i * V + j] = (float)a[i][j];
}

/* h with its ridge, and in `a` its Cholesky factor. */
static vptq_status cholesky(const vptq_quip *q, const float *lower, double *a,
                            double *damping_added, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t in = q->shape.in;
    double mean;
    vptq_mirror m = vptq_mirror_of(q->dev);
    float *h = vptq_mirror_take(&m, q->h, in, in * sizeof *q->h, VPTQ_MIRROR_DOWNLOAD);
    vptq_metric_args metric = {
        .n = in,
        .lower = vptq_mirror_in(&m, lower, in * (in + 1) / 2, sizeof *lower),
        .divisor = 1,
        .a = vptq_mirror_take(&m, a, in, in * sizeof *a, VPTQ_MIRROR_DOWNLOAD)};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(vptq_hessian_mean_diagonal(q->dev, &metric, &mean, err));
    metric.ridge = q->s->ridge * mean;
    VPTQ_TRY(vptq_hessian_factor_lower(q->dev, &metric, q->s->damping, damping_added, err));
    metric.a = NULL;
    metric.h = h;
    VPTQ_TRY(q->dev->ops->metric(q->dev->state, &metric, err));
out:
    return vptq_mirror_end(&m, st, err);
}

static vptq_status check_finite(const vptq_quip *q, vptq_err *err)
{
    const size_t in = q->shape.in;
    vptq_mirror m = vptq_mirror_of(q->dev);
    const float *lower = vptq_mirror_in(&m, q->input->lower, in * (in + 1) / 2, sizeof *lower);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st)
        st = vptq_hessian_check_finite(q->dev, in, lower, err);
    return vptq_mirror_end(&m, st, err);
}

static vptq_status factor(vptq_quip *q, double *damping_added, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t in = q->shape.in;
    vptq_mem *mem = q->dev->ctx->mem;
    double *a = NULL;
    float *lower = vptq_mem_alloc(mem, in * (in + 1) / 2, sizeof *lower, err);
    if (!lower)
        return VPTQ_E_NOMEM;
    a = vptq_mem_alloc(mem, in, in * sizeof *a, err);
    if (!a) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    rotate_hessian(q, lower);
    VPTQ_TRY(cholesky(q, lower, a, damping_added, err));
    factoring f = {q, a};
    vptq_parallel_for(q->dev->ctx->threads, in, ROWS, divide_rows, &f);
    for (size_t k = 0; k < in / V; k++)
        invert_block(q, k * V, q->inverse + k * V * V);
out:
    vptq_mem_free(mem, a);
    vptq_mem_free(mem, lower);
    return st;
}

/* ---- weights ---- */

/* Columns are rotated within rows, in q->what. */
static void rotate_columns(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_quip *q = arg;
    const size_t in = q->shape.in;
    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t c = 0; c < in; c++) {
            const float x = q->input->w[r * in + c];
            q->what[r * in + c] = q->column_signs[c] != q->row_signs[r] ? -x : x;
        }
    vptq_hadamard_rows(end - begin, in, false, q->what + begin * in);
}

/* Columns [begin, end) of the rotated weights. */
static void rotate_outputs(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_quip *q = arg;
    const size_t out = q->shape.out, in = q->shape.in;
    (void)thread;
    for (size_t r = 0; r < out; r++)
        for (size_t c = begin; c < end; c++)
            q->w[c * out + r] = q->what[r * in + c];
    vptq_hadamard_rows(end - begin, out, false, q->w + begin * out);
}

/* Divides by the scale at which E8P loses least of normal weights, as published; it is 0 if all
 * weights are. */
static void scale_weights(vptq_quip *q)
{
    static const double best_scale[] = {1.03, 0.98, 1.03};
    static const float residual_scale[] = {1, 2.04F, 3.45F};
    const uint32_t extra = q->s->bits - VPTQ_QUIP_MIN_BITS;
    const size_t n = (size_t)q->shape.out * q->shape.in;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)q->w[i] * (double)q->w[i];
    q->scale = (float)(sqrt(sum / (double)n) / best_scale[extra]);
    q->residual_scale = residual_scale[extra];
    for (size_t i = 0; i < n; i++) {
        q->w[i] = q->scale > 0 ? q->w[i] / q->scale : 0;
        q->z[i] = q->w[i];
    }
}

static void draw_signs(uint64_t seed, uint32_t matrix_id, uint32_t side, size_t n,
                       uint8_t *signs)
{
    const vptq_rng rng = vptq_rng_make(seed, matrix_id, side, VPTQ_RNG_SIGNS);
    for (size_t i = 0; i < n; i++)
        signs[i] = vptq_rng_u64(&rng, i) & 1;
}

vptq_status vptq_quip_prepare(vptq_quip *q, uint32_t matrix_id, double *damping_added,
                              vptq_err *err)
{
    const int threads = q->dev->ctx->threads;
    draw_signs(q->s->seed, matrix_id, 0, q->shape.out, q->row_signs);
    draw_signs(q->s->seed, matrix_id, 1, q->shape.in, q->column_signs);
    VPTQ_CHECK(check_finite(q, err));
    VPTQ_CHECK(factor(q, damping_added, err));
    vptq_parallel_for(threads, q->shape.out, ROWS, rotate_columns, q);
    vptq_parallel_for(threads, q->shape.in, ROWS, rotate_outputs, q);
    scale_weights(q);
    return VPTQ_OK;
}
