/* Tests the ops vq_pass and vq_descend against loops written out here, at every SIMD level and
 * for several numbers of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/devices.h"
#include "tests/support/vcodebooks.h"

/* ---- column pass ---- */

typedef struct pass_case {
    size_t cols, rows;
    uint32_t v, k, k_res;
    float *z, *u, *c, *res; /* inputs; z is copied before a run */
} pass_case;

typedef struct pass_result {
    vptq_pass_args args;
    float *z, *q, *err;
    uint32_t *idx, *idx_res;
} pass_result;

static pass_case pass_case_make(size_t cols, size_t vector_rows, uint32_t v, uint32_t k,
                                uint32_t k_res)
{
    pass_case a = {cols, vector_rows * v, v, k, k_res, NULL, NULL, NULL, NULL};
    a.z = vtest_normals(cols * a.rows, 21);
    a.u = vtest_normals(cols * cols, 22);
    a.c = vtest_normals((size_t)k * v, 23);
    a.res = vtest_normals((size_t)k_res * v, 24);
    for (size_t i = 0; i < (size_t)k_res * v; i++)
        a.res[i] *= 0.3F;
    for (size_t t = 0; t < cols; t++) {
        for (size_t s = 0; s < cols; s++)
            a.u[t * cols + s] *= s < t ? NAN : 0.3F; /* below the diagonal: never read */
        a.u[t * cols + t] = 1 + fabsf(a.u[t * cols + t]);
    }
    return a;
}

static void pass_case_free(pass_case *a)
{
    free(a->z);
    free(a->u);
    free(a->c);
    free(a->res);
}

static pass_result pass_result_make(const pass_case *a)
{
    pass_result r;
    size_t ld = a->rows + 5, ldi = a->rows / a->v + 2;
    r.z = vtest_alloc(a->cols * ld, sizeof(float));
    r.q = vtest_alloc(a->cols * ld, sizeof(float));
    r.err = vtest_alloc(a->cols * ld, sizeof(float));
    r.idx = vtest_alloc(a->cols * ldi, sizeof(uint32_t));
    r.idx_res = vtest_alloc(a->cols * ldi, sizeof(uint32_t));
    for (size_t t = 0; t < a->cols; t++)
        memcpy(r.z + t * ld, a->z + t * a->rows, a->rows * sizeof(float));
    r.args = (vptq_pass_args){.cols = a->cols,
                              .rows = a->rows,
                              .z = r.z,
                              .u = a->u,
                              .idx = r.idx,
                              .idx_res = a->k_res ? r.idx_res : NULL,
                              .q = r.q,
                              .err = r.err,
                              .ldz = ld,
                              .ldu = a->cols,
                              .ldi = ldi,
                              .ldq = ld,
                              .lde = ld};
    return r;
}

static vptq_search_index *pass_index(const pass_case *a, const vptq_device *dev)
{
    const vptq_codebooks codebooks = {.v = a->v,
                                      .k = a->k,
                                      .k_res = a->k_res,
                                      .beam = 1,
                                      .centroids = a->c,
                                      .res_centroids = a->k_res ? a->res : NULL};
    vptq_search_index *index = NULL;
    vptq_err err;
    assert_ok(dev->ops->search_index_open(dev->state, &codebooks, &index, &err), &err);
    return index;
}

static void pass_result_free(pass_result *r)
{
    free(r->z);
    free(r->q);
    free(r->err);
    free(r->idx);
    free(r->idx_res);
}

/* The column pass computed column by column with the op assign. */
static void expected_pass(const pass_case *a, const vptq_device *dev, pass_result *r)
{
    const vptq_pass_args *p = &r->args;
    const size_t n = a->rows / a->v;
    float *rest = vtest_alloc(a->rows, sizeof *rest);
    vptq_err err;
    for (size_t t = 0; t < a->cols; t++) {
        float *z = r->z + t * p->ldz, *q = r->q + t * p->ldq, *e = r->err + t * p->lde;
        uint32_t *idx = r->idx + t * p->ldi, *idx_res = r->idx_res + t * p->ldi;
        vptq_assign_args nearest = {
            .n = n, .v = a->v, .k = a->k, .x = z, .centroids = a->c, .idx = idx};
        assert_ok(dev->ops->assign(dev->state, &nearest, &err), &err);
        for (size_t i = 0; i < a->rows; i++) {
            q[i] = a->c[(size_t)idx[i / a->v] * a->v + i % a->v];
            rest[i] = z[i] - q[i];
        }
        if (a->k_res) {
            nearest.k = a->k_res;
            nearest.x = rest;
            nearest.centroids = a->res;
            nearest.idx = idx_res;
            assert_ok(dev->ops->assign(dev->state, &nearest, &err), &err);
            for (size_t i = 0; i < a->rows; i++)
                q[i] += a->res[(size_t)idx_res[i / a->v] * a->v + i % a->v];
        }
        for (size_t i = 0; i < a->rows; i++) {
            e[i] = (z[i] - q[i]) / a->u[t * a->cols + t];
            for (size_t s = t + 1; s < a->cols; s++)
                r->z[s * p->ldz + i] -= e[i] * a->u[t * a->cols + s];
        }
    }
    free(rest);
}

