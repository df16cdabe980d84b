/* The forward pass: logits of every family against transformers, the same result by every road
 * (blocks, groups, cached steps, backends, threads), hooks, bad input. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/forward.h"
#include "tests/emu/emu.h"
#include "tests/support/vtest.h"

#define TINY "tests/golden/tiny_"
static const char *const families[] = {"llama3", "mistral", "qwen2", "qwen3"};
enum { FAMILIES = 4, TINY_TOKENS = 40, TINY_VOCAB = 48, TINY_HIDDEN = 32 };

/* ---- a model with its device ---- */

typedef struct rig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    vptq_forward *f;
} rig;

static void rig_open(rig *r, const char *path, const char *backend, size_t length)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    *r = (rig){.f = NULL};
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.mem = &r->mem, .threads = 2};
    assert_ok(vptq_device_open(&r->ctx, backend, &r->dev, &err), &err);
    assert_ok(vptq_model_open(&r->ctx, path, &opt, false, &r->m, &err), &err);
    assert_ok(vptq_forward_open(&r->m, &r->dev, length, &r->f, &err), &err);
}

static void rig_close(rig *r)
{
    vptq_forward_close(r->f);
    vptq_model_release(&r->m);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
}

static void tiny_path(char path[128], const char *family, const char *file)
{
    snprintf(path, 128, TINY "%s%s%s", family, file ? "/" : "", file ? file : "");
}

