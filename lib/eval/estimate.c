/* Estimates evaluations from a block and the head, which are narrower than those of a large
 * model. */
#include "lib/eval/estimate.h"

#include <math.h>

#include "lib/base/ctx.h"
#include "lib/model/narrow.h"

enum { FIRST_ROWS = 64, HEAD_ROWS = 64, BATCH_GROUPS = 16, BATCH_BYTES = 256 << 20 };
static const double target_seconds = 1;

typedef struct probe {
    vptq_forward *f;
    const vptq_model *m;
    float *hidden; /* [rows, hidden] */
    vptq_arena arena;
    size_t length, rows;
} probe;

/* Seconds of block 0 over `rows` rows. */
static vptq_status time_block(const probe *p, size_t rows, double *seconds, vptq_err *err)
{
    size_t starts[VPTQ_FORWARD_ROWS + 1], count = 0;
    const double begin = vptq_seconds();
    for (size_t at = 0; at < rows; at += p->length)
        starts[count++] = at;
    starts[count] = rows;
    VPTQ_CHECK(vptq_forward_block(p->f, 0, starts, count, p->hidden, err));
    *seconds = vptq_seconds() - begin;
    return VPTQ_OK;
}

static vptq_status open_probe(vptq_device *dev, probe *p, vptq_err *err)
{
    VPTQ_CHECK(vptq_forward_open(p->m, dev, p->length, &p->f, err));
    VPTQ_CHECK(vptq_forward_reserve(p->f, p->rows, err));
    p->hidden =
        vptq_arena_alloc(&p->arena, p->rows, p->m->desc->hidden * sizeof *p->hidden, err);
    int32_t *ids = p->hidden ? vptq_arena_alloc(&p->arena, p->rows, sizeof *ids, err) : NULL;
    if (!ids)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < p->rows; i++)
        ids[i] = (int32_t)(i % p->m->desc->vocab);
    return vptq_forward_embed(p->f, ids, p->rows, p->hidden, err);
}

static vptq_status time_head(probe *p, double *per_row, vptq_err *err)
{
    vptq_nll_state nll[HEAD_ROWS];
    int32_t targets[HEAD_ROWS] = {0};
    const size_t n = p->rows < HEAD_ROWS ? p->rows : (size_t)HEAD_ROWS;
    for (int turn = 0; turn < 2; turn++) { /* the first warms up */
        const double begin = vptq_seconds();
        VPTQ_CHECK(vptq_forward_loss(p->f, n, p->hidden, targets, nll, err));
        *per_row = (vptq_seconds() - begin) / (double)n;
    }
    return VPTQ_OK;
}

static vptq_status measure(vptq_device *dev, probe *p, double *block, double *head,
                           vptq_err *err)
{
    double seconds;
    size_t rows = p->rows < FIRST_ROWS ? p->rows : (size_t)FIRST_ROWS;
    VPTQ_CHECK(open_probe(dev, p, err));
    VPTQ_CHECK(time_block(p, rows, &seconds, err));
    const double affordable = (double)rows * target_seconds / (seconds + 1e-9);
    if (affordable > (double)rows)
        rows = affordable < (double)p->rows ? (size_t)affordable : p->rows;
    for (int turn = 0; turn < 2; turn++) /* the first touches the memory of all blocks */
        VPTQ_CHECK(time_block(p, rows, &seconds, err));
    *block = seconds / (double)rows;
    return time_head(p, head, err);
}

static double host_bytes(const vptq_device *dev, const vptq_model *m, const probe *p)
{
    return (double)vptq_forward_host_bytes(m, dev, p->length, p->rows);
}

/* Of the whole model, from a probe of a narrower one. */
static void add(const vptq_device *dev, const vptq_model *m, const probe *p, double tokens,
                double scored, double block, double head, vptq_estimate *e)
{
    const vptq_model_desc *d = m->desc, *narrow = p->m->desc;
    const double row = sizeof(float) * (double)d->hidden;
    const double batch = fmin(fmin(tokens, (double)p->rows * BATCH_GROUPS), BATCH_BYTES / row);
    block *= vptq_block_products(d, p->length, false) /
             vptq_block_products(narrow, p->length, false);
    head *= (double)d->hidden / narrow->hidden;
    e->seconds =
        (isnan(e->seconds) ? 0 : e->seconds) + tokens * block * d->layers + scored * head;
    e->memory_bytes +=
        (uint64_t)(batch * row + host_bytes(dev, m, p) - host_bytes(dev, p->m, p));
}

vptq_status vptq_eval_estimate(vptq_device *dev, const vptq_model *m, double tokens,
                               double scored, size_t length, vptq_estimate *e, vptq_err *err)
{
    vptq_mem *mem = dev->ctx->mem;
    const size_t used = mem ? mem->used : 0, peak = mem ? mem->peak : 0;
    double block = 0, head = 0;
    vptq_narrow narrow;
    if (!m)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_model_narrow(m, dev, &narrow, err));
    probe p = {.m = narrow.model, .length = length};
    p.rows = length < VPTQ_FORWARD_ROWS ? VPTQ_FORWARD_ROWS / length * length : length;
    p.rows = tokens < (double)p.rows ? (size_t)tokens : p.rows;
    vptq_arena_init(&p.arena, mem);
    if (mem)
        mem->peak = mem->used;
    const vptq_status st = measure(dev, &p, &block, &head, err);
    vptq_forward_close(p.f);
    vptq_arena_release(&p.arena);
    e->memory_bytes += mem ? mem->peak - used : 0;
    add(dev, m, &p, tokens, scored, block, head, e);
    vptq_narrow_release(&narrow);
    if (mem && mem->peak < peak)
        mem->peak = peak;
    return st;
}
