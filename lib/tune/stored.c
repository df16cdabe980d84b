/* The gradients of a packed matrix, in the layout of the column pass: dW^T, its rows in
 * processing order, is cut into the outlier columns and the groups. */
#include "lib/tune/stored.h"

#include <string.h>

#include "lib/base/parallel.h"

/* Sizes that suffice for several matrices. */
typedef struct sizes {
    size_t in, matrix, entries; /* columns; in * ld; vectors */
    size_t codebook;            /* numbers of the largest codebook of a group */
} sizes;

struct vptq_stored {
    vptq_device *dev;
    bool bf16;
    sizes max;
    void *device, *host; /* what the arrays below lie in */
    /* Device memory. */
    double *sums;       /* [codebook] or [in] */
    float *dw, *y, *q;  /* [in, ld]: dW^T by channel and by position; decoded */
    float *weight;      /* [in] scale by position */
    float *codebook[2]; /* [codebook] main and residual centroids of a group */
    uint32_t *idx[2];   /* [entries] main and residual indices */
    int32_t *order;     /* [in] channel of a position */
    /* Host memory. */
    double *host_sums;
    float *host_weight;
    uint32_t *host_idx[2];
    int32_t *host_order;
};

/* Columns that share a codebook: positions [first, first + cols). */
typedef struct segment {
    const vptq_vq *q;
    size_t first, cols, group;
    bool outliers;
    uint32_t v, k, k_res;
    const float *centroids, *res_centroids;
    double *dcentroids, *dres; /* of this codebook, or NULL */
} segment;

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Rows of a column with the padding of all its vectors. */
static size_t padded_rows(const vptq_vq_shape *s)
{
    const size_t rows = round_up(s->out, s->v);
    const size_t outlier_rows = s->outliers ? round_up(s->out, s->v0) : 0;
    return rows > outlier_rows ? rows : outlier_rows;
}

static segment segment_of(const vptq_vq *q, size_t index, const vptq_stored_gradients *to)
{
    const vptq_vq_shape *s = &q->shape;
    if (s->outliers && index == 0)
        return (segment){.q = q,
                         .cols = s->outliers,
                         .outliers = true,
                         .v = s->v0,
                         .k = s->k0,
                         .centroids = q->outlier_centroids,
                         .dcentroids = to->outlier_centroids};
    const size_t g = index - (s->outliers ? 1 : 0), main = g * s->k * s->v,
                 res = g * s->k_res * s->v;
    return (segment){.q = q,
                     .first = s->outliers + g * s->group_size,
                     .cols = s->group_size,
                     .group = g,
                     .v = s->v,
                     .k = s->k,
                     .k_res = s->k_res,
                     .centroids = q->centroids + main,
                     .res_centroids = s->k_res ? q->res_centroids + res : NULL,
                     .dcentroids = to->centroids + main,
                     .dres = s->k_res ? to->res_centroids + res : NULL};
}

static size_t segment_count(const vptq_vq_shape *s)
{
    return s->groups + (s->outliers ? 1 : 0);
}

/* ---- memory ---- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void grow(sizes *max, const vptq_vq_shape *s)
{
    const size_t least_v = s->outliers && s->v0 < s->v ? s->v0 : s->v;
    const size_t main = (size_t)s->k * s->v, res = (size_t)s->k_res * s->v,
                 outliers = (size_t)s->k0 * s->v0;
    max->in = larger(max->in, s->in);
    max->matrix = larger(max->matrix, s->in * padded_rows(s));
    max->entries = larger(max->entries, s->in * (round_up(s->out, least_v) / least_v));
    max->codebook = larger(larger(max->codebook, main), larger(res, outliers));
}

static size_t place_device(vptq_stored *s, void *base)
{
    vptq_carver c = {base, 0};
    s->sums = vptq_carve(&c, larger(s->max.codebook, s->max.in), sizeof *s->sums);
    s->dw = vptq_carve(&c, s->max.matrix, sizeof *s->dw);
    s->y = vptq_carve(&c, s->max.matrix, sizeof *s->y);
    s->q = vptq_carve(&c, s->max.matrix, sizeof *s->q);
    s->weight = vptq_carve(&c, s->max.in, sizeof *s->weight);
    s->order = vptq_carve(&c, s->max.in, sizeof *s->order);
    for (int i = 0; i < 2; i++) {
        s->codebook[i] = vptq_carve(&c, s->max.codebook, sizeof *s->codebook[i]);
        s->idx[i] = vptq_carve(&c, s->max.entries, sizeof *s->idx[i]);
    }
    return c.used;
}

static size_t place_host(vptq_stored *s, void *base)
{
    vptq_carver c = {base, 0};
    s->host_sums = vptq_carve(&c, larger(s->max.codebook, s->max.in), sizeof *s->host_sums);
    s->host_weight = vptq_carve(&c, s->max.in, sizeof *s->host_weight);
    s->host_order = vptq_carve(&c, s->max.in, sizeof *s->host_order);
    for (int i = 0; i < 2; i++)
        s->host_idx[i] = vptq_carve(&c, s->max.entries, sizeof *s->host_idx[i]);
    return c.used;
}

vptq_status vptq_stored_open(vptq_device *dev, const vptq_vq *const *matrices, size_t count,
                             bool bf16, vptq_stored **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *out = NULL;
    vptq_stored *s = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *s, err);
    if (!s)
        return VPTQ_E_NOMEM;
    *s = (vptq_stored){.dev = dev, .bf16 = bf16};
    for (size_t i = 0; i < count; i++)
        grow(&s->max, &matrices[i]->shape);
    VPTQ_TRY(dev->ops->alloc(dev->state, place_device(s, NULL), 1, &s->device, err));
    s->host = vptq_mem_alloc(dev->ctx->mem, place_host(s, NULL), 1, err);
    if (!s->host)
        VPTQ_TRY(VPTQ_E_NOMEM);
    place_device(s, s->device);
    place_host(s, s->host);
out:
    if (st)
        vptq_stored_close(s);
    else
        *out = s;
    return st;
}

void vptq_stored_close(vptq_stored *s)
{
    if (!s)
        return;
    vptq_mem *mem = s->dev->ctx->mem;
    s->dev->ops->release(s->dev->state, s->device);
    vptq_mem_free(mem, s->host);
    vptq_mem_free(mem, s);
}

/* ---- one matrix ---- */

