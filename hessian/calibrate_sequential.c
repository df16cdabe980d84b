/* Sequential calibration: both streams go half a block at a time.  x leaves a half when the
 * input at its end (of o or down) is measured.  x~ runs through it twice: with the model's o or
 * down to measure the drift, and later with the quantized matrix. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hessian/calibrate_internal.h"
#include "lib/base/comm.h"
#include "lib/base/text.h"

enum {
    PRODUCT_TOKENS = 256,         /* summed in float, as in the Hessians */
    MAX_PRODUCT_FLOATS = 1 << 22, /* computed, and downloaded, at a time */
    MAX_TERMS = 3                 /* of one input */
};

/* A shift or drift [hidden, n]. */
typedef struct shift_sum {
    double *chunk; /* in device memory; NULL = none */
    vptq_total total;
} shift_sum;

/* All arrays are in device memory. */
typedef struct vptq_second_stream {
    vptq_hidden_states states; /* x~ */
    shift_sum sum;             /* of the input that was run last */
    shift_sum term[MAX_TERMS]; /* the same with the weights of its terms */
    float *record;             /* [group_rows, largest n]: x, then x - x~, or x~ */
    float *after;              /* [group_rows, hidden]: h~ after the half, then h - h~ */
    float *rows;    /* [group_rows, hidden]: a group of x if its stream is elsewhere; NULL on
                       devices that work in host memory */
    float *scaled;  /* [length, hidden]: weighted differences; NULL = no weights of tokens */
    float *product; /* [product_floats] */
    size_t product_floats;
} second_stream;

/* ---- memory ---- */

static size_t largest_input(const vptq_calibrator *c)
{
    size_t max = 0;
    for (int i = 0; i < vptq_input_count(&c->model->desc->experts); i++)
        max = c->sum[i].n > max ? c->sum[i].n : max;
    return max;
}

static vptq_status device_floats(vptq_calibrator *c, size_t rows, size_t n, float **out,
                                 vptq_err *err)
{
    void *p = NULL;
    vptq_status st = c->dev->ops->alloc(c->dev->state, rows, n * sizeof(float), &p, err);
    *out = p;
    return st;
}

/* The place of a term in s->term: its position among the linear layers of its input. */
static int slot_of(vptq_linear term)
{
    int slot = 0;
    for (int l = (int)term; l-- > 0;)
        slot += vptq_linear_input((vptq_linear)l) == vptq_linear_input(term);
    return slot;
}

static vptq_status open_sum(vptq_calibrator *c, size_t columns, shift_sum *sum, vptq_err *err)
{
    void *p = NULL;
    const size_t hidden = c->model->desc->hidden;
    VPTQ_CHECK(
        c->dev->ops->alloc(c->dev->state, hidden, columns * sizeof *sum->chunk, &p, err));
    sum->chunk = p;
    return vptq_total_init(c->dev, hidden * columns, &sum->total, err);
}

static void close_sum(vptq_calibrator *c, shift_sum *sum)
{
    c->dev->ops->release(c->dev->state, sum->chunk);
    vptq_total_release(&sum->total);
}

static vptq_status open_sums(vptq_calibrator *c, second_stream *s, vptq_err *err)
{
    size_t columns[MAX_TERMS] = {0};

    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const int slot = slot_of((vptq_linear)l);
        if (c->term[l].dev && c->term[l].n > columns[slot])
            columns[slot] = c->term[l].n;
    }
    for (int slot = 0; slot < MAX_TERMS; slot++)
        if (columns[slot])
            VPTQ_CHECK(open_sum(c, columns[slot], &s->term[slot], err));
    return open_sum(c, largest_input(c), &s->sum, err);
}

/* Memory in which the forward pass changes hidden states where they are. */
static vptq_status open_after(vptq_calibrator *c, second_stream *s, vptq_err *err)
{
    const size_t hidden = c->model->desc->hidden;

    if (c->dev->ops->host_memory)
        return device_floats(c, c->group_rows, hidden, &s->after, err);
    s->after = vptq_forward_hidden_alloc(c->forward, c->group_rows);
    if (!s->after)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of device memory for a group of windows");
    return device_floats(c, c->group_rows, hidden, &s->rows, err);
}

