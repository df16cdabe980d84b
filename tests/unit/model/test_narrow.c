/* Narrow stand-ins for large models: their shapes, that they run in every family and with every
 * kind of weights, and the products that are counted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/model/forward.h"
#include "lib/model/narrow.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { TOKENS = 8, LENGTH = 16 };

static double weights_of(const vptq_model *m)
{
    double sum = 0;
    for (int l = 0; l < vptq_linear_count(m->desc); l++)
        sum += (double)m->blocks[0].linear[l].rows * (double)m->blocks[0].linear[l].cols;
    return sum;
}

/* Runs the only block of a narrow model; only its shapes and the bounds of its arrays matter.
 */
static void run_narrow(const char *path, const char *backend)
{
    vrig r;
    vptq_err err = {0};
    vptq_narrow n;
    vptq_forward *f;
    const size_t starts[] = {0, TOKENS};
    vptq_nll_state nll[TOKENS];
    int32_t ids[TOKENS];
    vrig_open_on(&r, path, NULL, backend, 2);
    const double all = weights_of(&r.m);
    assert_int_equal(vptq_model_narrow_to(&r.m, all / 2, &r.mem, &n, &err), VPTQ_OK);
    assert_ptr_equal(n.model, &n.own);
    assert_true(weights_of(n.model) < all);
    const vptq_model_desc *d = n.model->desc;
    assert_int_equal(d->layers, 1);
    assert_int_equal(d->heads % d->kv_heads, 0);
    assert_int_equal(d->vocab, r.m.desc->vocab);
    assert_int_equal(vptq_forward_open(n.model, &r.dev, TOKENS, &f, &err), VPTQ_OK);
    float *hidden = vtest_alloc((size_t)TOKENS * d->hidden, sizeof *hidden);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i;
    assert_int_equal(vptq_forward_embed(f, ids, TOKENS, hidden, &err), VPTQ_OK);
    assert_int_equal(vptq_forward_block(f, 0, starts, 1, hidden, &err), VPTQ_OK);
    assert_int_equal(vptq_forward_loss(f, TOKENS, hidden, ids, nll, &err), VPTQ_OK);
    for (size_t i = 0; i < (size_t)TOKENS * d->hidden; i++)
        assert_true(isfinite(hidden[i]));
    free(hidden);
    vptq_forward_close(f);
    vptq_narrow_release(&n);
    vrig_close(&r);
}

static void test_every_family_runs(void **state)
{
    (void)state;
    for (int i = 0; i < VRIG_ALL_FAMILIES; i++) {
        char path[64];
        snprintf(path, sizeof path, VRIG_TINY_OF("%s"), vrig_families[i]);
        run_narrow(path, "cpu");
        run_narrow(path, "ref");
    }
}

static void test_quantized_weights_run(void **state)
{
    (void)state;
    run_narrow("tests/golden/packed_mistral", "cpu");
    run_narrow("tests/golden/packed_qwen2", "cpu");
    run_narrow("tests/golden/bytes_qwen2", "cpu"); /* uniform codes */
}

static void test_small_model_is_not_narrowed(void **state)
{
    vrig r;
    vptq_err err = {0};
    vptq_narrow n;
    (void)state;
    vrig_open(&r, VRIG_TINY, NULL, false);
    assert_int_equal(vptq_model_narrow(&r.m, &r.dev, &n, &err), VPTQ_OK);
    assert_ptr_equal(n.model, &r.m);
    vptq_narrow_release(&n);
    assert_int_equal(vptq_model_narrow_to(&r.m, weights_of(&r.m), &r.mem, &n, &err), VPTQ_OK);
    assert_ptr_equal(n.model, &r.m);
    vptq_narrow_release(&n);
    vrig_close(&r);
}

/* A model of 70 billion weights with this description, of which nothing is read. */
static vptq_model_desc large_desc(void)
{
    return (vptq_model_desc){.family = vptq_family_by_model_type("llama"),
                             .hidden = 8192,
                             .intermediate = 28672,
                             .layers = 80,
                             .heads = 64,
                             .kv_heads = 8,
                             .head_dim = 128,
                             .vocab = 32000};
}

static void test_products(void **state)
{
    const vptq_model_desc d = large_desc();
    const double h = 8192, i = 28672, kv = 1024;
    const double linear = 2 * h * h + 2 * kv * h + 3 * h * i, moments = (3 * h * h + i * i) / 2;
    (void)state;
    assert_true(vptq_block_products(&d, LENGTH, false) == linear + h * LENGTH);
    assert_true(vptq_block_products(&d, LENGTH, true) == linear + h * LENGTH + moments);
}

static void test_products_of_experts(void **state)
{
    vptq_model_desc d = large_desc();
    const double h = 8192, e = 1024, kv = 1024;
    (void)state;
    d.family = vptq_family_by_model_type("mixtral");
    d.experts = (vptq_experts){.count = 8, .used = 2, .intermediate = 1024};
    const double attention = 2 * h * h + 2 * kv * h + h * LENGTH;
    assert_true(vptq_block_products(&d, LENGTH, false) == attention + 2 * 3 * e * h);
    /* inputs of q, of o and of the router, and up and down of two experts */
    assert_true(vptq_block_products(&d, LENGTH, true) ==
                attention + 2 * 3 * e * h + 3 * h * h / 2 + 2 * (h * h + e * e) / 2);
}

/* The shapes of a large model, whose tensors are all one. */
static void test_large_model(void **state)
{
    vptq_model_desc d = large_desc();
    const size_t bytes = (size_t)8192 * 8192 * 2;
    const vptq_tensor any = {
        .type = VPTQ_BF16, .dims = 2, .shape = {8192, 8192}, .bytes = bytes};
    vptq_weight linear[VPTQ_LINEAR_DENSE];
    vptq_block block = {.linear = linear};
    vptq_err err = {0};
    vptq_narrow n;
    (void)state;
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        linear[l] = (vptq_weight){8192, 8192, &any, NULL};
    const vptq_model m = {.desc = &d, .blocks = &block, .embedding = &any, .head = &any};
    assert_int_equal(vptq_model_narrow_to(&m, VPTQ_NARROW_WEIGHTS, NULL, &n, &err), VPTQ_OK);
    assert_int_equal(n.model->desc->hidden, 1024);
    assert_int_equal(n.model->desc->intermediate, 3584);
    assert_int_equal(n.model->desc->heads, 8);
    assert_int_equal(n.model->desc->kv_heads, 1);
    assert_int_equal(n.model->blocks[0].linear[VPTQ_LINEAR_DOWN].rows, 1024);
    assert_int_equal(n.model->blocks[0].linear[VPTQ_LINEAR_DOWN].cols, 3584);
    assert_int_equal(vptq_tensor_rows(n.model->embedding), 32000);
    assert_int_equal(vptq_tensor_cols(n.model->embedding), 1024);
    assert_int_equal(n.model->blocks[0].linear[VPTQ_LINEAR_Q].tensor->bytes, 1024 * 1024 * 2);
    vptq_narrow_release(&n);
}

VTEST_MAIN(cmocka_unit_test(test_every_family_runs),
           cmocka_unit_test(test_quantized_weights_run),
           cmocka_unit_test(test_small_model_is_not_narrowed), cmocka_unit_test(test_products),
           cmocka_unit_test(test_products_of_experts), cmocka_unit_test(test_large_model))
