/* Lays codebooks out for the kernels. */
#include "lib/backend/cpu/codebook.h"

#include <math.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

static size_t codebook_blocks(uint32_t k)
{
    return vptq_round_up(k, VPTQ_CODEBOOK_LANES) / VPTQ_CODEBOOK_LANES;
}

size_t vptq_codebook_floats(uint32_t v, uint32_t k)
{
    return codebook_blocks(k) * (1 + (size_t)v) * VPTQ_CODEBOOK_LANES;
}

typedef struct codebook_job {
    uint32_t v, k;
    const float *c;
    float *data;
} codebook_job;

static void lay_blocks(void *arg, size_t begin, size_t end, int thread)
{
    enum { LANES = VPTQ_CODEBOOK_LANES };
    const codebook_job *job = arg;
    const size_t v = job->v;
    (void)thread;
    for (size_t b = begin; b < end; b++) {
        float *restrict to = job->data + b * (1 + v) * LANES;
        const float *c = job->c + b * LANES * v;
        const size_t count = job->k - b * LANES < LANES ? job->k - b * LANES : LANES;
        double norm[LANES] = {0};
        for (size_t d = 0; d < v; d++) {
            float row[LANES] = {0};
            if (count == LANES) {
                for (size_t l = 0; l < LANES; l++)
                    row[l] = c[l * v + d];
            } else {
                for (size_t l = 0; l < count; l++)
                    row[l] = c[l * v + d];
            }
            for (size_t l = 0; l < LANES; l++)
                norm[l] += (double)row[l] * (double)row[l];
            memcpy(to + (1 + d) * LANES, row, sizeof row);
        }
        for (size_t l = 0; l < LANES; l++)
            to[l] = l < count ? (float)(-0.5 * norm[l]) : -INFINITY;
    }
}

vptq_codebook vptq_codebook_lay(const vptq_dev *dev, uint32_t v, uint32_t k, const float *c,
                                float *data)
{
    codebook_job job = {.v = v, .k = k, .c = c, .data = data};
    vptq_codebook codebook = {.v = v, .blocks = codebook_blocks(k), .data = data};
    vptq_parallel_for(dev->ctx->threads, codebook.blocks, 32, lay_blocks, &job);
    return codebook;
}
