/* Layer-wise tuning: its loss and gradient, what it gains, what it must leave alone, the same
 * bits for any number of threads and after an interruption. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/tune/layer.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

#define STUDENT "tests/golden/packed_qwen3"
#define TEACHER VRIG_TINY_OF("qwen3")

/* A run: rig.m is the student's model, rig.base the teacher. */
typedef struct run {
    vrig r;
    vptq_student s;
    vptq_layerwise *l;
    int32_t *ids;
} run;

static vptq_trainer_options tiny_options(double rate)
{
    return (vptq_trainer_options){.steps = 8,
                                  .batch = 2,
                                  .rate = rate,
                                  .length = 24,
                                  .windows = 5,
                                  .held_out = 2,
                                  .every = 2,
                                  .seed = 1};
}

static void run_open(run *t, const char *teacher, const char *backend, int threads)
{
    vptq_err err;
    memset(t, 0, sizeof *t);
    vrig_open_on(&t->r, STUDENT, NULL, backend, threads);
    vrig_open_base(&t->r, teacher);
    assert_ok(vptq_student_open(&t->r.ctx, &t->r.m, &t->s, &err), &err);
}

/* Windows of random ids; those that are held out have the ids of the first ones. */
static void run_start(run *t, const vptq_trainer_options *opt)
{
    const vptq_rng rng = vptq_rng_make(9, 0, 0, VPTQ_RNG_TEST);
    const size_t train = opt->windows * opt->length, all = train + opt->held_out * opt->length;
    vptq_trainer_options o = *opt;
    vptq_err err;
    t->ids = vtest_alloc(all, sizeof *t->ids);
    for (size_t i = 0; i < all; i++)
        t->ids[i] = (int32_t)vptq_rng_below(&rng, i % train, VRIG_VOCAB);
    o.ids = t->ids;
    assert_ok(vptq_layerwise_open(&t->r.dev, &t->r.base, &t->s, &o, &t->l, &err), &err);
}

static void run_blocks(run *t, uint32_t end)
{
    vptq_layer_report r;
    vptq_err err;
    while (vptq_layerwise_finished(t->l) < end)
        assert_ok(vptq_layerwise_block(t->l, &r, &err), &err);
}

static void run_close(run *t)
{
    vptq_layerwise_close(t->l);
    vptq_student_release(&t->s);
    vrig_close(&t->r);
    free(t->ids);
}

/* A whole run on the tiny models. */
static void tune_with(run *t, const char *teacher, const char *backend, int threads,
                      const vptq_trainer_options *opt)
{
    run_open(t, teacher, backend, threads);
    run_start(t, opt);
    run_blocks(t, t->r.m.desc->layers);
    assert_true(vptq_layerwise_done(t->l));
}

static void tune(run *t, const char *teacher, const char *backend, int threads, double rate)
{
    const vptq_trainer_options opt = tiny_options(rate);
    tune_with(t, teacher, backend, threads, &opt);
}

static const vptq_layer_report *report(const run *t, uint32_t layer)
{
    return vptq_layerwise_report(t->l, layer);
}

/* ---- the loss ---- */

static int larger_first(const void *a, const void *b)
{
    const double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
    return (x < y) - (x > y);
}

/* The sum is that of the sorted differences from the one of rank n / 1000 on. */
static void test_distance(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 999, 1000, 4321};
    const vptq_rng rng = vptq_rng_make(3, 0, 0, VPTQ_RNG_TEST);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const size_t n = sizes[k];
        float *a = vtest_alloc(n, sizeof *a), *b = vtest_alloc(n, sizeof *b);
        float *difference = vtest_alloc(n, sizeof *difference), limit;
        double *sorted = vtest_alloc(n, sizeof *sorted), want = 0;
        for (size_t i = 0; i < n; i++) {
            a[i] = (float)(vptq_rng_uniform(&rng, 2 * i) - 0.5) * (i % 500 == 7 ? 1e3f : 1);
            b[i] = (float)(vptq_rng_uniform(&rng, 2 * i + 1) - 0.5);
            sorted[i] = (double)(a[i] - b[i]);
        }
        qsort(sorted, n, sizeof *sorted, larger_first);
        for (size_t i = n / 1000; i < n; i++)
            want += sorted[i] * sorted[i];
        const double got = vptq_layer_distance(a, b, n, difference, &limit);
        assert_true(fabs(got - want) <= 1e-12 * want);
        assert_true((double)limit == fabs(sorted[n / 1000]));
        assert_true(difference[n - 1] == a[n - 1] - b[n - 1]);
        free(a);
        free(b);
        free(difference);
        free(sorted);
    }
}

