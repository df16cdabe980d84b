/* Estimates serving from groups of rows that pass a few blocks, and the head. */
#include <math.h>

#include "lib/base/ctx.h"
#include "lib/bench/serve.h"
#include "lib/model/narrow.h"

/* Rows of the first measurement of a prompt; weights of the blocks that are measured, so that
 * these do not stay in small caches; measurements of a group. */
enum { FIRST_ROWS = 64, BLOCK_WEIGHTS = 1 << 25, MAX_TURNS = 16 };
static const double target_seconds = 1; /* of a model and kind of group, all configurations */

/* One model under one configuration. */
typedef struct probe {
    const vptq_model *m;
    const vptq_serve_config *c;
    vptq_narrow narrow;
    vptq_model few; /* the first blocks of the model or of its stand-in */
    vptq_model_desc desc;
    vptq_batch *b;
    double seconds; /* to spend on a group */
    double packed;  /* bytes of packed weights as the device prepares them, of all blocks */
} probe;

/* Seconds of groups of prompts in one block: `seconds` of `rows` rows, and more with each. */
typedef struct prompt_time {
    double rows, seconds, per_row;
} prompt_time;

/* Measures what a step of one row allocates on top of its plan. */
static vptq_status measure_packed(probe *p, vptq_device *dev, vptq_dtype kv, vptq_err *err)
{
    const vptq_mem *mem = dev->ctx->mem;
    const vptq_batch_options o = {.sequences = 1, .length = 2, .kv = kv, .top_p = 1};
    const size_t used = mem ? mem->used : 0;
    vptq_batch_memory planned;
    vptq_batch *b;
    double blocks, head;
    if (!mem || !p->few.blocks[0].linear[VPTQ_LINEAR_Q].packed)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_batch_plan(&p->few, &o, &planned, err));
    VPTQ_CHECK(vptq_batch_open(&p->few, dev, &o, &b, err));
    const vptq_status st =
        vptq_batch_time(b, &(vptq_batch_group){1, 1, 0}, &blocks, &head, err);
    p->packed = (double)(mem->used - used) - (double)planned.cache - (double)planned.working;
    p->packed = fmax(p->packed, 0) * vptq_block_products(p->m->desc, 0, false) *
                p->m->desc->layers / (vptq_block_products(&p->desc, 0, false) * p->desc.layers);
    vptq_batch_close(b);
    return st;
}

static vptq_status open_probe(probe *p, vptq_device *dev, vptq_dtype kv, vptq_err *err)
{
    const vptq_batch_options o = vptq_serve_batch_options(p->c, kv, 0);
    double blocks, head;
    p->few = *p->narrow.model;
    p->desc = *p->few.desc;
    p->few.desc = &p->desc;
    const double most = BLOCK_WEIGHTS / vptq_block_products(&p->desc, 0, false);
    p->desc.layers = (uint32_t)fmax(fmin(most, p->desc.layers), 1);
    VPTQ_CHECK(measure_packed(p, dev, kv, err));
    VPTQ_CHECK(vptq_batch_open(&p->few, dev, &o, &p->b, err));
    /* touches the memory of all weights */
    return vptq_batch_time(p->b, &(vptq_batch_group){1, 1, 0}, &blocks, &head, err);
}

static void close_probe(probe *p)
{
    vptq_batch_close(p->b);
    vptq_narrow_release(&p->narrow);
}

/* Seconds of a group, of the fastest turn: in one block of the model, of choosing its tokens,
 * and of measuring it. */
typedef struct group_time {
    double block, head, turn;
} group_time;

static vptq_status time_group(const probe *p, const vptq_batch_group *g, group_time *t,
                              vptq_err *err)
{
    const vptq_model_desc *d = p->m->desc;
    const size_t length = 2 * g->stored + g->rows; /* of which a row attends to half */
    const double start = vptq_seconds();
    *t = (group_time){(double)INFINITY, (double)INFINITY, 0};
    for (int turn = 0; turn < MAX_TURNS; turn++) {
        double blocks, head;
        VPTQ_CHECK(vptq_batch_time(p->b, g, &blocks, &head, err));
        t->block = fmin(t->block, blocks);
        t->head = fmin(t->head, head);
        if (vptq_seconds() - start > p->seconds)
            break;
    }
    t->turn = t->block + t->head;
    t->block *= vptq_block_products(d, length, false) /
                (vptq_block_products(&p->desc, length, false) * p->desc.layers);
    t->head *= (double)d->hidden / p->desc.hidden;
    return VPTQ_OK;
}

/* A group of at most `rows` rows in the middle of the prompts. */
static vptq_batch_group prompt_group(const vptq_serve_config *c, size_t rows)
{
    vptq_batch_group g = {1, rows, 0};
    if (rows >= c->input) {
        g.rows = c->input;
        g.sequences = rows / c->input < c->batch ? rows / c->input : c->batch;
    }
    g.stored = (c->input - g.rows) / 2;
    return g;
}

