/* The digest of packed models: known values, and what changes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/hf/safetensors.h"
#include "formats/hf/weights.h"
#include "lib/pack/pack.h"
#include "tests/support/vtest.h"

#define LLAMA "tests/golden/packed_llama3"

/* scripts/vptq_digest.py computed them. */
static const struct {
    const char *model, *digest;
    uint32_t tensors;
} known[] = {
    {LLAMA, "vptq1:ce4d44acf84f1ad270116b62e9c272c4761e4555906d41b011d5241420e95036", 77},
    {"tests/golden/packed_mistral",
     "vptq1:5ee6d3783624a95af87dac689a0881ccc8cb0581988ad7aeb67a27068892c9cb", 105},
    {"tests/golden/packed_qwen2",
     "vptq1:a7a60d735ea193cab1fd8d194a2d0081eb4e87d9453659da517f8d59c48afdc5", 124},
    {"tests/golden/packed_qwen3",
     "vptq1:173c08fccdfe6088b59c93deb11dffe460732624be9e9cac01bad93152de499f", 66}};

static void digest_of(const char *dir, vptq_digest_result *r)
{
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 2};
    assert_ok(vptq_digest_model(&ctx, dir, NULL, NULL, r, &err), &err);
}

static void test_known(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        vptq_digest_result r;
        digest_of(known[i].model, &r);
        assert_string_equal(r.digest, known[i].digest);
        assert_int_equal(r.matrices, 14);
        assert_int_equal(r.tensors, known[i].tensors);
    }
}

static void test_plain_model(void **state)
{
    vptq_err err = {0};
    vptq_ctx ctx = {.threads = 1};
    vptq_digest_result r;
    (void)state;
    assert_fails(vptq_digest_model(&ctx, "tests/golden/tiny_llama3", NULL, NULL, &r, &err),
                 VPTQ_E_UNSUPPORTED, &err,
                 "tests/golden/tiny_llama3 is a Hugging Face directory, expected a packed "
                 "directory, an archive or a work directory");
}

/* ---- changes ---- */

typedef struct changed {
    vptq_tensor list[128];
    size_t count;
    uint8_t data[1 << 16]; /* of a changed tensor */
} changed;

static vptq_tensor *find(changed *c, const char *name)
{
    size_t i = 0;
    while (i < c->count && strcmp(c->list[i].name, name) != 0)
        i++;
    assert_true(i < c->count);
    return &c->list[i];
}

static void reverse(changed *c)
{
    for (size_t i = 0; i < c->count / 2; i++) {
        const vptq_tensor t = c->list[i];
        c->list[i] = c->list[c->count - 1 - i];
        c->list[c->count - 1 - i] = t;
    }
}

static void flip_bit(changed *c)
{
    vptq_tensor *t = find(c, "model.layers.1.mlp.up_proj.indices");
    assert_true(t->bytes <= sizeof c->data);
    memcpy(c->data, t->data, t->bytes);
    c->data[t->bytes / 2] ^= 1;
    t->data = c->data;
}

static void change_type(changed *c)
{
    find(c, "model.norm.weight")->type = VPTQ_BF16;
}

static void change_shape(changed *c)
{
    vptq_tensor *t = find(c, "model.layers.0.mlp.up_proj.centroids.weight");
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[0], 1);
    t->shape[0] = t->shape[1];
    t->dims = 1;
}

static void swap_names(changed *c)
{
    vptq_tensor *a = find(c, "model.layers.0.input_layernorm.weight");
    vptq_tensor *b = find(c, "model.layers.1.input_layernorm.weight");
    const char *name = a->name;
    a->name = b->name;
    b->name = name;
}

/* A buffer that old releases of transformers saved, and that readers ignore. */
static void add_tensor(changed *c)
{
    static const uint8_t zeros[8];
    c->list[c->count++] = (vptq_tensor){.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                                        .type = VPTQ_F16,
                                        .dims = 1,
                                        .shape = {4},
                                        .data = zeros,
                                        .bytes = sizeof zeros};
}

/* The model in one file, changed. */
static void digest_changed(const char *dir, void (*change)(changed *c), vptq_digest_result *r)
{
    static const vptq_metadata metadata[] = {{"format", "pt"}, {"note", "nothing"}};
    char path[4096];
    vptq_err err = {0};
    vptq_tensor_set set;
    changed *c = calloc(1, sizeof *c);
    assert_non_null(c);
    vptq_tensor_set_init(&set, NULL);
    assert_ok(vptq_hf_read_weights(LLAMA, &set, &err), &err);
    assert_true(set.count < 128);
    memcpy(c->list, set.tensors, set.count * sizeof *c->list);
    c->count = set.count;
    change(c);
    vtest_copy_file(LLAMA "/config.json", dir, "config.json");
    vtest_path(path, sizeof path, dir, "other.safetensors");
    assert_ok(vptq_safetensors_save(path, c->list, c->count, metadata, 2, &err), &err);
    digest_of(dir, r);
    vptq_tensor_set_release(&set);
    free(c);
}

static void test_changes(void **state)
{
    void (*const changes[])(changed *) = {flip_bit, change_type, change_shape, swap_names,
                                          add_tensor};
    enum { CHANGES = sizeof changes / sizeof *changes };
    vptq_digest_result r[CHANGES + 1];
    digest_changed(*state, reverse, &r[CHANGES]);
    assert_string_equal(r[CHANGES].digest, known[0].digest);
    for (size_t i = 0; i < CHANGES; i++) {
        digest_changed(*state, changes[i], &r[i]);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(r[i].digest, r[k].digest);
        assert_string_not_equal(r[i].digest, r[CHANGES].digest);
    }
}

VTEST_MAIN(cmocka_unit_test(test_known), cmocka_unit_test(test_plain_model),
           scratch_test(test_changes))
