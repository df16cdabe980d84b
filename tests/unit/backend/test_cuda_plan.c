/* Tests the run-time layout of packed matrices for the GPU: round trips, the decoded code of
 * every lane, padding, bad input, memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/packed.h"
#include "lib/backend/cuda/plan_dispatch.h"
#include "lib/base/half.h"
#include "tests/support/vbanks.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vpacked.h"
#include "tests/support/vtest.h"

static vptq_vq_shape make_shape(uint32_t out, uint32_t in, uint32_t v, uint32_t k,
                                uint32_t k_res)
{
    return (vptq_vq_shape){
        .out = out, .in = in, .v = v, .k = k, .k_res = k_res, .groups = 1, .group_size = in};
}

/* Groups of 31, 7 outlier columns in vectors of 3 with a codebook of 50, permuted. */
static vptq_vq_shape grouped(void)
{
    vptq_vq_shape s = make_shape(43, 7 + 3 * 31, 8, 64, 16);
    s.groups = 3;
    s.group_size = 31;
    s.outliers = 7;
    s.v0 = 3;
    s.k0 = 50;
    s.has_perm = s.has_norm = true;
    return s;
}

/* ---- contents of a layout ---- */

static uint16_t *table_image(const vptq_cuda_table *t, const float *centroids,
                             const uint16_t *order)
{
    uint16_t *image = vtest_alloc(vptq_cuda_table_bytes(t) + 1, 1);
    vptq_cuda_table_image(t, centroids, order, VPTQ_F16, image);
    return image;
}

/* Checks the values of a row, read as in a kernel: by address, piece by piece, then the tail.
 */
static void check_row(const vptq_cuda_table *t, const uint16_t *image, uint32_t row,
                      const float *centroid)
{
    assert_true(row < t->rows);
    for (uint32_t i = 0; i < t->v; i++) {
        uint32_t piece = i / 8;
        size_t byte = piece < t->pieces
                          ? ((size_t)piece * t->rows + row) * 16 + i % 8 * 2
                          : (size_t)t->pieces * t->rows * 16 + (size_t)row * 8 + i % 8 * 2;
        assert_true(byte + 2 <= vptq_cuda_table_bytes(t));
        assert_int_equal(image[byte / 2], vptq_f32_to_f16(centroid[i]));
    }
}

/* Returns the main centroid number of a segment's vector row and column from the plain arrays,
 * and the residual one in *res. */
static uint32_t plain_code(const vmatrix *m, uint32_t segment, uint32_t vector_row,
                           uint32_t column, uint32_t *res)
{
    const vptq_vq_shape *s = &m->q.shape;
    uint32_t group = segment - (s->outliers > 0);
    *res = 0;
    if (s->outliers && segment == 0)
        return m->outlier_indices[(size_t)vector_row * s->outliers + column];
    size_t at =
        ((size_t)group * ((s->out + s->v - 1) / s->v) + vector_row) * s->group_size + column;
    *res = m->res[at];
    return m->main[at];
}

/* Walks the streams in the order of their bytes and derives the vector row and column of each
 * code from its position. */
