/* Least squares over the codebooks of GPTVQ.  With fixed indices Q is linear in the codebooks:
 * Q = G(C) (gather), and tr((Q - W) H (Q - W)^T) is smallest where G^T((Q - W) H) = 0 (G^T adds
 * up by number of a codebook).  Rows meet no others in it but those that share codebooks, so
 * every block of rows has a system of its own, which conjugate gradients solve, preconditioned
 * by its diagonal, all at once: an iteration is one product with H. */
#include <math.h>
#include <string.h>

#include "lib/backend/mirror.h"
#include "lib/base/parallel.h"
#include "lib/uniform/gptvq_internal.h"

enum { ITERATIONS = 16 };

/* Of the first residual, in the norm of the preconditioner. */
static const double tolerance = 1e-12;

typedef struct fitting {
    vptq_gptvq *q;
    vptq_mirror arrays;
    size_t blocks, n;  /* row blocks; unknowns of each */
    float *x;          /* [out, in] a matrix on its way to the product with H, and */
    float *y;          /* the product */
    const float *x_on; /* the same on the device, and H [in, in] */
    float *y_on;
    const float *h_on;
    float *best;                /* [blocks][n] codebooks before fitting */
    double *c, *r, *m, *s, *d;  /* [blocks][n] solution, residual, diagonal, direction */
    double *rho, *first, *loss; /* [blocks] */
    bool out_of_range;
} fitting;

/* ---- the system ---- */

/* Rows of a row block. */
static size_t rows_of(const fitting *f, size_t block, size_t *first)
{
    const vptq_additive_shape *s = &f->q->shape;
    const size_t left = s->out - block * s->block_rows;
    *first = block * s->block_rows;
    return left < s->block_rows ? left : s->block_rows;
}

/* Number of the row block's unknowns that vector t of row r uses first. */
static size_t unknown_of(const vptq_gptvq *q, size_t r, size_t t)
{
    const vptq_additive_shape *s = &q->shape;
    const size_t block = t * s->v / s->block_columns;
    return (block * vptq_gptvq_k(q) + q->idx[r * (s->in / s->v) + t]) * s->v;
}

/* x = G(d) for the rows of a block; without d, Q - W. */
static void gather(const fitting *f, size_t block, const double *d)
{
    const vptq_gptvq *q = f->q;
    const size_t in = q->shape.in, v = q->shape.v;
    const float *codebooks = q->codebooks + block * f->n;
    size_t first;
    for (size_t rows = rows_of(f, block, &first), r = first; r < first + rows; r++)
        for (size_t t = 0; t < in / v; t++) {
            const size_t from = unknown_of(q, r, t), to = r * in + t * v;
            for (size_t e = 0; e < v; e++)
                f->x[to + e] =
                    d ? (float)d[from + e] : codebooks[from + e] - q->input->w[to + e];
        }
}

/* sums = G^T(y); with `diagonal` also that of G^T H G. */
static void scatter(const fitting *f, size_t block, double *sums, double *diagonal)
{
    const vptq_gptvq *q = f->q;
    const size_t in = q->shape.in, v = q->shape.v;
    size_t first;
    memset(sums, 0, f->n * sizeof *sums);
    for (size_t rows = rows_of(f, block, &first), r = first; r < first + rows; r++)
        for (size_t t = 0; t < in / v; t++) {
            const size_t to = unknown_of(q, r, t), c = t * v;
            for (size_t e = 0; e < v; e++) {
                sums[to + e] += (double)f->y[r * in + c + e];
                if (diagonal)
                    diagonal[to + e] +=
                        (double)q->input->lower[(c + e) * (c + e + 1) / 2 + c + e];
            }
        }
}

