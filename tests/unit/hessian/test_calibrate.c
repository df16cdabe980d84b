/* Tests calibration, with the original model alone and with a second stream of hidden states
 * from the quantized one, against both forward passes run by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/calibrate.h"
#include "tests/support/devices.h"
#include "tests/support/vcount.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

/* Two layers, 6 windows of 16 ids, the last 2 of them held out. */
enum { WINDOWS = 6, HELD = 2, LENGTH = 16, IDS = WINDOWS * LENGTH, PATH = 4096 };

typedef struct rig {
    vrig v;
    char path[PATH]; /* of the ids */
    int32_t *ids;
} rig;

static void rig_open(rig *r, const char *dir, const char *backend)
{
    vrig_open_on(&r->v, VRIG_TINY_OF("qwen3"), NULL, backend, 2);
    r->ids = vrig_ids(dir, IDS, r->path, sizeof r->path);
}

static void rig_close(rig *r)
{
    vrig_close(&r->v);
    free(r->ids);
}

static void plan_with(rig *r, vptq_token_weights weights, bool sequential, vptq_calibrator *c)
{
    vptq_err err = {0};
    const char *files[] = {r->path};
    const vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                        .windows = WINDOWS,
                                        .length = LENGTH,
                                        .holdout = (double)HELD / WINDOWS,
                                        .weights = weights,
                                        .sequential = sequential};
    assert_ok(vptq_calibrator_plan(&r->v.dev, &r->v.m, &opt, c, &err), &err);
    assert_int_equal(c->windows[VPTQ_PART_MAIN], WINDOWS - HELD);
    assert_int_equal(c->windows[VPTQ_PART_HELD_OUT], HELD);
}

static void start_with(rig *r, const char *dir, vptq_token_weights weights, bool sequential,
                       uint32_t wanted, vptq_calibrator *c)
{
    vptq_err err = {0};
    plan_with(r, weights, sequential, c);
    assert_ok(vptq_calibrator_start(c, dir, wanted, r->v.m.desc->layers - 1, &err), &err);
}

static void start(rig *r, const char *dir, bool sequential, uint32_t wanted, vptq_calibrator *c)
{
    start_with(r, dir, VPTQ_WEIGHTS_ATTENTION, sequential, wanted, c);
}

/* All moments of one block, for both parts of the windows. */
typedef struct moments {
    double *h[VPTQ_PART_COUNT][VPTQ_INPUT_COUNT], *term[VPTQ_PART_COUNT][VPTQ_LINEAR_COUNT];
    float *shift[VPTQ_PART_COUNT][VPTQ_INPUT_COUNT]; /* or drift */
    float *term_shift[VPTQ_PART_COUNT][VPTQ_LINEAR_COUNT];
} moments;

static double *copy_of(const double *x, size_t n)
{
    double *out = malloc(n * sizeof *out);
    assert_non_null(out);
    memcpy(out, x, n * sizeof *out);
    return out;
}

static float *room(size_t rows, size_t columns)
{
    float *p = malloc(rows * columns * sizeof *p);
    assert_non_null(p);
    return p;
}

static void keep_term(moments *m, vptq_calibrator *c, vptq_part part, vptq_linear l)
{
    vptq_err err = {0};
    const vptq_hessian_sum *s = &c->term[l];
    if (!vptq_calibrator_has_term(c, l))
        return;
    assert_int_equal(s->tokens, c->windows[part]);
    m->term[part][l] = copy_of(s->h, (size_t)s->n * s->n);
    if (!c->opt.sequential)
        return;
    m->term_shift[part][l] = room(c->model->desc->hidden, s->n);
    assert_ok(vptq_calibrator_term_shift(c, l, m->term_shift[part][l], &err), &err);
}

static vptq_status keep(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    moments *m = arg;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        const size_t n = c->sum[i].n;
        if (c->opt.sequential && i != (int)c->next)
            continue;
        assert_int_equal(c->sum[i].tokens, c->windows[part] * LENGTH);
        m->h[part][i] = copy_of(c->sum[i].h, n * n);
        if (!c->opt.sequential)
            continue;
        m->shift[part][i] = room(c->model->desc->hidden, n);
        VPTQ_CHECK(vptq_calibrator_shift(c, m->shift[part][i], err));
    }
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++)
        keep_term(m, c, part, (vptq_linear)l);
    return VPTQ_OK;
}

