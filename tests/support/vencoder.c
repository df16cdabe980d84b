/* Encodes one matrix for tests (vencoder.h). */
#include "tests/support/vencoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vtest.h"

void vencoder_open(vencoder_run *run, const char *backend, int threads)
{
    vptq_err err = {0};
    vptq_mem_init(&run->mem, 0);
    run->ctx = (vptq_ctx){.mem = &run->mem, .threads = threads};
    assert_ok(vptq_device_open(&run->ctx, backend, &run->dev, &err), &err);
    vptq_arena_init(&run->arena, &run->mem);
}

void vencoder_close(vencoder_run *run)
{
    vptq_arena_release(&run->arena);
    vptq_device_close(&run->dev);
    assert_int_equal(run->mem.used, 0);
}

vptq_encoder_input vencoder_input(const problem *p)
{
    return (vptq_encoder_input){
        .matrix_id = 5, .out = p->out, .in = p->in, .w = p->w, .lower = p->lower};
}

void vencoder_quantize(vencoder_run *run, const vptq_encoder_settings *s,
                       const vptq_encoder_input *input)
{
    vptq_err err = {0};
    assert_ok(vptq_encode_matrix(&run->dev, s, input, &run->arena, &run->r, &err), &err);
}

float *vencoder_decode(const vptq_vq *vq)
{
    vencoder_run run;
    vptq_err err = {0};
    float *what = calloc((size_t)vq->shape.out * vq->shape.in, sizeof *what);
    assert_non_null(what);
    vencoder_open(&run, "ref", 1);
    assert_ok(vptq_device_decode(&run.dev, vq, 0, vq->shape.out, what, vq->shape.in, &err),
              &err);
    vencoder_close(&run);
    return what;
}

/* FNV-1a */
static uint64_t hash(uint64_t sum, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; byte && i < bytes; i++)
        sum = (sum ^ byte[i]) * UINT64_C(1099511628211);
    return sum;
}

uint64_t vencoder_digest(const vptq_vq *vq)
{
    const vptq_vq_shape *s = &vq->shape;
    size_t vector_rows0 = s->outliers ? (s->out + s->v0 - 1) / s->v0 : 0;
    uint64_t sum = UINT64_C(14695981039346656037);
    sum = hash(sum, vq->indices,
               s->groups * vptq_vq_vector_rows(s) * vptq_vq_row_words(s) * sizeof(uint32_t));
    sum = hash(sum, vq->centroids, (size_t)s->groups * s->k * s->v * sizeof(float));
    sum = hash(sum, vq->res_centroids, (size_t)s->groups * s->k_res * s->v * sizeof(float));
    sum = hash(sum, vq->outlier_indices, vector_rows0 * s->outliers * sizeof(uint16_t));
    sum = hash(sum, vq->outlier_centroids, (size_t)s->k0 * s->v0 * sizeof(float));
    sum = hash(sum, vq->perm, s->in * sizeof(uint16_t));
    sum = hash(sum, vq->scale, s->in * sizeof(float));
    return hash(sum, vq->bias, s->in * sizeof(float));
}

double vencoder_loss(const problem *p, const vptq_encoder_settings *s)
{
    vencoder_run run;
    const vptq_encoder_input input = vencoder_input(p);
    vencoder_open(&run, "cpu", 2);
    vencoder_quantize(&run, s, &input);
    double loss = run.r.report.loss;
    vencoder_close(&run);
    return loss;
}

/* ---- the state of the steps ---- */

void vencoder_state_metric(vencoder_state *e)
{
    const size_t in = e->enc.problem.in;

    vptq_err err = {0};
    vptq_metric_args metric = vptq_problem_metric(&e->enc.problem);
    metric.a = e->h;
    assert_ok(e->run.dev.ops->metric(e->run.dev.state, &metric, &err), &err);
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j < i; j++)
            e->h[j * in + i] = e->h[i * in + j];
}