/* More than one row of n. */
static size_t product_floats(size_t n)
{
    return n * n < MAX_PRODUCT_FLOATS ? n * n : MAX_PRODUCT_FLOATS;
}

vptq_status vptq_calibrator_open_second(vptq_calibrator *c, const char *dir, vptq_err *err)
{
    const size_t hidden = c->model->desc->hidden, n = largest_input(c);
    second_stream *s = vptq_arena_zalloc(&c->arena, 1, sizeof *s, err);

    if (!s)
        return VPTQ_E_NOMEM;
    s->states.fd = -1;
    c->second = s;
    VPTQ_CHECK(open_sums(c, s, err));
    VPTQ_CHECK(device_floats(c, c->group_rows, n, &s->record, err));
    VPTQ_CHECK(open_after(c, s, err));
    if (c->weight)
        VPTQ_CHECK(device_floats(c, c->opt.length, hidden, &s->scaled, err));
    s->product_floats = product_floats(n);
    VPTQ_CHECK(device_floats(c, 1, s->product_floats, &s->product, err));
    return vptq_calibrator_open_stream(c, dir, 2, &s->states, err);
}

size_t vptq_calibrator_second_bytes(const vptq_calibrator *c, const vptq_model_desc *d,
                                    size_t rows)
{
    const bool host = c->dev->ops->host_memory;
    const size_t hidden = d->hidden;
    size_t largest = 0, columns = 0, slots[MAX_TERMS] = {0};
    for (int i = 0; i < vptq_input_count(&d->experts); i++)
        if (vptq_input_occurs(d, i) && vptq_input_size(d, i) > largest)
            largest = vptq_input_size(d, i);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const size_t n = vptq_input_size(d, vptq_linear_input(l));
        if (vptq_term_of(c->opt.weights, l) == l && n > slots[slot_of(l)])
            slots[slot_of(l)] = n;
    }
    for (int slot = 0; slot < MAX_TERMS; slot++)
        columns += slots[slot];
    const size_t sums = hidden * (columns + largest);
    size_t floats = rows * (largest + hidden) + product_floats(largest);
    if (c->opt.weights > VPTQ_WEIGHTS_SINK)
        floats += c->opt.length * hidden;
    return vptq_total_bytes(c->dev, sums) +
           (host ? sums * sizeof(double) + floats * sizeof(float) : 0);
}

void vptq_calibrator_close_second(vptq_calibrator *c)
{
    second_stream *s = c->second;
    if (!s)
        return;
    const vptq_backend *ops = c->dev->ops;
    vptq_hidden_states_close(&s->states);
    if (ops->host_memory)
        ops->release(c->dev->state, s->after);
    else
        vptq_forward_hidden_free(c->forward, s->after);
    float *const arrays[] = {s->record, s->rows, s->scaled, s->product};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        ops->release(c->dev->state, arrays[i]);
    close_sum(c, &s->sum);
    for (int slot = 0; slot < MAX_TERMS; slot++)
        close_sum(c, &s->term[slot]);
    c->second = NULL;
}

vptq_hidden_states *vptq_calibrator_second(const vptq_calibrator *c)
{
    return c->second ? &c->second->states : NULL;
}

/* ---- sums of products ---- */

/* sum [m, n] += d^T x. */
typedef struct product {
    size_t tokens, m, n;
    const float *d; /* [tokens, m] */
    const float *x; /* [tokens, n] */
    double *sum;
} product;