/* The invariant of a column pass for any choice: z0 - q = err U. */
static void check_identity(const pass_case *a, const pass_result *r)
{
    const vptq_pass_args *p = &r->args;
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t i = 0; i < a->rows; i++) {
            double sum = 0, size = 1;
            for (size_t s = 0; s <= t; s++) {
                double term = (double)r->err[s * p->lde + i] * (double)a->u[s * a->cols + t];
                sum += term;
                size += fabs(term);
            }
            double left = (double)a->z[t * a->rows + i] - (double)r->q[t * p->ldq + i];
            assert_true(fabs(left - sum) <= 1e-6 * size * 4);
        }
    }
}

static void check_pass(void *arg, const vptq_device *dev, bool is_ref)
{
    const pass_case *a = arg;
    pass_result want = pass_result_make(a), got = pass_result_make(a);
    vptq_err err;
    (void)is_ref;
    vptq_search_index *index = pass_index(a, dev);
    got.args.index = index;
    expected_pass(a, dev, &want);
    assert_ok(dev->ops->vq_pass(dev->state, &got.args, &err), &err);
    dev->ops->search_index_close(dev->state, index);
    const vptq_pass_args *p = &got.args;
    for (size_t t = 0; t < a->cols; t++) {
        size_t indices = a->rows / a->v * sizeof *p->idx;
        assert_memory_equal(got.idx + t * p->ldi, want.idx + t * p->ldi, indices);
        if (a->k_res)
            assert_memory_equal(got.idx_res + t * p->ldi, want.idx_res + t * p->ldi, indices);
        assert_same_f32(got.q + t * p->ldq, want.q + t * p->ldq, a->rows);
        assert_same_f32(got.z + t * p->ldz, want.z + t * p->ldz, a->rows);
        assert_same_f32(got.err + t * p->lde, want.err + t * p->lde, a->rows);
        for (size_t i = a->rows; i < p->lde; i++) /* the gap after a column is not written */
            assert_true(got.err[t * p->lde + i] == 0 && got.q[t * p->ldq + i] == 0);
    }
    check_identity(a, &got);
    pass_result_free(&want);
    pass_result_free(&got);
}

