/* Measures a calibration on a few windows, in one block, which is narrower than those of a
 * large model. */
#include "hessian/probe.h"

#include "hessian/calibrate_internal.h"
#include "lib/model/narrow.h"

enum { FIRST_TOKENS = 64 };
static const double target_seconds = 1; /* of the windows that are measured */

/* Takes the sums of a part as a caller does. */
static vptq_status finish(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    double *seconds = arg;
    const double start = vptq_seconds();
    vptq_arena arena;
    vptq_arena_init(&arena, c->dev->ctx->mem);
    (void)part;
    for (int i = 0; i < vptq_input_count(&c->model->desc->experts); i++) {
        const vptq_hessian_sum *s = &c->sum[i];
        if (!vptq_input_exists(&c->model->desc->experts, c->layer, i))
            continue;
        if (c->opt.sequential && i != (int)c->next)
            continue;
        float *lower = vptq_arena_alloc(&arena, vptq_triangle(s->n), sizeof *lower, err);
        float *mean = lower ? vptq_arena_alloc(&arena, s->n, sizeof *mean, err) : NULL;
        if (!mean)
            VPTQ_TRY(VPTQ_E_NOMEM);
        VPTQ_TRY(vptq_calibrator_finish(s, c->layer, vptq_input_name((vptq_input)i).text, lower,
                                        mean, err));
        vptq_arena_release(&arena);
    }
out:
    vptq_arena_release(&arena);
    *seconds += vptq_seconds() - start;
    return st;
}

static vptq_status run_block(vptq_calibrator *c, double *finishing, vptq_err *err)
{
    if (!c->opt.sequential)
        return vptq_calibrator_run(c, finishing ? finish : NULL, finishing, err);
    while (c->layer == 0)
        VPTQ_CHECK(vptq_calibrator_step(c, c->model->blocks[0].linear, finish, finishing, err));
    return VPTQ_OK;
}

/* Block 0 of a model over the first `windows` windows, cut to `length` tokens. */
typedef struct sample {
    const vptq_model *model;
    size_t windows, length;
} sample;

static size_t group_rows(size_t windows, size_t length)
{
    const size_t group = VPTQ_FORWARD_ROWS / length;
    const size_t count = group > 1 ? group : 1;
    return (windows < count ? windows : count) * length;
}

/* *seconds: without *finishing, which does not grow with the windows; with NULL for it, windows
 * only pass the block. */
static vptq_status measure(const vptq_calibrator *c, const sample *s, double *seconds,
                           double *finishing, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_ctx quiet = *c->dev->ctx;
    vptq_device dev = *c->dev;
    double ended = 0;
    vptq_calibrator p = *c; /* borrows the text and its windows */
    dev.ctx = &quiet;
    quiet.progress = NULL;
    quiet.comm = NULL; /* ranks measure alone, and as many windows as each can */
    p.dev = &dev;
    p.model = s->model;
    vptq_arena_init(&p.arena, quiet.mem);
    p.sum = vptq_arena_zalloc(&p.arena, (size_t)vptq_input_count(&c->model->desc->experts),
                              sizeof *p.sum, err);
    if (!p.sum)
        VPTQ_TRY(VPTQ_E_NOMEM);
    p.opt.length = s->length;
    p.windows[VPTQ_PART_MAIN] = s->windows;
    p.windows[VPTQ_PART_HELD_OUT] = 0;
    p.starts = vptq_arena_alloc(&p.arena, s->windows + 1, sizeof *p.starts, err);
    if (!p.starts)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t w = 0; w <= s->windows; w++)
        p.starts[w] = w * s->length;
    VPTQ_TRY(vptq_calibrator_start(&p, NULL, 0, 0, err));
    for (int turn = 0; turn < 2; turn++) { /* the first touches the memory of all layers */
        p.layer = 0;
        ended = 0;
        const double start = vptq_seconds();
        VPTQ_TRY(run_block(&p, finishing ? &ended : NULL, err));
        *seconds = vptq_seconds() - start - ended;
    }
    if (finishing)
        *finishing = ended;
out:
    vptq_calibrator_stop(&p);
    vptq_arena_release(&p.arena);
    return st;
}

/* ---- from the sample to the whole ---- */

