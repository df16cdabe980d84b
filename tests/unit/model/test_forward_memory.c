/* The forward pass on a device with its own memory.  All arrays of an op lie in it.  If memory
 * is short, fewer rows run at once, with the same bits; if nothing fits, the run fails with one
 * sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/forward_internal.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { HIDDEN = VRIG_HIDDEN, VOCAB = VRIG_VOCAB, TOKENS = VRIG_TOKENS };
enum { LENGTH = 24, COUNT = 12, ROWS = COUNT * LENGTH };

/* ---- arrays of the ops ---- */

/* Blocks that checked_alloc has allocated.  The checked ops assert that their arrays lie in
 * them and run the reference. */
enum { MAX_BLOCKS = 64 };
static struct {
    char *data[MAX_BLOCKS];
    size_t size[MAX_BLOCKS];
} blocks;

static bool on_device(const void *p)
{
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks.data[i] && (const char *)p >= blocks.data[i] &&
            (const char *)p < blocks.data[i] + blocks.size[i])
            return true;
    return false;
}

static vptq_status checked_alloc(vptq_dev *dev, size_t count, size_t size, void **ptr,
                                 vptq_err *err)
{
    vptq_status st = vptq_backend_ref.alloc(dev, count, size, ptr, err);
    int i = 0;
    while (i < MAX_BLOCKS && blocks.data[i])
        i++;
    assert_true(i < MAX_BLOCKS);
    blocks.data[i] = st ? NULL : *ptr;
    blocks.size[i] = count * size;
    return st;
}

static void checked_release(vptq_dev *dev, void *ptr)
{
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks.data[i] == ptr)
            blocks.data[i] = NULL;
    vptq_backend_ref.release(dev, ptr);
}

static vptq_status checked_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                  vptq_err *err)
{
    assert_true(on_device(dst) && !on_device(src));
    return vptq_backend_ref.upload(dev, dst, src, bytes, err);
}

static vptq_status checked_download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                    vptq_err *err)
{
    assert_true(!on_device(dst) && on_device(src));
    return vptq_backend_ref.download(dev, dst, src, bytes, err);
}

static vptq_status checked_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    assert_true(on_device(g->a) && on_device(g->b) && on_device(g->c));
    assert_true(!g->bias || on_device(g->bias));
    return vptq_backend_ref.gemm(dev, g, err);
}

static vptq_status checked_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type,
                                const void *w, const vptq_gemv_args *g, vptq_err *err)
{
    assert_true(on_device(w) && on_device(g->x) && on_device(g->y));
    assert_true(!g->bias || on_device(g->bias));
    return vptq_backend_ref.gemv(dev, out, in, type, w, g, err);
}

static vptq_status checked_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err)
{
    assert_true(on_device(a->table) && on_device(a->ids) && on_device(a->out));
    return vptq_backend_ref.embed(dev, a, err);
}

static vptq_status checked_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err)
{
    assert_true(on_device(a->x) && on_device(a->weight) && on_device(a->y));
    return vptq_backend_ref.rmsnorm(dev, a, err);
}

static vptq_status checked_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err)
{
    assert_true(on_device(a->x) && on_device(a->cos_table) && on_device(a->sin_table));
    return vptq_backend_ref.rope(dev, a, err);
}

static vptq_status checked_soft_cap(vptq_dev *dev, const vptq_soft_cap_args *a, vptq_err *err)
{
    assert_true(on_device(a->x));
    return vptq_backend_ref.soft_cap(dev, a, err);
}

static vptq_status checked_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err)
{
    assert_true(on_device(a->logits) && on_device(a->targets) && on_device(a->state));
    return vptq_backend_ref.nll(dev, a, err);
}

static vptq_backend checked_backend(void)
{
    vptq_backend b = vptq_backend_ref;
    b.host_memory = false;
    b.alloc = checked_alloc;
    b.release = checked_release;
    b.upload = b.upload_new = checked_upload;
    b.download = checked_download;
    b.gemm = checked_gemm;
    b.gemv = checked_gemv;
    b.embed = checked_embed;
    b.rmsnorm = checked_rmsnorm;
    b.rope = checked_rope;
    b.soft_cap = checked_soft_cap;
    b.nll = checked_nll;
    return b;
}

typedef struct results {
    float hidden[TOKENS * VRIG_MAX_HIDDEN], norm[TOKENS * VRIG_MAX_HIDDEN];
    float logits[TOKENS * VOCAB], last[VOCAB];
    vptq_nll_state nll[TOKENS];
} results;

