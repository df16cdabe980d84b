/* Calibration with two streams of hidden states: against both runs done by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/calibrate.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "tests/vtest.h"

/* Two layers; 6 windows of 16 ids, the last 2 of them held out. */
enum { VOCAB = 48, WINDOWS = 6, HELD = 2, LENGTH = 16, IDS = WINDOWS * LENGTH, PATH = 4096 };
static const char model_path[] = "tests/golden/tiny_qwen3";

typedef struct rig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    char path[PATH];
    int32_t ids[IDS];
} rig;

static void rig_open(rig *r, const char *dir, const char *backend)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    vptq_rng rng = vptq_rng_make(3, 0, 0, VPTQ_RNG_TEST);
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < IDS; i++)
        r->ids[i] = (int32_t)vptq_rng_below(&rng, i, VOCAB);
    vtest_path(r->path, sizeof r->path, dir, "ids");
    vtest_write_file(r->path, r->ids, sizeof r->ids);
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.mem = &r->mem, .threads = 2};
    assert_ok(vptq_device_open(&r->ctx, backend, &r->dev, &err), &err);
    assert_ok(vptq_model_open(&r->ctx, model_path, &opt, false, &r->m, &err), &err);
}

static void rig_close(rig *r)
{
    vptq_model_release(&r->m);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
}

static void start(rig *r, const char *dir, bool sequential, uint32_t wanted, vptq_calibrator *c)
{
    vptq_err err = {0};
    const char *files[] = {r->path};
    const vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                        .windows = WINDOWS,
                                        .length = LENGTH,
                                        .holdout = (double)HELD / WINDOWS,
                                        .weights = VPTQ_WEIGHTS_ATTENTION,
                                        .sequential = sequential};
    assert_ok(vptq_calibrator_plan(&r->dev, &r->m, &opt, c, &err), &err);
    assert_int_equal(c->windows[VPTQ_PART_MAIN], WINDOWS - HELD);
    assert_int_equal(c->windows[VPTQ_PART_HELD_OUT], HELD);
    assert_ok(vptq_calibrator_start(c, dir, wanted, r->m.desc->layers - 1, &err), &err);
}

/* Everything that a block gave, both parts. */
typedef struct moments {
    double *h[VPTQ_PART_COUNT][VPTQ_INPUT_COUNT], *term[VPTQ_PART_COUNT];
    float *shift[VPTQ_PART_COUNT][VPTQ_INPUT_COUNT];
} moments;

static double *copy_of(const double *x, size_t n)
{
    double *out = malloc(n * sizeof *out);
    assert_non_null(out);
    memcpy(out, x, n * sizeof *out);
    return out;
}

static vptq_status keep(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    moments *m = arg;
    (void)err;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        const size_t n = c->sum[i].n;
        assert_int_equal(c->sum[i].tokens, c->windows[part] * LENGTH);
        m->h[part][i] = copy_of(c->sum[i].h, n * n);
        m->shift[part][i] = NULL;
        if (!c->opt.sequential)
            continue;
        m->shift[part][i] = malloc(n * n * sizeof(float));
        assert_non_null(m->shift[part][i]);
        vptq_calibrator_shift(c, (vptq_input)i, m->shift[part][i]);
    }
    assert_int_equal(c->term.tokens, c->windows[part]);
    m->term[part] = copy_of(c->term.h, (size_t)c->term.n * c->term.n);
    return VPTQ_OK;
}

static void moments_free(moments *m)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            free(m->h[part][i]);
            free(m->shift[part][i]);
        }
        free(m->term[part]);
    }
}

static void run(vptq_calibrator *c, moments *m)
{
    vptq_err err = {0};
    assert_ok(vptq_calibrator_run(c, keep, m, &err), &err);
}

static void expect_same(const rig *r, const moments *a, const moments *b)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            const size_t n = vptq_input_size(r->m.desc, (vptq_input)i);
            for (size_t row = 0; row < n; row++) /* the rest is not the row's to write */
                assert_memory_equal(a->h[part][i] + row * n, b->h[part][i] + row * n,
                                    (row + 1) * sizeof(double));
        }
}

static void expect_no_shift(const rig *r, const moments *m)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            const size_t n = vptq_input_size(r->m.desc, (vptq_input)i);
            for (size_t j = 0; j < n * n; j++)
                assert_true(m->shift[part][i][j] == 0);
        }
}

/* ---- blocks that are as good as the original ---- */

/* Every weight its own centroid: W as a quantized matrix without any loss. */
static void exact_matrix(rig *r, const vptq_weight *w, vptq_arena *arena,
                         vptq_packed_matrix *out)
{
    vptq_err err = {0};
    const uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, count = rows * cols;
    uint32_t k = 2;
    while (k < count)
        k *= 2;
    float *book = vptq_arena_zalloc(arena, k, sizeof *book, &err);
    *out = (vptq_packed_matrix){.name = "exact", .storage = VPTQ_BF16};
    out->vq.shape = (vptq_vq_shape){
        .out = rows, .in = cols, .v = 1, .k = k, .groups = 1, .group_size = cols};
    const size_t words = vptq_vq_row_words(&out->vq.shape);
    uint32_t *codes = vptq_arena_zalloc(arena, rows * words, sizeof *codes, &err);
    assert_ok(vptq_weight_read(w, &r->dev, 0, rows, book, &err), &err);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t col = 0; col < cols; col++)
            vptq_bits_put(codes + row * words, col, vptq_log2u(k), row * cols + col);
    out->vq.centroids = book;
    out->vq.indices = codes;
}