static void *xmalloc(size_t n)
{
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

static int32_t *load_ids(const char *path, size_t *n)
{
    int32_t *ids = (int32_t *)(void *)vtest_read_file(path, n);
    *n /= sizeof *ids;
    return ids;
}

static int32_t *tiny_ids(const char *family)
{
    char path[128];
    size_t n;
    tiny_path(path, family, "ids.i32");
    int32_t *ids = load_ids(path, &n);
    assert_int_equal(n, TINY_TOKENS);
    return ids;
}

/* Hidden states behind all blocks, for sequences as given. */
static void run_blocks(rig *r, const int32_t *ids, const size_t *starts, size_t count,
                       float *hidden)
{
    vptq_err err = {0};
    assert_ok(vptq_forward_embed(r->f, ids, starts[count], hidden, &err), &err);
    for (uint32_t l = 0; l < r->m.desc->layers; l++)
        assert_ok(vptq_forward_block(r->f, l, starts, count, hidden, NULL, NULL, &err), &err);
}

static double largest(const float *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
    return most;
}

/* Logits of all positions of one sequence against a golden array. */
static void check_logits(const char *model, const char *backend, const int32_t *ids, size_t n,
                         const char *golden, double tolerance)
{
    rig r;
    vptq_err err = {0};
    vtest_npy want;
    size_t starts[2] = {0, n};
    rig_open(&r, model, backend, n);
    vtest_npy_load(golden, &want);
    assert_int_equal(want.count, n * r.m.desc->vocab);
    float *hidden = xmalloc(n * r.m.desc->hidden * sizeof *hidden);
    float *logits = xmalloc(want.count * sizeof *logits);
    run_blocks(&r, ids, starts, 1, hidden);
    assert_ok(vptq_forward_logits(r.f, n, hidden, logits, &err), &err);
    const float *w = vtest_npy_as(&want, "f4");
    assert_close(logits, w, want.count, tolerance * largest(w, want.count), 0);
    free(hidden);
    free(logits);
    vtest_npy_free(&want);
    rig_close(&r);
}

/* ---- families ---- */

static void test_families(void **state)
{
    (void)state;
    const char *const backends[] = {"ref", "cpu"};
    for (int i = 0; i < FAMILIES; i++) {
        char model[128], golden[128];
        tiny_path(model, families[i], NULL);
        tiny_path(golden, families[i], "logits.npy");
        int32_t *ids = tiny_ids(families[i]);
        for (int b = 0; b < 2; b++)
            check_logits(model, backends[b], ids, TINY_TOKENS, golden, 1e-4);
        free(ids);
    }
}

/* Packed models that the tools wrote, and the logits that upstream's loaders gave for them. */
static void test_packed(void **state)
{
    (void)state;
    const char *const backends[] = {"ref", "cpu"};
    for (int i = 0; i < FAMILIES; i++) {
        char model[128], golden[160];
        snprintf(model, sizeof model, "tests/golden/packed_%s", families[i]);
        snprintf(golden, sizeof golden, "%s/logits.npy", model);
        int32_t *ids = tiny_ids(families[i]);
        for (int b = 0; b < 2; b++)
            check_logits(model, backends[b], ids, TINY_TOKENS, golden, 1e-5);
        free(ids);
    }
}

/* The logits behind every step, with the cache filled in pieces of several sizes: a few rows go
 * through the weights as they are stored, more of them through converted ones. */
static void check_steps(const char *model, const char *golden, const int32_t *ids)
{
    const size_t pieces[][4] = {{1, 1, 1, 37}, {7, 20, 12, 1}, {40, 0, 0, 0}};
    rig r;
    vptq_err err = {0};
    float logits[TINY_VOCAB];
    vtest_npy want;
    vtest_npy_load(golden, &want);
    const float *w = vtest_npy_as(&want, "f4");
    rig_open(&r, model, "cpu", TINY_TOKENS);
    double limit = 1e-4 * largest(w, want.count);
    for (int p = 0; p < 3; p++) {
        vptq_forward_reset(r.f);
        for (size_t k = 0, at = 0; k < 4 && pieces[p][k]; at += pieces[p][k++]) {
            assert_ok(vptq_forward_step(r.f, ids + at, pieces[p][k], logits, &err), &err);
            assert_close(logits, w + (at + pieces[p][k] - 1) * TINY_VOCAB, TINY_VOCAB, limit,
                         0);
        }
    }
    assert_fails(vptq_forward_step(r.f, ids, 1, logits, &err), VPTQ_E_ARG, &err, "cache of 40");
    vtest_npy_free(&want);
    rig_close(&r);
}

/* An id in place of the logits: the row sample's choice of them. */
static void check_next(const char *model, const char *backend, const int32_t *ids)
{
    static const vptq_forward_choice choices[] = {
        {0, 1, 0}, {1, 1, 0.1}, {1, 0.5, 0.9}, {3, 0.9, 0.5}};
    rig r;
    vptq_device ref;
    vptq_err err = {0};
    float logits[TINY_VOCAB];
    rig_open(&r, model, backend, TINY_TOKENS);
    assert_ok(vptq_device_open(&r.ctx, "ref", &ref, &err), &err);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const vptq_forward_choice *c = &choices[i];
        int32_t next, want;
        const vptq_sample_args s = {.n = 1,
                                    .vocab = TINY_VOCAB,
                                    .logits = logits,
                                    .ld = TINY_VOCAB,
                                    .temperature = c->temperature,
                                    .top_p = c->top_p,
                                    .u = &c->u,
                                    .ids = &want};
        vptq_forward_reset(r.f);
        assert_ok(vptq_forward_step(r.f, ids, 7 + i, logits, &err), &err);
        vptq_forward_reset(r.f);
        assert_ok(vptq_forward_next(r.f, ids, 7 + i, c, &next, &err), &err);
        assert_ok(ref.ops->sample(ref.state, &s, &err), &err);
        assert_int_equal(next, want);
    }
    assert_fails(vptq_forward_next(r.f, ids, TINY_TOKENS, choices, &(int32_t){0}, &err),
                 VPTQ_E_ARG, &err, "cache of 40");
    vptq_device_close(&ref);
    rig_close(&r);
}

static void test_next(void **state)
{
    (void)state;
    static const char *const backends[] = {"ref", "cpu", "emu"};
    char model[128];
    int32_t *ids = tiny_ids("qwen3");
    assert_string_equal(vptq_backend_emu()->name, "emu"); /* which so is linked */
    tiny_path(model, "qwen3", "");
    for (int b = 0; b < 3; b++)
        check_next(model, backends[b], ids);
    free(ids);
}

static void test_steps(void **state)
{
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        char model[160], golden[192];
        int32_t *ids = tiny_ids(families[i]);
        tiny_path(model, families[i], NULL);
        tiny_path(golden, families[i], "logits.npy");
        check_steps(model, golden, ids);
        snprintf(model, sizeof model, "tests/golden/packed_%s", families[i]);
        snprintf(golden, sizeof golden, "%s/logits.npy", model);
        check_steps(model, golden, ids);
        free(ids);
    }
}

/* ---- groups and threads ---- */