void vencoder_state_open(vencoder_state *e, const char *backend, int threads,
                         const vptq_encoder_settings *s, const vptq_encoder_input *input)
{
    vptq_err err = {0};
    vptq_encoder *enc = &e->enc;

    *e = (vencoder_state){.s = *s, .input = *input};
    vencoder_open(&e->run, backend, threads);
    *enc = (vptq_encoder){.dev = &e->run.dev,
                          .settings = &e->s,
                          .keep = &e->run.arena,
                          .arrays = vptq_mirror_of(&e->run.dev),
                          .report = &e->report};
    vptq_arena_init(&enc->scratch, &e->run.mem);
    assert_ok(vptq_encoder_check(s, input->out, input->in, &err), &err);
    const vptq_vq_shape shape = vptq_encoder_shape(s, input->out, input->in);
    assert_ok(
        vptq_columns_make(&enc->columns, &shape, &enc->arrays, enc->keep, &enc->scratch, &err),
        &err);
    assert_ok(vptq_problem_make(&enc->problem, enc->dev, &e->s, &e->input, &enc->columns,
                                &enc->scratch, &err),
              &err);
    assert_ok(vptq_encoder_open(enc, &err), &err);
    e->h = vptq_arena_alloc(&enc->scratch, (size_t)input->in * input->in, sizeof *e->h, &err);
    assert_non_null(e->h);
    vencoder_state_metric(e);
}

void vencoder_state_close(vencoder_state *e)
{
    vptq_err err = {0};
    assert_ok(vptq_mirror_end(&e->enc.arrays, VPTQ_OK, &err), &err);
    vptq_arena_release(&e->enc.scratch);
    vencoder_close(&e->run);
}

double vencoder_q(const vptq_column_group *g, size_t column, size_t row)
{
    size_t vector = column * g->vector_rows + row / g->v, d = row % g->v;
    float q = g->main[(size_t)g->idx[vector] * g->v + d];
    if (g->k_res)
        q += g->res[(size_t)g->idx_res[vector] * g->v + d];
    return (double)q;
}

double vencoder_objective(const vencoder_state *s)
{
    const vptq_columns *c = &s->enc.columns;
    const size_t rows = c->rows, in = s->enc.problem.in;
    double *e = calloc(in * rows, sizeof *e), sum = 0;

    assert_non_null(e);
    for (uint32_t i = 0; i < c->num_groups; i++) {
        const vptq_column_group *g = &c->groups[i];
        for (size_t t = 0; t < g->cols; t++)
            for (size_t r = 0; r < g->rows; r++) {
                size_t n = (g->first + t) * rows + r;
                e[n] = vencoder_q(g, t, r) - (double)s->enc.problem.z[n];
            }
    }
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j < in; j++)
            for (size_t r = 0; r < rows; r++)
                sum += e[i * rows + r] * s->h[i * in + j] * e[j * rows + r];
    free(e);
    return sum;
}

double vencoder_diagonal_objective(const vencoder_state *s, const vptq_column_group *g,
                                   const float *target)
{
    const size_t in = s->enc.problem.in, rows = s->enc.columns.rows;
    double sum = 0;
    for (size_t t = 0; t < g->cols; t++)
        for (size_t r = 0; r < g->rows; r++) {
            size_t p = g->first + t;
            double e = vencoder_q(g, t, r) - (double)target[p * rows + r];
            sum += s->h[p * in + p] * e * e;
        }
    return sum;
}

/* ---- naive versions in double ---- */

double vencoder_distance(const vptq_column_group *g, const double *x, uint32_t main,
                         uint32_t res, bool pairs)
{
    double sum = 0;
    for (uint32_t d = 0; d < g->v; d++) {
        float q = g->main[(size_t)main * g->v + d];
        if (pairs)
            q += g->res[(size_t)res * g->v + d];
        sum += (x[d] - (double)q) * (x[d] - (double)q);
    }
    return sum;
}

vencoder_choice vencoder_choose(const vptq_column_group *g, const double *x, uint32_t beam,
                                bool pairs)
{
    double *main = calloc(g->k, sizeof *main);
    vencoder_choice best = {0, 0, INFINITY};
    for (uint32_t j = 0; j < g->k; j++)
        main[j] = vencoder_distance(g, x, j, 0, false);
    for (uint32_t j = 0; j < g->k; j++) {
        uint32_t nearer = 0;
        for (uint32_t i = 0; i < g->k; i++)
            nearer += main[i] < main[j] || (main[i] <= main[j] && i < j);
        if (nearer >= (pairs ? beam : 1))
            continue;
        for (uint32_t l = 0; l < (pairs ? g->k_res : 1); l++) {
            double d = vencoder_distance(g, x, j, l, pairs);
            if (d < best.distance)
                best = (vencoder_choice){j, l, d};
        }
    }
    free(main);
    return best;
}

