/* Weights on a device with its own memory: they go there once, as they are stored, and are
 * uploaded in tiles if memory is short, with the same results. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/forward_internal.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

enum { HIDDEN = VRIG_HIDDEN, VOCAB = VRIG_VOCAB, LENGTH = 20, RUNS = 3 };

static size_t uploaded(void)
{
    return (size_t)cuda_emu_count().uploaded;
}

/* Bytes as stored; the tiny models have weights of 16 or 32 bits. */
static size_t tensor_bytes(const vptq_tensor *t)
{
    return t->bytes;
}

/* Bytes of the linear layers of a block. */
static size_t block_bytes(const vptq_model *m, uint32_t layer)
{
    size_t bytes = 0;
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_linear_exists(m->desc, layer, (vptq_linear)l))
            bytes += tensor_bytes(m->blocks[layer].linear[l].tensor);
    return bytes;
}

/* Bytes of all weights that a step multiplies by, with the embedding. */
static size_t model_bytes(const vptq_model *m)
{
    size_t bytes = tensor_bytes(m->embedding);
    if (m->head != m->embedding)
        bytes += tensor_bytes(m->head);
    for (uint32_t layer = 0; layer < m->desc->layers; layer++)
        bytes += block_bytes(m, layer);
    return bytes;
}

/* Samples tokens after a prompt. */
static void generate(vptq_forward *f, size_t prompt, int32_t *out)
{
    static const double u = 0.4;
    const vptq_forward_sampling sampling = {.temperature = 1, .top_p = 1, .u = &u};
    int32_t ids[LENGTH];
    vptq_err err;
    for (size_t i = 0; i < prompt; i++)
        ids[i] = (int32_t)(i * 7 % VOCAB);
    for (size_t i = prompt; i < LENGTH; i++) {
        const size_t from = i == prompt ? 0 : i - 1;
        assert_ok(vptq_forward_next(f, ids + from, i - from, &sampling, &ids[i], &err), &err);
    }
    memcpy(out, ids, sizeof ids);
}

static void test_generation_uploads_the_model_once(void **state)
{
    (void)state;
    assert_string_equal(vptq_backend_emu()->name, "emu"); /* links the backend */
    for (int i = 0; i < VRIG_DEVICE_FAMILIES; i++) {
        vrig r;
        char path[128];
        int32_t ids[LENGTH];
        snprintf(path, sizeof path, "tests/golden/tiny_%s", vrig_families[i]);
        vrig_open_forward(&r, path, "emu", 1, LENGTH);
        const size_t before = uploaded();
        generate(r.f, 4, ids);
        /* an id and a random number for each token */
        const size_t tokens = LENGTH * (sizeof(int32_t) + sizeof(double));
        assert_in_range(uploaded() - before, model_bytes(&r.m), model_bytes(&r.m) + tokens);
        vrig_close(&r);
    }
}

/* With memory for all, some and none of the weights. */
static void test_generation_with_little_memory(void **state)
{
    (void)state;
    static const size_t limits[] = {0, 190000, 60000};
    int32_t ids[2][LENGTH];
    size_t bytes[3];
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        vrig r;
        vrig_open_forward(&r, VRIG_TINY, "emu", 1, LENGTH);
        if (limits[i])
            cuda_emu_memory(cuda_emu_memory_used() + limits[i]);
        const size_t before = uploaded();
        generate(r.f, 4, ids[i > 0]);
        bytes[i] = uploaded() - before;
        assert_true(i == 0 || bytes[i] > bytes[i - 1] + LENGTH * sizeof(int32_t));
        assert_memory_equal(ids[i > 0], ids[0], sizeof *ids);
        vrig_close(&r);
        cuda_emu_memory(0);
    }
}

/* A block is uploaded after the one before it was queued, if both fit, and only once; the
 * results are the same. */
static void test_blocks_are_uploaded_ahead(void **state)
{
    (void)state;
    float hidden[2][LENGTH * HIDDEN];
    for (int fits = 0; fits < 2; fits++) {
        vrig r;
        vptq_err err;
        int32_t ids[LENGTH];
        const size_t starts[] = {0, LENGTH};
        vrig_open_forward(&r, VRIG_TINY, "emu", 1, LENGTH);
        const uint32_t layers = r.m.desc->layers;
        for (int i = 0; i < LENGTH; i++)
            ids[i] = i * 5 % VOCAB;
        assert_ok(vptq_forward_embed(r.f, ids, LENGTH, hidden[fits], &err), &err);
        for (uint32_t layer = 0; layer < layers; layer++) {
            const size_t before = uploaded(), own = block_bytes(&r.m, layer);
            const size_t next = layer + 1 < layers ? block_bytes(&r.m, layer + 1) : 0;
            const size_t others = sizeof *hidden; /* the group's hidden states */
            if (!fits)                            /* activations and one block */
                cuda_emu_memory(cuda_emu_memory_used() + (layer ? 0 : 40000) + own);
            assert_ok(vptq_forward_block(r.f, layer, starts, 1, hidden[fits], &err), &err);
            assert_int_equal(uploaded() - before,
                             others + (fits ? (layer ? 0 : own) + next : own));
        }
        cuda_emu_memory(0);
        vrig_close(&r);
    }
    assert_memory_equal(hidden[0], hidden[1], sizeof *hidden);
}

VTEST_MAIN(cmocka_unit_test(test_generation_uploads_the_model_once),
           cmocka_unit_test(test_generation_with_little_memory),
           cmocka_unit_test(test_blocks_are_uploaded_ahead))
