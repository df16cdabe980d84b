/* DB-LLM.  Work happens transposed: a column is one run of floats, and a thread takes LANES
 * rows through a group.  The product of the error and H is kept up to date: inside a group as
 * it changes, elsewhere by one product per group. */
#include "lib/uniform/dbllm.h"

#include <math.h>

#include "lib/backend/mirror.h"
#include "lib/base/parallel.h"
#include "lib/uniform/metric.h"

enum { LANES = 16, PLANES = 2, BITS = 2, COLUMNS = 8 };

typedef struct binarizing {
    vptq_device *dev;
    const vptq_dbllm_settings *s;
    const vptq_uniform_input *input;
    size_t group, groups; /* columns of a group, and their number */
    const float *h;       /* [in, in] H divided by its mean diagonal */
    uint8_t *codes;       /* [in, out] b1 + 2 b2 */
    float *alpha;         /* [PLANES, groups, out] */
    float *e, *g;         /* [in, out] error, and its product with h */
    float *delta;         /* [group, out] what the present group adds to e */
    double *loss;         /* [in] */
    float *scratch;       /* [threads][4][group][LANES] */
    size_t first, cols;   /* of the present group */
} binarizing;

static float *alpha_of(const binarizing *b, size_t plane, size_t g, size_t row)
{
    return b->alpha + (plane * b->groups + g) * b->input->out + row;
}

/* The weight of a code. */
static float level(float a1, float a2, unsigned code)
{
    return (code & 1 ? a1 : 0) + (code & 2 ? a2 : 0);
}

/* ---- the start ---- */

/* One group of a row: the step of 2-bit rounding with a zero point of 1, or of 2 for the levels
 * with the other sign, and with u = w or -w
 *
 *     b1 = 1 if u >= (a1 + a2) / 2       b2 = 1 if u <= a1 b1 + a2 / 2 */
static void start_group(const binarizing *b, size_t g, size_t row)
{
    const size_t out = b->input->out, in = b->input->in, first = g * b->group;
    const size_t end = in - first < b->group ? in : first + b->group;
    const float *w = b->input->w + row * in;
    float lo = 0, hi = 0, step;
    uint8_t zero;
    for (size_t c = first; c < end; c++) {
        lo = fminf(lo, w[c]);
        hi = fmaxf(hi, w[c]);
    }
    vptq_uniform_grid(BITS, false, b->s->storage, lo, hi, &step, &zero);
    const float sign = zero < 2 ? 1 : -1;
    float pair[PLANES] = {2 * step, -step};
    vptq_uniform_store(b->s->storage, pair, PLANES);
    for (size_t c = first; c < end; c++) {
        const float u = sign * w[c];
        const unsigned b1 = u >= (pair[0] + pair[1]) / 2;
        const unsigned b2 = u <= (b1 ? pair[0] : 0) + pair[1] / 2;
        b->codes[c * out + row] = (uint8_t)(b1 | b2 << 1);
    }
    *alpha_of(b, 0, g, row) = sign * pair[0];
    *alpha_of(b, 1, g, row) = sign * pair[1];
}

static void start_rows(void *arg, size_t begin, size_t end, int thread)
{
    const binarizing *b = arg;
    (void)thread;
    for (size_t r = begin; r < end; r++)
        for (size_t g = 0; g < b->groups; g++)
            start_group(b, g, r);
}

/* ---- errors ---- */

static void error_columns(void *arg, size_t begin, size_t end, int thread)
{
    const binarizing *b = arg;
    const size_t out = b->input->out, in = b->input->in;
    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const float *a1 = alpha_of(b, 0, c / b->group, 0),
                    *a2 = alpha_of(b, 1, c / b->group, 0);
        for (size_t r = 0; r < out; r++)
            b->e[c * out + r] =
                level(a1[r], a2[r], b->codes[c * out + r]) - b->input->w[r * in + c];
    }
}

static void loss_columns(void *arg, size_t begin, size_t end, int thread)
{
    const binarizing *b = arg;
    const size_t out = b->input->out;
    (void)thread;
    for (size_t c = begin; c < end; c++) {
        b->loss[c] = 0;
        for (size_t i = c * out; i < (c + 1) * out; i++)
            b->loss[c] += (double)b->e[i] * (double)b->g[i];
    }
}

