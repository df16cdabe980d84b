/* Gradients of what a packed matrix stores, against differences of its decoding. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/tune/stored.h"
#include "tests/emu/emu.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vtest.h"

enum { ROWS = 6 };

/* The parameters of a matrix in double, and the gradients in the same order. */
enum { PARTS = 5 };
typedef struct params {
    const vmatrix *m;
    double *value[PARTS]; /* centroids, residual ones, outlier ones, scale, bias */
    size_t count[PARTS];
} params;

static params params_of(const vmatrix *m)
{
    const vptq_vq_shape *s = &m->q.shape;
    params p = {.m = m};
    const float *from[PARTS] = {m->centroids, m->res_centroids, m->outlier_centroids, m->scale,
                                m->bias};
    p.count[0] = (size_t)s->groups * s->k * s->v;
    p.count[1] = (size_t)s->groups * s->k_res * s->v;
    p.count[2] = s->outliers ? (size_t)s->k0 * s->v0 : 0;
    p.count[3] = p.count[4] = s->has_norm ? s->in : 0;
    for (int i = 0; i < PARTS; i++) {
        p.value[i] = vtest_alloc(p.count[i] + 1, sizeof *p.value[i]);
        for (size_t j = 0; j < p.count[i]; j++)
            p.value[i][j] = (double)from[i][j];
    }
    return p;
}

static void params_free(params *p)
{
    for (int i = 0; i < PARTS; i++)
        free(p->value[i]);
}

/* W[r][perm[p]] by the formula of vq.h, in double. */
static double decoded(const params *p, size_t r, size_t position)
{
    const vptq_vq_shape *s = &p->m->q.shape;
    const size_t channel = p->m->perm ? p->m->perm[position] : position;
    double q;
    if (position < s->outliers) {
        const size_t i = p->m->outlier_indices[r / s->v0 * s->outliers + position];
        q = p->value[2][i * s->v0 + r % s->v0];
    } else {
        const size_t g = (position - s->outliers) / s->group_size;
        const size_t c = (position - s->outliers) % s->group_size;
        const size_t vectors = vptq_vq_vector_rows(s);
        const size_t at = (g * vectors + r / s->v) * s->group_size + c;
        q = p->value[0][(g * s->k + p->m->main[at]) * s->v + r % s->v];
        if (s->k_res)
            q += p->value[1][(g * s->k_res + p->m->res[at]) * s->v + r % s->v];
    }
    return s->has_norm ? q * p->value[3][channel] + p->value[4][channel] : q;
}

/* The sum of dW[r][c] W[r][c]. */
static double functional(const params *p, const double *dw)
{
    const vptq_vq_shape *s = &p->m->q.shape;
    double sum = 0;
    for (size_t r = 0; r < s->out; r++)
        for (size_t position = 0; position < s->in; position++) {
            const size_t channel = p->m->perm ? p->m->perm[position] : position;
            sum += dw[r * s->in + channel] * decoded(p, r, position);
        }
    return sum;
}

/* It is linear in every single parameter: differences are exact but for rounding. */
static void check_part(params *p, const double *dw, int part, const double *got)
{
    double largest = 0, worst = 0;
    const double before = functional(p, dw);
    for (size_t i = 0; i < p->count[part]; i++) {
        p->value[part][i] += 1;
        const double want = functional(p, dw) - before;
        p->value[part][i] -= 1;
        largest = fabs(want) > largest ? fabs(want) : largest;
        worst = fabs(want - got[i]) > worst ? fabs(want - got[i]) : worst;
    }
    if (!(worst <= 2e-6 * largest))
        fail_msg("part %d is off by %g; its largest entry is %g", part, worst, largest);
}

/* ---- running ---- */

static float *on_device(vptq_device *dev, const float *host, size_t count)
{
    vptq_err err;
    void *p = NULL;
    assert_ok(dev->ops->alloc(dev->state, count, sizeof *host, &p, &err), &err);
    assert_ok(dev->ops->upload(dev->state, p, host, count * sizeof *host, &err), &err);
    return p;
}

/* Adds the gradients of the matrix twice to 0.5 in every entry. */
static void run(const char *backend, const vmatrix *m, const float *x, const float *dz,
                double *const got[PARTS], const params *p)
{
    vptq_mem mem;
    vptq_device dev;
    vptq_err err;
    vptq_stored *s;
    const vptq_vq *q = &m->q;
    vptq_mem_init(&mem, 0);
    const vptq_ctx ctx = {.mem = &mem, .threads = 2};
    assert_ok(vptq_device_open(&ctx, backend, &dev, &err), &err);
    float *dx = on_device(&dev, x, ROWS * q->shape.in),
          *ddz = on_device(&dev, dz, ROWS * q->shape.out);
    for (int i = 0; i < PARTS; i++)
        for (size_t j = 0; j < p->count[i]; j++)
            got[i][j] = 0.5;
    const vptq_stored_gradients to = {p->count[0] ? got[0] : NULL, p->count[1] ? got[1] : NULL,
                                      p->count[2] ? got[2] : NULL, p->count[3] ? got[3] : NULL,
                                      p->count[4] ? got[4] : NULL};
    assert_ok(vptq_stored_open(&dev, &q, 1, false, &s, &err), &err);
    for (int i = 0; i < 2; i++)
        assert_ok(vptq_stored_gradient(s, q, ROWS, dx, ddz, &to, &err), &err);
    vptq_stored_close(s);
    dev.ops->release(dev.state, dx);
    dev.ops->release(dev.state, ddz);
    vptq_device_close(&dev);
    assert_int_equal(mem.used, 0);
    for (int i = 0; i < PARTS; i++)
        for (size_t j = 0; j < p->count[i]; j++)
            got[i][j] = (got[i][j] - 0.5) / 2;
}

