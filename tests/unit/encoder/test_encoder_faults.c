/* Tests failures while a matrix is encoded: steps that do not improve it, a failing device, a
 * cancelled run, exhausted memory, invalid numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"
#include "tests/support/vencoder.h"
#include "tests/support/vtest.h"

/* ---- a backend that counts its calls and fails at one of them ---- */

static struct {
    const vptq_backend *real;
    long calls, at;             /* the call at which it happens; -1: never */
    volatile sig_atomic_t stop; /* it raises this flag ... */
    bool broken;                /* ... or, if set, the call fails */
    long descents, spoil; /* the call of vq_descend that makes the worst choices; -1: none */
    bool spoil_pass;      /* the pass makes the worst choices */
    bool spoil_scales;    /* the first product of the scales step comes out far too small */
    bool in_scales;
} fault;

static vptq_status count(vptq_err *err)
{
    if (fault.calls++ != fault.at)
        return VPTQ_OK;
    if (fault.broken)
        return vptq_fail(err, VPTQ_E_DEVICE, "the device is gone");
    fault.stop = 1;
    return VPTQ_OK;
}

/* Ops that take an args struct. */
#define OP(name, type)                                                                         \
    static vptq_status name(vptq_dev *dev, const type *args, vptq_err *err)                    \
    {                                                                                          \
        vptq_status st = count(err);                                                           \
        return st ? st : fault.real->name(dev, args, err);                                     \
    }
OP(search, vptq_search_args)
OP(vq_gather, vptq_gather_args)
OP(vq_scatter, vptq_scatter_args)
OP(first_outside, vptq_outside_args)
OP(column_norms, vptq_norms_args)
OP(normalize, vptq_normalize_args)
OP(metric, vptq_metric_args)
OP(add_packed, vptq_packed_args)
OP(reverse_upper, vptq_upper_args)
OP(subtract, vptq_subtract_args)
OP(affine, vptq_affine_args)
OP(column_dots, vptq_dots_args)
OP(solve_upper, vptq_solve_args)
OP(dot, vptq_dot_args)
OP(cg_step, vptq_cg_step_args)
OP(cg_turn, vptq_cg_turn_args)
OP(add_rounded, vptq_add_args)
OP(add_widened, vptq_widen_args)
OP(narrow, vptq_narrow_args)
OP(move_centroids, vptq_move_args)
OP(worst_vectors, vptq_worst_args)
OP(uniform_range, vptq_uniform_range_args)
OP(prune_mask, vptq_prune_mask_args)
OP(uniform_pass, vptq_uniform_pass_args)
OP(quantize_rows, vptq_quantize_rows_args)
OP(multiply_bytes, vptq_multiply_bytes_args)
OP(vq_pack, vptq_pack_args)
#undef OP

static vptq_status gemm(vptq_dev *dev, const vptq_gemm_args *args, vptq_err *err)
{
    vptq_status st = count(err);
    if (!st)
        st = fault.real->gemm(dev, args, err);
    for (size_t i = 0; fault.in_scales && !st && i < args->m; i++)
        for (size_t j = 0; j < args->n; j++)
            args->c[i * args->ldc + j] *= 0.01F;
    fault.in_scales = false;
    return st;
}

static vptq_status vq_pass(vptq_dev *dev, const vptq_pass_args *args, vptq_err *err)
{
    vptq_status st = count(err);
    if (!st)
        st = fault.real->vq_pass(dev, args, err);
    for (size_t t = 0; fault.spoil_pass && !st && t < args->cols; t++)
        memset(args->idx + t * args->ldi, 0, args->ldi * sizeof *args->idx);
    return st;
}

static vptq_status vq_descend(vptq_dev *dev, const vptq_descend_args *args, vptq_err *err)
{
    vptq_status st = count(err);
    if (!st)
        st = fault.real->vq_descend(dev, args, err);
    bool spoil = fault.descents++ == fault.spoil;
    for (size_t t = 0; spoil && !st && t < args->cols; t++)
        memset(args->idx + t * args->ldi, 0, args->ldi * sizeof *args->idx);
    return st;
}

static vptq_status potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                         vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->potrf(dev, n, a, lda, bad_pivot, err);
}

static vptq_status trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->trtri(dev, n, a, lda, err);
}

