/* Layouts of packed matrices for products (gemv.h): tables of centroids and codes. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "lib/backend/cpu/gemv.h"
#include "lib/backend/cpu/grid.h"
#include "lib/backend/dev.h"
#include "lib/base/half.h"
#include "lib/base/parallel.h"

enum { ROWS = VPTQ_BLOCK_VECTOR_ROWS, CODE_UNIT = 8 /* bytes */ };

/* ---- entries of the stream ---- */

vptq_fields vptq_fields_of(unsigned bits, unsigned main_bits, uint32_t v)
{
    enum { MAX = 25, HALF = 4 };
    vptq_fields f = {.bits = bits, .main_bits = main_bits, .v = v, .by_bytes = bits <= MAX};
    f.half = HALF * bits / 8;
    for (unsigned i = 0; i < 2 * HALF; i++) {
        unsigned bit = i < HALF ? i * bits : i * bits - 8 * f.half;
        f.shift[i] = bit % 8;
        for (unsigned b = 0; b < 4; b++)
            f.shuffle[4 * i + b] = (uint8_t)((bit / 8 + b) & 15);
    }
    return f;
}

/* ---- tables ---- */

typedef struct table_job {
    const float *codebook;
    size_t v, lanes;
    float factor;     /* of float16 values */
    uint16_t *halves; /* [rows, lanes] if l->half, else */
    float *floats;
    atomic_bool inexact; /* a value is not exact in float16 */
} table_job;

static void write_floats(void *arg, size_t begin, size_t end, int thread)
{
    table_job *job = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        float *row = job->floats + i * job->lanes;
        memset(row, 0, job->lanes * sizeof *row);
        memcpy(row, job->codebook + i * job->v, job->v * sizeof *row);
    }
}

static void write_halves(void *arg, size_t begin, size_t end, int thread)
{
    enum { LANES = VPTQ_VQ_MAX_V };
    table_job *job = arg;
    float row[LANES] = {0}, back[LANES];
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        uint16_t *halves = job->halves + i * job->lanes;
        for (size_t e = 0; e < job->v; e++)
            row[e] = job->codebook[i * job->v + e] * job->factor;
        vptq_f32_to_f16_n(row, halves, job->lanes);
        vptq_f16_to_f32_n(halves, back, job->lanes);
        for (size_t e = 0; e < job->v; e++)
            if (back[e] / job->factor != job->codebook[i * job->v + e])
                atomic_store_explicit(&job->inexact, true, memory_order_relaxed);
    }
}

static float largest(const float *x, size_t n)
{
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i])); /* not NaN, which write_halves finds */
    return max;
}

/* Chooses the power of two that scales the codebooks to the upper end of float16; returns false
 * if there is none. */
static bool choose_shift(const vptq_vq *q, int *shift)
{
    enum { TOP = 15, MAX = 100 };
    const vptq_vq_shape *s = &q->shape;
    int exponent;
    float max = largest(q->centroids, (size_t)s->groups * s->k * s->v);
    if (s->k_res)
        max = fmaxf(max, largest(q->res_centroids, (size_t)s->groups * s->k_res * s->v));
    if (!isfinite(max))
        return false;
    frexpf(max, &exponent);
    *shift = max > 0 ? TOP - exponent : 0;
    return *shift <= MAX && *shift >= -MAX;
}

/* Writes one codebook as a table. Returns NULL without memory, or with *inexact if float16
 * cannot hold it. */
static const uint8_t *make_table(vptq_dev *dev, vptq_layout *l, const float *codebook,
                                 size_t rows, size_t v, bool *inexact, vptq_err *err)
{
    enum { CHUNK = 4096 };
    table_job job = {
        .codebook = codebook, .v = v, .lanes = l->lanes, .factor = ldexpf(1, l->shift)};
    void *table = vptq_arena_alloc(&l->arena, rows, l->row_bytes, err);
    if (!table)
        return NULL;
    job.halves = table;
    job.floats = table;
    vptq_parallel_for(dev->ctx->threads, rows, CHUNK, l->half ? write_halves : write_floats,
                      &job);
    *inexact = atomic_load(&job.inexact);
    return *inexact ? NULL : table;
}