static void check_segment(const vmatrix *m, const vptq_cuda_layout *l, uint32_t segment)
{
    const vptq_cuda_segment *g = &l->segment[segment];
    uint16_t *main = table_image(&g->main, g->centroids, g->order);
    uint16_t *residual = table_image(&g->residual, g->res_centroids, g->res_order);
    size_t codes = (size_t)g->pairs * g->chunks * 256;
    for (size_t at = 0; at < codes; at++) {
        uint32_t tile = at % 8, lane = at / 8 % 32;
        uint32_t chunk = (uint32_t)(at / 256 % g->chunks), matrix = lane / 8, res;
        uint32_t vector_row = 2 * (uint32_t)(at / 256 / g->chunks) + matrix % 2;
        uint32_t column = chunk * 128 + tile * 16 + matrix / 2 * 8 + lane % 8;
        uint32_t rank = vptq_cuda_rank(&g->main, g->codes[at]);
        assert_true(rank < g->main.k);
        assert_int_equal(vptq_cuda_rank_by(vptq_cuda_rank_rule_of(&g->main), g->codes[at]),
                         rank);
        uint32_t res_row = g->residual.k ? vbanks_residual_row(g, at, lane) : 0;
        if (g->residual.k)
            assert_true(vptq_cuda_rank(&g->residual, res_row) < g->residual.k);
        if (vector_row >= g->vector_rows || column >= g->columns)
            continue;
        uint32_t code = plain_code(m, segment, vector_row, column, &res);
        check_row(&g->main, main, g->codes[at], g->centroids + (size_t)code * g->main.v);
        if (g->residual.k)
            check_row(&g->residual, residual, res_row,
                      g->res_centroids + (size_t)res * g->main.v);
    }
    free(main);
    free(residual);
}

static void check_channels(const vmatrix *m, const vptq_cuda_layout *l)
{
    const vptq_vq_shape *s = &m->q.shape;
    uint32_t position = 0, at = 0;
    for (uint32_t i = 0; i < l->segments; i++) {
        const vptq_cuda_segment *g = &l->segment[i];
        assert_int_equal(g->at, at);
        assert_int_equal(g->first, position);
        for (uint32_t c = 0; c < g->chunks * 128; c++, at++) {
            if (c >= g->columns)
                assert_int_equal(l->channel[at], -1);
            else
                assert_int_equal(l->channel[at],
                                 m->perm ? m->perm[position + c] : position + c);
        }
        position += g->columns;
    }
    assert_int_equal(position, s->in);
    assert_int_equal(at, l->columns);
}

static uint32_t centroid_of(const vptq_cuda_table *t, const uint16_t *order, uint32_t row)
{
    uint32_t rank = vptq_cuda_rank(t, row);
    return order && rank != UINT32_MAX ? order[rank] : rank;
}

/* Decodes the indices of one vector row and column from the streams. */
static uint32_t decode(const vptq_cuda_segment *s, uint32_t vector_row, uint32_t column,
                       uint32_t *res)
{
    uint32_t in_tile = column % VPTQ_CUDA_TILE;
    uint32_t lane = (in_tile >> 3) * 16 + (vector_row & 1) * 8 + (in_tile & 7);
    size_t at = vptq_cuda_code_at(s, vector_row / 2, column / VPTQ_CUDA_CHUNK,
                                  column % VPTQ_CUDA_CHUNK / VPTQ_CUDA_TILE, lane);
    *res = 0;
    if (s->residual.k)
        *res = centroid_of(&s->residual, s->res_order, vbanks_residual_row(s, at, lane));
    return centroid_of(&s->main, s->order, s->codes[at]);
}

/* Inverse of the build: writes the indices of the file, [groups][vector
 * rows][vptq_vq_row_words] with zero bits after the last index, and [ceil(out / v0)][outliers]
 * (NULL without outliers). */
static void unpack(const vptq_vq_shape *s, const vptq_cuda_layout *l, uint32_t *indices,
                   uint16_t *outlier_indices)
{
    uint32_t has_outliers = s->outliers > 0, vector_rows = vptq_vq_vector_rows(s), res;
    size_t words = vptq_vq_row_words(s);
    memset(indices, 0, (size_t)s->groups * vector_rows * words * sizeof *indices);
    for (uint32_t i = 0; i < l->segments; i++) {
        const vptq_cuda_segment *g = &l->segment[i];
        for (uint32_t vector_row = 0; vector_row < g->vector_rows; vector_row++) {
            size_t row = (size_t)(i - has_outliers) * vector_rows + vector_row;
            for (uint32_t c = 0; c < g->columns; c++) {
                uint32_t main = decode(g, vector_row, c, &res);
                if (i < has_outliers)
                    outlier_indices[(size_t)vector_row * s->outliers + c] = (uint16_t)main;
                else
                    vptq_bits_put(indices + row * words, c, vptq_vq_index_bits(s),
                                  main | res << vptq_log2u(s->k));
            }
        }
    }
}

