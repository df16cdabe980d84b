/* The student's numbers and the optimizer, against the formulas in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/grid.h"
#include "lib/base/half.h"
#include "lib/tune/optimizer.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

#define PACKED "tests/golden/packed_qwen3"

typedef struct rig {
    vrig r;
    vptq_student s;
    vptq_optimizer o;
    double *g;
} rig;

static void rig_open(rig *t, uint32_t steps, double rate)
{
    vptq_err err;
    vrig_open(&t->r, PACKED, NULL, false);
    assert_ok(vptq_student_open(&t->r.ctx, &t->r.m, &t->s, &err), &err);
    assert_ok(vptq_optimizer_open(&t->s, steps, &t->s.arena, &t->o, &err), &err);
    t->o.rate = rate;
    t->g = vtest_alloc(t->s.count, sizeof *t->g);
}

static void rig_close(rig *t)
{
    free(t->g);
    vptq_student_release(&t->s);
    vrig_close(&t->r);
}

/* A gradient of step t, 0 where 7 divides the index. */
static double gradient_at(size_t i, uint32_t t)
{
    return i % 7 == 0 ? 0 : sin((double)(i * 13 + t * 5)) * (1 + (double)(i % 11));
}

static void fill(rig *t, uint32_t step, double factor)
{
    for (size_t i = 0; i < t->s.count; i++)
        t->g[i] = factor * gradient_at(i, step);
}

/* ---- the student ---- */

/* The tensors cover all numbers once, and the copied matrices decode like the model's. */
static void test_student(void **state)
{
    (void)state;
    rig t;
    size_t at = 0;
    rig_open(&t, 1, 0);
    for (size_t i = 0; i < t.s.tensor_count; i++) {
        assert_int_equal(t.s.tensors[i].at, at);
        assert_true(t.s.tensors[i].count > 0);
        at += t.s.tensors[i].count;
    }
    assert_int_equal(at, t.s.count);
    for (uint32_t l = 0; l < t.r.m.desc->layers; l++)
        for (int i = 0; i < VPTQ_LINEAR_DENSE; i++) {
            const vptq_weight *own = &t.r.m.blocks[l].linear[i];
            const vptq_weight *copy = &t.s.weight[l * VPTQ_LINEAR_DENSE + (size_t)i];
            const size_t size = own->rows * own->cols;
            float *a = vtest_alloc(size, sizeof *a), *b = vtest_alloc(size, sizeof *b);
            vptq_err err;
            assert_true(copy->packed && copy->packed != own->packed);
            assert_ok(vptq_weight_read(own, &t.r.dev, 0, own->rows, a, &err), &err);
            assert_ok(vptq_weight_read(copy, &t.r.dev, 0, own->rows, b, &err), &err);
            assert_same_f32(a, b, size);
            free(a);
            free(b);
        }
    rig_close(&t);
}

/* Masters are rounded to the storage type; a small move of one changes nothing. */
static void test_rounding(void **state)
{
    (void)state;
    rig t;
    rig_open(&t, 1, 0);
    const size_t one = 5, other = t.s.count - 3;
    const float small = t.s.original[one] * (1 + 1e-5f);
    const float large = t.s.original[other] + 1;
    t.s.master[one] = small;
    t.s.master[other] = large;
    vptq_student_round(&t.s, &t.o.range);
    assert_true(t.s.stored[one] == t.s.original[one] && small != t.s.original[one]);
    assert_true(t.s.stored[other] == vptq_round_to(t.s.matrix[0].storage, large));
    assert_true(vptq_student_changed(&t.s) == 1 / (double)t.s.count);
    rig_close(&t);
}

/* A codebook on an int8 grid is found as such and stays on one; others stay as they are. */
static void test_grid(void **state)
{
    (void)state;
    rig t;
    vptq_err err;
    float scale, *codebook;
    rig_open(&t, 1, 0);
    assert_false(t.s.tensors[0].grid);
    vptq_student_release(&t.s);
    vptq_packed_matrix m = *t.r.m.blocks[0].linear[VPTQ_LINEAR_Q].packed;
    const size_t count = (size_t)m.vq.shape.groups * m.vq.shape.k * m.vq.shape.v;
    codebook = vtest_alloc(count, sizeof *codebook);
    for (size_t i = 0; i < count; i++)
        codebook[i] = 0.125f * (float)((int)(i * 37 % 255) - 127);
    m.vq.centroids = codebook;
    t.r.m.blocks[0].linear[VPTQ_LINEAR_Q].packed = &m;
    assert_ok(vptq_student_open(&t.r.ctx, &t.r.m, &t.s, &err), &err);
    const vptq_trainable *x = &t.s.tensors[0];
    assert_true(x->grid && x->v == m.vq.shape.v);
    vptq_student_round(&t.s, &t.o.range);
    assert_memory_equal(t.s.stored, t.s.original, t.s.count * sizeof *t.s.stored);
    for (size_t i = 0; i < x->count; i++)
        t.s.master[x->at + i] *= 1 + 0.01f * (float)(i % 5);
    vptq_student_round(&t.s, &t.o.range);
    assert_true(vptq_grid_find(t.s.stored + x->at, x->count, &scale, NULL));
    assert_true(vptq_student_changed(&t.s) > 0);
    free(codebook);
    rig_close(&t);
}