/* For at most PRODUCT_TOKENS tokens; some rows at a time. */
static vptq_status add_product(vptq_calibrator *c, const product *p, vptq_err *err)
{
    const vptq_backend *ops = c->dev->ops;
    second_stream *s = c->second;
    const size_t m = p->m, n = p->n, step = s->product_floats / n;

    for (size_t i = 0; i < m; i += step) {
        const size_t rows = m - i < step ? m - i : step;
        const vptq_gemm_args g = {.m = rows,
                                  .n = n,
                                  .k = p->tokens,
                                  .a = p->d + i,
                                  .b = p->x,
                                  .c = s->product,
                                  .lda = m,
                                  .ldb = n,
                                  .ldc = n,
                                  .trans_a = true,
                                  .alpha = 1};
        const vptq_widen_args add = {rows * n, s->product, p->sum + i * n};
        VPTQ_CHECK(ops->gemm(c->dev->state, &g, err));
        VPTQ_CHECK(ops->add_widened(c->dev->state, &add, err));
    }
    return VPTQ_OK;
}

/* For a window. */
static vptq_status add_window(vptq_calibrator *c, product p, vptq_err *err)
{
    const size_t tokens = p.tokens;
    size_t first;
    const vptq_outside_args nonzero = {.n = tokens * p.m, .x = p.d, .first = &first};

    VPTQ_CHECK(c->dev->ops->first_outside(c->dev->state, &nonzero, err));
    if (first == nonzero.n) /* before the first quantized matrix both streams are the same */
        return VPTQ_OK;
    for (size_t t = 0; t < tokens;
         t += p.tokens, p.d += p.tokens * p.m, p.x += p.tokens * p.n) {
        p.tokens = tokens - t < PRODUCT_TOKENS ? tokens - t : PRODUCT_TOKENS;
        VPTQ_CHECK(add_product(c, &p, err));
    }
    return VPTQ_OK;
}

/* ---- hooks ---- */

static float *record_of(const vptq_calibrator *c, size_t sequence, size_t dim)
{
    return c->second->record + sequence * c->opt.length * dim;
}

/* First stream: keeps x of the group. */
static vptq_status on_first(void *arg, vptq_input input, size_t sequence, size_t tokens,
                            size_t dim, const float *x, vptq_err *err)
{
    vptq_calibrator *c = arg;
    if (input != c->next)
        return VPTQ_OK;
    return c->dev->ops->copy(c->dev->state, record_of(c, sequence, dim), x,
                             tokens * dim * sizeof *x, err);
}

static void report(const vptq_calibrator *c, size_t sequence)
{
    char detail[64];
    const double windows = (double)vptq_calibrator_own_windows(c);
    const double input = ((double)c->next + (double)(c->first + sequence + 1) / windows) /
                         vptq_input_count(&c->model->desc->experts);

    snprintf(detail, sizeof detail, "layer %u of 0-%u, %s", c->layer, c->last,
             vptq_input_name(c->next).text);
    vptq_progress_share(c->dev->ctx, "hessian", vptq_plural(c->last + 1, "layer", "layers"),
                        c->layer + (input >= 1), c->last + 1,
                        (c->layer + input) / (c->last + 1.0), detail);
}

/* z = x - y, arrays [rows, dim]; z may be either. */
static vptq_status subtract(vptq_calibrator *c, size_t rows, size_t dim, const float *x,
                            const float *y, float *z, vptq_err *err)
{
    const vptq_subtract_args a = {rows, dim, x, y, z, dim, dim, dim};
    return c->dev->ops->subtract(c->dev->state, &a, err);
}

/* The sum of a term += that of one window: differences d [tokens, hidden] weighted by
 * c->weight, times x [tokens, n]. */
static vptq_status add_weighted(vptq_calibrator *c, vptq_linear term, size_t tokens,
                                const float *d, const float *x, vptq_err *err)
{
    second_stream *s = c->second;
    const size_t hidden = c->model->desc->hidden;
    const vptq_affine_args scale = {.cols = tokens,
                                    .rows = hidden,
                                    .valid = hidden,
                                    .x = d,
                                    .a = c->weight,
                                    .y = s->scaled,
                                    .ldx = hidden,
                                    .ldy = hidden};

    VPTQ_CHECK(c->dev->ops->affine(c->dev->state, &scale, err));
    return add_window(
        c,
        (product){tokens, hidden, c->term[term].n, s->scaled, x, s->term[slot_of(term)].chunk},
        err);
}

