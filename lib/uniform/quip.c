/* QuIP#: block LDLQ, sweeps, and what is stored. */
#include "lib/uniform/quip.h"

#include <string.h>

#include "lib/backend/mirror.h"
#include "lib/base/parallel.h"
#include "lib/uniform/quip_internal.h"

enum {
    V = VPTQ_LATTICE_V,
    BLOCK = 128, /* columns whose errors are propagated together to those before them */
    ROWS = 16,   /* quantized together */
    SWEEPS = 10  /* of coordinate descent after the pass, as published */
};

vptq_additive_shape vptq_quip_shape_of(const vptq_quip_settings *s, uint32_t out, uint32_t in)
{
    const bool residual = s->bits > VPTQ_QUIP_MIN_BITS;
    return (vptq_additive_shape){.out = out,
                                 .in = in,
                                 .v = V,
                                 .stages = residual ? 2 : 1,
                                 .bits = {16, residual ? 8 * (s->bits - 2) : 0},
                                 .block_rows = out,
                                 .block_columns = in,
                                 .lattice = true,
                                 .rotated = true};
}

/* ---- vectors ---- */

/* Columns [first, first + cols). */
typedef struct block {
    const vptq_quip *q;
    size_t first, cols;
} block;

/* A tile of ROWS rows of such columns; rows past the end are 0. */
typedef float tile[BLOCK][ROWS];

static void load_tile(const block *b, const float *from, size_t row, size_t rows, tile t)
{
    const size_t out = b->q->shape.out;
    for (size_t c = 0; c < b->cols; c++) {
        memset(t[c], 0, sizeof t[c]);
        memcpy(t[c], from + (b->first + c) * out + row, rows * sizeof t[c][0]);
    }
}

/* Rounds x to points of the stages, and stores the codes. */
static void quantize_vector(const vptq_quip *q, size_t vector, size_t row, const float *x,
                            float *point)
{
    const size_t at = vector * q->shape.out + row;
    float rest[V], second[V];
    q->codes[0][at] = (uint16_t)vptq_lattice_nearest(16, x, point);
    if (q->shape.stages == 1)
        return;
    for (size_t e = 0; e < V; e++)
        rest[e] = (x[e] - point[e]) * q->residual_scale;
    q->codes[1][at] = (uint16_t)vptq_lattice_nearest(q->shape.bits[1], rest, second);
    for (size_t e = 0; e < V; e++)
        point[e] += second[e] / q->residual_scale;
}

/* Quantizes rows of the vector at column c of the block to x; what and delta are updated, and
 * delta replaces x. */
static void quantize_rows(const block *b, size_t c, size_t row, size_t rows, float x[V][ROWS])
{
    const vptq_quip *q = b->q;
    const size_t out = q->shape.out, column = b->first + c;
    for (size_t r = 0; r < rows; r++) {
        float target[V], point[V];
        for (size_t e = 0; e < V; e++)
            target[e] = x[e][r];
        quantize_vector(q, column / V, row + r, target, point);
        for (size_t e = 0; e < V; e++) {
            const size_t at = (column + e) * out + row + r;
            q->what[at] = point[e];
            q->delta[at] = q->w[at] - point[e];
            x[e][r] = q->delta[at];
        }
    }
}

/* x += coefficient * from, in all rows. */
static void add_row(float *x, float coefficient, const float *from)
{
    for (size_t r = 0; r < ROWS; r++)
        x[r] += coefficient * from[r];
}

/* ---- block LDLQ ---- */

/* The vectors of a block, last to first: each is the weights plus the errors of later vectors
 * times L. */
static void pass_rows(void *arg, size_t begin, size_t end, int thread)
{
    const block *b = arg;
    const size_t in = b->q->shape.in;
    tile z, delta;
    (void)thread;
    load_tile(b, b->q->z, begin, end - begin, z);
    memset(delta, 0, sizeof delta);
    for (size_t c = b->cols; c > 0;) {
        c -= V;
        const float *l = b->q->l + b->first + c;
        for (size_t j = c + V; j < b->cols; j++)
            for (size_t e = 0; e < V; e++)
                add_row(z[c + e], l[(b->first + j) * in + e], delta[j]);
        memcpy(delta[c], z[c], V * sizeof z[c]);
        quantize_rows(b, c, begin, end - begin, delta + c);
    }
}

/* ---- sweeps ---- */

