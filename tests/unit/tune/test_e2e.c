/* End-to-end tuning: what it gains, what it must leave alone, the same bits for any number of
 * threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/model/corpus.h"
#include "lib/tune/e2e.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"
#include "tests/support/vwork.h"

/* A run: rig.m is the student's model, rig.base the teacher. */
typedef struct run {
    vrig r;
    vptq_student s;
    vptq_e2e *e;
    vptq_trainer *t; /* of e */
    vptq_trainer_report start, last;
    int32_t *ids;
} run;

static void run_close(run *t)
{
    vptq_e2e_close(t->e);
    vptq_student_release(&t->s);
    vrig_close(&t->r);
    free(t->ids);
}

/* Random ids of the tiny vocabulary. */
static int32_t *random_ids(size_t n)
{
    const vptq_rng rng = vptq_rng_make(9, 0, 0, VPTQ_RNG_TEST);
    int32_t *ids = vtest_alloc(n, sizeof *ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VRIG_VOCAB);
    return ids;
}

static vptq_trainer_options tiny_options(double rate)
{
    return (vptq_trainer_options){.steps = 6,
                                  .batch = 2,
                                  .rate = rate,
                                  .length = 20,
                                  .windows = 5,
                                  .held_out = 3,
                                  .every = 2,
                                  .seed = 1};
}

static void run_open(run *t, const char *student, const char *teacher, const char *backend,
                     int threads)
{
    vptq_err err;
    memset(t, 0, sizeof *t);
    vrig_open_on(&t->r, student, NULL, backend, threads);
    vrig_open_base(&t->r, teacher);
    assert_ok(vptq_student_open(&t->r.ctx, &t->r.m, &t->s, &err), &err);
}

static void run_start(run *t, const vptq_trainer_options *opt)
{
    vptq_err err;
    vptq_trainer_options o = *opt;
    o.ids = t->ids;
    assert_ok(vptq_e2e_open(&t->r.dev, &t->r.base, &t->s, &o, &t->e, &t->start, &err), &err);
    t->t = vptq_e2e_trainer(t->e);
}

static void run_steps(run *t)
{
    vptq_err err;
    while (!vptq_trainer_done(t->t))
        assert_ok(vptq_trainer_step(t->t, &t->last, &err), &err);
}

/* A tuned student of vwork, whose two quantized matrices are random. */
static void tune_work(run *t, const char *dir, const char *backend, int threads, double rate)
{
    char work[4096], base[4096];
    const vptq_trainer_options opt = tiny_options(rate);
    snprintf(work, sizeof work, "%s/work", dir);
    snprintf(base, sizeof base, "%s/base", dir);
    run_open(t, work, base, backend, threads);
    t->ids = random_ids((opt.windows + opt.held_out) * opt.length);
    run_start(t, &opt);
    run_steps(t);
}

static void test_threads_and_backends(void **state)
{
    const char *dir = *state;
    vwork_make(dir);
    run one, three, ref;
    tune_work(&one, dir, "cpu", 1, 0.02);
    tune_work(&three, dir, "cpu", 3, 0.02);
    tune_work(&ref, dir, "ref", 1, 0.02);
    assert_true(one.start.held_out > 0 && one.last.held_out < 0.98 * one.start.held_out);
    assert_memory_equal(one.s.master, three.s.master, one.s.count * sizeof *one.s.master);
    assert_true(one.last.held_out == three.last.held_out && one.last.loss == three.last.loss);
    assert_true(fabs(one.last.held_out - ref.last.held_out) <= 1e-2 * ref.last.held_out);
    assert_int_equal(one.last.step, 6);
    assert_true(vptq_trainer_best(one.t, NULL) <= one.last.held_out);
    run_close(&one);
    run_close(&three);
    run_close(&ref);
}

/* The emulated GPU takes the same steps, within its rounding. */
static void test_emulated_cuda(void **state)
{
    run cpu, emu;
    if (vtest_emulated())
        skip();
    assert_non_null(vptq_backend_emu()); /* this reference also links it */
    vwork_make(*state);
    tune_work(&cpu, *state, "cpu", 2, 0.02);
    tune_work(&emu, *state, "emu", 1, 0.02);
    assert_true(fabs(cpu.last.held_out - emu.last.held_out) <= 1e-3 * cpu.last.held_out);
    assert_true(fabs(cpu.last.loss - emu.last.loss) <= 1e-3 * cpu.last.loss);
    run_close(&cpu);
    run_close(&emu);
}