/* Sequences of 1, 5, 12, 22 tokens in one call give what each gives alone. */
static void test_groups(void **state)
{
    (void)state;
    const size_t starts[5] = {0, 1, 6, 18, TINY_TOKENS};
    for (int i = 0; i < FAMILIES; i++) {
        rig r;
        char path[128];
        float together[TINY_TOKENS * TINY_HIDDEN], alone[TINY_TOKENS * TINY_HIDDEN];
        int32_t *ids = tiny_ids(families[i]);
        tiny_path(path, families[i], NULL);
        rig_open(&r, path, "cpu", 22);
        run_blocks(&r, ids, starts, 4, together);
        for (int s = 0; s < 4; s++) {
            size_t one[2] = {0, starts[s + 1] - starts[s]};
            run_blocks(&r, ids + starts[s], one, 1, alone + starts[s] * TINY_HIDDEN);
        }
        assert_close(together, alone, TINY_TOKENS * TINY_HIDDEN, 1e-5, 1e-5);
        free(ids);
        rig_close(&r);
    }
}

static void test_group_cut(void **state)
{
    (void)state;
    const size_t starts[] = {0, 1000, 2000, 2048, 2049, 6000, 6001};
    assert_int_equal(vptq_forward_group(starts, 6, 0), 3); /* exactly full */
    assert_int_equal(vptq_forward_group(starts, 6, 1), 4);
    assert_int_equal(vptq_forward_group(starts, 6, 3), 4);
    assert_int_equal(vptq_forward_group(starts, 6, 4), 5); /* one that is longer than a group */
    assert_int_equal(vptq_forward_group(starts, 6, 5), 6);
}

static void test_threads(void **state)
{
    (void)state;
    const size_t starts[3] = {0, 17, TINY_TOKENS};
    float result[2][TINY_TOKENS * TINY_HIDDEN];
    int32_t *ids = tiny_ids("qwen3");
    for (int t = 0; t < 2; t++) {
        rig r = {.f = NULL};
        vptq_err err = {0};
        vptq_checkpoint_options opt = {.tokenizer = NULL};
        vptq_mem_init(&r.mem, 0);
        r.ctx = (vptq_ctx){.mem = &r.mem, .threads = t ? 3 : 1};
        assert_ok(vptq_device_open(&r.ctx, "cpu", &r.dev, &err), &err);
        assert_ok(vptq_model_open(&r.ctx, TINY "qwen3", &opt, false, &r.m, &err), &err);
        assert_ok(vptq_forward_open(&r.m, &r.dev, TINY_TOKENS, &r.f, &err), &err);
        run_blocks(&r, ids, starts, 2, result[t]);
        rig_close(&r);
    }
    assert_same_f32(result[0], result[1], TINY_TOKENS * TINY_HIDDEN);
    free(ids);
}

/* ---- a device with memory of its own ---- */

/* The reference rows behind a table that says its memory is not the host's: every array that a
 * row gets must lie in what was allocated from it. */
enum { MAX_PIECES = 64 };
static struct {
    char *at[MAX_PIECES];
    size_t size[MAX_PIECES];
} pieces;

static bool on_device(const void *p)
{
    for (int i = 0; i < MAX_PIECES; i++)
        if (pieces.at[i] && (const char *)p >= pieces.at[i] &&
            (const char *)p < pieces.at[i] + pieces.size[i])
            return true;
    return false;
}

static vptq_status far_alloc(vptq_dev *dev, size_t count, size_t size, void **ptr,
                             vptq_err *err)
{
    vptq_status st = vptq_backend_ref.alloc(dev, count, size, ptr, err);
    int i = 0;
    while (i < MAX_PIECES && pieces.at[i])
        i++;
    assert_true(i < MAX_PIECES);
    pieces.at[i] = st ? NULL : *ptr;
    pieces.size[i] = count * size;
    return st;
}

static void far_release(vptq_dev *dev, void *ptr)
{
    for (int i = 0; i < MAX_PIECES; i++)
        if (pieces.at[i] == ptr)
            pieces.at[i] = NULL;
    vptq_backend_ref.release(dev, ptr);
}

static vptq_status far_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                              vptq_err *err)
{
    assert_true(on_device(dst) && !on_device(src));
    return vptq_backend_ref.upload(dev, dst, src, bytes, err);
}

static vptq_status far_download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                vptq_err *err)
{
    assert_true(!on_device(dst) && on_device(src));
    return vptq_backend_ref.download(dev, dst, src, bytes, err);
}

static vptq_status far_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    assert_true(on_device(g->a) && on_device(g->b) && on_device(g->c));
    assert_true(!g->bias || on_device(g->bias));
    return vptq_backend_ref.gemm(dev, g, err);
}

static vptq_status far_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err)
{
    assert_true(on_device(a->x) && on_device(a->weight) && on_device(a->y));
    return vptq_backend_ref.rmsnorm(dev, a, err);
}