static void pass_equals_assign_column_by_column(void **state)
{
    (void)state;
    static const struct {
        size_t cols, vector_rows;
        uint32_t v, k, k_res;
        bool emulated;
    } cases[] = {
        {1, 1, 8, 16, 0, true},     {20, 24, 8, 256, 0, true},   {33, 77, 4, 256, 16, false},
        {12, 300, 2, 64, 4, false}, {17, 70, 6, 100, 33, false}, {9, 50, 12, 300, 0, true},
        {5, 40, 16, 64, 8, true},   {7, 37, 5, 31, 2, true},     {4, 35, 64, 20, 20, true},
        {130, 33, 8, 64, 0, false}, {9, 11, 3, 40, 16, true},    {150, 3, 4, 16, 4, true},
        {60, 2, 64, 640, 0, true},  {2, 5, 8, 8192, 0, true},    {2, 6, 8, 32, 8192, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pass_case a = pass_case_make(cases[i].cols, cases[i].vector_rows, cases[i].v,
                                     cases[i].k, cases[i].k_res);
        (cases[i].emulated ? devices_each_emu : devices_each)(check_pass, &a);
        pass_case_free(&a);
    }
}

/* The op search makes the same choices for the quantized vectors. */
static void check_chooses_like_search(void *arg, const vptq_device *dev, bool is_ref)
{
    const pass_case *a = arg;
    const size_t vector_rows = a->rows / a->v;
    const vptq_codebooks codebooks = {a->v, a->k, a->k_res, 6, false, a->c, a->res};
    pass_result r = pass_result_make(a);
    uint32_t *idx = vtest_alloc(vector_rows, sizeof *idx),
             *idx_res = vtest_alloc(vector_rows, sizeof *idx_res);
    vptq_search_index *index = NULL;
    vptq_err err;
    (void)is_ref;
    assert_ok(dev->ops->search_index_open(dev->state, &codebooks, &index, &err), &err);
    r.args.index = index;
    assert_ok(dev->ops->vq_pass(dev->state, &r.args, &err), &err);
    for (size_t t = 0; t < a->cols; t++) {
        const vptq_search_args f = {.n = vector_rows,
                                    .index = index,
                                    .x = r.z + t * r.args.ldz,
                                    .idx = idx,
                                    .idx_res = idx_res};
        assert_ok(dev->ops->search(dev->state, &f, &err), &err);
        assert_memory_equal(idx, r.idx + t * r.args.ldi, vector_rows * sizeof *idx);
        assert_memory_equal(idx_res, r.idx_res + t * r.args.ldi, vector_rows * sizeof *idx_res);
    }
    check_identity(a, &r);
    dev->ops->search_index_close(dev->state, index);
    free(idx);
    free(idx_res);
    pass_result_free(&r);
}

static void pass_makes_the_choices_of_search(void **state)
{
    (void)state;
    static const struct {
        size_t cols, vector_rows;
        uint32_t v, k, k_res;
    } cases[] = {{7, 9, 8, 300, 40}, {5, 13, 4, 6, 20}, {4, 6, 20, 70, 8}, {5, 3, 16, 40, 9}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pass_case a = pass_case_make(cases[i].cols, cases[i].vector_rows, cases[i].v,
                                     cases[i].k, cases[i].k_res);
        devices_each_emu(check_chooses_like_search, &a);
        pass_case_free(&a);
    }
}

static void pass_gives_the_same_bits_for_any_threads(void **state)
{
    (void)state;
    devices_skip_if_only();
    pass_case a = pass_case_make(40, 350, 8, 64, 8);
    pass_result first = pass_result_make(&a);
    for (int threads = 1; threads <= 3; threads++) {
        devices_one d;
        vptq_err err;
        devices_open(&d, "cpu", VPTQ_SIMD_AVX512, threads);
        pass_result other = pass_result_make(&a);
        pass_result *r = threads > 1 ? &other : &first;
        vptq_search_index *index = pass_index(&a, &d.dev);
        r->args.index = index;
        assert_ok(d.dev.ops->vq_pass(d.dev.state, &r->args, &err), &err);
        d.dev.ops->search_index_close(d.dev.state, index);
        size_t floats = a.cols * r->args.ldz * sizeof(float);
        assert_memory_equal(r->z, first.z, floats);
        assert_memory_equal(r->q, first.q, floats);
        assert_memory_equal(r->err, first.err, floats);
        assert_memory_equal(r->idx_res, first.idx_res, a.cols * r->args.ldi * sizeof(uint32_t));
        pass_result_free(&other);
        devices_close(&d);
    }
    pass_result_free(&first);
    pass_case_free(&a);
}

/* ---- coordinate descent ---- */

typedef struct descend_case {
    size_t cols, vector_rows;
    vcodebooks codebooks; /* n = 0 */
    float *w, *h, *g, *q;
    uint32_t *idx, *idx_res;
} descend_case;

static descend_case descend_make(size_t cols, size_t vector_rows, uint32_t v, uint32_t k,
                                 uint32_t k_res, uint32_t beam)
{
    descend_case a = {.cols = cols, .vector_rows = vector_rows};
    const size_t rows = vector_rows * v, n = cols * vector_rows;
    a.codebooks = vcodebooks_make(0, v, k, k_res, beam);
    a.w = vtest_normals(cols * rows, 5);
    a.h = vtest_alloc(cols * cols, sizeof *a.h);
    a.g = vtest_alloc(cols * rows, sizeof *a.g);
    a.q = vtest_alloc(cols * rows, sizeof *a.q);
    a.idx = vtest_alloc(n, sizeof *a.idx);
    a.idx_res = vtest_alloc(n, sizeof *a.idx_res);
    float *m = vtest_normals(cols * cols, 6);
    for (size_t i = 0; i < cols; i++) { /* m m^T with a slightly larger diagonal */
        for (size_t j = 0; j < cols; j++) {
            for (size_t l = 0; l < cols; l++)
                a.h[i * cols + j] += m[i * cols + l] * m[j * cols + l] / (float)cols;
        }
        a.h[i * cols + i] += 0.5F;
    }
    free(m);
    if (cols > 2) /* a channel that is always zero */
        for (size_t i = 0; i < cols; i++)
            a.h[2 * cols + i] = a.h[i * cols + 2] = 0;
    for (size_t i = 0; i < n; i++) {
        a.idx[i] = (uint32_t)(i * i % k);
        a.idx_res[i] = k_res ? (uint32_t)(i * 3 % k_res) : 0;
        for (size_t d = 0; d < v; d++)
            a.q[i * v + d] = a.codebooks.c[(size_t)a.idx[i] * v + d] +
                             (k_res ? a.codebooks.r[(size_t)a.idx_res[i] * v + d] : 0);
    }
    for (size_t t = 0; t < cols; t++) {
        for (size_t s = 0; s < cols; s++) {
            for (size_t i = 0; i < rows; i++)
                a.g[t * rows + i] +=
                    (a.q[s * rows + i] - a.w[s * rows + i]) * a.h[s * cols + t];
        }
    }
    return a;
}

static void descend_free(descend_case *a)
{
    vcodebooks_free(&a->codebooks);
    free(a->w);
    free(a->h);
    free(a->g);
    free(a->q);
    free(a->idx);
    free(a->idx_res);
}

static double loss_of(const descend_case *a, const float *q)
{
    const size_t rows = a->vector_rows * a->codebooks.codebooks.v;
    double loss = 0;
    for (size_t s = 0; s < a->cols; s++) {
        for (size_t t = 0; t < a->cols; t++) {
            for (size_t i = 0; i < rows; i++) {
                const size_t si = s * rows + i, ti = t * rows + i;
                loss += ((double)q[si] - (double)a->w[si]) * (double)a->h[s * a->cols + t] *
                        ((double)q[ti] - (double)a->w[ti]);
            }
        }
    }
    return loss;
}

/* The sweep over one vector row in double. Returns false if a choice is too close to be
 * decided in float. */
static bool sweep_vector_row(const descend_case *a, size_t vector_row, uint32_t *idx,
                             uint32_t *idx_res)
{
    const vptq_codebooks *b = &a->codebooks.codebooks;
    const size_t v = b->v, rows = a->vector_rows * v;
    double *q = vtest_alloc(a->cols * v, sizeof *q);
    bool clear = true;
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t d = 0; d < v; d++)
            q[t * v + d] = (double)a->q[t * rows + vector_row * v + d];
    }
    for (size_t t = 0; t < a->cols && clear; t++) {
        const double h = (double)a->h[t * a->cols + t];
        float target[64];
        if (!(h > 0))
            continue;
        for (size_t d = 0; d < v; d++) {
            double g = 0;
            for (size_t s = 0; s < a->cols; s++)
                g += (q[s * v + d] - (double)a->w[s * rows + vector_row * v + d]) *
                     (double)a->h[s * a->cols + t];
            target[d] = (float)(q[t * v + d] - g / h);
        }
        const size_t at = t * a->vector_rows + vector_row;
        double best = vcodebooks_distance(b, target, idx[at], idx_res[at]);
        uint32_t main = idx[at], res = idx_res[at];
        for (uint32_t j = 0; j < b->k; j++) {
            for (uint32_t l = 0; l < (b->k_res ? b->k_res : 1); l++) {
                const double now = vcodebooks_distance(b, target, j, l);
                if (j == main && l == res)
                    continue;
                clear = clear && fabs(now - best) > 1e-4 * (now + best);
                if (now < best) {
                    best = now;
                    main = j;
                    res = l;
                }
            }
        }
        idx[at] = main;
        idx_res[at] = res;
        for (size_t d = 0; d < v; d++)
            q[t * v + d] = (double)b->centroids[main * v + d] +
                           (b->k_res ? (double)b->res_centroids[res * v + d] : 0);
    }
    free(q);
    return clear;
}