static vptq_status make_tables_as(vptq_dev *dev, const vptq_vq *q, vptq_layout *l,
                                  bool *inexact, vptq_err *err)
{
    const vptq_vq_shape *s = &q->shape;
    *inexact = false;
    l->row_bytes = l->lanes * (l->half ? sizeof(uint16_t) : sizeof(float));
    l->main = make_table(dev, l, q->centroids, (size_t)s->groups * s->k, s->v, inexact, err);
    l->res = NULL;
    if (l->main && s->k_res)
        l->res = make_table(dev, l, q->res_centroids, (size_t)s->groups * s->k_res, s->v,
                            inexact, err);
    return l->main && (l->res || !s->k_res) ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Whether tables of floats stay in the first cache; of a group, whose two tables are adjacent.
 */
static bool is_small(const vptq_vq *q, const vptq_layout *l)
{
    enum { SMALL = 16 << 10 /* bytes */ };
    return ((size_t)q->shape.k + q->shape.k_res) * l->lanes * sizeof(float) <= SMALL;
}

static vptq_status make_tables(vptq_dev *dev, const vptq_vq *q, vptq_layout *l, vptq_err *err)
{
    const vptq_arena_mark mark = vptq_arena_get_mark(&l->arena);
    bool inexact;
    l->half = !is_small(q, l) && choose_shift(q, &l->shift);
    if (l->half) {
        vptq_status st = make_tables_as(dev, q, l, &inexact, err);
        if (!inexact)
            return st;
        vptq_arena_rewind(&l->arena, mark);
    }
    l->half = false;
    l->shift = 0;
    return make_tables_as(dev, q, l, &inexact, err);
}

/* ---- codes ---- */

typedef struct code_job {
    const vptq_gemv_kernels *kernels;
    const vptq_vq *q;
    const vptq_layout *l;
    vptq_fields fields;
    uint16_t *codes;
} code_job;

/* Writes the codes of the s-th vector row of a block from its row of the stream. */
static void write_vector_row(const code_job *job, const uint32_t *row, size_t s,
                             uint16_t *codes)
{
    enum { PIECE = 256 };
    const vptq_vq *q = job->q;
    const size_t record = job->l->record, columns = q->shape.group_size;
    const uint32_t *end = q->indices + (size_t)q->shape.groups *
                                           vptq_vq_vector_rows(&q->shape) *
                                           vptq_vq_row_words(&q->shape);
    vptq_entry entry[PIECE];
    for (size_t c = 0; c < columns; c += PIECE) {
        const size_t count = columns - c < PIECE ? columns - c : PIECE;
        uint16_t *at = codes + c * record + s;
        job->kernels->fields(&job->fields, row, end, c, count, entry);
        for (size_t j = 0; j < count; j++, at += record) {
            at[0] = (uint16_t)entry[j].main;
            if (q->shape.k_res)
                at[ROWS] = (uint16_t)entry[j].res;
        }
    }
}

static void write_blocks(void *arg, size_t begin, size_t end, int thread)
{
    const code_job *job = arg;
    const vptq_vq_shape *shape = &job->q->shape;
    const size_t vector_rows = vptq_vq_vector_rows(shape), words = vptq_vq_row_words(shape);
    const size_t size = shape->group_size * job->l->record;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const size_t group = i / job->l->blocks, first = i % job->l->blocks * ROWS;
        uint16_t *codes = job->codes + i * size;
        for (size_t s = 0; s < ROWS; s++)
            if (first + s < vector_rows)
                write_vector_row(
                    job, job->q->indices + (group * vector_rows + first + s) * words, s, codes);
            else
                for (size_t j = s; j < size; j += ROWS)
                    codes[j] = 0;
    }
}

static vptq_status make_codes(vptq_dev *dev, const vptq_vq *q, vptq_layout *l, vptq_err *err)
{
    const vptq_vq_shape *s = &q->shape;
    const size_t units = l->row_bytes / CODE_UNIT, max = s->k > s->k_res ? s->k : s->k_res;
    const bool near = (max - 1) * units <= UINT16_MAX;
    const size_t blocks = s->groups * l->blocks, size = s->group_size * l->record;
    l->code_scale = near ? 1 : units;
    code_job job = {.kernels = vptq_gemv_kernels_get(dev->simd),
                    .q = q,
                    .l = l,
                    .fields = vptq_fields_of(vptq_vq_index_bits(s), vptq_log2u(s->k),
                                             near ? (uint32_t)units : 1)};
    l->codes = job.codes = vptq_arena_alloc(&l->arena, blocks, size * sizeof *l->codes, err);
    if (!job.codes)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->ctx->threads, blocks, 1, write_blocks, &job);
    return VPTQ_OK;
}

/* ---- both ---- */

vptq_status vptq_layout_make(vptq_dev *dev, const vptq_vq *q, vptq_layout *l, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_vq_shape *s = &q->shape;
    enum { WIDE = 8, NARROW = 4 };
    *l = (vptq_layout){.lanes = s->v <= NARROW ? NARROW : (s->v + WIDE - 1) / WIDE * WIDE,
                       .blocks = (vptq_vq_vector_rows(s) + ROWS - 1) / ROWS,
                       .record = s->k_res ? 2 * ROWS : ROWS};
    vptq_arena_init(&l->arena, dev->ctx->mem);
    if (!is_small(q, l))
        VPTQ_TRY(vptq_grid_layout_make(dev, q, l, err));
    if (!l->grid) {
        VPTQ_TRY(make_tables(dev, q, l, err));
        VPTQ_TRY(make_codes(dev, q, l, err));
    }
out:
    if (st)
        vptq_layout_clear(l);
    return st;
}

void vptq_layout_clear(vptq_layout *l)
{
    vptq_arena_release(&l->arena);
    *l = (vptq_layout){0};
}
