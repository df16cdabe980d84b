/* GPTVQ: the pass over the columns, and what is stored. */
#include "lib/uniform/gptvq.h"

#include <string.h>

#include "lib/backend/mirror.h"
#include "lib/base/parallel.h"
#include "lib/uniform/factor.h"
#include "lib/uniform/gptvq_internal.h"

enum {
    ROWS = 32
}; /* at least so many are quantized together, so that rows of U are read once */

static uint32_t at_most(uint32_t n, uint32_t max)
{
    return n && n < max ? n : max;
}

vptq_additive_shape vptq_gptvq_shape_of(const vptq_gptvq_settings *s, uint32_t out, uint32_t in)
{
    return (vptq_additive_shape){.out = out,
                                 .in = in,
                                 .v = s->v,
                                 .stages = 1,
                                 .bits = {s->bits * s->v},
                                 .block_rows = at_most(s->block_rows, out),
                                 .block_columns = at_most(s->block_columns, in),
                                 .int8 = s->int8};
}

/* ---- the pass ---- */

typedef struct passing {
    vptq_gptvq *q;
    size_t rows;                 /* quantized together, whole row blocks */
    vptq_gptvq_trainer *trainer; /* [threads] */
    float *err;                  /* [threads][rows][block columns] */
    bool *bad;                   /* [threads] a codebook does not fit the storage type */
} passing;

/* Columns [first, first + cols) of rows [begin, end). */
typedef struct tile {
    size_t begin, end, first, cols;
    float *err; /* [rows][block columns] */
} tile;

/* The block of a codebook in a tile. */
static vptq_gptvq_block block_of(const vptq_gptvq *q, const tile *t, size_t row)
{
    const vptq_additive_shape *s = &q->shape;
    const size_t across = (s->in - 1) / s->block_columns + 1, k = vptq_gptvq_k(q);
    const size_t block = row / s->block_rows * across + t->first / s->block_columns;
    const size_t left = t->end - row;
    return (vptq_gptvq_block){.rows = left < s->block_rows ? left : s->block_rows,
                              .vectors = t->cols / s->v,
                              .v = s->v,
                              .k = k,
                              .w = q->w + row * s->in + t->first,
                              .ld = s->in,
                              .u = q->u + t->first * (s->in + 1),
                              .ldu = s->in,
                              .codebook = q->codebooks + block * k * s->v};
}

/* Quantizes vector p of a row, and propagates its error to those after it in the tile. */
static void quantize_vector(const vptq_gptvq *q, const tile *t, const vptq_gptvq_block *b,
                            const vptq_gptvq_scaled *s, size_t row, size_t p)
{
    const size_t in = q->shape.in, v = b->v, first = p * v;
    const float *u = b->u + first * (in + 1);
    float *w = q->w + row * in + t->first, d[VPTQ_GPTVQ_MAX_V];
    float *err = t->err + (row - t->begin) * q->shape.block_columns + first;
    const uint32_t found = vptq_gptvq_nearest(b, p, s, w + first);
    q->idx[row * (in / v) + t->first / v + p] = found;
    for (size_t e = 0; e < v; e++)
        d[e] = w[first + e] - b->codebook[found * v + e];
    vptq_gptvq_solve(v, u, in, d, err);
    for (size_t e = 0; e < v; e++)
        for (size_t c = first + v; c < t->cols; c++)
            w[c] -= err[e] * u[e * in + c - first];
}

static void quantize_block(const vptq_gptvq *q, const tile *t, const vptq_gptvq_block *b,
                           const vptq_gptvq_scaled *s, size_t row)
{
    for (size_t p = 0; p < b->vectors; p++) {
        vptq_gptvq_scale(b, p, s);
        for (size_t r = row; r < row + b->rows; r++)
            quantize_vector(q, t, b, s, r, p);
    }
}

/* Propagates the errors of a tile into the columns after it. */
static void propagate(const vptq_gptvq *q, const tile *t)
{
    const size_t in = q->shape.in, next = t->first + t->cols;
    for (size_t c = 0; c < t->cols; c++) {
        const float *u = q->u + (t->first + c) * in;
        for (size_t r = t->begin; r < t->end; r++) {
            const float e = t->err[(r - t->begin) * q->shape.block_columns + c];
            float *w = q->w + r * in;
            for (size_t l = next; l < in; l++)
                w[l] -= e * u[l];
        }
    }
}

static void pass_rows(void *arg, size_t begin, size_t end, int thread)
{
    const passing *p = arg;
    const vptq_gptvq *q = p->q;
    const vptq_additive_shape *s = &q->shape;
    tile t = {.begin = begin,
              .end = end,
              .err = p->err + (size_t)thread * p->rows * s->block_columns};
    for (; t.first < s->in && !vptq_check_cancel(q->dev->ctx, NULL); t.first += t.cols) {
        t.cols = s->in - t.first < s->block_columns ? s->in - t.first : s->block_columns;
        for (size_t row = begin; row < end; row += s->block_rows) {
            const vptq_gptvq_block b = block_of(q, &t, row);
            if (!vptq_gptvq_train(q, &b, &p->trainer[thread])) {
                p->bad[thread] = true;
                return;
            }
            quantize_block(q, &t, &b, &p->trainer[thread].scaled, row);
        }
        propagate(q, &t);
    }
}