typedef struct descend_run {
    float *q, *delta;
    uint32_t *idx, *idx_res;
} descend_run;

/* Arrays have gaps after every column. */
static descend_run descend_on(const descend_case *a, const vptq_device *dev)
{
    const vptq_codebooks *b = &a->codebooks.codebooks;
    const size_t rows = a->vector_rows * b->v, ld = rows + 3, ldi = a->vector_rows + 2;
    descend_run r = {vtest_alloc(a->cols * ld, sizeof(float)),
                     vtest_alloc(a->cols * ld, sizeof(float)),
                     vtest_alloc(a->cols * ldi, sizeof(uint32_t)),
                     vtest_alloc(a->cols * ldi, sizeof(uint32_t))};
    vptq_search_index *index = vcodebooks_index(dev, b);
    vptq_err err;
    for (size_t t = 0; t < a->cols; t++) {
        memcpy(r.q + t * ld, a->q + t * rows, rows * sizeof *r.q);
        memcpy(r.idx + t * ldi, a->idx + t * a->vector_rows, a->vector_rows * sizeof *r.idx);
        memcpy(r.idx_res + t * ldi, a->idx_res + t * a->vector_rows,
               a->vector_rows * sizeof *r.idx_res);
    }
    const vptq_descend_args d = {.cols = a->cols,
                                 .rows = rows,
                                 .index = index,
                                 .g = a->g,
                                 .h = a->h,
                                 .idx = r.idx,
                                 .idx_res = b->k_res ? r.idx_res : NULL,
                                 .q = r.q,
                                 .delta = r.delta,
                                 .ldg = rows,
                                 .ldh = a->cols,
                                 .ldi = ldi,
                                 .ldq = ld,
                                 .ldd = ld};
    assert_ok(dev->ops->vq_descend(dev->state, &d, &err), &err);
    dev->ops->search_index_close(dev->state, index);
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t i = rows; i < ld; i++) /* the gap after a column is not written */
            assert_true(r.q[t * ld + i] == 0 && r.delta[t * ld + i] == 0);
    }
    return r;
}

