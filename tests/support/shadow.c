/* A device whose ops take host arrays: every op copies its arrays to a real device and back. */
#include "tests/support/shadow.h"

#include <stdlib.h>
#include <string.h>

#include "lib/backend/ref/ref.h"
#include "tests/support/vtest.h"

enum { MAX_COPIES = 12 };

/* One array of an op. */
typedef struct copy {
    void *device, *host;
    size_t bytes;
    bool output;
} copy;

typedef struct shadow {
    const vptq_backend *ops; /* of the real device */
    vptq_dev *dev;
    vptq_backend table; /* the table that tests call */
    copy copies[MAX_COPIES];
    size_t count;
    vptq_kv_rows rows; /* of the op in progress, with device arrays */
    vptq_kv_pool pool;
} shadow;

/* A search index of the device, and the device's copies of its codebooks. */
typedef struct shadow_search_index {
    vptq_search_index *index;
    void *codebooks[2];
    uint32_t v;
} shadow_search_index;

typedef struct shadow_matrix {
    vptq_matrix *matrix;
    vptq_vq_shape shape;
} shadow_matrix;

static shadow *of(vptq_dev *dev)
{
    return (shadow *)(void *)dev;
}

static const shadow_search_index *index_of(const vptq_search_index *f)
{
    return (const shadow_search_index *)(const void *)f;
}

static const shadow_matrix *matrix_of(const vptq_matrix *m)
{
    return (const shadow_matrix *)(const void *)m;
}

/* ---- copies ---- */

static void *upload(shadow *s, const void *host, size_t bytes)
{
    void *device = NULL;
    vptq_err err;
    assert_ok(s->ops->alloc(s->dev, bytes, 1, &device, &err), &err);
    assert_ok(s->ops->upload(s->dev, device, host, bytes, &err), &err);
    return device;
}

static void *take(shadow *s, void *host, size_t bytes, bool output)
{
    if (!host)
        return NULL;
    for (size_t i = 0; i < s->count; i++)
        if (s->copies[i].host == host && s->copies[i].bytes == bytes) { /* an op in place */
            s->copies[i].output |= output;
            return s->copies[i].device;
        }
    assert_true(s->count < MAX_COPIES);
    void *device = upload(s, host, bytes);
    s->copies[s->count++] = (copy){device, host, bytes, output};
    return device;
}

static const void *in(shadow *s, const void *host, size_t count, size_t size)
{
    void *p = NULL;
    memcpy(&p, &host, sizeof p); /* only read: not an output */
    return take(s, p, count * size, false);
}

static void *out(shadow *s, void *host, size_t count, size_t size)
{
    return take(s, host, count * size, true);
}

/* Replace an array of the args `a` by its copy in `d`, the args for the device. */
#define IN(field, count)  (d->field = in(s, a->field, count, sizeof *a->field))
#define OUT(field, count) (d->field = out(s, a->field, count, sizeof *a->field))

/* Defines shadow_OP for an op with an args struct, whose arrays OP_arrays replaces. */
#define SHADOW_OP(op, type)                                                                    \
    static vptq_status shadow_##op(vptq_dev *dev, const type *a, vptq_err *err)                \
    {                                                                                          \
        shadow *s = of(dev);                                                                   \
        type d = *a;                                                                           \
        op##_arrays(s, a, &d);                                                                 \
        return done(s, s->ops->op(s->dev, &d, err));                                           \
    }

/* Elements from the first to the last of `rows` rows of `columns` elements, ld apart. */
static size_t span(size_t rows, size_t columns, size_t ld)
{
    return rows && columns ? (rows - 1) * ld + columns : 0;
}

/* Ends an op: downloads the outputs, even if it failed. */
static vptq_status done(shadow *s, vptq_status st)
{
    vptq_err err;
    for (size_t i = 0; i < s->count; i++) {
        const copy *c = &s->copies[i];
        if (c->output)
            assert_ok(s->ops->download(s->dev, c->host, c->device, c->bytes, &err), &err);
        s->ops->release(s->dev, c->device);
    }
    s->count = 0;
    return st;
}

