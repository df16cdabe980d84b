/* RTN, GPTQ and SparseGPT.  Work happens transposed, as in the column pass of lib/encoder: a
 * column is one run of floats, and a block of columns after another goes to the device's op. */
#include "lib/uniform/uniform.h"

#include <stdlib.h>

#include "lib/base/parallel.h"
#include "lib/uniform/clip.h"
#include "lib/uniform/factor.h"

enum { BLOCK = 128 }; /* columns whose errors are propagated together to those after them */

typedef struct quantizing {
    vptq_device *dev;
    const vptq_uniform_settings *s;
    const vptq_uniform_input *input;
    vptq_uniform_shape shape;
    vptq_arena scratch;
    uint32_t *order; /* [in] column at each position; NULL: its own */
    /* on the device */
    float *z;       /* [in, out] compensated weights */
    const float *u; /* [in, in]; NULL without compensation */
    float *err;     /* [BLOCK, out] */
    float *scale;   /* [groups, out] */
    uint8_t *zero;  /* [groups, out] */
    uint8_t *codes; /* [in, out] */
    uint8_t *mask;  /* [BLOCK, out] 1: pruned; NULL without a share to prune */
} quantizing;

static bool prunes(const quantizing *q)
{
    return q->s->prune.share > 0 || q->s->prune.m > 0;
}

vptq_uniform_shape vptq_uniform_shape_of(const vptq_uniform_settings *s, uint32_t out,
                                         uint32_t in)
{
    const bool whole = !s->group_size || s->group_size >= in;
    return (vptq_uniform_shape){.out = out,
                                .in = in,
                                .bits = s->bits,
                                .group_size = whole ? in : s->group_size,
                                .has_zeros = !s->symmetric,
                                .has_groups = s->compensate && s->order && !whole};
}

/* ---- before the pass ---- */

typedef struct ranked {
    float diagonal;
    uint32_t column;
} ranked;

static int by_diagonal(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->diagonal < y->diagonal || x->diagonal > y->diagonal)
        return x->diagonal < y->diagonal ? 1 : -1;
    return x->column < y->column ? -1 : 1;
}

static vptq_status make_order(quantizing *q, vptq_err *err)
{
    const size_t in = q->input->in;
    ranked *all = vptq_arena_alloc(&q->scratch, in, sizeof *all, err);
    q->order = all ? vptq_arena_alloc(&q->scratch, in, sizeof *q->order, err) : NULL;
    if (!q->order)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < in; i++)
        all[i] = (ranked){q->input->lower[i * (i + 1) / 2 + i], (uint32_t)i};
    qsort(all, in, sizeof *all, by_diagonal);
    for (size_t i = 0; i < in; i++)
        q->order[i] = all[i].column;
    return VPTQ_OK;
}

/* z = the weights, transposed and in order. */
static vptq_status transpose(quantizing *q, vptq_mirror *m, vptq_err *err)
{
    const size_t out = q->input->out, in = q->input->in;
    float *ones = vptq_arena_alloc(&q->scratch, in, sizeof *ones, err);
    float *zeros = ones ? vptq_arena_zalloc(&q->scratch, in, sizeof *zeros, err) : NULL;
    uint32_t *order = zeros ? vptq_arena_alloc(&q->scratch, in, sizeof *order, err) : NULL;
    if (!order)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < in; i++) {
        ones[i] = 1;
        order[i] = q->order ? q->order[i] : (uint32_t)i;
    }
    const vptq_normalize_args a = {.out = out,
                                   .in = in,
                                   .rows = out,
                                   .w = vptq_mirror_in(m, q->input->w, out * in, sizeof(float)),
                                   .order = vptq_mirror_in(m, order, in, sizeof *order),
                                   .scale = vptq_mirror_in(m, ones, in, sizeof *ones),
                                   .bias = vptq_mirror_in(m, zeros, in, sizeof *zeros),
                                   .z = q->z};
    VPTQ_CHECK(vptq_mirror_check(m, err));
    return q->dev->ops->normalize(q->dev->state, &a, err);
}

/* Pruning begins with columns that no input reaches, whose factor would hardly tell. */
static vptq_status clear_dead(const quantizing *q, vptq_err *err)
{
    const size_t rows = q->input->out;
    for (size_t i = 0; i < q->input->in; i++) {
        const size_t c = q->order ? q->order[i] : i;
        if (!(q->input->lower[c * (c + 1) / 2 + c] > 0))
            VPTQ_CHECK(
                q->dev->ops->clear(q->dev->state, q->z + i * rows, rows * sizeof *q->z, err));
    }
    return VPTQ_OK;
}