static vptq_status far_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err)
{
    assert_true(on_device(a->x) && on_device(a->cos_table) && on_device(a->sin_table));
    return vptq_backend_ref.rope(dev, a, err);
}

static vptq_status far_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err)
{
    assert_true(on_device(a->logits) && on_device(a->targets) && on_device(a->state));
    return vptq_backend_ref.nll(dev, a, err);
}

static void test_device_memory(void **state)
{
    (void)state;
    vptq_backend far = vptq_backend_ref;
    far.host_memory = false;
    far.alloc = far_alloc;
    far.release = far_release;
    far.upload = far_upload;
    far.download = far_download;
    far.gemm = far_gemm;
    far.rmsnorm = far_rmsnorm;
    far.rope = far_rope;
    far.nll = far_nll;
    const size_t starts[3] = {0, 13, TINY_TOKENS};
    for (int i = 0; i < FAMILIES; i++) {
        rig r;
        vptq_err err = {0};
        char path[128];
        float hidden[2][TINY_TOKENS * TINY_HIDDEN], norm[2][TINY_TOKENS * TINY_HIDDEN];
        float logits[2][TINY_TOKENS * TINY_VOCAB], last[2][TINY_VOCAB];
        vptq_nll_state nll[2][TINY_TOKENS];
        int32_t *ids = tiny_ids(families[i]);
        tiny_path(path, families[i], NULL);
        for (int k = 0; k < 2; k++) {
            rig_open(&r, path, "ref", TINY_TOKENS);
            if (k) {
                vptq_forward_close(r.f);
                r.dev.ops = &far;
                assert_ok(vptq_forward_open(&r.m, &r.dev, TINY_TOKENS, &r.f, &err), &err);
            }
            run_blocks(&r, ids, starts, 2, hidden[k]);
            assert_ok(vptq_forward_logits(r.f, TINY_TOKENS, hidden[k], logits[k], &err), &err);
            assert_ok(vptq_forward_final_norm(r.f, TINY_TOKENS, hidden[k], norm[k], &err),
                      &err);
            assert_ok(vptq_forward_loss(r.f, TINY_TOKENS, hidden[k], ids, nll[k], &err), &err);
            assert_ok(vptq_forward_step(r.f, ids, 9, last[k], &err), &err);
            assert_ok(vptq_forward_step(r.f, ids + 9, 1, last[k], &err), &err);
            rig_close(&r);
        }
        assert_same_f32(hidden[1], hidden[0], TINY_TOKENS * TINY_HIDDEN);
        assert_same_f32(norm[1], norm[0], TINY_TOKENS * TINY_HIDDEN);
        assert_same_f32(logits[1], logits[0], TINY_TOKENS * TINY_VOCAB);
        assert_same_f32(last[1], last[0], TINY_VOCAB);
        for (int t = 0; t < TINY_TOKENS; t++)
            assert_true(nll[0][t].sum == nll[1][t].sum && nll[0][t].target == nll[1][t].target);
        free(ids);
    }
}

/* ---- hooks ---- */

enum { TAP_MAX = 64 };
typedef struct hooks {
    const vptq_model *m;
    size_t rows[VPTQ_INPUT_COUNT], calls[VPTQ_INPUT_COUNT];
    float x[VPTQ_INPUT_COUNT][TINY_TOKENS * TAP_MAX];
} hooks;

static const size_t hook_starts[3] = {0, 13, TINY_TOKENS};

static vptq_status record_hook(void *arg, vptq_input input, size_t sequence, size_t tokens,
                               size_t dim, const float *x, vptq_err *err)
{
    hooks *t = arg;
    (void)err;
    assert_int_equal(sequence, t->calls[input]++);
    assert_int_equal(tokens, hook_starts[sequence + 1] - hook_starts[sequence]);
    assert_int_equal(dim, vptq_input_size(t->m->desc, input));
    assert_true(dim <= TAP_MAX);
    memcpy(t->x[input] + t->rows[input] * dim, x, tokens * dim * sizeof *x);
    t->rows[input] += tokens;
    return VPTQ_OK;
}

/* y [out] += W x in double. */
static void add_linear(rig *r, vptq_linear l, const float *x, double *y)
{
    vptq_err err = {0};
    float row[TAP_MAX];
    const vptq_weight *w = &r->m.blocks[0].linear[l];
    assert_true(w->cols <= TAP_MAX);
    for (size_t o = 0; o < w->rows; o++) {
        assert_ok(vptq_weight_read(w, &r->dev, o, 1, row, &err), &err);
        for (size_t i = 0; i < w->cols; i++)
            y[o] += (double)row[i] * (double)x[i];
    }
}

