/* Checks, counts and decodes matrices of additive codes. */
#include "lib/base/additive.h"

#include "lib/base/hadamard.h"
#include "lib/base/lattice.h"
#include "lib/base/parallel.h"

enum { STORED_BITS = 16, INT8_BITS = 8, SCALE_BITS = 32, WORD_BITS = 32 };

/* ---- shape ---- */

static vptq_status check_vectors(const vptq_additive_shape *s, vptq_err *err)
{
    if (!s->out || !s->in || s->out > INT32_MAX || s->in > INT32_MAX)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "a matrix of %u x %u (expected at least one row and one column)",
                         s->out, s->in);
    if (!s->v || s->v > VPTQ_ADDITIVE_MAX_V)
        return vptq_fail(err, VPTQ_E_SHAPE, "vector length %u is not in 1..%d", s->v,
                         VPTQ_ADDITIVE_MAX_V);
    if (s->in % s->v)
        return vptq_fail(err, VPTQ_E_SHAPE, "vector length %u does not divide %u columns", s->v,
                         s->in);
    if (!s->stages || s->stages > VPTQ_ADDITIVE_MAX_STAGES)
        return vptq_fail(err, VPTQ_E_SHAPE, "%u codebooks are not in 1..%d", s->stages,
                         VPTQ_ADDITIVE_MAX_STAGES);
    for (uint32_t m = 0; m < s->stages; m++)
        if (!s->bits[m] || s->bits[m] > VPTQ_ADDITIVE_MAX_BITS)
            return vptq_fail(err, VPTQ_E_SHAPE, "codes of %u bits are not in 1..%d", s->bits[m],
                             VPTQ_ADDITIVE_MAX_BITS);
    return VPTQ_OK;
}

static vptq_status check_blocks(const vptq_additive_shape *s, vptq_err *err)
{
    if (!s->block_rows || s->block_rows > s->out)
        return vptq_fail(err, VPTQ_E_SHAPE, "blocks of %u rows are not in 1..%u", s->block_rows,
                         s->out);
    if (!s->block_columns || s->block_columns > s->in || s->block_columns % s->v)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "blocks of %u columns are not in 1..%u or not a multiple of %u",
                         s->block_columns, s->in, s->v);
    if (s->scale_columns > s->in || s->scale_columns % s->v)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "scales of %u columns are not in 0..%u or not a multiple of %u",
                         s->scale_columns, s->in, s->v);
    return VPTQ_OK;
}

static vptq_status check_lattice(const vptq_additive_shape *s, vptq_err *err)
{
    if (s->v != VPTQ_LATTICE_V)
        return vptq_fail(err, VPTQ_E_SHAPE, "points of a lattice of length %u, expected %d",
                         s->v, VPTQ_LATTICE_V);
    for (uint32_t m = 0; m < s->stages; m++)
        if (s->bits[m] != 8 && s->bits[m] != 16)
            return vptq_fail(err, VPTQ_E_SHAPE,
                             "codes of %u bits of a lattice, expected 8 or 16", s->bits[m]);
    if (s->block_rows != s->out || s->block_columns != s->in)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "a lattice for blocks of %u x %u, expected the whole matrix",
                         s->block_rows, s->block_columns);
    if (s->int8 || s->sparse || s->scale_columns)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "a lattice with codebooks of 8 bits, sparse ones or scales of rows");
    return VPTQ_OK;
}

vptq_status vptq_additive_shape_check(const vptq_additive_shape *s, vptq_err *err)
{
    VPTQ_CHECK(check_vectors(s, err));
    VPTQ_CHECK(check_blocks(s, err));
    if (s->rotated && s->scale_columns)
        return vptq_fail(err, VPTQ_E_SHAPE, "a rotated matrix with scales of rows");
    return s->lattice ? check_lattice(s, err) : VPTQ_OK;
}

/* ---- size ---- */

static uint64_t scale_groups(const vptq_additive_shape *s)
{
    return s->scale_columns ? (s->in + (uint64_t)s->scale_columns - 1) / s->scale_columns : 0;
}

static uint64_t codebook_bits(const vptq_additive_shape *s, uint32_t stage)
{
    const uint64_t entries = (UINT64_C(1) << s->bits[stage]) - s->sparse;
    return s->int8 ? entries * s->v * INT8_BITS + STORED_BITS : entries * s->v * STORED_BITS;
}