/* Bytes of host memory that grow with the model's width or the rows of a group. */
static double host_bytes(const vptq_calibrator *c, const sample *s)
{
    const vptq_model_desc *d = s->model->desc;
    const size_t rows = group_rows(s->windows, s->length);
    size_t bytes = vptq_forward_host_bytes(s->model, c->dev, s->length, rows), largest = 0;
    for (int i = 0; i < vptq_input_count(&d->experts); i++) {
        const uint32_t n = vptq_input_size(d, i);
        if (!vptq_input_occurs(d, i))
            continue;
        bytes += vptq_hessian_sum_bytes(c->dev, n);
        largest = n > largest ? n : largest;
    }
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_term_of(c->opt.weights, l) == l)
            bytes += vptq_hessian_sum_bytes(c->dev, vptq_input_size(d, vptq_linear_input(l)));
    if (c->opt.sequential)
        bytes += vptq_calibrator_second_bytes(c, d, rows);
    bytes += vptq_triangle(largest) * sizeof(float); /* what `finish` takes */
    bytes += s->windows * s->length * d->hidden * sizeof(float) * (c->opt.sequential ? 2 : 1);
    return (double)bytes;
}

/* Numbers in the Hessians of block 0. */
static double hessian_entries(const vptq_model_desc *d)
{
    double sum = 0;
    for (int i = 0; i < vptq_input_count(&d->experts); i++) {
        const double n = vptq_input_size(d, i);
        sum += vptq_input_exists(&d->experts, 0, i) ? n * n : 0;
    }
    return sum;
}

/* Windows of the rank that has most. */
static size_t most_windows(const vptq_calibrator *c)
{
    const vptq_ctx *ctx = c->dev->ctx;
    size_t most = 0;
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        const size_t all = c->windows[part];
        const size_t rounds = vptq_rounds(ctx, all) * VPTQ_CHUNK_WINDOWS;
        most += rounds < all ? rounds : all;
    }
    return most;
}

/* The windows, or tokens of one, that can be measured within the target, after the time that a
 * first sample took. */
static void extend(sample *s, double seconds, size_t whole, size_t group)
{
    const double tokens = (double)s->length * target_seconds / (seconds + 1e-9);
    if (tokens >= (double)whole) {
        s->windows = tokens < (double)(group * whole) ? (size_t)tokens / whole : group;
        s->length = whole;
    } else if (tokens > (double)s->length) {
        s->length = (size_t)tokens;
    }
}

/* Seconds of one block. */
typedef struct block_seconds {
    double summed, passed;
} block_seconds;

static vptq_status probe(const vptq_calibrator *c, const vptq_model *model, bool passes,
                         block_seconds *t, double *memory, vptq_err *err)
{
    vptq_mem *mem = c->dev->ctx->mem;
    const size_t used = mem ? mem->used : 0;
    const size_t own = most_windows(c), length = c->opt.length;
    const sample whole = {c->model, own, length};
    sample s = {model, 1, length < FIRST_TOKENS ? length : (size_t)FIRST_TOKENS};
    double finishing;

    VPTQ_CHECK(measure(c, &s, &t->summed, &finishing, err));
    extend(&s, t->summed, length,
           group_rows(own < VPTQ_CHUNK_WINDOWS ? own : (size_t)VPTQ_CHUNK_WINDOWS, length) /
               length);
    if (mem)
        mem->peak = mem->used;
    VPTQ_CHECK(measure(c, &s, &t->summed, &finishing, err));
    *memory = (double)(mem ? mem->peak - used : 0) + host_bytes(c, &whole) - host_bytes(c, &s);
    const vptq_model_desc *d = c->model->desc;
    const double tokens = (double)own * (double)length / (double)(s.windows * s.length);
    t->summed *= tokens * vptq_block_products(d, length, true) /
                 vptq_block_products(model->desc, length, true);
    t->summed += finishing * (c->windows[VPTQ_PART_HELD_OUT] ? 2 : 1) * hessian_entries(d) /
                 hessian_entries(model->desc);
    if (passes)
        VPTQ_CHECK(measure(c, &s, &t->passed, NULL, err));
    t->passed *= tokens * vptq_block_products(d, length, false) /
                 vptq_block_products(model->desc, length, false);
    return VPTQ_OK;
}

vptq_status vptq_calibrator_probe(const vptq_calibrator *c, uint32_t summed, uint32_t passed,
                                  double *seconds, uint64_t *memory, vptq_err *err)
{
    vptq_mem *mem = c->dev->ctx->mem;
    const size_t peak = mem ? mem->peak : 0;
    block_seconds block = {0};
    double bytes = 0;
    vptq_narrow n;

    VPTQ_CHECK(vptq_model_narrow(c->model, c->dev, &n, err));
    const vptq_status st = probe(c, n.model, passed > 0, &block, &bytes, err);
    vptq_narrow_release(&n);
    *seconds = summed * block.summed + passed * block.passed;
    *memory = (uint64_t)bytes;
    if (mem && mem->peak < peak)
        mem->peak = peak;
    return st;
}