/* Measures few rows, and as many as the time allows: converting weights takes a part of it. */
static vptq_status time_prompts(const probe *p, prompt_time *prompts, vptq_err *err)
{
    group_time t;
    vptq_batch_group g = prompt_group(p->c, FIRST_ROWS);
    const double first = (double)(g.sequences * g.rows);
    VPTQ_CHECK(time_group(p, &g, &t, err));
    *prompts = (prompt_time){first, t.block, t.block / first};
    const double more = fmin(first * p->seconds / t.turn, VPTQ_FORWARD_ROWS);
    if (more <= first)
        return VPTQ_OK;
    g = prompt_group(p->c, (size_t)more);
    const double rows = (double)(g.sequences * g.rows), few = t.block;
    if (rows <= first)
        return VPTQ_OK;
    VPTQ_CHECK(time_group(p, &g, &t, err));
    *prompts = (prompt_time){rows, t.block, fmax(t.block - few, 0) / (rows - first)};
    return VPTQ_OK;
}

/* Seconds of all prompts in one block, in groups of VPTQ_FORWARD_ROWS rows. */
static double all_prompts(const prompt_time *t, const vptq_serve_config *c)
{
    const double rows = (double)c->batch * c->input, whole = floor(rows / VPTQ_FORWARD_ROWS);
    const double rest = rows - whole * VPTQ_FORWARD_ROWS;
    double seconds = whole * (t->seconds + t->per_row * (VPTQ_FORWARD_ROWS - t->rows));
    if (rest > 0)
        seconds += fmax(t->seconds + t->per_row * (rest - t->rows), 0);
    return seconds;
}

static vptq_status measure(const probe *p, uint32_t runs, uint32_t warmup, double *seconds,
                           vptq_err *err)
{
    const vptq_serve_config *c = p->c, w = vptq_serve_warm_up(c);
    const vptq_batch_group step = {c->batch, 1, c->input + c->output / 2};
    prompt_time prompts;
    group_time t;
    VPTQ_CHECK(time_prompts(p, &prompts, err));
    VPTQ_CHECK(time_group(p, &step, &t, err));
    const double layers = p->m->desc->layers;
    *seconds += runs * (layers * (all_prompts(&prompts, c) + (c->output - 1) * t.block) +
                        c->output * t.head);
    *seconds += warmup * (layers * (all_prompts(&prompts, &w) + (w.output - 1) * t.block) +
                          w.output * t.head);
    return VPTQ_OK;
}

/* Adds the time of one model under one configuration, and the memory. */
static vptq_status add_model(vptq_device *dev, const vptq_serve_plan *o, probe *p,
                             double *seconds, double *memory, vptq_err *err)
{
    vptq_serve_need need;
    VPTQ_CHECK(vptq_serve_need_of(p->m, p->c, o->kv, &need, err));
    VPTQ_CHECK(vptq_model_narrow(p->m, dev, &p->narrow, err));
    vptq_status st = open_probe(p, dev, o->kv, err);
    if (!st)
        st = measure(p, o->runs, o->warmup, seconds, err);
    *memory += (double)need.cache + (double)need.working + p->packed;
    close_probe(p);
    return st;
}

static vptq_status add_all(vptq_device *dev, const vptq_serve_plan *o, vptq_estimate *e,
                           vptq_err *err)
{
    double most = 0;
    for (size_t c = 0; c < o->config_count; c++) {
        double memory = 0; /* of all models at the same time */
        for (size_t i = 0; i < o->model_count; i++) {
            probe p = {.m = o->models[i].model,
                       .c = &o->configs[c],
                       .seconds = target_seconds / (double)o->config_count};
            VPTQ_CHECK(add_model(dev, o, &p, &e->seconds, &memory, err));
        }
        most = fmax(most, memory);
    }
    e->memory_bytes += (uint64_t)most;
    return VPTQ_OK;
}

vptq_status vptq_serve_estimate(const vptq_ctx *ctx, const vptq_serve_plan *o, vptq_estimate *e,
                                vptq_err *err)
{
    vptq_device dev;
    vptq_mem *mem = ctx->mem;
    const size_t peak = mem ? mem->peak : 0;
    *e = vptq_estimate_make(NULL);
    e->seconds = 0;
    e->memory_bytes = mem ? mem->used : 0;
    vptq_estimate_leave_out(e, "loading");
    VPTQ_CHECK(vptq_device_open(ctx, o->backend, &dev, err));
    const vptq_status st = add_all(&dev, o, e, err);
    vptq_device_close(&dev);
    if (mem && mem->peak < peak)
        mem->peak = peak;
    return st;
}