/* Equal differences stay, all of them; one that is not finite is not cut off as too large. */
static void test_distance_of_equals(void **state)
{
    (void)state;
    enum { N = 2000 };
    float *a = vtest_alloc(N, sizeof *a), *b = vtest_alloc(N, sizeof *b), limit;
    float *difference = vtest_alloc(N, sizeof *difference);
    for (size_t i = 0; i < N; i++) {
        a[i] = i % 2 ? 2 : -2;
        b[i] = 0;
    }
    assert_true(vptq_layer_distance(a, b, N, difference, &limit) == 4.0 * N && limit == 2);
    assert_true(vptq_layer_distance(b, b, N, difference, &limit) == 0 && limit == 0);
    a[5] = INFINITY;
    assert_true(isnan(vptq_layer_distance(a, b, N, difference, &limit)));
    a[5] = NAN;
    assert_true(isnan(vptq_layer_distance(a, b, N, difference, &limit)));
    free(a);
    free(b);
    free(difference);
}

/* ---- the gradient ---- */

/* One window, both to train on and held out, long enough that one entry is cut off. */
static vptq_trainer_options one_window(void)
{
    return (vptq_trainer_options){.steps = 1,
                                  .batch = 1,
                                  .rate = 0,
                                  .length = VRIG_TOKENS,
                                  .windows = 1,
                                  .held_out = 1,
                                  .every = 1,
                                  .seed = 1};
}

/* The loss of block `layer` if a stored number of it differs by `by`. */
static double loss_with(uint32_t layer, size_t number, float by)
{
    const vptq_trainer_options opt = one_window();
    run t;
    run_open(&t, TEACHER, "ref", 1);
    t.s.stored[number] += by;
    t.s.master[number] += by;
    run_start(&t, &opt);
    run_blocks(&t, layer + 1);
    const double loss = report(&t, layer)->before;
    run_close(&t);
    return loss;
}

/* Central differences of the loss, for the number with the largest gradient of some tensors of
 * each block.  The step is large enough for a loss of 2 in float, whose rounding is 2e-7, to
 * give a gradient of 0.03 to 1e-3, and small enough not to change which entry is cut off. */
static void test_gradient(void **state)
{
    (void)state;
    static const float step = 1e-3f;
    const vptq_trainer_options opt = one_window();
    run t;
    run_open(&t, TEACHER, "ref", 1);
    run_start(&t, &opt);
    for (uint32_t layer = 0; layer < t.r.m.desc->layers; layer++) {
        const vptq_tensor_range range = vptq_student_range(&t.s, layer, layer + 1);
        run_blocks(&t, layer + 1);
        const double *g = vptq_layerwise_trainer(t.l)->group;
        for (size_t i = range.first; i < range.end; i += 5) {
            const vptq_trainable *x = &t.s.tensors[i];
            size_t at = x->at;
            for (size_t j = x->at; j < x->at + x->count; j++)
                at = fabs(g[j]) > fabs(g[at]) ? j : at;
            const double up = loss_with(layer, at, step), down = loss_with(layer, at, -step);
            const double want = (up - down) / (2 * (double)step);
            assert_true(g[at] != 0);
            assert_true(fabs(g[at] - want) <= 1e-3 * fabs(want));
        }
    }
    run_close(&t);
}

/* ---- whole runs ---- */