static void test_exact_blocks_shift_nothing(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_calibrator one, two;
    vptq_arena arena;
    moments a, b;
    rig_open(&r, *state, "cpu");
    vptq_arena_init(&arena, NULL);
    start(&r, *state, false, 0, &one);
    start(&r, *state, true, 0, &two);
    for (uint32_t layer = 0; layer < r.m.desc->layers; layer++) {
        vptq_packed_matrix exact[VPTQ_LINEAR_COUNT];
        vptq_weight linear[VPTQ_LINEAR_COUNT];
        run(&one, &a);
        run(&two, &b);
        expect_same(&r, &a, &b);
        expect_no_shift(&r, &b);
        moments_free(&a);
        moments_free(&b);
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            const vptq_weight *w = &r.m.blocks[layer].linear[l];
            exact_matrix(&r, w, &arena, &exact[l]);
            linear[l] = (vptq_weight){w->rows, w->cols, NULL, &exact[l]};
        }
        assert_ok(vptq_calibrator_advance(&two, linear, &err), &err);
    }
    vptq_calibrator_release(&one);
    vptq_calibrator_release(&two);
    vptq_arena_release(&arena);
    rig_close(&r);
}

/* ---- blocks that are not ---- */

/* Inputs of a block for all windows. */
typedef struct inputs {
    const vptq_model_desc *d;
    float *x[VPTQ_INPUT_COUNT];
} inputs;

static vptq_status record(void *arg, vptq_input input, size_t sequence, size_t tokens,
                          size_t dim, const float *x, vptq_err *err)
{
    inputs *in = arg;
    (void)err;
    memcpy(in->x[input] + sequence * LENGTH * dim, x, tokens * dim * sizeof *x);
    return VPTQ_OK;
}

/* Layer 0 with `linear` (NULL: the model's), then the inputs of layer 1 with the model's. */
static void run_by_hand(rig *r, const vptq_weight *linear, inputs *in)
{
    vptq_err err = {0};
    vptq_forward *f;
    const vptq_block_hooks first = {.linear = linear}, second = {.tap = record, .arg = in};
    size_t starts[WINDOWS + 1];
    float *h = malloc((size_t)IDS * r->m.desc->hidden * sizeof *h);
    assert_non_null(h);
    for (size_t w = 0; w <= WINDOWS; w++)
        starts[w] = w * LENGTH;
    in->d = r->m.desc;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        in->x[i] = malloc((size_t)IDS * vptq_input_size(in->d, (vptq_input)i) * sizeof(float));
        assert_non_null(in->x[i]);
    }
    assert_ok(vptq_forward_open(&r->m, &r->dev, LENGTH, &f, &err), &err);
    assert_ok(vptq_forward_embed(f, r->ids, IDS, h, &err), &err);
    assert_ok(vptq_forward_block_with(f, 0, starts, WINDOWS, h, &first, &err), &err);
    assert_ok(vptq_forward_block_with(f, 1, starts, WINDOWS, h, &second, &err), &err);
    vptq_forward_close(f);
    free(h);
}

static void inputs_free(inputs *in)
{
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        free(in->x[i]);
}

/* E[x~ x~^T] and E[(x - x~) x~^T] of one part, in double. */
static void check_input(const inputs *x, const inputs *passed, vptq_input input, int part,
                        const moments *m)
{
    const size_t n = vptq_input_size(x->d, input);
    const size_t first = part ? (WINDOWS - HELD) * LENGTH : 0;
    const size_t count = (part ? HELD : WINDOWS - HELD) * LENGTH;
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double h = 0, shift = 0;
            for (size_t t = first; t < first + count; t++) {
                const double p = (double)passed->x[input][t * n + j];
                const double q = (double)passed->x[input][t * n + i];
                h += q * p;
                shift += ((double)x->x[input][t * n + i] - q) * p / (double)count;
            }
            if (j <= i)
                assert_true(fabs(m->h[part][input][i * n + j] - h) <= 1e-4 * (1 + fabs(h)));
            assert_true(fabs((double)m->shift[part][input][i * n + j] - shift) <= 2e-5);
            largest = fmax(largest, fabs(shift));
        }
    assert_true(largest > 1e-3); /* there was something to see */
}

/* Coarse values: multiples of 1/64. */
static void coarse_matrix(rig *r, const vptq_weight *w, vptq_arena *arena,
                          vptq_packed_matrix *out)
{
    exact_matrix(r, w, arena, out);
    float *book = (float *)(uintptr_t)out->vq.centroids;
    for (uint32_t i = 0; i < out->vq.shape.k; i++)
        book[i] = roundf(book[i] * 64) / 64;
}