static double dot(size_t n, const double *x, const double *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* tr(E H E^T) of a block's rows, from x = E and y = E H. */
static double loss_of(const fitting *f, size_t block)
{
    const size_t in = f->q->shape.in;
    double sum = 0;
    size_t first;
    const size_t rows = rows_of(f, block, &first);
    for (size_t i = first * in; i < (first + rows) * in; i++)
        sum += (double)f->x[i] * (double)f->y[i];
    return sum;
}

/* y = x H. */
static vptq_status multiply(fitting *f, vptq_err *err)
{
    const size_t out = f->q->shape.out, in = f->q->shape.in;
    const vptq_gemm_args g = {.m = out,
                              .n = in,
                              .k = in,
                              .a = f->x_on,
                              .b = f->h_on,
                              .c = f->y_on,
                              .lda = in,
                              .ldb = in,
                              .ldc = in,
                              .alpha = 1};
    const vptq_device *dev = f->q->dev;
    VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
    VPTQ_CHECK(vptq_mirror_push(&f->arrays, f->x, out * in * sizeof *f->x, err));
    VPTQ_CHECK(dev->ops->gemm(dev->state, &g, err));
    return vptq_mirror_pull(&f->arrays, f->y, out * in * sizeof *f->y, err);
}

/* ---- steps of all blocks ---- */

static void gather_errors(void *arg, size_t begin, size_t end, int thread)
{
    const fitting *f = arg;
    (void)thread;
    for (size_t b = begin; b < end; b++)
        gather(f, b, NULL);
}

static void gather_directions(void *arg, size_t begin, size_t end, int thread)
{
    const fitting *f = arg;
    (void)thread;
    for (size_t b = begin; b < end; b++)
        gather(f, b, f->d + b * f->n);
}

/* s = r / m where there is weight; returns the squared residual in that norm. */
static double precondition(const fitting *f, size_t block)
{
    const size_t at = block * f->n;
    for (size_t i = at; i < at + f->n; i++)
        f->s[i] = f->m[i] > 0 ? f->r[i] / f->m[i] : 0;
    return dot(f->n, f->r + at, f->s + at);
}

/* The residual of the codebooks as they are, and the first direction. */
static void start_blocks(void *arg, size_t begin, size_t end, int thread)
{
    const fitting *f = arg;
    (void)thread;
    for (size_t b = begin; b < end; b++) {
        const size_t at = b * f->n;
        scatter(f, b, f->r + at, f->m + at);
        for (size_t i = at; i < at + f->n; i++) {
            f->r[i] = -f->r[i];
            f->c[i] = (double)f->q->codebooks[i];
        }
        f->loss[b] = loss_of(f, b);
        f->rho[b] = f->first[b] = precondition(f, b);
        memcpy(f->d + at, f->s + at, f->n * sizeof *f->d);
    }
}

/* One step of conjugate gradients; s is G^T H G d at first. */
static void step_blocks(void *arg, size_t begin, size_t end, int thread)
{
    const fitting *f = arg;
    (void)thread;
    for (size_t b = begin; b < end; b++) {
        const size_t at = b * f->n;
        double *d = f->d + at;
        scatter(f, b, f->s + at, NULL);
        const double curvature = dot(f->n, d, f->s + at), before = f->rho[b];
        if (!(curvature > 0) || !(before > tolerance * f->first[b])) {
            memset(d, 0, f->n * sizeof *d);
            continue;
        }
        for (size_t i = 0; i < f->n; i++) {
            f->c[at + i] += before / curvature * d[i];
            f->r[at + i] -= before / curvature * f->s[at + i];
        }
        f->rho[b] = precondition(f, b);
        for (size_t i = 0; i < f->n; i++)
            d[i] = f->s[at + i] + f->rho[b] / before * d[i];
    }
}

static bool is_solved(const fitting *f)
{
    size_t b = 0;
    while (b < f->blocks && !(f->rho[b] > tolerance * f->first[b]))
        b++;
    return b == f->blocks;
}

/* Codebooks = the rounded solution. */
static void round_blocks(void *arg, size_t begin, size_t end, int thread)
{
    fitting *f = arg;
    const size_t each = vptq_gptvq_k(f->q) * f->q->shape.v, v = f->q->shape.v;
    (void)thread;
    for (size_t at = begin * f->n; at < end * f->n; at += each) {
        double *weight = f->s + at; /* not used any more */
        for (size_t i = 0; i < each; i++)
            f->q->codebooks[at + i] = (float)f->c[at + i];
        for (size_t c = 0; c < each / v; c++) {
            weight[c] = 0;
            for (size_t e = 0; e < v; e++)
                weight[c] += f->m[at + c * v + e];
        }
        if (!vptq_gptvq_round(f->q, f->q->codebooks + at, weight)) /* keep the old one */
            memcpy(f->q->codebooks + at, f->best + at, each * sizeof *f->best);
    }
}

static void keep_better(void *arg, size_t begin, size_t end, int thread)
{
    const fitting *f = arg;
    (void)thread;
    for (size_t b = begin; b < end; b++)
        if (!(loss_of(f, b) < f->loss[b]))
            memcpy(f->q->codebooks + b * f->n, f->best + b * f->n, f->n * sizeof *f->best);
}

/* ---- all of it ---- */

static vptq_status allocate(fitting *f, vptq_err *err)
{
    vptq_gptvq *q = f->q;
    vptq_arena *a = &q->scratch;
    const size_t out = q->shape.out, in = q->shape.in, all = f->blocks * f->n;
    double **arrays[] = {&f->c, &f->r, &f->m, &f->s, &f->d};
    double **numbers[] = {&f->rho, &f->first, &f->loss};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if (!(*arrays[i] = vptq_arena_zalloc(a, all, sizeof(double), err)))
            return VPTQ_E_NOMEM;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!(*numbers[i] = vptq_arena_alloc(a, f->blocks, sizeof(double), err)))
            return VPTQ_E_NOMEM;
    f->best = vptq_arena_alloc(a, all, sizeof *f->best, err);
    f->x = f->best ? q->w : NULL; /* the pass is over */
    f->y = f->x ? vptq_arena_alloc(a, out, in * sizeof *f->y, err) : NULL;
    if (!f->y)
        return VPTQ_E_NOMEM;
    memcpy(f->best, q->codebooks, all * sizeof *f->best);
    return VPTQ_OK;
}

