/* cpu_gemv.h in plain C. */
#include <string.h>

#include "lib/backend/cpu/gemv.h"
#include "lib/backend/cpu/layout.h"
#include "lib/base/half.h"

static void fields_none(const vptq_fields *f, const uint32_t *row, const void *end,
                        size_t first, size_t count, vptq_place *place)
{
    (void)end;
    vptq_fields_plain(f, row, first, count, place);
}

/* Row of a table of floats; layouts that are made for this set have no others. */
static const float *table_row(const uint8_t *table, uint16_t code, size_t far)
{
    return (const float *)(const void *)(table + 8 * (code * far));
}

static void block_none(const vptq_gemv_block *b)
{
    enum { STRIPS = VPTQ_LAYOUT_STRIPS };
    const size_t record = b->res ? 2 * STRIPS : STRIPS;
    for (size_t s = 0; s < STRIPS; s++) {
        const uint16_t *code = b->codes + s;
        for (size_t j = 0; j < b->columns; j++, code += record) {
            const float *c = table_row(b->main, code[0], b->far);
            const float *d = b->res ? table_row(b->res, code[STRIPS], b->far) : NULL;
            for (size_t i = 0; i < b->n; i++) {
                const float x = b->x[i * b->ldx + j];
                float *sum = b->sum + i * b->ld_sum + s * b->lanes;
                for (size_t e = 0; e < b->lanes; e++)
                    sum[e] += x * (d ? c[e] + d[e] : c[e]);
            }
        }
    }
}

/* Element j of a row of any alignment. */
static float element(vptq_dtype type, const uint8_t *w, size_t j)
{
    float f;
    uint16_t h;
    if (type == VPTQ_F32) {
        memcpy(&f, w + 4 * j, sizeof f);
        return f;
    }
    memcpy(&h, w + 2 * j, sizeof h);
    return type == VPTQ_F16 ? vptq_f16_to_f32(h) : vptq_bf16_to_f32(h);
}

static void dot_none(vptq_dtype type, const void *w, size_t length, size_t n, const float *x,
                     size_t ldx, float *y)
{
    enum { CHAINS = 8 };
    float sum[VPTQ_GEMV_ROWS][CHAINS] = {{0}};
    for (size_t j = 0; j < length; j++) {
        float value = element(type, w, j);
        for (size_t i = 0; i < n; i++)
            sum[i][j % CHAINS] += value * x[i * ldx + j];
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = 0;
        for (size_t c = 0; c < CHAINS; c++)
            y[i] += sum[i][c];
    }
}

static void panel_none(vptq_dtype type, const void *w, size_t row_bytes, size_t n,
                       size_t length, float *panel, size_t width)
{
    const uint8_t *rows = w;
    for (size_t j = 0; j < length; j++)
        for (size_t i = 0; i < width; i++)
            panel[j * width + i] = i < n ? element(type, rows + i * row_bytes, j) : 0;
}

const vptq_gemv_kernels vptq_gemv_kernels_none = {fields_none, block_none, dot_none,
                                                  panel_none};
