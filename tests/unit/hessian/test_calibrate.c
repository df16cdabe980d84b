/* Tests calibration, with the original model alone and with a second stream of hidden states
 * from the quantized one, against both forward passes run by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"
#include "tests/support/vcalib.h"
#include "tests/support/vtest.h"

static void start(vcalib *r, const char *dir, bool sequential, uint32_t wanted,
                  vptq_calibrator *c)
{
    vcalib_start(r, dir, VPTQ_WEIGHTS_ATTENTION, sequential, wanted, c);
}

static void expect_no_shift(const vcalib *r, const vcalib_moments *m)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            const size_t n = vptq_input_size(r->v.m.desc, (vptq_input)i) * r->v.m.desc->hidden;
            for (size_t j = 0; j < n; j++)
                assert_true(m->shift[part][i][j] == 0);
        }
}

/* ---- blocks identical to the original ---- */

static void test_exact_blocks_shift_nothing(void **state)
{
    vcalib r;
    vptq_calibrator one, two;
    vptq_arena arena;
    vcalib_moments a, b;
    vcalib_open(&r, *state, "cpu");
    vptq_arena_init(&arena, NULL);
    start(&r, *state, false, 0, &one);
    start(&r, *state, true, 0, &two);
    for (uint32_t layer = 0; layer < r.v.m.desc->layers; layer++) {
        vptq_packed_matrix exact[VPTQ_LINEAR_DENSE];
        vptq_weight linear[VPTQ_LINEAR_DENSE];
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            const vptq_weight *w = &r.v.m.blocks[layer].linear[l];
            vcalib_exact(&r, w, &arena, &exact[l]);
            linear[l] = (vptq_weight){w->rows, w->cols, NULL, &exact[l]};
        }
        vcalib_run(&one, NULL, &a);
        vcalib_run(&two, linear, &b);
        vcalib_expect_same(&r, &a, &b);
        expect_no_shift(&r, &b);
        vcalib_free(&a);
        vcalib_free(&b);
    }
    vptq_calibrator_release(&one);
    vptq_calibrator_release(&two);
    vptq_arena_release(&arena);
    vcalib_close(&r);
}

/* ---- blocks that differ from the original ---- */

/* Layer 1 over all windows: its inputs, the hidden states after each half, and the attention
 * that each token receives. */
typedef struct stream {
    const vptq_model_desc *d;
    float *x[VPTQ_INPUT_DENSE], *after[2];
    float weight[VCALIB_IDS];
} stream;

typedef struct hook {
    stream *s;
    vptq_device *dev;
    vptq_input input;
} hook;

static vptq_status weigh(void *arg, size_t sequence, size_t tokens, size_t dim, const float *x,
                         const vptq_attention_args *a, vptq_err *err)
{
    const hook *t = arg;
    double mass[VCALIB_LENGTH] = {0};
    (void)dim, (void)x;
    assert_int_equal(tokens, VCALIB_LENGTH);
    assert_ok(t->dev->ops->attention_mass(t->dev->state, a, mass, err), err);
    for (size_t i = 0; i < tokens; i++)
        t->s->weight[sequence * VCALIB_LENGTH + i] =
            (float)(mass[i] / ((double)a->heads * (double)tokens));
    return VPTQ_OK;
}

static vptq_status record(void *arg, vptq_input input, size_t sequence, size_t tokens,
                          size_t dim, const float *x, vptq_err *err)
{
    const hook *t = arg;
    (void)err;
    if (input == t->input)
        memcpy(t->s->x[input] + sequence * VCALIB_LENGTH * dim, x, tokens * dim * sizeof *x);
    return VPTQ_OK;
}

/* Runs layer 0 with the linear layers of `first` (those of the model where NULL), then layer 1
 * once per input; linear layers that precede that input come from `second`. */