/* The vectors of a block, last to first, each at the minimum of the loss over it while all
 * others stay; z = delta H follows. */
static void sweep_rows(void *arg, size_t begin, size_t end, int thread)
{
    const block *b = arg;
    const vptq_quip *q = b->q;
    const size_t in = q->shape.in;
    tile z, what, delta;
    (void)thread;
    load_tile(b, q->z, begin, end - begin, z);
    load_tile(b, q->what, begin, end - begin, what);
    load_tile(b, q->delta, begin, end - begin, delta);
    for (size_t c = b->cols; c > 0;) {
        c -= V;
        const float *inverse = q->inverse + (b->first + c) * V;
        float x[V][ROWS];
        memcpy(x, what[c], sizeof x);
        for (size_t e = 0; e < V; e++)
            for (size_t f = 0; f < V; f++)
                add_row(x[e], inverse[e * V + f], z[c + f]);
        quantize_rows(b, c, begin, end - begin, x);
        for (size_t e = 0; e < V; e++)
            for (size_t r = 0; r < ROWS; r++)
                x[e][r] = r < end - begin ? x[e][r] - delta[c + e][r] : 0;
        for (size_t e = 0; e < V; e++)
            for (size_t j = 0; j < c; j++)
                add_row(z[j], q->h[(b->first + c + e) * in + b->first + j], x[e]);
    }
}

/* ---- all columns ---- */

typedef struct arrays {
    vptq_mirror m;
    float *z, *delta;
    const float *l, *h;
} arrays;

static vptq_status quantize_block(arrays *a, block *b, vptq_range_fn rows, vptq_err *err)
{
    const vptq_quip *q = b->q;
    const size_t out = q->shape.out, bytes = b->cols * out * sizeof(float);
    VPTQ_CHECK(vptq_check_cancel(q->dev->ctx, err));
    VPTQ_CHECK(vptq_mirror_pull(&a->m, q->z + b->first * out, bytes, err));
    vptq_parallel_for(q->dev->ctx->threads, out, ROWS, rows, b);
    return vptq_mirror_push(&a->m, q->delta + b->first * out, bytes, err);
}

/* Adds the errors of a block, times L, to the columns before it. */
static vptq_status propagate(const arrays *a, const block *b, vptq_err *err)
{
    const vptq_device *dev = b->q->dev;
    const size_t out = b->q->shape.out, in = b->q->shape.in;
    const vptq_gemm_args g = {.m = b->first,
                              .n = out,
                              .k = b->cols,
                              .a = a->l + b->first * in,
                              .b = a->delta + b->first * out,
                              .c = a->z,
                              .lda = in,
                              .ldb = out,
                              .ldc = out,
                              .trans_a = true,
                              .alpha = 1,
                              .beta = 1};
    return b->first ? dev->ops->gemm(dev->state, &g, err) : VPTQ_OK;
}

/* z of a block = its columns of delta H. */
static vptq_status differentiate(const arrays *a, const block *b, vptq_err *err)
{
    const vptq_device *dev = b->q->dev;
    const size_t out = b->q->shape.out, in = b->q->shape.in;
    const vptq_gemm_args g = {.m = b->cols,
                              .n = out,
                              .k = in,
                              .a = a->h + b->first * in,
                              .b = a->delta,
                              .c = a->z + b->first * out,
                              .lda = in,
                              .ldb = out,
                              .ldc = out,
                              .alpha = 1};
    return dev->ops->gemm(dev->state, &g, err);
}

/* Calls the pass (sweep false) or a sweep for every block, last to first. */
static vptq_status each_block(const vptq_quip *q, arrays *a, bool sweep, vptq_err *err)
{
    for (size_t end = q->shape.in; end > 0;) {
        const size_t first = (end - 1) / BLOCK * BLOCK;
        block b = {q, first, end - first};
        if (sweep)
            VPTQ_CHECK(differentiate(a, &b, err));
        VPTQ_CHECK(quantize_block(a, &b, sweep ? sweep_rows : pass_rows, err));
        if (!sweep)
            VPTQ_CHECK(propagate(a, &b, err));
        end = first;
    }
    return VPTQ_OK;
}