static void descend_run_free(descend_run *r)
{
    free(r->q);
    free(r->delta);
    free(r->idx);
    free(r->idx_res);
}

static void check_descend(void *arg, const vptq_device *dev, bool is_ref)
{
    const descend_case *a = arg;
    const vptq_codebooks *b = &a->codebooks.codebooks;
    const size_t rows = a->vector_rows * b->v, ld = rows + 3, ldi = a->vector_rows + 2;
    descend_run r = descend_on(a, dev);
    uint32_t *idx = vtest_alloc(a->cols * a->vector_rows, sizeof *idx);
    uint32_t *idx_res = vtest_alloc(a->cols * a->vector_rows, sizeof *idx_res);
    float *q = vtest_alloc(a->cols * rows, sizeof *q);
    size_t compared = 0;
    (void)is_ref;
    for (size_t t = 0; t < a->cols; t++) { /* q is decoded from idx, delta is the change */
        memcpy(q + t * rows, r.q + t * ld, rows * sizeof *q);
        for (size_t i = 0; i < rows; i++) {
            const size_t at = t * ldi + i / b->v, d = i % b->v;
            float value = b->centroids[(size_t)r.idx[at] * b->v + d];
            if (b->k_res)
                value += b->res_centroids[(size_t)r.idx_res[at] * b->v + d];
            assert_true(value == r.q[t * ld + i]);
            assert_true(r.delta[t * ld + i] == value - a->q[t * rows + i]);
        }
    }
    const double before = loss_of(a, a->q), after = loss_of(a, q);
    assert_true(after <= before * (1 + 1e-6));
    for (size_t vector_row = 0; b->beam >= b->k && !b->local && vector_row < a->vector_rows;
         vector_row++) {
        memcpy(idx, a->idx, a->cols * a->vector_rows * sizeof *idx);
        memcpy(idx_res, a->idx_res, a->cols * a->vector_rows * sizeof *idx_res);
        if (!sweep_vector_row(a, vector_row, idx, idx_res))
            continue;
        compared++;
        for (size_t t = 0; t < a->cols; t++) {
            assert_int_equal(r.idx[t * ldi + vector_row], idx[t * a->vector_rows + vector_row]);
            assert_int_equal(r.idx_res[t * ldi + vector_row],
                             idx_res[t * a->vector_rows + vector_row]);
        }
    }
    assert_true(compared * 2 >= a->vector_rows || b->beam < b->k || b->local);
    free(idx);
    free(idx_res);
    free(q);
    descend_run_free(&r);
}