static void check_unpack(const vmatrix *m, const vptq_cuda_layout *l)
{
    const vptq_vq_shape *s = &m->q.shape;
    size_t words = (size_t)s->groups * vptq_vq_vector_rows(s) * vptq_vq_row_words(s);
    size_t outliers = s->outliers ? (size_t)((s->out + s->v0 - 1) / s->v0) * s->outliers : 0;
    uint32_t *indices = vtest_alloc(words, sizeof *indices);
    uint16_t *outlier_indices = vtest_alloc(outliers, sizeof *outlier_indices);
    memset(indices, 0xA5, words * sizeof *indices);
    unpack(s, l, indices, outlier_indices);
    assert_memory_equal(indices, m->indices, words * sizeof *indices);
    if (outliers)
        assert_memory_equal(outlier_indices, m->outlier_indices, outliers * 2);
    free(indices);
    free(outlier_indices);
}

static void check_layout(const vmatrix *m, const vptq_cuda_tables *tables)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_cuda_layout l;
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_cuda_layout_build(&m->q, tables, 1, &arena, &l, &err), &err);
    assert_int_equal(l.segments, m->q.shape.groups + (m->q.shape.outliers > 0));
    for (uint32_t i = 0; i < l.segments; i++)
        check_segment(m, &l, i);
    check_channels(m, &l);
    check_unpack(m, &l);
    vptq_arena_release(&arena);
}

/* ---- all shapes with all ways to store their codebooks ---- */

typedef struct seen {
    int ranked, replicas, narrow, rejected, copies[VPTQ_CUDA_MAX_COPIES + 1];
} seen;

static void note(seen *n, const vptq_cuda_tables *t)
{
    n->ranked += t->main.ranked;
    n->replicas += t->main.replicas > 0;
    n->narrow += t->residual.replicas && t->residual.k <= 256;
    n->copies[t->main.copies]++;
}

static void check_shape(const vptq_vq_shape *s, seen *n)
{
    static const uint32_t budgets[] = {VPTQ_CUDA_SMEM_HOPPER, VPTQ_CUDA_SMEM_SMALL, 50000,
                                       20000};
    vmatrix m;
    vmatrix_make(&m, s);
    for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
        for (uint32_t copies = 0; copies < 4; copies++) {
            vptq_cuda_smem_want w = {.shape = *s, .budget = budgets[b], .batch = 1};
            vptq_cuda_smem fit;
            w.copies = copies;
            if (vptq_cuda_smem_fit(&w, &fit, NULL)) {
                n->rejected++;
                continue;
            }
            assert_true(fit.total <= w.budget);
            note(n, &fit.tables);
            check_layout(&m, &fit.tables);
        }
    }
    vptq_err err = {0};
    vptq_cuda_smem direct;
    vptq_cuda_smem_want w = {.shape = *s, .budget = VPTQ_CUDA_SMEM_HOPPER, .batch = 1};
    assert_ok(vptq_cuda_smem_direct(&w, &direct, &err), &err);
    check_layout(&m, &direct.tables);
    vmatrix_free(&m);
}