/* ---- device and memory ---- */

static void shadow_close(vptq_dev *dev)
{
    if (!dev)
        return;
    of(dev)->ops->close(of(dev)->dev);
    free(of(dev));
}

static void shadow_describe(const vptq_dev *dev, char *text, size_t size)
{
    const shadow *s = (const shadow *)(const void *)dev;
    s->ops->describe(s->dev, text, size);
}

/* alloc, upload and similar ops act on the device itself. */
static vptq_status shadow_alloc(vptq_dev *dev, size_t count, size_t size, void **ptr,
                                vptq_err *err)
{
    return of(dev)->ops->alloc(of(dev)->dev, count, size, ptr, err);
}

static void shadow_release(vptq_dev *dev, void *ptr)
{
    of(dev)->ops->release(of(dev)->dev, ptr);
}

static void shadow_libraries(vptq_dev *dev, char *text, size_t size)
{
    of(dev)->ops->libraries(of(dev)->dev, text, size);
}

static size_t shadow_left(const vptq_dev *dev)
{
    const shadow *s = (const shadow *)(const void *)dev;
    return s->ops->left(s->dev);
}

static vptq_status shadow_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                 vptq_err *err)
{
    return of(dev)->ops->upload(of(dev)->dev, dst, src, bytes, err);
}

static vptq_status shadow_download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                   vptq_err *err)
{
    return of(dev)->ops->download(of(dev)->dev, dst, src, bytes, err);
}

static vptq_status shadow_copy(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                               vptq_err *err)
{
    return of(dev)->ops->copy(of(dev)->dev, dst, src, bytes, err);
}

static vptq_status shadow_clear(vptq_dev *dev, void *dst, size_t bytes, vptq_err *err)
{
    return of(dev)->ops->clear(of(dev)->dev, dst, bytes, err);
}

static vptq_status shadow_sync(vptq_dev *dev, vptq_err *err)
{
    return of(dev)->ops->sync(of(dev)->dev, err);
}

static size_t shadow_cache_bytes(const vptq_dev *dev)
{
    const shadow *s = (const shadow *)(const void *)dev;
    return s->ops->cache_bytes(s->dev);
}

/* ---- linear algebra ---- */

static void gemm_arrays(shadow *s, const vptq_gemm_args *a, vptq_gemm_args *d)
{
    IN(a, a->trans_a ? span(a->k, a->m, a->lda) : span(a->m, a->k, a->lda));
    IN(b, a->trans_b ? span(a->n, a->k, a->ldb) : span(a->k, a->n, a->ldb));
    OUT(c, span(a->m, a->n, a->ldc));
    IN(bias, a->n);
}
SHADOW_OP(gemm, vptq_gemm_args)

static void syrk_add_arrays(shadow *s, const vptq_syrk_args *a, vptq_syrk_args *d)
{
    IN(x, span(a->tokens, a->n, a->ldx));
    IN(w, a->tokens);
    OUT(h, a->n * a->n);
    OUT(sum, a->n);
}
SHADOW_OP(syrk_add, vptq_syrk_args)

static vptq_status shadow_potrf(vptq_dev *dev, size_t n, double *a, size_t lda,
                                size_t *bad_pivot, vptq_err *err)
{
    shadow *s = of(dev);
    double *d = out(s, a, span(n, n, lda), sizeof *a);
    return done(s, s->ops->potrf(s->dev, n, d, lda, bad_pivot, err));
}

static vptq_status shadow_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    shadow *s = of(dev);
    double *d = out(s, a, span(n, n, lda), sizeof *a);
    return done(s, s->ops->trtri(s->dev, n, d, lda, err));
}