static vptq_status quantize(const vptq_quip *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t out = q->shape.out, in = q->shape.in;
    arrays a = {.m = vptq_mirror_of(q->dev)};
    a.z = vptq_mirror_take(&a.m, q->z, in, out * sizeof *q->z, VPTQ_MIRROR_UPLOAD);
    a.delta = vptq_mirror_take(&a.m, q->delta, in, out * sizeof *q->delta, 0);
    a.l = vptq_mirror_in(&a.m, q->l, in, in * sizeof *q->l);
    a.h = vptq_mirror_in(&a.m, q->h, in, in * sizeof *q->h);
    VPTQ_TRY(vptq_mirror_check(&a.m, err));
    VPTQ_TRY(each_block(q, &a, false, err));
    for (int i = 0; i < SWEEPS; i++)
        VPTQ_TRY(each_block(q, &a, true, err));
out:
    return vptq_mirror_end(&a.m, st, err);
}

/* ---- the result ---- */

typedef struct packing {
    const vptq_quip *q;
    uint32_t *codes[2];
} packing;

static void pack_rows(void *arg, size_t begin, size_t end, int thread)
{
    const packing *p = arg;
    const vptq_additive_shape *s = &p->q->shape;
    (void)thread;
    for (uint32_t m = 0; m < s->stages; m++)
        for (size_t t = 0; t < s->in / V; t++)
            for (size_t r = begin; r < end; r++)
                vptq_bits_put(p->codes[m] + r * vptq_additive_row_words(s, m), t, s->bits[m],
                              p->q->codes[m][t * s->out + r]);
}

static vptq_status pack(const vptq_quip *q, vptq_arena *arena, vptq_additive *a, vptq_err *err)
{
    const vptq_additive_shape *s = &q->shape;
    packing p = {.q = q};
    *a = (vptq_additive){.shape = *s,
                         .stage_scales = {q->scale, q->scale / q->residual_scale},
                         .row_signs = q->row_signs,
                         .column_signs = q->column_signs};
    for (uint32_t m = 0; m < s->stages; m++) {
        p.codes[m] = vptq_arena_zalloc(arena, s->out,
                                       vptq_additive_row_words(s, m) * sizeof(uint32_t), err);
        if (!p.codes[m])
            return VPTQ_E_NOMEM;
        a->codes[m] = p.codes[m];
    }
    vptq_parallel_for(q->dev->ctx->threads, s->out, ROWS, pack_rows, &p);
    return VPTQ_OK;
}

static vptq_status allocate(vptq_quip *q, vptq_arena *arena, vptq_err *err)
{
    const size_t out = q->shape.out, in = q->shape.in;
    float **const weights[] = {&q->w, &q->what, &q->delta, &q->z};
    float **const squares[] = {&q->h, &q->l};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (!(*weights[i] = vptq_arena_alloc(&q->scratch, in, out * sizeof(float), err)))
            return VPTQ_E_NOMEM;
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++)
        if (!(*squares[i] = vptq_arena_alloc(&q->scratch, in, in * sizeof(float), err)))
            return VPTQ_E_NOMEM;
    for (uint32_t m = 0; m < q->shape.stages; m++)
        if (!(q->codes[m] =
                  vptq_arena_alloc(&q->scratch, in / V, out * sizeof *q->codes[m], err)))
            return VPTQ_E_NOMEM;
    q->inverse = vptq_arena_alloc(&q->scratch, in, V * sizeof *q->inverse, err);
    q->row_signs = q->inverse ? vptq_arena_alloc(arena, out, 1, err) : NULL;
    q->column_signs = q->row_signs ? vptq_arena_alloc(arena, in, 1, err) : NULL;
    return q->column_signs ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_quip_quantize(vptq_device *dev, const vptq_quip_settings *s,
                               const vptq_uniform_input *input, uint32_t matrix_id,
                               vptq_arena *arena, vptq_additive *a, double *damping_added,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_quip q = {.dev = dev,
                   .s = s,
                   .input = input,
                   .shape = vptq_quip_shape_of(s, input->out, input->in)};
    *damping_added = 0;
    vptq_arena_init(&q.scratch, dev->ctx->mem);
    VPTQ_TRY(vptq_additive_shape_check(&q.shape, err));
    VPTQ_TRY(allocate(&q, arena, err));
    VPTQ_TRY(vptq_quip_prepare(&q, matrix_id, damping_added, err));
    VPTQ_TRY(quantize(&q, err));
    VPTQ_TRY(pack(&q, arena, a, err));
out:
    vptq_arena_release(&q.scratch);
    return st;
}