static void test_there_and_back(void **state)
{
    (void)state;
    static const struct {
        uint32_t out, in, v, k, k_res;
    } list[] = {{64, 128, 8, 256, 256}, {23, 37, 8, 16, 0},    {40, 130, 4, 1024, 0},
                {33, 129, 6, 2048, 2},  {50, 31, 12, 512, 16}, {17, 16, 16, 1024, 32},
                {10, 15, 3, 8, 4},      {5, 140, 1, 2, 2},     {9, 17, 5, 1, 2},
                {100, 33, 9, 64, 64},   {130, 9, 64, 16, 1},   {1, 1, 8, 2, 0},
                {24, 260, 8, 2048, 512}};
    seen n = {0};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        vptq_vq_shape s =
            make_shape(list[i].out, list[i].in, list[i].v, list[i].k, list[i].k_res);
        s.has_perm = i % 2;
        check_shape(&s, &n);
    }
    vptq_vq_shape s = grouped();
    check_shape(&s, &n);
    s.v = 4;
    s.v0 = 12;
    s.k_res = 0;
    check_shape(&s, &n);
    /* every way was tested */
    assert_true(n.ranked && n.replicas && n.narrow && n.rejected);
    for (uint32_t c = 1; c <= 3; c++)
        assert_true(n.copies[c]);
}

/* Codebooks larger than shared memory are read from global memory. */
static void test_large_codebooks(void **state)
{
    (void)state;
    static const uint32_t codebooks[][3] = {{8, 65536, 256}, {4, 65536, 65536}, {2, 65536, 0}};
    for (size_t i = 0; i < 3; i++) {
        vptq_vq_shape s = make_shape(24, 20, codebooks[i][0], codebooks[i][1], codebooks[i][2]);
        vptq_cuda_smem_want w = {.shape = s, .budget = VPTQ_CUDA_SMEM_HOPPER, .batch = 1};
        vptq_cuda_smem smem;
        vptq_err err = {0};
        vmatrix m;
        assert_fails(vptq_cuda_smem_fit(&w, &smem, &err), VPTQ_E_UNSUPPORTED, &err, "65536");
        assert_ok(vptq_cuda_smem_direct(&w, &smem, &err), &err);
        assert_false(smem.tables.main.shared);
        assert_int_equal(smem.tables.residual.shared, i == 0 || i == 2);
        vmatrix_make(&m, &s);
        check_layout(&m, &smem.tables);
        vmatrix_free(&m);
    }
}

/* Round trip of every matrix of a model that upstream wrote (groups, outliers, padding,
 * permutations), with the plans for two chips. */
static void check_real(const vptq_vq *q, const char *chip, vptq_cuda_kernel kernel)
{
    vptq_err err = {0};
    vptq_cuda_choice c;
    vptq_arena arena;
    vptq_cuda_layout l;
    vmatrix m = {.q = *q}; /* only what check_unpack compares is set */
    size_t words =
        (size_t)q->shape.groups * vptq_vq_vector_rows(&q->shape) * vptq_vq_row_words(&q->shape);
    size_t outliers =
        q->shape.outliers
            ? (size_t)((q->shape.out + q->shape.v0 - 1) / q->shape.v0) * q->shape.outliers
            : 0;
    m.indices = vtest_alloc(words, sizeof *m.indices);
    memcpy(m.indices, q->indices, words * sizeof *m.indices);
    m.outlier_indices = vtest_alloc(outliers, sizeof *m.outlier_indices);
    if (outliers)
        memcpy(m.outlier_indices, q->outlier_indices, outliers * sizeof *m.outlier_indices);
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_cuda_predict(vptq_cuda_chip_search(chip), &q->shape, 1, kernel, 0, &c, &err),
              &err);
    assert_ok(vptq_cuda_layout_build(q, &c.smem.tables, 1, &arena, &l, &err), &err);
    check_unpack(&m, &l);
    vptq_arena_release(&arena);
    free(m.indices);
    free(m.outlier_indices);
}