/* A run that goes on from the state after step 3 ends with the same bits. */
static void test_state(void **state)
{
    const char *dir = *state;
    char work[4096], base[4096];
    const vptq_trainer_options opt = tiny_options(0.02);
    run whole, part;
    vptq_err err;
    vwork_make(dir);
    tune_work(&whole, dir, "cpu", 2, 0.02);
    vtest_path(work, sizeof work, dir, "work");
    vtest_path(base, sizeof base, dir, "base");
    char *saved = NULL;
    for (int again = 0; again < 2; again++) {
        run_open(&part, work, base, "cpu", 2);
        part.ids = random_ids((opt.windows + opt.held_out) * opt.length);
        run_start(&part, &opt);
        if (again)
            break;
        for (int i = 0; i < 3; i++)
            assert_ok(vptq_trainer_step(part.t, &part.last, &err), &err);
        saved = vtest_alloc(vptq_trainer_state_bytes(part.t), 1);
        vptq_trainer_get_state(part.t, saved);
        run_close(&part);
    }
    assert_ok(vptq_trainer_set_state(part.t, saved, &err), &err);
    run_steps(&part);
    assert_int_equal(part.last.step, 6);
    assert_memory_equal(part.s.master, whole.s.master, whole.s.count * sizeof *whole.s.master);
    uint32_t step, other;
    assert_true(vptq_trainer_best(part.t, &step) == vptq_trainer_best(whole.t, &other));
    assert_true(step == other && step > 0);
    assert_memory_equal(part.s.stored, whole.s.stored, whole.s.count * sizeof *whole.s.stored);
    memset(saved, 0xff, sizeof(uint64_t));
    assert_fails(vptq_trainer_set_state(part.t, saved, &err), VPTQ_E_FORMAT, &err,
                 "a state after step 18446744073709551615 of 6");
    free(saved);
    run_close(&part);
    run_close(&whole);
}

/* Raises the flag in call number `left` of kl_grad, counted from 0. */
static struct {
    const vptq_backend *ops;
    int left;
    volatile sig_atomic_t *stop;
} canceller;

static vptq_status cancelling_kl_grad(vptq_dev *dev, const vptq_kl_grad_args *a, vptq_err *err)
{
    if (canceller.left-- == 0)
        *canceller.stop = 1;
    return canceller.ops->kl_grad(dev, a, err);
}

/* Interrupted in the measurement after a step: that step's state says that it is due, and the
 * run ends as if nothing had happened. */
