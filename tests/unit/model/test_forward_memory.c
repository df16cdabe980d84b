/* The forward pass on a device that is or becomes short of memory: it runs fewer rows at once
 * with the same bits, and fails with one sentence if nothing fits. */
#include <stdlib.h>
#include <string.h>

#include "lib/model/forward_internal.h"
#include "tests/emu/emu.h"
#include "tests/support/vtest.h"

enum { HIDDEN = 32, VOCAB = 48, LENGTH = 24, COUNT = 12, ROWS = COUNT * LENGTH };

typedef struct rig {
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    vptq_forward *f;
    size_t starts[COUNT + 1];
    float *hidden; /* [ROWS, HIDDEN] */
} rig;

/* The most rows that a product had. */
static size_t most_rows;

static vptq_status counting_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    most_rows = g->m > most_rows ? g->m : most_rows;
    return vptq_backend_emu()->gemm(dev, g, err);
}

static vptq_backend counting;

static void rig_open_model(rig *r, const char *path)
{
    vptq_err err;
    int32_t ids[ROWS];
    *r = (rig){.ctx = {.threads = 1}};
    assert_ok(vptq_device_open(&r->ctx, "emu", &r->dev, &err), &err);
    counting = *vptq_backend_emu();
    counting.gemm = counting_gemm;
    r->dev.ops = &counting;
    assert_ok(vptq_model_open(&r->ctx, path, &(vptq_checkpoint_options){0}, false, &r->m, &err),
              &err);
    assert_ok(vptq_forward_open(&r->m, &r->dev, ROWS, &r->f, &err), &err);
    for (size_t s = 0; s <= COUNT; s++)
        r->starts[s] = s * LENGTH;
    for (int i = 0; i < ROWS; i++)
        ids[i] = i * 7 % VOCAB;
    r->hidden = malloc(ROWS * HIDDEN * sizeof *r->hidden);
    assert_non_null(r->hidden);
    assert_ok(vptq_forward_embed(r->f, ids, ROWS, r->hidden, &err), &err);
    most_rows = 0;
}

static void rig_open(rig *r)
{
    rig_open_model(r, "tests/golden/tiny_mistral");
}

static void rig_close(rig *r)
{
    vptq_forward_close(r->f);
    vptq_model_release(&r->m);
    vptq_device_close(&r->dev);
    free(r->hidden);
    cuda_emu_memory(0);
    assert_int_equal(cuda_emu_memory_used(), 0);
}

static vptq_status run_blocks(rig *r, size_t count, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    for (uint32_t l = 0; l < r->m.desc->layers && !st; l++)
        st = vptq_forward_block(r->f, l, r->starts, count, r->hidden, NULL, NULL, err);
    return st;
}

static void leave(size_t bytes)
{
    cuda_emu_memory(cuda_emu_memory_used() + bytes);
}

/* Of a row in a piece: activations, and the hidden states. */
static size_t row_bytes(const rig *r)
{
    const vptq_model_desc *d = r->m.desc;
    const size_t q = (size_t)d->heads * d->head_dim, kv = (size_t)d->kv_heads * d->head_dim;
    const size_t wide = d->intermediate > q ? d->intermediate : q;
    return (2 * d->hidden + q + 2 * kv + wide + d->intermediate) * sizeof(float);
}

static void test_less_memory_means_smaller_pieces(void **state)
{
    (void)state;
    rig whole, cut;
    vptq_err err;
    float want[ROWS * HIDDEN];
    vptq_nll_state nll[2][ROWS];
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS; i++)
        targets[i] = i * 5 % VOCAB;
    rig_open(&whole);
    assert_ok(run_blocks(&whole, COUNT, &err), &err);
    assert_int_equal(most_rows, ROWS);
    assert_ok(vptq_forward_loss(whole.f, ROWS, whole.hidden, targets, nll[0], &err), &err);
    memcpy(want, whole.hidden, sizeof want);
    rig_close(&whole);

    rig_open(&cut);
    leave(180 * row_bytes(&cut));
    assert_ok(run_blocks(&cut, COUNT, &err), &err);
    /* 90 rows fit into half of it, then more into half of what is left */
    assert_true(most_rows >= 3 * LENGTH && most_rows < 180);
    assert_same_f32(cut.hidden, want, ROWS * HIDDEN);
    vptq_forward_close(cut.f); /* the head alone */
    cuda_emu_memory(0);
    assert_ok(vptq_forward_open(&cut.m, &cut.dev, ROWS, &cut.f, &err), &err);
    leave(400000);
    most_rows = 0;
    assert_ok(vptq_forward_loss(cut.f, ROWS, cut.hidden, targets, nll[1], &err), &err);
    assert_true(most_rows >= 64 && most_rows <= 128);
    for (int i = 0; i < ROWS; i++)
        assert_true(nll[1][i].max == nll[0][i].max && nll[1][i].sum == nll[0][i].sum &&
                    nll[1][i].target == nll[0][i].target &&
                    nll[1][i].best_id == nll[0][i].best_id);
    rig_close(&cut);
}