static void test_real_model(void **state)
{
    (void)state;
    static const char *const linears[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    char path[4096], name[128];
    vptq_err err = {0};
    vptq_tensor_set set;
    json_t *config = NULL;
    if (!vpacked_stories(&set, &config, path, sizeof path))
        skip();
    for (size_t i = 0; i < 35; i++) {
        vptq_packed_matrix m;
        snprintf(name, sizeof name, "model.layers.%zu.%s", i / 7, linears[i % 7]);
        const json_t *entry = vptq_packed_entry(config, name);
        assert_ok(vptq_packed_read(&(vptq_packed_source){&set, entry, name, path}, &set.arena,
                                   &m, &err),
                  &err);
        check_real(&m.vq, "h200", VPTQ_CUDA_GEMV_SMEM);
        check_real(&m.vq, "rtx4090", VPTQ_CUDA_GEMV_DIRECT);
    }
    json_decref(config);
    vptq_tensor_set_release(&set);
}

/* One tile by hand: the code of lane 13 is that of vector row 1, column 5; of lane 18: vector
 * row 0, column 10. */
static void test_lane_order(void **state)
{
    (void)state;
    vptq_vq_shape s = make_shape(16, 16, 8, 32, 0);
    vptq_err err = {0};
    vptq_cuda_tables t = {0};
    vptq_cuda_layout l;
    vptq_arena arena;
    vmatrix m;
    vmatrix_make(&m, &s);
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_cuda_table_copies(&t.main, 8, 32, 1, 0, &err), &err);
    assert_ok(vptq_cuda_layout_build(&m.q, &t, 1, &arena, &l, &err), &err);
    assert_int_equal(l.columns, 128);
    assert_int_equal(l.segment[0].pairs, 1);
    assert_int_equal(l.segment[0].chunks, 1);
    assert_int_equal(l.segment[0].codes[13 * 8], m.main[1 * 16 + 5]);
    assert_int_equal(l.segment[0].codes[18 * 8], m.main[0 * 16 + 10]);
    assert_int_equal(l.segment[0].codes[31 * 8], m.main[1 * 16 + 15]);
    assert_null(l.segment[0].codes8);
    assert_null(l.segment[0].codes16);
    vptq_arena_release(&arena);
    vmatrix_free(&m);
}

/* Rows by hand: 32 centroids of 8, a second copy rotated by 1, 16 of them in a third. */
static void test_rows(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_cuda_table t;
    assert_ok(vptq_cuda_table_copies(&t, 8, 32, 2, 17, &err), &err);
    assert_int_equal(t.rows, 80);
    assert_int_equal(t.copies, 3);
    assert_true(t.ranked);
    assert_int_equal(vptq_cuda_table_bytes(&t), 1280);
    assert_int_equal(vptq_cuda_row(&t, 0, 23), 23);
    assert_int_equal(vptq_cuda_row(&t, 1, 22), 32 + 23);
    assert_int_equal(vptq_cuda_row(&t, 1, 23), 32 + 16);
    assert_int_equal(vptq_cuda_row(&t, 2, 0), 64 + 3);
    assert_int_equal(vptq_cuda_rank(&t, 48), 23);
    assert_int_equal(vptq_cuda_rank(&t, 67), 0);
    assert_int_equal(vptq_cuda_rank(&t, 80), UINT32_MAX);
    assert_ok(vptq_cuda_table_copies(&t, 8, 5, 2, 0, &err), &err);
    assert_int_equal(vptq_cuda_rank(&t, 16 + 1), 0);
    assert_int_equal(vptq_cuda_rank(&t, 16 + 0),
                     UINT32_MAX); /* padding: there is no 8th centroid */
    assert_ok(vptq_cuda_table_replicas(&t, 4, 3, 16, &err), &err);
    assert_int_equal(vptq_cuda_table_bytes(&t), 48 * 8);
    assert_int_equal(vptq_cuda_replica_row(&t, 2, 17), 33);
    assert_int_equal(vptq_cuda_rank(&t, 33), 2);
    assert_int_equal(vptq_cuda_row_bytes(8), 16);
    assert_int_equal(vptq_cuda_row_bytes(6), 16);
    assert_int_equal(vptq_cuda_row_bytes(12), 24);
    assert_int_equal(vptq_cuda_row_bytes(16), 32);
    assert_int_equal(vptq_cuda_row_bytes(4), 8);
    assert_fails(vptq_cuda_table_copies(&t, 8, 65536, 2, 0, &err), VPTQ_E_UNSUPPORTED, &err,
                 "65536");
    assert_fails(vptq_cuda_table_copies(&t, 8, 16, 0, 0, &err), VPTQ_E_UNSUPPORTED, &err,
                 "0 copies");
    assert_fails(vptq_cuda_table_replicas(&t, 8, 16, 16, &err), VPTQ_E_UNSUPPORTED, &err,
                 "from 2 to 8");
}