static void run_by_hand(vcalib *r, const vptq_weight *first, const vptq_weight *second,
                        stream *s)
{
    vptq_err err = {0};
    vptq_forward *f;
    const vptq_block_hooks hooks = {.linear = first};
    size_t starts[VCALIB_WINDOWS + 1];
    const size_t hidden = r->v.m.desc->hidden;
    float *h = vcalib_room(VCALIB_IDS, hidden), *middle = vcalib_room(VCALIB_IDS, hidden);
    for (size_t w = 0; w <= VCALIB_WINDOWS; w++)
        starts[w] = w * VCALIB_LENGTH;
    s->d = r->v.m.desc;
    assert_ok(vptq_forward_open(&r->v.m, &r->v.dev, VCALIB_LENGTH, &f, &err), &err);
    assert_ok(vptq_forward_embed(f, r->ids, VCALIB_IDS, h, &err), &err);
    assert_ok(vptq_forward_block_with(f, 0, starts, VCALIB_WINDOWS, h, &hooks, &err), &err);
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        vptq_weight mixed[VPTQ_LINEAR_DENSE];
        const bool attention = i <= VPTQ_INPUT_O;
        hook t = {s, &r->v.dev, (vptq_input)i};
        vptq_block_hooks half = {.hook = record,
                                 .attention = i == VPTQ_INPUT_QKV ? weigh : NULL,
                                 .arg = &t,
                                 .linear = mixed,
                                 .half = VPTQ_BLOCK_ATTENTION};
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            mixed[l] = second && (int)vptq_linear_input((vptq_linear)l) < i
                           ? second[l]
                           : r->v.m.blocks[1].linear[l];
        s->x[i] = vcalib_room(VCALIB_IDS, vptq_input_size(s->d, (vptq_input)i));
        memcpy(middle, h, VCALIB_IDS * hidden * sizeof *h);
        assert_ok(vptq_forward_block_with(f, 1, starts, VCALIB_WINDOWS, middle, &half, &err),
                  &err);
        half.half = VPTQ_BLOCK_FEED_FORWARD;
        if (!attention)
            assert_ok(
                vptq_forward_block_with(f, 1, starts, VCALIB_WINDOWS, middle, &half, &err),
                &err);
        if (i != VPTQ_INPUT_O && i != VPTQ_INPUT_DOWN)
            continue;
        s->after[!attention] = vcalib_room(VCALIB_IDS, hidden);
        memcpy(s->after[!attention], middle, VCALIB_IDS * hidden * sizeof *h);
    }
    vptq_forward_close(f);
    free(h);
    free(middle);
}

static void stream_free(stream *s)
{
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
        free(s->x[i]);
    free(s->after[0]);
    free(s->after[1]);
}

/* Checks E[|x~|], minimum and maximum of `count` tokens p [count, n] against a loop in double.
 */
static void check_range(size_t count, size_t n, const float *p, const float *got)
{
    for (size_t j = 0; j < n; j++) {
        double sum = 0, lo = (double)INFINITY, hi = -(double)INFINITY;
        for (size_t t = 0; t < count; t++) {
            const double x = (double)p[t * n + j];
            sum += fabs(x);
            lo = fmin(lo, x);
            hi = fmax(hi, x);
        }
        assert_true(fabs((double)got[j] - sum / (double)count) <= 2e-5 * (1 + sum));
        assert_true(fabs((double)got[n + j] - lo) <= 2e-5 * (1 + fabs(lo)));
        assert_true(fabs((double)got[2 * n + j] - hi) <= 2e-5 * (1 + fabs(hi)));
    }
}

/* Checks E[x~ x~^T], the range of x~ and E[(a - b) x~^T] of one part against sums in double. */
static void check_input(const stream *x, const stream *passed, vptq_input input, int part,
                        const vcalib_moments *m)
{
    const size_t n = vptq_input_size(x->d, input), hidden = x->d->hidden;
    const size_t first = part ? (VCALIB_WINDOWS - VCALIB_HELD) * VCALIB_LENGTH : 0;
    const size_t count = (part ? VCALIB_HELD : VCALIB_WINDOWS - VCALIB_HELD) * VCALIB_LENGTH;
    const bool drift = input == VPTQ_INPUT_O || input == VPTQ_INPUT_DOWN;
    const float *a = drift ? x->after[input == VPTQ_INPUT_DOWN] : x->x[input];
    const float *b = drift ? passed->after[input == VPTQ_INPUT_DOWN] : passed->x[input];
    const float *got = m->shift[part][input];
    const float *p = passed->x[input];
    double largest = 0;
    check_range(count, n, p + first * n, m->range[part][input]);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double h = 0;
            for (size_t t = first; t < first + count; t++)
                h += (double)p[t * n + i] * (double)p[t * n + j];
            assert_true(fabs(m->h[part][input][i * (i + 1) / 2 + j] - h) <=
                        1e-4 * (1 + fabs(h)));
        }
    for (size_t i = 0; i < hidden; i++)
        for (size_t j = 0; j < n; j++) {
            double shift = 0;
            for (size_t t = first; t < first + count; t++)
                shift += ((double)a[t * hidden + i] - (double)b[t * hidden + i]) *
                         (double)p[t * n + j] / (double)count;
            assert_true(fabs((double)got[i * n + j] - shift) <= 2e-5);
            largest = fmax(largest, fabs(shift));
        }
    assert_true(largest > 1e-3); /* the shift is not trivially zero */
}