/* Another program takes memory between two batches. */
static void test_memory_may_shrink(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    float want[ROWS * HIDDEN];
    rig_open(&r);
    assert_ok(run_blocks(&r, COUNT, &err), &err);
    memcpy(want, r.hidden, sizeof want);
    rig_close(&r);

    rig_open(&r);
    assert_ok(run_blocks(&r, 2, &err), &err);
    assert_int_equal(most_rows, 2 * LENGTH);
    leave(100 * row_bytes(&r)); /* beside the 48 rows that there are */
    for (uint32_t l = 0; l < r.m.desc->layers; l++)
        assert_ok(vptq_forward_block(r.f, l, r.starts, COUNT - 2,
                                     r.hidden + 2 * LENGTH * HIDDEN, NULL, NULL, &err),
                  &err);
    assert_true(most_rows >= 3 * LENGTH && most_rows <= 6 * LENGTH);
    assert_same_f32(r.hidden, want, ROWS * HIDDEN);

    /* one long sequence cannot be cut */
    leave(2000);
    r.starts[1] = ROWS;
    assert_fails(vptq_forward_block(r.f, 1, r.starts, 1, r.hidden, NULL, NULL, &err),
                 VPTQ_E_NOMEM, &err,
                 "layer 1: activations of 288 tokens (shorter windows need less): ");
    assert_non_null(strstr(err.text, " bytes of device memory: "));
    cuda_emu_memory(0);
    assert_ok(vptq_forward_block(r.f, 1, r.starts, 1, r.hidden, NULL, NULL, &err), &err);
    rig_close(&r);
}

/* Packed linears are decoded for windows, and cut as plain ones are; what they take on the
 * device counts. */
static void test_packed_models_are_cut_alike(void **state)
{
    (void)state;
    enum { SEQUENCES = 60, TOKENS = 10 };
    rig r;
    size_t starts[SEQUENCES + 1];
    for (size_t s = 0; s <= SEQUENCES; s++)
        starts[s] = s * TOKENS;
    rig_open_model(&r, "tests/golden/packed_mistral");
    const vptq_weight *linear = r.m.blocks[0].linear;
    assert_int_equal(vptq_weight_gemv_rows(&linear[0], &r.dev, true), 256);
    assert_int_equal(vptq_weight_gemv_rows(&linear[0], &r.dev, false), 0);
    assert_int_equal(vptq_forward_piece(r.f, linear, starts, NULL, 0, SEQUENCES), SEQUENCES);
    leave(100000); /* for a few dozen rows */
    for (size_t first = 0; first < SEQUENCES; first += 30) {
        const size_t rows = vptq_forward_fit(r.f, (SEQUENCES - first) * TOKENS, 0, false);
        const size_t end = vptq_forward_piece(r.f, linear, starts, NULL, first, SEQUENCES);
        assert_in_range(rows, 16, 99);
        assert_in_range(end - first, 1, rows / TOKENS);
    }
    assert_int_equal(vptq_forward_piece(r.f, linear, starts, NULL, 59, SEQUENCES), SEQUENCES);
    rig_close(&r);
}

static void test_steps_need_their_cache(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    const int32_t id = 3;
    float logits[VOCAB];
    rig_open(&r);
    leave(5000);
    assert_fails(vptq_forward_step(r.f, &id, 1, logits, &err), VPTQ_E_NOMEM, &err,
                 "cache of 288 tokens (a shorter context needs less): ");
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_less_memory_means_smaller_pieces),
        cmocka_unit_test(test_memory_may_shrink),
        cmocka_unit_test(test_packed_models_are_cut_alike),
        cmocka_unit_test(test_steps_need_their_cache),
    };
    return vtest_main(argc, argv, tests);
}
