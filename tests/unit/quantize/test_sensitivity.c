/* Sensitivities compared with whole forward passes of a model with one matrix replaced, and the
 * file that saves them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/json.h"
#include "lib/base/rng.h"
#include "lib/encoder/rates.h"
#include "lib/eval/kld.h"
#include "lib/quantize/sensitivity.h"
#include "tests/support/devices.h"
#include "tests/support/vtest.h"

#define TINY "tests/golden/tiny_mistral"
enum { VOCAB = 48, HIDDEN = 32, IDS = 200, LENGTH = 24, WINDOWS = 3 };

typedef struct rig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m;
    vptq_hessian_source source;
    char ids[4096], file[4096];
    const char *files[1];
    vptq_corpus_options text;
    vptq_sensitivity_options opt;
    unsigned loads; /* of Hessians */
} rig;

/* A fixed Hessian for every input: diagonal j + 1, and 1/2 in all other entries. */
static vptq_status load(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                        uint32_t columns, vptq_input_hessians *h, vptq_err *err)
{
    (void)layer;
    (void)input;
    float *x = vptq_mem_alloc(s->mem, (size_t)columns * (columns + 1) / 2, sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    *h = (vptq_input_hessians){.plain = x, .mixed = {x}};
    for (uint32_t i = 0; i < columns; i++)
        for (uint32_t j = 0; j <= i; j++)
            *x++ = i == j ? (float)(i + 1) : i == j + 1 ? 0.5F : 0;
    ++*(unsigned *)(uintptr_t)s->dir; /* counts */
    return VPTQ_OK;
}

static void release(const vptq_hessian_source *s, vptq_input_hessians *h)
{
    vptq_mem_free(s->mem, h->mixed[0]);
}

static void rig_open(rig *r, const char *dir, int threads)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    vptq_rng rng = vptq_rng_make(4, 0, 0, VPTQ_RNG_TEST);
    int32_t ids[IDS];
    memset(r, 0, sizeof *r);
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.mem = &r->mem, .threads = threads};
    assert_ok(vptq_device_open(&r->ctx, "cpu", &r->dev, &err), &err);
    assert_ok(vptq_model_open(&r->ctx, TINY, &opt, false, &r->m, &err), &err);
    for (size_t i = 0; i < IDS; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VOCAB);
    vtest_path(r->ids, sizeof r->ids, dir, "ids");
    vtest_write_file(r->ids, ids, sizeof ids);
    vtest_path(r->file, sizeof r->file, dir, "sensitivity.json");
    r->files[0] = r->ids;
    r->text = (vptq_corpus_options){.tokens = r->files, .token_count = 1};
    r->source = (vptq_hessian_source){.load = load,
                                      .release = release,
                                      .mem = &r->mem,
                                      .dir = (const char *)&r->loads,
                                      .fingerprint = "00000000000000aa"};
    r->opt = (vptq_sensitivity_options){.hessians = &r->source,
                                        .base_fingerprint = "00000000000000bb",
                                        .text = &r->text,
                                        .windows = WINDOWS,
                                        .length = LENGTH,
                                        .seed = 5,
                                        .storage = VPTQ_F16,
                                        .file = r->file};
}

static void rig_close(rig *r)
{
    vptq_model_release(&r->m);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
}

/* ---- by hand ---- */

/* Logits of a window by a whole forward pass. */
static void logits(rig *r, const vptq_model *m, const int32_t *ids, float *z)
{
    vptq_err err = {0};
    vptq_forward *f;
    size_t starts[2] = {0, LENGTH};
    float h[LENGTH * HIDDEN];
    assert_ok(vptq_forward_open(m, &r->dev, LENGTH, &f, &err), &err);
    assert_ok(vptq_forward_embed(f, ids, LENGTH, h, &err), &err);
    for (uint32_t l = 0; l < m->desc->layers; l++)
        assert_ok(vptq_forward_block(f, l, starts, 1, h, &err), &err);
    assert_ok(vptq_forward_logits(f, LENGTH, h, z, &err), &err);
    vptq_forward_close(f);
}

static double divergence(const float *z, const float *y)
{
    double a = 0, b = 0, sum = 0;
    for (size_t j = 0; j < VOCAB; j++) {
        a += exp((double)z[j]);
        b += exp((double)y[j]);
    }
    for (size_t j = 0; j < VOCAB; j++)
        sum += exp((double)z[j]) / a * ((double)z[j] - log(a) - (double)y[j] + log(b));
    return sum;
}

