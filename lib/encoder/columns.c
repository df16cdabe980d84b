/* Column groups: their codebooks and indices. */
#include <math.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/encoder/encoder.h"

static vptq_status make_group(vptq_mirror *m, vptq_column_group *g, uint32_t out, vptq_err *err)
{
    const vptq_device *dev = m->dev;

    g->vector_rows = (out + g->v - 1) / g->v;
    g->rows = g->vector_rows * g->v;
    const size_t n = g->cols * g->vector_rows;
    g->idx = vptq_mirror_alloc(m, n, sizeof *g->idx);
    g->idx_res = g->k_res ? vptq_mirror_alloc(m, n, sizeof *g->idx_res) : NULL;
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(dev->ops->clear(dev->state, g->idx, n * sizeof *g->idx, err));
    return g->k_res ? dev->ops->clear(dev->state, g->idx_res, n * sizeof *g->idx_res, err)
                    : VPTQ_OK;
}

/* Allocates n floats in `keep` and their mirror, all zero; both NULL for n = 0. */
static vptq_status make_codebooks(vptq_mirror *m, size_t n, vptq_arena *keep, float **stored,
                                  float **on, vptq_err *err)
{
    *stored = *on = NULL;
    if (!n)
        return VPTQ_OK;
    *stored = vptq_arena_zalloc(keep, n, sizeof **stored, err);
    if (!*stored)
        return VPTQ_E_NOMEM;
    *on = vptq_mirror_take(m, *stored, n, sizeof **on, 0);
    VPTQ_CHECK(vptq_mirror_check(m, err));
    return m->dev->ops->clear(m->dev->state, *on, n * sizeof **on, err);
}

static vptq_status make_outliers(vptq_columns *l, vptq_arena *keep, vptq_err *err)
{
    const vptq_vq_shape *s = &l->shape;
    vptq_column_group *g = &l->groups[0];

    *g = (vptq_column_group){.cols = s->outliers, .v = s->v0, .k = s->k0};
    return make_codebooks(l->arrays, (size_t)s->k0 * s->v0, keep, &g->stored, &g->main, err);
}

vptq_status vptq_columns_make(vptq_columns *l, const vptq_vq_shape *shape, vptq_mirror *arrays,
                              vptq_arena *keep, vptq_arena *scratch, vptq_err *err)
{
    const vptq_vq_shape *s = shape;
    const size_t main_size = (size_t)s->k * s->v, res_size = (size_t)s->k_res * s->v;
    float *stored, *main, *res_stored, *res;

    *l = (vptq_columns){
        .shape = *s, .num_groups = s->groups + (s->outliers ? 1 : 0), .arrays = arrays};
    l->groups = vptq_arena_zalloc(scratch, l->num_groups, sizeof *l->groups, err);
    if (!l->groups)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(make_codebooks(arrays, s->groups * main_size, keep, &stored, &main, err));
    VPTQ_CHECK(make_codebooks(arrays, s->groups * res_size, keep, &res_stored, &res, err));
    if (s->outliers)
        VPTQ_CHECK(make_outliers(l, keep, err));
    for (uint32_t i = 0; i < s->groups; i++)
        vptq_columns_first(l)[i] =
            (vptq_column_group){.first = s->outliers + i * s->group_size,
                                .cols = s->group_size,
                                .v = s->v,
                                .k = s->k,
                                .k_res = s->k_res,
                                .main = main + i * main_size,
                                .res = res ? res + i * res_size : NULL,
                                .stored = stored + i * main_size,
                                .res_stored = res ? res_stored + i * res_size : NULL};
    for (uint32_t i = 0; i < l->num_groups; i++) {
        VPTQ_CHECK(make_group(arrays, &l->groups[i], s->out, err));
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

/* Downloads a codebook, rounds it on the host and uploads it again. */
static vptq_status round_on_host(vptq_columns *l, vptq_dtype storage, size_t n, float *stored,
                                 float **before, vptq_arena *keep, vptq_err *err)
{
    VPTQ_CHECK(vptq_mirror_pull(l->arrays, stored, n * sizeof *stored, err));
    VPTQ_CHECK(round_codebook(storage, n, stored, before, keep, err));
    return vptq_mirror_push(l->arrays, stored, n * sizeof *stored, err);
}

vptq_status vptq_columns_round(vptq_columns *l, vptq_dtype storage, vptq_arena *keep,
                               vptq_err *err)
{
    for (uint32_t i = 0; i < l->num_groups; i++) {
        vptq_column_group *g = &l->groups[i];
        VPTQ_CHECK(
            round_on_host(l, storage, (size_t)g->k * g->v, g->stored, &g->main_f32, keep, err));
        if (g->k_res)
            VPTQ_CHECK(round_on_host(l, storage, (size_t)g->k_res * g->v, g->res_stored,
                                     &g->res_f32, keep, err));
    }
    l->rounded = true;
    return VPTQ_OK;
}

vptq_status vptq_group_gather(const vptq_device *dev, const vptq_column_group *g,
                              const float *main, const float *res, float *q, size_t ldq,
                              vptq_err *err)
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
                               vptq_mirror *arrays, const float **x, vptq_err *err)
{
    const vptq_device *dev = arrays->dev;
    vptq_affine_args copy = {.cols = g->cols,
                             .rows = g->rows,
                             .valid = g->rows,
                             .x = from + g->first * ld,
                             .ldx = ld,
                             .ldy = g->rows};

    *x = copy.x;
    if (g->rows == ld)
        return VPTQ_OK;
    *x = copy.y = vptq_mirror_alloc(arrays, g->cols * g->rows, sizeof *copy.y);
    VPTQ_CHECK(vptq_mirror_check(arrays, err));
    return dev->ops->affine(dev->state, &copy, err);
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
