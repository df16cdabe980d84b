/* Opens packed matrices and uploads what products and decoding need of them. */
#include "lib/backend/cuda/matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "lib/base/grid.h"
}

/* ---- several arrays in one allocation ---- */

enum { SLAB_ALIGN = 256 };

/* An allocation that holds several arrays. It is filled twice: without `base` to add up the
 * sizes, then with it to upload. */
struct slab {
    unsigned char *base;
    size_t used;
};

/* Appends an array and sets *to to its address; NULL for a NULL or empty array. */
template <class T>
static vptq_status put(vptq_dev *dev, slab *s, const T *from, size_t count, const T **to,
                       vptq_err *err)
{
    const size_t bytes = count * sizeof(T), first = s->used;
    *to = NULL;
    if (!from || !count)
        return VPTQ_OK;
    s->used += (bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
    if (!s->base)
        return VPTQ_OK;
    unsigned char *at = s->base + first;
    *to = reinterpret_cast<const T *>(at);
    return vptq_cuda_upload(dev, at, from, bytes, err);
}

/* Runs fill(slab) twice and allocates the memory in between. */
template <class F>
static vptq_status fill_slab(vptq_dev *dev, F fill, void **memory, vptq_err *err)
{
    slab s = {NULL, 0};
    void *p = NULL;
    vptq_status st = fill(&s);
    if (!st)
        st = vptq_cuda_alloc(dev, s.used, &p, err);
    s = {static_cast<unsigned char *>(p), 0};
    if (!st)
        st = fill(&s);
    if (!st) /* the host memory may be freed now */
        st = vptq_cuda_check(cudaStreamSynchronize(dev->stream), "an upload", err);
    if (st)
        (void)cudaFree(p);
    else
        *memory = p;
    return st;
}

/* ---- the stored form ---- */

static vptq_status put_stored(vptq_dev *dev, slab *s, const vptq_vq *q, vptq_vq *d,
                              vptq_err *err)
{
    const vptq_vq_shape *p = &q->shape;
    const size_t groups = p->groups, vector_rows = vptq_vq_vector_rows(p);
    const size_t outlier_vector_rows = p->outliers ? (p->out + p->v0 - 1) / p->v0 : 0;
    d->shape = *p;
    VPTQ_CHECK(
        put(dev, s, q->indices, groups * vector_rows * vptq_vq_row_words(p), &d->indices, err));
    VPTQ_CHECK(put(dev, s, q->centroids, groups * p->k * p->v, &d->centroids, err));
    VPTQ_CHECK(put(dev, s, q->res_centroids, groups * p->k_res * p->v, &d->res_centroids, err));
    VPTQ_CHECK(put(dev, s, q->outlier_indices, outlier_vector_rows * p->outliers,
                   &d->outlier_indices, err));
    VPTQ_CHECK(
        put(dev, s, q->outlier_centroids, (size_t)p->k0 * p->v0, &d->outlier_centroids, err));
    VPTQ_CHECK(put(dev, s, q->perm, p->in, &d->perm, err));
    VPTQ_CHECK(put(dev, s, q->scale, p->in, &d->scale, err));
    return put(dev, s, q->bias, p->in, &d->bias, err);
}

vptq_status vptq_cuda_matrix_stored(vptq_dev *dev, const vptq_matrix *m, const vptq_vq **q,
                                    vptq_err *err)
{
    *q = &m->stored;
    if (m->slab)
        return VPTQ_OK;
    return fill_slab(
        dev, [=](slab *s) { return put_stored(dev, s, &m->q, &m->stored, err); }, &m->slab,
        err);
}

/* ---- the chip ---- */

/* Returns the nearest known chip with this device's size. Clock and bandwidth remain those of
 * the known chip; they influence the choice of a kernel but no result. */
static vptq_cuda_chip chip_of(const vptq_dev *dev)
{
    const cudaDeviceProp *p = &dev->properties;
    const char *name = p->major >= 9 && p->major != 12 ? "h100" : "rtx4090";
    if (strstr(p->name, "H200"))
        name = "h200";
    else if (p->major == 8 && p->minor == 0)
        name = "a100";
    vptq_cuda_chip chip = *vptq_cuda_chip_search(name);
    chip.sms = (uint32_t)p->multiProcessorCount;
    chip.smem = (uint32_t)p->sharedMemPerBlockOptin;
    return chip;
}

/* ---- the run-time layout ---- */

/* The grids of all main or all residual codebooks. */
struct codebook_grids {
    int8_t *codes; /* [groups][k][v], or NULL */
    float *scale;  /* [groups] */
};

/* A layout and the images of its codebooks while they are built. */
struct layout_build {
    codebook_grids main_grids, residual_grids; /* of a kernel that uses them */
    const vptq_cuda_choice *choice;
    const vptq_cuda_small *plan_small;
    vptq_cuda_layout layout;
    vptq_cuda_stripe *stripes, *small;          /* [layout.segments] */
    const uint16_t **main, **residual;          /* images of the codebooks [layout.segments] */
    const uint8_t **main_rows, **residual_rows; /* the same of their grids, or NULLs */
    uint32_t blocks;                            /* largest number of counters in `arrived` */
    unsigned *zeros;                            /* [blocks] */
};

static float largest_of(const vptq_cuda_table *t, const float *c)
{
    float largest = 0;
    for (size_t i = 0; i < (size_t)t->k * t->v; i++)
        largest = fmaxf(largest, fabsf(c[i]));
    return largest;
}

/* Returns the power of two by which both codebooks of a segment are scaled (see
 * vptq_cuda_codebook). */
static int power_of(const vptq_cuda_segment *g)
{
    enum { TOP = 14 };
    const float largest =
        fmaxf(largest_of(&g->main, g->centroids), largest_of(&g->residual, g->res_centroids));
    int power = 0;
    if (!(largest > 0) || !isfinite(largest))
        return 0;
    (void)frexpf(largest, &power);
    return TOP - power;
}

static vptq_status make_image(vptq_arena *arena, const vptq_cuda_table *t, const float *c,
                              const uint16_t *order, int power, vptq_cuda_codebook *codebook,
                              const uint16_t **image, vptq_err *err)
{
    vptq_cuda_table all;
    const size_t n = (size_t)t->k * t->v;
    *codebook = {};
    *image = NULL;
    if (!t->k)
        return VPTQ_OK;
    vptq_cuda_table_global(&all, t->v, t->k);
    float *scaled = static_cast<float *>(vptq_arena_alloc(arena, n, sizeof *scaled, err));
    uint16_t *made = static_cast<uint16_t *>(
        scaled ? vptq_arena_alloc(arena, vptq_cuda_table_bytes(&all), 1, err) : NULL);
    if (!made)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        scaled[i] = ldexpf(c[i], power);
    vptq_cuda_table_image(&all, scaled, order, VPTQ_F16, made);
    codebook->table = *t;
    codebook->codebook_rows = all.rows;
    codebook->unit = ldexpf(1, -power);
    codebook->rule = vptq_cuda_rank_rule_of(t);
    *image = made;
    return VPTQ_OK;
}

template <class T> static T *arena_array(vptq_arena *arena, size_t n, vptq_err *err)
{
    return static_cast<T *>(vptq_arena_alloc(arena, n, sizeof(T), err));
}

/* Finds the grids of `groups` codebooks; *found is false if one has none. */
static vptq_status find_grids(vptq_arena *arena, const float *c, size_t groups, size_t values,
                              codebook_grids *grids, bool *found, vptq_err *err)
{
    *grids = {};
    if (!values)
        return VPTQ_OK;
    grids->codes = arena_array<int8_t>(arena, groups * values, err);
    grids->scale = arena_array<float>(arena, groups, err);
    if (!grids->codes || !grids->scale)
        return VPTQ_E_NOMEM;
    for (size_t g = 0; g < groups && *found; g++)
        *found =
            vptq_grid_find(c + g * values, values, &grids->scale[g], grids->codes + g * values);
    return VPTQ_OK;
}

static size_t row_bytes(const vptq_cuda_table *t)
{
    return (size_t)t->k * VPTQ_CUDA_GRID_V;
}

/* Writes the codes of a group's codebook in rows of 8 bytes. */
static vptq_status make_rows(vptq_arena *arena, const vptq_cuda_table *t,
                             const codebook_grids *grids, uint32_t group, const uint16_t *order,
                             vptq_cuda_codebook *codebook, const uint8_t **rows, vptq_err *err)
{
    *rows = NULL;
    if (!t->k || !t->grid)
        return VPTQ_OK;
    uint8_t *made = arena_array<uint8_t>(arena, row_bytes(t), err);
    if (!made)
        return VPTQ_E_NOMEM;
    memset(made, 0, row_bytes(t));
    for (uint32_t rank = 0; rank < t->k; rank++) {
        const size_t centroid = order ? order[rank] : rank;
        memcpy(made + (size_t)rank * VPTQ_CUDA_GRID_V,
               grids->codes + (group * (size_t)t->k + centroid) * t->v, t->v);
    }
    codebook->bytes_unit = grids->scale[group];
    *rows = made;
    return VPTQ_OK;
}

static bool is_plain(const vptq_cuda_table *t)
{
    return !t->k || (t->shared && !t->tail);
}

static vptq_status make_stripe(vptq_arena *arena, layout_build *b, uint32_t i, vptq_err *err)
{
    const vptq_cuda_segment *g = &b->layout.segment[i];
    vptq_cuda_stripe *s = &b->stripes[i];
    const int power = power_of(g);
    *s = {};
    VPTQ_CHECK(
        make_image(arena, &g->main, g->centroids, g->order, power, &s->main, &b->main[i], err));
    VPTQ_CHECK(make_image(arena, &g->residual, g->res_centroids, g->res_order, power,
                          &s->residual, &b->residual[i], err));
    VPTQ_CHECK(make_rows(arena, &g->main, &b->main_grids, i, g->order, &s->main,
                         &b->main_rows[i], err));
    VPTQ_CHECK(make_rows(arena, &g->residual, &b->residual_grids, i, g->res_order, &s->residual,
                         &b->residual_rows[i], err));
    s->main.at = b->choice->smem.main_offset;
    s->residual.at = b->choice->smem.residual_offset;
    s->v = g->main.v;
    s->chunks = g->chunks;
    s->tile = g->at / VPTQ_CUDA_TILE;
    s->loop = VPTQ_CUDA_ANYTHING;
    if (is_plain(&g->main) && is_plain(&g->residual))
        s->loop = g->codes8    ? VPTQ_CUDA_WITH_BYTES
                  : g->codes16 ? VPTQ_CUDA_WITH_WORDS
                               : VPTQ_CUDA_MAIN_ALONE;
    return VPTQ_OK;
}

/* The same stripe with its codebooks in the tables of GEMM_SMALL. */
static void make_small_stripe(const vptq_cuda_smem *smem, bool outliers,
                              const vptq_cuda_stripe *from, vptq_cuda_stripe *s)
{
    static const vptq_cuda_table none = {};
    *s = *from;
    s->main.table = outliers ? smem->tables.outlier : smem->tables.main;
    s->residual.table = outliers ? none : smem->tables.residual;
    s->main.at = smem->main_offset;
    s->residual.at = smem->residual_offset;
    if (is_plain(&s->main.table) && is_plain(&s->residual.table))
        s->loop = VPTQ_CUDA_MAIN_ALONE; /* means here: all tables are plain */
    else
        s->loop = VPTQ_CUDA_ANYTHING;
}

static vptq_status build(vptq_dev *dev, const vptq_matrix *m, vptq_arena *arena,
                         layout_build *b, vptq_err *err)
{
    VPTQ_CHECK(vptq_cuda_layout_build(&m->q, &b->choice->smem.tables, dev->ctx->threads, arena,
                                      &b->layout, err));
    const uint32_t n = b->layout.segments;
    b->blocks = max(vptq_cuda_blocks(m->q.shape.out, b->choice->rows),
                    (unsigned)dev->properties.multiProcessorCount);
    b->stripes = arena_array<vptq_cuda_stripe>(arena, n, err);
    b->small = arena_array<vptq_cuda_stripe>(arena, n, err);
    b->main = arena_array<const uint16_t *>(arena, n, err);
    b->residual = arena_array<const uint16_t *>(arena, n, err);
    b->main_rows = arena_array<const uint8_t *>(arena, n, err);
    b->residual_rows = arena_array<const uint8_t *>(arena, n, err);
    b->zeros = arena_array<unsigned>(arena, b->blocks, err);
    if (!b->stripes || !b->small || !b->main || !b->residual || !b->main_rows ||
        !b->residual_rows || !b->zeros)
        return VPTQ_E_NOMEM;
    memset(b->zeros, 0, b->blocks * sizeof *b->zeros);
    for (uint32_t i = 0; i < n; i++)
        VPTQ_CHECK(make_stripe(arena, b, i, err));
    return VPTQ_OK;
}

static size_t codes_of(const vptq_cuda_segment *g)
{
    return (size_t)g->pairs * g->chunks * VPTQ_CUDA_LANES * VPTQ_CUDA_CHUNK_TILES;
}

static size_t image_count(const vptq_cuda_codebook *b)
{
    return (size_t)b->codebook_rows * vptq_cuda_row_bytes(b->table.v) / sizeof(uint16_t);
}

static vptq_status put_stripe(vptq_dev *dev, slab *s, const layout_build *b, uint32_t i,
                              vptq_err *err)
{
    const vptq_cuda_segment *g = &b->layout.segment[i];
    vptq_cuda_stripe *d = &b->stripes[i];
    const size_t n = codes_of(g);
    VPTQ_CHECK(put<uint16_t>(dev, s, g->codes, n, &d->codes, err));
    VPTQ_CHECK(put<uint8_t>(dev, s, g->codes8, n, &d->codes8, err));
    VPTQ_CHECK(put<uint16_t>(dev, s, g->codes16, n, &d->codes16, err));
    VPTQ_CHECK(put(dev, s, b->main_rows[i], row_bytes(&d->main.table), &d->main.bytes, err));
    VPTQ_CHECK(put(dev, s, b->residual_rows[i], row_bytes(&d->residual.table),
                   &d->residual.bytes, err));
    VPTQ_CHECK(put(dev, s, b->main[i], image_count(&d->main), &d->main.codebook, err));
    if (d->residual.table.k)
        VPTQ_CHECK(
            put(dev, s, b->residual[i], image_count(&d->residual), &d->residual.codebook, err));
    return VPTQ_OK;
}

static vptq_status put_runtime(vptq_dev *dev, slab *s, const vptq_vq *q, const layout_build *b,
                               vptq_cuda_runtime *r, vptq_err *err)
{
    const vptq_cuda_layout *l = &b->layout;
    const unsigned *arrived = NULL;
    for (uint32_t i = 0; i < l->segments; i++)
        VPTQ_CHECK(put_stripe(dev, s, b, i, err));
    for (uint32_t i = 0; i < l->segments; i++)
        make_small_stripe(&b->plan_small->smem, q->shape.outliers && i == 0, &b->stripes[i],
                          &b->small[i]);
    VPTQ_CHECK(put<vptq_cuda_stripe>(dev, s, b->stripes, l->segments, &r->stripes, err));
    if (b->plan_small->to)
        VPTQ_CHECK(
            put<vptq_cuda_stripe>(dev, s, b->small, l->segments, &r->small_stripes, err));
    VPTQ_CHECK(put(dev, s, l->channel, l->columns, &r->channel, err));
    VPTQ_CHECK(put(dev, s, q->scale, q->shape.in, &r->scale, err));
    VPTQ_CHECK(put(dev, s, q->bias, q->shape.in, &r->bias, err));
    VPTQ_CHECK(put<unsigned>(dev, s, b->zeros, b->blocks, &arrived, err));
    r->first = b->stripes[0];
    r->arrived = const_cast<unsigned *>(arrived);
    return VPTQ_OK;
}

/* Fills the fields that need no arrays. Block r of a cluster takes chunks r * n .. with n =
 * ceil(chunks / split); split is reduced so that the last block has some. */
static void describe(const layout_build *b, vptq_cuda_runtime *r)
{
    const vptq_cuda_layout *l = &b->layout;
    r->count = l->segments;
    r->columns = l->columns;
    r->staged = vptq_cuda_is_staged(&r->choice.smem.tables);
    r->loop = b->stripes[l->segments - 1].loop;
    r->any_loop = r->loop == VPTQ_CUDA_ANYTHING;
    for (uint32_t i = 0; i < l->segments; i++) {
        r->max_chunks = max(r->max_chunks, l->segment[i].chunks);
        r->any_loop = r->any_loop || b->stripes[i].loop != r->loop;
    }
    r->split =
        vptq_cuda_blocks(r->max_chunks, vptq_cuda_blocks(r->max_chunks, r->choice.split));
}

static vptq_status plan_runtime(vptq_dev *dev, const vptq_matrix *m, bool grid,
                                vptq_cuda_runtime *r, vptq_err *err)
{
    const vptq_cuda_chip chip = chip_of(dev);
    vptq_cuda_dispatch_plan plan;
    *r = {};
    VPTQ_CHECK(
        vptq_cuda_dispatch(&chip, &m->q.shape, grid, getenv("VPTQ_CUDA_GEMV"), &plan, err));
    r->choice = plan.few;
    r->small = plan.small;
    return VPTQ_OK;
}

static vptq_status build_runtime(vptq_dev *dev, const vptq_matrix *m, vptq_arena *arena,
                                 vptq_cuda_runtime *r, vptq_err *err)
{
    const vptq_vq_shape *s = &m->q.shape;
    layout_build b = {};
    bool grid = vptq_cuda_has_grid_shape(s);
    if (grid)
        VPTQ_CHECK(find_grids(arena, m->q.centroids, s->groups, (size_t)s->k * s->v,
                              &b.main_grids, &grid, err));
    if (grid)
        VPTQ_CHECK(find_grids(arena, m->q.res_centroids, s->groups, (size_t)s->k_res * s->v,
                              &b.residual_grids, &grid, err));
    VPTQ_CHECK(plan_runtime(dev, m, grid, r, err));
    if (r->choice.kernel == VPTQ_CUDA_GEMM_DEQUANT)
        return VPTQ_OK;
    b.choice = &r->choice;
    b.plan_small = &r->small;
    VPTQ_CHECK(build(dev, m, arena, &b, err));
    describe(&b, r);
    return fill_slab(
        dev, [&](slab *to) { return put_runtime(dev, to, &m->q, &b, r, err); },
        &m->runtime_slab, err);
}

vptq_status vptq_cuda_matrix_runtime(vptq_dev *dev, const vptq_matrix *m,
                                     const vptq_cuda_runtime **r, vptq_err *err)
{
    *r = &m->runtime;
    if (m->planned)
        return VPTQ_OK;
    vptq_arena arena;
    vptq_arena_init(&arena, dev->ctx->mem);
    const vptq_status st = build_runtime(dev, m, &arena, &m->runtime, err);
    vptq_arena_release(&arena);
    m->planned = !st;
    return st;
}

/* ---- opening and closing ---- */

vptq_status vptq_cuda_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                  vptq_err *err)
{
    *m = static_cast<vptq_matrix *>(vptq_mem_alloc(dev->ctx->mem, 1, sizeof **m, err));
    if (!*m)
        return VPTQ_E_NOMEM;
    **m = {};
    (*m)->q = *q;
    return VPTQ_OK;
}

void vptq_cuda_matrix_close(vptq_dev *dev, vptq_matrix *m)
{
    if (!m)
        return;
    (void)cudaStreamSynchronize(dev->stream); /* wait for kernels that use it */
    (void)cudaFree(m->slab);
    (void)cudaFree(m->runtime_slab);
    vptq_mem_free(dev->ctx->mem, m);
}
