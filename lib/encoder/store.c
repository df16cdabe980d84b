/* The stored form.  With one group and no outliers the indices return to the original order of
 * the columns, so that no permutation is stored; otherwise positions stay and perm is stored.
 */
#include <string.h>

#include "lib/base/half.h"
#include "lib/encoder/encoder.h"

/* column [group_size] = the column of the only group that becomes column e without a stored
 * permutation; NULL with one. */
static vptq_status original_order(vptq_encoder *enc, uint32_t **column, vptq_err *err)
{
    const vptq_vq_shape *s = &enc->columns.shape;

    *column = NULL;
    if (s->has_perm)
        return VPTQ_OK;
    *column = vptq_arena_alloc(&enc->scratch, s->group_size, sizeof **column, err);
    if (!*column)
        return VPTQ_E_NOMEM;
    for (uint32_t t = 0; t < s->group_size; t++)
        (*column)[enc->problem.order[t]] = t;
    return VPTQ_OK;
}

static vptq_status pack_group(const vptq_encoder *enc, const vptq_column_group *g,
                              const uint32_t *column, uint32_t *words, vptq_err *err)
{
    const vptq_vq_shape *s = &enc->columns.shape;
    const vptq_pack_args args = {.cols = g->cols,
                                 .vector_rows = g->vector_rows,
                                 .bits = vptq_vq_index_bits(s),
                                 .main_bits = vptq_log2u(s->k),
                                 .idx = g->idx,
                                 .idx_res = g->idx_res,
                                 .column = column,
                                 .words = words,
                                 .ldw = vptq_vq_row_words(s)};
    return enc->dev->ops->vq_pack(enc->dev->state, &args, err);
}

static vptq_status pack_indices(vptq_encoder *enc, const uint32_t **packed, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_vq_shape *s = &enc->columns.shape;
    const size_t size = vptq_vq_vector_rows(s) * vptq_vq_row_words(s), n = s->groups * size;
    vptq_mirror m = vptq_mirror_of(enc->dev);
    uint32_t *indices = vptq_arena_alloc(enc->keep, n, sizeof *indices, err), *column;

    if (!indices)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(original_order(enc, &column, err));
    uint32_t *words = vptq_mirror_take(&m, indices, n, sizeof *indices, VPTQ_MIRROR_DOWNLOAD);
    const uint32_t *on = vptq_mirror_in(&m, column, s->group_size, sizeof *column);
    VPTQ_TRY(vptq_mirror_check(&m, err));
    for (size_t g = 0; g < s->groups; g++)
        VPTQ_TRY(
            pack_group(enc, vptq_columns_first(&enc->columns) + g, on, words + g * size, err));
    *packed = indices;
out:
    return vptq_mirror_end(&m, st, err);
}

static vptq_status pack_outliers(vptq_encoder *enc, vptq_vq *vq, vptq_err *err)
{
    const vptq_column_group *g = enc->columns.groups;
    const size_t n = g->vector_rows * g->cols;
    uint16_t *indices = vptq_arena_alloc(enc->keep, n, sizeof *indices, err);
    uint32_t *idx = indices ? vptq_arena_alloc(&enc->scratch, n, sizeof *idx, err) : NULL;

    if (!idx)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(enc->dev->ops->download(enc->dev->state, idx, g->idx, n * sizeof *idx, err));
    for (size_t i = 0; i < g->vector_rows; i++)
        for (size_t t = 0; t < g->cols; t++)
            indices[i * g->cols + t] = (uint16_t)idx[t * g->vector_rows + i];
    vq->outlier_indices = indices;
    vq->outlier_centroids = g->stored;
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

vptq_status vptq_store(vptq_encoder *enc, vptq_encoder_result *result, vptq_err *err)
{
    const vptq_vq_shape *s = &enc->columns.shape;
    const vptq_column_group *group = vptq_columns_first(&enc->columns);
    vptq_vq *vq = &result->vq;

    *vq =
        (vptq_vq){.shape = *s, .centroids = group->stored, .res_centroids = group->res_stored};
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
