#include "tests/support/vrig.h"

#include <string.h>

#include "lib/base/rng.h"
#include "tests/support/vtest.h"

void vrig_open(vrig *r, const char *path, const char *tokenizer, bool need_tokenizer)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = tokenizer};
    memset(r, 0, sizeof *r);
    vptq_mem_init(&r->mem, 0);
    r->ctx = (vptq_ctx){.mem = &r->mem, .threads = 2};
    assert_ok(vptq_device_open(&r->ctx, "cpu", &r->dev, &err), &err);
    assert_ok(vptq_model_open(&r->ctx, path, &opt, need_tokenizer, &r->m, &err), &err);
}

void vrig_open_base(vrig *r, const char *path)
{
    vptq_err err = {0};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    assert_ok(vptq_model_open(&r->ctx, path, &opt, false, &r->base, &err), &err);
}

void vrig_close(vrig *r)
{
    vptq_model_release(&r->m);
    vptq_model_release(&r->base);
    vptq_device_close(&r->dev);
    assert_int_equal(r->mem.used, 0);
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
