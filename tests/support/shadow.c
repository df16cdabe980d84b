/* A device whose ops take host arrays: every op copies its arrays to a real device and back. */
#include "tests/support/shadow.h"

#include <stdlib.h>
#include <string.h>

#include "lib/backend/ref/ref.h"
#include "tests/support/shadow_ops.h"
#include "tests/support/vtest.h"

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
    assert_true(s->count < SHADOW_MAX_COPIES);
    void *device = upload(s, host, bytes);
    s->copies[s->count++] = (shadow_array){device, host, bytes, output};
    return device;
}

const void *shadow_in(shadow *s, const void *host, size_t count, size_t size)
{
    void *p = NULL;
    memcpy(&p, &host, sizeof p); /* only read: not an output */
    return take(s, p, count * size, false);
}

void *shadow_out(shadow *s, void *host, size_t count, size_t size)
{
    return take(s, host, count * size, true);
}

size_t shadow_span(size_t rows, size_t columns, size_t ld)
{
    return rows && columns ? (rows - 1) * ld + columns : 0;
}

vptq_status shadow_done(shadow *s, vptq_status st)
{
    vptq_err err;
    for (size_t i = 0; i < s->count; i++) {
        const shadow_array *c = &s->copies[i];
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
    shadow_state(dev)->ops->close(shadow_state(dev)->dev);
    free(shadow_state(dev));
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
    return shadow_state(dev)->ops->alloc(shadow_state(dev)->dev, count, size, ptr, err);
}

static void shadow_release(vptq_dev *dev, void *ptr)
{
    shadow_state(dev)->ops->release(shadow_state(dev)->dev, ptr);
}

static void shadow_libraries(vptq_dev *dev, char *text, size_t size)
{
    shadow_state(dev)->ops->libraries(shadow_state(dev)->dev, text, size);
}

static size_t shadow_left(const vptq_dev *dev)
{
    const shadow *s = (const shadow *)(const void *)dev;
    return s->ops->left(s->dev);
}

static vptq_status shadow_upload(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                 vptq_err *err)
{
    return shadow_state(dev)->ops->upload(shadow_state(dev)->dev, dst, src, bytes, err);
}

static vptq_status shadow_download(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                                   vptq_err *err)
{
    return shadow_state(dev)->ops->download(shadow_state(dev)->dev, dst, src, bytes, err);
}

static vptq_status shadow_copy(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                               vptq_err *err)
{
    return shadow_state(dev)->ops->copy(shadow_state(dev)->dev, dst, src, bytes, err);
}

static vptq_status shadow_clear(vptq_dev *dev, void *dst, size_t bytes, vptq_err *err)
{
    return shadow_state(dev)->ops->clear(shadow_state(dev)->dev, dst, bytes, err);
}

static vptq_status shadow_sync(vptq_dev *dev, vptq_err *err)
{
    return shadow_state(dev)->ops->sync(shadow_state(dev)->dev, err);
}

static size_t shadow_cache_bytes(const vptq_dev *dev)
{
    const shadow *s = (const shadow *)(const void *)dev;
    return s->ops->cache_bytes(s->dev);
}

/* ---- linear algebra ---- */

static void gemm_arrays(shadow *s, const vptq_gemm_args *a, vptq_gemm_args *d)
{
    IN(a, a->trans_a ? shadow_span(a->k, a->m, a->lda) : shadow_span(a->m, a->k, a->lda));
    IN(b, a->trans_b ? shadow_span(a->n, a->k, a->ldb) : shadow_span(a->k, a->n, a->ldb));
    OUT(c, shadow_span(a->m, a->n, a->ldc));
    IN(bias, a->n);
}
SHADOW_OP(gemm, vptq_gemm_args)

static void syrk_add_arrays(shadow *s, const vptq_syrk_args *a, vptq_syrk_args *d)
{
    IN(x, shadow_span(a->tokens, a->n, a->ldx));
    IN(w, a->tokens);
    OUT(h, a->n * a->n);
    OUT(sum, a->n);
}
SHADOW_OP(syrk_add, vptq_syrk_args)

static void channel_range_arrays(shadow *s, const vptq_channel_args *a, vptq_channel_args *d)
{
    IN(x, shadow_span(a->tokens, a->n, a->ldx));
    OUT(abs_sum, a->n);
    OUT(min, a->n);
    OUT(max, a->n);
}
SHADOW_OP(channel_range, vptq_channel_args)

vptq_status shadow_potrf(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                         vptq_err *err)
{
    shadow *s = shadow_state(dev);
    double *d = shadow_out(s, a, shadow_span(n, n, lda), sizeof *a);
    return shadow_done(s, s->ops->potrf(s->dev, n, d, lda, bad_pivot, err));
}

vptq_status shadow_trtri(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err)
{
    shadow *s = shadow_state(dev);
    double *d = shadow_out(s, a, shadow_span(n, n, lda), sizeof *a);
    return shadow_done(s, s->ops->trtri(s->dev, n, d, lda, err));
}

static void quad_trace_arrays(shadow *s, const vptq_quad_trace_args *a, vptq_quad_trace_args *d)
{
    IN(e, shadow_span(a->m, a->n, a->lde));
    IN(h, shadow_span(a->n, a->n, a->ldh));
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
static SHADOW_OP(reassign, vptq_assign_args)

    static void accumulate_arrays(shadow *s, const vptq_accumulate_args *a,
                                  vptq_accumulate_args *d)
{
    IN(x, a->n * a->v);
    IN(w, a->n);
    IN(idx, a->n);
    IN(centroids, (size_t)a->k * a->v);
    OUT(sums, (size_t)a->k * a->v);
    OUT(weights, a->k);
}
SHADOW_OP(accumulate, vptq_accumulate_args)

static void plus_plus_arrays(shadow *s, const vptq_plus_plus_args *a, vptq_plus_plus_args *d)
{
    IN(x, a->m * a->v);
    IN(w, a->m);
    IN(u, (size_t)a->k * VPTQ_PLUS_PLUS_TRIALS);
    OUT(centroids, (size_t)a->k * a->v);
}
SHADOW_OP(plus_plus, vptq_plus_plus_args)

/* ---- vector quantization ---- */

static void gemv_arrays(shadow *s, size_t outs, size_t ins, const vptq_gemv_args *g,
                        vptq_gemv_args *d)
{
    *d = *g;
    d->x = shadow_in(s, g->x, shadow_span(g->n, ins, g->ldx), sizeof *g->x);
    d->y = shadow_out(s, g->y, shadow_span(g->n, outs, g->ldy), sizeof *g->y);
    d->bias = shadow_in(s, g->bias, outs, sizeof *g->bias);
}

vptq_status shadow_gemv(vptq_dev *dev, size_t outs, size_t ins, vptq_dtype type, const void *w,
                        const vptq_gemv_args *g, vptq_err *err)
{
    shadow *s = shadow_state(dev);
    vptq_gemv_args d;
    gemv_arrays(s, outs, ins, g, &d);
    const void *dw = shadow_in(s, w, outs * ins, vptq_dtype_get(type)->bytes);
    return shadow_done(s, s->ops->gemv(s->dev, outs, ins, type, dw, &d, err));
}

vptq_status shadow_library_gemv(vptq_dev *dev, size_t outs, size_t ins, const float *w,
                                const vptq_gemv_args *g, vptq_err *err)
{
    shadow *s = shadow_state(dev);
    vptq_gemv_args d;
    gemv_arrays(s, outs, ins, g, &d);
    const float *dw = shadow_in(s, w, outs * ins, sizeof *w);
    return shadow_done(s, s->ops->library_gemv(s->dev, outs, ins, dw, &d, err));
}

vptq_status shadow_uniform_gemv(vptq_dev *dev, const vptq_uniform *w, vptq_dtype storage,
                                const vptq_gemv_args *g, vptq_err *err)
{
    shadow *s = shadow_state(dev);
    const size_t out = w->shape.out, in = w->shape.in, groups = vptq_uniform_groups(&w->shape);
    const vptq_uniform *a = w; /* of IN */
    vptq_uniform copy = *w, *d = &copy;
    vptq_gemv_args dg;
    gemv_arrays(s, out, in, g, &dg);
    IN(codes, out * vptq_uniform_row_words(&w->shape));
    IN(scales, out * groups);
    IN(zeros, out * groups);
    IN(groups, in);
    return shadow_done(s, s->ops->uniform_gemv(s->dev, d, storage, &dg, err));
}

void shadow_matrix_close(vptq_dev *dev, vptq_matrix *matrix)
{
    shadow_matrix *m = (shadow_matrix *)(void *)matrix;
    if (!m)
        return;
    shadow_state(dev)->ops->matrix_close(shadow_state(dev)->dev, m->matrix);
    free(m);
}

/* The arrays of a vptq_vq are in host memory on every device. */
vptq_status shadow_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **matrix,
                               vptq_err *err)
{
    shadow_matrix *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->shape = q->shape;
    const vptq_status st =
        shadow_state(dev)->ops->matrix_open(shadow_state(dev)->dev, q, &m->matrix, err);
    *matrix = (vptq_matrix *)(void *)m;
    if (st) {
        shadow_matrix_close(dev, *matrix);
        *matrix = NULL;
    }
    return st;
}

vptq_status shadow_vq_dequant(vptq_dev *dev, const vptq_matrix *matrix, size_t r0, size_t n,
                              float *w, size_t ldw, vptq_err *err)
{
    shadow *s = shadow_state(dev);
    const shadow_matrix *m = matrix_of(matrix);
    float *dw = shadow_out(s, w, shadow_span(n, m->shape.in, ldw), sizeof *w);
    return shadow_done(s, s->ops->vq_dequant(s->dev, m->matrix, r0, n, dw, ldw, err));
}

vptq_status shadow_vq_gemv(vptq_dev *dev, const vptq_matrix *matrix, const vptq_gemv_args *g,
                           vptq_err *err)
{
    shadow *s = shadow_state(dev);
    const shadow_matrix *m = matrix_of(matrix);
    vptq_gemv_args d;
    gemv_arrays(s, m->shape.out, m->shape.in, g, &d);
    return shadow_done(s, s->ops->vq_gemv(s->dev, m->matrix, &d, err));
}

void shadow_search_index_close(vptq_dev *dev, vptq_search_index *index)
{
    shadow *s = shadow_state(dev);
    shadow_search_index *f = (shadow_search_index *)(void *)index;
    if (!f)
        return;
    s->ops->search_index_close(s->dev, f->index);
    s->ops->release(s->dev, f->codebooks[0]);
    s->ops->release(s->dev, f->codebooks[1]);
    free(f);
}

vptq_status shadow_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                     vptq_search_index **index, vptq_err *err)
{
    shadow *s = shadow_state(dev);
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
    OUT(z, shadow_span(a->cols, a->rows, a->ldz));
    IN(u, shadow_span(a->cols, a->cols, a->ldu));
    OUT(idx, shadow_span(a->cols, vector_rows, a->ldi));
    OUT(idx_res, shadow_span(a->cols, vector_rows, a->ldi));
    OUT(q, shadow_span(a->cols, a->rows, a->ldq));
    OUT(err, shadow_span(a->cols, a->rows, a->lde));
}
SHADOW_OP(vq_pass, vptq_pass_args)