static void quad_trace_arrays(shadow *s, const vptq_quad_trace_args *a, vptq_quad_trace_args *d)
{
    IN(e, span(a->m, a->n, a->lde));
    IN(h, span(a->n, a->n, a->ldh));
}
SHADOW_OP(quad_trace, vptq_quad_trace_args)

/* ---- clustering ---- */

static void assign_arrays(shadow *s, const vptq_assign_args *a, vptq_assign_args *d)
{
    IN(x, a->n * a->v);
    IN(centroids, (size_t)a->k * a->v);
    OUT(idx, a->n);
    OUT(dist, a->n);
}
SHADOW_OP(assign, vptq_assign_args)

static void reassign_arrays(shadow *s, const vptq_assign_args *a, vptq_assign_args *d)
{
    IN(x, a->n * a->v);
    IN(centroids, (size_t)a->k * a->v);
    OUT(idx, a->n);
    IN(previous, (size_t)a->k * a->v);
}
SHADOW_OP(reassign, vptq_assign_args)

static void accumulate_arrays(shadow *s, const vptq_accumulate_args *a, vptq_accumulate_args *d)
{
    IN(x, a->n * a->v);
    IN(w, a->n);
    IN(idx, a->n);
    IN(centroids, (size_t)a->k * a->v);
    OUT(sums, (size_t)a->k * a->v);
    OUT(weights, a->k);
}
SHADOW_OP(accumulate, vptq_accumulate_args)

/* ---- vector quantization ---- */

static void gemv_arrays(shadow *s, size_t outs, size_t ins, const vptq_gemv_args *g,
                        vptq_gemv_args *d)
{
    *d = *g;
    d->x = in(s, g->x, span(g->n, ins, g->ldx), sizeof *g->x);
    d->y = out(s, g->y, span(g->n, outs, g->ldy), sizeof *g->y);
    d->bias = in(s, g->bias, outs, sizeof *g->bias);
}

static vptq_status shadow_gemv(vptq_dev *dev, size_t outs, size_t ins, vptq_dtype type,
                               const void *w, const vptq_gemv_args *g, vptq_err *err)
{
    shadow *s = of(dev);
    vptq_gemv_args d;
    gemv_arrays(s, outs, ins, g, &d);
    const void *dw = in(s, w, outs * ins, vptq_dtype_get(type)->bytes);
    return done(s, s->ops->gemv(s->dev, outs, ins, type, dw, &d, err));
}

static vptq_status shadow_library_gemv(vptq_dev *dev, size_t outs, size_t ins, const float *w,
                                       const vptq_gemv_args *g, vptq_err *err)
{
    shadow *s = of(dev);
    vptq_gemv_args d;
    gemv_arrays(s, outs, ins, g, &d);
    const float *dw = in(s, w, outs * ins, sizeof *w);
    return done(s, s->ops->library_gemv(s->dev, outs, ins, dw, &d, err));
}

static void shadow_matrix_close(vptq_dev *dev, vptq_matrix *matrix)
{
    shadow_matrix *m = (shadow_matrix *)(void *)matrix;
    if (!m)
        return;
    of(dev)->ops->matrix_close(of(dev)->dev, m->matrix);
    free(m);
}

/* The arrays of a vptq_vq are in host memory on every device. */
static vptq_status shadow_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **matrix,
                                      vptq_err *err)
{
    shadow_matrix *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->shape = q->shape;
    const vptq_status st = of(dev)->ops->matrix_open(of(dev)->dev, q, &m->matrix, err);
    *matrix = (vptq_matrix *)(void *)m;
    if (st) {
        shadow_matrix_close(dev, *matrix);
        *matrix = NULL;
    }
    return st;
}

static vptq_status shadow_vq_dequant(vptq_dev *dev, const vptq_matrix *matrix, size_t r0,
                                     size_t n, float *w, size_t ldw, vptq_err *err)
{
    shadow *s = of(dev);
    const shadow_matrix *m = matrix_of(matrix);
    float *dw = out(s, w, span(n, m->shape.in, ldw), sizeof *w);
    return done(s, s->ops->vq_dequant(s->dev, m->matrix, r0, n, dw, ldw, err));
}