/* h [TINY_HIDDEN] normalized, in double. */
static void norm_row(rig *r, const vptq_tensor *weight, const double *h, float *out)
{
    vptq_err err = {0};
    float w[TINY_HIDDEN];
    double sum = 0;
    assert_ok(vptq_tensor_read(weight, 0, 1, w, &err), &err);
    for (int i = 0; i < TINY_HIDDEN; i++)
        sum += h[i] * h[i];
    for (int i = 0; i < TINY_HIDDEN; i++)
        out[i] = (float)(h[i] / sqrt(sum / TINY_HIDDEN + (double)r->m.desc->norm_eps) *
                         (double)w[i]);
}

/* What the hooks saw, put through the linears by hand, gives the block's output. */
static void test_hooks(void **state)
{
    (void)state;
    rig r;
    vptq_err err = {0};
    float before[TINY_TOKENS * TINY_HIDDEN], after[TINY_TOKENS * TINY_HIDDEN];
    hooks *t = xmalloc(sizeof *t);
    int32_t *ids = tiny_ids("qwen3");
    rig_open(&r, TINY "qwen3", "cpu", TINY_TOKENS);
    memset(t, 0, sizeof *t);
    t->m = &r.m;
    assert_ok(vptq_forward_embed(r.f, ids, TINY_TOKENS, before, &err), &err);
    memcpy(after, before, sizeof after);
    assert_ok(vptq_forward_block(r.f, 0, hook_starts, 2, after, record_hook, t, &err), &err);
    const vptq_block *b = &r.m.blocks[0];
    size_t q = (size_t)r.m.desc->heads * r.m.desc->head_dim, f = r.m.desc->intermediate;
    for (size_t i = 0; i < TINY_TOKENS; i++) {
        double h[TINY_HIDDEN];
        float x[TINY_HIDDEN];
        for (size_t c = 0; c < TINY_HIDDEN; c++)
            h[c] = (double)before[i * TINY_HIDDEN + c];
        norm_row(&r, b->input_norm, h, x);
        assert_close(t->x[VPTQ_INPUT_QKV] + i * TINY_HIDDEN, x, TINY_HIDDEN, 1e-5, 1e-5);
        add_linear(&r, VPTQ_LINEAR_O, t->x[VPTQ_INPUT_O] + i * q, h);
        norm_row(&r, b->post_norm, h, x);
        assert_close(t->x[VPTQ_INPUT_UP] + i * TINY_HIDDEN, x, TINY_HIDDEN, 1e-5, 1e-5);
        add_linear(&r, VPTQ_LINEAR_DOWN, t->x[VPTQ_INPUT_DOWN] + i * f, h);
        for (size_t c = 0; c < TINY_HIDDEN; c++)
            x[c] = (float)h[c];
        assert_close(after + i * TINY_HIDDEN, x, TINY_HIDDEN, 1e-5, 1e-5);
    }
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        assert_int_equal(t->calls[i], 2);
    free(ids);
    free(t);
    rig_close(&r);
}

/* Two halves are the block, and a run that stops at an input changes nothing. */
static void test_halves(void **state)
{
    (void)state;
    rig r;
    vptq_err err = {0};
    float whole[TINY_TOKENS * TINY_HIDDEN], halves[TINY_TOKENS * TINY_HIDDEN];
    float before[TINY_TOKENS * TINY_HIDDEN];
    hooks *t = xmalloc(sizeof *t), *u = xmalloc(sizeof *u);
    int32_t *ids = tiny_ids("qwen3");
    rig_open(&r, TINY "qwen3", "cpu", TINY_TOKENS);
    memset(t, 0, sizeof *t);
    t->m = &r.m;
    assert_ok(vptq_forward_embed(r.f, ids, TINY_TOKENS, whole, &err), &err);
    memcpy(halves, whole, sizeof halves);
    assert_ok(vptq_forward_block(r.f, 0, hook_starts, 2, whole, record_hook, t, &err), &err);
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        const size_t count = TINY_TOKENS * vptq_input_size(r.m.desc, (vptq_input)i);
        vptq_block_hooks now = {.hook = record_hook, .arg = u, .stop = true};
        memset(u, 0, sizeof *u);
        u->m = &r.m;
        now.last = (vptq_input)i;
        now.half = i <= VPTQ_INPUT_O ? VPTQ_BLOCK_ATTENTION : VPTQ_BLOCK_FEED_FORWARD;
        memcpy(before, halves, sizeof before);
        assert_ok(vptq_forward_block_with(r.f, 0, hook_starts, 2, halves, &now, &err), &err);
        assert_same_f32(halves, before, TINY_TOKENS * TINY_HIDDEN);
        assert_same_f32(u->x[i], t->x[i], count);
        for (int later = i + 1; later < VPTQ_INPUT_COUNT; later++)
            assert_int_equal(u->calls[later], 0);
        now.stop = false;
        now.hook = NULL;
        if (i == VPTQ_INPUT_O || i == VPTQ_INPUT_DOWN)
            assert_ok(vptq_forward_block_with(r.f, 0, hook_starts, 2, halves, &now, &err),
                      &err);
    }
    assert_same_f32(halves, whole, TINY_TOKENS * TINY_HIDDEN);
    free(ids);
    free(t);
    free(u);
    rig_close(&r);
}