/* The parts of a matrix lie in the order of the tensors. */
static void test_gradients_of_a_matrix(void **state)
{
    (void)state;
    rig t;
    rig_open(&t, 1, 0);
    for (size_t i = 0; i < t.s.tensor_count; i++) {
        const vptq_trainable *x = &t.s.tensors[i];
        const vptq_stored_gradients to = vptq_student_gradients(&t.s, x->layer, x->linear, t.g);
        double *const of[] = {to.centroids, to.res_centroids, to.outlier_centroids, to.scale,
                              to.bias};
        assert_ptr_equal(of[x->kind] + x->group * x->count, t.g + x->at);
    }
    rig_close(&t);
}

static void test_nothing_to_train(void **state)
{
    (void)state;
    vrig r;
    vptq_student s;
    vptq_err err;
    vrig_open(&r, VRIG_TINY, NULL, false);
    assert_fails(vptq_student_open(&r.ctx, &r.m, &s, &err), VPTQ_E_ARG, &err,
                 "has nothing to train: none of its linear layers is packed");
    vptq_student_release(&s);
    vrig_close(&r);
}

static void test_names(void **state)
{
    (void)state;
    char name[VPTQ_TRAINABLE_NAME_MAX];
    const vptq_model_desc d = {.family = vptq_family_by_model_type("llama")};
    vptq_trainable t = {.layer = 3, .group = 1, .kind = VPTQ_TRAIN_RES_CENTROIDS};
    vptq_trainable_name(&d, &t, name);
    assert_string_equal(name, "layer 3 q_proj: residual centroids of group 1");
    t = (vptq_trainable){.linear = VPTQ_LINEAR_DOWN, .kind = VPTQ_TRAIN_BIAS};
    vptq_trainable_name(&d, &t, name);
    assert_string_equal(name, "layer 0 down_proj: bias");
}

/* ---- steps ---- */

static void test_rates(void **state)
{
    (void)state;
    vptq_optimizer o = {.steps = 60, .warm_up = 6, .rate = 0.01};
    double last = 0;
    for (uint32_t t = 0; t < 60; t++) {
        const double rate = vptq_optimizer_rate(&o, t);
        assert_true(t <= 6 ? rate > last || t == 6 : rate < last);
        last = rate;
    }
    assert_true(vptq_optimizer_rate(&o, 0) == 0.01 / 6);
    assert_true(vptq_optimizer_rate(&o, 5) == 0.01 && vptq_optimizer_rate(&o, 6) == 0.01);
    assert_true(fabs(vptq_optimizer_rate(&o, 33) - 0.01 * (0.05 + 0.95 / 2)) < 1e-12);
    assert_true(last > 0.0005 && last < 0.00052);
}

/* The size that steps of a tensor are relative to. */
static double size_of(const rig *t, const vptq_trainable *x, const double *p)
{
    const size_t at = x->kind == VPTQ_TRAIN_BIAS ? x->at - x->count : x->at;
    double sum = 0;
    for (size_t j = 0; j < x->count; j++)
        if ((x->at + j) % 7 != 0)
            sum += p[at + j] * p[at + j];
    (void)t;
    return sqrt(sum);
}

/* One step of the formulas in the header, for a tensor. */
static void expect_step(const rig *t, const vptq_trainable *x, uint32_t step, double *p,
                        double *m, double *v)
{
    const double rate =
        vptq_optimizer_rate(&t->o, step) * (x->kind >= VPTQ_TRAIN_SCALE ? 0.5 : 1);
    double u2 = 0, *u = vtest_alloc(x->count, sizeof *u);
    for (size_t j = 0; j < x->count; j++) {
        const size_t i = x->at + j;
        const double g = gradient_at(i, step);
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.95 * v[i] + 0.05 * g * g;
        u[j] = v[i] > 0
                   ? m[i] / (1 - pow(0.9, step + 1)) / sqrt(v[i] / (1 - pow(0.95, step + 1)))
                   : 0;
        u2 += u[j] * u[j];
    }
    const double size = size_of(t, x, p);
    for (size_t j = 0; j < x->count && u2 > 0; j++)
        p[x->at + j] -= rate * size / sqrt(u2) * u[j];
    free(u);
}