static void skip_layer(vptq_calibrator *c, const vptq_weight *linear)
{
    vptq_err err = {0};
    for (int i = 0; i <= VPTQ_INPUT_DENSE; i++)
        assert_ok(vptq_calibrator_step(c, linear, NULL, NULL, &err), &err);
    assert_int_equal(c->layer, 1);
}

static void check_shift(const char *dir, const char *backend)
{
    vcalib r;
    vptq_calibrator c;
    vptq_arena arena;
    vcalib_moments m, again;
    stream x, passed;
    vptq_packed_matrix coarse[2][VPTQ_LINEAR_DENSE];
    vptq_weight linear[2][VPTQ_LINEAR_DENSE];
    vcalib_open(&r, dir, backend);
    vptq_arena_init(&arena, NULL);
    for (uint32_t layer = 0; layer < 2; layer++)
        vcalib_coarse(&r, layer, &arena, coarse[layer], linear[layer]);
    run_by_hand(&r, NULL, NULL, &x);
    run_by_hand(&r, linear[0], linear[1], &passed);
    start(&r, dir, true, 0, &c);
    skip_layer(&c, linear[0]);
    vptq_calibrator_checkpoint(&c);
    vcalib_run(&c, linear[1], &m);
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
            check_input(&x, &passed, (vptq_input)i, part, &m);
    vptq_calibrator_release(&c);
    /* continues from the checkpoint before layer 1, which a one-stream calibration does not
     * accept */
    start(&r, dir, true, 1, &c);
    assert_int_equal(c.layer, 1);
    vcalib_run(&c, linear[1], &again);
    vcalib_expect_same(&r, &m, &again);
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        const size_t n = vptq_input_size(r.v.m.desc, (vptq_input)i) * r.v.m.desc->hidden;
        assert_same_f32(m.shift[0][i], again.shift[0][i], n);
    }
    vptq_calibrator_release(&c);
    start(&r, dir, false, 1, &c);
    assert_int_equal(c.layer, 0);
    vptq_calibrator_release(&c);
    start(&r, dir, true, 0, &c); /* nor does a run that is already past it */
    assert_int_equal(c.layer, 0);
    vptq_calibrator_release(&c);
    vptq_calibrator_forget(dir);
    vcalib_free(&m);
    vcalib_free(&again);
    stream_free(&x);
    stream_free(&passed);
    vptq_arena_release(&arena);
    vcalib_close(&r);
}

static void test_shift(void **state)
{
    check_shift(*state, "cpu");
    check_shift(*state, "ref");
}

/* Checks the shift of k and v, weighted like their Hessian: by the first token of every window,
 * or by the squared attention to each token. */
static void check_term_shift(const stream *x, const stream *passed, bool sink, const float *got)
{
    const size_t n = x->d->hidden, count = VCALIB_WINDOWS - VCALIB_HELD;
    const float *p = passed->x[VPTQ_INPUT_QKV], *o = x->x[VPTQ_INPUT_QKV];
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double want = 0;
            for (size_t t = 0; t < count * VCALIB_LENGTH; t++) {
                const double w = sink ? t % VCALIB_LENGTH == 0 : (double)passed->weight[t];
                want += w * ((double)o[t * n + i] - (double)p[t * n + i]) *
                        (double)p[t * n + j] / (double)count;
            }
            assert_true(fabs((double)got[i * n + j] - want) <= 2e-5);
            largest = fmax(largest, fabs(want));
        }
    assert_true(largest > 1e-3);
}

static void test_weighted_shift(void **state)
{
    vcalib r;
    vptq_calibrator c;
    vptq_arena arena;
    stream x, passed;
    vptq_packed_matrix coarse[VPTQ_LINEAR_DENSE];
    vptq_weight linear[VPTQ_LINEAR_DENSE];
    vcalib_open(&r, *state, "cpu");
    vptq_arena_init(&arena, NULL);
    vcalib_coarse(&r, 0, &arena, coarse, linear);
    run_by_hand(&r, NULL, NULL, &x);
    run_by_hand(&r, linear, NULL, &passed);
    for (int weights = VPTQ_WEIGHTS_SINK; weights <= VPTQ_WEIGHTS_ATTENTION; weights++) {
        vcalib_moments m;
        vcalib_start(&r, *state, (vptq_token_weights)weights, true, 0, &c);
        skip_layer(&c, linear);
        vcalib_run(&c, r.v.m.blocks[1].linear, &m);
        check_term_shift(&x, &passed, weights == VPTQ_WEIGHTS_SINK,
                         m.term_shift[0][VPTQ_LINEAR_K]);
        vptq_calibrator_release(&c);
        vcalib_free(&m);
    }
    stream_free(&x);
    stream_free(&passed);
    vptq_arena_release(&arena);
    vcalib_close(&r);
}

