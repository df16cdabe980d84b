/* Layouts of packed matrices on an int8 grid, and x in digits (grid.h). */
#include "lib/backend/cpu/grid.h"

#include <math.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/base/grid.h"
#include "lib/base/parallel.h"

enum { ROWS = VPTQ_BLOCK_VECTOR_ROWS, LOOKUPS = VPTQ_GRID_LOOKUPS, HALF = VPTQ_GRID_HALF };

bool vptq_grid_uses_bytes(vptq_simd simd)
{
#if defined(__x86_64__)
    return vptq_grid_kernels_get(simd)->block_bytes && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi");
#else
    (void)simd;
    return false;
#endif
}

/* ---- x ---- */

/* The power of two that makes x whole numbers of 24 bits with sign; 0 if a value is not
 * finite. */
static float find_unit(const float *x, size_t n)
{
    enum { BITS = 23, MIN_EXPONENT = -100 };
    float max = 0, sum = 0;
    int exponent;
    for (size_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        max = a > max ? a : max;
        sum += a - a; /* NaN if a is not finite */
    }
    if (!isfinite(sum))
        return 0;
    frexpf(max, &exponent);
    return ldexpf(1, BITS - (exponent > MIN_EXPONENT ? exponent : MIN_EXPONENT));
}

/* Writes digit d of each column of a record at columns * d. */
static void write_digits(int32_t whole, bool bytes, size_t columns, size_t i, uint8_t *digits)
{
    const uint32_t u = (uint32_t)(whole + (VPTQ_GRID_OFFSET << 16));
    for (size_t d = 0; bytes && d < VPTQ_GRID_BYTES; d++)
        digits[d * columns + i] = (uint8_t)(u >> 8 * d);
    if (bytes)
        return;
    const int16_t low = (int16_t)(u & ((1 << VPTQ_GRID_WORD_BITS) - 1));
    const int16_t high = (int16_t)(whole >> VPTQ_GRID_WORD_BITS);
    memcpy(digits + i * sizeof low, &low, sizeof low);
    memcpy(digits + (columns + i) * sizeof high, &high, sizeof high);
}

static void split_piece(const float *x, size_t n, size_t columns, bool bytes, float unit,
                        uint8_t *digits)
{
    const int32_t most = (VPTQ_GRID_OFFSET << 16) - 1;
    for (size_t j = 0; j < n; j += columns, digits += VPTQ_GRID_SPACE * columns)
        for (size_t i = 0; i < columns; i++) {
            const int32_t whole = j + i < n ? (int32_t)lrintf(x[j + i] * unit) : 0;
            write_digits(whole < most ? whole : most, bytes, columns, i, digits);
        }
}

void vptq_grid_split(const float *x, size_t columns, bool residual, bool bytes, uint8_t *digits,
                     float *unit)
{
    const size_t record = vptq_grid_columns(residual);
    for (size_t j = 0; j < columns; j += VPTQ_GRID_PIECE, unit++) {
        const size_t n = columns - j < VPTQ_GRID_PIECE ? columns - j : VPTQ_GRID_PIECE;
        const float f = find_unit(x + j, n);
        *unit = f > 0 ? 1 / f : NAN;
        if (f > 0)
            split_piece(x + j, n, record, bytes, f, digits + j * VPTQ_GRID_SPACE);
        else
            memset(digits + j * VPTQ_GRID_SPACE, 0, vptq_round_up(n, record) * VPTQ_GRID_SPACE);
    }
}

/* ---- tables ---- */

/* Writes a codebook [rows, v] as rows of `lanes` codes; false if it is not on a grid. */
static bool write_table(const float *codebook, size_t rows, size_t v, size_t lanes,
                        int8_t *table, float *scale)
{
    if (!vptq_grid_find(codebook, rows * v, scale, table))
        return false;
    for (size_t i = rows; i-- > 0;) { /* spreads the rows, from the last one on */
        memmove(table + i * lanes, table + i * v, v);
        memset(table + i * lanes + v, 0, lanes - v);
    }
    return true;
}

static bool write_tables(const vptq_vq *q, const vptq_layout *l, int8_t *table, float *scale)
{
    const vptq_vq_shape *s = &q->shape;
    for (size_t g = 0; g < s->groups; g++, scale += 2) {
        if (!write_table(q->centroids + g * s->k * s->v, s->k, s->v, l->lanes, table, scale))
            return false;
        table += s->k * l->lanes;
        scale[1] = scale[0];
        if (s->k_res && !write_table(q->res_centroids + g * s->k_res * s->v, s->k_res, s->v,
                                     l->lanes, table, scale + 1))
            return false;
        table += s->k_res * l->lanes;
    }
    return true;
}

/* ---- codes and starts ---- */

typedef struct grid_job {
    const vptq_gemv_kernels *kernels;
    const vptq_vq *q;
    const vptq_layout *l;
    vptq_fields fields;
    uint32_t res_base; /* code of the first residual centroid */
    uint16_t *codes;
    int32_t *starts;
} grid_job;

/* Writes the codes of vector row s of a block from its row of the stream. */
static void write_vector_row(const grid_job *job, const uint32_t *row, size_t s,
                             uint16_t *codes)
{
    enum { PIECE = 256 };
    const vptq_vq_shape *shape = &job->q->shape;
    const bool residual = shape->k_res > 0;
    const size_t columns = shape->group_size, record = vptq_grid_columns(residual);
    const uint32_t *end = job->q->indices + (size_t)shape->groups * vptq_vq_vector_rows(shape) *
                                                vptq_vq_row_words(shape);
    vptq_entry entry[PIECE];
    for (size_t c = 0; c < columns; c += PIECE) {
        const size_t count = columns - c < PIECE ? columns - c : PIECE;
        job->kernels->fields(&job->fields, row, end, c, count, entry);
        for (size_t j = 0; j < count; j++) {
            uint16_t *at = codes + ((c + j) / record * ROWS + s) * LOOKUPS + (c + j) % record;
            at[0] = (uint16_t)entry[j].main;
            if (residual)
                at[HALF] = (uint16_t)(entry[j].res + job->res_base);
        }
    }
}

