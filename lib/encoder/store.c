/* The stored form.  With one group and no outliers the indices return to the original order of
 * the columns, so that no permutation is stored; otherwise positions stay and perm is stored.
 */
#include <string.h>

#include "lib/base/half.h"
#include "lib/encoder/encoder.h"

static vptq_status pack_indices(const vptq_encoder *enc, const uint32_t **packed, vptq_err *err)
{
    const vptq_vq_shape *s = &enc->columns.shape;
    const size_t words = vptq_vq_row_words(s), vector_rows = vptq_vq_vector_rows(s);
    const unsigned bits = vptq_vq_index_bits(s), main_bits = vptq_log2u(s->k);
    const vptq_column_group *group = vptq_columns_first(&enc->columns);
    uint32_t *indices =
        vptq_arena_zalloc(enc->keep, s->groups * vector_rows * words, sizeof *indices, err);

    if (!indices)
        return VPTQ_E_NOMEM;
    for (size_t g = 0; g < s->groups; g++, group++)
        for (size_t t = 0; t < group->cols; t++) {
            size_t entry =
                s->has_perm ? t : enc->problem.order[group->first + t] % s->group_size;
            for (size_t i = 0; i < vector_rows; i++) {
                uint32_t code = group->idx[t * vector_rows + i];
                if (s->k_res)
                    code |= group->idx_res[t * vector_rows + i] << main_bits;
                vptq_bits_put(indices + (g * vector_rows + i) * words, entry, bits, code);
            }
        }
    *packed = indices;
    return VPTQ_OK;
}

static vptq_status pack_outliers(const vptq_encoder *enc, vptq_vq *vq, vptq_err *err)
{
    const vptq_column_group *g = enc->columns.groups;
    uint16_t *indices =
        vptq_arena_alloc(enc->keep, g->vector_rows * g->cols, sizeof *indices, err);

    if (!indices)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < g->vector_rows; i++)
        for (size_t t = 0; t < g->cols; t++)
            indices[i * g->cols + t] = (uint16_t)g->idx[t * g->vector_rows + i];
    vq->outlier_indices = indices;
    vq->outlier_centroids = g->main;
    return VPTQ_OK;
}

static vptq_status store_perm(const vptq_encoder *enc, vptq_vq *vq, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    uint16_t *perm = vptq_arena_alloc(enc->keep, p->in, sizeof *perm, err);

    if (!perm)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < p->in; i++)
        perm[i] = (uint16_t)p->order[i];
    vq->perm = perm;
    return VPTQ_OK;
}

static vptq_status store_norm(const vptq_encoder *enc, vptq_vq *vq, vptq_err *err)
{
    const vptq_problem *p = &enc->problem;
    float *scale = vptq_arena_alloc(enc->keep, p->in, sizeof *scale, err);
    float *bias = scale ? vptq_arena_alloc(enc->keep, p->in, sizeof *bias, err) : NULL;

    if (!bias)
        return VPTQ_E_NOMEM;
    memcpy(scale, p->scale, p->in * sizeof *scale);
    memcpy(bias, p->bias, p->in * sizeof *bias);
    vptq_round_to_n(p->settings->storage, scale, p->in); /* only VPTQ_ROUND_END needs it */
    vptq_round_to_n(p->settings->storage, bias, p->in);
    vq->scale = scale;
    vq->bias = bias;
    return VPTQ_OK;
}

/* The codebooks of all groups before rounding, one after another. */
static vptq_status join_codebooks(const vptq_encoder *enc, bool residual,
                                  const float **codebooks, vptq_err *err)
{
    const vptq_column_group *group = vptq_columns_first(&enc->columns);
    const uint32_t groups = enc->columns.shape.groups;
    const size_t n = (size_t)(residual ? group->k_res : group->k) * group->v;
    float *all = vptq_arena_alloc(enc->keep, n * groups, sizeof *all, err);

    if (!all)
        return VPTQ_E_NOMEM;
    for (uint32_t g = 0; g < groups; g++)
        memcpy(all + g * n, residual ? group[g].res_f32 : group[g].main_f32, n * sizeof *all);
    *codebooks = all;
    return VPTQ_OK;
}

vptq_status vptq_store(const vptq_encoder *enc, vptq_encoder_result *result, vptq_err *err)
{
    const vptq_vq_shape *s = &enc->columns.shape;
    const vptq_column_group *group = vptq_columns_first(&enc->columns);
    vptq_vq *vq = &result->vq;

    *vq = (vptq_vq){.shape = *s, .centroids = group->main, .res_centroids = group->res};
    VPTQ_CHECK(join_codebooks(enc, false, &result->centroids_f32, err));
    if (s->k_res)
        VPTQ_CHECK(join_codebooks(enc, true, &result->res_centroids_f32, err));
    VPTQ_CHECK(pack_indices(enc, &vq->indices, err));
    if (s->outliers)
        VPTQ_CHECK(pack_outliers(enc, vq, err));
    if (s->has_perm)
        VPTQ_CHECK(store_perm(enc, vq, err));
    return store_norm(enc, vq, err);
}
