/* Builds the run-time layout of a packed matrix for the kernels. */
#include "lib/backend/cuda/plan_layout.h"

#include <stdlib.h>
#include <string.h>

#include "lib/backend/cuda/plan_copies.h"
#include "lib/base/parallel.h"

enum { PADDING = -1, SMALL_CODEBOOK = 256 };

/* A segment being built. */
typedef struct builder {
    const vptq_vq *q;
    vptq_cuda_segment *s;
    uint32_t group;           /* UINT32_MAX for the outlier columns */
    unsigned bits, main_bits; /* of an index, and of its part for the main codebook */
    size_t row_words;
    const uint16_t *rank, *res_rank; /* [k] centroid -> rank, or NULL */
} builder;

/* Returns the main index of a vector row and column, and the residual index in *res. */
static uint32_t index_at(const builder *b, uint32_t vector_row, uint32_t column, uint32_t *res)
{
    const vptq_vq_shape *s = &b->q->shape;
    *res = 0;
    if (b->group == UINT32_MAX)
        return b->q->outlier_indices[(size_t)vector_row * s->outliers + column];
    size_t row = (size_t)b->group * b->s->vector_rows + vector_row;
    uint32_t both = vptq_bits_get(b->q->indices + row * b->row_words, column, b->bits);
    if (s->k_res)
        *res = both >> b->main_bits;
    return both & (s->k - 1);
}

static void put_phases(const vptq_cuda_table *t, const uint32_t *ranks, uint16_t *codes,
                       size_t at)
{
    uint16_t rows[VPTQ_CUDA_LANES];
    for (uint32_t l = 0; l < VPTQ_CUDA_LANES; l += t->slots)
        vptq_cuda_choose_rows(t, ranks + l, l, rows + l);
    for (uint32_t l = 0; l < VPTQ_CUDA_LANES; l++)
        codes[at + (size_t)l * VPTQ_CUDA_CHUNK_TILES] = rows[l];
}

static void put_tile(const builder *b, uint32_t pair, uint32_t chunk, uint32_t tile)
{
    vptq_cuda_segment *s = b->s;
    uint32_t ranks[VPTQ_CUDA_LANES], res_ranks[VPTQ_CUDA_LANES];
    for (uint32_t l = 0; l < VPTQ_CUDA_LANES; l++) {
        uint32_t vector_row = vptq_cuda_lane_vector_row(pair, l);
        uint32_t column = vptq_cuda_lane_column(chunk, tile, l), res;
        ranks[l] = res_ranks[l] = UINT32_MAX;
        if (vector_row >= s->vector_rows || column >= s->columns)
            continue;
        uint32_t i = index_at(b, vector_row, column, &res);
        ranks[l] = b->rank ? b->rank[i] : i;
        res_ranks[l] = b->res_rank ? b->res_rank[res] : res;
    }
    size_t at = vptq_cuda_code_at(s, pair, chunk, tile, 0);
    put_phases(&s->main, ranks, s->codes, at);
    if (s->codes16)
        put_phases(&s->residual, res_ranks, s->codes16, at);
    for (uint32_t l = 0; s->codes8 && l < VPTQ_CUDA_LANES; l++)
        s->codes8[at + (size_t)l * VPTQ_CUDA_CHUNK_TILES] =
            (uint8_t)(res_ranks[l] == UINT32_MAX ? 0 : res_ranks[l]);
}

static void put_pairs(void *arg, size_t begin, size_t end, int thread)
{
    (void)thread;
    const builder *b = arg;
    for (size_t pair = begin; pair < end; pair++) {
        for (uint32_t chunk = 0; chunk < b->s->chunks; chunk++) {
            for (uint32_t tile = 0; tile < VPTQ_CUDA_CHUNK_TILES; tile++)
                put_tile(b, (uint32_t)pair, chunk, tile);
        }
    }
}