static void test_steps(void **state)
{
    (void)state;
    enum { STEPS = 12 };
    rig t;
    rig_open(&t, STEPS, 0.02);
    const size_t n = t.s.count;
    double *p = vtest_alloc(n, sizeof *p), *m = vtest_alloc(n, sizeof *m);
    double *v = vtest_alloc(n, sizeof *v), norm;
    for (size_t i = 0; i < n; i++)
        p[i] = (double)t.s.master[i];
    for (uint32_t step = 0; step < STEPS; step++) {
        vptq_err err;
        fill(&t, step, 1);
        assert_ok(vptq_optimizer_step(&t.o, &t.s, t.g, &norm, &err), &err);
        for (size_t i = 0; i < t.s.tensor_count; i++)
            expect_step(&t, &t.s.tensors[i], step, p, m, v);
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs((double)t.s.master[i] - p[i]) <= 1e-5 * (1 + fabs(p[i])));
        if (i % 7 == 0)
            assert_true(t.s.master[i] == t.s.original[i]); /* never had a gradient */
    }
    assert_true(vptq_student_changed(&t.s) > 0.5);
    free(p);
    free(m);
    free(v);
    rig_close(&t);
}

/* A run over the tensors of one layer begins anew, and moves nothing else. */
static void test_range(void **state)
{
    (void)state;
    rig t, fresh;
    vptq_err err;
    double norm;
    rig_open(&t, 2, 0.02);
    rig_open(&fresh, 2, 0.02);
    const vptq_tensor_range r = vptq_student_range(&t.s, 1, 2);
    assert_true(r.first > 0 && r.end == t.s.tensor_count && r.at == t.s.tensors[r.first].at);
    assert_int_equal(r.at + r.count, t.s.count);
    fill(&t, 1, 1);
    assert_ok(vptq_optimizer_step(&t.o, &t.s, t.g, &norm, &err), &err);
    memcpy(t.s.master, t.s.original, t.s.count * sizeof *t.s.master);
    vptq_optimizer_begin(&t.o, &r);
    vptq_optimizer_begin(&fresh.o, &r);
    fill(&t, 0, 1);
    fill(&fresh, 0, 1);
    t.g[0] = NAN; /* of another layer */
    assert_ok(vptq_optimizer_step(&t.o, &t.s, t.g, &norm, &err), &err);
    assert_ok(vptq_optimizer_step(&fresh.o, &fresh.s, fresh.g, &norm, &err), &err);
    assert_memory_equal(t.s.master, t.s.original, r.at * sizeof *t.s.master);
    assert_true(t.s.master[r.at + 1] != t.s.original[r.at + 1]);
    assert_memory_equal(t.s.master, fresh.s.master, t.s.count * sizeof *t.s.master);
    rig_close(&t);
    rig_close(&fresh);
}

/* A gradient ten times as large as those before counts as twice as large as their median. */
static void test_clipping(void **state)
{
    (void)state;
    rig a, b;
    vptq_err err;
    double norm, first = 0;
    rig_open(&a, 5, 0.01);
    rig_open(&b, 5, 0.01);
    for (uint32_t step = 0; step < 5; step++) {
        fill(&a, 0, step == 3 ? 10 : 1);
        fill(&b, 0, step == 3 ? 2 : 1);
        assert_ok(vptq_optimizer_step(&b.o, &b.s, b.g, &norm, &err), &err);
        assert_ok(vptq_optimizer_step(&a.o, &a.s, a.g, &norm, &err), &err);
        first = step == 0 ? norm : first;
        assert_true(fabs(norm - first * (step == 3 ? 10 : 1)) <= 1e-9 * norm);
    }
    for (size_t i = 0; i < a.s.count; i++)
        assert_true(fabsf(a.s.master[i] - b.s.master[i]) <= 1e-6f * (1 + fabsf(b.s.master[i])));
    rig_close(&a);
    rig_close(&b);
}

static void test_not_finite(void **state)
{
    (void)state;
    rig t;
    vptq_err err;
    double norm;
    rig_open(&t, 3, 0.01);
    fill(&t, 0, 1);
    t.g[t.s.tensors[1].at] = NAN;
    assert_fails(vptq_optimizer_step(&t.o, &t.s, t.g, &norm, &err), VPTQ_E_NUMERIC, &err,
                 "the gradient of layer 0 q_proj: ");
    assert_memory_equal(t.s.master, t.s.original, t.s.count * sizeof *t.s.master);
    assert_int_equal(t.o.step, 0);
    rig_close(&t);
}

VTEST_MAIN(cmocka_unit_test(test_student), cmocka_unit_test(test_rounding),
           cmocka_unit_test(test_grid), cmocka_unit_test(test_gradients_of_a_matrix),
           cmocka_unit_test(test_nothing_to_train), cmocka_unit_test(test_names),
           cmocka_unit_test(test_rates), cmocka_unit_test(test_steps),
           cmocka_unit_test(test_range), cmocka_unit_test(test_clipping),
           cmocka_unit_test(test_not_finite))
