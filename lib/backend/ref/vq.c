/* Clustering, packed matrices and products with stored weights of the reference backend. */
#include "lib/backend/ref/ref.h"

#include <math.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/base/half.h"

double vptq_ref_distance(const float *x, const float *c, uint32_t v)
{
    double sum = 0;
    for (uint32_t d = 0; d < v; d++) {
        double diff = (double)x[d] - (double)c[d];
        sum += diff * diff;
    }
    return sum;
}

/* The lowest index on ties; 0 when every distance is NaN. */
static uint32_t nearest(const float *x, const float *c, uint32_t v, uint32_t k)
{
    uint32_t best = 0;
    double best_distance = INFINITY;
    for (uint32_t j = 0; j < k; j++) {
        double distance = vptq_ref_distance(x, c + (size_t)j * v, v);
        if (distance < best_distance) {
            best_distance = distance;
            best = j;
        }
    }
    return best;
}

vptq_status vptq_ref_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++) {
        a->idx[i] = nearest(a->x + i * a->v, a->centroids, a->v, a->k);
        if (a->dist)
            a->dist[i] = (float)vptq_ref_distance(
                a->x + i * a->v, a->centroids + (size_t)a->idx[i] * a->v, a->v);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_accumulate(vptq_dev *dev, const vptq_accumulate_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    memset(a->sums, 0, (size_t)a->k * a->v * sizeof *a->sums);
    memset(a->weights, 0, a->k * sizeof *a->weights);
    *a->objective = 0;
    for (size_t i = 0; i < a->n; i++) {
        const float *xi = a->x + i * a->v;
        size_t j = a->idx[i];
        double wi = a->w ? (double)a->w[i] : 1;
        for (uint32_t d = 0; d < a->v; d++)
            a->sums[j * a->v + d] += wi * (double)xi[d];
        a->weights[j] += wi;
        *a->objective += wi * vptq_ref_distance(xi, a->centroids + j * a->v, a->v);
    }
    return VPTQ_OK;
}

/* ---- packed matrices ---- */

vptq_status vptq_ref_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                 vptq_err *err)
{
    *m = vptq_mem_alloc(dev->ctx->mem, 1, sizeof **m, err);
    if (!*m)
        return VPTQ_E_NOMEM;
    (*m)->q = *q;
    (*m)->layout = NULL;
    return VPTQ_OK;
}

void vptq_ref_matrix_close(vptq_dev *dev, vptq_matrix *m)
{
    vptq_mem_free(dev->ctx->mem, m);
}

/* q[r][p] of vq.h: the stored value before scale and bias. */
static float decode_one(const vptq_vq *q, size_t r, size_t p)
{
    const vptq_vq_shape *s = &q->shape;
    if (p < s->outliers) {
        size_t o = q->outlier_indices[r / s->v0 * s->outliers + p];
        return q->outlier_centroids[o * s->v0 + r % s->v0];
    }
    size_t g = (p - s->outliers) / s->group_size;
    size_t column = (p - s->outliers) % s->group_size;
    const uint32_t *row =
        q->indices + (g * vptq_vq_vector_rows(s) + r / s->v) * vptq_vq_row_words(s);
    uint32_t entry = vptq_bits_get(row, column, vptq_vq_index_bits(s));
    size_t i = entry & (s->k - 1);
    float value = q->centroids[(g * s->k + i) * s->v + r % s->v];
    if (s->k_res) {
        size_t l = entry >> vptq_log2u(s->k);
        value += q->res_centroids[(g * s->k_res + l) * s->v + r % s->v];
    }
    return value;
}

vptq_status vptq_ref_vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                                float *w, size_t ldw, vptq_err *err)
{
    const vptq_vq *q = &m->q;
    (void)dev;
    (void)err;
    for (size_t r = 0; r < n; r++) {
        for (size_t p = 0; p < q->shape.in; p++) {
            size_t column = q->perm ? q->perm[p] : p;
            float value = decode_one(q, r0 + r, p);
            if (q->scale) {
                value *= q->scale[column];
                value += q->bias[column];
            }
            w[r * ldw + column] = value;
        }
    }
    return VPTQ_OK;
}

/* ---- products with stored matrices ---- */

/* Row r of y from row r of W as float. */
static void multiply_row(size_t in, const float *w, size_t r, const vptq_gemv_args *g)
{
    for (size_t i = 0; i < g->n; i++) {
        const float *x = g->x + i * g->ldx;
        float *y = g->y + i * g->ldy + r;
        double sum = g->beta != 0 ? (double)*y : 0;
        if (g->bias)
            sum += (double)g->bias[r];
        for (size_t j = 0; j < in; j++)
            sum += (double)x[j] * (double)w[j];
        *y = (float)sum;
    }
}

vptq_status vptq_ref_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t in = m->q.shape.in;
    float *w = vptq_dev_scratch(dev, in, sizeof *w, err);
    if (!w)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < m->q.shape.out && !st; r++) {
        st = vptq_ref_vq_dequant(dev, m, r, 1, w, in, err);
        multiply_row(in, w, r, g);
    }
    return st;
}

vptq_status vptq_ref_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                          const vptq_gemv_args *g, vptq_err *err)
{
    const size_t row_bytes = in * vptq_dtype_get(type)->bytes;
    VPTQ_BUG_IF(type != VPTQ_F32 && type != VPTQ_F16 && type != VPTQ_BF16);
    float *row = vptq_dev_scratch(dev, in, sizeof *row, err);
    if (!row)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < out; r++) {
        const uint8_t *src = (const uint8_t *)w + r * row_bytes;
        if (type == VPTQ_F32)
            memcpy(row, src, row_bytes);
        else if (type == VPTQ_F16)
            vptq_f16_to_f32_n((const uint16_t *)(const void *)src, row, in);
        else
            vptq_bf16_to_f32_n((const uint16_t *)(const void *)src, row, in);
        multiply_row(in, row, r, g);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_uniform_gemv(vptq_dev *dev, const vptq_uniform *w, vptq_dtype storage,
                                  const vptq_gemv_args *g, vptq_err *err)
{
    const size_t in = w->shape.in;
    VPTQ_BUG_IF(storage != VPTQ_F16 && storage != VPTQ_BF16);
    float *row = vptq_dev_scratch(dev, in, sizeof *row, err);
    if (!row)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < w->shape.out; r++) {
        vptq_uniform_read(w, r, 1, row);
        vptq_round_to_n(storage, row, in);
        multiply_row(in, row, r, g);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                  const vptq_gemv_args *g, vptq_err *err)
{
    (void)dev;
    (void)out;
    (void)in;
    (void)w;
    (void)g;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED, "the ref backend has no library to compare with");
}