static void moments_free(moments *m)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            free(m->h[part][i]);
            free(m->shift[part][i]);
        }
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            free(m->term[part][l]);
            free(m->term_shift[part][l]);
        }
    }
}

/* Runs one block: of one stream, or of two where `linear` replaces the second stream's linear
 * layers. */
static void run(vptq_calibrator *c, const vptq_weight *linear, moments *m)
{
    vptq_err err = {0};
    const uint32_t layer = c->layer;
    memset(m, 0, sizeof *m);
    if (!c->opt.sequential) {
        assert_ok(vptq_calibrator_run(c, keep, m, &err), &err);
        return;
    }
    for (int i = 0; i <= VPTQ_INPUT_COUNT; i++) {
        vptq_weight mixed[VPTQ_LINEAR_COUNT];
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++)
            mixed[l] = (int)vptq_linear_input((vptq_linear)l) < i
                           ? linear[l]
                           : c->model->blocks[layer].linear[l];
        assert_int_equal(c->next, i);
        assert_ok(vptq_calibrator_step(c, mixed, keep, m, &err), &err);
    }
    assert_int_equal(c->layer, layer + 1);
}

/* The upper triangle is undefined. */
static void expect_same_lower(const double *a, const double *b, size_t n)
{
    for (size_t row = 0; row < n; row++)
        assert_memory_equal(a + row * n, b + row * n, (row + 1) * sizeof(double));
}

static void expect_same(const rig *r, const moments *a, const moments *b)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            const size_t n = vptq_input_size(r->v.m.desc, (vptq_input)i);
            expect_same_lower(a->h[part][i], b->h[part][i], n);
        }
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            const size_t n = vptq_input_size(r->v.m.desc, vptq_linear_input((vptq_linear)l));
            assert_int_equal(a->term[part][l] != NULL, b->term[part][l] != NULL);
            if (a->term[part][l])
                expect_same_lower(a->term[part][l], b->term[part][l], n);
        }
    }
}

static void expect_no_shift(const rig *r, const moments *m)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            const size_t n = vptq_input_size(r->v.m.desc, (vptq_input)i) * r->v.m.desc->hidden;
            for (size_t j = 0; j < n; j++)
                assert_true(m->shift[part][i][j] == 0);
        }
}

/* ---- blocks identical to the original ---- */

/* Makes W a quantized matrix without any loss: every weight has its own centroid. */
static void exact_matrix(rig *r, const vptq_weight *w, vptq_arena *arena,
                         vptq_packed_matrix *out)
{
    vptq_err err = {0};
    const uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, count = rows * cols;
    uint32_t k = 2;
    while (k < count)
        k *= 2;
    float *codebook = vptq_arena_zalloc(arena, k, sizeof *codebook, &err);
    *out = (vptq_packed_matrix){.name = "exact", .storage = VPTQ_BF16};
    out->vq.shape = (vptq_vq_shape){
        .out = rows, .in = cols, .v = 1, .k = k, .groups = 1, .group_size = cols};
    const size_t words = vptq_vq_row_words(&out->vq.shape);
    uint32_t *codes = vptq_arena_zalloc(arena, rows * words, sizeof *codes, &err);
    assert_ok(vptq_weight_read(w, &r->v.dev, 0, rows, codebook, &err), &err);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t col = 0; col < cols; col++)
            vptq_bits_put(codes + row * words, col, vptq_log2u(k), row * cols + col);
    out->vq.centroids = codebook;
    out->vq.indices = codes;
}