static vptq_status quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a, vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->quad_trace(dev, a, err);
}

static vptq_status assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->assign(dev, a, err);
}

static vptq_status reassign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->reassign(dev, a, err);
}

static vptq_status accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->accumulate(dev, a, err);
}

static vptq_status search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                     vptq_search_index **index, vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->search_index_open(dev, codebooks, index, err);
}

static vptq_status vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                              float *w, size_t ldw, vptq_err *err)
{
    vptq_status st = count(err);
    return st ? st : fault.real->vq_dequant(dev, m, r0, n, w, ldw, err);
}

/* Returns the backend of an open run in which every op that the encoder calls is one of the
 * above. */
static vptq_backend faulty(vencoder_run *run)
{
    fault.real = run->dev.ops;
    fault.calls = fault.descents = 0;
    fault.at = fault.spoil = -1;
    fault.stop = 0;
    fault.broken = fault.spoil_pass = fault.spoil_scales = fault.in_scales = false;
    run->ctx.cancel = &fault.stop;
    vptq_backend table = *run->dev.ops;
    table.gemm = gemm;
    table.search = search;
    table.vq_gather = vq_gather;
    table.vq_scatter = vq_scatter;
    table.vq_pass = vq_pass;
    table.vq_descend = vq_descend;
    table.potrf = potrf;
    table.trtri = trtri;
    table.quad_trace = quad_trace;
    table.assign = assign;
    table.reassign = reassign;
    table.accumulate = accumulate;
#define FAULTY(op) table.op = op;
    VPTQ_ARRAY_OPS(FAULTY)
    table.search_index_open = search_index_open;
    table.vq_dequant = vq_dequant;
    return table;
}

/* Every step of the encoder, on small codebooks. */
static vptq_encoder_settings everything(void)
{
    vptq_encoder_settings s = vptq_encoder_defaults();
    s.v = 4;
    s.k = 8;
    s.k_res = 4;
    s.groups = 2;
    s.outliers = 10;
    s.v0 = 2;
    s.k0 = 4;
    s.kmeans_iterations = 3;
    s.joint = 2;
    s.retrain = 1;
    s.sweeps = 2;
    s.refits = 2;
    s.beam = 4;
    return s;
}

static vptq_encoder_settings published(void)
{
    vptq_err err = {0};
    vptq_encoder_settings s = everything();
    assert_ok(vptq_encoder_set_encoder(&s, "upstream", &err), &err);
    s.kmeans_iterations = 3;
    return s;
}

/* ---- steps that do not pay ---- */

typedef enum { SPOIL_NOTHING, SPOIL_DESCENT, SPOIL_PASS, SPOIL_SCALES } spoil;

static void watch(void *arg, const char *step, double loss)
{
    (void)arg;
    (void)loss;
    fault.in_scales = fault.spoil_scales && !strcmp(step, "scales");
}

/* `which` is the call of vq_descend that is spoilt. */
static uint64_t digest_of(const problem *p, const vptq_encoder_settings *s, spoil what,
                          long which, vptq_encoder_report *report)
{
    vencoder_run run;
    vptq_err err = {0};
    vptq_encoder_input input = vencoder_input(p);
    input.on_step = watch;
    vencoder_open(&run, "cpu", 1);
    const vptq_backend table = faulty(&run);
    fault.spoil = what == SPOIL_DESCENT ? which : -1;
    fault.spoil_pass = what == SPOIL_PASS;
    fault.spoil_scales = what == SPOIL_SCALES;
    run.dev.ops = &table;
    assert_ok(vptq_encode_matrix(&run.dev, s, &input, &run.arena, &run.r, &err), &err);
    *report = run.r.report;
    uint64_t digest = vencoder_digest(&run.r.vq);
    vencoder_close(&run);
    return digest;
}

static const vptq_encoder_step *step_named(const vptq_encoder_report *r, const char *name)
{
    for (uint32_t i = 0; i < r->num_steps; i++)
        if (!strcmp(r->steps[i].name, name))
            return &r->steps[i];
    fail_msg("no step %s", name);
    return &r->steps[0]; /* not reached */
}

/* Sweeps, or the sweeps of a refit, that choose badly: the stored bytes are those of a run
 * without the step, and the report says so. */
