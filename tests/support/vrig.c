/* Opens the model and the device of a test. */
#include "tests/support/vrig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/model/forward_internal.h"
#include "tests/support/vtest.h"

const char *const vrig_families[VRIG_ALL_FAMILIES] = {
    "llama3", "mistral", "qwen2",      "qwen3",   "phi3",     "phi4",
    "gemma2", "gemma3",  "starcoder2", "mixtral", "qwen2moe", "qwen3moe"};

static void open_rig(vrig *r, const char *path, const char *tokenizer, bool need_tokenizer,
                     const char *backend, int threads)
{
    vptq_err err = {0};
    const vptq_checkpoint_options opt = {.tokenizer = tokenizer};
    memset(r, 0, sizeof *r);
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.mem = &r->mem, .threads = threads};
    assert_ok(vptq_device_open(&r->ctx, backend, &r->dev, &err), &err);
    assert_ok(vptq_model_open(&r->ctx, path, &opt, need_tokenizer, &r->m, &err), &err);
}

void vrig_open(vrig *r, const char *path, const char *tokenizer, bool need_tokenizer)
{
    open_rig(r, path, tokenizer, need_tokenizer, "cpu", 2);
}

void vrig_open_on(vrig *r, const char *path, const char *tokenizer, const char *backend,
                  int threads)
{
    open_rig(r, path, tokenizer, tokenizer != NULL, backend, threads);
}

void vrig_open_base(vrig *r, const char *path)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    assert_ok(vptq_model_open(&r->ctx, path, &opt, false, &r->base, &err), &err);
}

void vrig_open_forward(vrig *r, const char *path, const char *backend, int threads,
                       size_t length)
{
    vptq_err err = {0};
    open_rig(r, path, NULL, false, backend, threads);
    assert_ok(vptq_forward_open(&r->m, &r->dev, length, &r->f, &err), &err);
}

bool vrig_open_demo(vrig *r, size_t length)
{
    const char *f16 = getenv("VPTQ_DEMO_F16"), *gguf = getenv("VPTQ_DEMO_GGUF");
    vptq_err err = {0};
    if (!f16 && !gguf) {
        print_message("neither VPTQ_DEMO_F16 nor VPTQ_DEMO_GGUF names the demo model\n");
        return false;
    }
    vrig_open_forward(r, f16 ? f16 : gguf, "cpu", 2, length);
    if (f16)
        return true;
    for (size_t i = 0; i < r->m.ckpt.set.count; i++)
        r->m.ckpt.set.tensors[i].round_to = VPTQ_F16;
    vptq_forward_close(r->f); /* opens again: opening reads norms and biases */
    assert_ok(vptq_forward_open(&r->m, &r->dev, length, &r->f, &err), &err);
    return true;
}

void vrig_set_final_norm(vrig *r, vrig_norm *norm, float value)
{
    for (size_t i = 0; i < VRIG_HIDDEN; i++)
        norm->values[i] = value;
    norm->tensor = *r->m.final_norm;
    norm->tensor.type = VPTQ_F32;
    norm->tensor.data = (const uint8_t *)norm->values;
    norm->tensor.bytes = sizeof norm->values;
    r->m.final_norm = &norm->tensor;
}

void vrig_close(vrig *r)
{
    vptq_forward_close(r->f);
    vptq_model_release(&r->m);
    vptq_model_release(&r->base);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
}

void vrig_run_blocks(vrig *r, const int32_t *ids, const size_t *starts, size_t count,
                     float *hidden)
{
    vptq_err err = {0};
    assert_ok(vptq_forward_embed(r->f, ids, starts[count], hidden, &err), &err);
    for (uint32_t l = 0; l < r->m.desc->layers; l++)
        assert_ok(vptq_forward_block(r->f, l, starts, count, hidden, &err), &err);
}

vptq_status vrig_step(vptq_forward *f, const int32_t *ids, size_t n, float *logits,
                      vptq_err *err)
{
    static const double u = 0;
    const vptq_forward_sampling greedy = {.top_p = 1, .u = &u};
    const size_t dim = f->d->hidden;
    int32_t next;
    vptq_status st = vptq_forward_next(f, ids, n, &greedy, &next, err);
    if (st)
        return st;
    float *hidden = vtest_alloc(dim, sizeof *hidden);
    st = f->dev->ops->download(f->dev->state, hidden,
                               f->hidden + (n - 1) % VPTQ_FORWARD_ROWS * dim,
                               dim * sizeof *hidden, err);
    if (!st)
        st = vptq_forward_logits(f, 1, hidden, logits, err);
    free(hidden);
    return st;
}

void vrig_reset(vptq_forward *f)
{
    f->position = 0;
}

int32_t *vrig_ids(const char *dir, size_t n, char *path, size_t size)
{
    vptq_rng rng = vptq_rng_make(5, 0, 0, VPTQ_RNG_TEST);
    int32_t *ids = vtest_alloc(n, sizeof *ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)vptq_rng_below(&rng, i, VRIG_VOCAB);
    vtest_path(path, size, dir, "ids");
    vtest_write_file(path, ids, n * sizeof *ids);
    return ids;
}

int32_t *vrig_tiny_ids(const char *family)
{
    char path[128];
    size_t size;
    snprintf(path, sizeof path, "tests/golden/tiny_%s/ids.i32", family);
    int32_t *ids = (int32_t *)(void *)vtest_read_file(path, &size);
    assert_int_equal(size, VRIG_TOKENS * sizeof *ids);
    return ids;
}

void vrig_log_window(void *arg, uint64_t window, double mean, uint64_t tokens)
{
    vrig_windows *w = arg;
    assert_int_equal(window, w->count++);
    w->tokens += tokens;
    w->sum += mean * (double)tokens;
}