static void test_exact_blocks_shift_nothing(void **state)
{
    rig r;
    vptq_calibrator one, two;
    vptq_arena arena;
    moments a, b;
    rig_open(&r, *state, "cpu");
    vptq_arena_init(&arena, NULL);
    start(&r, *state, false, 0, &one);
    start(&r, *state, true, 0, &two);
    for (uint32_t layer = 0; layer < r.v.m.desc->layers; layer++) {
        vptq_packed_matrix exact[VPTQ_LINEAR_COUNT];
        vptq_weight linear[VPTQ_LINEAR_COUNT];
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            const vptq_weight *w = &r.v.m.blocks[layer].linear[l];
            exact_matrix(&r, w, &arena, &exact[l]);
            linear[l] = (vptq_weight){w->rows, w->cols, NULL, &exact[l]};
        }
        run(&one, NULL, &a);
        run(&two, linear, &b);
        expect_same(&r, &a, &b);
        expect_no_shift(&r, &b);
        moments_free(&a);
        moments_free(&b);
    }
    vptq_calibrator_release(&one);
    vptq_calibrator_release(&two);
    vptq_arena_release(&arena);
    rig_close(&r);
}

/* ---- blocks that differ from the original ---- */

/* Layer 1 over all windows: its inputs, the hidden states after each half, and the attention
 * that each token receives. */
typedef struct stream {
    const vptq_model_desc *d;
    float *x[VPTQ_INPUT_COUNT], *behind[2];
    float weight[IDS];
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
    double mass[LENGTH] = {0};
    (void)dim, (void)x;
    assert_int_equal(tokens, LENGTH);
    assert_ok(t->dev->ops->attention_mass(t->dev->state, a, mass, err), err);
    for (size_t i = 0; i < tokens; i++)
        t->s->weight[sequence * LENGTH + i] =
            (float)(mass[i] / ((double)a->heads * (double)tokens));
    return VPTQ_OK;
}

static vptq_status record(void *arg, vptq_input input, size_t sequence, size_t tokens,
                          size_t dim, const float *x, vptq_err *err)
{
    const hook *t = arg;
    (void)err;
    if (input == t->input)
        memcpy(t->s->x[input] + sequence * LENGTH * dim, x, tokens * dim * sizeof *x);
    return VPTQ_OK;
}

/* Runs layer 0 with the linear layers of `first` (those of the model where NULL), then layer 1
 * once per input; linear layers that precede that input come from `second`. */
static void run_by_hand(rig *r, const vptq_weight *first, const vptq_weight *second, stream *s)
{
    vptq_err err = {0};
    vptq_forward *f;
    const vptq_block_hooks hooks = {.linear = first};
    size_t starts[WINDOWS + 1];
    const size_t hidden = r->v.m.desc->hidden;
    float *h = room(IDS, hidden), *middle = room(IDS, hidden);
    for (size_t w = 0; w <= WINDOWS; w++)
        starts[w] = w * LENGTH;
    s->d = r->v.m.desc;
    assert_ok(vptq_forward_open(&r->v.m, &r->v.dev, LENGTH, &f, &err), &err);
    assert_ok(vptq_forward_embed(f, r->ids, IDS, h, &err), &err);
    assert_ok(vptq_forward_block_with(f, 0, starts, WINDOWS, h, &hooks, &err), &err);
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        vptq_weight mixed[VPTQ_LINEAR_COUNT];
        const bool attention = i <= VPTQ_INPUT_O;
        hook t = {s, &r->v.dev, (vptq_input)i};
        vptq_block_hooks half = {.hook = record,
                                 .attention = i == VPTQ_INPUT_QKV ? weigh : NULL,
                                 .arg = &t,
                                 .linear = mixed,
                                 .half = VPTQ_BLOCK_ATTENTION};
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++)
            mixed[l] = second && (int)vptq_linear_input((vptq_linear)l) < i
                           ? second[l]
                           : r->v.m.blocks[1].linear[l];
        s->x[i] = room(IDS, vptq_input_size(s->d, (vptq_input)i));
        memcpy(middle, h, IDS * hidden * sizeof *h);
        assert_ok(vptq_forward_block_with(f, 1, starts, WINDOWS, middle, &half, &err), &err);
        half.half = VPTQ_BLOCK_FEED_FORWARD;
        if (!attention)
            assert_ok(vptq_forward_block_with(f, 1, starts, WINDOWS, middle, &half, &err),
                      &err);
        if (i != VPTQ_INPUT_O && i != VPTQ_INPUT_DOWN)
            continue;
        s->behind[!attention] = room(IDS, hidden);
        memcpy(s->behind[!attention], middle, IDS * hidden * sizeof *h);
    }
    vptq_forward_close(f);
    free(h);
    free(middle);
}