/* Guided weights: sums x of window w at the present input, and the weighted differences d
 * unless they are known later. */
static vptq_status add_guided(vptq_calibrator *c, size_t w, size_t tokens, const float *x,
                              const float *d, vptq_err *err)
{
    for (int i = 0; i < VPTQ_LINEAR_DENSE; i++) {
        const vptq_linear l = (vptq_linear)i;
        if (c->opt.weights != VPTQ_WEIGHTS_GUIDED || !vptq_calibrator_has_term(c, l))
            continue;
        VPTQ_CHECK(vptq_calibrator_add_guided(c, l, w, tokens, x, err));
        if (d)
            VPTQ_CHECK(add_weighted(c, l, tokens, d, x, err));
    }
    return VPTQ_OK;
}

/* Second stream, same group: sums x~ and the shift, or keeps x~ for the drift. */
static vptq_status on_second(void *arg, vptq_input input, size_t sequence, size_t tokens,
                             size_t dim, const float *x, vptq_err *err)
{
    vptq_calibrator *c = arg;
    second_stream *s = c->second;
    float *d = record_of(c, sequence, dim);

    if (input != c->next)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_calibrator_add(c, input, tokens, x, err));
    report(c, sequence);
    if (vptq_calibrator_drifts(input)) /* summed when it is known */
        return c->dev->ops->copy(c->dev->state, d, x, tokens * dim * sizeof *x, err);
    VPTQ_CHECK(subtract(c, tokens, dim, d, x, d, err));
    VPTQ_CHECK(add_window(c, (product){tokens, dim, dim, d, x, s->sum.chunk}, err));
    VPTQ_CHECK(add_guided(c, c->first + sequence, tokens, x, d, err));
    if (input != VPTQ_INPUT_QKV || c->opt.weights != VPTQ_WEIGHTS_SINK)
        return VPTQ_OK;
    double *term = s->term[slot_of(VPTQ_LINEAR_K)].chunk;
    return add_window(c, (product){1, dim, dim, d, x, term}, err);
}

/* Second stream, inputs after which no difference is summed: those of experts. */
static vptq_status on_expert(void *arg, vptq_input input, size_t sequence, size_t tokens,
                             size_t dim, const float *x, vptq_err *err)
{
    vptq_calibrator *c = arg;
    (void)dim;
    if (input != c->next)
        return VPTQ_OK;
    report(c, sequence);
    return vptq_calibrator_add(c, input, tokens, x, err);
}

/* Second stream, after on_second of the same window. */
static vptq_status on_attention(void *arg, size_t sequence, size_t tokens, size_t dim,
                                const float *x, const vptq_attention_args *a, vptq_err *err)
{
    vptq_calibrator *c = arg;
    const float *d = record_of(c, sequence, dim);

    VPTQ_CHECK(vptq_calibrator_attention(arg, sequence, tokens, dim, x, a, err));
    return add_weighted(c, VPTQ_LINEAR_K, tokens, d, x, err);
}

/* ---- steps ---- */

/* Calls fn for the sums of the present input. */
static vptq_status each_sum(vptq_calibrator *c, int parts,
                            vptq_status (*fn)(vptq_calibrator *c, shift_sum *sum, int parts,
                                              vptq_err *err),
                            vptq_err *err)
{
    if (!vptq_calibrator_shifts(c->next))
        return VPTQ_OK;
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_calibrator_has_term(c, (vptq_linear)l))
            VPTQ_CHECK(fn(c, &c->second->term[slot_of((vptq_linear)l)], parts, err));
    return fn(c, &c->second->sum, parts, err);
}

static size_t shift_size(const vptq_calibrator *c)
{
    return (size_t)c->model->desc->hidden * c->sum[c->next].n;
}