/* The number with 0.95 (n - 1) numbers below it, rounded down. */
static float quantile(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t below = 0;
        for (size_t j = 0; j < n; j++)
            below += x[j] < x[i];
        if (below == (size_t)(0.95 * (double)(n - 1)))
            return x[i];
    }
    fail();
    return 0;
}

/* Weights of all tokens at the linear layers of layer 1: s / mean s, clipped at its quantile
 * 0.95; a mean over tokens is one over windows too. */
static void guided_weights(vcalib *r, const char *dir, float *weight[VPTQ_LINEAR_DENSE])
{
    enum { MAIN = (VCALIB_WINDOWS - VCALIB_HELD) * VCALIB_LENGTH };
    vptq_err err = {0};
    size_t window[VCALIB_WINDOWS];
    vptq_hidden_states s;
    for (size_t w = 0; w < VCALIB_WINDOWS; w++)
        window[w] = w * VCALIB_LENGTH;
    const vptq_saliency_options o = {.model = &r->v.m,
                                     .ids = r->ids,
                                     .window = window,
                                     .windows = VCALIB_WINDOWS,
                                     .length = VCALIB_LENGTH,
                                     .fingerprint = "0123456789abcdef",
                                     .dir = dir};
    assert_ok(vptq_saliency_collect(&r->v.dev, &o, &s, &err), &err);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        double mean = 0;
        weight[l] = vcalib_room(VCALIB_WINDOWS, VCALIB_LENGTH);
        for (size_t w = 0; w < VCALIB_WINDOWS; w++) {
            float *row;
            const size_t at = vptq_saliency_row(r->v.m.desc, w, 1, (vptq_linear)l);
            assert_ok(vptq_hidden_states_get(&s, at, 1, false, &row, &err), &err);
            memcpy(weight[l] + w * VCALIB_LENGTH, row, VCALIB_LENGTH * sizeof *row);
        }
        const float clip = quantile(weight[l], MAIN);
        for (size_t t = 0; t < MAIN; t++) {
            weight[l][t] = fminf(weight[l][t], clip);
            mean += (double)weight[l][t] / MAIN;
        }
        for (size_t t = 0; t < MAIN; t++)
            weight[l][t] = (float)((double)weight[l][t] / mean);
    }
    vptq_hidden_states_close(&s);
}

/* Checks E[w x~ x~^T] and E[w (a - b) x~^T] of one linear layer against sums in double. */
static void check_guided(const stream *x, const stream *passed, vptq_linear l,
                         const float *weight, const vcalib_moments *m)
{
    const vptq_input input = vptq_linear_input(l);
    const size_t n = vptq_input_size(x->d, input), hidden = x->d->hidden;
    const size_t count = (VCALIB_WINDOWS - VCALIB_HELD) * VCALIB_LENGTH;
    const bool drift = input == VPTQ_INPUT_O || input == VPTQ_INPUT_DOWN;
    const float *a = drift ? x->after[input == VPTQ_INPUT_DOWN] : x->x[input];
    const float *b = drift ? passed->after[input == VPTQ_INPUT_DOWN] : passed->x[input];
    const float *p = passed->x[input], *got = m->term_shift[0][l];
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double h = 0; /* a sum over windows of means over tokens */
            for (size_t t = 0; t < count; t++)
                h += (double)weight[t] * (double)p[t * n + i] * (double)p[t * n + j] /
                     VCALIB_LENGTH;
            assert_true(fabs(m->term[0][l][i * (i + 1) / 2 + j] - h) <= 1e-4 * (1 + fabs(h)));
        }
    for (size_t i = 0; i < hidden; i++)
        for (size_t j = 0; j < n; j++) {
            double shift = 0;
            for (size_t t = 0; t < count; t++)
                shift += (double)weight[t] *
                         ((double)a[t * hidden + i] - (double)b[t * hidden + i]) *
                         (double)p[t * n + j] / (double)count;
            assert_true(fabs((double)got[i * n + j] - shift) <= 4e-5 * (1 + fabs(shift)));
        }
}