static vptq_status shadow_vq_gemv(vptq_dev *dev, const vptq_matrix *matrix,
                                  const vptq_gemv_args *g, vptq_err *err)
{
    shadow *s = of(dev);
    const shadow_matrix *m = matrix_of(matrix);
    vptq_gemv_args d;
    gemv_arrays(s, m->shape.out, m->shape.in, g, &d);
    return done(s, s->ops->vq_gemv(s->dev, m->matrix, &d, err));
}

static void shadow_search_index_close(vptq_dev *dev, vptq_search_index *index)
{
    shadow *s = of(dev);
    shadow_search_index *f = (shadow_search_index *)(void *)index;
    if (!f)
        return;
    s->ops->search_index_close(s->dev, f->index);
    s->ops->release(s->dev, f->codebooks[0]);
    s->ops->release(s->dev, f->codebooks[1]);
    free(f);
}

static vptq_status shadow_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                            vptq_search_index **index, vptq_err *err)
{
    shadow *s = of(dev);
    vptq_codebooks d = *codebooks;
    shadow_search_index *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->v = codebooks->v;
    const size_t size = codebooks->v * sizeof *codebooks->centroids;
    d.centroids = f->codebooks[0] = upload(s, codebooks->centroids, codebooks->k * size);
    if (codebooks->res_centroids)
        d.res_centroids = f->codebooks[1] =
            upload(s, codebooks->res_centroids, codebooks->k_res * size);
    const vptq_status st = s->ops->search_index_open(s->dev, &d, &f->index, err);
    *index = (vptq_search_index *)(void *)f;
    if (st) {
        shadow_search_index_close(dev, *index);
        *index = NULL;
    }
    return st;
}

static void search_arrays(shadow *s, const vptq_search_args *a, vptq_search_args *d)
{
    const shadow_search_index *index = index_of(a->index);
    d->index = index->index;
    IN(x, a->n * index->v);
    OUT(idx, a->n);
    OUT(idx_res, a->n);
    OUT(dist, a->n);
}
SHADOW_OP(search, vptq_search_args)

static void vq_pass_arrays(shadow *s, const vptq_pass_args *a, vptq_pass_args *d)
{
    const shadow_search_index *index = index_of(a->index);
    const size_t vector_rows = a->rows / index->v;
    d->index = index->index;
    OUT(z, span(a->cols, a->rows, a->ldz));
    IN(u, span(a->cols, a->cols, a->ldu));
    OUT(idx, span(a->cols, vector_rows, a->ldi));
    OUT(idx_res, span(a->cols, vector_rows, a->ldi));
    OUT(q, span(a->cols, a->rows, a->ldq));
    OUT(err, span(a->cols, a->rows, a->lde));
}
SHADOW_OP(vq_pass, vptq_pass_args)

static void vq_descend_arrays(shadow *s, const vptq_descend_args *a, vptq_descend_args *d)
{
    const shadow_search_index *index = index_of(a->index);
    const size_t vector_rows = a->rows / index->v;
    d->index = index->index;
    IN(g, span(a->cols, a->rows, a->ldg));
    IN(h, span(a->cols, a->cols, a->ldh));
    OUT(idx, span(a->cols, vector_rows, a->ldi));
    OUT(idx_res, span(a->cols, vector_rows, a->ldi));
    OUT(q, span(a->cols, a->rows, a->ldq));
    OUT(delta, span(a->cols, a->rows, a->ldd));
}
SHADOW_OP(vq_descend, vptq_descend_args)

