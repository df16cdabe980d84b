/* Hooks of the forward pass: the inputs that they get, the halves of a block, and runs that
 * stop at an input. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { TOKENS = VRIG_TOKENS, HIDDEN = VRIG_HIDDEN };

/* Inputs that the hook has seen, all sequences one after the other. */
enum { MAX_DIM = 64 };
typedef struct record {
    const vptq_model *m;
    size_t rows[VPTQ_INPUT_DENSE], calls[VPTQ_INPUT_DENSE];
    float x[VPTQ_INPUT_DENSE][TOKENS * MAX_DIM];
} record;

static const size_t starts[3] = {0, 13, TOKENS};

static vptq_status record_hook(void *arg, vptq_input input, size_t sequence, size_t tokens,
                               size_t dim, const float *x, vptq_err *err)
{
    record *r = arg;
    (void)err;
    assert_int_equal(sequence, r->calls[input]++);
    assert_int_equal(tokens, starts[sequence + 1] - starts[sequence]);
    assert_int_equal(dim, vptq_input_size(r->m->desc, input));
    assert_true(dim <= MAX_DIM);
    memcpy(r->x[input] + r->rows[input] * dim, x, tokens * dim * sizeof *x);
    r->rows[input] += tokens;
    return VPTQ_OK;
}

/* hidden = the output of block 0 for its input `before`, the embeddings; returns the inputs of
 * its linear layers; free(). */
static record *run_recorded(vrig *r, float before[TOKENS * HIDDEN],
                            float hidden[TOKENS * HIDDEN])
{
    vptq_err err = {0};
    record *seen = vtest_alloc(1, sizeof *seen);
    int32_t *ids = vrig_tiny_ids("qwen3");
    const vptq_block_hooks hooks = {.hook = record_hook, .arg = seen};
    vrig_open_forward(r, VRIG_TINY_OF("qwen3"), "cpu", 2, TOKENS);
    seen->m = &r->m;
    assert_ok(vptq_forward_embed(r->f, ids, TOKENS, before, &err), &err);
    memcpy(hidden, before, TOKENS * HIDDEN * sizeof *hidden);
    assert_ok(vptq_forward_block_with(r->f, 0, starts, 2, hidden, &hooks, &err), &err);
    free(ids);
    return seen;
}

/* y [out] += W x in double. */
static void add_linear(vrig *r, vptq_linear l, const float *x, double *y)
{
    vptq_err err = {0};
    float row[MAX_DIM];
    const vptq_weight *w = &r->m.blocks[0].linear[l];
    assert_true(w->cols <= MAX_DIM);
    for (size_t o = 0; o < w->rows; o++) {
        assert_ok(vptq_weight_read(w, &r->dev, o, 1, row, &err), &err);
        for (size_t i = 0; i < w->cols; i++)
            y[o] += (double)row[i] * (double)x[i];
    }
}

/* out = the RMS norm of h [HIDDEN], computed in double. */
static void norm_row(vrig *r, const vptq_tensor *weight, const double *h, float *out)
{
    vptq_err err = {0};
    float w[HIDDEN];
    double sum = 0;
    assert_ok(vptq_tensor_read(weight, 0, 1, w, &err), &err);
    for (int i = 0; i < HIDDEN; i++)
        sum += h[i] * h[i];
    for (int i = 0; i < HIDDEN; i++)
        out[i] =
            (float)(h[i] / sqrt(sum / HIDDEN + (double)r->m.desc->norm_eps) * (double)w[i]);
}

/* The recorded inputs give the block's output when the linear layers are applied to them by
 * hand. */
static void test_hooks(void **state)
{
    (void)state;
    vrig r;
    float before[TOKENS * HIDDEN], after[TOKENS * HIDDEN];
    record *seen = run_recorded(&r, before, after);
    const vptq_block *b = &r.m.blocks[0];
    const size_t q = (size_t)r.m.desc->heads * r.m.desc->head_dim;
    const size_t inter = r.m.desc->intermediate;
    for (size_t i = 0; i < TOKENS; i++) {
        double h[HIDDEN];
        float x[HIDDEN];
        for (size_t c = 0; c < HIDDEN; c++)
            h[c] = (double)before[i * HIDDEN + c];
        norm_row(&r, b->norm[VPTQ_BLOCK_NORM_INPUT], h, x);
        assert_close(seen->x[VPTQ_INPUT_QKV] + i * HIDDEN, x, HIDDEN, 1e-5, 1e-5);
        add_linear(&r, VPTQ_LINEAR_O, seen->x[VPTQ_INPUT_O] + i * q, h);
        norm_row(&r, b->norm[VPTQ_BLOCK_NORM_FEED_FORWARD], h, x);
        assert_close(seen->x[VPTQ_INPUT_UP] + i * HIDDEN, x, HIDDEN, 1e-5, 1e-5);
        add_linear(&r, VPTQ_LINEAR_DOWN, seen->x[VPTQ_INPUT_DOWN] + i * inter, h);
        for (size_t c = 0; c < HIDDEN; c++)
            x[c] = (float)h[c];
        assert_close(after + i * HIDDEN, x, HIDDEN, 1e-5, 1e-5);
    }
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
        assert_int_equal(seen->calls[i], 2);
    free(seen);
    vrig_close(&r);
}

/* The two halves one after the other give the whole block; a run that stops at an input sees
 * the same inputs up to it and does not change the hidden states. */
static void test_halves(void **state)
{
    (void)state;
    vrig r;
    vptq_err err = {0};
    float whole[TOKENS * HIDDEN], halves[TOKENS * HIDDEN], before[TOKENS * HIDDEN];
    record *all = run_recorded(&r, halves, whole), *part = vtest_alloc(1, sizeof *part);
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        const size_t count = TOKENS * vptq_input_size(r.m.desc, (vptq_input)i);
        vptq_block_hooks hooks = {
            .hook = record_hook, .arg = part, .stop = true, .last = (vptq_input)i};
        hooks.half = i <= VPTQ_INPUT_O ? VPTQ_BLOCK_ATTENTION : VPTQ_BLOCK_FEED_FORWARD;
        *part = (record){.m = &r.m};
        memcpy(before, halves, sizeof before);
        assert_ok(vptq_forward_block_with(r.f, 0, starts, 2, halves, &hooks, &err), &err);
        assert_same_f32(halves, before, TOKENS * HIDDEN);
        assert_same_f32(part->x[i], all->x[i], count);
        for (int later = i + 1; later < VPTQ_INPUT_DENSE; later++)
            assert_int_equal(part->calls[later], 0);
        hooks.stop = false;
        hooks.hook = NULL;
        if (i == VPTQ_INPUT_O || i == VPTQ_INPUT_DOWN)
            assert_ok(vptq_forward_block_with(r.f, 0, starts, 2, halves, &hooks, &err), &err);
    }
    assert_same_f32(halves, whole, TOKENS * HIDDEN);
    free(all);
    free(part);
    vrig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(test_hooks), cmocka_unit_test(test_halves))