static void test_bad_steps_are_reverted(void **state)
{
    (void)state;
    problem p = problem_make(24, 22, 11);
    vptq_encoder_report with, without;
    vptq_encoder_settings s = everything();
    s.rounding = VPTQ_ROUND_END; /* no decision after the last step */
    s.refits = 0;
    s.sweeps = 1;
    /* A sweep is three calls: the outliers and two groups. */
    uint64_t spoilt = digest_of(&p, &s, SPOIL_DESCENT, 1, &with);
    s.sweeps = 0;
    assert_true(spoilt == digest_of(&p, &s, SPOIL_NOTHING, 0, &without));
    const vptq_encoder_step *step = step_named(&with, "sweeps");
    assert_true(step->reverted);
    assert_true(step->loss == step_named(&with, "retrain")->loss &&
                step->loss == step_named(&without, "retrain")->loss);
    assert_true(with.loss == without.loss);

    s.refits = 1; /* reverts codebooks, indices, and the changes of sweeps */
    s.scales = false;
    spoilt = digest_of(&p, &s, SPOIL_DESCENT, 5, &with);
    s.refits = 0;
    assert_true(spoilt == digest_of(&p, &s, SPOIL_NOTHING, 0, &without));
    assert_true(step_named(&with, "refit")->reverted);
    assert_true(with.loss == without.loss);

    s.refits = 1; /* reverts scale and bias, and what follows from them */
    s.scales = true;
    spoilt = digest_of(&p, &s, SPOIL_SCALES, 0, &with);
    s.scales = false;
    assert_true(spoilt == digest_of(&p, &s, SPOIL_NOTHING, 0, &without));
    assert_true(step_named(&with, "scales")->reverted);
    assert_true(step_named(&with, "refit")->loss == step_named(&without, "refit")->loss);
    s.scales = true;
    assert_true(spoilt != digest_of(&p, &s, SPOIL_NOTHING, 0, &without));
    assert_false(step_named(&without, "scales")->reverted);
    s.refits = 0;

    s.retrain = 0;
    spoilt = digest_of(&p, &s, SPOIL_PASS, 0, &with);
    assert_true(step_named(&with, "pass")->reverted);
    assert_true(step_named(&with, "pass")->loss == step_named(&with, "joint")->loss);
    assert_true(spoilt != digest_of(&p, &s, SPOIL_NOTHING, 0, &without));
    assert_false(step_named(&without, "pass")->reverted);
    assert_true(without.loss < with.loss);
    s.retrain = 2; /* as bad, with other codebooks */
    assert_true(spoilt == digest_of(&p, &s, SPOIL_PASS, 0, &with));
    assert_true(step_named(&with, "retrain")->reverted);
    problem_free(&p);
}

/* Later steps continue from the restored state. */
static void test_steps_continue_from_a_reverted_state(void **state)
{
    (void)state;
    problem p = problem_make(24, 22, 12);
    vptq_encoder_report with, without;
    vptq_encoder_settings s = everything();
    s.sweeps = 1;
    s.refits = 2;
    uint64_t spoilt = digest_of(&p, &s, SPOIL_DESCENT, 0, &with);
    assert_true(step_named(&with, "sweeps")->reverted);
    s.sweeps = 0;
    assert_true(spoilt == digest_of(&p, &s, SPOIL_NOTHING, 0, &without));
    assert_true(with.loss == without.loss);
    assert_true(with.loss < step_named(&with, "sweeps")->loss);
    problem_free(&p);
}

/* The published recipe keeps the result of its pass, whatever that does to the loss. */
static void test_upstream_reverts_nothing(void **state)
{
    (void)state;
    problem p = problem_make(24, 22, 13);
    vptq_encoder_report r;
    vptq_encoder_settings s = published();
    (void)digest_of(&p, &s, SPOIL_PASS, 0, &r);
    const vptq_encoder_step *pass = step_named(&r, "pass");
    assert_true(pass->loss > pass[-1].loss);
    for (uint32_t i = 0; i < r.num_steps; i++)
        assert_false(r.steps[i].reverted);
    assert_true(fabs(r.loss / pass->loss - 1) < 0.01);
    problem_free(&p);
}