static void vq_gather_arrays(shadow *s, const vptq_gather_args *a, vptq_gather_args *d)
{
    const size_t vector_rows = a->rows / a->v;
    IN(centroids, (size_t)a->k * a->v);
    IN(res_centroids, (size_t)a->k_res * a->v);
    IN(idx, span(a->cols, vector_rows, a->ldi));
    IN(idx_res, span(a->cols, vector_rows, a->ldi));
    OUT(q, span(a->cols, a->rows, a->ldq));
}
SHADOW_OP(vq_gather, vptq_gather_args)

static void vq_scatter_arrays(shadow *s, const vptq_scatter_args *a, vptq_scatter_args *d)
{
    IN(y, span(a->cols, a->rows, a->ldy));
    IN(weight, a->cols);
    IN(idx, span(a->cols, a->rows / a->v, a->ldi));
    OUT(sums, (size_t)a->k * a->v);
    OUT(weights, (size_t)a->k * a->v);
}
SHADOW_OP(vq_scatter, vptq_scatter_args)

/* ---- arrays (array_ops.h) ---- */

static void first_outside_arrays(shadow *s, const vptq_outside_args *a, vptq_outside_args *d)
{
    IN(x, a->n);
}
SHADOW_OP(first_outside, vptq_outside_args)

static void column_norms_arrays(shadow *s, const vptq_norms_args *a, vptq_norms_args *d)
{
    IN(w, a->out * a->in);
    OUT(bias, a->in);
    OUT(scale, a->in);
}
SHADOW_OP(column_norms, vptq_norms_args)

static void normalize_arrays(shadow *s, const vptq_normalize_args *a, vptq_normalize_args *d)
{
    IN(w, a->out * a->in);
    IN(order, a->in);
    IN(scale, a->in);
    IN(bias, a->in);
    OUT(z, a->in * a->rows);
}
SHADOW_OP(normalize, vptq_normalize_args)

static void metric_arrays(shadow *s, const vptq_metric_args *a, vptq_metric_args *d)
{
    IN(lower, a->n * (a->n + 1) / 2);
    IN(order, a->n);
    IN(scale, a->n);
    OUT(a, a->n * a->n);
    OUT(h, a->n * a->n);
    OUT(diag, a->n);
}
SHADOW_OP(metric, vptq_metric_args)

static void pack_lower_arrays(shadow *s, const vptq_lower_args *a, vptq_lower_args *d)
{
    const size_t last = a->first + a->rows;
    IN(a, a->n * a->n);
    OUT(packed, last * (last + 1) / 2 - a->first * (a->first + 1) / 2);
}
SHADOW_OP(pack_lower, vptq_lower_args)

static void reverse_upper_arrays(shadow *s, const vptq_upper_args *a, vptq_upper_args *d)
{
    IN(a, a->n * a->n);
    OUT(u, a->n * a->n);
}
SHADOW_OP(reverse_upper, vptq_upper_args)

static void subtract_arrays(shadow *s, const vptq_subtract_args *a, vptq_subtract_args *d)
{
    IN(x, span(a->cols, a->rows, a->ldx));
    IN(y, span(a->cols, a->rows, a->ldy));
    OUT(z, span(a->cols, a->rows, a->ldz));
}
SHADOW_OP(subtract, vptq_subtract_args)

static void affine_arrays(shadow *s, const vptq_affine_args *a, vptq_affine_args *d)
{
    IN(x, span(a->cols, a->rows, a->ldx));
    IN(a, a->cols);
    IN(b, a->cols);
    OUT(y, span(a->cols, a->rows, a->ldy));
}
SHADOW_OP(affine, vptq_affine_args)

static void column_dots_arrays(shadow *s, const vptq_dots_args *a, vptq_dots_args *d)
{
    IN(x, span(a->cols, a->rows, a->ldx));
    IN(y, span(a->cols, a->rows, a->ldy));
    OUT(sums, a->cols);
}
SHADOW_OP(column_dots, vptq_dots_args)

