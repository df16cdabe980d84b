/* Estimates decoding from groups of rows that pass a few blocks, and the head. */
#include "lib/eval/decode_estimate.h"

#include <math.h>

#include "lib/base/ctx.h"
#include "lib/model/narrow.h"

/* Rows of the first measurement of a prompt; weights of the blocks that are measured, so that
 * these do not stay in small caches; measurements of a group. */
enum { FIRST_ROWS = 64, BLOCK_WEIGHTS = 1 << 25, MAX_TURNS = 16 };

/* One model under one configuration. */
typedef struct probe {
    const vptq_model *m;
    const vptq_decode_load *c;
    vptq_narrow narrow;
    vptq_model few; /* the first blocks of the model or of its stand-in */
    vptq_model_desc desc;
    vptq_batch *b;
    double seconds; /* to spend on a group */
    double packed;  /* bytes of packed weights as the device prepares them, of all blocks */
} probe;

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

static vptq_status open_probe(probe *p, vptq_device *dev, const vptq_batch_options *o,
                              vptq_err *err)
{
    double blocks, head;
    p->few = *p->narrow.model;
    p->desc = *p->few.desc;
    p->few.desc = &p->desc;
    const double most = BLOCK_WEIGHTS / vptq_block_products(&p->desc, 0, false);
    p->desc.layers = (uint32_t)fmax(fmin(most, p->desc.layers), 1);
    VPTQ_CHECK(measure_packed(p, dev, o->kv, err));
    VPTQ_CHECK(vptq_batch_open(&p->few, dev, o, &p->b, err));
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
static vptq_batch_group prompt_group(const vptq_decode_load *c, size_t rows)
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
static vptq_status time_prompts(const probe *p, vptq_decode_prompts *prompts, vptq_err *err)
{
    group_time t;
    vptq_batch_group g = prompt_group(p->c, FIRST_ROWS);
    const double first = (double)(g.sequences * g.rows);
    VPTQ_CHECK(time_group(p, &g, &t, err));
    *prompts = (vptq_decode_prompts){first, t.block, t.block / first};
    const double more = fmin(first * p->seconds / t.turn, VPTQ_FORWARD_ROWS);
    if (more <= first)
        return VPTQ_OK;
    g = prompt_group(p->c, (size_t)more);
    const double rows = (double)(g.sequences * g.rows), few = t.block;
    if (rows <= first)
        return VPTQ_OK;
    VPTQ_CHECK(time_group(p, &g, &t, err));
    *prompts = (vptq_decode_prompts){rows, t.block, fmax(t.block - few, 0) / (rows - first)};
    return VPTQ_OK;
}

/* Seconds of all prompts in one block, in groups of VPTQ_FORWARD_ROWS rows. */
static double all_prompts(const vptq_decode_prompts *t, const vptq_decode_load *c)
{
    const double rows = (double)(c->batch * c->input), whole = floor(rows / VPTQ_FORWARD_ROWS);
    const double rest = rows - whole * VPTQ_FORWARD_ROWS;
    double seconds = whole * (t->seconds + t->per_row * (VPTQ_FORWARD_ROWS - t->rows));
    if (rest > 0)
        seconds += fmax(t->seconds + t->per_row * (rest - t->rows), 0);
    return seconds;
}

static vptq_status measure(const probe *p, vptq_decode_times *t, vptq_err *err)
{
    const vptq_decode_load *c = p->c;
    const vptq_batch_group step = {c->batch, 1, c->input + c->output / 2};
    group_time group;
    VPTQ_CHECK(time_prompts(p, &t->prompts, err));
    VPTQ_CHECK(time_group(p, &step, &group, err));
    t->block = group.block;
    t->head = group.head;
    t->layers = p->m->desc->layers;
    return VPTQ_OK;
}

vptq_status vptq_decode_measure(vptq_device *dev, const vptq_model *m,
                                const vptq_decode_load *c, const vptq_batch_options *o,
                                double seconds, vptq_decode_times *t, vptq_err *err)
{
    probe p = {.m = m, .c = c, .seconds = seconds};
    VPTQ_CHECK(vptq_model_narrow(m, dev, &p.narrow, err));
    vptq_status st = open_probe(&p, dev, o, err);
    t->packed_bytes = p.packed;
    if (!st)
        st = measure(&p, t, err);
    close_probe(&p);
    return st;
}

double vptq_decode_seconds(const vptq_decode_times *t, const vptq_decode_load *c)
{
    const double steps = (double)c->output;
    return t->layers * (all_prompts(&t->prompts, c) + (steps - 1) * t->block) + steps * t->head;
}
