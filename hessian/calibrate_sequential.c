/* Sequential calibration: both streams go half a block at a time.  x leaves a half when the
 * input at its end (of o or down) is measured.  x~ runs through it twice: with the model's o or
 * down to measure the drift, and later with the quantized matrix. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hessian/calibrate_internal.h"
#include "lib/base/parallel.h"

enum {
    PRODUCT_TOKENS = 256,         /* summed in float, as in the Hessians */
    MAX_PRODUCT_FLOATS = 1 << 22, /* computed at a time */
    ADD_ROWS = 16                 /* that one thread adds at a time */
};

typedef struct vptq_second_stream {
    vptq_hidden_states states;     /* x~ */
    double *sum[VPTQ_SHIFT_COUNT]; /* of the input that was run last */
    float *record;                 /* [group_rows, largest n] host: x, then x - x~, or x~ */
    float *after;   /* [group_rows, hidden] host: h~ after the half, then h - h~ */
    float *scaled;  /* [length, hidden] host: weighted x - x~; NULL = no weights */
    float *product; /* [product_floats] device */
    size_t product_floats;
    /* NULL on devices that work in host memory */
    float *host_product; /* [product_floats] host */
    float *left, *right; /* [length, largest n] of a window, device */
    float *host_tokens;  /* [length, largest n] host */
} second_stream;

/* ---- memory ---- */