static void vq_descend_arrays(shadow *s, const vptq_descend_args *a, vptq_descend_args *d)
{
    const shadow_search_index *index = index_of(a->index);
    const size_t vector_rows = a->rows / index->v;
    d->index = index->index;
    IN(g, shadow_span(a->cols, a->rows, a->ldg));
    IN(h, shadow_span(a->cols, a->cols, a->ldh));
    OUT(idx, shadow_span(a->cols, vector_rows, a->ldi));
    OUT(idx_res, shadow_span(a->cols, vector_rows, a->ldi));
    OUT(q, shadow_span(a->cols, a->rows, a->ldq));
    OUT(delta, shadow_span(a->cols, a->rows, a->ldd));
}
SHADOW_OP(vq_descend, vptq_descend_args)

static void vq_descend_output_arrays(shadow *s, const vptq_descend_output_args *a,
                                     vptq_descend_output_args *d)
{
    const size_t vector_rows = a->rows / a->v, block = VPTQ_OUTPUT_ROWS;
    IN(centroids, (size_t)a->k * a->v);
    IN(res_centroids, (size_t)a->k_res * a->v);
    IN(output, (a->rows + block - 1) / block * block * block);
    IN(g, shadow_span(a->cols, a->rows, a->ldg));
    IN(h, shadow_span(a->cols, a->cols, a->ldh));
    OUT(idx, shadow_span(a->cols, vector_rows, a->ldi));
    OUT(idx_res, shadow_span(a->cols, vector_rows, a->ldi));
    OUT(q, shadow_span(a->cols, a->rows, a->ldq));
    OUT(delta, shadow_span(a->cols, a->rows, a->ldd));
}
SHADOW_OP(vq_descend_output, vptq_descend_output_args)

