/* Trains the codebook of one block of GPTVQ. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/grid.h"
#include "lib/base/half.h"
#include "lib/uniform/gptvq_internal.h"

enum { ITERATIONS = 100 };

vptq_status vptq_gptvq_trainer_make(vptq_gptvq *q, vptq_gptvq_trainer *t, vptq_err *err)
{
    const vptq_additive_shape *s = &q->shape;
    const size_t v = s->v, k = vptq_gptvq_k(q), row = s->block_columns / v;
    vptq_arena *arena = &q->scratch;
    const size_t max = s->block_rows * row;
    t->ranked = vptq_arena_alloc(arena, max, sizeof *t->ranked, err);
    t->idx = t->ranked ? vptq_arena_alloc(arena, max, sizeof *t->idx, err) : NULL;
    t->metric = t->idx ? vptq_arena_alloc(arena, row * v * v, sizeof *t->metric, err) : NULL;
    t->a = t->metric ? vptq_arena_alloc(arena, k * v * v, sizeof *t->a, err) : NULL;
    t->b = t->a ? vptq_arena_alloc(arena, k * v, sizeof *t->b, err) : NULL;
    t->weight = t->b ? vptq_arena_alloc(arena, k, sizeof *t->weight, err) : NULL;
    t->scaled.c = t->weight ? vptq_arena_alloc(arena, k * v, sizeof(float), err) : NULL;
    t->scaled.cost = t->scaled.c ? vptq_arena_alloc(arena, k, sizeof(float), err) : NULL;
    return t->scaled.cost ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* ---- small matrices ---- */

/* Solves A x = y for the symmetric A [n, n] by Cholesky in place; coordinates without weight
 * become 0. */
static void solve(size_t n, double *a, double *x)
{
    for (size_t j = 0; j < n; j++) {
        for (size_t i = j; i < n; i++) {
            double sum = a[i * n + j];
            for (size_t p = 0; p < j; p++)
                sum -= a[i * n + p] * a[j * n + p];
            if (i == j)
                a[j * n + j] = sum > 0 ? sqrt(sum) : 0;
            else
                a[i * n + j] = a[j * n + j] > 0 ? sum / a[j * n + j] : 0;
        }
    }
    for (size_t j = 0; j < n; j++) {
        for (size_t p = 0; p < j; p++)
            x[j] -= a[j * n + p] * x[p];
        x[j] = a[j * n + j] > 0 ? x[j] / a[j * n + j] : 0;
    }
    for (size_t j = n; j-- > 0;) {
        for (size_t p = j + 1; p < n; p++)
            x[j] -= a[p * n + j] * x[p];
        x[j] = a[j * n + j] > 0 ? x[j] / a[j * n + j] : 0;
    }
}

/* m [v, v] = (U_t^T U_t)^-1, the metric of the vectors at position t. */
static void make_metric(const vptq_gptvq_block *b, size_t t, double *m)
{
    const size_t v = b->v;
    const float *u = b->u + t * v * (b->ldu + 1);
    double e[VPTQ_GPTVQ_MAX_V][VPTQ_GPTVQ_MAX_V]; /* row i: what the unit error i becomes */
    for (size_t i = 0; i < v; i++)
        for (size_t j = 0; j < v; j++) {
            double d = i == j;
            for (size_t p = 0; p < j; p++)
                d -= e[i][p] * (double)u[p * b->ldu + j];
            e[i][j] = d / (double)u[j * b->ldu + j];
        }
    for (size_t i = 0; i < v; i++)
        for (size_t j = 0; j < v; j++) {
            double sum = 0;
            for (size_t p = 0; p < v; p++)
                sum += e[i][p] * e[j][p];
            m[i * v + j] = sum;
        }
}

/* ---- first centroids ---- */

static int by_distance(const void *x, const void *y)
{
    const vptq_gptvq_ranked *a = x, *b = y;
    if (a->distance < b->distance || a->distance > b->distance)
        return a->distance < b->distance ? -1 : 1;
    return a->at < b->at ? -1 : 1;
}

static const float *vector(const vptq_gptvq_block *b, size_t i)
{
    return b->w + i / b->vectors * b->ld + i % b->vectors * b->v;
}

/* mean [v] and cov [v, v] of the vectors. */
static void find_moments(const vptq_gptvq_block *b, double *mean, double *cov)
{
    const size_t v = b->v, n = b->rows * b->vectors;
    memset(mean, 0, v * sizeof *mean);
    memset(cov, 0, v * v * sizeof *cov);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < v; j++)
            mean[j] += (double)vector(b, i)[j];
    for (size_t j = 0; j < v; j++)
        mean[j] /= (double)n;
    for (size_t i = 0; i < n; i++) {
        const float *x = vector(b, i);
        for (size_t j = 0; j < v; j++)
            for (size_t p = 0; p < v; p++)
                cov[j * v + p] += ((double)x[j] - mean[j]) * ((double)x[p] - mean[p]);
    }
}

