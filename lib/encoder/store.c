/* The stored form.  With one group and no outliers the indices go back to the original order of
 * the columns, so that no permutation is stored; else position and order stay, and perm tells.
 */
#include "lib/encoder/store.h"

#include <string.h>

/* The parts of a kind lie one behind the other, as the layout wants its codebooks and indices.
 */
static const vptq_part *first_group(const vptq_encoder *c)
{
    return c->part + (c->shape.outliers ? 1 : 0);
}

static vptq_status pack_indices(const vptq_encoder *c, const uint32_t **out, vptq_err *err)
{
    const vptq_vq_shape *s = &c->shape;
    size_t words = vptq_vq_row_words(s), vector_rows = vptq_vq_vector_rows(s);
    unsigned bits = vptq_vq_index_bits(s), main_bits = vptq_log2u(s->k);
    const vptq_part *group = first_group(c);
    uint32_t *indices =
        vptq_arena_zalloc(c->keep, s->groups * vector_rows * words, sizeof *indices, err);

    if (!indices)
        return VPTQ_E_NOMEM;
    for (size_t g = 0; g < s->groups; g++, group++)
        for (size_t t = 0; t < group->cols; t++) {
            size_t at = s->has_perm ? t : c->metric.order[group->first + t] % s->group_size;
            for (size_t i = 0; i < vector_rows; i++) {
                uint32_t entry = group->idx[t * vector_rows + i];
                if (s->k_res)
                    entry |= group->idx_res[t * vector_rows + i] << main_bits;
                vptq_bits_put(indices + (g * vector_rows + i) * words, at, bits, entry);
            }
        }
    *out = indices;
    return VPTQ_OK;
}

static vptq_status pack_outliers(const vptq_encoder *c, vptq_vq *vq, vptq_err *err)
{
    const vptq_part *p = c->part;
    uint16_t *indices =
        vptq_arena_alloc(c->keep, p->vector_rows * p->cols, sizeof *indices, err);

    if (!indices)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < p->vector_rows; i++)
        for (size_t t = 0; t < p->cols; t++)
            indices[i * p->cols + t] = (uint16_t)p->idx[t * p->vector_rows + i];
    vq->outlier_indices = indices;
    vq->outlier_centroids = p->main;
    return VPTQ_OK;
}

static vptq_status store_perm(const vptq_encoder *c, vptq_vq *vq, vptq_err *err)
{
    uint16_t *perm = vptq_arena_alloc(c->keep, c->in, sizeof *perm, err);
    if (!perm)
        return VPTQ_E_NOMEM;
    for (size_t p = 0; p < c->in; p++)
        perm[p] = (uint16_t)c->metric.order[p];
    vq->perm = perm;
    return VPTQ_OK;
}

static vptq_status store_norm(const vptq_encoder *c, vptq_vq *vq, vptq_err *err)
{
    float *scale = vptq_arena_alloc(c->keep, c->in, sizeof *scale, err);
    float *bias = scale ? vptq_arena_alloc(c->keep, c->in, sizeof *bias, err) : NULL;
    if (!bias)
        return VPTQ_E_NOMEM;
    memcpy(scale, c->metric.scale, c->in * sizeof *scale);
    memcpy(bias, c->metric.bias, c->in * sizeof *bias);
    vptq_round_to_n(c->s->storage, scale, c->in); /* changes nothing but the `end` rounding */
    vptq_round_to_n(c->s->storage, bias, c->in);
    vq->scale = scale;
    vq->bias = bias;
    return VPTQ_OK;
}

/* The codebooks of all groups before rounding, one after another. */
static vptq_status join_codebooks(const vptq_encoder *c, bool residual, const float **codebook,
                                  vptq_err *err)
{
    const vptq_part *group = first_group(c);
    size_t n = (size_t)(residual ? group->k_res : group->k) * group->v;
    float *all = vptq_arena_alloc(c->keep, n * c->shape.groups, sizeof *all, err);

    if (!all)
        return VPTQ_E_NOMEM;
    for (uint32_t g = 0; g < c->shape.groups; g++)
        memcpy(all + g * n, residual ? group[g].res_f32 : group[g].main_f32, n * sizeof *all);
    *codebook = all;
    return VPTQ_OK;
}

vptq_status vptq_store(vptq_encoder *c, vptq_encoder_result *result, vptq_err *err)
{
    const vptq_part *group = first_group(c);
    vptq_vq *vq = &result->vq;

    *vq = (vptq_vq){.shape = c->shape, .centroids = group->main, .res_centroids = group->res};
    VPTQ_CHECK(join_codebooks(c, false, &result->centroids_f32, err));
    if (c->shape.k_res)
        VPTQ_CHECK(join_codebooks(c, true, &result->res_centroids_f32, err));
    VPTQ_CHECK(pack_indices(c, &vq->indices, err));
    if (c->shape.outliers)
        VPTQ_CHECK(pack_outliers(c, vq, err));
    if (c->shape.has_perm)
        VPTQ_CHECK(store_perm(c, vq, err));
    return store_norm(c, vq, err);
}