static vptq_status factor(quantizing *q, vptq_mirror *m, double *damping_added, vptq_err *err)
{
    const size_t in = q->input->in;
    const vptq_uniform_factor_args a = {.in = in,
                                        .lower = q->input->lower,
                                        .order = q->order,
                                        .ridge = q->s->ridge,
                                        .damping = q->s->damping};
    float *u = vptq_mirror_alloc(m, in, in * sizeof *u);
    q->u = u;
    return vptq_uniform_factor(m, &a, u, damping_added, err);
}

/* ---- the pass ---- */

/* Chooses what is pruned of the BLOCK columns from `first` on. */
static vptq_status choose_mask(const quantizing *q, size_t first, vptq_err *err)
{
    const size_t rows = q->input->out, in = q->input->in, left = in - first;
    const size_t cols = left < BLOCK ? left : BLOCK;
    const vptq_prune_mask_args a = {.cols = cols,
                                    .rows = rows,
                                    .z = q->z + first * rows,
                                    .u = q->u + first * in + first,
                                    .rank = (size_t)(q->s->prune.share * (double)(rows * cols)),
                                    .mask = q->mask,
                                    .ldz = rows,
                                    .ldu = in,
                                    .ldm = rows};
    return q->dev->ops->prune_mask(q->dev->state, &a, err);
}

/* Arguments of the pass over columns [first, first + cols): `codes` of group g, or none. */
static vptq_uniform_pass_args pass_of(const quantizing *q, bool codes, size_t g, size_t first,
                                      size_t cols)
{
    const size_t rows = q->input->out, in = q->input->in;
    const bool propagate = q->s->compensate || !codes;
    const bool prune = propagate && prunes(q);
    vptq_uniform_pass_args a = {.cols = cols,
                                .rows = rows,
                                .z = q->z + first * rows,
                                .u = propagate ? q->u + first * in + first : NULL,
                                .bits = q->s->bits,
                                .storage = q->s->storage,
                                .err = q->err,
                                .ldz = rows,
                                .ldu = in,
                                .ldc = rows,
                                .lde = rows,
                                .ldm = rows};
    if (codes) {
        a.scale = q->scale + g * rows;
        a.zero = q->zero + g * rows;
        a.codes = q->codes + first * rows;
    }
    if (prune && q->mask)
        a.mask = q->mask + first % BLOCK * rows;
    if (prune && !q->mask) {
        a.prune_n = q->s->prune.n;
        a.prune_m = q->s->prune.m;
    }
    return a;
}

static vptq_status pass_block(const quantizing *q, bool codes, size_t g, size_t first,
                              size_t cols, vptq_err *err)
{
    const vptq_device *dev = q->dev;
    const size_t rows = q->input->out, in = q->input->in, rest = in - first - cols;
    const vptq_uniform_pass_args block = pass_of(q, codes, g, first, cols);
    VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
    if (block.mask && first % BLOCK == 0)
        VPTQ_CHECK(choose_mask(q, first, err));
    VPTQ_CHECK(dev->ops->uniform_pass(dev->state, &block, err));
    if (!block.u || !rest)
        return VPTQ_OK;
    const vptq_gemm_args update = {.m = rest,
                                   .n = rows,
                                   .k = cols,
                                   .a = q->u + first * in + first + cols,
                                   .b = q->err,
                                   .c = q->z + (first + cols) * rows,
                                   .lda = in,
                                   .ldb = rows,
                                   .ldc = rows,
                                   .trans_a = true,
                                   .alpha = -1,
                                   .beta = 1};
    return dev->ops->gemm(dev->state, &update, err);
}

/* Scale and zero point of group g from its weights, of `cols` columns. */
static vptq_status find_range(const quantizing *q, size_t g, size_t cols, vptq_err *err)
{
    const size_t rows = q->input->out;
    const vptq_uniform_range_args range = {.cols = cols,
                                           .rows = rows,
                                           .z = q->z + g * q->shape.group_size * rows,
                                           .ldz = rows,
                                           .bits = q->s->bits,
                                           .symmetric = q->s->symmetric,
                                           .storage = q->s->storage,
                                           .scale = q->scale + g * rows,
                                           .zero = q->zero + g * rows};
    return q->dev->ops->uniform_range(q->dev->state, &range, err);
}

/* Columns [first, end) of group g.  A block ends where the next group begins, so that the range
 * of a group is that of weights with all earlier errors in them, and where the next mask does.
 */