static void test_threads_and_backends(void **state)
{
    (void)state;
    run one, three, ref;
    tune(&one, TEACHER, "cpu", 1, 0.02);
    tune(&three, TEACHER, "cpu", 3, 0.02);
    tune(&ref, TEACHER, "ref", 1, 0.02);
    assert_memory_equal(one.s.master, three.s.master, one.s.count * sizeof *one.s.master);
    for (uint32_t l = 0; l < one.r.m.desc->layers; l++) {
        const vptq_layer_report *r = report(&one, l);
        assert_true(r->before > 0 && r->after < 0.9 * r->before && r->best_step > 0);
        assert_memory_equal(r, report(&three, l), sizeof *r);
        assert_true(fabs(r->after - report(&ref, l)->after) <= 1e-2 * r->after);
    }
    run_close(&one);
    run_close(&three);
    run_close(&ref);
}

/* The emulated GPU takes the same steps, within its rounding; two, as it is slow. */
static void test_emulated_cuda(void **state)
{
    (void)state;
    vptq_trainer_options few = tiny_options(0.02);
    run cpu, emu;
    if (vtest_emulated())
        skip();
    assert_non_null(vptq_backend_emu()); /* this reference also links it */
    few.windows = few.steps = few.every = 2;
    few.batch = few.held_out = 1;
    few.length = 12;
    tune_with(&cpu, TEACHER, "cpu", 2, &few);
    tune_with(&emu, TEACHER, "emu", 1, &few);
    assert_true(report(&cpu, 0)->best_step > 0);
    for (uint32_t l = 0; l < cpu.r.m.desc->layers; l++)
        assert_true(fabs(report(&cpu, l)->after - report(&emu, l)->after) <=
                    1e-3 * report(&cpu, l)->after);
    run_close(&cpu);
    run_close(&emu);
}

/* A run that goes on from the state after the first block ends with the same bits. */
static void test_state(void **state)
{
    (void)state;
    const vptq_trainer_options opt = tiny_options(0.02);
    run whole, part;
    vptq_err err;
    tune(&whole, TEACHER, "cpu", 2, 0.02);
    run_open(&part, TEACHER, "cpu", 2);
    run_start(&part, &opt);
    run_blocks(&part, 1);
    char *saved = vtest_alloc(vptq_layerwise_state_bytes(part.r.m.desc, &part.s), 1);
    vptq_layerwise_get_state(part.l, saved);
    run_close(&part);
    run_open(&part, TEACHER, "cpu", 2);
    run_start(&part, &opt);
    assert_ok(vptq_layerwise_set_state(part.l, saved, &err), &err);
    assert_int_equal(vptq_layerwise_finished(part.l), 1);
    run_blocks(&part, part.r.m.desc->layers);
    assert_memory_equal(part.s.master, whole.s.master, whole.s.count * sizeof *whole.s.master);
    assert_memory_equal(part.s.stored, whole.s.stored, whole.s.count * sizeof *whole.s.stored);
    for (uint32_t l = 0; l < whole.r.m.desc->layers; l++)
        assert_memory_equal(report(&part, l), report(&whole, l), sizeof *report(&whole, l));
    memset(saved, 0xff, sizeof(uint64_t));
    assert_fails(vptq_layerwise_set_state(part.l, saved, &err), VPTQ_E_FORMAT, &err,
                 "a state after layer 18446744073709551615 of ");
    free(saved);
    run_close(&part);
    run_close(&whole);
}

/* Without a rate, or with one that makes every block worse, nothing changes. */
static void test_nothing_better(void **state)
{
    (void)state;
    static const double rates[] = {0, 0.9};
    for (int i = 0; i < 2; i++) {
        run t;
        tune(&t, TEACHER, "cpu", 2, rates[i]);
        assert_memory_equal(t.s.stored, t.s.original, t.s.count * sizeof *t.s.stored);
        for (uint32_t l = 0; l < t.r.m.desc->layers; l++)
            assert_true(report(&t, l)->after == report(&t, l)->before &&
                        report(&t, l)->best_step == 0);
        run_close(&t);
    }
}