static vptq_status upload(vptq_stored *s, void *to, const void *from, size_t bytes,
                          vptq_err *err)
{
    return s->dev->ops->upload(s->dev->state, to, from, bytes, err);
}

/* s->y = dW^T by position, the padding of its columns 0. */
static vptq_status transposed_gradient(vptq_stored *s, const vptq_vq_shape *shape, size_t rows,
                                       const float *x, const float *dz, vptq_err *err)
{
    const vptq_backend *ops = s->dev->ops;
    const size_t ld = padded_rows(shape);
    const vptq_gemm_args g = {.m = shape->in,
                              .n = shape->out,
                              .k = rows,
                              .a = x,
                              .b = dz,
                              .c = s->dw,
                              .lda = shape->in,
                              .ldb = shape->out,
                              .ldc = ld,
                              .trans_a = true,
                              .alpha = 1,
                              .bf16 = s->bf16};
    const vptq_embed_args reorder = {.n = shape->in,
                                     .dim = ld,
                                     .table = s->dw,
                                     .type = VPTQ_F32,
                                     .ids = s->order,
                                     .out = s->y};
    if (ld > shape->out)
        VPTQ_CHECK(ops->clear(s->dev->state, s->dw, shape->in * ld * sizeof *s->dw, err));
    VPTQ_CHECK(ops->gemm(s->dev->state, &g, err));
    return ops->embed(s->dev->state, &reorder, err);
}

/* Channel and scale of every position. */
static vptq_status load_order(vptq_stored *s, const vptq_vq *q, vptq_err *err)
{
    const size_t in = q->shape.in;
    for (size_t p = 0; p < in; p++) {
        s->host_order[p] = q->perm ? q->perm[p] : (int32_t)p;
        s->host_weight[p] = q->scale ? q->scale[s->host_order[p]] : 1;
    }
    VPTQ_CHECK(upload(s, s->order, s->host_order, in * sizeof *s->order, err));
    return upload(s, s->weight, s->host_weight, in * sizeof *s->weight, err);
}

/* Indices [cols, vectors] of a segment, which are stored [vectors, cols]. */
typedef struct index_job {
    vptq_stored *s;
    const segment *g;
    size_t vectors;
} index_job;

/* Those of vectors [first, end) of all columns. */
static void unpack_vectors(void *arg, size_t first, size_t end, int thread)
{
    const index_job *job = arg;
    const segment *g = job->g;
    const vptq_vq *q = g->q;
    const unsigned bits = vptq_vq_index_bits(&q->shape), main_bits = vptq_log2u(q->shape.k);
    const size_t words = vptq_vq_row_words(&q->shape);
    (void)thread;
    for (size_t c = 0; c < g->cols; c++) {
        uint32_t *main = job->s->host_idx[0] + c * job->vectors,
                 *res = job->s->host_idx[1] + c * job->vectors;
        for (size_t i = first; i < end; i++) {
            const uint32_t *row = q->indices + (g->group * job->vectors + i) * words;
            const uint32_t e =
                g->outliers ? q->outlier_indices[i * g->cols + c] : vptq_bits_get(row, c, bits);
            main[i] = g->k_res ? e & (g->k - 1) : e;
            if (g->k_res)
                res[i] = e >> main_bits;
        }
    }
}

