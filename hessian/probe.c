/* Measures a calibration on a few windows, in one block. */
#include "hessian/probe.h"

#include "hessian/calibrate_internal.h"

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
        return vptq_calibrator_run(c, finish, finishing, err);
    while (c->layer == 0)
        VPTQ_CHECK(vptq_calibrator_step(c, c->model->blocks[0].linear, finish, finishing, err));
    return VPTQ_OK;
}

/* Runs block 0 over the first `windows` windows, cut to `length` tokens.  *seconds: without
 * *finishing, which does not grow with the windows. */
static vptq_status measure(const vptq_calibrator *c, size_t windows, size_t length,
                           double *seconds, double *finishing, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_ctx quiet = *c->dev->ctx;
    vptq_device dev = *c->dev;
    vptq_calibrator p = *c; /* borrows the text and its windows */
    dev.ctx = &quiet;
    quiet.progress = NULL;
    quiet.comm = NULL; /* ranks measure alone, and as many windows as each can */
    p.dev = &dev;
    vptq_arena_init(&p.arena, quiet.mem);
    p.sum = vptq_arena_zalloc(&p.arena, (size_t)vptq_input_count(&c->model->desc->experts),
                              sizeof *p.sum, err);
    if (!p.sum)
        VPTQ_TRY(VPTQ_E_NOMEM);
    p.opt.length = length;
    p.windows[VPTQ_PART_MAIN] = windows;
    p.windows[VPTQ_PART_HELD_OUT] = 0;
    p.starts = vptq_arena_alloc(&p.arena, windows + 1, sizeof *p.starts, err);
    if (!p.starts)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t w = 0; w <= windows; w++)
        p.starts[w] = w * length;
    VPTQ_TRY(vptq_calibrator_start(&p, NULL, 0, 0, err));
    *finishing = 0;
    const double start = vptq_seconds();
    VPTQ_TRY(run_block(&p, finishing, err));
    *seconds = vptq_seconds() - start - *finishing;
out:
    vptq_calibrator_stop(&p);
    vptq_arena_release(&p.arena);
    return st;
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

vptq_status vptq_calibrator_probe(const vptq_calibrator *c, uint32_t last, double *seconds,
                                  uint64_t *memory, vptq_err *err)
{
    vptq_mem *mem = c->dev->ctx->mem;
    const size_t own = most_windows(c), whole = c->opt.length;
    const size_t group = vptq_forward_group(
        c->starts, own < VPTQ_CHUNK_WINDOWS ? own : (size_t)VPTQ_CHUNK_WINDOWS, 0);
    const size_t used = mem ? mem->used : 0, peak = mem ? mem->peak : 0;
    const double tokens = (double)own * (double)whole, layers = last + 1.0;
    size_t windows = 1, length = whole < FIRST_TOKENS ? whole : (size_t)FIRST_TOKENS;
    double finishing;

    VPTQ_CHECK(measure(c, windows, length, seconds, &finishing, err));
    const double affordable = (double)length * target_seconds / (*seconds + 1e-9);
    if (affordable >= (double)whole) {
        windows = affordable < (double)(group * whole) ? (size_t)affordable / whole : group;
        length = whole;
    } else if (affordable > (double)length) {
        length = (size_t)affordable;
    }
    if (mem)
        mem->peak = mem->used;
    VPTQ_CHECK(measure(c, windows, length, seconds, &finishing, err));
    const double measured = (double)windows * (double)length;
    const size_t hidden = sizeof(float) * c->model->desc->hidden * (c->opt.sequential ? 2 : 1);
    *memory = (mem ? mem->peak - used : 0) + (uint64_t)((tokens - measured) * (double)hidden);
    *seconds = layers * (*seconds * tokens / measured +
                         finishing * (c->windows[VPTQ_PART_HELD_OUT] ? 2 : 1));
    if (mem && mem->peak < peak)
        mem->peak = peak;
    return VPTQ_OK;
}