/* A pass alone can lose against plain assignment; some small matrices show it. */
static void test_a_pass_that_does_not_pay(void **state)
{
    (void)state;
    size_t reverted = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        problem p = problem_make(4, 5, 3000 + seed);
        const vptq_encoder_input input = vencoder_input(&p);
        vptq_encoder_settings s = vptq_encoder_defaults();
        vencoder_run run;
        vencoder_state e;
        vptq_err err = {0};
        s.v = 2;
        s.k = 4;
        s.retrain = s.sweeps = s.refits = 0;
        s.rounding = VPTQ_ROUND_END;
        vencoder_open(&run, "cpu", 1);
        vencoder_quantize(&run, &s, &input);
        const vptq_encoder_step *step = run.r.report.steps;
        if (step[1].reverted) {
            reverted++;
            assert_true(step[1].loss == step[0].loss);
            vencoder_state_open(&e, "cpu", 1, &s, &input);
            assert_ok(vptq_train_main(&e.enc, &err), &err);
            assert_memory_equal(run.r.centroids_f32, e.enc.columns.groups[0].main,
                                8 * sizeof(float));
            for (size_t t = 0; t < 5; t++)
                for (size_t g = 0; g < 2; g++)
                    assert_int_equal(
                        vptq_bits_get(run.r.vq.indices + g, e.enc.problem.order[t], 2),
                        e.enc.columns.groups[0].idx[t * 2 + g]);
            vencoder_state_close(&e);
        } else {
            assert_true(step[1].loss <= step[0].loss * 1.001); /* the ridge counts too */
        }
        vencoder_close(&run);
        problem_free(&p);
    }
    assert_true(reverted > 0 && reverted < 60);
}

/* ---- cancelling, and devices that fail ---- */

static vptq_status run_at(const problem *p, const vptq_encoder_settings *s, long at,
                          bool broken, vptq_err *err)
{
    vencoder_run run;
    vptq_encoder_input input = vencoder_input(p);
    float *held_out = problem_hessian(p->in, 77);
    input.held_out = held_out;
    vencoder_open(&run, "cpu", 1);
    const vptq_backend table = faulty(&run);
    fault.at = at;
    fault.broken = broken;
    run.dev.ops = &table;
    vptq_status st = vptq_encode_matrix(&run.dev, s, &input, &run.arena, &run.r, err);
    run.dev.ops = fault.real;
    vencoder_close(&run);
    free(held_out);
    return st;
}

/* Cancelled at any call of the device, a run ends a few calls later; a failing call ends it at
 * once. */
static void check_every_call(const vptq_encoder_settings *s)
{
    problem p = problem_make(10, 14, 15);
    vptq_err err = {0};
    assert_ok(run_at(&p, s, -1, false, &err), &err);
    const long calls = fault.calls, soon = 24;
    assert_true(calls > 50);
    for (long at = 0; at < calls; at++) {
        vptq_status st = run_at(&p, s, at, false, &err);
        if (st == VPTQ_OK) { /* after the last call */
            assert_int_equal(at, calls - 1);
            break;
        }
        assert_int_equal(st, VPTQ_E_CANCELLED);
        assert_string_equal(err.text, "interrupted");
        assert_in_range(fault.calls - at, 1, soon);
    }
    for (long at = 0; at < calls; at++) {
        assert_fails(run_at(&p, s, at, true, &err), VPTQ_E_DEVICE, &err, "the device is gone");
        assert_int_equal(fault.calls, at + 1);
    }
    problem_free(&p);
}

static void test_cancelled_or_failing_anywhere(void **state)
{
    (void)state;
    vptq_encoder_settings s = everything();
    check_every_call(&s);
    s = published();
    check_every_call(&s);
}

/* Raises a flag as a step begins; the run must stop within that step. */
typedef struct stopper {
    const char *step;
    volatile sig_atomic_t stop;
    const char *last;
} stopper;

static void stop_at(void *arg, const char *step, double loss)
{
    stopper *a = arg;
    (void)loss;
    assert_false(a->stop); /* no further step begins */
    a->last = step;
    a->stop = !strcmp(step, a->step);
}

