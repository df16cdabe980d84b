/* Counts the ops of every step of the encoder (encode.c and the files of the steps). */
#include "lib/encoder/predict.h"

#include <math.h>

#include "kmeans/kmeans.h"
#include "lib/encoder/encoder.h"

typedef struct matrix {
    const vptq_cuda_costs *costs;
    const vptq_encoder_settings *s;
    vptq_vq_shape shape;
    double in, rows; /* rows: padded to whole vectors */
    double bytes;    /* of an array of [in][rows] floats */
} matrix;

/* Columns with codebooks of their own; all groups but the outliers are alike. */
typedef struct group {
    double count, cols, vectors; /* vectors of a column */
    vptq_cuda_searched searched;
} group;

enum { OUTLIERS, OTHERS, KINDS };

static group group_of(const matrix *a, int kind)
{
    const vptq_vq_shape *s = &a->shape;
    if (kind == OUTLIERS)
        return (group){.count = s->outliers ? 1 : 0,
                       .cols = s->outliers,
                       .vectors = s->outliers ? ceil((double)s->out / s->v0) : 0,
                       .searched = {s->v0, s->k0, 0, 1}};
    return (group){.count = s->groups,
                   .cols = s->group_size,
                   .vectors = (double)vptq_vq_vector_rows(s),
                   .searched = {s->v, s->k, s->k_res, a->s->beam}};
}

/* ---- parts of steps ---- */

static double gemm(const matrix *a, double m, double n, double k)
{
    return vptq_cuda_cost_gemm(a->costs, m, n, k);
}

/* An op that reads and writes `arrays` arrays of the size of the matrix. */
static double stream(const matrix *a, double arrays)
{
    return vptq_cuda_cost_stream(a->costs, arrays * a->bytes);
}

static double product(const matrix *a)
{
    return gemm(a, a->in, a->rows, a->in);
}

/* vptq_encoder_gather: writes floats, reads indices. */
static double gather(const matrix *a)
{
    return stream(a, 1 + 2.0 / a->shape.v);
}

/* vptq_encoder_update: q, e = q - z, g = H e, the objective. */
static double update(const matrix *a)
{
    return gather(a) + stream(a, 3) + product(a) + stream(a, 2);
}

/* Visiting every column once, and the product after each block of them: `passed` if columns
 * that were visited are left out of it. */
static double visit(const matrix *a, bool main_only, double block, bool passed)
{
    double time = 0, done = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        group g = group_of(a, kind);
        if (main_only)
            g.searched.k_res = 0;
        for (double i = 0; i < g.count; i++) {
            time += vptq_cuda_cost_columns(a->costs, g.cols, g.vectors, &g.searched);
            for (double left = g.cols; left > 0; left -= block) {
                const double cols = fmin(left, block);
                done += cols;
                const double to = passed ? a->in - done : a->in;
                if (to > 0)
                    time += gemm(a, to, g.vectors * g.searched.v, cols);
            }
        }
    }
    return time;
}

/* vptq_column_pass. */
static double pass(const matrix *a, bool main_only)
{
    const double block = a->s->pass_columns > 1 ? a->s->pass_columns : VPTQ_PASS_BLOCK;
    return stream(a, 2) + visit(a, main_only, block, true);
}

/* vptq_sweeps. */
static double sweeps(const matrix *a, uint32_t count)
{
    return count * visit(a, false, VPTQ_PASS_BLOCK, false);
}

/* Adding up per centroid, for every codebook of every group. */
static double scatter(const matrix *a)
{
    double time = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        const group g = group_of(a, kind);
        const vptq_cuda_searched *s = &g.searched;
        if (g.count > 0)
            time += g.count * vptq_cuda_cost_scatter(a->costs, g.cols * g.vectors, s->v, s->k);
        if (g.count > 0 && s->k_res)
            time +=
                g.count * vptq_cuda_cost_scatter(a->costs, g.cols * g.vectors, s->v, s->k_res);
    }
    return time;
}

/* vptq_refit over all codebooks, or with the diagonal of H' only. */
static double refit(const matrix *a, int iterations, bool diagonal)
{
    const double one = gather(a) + scatter(a) + (diagonal ? 0 : product(a));
    return 2 * scatter(a) + iterations * one;
}

/* Training pairs: choices by search, codebooks by refits; of all groups, or of those with
 * residual codebooks. */
static double train_pairs(const matrix *a, uint32_t rounds, bool all)
{
    double time = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        for (int kind = 0; kind < KINDS; kind++) {
            group g = group_of(a, kind);
            if (!all && !g.searched.k_res)
                continue;
            if (i + VPTQ_WIDE_ROUNDS < rounds)
                g.searched.beam = (g.searched.beam + VPTQ_NARROWING - 1) / VPTQ_NARROWING;
            if (g.count > 0)
                time +=
                    g.count * vptq_cuda_cost_search(a->costs, g.cols * g.vectors, &g.searched);
        }
        time += refit(a, VPTQ_JOINT_ITERATIONS, true);
    }
    return time;
}