static void stream_free(stream *s)
{
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        free(s->x[i]);
    free(s->behind[0]);
    free(s->behind[1]);
}

/* Checks E[x~ x~^T] and E[(a - b) x~^T] of one part against sums in double. */
static void check_input(const stream *x, const stream *passed, vptq_input input, int part,
                        const moments *m)
{
    const size_t n = vptq_input_size(x->d, input), hidden = x->d->hidden;
    const size_t first = part ? (WINDOWS - HELD) * LENGTH : 0;
    const size_t count = (part ? HELD : WINDOWS - HELD) * LENGTH;
    const bool drift = input == VPTQ_INPUT_O || input == VPTQ_INPUT_DOWN;
    const float *a = drift ? x->behind[input == VPTQ_INPUT_DOWN] : x->x[input];
    const float *b = drift ? passed->behind[input == VPTQ_INPUT_DOWN] : passed->x[input];
    const float *got = m->shift[part][input];
    const float *p = passed->x[input];
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double h = 0;
            for (size_t t = first; t < first + count; t++)
                h += (double)p[t * n + i] * (double)p[t * n + j];
            assert_true(fabs(m->h[part][input][i * n + j] - h) <= 1e-4 * (1 + fabs(h)));
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

/* Rounds the weights to multiples of 1/64. */
static void coarse_matrix(rig *r, const vptq_weight *w, vptq_arena *arena,
                          vptq_packed_matrix *out)
{
    exact_matrix(r, w, arena, out);
    float *codebook = (float *)(uintptr_t)out->vq.centroids;
    for (uint32_t i = 0; i < out->vq.shape.k; i++)
        codebook[i] = roundf(codebook[i] * 64) / 64;
}

static void coarse_layer(rig *r, uint32_t layer, vptq_arena *arena, vptq_packed_matrix *coarse,
                         vptq_weight *linear)
{
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        const vptq_weight *w = &r->v.m.blocks[layer].linear[l];
        coarse_matrix(r, w, arena, &coarse[l]);
        linear[l] = (vptq_weight){w->rows, w->cols, NULL, &coarse[l]};
    }
}

static void skip_layer(vptq_calibrator *c, const vptq_weight *linear)
{
    vptq_err err = {0};
    for (int i = 0; i <= VPTQ_INPUT_COUNT; i++)
        assert_ok(vptq_calibrator_step(c, linear, NULL, NULL, &err), &err);
    assert_int_equal(c->layer, 1);
}