static void check(const char *backend, const vptq_vq_shape *shape)
{
    vmatrix m;
    vmatrix_make(&m, shape);
    params p = params_of(&m);
    float *x = vtest_normals(ROWS * shape->in, 61), *dz = vtest_normals(ROWS * shape->out, 62);
    double *dw = vtest_alloc((size_t)shape->out * shape->in, sizeof *dw), *got[PARTS];
    for (size_t t = 0; t < ROWS; t++)
        for (size_t r = 0; r < shape->out; r++)
            for (size_t c = 0; c < shape->in; c++)
                dw[r * shape->in + c] +=
                    (double)dz[t * shape->out + r] * (double)x[t * shape->in + c];
    for (int i = 0; i < PARTS; i++)
        got[i] = vtest_alloc(p.count[i] + 1, sizeof *got[i]);
    run(backend, &m, x, dz, got, &p);
    for (int i = 0; i < PARTS; i++) {
        check_part(&p, dw, i, got[i]);
        free(got[i]);
    }
    free(x);
    free(dz);
    free(dw);
    params_free(&p);
    vmatrix_free(&m);
}

static void test_gradients(void **state)
{
    (void)state;
    static const vptq_vq_shape shapes[] = {
        {.out = 8, .in = 6, .v = 4, .k = 4, .groups = 1, .group_size = 6},
        {.out = 11,
         .in = 9,
         .v = 4,
         .k = 8,
         .k_res = 4,
         .groups = 1,
         .group_size = 9,
         .has_perm = true,
         .has_norm = true},
        {.out = 10,
         .in = 11,
         .v = 3,
         .k = 16,
         .k_res = 2,
         .groups = 2,
         .group_size = 4,
         .outliers = 3,
         .v0 = 4,
         .k0 = 8,
         .has_perm = true,
         .has_norm = true},
        {.out = 7,
         .in = 5,
         .v = 2,
         .k = 4,
         .groups = 1,
         .group_size = 4,
         .outliers = 1,
         .v0 = 1,
         .k0 = 4,
         .has_norm = true},
    };
    static const char *const backends[] = {"ref", "cpu", "emu"};
    assert_non_null(vptq_backend_emu()); /* this reference also links it */
    for (size_t b = 0; b < 3; b++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            if (b < 2 || !vtest_emulated())
                check(backends[b], &shapes[i]);
}

/* One set of work arrays serves matrices of different shapes. */
static void test_several(void **state)
{
    (void)state;
    const vptq_vq_shape wide = {
        .out = 4, .in = 30, .v = 2, .k = 4, .groups = 1, .group_size = 30};
    const vptq_vq_shape tall = {
        .out = 33, .in = 4, .v = 8, .k = 16, .groups = 2, .group_size = 2};
    vmatrix a, b;
    vptq_device dev;
    vptq_err err;
    vptq_stored *s;
    const vptq_ctx ctx = {.threads = 1};
    vmatrix_make(&a, &wide);
    vmatrix_make(&b, &tall);
    const vptq_vq *const both[] = {&a.q, &b.q};
    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    assert_ok(vptq_stored_open(&dev, both, 2, false, &s, &err), &err);
    for (int i = 0; i < 2; i++) {
        const vptq_vq_shape *shape = &both[i]->shape;
        float *x = vtest_normals(shape->in, 63), *dz = vtest_normals(shape->out, 64);
        const size_t count = (size_t)shape->groups * shape->k * shape->v;
        double *dc = vtest_alloc(count, sizeof *dc), sum = 0, want = 0;
        const vptq_stored_gradients to = {.centroids = dc};
        assert_ok(vptq_stored_gradient(s, both[i], 1, x, dz, &to, &err), &err);
        for (size_t j = 0; j < count; j++)
            sum += dc[j];
        for (size_t r = 0; r < shape->out; r++)
            for (size_t c = 0; c < shape->in; c++)
                want += (double)dz[r] * (double)x[c];
        assert_true(fabs(sum - want) <= 1e-6 * (1 + fabs(want)));
        free(x);
        free(dz);
        free(dc);
    }
    vptq_stored_close(s);
    vptq_device_close(&dev);
    vmatrix_free(&a);
    vmatrix_free(&b);
}

VTEST_MAIN(cmocka_unit_test(test_gradients), cmocka_unit_test(test_several))