static vptq_status pass_columns(const quantizing *q, bool codes, size_t g, size_t first,
                                size_t end, vptq_err *err)
{
    for (size_t cols; first < end; first += cols) {
        cols = q->mask ? BLOCK - first % BLOCK : BLOCK;
        cols = cols < end - first ? cols : end - first;
        VPTQ_CHECK(pass_block(q, codes, g, first, cols, err));
    }
    return VPTQ_OK;
}

static vptq_status pass_group(const quantizing *q, size_t g, vptq_err *err)
{
    const size_t first = g * q->shape.group_size, left = q->input->in - first;
    const size_t cols = left < q->shape.group_size ? left : q->shape.group_size;
    if (!q->s->clip)
        VPTQ_CHECK(find_range(q, g, cols, err));
    return pass_columns(q, true, g, first, first + cols, err);
}

/* ---- the result ---- */

typedef struct packing {
    const quantizing *q;
    const uint8_t *codes, *zero;
    const float *scale;
    uint32_t *words;
    float *scales;
    uint8_t *zeros;
} packing;

/* Rows [begin, end) of what is stored, from columns. */
static void pack_rows(void *arg, size_t begin, size_t end, int thread)
{
    const packing *p = arg;
    const vptq_uniform_shape *s = &p->q->shape;
    const uint32_t *order = p->q->order;
    const size_t words = vptq_uniform_row_words(s), groups = vptq_uniform_groups(s);
    (void)thread;
    for (size_t i = 0; i < s->in; i++)
        for (size_t r = begin; r < end; r++)
            vptq_bits_put(p->words + r * words, order ? order[i] : i, s->bits,
                          p->codes[i * s->out + r]);
    for (size_t g = 0; g < groups; g++)
        for (size_t r = begin; r < end; r++) {
            p->scales[r * groups + g] = p->scale[g * s->out + r];
            if (p->zeros)
                p->zeros[r * groups + g] = p->zero[g * s->out + r];
        }
}

/* Copies the downloaded arrays into *u. */
static vptq_status pack(const quantizing *q, packing *p, vptq_arena *arena, vptq_uniform *u,
                        vptq_err *err)
{
    enum { ROWS = 64 };
    const vptq_uniform_shape *s = &q->shape;
    const size_t groups = vptq_uniform_groups(s), numbers = s->out * groups;
    int32_t *group_of = NULL;
    p->words =
        vptq_arena_zalloc(arena, s->out * vptq_uniform_row_words(s), sizeof *p->words, err);
    p->scales = p->words ? vptq_arena_alloc(arena, numbers, sizeof *p->scales, err) : NULL;
    if (p->scales && s->has_zeros)
        p->zeros = vptq_arena_alloc(arena, numbers, sizeof *p->zeros, err);
    if (p->scales && s->has_groups)
        group_of = vptq_arena_alloc(arena, s->in, sizeof *group_of, err);
    if (!p->scales || (s->has_zeros && !p->zeros) || (s->has_groups && !group_of))
        return VPTQ_E_NOMEM;
    for (size_t i = 0; group_of && i < s->in; i++)
        group_of[q->order[i]] = (int32_t)(i / s->group_size);
    vptq_parallel_for(q->dev->ctx->threads, s->out, ROWS, pack_rows, p);
    *u = (vptq_uniform){.shape = *s,
                        .codes = p->words,
                        .scales = p->scales,
                        .zeros = p->zeros,
                        .groups = group_of};
    return VPTQ_OK;
}

/* Arrays of the device that every method has; z, if it is not NULL, gets the weights. */
static void allocate(quantizing *q, float *z, vptq_mirror *m)
{
    const size_t out = q->input->out, in = q->input->in;
    q->z = z ? vptq_mirror_take(m, z, in, out * sizeof *z, VPTQ_MIRROR_DOWNLOAD)
             : vptq_mirror_alloc(m, in, out * sizeof *q->z);
    q->err = vptq_mirror_alloc(m, BLOCK, out * sizeof *q->err);
    if (prunes(q) && !q->s->prune.m)
        q->mask = vptq_mirror_alloc(m, BLOCK, out);
}