/* Runs every part of the forward pass on the reference, with these ops if not NULL. */
static void run_all(const char *family, const vptq_backend *ops, results *x)
{
    const size_t starts[3] = {0, 13, TOKENS};
    vrig r;
    vptq_err err = {0};
    char path[128];
    int32_t *ids = vrig_tiny_ids(family);
    snprintf(path, sizeof path, "tests/golden/tiny_%s", family);
    vrig_open_on(&r, path, NULL, "ref", 2);
    r.dev.ops = ops ? ops : r.dev.ops;
    assert_ok(vptq_forward_open(&r.m, &r.dev, TOKENS, &r.f, &err), &err);
    vrig_run_blocks(&r, ids, starts, 2, x->hidden);
    assert_ok(vptq_forward_logits(r.f, TOKENS, x->hidden, x->logits, &err), &err);
    assert_ok(vptq_forward_normalized(r.f, TOKENS, x->hidden, x->norm, &err), &err);
    assert_ok(vptq_forward_loss(r.f, TOKENS, x->hidden, ids, x->nll, &err), &err);
    assert_ok(vrig_step(r.f, ids, 9, x->last, &err), &err);
    assert_ok(vrig_step(r.f, ids + 9, 1, x->last, &err), &err);
    vrig_close(&r);
    free(ids);
}

static void test_arrays_are_in_device_memory(void **state)
{
    (void)state;
    const vptq_backend checked = checked_backend();
    for (int i = 0; i < VRIG_DEVICE_FAMILIES; i++) {
        results host = {.last = {0}}, device = host;
        run_all(vrig_families[i], NULL, &host);
        run_all(vrig_families[i], &checked, &device);
        assert_same_f32(device.hidden, host.hidden, TOKENS * VRIG_MAX_HIDDEN);
        assert_same_f32(device.norm, host.norm, TOKENS * VRIG_MAX_HIDDEN);
        assert_same_f32(device.logits, host.logits, TOKENS * VOCAB);
        assert_same_f32(device.last, host.last, VOCAB);
        for (int t = 0; t < TOKENS; t++)
            assert_true(host.nll[t].sum == device.nll[t].sum &&
                        host.nll[t].target == device.nll[t].target);
    }
}

/* ---- short of memory ---- */

typedef struct rig {
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    vptq_forward *f;
    size_t starts[COUNT + 1];
    float *hidden; /* [ROWS, HIDDEN] */
} rig;

/* The largest number of rows in a product so far. */
static size_t max_rows;

static vptq_status counting_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    max_rows = g->m > max_rows ? g->m : max_rows;
    return vptq_backend_emu()->gemm(dev, g, err);
}

static vptq_status counting_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type,
                                 const void *w, const vptq_gemv_args *g, vptq_err *err)
{
    max_rows = g->n > max_rows ? g->n : max_rows;
    return vptq_backend_emu()->gemv(dev, out, in, type, w, g, err);
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
    counting.gemv = counting_gemv;
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
    max_rows = 0;
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
        st = vptq_forward_block(r->f, l, r->starts, count, r->hidden, err);
    return st;
}

/* Limits the device to `bytes` more than are allocated. */
static void limit_memory(size_t bytes)
{
    cuda_emu_memory(cuda_emu_memory_used() + bytes);
}

/* Bytes of a row of a group: activations and hidden state. */
static size_t row_bytes(const rig *r)
{
    const vptq_model_desc *d = r->m.desc;
    const size_t q = (size_t)d->heads * d->head_dim, kv = (size_t)d->kv_heads * d->head_dim;
    const size_t gate = d->intermediate > q ? d->intermediate : q;
    return (2 * d->hidden + q + 2 * kv + gate + d->intermediate) * sizeof(float);
}

static void test_smaller_groups_when_memory_is_short(void **state)
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
    assert_int_equal(max_rows, ROWS);
    assert_ok(vptq_forward_loss(whole.f, ROWS, whole.hidden, targets, nll[0], &err), &err);
    memcpy(want, whole.hidden, sizeof want);
    rig_close(&whole);

    rig_open(&cut);
    limit_memory(180 * row_bytes(&cut));
    assert_ok(run_blocks(&cut, COUNT, &err), &err);
    /* 90 rows fit into half of it, then more into half of the rest */
    assert_true(max_rows >= 3 * LENGTH && max_rows < 180);
    assert_same_f32(cut.hidden, want, ROWS * HIDDEN);
    vptq_forward_close(cut.f); /* the loss next, without the memory of the blocks */
    cuda_emu_memory(0);
    assert_ok(vptq_forward_open(&cut.m, &cut.dev, ROWS, &cut.f, &err), &err);
    limit_memory(400000);
    max_rows = 0;
    assert_ok(vptq_forward_loss(cut.f, ROWS, cut.hidden, targets, nll[1], &err), &err);
    assert_true(max_rows >= 64 && max_rows <= 128);
    for (int i = 0; i < ROWS; i++)
        assert_true(nll[1][i].max == nll[0][i].max && nll[1][i].sum == nll[0][i].sum &&
                    nll[1][i].target == nll[0][i].target &&
                    nll[1][i].best_id == nll[0][i].best_id);
    rig_close(&cut);
}