static vptq_status load_indices(vptq_stored *s, const segment *g, size_t vectors, vptq_err *err)
{
    enum { AT_ONCE = 16 }; /* a cache line of one column, and a few of every row */
    const size_t bytes = g->cols * vectors * sizeof **s->idx;
    index_job job = {s, g, vectors};
    vptq_parallel_for(s->dev->ctx->threads, vectors, AT_ONCE, unpack_vectors, &job);
    VPTQ_CHECK(upload(s, s->idx[0], s->host_idx[0], bytes, err));
    return g->k_res ? upload(s, s->idx[1], s->host_idx[1], bytes, err) : VPTQ_OK;
}

/* to [n] += s->sums, or to[order[i]] with an order. */
static vptq_status add_sums(vptq_stored *s, size_t n, const int32_t *order, double *to,
                            vptq_err *err)
{
    VPTQ_CHECK(
        s->dev->ops->download(s->dev->state, s->host_sums, s->sums, n * sizeof *s->sums, err));
    for (size_t i = 0; i < n; i++)
        to[order ? (size_t)order[i] : i] += s->host_sums[i];
    return VPTQ_OK;
}

/* The gradient of one codebook; 0: the main one, 1: the residual one. */
static vptq_status codebook_gradient(vptq_stored *s, const segment *g, int which, size_t ld,
                                     size_t vectors, double *to, vptq_err *err)
{
    const uint32_t k = which ? g->k_res : g->k;
    const vptq_scatter_args a = {.cols = g->cols,
                                 .rows = vectors * g->v,
                                 .v = g->v,
                                 .k = k,
                                 .y = s->y + g->first * ld,
                                 .weight = s->weight + g->first,
                                 .idx = s->idx[which],
                                 .sums = s->sums,
                                 .ldy = ld,
                                 .ldi = vectors};
    VPTQ_CHECK(s->dev->ops->vq_scatter(s->dev->state, &a, err));
    return add_sums(s, (size_t)k * g->v, NULL, to, err);
}

/* The gradients of scale and bias of the segment's columns. */
static vptq_status norm_gradient(vptq_stored *s, const segment *g, size_t ld, size_t vectors,
                                 const vptq_stored_gradients *to, vptq_err *err)
{
    const vptq_backend *ops = s->dev->ops;
    const size_t centroid_bytes = (size_t)g->v * sizeof(float);
    const vptq_gather_args decode = {.cols = g->cols,
                                     .rows = vectors * g->v,
                                     .v = g->v,
                                     .k = g->k,
                                     .k_res = g->k_res,
                                     .centroids = s->codebook[0],
                                     .res_centroids = g->k_res ? s->codebook[1] : NULL,
                                     .idx = s->idx[0],
                                     .idx_res = g->k_res ? s->idx[1] : NULL,
                                     .q = s->q,
                                     .ldi = vectors,
                                     .ldq = ld};
    vptq_dots_args dots = {.cols = g->cols,
                           .rows = g->q->shape.out,
                           .x = s->y + g->first * ld,
                           .y = s->q,
                           .ldx = ld,
                           .ldy = ld,
                           .sums = s->sums};
    const int32_t *order = s->host_order + g->first;
    VPTQ_CHECK(upload(s, s->codebook[0], g->centroids, g->k * centroid_bytes, err));
    if (g->k_res)
        VPTQ_CHECK(upload(s, s->codebook[1], g->res_centroids, g->k_res * centroid_bytes, err));
    VPTQ_CHECK(ops->vq_gather(s->dev->state, &decode, err));
    VPTQ_CHECK(ops->column_dots(s->dev->state, &dots, err));
    VPTQ_CHECK(add_sums(s, g->cols, order, to->scale, err));
    dots.y = NULL;
    VPTQ_CHECK(ops->column_dots(s->dev->state, &dots, err));
    return add_sums(s, g->cols, order, to->bias, err);
}

vptq_status vptq_stored_gradient(vptq_stored *s, const vptq_vq *q, size_t rows, const float *x,
                                 const float *dz, const vptq_stored_gradients *to,
                                 vptq_err *err)
{
    const size_t ld = padded_rows(&q->shape);
    VPTQ_CHECK(load_order(s, q, err));
    VPTQ_CHECK(transposed_gradient(s, &q->shape, rows, x, dz, err));
    for (size_t i = 0; i < segment_count(&q->shape); i++) {
        const segment g = segment_of(q, i, to);
        const size_t vectors = (q->shape.out + g.v - 1) / g.v;
        VPTQ_CHECK(load_indices(s, &g, vectors, err));
        VPTQ_CHECK(codebook_gradient(s, &g, 0, ld, vectors, g.dcentroids, err));
        if (g.k_res)
            VPTQ_CHECK(codebook_gradient(s, &g, 1, ld, vectors, g.dres, err));
        if (q->scale)
            VPTQ_CHECK(norm_gradient(s, &g, ld, vectors, to, err));
    }
    return VPTQ_OK;
}