/* A partial copy holds the most used centroids, ranked by decreasing use, then by number. */
static void test_ranks_by_use(void **state)
{
    (void)state;
    enum { K = 64 };
    vptq_vq_shape s = make_shape(40, 50, 8, K, 0);
    vptq_err err = {0};
    vptq_cuda_tables t = {0};
    vptq_cuda_layout l;
    vptq_arena arena;
    vmatrix m;
    uint32_t uses[K] = {0};
    vmatrix_make(&m, &s);
    for (size_t i = 0; i < 5 * 50; i++)
        uses[m.main[i]]++;
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_cuda_table_copies(&t.main, 8, K, 1, 32, &err), &err);
    assert_ok(vptq_cuda_layout_build(&m.q, &t, 1, &arena, &l, &err), &err);
    const uint16_t *order = l.segment[0].order;
    assert_int_equal(order[0], K - 1); /* every seventh index of vmatrix */
    for (uint32_t r = 1; r < K; r++) {
        uint32_t before = uses[order[r - 1]], here = uses[order[r]];
        assert_true(before > here || (before == here && order[r - 1] < order[r]));
    }
    vptq_arena_release(&arena);
    vmatrix_free(&m);
}

static void test_image_of_bfloat16(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_cuda_table t;
    static const float codebook[2] = {1.0F, 3.0e38F};
    uint16_t image[16 * 4 * 2];
    memset(image, 0xFF, sizeof image);
    assert_ok(vptq_cuda_table_copies(&t, 1, 2, 2, 0, &err), &err);
    assert_int_equal(vptq_cuda_table_bytes(&t), sizeof image);
    vptq_cuda_table_image(&t, codebook, NULL, VPTQ_BF16, image);
    assert_int_equal(image[0], 0x3F80);
    assert_int_equal(image[4], vptq_f32_to_bf16(3.0e38F));
    assert_int_equal(image[1], 0);
    assert_int_equal(image[2 * 4], 0);             /* after the codebook */
    assert_int_equal(image[(16 + 1) * 4], 0x3F80); /* rotated by one */
}

/* ---- determinism, bad input, memory ---- */

static void build_twice(const vmatrix *m, const vptq_cuda_tables *t, int threads)
{
    vptq_err err = {0};
    vptq_arena a, b;
    vptq_cuda_layout one, other;
    vptq_arena_init(&a, NULL);
    vptq_arena_init(&b, NULL);
    assert_ok(vptq_cuda_layout_build(&m->q, t, 1, &a, &one, &err), &err);
    assert_ok(vptq_cuda_layout_build(&m->q, t, threads, &b, &other, &err), &err);
    assert_int_equal(one.segments, other.segments);
    for (uint32_t i = 0; i < one.segments; i++) {
        const vptq_cuda_segment *x = &one.segment[i], *y = &other.segment[i];
        size_t codes = (size_t)x->pairs * x->chunks * 256;
        assert_int_equal(codes, (size_t)y->pairs * y->chunks * 256);
        assert_memory_equal(x->codes, y->codes, codes * 2);
        if (x->codes8)
            assert_memory_equal(x->codes8, y->codes8, codes);
        if (x->order)
            assert_memory_equal(x->order, y->order, x->main.k * 2);
    }
    vptq_arena_release(&a);
    vptq_arena_release(&b);
}