static void descend_equals_the_naive_sweep(void **state)
{
    (void)state;
    static const struct {
        size_t cols, vector_rows;
        uint32_t v, k, k_res, beam;
        bool local;
    } cases[] = {{1, 1, 8, 16, 0, 16, false},   {5, 40, 8, 16, 0, 16, false},
                 {6, 33, 4, 8, 8, 8, false},    {9, 7, 3, 20, 4, 20, false},
                 {4, 20, 16, 17, 3, 17, false}, {12, 50, 2, 4, 2, 4, false},
                 {20, 70, 8, 64, 32, 8, false}, {7, 35, 6, 100, 0, 1, false},
                 {20, 70, 8, 512, 32, 8, true}, {20, 70, 6, 1024, 0, 1, true},
                 {4, 9, 12, 20, 6, 20, false},  {3, 6, 64, 30, 5, 2, false},
                 {5, 7, 20, 9, 6, 9, false},    {135, 10, 4, 4, 2, 4, false},
                 {3, 5, 8, 6000, 20, 8, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        descend_case a = descend_make(cases[i].cols, cases[i].vector_rows, cases[i].v,
                                      cases[i].k, cases[i].k_res, cases[i].beam);
        a.codebooks.codebooks.local = cases[i].local;
        devices_each_emu(check_descend, &a);
        descend_free(&a);
    }
}

/* A choice that cannot be improved stays, even the second of two equal centroids. */
static void check_nothing_to_gain(void *arg, const vptq_device *dev, bool is_ref)
{
    const descend_case *a = arg;
    const size_t ld = a->vector_rows * a->codebooks.codebooks.v + 3;
    descend_run r = descend_on(a, dev);
    (void)is_ref;
    for (size_t t = 0; t < a->cols; t++) {
        const size_t bytes = a->vector_rows * sizeof *r.idx;
        assert_memory_equal(r.idx + t * (a->vector_rows + 2), a->idx + t * a->vector_rows,
                            bytes);
        assert_memory_equal(r.idx_res + t * (a->vector_rows + 2),
                            a->idx_res + t * a->vector_rows, bytes);
        for (size_t i = 0; i < ld; i++)
            assert_true(r.delta[t * ld + i] == 0);
    }
    descend_run_free(&r);
}

static void descend_keeps_equal_choices(void **state)
{
    (void)state;
    enum { V = 4, HALF = 20, RES = 6 };
    static const uint32_t beams[] = {1, 3, 2 * HALF};
    for (size_t n = 0; n < 2 * sizeof beams / sizeof *beams; n++) {
        descend_case a = descend_make(5, 9, V, 2 * HALF, n % 2 ? RES : 0, beams[n / 2]);
        memcpy(a.codebooks.c + HALF * V, a.codebooks.c, HALF * V * sizeof *a.codebooks.c);
        if (n % 2) /* makes the chosen main centroid the nearest */
            for (size_t i = 0; i < RES * V; i++)
                a.codebooks.r[i] *= 1e-3F;
        memset(a.g, 0, a.cols * a.vector_rows * V * sizeof *a.g);
        for (size_t i = 0; i < a.cols * a.vector_rows; i++) {
            a.idx[i] = (uint32_t)(HALF + i % HALF);
            for (size_t d = 0; d < V; d++)
                a.q[i * V + d] = a.codebooks.c[(size_t)a.idx[i] * V + d] +
                                 (n % 2 ? a.codebooks.r[(size_t)a.idx_res[i] * V + d] : 0);
        }
        devices_each_emu(check_nothing_to_gain, &a);
        descend_free(&a);
    }
}

static void descend_gives_the_same_bits_at_any_level_and_for_any_threads(void **state)
{
    (void)state;
    devices_skip_if_only();
    descend_case a = descend_make(30, 350, 8, 256, 64, 8);
    descend_run first = {0};
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
        if (!vptq_cpu_has((vptq_simd)simd))
            continue;
        for (int threads = 1; threads <= 3; threads++) {
            devices_one d;
            devices_open(&d, "cpu", (vptq_simd)simd, threads);
            descend_run r = descend_on(&a, &d.dev);
            if (!simd && threads == 1) {
                first = r;
            } else {
                assert_memory_equal(r.q, first.q, a.cols * (350 * 8 + 3) * sizeof *r.q);
                assert_memory_equal(r.delta, first.delta,
                                    a.cols * (350 * 8 + 3) * sizeof *r.delta);
                assert_memory_equal(r.idx, first.idx, a.cols * 352 * sizeof *r.idx);
                assert_memory_equal(r.idx_res, first.idx_res, a.cols * 352 * sizeof *r.idx);
                descend_run_free(&r);
            }
            devices_close(&d);
        }
    }
    descend_run_free(&first);
    descend_free(&a);
}