static void test_cancelled_in_every_step(void **state)
{
    (void)state;
    static const char *const names[] = {"factor",  "k-means", "residual", "joint", "pass",
                                        "retrain", "sweeps",  "scales",   "refit", "storage"};
    problem p = problem_make(16, 22, 17);
    vptq_encoder_input input = vencoder_input(&p);
    const vptq_encoder_settings s = everything();
    input.on_step = stop_at;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        vencoder_run run;
        vptq_err err = {0};
        stopper a = {.step = names[i]};
        vencoder_open(&run, "cpu", 2);
        run.ctx.cancel = &a.stop;
        input.on_step_arg = &a;
        assert_fails(vptq_encode_matrix(&run.dev, &s, &input, &run.arena, &run.r, &err),
                     VPTQ_E_CANCELLED, &err, "interrupted");
        assert_string_equal(a.last, names[i]);
        vencoder_close(&run);
    }
    problem_free(&p);
}

/* ---- memory ---- */

typedef struct walk {
    const problem *p;
    const vptq_encoder_settings *s;
} walk;

static vptq_status quantize_with(void *arg, vptq_device *dev, vptq_err *err)
{
    const walk *a = arg;
    vptq_encoder_input input = vencoder_input(a->p);
    vptq_encoder_result r;
    vptq_arena arena;
    input.held_out = a->p->lower;
    input.metric = a->p->lower;
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = vptq_encode_matrix(dev, a->s, &input, &arena, &r, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    problem p = problem_make(9, 14, 19);
    const vptq_encoder_settings best = everything(), other = published();
    walk a = {&p, &best};
    assert_true(devices_oom_walk("cpu", 1, quantize_with, &a) > 50);
    a.s = &other;
    assert_true(devices_oom_walk("cpu", 1, quantize_with, &a) > 30);
    assert_true(devices_oom_walk("ref", 1, quantize_with, &a) > 30);
    problem_free(&p);
}

/* ---- bad input ---- */

static vptq_status quantize(const vptq_encoder_settings *s, const vptq_encoder_input *input,
                            vptq_encoder_report *report, vptq_err *err)
{
    vencoder_run run;
    vencoder_open(&run, "cpu", 1);
    vptq_status st = vptq_encode_matrix(&run.dev, s, input, &run.arena, &run.r, err);
    if (report)
        *report = run.r.report;
    vencoder_close(&run);
    return st;
}

static void test_bad_hessians(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38F};
    problem p = problem_make(8, 10, 21);
    vptq_err err = {0};
    const vptq_encoder_settings s = everything(), other = published();
    for (int which = 0; which < 3; which++)
        for (size_t i = 0; i < 5; i++) {
            static const char *const names[] = {"hessian entry", "weighted hessian entry",
                                                "held-out hessian entry"};
            char part[80];
            float *h = problem_hessian(p.in, 22), *good = problem_hessian(p.in, 23);
            vptq_encoder_input input = vencoder_input(&p);
            input.metric = good;
            input.held_out = good;
            *(which == 0 ? &input.lower : which == 1 ? &input.metric : &input.held_out) = h;
            if (i < 4) {
                h[(size_t)6 * 7 / 2 + i] = bad[i];
                snprintf(part, sizeof part, "%s (6, %zu) is", names[which], i);
            } else { /* a negative second moment */
                h[(size_t)6 * 7 / 2 + 6] = -0.5F;
                snprintf(part, sizeof part, "%.*s diagonal 6 is -0.5",
                         (int)strlen(names[which]) - 6, names[which]);
            }
            assert_fails(quantize(&s, &input, NULL, &err), VPTQ_E_NUMERIC, &err, part);
            assert_fails(quantize(&other, &input, NULL, &err), VPTQ_E_NUMERIC, &err, part);
            free(h);
            free(good);
        }
    problem_free(&p);
}

static void test_bad_weights(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    vptq_err err = {0};
    const vptq_encoder_settings s = everything();
    for (size_t i = 0; i < 3; i++) {
        problem p = problem_make(8, 10, 24);
        const vptq_encoder_input input = vencoder_input(&p);
        p.w[7 * 10 + 3 * i] = bad[i];
        char part[40];
        snprintf(part, sizeof part, "row 7, column %zu", 3 * i);
        assert_fails(quantize(&s, &input, NULL, &err), VPTQ_E_NUMERIC, &err, part);
        p.w[7 * 10 + 3 * i] = 3e38F; /* finite, but no half can hold such a scale */
        assert_fails(quantize(&s, &input, NULL, &err), VPTQ_E_NUMERIC, &err, "F16 cannot hold");
        problem_free(&p);
    }
    /* Without scales the codebooks must fit. */
    problem p = problem_make(8, 10, 25);
    const vptq_encoder_input input = vencoder_input(&p);
    vptq_encoder_settings none = everything();
    none.norm = VPTQ_NORM_NONE;
    none.scales = false;
    for (size_t i = 0; i < 80; i++)
        p.w[i] *= 1e6F;
    assert_fails(quantize(&none, &input, NULL, &err), VPTQ_E_NUMERIC, &err,
                 "does not fit into F16");
    none.storage = VPTQ_BF16;
    assert_ok(quantize(&none, &input, NULL, &err), &err);
    problem_free(&p);
}