static void solve_upper_arrays(shadow *s, const vptq_solve_args *a, vptq_solve_args *d)
{
    IN(u, span(a->cols, a->cols, a->ldu));
    OUT(x, span(a->cols, a->rows, a->ldx));
}
SHADOW_OP(solve_upper, vptq_solve_args)

static void dot_arrays(shadow *s, const vptq_dot_args *a, vptq_dot_args *d)
{
    IN(x, a->n);
    IN(y, a->n);
}
SHADOW_OP(dot, vptq_dot_args)

static void cg_step_arrays(shadow *s, const vptq_cg_step_args *a, vptq_cg_step_args *d)
{
    IN(d, a->n);
    IN(ad, a->n);
    IN(m, a->n);
    OUT(x, a->n);
    OUT(r, a->n);
    OUT(s, a->n);
}
SHADOW_OP(cg_step, vptq_cg_step_args)

static void cg_turn_arrays(shadow *s, const vptq_cg_turn_args *a, vptq_cg_turn_args *d)
{
    IN(s, a->n);
    OUT(d, a->n);
    OUT(rounded, a->n);
}
SHADOW_OP(cg_turn, vptq_cg_turn_args)

static void add_rounded_arrays(shadow *s, const vptq_add_args *a, vptq_add_args *d)
{
    IN(x, a->n);
    OUT(y, a->n);
}
SHADOW_OP(add_rounded, vptq_add_args)

static void move_centroids_arrays(shadow *s, const vptq_move_args *a, vptq_move_args *d)
{
    IN(sums, (size_t)a->k * a->v);
    IN(weights, a->k);
    OUT(centroids, (size_t)a->k * a->v);
    OUT(before, (size_t)a->k * a->v);
}
SHADOW_OP(move_centroids, vptq_move_args)

static void worst_vectors_arrays(shadow *s, const vptq_worst_args *a, vptq_worst_args *d)
{
    IN(x, a->n * a->v);
    IN(w, a->n);
    IN(idx, a->n);
    IN(centroids, (size_t)a->k * a->v);
}
SHADOW_OP(worst_vectors, vptq_worst_args)

static void vq_pack_arrays(shadow *s, const vptq_pack_args *a, vptq_pack_args *d)
{
    IN(idx, a->cols * a->vector_rows);
    IN(idx_res, a->cols * a->vector_rows);
    IN(column, a->cols);
    OUT(words, span(a->vector_rows, vptq_bits_words(a->cols, a->bits), a->ldw));
}
SHADOW_OP(vq_pack, vptq_pack_args)

/* ---- transformer ---- */

static void embed_arrays(shadow *s, const vptq_embed_args *a, vptq_embed_args *d)
{
    int32_t last = 0; /* the table may end after the largest id */
    for (size_t i = 0; i < a->n; i++)
        last = a->ids[i] > last ? a->ids[i] : last;
    d->table = in(s, a->table, ((size_t)last + 1) * a->dim, vptq_dtype_get(a->type)->bytes);
    IN(ids, a->n);
    OUT(out, a->n * a->dim);
}
SHADOW_OP(embed, vptq_embed_args)

static void rmsnorm_arrays(shadow *s, const vptq_rmsnorm_args *a, vptq_rmsnorm_args *d)
{
    IN(x, span(a->n, a->dim, a->ldx));
    IN(weight, a->dim);
    OUT(y, span(a->n, a->dim, a->ldy));
}
SHADOW_OP(rmsnorm, vptq_rmsnorm_args)

static void rope_tables(shadow *s, const vptq_rope_args *a, size_t positions, vptq_rope_args *d)
{
    IN(cos_table, positions * (a->head_dim / 2));
    IN(sin_table, positions * (a->head_dim / 2));
}

static void rope_arrays(shadow *s, const vptq_rope_args *a, vptq_rope_args *d)
{
    OUT(x, span(a->n, a->heads * a->head_dim, a->ldx));
    rope_tables(s, a, a->pos0 + a->n, d);
}
SHADOW_OP(rope, vptq_rope_args)