/* Allocates the host arrays that the device fills, or of scales and zero points reads. */
static vptq_status allocate_codes(quantizing *q, packing *p, vptq_mirror *m, vptq_err *err)
{
    const size_t out = q->input->out, in = q->input->in;
    const size_t groups = vptq_uniform_groups(&q->shape);
    uint8_t *codes = vptq_arena_alloc(&q->scratch, in, out, err);
    float *scale =
        codes ? vptq_arena_alloc(&q->scratch, groups, out * sizeof *scale, err) : NULL;
    uint8_t *zero = scale ? vptq_arena_alloc(&q->scratch, groups, out, err) : NULL;
    const unsigned grid = q->s->clip ? VPTQ_MIRROR_UPLOAD : VPTQ_MIRROR_DOWNLOAD;
    if (!zero)
        return VPTQ_E_NOMEM;
    if (q->s->clip)
        VPTQ_CHECK(vptq_uniform_clip(q->dev, q->s, q->input, scale, zero, err));
    *p = (packing){.q = q, .codes = codes, .zero = zero, .scale = scale};
    q->codes = vptq_mirror_take(m, codes, in, out, VPTQ_MIRROR_DOWNLOAD);
    q->scale = vptq_mirror_take(m, scale, groups, out * sizeof *scale, grid);
    q->zero = vptq_mirror_take(m, zero, groups, out, grid);
    return VPTQ_OK;
}

/* Everything before the first column. */
static vptq_status prepare(quantizing *q, vptq_mirror *m, double *damping_added, vptq_err *err)
{
    VPTQ_CHECK(vptq_mirror_check(m, err));
    if (q->s->compensate && q->s->order)
        VPTQ_CHECK(make_order(q, err));
    VPTQ_CHECK(transpose(q, m, err));
    if (prunes(q))
        VPTQ_CHECK(clear_dead(q, err));
    return q->s->compensate || prunes(q) ? factor(q, m, damping_added, err) : VPTQ_OK;
}

static vptq_status run(quantizing *q, packing *p, double *damping_added, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mirror m = vptq_mirror_of(q->dev);
    allocate(q, NULL, &m);
    VPTQ_TRY(allocate_codes(q, p, &m, err));
    VPTQ_TRY(prepare(q, &m, damping_added, err));
    if (prunes(q) && !q->s->compensate)
        VPTQ_TRY(pass_columns(q, false, 0, 0, q->input->in, err));
    for (size_t g = 0; g < vptq_uniform_groups(&q->shape); g++)
        VPTQ_TRY(pass_group(q, g, err));
out:
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_uniform_quantize(vptq_device *dev, const vptq_uniform_settings *s,
                                  const vptq_uniform_input *input, vptq_arena *arena,
                                  vptq_uniform *u, double *damping_added, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    packing p;
    quantizing q = {.dev = dev,
                    .s = s,
                    .input = input,
                    .shape = vptq_uniform_shape_of(s, input->out, input->in)};
    *damping_added = 0;
    vptq_arena_init(&q.scratch, dev->ctx->mem);
    VPTQ_TRY(vptq_uniform_shape_check(&q.shape, err));
    VPTQ_TRY(run(&q, &p, damping_added, err));
    VPTQ_TRY(pack(&q, &p, arena, u, err));
out:
    vptq_arena_release(&q.scratch);
    return st;
}

/* ---- without codes ---- */

typedef struct rounding {
    const quantizing *q;
    const float *z; /* [in, out] */
    float *w;       /* [out, in] */
} rounding;

static void round_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rounding *t = arg;
    const size_t out = t->q->input->out, in = t->q->input->in;
    (void)thread;
    for (size_t i = 0; i < in; i++)
        for (size_t r = begin; r < end; r++)
            t->w[r * in + i] = vptq_round_to(t->q->s->storage, t->z[i * out + r]);
}

static vptq_status prune(quantizing *q, float *w, double *damping_added, vptq_err *err)
{
    enum { ROWS = 64 };
    const size_t out = q->input->out, in = q->input->in;
    vptq_status st = VPTQ_OK;
    float *z = vptq_arena_alloc(&q->scratch, in, out * sizeof *z, err);
    if (!z)
        return VPTQ_E_NOMEM;
    vptq_mirror m = vptq_mirror_of(q->dev);
    allocate(q, z, &m);
    VPTQ_TRY(prepare(q, &m, damping_added, err));
    VPTQ_TRY(pass_columns(q, false, 0, 0, in, err));
out:
    VPTQ_CHECK(vptq_mirror_end(&m, st, err));
    rounding t = {q, z, w};
    vptq_parallel_for(q->dev->ctx->threads, out, ROWS, round_rows, &t);
    return VPTQ_OK;
}

vptq_status vptq_uniform_prune(vptq_device *dev, const vptq_uniform_settings *s,
                               const vptq_uniform_input *input, float *w, double *damping_added,
                               vptq_err *err)
{
    quantizing q = {.dev = dev, .s = s, .input = input};
    *damping_added = 0;
    vptq_arena_init(&q.scratch, dev->ctx->mem);
    const vptq_status st = prune(&q, w, damping_added, err);
    vptq_arena_release(&q.scratch);
    return st;
}