static vptq_status clear_total(vptq_calibrator *c, shift_sum *sum, int parts, vptq_err *err)
{
    (void)parts;
    (void)err;
    vptq_total_clear(&sum->total, shift_size(c));
    return VPTQ_OK;
}

static vptq_status clear_chunk(vptq_calibrator *c, shift_sum *sum, int parts, vptq_err *err)
{
    (void)parts;
    return c->dev->ops->clear(c->dev->state, sum->chunk, shift_size(c) * sizeof *sum->chunk,
                              err);
}

/* As vptq_hessian_sum_share. */
static vptq_status share(vptq_calibrator *c, shift_sum *sum, int parts, vptq_err *err)
{
    if (vptq_comm_rank(c->dev->ctx) < parts)
        VPTQ_CHECK(vptq_total_add(&sum->total, 0, c->model->desc->hidden, c->sum[c->next].n,
                                  false, sum->chunk, err));
    return vptq_total_share(&sum->total, parts, err);
}

static vptq_status end(vptq_calibrator *c, shift_sum *sum, int parts, vptq_err *err)
{
    (void)c;
    (void)parts;
    return vptq_total_finish(&sum->total, err);
}

/* Windows that run together. */
typedef struct group {
    size_t row, rows, windows; /* the first row, and counts */
    bool sum;
    const vptq_weight *linear; /* the quantized weights of the block */
} group;

static vptq_status run_rows(vptq_calibrator *c, vptq_hidden_states *states, const group *g,
                            bool keep, const vptq_block_hooks *hooks, vptq_err *err)
{
    float *rows;

    VPTQ_CHECK(vptq_hidden_states_get(states, g->row, g->rows, false, &rows, err));
    /* all windows have one length, so every group has the row offsets of the first */
    VPTQ_CHECK(
        vptq_forward_block_with(c->forward, c->layer, c->starts, g->windows, rows, hooks, err));
    if (keep)
        VPTQ_CHECK(vptq_hidden_states_keep(states, g->row, g->rows, err));
    return VPTQ_OK;
}

/* The rows of a group in device memory: where they are, or copied to `buffer`. */
static vptq_status rows_on_device(vptq_calibrator *c, vptq_hidden_states *states,
                                  const group *g, float *buffer, const float **rows,
                                  vptq_err *err)
{
    const vptq_backend *ops = c->dev->ops;
    float *p;

    VPTQ_CHECK(vptq_hidden_states_get(states, g->row, g->rows, false, &p, err));
    *rows = p;
    if (ops->host_memory || states->resident)
        return VPTQ_OK;
    *rows = buffer;
    return ops->upload(c->dev->state, buffer, p, g->rows * states->dim * sizeof *p, err);
}

/* The half that an input belongs to. */
static vptq_block_half half_of(vptq_input input)
{
    return input <= VPTQ_INPUT_O ? VPTQ_BLOCK_ATTENTION : VPTQ_BLOCK_FEED_FORWARD;
}

/* Moves x~ to the end of a half whose matrices are all quantized. */
static vptq_status finish_half(vptq_calibrator *c, const group *g, vptq_block_half half,
                               vptq_err *err)
{
    const vptq_block_hooks hooks = {.linear = g->linear, .half = half};
    return run_rows(c, &c->second->states, g, true, &hooks, err);
}

/* Sums at the input of q, k and v or of gate and up; x at that input is recorded first. */
static vptq_status sum_shift(vptq_calibrator *c, const group *g, vptq_err *err)
{
    vptq_block_hooks hooks = {
        .arg = c, .hook = on_first, .half = half_of(c->next), .stop = true, .last = c->next};

    VPTQ_CHECK(run_rows(c, &c->states, g, false, &hooks, err));
    hooks.hook = on_second;
    hooks.linear = g->linear;
    if (c->next == VPTQ_INPUT_QKV && c->opt.weights == VPTQ_WEIGHTS_ATTENTION) {
        hooks.last = VPTQ_INPUT_O; /* with queries and keys that are not quantized yet */
        hooks.attention = on_attention;
    }
    return run_rows(c, &c->second->states, g, false, &hooks, err);
}