static void check_shift(const char *dir, const char *backend)
{
    rig r;
    vptq_err err = {0};
    vptq_calibrator c;
    vptq_arena arena;
    moments m;
    inputs x, passed;
    vptq_packed_matrix coarse[VPTQ_LINEAR_COUNT];
    vptq_weight linear[VPTQ_LINEAR_COUNT];
    rig_open(&r, dir, backend);
    vptq_arena_init(&arena, NULL);
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        const vptq_weight *w = &r.m.blocks[0].linear[l];
        coarse_matrix(&r, w, &arena, &coarse[l]);
        linear[l] = (vptq_weight){w->rows, w->cols, NULL, &coarse[l]};
    }
    run_by_hand(&r, NULL, &x);
    run_by_hand(&r, linear, &passed);
    start(&r, dir, true, 0, &c);
    assert_ok(vptq_calibrator_run(&c, NULL, NULL, &err), &err);
    assert_ok(vptq_calibrator_advance(&c, linear, &err), &err);
    vptq_calibrator_checkpoint(&c);
    run(&c, &m);
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
            check_input(&x, &passed, (vptq_input)i, part, &m);
    vptq_calibrator_release(&c);
    /* from the checkpoint in front of layer 1, not taken for a one-stream calibration */
    moments again;
    start(&r, dir, true, 1, &c);
    assert_int_equal(c.layer, 1);
    run(&c, &again);
    expect_same(&r, &m, &again);
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        const size_t n = vptq_input_size(r.m.desc, (vptq_input)i);
        assert_same_f32(m.shift[0][i], again.shift[0][i], n * n);
    }
    vptq_calibrator_release(&c);
    start(&r, dir, false, 1, &c);
    assert_int_equal(c.layer, 0);
    vptq_calibrator_release(&c);
    start(&r, dir, true, 0, &c); /* nor where it comes too late */
    assert_int_equal(c.layer, 0);
    vptq_calibrator_release(&c);
    vptq_calibrator_forget(dir);
    moments_free(&m);
    moments_free(&again);
    inputs_free(&x);
    inputs_free(&passed);
    vptq_arena_release(&arena);
    rig_close(&r);
}

static void test_shift(void **state)
{
    check_shift(*state, "cpu");
    check_shift(*state, "ref");
}

/* ---- what cannot be ---- */

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
    assert_fails(vptq_calibrator_plan(&r.dev, &r.m, &opt, &c, &err), VPTQ_E_ARG, &err,
                 "held out of one window");
    static const double shares[] = {-0.1, 1, 2, NAN};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        opt.windows = 4;
        opt.holdout = shares[i];
        assert_fails(vptq_calibrator_plan(&r.dev, &r.m, &opt, &c, &err), VPTQ_E_ARG, &err,
                     "cannot be held out");
    }
    /* rounded up, and never all */
    static const struct {
        double share;
        size_t held;
    } parts[] = {{1e-9, 1}, {0.17, 2}, {1.0 / 6, 1}, {0.5, 3}, {0.99, 5}};
    opt.windows = WINDOWS;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        opt.holdout = parts[i].share;
        assert_ok(vptq_calibrator_plan(&r.dev, &r.m, &opt, &c, &err), &err);
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

static vptq_status both_streams(void *arg, vptq_mem *mem, vptq_err *err)
{
    const oom_run *run = arg;
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev;
    vptq_calibrator c = {.dev = NULL};
    const char *files[] = {run->r->path};
    const vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                        .windows = 2,
                                        .length = LENGTH,
                                        .holdout = 0.5,
                                        .weights = VPTQ_WEIGHTS_ATTENTION,
                                        .sequential = true};
    vptq_status st = vptq_device_open(&ctx, "cpu", &dev, err);
    if (st)
        return st;
    VPTQ_TRY(vptq_calibrator_plan(&dev, &run->r->m, &opt, &c, err));
    VPTQ_TRY(vptq_calibrator_start(&c, run->dir, 0, 1, err));
    VPTQ_TRY(vptq_calibrator_run(&c, no_sums, NULL, err));
    VPTQ_TRY(vptq_calibrator_advance(&c, NULL, err));
out:
    vptq_calibrator_release(&c);
    vptq_device_close(&dev);
    return st;
}

static void test_out_of_memory(void **state)
{
    rig r;
    rig_open(&r, *state, "cpu");
    oom_run run = {&r, *state};
    assert_true(vtest_oom_walk(both_streams, &run) > 20);
    rig_close(&r);
}

#define SCRATCH(test)                                                                          \
    cmocka_unit_test_setup_teardown(test, vtest_scratch_setup, vtest_scratch_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        SCRATCH(test_exact_blocks_shift_nothing),
        SCRATCH(test_shift),
        SCRATCH(test_refusals),
        SCRATCH(test_out_of_memory),
    };
    return vtest_main(argc, argv, tests);
}