static void check_shift(const char *dir, const char *backend)
{
    rig r;
    vptq_calibrator c;
    vptq_arena arena;
    moments m, again;
    stream x, passed;
    vptq_packed_matrix coarse[2][VPTQ_LINEAR_COUNT];
    vptq_weight linear[2][VPTQ_LINEAR_COUNT];
    rig_open(&r, dir, backend);
    vptq_arena_init(&arena, NULL);
    for (uint32_t layer = 0; layer < 2; layer++)
        coarse_layer(&r, layer, &arena, coarse[layer], linear[layer]);
    run_by_hand(&r, NULL, NULL, &x);
    run_by_hand(&r, linear[0], linear[1], &passed);
    start(&r, dir, true, 0, &c);
    skip_layer(&c, linear[0]);
    vptq_calibrator_checkpoint(&c);
    run(&c, linear[1], &m);
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
            check_input(&x, &passed, (vptq_input)i, part, &m);
    vptq_calibrator_release(&c);
    /* continues from the checkpoint before layer 1, which a one-stream calibration does not
     * accept */
    start(&r, dir, true, 1, &c);
    assert_int_equal(c.layer, 1);
    run(&c, linear[1], &again);
    expect_same(&r, &m, &again);
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
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
    moments_free(&m);
    moments_free(&again);
    stream_free(&x);
    stream_free(&passed);
    vptq_arena_release(&arena);
    rig_close(&r);
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
    const size_t n = x->d->hidden, count = WINDOWS - HELD;
    const float *p = passed->x[VPTQ_INPUT_QKV], *o = x->x[VPTQ_INPUT_QKV];
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double want = 0;
            for (size_t t = 0; t < count * LENGTH; t++) {
                const double w = sink ? t % LENGTH == 0 : (double)passed->weight[t];
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
    rig r;
    vptq_calibrator c;
    vptq_arena arena;
    stream x, passed;
    vptq_packed_matrix coarse[VPTQ_LINEAR_COUNT];
    vptq_weight linear[VPTQ_LINEAR_COUNT];
    rig_open(&r, *state, "cpu");
    vptq_arena_init(&arena, NULL);
    coarse_layer(&r, 0, &arena, coarse, linear);
    run_by_hand(&r, NULL, NULL, &x);
    run_by_hand(&r, linear, NULL, &passed);
    for (int weights = VPTQ_WEIGHTS_SINK; weights <= VPTQ_WEIGHTS_ATTENTION; weights++) {
        moments m;
        start_with(&r, *state, (vptq_token_weights)weights, true, 0, &c);
        skip_layer(&c, linear);
        run(&c, r.v.m.blocks[1].linear, &m);
        check_term_shift(&x, &passed, weights == VPTQ_WEIGHTS_SINK,
                         m.term_shift[0][VPTQ_LINEAR_K]);
        vptq_calibrator_release(&c);
        moments_free(&m);
    }
    stream_free(&x);
    stream_free(&passed);
    vptq_arena_release(&arena);
    rig_close(&r);
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
static void guided_weights(rig *r, const char *dir, float *weight[VPTQ_LINEAR_COUNT])
{
    enum { MAIN = (WINDOWS - HELD) * LENGTH };
    vptq_err err = {0};
    size_t window[WINDOWS];
    vptq_hidden_states s;
    for (size_t w = 0; w < WINDOWS; w++)
        window[w] = w * LENGTH;
    const vptq_saliency_options o = {.model = &r->v.m,
                                     .ids = r->ids,
                                     .window = window,
                                     .windows = WINDOWS,
                                     .length = LENGTH,
                                     .fingerprint = "0123456789abcdef",
                                     .dir = dir};
    assert_ok(vptq_saliency_collect(&r->v.dev, &o, &s, &err), &err);
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        double mean = 0;
        weight[l] = room(WINDOWS, LENGTH);
        for (size_t w = 0; w < WINDOWS; w++) {
            float *row;
            const size_t at = vptq_saliency_row(r->v.m.desc, w, 1, (vptq_linear)l);
            assert_ok(vptq_hidden_states_get(&s, at, 1, false, &row, &err), &err);
            memcpy(weight[l] + w * LENGTH, row, LENGTH * sizeof *row);
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
                         const float *weight, const moments *m)
{
    const vptq_input input = vptq_linear_input(l);
    const size_t n = vptq_input_size(x->d, input), hidden = x->d->hidden;
    const size_t count = (WINDOWS - HELD) * LENGTH;
    const bool drift = input == VPTQ_INPUT_O || input == VPTQ_INPUT_DOWN;
    const float *a = drift ? x->behind[input == VPTQ_INPUT_DOWN] : x->x[input];
    const float *b = drift ? passed->behind[input == VPTQ_INPUT_DOWN] : passed->x[input];
    const float *p = passed->x[input], *got = m->term_shift[0][l];
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double h = 0; /* a sum over windows of means over tokens */
            for (size_t t = 0; t < count; t++)
                h += (double)weight[t] * (double)p[t * n + i] * (double)p[t * n + j] / LENGTH;
            assert_true(fabs(m->term[0][l][i * n + j] - h) <= 1e-4 * (1 + fabs(h)));
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
    rig r;
    vptq_calibrator c;
    vptq_arena arena;
    moments m;
    stream x, passed;
    vptq_packed_matrix coarse[2][VPTQ_LINEAR_COUNT];
    vptq_weight linear[2][VPTQ_LINEAR_COUNT];
    float *weight[VPTQ_LINEAR_COUNT];
    rig_open(&r, *state, "cpu");
    vptq_arena_init(&arena, NULL);
    for (uint32_t layer = 0; layer < 2; layer++)
        coarse_layer(&r, layer, &arena, coarse[layer], linear[layer]);
    run_by_hand(&r, NULL, NULL, &x);
    run_by_hand(&r, linear[0], linear[1], &passed);
    guided_weights(&r, *state, weight);
    start_with(&r, *state, VPTQ_WEIGHTS_GUIDED, true, 0, &c);
    skip_layer(&c, linear[0]);
    run(&c, linear[1], &m);
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        check_guided(&x, &passed, (vptq_linear)l, weight[l], &m);
        free(weight[l]);
    }
    vptq_calibrator_release(&c);
    moments_free(&m);
    stream_free(&x);
    stream_free(&passed);
    vptq_arena_release(&arena);
    rig_close(&r);
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_calibrator c;
    rig_open(&r, *state, "cpu");
    const char *files[] = {r.path};
    vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                  .windows = 1,
                                  .length = LENGTH,
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
    opt.windows = WINDOWS;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        opt.holdout = parts[i].share;
        assert_ok(vptq_calibrator_plan(&r.v.dev, &r.v.m, &opt, &c, &err), &err);
        assert_int_equal(c.windows[VPTQ_PART_HELD_OUT], parts[i].held);
        vptq_calibrator_release(&c);
    }
    rig_close(&r);
}

typedef struct oom_run {
    rig *r;
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
                                        .length = LENGTH,
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
    rig r;
    rig_open(&r, *state, "cpu");
    oom_run run = {&r, *state};
    assert_true(devices_oom_walk("cpu", 1, both_streams, &run) > 20);
    rig_close(&r);
}

/* ---- what moves to a device ---- */

static vptq_status finish_sums(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    size_t *bytes = arg;
    (void)part;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        const size_t n = c->sum[i].n;
        if (c->opt.sequential && i != (int)c->next)
            continue;
        float *lower = vtest_alloc(n * (n + 1) / 2, sizeof *lower);
        float *mean = vtest_alloc(n, sizeof *mean);
        assert_ok(vptq_hessian_sum_finish(&c->sum[i], lower, mean, err), err);
        *bytes += (n * (n + 1) / 2 + n) * sizeof *lower;
        free(mean);
        free(lower);
    }
    return VPTQ_OK;
}