/* e and g anew; *loss = tr(E h E^T). */
static vptq_status measure(binarizing *b, vptq_mirror *m, const float *h, const float *e,
                           float *g, double *loss, vptq_err *err)
{
    const vptq_device *dev = b->dev;
    const size_t out = b->input->out, in = b->input->in, bytes = in * out * sizeof *g;
    const vptq_gemm_args product = {.m = in,
                                    .n = out,
                                    .k = in,
                                    .a = h,
                                    .b = e,
                                    .c = g,
                                    .lda = in,
                                    .ldb = out,
                                    .ldc = out,
                                    .alpha = 1};
    vptq_parallel_for(dev->ctx->threads, in, COLUMNS, error_columns, b);
    VPTQ_CHECK(vptq_mirror_push(m, b->e, bytes, err));
    VPTQ_CHECK(dev->ops->gemm(dev->state, &product, err));
    VPTQ_CHECK(vptq_mirror_pull(m, b->g, bytes, err));
    vptq_parallel_for(dev->ctx->threads, in, COLUMNS, loss_columns, b);
    *loss = 0;
    for (size_t c = 0; c < in; c++)
        *loss += b->loss[c];
    return VPTQ_OK;
}

/* ---- one group ---- */

/* LANES rows of the present group; rows after the last one are 0. */
typedef struct panel {
    const binarizing *b;
    size_t row, rows, index;            /* of the group */
    float *g, *delta, *product[PLANES]; /* [cols][LANES]; product = H_gg times the planes */
    float alpha[PLANES][LANES];
} panel;

static unsigned code_at(const panel *p, size_t c, size_t l)
{
    return l < p->rows ? p->b->codes[(p->b->first + c) * p->b->input->out + p->row + l] : 0;
}

static void load(panel *p)
{
    const size_t out = p->b->input->out;
    for (size_t c = 0; c < p->b->cols; c++)
        for (size_t l = 0; l < LANES; l++) {
            p->g[c * LANES + l] =
                l < p->rows ? p->b->g[(p->b->first + c) * out + p->row + l] : 0;
            p->delta[c * LANES + l] = 0;
        }
    for (size_t k = 0; k < PLANES; k++)
        for (size_t l = 0; l < LANES; l++)
            p->alpha[k][l] = l < p->rows ? *alpha_of(p->b, k, p->index, p->row + l) : 0;
}

/* product = H_gg b for both planes. */
static void multiply_planes(panel *p)
{
    const binarizing *b = p->b;
    for (size_t k = 0; k < PLANES; k++)
        for (size_t i = 0; i < b->cols * LANES; i++)
            p->product[k][i] = 0;
    for (size_t c = 0; c < b->cols; c++) {
        const float *h = b->h + (b->first + c) * b->input->in + b->first;
        float bit[PLANES][LANES];
        for (size_t l = 0; l < LANES; l++) {
            bit[0][l] = (float)(code_at(p, c, l) & 1);
            bit[1][l] = (float)(code_at(p, c, l) >> 1);
        }
        for (size_t k = 0; k < PLANES; k++)
            for (size_t i = 0; i < b->cols; i++)
                for (size_t l = 0; l < LANES; l++)
                    p->product[k][i * LANES + l] += h[i] * bit[k][l];
    }
}

/* The quadratic in the steps d of a1 and a2 of a row: 2 r . d + d n d. */
typedef struct quadratic {
    double r[PLANES], n11, n12, n22;
} quadratic;

static quadratic quadratic_of(const panel *p, size_t l)
{
    quadratic q = {.n11 = 0};
    for (size_t c = 0; c < p->b->cols; c++) {
        const size_t i = c * LANES + l;
        const unsigned code = code_at(p, c, l);
        if (code & 1) {
            q.r[0] += (double)p->g[i];
            q.n11 += (double)p->product[0][i];
            q.n12 += (double)p->product[1][i];
        }
        if (code & 2) {
            q.r[1] += (double)p->g[i];
            q.n22 += (double)p->product[1][i];
        }
    }
    return q;
}

/* The step to the minimum; of one number alone if the planes are nearly the same. */
static void solve(const quadratic *q, double d[PLANES])
{
    const double det = q->n11 * q->n22 - q->n12 * q->n12;
    d[0] = d[1] = 0;
    if (det > 1e-6 * q->n11 * q->n22) {
        d[0] = (q->r[1] * q->n12 - q->r[0] * q->n22) / det;
        d[1] = (q->r[0] * q->n12 - q->r[1] * q->n11) / det;
    } else if (q->n11 > q->n22) {
        d[0] = -q->r[0] / q->n11;
    } else if (q->n22 > 0) {
        d[1] = -q->r[1] / q->n22;
    }
}