static void test_same_for_any_threads(void **state)
{
    (void)state;
    vptq_vq_shape s = grouped();
    vptq_cuda_smem_want w = {.shape = s, .budget = 6000, .batch = 1, .copies = 3};
    vptq_cuda_smem fit;
    vptq_err err = {0};
    vmatrix m;
    vmatrix_make(&m, &s);
    assert_ok(vptq_cuda_smem_fit(&w, &fit, &err), &err);
    build_twice(&m, &fit.tables, 1);
    build_twice(&m, &fit.tables, 3);
    vmatrix_free(&m);
}

static void test_refused(void **state)
{
    (void)state;
    vptq_vq_shape s = grouped();
    vptq_cuda_smem_want w = {.shape = s, .budget = VPTQ_CUDA_SMEM_HOPPER, .batch = 1};
    vptq_cuda_smem fit;
    vptq_cuda_layout l;
    vptq_err err = {0};
    vptq_arena arena;
    vmatrix m;
    vmatrix_make(&m, &s);
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_cuda_smem_fit(&w, &fit, &err), &err);
    vptq_cuda_tables t = fit.tables;
    t.main.k = 32;
    assert_fails(vptq_cuda_layout_build(&m.q, &t, 1, &arena, &l, &err), VPTQ_E_SHAPE, &err,
                 "main codebook has 32 centroids of 8 values, expected 64 of 8");
    t = fit.tables;
    t.residual.k = 0;
    assert_fails(vptq_cuda_layout_build(&m.q, &t, 1, &arena, &l, &err), VPTQ_E_SHAPE, &err,
                 "residual");
    t = fit.tables;
    t.outlier.v = 8;
    assert_fails(vptq_cuda_layout_build(&m.q, &t, 1, &arena, &l, &err), VPTQ_E_SHAPE, &err,
                 "outlier");
    m.outlier_indices[9] = 50;
    assert_fails(vptq_cuda_layout_build(&m.q, &fit.tables, 1, &arena, &l, &err), VPTQ_E_ARG,
                 &err, "outlier index 50 of 50");
    m.q.shape.k = 60;
    assert_fails(vptq_cuda_layout_build(&m.q, &fit.tables, 1, &arena, &l, &err), VPTQ_E_SHAPE,
                 &err, "power of two");
    vptq_arena_release(&arena);
    vmatrix_free(&m);
}

typedef struct oom_case {
    const vmatrix *m;
    const vptq_cuda_tables *tables;
} oom_case;

static vptq_status build_once(void *arg, vptq_mem *mem, vptq_err *err)
{
    const oom_case *c = arg;
    vptq_arena arena;
    vptq_cuda_layout l;
    vptq_arena_init(&arena, mem);
    vptq_status st = vptq_cuda_layout_build(&c->m->q, c->tables, 1, &arena, &l, err);
    vptq_arena_release(&arena);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    vptq_vq_shape s = grouped();
    vptq_cuda_tables t = {0};
    vptq_err err = {0};
    vmatrix m;
    vmatrix_make(&m, &s);
    assert_ok(vptq_cuda_table_copies(&t.main, 8, 64, 1, 32, &err), &err);
    assert_ok(vptq_cuda_table_copies(&t.residual, 8, 16, 1, 0, &err), &err);
    assert_ok(vptq_cuda_table_copies(&t.outlier, 3, 50, 1, 16, &err), &err);
    oom_case c = {&m, &t};
    assert_true(vtest_oom_walk(build_once, &c) > 8);
    vmatrix_free(&m);
}

VTEST_MAIN(cmocka_unit_test(test_rows), cmocka_unit_test(test_lane_order),
           cmocka_unit_test(test_ranks_by_use), cmocka_unit_test(test_image_of_bfloat16),
           cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_large_codebooks),
           cmocka_unit_test(test_real_model), cmocka_unit_test(test_same_for_any_threads),
           cmocka_unit_test(test_refused), cmocka_unit_test(test_out_of_memory))