/* Two groups of windows, one for each part: the weights of a block are uploaded once, hidden
 * states once if they fit, and sums come back in two downloads. */
static void test_uploads_of_one_stream(void **state)
{
    for (int fits = 0; fits < 2; fits++) {
        rig r;
        vptq_calibrator c;
        vptq_err err = {0};
        size_t sums = 0;
        rig_open(&r, *state, "ref");
        vcount_start(&r.v.dev, SIZE_MAX);
        plan_with(&r, VPTQ_WEIGHTS_PLAIN, false, &c);
        c.reserve = fits ? 0 : SIZE_MAX;
        assert_ok(vptq_calibrator_start(&c, *state, 0, r.v.m.desc->layers - 1, &err), &err);
        const vcount before = vcount_of(&r.v.m);
        const size_t hidden = IDS * r.v.m.desc->hidden * sizeof(float),
                     layers = r.v.m.desc->layers;
        assert_int_equal(before.weights, 0);
        assert_true(!c.states.resident == !fits);
        while (c.layer < layers)
            assert_ok(vptq_calibrator_run(&c, finish_sums, &sums, &err), &err);
        const vcount after = vcount_of(&r.v.m);
        assert_int_equal(after.weights, vcount_block_weights(&r.v.m));
        assert_int_equal(after.uploaded - before.uploaded - after.weights,
                         fits ? 0 : layers * hidden);
        assert_int_equal(after.downloaded - before.downloaded,
                         sums + (fits ? 0 : layers * hidden));
        assert_int_equal(after.downloads - before.downloads,
                         layers * (size_t)(VPTQ_PART_COUNT * (2 * VPTQ_INPUT_COUNT + !fits)));
        vptq_calibrator_release(&c);
        rig_close(&r);
    }
}