/* Writes the starts of a block: what the offset of the highest digit adds to each sum. */
static void write_starts(const grid_job *job, const int8_t *table, const uint16_t *codes,
                         int32_t *starts)
{
    const vptq_layout *l = job->l;
    const size_t records = VPTQ_GRID_PIECE / vptq_grid_columns(job->q->shape.k_res > 0);
    const size_t piece_starts = ROWS * l->lanes * 2;
    for (size_t j = 0; j < l->records; j++) {
        if (j > 0 && j % records == 0)
            starts += piece_starts;
        for (size_t i = 0; i < ROWS * LOOKUPS; i++, codes++) {
            const int8_t *row = table + (size_t)LOOKUPS * l->code_scale * *codes;
            int32_t *at = starts + i / LOOKUPS * l->lanes * 2 + i % LOOKUPS / HALF;
            for (size_t e = 0; e < l->lanes; e++)
                at[e * 2] -= VPTQ_GRID_OFFSET * row[e];
        }
    }
}

static void write_blocks(void *arg, size_t begin, size_t end, int thread)
{
    const grid_job *job = arg;
    const vptq_layout *l = job->l;
    const vptq_vq_shape *s = &job->q->shape;
    const size_t vector_rows = vptq_vq_vector_rows(s), words = vptq_vq_row_words(s);
    const size_t rows = (size_t)s->k + s->k_res;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const size_t group = i / l->blocks, first = i % l->blocks * ROWS;
        uint16_t *codes = job->codes + i * l->block_codes;
        memset(codes, 0, l->block_codes * sizeof *codes);
        for (size_t r = 0; r < ROWS && first + r < vector_rows; r++)
            write_vector_row(job, job->q->indices + (group * vector_rows + first + r) * words,
                             r, codes);
        if (!job->starts)
            continue;
        int32_t *starts = job->starts + i * l->block_starts;
        memset(starts, 0, l->block_starts * sizeof *starts);
        write_starts(job, (const int8_t *)l->main + group * rows * l->lanes, codes, starts);
    }
}

static vptq_status make_codes(vptq_dev *dev, const vptq_vq *q, vptq_layout *l, vptq_err *err)
{
    const vptq_vq_shape *s = &q->shape;
    const size_t units = l->code_scale == 1 ? l->lanes / LOOKUPS : 1;
    const size_t blocks = s->groups * l->blocks;
    grid_job job = {
        .kernels = vptq_gemv_kernels_get(dev->simd),
        .q = q,
        .l = l,
        .fields = vptq_fields_of(vptq_vq_index_bits(s), vptq_log2u(s->k), (uint32_t)units),
        .res_base = (uint32_t)(s->k * units)};
    l->codes = job.codes =
        vptq_arena_alloc(&l->arena, blocks, l->block_codes * sizeof *l->codes, err);
    if (!job.codes)
        return VPTQ_E_NOMEM;
    if (l->block_starts) {
        l->starts = job.starts =
            vptq_arena_alloc(&l->arena, blocks, l->block_starts * sizeof *l->starts, err);
        if (!job.starts)
            return VPTQ_E_NOMEM;
    }
    vptq_parallel_for(dev->ctx->threads, blocks, 1, write_blocks, &job);
    return VPTQ_OK;
}

/* Sizes of the arrays. */
static void measure(const vptq_vq *q, bool bytes, vptq_layout *l)
{
    const vptq_vq_shape *s = &q->shape;
    const size_t rows = (size_t)s->k + s->k_res, columns = vptq_grid_columns(s->k_res > 0);
    l->lanes = l->row_bytes = vptq_round_up(s->v, LOOKUPS);
    const size_t units = l->lanes / LOOKUPS;
    l->code_scale = (rows - 1) * units <= UINT16_MAX ? 1 : units;
    l->records = (s->group_size + columns - 1) / columns;
    l->block_codes = l->records * ROWS * LOOKUPS;
    if (bytes)
        l->block_starts =
            (s->group_size + VPTQ_GRID_PIECE - 1) / VPTQ_GRID_PIECE * ROWS * l->lanes * 2;
}

vptq_status vptq_grid_layout_make(vptq_dev *dev, const vptq_vq *q, vptq_layout *l,
                                  vptq_err *err)
{
    const vptq_vq_shape *s = &q->shape;
    const vptq_layout before = *l;
    const size_t rows = (size_t)s->k + s->k_res;
    float scale_of_first;
    if (rows > UINT16_MAX + 1 ||
        !vptq_grid_find(q->centroids, (size_t)s->k * s->v, &scale_of_first, NULL))
        return VPTQ_OK;
    measure(q, vptq_grid_uses_bytes(dev->simd), l);
    const vptq_arena_mark mark = vptq_arena_get_mark(&l->arena);
    int8_t *table = vptq_arena_alloc(&l->arena, s->groups, rows * l->lanes, err);
    float *scale = vptq_arena_alloc(&l->arena, s->groups, 2 * sizeof *scale, err);
    if (!table || !scale)
        return VPTQ_E_NOMEM;
    if (!write_tables(q, l, table, scale)) {
        vptq_arena_rewind(&l->arena, mark);
        const vptq_arena arena = l->arena;
        *l = before;
        l->arena = arena;
        return VPTQ_OK;
    }
    l->grid = true;
    l->main = (const uint8_t *)table;
    l->scale = scale;
    return make_codes(dev, q, l, err);
}
