/* Dequantizes the ten GGUF block layouts (quantize.c has the way back).  Every product and sum
 * is one float operation in the order of ggml's reference code, which fixes the bits of the
 * result.  Block fields are read byte by byte because blocks are only aligned to 2 bytes.
 * https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c and ggml-common.h */
#include "formats/gguf/quants.h"

#include "lib/base/half.h"
#include "lib/base/le.h"
#include "lib/base/status.h"

enum { SMALL = 32, SUPER = 256 }; /* elements of a plain block and of a K-quant super-block */

static float half_at(const uint8_t *p)
{
    return vptq_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* d f16, qs[16]: element j in the low nibble of qs[j], element j + 16 in the high one. */
static void q4_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < SMALL / 2; j++) {
        y[j] = (float)((b[2 + j] & 15) - 8) * d;
        y[j + SMALL / 2] = (float)((b[2 + j] >> 4) - 8) * d;
    }
}

/* d, m f16, qs[16] */
static void q4_1(const uint8_t *b, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < SMALL / 2; j++) {
        y[j] = (float)(b[4 + j] & 15) * d + m;
        y[j + SMALL / 2] = (float)(b[4 + j] >> 4) * d + m;
    }
}

/* Five-bit blocks: element j is a nibble of qs[16] with bit j of the word qh as its high bit.
 */
static void five_bits(const uint8_t *qh_bytes, const uint8_t *qs, int value[SMALL])
{
    uint32_t qh = (uint32_t)vptq_get_le(qh_bytes, 4);
    for (int j = 0; j < SMALL / 2; j++) {
        value[j] = (qs[j] & 15) + (qh & UINT32_C(1) << j ? 16 : 0);
        value[j + SMALL / 2] = (qs[j] >> 4) + (qh & UINT32_C(0x10000) << j ? 16 : 0);
    }
}

/* d f16, qh u32, qs[16] */
static void q5_0(const uint8_t *b, float *y)
{
    int value[SMALL];
    float d = half_at(b);
    five_bits(b + 2, b + 6, value);
    for (int j = 0; j < SMALL; j++)
        y[j] = (float)(value[j] - 16) * d;
}

/* d, m f16, qh u32, qs[16] */
static void q5_1(const uint8_t *b, float *y)
{
    int value[SMALL];
    float d = half_at(b), m = half_at(b + 2);
    five_bits(b + 4, b + 8, value);
    for (int j = 0; j < SMALL; j++)
        y[j] = (float)value[j] * d + m;
}

/* d f16, qs[32] signed */
static void q8_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < SMALL; j++)
        y[j] = (float)(int8_t)b[2 + j] * d;
}

/* scales[16] (scale low nibble, minimum high nibble, one per 16 elements), qs[64], d, dmin f16.
 * 128 elements share 32 bytes: run r of 32 elements is bit pair r. */
static void q2_k(const uint8_t *b, float *y)
{
    const uint8_t *scales = b, *qs = b + 16;
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int run = 0; run < SUPER / 16; run++) {
        const uint8_t *q = qs + run / 8 * 32 + run % 2 * 16;
        int shift = run % 8 / 2 * 2;
        float scale = d * (float)(scales[run] & 15), min = dmin * (float)(scales[run] >> 4);
        for (int l = 0; l < 16; l++)
            y[run * 16 + l] = scale * (float)(q[l] >> shift & 3) - min;
    }
}

/* hmask[32], qs[64], scales[12], d f16.  Scale i has its low 4 bits in nibble i / 8 of byte
 * i % 8 and its high 2 bits in pair i / 4 of byte 8 + i % 4; a clear mask bit means minus 4. */
static void q3_k(const uint8_t *b, float *y)
{
    const uint8_t *hmask = b, *qs = b + 32, *scales = b + 96;
    float d = half_at(b + 108);
    for (int run = 0; run < SUPER / 16; run++) {
        const uint8_t *q = qs + run / 8 * 32 + run % 2 * 16, *h = hmask + run % 2 * 16;
        int shift = run % 8 / 2 * 2, bit = run / 2;
        int low = scales[run % 8] >> run / 8 * 4 & 15;
        int high = scales[8 + run % 4] >> run / 4 * 2 & 3;
        float scale = d * (float)((low | high << 4) - 32);
        for (int l = 0; l < 16; l++)
            y[run * 16 + l] = scale * (float)((q[l] >> shift & 3) - (h[l] >> bit & 1 ? 0 : 4));
    }
}

/* Six-bit scale and minimum j of 8, from the 12 bytes that Q4_K and Q5_K share. */
static void scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *min = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

/* d, dmin f16, scales[12], then qs: 64 elements share 32 bytes, low nibbles first.  qh, if not
 * NULL, holds the fifth bit of element l of run r as bit r of qh[l]. */
static void k_nibbles(const uint8_t *b, const uint8_t *qh, const uint8_t *qs, float *y)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int run = 0; run < SUPER / 32; run++) {
        const uint8_t *q = qs + run / 2 * 32;
        int shift = run % 2 * 4, sc, mn;
        scale_min(b + 4, run, &sc, &mn);
        float scale = d * (float)sc, min = dmin * (float)mn;
        for (int l = 0; l < 32; l++) {
            int value = (q[l] >> shift & 15) | (qh ? (qh[l] >> run & 1) << 4 : 0);
            y[run * 32 + l] = scale * (float)value - min;
        }
    }
}

static void q4_k(const uint8_t *b, float *y)
{
    k_nibbles(b, NULL, b + 16, y);
}

static void q5_k(const uint8_t *b, float *y)
{
    k_nibbles(b, b + 16, b + 48, y);
}

/* ql[128], qh[64], scales[16] signed (one per 16 elements), d f16.  128 elements share 64 bytes
 * of ql (two runs of 32 in low nibbles, then two in high ones) and 32 of qh (pair per run). */
static void q6_k(const uint8_t *b, float *y)
{
    const uint8_t *scales = b + 192;
    float d = half_at(b + 208);
    for (int run = 0; run < SUPER / 16; run++) {
        int part = run / 8, r = run % 8 / 2, half = run % 2 * 16;
        const uint8_t *ql = b + part * 64 + r % 2 * 32 + half;
        const uint8_t *qh = b + 128 + part * 32 + half;
        float scale = d * (float)(int8_t)scales[run];
        for (int l = 0; l < 16; l++) {
            int value = (ql[l] >> r / 2 * 4 & 15) | (qh[l] >> r * 2 & 3) << 4;
            y[run * 16 + l] = scale * (float)(value - 32);
        }
    }
}

typedef void (*block_fn)(const uint8_t *b, float *y);

static const block_fn block_fns[VPTQ_DTYPE_COUNT] = {
    [VPTQ_Q4_0] = q4_0, [VPTQ_Q4_1] = q4_1, [VPTQ_Q5_0] = q5_0, [VPTQ_Q5_1] = q5_1,
    [VPTQ_Q8_0] = q8_0, [VPTQ_Q2_K] = q2_k, [VPTQ_Q3_K] = q3_k, [VPTQ_Q4_K] = q4_k,
    [VPTQ_Q5_K] = q5_k, [VPTQ_Q6_K] = q6_k,
};

void vptq_ggml_dequantize(vptq_dtype type, const uint8_t *src, size_t n, float *dst)
{
    const vptq_dtype_info *info = vptq_dtype_get(type);
    block_fn fn = block_fns[type];
    VPTQ_BUG_IF(!fn || n % info->block != 0);
    for (size_t i = 0; i < n / info->block; i++)
        fn(src + i * info->bytes, dst + i * info->block);
}
