/* Column groups: their codebooks and indices, in host memory and as a device sees them. */
#include <math.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/encoder/encoder.h"

static vptq_status make_group(vptq_column_group *g, uint32_t out, vptq_arena *scratch,
                              vptq_err *err)
{
    g->vector_rows = (out + g->v - 1) / g->v;
    g->rows = g->vector_rows * g->v;
    const size_t n = g->cols * g->vector_rows;
    g->idx = vptq_arena_zalloc(scratch, n, sizeof *g->idx, err);
    if (!g->idx)
        return VPTQ_E_NOMEM;
    if (g->k_res)
        g->idx_res = vptq_arena_zalloc(scratch, n, sizeof *g->idx_res, err);
    return g->k_res && !g->idx_res ? VPTQ_E_NOMEM : VPTQ_OK;
}

static vptq_status make_outliers(vptq_columns *l, vptq_arena *keep, vptq_err *err)
{
    const vptq_vq_shape *s = &l->shape;
    float *main = vptq_arena_zalloc(keep, (size_t)s->k0 * s->v0, sizeof *main, err);
    l->groups[0] =
        (vptq_column_group){.cols = s->outliers, .v = s->v0, .k = s->k0, .main = main};
    return main ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_columns_make(vptq_columns *l, const vptq_vq_shape *shape, vptq_arena *keep,
                              vptq_arena *scratch, vptq_err *err)
{
    const vptq_vq_shape *s = shape;
    const size_t main_size = (size_t)s->k * s->v, res_size = (size_t)s->k_res * s->v;

    *l = (vptq_columns){.shape = *s, .num_groups = s->groups + (s->outliers ? 1 : 0)};
    l->groups = vptq_arena_zalloc(scratch, l->num_groups, sizeof *l->groups, err);
    float *main =
        l->groups ? vptq_arena_zalloc(keep, s->groups * main_size, sizeof *main, err) : NULL;
    float *res = main && s->k_res
                     ? vptq_arena_zalloc(keep, s->groups * res_size, sizeof *res, err)
                     : NULL;
    if (!main || (s->k_res && !res))
        return VPTQ_E_NOMEM;
    if (s->outliers)
        VPTQ_CHECK(make_outliers(l, keep, err));
    for (uint32_t i = 0; i < s->groups; i++)
        vptq_columns_first(l)[i] = (vptq_column_group){.first = s->outliers + i * s->group_size,
                                                       .cols = s->group_size,
                                                       .v = s->v,
                                                       .k = s->k,
                                                       .k_res = s->k_res,
                                                       .main = main + i * main_size,
                                                       .res = res ? res + i * res_size : NULL};
    for (uint32_t i = 0; i < l->num_groups; i++) {
        VPTQ_CHECK(make_group(&l->groups[i], s->out, scratch, err));
        l->rows = l->groups[i].rows > l->rows ? l->groups[i].rows : l->rows;
    }
    return VPTQ_OK;
}

static vptq_status round_codebook(vptq_dtype storage, size_t n, float *codebook, float **before,
                                  vptq_arena *keep, vptq_err *err)
{
    *before = vptq_arena_alloc(keep, n, sizeof **before, err);
    if (!*before)
        return VPTQ_E_NOMEM;
    memcpy(*before, codebook, n * sizeof *codebook);
    vptq_round_to_n(storage, codebook, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(codebook[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "a centroid of %g does not fit into %s",
                             (double)(*before)[i], vptq_dtype_get(storage)->name);
    return VPTQ_OK;
}

vptq_status vptq_columns_round(vptq_columns *l, vptq_dtype storage, vptq_arena *keep,
                               vptq_err *err)
{
    for (uint32_t i = 0; i < l->num_groups; i++) {
        vptq_column_group *g = &l->groups[i];
        VPTQ_CHECK(
            round_codebook(storage, (size_t)g->k * g->v, g->main, &g->main_f32, keep, err));
        if (g->k_res)
            VPTQ_CHECK(round_codebook(storage, (size_t)g->k_res * g->v, g->res, &g->res_f32,
                                      keep, err));
    }
    l->rounded = true;
    return VPTQ_OK;
}

vptq_column_group vptq_group_mirror(vptq_mirror *m, const vptq_column_group *g,
                                    bool indices_back)
{
    const size_t n = g->cols * g->vector_rows, size = g->v * sizeof *g->main;
    const unsigned ways = VPTQ_MIRROR_UPLOAD | (indices_back ? VPTQ_MIRROR_DOWNLOAD : 0);
    vptq_column_group on = *g;

    on.main = vptq_mirror_take(m, g->main, g->k, size, VPTQ_MIRROR_UPLOAD);
    on.res = vptq_mirror_take(m, g->res, g->k_res, size, VPTQ_MIRROR_UPLOAD);
    on.idx = vptq_mirror_take(m, g->idx, n, sizeof *g->idx, ways);
    on.idx_res = vptq_mirror_take(m, g->idx_res, n, sizeof *g->idx_res, ways);
    return on;
}

vptq_status vptq_group_gather(vptq_device *dev, const vptq_column_group *g, const float *main,
                              const float *res, float *q, size_t ldq, vptq_err *err)
{
    const vptq_gather_args args = {.cols = g->cols,
                                   .rows = g->rows,
                                   .v = g->v,
                                   .k = g->k,
                                   .k_res = g->k_res,
                                   .centroids = main,
                                   .res_centroids = res,
                                   .idx = g->idx,
                                   .idx_res = g->idx_res,
                                   .q = q + g->first * ldq,
                                   .ldi = g->vector_rows,
                                   .ldq = ldq};
    return dev->ops->vq_gather(dev->state, &args, err);
}

vptq_status vptq_group_vectors(const vptq_column_group *g, const float *from, size_t ld,
                               vptq_arena *scratch, const float **x, vptq_err *err)
{
    const float *first = from + g->first * ld;

    *x = first;
    if (g->rows == ld)
        return VPTQ_OK;
    float *copy = vptq_arena_alloc(scratch, g->cols * g->rows, sizeof *copy, err);
    if (!copy)
        return VPTQ_E_NOMEM;
    for (size_t t = 0; t < g->cols; t++)
        memcpy(copy + t * g->rows, first + t * ld, g->rows * sizeof *copy);
    *x = copy;
    return VPTQ_OK;
}

vptq_codebooks vptq_group_codebooks(const vptq_column_group *g, uint32_t beam)
{
    return (vptq_codebooks){.v = g->v,
                            .k = g->k,
                            .k_res = g->k_res,
                            .beam = beam < g->k ? beam : g->k,
                            .centroids = g->main,
                            .res_centroids = g->res};
}