/* Another program may take memory between two batches. */
static void test_memory_that_shrinks_between_runs(void **state)
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
    assert_int_equal(max_rows, 2 * LENGTH);
    limit_memory(100 * row_bytes(&r)); /* in addition to the 48 rows allocated */
    for (uint32_t l = 0; l < r.m.desc->layers; l++)
        assert_ok(vptq_forward_block(r.f, l, r.starts, COUNT - 2,
                                     r.hidden + 2 * LENGTH * HIDDEN, &err),
                  &err);
    assert_true(max_rows >= 3 * LENGTH && max_rows <= 6 * LENGTH);
    assert_same_f32(r.hidden, want, ROWS * HIDDEN);

    /* a single sequence is never cut */
    limit_memory(2000);
    r.starts[1] = ROWS;
    assert_fails(vptq_forward_block(r.f, 1, r.starts, 1, r.hidden, &err), VPTQ_E_NOMEM, &err,
                 "layer 1: activations of 288 tokens (shorter windows need less): ");
    assert_non_null(strstr(err.text, " bytes of device memory: "));
    cuda_emu_memory(0);
    assert_ok(vptq_forward_block(r.f, 1, r.starts, 1, r.hidden, &err), &err);
    rig_close(&r);
}

/* Packed linear layers are decoded for windows like plain ones; their memory on the device
 * counts when groups are cut. */
static void test_packed_weights_count(void **state)
{
    (void)state;
    enum { SEQUENCES = 60, EACH = 10 };
    rig r;
    size_t starts[SEQUENCES + 1];
    for (size_t s = 0; s <= SEQUENCES; s++)
        starts[s] = s * EACH;
    rig_open_model(&r, "tests/golden/packed_mistral");
    const vptq_weight *linear = r.m.blocks[0].linear;
    assert_int_equal(vptq_weight_gemv_rows(&linear[0], &r.dev, true), 256);
    assert_int_equal(vptq_weight_gemv_rows(&linear[0], &r.dev, false), 0);
    assert_int_equal(vptq_forward_piece(r.f, linear, starts, NULL, 0, SEQUENCES), SEQUENCES);
    limit_memory(100000); /* for a few dozen rows */
    for (size_t first = 0; first < SEQUENCES; first += 30) {
        const size_t rows = vptq_forward_fit(r.f, (SEQUENCES - first) * EACH, 0, false);
        const size_t end = vptq_forward_piece(r.f, linear, starts, NULL, first, SEQUENCES);
        assert_in_range(rows, 16, 99);
        assert_in_range(end - first, 1, rows / EACH);
    }
    assert_int_equal(vptq_forward_piece(r.f, linear, starts, NULL, 59, SEQUENCES), SEQUENCES);
    rig_close(&r);
}

/* However many rows fit, none of the steps has at most 16, which cuda multiplies differently.
 */
static void test_no_step_has_few_rows(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    for (size_t most = 33; most < 70; most++)
        for (size_t n = 1; n < 200; n++)
            for (size_t at = 0, rows; at < n; at += rows) {
                rows = vptq_forward_rows(r.f, n - at, most);
                assert_in_range(rows, n < 17 ? n : 17, most < n - at ? most : n - at);
            }
    rig_close(&r);
}

static void test_cache_that_does_not_fit(void **state)
{
    (void)state;
    rig r;
    vptq_err err;
    const int32_t id = 3;
    float logits[VOCAB];
    rig_open(&r);
    limit_memory(5000);
    assert_fails(vrig_step(r.f, &id, 1, logits, &err), VPTQ_E_NOMEM, &err,
                 "cache of 288 tokens (a shorter context needs less): ");
    rig_close(&r);
}

VTEST_MAIN(cmocka_unit_test(test_arrays_are_in_device_memory),
           cmocka_unit_test(test_smaller_groups_when_memory_is_short),
           cmocka_unit_test(test_memory_that_shrinks_between_runs),
           cmocka_unit_test(test_packed_weights_count),
           cmocka_unit_test(test_no_step_has_few_rows),
           cmocka_unit_test(test_cache_that_does_not_fit))