/* k-means for one codebook of k centroids in each of the groups of a kind. */
static double kmeans(const matrix *a, const group *g, uint32_t k)
{
    const double n = g->cols * g->vectors;
    const uint32_t v = g->searched.v;
    double time = a->s->kmeans_iterations * (vptq_cuda_cost_assign(a->costs, n, v, k) +
                                             vptq_cuda_cost_scatter(a->costs, n, v, k));
    if (a->s->init == VPTQ_INIT_PLUSPLUS)
        time +=
            vptq_cuda_cost_seeding(a->costs, fmin(n, (double)vptq_kmeans_seed_sample(k)), v, k);
    return g->count * time;
}

/* ---- the steps, in the order of encode.c ---- */

/* Every step ends with an update and the loss, which follows from the gradient unless that is
 * one of another Hessian. */
static void add_step(const matrix *a, vptq_encoder_report *r, const char *name, double time)
{
    time += update(a);
    if (a->s->metric != VPTQ_METRIC_SCALED)
        time += stream(a, 2) + product(a) + stream(a, 2);
    r->steps[r->num_steps++] = (vptq_encoder_step){.name = name, .seconds = time};
    r->seconds += time;
}

static void train(const matrix *a, vptq_encoder_report *r)
{
    const group others = group_of(a, OTHERS), outliers = group_of(a, OUTLIERS);
    double time = kmeans(a, &others, a->shape.k);

    if (outliers.count > 0)
        time += kmeans(a, &outliers, a->shape.k0);
    add_step(a, r, "k-means", time);
    if (!a->shape.k_res)
        return;
    time = kmeans(a, &others, a->shape.k_res);
    if (a->s->residual_from == VPTQ_RESIDUAL_PASS)
        time += pass(a, true);
    add_step(a, r, "residual", time);
    if (a->s->joint)
        add_step(a, r, "joint", train_pairs(a, a->s->joint, false));
}

static void minimize(const matrix *a, vptq_encoder_report *r)
{
    const vptq_encoder_settings *s = a->s;

    add_step(a, r, "pass", pass(a, false));
    if (s->retrain)
        add_step(a, r, "retrain", 2 * pass(a, false) + train_pairs(a, s->retrain, true));
    if (s->sweeps)
        add_step(a, r, "sweeps", sweeps(a, s->sweeps));
    if (s->refits && s->scales && s->metric == VPTQ_METRIC_SCALED)
        add_step(a, r, "scales", VPTQ_SCALE_ITERATIONS * (product(a) + stream(a, 5)));
    for (uint32_t i = 0; i < s->refits; i++)
        add_step(a, r, "refit",
                 refit(a, VPTQ_REFIT_ITERATIONS, false) + update(a) +
                     sweeps(a, VPTQ_REFIT_SWEEPS));
    const bool loop = s->rounding == VPTQ_ROUND_LOOP;
    if (loop && s->codebook_grid == VPTQ_GRID_INT8 && (s->retrain || s->sweeps || s->refits)) {
        add_step(a, r, "grid", 0);
        add_step(a, r, "repass", pass(a, false) + update(a) + sweeps(a, VPTQ_GRID_SWEEPS));
        if (a->shape.k_res)
            add_step(a, r, "adapt",
                     refit(a, VPTQ_REFIT_ITERATIONS, false) + update(a) +
                         sweeps(a, VPTQ_GRID_SWEEPS));
    }
    if (!loop || s->retrain || s->sweeps || s->refits)
        add_step(a, r, "storage", loop ? update(a) + sweeps(a, VPTQ_STORAGE_SWEEPS) : 0);
}

/* Weights and Hessian go up, indices come down; the Hessian is factored, and two losses are
 * measured in double. */
static double rest(const matrix *a)
{
    const vptq_cuda_costs *c = a->costs;
    const double weights = a->in * a->shape.out, square = a->in * a->in;
    return vptq_cuda_cost_copy(c, sizeof(float) * (weights + square / 2)) +
           vptq_cuda_cost_copy(c, sizeof(uint32_t) * (weights / a->shape.v) *
                                      (a->shape.k_res ? 2 : 1)) +
           vptq_cuda_cost_factor(c, a->in) +
           2 * vptq_cuda_cost_quad_trace(c, a->shape.out, a->in);
}

void vptq_encoder_predict(const vptq_cuda_costs *costs, const vptq_encoder_settings *settings,
                          uint32_t out, uint32_t in, vptq_encoder_report *report)
{
    const vptq_vq_shape shape = vptq_encoder_shape(settings, out, in);
    matrix a = {.costs = costs, .s = settings, .shape = shape, .in = in};

    a.rows = (double)vptq_vq_vector_rows(&shape) * shape.v;
    a.bytes = sizeof(float) * a.in * a.rows;
    *report = (vptq_encoder_report){.num_steps = 0};
    train(&a, report);
    minimize(&a, report);
    report->seconds += rest(&a);
}
