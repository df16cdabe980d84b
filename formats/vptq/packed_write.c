/* Makes the tensors of a matrix in the portable form of the published layout.  The indices are
 * packed already (lib/encoder/store.c); here they are only reordered and cleaned. */
#include <math.h>
#include <string.h>

#include "formats/vptq/packed.h"
#include "lib/base/grid.h"
#include "lib/base/half.h"

/* Zeroed words for the indices of a matrix. */
static uint32_t *new_words(const vptq_vq_shape *s, vptq_arena *arena, vptq_err *err)
{
    size_t rows = (size_t)s->groups * vptq_vq_vector_rows(s);
    return vptq_arena_zalloc(arena, rows * vptq_vq_row_words(s), sizeof(uint32_t), err);
}

/* Reorders the indices (G = 1, no outliers) so that the matrix needs no permutation. */
static vptq_status absorb_perm(vptq_vq *q, vptq_arena *arena, vptq_err *err)
{
    vptq_vq_shape *s = &q->shape;
    size_t vector_rows = vptq_vq_vector_rows(s), row_words = vptq_vq_row_words(s);
    unsigned bits = vptq_vq_index_bits(s);
    uint32_t *words = new_words(s, arena, err);
    if (!words)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < vector_rows; r++)
        for (size_t p = 0; p < s->in; p++)
            vptq_bits_put(words + r * row_words, q->perm[p], bits,
                          vptq_bits_get(q->indices + r * row_words, p, bits));
    q->indices = words;
    q->perm = NULL;
    s->has_perm = false;
    return VPTQ_OK;
}

vptq_status vptq_packed_swap_codebooks(vptq_vq *q, vptq_arena *arena, vptq_err *err)
{
    vptq_vq_shape *s = &q->shape;
    VPTQ_BUG_IF(s->k_res == 0);
    size_t rows = (size_t)s->groups * vptq_vq_vector_rows(s), row_words = vptq_vq_row_words(s);
    unsigned bits = vptq_vq_index_bits(s), main_bits = vptq_log2u(s->k);
    unsigned res_bits = vptq_log2u(s->k_res);
    uint32_t *words = new_words(s, arena, err);
    if (!words)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < s->group_size; c++) {
            uint64_t field = vptq_bits_get(q->indices + r * row_words, c, bits);
            uint64_t main_index = field & (s->k - 1);
            vptq_bits_put(words + r * row_words, c, bits,
                          (uint32_t)(field >> main_bits | main_index << res_bits));
        }
    const float *codebook = q->centroids;
    uint32_t k = s->k;
    q->indices = words;
    q->centroids = q->res_centroids;
    q->res_centroids = codebook;
    s->k = s->k_res;
    s->k_res = k;
    return VPTQ_OK;
}

/* ---- padding ---- */

/* Number of bits used in the last word of a row; 0 = all. */
static unsigned last_bits(const vptq_vq_shape *s)
{
    return (unsigned)((uint64_t)s->group_size * vptq_vq_index_bits(s) % 32);
}

size_t vptq_packed_count_dirty_rows(const vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    size_t rows = (size_t)s->groups * vptq_vq_vector_rows(s), row_words = vptq_vq_row_words(s);
    size_t dirty = 0;
    unsigned used = last_bits(s);
    for (size_t r = 0; used && r < rows; r++)
        dirty += q->indices[(r + 1) * row_words - 1] >> used != 0;
    return dirty;
}

static vptq_status clear_padding(vptq_vq *q, vptq_arena *arena, vptq_err *err)
{
    const vptq_vq_shape *s = &q->shape;
    size_t rows = (size_t)s->groups * vptq_vq_vector_rows(s), row_words = vptq_vq_row_words(s);
    if (vptq_packed_count_dirty_rows(q) == 0)
        return VPTQ_OK;
    uint32_t *words = new_words(s, arena, err);
    if (!words)
        return VPTQ_E_NOMEM;
    memcpy(words, q->indices, rows * row_words * sizeof *words);
    for (size_t r = 0; r < rows; r++)
        words[(r + 1) * row_words - 1] &= (UINT32_C(1) << last_bits(s)) - 1;
    q->indices = words;
    return VPTQ_OK;
}