/* Makes H the second moments of fewer tokens than columns. */
static void make_singular(problem *p, size_t tokens)
{
    float *x = malloc(tokens * p->in * sizeof *x), *at = p->lower;
    vtest_normal(x, tokens * p->in, 31);
    for (size_t i = 0; i < p->in; i++)
        for (size_t j = 0; j <= i; j++) {
            double s = 0;
            for (size_t t = 0; t < tokens; t++)
                s += (double)x[t * p->in + i] * (double)x[t * p->in + j];
            *at++ = (float)(s / (double)tokens);
        }
    problem_unpack(p);
    free(x);
}

static void test_singular_hessian(void **state)
{
    (void)state;
    problem p = problem_make(24, 22, 31);
    const vptq_encoder_input input = vencoder_input(&p);
    vptq_err err = {0};
    make_singular(&p, 6);
    for (int encoder = 0; encoder < 2; encoder++) {
        vptq_encoder_settings s = encoder ? published() : everything();
        vptq_encoder_report r;
        assert_ok(quantize(&s, &input, &r, &err), &err);
        assert_true(r.damping_added <= 0); /* the ridge is enough */
        assert_true(r.loss > 0 && r.loss < 0.3);
        s.ridge = 0;
        assert_ok(quantize(&s, &input, &r, &err), &err);
        assert_true(fabs(r.damping_added - s.damping) < 1e-9);
        assert_true(r.loss > 0 && r.loss < 0.3);
        for (uint32_t i = 1; !encoder && i < r.num_steps; i++) /* the damping counts too */
            assert_true(r.steps[i].loss <= r.steps[i - 1].loss * 1.5);
    }
    problem_free(&p);
}

/* Not a matrix of second moments, though a file can hold one: damping is raised until it
 * factors, and errors stay bounded. Too little damping to raise is refused. */
static void test_indefinite_hessian(void **state)
{
    (void)state;
    problem p = problem_make(24, 22, 33);
    const vptq_encoder_input input = vencoder_input(&p);
    vptq_err err = {0};
    for (uint32_t i = 0; i < p.in; i++)
        for (uint32_t j = 0; j < i; j++)
            p.lower[i * (i + 1) / 2 + j] *= (i + j) % 3 ? -2.0F : 2.0F;
    for (int encoder = 0; encoder < 2; encoder++) {
        vptq_encoder_settings s = encoder ? published() : everything();
        vptq_encoder_report r;
        assert_ok(quantize(&s, &input, &r, &err), &err);
        double raised = r.damping_added / s.damping; /* 10, 100, ... times the first share */
        assert_true(raised > 9 && fabs(log10(raised) - round(log10(raised))) < 1e-9);
        assert_true(isfinite(r.loss) && isfinite(r.relative_mse));
        assert_true(r.relative_mse < 0.5);
        s.damping = 1e-12;
        assert_fails(quantize(&s, &input, NULL, &err), VPTQ_E_NUMERIC, &err,
                     "hessian is not positive definite at column");
    }
    problem_free(&p);
}

VTEST_MAIN(cmocka_unit_test(test_bad_steps_are_reverted),
           cmocka_unit_test(test_steps_continue_from_a_reverted_state),
           cmocka_unit_test(test_upstream_reverts_nothing),
           cmocka_unit_test(test_a_pass_that_does_not_pay),
           cmocka_unit_test(test_cancelled_or_failing_anywhere),
           cmocka_unit_test(test_cancelled_in_every_step), cmocka_unit_test(test_out_of_memory),
           cmocka_unit_test(test_bad_hessians), cmocka_unit_test(test_bad_weights),
           cmocka_unit_test(test_singular_hessian), cmocka_unit_test(test_indefinite_hessian))