static vptq_status pass(vptq_gptvq *q, vptq_err *err)
{
    const vptq_additive_shape *s = &q->shape;
    const size_t threads = (size_t)q->dev->ctx->threads;
    const size_t rows = (ROWS + s->block_rows - 1) / s->block_rows * s->block_rows;
    passing p = {.q = q, .rows = rows};
    p.trainer = vptq_arena_alloc(&q->scratch, threads, sizeof *p.trainer, err);
    p.bad = p.trainer ? vptq_arena_zalloc(&q->scratch, threads, sizeof *p.bad, err) : NULL;
    p.err = p.bad ? vptq_arena_alloc(&q->scratch, threads * rows,
                                     s->block_columns * sizeof *p.err, err)
                  : NULL;
    if (!p.err)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < threads; i++)
        VPTQ_CHECK(vptq_gptvq_trainer_make(q, &p.trainer[i], err));
    vptq_parallel_for((int)threads, s->out, rows, pass_rows, &p);
    VPTQ_CHECK(vptq_check_cancel(q->dev->ctx, err));
    for (size_t i = 0; i < threads; i++)
        if (p.bad[i])
            return vptq_fail(err, VPTQ_E_NUMERIC, "a centroid is out of the range of %s",
                             vptq_dtype_get(q->s->storage)->name);
    return VPTQ_OK;
}

/* ---- the result ---- */

typedef struct packing {
    const vptq_gptvq *q;
    uint32_t *codes;
} packing;

static void pack_rows(void *arg, size_t begin, size_t end, int thread)
{
    const packing *p = arg;
    const vptq_gptvq *q = p->q;
    const size_t vectors = q->shape.in / q->shape.v;
    const size_t words = vptq_additive_row_words(&q->shape, 0);
    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t t = 0; t < vectors; t++)
            vptq_bits_put(p->codes + r * words, t, q->shape.bits[0], q->idx[r * vectors + t]);
}

static vptq_status pack(vptq_gptvq *q, vptq_arena *arena, vptq_additive *a, vptq_err *err)
{
    const vptq_additive_shape *s = &q->shape;
    uint32_t *codes =
        vptq_arena_zalloc(arena, s->out, vptq_additive_row_words(s, 0) * sizeof *codes, err);
    packing p = {q, codes};
    if (!codes)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(q->dev->ctx->threads, s->out, ROWS, pack_rows, &p);
    *a = (vptq_additive){.shape = *s, .codes = {codes}, .codebooks = {q->codebooks}};
    return VPTQ_OK;
}

/* Copies the weights and factors the Hessian. */
static vptq_status prepare(vptq_gptvq *q, double *damping_added, vptq_err *err)
{
    const size_t out = q->shape.out, in = q->shape.in;
    vptq_mirror m = vptq_mirror_of(q->dev);
    const vptq_uniform_factor_args a = {
        .in = in, .lower = q->input->lower, .ridge = q->s->ridge, .damping = q->s->damping};
    float *u = vptq_mirror_take(&m, q->u, in, in * sizeof *q->u, VPTQ_MIRROR_DOWNLOAD);
    memcpy(q->w, q->input->w, out * in * sizeof *q->w);
    return vptq_mirror_end(&m, vptq_uniform_factor(&m, &a, u, damping_added, err), err);
}

static vptq_status allocate(vptq_gptvq *q, vptq_arena *arena, vptq_err *err)
{
    const vptq_additive_shape *s = &q->shape;
    const size_t out = s->out, in = s->in;
    vptq_arena *scratch = &q->scratch;
    q->w = vptq_arena_alloc(scratch, out, in * sizeof *q->w, err);
    q->u = q->w ? vptq_arena_alloc(scratch, in, in * sizeof *q->u, err) : NULL;
    q->idx = q->u ? vptq_arena_alloc(scratch, out, in / s->v * sizeof *q->idx, err) : NULL;
    q->codebooks = q->idx ? vptq_arena_alloc(arena, vptq_additive_blocks(s),
                                             vptq_gptvq_k(q) * s->v * sizeof *q->codebooks, err)
                          : NULL;
    return q->codebooks ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_gptvq_quantize(vptq_device *dev, const vptq_gptvq_settings *s,
                                const vptq_uniform_input *input, vptq_arena *arena,
                                vptq_additive *a, double *damping_added, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_gptvq q = {.dev = dev,
                    .s = s,
                    .input = input,
                    .shape = vptq_gptvq_shape_of(s, input->out, input->in)};
    *damping_added = 0;
    vptq_arena_init(&q.scratch, dev->ctx->mem);
    VPTQ_TRY(vptq_additive_shape_check(&q.shape, err));
    VPTQ_TRY(allocate(&q, arena, err));
    VPTQ_TRY(prepare(&q, damping_added, err));
    VPTQ_TRY(pass(&q, err));
    VPTQ_TRY(vptq_gptvq_refit(&q, err));
    VPTQ_TRY(pack(&q, arena, a, err));
out:
    vptq_arena_release(&q.scratch);
    return st;
}
