/* Random quantized matrices, packed and decoded independently of the library. */
#include "tests/support/vmatrix.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/rng.h"
#include "tests/support/vtest.h"

static uint32_t draw(uint64_t seed, size_t i, uint32_t n)
{
    vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_TEST);
    return (uint32_t)vptq_rng_below(&rng, i, n);
}

/* Writes an entry bit by bit, as the format defines it. */
static void pack_row(const uint32_t *main, const uint32_t *res, const vptq_vq_shape *s,
                     uint32_t *words)
{
    unsigned main_bits = vptq_log2u(s->k), bits = vptq_vq_index_bits(s);
    for (size_t c = 0; c < s->group_size; c++) {
        for (unsigned b = 0; b < bits; b++) {
            uint32_t bit = b < main_bits ? main[c] >> b : res[c] >> (b - main_bits);
            size_t at = c * bits + b;
            words[at / 32] |= (bit & 1) << (at % 32);
        }
    }
}

static void matrix_codes(vmatrix *m, const vptq_vq_shape *s)
{
    size_t vector_rows = vptq_vq_vector_rows(s), rows = s->groups * vector_rows;
    m->main = vtest_alloc(rows * s->group_size, sizeof *m->main);
    m->res = vtest_alloc(rows * s->group_size, sizeof *m->res);
    m->indices = vtest_alloc(rows * vptq_vq_row_words(s), sizeof *m->indices);
    for (size_t i = 0; i < rows * s->group_size; i++) {
        m->main[i] = i % 7 == 0 ? s->k - 1 : draw(1, i, s->k);
        m->res[i] = s->k_res ? (i % 5 == 0 ? s->k_res - 1 : draw(2, i, s->k_res)) : 0;
    }
    for (size_t r = 0; r < rows; r++)
        pack_row(m->main + r * s->group_size, m->res + r * s->group_size, s,
                 m->indices + r * vptq_vq_row_words(s));
}

void vmatrix_make(vmatrix *m, const vptq_vq_shape *s)
{
    memset(m, 0, sizeof *m);
    matrix_codes(m, s);
    m->centroids = vtest_normals((size_t)s->groups * s->k * s->v, 11);
    m->centroids[(size_t)s->v * (s->k - 1)] = -0.0F;
    vptq_round_to_n(VPTQ_F16, m->centroids, (size_t)s->groups * s->k * s->v);
    if (s->k_res) {
        m->res_centroids = vtest_normals((size_t)s->groups * s->k_res * s->v, 12);
        vptq_round_to_n(VPTQ_F16, m->res_centroids, (size_t)s->groups * s->k_res * s->v);
        for (size_t i = 0; i < (size_t)s->groups * s->k_res * s->v; i++)
            m->res_centroids[i] *= 0.125F; /* smaller, as residuals are */
    }
    if (s->outliers) {
        size_t count = (size_t)((s->out + s->v0 - 1) / s->v0) * s->outliers;
        m->outlier_indices = vtest_alloc(count, sizeof *m->outlier_indices);
        for (size_t i = 0; i < count; i++)
            m->outlier_indices[i] = (uint16_t)draw(3, i, s->k0);
        m->outlier_centroids = vtest_normals((size_t)s->k0 * s->v0, 13);
        vptq_round_to_n(VPTQ_F16, m->outlier_centroids, (size_t)s->k0 * s->v0);
    }
    if (s->has_perm) {
        m->perm = vtest_alloc(s->in, sizeof *m->perm);
        for (size_t p = 0; p < s->in; p++) { /* inside-out shuffle */
            size_t other = draw(4, p, (uint32_t)p + 1);
            m->perm[p] = m->perm[other];
            m->perm[other] = (uint16_t)p;
        }
    }
    if (s->has_norm) {
        m->scale = vtest_normals(s->in, 14);
        m->bias = vtest_normals(s->in, 15);
    }
    m->q = (vptq_vq){*s,
                     m->indices,
                     m->centroids,
                     m->res_centroids,
                     m->outlier_indices,
                     m->outlier_centroids,
                     m->perm,
                     m->scale,
                     m->bias};
}

void vmatrix_free(vmatrix *m)
{
    free(m->indices);
    free(m->main);
    free(m->res);
    free(m->outlier_indices);
    free(m->perm);
    free(m->centroids);
    free(m->res_centroids);
    free(m->outlier_centroids);
    free(m->scale);
    free(m->bias);
}

void vmatrix_decode(const vmatrix *m, float *w)
{
    const vptq_vq_shape *s = &m->q.shape;
    size_t vector_rows = vptq_vq_vector_rows(s);
    for (size_t p = 0; p < s->in; p++) {
        size_t column = m->perm ? m->perm[p] : p;
        for (size_t r = 0; r < s->out; r++) {
            volatile float value; /* rounds every operation separately */
            if (p < s->outliers) {
                size_t o = m->outlier_indices[r / s->v0 * s->outliers + p];
                value = m->outlier_centroids[o * s->v0 + r % s->v0];
            } else {
                size_t g = (p - s->outliers) / s->group_size;
                size_t at = (g * vector_rows + r / s->v) * s->group_size +
                            (p - s->outliers) % s->group_size;
                value = m->centroids[(g * s->k + m->main[at]) * s->v + r % s->v];
                if (s->k_res)
                    value =
                        value + m->res_centroids[(g * s->k_res + m->res[at]) * s->v + r % s->v];
            }
            if (m->scale) {
                value = value * m->scale[column];
                value = value + m->bias[column];
            }
            w[r * s->in + column] = value;
        }
    }
}