/* Sums at the input of o or down, after x has passed the half: x~ passes it in a copy only. */
static vptq_status sum_drift(vptq_calibrator *c, const group *g, vptq_err *err)
{
    second_stream *s = c->second;
    const size_t hidden = c->model->desc->hidden, length = c->opt.length;
    const size_t n = c->sum[c->next].n;
    const vptq_block_hooks hooks = {
        .arg = c, .hook = on_second, .linear = g->linear, .half = half_of(c->next)};
    const float *rows;

    VPTQ_CHECK(rows_on_device(c, &s->states, g, s->after, &rows, err));
    if (rows != s->after)
        VPTQ_CHECK(c->dev->ops->copy(c->dev->state, s->after, rows,
                                     g->rows * hidden * sizeof *rows, err));
    VPTQ_CHECK(vptq_forward_block_with(c->forward, c->layer, c->starts, g->windows, s->after,
                                       &hooks, err));
    VPTQ_CHECK(rows_on_device(c, &c->states, g, s->rows, &rows, err));
    VPTQ_CHECK(subtract(c, g->rows, hidden, rows, s->after, s->after, err));
    for (size_t w = 0; w < g->windows; w++) {
        const float *d = s->after + w * length * hidden, *x = record_of(c, w, n);
        VPTQ_CHECK(add_window(c, (product){length, hidden, n, d, x, s->sum.chunk}, err));
        VPTQ_CHECK(add_guided(c, c->first + w, length, x, d, err));
    }
    return VPTQ_OK;
}

/* Sums x~ at an input of the shared expert or of one of the others. */
static vptq_status sum_expert(vptq_calibrator *c, const group *g, vptq_err *err)
{
    const vptq_block_hooks hooks = {.arg = c,
                                    .hook = on_expert,
                                    .linear = g->linear,
                                    .half = VPTQ_BLOCK_FEED_FORWARD,
                                    .stop = true,
                                    .last = c->next};
    return run_rows(c, &c->second->states, g, false, &hooks, err);
}

static vptq_status run_group(vptq_calibrator *c, const group *g, vptq_err *err)
{
    const vptq_experts *x = &c->model->desc->experts;
    const vptq_block_hooks whole = {.half = half_of(c->next)};

    if (c->next == vptq_input_count(x)) {
        if (vptq_layer_has_experts(x, c->layer)) /* else x left it with the input of down */
            VPTQ_CHECK(run_rows(c, &c->states, g, true, &whole, err));
        return finish_half(c, g, VPTQ_BLOCK_FEED_FORWARD, err);
    }
    if (!vptq_calibrator_shifts(c->next))
        return g->sum ? sum_expert(c, g, err) : VPTQ_OK;
    if (c->next == VPTQ_INPUT_UP)
        VPTQ_CHECK(finish_half(c, g, VPTQ_BLOCK_ATTENTION, err));
    if (!vptq_calibrator_drifts(c->next))
        return g->sum ? sum_shift(c, g, err) : VPTQ_OK;
    VPTQ_CHECK(run_rows(c, &c->states, g, true, &whole, err));
    if (g->sum)
        VPTQ_CHECK(sum_drift(c, g, err));
    return VPTQ_OK;
}

static vptq_status run_chunk(vptq_calibrator *c, size_t first, size_t count, group *g,
                             vptq_err *err)
{
    /* groups never span two chunks, as with one stream */
    for (size_t w = 0, e; w < count; w = e) {
        e = vptq_forward_group(c->starts, count, w);
        g->row = c->starts[first + w];
        g->rows = c->starts[e] - c->starts[w];
        g->windows = e - w;
        c->first = first + w;
        VPTQ_CHECK(run_group(c, g, err));
    }
    return VPTQ_OK;
}