static vptq_status failing_hook(void *arg, vptq_input input, size_t sequence, size_t tokens,
                                size_t dim, const float *x, vptq_err *err)
{
    (void)arg, (void)sequence, (void)tokens, (void)dim, (void)x;
    return input == VPTQ_INPUT_DOWN ? vptq_fail(err, VPTQ_E_IO, "hook") : VPTQ_OK;
}

/* ---- head ---- */

static void test_loss(void **state)
{
    (void)state;
    rig r;
    vptq_err err = {0};
    vtest_npy want;
    size_t starts[2] = {0, TINY_TOKENS};
    float hidden[TINY_TOKENS * TINY_HIDDEN];
    int32_t targets[TINY_TOKENS];
    vptq_nll_state nll[TINY_TOKENS];
    int32_t *ids = tiny_ids("llama3");
    vtest_npy_load(TINY "llama3/logits.npy", &want);
    const float *logits = vtest_npy_as(&want, "f4");
    rig_open(&r, TINY "llama3", "cpu", TINY_TOKENS);
    run_blocks(&r, ids, starts, 1, hidden);
    for (int i = 0; i < TINY_TOKENS; i++)
        targets[i] = i % 5 ? ids[i] : -1;
    assert_ok(vptq_forward_loss(r.f, TINY_TOKENS, hidden, targets, nll, &err), &err);
    for (int i = 0; i < TINY_TOKENS; i++) {
        const float *row = logits + i * TINY_VOCAB;
        double sum = 0;
        int32_t best = 0;
        for (int v = 0; v < TINY_VOCAB; v++) {
            sum += exp((double)row[v]);
            best = row[v] > row[best] ? v : best;
        }
        assert_int_equal(nll[i].best_id, best);
        double got = log(nll[i].sum) + nll[i].max, all = log(sum);
        assert_close_f64(&got, &all, 1, 1e-4, 0);
        if (targets[i] >= 0)
            assert_close(&nll[i].target, &row[targets[i]], 1, 1e-4, 0);
    }
    vtest_npy_free(&want);
    free(ids);
    rig_close(&r);
}

/* ---- bad input ---- */

static void test_bad_input(void **state)
{
    (void)state;
    rig r;
    vptq_err err = {0};
    vptq_forward *none;
    float hidden[TINY_TOKENS * TINY_HIDDEN];
    size_t starts[2] = {0, 9}, empty[2] = {0, 0};
    int32_t *ids = tiny_ids("mistral"), bad[2] = {3, TINY_VOCAB}, negative = -1;
    rig_open(&r, TINY "mistral", "cpu", 8);
    assert_fails(vptq_forward_open(&r.m, &r.dev, 0, &none, &err), VPTQ_E_ARG, &err, "length");
    assert_fails(vptq_forward_open(&r.m, &r.dev, SIZE_MAX / 8, &none, &err), VPTQ_E_NOMEM, &err,
                 "");
    assert_fails(vptq_forward_embed(r.f, bad, 2, hidden, &err), VPTQ_E_ARG, &err,
                 "token 1 is 48");
    assert_fails(vptq_forward_embed(r.f, &negative, 1, hidden, &err), VPTQ_E_ARG, &err, "-1");
    assert_ok(vptq_forward_embed(r.f, ids, 9, hidden, &err), &err);
    assert_fails(vptq_forward_block(r.f, 0, starts, 1, hidden, NULL, NULL, &err), VPTQ_E_ARG,
                 &err, "9 tokens");
    assert_fails(vptq_forward_block(r.f, 0, empty, 1, hidden, NULL, NULL, &err), VPTQ_E_ARG,
                 &err, "0 tokens");
    starts[1] = 8;
    assert_fails(vptq_forward_block(r.f, 1, starts, 1, hidden, failing_hook, NULL, &err),
                 VPTQ_E_IO, &err, "layer 1: hook");
    sig_atomic_t stop = 1;
    r.ctx.cancel = &stop;
    assert_fails(vptq_forward_block(r.f, 0, starts, 1, hidden, NULL, NULL, &err),
                 VPTQ_E_CANCELLED, &err, "interrupted");
    free(ids);
    rig_close(&r);
}