static void test_due_measurement(void **state)
{
    const char *dir = *state;
    char work[4096], base[4096];
    const vptq_trainer_options opt = tiny_options(0.02);
    run whole, part;
    vptq_err err;
    volatile sig_atomic_t stop = 0;
    vwork_make(dir);
    tune_work(&whole, dir, "cpu", 2, 0.02);
    vtest_path(work, sizeof work, dir, "work");
    vtest_path(base, sizeof base, dir, "base");
    run_open(&part, work, base, "cpu", 2);
    part.ids = random_ids((opt.windows + opt.held_out) * opt.length);
    run_start(&part, &opt);
    while (part.t->optimizer.step < 5)
        assert_ok(vptq_trainer_step(part.t, &part.last, &err), &err);
    /* The last step: one group of two windows to train on, and the first that is held out. */
    vptq_backend ops = *part.r.dev.ops;
    canceller.ops = part.r.dev.ops;
    canceller.left = 1;
    canceller.stop = &stop;
    ops.kl_grad = cancelling_kl_grad;
    part.r.dev.ops = &ops;
    part.r.ctx.cancel = &stop;
    assert_fails(vptq_trainer_step(part.t, &part.last, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    assert_int_equal(part.t->optimizer.step, 6);
    assert_false(vptq_trainer_done(part.t));
    part.r.dev.ops = canceller.ops;
    stop = 0;
    char *saved = vtest_alloc(vptq_trainer_state_bytes(part.t), 1);
    vptq_trainer_get_state(part.t, saved);
    assert_ok(vptq_trainer_set_state(part.t, saved, &err), &err);
    run_steps(&part);
    assert_true(isnan(part.last.loss) && part.last.held_out == whole.last.held_out);
    assert_true(vptq_trainer_best(part.t, NULL) == vptq_trainer_best(whole.t, NULL));
    assert_memory_equal(part.s.stored, whole.s.stored, whole.s.count * sizeof *whole.s.stored);
    free(saved);
    run_close(&part);
    run_close(&whole);
}

/* At rate 0 nothing moves, and no look at the held-out windows is better than the first.
 */
static void test_rate_0(void **state)
{
    const char *dir = *state;
    run t;
    vwork_make(dir);
    tune_work(&t, dir, "cpu", 2, 0);
    assert_memory_equal(t.s.master, t.s.original, t.s.count * sizeof *t.s.master);
    assert_true(t.last.changed == 0);
    assert_true(vptq_trainer_best(t.t, NULL) == t.start.held_out);
    run_close(&t);
}

/* Without a rate it is that of the rule, for the numbers that are trained and the loss at the
 * start; the steps are those of a run that is given it. */
static void test_rate_of_loss(void **state)
{
    run by_rule, given;
    vwork_make(*state);
    tune_work(&by_rule, *state, "cpu", 1, (double)NAN);
    const double tokens = 2 * 20, numbers = (double)by_rule.s.count;
    const double rate = 0.01 * sqrt(sqrt(tokens / numbers)) * sqrt(by_rule.start.held_out);
    assert_true(fabs(by_rule.t->optimizer.rate - rate) <= rate / 256); /* 8 bits of it */
    assert_true(by_rule.last.held_out < by_rule.start.held_out);
    tune_work(&given, *state, "cpu", 1, by_rule.t->optimizer.rate);
    assert_memory_equal(by_rule.s.master, given.s.master, given.s.count * sizeof(float));
    run_close(&by_rule);
    run_close(&given);
}

/* A model that is its own original has no divergence and no gradient: exactly 0. */
static void test_own_teacher(void **state)
{
    (void)state;
    const vptq_trainer_options opt = tiny_options((double)NAN);
    run t;
    run_open(&t, "tests/golden/packed_qwen3", "tests/golden/packed_qwen3", "cpu", 2);
    t.ids = random_ids((opt.windows + opt.held_out) * opt.length);
    run_start(&t, &opt);
    run_steps(&t);
    assert_true(t.start.held_out == 0 && t.last.loss == 0 && t.last.norm == 0);
    assert_true(t.t->optimizer.rate == 0);
    assert_memory_equal(t.s.stored, t.s.original, t.s.count * sizeof *t.s.stored);
    run_close(&t);
}

static void test_not_finite(void **state)
{
    (void)state;
    const vptq_trainer_options opt = tiny_options(0.02);
    run t;
    vptq_err err;
    run_open(&t, "tests/golden/packed_qwen3", "tests/golden/packed_qwen3", "cpu", 2);
    t.ids = random_ids((opt.windows + opt.held_out) * opt.length);
    run_start(&t, &opt);
    t.s.stored[t.s.tensors[0].at] = NAN;
    assert_fails(vptq_trainer_step(t.t, &t.last, &err), VPTQ_E_NUMERIC, &err,
                 "the divergence of window ");
    assert_memory_equal(t.s.master, t.s.original, t.s.count * sizeof *t.s.master);
    run_close(&t);
}

/* ---- a trained model ---- */

static bool stories_ids(run *t, const vptq_trainer_options *opt)
{
    char text[4096], tokenizer[4096];
    vptq_err err;
    vptq_arena arena;
    vptq_corpus c;
    size_t *starts, count;
    if (!vtest_data(text, sizeof text, "text/tinystories/tiny.utf8") ||
        !vtest_data(tokenizer, sizeof tokenizer, "models/stories260K/tok512.bin"))
        return false;
    vrig r;
    char path[4096];
    vtest_data(path, sizeof path, "models/stories260K/stories260K.bin");
    vrig_open(&r, path, tokenizer, true);
    vptq_arena_init(&arena, &r.mem);
    const char *const texts[] = {text};
    const vptq_corpus_options from = {.texts = texts, .text_count = 1};
    assert_ok(vptq_corpus_load(&r.ctx, &from, r.m.tokenizer, r.m.desc->vocab, &c, &err), &err);
    const size_t want = opt->windows + opt->held_out;
    assert_ok(vptq_corpus_sample(&c, opt->length, want, 1, &arena, &starts, &count, &err),
              &err);
    assert_int_equal(count, want);
    t->ids = vtest_alloc(want * opt->length, sizeof *t->ids);
    for (size_t i = 0; i < want; i++)
        memcpy(t->ids + i * opt->length, c.ids.data + starts[i], opt->length * sizeof *t->ids);
    vptq_corpus_release(&c);
    vptq_arena_release(&arena);
    vrig_close(&r);
    return true;
}

/* Tunes stories260K, packed with plain k-means; false without the data. */
static bool tune_stories(run *t, uint32_t steps, double rate)
{
    const vptq_trainer_options opt = {.steps = steps,
                                      .batch = 8,
                                      .rate = rate,
                                      .length = 128,
                                      .windows = 64,
                                      .held_out = 8,
                                      .every = 5,
                                      .seed = 1};
    char student[4096], teacher[4096];
    if (!vtest_data(student, sizeof student, "golden/vptq_model_stories260K") ||
        !vtest_data(teacher, sizeof teacher, "models/stories260K/stories260K.bin"))
        return false;
    run_open(t, student, teacher, "cpu", 2);
    if (stories_ids(t, &opt)) {
        run_start(t, &opt);
        run_steps(t);
        return true;
    }
    run_close(t);
    return false;
}

/* 20 steps take off at least 30 % of what plain k-means lost. */
static void test_stories(void **state)
{
    (void)state;
    run t;
    if (!tune_stories(&t, 20, 0.005))
        skip();
    print_message("held-out divergence %.4f -> %.4f\n", t.start.held_out, t.last.held_out);
    assert_true(t.last.held_out < 0.7 * t.start.held_out);
    run_close(&t);
}

/* A rate that destroys the model: what comes out is what went in. */
static void test_best_is_kept(void **state)
{
    (void)state;
    run t;
    if (!tune_stories(&t, 2, 0.5))
        skip();
    assert_true(t.last.held_out > t.start.held_out && t.last.changed > 0.9);
    assert_true(vptq_trainer_best(t.t, NULL) == t.start.held_out);
    assert_memory_equal(t.s.stored, t.s.original, t.s.count * sizeof *t.s.stored);
    run_close(&t);
}

/* ---- memory ---- */

static vptq_status open_and_step(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_trainer_options opt = tiny_options(0.02);
    const vptq_ctx ctx = {.mem = mem, .threads = 1};
    opt.ids = arg;
    vptq_device dev = {.ops = NULL};
    vptq_model m = {.desc = NULL};
    vptq_student s = {.m = NULL};
    vptq_e2e *e = NULL;
    vptq_trainer_report r;
    VPTQ_TRY(vptq_device_open(&ctx, "cpu", &dev, err));
    VPTQ_TRY(vptq_model_open(&ctx, "tests/golden/packed_qwen3", NULL, false, &m, err));
    VPTQ_TRY(vptq_student_open(&ctx, &m, &s, err));
    VPTQ_TRY(vptq_e2e_open(&dev, &m, &s, &opt, &e, &r, err));
    VPTQ_TRY(vptq_trainer_step(vptq_e2e_trainer(e), &r, err));
out:
    vptq_e2e_close(e);
    vptq_student_release(&s);
    vptq_model_release(&m);
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const vptq_trainer_options opt = tiny_options(0.02);
    int32_t *ids = random_ids((opt.windows + opt.held_out) * opt.length);
    vtest_oom_walk(open_and_step, ids);
    free(ids);
}

VTEST_MAIN(scratch_test(test_threads_and_backends), scratch_test(test_emulated_cuda),
           scratch_test(test_state), scratch_test(test_due_measurement),
           scratch_test(test_rate_0), scratch_test(test_rate_of_loss),
           cmocka_unit_test(test_best_is_kept), cmocka_unit_test(test_own_teacher),
           cmocka_unit_test(test_not_finite), cmocka_unit_test(test_stories),
           cmocka_unit_test(test_out_of_memory))