/* ---- tensors ---- */

typedef struct matrix_writer {
    const vptq_packed_matrix *m;
    vptq_arena *arena;
    vptq_tensor *list;
    size_t *count;
    vptq_err *err;
} matrix_writer;

vptq_status vptq_packed_part(vptq_tensor *t, const char *module, const char *part,
                             const void *data, vptq_arena *arena, vptq_err *err)
{
    size_t elements = 1;
    t->name = vptq_arena_printf(arena, err, "%s.%s", module, part);
    if (!t->name)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < t->dims; i++)
        elements *= (size_t)t->shape[i];
    t->bytes = elements * vptq_dtype_get(t->type)->bytes;
    t->data = data;
    t->round_to = VPTQ_F32;
    t->file = "";
    return VPTQ_OK;
}

static vptq_status add_part(const matrix_writer *w, const char *part, vptq_tensor t,
                            const void *data)
{
    VPTQ_CHECK(vptq_packed_part(&t, w->m->name, part, data, w->arena, w->err));
    w->list[(*w->count)++] = t;
    return VPTQ_OK;
}

/* Adds x, rounded to the storage type: a [rows, cols] matrix, or with rows 0 a vector. */
static vptq_status add_numbers(const matrix_writer *w, const char *part, uint64_t rows,
                               uint64_t cols, const float *x)
{
    size_t n = (size_t)((rows ? rows : 1) * cols);
    uint16_t *stored = vptq_arena_alloc(w->arena, n, sizeof *stored, w->err);
    if (!stored)
        return VPTQ_E_NOMEM;
    /* the smallest magnitude that rounds to infinity */
    float limit = w->m->storage == VPTQ_F16 ? 65520.0F : 0x1.FFp127F;
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < limit))
            return vptq_fail(w->err, VPTQ_E_NUMERIC,
                             "layer '%s': element %zu of %s is %g, which %s cannot hold",
                             w->m->name, i, part, (double)x[i],
                             vptq_dtype_get(w->m->storage)->name);
    if (w->m->storage == VPTQ_F16)
        vptq_f32_to_f16_n(x, stored, n);
    else
        vptq_f32_to_bf16_n(x, stored, n);
    vptq_tensor t = {.type = w->m->storage};
    if (rows)
        t.shape[t.dims++] = rows;
    t.shape[t.dims++] = cols;
    return add_part(w, part, t, stored);
}

/* ---- codebooks ---- */

/* Whether n numbers, codebooks of n / groups each, can be stored as int8.  Most that cannot are
 * off the grid, which shows after a few of them. */
static bool fits_int8(vptq_dtype storage, uint32_t groups, size_t n, const float *x)
{
    float scale;
    for (uint32_t g = 0; g < groups; g++)
        if (!vptq_grid_find(x + g * (n / groups), n / groups, &scale, NULL))
            return false;
    for (size_t i = 0; i < n; i++)
        if (fabsf(vptq_round_to(storage, x[i]) - x[i]) > 0 ||
            (fabsf(x[i]) <= 0 && signbit(x[i])))
            return false;
    return true;
}

bool vptq_packed_fits_int8(const vptq_packed_matrix *m)
{
    const vptq_vq *q = &m->vq;
    const vptq_vq_shape *s = &q->shape;
    const size_t n = (size_t)s->groups * s->v;
    return fits_int8(m->storage, s->groups, n * s->k, q->centroids) &&
           (!s->k_res || fits_int8(m->storage, s->groups, n * s->k_res, q->res_centroids)) &&
           (!s->outliers ||
            fits_int8(m->storage, 1, (size_t)s->k0 * s->v0, q->outlier_centroids));
}