static void test_guided(void **state)
{
    vcalib r;
    vptq_calibrator c;
    vptq_arena arena;
    vcalib_moments m;
    stream x, passed;
    vptq_packed_matrix coarse[2][VPTQ_LINEAR_DENSE];
    vptq_weight linear[2][VPTQ_LINEAR_DENSE];
    float *weight[VPTQ_LINEAR_DENSE];
    vcalib_open(&r, *state, "cpu");
    vptq_arena_init(&arena, NULL);
    for (uint32_t layer = 0; layer < 2; layer++)
        vcalib_coarse(&r, layer, &arena, coarse[layer], linear[layer]);
    run_by_hand(&r, NULL, NULL, &x);
    run_by_hand(&r, linear[0], linear[1], &passed);
    guided_weights(&r, *state, weight);
    vcalib_start(&r, *state, VPTQ_WEIGHTS_GUIDED, true, 0, &c);
    skip_layer(&c, linear[0]);
    vcalib_run(&c, linear[1], &m);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        check_guided(&x, &passed, (vptq_linear)l, weight[l], &m);
        free(weight[l]);
    }
    vptq_calibrator_release(&c);
    vcalib_free(&m);
    stream_free(&x);
    stream_free(&passed);
    vptq_arena_release(&arena);
    vcalib_close(&r);
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    vcalib r;
    vptq_err err = {0};
    vptq_calibrator c;
    vcalib_open(&r, *state, "cpu");
    const char *files[] = {r.path};
    vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                  .windows = 1,
                                  .length = VCALIB_LENGTH,
                                  .holdout = 0.5};
    assert_fails(vptq_calibrator_plan(&r.v.dev, &r.v.m, &opt, &c, &err), VPTQ_E_ARG, &err,
                 "cannot hold out a window when there is only one");
    static const double shares[] = {-0.1, 1, 2, NAN};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        opt.windows = 4;
        opt.holdout = shares[i];
        assert_fails(vptq_calibrator_plan(&r.v.dev, &r.v.m, &opt, &c, &err), VPTQ_E_ARG, &err,
                     "cannot hold out a share of");
    }
    /* the number is rounded up, but never to all windows */
    static const struct {
        double share;
        size_t held;
    } parts[] = {{1e-9, 1}, {0.17, 2}, {1.0 / 6, 1}, {0.5, 3}, {0.99, 5}};
    opt.windows = VCALIB_WINDOWS;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        opt.holdout = parts[i].share;
        assert_ok(vptq_calibrator_plan(&r.v.dev, &r.v.m, &opt, &c, &err), &err);
        assert_int_equal(c.windows[VPTQ_PART_HELD_OUT], parts[i].held);
        vptq_calibrator_release(&c);
    }
    vcalib_close(&r);
}

typedef struct oom_run {
    vcalib *r;
    const char *dir;
} oom_run;

static vptq_status no_sums(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    (void)arg, (void)c, (void)part, (void)err;
    return VPTQ_OK;
}

static vptq_status both_streams(void *arg, vptq_device *dev, vptq_err *err)
{
    const oom_run *run = arg;
    vptq_calibrator c = {.dev = NULL};
    const char *files[] = {run->r->path};
    const vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                        .windows = 2,
                                        .length = VCALIB_LENGTH,
                                        .holdout = 0.5,
                                        .weights = VPTQ_WEIGHTS_ATTENTION,
                                        .sequential = true};
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_calibrator_plan(dev, &run->r->v.m, &opt, &c, err));
    VPTQ_TRY(vptq_calibrator_start(&c, run->dir, 0, 1, err));
    while (c.layer == 0)
        VPTQ_TRY(vptq_calibrator_step(&c, NULL, no_sums, NULL, err));
out:
    vptq_calibrator_release(&c);
    return st;
}

static void test_out_of_memory(void **state)
{
    vcalib r;
    vcalib_open(&r, *state, "cpu");
    oom_run run = {&r, *state};
    assert_true(devices_oom_walk("cpu", 1, both_streams, &run) > 20);
    vcalib_close(&r);
}

VTEST_MAIN(scratch_test(test_exact_blocks_shift_nothing), scratch_test(test_shift),
           scratch_test(test_weighted_shift), scratch_test(test_guided),
           scratch_test(test_refusals), scratch_test(test_out_of_memory))