/* A model that is its own original has no loss and no gradient: exactly 0. */
static void test_own_teacher(void **state)
{
    (void)state;
    run t;
    tune(&t, STUDENT, "cpu", 2, 0.02);
    for (uint32_t l = 0; l < t.r.m.desc->layers; l++)
        assert_true(report(&t, l)->before == 0 && report(&t, l)->after == 0);
    assert_memory_equal(t.s.master, t.s.original, t.s.count * sizeof *t.s.master);
    run_close(&t);
}

/* ---- numbers that are not finite ---- */

static void test_loss_not_finite(void **state)
{
    (void)state;
    const vptq_trainer_options opt = tiny_options(0.02);
    run t;
    vptq_err err;
    vptq_layer_report r;
    run_open(&t, TEACHER, "cpu", 2);
    run_start(&t, &opt);
    t.s.stored[vptq_student_range(&t.s, 1, 2).at] = NAN;
    run_blocks(&t, 1);
    assert_fails(vptq_layerwise_block(t.l, &r, &err), VPTQ_E_NUMERIC, &err,
                 "layer 1: the loss of window 5 is not finite");
    run_close(&t);
}

static const vptq_backend *real_ops;

static vptq_status bad_scatter(vptq_dev *dev, const vptq_scatter_args *a, vptq_err *err)
{
    VPTQ_CHECK(real_ops->vq_scatter(dev, a, err));
    a->sums[0] = NAN;
    return VPTQ_OK;
}

static void test_gradient_not_finite(void **state)
{
    (void)state;
    vptq_trainer_options opt = tiny_options(0.02);
    run t;
    vptq_err err;
    vptq_layer_report r;
    opt.windows = 2;
    run_open(&t, TEACHER, "cpu", 2);
    vptq_backend ops = *t.r.dev.ops;
    real_ops = t.r.dev.ops;
    ops.vq_scatter = bad_scatter;
    t.r.dev.ops = &ops;
    run_start(&t, &opt);
    assert_fails(vptq_layerwise_block(t.l, &r, &err), VPTQ_E_NUMERIC, &err,
                 "layer 0: the gradient of window ");
    assert_memory_equal(t.s.master, t.s.original, t.s.count * sizeof *t.s.master);
    t.r.dev.ops = real_ops;
    run_close(&t);
}

/* ---- memory ---- */

static vptq_status open_and_tune(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_trainer_options opt = tiny_options(0.02);
    const vptq_ctx ctx = {.mem = mem, .threads = 1};
    opt.ids = arg;
    vptq_device dev = {.ops = NULL};
    vptq_model m = {.desc = NULL};
    vptq_student s = {.m = NULL};
    vptq_layerwise *l = NULL;
    vptq_layer_report r;
    VPTQ_TRY(vptq_device_open(&ctx, "cpu", &dev, err));
    VPTQ_TRY(vptq_model_open(&ctx, STUDENT, NULL, false, &m, err));
    VPTQ_TRY(vptq_student_open(&ctx, &m, &s, err));
    VPTQ_TRY(vptq_layerwise_open(&dev, &m, &s, &opt, &l, err));
    VPTQ_TRY(vptq_layerwise_block(l, &r, err));
out:
    vptq_layerwise_close(l);
    vptq_student_release(&s);
    vptq_model_release(&m);
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const vptq_trainer_options opt = tiny_options(0.02);
    const size_t n = (opt.windows + opt.held_out) * opt.length;
    int32_t *ids = vtest_alloc(n, sizeof *ids);
    memset(ids, 0, n * sizeof *ids);
    vtest_oom_walk(open_and_tune, ids);
    free(ids);
}

VTEST_MAIN(cmocka_unit_test(test_distance), cmocka_unit_test(test_distance_of_equals),
           cmocka_unit_test(test_gradient), cmocka_unit_test(test_threads_and_backends),
           cmocka_unit_test(test_emulated_cuda), cmocka_unit_test(test_state),
           cmocka_unit_test(test_nothing_better), cmocka_unit_test(test_own_teacher),
           cmocka_unit_test(test_loss_not_finite), cmocka_unit_test(test_gradient_not_finite),
           cmocka_unit_test(test_out_of_memory))