static void vq_gather_arrays(shadow *s, const vptq_gather_args *a, vptq_gather_args *d)
{
    const size_t vector_rows = a->rows / a->v;
    IN(centroids, (size_t)a->k * a->v);
    IN(res_centroids, (size_t)a->k_res * a->v);
    IN(idx, shadow_span(a->cols, vector_rows, a->ldi));
    IN(idx_res, shadow_span(a->cols, vector_rows, a->ldi));
    OUT(q, shadow_span(a->cols, a->rows, a->ldq));
}
SHADOW_OP(vq_gather, vptq_gather_args)

static void vq_scatter_arrays(shadow *s, const vptq_scatter_args *a, vptq_scatter_args *d)
{
    IN(y, shadow_span(a->cols, a->rows, a->ldy));
    IN(weight, a->cols);
    IN(idx, shadow_span(a->cols, a->rows / a->v, a->ldi));
    OUT(sums, (size_t)a->k * a->v);
    OUT(weights, (size_t)a->k * a->v);
}
SHADOW_OP(vq_scatter, vptq_scatter_args)

/* ---- transformer ---- */

static void embed_arrays(shadow *s, const vptq_embed_args *a, vptq_embed_args *d)
{
    int32_t last = 0; /* the table may end after the largest id */
    for (size_t i = 0; i < a->n; i++)
        last = a->ids[i] > last ? a->ids[i] : last;
    d->table =
        shadow_in(s, a->table, ((size_t)last + 1) * a->dim, vptq_dtype_get(a->type)->bytes);
    IN(ids, a->n);
    OUT(out, a->n * a->dim);
}
SHADOW_OP(embed, vptq_embed_args)