/* The weights of a matrix after the quick encoding, and its loss. */
static double encode(rig *r, uint32_t layer, vptq_linear l, float *what)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_input_hessians h = {0};
    vptq_encoder_result result;
    const vptq_weight *w = &r->m.blocks[layer].linear[l];
    vptq_encoder_input input = {.matrix_id = layer * VPTQ_LINEAR_DENSE + (uint32_t)l,
                                .out = (uint32_t)w->rows,
                                .in = (uint32_t)w->cols};
    vptq_encoder_settings s = vptq_rate_probe(input.out, input.in, r->opt.seed, VPTQ_F16);
    vptq_arena_init(&arena, &r->mem);
    float *x = vptq_arena_alloc(&arena, w->rows, w->cols * sizeof *x, &err);
    assert_non_null(x);
    assert_ok(vptq_weight_read(w, &r->dev, 0, w->rows, x, &err), &err);
    assert_ok(load(&r->source, layer, vptq_linear_input(l), input.in, &h, &err), &err);
    input.w = x;
    input.lower = h.plain;
    assert_ok(vptq_encode_matrix(&r->dev, &s, &input, &arena, &result, &err), &err);
    assert_ok(vptq_device_decode(&r->dev, &result.vq, 0, w->rows, what, w->cols, &err), &err);
    release(&r->source, &h);
    vptq_arena_release(&arena);
    return result.report.loss;
}

static void check_matrix(rig *r, uint32_t layer, vptq_linear l, const size_t *at,
                         const vptq_sensitivity *got)
{
    const vptq_weight *w = &r->m.blocks[layer].linear[l];
    float *what = malloc(w->rows * w->cols * sizeof *what);
    float z[LENGTH * VOCAB], y[LENGTH * VOCAB];
    double loss = encode(r, layer, l, what), sum = 0, sq = 0;
    size_t size, n = WINDOWS * LENGTH;
    double kld[WINDOWS * LENGTH];
    int32_t *ids = (int32_t *)vtest_read_file(r->ids, &size);
    vptq_model changed = r->m;
    vptq_tensor t = *w->tensor;
    vptq_block blocks[8];
    vptq_weight linear[VPTQ_LINEAR_DENSE];
    assert_true(changed.desc->layers <= 8);
    memcpy(blocks, r->m.blocks, changed.desc->layers * sizeof *blocks);
    t.type = VPTQ_F32;
    t.data = (const uint8_t *)what;
    memcpy(linear, blocks[layer].linear, sizeof linear);
    linear[l].tensor = &t;
    blocks[layer].linear = linear;
    changed.blocks = blocks;
    for (size_t i = 0; i < WINDOWS; i++) {
        logits(r, &r->m, ids + at[i], z);
        logits(r, &changed, ids + at[i], y);
        for (size_t k = 0; k < LENGTH; k++)
            kld[i * LENGTH + k] = divergence(z + k * VOCAB, y + k * VOCAB);
    }
    for (size_t i = 0; i < n; i++)
        sum += kld[i];
    for (size_t i = 0; i < n; i++)
        sq += (kld[i] - sum / (double)n) * (kld[i] - sum / (double)n);
    double mean = sum / (double)n, error = sqrt(sq / (double)(n - 1) / (double)n);
    assert_true(mean > 1e-6);
    assert_close_f64(&got->loss, &loss, 1, 0, 1e-6);
    assert_close_f64(&got->kld, &mean, 1, 1e-9, 1e-3);
    assert_close_f64(&got->kld_stderr, &error, 1, 1e-9, 1e-3);
    free(what);
    free(ids);
}

static void test_by_hand(void **state)
{
    rig r;
    vptq_err err = {0};
    vptq_arena arena;
    vptq_sensitivity *rows;
    vptq_corpus c;
    size_t *at, count;
    rig_open(&r, *state, 2);
    vptq_arena_init(&arena, &r.mem);
    assert_ok(vptq_sensitivity_measure(&r.dev, &r.m, &r.opt, &arena, &rows, &err), &err);
    assert_ok(vptq_corpus_load(&r.ctx, &r.text, NULL, VOCAB, &c, &err), &err);
    assert_ok(vptq_corpus_sample(&c, LENGTH, WINDOWS, r.opt.seed, &arena, &at, &count, &err),
              &err);
    assert_int_equal(count, WINDOWS);
    for (uint32_t layer = 0; layer < r.m.desc->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            check_matrix(&r, layer, (vptq_linear)l, at,
                         &rows[layer * VPTQ_LINEAR_DENSE + (uint32_t)l]);
    vptq_corpus_release(&c);
    vptq_arena_release(&arena);
    rig_close(&r);
}

/* ---- the file ---- */

static void measure(rig *r, vptq_sensitivity *out)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_sensitivity *rows;
    vptq_arena_init(&arena, &r->mem);
    r->loads = 0;
    assert_ok(vptq_sensitivity_measure(&r->dev, &r->m, &r->opt, &arena, &rows, &err), &err);
    memcpy(out, rows, r->m.desc->layers * VPTQ_LINEAR_DENSE * sizeof *out);
    vptq_arena_release(&arena);
}

