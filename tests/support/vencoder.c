#include "tests/support/vencoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/hessian.h"
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
    assert_ok(vptq_encode_matrix(&run->dev, s, input, NULL, NULL, &run->arena, &run->r, &err),
              &err);
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

static uint64_t fold(uint64_t sum, const void *data, size_t bytes) /* FNV-1a */
{
    const unsigned char *at = data;
    for (size_t i = 0; at && i < bytes; i++)
        sum = (sum ^ at[i]) * UINT64_C(1099511628211);
    return sum;
}

uint64_t vencoder_digest(const vptq_vq *vq)
{
    const vptq_vq_shape *s = &vq->shape;
    size_t vector_rows0 = s->outliers ? (s->out + s->v0 - 1) / s->v0 : 0;
    uint64_t sum = UINT64_C(14695981039346656037);
    sum = fold(sum, vq->indices,
               s->groups * vptq_vq_vector_rows(s) * vptq_vq_row_words(s) * sizeof(uint32_t));
    sum = fold(sum, vq->centroids, (size_t)s->groups * s->k * s->v * sizeof(float));
    sum = fold(sum, vq->res_centroids, (size_t)s->groups * s->k_res * s->v * sizeof(float));
    sum = fold(sum, vq->outlier_indices, vector_rows0 * s->outliers * sizeof(uint16_t));
    sum = fold(sum, vq->outlier_centroids, (size_t)s->k0 * s->v0 * sizeof(float));
    sum = fold(sum, vq->perm, s->in * sizeof(uint16_t));
    sum = fold(sum, vq->scale, s->in * sizeof(float));
    return fold(sum, vq->bias, s->in * sizeof(float));
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

static void *take(vptq_arena *arena, size_t count, size_t size)
{
    void *p = vptq_arena_zalloc(arena, count, size, NULL);
    assert_non_null(p);
    return p;
}

static void add_part(vencoder_state *e, uint32_t cols, uint32_t v, uint32_t k, uint32_t k_res)
{
    vptq_encoder *c = &e->c;
    vptq_part *p = &c->part[c->parts];
    const vptq_part *last = c->parts ? p - 1 : NULL;

    *p = (vptq_part){.cols = cols, .v = v, .k = k, .k_res = k_res};
    p->first = last ? last->first + last->cols : 0;
    p->vector_rows = (c->out + v - 1) / v;
    p->rows = p->vector_rows * v;
    p->idx = take(&c->work, cols * p->vector_rows, sizeof *p->idx);
    if (k_res)
        p->idx_res = take(&c->work, cols * p->vector_rows, sizeof *p->idx_res);
    c->rows = p->rows > c->rows ? p->rows : c->rows;
    c->parts++;
}

/* The codebooks of all groups are one piece. */
static void add_parts(vencoder_state *e)
{
    vptq_encoder *c = &e->c;
    const vptq_vq_shape *s = &c->shape;

    c->part = take(&c->work, s->groups + 1, sizeof *c->part);
    float *main = take(c->keep, (size_t)s->groups * s->k * s->v, sizeof *main);
    float *res = take(c->keep, (size_t)s->groups * s->k_res * s->v, sizeof *res);
    if (s->outliers) {
        add_part(e, s->outliers, s->v0, s->k0, 0);
        c->part[0].main = take(c->keep, (size_t)s->k0 * s->v0, sizeof *main);
    }
    for (size_t g = 0; g < s->groups; g++) {
        add_part(e, s->group_size, s->v, s->k, s->k_res);
        vptq_part *p = &c->part[c->parts - 1];
        p->main = main + g * s->k * s->v;
        p->res = s->k_res ? res + g * s->k_res * s->v : NULL;
    }
}

void vencoder_state_metric(vencoder_state *e)
{
    const vptq_encoder_input *input = &e->input;
    size_t in = e->c.in;

    vptq_metric_matrix(&e->c.metric, e->s.ridge, input->metric ? input->metric : input->lower,
                       e->h);
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j < i; j++)
            e->h[j * in + i] = e->h[i * in + j];
}

