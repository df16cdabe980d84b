/* Makes matrices of the compressed-tensors layout, and their tensors. */
#include "tests/support/vcompressed.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/bits.h"
#include "lib/base/half.h"
#include "tests/support/vtest.h"

/* The numbers of make_compressed.py, with 17 bits. */
static uint32_t noise(size_t i, uint32_t salt)
{
    return ((uint32_t)(i + 1) * (UINT32_C(2654435761) + 2 * salt)) >> 15;
}

static float scale_at(vptq_dtype storage, size_t i)
{
    return storage == VPTQ_F16 ? vptq_f16_to_f32((uint16_t)(0x1C00 + noise(i, 50) % 0x1000))
                               : vptq_bf16_to_f32((uint16_t)(0x3A00 + noise(i, 50) % 0x300));
}

void vcompressed_make(vcompressed *x, vptq_uniform_shape s, vptq_dtype storage,
                      uint32_t activation_bits)
{
    const size_t words = vptq_uniform_row_words(&s), n = s.out * vptq_uniform_groups(&s);
    x->codes = vtest_alloc(s.out * words, sizeof *x->codes);
    x->scales = vtest_alloc(n, sizeof *x->scales);
    x->zeros = s.has_zeros ? vtest_alloc(n, 1) : NULL;
    for (size_t i = 0; i < (size_t)s.out * s.in; i++)
        vptq_bits_put(x->codes + i / s.in * words, i % s.in, s.bits,
                      noise(i, s.bits) & ((1U << s.bits) - 1));
    for (size_t i = 0; i < n; i++) {
        x->scales[i] = scale_at(storage, i);
        if (s.has_zeros)
            x->zeros[i] = (uint8_t)(noise(i, 60) & ((1U << s.bits) - 1));
    }
    x->m = (vptq_compressed_matrix){
        .name = "P",
        .u = {.shape = s, .codes = x->codes, .scales = x->scales, .zeros = x->zeros},
        .storage = storage,
        .activation_bits = activation_bits};
}

void vcompressed_free(vcompressed *x)
{
    free(x->codes);
    free(x->scales);
    free(x->zeros);
}

vptq_compressed_layout vcompressed_layout(const vptq_compressed_matrix *m)
{
    const vptq_uniform_shape *s = &m->u.shape;
    return (vptq_compressed_layout){.bits = s->bits,
                                    .group_size = s->group_size < s->in ? s->group_size : 0,
                                    .symmetric = !m->u.zeros,
                                    .bytes = m->activation_bits > 0,
                                    .activation_bits = m->activation_bits};
}

void vcompressed_set(const vptq_compressed_matrix *m, vptq_tensor_set *set, const char *without,
                     const vptq_tensor *extra)
{
    vptq_err err = {0};
    vptq_tensor list[VPTQ_COMPRESSED_MAX_TENSORS];
    size_t count = 0;
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_compressed_tensors(m, &set->arena, list, &count, &err), &err);
    for (size_t i = 0; i < count; i++)
        if (!without || strcmp(list[i].name, without) != 0)
            assert_ok(vptq_tensor_set_add(set, &list[i], &err), &err);
    if (extra)
        assert_ok(vptq_tensor_set_add(set, extra, &err), &err);
    assert_ok(vptq_tensor_set_finish(set, &err), &err);
}
