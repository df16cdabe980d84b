/* The op vq_descend_output of the reference backend, one vector at a time and in double. */
#include <string.h>

#include "lib/backend/ref/ref.h"

enum { BLOCK = VPTQ_OUTPUT_ROWS };

/* K_ij; 0 outside the blocks. */
static double entry(const vptq_descend_output_args *d, size_t i, size_t j)
{
    const size_t block = i / BLOCK;
    return j / BLOCK == block
               ? (double)d->output[(block * BLOCK + i % BLOCK) * BLOCK + j % BLOCK]
               : 0;
}

/* g [v] = the gradient of the vector at `row` in column t after all changes so far. */
static void gradient(const vptq_descend_output_args *d, size_t t, size_t row, double *g)
{
    const size_t v = d->v;
    const size_t first = row / BLOCK * BLOCK, end = (row + v - 1) / BLOCK * BLOCK + BLOCK;

    for (size_t e = 0; e < v; e++)
        g[e] = (double)d->g[t * d->ldg + row + e];
    for (size_t s = 0; s <= t; s++)
        for (size_t j = first; j < end && j < d->rows; j++) {
            const double change =
                (double)d->h[s * d->ldh + t] * (double)d->delta[s * d->ldd + j];
            for (size_t e = 0; change != 0 && e < v; e++)
                g[e] += entry(d, row + e, j) * change;
        }
}

/* Chooses a centroid of one codebook. */
static void choose(const vptq_descend_output_args *d, size_t t, size_t row,
                   const float *codebook, uint32_t k, uint32_t *idx)
{
    const size_t v = d->v;
    const double h = (double)d->h[t * d->ldh + t];
    double g[VPTQ_VQ_MAX_V], best = 0;
    const float *old = codebook + *idx * v;
    uint32_t taken = *idx;

    gradient(d, t, row, g);
    for (uint32_t c = 0; c < k; c++) {
        double added = 0;
        for (size_t e = 0; e < v; e++) {
            const double change = (double)codebook[c * v + e] - (double)old[e];
            double product = 0;
            for (size_t f = 0; f < v; f++)
                product +=
                    entry(d, row + e, row + f) * ((double)codebook[c * v + f] - (double)old[f]);
            added += change * (h * product + 2 * g[e]);
        }
        if (added < best) {
            best = added;
            taken = c;
        }
    }
    *idx = taken;
}

static void decode(const vptq_descend_output_args *d, size_t t, size_t row, float *delta)
{
    const size_t at = t * d->ldi + row / d->v;
    float *q = d->q + t * d->ldq + row;

    for (size_t e = 0; e < d->v; e++) {
        float now = d->centroids[(size_t)d->idx[at] * d->v + e];
        if (d->k_res)
            now += d->res_centroids[(size_t)d->idx_res[at] * d->v + e];
        delta[e] += now - q[e];
        q[e] = now;
    }
}

vptq_status vptq_ref_vq_descend_output(vptq_dev *dev, const vptq_descend_output_args *d,
                                       vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t t = 0; t < d->cols; t++)
        memset(d->delta + t * d->ldd, 0, d->rows * sizeof *d->delta);
    for (size_t t = 0; t < d->cols; t++)
        for (size_t row = 0; d->h[t * d->ldh + t] > 0 && row < d->rows; row += d->v) {
            const size_t at = t * d->ldi + row / d->v;
            float *delta = d->delta + t * d->ldd + row;
            choose(d, t, row, d->centroids, d->k, d->idx + at);
            decode(d, t, row, delta);
            if (!d->k_res)
                continue;
            choose(d, t, row, d->res_centroids, d->k_res, d->idx_res + at);
            decode(d, t, row, delta);
        }
    return VPTQ_OK;
}