vptq_vq_bits vptq_additive_count_bits(const vptq_additive_shape *s)
{
    vptq_vq_bits b = {.norm = s->out * scale_groups(s) * STORED_BITS};
    for (uint32_t m = 0; m < s->stages; m++) {
        b.indices += (uint64_t)s->out * vptq_additive_row_words(s, m) * WORD_BITS;
        if (s->lattice)
            b.norm += SCALE_BITS;
        else
            b.codebooks += vptq_additive_blocks(s) * codebook_bits(s, m);
    }
    if (s->rotated)
        b.norm += (vptq_bits_words(s->out, 1) + vptq_bits_words(s->in, 1)) * WORD_BITS;
    b.total = b.indices + b.codebooks + b.norm;
    b.per_weight = (double)b.total / ((double)s->out * (double)s->in);
    return b;
}

/* ---- decoding ---- */

typedef struct decoding {
    const vptq_additive *a;
    float *w;
    float *columns; /* rotated: [threads][TILE, out] */
} decoding;

enum { ROWS = 16, TILE = 16 };

/* Adds the entries of one stage to a row, or with stage 0 writes them. */
static void add_entries(const vptq_additive *a, uint32_t stage, size_t row, float *w)
{
    const vptq_additive_shape *s = &a->shape;
    const unsigned bits = s->bits[stage];
    const uint32_t *codes = a->codes[stage] + row * vptq_additive_row_words(s, stage);
    const size_t blocks = (s->in + (size_t)s->block_columns - 1) / s->block_columns;
    const size_t block = row / s->block_rows * blocks;
    for (size_t t = 0, c = 0; c < s->in; t++, c += s->v) {
        const uint32_t code = vptq_bits_get(codes, t, bits);
        const float *entry;
        float point[VPTQ_LATTICE_V];
        if (s->lattice) {
            vptq_lattice_point(bits, code, point);
            for (size_t e = 0; e < VPTQ_LATTICE_V; e++)
                point[e] *= a->stage_scales[stage];
            entry = point;
        } else {
            entry =
                a->codebooks[stage] + (((block + c / s->block_columns) << bits) + code) * s->v;
        }
        for (size_t e = 0; e < s->v; e++)
            w[c + e] = stage ? w[c + e] + entry[e] : entry[e];
    }
}

static void decode_rows(void *arg, size_t begin, size_t end, int thread)
{
    const decoding *d = arg;
    const vptq_additive *a = d->a;
    const vptq_additive_shape *s = &a->shape;
    const size_t groups = (size_t)scale_groups(s);
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        float *w = d->w + r * s->in;
        for (uint32_t m = 0; m < s->stages; m++)
            add_entries(a, m, r, w);
        for (size_t c = 0; groups && c < s->in; c++)
            w[c] *= a->scales[r * groups + c / s->scale_columns];
    }
    if (s->rotated)
        vptq_hadamard_rows(end - begin, s->in, true, d->w + begin * s->in);
}

/* A_out^T from the left, and the signs, of up to TILE columns. */
static void rotate_columns(void *arg, size_t begin, size_t end, int thread)
{
    const decoding *d = arg;
    const vptq_additive *a = d->a;
    const size_t out = a->shape.out, in = a->shape.in;
    float *tile = d->columns + (size_t)thread * TILE * out;
    for (size_t r = 0; r < out; r++)
        for (size_t c = begin; c < end; c++)
            tile[(c - begin) * out + r] = d->w[r * in + c];
    vptq_hadamard_rows(end - begin, out, true, tile);
    for (size_t r = 0; r < out; r++)
        for (size_t c = begin; c < end; c++) {
            const float x = tile[(c - begin) * out + r];
            d->w[r * in + c] = a->row_signs[r] != a->column_signs[c] ? -x : x;
        }
}

vptq_status vptq_additive_decode(const vptq_ctx *ctx, const vptq_additive *a, float *w,
                                 vptq_err *err)
{
    const vptq_additive_shape *s = &a->shape;
    decoding d = {.a = a, .w = w};
    if (s->rotated) {
        d.columns = vptq_mem_alloc(ctx->mem, (size_t)ctx->threads * TILE,
                                   s->out * sizeof *d.columns, err);
        if (!d.columns)
            return VPTQ_E_NOMEM;
    }
    vptq_parallel_for(ctx->threads, s->out, ROWS, decode_rows, &d);
    if (s->rotated)
        vptq_parallel_for(ctx->threads, s->in, TILE, rotate_columns, &d);
    vptq_mem_free(ctx->mem, d.columns);
    return VPTQ_OK;
}