/* k vectors at equal steps of the order by Mahalanobis distance. */
static void seed(const vptq_gptvq_block *b, vptq_gptvq_ranked *ranked)
{
    enum { V = VPTQ_GPTVQ_MAX_V };
    const size_t v = b->v, n = b->rows * b->vectors;
    double mean[V], cov[V * V], a[V * V], x[V];
    find_moments(b, mean, cov);
    for (size_t i = 0; i < n; i++) {
        double distance = 0;
        for (size_t j = 0; j < v; j++)
            x[j] = (double)vector(b, i)[j] - mean[j];
        memcpy(a, cov, v * v * sizeof *a);
        solve(v, a, x);
        for (size_t j = 0; j < v; j++)
            distance += x[j] * ((double)vector(b, i)[j] - mean[j]);
        ranked[i] = (vptq_gptvq_ranked){distance, (uint32_t)i};
    }
    qsort(ranked, n, sizeof *ranked, by_distance);
    for (size_t c = 0; c < b->k; c++) {
        const size_t at = (size_t)rint((double)c * (double)(n - 1) / (double)(b->k - 1));
        memcpy(b->codebook + c * v, vector(b, ranked[at].at), v * sizeof(float));
    }
}

/* ---- expectation and maximization ---- */

void vptq_gptvq_scale(const vptq_gptvq_block *b, size_t t, const vptq_gptvq_scaled *s)
{
    const float *u = b->u + t * b->v * (b->ldu + 1);
    float e[VPTQ_GPTVQ_MAX_V];
    for (size_t c = 0; c < b->k; c++) {
        vptq_gptvq_solve(b->v, u, b->ldu, b->codebook + c * b->v, e);
        for (size_t j = 0; j < b->v; j++)
            s->c[j * b->k + c] = e[j];
    }
}

uint32_t vptq_gptvq_nearest(const vptq_gptvq_block *b, size_t t, const vptq_gptvq_scaled *s,
                            const float *x)
{
    float y[VPTQ_GPTVQ_MAX_V], best = INFINITY;
    uint32_t found = 0;
    vptq_gptvq_solve(b->v, b->u + t * b->v * (b->ldu + 1), b->ldu, x, y);
    memset(s->cost, 0, b->k * sizeof *s->cost);
    for (size_t j = 0; j < b->v; j++)
        for (size_t c = 0; c < b->k; c++) {
            const float d = y[j] - s->c[j * b->k + c];
            s->cost[c] += d * d;
        }
    for (size_t c = 0; c < b->k; c++)
        if (s->cost[c] < best) {
            best = s->cost[c];
            found = (uint32_t)c;
        }
    return found;
}

/* Assigns every vector; returns how many have another centroid than before. */
static size_t assign(const vptq_gptvq_block *b, const vptq_gptvq_trainer *t)
{
    size_t moved = 0;
    for (size_t p = 0; p < b->vectors; p++) {
        vptq_gptvq_scale(b, p, &t->scaled);
        for (size_t i = p; i < b->rows * b->vectors; i += b->vectors) {
            const uint32_t c = vptq_gptvq_nearest(b, p, &t->scaled, vector(b, i));
            moved += c != t->idx[i];
            t->idx[i] = c;
        }
    }
    return moved;
}

/* Sums of the metric, and of the metric times the vectors, by centroid. */
static void accumulate(const vptq_gptvq_block *b, const vptq_gptvq_trainer *t)
{
    const size_t v = b->v;
    memset(t->a, 0, b->k * v * v * sizeof *t->a);
    memset(t->b, 0, b->k * v * sizeof *t->b);
    memset(t->weight, 0, b->k * sizeof *t->weight);
    for (size_t i = 0; i < b->rows * b->vectors; i++) {
        const double *m = t->metric + i % b->vectors * v * v;
        const float *x = vector(b, i);
        double *a = t->a + t->idx[i] * v * v, *sum = t->b + t->idx[i] * v;
        for (size_t j = 0; j < v; j++) {
            t->weight[t->idx[i]] += m[j * v + j];
            for (size_t p = 0; p < v; p++) {
                a[j * v + p] += m[j * v + p];
                sum[j] += m[j * v + p] * (double)x[p];
            }
        }
    }
}

/* Moves every centroid that has vectors to where they cost least. */
static void move(const vptq_gptvq_block *b, const vptq_gptvq_trainer *t)
{
    const size_t v = b->v;
    accumulate(b, t);
    for (size_t c = 0; c < b->k; c++) {
        if (!(t->weight[c] > 0))
            continue;
        solve(v, t->a + c * v * v, t->b + c * v);
        for (size_t j = 0; j < v; j++)
            b->codebook[c * v + j] = (float)t->b[c * v + j];
    }
}

bool vptq_gptvq_round(const vptq_gptvq *q, float *codebook, const double *weight)
{
    const size_t k = vptq_gptvq_k(q), n = k * q->shape.v;
    if (q->s->int8) {
        const float scale = vptq_grid_choose(q->s->storage, k, q->shape.v, codebook, weight);
        if (scale > 0)
            vptq_grid_round(scale, codebook, n);
        return scale > 0;
    }
    vptq_round_to_n(q->s->storage, codebook, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(codebook[i]))
            return false;
    return true;
}

bool vptq_gptvq_train(const vptq_gptvq *q, const vptq_gptvq_block *b, vptq_gptvq_trainer *t)
{
    for (size_t p = 0; p < b->vectors; p++)
        make_metric(b, p, t->metric + p * b->v * b->v);
    seed(b, t->ranked);
    memset(t->idx, 0xff, b->rows * b->vectors * sizeof *t->idx);
    for (int i = 0; i < ITERATIONS && assign(b, t); i++)
        move(b, t);
    return vptq_gptvq_round(q, b->codebook, t->weight);
}