static int by_key(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static void count_use(const builder *b, bool residual, uint64_t *uses)
{
    for (uint32_t vector_row = 0; vector_row < b->s->vector_rows; vector_row++) {
        for (uint32_t column = 0; column < b->s->columns; column++) {
            uint32_t res, i = index_at(b, vector_row, column, &res);
            uses[residual ? res : i]++;
        }
    }
}

/* Ranks centroids by falling use, equal ones by number, if the table needs ranks; otherwise
 * *order and *rank remain NULL. The caller frees `rank`. */
static vptq_status rank_codebook(const builder *b, bool residual, vptq_arena *arena,
                                 const uint16_t **order, uint16_t **rank, vptq_err *err)
{
    const vptq_cuda_table *t = residual ? &b->s->residual : &b->s->main;
    if (!t->ranked)
        return VPTQ_OK;
    vptq_status st = VPTQ_OK;
    uint16_t *list = vptq_arena_alloc(arena, t->k, sizeof *list, err);
    uint64_t *keys = list ? vptq_mem_alloc(arena->mem, t->k, sizeof *keys, err) : NULL;
    *rank = keys ? vptq_mem_alloc(arena->mem, t->k, sizeof **rank, err) : NULL;
    if (!*rank) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    memset(keys, 0, t->k * sizeof *keys);
    count_use(b, residual, keys);
    for (uint32_t i = 0; i < t->k; i++) /* counts are below 2^40 */
        keys[i] = (((UINT64_C(1) << 47) - keys[i]) << 16) | i;
    qsort(keys, t->k, sizeof *keys, by_key);
    for (uint32_t r = 0; r < t->k; r++) {
        list[r] = (uint16_t)(keys[r] & 0xFFFF);
        (*rank)[list[r]] = (uint16_t)r;
    }
    *order = list;
out:
    vptq_mem_free(arena->mem, keys);
    return st;
}

static vptq_status check_table(const vptq_cuda_table *t, const char *codebook, uint32_t v,
                               uint32_t k, vptq_err *err)
{
    if (t->k == k && (!k || t->v == v))
        return VPTQ_OK;
    return vptq_fail(
        err, VPTQ_E_SHAPE,
        "the run-time table of the %s codebook has %u centroids of %u values, expected %u of "
        "%u",
        codebook, t->k, t->v, k, v);
}

static vptq_status check(const vptq_vq *q, const vptq_cuda_tables *t, vptq_err *err)
{
    const vptq_vq_shape *s = &q->shape;
    VPTQ_CHECK(vptq_vq_shape_check(s, err));
    VPTQ_CHECK(check_table(&t->main, "main", s->v, s->k, err));
    VPTQ_CHECK(check_table(&t->residual, "residual", s->v, s->k_res, err));
    VPTQ_CHECK(check_table(&t->outlier, "outlier", s->v0, s->k0, err));
    uint32_t vector_rows = s->outliers ? (s->out + s->v0 - 1) / s->v0 : 0;
    for (size_t i = 0; i < (size_t)vector_rows * s->outliers; i++) {
        if (q->outlier_indices[i] >= s->k0)
            return vptq_fail(err, VPTQ_E_ARG, "outlier index %u of %u centroids",
                             q->outlier_indices[i], s->k0);
    }
    return VPTQ_OK;
}

/* Fills all fields of the segments except their codes. */
static void describe(const vptq_vq *q, const vptq_cuda_tables *t, vptq_cuda_layout *l)
{
    const vptq_vq_shape *s = &q->shape;
    uint32_t has_outliers = s->outliers > 0, position = 0;
    l->columns = 0;
    for (uint32_t i = 0; i < l->segments; i++) {
        vptq_cuda_segment *g = &l->segment[i];
        bool outlier = i < has_outliers;
        uint32_t v = outlier ? s->v0 : s->v;
        *g = (vptq_cuda_segment){.first = position, .at = l->columns};
        g->columns = outlier ? s->outliers : s->group_size;
        g->chunks = (g->columns + VPTQ_CUDA_CHUNK - 1) / VPTQ_CUDA_CHUNK;
        g->vector_rows = (s->out + v - 1) / v;
        g->pairs = (g->vector_rows + 1) / 2;
        g->main = outlier ? t->outlier : t->main;
        g->centroids = outlier ? q->outlier_centroids
                               : q->centroids + (size_t)(i - has_outliers) * s->k * s->v;
        if (!outlier && s->k_res) {
            g->residual = t->residual;
            g->res_centroids = q->res_centroids + (size_t)(i - has_outliers) * s->k_res * s->v;
        }
        position += g->columns;
        l->columns += g->chunks * VPTQ_CUDA_CHUNK;
    }
}

static vptq_status map_channels(const vptq_vq *q, vptq_arena *arena, vptq_cuda_layout *l,
                                vptq_err *err)
{
    int32_t *channel = vptq_arena_alloc(arena, l->columns, sizeof *channel, err);
    if (!channel)
        return VPTQ_E_NOMEM;
    for (uint32_t i = 0; i < l->columns; i++)
        channel[i] = PADDING;
    for (uint32_t i = 0; i < l->segments; i++) {
        const vptq_cuda_segment *g = &l->segment[i];
        for (uint32_t c = 0; c < g->columns; c++) {
            uint32_t p = g->first + c;
            channel[g->at + c] = q->perm ? (int32_t)q->perm[p] : (int32_t)p;
        }
    }
    l->channel = channel;
    return VPTQ_OK;
}

static vptq_status build_segment(builder *b, int threads, vptq_arena *arena, vptq_err *err)
{
    vptq_cuda_segment *s = b->s;
    vptq_status st = VPTQ_OK;
    uint16_t *rank = NULL, *res_rank = NULL;
    size_t codes = (size_t)s->pairs * s->chunks * VPTQ_CUDA_LANES * VPTQ_CUDA_CHUNK_TILES;
    bool narrow = s->residual.replicas && s->residual.k <= SMALL_CODEBOOK;
    s->codes = vptq_arena_alloc(arena, codes, sizeof *s->codes, err);
    if (s->codes && s->residual.k && narrow)
        s->codes8 = vptq_arena_alloc(arena, codes, sizeof *s->codes8, err);
    else if (s->codes && s->residual.k)
        s->codes16 = vptq_arena_alloc(arena, codes, sizeof *s->codes16, err);
    if (!s->codes || (s->residual.k && !s->codes8 && !s->codes16))
        return VPTQ_E_NOMEM;
    VPTQ_TRY(rank_codebook(b, false, arena, &s->order, &rank, err));
    VPTQ_TRY(rank_codebook(b, true, arena, &s->res_order, &res_rank, err));
    b->rank = rank;
    b->res_rank = res_rank;
    vptq_parallel_for(threads, s->pairs, 1, put_pairs, b);
out:
    vptq_mem_free(arena->mem, rank);
    vptq_mem_free(arena->mem, res_rank);
    return st;
}

vptq_status vptq_cuda_layout_build(const vptq_vq *q, const vptq_cuda_tables *tables,
                                   int threads, vptq_arena *arena, vptq_cuda_layout *out,
                                   vptq_err *err)
{
    VPTQ_CHECK(check(q, tables, err));
    uint32_t has_outliers = q->shape.outliers > 0;
    *out = (vptq_cuda_layout){.segments = q->shape.groups + has_outliers};
    out->segment = vptq_arena_alloc(arena, out->segments, sizeof *out->segment, err);
    if (!out->segment)
        return VPTQ_E_NOMEM;
    describe(q, tables, out);
    VPTQ_CHECK(map_channels(q, arena, out, err));
    for (uint32_t i = 0; i < out->segments; i++) {
        builder b = {.q = q,
                     .s = &out->segment[i],
                     .bits = vptq_vq_index_bits(&q->shape),
                     .main_bits = vptq_log2u(q->shape.k),
                     .row_words = vptq_vq_row_words(&q->shape)};
        b.group = i < has_outliers ? UINT32_MAX : i - has_outliers;
        VPTQ_CHECK(build_segment(&b, threads, arena, err));
    }
    return VPTQ_OK;
}