/* The same bits on the emulated device, in any order of its threads. */
static void descend_gives_the_same_bits_on_a_device(void **state)
{
    (void)state;
    enum { COLS = 9, VECTOR_ROWS = 11, V = 6 };
    static const uint32_t beams[] = {1, 4, 40};
    for (size_t i = 0; i < sizeof beams / sizeof *beams; i++) {
        descend_case a = descend_make(COLS, VECTOR_ROWS, V, 40, 33, beams[i]);
        descend_run first = {0};
        for (uint64_t seed = 0; seed < 3; seed++) {
            devices_one d;
            cuda_emu_seed(seed);
            devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
            descend_run r = descend_on(&a, &d.dev);
            devices_close(&d);
            if (seed == 0) {
                first = r;
                continue;
            }
            assert_memory_equal(r.q, first.q, COLS * (VECTOR_ROWS * V + 3) * sizeof *r.q);
            assert_memory_equal(r.delta, first.delta,
                                COLS * (VECTOR_ROWS * V + 3) * sizeof *r.delta);
            assert_memory_equal(r.idx, first.idx, COLS * (VECTOR_ROWS + 2) * sizeof *r.idx);
            assert_memory_equal(r.idx_res, first.idx_res,
                                COLS * (VECTOR_ROWS + 2) * sizeof *r.idx);
            descend_run_free(&r);
        }
        descend_run_free(&first);
        descend_free(&a);
    }
    cuda_emu_seed(0);
}

/* ---- out of memory ---- */

static vptq_status run_all(void *arg, vptq_device *dev, vptq_err *err)
{
    const pass_case *a = arg;
    const vptq_codebooks codebooks = {a->v, a->k, a->k_res, 2, false, a->c, a->res};
    vptq_search_index *index = NULL;
    vptq_status st = VPTQ_OK;
    pass_result r = pass_result_make(a);
    double *sums = vtest_alloc((size_t)a->k * a->v, sizeof *sums);
    VPTQ_TRY(dev->ops->search_index_open(dev->state, &codebooks, &index, err));
    r.args.index = index;
    VPTQ_TRY(dev->ops->vq_pass(dev->state, &r.args, err));
    const vptq_descend_args d = {.cols = a->cols,
                                 .rows = a->rows,
                                 .index = index,
                                 .g = r.z,
                                 .h = a->u,
                                 .idx = r.idx,
                                 .idx_res = r.idx_res,
                                 .q = r.q,
                                 .delta = r.err,
                                 .ldg = r.args.ldz,
                                 .ldh = a->cols,
                                 .ldi = r.args.ldi,
                                 .ldq = r.args.ldq,
                                 .ldd = r.args.lde};
    const vptq_scatter_args s = {.cols = a->cols,
                                 .rows = a->rows,
                                 .v = a->v,
                                 .k = a->k,
                                 .y = a->z,
                                 .idx = r.idx,
                                 .sums = sums,
                                 .ldy = a->rows,
                                 .ldi = r.args.ldi};
    VPTQ_TRY(dev->ops->vq_descend(dev->state, &d, err));
    VPTQ_TRY(dev->ops->vq_scatter(dev->state, &s, err));
out:
    dev->ops->search_index_close(dev->state, index);
    free(sums);
    pass_result_free(&r);
    return st;
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    devices_skip_if_only();
    pass_case a = pass_case_make(6, 600, 4, 520, 3);
    assert_true(devices_oom_walk("cpu", 2, run_all, &a) >= 5);
    pass_case_free(&a);
}

VTEST_MAIN(cmocka_unit_test(pass_equals_assign_column_by_column),
           cmocka_unit_test(pass_makes_the_choices_of_search),
           cmocka_unit_test(pass_gives_the_same_bits_for_any_threads),
           cmocka_unit_test(descend_equals_the_naive_sweep),
           cmocka_unit_test(descend_keeps_equal_choices),
           cmocka_unit_test(descend_gives_the_same_bits_at_any_level_and_for_any_threads),
           cmocka_unit_test(descend_gives_the_same_bits_on_a_device),
           cmocka_unit_test(survives_every_failed_allocation))