/* Adds x, codebooks [groups, n], as codes and scales. */
static vptq_status add_int8(const matrix_writer *w, const char *part, const char *scale_part,
                            uint32_t groups, uint64_t n, const float *x)
{
    int8_t *codes = vptq_arena_alloc(w->arena, (size_t)(groups * n), sizeof *codes, w->err);
    float *scales = vptq_arena_alloc(w->arena, groups, sizeof *scales, w->err);
    if (!codes || !scales)
        return VPTQ_E_NOMEM;
    for (size_t g = 0; g < groups; g++)
        if (!vptq_grid_find(x + g * n, (size_t)n, &scales[g], codes + g * n))
            return vptq_fail(w->err, VPTQ_E_NUMERIC,
                             "layer '%s': codebook %zu of %s is not on an int8 grid",
                             w->m->name, g, part);
    const vptq_tensor t = {.type = VPTQ_I8, .dims = 2, .shape = {groups, n}};
    VPTQ_CHECK(add_part(w, part, t, codes));
    return add_numbers(w, scale_part, 0, groups, scales);
}

static vptq_status add_codebooks(const matrix_writer *w, const vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    const struct codebooks {
        const char *part, *scale;
        uint32_t groups;
        uint64_t n;
        const float *x;
    } all[] = {
        {"centroids.weight", "centroids.scale", s->groups, (uint64_t)s->k * s->v, q->centroids},
        {"res_centroids.weight", "res_centroids.scale", s->groups, (uint64_t)s->k_res * s->v,
         q->res_centroids},
        {"outlier_centroids.weight", "outlier_centroids.scale", 1, (uint64_t)s->k0 * s->v0,
         q->outlier_centroids}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct codebooks *b = &all[i];
        if (!b->n)
            continue;
        VPTQ_CHECK(s->int8 ? add_int8(w, b->part, b->scale, b->groups, b->n, b->x)
                           : add_numbers(w, b->part, b->groups, b->n, b->x));
    }
    return VPTQ_OK;
}

static vptq_status add_norm(const matrix_writer *w, const vptq_vq *q)
{
    const float *scale = q->scale, *bias = q->bias;
    if (!q->shape.has_norm) {
        float *ones = vptq_arena_alloc(w->arena, q->shape.in, sizeof *ones, w->err);
        float *zeros = vptq_arena_zalloc(w->arena, q->shape.in, sizeof *zeros, w->err);
        if (!ones || !zeros)
            return VPTQ_E_NOMEM;
        for (size_t i = 0; i < q->shape.in; i++)
            ones[i] = 1.0F;
        scale = ones;
        bias = zeros;
    }
    VPTQ_CHECK(add_numbers(w, "weight_scale", 0, q->shape.in, scale));
    return add_numbers(w, "weight_bias", 0, q->shape.in, bias);
}

static vptq_status add_outliers(const matrix_writer *w, const vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    vptq_tensor indices = {
        .type = VPTQ_I16, .dims = 3, .shape = {1, (s->out + s->v0 - 1) / s->v0, s->outliers}};
    return add_part(w, "outlier_indices", indices, q->outlier_indices);
}

vptq_status vptq_packed_tensors(const vptq_packed_matrix *m, vptq_arena *arena,
                                vptq_tensor *list, size_t *count, vptq_err *err)
{
    vptq_vq q = m->vq;
    matrix_writer w = {.m = m, .arena = arena, .list = list, .count = count, .err = err};
    if (q.shape.k_res > q.shape.k)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "layer '%s': cannot write %u residual centroids for %u main ones: "
                         "other readers of the layout truncate such indices",
                         m->name, (unsigned)q.shape.k_res, (unsigned)q.shape.k);
    if (q.shape.has_perm && !vptq_packed_stored_shape(&q.shape).has_perm)
        VPTQ_CHECK(absorb_perm(&q, arena, err));
    VPTQ_CHECK(clear_padding(&q, arena, err));
    const vptq_vq_shape *s = &q.shape;
    vptq_tensor indices = {.type = VPTQ_I32,
                           .dims = 3,
                           .shape = {s->groups, vptq_vq_vector_rows(s), vptq_vq_row_words(s)}};
    VPTQ_CHECK(add_part(&w, "indices", indices, q.indices));
    if (s->outliers)
        VPTQ_CHECK(add_outliers(&w, &q));
    VPTQ_CHECK(add_codebooks(&w, &q));
    VPTQ_CHECK(add_norm(&w, &q));
    if (s->has_perm) {
        vptq_tensor perm = {.type = VPTQ_I16, .dims = 1, .shape = {s->in}};
        VPTQ_CHECK(add_part(&w, "perm", perm, q.perm));
    }
    return VPTQ_OK;
}