/* Moves a1 and a2 of a row unless the loss would not fall after rounding. */
static void fit_row(panel *p, size_t l)
{
    const quadratic q = quadratic_of(p, l);
    double d[PLANES];
    float next[PLANES];
    solve(&q, d);
    for (size_t k = 0; k < PLANES; k++)
        next[k] = (float)((double)p->alpha[k][l] + d[k]);
    vptq_uniform_store(p->b->s->storage, next, PLANES);
    for (size_t k = 0; k < PLANES; k++)
        d[k] = (double)next[k] - (double)p->alpha[k][l];
    const double change = 2 * (q.r[0] * d[0] + q.r[1] * d[1]) + q.n11 * d[0] * d[0] +
                          2 * q.n12 * d[0] * d[1] + q.n22 * d[1] * d[1];
    if (!(change < 0))
        return;
    for (size_t c = 0; c < p->b->cols; c++) {
        const size_t i = c * LANES + l;
        p->delta[i] += level((float)d[0], (float)d[1], code_at(p, c, l));
        p->g[i] += (float)d[0] * p->product[0][i] + (float)d[1] * p->product[1][i];
    }
    for (size_t k = 0; k < PLANES; k++)
        p->alpha[k][l] = next[k];
}

/* Gives the weight of column c the level with the smallest loss in every row. */
static void choose_levels(panel *p, size_t c)
{
    const binarizing *b = p->b;
    const float *h = b->h + (b->first + c) * b->input->in + b->first;
    float step[LANES];
    for (size_t l = 0; l < LANES; l++) {
        const unsigned code = code_at(p, c, l);
        const float now = level(p->alpha[0][l], p->alpha[1][l], code);
        float least = 0;
        unsigned best = code;
        step[l] = 0;
        for (unsigned k = 0; k < 1U << BITS; k++) {
            const float d = level(p->alpha[0][l], p->alpha[1][l], k) - now;
            const float change = d * (2 * p->g[c * LANES + l] + d * h[c]);
            if (change < least) {
                least = change;
                best = k;
                step[l] = d;
            }
        }
        p->delta[c * LANES + l] += step[l];
        if (l < p->rows)
            b->codes[(b->first + c) * b->input->out + p->row + l] = (uint8_t)best;
    }
    for (size_t i = 0; i < b->cols; i++)
        for (size_t l = 0; l < LANES; l++)
            p->g[i * LANES + l] += h[i] * step[l];
}

static void group_rows(void *arg, size_t begin, size_t end, int thread)
{
    const binarizing *b = arg;
    const size_t out = b->input->out, size = b->group * LANES;
    float *scratch = b->scratch + (size_t)thread * 4 * size;
    panel p = {.b = b,
               .row = begin,
               .rows = end - begin,
               .index = b->first / b->group,
               .g = scratch,
               .delta = scratch + size,
               .product = {scratch + 2 * size, scratch + 3 * size}};
    load(&p);
    multiply_planes(&p);
    for (size_t l = 0; l < p.rows; l++)
        fit_row(&p, l);
    for (size_t c = 0; c < b->cols; c++)
        choose_levels(&p, c);
    for (size_t l = 0; l < p.rows; l++) {
        for (size_t k = 0; k < PLANES; k++)
            *alpha_of(b, k, p.index, begin + l) = p.alpha[k][l];
        for (size_t c = 0; c < b->cols; c++)
            b->delta[c * out + begin + l] = p.delta[c * LANES + l];
    }
}

/* ---- rounds ---- */

/* g += h delta over all columns. */
static vptq_status improve_group(binarizing *b, vptq_mirror *m, const float *h,
                                 const float *delta, float *g, vptq_err *err)
{
    const vptq_device *dev = b->dev;
    const size_t out = b->input->out, in = b->input->in;
    const vptq_gemm_args update = {.m = in,
                                   .n = out,
                                   .k = b->cols,
                                   .a = h + b->first,
                                   .b = delta,
                                   .c = g,
                                   .lda = in,
                                   .ldb = out,
                                   .ldc = out,
                                   .alpha = 1,
                                   .beta = 1};
    VPTQ_CHECK(vptq_check_cancel(dev->ctx, err));
    VPTQ_CHECK(vptq_mirror_pull(m, b->g + b->first * out, b->cols * out * sizeof *g, err));
    vptq_parallel_for(dev->ctx->threads, out, LANES, group_rows, b);
    VPTQ_CHECK(vptq_mirror_push(m, b->delta, b->cols * out * sizeof *delta, err));
    return dev->ops->gemm(dev->state, &update, err);
}

