/* The table of element types (dtype.h). */
#include "lib/base/dtype.h"

#include <string.h>

#include "lib/base/half.h"
#include "lib/base/mem.h"

/* Block layouts: ggml's type traits (elements and bytes per block). */
static const vptq_dtype_info types[VPTQ_DTYPE_COUNT] = {
    [VPTQ_F32] = {"F32", "F32", 1, 4, true},      [VPTQ_F16] = {"F16", "F16", 1, 2, true},
    [VPTQ_BF16] = {"BF16", "BF16", 1, 2, true},   [VPTQ_F64] = {"F64", "F64", 1, 8, true},
    [VPTQ_I8] = {"I8", "I8", 1, 1, false},        [VPTQ_U8] = {"U8", "U8", 1, 1, false},
    [VPTQ_I16] = {"I16", "I16", 1, 2, false},     [VPTQ_U16] = {"U16", "U16", 1, 2, false},
    [VPTQ_I32] = {"I32", "I32", 1, 4, false},     [VPTQ_U32] = {"U32", "U32", 1, 4, false},
    [VPTQ_I64] = {"I64", "I64", 1, 8, false},     [VPTQ_U64] = {"U64", "U64", 1, 8, false},
    [VPTQ_BOOL] = {"BOOL", "BOOL", 1, 1, false},  [VPTQ_Q4_0] = {"Q4_0", NULL, 32, 18, true},
    [VPTQ_Q4_1] = {"Q4_1", NULL, 32, 20, true},   [VPTQ_Q5_0] = {"Q5_0", NULL, 32, 22, true},
    [VPTQ_Q5_1] = {"Q5_1", NULL, 32, 24, true},   [VPTQ_Q8_0] = {"Q8_0", NULL, 32, 34, true},
    [VPTQ_Q2_K] = {"Q2_K", NULL, 256, 84, true},  [VPTQ_Q3_K] = {"Q3_K", NULL, 256, 110, true},
    [VPTQ_Q4_K] = {"Q4_K", NULL, 256, 144, true}, [VPTQ_Q5_K] = {"Q5_K", NULL, 256, 176, true},
    [VPTQ_Q6_K] = {"Q6_K", NULL, 256, 210, true},
};

const vptq_dtype_info *vptq_dtype_get(vptq_dtype t)
{
    VPTQ_BUG_IF((unsigned)t >= VPTQ_DTYPE_COUNT);
    return &types[t];
}

vptq_status vptq_dtype_from_safetensors(const char *name, vptq_dtype *out, vptq_err *err)
{
    for (int t = 0; t < VPTQ_DTYPE_COUNT; t++) {
        if (types[t].safetensors && !strcmp(name, types[t].safetensors)) {
            *out = (vptq_dtype)t;
            return VPTQ_OK;
        }
    }
    return vptq_fail(err, VPTQ_E_UNSUPPORTED, "unknown element type '%.32s'", name);
}

vptq_status vptq_dtype_from_option(const char *name, vptq_dtype *out, vptq_err *err)
{
    if (!strcmp(name, "f16"))
        *out = VPTQ_F16;
    else if (!strcmp(name, "bf16"))
        *out = VPTQ_BF16;
    else if (!strcmp(name, "f32"))
        *out = VPTQ_F32;
    else
        return vptq_fail(err, VPTQ_E_ARG,
                         "unknown storage type '%.32s' (expected f16, bf16 or f32)", name);
    return VPTQ_OK;
}

bool vptq_dtype_bytes(vptq_dtype t, size_t elements, size_t *out)
{
    const vptq_dtype_info *info = vptq_dtype_get(t);
    return elements % info->block == 0 &&
           vptq_size_mul(elements / info->block, info->bytes, out);
}

float vptq_round_to(vptq_dtype t, float x)
{
    if (t == VPTQ_F16)
        return vptq_f16_to_f32(vptq_f32_to_f16(x));
    if (t == VPTQ_BF16)
        return vptq_bf16_to_f32(vptq_f32_to_bf16(x));
    VPTQ_BUG_IF(t != VPTQ_F32);
    return x;
}

void vptq_round_to_n(vptq_dtype t, float *x, size_t n)
{
    enum { TILE = 512 };
    uint16_t half[TILE];
    VPTQ_BUG_IF(t != VPTQ_F32 && t != VPTQ_F16 && t != VPTQ_BF16);
    if (t == VPTQ_F32)
        return;
    for (size_t i = 0; i < n; i += TILE) {
        size_t m = n - i < TILE ? n - i : TILE;
        if (t == VPTQ_F16) {
            vptq_f32_to_f16_n(x + i, half, m);
            vptq_f16_to_f32_n(half, x + i, m);
        } else {
            vptq_f32_to_bf16_n(x + i, half, m);
            vptq_bf16_to_f32_n(half, x + i, m);
        }
    }
}