/* Runs all blocks of two streams with quantized matrices that lose something: `m` [layers]. */
static void run_two(rig *r, vptq_calibrator *c, moments *m)
{
    vptq_arena arena;
    vptq_arena_init(&arena, NULL);
    for (uint32_t layer = 0; layer < r->v.m.desc->layers; layer++) {
        vptq_packed_matrix coarse[VPTQ_LINEAR_COUNT];
        vptq_weight linear[VPTQ_LINEAR_COUNT];
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            const vptq_weight *w = &r->v.m.blocks[layer].linear[l];
            coarse_matrix(r, w, &arena, &coarse[l]);
            linear[l] = (vptq_weight){w->rows, w->cols, NULL, &coarse[l]};
        }
        run(c, linear, &m[layer]);
    }
    vptq_arena_release(&arena);
}

static void expect_same_shifts(const rig *r, const moments *a, const moments *b)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            const size_t n = vptq_input_size(r->v.m.desc, (vptq_input)i) * r->v.m.desc->hidden;
            assert_same_f32(a->shift[part][i], b->shift[part][i], n);
        }
}

static void expect_same_term_shifts(const rig *r, const moments *a, const moments *b)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            const size_t n = vptq_input_size(r->v.m.desc, vptq_linear_input((vptq_linear)l));
            if (a->term_shift[part][l])
                assert_same_f32(a->term_shift[part][l], b->term_shift[part][l],
                                n * r->v.m.desc->hidden);
        }
}

enum { LAYERS = 2 };
typedef enum { HOST, FITS, AWAY, PLACES } place;

/* Runs two streams in host memory, or in the memory of a device with or without room for them.
 * Weights move once (the quantized matrices are packed, and opened apart from this count), and
 * nothing of the size of hidden states if these fit. */
static void run_in(place where, const char *dir, vptq_token_weights weights, moments *m)
{
    rig r;
    vptq_calibrator c;
    vptq_err err = {0};
    rig_open(&r, dir, "ref");
    const uint32_t layers = r.v.m.desc->layers;
    const size_t hidden = IDS * r.v.m.desc->hidden * sizeof(float);
    assert_int_equal(layers, LAYERS);
    if (where != HOST)
        vcount_start(&r.v.dev, SIZE_MAX);
    plan_with(&r, weights, true, &c);
    c.reserve = where == AWAY ? SIZE_MAX : 0;
    assert_ok(vptq_calibrator_start(&c, dir, 0, layers - 1, &err), &err);
    const vcount before = where == HOST ? (vcount){0} : vcount_of(&r.v.m);
    run_two(&r, &c, m);
    if (where != HOST) {
        const vcount after = vcount_of(&r.v.m);
        const size_t moved = after.uploaded - before.uploaded - after.weights;
        assert_true(where == FITS ? moved < hidden : moved > 4 * layers * hidden);
        if (weights == VPTQ_WEIGHTS_SINK)
            assert_int_equal(after.weights, vcount_block_weights(&r.v.m));
    }
    vptq_calibrator_release(&c);
    rig_close(&r);
}

static void test_two_streams_on_a_device(void **state)
{
    static const vptq_token_weights kinds[] = {VPTQ_WEIGHTS_SINK, VPTQ_WEIGHTS_ATTENTION,
                                               VPTQ_WEIGHTS_GUIDED};
    rig r;
    rig_open(&r, *state, "ref");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        moments host[LAYERS], m[LAYERS];
        run_in(HOST, *state, kinds[k], host);
        for (int where = FITS; where < PLACES; where++) {
            run_in((place)where, *state, kinds[k], m);
            for (int layer = 0; layer < LAYERS; layer++) {
                expect_same(&r, &host[layer], &m[layer]);
                expect_same_shifts(&r, &host[layer], &m[layer]);
                expect_same_term_shifts(&r, &host[layer], &m[layer]);
                moments_free(&m[layer]);
            }
        }
        for (int layer = 0; layer < LAYERS; layer++)
            moments_free(&host[layer]);
    }
    rig_close(&r);
}

VTEST_MAIN(scratch_test(test_exact_blocks_shift_nothing), scratch_test(test_shift),
           scratch_test(test_weighted_shift), scratch_test(test_guided),
           scratch_test(test_refusals), scratch_test(test_out_of_memory),
           scratch_test(test_uploads_of_one_stream), scratch_test(test_two_streams_on_a_device))
