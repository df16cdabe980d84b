/* Plain C, for machines without the wider instruction sets. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/vq_kernels.h"

enum { LANES = VPTQ_CODEBOOK_LANES };

/* Four lanes that the compiler keeps in one register of whatever machine it builds for. */
typedef float quad __attribute__((vector_size(16)));
enum { QUADS = LANES / 4 };

static void score_block(const float *c, size_t v, const float *x, float score[LANES])
{
    quad sum[QUADS], row[QUADS];
    memcpy(sum, c, sizeof sum);
    for (size_t d = 0; d < v; d++) {
        memcpy(row, c + (1 + d) * LANES, sizeof row);
        for (size_t l = 0; l < QUADS; l++)
            sum[l] += row[l] * x[d];
    }
    memcpy(score, sum, sizeof sum);
}

static float best_of(const float score[LANES])
{
    float top = -INFINITY;
    for (size_t l = 0; l < LANES; l++)
        top = score[l] > top ? score[l] : top;
    return top;
}

static uint32_t nearest_one(const vptq_codebook *codebook, const float *x)
{
    float best[LANES], score[LANES];
    uint32_t where[LANES] = {0};
    for (size_t l = 0; l < LANES; l++)
        best[l] = -INFINITY;
    for (size_t b = 0; b < codebook->blocks; b++) {
        score_block(codebook->data + b * (1 + codebook->v) * LANES, codebook->v, x, score);
        for (size_t l = 0; l < LANES; l++) {
            uint32_t better = score[l] > best[l] ? UINT32_MAX : 0;
            where[l] = (where[l] & ~better) | ((uint32_t)b & better);
            best[l] = score[l] > best[l] ? score[l] : best[l];
        }
    }
    uint32_t found = UINT32_MAX;
    float top = best_of(best);
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t j = where[l] * LANES + l;
        if (best[l] >= top && best[l] > -INFINITY && j < found)
            found = j;
    }
    return found < UINT32_MAX ? found : 0;
}

static void nearest_none(const vptq_codebook *codebook, size_t n, const float *x, uint32_t *idx)
{
    for (size_t i = 0; i < n; i++)
        idx[i] = nearest_one(codebook, x + i * codebook->v);
}

static void eliminate_none(size_t count, const float *err, const float *u, size_t ldu, float *z)
{
    for (size_t s = 0; s < count; s++) {
        for (size_t l = 0; l < VPTQ_PANEL; l++)
            z[l] -= err[s * VPTQ_PANEL + l] * u[s * ldu];
    }
}

const vptq_vq_kernels vptq_vq_kernels_none = {nearest_none, eliminate_none};