void vencoder_eliminate(size_t n, double *a, size_t t)
{
    for (size_t u = t + 1; u < n; u++)
        for (size_t w = t + 1; w < n; w++)
            a[u * n + w] -= a[u * n + t] * a[t * n + w] / a[t * n + t];
}

double *vencoder_inverse(const vencoder_state *s)
{
    size_t n = s->enc.problem.in;
    double *a = malloc(n * n * sizeof *a);
    assert_non_null(a);
    memcpy(a, s->h, n * n * sizeof *a);
    problem_invert(n, a);
    return a;
}

double *vencoder_target(const vencoder_state *s)
{
    size_t n = s->enc.problem.in * s->enc.columns.rows;
    double *z = malloc(n * sizeof *z);
    assert_non_null(z);
    for (size_t i = 0; i < n; i++)
        z[i] = (double)s->enc.problem.z[i];
    return z;
}

/* ---- cases ---- */

vptq_encoder_settings vencoder_settings(uint32_t v, uint32_t k, uint32_t k_res)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = v;
    s.k = k;
    s.k_res = k_res;
    s.kmeans_iterations = 4;
    return s;
}

vptq_encoder_settings vencoder_upstream(const vptq_encoder_settings *like)
{
    vptq_encoder_settings s = *like;
    vptq_err err = {0};
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    return s;
}

const vencoder_case vencoder_cases[VENCODER_CASES] = {
    {64, 64, 4, 16, 0, 1, 0, 4, 16, 1, VPTQ_NORM_STD, true},
    {64, 64, 4, 16, 8, 1, 0, 4, 16, 1, VPTQ_NORM_STD, true},
    {64, 64, 4, 16, 8, 1, 0, 4, 16, 16, VPTQ_NORM_STD, true},
    {64, 64, 4, 16, 8, 1, 0, 4, 16, 5, VPTQ_NORM_NONE, false},
    {64, 64, 8, 8, 4, 4, 0, 4, 16, 8, VPTQ_NORM_STD, false},
    {64, 64, 4, 16, 8, 1, 10, 8, 32, 16, VPTQ_NORM_STD, true},
    {64, 64, 4, 8, 16, 3, 10, 2, 16, 1, VPTQ_NORM_MINMAX, true},
    {50, 36, 8, 16, 8, 2, 0, 8, 16, 16, VPTQ_NORM_STD, true},
    {50, 36, 8, 16, 8, 4, 11, 6, 16, 1, VPTQ_NORM_STD, false},
    {20, 300, 4, 16, 4, 2, 1, 64, 4, 16, VPTQ_NORM_STD,
     true}, /* more than one block of columns */
};

vptq_encoder_settings vencoder_case_settings(const vencoder_case *q)
{
    vptq_encoder_settings s = vencoder_settings(q->v, q->k, q->k_res);
    s.groups = q->groups;
    s.outliers = q->outliers;
    s.v0 = q->v0;
    s.k0 = q->k0;
    s.beam = q->beam;
    s.norm = q->norm;
    s.perm = q->perm;
    return s;
}

void vencoder_state_train(vencoder_state *e, const problem *p, const vencoder_case *q,
                          int threads)
{
    vptq_err err = {0};
    vptq_encoder_settings s = vencoder_case_settings(q);
    const vptq_encoder_input input = vencoder_input(p);
    vencoder_state_open(e, "cpu", threads, &s, &input);
    assert_ok(vptq_train_main(&e->enc, &err), &err);
    if (s.k_res)
        assert_ok(vptq_train_residual(&e->enc, &err), &err);
}

void vencoder_case_open(vencoder_state *e, problem *p, size_t i, uint64_t seed)
{
    vptq_err err = {0};
    *p = problem_make(vencoder_cases[i].out, vencoder_cases[i].in, seed);
    vencoder_state_train(e, p, &vencoder_cases[i], 2);
    assert_ok(vptq_column_pass(&e->enc, false, &err), &err);
}