/* Keeps only the first `rows` rows of the file. */
static void cut_file(const char *path, size_t rows)
{
    vptq_err err = {0};
    json_t *doc;
    assert_ok(vptq_json_load(path, 1 << 20, &doc, &err), &err);
    json_t *list = json_object_get(doc, "rows");
    while (json_array_size(list) > rows)
        json_array_remove(list, json_array_size(list) - 1);
    assert_ok(vptq_json_save_sealed(path, doc, &err), &err);
    json_decref(doc);
}

static void test_resume(void **state)
{
    rig r;
    vptq_sensitivity want[64], got[64];
    size_t n;
    rig_open(&r, *state, 2);
    const size_t all = r.m.desc->layers * VPTQ_LINEAR_DENSE, bytes = all * sizeof *want;
    assert_true(all <= 64);
    measure(&r, want);
    assert_int_equal(r.loads, r.m.desc->layers * VPTQ_INPUT_DENSE);
    char *whole = vtest_read_file(r.file, &n);

    /* A complete file: nothing is measured again, and the file is unchanged. */
    measure(&r, got);
    assert_int_equal(r.loads, 0);
    assert_memory_equal(got, want, bytes);

    /* After a kill only whole layers count; a partial layer is measured again; another thread
     * count. */
    for (size_t left = 0; left < all; left += 5) {
        cut_file(r.file, left);
        r.ctx.threads = 1 + (int)(left % 2);
        measure(&r, got);
        assert_memory_equal(got, want, bytes);
        vtest_expect_file(r.file, whole, n);
    }
    free(whole);
    rig_close(&r);
}

/* A run that needs only losses uses a file with divergences and never replaces it. */
static void test_losses(void **state)
{
    rig r;
    vptq_sensitivity want[64], got[64];
    size_t n;
    rig_open(&r, *state, 2);
    const size_t all = r.m.desc->layers * VPTQ_LINEAR_DENSE;
    measure(&r, want);
    char *whole = vtest_read_file(r.file, &n);
    r.opt.text = NULL;
    measure(&r, got);
    assert_int_equal(r.loads, 0);
    cut_file(r.file, VPTQ_LINEAR_DENSE);
    free(whole);
    whole = vtest_read_file(r.file, &n);
    measure(&r, got);
    vtest_expect_file(r.file, whole, n);
    for (size_t i = 0; i < all; i++) {
        assert_true(got[i].loss == want[i].loss && got[i].norm == want[i].norm);
        assert_true(got[i].kld == 0);
    }
    /* Without such a file losses are saved, too. */
    unlink(r.file);
    measure(&r, got);
    measure(&r, got);
    assert_int_equal(r.loads, 0);
    free(whole);
    rig_close(&r);
}

/* A file of another run, and a damaged one. */
static void test_measured_again(void **state)
{
    rig r;
    vptq_sensitivity want[64], got[64];
    rig_open(&r, *state, 2);
    const size_t all = r.m.desc->layers * VPTQ_LINEAR_DENSE;
    measure(&r, want);
    r.opt.base_fingerprint = "00000000000000cc";
    measure(&r, got);
    assert_int_equal(r.loads, r.m.desc->layers * VPTQ_INPUT_DENSE);
    r.opt.windows--;
    measure(&r, got);
    assert_int_equal(r.loads, r.m.desc->layers * VPTQ_INPUT_DENSE);
    r.opt.windows++;
    static const char *const bad[] = {"", "{", "[]", "{\"rows\": 7}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        vtest_write_file(r.file, bad[i], strlen(bad[i]));
        measure(&r, got);
        assert_memory_equal(got, want, all * sizeof *want);
    }
    /* A row without its loss. */
    vptq_err err = {0};
    json_t *doc;
    assert_ok(vptq_json_load(r.file, 1 << 20, &doc, &err), &err);
    json_object_del(json_array_get(json_object_get(doc, "rows"), 3), "loss");
    assert_ok(vptq_json_save_sealed(r.file, doc, &err), &err);
    json_decref(doc);
    measure(&r, got);
    assert_memory_equal(got, want, all * sizeof *want);
    rig_close(&r);
}

static vptq_status measure_in(void *arg, vptq_device *dev, vptq_err *err)
{
    rig *r = arg;
    vptq_arena arena;
    vptq_sensitivity *rows;
    vptq_hessian_source source = r->source;
    vptq_sensitivity_options opt = r->opt;
    opt.hessians = &source;
    opt.file = NULL;
    source.mem = dev->ctx->mem;
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = vptq_sensitivity_measure(dev, &r->m, &opt, &arena, &rows, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_out_of_memory(void **state)
{
    rig r;
    rig_open(&r, *state, 1);
    assert_true(devices_oom_walk("cpu", 1, measure_in, &r) > 50);
    rig_close(&r);
}

VTEST_MAIN(scratch_test(test_by_hand), scratch_test(test_resume), scratch_test(test_losses),
           scratch_test(test_measured_again), scratch_test(test_out_of_memory))