void vencoder_state_open(vencoder_state *e, const char *backend, int threads,
                         const vptq_encoder_settings *s, const vptq_encoder_input *input)
{
    vptq_err err = {0};
    vptq_encoder *c = &e->c;
    size_t in = input->in;
    const float *lower = input->metric ? input->metric : input->lower;

    *e = (vencoder_state){.s = *s, .input = *input};
    vencoder_open(&e->run, backend, threads);
    *c = (vptq_encoder){.dev = &e->run.dev,
                        .s = &e->s,
                        .input = &e->input,
                        .shape = vptq_encoder_shape(s, input->out, input->in),
                        .keep = &e->run.arena,
                        .in = input->in,
                        .out = input->out,
                        .report = &e->report};
    vptq_arena_init(&c->work, &e->run.mem);
    assert_ok(vptq_encoder_check(s, c->out, c->in, &err), &err);
    assert_ok(vptq_metric_make(s, c->out, c->in, c->shape.outliers, input->w, lower, &c->work,
                               &c->metric, &err),
              &err);
    add_parts(e);
    c->z = take(&c->work, in * c->rows, sizeof *c->z);
    c->q = take(&c->work, in * c->rows, sizeof *c->q);
    c->e = take(&c->work, in * c->rows, sizeof *c->e);
    c->g = take(&c->work, in * c->rows, sizeof *c->g);
    c->h = take(&c->work, in * in, sizeof *c->h);
    c->u = take(&c->work, in * in, sizeof *c->u);
    c->diag = take(&c->work, in, sizeof *c->diag);
    e->h = take(&c->work, in * in, sizeof *e->h);
    double *a = take(&c->work, in * in, sizeof *a);
    vptq_encoder_normalize(c);
    vencoder_state_metric(e);
    memcpy(a, e->h, in * in * sizeof *a);
    assert_ok(
        vptq_hessian_factor(c->dev, in, a, s->damping, c->u, &e->report.damping_added, &err),
        &err);
}

void vencoder_state_close(vencoder_state *e)
{
    vptq_arena_release(&e->c.work);
    vencoder_close(&e->run);
}

double vencoder_q(const vptq_part *p, size_t column, size_t row)
{
    size_t at = column * p->vector_rows + row / p->v, d = row % p->v;
    float q = p->main[(size_t)p->idx[at] * p->v + d];
    if (p->k_res)
        q += p->res[(size_t)p->idx_res[at] * p->v + d];
    return (double)q;
}

double vencoder_objective(const vencoder_state *s)
{
    const vptq_encoder *c = &s->c;
    size_t rows = c->rows, in = c->in;
    double *e = calloc(in * rows, sizeof *e), sum = 0;

    assert_non_null(e);
    for (uint32_t i = 0; i < c->parts; i++) {
        const vptq_part *p = &c->part[i];
        for (size_t t = 0; t < p->cols; t++)
            for (size_t r = 0; r < p->rows; r++) {
                size_t at = (p->first + t) * rows + r;
                e[at] = vencoder_q(p, t, r) - (double)c->z[at];
            }
    }
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j < in; j++)
            for (size_t r = 0; r < rows; r++)
                sum += e[i * rows + r] * s->h[i * in + j] * e[j * rows + r];
    free(e);
    return sum;
}

/* ---- the same in double ---- */

double vencoder_distance(const vptq_part *p, const double *x, uint32_t main, uint32_t res,
                         bool pairs)
{
    double sum = 0;
    for (uint32_t d = 0; d < p->v; d++) {
        float q = p->main[(size_t)main * p->v + d];
        if (pairs)
            q += p->res[(size_t)res * p->v + d];
        sum += (x[d] - (double)q) * (x[d] - (double)q);
    }
    return sum;
}

vencoder_choice vencoder_choose(const vptq_part *p, const double *x, uint32_t beam, bool pairs)
{
    double *main = calloc(p->k, sizeof *main);
    vencoder_choice best = {0, 0, INFINITY};
    for (uint32_t j = 0; j < p->k; j++)
        main[j] = vencoder_distance(p, x, j, 0, false);
    for (uint32_t j = 0; j < p->k; j++) {
        uint32_t nearer = 0;
        for (uint32_t i = 0; i < p->k; i++)
            nearer += main[i] < main[j] || (main[i] <= main[j] && i < j);
        if (nearer >= (pairs ? beam : 1))
            continue;
        for (uint32_t l = 0; l < (pairs ? p->k_res : 1); l++) {
            double d = vencoder_distance(p, x, j, l, pairs);
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
    size_t n = s->c.in;
    double *a = malloc(n * n * sizeof *a);
    memcpy(a, s->h, n * n * sizeof *a);
    problem_invert(n, a);
    return a;
}

double *vencoder_target(const vencoder_state *s)
{
    size_t n = s->c.in * s->c.rows;
    double *z = malloc(n * sizeof *z);
    for (size_t i = 0; i < n; i++)
        z[i] = (double)s->c.z[i];
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
    {20, 300, 4, 16, 4, 2, 1, 64, 4, 16, VPTQ_NORM_STD, true}, /* blocks of columns */
};

static vptq_encoder_settings settings_of(const vencoder_case *q)
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
    vptq_encoder_settings s = settings_of(q);
    const vptq_encoder_input input = vencoder_input(p);
    vencoder_state_open(e, "cpu", threads, &s, &input);
    assert_ok(vptq_train_main(&e->c, &err), &err);
    if (s.k_res)
        assert_ok(vptq_train_residual(&e->c, &err), &err);
}