static void attention_arrays(shadow *s, const vptq_attention_args *a, vptq_attention_args *d)
{
    const size_t width = a->kv_heads * a->head_dim, wide = a->heads * a->head_dim;
    IN(q, span(a->n, wide, a->ldq));
    IN(keys, span(a->pos0 + a->n, width, a->ldk));
    IN(values, span(a->pos0 + a->n, width, a->ldv));
    OUT(out, span(a->n, wide, a->ldo));
}
SHADOW_OP(attention, vptq_attention_args)

static vptq_status shadow_attention_mass(vptq_dev *dev, const vptq_attention_args *a,
                                         double *mass, vptq_err *err)
{
    shadow *s = of(dev);
    vptq_attention_args d = *a;
    attention_arrays(s, a, &d);
    double *dm = out(s, mass, a->pos0 + a->n, sizeof *mass);
    return done(s, s->ops->attention_mass(s->dev, &d, dm, err));
}

/* Copies page tables up to the last page of each sequence; entries after it may be anything. */
static const vptq_kv_rows *kv_rows_arrays(shadow *s, const vptq_kv_rows *r)
{
    vptq_kv_rows *d = &s->rows;
    *d = *r;
    d->starts = in(s, r->starts, r->sequences + 1, sizeof *r->starts);
    d->positions = in(s, r->positions, r->sequences, sizeof *r->positions);
    const size_t pages = (r->max_tokens + VPTQ_KV_PAGE - 1) / VPTQ_KV_PAGE;
    d->table = in(s, r->table, span(r->sequences, pages, r->ld_table), sizeof *r->table);
    return d;
}

/* Copies the pool up to the last page of these sequences. */
static const vptq_kv_pool *kv_pool_arrays(shadow *s, const vptq_kv_rows *r,
                                          const vptq_kv_pool *pool)
{
    vptq_kv_pool *d = &s->pool;
    size_t last = 0;
    for (size_t q = 0; q < r->sequences; q++) {
        const size_t tokens = r->positions[q] + r->starts[q + 1] - r->starts[q];
        for (size_t page = 0; page * VPTQ_KV_PAGE < tokens; page++)
            if (r->table[q * r->ld_table + page] > last)
                last = r->table[q * r->ld_table + page];
    }
    const size_t numbers = (last + 1) * VPTQ_KV_PAGE * pool->kv_heads * pool->head_dim;
    *d = *pool;
    d->keys = out(s, pool->keys, numbers, vptq_dtype_get(pool->type)->bytes);
    d->values = out(s, pool->values, numbers, vptq_dtype_get(pool->type)->bytes);
    return d;
}

static vptq_status shadow_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows,
                                    const vptq_rope_args *a, vptq_err *err)
{
    shadow *s = of(dev);
    vptq_rope_args args = *a, *d = &args;
    vptq_kv_rows r = *rows;
    r.starts = in(s, rows->starts, rows->sequences + 1, sizeof *rows->starts);
    r.positions = in(s, rows->positions, rows->sequences, sizeof *rows->positions);
    OUT(x, span(rows->rows, a->heads * a->head_dim, a->ldx));
    rope_tables(s, a, rows->max_tokens, d);
    return done(s, s->ops->rope_rows(s->dev, &r, d, err));
}

static void kv_store_arrays(shadow *s, const vptq_kv_store_args *a, vptq_kv_store_args *d)
{
    const size_t width = a->pool->kv_heads * a->pool->head_dim;
    d->rows = kv_rows_arrays(s, a->rows);
    d->pool = kv_pool_arrays(s, a->rows, a->pool);
    IN(keys, span(a->rows->rows, width, a->ldk));
    IN(values, span(a->rows->rows, width, a->ldv));
}
SHADOW_OP(kv_store, vptq_kv_store_args)