static vptq_status run_part(vptq_calibrator *c, vptq_part part, group *g, vptq_err *err)
{
    const size_t rounds = vptq_calibrator_rounds(c, part);

    if (g->sum) {
        VPTQ_CHECK(vptq_calibrator_begin(c, c->next, part, err));
        VPTQ_CHECK(each_sum(c, 0, clear_total, err));
    }
    for (size_t k = 0; k < rounds; k++) {
        const vptq_calibrator_round r = vptq_calibrator_round_at(c, part, k);
        if (g->sum)
            VPTQ_CHECK(each_sum(c, 0, clear_chunk, err));
        VPTQ_CHECK(run_chunk(c, r.first, r.count, g, err));
        if (g->sum) {
            VPTQ_CHECK(vptq_calibrator_share(c, c->next, r.parts, err));
            VPTQ_CHECK(each_sum(c, r.parts, share, err));
        }
    }
    if (!g->sum)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_calibrator_end(c, c->next, part, err));
    return each_sum(c, 0, end, err);
}

/* Runs the step c->next over both parts. */
static vptq_status run_step(vptq_calibrator *c, const vptq_weight *linear,
                            vptq_calibrator_fn fn, void *arg, vptq_err *err)
{
    const bool sum = fn && c->next < vptq_input_count(&c->model->desc->experts);
    group g = {.sum = sum, .linear = linear};

    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        if (!c->windows[part])
            continue;
        VPTQ_CHECK(run_part(c, (vptq_part)part, &g, err));
        if (sum)
            VPTQ_CHECK(fn(arg, c, (vptq_part)part, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_calibrator_step(vptq_calibrator *c, const vptq_weight *linear,
                                 vptq_calibrator_fn fn, void *arg, vptq_err *err)
{
    VPTQ_BUG_IF(!c->second);
    vptq_forward_hold(c->forward, true);
    const vptq_status st = run_step(c, linear, fn, arg, err);
    vptq_forward_hold(c->forward, false); /* the next step has other weights */
    if (st)
        return st;
    const vptq_experts *x = &c->model->desc->experts;
    if (c->next == vptq_input_count(x)) {
        c->next = VPTQ_INPUT_QKV;
        c->layer++;
        return VPTQ_OK;
    }
    do
        c->next++;
    while (c->next < vptq_input_count(x) && !vptq_input_exists(x, c->layer, c->next));
    return VPTQ_OK;
}

/* ---- results ---- */

bool vptq_calibrator_drifts(vptq_input input)
{
    return input == VPTQ_INPUT_O || input == VPTQ_INPUT_DOWN;
}

bool vptq_calibrator_shifts(vptq_input input)
{
    return input < VPTQ_INPUT_DENSE;
}

/* shift [hidden, n of the present input] = sum / divisor, in host memory. */
static vptq_status divide(vptq_calibrator *c, const double *sum, uint64_t divisor, float *shift,
                          vptq_err *err)
{
    const vptq_backend *ops = c->dev->ops;
    const size_t count = shift_size(c);
    float *there = NULL; /* the product is not in use now */
    size_t step = count;

    if (!ops->host_memory) {
        there = c->second->product;
        step = c->second->product_floats;
    }
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < step ? count - i : step;
        const vptq_narrow_args a = {
            .n = n, .divisor = (double)divisor, .x = sum + i, .y = there ? there : shift + i};
        VPTQ_CHECK(ops->narrow(c->dev->state, &a, err));
        if (there)
            VPTQ_CHECK(ops->download(c->dev->state, shift + i, there, n * sizeof *shift, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_calibrator_shift(vptq_calibrator *c, float *shift, vptq_err *err)
{
    return divide(c, c->second->sum.total.sum, c->sum[c->next].tokens, shift, err);
}

vptq_status vptq_calibrator_term_shift(vptq_calibrator *c, vptq_linear term, float *shift,
                                       vptq_err *err)
{
    return divide(c, c->second->term[slot_of(term)].total.sum, c->term[term].tokens, shift,
                  err);
}