static vptq_status whole_run(void *arg, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const int32_t *ids = arg;
    vptq_ctx ctx = {.mem = mem, .threads = 1};
    vptq_device dev;
    vptq_model m;
    vptq_forward *f = NULL;
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    size_t starts[3] = {0, 13, TINY_TOKENS};
    float hidden[TINY_TOKENS * TINY_HIDDEN], logits[TINY_VOCAB];
    vptq_nll_state nll[TINY_TOKENS];
    bool has_model = false;
    st = vptq_device_open(&ctx, "cpu", &dev, err);
    if (st)
        return st;
    VPTQ_TRY(vptq_model_open(&ctx, TINY "qwen2", &opt, false, &m, err));
    has_model = true;
    VPTQ_TRY(vptq_forward_open(&m, &dev, TINY_TOKENS, &f, err));
    VPTQ_TRY(vptq_forward_embed(f, ids, TINY_TOKENS, hidden, err));
    VPTQ_TRY(vptq_forward_block(f, 0, starts, 2, hidden, NULL, NULL, err));
    VPTQ_TRY(vptq_forward_loss(f, TINY_TOKENS, hidden, ids, nll, err));
    VPTQ_TRY(vptq_forward_step(f, ids, 5, logits, err));
out:
    vptq_forward_close(f);
    if (has_model)
        vptq_model_release(&m);
    vptq_device_close(&dev);
    return st;
}

static void test_no_memory(void **state)
{
    (void)state;
    int32_t *ids = tiny_ids("qwen2");
    assert_true(vtest_oom_walk(whole_run, ids) > 10);
    free(ids);
}

/* ---- real models ---- */

static int32_t *json_prompt(const char *path, size_t *n)
{
    size_t size;
    char *text = vtest_read_file(path, &size);
    int32_t *ids = xmalloc(size * sizeof *ids);
    char *p = strchr(text, '[');
    assert_non_null(p);
    *n = 0;
    for (p++; *p && *p != ']'; p++) {
        char *end;
        long id = strtol(p, &end, 10);
        if (end == p)
            continue;
        ids[(*n)++] = (int32_t)id;
        p = end;
        if (*p == ']')
            break;
    }
    free(text);
    return ids;
}

static void check_stories(const char *model)
{
    char path[4096], golden[4096], prompt[4096], name[128];
    snprintf(name, sizeof name, "%s/logits_f32.npy", model);
    if (!vtest_data(path, sizeof path, model) || !vtest_data(golden, sizeof golden, name))
        skip();
    snprintf(name, sizeof name, "%s/prompt_ids.json", model);
    if (!vtest_data(prompt, sizeof prompt, name))
        skip();
    size_t n;
    int32_t *ids = json_prompt(prompt, &n);
    assert_int_equal(n, 64);
    check_logits(path, "cpu", ids, n, golden, 1e-4);
    check_logits(path, "ref", ids, n, golden, 1e-4);
    free(ids);
}

static void test_stories_hf(void **state)
{
    (void)state;
    check_stories("models/stories260K-hf");
}

static void test_stories_packed(void **state)
{
    (void)state;
    check_stories("golden/vptq_model_stories260K");
}

/* The demo model in float16: unpacked ($VPTQ_DEMO_F16), or its GGUF ($VPTQ_DEMO_GGUF) with
 * every value rounded as it is read.  False where neither is named. */
static bool demo_open(rig *r, size_t length)
{
    const char *f16 = getenv("VPTQ_DEMO_F16"), *gguf = getenv("VPTQ_DEMO_GGUF");
    if (!f16 && !gguf) {
        print_message("neither VPTQ_DEMO_F16 nor VPTQ_DEMO_GGUF names the demo model\n");
        return false;
    }
    rig_open(r, f16 ? f16 : gguf, "cpu", length);
    for (size_t i = 0; !f16 && i < r->m.ckpt.set.count; i++)
        r->m.ckpt.set.tensors[i].round_to = VPTQ_F16;
    if (!f16) { /* vectors were read when it was opened */
        vptq_err err = {0};
        vptq_forward_close(r->f);
        assert_ok(vptq_forward_open(&r->m, &r->dev, length, &r->f, &err), &err);
    }
    return true;
}