static void attention_paged_arrays(shadow *s, const vptq_paged_args *a, vptq_paged_args *d)
{
    const size_t wide = a->heads * a->pool->head_dim;
    d->rows = kv_rows_arrays(s, a->rows);
    d->pool = kv_pool_arrays(s, a->rows, a->pool);
    IN(q, span(a->rows->rows, wide, a->ldq));
    OUT(out, span(a->rows->rows, wide, a->ldo));
}
SHADOW_OP(attention_paged, vptq_paged_args)

static void swiglu_arrays(shadow *s, const vptq_swiglu_args *a, vptq_swiglu_args *d)
{
    IN(gate, a->n * a->dim);
    IN(up, a->n * a->dim);
    OUT(y, a->n * a->dim);
}
SHADOW_OP(swiglu, vptq_swiglu_args)

static void nll_arrays(shadow *s, const vptq_nll_args *a, vptq_nll_args *d)
{
    IN(logits, span(a->n, a->width, a->ld));
    IN(targets, a->n);
    OUT(state, a->n);
}
SHADOW_OP(nll, vptq_nll_args)

static void sample_arrays(shadow *s, const vptq_sample_args *a, vptq_sample_args *d)
{
    IN(logits, span(a->n, a->vocab, a->ld));
    IN(u, a->n);
    OUT(ids, a->n);
}
SHADOW_OP(sample, vptq_sample_args)

/* ---- the table ---- */

#define SHADOWED(op) .op = shadow_##op,
static const vptq_backend shadow_table = {
    VPTQ_ARRAY_OPS(SHADOWED).close = shadow_close,
    .describe = shadow_describe,
    .libraries = shadow_libraries,
    .alloc = shadow_alloc,
    .release = shadow_release,
    .left = shadow_left,
    .upload = shadow_upload,
    .upload_new = shadow_upload,
    .download = shadow_download,
    .copy = shadow_copy,
    .clear = shadow_clear,
    .sync = shadow_sync,
    .cache_bytes = shadow_cache_bytes,
    .measure = vptq_ref_measure, /* copies cannot be recorded */
    .library_half = vptq_ref_library_half,
    .gemm = shadow_gemm,
    .syrk_add = shadow_syrk_add,
    .potrf = shadow_potrf,
    .trtri = shadow_trtri,
    .quad_trace = shadow_quad_trace,
    .assign = shadow_assign,
    .reassign = shadow_reassign,
    .accumulate = shadow_accumulate,
    .matrix_open = shadow_matrix_open,
    .matrix_close = shadow_matrix_close,
    .vq_dequant = shadow_vq_dequant,
    .vq_gemv = shadow_vq_gemv,
    .gemv = shadow_gemv,
    .library_gemv = shadow_library_gemv,
    .search_index_open = shadow_search_index_open,
    .search_index_close = shadow_search_index_close,
    .search = shadow_search,
    .vq_pass = shadow_vq_pass,
    .vq_descend = shadow_vq_descend,
    .vq_gather = shadow_vq_gather,
    .vq_scatter = shadow_vq_scatter,
    .embed = shadow_embed,
    .rmsnorm = shadow_rmsnorm,
    .rope = shadow_rope,
    .attention = shadow_attention,
    .attention_mass = shadow_attention_mass,
    .swiglu = shadow_swiglu,
    .nll = shadow_nll,
    .sample = shadow_sample,
    .rope_rows = shadow_rope_rows,
    .kv_store = shadow_kv_store,
    .attention_paged = shadow_attention_paged,
};

vptq_device shadow_of(const vptq_device *dev)
{
    shadow *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->ops = dev->ops;
    s->dev = dev->state;
    s->table = shadow_table;
    s->table.name = dev->ops->name;
    s->table.gemv_max_tokens = dev->ops->gemv_max_tokens;
    return (vptq_device){.ops = &s->table, .state = (vptq_dev *)(void *)s, .ctx = dev->ctx};
}