static vptq_status improve(binarizing *b, vptq_mirror *m, vptq_err *err)
{
    const size_t out = b->input->out, in = b->input->in, row = out * sizeof *b->g;
    const float *h = vptq_mirror_in(m, b->h, in, in * sizeof *h);
    const float *e = vptq_mirror_take(m, b->e, in, row, 0);
    const float *delta = vptq_mirror_take(m, b->delta, b->group, row, 0);
    float *g = vptq_mirror_take(m, b->g, in, row, 0);
    double before, loss;
    VPTQ_CHECK(vptq_mirror_check(m, err));
    VPTQ_CHECK(measure(b, m, h, e, g, &before, err));
    for (uint32_t round = 0; round < b->s->rounds; round++) {
        for (b->first = 0; b->first < in; b->first += b->group) {
            b->cols = in - b->first < b->group ? in - b->first : b->group;
            VPTQ_CHECK(improve_group(b, m, h, delta, g, err));
        }
        VPTQ_CHECK(measure(b, m, h, e, g, &loss, err));
        if (!(loss < (1 - b->s->tolerance) * before))
            break;
        before = loss;
    }
    return VPTQ_OK;
}

/* ---- the result ---- */

vptq_additive_shape vptq_dbllm_shape_of(const vptq_dbllm_settings *s, uint32_t out, uint32_t in)
{
    const uint32_t size = s->group_size;
    return (vptq_additive_shape){.out = out,
                                 .in = in,
                                 .v = 1,
                                 .stages = PLANES,
                                 .bits = {1, 1},
                                 .block_rows = 1,
                                 .block_columns = size && size < in ? size : in,
                                 .sparse = true};
}

static vptq_status pack(const binarizing *b, vptq_arena *arena, vptq_additive *a, vptq_err *err)
{
    const size_t out = b->input->out, in = b->input->in, blocks = out * b->groups;
    for (uint32_t k = 0; k < PLANES; k++) {
        const size_t words = vptq_additive_row_words(&a->shape, k);
        uint32_t *codes = vptq_arena_zalloc(arena, out * words, sizeof *codes, err);
        float *entries =
            codes ? vptq_arena_zalloc(arena, blocks, 2 * sizeof *entries, err) : NULL;
        if (!entries)
            return VPTQ_E_NOMEM;
        for (size_t c = 0; c < in; c++)
            for (size_t r = 0; r < out; r++)
                vptq_bits_put(codes + r * words, c, 1, b->codes[c * out + r] >> k & 1);
        for (size_t i = 0; i < blocks; i++)
            entries[2 * i + 1] = *alpha_of(b, k, i % b->groups, i / b->groups);
        a->codes[k] = codes;
        a->codebooks[k] = entries;
    }
    return VPTQ_OK;
}

static vptq_status allocate(binarizing *b, vptq_arena *scratch, vptq_err *err)
{
    const size_t out = b->input->out, in = b->input->in;
    const size_t threads = (size_t)b->dev->ctx->threads;
    float *h = vptq_arena_alloc(scratch, in, in * sizeof *h, err);
    b->h = h;
    b->codes = h ? vptq_arena_alloc(scratch, in, out, err) : NULL;
    b->alpha = b->codes
                   ? vptq_arena_alloc(scratch, PLANES * b->groups, out * sizeof *b->alpha, err)
                   : NULL;
    b->e = b->alpha ? vptq_arena_alloc(scratch, in, out * sizeof *b->e, err) : NULL;
    b->g = b->e ? vptq_arena_alloc(scratch, in, out * sizeof *b->g, err) : NULL;
    b->delta = b->g ? vptq_arena_alloc(scratch, b->group, out * sizeof *b->delta, err) : NULL;
    b->loss = b->delta ? vptq_arena_alloc(scratch, in, sizeof *b->loss, err) : NULL;
    b->scratch = b->loss ? vptq_arena_alloc(scratch, threads * 4 * b->group,
                                            LANES * sizeof *b->scratch, err)
                         : NULL;
    if (!b->scratch)
        return VPTQ_E_NOMEM;
    return vptq_uniform_metric(b->dev, b->input, h, err);
}

vptq_status vptq_dbllm_quantize(vptq_device *dev, const vptq_dbllm_settings *s,
                                const vptq_uniform_input *input, vptq_arena *arena,
                                vptq_additive *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_additive_shape shape = vptq_dbllm_shape_of(s, input->out, input->in);
    VPTQ_CHECK(vptq_additive_shape_check(&shape, err));
    const size_t group = shape.block_columns;
    binarizing b = {.dev = dev,
                    .s = s,
                    .input = input,
                    .group = group,
                    .groups = (input->in + group - 1) / group};
    vptq_arena scratch;
    *a = (vptq_additive){.shape = shape};
    vptq_arena_init(&scratch, dev->ctx->mem);
    vptq_mirror m = vptq_mirror_of(dev);
    VPTQ_TRY(allocate(&b, &scratch, err));
    vptq_parallel_for(dev->ctx->threads, input->out, LANES, start_rows, &b);
    VPTQ_TRY(vptq_mirror_end(&m, improve(&b, &m, err), err));
    VPTQ_TRY(pack(&b, arena, a, err));
out:
    vptq_arena_release(&scratch);
    return st;
}