static void rmsnorm_arrays(shadow *s, const vptq_rmsnorm_args *a, vptq_rmsnorm_args *d)
{
    IN(x, shadow_span(a->n, a->dim, a->ldx));
    IN(weight, a->dim);
    IN(bias, a->dim);
    OUT(y, shadow_span(a->n, a->dim, a->ldy));
}
SHADOW_OP(rmsnorm, vptq_rmsnorm_args)

static void rope_tables(shadow *s, const vptq_rope_args *a, size_t positions, vptq_rope_args *d)
{
    IN(cos_table, positions * vptq_rope_pairs(a));
    IN(sin_table, positions * vptq_rope_pairs(a));
}

static void rope_arrays(shadow *s, const vptq_rope_args *a, vptq_rope_args *d)
{
    OUT(x, shadow_span(a->n, a->heads * a->head_dim, a->ldx));
    rope_tables(s, a, a->pos0 + a->n, d);
}
SHADOW_OP(rope, vptq_rope_args)

static void attention_arrays(shadow *s, const vptq_attention_args *a, vptq_attention_args *d)
{
    const size_t width = a->kv_heads * a->head_dim, wide = a->heads * a->head_dim;
    IN(q, shadow_span(a->n, wide, a->ldq));
    IN(keys, shadow_span(a->pos0 + a->n, width, a->ldk));
    IN(values, shadow_span(a->pos0 + a->n, width, a->ldv));
    OUT(out, shadow_span(a->n, wide, a->ldo));
    OUT(lse, a->n * a->heads);
}
SHADOW_OP(attention, vptq_attention_args)

vptq_status shadow_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                  vptq_err *err)
{
    shadow *s = shadow_state(dev);
    vptq_attention_args d = *a;
    attention_arrays(s, a, &d);
    double *dm = shadow_out(s, mass, a->pos0 + a->n, sizeof *mass);
    return shadow_done(s, s->ops->attention_mass(s->dev, &d, dm, err));
}

/* Copies page tables up to the last page of each sequence; entries after it may be anything. */
static const vptq_kv_rows *kv_rows_arrays(shadow *s, const vptq_kv_rows *r)
{
    vptq_kv_rows *d = &s->rows;
    *d = *r;
    d->starts = shadow_in(s, r->starts, r->sequences + 1, sizeof *r->starts);
    d->positions = shadow_in(s, r->positions, r->sequences, sizeof *r->positions);
    const size_t pages = (r->max_tokens + VPTQ_KV_PAGE - 1) / VPTQ_KV_PAGE;
    d->table =
        shadow_in(s, r->table, shadow_span(r->sequences, pages, r->ld_table), sizeof *r->table);
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
    d->keys = shadow_out(s, pool->keys, numbers, vptq_dtype_get(pool->type)->bytes);
    d->values = shadow_out(s, pool->values, numbers, vptq_dtype_get(pool->type)->bytes);
    return d;
}

vptq_status shadow_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_rope_args *a,
                             vptq_err *err)
{
    shadow *s = shadow_state(dev);
    vptq_rope_args args = *a, *d = &args;
    vptq_kv_rows r = *rows;
    r.starts = shadow_in(s, rows->starts, rows->sequences + 1, sizeof *rows->starts);
    r.positions = shadow_in(s, rows->positions, rows->sequences, sizeof *rows->positions);
    OUT(x, shadow_span(rows->rows, a->heads * a->head_dim, a->ldx));
    rope_tables(s, a, rows->max_tokens, d);
    return shadow_done(s, s->ops->rope_rows(s->dev, &r, d, err));
}