/* q->u = H, both triangles. */
static void expand(const vptq_gptvq *q)
{
    const size_t in = q->shape.in;
    const float *lower = q->input->lower;
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j <= i; j++)
            q->u[i * in + j] = q->u[j * in + i] = *lower++;
}

static void each_block(fitting *f, vptq_range_fn fn)
{
    vptq_parallel_for(f->q->dev->ctx->threads, f->blocks, 1, fn, f);
}

static vptq_status fit(fitting *f, vptq_err *err)
{
    each_block(f, gather_errors);
    VPTQ_CHECK(multiply(f, err));
    each_block(f, start_blocks);
    for (int i = 0; i < ITERATIONS && !is_solved(f); i++) {
        each_block(f, gather_directions);
        VPTQ_CHECK(multiply(f, err));
        each_block(f, step_blocks);
    }
    each_block(f, round_blocks);
    each_block(f, gather_errors);
    VPTQ_CHECK(multiply(f, err));
    each_block(f, keep_better);
    return VPTQ_OK;
}

vptq_status vptq_gptvq_refit(vptq_gptvq *q, vptq_err *err)
{
    const vptq_additive_shape *s = &q->shape;
    const size_t out = s->out, in = s->in, blocks = (s->out - 1) / s->block_rows + 1;
    vptq_status st = VPTQ_OK;
    fitting f = {.q = q,
                 .arrays = vptq_mirror_of(q->dev),
                 .blocks = blocks,
                 .n = vptq_additive_blocks(s) / blocks * vptq_gptvq_k(q) * s->v};
    VPTQ_TRY(allocate(&f, err));
    expand(q);
    f.x_on = vptq_mirror_take(&f.arrays, f.x, out, in * sizeof *f.x, 0);
    f.y_on = vptq_mirror_take(&f.arrays, f.y, out, in * sizeof *f.y, 0);
    f.h_on = vptq_mirror_in(&f.arrays, q->u, in, in * sizeof *q->u);
    VPTQ_TRY(vptq_mirror_check(&f.arrays, err));
    st = fit(&f, err);
out:
    return vptq_mirror_end(&f.arrays, st, err);
}
