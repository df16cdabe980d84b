/* Makes matrices of additive codes, and their tensors. */
#include "tests/support/vadditive.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/grid.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/support/vtest.h"

vptq_additive_shape vadditive_ragged(void)
{
    return (vptq_additive_shape){.out = 5,
                                 .in = 20,
                                 .v = 4,
                                 .stages = 2,
                                 .bits = {3, 5},
                                 .block_rows = 2,
                                 .block_columns = 12,
                                 .scale_columns = 8};
}

vptq_additive_shape vadditive_lattice(void)
{
    return (vptq_additive_shape){.out = 12,
                                 .in = 40,
                                 .v = 8,
                                 .stages = 2,
                                 .bits = {16, 8},
                                 .block_rows = 12,
                                 .block_columns = 40,
                                 .lattice = true,
                                 .rotated = true};
}

static size_t scale_groups(const vptq_additive_shape *s)
{
    return (s->in - 1) / (size_t)s->scale_columns + 1;
}

static float *numbers(vptq_dtype storage, size_t n, uint64_t seed)
{
    float *x = vtest_normals(n, seed);
    vptq_round_to_n(storage, x, n);
    return x;
}

static void make_codebooks(vadditive *x, uint32_t stage)
{
    const vptq_additive_shape *s = &x->m.a.shape;
    const size_t blocks = vptq_additive_blocks(s), each = ((size_t)1 << s->bits[stage]) * s->v;
    float *codebooks = numbers(x->m.storage, blocks * each, 5 + stage);
    for (size_t i = 0; i < blocks * each; i++)
        if (s->int8) /* scales of 1/32, 1/16, 1/8 */
            vptq_grid_round((float)(1 << i / each % 3) / 32, &codebooks[i], 1);
    for (size_t b = 0; s->sparse && b < blocks; b++)
        memset(codebooks + b * each, 0, s->v * sizeof *codebooks);
    x->m.a.codebooks[stage] = x->codebooks[stage] = codebooks;
}

static void make_stage(vadditive *x, uint32_t stage)
{
    const vptq_additive_shape *s = &x->m.a.shape;
    const vptq_rng rng = vptq_rng_make(3, stage, 0, VPTQ_RNG_TEST);
    const size_t words = vptq_additive_row_words(s, stage), vectors = s->in / s->v;
    uint32_t *codes = vtest_alloc(s->out * words, sizeof *codes);
    for (size_t i = 0; i < s->out * vectors; i++)
        vptq_bits_put(codes + i / vectors * words, i % vectors, s->bits[stage],
                      (uint32_t)vptq_rng_below(&rng, i, UINT64_C(1) << s->bits[stage]));
    x->m.a.codes[stage] = x->codes[stage] = codes;
    if (s->lattice)
        x->m.a.stage_scales[stage] = stage ? 0.03F : 0.7F;
    else
        make_codebooks(x, stage);
}

void vadditive_make(vadditive *x, vptq_additive_shape s, vptq_dtype storage)
{
    *x = (vadditive){.m = {.name = "P", .a.shape = s, .storage = storage}};
    for (uint32_t m = 0; m < s.stages; m++)
        make_stage(x, m);
    if (s.scale_columns)
        x->m.a.scales = x->scales = numbers(storage, s.out * scale_groups(&s), 9);
    if (!s.rotated)
        return;
    x->m.a.row_signs = x->row_signs = vtest_alloc(s.out, 1);
    x->m.a.column_signs = x->column_signs = vtest_alloc(s.in, 1);
    for (size_t r = 0; r < s.out; r++)
        x->row_signs[r] = r * r % 3 == 1;
    for (size_t c = 0; c < s.in; c++)
        x->column_signs[c] = c * c % 7 == 1;
}

void vadditive_free(vadditive *x)
{
    for (uint32_t m = 0; m < x->m.a.shape.stages; m++) {
        free(x->codes[m]);
        free(x->codebooks[m]);
    }
    free(x->scales);
    free(x->row_signs);
    free(x->column_signs);
}

uint64_t vadditive_digest(const vptq_additive *a)
{
    const vptq_additive_shape *s = &a->shape;
    uint64_t h = vptq_hash(a->stage_scales, s->stages * sizeof *a->stage_scales, 0);
    for (uint32_t m = 0; m < s->stages; m++) {
        const size_t entries = vptq_additive_blocks(s) << s->bits[m];
        h = vptq_hash(a->codes[m], s->out * vptq_additive_row_words(s, m) * sizeof(uint32_t),
                      h);
        if (a->codebooks[m])
            h = vptq_hash(a->codebooks[m], entries * s->v * sizeof(float), h);
    }
    if (a->scales)
        h = vptq_hash(a->scales, s->out * scale_groups(s) * sizeof *a->scales, h);
    if (!a->row_signs)
        return h;
    h = vptq_hash(a->row_signs, s->out, h);
    return vptq_hash(a->column_signs, s->in, h);
}

void vadditive_set(const vptq_additive_matrix *m, vptq_tensor_set *set, const char *without,
                   const vptq_tensor *extra)
{
    vptq_err err = {0};
    vptq_tensor list[VPTQ_ADDITIVE_MAX_TENSORS];
    size_t count = 0;
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_additive_tensors(m, &set->arena, list, &count, &err), &err);
    for (size_t i = 0; i < count; i++)
        if (!without || strcmp(list[i].name, without) != 0)
            assert_ok(vptq_tensor_set_add(set, &list[i], &err), &err);
    if (extra)
        assert_ok(vptq_tensor_set_add(set, extra, &err), &err);
    assert_ok(vptq_tensor_set_finish(set, &err), &err);
}