static void test_demo_logits(void **state)
{
    (void)state;
    rig r;
    vptq_err err = {0};
    vtest_npy want, want_hidden;
    char path[4096];
    size_t n, starts[2] = {0, 64};
    if (!vtest_data(path, sizeof path, "golden/smollm2/wikitext2_w16.i32") ||
        !demo_open(&r, 64))
        skip();
    int32_t *ids = load_ids(path, &n);
    size_t dim = r.m.desc->hidden, vocab = r.m.desc->vocab;
    float *hidden = xmalloc(64 * dim * sizeof *hidden);
    float *logits = xmalloc(vocab * sizeof *logits), *last = xmalloc(dim * sizeof *last);
    run_blocks(&r, ids, starts, 1, hidden);
    assert_ok(vptq_forward_logits(r.f, 1, hidden + 63 * dim, logits, &err), &err);
    assert_ok(vptq_forward_final_norm(r.f, 1, hidden + 63 * dim, last, &err), &err);
    assert_true(vtest_data(path, sizeof path, "golden/smollm2/logits_pos63.npy"));
    vtest_npy_load(path, &want);
    assert_true(vtest_data(path, sizeof path, "golden/smollm2/hidden_last_pos63.npy"));
    vtest_npy_load(path, &want_hidden);
    const float *w = vtest_npy_as(&want, "f4"), *h = vtest_npy_as(&want_hidden, "f4");
    assert_close(logits, w, vocab, 1e-4 * largest(w, vocab), 0);
    assert_close(last, h, dim, 1e-4 * largest(h, dim), 0);
    assert_ok(vptq_forward_step(r.f, ids, 64, logits, &err), &err);
    assert_close(logits, w, vocab, 1e-4 * largest(w, vocab), 0);
    vtest_npy_free(&want);
    vtest_npy_free(&want_hidden);
    free(ids);
    free(hidden);
    free(logits);
    free(last);
    rig_close(&r);
}

static void test_demo_loss(void **state)
{
    (void)state;
    enum { LENGTH = 2048 };
    rig r;
    vptq_err err = {0};
    vtest_npy want;
    char path[4096];
    size_t n, starts[2] = {0, LENGTH};
    if (!vtest_data(path, sizeof path, "golden/smollm2/wikitext2_w16.i32") ||
        !demo_open(&r, LENGTH))
        skip();
    int32_t *ids = load_ids(path, &n);
    float *hidden = xmalloc(LENGTH * r.m.desc->hidden * sizeof *hidden);
    float *nll = xmalloc(LENGTH * sizeof *nll);
    vptq_nll_state *s = xmalloc(LENGTH * sizeof *s);
    run_blocks(&r, ids, starts, 1, hidden);
    assert_ok(vptq_forward_loss(r.f, LENGTH - 1, hidden, ids + 1, s, &err), &err);
    for (size_t i = 0; i < LENGTH - 1; i++)
        nll[i] = (float)(log(s[i].sum) + s[i].max - (double)s[i].target);
    assert_true(vtest_data(path, sizeof path, "golden/smollm2/nll_window0.npy"));
    vtest_npy_load(path, &want);
    assert_int_equal(want.count, LENGTH - 1);
    assert_close(nll, vtest_npy_as(&want, "f4"), LENGTH - 1, 2e-3, 0);
    vtest_npy_free(&want);
    free(s);
    free(nll);
    free(hidden);
    free(ids);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),       cmocka_unit_test(test_packed),
        cmocka_unit_test(test_steps),          cmocka_unit_test(test_groups),
        cmocka_unit_test(test_group_cut),      cmocka_unit_test(test_threads),
        cmocka_unit_test(test_device_memory),  cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_halves),         cmocka_unit_test(test_loss),
        cmocka_unit_test(test_bad_input),      cmocka_unit_test(test_next),
        cmocka_unit_test(test_no_memory),      cmocka_unit_test(test_stories_hf),
        cmocka_unit_test(test_stories_packed), cmocka_unit_test(test_demo_logits),
        cmocka_unit_test(test_demo_loss),
    };
    return vtest_main(argc, argv, tests);
}