static size_t largest_input(const vptq_calibrator *c)
{
    size_t max = 0;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
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

static vptq_status host_floats(vptq_calibrator *c, size_t rows, size_t n, float **out,
                               vptq_err *err)
{
    *out = vptq_arena_alloc(&c->arena, rows, n * sizeof **out, err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status open_sums(vptq_calibrator *c, second_stream *s, size_t n, vptq_err *err)
{
    const size_t hidden = c->model->desc->hidden;
    const size_t columns[VPTQ_SHIFT_COUNT] = {hidden, c->opt.weights ? hidden : 0, n};

    for (int kind = 0; kind < VPTQ_SHIFT_COUNT; kind++) {
        if (!columns[kind])
            continue;
        s->sum[kind] =
            vptq_arena_alloc(&c->arena, hidden, columns[kind] * sizeof *s->sum[kind], err);
        if (!s->sum[kind])
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

vptq_status vptq_calibrator_open_second(vptq_calibrator *c, const char *dir, vptq_err *err)
{
    const size_t hidden = c->model->desc->hidden, n = largest_input(c);
    second_stream *s = vptq_arena_zalloc(&c->arena, 1, sizeof *s, err);

    if (!s)
        return VPTQ_E_NOMEM;
    s->states.fd = -1;
    c->second = s;
    VPTQ_CHECK(vptq_calibrator_open_stream(c, dir, &s->states, err));
    VPTQ_CHECK(open_sums(c, s, n, err));
    VPTQ_CHECK(host_floats(c, c->group_rows, n, &s->record, err));
    VPTQ_CHECK(host_floats(c, c->group_rows, hidden, &s->after, err));
    if (c->opt.weights == VPTQ_WEIGHTS_ATTENTION)
        VPTQ_CHECK(host_floats(c, c->opt.length, hidden, &s->scaled, err));
    s->product_floats =
        n * n < MAX_PRODUCT_FLOATS ? n * n : MAX_PRODUCT_FLOATS; /* more than one row */
    VPTQ_CHECK(device_floats(c, 1, s->product_floats, &s->product, err));
    if (c->dev->ops->host_memory)
        return VPTQ_OK;
    VPTQ_CHECK(device_floats(c, c->opt.length, n, &s->left, err));
    VPTQ_CHECK(device_floats(c, c->opt.length, n, &s->right, err));
    VPTQ_CHECK(host_floats(c, c->opt.length, n, &s->host_tokens, err));
    return host_floats(c, 1, s->product_floats, &s->host_product, err);
}

void vptq_calibrator_close_second(vptq_calibrator *c)
{
    second_stream *s = c->second;
    if (!s)
        return;
    vptq_hidden_states_close(&s->states);
    c->dev->ops->release(c->dev->state, s->product);
    c->dev->ops->release(c->dev->state, s->left);
    c->dev->ops->release(c->dev->state, s->right);
    c->second = NULL;
}

vptq_hidden_states *vptq_calibrator_second(const vptq_calibrator *c)
{
    return c->second ? &c->second->states : NULL;
}

/* ---- sums of products ---- */

typedef struct add_job {
    size_t n;
    const float *product;
    double *sum;
} add_job;

static void add_rows(void *arg, size_t begin, size_t end, int thread)
{
    const add_job *job = arg;
    (void)thread;
    for (size_t i = begin * job->n; i < end * job->n; i++)
        job->sum[i] += (double)job->product[i];
}

/* sum [m, n] += d^T x. */
typedef struct product {
    size_t tokens, m, n;
    const float *d; /* [tokens, m] */
    const float *x; /* [tokens, n] in device memory */
    double *sum;
} product;

/* For at most PRODUCT_TOKENS tokens, with d in device memory; some rows at a time. */
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
        add_job job = {n, s->product, p->sum + i * n};
        VPTQ_CHECK(ops->gemm(c->dev->state, &g, err));
        if (s->host_product) {
            job.product = s->host_product;
            VPTQ_CHECK(ops->download(c->dev->state, s->host_product, s->product,
                                     rows * n * sizeof *s->product, err));
        }
        vptq_parallel_for(c->dev->ctx->threads, rows, ADD_ROWS, add_rows, &job);
    }
    return VPTQ_OK;
}

/* For a window, with d in host memory. */
static vptq_status add_window(vptq_calibrator *c, product p, vptq_err *err)
{
    const size_t tokens = p.tokens, count = tokens * p.m;
    float *left = c->second->left;
    bool any = false;

    for (size_t i = 0; i < count && !any; i++)
        any = p.d[i] != 0;
    if (!any) /* before the first quantized matrix both streams are the same */
        return VPTQ_OK;
    if (left) {
        VPTQ_CHECK(c->dev->ops->upload(c->dev->state, left, p.d, count * sizeof *left, err));
        p.d = left;
    }
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
    return c->dev->ops->download(c->dev->state, record_of(c, sequence, dim), x,
                                 tokens * dim * sizeof *x, err);
}

static void report(const vptq_calibrator *c, size_t sequence)
{
    char detail[64];
    const uint64_t windows = vptq_calibrator_windows(c);
    const uint64_t done = (uint64_t)c->layer * VPTQ_INPUT_COUNT + (uint64_t)c->next;

    snprintf(detail, sizeof detail, "layer %u of 0-%u, %s", c->layer, c->last,
             vptq_input_name(c->next));
    vptq_progress(c->dev->ctx, "hessian", done * windows + c->first + sequence + 1,
                  (uint64_t)(c->last + 1) * VPTQ_INPUT_COUNT * windows, detail);
}

/* d -= x over `count` floats, d in host and x in device memory. */
static vptq_status subtract(vptq_calibrator *c, size_t count, const float *x, float *d,
                            vptq_err *err)
{
    float *copy = c->second->host_tokens;

    if (copy) {
        VPTQ_CHECK(c->dev->ops->download(c->dev->state, copy, x, count * sizeof *x, err));
        x = copy;
    }
    for (size_t i = 0; i < count; i++)
        d[i] -= x[i];
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
    if (vptq_calibrator_has(c, input, VPTQ_DRIFT))
        return c->dev->ops->download(c->dev->state, d, x, tokens * dim * sizeof *x, err);
    VPTQ_CHECK(subtract(c, tokens * dim, x, d, err));
    VPTQ_CHECK(add_window(c, (product){tokens, dim, dim, d, x, s->sum[VPTQ_SHIFT]}, err));
    if (input != VPTQ_INPUT_QKV || c->opt.weights != VPTQ_WEIGHTS_SINK)
        return VPTQ_OK;
    return add_window(c, (product){1, dim, dim, d, x, s->sum[VPTQ_TERM_SHIFT]}, err);
}

/* Second stream, after on_second of the same window. */
static vptq_status on_attention(void *arg, size_t sequence, size_t tokens, size_t dim,
                                const float *x, const vptq_attention_args *a, vptq_err *err)
{
    vptq_calibrator *c = arg;
    second_stream *s = c->second;
    const float *d = record_of(c, sequence, dim);

    VPTQ_CHECK(vptq_calibrator_attention(arg, sequence, tokens, dim, x, a, err));
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = 0; i < dim; i++)
            s->scaled[t * dim + i] = c->host_weight[t] * d[t * dim + i];
    return add_window(c, (product){tokens, dim, dim, s->scaled, x, s->sum[VPTQ_TERM_SHIFT]},
                      err);
}

/* ---- steps ---- */

static void clear_sums(vptq_calibrator *c)
{
    vptq_hessian_sum *h = &c->sum[c->next];
    const size_t hidden = c->model->desc->hidden;
    vptq_hessian_sum_clear(h);
    if (c->opt.weights && c->next == VPTQ_INPUT_QKV)
        vptq_hessian_sum_clear(&c->term);
    for (int kind = 0; kind < VPTQ_SHIFT_COUNT; kind++)
        if (vptq_calibrator_has(c, c->next, (vptq_shift_kind)kind))
            memset(c->second->sum[kind], 0, hidden * h->n * sizeof *c->second->sum[kind]);
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
    float *rows;

    VPTQ_CHECK(vptq_hidden_states_get(&s->states, g->row, g->rows, false, &rows, err));
    memcpy(s->after, rows, g->rows * hidden * sizeof *rows);
    VPTQ_CHECK(vptq_forward_block_with(c->forward, c->layer, c->starts, g->windows, s->after,
                                       &hooks, err));
    VPTQ_CHECK(vptq_hidden_states_get(&c->states, g->row, g->rows, false, &rows, err));
    for (size_t i = 0; i < g->rows * hidden; i++)
        s->after[i] = rows[i] - s->after[i];
    for (size_t w = 0; w < g->windows; w++) {
        const float *x = record_of(c, w, n);
        if (s->right) {
            VPTQ_CHECK(
                c->dev->ops->upload(c->dev->state, s->right, x, length * n * sizeof *x, err));
            x = s->right;
        }
        const float *d = s->after + w * length * hidden;
        VPTQ_CHECK(add_window(c, (product){length, hidden, n, d, x, s->sum[VPTQ_DRIFT]}, err));
    }
    return VPTQ_OK;
}

static vptq_status run_group(vptq_calibrator *c, const group *g, vptq_err *err)
{
    const vptq_block_hooks whole = {.half = half_of(c->next)};

    if (c->next == VPTQ_INPUT_COUNT)
        return finish_half(c, g, VPTQ_BLOCK_FEED_FORWARD, err);
    if (c->next == VPTQ_INPUT_UP)
        VPTQ_CHECK(finish_half(c, g, VPTQ_BLOCK_ATTENTION, err));
    if (!vptq_calibrator_has(c, c->next, VPTQ_DRIFT))
        return g->sum ? sum_shift(c, g, err) : VPTQ_OK;
    VPTQ_CHECK(run_rows(c, &c->states, g, true, &whole, err));
    if (g->sum)
        VPTQ_CHECK(sum_drift(c, g, err));
    return VPTQ_OK;
}

static vptq_status run_part(vptq_calibrator *c, size_t first, size_t count, group *g,
                            vptq_err *err)
{
    /* groups never span two parts, as with one stream */
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

/* Runs the step c->next over both parts. */
static vptq_status run_step(vptq_calibrator *c, const vptq_weight *linear,
                            vptq_calibrator_fn fn, void *arg, vptq_err *err)
{
    const bool sum = fn && c->next < VPTQ_INPUT_COUNT;
    group g = {.sum = sum, .linear = linear};
    size_t first = 0;

    for (int part = 0; part < VPTQ_PART_COUNT; first += c->windows[part++]) {
        if (!c->windows[part])
            continue;
        if (sum)
            clear_sums(c);
        VPTQ_CHECK(run_part(c, first, c->windows[part], &g, err));
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
    if (c->next++ == VPTQ_INPUT_COUNT) {
        c->next = VPTQ_INPUT_QKV;
        c->layer++;
    }
    return VPTQ_OK;
}

/* ---- results ---- */

bool vptq_calibrator_has(const vptq_calibrator *c, vptq_input input, vptq_shift_kind kind)
{
    const bool drift = input == VPTQ_INPUT_O || input == VPTQ_INPUT_DOWN;
    switch (kind) {
    case VPTQ_TERM_SHIFT:
        return c->opt.weights && input == VPTQ_INPUT_QKV;
    case VPTQ_DRIFT:
        return drift;
    default:
        return !drift;
    }
}

void vptq_calibrator_shift(const vptq_calibrator *c, vptq_input input, vptq_shift_kind kind,
                           float *shift)
{
    const size_t count = (size_t)c->model->desc->hidden * c->sum[input].n;
    const uint64_t tokens = kind == VPTQ_TERM_SHIFT ? c->term.tokens : c->sum[input].tokens;
    for (size_t i = 0; i < count; i++)
        shift[i] = (float)(c->second->sum[kind][i] / (double)tokens);
}
