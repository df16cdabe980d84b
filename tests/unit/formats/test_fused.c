/* Fused tensors: views of their rows, and tensors that are refused. */
#include <stdio.h>
#include <string.h>

#include "formats/hf/fused.h"
#include "tests/support/vtest.h"

enum { HIDDEN = 6, HEADS = 2, KV_HEADS = 1, HEAD_DIM = 4, INTER = 3 };
enum { QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM };

static vptq_model_desc describe(const char *type)
{
    return (vptq_model_desc){.family = vptq_family_by_model_type(type),
                             .hidden = HIDDEN,
                             .intermediate = INTER,
                             .layers = 1,
                             .heads = HEADS,
                             .kv_heads = KV_HEADS,
                             .head_dim = HEAD_DIM};
}

typedef struct rig {
    vptq_mem mem;
    vptq_tensor_set set;
    uint16_t qkv[QKV * HIDDEN], gate_up[2 * INTER * HIDDEN];
} rig;

static void add(rig *r, const char *name, uint64_t rows, uint64_t cols, const void *data)
{
    vptq_err err = {0};
    const vptq_tensor t = {.name = name,
                           .type = VPTQ_BF16,
                           .dims = 2,
                           .shape = {rows, cols},
                           .data = data,
                           .bytes = rows * cols * 2,
                           .file = "f"};
    assert_ok(vptq_tensor_set_add(&r->set, &t, &err), &err);
}

static void open_rig(rig *r, uint64_t gate_up_rows)
{
    vptq_err err = {0};
    vptq_mem_init(&r->mem, 0);
    vptq_tensor_set_init(&r->set, &r->mem);
    add(r, "model.layers.0.self_attn.qkv_proj.weight", QKV, HIDDEN, r->qkv);
    add(r, "model.layers.0.mlp.gate_up_proj.weight", gate_up_rows, HIDDEN, r->gate_up);
    add(r, "model.layers.0.mlp.down_proj.weight", HIDDEN, INTER, r->qkv);
    assert_ok(vptq_tensor_set_finish(&r->set, &err), &err);
}

static void close_rig(rig *r)
{
    vptq_tensor_set_release(&r->set);
    assert_int_equal(r->mem.used, 0);
}

static void expect(const rig *r, const char *path, uint64_t rows, const uint16_t *data)
{
    vptq_err err = {0};
    const vptq_tensor *t;
    char name[VPTQ_NAME_MAX];
    snprintf(name, sizeof name, "model.layers.0.%s.weight", path);
    assert_ok(vptq_tensor_need(&r->set, name, rows, HIDDEN, &t, &err), &err);
    assert_ptr_equal(t->data, data);
    assert_int_equal(t->bytes, rows * HIDDEN * sizeof *data);
}

static void test_views(void **state)
{
    (void)state;
    static rig r;
    vptq_err err = {0};
    const vptq_model_desc d = describe("phi3");
    open_rig(&r, 2 * INTER);
    assert_ok(vptq_fused_split(&d, &r.set, &err), &err);
    assert_int_equal(r.set.count, 6);
    const uint16_t *k = r.qkv + HEADS * HEAD_DIM * HIDDEN, *v = k + HEAD_DIM * HIDDEN;
    expect(&r, "self_attn.q_proj", HEADS * HEAD_DIM, r.qkv);
    expect(&r, "self_attn.k_proj", HEAD_DIM, k);
    expect(&r, "self_attn.v_proj", HEAD_DIM, v);
    expect(&r, "mlp.gate_proj", INTER, r.gate_up);
    expect(&r, "mlp.up_proj", INTER, r.gate_up + INTER * HIDDEN);
    assert_ok(vptq_fused_split(&d, &r.set, &err), &err); /* nothing is left to split */
    assert_int_equal(r.set.count, 6);
    close_rig(&r);
}

static void test_other_families(void **state)
{
    (void)state;
    static rig r;
    vptq_err err = {0};
    const vptq_model_desc d = describe("mistral");
    open_rig(&r, 2 * INTER);
    assert_ok(vptq_fused_split(&d, &r.set, &err), &err);
    assert_int_equal(r.set.count, 3);
    close_rig(&r);
}

static void test_refused(void **state)
{
    (void)state;
    static rig r;
    vptq_err err = {0};
    const vptq_model_desc d = describe("phi3");
    open_rig(&r, 2 * INTER + 1);
    assert_fails(
        vptq_fused_split(&d, &r.set, &err), VPTQ_E_SHAPE, &err,
        "f: tensor 'model.layers.0.mlp.gate_up_proj.weight' has shape [7, 6], expected "
        "[6, 6]");
    close_rig(&r);
    open_rig(&r, 2 * INTER);
    add(&r, "model.layers.0.self_attn.qkv_proj.weight_scale", QKV, 1, r.qkv);
    assert_ok(vptq_tensor_set_finish(&r.set, &err), &err);
    assert_fails(vptq_fused_split(&d, &r.set, &err), VPTQ_E_UNSUPPORTED, &err,
                 "f: tensor 'model.layers.0.self_attn.qkv_proj.weight_scale' is part of a "
                 "quantized fused layer; models of type phi3 are supported plain, or with each "
                 "linear layer quantized on its own");
    close_rig(&r);
    open_rig(&r, 2 * INTER);
    add(&r, "model.layers.0.self_attn.q_proj.weight", HEADS * HEAD_DIM, HIDDEN, r.qkv);
    assert_ok(vptq_tensor_set_finish(&r.set, &err), &err);
    assert_fails(vptq_fused_split(&d, &r.set, &err), VPTQ_E_FORMAT, &err,
                 "f: duplicate tensor 'model.layers.0.self_attn.q_proj.weight'");
    close_rig(&r);
}

VTEST_MAIN(cmocka_unit_test(test_views), cmocka_unit_test(test_other_families),
           cmocka_unit_test(test_refused))