static void kv_store_arrays(shadow *s, const vptq_kv_store_args *a, vptq_kv_store_args *d)
{
    const size_t width = a->pool->kv_heads * a->pool->head_dim;
    d->rows = kv_rows_arrays(s, a->rows);
    d->pool = kv_pool_arrays(s, a->rows, a->pool);
    IN(keys, shadow_span(a->rows->rows, width, a->ldk));
    IN(values, shadow_span(a->rows->rows, width, a->ldv));
}
SHADOW_OP(kv_store, vptq_kv_store_args)

static void attention_paged_arrays(shadow *s, const vptq_paged_args *a, vptq_paged_args *d)
{
    const size_t wide = a->heads * a->pool->head_dim;
    d->rows = kv_rows_arrays(s, a->rows);
    d->pool = kv_pool_arrays(s, a->rows, a->pool);
    IN(q, shadow_span(a->rows->rows, wide, a->ldq));
    OUT(out, shadow_span(a->rows->rows, wide, a->ldo));
}
SHADOW_OP(attention_paged, vptq_paged_args)

static void swiglu_arrays(shadow *s, const vptq_swiglu_args *a, vptq_swiglu_args *d)
{
    IN(gate, a->n * a->dim);
    IN(up, a->n * a->dim);
    OUT(y, a->n * a->dim);
}
SHADOW_OP(swiglu, vptq_swiglu_args)

static void soft_cap_arrays(shadow *s, const vptq_soft_cap_args *a, vptq_soft_cap_args *d)
{
    OUT(x, a->n);
}
SHADOW_OP(soft_cap, vptq_soft_cap_args)

static void nll_arrays(shadow *s, const vptq_nll_args *a, vptq_nll_args *d)
{
    IN(logits, shadow_span(a->n, a->width, a->ld));
    IN(targets, a->n);
    OUT(state, a->n);
}
SHADOW_OP(nll, vptq_nll_args)

static void sample_arrays(shadow *s, const vptq_sample_args *a, vptq_sample_args *d)
{
    IN(logits, shadow_span(a->n, a->vocab, a->ld));
    IN(u, a->n);
    OUT(ids, a->n);
}
SHADOW_OP(sample, vptq_sample_args)

/* ---- gradients ---- */

static void attention_grad_arrays(shadow *s, const vptq_attention_grad_args *a,
                                  vptq_attention_grad_args *d)
{
    const size_t wide = a->n * a->heads * a->head_dim;
    const size_t narrow = a->n * a->kv_heads * a->head_dim;
    IN(q, wide);
    IN(out, wide);
    IN(dout, wide);
    IN(keys, narrow);
    IN(values, narrow);
    IN(lse, a->n * a->heads);
    OUT(dq, wide);
    OUT(dkeys, narrow);
    OUT(dvalues, narrow);
}
SHADOW_OP(attention_grad, vptq_attention_grad_args)

static void rmsnorm_grad_arrays(shadow *s, const vptq_rmsnorm_grad_args *a,
                                vptq_rmsnorm_grad_args *d)
{
    IN(x, a->n * a->dim);
    IN(dy, a->n * a->dim);
    OUT(dx, a->n * a->dim);
    IN(weight, a->dim);
    OUT(dweight, a->dim);
}
SHADOW_OP(rmsnorm_grad, vptq_rmsnorm_grad_args)

static void swiglu_grad_arrays(shadow *s, const vptq_swiglu_grad_args *a,
                               vptq_swiglu_grad_args *d)
{
    IN(dy, a->n * a->dim);
    OUT(gate, a->n * a->dim);
    OUT(up, a->n * a->dim);
}
SHADOW_OP(swiglu_grad, vptq_swiglu_grad_args)

static void kl_grad_arrays(shadow *s, const vptq_kl_grad_args *a, vptq_kl_grad_args *d)
{
    OUT(logits, a->n * a->vocab);
    IN(teacher, a->n * a->vocab);
    if (!a->teacher)
        IN(targets, a->n);
    OUT(loss, a->n);
}
SHADOW_OP(kl_grad, vptq_kl_grad_args)

/* ---- the table ---- */

#define SHADOWED(op) .op = shadow_##op,
static const vptq_backend shadow_table = {
    VPTQ_BACKEND_OPS(SHADOWED).close = shadow_close,
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
    .reassign = shadow_reassign,
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
